//! The configuration of one process: what every configuration keeps to.

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
