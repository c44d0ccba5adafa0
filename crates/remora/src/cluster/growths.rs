//! The list of the growths that a process has begun by itself. Each runs on its own thread.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::mutex::lock;

/// The growths that this process has begun by itself, one for each table, by the table's origin. A
/// larger table that grows, too, has the same origin.
#[derive(Debug, Default)]
pub(super) struct Growths {
    tables: Mutex<HashMap<u64, Growth>>,
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    origin: u64,
    state: Growing,
}

/// The state of a growth that this process has begun by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growing {
    /// The growth is under way.
    UnderWay,
    /// The growth has failed a short while ago, because the memory nodes have no room
    /// (`nodes_full`) or for another reason.
    Failed { nodes_full: bool },
}

impl Growths {
    /// Returns the state of a table's growth. If there is none, calls `begin` to begin one. The
    /// growth is under way if `begin` returns true.
    pub(super) fn state_or_begin(&self, table: &remora_index::Table, begin: impl FnOnce() -> bool) -> Growing {
        let mut tables = lock(&self.tables);
        if let Some(growth) = tables.get(&table.born()) {
            return growth.state;
        }
        if !begin() {
            return Growing::Failed { nodes_full: false };
        }
        tables.insert(table.born(), Growth { origin: table.origin(), state: Growing::UnderWay });
        Growing::UnderWay
    }

    /// Notes that a table's growth has failed.
    pub(super) fn fail(&self, table: &remora_index::Table, nodes_full: bool) {
        let state = Growing::Failed { nodes_full };
        lock(&self.tables).insert(table.born(), Growth { origin: table.origin(), state });
    }

    /// Notes that a table's growth has ended, or may be tried again.
    pub(super) fn end(&self, table: &remora_index::Table) {
        lock(&self.tables).remove(&table.born());
    }

    /// Returns whether a table grows, or a larger table that it has grown into.
    pub(super) fn is_under_way(&self, table: &remora_index::Table) -> bool {
        let is_of_table = |growth: &Growth| growth.origin == table.origin() && growth.state == Growing::UnderWay;
        lock(&self.tables).values().any(is_of_table)
    }
}
