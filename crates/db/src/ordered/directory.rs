//! What a client remembers of where the leaves of an ordered table are. It may be wrong at any time, because a leaf itself
//! says which keys it has.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// Leaves by their low fences. Where it knows none, there are gaps.
///
/// A lookup is a search in a tree in memory under a lock that readers share; only what has turned out to be wrong or missing
/// is written.
pub(super) struct Directory<K> {
    leaves: RwLock<BTreeMap<K, Known<K>>>,
    /// The nodes above leaves, as far as they have been met: for whoever splits a leaf.
    parents: RwLock<BTreeMap<K, Known<K>>>,
    /// Learns nothing.
    forgetful: bool,
    /// Entries of a leaf, in sixteenths, as scans have found them: a running average. 0: nobody has looked.
    entries: AtomicUsize,
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

/// The leaf that has a key between its fences, and its low fence.
fn at<'l, K: Ord>(leaves: &'l BTreeMap<K, Known<K>>, key: &K) -> Option<(&'l K, &'l Known<K>)> {
    leaves.range(..=key).next_back().filter(|(_, leaf)| leaf.ends_behind(key))
}

impl<K> Default for Directory<K> {
    fn default() -> Directory<K> {
        let (leaves, parents) = (RwLock::default(), RwLock::default());
        Directory { leaves, parents, forgetful: false, entries: AtomicUsize::new(0) }
    }
}

impl<K> Directory<K> {
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

    /// Leaves that so many keys probably take; as few as can be, while nobody has looked.
    pub(super) fn leaves_of(&self, keys: usize, capacity: usize) -> usize {
        let seen = Some(self.entries.load(Ordering::Relaxed)).filter(|entries| *entries > 0);
        keys.saturating_mul(16).div_ceil(seen.unwrap_or(16 * capacity).max(16))
    }

    /// A leaf has so many entries.
    pub(super) fn seen(&self, count: usize) {
        let before = self.entries.load(Ordering::Relaxed);
        let after = if before == 0 { 16 * count } else { before - before / 16 + count };
        self.entries.store(after, Ordering::Relaxed);
    }
}

impl<K: Ord + Copy> Directory<K> {
    /// The leaf of a key, as far as it knows.
    pub(super) fn find(&self, key: &K) -> Option<u64> {
        let leaves = self.leaves.read().unwrap_or_else(PoisonError::into_inner);
        at(&leaves, key).map(|(_, leaf)| leaf.id)
    }

    /// The node above the leaf of a key, as far as it knows.
    pub(super) fn parent(&self, key: &K) -> Option<u64> {
        let parents = self.parents.read().unwrap_or_else(PoisonError::into_inner);
        at(&parents, key).map(|(_, parent)| parent.id)
    }

    /// The leaf of a key and those to its right, as far as it knows, up to that of another key; at most so many.
    pub(super) fn chain(&self, from: &K, to: &K, max: usize) -> Vec<u64> {
        let leaves = self.leaves.read().unwrap_or_else(PoisonError::into_inner);
        let mut chain = Vec::with_capacity(max.min(64));
        let Some((low, first)) = at(&leaves, from) else { return chain };
        chain.push(first.id);
        let mut end = first.high;
        for (low, leaf) in leaves.range((Bound::Excluded(low), Bound::Included(to))) {
            // Behind a gap nothing is known to be next.
            if chain.len() == max || end != Some(*low) {
                break;
            }
            chain.push(leaf.id);
            end = leaf.high;
        }
        chain
    }

    /// The leaf of a key is not there. What it had, the one to its left has: it was merged, or a split has not committed.
    pub(super) fn forget(&self, key: &K, id: u64) {
        let mut leaves = self.leaves.write().unwrap_or_else(PoisonError::into_inner);
        let Some((low, high)) = at(&leaves, key).filter(|(_, leaf)| leaf.id == id).map(|(low, leaf)| (*low, leaf.high))
        else {
            return;
        };
        leaves.remove(&low);
        if let Some((_, left)) = leaves.range_mut(..low).next_back()
            && left.high == Some(low)
        {
            left.high = high;
        }
    }

    /// Notes where leaves are: each its fences and its id.
    pub(super) fn learn(&self, found: impl IntoIterator<Item = (K, Option<K>, u64)>) {
        self.note(&self.leaves, found);
    }

    /// The same of a node above leaves.
    pub(super) fn learn_parent(&self, found: (K, Option<K>, u64)) {
        self.note(&self.parents, [found]);
    }

    fn note(&self, nodes: &RwLock<BTreeMap<K, Known<K>>>, found: impl IntoIterator<Item = (K, Option<K>, u64)>) {
        if self.forgetful {
            return;
        }
        let mut nodes = nodes.write().unwrap_or_else(PoisonError::into_inner);
        for (low, high, id) in found {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_replaces_what_it_overlaps() {
        let directory = Directory::default();
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
        let directory = Directory::default();
        directory.learn([(10, Some(20), 1), (20, Some(30), 2), (40, None, 4)]);
        directory.forget(&25, 1);
        assert_eq!(directory.find(&25_u8), Some(2), "it was another leaf that was not there");
        directory.forget(&25, 2);
        assert_eq!(directory.find(&25), Some(1));
        directory.forget(&50, 4);
        assert_eq!([25, 35, 50].map(|key| directory.find(&key)), [Some(1), None, None], "there was a gap");
    }

    #[test]
    fn parents_are_remembered_beside_leaves() {
        let directory = Directory::default();
        directory.learn([(10, Some(20), 1)]);
        directory.learn_parent((0_u8, Some(15), 9));
        assert_eq!((directory.find(&12), directory.parent(&12), directory.parent(&15)), (Some(1), Some(9), None));
    }
}
