//! The execution of two-phase locking: each record is locked, and read under its lock in the same
//! round trip.

use remora_fabric::{Completed, Round, probes};
use remora_index::cluster_hash::BUCKET_BYTES;
use remora_record::{LockWord, Swap};

use crate::error::{Abort, Stop};
use crate::limits::READ_ATTEMPTS;
use crate::protocol::lookup::{Examined, ask_host, hear};
use crate::sets::{Fetch, Intent, LocationSource, Lock, Sets, registered};
use crate::shared::Next;
use crate::swap::swap_lock;
use crate::tx::{Tx, Waiting};

/// Locks and brings every record that was named and has not been fetched yet.
pub(super) async fn execute(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.state.shared.has_orphans() {
        let shared = tx.state.shared.clone();
        shared.settle(tx.lane).await?;
    }
    if tx.unheard {
        Box::pin(tx.forget_unheard()).await?;
    }
    let mut waiting = Waiting::default();
    let mut rounds = 0;
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        ask(tx, &mut round)?;
        tx.unheard = true;
        let done = tx.lane.execute(round).await?;
        tx.unheard = false;
        let unstable = hear(tx, &done, arrived)?;
        drop(done);
        tx.skip_what_is_here();
        tx.wait(unstable, &mut waiting).await?;
        rounds += 1;
        if rounds > ROUNDS_MAX {
            return Err(Abort::Changed.into());
        }
    }
    Ok(())
}

/// Largest number of rounds of one execution. It is more than the way to any record takes while no
/// other transaction changes the record.
const ROUNDS_MAX: u32 = 4 * READ_ATTEMPTS;

/// Adds the next step of every item to the round, as far as the round has room.
fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>) -> Result<(), Stop> {
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        let item = &mut tx.state.sets.items[index];
        match item.fetch {
            Fetch::Probe(..) => {
                item.asked = round.has_room(1, BUCKET_BYTES);
                if item.asked {
                    item.read = round.read(item.address, BUCKET_BYTES);
                }
            }
            Fetch::Record(_) => ask_record(tx, round, index)?,
            Fetch::Ask | Fetch::Place(_) => {
                tx.preparing |= matches!(item.fetch, Fetch::Place(Intent::Insert));
                ask_host(&mut tx.state.sets, index, round);
            }
            Fetch::Here
            | Fetch::Absent
            | Fetch::Since
            | Fetch::Former(_)
            | Fetch::Grow(_)
            | Fetch::Block(_)
            | Fetch::Shared => item.asked = false,
        }
    }
    Ok(())
}

/// Asks for the lock of a record, unless the transaction has it, and for what the record holds
/// under that lock. CAS then READ is an ordered pair.
fn ask_record(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize) -> Result<(), Stop> {
    let me = tx.id.lock();
    let item = tx.state.sets.items[index];
    let bytes = tx.state.sets.read_bytes(&item);
    let room = round.has_room(2, bytes + 4 * 8);
    let item = &mut tx.state.sets.items[index];
    item.asked = room;
    if !room {
        return Ok(());
    }
    if item.lock == Lock::No {
        if item.intent == Intent::Read && item.place.is_none() {
            item.asks = tx.state.shared.join(item.address)?;
            item.lock = Lock::MaybeShared;
        } else {
            item.asks = Some(Swap::lock(me));
            item.lock = Lock::Maybe;
        }
        if !std::mem::replace(&mut tx.locking, true) {
            tx.lane.probe(probes::LOCKS);
        }
    }
    if let Some(swap) = item.asks {
        item.swap = swap_lock(round, item.address, swap);
    }
    item.read = round.read(item.address, bytes);
    Ok(())
}

/// Takes the answer to what an item has asked for.
fn arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    match item.fetch {
        Fetch::Probe(bucket, from_slot) => {
            tx.found_bucket(index, bucket, from_slot, done.words(item.read)).map(|()| Examined::Kept)
        }
        Fetch::Record(found) => match locked(tx, index, done)? {
            Locked::Held => record_arrived(tx, index, found, done.words(item.read)),
            Locked::ByAnotherItem => beside_another(tx, index, found, done.words(item.read)),
            Locked::Again => Ok(Examined::Another),
        },
        Fetch::Ask | Fetch::Place(_) => place_arrived(tx, index, done.reply(item.call)),
        Fetch::Here
        | Fetch::Absent
        | Fetch::Since
        | Fetch::Former(_)
        | Fetch::Grow(_)
        | Fetch::Block(_)
        | Fetch::Shared => Ok(Examined::Kept),
    }
}

/// The outcome of the lock that an item has asked for.
enum Locked {
    /// The transaction has the lock.
    Held,
    /// The transaction has the lock for another of its items. The location of one of the two items
    /// is stale.
    ByAnotherItem,
    /// The lock word was not what the CAS expected, but the lock can be taken by a CAS from the
    /// word that was found.
    Again,
}

fn locked(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Locked, Stop> {
    let id = tx.id;
    let Sets { tables, items, .. } = &mut tx.state.sets;
    let item = &mut items[index];
    let shared = &tx.state.shared;
    match item.lock {
        Lock::Held | Lock::Shared => Ok(Locked::Held),
        Lock::Maybe => {
            if done.swapped(item.swap) {
                (item.lock, item.asks) = (Lock::Held, None);
                return Ok(Locked::Held);
            }
            let found = LockWord::from_bits(done.previous(item.swap));
            item.lock = Lock::No;
            if found.is_held_by(id) {
                return Ok(Locked::ByAnotherItem);
            }
            let next = shared.take(item.address, found, id.lock()).ok_or(Abort::Locked(found))?;
            (item.lock, item.asks) = (Lock::Maybe, Some(next));
            Ok(Locked::Again)
        }
        Lock::MaybeShared => {
            let found = match item.asks {
                Some(swap) if done.swapped(item.swap) => swap.to,
                Some(_) => LockWord::from_bits(done.previous(item.swap)),
                None => {
                    let read = registered(tables, item.table).shape().validated(done.words(item.read));
                    read.ok_or(Abort::Torn)?.lock
                }
            };
            match shared.found(item.address, found)? {
                Next::Held => {
                    (item.lock, item.asks) = (Lock::Shared, None);
                    Ok(Locked::Held)
                }
                Next::Swap(next) => {
                    item.asks = Some(next);
                    Ok(Locked::Again)
                }
                Next::Conflict => {
                    (item.lock, item.asks) = (Lock::No, None);
                    if found.is_held_by(id) { Ok(Locked::ByAnotherItem) } else { Err(Abort::Locked(found).into()) }
                }
            }
        }
        Lock::No | Lock::MaybeByKey | Lock::Unseen | Lock::Upgrading => Err(Abort::Changed.into()),
    }
}

/// Takes a record that has arrived, and that is locked for this item.
fn record_arrived(tx: &mut Tx<'_>, index: usize, found: LocationSource, words: &[u64]) -> Result<Examined, Stop> {
    let before = tx.state.sets.items[index];
    let header = tx.state.sets.shape(&before).validated(words);
    let is_prepared = header.is_some_and(|header| header.version.is_rolled_back());
    let seen = tx.examine(index, words);
    if is_prepared && !matches!(seen, Examined::Unstable(_)) {
        // The transaction that had the slot prepared cannot take it back while the slot is locked
        // (invariant 6).
        tx.state.sets.items[index].prepared = true;
        tx.preparing = true;
    }
    match seen {
        Examined::Kept => {
            let item = &mut tx.state.sets.items[index];
            let is_same = item.is_as(&before);
            item.prepared &= !item.existed;
            if !item.existed && item.intent != Intent::Insert {
                // An insert needs the links of the key's chain.
                item.place = None;
            }
            if mutant!(UnlockReadsEarly) && item.lock == Lock::Shared {
                release(tx, index);
            }
            if is_same { Ok(Examined::Kept) } else { Err(Abort::Changed.into()) }
        }
        Examined::Another if is_prepared => Err(Abort::Changed.into()),
        Examined::Another => {
            release(tx, index);
            tx.state.sets.items[index].prepared = false;
            look_elsewhere(tx, index, found)
        }
        seen => Ok(seen),
    }
}

/// Takes a record that has arrived, and that this transaction has locked for another item. It
/// cannot be the record of both items, so one of the two has to look elsewhere.
fn beside_another(tx: &mut Tx<'_>, index: usize, found: LocationSource, words: &[u64]) -> Result<Examined, Stop> {
    let before = tx.state.sets.items[index];
    match tx.examine(index, words) {
        Examined::Another => look_elsewhere(tx, index, found),
        _ => {
            tx.state.sets.items[index] = before;
            Ok(Examined::Unstable(Abort::Changed))
        }
    }
}

/// Searches on in the index, because the record at an item's location is another key's. If the
/// primary's CPU had named the location, asks the CPU again.
fn look_elsewhere(tx: &mut Tx<'_>, index: usize, found: LocationSource) -> Result<Examined, Stop> {
    tx.look_up_again(index, found)?;
    let item = &mut tx.state.sets.items[index];
    if item.place.take().is_some() {
        item.fetch = Fetch::Place(item.intent);
    }
    Ok(Examined::Another)
}

/// Takes the answer of the primary's CPU that has found the key's place in the index, or linked
/// one. The record is locked next. Only what is read under that lock counts.
fn place_arrived(tx: &mut Tx<'_>, index: usize, reply: &[u64]) -> Result<Examined, Stop> {
    let before = tx.state.sets.items[index];
    let seen = tx.host_answered(index, reply)?;
    let item = &mut tx.state.sets.items[index];
    if before.lock != Lock::No && item.address != before.address {
        // The CPU has named another record than the one that is locked.
        item.address = before.address;
        return Err(Abort::Changed.into());
    }
    if matches!(item.fetch, Fetch::Here) && item.lock == Lock::No {
        item.fetch = Fetch::Record(LocationSource::Cached);
        (item.seen, item.existed, item.present) = (before.seen, before.existed, before.present);
        item.version = before.version;
        return Ok(Examined::Another);
    }
    Ok(seen)
}

/// Releases the lock that an item has taken, because the record is another key's.
fn release(tx: &mut Tx<'_>, index: usize) {
    let me = tx.id.lock();
    let item = &mut tx.state.sets.items[index];
    let mut round = tx.lane.round();
    match std::mem::replace(&mut item.lock, Lock::No) {
        Lock::Shared => tx.state.shared.leave(item.address, &mut round),
        Lock::Held => _ = swap_lock(&mut round, item.address, Swap::unlock(me)),
        other => item.lock = other,
    }
    if !round.is_empty() {
        tx.lane.post(round);
    }
}
