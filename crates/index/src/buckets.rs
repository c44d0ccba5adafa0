//! The common part of all hash indexes: a shard has a header, and then an array of buckets.

use std::fmt;
use std::ops::Range;

/// Smallest number of bytes of a shard's header, with any index.
pub(crate) const SHARD_HEADER_BYTES: u64 = 128;

/// An array of buckets in a shard. Main buckets come first: keys hash to them. Then come overflow
/// buckets, by which chains grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buckets {
    /// Number of main buckets.
    pub main: u64,
    /// Number of overflow buckets, which all chains share.
    pub overflow: u64,
    /// Bytes of a main bucket.
    pub bytes: u64,
    /// Bytes of an overflow bucket.
    pub overflow_bytes: u64,
    /// Offset of the first bucket.
    pub first: u64,
}

impl Buckets {
    /// Returns the number of all buckets.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.main + self.overflow
    }

    /// Returns the offset of a bucket in its shard. The main buckets have the lowest numbers.
    #[inline]
    #[must_use]
    pub fn at(&self, number: u64) -> u64 {
        let behind = number.saturating_sub(self.main);
        self.first + (number - behind) * self.bytes + behind * self.overflow_bytes
    }

    /// Returns the bytes of the bucket with this number.
    #[inline]
    #[must_use]
    pub fn bytes_of(&self, number: u64) -> u64 {
        if number < self.main { self.bytes } else { self.overflow_bytes }
    }

    /// Returns the number of the bucket in which an offset lies, or that would lie there if there
    /// were more overflow buckets. Returns `None` in front of the first bucket.
    #[inline]
    #[must_use]
    pub fn around(&self, offset: u64) -> Option<u64> {
        let offset = offset.checked_sub(self.first)?;
        Some(match offset.checked_sub(self.main.saturating_mul(self.bytes)) {
            None => offset / self.bytes,
            Some(behind) => self.main + behind / self.overflow_bytes,
        })
    }

    /// Returns the offset at which the last bucket ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at(self.count())
    }

    /// Returns the number of the bucket that begins at an offset, if there is one. The offset may
    /// be any number.
    #[inline]
    #[must_use]
    pub fn number(&self, offset: u64) -> Option<u64> {
        let number = self.around(offset)?;
        (number < self.count() && self.at(number) == offset).then_some(number)
    }

    /// Returns the main bucket of a key, from the hash `scatter`. It uses a multiplication, so that
    /// other bits of the hash are free to choose the shard.
    #[inline]
    #[must_use]
    pub fn home(&self, scatter: u64) -> u64 {
        ((u128::from(scatter << 16) * u128::from(self.main)) >> 64) as u64
    }
}

/// The layout of an index in a shard, as far as the rounds of a transaction, loaders and checks
/// need it.
pub trait Index: fmt::Debug + Send + Sync {
    /// Returns the buckets of a shard.
    fn buckets(&self) -> Buckets;

    /// Returns the bytes of a shard.
    fn bytes(&self) -> u64;

    /// Returns the number of record slots in a shard.
    fn slots_in_all(&self) -> u64;

    /// Returns the number of record slots of an overflow bucket, if it has fewer than a main one.
    /// Otherwise 0.
    fn indirect_slots(&self) -> u8 {
        0
    }

    /// Returns the range of offsets in a shard that consists only of records.
    fn lines_of_records(&self) -> Range<u64>;

    /// Returns the offset of the first record slot at or after an offset, if there is one.
    fn slot_behind(&self, at: u64) -> Option<u64>;
}
