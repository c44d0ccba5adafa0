//! The list of tables that a client creates together, until all of them are ready.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use remora_node::TableId;

use crate::mutex::lock;

/// Tables that this client creates together. The catalog names the client as their creator until
/// all of them are ready.
#[derive(Debug)]
pub(super) struct Draft {
    creator: u32,
    tables: Mutex<Vec<TableId>>,
    is_over: AtomicBool,
}

impl Draft {
    /// Makes a draft without tables.
    pub(super) fn new(creator: u32) -> Draft {
        Draft { creator, tables: Mutex::default(), is_over: AtomicBool::new(false) }
    }

    /// Returns the client that creates the tables.
    pub(super) fn creator(&self) -> u32 {
        self.creator
    }

    /// Notes that a table has been created.
    pub(super) fn note(&self, table: TableId) {
        lock(&self.tables).push(table);
    }

    /// Returns the tables that have been created, in the order of their creation.
    pub(super) fn tables(&self) -> Vec<TableId> {
        lock(&self.tables).clone()
    }

    /// Takes out the tables that were created after the first `count` ones, and returns them.
    pub(super) fn take_behind(&self, count: usize) -> Vec<TableId> {
        let mut tables = lock(&self.tables);
        let count = count.min(tables.len());
        tables.split_off(count)
    }

    /// Notes that all tables are ready.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns whether all tables are ready.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}
