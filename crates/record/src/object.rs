//! An object of protocol `rtx`: a lock word, and a word beside it that says where the value lies.
//!
//! ```text
//! object, 16 bytes
//! +0   lock      u64   see `lock`, repairable                                   CASed only
//! +8   place     u64   | 0 : 1 | use : 23 | mark : 4 | hint : 8 | block : 28 |
//!                      | 1 : 1 | attempt : 63 |   vacant                        CASed only
//!                      0                          vacant, and never used
//! ```
//!
//! The value lies in a *block*: a slot of a record (`record`) whose lock word is not used, and
//! whose extra word repeats the place, without the mark. An update writes the value into a block
//! that the writer owns, and then swaps the place. So a value in a block never changes while an
//! object names the block.
//!
//! **No place recurs.** The client that displaces a block owns it, and gives it out as the next
//! *use*. A block whose uses are used up is *retired*: it is not given out again
//! ([`Place::next_use`]). A vacant place names the attempt that has vacated the object. So a CAS
//! that is still on its way when its object has got another place can never succeed.
//!
//! The *mark* counts repairs. A repairer changes the place of an object although the value stays,
//! so that a CAS of the client that it repairs must fail.
//!
//! The *hint* is 8 bits of the key's hash, so that a search reads hardly any block of another key.

use crate::key::KeyHash;
use crate::lock::TransactionId;

/// Where the value of an object lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Place(u64);

impl Place {
    /// The place of an object that was never used.
    pub const NEVER_USED: Place = Place(0);
    /// The number of blocks that a shard has at most.
    pub const BLOCKS_MAX: u64 = 1 << Place::BLOCK_BITS;

    const VACANT: u64 = 1 << 63;
    const USE_SHIFT: u32 = 40;
    const MARK_SHIFT: u32 = 36;
    const HINT_SHIFT: u32 = 28;
    const BLOCK_BITS: u32 = 28;
    const USE_MAX: u64 = (1 << 23) - 1;
    const MARK_MAX: u64 = (1 << 4) - 1;
    const BLOCK_MASK: u64 = Place::BLOCKS_MAX - 1;

    /// Returns the first use of a block, for a key with this hash. The uses of a block begin at 1,
    /// so no place is 0.
    #[must_use]
    pub fn first_use(block: u64, hash: KeyHash) -> Place {
        debug_assert!(block < Place::BLOCKS_MAX);
        Place(1 << Place::USE_SHIFT | block & Place::BLOCK_MASK).hinting(hash)
    }

    /// Returns the next use of the block, which the caller owns, for a key with this hash. `None`
    /// if the block has no use left: it is retired.
    #[must_use]
    pub fn next_use(self, hash: KeyHash) -> Option<Place> {
        let number = self.0 >> Place::USE_SHIFT;
        let next = Place((number + 1) << Place::USE_SHIFT | self.0 & Place::BLOCK_MASK);
        (self.block().is_some() && number < Place::USE_MAX).then(|| next.hinting(hash))
    }

    fn hinting(self, hash: KeyHash) -> Place {
        Place(self.0 | u64::from(hint(hash)) << Place::HINT_SHIFT)
    }

    /// Returns the place of an object that an attempt has vacated.
    #[must_use]
    pub fn vacated_by(id: TransactionId) -> Place {
        Place(Place::VACANT | id.to_bits())
    }

    /// Unpacks a word of memory. Every word is some place.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Place {
        Place(bits)
    }

    /// Packs the place into the word that lies in memory.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the number of the block, or `None` if the object is vacant.
    #[inline]
    #[must_use]
    pub fn block(self) -> Option<u64> {
        (self.0 != 0 && self.0 & Place::VACANT == 0).then_some(self.0 & Place::BLOCK_MASK)
    }

    /// Whether the object may be the one of a key with this hash.
    #[inline]
    #[must_use]
    pub fn may_be_of(self, hash: KeyHash) -> bool {
        self.block().is_some() && (self.0 >> Place::HINT_SHIFT) as u8 == hint(hash)
    }

    /// Returns the word that the block repeats: the place without its mark.
    #[inline]
    #[must_use]
    pub fn unmarked(self) -> u64 {
        self.0 & !(Place::MARK_MAX << Place::MARK_SHIFT)
    }

    /// Returns the place with the next mark: the same value, in another word. `None` if all marks
    /// of this use are used up, or the object is vacant.
    #[must_use]
    pub fn marked(self) -> Option<Place> {
        let marks = self.0 >> Place::MARK_SHIFT & Place::MARK_MAX;
        (self.block().is_some() && marks < Place::MARK_MAX).then(|| Place(self.0 + (1 << Place::MARK_SHIFT)))
    }
}

/// The bits of a key's hash that a place has. Indexes take the upper bits of the hash.
#[inline]
fn hint(hash: KeyHash) -> u8 {
    hash.scatter as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_place_recurs(block in 0u64..1 << 28, keys in prop::collection::vec(any::<u64>(), 1..40)) {
            let mut seen = std::collections::BTreeSet::new();
            let hash = |key: u64| Key::new(&key.to_be_bytes()).unwrap().hash();
            let mut place = Place::first_use(block, hash(keys[0]));
            for key in keys {
                prop_assert_eq!((place.block(), place.next_use(hash(key)).unwrap().block()), (Some(block), Some(block)));
                let mut marked = Some(place);
                while let Some(one) = marked {
                    prop_assert!(seen.insert(one.to_bits()) && one.to_bits() != 0);
                    prop_assert_eq!((one.unmarked(), one.block()), (place.unmarked(), Some(block)));
                    marked = one.marked();
                }
                place = place.next_use(hash(key)).unwrap();
                prop_assert!(place.may_be_of(hash(key)));
            }
        }
    }

    #[test]
    fn a_block_is_retired_when_its_uses_are_used_up() {
        let hash = Key::new(&[7; 8]).unwrap().hash();
        let last = Place::from_bits(Place::USE_MAX << Place::USE_SHIFT | 5);
        assert_eq!((last.block(), last.next_use(hash)), (Some(5), None));
        let one_before = Place::from_bits((Place::USE_MAX - 1) << Place::USE_SHIFT | 5);
        assert!(one_before.next_use(hash).is_some());
    }

    #[test]
    fn a_vacant_place_names_who_has_vacated_it() {
        let by = |sequence| Place::vacated_by(TransactionId::new(3, sequence).unwrap());
        assert!(by(1) != by(2) && by(1).block().is_none() && by(1).marked().is_none());
        let hash = Key::new(&[0; 8]).unwrap().hash();
        assert!(!by(1).may_be_of(hash) && !Place::NEVER_USED.may_be_of(hash) && by(1).next_use(hash).is_none());
    }
}
