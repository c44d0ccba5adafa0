//! Validation: the primary's CPU checks that what was only read is unlocked and unchanged, and
//! notes the time of the transaction, in one step (invariant 3).

use remora_fabric::Round;

use crate::error::{Abort, Stop};
use crate::protocol::Check;
use crate::rpc::{Code, TIMED_REQUEST_WORDS_MAX, timed_key_request};
use crate::sets::{Fetch, Lock, Sets};
use crate::tx::Tx;

/// Words of a reply to STAMP: the lock word, the version, and 0 or a time that is too large.
const REPLY_WORDS: usize = 3;

/// Validates the records that were only read, and stamps them with `time`, unless that is 0. If the
/// transaction `writes` nothing, or gives up what it meant to write, validates all records.
pub(super) async fn validate(tx: &mut Tx<'_>, writes: bool, time: u64) -> Result<(), Stop> {
    debug_assert!(
        !writes || tx.state.sets.write_set_is_locked() || mutant!(ValidateWithLocks),
        "dst 3: what is only read is validated after all locks of the write set are held"
    );
    if mutant!(StampApart) {
        look_at_all(tx, writes, 0, true).await?;
        return look_at_all(tx, writes, time, false).await;
    }
    look_at_all(tx, writes, time, true).await
}

async fn look_at_all(tx: &mut Tx<'_>, writes: bool, time: u64, checks: bool) -> Result<(), Stop> {
    let ignores_locks = if writes { mutant!(ValidateVersionOnly) } else { mutant!(ValidateReadOnlyVersionOnly) };
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        let state = &mut *tx.state;
        state.checks.clear();
        while let Some(item) = state.sets.items.get(next) {
            // Under its own lock, a record is as it was read.
            let is_due = !(writes && item.is_written()) && item.lock != Lock::Held;
            if is_due && !look_again(&state.sets, next, time, &mut round, &mut state.checks) {
                break;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        for number in 0..if checks { tx.state.checks.len() } else { 0 } {
            let Check::Call { item, call } = tx.state.checks[number] else { continue };
            match passes(&tx.state.sets, item, done.reply(call), ignores_locks) {
                Ok(0) => {}
                Ok(later) => {
                    // The next attempt has a later time.
                    tx.state.time.raise(later);
                    tx.state.sets.note(item, Abort::Later.into());
                    return Err(Abort::Later.into());
                }
                Err(Abort::Locked(lock)) => {
                    tx.met(item, lock);
                    return Err(Abort::Locked(lock).into());
                }
                Err(abort) => {
                    tx.state.sets.note(item, abort.into());
                    return Err(abort.into());
                }
            }
        }
    }
    Ok(())
}

/// Adds to a round the call that looks again at an item. Returns false if the round has no room.
fn look_again(sets: &Sets, item: usize, time: u64, round: &mut Round<'_>, checks: &mut Vec<Check>) -> bool {
    let one = &sets.items[item];
    if mutant!(AbsentWithoutValidation) && !matches!(one.fetch, Fetch::Here) {
        return true;
    }
    let (request, words, node) = if matches!(one.fetch, Fetch::Here) {
        let mut request = [0; TIMED_REQUEST_WORDS_MAX];
        let about = [Code::Stamp.word(0), one.location.pointer.to_bits(), one.version.to_bits(), time];
        request[..about.len()].copy_from_slice(&about);
        (request, about.len(), one.address.node)
    } else {
        let table = sets.table(one.table);
        let shard = table.shard_id(one.home.shard);
        let (request, words) = timed_key_request(Code::StampAbsent, shard, time, one.key_words(&sets.arena));
        (request, words, sets.primary_node(one))
    };
    if !round.has_room(1, (words + 1 + REPLY_WORDS) * 8) {
        return false;
    }
    checks.push(Check::Call { item, call: round.call(node, &request[..words], None, REPLY_WORDS) });
    true
}

/// Checks what was replied about an item. Returns 0, or the time that the transaction's time has to
/// be above.
fn passes(sets: &Sets, item: usize, reply: &[u64], ignores_locks: bool) -> Result<u64, Abort> {
    let one = &sets.items[item];
    if !matches!(one.fetch, Fetch::Here) {
        let &[0, later] = reply else { return Err(Abort::Changed) };
        return Ok(later);
    }
    let (Some(now), Some(&later)) = (sets.shape(one).validated(reply), reply.get(2)) else {
        return Err(Abort::Changed);
    };
    if !now.lock.is_free() && !ignores_locks {
        return Err(Abort::Locked(now.lock));
    }
    if now.still_shows(one.version) { Ok(later) } else { Err(Abort::Changed) }
}
