//! Reclaims the arrays of a RACE hash table that were split, while other clients use the table.
//!
//! ```text
//! 1  READ the tree from the roots: each pair names the array that was split for it
//! 2  wait until no operation of any client is under way that began before step 1 ended
//! 3  FETCH_ADD the number of reclaims; CAS the pair's word -> 0
//! 4  WRITE zeros to the array; put it into the list of ranges
//! ```
//!
//! The caller does step 2, by the acknowledgements of clients (`reclaiming.rs` of the library).
//!
//! # Rules
//!
//! 1. **An array that a pair names is dead.** One CAS puts the pair's fork in the place of
//!    the array's leaf, for ever.
//! 2. **No client changes a dead array by an operation that began after its split.** An operation
//!    CASes a slot only when it has looked at the lock after it had read the slot. The lock's word
//!    of the time before the split does not come back. Such an operation may still READ the array,
//!    by an address that its session remembers. It then finds other words there, looks at the lock,
//!    and drops what it has read.
//! 3. **Operations that began before have ended**, with all their verbs, after step 2. A client
//!    that has died is waited for until it is revoked, and its slot is given back.
//! 4. **One client puts an array into the list**: the one whose CAS of step 3 succeeds.
//! 5. **What living clients have in hand is not touched.** Blocks and units in hand are named by no
//!    pair. What dead clients had in hand stays lost until [`reclaim`](super::reclaim) finds it,
//!    when no other client is connected.
//! 6. **That one sees that this has happened**, by the number of reclaims.
//!
//! If the reclaiming client dies in steps 3 and 4, the array is lost until no client is connected.

use std::ops::Range;

use remora_fabric::{Address, Lane, WORD_BYTES};
use remora_index::race::{AT_DEAD, DEPTH_MAX, Node, NodeWord, OBJECT_BYTES, UNIT_BYTES, UnitRange};

use super::known::Race;
use super::reclaim::{put, swap};
use super::walk::{Memory as _, Shard, VERBS};
use crate::error::Stop;
use crate::protocol::Reclaimed;

/// The arrays of a table that had been split when [`find_dead_arrays`] returned.
#[derive(Debug, Default)]
pub struct DeadArrays {
    /// The shard, where the pair names the array, the word there, and the units.
    found: Vec<(usize, Address, u64, Range<u64>)>,
}

impl DeadArrays {
    /// Whether operations must have ended before these arrays are freed.
    #[must_use]
    pub fn must_wait(&self) -> bool {
        !self.found.is_empty() && !mutant!(RaceReclaimUnheard)
    }
}

/// Finds the arrays of a RACE hash table that were split, and are not used again yet.
pub async fn find_dead_arrays(lane: &Lane, race: &Race) -> Result<DeadArrays, Stop> {
    let mut all = DeadArrays::default();
    if race.shape.is_native {
        return Ok(all);
    }
    for number in 0..race.shape.shards {
        let shard = Shard::of(race, number);
        let roots = 0..shard.shape.geometry.roots;
        let mut level: Vec<Address> = roots.map(|root| shard.extents[0].root(&shard.shape, number, root)).collect();
        for _ in 0..=DEPTH_MAX {
            let mut next = Vec::new();
            for some in level.chunks(VERBS) {
                let nodes: Vec<_> = some.iter().map(|object| (object.plus(WORD_BYTES as u64), WORD_BYTES)).collect();
                let nodes = lane.read(&nodes).await?;
                let pair = |node: u64| match NodeWord::from_bits(node).node() {
                    // An extent that was made meanwhile has no array that has been dead for long.
                    Node::Fork(unit) => shard.address(unit.into()).ok(),
                    Node::Bare | Node::Leaf(_) => None,
                };
                let pairs: Vec<Address> = nodes.into_iter().filter_map(pair).collect();
                let words: Vec<_> = pairs.iter().map(|pair| (pair.plus(AT_DEAD), WORD_BYTES)).collect();
                let words = lane.read(&words).await?;
                for (pair, word) in pairs.iter().zip(words) {
                    next.extend([*pair, pair.plus(OBJECT_BYTES)]);
                    if let Some(units) = UnitRange::from_bits(word).map(UnitRange::units) {
                        all.found.push((number, pair.plus(AT_DEAD), word, units));
                    }
                }
            }
            level = next;
        }
    }
    Ok(all)
}

/// Makes the units of dead arrays usable again. No operation may be under way that began before
/// they were found.
pub async fn free_dead_arrays(lane: &Lane, race: &Race, dead: DeadArrays) -> Result<Reclaimed, Stop> {
    let mut reclaimed = Reclaimed::default();
    for (number, at, word, units) in dead.found {
        let shard = Shard::of(race, number);
        let mut round = lane.round();
        round.fetch_add(shard.reclaims_at(), 1);
        lane.execute(round).await?;
        if swap(lane, at, word, 0).await? {
            reclaimed.race_bytes += (units.end - units.start) * UNIT_BYTES;
            put(lane, &shard, &[units], shard.shape.geometry.array_units()).await?;
        }
    }
    Ok(reclaimed)
}
