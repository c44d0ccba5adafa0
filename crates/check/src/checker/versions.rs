//! The write order of each key, and which unknown transactions it shows to have committed.
//!
//! [`Evidence`] is what the history says, and never changes. [`Inclusion`] is the assumption about
//! unknown transactions, which only grows. [`Chains`] are the write orders that follow from both.

use super::NONE;
use crate::history::{History, ReadState, Status, TransactionRow, WriteKind};
use std::collections::HashSet;
use std::ops::Range;

/// One version of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) version: u64,
    /// The node that installed the version: a transaction, or a stand-in for one of several unknown
    /// ones.
    pub(super) writer: u32,
    pub(super) may_be_present: bool,
    pub(super) may_be_absent: bool,
    /// Whether this is a delete by an unknown transaction that nothing shows to have committed. It
    /// has no edges, but an absent read may show that it committed.
    pub(super) maybe: bool,
}

/// Two transactions, or a transaction and a rollback, that installed the same version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) key: u32,
    pub(super) version: u64,
    pub(super) first: u32,
    /// The second writer, or [`NONE`] for a rollback.
    pub(super) second: u32,
}

/// What a version that was read turned out to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum VersionRead {
    /// The version with this number in [`Chains::entries`].
    Entry(usize),
    /// The version is lower than all written versions, so it is the loader's.
    BeforeAll,
    /// No transaction wrote the version.
    Missing,
}

/// What the history says about versions, whatever the outcome of its unknown transactions.
#[derive(Debug)]
pub(super) struct Evidence {
    /// For each key, where its writes begin in `writes`, and one more place for the end.
    offsets: Vec<usize>,
    /// The writes of committed and unknown transactions, by key, then version, with committed ones
    /// first.
    writes: Vec<Version>,
    /// The aborted writes as (key, version, transaction), sorted.
    aborted: Vec<(u32, u64, u32)>,
    /// The rollbacks as (key, installed version, restored version), sorted.
    rollbacks: Vec<(u32, u64, u64)>,
}

impl Evidence {
    pub(super) fn gather(history: &History) -> Self {
        let mut offsets = vec![0_usize; history.key_count() + 1];
        let mut aborted = Vec::new();
        for (number, row) in history.transactions.iter().enumerate() {
            for write in row.writes.of(&history.writes) {
                if row.status != Status::Aborted {
                    offsets[write.key as usize + 1] += 1;
                } else if write.versioned {
                    aborted.push((write.key, write.version, number as u32));
                }
            }
        }
        for key in 1..offsets.len() {
            offsets[key] += offsets[key - 1];
        }
        let free = Version { version: 0, writer: NONE, may_be_present: false, may_be_absent: false, maybe: false };
        let mut writes = vec![free; offsets.last().copied().unwrap_or(0)];
        let mut next = offsets.clone();
        for (number, row) in history.transactions.iter().enumerate() {
            if row.status == Status::Aborted {
                continue;
            }
            for write in row.writes.of(&history.writes) {
                let at = &mut next[write.key as usize];
                writes[*at] = Version {
                    version: write.version,
                    writer: number as u32,
                    may_be_present: write.kind != WriteKind::Delete,
                    may_be_absent: write.kind == WriteKind::Delete,
                    maybe: row.status == Status::Unknown,
                };
                *at += 1;
            }
        }
        for key in 1..offsets.len() {
            let of_key = &mut writes[offsets[key - 1]..offsets[key]];
            of_key.sort_unstable_by_key(|write| (write.version, write.maybe, write.writer));
        }
        aborted.sort_unstable();
        let rollbacks = history.rollbacks.iter().map(|row| (row.key, row.installed, row.restored));
        let mut rollbacks: Vec<_> = rollbacks.collect();
        rollbacks.sort_unstable();
        rollbacks.dedup();
        Self { offsets, writes, aborted, rollbacks }
    }

    /// Returns the version whose content a version has: itself, unless a rollback installed it.
    pub(super) fn resolve(&self, key: u32, mut version: u64) -> u64 {
        // The loop ends, because a rollback always restores a lower version than it installs. The
        // reader refuses others.
        while let Some(restored) = self.restored(key, version) {
            version = restored;
        }
        version
    }

    fn restored(&self, key: u32, installed: u64) -> Option<u64> {
        if self.rollbacks.is_empty() {
            return None;
        }
        let at = self.rollbacks.partition_point(|rollback| (rollback.0, rollback.1) < (key, installed));
        let rollback = self.rollbacks.get(at)?;
        (rollback.0 == key && rollback.1 == installed).then_some(rollback.2)
    }

    /// Returns an aborted transaction that names this version as one of its writes.
    pub(super) fn aborted_writer(&self, key: u32, version: u64) -> Option<u32> {
        let at = self.aborted.partition_point(|write| (write.0, write.1) < (key, version));
        let write = self.aborted.get(at)?;
        (write.0 == key && write.1 == version).then_some(write.2)
    }

    /// Returns all writes of this version of this key.
    fn writes_of(&self, key: u32, version: u64) -> &[Version] {
        let of_key = &self.writes[self.offsets[key as usize]..self.offsets[key as usize + 1]];
        let first = of_key.partition_point(|write| write.version < version);
        let count = of_key[first..].iter().take_while(|write| write.version == version).count();
        &of_key[first..first + count]
    }

    /// Returns the write orders under the assumption `included`.
    pub(super) fn settle(&self, history: &History, included: &Inclusion) -> Chains {
        let mut chains = Chains {
            offsets: Vec::with_capacity(self.offsets.len()),
            entries: Vec::with_capacity(self.writes.len()),
            node_count: history.transactions.len() as u32,
            conflicts: Vec::new(),
        };
        chains.offsets.push(0);
        for key in 0..history.key_count() as u32 {
            let of_key = &self.writes[self.offsets[key as usize]..self.offsets[key as usize + 1]];
            for same in of_key.chunk_by(|a, b| a.version == b.version) {
                self.settle_version(key, same, included, &mut chains);
            }
            chains.offsets.push(chains.entries.len());
        }
        chains
    }

    fn settle_version(&self, key: u32, same: &[Version], included: &Inclusion, chains: &mut Chains) {
        let version = same[0].version;
        let mut settled: Option<Version> = None;
        for write in same.iter().filter(|write| included.contains(write.writer)) {
            match &mut settled {
                None => settled = Some(Version { maybe: false, ..*write }),
                Some(first) if first.writer == write.writer => {
                    first.may_be_present |= write.may_be_present;
                    first.may_be_absent |= write.may_be_absent;
                }
                Some(first) => {
                    chains.conflicts.push(Conflict { key, version, first: first.writer, second: write.writer });
                }
            }
        }
        if let Some(write) = settled {
            if self.restored(key, version).is_some() {
                chains.conflicts.push(Conflict { key, version, first: write.writer, second: NONE });
            }
            chains.entries.push(write);
        } else if included.is_contested(key, version) {
            chains.entries.push(Version {
                version,
                writer: chains.node_count,
                may_be_present: same.iter().any(|write| write.may_be_present),
                may_be_absent: same.iter().any(|write| write.may_be_absent),
                maybe: false,
            });
            chains.node_count += 1;
        } else {
            chains.entries.extend(same.iter().filter(|write| write.may_be_absent));
        }
    }
}

/// The transactions that are assumed to have committed: those recorded as committed, and unknown
/// ones that were observed.
#[derive(Debug)]
pub(super) struct Inclusion {
    included: Vec<bool>,
    /// Observed versions that several unknown transactions wrote.
    contested: HashSet<(u32, u64)>,
}

impl Inclusion {
    pub(super) fn of_committed(history: &History, evidence: &Evidence) -> Self {
        let rows = history.transactions.iter();
        let included = rows.map(|row| row.status == Status::Committed).collect();
        let mut inclusion = Self { included, contested: HashSet::new() };
        if history.transactions.iter().any(|row| row.status == Status::Unknown) {
            for row in history.transactions.iter().filter(|row| row.status == Status::Committed) {
                for observed in inclusion.observed_by(history, evidence, row) {
                    inclusion.include(history, evidence, observed);
                }
            }
        }
        inclusion
    }

    pub(super) fn contains(&self, node: u32) -> bool {
        self.included.get(node as usize).copied().unwrap_or(false)
    }

    fn is_contested(&self, key: u32, version: u64) -> bool {
        !self.contested.is_empty() && self.contested.contains(&(key, version))
    }

    /// Assumes that an unknown transaction committed, and so did all unknown transactions that it
    /// observed.
    pub(super) fn include(&mut self, history: &History, evidence: &Evidence, transaction: u32) {
        let mut work = vec![transaction];
        while let Some(transaction) = work.pop() {
            if !self.contains(transaction) {
                self.included[transaction as usize] = true;
                work.extend(self.observed_by(history, evidence, &history.transactions[transaction as usize]));
            }
        }
    }

    /// Returns the unknown transactions whose writes a transaction read.
    fn observed_by(&mut self, history: &History, evidence: &Evidence, row: &TransactionRow) -> Vec<u32> {
        let mut observed = Vec::new();
        let scanned = row.scans.of(&history.scans).iter().flat_map(|scan| scan.entries.of(&history.scan_entries));
        for read in row.reads.of(&history.reads).iter().chain(scanned) {
            if read.state == ReadState::AbsentUnknown {
                continue;
            }
            let version = evidence.resolve(read.key, read.version);
            let Some((first, others)) = evidence.writes_of(read.key, version).split_first() else { continue };
            // Committed writers come first. If there is one, the read shows nothing about unknown
            // ones.
            if !first.maybe {
                continue;
            }
            if others.iter().all(|other| other.writer == first.writer) {
                observed.push(first.writer);
            } else {
                self.contested.insert((read.key, version));
            }
        }
        observed
    }
}

/// The versions of each key, in order.
#[derive(Debug)]
pub(super) struct Chains {
    /// For each key, where its versions begin in `entries`, and one more place for the end.
    offsets: Vec<usize>,
    pub(super) entries: Vec<Version>,
    /// The number of nodes: transactions, then stand-ins.
    pub(super) node_count: u32,
    pub(super) conflicts: Vec<Conflict>,
}

impl Chains {
    /// Returns the numbers of a key's versions.
    pub(super) fn range(&self, key: u32) -> Range<usize> {
        self.offsets[key as usize]..self.offsets[key as usize + 1]
    }

    pub(super) fn of(&self, key: u32) -> &[Version] {
        &self.entries[self.range(key)]
    }

    pub(super) fn find(&self, key: u32, version: u64) -> VersionRead {
        let range = self.range(key);
        let of_key = &self.entries[range.clone()];
        let at = of_key.partition_point(|entry| entry.version < version);
        // If a version has a `maybe` entry, it has no other, because an observed version is
        // settled.
        match of_key.get(at) {
            Some(entry) if entry.version == version && !entry.maybe => VersionRead::Entry(range.start + at),
            _ if of_key[..at].iter().all(|entry| entry.maybe) => VersionRead::BeforeAll,
            _ => VersionRead::Missing,
        }
    }

    /// Returns the writer of the first settled version of the key from the given number on.
    pub(super) fn next_writer(&self, key: u32, number: usize) -> Option<u32> {
        let rest = self.entries.get(number..self.range(key).end)?;
        rest.iter().find(|entry| !entry.maybe).map(|entry| entry.writer)
    }
}
