//! The list of the growths that a process has begun by itself. Each runs on its own thread, or in
//! the coroutine that has found a table full.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::mutex::lock;

/// The growths that this process has begun by itself, one for each table, by the table's origin. A
/// larger table that grows, too, has the same origin.
#[derive(Debug, Default)]
pub(super) struct Growths {
    tables: Mutex<HashMap<u64, Growth>>,
    /// Whether coroutines make tables larger, and not threads.
    in_turn: bool,
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

/// A growth that a coroutine makes. When this is dropped, another coroutine may begin one.
pub(super) struct Turn {
    growths: Arc<Growths>,
    table: Arc<remora_index::Table>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.growths.end(&self.table);
    }
}

impl Growths {
    /// Returns a list for a process whose coroutines make tables larger.
    pub(super) fn in_turn() -> Growths {
        Growths { in_turn: true, ..Growths::default() }
    }

    /// Returns the growth of a table for the calling coroutine to make. Returns `None` if it is
    /// under way, or if threads make tables larger.
    pub(super) fn turn(self: &Arc<Growths>, table: &Arc<remora_index::Table>) -> Option<Turn> {
        let growth = Growth { origin: table.origin(), state: Growing::UnderWay };
        let mut tables = lock(&self.tables);
        if !self.in_turn || tables.contains_key(&table.born()) {
            return None;
        }
        tables.insert(table.born(), growth);
        Some(Turn { growths: self.clone(), table: table.clone() })
    }

    /// Returns the state of a table's growth. If there is none, calls `begin` to begin one, unless
    /// coroutines do that. The growth is under way if `begin` returns true.
    pub(super) fn state_or_begin(&self, table: &remora_index::Table, begin: impl FnOnce() -> bool) -> Growing {
        let mut tables = lock(&self.tables);
        if let Some(growth) = tables.get(&table.born()) {
            return growth.state;
        }
        if self.in_turn || !begin() {
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
