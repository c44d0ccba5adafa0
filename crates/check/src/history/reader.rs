//! The reader of history files. It makes a [`History`], or an error of one line that says which
//! line of which file is wrong, and how.
//!
//! Such an error comes from a crashed or half-written recording. So every message names file, line
//! and column. A truncated last line is not damage, because a killed client may leave one, so it
//! has an error of its own.

use super::error::{HistoryError, LineError, Unended};
use super::json::Scanner;
use super::marks::Mark;
use super::{
    History, Level, NO_END, Place, ReadRow, ReadState, RollbackRow, ScanRow, Span, Status, TransactionRow, WriteKind,
    WriteRow,
};
use crate::commands::Commands;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::BufRead;

/// The longest line that is accepted. A file with a longer one is not a history, and reading it
/// would only fill memory.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The first field of a line of a gateway's recorder.
const COMMANDS: &str = "redis";

/// Options of reading history files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether the last line of each file may be truncated, as a killed client leaves it. The
    /// reader then drops that line.
    pub crashed: bool,
}

/// The result of reading: the history, and what the user should know about its files.
#[derive(Debug)]
pub struct LoadedHistory {
    /// The transactions of all files.
    pub history: History,
    /// The commands of gateways, if gateways have recorded the files.
    pub commands: Commands,
    /// The files whose truncated last line was dropped. The user who asked for a verdict should be
    /// told.
    pub truncated_files: Vec<String>,
    /// The empty files, which only a crash may leave. The user who asked for a verdict should be
    /// told.
    pub empty_files: Vec<String>,
}

/// A reader that collects the transactions of several files.
#[derive(Debug, Default)]
pub struct HistoryReader {
    options: ReadOptions,
    history: History,
    commands: Commands,
    /// For each id, the index of its transaction in the history.
    by_id: HashMap<u64, u32>,
    truncated_files: Vec<String>,
    empty_files: Vec<String>,
    /// Whether the history is durable that has begun in the file being read. `None` if no history
    /// is begun there.
    begun: Option<bool>,
    scratch: Vec<u8>,
    key: Vec<u8>,
}

impl HistoryReader {
    /// Makes a reader that has read nothing yet.
    #[must_use]
    pub fn new(options: ReadOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Reads one file to its end. After an error, the reader has only what it read before the bad
    /// line.
    pub fn read<R: BufRead>(&mut self, file: &str, mut source: R) -> Result<(), HistoryError> {
        let file_number = self.history.files.len() as u32;
        self.history.files.push(file.to_owned());
        self.begun = None;
        let mut line = Vec::new();
        let mut number = 0_u64;
        loop {
            number += 1;
            line.clear();
            let end = read_line(&mut source, &mut line);
            let end = end.map_err(|source| HistoryError::Io { file: file.to_owned(), line: number, source })?;
            if end == LineEnd::File && line.is_empty() {
                return match number {
                    1 if self.options.crashed => {
                        self.empty_files.push(file.to_owned());
                        Ok(())
                    }
                    1 => Err(HistoryError::Empty { file: file.to_owned() }),
                    _ => self.end_part().map_err(|why| HistoryError::Unended { file: file.to_owned(), why }),
                };
            }
            let place = Place { file: file_number, line: u32::try_from(number).unwrap_or(u32::MAX) };
            let outcome = match end {
                LineEnd::TooLong => Err(LineError::TooLong),
                LineEnd::Newline | LineEnd::File => self.read_one(&line, place),
            };
            match outcome {
                Ok(()) => {}
                Err(LineError::Truncated) if end == LineEnd::File && self.options.crashed => {
                    self.truncated_files.push(file.to_owned());
                }
                Err(problem) => return Err(HistoryError::Line { file: file.to_owned(), line: number, problem }),
            }
        }
    }

    /// Returns everything that was read.
    #[must_use]
    pub fn finish(self) -> LoadedHistory {
        let HistoryReader { mut history, commands, truncated_files, empty_files, .. } = self;
        commands.bound(&mut history);
        LoadedHistory { history, commands, truncated_files, empty_files }
    }

    /// Ends the part of a file that belongs to one history. Returns an error if that history was
    /// begun, has no end, and no crash explains that.
    fn end_part(&mut self) -> Result<(), Unended> {
        match (self.begun.take(), self.options.crashed) {
            (None, _) | (Some(true), true) => Ok(()),
            (Some(false), true) => Err(Unended::NotDurable),
            (Some(_), false) => Err(Unended::Crash),
        }
    }

    /// Adds the first or the last line of a history. Several histories may lie in one file, one
    /// behind the other.
    fn add_mark(&mut self, mark: Mark, fields: &Fields) -> Result<(), LineError> {
        let other = fields.first_of_transaction().or(fields.is_set(Field::Rollback).then_some(Field::Rollback));
        if let Some(field) = other {
            return Err(LineError::MarkWithField(field.name()));
        }
        match mark {
            Mark::Begun { durable } => {
                self.end_part()?;
                self.begun = Some(durable);
                Ok(())
            }
            Mark::Cut => Err(LineError::Cut),
            Mark::Ended => self.begun.take().map(drop).ok_or(LineError::NotBegun),
        }
    }

    fn read_one(&mut self, line: &[u8], place: Place) -> Result<(), LineError> {
        let history = &self.history;
        let lengths = [
            history.reads.len(),
            history.writes.len(),
            history.scans.len(),
            history.scan_entries.len(),
            history.bounds.len(),
            history.rollbacks.len(),
        ];
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome = self.parse(Scanner::new(line, &mut scratch), place);
        self.scratch = scratch;
        if outcome.is_err() {
            // A line that is dropped must not leave half a transaction. The keys that it named may
            // stay, because nothing refers to them.
            let history = &mut self.history;
            history.reads.truncate(lengths[0]);
            history.writes.truncate(lengths[1]);
            history.scans.truncate(lengths[2]);
            history.scan_entries.truncate(lengths[3]);
            history.bounds.truncate(lengths[4]);
            history.rollbacks.truncate(lengths[5]);
        }
        outcome
    }

    fn parse(&mut self, mut scanner: Scanner<'_>, place: Place) -> Result<(), LineError> {
        match scanner.peek() {
            None => return Err(LineError::Empty),
            Some(b'{') => scanner.expect(b'{', "an object")?,
            Some(_) => return Err(LineError::NotAnObject),
        }
        let mut fields = Fields::default();
        let mut first = true;
        let mut is_first = true;
        while let Some(name) = scanner.next_member(&mut first)? {
            if std::mem::take(&mut is_first) && name == COMMANDS {
                return self.commands.parse(&mut scanner);
            }
            match Field::of(name) {
                None => scanner.skip_value()?,
                Some(field) => self.parse_field(field, &mut scanner, &mut fields)?,
            }
        }
        scanner.finish()?;
        if let Some(mark) = fields.mark {
            return self.add_mark(mark, &fields);
        }
        if fields.is_set(Field::Rollback) {
            return match fields.first_of_transaction() {
                None => Ok(()),
                Some(field) => Err(LineError::RollbackWithField(field.name())),
            };
        }
        let row = self.transaction_row(&fields, place)?;
        self.add(row)
    }

    fn parse_field(&mut self, field: Field, scanner: &mut Scanner<'_>, fields: &mut Fields) -> Result<(), LineError> {
        if fields.is_set(field) {
            return Err(LineError::RepeatedField(field.name()));
        }
        fields.set |= 1 << field as u32;
        match field {
            Field::Id => fields.id = scanner.unsigned("a transaction id (unsigned integer)")?,
            Field::Worker => fields.worker = scanner.unsigned("a worker (unsigned integer)")?,
            Field::StartNs => fields.start_ns = scanner.unsigned("a time (unsigned integer)")?,
            Field::EndNs => fields.end_ns = scanner.unsigned_or_null("a time (unsigned integer)")?,
            Field::Status => {
                fields.status = Some(match scanner.string("a status")? {
                    "committed" => Status::Committed,
                    "aborted" => Status::Aborted,
                    "unknown" => Status::Unknown,
                    other => return Err(LineError::UnknownStatus(abbreviate(other))),
                });
            }
            Field::Level => {
                let name = scanner.string("a level")?;
                let known = [Level::Strict, Level::Snapshot, Level::Serializable]
                    .into_iter()
                    .find(|level| level.name() == name);
                fields.level = known.ok_or_else(|| LineError::UnknownLevel(abbreviate(name)))?;
            }
            Field::Reads => fields.reads = self.parse_reads(scanner)?,
            Field::Writes => fields.writes = self.parse_writes(scanner, fields)?,
            Field::Scans => fields.scans = self.parse_scans(scanner)?,
            Field::Rollback => self.parse_rollbacks(scanner)?,
            Field::History => fields.mark = Some(Mark::of(scanner.string("a mark")?)?),
        }
        Ok(())
    }

    fn parse_reads(&mut self, scanner: &mut Scanner<'_>) -> Result<Span, LineError> {
        let before = self.history.reads.len();
        scanner.open_array()?;
        let mut first = true;
        while scanner.next_element(&mut first)? {
            let key = self.parse_keyed(scanner)?;
            let column = scanner.next_column();
            let version = scanner.unsigned_or_null("a version (unsigned integer) or null")?;
            let absent = scanner.peek() == Some(b',');
            if absent {
                scanner.comma()?;
                let column = scanner.next_column();
                if scanner.string("\"absent\"")? != "absent" {
                    return Err(LineError::Unexpected { column, expected: "\"absent\"" });
                }
            }
            scanner.close_array()?;
            let state = match (version, absent) {
                (Some(_), false) => ReadState::Present,
                (Some(_), true) => ReadState::Absent,
                (None, true) => ReadState::AbsentUnknown,
                (None, false) => {
                    return Err(LineError::Unexpected { column, expected: "a version: only an absent read has none" });
                }
            };
            self.history.reads.push(ReadRow { version: version.unwrap_or(0), key, state });
        }
        span(before, self.history.reads.len(), "4 billion reads")
    }

    fn parse_writes(&mut self, scanner: &mut Scanner<'_>, fields: &mut Fields) -> Result<Span, LineError> {
        let before = self.history.writes.len();
        scanner.open_array()?;
        let mut first = true;
        while scanner.next_element(&mut first)? {
            let key = self.parse_keyed(scanner)?;
            let version = scanner.unsigned_or_null("a version (unsigned integer)")?;
            scanner.comma()?;
            let column = scanner.next_column();
            let kind = match scanner.string("a kind of write")? {
                "insert" => WriteKind::Insert,
                "update" => WriteKind::Update,
                "delete" => WriteKind::Delete,
                other => return Err(LineError::UnknownWriteKind { column, kind: abbreviate(other) }),
            };
            scanner.close_array()?;
            fields.write_without_version |= version.is_none();
            let row = WriteRow { version: version.unwrap_or(0), key, kind, versioned: version.is_some() };
            self.history.writes.push(row);
        }
        span(before, self.history.writes.len(), "4 billion writes")
    }

    fn parse_scans(&mut self, scanner: &mut Scanner<'_>) -> Result<Span, LineError> {
        let before = self.history.scans.len();
        scanner.open_array()?;
        let mut first = true;
        while scanner.next_element(&mut first)? {
            scanner.open_array()?;
            let table = self.parse_table(scanner)?;
            scanner.comma()?;
            let bounds = self.history.bounds.len();
            let mut lengths = [0_u32; 2];
            for length in &mut lengths {
                self.parse_hex(scanner)?;
                *length = u32::try_from(self.key.len()).map_err(|_| LineError::TooLong)?;
                self.history.bounds.extend_from_slice(&self.key);
                scanner.comma()?;
            }
            let [from_length, to_length] = lengths;
            let scan = ScanRow { table, entries: Span::default(), bounds, from_length, to_length };
            let entries = self.parse_scan_entries(scanner, &scan)?;
            scanner.close_array()?;
            self.history.scans.push(ScanRow { entries, ..scan });
        }
        span(before, self.history.scans.len(), "4 billion scans")
    }

    fn parse_scan_entries(&mut self, scanner: &mut Scanner<'_>, scan: &ScanRow) -> Result<Span, LineError> {
        let before = self.history.scan_entries.len();
        scanner.open_array()?;
        let mut first = true;
        while scanner.next_element(&mut first)? {
            scanner.open_array()?;
            let column = scanner.next_column();
            let key = self.parse_key(scanner, scan.table)?;
            let (from, to) = self.history.scan_bounds(scan);
            if self.key.as_slice() < from || self.key.as_slice() >= to {
                return Err(LineError::ScanOutsideRange { column });
            }
            scanner.comma()?;
            let version = scanner.unsigned("a version (unsigned integer)")?;
            scanner.close_array()?;
            self.history.scan_entries.push(ReadRow { version, key, state: ReadState::Present });
        }
        span(before, self.history.scan_entries.len(), "4 billion scanned keys")
    }

    fn parse_rollbacks(&mut self, scanner: &mut Scanner<'_>) -> Result<(), LineError> {
        scanner.open_array()?;
        let mut first = true;
        while scanner.next_element(&mut first)? {
            let column = scanner.next_column();
            let key = self.parse_keyed(scanner)?;
            let installed = scanner.unsigned("a version (unsigned integer)")?;
            scanner.comma()?;
            let restored = scanner.unsigned("a version (unsigned integer)")?;
            scanner.close_array()?;
            if installed <= restored {
                return Err(LineError::RollbackNotAbove { column, installed, restored });
            }
            self.history.rollbacks.push(RollbackRow { installed, restored, key });
        }
        Ok(())
    }

    /// Parses the opening of an element about one key: `[table, key,`.
    fn parse_keyed(&mut self, scanner: &mut Scanner<'_>) -> Result<u32, LineError> {
        scanner.open_array()?;
        let table = self.parse_table(scanner)?;
        scanner.comma()?;
        let key = self.parse_key(scanner, table)?;
        scanner.comma()?;
        Ok(key)
    }

    fn parse_table(&mut self, scanner: &mut Scanner<'_>) -> Result<u32, LineError> {
        Ok(self.history.keys.intern_table(scanner.string("a table's name")?))
    }

    fn parse_key(&mut self, scanner: &mut Scanner<'_>, table: u32) -> Result<u32, LineError> {
        self.parse_hex(scanner)?;
        self.history.keys.intern(table, &self.key).ok_or(LineError::TooLarge("268 million keys"))
    }

    /// Parses a key, and leaves its bytes in `self.key`.
    fn parse_hex(&mut self, scanner: &mut Scanner<'_>) -> Result<(), LineError> {
        let column = scanner.next_column();
        let text = scanner.string("a key in hex")?;
        let bad = || LineError::BadHex { column, text: abbreviate(text) };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad());
        }
        self.key.clear();
        for [high, low] in pairs {
            let (high, low) = (HEX_VALUES[usize::from(*high)], HEX_VALUES[usize::from(*low)]);
            if high > 0xf || low > 0xf {
                return Err(bad());
            }
            self.key.push(high << 4 | low);
        }
        Ok(())
    }

    fn transaction_row(&self, fields: &Fields, place: Place) -> Result<TransactionRow, LineError> {
        for field in [Field::Id, Field::Worker, Field::StartNs, Field::Status, Field::Reads, Field::Writes] {
            if !fields.is_set(field) {
                return Err(LineError::MissingField(field.name()));
            }
        }
        let status = fields.status.ok_or(LineError::MissingField("status"))?;
        let end_ns = match (status, fields.end_ns) {
            (Status::Unknown, None) => NO_END,
            (Status::Unknown, Some(_)) => return Err(LineError::UnknownWithEnd),
            (_, None) => return Err(LineError::MissingField("end_ns")),
            (_, Some(end_ns)) if end_ns < fields.start_ns => {
                return Err(LineError::EndBeforeStart { start_ns: fields.start_ns, end_ns });
            }
            (_, Some(end_ns)) => end_ns,
        };
        if status != Status::Aborted && fields.write_without_version {
            return Err(LineError::WriteWithoutVersion);
        }
        if fields.level != Level::Strict && fields.writes.len() > 0 {
            return Err(LineError::SnapshotWithWrites);
        }
        Ok(TransactionRow {
            id: fields.id,
            worker: fields.worker,
            start_ns: fields.start_ns,
            end_ns,
            reads: fields.reads,
            writes: fields.writes,
            scans: fields.scans,
            place,
            status,
            level: fields.level,
        })
    }

    fn add(&mut self, row: TransactionRow) -> Result<(), LineError> {
        let next = u32::try_from(self.history.transactions.len()).map_err(|_| LineError::TooLarge("4 billion"))?;
        match self.by_id.entry(row.id) {
            Entry::Vacant(vacant) => {
                vacant.insert(next);
                self.history.transactions.push(row);
            }
            Entry::Occupied(known) => {
                let first = &mut self.history.transactions[*known.get() as usize];
                if first.status != Status::Unknown || first.place.file != row.place.file {
                    return Err(LineError::RepeatedTransaction {
                        id: row.id,
                        first_status: if first.status == Status::Unknown { "an unknown" } else { "a final" },
                        first_place: format!("{}:{}", self.history.files[first.place.file as usize], first.place.line),
                    });
                }
                *first = row;
            }
        }
        Ok(())
    }
}

/// The fields that a line has, in any order.
#[derive(Debug, Default)]
struct Fields {
    /// One bit for each [`Field`].
    set: u32,
    id: u64,
    worker: u64,
    start_ns: u64,
    end_ns: Option<u64>,
    status: Option<Status>,
    level: Level,
    reads: Span,
    writes: Span,
    scans: Span,
    write_without_version: bool,
    mark: Option<Mark>,
}

impl Fields {
    fn is_set(&self, field: Field) -> bool {
        self.set & 1 << field as u32 != 0
    }

    /// Returns the first field that only a transaction's line may have. An id or a worker would do
    /// no harm in a rollback.
    fn first_of_transaction(&self) -> Option<Field> {
        let fields = [Field::Status, Field::Reads, Field::Writes, Field::Scans, Field::StartNs, Field::EndNs];
        fields.into_iter().find(|field| self.is_set(*field))
    }
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Id,
    Worker,
    StartNs,
    EndNs,
    Status,
    Level,
    Reads,
    Writes,
    Scans,
    Rollback,
    History,
}

impl Field {
    const ALL: [Self; 11] = [
        Self::Id,
        Self::Worker,
        Self::StartNs,
        Self::EndNs,
        Self::Status,
        Self::Level,
        Self::Reads,
        Self::Writes,
        Self::Scans,
        Self::Rollback,
        Self::History,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Worker => "worker",
            Self::StartNs => "start_ns",
            Self::EndNs => "end_ns",
            Self::Status => "status",
            Self::Level => "level",
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Scans => "scans",
            Self::Rollback => "rollback",
            Self::History => "history",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}

const HEX_VALUES: [u8; 256] = {
    let mut values = [0xff; 256];
    let mut digit = 0;
    while digit < 16 {
        values[b"0123456789abcdef"[digit] as usize] = digit as u8;
        values[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};

fn span(first: usize, end: usize, limit: &'static str) -> Result<Span, LineError> {
    // No item may have the number u32::MAX, which the checker uses for "none".
    if end >= u32::MAX as usize {
        return Err(LineError::TooLarge(limit));
    }
    Ok(Span { first: first as u32, end: end as u32 })
}

/// Shortens a text from a file so that it fits a message.
fn abbreviate(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let mut short: String = text.chars().take(CHARACTERS_MAX).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Newline,
    File,
    TooLong,
}

/// Appends one line, without its newline, to `line`.
fn read_line<R: BufRead>(source: &mut R, line: &mut Vec<u8>) -> std::io::Result<LineEnd> {
    loop {
        let available = match source.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(LineEnd::File);
        }
        let newline = find_newline(available);
        let length = newline.unwrap_or(available.len());
        line.extend_from_slice(&available[..length]);
        source.consume(length + usize::from(newline.is_some()));
        if line.len() > LINE_BYTES_MAX {
            return Ok(LineEnd::TooLong);
        }
        if newline.is_some() {
            return Ok(LineEnd::Newline);
        }
    }
}

/// Finds a newline sixteen bytes at a time, which the compiler turns into vector instructions.
fn find_newline(bytes: &[u8]) -> Option<usize> {
    let (chunks, rest) = bytes.as_chunks::<16>();
    for (number, chunk) in chunks.iter().enumerate() {
        if chunk.iter().fold(false, |found, byte| found | (*byte == b'\n')) {
            return chunk.iter().position(|byte| *byte == b'\n').map(|at| number * 16 + at);
        }
    }
    rest.iter().position(|byte| *byte == b'\n').map(|at| chunks.len() * 16 + at)
}
