//! What a session keeps from one attempt of a transaction to the next: sets, rings, the client's
//! lease, and what is not settled yet.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Address, Lane, Nanos, NodeId, NodeSet, Round, Ticket, WORD_BYTES};
use remora_index::Table;
use remora_node::limits::RING_BYTES;
use remora_node::ring::{Reservation, RingWriter, UNDO_STRIDE, UNDO_WINDOW};
use remora_node::{Pointer, Registration, TableId};
use remora_record::{Key, LockWord, TransactionId, Version};

use crate::error::{Abort, Limit, Stop};
use crate::event::Observer;
use crate::protocol::spec::ProtocolSpec;
use crate::protocol::{Check, Protocol};
use crate::recovery::Departed;
use crate::sets::Sets;
use crate::shared::SharedLocks;
use crate::vcache::VersionCache;

/// What a session needs beside its lane.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The protocol.
    pub protocol: Protocol,
    /// Epoch of the configuration.
    pub epoch: u64,
    /// The next sequence number, shared by the sessions of one client incarnation.
    pub sequence: Rc<Cell<u64>>,
    /// The one version cache of the tables, if the protocol validates locally.
    pub vcache: Option<Arc<VersionCache>>,
    /// The shared locks of the client incarnation, for all of its sessions.
    pub shared: SharedLocks,
}

/// What the sessions of a client know of its lease.
#[derive(Debug)]
pub struct Lease {
    over: Cell<bool>,
    until: Cell<Nanos>,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease { over: Cell::new(false), until: Cell::new(Nanos::MAX) }
    }
}

impl Lease {
    /// Ends the lease: the client was taken for dead, and begins no transaction any more.
    pub fn end(&self) {
        self.over.set(true);
    }

    /// Whether the client was taken for dead.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Extends the lease: until `until`, by the client's own clock, no other client takes it for
    /// dead.
    pub fn extend(&self, until: Nanos) {
        self.until.set(until);
    }

    /// Whether the lease has expired, so that what was read may be stale: a memory node that the
    /// cluster goes on without answers all the same.
    #[inline]
    fn has_run_out(&self, lane: &Lane) -> bool {
        self.until.get() != Nanos::MAX && (self.over.get() || lane.now() >= self.until.get())
    }
}

/// How often and for how long a transaction was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tried {
    /// Attempts.
    pub attempts: u32,
    /// Time from the transaction's first abort until it was given up.
    pub elapsed: Nanos,
    /// Why the last attempt that aborted has aborted.
    pub last: Option<Abort>,
}

/// What one attempt after the other reuses.
pub(crate) struct State {
    pub(crate) protocol: Protocol,
    /// What the protocol says of itself.
    pub(crate) spec: ProtocolSpec,
    pub(crate) epoch: u64,
    pub(crate) sets: Sets,
    /// This lane's redo ring at every node, by its number; nodes that are not live get no writes.
    pub(crate) rings: Vec<RingWriter>,
    /// Memory nodes that are live.
    pub(crate) nodes: NodeSet,
    pub(crate) reservations: Vec<(NodeId, Reservation)>,
    /// What the validation round under way looks at.
    pub(crate) checks: Vec<Check>,
    /// What the cluster's version cache is told and asked: items, or none, with records and
    /// versions.
    pub(crate) asked: Vec<(Option<usize>, (Pointer, Version))>,
    /// Keys that a dropped transaction had a slot prepared for, without having heard which.
    pub(crate) loose: Vec<(TableId, Key)>,
    /// Whether the rings hold a transaction whose outcome or installation is unknown: nothing of
    /// them is settled any more.
    in_doubt: bool,
    pub(crate) observer: Option<Box<dyn Observer>>,
    /// Whether the observer is also told of what is about to commit.
    pub(crate) tell_committing: bool,
    /// Whether this attempt notes the ends of its phases.
    pub(crate) sample_phases: bool,
    /// The last transaction whose locks are freed in the background, some time after its answer.
    pub(crate) released: Released,
    /// Where undo entries are put in the rings.
    pub(crate) undo: UndoWindow,
    /// The cache by which it validates, if its protocol does so locally.
    pub(crate) vcache: Option<Arc<VersionCache>>,
    /// The client's shared locks, if its protocol takes any.
    pub(crate) shared: SharedLocks,
    /// What has been sent to each node: by it the replica to read from is chosen.
    pub(crate) load: Vec<u64>,
    owner: u32,
    sequence: Rc<Cell<u64>>,
    /// Tells which clients are recovered, if the session watches for them: their locks mean nothing
    /// any more.
    pub(crate) departed: Option<Rc<dyn Departed>>,
    /// The lease of this client.
    pub(crate) lease: Rc<Lease>,
    /// Transactions of this session whose outcome the program was not told.
    pub(crate) unsure: Vec<TransactionId>,
    /// How often and for how long the last transaction that was given up had been tried.
    pub(crate) tried: Tried,
    /// Why the last closure or attempt that has stopped did so.
    pub(crate) stopped: Stop,
}

/// Transactions that are remembered as unsure: the last ones.
const UNSURE_MAX: usize = 64;

/// The ends of phases are noted for one attempt in this number: reading the clock four times costs
/// more than a verb.
const PHASE_SAMPLES: u64 = 16;

impl State {
    /// Makes the state of a session on a lane of a registered client. `ring` numbers the lane among
    /// the lanes that the client registered.
    pub(crate) fn new(client: &Registration, ring: usize, config: SessionConfig) -> State {
        State {
            protocol: config.protocol,
            spec: config.protocol.spec(),
            epoch: config.epoch,
            sets: Sets::default(),
            rings: rings(client, ring),
            nodes: client.nodes(),
            reservations: Vec::new(),
            checks: Vec::new(),
            asked: Vec::new(),
            loose: Vec::new(),
            in_doubt: false,
            observer: None,
            tell_committing: false,
            sample_phases: false,
            released: Released::default(),
            undo: UndoWindow::default(),
            vcache: config.vcache,
            shared: config.shared,
            load: vec![0; NODES_MAX],
            owner: client.incarnation,
            sequence: config.sequence,
            departed: None,
            lease: Rc::default(),
            unsure: Vec::with_capacity(UNSURE_MAX),
            tried: Tried::default(),
            stopped: Stop::Abort(Abort::Dropped),
        }
    }

    #[inline]
    pub(crate) fn next_id(&mut self) -> Result<TransactionId, Stop> {
        if self.lease.is_over() {
            return Err(Stop::Fenced);
        }
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        self.sample_phases = sequence.is_multiple_of(PHASE_SAMPLES);
        let owner = if mutant!(LocalIds) { 1 } else { self.owner };
        TransactionId::new(owner, sequence).ok_or(Stop::Limit(Limit::TransactionIds))
    }
}

impl State {
    /// Whether what was read may be no longer so: see [`Lease`].
    #[inline]
    pub(crate) fn reads_are_late(&self, lane: &Lane) -> bool {
        self.lease.has_run_out(lane)
    }

    /// Returns the node that has the cluster's version cache. All clients of an epoch know the same
    /// nodes.
    pub(crate) fn cache_host(&self) -> NodeId {
        self.nodes.iter().next_back().unwrap_or_default()
    }

    /// Counts a verb of `bytes` bytes that goes to a node. A verb costs a node about as much as
    /// this many bytes more.
    #[inline]
    pub(crate) fn count(&mut self, node: NodeId, bytes: usize) {
        const VERB_BYTES: u64 = 64;
        if let Some(load) = self.load.get_mut(usize::from(node.0)) {
            *load += VERB_BYTES + bytes as u64;
        }
    }

    /// Replaces each registered table by what it is `now`. Forgets it, and what was prepared in it,
    /// if that is nothing.
    pub(crate) fn replace_tables(&mut self, now: impl Fn(&Table) -> Option<Arc<Table>>) {
        self.sets.replace(now);
        let State { sets, loose, .. } = self;
        loose.retain(|(table, _)| sets.knows(*table));
    }

    /// The outcome of a transaction is unknown: its log entry stays.
    pub(crate) fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// Notes that the program was not told what became of a transaction.
    #[cold]
    pub(crate) fn note_unsure(&mut self, id: TransactionId) {
        if self.unsure.len() == UNSURE_MAX {
            self.unsure.remove(0);
        }
        self.unsure.push(id);
    }

    /// Whether the rings hold what must stay. Also a background round that failed may have been an
    /// install.
    pub(crate) fn is_in_doubt(&self, lane: &Lane) -> bool {
        self.in_doubt || lane.background_failures() > 0
    }

    /// Whether an undo entry of `words` words has a place: always, unless others are still needed.
    #[inline]
    pub(crate) fn has_room_for_undo(&mut self, lane: &Lane, words: usize) -> bool {
        let bytes = (words * WORD_BYTES) as u64;
        let UndoWindow { base, at, lap, kept, .. } = &mut self.undo;
        if *at + bytes > *base + UNDO_WINDOW {
            *kept &= lane.background() > 0;
            // A background round that has failed may have been the one that was to free an entry.
            if !*kept && lane.background_failures() == 0 {
                (*at, *lap) = (*base, *lap + 1);
            }
        }
        *at + bytes <= RING_BYTES
    }

    /// The place of the undo entry that was written last is taken.
    #[inline]
    pub(crate) fn undo_written(&mut self, words: usize, needed: Needed) {
        self.undo.reach = self.undo.reach_with(words);
        let UndoWindow { base, at, kept, .. } = &mut self.undo;
        *at += ((words * WORD_BYTES) as u64).next_multiple_of(UNDO_STRIDE);
        match needed {
            Needed::No => {}
            Needed::Meanwhile => *kept = true,
            Needed::Ever => *base = *at,
        }
    }

    /// Lets the rings overwrite what is installed: everything, if nothing is under way and nothing
    /// in doubt.
    pub(crate) fn settle(&mut self, lane: &Lane) {
        if lane.background() == 0 && !self.is_in_doubt(lane) {
            self.rings.iter_mut().for_each(RingWriter::settle);
        }
    }
}

/// Where a lane's undo entries are put: see `remora_node::ring`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UndoWindow {
    /// What lies before is needed for ever.
    base: u64,
    /// Where the next entry begins, in bytes.
    pub(crate) at: u64,
    /// Where the entry ends that reaches furthest.
    reach: u64,
    /// How often the lane has begun again at the base.
    pub(crate) lap: u32,
    /// An entry may still be needed although another transaction has begun.
    kept: bool,
}

impl UndoWindow {
    /// How far entries reach when the next one, of `words` words, is written.
    #[inline]
    pub(crate) fn reach_with(&self, words: usize) -> u64 {
        self.reach.max(self.at + (words * WORD_BYTES) as u64)
    }
}

/// The last transaction of a lane that has committed, and whose locks are freed behind its answer.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Whose locks they are.
    pub(crate) holder: LockWord,
    /// The round that frees them, if it was to wait for another one.
    unlock: Option<Ticket>,
    /// Background rounds of the lane that had failed before.
    failures: u32,
    /// Where the locks are.
    locks: Vec<Address>,
}

impl Released {
    /// A transaction has committed: its locks are freed by a round, which may wait for others.
    pub(crate) fn begin(&mut self, lane: &Lane, holder: LockWord, locks: impl Iterator<Item = Address>) {
        (self.holder, self.unlock, self.failures) = (holder, None, lane.background_failures());
        self.locks.clear();
        self.locks.extend(locks);
    }

    /// Which round frees the locks.
    pub(crate) fn by(&mut self, unlock: Option<Ticket>) {
        self.unlock = unlock;
    }

    /// Whether the round that frees the locks has not been posted yet.
    pub(crate) fn is_held_back(&self, lane: &Lane) -> bool {
        self.unlock.is_some_and(|unlock| lane.is_held_back(unlock))
    }

    /// Waits until the round that frees the locks has been posted, or never will be.
    pub(crate) async fn until_freed(&self, lane: &Lane) {
        if let Some(unlock) = self.unlock {
            lane.until_posted(unlock).await;
        }
    }

    /// Whether it never will be: a round before it has failed.
    pub(crate) fn has_failed(&self, lane: &Lane) -> bool {
        lane.background_failures() != self.failures
    }

    /// Whether this lock is one of them, and held back.
    #[inline]
    pub(crate) fn holds_back(&self, lane: &Lane, lock: Address) -> bool {
        self.locks.contains(&lock) && self.is_held_back(lane)
    }

    /// Posts a round behind the one that frees the locks.
    pub(crate) fn post_behind(&self, lane: &Lane, round: Round<'_>) {
        match self.unlock {
            Some(unlock) => lane.post_behind(unlock, round),
            None => lane.post(round),
        }
    }
}

/// How long the undo entry of a transaction is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needed {
    /// What frees it has been posted, ahead of everything that the lane will post.
    No,
    /// Until the lane's background rounds are done.
    Meanwhile,
    /// The transaction's outcome is unknown.
    Ever,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("protocol", &self.protocol).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// A lane's rings by the numbers of their nodes.
fn rings(client: &Registration, ring: usize) -> Vec<RingWriter> {
    let end = client.nodes().iter().next_back().map_or(0, |last| last.0 + 1);
    let at = |node| if client.nodes().has(node) { client.ring(node, ring) } else { RingWriter::new(node, 0) };
    (0..end).map(NodeId).map(at).collect()
}
