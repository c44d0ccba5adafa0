//! Headers of native RACE hash tables. The last slot of each group's overflow bucket is its header,
//! which both windows of the group have. So a client that reads a window learns whether the array
//! has the key at all.

use super::{BUCKET_SLOTS, GROUP_SLOTS, Hash, Slot, Window};

/// What an array has of the keys that have a hash, by the header of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// All of them.
    All,
    /// Keys that were not moved yet. The other ones are in an array that no node names yet.
    Moving,
    /// None.
    None,
}

/// The word of a group that says which keys the array has: those whose hashes have `suffix` as
/// their lowest `depth` bits. Operations take it for a pending slot, so that no insert uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Header(u64);

impl Header {
    const MOVING: u64 = 1 << 61;
    const DEPTH_SHIFT: u32 = 32;

    /// Returns the header of an array at this depth of the tree that has a key with these bits.
    #[must_use]
    pub fn new(depth: u32, bits: u64) -> Header {
        Header(Slot::PENDING | u64::from(depth) << Header::DEPTH_SHIFT | bits & ((1 << depth) - 1))
    }

    /// Returns the same header, of an array from which keys are moved that it does not have.
    #[must_use]
    pub fn moving(self) -> Header {
        Header(self.0 | Header::MOVING)
    }

    /// Unpacks a word of memory. Every word is some header.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Header {
        Header(bits)
    }

    /// Packs the header into the word that lies in memory.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns what the array has of the keys with this hash.
    #[inline]
    #[must_use]
    pub fn keys(self, hash: Hash) -> Keys {
        let depth = (self.0 >> Header::DEPTH_SHIFT) as u32 & 31;
        let is_own = hash.leaf_bits() & ((1 << depth) - 1) == self.0 & 0xffff_ffff;
        match (is_own, self.0 & Header::MOVING != 0) {
            (true, _) => Keys::All,
            (false, true) => Keys::Moving,
            (false, false) => Keys::None,
        }
    }

    /// Whether the slot with this number in an array is a header.
    #[must_use]
    pub fn is_at(slot: usize) -> bool {
        slot % GROUP_SLOTS == 2 * BUCKET_SLOTS - 1
    }

    /// Returns the numbers in an array of the slots that are headers.
    pub fn slots(groups: u64) -> impl Iterator<Item = usize> {
        (0..groups as usize).map(|group| group * GROUP_SLOTS + 2 * BUCKET_SLOTS - 1)
    }
}

impl Window {
    /// Returns the number in the window of the group's header.
    #[inline]
    #[must_use]
    pub fn header(self) -> usize {
        (2 - self.side) * BUCKET_SLOTS - 1
    }
}
