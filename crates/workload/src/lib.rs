//! Workloads, and what drives and measures them.
//!
//! A [`Workload`] is what transactions to run and what must hold after them; the [`driver`] runs one on threads and
//! coroutines and measures; a [`Report`] says what came out. [`smallbank`] is the first workload; [`micro`] runs bare
//! rounds, to tell what the fabric itself costs.
//!
//! Nothing here prints, and nothing knows the command line: that is the `remora` binary's.
#![forbid(unsafe_code)]

pub mod driver;
mod machine;
pub mod micro;
mod report;
pub mod smallbank;
mod statistics;

use std::future::Future;

use remora::{Cluster, Error, OpenError, Session};
pub use remora_fabric::Prng;

pub use machine::{Machine, available_bytes};
pub use report::{CpuSeconds, Invariant, LatencyUs, PerTransaction, PhasesUs, Report, TypeReport};
pub use statistics::{Statistics, TypeStatistics};

/// A mix of transactions over tables that are there.
pub trait Workload: Sync {
    /// What a coroutine must remember of its own transactions for the invariants to be checked.
    type Ledger: Default + Send;

    /// Its name in reports.
    const NAME: &'static str;

    /// The names of its types of transactions; the type's place here is the label of its transactions.
    const TYPES: &'static [&'static str];

    /// Reads one of so many parts of the tables once, so that the locations of its records are cached.
    fn warm(&self, session: &mut Session, part: u64, parts: u64) -> impl Future<Output = Result<(), Error>>;

    /// Runs one transaction of the mix until it has committed or been given up, and keeps the ledger.
    fn transact(
        &self,
        session: &mut Session,
        random: &mut Prng,
        ledger: &mut Self::Ledger,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Checks what must hold when all clients have ended; `settled` says whether all that they logged has been applied.
    fn invariants(&self, cluster: &Cluster, after: After<'_, Self::Ledger>) -> Result<Vec<Invariant>, Error>;
}

/// What is known when a run has ended.
#[derive(Clone, Copy, Debug)]
pub struct After<'a, Ledger> {
    /// Every coroutine's ledger.
    pub ledgers: &'a [Ledger],
    /// Whether everything that was logged has been applied at every memory node.
    pub settled: bool,
    /// Transactions whose outcome nobody knows.
    pub unknown: u64,
}

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A worker could not be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A transaction failed for a reason that is not the workload's.
    #[error(transparent)]
    Transaction(#[from] Error),
    /// The system gives no more threads.
    #[error("the system gives no thread: {0}")]
    Thread(std::io::Error),
}
