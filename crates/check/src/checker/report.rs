//! The report of a check: its findings in numbers, and in text that a person can follow.

use std::fmt;

/// The number of anomalies that are kept with their explanation. Further ones are only counted.
const ANOMALIES_MAX: usize = 100;

/// The verdict on a history.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was checked, in numbers.
    pub counts: Counts,
    /// The anomalies that were found; none if the history is strictly serializable. There are at
    /// most a hundred, and at most one cycle for each knot of transactions.
    pub anomalies: Vec<Anomaly>,
    /// The number of anomalies that were found beyond the ones explained in
    /// [`anomalies`](Self::anomalies).
    pub anomalies_omitted: u64,
}

impl Report {
    /// Whether the history is strictly serializable.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.anomalies.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(formatter, "strictly serializable: {}", self.counts);
        }
        writeln!(formatter, "NOT strictly serializable: {}", self.counts)?;
        for anomaly in &self.anomalies {
            write!(formatter, "\n{anomaly}")?;
        }
        if self.anomalies_omitted > 0 {
            write!(formatter, "\nand {} more anomalies", self.anomalies_omitted)?;
        }
        Ok(())
    }
}

/// The size of a checked history, in counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All transactions of the history.
    pub transactions: u64,
    /// Transactions that committed for certain.
    pub committed: u64,
    /// Transactions that aborted.
    pub aborted: u64,
    /// Transactions whose outcome is not recorded.
    pub unknown: u64,
    /// Unknown transactions that other transactions show to have committed.
    pub unknown_observed: u64,
    /// Keys read, by point reads and scans together.
    pub reads: u64,
    /// Keys written.
    pub writes: u64,
    /// Scans, counted as one each.
    pub scans: u64,
    /// Versions that a rollback installed.
    pub rollbacks: u64,
    /// Different keys that were named.
    pub keys: u64,
    /// Dependencies that were followed, without real time.
    pub edges: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} transactions ({} committed, {} aborted, {} unknown of which {} were observed), {} reads, {} writes, \
             {} scans, {} rollbacks, {} keys",
            self.transactions,
            self.committed,
            self.aborted,
            self.unknown,
            self.unknown_observed,
            self.reads,
            self.writes,
            self.scans,
            self.rollbacks,
            self.keys,
        )
    }
}

/// The class of an anomaly, as far as it can be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnomalyClass {
    /// A write came between a transaction's read of a key and its own write of that key.
    LostUpdate,
    /// One version of a key was installed twice.
    DuplicateVersion,
    /// A committed transaction read what an aborted one wrote.
    DirtyRead,
    /// A version was read that no transaction wrote.
    UnwrittenRead,
    /// Two different states of a key were read that both precede its first write.
    LoaderVersionsDiffer,
    /// A transaction read two states of one key.
    NonRepeatableRead,
    /// A deleted version was read as present, or a present one as absent.
    WrongState,
    /// A key was found absent at a time when it was present.
    ImpossibleAbsence,
    /// A scan did not return a key that was present, or writes and scans cannot be put in order.
    Phantom,
    /// A transaction read a write that its own writer overwrote later.
    IntermediateRead,
    /// The write orders of several keys contradict each other.
    WriteCycle,
    /// Transactions read from each other in a cycle.
    CircularReads,
    /// A transaction saw only a part of another transaction's writes.
    ReadSkew,
    /// Transactions read what the others overwrote.
    WriteSkew,
    /// Two readers saw two writers in opposite orders.
    LongFork,
    /// A transaction read a value that had been overwritten before the transaction started.
    StaleRead,
    /// A transaction read a value that was written after it had ended, or that it installed itself.
    FutureRead,
    /// A transaction's write was ordered before the write of a transaction that had ended before it
    /// started.
    WriteAgainstTime,
}

impl AnomalyClass {
    /// Returns the name of the class in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LostUpdate => "lost update",
            Self::DuplicateVersion => "duplicate version",
            Self::DirtyRead => "dirty read (of an aborted transaction's write)",
            Self::UnwrittenRead => "read of a version that nobody wrote",
            Self::LoaderVersionsDiffer => "two loader's states of one key",
            Self::NonRepeatableRead => "non-repeatable read",
            Self::WrongState => "presence and absence confused",
            Self::ImpossibleAbsence => "absent read that fits nowhere",
            Self::Phantom => "phantom",
            Self::IntermediateRead => "intermediate read",
            Self::WriteCycle => "write cycle",
            Self::CircularReads => "circular reads",
            Self::ReadSkew => "read skew",
            Self::WriteSkew => "write skew",
            Self::LongFork => "long fork",
            Self::StaleRead => "stale read (real time)",
            Self::FutureRead => "read from the future",
            Self::WriteAgainstTime => "write order against real time",
        }
    }
}

impl fmt::Display for AnomalyClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Something that cannot happen in a strictly serializable history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The kind of the anomaly.
    pub class: AnomalyClass,
    /// The ids of the transactions involved. For a cycle they are in its order.
    pub transactions: Vec<u64>,
    /// The explanation, line by line: what was read and written, and why that cannot be.
    pub explanation: Vec<String>,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.class)?;
        for line in &self.explanation {
            writeln!(formatter, "  {line}")?;
        }
        Ok(())
    }
}

/// Anomalies while they are collected.
#[derive(Debug, Default)]
pub(super) struct Findings {
    anomalies: Vec<Anomaly>,
    omitted: u64,
}

impl Findings {
    pub(super) fn is_full(&self) -> bool {
        self.anomalies.len() >= ANOMALIES_MAX
    }

    pub(super) fn add(&mut self, anomaly: Anomaly) {
        self.anomalies.push(anomaly);
    }

    pub(super) fn omit(&mut self, count: u64) {
        self.omitted += count;
    }

    pub(super) fn report(self, counts: Counts) -> Report {
        Report { counts, anomalies: self.anomalies, anomalies_omitted: self.omitted }
    }
}
