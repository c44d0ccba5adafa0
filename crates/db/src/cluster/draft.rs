//! Tables that a client creates together, until all of them are ready.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use remora_memory::TableId;

use crate::mutex::lock;

/// Tables that this client creates together.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Their creator.
    pub(super) client: u32,
    pub(super) tables: Mutex<Vec<TableId>>,
    pub(super) is_over: AtomicBool,
}

impl Draft {
    pub(crate) fn client(&self) -> u32 {
        self.client
    }

    pub(crate) fn note(&self, table: TableId) {
        lock(&self.tables).push(table);
    }
}
