//! Bulk load in parts makes the same table as without parts, to the byte.

mod support;

use std::sync::atomic::Ordering;

use remora::admin::NodeId;
use remora::floors::index::IndexError;
use remora::protocol::Protocol;
use remora::{Cluster, OpenError, TableOptions};
use support::Words;

const PARTS: u64 = 7;
const ROWS: u64 = 3_000;

/// Returns the rows of a part. The parts have different sizes.
fn part(number: u64) -> Vec<((u32, u64), Words<3>)> {
    let bound = |number: u64| number * number * ROWS / (PARTS * PARTS);
    (bound(number)..bound(number + 1)).map(|row| ((row as u32 / 7, row), Words([row, row * row, 7]))).collect()
}

fn cluster(protocol: Protocol) -> Cluster {
    let copies = protocol.discipline().copies_max().min(2) as u8;
    Cluster::embedded().node_bytes(4 << 20).replicas(copies).protocol(protocol).open().unwrap()
}

/// All bytes of all memory nodes.
fn memory(cluster: &Cluster) -> Vec<u64> {
    let mut words = Vec::new();
    for node in (0..cluster.memory_nodes()).map(NodeId) {
        let region = cluster.fabric().region(node, remora::floors::node::node::REGION).unwrap();
        words.extend(region.words().iter().map(|word| word.load(Ordering::Relaxed)));
    }
    words
}

#[test]
fn parts_make_the_same_table() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let [whole, in_parts] = [cluster(protocol), cluster(protocol)];
        let table = |cluster: &Cluster| {
            cluster.create_table::<(u32, u64), Words<3>>("rows", TableOptions::for_rows(ROWS)).unwrap()
        };
        let (one, other) = (table(&whole), table(&in_parts));
        let count = whole.load(&one, (0..PARTS).flat_map(part)).unwrap();
        let mut told = 0;
        assert_eq!(in_parts.load_parts(&other, PARTS, part, |rows| told += rows).unwrap(), ROWS);
        assert_eq!((count, told), (ROWS, ROWS));
        let differing = memory(&whole).iter().zip(memory(&in_parts)).filter(|(one, other)| **one != *other).count();
        // A few words differ, because each cluster has its own id.
        assert!(differing < 16, "{protocol:?}: {differing} words");
        let mut found = 0;
        let inspected = in_parts.inspect(&other, |row| found += u64::from(row.0[1] == row.0[0] * row.0[0])).unwrap();
        assert_eq!((inspected.records, found, inspected.differing_lines), (ROWS, ROWS, 0));
        let again = in_parts.load_parts(&other, 1, part, |_| ());
        assert!(matches!(again.as_ref().map_err(OpenError::cause), Err(IndexError::NotEmpty(_))), "{again:?}");
    }
}

#[test]
fn what_a_part_does_wrong_is_said() {
    let cluster = cluster(Protocol::DRTM_R);
    let options = |rows| TableOptions::for_rows(rows).grows(false);
    let table = |name, rows| cluster.create_table::<u64, Words<3>>(name, options(rows)).unwrap();
    let same = |_| vec![(1, Words([0; 3]))];
    let twice = cluster.load_parts(&table("twice", 10), 5, same, |_| ());
    assert!(matches!(twice.as_ref().map_err(OpenError::cause), Err(IndexError::Duplicate { .. })), "{twice:?}");
    let many = |part| (0..100).map(|row| (part * 100 + row, Words([0; 3]))).collect();
    let full = cluster.load_parts(&table("full", 100), 5, many, |_| ());
    assert!(matches!(full.as_ref().map_err(OpenError::cause), Err(IndexError::Full { .. })), "{full:?}");
}
