//! The endpoint's side of shared memory: a round of one-sided verbs is executed by the thread that
//! posts it, at once. Rounds with calls, and rounds that must wait behind one, go through
//! [`calls`](super::calls).

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::error::{FabricError, Fault};
use crate::gate::{Gate, Refusal};
use crate::ids::{ClientId, LaneId, Nanos, Ticket};
use crate::limits::SPIN_NS;
use crate::region::futex_wake;
use crate::round::buffer::{RoundBuffer, Verb};
use crate::transport::{Capabilities, Posted, Transport};

use super::calls::Calls;
use super::doorbell::{BellWord, Doorbell};
use super::memory::{CAPABILITIES, LOCKED_INSTRUCTIONS_FENCE, execute_verb, monotonic_ns};
use super::{Shared, gate_bit};

/// What an endpoint and the rest of its process share.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) gate: Gate<AtomicU64>,
    pub(super) client: ClientId,
    /// Incarnation of each node's server when the endpoint was connected.
    pub(super) incarnations: Box<[u64]>,
    /// A token as that of [`thread::park`], for an endpoint that idles with calls under way.
    rings: AtomicU64,
    parked: AtomicU64,
}

impl Attachment {
    pub(super) fn new(client: ClientId, incarnations: Box<[u64]>) -> Arc<Attachment> {
        let (rings, parked) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Attachment { gate: Gate::default(), client, incarnations, rings, parked })
    }

    /// The endpoint's own doorbell. What it brings is the ring itself.
    pub(super) fn bell(&self) -> Doorbell<'_, AtomicU64> {
        Doorbell { rings: &self.rings, parked: &self.parked }
    }

    /// Takes nodes away; returns when no verb to them can take effect any more.
    pub(super) fn refuse(&self, nodes: u64, why: Refusal) {
        self.gate.refuse(nodes, why, thread::yield_now);
        self.wake_up();
    }

    /// Ends the endpoint's idling, now or the next time.
    fn wake_up(&self) {
        self.rings.increment();
        self.bell().ring(futex_wake);
    }
}

impl Wake for Attachment {
    fn wake(self: Arc<Self>) {
        self.wake_up();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_up();
    }
}

pub(super) struct ShmTransport {
    pub(super) shared: Arc<Shared>,
    pub(super) attachment: Arc<Attachment>,
    /// Own copy of the gate's `inside`: only this thread changes it.
    entries: Cell<u64>,
    unfenced: Cell<bool>,
    /// A round waits in its middle for replies, and whatever is posted waits behind it.
    pub(super) stalled: Cell<bool>,
    /// Some rounds have not completed.
    pub(super) in_flight: Cell<bool>,
    /// Rings of the endpoint's own bell that have ended an idling.
    pub(super) rings_seen: Cell<u64>,
    pub(super) calls: RefCell<Calls>,
}

impl ShmTransport {
    /// `channels` are the endpoint's at the nodes, in order, where it has them, and their
    /// generations.
    pub(super) fn new(
        shared: Arc<Shared>,
        attachment: Arc<Attachment>,
        channels: Vec<Option<(usize, u32)>>,
    ) -> ShmTransport {
        ShmTransport {
            shared,
            attachment,
            entries: Cell::new(0),
            unfenced: Cell::new(false),
            stalled: Cell::new(false),
            in_flight: Cell::new(false),
            rings_seen: Cell::new(0),
            calls: RefCell::new(Calls::new(channels)),
        }
    }

    /// Everything of a transport that changes memory runs in here, inside the gate. `body` gets the
    /// nodes refused.
    #[inline(always)]
    pub(super) fn inside<T>(&self, body: impl FnOnce(u64) -> T) -> T {
        let entry = self.entries.get() + 1;
        self.entries.set(entry + 1);
        let gate = &self.attachment.gate;
        gate.enter(entry);
        // Entering was a read-modify-write.
        self.unfenced.set(self.unfenced.get() && !LOCKED_INSTRUCTIONS_FENCE);
        let result = body(gate.refused());
        gate.leave(entry);
        result
    }

    /// Executes one verb, unless its node is refused.
    #[inline(always)]
    pub(super) fn execute(&self, refused: u64, verb: &Verb, words: &mut [u64]) -> Result<(), FabricError> {
        if refused != 0 {
            self.admitted(refused, verb)?;
        }
        execute_verb(&self.shared.memory, verb, words, &self.unfenced, self.attachment.client)
    }

    /// Fails if the verb's node is refused.
    #[cold]
    pub(super) fn admitted(&self, refused: u64, verb: &Verb) -> Result<(), FabricError> {
        match verb.node() {
            Some(node) if refused & gate_bit(node) != 0 => Err(FabricError { node, fault: self.why() }),
            _ => Ok(()),
        }
    }

    /// Why nodes are refused.
    pub(super) fn why(&self) -> Fault {
        match self.attachment.gate.why() {
            Refusal::Revoked => Fault::Revoked,
            Refusal::Down => Fault::Unreachable,
        }
    }
}

impl Transport for ShmTransport {
    #[inline]
    fn post(&self, mut round: Box<RoundBuffer>) -> Posted {
        if round.has_calls() | self.stalled.get() {
            return self.post_calls(round);
        }
        let outcome = self.inside(|refused| {
            let (verbs, words) = round.parts();
            if verbs.len() > 1 {
                self.shared.memory.prefetch(verbs);
            }
            for verb in verbs {
                self.execute(refused, verb, words)?;
            }
            Ok(())
        });
        round.finish(outcome);
        Posted::Done(round)
    }

    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.calls.borrow_mut().take(ticket)
    }

    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.calls.borrow_mut().orphan(ticket)
    }

    #[inline]
    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>)) {
        if self.in_flight.get() {
            self.poll_calls(ready, reclaimed);
        }
    }

    #[inline]
    fn now(&self) -> Nanos {
        monotonic_ns()
    }

    fn idle_waker(&self) -> Option<Waker> {
        Some(self.attachment.clone().into())
    }

    fn idle(&self, until: Option<Nanos>) {
        if self.in_flight.get() {
            return self.wait_for_replies(until);
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

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}
