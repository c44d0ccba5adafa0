//! The times of `vts`: each client numbers its commits by itself, and an oracle knows which vector
//! of these numbers is stable. This is the client's end; the memory node's end is
//! `oracle/vector.rs`, and `vector.rs` of this crate says what a vector is.
//!
//! A client that has given a commit its number tells the oracle when the commit is installed, or
//! has aborted: other clients may have met the number meanwhile. So it notes that as with `gts`
//! (`State::owed`).

use remora_fabric::limits::ROUND_WORDS_MAX;

use crate::error::{Abort, Limit, Stop};
use crate::oracle::Question;
use crate::rpc::{Code, LOCK_REPLY_WORDS, READERS_TOLD};
use crate::tx::Tx;
use crate::vector::{self, Commits, UNKNOWN, Vector};

/// Words of a vector at most. The other half of a round is for the records of a snapshot.
const VECTOR_WORDS_MAX: usize = ROUND_WORDS_MAX / 2;
/// Clients that may join between two looks at the vector without a further round trip.
const SPARE: usize = 16;

/// Fetches the vector of the snapshot that a transaction is about to read.
pub(super) async fn fetch_vector(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let host = tx.state.cache_host();
    let mut room = tx.state.vector.len() + SPARE;
    loop {
        let missed = tx.state.time.missed();
        let request = [Code::Oracle.word(Question::Vector as usize), tx.state.epoch, missed, room as u64];
        let mut round = tx.lane.round();
        let call = round.call(host, &request, None, 2 + room);
        let done = tx.lane.execute(round).await?;
        let Some((&[words, waits_for], vector)) = done.reply(call).split_first_chunk() else {
            return Err(Abort::Later.into());
        };
        if vector.len() as u64 == words {
            tx.state.vector.clear();
            tx.state.vector.extend_from_slice(vector);
            tx.state.time.miss(0);
            drop(done);
            retire(tx, waits_for as u32).await?;
            return has_what_moved(tx).await;
        }
        room = words as usize + SPARE;
        if room > VECTOR_WORDS_MAX {
            return Err(Limit::Vector { clients: words as usize }.into());
        }
    }
}

/// If a client is recovered, tells the oracle that nothing more comes of it.
async fn retire(tx: &mut Tx<'_>, client: u32) -> Result<(), Stop> {
    if client == 0 || !tx.state.departed.as_ref().is_some_and(|all| all.is_recovered(client)) {
        return Ok(());
    }
    // Whatever the client's commits come behind, some node has heard of it.
    let Some(heard) = heard(tx).await? else { return Ok(()) };
    let mut request = vec![Code::Oracle.word(Question::Retire as usize), tx.state.epoch, client.into()];
    request.extend_from_slice(heard.names());
    let mut round = tx.lane.round();
    round.call(tx.state.cache_host(), &request, None, 0);
    tx.lane.post(round);
    Ok(())
}

/// Returns the commits that any memory node has heard of. `None` if more clients have joined, so
/// that the next reader has to try again.
async fn heard(tx: &mut Tx<'_>) -> Result<Option<Commits>, Stop> {
    let (room, mut heard) = (tx.state.vector.len() + SPARE, Commits::default());
    for node in tx.state.nodes.iter() {
        let mut round = tx.lane.round();
        let call = round.call(node, &[Code::Heard.word(0), room as u64], None, 1 + room);
        let done = tx.lane.execute(round).await?;
        let Some((&count, names)) = done.reply(call).split_first() else { return Ok(None) };
        if count != names.len() as u64 {
            return Ok(None);
        }
        names.iter().for_each(|name| heard.add(*name));
    }
    Ok(Some(heard))
}

/// If a table has gone, makes sure that the snapshot has the commits by which its rows may have
/// moved to another table.
async fn has_what_moved(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let time = tx.state.time.clone();
    if time.was_behind() {
        let heard = heard(tx).await;
        match heard {
            Ok(Some(heard)) => time.need(heard),
            Ok(None) | Err(_) => {
                time.fall_behind();
                heard?;
                return Err(Abort::Later.into());
            }
        }
    }
    let vector = Vector::from_words(&tx.state.vector);
    if !time.needs_only(|name| vector.is_some_and(|vector| vector.has(name))) {
        return Err(Abort::Later.into());
    }
    time.need(Commits::default());
    Ok(())
}

/// Returns the name of the commit of a transaction that has all its locks, and notes which commits
/// it comes behind, and that the oracle is to hear of it.
pub(super) async fn commit_name(tx: &mut Tx<'_>) -> Result<u64, Stop> {
    join(tx).await?;
    let own = tx.id.owner();
    let state = &mut *tx.state;
    let name = vector::name(own, state.time.count());
    let stable = Vector::from_words(&state.vector);
    state.sets.items.iter().for_each(|item| state.behind.add(item.time));
    // A commit is stable behind all former ones of its client in any case.
    state.behind.remove_if(|one| vector::client_of(one) == own || stable.is_some_and(|stable| stable.has(one)));
    if mutant!(DependOnNothing) {
        state.behind.clear();
    }
    state.owed = Some((Question::Install, name));
    Ok(name)
}

/// Tells the oracle that the client will commit, before its first commit.
async fn join(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.state.time.get() == 0 {
        let (client, epoch, host) = (tx.id.owner(), tx.state.epoch, tx.state.cache_host());
        if !tx.state.time.join(tx.lane, host, epoch, client).await? {
            return Err(Abort::Later.into());
        }
    }
    Ok(())
}

/// Takes the readers that the reply to a LOCK names. Returns whether there are more.
pub(super) fn readers_of_lock(behind: &mut Commits, reply: &[u64]) -> bool {
    let Some((&count, readers)) = reply.get(LOCK_REPLY_WORDS - 1..).and_then(|rest| rest.split_first()) else {
        return false;
    };
    if !mutant!(OmitReaders) {
        readers.iter().for_each(|reader| behind.add(*reader));
    }
    count as usize > READERS_TOLD
}

/// Asks for the readers of records that are locked and have more than the reply to LOCK has room
/// for.
pub(super) async fn ask_for_readers(tx: &mut Tx<'_>, items: &[(usize, usize)]) -> Result<(), Stop> {
    let mut asked = 0;
    while asked < items.len() {
        let mut round = tx.lane.round();
        let mut calls = Vec::new();
        for &(index, count) in &items[asked..] {
            let item = &tx.state.sets.items[index];
            let request = [Code::Readers.word(0), item.location.pointer.to_bits()];
            if !round.has_room(1, (request.len() + 1 + count) * 8) {
                break;
            }
            calls.push(round.call(item.address.node, &request, None, count));
        }
        asked += calls.len().max(1);
        let done = tx.lane.execute(round).await?;
        let behind = &mut tx.state.behind;
        for call in &calls {
            match done.reply(*call) {
                // The node has begun anew, and does not know them.
                [] => behind.add(UNKNOWN),
                readers => readers.iter().for_each(|reader| behind.add(*reader)),
            }
        }
        if calls.is_empty() {
            behind.add(UNKNOWN); // no round has room for them
        }
    }
    Ok(())
}
