//! An endpoint's access to the memory nodes: its verbs pass a gate, by which others can take nodes
//! away from it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::Wake;
use std::thread;

use crate::address::Address;
use crate::error::{FabricError, Fault};
use crate::gate::{Gate, Refusal};
use crate::ids::ClientId;
use crate::region::futex_wake;
use crate::round::buffer::Verb;

use super::control::Control;
use super::doorbell::{BellWord, Doorbell};
use super::memory::{LOCKED_INSTRUCTIONS_FENCE, execute_verb};
use super::{Shared, gate_bit};

/// The part of an endpoint that other threads of its process use.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) gate: Gate<AtomicU64>,
    pub(super) client: ClientId,
    /// Incarnation of each node's server when the endpoint was connected.
    pub(super) incarnations: Box<[u64]>,
    /// Counts rings, as the token of [`thread::park`] does, for an endpoint that idles with calls
    /// under way.
    rings: AtomicU64,
    parked: AtomicU64,
}

impl Attachment {
    pub(super) fn new(client: ClientId, incarnations: Box<[u64]>) -> Arc<Attachment> {
        let (rings, parked) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Attachment { gate: Gate::default(), client, incarnations, rings, parked })
    }

    /// Returns the endpoint's own doorbell. A ring is all that it brings.
    pub(super) fn bell(&self) -> Doorbell<'_, AtomicU64> {
        Doorbell { rings: &self.rings, parked: &self.parked }
    }

    /// Takes nodes away. Returns when no verb to them can take effect any more.
    pub(super) fn refuse(&self, nodes: u64, why: Refusal) {
        self.gate.refuse(nodes, why, thread::yield_now);
        self.wake_up();
    }

    /// Wakes the endpoint from idling, now or the next time it idles.
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

/// Executes the verbs of one endpoint, on the thread that posts them.
pub(super) struct Access {
    pub(super) shared: Arc<Shared>,
    pub(super) attachment: Arc<Attachment>,
    /// This thread's own copy of the gate's `inside`, which only this thread changes.
    entries: Cell<u64>,
    unfenced: Cell<bool>,
}

impl Access {
    pub(super) fn new(shared: Arc<Shared>, attachment: Arc<Attachment>) -> Access {
        Access { shared, attachment, entries: Cell::new(0), unfenced: Cell::new(false) }
    }

    /// Returns the nodes' control areas, in the order of the nodes.
    pub(super) fn controls(&self) -> &[Arc<Control>] {
        &self.shared.controls
    }

    /// Runs `body` inside the gate. Everything of a transport that changes memory runs this way.
    /// `body` gets the nodes that are refused.
    #[inline(always)]
    pub(super) fn inside<T>(&self, body: impl FnOnce(u64) -> T) -> T {
        let entry = self.entries.get() + 1;
        self.entries.set(entry + 1);
        let gate = &self.attachment.gate;
        gate.enter(entry);
        // Entering the gate was a read-modify-write.
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

    /// Zeroes memory and gives its pages back to the system, unless its node is refused.
    #[cold]
    pub(super) fn give_back(&self, refused: u64, at: Address, bytes: u64) -> Result<bool, FabricError> {
        if refused & gate_bit(at.node) != 0 {
            return Err(FabricError { node: at.node, fault: self.why() });
        }
        if self.unfenced.replace(false) {
            fence(Ordering::SeqCst);
        }
        self.shared.memory.give_back(at, bytes)
    }

    /// Fails if the verb's node is refused.
    #[cold]
    pub(super) fn admitted(&self, refused: u64, verb: &Verb) -> Result<(), FabricError> {
        match verb.node() {
            Some(node) if refused & gate_bit(node) != 0 => Err(FabricError { node, fault: self.why() }),
            _ => Ok(()),
        }
    }

    /// Returns why nodes are refused.
    pub(super) fn why(&self) -> Fault {
        match self.attachment.gate.why() {
            Refusal::Revoked => Fault::Revoked,
            Refusal::Down => Fault::Unreachable,
        }
    }
}
