//! Keys as numbers of a fixed number of digits: their neighbours, and ranges. And how bytes of
//! different lengths are padded to be such keys.

use std::ops::Bound;

use remora_index::btree::Damaged;
use remora_record::Key;

use crate::dynamic::Lengths;

/// A key of a tree, whose schema has been checked.
pub(super) fn key_of(bytes: &[u8]) -> Key {
    Key::new(bytes).expect("a key of a tree has at most 64 bytes")
}

/// The key of `bytes` bytes before all others.
pub(super) fn least(bytes: usize) -> Key {
    key_of(&vec![0; bytes])
}

/// The key before (or behind) another, if there is one.
pub(super) fn neighbour(key: &[u8], before: bool) -> Option<Key> {
    let mut bytes = key.to_vec();
    for byte in bytes.iter_mut().rev() {
        let (digit, carries) = if before { byte.overflowing_sub(1) } else { byte.overflowing_add(1) };
        *byte = digit;
        if !carries {
            return Some(key_of(&bytes));
        }
    }
    None
}

/// The first and the last key, of `bytes` bytes, of a range; `None` if it has none.
pub(super) fn ends((from, to): (Bound<Key>, Bound<Key>), bytes: usize) -> Option<(Key, Key)> {
    let from = match from {
        Bound::Included(key) => key,
        Bound::Excluded(key) => neighbour(key.bytes(), false)?,
        Bound::Unbounded => least(bytes),
    };
    let to = match to {
        Bound::Included(key) => key,
        Bound::Excluded(key) => neighbour(key.bytes(), true)?,
        Bound::Unbounded => key_of(&vec![u8::MAX; bytes]),
    };
    (from.bytes() <= to.bytes()).then_some((from, to))
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
