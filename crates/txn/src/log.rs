//! The log entry of a transaction: what a redo ring's frame holds.
//!
//! ```text
//! entry, whole words; the frame around it (`remora_memory::ring`) has the transaction id and the checksum
//! +0   epoch         u64   of the configuration that the transaction ran in
//! +8   participants  u64   memory nodes whose rings have this entry, a bit each
//! +16  records       u64
//! then for each record
//! +0   pointer       u64   shard : 16 | offset : 48
//! +8   old version   u64
//! +16  words         u32   of the image
//! +20  patches       u32   of the index, for records that are inserted or deleted
//! +24  image               what is written to the slot from its version on: new version, key, value
//! then patches of 3 words: offset within the shard, word, key word (`remora_index::Patch`)
//! ```
//!
//! Every participant gets the same entry, with the whole write set and not only its own part: it is staged once, and any
//! one copy is enough to finish the transaction.
//!
//! # What an entry means
//!
//! It is written after every lock has been taken and every read validated, and never withdrawn. So a transaction of
//! which *any* entry is whole may be rolled forward, and one of which *no* live node has an entry was never reported as
//! committed, because that needs the entry at every participant. Backups therefore apply an entry as soon as they see
//! it. They compare versions, which also puts entries of different rings in order.

use remora_fabric::WORD_BYTES;
use remora_index::Patch;
use remora_index::cluster_hash::linked_bucket;
use remora_memory::limits::{FRAME_BYTES_MAX, SLOT_BYTES_MAX};
use remora_memory::ring::FRAME_OVERHEAD_WORDS;

/// Words of an entry before its records.
pub const HEADER_WORDS: usize = 3;
/// Words of a record before its image.
pub const RECORD_WORDS: usize = 3;
/// Words of a patch of the index.
pub const PATCH_WORDS: usize = 3;

// The largest record has a log entry, alone in its transaction: its image is all of its slot but the lock.
const _: () = assert!(
    FRAME_OVERHEAD_WORDS + HEADER_WORDS + RECORD_WORDS + SLOT_BYTES_MAX / WORD_BYTES - 1
        <= FRAME_BYTES_MAX / WORD_BYTES
);

/// One record of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedRecord<'e> {
    /// Where it is.
    pub pointer: remora_memory::Pointer,
    /// The version it had under the lock.
    pub old_version: u64,
    /// What is installed; its first word is the new version.
    pub image: &'e [u64],
    /// What changes in the index with it, [`PATCH_WORDS`] each.
    pub patches: &'e [u64],
}

/// A patch from its words, which may be anything.
pub(crate) fn patch(words: &[u64]) -> Option<Patch> {
    let &[at, word, key] = words else { return None };
    Some(if linked_bucket(word).is_some() { Patch::Link { at, word } } else { Patch::Entry { at, entry: word, key } })
}

/// Fills an entry. `records` are pointer, old version and image of each; the entry has exactly the words they need.
pub(crate) fn encode<'e>(
    entry: &mut [u64],
    epoch: u64,
    participants: u64,
    records: impl Iterator<Item = LoggedRecord<'e>>,
) {
    let mut at = HEADER_WORDS;
    let mut count = 0;
    for record in records {
        entry[at] = record.pointer.to_bits();
        entry[at + 1] = record.old_version;
        entry[at + 2] = record.image.len() as u64 | ((record.patches.len() / PATCH_WORDS) as u64) << 32;
        at += RECORD_WORDS;
        for part in [record.image, record.patches] {
            entry[at..][..part.len()].copy_from_slice(part);
            at += part.len();
        }
        count += 1;
    }
    debug_assert_eq!(at, entry.len());
    entry[..HEADER_WORDS].copy_from_slice(&[epoch, participants, count]);
}

/// The records of an entry. Ends early where the entry does not hold what it says: its checksum was right, so a program
/// of another version wrote it.
pub fn records(entry: &[u64]) -> impl Iterator<Item = LoggedRecord<'_>> {
    let mut left = entry.get(2).copied().unwrap_or(0);
    let mut rest = entry.get(HEADER_WORDS..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(RECORD_WORDS).filter(|_| left > 0)?;
        let (image, tail) = tail.split_at_checked(head[2] as u32 as usize)?;
        let (patches, tail) = tail.split_at_checked((head[2] >> 32) as usize * PATCH_WORDS)?;
        left -= 1;
        rest = tail;
        Some(LoggedRecord { pointer: remora_memory::Pointer::from_bits(head[0]), old_version: head[1], image, patches })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remora_memory::Pointer;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            images in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 1..20), 0..10),
        ) {
            let images: Vec<&'static [u64]> = images.into_iter().map(|image| &*image.leak()).collect();
            let record = |image: &'static [u64]| LoggedRecord {
                pointer: Pointer::from_bits(image[0]),
                old_version: 3,
                image,
                patches: &image[..image.len() / 2 / PATCH_WORDS * PATCH_WORDS],
            };
            let all: Vec<_> = images.iter().map(|image| record(image)).collect();
            let words = |one: &LoggedRecord<'_>| RECORD_WORDS + one.image.len() + one.patches.len();
            let mut entry = vec![0; HEADER_WORDS + all.iter().map(words).sum::<usize>()];
            encode(&mut entry, 1, 0b101, all.iter().copied());
            prop_assert_eq!(records(&entry).collect::<Vec<_>>(), all);
        }

        #[test]
        fn arbitrary_words_never_panic(entry in proptest::collection::vec(any::<u64>(), 0..40), small in 0u64..9) {
            records(&entry).count();
            let small: Vec<u64> = entry.iter().map(|word| word % (small + 1)).collect();
            records(&small).count();
        }
    }
}
