//! An order of one thread of a server to all the others: to close connections, and perhaps to hold
//! still until the thread has changed something.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::ids::ClientId;

/// Whose connections are to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// Those of one client, whose access is revoked.
    Client(ClientId),
    /// Those of everybody. The threads serve nothing until the order is over.
    All,
}

/// An order to close connections.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) whose: Whose,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The threads that have not closed their connections yet.
    left: usize,
    is_over: bool,
}

/// The end of the thread that has given the order. The order is over when it is dropped.
pub(super) struct Cutting(Arc<Cut>);

impl Cut {
    /// Makes an order for `threads` other threads.
    pub(super) fn new(whose: Whose, threads: usize) -> (Arc<Cut>, Cutting) {
        let state = Mutex::new(State { left: threads, is_over: false });
        let cut = Arc::new(Cut { whose, state, changed: Condvar::new() });
        (cut.clone(), Cutting(cut))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a thread has closed its connections, or is gone.
    pub(super) fn done(&self) {
        self.state().left -= 1;
        self.changed.notify_all();
    }

    /// Waits until the order is over.
    pub(super) fn hold_still(&self) {
        let is_on = |state: &mut State| !state.is_over;
        drop(self.changed.wait_while(self.state(), is_on).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Cutting {
    /// Waits until all other threads have closed their connections.
    pub(super) fn until_done(&self) {
        let Cutting(cut) = self;
        let is_on = |state: &mut State| state.left > 0;
        drop(cut.changed.wait_while(cut.state(), is_on).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Cutting {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}
