//! The key of a record, and the hash of a key that an index works with.
//!
//! A key is a byte string. All keys of a table have the same length. An integer is encoded
//! big-endian, so the order of the bytes is the order of the integers.

use remora_fabric::{WORD_BYTES, splitmix};
use remora_node::limits::KEY_BYTES_MAX;
use zerocopy::IntoBytes;

const KEY_WORDS_MAX: usize = KEY_BYTES_MAX / WORD_BYTES;

/// The key of a record as it lies in memory: its bytes in whole words, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    words: [u64; KEY_WORDS_MAX],
    bytes: u16,
}

/// The hash of a key: one word that indexes store and compare, and a scattered form of that word.
///
/// The word is the key itself if the key has at most 8 bytes. Otherwise it is a hash of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyHash {
    /// The word that a hash slot holds. Two different keys of more than 8 bytes can have the same
    /// word.
    pub word: u64,
    /// The word, hashed over all 64 bits. Indexes take places from it.
    pub scatter: u64,
}

impl Key {
    /// Makes a key of these bytes. Returns `None` if there are more than [`KEY_BYTES_MAX`] bytes.
    #[inline]
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Key> {
        let mut words = [0; KEY_WORDS_MAX];
        words.as_mut_bytes().get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Key { words, bytes: bytes.len() as u16 })
    }

    /// Returns the bytes of the key.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..usize::from(self.bytes)]
    }

    /// Returns the words of the key. The last word is padded with zeros.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.bytes).div_ceil(WORD_BYTES)]
    }

    /// Returns the hash of the key that indexes work with.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.words())
    }
}

impl KeyHash {
    /// Hashes the words of a key.
    #[inline]
    #[must_use]
    pub fn of(words: &[u64]) -> KeyHash {
        let word = match words {
            [word] => *word,
            _ => words.iter().fold(words.len() as u64, |hash, word| splitmix(hash ^ word)),
        };
        KeyHash { word, scatter: splitmix(word) }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
