//! Listeners: code that gets the answers of a round, whichever coroutines run meanwhile. Coroutines
//! that share a round need one, because any of them may be dropped while the others wait.

use std::rc::Rc;

use crate::endpoint::{Endpoint, Hear};
use crate::error::FabricError;
use crate::ids::LaneId;
use crate::round::buffer::RoundBuffer;
use crate::round::{CallHandle, Round, reply_of};
use crate::transport::Posted;

/// Code that is called when a round has completed, whether or not the coroutine runs that posted
/// the round: see [`Lane::execute_for`](crate::Lane::execute_for).
pub trait Listener {
    /// The round has completed or failed. `tag` is what the round was posted with.
    fn heard(self: Rc<Self>, tag: u64, heard: &Heard<'_>);
}

impl<L: Listener> Hear for L {
    fn hear(self: Rc<Self>, tag: u64, endpoint: &Endpoint, round: &RoundBuffer) {
        self.heard(tag, &Heard { endpoint, round });
    }
}

/// A round that has completed or failed, for its [`Listener`], which may post others.
#[derive(Debug)]
pub struct Heard<'e> {
    endpoint: &'e Endpoint,
    round: &'e RoundBuffer,
}

impl<'e> Heard<'e> {
    /// Returns why the round has failed, if it has.
    pub fn outcome(&self) -> Result<(), FabricError> {
        self.round.outcome
    }

    /// Returns the words of the reply to a call of the round.
    pub fn reply(&self, call: CallHandle) -> Result<&'e [u64], FabricError> {
        self.round.outcome.map(|()| reply_of(self.round, call))
    }

    /// Returns the lane that has posted the round.
    #[must_use]
    pub fn lane(&self) -> LaneId {
        self.round.lane
    }

    /// Begins a round of a lane of this endpoint.
    pub fn round(&self, lane: LaneId) -> Round<'e> {
        Round::new(self.endpoint, self.endpoint.lease(lane))
    }

    /// Posts a round in the background, as [`Lane::post`](crate::Lane::post) does.
    pub fn post(&self, round: Round<'_>) {
        let (_, Some(buffer)) = round.into_buffer() else { return };
        if buffer.verbs().is_empty() {
            return self.endpoint.recycle(buffer);
        }
        if buffer.outcome.is_ok() {
            self.endpoint.count_for_lane(&buffer, false);
        }
        self.endpoint.post(buffer);
    }

    /// Posts a round for a listener, as [`Lane::execute_for`](crate::Lane::execute_for) does.
    pub fn execute_for<L: Listener + 'static>(&self, round: Round<'_>, listener: &Rc<L>, tag: u64) {
        let (endpoint, Some(mut buffer)) = round.into_buffer() else { return };
        if buffer.outcome.is_ok() && endpoint.has_unreported() {
            buffer.outcome = endpoint.unreported_failure(&buffer).map_or(Ok(()), Err);
        }
        if buffer.outcome.is_err() || buffer.verbs().is_empty() {
            return endpoint.tell(buffer, listener.clone(), tag);
        }
        endpoint.count_for_lane(&buffer, true);
        buffer.sent = true;
        let lane = buffer.lane;
        match endpoint.send(buffer) {
            Posted::Done(buffer) => endpoint.tell(buffer, listener.clone(), tag),
            Posted::Pending(ticket) => endpoint.await_for(ticket, lane, listener.clone(), tag),
        }
    }
}
