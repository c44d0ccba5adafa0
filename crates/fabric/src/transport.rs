//! The traits that a backend implements. Everything else in this crate is common to all backends.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use crate::address::{Address, NodeId, RegionId};
use crate::error::FabricError;
use crate::ids::{ClientId, LaneId, Nanos, Ticket};
use crate::poller::Poller;
use crate::probes::Phase;
use crate::region::Region;
use crate::round::buffer::RoundBuffer;
use crate::service::{Service, ServiceHandle};

/// The result of posting a round.
#[derive(Debug)]
pub enum Posted {
    /// The round has completed already.
    Done(Box<RoundBuffer>),
    /// The transport keeps the buffer under this ticket. Poll for it.
    Pending(Ticket),
}

/// Whether the thread of a worker may wait: see [`Transport::before_wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeforeWait {
    /// There is something already, or the transport cannot tell when there is.
    LookAgain,
    /// The thread may wait, but not beyond this time if there is one.
    Until(Option<Nanos>),
}

/// How far a [`Round::flush`](crate::Round::flush) reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Flush {
    /// A flush does nothing.
    None,
    /// Earlier writes of the round to that node are visible to every reader.
    Visible,
    /// Earlier writes of the round to that node survive a loss of power.
    Persistent,
}

/// What a user takes for granted of hardware although no maker promises it. PCIe lets the system
/// divide an access into its words (PCI Express Base Specification, section 2.4, on the granularity
/// that others observe), and InfiniBand makes atomics atomic against atomics only. Cards and
/// processors do more, and the systems of the texts rely on that. `bench micro` looks for accesses
/// that contradict it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Assumed {
    /// A line of a record is read whole or seen as changed: see [`Capabilities::atomic_line`].
    pub whole_lines: bool,
    /// A WRITE of a word is atomic against CASes of that word: see [`Capabilities::atomic_writes`].
    pub atomic_writes: bool,
}

impl Assumed {
    /// What the systems of the texts assume of their cards.
    pub const AS_THE_TEXTS: Assumed = Assumed { whole_lines: true, atomic_writes: true };
}

/// What a backend promises beyond the contract of a round, or cannot give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Whether a line of a record is read whole or seen as changed (contract, rule 2). Without this
    /// promise, records need a checksum.
    pub atomic_line: bool,
    /// Whether CPU code of the memory node may change words that verbs CAS.
    pub coherent_atomics: bool,
    /// Whether a WRITE of a word is atomic against CASes of that word, which is beyond rule 3 of
    /// the contract.
    pub atomic_writes: bool,
    /// Whether the verbs of an endpoint take effect in the order in which they were posted, over
    /// all nodes. This holds for rounds without calls. It is more than the contract promises, whose
    /// rule 1 orders the verbs of each node.
    pub in_order: bool,
    /// How far a flush reaches.
    pub flush: Flush,
    /// Whether a client's access can be revoked.
    pub revoke: bool,
    /// Whether some clients may be unable to reach a node that answers others. This can happen in
    /// networks.
    pub partitions: bool,
    /// Whether memory nodes have CPUs, which serve calls, and run services such as the one that
    /// applies redo logs. Passive memory has none.
    pub node_cpu: bool,
}

/// A connection of one endpoint to all memory nodes. It is not shared between threads.
pub trait Transport {
    /// Posts a round, whose verbs take effect in order as the contract says. It never waits and
    /// never fails: a failure is the outcome of the buffer.
    fn post(&self, round: Box<RoundBuffer>) -> Posted;

    /// Returns the buffer of a round that has completed, otherwise `None`.
    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>>;

    /// Makes a round a background round: no coroutine waits for it any more. Returns its buffer if
    /// it has completed. Otherwise [`Transport::poll`] will hand the buffer back.
    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>>;

    /// Posts `next` when the round with this ticket has completed without error. If that round
    /// fails, `next` fails as well, unsent. [`Transport::poll`] reports `next` as it reports an
    /// orphaned round. The first round may be under way, or about to be posted. Several rounds
    /// behind one are posted one after the other.
    ///
    /// A transport that cannot do this gives `next` back, and the endpoint does it. The endpoint
    /// can do it only while its worker runs.
    fn chain(&self, after: Ticket, next: Box<RoundBuffer>) -> Result<(), Box<RoundBuffer>> {
        let _ = after;
        Err(next)
    }

    /// Whether this round waits for another round and has not been posted.
    fn is_chained(&self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// Makes the completions of background rounds known as soon as they can be, because a coroutine
    /// waits for them. Otherwise a transport may learn of them from a later round, if one comes
    /// soon.
    fn hurry(&self) {}

    /// Whether a memory node may hold back, for about a millisecond, the answer to a round that no
    /// coroutine awaits. The node sends that answer with its answer to the next round.
    fn may_hold_back(&self) -> bool {
        false
    }

    /// Makes progress. It calls `ready` with each lane whose round has completed, and gives
    /// `reclaimed` the buffers of orphaned rounds. Either callback may post a round, so the
    /// transport must hold no lock or borrow of its own over the call.
    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>));

    /// Returns the time.
    fn now(&self) -> Nanos;

    /// Returns the clock of the client's machine, which may differ from the clocks of other
    /// machines. It is for leases and timestamps. [`Transport::now`] is the one clock for
    /// everything that is recorded.
    fn clock(&self) -> Nanos {
        self.now()
    }

    /// Returns a waker that ends [`Transport::idle`] from another thread, where unparking the
    /// thread does not.
    fn idle_waker(&self) -> Option<Waker> {
        None
    }

    /// Waits, because no coroutine can run, until a round completes, the thread is unparked, or the
    /// clock shows `until`.
    fn idle(&self, until: Option<Nanos>);

    /// Makes a poller show `token` when this transport may have something for its worker. A
    /// transport that has nothing to watch does nothing, and [`Transport::before_wait`] limits the
    /// waits.
    fn watch_in(&self, poller: &Poller, token: u64) -> io::Result<()> {
        let _ = (poller, token);
        Ok(())
    }

    /// Prepares for a wait of the worker's thread in a poller that watches this transport: sends
    /// what waits to be sent, and makes sure that whatever comes ends the wait. In any case
    /// [`Transport::after_wait`] follows.
    fn before_wait(&self) -> BeforeWait {
        BeforeWait::LookAgain
    }

    /// Ends what [`Transport::before_wait`] has begun.
    fn after_wait(&self) {}

    /// Returns what this backend promises beyond the contract.
    fn capabilities(&self) -> Capabilities;

    /// Zeroes `bytes` bytes of a memory node, and gives the node's memory for them back to the
    /// system. The bytes must not be in use: verbs that reach them meanwhile find each word as it
    /// was before, or zero. Acts after all verbs that were posted before.
    ///
    /// Returns false if this client cannot do that. The bytes may have been zeroed in part by then.
    /// Only a client in the process of the memory node can, and only if the node did not take its
    /// memory at its start.
    fn give_back(&self, at: Address, bytes: u64) -> Result<bool, FabricError> {
        let _ = (at, bytes);
        Ok(false)
    }

    /// Charges `time` of CPU to the coroutine that runs, for work that is not seen otherwise. It
    /// has an effect only in a simulation.
    fn charge(&self, time: Nanos) {
        let _ = time;
    }

    /// Charges the CPU of the coroutine that runs for a phase of a transaction that has
    /// `records` records. It has an effect only in a simulation.
    fn work(&self, phase: Phase, records: usize) {
        let _ = (phase, records);
    }

    /// Whether [`Transport::probe`] and [`Transport::work`] have an effect.
    fn probes(&self) -> bool {
        false
    }

    /// Tells a simulation that a coroutine has come to a place with a name. The simulation lets
    /// faults happen there. It has no effect on other backends.
    fn probe(&self, lane: LaneId, name: &'static str) {
        let _ = (lane, name);
    }
}

/// A cluster's memory as one backend gives it: it makes transports for clients, and gives access to
/// the memory nodes' own side.
pub trait Fabric: Send + Sync {
    /// Returns the number of memory nodes. They are numbered from 0.
    fn nodes(&self) -> u16;

    /// Connects to all nodes, for one endpoint of `client`. Call it on the thread that will use the
    /// connection. An error names the node that could not be reached.
    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError>;

    /// Returns a region as its node's own CPU sees it. `None` if there is no such region, or if it
    /// belongs to another process.
    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>>;

    /// Revokes all access of a client, at every node. Returns when no verb of the client can take
    /// effect any more. An error names the node that has not confirmed the revocation.
    fn revoke(&self, client: ClientId) -> Result<(), FabricError>;

    /// Whether a client of this or another process is connected to some node at the moment. `None`
    /// if that cannot be determined. A client that died is not connected. The call may wait for the
    /// nodes' answers.
    fn is_connected(&self, client: ClientId) -> Option<bool> {
        let _ = client;
        None
    }

    /// Takes a node away from this fabric's endpoints, as if its machine had died: every round to
    /// it fails from now on.
    fn fail(&self, node: NodeId);

    /// Records that the cluster goes on without this node, dead or not. Clients that connect from
    /// now on connect to the other nodes only, and [`Fabric::revoke`] asks only the others.
    fn abandon(&self, node: NodeId) {
        self.fail(node);
    }

    /// Records that the cluster has readmitted a node that it had gone on without, or another one
    /// in its place. Clients that connect from now on connect to it, too.
    fn readmit(&self, node: NodeId) {
        let _ = node;
    }

    /// Whether an abandoned node would answer a client that connects to it, without connecting. The
    /// call never waits. Where asking takes time, it returns the last answer (false at first), and
    /// asks again meanwhile.
    fn answers(&self, node: NodeId) -> bool {
        let _ = node;
        false
    }

    /// Tells a node that the cluster has gone on without it, so that the node erases what it has
    /// and can be readmitted: see [`Handler::forget`]. It has no effect on a backend where every
    /// live node can be reached.
    fn forget(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        let _ = (node, order);
        Ok(())
    }

    /// Returns what this backend promises beyond the contract.
    fn capabilities(&self) -> Capabilities;

    /// Says that these bytes are lines of records (contract, rule 2), to a backend that tears all
    /// other memory.
    fn lines_of_records(&self, at: Address, bytes: u64) {
        let _ = (at, bytes);
    }
}

/// A handler, which serves calls ([`Round::call`](crate::Round::call)) on a memory node's own CPU.
/// Several threads of the node may call it at the same time, so it orders the calls that share
/// state by itself. It must cope with any words: a client is trusted with the memory that it opens,
/// but not with the node's health.
pub trait Handler: Send + Sync {
    /// Serves a request. The handler pushes the answer to `reply`, which is empty at first.
    fn call(&self, from: ClientId, request: &[u64], reply: &mut Vec<u64>);

    /// Returns the CPU time of a request that begins with these words, beside receiving,
    /// dispatching, moving its words and answering. Simulated nodes use it.
    fn work(&self, request: &[u64]) -> Nanos {
        let _ = request;
        0
    }

    /// Erases everything that the node has, as if the node were started anew, if `order` says so
    /// and is right: see [`Fabric::forget`]. The handler calls `cut` before it erases anything, and
    /// while it holds no lock that a call needs. `cut` ends all connections of clients, so that no
    /// earlier verb reaches the new memory, and no call begins before the handler returns.
    fn forget(&self, order: &[u64], cut: &mut dyn FnMut()) {
        let _ = (order, cut);
    }

    /// Forgets everything but what is in the node's memory, because the node's process has been
    /// started anew. Simulated nodes call it.
    fn restart(&self) {}
}

/// A fabric whose memory nodes are in this process. It gives access to the CPUs of the nodes.
pub trait Host: Fabric {
    /// Runs a service on the node's own CPU until the handle is stopped or dropped.
    fn serve(&self, node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle;

    /// Makes a handler serve the node's calls from now on.
    fn answer(&self, node: NodeId, handler: Box<dyn Handler>);
}
