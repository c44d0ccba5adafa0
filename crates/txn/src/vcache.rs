//! The version cache (*Vcache*; FORD, TOS 2023, section 4.7). It has the versions that the
//! transactions of one process, or of all clients, have published. By it a transaction can tell,
//! without a memory node, whether the records that it only read are still current.
//!
//! ```text
//! writer   locks B (remote)                       reader   READs A
//!          publish(B, new version)                         is A current?
//!          is what I only read current?                    -> done, or else looks at A's primary
//!          commit round
//!          release
//! ```
//!
//! The text keeps the version that each hot record *has*. There, a transaction that does not find a
//! record fetches it and puts it into the cache, and a transaction that finds another version than
//! it has read aborts. Here the cache keeps a bound of each record, which is at least the highest
//! version that was **published** of it. A record is current if the version that was read is not
//! below its bound. A reader never puts anything into the cache, and no bound ever falls:
//!
//! - A record that the cache does not know is current: no transaction has published it. So there
//!   are no misses of cold records, and no insert of something old over something new (trap T19 of
//!   FORD's text).
//! - A bound may be too high. A transaction that meets a bound above the version that it read looks
//!   at the primary, as if there were no cache. This costs a round trip, and nothing else.
//!
//! # Why that is enough
//!
//! **Invariant.** Take the time between a transaction's last lock and its look-up of the records
//! that it only read. This is also the time between its last READ and that look-up. If, in this
//! time, any transaction is about to install a version of such a record, then the one cache of the
//! record's table knows that version. No bound is ever below what was published. Three rules keep
//! this invariant:
//!
//! 1. *Publish, then check, then commit.* A transaction publishes the version of every record that
//!    it will write, under the record's lock. It does so before it looks up the records that it
//!    only read, and before its commit round is posted. In the text, a transaction looks first.
//!    Then two transactions that each write what the other has read may both look, and then both
//!    publish (T2).
//! 2. *Every writer of a table publishes in the same cache* while any transaction that reads the
//!    table is under way. "One cache for a table" below says how.
//! 3. *A bound is never below what was published* since the oldest transaction under way began.
//!
//! The code asserts rules 1 and 3 where a transaction publishes. Rule 2 is about several processes:
//! the tests in `crates/remora/tests/local.rs` check it.
//!
//! By these rules, every transaction has a point in time after its last publication and before its
//! first check. Transactions are serializable in the order of these points. Say T reads A, and W
//! writes a later version of A. If T's check passes, W had not published by then (3), so the point
//! of W comes later: T is before W, as it must be. If T saw what W wrote, W had posted its commit
//! before, so the point of W was over. Two writers of a record exclude each other by the record's
//! lock.
//!
//! A transaction may look at a record's primary instead, because the bound is too high or the table
//! has no cache. This is consistent with the order above: the record must be unlocked at the
//! primary, and any later writer of it locks first and has its point after that. So one transaction
//! may use tables with this cache, with another cache, and without one.
//!
//! With a cache, a lock that another transaction holds is no reason to fail. Without one it is
//! (invariant 2 of `protocol/ford/mod.rs`), because the holder may have validated already. With a
//! cache, a holder that has validated has also published. A holder that has not published has not
//! checked either, and comes later.
//!
//! # One cache for a table
//!
//! The table's discipline says which kind of cache it has, and keeps out clients that publish
//! nowhere, or elsewhere.
//!
//! - *Request partition* (`ford-local`): the table belongs to one process, whose threads share a
//!   cache. The membership keeps out clients of another process (`Membership::claim` in
//!   `remora_membership`) until all clients of this process have left or are recovered. A table
//!   that all processes write is a table of `ford`, which is validated at its primary.
//! - *Global* (`ford-global`): the cluster has one cache, which clients ask by calls. The cache
//!   lies in the process of the live memory node with the highest number; a compute node or a
//!   switch would do as well. One call publishes and then checks.
//!
//! # What aborts, crashes, recovery and epochs leave
//!
//! - *An abort* after a publication leaves a bound that no record has. The bound stays until the
//!   next writer of the record publishes the same version and commits. Meanwhile readers look at
//!   the primary. By the text's rule, which aborts at any other version, these readers would never
//!   succeed (T6). The bound cannot be taken back, because another record may share it.
//! - *A client that dies* has published what it may have begun to write. Recovery changes only
//!   records that an undo entry names. So of each of them, at least the version was published that
//!   the dead client meant to install. Records that are rolled forward have that version. Records
//!   that are rolled back get the version above it. A transaction that read the old version finds
//!   the bound higher; one that reads the new version finds it lower. Recovery need not publish,
//!   and nothing is cleared. All of this holds for fail-over, too, because fail-over decides
//!   transactions by the same rules.
//! - *A client that is wrongly taken for dead*, or that has not heard that its epoch is over, may
//!   publish versions that it will never write. These versions do no more than those of an abort.
//!   The records that the client has found current were current: it read all of them before its
//!   access was revoked, when no client had a later cache yet. A lost node revokes no client; there
//!   the client read before its lease expired (rule 1 of `recovery::fail_over`).
//! - *A new epoch* begins when every incarnation of the former one has ended, and all that they had
//!   begun is decided. So no transaction is under way, and any cache is right for the new
//!   incarnations, even an empty one. A process keeps its own cache, whose bounds may be too high
//!   but never too low. If the host of the cluster's cache was lost, another node has the highest
//!   number, and makes a new cache.
//! - *A process that dies* loses its cache. The next process that claims its tables begins with an
//!   empty cache, after all clients of the dead process are recovered. If another process goes on
//!   with the memory of the node that had the cluster's cache, transactions may be under way. So
//!   [`HostedCache`] vouches for nothing until the next epoch, and all records are validated at
//!   their primaries.

mod bounds;

use std::fmt;
use std::sync::atomic::AtomicU64;

use remora_node::Pointer;
use remora_record::Version;

use bounds::{Bounds, Bucket, CacheWord};

/// The version cache of localized validation (FORD, TOS 2023, section 4.7). It has a bound of each
/// record, which is never below a version that was published of the record. All threads of a
/// process share one cache, or all clients of a cluster do.
pub struct VersionCache {
    bounds: Bounds<AtomicU64>,
}

impl VersionCache {
    /// Default size in bytes: enough for 900,000 written records.
    pub const BYTES: usize = 8 << 20;

    /// Makes an empty cache of about `bytes` bytes, and at least one line. It does not know of
    /// anything that was published before.
    #[must_use]
    pub fn new(bytes: usize) -> VersionCache {
        let buckets = (bytes / size_of::<Bucket<AtomicU64>>()).max(1);
        VersionCache { bounds: Bounds::of((0..buckets).map(|_| Bucket::default()).collect()) }
    }

    /// Returns the cache's size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bounds.bytes()
    }

    /// Returns a digest of the cache's content, for a program that explores what clients may come
    /// to see.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.bounds.digest()
    }

    /// Publishes the versions of records that the calling transaction may install. The transaction
    /// must hold their locks, and must not have looked up yet what it only read.
    #[inline]
    pub fn publish(&self, records: impl Iterator<Item = (Pointer, Version)>) {
        for (record, version) in records {
            let (record, version) = (record.to_bits(), version.to_bits());
            let before = if cfg!(debug_assertions) { self.bounds.bound(record) } else { 0 };
            self.bounds.raise(record, version);
            debug_assert!(
                self.bounds.bound(record) >= before.max(version) || mutant!(ForgetEvicted),
                "vcache 3: a bound never falls, and is never below what was published"
            );
        }
        // If two transactions each publish what the other looks up, at least one of them sees the
        // other's publication.
        <AtomicU64 as CacheWord>::fence();
    }

    /// Returns true if no version of the record above `version` was published. If it returns false,
    /// there may or may not be a later version.
    #[inline]
    #[must_use]
    pub fn is_current(&self, record: Pointer, version: Version) -> bool {
        self.bounds.bound(record.to_bits()) <= version.to_bits()
    }
}

/// Largest number of pairs of a record and a version in one question to the host of the cluster's
/// cache.
pub(crate) const PAIRS_MAX: usize = 128;

/// The cluster's version cache, at the memory node that has it. The node makes the cache when a
/// client first asks for it.
///
/// The cache is in the node's process, not in its registered memory. Another process may go on with
/// the memory, for example with a file. Then the cache is lost, and with it what transactions under
/// way have published. So the new process vouches for nothing until all of these have ended. They
/// have ended when a client of a later epoch asks than the epoch in which the cache was lost.
#[derive(Debug)]
pub(crate) struct HostedCache {
    lost_in: Option<u64>,
    vcache: Option<VersionCache>,
}

impl HostedCache {
    /// Makes the cache of a node. `lost_in` is the epoch up to which the node was part of a cluster
    /// before, or `None` for a new node. `vcache` is a cache that is there already.
    pub(crate) fn new(lost_in: Option<u64>, vcache: Option<VersionCache>) -> HostedCache {
        HostedCache { lost_in, vcache }
    }

    /// Publishes the first `publishes` pairs, and then replies which of the other pairs are
    /// current, one bit for each pair. Replies zeros if it vouches for nothing. Returns `None` if
    /// the request makes no sense.
    pub(crate) fn consult(&mut self, publishes: usize, arguments: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let (epoch, words) = arguments.split_first()?;
        let (pairs, rest) = words.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() > PAIRS_MAX {
            return None;
        }
        let (published, seen) = pairs.split_at_checked(publishes)?;
        reply.resize(pairs.len().div_ceil(64), 0);
        if self.lost_in.is_some_and(|lost_in| *epoch <= lost_in) && self.vcache.is_none() {
            return Some(());
        }
        let vcache = self.vcache.get_or_insert_with(|| VersionCache::new(VersionCache::BYTES));
        let pair = |[record, version]: &[u64; 2]| (Pointer::from_bits(*record), Version::from_bits(*version).0);
        vcache.publish(published.iter().map(pair));
        for (number, (record, version)) in (publishes..).zip(seen.iter().map(pair)) {
            reply[number / 64] |= u64::from(vcache.is_current(record, version)) << (number % 64);
        }
        Some(())
    }
}

impl fmt::Debug for VersionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::bounds::VERSION_MASK;
    use super::*;

    fn record(number: u64) -> Pointer {
        Pointer::from_bits(number * 64)
    }

    fn publish(cache: &VersionCache, number: u64, version: u64) {
        cache.publish(std::iter::once((record(number), Version::from_bits(version).0)));
    }

    fn is_current(cache: &VersionCache, number: u64, version: u64) -> bool {
        cache.is_current(record(number), Version::from_bits(version).0)
    }

    #[test]
    fn what_nobody_has_published_is_current() {
        let cache = VersionCache::new(VersionCache::BYTES);
        assert!(is_current(&cache, 1, 2) && is_current(&cache, 1, 0));
        publish(&cache, 1, 4);
        assert!(!is_current(&cache, 1, 2) && is_current(&cache, 1, 4) && is_current(&cache, 1, 5));
        publish(&cache, 1, 3);
        assert!(!is_current(&cache, 1, 3), "bounds do not fall");
        assert!(is_current(&cache, 2, 2), "another record's");
    }

    #[test]
    fn a_host_that_follows_another_vouches_for_nothing_until_the_next_epoch() {
        let mut host = HostedCache::new(Some(3), None);
        let mut ask = |epoch, publishes, versions: &[u64]| {
            let pairs = versions.iter().flat_map(|version| [64, *version]);
            let (request, mut reply): (Vec<u64>, _) = (std::iter::once(epoch).chain(pairs).collect(), Vec::new());
            host.consult(publishes, &request, &mut reply).map(|()| reply)
        };
        assert_eq!(ask(3, 0, &[2]), Some(vec![0]), "somebody may have published");
        assert_eq!(ask(3, 1, &[4, 4]), Some(vec![0]));
        assert_eq!(ask(4, 0, &[2]), Some(vec![1]), "they have all ended");
        assert_eq!(ask(4, 1, &[4, 2, 4]), Some(vec![0b100]), "published, and then looked up");
        assert_eq!(ask(3, 0, &[4]), Some(vec![1]));
        assert_eq!((ask(4, 2, &[4]), ask(4, 0, &[2; PAIRS_MAX + 1])), (None, None));
    }

    #[test]
    fn a_bucket_that_is_full_keeps_what_is_written_often() {
        let cache = VersionCache::new(0);
        assert_eq!(cache.bytes(), 64);
        for version in 1..=100 {
            publish(&cache, 0, 1_000 + version);
            publish(&cache, version, 2 * version);
        }
        assert!(is_current(&cache, 0, 1_100) && !is_current(&cache, 0, 1_099));
        // Six records have entries, and the floor is the largest version of the others.
        for number in 95..=100 {
            assert!(is_current(&cache, number, 2 * number) && !is_current(&cache, number, 2 * number - 2));
        }
        assert!((1..94).all(|number| !is_current(&cache, number, 2 * number)), "they have to be looked at");
        assert!(is_current(&cache, 94, 2 * 94) && is_current(&cache, 1_000, 2 * 94));
    }

    #[test]
    fn a_version_that_no_entry_holds_makes_its_bucket_useless_and_not_wrong() {
        let cache = VersionCache::new(0);
        publish(&cache, 1, VERSION_MASK);
        assert!(is_current(&cache, 1, VERSION_MASK) && is_current(&cache, 2, 2));
        publish(&cache, 1, VERSION_MASK + 1);
        assert!(!is_current(&cache, 1, VERSION_MASK) && !is_current(&cache, 1, VERSION_MASK + 1));
        assert!(!is_current(&cache, 2, 2));
    }

    proptest! {
        /// Rule 3, for any size and order; and where there is room, no bound is too high.
        #[test]
        fn a_bound_is_never_below_what_was_published(
            lines in 0usize..4,
            published in proptest::collection::vec((0u64..24, 1u64..40), 0..200),
        ) {
            let (small, large) = (VersionCache::new(lines * 64), VersionCache::new(1 << 16));
            let mut most = HashMap::<u64, u64>::new();
            for (number, version) in published {
                publish(&small, number, version);
                publish(&large, number, version);
                let known = most.entry(number).or_default();
                *known = version.max(*known);
                for (number, version) in &most {
                    prop_assert!(!is_current(&small, *number, version - 1));
                    prop_assert!(!is_current(&large, *number, version - 1) && is_current(&large, *number, *version));
                }
            }
        }
    }
}
