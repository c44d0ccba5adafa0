//! The location cache (DrTM, section 6.3): copies of index buckets, so that a client that looks a
//! key up again needs no READ of the index.
//!
//! Each table has one cache, which all threads of a client share. A line holds the last copy of a
//! bucket that any thread has read, so one READ caches the locations of seven keys. The cache takes
//! about 30 bytes for each key of the table.
//!
//! The cache needs no locks, because it may be wrong. Words are stored one by one, and lines are
//! replaced without a check. A copy becomes stale when its bucket changes. A location that was
//! learned from a call may overwrite another key's pair. Every location from the cache is checked
//! against the record that it names, by key and incarnation. If the check fails, the location is
//! forgotten, and the bucket is read again. The cache is never used to conclude that a key is
//! absent.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::{HUGE_PAGE_BYTES, LINE_BYTES, Region, RegionError, prefetch_lines};
use remora_node::ShardId;
use remora_record::KeyHash;
use zerocopy::FromZeros;

use crate::cluster_hash::{BUCKET_SLOTS, BUCKET_WORDS, Location, Probe, entry_word, is_entry, search};

type Line = [AtomicU64; BUCKET_WORDS];

/// The location cache of a table. The head of this module says what it may get wrong.
#[derive(Clone, Debug)]
pub(crate) struct LocationCache {
    memory: Arc<Memory>,
    /// Whether every bucket has its own line.
    complete: bool,
}

/// The memory of the lines.
#[derive(Debug)]
enum Memory {
    Mapped(Region),
    /// One line, if the system gives no more memory.
    One(Box<Line>),
}

/// Maps memory for some lines. Where pages are small, a search in a large cache often waits for the
/// page table, too.
fn map(count: usize) -> Result<Region, RegionError> {
    let bytes = count * size_of::<Line>();
    if bytes < HUGE_PAGE_BYTES { Region::sparse(bytes) } else { Region::advised(bytes) }
}

impl Memory {
    #[inline]
    fn lines(&self) -> &[Line] {
        match self {
            Memory::Mapped(region) => region.words().as_chunks().0,
            Memory::One(line) => slice::from_ref(line),
        }
    }
}

impl LocationCache {
    /// Makes a cache of at most `bytes` bytes, for a table of `buckets` buckets.
    pub(crate) fn new(buckets: u64, bytes: usize) -> LocationCache {
        let count = (bytes / size_of::<Line>()).min(buckets as usize).max(1);
        // The system gives memory that is zero already. To write zeros would make transactions wait
        // for a table that has grown.
        let memory = map(count).map_or_else(|_| Memory::One(Box::new(Line::new_zeroed())), Memory::Mapped);
        let complete = memory.lines().len() as u64 == buckets;
        LocationCache { complete, memory: Arc::new(memory) }
    }

    /// Returns the bytes that the cache takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.memory.lines())
    }

    /// Counts the locations that the cache has.
    pub(crate) fn count(&self) -> usize {
        let has_entry = |line: &Line, slot: usize| is_entry(line[slot * 2].load(Ordering::Relaxed));
        let count = |line| (0..BUCKET_SLOTS).filter(|slot| has_entry(line, *slot)).count();
        self.memory.lines().iter().map(count).sum()
    }

    /// Returns the line of a bucket. The cache is direct-mapped.
    #[inline]
    fn line(&self, bucket: u64) -> &Line {
        let (index, lines) = (bucket as usize, self.memory.lines());
        &lines[if self.complete && index < lines.len() { index } else { index % lines.len() }]
    }

    /// Prefetches the copy of a bucket into the processor's cache. It reads nothing.
    #[inline]
    pub(crate) fn prefetch(&self, bucket: u64) {
        prefetch_lines(self.line(bucket), size_of::<Line>() / LINE_BYTES);
    }

    /// Searches the copy of a bucket for a key's word.
    #[inline]
    pub(crate) fn search(&self, shard: ShardId, bucket: u64, word: u64) -> Probe {
        let line = self.line(bucket);
        search(shard, |index| line[index].load(Ordering::Relaxed), word, 0)
    }

    /// Keeps a bucket that has been read.
    pub(crate) fn fill(&self, bucket: u64, words: &[u64]) {
        for (kept, word) in self.line(bucket).iter().zip(words) {
            kept.store(*word, Ordering::Relaxed);
        }
    }

    /// Keeps one location. It goes to the key's own pair or, if there is none, to a pair that names
    /// no record. If there is none either, it goes to a pair that follows from the key. In that
    /// case, another key of the bucket has to be looked up again.
    pub(crate) fn learn(&self, bucket: u64, hash: KeyHash, location: Location) {
        let line = self.line(bucket);
        let load = |index: usize| line[index].load(Ordering::Relaxed);
        let own = (0..BUCKET_SLOTS).find(|slot| load(slot * 2 + 1) == hash.word && is_entry(load(slot * 2)));
        let free = || (0..BUCKET_SLOTS).find(|slot| !is_entry(load(slot * 2)));
        let slot = own.or_else(free).unwrap_or((hash.scatter % BUCKET_SLOTS as u64) as usize);
        line[slot * 2].store(entry_word(location), Ordering::Relaxed);
        line[slot * 2 + 1].store(hash.word, Ordering::Relaxed);
    }

    /// Forgets a location that has turned out wrong, if the copy of this bucket still has it.
    pub(crate) fn forget(&self, bucket: u64, location: Location) {
        let line = self.line(bucket);
        for slot in 0..BUCKET_SLOTS {
            let _ = line[slot * 2].compare_exchange(entry_word(location), 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_node::Pointer;

    #[test]
    fn what_was_learned_is_found_until_it_is_forgotten() {
        // A cache with a line for each bucket, and one with a single line.
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
                assert_eq!(cache.count(), 1, "the others were forgotten");
                cache.forget(2, Location { incarnation: 7, ..location });
                assert_eq!(found(hash.word), Some(location), "another life");
                cache.forget(2, location);
                assert_eq!(found(hash.word), None);
            }
        }
    }
}
