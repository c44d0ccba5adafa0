//! Runs the rules that every configuration keeps on the configuration of one process.

#[macro_use]
mod places;

use std::sync::Arc;

use places::Place;
use remora_membership::{Configuration, InMemory};

impl Place for Arc<InMemory> {
    fn new() -> Arc<InMemory> {
        Arc::default()
    }

    fn open(&self) -> Arc<dyn Configuration> {
        self.clone()
    }
}

conformance!(Arc<InMemory>);
