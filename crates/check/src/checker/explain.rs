//! Explanations: names the class of an anomaly, and tells which transactions read and wrote what,
//! in which version, and why that cannot be.

use super::absent::Misfit;
use super::graph::{Edge, EdgeKind};
use super::report::{Anomaly, AnomalyClass};
use super::search::Knot;
use super::versions::{Chains, Conflict, Evidence};
use super::{NONE, end_of, start_of};
use crate::history::{History, NO_END, ReadRow, ReadState, Status, TransactionRow};
use std::fmt::Write;

/// The number of versions of a key that an explanation shows around an absent read.
const VERSIONS_TOLD_MAX: usize = 6;

pub(super) struct Explainer<'c> {
    pub(super) history: &'c History,
    pub(super) evidence: &'c Evidence,
    pub(super) chains: &'c Chains,
}

impl Explainer<'_> {
    /// Explains that two writers installed one version.
    pub(super) fn conflict(&self, conflict: &Conflict) -> Anomaly {
        let &Conflict { key, version, first, second } = conflict;
        let name = self.key(key);
        if second == NONE {
            let told = format!("{} and a rollback both installed version {version} of {name}", self.short(first));
            return self.anomaly(AnomalyClass::DuplicateVersion, &[first], vec![told]);
        }
        let (read_first, read_second) = (self.version_read(first, key), self.version_read(second, key));
        let mut told = vec![format!(
            "{} and {} both installed version {version} of {name}",
            self.short(first),
            self.short(second)
        )];
        let class = match (read_first, read_second) {
            (Some(read), Some(same)) if read == same => {
                told.push(format!("both had read version {read} of it, so one of the two writes is lost"));
                AnomalyClass::LostUpdate
            }
            _ => AnomalyClass::DuplicateVersion,
        };
        self.anomaly(class, &[first, second], told)
    }

    /// Explains that one transaction read two versions of one key.
    pub(super) fn two_versions(&self, reader: u32, key: u32, first: u64, second: u64) -> Anomaly {
        let told = format!("{} read {} at version {first} and at version {second}", self.short(reader), self.key(key));
        self.anomaly(AnomalyClass::NonRepeatableRead, &[reader], vec![told])
    }

    /// Explains that a transaction read a version that it installed itself.
    pub(super) fn own_version(&self, reader: u32, read: &ReadRow) -> Anomaly {
        let told = format!(
            "{} read {} at version {}, which it installed itself only when it committed",
            self.short(reader),
            self.key(read.key),
            self.version(read.key, read.version),
        );
        self.anomaly(AnomalyClass::FutureRead, &[reader], vec![told])
    }

    /// Explains that a deleted version was read as present, or a present one as absent.
    pub(super) fn wrong_state(&self, reader: u32, read: &ReadRow, writer: u32) -> Anomaly {
        let (seen, left) = match read.state {
            ReadState::Present => ("present", "deleted it"),
            ReadState::Absent | ReadState::AbsentUnknown => ("absent", "put it there"),
        };
        let told = format!(
            "{} read {} at version {} as {seen}, but {} {left} with that version",
            self.short(reader),
            self.key(read.key),
            self.version(read.key, read.version),
            self.short(writer),
        );
        self.anomaly(AnomalyClass::WrongState, &[reader, writer], vec![told])
    }

    pub(super) fn aborted_read(&self, reader: u32, read: &ReadRow, version: u64) -> Anomaly {
        let writer = self.evidence.aborted_writer(read.key, version).unwrap_or(NONE);
        let told = format!(
            "{} read {} at version {}, which only {} would have installed, and that aborted",
            self.short(reader),
            self.key(read.key),
            self.version(read.key, read.version),
            self.short(writer),
        );
        self.anomaly(AnomalyClass::DirtyRead, &[reader, writer], vec![told])
    }

    pub(super) fn unwritten_read(&self, reader: u32, read: &ReadRow, version: u64) -> Anomaly {
        let mut told = vec![format!(
            "{} read {} at version {}, which nobody installed",
            self.short(reader),
            self.key(read.key),
            self.version(read.key, read.version),
        )];
        let mut around = format!("versions installed: {}", self.versions_around(read.key, version));
        around.push_str("; the loader's are below all of them");
        told.push(around);
        let suspect = self.history.transactions.iter().position(|row| {
            let mut writes = row.writes.of(&self.history.writes).iter();
            row.status == Status::Aborted && writes.any(|write| write.key == read.key && !write.versioned)
        });
        let mut involved = vec![reader];
        let mut class = AnomalyClass::UnwrittenRead;
        if let Some(suspect) = suspect {
            told.push(format!(
                "{} wrote this key without recording a version and aborted: it may be that one's",
                self.short(suspect as u32)
            ));
            involved.push(suspect as u32);
            class = AnomalyClass::DirtyRead;
        }
        self.anomaly(class, &involved, told)
    }

    pub(super) fn two_loaded(&self, key: u32, first: (u32, u64), second: (u32, u64)) -> Anomaly {
        let name = self.key(key);
        let mut told: Vec<String> = [first, second]
            .into_iter()
            .map(|(reader, version)| {
                let state = match self.state_read(reader, key) {
                    Some(ReadState::Present) | None => "present",
                    Some(_) => "absent",
                };
                format!("{} read {name} at version {version}, {state}", self.short(reader))
            })
            .collect();
        told.push("both are from before the first recorded write of the key, but it had one state then".to_owned());
        self.anomaly(AnomalyClass::LoaderVersionsDiffer, &[first.0, second.0], told)
    }

    pub(super) fn misfit(&self, misfit: &Misfit) -> Anomaly {
        let name = self.key(misfit.key);
        let found = if misfit.by_scan {
            format!("{} scanned a range with {name} and did not get it", self.full(misfit.reader))
        } else {
            format!("{} found {name} absent", self.full(misfit.reader))
        };
        if let Some(version) = misfit.read_present {
            let told = vec![found, format!("it also read it as present, at version {version}")];
            return self.anomaly(AnomalyClass::NonRepeatableRead, &[misfit.reader], told);
        }
        let start_ns = start_of(self.history, misfit.reader);
        let versions = self.chains.of(misfit.key);
        let ended = versions.iter().rfind(|entry| end_of(self.history, entry.writer) < start_ns);
        let mut involved = vec![misfit.reader];
        involved.extend(ended.map(|entry| entry.writer));
        let told = vec![
            found,
            format!(
                "but there is no time at which that can be: {}",
                self.versions_around(misfit.key, ended.map_or(0, |entry| entry.version))
            ),
        ];
        let class = if misfit.by_scan { AnomalyClass::Phantom } else { AnomalyClass::ImpossibleAbsence };
        self.anomaly(class, &involved, told)
    }

    /// Explains that some transactions cannot be put in order.
    pub(super) fn knot(&self, knot: &Knot) -> Anomaly {
        let cycle = &knot.cycle;
        let mut told = vec!["each of these must come before the next, and the last before the first:".to_owned()];
        for edge in cycle {
            told.push(self.full(edge.from));
            told.push(format!("  is before {}: {}", self.short(edge.to), self.reason(edge)));
        }
        if knot.size > cycle.len() {
            told.push(format!("({} transactions are on cycles with these)", knot.size));
        }
        let involved: Vec<u32> = cycle.iter().map(|edge| edge.from).collect();
        self.anomaly(classify(cycle), &involved, told)
    }

    fn anomaly(&self, class: AnomalyClass, involved: &[u32], explanation: Vec<String>) -> Anomaly {
        let rows = involved.iter().filter_map(|node| self.history.transactions.get(*node as usize));
        Anomaly { class, transactions: rows.map(|row| row.id).collect(), explanation }
    }

    fn row(&self, node: u32) -> Option<&TransactionRow> {
        self.history.transactions.get(node as usize)
    }

    fn short(&self, node: u32) -> String {
        self.row(node).map_or_else(
            || "one of several unknown transactions".to_owned(),
            |row| match row.status {
                Status::Unknown => format!("{} (unknown, observed)", row.id),
                Status::Committed | Status::Aborted => row.id.to_string(),
            },
        )
    }

    fn full(&self, node: u32) -> String {
        let Some(row) = self.row(node) else { return self.short(node) };
        let file = self.history.files.get(row.place.file as usize).map_or("", String::as_str);
        let mut text = format!("{} (worker {}, from {} ", row.id, row.worker, row.start_ns);
        // Writing to a string cannot fail.
        let _ = match row.end_ns {
            NO_END => write!(text, "ns, outcome unknown but observed"),
            end_ns => write!(text, "to {end_ns} ns"),
        };
        let _ = write!(text, "; {file}:{})", row.place.line);
        text
    }

    fn key(&self, key: u32) -> String {
        let (table, bytes) = self.history.keys.get(key);
        let mut text = format!("{} ", table.escape_debug());
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Returns the text of a version that was read, with what it stands for.
    fn version(&self, key: u32, version: u64) -> String {
        match self.evidence.resolve(key, version) {
            same if same == version => version.to_string(),
            restored => format!("{version} (a rollback's, which restored {restored})"),
        }
    }

    /// Returns what a transaction read of a key, as recorded.
    fn read_of(&self, node: u32, key: u32) -> Option<&ReadRow> {
        let row = self.row(node)?;
        let scans = row.scans.of(&self.history.scans).iter();
        let scanned = scans.flat_map(|scan| scan.entries.of(&self.history.scan_entries));
        let mut reads = row.reads.of(&self.history.reads).iter().chain(scanned);
        reads.find(|read| read.key == key && read.state != ReadState::AbsentUnknown)
    }

    fn version_read(&self, node: u32, key: u32) -> Option<u64> {
        self.read_of(node, key).map(|read| self.evidence.resolve(key, read.version))
    }

    fn state_read(&self, node: u32, key: u32) -> Option<ReadState> {
        self.read_of(node, key).map(|read| read.state)
    }

    fn version_written(&self, node: u32, key: u32) -> String {
        let written = self.chains.of(key).iter().find(|entry| entry.writer == node && !entry.maybe);
        written.map_or_else(|| "?".to_owned(), |entry| entry.version.to_string())
    }

    /// Returns the text of what a transaction wrote of a key directly above a version.
    fn version_above(&self, key: u32, below: Option<u64>, writer: u32) -> String {
        let mut versions = self.chains.of(key).iter().filter(|entry| !entry.maybe);
        let above = versions.find(|entry| below.is_none_or(|below| entry.version > below));
        match above {
            Some(entry) if entry.writer == writer => entry.version.to_string(),
            _ => self.version_written(writer, key),
        }
    }

    fn reason(&self, edge: &Edge) -> String {
        let &Edge { from, to, label } = edge;
        let key = label.key();
        match label.kind() {
            EdgeKind::WriteWrite => format!(
                "it installed version {} of {}, the other version {} after it",
                self.version_written(from, key),
                self.key(key),
                self.version_written(to, key)
            ),
            EdgeKind::WriteRead => {
                let read = self.read_of(to, key).map_or(0, |read| read.version);
                format!("it installed version {} of {}, which the other read", self.version(key, read), self.key(key))
            }
            EdgeKind::ReadWrite => {
                let read = self.read_of(from, key).map_or(0, |read| read.version);
                let resolved = self.evidence.resolve(key, read);
                format!(
                    "it read {} at version {}, which the other replaced by version {}",
                    self.key(key),
                    self.version(key, read),
                    self.version_above(key, Some(resolved), to)
                )
            }
            EdgeKind::WriteAbsent | EdgeKind::WriteScan => format!(
                "it installed version {} of {}, and the other {} that or a later state",
                self.version_written(from, key),
                self.key(key),
                if label.kind() == EdgeKind::WriteScan { "did not get the key in a scan of" } else { "found absent" }
            ),
            EdgeKind::AbsentWrite | EdgeKind::ScanWrite => format!(
                "it {} {}, which it can only have done before the other installed version {}",
                if label.kind() == EdgeKind::ScanWrite { "did not get in a scan" } else { "found absent" },
                self.key(key),
                self.version_written(to, key)
            ),
            EdgeKind::RealTime => format!(
                "it ended at {} ns, before the other started at {} ns",
                end_of(self.history, from),
                start_of(self.history, to)
            ),
        }
    }

    /// Returns the text of the versions of a key around one of them, with their writers and times.
    fn versions_around(&self, key: u32, version: u64) -> String {
        let versions: Vec<_> = self.chains.of(key).iter().filter(|entry| !entry.maybe).collect();
        if versions.is_empty() {
            return "none".to_owned();
        }
        let at = versions.partition_point(|entry| entry.version < version);
        let first = at.saturating_sub(VERSIONS_TOLD_MAX / 2);
        let shown = &versions[first..versions.len().min(first + VERSIONS_TOLD_MAX)];
        let mut texts: Vec<String> = shown
            .iter()
            .map(|entry| {
                let what = if entry.may_be_present { "" } else { ", a delete," };
                format!("{}{what} by {}", entry.version, self.full(entry.writer))
            })
            .collect();
        if first > 0 {
            texts.insert(0, "...".to_owned());
        }
        if first + VERSIONS_TOLD_MAX < versions.len() {
            texts.push("...".to_owned());
        }
        texts.join("; ")
    }
}

/// Returns the class of a cycle, from the kinds of its edges.
fn classify(cycle: &[Edge]) -> AnomalyClass {
    let kinds: Vec<EdgeKind> = cycle.iter().map(|edge| edge.label.kind()).collect();
    let count = |wanted: &[EdgeKind]| kinds.iter().filter(|kind| wanted.contains(kind)).count();
    let is_anti = |kind: EdgeKind| matches!(kind, EdgeKind::ReadWrite | EdgeKind::AbsentWrite | EdgeKind::ScanWrite);
    let anti = kinds.iter().filter(|kind| is_anti(**kind)).count();
    let reads = count(&[EdgeKind::WriteRead, EdgeKind::WriteAbsent, EdgeKind::WriteScan]);
    let scans = count(&[EdgeKind::WriteScan, EdgeKind::ScanWrite]);
    let data = || cycle.iter().filter(|edge| edge.label.kind() != EdgeKind::RealTime);
    let one_key = data().all(|edge| data().all(|other| edge.label.key() == other.label.key()));
    if kinds.contains(&EdgeKind::RealTime) {
        return match (anti, reads) {
            (0, 0) => AnomalyClass::WriteAgainstTime,
            (0, _) => AnomalyClass::FutureRead,
            _ => AnomalyClass::StaleRead,
        };
    }
    if scans > 0 {
        return AnomalyClass::Phantom;
    }
    match anti {
        0 if reads == 0 => AnomalyClass::WriteCycle,
        0 => AnomalyClass::CircularReads,
        1 if one_key && reads == 0 => AnomalyClass::LostUpdate,
        1 if one_key => AnomalyClass::IntermediateRead,
        1 => AnomalyClass::ReadSkew,
        _ => {
            // The anomaly of snapshot isolation has two anti-dependencies in a row. A long fork has
            // them apart.
            let in_a_row = (0..kinds.len()).any(|at| is_anti(kinds[at]) && is_anti(kinds[(at + 1) % kinds.len()]));
            if in_a_row { AnomalyClass::WriteSkew } else { AnomalyClass::LongFork }
        }
    }
}
