//! The growths that a process begins by itself, each on a thread of its own: a table grows before
//! it is full, or, at the latest, when an insert has found no room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::growth::Halt;
use super::handle::Cluster;
use crate::mutex::lock;
use crate::worker::Session;

/// Rows that each shard of a larger table has room for at least beyond those of the smaller one.
const ROWS_MIN: u64 = 64;
/// Pause between two looks whether a growth has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// The growths that this process has begun by itself: one for each table, by when it was born.
#[derive(Debug, Default)]
pub(super) struct Growths {
    tables: Mutex<HashMap<u64, Growing>>,
}

/// What became of a growth that this process has begun by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growing {
    /// It is under way.
    UnderWay,
    /// It has failed a short while ago, because the memory nodes have no room, or for another
    /// reason.
    Failed { nodes_full: bool },
}

/// How long a growth that has failed is not tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of a table beyond which it grows to twice its size, and no longer to four times.
const LARGE_BYTES: u64 = 64 << 20;

impl Cluster {
    /// Has a table grow on a thread of its own, unless it does already. Returns what has become of
    /// that; `None` if tables do not grow by themselves.
    #[cold]
    pub(crate) fn ask_to_grow(&self, table: &Arc<remora_index::Table>) -> Option<Growing> {
        let growths = self.growths.as_ref().filter(|_| table.entry().spec.grows)?;
        let mut tables = lock(&growths.tables);
        if let Some(growing) = tables.get(&table.born()) {
            return Some(*growing);
        }
        let (cluster, growing, born) = (self.clone(), table.clone(), table.born());
        let registered = growths.clone();
        let grow = move || {
            let grown = cluster.with_grower(async |session| grow_by_itself(session, &growing).await);
            // If clients take longer, the next who needs the space frees it.
            let grown = grown.and_then(|()| Ok(drop(cluster.free_dropped()?)));
            if let Err(error) = grown {
                tracing::warn!(table = growing.name(), %error, "a table cannot grow");
                lock(&registered.tables).insert(born, Growing::Failed { nodes_full: error.is_full() });
                thread::sleep(RETRY_PAUSE);
            }
            lock(&registered.tables).remove(&born);
        };
        let growing = match thread::Builder::new().name("remora-growth".to_owned()).spawn(grow) {
            Ok(_) => Growing::UnderWay,
            Err(error) => {
                tracing::warn!(table = table.name(), %error, "there is no thread that makes a table larger");
                return Some(Growing::Failed { nodes_full: false });
            }
        };
        tables.insert(born, growing);
        Some(growing)
    }

    /// Waits until a table does not grow any more, as far as this process has it grow.
    pub(super) fn until_grown(&self, table: &remora_index::Table) {
        let Some(growths) = &self.growths else { return };
        let is_under_way = |table: &remora_index::Table| {
            let tables = lock(&growths.tables);
            tables.get(&table.born()).is_some_and(|growing| *growing == Growing::UnderWay)
        };
        let now = || self.inner.opened.get(table.name()).filter(|own| own.origin() == table.origin());
        while !self.is_interrupted() && now().is_some_and(|own| own.and_larger().any(is_under_way)) {
            thread::sleep(PAUSE);
        }
    }
}

/// Has a table grow to several times its size, or to less if memory nodes have no room for that.
pub(super) async fn grow_by_itself(session: &mut Session, table: &Arc<remora_index::Table>) -> Result<(), Halt> {
    let rows = table.rows_of_shard();
    let bytes = table.entry().spec.shard_bytes.saturating_mul(table.shards().into());
    let wanted = if bytes < LARGE_BYTES { 4 } else { 2 };
    let sizes = [rows.saturating_mul(wanted), rows.saturating_mul(2), rows + rows / 2, rows + rows / 4];
    let mut grown = Ok(());
    for rows in sizes.into_iter().map(|size| size.max(rows + ROWS_MIN)) {
        grown = session.grow(table, rows).await;
        if !grown.as_ref().is_err_and(Halt::is_full) {
            break;
        }
    }
    grown
}
