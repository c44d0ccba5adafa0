//! A cluster whose memory is soon used up, and tables of rows that are all the same.

use remora::floors::node::MemoryError;
use remora::protocol::Protocol;
use remora::{Cluster, OpenError, Table};

use crate::support::{Words, look};

pub(crate) type Row = Words<1>;

pub(crate) const ROW: Row = Words([7]);

/// A megabyte and a half can be allocated at each of two nodes.
pub(crate) fn small(protocol: Protocol) -> Cluster {
    let copies = protocol.discipline().copies_max().min(2) as u8;
    let options = Cluster::embedded().nodes(2).replicas(copies).node_bytes(2 << 20).protocol(protocol);
    options.open().unwrap()
}

pub(crate) fn rows(count: u64) -> impl Iterator<Item = (u64, Row)> {
    (0..count).map(|key| (key, ROW))
}

/// Asserts that a table has these many rows, that its replicas are the same, and that no lock is
/// held.
pub(crate) fn assert_whole(cluster: &Cluster, table: &Table<u64, Row>, count: usize) {
    let (found, inspection) = look(cluster, table);
    assert_eq!(found, vec![ROW; count]);
    assert_eq!((inspection.locked, inspection.torn, inspection.differing_lines), (0, 0, 0), "{inspection:?}");
}

pub(crate) fn memory_error<T>(result: Result<T, OpenError>) -> MemoryError {
    match result {
        Err(error) => error.memory().cloned().unwrap_or_else(|| panic!("{error}")),
        Ok(_) => panic!("it has succeeded"),
    }
}
