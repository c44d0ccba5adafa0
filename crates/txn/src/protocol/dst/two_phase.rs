//! The execution of `dst-2pl`: the primary's CPU finds each record, locks it and reads it, in one
//! call.
//!
//! All locks are exclusive. A record that another transaction has locked aborts the attempt. An
//! absent key has no record to lock: it is validated and stamped as under `dst`. If the key is to
//! be inserted, the CPU prepares a slot for it, and locks the slot.

use remora_fabric::{Completed, Round, probes};

use crate::error::{Abort, Stop};
use crate::protocol::lookup::{Examined, bring, split_reply};
use crate::rpc::{
    Code, LINKS_MAX, LOCKED_KEY_WORDS, PREPARE_REPLY_WORDS, PREPARES, READ_REPLY_WORDS, timed_key_request,
};
use crate::sets::{Fetch, Intent, Item, Lock, Sets};
use crate::tx::Tx;

/// Returns whether a transaction has the lock of every record that it has found, unless members of
/// a batch have brought the record along.
pub(super) fn has_all_locks(sets: &Sets) -> bool {
    let is_found = |item: &Item| matches!(item.fetch, Fetch::Here) && item.existed;
    sets.items.iter().all(|item| !is_found(item) || item.lock == Lock::Held)
}

/// Locks and brings every record that was named and has not been fetched yet.
///
/// The caller may drop the future at any time. The next call then takes back every lock whose
/// answer was not heard, and asks again.
pub(super) fn execute(tx: &mut Tx<'_>) -> impl Future<Output = Result<(), Stop>> {
    bring(tx, ask, arrived)
}

fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>) {
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        ask_record(tx, index, round);
    }
}

/// Adds to a round the call that locks and reads an item's record, if the item needs it and the
/// round has room.
fn ask_record(tx: &mut Tx<'_>, index: usize, round: &mut Round<'_>) {
    let me = tx.id.lock();
    let sets = &mut tx.state.sets;
    let item = sets.items[index];
    if matches!(item.fetch, Fetch::Here | Fetch::Absent | Fetch::Shared) {
        sets.items[index].asked = false;
        return;
    }
    let prepares = matches!(item.fetch, Fetch::Place(Intent::Insert));
    let table = sets.table(item.table);
    let shard = table.shard_id(item.home.shard);
    let before_record = if prepares { PREPARE_REPLY_WORDS + 2 * LINKS_MAX } else { READ_REPLY_WORDS };
    let reply = LOCKED_KEY_WORDS + before_record + table.shape().record_bytes() / 8;
    let (mut request, words) = timed_key_request(Code::LockKey, shard, me.to_bits(), item.key_words(&sets.arena));
    request[0] = Code::LockKey.word(if prepares { PREPARES } else { 0 });
    let node = sets.primary_node(&item);
    let item = &mut sets.items[index];
    item.asked = round.has_room(1, (words + 1 + reply) * 8);
    if !item.asked {
        return;
    }
    if !matches!(item.fetch, Fetch::Place(_)) {
        item.fetch = Fetch::Ask; // the CPU finds the record by its key in any case
    }
    if item.lock == Lock::No {
        item.lock = Lock::MaybeByKey;
    }
    item.loose |= prepares;
    item.call = round.call(node, &request[..words], None, reply);
    tx.preparing |= prepares;
    if !std::mem::replace(&mut tx.locking, true) {
        tx.lane.probe(probes::LOCKS);
    }
}

/// Takes the answer to a LOCK_KEY.
fn arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let before = tx.state.sets.items[index];
    let (head, reply) = split_reply(done.reply(before.call), LOCKED_KEY_WORDS);
    let seen = tx.host_answered(index, reply);
    let item = &mut tx.state.sets.items[index];
    let ts = match head {
        &[1, ts] => Some(ts),
        _ => None,
    };
    if !mutant!(StampBeforeLock) {
        item.time = item.time.max(ts.unwrap_or(0));
    }
    if before.lock == Lock::Held {
        if item.address != before.address {
            // The CPU has named another record than the one that is locked.
            (item.location, item.address) = (before.location, before.address);
            return Err(Abort::Changed.into());
        }
    } else if ts.is_none() {
        item.lock = Lock::No;
    } else if matches!(item.fetch, Fetch::Here) {
        item.lock = Lock::Held;
    }
    if !item.existed && item.intent != Intent::Insert {
        // The slot may be another key's by the time this transaction inserts.
        item.place = None;
    }
    match seen {
        Ok(Examined::Unstable(Abort::Locked(lock))) => Err(Abort::Locked(lock).into()),
        seen => seen,
    }
}
