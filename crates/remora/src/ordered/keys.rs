//! Keys as numbers of a fixed number of digits: their encodings, their neighbours, and ranges.

use std::ops::{Bound, RangeBounds};

use crate::key::Key;
use crate::table::Table;

pub(super) fn encoded<K: Key>(key: &K) -> remora_record::Key {
    Table::<K, ()>::key(key)
}

/// The key before (or behind) another, if there is one. Keys are numbers of a fixed number of
/// digits.
pub(super) fn neighbour<K: Key>(key: &K, before: bool) -> Option<K> {
    let mut bytes = encoded(key).bytes().to_vec();
    for byte in bytes.iter_mut().rev() {
        let (digit, carries) = if before { byte.overflowing_sub(1) } else { byte.overflowing_add(1) };
        *byte = digit;
        if !carries {
            return Some(K::decode(&bytes));
        }
    }
    None
}

/// The first and the last key of a range; `None` if it has none.
pub(super) fn ends<K: Key>(range: &impl RangeBounds<K>) -> Option<(K, K)> {
    let from = match range.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => neighbour(key, false)?,
        Bound::Unbounded => K::decode(&vec![0; K::BYTES]),
    };
    let to = match range.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => neighbour(key, true)?,
        Bound::Unbounded => K::decode(&vec![u8::MAX; K::BYTES]),
    };
    (from <= to).then_some((from, to))
}
