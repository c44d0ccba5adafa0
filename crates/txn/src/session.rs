//! A session: one coroutine's place to run transactions.

use std::cell::Cell;
use std::fmt;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Address, Endpoint, Lane, Nanos, NodeId, NodeSet, Round, Ticket, WORD_BYTES, catch_panic};
use remora_index::Table;
use remora_memory::limits::RING_BYTES;
use remora_memory::ring::{Reservation, RingWriter, UNDO_STRIDE, UNDO_WINDOW};
use remora_memory::{Pointer, Registration, TableId};
use remora_sync::{Key, LockWord, TransactionId, Version};

use crate::error::{Abort, Limit, Stop};
use crate::event::{Observer, Outcome};
use crate::limits::{BACKOFF_DOUBLINGS, BACKOFF_NS, HELD_DOUBLINGS, READ_PAUSE_NS, SAME_HOLDER, SET_MAX};
use crate::protocol::spec::ProtocolSpec;
use crate::protocol::{Check, Protocol};
use crate::recovery::{self, Departed, Verdict};
use crate::sets::{Intent, Sets};
use crate::shared::SharedLocks;
use crate::tx::{Attempt, Tx};
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

/// How a session runs one transaction, and how long it retries it.
#[derive(Clone, Copy, Debug)]
pub struct TransactOptions {
    /// A number for the transaction's type, for reports.
    pub label: u16,
    /// Highest number of attempts while the transaction aborts; there is at least one.
    pub attempts: u32,
    /// How long the transaction is tried while it aborts, counted from its first abort.
    pub patience: Nanos,
    /// When to give up: checked between attempts, and before a commit.
    pub deadline: Option<Nanos>,
}

impl Default for TransactOptions {
    /// Any number of attempts, for a second.
    fn default() -> TransactOptions {
        TransactOptions { label: 0, attempts: u32::MAX, patience: 1_000_000_000, deadline: None }
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
    nodes: NodeSet,
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
    lease: Rc<Lease>,
    /// Transactions of this session whose outcome the program was not told.
    pub(crate) unsure: Vec<TransactionId>,
    /// How often and for how long the last transaction that was given up had been tried.
    tried: Tried,
    /// Why the last closure or attempt that has stopped did so.
    pub(crate) stopped: Stop,
}

/// Transactions that are remembered as unsure: the last ones.
const UNSURE_MAX: usize = 64;

/// The ends of phases are noted for one attempt in this number: reading the clock four times costs
/// more than a verb.
const PHASE_SAMPLES: u64 = 16;

impl State {
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

    /// Forgets registered tables that are not to be kept, and what was prepared in them.
    pub(crate) fn forget_tables(&mut self, is_kept: impl Fn(&Table) -> bool) {
        self.sets.forget(is_kept);
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

/// Where a lane's undo entries are put: see `remora_memory::ring`.
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

/// A session is one coroutine's place to run transactions, one at a time. It has a lane, a redo
/// ring at every memory node, and sets that one transaction after the other reuses.
#[derive(Debug)]
pub struct Session {
    lane: Lane,
    state: State,
}

impl Session {
    /// Makes a session on a lane of a registered client. `ring` numbers the lane among the lanes
    /// that the client registered.
    #[must_use]
    pub fn new(lane: Lane, client: &Registration, ring: usize, config: SessionConfig) -> Session {
        let state = State {
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
        };
        Session { lane, state }
    }

    /// Goes on as another incarnation of the session's client, which the memory nodes have
    /// connected. The session then uses a lane of that incarnation's endpoint, and its tables as
    /// they are placed now. Only between transactions. What the former incarnation has left behind
    /// is recovery's to end.
    pub fn reincarnate(&mut self, endpoint: &Rc<Endpoint>, client: &Registration, ring: usize, config: SessionConfig) {
        let lane = self.lane.on(endpoint);
        let mut session = Session::new(lane, client, ring, config);
        let tables = std::mem::take(&mut self.state.sets.tables);
        tables.into_iter().flatten().for_each(|table| session.register(table));
        session.observe(self.state.observer.take());
        session.state.unsure = std::mem::take(&mut self.state.unsure);
        *self = session;
    }

    /// Makes a table known. Transactions name it by its id.
    pub fn register(&mut self, table: Arc<Table>) {
        self.state.sets.register(table);
    }

    /// Forgets the registered tables that are not to be kept, because they were dropped. Only
    /// between transactions.
    pub fn forget_tables(&mut self, is_kept: impl Fn(&Table) -> bool) {
        self.state.forget_tables(is_kept);
    }

    /// Whether the session's rings hold a transaction whose outcome or installation is unknown.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.state.is_in_doubt(&self.lane)
    }

    /// Sets the observer that is told of every attempt from now on, and returns the former one.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        self.state.tell_committing = observer.as_ref().is_some_and(|observer| observer.wants_committing());
        std::mem::replace(&mut self.state.observer, observer)
    }

    /// Makes the session free the locks of recovered clients that it meets, and stop when its own
    /// client's lease is over.
    pub fn watch_for(&mut self, departed: Rc<dyn Departed>, lease: Rc<Lease>) {
        self.state.departed = Some(departed);
        self.state.lease = lease;
    }

    /// Returns what the rings say of a transaction of a client that is alive;
    /// [`Verdict::Undecided`] as long as they say nothing.
    pub async fn look_up(&self, id: TransactionId) -> Result<Verdict, Stop> {
        let in_place = self.state.spec.discipline.is_in_place();
        // A transaction of this session that was given up may still be on its way.
        let ended = self.state.unsure.contains(&id) && self.lane.background() == 0;
        Ok(recovery::look_up(&self.lane, self.state.nodes, id, in_place, ended).await?)
    }

    /// Returns the session's lane.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Begins a transaction, which [`Tx::commit`] or [`Tx::abort`] ends. `label` is a number for
    /// its type, for reports.
    pub fn begin(&mut self, label: u16) -> Result<Tx<'_>, Stop> {
        Tx::begin(&self.lane, &mut self.state, Attempt { label, number: 1, first_began: 0 })
    }

    /// Runs a closure as a transaction: see [`Session::decide`].
    ///
    /// The closure returns `Ok(Ok(value))` to commit, `Ok(Err(error))` to give up for a reason of
    /// its own, and passes on every [`Stop`] that the transaction gives it.
    pub async fn transact<R, E>(
        &mut self,
        options: TransactOptions,
        mut body: impl AsyncFnMut(&mut Tx<'_>) -> Result<Result<R, E>, Stop>,
    ) -> Result<Result<R, E>, Stop> {
        let mut said = None;
        let decided = self.decide(options, async |tx| match body(tx).await {
            Ok(returned) => {
                let decision = if returned.is_ok() { Decision::Commit } else { Decision::GiveUp };
                said = Some(returned);
                decision
            }
            Err(stop) => tx.stop(stop),
        });
        decided.await?;
        Ok(said.expect("a run of the closure has decided the transaction"))
    }

    /// Runs a closure as a transaction, and tries it again while it aborts, with growing random
    /// pauses.
    ///
    /// It ends well when what the closure wants has been done. Either the transaction has
    /// committed, or the reads behind the closure's decision to give up have been validated.
    /// Otherwise it returns why the transaction has stopped.
    ///
    /// The closure hands every [`Stop`] that the transaction gives it to [`Tx::stop`]. A panic in
    /// it aborts the transaction, and resumes when its locks are gone.
    pub async fn decide(
        &mut self,
        options: TransactOptions,
        mut body: impl AsyncFnMut(&mut Tx<'_>) -> Decision,
    ) -> Result<(), Stop> {
        let Session { lane, state } = self;
        let lane = &*lane;
        if !state.loose.is_empty() {
            take_back(lane, state).await?;
        }
        let mut trial = Trial::begin(options);
        loop {
            let mut tx = trial.attempt(lane, state)?;
            let decision = catch_panic(body(&mut tx)).await;
            let settled = trial.settle(&mut tx, decision).await;
            drop(tx);
            match settled {
                Settled::Decided => return Ok(()),
                Settled::Stopped => return Err(state.stopped),
                Settled::Again => trial.pause(lane, state).await,
            }
        }
    }

    /// Returns how often and for how long the last transaction was tried that [`Session::transact`]
    /// has given up.
    #[must_use]
    pub fn tried(&self) -> Tried {
        self.state.tried
    }

    /// Returns the table and key of the record that was the reason of a stop of the last attempt,
    /// if there is one and it is known.
    #[must_use]
    pub fn culprit(&self, stop: Stop) -> Option<(&Table, Key)> {
        self.state.sets.culprit(stop)
    }

    /// Waits until every redo ring of this lane has been applied to its end. Returns false if a
    /// node does not get there in time, or if the rings hold a transaction in doubt, whose entry
    /// must stay.
    pub async fn drain(&mut self, patience: Nanos) -> Result<bool, Stop> {
        let deadline = self.lane.now().saturating_add(patience);
        if !self.state.loose.is_empty() {
            take_back(&self.lane, &mut self.state).await?;
        }
        self.state.shared.settle(&self.lane).await?;
        loop {
            self.state.settle(&self.lane);
            let mut round = self.lane.round();
            let rings = || self.state.nodes.iter().map(|node| usize::from(node.0));
            let reads: Vec<_> = rings().map(|ring| round.read(self.state.rings[ring].applied_at(), 8)).collect();
            let done = self.lane.execute(round).await?;
            for (ring, read) in rings().zip(reads) {
                let ring = &mut self.state.rings[ring];
                ring.learn(done.words(read)[0]);
            }
            drop(done);
            if self.lane.background() == 0 && self.state.rings.iter().all(RingWriter::drained) {
                return Ok(!self.state.is_in_doubt(&self.lane));
            }
            if self.lane.now() >= deadline {
                return Ok(false);
            }
            self.lane.sleep(20_000).await;
        }
    }
}

/// What the closure of a transaction wants, after one run of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// To commit.
    Commit,
    /// To give the transaction up, if what it has read belongs together.
    GiveUp,
    /// Nothing: the transaction has stopped the closure. Made by [`Tx::stop`].
    Stop,
}

/// What an attempt at a transaction has come to.
enum Settled {
    /// What the closure wanted has been done.
    Decided,
    /// It has aborted, and is to be tried again.
    Again,
    /// It has stopped, for a reason that is kept in the session's state: it is many words, and
    /// needed rarely.
    Stopped,
}

/// The attempts at one transaction: everything but the closure, so that it is compiled once for all
/// closures.
struct Trial {
    options: TransactOptions,
    attempt: Attempt,
    persistence: Persistence,
}

impl Trial {
    fn begin(options: TransactOptions) -> Trial {
        let attempt = Attempt { label: options.label, number: 0, first_began: 0 };
        Trial { options, attempt, persistence: Persistence::default() }
    }

    /// Begins the next attempt.
    #[inline]
    fn attempt<'s>(&mut self, lane: &'s Lane, state: &'s mut State) -> Result<Tx<'s>, Stop> {
        if self.is_late(lane) {
            state.tried = self.persistence.tried(self.attempt.number, lane);
            return Err(Stop::Limit(Limit::Deadline));
        }
        self.attempt.number = self.attempt.number.saturating_add(1);
        let tx = Tx::begin(lane, state, self.attempt)?;
        self.attempt = tx.attempt;
        Ok(tx)
    }

    fn is_late(&self, lane: &Lane) -> bool {
        self.options.deadline.is_some_and(|deadline| lane.now() >= deadline)
    }

    /// Does what the closure wants. A panic resumes when the locks are gone.
    async fn settle(&mut self, tx: &mut Tx<'_>, decision: thread::Result<Decision>) -> Settled {
        let lane = tx.lane;
        let result = match decision {
            Ok(Decision::Commit | Decision::GiveUp) if self.is_late(lane) => Err(Stop::Limit(Limit::Deadline)),
            Ok(Decision::Commit) => tx.try_commit().await.map(|()| Outcome::Committed),
            Ok(Decision::GiveUp) => tx.validate_only().await.map(|()| Outcome::UserAbort),
            Ok(Decision::Stop) => Err(tx.state.stopped),
            Err(panic) => {
                tx.release_and_wait().await;
                resume_unwind(panic);
            }
        };
        let stop = match result {
            Ok(outcome) => {
                tx.end(outcome);
                return Settled::Decided;
            }
            Err(stop) => stop,
        };
        let again = match stop {
            Stop::Abort(abort) => {
                let in_time = self.persistence.aborted(abort, lane) < self.options.patience;
                in_time && self.attempt.number < self.options.attempts
            }
            _ => false,
        };
        tx.end(Outcome::from(stop));
        if again {
            return Settled::Again;
        }
        tx.state.tried = self.persistence.tried(self.attempt.number, lane);
        tx.state.stopped = stop;
        Settled::Stopped
    }

    /// Waits a little before the next attempt.
    async fn pause(&self, lane: &Lane, state: &State) {
        let released = state.released.holder;
        if self.persistence.last == Some(Abort::Locked(released)) && !released.is_free() {
            // This lane's own former transaction, whose unlocks are on their way: there is no other
            // transaction to make way for.
            while lane.background() > 0 {
                lane.sleep(READ_PAUSE_NS).await;
            }
        } else {
            lane.sleep(lane.random() % self.persistence.pause(self.attempt.number)).await;
        }
    }
}

/// What the attempts at one transaction have met so far.
#[derive(Default)]
struct Persistence {
    /// When the first of them aborted: until then no time is needed.
    since: Option<Nanos>,
    last: Option<Abort>,
    /// Attempts in a row that have met the last holder.
    same_holder: u32,
}

impl Persistence {
    /// Notes that an attempt has aborted, and returns the time since the first one has.
    fn aborted(&mut self, abort: Abort, lane: &Lane) -> Nanos {
        let is_same = matches!(abort, Abort::Locked(_)) && self.last == Some(abort);
        self.same_holder = if is_same { self.same_holder.saturating_add(1) } else { 0 };
        self.last = Some(abort);
        let now = lane.now();
        now - *self.since.get_or_insert(now)
    }

    /// Returns the longest pause before the next attempt. A holder that stays the same for long may
    /// have died. To ask for its lock at the usual pace until it is recovered only costs others
    /// time.
    fn pause(&self, attempts: u32) -> Nanos {
        let longer = (self.same_holder / SAME_HOLDER).min(HELD_DOUBLINGS);
        BACKOFF_NS << (attempts.min(BACKOFF_DOUBLINGS) + longer)
    }

    #[cold]
    fn tried(&self, attempts: u32, lane: &Lane) -> Tried {
        Tried { attempts, elapsed: self.since.map_or(0, |since| lane.now() - since), last: self.last }
    }
}

/// Takes back what dropped transactions have had prepared: names the same keys again, to hear which
/// slots they have, and gives them up.
#[cold]
async fn take_back(lane: &Lane, state: &mut State) -> Result<(), Stop> {
    let mut tx = Tx::begin(lane, state, Attempt { label: 0, number: 1, first_began: 0 })?;
    (tx.silent, tx.preparing) = (true, true);
    let named = tx.state.loose.len().min(SET_MAX);
    for (table, key) in tx.state.loose.drain(..named).collect::<Vec<_>>() {
        let slot = tx.want_for(table, &key, Intent::Insert)?;
        // Until its answer has been heard: also if this is dropped before it is asked.
        let number = tx.state.sets.number(slot)?;
        tx.state.sets.items[number].loose = true;
    }
    // A slot that is locked is being filled by another transaction's insert, which will see to it.
    let result = match tx.fetch().await {
        Ok(()) | Err(Stop::Abort(_)) => Ok(()),
        Err(stop) => Err(stop),
    };
    tx.release_and_wait().await;
    tx.end(Outcome::Aborted(Abort::Dropped));
    result
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Outcome {
        match stop {
            Stop::Abort(abort) => Outcome::Aborted(abort),
            Stop::Unknown(_) => Outcome::Unknown,
            stop => Outcome::Failed(stop),
        }
    }
}
