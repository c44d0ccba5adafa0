//! The execution of a transaction that reads a snapshot: one round of calls brings every record as
//! it was at the time of the snapshot. Nothing is validated.

use remora_fabric::{Completed, Round};
use remora_record::LockWord;

use super::Dst;
use crate::error::{Abort, Stop};
use crate::limits::{READ_PAUSE_NS, SNAPSHOT_READS};
use crate::protocol::lookup::{Examined, hear, split_reply};
use crate::rpc::{BUSY, Code, LATER, READ_REPLY_WORDS, timed_key_request};
use crate::sets::{Fetch, Item, Sets, registered};
use crate::tx::Tx;

/// Brings every record that was named and has not been fetched yet, as it was at the time of the
/// snapshot.
pub(super) async fn execute(tx: &mut Tx<'_>, dst: Dst) -> Result<(), Stop> {
    if tx.state.sets.fetched == tx.state.sets.items.len() {
        return Ok(());
    }
    let time = match tx.snapshot {
        Some(time) => time,
        None => dst.snapshot_time(tx).await?,
    };
    tx.snapshot = Some(time);
    if mutant!(LookBeforeClaim) {
        read_all(tx, time, crate::rpc::WAITS).await?;
        ask_again(&mut tx.state.sets);
        return read_all(tx, time, crate::rpc::CLAIMS).await;
    }
    read_all(tx, time, dst.claims()).await
}

/// Has all records asked for again.
fn ask_again(sets: &mut Sets) {
    sets.fetched = 0;
    sets.items.iter_mut().for_each(|item| (item.fetch, item.seen) = (Fetch::Ask, false));
}

async fn read_all(tx: &mut Tx<'_>, time: u64, claims: usize) -> Result<(), Stop> {
    let mut reads = 0;
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        // What is asked for again is claimed again. As far as rule 5 holds, the claims are still
        // there.
        let claims = if reads > 0 && mutant!(CommitLowersStamp) { claims & !crate::rpc::CLAIMS } else { claims };
        ask(&mut tx.state.sets, &mut round, time, claims);
        let done = tx.lane.execute(round).await?;
        let busy = hear(tx, &done, arrived)?;
        drop(done);
        tx.skip_what_is_here();
        // The holder of the lock is about to commit, or to abort.
        if let Some(why) = busy {
            reads += 1;
            if reads == SNAPSHOT_READS {
                return Err(why.into());
            }
            tx.lane.sleep(READ_PAUSE_NS << (reads - 1)).await;
        }
    }
    Ok(())
}

/// Adds the calls for all records that are not here to a round, as far as it has room.
fn ask(sets: &mut Sets, round: &mut Round<'_>, time: u64, claims: usize) {
    for index in sets.fetched..sets.items.len() {
        let item = sets.items[index];
        if matches!(item.fetch, Fetch::Here | Fetch::Absent | Fetch::Shared) {
            sets.items[index].asked = false;
            continue;
        }
        let table = registered(&sets.tables, item.table);
        let shard = table.shard_id(item.home.shard);
        let reply = READ_REPLY_WORDS + table.shape().record_bytes() / 8;
        let (request, words) = timed_key_request((Code::Claim, claims), shard, time, item.key_words(&sets.arena));
        let node = sets.primary_node(&item);
        let item = &mut sets.items[index];
        item.asked = round.has_room(1, (words + 1 + reply) * 8);
        if item.asked {
            item.call = round.call(node, &request[..words], None, reply);
        }
    }
}

/// Takes the answer to a CLAIM.
fn arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    let reply = done.reply(item.call);
    match *reply {
        [0] => {
            let item = &mut tx.state.sets.items[index];
            if item.fetched_before() == Some(true) {
                return Err(Abort::Changed.into());
            }
            (item.fetch, item.seen, item.chain) = (Fetch::Absent, true, 0);
            Ok(Examined::Kept)
        }
        [LATER, time] => {
            // The next attempt reads a later snapshot.
            tx.state.time.raise(time);
            Err(Abort::Later.into())
        }
        [BUSY, lock, entry] => {
            found_at(tx, index, entry);
            Ok(Examined::Unstable(Abort::Locked(LockWord::from_bits(lock))))
        }
        _ => {
            let (&[1, newest, entry], record) = split_reply(reply, READ_REPLY_WORDS) else {
                return Err(Abort::Changed.into());
            };
            found_at(tx, index, entry);
            // If this client's clock is behind, its next snapshot has what this one has not.
            tx.state.time.raise(newest);
            match tx.examine(index, record) {
                Examined::Kept if tx.state.sets.items[index].is_as(&item) => Ok(Examined::Kept),
                Examined::Unstable(why) => Ok(Examined::Unstable(why)),
                // Its key is in another incarnation now, or it was read before and is another.
                Examined::Kept | Examined::Another => Err(Abort::Changed.into()),
            }
        }
    }
}

/// Notes where a record is.
fn found_at(tx: &mut Tx<'_>, index: usize, entry: u64) {
    let Sets { tables, items, .. } = &mut tx.state.sets;
    let item: &mut Item = &mut items[index];
    let table = registered(tables, item.table);
    if let Some(location) = table.located(item.home, entry) {
        (item.location, item.address) = (location, table.primary(location.pointer));
    }
}
