//! The execution of a transaction that reads a snapshot: one round, with one call for each memory
//! node, brings every record as it was at the time of the snapshot. Nothing is validated.

use remora_fabric::{Completed, NodeId, Round, Staged};
use remora_record::LockWord;
use zerocopy::IntoBytes;

use super::Dst;
use crate::error::{Abort, Limit, Stop};
use crate::protocol::Rereads;
use crate::protocol::lookup::{Examined, hear};
use crate::rpc::{ABSENT, BUSY, FOUND, HAS_VECTOR, LATER, READ_REPLY_WORDS, claim_word, push_claimed};
use crate::sets::{Fetch, Item, Sets, registered};
use crate::state::State;
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
        read_all(tx, dst, time, crate::rpc::WAITS).await?;
        ask_again(&mut tx.state.sets);
        return read_all(tx, dst, time, crate::rpc::CLAIMS).await;
    }
    read_all(tx, dst, time, dst.claims()).await
}

/// Has all records asked for again.
fn ask_again(sets: &mut Sets) {
    sets.fetched = 0;
    sets.items.iter_mut().for_each(|item| (item.fetch, item.seen) = (Fetch::Ask, false));
}

async fn read_all(tx: &mut Tx<'_>, dst: Dst, time: u64, claims: usize) -> Result<(), Stop> {
    let mut rereads = Rereads::default();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        // What is asked for again is claimed again. As far as rule 5 holds, the claims are still
        // there.
        let claims = if rereads.0 > 0 && mutant!(CommitLowersStamp) { claims & !crate::rpc::CLAIMS } else { claims };
        ask(tx.state, &mut round, time, claims);
        if round.is_empty() {
            return Err(Limit::Vector { clients: tx.state.vector.len() }.into());
        }
        let done = tx.lane.execute(round).await?;
        let busy = hear(tx, &done, |tx, index, done| arrived(tx, dst, index, done))?;
        drop(done);
        tx.skip_what_is_here();
        // The holder of the lock is about to commit, or to abort.
        rereads.pause(tx, busy).await?;
    }
    Ok(())
}

/// Adds the calls for all records that are not here to a round, as far as it has room: one call for
/// each node. All of them share the words of the vector, if there is one.
fn ask(state: &mut State, round: &mut Round<'_>, time: u64, claims: usize) {
    let State { sets, vector, .. } = state;
    let vector = (claims & HAS_VECTOR != 0).then(|| round.stage(vector.as_bytes()));
    let is_here = |item: &Item| matches!(item.fetch, Fetch::Here | Fetch::Absent | Fetch::Shared);
    sets.items[sets.fetched..].iter_mut().for_each(|item| item.asked = false);
    for first in sets.fetched..sets.items.len() {
        let item = sets.items[first];
        if !is_here(&item) && !item.asked {
            let due = |item: &Item| !is_here(item) && !item.asked;
            let node = sets.primary_node(&item);
            ask_node(sets, round, (node, first), (time, claims, vector), due);
        }
    }
}

/// Adds the call for all records at a node that are due, as far as the round has room. `first` is
/// the number of the first one.
fn ask_node(
    sets: &mut Sets,
    round: &mut Round<'_>,
    (node, first): (NodeId, usize),
    (time, claims, vector): (u64, usize, Option<Staged>),
    due: impl Fn(&Item) -> bool,
) {
    let (mut request, mut asked, mut room) = (vec![0, time], Vec::new(), 0);
    for index in first..sets.items.len() {
        let item = sets.items[index];
        if !due(&item) || sets.primary_node(&item) != node {
            continue;
        }
        let table = registered(&sets.tables, item.table);
        let answer = READ_REPLY_WORDS + table.shape().record_bytes() / 8;
        let key = item.key_words(&sets.arena);
        if !round.has_room(1, (request.len() + 1 + key.len() + 1 + room + answer) * 8) {
            break;
        }
        push_claimed(&mut request, table.shard_id(item.home.shard), answer, key);
        sets.items[index].answer_at = room as u32;
        asked.push(index);
        room += answer;
    }
    if asked.is_empty() {
        return;
    }
    request[0] = claim_word(claims, asked.len());
    let call = round.call(node, &request, vector, room);
    for index in asked {
        let item = &mut sets.items[index];
        (item.asked, item.call) = (true, call);
    }
}

/// Takes the answer about an item in the reply to a CLAIM.
fn arrived(tx: &mut Tx<'_>, dst: Dst, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    let record_words = tx.state.sets.shape(&item).record_bytes() / 8;
    let answer = done.reply(item.call).get(item.answer_at as usize..).unwrap_or(&[]);
    match *answer {
        [ABSENT, ..] => {
            let item = &mut tx.state.sets.items[index];
            if item.fetched_before() == Some(true) {
                return Err(Abort::Changed.into());
            }
            (item.fetch, item.seen, item.chain) = (Fetch::Absent, true, 0);
            Ok(Examined::Kept)
        }
        [LATER, time, ..] => {
            // The next attempt reads a later snapshot.
            dst.has_met(tx, time);
            Err(Abort::Later.into())
        }
        [BUSY, lock, entry, ..] => {
            found_at(tx, index, entry);
            Ok(Examined::Unstable(Abort::Locked(LockWord::from_bits(lock))))
        }
        [FOUND, newest, entry, ref rest @ ..] if rest.len() >= record_words => {
            let record = &rest[..record_words];
            found_at(tx, index, entry);
            // If this client's clock is behind, its next snapshot has what this one has not.
            dst.has_met(tx, newest);
            match tx.examine(index, record) {
                Examined::Kept if tx.state.sets.items[index].is_as(&item) => Ok(Examined::Kept),
                Examined::Unstable(why) => Ok(Examined::Unstable(why)),
                // Its key is in another incarnation now, or it was read before and is another.
                Examined::Kept | Examined::Another => Err(Abort::Changed.into()),
            }
        }
        _ => Err(Abort::Changed.into()),
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
