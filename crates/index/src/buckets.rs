//! What all hash indexes of a shard have in common: an array of buckets behind a header.

use std::fmt;
use std::ops::Range;

/// Bytes of a shard's header, at least, whatever its index.
pub(crate) const SHARD_HEADER_BYTES: u64 = 128;

/// An array of buckets: main buckets, which keys hash to, then overflow buckets, which chains grow
/// by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buckets {
    /// Main buckets.
    pub main: u64,
    /// Buckets behind them, shared by all chains.
    pub overflow: u64,
    /// Bytes of a bucket.
    pub bytes: u64,
    /// Offset of the first.
    pub first: u64,
}

impl Buckets {
    /// How many there are.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.main + self.overflow
    }

    /// Offset of a bucket in its shard; the main ones come first.
    #[inline]
    #[must_use]
    pub fn at(&self, number: u64) -> u64 {
        self.first + number * self.bytes
    }

    /// Offset behind the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at(self.count())
    }

    /// Number of the bucket at an offset, which may be anything, if there is one.
    #[inline]
    #[must_use]
    pub fn number(&self, offset: u64) -> Option<u64> {
        let number = offset.checked_sub(self.first)? / self.bytes;
        (number < self.count() && self.at(number) == offset).then_some(number)
    }

    /// The main bucket of a key: by multiplication, so that other bits of the hash are free to
    /// choose the shard.
    #[inline]
    #[must_use]
    pub fn home(&self, scatter: u64) -> u64 {
        ((u128::from(scatter << 16) * u128::from(self.main)) >> 64) as u64
    }
}

/// How an index lies in a shard: what the rounds of a transaction, loaders and checks need to know
/// of it.
pub trait Index: fmt::Debug + Send + Sync {
    /// The buckets of a shard.
    fn buckets(&self) -> Buckets;

    /// Bytes of a shard.
    fn bytes(&self) -> u64;

    /// Slots of records in a shard.
    fn slots_in_all(&self) -> u64;

    /// What of a shard consists of records alone.
    fn lines_of_records(&self) -> Range<u64>;

    /// Offset of the first slot of a record at or behind an offset.
    fn slot_behind(&self, at: u64) -> Option<u64>;
}
