//! One attempt of a transaction. `Tx` is the handle that a closure works on: it names, fetches,
//! reads and changes records.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use remora_fabric::probes::{self, Phase};
use remora_fabric::{Address, Cost, Execute, Lane, Nanos, NodeId, Outlined, Round, WORD_BYTES, outline};
use remora_index::Table;
use remora_node::{Pointer, TableId, metadata};
use remora_record::{Key, LockWord, Swap, TransactionId};
use zerocopy::IntoBytes;

use crate::combine::{Batch, LeaderOutcome, SharedBatch};
use crate::error::{Abort, Limit, Misuse, Stop};
use crate::event::{Observer, Order, Outcome, Phases, TransactionEvent};
use crate::landing::{PastTime, Raise, Snapshot};
use crate::limits::{LOG_PATIENCE_NS, LOG_PAUSE_NS, READ_ATTEMPTS, READ_PAUSE_NS, SNAPSHOT_READS};
use crate::oracle::Question;
use crate::protocol::{self, spec::Primitive};
use crate::recovery::{Verdict, free_in, undo_in};
use crate::rpc::{Code, timed_key_request};
use crate::sets::{Adopted, Intent, Item, Lock, Part, Sets, Slot, lock_addresses, locks, registered, shape};
use crate::state::State;
use crate::swap::swap_lock;
use crate::turns::Stood;
use crate::words::{Name, Span};

/// One attempt of a transaction, while it runs. [`Session::transact`](crate::Session::transact)
/// makes it and also commits it. [`Session::begin`](crate::Session::begin) makes one that the
/// caller commits.
///
/// Name the records with [`Tx::want`] and bring them with [`Tx::fetch`], which takes one round trip
/// for all of them when their locations are cached. Look at them with [`Tx::value`], and change
/// them with [`Tx::value_mut`] or [`Tx::write`].
///
/// Dropping a `Tx` ends the transaction. If its log has not been sent, the transaction aborts, and
/// every lock that it may have is released in the background. If its log has been sent, the
/// installation follows in the background when the log has been acknowledged.
#[derive(Debug)]
pub struct Tx<'s> {
    pub(crate) lane: &'s Lane,
    pub(crate) state: &'s mut State,
    pub(crate) id: TransactionId,
    /// The log round, while its answer is awaited.
    pub(crate) logging: Option<Execute<'s>>,
    /// Further rounds of a commit that did not fit one, to be sent one after the other.
    pub(crate) unsent: Vec<Round<'s>>,
    /// Words of the transaction's undo entry, once it has one.
    pub(crate) undo_words: usize,
    pub(crate) phases: Phases,
    pub(crate) cost_before: Cost,
    pub(crate) began: Nanos,
    pub(crate) attempt: Attempt,
    pub(crate) finished: bool,
    /// Whether execution has ended.
    executed: bool,
    /// Whether the transaction may hold a lock that only it will release.
    pub(crate) locking: bool,
    /// Whether the transaction may have had a slot linked that only it will take back.
    pub(crate) preparing: bool,
    /// Whether the transaction has taken a lock over from the lane's last transaction, whose
    /// release may be under way.
    pub(crate) heir: bool,
    /// Whether a round of a fetch was posted whose answer this transaction has not heard. The round
    /// is under way, or its future was dropped, or it has failed. Then its effects are unknown, and
    /// its handles are invalid.
    pub(crate) unheard: bool,
    /// Whether the transaction may have had a leaf locked by its CPU, for a change.
    pub(crate) took_leaf: bool,
    /// The call that takes a TAKE back whose answer this transaction has not heard, and the node.
    pub(crate) taking: Option<(NodeId, Vec<u64>)>,
    /// The batch of whose records the transaction is made, if it is a member of one.
    member_of: Option<SharedBatch>,
    /// Whether the transaction has records from a batch and has not joined it. If it never does, it
    /// has to commit by itself.
    is_unfit: bool,
    /// Whether the transaction has joined the batch, and has not heard the outcome.
    has_joined: bool,
    /// The batch that commits with this transaction, if it leads one.
    leads: Option<SharedBatch>,
    /// Whether the program has asked for the id of this attempt.
    is_id_known: Cell<bool>,
    /// In timed tables: the time of the commit, once it is known.
    pub(crate) time: u64,
    /// In timed tables: whether the time is fixed early, before the validation (`landing.rs`).
    pub(crate) is_early: bool,
    /// Whether a snapshot claims what is known of clocks, without verbs.
    pub(crate) trusts_known: bool,
    /// Whether the transaction has read what a record was before.
    pub(crate) went_back: bool,
    /// The time of the snapshot, once it is known, if the transaction reads one.
    pub(crate) snapshot: Option<u64>,
    /// Whether observers get no event of this transaction, because the session runs it for itself
    /// and not for a program.
    pub(crate) silent: bool,
}

/// A cell of a record that an attempt has fetched, as [`Tx::fetch_cell`] returns it. It is valid
/// for that attempt.
#[derive(Clone, Copy, Debug)]
pub struct FetchedCell(Span);

/// The attempt that this is, of a transaction of this type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) label: u16,
    /// The number of the attempt: 1 for the first one.
    pub(crate) number: u32,
    /// When the first attempt began; 0 in the first attempt until it has begun.
    pub(crate) first_began: Nanos,
    /// The deadline. It is [`Nanos::MAX`] if there is none.
    pub(crate) until: Nanos,
    /// Whether the transaction joins no batch, because it is not tried again if it cannot.
    pub(crate) is_alone: bool,
    /// The snapshot that the transaction reads, if it only reads, and in one.
    pub(crate) snapshot: Option<Snapshot>,
    /// Whether the transaction only reads.
    pub(crate) only_reads: bool,
}

impl Attempt {
    /// Returns whether the transaction reads all records as they were at a past time.
    pub(crate) fn reads_past(&self) -> bool {
        matches!(self.snapshot, Some(Snapshot::At(_)))
    }
}

impl Default for Attempt {
    fn default() -> Attempt {
        let until = Nanos::MAX;
        Attempt { label: 0, number: 0, first_began: 0, until, is_alone: false, snapshot: None, only_reads: false }
    }
}

/// What the closure of a transaction wants, after one run of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// The closure wants to commit.
    Commit,
    /// The closure wants to give the transaction up, once its reads have been validated.
    GiveUp,
    /// The closure has no wish, because the transaction has stopped it. [`Tx::stop`] makes this
    /// decision.
    Stop,
}

/// How often, and since when, a fetch has waited for records that could not be used.
#[derive(Default)]
pub(crate) struct Waiting {
    times: u32,
    since: Option<Nanos>,
}

/// How often clocks that run on are raised again before a snapshot is opened at a time that they
/// have reached.
const RAISED_AGAIN: u32 = 4;

impl<'s> Tx<'s> {
    pub(crate) fn begin(lane: &'s Lane, state: &'s mut State, mut attempt: Attempt) -> Result<Tx<'s>, Stop> {
        if attempt.snapshot.is_some() {
            if !state.protocol.has_snapshots() {
                return Err(Misuse::NoSnapshots.into());
            }
            state.clocks.begin_snapshot();
        }
        if attempt.number <= 1 {
            state.seen.clear();
            state.seen_time = 0;
        }
        let (trusts_known, snapshot) = match attempt.snapshot {
            None => (false, None),
            Some(Snapshot::Strict) if !state.has_strict_snapshots() => return Err(Misuse::NoSnapshots.into()),
            // If that is too early, the closure runs again.
            Some(Snapshot::Fresh | Snapshot::Strict) => {
                let may_trust = !attempt.is_alone && state.protocol.trusts_known_clocks();
                (may_trust && state.clocks.trusts_known(), None)
            }
            Some(Snapshot::At(_)) if !state.protocol.has_open_snapshots() => return Err(Misuse::NoOpenSnapshots.into()),
            Some(Snapshot::At(past)) if past.epoch < state.epoch => return Err(Limit::SnapshotOver.into()),
            // The session has not heard of that epoch yet.
            Some(Snapshot::At(past)) if past.epoch > state.epoch => return Err(Stop::Fenced),
            Some(Snapshot::At(past)) => {
                // Who has opened the snapshot has raised all clocks to its time.
                state.clocks.have_reached(past.time);
                (true, Some(past.time))
            }
        };
        let id = state.next_id()?;
        state.sets.begin(id);
        state.repairs.begin();
        let began = if state.observer.is_some() { lane.now() } else { 0 };
        if attempt.number == 1 {
            attempt.first_began = began;
            // What a dropped transaction of this session had.
            state.give_turns_back(lane, false);
            (state.called_to, state.is_alone) = (None, attempt.is_alone);
        }
        let (phases, cost_before) = (Phases::default(), lane.cost());
        Ok(Tx {
            lane,
            state,
            id,
            logging: None,
            unsent: Vec::new(),
            undo_words: 0,
            phases,
            cost_before,
            began,
            attempt,
            finished: false,
            executed: false,
            locking: false,
            preparing: false,
            heir: false,
            unheard: false,
            took_leaf: false,
            taking: None,
            member_of: None,
            is_unfit: false,
            has_joined: false,
            leads: None,
            is_id_known: Cell::new(false),
            time: 0,
            is_early: false,
            trusts_known,
            went_back: false,
            snapshot,
            silent: false,
        })
    }

    /// Returns the bytes of the longest log entry of the transaction
    /// ([`Limit::LogEntry`](crate::Limit::LogEntry)).
    #[must_use]
    pub fn log_entry_max(&self) -> usize {
        self.state.log_entry_max()
    }

    /// Returns the id of this attempt, by which its outcome can be asked for. An attempt whose id
    /// is known commits by itself, and not together with others ([`Turns`](crate::Turns)).
    #[must_use]
    pub fn id(&self) -> TransactionId {
        self.is_id_known.set(true);
        self.id
    }

    /// Returns a number that no other attempt of any client of the cluster has: the bits of the id.
    /// This attempt may still commit together with others, so its outcome cannot be asked for.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.id.to_bits()
    }

    /// Returns whether the program, or members of a batch, have been told the id of this attempt.
    pub(crate) fn is_id_told(&self) -> bool {
        self.is_id_known.get() || self.leads.is_some()
    }

    /// Returns the incarnation of the client that runs the transaction.
    #[must_use]
    pub fn client(&self) -> u32 {
        self.id.owner()
    }

    /// The attempt whose commit decides this one.
    fn decided_by(&self) -> TransactionId {
        self.member_of.as_ref().and_then(SharedBatch::leader).unwrap_or(self.id)
    }

    /// Returns the lane that the transaction runs on. A closure takes the time, random numbers and
    /// pauses from it.
    #[must_use]
    pub fn lane(&self) -> &'s Lane {
        self.lane
    }

    /// Returns how many records the transaction has named so far.
    #[must_use]
    pub fn named(&self) -> usize {
        self.state.sets.items.len()
    }

    /// Returns the id by which transactions of this session name a table, if the table was
    /// registered with the session. If the table has grown, this is the id of the table that it has
    /// grown into.
    #[inline]
    #[must_use]
    pub fn known(&self, table: &Table) -> Option<TableId> {
        self.state.sets.known(table)
    }

    /// Makes a table known to the session, if the session does not know it yet.
    #[inline]
    pub fn register(&mut self, table: &Arc<Table>) {
        if !self.state.sets.knows_this(table) {
            self.state.sets.register(table.clone());
        }
    }

    /// Replaces each table that was registered with the session by the one that `now` returns for
    /// it. If `now` returns `None`, the session forgets the table. Call it only before the
    /// transaction names a record.
    pub fn replace_tables(&mut self, now: impl Fn(&Table) -> Option<Arc<Table>>) {
        debug_assert!(self.state.sets.items.is_empty(), "a transaction replaces tables before it names records");
        self.state.replace_tables(now);
    }

    /// Names a record, which the next [`Tx::fetch`] brings. To name a record again returns the same
    /// slot. Fails if the key does not have the table's width, or if the transaction names too many
    /// records.
    #[inline]
    pub fn want(&mut self, table: TableId, key: &Key) -> Result<Slot, Stop> {
        self.want_for(table, key, Intent::Read)
    }

    /// Names a record, as [`Tx::want`] does, and says what it is wanted for. Take an insert or a
    /// delete in a table whose index the memory nodes maintain. For it, the next [`Tx::fetch`] asks
    /// the CPU of the record's primary, which takes one round trip. For an insert, that CPU links a
    /// slot for the key, which no other transaction sees before the commit.
    #[inline]
    pub fn want_for(&mut self, table: TableId, key: &Key, intent: Intent) -> Result<Slot, Stop> {
        self.want_part(table, key, (intent, Part::Whole))
    }

    /// Names a record, as [`Tx::want_for`] does, and says how much of its value is needed. A record
    /// of which only a part is needed cannot be changed. It may be named again for more; then it
    /// is fetched again, and the transaction aborts if it has changed meanwhile.
    #[inline]
    pub fn want_part(&mut self, table: TableId, key: &Key, purpose: (Intent, Part)) -> Result<Slot, Stop> {
        if purpose.0 != Intent::Read && self.attempt.only_reads {
            return Err(Misuse::ReadOnly.into());
        }
        self.state.sets.want(table, key, purpose, self.state.spec.execute)
    }

    /// Prefetches into the processor's cache what [`Tx::want_part`] looks at for a key. It is worth
    /// its time if several keys are named next.
    #[inline]
    pub fn prefetch(&self, table: TableId, key: &Key) {
        self.state.sets.prefetch(table, key);
    }

    /// Brings a cell of a record whose head has been fetched: one round trip, a READ of the cell
    /// alone. Returns `None` if the record's key is absent, or if its records have no such cell.
    ///
    /// The cell is of the state of the record that the head was of (`remora_record::record`, "Parts
    /// of a value"). If the record has changed since, this fails with [`Abort::Changed`].
    #[inline(never)]
    pub fn fetch_cell(
        &mut self,
        slot: Slot,
        cell: usize,
    ) -> Outlined<impl Future<Output = Result<Option<FetchedCell>, Stop>>> {
        outline(async move {
            let (item, place) = match self.state.sets.cell(slot, cell)? {
                None => return Ok(None),
                Some((_, Some(span))) => return Ok(Some(FetchedCell(span))),
                Some((item, None)) => (*item, self.state.sets.shape(item).cell_place(cell)),
            };
            let Some((at, bytes)) = place else { return Ok(None) };
            let mut round = self.lane.round();
            let read = round.read(Address { offset: item.address.offset + at, ..item.address }, bytes);
            let done = self.lane.execute(round).await?;
            let Sets { tables, arena, .. } = &mut self.state.sets;
            let (words, shape) = (done.words(read), shape(tables, &item));
            let unchecked = self.state.spec.reads_unchecked || mutant!(CellOfAnyState);
            let found =
                if unchecked { words.split_last().map(|(_, cell)| cell) } else { shape.cell_of(words, item.version) };
            let Some(found) = found else { return Err(Abort::Changed.into()) };
            let span = Span { at: arena.len() as u32, words: found.len() as u32 };
            arena.extend_from_slice(found);
            Ok(Some(FetchedCell(span)))
        })
    }

    /// Returns the bytes of a cell that this attempt has fetched.
    #[inline]
    #[must_use]
    pub fn cell(&self, cell: FetchedCell) -> &[u8] {
        self.state.sets.arena.get(cell.0.at as usize..).map_or(&[], |words| {
            let words = &words[..(cell.0.words as usize).min(words.len())];
            words.as_bytes()
        })
    }

    /// Returns a time at which all records can be read from now on ([`Snapshot::At`]): no commit
    /// that lands later has a time that is not above it. It is not earlier than any commit of this
    /// session, nor than anything that the session's transactions have read.
    ///
    /// The transaction must read a fresh snapshot, and have fetched nothing. It takes one round
    /// trip if the clocks are as this session knows them, and otherwise two or more.
    #[inline(never)]
    pub fn open_snapshot(&mut self) -> Outlined<impl Future<Output = Result<PastTime, Stop>>> {
        outline(async move {
            let time = self.raise_clocks(Raise::Opened).await?;
            self.state.clocks.has_opened();
            Ok(PastTime { time, epoch: self.state.epoch })
        })
    }

    /// Raises all clocks far above what they have had, because a table has grown.
    ///
    /// The transaction must read a fresh snapshot, and have fetched nothing.
    #[inline(never)]
    pub fn outdate_snapshots(&mut self) -> Outlined<impl Future<Output = Result<(), Stop>>> {
        outline(async move { self.raise_clocks(Raise::Grown).await.map(drop) })
    }

    /// Raises the clocks of all nodes to one time, and returns it.
    async fn raise_clocks(&mut self, why: Raise) -> Result<u64, Stop> {
        let is_new = self.attempt.snapshot == Some(Snapshot::Fresh) && self.state.sets.items.is_empty();
        let is_possible = match why {
            Raise::Opened => self.state.protocol.has_open_snapshots(),
            Raise::Grown => self.state.protocol.has_clocks(),
        };
        if !is_new || !is_possible {
            return Err(Misuse::NoOpenSnapshots.into());
        }
        let (nodes, epoch) = (self.state.clocks.nodes(), self.state.epoch);
        let mut time = self.state.clocks.time_above(epoch, why);
        for turn in 0..SNAPSHOT_READS {
            let mut round = self.lane.round();
            nodes.iter().for_each(|node| self.state.clocks.claim(&mut round, node, time, false));
            let done = self.lane.execute(round).await?;
            self.state.clocks.claimed(&done);
            drop(done);
            if turn == 0 && self.state.clocks.have_passed(time.saturating_sub(why.ahead())) {
                time = self.state.clocks.time_above(epoch, why).max(time);
            }
            self.state.clocks.drop_below(time);
            let is_reached = self.state.clocks.claims() == usize::from(nodes.count());
            if is_reached || mutant!(PastUnraised) {
                return Ok(time);
            }
            if why == Raise::Opened
                && turn >= RAISED_AGAIN
                && let Some(reached) = self.state.clocks.time_reached(epoch)
            {
                return Ok(reached);
            }
        }
        Err(Abort::Later.into())
    }

    /// Brings every record that was named and has not been fetched yet.
    ///
    /// The caller may drop the future at any time, and the transaction goes on. The next fetch, or
    /// the commit, then asks again for every record whose answer was not heard.
    #[inline(never)]
    pub fn fetch(&mut self) -> Outlined<impl Future<Output = Result<(), Stop>>> {
        outline(async move {
            let follows = self.state.turns.are_taken() && self.attempt.snapshot.is_none();
            if follows && self.follow_others().await? {
                return Ok(());
            }
            self.state.protocol.execute(self).await
        })
    }

    /// Gets the records from a batch, if this attempt has been called to one. Otherwise stands in
    /// line for the records that have one, before anything is fetched. Returns whether it has got
    /// all records.
    #[cold]
    async fn follow_others(&mut self) -> Result<bool, Stop> {
        if self.member_of.is_none() && self.state.called_to.is_none() {
            let State { sets, spec, contested, reads_first, .. } = &mut *self.state;
            sets.contests(spec.locks_reads, *reads_first, contested);
            let (until, may_join) = (self.attempt.until, !self.is_id_known.get());
            match self.state.stand_in_line(self.lane, may_join, until).await {
                Stood::Not => {}
                // An attempt that has its turns has paused already.
                Stood::HasTurns => self.state.turns.pause(self.lane, 0, until).await,
                Stood::Late(name) => {
                    let late = Limit::Deadline.into();
                    self.state.sets.note_named(name, late);
                    return Err(late);
                }
                Stood::Called(batch) => self.state.called_to = Some(batch),
            }
        }
        let called_to = self.state.called_to.take();
        self.state.is_alone |= called_to.is_some() && self.is_id_known.get();
        let Some(batch) = self.member_of.clone().or(called_to.filter(|_| !self.is_id_known.get())) else {
            return Ok(false);
        };
        let adopted = batch.with(|batch| if batch.is_open { self.state.sets.adopt(batch) } else { Adopted::Not });
        if adopted == Adopted::Not {
            self.state.is_alone = true;
            // What it has got from the batch already does not go with what it would fetch.
            return if self.member_of.is_some() { Err(Abort::Changed.into()) } else { Ok(false) };
        }
        (self.member_of, self.is_unfit) = (Some(batch.clone()), true);
        if adopted == Adopted::Some {
            let fetching = batch.fetches();
            self.state.protocol.execute(self).await?;
            drop(fetching);
            if !batch.with(|batch| batch.is_open) {
                return Err(Abort::Changed.into());
            }
            batch.with(|batch| self.state.sets.take_shared(batch));
        }
        Ok(true)
    }

    /// Returns whether the transaction reads records as they were at a past time.
    #[must_use]
    pub fn reads_past(&self) -> bool {
        self.attempt.reads_past()
    }

    /// Returns the table and key that a slot of this attempt was made for.
    #[must_use]
    pub fn name(&self, slot: Slot) -> Option<(&Table, Key)> {
        self.state.sets.name(self.state.sets.number(slot).ok()?)
    }

    /// Returns the table and the key of the record that was the reason of a stop. Returns `None` if
    /// no record was the reason, or if it is not known.
    #[must_use]
    pub fn culprit(&self, stop: Stop) -> Option<(&Table, Key)> {
        self.state.sets.culprit(stop)
    }

    /// Returns the record's value, or `None` if its key is absent. The record must have been
    /// fetched ([`Tx::fetch`]). The transaction sees its own writes.
    #[inline]
    pub fn value(&self, slot: Slot) -> Result<Option<&[u8]>, Stop> {
        self.state.sets.value(slot)
    }

    /// Returns the record's value to be changed in place, or `None` if its key is absent. The
    /// commit then writes the record.
    #[inline]
    pub fn value_mut(&mut self, slot: Slot) -> Result<Option<&mut [u8]>, Stop> {
        self.state.sets.value_mut(slot)
    }

    /// Returns the values of several records to be changed in place, each `None` if its key is
    /// absent. The commit then writes the records. Fails if two slots name the same record.
    pub fn values_mut<const N: usize>(&mut self, slots: [Slot; N]) -> Result<[Option<&mut [u8]>; N], Stop> {
        self.state.sets.values_mut(slots)
    }

    /// Inserts a record with a value of `length` bytes, as [`Tx::insert`] does. Returns the bytes
    /// of the value, which the caller then writes.
    pub fn insert_sized(&mut self, slot: Slot, length: usize) -> Result<&mut [u8], Stop> {
        self.state.sets.insert(slot, length)
    }

    /// Inserts a record. The record must have been named for that and fetched, and its key must be
    /// absent.
    pub fn insert(&mut self, slot: Slot, value: &[u8]) -> Result<(), Stop> {
        self.insert_sized(slot, value.len())?.copy_from_slice(value);
        Ok(())
    }

    /// Moves a record to the larger table that its own table grows into. The record must have been
    /// named to be inserted, and fetched. Returns false if there is nothing to move.
    pub fn relocate(&mut self, slot: Slot) -> Result<bool, Stop> {
        self.state.sets.relocate(slot)
    }

    /// Deletes a record. The record must have been named for that and fetched, and its key must be
    /// present.
    pub fn delete(&mut self, slot: Slot) -> Result<(), Stop> {
        self.state.sets.delete(slot)
    }

    /// Replaces the record's value. The record must have been fetched, and its key must be present.
    pub fn write(&mut self, slot: Slot, value: &[u8]) -> Result<(), Stop> {
        self.state.sets.write(slot, value)
    }

    /// Notes a scan for the observer. The transaction has looked for all keys of a table from
    /// `from` on and before `to`, and has fetched the records of the keys that are present.
    pub fn note_scan(&mut self, table: TableId, from: &[u8], to: Vec<u8>) {
        if self.state.observer.is_some() {
            self.state.sets.scans.push((table, from.to_vec(), to));
        }
    }

    /// Notes why the transaction has stopped its closure, for
    /// [`Trial::settle`](crate::Trial::settle).
    #[cold]
    pub fn stop(&mut self, stop: Stop) -> Decision {
        self.state.stopped = stop;
        Decision::Stop
    }

    /// Returns why the last attempt has stopped.
    #[cold]
    #[must_use]
    pub fn stopped(&self) -> Stop {
        self.state.stopped
    }

    /// Returns whether the attempt has records from a batch of which it is not a part yet.
    pub(crate) fn has_records_of_others(&self) -> bool {
        self.is_unfit
    }

    /// Commits the transaction. If this returns `Ok`, the transaction has committed. If it returns
    /// [`Stop::Unknown`], the transaction may or may not have committed. With every other error it
    /// has left no trace. A transaction that aborts is not tried again;
    /// [`Session::transact`](crate::Session::transact) does that.
    #[inline(never)]
    pub fn commit(mut self) -> Outlined<impl Future<Output = Result<(), Stop>>> {
        outline(async move {
            let result = self.try_commit().await;
            self.end(result.map_or_else(Outcome::from, |()| Outcome::Committed));
            self.state.give_turns_back(self.lane, false);
            result
        })
    }

    /// Gives the transaction up, and returns when its locks are gone. Dropping the `Tx` does the
    /// same in the background.
    #[inline(never)]
    pub fn abort(mut self) -> Outlined<impl Future<Output = ()>> {
        outline(async move {
            self.release_and_wait().await;
            self.end(Outcome::Aborted(Abort::Dropped));
            self.state.give_turns_back(self.lane, false);
        })
    }

    pub(crate) async fn try_commit(&mut self) -> Result<(), Stop> {
        if self.attempt.only_reads && self.state.sets.written > 0 {
            return Err(Misuse::ReadOnly.into());
        }
        if self.member_of.is_some() {
            return self.commit_as_member(true).await;
        }
        if self.state.turns.are_taken() {
            self.make_way()?;
            if self.state.turns.is_followed(self.lane) {
                self.take_others_along().await?;
            }
        }
        let result = self.commit_as_leader().await;
        if let Some(batch) = self.leads.take() {
            batch.with(|batch| batch.time = self.time);
            let culprit = result.err().and_then(|stop| self.state.sets.noted(stop));
            batch.finish(LeaderOutcome::Known(result, culprit));
        }
        result
    }

    /// Aborts if the transaction would take a lock where another coroutine of its client has its
    /// turn: it has read the record before it wanted to change it, and so has not stood in line.
    #[cold]
    fn make_way(&mut self) -> Result<(), Stop> {
        if self.attempt.is_alone || self.state.is_alone {
            return Ok(());
        }
        let State { sets, turns, reads_first, .. } = &mut *self.state;
        let unlocked = |item: &Item| item.is_written() && item.lock == Lock::No;
        let in_the_way = |item: &Item| unlocked(item) && turns.is_turn_of_another(self.lane, item.name());
        let Some(at) = sets.items.iter().position(in_the_way) else { return Ok(()) };
        *reads_first = Some(sets.items[at].name());
        sets.note(at, Abort::OutOfTurn.into());
        Err(Abort::OutOfTurn.into())
    }

    /// Forgets that the session reads a record before it changes it, if this transaction has only
    /// read it.
    fn learn_from_reads(&mut self) {
        let State { sets, reads_first, .. } = &mut *self.state;
        let is_only_read = |name: &mut Name| sets.items.iter().any(|item| item.name() == *name && !item.is_written());
        let _only_read = reads_first.take_if(is_only_read);
    }

    /// Aborts if the transaction inserts into a table that grows, and a client may insert into the
    /// larger one already. The transaction has all its locks. The rules of growth are in `remora`'s
    /// `cluster/growth.rs`.
    pub(crate) async fn hear_of_growth(&mut self) -> Result<(), Stop> {
        let mut inserts: Vec<_> = self.state.sets.inserts_into_smaller().collect();
        inserts.dedup_by_key(|(_, smaller, _)| *smaller);
        let leader = self.state.nodes.leader();
        for (item, smaller, larger) in inserts {
            let mut round = self.lane.round();
            let words = metadata::growth_words(leader, larger).map(|word| round.read(word, WORD_BYTES));
            let done = self.lane.execute(round).await?;
            let is_filling = words.iter().any(|word| metadata::is_filling(done.words(*word)[0], smaller));
            if is_filling && !mutant!(InsertUnheard) {
                drop(done);
                self.state.sets.note(item, Abort::Changed.into());
                return Err(Abort::Changed.into());
            }
        }
        Ok(())
    }

    /// Lets coroutines that stand in line for the same records join this transaction. `combine.rs`
    /// says more.
    #[cold]
    async fn take_others_along(&mut self) -> Result<(), Stop> {
        let may_bring = self.state.members_bring();
        let State { sets, turns, .. } = &mut *self.state;
        if sets.written == 0 {
            return Ok(());
        }
        let batch = turns.batch();
        batch.open(self.id);
        batch.with(|batch| sets.offer(batch, may_bring));
        if !turns.call(self.lane, &batch) {
            return Ok(());
        }
        self.leads = Some(batch);
        // Each coroutine runs once in a turn of the worker, in the order of lanes. So after two
        // turns all have run.
        self.lane.yield_now().await;
        self.lane.yield_now().await;
        self.await_fetches().await;
        // If a member has given the batch up, because this coroutine has not run for long, all
        // members have that outcome, whatever becomes of this transaction.
        self.leads.take_if(|batch| batch.with(|batch| !std::mem::take(&mut batch.is_open)));
        let sets = &mut self.state.sets;
        self.leads.as_ref().map_or(Ok(()), |batch| batch.with(|batch| sets.gather(batch)))
    }

    /// Waits while members of the batch fetch records that it does not have, for as long as an
    /// attempt takes.
    async fn await_fetches(&self) {
        let Some(batch) = &self.leads else { return };
        let began = self.lane.now();
        let give_up = self.attempt.until.min(began + self.state.turns.attempt_takes(self.lane));
        poll_fn(|context| {
            if !batch.is_fetching(context.waker()) || self.lane.now() >= give_up {
                return Poll::Ready(());
            }
            self.state.turns.look_again(self.lane, give_up, context);
            Poll::Pending
        })
        .await;
        self.state.turns.leave_out(self.lane, self.lane.now() - began);
    }

    /// Waits for the outcome of the leader's commit, but not without end: a program may keep the
    /// leader's coroutine from running, and even have it wait for this one.
    async fn outcome_of(&self, batch: &SharedBatch) -> LeaderOutcome {
        let give_up = self.lane.now() + LOG_PATIENCE_NS;
        let mut place = None;
        poll_fn(|context| {
            if let Some(outcome) = batch.look(context.waker(), &mut place) {
                return Poll::Ready(outcome);
            }
            if self.lane.now() < give_up {
                self.state.turns.look_again(self.lane, give_up, context);
                return Poll::Pending;
            }
            Poll::Ready(batch.give_up())
        })
        .await
    }

    /// Joins the batch with what this transaction has changed, if it `writes`, and returns the
    /// outcome of the leader's commit.
    #[cold]
    async fn commit_as_member(&mut self, writes: bool) -> Result<(), Stop> {
        self.executed();
        let Some(batch) = self.member_of.clone() else { return Ok(()) };
        let sets = &mut self.state.sets;
        let is_known = self.is_id_known.get();
        let join = |batch: &mut Batch| sets.adopt(batch) == Adopted::All && sets.join(batch, writes);
        if is_known || !batch.with(join) {
            return Err(Abort::Changed.into());
        }
        self.is_unfit = false;
        self.has_joined = true;
        if writes && self.state.sets.written > 0 {
            self.committing();
        }
        let outcome = if mutant!(MembersReportEarly) {
            LeaderOutcome::Known(Ok(()), None)
        } else {
            self.outcome_of(&batch).await
        };
        let result = match outcome {
            LeaderOutcome::Known(result, culprit) => {
                if let (Err(stop), Some(name)) = (result, culprit) {
                    self.state.sets.note_named(name, stop);
                    // Others are not to abort again because of what this one brings along.
                    self.state.is_alone |= self.state.sets.has_brought(name);
                }
                result.map_err(|stop| match stop {
                    Stop::Abort(_) | Stop::Unknown(_) => stop,
                    // Another reason may be the leader's alone, such as a limit of its lane.
                    _ => Abort::Dropped.into(),
                })
            }
            LeaderOutcome::Left => self.find_out(self.decided_by()).await,
        };
        if result.is_ok() {
            match batch.with(|batch| batch.time) {
                0 => self.state.clocks.misses_own(),
                time => self.state.clocks.has_read(time),
            }
        }
        self.has_joined = false;
        result
    }

    /// Returns the outcome of the transaction with this id, of this client, whose log is on its
    /// way.
    #[cold]
    async fn find_out(&self, id: TransactionId) -> Result<(), Stop> {
        let give_up = self.lane.now() + LOG_PATIENCE_NS;
        while self.lane.now() < give_up {
            match protocol::look_up(self.lane, self.state, id, false).await {
                Ok(Verdict::Committed) => return Ok(()),
                Ok(Verdict::Aborted) => return Err(Abort::Dropped.into()),
                Ok(Verdict::Undecided) => self.lane.sleep(LOG_PAUSE_NS).await,
                Ok(Verdict::Forgotten) | Err(_) => break,
            }
        }
        Err(Stop::Unknown(id))
    }

    async fn commit_as_leader(&mut self) -> Result<(), Stop> {
        if !self.state.sets.edits.is_empty() && self.state.sets.lone_edit().is_none() {
            self.state.sets.fetch_edited();
        }
        self.state.protocol.execute(self).await?;
        self.executed();
        self.state.protocol.commit(self).await?;
        // A transaction that writes is not late: all participants have acknowledged what it wrote.
        let writes = |sets: &Sets| sets.items.iter().any(Item::is_written);
        if self.state.reads_are_late(self.lane) && !writes(&self.state.sets) {
            return Err(Abort::Late.into());
        }
        Ok(())
    }

    /// Validates that all reads belong together, for a transaction that gives up what it meant to
    /// write.
    pub(crate) async fn validate_only(&mut self) -> Result<(), Stop> {
        if self.member_of.is_some() {
            return self.commit_as_member(false).await;
        }
        self.state.protocol.execute(self).await?;
        self.executed();
        self.state.protocol.validate(self).await?;
        if self.state.reads_are_late(self.lane) { Err(Abort::Late.into()) } else { Ok(()) }
    }

    /// Notes that execution has ended.
    fn executed(&mut self) {
        self.mark(|phases, now| phases.executed = now);
        self.executed = true;
        self.lane.work(Phase::Execution, self.state.sets.items.len());
    }

    /// Notes that validation has ended.
    pub(crate) fn validated(&mut self) {
        self.mark(|phases, now| phases.validated = now);
        self.lane.work(Phase::Validation, self.state.sets.items.len());
    }

    /// Notes that every participant has acknowledged the log.
    pub(crate) fn logged(&mut self) {
        self.mark(|phases, now| phases.logged = now);
        self.lane.work(Phase::Logging, self.state.sets.written);
        self.lane.probe(probes::LOGGED);
    }

    /// Notes that the installation of the write set has been posted.
    pub(crate) fn installed(&mut self) {
        self.lane.work(Phase::Commit, self.state.sets.written);
        self.lane.probe(probes::INSTALLED);
    }

    /// Notes the end of a phase, if there is an observer and this attempt notes phases.
    #[inline]
    fn mark(&mut self, note: impl FnOnce(&mut Phases, Nanos)) {
        if self.state.observer.is_some() && self.state.sample_phases {
            note(&mut self.phases, self.lane.now());
        }
    }

    /// Waits a little after a round, if something that it brought cannot be used now. The
    /// [`READ_ATTEMPTS`]th time in a row, aborts instead.
    pub(crate) async fn wait(&mut self, unstable: Option<Abort>, waiting: &mut Waiting) -> Result<(), Stop> {
        let Some(why) = unstable else {
            if let Some(since) = waiting.since.take() {
                self.mark(|phases, now| phases.waited += now - since);
            }
            return Ok(());
        };
        waiting.times += 1;
        if waiting.times == READ_ATTEMPTS {
            return Err(Stop::Abort(why));
        }
        waiting.since.get_or_insert(self.lane.now());
        self.lane.sleep(READ_PAUSE_NS).await;
        Ok(())
    }

    /// Sends the rounds that release every lock this transaction has or may have. They also take
    /// back the slots that it has had linked and does not use. A lock is released by a CAS of the
    /// transaction's own id. So a lock that was never taken, and is another's, stays.
    fn release_rounds(&mut self, mut send: impl FnMut(Round<'s>)) {
        if self.state.spec.discipline.is_repairable() {
            return protocol::release_rounds(self, send);
        }
        if !self.locking && !self.preparing {
            return;
        }
        self.keep_loose();
        if let Some((node, request)) = self.taking.take() {
            let mut round = self.lane.round();
            round.call(node, &request, None, 0);
            send(round);
        }
        let locking = std::mem::take(&mut self.locking);
        let mut preparing = std::mem::take(&mut self.preparing);
        let me = self.id.lock();
        let mut round = self.lane.round();
        let everywhere = self.locks_backups();
        let stamps = self.state.spec.discipline.stamps_at_release();
        let Sets { tables, items, arena, .. } = &mut self.state.sets;
        for item in items {
            let release_all = mutant!(ReleaseAll) && item.is_written();
            match item.lock {
                Lock::Shared => {
                    item.lock = Lock::No;
                    if !round.has_room(2, 4 * 8) {
                        send(std::mem::replace(&mut round, self.lane.round()));
                    }
                    self.state.shared.leave(item.address, &mut round);
                }
                Lock::MaybeShared => {
                    item.lock = Lock::No;
                    self.state.shared.give_up(item.address, item.asked && item.asks.is_some());
                }
                Lock::Upgrading => {
                    item.lock = Lock::Maybe;
                    self.state.shared.give_up(item.address, true);
                }
                Lock::No | Lock::Maybe | Lock::MaybeByKey | Lock::Unseen | Lock::Held => {}
            }
            if locking && item.lock == Lock::Unseen {
                // The slot may be prepared for another transaction's insert, as in
                // `lock_and_validate`.
                (item.prepared, preparing) = (true, true);
            }
            if preparing && item.prepared {
                continue;
            }
            if !locking || item.lock == Lock::No && !release_all {
                continue;
            }
            if item.lock == Lock::MaybeByKey {
                free_by_key(&mut round, (tables, arena), item, me, self.lane, &mut send);
                continue;
            }
            item.lock = Lock::No;
            let places = lock_addresses(tables, item, everywhere).count();
            if !round.has_room(places, 40 * places) {
                send(std::mem::replace(&mut round, self.lane.round()));
            }
            if release_all {
                round.write_words(item.address, &[me.freed().to_bits()]);
            } else if locks(tables, item) == Primitive::Call {
                let request = [Code::Release.word(0), item.location.pointer.to_bits(), me.to_bits(), self.time];
                // Where a lock may protect a read, its release notes the time of the read.
                let words = if stamps { 4 } else { 3 };
                round.call(item.address.node, &request[..words], None, 0);
            } else {
                for at in lock_addresses(tables, item, everywhere) {
                    swap_lock(&mut round, at, Swap::unlock(me));
                }
            }
        }
        if !round.is_empty() {
            send(round);
        }
        if locking {
            self.lane.probe(probes::RELEASED);
        }
        if preparing {
            self.undo_rounds(send);
        }
    }

    /// Takes back the slots that were linked for inserts which will not happen. It does so under
    /// the record's lock, because another transaction may have found the slot and be inserting the
    /// same key. If another transaction has the lock, these verbs do nothing: that transaction
    /// fills the slot or takes it back. This holds for every holder of the lock, even if it took
    /// the lock for another record, which lay there before.
    fn undo_rounds(&mut self, mut send: impl FnMut(Round<'s>)) {
        let time = self.state.spec.discipline.stamps_at_release().then_some(self.time);
        let me = (self.id.lock(), time);
        let sets = &mut self.state.sets;
        for index in 0..sets.items.len() {
            let item = &mut sets.items[index];
            if !std::mem::take(&mut item.prepared) {
                continue;
            }
            item.lock = Lock::No;
            let item = *item;
            let mut round = self.lane.round();
            undo_in(&mut round, item.address, item.location.pointer, sets.locks(&item), me);
            send(round);
        }
    }

    /// Posts a round that frees locks which this transaction has or may have, in the background. A
    /// lock that the transaction has taken over is not freed before its former holder's release is
    /// done. If that release has failed, the lock stays.
    pub(crate) fn post_release(&self, round: Round<'s>) {
        if !self.heir || mutant!(HeirFreesEarly) {
            self.lane.post(round);
        } else if !self.state.released.has_failed(self.lane) {
            self.state.released.post_behind(self.lane, round);
        }
    }

    /// If this transaction has taken a lock over, waits until the release of the lane's last
    /// transaction has posted its unlocks.
    pub(crate) async fn inherit(&mut self) -> Result<(), Stop> {
        if self.heir {
            self.state.released.until_freed(self.lane).await;
        }
        if self.heir && self.state.released.has_failed(self.lane) {
            return Err(Abort::Locked(self.state.released.holder).into());
        }
        self.heir = false;
        Ok(())
    }

    /// Returns the round that tells the oracle that this transaction's commit is over, if the
    /// oracle may count it as outstanding (`oracle.rs`).
    pub(crate) fn over_at_oracle(&mut self) -> Option<Round<'s>> {
        let (question, commit) = self.state.owed.take()?;
        let mut round = self.lane.round();
        let behind = if question == Question::Install { self.state.behind.names() } else { &[] };
        let request = [&[Code::Oracle.word(question as usize), self.state.epoch, commit], behind].concat();
        round.call(self.state.cache_host(), &request, None, 0);
        Some(round)
    }

    /// Tells the oracle that this transaction's commit is over, unless another request will.
    fn tell_oracle(&mut self) {
        if let Some((Question::Done, commit)) = self.state.owed
            && self.state.time.requests().will_tell(commit)
        {
            self.state.owed = None;
        }
        self.over_at_oracle().into_iter().for_each(|round| self.lane.post(round));
    }

    /// Releases all locks in the background.
    pub(crate) fn release(&mut self) {
        let lane = self.lane;
        if self.state.owed.is_some() {
            self.tell_oracle();
        }
        if !self.heir || mutant!(HeirFreesEarly) {
            return self.release_rounds(|round| lane.post(round));
        }
        let mut rounds = Vec::new();
        self.release_rounds(|round| rounds.push(round));
        rounds.into_iter().for_each(|round| self.post_release(round));
    }

    /// Releases all locks, and returns when they are gone.
    pub(crate) async fn release_and_wait(&mut self) {
        if !mutant!(HeirFreesEarly) && self.inherit().await.is_err() {
            return self.release();
        }
        let lane = self.lane;
        let mut under_way = Vec::new();
        self.release_rounds(|round| under_way.push(lane.execute(round)));
        for round in under_way {
            if let Err(error) = round.await {
                tracing::warn!(id = %self.id, %error, "locks could not be released");
            }
        }
    }
}

impl Tx<'_> {
    /// Releases what is still locked, and tells the outcome.
    pub(crate) fn end(&mut self, outcome: Outcome) {
        // The release comes before the event, so that the event has the whole cost.
        self.release();
        self.finish_batch(outcome);
        if matches!(outcome, Outcome::Committed | Outcome::UserAbort) {
            self.learn_from_reads();
            // A member has no lock whose release the next turn would wait for.
            self.state.give_turns_back(self.lane, self.member_of.is_none());
        }
        self.tell(outcome);
    }

    /// Tells the members of the batch that this transaction leads, if it leads one, how it has
    /// ended.
    fn finish_batch(&mut self, outcome: Outcome) {
        let Some(batch) = self.leads.take() else { return };
        batch.finish(match outcome {
            Outcome::Committed | Outcome::UserAbort => LeaderOutcome::Known(Ok(()), None),
            Outcome::Unknown if !mutant!(DroppedLeaderAborts) => LeaderOutcome::Left,
            Outcome::Unknown | Outcome::Aborted(_) | Outcome::Failed(_) => {
                LeaderOutcome::Known(Err(Abort::Dropped.into()), None)
            }
        });
    }

    /// Keeps the keys for which slots may have been linked, if this transaction has not heard which
    /// slots. The session takes them back before its next transaction.
    fn keep_loose(&mut self) {
        let State { sets, loose, .. } = &mut *self.state;
        let Sets { tables, items, arena, .. } = sets;
        for item in items.iter_mut().filter(|item| item.loose) {
            item.loose = false;
            let bytes = usize::from(registered(tables, item.table).entry().spec.layout.key_bytes);
            loose.extend(Key::new(&item.key_words(arena).as_bytes()[..bytes]).map(|key| (item.table, key)));
        }
    }

    /// Goes on after a fetch whose future was dropped, or whose round has failed. Everything that
    /// the round asked for is asked again.
    ///
    /// Locks are given back first, because the answers are lost that say which of them were taken.
    /// Atomics of one endpoint at one node are ordered (contract of a round, rule 1). So the CAS
    /// that unlocks comes after the CAS that may have locked, and before the CAS that will lock
    /// again. A lock that another item of this transaction holds needs none of this, because the
    /// CAS has failed there.
    #[cold]
    pub(crate) async fn forget_unheard(&mut self) -> Result<(), Stop> {
        self.inherit().await?;
        self.unheard = false;
        let me = self.id.lock();
        let mut round = self.lane.round();
        if let Some((node, request)) = self.taking.take() {
            round.call(node, &request, None, 0);
        }
        if self.is_early {
            self.state.clocks.repeat_unheard_draws();
            self.state.backup_locks.clear();
        }
        let everywhere = self.locks_backups();
        let Sets { tables, items, arena, .. } = &mut self.state.sets;
        for index in 0..items.len() {
            if std::mem::take(&mut items[index].asked)
                && items[index].lock == Lock::MaybeShared
                && items[index].asks.is_some()
            {
                // The record is asked for again.
                self.state.shared.doubt(items[index].address);
            }
            if items[index].lock == Lock::MaybeByKey {
                free_by_key(&mut round, (tables, arena), &mut items[index], me, self.lane, |full| self.lane.post(full));
            }
            if items[index].lock != Lock::Maybe {
                continue;
            }
            let address = items[index].address;
            if mutant!(BelieveUnheard) {
                items[index].lock = Lock::Held;
                continue;
            }
            items[index].lock = Lock::No;
            if items.iter().any(|other| other.lock == Lock::Held && other.address == address) {
                continue;
            }
            let places = lock_addresses(tables, &items[index], everywhere).count();
            if !round.has_room(places, 32 * places) {
                self.lane.post(std::mem::replace(&mut round, self.lane.round()));
            }
            for at in lock_addresses(tables, &items[index], everywhere) {
                swap_lock(&mut round, at, Swap::unlock(me));
            }
        }
        self.lane.post(round);
        Ok(())
    }

    /// Notes that a record which this transaction needs is locked by another. If the holder's
    /// client is dead, and everything that it had logged is decided, the lock means nothing. Then
    /// this frees the lock in the background, and the next attempt can have the record.
    #[cold]
    pub(crate) fn met(&mut self, index: usize, lock: LockWord) {
        self.state.sets.note(index, Abort::Locked(lock).into());
        let item = self.state.sets.items[index];
        if lock.repairable().is_some() {
            // A client that meets such a lock for long repairs it (`protocol/rtx/repair.rs`).
            return;
        }
        self.free_if_recovered(lock, |round| {
            if self.state.has_times() {
                self.free_everywhere(round, item.table, item.location.pointer, lock);
            } else {
                free_in(round, item.address, item.location.pointer, self.state.sets.locks(&item), lock);
            }
        });
    }

    /// Notes that a reader of a snapshot has found a lock behind which it has to wait. If it means
    /// nothing any more, frees it, as [`Tx::met`] does.
    #[cold]
    pub(crate) fn met_early(&self, table: TableId, pointer: Pointer, lock: LockWord) {
        self.free_if_recovered(lock, |round| self.free_everywhere(round, table, pointer, lock));
    }

    /// Frees a lock in the background, if its holder's client is dead and recovered.
    fn free_if_recovered(&self, lock: LockWord, free: impl FnOnce(&mut Round<'_>)) {
        let (Some(departed), Some(holder)) = (&self.state.departed, lock.holder()) else { return };
        if !departed.is_recovered(holder.owner()) && !mutant!(FreeForeignLocks) {
            return;
        }
        let mut round = self.lane.round();
        free(&mut round);
        self.lane.post(round);
        tracing::debug!(id = %self.id, %holder, "freed a lock of a dead client");
    }

    /// Adds the verbs that free a lock of a recovered client at all replicas of a record.
    fn free_everywhere(&self, round: &mut Round<'_>, table: TableId, pointer: Pointer, lock: LockWord) {
        for replica in self.state.sets.table(table).replicas(pointer) {
            free_in(round, replica.address(pointer.offset()), pointer, Primitive::OneSided, lock);
        }
    }

    /// Tells the observer, if it wants to know, that the next round can make the transaction
    /// commit. So the observer knows of the transaction even if the client dies.
    #[inline]
    pub(crate) fn committing(&mut self) {
        if self.state.tell_committing {
            self.show(Outcome::Unknown, |observer, event| observer.committing(event));
        }
    }

    /// Emits the event of an attempt's end. No other function does.
    fn tell(&mut self, outcome: Outcome) {
        self.finished = true;
        self.state.is_alone |= self.is_unfit;
        if !self.executed {
            self.lane.work(Phase::Execution, self.state.sets.items.len());
        }
        if matches!(outcome, Outcome::Unknown | Outcome::Aborted(Abort::Dropped))
            && !self.silent
            && self.member_of.is_none()
        {
            self.state.note_unsure(self.id);
        }
        self.show(outcome, |observer, event| observer.transaction(event));
        if self.state.stood.0 > 0 || matches!(outcome, Outcome::Aborted(_)) {
            self.count_conflict(outcome);
        }
        self.state.stood = (0, None);
    }

    /// Tells the client's counter that other transactions have hindered this attempt.
    #[cold]
    fn count_conflict(&self, outcome: Outcome) {
        if let Some(conflicts) = self.state.conflicts.as_ref().filter(|_| !self.silent) {
            conflicts.hindered(&self.event(outcome));
        }
    }

    fn show(&mut self, outcome: Outcome, told: impl FnOnce(&mut dyn Observer, &TransactionEvent<'_>)) {
        let Some(mut observer) = self.state.observer.take_if(|_| !self.silent) else { return };
        told(&mut *observer, &self.event(outcome));
        self.state.observer = Some(observer);
    }

    /// Returns whether the transaction locks what it writes at backups, too (`landing.rs`, 9).
    pub(crate) fn locks_backups(&self) -> bool {
        self.is_early && !self.state.clocks.is_one()
    }

    /// Returns how the transaction is ordered in real time.
    fn order(&self) -> Order {
        match self.attempt.snapshot {
            None | Some(Snapshot::Strict) => Order::Strict,
            Some(Snapshot::Fresh) if self.state.has_strict_snapshots() && !self.went_back => Order::Strict,
            Some(Snapshot::Fresh) if !self.state.spec.stale_snapshots => Order::Fresh,
            Some(_) => Order::Any,
        }
    }

    fn event(&self, outcome: Outcome) -> TransactionEvent<'_> {
        TransactionEvent {
            id: self.id,
            decided_by: self.decided_by(),
            label: self.attempt.label,
            attempt: self.attempt.number,
            outcome,
            began: self.attempt.first_began,
            attempt_began: self.began,
            ended: self.lane.now(),
            cost: self.lane.cost().since(&self.cost_before),
            phases: if self.state.sample_phases { self.phases } else { Phases::default() },
            stood: self.state.stood.0,
            snapshot: self.attempt.snapshot,
            order: self.order(),
            stood_at: self.state.stood.1,
            sets: &self.state.sets,
        }
    }
}

/// Adds to a round the call that takes back the lock of a key's record, which the transaction may
/// have. If the round is full, `send` gets it, and the call is in a new one.
fn free_by_key<'s>(
    round: &mut Round<'s>,
    (tables, arena): (&[Option<Arc<Table>>], &[u64]),
    item: &mut Item,
    me: LockWord,
    lane: &'s Lane,
    send: impl FnOnce(Round<'s>),
) {
    let table = registered(tables, item.table);
    let shard = item.home.shard;
    let (request, words) = timed_key_request(Code::FreeKey, table.shard_id(shard), me.to_bits(), item.key_words(arena));
    item.lock = Lock::No;
    if !round.has_room(1, 8 * (words + 1)) {
        send(std::mem::replace(round, lane.round()));
    }
    round.call(table.shard_replicas(shard)[0].node, &request[..words], None, 0);
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        let mut outcome = Outcome::Aborted(Abort::Dropped);
        if let Some(log) = self.logging.take() {
            // The log decides the outcome, and the program does not await the log's answer any
            // more.
            self.state.protocol.leave(self, log);
            outcome = Outcome::Unknown;
        }
        self.finish_batch(outcome);
        if self.has_joined && !mutant!(DroppedMemberAborts) {
            // The batch has what this transaction has changed, and the leader's commit decides.
            outcome = Outcome::Unknown;
        }
        self.release();
        if !self.finished {
            self.tell(outcome);
            self.state.give_turns_back(self.lane, false);
        }
    }
}
