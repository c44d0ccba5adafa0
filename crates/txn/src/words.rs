//! Bytes among the words of requests and replies.

use remora_fabric::WORD_BYTES;
use zerocopy::IntoBytes;

/// Appends bytes to a request or a reply, in whole words.
pub(crate) fn push_bytes(words: &mut Vec<u64>, bytes: &[u8]) {
    let start = words.len();
    words.resize(start + bytes.len().div_ceil(WORD_BYTES), 0);
    words[start..].as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
}
