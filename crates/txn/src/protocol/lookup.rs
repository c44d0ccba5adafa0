//! From a key to its record: what the steps of a look-up ask, and what their answers mean.
//!
//! Every item is somewhere on its way from its key to its record ([`Fetch`]). A protocol's
//! execution asks for the next step of all items in one round. So an item whose location is cached,
//! or which is asked of its primary's CPU, takes one round trip.
//!
//! These are the steps in tables whose index the memory nodes maintain. `ford/chain.rs` has those
//! in tables whose index clients change by themselves.
//!
//! # Absent keys
//!
//! That a key is absent is never concluded from the location cache, nor from a tombstone that a
//! stale location led to: only from the index itself. The item keeps what is needed to see later
//! that the key is still absent: the buckets that were read, or, where the primary's CPU has said
//! so, that it has to be asked again. A key that an inserter has had linked and not committed is an
//! absent record with a version, and is validated like any other record.

use remora_fabric::{Completed, Round};
use remora_index::{BucketRef, Location, Probe};
use remora_record::{FetchedRecord, Life, Unstable, Version};

use crate::error::{Abort, Limit, Stop};
use crate::limits::{HOPS_MAX, LOOKUP_ATTEMPTS};
use crate::protocol::spec::FirstRead;
use crate::rpc::{self, CROWDED, Code, LINKED, LINKS_MAX, NEW, PREPARE_REPLY_WORDS, READ_REPLY_WORDS};
use crate::sets::{Fetch, Intent, LocationSource, Place, Sets, Span, registered};
use crate::tx::Tx;

/// What a record's words turned out to be.
pub(crate) enum Examined {
    /// The record of the key that was looked for, kept.
    Kept,
    /// Another key's, or no longer linked.
    Another,
    /// Not to be used now.
    Unstable(Abort),
}

/// Takes the answer of every item that has asked for something in a round, by `arrived`. Returns
/// why some of the answers cannot be used now, if any cannot.
///
/// If an answer stops the transaction, the others are taken all the same: they say which locks have
/// been taken, and which slots have been prepared, that are to be given back.
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
                stop = stop.or(Some(error));
                error
            }
        };
        match why {
            Stop::Abort(Abort::Locked(lock)) => tx.met(index, lock),
            why => tx.state.sets.note(index, why),
        }
    }
    stop.map_or(Ok(unstable), Err)
}

impl Tx<'_> {
    /// Nothing needs to be asked for the items that begin the set.
    pub(crate) fn skip_what_is_here(&mut self) {
        let Sets { items, fetched, .. } = &mut self.state.sets;
        while let Some(item) = items.get_mut(*fetched)
            && matches!(item.fetch, Fetch::Here | Fetch::Absent)
        {
            item.renamed = false;
            *fetched += 1;
        }
    }

    /// A bucket of the index has arrived.
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
        // Kept, should the key turn out not to be there.
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
        (item.fetch, item.location, item.address, item.chain) = (fetch, location, address, chain);
        item.seen |= matches!(fetch, Fetch::Absent);
        item.hops += 1;
        // Longer than any chain: the index is damaged.
        if item.hops > HOPS_MAX { Err(Abort::Changed.into()) } else { Ok(()) }
    }

    /// A record has arrived: keeps it, if it is whole, may be used, and is its key's.
    #[inline]
    pub(crate) fn examine(&mut self, index: usize, words: &[u64]) -> Examined {
        let unchecked = self.state.spec.reads_unchecked || mutant!(AcceptTorn);
        let Sets { tables, items, arena, .. } = &mut self.state.sets;
        let item = &mut items[index];
        let shape = registered(tables, item.table).shape();
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
                // Whole, but its holder may have committed what it has not written back yet.
                return Examined::Unstable(Abort::Locked(record.lock()));
            }
            Ok(record) => record,
            Err(Unstable::Locked(lock) | Unstable::Invisible(lock)) => return Examined::Unstable(Abort::Locked(lock)),
            Err(Unstable::Torn) => return Examined::Unstable(Abort::Torn),
        };
        let its_own = record.has_key(item.key_words(arena)) && record.incarnation() == item.location.incarnation;
        if !its_own || record.is_deleted() {
            return Examined::Another;
        }
        item.keep(arena, &record);
        Examined::Kept
    }

    /// The record at the location that the index or the cache gave is another's: searches on in the
    /// index.
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

    /// The primary's CPU has answered what [`ask_host`] has asked for an item.
    #[inline]
    pub(super) fn host_answered(&mut self, index: usize, reply: &[u64]) -> Result<Examined, Stop> {
        match self.state.sets.items[index].fetch {
            Fetch::Place(Intent::Insert) => self.found_prepared(index, reply),
            Fetch::Place(intent) => self.found_by_call(index, reply, Some(intent)),
            _ => self.found_by_call(index, reply, None),
        }
    }

    /// The primary's CPU has said where the key is, or that it is nowhere.
    fn found_by_call(&mut self, index: usize, reply: &[u64], intent: Option<Intent>) -> Result<Examined, Stop> {
        let sets = &mut self.state.sets;
        let item = &sets.items[index];
        let (&[1, bucket_slot, entry], record) = split_reply(reply, READ_REPLY_WORDS) else {
            return self.absent_by_call(index);
        };
        let Some(location) = registered(&sets.tables, item.table).located(item.home, entry) else {
            return Err(Abort::Changed.into());
        };
        let seen = self.kept_from_call(index, location, record)?;
        // A record that is not there keeps no place: its slot may be another key's by the time this
        // transaction inserts, which therefore asks again. Nor does a record that another
        // transaction has locked: it may be deleted when this one asks again.
        // (Where it is locked before it is read, what is there is known then.)
        let item = &mut self.state.sets.items[index];
        let is_known = item.existed || self.state.spec.locks_reads;
        let keeps_place = matches!(seen, Examined::Kept) && is_known || mutant!(KeepPlace);
        if intent.is_some() && keeps_place {
            item.place = Some(Place { bucket_slot, entry, links: Span::default() });
        }
        Ok(seen)
    }

    /// The primary's CPU has linked a slot for the key, or found it in the index.
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
            // Linked by another inserter, or by an earlier attempt of this client: the client that
            // locks it fills it or takes it back. Also if the transaction stops here, because it
            // has read the key when the key was there: the slot may be its own.
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
        (item.version, _) = Version::from_bits(version);
        Ok(Examined::Kept)
    }

    /// A record that a call has brought: if it was here already, it must be the same.
    fn kept_from_call(&mut self, index: usize, location: Location, record: &[u64]) -> Result<Examined, Stop> {
        let sets = &mut self.state.sets;
        let item = &mut sets.items[index];
        let before = *item;
        let table = registered(&sets.tables, item.table);
        table.learn(item.home, item.hash, location);
        item.location = location;
        item.address = table.primary(location.pointer);
        if before.fetched_before() == Some(true) {
            // Named before, to be read: what was read then must hold still, and values changed
            // since are kept.
            let header = table.shape().validated(record);
            if header.is_none_or(|header| header.version != before.version) || before.location != location {
                return Err(Abort::Changed.into());
            }
            *item = before;
            item.fetch = Fetch::Here;
            return Ok(Examined::Kept);
        }
        match self.examine(index, record) {
            Examined::Another => {
                // Unlinked in between.
                let item = &mut self.state.sets.items[index];
                item.fetch = before.fetch;
                item.lookups += 1;
                if item.lookups > LOOKUP_ATTEMPTS {
                    return Err(Abort::Changed.into());
                }
                Ok(Examined::Unstable(Abort::Changed))
            }
            Examined::Kept if before.fetched_before() == Some(false) && self.state.sets.items[index].existed => {
                Err(Abort::Changed.into())
            }
            Examined::Unstable(why) => {
                // Where it is, is known now, and its holder is about to let go.
                let hybrid = self.state.spec.execute == FirstRead::Hybrid;
                if let (Fetch::Ask, true) = (before.fetch, hybrid) {
                    self.state.sets.items[index].fetch = Fetch::Record(LocationSource::Cached);
                }
                Ok(Examined::Unstable(why))
            }
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

/// Asks the primary's CPU about an item's key.
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

/// The head of a reply and the rest; nothing of a shorter one.
fn split_reply(reply: &[u64], head: usize) -> (&[u64], &[u64]) {
    reply.split_at_checked(head).unwrap_or((&[], &[]))
}
