//! The order of records in an ordered table.

use std::ops::{Range, RangeInclusive};

use remora_fabric::splitmix;

/// The order of records in an ordered table: YCSB's `insertorder`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertOrder {
    /// By a hash of their keys, which is YCSB's default. Inserts are spread over the table.
    Hashed,
    /// By their keys. Inserted records are behind the loaded ones, at the end of their process's
    /// keys.
    Ordered,
}

impl InsertOrder {
    /// Returns YCSB's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InsertOrder::Hashed => "hashed",
            InsertOrder::Ordered => "ordered",
        }
    }

    /// Returns the key of a record in the table. No two records have the same one.
    #[inline]
    pub(super) fn place(self, key: u64) -> u64 {
        match self {
            // This is a permutation of all words.
            InsertOrder::Hashed => splitmix(key),
            InsertOrder::Ordered => key,
        }
    }

    /// Returns the places of a part of `records` loaded records. If records are hashed, it returns
    /// a range with about as many records. The parts of all records together cover all places of
    /// loaded records.
    pub(super) fn places(self, part: Range<u64>, records: u64) -> RangeInclusive<u64> {
        let bound = |number: u64| match self {
            InsertOrder::Hashed => (u128::from(number) << 64) / u128::from(records),
            InsertOrder::Ordered => number.into(),
        };
        bound(part.start) as u64..=(bound(part.end) - 1) as u64
    }
}
