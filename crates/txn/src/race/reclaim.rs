//! Reclaims what clients that are gone have left in a RACE hash table: their locks, the slots of
//! their inserts, and all units that are used for nothing. Units are lost when a client dies that
//! has them in hand, when an array is split, and when an array was made in vain.
//!
//! ```text
//! for each shard  1  READ how much was given out, and the heads of the lists; READ the lists
//!                 2  READ the tree from the roots: objects, pairs and arrays
//!                 3  lost is what was given out, and is in no list, no array, and no live slot
//!                 4  READ the clients: there must be no other one; then
//!                    READ the words of step 1 again: they must be the same
//!                 5  CAS unlock
//!                 6  CAS pending slots, withdrawn slots and tombstones -> empty, of this attempt;
//!                    READ the lock: still free, and the same
//!                 7  CAS the heads of the lists -> 0; CAS what earlier extents have given out to
//!                    all that they have
//!                 8  WRITE zeros to all that is free; put it into the lists
//! ```
//!
//! What steps 3, 6 and 7 have found is put together, so that small blocks become large ones again.
//! Ranges that are large enough for a split go into a list of their own, and the others are cut
//! into blocks. If nothing is lost, steps 7 and 8 are left out.
//!
//! # Rules
//!
//! 1. **No other client is connected after all was read.** A client that came and went meanwhile
//!    has taken a block or units before it changed anything, so the words of step 1 are not the
//!    same: none of them ever recurs while the reclaiming client is connected. A client that has
//!    died is connected until it is recovered.
//! 2. **What is lost stays lost until step 8.** A client that comes after step 4 reaches nothing of
//!    it.
//! 3. **A slot is emptied only while its array is live.** A client that comes after step 4 may take
//!    the slot, which its own word shows, or split the array, which the lock shows. Then this stops
//!    before it has used the slot's block.
//! 4. **What was in a list is used only if the head was still the same when it became 0.** Words of
//!    heads do not recur, so no client has taken a member before, and none can afterwards.
//! 5. **No slot has a word of a use that begins anew.** The uses of a block begin anew when its
//!    units are reclaimed. A live slot keeps its block. All other slots were emptied, and an empty
//!    slot names an attempt. So no word recurs in a slot that a connected client knows: clients
//!    that are gone have no verb on its way, and those that come later have seen none of the old
//!    uses.
//! 6. **Units that are reclaimed are zero**, so the mark of a block that is cut of them is known.
//!
//! If the reclaiming client dies in between, what it has taken out of the lists is lost until the
//! next time.

use std::ops::Range;

use remora_fabric::{Address, Lane, NodeId, WORD_BYTES};
use remora_index::race::{AT_IMAGE, Class, Hash, Kind, Slot, UNIT_BYTES, UnitRange};
use remora_node::registered;
use remora_record::{LockWord, LogPlace, RepairableLock, TransactionId};

use super::known::Race;
use super::space::{RETURNED_MAX, put_in_list};
use super::walk::{LISTS, RANGES, Shard, Subtable, VERBS, Walk, block_of, gaps};
use crate::error::{Abort, Limit, Stop};
use crate::protocol::Reclaimed;

/// Words of zeros that one WRITE writes.
const ZEROS: [u64; 4096] = [0; 4096];

/// Reclaims what clients that are gone have left in a RACE hash table. Otherwise like
/// [`reclaim`](crate::reclaim).
pub async fn reclaim_race(lane: &Lane, leader: NodeId, own: u32, race: &Race) -> Result<Reclaimed, Stop> {
    let mut all = Reclaimed::default();
    for shard in 0..race.shape.shards {
        all += of_shard(lane, (leader, own), &Shard::of(race, shard)).await?;
    }
    Ok(all)
}

async fn of_shard(lane: &Lane, (leader, own): (NodeId, u32), shard: &Shard) -> Result<Reclaimed, Stop> {
    let walk = shard.walk(lane).await?;
    // In this order: a client that leaves between the two looks would be missed otherwise.
    if registered(lane, leader).await? != [own] || shard.given(lane).await? != walk.given {
        return Err(Abort::Changed.into());
    }
    let mut reclaimed = Reclaimed::default();
    for (at, lock) in &walk.locks {
        let mut round = lane.round();
        let swap = round.compare_swap(*at, lock.to_bits(), lock.freed().to_bits());
        reclaimed.locks += u64::from(lane.execute(round).await?.swapped(swap));
    }
    let empty = empty_of(own)?;
    for table in &walk.subtables {
        empty_slots(lane, table, empty).await?;
    }
    let (free, units) = free_units(lane, shard, &walk).await?;
    reclaimed.units = units;
    put(lane, shard, &free).await?;
    Ok(reclaimed)
}

/// Returns the empty slots that a client makes which reclaims. It makes no arrays, and its attempt
/// is the last one that it could have.
fn empty_of(own: u32) -> Result<Slot, Stop> {
    let attempt = TransactionId::new(own, RepairableLock::SEQUENCE_MAX);
    let lock = attempt.and_then(|attempt| RepairableLock::held_by(attempt, LogPlace::Nowhere));
    let lock = lock.ok_or(Stop::Limit(Limit::TransactionIds))?;
    Ok(Slot::empty(lock.freed().to_bits()))
}

/// Empties the slots of a subtable that are not live.
async fn empty_slots(lane: &Lane, table: &Subtable, empty: Slot) -> Result<(), Stop> {
    let slots: Vec<_> = table.slots.iter().filter(|(_, slot)| slot.kind() != Kind::Live).collect();
    for some in slots.chunks(VERBS).filter(|_| !mutant!(RaceReclaimFilled)) {
        let mut round = lane.round();
        let swap = |(number, slot): &&(usize, Slot)| {
            round.compare_swap(table.array.plus((number * WORD_BYTES) as u64), slot.to_bits(), empty.to_bits())
        };
        let swaps: Vec<_> = some.iter().map(swap).collect();
        let lock = round.read(table.object, WORD_BYTES);
        let done = lane.execute(round).await?;
        let is_live = LockWord::from_bits(done.words(lock)[0]) == table.lock.freed();
        if !is_live || !swaps.into_iter().all(|swap| done.swapped(swap)) {
            return Err(Abort::Changed.into());
        }
    }
    Ok(())
}

/// Takes all units that are used for nothing. Returns them, and the number of those that were in no
/// list. If there are none of these, takes nothing.
async fn free_units(lane: &Lane, shard: &Shard, walk: &Walk) -> Result<(Vec<Range<u64>>, u64), Stop> {
    let count = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    let live = walk.blocks().filter(|slot| slot.kind() == Kind::Live);
    let mut used: Vec<Range<u64>> = walk.nodes.iter().cloned().chain(live.map(block_of)).collect();
    let mut given = shard.given_units(&walk.given);
    // Clients ask the last extent alone, so what the others have left is never given out.
    for (extent, given) in given.iter_mut().enumerate().rev().skip(1) {
        let all = shard.extents[extent].first + shard.extents[extent].units;
        if given.end < all && take(lane, shard.given_at(extent), given.end - given.start, all - given.start).await? {
            given.end = all;
        }
    }
    let lost = count(&gaps(&given, [used.clone(), walk.listed.concat()].concat()));
    if lost == 0 {
        return Ok((Vec::new(), 0));
    }
    for (list, members) in walk.listed.iter().enumerate() {
        let head = walk.given.heads[list];
        if head != 0 && !take(lane, shard.list_at(list), head, 0).await? {
            used.extend(members.iter().cloned());
        }
    }
    Ok((gaps(&given, used), lost))
}

/// Swaps a word. Returns whether it was the old one.
async fn take(lane: &Lane, at: Address, old: u64, new: u64) -> Result<bool, Stop> {
    let mut round = lane.round();
    let swap = round.compare_swap(at, old, new);
    Ok(lane.execute(round).await?.swapped(swap))
}

/// Puts units that nothing reaches into the lists.
async fn put(lane: &Lane, shard: &Shard, free: &[Range<u64>]) -> Result<(), Stop> {
    let together = shard.shape.geometry.units_together_max();
    let mut chains = vec![Vec::new(); LISTS];
    for range in free {
        zero(lane, shard, range).await?;
        let mut add = |list: usize, word: u64, names_next: u64| {
            chains[list].push((word, shard.address(names_next)?.plus(AT_IMAGE)));
            Ok::<_, Stop>(())
        };
        if let Some(units) = UnitRange::new(range).filter(|_| range.end - range.start >= together) {
            add(RANGES, units.to_bits(), range.end - 1)?;
            continue;
        }
        let mut first = range.start;
        while let Some(class) = Class::largest_within(range.end - first) {
            if let Some(slot) = Slot::unused(first as u32, class).next_use(Hash::of(&[])) {
                add(class.number(), slot.to_bits(), first)?;
            }
            first += class.units();
        }
    }
    for (list, chain) in chains.iter().enumerate() {
        for some in chain.chunks(RETURNED_MAX) {
            put_in_list(lane, shard.list_at(list), some).await?;
        }
    }
    Ok(())
}

/// Writes zeros to units, which lie in one extent.
async fn zero(lane: &Lane, shard: &Shard, units: &Range<u64>) -> Result<(), Stop> {
    let unit_words = UNIT_BYTES as usize / WORD_BYTES;
    if mutant!(RaceReclaimDirty) {
        return Ok(());
    }
    let at = shard.address(units.start)?;
    let words = (units.end - units.start) as usize * unit_words;
    for first in (0..words).step_by(ZEROS.len()) {
        let mut round = lane.round();
        round.write_words(at.plus((first * WORD_BYTES) as u64), &ZEROS[..ZEROS.len().min(words - first)]);
        lane.execute(round).await?;
    }
    Ok(())
}
