//! The endpoint's side of shared memory: the thread that posts a round of one-sided verbs executes
//! it at once. Rounds with calls, and rounds that must wait behind one, go through
//! [`calls`](super::calls).

use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use crate::address::Address;
use crate::error::FabricError;
use crate::ids::{LaneId, Nanos, Ticket};
use crate::limits::SPIN_NS;
use crate::round::buffer::RoundBuffer;
use crate::transport::{BeforeWait, Capabilities, Posted, Transport};

use super::Shared;
use super::access::{Access, Attachment};
use super::calls::Calls;
use super::memory::monotonic_ns;

pub(super) struct ShmTransport {
    access: Access,
    calls: Calls,
}

impl ShmTransport {
    /// Makes the transport of an endpoint. `channels` are its channels at the nodes, in order, with
    /// their generations; `None` where it has none.
    pub(super) fn new(
        shared: Arc<Shared>,
        attachment: Arc<Attachment>,
        channels: Vec<Option<(usize, u32)>>,
    ) -> ShmTransport {
        ShmTransport { access: Access::new(shared, attachment), calls: Calls::new(channels) }
    }
}

impl Transport for ShmTransport {
    #[inline]
    fn post(&self, mut round: Box<RoundBuffer>) -> Posted {
        if round.has_calls() | self.calls.is_stalled() {
            return self.calls.post(&self.access, round);
        }
        let outcome = self.access.inside(|refused| {
            let (verbs, words) = round.parts();
            if verbs.len() > 1 {
                self.access.shared.memory.prefetch(verbs);
            }
            for verb in verbs {
                self.access.execute(refused, verb, words)?;
            }
            Ok(())
        });
        round.finish(outcome);
        Posted::Done(round)
    }

    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.calls.take(ticket)
    }

    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.calls.orphan(ticket)
    }

    #[inline]
    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>)) {
        if self.calls.are_in_flight() {
            self.calls.poll(&self.access, ready, reclaimed);
        }
    }

    #[inline]
    fn now(&self) -> Nanos {
        monotonic_ns()
    }

    fn idle_waker(&self) -> Option<Waker> {
        Some(self.access.attachment.clone().into())
    }

    fn idle(&self, until: Option<Nanos>) {
        if self.calls.are_in_flight() {
            return self.calls.wait_for_replies(&self.access, until);
        }
        match until {
            None => thread::park(),
            Some(until) => {
                let left = until.saturating_sub(self.now());
                if left > SPIN_NS {
                    thread::park_timeout(Duration::from_nanos(left));
                } else {
                    thread::yield_now();
                }
            }
        }
    }

    fn before_wait(&self) -> BeforeWait {
        match self.calls.are_in_flight() {
            true => self.calls.before_wait(&self.access),
            // Nothing else comes from other threads, and a round without calls has completed.
            false => BeforeWait::Until(None),
        }
    }

    fn give_back(&self, at: Address, bytes: u64) -> Result<bool, FabricError> {
        if self.calls.is_stalled() {
            // Verbs that were posted before wait for the answer to a call.
            return Ok(false);
        }
        self.access.inside(|refused| self.access.give_back(refused, at, bytes))
    }

    fn capabilities(&self) -> Capabilities {
        self.access.shared.capabilities
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.calls.close(&self.access);
    }
}
