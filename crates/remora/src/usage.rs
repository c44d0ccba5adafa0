//! What a session runs, and which dropped tables it may know. A keeper must know both before it
//! acknowledges that tables were dropped: see rule 2 of `dropping`.

use std::cell::Cell;
use std::rc::Rc;

use remora_fabric::{Endpoint, Lane, LaneId};

/// Whether a session runs something, and which dropped tables it may know. Shared by the session
/// and the keeper of its client.
#[derive(Debug)]
pub(crate) struct Usage {
    lane: LaneId,
    running: Cell<u32>,
    /// The session knows no table that this process had forgotten by this generation, and no round
    /// from before is under way.
    generation: Cell<u64>,
}

impl Usage {
    pub(crate) fn of(lane: &Lane) -> Rc<Usage> {
        Rc::new(Usage { lane: lane.id(), running: Cell::new(0), generation: Cell::new(0) })
    }

    /// The session runs something until what this returns is dropped.
    pub(crate) fn begin(self: &Rc<Usage>) -> InUse {
        self.running.set(self.running.get() + 1);
        InUse(self.clone())
    }

    /// Whether the session may know a table that was dropped by this generation.
    #[inline]
    pub(crate) fn is_behind(&self, generation: u64) -> bool {
        self.generation.get() < generation
    }

    /// The session has forgotten the tables that were dropped by this generation.
    pub(crate) fn catch_up(&self, generation: u64) {
        self.generation.set(self.generation.get().max(generation));
    }

    /// Whether nothing is under way that the session may have done to a table which was dropped by
    /// this generation.
    pub(crate) fn is_past(&self, generation: u64, endpoint: &Endpoint) -> bool {
        !self.is_behind(generation) || self.running.get() == 0 && endpoint.background(self.lane) == 0
    }
}

/// A session runs something.
#[derive(Debug)]
pub(crate) struct InUse(Rc<Usage>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}
