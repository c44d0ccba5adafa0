//! Buckets of objects: a hash table whose buckets hold, for each record, a lock and the place of
//! the record's value ([`remora_record::Place`]). The values lie in *blocks*. Clients change
//! everything by compare-and-swap alone, and any of them can finish what another one has begun
//! (protocol `rtx`).
//!
//! ```text
//! shard
//! +0    overflow   u64   overflow buckets given out      FETCH_ADDed
//! +8    blocks     u64   blocks given out                FETCH_ADDed
//! +16   returned   u64   first block that was returned   CASed
//! +24   ...        u64   first overflow bucket that was returned, as a block's place   CASed
//! +72   loaded     u64   rows that were loaded
//! +120  loader     u64   client that loads rows
//! +128  main buckets, then overflow buckets
//! ...   blocks, each a slot of a record
//!
//! bucket, 128 bytes
//! +0    lock       u64   of the bucket
//! +8    link       u64   number of the next bucket of the chain + 1, 0 = none
//! +16   floor      u64   a version that no key of the chain has exceeded when it was deleted
//! +24   unused     u64
//! +32   6 objects, 16 bytes each
//! ```
//!
//! # Rules
//!
//! 1. **A transaction that inserts into a chain or deletes from it holds the lock of the chain's
//!    main bucket.** So there are never two inserts of one key at a time. It also raises the floor
//!    there, so no floor recurs.
//! 2. **A delete vacates the object**, and raises the floor to the version of what it deletes. An
//!    insert takes a version above the floor. So the versions of a key never restart, although
//!    nothing of a deleted record stays.
//! 3. **A chain grows only at its end**, and never shrinks. The client that grows it has taken the
//!    bucket for itself before. If its transaction aborts, it keeps the bucket for the next time,
//!    or returns it to the shard when it comes to rest. A bucket in no chain may hold anything, so
//!    a client that reads a whole table follows the links.
//!
//! # Absent keys
//!
//! A client finds that a key is absent by a READ of each bucket of its chain, and of the blocks
//! whose hints fit. It reads the buckets again when it validates. Then the main bucket must have
//! the same lock word, which must be free, and each link and each object whose hint fits must be
//! the same. The client that inserts the key holds the lock of the main bucket. If it has unlocked
//! before the first look, the second look, which comes later, finds the key. If it unlocks later,
//! the lock word of the second look is another one. If it has died, and another client has freed
//! the main bucket for it, the vacant object that it was about to fill is still locked. So a vacant
//! object that is locked may be the key's.

use std::ops::Range;

use remora_node::TableSpec;
use remora_record::Place;

use crate::buckets::{Buckets, Index, SHARD_HEADER_BYTES};

/// The bytes of a bucket.
pub const BUCKET_BYTES: usize = 128;
/// The number of objects of a bucket.
pub const BUCKET_OBJECTS: usize = 6;
/// The index of the word of the bucket's link.
pub const LINK_WORD: usize = 1;
/// The index of the word of the bucket's floor.
pub const FLOOR_WORD: usize = 2;
/// The index of the first object's first word.
const OBJECTS_WORD: usize = 4;
const OBJECT_WORDS: usize = 2;
/// The bytes of an object.
pub const OBJECT_BYTES: usize = OBJECT_WORDS * 8;

/// The offset in a shard of the number of overflow buckets that were given out.
pub const AT_OVERFLOW: u64 = 0;
/// The offset in a shard of the number of blocks that were given out.
pub const AT_BLOCKS: u64 = 8;
/// The offset in a shard of the place of the first block that was returned.
pub const AT_RETURNED: u64 = 16;
/// The offset in a shard of the place of the first overflow bucket that was returned. It names a
/// bucket as it would name a block.
pub const AT_RETURNED_BUCKETS: u64 = 24;
/// The index of the word that counts the loaded rows.
pub(crate) const LOADED_WORD: usize = 9;

/// Share of the main buckets' objects that are used when a table has the number of rows for which
/// it was created.
const OCCUPANCY: f64 = 0.6;
/// Bytes of the blocks that clients have in hand for their next writes, beside those of the rows,
/// and how many blocks these are at least and at most.
const SPARE_BYTES: u64 = 1 << 18;
const SPARE_BLOCKS: [u64; 2] = [64, 1024];

/// The sizes and places of buckets and blocks within a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The main buckets, and the overflow buckets after them.
    pub buckets: Buckets,
    /// The number of blocks.
    pub blocks: u64,
    /// The bytes of a block.
    pub block_bytes: u64,
}

impl Geometry {
    /// Returns the geometry of a shard for `rows` rows.
    #[must_use]
    pub fn for_rows(rows: u64, block_bytes: u32) -> Geometry {
        let main = ((rows as f64 / (BUCKET_OBJECTS as f64 * OCCUPANCY)).ceil() as u64).max(1);
        // At this occupancy about a twelfth of the main buckets overflow.
        let overflow = main / 4 + 16;
        let [least, most] = SPARE_BLOCKS;
        let spare = (SPARE_BYTES / u64::from(block_bytes)).clamp(least, most);
        let blocks = rows.saturating_add(rows / 4).saturating_add(spare);
        Geometry::new(main, overflow, blocks, block_bytes.into())
    }

    /// Returns the geometry of a shard with `main` main and `overflow` overflow buckets.
    #[must_use]
    pub fn new(main: u64, overflow: u64, blocks: u64, block_bytes: u64) -> Geometry {
        let bytes = BUCKET_BYTES as u64;
        let buckets = Buckets { main, overflow, bytes, overflow_bytes: bytes, first: SHARD_HEADER_BYTES };
        Geometry { buckets, blocks: blocks.min(Place::BLOCKS_MAX), block_bytes }
    }

    /// Returns the geometry of a table's shards.
    #[must_use]
    pub fn of(spec: &TableSpec) -> Geometry {
        Geometry::new(spec.buckets, spec.indirect, spec.slots, spec.layout.slot_bytes.into())
    }

    /// Returns the number of rows for which a shard of this geometry is made.
    #[must_use]
    pub fn rows(&self) -> u64 {
        (self.buckets.main as f64 * BUCKET_OBJECTS as f64 * OCCUPANCY) as u64
    }

    /// Returns the offset of an object of a bucket.
    #[inline]
    #[must_use]
    pub fn object_at(&self, bucket: u64, object: usize) -> u64 {
        self.buckets.at(bucket) + ((OBJECTS_WORD + object * OBJECT_WORDS) * 8) as u64
    }

    /// Returns the offset of a block. `None` if there is no such block.
    #[inline]
    #[must_use]
    pub fn block_at(&self, block: u64) -> Option<u64> {
        (block < self.blocks).then(|| self.buckets.end() + block * self.block_bytes)
    }

    /// Returns whether an offset is that of an object.
    #[must_use]
    pub fn is_object(&self, offset: u64) -> bool {
        let Some(within) = offset.checked_sub(self.buckets.first) else { return false };
        let bucket = within / self.buckets.bytes;
        let places = || (0..BUCKET_OBJECTS).map(|object| self.object_at(bucket, object));
        bucket < self.buckets.count() && places().any(|place| place == offset)
    }

    /// Returns the bucket that a link names. `None` if the link names none.
    #[inline]
    #[must_use]
    pub fn linked(&self, link: u64) -> Option<u64> {
        link.checked_sub(1).filter(|next| *next < self.buckets.count())
    }

    /// Returns the word of a link to a bucket.
    #[inline]
    #[must_use]
    pub fn link_to(bucket: u64) -> u64 {
        bucket + 1
    }
}

/// Returns the objects of a bucket that was read, as lock word and place.
#[inline]
pub fn objects(bucket: &[u64]) -> impl Iterator<Item = (u64, Place)> {
    let objects = bucket.get(OBJECTS_WORD..).unwrap_or(&[]).chunks_exact(OBJECT_WORDS);
    objects.map(|object| (object[0], Place::from_bits(object[1])))
}

impl Index for Geometry {
    fn buckets(&self) -> Buckets {
        self.buckets
    }

    fn bytes(&self) -> u64 {
        self.buckets.end().saturating_add(self.blocks.saturating_mul(self.block_bytes))
    }

    fn slots_in_all(&self) -> u64 {
        self.blocks
    }

    fn lines_of_records(&self) -> Range<u64> {
        0..0
    }

    fn slot_behind(&self, at: u64) -> Option<u64> {
        let block = at.saturating_sub(self.buckets.end()).div_ceil(self.block_bytes);
        self.block_at(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_overlaps(rows in 1u64..3000, lines in 1u32..5) {
            let geometry = Geometry::for_rows(rows, 64 * lines);
            let mut end = SHARD_HEADER_BYTES;
            for bucket in 0..geometry.buckets.count() {
                prop_assert_eq!(geometry.buckets.at(bucket), end);
                end += BUCKET_BYTES as u64;
                for object in 0..BUCKET_OBJECTS {
                    let at = geometry.object_at(bucket, object);
                    prop_assert!(at >= geometry.buckets.at(bucket) + 32 && at + 16 <= end && geometry.is_object(at));
                    prop_assert!(!geometry.is_object(at + 8));
                }
                prop_assert_eq!(geometry.linked(Geometry::link_to(bucket)), Some(bucket));
                prop_assert!(!geometry.is_object(geometry.buckets.at(bucket)));
            }
            for block in 0..geometry.blocks {
                prop_assert_eq!(geometry.block_at(block), Some(end));
                prop_assert_eq!(geometry.slot_behind(end), Some(end));
                prop_assert!(end.is_multiple_of(64) && !geometry.is_object(end));
                end += geometry.block_bytes;
            }
            prop_assert_eq!((geometry.block_at(geometry.blocks), geometry.bytes()), (None, end));
            prop_assert_eq!(geometry.linked(0), None);
            prop_assert!(geometry.blocks >= rows && geometry.rows() + 6 >= rows);
        }
    }

    #[test]
    fn a_bucket_has_six_objects() {
        let words: Vec<u64> = (0..BUCKET_BYTES as u64 / 8).collect();
        let objects: Vec<(u64, u64)> = objects(&words).map(|(lock, place)| (lock, place.to_bits())).collect();
        assert_eq!(objects, [(4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)]);
    }
}
