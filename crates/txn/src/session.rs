//! A session is one coroutine's place to run transactions. This file has the loop that runs a
//! closure as a transaction and tries it again while it aborts.

use std::panic::resume_unwind;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use remora_fabric::{Endpoint, Lane, Nanos, Outlined, catch_panic, outline};
use remora_index::Table;
use remora_node::ring::RingWriter;
use remora_node::{Registration, TableId};
use remora_record::{Key, TransactionId};

use crate::error::{Abort, Limit, Stop};
use crate::event::{ConflictCounter, Observer, Outcome};
use crate::landing::{PastTime, Snapshot};
use crate::limits::{
    BACKOFF_DOUBLINGS, BACKOFF_NS, HELD_DOUBLINGS, LONELY_ATTEMPTS, READ_PAUSE_NS, SAME_HOLDER, SET_MAX,
};
use crate::protocol::{look_up, rest};
use crate::race::{self, Operation, Put, Race};
use crate::recovery::{Departed, Verdict};
use crate::sets::{Intent, Part};
use crate::shared::SharedLocks;
use crate::state::{Lease, SessionConfig, State, Tried};
use crate::turns::Stood;
use crate::tx::{Attempt, Decision, Tx};

/// How a session runs one transaction, and how long it retries it.
#[derive(Clone, Copy, Debug)]
pub struct TransactOptions {
    /// A number for the transaction's type, for reports.
    pub label: u16,
    /// Highest number of attempts while the transaction aborts; there is at least one.
    pub attempts: u32,
    /// How long the transaction is tried while it aborts, counted from its first abort.
    pub patience: Nanos,
    /// When to give up, as a time of the lane's clock. The session checks it between attempts, and
    /// before a commit.
    pub deadline: Option<Nanos>,
    /// The snapshot that the transaction reads, if it only reads, and in one (`landing.rs`). The
    /// tables must be timed.
    pub snapshot: Option<Snapshot>,
    /// Whether the transaction only reads.
    pub only_reads: bool,
}

impl Default for TransactOptions {
    /// Returns the options for any number of attempts, for one second.
    fn default() -> TransactOptions {
        let (patience, deadline, snapshot) = (1_000_000_000, None, None);
        TransactOptions { label: 0, attempts: u32::MAX, patience, deadline, snapshot, only_reads: false }
    }
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
        let state = State::new(&lane, client, ring, config);
        Session { lane, state }
    }

    /// Goes on as another incarnation of the session's client, to which the memory nodes are
    /// connected. The session then uses a lane of that incarnation's endpoint. Call it only between
    /// transactions. Recovery ends what the former incarnation has left behind.
    pub fn reincarnate(&mut self, endpoint: &Rc<Endpoint>, client: &Registration, ring: usize, config: SessionConfig) {
        let lane = self.lane.on(endpoint);
        let mut session = Session::new(lane, client, ring, config);
        let tables = std::mem::take(&mut self.state.sets.tables);
        tables.into_iter().flatten().for_each(|table| session.register(table));
        session.observe(self.state.observer.take());
        session.state.unsure = std::mem::take(&mut self.state.unsure);
        *self = session;
    }

    /// Makes a table known to the session. Transactions then name the table by its id.
    pub fn register(&mut self, table: Arc<Table>) {
        self.state.sets.register(table);
    }

    /// Replaces each registered table by the one that `now` returns for it. If `now` returns
    /// `None`, the session forgets the table. Call it only between transactions.
    pub fn replace_tables(&mut self, now: impl Fn(&Table) -> Option<Arc<Table>>) {
        self.state.replace_tables(now);
    }

    /// Returns a table that has little room left, if an insert of this session has found one since
    /// this was last called.
    #[inline]
    pub fn take_crowded(&mut self) -> Option<TableId> {
        self.state.sets.crowded.take()
    }

    /// Returns a table that was registered with the session.
    #[must_use]
    pub fn table(&self, id: TableId) -> Option<&Arc<Table>> {
        self.state.sets.tables.get(usize::from(id.0))?.as_ref()
    }

    /// Replaces the reason for which a transaction has stopped by another reason, which is about
    /// the same record.
    pub fn restate(&mut self, stop: Stop) {
        self.state.sets.restate(stop);
    }

    /// Returns whether the session's rings hold a transaction whose outcome or installation is
    /// unknown.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.state.is_in_doubt(&self.lane)
    }

    /// Sets the observer that receives an event for every attempt from now on, and returns the
    /// former observer.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        self.state.tell_committing = observer.as_ref().is_some_and(|observer| observer.wants_committing());
        std::mem::replace(&mut self.state.observer, observer)
    }

    /// Sets the counter of the client's conflicts.
    pub fn count_conflicts(&mut self, counter: Rc<dyn ConflictCounter>) {
        self.state.conflicts = Some(counter);
    }

    /// Makes the session free the locks of recovered clients that it meets, and stop when the lease
    /// of its own client is over.
    pub fn watch_for(&mut self, departed: Rc<dyn Departed>, lease: Rc<Lease>) {
        self.state.departed = Some(departed);
        self.state.lease = lease;
    }

    /// Returns whether snapshots of this session are strictly serializable, and not only the
    /// transactions beside them. They are where all rounds take effect in order, over all nodes
    /// ([`Capabilities::in_order`](remora_fabric::Capabilities::in_order)).
    #[must_use]
    pub fn has_strict_snapshots(&self) -> bool {
        self.state.has_strict_snapshots()
    }

    /// Returns the bytes of the longest log entry of a transaction
    /// ([`Limit::LogEntry`](crate::Limit::LogEntry)).
    #[must_use]
    pub fn log_entry_max(&self) -> usize {
        self.state.log_entry_max()
    }

    /// Returns what the rings say of a transaction of a client that is alive. It is
    /// [`Verdict::Undecided`] as long as they do not tell the outcome. Fails if a node is
    /// unreachable.
    #[inline(never)]
    pub fn look_up(&mut self, id: TransactionId) -> Outlined<impl Future<Output = Result<Verdict, Stop>>> {
        outline(async move {
            // A transaction of this session that was given up may still be on its way.
            let ended = self.state.unsure.contains(&id) && self.lane.background() == 0;
            look_up(&self.lane, &self.state, id, ended).await
        })
    }

    /// Returns the session's lane.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Begins a transaction, which [`Tx::commit`] or [`Tx::abort`] ends. `label` is a number for
    /// its type, for reports.
    pub fn begin(&mut self, label: u16) -> Result<Tx<'_>, Stop> {
        Tx::begin(&self.lane, &mut self.state, Attempt { label, number: 1, is_alone: true, ..Attempt::default() })
    }

    /// Runs a closure as a transaction, and tries it again while it aborts, with growing random
    /// pauses.
    ///
    /// The closure returns `Ok(Ok(value))` to commit, `Ok(Err(error))` to give up for a reason of
    /// its own, and passes on every [`Stop`] that the transaction gives it. A panic in it aborts
    /// the transaction, and resumes when its locks are gone.
    ///
    /// It returns `Ok` when what the closure wants has been done: either the transaction has
    /// committed, or the closure has given up and its reads have been validated. Otherwise it
    /// returns the reason for which the transaction has stopped.
    ///
    /// The compiler makes a copy of this loop for each closure, but only one of the parts of
    /// [`Trial`]. A caller whose closures decide in another way writes its own loop of them.
    pub async fn transact<R, E>(
        &mut self,
        options: TransactOptions,
        mut body: impl AsyncFnMut(&mut Tx<'_>) -> Result<Result<R, E>, Stop>,
    ) -> Result<Result<R, E>, Stop> {
        if self.has_loose() {
            pin!(self.take_back()).await?;
        }
        let mut said = None;
        let mut trial = Trial::begin(options);
        loop {
            let mut tx = self.attempt(&mut trial)?;
            let decision = catch_panic(body(&mut tx)).await.map(|returned| match returned {
                Ok(returned) => {
                    let decision = if returned.is_ok() { Decision::Commit } else { Decision::GiveUp };
                    said = Some(returned);
                    decision
                }
                Err(stop) => tx.stop(stop),
            });
            let settled = pin!(trial.settle(&mut tx, decision)).await;
            match settled {
                Settled::Decided => return Ok(said.expect("a run of the closure has decided the transaction")),
                Settled::Stopped => return Err(tx.stopped()),
                Settled::Again => {}
            }
            drop(tx);
            pin!(self.pause(&trial)).await;
        }
    }

    /// Returns whether dropped transactions have had slots prepared that this session has not taken
    /// back.
    #[must_use]
    pub fn has_loose(&self) -> bool {
        !self.state.loose.is_empty()
    }

    /// Takes back the slots that dropped transactions have had prepared. To hear which slots these
    /// are, the session names the same keys again, and then gives them up. Call it before a trial
    /// if [`Session::has_loose`] returns true. Fails as a fetch does, except that it ignores
    /// aborts.
    #[cold]
    #[inline(never)]
    pub fn take_back(&mut self) -> Outlined<impl Future<Output = Result<(), Stop>>> {
        outline(async move {
            let attempt = Attempt { number: 1, ..Attempt::default() };
            let mut tx = Tx::begin(&self.lane, &mut self.state, attempt)?;
            (tx.silent, tx.preparing) = (true, true);
            let named = tx.state.loose.len().min(SET_MAX);
            for (table, key) in tx.state.loose.drain(..named).collect::<Vec<_>>() {
                let slot =
                    tx.state.sets.want_here(table, &key, (Intent::Insert, Part::Whole), tx.state.spec.execute)?;
                // The key stays loose until the answer has been heard, even if this future is
                // dropped before it has asked.
                let number = tx.state.sets.number(slot)?;
                tx.state.sets.items[number].loose = true;
            }
            // If a slot is locked, the insert of another transaction is filling it, and will keep
            // it or take it back.
            let result = match tx.fetch().await {
                Ok(()) | Err(Stop::Abort(_)) => Ok(()),
                Err(stop) => Err(stop),
            };
            tx.release_and_wait().await;
            tx.end(Outcome::Aborted(Abort::Dropped));
            result
        })
    }

    /// Begins the next attempt of a trial. Fails with [`Limit::Deadline`] if the deadline has
    /// passed.
    #[inline]
    pub fn attempt(&mut self, trial: &mut Trial) -> Result<Tx<'_>, Stop> {
        if trial.is_late(&self.lane) {
            self.state.tried = trial.persistence.tried(trial.attempt.number, &self.lane);
            self.state.give_turns_back(&self.lane, false);
            return Err(Stop::Limit(Limit::Deadline));
        }
        trial.attempt.number = trial.attempt.number.saturating_add(1);
        let tx = Tx::begin(&self.lane, &mut self.state, trial.attempt)?;
        trial.attempt = tx.attempt;
        Ok(tx)
    }

    /// Waits for a short random time before the next attempt of a trial.
    #[inline(never)]
    pub fn pause(&mut self, trial: &Trial) -> Outlined<impl Future<Output = ()>> {
        outline(async move {
            let (lane, persistence) = (&self.lane, &trial.persistence);
            let until = trial.attempt.until;
            let released = self.state.released.holder;
            if persistence.last == Some(Abort::Locked(released)) && !released.is_free() {
                // The holder is this lane's own former transaction, whose unlocks are on their way.
                // So there is no other transaction to make way for.
                while lane.background() > 0 {
                    lane.hurry();
                    lane.sleep(READ_PAUSE_NS).await;
                }
                return;
            }
            let other = persistence.last.and_then(|abort| self.state.other_holder(abort));
            let State { sets, spec, turns, contested, .. } = &mut self.state;
            match persistence.last.and_then(|abort| sets.contested(abort.into(), spec.locks_reads)) {
                Some(name) => {
                    turns.failed(lane, name, other);
                    contested.clear();
                    contested.push(name);
                    // A holder that stays may be dead. To ask for its lock at the usual pace until
                    // it is recovered would only cost other clients time. And two coroutines of a
                    // client, each of which only reads what the other one writes, and locks it, may
                    // meet again and again: chance lets one of them go first.
                    let is_in_step = other.is_none() && trial.attempt.number >= LONELY_ATTEMPTS;
                    let waits = persistence.is_held() || is_in_step;
                    let bound = if waits { persistence.pause(trial.attempt.number) } else { 0 };
                    match self.state.stand_in_line(lane, true, until).await {
                        Stood::Called(batch) => self.state.called_to = Some(batch),
                        Stood::Not | Stood::HasTurns => self.state.turns.pause(lane, bound, until).await,
                        // The next attempt fails, because the deadline has passed.
                        Stood::Late(_) => {}
                    }
                }
                None => lane.sleep(lane.random() % persistence.pause(trial.attempt.number)).await,
            }
        })
    }

    /// Returns whether a past time is in the session's epoch, and not earlier than any commit of
    /// this session, nor than anything that its transactions have read.
    #[must_use]
    pub fn has_seen_nothing_later(&self, past: PastTime) -> bool {
        let is_known = past.epoch == self.state.epoch && !self.is_in_doubt();
        is_known && self.state.clocks.has_seen_nothing_later(past.time)
    }

    /// Returns how often and for how long [`Session::transact`] has tried the last transaction that
    /// it gave up.
    #[must_use]
    pub fn tried(&self) -> Tried {
        self.state.tried
    }

    /// Returns the table and the key of the record for which the last attempt stopped with this
    /// reason. Returns `None` if no record was the reason, or if it is not known.
    #[must_use]
    pub fn culprit(&self, stop: Stop) -> Option<(&Table, Key)> {
        self.state.sets.culprit(stop)
    }

    /// The shared locks of the session's client.
    #[must_use]
    pub fn shared_locks(&self) -> &SharedLocks {
        &self.state.shared
    }

    /// Waits until the memory nodes have applied every redo ring of this lane to its end. Returns
    /// false if a node does not finish within `patience` nanoseconds, or if the rings hold a
    /// transaction in doubt, whose entry must stay. Fails if a node is unreachable.
    #[inline(never)]
    pub fn drain(&mut self, patience: Nanos) -> Outlined<impl Future<Output = Result<bool, Stop>>> {
        outline(async move {
            let deadline = self.lane.now().saturating_add(patience);
            if self.has_loose() {
                self.take_back().await?;
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
                    let is_over = !self.state.is_in_doubt(&self.lane);
                    if is_over && self.state.spec.discipline.is_repairable() {
                        rest(&self.lane, &mut self.state).await?;
                    }
                    if is_over {
                        race::rest(&self.lane, &mut self.state).await?;
                    }
                    return Ok(is_over);
                }
                if self.lane.now() >= deadline {
                    return Ok(false);
                }
                self.lane.hurry();
                self.lane.sleep(20_000).await;
            }
        })
    }
}

impl Session {
    /// Reads the value of a key, and shows it to `visit`. Returns whether the key is there. If it
    /// is, `visit` has been called once.
    pub async fn race_get(&mut self, race: &Arc<Race>, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let Session { lane, state } = self;
        let found = Operation::begin(lane, state, race, key)?.get(visit).await?;
        if state.reads_are_late(lane) {
            return Err(Abort::Late.into());
        }
        Ok(found)
    }

    /// Changes the value of a key. Returns whether the key was there before.
    pub async fn race_put(&mut self, race: &Arc<Race>, key: &[u8], value: &[u8], how: Put) -> Result<bool, Stop> {
        let Session { lane, state } = self;
        Operation::begin(lane, state, race, key)?.put(value, how).await
    }

    /// Deletes a key. Returns whether the key was there.
    pub async fn race_delete(&mut self, race: &Arc<Race>, key: &[u8]) -> Result<bool, Stop> {
        let Session { lane, state } = self;
        Operation::begin(lane, state, race, key)?.delete().await
    }

    /// Splits the subtable that has a key, as an insert does that finds it full. Returns false if
    /// another client has it, or has split it.
    pub async fn race_split(&mut self, race: &Arc<Race>, key: &[u8]) -> Result<bool, Stop> {
        let Session { lane, state } = self;
        Operation::begin(lane, state, race, key)?.split_now().await
    }

    /// Returns whether the session has used a RACE hash table, and has not heard that the table was
    /// dropped. If not, the caller makes sure that the table is there before it uses the table.
    #[inline]
    #[must_use]
    pub fn knows_race(&self, race: &Arc<Race>) -> bool {
        self.state.races.iter().any(|one| one.is_of(race))
    }
}

/// The result of one attempt at a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// What the closure wanted has been done.
    Decided,
    /// The attempt has aborted, and the transaction is to be tried again.
    Again,
    /// The transaction has stopped. [`Tx::stopped`] returns the reason, which is large and needed
    /// rarely.
    Stopped,
}

/// The attempts at one transaction, without the closure. So this part of the loop in
/// [`Session::transact`] is compiled once for all closures.
#[derive(Debug)]
pub struct Trial {
    options: TransactOptions,
    attempt: Attempt,
    persistence: Persistence,
}

impl Trial {
    /// Begins a trial, whose first attempt is yet to come ([`Session::attempt`]).
    #[must_use]
    pub fn begin(options: TransactOptions) -> Trial {
        let until = options.deadline.unwrap_or(Nanos::MAX);
        let is_alone = options.attempts == 1;
        let TransactOptions { label, snapshot, only_reads, .. } = options;
        let only_reads = only_reads || snapshot.is_some();
        let attempt = Attempt { label, until, is_alone, snapshot, only_reads, ..Attempt::default() };
        Trial { options, attempt, persistence: Persistence::default() }
    }

    fn is_late(&self, lane: &Lane) -> bool {
        self.options.deadline.is_some_and(|deadline| lane.now() >= deadline)
    }

    /// Does what the closure of this attempt wants, and ends the attempt. If the closure has
    /// panicked, the panic resumes when the locks are gone.
    #[inline(never)]
    pub fn settle(
        &mut self,
        tx: &mut Tx<'_>,
        decision: thread::Result<Decision>,
    ) -> Outlined<impl Future<Output = Settled>> {
        outline(async move {
            let lane = tx.lane;
            let result = match decision {
                Ok(Decision::Commit | Decision::GiveUp) if self.is_late(lane) => Err(Stop::Limit(Limit::Deadline)),
                Ok(Decision::Commit) => tx.try_commit().await.map(|()| Outcome::Committed),
                Ok(Decision::GiveUp) => tx.validate_only().await.map(|()| Outcome::UserAbort),
                // `combine.rs`, invariant 7.
                Ok(Decision::Stop) | Err(_) if tx.has_records_of_others() => Err(Abort::Changed.into()),
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
            tx.state.give_turns_back(lane, false);
            tx.state.tried = self.persistence.tried(self.attempt.number, lane);
            tx.state.stopped = stop;
            Settled::Stopped
        })
    }
}

/// What one transaction's attempts have met so far, from which the next pause follows.
#[derive(Debug, Default)]
struct Persistence {
    /// When the first attempt aborted. Until then no time is needed.
    since: Option<Nanos>,
    last: Option<Abort>,
    /// Attempts in a row that have met the last holder.
    same_holder: u32,
}

impl Persistence {
    /// Notes that an attempt has aborted, and returns the time since the first abort.
    fn aborted(&mut self, abort: Abort, lane: &Lane) -> Nanos {
        let is_same = matches!(abort, Abort::Locked(_)) && self.last == Some(abort);
        self.same_holder = if is_same { self.same_holder.saturating_add(1) } else { 0 };
        self.last = Some(abort);
        let now = lane.now();
        now - *self.since.get_or_insert(now)
    }

    /// Returns whether the holder of a lock has stayed the same for long.
    fn is_held(&self) -> bool {
        self.same_holder >= SAME_HOLDER
    }

    /// Returns the longest pause before the next attempt. It is longer if the holder of a lock has
    /// stayed the same for long.
    fn pause(&self, attempts: u32) -> Nanos {
        let longer = (self.same_holder / SAME_HOLDER).min(HELD_DOUBLINGS);
        BACKOFF_NS << (attempts.min(BACKOFF_DOUBLINGS) + longer)
    }

    #[cold]
    fn tried(&self, attempts: u32, lane: &Lane) -> Tried {
        Tried { attempts, elapsed: self.since.map_or(0, |since| lane.now() - since), last: self.last }
    }
}
