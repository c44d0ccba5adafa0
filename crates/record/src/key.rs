//! Keys: fixed-width byte strings in an order-preserving encoding (an integer is big-endian).

use remora_fabric::{WORD_BYTES, splitmix};
use remora_node::limits::KEY_BYTES_MAX;
use zerocopy::IntoBytes;

const KEY_WORDS_MAX: usize = KEY_BYTES_MAX / WORD_BYTES;

/// A key as records hold it: its bytes in whole words, zero-padded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    words: [u64; KEY_WORDS_MAX],
    bytes: u16,
}

/// What an index knows of a key: the key itself if it has at most 8 bytes, otherwise a hash of it;
/// and a scattered form of that word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyHash {
    /// What a hash slot holds and is compared with. Two keys of more than 8 bytes can share it.
    pub word: u64,
    /// The word, scattered over all 64 bits.
    pub scatter: u64,
}

impl Key {
    /// Makes a key of these bytes. `None` if there are more than [`KEY_BYTES_MAX`].
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

    /// Returns the words of the key, the last one zero-padded.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.bytes).div_ceil(WORD_BYTES)]
    }

    /// Returns what an index knows of the key.
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
