//! The validation of FORD: the client checks that the records which it only read are current, at
//! their primaries or in a version cache.

use remora_fabric::{Completed, Round};
use remora_index::fstore::BUCKET_HEADER_BYTES;
use remora_index::{BucketRef, Table};
use remora_node::Pointer;
use remora_record::{LockWord, RecordHeader, TransactionId, Version};

use super::Ford;
use super::chain::{chain_of, link};
use super::words::is_nobodys;
use crate::error::{Abort, Limit, Stop};
use crate::protocol::Check;
use crate::protocol::clocks::{end_snapshot, has_raised, note_times, raised_to};
use crate::protocol::spec::Validation;
use crate::rpc::Code;
use crate::sets::{Fetch, Item, Lock, Sets};
use crate::tx::Tx;
use crate::vcache;

/// Validates a transaction that writes nothing. A single record needs no second look if it is known
/// to have been current when it was read. Several records must be looked at again together.
pub(in crate::protocol) async fn validate_read_only(tx: &mut Tx<'_>, ford: Ford) -> Result<(), Stop> {
    if tx.attempt.snapshot.is_some() {
        // What it has read belongs together already.
        end_snapshot(tx);
        note_times(tx);
        return Ok(());
    }
    let accept_locked = mutant!(ValidateReadOnlyVersionOnly);
    let current = |item: &Item| matches!(item.fetch, Fetch::Here) && (item.current || accept_locked);
    let one = matches!(tx.state.sets.items.as_slice(), [item] if current(item) || item.lock == Lock::Held);
    if !one && !mutant!(ReadOnlyWithoutValidation) {
        consult(tx, ford.validation, false, true).await?;
        validate(tx, false).await?;
        tx.validated();
    }
    note_times(tx);
    Ok(())
}

/// Publishes in the version cache what this transaction is about to install, and *then* asks the
/// cache to vouch for the records that it only read.
pub(super) async fn consult(tx: &mut Tx<'_>, by: Validation, publish: bool, look: bool) -> Result<(), Stop> {
    debug_assert!(
        !publish || tx.locking && tx.state.sets.write_set_is_locked() || mutant!(PublishBehindCommit),
        "vcache 1: a writer publishes under its locks, and before its commit round"
    );
    match by {
        Validation::Remote => Ok(()),
        Validation::Local => {
            let Some(vcache) = &tx.state.vcache else { return Err(Limit::NoVersionCache.into()) };
            if publish {
                vcache.publish(published(&tx.state.sets));
            }
            for index in 0..if look { tx.state.sets.items.len() } else { 0 } {
                let vouched = {
                    let mut seen = seen(&tx.state.sets, &tx.state.sets.items[index]).peekable();
                    seen.peek().is_some() && seen.all(|(at, version)| vcache.is_current(at, version))
                };
                tx.state.sets.items[index].vouched = vouched;
            }
            Ok(())
        }
        Validation::Global => consult_host(tx, publish, look).await,
    }
}

/// Publishes in the cluster's version cache, and *then* asks the cache, by calls. One call is
/// almost always enough.
async fn consult_host(tx: &mut Tx<'_>, publish: bool, look: bool) -> Result<(), Stop> {
    let host = tx.state.cache_host();
    let mut pairs = std::mem::take(&mut tx.state.asked);
    pairs.clear();
    let sets = &tx.state.sets;
    let published = published(sets).filter(|_| publish).map(|pair| (None, pair));
    let items = sets.items.iter().enumerate().filter(|_| look);
    let seen = items.flat_map(|(index, item)| seen(sets, item).map(move |pair| (Some(index), pair)));
    pairs.extend(published.chain(seen));
    for item in pairs.iter().filter_map(|(item, _)| *item) {
        tx.state.sets.items[item].vouched = true;
    }
    for pairs in pairs.chunks(vcache::PAIRS_MAX) {
        let publishes = pairs.iter().filter(|(item, _)| item.is_none()).count();
        let mut round = tx.lane.round();
        let staged = round.stage_words(2 * pairs.len());
        for (words, (_, (record, version))) in round.staged_mut(staged).chunks_exact_mut(2).zip(pairs) {
            words.copy_from_slice(&[record.to_bits(), version.to_bits()]);
        }
        let head = [Code::Consult.word(publishes), tx.state.epoch];
        let call = round.call(host, &head, Some(staged), vcache::PAIRS_MAX / 64);
        let done = tx.lane.execute(round).await?;
        let current = done.reply(call);
        if current.len() < pairs.len().div_ceil(64) {
            return Err(Limit::NoVersionCache.into());
        }
        for (number, (item, _)) in pairs.iter().enumerate() {
            let Some(item) = item else { continue };
            tx.state.sets.items[*item].vouched &= current[number / 64] >> (number % 64) & 1 == 1;
        }
    }
    tx.state.asked = pairs;
    Ok(())
}

/// Returns the versions that this transaction is about to install, of records whose tables have a
/// version cache.
fn published(sets: &Sets) -> impl Iterator<Item = (Pointer, Version)> {
    let written = sets.items.iter().filter(|item| item.is_written() && has_cache(sets, item));
    written.map(|item| (item.location.pointer, item.installs()))
}

/// Returns whether the table of a record has a version cache.
fn has_cache(sets: &Sets, item: &Item) -> bool {
    sets.table(item.table).entry().spec.discipline.has_version_cache()
}

/// Returns the versions by which the version cache can tell whether a record that was only read is
/// current, or whether a key is still absent. Returns none if the cache cannot tell.
fn seen<'s>(sets: &'s Sets, item: &'s Item) -> impl Iterator<Item = (Pointer, Version)> + 's {
    let table = sets.table(item.table);
    let is_asked = item.lock != Lock::Held && !item.structural && has_cache(sets, item);
    let is_absent = matches!(item.fetch, Fetch::Absent);
    let record = (is_asked && !is_absent).then_some((item.location.pointer, item.version));
    // An insert of the key publishes the slot that it fills. If that slot is in a later bucket than
    // these, the insert also publishes the last header of these.
    let fstore = table.fstore().filter(|_| is_asked && is_absent);
    let chain = fstore.into_iter().flat_map(move |fstore| {
        chain_of(&sets.tables, &sets.arena, item).flat_map(move |link| {
            let BucketRef { shard, bucket } = link.bucket;
            let slots = link.slots.iter().step_by(link::SLOT_WORDS).zip(0..);
            let slots = slots.map(move |(word, slot)| (fstore.slot_at(bucket, slot), *word));
            let words = std::iter::once((fstore.buckets.at(bucket), link.header)).chain(slots);
            words.map(move |(at, word)| (Pointer::new(table.shard_id(shard), at), Version::from_bits(word).0))
        })
    });
    record.into_iter().chain(chain)
}

/// Looks again, at the primaries, at the records that were read and are not locked (invariant 2).
/// Leaves out the records that the version cache vouches for.
pub(in crate::protocol) async fn validate(tx: &mut Tx<'_>, writes: bool) -> Result<(), Stop> {
    debug_assert!(
        !writes || tx.state.sets.write_set_is_locked() || mutant!(ValidateWithLocks),
        "ford 2: validation comes after the last lock"
    );
    debug_assert!(
        !writes || tx.locking || mutant!(ValidateWithLocks) || mutant!(ValidateAfterCommit),
        "ford 2: validation comes before the commit round"
    );
    let raises_to = raised_to(tx, writes);
    tx.state.clocks.begin_snapshot();
    // The item that is looked at next, and what is left of its chain, if a round had no room for
    // all.
    let (mut next, mut chain, mut raises) = (0, None, 0);
    while next < tx.state.sets.items.len() {
        let first = (next, chain);
        let mut round = tx.lane.round();
        let state = &mut *tx.state;
        state.checks.clear();
        while let Some(item) = state.sets.items.get(next) {
            let is_only_read = !writes || !item.is_written() && (item.lock == Lock::Held || !item.structural);
            if raises_to > 0 && is_only_read {
                if !round.has_room(2, 32) {
                    break;
                }
                state.clocks.claim(&mut round, item.address.node, raises_to, true);
            }
            let fits = match item.fetch {
                _ if item.lock == Lock::Held || item.structural => true,
                _ if item.vouched => true,
                _ if has_cache(&state.sets, item) && mutant!(RefuseOtherVersions) => return Err(Abort::Changed.into()),
                Fetch::Absent => {
                    chain = look_for(&state.sets, (next, chain), &mut round, &mut state.checks);
                    chain.is_none()
                }
                _ if !round.has_room(1, state.sets.shape(item).validated_bytes()) => false,
                _ => {
                    let bytes = state.sets.shape(item).validated_bytes();
                    let mut at = item.address;
                    if writes && mutant!(ValidateAtBackup) {
                        let replicas = state.sets.table(item.table).replicas(item.location.pointer);
                        at = replicas[replicas.len() - 1].address(item.location.pointer.offset());
                    }
                    state.checks.push(Check::Read { item: next, read: round.read(at, bytes) });
                    true
                }
            };
            if !fits {
                break;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        if !has_raised(tx, &done, raises_to, &mut raises)? {
            (next, chain) = first;
            continue;
        }
        for check in &tx.state.checks {
            let passed = passes(&tx.state.sets, &done, *check, writes, (tx.id, tx.state.released.holder));
            if let (Err(stop), Check::Read { item, .. } | Check::Bucket { item, .. }) = (passed, *check) {
                tx.state.sets.note(item, stop);
            }
            passed?;
        }
    }
    Ok(())
}

/// Adds the buckets of an absent key's chain, or of what is left of it, as far as the round has
/// room. Returns the place in the arena, + 1, from which on buckets are left.
fn look_for(
    sets: &Sets,
    (item, left): (usize, Option<u64>),
    round: &mut Round<'_>,
    checks: &mut Vec<Check>,
) -> Option<u64> {
    let one = &sets.items[item];
    let table = sets.table(one.table);
    let mut rest = *one;
    rest.chain = left.map_or(one.chain, |left| left as u32);
    for link in chain_of(&sets.tables, &sets.arena, &rest).take_while(|_| !mutant!(AbsentWithoutValidation)) {
        let bytes = table.bucket_bytes(link.bucket);
        if !round.has_room(1, bytes) {
            return Some(link.place + 1);
        }
        let read = round.read(table.bucket_address(link.bucket), bytes);
        checks.push(Check::Bucket { item, chain: link.place as usize, read });
    }
    None
}

/// Checks that what was looked at again is still what was read, and that no other transaction has
/// it locked.
fn passes(
    sets: &Sets,
    done: &Completed<'_>,
    check: Check,
    writes: bool,
    (me, released): (TransactionId, LockWord),
) -> Result<(), Stop> {
    let (item, now, same) = match check {
        Check::Read { item, read } => {
            let item = &sets.items[item];
            let now = sets.shape(item).validated(done.words(read));
            (item, now, is_same(now, item.version))
        }
        Check::Bucket { item, chain, read } => {
            let (item, words) = (&sets.items[item], done.words(read));
            let table = sets.table(item.table);
            (item, table.structural().validated(words), bucket_is_same(table, &sets.arena[chain..], words))
        }
        Check::Call { .. } | Check::Find { .. } => return Err(Abort::Changed.into()), // FORD never asks by calls
    };
    debug_assert!(!item.structural);
    let Some(RecordHeader { lock, .. }) = now else { return Err(Abort::Changed.into()) };
    let anothers = !is_nobodys(lock, released) && !lock.is_held_by(me);
    let ignored = if writes { mutant!(ValidateVersionOnly) } else { mutant!(ValidateReadOnlyVersionOnly) };
    if anothers && !ignored {
        return Err(Abort::Locked(lock).into());
    }
    if same { Ok(()) } else { Err(Abort::Changed.into()) }
}

/// Returns whether a record has the version that was seen, and is visible.
fn is_same(now: Option<RecordHeader>, seen: Version) -> bool {
    now.is_some_and(|now| now.still_shows(seen))
}

/// Returns whether no version of a bucket has changed since the bucket was put into the arena.
fn bucket_is_same(table: &Table, before: &[u64], now: &[u64]) -> bool {
    let Some(fstore) = table.fstore() else { return false };
    let slots = before[link::HEAD_WORDS..].chunks_exact(link::SLOT_WORDS);
    let seen = |word: u64| Version::from_bits(word).0;
    let header = |slot: usize| {
        let at = BUCKET_HEADER_BYTES / 8 + slot * fstore.slot_bytes as usize / 8;
        table.shape().validated(now.get(at..)?)
    };
    is_same(table.structural().validated(now), seen(before[3]))
        && slots
            .take(fstore.slots_of(before[2]) as usize)
            .enumerate()
            .all(|(slot, words)| is_same(header(slot), seen(words[0])))
}
