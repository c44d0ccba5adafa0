//! Shared memory: memory nodes are mappings of this process, and a round is executed by the thread that posts it.
//!
//! A round completes when it is posted. Its verbs run in the order added, which is more order than the contract gives;
//! nothing above may rely on it, and the [`seeded`](crate::seeded) backend sees to that.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::address::{Address, NodeId, RegionId};
use crate::copy;
use crate::error::{FabricError, Fault};
use crate::gate::{Gate, GateWord, Refusal};
use crate::limits::{NODES_MAX, REGIONS_PER_NODE_MAX, SPIN_NS};
use crate::region::{Pages, Region, RegionError};
use crate::round::{RoundBuffer, Verb};
use crate::service::{Service, ServiceHandle};
use crate::transport::{Capabilities, ClientId, Fabric, Flush, Handler, Host, LaneId, Nanos, Posted, Ticket, Transport};

/// The regions of a cluster's memory nodes, all in this process, and who serves calls there.
pub struct Memory {
    nodes: u16,
    /// `REGIONS_PER_NODE_MAX` slots a node: one lookup finds a region.
    regions: Box<[Option<Arc<Region>>]>,
    handlers: Box<[Mutex<Answering>]>,
}

/// A node's CPU, as far as it serves calls: one after the other.
#[derive(Default)]
struct Answering {
    handler: Option<Box<dyn Handler>>,
    request: Vec<u64>,
    reply: Vec<u64>,
}

impl Memory {
    /// Maps the regions: for each node, the sizes of its regions in bytes.
    pub fn map(nodes: &[Vec<usize>]) -> Result<Memory, RegionError> {
        assert!(nodes.len() <= NODES_MAX, "at most {NODES_MAX} memory nodes");
        let mut regions = Vec::with_capacity(nodes.len() * REGIONS_PER_NODE_MAX);
        for sizes in nodes {
            assert!(sizes.len() <= REGIONS_PER_NODE_MAX, "at most {REGIONS_PER_NODE_MAX} regions a node");
            for slot in 0..REGIONS_PER_NODE_MAX {
                regions.push(match sizes.get(slot) {
                    Some(bytes) => Some(Arc::new(Region::anonymous(*bytes)?)),
                    None => None,
                });
            }
        }
        Ok(Memory::of(nodes.len() as u16, regions.into()))
    }

    fn of(nodes: u16, regions: Box<[Option<Arc<Region>>]>) -> Memory {
        Memory { nodes, regions, handlers: (0..nodes).map(|_| Mutex::default()).collect() }
    }

    /// Has a handler serve a node's calls from now on.
    pub(crate) fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        if let Some(answering) = self.handlers.get(usize::from(node.0)) {
            answering.lock().unwrap_or_else(PoisonError::into_inner).handler = Some(handler);
        }
    }

    /// Serves a call whose request and reply lie in `words`.
    fn call(&self, from: ClientId, call: &Verb, words: &mut [u64]) -> Result<(), FabricError> {
        let &Verb::Call { node, head, head_words, body, body_words, into, capacity } = call else { return Ok(()) };
        let error = |fault| Err(FabricError { node, fault });
        let Some(answering) = self.handlers.get(usize::from(node.0)) else {
            return error(Fault::NoSuchRegion(Address { node, region: RegionId(0), offset: 0 }));
        };
        let mut answering = answering.lock().unwrap_or_else(PoisonError::into_inner);
        let Answering { handler: Some(handler), request, reply } = &mut *answering else {
            return error(Fault::NoHandler);
        };
        request.clear();
        request.extend_from_slice(&words[head as usize..][..head_words as usize]);
        request.extend_from_slice(&words[body as usize..][..body_words as usize]);
        reply.clear();
        handler.call(from, request, reply);
        if reply.len() > capacity as usize {
            return error(Fault::ReplyTooLong { words: reply.len() as u32, capacity });
        }
        words[into as usize] = reply.len() as u64;
        words[into as usize + 1..][..reply.len()].copy_from_slice(reply);
        Ok(())
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// A region.
    #[inline]
    #[must_use]
    pub fn region(&self, node: NodeId, region: RegionId) -> Option<&Arc<Region>> {
        if region.0 as usize >= REGIONS_PER_NODE_MAX {
            return None;
        }
        self.regions.get(node.0 as usize * REGIONS_PER_NODE_MAX + region.0 as usize)?.as_ref()
    }

    /// The words of a region and the index of the first word of an access, bounds checked.
    #[inline]
    pub(crate) fn words(&self, at: Address, words: u32) -> Result<(&[AtomicU64], usize), FabricError> {
        let Some(region) = self.region(at.node, at.region) else {
            return Err(FabricError { node: at.node, fault: Fault::NoSuchRegion(at) });
        };
        let all = region.words();
        let start = at.offset >> 3;
        match start.checked_add(u64::from(words)) {
            Some(end) if end <= all.len() as u64 => Ok((all, start as usize)),
            _ => {
                let bytes = u64::from(words) * 8;
                Err(FabricError { node: at.node, fault: Fault::OutOfBounds { at, bytes } })
            }
        }
    }

    /// Has the processor fetch what the verbs of a round will touch, all at once: a NIC would overlap them too, and a
    /// round's cache misses then cost little more than one.
    #[inline]
    fn prefetch(&self, verbs: &[Verb]) {
        for verb in verbs {
            if let Verb::Read { at, .. } | Verb::Write { at, .. } | Verb::CompareSwap { at, .. } = verb
                && let Some(region) = self.region(at.node, at.region)
            {
                region.prefetch((at.offset >> 3) as usize);
            }
        }
    }

    /// The worst pages that back any region.
    #[must_use]
    pub fn pages(&self) -> Option<Pages> {
        let rank = |pages: &Pages| match pages {
            Pages::Huge => 0,
            Pages::Transparent => 1,
            Pages::Small => 2,
        };
        self.regions.iter().flatten().map(|region| region.pages()).max_by_key(rank)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("nodes", &self.nodes).field("regions", &self.regions).finish_non_exhaustive()
    }
}

/// Executes one verb on memory. Both backends of this crate and the server of later ones run verbs by this code only.
///
/// `unfenced` says whether a WRITE of this connection may still sit in the CPU's store buffer: rule 1 orders it before
/// whatever follows, and processors do not order a store before a later load.
#[inline]
pub(crate) fn execute_verb(
    memory: &Memory,
    verb: &Verb,
    words: &mut [u64],
    unfenced: &Cell<bool>,
    client: ClientId,
) -> Result<(), FabricError> {
    match *verb {
        Verb::Read { at, words: count, into } => {
            let (region, start) = memory.words(at, count)?;
            if unfenced.replace(false) {
                fence(Ordering::SeqCst);
            }
            copy::read(region, start, &mut words[into as usize..][..count as usize]);
        }
        Verb::Write { at, words: count, from } => {
            let (region, start) = memory.words(at, count)?;
            copy::write(region, start, &words[from as usize..][..count as usize]);
            unfenced.set(true);
        }
        Verb::CompareSwap { at, expected, new, into } => {
            let (region, start) = memory.words(at, 1)?;
            let found = region[start].compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
            words[into as usize] = found.unwrap_or_else(|other| other);
            unfenced.set(!LOCKED_INSTRUCTIONS_FENCE);
        }
        Verb::FetchAdd { at, delta, into } => {
            let (region, start) = memory.words(at, 1)?;
            words[into as usize] = region[start].fetch_add(delta, Ordering::SeqCst);
            unfenced.set(!LOCKED_INSTRUCTIONS_FENCE);
        }
        Verb::Flush { node } => {
            if node.0 >= memory.nodes() {
                let at = Address { node, region: RegionId(0), offset: 0 };
                return Err(FabricError { node, fault: Fault::NoSuchRegion(at) });
            }
            if unfenced.replace(false) {
                fence(Ordering::SeqCst);
            }
        }
        Verb::Call { .. } => memory.call(client, verb, words)?,
        Verb::AfterCompletion => {}
    }
    Ok(())
}

/// On x86 a read-modify-write is a full barrier; elsewhere a later load may pass its store.
const LOCKED_INSTRUCTIONS_FENCE: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

pub(crate) const CAPABILITIES: Capabilities =
    Capabilities { atomic_line: true, coherent_atomics: true, flush: Flush::Visible, revoke: true };

/// The shared-memory backend. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Shm {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: Memory,
    gates: Mutex<Gates>,
}

#[derive(Debug, Default)]
struct Gates {
    open: Vec<(ClientId, Arc<ShmGate>)>,
    revoked: Vec<ClientId>,
    /// Bits of the nodes that are down.
    down: u64,
}

type ShmGate = Gate<AtomicU64>;

impl GateWord for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::SeqCst)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Release);
    }

    #[inline(always)]
    fn swap(&self, value: u64) -> u64 {
        AtomicU64::swap(self, value, Ordering::SeqCst)
    }

    fn set_bits(&self, bits: u64) {
        self.fetch_or(bits, Ordering::SeqCst);
    }
}

/// The gate bit of a node; none for one that cannot exist.
#[inline]
fn gate_bit(node: NodeId) -> u64 {
    const _: () = assert!(NODES_MAX == u64::BITS as usize);
    1u64.checked_shl(u32::from(node.0)).unwrap_or(0)
}

impl Shm {
    /// Memory nodes with the given regions (sizes in bytes).
    pub fn new(nodes: &[Vec<usize>]) -> Result<Shm, RegionError> {
        let memory = Memory::map(nodes)?;
        Ok(Shm { shared: Arc::new(Shared { memory, gates: Mutex::default() }) })
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    fn gates(&self) -> std::sync::MutexGuard<'_, Gates> {
        self.shared.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric for Shm {
    fn nodes(&self) -> u16 {
        self.shared.memory.nodes()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        let mut gates = self.gates();
        let gate = Arc::new(ShmGate::default());
        gate.refuse(gates.down, Refusal::Down, || ());
        if gates.revoked.contains(&client) {
            gate.refuse(u64::MAX, Refusal::Revoked, || ());
        }
        gates.open.retain(|(_, gate)| Arc::strong_count(gate) > 1);
        gates.open.push((client, gate.clone()));
        Ok(Box::new(ShmTransport {
            shared: self.shared.clone(),
            client,
            gate,
            entries: Cell::new(0),
            unfenced: Cell::new(false),
        }))
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.shared.memory.region(node, region).cloned()
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        let mut gates = self.gates();
        if !gates.revoked.contains(&client) {
            gates.revoked.push(client);
        }
        for (_, gate) in gates.open.iter().filter(|(whose, _)| *whose == client) {
            gate.refuse(u64::MAX, Refusal::Revoked, thread::yield_now);
        }
        Ok(())
    }

    fn fail(&self, node: NodeId) {
        let mut gates = self.gates();
        gates.down |= gate_bit(node);
        for (_, gate) in &gates.open {
            gate.refuse(gate_bit(node), Refusal::Down, thread::yield_now);
        }
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}

impl Host for Shm {
    fn serve(&self, node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle {
        let name = format!("{name}-{}", node.0);
        ServiceHandle::spawn(&name, service).unwrap_or_else(|error| {
            tracing::error!(%error, name, "no thread for a memory node's service");
            ServiceHandle::detached().0
        })
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        self.shared.memory.answer(node, handler);
    }
}

struct ShmTransport {
    shared: Arc<Shared>,
    client: ClientId,
    gate: Arc<ShmGate>,
    /// Own copy of the gate's `inside`: only this thread changes it.
    entries: Cell<u64>,
    unfenced: Cell<bool>,
}

impl ShmTransport {
    #[inline]
    fn run(&self, round: &mut RoundBuffer) -> Result<(), FabricError> {
        let refused = self.gate.refused();
        let (verbs, words) = round.parts();
        if verbs.len() > 1 {
            self.shared.memory.prefetch(verbs);
        }
        for verb in verbs {
            if refused != 0
                && let Some(node) = verb.node()
                && refused & gate_bit(node) != 0
            {
                let fault = match self.gate.why() {
                    Refusal::Revoked => Fault::Revoked,
                    Refusal::Down => Fault::Unreachable,
                };
                return Err(FabricError { node, fault });
            }
            execute_verb(&self.shared.memory, verb, words, &self.unfenced, self.client)?;
        }
        Ok(())
    }
}

impl Transport for ShmTransport {
    #[inline]
    fn post(&self, mut round: Box<RoundBuffer>) -> Posted {
        let entry = self.entries.get() + 1;
        self.entries.set(entry + 1);
        self.gate.enter(entry);
        // Entering was a read-modify-write.
        self.unfenced.set(self.unfenced.get() && !LOCKED_INSTRUCTIONS_FENCE);
        let outcome = self.run(&mut round);
        self.gate.leave(entry);
        round.finish(outcome);
        Posted::Done(round)
    }

    fn take(&self, _: Ticket) -> Option<Box<RoundBuffer>> {
        None
    }

    fn orphan(&self, _: Ticket) -> Option<Box<RoundBuffer>> {
        None
    }

    fn poll(&self, _: &mut dyn FnMut(LaneId), _: &mut dyn FnMut(Box<RoundBuffer>)) {}

    #[inline]
    fn now(&self) -> Nanos {
        monotonic_ns()
    }

    fn idle(&self, until: Option<Nanos>) {
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

/// CLOCK_MONOTONIC: the one clock of all processes of a host.
#[inline]
pub(crate) fn monotonic_ns() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
