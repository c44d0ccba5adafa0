//! The errors of reading a history: of a file, of one of its lines, and of its end.
//!
//! Every message names the file, and where possible the line and the column. The person who runs a
//! check must be able to tell a damaged recording from one that a crash cut off.

/// The reason why a history file cannot be used, with the place.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A line does not have the format of a history.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file's name, as the caller gave it.
        file: String,
        /// The number of the line, counted from 1.
        line: u64,
        /// What is wrong with the line.
        problem: LineError,
    },
    /// The system could not read the file, or not all of it.
    #[error("{file}:{line}: cannot read: {source}")]
    Io {
        /// The file's name, as the caller gave it.
        file: String,
        /// The number of the line that was being read, counted from 1.
        line: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("{file}: is empty: it was emptied, or its client ended before it began, and --crashed accepts the latter")]
    Empty {
        /// The file's name, as the caller gave it.
        file: String,
    },
    /// The history was begun and has no end.
    #[error("{file}: the history has no end: {why}")]
    Unended {
        /// The file's name, as the caller gave it.
        file: String,
        /// Why a missing end makes the history unusable.
        why: Unended,
    },
}

/// An error in one line of a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is empty.
    #[error("the line is empty")]
    Empty,
    /// The line does not begin like an object.
    #[error("not a JSON object")]
    NotAnObject,
    /// The line ends within a value.
    #[error("the line is truncated")]
    Truncated,
    /// The line has something else than the format, or JSON, requires.
    #[error("column {column}: expected {expected}")]
    Unexpected {
        /// The position in the line, in bytes counted from 1.
        column: usize,
        /// What should be at this position.
        expected: &'static str,
    },
    /// A field that every line needs is missing.
    #[error("the field \"{0}\" is missing")]
    MissingField(&'static str),
    /// A field occurs twice.
    #[error("the field \"{0}\" occurs twice")]
    RepeatedField(&'static str),
    /// The status is none of the three that exist.
    #[error("unknown status {0:?}: expected \"committed\", \"aborted\" or \"unknown\"")]
    UnknownStatus(String),
    /// The level is none of the known ones.
    #[error("unknown level {0:?}: expected \"strict\", \"snapshot\" or \"serializable\"")]
    UnknownLevel(String),
    /// A transaction that read a snapshot has writes.
    #[error("a transaction that read a snapshot has writes")]
    SnapshotWithWrites,
    /// The kind of write is none of the three that exist.
    #[error("column {column}: unknown kind of write {kind:?}: expected \"insert\", \"update\" or \"delete\"")]
    UnknownWriteKind {
        /// The position of the kind in the line, in bytes counted from 1.
        column: usize,
        /// The word that was found.
        kind: String,
    },
    /// A key is not an even number of hexadecimal digits.
    #[error("column {column}: bad hex in a key: {text:?}")]
    BadHex {
        /// The position of the key in the line, in bytes counted from 1.
        column: usize,
        /// The text that was found, cut off if it is long.
        text: String,
    },
    /// A transaction ended before it started.
    #[error("end_ns {end_ns} is before start_ns {start_ns}")]
    EndBeforeStart {
        /// The start that the line has.
        start_ns: u64,
        /// The end that the line has.
        end_ns: u64,
    },
    /// An `unknown` line claims to know an end.
    #[error("an unknown transaction has no end_ns")]
    UnknownWithEnd,
    /// The write of a committed or unknown transaction has no version.
    #[error("a write without a version in a transaction that is not aborted")]
    WriteWithoutVersion,
    /// One line is both a rollback's and a transaction's.
    #[error("a rollback line has no field \"{0}\"")]
    RollbackWithField(&'static str),
    /// A rollback does not go back to a lower version.
    #[error("column {column}: a rollback installs version {installed}, which is not above {restored} that it restores")]
    RollbackNotAbove {
        /// The position of the entry in the line, in bytes counted from 1.
        column: usize,
        /// The version that the rollback installed.
        installed: u64,
        /// The version that the rollback restored.
        restored: u64,
    },
    /// A scan returned a key outside of its range.
    #[error("column {column}: a scan returned a key outside of its range")]
    ScanOutsideRange {
        /// The position of the key in the line, in bytes counted from 1.
        column: usize,
    },
    /// A transaction is recorded again: there are two final lines, an `unknown` line after the
    /// final one, or one id in two files.
    #[error("transaction {id} has {first_status} line already, at {first_place}")]
    RepeatedTransaction {
        /// The id that occurs again.
        id: u64,
        /// The kind of the earlier line: "a final" or "an unknown".
        first_status: &'static str,
        /// The file and line of the earlier one.
        first_place: String,
    },
    /// The line is longer than any transaction's could be.
    #[error("the line is longer than 64 MiB")]
    TooLong,
    /// The history before this one in the file has no end.
    #[error("another history begins here, and the one before it has no end: {0}")]
    Unended(#[from] Unended),
    /// The line looks like the first or last line of a history, and has a word that no such line
    /// has.
    #[error("unknown mark {0:?} of a history: expected \"begun\", \"durable\", \"cut\" or \"ended\"")]
    UnknownMark(String),
    /// A line is both a mark and something else.
    #[error("a line that begins or ends a history has no field \"{0}\"")]
    MarkWithField(&'static str),
    /// The line ends a history that has no first line.
    #[error("the history ends here, and does not begin: its first lines are missing")]
    NotBegun,
    /// The client that recorded the history could not write all of it.
    #[error(
        "the history is cut: its client could not write on, as on a full disk, so it says less than what happened, and \
         cannot be checked"
    )]
    Cut,
    /// The history has more keys, reads or writes than the checker can number.
    #[error("the history is too large: more than {0}")]
    TooLarge(&'static str),
}

/// The reason why a history that has no end cannot be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unended {
    /// Only a crash may leave a history without an end.
    #[error("its client was killed, or runs still: --crashed accepts that if it was recorded with --history-durable")]
    Crash,
    /// The history lacks what its client did last. The check would miss that in other histories.
    #[error(
        "its client was killed, and what it did last is not in it, since it was recorded without --history-durable"
    )]
    NotDurable,
}
