//! The execution of FORD: one round trip reads the records that a transaction has named, and locks
//! the ones that it will write.

use remora_fabric::{Address, Completed, Round, probes};
use remora_index::BucketRef;
use remora_node::Replica;
use remora_record::{FetchedRecord, LockWord, StableRecord, Swap, Version};

use super::Ford;
use super::again::look_up_again;
use super::chain::{bucket_arrived, chain_of, grow, link, slot_arrived};
use super::early::{self, is_pending};
use super::former::{ask_former, former_arrived, go_back, goes_back};
use super::words::{Outcome, check, is_nobodys, unstable};
use crate::error::{Abort, Stop};
use crate::protocol::clocks::claim;
use crate::sets::{Fetch, Intent, Item, LocationSource, Lock, Part, Sets, head, registered, shape};
use crate::state::State;
use crate::swap::swap_lock;
use crate::tx::{Tx, Waiting};

/// Brings every record that was named and has not been fetched yet, and locks the records that were
/// named to be written.
pub(in crate::protocol) async fn execute(tx: &mut Tx<'_>, ford: Ford) -> Result<(), Stop> {
    if tx.unheard {
        Box::pin(tx.forget_unheard()).await?;
    }
    early::decide(tx, ford);
    let mut waiting = Waiting::default();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        grow(tx)?;
        early::await_unlocks(tx).await;
        let mut round = tx.lane.round();
        ask(tx, &mut round, ford);
        early::draw(tx, &mut round);
        tx.unheard = true;
        let done = tx.lane.execute(round).await?;
        tx.unheard = false;
        if locked(tx, &done)? == Locks::Again {
            continue;
        }
        let unstable = arrived(tx, &done, ford)?;
        drop(done);
        tx.skip_what_is_here();
        tx.wait(unstable, &mut waiting).await?;
    }
    early::draw_rest(tx).await
}

/// Takes everything that a round has brought. Returns why some of it cannot be used now, if so.
pub(super) fn arrived(tx: &mut Tx<'_>, done: &Completed<'_>, ford: Ford) -> Result<Option<Abort>, Stop> {
    let mut unstable = None;
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        if !std::mem::take(&mut tx.state.sets.items[index].asked) {
            continue;
        }
        let words = done.words(tx.state.sets.items[index].read);
        let seen = match tx.state.sets.items[index].fetch {
            Fetch::Probe(bucket, from) => bucket_arrived(tx, index, (bucket, from), words, ford)?,
            Fetch::Former(from) => former_arrived(tx, index, words, from)?,
            _ => record_arrived(tx, index, words)?,
        };
        if let Outcome::Unstable(why) = seen {
            tx.state.sets.note(index, why.into());
            unstable = Some(why);
        }
    }
    Ok(unstable)
}

/// Adds the next step of every item to the round, as far as the round has room.
pub(super) fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>, ford: Ford) {
    let mut index = tx.state.sets.fetched;
    // The loop adds structural records at the end of the items when they are needed.
    while index < tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        let asked = match item.fetch {
            Fetch::Probe(bucket, _) => ask_bucket(tx, round, index, bucket, ford),
            Fetch::Record(_) | Fetch::Place(_) => ask_record(tx, round, index, ford),
            Fetch::Former(_) => ask_former(tx, round, index),
            Fetch::Here
            | Fetch::Absent
            | Fetch::Since
            | Fetch::Ask
            | Fetch::Grow(_)
            | Fetch::Block(_)
            | Fetch::Shared => false,
        };
        tx.state.sets.items[index].asked = asked;
        index += 1;
    }
}

/// Asks for a bucket of a key's chain. An insert first locks the chain, by the lock of its main
/// bucket.
fn ask_bucket(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize, bucket: BucketRef, ford: Ford) -> bool {
    let item = tx.state.sets.items[index];
    let table = registered(&tx.state.sets.tables, item.table);
    let (bytes, at) = (table.bucket_bytes(bucket), table.bucket_address(bucket));
    let in_snapshot = tx.attempt.snapshot.is_some();
    let inserts = item.intent == Intent::Insert;
    let atomics = if inserts { early::locked_replicas(tx, table.shard_replicas(bucket.shard)) } else { 1 };
    if !round.has_room(1 + atomics, bytes + 8 * atomics) {
        return false;
    }
    if inserts && bucket == item.home && !mutant!(InsertBesideLocked) {
        let offset = table.fstore().map_or(0, |fstore| fstore.buckets.at(bucket.bucket));
        let known = tx.state.sets.items.len();
        let header = tx.state.sets.structural(item.table, bucket.shard, offset);
        if header == known {
            // Only the header's lock is needed, until the chain has to grow.
            tx.state.sets.items[header].fetch = Fetch::Here;
        }
        lock(tx, round, header);
    }
    let sets = &tx.state.sets;
    let replicas = sets.table(item.table).shard_replicas(bucket.shard);
    let at_primary = inserts || !may_read_backups(tx, ford);
    let replica = if at_primary { 0 } else { lightest(&tx.state.load, replicas) };
    let from = Address { node: replicas[replica].node, region: replicas[replica].region, ..at };
    let from = Address { offset: from.offset - replicas[0].base + replicas[replica].base, ..from };
    if in_snapshot {
        claim(tx, round, from.node);
    }
    tx.state.sets.items[index].read = round.read(from, bytes);
    tx.state.sets.items[index].at_primary = replica == 0;
    tx.state.count(from.node, bytes);
    true
}

/// Asks for a record whose location is known, and for its lock if the record is to be written.
fn ask_record(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize, ford: Ford) -> bool {
    let sets = &tx.state.sets;
    let item = sets.items[index];
    let bytes = sets.read_bytes(&item);
    let vacant = matches!(item.fetch, Fetch::Place(_));
    let in_snapshot = tx.attempt.snapshot.is_some();
    let is_written = |item: &Item| item.intent != Intent::Read;
    let may_guard = ford.timed && !tx.is_early && !in_snapshot && !mutant!(GuardByValidation);
    let guards = may_guard && sets.items.iter().any(is_written);
    let writes = vacant || item.structural || ford.hitchhike && (is_written(&item) || guards);
    let mut from = item.address;
    let replicas = sets.table(item.table).replicas(item.location.pointer);
    let atomics = if writes { early::locked_replicas(tx, replicas) } else { 1 };
    if !round.has_room(1 + atomics, bytes + 8 * atomics) {
        return false;
    }
    if writes {
        lock(tx, round, index);
    } else if may_read_backups(tx, ford) {
        from = replicas[lightest(&tx.state.load, replicas)].address(item.location.pointer.offset());
    }
    // The READ follows the CAS, and CAS then READ is an ordered pair. So it brings the record as it
    // is under the lock. It also follows the claim of a snapshot.
    if in_snapshot && !mutant!(ClaimBehindRead) {
        claim(tx, round, from.node);
    }
    tx.state.sets.items[index].read = round.read(from, bytes);
    if in_snapshot && mutant!(ClaimBehindRead) {
        claim(tx, round, from.node);
    }
    tx.state.sets.items[index].at_primary = from == item.address;
    tx.state.count(from.node, bytes);
    true
}

/// Returns whether the transaction reads at backups, too.
fn may_read_backups(tx: &Tx<'_>, ford: Ford) -> bool {
    ford.backup_reads
        && match tx.attempt.snapshot {
            // If this is the transaction's only record, a read at the primary needs no validation.
            // A read at a backup would need one.
            None => tx.state.sets.items.len() > 1,
            // Where one clock counts for all nodes, early locks are at primaries only.
            Some(_) => !tx.state.clocks.is_one() || mutant!(OneClockAtBackups),
        }
}

/// Adds the CAS that locks an item's record, unless it is locked already.
fn lock(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize) {
    let me = tx.id.lock();
    let item = &mut tx.state.sets.items[index];
    if item.lock == Lock::No {
        item.lock = Lock::Maybe;
        let released = &tx.state.released;
        let inherits = !tx.is_early && released.holds_back(tx.lane, item.address);
        tx.heir |= inherits;
        let swap = if inherits { Swap { from: released.holder, to: me } } else { Swap::lock(me) };
        let address = item.address;
        if mutant!(DrawBeforeLocks) && tx.is_early {
            tx.state
                .sets
                .lock_addresses(&tx.state.sets.items[index], tx.locks_backups())
                .for_each(|at| tx.state.clocks.wants_draw(at.node));
            tx.state.clocks.draw_behind_locks(round);
        }
        tx.state.sets.items[index].swap = swap_lock(round, address, swap);
        tx.state.count(tx.state.sets.items[index].address.node, 16);
        if tx.is_early {
            early::lock_backups(tx, round, index);
        }
        if !std::mem::replace(&mut tx.locking, true) {
            tx.lane.probe(probes::LOCKS);
        }
    }
}

/// Returns the replica to which this client has sent the fewest bytes. The choice follows the load,
/// because the client counts what it sends.
fn lightest(load: &[u64], replicas: &[Replica]) -> usize {
    let of = |replica: &Replica| load.get(usize::from(replica.node.0)).copied().unwrap_or(0);
    let copies = (0..replicas.len()).filter(|replica| !replicas[*replica].joining);
    copies.min_by_key(|replica| of(&replicas[*replica])).unwrap_or(0)
}

/// The outcome of the locks that a round has asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locks {
    Held,
    /// A lock was to be taken over from the lane's last transaction, but had been freed already.
    /// The transaction asks for everything again.
    Again,
}

/// Sees which of the locks that the round asked for have been taken. If another transaction has one
/// of them, this transaction aborts, and releases its own locks.
fn locked(tx: &mut Tx<'_>, done: &Completed<'_>) -> Result<Locks, Stop> {
    let me = tx.id;
    let (mut conflict, mut again) = (None, false);
    for (index, item) in tx.state.sets.items.iter_mut().enumerate().filter(|(_, item)| item.lock == Lock::Maybe) {
        let previous = LockWord::from_bits(done.previous(item.swap));
        // A stale location can lead two items to one slot. Then the second CAS finds this
        // transaction's own lock, which the first item has.
        item.lock = if done.swapped(item.swap) { Lock::Held } else { Lock::No };
        if item.lock == Lock::No && previous.is_free() {
            again = true;
        } else if item.lock == Lock::No && !previous.is_held_by(me) {
            conflict = Some((index, previous));
        }
    }
    if tx.is_early {
        conflict = early::locked(tx, done).or(conflict);
    }
    let Some((index, holder)) = conflict else { return Ok(if again { Locks::Again } else { Locks::Held }) };
    tx.met(index, holder);
    Err(Abort::Locked(holder).into())
}

/// Takes a record that has arrived. Keeps it if it is whole, visible, and the record of the item's
/// key.
fn record_arrived(tx: &mut Tx<'_>, index: usize, words: &[u64]) -> Result<Outcome, Stop> {
    let (released, in_snapshot) = (tx.state.released.holder, tx.attempt.snapshot.is_some());
    let (reads, snapshot) = (tx.attempt.snapshot, tx.snapshot);
    let State { sets, seen, seen_time, .. } = &mut *tx.state;
    let Sets { tables, items, arena, .. } = sets;
    let item = &mut items[index];
    let head = head(tables, item);
    let record = match check(FetchedRecord::new(words, head.as_ref().unwrap_or(shape(tables, item)))) {
        Ok(record) => record,
        Err(why) => return Ok(unstable(why)),
    };
    if in_snapshot && is_pending(record.lock()) {
        let (lock, table, pointer) = (record.lock(), item.table, item.location.pointer);
        tx.met_early(table, pointer, lock);
        return Ok(Outcome::Unstable(Abort::Locked(lock)));
    }
    let pointer = item.location.pointer;
    if goes_back((reads, snapshot), (seen, *seen_time), pointer, record.time()) {
        let former = record.former();
        return go_back(tx, index, former, LocationSource::Cached);
    }
    if let Fetch::Place(_) = item.fetch {
        let chain = chain_of(tables, arena, item).flat_map(|link| link.slots.iter().step_by(link::SLOT_WORDS));
        // The new version must be above every version of the chain, because the key's former life
        // ended with one of them (`fstore`, rule 3).
        let lowest = registered(tables, item.table).version_floor().max(record.version());
        let floor = chain.map(|word| Version::from_bits(*word).0).fold(lowest, Version::max);
        item.keep_before(arena, &record);
        return slot_arrived(item, floor, record.life());
    }
    let its_own = item.structural
        || record.is_present()
            && record.has_key(item.key_words(arena))
            && record.incarnation() == item.location.incarnation;
    if !its_own {
        return look_up_again(tx, index);
    }
    let before = *item;
    item.keep(arena, &record);
    item.has = if head.is_some() { Part::Head } else { Part::Whole };
    if !item.structural && !item.is_as(&before) {
        return Err(Abort::Changed.into());
    }
    item.current = item.at_primary && is_nobodys(record.lock(), released);
    if item.lock == Lock::Held || mutant!(LogWithoutLocks) {
        item.keep_before(arena, &record);
    }
    Ok(Outcome::Done)
}

/// Locks the records that are written although they were only named to be read, and, if
/// `guards_reads`, records that are only read. Sees in the same round trip whether each of them is
/// still as it was read. For an absent key, that is the header of its chain ([`name_headers`]).
pub(in crate::protocol) async fn lock_rest(tx: &mut Tx<'_>, guards_reads: bool) -> Result<(), Stop> {
    let needs = |item: &Item| {
        let is_read = matches!(item.fetch, Fetch::Here);
        item.lock == Lock::No && (item.is_written() || guards_reads && is_read)
    };
    if !tx.state.sets.items.iter().any(needs) {
        return early::draw_rest(tx).await;
    }
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        early::await_unlocks(tx).await;
        let (first, mut round) = (next, tx.lane.round());
        while next < tx.state.sets.items.len() {
            let item = tx.state.sets.items[next];
            if needs(&item) {
                let bytes = tx.state.sets.shape(&item).record_bytes();
                let replicas = tx.state.sets.table(item.table).replicas(item.location.pointer);
                let atomics = early::locked_replicas(tx, replicas);
                if !round.has_room(1 + atomics, bytes + 8 * atomics) {
                    break;
                }
                lock(tx, &mut round, next);
                tx.state.sets.items[next].read = round.read(item.address, bytes);
                tx.state.sets.items[next].asked = true;
            }
            next += 1;
        }
        early::draw(tx, &mut round);
        let done = tx.lane.execute(round).await?;
        if locked(tx, &done)? == Locks::Again {
            return Err(Abort::Changed.into()); // no lock is taken over here
        }
        let Sets { tables, items, arena, .. } = &mut tx.state.sets;
        for item in &mut items[first..next] {
            if !std::mem::take(&mut item.asked) {
                continue;
            }
            if item.structural && !item.is_written() {
                continue; // what it has is validated with its chain
            }
            let record = check(FetchedRecord::new(done.words(item.read), shape(tables, item)));
            let unchanged =
                |record: &StableRecord<'_>| record.version() == item.version || mutant!(LockWithoutValidation);
            let Some(record) = record.ok().filter(unchanged) else { return Err(Abort::Changed.into()) };
            if item.is_written() {
                item.keep_before(arena, &record);
            }
        }
    }
    early::draw_rest(tx).await
}

/// Makes items of the headers of the chains in which absent keys would be.
pub(super) fn name_headers(sets: &mut Sets) {
    for index in 0..sets.items.len() {
        let item = sets.items[index];
        let header = sets.table(item.table).fstore().map(|fstore| fstore.buckets.at(item.home.bucket));
        let Some(header) = header.filter(|_| matches!(item.fetch, Fetch::Absent) && !item.structural) else { continue };
        let known = sets.items.len();
        let header = sets.structural(item.table, item.home.shard, header);
        if header == known {
            sets.items[header].fetch = Fetch::Here;
        }
    }
}
