//! Where the former image of a record lies: what its slot held before the last commit.
//!
//! A client that overwrites a record of a timed table keeps the former image in its *archive*, a
//! ring at each memory node that has the record ([`Archive`](remora_node::Archive)). The new image
//! names the place:
//!
//! ```text
//! | crc32c of the former image : 32 | client slot : 10 | place in the archive : 22, in words |
//! all ones    the slot was empty: no key has ever been there
//! 0           unknown: nothing was kept
//! ```
//!
//! The place is the same at every node. The checksum tells whether the former image is still there,
//! because the client writes its archive round and round.

use remora_node::limits::{ARCHIVE_BYTES_MAX, CLIENTS_MAX};
use zerocopy::IntoBytes;

const CHECKSUM_SHIFT: u32 = 32;
const SLOT_SHIFT: u32 = 22;
const SLOT_MASK: u64 = (1 << (CHECKSUM_SHIFT - SLOT_SHIFT)) - 1;
const PLACE_MASK: u64 = (1 << SLOT_SHIFT) - 1;

const _: () = assert!(ARCHIVE_BYTES_MAX / 8 <= PLACE_MASK + 1 && CLIENTS_MAX as u64 <= SLOT_MASK + 1);

/// Where the former image of a record lies: the checksum of that image, the client slot of its
/// archive, and its place there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Former(u64);

impl Former {
    /// Nothing was kept, or nobody knows of it.
    pub const UNKNOWN: Former = Former(0);
    /// The slot was empty, and no key had ever been there.
    pub const EMPTY: Former = Former(u64::MAX);

    /// Makes the word for a former image that the client with this slot keeps at this place of its
    /// archive, in words.
    #[must_use]
    pub fn kept(image: &[u64], slot: u64, place: u64) -> Former {
        debug_assert!(slot <= SLOT_MASK && place < PLACE_MASK);
        Former(u64::from(checksum(image)) << CHECKSUM_SHIFT | (slot & SLOT_MASK) << SLOT_SHIFT | place & PLACE_MASK)
    }

    /// Decodes a word of a slot. Every word is valid.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Former {
        Former(bits)
    }

    /// Returns the word.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the client slot and the place in the archive, in words, if the former image was
    /// kept.
    #[must_use]
    pub fn place(self) -> Option<(u64, u64)> {
        let is_kept = self != Former::UNKNOWN && self != Former::EMPTY;
        is_kept.then_some((self.0 >> SLOT_SHIFT & SLOT_MASK, self.0 & PLACE_MASK))
    }

    /// Returns whether these words, which were read at the place, are the former image.
    #[must_use]
    pub fn is(self, image: &[u64]) -> bool {
        self.place().is_some() && u64::from(checksum(image)) == self.0 >> CHECKSUM_SHIFT
    }
}

fn checksum(image: &[u64]) -> u32 {
    crc32c::crc32c(image.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_found(
            image in proptest::collection::vec(any::<u64>(), 1..20), slot in 0u64..1024, place in 0u64..PLACE_MASK,
            at in any::<prop::sample::Index>(), bit in 0u32..64,
        ) {
            let former = Former::from_bits(Former::kept(&image, slot, place).to_bits());
            prop_assume!(former != Former::UNKNOWN);
            prop_assert_eq!(former.place(), Some((slot, place)));
            prop_assert!(former.is(&image));
            let mut other = image.clone();
            other[at.index(image.len())] ^= 1 << bit;
            prop_assert!(!former.is(&other));
        }
    }

    #[test]
    fn two_words_name_no_place() {
        for former in [Former::UNKNOWN, Former::EMPTY] {
            assert_eq!((former.place(), former.is(&[0])), (None, false));
        }
    }
}
