//! Repair: any client that meets the same lock for long finishes or undoes the attempt that has it.
//!
//! ```text
//! a lock with a log     READ the lock and the log's word
//!    begun              CAS(begun -> aborted)
//!    aborted            CAS unlock
//!    decided            READ the entries; then READ the word again: still decided;
//!                       CAS the object's words, CAS unlock
//!    ended, or of a     CAS unlock: if the lock is still there, it was taken too late
//!    later attempt
//!
//! a lock without a log  take    CAS(lock -> own lock), READ the place
//!                       mark    CAS(place -> the same, with the next mark)
//!                               failed: READ the place; then READ the lock: still own;
//!                               mark again
//!                       unlock  CAS(own lock -> freed)
//! ```
//!
//! A client suspects a lock that it has met with the same word for
//! [`Rtx::suspicion_ns`](super::Rtx), by its own clock. It may be wrong: the holder may only be
//! slow. Nothing relies on the suspicion. Whatever the holder still does are CASes of words that
//! never recur, so they fail if they come too late.
//!
//! *Why the mark.* While an object is unlocked, no CAS on its way expects its place. A client that
//! takes a lock from another attempt changes the place before the lock is freed, so that the other
//! attempt's CAS, which may still come, must fail. A client that got the lock by the CAS from a
//! free word need not.

use std::sync::Arc;

use remora_fabric::{Address, Lane, NodeId, WORD_BYTES};
use remora_index::Table;
use remora_index::objects::AT_BLOCKS;
use remora_node::ring::attempt_log_at;
use remora_node::{ClientSlot, Pointer, connected};
use remora_record::{FetchedRecord, KeyHash, Life, LockWord, LogPlace, Place, RepairableLock, TransactionId};

use super::execute::{BLOCKS_TAKEN, blocks_arrived};
use super::pool::{List, block_address};
use super::state::{Repairs, Site, Suspect};
use crate::attempts::{self, Stage, ring_of};
use crate::error::{Limit, Stop};
use crate::limits::READ_PAUSE_NS;
use crate::recovery::Verdict;
use crate::sets::Sets;
use crate::state::State;
use crate::tx::Tx;

/// Repairs the locks that this session has met for long enough.
pub(super) async fn help(tx: &mut Tx<'_>, suspicion_ns: u64) -> Result<(), Stop> {
    tx.state.repairs.suspicion_ns = suspicion_ns;
    if tx.state.repairs.suspects.is_empty() {
        return Ok(());
    }
    let now = tx.lane.now();
    let is_due = |suspect: &Suspect| suspect.is_due(now, suspicion_ns);
    while let Some(at) = tx.state.repairs.suspects.iter().position(is_due) {
        let suspect = tx.state.repairs.suspects.swap_remove(at);
        repair(tx, suspect).await?;
    }
    Ok(())
}

async fn repair(tx: &mut Tx<'_>, suspect: Suspect) -> Result<(), Stop> {
    let Some(at) = address_of(&tx.state.sets, suspect.lock) else { return Ok(()) };
    let Some(lock) = suspect.word.repairable().filter(|lock| lock.holder().is_some()) else { return Ok(()) };
    match lock.log() {
        Some(LogPlace::Nowhere) => take_and_mark(tx, suspect.lock, at, suspect.word).await,
        Some(LogPlace::Here) => by_log(tx, suspect, at, at.node).await,
        Some(LogPlace::Leader) => by_log(tx, suspect, at, tx.state.nodes.leader()).await,
        None => Ok(()),
    }
}

/// Returns the CAS words that free a lock.
fn unlock(lock: LockWord) -> (u64, u64) {
    (lock.to_bits(), lock.freed().to_bits())
}

/// Finishes or undoes what an attempt does to one object, by the attempt's log.
async fn by_log(tx: &mut Tx<'_>, suspect: Suspect, at: Address, node: NodeId) -> Result<(), Stop> {
    let Some(id) = suspect.word.holder() else { return Ok(()) };
    let lane = tx.lane;
    let Some(client) = client_of(tx, node, id.owner()).await? else {
        // The client's logs were ended before it gave its slot back.
        return free(lane, at, suspect.word).await;
    };
    let (word_at, entries_at) = attempt_log_at(node, client.ring(ring_of(id.sequence(), client.lanes)));
    let mut round = lane.round();
    let (lock, word) = (round.read(at, WORD_BYTES), round.read(word_at, WORD_BYTES));
    let done = lane.execute(round).await?;
    let (lock, mut word) = (done.words(lock)[0], done.words(word)[0]);
    drop(done);
    if lock != suspect.word.to_bits() {
        return Ok(());
    }
    loop {
        let stage = match attempts::parse(word) {
            Some((stage, whose)) if whose == id => stage,
            Some((_, whose)) if whose > id => Stage::Undone,
            // An attempt begins its log before it takes a lock.
            _ => return Ok(()),
        };
        match stage {
            // The lock is another one by now. If not, the CAS that took it came after the attempt
            // was undone.
            Stage::Done | Stage::Undone => return free(lane, at, suspect.word).await,
            Stage::Begun if mutant!(FreeSuspects) => return free(lane, at, suspect.word).await,
            Stage::Begun => {
                let aborted = attempts::word(Stage::Aborted, id);
                let mut round = lane.round();
                let swap = round.compare_swap(word_at, word, aborted);
                let done = lane.execute(round).await?;
                word = if done.swapped(swap) { aborted } else { done.previous(swap) };
            }
            Stage::Aborted => return free(lane, at, suspect.word).await,
            Stage::Decided => {
                let swaps = attempts::entries(lane, entries_at).await?;
                let mut round = lane.round();
                let read = round.read(word_at, WORD_BYTES);
                let now = lane.execute(round).await?.words(read)[0];
                if now != word {
                    word = now;
                    continue;
                }
                let mut round = lane.round();
                for swap in swaps.iter().filter(|swap| swap.lock == suspect.lock) {
                    round.compare_swap(at.plus(swap.word * WORD_BYTES as u64), swap.old, swap.new);
                }
                let (from, to) = unlock(suspect.word);
                round.compare_swap(at, from, to);
                lane.execute(round).await?;
                tracing::debug!(id = %tx.id, %at, of = %id, "finished what another attempt had decided");
                return Ok(());
            }
        }
    }
}

/// Calls `give` with the site of an object, if the session knows the object's table.
fn give_out(tx: &mut Tx<'_>, object: Pointer, give: impl FnOnce(&mut Repairs, Site)) {
    let State { sets, repairs, .. } = &mut *tx.state;
    if let Some(table) = table_of(sets, object) {
        give(repairs, Site::of(table, object));
    }
}

/// Takes a lock without a log from the attempt that has it. Returns the word behind the lock, or
/// `None` if the lock has another word by now.
async fn take(lane: &Lane, at: Address, from: LockWord, own: LockWord) -> Result<Option<u64>, Stop> {
    let mut round = lane.round();
    let swap = round.compare_swap(at, from.to_bits(), own.to_bits());
    let read = round.read(at.plus(WORD_BYTES as u64), WORD_BYTES);
    let done = lane.execute(round).await?;
    Ok(done.swapped(swap).then(|| done.words(read)[0]))
}

/// Changes the word behind a lock that was taken. Returns whether the word was still the `old` one.
async fn mark(lane: &Lane, at: Address, old: u64, new: u64) -> Result<bool, Stop> {
    let mut round = lane.round();
    let swap = round.compare_swap(at.plus(WORD_BYTES as u64), old, new);
    Ok(lane.execute(round).await?.swapped(swap))
}

/// Looks again at the word behind a lock that was taken, which could not be marked: the former
/// holder's swap has come first, or another repairer has taken the lock. Returns `None` if the lock
/// is not the `own` one any more.
async fn look_again(lane: &Lane, at: Address, own: LockWord) -> Result<Option<u64>, Stop> {
    let mut round = lane.round();
    let read = round.read(at.plus(WORD_BYTES as u64), WORD_BYTES);
    let word = lane.execute(round).await?.words(read)[0];
    // This look comes later: if the lock is still the own one, the word is what it protects.
    let mut round = lane.round();
    let read = round.read(at, WORD_BYTES);
    let is_own = lane.execute(round).await?.words(read)[0] == own.to_bits();
    Ok(is_own.then_some(word))
}

/// Takes a lock without a log from the attempt that has it, marks the word behind the lock, and
/// frees the lock. `marked` returns the same word with the next mark, and `None` for a word that
/// never changes again.
pub(crate) async fn take_mark_free(
    lane: &Lane,
    at: Address,
    from: LockWord,
    own: RepairableLock,
    marked: impl Fn(u64) -> Option<u64>,
) -> Result<(), Stop> {
    if mutant!(FreeSuspects) {
        return free(lane, at, from).await;
    }
    let own = own.word();
    let mut word = take(lane, at, from, own).await?;
    while let Some(old) = word {
        match marked(old) {
            Some(new) if !mark(lane, at, old, new).await? => word = look_again(lane, at, own).await?,
            _ => return free(lane, at, own).await,
        }
    }
    Ok(())
}

async fn free(lane: &Lane, at: Address, lock: LockWord) -> Result<(), Stop> {
    let mut round = lane.round();
    let (from, to) = unlock(lock);
    round.compare_swap(at, from, to);
    lane.execute(round).await?;
    Ok(())
}

/// Returns the slot of a client at a node. `None` if the client has left.
async fn client_of(tx: &mut Tx<'_>, node: NodeId, owner: u32) -> Result<Option<ClientSlot>, Stop> {
    if let Some(known) = tx.state.repairs.client(node, owner) {
        return Ok(Some(known));
    }
    let clients = connected(tx.lane, node).await?;
    tx.state.repairs.note_clients(node, clients);
    Ok(tx.state.repairs.client(node, owner))
}

/// Takes a lock without a log from the attempt that has it, and changes the object's place.
async fn take_and_mark(tx: &mut Tx<'_>, lock: Pointer, at: Address, from: LockWord) -> Result<(), Stop> {
    if mutant!(FreeSuspects) {
        return free(tx.lane, at, from).await;
    }
    // A client without ids becomes another incarnation before its next attempt.
    let Ok(id) = tx.state.next_id() else { return Ok(()) };
    let Some(own) = RepairableLock::held_by(id, LogPlace::Nowhere) else { return Err(Limit::TransactionIds.into()) };
    let own = own.word();
    let lane = tx.lane;
    let mut word = take(lane, at, from, own).await?;
    while let Some(place) = word.map(Place::from_bits) {
        let marked = match place.marked() {
            Some(marked) => marked,
            None if place.block().is_none() => break,
            // All marks of this use are used up.
            None => match copied(tx, lock, place).await? {
                Some(copy) => copy,
                // The lock stays, for the next client that meets it: it must not be freed without a
                // mark.
                None => return Ok(()),
            },
        };
        let is_copy = marked.unmarked() != place.unmarked();
        if is_copy {
            // If the answer is not heard, the object may have the copy. Then the session must not.
            tx.state.repairs.keep_block(marked);
        }
        if mark(lane, at, place.to_bits(), marked.to_bits()).await? {
            if is_copy {
                give_out(tx, lock, |repairs, site| repairs.displaced(site, place));
            }
            break;
        }
        if is_copy {
            give_out(tx, lock, |repairs, site| repairs.add_free(site, marked));
        }
        word = look_again(lane, at, own).await?;
    }
    if word.is_none() {
        return Ok(());
    }
    tracing::debug!(id = %tx.id, %at, lock = ?from, "took a lock without a log from another attempt");
    free(lane, at, own).await
}

/// Copies the value of a place to another block. `None` if the value is gone, because another
/// repairer has taken the lock, or if there is no block.
async fn copied(tx: &mut Tx<'_>, lock: Pointer, place: Place) -> Result<Option<Place>, Stop> {
    let Some(table) = table_of(&tx.state.sets, lock).cloned() else { return Ok(None) };
    let site = Site::of(&table, lock);
    let Some(from) = block_address(&table, lock, place) else { return Ok(None) };
    let mut round = tx.lane.round();
    let read = round.read(from, table.shape().record_bytes());
    let done = tx.lane.execute(round).await?;
    let Ok(record) = FetchedRecord::new(done.words(read), table.shape()).check_in_place() else { return Ok(None) };
    if record.extra().first() != Some(&place.unmarked()) {
        return Ok(None);
    }
    let key: Vec<u64> = record.key().collect();
    let hash = KeyHash::of(&key);
    let mut value = Vec::new();
    record.copy_value(&mut value);
    let (version, bytes) = (record.version(), record.value_bytes());
    drop(done);
    let mut copy = tx.state.repairs.take_block(tx.lane, site, hash);
    if copy.is_none() {
        let mut round = tx.lane.round();
        let add = round.fetch_add(table.primary_at(lock, AT_BLOCKS), BLOCKS_TAKEN);
        let first = tx.lane.execute(round).await?.added(add);
        blocks_arrived(&mut tx.state.repairs, &table, site, first);
        copy = tx.state.repairs.take_block(tx.lane, site, hash);
    }
    let Some(copy) = copy else { return Ok(None) };
    let Some(to) = block_address(&table, lock, copy) else { return Ok(None) };
    let mut image = Vec::new();
    let value = zerocopy::IntoBytes::as_bytes(&value[..]);
    let (life, extra) = (Life::Present { incarnation: 0 }, [copy.unmarked()]);
    table.shape().encode_with_extra(version, life, &extra, &key, &value[..bytes], &mut image);
    let mut round = tx.lane.round();
    round.write_words(to.plus(table.shape().image_at()), &image);
    tx.lane.execute(round).await?;
    Ok(Some(copy))
}

/// Makes sure that this lane's log at a node can be begun: everything that the last attempt has
/// posted has come, and it is known how that attempt has ended.
pub(super) async fn make_ready(lane: &Lane, state: &mut State, node: NodeId) -> Result<(), Stop> {
    // A CAS and a later WRITE are not ordered. So the swaps of the last attempt must have come
    // before its entries are overwritten.
    while lane.background() > 0 {
        lane.hurry();
        lane.sleep(READ_PAUSE_NS).await;
    }
    state.repairs.hear();
    state.repairs.notice_failures(lane);
    if state.repairs.log_word(node).is_some() {
        return Ok(());
    }
    let log = state.rings[usize::from(node.0)].attempt_log_at();
    let (word, ended) = attempts::settle(lane, state.nodes, log).await?;
    if let Some((id, has_committed)) = ended.filter(|(id, _)| state.is_of(*id)) {
        state.repairs.outcomes.ended(id, has_committed);
    }
    state.repairs.note_log_word(node, Some(word));
    Ok(())
}

/// Ends what a session has begun, and returns all blocks and buckets that it owns, before it rests
/// or leaves. Nothing of it may be under way.
pub(crate) async fn rest(lane: &Lane, state: &mut State) -> Result<(), Stop> {
    for node in state.nodes.iter() {
        // When the client has left, nobody can find its logs any more.
        make_ready(lane, state, node).await?;
    }
    while let Some((site, place)) = state.repairs.pop_block() {
        put(lane, state, List::Blocks, (site, place)).await?;
    }
    while let Some((site, place)) = state.repairs.pop_spare() {
        put(lane, state, List::Buckets, (site, place)).await?;
    }
    Ok(())
}

async fn put(lane: &Lane, state: &State, list: List, (site, place): (Site, Place)) -> Result<(), Stop> {
    let has = |table: &&Arc<Table>| table.born() == site.born && table.has_shard(site.shard);
    match state.sets.tables.iter().flatten().find(has) {
        Some(table) => list.put(lane, table, Pointer::new(site.shard, 0), place).await,
        // A session forgets a table when the table is gone.
        None => Ok(()),
    }
}

/// Returns what is known of the outcome of an attempt: by its client, if that is this one, and
/// otherwise by the attempt's log. Not every attempt has a log.
pub(crate) async fn look_up(lane: &Lane, state: &State, id: TransactionId) -> Result<Verdict, Stop> {
    let known = || if state.is_of(id) { state.repairs.outcomes.of(id) } else { None };
    let is_own = state.is_of(id) && state.repairs.is_own(id);
    let is_at_rest = is_own && lane.background() == 0;
    match known() {
        Some(verdict @ (Verdict::Committed | Verdict::Aborted)) => return Ok(verdict),
        // The program has given the attempt up before it was sent to be decided.
        None if is_at_rest && state.unsure.contains(&id) => return Ok(Verdict::Aborted),
        _ => {}
    }
    for node in state.nodes.iter() {
        let clients = connected(lane, node).await?;
        let Some(client) = clients.iter().find(|client| client.incarnation == id.owner()) else { continue };
        let (word_at, _) = attempt_log_at(node, client.ring(ring_of(id.sequence(), client.lanes)));
        let mut round = lane.round();
        let read = round.read(word_at, WORD_BYTES);
        let word = lane.execute(round).await?.words(read)[0];
        match attempts::parse(word).filter(|(_, whose)| *whose == id) {
            Some((Stage::Decided | Stage::Done, _)) => return Ok(Verdict::Committed),
            Some((Stage::Aborted | Stage::Undone, _)) => return Ok(Verdict::Aborted),
            Some((Stage::Begun, _)) => return Ok(Verdict::Undecided),
            None => {}
        }
    }
    Ok(match known() {
        // The answer was lost, and no log has it.
        Some(Verdict::Undecided) if is_at_rest => Verdict::Forgotten,
        Some(verdict) => verdict,
        None if is_own && !is_at_rest => Verdict::Undecided,
        None => Verdict::Forgotten,
    })
}

/// Returns the addresses of this lane's log at a node: of its word, and of its entries.
pub(super) fn log_of(tx: &Tx<'_>, node: NodeId) -> (Address, Address) {
    tx.state.rings[usize::from(node.0)].attempt_log_at()
}

/// Returns the address of an object's lock, if the session knows its table.
pub(super) fn address_of(sets: &Sets, lock: Pointer) -> Option<Address> {
    Some(table_of(sets, lock)?.primary(lock))
}

/// Returns the table of an object, if the session knows it.
fn table_of(sets: &Sets, lock: Pointer) -> Option<&Arc<Table>> {
    sets.tables.iter().flatten().find(|table| table.has_shard(lock.shard()))
}
