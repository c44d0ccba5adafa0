//! The records of a run: its history, the counts of its attempts, and what clients were told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::{Session, TransactionId};
use remora_check::HistoryFile;

use super::case::Ran;
use super::reported::Reported;

/// The records of a run. Every session writes them through its observer.
pub(super) struct Recording {
    pub(super) file: Arc<HistoryFile>,
    lines: Shared,
    pub(super) counts: Rc<RefCell<Ran>>,
    pub(super) reported: Rc<RefCell<Reported>>,
    /// Transactions that may commit, and whose clients have not been told the outcome.
    open: Rc<RefCell<BTreeMap<TransactionId, TransactionId>>>,
}

impl Recording {
    pub(super) fn new() -> Recording {
        let lines = Shared::default();
        let file = HistoryFile::durable(lines.clone());
        Recording { file, lines, counts: Rc::default(), reported: Rc::default(), open: Rc::default() }
    }

    /// Makes a session record its transactions, as transactions of this lane of its client.
    pub(super) fn watch(&self, lane: usize, session: &mut Session) {
        let (counts, reported, open) = (self.counts.clone(), self.reported.clone(), self.open.clone());
        let recorder = Box::new(self.file.recorder());
        session.observe(Some(Box::new(Watch { lane, counts, reported, open, recorder })));
    }

    /// Takes the transactions whose outcome their clients were not told.
    pub(super) fn take_unknown(&self) -> BTreeMap<TransactionId, TransactionId> {
        self.open.take()
    }

    /// Ends the history, and returns its lines.
    pub(super) fn finish(&self) -> Result<Vec<u8>, String> {
        self.file.finish().map_err(|error| error.to_string())?;
        Ok(self.lines.0.lock().map_err(|_| "the recorder panicked")?.clone())
    }
}

/// A file in memory that can be read while another owner writes it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Ok(mut all) = self.0.lock() {
            all.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An observer that counts attempts and keeps what was reported, in addition to recording.
struct Watch {
    lane: usize,
    counts: Rc<RefCell<Ran>>,
    reported: Rc<RefCell<Reported>>,
    /// Transactions that may commit, and whose clients have not been told the outcome. With each,
    /// the one whose commit decides it.
    open: Rc<RefCell<BTreeMap<TransactionId, TransactionId>>>,
    recorder: Box<dyn Observer>,
}

impl Observer for Watch {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let counts = &mut *self.counts.borrow_mut();
        match event.outcome {
            Outcome::Committed => {
                counts.committed += 1;
                counts.joined += u64::from(event.decided_by != event.id);
                self.reported.borrow_mut().note(self.lane, event);
            }
            Outcome::UserAbort => *counts.aborted.entry("user").or_default() += 1,
            Outcome::Aborted(abort) => *counts.aborted.entry(abort.name()).or_default() += 1,
            Outcome::Failed(_) => *counts.aborted.entry("failed").or_default() += 1,
            Outcome::Unknown => counts.unknown += 1,
        }
        if event.outcome != Outcome::Unknown {
            self.open.borrow_mut().remove(&event.id);
        }
        self.recorder.transaction(event);
    }

    fn wants_committing(&self) -> bool {
        true
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        self.open.borrow_mut().insert(event.id, event.decided_by);
        self.recorder.committing(event);
    }
}
