//! The state that a session keeps from one attempt of a transaction to the next: its sets, its
//! rings, the client's lease, and the transactions that are not settled yet.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Address, Lane, Nanos, NodeId, NodeSet, RegionId, Round, Ticket, WORD_BYTES};
use remora_index::Table;
use remora_node::ring::{Reservation, RingSpan, RingWriter, UNDO_STRIDE, UNDO_WINDOW};
use remora_node::{Pointer, Registration, TableId};
use remora_record::{Key, LockWord, RepairableLock, TransactionId, Version};

use crate::archives::Archives;
use crate::combine::SharedBatch;
use crate::error::{Abort, Limit, Stop};
use crate::event::{ConflictCounter, Observer};
use crate::landing::{BackupLock, Clocks};
use crate::limits::{LOG_NODES_MAX, MEMBER_RECORDS_MAX, UNSURE_MAX};
use crate::oracle::requests::OraclePlace;
use crate::oracle::{Question, oracle_of};
use crate::protocol::spec::ProtocolSpec;
use crate::protocol::{Check, Outcomes, Protocol, Repairs};
use crate::race::known::RaceState;
use crate::recovery::Departed;
use crate::sets::Sets;
use crate::shared::SharedLocks;
use crate::time::ClientTime;
use crate::turns::{Stood, Turns};
use crate::vcache::VersionCache;
use crate::vector::Commits;
use crate::words::Name;

/// The parts that a session needs beside its lane.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The protocol that runs the transactions.
    pub protocol: Protocol,
    /// Epoch of the configuration.
    pub epoch: u64,
    /// The next sequence number, shared by the sessions of one client incarnation.
    pub sequence: Rc<Cell<u64>>,
    /// The next place in the client's archives, in words, shared by the sessions of one client
    /// incarnation.
    pub archive_place: Rc<Cell<u64>>,
    /// The version cache of this process, if the protocol validates locally. All writers of the
    /// tables share it.
    pub vcache: Option<Arc<VersionCache>>,
    /// The shared locks of the client incarnation, for all of its sessions.
    pub shared: SharedLocks,
    /// The turns of the client's sessions at hot records.
    pub turns: Turns,
    /// The largest time of a transaction that the client knows of, for all of its sessions.
    pub time: ClientTime,
    /// The outcomes of the client's last attempts, for all of its sessions.
    pub outcomes: Outcomes,
}

/// What the sessions of a client know of its lease.
#[derive(Debug)]
pub struct Lease {
    over: Cell<bool>,
    until: Cell<Nanos>,
    in_doubt: Cell<bool>,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease { over: Cell::new(false), until: Cell::new(Nanos::MAX), in_doubt: Cell::new(false) }
    }
}

impl Lease {
    /// Ends the lease: the client was taken for dead, and begins no transaction any more.
    pub fn end(&self) {
        self.over.set(true);
    }

    /// Returns whether the client was taken for dead.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Returns whether the answer to a commit of this client was lost, so that the locks of the
    /// transaction stay until the client is recovered.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.get()
    }

    /// Extends the lease: until `until`, by the client's own clock, no other client takes it for
    /// dead.
    pub fn extend(&self, until: Nanos) {
        self.until.set(until);
    }

    /// Returns whether the lease has expired. Then what was read may be stale, because a memory
    /// node that the cluster has removed may still answer this client.
    #[inline]
    fn has_run_out(&self, lane: &Lane) -> bool {
        self.until.get() != Nanos::MAX && (self.over.get() || lane.now() >= self.until.get())
    }
}

/// How often and for how long a transaction was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tried {
    /// Number of attempts.
    pub attempts: u32,
    /// Time from the transaction's first abort until it was given up.
    pub elapsed: Nanos,
    /// Why the last aborted attempt has aborted.
    pub last: Option<Abort>,
}

/// The state of a session that one attempt after the other reuses.
pub(crate) struct State {
    pub(crate) protocol: Protocol,
    /// The specification of the protocol.
    pub(crate) spec: ProtocolSpec,
    pub(crate) epoch: u64,
    pub(crate) sets: Sets,
    /// This lane's ring at every node, by the node's number. Nodes that are not live get no writes.
    pub(crate) rings: Vec<RingWriter>,
    /// Memory nodes that are live.
    pub(crate) nodes: NodeSet,
    pub(crate) reservations: Vec<(NodeId, Reservation)>,
    /// The checks of the validation round that is under way.
    pub(crate) checks: Vec<Check>,
    /// What the session keeps for protocol `rtx`.
    pub(crate) repairs: Repairs,
    /// What the session keeps of each RACE hash table that it uses.
    pub(crate) races: Vec<RaceState>,
    /// What is published in the cluster's version cache, and what the cache is asked. An entry
    /// without an item is published; an entry with the number of an item is asked.
    pub(crate) asked: Vec<(Option<usize>, (Pointer, Version))>,
    /// Keys for which a dropped transaction may have had a slot prepared, without having heard
    /// which slot.
    pub(crate) loose: Vec<(TableId, Key)>,
    /// Whether the rings hold a transaction whose outcome or installation is unknown. Then nothing
    /// in the rings may be overwritten any more.
    in_doubt: bool,
    pub(crate) observer: Option<Box<dyn Observer>>,
    /// Counts the conflicts of the client, if the client counts them.
    pub(crate) conflicts: Option<Rc<dyn ConflictCounter>>,
    /// Whether the session calls [`Observer::committing`](crate::Observer::committing).
    pub(crate) tell_committing: bool,
    /// Whether this attempt notes the ends of its phases.
    pub(crate) sample_phases: bool,
    /// The last transaction whose locks are freed in the background, after the program has its
    /// outcome.
    pub(crate) released: Released,
    /// The bytes of the data of each ring.
    pub(crate) ring_bytes: u64,
    /// Where in the rings the next undo entries go.
    pub(crate) undo: UndoWindow,
    /// The version cache of this process, if the protocol validates locally.
    pub(crate) vcache: Option<Arc<VersionCache>>,
    /// The client's shared locks, if the protocol takes any.
    pub(crate) shared: SharedLocks,
    /// The turns of the client's sessions at hot records.
    pub(crate) turns: Turns,
    /// The largest time of a transaction that the client knows of.
    pub(crate) time: ClientTime,
    /// What the oracle has to be told of a commit of this session, once that is over: the question,
    /// and the commit's id or name.
    pub(crate) owed: Option<(Question, u64)>,
    /// Under vector timestamps: the commits that this one comes behind.
    pub(crate) behind: Commits,
    /// Under vector timestamps: the vector of the last snapshot.
    pub(crate) vector: Vec<u64>,
    /// What the session knows of landing clocks.
    pub(crate) clocks: Clocks,
    /// The archives of this client, and those of others that the session has found.
    pub(crate) archives: Archives,
    /// Records that earlier attempts of the transaction have read, if it reads a fresh snapshot, in
    /// ascending order, and the largest time that they have found.
    pub(crate) seen: Vec<Pointer>,
    pub(crate) seen_time: u64,
    /// The locks at backups that a round has asked for, of a transaction that fixes its time early.
    pub(crate) backup_locks: Vec<BackupLock>,
    /// Records at which the next attempt waits for its turn.
    pub(crate) contested: Vec<Name>,
    /// The record that a transaction of this session was last to change after it had read it,
    /// when it was not its turn. While the record has a line, the session's next transaction stands
    /// in it before it reads the record. If that one does not change it, this is forgotten.
    pub(crate) reads_first: Option<Name>,
    /// All records that it wants.
    pub(crate) wants: Vec<Name>,
    /// How long the session has stood in line since its last event, and where last.
    pub(crate) stood: (Nanos, Option<Name>),
    /// A batch that the next fetch may join.
    pub(crate) called_to: Option<SharedBatch>,
    /// Whether the transaction commits by itself, because an attempt of it could not join a batch.
    pub(crate) is_alone: bool,
    /// Bytes that have been sent to each node, by the node's number. They decide from which replica
    /// a record is read.
    pub(crate) load: Vec<u64>,
    owner: u32,
    sequence: Rc<Cell<u64>>,
    /// Tells which clients are recovered, if the session watches for them. The locks of these
    /// clients mean nothing any more.
    pub(crate) departed: Option<Rc<dyn Departed>>,
    /// The lease of this client.
    pub(crate) lease: Rc<Lease>,
    /// Transactions of this session whose outcome the program does not know.
    pub(crate) unsure: Vec<TransactionId>,
    /// How often and for how long the session had tried the last transaction that it gave up.
    pub(crate) tried: Tried,
    /// The reason for which the last closure or attempt stopped.
    pub(crate) stopped: Stop,
}

/// The session notes the ends of phases for one in this number of attempts, because four looks at
/// the clock cost more than a verb.
const PHASE_SAMPLES: u64 = 16;

impl State {
    /// Makes the state of a session on a lane of a registered client. `ring` numbers the lane among
    /// the lanes that the client registered.
    pub(crate) fn new(lane: &Lane, client: &Registration, ring: usize, config: SessionConfig) -> State {
        State {
            protocol: config.protocol,
            spec: config.protocol.spec(),
            epoch: config.epoch,
            sets: Sets::default(),
            rings: rings(client, ring),
            nodes: client.nodes(),
            reservations: Vec::new(),
            checks: Vec::new(),
            repairs: Repairs::new(client, ring, config.outcomes),
            races: Vec::new(),
            asked: Vec::new(),
            loose: Vec::new(),
            in_doubt: false,
            observer: None,
            conflicts: None,
            tell_committing: false,
            sample_phases: false,
            released: Released::default(),
            ring_bytes: client.ring_bytes(),
            undo: UndoWindow::default(),
            vcache: config.vcache,
            shared: config.shared,
            turns: config.turns,
            time: config.time,
            owed: None,
            behind: Commits::default(),
            vector: Vec::new(),
            clocks: Clocks::new(client.nodes(), lane.capabilities().in_order),
            archives: Archives::new(client, config.archive_place),
            seen: Vec::new(),
            seen_time: 0,
            backup_locks: Vec::new(),
            contested: Vec::with_capacity(MEMBER_RECORDS_MAX),
            reads_first: None,
            wants: Vec::with_capacity(MEMBER_RECORDS_MAX),
            stood: (0, None),
            called_to: None,
            is_alone: false,
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

    /// Returns the client incarnation of the session.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns whether an attempt is of this client.
    pub(crate) fn is_of(&self, id: TransactionId) -> bool {
        id.owner() == self.owner
    }

    /// Returns the client that was found to hold a lock, if it is another one. The holders of
    /// shared locks count as one client.
    pub(crate) fn other_holder(&self, abort: Abort) -> Option<u32> {
        let Abort::Locked(lock) = abort else { return None };
        let owner = lock.holder().map_or(u32::MAX, |holder| holder.owner());
        (owner != self.owner).then_some(owner)
    }

    /// Stands in line for the records in [`State::contested`], until this time at most, and notes
    /// how long that took. A transaction that `may_join` others can be called to their batch.
    pub(crate) async fn stand_in_line(&mut self, lane: &Lane, may_join: bool, until: Nanos) -> Stood {
        self.wants.clear();
        let mut brings = false;
        if may_join && !self.is_alone {
            brings = self.sets.names(&mut self.wants) && self.members_bring();
        }
        let (began, first) = (lane.now(), self.turns.first_line(lane, &self.contested));
        let ended = self.turns.take(lane, &mut self.contested, (&self.wants, brings), until).await;
        if !matches!(ended, Stood::Not) {
            self.stood = (self.stood.0 + (lane.now() - began), first);
        }
        ended
    }

    /// Returns whether members of a batch may bring records along: where the commit takes the locks
    /// (`combine.rs`, invariant 8), and its log entry cannot go to too many nodes.
    pub(crate) fn members_bring(&self) -> bool {
        let locks_early = self.spec.discipline.is_in_place() || self.spec.locks_reads;
        // Under `rtx`, only the session that has read a record knows its lock word.
        let locks_early = locks_early || self.spec.discipline.is_repairable();
        !locks_early && usize::from(self.nodes.count()) <= LOG_NODES_MAX && !mutant!(ValidateWithLocks)
    }

    /// Gives the turns of this session at hot records back, if it has any.
    #[inline]
    pub(crate) fn give_turns_back(&self, lane: &Lane, has_committed: bool) {
        if self.turns.are_taken() {
            self.turns.give_back(lane, has_committed.then(|| self.released.unlock()));
        }
    }

    /// Whether commits of this session's protocol have times.
    pub(crate) fn has_times(&self) -> bool {
        self.spec.discipline.is_timed()
    }

    #[inline]
    pub(crate) fn next_id(&mut self) -> Result<TransactionId, Stop> {
        if self.lease.is_over() {
            return Err(Stop::Fenced);
        }
        self.draw_id()
    }

    /// Returns the error of an operation outside of transactions that may have taken effect. The
    /// client may have been taken for dead since.
    #[cold]
    pub(crate) fn unknown(&mut self) -> Stop {
        if self.lease.is_over() && mutant!(RaceFencedUnknown) {
            return Stop::Fenced;
        }
        let id = self.draw_id().ok().or_else(|| TransactionId::new(self.owner, TransactionId::SEQUENCE_MAX));
        id.map_or(Stop::Fenced, Stop::Unknown)
    }

    fn draw_id(&mut self) -> Result<TransactionId, Stop> {
        let step = if self.has_times() { 2 } else { 1 };
        let mut sequence = self.sequence.get().next_multiple_of(step);
        if self.spec.discipline.is_repairable() {
            sequence = self.repairs.sequence_from(sequence);
            if sequence > RepairableLock::SEQUENCE_MAX {
                return Err(Stop::Limit(Limit::TransactionIds));
            }
        }
        self.sequence.set(sequence + step);
        // Clients begin at different places, so that short runs of many clients have samples, too.
        self.sample_phases = (sequence / step + u64::from(self.owner)).is_multiple_of(PHASE_SAMPLES);
        let owner = if mutant!(LocalIds) { 1 } else { self.owner };
        TransactionId::new(owner, sequence).ok_or(Stop::Limit(Limit::TransactionIds))
    }
}

impl State {
    /// Returns whether what was read may be stale, because the client's lease has expired
    /// ([`Lease`]).
    #[inline]
    pub(crate) fn reads_are_late(&self, lane: &Lane) -> bool {
        self.lease.has_run_out(lane)
    }

    /// Returns whether fresh snapshots are strictly serializable (`landing.rs`, "One clock").
    pub(crate) fn has_strict_snapshots(&self) -> bool {
        self.clocks.is_one() && self.spec.discipline.has_clocks()
    }

    /// Returns the node that has the cluster's version cache. All clients of an epoch know the same
    /// nodes.
    pub(crate) fn cache_host(&self) -> NodeId {
        oracle_of(self.nodes)
    }

    /// Returns where this session asks the oracle.
    pub(crate) fn oracle(&self) -> OraclePlace {
        OraclePlace { host: oracle_of(self.nodes), epoch: self.epoch }
    }

    /// Counts a verb of `bytes` bytes that goes to a node. In addition to its bytes, a verb costs a
    /// node about as much as `VERB_BYTES` bytes.
    #[inline]
    pub(crate) fn count(&mut self, node: NodeId, bytes: usize) {
        const VERB_BYTES: u64 = 64;
        if let Some(load) = self.load.get_mut(usize::from(node.0)) {
            *load += VERB_BYTES + bytes as u64;
        }
    }

    /// Replaces each registered table by the one that `now` returns for it. If that is `None`,
    /// forgets the table, and what was prepared in it.
    pub(crate) fn replace_tables(&mut self, now: impl Fn(&Table) -> Option<Arc<Table>>) {
        self.sets.replace(now);
        let State { sets, loose, races, .. } = self;
        loose.retain(|(table, _)| sets.knows(*table));
        // What the session has in hand of a table that was dropped is gone with it.
        let born = |born: u64| sets.tables.iter().flatten().any(|table| table.born() == born);
        races.retain(|race| race.is_there(|table| born(table.born())));
        self.time.fall_behind();
    }

    /// Notes that the outcome of a transaction is unknown, so that its log entry stays.
    pub(crate) fn doubt(&mut self) {
        self.in_doubt = true;
        self.lease.in_doubt.set(true);
    }

    /// Notes that the program does not know the outcome of a transaction.
    #[cold]
    pub(crate) fn note_unsure(&mut self, id: TransactionId) {
        if self.unsure.len() == UNSURE_MAX {
            self.unsure.remove(0);
        }
        self.unsure.push(id);
    }

    /// Returns whether the rings hold an entry that must stay. This is also so if a background
    /// round has failed, because it may have been an installation.
    pub(crate) fn is_in_doubt(&self, lane: &Lane) -> bool {
        self.in_doubt || lane.background_failures() > 0
    }

    /// Returns whether there is a place for an undo entry of `words` words. There is always one,
    /// unless earlier entries are still needed.
    #[inline]
    pub(crate) fn has_room_for_undo(&mut self, lane: &Lane, words: usize) -> bool {
        let bytes = (words * WORD_BYTES) as u64;
        let UndoWindow { base, at, lap, kept, .. } = &mut self.undo;
        if *at + bytes > *base + UNDO_WINDOW {
            *kept &= lane.background() > 0;
            // If a background round has failed, it may have been the one that was to free an entry.
            if !*kept && lane.background_failures() == 0 {
                (*at, *lap) = (*base, *lap + 1);
            }
        }
        *at + bytes <= self.ring_bytes
    }

    /// Returns the bytes of the frame of the longest log entry.
    #[inline]
    pub(crate) fn log_entry_max(&self) -> usize {
        self.ring_bytes as usize / 2
    }

    /// Fails if no ring has room for a log entry whose frame has this many words.
    #[inline]
    pub(crate) fn fits_log(&self, words: usize) -> Result<(), Limit> {
        let (bytes, max) = (words * WORD_BYTES, self.log_entry_max());
        if bytes > max { Err(Limit::LogEntry { bytes, max }) } else { Ok(()) }
    }

    /// Notes that the undo entry of the current transaction was written, and how long its place is
    /// needed.
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

    /// Lets the rings overwrite the entries that are installed. These are all entries, if no
    /// background round is under way and no transaction is in doubt.
    pub(crate) fn settle(&mut self, lane: &Lane) {
        if lane.background() == 0 && !self.is_in_doubt(lane) {
            self.rings.iter_mut().for_each(RingWriter::settle);
        }
    }
}

/// The window of its rings into which a lane writes undo entries, one after the other.
/// `remora_node::ring` has the layout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UndoWindow {
    /// Offset in the rings before which entries must never be overwritten.
    base: u64,
    /// Offset at which the next entry begins, in bytes.
    pub(crate) at: u64,
    /// Largest offset at which any entry has ended.
    reach: u64,
    /// How often the lane has begun again at the base.
    pub(crate) lap: u32,
    /// Whether an entry may still be needed although another transaction has begun.
    kept: bool,
}

impl UndoWindow {
    /// Returns the largest offset at which an entry ends once the next entry, of `words` words, is
    /// written.
    #[inline]
    pub(crate) fn reach_with(&self, words: usize) -> u64 {
        self.reach.max(self.at + (words * WORD_BYTES) as u64)
    }
}

/// The last committed transaction of a lane whose locks are freed in the background, after the
/// program has its outcome.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// The transaction that has the locks, as a lock word names it.
    pub(crate) holder: LockWord,
    /// The round that frees the locks, if it was to wait for another round.
    unlock: Option<Ticket>,
    /// Number of the lane's background rounds that had failed before this transaction's release.
    failures: u32,
    /// The addresses of the locks. If there are more than [`Released::UNSORTED_MAX`], they are in
    /// ascending order.
    locks: Vec<Address>,
}

impl Released {
    /// Up to this number of locks, a look at all of them is cheap. Every item of the next
    /// transaction asks for its lock.
    const UNSORTED_MAX: usize = 16;

    /// Notes that a transaction has committed, and that a background round will free its locks.
    pub(crate) fn begin(&mut self, lane: &Lane, holder: LockWord, locks: impl Iterator<Item = Address>) {
        (self.holder, self.unlock, self.failures) = (holder, None, lane.background_failures());
        self.locks.clear();
        self.locks.extend(locks);
        if self.locks.len() > Released::UNSORTED_MAX {
            self.locks.sort_unstable_by_key(place);
        }
    }

    fn has(&self, lock: Address) -> bool {
        if self.locks.len() <= Released::UNSORTED_MAX {
            return self.locks.contains(&lock);
        }
        self.locks.binary_search_by_key(&place(&lock), place).is_ok()
    }

    /// Returns the round that frees the locks, if it waits for another round.
    pub(crate) fn unlock(&self) -> Option<Ticket> {
        self.unlock
    }

    /// Notes which round frees the locks.
    pub(crate) fn by(&mut self, unlock: Option<Ticket>) {
        self.unlock = unlock;
    }

    /// Returns whether the round that frees the locks has not been posted yet.
    pub(crate) fn is_held_back(&self, lane: &Lane) -> bool {
        self.unlock.is_some_and(|unlock| lane.is_held_back(unlock))
    }

    /// Waits until the round that frees the locks has been posted, or until it is known that it
    /// never will be.
    pub(crate) async fn until_freed(&self, lane: &Lane) {
        if let Some(unlock) = self.unlock {
            lane.until_posted(unlock).await;
        }
    }

    /// Returns whether a background round has failed since, so that the round that frees the locks
    /// may never be posted.
    pub(crate) fn has_failed(&self, lane: &Lane) -> bool {
        lane.background_failures() != self.failures
    }

    /// Returns whether this lock is one of them, and the round that frees it has not been posted
    /// yet.
    #[inline]
    pub(crate) fn holds_back(&self, lane: &Lane, lock: Address) -> bool {
        self.unlock.is_some() && self.has(lock) && self.is_held_back(lane)
    }

    /// Posts a round behind the one that frees the locks.
    pub(crate) fn post_behind(&self, lane: &Lane, round: Round<'_>) {
        match self.unlock {
            Some(unlock) => lane.post_behind(unlock, round),
            None => lane.post(round),
        }
    }
}

/// The place of a lock in the order of locks.
fn place(lock: &Address) -> (NodeId, RegionId, u64) {
    (lock.node, lock.region, lock.offset)
}

/// How long the undo entry of a transaction is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needed {
    /// Not any more: the round that frees the entry has been posted, before everything that the
    /// lane will post.
    No,
    /// Until the lane's background rounds are done.
    Meanwhile,
    /// As long as the rings exist, because the transaction's outcome is unknown.
    Ever,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("protocol", &self.protocol).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Returns a lane's rings, by the numbers of their nodes.
fn rings(client: &Registration, ring: usize) -> Vec<RingWriter> {
    let end = client.nodes().iter().next_back().map_or(0, |last| last.0 + 1);
    let at = |node| {
        if client.nodes().has(node) { client.ring(node, ring) } else { RingWriter::new(node, RingSpan::from(0)) }
    };
    (0..end).map(NodeId).map(at).collect()
}
