//! RACE hash tables: a hash index of keys and values of any length, which grows without a limit
//! that is known in advance. `remora_index::race` has the layouts.
//!
//! An operation works on one key, and is linearizable: it takes effect at one moment between its
//! call and its answer. It is no part of a transaction. Clients use READ, WRITE and
//! compare-and-swap alone, so the memory may be passive.
//!
//! ```text
//! get     1  READ both windows of the key in the array
//!         2  READ the blocks whose fingerprints fit; READ the lock: free, and the word that the
//!            client knows                                           -> found, or absent
//!
//! update, delete: as get, and then
//!         3  WRITE the block; [CAS own mark; CAS mark of what was found;]
//!            CAS slot, found -> new; READ the lock: still the same  -> done
//!
//! insert: as get, and then
//!         3  WRITE the block; [CAS own mark; CAS mark of a tombstone;]
//!            CAS slot, free -> pending; READ both windows
//!         4  CAS slot, pending -> live; READ the lock: still the same  -> done
//! ```
//!
//! A client remembers the lock and the array of each leaf that it has used, and knows that both
//! were there at the same time. A lock word never recurs. So if the lock is still the same, the
//! array that the client knows is the live one, and was so all the time.
//!
//! # A rehash
//!
//! ```text
//! 1  CAS lock, free -> this attempt
//! 2  READ the array; READ it again: it must be the same
//! 3  READ the hashes of all blocks; [CAS marks of tombstones]
//! 4  WRITE two arrays and a pair; CAS node, leaf -> fork; CAS unlock
//!                                                     -> done, if the node was the leaf
//! ```
//!
//! It is an rTX that changes one object and has no log. A client that meets the lock for longer
//! than the protocol's suspicion takes the lock, marks the node, and frees the lock
//! ([`take_mark_free`]). Then the old array stays live, and the CAS of the node that the suspect
//! may still send must fail.
//!
//! # Rules
//!
//! 1. **The lock is taken before the array is read.** Until it is free, no operation ends that
//!    might change the array.
//! 2. **The array is read until two READs agree.** Words never recur, so what they agree on was
//!    the state of all slots at one moment. With one READ, the copy could have a key twice: the
//!    slot of a key as it was before it was deleted, and another slot as it was after the key was
//!    inserted again.
//! 3. **An operation looks at the lock after its CAS of a slot.** If the lock is not the same, it
//!    looks in the live array for what it has installed. If that is there, the operation is done.
//! 4. **If it is not there, a mark decides.** A client that replaces what it has found sets its
//!    mark before. So if the mark is set, the operation has taken effect. If not, it has not, and
//!    is done again. A table without marks answers that the outcome is unknown ([`Stop::Unknown`]).
//! 5. **A client marks only what it knows was live**: it has looked at the lock after it had read
//!    the slot. A rehash has, too, before it marks tombstones. Another client may have taken its
//!    lock, and the array may have been split since.
//! 6. **The lock and the node of an object are read twice**, and must be the same both times. A
//!    READ of two words is not atomic, so a free lock could come with the array of an earlier
//!    moment.
//! 7. **A repairer changes the node before it frees the lock** of another attempt.
//! 8. **An operation that may have taken effect answers so**, or that the outcome is unknown
//!    ([`Stop::Unknown`]). All other errors say that it has not. One of them is [`Stop::Fenced`],
//!    with which a client learns that it was taken for dead. What fails when blocks are returned
//!    does not change the answer.

mod beside;
pub(crate) mod known;
mod native;
mod operations;
mod reclaim;
mod space;
mod tree;
mod walk;

use std::sync::Arc;

use remora_fabric::Lane;
use remora_index::race::{CONTENT_BYTES_MAX, Hash};

pub use beside::{DeadArrays, find_dead_arrays, free_dead_arrays};
use known::{Part, RaceState};
pub use known::{Race, RaceShape};
pub use reclaim::reclaim_race;
pub use walk::{RaceInspection, RaceUnits, inspect_race, inspect_race_at_once};

use crate::error::{Abort, Limit, Stop};
use crate::state::State;

/// How an operation changes the value of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// Only if the key is absent.
    Insert,
    /// Only if the key is there.
    Update,
    /// In either case.
    Upsert,
}

/// An operation on a key.
pub(crate) struct Operation<'s> {
    lane: &'s Lane,
    state: &'s mut State,
    /// The number of the table among the tables of the session.
    table: usize,
    /// The shard of the key.
    part: usize,
    key: &'s [u8],
    hash: Hash,
    /// The tries that are left.
    tries: u32,
}

impl<'s> Operation<'s> {
    pub(crate) fn begin(
        lane: &'s Lane,
        state: &'s mut State,
        race: &Arc<Race>,
        key: &'s [u8],
    ) -> Result<Operation<'s>, Stop> {
        if state.lease.is_over() {
            return Err(Stop::Fenced);
        }
        let known = state.races.iter().position(|one| one.is_of(race));
        let table = known.unwrap_or_else(|| {
            state.sets.register(race.table.clone());
            state.races.push(RaceState::new(race));
            state.races.len() - 1
        });
        let hash = Hash::of(key);
        let part = hash.shard(race.shape.shards);
        Ok(Operation { lane, state, table, part, key, hash, tries: race.tries })
    }

    fn own(&mut self) -> &mut RaceState {
        &mut self.state.races[self.table]
    }

    fn part(&mut self) -> &mut Part {
        let part = self.part;
        &mut self.own().parts[part]
    }

    fn shape(&self) -> RaceShape {
        self.state.races[self.table].shape
    }

    fn has_marks(&self) -> bool {
        self.shape().geometry.marks
    }

    fn is_native(&self) -> bool {
        self.shape().is_native
    }

    /// Notes that the operation tries again, and fails if it has tried too often.
    fn again(&mut self) -> Result<(), Stop> {
        self.tries = self.tries.checked_sub(1).ok_or(Abort::Changed)?;
        Ok(())
    }
}

/// Returns what a session has in hand of all RACE hash tables, before it rests or leaves. Nothing
/// of it may be under way.
pub(crate) async fn rest(lane: &Lane, state: &mut State) -> Result<(), Stop> {
    for table in 0..state.races.len() {
        for part in 0..state.races[table].parts.len() {
            let hash = Hash::of(&[]);
            let mut operation = Operation { lane, state: &mut *state, table, part, key: &[], hash, tries: u32::MAX };
            operation.give_all_back().await?;
        }
    }
    Ok(())
}

/// Returns the error of a key and a value for which no block has room.
fn too_long(key: &[u8], value: &[u8]) -> Stop {
    let room = CONTENT_BYTES_MAX.saturating_sub(key.len().next_multiple_of(8));
    Limit::Value { found: value.len(), max: room }.into()
}
