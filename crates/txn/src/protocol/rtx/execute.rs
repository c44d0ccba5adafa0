//! The execution of `rtx`: READs find the objects that a transaction has named, and bring their
//! values.
//!
//! A record takes two rounds. The first one looks at its object: by the record's own address if the
//! client knows it, and otherwise by the bucket of the index. The second round READs the block that
//! the object names, and looks at the object once more.
//!
//! The second round locks a record that was named to be changed, if it is the only one so far, and
//! the client knew its address ([`Rtx::locks_early`](super::Rtx::locks_early)). The CAS comes
//! before the READs. If it succeeds, the place is the one of the first round, and it stays.

use remora_fabric::{Completed, Round, probes};
use remora_index::objects::{self, AT_BLOCKS, AT_OVERFLOW, BUCKET_BYTES, FLOOR_WORD, LINK_WORD, OBJECT_BYTES};
use remora_index::{BucketRef, Location, Table};
use remora_node::{Pointer, ShardId, TableId};
use remora_record::{FetchedRecord, LockWord, LogPlace, Place, RepairableLock, TransactionId, Version};

use super::pool::{List, block_address};
use super::state::{Object, Repairs, Site};
use crate::error::{Abort, Limit, Stop};
use crate::limits::{HOPS_MAX, LOOKUP_ATTEMPTS};
use crate::protocol::lookup::{Examined, bring};
use crate::sets::{Fetch, Intent, Item, LocationSource, Lock, Part, Sets, registered};
use crate::state::State;
use crate::tx::Tx;

/// Bytes of a bucket's lock, link and floor.
const HEAD_BYTES: usize = 24;
/// The number of blocks that a session takes from a shard at a time.
pub(super) const BLOCKS_TAKEN: u64 = 4;

/// Layout in the arena of a bucket of a chain that was read: the place of the bucket before it in
/// the arena + 1, the shard, the bucket's number; and then the bucket's words.
pub(super) const CHAIN_HEAD_WORDS: usize = 3;

/// A bucket of the chain of a key, as it was read.
pub(super) struct ChainLink<'a> {
    /// The place of the link in the arena.
    pub(super) place: usize,
    pub(super) bucket: BucketRef,
    pub(super) words: &'a [u64],
}

/// Returns the buckets of the chain that was read for an item, from a place + 1 in the arena on:
/// the last bucket first.
pub(super) fn chain_of(arena: &[u64], chain: u32) -> impl Iterator<Item = ChainLink<'_>> {
    let mut at = chain as usize;
    std::iter::from_fn(move || {
        let place = at.checked_sub(1)?;
        let head = &arena[place..];
        at = head[0] as usize;
        let bucket = BucketRef { shard: head[1] as u16, bucket: head[2] };
        Some(ChainLink { place, bucket, words: &head[CHAIN_HEAD_WORDS..][..BUCKET_BYTES / 8] })
    })
}

/// Brings every record that was named and has not been fetched yet. If `locks_early`, also locks a
/// record that was named to be changed, if it is the only one so far, and the client knows where it
/// is.
pub(super) async fn execute(tx: &mut Tx<'_>, locks_early: bool) -> Result<(), Stop> {
    let ask = |tx: &mut Tx<'_>, round: &mut Round<'_>| ask(tx, round, locks_early);
    // A lock whose answer was not heard is looked at again: the READ comes behind its CAS.
    tx.unheard = false;
    loop {
        tx.state.repairs.lack_buckets.clear();
        tx.state.repairs.stops = 0;
        let brought = bring(tx, ask, arrived).await;
        let lack_buckets = std::mem::take(&mut tx.state.repairs.lack_buckets);
        // If something else has stopped the transaction, too, it cannot go on.
        if lack_buckets.is_empty() || tx.state.repairs.stops as usize > lack_buckets.len() {
            return brought;
        }
        // All overflow buckets were given out, but some may have been returned.
        for (index, last) in lack_buckets {
            choose_object(tx, index, last)?;
            let item = tx.state.sets.items[index];
            if !matches!(item.fetch, Fetch::Grow(_)) {
                continue;
            }
            let table = tx.state.sets.table(item.table);
            let shard = Pointer::new(table.shard_id(last.shard), 0);
            let site = Site::of(table, shard);
            let Some(returned) = List::Buckets.take(tx.lane, table, shard).await? else { return brought };
            tx.state.repairs.add_spare(site, returned);
            choose_object(tx, index, last)?;
        }
    }
}

/// Adds the next step of every item to the round, as far as the round has room.
fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>, locks_early: bool) {
    tx.state.repairs.begin_round();
    // A transaction of several records has more to gain from short locks.
    let locks_early = locks_early && tx.state.sets.items.len() == 1;
    let mut index = tx.state.sets.fetched;
    // The loop adds items of buckets at the end when they are needed.
    while index < tx.state.sets.items.len() {
        let asked = ask_item(tx, round, index, locks_early);
        tx.state.sets.items[index].asked = asked;
        index += 1;
    }
}

fn ask_item(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize, locks_early: bool) -> bool {
    let item = tx.state.sets.items[index];
    // The answer to an earlier round may not have been heard.
    tx.state.sets.items[index].takes_blocks = false;
    let is_probed = matches!(item.fetch, Fetch::Probe(..));
    if !item.structural && (item.intent == Intent::Delete || item.intent == Intent::Insert && !is_probed) {
        // A delete changes the main bucket of the record's chain, and what was named to be inserted
        // may be deleted. Who inserts reads the bucket anyway.
        bucket_item(&mut tx.state.sets, item.table, item.home);
    }
    let State { sets, repairs, .. } = &mut *tx.state;
    let table = registered(&sets.tables, item.table);
    let wants_block = item.intent != Intent::Read && !item.structural;
    let site = Site { shard: table.shard_id(item.home.shard), born: table.born() };
    let (at, bytes) = match item.fetch {
        Fetch::Probe(bucket, _) => (table.bucket_address(bucket), BUCKET_BYTES),
        Fetch::Record(_) if item.structural => (item.address, HEAD_BYTES),
        Fetch::Record(_) => (item.address, OBJECT_BYTES),
        Fetch::Block(found) => {
            let object = repairs.object(index);
            let block = block_address(table, item.location.pointer, object.place());
            let bytes = table.shape().record_bytes();
            let Some(block) = block.filter(|_| round.has_room(3, bytes + 2 * OBJECT_BYTES)) else { return false };
            let item = &mut sets.items[index];
            object.asks = None;
            // An object that a search has found may be another key's.
            let is_known = matches!(found, LocationSource::Cached) && item.intent == Intent::Update;
            if let Some(lock) = early_lock(tx.id).filter(|_| locks_early && is_known && item.lock == Lock::No) {
                let swap = lock.taken_from(object.free);
                object.asks = Some(round.compare_swap(item.address, swap.from.to_bits(), swap.to.to_bits()));
                item.lock = Lock::Maybe;
                if !std::mem::replace(&mut tx.locking, true) {
                    tx.lane.probe(probes::LOCKS);
                }
            }
            item.read = round.read(block, bytes);
            item.again = round.read(item.address, OBJECT_BYTES);
            return true;
        }
        Fetch::Grow(_) => {
            let Some(header) = table.shard_replicas(item.home.shard).first().filter(|_| round.has_room(1, 8)) else {
                return false;
            };
            sets.items[index].add = round.fetch_add(header.address(AT_OVERFLOW), 1);
            return true;
        }
        Fetch::Here
        | Fetch::Absent
        | Fetch::Since
        | Fetch::Ask
        | Fetch::Place(_)
        | Fetch::Former(_)
        | Fetch::Shared => {
            return false;
        }
    };
    if !round.has_room(2, bytes + 8) {
        return false;
    }
    let takes = wants_block && repairs.lacks_blocks(site);
    let header = table.shard_replicas(item.home.shard)[0].address(AT_BLOCKS);
    let item = &mut sets.items[index];
    item.read = round.read(at, bytes);
    item.takes_blocks = takes;
    if takes {
        // Blocks for the next writes come with what is read.
        item.add = round.fetch_add(header, BLOCKS_TAKEN);
    }
    true
}

/// Returns the item of a bucket of the index, and makes the item if there is none yet.
pub(super) fn bucket_item(sets: &mut Sets, table: TableId, bucket: BucketRef) -> usize {
    let offset = registered(&sets.tables, table).objects().map_or(0, |objects| objects.buckets.at(bucket.bucket));
    sets.structural(table, bucket.shard, offset)
}

/// Takes the answer to what an item has asked for.
fn arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let examined = examine(tx, index, done);
    tx.state.repairs.stops += u32::from(examined.is_err());
    examined
}

fn examine(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    if std::mem::take(&mut tx.state.sets.items[index].takes_blocks) {
        let State { sets, repairs, .. } = &mut *tx.state;
        let table = sets.table(item.table);
        let site = Site { shard: table.shard_id(item.home.shard), born: table.born() };
        if blocks_arrived(repairs, table, site, done.added(item.add)) {
            sets.crowded = Some(item.table);
        }
    }
    match item.fetch {
        Fetch::Probe(bucket, _) => bucket_arrived(tx, index, bucket, done.words(item.read)),
        Fetch::Record(_) if item.structural => head_arrived(tx, index, done.words(item.read)),
        Fetch::Record(found) => object_arrived(tx, index, done.words(item.read), found),
        Fetch::Block(found) => block_arrived(tx, index, done, found),
        Fetch::Grow(last) => overflow_arrived(tx, index, done.added(item.add), last),
        Fetch::Here
        | Fetch::Absent
        | Fetch::Since
        | Fetch::Ask
        | Fetch::Place(_)
        | Fetch::Former(_)
        | Fetch::Shared => Ok(Examined::Kept),
    }
}

/// Takes the blocks that a shard has given to the session, from this number on. Returns whether the
/// shard has few blocks left.
pub(super) fn blocks_arrived(repairs: &mut Repairs, table: &Table, site: Site, first: u64) -> bool {
    let count = table.objects().map_or(0, |objects| objects.blocks);
    repairs.add_blocks(site, first.min(count)..first.saturating_add(BLOCKS_TAKEN).min(count));
    first >= count - count / 16
}

/// Notes that the lock of an object is another attempt's. If the session has met it for long, the
/// transaction aborts, and its next attempt repairs the lock first.
#[cold]
pub(super) fn met(tx: &mut Tx<'_>, object: Pointer, lock: LockWord) -> Result<Examined, Stop> {
    let is_due = tx.state.repairs.suspect(tx.lane.now(), object, lock);
    if is_due { Err(Abort::Locked(lock).into()) } else { Ok(Examined::Unstable(Abort::Locked(lock))) }
}

/// Returns the pointer of the main bucket of an item's chain.
pub(super) fn main_bucket(sets: &Sets, item: &Item) -> Pointer {
    let table = sets.table(item.table);
    let at = table.objects().map_or(0, |objects| objects.buckets.at(item.home.bucket));
    Pointer::new(table.shard_id(item.home.shard), at)
}

/// Takes the lock, the link and the floor of a bucket.
fn head_arrived(tx: &mut Tx<'_>, index: usize, words: &[u64]) -> Result<Examined, Stop> {
    let lock = LockWord::from_bits(words[0]);
    if !lock.is_free() {
        return met(tx, tx.state.sets.items[index].location.pointer, lock);
    }
    bucket_found(tx, index, words);
    Ok(Examined::Kept)
}

fn bucket_found(tx: &mut Tx<'_>, index: usize, words: &[u64]) {
    let State { sets, repairs, .. } = &mut *tx.state;
    let item = &mut sets.items[index];
    (item.fetch, item.seen, item.existed) = (Fetch::Here, true, true);
    *repairs.object(index) = Object::found(LockWord::from_bits(words[0]), words[LINK_WORD], words[FLOOR_WORD]);
}

/// Takes an object that has arrived, at a location that the client knew.
fn object_arrived(tx: &mut Tx<'_>, index: usize, words: &[u64], found: LocationSource) -> Result<Examined, Stop> {
    let (lock, place) = (LockWord::from_bits(words[0]), Place::from_bits(words[1]));
    let object = tx.state.repairs.object(index);
    if object.is_locked_early {
        // More of the value is asked for than before.
        tx.state.sets.items[index].fetch = Fetch::Block(found);
        return Ok(Examined::Kept);
    }
    if !lock.is_free() && !mutant!(ReadBehindLock) {
        return met(tx, tx.state.sets.items[index].location.pointer, lock);
    }
    if place.block().is_none() {
        return search_again(tx, index, found);
    }
    found_object(tx, index, (lock, place), found);
    Ok(Examined::Kept)
}

fn found_object(tx: &mut Tx<'_>, index: usize, (lock, place): (LockWord, Place), found: LocationSource) {
    let State { sets, repairs, .. } = &mut *tx.state;
    sets.items[index].fetch = Fetch::Block(found);
    let round = repairs.round;
    *repairs.object(index) = Object { looks: [round, 0], ..Object::found(lock, place.to_bits(), 0) };
}

/// Searches the index for an item's key, because the object at the location that the cache gave is
/// not the key's.
#[cold]
fn search_again(tx: &mut Tx<'_>, index: usize, found: LocationSource) -> Result<Examined, Stop> {
    let sets = &mut tx.state.sets;
    let item = sets.items[index];
    let table = registered(&sets.tables, item.table);
    if matches!(found, LocationSource::Cached) {
        table.forget(item.home, item.hash, item.location);
    }
    let address = table.bucket_address(item.home);
    let item = &mut sets.items[index];
    (item.fetch, item.address, item.chain) = (Fetch::Probe(item.home, 0), address, 0);
    item.location = Location::default();
    item.lookups += 1;
    if item.lookups > LOOKUP_ATTEMPTS { Err(Abort::Changed.into()) } else { Ok(Examined::Another) }
}

/// Takes a bucket that has arrived. The key's object is in this bucket, or in a later one of the
/// chain, or nowhere.
fn bucket_arrived(tx: &mut Tx<'_>, index: usize, bucket: BucketRef, words: &[u64]) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    let lock = LockWord::from_bits(words[0]);
    let changes_chain = matches!(item.intent, Intent::Insert | Intent::Delete);
    if bucket == item.home && changes_chain {
        if !lock.is_free() {
            let main = main_bucket(&tx.state.sets, &item);
            return met(tx, main, lock);
        }
        let main = bucket_item(&mut tx.state.sets, item.table, bucket);
        if !tx.state.sets.items[main].seen {
            bucket_found(tx, main, words);
        }
    }
    let State { sets, repairs, .. } = &mut *tx.state;
    let Sets { tables, items, arena, .. } = sets;
    let item = &mut items[index];
    let table = registered(tables, item.table);
    let Some(geometry) = table.objects() else { return Err(Abort::Changed.into()) };
    let is_candidate = |place: Place| place.may_be_of(item.hash) && !repairs.rejected.contains(&(index, place));
    let mut candidates = objects::objects(words).enumerate().filter(|(_, (_, place))| is_candidate(*place));
    if let Some((number, (lock, place))) = candidates.next() {
        let lock = LockWord::from_bits(lock);
        let pointer = Pointer::new(table.shard_id(bucket.shard), geometry.object_at(bucket.bucket, number));
        if !lock.is_free() {
            return met(tx, pointer, lock);
        }
        item.location = Location { pointer, incarnation: 0 };
        item.address = table.primary(item.location.pointer);
        found_object(tx, index, (lock, place), LocationSource::Probed(bucket, number));
        return Ok(Examined::Kept);
    }
    // A client that repairs an insert frees the lock of the bucket when it meets it, and the lock
    // of the object when it meets that one. In between, the object's lock alone shows the insert.
    let fills = |(_, (lock, place)): &(usize, (u64, Place))| {
        place.block().is_none() && !LockWord::from_bits(*lock).is_free() && !mutant!(PassLockedVacant)
    };
    if let Some((number, (lock, _))) = objects::objects(words).enumerate().find(fills) {
        let pointer = Pointer::new(table.shard_id(bucket.shard), geometry.object_at(bucket.bucket, number));
        let (home, address) = (item.home, table.bucket_address(item.home));
        (item.fetch, item.address, item.chain) = (Fetch::Probe(home, 0), address, 0);
        return met(tx, pointer, LockWord::from_bits(lock));
    }
    let chain = arena.len() as u32 + 1;
    arena.extend([u64::from(item.chain), bucket.shard.into(), bucket.bucket]);
    arena.extend_from_slice(words);
    item.chain = chain;
    item.hops += 1;
    if item.hops > HOPS_MAX {
        return Err(Abort::Changed.into());
    }
    if let Some(next) = geometry.linked(words[LINK_WORD]) {
        let next = BucketRef { bucket: next, ..bucket };
        (item.fetch, item.address) = (Fetch::Probe(next, 0), table.bucket_address(next));
        return Ok(Examined::Kept);
    }
    let main = chain_of(arena, item.chain).last().map_or(LockWord::FREE, |link| LockWord::from_bits(link.words[0]));
    if !main.is_free() {
        // The client that has the lock may be inserting the key.
        let (home, address) = (item.home, table.bucket_address(item.home));
        (item.fetch, item.address, item.chain) = (Fetch::Probe(home, 0), address, 0);
        let pointer = main_bucket(&tx.state.sets, &tx.state.sets.items[index]);
        return met(tx, pointer, main);
    }
    if item.fetched_before() == Some(true) {
        return Err(Abort::Changed.into());
    }
    if item.intent == Intent::Insert {
        return choose_object(tx, index, bucket);
    }
    (item.fetch, item.seen) = (Fetch::Absent, true);
    Ok(Examined::Kept)
}

/// Handles a key that is nowhere in its chain: it will be in the first vacant object, or the chain
/// has to grow.
fn choose_object(tx: &mut Tx<'_>, index: usize, last: BucketRef) -> Result<Examined, Stop> {
    let State { sets, repairs, .. } = &mut *tx.state;
    let item = sets.items[index];
    let table = sets.table(item.table);
    let Some(geometry) = table.objects().copied() else { return Err(Abort::Changed.into()) };
    let (shard, floor) = (table.shard_id(last.shard), table.version_floor());
    let site = Site { shard, born: table.born() };
    let is_taken = |at: Pointer| sets.items.iter().any(|other| other.vacant && other.location.pointer == at);
    let mut chosen = None;
    for link in chain_of(&sets.arena, item.chain) {
        for (number, (lock, place)) in objects::objects(link.words).enumerate() {
            let at = Pointer::new(shard, geometry.object_at(link.bucket.bucket, number));
            let lock = LockWord::from_bits(lock);
            if place.block().is_none() && lock.is_free() && !is_taken(at) {
                // A vacant object of an earlier bucket of the chain replaces this one, because the
                // loop goes from the last bucket to the first.
                chosen = Some((at, Object::found(lock, place.to_bits(), 0)));
                break;
            }
        }
    }
    // This transaction may have added buckets to the chain for other keys. The key can go there.
    let mut end = last;
    while chosen.is_none() {
        let link = match (repairs.grown(site, end.bucket), bucket_number(sets, shard, &geometry, end)) {
            (Some(grown), _) => grown.words[LINK_WORD],
            (None, Some(head)) => repairs.object(head).new_word,
            (None, None) => 0,
        };
        let Some(next) = geometry.linked(link) else { break };
        let places = (0..objects::BUCKET_OBJECTS).map(|number| Pointer::new(shard, geometry.object_at(next, number)));
        chosen = places.into_iter().find(|at| !is_taken(*at)).map(|at| (at, Object::private()));
        end = BucketRef { bucket: next, ..end };
    }
    let main = bucket_number(sets, shard, &geometry, item.home);
    let floor = main.map_or(floor, |main| Version::from_bits(repairs.object(main).floor).0.max(floor));
    let Some((at, object)) = chosen else {
        return grow(tx, index, end);
    };
    take_object(tx, index, at, object, floor);
    Ok(Examined::Kept)
}

fn take_object(tx: &mut Tx<'_>, index: usize, at: Pointer, object: Object, floor: Version) {
    let State { sets, repairs, .. } = &mut *tx.state;
    *repairs.object(index) = object;
    let address = sets.table(sets.items[index].table).primary(at);
    let item = &mut sets.items[index];
    (item.location, item.address) = (Location { pointer: at, incarnation: 0 }, address);
    (item.vacant, item.fetch, item.seen, item.version) = (true, Fetch::Here, true, floor);
}

/// Returns the number of the item of a bucket, if there is one.
fn bucket_number(sets: &Sets, shard: ShardId, geometry: &objects::Geometry, at: BucketRef) -> Option<usize> {
    let pointer = Pointer::new(shard, geometry.buckets.at(at.bucket));
    sets.items.iter().position(|item| item.structural && item.location.pointer == pointer)
}

/// Links a bucket to the end of a chain for an item's key. Takes one of the shard's first, if the
/// session has none in hand.
fn grow(tx: &mut Tx<'_>, index: usize, last: BucketRef) -> Result<Examined, Stop> {
    let State { sets, repairs, .. } = &mut *tx.state;
    let item = sets.items[index];
    let table = sets.table(item.table);
    let Some(geometry) = table.objects().copied() else { return Err(Abort::Changed.into()) };
    let shard = table.shard_id(last.shard);
    let site = Site { shard, born: table.born() };
    let Some(new) = repairs.take_spare(site, geometry.buckets.main) else {
        sets.items[index].fetch = Fetch::Grow(last);
        return Ok(Examined::Kept);
    };
    let link = objects::Geometry::link_to(new);
    if let Some(grown) = repairs.grown(site, last.bucket) {
        grown.words[LINK_WORD] = link;
    } else {
        let words = chain_of(&sets.arena, item.chain).find(|link| link.bucket == last).map(|link| link.words.to_vec());
        let Some(words) = words else { return Err(Abort::Changed.into()) };
        let head = bucket_item(sets, item.table, last);
        if !sets.items[head].seen {
            let lock = LockWord::from_bits(words[0]);
            if !lock.is_free() {
                let pointer = sets.items[head].location.pointer;
                // The chain is looked at again, from its beginning.
                let (home, address) = (item.home, sets.table(item.table).bucket_address(item.home));
                let item = &mut sets.items[index];
                (item.fetch, item.address, item.chain) = (Fetch::Probe(home, 0), address, 0);
                return met(tx, pointer, lock);
            }
            bucket_found(tx, head, &words);
        }
        let State { sets, repairs, .. } = &mut *tx.state;
        repairs.object(head).new_word = link;
        sets.touch_structural(head);
    }
    let State { sets, repairs, .. } = &mut *tx.state;
    let floor = sets.table(item.table).version_floor();
    let main = bucket_number(sets, shard, &geometry, item.home);
    let floor = main.map_or(floor, |main| Version::from_bits(repairs.object(main).floor).0.max(floor));
    take_object(tx, index, Pointer::new(shard, geometry.object_at(new, 0)), Object::private(), floor);
    Ok(Examined::Kept)
}

/// Takes the overflow bucket that a shard has given to the session.
fn overflow_arrived(tx: &mut Tx<'_>, index: usize, used: u64, last: BucketRef) -> Result<Examined, Stop> {
    let State { sets, repairs, .. } = &mut *tx.state;
    let item = sets.items[index];
    let table = sets.table(item.table);
    let Some(geometry) = table.objects().copied() else { return Err(Abort::Changed.into()) };
    let overflow = geometry.buckets.overflow;
    let (site, full) = (
        Site { shard: table.shard_id(last.shard), born: table.born() },
        Limit::TableFull { slots: table.rows_of_shard() },
    );
    if used + used / 3 >= overflow {
        sets.crowded = Some(item.table);
    }
    if used >= overflow {
        sets.note(index, full.into());
        repairs.lack_buckets.push((index, last));
        return Err(full.into());
    }
    repairs.add_spare(site, Place::first_use(used, item.hash));
    choose_object(tx, index, last)
}

/// Returns the word by which an attempt locks in execution, when it does not know yet whether it
/// will have a log.
pub(super) fn early_lock(id: TransactionId) -> Option<RepairableLock> {
    RepairableLock::held_by(id, LogPlace::Nowhere)
}

/// Takes a look at an object behind the CAS by which execution has asked for its lock, if it has.
/// Returns the lock word that goes with the place which was seen before. Fails with the lock if
/// another attempt has it.
fn lock_arrived(tx: &mut Tx<'_>, index: usize, now: LockWord, done: &Completed<'_>) -> Result<LockWord, Abort> {
    let own = early_lock(tx.id).map_or(LockWord::FREE, RepairableLock::word);
    let State { sets, repairs, .. } = &mut *tx.state;
    let (item, object) = (&mut sets.items[index], repairs.object(index));
    let asked = object.asks.take();
    if item.lock == Lock::Maybe {
        // If the answer to the CAS was not heard, and the word is as before, the CAS was not sent.
        let was_taken = now == own || asked.map_or(now != object.free, |asked| done.swapped(asked));
        object.is_locked_early = now == own;
        item.lock = if now == own { Lock::Held } else { Lock::No };
        if was_taken && now != own {
            // A repairer has taken it from this attempt, which must not lock it again, because no
            // lock word recurs.
            return Err(Abort::Changed);
        }
        if !now.is_free() && now != own {
            return Err(Abort::Locked(now));
        }
    }
    Ok(if object.is_locked_early { own } else { object.free })
}

/// Takes the block of an object. Keeps it if it is whole, is the one that the object has named, and
/// has the item's key.
fn block_arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>, found: LocationSource) -> Result<Examined, Stop> {
    let Item { read, again, .. } = tx.state.sets.items[index];
    let (words, again) = (done.words(read), done.words(again));
    let expected = match lock_arrived(tx, index, LockWord::from_bits(again[0]), done) {
        Ok(expected) => expected,
        Err(Abort::Locked(lock)) => {
            tx.state.sets.items[index].fetch = Fetch::Record(found);
            return met(tx, tx.state.sets.items[index].location.pointer, lock);
        }
        Err(abort) => return Err(abort.into()),
    };
    let State { sets, repairs, .. } = &mut *tx.state;
    let object = *repairs.object(index);
    let Sets { tables, items, arena, .. } = sets;
    let item = &mut items[index];
    let table = registered(tables, item.table);
    let is_same = again[0] == expected.to_bits() && again[1] == object.word;
    let record = FetchedRecord::new(words, table.shape()).check_in_place().ok();
    let record = record.filter(|record| record.extra().first() == Some(&object.place().unmarked()));
    let Some(record) = record else {
        // The block has got another use since the object was looked at.
        debug_assert!(!object.is_locked_early, "rtx: what a lock was taken from names a whole block");
        item.fetch = Fetch::Record(found);
        return Ok(Examined::Unstable(Abort::Torn));
    };
    if !record.has_key(item.key_words(arena)) {
        repairs.rejected.push((index, object.place()));
        let searched = search_again(tx, index, found)?;
        // The attempt has locked another key's object. The next one looks for the key.
        return if object.is_locked_early { Err(Abort::Changed.into()) } else { Ok(searched) };
    }
    let before = *item;
    item.keep(arena, &record);
    item.has = Part::Whole;
    if is_same {
        repairs.object(index).looks[1] = repairs.round;
    }
    table.learn(item.home, item.hash, item.location);
    if !item.is_as(&before) {
        return Err(Abort::Changed.into());
    }
    Ok(Examined::Kept)
}
