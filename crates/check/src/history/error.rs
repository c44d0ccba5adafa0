//! Why a history file cannot be read: the error of a file, of one of its lines, and of its end.
//!
//! Every message names the file, and the line and the column where there are such. The person who
//! runs a check must tell a damaged recording from one that a crash cut off.

/// A history file that cannot be used: where and why.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A line is not what the format says.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file's name as given by the caller.
        file: String,
        /// The line's number, from 1.
        line: u64,
        /// What is wrong with it.
        problem: LineError,
    },
    /// The file could not be read at all, or not further.
    #[error("{file}:{line}: cannot read: {source}")]
    Io {
        /// The file's name as given by the caller.
        file: String,
        /// The number of the line that was being read, from 1.
        line: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is nothing in the file.
    #[error("{file}: is empty: it was emptied, or its client ended before it began, and --crashed accepts the latter")]
    Empty {
        /// The file's name as given by the caller.
        file: String,
    },
    /// The history was begun, and has no end.
    #[error("{file}: the history has no end: {why}")]
    Unended {
        /// The file's name as given by the caller.
        file: String,
        /// Why that makes it useless.
        why: Unended,
    },
}

/// What is wrong with one line of a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Nothing on the line.
    #[error("the line is empty")]
    Empty,
    /// The line does not begin like an object.
    #[error("not a JSON object")]
    NotAnObject,
    /// The line ends inside a value.
    #[error("the line is truncated")]
    Truncated,
    /// Something else than the format or JSON asks for.
    #[error("column {column}: expected {expected}")]
    Unexpected {
        /// The byte's position in the line, from 1.
        column: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// A field that every line needs is not there.
    #[error("the field \"{0}\" is missing")]
    MissingField(&'static str),
    /// A field occurs twice.
    #[error("the field \"{0}\" occurs twice")]
    RepeatedField(&'static str),
    /// A status that is none of the three.
    #[error("unknown status {0:?}: expected \"committed\", \"aborted\" or \"unknown\"")]
    UnknownStatus(String),
    /// A kind of write that is none of the three.
    #[error("column {column}: unknown kind of write {kind:?}: expected \"insert\", \"update\" or \"delete\"")]
    UnknownWriteKind {
        /// The kind's position in the line, from 1.
        column: usize,
        /// The word found.
        kind: String,
    },
    /// A key that is not an even number of hexadecimal digits.
    #[error("column {column}: bad hex in a key: {text:?}")]
    BadHex {
        /// The key's position in the line, from 1.
        column: usize,
        /// The text found, cut off if long.
        text: String,
    },
    /// A transaction that ended before it started.
    #[error("end_ns {end_ns} is before start_ns {start_ns}")]
    EndBeforeStart {
        /// The start given.
        start_ns: u64,
        /// The end given.
        end_ns: u64,
    },
    /// An `unknown` line claims to know an end.
    #[error("an unknown transaction has no end_ns")]
    UnknownWithEnd,
    /// A committed or unknown transaction's write has no version.
    #[error("a write without a version in a transaction that is not aborted")]
    WriteWithoutVersion,
    /// A line is both a rollback's and a transaction's.
    #[error("a rollback line has no field \"{0}\"")]
    RollbackWithField(&'static str),
    /// A rollback that does not go back.
    #[error("column {column}: a rollback installs version {installed}, which is not above {restored} that it restores")]
    RollbackNotAbove {
        /// The entry's position in the line, from 1.
        column: usize,
        /// The version installed.
        installed: u64,
        /// The version restored.
        restored: u64,
    },
    /// A scan returned a key outside of its range.
    #[error("column {column}: a scan returned a key outside of its range")]
    ScanOutsideRange {
        /// The key's position in the line, from 1.
        column: usize,
    },
    /// Two final lines, or an `unknown` line after the final one, or one id in two files.
    #[error("transaction {id} has {first_status} line already, at {first_place}")]
    RepeatedTransaction {
        /// The id that occurs again.
        id: u64,
        /// "a final" or "an unknown".
        first_status: &'static str,
        /// File and line of the earlier one.
        first_place: String,
    },
    /// The line is longer than any transaction's could be.
    #[error("the line is longer than 64 MiB")]
    TooLong,
    /// The history before this one in the same file has no end.
    #[error("another history begins here, and the one before it has no end: {0}")]
    Unended(#[from] Unended),
    /// A first or last line of a history that says what no such line says.
    #[error("unknown mark {0:?} of a history: expected \"begun\", \"durable\", \"cut\" or \"ended\"")]
    UnknownMark(String),
    /// A line is both a mark and something else.
    #[error("a line that begins or ends a history has no field \"{0}\"")]
    MarkWithField(&'static str),
    /// The last line of a history whose first line is gone.
    #[error("the history ends here, and does not begin: its first lines are missing")]
    NotBegun,
    /// The client that recorded the history could not write all of it.
    #[error(
        "the history is cut: its client could not write on, as on a full disk, so it says less than what happened, and \
         cannot be checked"
    )]
    Cut,
    /// More keys, reads or writes than the checker can number.
    #[error("the history is too large: more than {0}")]
    TooLarge(&'static str),
}

/// Why a history that has no end cannot be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unended {
    /// Only a crash may leave it so.
    #[error("its client was killed, or runs still: --crashed accepts that if it was recorded with --history-durable")]
    Crash,
    /// What its client did last is not in it, and would be missed elsewhere.
    #[error(
        "its client was killed, and what it did last is not in it, since it was recorded without --history-durable"
    )]
    NotDurable,
}
