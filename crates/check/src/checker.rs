//! The checker: decides whether a history is strictly serializable, by versions, reads-from and
//! real time.
//!
//! # Method
//!
//! Versions of one key grow through all its lives. So the recorded versions give the write order of
//! each key, and each read names the write that it saw. A transaction must come before another for
//! one of four reasons:
//!
//! - it wrote the version before (ww);
//! - it wrote the version that the other read (wr);
//! - it read the version before the one that the other wrote (rw);
//! - it ended before the other started (real time).
//!
//! A history is strictly serializable exactly if these edges have no cycle and each read saw a
//! version that was there. All steps are linear in the history, except for sorting and binary
//! searches. Real time costs one auxiliary node for each run of ends, and not an edge for each
//! pair.
//!
//! # Open questions are decided in favour of the history
//!
//! - **Unknown transactions.** An unknown transaction committed if its write was observed by a
//!   committed transaction, or by an unknown one that was observed itself. It has no end, hence no
//!   real-time edge out of it. An unknown transaction whose writes were not observed is left out.
//!   That never accuses a correct history: if a transaction from which no other reads is removed
//!   from a serial order, a serial order is left. And it overlooks nothing, because "it did not
//!   commit" is a legal outcome. In particular, the versions of later writers are not evidence that
//!   it committed, because they need only be larger. Several unknown transactions may have written
//!   the version that was observed. Then one of them committed, but it is open which one. A
//!   stand-in, which is a writer without other operations and without times, takes their place.
//! - **Aborted transactions.** Their reads are not checked. To read a version that only an aborted
//!   transaction names is an anomaly.
//! - **The loader.** A version belongs to the loader if no transaction names it as its write and it
//!   lies below every committed write of its key. It is older than everything recorded. Writes that
//!   left no trace set no such limit: an aborted transaction may have computed its version from a
//!   stale read. A loader leaves one version for each key, so two of them in one history are an
//!   anomaly.
//! - **Absent reads without a version** fit into any interval in which the key may have been
//!   absent. The first of these is before the key's first write, unless a transaction saw the
//!   loader's version. The others are after each delete, also after a delete by an unobserved
//!   unknown transaction. Real time and the reader's own writes narrow the choice. If no interval
//!   is left, that is an anomaly. If one is left, it is read like a version. If several are left,
//!   the reader comes after the beginning of the first and before the end of the last, which every
//!   choice implies. So the checker may miss an anomaly there, but never invents one.
//! - **Scans** read as absent every known key of their range that they do not return. Keys that the
//!   scanning transaction wrote itself are excepted, because it may have seen their uncommitted
//!   state.
//! - **Rollbacks.** To read a version that a rollback installed counts as reading the version that
//!   it restored. That holds even if an unknown or aborted transaction names the installed version.
//! - **Snapshots** are judged at their own, weaker level (`snapshots.rs`).
//! - **Kinds of writes** say only what the key was after them. An insert over a present key is not
//!   an anomaly.

mod absent;
mod explain;
mod graph;
mod report;
mod search;
mod snapshots;
mod versions;

use crate::history::{History, NO_END, ReadRow, ReadState, Status, TransactionRow};
use absent::Absences;
use explain::Explainer;
use graph::{Edge, EdgeKind, Graph, Timing};
use report::Findings;
pub use report::{Anomaly, AnomalyClass, Counts, Report};
use versions::{Chains, Evidence, VersionRead};

/// The number that stands for no node, no key, no entry.
const NONE: u32 = u32::MAX;

/// Checks a history. Returns the report of what was found.
#[must_use]
pub fn check(history: &History) -> Report {
    let evidence = Evidence::gather(history);
    let mut included = versions::Inclusion::of_committed(history, &evidence);
    loop {
        let mut round = Round::new(history, &evidence, &included);
        round.order_writes();
        round.follow_reads();
        let forced = round.follow_absences();
        if forced.is_empty() {
            return round.judge();
        }
        // An absent read can be explained only by the delete of an unknown transaction. So that
        // transaction committed, and everything is checked again.
        for transaction in forced {
            included.include(history, &evidence, transaction);
        }
    }
}

/// What the reads show about a key before its first recorded write.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    version: u64,
    /// The transaction that saw the state, or [`NONE`].
    reader: u32,
    state: ReadState,
}

/// The check under one assumption about which unknown transactions committed.
struct Round<'h> {
    history: &'h History,
    evidence: &'h Evidence,
    included: &'h versions::Inclusion,
    chains: Chains,
    loaded: Vec<Loaded>,
    edges: Vec<Edge>,
    findings: Findings,
}

impl<'h> Round<'h> {
    fn new(history: &'h History, evidence: &'h Evidence, included: &'h versions::Inclusion) -> Self {
        let nobody = Loaded { version: 0, reader: NONE, state: ReadState::AbsentUnknown };
        Self {
            history,
            evidence,
            included,
            chains: evidence.settle(history, included),
            loaded: vec![nobody; history.key_count()],
            edges: Vec::new(),
            findings: Findings::default(),
        }
    }

    /// Adds an anomaly. It is explained only if there is room left, because a broken system may
    /// produce millions.
    fn find(&mut self, explain: impl FnOnce(&Explainer<'_>) -> Anomaly) {
        if self.findings.is_full() {
            self.findings.omit(1);
            return;
        }
        let explainer = Explainer { history: self.history, evidence: self.evidence, chains: &self.chains };
        self.findings.add(explain(&explainer));
    }

    fn transactions(&self) -> impl Iterator<Item = (u32, &'h TransactionRow)> + use<'h> {
        let included = self.included;
        let rows = self.history.transactions.iter().enumerate();
        rows.map(|(number, row)| (number as u32, row)).filter(|(number, _)| included.contains(*number))
    }

    fn edge(&mut self, from: u32, to: u32, kind: EdgeKind, key: u32) {
        if from != to {
            self.edges.push(Edge::new(from, to, kind, key));
        }
    }

    /// Adds write-write edges, and finds versions that two transactions claim.
    fn order_writes(&mut self) {
        for conflict in std::mem::take(&mut self.chains.conflicts) {
            self.find(|explain| explain.conflict(&conflict));
        }
        for key in 0..self.history.key_count() as u32 {
            let mut before = NONE;
            for number in self.chains.range(key) {
                let entry = self.chains.entries[number];
                if entry.maybe {
                    continue;
                }
                if before != NONE {
                    self.edge(before, entry.writer, EdgeKind::WriteWrite, key);
                }
                before = entry.writer;
            }
        }
    }

    /// Adds the write-read and read-write edges of all reads that name a version.
    fn follow_reads(&mut self) {
        let history = self.history;
        // For each key, the last transaction that read it, and the version. This finds two versions
        // of one key in one transaction.
        let mut last_read = vec![(NONE, 0_u64); history.key_count()];
        for (transaction, row) in self.transactions() {
            let point_reads = row.reads.of(&history.reads);
            let scanned = row.scans.of(&history.scans).iter().flat_map(|scan| scan.entries.of(&history.scan_entries));
            for read in point_reads.iter().chain(scanned) {
                if read.state == ReadState::AbsentUnknown {
                    continue;
                }
                let version = self.evidence.resolve(read.key, read.version);
                let (last_reader, last_version) = last_read[read.key as usize];
                if last_reader == transaction && last_version != version {
                    // To follow the second version too would report the same anomaly again, as a
                    // cycle.
                    let key = read.key;
                    self.find(|explain| explain.two_versions(transaction, key, last_version, version));
                    continue;
                }
                last_read[read.key as usize] = (transaction, version);
                self.follow_read(transaction, read, version);
            }
        }
    }

    fn follow_read(&mut self, reader: u32, read: &ReadRow, version: u64) {
        match self.chains.find(read.key, version) {
            VersionRead::Entry(number) => {
                let entry = self.chains.entries[number];
                if entry.writer == reader {
                    // A transaction's own uncommitted writes are not recorded. So the version was
                    // read before it was installed.
                    self.find(|explain| explain.own_version(reader, read));
                    return;
                }
                let fits = if read.state == ReadState::Present { entry.may_be_present } else { entry.may_be_absent };
                if !fits {
                    self.find(|explain| explain.wrong_state(reader, read, entry.writer));
                }
                self.edge(entry.writer, reader, EdgeKind::WriteRead, read.key);
                if let Some(next) = self.chains.next_writer(read.key, number + 1) {
                    self.edge(reader, next, EdgeKind::ReadWrite, read.key);
                }
            }
            VersionRead::Missing | VersionRead::BeforeAll
                if self.evidence.aborted_writer(read.key, version).is_some() =>
            {
                self.find(|explain| explain.aborted_read(reader, read, version));
            }
            VersionRead::Missing => {
                self.find(|explain| explain.unwritten_read(reader, read, version));
            }
            VersionRead::BeforeAll => {
                self.follow_loader_read(reader, read, version);
                let first = self.chains.range(read.key).start;
                if let Some(next) = self.chains.next_writer(read.key, first) {
                    self.edge(reader, next, EdgeKind::ReadWrite, read.key);
                }
            }
        }
    }

    fn follow_loader_read(&mut self, reader: u32, read: &ReadRow, version: u64) {
        let loaded = &mut self.loaded[read.key as usize];
        if loaded.reader == NONE {
            *loaded = Loaded { version, reader, state: read.state };
        } else if loaded.version != version || loaded.state != read.state {
            let first = *loaded;
            self.find(|explain| explain.two_loaded(read.key, (first.reader, first.version), (reader, version)));
        }
    }

    /// Adds the edges of absent reads without a version. Returns unknown transactions that must
    /// have committed.
    fn follow_absences(&mut self) -> Vec<u32> {
        let Absences { edges, misfits, forced } =
            Absences::fit(self.history, self.included, &self.chains, &self.loaded);
        self.edges.extend(edges);
        for misfit in misfits {
            self.find(|explain| explain.misfit(&misfit));
        }
        forced
    }

    /// Looks for cycles, and makes the report.
    fn judge(mut self) -> Report {
        let mut timings = vec![Timing::NEVER; self.chains.node_count as usize];
        for (transaction, row) in self.transactions() {
            timings[transaction as usize] = Timing { start_ns: row.start_ns, end_ns: row.end_ns };
        }
        let edge_count = self.edges.len() as u64;
        let edges = std::mem::take(&mut self.edges);
        let (mut knots, omitted);
        if snapshots::has_snapshots(self.history) {
            (knots, omitted) = snapshots::knots(self.history, timings, edges);
            let includes = |node| self.included.contains(node);
            knots.extend(snapshots::stale_reads(self.history, self.evidence, &self.chains, includes));
        } else {
            (knots, omitted) = search::knots(&Graph::build(timings, edges));
        }
        for knot in knots {
            self.find(|explain| explain.knot(&knot));
        }
        self.findings.omit(omitted as u64);
        let mut counts = Counts {
            rollbacks: self.history.rollbacks.len() as u64,
            keys: self.history.key_count() as u64,
            edges: edge_count,
            ..Counts::default()
        };
        for (number, row) in self.history.transactions.iter().enumerate() {
            counts.transactions += 1;
            counts.reads += row.reads.len();
            counts.writes += row.writes.len();
            for scan in row.scans.of(&self.history.scans) {
                counts.scans += 1;
                counts.reads += scan.entries.len();
            }
            match row.status {
                Status::Committed => counts.committed += 1,
                Status::Aborted => counts.aborted += 1,
                Status::Unknown => counts.unknown += 1,
            }
            if row.status == Status::Unknown && self.included.contains(number as u32) {
                counts.unknown_observed += 1;
            }
        }
        self.findings.report(counts)
    }
}

/// Returns when a transaction started. A stand-in started at the beginning of time.
fn start_of(history: &History, node: u32) -> u64 {
    history.transactions.get(node as usize).map_or(0, |row| row.start_ns)
}

/// Returns when a transaction ended, or [`NO_END`] if that is not known.
fn end_of(history: &History, node: u32) -> u64 {
    history.transactions.get(node as usize).map_or(NO_END, |row| row.end_ns)
}
