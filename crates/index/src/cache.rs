//! The location cache (DrTM, section 6.3): copies of index buckets, so that a key looked up again costs no READ.
//!
//! One for each table, shared by all threads of a client: a line holds the last copy of a bucket that anyone has read,
//! so one READ caches the locations of eight keys. About 22 bytes for each key of the table.
//!
//! Lock-free because it may be wrong: words are stored one by one, lines are replaced without asking, a copy goes stale
//! when its bucket changes. Whatever it says is checked against the record that it names, by key and incarnation; a
//! location that fails is forgotten and the bucket is read again. That a key is absent is never concluded from the cache.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_memory::ShardId;

use crate::cluster_hash::{BUCKET_SLOTS, BUCKET_WORDS, Location, Probe, entry_word, search};

#[derive(Debug)]
#[repr(align(128))]
struct Line([AtomicU64; BUCKET_WORDS]);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct LocationCache {
    lines: Box<[Line]>,
    /// Every bucket has a line of its own.
    complete: bool,
}

impl LocationCache {
    /// For a table of so many buckets, of at most `bytes`.
    pub(crate) fn new(buckets: u64, bytes: usize) -> LocationCache {
        let count = (bytes / size_of::<Line>()).min(buckets as usize).max(1);
        let lines = (0..count).map(|_| Line([const { AtomicU64::new(0) }; BUCKET_WORDS])).collect();
        LocationCache { lines, complete: count as u64 == buckets }
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

    /// Forgets a location that has turned out wrong, if the copy of this bucket still has it.
    pub(crate) fn forget(&self, bucket: u64, location: Location) {
        let line = self.line(bucket);
        for slot in 0..BUCKET_SLOTS {
            let _ = line.0[slot * 2].compare_exchange(entry_word(location), 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
