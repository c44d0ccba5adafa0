//! What a client remembers of where the leaves of an ordered table are. It may be wrong at any
//! time, because a leaf itself says which keys it has.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use remora_index::learned::{Learned, Size};

use super::keys::encoded;
use crate::key::Key;

/// Where nodes are, by their low fences. Where it knows none, there are gaps.
///
/// A lookup is a search in memory under a lock that readers share; only what has turned out to be
/// wrong or missing is written.
pub(super) struct Directory<K> {
    leaves: RwLock<Nodes<K>>,
    /// The nodes above leaves that have been met. A transaction that splits a leaf uses them.
    parents: RwLock<Nodes<K>>,
    /// Learns nothing.
    forgetful: bool,
    /// Entries of a leaf, in sixteenths, as scans have found them: a running average. 0: nobody has
    /// looked.
    entries: AtomicUsize,
}

/// Nodes of a level.
enum Nodes<K> {
    Map(BTreeMap<K, Known<K>>),
    Learned(Learned),
}

/// A node.
#[derive(Clone, Copy)]
struct Known<K> {
    id: u64,
    /// `None`: all keys that are not less than its low fence.
    high: Option<K>,
}

impl<K: Ord> Known<K> {
    fn ends_behind(&self, key: &K) -> bool {
        self.high.as_ref().is_none_or(|high| key < high)
    }
}

/// The node that has a key between its fences, and its low fence.
fn at<'n, K: Ord>(nodes: &'n BTreeMap<K, Known<K>>, key: &K) -> Option<(&'n K, &'n Known<K>)> {
    nodes.range(..=key).next_back().filter(|(_, node)| node.ends_behind(key))
}

impl<K: Key> Nodes<K> {
    fn find(&self, key: &K) -> Option<u64> {
        match self {
            Nodes::Map(nodes) => at(nodes, key).map(|(_, node)| node.id),
            Nodes::Learned(learned) => learned.find(encoded(key).bytes()),
        }
    }

    fn chain(&self, from: &K, to: &K, max: usize) -> Vec<u64> {
        let nodes = match self {
            Nodes::Map(nodes) => nodes,
            Nodes::Learned(learned) => return learned.chain(encoded(from).bytes(), encoded(to).bytes(), max),
        };
        let mut chain = Vec::with_capacity(max.min(64));
        let Some((low, first)) = at(nodes, from) else { return chain };
        chain.push(first.id);
        let mut end = first.high;
        for (low, node) in nodes.range((Bound::Excluded(low), Bound::Included(to))) {
            // Behind a gap nothing is known to be next.
            if chain.len() == max || end != Some(*low) {
                break;
            }
            chain.push(node.id);
            end = node.high;
        }
        chain
    }

    fn forget(&mut self, key: &K, id: u64) {
        let nodes = match self {
            Nodes::Map(nodes) => nodes,
            Nodes::Learned(learned) => return learned.forget(encoded(key).bytes(), id),
        };
        let gone = at(nodes, key).filter(|(_, node)| node.id == id).map(|(low, node)| (*low, node.high));
        let Some((low, high)) = gone else { return };
        nodes.remove(&low);
        if let Some((_, left)) = nodes.range_mut(..low).next_back()
            && left.high == Some(low)
        {
            left.high = high;
        }
    }

    fn learn(&mut self, low: K, high: Option<K>, id: u64) {
        let nodes = match self {
            Nodes::Map(nodes) => nodes,
            Nodes::Learned(learned) => {
                let high = high.as_ref().map(encoded);
                return learned.learn(encoded(&low).bytes(), high.as_ref().map(|high| high.bytes()), id);
            }
        };
        if let Some((_, left)) = nodes.range_mut(..low).next_back()
            && left.ends_behind(&low)
        {
            left.high = Some(low);
        }
        let known = Known { id, high };
        while let Some((gone, _)) = nodes.range(low..).next().filter(|(other, _)| known.ends_behind(other)) {
            let gone = *gone;
            nodes.remove(&gone);
        }
        nodes.insert(low, known);
    }
}

impl<K> Default for Directory<K> {
    fn default() -> Directory<K> {
        Directory::of(|| Nodes::Map(BTreeMap::new()))
    }
}

impl<K> Directory<K> {
    fn of(nodes: impl Fn() -> Nodes<K>) -> Directory<K> {
        let (leaves, parents) = (RwLock::new(nodes()), RwLock::new(nodes()));
        Directory { leaves, parents, forgetful: false, entries: AtomicUsize::new(0) }
    }

    /// How large it is, if it is learned: of leaves, and the bytes of all.
    pub(super) fn size(&self) -> Option<Size> {
        match (&*read(&self.leaves), &*read(&self.parents)) {
            (Nodes::Learned(leaves), Nodes::Learned(parents)) => {
                let (leaves, parents) = (leaves.size(), parents.size());
                Some(Size { bytes: leaves.bytes + parents.bytes, ..leaves })
            }
            _ => None,
        }
    }

    /// One that stays empty.
    pub(super) fn forgetful() -> Directory<K> {
        Directory { forgetful: true, ..Directory::default() }
    }

    pub(super) fn is_forgetful(&self) -> bool {
        self.forgetful
    }

    /// What one operation remembers, if this remembers nothing: as long as it lasts.
    pub(super) fn of_an_operation(&self) -> Option<Directory<K>> {
        self.forgetful.then(Directory::default)
    }

    /// How many leaves `keys` keys probably take. While no leaf has been seen, the least number
    /// possible.
    pub(super) fn leaves_of(&self, keys: usize, capacity: usize) -> usize {
        let seen = Some(self.entries.load(Ordering::Relaxed)).filter(|entries| *entries > 0);
        keys.saturating_mul(16).div_ceil(seen.unwrap_or(16 * capacity).max(16))
    }

    /// Notes that a leaf has `count` entries.
    pub(super) fn seen(&self, count: usize) {
        let before = self.entries.load(Ordering::Relaxed);
        let after = if before == 0 { 16 * count } else { before - before / 16 + count };
        self.entries.store(after, Ordering::Relaxed);
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Key> Directory<K> {
    /// One that needs a ninth of the memory: see [`remora_index::learned`].
    pub(super) fn learned() -> Directory<K> {
        Directory::of(|| Nodes::Learned(Learned::new(K::BYTES)))
    }

    /// The leaf of a key, as far as it knows.
    pub(super) fn find(&self, key: &K) -> Option<u64> {
        read(&self.leaves).find(key)
    }

    /// The node above the leaf of a key, as far as it knows.
    pub(super) fn parent(&self, key: &K) -> Option<u64> {
        read(&self.parents).find(key)
    }

    /// The leaf of a key and the leaves to its right, as far as they are known, up to the leaf of
    /// another key; at most `max`.
    pub(super) fn chain(&self, from: &K, to: &K, max: usize) -> Vec<u64> {
        read(&self.leaves).chain(from, to, max)
    }

    /// The leaf of a key is not there. What it had, the one to its left has: it was merged, or a
    /// split has not committed.
    pub(super) fn forget(&self, key: &K, id: u64) {
        write(&self.leaves).forget(key, id);
    }

    /// Notes where leaves are: each its fences and its id.
    pub(super) fn learn(&self, found: impl IntoIterator<Item = (K, Option<K>, u64)>) {
        if !self.forgetful {
            let mut leaves = write(&self.leaves);
            found.into_iter().for_each(|(low, high, id)| leaves.learn(low, high, id));
        }
    }

    /// Notes where a node above leaves is: its fences and its id.
    pub(super) fn learn_parent(&self, (low, high, id): (K, Option<K>, u64)) {
        if !self.forgetful {
            write(&self.parents).learn(low, high, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_replaces_what_it_overlaps() {
        let directory = Directory::<u8>::default();
        let chain = |from: u8, to| directory.chain(&from, &to, 9);
        assert_eq!(directory.find(&5), None);
        directory.learn([(10, Some(20), 1), (20, Some(30), 2), (40, None, 4)]);
        let found = [9, 10, 19, 20, 29, 30, 40, 255].map(|key| directory.find(&key));
        assert_eq!(found, [None, Some(1), Some(1), Some(2), Some(2), None, Some(4), Some(4)]);
        assert_eq!(chain(10, 255), [1, 2], "there is a gap behind them");
        assert_eq!(directory.chain(&10, &255, 1), [1]);
        directory.learn([(30, Some(40), 3)]);
        assert_eq!((chain(15, 255), chain(15, 39), chain(25, 29)), (vec![1, 2, 3, 4], vec![1, 2, 3], vec![2]));
        // A split, seen from its right half.
        directory.learn([(15, Some(20), 5)]);
        assert!(chain(0, 255).is_empty());
        assert_eq!(chain(10, 25), [1, 5, 2]);
        // A merge that ends within another leaf.
        directory.learn([(10, Some(25), 6)]);
        assert_eq!((chain(10, 255), directory.find(&27)), (vec![6], None));
        directory.learn([(0, None, 7)]);
        assert_eq!(chain(3, 255), [7]);
    }

    #[test]
    fn what_is_not_there_belongs_to_its_left_neighbour() {
        for directory in [Directory::default(), Directory::learned()] {
            directory.learn([(10, Some(20), 1), (20, Some(30), 2), (40, None, 4)]);
            directory.forget(&25, 1);
            assert_eq!(directory.find(&25_u8), Some(2), "it was another leaf that was not there");
            directory.forget(&25, 2);
            assert_eq!(directory.find(&25), Some(1));
            directory.forget(&50, 4);
            assert_eq!([25, 35, 50].map(|key| directory.find(&key)), [Some(1), None, None], "there was a gap");
        }
    }

    #[test]
    fn parents_are_remembered_beside_leaves() {
        let directory = Directory::default();
        directory.learn([(10, Some(20), 1)]);
        directory.learn_parent((0_u8, Some(15), 9));
        assert_eq!((directory.find(&12), directory.parent(&12), directory.parent(&15)), (Some(1), Some(9), None));
    }
}
