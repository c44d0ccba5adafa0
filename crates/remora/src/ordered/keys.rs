//! Keys of trees: their neighbours, and ranges. And how bytes of different lengths are padded to be
//! keys of one length.

use std::cmp::Ordering;
use std::ops::Bound;

use remora_index::btree::{Damaged, Shape};
use remora_node::limits::KEY_BYTES_MAX;
use remora_record::Key;

use crate::dynamic::Lengths;

/// A key of a tree, or an end of a range. One that no record could have as its key is boxed.
#[derive(Clone, Debug)]
pub(super) enum TreeKey {
    Short(Key),
    Long(Box<[u8]>),
}

impl TreeKey {
    pub(super) fn of(bytes: &[u8]) -> TreeKey {
        Key::new(bytes).map_or_else(|| TreeKey::Long(bytes.into()), TreeKey::Short)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            TreeKey::Short(key) => key.bytes(),
            TreeKey::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for TreeKey {
    fn eq(&self, other: &TreeKey) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for TreeKey {}

impl PartialOrd for TreeKey {
    fn partial_cmp(&self, other: &TreeKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TreeKey {
    fn cmp(&self, other: &TreeKey) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

/// The key right before (or behind) another, if there is one.
pub(super) fn neighbour(key: &[u8], before: bool, shape: &Shape) -> Option<TreeKey> {
    let mut bytes = key.to_vec();
    if shape.is_slotted() {
        return if before { before_it(bytes, shape.key_bytes()) } else { behind_it(bytes, shape.key_bytes()) };
    }
    for byte in bytes.iter_mut().rev() {
        let (digit, carries) = if before { byte.overflowing_sub(1) } else { byte.overflowing_add(1) };
        *byte = digit;
        if !carries {
            return Some(TreeKey::of(&bytes));
        }
    }
    None
}

/// The last string of up to `max` bytes that is less than another.
fn before_it(mut key: Vec<u8>, max: usize) -> Option<TreeKey> {
    let last = key.pop()?;
    if let Some(less) = last.checked_sub(1) {
        key.push(less);
        key.resize(max, u8::MAX);
    }
    Some(TreeKey::of(&key))
}

/// The first string of up to `max` bytes that is greater than another.
fn behind_it(mut key: Vec<u8>, max: usize) -> Option<TreeKey> {
    if key.len() < max {
        key.push(0);
        return Some(TreeKey::of(&key));
    }
    while let Some(last) = key.pop() {
        if let Some(greater) = last.checked_add(1) {
            key.push(greater);
            return Some(TreeKey::of(&key));
        }
    }
    None
}

/// The first and the last key of a range; `None` if it has none.
pub(super) fn ends((from, to): (Bound<TreeKey>, Bound<TreeKey>), shape: &Shape) -> Option<(TreeKey, TreeKey)> {
    let from = match from {
        Bound::Included(key) => key,
        Bound::Excluded(key) => neighbour(key.bytes(), false, shape)?,
        Bound::Unbounded => TreeKey::of(&shape.least()),
    };
    let to = match to {
        Bound::Included(key) => key,
        Bound::Excluded(key) => neighbour(key.bytes(), true, shape)?,
        Bound::Unbounded => TreeKey::of(&vec![u8::MAX; shape.key_bytes()]),
    };
    (from <= to).then_some((from, to))
}

/// Bytes that a tree needs for keys, or values in leaves, of these lengths.
pub(super) fn padded_bytes(lengths: Lengths) -> usize {
    match lengths {
        Lengths::Exactly(bytes) => bytes,
        Lengths::UpTo(max) => max.saturating_add(1),
    }
}

/// Writes bytes to `room`, which is all zeros, as a tree has them. If all bytes have one length,
/// they stay as they are. Otherwise they are padded with zeros to the greatest length, and their
/// length is behind them. Padded bytes compare as the bytes do.
pub(super) fn pad<'r>(bytes: &[u8], lengths: Lengths, room: &'r mut [u8]) -> &'r [u8] {
    let padded = &mut room[..padded_bytes(lengths)];
    padded[..bytes.len()].copy_from_slice(bytes);
    if let Lengths::UpTo(max) = lengths {
        padded[max] = bytes.len() as u8;
    }
    padded
}

/// A key, no longer than keys of these lengths are, as nodes of a shape have it.
pub(super) fn stored(bytes: &[u8], lengths: Lengths, shape: &Shape) -> TreeKey {
    if shape.is_slotted() {
        return TreeKey::of(bytes);
    }
    TreeKey::of(pad(bytes, lengths, &mut [0; KEY_BYTES_MAX]))
}

/// What was padded.
pub(super) fn unpadded(padded: &[u8], lengths: Lengths) -> Result<&[u8], Damaged> {
    match (lengths, padded.split_last()) {
        (Lengths::Exactly(_), _) => Ok(padded),
        (Lengths::UpTo(_), Some((length, bytes))) if usize::from(*length) <= bytes.len() => {
            Ok(&bytes[..usize::from(*length)])
        }
        (Lengths::UpTo(_), _) => Err(Damaged("a length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_no_key_between_them() {
        // All strings of up to three of a few bytes, in order; `max` bytes are the longest ones.
        let digits = [0, 1, 254, 255];
        let mut all: Vec<Vec<u8>> = vec![Vec::new()];
        for length in 1..=3 {
            let longer = |key: &Vec<u8>| digits.map(|digit| [&key[..], &[digit]].concat());
            let more: Vec<_> = all.iter().filter(|key| key.len() + 1 == length).flat_map(longer).collect();
            all.extend(more);
        }
        all.sort();
        let shape = Shape::up_to(3, 8).unwrap();
        for key in &all {
            let before = neighbour(key, true, &shape);
            assert_eq!(before.is_none(), key.is_empty());
            if let Some(before) = before {
                assert!(before.bytes() < &key[..]);
                assert!(!all.iter().any(|other| before.bytes() < &other[..] && other < key), "{key:?}");
                assert_eq!(neighbour(before.bytes(), false, &shape).unwrap().bytes(), key);
            }
        }
        assert_eq!(neighbour(&[255; 3], false, &shape), None);
        let fixed = Shape::new(2, 8).unwrap();
        assert_eq!(neighbour(&[1, 0], true, &fixed).unwrap().bytes(), [0, 255]);
        assert_eq!(neighbour(&[1, 255], false, &fixed).unwrap().bytes(), [2, 0]);
        assert_eq!((neighbour(&[0, 0], true, &fixed), neighbour(&[255, 255], false, &fixed)), (None, None));
    }
}
