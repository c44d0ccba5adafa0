//! The record of whether a session runs something, and which dropped tables it may still know. The
//! keeper of its client needs both before it acknowledges that tables were dropped (rule 2 of
//! `dropping`).

use std::cell::Cell;
use std::rc::Rc;

use remora_fabric::{Endpoint, Lane, LaneId};

/// Tells whether a session runs something, and which dropped tables it may still know. The session
/// and the keeper of its client share it.
#[derive(Debug)]
pub(crate) struct Usage {
    lane: LaneId,
    running: Cell<u32>,
    /// The generation of the catalog by which the session has forgotten all dropped tables. No
    /// round of the session from before that is under way.
    generation: Cell<u64>,
}

impl Usage {
    pub(crate) fn of(lane: &Lane) -> Rc<Usage> {
        Rc::new(Usage { lane: lane.id(), running: Cell::new(0), generation: Cell::new(0) })
    }

    /// Notes that the session runs something, until the returned guard is dropped.
    pub(crate) fn begin(self: &Rc<Usage>) -> InUse {
        self.running.set(self.running.get() + 1);
        InUse(self.clone())
    }

    /// Returns whether the session may still know a table that was dropped by this generation.
    #[inline]
    pub(crate) fn is_behind(&self, generation: u64) -> bool {
        self.generation.get() < generation
    }

    /// Returns the generation of the catalog by which the session has last forgotten a table.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Notes that the session has forgotten the tables that were dropped by this generation.
    pub(crate) fn catch_up(&self, generation: u64) {
        self.generation.set(self.generation.get().max(generation));
    }

    /// Returns whether the session has nothing under way that may touch a table which was dropped
    /// by this generation.
    pub(crate) fn is_past(&self, generation: u64, endpoint: &Endpoint) -> bool {
        !self.is_behind(generation) || self.running.get() == 0 && endpoint.background(self.lane) == 0
    }
}

/// A guard: its session runs something until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse(Rc<Usage>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}
