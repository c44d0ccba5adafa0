//! What a client remembers of where the leaves of an ordered table are. It may be wrong at any
//! time, because a leaf itself says which keys it has.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use remora_index::btree::Shape;
use remora_index::learned::{Learned, Size};
use remora_node::limits::KEY_BYTES_MAX;

use super::keys::TreeKey;

/// A node: its low fence, its high fence (`None`: it has all keys that are not less than the low
/// one), and its id.
pub(super) type Known<'n> = (&'n [u8], Option<&'n [u8]>, u64);

/// Where nodes are, by their low fences. Where it knows none, there are gaps.
///
/// A lookup is a search in memory under a lock that readers share; only what has turned out to be
/// wrong or missing is written.
pub(super) struct Directory {
    shape: Shape,
    leaves: RwLock<Box<dyn Nodes>>,
    /// The nodes above leaves that have been met. A transaction that splits a leaf uses them.
    parents: RwLock<Box<dyn Nodes>>,
    /// Learns nothing.
    forgetful: bool,
    /// Entries of a leaf, in sixteenths, as scans have found them: a running average. 0: nobody has
    /// looked.
    entries: AtomicUsize,
}

/// Nodes of a level.
trait Nodes: Send + Sync {
    /// The node of a key.
    fn find(&self, key: &[u8]) -> Option<u64>;
    /// The node of a key and the nodes to its right, without a gap, up to the node of another key;
    /// at most `max`.
    fn chain(&self, from: &[u8], to: &[u8], max: usize) -> Vec<u64>;
    /// Gives the range of a key's node to the node to its left, if it is the one with this id.
    fn forget(&mut self, key: &[u8], id: u64);
    fn learn(&mut self, node: Known<'_>);
    /// How large they are, if they are learned.
    fn size(&self) -> Option<Size>;
}

impl Nodes for Learned {
    fn find(&self, key: &[u8]) -> Option<u64> {
        self.find(key)
    }

    fn chain(&self, from: &[u8], to: &[u8], max: usize) -> Vec<u64> {
        self.chain(from, to, max)
    }

    fn forget(&mut self, key: &[u8], id: u64) {
        self.forget(key, id);
    }

    fn learn(&mut self, (low, high, id): Known<'_>) {
        self.learn(low, high, id);
    }

    fn size(&self) -> Option<Size> {
        Some(self.size())
    }
}

/// A key of up to `WORDS` words: big-endian, so that they compare as its bytes do.
type Words<const WORDS: usize> = [u64; WORDS];

fn words<const WORDS: usize>(key: &[u8]) -> Words<WORDS> {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(key.chunks(size_of::<u64>())) {
        let mut padded = [0; size_of::<u64>()];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_be_bytes(padded);
    }
    words
}

/// A key, as a map has it.
trait Fence: Ord + Clone + Send + Sync {
    fn of(key: &[u8]) -> Self;
}

impl<const WORDS: usize> Fence for Words<WORDS> {
    fn of(key: &[u8]) -> Words<WORDS> {
        words(key)
    }
}

impl Fence for TreeKey {
    fn of(key: &[u8]) -> TreeKey {
        TreeKey::of(key)
    }
}

/// What a map has of a node, beside its low fence.
struct Rest<F> {
    id: u64,
    high: Option<F>,
}

impl<F: Fence> Rest<F> {
    fn ends_behind(&self, key: &F) -> bool {
        self.high.as_ref().is_none_or(|high| key < high)
    }
}

/// Nodes by their low fences.
struct Map<F>(BTreeMap<F, Rest<F>>);

impl<F: Fence> Map<F> {
    fn empty<'m>() -> Box<dyn Nodes + 'm>
    where
        F: 'm,
    {
        Box::new(Map::<F>(BTreeMap::new()))
    }

    /// The node that has a key between its fences, and its low fence.
    fn at(&self, key: &F) -> Option<(&F, &Rest<F>)> {
        self.0.range(..=key).next_back().filter(|(_, node)| node.ends_behind(key))
    }
}

impl<F: Fence> Nodes for Map<F> {
    fn find(&self, key: &[u8]) -> Option<u64> {
        self.at(&F::of(key)).map(|(_, node)| node.id)
    }

    fn chain(&self, from: &[u8], to: &[u8], max: usize) -> Vec<u64> {
        let mut chain = Vec::with_capacity(max.min(64));
        let Some((low, first)) = self.at(&F::of(from)) else { return chain };
        chain.push(first.id);
        let mut end = first.high.as_ref();
        for (low, node) in self.0.range((Bound::Excluded(low), Bound::Included(&F::of(to)))) {
            // Behind a gap nothing is known to be next.
            if chain.len() == max || end != Some(low) {
                break;
            }
            chain.push(node.id);
            end = node.high.as_ref();
        }
        chain
    }

    fn forget(&mut self, key: &[u8], id: u64) {
        let found = self.at(&F::of(key)).filter(|(_, node)| node.id == id);
        let Some(low) = found.map(|(low, _)| low.clone()) else { return };
        let Some(gone) = self.0.remove(&low) else { return };
        if let Some((_, left)) = self.0.range_mut(..&low).next_back()
            && left.high.as_ref() == Some(&low)
        {
            left.high = gone.high;
        }
    }

    fn learn(&mut self, (low, high, id): Known<'_>) {
        let low = F::of(low);
        if let Some((_, left)) = self.0.range_mut(..&low).next_back()
            && left.ends_behind(&low)
        {
            left.high = Some(low.clone());
        }
        let node = Rest { id, high: high.map(F::of) };
        while let Some((gone, _)) = self.0.range(&low..).next().filter(|(other, _)| node.ends_behind(other)) {
            let gone = gone.clone();
            self.0.remove(&gone);
        }
        self.0.insert(low, node);
    }

    fn size(&self) -> Option<Size> {
        None
    }
}

/// A map for the keys of a tree: of just enough words, if they have one length.
fn map(shape: &Shape) -> Box<dyn Nodes> {
    match shape.key_bytes().div_ceil(size_of::<u64>()) {
        _ if shape.is_slotted() => Map::<TreeKey>::empty(),
        ..=1 => Map::<Words<1>>::empty(),
        2 => Map::<Words<2>>::empty(),
        3..=4 => Map::<Words<4>>::empty(),
        _ => Map::<Words<{ KEY_BYTES_MAX / size_of::<u64>() }>>::empty(),
    }
}

impl Directory {
    /// One that knows nothing yet, of a tree of this shape.
    pub(super) fn new(shape: Shape) -> Directory {
        Directory::of(shape, || map(&shape))
    }

    /// One that needs a ninth of the memory: see [`remora_index::learned`]. Keys have one length.
    pub(super) fn learned(shape: Shape) -> Directory {
        Directory::of(shape, || Box::new(Learned::new(shape.key_bytes())))
    }

    /// One that stays empty.
    pub(super) fn forgetful(shape: Shape) -> Directory {
        Directory { forgetful: true, ..Directory::new(shape) }
    }

    fn of(shape: Shape, nodes: impl Fn() -> Box<dyn Nodes>) -> Directory {
        let (leaves, parents) = (RwLock::new(nodes()), RwLock::new(nodes()));
        Directory { shape, leaves, parents, forgetful: false, entries: AtomicUsize::new(0) }
    }

    /// How large it is, if it is learned: of leaves, and the bytes of all.
    pub(super) fn size(&self) -> Option<Size> {
        let (leaves, parents) = (read(&self.leaves).size()?, read(&self.parents).size()?);
        Some(Size { bytes: leaves.bytes + parents.bytes, ..leaves })
    }

    pub(super) fn is_forgetful(&self) -> bool {
        self.forgetful
    }

    /// What one operation remembers, if this remembers nothing: as long as it lasts.
    pub(super) fn of_an_operation(&self) -> Option<Directory> {
        self.forgetful.then(|| Directory::new(self.shape))
    }

    /// How many leaves `keys` keys probably take. While no leaf has been seen, the least number
    /// possible.
    pub(super) fn leaves_of(&self, keys: usize) -> usize {
        let seen = Some(self.entries.load(Ordering::Relaxed)).filter(|entries| *entries > 0);
        keys.saturating_mul(16).div_ceil(seen.unwrap_or(16 * self.shape.leaf_entries_max()).max(16))
    }

    /// Notes that a leaf has `count` entries.
    pub(super) fn seen(&self, count: usize) {
        let before = self.entries.load(Ordering::Relaxed);
        let after = if before == 0 { 16 * count } else { before - before / 16 + count };
        self.entries.store(after, Ordering::Relaxed);
    }

    /// The leaf of a key, as far as it knows.
    pub(super) fn find(&self, key: &[u8]) -> Option<u64> {
        read(&self.leaves).find(key)
    }

    /// The node above the leaf of a key, as far as it knows.
    pub(super) fn parent(&self, key: &[u8]) -> Option<u64> {
        read(&self.parents).find(key)
    }

    /// The leaf of a key and the leaves to its right, as far as they are known, up to the leaf of
    /// another key; at most `max`.
    pub(super) fn chain(&self, from: &[u8], to: &[u8], max: usize) -> Vec<u64> {
        read(&self.leaves).chain(from, to, max)
    }

    /// The leaf of a key is not there. What it had, the one to its left has: it was merged, or a
    /// split has not committed.
    pub(super) fn forget(&self, key: &[u8], id: u64) {
        write(&self.leaves).forget(key, id);
    }

    /// Notes where leaves are.
    pub(super) fn learn<'n>(&self, found: impl IntoIterator<Item = Known<'n>>) {
        if !self.forgetful {
            let mut leaves = write(&self.leaves);
            found.into_iter().for_each(|leaf| leaves.learn(leaf));
        }
    }

    /// Notes where a node above leaves is.
    pub(super) fn learn_parent(&self, parent: Known<'_>) {
        if !self.forgetful {
            write(&self.parents).learn(parent);
        }
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes where leaves are whose keys are numbers.
    fn learn(directory: &Directory, leaves: impl IntoIterator<Item = (u8, Option<u8>, u64)>) {
        for (low, high, id) in leaves {
            let (low, high) = (key(directory, low), high.map(|high| key(directory, high)));
            directory.learn([(&low[..], high.as_deref(), id)]);
        }
    }

    fn of_bytes(bytes: usize) -> Shape {
        Shape::new(bytes, 0).unwrap()
    }

    /// A number as a key of this directory, of any number of bytes.
    fn key(directory: &Directory, number: u8) -> Vec<u8> {
        let mut key = vec![7; directory.shape.key_bytes() - 1];
        key.push(number);
        key
    }

    fn find(directory: &Directory, number: u8) -> Option<u64> {
        directory.find(&key(directory, number))
    }

    #[test]
    fn what_is_learnt_replaces_what_it_overlaps() {
        let slotted = [1, 20, 200].map(|bytes| Shape::up_to(bytes, 8).unwrap());
        for directory in [1, 8, 9, 17, 64].map(of_bytes).into_iter().chain(slotted).map(Directory::new) {
            let chain = |from, to, max| directory.chain(&key(&directory, from), &key(&directory, to), max);
            assert_eq!(find(&directory, 5), None);
            learn(&directory, [(10, Some(20), 1), (20, Some(30), 2), (40, None, 4)]);
            let found = [9, 10, 19, 20, 29, 30, 40, 255].map(|number| find(&directory, number));
            assert_eq!(found, [None, Some(1), Some(1), Some(2), Some(2), None, Some(4), Some(4)]);
            assert_eq!(chain(10, 255, 9), [1, 2], "there is a gap behind them");
            assert_eq!(chain(10, 255, 1), [1]);
            learn(&directory, [(30, Some(40), 3)]);
            assert_eq!((chain(15, 255, 9), chain(15, 39, 9)), (vec![1, 2, 3, 4], vec![1, 2, 3]));
            assert_eq!((chain(25, 29, 9), chain(20, 20, 9)), (vec![2], vec![2]));
            // A split, seen from its right half.
            learn(&directory, [(15, Some(20), 5)]);
            assert!(chain(0, 255, 9).is_empty());
            assert_eq!(chain(10, 25, 9), [1, 5, 2]);
            // A merge that ends within another leaf.
            learn(&directory, [(10, Some(25), 6)]);
            assert_eq!((chain(10, 255, 9), find(&directory, 27)), (vec![6], None));
            learn(&directory, [(0, None, 7)]);
            assert_eq!(chain(3, 255, 9), [7]);
        }
    }

    #[test]
    fn what_is_not_there_belongs_to_its_left_neighbour() {
        for directory in [Directory::new(of_bytes(1)), Directory::new(of_bytes(20)), Directory::learned(of_bytes(1))] {
            let forget = |number, id| directory.forget(&key(&directory, number), id);
            learn(&directory, [(10, Some(20), 1), (20, Some(30), 2), (40, None, 4)]);
            forget(25, 1);
            assert_eq!(find(&directory, 25), Some(2), "it was another leaf that was not there");
            forget(25, 2);
            assert_eq!(find(&directory, 25), Some(1));
            forget(50, 4);
            assert_eq!([25, 35, 50].map(|number| find(&directory, number)), [Some(1), None, None], "there was a gap");
        }
    }

    #[test]
    fn parents_are_remembered_beside_leaves() {
        let directory = Directory::new(of_bytes(1));
        directory.learn([(&[10][..], Some(&[20][..]), 1)]);
        directory.learn_parent((&[0], Some(&[15]), 9));
        let parent = |number| directory.parent(&[number]);
        assert_eq!((directory.find(&[12]), parent(12), parent(15)), (Some(1), Some(9), None));
    }

    #[test]
    fn words_compare_as_bytes_do() {
        let keys = [
            &b"\0\0\0\0\0\0\0\0\0"[..],
            b"\0\0\0\0\0\0\0\0\x01",
            b"aaaaaaaa\x01",
            b"ab\0\0\0\0\0\0\0",
            b"\xff\0\0\0\0\0\0\0\0",
        ];
        assert!(keys.map(words::<2>).is_sorted() && keys.map(words::<8>).is_sorted());
        assert_eq!(words::<2>(b"aaaaaaaab"), [u64::from_be_bytes(*b"aaaaaaaa"), u64::from(b'b') << 56]);
    }
}
