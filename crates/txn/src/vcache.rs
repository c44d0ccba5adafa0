//! The version cache (*Vcache*; FORD, TOS 2023, section 4.7): what the transactions of one compute
//! node, or of all, have published. By it each transaction can tell in the compute pool whether
//! what it only read is still current.
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
//! record fetches it and puts it in, and a transaction that finds another version than it read
//! aborts. Here the cache keeps a bound of each record: what has been **published** of it at most.
//! A record is current if the version that was read is not below its bound. A reader never puts
//! anything in, and no bound ever falls:
//!
//! - A record that the cache does not know is current: no transaction has published it. So there
//!   are no misses of cold records, and no insert of something old over something new (trap T19 of
//!   FORD's text).
//! - A bound may be too high. A transaction that meets a bound above the version that it read looks
//!   at the primary, as if there were no cache. So it loses a round trip and nothing else.
//!
//! # Why that is enough
//!
//! **Invariant.** Between a transaction's last lock and its look at what it only read, and so
//! between its last READ and that look, the following holds. If a transaction is about to install a
//! version of a record, the one cache that the record's table has knows that version. And no bound
//! is ever below what was published. It takes three rules.
//!
//! 1. *Publish, then check, then commit.* A transaction publishes the version of every record that
//!    it will write, under the record's lock. It does so before it looks at what it only read, and
//!    before its commit round is posted. The text looks first: then two transactions that each
//!    write what the other read may both look, and then both publish (T2).
//! 2. *Every writer publishes in the same cache* while any transaction is under way that reads the
//!    table. See below.
//! 3. *A bound is never below what was published* since the oldest transaction under way began.
//!
//! Rules 1 and 3 are asserted where a transaction publishes. Rule 2 is about several processes: the
//! tests in `crates/remora/tests/local.rs` check it.
//!
//! Then every transaction has a point between the last thing that it published and the first that
//! it checked. The order of these points explains everything. Say T reads A, and W writes a later
//! version of A. If T's check passes, W had not published by then (3), so its point is still to
//! come: T is before W, as it must be. If T saw what W wrote, W had posted its commit before, so
//! its point was over. Two writers of a record exclude each other by its lock.
//!
//! A transaction may look at a record's primary instead, because the bound is too high or the table
//! has no cache. That fits in: the record must be unlocked there, and any later writer of it locks
//! first and has its point then. So tables with a cache, with another, and without mix in one
//! transaction.
//!
//! So a lock that another transaction holds is no reason to fail here. Invariant 2 of
//! `protocol/ford/mod.rs` says that it is: there the holder may have validated already. Here such a
//! holder would have published. A holder that has not published has not checked either, and comes
//! later.
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
//! - *Global* (`ford-global`): the cluster has one cache, which clients ask by calls. It lies in
//!   the process of the last memory node that is live; a compute node or a switch would do as well.
//!   One call publishes and then checks.
//!
//! # What aborts, crashes, recovery and epochs leave
//!
//! - *An abort* behind its publication leaves a bound that no record has. The bound stays until the
//!   next writer of the record publishes the same version and commits. Meanwhile readers look at
//!   the primary. (The text's rule, abort at any other version, would refuse them for ever: T6.)
//!   The bound cannot be taken back, for it may be another record's as well.
//! - *A client that dies* has published what it may have begun to write. Recovery changes only
//!   records that an undo entry names. So of each of them, at least the version was published that
//!   the dead client meant to install. Records that are rolled forward have that version. Records
//!   that are rolled back get the version above it. A transaction that read the old version finds
//!   the bound higher; one that reads the new version finds it lower. Recovery need not publish,
//!   and nothing is cleared. All of this is true of fail-over, too, which is recovery.
//! - *A client that is wrongly taken for dead*, or that has not heard that its epoch is over, may
//!   publish versions that it will never write. They do what an abort's do. What it has found
//!   current was current. It read all of it before its access was revoked, when no client had a
//!   later cache yet. A node that is lost revokes no client; there it read before its lease expired
//!   (rule 1 of `recovery::fail_over`).
//! - *A new epoch* begins when every incarnation of the former one has ended, and all that they had
//!   begun is decided. So no transaction is under way, and any cache is right for the new
//!   incarnations, an empty one too. A process keeps its own cache, whose bounds are good enough.
//!   If the host of the cluster's cache was lost, another node is the last one, and makes a cache.
//! - *The process that dies* takes its cache along. The next process that has its tables begins
//!   with an empty cache, after all clients of the first are recovered. If another process goes on
//!   with the memory of the cluster's host, transactions are still under way. Then [`HostedCache`]
//!   vouches for nothing, and all records are validated at their primaries, until the next epoch.

mod bounds;

use std::fmt;
use std::sync::atomic::AtomicU64;

use remora_node::Pointer;
use remora_record::Version;

use bounds::{Bounds, Bucket, CacheWord};

/// The version cache of localized validation (FORD, TOS 2023, section 4.7). It has a bound of each
/// record, which is never below what was published. All threads of a process share it, or all
/// clients of a cluster.
pub struct VersionCache {
    bounds: Bounds<AtomicU64>,
}

impl VersionCache {
    /// Default size in bytes: enough for 900,000 records that are written.
    pub const BYTES: usize = 8 << 20;

    /// Makes an empty cache of about `bytes` bytes, at least one line: it knows of nothing that was
    /// published before.
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
    /// holds their locks, and has not looked yet at what it only read.
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
        // Of two transactions that each publish what the other looks at, one sees it.
        <AtomicU64 as CacheWord>::fence();
    }

    /// Whether the cache rules out that a later version of a record than `version`, which was read,
    /// was published. If it returns false, there may be no later version all the same.
    #[inline]
    #[must_use]
    pub fn is_current(&self, record: Pointer, version: Version) -> bool {
        self.bounds.bound(record.to_bits()) <= version.to_bits()
    }
}

/// Pairs of a record and a version in one question to the host of the cluster's cache.
pub(crate) const PAIRS_MAX: usize = 128;

/// The cluster's cache, at the node that has it: made when it is first asked.
///
/// The cache is in the node's process, not in its memory. Another process may go on with the
/// memory, as with a file. Then the cache is gone, and with it what transactions under way have
/// published. So the new cache vouches for nothing until all of them have ended. That is when a
/// client asks whose epoch is later than the epoch in which the cache was lost.
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

    /// Publishes the first pairs, and then replies which of the others are current.
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
        // Six have entries; the floor is the largest of the others.
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
