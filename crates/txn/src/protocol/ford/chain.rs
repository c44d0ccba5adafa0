//! The chain of buckets in which a key's record lies, and how an insert finds a slot in it.

use std::sync::Arc;

use remora_fabric::Address;
use remora_index::{BucketRef, Location, Table};
use remora_node::{Pointer, TableId};
use remora_record::{FetchedRecord, Former, INCARNATION_MASK, Life, LockWord, Version};

use super::Ford;
use super::early::is_pending;
use super::former::go_back;
use super::words::{Outcome, check, is_nobodys, unstable};
use crate::error::{Abort, Limit, Stop};
use crate::limits::HOPS_MAX;
use crate::sets::{Fetch, Intent, Item, LocationSource, Sets, registered};
use crate::tx::Tx;

/// Layout in the arena of a bucket of a chain that was read. The head has 4 words: the place of the
/// bucket before it in the arena + 1, the shard, the bucket's number, the version word of its
/// header. Then each slot has 2 words: its version word, and whether it is vacant (1 or 0).
pub(super) mod link {
    pub(in super::super) const HEAD_WORDS: usize = 4;
    pub(in super::super) const SLOT_WORDS: usize = 2;
}

/// A bucket of the chain of a key, as it was read.
pub(super) struct ChainLink<'a> {
    /// The place of the link in the arena.
    pub(super) place: u64,
    pub(super) bucket: BucketRef,
    /// Version word of the bucket's header.
    pub(super) header: u64,
    pub(super) slots: &'a [u64],
}

/// Returns the buckets of the chain that was read for an item, the last bucket first.
pub(super) fn chain_of<'a>(
    tables: &[Option<Arc<Table>>],
    arena: &'a [u64],
    item: &Item,
) -> impl Iterator<Item = ChainLink<'a>> {
    let fstore = registered(tables, item.table).fstore();
    let mut at = item.chain as usize;
    std::iter::from_fn(move || {
        let place = at.checked_sub(1)?;
        let head = &arena[place..];
        at = head[0] as usize;
        let bucket = BucketRef { shard: head[1] as u16, bucket: head[2] };
        let slots = fstore.map_or(0, |fstore| fstore.slots_of(bucket.bucket)) as usize;
        Some(ChainLink {
            place: place as u64,
            bucket,
            header: head[3],
            slots: &head[link::HEAD_WORDS..][..slots * link::SLOT_WORDS],
        })
    })
}

/// Takes a bucket that has arrived. The key's record is in this bucket, or in a later one of the
/// chain, or nowhere.
pub(super) fn bucket_arrived(
    tx: &mut Tx<'_>,
    index: usize,
    (bucket, from): (BucketRef, usize),
    words: &[u64],
    ford: Ford,
) -> Result<Outcome, Stop> {
    let sets = &tx.state.sets;
    let item = &sets.items[index];
    let table = sets.table(item.table);
    let Some(fstore) = table.fstore() else { return Err(Abort::Changed.into()) };
    let next = match fstore.next(words, table.structural()) {
        Ok(next) => next,
        Err(why) => return Ok(unstable(why)),
    };
    if item.intent == Intent::Insert && bucket == item.home {
        return chain_locked(tx, index, bucket, words, ford);
    }
    search_bucket(tx, index, (bucket, from), words, next, ford)
}

/// Keeps the header of a chain's main bucket, which has arrived with its lock: an insert changes
/// its version.
fn chain_locked(tx: &mut Tx<'_>, index: usize, bucket: BucketRef, words: &[u64], ford: Ford) -> Result<Outcome, Stop> {
    let sets = &mut tx.state.sets;
    let item = sets.items[index];
    let Some(fstore) = sets.table(item.table).fstore().copied() else { return Err(Abort::Changed.into()) };
    let next = fstore.next(words, sets.table(item.table).structural()).unwrap_or(0);
    let header = Pointer::new(sets.table(item.table).shard_id(bucket.shard), fstore.buckets.at(bucket.bucket));
    let header = sets.find_structural(item.table, header);
    let Some(header) = header else { return search_bucket(tx, index, (bucket, 0), words, next, ford) };
    let Sets { tables, items, arena, .. } = sets;
    let structural = registered(tables, item.table).structural();
    let Some(words_of_header) = words.get(..structural.record_bytes() / 8) else { return Err(Abort::Changed.into()) };
    let record = match check(FetchedRecord::new(words_of_header, structural)) {
        Ok(record) => record,
        Err(why) => return Ok(unstable(why)),
    };
    let header = &mut items[header];
    if header.before(arena).is_empty() {
        header.keep(arena, &record);
        header.keep_before(arena, &record);
    }
    search_bucket(tx, index, (bucket, 0), words, next, ford)
}

/// Looks for the key in a bucket. A reader of a past time may have looked already at the record
/// that the key has now. Then `past` is above 0, and it looks at the slots from there on as they
/// were (`former.rs`): at slot `past - 1` next.
fn search_bucket(
    tx: &mut Tx<'_>,
    index: usize,
    (bucket, past): (BucketRef, usize),
    words: &[u64],
    next: u64,
    ford: Ford,
) -> Result<Outcome, Stop> {
    let (released, in_snapshot) = (tx.state.released.holder, tx.attempt.snapshot.is_some());
    let snapshot = tx.snapshot.filter(|_| tx.attempt.reads_past() && !mutant!(PastTakesCurrent));
    let Sets { tables, items, arena, .. } = &mut tx.state.sets;
    let item = &mut items[index];
    let table = registered(tables, item.table);
    let Some(fstore) = table.fstore() else { return Err(Abort::Changed.into()) };
    let entry = arena.len();
    let header = table.structural().validated(words);
    let chain_lock = header.map_or(LockWord::FREE, |header| header.lock);
    let header = header.map_or(Version::default(), |header| header.version);
    arena.extend([u64::from(item.chain), bucket.shard.into(), bucket.bucket, header.to_bits()]);
    let (mut unreadable, mut found) = (None, None);
    let pending = |lock| in_snapshot && is_pending(lock);
    // An insert that fixes its time early has the chain and a slot locked everywhere. One READ may
    // see the slot before it is filled, and the chain after it is unlocked.
    let mut insert = pending(chain_lock).then(|| (fstore.buckets.at(bucket.bucket), chain_lock));
    // If the key is absent, no commit that has changed its chain is later.
    let mut latest = 0;
    // The first slot that has changed since the snapshot.
    let mut changed = None;
    for (slot, fetched) in fstore.slots(words, table.shape()).enumerate() {
        let record = match check(fetched) {
            Ok(record) => record,
            Err(why) => {
                // This record may be the one of the key.
                unreadable = Some(why);
                continue;
            }
        };
        let is_later = snapshot.is_some_and(|snapshot| record.time() > snapshot);
        if is_later && slot + 1 >= past {
            changed = changed.or(Some((slot, record.former())));
        }
        if record.is_present() && record.has_key(item.key_words(arena)) && (past == 0 || !is_later) {
            found = Some((slot as u64, record));
            break;
        }
        if !record.is_present() && pending(record.lock()) && !mutant!(PassEarlySlots) {
            insert = Some((fstore.slot_at(bucket.bucket, slot as u64), record.lock()));
        }
        latest = latest.max(record.time());
        arena.extend([record.version().to_bits(), u64::from(!record.is_present() && record.lock().is_free())]);
    }
    match (found, unreadable) {
        (Some((slot, record)), _) if pending(record.lock()) => {
            arena.truncate(entry);
            let pointer = Pointer::new(table.shard_id(bucket.shard), fstore.slot_at(bucket.bucket, slot));
            let (lock, table) = (record.lock(), item.table);
            tx.met_early(table, pointer, lock);
            return Ok(Outcome::Unstable(Abort::Locked(lock)));
        }
        (None, None) if insert.is_some() => {
            arena.truncate(entry);
            let (offset, lock) = insert.unwrap_or_default();
            let (pointer, table) = (Pointer::new(table.shard_id(bucket.shard), offset), item.table);
            tx.met_early(table, pointer, lock);
            return Ok(Outcome::Unstable(Abort::Locked(lock)));
        }
        (Some((slot, record)), _) if snapshot.is_some_and(|snapshot| record.time() > snapshot) => {
            arena.truncate(entry);
            let offset = fstore.slot_at(bucket.bucket, slot);
            item.location.pointer = Pointer::new(table.shard_id(bucket.shard), offset);
            item.address = table.primary(item.location.pointer);
            let (former, source) = (record.former(), LocationSource::Probed(bucket, 0));
            return go_back(tx, index, former, source);
        }
        (None, None) if changed.is_some() => {
            arena.truncate(entry);
            let (slot, former) = changed.unwrap_or((0, Former::UNKNOWN));
            let pointer = Pointer::new(table.shard_id(bucket.shard), fstore.slot_at(bucket.bucket, slot as u64));
            item.location.pointer = pointer;
            item.address = table.primary(pointer);
            return go_back(tx, index, former, LocationSource::Probed(bucket, slot + 1));
        }
        (Some((slot, record)), _) => {
            arena.truncate(entry);
            let offset = fstore.slot_at(bucket.bucket, slot);
            let pointer = Pointer::new(table.shard_id(bucket.shard), offset);
            item.location = Location { pointer, incarnation: record.incarnation() };
            item.address = table.primary(pointer);
            if item.fetched_before() == Some(false) {
                return Err(Abort::Changed.into());
            }
            if ford.address_cache {
                table.learn(item.home, item.hash, item.location);
            }
            if ford.hitchhike && matches!(item.intent, Intent::Update | Intent::Delete) {
                // The record's place was not known when the round's locks were taken. So the record
                // is locked now, and read once more under its lock.
                item.fetch = Fetch::Record(LocationSource::Probed(bucket, slot as usize));
            } else {
                item.keep(arena, &record);
                item.current = item.at_primary && is_nobodys(record.lock(), released);
            }
            return Ok(Outcome::Done);
        }
        (None, Some(why)) => {
            arena.truncate(entry);
            return Ok(unstable(why));
        }
        (None, None) => item.time = item.time.max(latest),
    }
    item.chain = entry as u32 + 1;
    item.hops += 1;
    if item.hops > HOPS_MAX {
        return Err(Abort::Changed.into());
    }
    if let Some(next) = table.linked(bucket, next) {
        item.fetch = Fetch::Probe(next, 0);
    } else if item.intent == Intent::Insert {
        choose_slot(tx, index, bucket);
    } else if item.fetched_before() == Some(true) {
        return Err(Abort::Changed.into());
    } else {
        item.fetch = Fetch::Absent;
        item.seen = true;
    }
    Ok(Outcome::Done)
}

/// Handles a key that is nowhere in its chain, which is locked: the key will be in the first vacant
/// slot, or the chain has to grow.
fn choose_slot(tx: &mut Tx<'_>, index: usize, last: BucketRef) {
    tx.state.sets.add_to_chains();
    let sets = &tx.state.sets;
    let item = sets.items[index];
    let table = sets.table(item.table);
    let Some(fstore) = table.fstore() else { return };
    let shard = table.shard_id(last.shard);
    // Only items of this chain have, or are thought to have, a slot of it.
    let taken =
        |pointer: Pointer| sets.chain_items(item.table, item.home).any(|other| other.location.pointer == pointer);
    let mut vacant = None;
    for link in chain_of(&sets.tables, &sets.arena, &item) {
        for (slot, words) in link.slots.chunks_exact(link::SLOT_WORDS).enumerate() {
            let pointer = Pointer::new(shard, fstore.slot_at(link.bucket.bucket, slot as u64));
            if words[1] == 1 && !taken(pointer) {
                // A vacant slot of an earlier bucket of the chain replaces this one, because the
                // loop goes from the last bucket to the first.
                vacant = Some(pointer);
                break;
            }
        }
    }
    let header_of = |bucket: BucketRef| Pointer::new(shard, fstore.buckets.at(bucket.bucket));
    let mut last = last;
    // This transaction may have added buckets to the chain for other keys. The key can go there.
    while vacant.is_none()
        && let Some(header) = sets.find_structural(item.table, header_of(last)).map(|header| &sets.items[header])
        && header.is_written()
        && let Some(bucket) = fstore.buckets.number(sets.structural_value(header))
    {
        let slots = (0..fstore.slots_of(bucket)).map(|slot| Pointer::new(shard, fstore.slot_at(bucket, slot)));
        vacant = slots.into_iter().find(|pointer| !taken(*pointer));
        last = BucketRef { bucket, ..last };
    }
    let last_header = header_of(last);
    match vacant {
        Some(pointer) => place(sets.table(item.table).primary(pointer), pointer, &mut tx.state.sets.items[index]),
        None => {
            let part = fstore.parts_of(item.home.bucket).next().map_or(0, |part| part.at());
            for offset in [part, last_header.offset()] {
                read_structural(&mut tx.state.sets, item.table, last.shard, offset);
            }
            tx.state.sets.items[index].fetch = Fetch::Grow(last);
        }
    }
}

fn place(address: Address, pointer: Pointer, item: &mut Item) {
    item.fetch = Fetch::Place(Intent::Insert);
    item.location = Location { pointer, incarnation: 0 };
    item.address = address;
}

/// Makes sure that a structural record is locked and read in a later round, if it is not yet.
/// Returns its item, and whether it has been read.
fn read_structural(sets: &mut Sets, table: TableId, shard: u16, offset: u64) -> (usize, bool) {
    let record = sets.structural(table, shard, offset);
    let is_read = !sets.items[record].before(&sets.arena).is_empty();
    if !is_read {
        sets.items[record].fetch = Fetch::Record(LocationSource::Cached);
        sets.fetched = sets.fetched.min(record);
    }
    (record, is_read)
}

/// Grows the chains for which two records have been locked and read: the last header of the chain,
/// and the record of a part of the reserved space. The commit of this transaction links the new
/// bucket, like any change of a record.
pub(super) fn grow(tx: &mut Tx<'_>) -> Result<(), Stop> {
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        let Fetch::Grow(last) = item.fetch else { continue };
        let sets = &mut tx.state.sets;
        let Some(fstore) = sets.table(item.table).fstore().copied() else { continue };
        let (header, is_read) = read_structural(sets, item.table, last.shard, fstore.buckets.at(last.bucket));
        if !is_read {
            continue;
        }
        if sets.items[header].is_written() {
            // The chain has grown meanwhile, for another key of this transaction.
            choose_slot(tx, index, last);
            continue;
        }
        let mut parts = fstore.parts_of(item.home.bucket).enumerate();
        let taken = loop {
            let Some((step, part)) = parts.next() else {
                let full = Limit::TableFull { slots: sets.table(item.table).index().slots_in_all() };
                sets.note(index, full.into());
                return Err(full.into());
            };
            let (record, is_read) = read_structural(sets, item.table, last.shard, part.at());
            if !is_read {
                break None;
            }
            let used = sets.structural_value(&sets.items[record]);
            if let Some(bucket) = part.bucket(used) {
                // Of many parts, the first are used up when all of them are about half used.
                if step > 0 || fstore.parts() == 1 && part.bucket(used + used / 3).is_none() {
                    sets.crowded = Some(item.table);
                }
                sets.set_structural(record, used + 1);
                break Some(bucket);
            }
        };
        let Some(new) = taken else { continue };
        sets.set_structural(header, fstore.buckets.at(new));
        let pointer = Pointer::new(sets.table(item.table).shard_id(last.shard), fstore.slot_at(new, 0));
        place(sets.table(item.table).primary(pointer), pointer, &mut sets.items[index]);
    }
    Ok(())
}

/// Takes the vacant slot for a key to be inserted, which has arrived locked.
pub(super) fn slot_arrived(item: &mut Item, floor: Version, life: Option<Life>) -> Result<Outcome, Stop> {
    let incarnation = match life {
        None => 1,
        // The slot was never used, except by an insert that recovery has undone.
        Some(Life::Deleted { incarnation } | Life::Prepared { incarnation }) => incarnation.wrapping_add(1),
        Some(Life::Present { .. }) => return Err(Abort::Changed.into()),
    };
    item.location.incarnation = incarnation & INCARNATION_MASK;
    item.version = floor;
    item.fetch = Fetch::Here;
    item.seen = true;
    Ok(Outcome::Done)
}
