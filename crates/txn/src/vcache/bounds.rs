//! The words of a version cache. They give a bound for each record, which is never below a version
//! that was published of it.
//!
//! A bucket is a line of 64 bytes: a *floor*, and 7 entries of a tag and a version. A record's
//! bound is the maximum of the floor and the entries that have the record's tag. A full bucket
//! drops its entry with the smallest version, after it has raised the floor to that version. So
//! records that are written often keep their own bounds, and all others share one bound. Records
//! with one tag share an entry. Both make bounds too high, never too low.
//!
//! Words only grow, except when an entry is dropped, and then the floor has had the entry's version
//! before. A reader of a bucket reads the entries first and the floor last, so it cannot miss both.
//! A bucket may have two entries of one tag, if two threads make them at once. The larger one
//! counts, and if it is dropped, the floor has its version. No thread ever waits.
//!
//! The atomics come through a trait, so that `tests/loom.rs`, which includes this file, can check
//! these claims.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// An atomic word of the cache.
pub(crate) trait CacheWord {
    /// Loads the word, with Acquire.
    fn load(&self) -> u64;
    /// Stores `new`, with Release, if the word is `current`. Returns whether it was.
    fn replace(&self, current: u64, new: u64) -> bool;
    /// Raises the word to at least `to`, with Release.
    fn raise(&self, to: u64);
    /// Makes a sequentially consistent fence.
    fn fence();
}

impl CacheWord for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }

    #[inline]
    fn replace(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    #[inline]
    fn raise(&self, to: u64) {
        self.fetch_max(to, Ordering::AcqRel);
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Entries of a bucket, which with its floor is one line.
const ENTRIES: usize = 7;
/// An entry is `tag : 16 | version : 48`; 0 is none.
const VERSION_BITS: u32 = 48;
pub(crate) const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bucket<W, const N: usize = ENTRIES> {
    /// A bound of every record of this bucket.
    floor: W,
    entries: [W; N],
}

impl<W: Default, const N: usize> Default for Bucket<W, N> {
    fn default() -> Bucket<W, N> {
        Bucket { floor: W::default(), entries: std::array::from_fn(|_| W::default()) }
    }
}

const _: () = assert!(size_of::<Bucket<AtomicU64>>() == 64);

/// The bounds of all records, over any kind of words.
pub(crate) struct Bounds<W, const N: usize = ENTRIES> {
    buckets: Vec<Bucket<W, N>>,
}

impl<W: CacheWord, const N: usize> Bounds<W, N> {
    /// Makes bounds of these buckets, of which there must be at least one.
    pub(crate) fn of(buckets: Vec<Bucket<W, N>>) -> Bounds<W, N> {
        Bounds { buckets }
    }

    /// Returns a hash of a pointer, whose bits are well mixed.
    fn hash(record: u64) -> u64 {
        let mixed = (record ^ record >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns the bucket of a record, by the upper bits of its hash, and its tag, from the lower
    /// ones.
    #[inline]
    fn place(&self, record: u64) -> (&Bucket<W, N>, u64) {
        let hash = Self::hash(record);
        let bucket = (u128::from(hash) * self.buckets.len() as u128) >> u64::BITS;
        (&self.buckets[bucket as usize], hash << VERSION_BITS >> VERSION_BITS)
    }

    /// Returns the bound of a record: nothing above it has been published.
    #[inline]
    pub(crate) fn bound(&self, record: u64) -> u64 {
        let (Bucket { floor, entries }, tag) = self.place(record);
        let entries = entries.iter().map(W::load).filter(|entry| entry >> VERSION_BITS == tag);
        let largest = entries.map(|entry| entry & VERSION_MASK).max().unwrap_or(0);
        largest.max(floor.load())
    }

    /// Raises a record's bound to at least `version`.
    pub(crate) fn raise(&self, record: u64, version: u64) {
        let (Bucket { floor, entries }, tag) = self.place(record);
        if version > VERSION_MASK {
            // The version is too large for an entry. From now on no record of this bucket is found
            // current.
            return floor.raise(u64::MAX);
        }
        loop {
            let mut at = 0;
            let (mut found, mut own) = (u64::MAX, false);
            for (index, entry) in entries.iter().enumerate() {
                let entry = entry.load();
                own = entry != 0 && entry >> VERSION_BITS == tag;
                if own || entry & VERSION_MASK < found & VERSION_MASK {
                    (at, found) = (index, entry);
                }
                if own {
                    break;
                }
            }
            let before = found & VERSION_MASK;
            if before >= version {
                // Either the record's own entry has this version or a higher one, or all entries
                // do.
                if !own && !mutant!(ForgetEvicted) {
                    floor.raise(version);
                }
                return;
            }
            if !own && before > 0 && !mutant!(ForgetEvicted) {
                floor.raise(before);
            }
            if entries[at].replace(found, tag << VERSION_BITS | version) {
                return;
            }
        }
    }

    /// Returns a digest of all words.
    pub(crate) fn digest(&self) -> u64 {
        let words = self.buckets.iter().flat_map(|bucket| std::iter::once(&bucket.floor).chain(&bucket.entries));
        words.fold(0, |digest, word| Self::hash(digest ^ Self::hash(word.load())))
    }

    /// Returns the bytes of all buckets.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}
