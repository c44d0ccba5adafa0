//! The memory of memory nodes in this process, the handlers that serve their calls, and the code by
//! which a CPU executes verbs on that memory.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::address::{Address, NodeId, RegionId};
use crate::copy;
use crate::error::{FabricError, Fault};
use crate::ids::{ClientId, Nanos};
use crate::limits::{EMBEDDED_UNCHECKED_BYTES, NODES_MAX, REGIONS_PER_NODE_MAX};
use crate::region::{Pages, Region, RegionError, there_is};
use crate::round::buffer::Verb;
use crate::transport::{Capabilities, Flush, Handler};

/// The regions of a cluster's memory nodes, all in this process, and the handlers that serve their
/// calls.
pub struct Memory {
    nodes: u16,
    /// `REGIONS_PER_NODE_MAX` slots for each node, so that one lookup finds a region.
    regions: Box<[Option<Arc<Region>>]>,
    answering: Box<[Arc<Answering>]>,
}

/// A node's CPU that serves calls, on whichever threads they come.
#[derive(Default)]
pub(crate) struct Answering {
    handler: RwLock<Option<Arc<dyn Handler>>>,
}

impl Answering {
    fn read(&self) -> RwLockReadGuard<'_, Option<Arc<dyn Handler>>> {
        self.handler.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a handler serve from now on.
    pub(crate) fn set(&self, handler: Box<dyn Handler>) {
        self.replace(Some(handler.into()));
    }

    fn replace(&self, handler: Option<Arc<dyn Handler>>) {
        *self.handler.write().unwrap_or_else(PoisonError::into_inner) = handler;
    }

    /// Serves one request, and appends the answer to `reply`.
    pub(crate) fn serve(&self, from: ClientId, request: &[u64], reply: &mut Vec<u64>) -> Result<(), Fault> {
        let handler = self.read();
        let serving = handler.as_deref().ok_or(Fault::NoHandler)?;
        if guarded(|| serving.call(from, request, reply)).is_ok() {
            return Ok(());
        }
        drop(handler);
        self.replace(None);
        Err(Fault::NoHandler)
    }

    /// Passes an order on to [`Handler::forget`].
    pub(crate) fn forget(&self, order: &[u64], cut: &mut dyn FnMut()) {
        // No lock is held meanwhile, because threads that wait for it could not be cut off.
        let handler = self.read().clone();
        if handler.is_some_and(|handler| guarded(|| handler.forget(order, cut)).is_err()) {
            self.replace(None);
        }
    }

    /// Tells the handler that the node's process has been started anew.
    pub(crate) fn restart(&self) {
        if let Some(handler) = &*self.read() {
            handler.restart();
        }
    }
}

/// Runs a piece of a handler. A handler that panics serves no more.
fn guarded(what: impl FnOnce()) -> Result<(), Fault> {
    catch_unwind(AssertUnwindSafe(what)).map_err(|_| {
        tracing::error!("a memory node's handler panicked, and serves no more calls");
        Fault::NoHandler
    })
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").finish_non_exhaustive()
    }
}

thread_local! {
    /// Buffers for the request and the reply of a call that this thread serves.
    static BUFFERS: Cell<(Vec<u64>, Vec<u64>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

impl Memory {
    /// Maps the regions: `nodes` has, for each node, the sizes of its regions in bytes. Fails if
    /// all together are more than this process may take. Mapping does not take the memory;
    /// [`Region::take`] does.
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
        // Reserved pages are taken already.
        let shared = regions.iter().flatten().filter(|region| region.pages() != Pages::Huge);
        let bytes = shared.map(|region| region.bytes()).sum();
        if bytes > EMBEDDED_UNCHECKED_BYTES {
            there_is(bytes)?;
        }
        Ok(Memory::of(nodes.len() as u16, regions.into()))
    }

    fn of(nodes: u16, regions: Box<[Option<Arc<Region>>]>) -> Memory {
        Memory { nodes, regions, answering: (0..nodes).map(|_| Arc::default()).collect() }
    }

    /// Makes memory of one region for each node.
    pub(crate) fn of_regions(of_nodes: impl IntoIterator<Item = Arc<Region>>) -> Memory {
        let none = std::iter::repeat_n(None, REGIONS_PER_NODE_MAX - 1);
        let regions: Box<[_]> =
            of_nodes.into_iter().flat_map(|region| std::iter::once(Some(region)).chain(none.clone())).collect();
        Memory::of((regions.len() / REGIONS_PER_NODE_MAX) as u16, regions)
    }

    /// Makes a handler serve a node's calls from now on.
    pub(crate) fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        if let Some(answering) = self.answering(node) {
            answering.set(handler);
        }
    }

    /// Returns the CPU that serves a node's calls.
    pub(crate) fn answering(&self, node: NodeId) -> Option<&Arc<Answering>> {
        self.answering.get(usize::from(node.0))
    }

    /// Returns what the handler says that a call costs its CPU.
    pub(crate) fn work(&self, call: &Verb, words: &[u64]) -> Nanos {
        let &Verb::Call { node, head, head_words, .. } = call else { return 0 };
        let request = &words[head as usize..][..head_words as usize];
        let work = |answering: &Arc<Answering>| answering.read().as_ref().map(|handler| handler.work(request));
        self.answering(node).and_then(work).unwrap_or(0)
    }

    /// Serves a call on this thread. Its request and reply lie in `words`.
    #[cold]
    pub(crate) fn call(&self, from: ClientId, call: &Verb, words: &mut [u64]) -> Result<(), FabricError> {
        let &Verb::Call { node, head, head_words, body, body_words, into, capacity } = call else { return Ok(()) };
        let answering = self.answering(node).ok_or_else(|| no_such_node(node))?;
        let error = |fault| FabricError { node, fault };
        let (mut request, mut reply) = BUFFERS.take();
        request.clear();
        request.extend_from_slice(&words[head as usize..][..head_words as usize]);
        request.extend_from_slice(&words[body as usize..][..body_words as usize]);
        reply.clear();
        answering.serve(from, &request, &mut reply).map_err(error)?;
        let Some(place) = words[into as usize + 1..][..capacity as usize].get_mut(..reply.len()) else {
            return Err(error(Fault::ReplyTooLong { words: reply.len() as u32, capacity }));
        };
        place.copy_from_slice(&reply);
        words[into as usize] = reply.len() as u64;
        BUFFERS.set((request, reply));
        Ok(())
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Returns a region, or `None` if there is no such region.
    #[inline]
    #[must_use]
    pub fn region(&self, node: NodeId, region: RegionId) -> Option<&Arc<Region>> {
        if region.0 as usize >= REGIONS_PER_NODE_MAX {
            return None;
        }
        self.regions.get(node.0 as usize * REGIONS_PER_NODE_MAX + region.0 as usize)?.as_ref()
    }

    /// Returns the words of a region and the index of the first word of an access, after checking
    /// the bounds.
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

    /// Zeroes bytes, and gives their pages back to the system. Returns false if the system does not
    /// take them ([`Region::give_back`]).
    pub(super) fn give_back(&self, at: Address, bytes: u64) -> Result<bool, FabricError> {
        let out_of_bounds = FabricError { node: at.node, fault: Fault::OutOfBounds { at, bytes } };
        let Some(region) = self.region(at.node, at.region) else {
            return Err(FabricError { node: at.node, fault: Fault::NoSuchRegion(at) });
        };
        let end = at.offset.checked_add(bytes).filter(|end| *end <= region.bytes()).ok_or(out_of_bounds)?;
        let (start, end) = ((at.offset >> 3) as usize, (end >> 3) as usize);
        Ok(region.give_back(start, end - start))
    }

    /// Prefetches everything that the verbs of a round will touch. A NIC would overlap these
    /// accesses too. The cache misses of a round then cost little more than one.
    #[inline]
    pub(crate) fn prefetch(&self, verbs: &[Verb]) {
        for verb in verbs {
            if let Verb::Read { at, .. } | Verb::Write { at, .. } | Verb::CompareSwap { at, .. } = verb
                && let Some(region) = self.region(at.node, at.region)
            {
                region.prefetch((at.offset >> 3) as usize);
            }
        }
    }

    /// Returns the worst kind of pages that backs any region.
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

/// Returns the error of a verb for a node that does not exist.
pub(crate) fn no_such_node(node: NodeId) -> FabricError {
    FabricError { node, fault: Fault::NoSuchRegion(Address { node, region: RegionId(0), offset: 0 }) }
}

/// Executes one verb on memory. Shared memory and the TCP server execute verbs by this code only.
/// The seeded backend uses it for the verbs that it executes in one step.
///
/// `unfenced` says whether a WRITE of this connection may still be in the CPU's store buffer. Rule
/// 1 orders that WRITE before whatever follows, and processors do not order a store before a later
/// load.
#[inline(always)]
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
            copy::write_at_once(region, start, &words[from as usize..][..count as usize]);
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
                return Err(no_such_node(node));
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

/// On x86 a read-modify-write is a full barrier. On other processors a later load may pass its
/// store.
pub(super) const LOCKED_INSTRUCTIONS_FENCE: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

/// What memory promises whose verbs are executed by CPUs, of clients or of servers.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    atomic_line: true,
    coherent_atomics: true,
    atomic_writes: true,
    in_order: false,
    flush: Flush::Visible,
    revoke: true,
    partitions: false,
    node_cpu: true,
};

/// What shared memory promises: a client's own CPU executes its verbs one after the other.
pub(super) const OWN_CAPABILITIES: Capabilities = Capabilities { in_order: true, ..CAPABILITIES };

/// Returns the time of CLOCK_MONOTONIC, the one clock of all processes of a host.
#[inline]
pub(crate) fn monotonic_ns() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
