//! FStore (Zhang et al., TOS 2023, section 5.1): a hash table whose buckets hold the records
//! themselves, so that one READ brings a record whose location the client does not know.
//!
//! ```text
//! shard
//! +0    a structural record whose value is the number of overflow buckets in use in part 0 of the
//!       reserved space
//! +64   a line that says how many rows were loaded
//! +128  the structural records of the other parts, 0 to 1023 of them
//! ...   main buckets, then overflow buckets (the reserved space)
//!
//! bucket, whole 64-byte lines
//! +0    header: a structural record whose value is the offset of the next bucket, 0 = none
//! +64   slots of records (`remora_record::record`)
//! ```
//!
//! A table is *dense* if its creator asked for that.
//!
//! ```text
//!                                            usual            dense
//! slots of a main bucket                     2 to 7,          2 to 7,
//!                                            about 512 bytes  about 1,400 bytes
//! slots of an overflow bucket                as many          a third, at least 1
//! slots that are used, of the main buckets   60 %             95 %
//! overflow buckets for each main bucket      1/4              3/4
//! ```
//!
//! A dense table has about 60 % of the bytes, and overflow buckets that no chain has taken are
//! never touched. In return a READ of a bucket is longer. When a dense table is full, two chains of
//! five have an overflow bucket, instead of one of eight.
//!
//! A *structural record* is a record like any other, one line, with a value of 8 bytes and without
//! a key: lock word, version, meta, value. So clients lock, log and install a change of the
//! structure on every replica, make it visible, and recover it, exactly as they do with data. No
//! CPU of a memory node takes part.
//!
//! The reserved space is divided into *parts*, of 8 buckets or more. A transaction that takes a
//! bucket of a part keeps the part's record locked to its end. With a single part, all inserts that
//! make a chain of the shard grow would wait for each other. A chain takes buckets from its own
//! part or, if that is used up, from the next ones.
//!
//! # Rules
//!
//! 1. **A client that inserts into a chain holds the lock of its main bucket's header**, and
//!    changes that header's version. So there are never two inserts of one key at a time. The text
//!    leaves this open, and its authors' code lets the second insert take the next slot (litmus
//!    L10).
//! 2. **A delete is an update** to a tombstone, in place. A slot that was never used, or holds a
//!    visible tombstone, is vacant. A transaction that inserts locks the slot as well, and looks at
//!    it again under that lock.
//! 3. **Versions never restart**, neither of a slot nor of a key. The version of an insert is above
//!    the versions of all slots of its chain, which it reads under the lock of rule 1. The
//!    tombstone of the key's former life is among these slots, or was overwritten by an insert into
//!    the same chain, whose version is higher still.
//! 4. **A chain grows only at its end**, and never shrinks. To grow, it writes a part's record and
//!    the last bucket's header.
//!
//! The client asserts rules 1 and 3 before its commit round (`remora_txn`, `protocol/ford`). The
//! litmus test `ford-insert-insert` and `crates/remora/tests/inserts.rs` check rules 2 and 4.
//!
//! # Absent keys
//!
//! A client finds that a key is absent by one READ of each bucket of its chain. These READs are not
//! atomic together, so the absence is validated. The client reads the buckets again, at the
//! primary, after it holds all its own locks. No version in the chain may have changed, of slots
//! and of headers, and the main header must be unlocked, or locked by this transaction. Then no
//! insert of the key came in between:
//!
//! - If an insert has the header locked when the header is read again, the lock shows it.
//! - If an insert has unlocked the header by then, the header's version shows it, even if the slots
//!   were read before the insert wrote them. (The litmus test `ford-absent-read` found that the
//!   lock alone is not enough.)
//! - If an insert locks the header later, it sees the locks and versions of this transaction.
//! - If an insert came between the first READ of a slot and the first READ of the header, the
//!   slot's version shows it.

use std::ops::Range;

use remora_fabric::LINE_BYTES;
use remora_node::TableSpec;
use remora_record::{FetchedRecord, RecordShape, Unstable};

use crate::buckets::{Buckets, Index, SHARD_HEADER_BYTES};
use crate::cluster_hash::BUCKET_SLOTS;

/// Bytes of a bucket's header, which is one line.
pub const BUCKET_HEADER_BYTES: usize = 64;
/// Bytes of all slots of a bucket together, at most, if at least [`SLOTS_MIN`] slots fit.
const SLOTS_BYTES: u64 = 448;
/// Smallest number of slots of a bucket.
const SLOTS_MIN: u64 = 2;

/// Bytes of all slots of a main bucket of a dense table together, at most, if at least
/// [`SLOTS_MIN`] slots fit.
const DENSE_SLOTS_BYTES: u64 = 1344;
/// Largest number of slots of a main bucket of a dense table: a line of the location cache has
/// locations for this number of keys of a main bucket.
const DENSE_SLOTS_MAX: u64 = BUCKET_SLOTS as u64;
const _: () = assert!(SLOTS_BYTES / LINE_BYTES as u64 <= DENSE_SLOTS_MAX);

/// Number of overflow buckets of a part of the reserved space, at least. There are at most
/// [`PARTS_MAX`] parts.
const PART_BUCKETS: u64 = 8;
const PARTS_MAX: u64 = 1024;
/// Largest number of parts of a dense table. The parts take their buckets side by side, so memory
/// is touched as far as the part goes that has taken most. Few large parts are more alike.
const DENSE_PARTS_MAX: u64 = 256;

/// Share of the main buckets' slots that are used when a table has the number of rows for which it
/// was created.
const OCCUPANCY: f64 = 0.6;
const DENSE_OCCUPANCY: f64 = 0.95;

/// The sizes and places of buckets and slots within a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The main buckets, and the reserved space after them.
    pub buckets: Buckets,
    /// Number of slots of a main bucket.
    pub slots: u64,
    /// Number of slots of an overflow bucket: fewer than in a main bucket if the table is dense,
    /// and otherwise as many.
    pub overflow_slots: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

impl Geometry {
    /// Returns the geometry of a shard for `rows` rows.
    #[must_use]
    pub fn for_rows(rows: u64, slot_bytes: u32) -> Geometry {
        let slot_bytes = u64::from(slot_bytes);
        let slots = (SLOTS_BYTES / slot_bytes).max(SLOTS_MIN);
        let main = main_buckets(rows, slots, OCCUPANCY);
        // At this occupancy at most an eighth of the main buckets overflow (two slots, Poisson with
        // mean 1.2).
        let overflow = main / 4 + 16;
        Geometry::new(main, overflow, slots, slot_bytes)
    }

    /// Returns the geometry of a shard of a dense table for `rows` rows.
    #[must_use]
    pub fn dense_for_rows(rows: u64, slot_bytes: u32) -> Geometry {
        let slot_bytes = u64::from(slot_bytes);
        let slots = (DENSE_SLOTS_BYTES / slot_bytes).clamp(SLOTS_MIN, DENSE_SLOTS_MAX);
        let main = main_buckets(rows, slots, DENSE_OCCUPANCY);
        // At this occupancy chains take at most 0.53 overflow buckets for each main bucket (7 and 2
        // slots, Poisson with mean 6.65: 0.53; 2 and 1 slots: 0.48).
        let overflow = main / 4 * 3 + 16;
        Geometry::uneven(main, overflow, (slots, (slots / 3).max(1)), slot_bytes)
    }

    /// Returns the geometry of a shard with `main` main and `overflow` overflow buckets of `slots`
    /// slots each.
    #[must_use]
    pub fn new(main: u64, overflow: u64, slots: u64, slot_bytes: u64) -> Geometry {
        Geometry::uneven(main, overflow, (slots, slots), slot_bytes)
    }

    /// Returns the geometry of a shard whose overflow buckets have another number of slots than its
    /// main buckets.
    #[must_use]
    fn uneven(main: u64, overflow: u64, (slots, overflow_slots): (u64, u64), slot_bytes: u64) -> Geometry {
        let bytes = |slots: u64| slots.saturating_mul(slot_bytes).saturating_add(BUCKET_HEADER_BYTES as u64);
        let (bytes, overflow_bytes) = (bytes(slots), bytes(overflow_slots));
        let mut buckets = Buckets { main, overflow, bytes, overflow_bytes, first: SHARD_HEADER_BYTES };
        let geometry = Geometry { buckets, slots, overflow_slots, slot_bytes };
        buckets.first += (geometry.parts() - 1) * LINE_BYTES as u64;
        Geometry { buckets, ..geometry }
    }

    /// Returns the number of parts of the reserved space.
    #[must_use]
    pub fn parts(&self) -> u64 {
        let most = if self.is_dense() { DENSE_PARTS_MAX } else { PARTS_MAX };
        (self.buckets.overflow / PART_BUCKETS).clamp(1, most)
    }

    /// Returns the parts from which a chain takes buckets, in this order.
    pub fn parts_of(&self, main_bucket: u64) -> impl Iterator<Item = Part> + use<> {
        let (parts, overflow, main) = (self.parts(), self.buckets.overflow, self.buckets.main);
        (0..parts).map(move |step| {
            let number = (main_bucket + step) % parts;
            Part { number, first: main + number, step: parts, count: overflow.saturating_sub(number).div_ceil(parts) }
        })
    }

    /// Returns the number of the bucket that is taken next after the bucket of a slot, from the
    /// same part of the reserved space. Returns `None` if the slot is not in the reserved space, or
    /// its bucket is the last one of the part.
    #[must_use]
    pub fn taken_after(&self, slot: u64) -> Option<u64> {
        let number = self.buckets.around(slot)?;
        let next = number + self.parts();
        (number >= self.buckets.main && next < self.buckets.count()).then_some(next)
    }

    /// Returns whether the record at an offset is a structural one. The offset may be any number.
    #[must_use]
    pub fn is_structural(&self, offset: u64) -> bool {
        offset < self.buckets.first || self.buckets.number(offset).is_some()
    }

    /// Returns the geometry of a table's shards.
    #[must_use]
    pub fn of(spec: &TableSpec) -> Geometry {
        let slot_bytes = spec.layout.slot_bytes.into();
        if spec.indirect_slots == 0 {
            let buckets = spec.buckets.saturating_add(spec.indirect).max(1);
            return Geometry::new(spec.buckets, spec.indirect, spec.slots / buckets, slot_bytes);
        }
        let overflow_slots = spec.indirect_slots.into();
        let slots = spec.slots.saturating_sub(spec.indirect.saturating_mul(overflow_slots)) / spec.buckets.max(1);
        Geometry::uneven(spec.buckets, spec.indirect, (slots, overflow_slots), slot_bytes)
    }

    /// Returns whether the shard is one of a dense table.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.overflow_slots < self.slots
    }

    /// Returns the number of rows for which a shard of this geometry is made.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let occupancy = if self.is_dense() { DENSE_OCCUPANCY } else { OCCUPANCY };
        (self.buckets.main as f64 * self.slots as f64 * occupancy) as u64
    }

    /// Returns the number of slots of a bucket.
    #[inline]
    #[must_use]
    pub fn slots_of(&self, bucket: u64) -> u64 {
        if bucket < self.buckets.main { self.slots } else { self.overflow_slots }
    }

    /// Returns the offset of a slot of a bucket.
    #[inline]
    #[must_use]
    pub fn slot_at(&self, bucket: u64, slot: u64) -> u64 {
        self.buckets.at(bucket) + BUCKET_HEADER_BYTES as u64 + slot * self.slot_bytes
    }

    /// Returns the records in the slots of a bucket that was read, in the order of the slots.
    #[inline]
    pub fn slots<'w>(&self, words: &'w [u64], shape: &'w RecordShape) -> impl Iterator<Item = FetchedRecord<'w>> {
        let record = shape.record_bytes() / 8;
        let slots =
            words.get(BUCKET_HEADER_BYTES / 8..).unwrap_or(&[]).chunks_exact((self.slot_bytes as usize / 8).max(1));
        // A catalog may have any sizes, so the slot may lie outside of the words.
        slots.map(move |slot| FetchedRecord::new(slot.get(..record).unwrap_or(&[]), shape))
    }

    /// Returns the offset of the bucket that follows one that was read in its chain, or 0 if it is
    /// the last one. `shape` is the shape of structural records. Fails if the bucket's header
    /// cannot be used now.
    pub fn next(&self, words: &[u64], shape: &RecordShape) -> Result<u64, Unstable> {
        let header = words.get(..shape.record_bytes() / 8).unwrap_or(&[]);
        Ok(structural_value(FetchedRecord::new(header, shape))?.1)
    }
}

/// Returns the number of main buckets with `slots` slots for `rows` rows.
fn main_buckets(rows: u64, slots: u64, occupancy: f64) -> u64 {
    ((rows as f64 / (slots as f64 * occupancy)).ceil() as u64).max(1)
}

/// A part of a shard's reserved space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    number: u64,
    first: u64,
    step: u64,
    count: u64,
}

impl Part {
    /// Returns the offset of the part's structural record.
    #[must_use]
    pub fn at(&self) -> u64 {
        if self.number == 0 { 0 } else { (self.number + 1) * LINE_BYTES as u64 }
    }

    /// Returns the number of the part.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of the bucket to take when `used` buckets of the part are in use, or
    /// `None` if all of them are.
    #[must_use]
    pub fn bucket(&self, used: u64) -> Option<u64> {
        (used < self.count).then(|| self.first + used * self.step)
    }

    /// Returns the numbers of the part's buckets.
    pub fn buckets(&self) -> impl Iterator<Item = u64> + use<> {
        let part = *self;
        (0..part.count).map(move |used| part.first + used * part.step)
    }
}

/// Returns the version and the value of a structural record, which may be locked. Fails if the
/// record is torn or invisible.
#[inline]
pub fn structural_value(record: FetchedRecord<'_>) -> Result<(u64, u64), Unstable> {
    let record = record.check_in_place()?;
    let mut value = [0; 1];
    record.first_words(&mut value);
    Ok((record.version().to_bits(), value[0]))
}

impl Index for Geometry {
    fn buckets(&self) -> Buckets {
        self.buckets
    }

    fn bytes(&self) -> u64 {
        self.buckets.end()
    }

    fn slots_in_all(&self) -> u64 {
        self.buckets.main * self.slots + self.buckets.overflow * self.overflow_slots
    }

    fn indirect_slots(&self) -> u8 {
        if self.is_dense() { self.overflow_slots as u8 } else { 0 }
    }

    fn lines_of_records(&self) -> Range<u64> {
        0..self.bytes()
    }

    fn slot_behind(&self, at: u64) -> Option<u64> {
        let bucket = self.buckets.around(at).unwrap_or(0);
        let slot = at.saturating_sub(self.slot_at(bucket, 0)).div_ceil(self.slot_bytes);
        let (bucket, slot) = if slot < self.slots_of(bucket) { (bucket, slot) } else { (bucket + 1, 0) };
        (bucket < self.buckets.count()).then(|| self.slot_at(bucket, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_is_about_half_a_kilobyte() {
        for (slot_bytes, slots, bytes) in [(64, 7, 512), (128, 3, 448), (192, 2, 448), (704, 2, 1472)] {
            let geometry = Geometry::for_rows(1000, slot_bytes);
            assert_eq!((geometry.slots, geometry.buckets.bytes), (slots, bytes), "{slot_bytes}");
        }
    }

    #[test]
    fn a_dense_table_has_three_fifths_of_the_bytes() {
        let (usual, dense) = (Geometry::for_rows(1 << 20, 192), Geometry::dense_for_rows(1 << 20, 192));
        assert_eq!((usual.slots, usual.overflow_slots, usual.buckets.bytes), (2, 2, 448));
        assert_eq!((dense.slots, dense.overflow_slots), (7, 2));
        assert_eq!((dense.buckets.bytes, dense.buckets.overflow_bytes), (1408, 448));
        // For each row: all bytes, and those of the main buckets alone.
        let of_a_row = |geometry: Geometry| (geometry.bytes() >> 20, geometry.buckets.at(geometry.buckets.main) >> 20);
        assert_eq!((of_a_row(usual), of_a_row(dense)), ((466, 373), (262, 211)));
        for (slot_bytes, slots, overflow_slots) in [(64, 7, 2), (128, 7, 2), (256, 5, 1), (1024, 2, 1)] {
            let dense = Geometry::dense_for_rows(1000, slot_bytes);
            assert_eq!((dense.slots, dense.overflow_slots), (slots, overflow_slots), "{slot_bytes}");
        }
    }

    /// What chains of a dense table take of the reserved space, when the table is as full as its
    /// size says.
    #[test]
    fn chains_of_a_dense_table_take_half_a_bucket() {
        for (slot_bytes, expected) in [(192, 0.53), (1024, 0.48)] {
            let geometry = Geometry::dense_for_rows(200_000, slot_bytes);
            let mut random = remora_fabric::Prng::new(1);
            let mut chains = vec![0u64; geometry.buckets.main as usize];
            (0..geometry.rows()).for_each(|_| chains[geometry.buckets.home(random.next_u64()) as usize] += 1);
            let behind = |rows: &u64| rows.saturating_sub(geometry.slots).div_ceil(geometry.overflow_slots);
            let taken = chains.iter().map(behind).sum::<u64>() as f64 / geometry.buckets.main as f64;
            assert!((taken - expected).abs() < 0.01, "{slot_bytes}: {taken}");
        }
    }

    proptest! {
        #[test]
        fn every_reserved_bucket_is_in_one_part(main in 1u64..50, overflow in 0u64..20_000, home in 0u64..50) {
            let geometry = Geometry::new(main, overflow, 2, 64);
            let mut taken: Vec<u64> = Vec::new();
            let mut records = std::collections::BTreeSet::new();
            for part in geometry.parts_of(home) {
                let buckets: Vec<u64> = (0..).map_while(|used| part.bucket(used)).collect();
                prop_assert!(part.buckets().eq(buckets.iter().copied()));
                prop_assert!(records.insert(part.at()) && part.at() != 64 && part.at() < geometry.buckets.first);
                prop_assert!(geometry.is_structural(part.at()));
                taken.extend(buckets);
            }
            taken.sort_unstable();
            prop_assert!(taken.into_iter().eq(main..main + overflow));
        }

        #[test]
        fn every_slot_is_found(rows in 0u64..500, lines in 1u32..12, within in 0u64..64) {
            for geometry in [Geometry::for_rows(rows, lines * 64), Geometry::dense_for_rows(rows, lines * 64)] {
                let (mut at, mut count) = (0, 0);
                for bucket in 0..geometry.buckets.count() {
                    for slot in (0..geometry.slots_of(bucket)).map(|slot| geometry.slot_at(bucket, slot)) {
                        prop_assert_eq!(geometry.slot_behind(at), Some(slot));
                        prop_assert_eq!(geometry.slot_behind(slot), Some(slot));
                        at = slot + 1 + within.min(geometry.slot_bytes - 1);
                        count += 1;
                    }
                    prop_assert_eq!(geometry.buckets.number(geometry.buckets.at(bucket)), Some(bucket));
                    let end = geometry.buckets.at(bucket) + geometry.buckets.bytes_of(bucket);
                    prop_assert_eq!(end, geometry.buckets.at(bucket + 1));
                }
                prop_assert_eq!(geometry.slot_behind(at), None);
                prop_assert!(at <= geometry.bytes());
                prop_assert_eq!(count, geometry.slots_in_all());
                prop_assert!(geometry.rows() >= rows);
            }
        }
    }
}
