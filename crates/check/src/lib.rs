//! Recorded histories of transactions, and a checker that decides whether a history is strictly
//! serializable.
//!
//! 1. A workload records one line for each transaction ([`LineBuffer`]).
//! 2. [`HistoryReader`] reads the files of all clients into one [`History`].
//! 3. [`check`] orders the transactions by the versions that they installed and observed, and by
//!    real time. It returns a [`Report`]: clean with counts, or with anomalies that are explained
//!    operation by operation.
//!
//! The commands of Redis' clients that gateways have recorded are judged by [`check_commands`].
//!
//! Operations on one key at a time, outside of transactions, have a checker of their own:
//! [`is_linearizable`].
//!
//! The checker never accuses a correct history. Where a history leaves a choice open, the checker
//! draws only conclusions that hold for every choice.
//!
//! ```
//! use remora_check::{HistoryReader, ReadOptions, check};
//!
//! let lines = concat!(
//!     r#"{"id": 1, "worker": 0, "start_ns": 10, "end_ns": 20, "status": "committed", "#,
//!     r#""reads": [["t", "01", 2]], "writes": [["t", "01", 4, "update"]]}"#,
//!     "\n",
//!     r#"{"id": 2, "worker": 1, "start_ns": 30, "end_ns": 40, "status": "committed", "#,
//!     r#""reads": [["t", "01", 2]], "writes": []}"#,
//!     "\n",
//! );
//! let mut reader = HistoryReader::new(ReadOptions::default());
//! reader.read("history.jsonl", lines.as_bytes())?;
//! let report = check(&reader.finish().history);
//! assert_eq!(report.anomalies[0].class, remora_check::AnomalyClass::StaleRead);
//! # Ok::<(), remora_check::HistoryError>(())
//! ```
#![forbid(unsafe_code)]

mod checker;
mod commands;
mod history;
mod linearizable;
mod recorder;

pub use checker::{Anomaly, AnomalyClass, Counts, Report, check};
pub use commands::{CommandReport, Commands, check_commands};
pub use history::{
    History, HistoryError, HistoryReader, Level, Line, LineBuffer, LineError, LineHeader, LoadedHistory, Observed,
    Outcome, Read, ReadOptions, Rollback, Scan, Status, Transaction, Unended, Write, WriteKind,
};
pub use linearizable::{KeyEvent, KeyVerb, is_linearizable};
pub use recorder::{HistoryFile, Recorder};
