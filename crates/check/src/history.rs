//! A recorded history in memory: transactions with their reads, writes and scans, and rollbacks.
//!
//! A history of a million transactions must fit beside the checker's own structures, so nothing
//! here owns a vector per transaction: keys are interned to 32-bit ids, and reads, writes and scans
//! lie in flat arenas that a transaction's row points into. The views ([`Transaction`], [`Read`],
//! ...) give names and bytes back.

mod error;
mod intern;
mod json;
pub(crate) mod marks;
mod reader;
mod writer;

pub use error::{HistoryError, LineError, Unended};
pub(crate) use intern::KEYS_MAX;
use intern::KeyInterner;
pub use reader::{HistoryReader, LoadedHistory, ReadOptions};
pub use writer::{Line, LineBuffer, LineHeader, Outcome};

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It committed, and its client knew.
    Committed,
    /// It aborted: its writes left no trace.
    Aborted,
    /// The client died or lost the answer: the transaction may or may not have committed.
    Unknown,
}

/// What a write did to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// The key came into being.
    Insert,
    /// The key got another value.
    Update,
    /// The key went; the version is its tombstone's.
    Delete,
}

impl WriteKind {
    /// The word for it in a history file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observed {
    /// The key was there, at this version.
    Present(u64),
    /// The key was not there, and its tombstone of this version said so.
    Absent(u64),
    /// The key was not there, and nothing told since when.
    AbsentUnknown,
}

/// The end of a transaction that has none.
pub(crate) const NO_END: u64 = u64::MAX;

/// A half-open range of an arena.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn of<'a, T>(&self, arena: &'a [T]) -> &'a [T] {
        &arena[self.first as usize..self.end as usize]
    }

    pub(crate) fn len(&self) -> u64 {
        u64::from(self.end - self.first)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TransactionRow {
    pub(crate) id: u64,
    pub(crate) worker: u64,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) reads: Span,
    pub(crate) writes: Span,
    pub(crate) scans: Span,
    pub(crate) place: Place,
    pub(crate) status: Status,
}

/// Where a line was read: which of the files, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    Present,
    Absent,
    AbsentUnknown,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRow {
    pub(crate) version: u64,
    pub(crate) key: u32,
    pub(crate) state: ReadState,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRow {
    pub(crate) version: u64,
    pub(crate) key: u32,
    pub(crate) kind: WriteKind,
    /// Only an aborted transaction's write may be without a version.
    pub(crate) versioned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRow {
    pub(crate) table: u32,
    pub(crate) entries: Span,
    /// `from` and `to`, one after the other in the arena of bounds.
    pub(crate) bounds: usize,
    pub(crate) from_length: u32,
    pub(crate) to_length: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RollbackRow {
    pub(crate) installed: u64,
    pub(crate) restored: u64,
    pub(crate) key: u32,
}

/// All transactions of the files that are checked together.
#[derive(Debug, Default)]
pub struct History {
    pub(crate) keys: KeyInterner,
    pub(crate) files: Vec<String>,
    pub(crate) transactions: Vec<TransactionRow>,
    pub(crate) reads: Vec<ReadRow>,
    pub(crate) writes: Vec<WriteRow>,
    pub(crate) scans: Vec<ScanRow>,
    /// What scans returned: always present reads.
    pub(crate) scan_entries: Vec<ReadRow>,
    pub(crate) bounds: Vec<u8>,
    pub(crate) rollbacks: Vec<RollbackRow>,
}

impl History {
    /// Number of transactions, an `unknown` line and its final line counted once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.transactions.len()
    }

    /// Whether there is no transaction at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Number of different keys named anywhere in the history.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The transactions, in the order in which their ids were first read.
    pub fn transactions(&self) -> impl ExactSizeIterator<Item = Transaction<'_>> {
        self.transactions.iter().map(|row| Transaction { history: self, row })
    }

    /// What was rolled back after it had been installed, in the order read.
    pub fn rollbacks(&self) -> impl ExactSizeIterator<Item = Rollback<'_>> {
        self.rollbacks.iter().map(|row| {
            let (table, key) = self.keys.get(row.key);
            Rollback { table, key, installed: row.installed, restored: row.restored }
        })
    }

    fn view_read(&self, row: &ReadRow) -> Read<'_> {
        let (table, key) = self.keys.get(row.key);
        let observed = match row.state {
            ReadState::Present => Observed::Present(row.version),
            ReadState::Absent => Observed::Absent(row.version),
            ReadState::AbsentUnknown => Observed::AbsentUnknown,
        };
        Read { table, key, observed }
    }

    pub(crate) fn scan_bounds(&self, scan: &ScanRow) -> (&[u8], &[u8]) {
        let bounds = &self.bounds[scan.bounds..];
        let (from, rest) = bounds.split_at(scan.from_length as usize);
        (from, &rest[..scan.to_length as usize])
    }
}

/// One transaction of a history.
#[derive(Clone, Copy, Debug)]
pub struct Transaction<'h> {
    history: &'h History,
    row: &'h TransactionRow,
}

impl<'h> Transaction<'h> {
    /// The transaction's id, unique over all files checked together.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.row.id
    }

    /// The worker that ran it.
    #[must_use]
    pub fn worker(&self) -> u64 {
        self.row.worker
    }

    /// The name of the file that it was read from: of its first line there.
    #[must_use]
    pub fn file(&self) -> &'h str {
        &self.history.files[self.row.place.file as usize]
    }

    /// When its first attempt began.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.row.start_ns
    }

    /// When its client knew the outcome; none if it never did.
    #[must_use]
    pub fn end_ns(&self) -> Option<u64> {
        (self.row.status != Status::Unknown).then_some(self.row.end_ns)
    }

    /// What became of it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.row.status
    }

    /// The transaction's point reads.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = Read<'h>> + use<'h> {
        let history = self.history;
        self.row.reads.of(&history.reads).iter().map(|row| history.view_read(row))
    }

    /// The transaction's writes.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = Write<'h>> + use<'h> {
        let history = self.history;
        self.row.writes.of(&history.writes).iter().map(|row| {
            let (table, key) = history.keys.get(row.key);
            Write { table, key, version: row.versioned.then_some(row.version), kind: row.kind }
        })
    }

    /// The transaction's scans.
    pub fn scans(&self) -> impl ExactSizeIterator<Item = Scan<'h>> + use<'h> {
        let history = self.history;
        self.row.scans.of(&history.scans).iter().map(|row| Scan { history, row })
    }
}

/// A key that a transaction read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read<'h> {
    /// The table's name.
    pub table: &'h str,
    /// The key's bytes.
    pub key: &'h [u8],
    /// What the read found.
    pub observed: Observed,
}

/// A key that a transaction wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'h> {
    /// The table's name.
    pub table: &'h str,
    /// The key's bytes.
    pub key: &'h [u8],
    /// The version installed; an aborted transaction may not have got as far as knowing it.
    pub version: Option<u64>,
    /// What was done to the key.
    pub kind: WriteKind,
}

/// A range of a table that a transaction read in key order.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'h> {
    history: &'h History,
    row: &'h ScanRow,
}

impl<'h> Scan<'h> {
    /// The table's name.
    #[must_use]
    pub fn table(&self) -> &'h str {
        self.history.keys.table(self.row.table)
    }

    /// The first key of the range, inclusive.
    #[must_use]
    pub fn from(&self) -> &'h [u8] {
        self.history.scan_bounds(self.row).0
    }

    /// The end of the range, exclusive.
    #[must_use]
    pub fn to(&self) -> &'h [u8] {
        self.history.scan_bounds(self.row).1
    }

    /// What the scan returned.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Read<'h>> + use<'h> {
        let history = self.history;
        self.row.entries.of(&history.scan_entries).iter().map(|row| history.view_read(row))
    }
}

/// A version that a rollback installed, holding again what an earlier version held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback<'h> {
    /// The table's name.
    pub table: &'h str,
    /// The key's bytes.
    pub key: &'h [u8],
    /// The version the rollback installed.
    pub installed: u64,
    /// The version whose content came back: reading `installed` counts as reading it.
    pub restored: u64,
}
