//! Locking and validation of optimistic concurrency control: the two phases before the log.

use remora_fabric::{Completed, Round, probes};
use remora_index::BucketRef;
use remora_index::cluster_hash::{BUCKET_BYTES, still_absent};
use remora_record::{LockWord, Swap, TransactionId};

use super::Primitives;
use crate::error::{Abort, Stop};
use crate::protocol::Check;
use crate::protocol::clocks::{end_snapshot, has_raised, latest_read, raised_to};
use crate::protocol::refused::Refused;
use crate::protocol::spec::Primitive;
use crate::rpc::{self, Code};
use crate::sets::{CHAIN_WORDS, Fetch, Item, Lock, Sets, locks, shape};
use crate::state::State;
use crate::swap::swap_lock;
use crate::tx::Tx;

/// Validates a transaction that writes nothing. A single record needs no second look: it was
/// accepted only while it was free and whole, so it was current when it was read. Several records
/// must be looked at again together.
pub(super) async fn validate_read_only(tx: &mut Tx<'_>, primitives: Primitives) -> Result<(), Stop> {
    if tx.attempt.snapshot.is_some() {
        // What it has read belongs together already.
        end_snapshot(tx);
    } else if tx.state.sets.items.len() > 1 {
        validate(tx, primitives, false).await?;
        tx.validated();
    }
    Ok(())
}

/// Takes the lock of every record to be written, and sees in the same round trip whether the record
/// is still as it was read.
///
/// CAS then READ is an ordered pair. So if the CAS has won, the READ shows the locked record. A
/// call reads after it has locked. If locking and validation are not
/// [`merged`](Primitives::merged), `validate` looks at the record instead. With clocks, a draw at
/// each node follows the CASs there (`landing.rs`, invariant 9).
pub(super) async fn lock_and_validate(tx: &mut Tx<'_>, primitives: Primitives) -> Result<(), Stop> {
    let me = tx.id.lock();
    let (merged, is_timed) = (primitives.merged, primitives.has_clocks());
    tx.state.clocks.begin_draws();
    tx.locking = true;
    tx.lane.probe(probes::LOCKS);
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        let State { sets: Sets { tables, items, .. }, clocks, .. } = &mut *tx.state;
        for item in &mut items[first..] {
            // A leaf that its CPU has locked for a change is locked, and validated, already.
            if item.is_written() && item.lock != Lock::Held {
                let bytes = shape(tables, item).validated_bytes();
                let draws = if is_timed { 1 + clocks.owed_draws() } else { 0 };
                if !round.has_room(2 + draws, 6 * 8 + bytes + 8 * draws) {
                    break;
                }
                if is_timed {
                    clocks.wants_draw(item.address.node);
                    if mutant!(DrawBeforeLocks) {
                        clocks.draw_behind_locks(&mut round);
                    }
                }
                if locks(tables, item) == Primitive::Call {
                    let request = [Code::Lock.word(0), item.location.pointer.to_bits(), me.to_bits()];
                    item.call = round.call(item.address.node, &request, None, 2);
                } else {
                    item.swap = swap_lock(&mut round, item.address, Swap::lock(me));
                    if merged {
                        item.read = round.read(item.address, bytes);
                    }
                }
                item.lock = Lock::Maybe;
            }
            next += 1;
        }
        clocks.draw_behind_locks(&mut round);
        let done = tx.lane.execute(round).await?;
        tx.state.clocks.note_draws(&done);
        let mut refused = Refused::default();
        let Sets { tables, items, .. } = &mut tx.state.sets;
        for (index, item) in (first..).zip(&mut items[first..next]).filter(|(_, item)| item.lock == Lock::Maybe) {
            let shape = shape(tables, item);
            let (previous, header) = if locks(tables, item) == Primitive::Call {
                let Some(header) = shape.validated(done.reply(item.call)) else {
                    refused.is_gone();
                    continue;
                };
                (header.lock, Some(header))
            } else {
                let header = if merged { shape.validated(done.words(item.read)) } else { None };
                (LockWord::from_bits(done.previous(item.swap)), header)
            };
            if !previous.is_free() {
                refused.is_locked(index, item, previous);
                continue;
            }
            item.lock = if merged { Lock::Held } else { Lock::Unseen };
            if !merged {
                continue;
            }
            let is_unchanged = header.is_some_and(|header| header.still_shows(item.version));
            if !is_unchanged && !mutant!(LockWithoutValidation) {
                refused.has_changed(index, item, header.is_some_and(|header| header.version.is_rolled_back()));
            }
        }
        drop(done);
        refused.outcome(tx)?;
    }
    Ok(())
}

/// Looks again at the records that were only read (invariants 1 and 6), and at the written records
/// whose locks did not validate them. If the transaction `writes` nothing, or gives up what it
/// meant to write, looks again at all records.
pub(super) async fn validate(tx: &mut Tx<'_>, primitives: Primitives, writes: bool) -> Result<(), Stop> {
    debug_assert!(
        !writes || tx.state.sets.write_set_is_locked() || mutant!(ValidateWithLocks),
        "occ 1: what is only read is validated after all locks of the write set are held"
    );
    let merged = primitives.merged;
    let primitive = if primitives.has_clocks() { Primitive::OneSided } else { primitives.validate };
    validate_those(tx, primitive, writes, |item| !(writes && merged && item.is_written())).await
}

/// Checks that the keys that were absent still are, by READs of the buckets that would have them.
pub(in crate::protocol) async fn validate_absent(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let is_absent = |item: &Item| matches!(item.fetch, Fetch::Absent);
    if !tx.state.sets.items.iter().any(is_absent) {
        return Ok(());
    }
    validate_those(tx, Primitive::OneSided, true, is_absent).await
}

async fn validate_those(
    tx: &mut Tx<'_>,
    primitive: Primitive,
    writes: bool,
    due: impl Fn(&Item) -> bool,
) -> Result<(), Stop> {
    let ignore_locks = if writes { mutant!(ValidateVersionOnly) } else { mutant!(ValidateReadOnlyVersionOnly) };
    let me = tx.id;
    let raises_to = raised_to(tx, writes);
    tx.state.clocks.begin_snapshot();
    let (mut next, mut raises) = (0, 0);
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        let State { sets, clocks, checks, .. } = &mut *tx.state;
        checks.clear();
        while let Some(item) = sets.items.get(next) {
            if due(item) {
                if raises_to > 0 {
                    if !round.has_room(2, 32) {
                        break;
                    }
                    clocks.claim(&mut round, sets.primary_node(item), raises_to, true);
                }
                if !look_again(sets, next, primitive, &mut round, checks) {
                    break;
                }
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        if !has_raised(tx, &done, raises_to, &mut raises)? {
            next = first;
            continue;
        }
        for number in 0..tx.state.checks.len() {
            let check = tx.state.checks[number];
            // A key that is absent now must not have been deleted after what the transaction has
            // read, or at its own time.
            let absent_by = || if writes { tx.time.saturating_sub(1) } else { latest_read(tx) };
            if let Err(abort) = passes(&tx.state.sets, &done, check, absent_by, (me, ignore_locks)) {
                match (abort, check) {
                    (Abort::Locked(lock), Check::Read { item, .. } | Check::Call { item, .. }) => tx.met(item, lock),
                    (
                        _,
                        Check::Read { item, .. }
                        | Check::Call { item, .. }
                        | Check::Bucket { item, .. }
                        | Check::Find { item, .. },
                    ) => tx.state.sets.note(item, abort.into()),
                }
                return Err(abort.into());
            }
        }
    }
    Ok(())
}

/// Adds to a validation round the verbs that look again at an item. Returns false if the round has
/// no room for them.
#[inline]
fn look_again(sets: &Sets, item: usize, primitive: Primitive, round: &mut Round<'_>, checks: &mut Vec<Check>) -> bool {
    let one = &sets.items[item];
    if matches!(one.fetch, Fetch::Here) {
        let bytes = sets.shape(one).validated_bytes();
        if !round.has_room(1, 3 * 8 + bytes) {
            return false;
        }
        checks.push(if primitive == Primitive::Call {
            let request = [Code::Validate.word(0), one.location.pointer.to_bits()];
            Check::Call { item, call: round.call(one.address.node, &request, None, 2) }
        } else {
            Check::Read { item, read: round.read(one.address, bytes) }
        });
        return true;
    }
    if mutant!(AbsentWithoutValidation) {
        return true;
    }
    let table = sets.table(one.table);
    let is_timed = table.entry().spec.discipline.unlinks_by_cpu();
    if one.chain == 0 || one.collided {
        let (request, words) = rpc::key_request(Code::Find, table.shard_id(one.home.shard), one.key_words(&sets.arena));
        if !round.has_room(1, (words + 3) * 8) {
            return false;
        }
        if is_timed {
            // A call has no order to the CAS that raises the clock.
            round.after_completion();
        }
        let words_of_reply = 1 + usize::from(is_timed);
        let call = round.call(sets.primary_node(one), &request[..words], None, words_of_reply);
        checks.push(Check::Find { item, call });
        return true;
    }
    // Each bucket in the arena names the bucket before it.
    let before = |at: &usize| (sets.arena[*at] as usize).checked_sub(1);
    let chain = std::iter::successors((one.chain as usize).checked_sub(1), before);
    let buckets = chain.clone().count();
    if !round.has_room(buckets, buckets * BUCKET_BYTES) && !round.is_empty() {
        return false;
    }
    checks.extend(chain.map(|chain| {
        let bucket = BucketRef { shard: sets.arena[chain + 1] as u16, bucket: sets.arena[chain + 2] };
        Check::Bucket { item, chain, read: round.read(table.bucket_address(bucket), BUCKET_BYTES) }
    }));
    true
}

/// Checks that what was looked at again is still what was read, and that no other transaction has
/// it locked.
#[inline]
fn passes(
    sets: &Sets,
    done: &Completed<'_>,
    check: Check,
    absent_by: impl FnOnce() -> u64,
    (me, ignore_locks): (TransactionId, bool),
) -> Result<(), Abort> {
    let (item, words) = match check {
        Check::Read { item, read } => (&sets.items[item], done.words(read)),
        Check::Call { item, call } => (&sets.items[item], done.reply(call)),
        Check::Bucket { item, chain, read } => {
            let (before, now, item) = (&sets.arena[chain..][..CHAIN_WORDS][3..], done.words(read), &sets.items[item]);
            let absent = if sets.table(item.table).entry().spec.discipline.unlinks_by_cpu() {
                // Nor was the key inserted and deleted meanwhile, at a time that is not known.
                before == now
            } else {
                still_absent(before, now, item.hash.word)
            };
            return if absent { Ok(()) } else { Err(Abort::Changed) };
        }
        Check::Find { call, .. } => {
            return match *done.reply(call) {
                [0] => Ok(()),
                [0, gone] if gone <= absent_by() => Ok(()),
                [0, _] => Err(Abort::Later),
                _ => Err(Abort::Changed),
            };
        }
    };
    let Some(now) = sets.shape(item).validated(words) else { return Err(Abort::Changed) };
    if !now.lock.is_free() && !now.lock.is_held_by(me) && !ignore_locks {
        return Err(Abort::Locked(now.lock));
    }
    if now.still_shows(item.version) { Ok(()) } else { Err(Abort::Changed) }
}
