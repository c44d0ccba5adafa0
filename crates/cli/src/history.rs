//! The file to which the history of a run is written.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use remora::Cluster;
use remora_check::HistoryFile;

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
    /// Opens the file, and leaves its content as it is until the history begins.
    pub(crate) fn open(path: &Path, durable: bool) -> Result<Arc<HistoryTo>, Failure> {
        let output = OutputFile::open("--history", path)?;
        Ok(Arc::new(HistoryTo { output, durable, begun: OnceLock::new() }))
    }

    /// Makes a history, if there is one, record the writes of other clients that this process puts
    /// back.
    pub(crate) fn told_of_rollbacks(history: Option<&Arc<HistoryTo>>, cluster: Cluster) -> Cluster {
        let Some(history) = history.cloned() else { return cluster };
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
