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
//!                 7  CAS the words of pairs that name dead arrays -> 0; CAS what earlier extents
//!                    have given out to all that they have; CAS the heads of the lists -> 0;
//!                    READ the clients: there must be no other one
//!                 8  WRITE zeros to all that is free; put it into the lists
//! ```
//!
//! What is lost and what was in the lists is put together, so that small blocks become large ones
//! again. Ranges that are large enough for a split go into a list of their own, and the others are
//! cut into blocks. If nothing is lost, the lists stay as they are.
//!
//! # Rules
//!
//! 1. **No other client is connected after all was read.** A client that came and went meanwhile
//!    has taken a block or units before it changed anything, so the words of step 1 are not the
//!    same: none of them recurs while the reclaiming client is connected. A client that has died is
//!    connected until it is recovered.
//! 2. **What is lost stays lost until step 8.** A client that comes after step 4 reaches nothing of
//!    it.
//! 3. **A slot is emptied only while its array is live.** A client that comes after step 4 may take
//!    the slot, which its own word shows, or split the array, which the lock shows. Then this stops
//!    before it has used the slot's block.
//! 4. **What was in the lists is used only if all heads were still the same when they became 0.**
//!    Words of heads do not recur, so no client has taken a member before, and none can afterwards.
//!    If this stops at step 7, it puts the heads back.
//! 5. **No connected client knows a word of a use that begins anew.** The uses of a block begin
//!    anew when its units are reclaimed. Clients that are gone have no verb on its way. No other
//!    client is connected at the end of step 7. One that comes later finds no old word: a live slot
//!    keeps its block and goes on with its uses, all other slots name an attempt, and all lists are
//!    empty.
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
use super::walk::{LISTS, RANGES, Shard, Subtable, VERBS, Walk, block_of, count, gaps};
use crate::error::{Abort, Limit, Stop};
use crate::protocol::Reclaimed;

/// Words of zeros that one WRITE writes.
static ZEROS: [u64; 4096] = [0; 4096];

/// Reclaims what clients that are gone have left in a RACE hash table. Does
/// nothing to a native table. Otherwise like [`reclaim`](crate::reclaim).
pub async fn reclaim_race(lane: &Lane, leader: NodeId, own: u32, race: &Race) -> Result<Reclaimed, Stop> {
    let mut all = Reclaimed::default();
    if race.shape.is_native {
        return Ok(all);
    }
    for shard in 0..race.shape.shards {
        all += of_shard(lane, (leader, own), &Shard::of(race, shard)).await?;
    }
    Ok(all)
}

async fn of_shard(lane: &Lane, (leader, own): (NodeId, u32), shard: &Shard) -> Result<Reclaimed, Stop> {
    let walk = shard.walk(lane).await?;
    // In this order: a client that leaves between the two looks would be missed otherwise.
    if !is_alone(lane, leader, own).await? || shard.given(lane).await? != walk.given {
        return Err(Abort::Changed.into());
    }
    let mut reclaimed = Reclaimed::default();
    for (at, lock) in &walk.locks {
        reclaimed.locks += u64::from(swap(lane, *at, lock.to_bits(), lock.freed().to_bits()).await?);
    }
    let empty = empty_of(own)?;
    for table in &walk.subtables {
        empty_slots(lane, table, empty).await?;
    }
    let given = give_all_out(lane, shard, &walk).await?;
    let live = walk.blocks().filter(|slot| slot.kind() == Kind::Live).map(block_of);
    let free = gaps(&given, walk.nodes.iter().cloned().chain(live).collect());
    let lost = count(&free).saturating_sub(walk.listed.iter().map(|list| count(list)).sum());
    if lost > 0 {
        // All dead arrays are free now, so no pair may name them any more.
        for (at, dead) in &walk.dead {
            if !swap(lane, *at, *dead, 0).await? {
                return Err(Abort::Changed.into());
            }
        }
        take_lists(lane, (leader, own), shard, &walk.given.heads).await?;
        put(lane, shard, &free, shard.shape.geometry.units_together_max()).await?;
        reclaimed.race_bytes = lost * UNIT_BYTES;
    }
    Ok(reclaimed)
}

/// Whether no other client is connected.
async fn is_alone(lane: &Lane, leader: NodeId, own: u32) -> Result<bool, Stop> {
    Ok(mutant!(RaceReclaimBeside) || registered(lane, leader).await? == [own])
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
        let is_live = LockWord::from_bits(done.words(lock)[0]) == table.lock.freed() || mutant!(RaceReclaimDeadArray);
        if !is_live || !swaps.into_iter().all(|swap| done.swapped(swap)) {
            return Err(Abort::Changed.into());
        }
    }
    Ok(())
}

/// Takes what earlier extents have not given out: clients ask the last one alone. Returns all units
/// that were given out.
async fn give_all_out(lane: &Lane, shard: &Shard, walk: &Walk) -> Result<Vec<Range<u64>>, Stop> {
    let mut given = shard.given_units(&walk.given);
    for (number, (given, extent)) in given.iter_mut().zip(shard.extents.iter()).enumerate().rev().skip(1) {
        let all = extent.first..extent.first + extent.units;
        let [from, to] = [given.end, all.end].map(|end| end - all.start);
        if from < to && swap(lane, shard.given_at(number), from, to).await? {
            *given = all;
        }
    }
    Ok(given)
}

/// Takes all that is in the lists, whose heads were these.
async fn take_lists(lane: &Lane, (leader, own): (NodeId, u32), shard: &Shard, heads: &[u64]) -> Result<(), Stop> {
    let mut taken = Vec::new();
    let mut are_taken = true;
    for (list, head) in heads.iter().enumerate().filter(|(_, head)| **head != 0) {
        are_taken = swap(lane, shard.list_at(list), *head, 0).await?;
        if !are_taken {
            break;
        }
        taken.push((list, *head));
    }
    if are_taken && is_alone(lane, leader, own).await? {
        return Ok(());
    }
    for (list, head) in taken {
        // If a client has put another member there, the old ones are lost until the next time.
        _ = swap(lane, shard.list_at(list), 0, head).await?;
    }
    Err(Abort::Changed.into())
}

/// Swaps a word. Returns whether it was the old one.
pub(super) async fn swap(lane: &Lane, at: Address, old: u64, new: u64) -> Result<bool, Stop> {
    let mut round = lane.round();
    let swap = round.compare_swap(at, old, new);
    Ok(lane.execute(round).await?.swapped(swap))
}

/// Puts units that nothing reaches into the lists. Ranges of at least `together` units stay whole.
pub(super) async fn put(lane: &Lane, shard: &Shard, free: &[Range<u64>], together: u64) -> Result<(), Stop> {
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
