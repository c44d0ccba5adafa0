//! One attempt of a transaction: the handle that a closure works on.

use std::sync::Arc;

use remora_fabric::{Cost, Execute, Lane, Nanos, Round};
use remora_index::{BucketRef, Location, Probe, Table};
use remora_memory::TableId;
use remora_sync::{FetchedRecord, IMAGE_AT, Key, LockWord, TransactionId, Unstable};

use crate::error::{Abort, Stop};
use crate::event::{Outcome, Phases, TransactionEvent};
use crate::limits::{LOOKUP_ATTEMPTS, READ_ATTEMPTS, READ_PAUSE_NS};
use crate::protocol::Protocol;
use crate::session::State;
use crate::sets::{Fetch, Found, Item, Lock, Sets, Slot, registered};

/// A transaction under way. Made by [`Session::transact`](crate::Session::transact), which also commits it, or by
/// [`Session::begin`](crate::Session::begin).
///
/// Name the records with [`Tx::want`], bring them with [`Tx::fetch`] (one round trip for all of them when their locations
/// are cached), look at them with [`Tx::value`], change them with [`Tx::value_mut`] or [`Tx::write`].
///
/// Dropping it aborts the transaction: before its log has been sent, by releasing every lock it may have; after that,
/// by leaving the installation to be posted when the log has been acknowledged.
#[derive(Debug)]
pub struct Tx<'s> {
    pub(crate) lane: &'s Lane,
    pub(crate) state: &'s mut State,
    pub(crate) id: TransactionId,
    /// The log round, while its answer is awaited.
    pub(crate) logging: Option<Execute<'s>>,
    pub(crate) phases: Phases,
    pub(crate) cost_before: Cost,
    pub(crate) began: Nanos,
    pub(crate) attempt: Attempt,
    pub(crate) finished: bool,
    /// Whether it may hold a lock that nobody else will release.
    pub(crate) locking: bool,
}

/// Which attempt of which transaction it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) label: u16,
    /// 1 for the first.
    pub(crate) number: u32,
    /// When the first attempt began; of the first itself 0 until it has begun.
    pub(crate) first_began: Nanos,
}

impl<'s> Tx<'s> {
    pub(crate) fn begin(lane: &'s Lane, state: &'s mut State, mut attempt: Attempt) -> Result<Tx<'s>, Stop> {
        let id = state.next_id()?;
        state.sets.clear();
        let began = if state.observer.is_some() { lane.now() } else { 0 };
        if attempt.number == 1 {
            attempt.first_began = began;
        }
        let (phases, cost_before) = (Phases::default(), lane.cost());
        Ok(Tx { lane, state, id, logging: None, phases, cost_before, began, attempt, finished: false, locking: false })
    }

    /// The id of this attempt.
    #[must_use]
    pub fn id(&self) -> TransactionId {
        self.id
    }

    /// Makes a table known to the session, if it is not yet. Transactions name it by its id.
    #[inline]
    pub fn register(&mut self, table: &Arc<Table>) {
        if !self.state.sets.knows(table.id()) {
            self.state.sets.register(table.clone());
        }
    }

    /// Names a record, to be brought by the next [`Tx::fetch`]. Naming it again gives the same slot.
    #[inline]
    pub fn want(&mut self, table: TableId, key: &Key) -> Result<Slot, Stop> {
        self.state.sets.want(table, key)
    }

    /// The record's value, if its key is there. Only after [`Tx::fetch`]. Own writes are seen.
    #[inline]
    #[must_use]
    pub fn value(&self, slot: Slot) -> Option<&[u8]> {
        self.state.sets.value(slot)
    }

    /// The record's value to be changed in place, if its key is there; the record is then written by the commit.
    #[inline]
    #[must_use]
    pub fn value_mut(&mut self, slot: Slot) -> Option<&mut [u8]> {
        self.state.sets.value_mut(slot)
    }

    /// Replaces the record's value. It must have been fetched, and be there.
    pub fn write(&mut self, slot: Slot, value: &[u8]) -> Result<(), Stop> {
        let item = self.state.sets.item(slot);
        if !matches!(item.fetch, Fetch::Here) || !item.present {
            return Err(Stop::Absent);
        }
        self.state.sets.write(slot, value)
    }

    /// Brings every record that was named and is not here yet.
    pub async fn fetch(&mut self) -> Result<(), Stop> {
        let mut waits = 0;
        while self.state.sets.fetched < self.state.sets.items.len() {
            let mut round = self.lane.round();
            self.ask(&mut round);
            let done = self.lane.execute(round).await?;
            let mut unstable = None;
            for index in self.state.sets.fetched..self.state.sets.items.len() {
                let item = &self.state.sets.items[index];
                match item.fetch {
                    _ if !item.asked => {}
                    Fetch::Probe(bucket, from_slot) => {
                        let read = item.read;
                        self.found_bucket(index, bucket, from_slot, done.words(read));
                    }
                    Fetch::Record(found) => {
                        let read = item.read;
                        if let Err(why) = self.found_record(index, found, done.words(read))? {
                            unstable = Some(why);
                        }
                    }
                    Fetch::Here | Fetch::Absent => {}
                }
            }
            drop(done);
            let sets = &mut self.state.sets;
            let here = |item: &Item| matches!(item.fetch, Fetch::Here | Fetch::Absent);
            while sets.items.get(sets.fetched).is_some_and(here) {
                sets.fetched += 1;
            }
            if let Some(why) = unstable {
                waits += 1;
                if waits == READ_ATTEMPTS {
                    return Err(Stop::Abort(why));
                }
                self.lane.sleep(READ_PAUSE_NS).await;
            }
        }
        Ok(())
    }

    /// Adds what the next round reads: as much as fits.
    #[inline]
    fn ask(&mut self, round: &mut Round<'_>) {
        let sets = &mut self.state.sets;
        for index in sets.fetched..sets.items.len() {
            let bytes = match sets.items[index].fetch {
                Fetch::Probe(..) => BucketRef::BYTES,
                Fetch::Record(_) => sets.table(sets.items[index].table).shape().record_bytes(),
                Fetch::Here | Fetch::Absent => continue,
            };
            let item = &mut sets.items[index];
            item.asked = round.has_room(1, bytes);
            if item.asked {
                item.read = round.read(item.address, bytes);
            }
        }
    }

    /// A bucket of the index has arrived.
    fn found_bucket(&mut self, index: usize, bucket: BucketRef, from_slot: usize, words: &[u64]) {
        let sets = &mut self.state.sets;
        let item = sets.items[index];
        let table = sets.table(item.table);
        let (fetch, location, address) = match table.probe(bucket, words, item.hash, from_slot) {
            Probe::Entry { location, slot } => {
                (Fetch::Record(Found::Probed(bucket, slot)), location, table.primary(location.pointer))
            }
            Probe::Link(offset) => match table.linked(bucket, offset) {
                Some(next) => (Fetch::Probe(next, 0), item.location, table.bucket_address(next)),
                None => (Fetch::Absent, item.location, item.address),
            },
            Probe::Absent => (Fetch::Absent, item.location, item.address),
        };
        let item = &mut sets.items[index];
        (item.fetch, item.location, item.address) = (fetch, location, address);
    }

    /// A record has arrived: keeps it, sends the item back to the index, or says why it must be read again.
    #[inline]
    fn found_record(&mut self, index: usize, found: Found, words: &[u64]) -> Result<Result<(), Abort>, Stop> {
        let unchecked = self.state.protocol == Protocol::Unsynchronized || mutant!(AcceptTorn);
        let Sets { tables, items, arena, .. } = &mut self.state.sets;
        let item = &mut items[index];
        let fetched = FetchedRecord::new(words, registered(tables, item.table).shape());
        let checked = if unchecked { fetched.unchecked().ok_or(Unstable::Torn) } else { fetched.check() };
        let record = match checked {
            Ok(record) if !record.lock().is_free() && !unchecked && !mutant!(AcceptLocked) => {
                // Whole, but its holder may have committed what it has not written back yet.
                return Ok(Err(Abort::Locked(record.lock())));
            }
            Ok(record) => record,
            Err(Unstable::Locked(lock) | Unstable::Invisible(lock)) => return Ok(Err(Abort::Locked(lock))),
            Err(Unstable::Torn) => return Ok(Err(Abort::Torn)),
        };
        if record.has_key(item.key_words(arena)) && record.incarnation() == item.location.incarnation {
            item.keep(arena, &record);
            return Ok(Ok(()));
        }
        self.look_up_again(index, found)
    }

    /// The record at the location that the index or the cache gave is another's.
    #[cold]
    fn look_up_again(&mut self, index: usize, found: Found) -> Result<Result<(), Abort>, Stop> {
        let sets = &mut self.state.sets;
        let item = sets.items[index];
        let table = sets.table(item.table);
        let (bucket, from_slot) = match found {
            Found::Cached => {
                table.forget(item.home, item.hash, item.location);
                (item.home, 0)
            }
            Found::Probed(bucket, slot) => (bucket, slot + 1),
        };
        let address = table.bucket_address(bucket);
        let item = &mut sets.items[index];
        (item.fetch, item.address) = (Fetch::Probe(bucket, from_slot), address);
        item.location = Location { pointer: Default::default(), incarnation: 0 };
        item.lookups += 1;
        if item.lookups > LOOKUP_ATTEMPTS { Err(Abort::Changed.into()) } else { Ok(Ok(())) }
    }

    /// Commits. The outcome is decided when this returns: committed, or [`Stop::Unknown`], or no trace of it is left. Not
    /// tried again; see [`Session::transact`](crate::Session::transact) for that.
    pub async fn commit(mut self) -> Result<(), Stop> {
        let result = self.try_commit().await;
        self.end(result.map_or_else(Outcome::from, |()| Outcome::Committed));
        result
    }

    /// Gives it up; returns when its locks are gone. Dropping it does the same in the background.
    pub async fn abort(mut self) {
        self.release_and_wait().await;
        self.end(Outcome::Aborted(Abort::Dropped));
    }

    pub(crate) async fn try_commit(&mut self) -> Result<(), Stop> {
        self.fetch().await?;
        self.mark(|phases, now| phases.executed = now);
        self.state.protocol.commit(self).await
    }

    /// For a transaction that writes nothing after all: its reads must belong together.
    pub(crate) async fn validate_only(&mut self) -> Result<(), Stop> {
        self.fetch().await?;
        self.mark(|phases, now| phases.executed = now);
        self.state.protocol.validate_only(self).await
    }

    /// Notes the time for the report, if anybody listens.
    #[inline]
    pub(crate) fn mark(&mut self, note: impl FnOnce(&mut Phases, Nanos)) {
        if self.state.observer.is_some() && self.state.sample_phases {
            note(&mut self.phases, self.lane.now());
        }
    }

    /// The rounds that release every lock this transaction has or may have. A CAS, so that a lock that was never taken,
    /// and is another's, stays.
    fn release_rounds(&mut self, mut send: impl FnMut(Round<'s>)) {
        if !self.locking {
            return;
        }
        self.locking = false;
        let me = self.id.lock().to_bits();
        let mut round = self.lane.round();
        for item in &mut self.state.sets.items {
            let release_all = mutant!(ReleaseAll) && item.written;
            if item.lock == Lock::No && !release_all {
                continue;
            }
            item.lock = Lock::No;
            if !round.has_room(1, 8) {
                send(std::mem::replace(&mut round, self.lane.round()));
            }
            if release_all {
                round.write_words(item.address, &[LockWord::FREE.to_bits()]);
            } else {
                round.compare_swap(item.address, me, LockWord::FREE.to_bits());
            }
        }
        if !round.is_empty() {
            send(round);
        }
    }

    /// Releases all locks in the background.
    pub(crate) fn release(&mut self) {
        let lane = self.lane;
        self.release_rounds(|round| lane.post(round));
    }

    /// Releases all locks, and returns when they are gone.
    pub(crate) async fn release_and_wait(&mut self) {
        let lane = self.lane;
        let mut under_way = Vec::new();
        self.release_rounds(|round| under_way.push(lane.execute(round)));
        for round in under_way {
            if let Err(error) = round.await {
                tracing::warn!(id = %self.id, %error, "locks could not be released");
            }
        }
    }

    /// The rounds that install the write set at the primaries: data, then the lock; WRITE before CAS is an ordered pair.
    pub(crate) fn install_rounds(&mut self, mut send: impl FnMut(Round<'s>)) {
        let me = self.id.lock().to_bits();
        let mut round = self.lane.round();
        for index in 0..self.state.sets.items.len() {
            let item = &self.state.sets.items[index];
            if !item.written {
                continue;
            }
            let image = self.state.sets.image(item);
            if !round.has_room(2, size_of_val(image) + 8) {
                send(std::mem::replace(&mut round, self.lane.round()));
            }
            if mutant!(UnlockFirst) {
                round.compare_swap(item.address, me, LockWord::FREE.to_bits());
            }
            round.write_words(item.address.plus(IMAGE_AT), image);
            if !mutant!(UnlockFirst) {
                round.compare_swap(item.address, me, LockWord::FREE.to_bits());
            }
        }
        self.locking = false;
        if !round.is_empty() {
            send(round);
        }
    }
}

impl Tx<'_> {
    /// Releases what is still locked, and tells the outcome.
    pub(crate) fn end(&mut self, outcome: Outcome) {
        // Before it is told, so that the cost is whole.
        self.release();
        self.tell(outcome);
    }

    /// The one place where an attempt's end is told.
    fn tell(&mut self, outcome: Outcome) {
        self.finished = true;
        let Some(mut observer) = self.state.observer.take() else { return };
        observer.transaction(&TransactionEvent {
            id: self.id,
            label: self.attempt.label,
            attempt: self.attempt.number,
            outcome,
            began: self.attempt.first_began,
            attempt_began: self.began,
            ended: self.lane.now(),
            cost: self.lane.cost().since(&self.cost_before),
            phases: if self.state.sample_phases { self.phases } else { Phases::default() },
            sets: &self.state.sets,
        });
        self.state.observer = Some(observer);
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        let mut outcome = Outcome::Aborted(Abort::Dropped);
        match self.logging.take() {
            Some(log) => {
                // Decided by the log, whose answer nobody awaits any more.
                let mut rounds = Vec::new();
                self.install_rounds(|round| rounds.push(round));
                log.then_post_all(rounds);
                outcome = Outcome::Unknown;
            }
            None => self.release(),
        }
        if !self.finished {
            self.tell(outcome);
        }
    }
}
