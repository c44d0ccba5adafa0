//! The location cache (DrTM, section 6.3): copies of index buckets, so that a key looked up again
//! costs no READ.
//!
//! One for each table, shared by all threads of a client: a line holds the last copy of a bucket
//! that anyone has read, so one READ caches the locations of seven keys. About 30 bytes for each
//! key of the table.
//!
//! Lock-free because it may be wrong: words are stored one by one, lines are replaced without
//! asking, a copy goes stale when its bucket changes, and a location learned from an RPC overwrites
//! whatever pair it comes to. Whatever it says is checked against the record that it names, by key
//! and incarnation; a location that fails is forgotten and the bucket is read again. That a key is
//! absent is never concluded from the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_node::ShardId;
use remora_record::KeyHash;
use zerocopy::FromZeros;

use crate::cluster_hash::{BUCKET_SLOTS, BUCKET_WORDS, Location, Probe, entry_word, is_entry, search};

#[derive(Debug, FromZeros)]
#[repr(align(128))]
struct Line([AtomicU64; BUCKET_WORDS]);

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct LocationCache {
    lines: Arc<Box<[Line]>>,
    /// Every bucket has a line of its own.
    complete: bool,
}

impl LocationCache {
    /// A cache of at most `bytes` bytes, for a table of `buckets` buckets.
    pub(crate) fn new(buckets: u64, bytes: usize) -> LocationCache {
        let count = (bytes / size_of::<Line>()).min(buckets as usize).max(1);
        // Memory that is zero already: writing it would keep transactions waiting for a table that
        // has grown.
        let lines = <[Line]>::new_box_zeroed_with_elems(count);
        let lines = lines.unwrap_or_else(|_| Box::new([Line::new_zeroed()]));
        LocationCache { complete: lines.len() as u64 == buckets, lines: Arc::new(lines) }
    }

    /// Direct-mapped.
    #[inline]
    fn line(&self, bucket: u64) -> &Line {
        let index = bucket as usize;
        &self.lines[if self.complete && index < self.lines.len() { index } else { index % self.lines.len() }]
    }

    /// What the copy of a bucket says.
    #[inline]
    pub(crate) fn search(&self, shard: ShardId, bucket: u64, word: u64) -> Probe {
        let line = self.line(bucket);
        search(shard, |index| line.0[index].load(Ordering::Relaxed), word, 0)
    }

    /// Keeps a bucket that has been read.
    pub(crate) fn fill(&self, bucket: u64, words: &[u64]) {
        for (kept, word) in self.line(bucket).0.iter().zip(words) {
            kept.store(*word, Ordering::Relaxed);
        }
    }

    /// Keeps one location: in the key's own pair, else in one that names nothing, else in one that
    /// follows from the key, so that at worst another key of the bucket is looked up again.
    pub(crate) fn learn(&self, bucket: u64, hash: KeyHash, location: Location) {
        let line = self.line(bucket);
        let load = |index: usize| line.0[index].load(Ordering::Relaxed);
        let own = (0..BUCKET_SLOTS).find(|slot| load(slot * 2 + 1) == hash.word && is_entry(load(slot * 2)));
        let free = || (0..BUCKET_SLOTS).find(|slot| !is_entry(load(slot * 2)));
        let slot = own.or_else(free).unwrap_or((hash.scatter % BUCKET_SLOTS as u64) as usize);
        line.0[slot * 2].store(entry_word(location), Ordering::Relaxed);
        line.0[slot * 2 + 1].store(hash.word, Ordering::Relaxed);
    }

    /// Forgets a location that has turned out wrong, if the copy of this bucket still has it.
    pub(crate) fn forget(&self, bucket: u64, location: Location) {
        let line = self.line(bucket);
        for slot in 0..BUCKET_SLOTS {
            let _ = line.0[slot * 2].compare_exchange(entry_word(location), 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_node::Pointer;

    #[test]
    fn what_was_learned_is_found_until_it_is_forgotten() {
        // A line for each bucket, and one for all.
        for bytes in [4096, 1] {
            let cache = LocationCache::new(4, bytes);
            for scatter in 0..BUCKET_SLOTS as u64 + 3 {
                let hash = KeyHash { word: 100 + scatter, scatter };
                let location = Location { pointer: Pointer::new(ShardId(3), 64 * scatter), incarnation: 5 };
                cache.learn(2, hash, location);
                let found = |word| match cache.search(ShardId(3), 2, word) {
                    Probe::Entry { location, .. } => Some(location),
                    _ => None,
                };
                assert_eq!((found(hash.word), found(7)), (Some(location), None));
                cache.forget(2, Location { incarnation: 7, ..location });
                assert_eq!(found(hash.word), Some(location), "another life");
                cache.forget(2, location);
                assert_eq!(found(hash.word), None);
            }
        }
    }
}
