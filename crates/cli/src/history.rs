//! The file to which the history of a run is written.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use remora::Cluster;
use remora::observe::{Observer, TransactionEvent};
use remora_check::{HistoryFile, Recorder};
use remora_workload::guestbook::TABLE;

use crate::Failure;
use crate::output::OutputFile;

/// The history of a run. The file stays as it is until every worker is ready, or until there is
/// something to record before that.
#[derive(Debug)]
pub(crate) struct HistoryTo {
    output: OutputFile,
    durable: bool,
    begun: OnceLock<Result<Arc<HistoryFile>, Failure>>,
}

impl HistoryTo {
    /// Opens the file that an option names, and leaves its content as it is until the history
    /// begins.
    pub(crate) fn open(option: &'static str, path: &Path, durable: bool) -> Result<Arc<HistoryTo>, Failure> {
        let output = OutputFile::open(option, path)?;
        Ok(Arc::new(HistoryTo { output, durable, begun: OnceLock::new() }))
    }

    /// Makes a history, if there is one, record what this process does beside the transactions of
    /// its workers: the writes of other clients that it puts back, and the rows that it moves when
    /// a table grows.
    pub(crate) fn told_of_all(history: Option<&Arc<HistoryTo>>, cluster: Cluster) -> Cluster {
        let Some(history) = history.cloned() else { return cluster };
        let of_movers = history.clone();
        let cluster = cluster
            .with_movers_observed(Arc::new(move || Box::new(OfMovers(of_movers.file().map(|file| file.recorder())))));
        cluster.with_rollbacks_told(Arc::new(move |rollback| {
            if let Some(file) = history.file() {
                file.rollback(rollback);
            }
        }))
    }

    /// Empties the file, and begins the history.
    pub(crate) fn begin(&self) -> Result<&Arc<HistoryFile>, Failure> {
        let begin = |file| HistoryFile::in_file(file, self.durable).map_err(|error| self.output.failure(error));
        let begun = self.begun.get_or_init(|| self.output.begin().and_then(begin));
        begun.as_ref().map_err(|Failure(why)| Failure(why.clone()))
    }

    pub(crate) fn file(&self) -> Option<&Arc<HistoryFile>> {
        self.begin().ok()
    }

    /// Returns whether the history could not be begun, or could not be written to its end.
    pub(crate) fn is_cut(&self) -> bool {
        self.begun.get().is_some_and(|begun| begun.as_ref().map_or(true, |file| file.has_failed()))
    }

    /// Ends the history, if it was begun, after everything is recorded. Fails if it could not be
    /// written.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        match self.begun.get() {
            Some(_) => self.begin()?.finish().map_err(|error| self.output.failure(error)),
            None => Ok(()),
        }
    }
}

/// Records the transactions that move rows, if there is a history, but for rows of the table in
/// which clients say that they are there: no history has the other transactions of that table.
struct OfMovers(Option<Recorder>);

impl OfMovers {
    fn recorder(&mut self, event: &TransactionEvent<'_>) -> Option<&mut Recorder> {
        let is_recorded = event.accesses().all(|access| access.table.name() != TABLE);
        self.0.as_mut().filter(|_| is_recorded)
    }
}

impl Observer for OfMovers {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if let Some(recorder) = self.recorder(event) {
            recorder.transaction(event);
        }
    }

    fn wants_committing(&self) -> bool {
        self.0.as_ref().is_some_and(Observer::wants_committing)
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        if let Some(recorder) = self.recorder(event) {
            recorder.committing(event);
        }
    }
}
