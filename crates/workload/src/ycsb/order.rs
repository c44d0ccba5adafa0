//! Where records of an ordered table are.

use std::ops::{Range, RangeInclusive};

use remora_fabric::splitmix;

/// In which order records of an ordered table are: YCSB's `insertorder`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertOrder {
    /// By a hash of their keys, YCSB's default: inserts are all over the table.
    Hashed,
    /// By their keys: inserted records are behind the loaded ones, at the end of their process'
    /// keys.
    Ordered,
}

impl InsertOrder {
    /// As YCSB calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InsertOrder::Hashed => "hashed",
            InsertOrder::Ordered => "ordered",
        }
    }

    /// A record's key in the table. No two records have the same one.
    #[inline]
    pub(super) fn place(self, key: u64) -> u64 {
        match self {
            // A permutation of all words.
            InsertOrder::Hashed => splitmix(key),
            InsertOrder::Ordered => key,
        }
    }

    /// The places of a part of `records` loaded records. Where they are hashed, they are the places
    /// of about as many records. The parts of all records cover all places of loaded ones.
    pub(super) fn places(self, part: Range<u64>, records: u64) -> RangeInclusive<u64> {
        let bound = |number: u64| match self {
            InsertOrder::Hashed => (u128::from(number) << 64) / u128::from(records),
            InsertOrder::Ordered => number.into(),
        };
        bound(part.start) as u64..=(bound(part.end) - 1) as u64
    }
}
