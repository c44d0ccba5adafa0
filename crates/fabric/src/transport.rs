//! What a backend implements. Everything else in this crate exists once, above it.

use std::sync::Arc;
use std::task::Waker;

use crate::address::{Address, NodeId, RegionId};
use crate::error::FabricError;
use crate::ids::{ClientId, LaneId, Nanos, Ticket};
use crate::region::Region;
use crate::round::buffer::RoundBuffer;
use crate::service::{Service, ServiceHandle};

/// What became of a round when it was posted.
#[derive(Debug)]
pub enum Posted {
    /// It has completed already.
    Done(Box<RoundBuffer>),
    /// The transport keeps the buffer with this ticket; poll for it.
    Pending(Ticket),
}

/// How far [`Round::flush`](crate::Round::flush) reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Flush {
    /// It does nothing.
    None,
    /// Earlier writes are visible to every reader.
    Visible,
    /// Earlier writes survive a loss of power.
    Persistent,
}

/// What a backend promises beyond the contract, or cannot give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// A line of a record is read whole or seen as changed (contract, rule 2). Without it, records
    /// need a checksum.
    pub atomic_line: bool,
    /// CPU code of the memory node may change words that verbs CAS.
    pub coherent_atomics: bool,
    /// A WRITE of a word is atomic against CASes of the same word: beyond rule 3 of the contract.
    pub atomic_writes: bool,
    /// How far a flush reaches.
    pub flush: Flush,
    /// Whether a client's access can be revoked.
    pub revoke: bool,
    /// Whether a node may be out of reach of some clients, and answer others: networks do that.
    pub partitions: bool,
}

/// A connection of one endpoint to all memory nodes. Not shared between threads.
pub trait Transport {
    /// Posts a round; its verbs in order. Never waits and never fails: a failure is the outcome of
    /// the buffer.
    fn post(&self, round: Box<RoundBuffer>) -> Posted;

    /// The buffer of a round that has completed, else `None`.
    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>>;

    /// Nobody waits for this round any more. Its buffer, if it has completed; else it comes out of
    /// [`Transport::poll`].
    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>>;

    /// Has a round posted once the round with this ticket has completed without error; if that
    /// fails, this one fails too, unsent. Either is told by [`Transport::poll`], as of an orphaned
    /// round. The first round may be under way, or about to be posted. Several rounds behind one
    /// are posted one after the other.
    ///
    /// Gives the round back where the endpoint has to do it, which it can only while its worker
    /// runs.
    fn chain(&self, after: Ticket, next: Box<RoundBuffer>) -> Result<(), Box<RoundBuffer>> {
        let _ = after;
        Err(next)
    }

    /// Whether this round waits for another one, and has not been posted yet.
    fn is_chained(&self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// Whether a memory node may hold back, for about a millisecond, the answer to a round that no
    /// coroutine awaits. The node sends it with its answer to the next round.
    fn may_hold_back(&self) -> bool {
        false
    }

    /// Makes progress: names the lanes whose round has completed, and hands back the buffers of
    /// orphaned rounds. Either callback may post, so no lock or borrow of the transport's own may
    /// be held over it.
    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>));

    /// The time.
    fn now(&self) -> Nanos;

    /// The clock of the client's machine, which those of other machines do not agree with: for
    /// leases and timestamps. [`Transport::now`] is the one clock of all that is recorded.
    fn clock(&self) -> Nanos {
        self.now()
    }

    /// What ends [`Transport::idle`] from another thread, where unparking the thread does not.
    fn idle_waker(&self) -> Option<Waker> {
        None
    }

    /// No coroutine can run: wait until a round completes, the thread is unparked, or the clock
    /// shows `until`.
    fn idle(&self, until: Option<Nanos>);

    /// What this backend promises.
    fn capabilities(&self) -> Capabilities;

    /// The coroutine that runs has used so much CPU time that is not seen otherwise. Means
    /// something in a simulation only.
    fn charge(&self, time: Nanos) {
        let _ = time;
    }

    /// Whether anybody wants to know of [`Transport::probe`].
    fn probes(&self) -> bool {
        false
    }

    /// A coroutine has come to a place with a name. Means something in a simulation only, which has
    /// faults happen there.
    fn probe(&self, lane: LaneId, name: &'static str) {
        let _ = (lane, name);
    }
}

/// A cluster's memory as one backend gives it: a factory of transports, and the memory nodes' own
/// side.
pub trait Fabric: Send + Sync {
    /// Number of memory nodes; they are numbered from 0.
    fn nodes(&self) -> u16;

    /// A connection to all nodes for one endpoint of `client`. Call it on the thread that will use
    /// it. An error names the node that cannot be had.
    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError>;

    /// A region as its node's own CPU sees it. `None` where there is no such region, or it is not
    /// of this process.
    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>>;

    /// Takes all access from a client, at every node. Returns when no verb of it can take effect
    /// any more; an error names the node that has not confirmed it.
    fn revoke(&self, client: ClientId) -> Result<(), FabricError>;

    /// Whether a client of this or another process is connected to some node just now; `None` if
    /// that cannot be told. A client that died is not. May wait for the nodes' answers.
    fn is_connected(&self, client: ClientId) -> Option<bool> {
        let _ = client;
        None
    }

    /// Takes a node away from this fabric's endpoints, as if its machine had died: every round to
    /// it fails from now on.
    fn fail(&self, node: NodeId);

    /// The cluster goes on without this node, dead or not: who connects from now on does so to the
    /// others, and [`Fabric::revoke`] asks the others alone.
    fn abandon(&self, node: NodeId) {
        self.fail(node);
    }

    /// The cluster has taken a node in again that it had gone on without, or another one in its
    /// place: who connects from now on does so to it too.
    fn readmit(&self, node: NodeId) {
        let _ = node;
    }

    /// Whether a node that was abandoned would answer who connects to it, without doing so. It
    /// never waits: where asking takes time, this says what was last heard, nothing at first, and
    /// asks again meanwhile.
    fn answers(&self, node: NodeId) -> bool {
        let _ = node;
        false
    }

    /// Tells a node that the cluster has gone on without it, so that it gives up what it has and
    /// can be taken in again: see [`Handler::forget`]. Does nothing where nodes that live cannot be
    /// out of reach.
    fn forget(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        let _ = (node, order);
        Ok(())
    }

    /// What this backend promises.
    fn capabilities(&self) -> Capabilities;

    /// Says that these bytes are lines of records (contract, rule 2), for a backend that tears
    /// whatever else may tear.
    fn lines_of_records(&self, at: Address, bytes: u64) {
        let _ = (at, bytes);
    }
}

/// Serves calls ([`Round::call`](crate::Round::call)) on a memory node's own CPU, one after the
/// other. It may be handed any words at all: a client is trusted with the memory it opens, not with
/// the node's health.
pub trait Handler: Send {
    /// Serves a request; what is pushed to `reply`, which is empty, is the answer.
    fn call(&mut self, from: ClientId, request: &[u64], reply: &mut Vec<u64>);

    /// What a request that begins so costs the CPU beside receiving, dispatching, moving its words
    /// and answering: for simulated nodes.
    fn work(&self, request: &[u64]) -> Nanos {
        let _ = request;
        0
    }

    /// Gives up all that the node has, as if it were started anew, if that is what this order says
    /// and it is right: see [`Fabric::forget`]. `cut` ends all connections of clients, and comes
    /// before anything is given up, so that nothing of before reaches what comes after.
    fn forget(&mut self, order: &[u64], cut: &mut dyn FnMut()) {
        let _ = (order, cut);
    }

    /// The node's process has been started anew: what it knew is gone, except for what is in its
    /// memory. For simulated nodes.
    fn restart(&mut self) {}
}

/// A fabric whose memory nodes are in this process: their own CPUs' side.
pub trait Host: Fabric {
    /// Runs a service on the node's own CPU until the handle is stopped or dropped.
    fn serve(&self, node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle;

    /// Has a handler serve the node's calls from now on.
    fn answer(&self, node: NodeId, handler: Box<dyn Handler>);
}
