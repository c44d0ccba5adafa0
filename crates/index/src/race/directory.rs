//! What a client knows of the tree of a shard: its leaves, by the lowest bits of hashes.

/// The largest depth of a leaf, and so the largest number of bits that a client looks a leaf up by.
pub const DEPTH_MAX: u32 = 28;

/// The leaves of a tree, as far as a client knows them. A leaf of depth d has all keys whose hashes
/// have the same d lowest bits.
#[derive(Clone, Debug)]
pub struct Directory<L> {
    leaves: Vec<(L, u32)>,
    /// The number of a leaf for each value of the lowest bits of a hash.
    map: Vec<u32>,
    depth: u32,
}

impl<L> Directory<L> {
    /// Makes the directory of a tree of which a client knows the roots. Their number must be a
    /// power of two.
    #[must_use]
    pub fn new(roots: Vec<L>) -> Directory<L> {
        assert!(roots.len().is_power_of_two(), "the lowest bits of a hash choose a root");
        let depth = roots.len().ilog2();
        let map = (0..roots.len() as u32).collect();
        Directory { leaves: roots.into_iter().map(|root| (root, depth)).collect(), map, depth }
    }

    /// Returns the number of the leaf that has the keys with these bits.
    #[inline]
    #[must_use]
    pub fn find(&self, bits: u64) -> usize {
        self.map[(bits & ((1 << self.depth) - 1)) as usize] as usize
    }

    /// Returns a leaf by its number.
    #[inline]
    #[must_use]
    pub fn leaf(&self, number: usize) -> &L {
        &self.leaves[number].0
    }

    /// Returns a leaf by its number, to be changed.
    #[inline]
    #[must_use]
    pub fn leaf_mut(&mut self, number: usize) -> &mut L {
        &mut self.leaves[number].0
    }

    /// Returns the depth of a leaf.
    #[must_use]
    pub fn depth_of(&self, number: usize) -> u32 {
        self.leaves[number].1
    }

    /// Returns the number of leaves.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Returns whether there is no leaf, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Replaces a leaf by its two halves. `bits` are those of any key of the leaf. The second half
    /// has the keys whose next bit is 1. Returns false, and changes nothing, if the leaf is too
    /// deep.
    pub fn split(&mut self, number: usize, bits: u64, [low, high]: [L; 2]) -> bool {
        let depth = self.depth_of(number);
        if depth == DEPTH_MAX {
            return false;
        }
        if depth == self.depth {
            self.map.extend_from_within(..);
            self.depth += 1;
        }
        let new = self.leaves.len() as u32;
        self.leaves[number] = (low, depth + 1);
        self.leaves.push((high, depth + 1));
        let first = bits & ((1 << depth) - 1) | 1 << depth;
        let mut at = first as usize;
        while at < self.map.len() {
            self.map[at] = new;
            at += 1 << (depth + 1);
        }
        true
    }
}
