//! The growths that a process has begun by itself, each on a thread of its own.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::mutex::lock;

/// The growths that this process has begun by itself: one for each table, by when it was born. A
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

/// What became of a growth that this process has begun by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growing {
    /// It is under way.
    UnderWay,
    /// It has failed a short while ago, because the memory nodes have no room, or for another
    /// reason.
    Failed { nodes_full: bool },
}

impl Growths {
    /// The state of a table's growth. If none is known, has it begin: then the table grows if that
    /// returns true.
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

    /// A table's growth has failed.
    pub(super) fn fail(&self, table: &remora_index::Table, nodes_full: bool) {
        let state = Growing::Failed { nodes_full };
        lock(&self.tables).insert(table.born(), Growth { origin: table.origin(), state });
    }

    /// A table's growth has ended, or may be tried again.
    pub(super) fn end(&self, table: &remora_index::Table) {
        lock(&self.tables).remove(&table.born());
    }

    /// Whether a table grows, or a larger one that it has grown into.
    pub(super) fn is_under_way(&self, table: &remora_index::Table) -> bool {
        let is_of_table = |growth: &Growth| growth.origin == table.origin() && growth.state == Growing::UnderWay;
        lock(&self.tables).values().any(is_of_table)
    }
}
