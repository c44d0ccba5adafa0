//! Patches: the changes of a backup's index that a log entry has, and the code that applies them.
//!
//! Patches of different rings may be applied in any order, and again after a crash, and always give
//! the same bytes. A pair takes a patch only if the patch's incarnation is not earlier than its
//! own, and a link has only one value ([`cluster_hash`](crate::cluster_hash)).

use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::WORD_BYTES;
use remora_record::Version;

use crate::cluster_hash::{
    Geometry, HEADER_FLOOR_WORD, HEADER_INDIRECT_WORD, HEADER_SLOTS_WORD, is_earlier, is_empty, is_entry,
    linked_bucket, offset,
};

/// A change of the index, as the log has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patch {
    /// An insert has linked a pair, or a delete has unlinked it.
    Entry {
        /// Offset of the pair within the shard.
        at: u64,
        /// The first word of the pair.
        entry: u64,
        /// The second word of the pair.
        key: u64,
    },
    /// A chain has this link. Another insert may have made it.
    Link {
        /// Offset of the link within the shard.
        at: u64,
        /// The link word.
        word: u64,
    },
}

/// Applies a patch to a backup of a shard, which begins at byte `base` of the region. Only the
/// backup's applier may call this.
///
/// Returns false, and changes nothing, if the patch cannot be one of this shard.
pub fn apply_patch(region: &[AtomicU64], base: u64, geometry: &Geometry, patch: &Patch) -> bool {
    let at = match *patch {
        Patch::Entry { at, entry, .. } => {
            let sane = (is_entry(entry) || is_empty(entry)) && geometry.is_slot(offset(entry));
            (sane && geometry.is_pair(at)).then_some(at)
        }
        Patch::Link { at, word } => {
            let bucket = linked_bucket(word).and_then(|offset| geometry.bucket_number(offset));
            (bucket >= Some(geometry.buckets) && geometry.is_link(at)).then_some(at)
        }
    };
    let start = at.and_then(|at| base.checked_add(at)).map(|byte| (byte / WORD_BYTES as u64) as usize);
    let Some([first, second]) = start.and_then(|start| region.get(start..)).and_then(<[_]>::first_chunk) else {
        return false;
    };
    // The shard's header counts the slots and buckets in use. If this backup becomes the primary,
    // it allocates by these counts.
    let used = |word: usize, count: u64| {
        region[(base / WORD_BYTES as u64) as usize + word].fetch_max(count, Ordering::Relaxed);
    };
    match *patch {
        Patch::Entry { entry, key, .. } => {
            // An equal patch is applied again, because an applier that was killed may have left the
            // pair without its key word.
            if !is_earlier(entry, first.load(Ordering::Acquire)) {
                second.store(key, Ordering::Release);
                first.store(entry, Ordering::Release);
            }
            used(HEADER_SLOTS_WORD, (offset(entry) - geometry.slot_at(0)) / geometry.slot_bytes + 1);
        }
        Patch::Link { word, .. } => {
            if first.load(Ordering::Acquire) == 0 {
                first.store(word, Ordering::Release);
            }
            let bucket = linked_bucket(word).and_then(|offset| geometry.bucket_number(offset)).unwrap_or(0);
            used(HEADER_INDIRECT_WORD, (bucket + 1).saturating_sub(geometry.buckets));
        }
    }
    true
}

/// Raises the floor of a shard at a backup to the version of a delete. If this backup becomes the
/// primary, no record that is inserted into the shard later has a lower version.
pub fn apply_deletion(region: &[AtomicU64], base: u64, version: Version) {
    if let Some(floor) = region.get((base / WORD_BYTES as u64) as usize + HEADER_FLOOR_WORD) {
        floor.fetch_max(version.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use remora_record::INCARNATION_MASK;

    use super::*;
    use crate::cluster_hash::{link_word, linked_over, unlinked};
    use proptest::prelude::*;

    const GEOMETRY: Geometry = Geometry { buckets: 2, indirect: 2, slots: 8, slot_bytes: 64 };
    const BASE: u64 = 4096;

    fn backup() -> Vec<AtomicU64> {
        (0..(BASE + GEOMETRY.bytes()) / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn words(region: &[AtomicU64]) -> Vec<u64> {
        region.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    proptest! {
        /// Half of the range of incarnations is far enough, even across the end of the range.
        #[test]
        fn of_two_states_of_a_pair_the_later_one_stays(
            start in any::<u16>(), lives in 1u16..4000, repeat in any::<bool>(),
        ) {
            let at = GEOMETRY.pair_at(1, 3);
            let earlier = linked_over(u64::from(start & INCARNATION_MASK) << 48, GEOMETRY.slot_at(2));
            let later = (0..lives).fold(earlier, |entry, _| linked_over(unlinked(entry), GEOMETRY.slot_at(5)));
            let patches = [(earlier, 1), (later, 2)].map(|(entry, key)| Patch::Entry { at, entry, key });
            let apply = |region: &[AtomicU64], patch| assert!(apply_patch(region, BASE, &GEOMETRY, patch));
            let [one, other] = [backup(), backup()];
            // The pair had an incarnation near this one.
            for region in [&one, &other] {
                region[((BASE + at) / 8) as usize].store(earlier, Ordering::Relaxed);
            }
            let [earlier, later] = patches;
            for patch in [&earlier, &later, &later] {
                apply(&one, patch);
            }
            for patch in [&later, &earlier, if repeat { &earlier } else { &later }] {
                apply(&other, patch);
            }
            prop_assert_eq!(words(&one), words(&other));
        }

        #[test]
        fn absurd_patches_are_refused_untouched(
            at in prop_oneof![any::<u64>(), 0u64..2048], word in any::<u64>(), near in 0u64..2048,
            base in prop_oneof![Just(BASE), any::<u64>()],
        ) {
            let region = backup();
            for offset in [near, word & ((1 << 48) - 1)] {
                let word = word & !((1 << 48) - 1) | offset;
                for patch in [Patch::Entry { at, entry: word, key: 1 }, Patch::Link { at, word }] {
                    let sane = match patch {
                        Patch::Entry { .. } => word >> 62 < 2 && GEOMETRY.is_pair(at) && GEOMETRY.is_slot(offset),
                        Patch::Link { .. } => word >> 62 == 2 && GEOMETRY.is_link(at) && [384, 512].contains(&offset),
                    };
                    let applied = apply_patch(&region, base, &GEOMETRY, &patch);
                    prop_assert!(!applied || sane);
                    prop_assert!(applied || words(&region).iter().all(|word| *word == 0));
                    region.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                }
            }
        }
    }

    #[test]
    fn a_link_is_set_once() {
        let region = backup();
        let at = GEOMETRY.link_at(1);
        for bucket in [2, 3] {
            let word = link_word(GEOMETRY.bucket_at(bucket));
            assert!(apply_patch(&region, BASE, &GEOMETRY, &Patch::Link { at, word }));
        }
        assert_eq!(region[((BASE + at) / 8) as usize].load(Ordering::Relaxed), link_word(GEOMETRY.bucket_at(2)));
        let main = Patch::Link { at, word: link_word(GEOMETRY.bucket_at(1)) };
        assert!(!apply_patch(&region, BASE, &GEOMETRY, &main), "a main bucket is in no chain");
    }
}
