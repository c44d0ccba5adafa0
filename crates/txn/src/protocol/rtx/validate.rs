//! The validation of `rtx`: everything that a transaction has read, and does not write, is looked
//! at once more, behind its last lock.

use std::ops::Range;

use remora_fabric::{Completed, Round, WORD_BYTES};
use remora_index::objects::{self, BUCKET_BYTES, LINK_WORD, OBJECT_BYTES};
use remora_record::{LockWord, Place, RepairableLock};

use super::execute::{CHAIN_HEAD_WORDS, chain_of, early_lock, main_bucket, met};
use super::state::{Look, Object};
use crate::error::{Abort, Stop};
use crate::sets::{Change, Fetch, Item, Lock, Sets, registered};
use crate::state::State;
use crate::tx::Tx;

/// Validates a transaction that writes nothing.
///
/// Each object was looked at twice. If all first looks came before all second ones, everything that
/// was read was current between them: the rounds of the execution have validated the transaction.
/// An object whose lock word is the same in both looks was not locked in between, because no lock
/// word recurs. And what it names was installed before it was unlocked.
pub(super) async fn validate_read_only(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let State { sets, repairs, .. } = &mut *tx.state;
    let (mut first, mut second) = (0, u32::MAX);
    let mut is_known = true;
    for index in 0..sets.items.len() {
        if sets.items[index].structural {
            continue;
        }
        let looks = repairs.object(index).looks;
        is_known &= matches!(sets.items[index].fetch, Fetch::Here) && sets.items[index].existed;
        (first, second) = (first.max(looks[0]), second.min(looks[1]));
    }
    if is_known && first < second || mutant!(ReadOnlyWithoutValidation) {
        tx.validated();
        return Ok(());
    }
    let mut round = tx.lane.round();
    tx.state.repairs.looks.clear();
    look_at(tx, &mut round, false).await?;
    send(tx, &mut round).await?;
    tx.validated();
    Ok(())
}

/// Adds a look at everything that was read and is not written. If the transaction `writes`, this
/// comes behind its locks.
pub(super) async fn look_at<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>, writes: bool) -> Result<(), Stop> {
    for index in 0..tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        if item.structural {
            continue;
        }
        if !item.existed {
            let is_locked = writes && item.change == Change::Insert;
            if !is_locked && !mutant!(AbsentWithoutValidation) {
                look_for(tx, round, index).await?;
            }
            continue;
        }
        if writes && item.is_written() || !matches!(item.fetch, Fetch::Here) {
            continue;
        }
        make_room(tx, round, (1, OBJECT_BYTES)).await?;
        let read = round.read(item.address, OBJECT_BYTES);
        tx.state.repairs.looks.push(Look::Same { item: index, read });
    }
    Ok(())
}

/// Looks at the answers to a round of the commit. Every lock that was taken is noted, even if the
/// transaction aborts.
pub(super) fn passed(tx: &mut Tx<'_>, done: &Completed<'_>) -> Result<(), Stop> {
    let mut stop = None;
    let looks = std::mem::take(&mut tx.state.repairs.looks);
    for look in &looks {
        if let Err((item, why)) = passes(tx, done, *look) {
            if let (Some(item), Stop::Abort(Abort::Locked(lock))) = (item, why) {
                let one = &tx.state.sets.items[item];
                let is_chain = matches!(look, Look::Chain { .. });
                let object = if is_chain { main_bucket(&tx.state.sets, one) } else { one.location.pointer };
                let _aborts_anyway = met(tx, object, lock);
            }
            if let Some(item) = item {
                tx.state.sets.note(item, why);
            }
            stop = stop.or(Some(why));
        }
    }
    tx.state.repairs.looks = looks;
    tx.state.repairs.looks.clear();
    stop.map_or(Ok(()), Err)
}

fn passes(tx: &mut Tx<'_>, done: &Completed<'_>, look: Look) -> Result<(), (Option<usize>, Stop)> {
    let changed = |item| Err((Some(item), Abort::Changed.into()));
    let locked = |item, lock| Err((Some(item), Abort::Locked(lock).into()));
    match look {
        Look::Log { swap } => {
            if done.swapped(swap) {
                return Ok(());
            }
            // Nobody but this lane begins its log, so what was known of it was wrong.
            debug_assert!(false, "rtx 2: a lane knows how its log has ended: {:x}", done.previous(swap));
            if let Some(node) = tx.state.repairs.log_at.take() {
                tx.state.repairs.note_log_word(node, None);
            }
            Err((None, Abort::Changed.into()))
        }
        Look::Lock { item: index, swap, read } => {
            let State { sets, repairs, .. } = &mut *tx.state;
            let item = &mut sets.items[index];
            if !done.swapped(swap) {
                item.lock = Lock::No;
                repairs.object(index).is_locked_early = false;
                let found = LockWord::from_bits(done.previous(swap));
                return if found.is_free() { changed(index) } else { locked(index, found) };
            }
            item.lock = Lock::Held;
            repairs.object(index).is_locked_early = false;
            let Object { word, floor, .. } = *repairs.object(index);
            let seen = [word, floor];
            let words = done.words(read);
            debug_assert_eq!(words.len() * WORD_BYTES, behind_lock(item).len());
            let same = words.iter().zip(seen).all(|(now, seen)| *now == seen);
            if same { Ok(()) } else { changed(index) }
        }
        Look::Same { item, read } => {
            let object = *tx.state.repairs.object(item);
            let &[lock, word] = done.words(read) else { return changed(item) };
            let lock = LockWord::from_bits(lock);
            let early = early_lock(tx.id).filter(|_| object.is_locked_early).map(RepairableLock::word);
            if !lock.is_free() && early != Some(lock) && !mutant!(ReadBehindLock) {
                return locked(item, lock);
            }
            let same_lock = lock == early.unwrap_or(object.free) || mutant!(ReadBehindLock);
            let same_word = word == object.word;
            if same_lock && same_word { Ok(()) } else { changed(item) }
        }
        Look::Chain { item, chain, read } => {
            let main = LockWord::from_bits(done.words(read)[0]);
            let is_main = is_main(&tx.state.sets, item, chain);
            if is_main && !main.is_free() && !is_own(tx, main) {
                return locked(item, main);
            }
            let is_own = is_main && is_own(tx, main);
            let fills = |(lock, place): &(u64, Place)| {
                let lock = LockWord::from_bits(*lock);
                place.block().is_none() && !lock.is_free() && !self::is_own(tx, lock) && !mutant!(PassLockedVacant)
            };
            if objects::objects(done.words(read)).any(|object| fills(&object)) {
                return changed(item);
            }
            if chain_is_same(&tx.state.sets, item, chain, done.words(read), is_main && !is_own) {
                Ok(())
            } else {
                changed(item)
            }
        }
    }
}

/// Returns whether a bucket in the arena is the main bucket of an item's chain.
fn is_main(sets: &Sets, item: usize, chain: usize) -> bool {
    sets.arena[chain + 2] == sets.items[item].home.bucket
}

/// Returns whether a bucket shows that a key is still absent.
fn chain_is_same(sets: &Sets, item: usize, chain: usize, now: &[u64], looks_at_lock: bool) -> bool {
    let item: &Item = &sets.items[item];
    debug_assert!(registered(&sets.tables, item.table).objects().is_some());
    let seen = &sets.arena[chain + CHAIN_HEAD_WORDS..][..BUCKET_BYTES / WORD_BYTES];
    let same_places = objects::objects(seen)
        .zip(objects::objects(now))
        .all(|((_, seen), (_, now))| seen == now || !now.may_be_of(item.hash));
    (!looks_at_lock || now[0] == seen[0]) && now[LINK_WORD] == seen[LINK_WORD] && same_places
}

/// Makes sure that a round has room, and sends it first if it has none.
pub(super) async fn make_room<'s>(
    tx: &mut Tx<'s>,
    round: &mut Round<'s>,
    (verbs, bytes): (usize, usize),
) -> Result<(), Stop> {
    if round.has_room(verbs, bytes) { Ok(()) } else { send(tx, round).await }
}

/// Sends a round of the commit, and looks at its answers.
pub(super) async fn send<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>) -> Result<(), Stop> {
    let full = std::mem::replace(round, tx.lane.round());
    let done = match tx.lane.execute(full).await {
        Ok(done) => done,
        Err(error) => {
            tx.state.repairs.round_failed();
            return Err(error.into());
        }
    };
    passed(tx, &done)
}

/// Returns where the words of an item's object lie behind its lock, in bytes.
pub(super) fn behind_lock(item: &Item) -> Range<usize> {
    if item.structural { WORD_BYTES..3 * WORD_BYTES } else { WORD_BYTES..OBJECT_BYTES }
}

/// Adds READs of the buckets of an absent key's chain.
pub(super) async fn look_for<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>, index: usize) -> Result<(), Stop> {
    let mut chain = tx.state.sets.items[index].chain;
    loop {
        let link = chain_of(&tx.state.sets.arena, chain).next().map(|link| (link.place, link.bucket));
        let Some((place, bucket)) = link else { return Ok(()) };
        make_room(tx, round, (1, BUCKET_BYTES)).await?;
        let State { sets, repairs, .. } = &mut *tx.state;
        let read = round.read(sets.table(sets.items[index].table).bucket_address(bucket), BUCKET_BYTES);
        repairs.looks.push(Look::Chain { item: index, chain: place, read });
        chain = sets.arena[place] as u32;
    }
}

/// Returns whether a lock word is one of this attempt.
pub(super) fn is_own(tx: &Tx<'_>, lock: LockWord) -> bool {
    lock.is_held_by(tx.id) || lock.holder() == Some(tx.id)
}
