//! YCSB's values, which can check themselves.

use remora_fabric::splitmix;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value of `WORDS` words, which shows whether it is whole:
///
/// ```text
/// +0   key    u64
/// +8   count  u64   changes since it was loaded or inserted
/// +16  stamp  u64   drawn by the client that has written it
/// +24  fill   u64 x (WORDS - 3)   follows from these three
/// ```
///
/// So a value shows if it is a mixture of two values, or belongs to another key. The counts of all
/// values show whether a change was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(transparent)]
pub struct Row<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Row<WORDS> {
    const HEADER: usize = {
        assert!(WORDS > 3, "a value without fill could be a mixture");
        3
    };

    /// Makes a whole value.
    #[inline]
    #[must_use]
    pub fn new(key: u64, count: u64, stamp: u64) -> Row<WORDS> {
        let mut words = [0; WORDS];
        words[..Self::HEADER].copy_from_slice(&[key, count, stamp]);
        words[Self::HEADER..].iter_mut().zip(fill(key, count, stamp)).for_each(|(word, fill)| *word = fill);
        Row(words)
    }

    /// Returns the key that the value belongs to.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.0[0]
    }

    /// Returns how often the value was changed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0[1]
    }

    /// Returns the stamp that its writer has drawn.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.0[2]
    }

    /// Whether the value was written in one piece.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // There is no early exit, so the compiler can make a loop over vectors.
        let differing = |(word, fill): (&u64, u64)| word ^ fill;
        let fill = fill(self.key(), self.count(), self.stamp());
        self.0[Self::HEADER..].iter().zip(fill).map(differing).fold(0, |all, one| all | one) == 0
    }
}

/// Returns the words that fill a value. This must be cheap, because every value that is read is
/// checked.
fn fill(key: u64, count: u64, stamp: u64) -> impl Iterator<Item = u64> {
    let first = splitmix(splitmix(splitmix(key).wrapping_add(count)).wrapping_add(stamp));
    (0..).map(move |index: u64| first.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_value_is_checked() {
        let row = Row::<125>::new(7, 3, 99);
        assert_eq!((row.key(), row.count(), row.stamp()), (7, 3, 99));
        assert!(row.is_whole());
        let other = Row::<125>::new(7, 4, 100);
        for word in 0..125 {
            let mut damaged = row;
            damaged.0[word] ^= 1;
            assert!(!damaged.is_whole(), "word {word}");
            // The value is torn at any place behind the key, which both values share.
            let mut mixed = row;
            mixed.0[..word].copy_from_slice(&other.0[..word]);
            assert!(mixed == row || !mixed.is_whole(), "torn before word {word}");
        }
    }
}
