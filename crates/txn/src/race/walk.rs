//! A walk of a RACE hash table: all that its roots and its lists reach, while no client changes it,
//! or at an instant of a simulation.

use std::collections::HashSet;
use std::ops::{AddAssign, Range};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use remora_fabric::{Address, Lane, WORD_BYTES};
use remora_index::race::{
    AT_DEAD, AT_GIVEN, AT_IMAGE, AT_RECLAIMED, AT_RECLAIMS, CLASSES, Class, DEPTH_MAX, GROUP_SLOTS, Geometry, Hash,
    Header, Kind, Node, NodeWord, OBJECT_BYTES, Slot, UnitRange, WINDOW_SLOTS, decode,
};
use remora_node::Metadata;
use remora_record::LockWord;

use super::known::{Extent, Race, RaceShape, address_of, read};
use crate::error::{Abort, Stop};

/// The largest number of verbs of a round of a walk.
pub(super) const VERBS: usize = 120;
/// The number of lists of a shard: one for each class of blocks, and one of reclaimed ranges.
pub(super) const LISTS: usize = CLASSES + 1;
/// The number of the list of reclaimed ranges.
pub(super) const RANGES: usize = CLASSES;

/// Where the units of a RACE hash table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RaceUnits {
    /// Units that were given out: the sum of the units in use, in lists, and lost.
    pub given: u64,
    /// Units of arrays, of pairs, and of blocks that a slot has.
    pub used: u64,
    /// Units of blocks that were returned, and of ranges that were reclaimed.
    pub listed: u64,
    /// Units that were given out, and that neither a root nor a list reaches. A client has them in
    /// hand, or it had them and died, or an array of them was split.
    pub lost: u64,
    /// Units that were not given out yet.
    pub fresh: u64,
    /// Units that were found twice, or were found and not given out. There must be none.
    pub misused: u64,
}

/// What [`inspect_race`] has found in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RaceInspection {
    /// Subtables: leaves of the trees that have an array.
    pub subtables: u64,
    /// Keys that are present.
    pub keys: u64,
    /// Locks that are held.
    pub locked: u64,
    /// Slots that an insert has taken which was not completed.
    pub pending: u64,
    /// Slots whose key was deleted. Each has a block.
    pub tombstones: u64,
    /// Live slots whose block is another one than the slot says, or is torn, or has a key that
    /// belongs elsewhere, or a mark of another use.
    pub wrong: u64,
    /// Live slots whose key another live slot has, too.
    pub duplicates: u64,
    /// Where the table's units are.
    pub units: RaceUnits,
}

impl AddAssign for RaceUnits {
    fn add_assign(&mut self, other: RaceUnits) {
        self.given += other.given;
        self.used += other.used;
        self.listed += other.listed;
        self.lost += other.lost;
        self.fresh += other.fresh;
        self.misused += other.misused;
    }
}

impl AddAssign for RaceInspection {
    fn add_assign(&mut self, other: RaceInspection) {
        self.subtables += other.subtables;
        self.keys += other.keys;
        self.locked += other.locked;
        self.pending += other.pending;
        self.tombstones += other.tombstones;
        self.wrong += other.wrong;
        self.duplicates += other.duplicates;
        self.units += other.units;
    }
}

/// Reads a whole table, while no client changes it. Gives each key and its value to `visit`.
pub async fn inspect_race(
    lane: &Lane,
    race: &Race,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<RaceInspection, Stop> {
    inspect(lane, race.shape, &race.known_extents(), visit).await
}

/// Looks at the table with this name at one instant, as a simulator can, while clients change it.
/// `words` returns a copy of a number of bytes at an address, or `None` if there is no such memory.
/// Returns `None` if the catalog has no such table, or if a part of it cannot be reached.
pub fn inspect_race_at_once(
    metadata: &Metadata,
    name: &str,
    words: &dyn Fn(Address, usize) -> Option<Vec<u64>>,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Option<RaceInspection> {
    let (_, shape, extents) = read(metadata, name)?;
    let extents = extents.into();
    let inspection = pin!(inspect(words, shape, &extents, visit));
    match inspection.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => found.ok(),
        Poll::Pending => unreachable!("the memory of an instant is read at once"),
    }
}

async fn inspect<M: Memory + ?Sized>(
    memory: &M,
    shape: RaceShape,
    extents: &Arc<[Extent]>,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<RaceInspection, Stop> {
    let mut all = RaceInspection::default();
    for number in 0..shape.shards {
        let shard = Shard { shape, extents: extents.clone(), number };
        let walk = shard.walk(memory).await?;
        let mut found = RaceInspection {
            subtables: walk.subtables.len() as u64,
            locked: walk.locks.len() as u64,
            units: walk.units(&shard),
            ..Default::default()
        };
        for table in &walk.subtables {
            shard.inspect(memory, table, &mut found, visit).await?;
        }
        all += found;
    }
    Ok(all)
}

/// What a walk reads: memory nodes by rounds, or a copy of their memory at once.
pub(super) trait Memory {
    /// Reads ranges of at most [`VERBS`] addresses with their bytes. Returns the words of all of
    /// them, one range behind the other.
    fn read(&self, ranges: &[(Address, usize)]) -> impl Future<Output = Result<Vec<u64>, Stop>>;
}

impl Memory for Lane {
    async fn read(&self, ranges: &[(Address, usize)]) -> Result<Vec<u64>, Stop> {
        let mut round = self.round();
        let reads: Vec<_> = ranges.iter().map(|(at, bytes)| round.read(*at, *bytes)).collect();
        let done = self.execute(round).await?;
        Ok(reads.into_iter().flat_map(|read| done.words(read)).copied().collect())
    }
}

impl Memory for dyn Fn(Address, usize) -> Option<Vec<u64>> + '_ {
    async fn read(&self, ranges: &[(Address, usize)]) -> Result<Vec<u64>, Stop> {
        let words: Option<Vec<_>> = ranges.iter().map(|(at, bytes)| self(*at, *bytes)).collect();
        Ok(words.ok_or(Abort::Changed)?.concat())
    }
}

/// A shard of a table, and the extents that the process knows.
pub(super) struct Shard {
    pub(super) shape: RaceShape,
    pub(super) extents: Arc<[Extent]>,
    number: usize,
}

/// What a shard has given out, and the heads of its lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Given {
    /// The units that each extent has given out. Clients may have asked for more than there are.
    pub(super) of_extents: Vec<u64>,
    pub(super) heads: Vec<u64>,
    /// How often arrays were reclaimed beside other clients.
    reclaims: u64,
}

/// The bits of a hash that lead to a node, and how many they are.
type Path = (u64, u32);

/// A subtable, as a walk has found it.
pub(super) struct Subtable {
    pub(super) object: Address,
    pub(super) lock: LockWord,
    pub(super) array: Address,
    path: Path,
    /// The slots that are not empty.
    pub(super) slots: Vec<(usize, Slot)>,
}

/// All that a walk has found in a shard.
pub(super) struct Walk {
    pub(super) given: Given,
    pub(super) subtables: Vec<Subtable>,
    /// The locks that are held, and where they are.
    pub(super) locks: Vec<(Address, LockWord)>,
    /// The units of arrays and pairs.
    pub(super) nodes: Vec<Range<u64>>,
    /// The words that name arrays which were split, and where they are.
    pub(super) dead: Vec<(Address, u64)>,
    /// The units of the members of each list.
    pub(super) listed: Vec<Vec<Range<u64>>>,
}

/// Returns the units of a slot's block.
pub(super) fn block_of(slot: Slot) -> Range<u64> {
    let first = u64::from(slot.unit());
    first..first + slot.class().units()
}

/// Whether a slot has a block: whether its block belongs to no client.
pub(super) fn has_block(slot: Slot) -> bool {
    matches!(slot.kind(), Kind::Live | Kind::Pending | Kind::Tombstone)
}

impl Shard {
    pub(super) fn of(race: &Race, number: usize) -> Shard {
        Shard { shape: race.shape, extents: race.known_extents(), number }
    }

    /// Returns the address of a unit. Fails with [`Abort::Changed`] if its extent was made after
    /// the process has read the catalog.
    pub(super) fn address(&self, unit: u64) -> Result<Address, Stop> {
        let unit = u32::try_from(unit).ok();
        let at = unit.and_then(|unit| address_of(&self.extents, self.number, unit));
        at.ok_or(Stop::Abort(Abort::Changed))
    }

    /// Returns the address of the counter of units that an extent has given out.
    pub(super) fn given_at(&self, extent: usize) -> Address {
        self.extents[extent].shards[self.number].plus(AT_GIVEN)
    }

    /// Returns the address of the number of times that arrays were reclaimed beside other clients.
    pub(super) fn reclaims_at(&self) -> Address {
        self.extents[0].shards[self.number].plus(AT_RECLAIMS)
    }

    /// Returns the address of the head of a list.
    pub(super) fn list_at(&self, list: usize) -> Address {
        self.extents[0].shards[self.number].plus(Class::new(list).map_or(AT_RECLAIMED, Geometry::returned_at))
    }

    /// Reads what was given out and returned.
    pub(super) async fn given<M: Memory + ?Sized>(&self, memory: &M) -> Result<Given, Stop> {
        let given = (0..self.extents.len()).map(|extent| self.given_at(extent));
        let heads = (0..LISTS).map(|list| self.list_at(list));
        let words: Vec<_> = given.chain(heads).chain([self.reclaims_at()]).map(|at| (at, WORD_BYTES)).collect();
        let mut of_extents = memory.read(&words).await?;
        let mut heads = of_extents.split_off(self.extents.len());
        let reclaims = heads.pop().unwrap_or_default();
        Ok(Given { of_extents, heads, reclaims })
    }

    /// Returns the units that were given out, of each extent.
    pub(super) fn given_units(&self, given: &Given) -> Vec<Range<u64>> {
        let of = |(extent, given): (&Extent, &u64)| extent.first..extent.first + *given.min(&extent.units);
        self.extents.iter().zip(&given.of_extents).map(of).collect()
    }

    /// Reads all that the roots and the lists reach.
    pub(super) async fn walk<M: Memory + ?Sized>(&self, memory: &M) -> Result<Walk, Stop> {
        let given = self.given(memory).await?;
        let listed = Vec::with_capacity(LISTS);
        let mut walk =
            Walk { given, subtables: Vec::new(), locks: Vec::new(), nodes: Vec::new(), dead: Vec::new(), listed };
        for list in 0..LISTS {
            let members = self.members(memory, list, walk.given.heads[list]).await?;
            walk.listed.push(members);
        }
        let depth = self.shape.geometry.roots.trailing_zeros();
        let root = |root: u64| (self.extents[0].root(&self.shape, self.number, root), (root, depth));
        let mut level: Vec<(Address, Path)> = (0..self.shape.geometry.roots).map(root).collect();
        // A tree is not deeper than this. If its nodes were damaged, they could form a ring.
        for _ in 0..=DEPTH_MAX {
            let mut next = Vec::new();
            for some in level.chunks(VERBS) {
                self.read_objects(memory, some, &mut walk, &mut next).await?;
            }
            level = next;
        }
        if level.is_empty() { Ok(walk) } else { Err(Abort::Changed.into()) }
    }

    /// Reads objects, and the arrays of leaves. Adds the objects of pairs to `next`.
    async fn read_objects<M: Memory + ?Sized>(
        &self,
        memory: &M,
        objects: &[(Address, Path)],
        walk: &mut Walk,
        next: &mut Vec<(Address, Path)>,
    ) -> Result<(), Stop> {
        let ranges: Vec<_> = objects.iter().map(|(at, _)| (*at, OBJECT_BYTES as usize)).collect();
        let words = memory.read(&ranges).await?;
        let (mut leaves, mut dead_at) = (Vec::new(), Vec::new());
        for ((object, path), words) in objects.iter().zip(words.chunks(OBJECT_BYTES as usize / WORD_BYTES)) {
            let (lock, node) = (LockWord::from_bits(words[0]), NodeWord::from_bits(words[1]));
            if !lock.is_free() {
                walk.locks.push((*object, lock));
            }
            match node.node() {
                Node::Bare => {}
                Node::Leaf(unit) => leaves.push((*object, lock, u64::from(unit), *path)),
                Node::Fork(unit) => {
                    walk.nodes.push(u64::from(unit)..u64::from(unit) + 1);
                    let (pair, (bits, depth)) = (self.address(unit.into())?, *path);
                    dead_at.push((pair.plus(AT_DEAD), WORD_BYTES));
                    next.push((pair, (bits, depth + 1)));
                    next.push((pair.plus(OBJECT_BYTES), (bits | 1 << depth, depth + 1)));
                }
            }
        }
        let dead = memory.read(&dead_at).await?;
        walk.dead.extend(dead_at.iter().map(|(at, _)| *at).zip(dead).filter(|(_, dead)| *dead != 0));
        let geometry = self.shape.geometry;
        for (object, lock, unit, path) in leaves {
            walk.nodes.push(unit..unit + geometry.array_units());
            let array = self.address(unit)?;
            let words = memory.read(&[(array, geometry.array_slots() * WORD_BYTES)]).await?;
            let slots = words.into_iter().map(Slot::from_bits).enumerate();
            let slots = slots
                .filter(|(at, slot)| slot.kind() != Kind::Empty && !(self.shape.is_native && Header::is_at(*at)))
                .collect();
            walk.subtables.push(Subtable { object, lock, array, path, slots });
        }
        Ok(())
    }

    /// Returns the units of the members of a list.
    async fn members<M: Memory + ?Sized>(
        &self,
        memory: &M,
        list: usize,
        mut head: u64,
    ) -> Result<Vec<Range<u64>>, Stop> {
        let mut members = Vec::new();
        // If the list was damaged, it could be a ring.
        let mut left: u64 = self.extents.iter().map(|extent| extent.units).sum();
        while head != 0 {
            let (units, names_next) = if list == RANGES {
                let Some(units) = UnitRange::from_bits(head).map(UnitRange::units) else { break };
                (units.clone(), units.end - 1)
            } else {
                let units = block_of(Slot::from_bits(head));
                (units.clone(), units.start)
            };
            left = left.checked_sub(1).ok_or(Abort::Changed)?;
            let at = self.address(names_next)?;
            head = memory.read(&[(at.plus(AT_IMAGE), WORD_BYTES)]).await?[0];
            members.push(units);
        }
        Ok(members)
    }

    /// Reads the blocks of a subtable.
    async fn inspect<M: Memory + ?Sized>(
        &self,
        memory: &M,
        table: &Subtable,
        found: &mut RaceInspection,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Stop> {
        let mut keys = HashSet::new();
        for (at, slot) in &table.slots {
            match slot.kind() {
                Kind::Pending => found.pending += 1,
                Kind::Tombstone => found.tombstones += 1,
                Kind::Live => {
                    let block = self.address(slot.unit().into())?;
                    let words = memory.read(&[(block, slot.class().bytes())]).await?;
                    let (mark, image) = words.split_at(1);
                    let is_own = !self.shape.geometry.marks || [slot.to_bits(), slot.marked()].contains(&mark[0]);
                    match decode(*slot, image).filter(|(hash, _)| is_own && self.belongs(table, *at, *hash)) {
                        None => {
                            tracing::debug!(at, ?slot, ?words, path = ?table.path, "a live slot is wrong");
                            found.wrong += 1;
                        }
                        Some((_, content)) if !keys.insert(content.key.to_vec()) => {
                            tracing::debug!(at, ?slot, key = ?content.key, path = ?table.path, "a key is there twice");
                            found.duplicates += 1;
                        }
                        Some((_, content)) => {
                            found.keys += 1;
                            visit(content.key, content.value);
                        }
                    }
                }
                Kind::Empty | Kind::Withdrawn => {}
            }
        }
        Ok(())
    }

    /// Whether a key with this hash may be in a slot of a subtable.
    fn belongs(&self, table: &Subtable, at: usize, hash: Hash) -> bool {
        let (bits, depth) = table.path;
        let windows = hash.windows(self.shape.geometry.groups).map(|window| window.first_slot());
        debug_assert!(at < self.shape.geometry.groups as usize * GROUP_SLOTS);
        hash.shard(self.shape.shards) == self.number
            && hash.leaf_bits() & ((1 << depth) - 1) == bits
            && windows.iter().any(|first| (*first..first + WINDOW_SLOTS).contains(&at))
    }
}

impl Walk {
    /// Returns the blocks of all slots that have one.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Slot> + '_ {
        let slots = self.subtables.iter().flat_map(|table| &table.slots);
        slots.map(|(_, slot)| *slot).filter(|slot| has_block(*slot))
    }

    /// Returns where the units of the shard are.
    fn units(&self, shard: &Shard) -> RaceUnits {
        let used: Vec<Range<u64>> = self.nodes.iter().cloned().chain(self.blocks().map(block_of)).collect();
        let listed = self.listed.concat();
        let given = shard.given_units(&self.given);
        let all: u64 = shard.extents.iter().map(|extent| extent.units).sum();
        let fresh = all - count(&given);
        let [used_units, listed_units, given_units] = [&used, &listed, &given].map(|ranges| count(ranges));
        let lost = count(&gaps(&given, [used, listed].concat()));
        let misused = (used_units + listed_units + lost).saturating_sub(given_units);
        RaceUnits { given: given_units, used: used_units, listed: listed_units, lost, fresh, misused }
    }
}

/// Returns how many units are in ranges.
pub(super) fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns what is in `all`, and in none of the ranges `taken`. The ranges of `all` have nothing in
/// common, and are in order. What is returned of two of them is never put together.
pub(super) fn gaps(all: &[Range<u64>], mut taken: Vec<Range<u64>>) -> Vec<Range<u64>> {
    taken.sort_unstable_by_key(|range| range.start);
    let mut gaps = Vec::new();
    let mut taken = taken.into_iter().peekable();
    for range in all {
        let mut from = range.start;
        while let Some(next) = taken.next_if(|next| next.start < range.end) {
            if from < next.start {
                gaps.push(from..next.start);
            }
            from = from.max(next.end);
        }
        if from < range.end {
            gaps.push(from..range.end);
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn gaps_are_what_is_left_of_each_range() {
        let gaps = |taken: &[(u64, u64)]| {
            let taken = taken.iter().map(|(start, end)| *start..*end).collect();
            gaps(&[0..10, 10..20, 30..30], taken).into_iter().map(|gap| (gap.start, gap.end)).collect::<Vec<_>>()
        };
        assert_eq!(gaps(&[]), [(0, 10), (10, 20)]);
        assert_eq!(gaps(&[(12, 20), (0, 3), (3, 4)]), [(4, 10), (10, 12)]);
        assert_eq!(gaps(&[(2, 8), (3, 4), (5, 9)]), [(0, 2), (9, 10), (10, 20)]);
        assert_eq!(gaps(&[(0, 10), (10, 20), (20, 40)]), []);
    }
}
