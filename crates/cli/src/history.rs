//! The file that a run's history goes to.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use remora::Cluster;
use remora_check::HistoryFile;

use crate::Failure;
use crate::output::OutputFile;

/// The history of a run: a file that is left as it is until every worker is ready, or until there
/// is something to tell before.
#[derive(Debug)]
pub(crate) struct HistoryTo {
    output: OutputFile,
    durable: bool,
    begun: OnceLock<Result<Arc<HistoryFile>, Failure>>,
}

impl HistoryTo {
    /// As it was until it is begun.
    pub(crate) fn open(path: &Path, durable: bool) -> Result<Arc<HistoryTo>, Failure> {
        let output = OutputFile::open("--history", path)?;
        Ok(Arc::new(HistoryTo { output, durable, begun: OnceLock::new() }))
    }

    /// Has a history, if there is one, be told of what this process puts back that others had
    /// written.
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

    /// Whether it could not be begun, or not be written on.
    pub(crate) fn is_cut(&self) -> bool {
        self.begun.get().is_some_and(|begun| begun.as_ref().map_or(true, |file| file.has_failed()))
    }

    /// Ends it, if it was begun, when all is recorded. What went wrong, if anything has.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        match self.begun.get() {
            Some(_) => self.begin()?.finish().map_err(|error| self.output.failure(error)),
            None => Ok(()),
        }
    }
}
