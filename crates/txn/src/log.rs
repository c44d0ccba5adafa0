//! The format of a transaction's log entry, which lies in a frame of a redo ring. A redo entry has
//! the new values of the records that the transaction writes; an undo entry has the old ones.
//!
//! ```text
//! entry, whole words; the frame around it (`remora_node::ring`) has the transaction id
//! and the checksum
//! +0   epoch         u64   of the configuration that the transaction ran in
//! +8   participants  u64   memory nodes whose rings have this entry, a bit each
//! +16  records       u32
//! +20  lap           u29   of an undo entry: how often its lane had begun again
//!                          at the start of its window
//!      early         1 bit of an undo entry, the third highest: the bound is the time
//!      timed         1 bit of an undo entry, the second highest: there is a bound
//!      lean          1 bit of an undo entry, the highest: the entry is not freed
//!                          when its transaction has ended
//! +24  bound         u64   of a timed undo entry: the commit's time is not below this
//! then for each record
//! +0   pointer       u64   shard : 16 | offset : 48
//! +8   old version   u64
//! +16  words         u32   of the image
//! +20  patches       u32   of the index, for records that are inserted or deleted
//! +24  image               what is written to the slot from its version on:
//!                          new version, key, value
//! then patches of 3 words: offset within the shard, word, key word (`remora_index::Patch`)
//!
//! for each record of an undo entry
//! +0   pointer       u64
//! +8   version       u64   that the commit installs
//! +16  words         u32   of the image
//! +20  checksum      u32   crc32c of the image that the commit installs, visible
//! +24  image               what the slot held from its version on
//! ```
//!
//! Every participant gets the same entry, which has the whole write set and not only the part of
//! that participant. So the client encodes the entry once, and any one copy is enough to finish the
//! transaction.
//!
//! # What an entry means
//!
//! The client writes a redo entry after it has taken every lock and validated every read, and never
//! withdraws the entry. So a transaction of which *any* entry is whole may be rolled forward. A
//! transaction of which *no* live node has an entry was never reported as committed, because a
//! commit needs the entry at every participant. So appliers bring an entry to the backups as soon
//! as they see it. They compare versions, which also puts entries of different rings in order.

use remora_fabric::WORD_BYTES;
use remora_index::Patch;
use remora_index::cluster_hash::linked_bucket;
use remora_node::limits::{FRAME_BYTES_MAX, SLOT_BYTES_MAX};
use remora_node::ring::FRAME_OVERHEAD_WORDS;

/// Words of an entry before its records, without the bound of an undo entry.
pub const HEADER_WORDS: usize = 3;
/// Words of an undo entry's bound, if it is timed.
const BOUND_WORDS: usize = 1;
/// Words of a record before its image.
pub const RECORD_WORDS: usize = 3;
/// Words of a patch of the index.
pub const PATCH_WORDS: usize = 3;

// A transaction that writes one record of the largest size has room for its log entry. The image of
// that record is its whole slot, except the lock.
const _: () = assert!(
    FRAME_OVERHEAD_WORDS + HEADER_WORDS + RECORD_WORDS + SLOT_BYTES_MAX / WORD_BYTES - 1
        <= FRAME_BYTES_MAX / WORD_BYTES
);

/// One record of a redo entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedRecord<'e> {
    /// Where the record is.
    pub pointer: remora_node::Pointer,
    /// The version that the record had when the transaction locked it.
    pub old_version: u64,
    /// What the commit installs, from the record's version on: the first word is the new version.
    pub image: &'e [u64],
    /// The changes of the index that come with the record, [`PATCH_WORDS`] words each.
    pub patches: &'e [u64],
}

/// One record of an undo entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UndoRecord<'e> {
    /// Where the record is.
    pub pointer: remora_node::Pointer,
    /// The version that the commit installs.
    pub version: u64,
    /// Checksum of the image that the commit installs
    /// ([`RecordShape::content_checksum`](remora_record::RecordShape::content_checksum)). Only the
    /// checksum tells whether a replica has the whole image. If a client dies in the middle of a
    /// WRITE, it may leave a line whose version is new and whose last words are old.
    pub checksum: u32,
    /// What the slot held before the transaction, from the record's version on.
    pub before: &'e [u64],
}

/// Decodes a patch of the index. Any words give a patch; the code that applies it checks it.
pub(crate) fn patch(words: &[u64]) -> Option<Patch> {
    let &[at, word, key] = words else { return None };
    Some(if linked_bucket(word).is_some() { Patch::Link { at, word } } else { Patch::Entry { at, entry: word, key } })
}

/// Encodes a redo entry of these records. `entry` must have exactly as many words as they need.
pub(crate) fn encode<'e>(
    entry: &mut [u64],
    epoch: u64,
    participants: u64,
    records: impl Iterator<Item = LoggedRecord<'e>>,
) {
    let parts = records.map(|record| {
        let patches = (record.patches.len() / PATCH_WORDS) as u32;
        ([record.pointer.to_bits(), record.old_version], patches, [record.image, record.patches])
    });
    fill(entry, [epoch, participants], 0, None, parts);
}

/// The facts that an undo entry states about itself, beside its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UndoKind {
    /// How often the entry's lane had begun again at the start of its window.
    pub(crate) lap: u32,
    /// Whether the entry stays when its transaction has ended, instead of being freed.
    pub(crate) lean: bool,
    /// In timed tables: the time of the commit is not below this.
    pub(crate) bound: Option<u64>,
    /// Whether the bound is the time of the commit.
    pub(crate) is_early: bool,
}

const LEAN: u32 = 1 << 31;
const TIMED: u32 = 1 << 30;
const EARLY: u32 = 1 << 29;
const LAP: u32 = EARLY - 1;

/// Returns the number of words of an undo entry before its records, with this bound.
pub(crate) fn undo_header_words(bound: Option<u64>) -> usize {
    HEADER_WORDS + bound.map_or(0, |_| BOUND_WORDS)
}

/// Encodes an undo entry of these records. `head` is the epoch and the participants. `entry` must
/// have exactly as many words as the records need.
pub(crate) fn encode_undo<'e>(
    entry: &mut [u64],
    head: [u64; 2],
    kind: UndoKind,
    records: impl Iterator<Item = UndoRecord<'e>>,
) {
    let parts = records.map(|record| {
        let head = [record.pointer.to_bits(), record.version];
        (head, record.checksum, [record.before, &[]])
    });
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let flags = flag(kind.lean, LEAN) | flag(kind.bound.is_some(), TIMED) | flag(kind.is_early, EARLY);
    fill(entry, head, kind.lap & LAP | flags, kind.bound, parts);
}

/// Fills an entry, with a bound if there is one. Each record comes as its first two words, the
/// upper half of its third word (the lower half is the image's length), its image, and its patches.
/// `beside_count` is the upper half of the word that has the number of records.
#[inline]
fn fill<'e>(
    entry: &mut [u64],
    [epoch, participants]: [u64; 2],
    beside_count: u32,
    bound: Option<u64>,
    records: impl Iterator<Item = ([u64; 2], u32, [&'e [u64]; 2])>,
) {
    let mut at = HEADER_WORDS;
    if let Some(bound) = bound {
        entry[at] = bound;
        at += BOUND_WORDS;
    }
    let mut count = 0;
    for ([pointer, version], beside, parts) in records {
        entry[at..][..RECORD_WORDS].copy_from_slice(&[
            pointer,
            version,
            parts[0].len() as u64 | u64::from(beside) << 32,
        ]);
        at += RECORD_WORDS;
        for part in parts {
            entry[at..][..part.len()].copy_from_slice(part);
            at += part.len();
        }
        count += 1;
    }
    debug_assert_eq!(at, entry.len());
    entry[..HEADER_WORDS].copy_from_slice(&[epoch, participants, count | u64::from(beside_count) << 32]);
}

/// Returns the facts that an undo entry states about itself.
pub(crate) fn undo_kind(entry: &[u64]) -> UndoKind {
    let word = entry.get(2).map_or(0, |word| (word >> 32) as u32);
    let bound = entry.get(HEADER_WORDS).copied().filter(|_| word & TIMED != 0);
    UndoKind { lap: word & LAP, lean: word & LEAN != 0, bound, is_early: word & EARLY != 0 }
}

/// Returns the records of an undo entry. Ends early if the entry is shorter than its own lengths
/// say.
pub fn undo_records(entry: &[u64]) -> impl Iterator<Item = UndoRecord<'_>> {
    let mut left = entry.get(2).map_or(0, |word| *word as u32);
    let mut rest = entry.get(undo_header_words(undo_kind(entry).bound)..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(RECORD_WORDS).filter(|_| left > 0)?;
        let (before, tail) = tail.split_at_checked(head[2] as u32 as usize)?;
        left -= 1;
        rest = tail;
        let pointer = remora_node::Pointer::from_bits(head[0]);
        Some(UndoRecord { pointer, version: head[1], checksum: (head[2] >> 32) as u32, before })
    })
}

/// Returns the records of a redo entry. Ends early if the entry is shorter than its own lengths
/// say. Such an entry was written by a program of another version, because its checksum was right.
pub fn records(entry: &[u64]) -> impl Iterator<Item = LoggedRecord<'_>> {
    let mut left = entry.get(2).map_or(0, |word| *word as u32);
    let mut rest = entry.get(HEADER_WORDS..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(RECORD_WORDS).filter(|_| left > 0)?;
        let (image, tail) = tail.split_at_checked(head[2] as u32 as usize)?;
        let (patches, tail) = tail.split_at_checked((head[2] >> 32) as usize * PATCH_WORDS)?;
        left -= 1;
        rest = tail;
        Some(LoggedRecord { pointer: remora_node::Pointer::from_bits(head[0]), old_version: head[1], image, patches })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remora_node::Pointer;

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
        fn what_is_encoded_to_be_undone_is_decoded(
            images in proptest::collection::vec((any::<u32>(), proptest::collection::vec(any::<u64>(), 1..20)), 0..10),
            bound in proptest::option::of(any::<u64>()),
        ) {
            let record = |(checksum, before): &'static (u32, Vec<u64>)| UndoRecord {
                pointer: Pointer::from_bits(before[0]),
                version: 3,
                checksum: *checksum,
                before,
            };
            let all: Vec<_> = images.leak().iter().map(record).collect();
            let words = all.iter().map(|one| RECORD_WORDS + one.before.len()).sum::<usize>();
            let mut entry = vec![0; undo_header_words(bound) + words];
            let kind = UndoKind { lap: 7, lean: true, bound, is_early: bound.is_some() };
            encode_undo(&mut entry, [1, 0b101], kind, all.iter().copied());
            prop_assert_eq!(undo_kind(&entry), kind);
            prop_assert_eq!(undo_records(&entry).collect::<Vec<_>>(), all);
        }

        #[test]
        fn arbitrary_words_never_panic(entry in proptest::collection::vec(any::<u64>(), 0..40), small in 0u64..9) {
            let small: Vec<u64> = entry.iter().map(|word| word % (small + 1)).collect();
            for entry in [&entry, &small] {
                records(entry).count();
                undo_records(entry).count();
            }
        }
    }
}
