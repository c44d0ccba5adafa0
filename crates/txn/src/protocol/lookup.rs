//! The way from a key to its record: what each step of a look-up asks a memory node, and what the
//! answers mean.
//!
//! Every item of a transaction's sets notes how far it has come from its key to its record
//! ([`Fetch`]). A protocol's execution asks for the next step of all items in one round. So an item
//! takes one round trip if its location is cached, or if the client asks the primary's CPU.
//!
//! This file has the steps for tables whose index the memory nodes maintain. `ford/chain.rs` has
//! the steps for tables whose index the clients change by themselves.
//!
//! # Absent keys
//!
//! A client concludes that a key is absent only from the index itself, and never from the location
//! cache, nor from a deleted record that a stale location led to. The item keeps what is needed to
//! check later that the key is still absent: the buckets that were read or, if the primary's CPU
//! has said so, that the CPU has to be asked again. If an insert has had a slot linked for the key
//! and has not committed, the record is absent and has a version. It is validated like any other
//! record.
//!
//! With landing clocks, an absent key has a time, too: the bound of the times of deletes which the
//! primary's CPU keeps (`remora_index::cluster_hash`). A client READs it in a further round, once a
//! bucket has shown that the key is absent.

use remora_fabric::{Completed, Round};
use remora_index::{BucketRef, Location, Probe};
use remora_record::{FetchedRecord, Life, Unstable, Version};

use crate::error::{Abort, Limit, Stop};
use crate::limits::{HOPS_MAX, LOOKUP_ATTEMPTS};
use crate::protocol::spec::FirstRead;
use crate::rpc::{self, CROWDED, Code, LINKED, LINKS_MAX, NEW, PREPARE_REPLY_WORDS, READ_REPLY_WORDS};
use crate::sets::{Fetch, Intent, LocationSource, Part, Place, Sets, head, registered};
use crate::tx::{Tx, Waiting};
use crate::words::Span;

/// The result of a look at the words of a record.
pub(crate) enum Examined {
    /// The words are the record of the key that was looked for, and the item has kept them.
    Kept,
    /// The record is another key's, or is no longer linked.
    Another,
    /// The words cannot be used now.
    Unstable(Abort),
}

/// Brings every record that was named and has not been fetched yet. `ask` adds to a round what the
/// items ask for next, and `arrived` takes the answer to one of them.
///
/// The caller may drop the future at any time. The next call then takes back every lock whose
/// answer was not heard, and asks again.
pub(super) async fn bring(
    tx: &mut Tx<'_>,
    ask: impl Fn(&mut Tx<'_>, &mut Round<'_>),
    arrived: impl Fn(&mut Tx<'_>, usize, &Completed<'_>) -> Result<Examined, Stop>,
) -> Result<(), Stop> {
    if tx.unheard {
        Box::pin(tx.forget_unheard()).await?;
    }
    let mut waiting = Waiting::default();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        ask(tx, &mut round);
        tx.unheard = true;
        let done = tx.lane.execute(round).await?;
        tx.unheard = false;
        let unstable = hear(tx, &done, &arrived)?;
        drop(done);
        tx.skip_what_is_here();
        tx.wait(unstable, &mut waiting).await?;
    }
    Ok(())
}

/// Calls `arrived` for every item that has asked for something in a round. Returns the reason if
/// some of the answers cannot be used now.
///
/// If an answer stops the transaction, `arrived` is called for the other items all the same. Their
/// answers say which locks have been taken, and which slots have been prepared, so that the
/// transaction can give them back.
#[inline]
pub(super) fn hear(
    tx: &mut Tx<'_>,
    done: &Completed<'_>,
    arrived: impl Fn(&mut Tx<'_>, usize, &Completed<'_>) -> Result<Examined, Stop>,
) -> Result<Option<Abort>, Stop> {
    let (mut unstable, mut stop) = (None, None);
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        let item = &mut tx.state.sets.items[index];
        if !std::mem::take(&mut item.asked) {
            continue;
        }
        item.loose = false;
        let why = match arrived(tx, index, done) {
            Ok(Examined::Unstable(why)) => {
                unstable = Some(why);
                Stop::Abort(why)
            }
            Ok(Examined::Kept | Examined::Another) => continue,
            Err(error) => {
                stop = stop.or(Some((index, error)));
                error
            }
        };
        match why {
            Stop::Abort(Abort::Locked(lock)) => tx.met(index, lock),
            why => tx.state.sets.note(index, why),
        }
    }
    let Some((index, stop)) = stop else { return Ok(unstable) };
    // Answers behind the one that stops the transaction have noted their records.
    tx.state.sets.note(index, stop);
    Err(stop)
}

impl Tx<'_> {
    /// Notes that the items at the beginning of the set which have been fetched need nothing more.
    pub(crate) fn skip_what_is_here(&mut self) {
        let Sets { items, fetched, .. } = &mut self.state.sets;
        while let Some(item) = items.get_mut(*fetched)
            && matches!(item.fetch, Fetch::Here | Fetch::Absent | Fetch::Shared)
        {
            item.renamed = false;
            *fetched += 1;
        }
    }

    /// Takes a bucket of the index that has arrived, and searches it for the item's key.
    pub(super) fn found_bucket(
        &mut self,
        index: usize,
        bucket: BucketRef,
        from_slot: usize,
        words: &[u64],
    ) -> Result<(), Stop> {
        let sets = &mut self.state.sets;
        let item = sets.items[index];
        let table = registered(&sets.tables, item.table);
        // The bucket is kept for validation, in case the key turns out to be absent.
        let chain = sets.arena.len() as u32 + 1;
        sets.arena.extend([u64::from(item.chain), bucket.shard.into(), bucket.bucket]);
        sets.arena.extend_from_slice(words);
        let absent = (Fetch::Absent, item.location, item.address);
        let (fetch, location, address) = match table.probe(bucket, words, item.hash, from_slot) {
            Probe::Entry { location, slot } => {
                (Fetch::Record(LocationSource::Probed(bucket, slot)), location, table.primary(location.pointer))
            }
            Probe::Link(offset) => match table.linked(bucket, offset) {
                Some(next) => (Fetch::Probe(next, 0), item.location, table.bucket_address(next)),
                None => absent,
            },
            Probe::Absent => absent,
        };
        let item = &mut sets.items[index];
        if matches!(fetch, Fetch::Absent) && item.fetched_before() == Some(true) {
            return Err(Abort::Changed.into());
        }
        (item.fetch, item.location, item.address, item.chain) = (fetch, location, address, chain);
        item.seen |= matches!(fetch, Fetch::Absent);
        item.hops += 1;
        // No chain is this long, so the index is damaged.
        if item.hops > HOPS_MAX { Err(Abort::Changed.into()) } else { Ok(()) }
    }

    /// Takes a record that has arrived. Keeps it if it is whole, may be used, and is the record of
    /// the item's key.
    #[inline]
    pub(crate) fn examine(&mut self, index: usize, words: &[u64]) -> Examined {
        let unchecked = self.state.spec.reads_unchecked || mutant!(AcceptTorn);
        let Sets { tables, items, arena, .. } = &mut self.state.sets;
        let item = &mut items[index];
        let whole = registered(tables, item.table).shape();
        // An answer of the primary's CPU has the whole record, whatever was asked for.
        let head = head(tables, item).filter(|head| size_of_val(words) == head.record_bytes());
        let shape = head.as_ref().unwrap_or(whole);
        let fetched = FetchedRecord::new(words, shape);
        // Under this transaction's own lock, no other client changes it.
        let is_mine = shape.validated(words).is_some_and(|header| header.lock.is_held_by(self.id));
        let checked = match () {
            () if unchecked => fetched.unchecked().ok_or(Unstable::Torn),
            () if is_mine => fetched.check_in_place(),
            () => fetched.check(),
        };
        let record = match checked {
            Ok(record) if record.lock().is_exclusive() && !is_mine && !unchecked && !mutant!(AcceptLocked) => {
                // The record is whole, but the holder of its lock may have committed a value that
                // it has not written back yet.
                return Examined::Unstable(Abort::Locked(record.lock()));
            }
            Ok(record) => record,
            Err(Unstable::Locked(lock) | Unstable::Invisible(lock)) => return Examined::Unstable(Abort::Locked(lock)),
            Err(Unstable::Torn) => return Examined::Unstable(Abort::Torn),
        };
        let its_own = record.has_key(item.key_words(arena)) && record.incarnation() == item.location.incarnation;
        if its_own && record.is_deleted() && !matches!(item.fetch, Fetch::Record(LocationSource::Cached)) {
            let version = record.version();
            return self.met_tombstone(index, version);
        }
        if !its_own || record.is_deleted() {
            return Examined::Another;
        }
        item.keep(arena, &record);
        item.has = if head.is_some() { Part::Head } else { Part::Whole };
        if !self.state.sets.edits.is_empty() && self.state.sets.make_edit(index).is_err() {
            return Examined::Unstable(Abort::Changed);
        }
        Examined::Kept
    }

    /// Handles a deleted record that the index still has. If the primary's CPU unlinks such
    /// records, the client that has deleted it has asked for that, or has died. So this asks for
    /// it, too, and the transaction looks for the key again.
    #[cold]
    fn met_tombstone(&mut self, index: usize, version: Version) -> Examined {
        let item = self.state.sets.items[index];
        let table = self.state.sets.table(item.table);
        if !table.entry().spec.discipline.unlinks_by_cpu() {
            return Examined::Another;
        }
        let mut round = self.lane.round();
        let free = [Code::Free.word(0), item.location.pointer.to_bits(), version.to_bits()];
        round.call(item.address.node, &free, None, 0);
        self.lane.post(round);
        if matches!(item.fetch, Fetch::Record(_)) {
            let (fetch, address) = (Fetch::Probe(item.home, 0), table.bucket_address(item.home));
            let item = &mut self.state.sets.items[index];
            (item.fetch, item.address, item.chain) = (fetch, address, 0);
        }
        Examined::Unstable(Abort::Changed)
    }

    /// Searches on in the index, because the record at the location that the index or the cache
    /// gave is another key's.
    #[cold]
    pub(super) fn look_up_again(&mut self, index: usize, found: LocationSource) -> Result<(), Stop> {
        let sets = &mut self.state.sets;
        let item = sets.items[index];
        let table = registered(&sets.tables, item.table);
        let ask = self.state.spec.execute == FirstRead::Hybrid;
        let (fetch, restarts) = match found {
            LocationSource::Cached => {
                table.forget(item.home, item.hash, item.location);
                (if ask { Fetch::Ask } else { Fetch::Probe(item.home, 0) }, 1)
            }
            LocationSource::Probed(bucket, slot) => (Fetch::Probe(bucket, slot + 1), 0),
        };
        if let Fetch::Probe(bucket, _) = fetch {
            sets.items[index].address = table.bucket_address(bucket);
        }
        let item = &mut sets.items[index];
        item.fetch = fetch;
        item.collided |= matches!(found, LocationSource::Probed(..));
        item.location = Location::default();
        item.lookups += restarts;
        if item.lookups > LOOKUP_ATTEMPTS { Err(Abort::Changed.into()) } else { Ok(()) }
    }

    /// Takes the answer of the primary's CPU to the question that [`ask_host`] has asked for an
    /// item.
    #[inline]
    pub(super) fn host_answered(&mut self, index: usize, reply: &[u64]) -> Result<Examined, Stop> {
        match self.state.sets.items[index].fetch {
            Fetch::Place(Intent::Insert) => self.found_prepared(index, reply),
            Fetch::Place(intent) => self.found_by_call(index, reply, Some(intent)),
            _ => self.found_by_call(index, reply, None),
        }
    }

    /// Takes the answer of the primary's CPU that says where the key is, or that the key is absent.
    fn found_by_call(&mut self, index: usize, reply: &[u64], intent: Option<Intent>) -> Result<Examined, Stop> {
        let sets = &mut self.state.sets;
        let item = sets.items[index];
        let (&[1, bucket_slot, entry], record) = split_reply(reply, READ_REPLY_WORDS) else {
            if let &[0, gone] = reply {
                let time = &mut sets.items[index].time;
                *time = gone.max(*time); // from then on the key has been absent
            }
            return self.absent_by_call(index);
        };
        let Some(location) = registered(&sets.tables, item.table).located(item.home, entry) else {
            return Err(Abort::Changed.into());
        };
        let seen = self.kept_from_call(index, location, record)?;
        // The item keeps its place in the index only if its key is present and no other transaction
        // has the record locked. If the key is absent, the slot may belong to another key by the
        // time this transaction inserts. So the transaction asks again. If the record is locked, it
        // may be deleted by the time this transaction asks again. A protocol that locks records
        // before it reads them knows what the record holds, and keeps the place.
        let item = &mut self.state.sets.items[index];
        let is_known = item.existed || self.state.spec.locks_reads;
        let keeps_place = matches!(seen, Examined::Kept) && is_known || mutant!(KeepPlace);
        if intent.is_some() && keeps_place {
            item.place = Some(Place { bucket_slot, entry, links: Span::default() });
        }
        Ok(seen)
    }

    /// Takes the answer of the primary's CPU that it has linked a slot for the key, or found the
    /// key in the index.
    fn found_prepared(&mut self, index: usize, reply: &[u64]) -> Result<Examined, Stop> {
        let sets = &mut self.state.sets;
        let item = &mut sets.items[index];
        let (&[status, bucket_slot, entry, version], rest) = split_reply(reply, PREPARE_REPLY_WORDS) else {
            let slots = registered(&sets.tables, item.table).index().slots_in_all();
            return Err(Limit::TableFull { slots }.into());
        };
        let links_words = 2 * (status >> 32) as usize;
        let (Some((links, record)), Some(location)) =
            (rest.split_at_checked(links_words), registered(&sets.tables, item.table).located(item.home, entry))
        else {
            return Err(Abort::Changed.into());
        };
        let at = sets.arena.len() as u32;
        sets.arena.extend_from_slice(links);
        let place = Place { bucket_slot, entry, links: Span { at, words: links_words as u32 } };
        if status & CROWDED != 0 {
            sets.crowded = Some(item.table);
        }
        let outcome = status & u64::from(u32::MAX) & !CROWDED;
        if outcome != NEW {
            debug_assert_eq!(outcome, LINKED);
            let seen = self.kept_from_call(index, location, record);
            let Sets { tables, items, .. } = &mut self.state.sets;
            let item = &mut items[index];
            // Another insert has linked the slot, or an earlier attempt of this client has. The
            // transaction that locks the slot fills it or takes it back. This also holds if the
            // transaction stops here because it has seen the key present before: the slot may be
            // its own.
            item.prepared = match seen {
                Ok(Examined::Kept) => !item.existed,
                Ok(_) => false,
                Err(_) => {
                    let life = registered(tables, item.table).shape().life(record);
                    matches!(life, Some(Life::Prepared { .. }))
                }
            };
            if matches!(seen, Ok(Examined::Kept)) {
                item.place = Some(place);
            }
            return seen;
        }
        item.place = Some(place);
        item.location = location;
        item.address = registered(&sets.tables, item.table).primary(location.pointer);
        item.prepared = true;
        if item.fetched_before() == Some(true) {
            return Err(Abort::Changed.into());
        }
        item.fetch = Fetch::Here;
        item.seen = true;
        item.time = item.time.max(record.first().copied().unwrap_or(0)); // since when the key is absent
        (item.version, _) = Version::from_bits(version);
        Ok(Examined::Kept)
    }

    /// Takes a record that a call has brought. If the item had the record already, both must be the
    /// same.
    fn kept_from_call(&mut self, index: usize, location: Location, record: &[u64]) -> Result<Examined, Stop> {
        let sets = &mut self.state.sets;
        let item = &mut sets.items[index];
        let before = *item;
        let table = registered(&sets.tables, item.table);
        table.learn(item.home, item.hash, location);
        item.location = location;
        item.address = table.primary(location.pointer);
        if before.fetched_before() == Some(true) {
            // The record was named before, to be read. What was read then must still be so, and the
            // item keeps what the transaction has written since.
            let header = table.shape().validated(record);
            if header.is_none_or(|header| header.version != before.version) || before.location != location {
                return Err(Abort::Changed.into());
            }
            if before.has == Part::Whole {
                *item = before;
                item.fetch = Fetch::Here;
                return Ok(Examined::Kept);
            }
        }
        match self.examine(index, record) {
            Examined::Another => {
                // The record was unlinked between the look into the index and the read.
                let item = &mut self.state.sets.items[index];
                item.fetch = before.fetch;
                item.lookups += 1;
                if item.lookups > LOOKUP_ATTEMPTS {
                    return Err(Abort::Changed.into());
                }
                Ok(Examined::Unstable(Abort::Changed))
            }
            Examined::Unstable(why) => {
                // The location is known now, and the holder is about to release the lock. So the
                // next step is a READ.
                let hybrid = self.state.spec.execute == FirstRead::Hybrid;
                if let (Fetch::Ask, true) = (before.fetch, hybrid) {
                    self.state.sets.items[index].fetch = Fetch::Record(LocationSource::Cached);
                }
                Ok(Examined::Unstable(why))
            }
            Examined::Kept if !self.state.sets.items[index].is_as(&before) => Err(Abort::Changed.into()),
            seen => Ok(seen),
        }
    }

    fn absent_by_call(&mut self, index: usize) -> Result<Examined, Stop> {
        let item = &mut self.state.sets.items[index];
        if item.fetched_before() == Some(true) {
            return Err(Abort::Changed.into());
        }
        item.fetch = Fetch::Absent;
        item.seen = true;
        item.chain = 0;
        Ok(Examined::Kept)
    }
}

/// Adds to a round the call that asks the primary's CPU about an item's key.
pub(super) fn ask_host(sets: &mut Sets, index: usize, round: &mut Round<'_>) {
    let item = sets.items[index];
    let table = registered(&sets.tables, item.table);
    let record = table.shape().record_bytes() / 8;
    let (code, reply) = match item.fetch {
        Fetch::Place(Intent::Insert) => (Code::Prepare, PREPARE_REPLY_WORDS + 2 * LINKS_MAX + record),
        _ => (Code::Read, READ_REPLY_WORDS + record),
    };
    let (request, words) = rpc::key_request(code, table.shard_id(item.home.shard), item.key_words(&sets.arena));
    let node = sets.primary_node(&item);
    let item = &mut sets.items[index];
    item.asked = round.has_room(1, (words + 1 + reply) * 8);
    if item.asked {
        item.loose |= code == Code::Prepare;
        item.call = round.call(node, &request[..words], None, reply);
    }
}

/// Splits a reply into its first `head` words and the rest. Both are empty if the reply is shorter.
pub(super) fn split_reply(reply: &[u64], head: usize) -> (&[u64], &[u64]) {
    reply.split_at_checked(head).unwrap_or((&[], &[]))
}
