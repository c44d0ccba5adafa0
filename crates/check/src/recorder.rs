//! The recorder of a run's history: an observer for each thread, and one file for all of them.
//!
//! What a killed client has not written down is lost: its transactions would show as versions that
//! no transaction wrote. A durable history has a transaction's writes before they can be seen.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::observe::{Observer, Order, Outcome as Ended, Rollback, Snapshot, TransactionEvent, WriteKind as Change};

use crate::history::marks::Mark;
use crate::history::{Level, LineBuffer, LineHeader, Outcome, WriteKind};

/// The number of bytes at which a recorder writes its lines to the file. That is rare enough that
/// threads do not wait for each other, and few enough bytes to stay in the cache.
const FLUSH_BYTES: usize = 256 << 10;

/// A history that several threads record to, in a file or in anything else that takes lines.
pub struct HistoryFile {
    shared: Mutex<Shared>,
    durable: bool,
}

struct Shared {
    file: Box<dyn Write + Send>,
    /// The history's file, and the place of the first line in it, if that line can be changed
    /// later.
    first_line: Option<(File, u64)>,
    /// The first error. It is kept here because a recorder cannot report it to its caller.
    failure: Option<io::Error>,
}

impl HistoryFile {
    /// Makes a history in anything that takes bytes.
    #[must_use]
    pub fn new(file: impl Write + Send + 'static) -> Arc<HistoryFile> {
        HistoryFile::begin(Box::new(file), None, false)
    }

    /// Makes a durable history in anything that takes bytes. It can still be checked if its client
    /// is killed.
    ///
    /// Before the first verb that could make a transaction commit, the recorder has written a line
    /// of unknown outcome. The line has the transaction's reads, its writes, and the versions that
    /// it will install. The transaction's final line replaces it. Every line goes to the file at
    /// once, in one write, so only the last one can be truncated.
    #[must_use]
    pub fn durable(file: impl Write + Send + 'static) -> Arc<HistoryFile> {
        HistoryFile::begin(Box::new(file), None, true)
    }

    /// Makes a history in a file, from the file's current position on;
    /// [durably](HistoryFile::durable) if `durable`. Fails if the file does not accept the first
    /// line. When a later write fails, the first line is changed in place, for which even a full
    /// disk has room. The history then says itself that it is cut.
    pub fn in_file(mut file: File, durable: bool) -> io::Result<Arc<HistoryFile>> {
        // A pipe has no position, and its first line has left.
        let first_line = file.stream_position().and_then(|at| Ok((file.try_clone()?, at))).ok();
        let history = HistoryFile::begin(Box::new(file), first_line, durable);
        let begun = history.lock().failure.take();
        begun.map_or(Ok(history), Err)
    }

    fn begin(file: Box<dyn Write + Send>, first_line: Option<(File, u64)>, durable: bool) -> Arc<HistoryFile> {
        let shared = Shared { file, first_line, failure: None };
        let history = Arc::new(HistoryFile { shared: Mutex::new(shared), durable });
        history.append(Mark::Begun { durable }.line().as_bytes());
        history
    }

    /// Makes a recorder for the sessions of one thread.
    #[must_use]
    pub fn recorder(self: &Arc<HistoryFile>) -> Recorder {
        Recorder { lines: LineBuffer::new(), file: self.clone() }
    }

    /// Records what recovery is about to restore. It is written at once, because the recoverer may
    /// die before it has told any other client.
    pub fn rollback(&self, rollback: &Rollback<'_>) {
        let &Rollback { table, key, installed, restored } = rollback;
        let mut lines = LineBuffer::new();
        lines.rollback([(table, key, installed.to_bits(), restored.to_bits())]);
        self.append(lines.bytes());
    }

    /// Records whole lines of another recorder, such as a gateway's.
    pub fn note(&self, lines: &[u8]) {
        self.append(lines);
    }

    /// Whether a write has failed. The history is then cut, and accepts no more lines.
    pub fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Ends the history with a line that says that it is whole. Fails with the first error, if
    /// there was one. Call it once, when all recorders are gone. Rollbacks that are reported later
    /// still go to the file.
    pub fn finish(&self) -> io::Result<()> {
        self.append(Mark::Ended.line().as_bytes());
        // The error stays: a history that is cut accepts nothing more.
        match &self.lock().failure {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }

    fn append(&self, lines: &[u8]) {
        let mut shared = self.lock();
        // After an error nothing more is written, because a history with a hole would accuse
        // correct transactions.
        if shared.failure.is_some() {
            return;
        }
        if let Err(error) = shared.file.write_all(lines) {
            shared.failure = Some(error);
            if let Some((file, at)) = &shared.first_line {
                // If that fails too, only the caller knows of it.
                let _ = file.write_all_at(Mark::Cut.line().as_bytes(), *at);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HistoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HistoryFile")
            .field("durable", &self.durable)
            .field("failure", &self.lock().failure)
            .finish_non_exhaustive()
    }
}

/// An observer that records every attempt as a line of its own. An attempt that committed has its
/// reads and writes, and one that did not has its reads. Unless the history is durable, the rest of
/// the recorder's lines goes to the file when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    lines: LineBuffer,
    file: Arc<HistoryFile>,
}

impl Recorder {
    fn flush(&mut self) {
        if !self.lines.bytes().is_empty() {
            self.file.append(self.lines.bytes());
            self.lines.clear();
        }
    }

    fn record(&mut self, event: &TransactionEvent<'_>) {
        let end_ns = event.ended;
        let outcome = match event.outcome {
            Ended::Committed => Outcome::Committed { end_ns },
            Ended::Unknown => Outcome::Unknown,
            Ended::UserAbort | Ended::Aborted(_) | Ended::Failed(_) => Outcome::Aborted { end_ns },
        };
        let wrote = !matches!(outcome, Outcome::Aborted { .. });
        let (id, worker) = (event.id.to_bits(), event.id.owner().into());
        let level = match event.order {
            Order::Strict => Level::Strict,
            Order::Fresh => Level::Snapshot,
            Order::Any => Level::Serializable,
        };
        // Each attempt has an id and its own beginning. The beginning of the whole transaction
        // would say less. But a snapshot that is taken again may be as old as the transaction.
        let is_taken_again = matches!(event.snapshot, Some(Snapshot::Fresh | Snapshot::Strict));
        let start_ns = if is_taken_again { event.began } else { event.attempt_began };
        let header = LineHeader { id, worker, start_ns, outcome, level };
        let mut line = self.lines.begin(header);
        for access in event.accesses() {
            let table = access.table.name();
            match access.read {
                Some(version) => line.read(table, access.key, version.to_bits()),
                None => line.read_absent(table, access.key, None),
            }
            if let Some((kind, version)) = access.written.filter(|_| wrote) {
                let kind = match kind {
                    Change::Insert => WriteKind::Insert,
                    Change::Update => WriteKind::Update,
                    Change::Delete => WriteKind::Delete,
                };
                line.write(table, access.key, version.to_bits(), kind);
            }
        }
        for scan in event.scans().filter(|_| wrote) {
            let of_range = event.accesses().filter(|access| {
                access.table.origin() == scan.table.origin() && scan.from <= access.key && access.key < scan.to
            });
            let found = of_range.filter_map(|access| Some((access.key, access.read?.to_bits())));
            line.scan(scan.table.name(), scan.from, scan.to, found);
        }
        line.end();
    }
}

impl Observer for Recorder {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.record(event);
        // The program is about to learn the outcome. What it learns must be recorded even if it
        // dies.
        if self.file.durable || self.lines.bytes().len() >= FLUSH_BYTES {
            self.flush();
        }
    }

    fn wants_committing(&self) -> bool {
        self.file.durable
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        self.record(event);
        self.flush();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush();
    }
}
