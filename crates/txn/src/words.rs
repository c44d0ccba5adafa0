//! Words in memory, and the names of records.

use remora_fabric::WORD_BYTES;
use remora_node::{Pointer, TableId};
use remora_record::KeyHash;
use zerocopy::IntoBytes;

/// Appends bytes to a request or a reply, in whole words.
pub(crate) fn push_bytes(words: &mut Vec<u64>, bytes: &[u8]) {
    let start = words.len();
    words.resize(start + bytes.len().div_ceil(WORD_BYTES), 0);
    words[start..].as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
}

/// A short name of a record. Two records have one name if their keys have one hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Name(pub(crate) u16, pub(crate) u64);

impl Name {
    pub(crate) fn of(table: TableId, hash: KeyHash) -> Name {
        Name(table.0, hash.word)
    }

    /// Returns the name of a structural record of an index, which has no key.
    pub(crate) fn of_structural(table: TableId, pointer: Pointer) -> Name {
        Name(table.0, !pointer.to_bits())
    }
}

/// A piece of a list of words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) at: u32,
    pub(crate) words: u32,
}

impl Span {
    #[inline]
    pub(crate) fn of(self, words: &[u64]) -> &[u64] {
        &words[self.at as usize..][..self.words as usize]
    }
}
