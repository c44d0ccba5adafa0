//! Workloads, and what drives and measures them.
//!
//! A [`Workload`] is what transactions to run and what must hold after them; the [`driver`] runs
//! one on threads and coroutines and measures; a [`Report`] says what came out. [`smallbank`],
//! [`tatp`], [`tpcc`] and [`ycsb`] are workloads; [`micro`] runs bare rounds, to tell what the
//! fabric itself costs. Where several processes run one workload, a [`guestbook::GuestBook`] is
//! what they know of each other.
//!
//! Nothing here prints, and nothing knows the command line: that is the `remora` binary's.
#![forbid(unsafe_code)]

pub mod driver;
mod gaps;
pub mod guestbook;
mod invariants;
mod machine;
pub mod micro;
mod report;
mod rows;
pub mod simulated;
mod sizing;
pub mod smallbank;
mod statistics;
pub mod tatp;
pub mod tpcc;
pub mod ycsb;

use std::future::Future;
use std::ops::{Bound, RangeInclusive};

use guestbook::{GuestError, Ledger, Parameters};
use remora::{Cluster, Error, Key, OpenError, Ordered, Record, Session, Transaction, TransactionOptions};
pub use remora_fabric::Prng;

pub use machine::Machine;
pub use report::{CpuSeconds, Invariant, LatencyUs, PerTransaction, PhasesUs, Report, SimulatedIn, TypeReport};
pub use sizing::Setting;
pub use statistics::{Statistics, TypeStatistics};

/// A mix of transactions over tables that are there.
pub trait Workload: Sync + Sized {
    /// What a coroutine must remember of its own transactions for the invariants to be checked.
    type Ledger: Ledger;

    /// The workload's name in reports.
    const NAME: &'static str;

    /// The names of its types of transactions; the type's place here is the label of its
    /// transactions.
    const TYPES: &'static [&'static str];

    /// The names of its invariants, in the order of [`Workload::invariants`].
    const INVARIANTS: &'static [&'static str];

    /// The tables as another client has loaded them.
    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<Self, OpenError>;

    /// What other clients need to open the tables.
    fn parameters(&self) -> Parameters;

    /// Reads part `part` of `parts` of the tables once, so that the locations of its records are
    /// cached.
    fn warm(&self, session: &mut Session, part: u64, parts: u64) -> impl Future<Output = Result<(), Error>>;

    /// Runs one transaction of the mix until it has committed or been given up, and keeps the
    /// ledger.
    fn transact(
        &self,
        session: &mut Session,
        random: &mut Prng,
        ledger: &mut Self::Ledger,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Checks what must hold when all clients have ended; `settled` says whether all that they
    /// logged has been applied.
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
    /// What the clients of a cluster know of each other could not be read or written.
    #[error(transparent)]
    Guests(#[from] GuestError),
    /// The system gives no more threads.
    #[error("the system gives no thread: {0}")]
    Thread(std::io::Error),
}

/// Reads records for their locations' sake: it does not matter whether they are locked, by a client
/// that is gone perhaps.
pub(crate) async fn glance(
    session: &mut Session,
    body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let once = TransactionOptions::default().attempts(1);
    match session.transact_with(once, body).await {
        Err(Error::Aborted(_)) => Ok(()),
        read => read,
    }
}

/// Reads a range of an ordered table for the locations of its records and leaves. It reads at most
/// `page` keys at a time, since there may be many.
pub(crate) async fn glance_range<K: Key, V: Record>(
    session: &mut Session,
    table: &Ordered<K, V>,
    range: RangeInclusive<K>,
    page: usize,
) -> Result<(), Error> {
    let (from, to) = range.into_inner();
    let mut next = Some(Bound::Included(from));
    while let Some(from) = next.take() {
        let read = glance(session, async |tx| {
            let found = table.scan(tx, (from, Bound::Included(to)), page).await?;
            next = found.get(page - 1).map(|(last, _)| Bound::Excluded(*last));
            Ok(())
        });
        read.await?;
    }
    Ok(())
}

/// One of several, drawn by its share in percent.
pub(crate) fn draw_from<T: Copy>(mix: &[(T, u64)], random: &mut Prng) -> T {
    let mut drawn = random.below(100);
    for (one, percent) in mix {
        if drawn < *percent {
            return *one;
        }
        drawn -= percent;
    }
    unreachable!("the shares add up to 100")
}
