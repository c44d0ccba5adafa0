//! A recorded history in memory: transactions with their reads, writes and scans, and rollbacks.
//!
//! A history of a million transactions must fit beside the checker's own structures, so no
//! transaction owns a vector. Keys are interned as 32-bit ids. Reads, writes and scans lie in flat
//! arenas, and a transaction's row points into them. The views ([`Transaction`], [`Read`], ...)
//! give the names and bytes back.

mod error;
mod intern;
pub(crate) mod json;
pub(crate) mod marks;
mod reader;
mod writer;

pub use error::{HistoryError, LineError, Unended};
pub(crate) use intern::KEYS_MAX;
use intern::KeyInterner;
pub use reader::{HistoryReader, LoadedHistory, ReadOptions};
pub use writer::{Line, LineBuffer, LineHeader, Outcome};

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The transaction committed, and its client knew that.
    Committed,
    /// The transaction aborted, and its writes left no trace.
    Aborted,
    /// The client died or lost the answer: the transaction may or may not have committed.
    Unknown,
}

/// The effect of a write on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// The key was absent, and exists now.
    Insert,
    /// The key got another value.
    Update,
    /// The key was deleted. The version is that of its tombstone.
    Delete,
}

impl WriteKind {
    /// Returns the word for it in a history file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observed {
    /// The key was present, at this version.
    Present(u64),
    /// The key was absent, as its tombstone of this version said.
    Absent(u64),
    /// The key was absent, and nothing told since when.
    AbsentUnknown,
}

/// The end of a transaction that has no end.
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

/// What is asked of the order of a transaction. All transactions together have to be serializable,
/// whatever their levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Level {
    /// `strict`, and what a line without a level has: if one transaction has ended before another
    /// one starts, it comes before it.
    #[default]
    Strict,
    /// `snapshot`: the transaction only reads, and sees everything that had ended before it
    /// started, of the keys that it reads.
    Snapshot,
    /// `serializable`: the transaction only reads. What it sees may be of any time.
    Serializable,
}

impl Level {
    /// Returns the level's name in a history.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Strict => "strict",
            Level::Snapshot => "snapshot",
            Level::Serializable => "serializable",
        }
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
    pub(crate) level: Level,
}

/// The place of a line: which of the files, and the line's number there.
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
    /// Whether the write has a version. Only an aborted transaction's write may have none.
    pub(crate) versioned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRow {
    pub(crate) table: u32,
    pub(crate) entries: Span,
    /// The place of the range's two bounds, one after the other, in the arena of bounds.
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
    /// The entries that scans returned. All are present reads.
    pub(crate) scan_entries: Vec<ReadRow>,
    pub(crate) bounds: Vec<u8>,
    pub(crate) rollbacks: Vec<RollbackRow>,
}

impl History {
    /// Returns the number of transactions. An `unknown` line and its final line count once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.transactions.len()
    }

    /// Whether the history has no transaction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Returns the number of different keys that are named anywhere in the history.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns the transactions, in the order in which their ids were first read.
    pub fn transactions(&self) -> impl ExactSizeIterator<Item = Transaction<'_>> {
        self.transactions.iter().map(|row| Transaction { history: self, row })
    }

    /// Returns the rollbacks, in the order in which they were read.
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
    /// Returns the transaction's id, which is unique over all files that are checked together.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.row.id
    }

    /// Returns the worker that ran the transaction.
    #[must_use]
    pub fn worker(&self) -> u64 {
        self.row.worker
    }

    /// Returns the name of the file that has the transaction's first line.
    #[must_use]
    pub fn file(&self) -> &'h str {
        &self.history.files[self.row.place.file as usize]
    }

    /// Returns when the transaction's first attempt began, in nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.row.start_ns
    }

    /// Returns when the transaction's client knew the outcome, in nanoseconds. `None` if it never
    /// did.
    #[must_use]
    pub fn end_ns(&self) -> Option<u64> {
        (self.row.status != Status::Unknown).then_some(self.row.end_ns)
    }

    /// Returns the outcome of the transaction.
    #[must_use]
    pub fn status(&self) -> Status {
        self.row.status
    }

    /// Returns what is asked of the transaction's order.
    #[must_use]
    pub fn level(&self) -> Level {
        self.row.level
    }

    /// Returns the transaction's point reads.
    pub fn reads(&self) -> impl ExactSizeIterator<Item = Read<'h>> + use<'h> {
        let history = self.history;
        self.row.reads.of(&history.reads).iter().map(|row| history.view_read(row))
    }

    /// Returns the transaction's writes.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = Write<'h>> + use<'h> {
        let history = self.history;
        self.row.writes.of(&history.writes).iter().map(|row| {
            let (table, key) = history.keys.get(row.key);
            Write { table, key, version: row.versioned.then_some(row.version), kind: row.kind }
        })
    }

    /// Returns the transaction's scans.
    pub fn scans(&self) -> impl ExactSizeIterator<Item = Scan<'h>> + use<'h> {
        let history = self.history;
        self.row.scans.of(&history.scans).iter().map(|row| Scan { history, row })
    }
}

/// A key that a transaction read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read<'h> {
    /// The name of the key's table.
    pub table: &'h str,
    /// The key's bytes.
    pub key: &'h [u8],
    /// What the read found.
    pub observed: Observed,
}

/// A key that a transaction wrote, with the effect of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'h> {
    /// The name of the key's table.
    pub table: &'h str,
    /// The key's bytes.
    pub key: &'h [u8],
    /// The version that the write installed. An aborted transaction may have ended before it knew
    /// one.
    pub version: Option<u64>,
    /// The effect of the write on the key.
    pub kind: WriteKind,
}

/// A range of a table that a transaction read in key order.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'h> {
    history: &'h History,
    row: &'h ScanRow,
}

impl<'h> Scan<'h> {
    /// Returns the name of the scanned table.
    #[must_use]
    pub fn table(&self) -> &'h str {
        self.history.keys.table(self.row.table)
    }

    /// Returns the first key of the range, inclusive.
    #[must_use]
    pub fn from(&self) -> &'h [u8] {
        self.history.scan_bounds(self.row).0
    }

    /// Returns the end of the range, exclusive.
    #[must_use]
    pub fn to(&self) -> &'h [u8] {
        self.history.scan_bounds(self.row).1
    }

    /// Returns the keys that the scan returned.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Read<'h>> + use<'h> {
        let history = self.history;
        self.row.entries.of(&history.scan_entries).iter().map(|row| history.view_read(row))
    }
}

/// A version that a rollback installed, which has the content of an earlier version again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback<'h> {
    /// The name of the key's table.
    pub table: &'h str,
    /// The key's bytes.
    pub key: &'h [u8],
    /// The version that the rollback installed.
    pub installed: u64,
    /// The version whose content was restored. To read `installed` counts as reading this version.
    pub restored: u64,
}
