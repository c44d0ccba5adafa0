//! Benchmark workloads, and the code that runs and measures them.
//!
//! 1. A [`Workload`] says which transactions to run, and which invariants must hold after them.
//! 2. The [`driver`] runs a workload on threads and coroutines, and measures it.
//! 3. A [`Report`] has the results.
//!
//! The workloads are [`smallbank`], [`tatp`], [`tpcc`], [`tpce`] and [`ycsb`]. [`micro`] runs bare
//! rounds, which shows the cost of the fabric itself. When several processes run one workload, they
//! share a [`guestbook::GuestBook`].
//!
//! No function here prints, or knows of the command line. That is the task of the `remora` binary.
#![forbid(unsafe_code)]

pub mod driver;
mod gaps;
pub mod guestbook;
mod invariants;
pub mod latches;
mod machine;
pub mod micro;
mod report;
mod rows;
pub mod scans;
pub mod simulated;
mod sizing;
pub mod smallbank;
mod statistics;
pub mod tatp;
pub mod tpcc;
pub mod tpce;
pub mod ycsb;

use std::future::Future;
use std::ops::{Bound, RangeInclusive};

use guestbook::{GuestError, Ledger, Parameters};
use remora::{Cluster, Error, Key, OpenError, Ordered, Record, Session, Table, Transaction, TransactionOptions};
pub use remora_fabric::Prng;

pub use machine::Machine;
pub use report::{
    CpuSeconds, Invariant, LatencyUs, PerTransaction, PhasesUs, Report, ScanReport, SimulatedIn, TypeReport,
};
pub use scans::{Scanned, Scanner, Scans};
pub use sizing::Setting;
pub use statistics::{Statistics, TypeStatistics};

/// A mix of transactions over tables that have been loaded.
pub trait Workload: Sync + Sized {
    /// What a coroutine remembers of its own transactions so that the invariants can be checked.
    type Ledger: Ledger;

    /// The workload's name in reports.
    const NAME: &'static str;

    /// The names of its types of transactions. The index of a type is the label of its
    /// transactions.
    const TYPES: &'static [&'static str];

    /// The names of its invariants, in the order of [`Workload::invariants`].
    const INVARIANTS: &'static [&'static str];

    /// Opens the tables that another client has loaded.
    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<Self, OpenError>;

    /// Returns what other clients need to open the tables.
    fn parameters(&self) -> Parameters;

    /// Reads part `part` of `parts` of the tables once, so that the locations of its records are in
    /// the cache.
    fn warm(&self, session: &mut Session, part: u64, parts: u64) -> impl Future<Output = Result<(), Error>>;

    /// Runs one transaction of the mix until it has committed or been given up, and updates the
    /// ledger.
    fn transact(
        &self,
        session: &mut Session,
        random: &mut Prng,
        ledger: &mut Self::Ledger,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Returns when [`Workload::scan`] runs beside the transactions: never, unless the workload has
    /// scans.
    fn scanner(&self) -> Scanner {
        Scanner::Never
    }

    /// Returns the number of rows that a complete scan reads.
    fn scanned_rows(&self) -> u64 {
        0
    }

    /// Scans a table once, beside the transactions of the mix and on a worker of its own. Updates
    /// what has been read, and the ledger. Returns whether the result is of one state of the table.
    /// When `goes_on` returns false, the scan ends with an error of the workload's own.
    fn scan(
        &self,
        session: &mut Session,
        scans: &mut Scans,
        ledger: &mut Self::Ledger,
        goes_on: &dyn Fn() -> bool,
    ) -> impl Future<Output = Result<bool, Error>> {
        _ = (session, scans, ledger, goes_on);
        async { Ok(true) }
    }

    /// Checks the invariants after all clients have ended. `after` has the ledgers, and says
    /// whether everything that was logged has been applied.
    fn invariants(&self, cluster: &Cluster, after: After<'_, Self::Ledger>) -> Result<Vec<Invariant>, Error>;
}

/// What is known after a run has ended.
#[derive(Clone, Copy, Debug)]
pub struct After<'a, Ledger> {
    /// The ledgers of all coroutines.
    pub ledgers: &'a [Ledger],
    /// Whether everything that was logged has been applied at every memory node.
    pub settled: bool,
    /// The number of transactions of unknown outcome.
    pub unknown: u64,
}

/// The reason why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A worker could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A transaction failed for a reason that is not the workload's.
    #[error(transparent)]
    Transaction(#[from] Error),
    /// The guest book of the cluster could not be read or written.
    #[error(transparent)]
    Guests(#[from] GuestError),
    /// The system gives no more threads.
    #[error("the system gives no thread: {0}")]
    Thread(std::io::Error),
}

/// Reads records to cache their locations. It ignores locks, which a dead client may hold.
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

/// Reads records of a hash table to cache their locations, a few at a time.
pub(crate) async fn touch<K: Key + Clone, V: Record>(
    session: &mut Session,
    table: &Table<K, V>,
    mut keys: impl Iterator<Item = K>,
) -> Result<(), Error> {
    const BATCH: usize = 64;
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        batch.clear();
        batch.extend(keys.by_ref().take(BATCH));
        if batch.is_empty() {
            return Ok(());
        }
        let read = glance(session, async |tx| {
            for key in &batch {
                tx.want(table, *key);
            }
            tx.fetch().await
        });
        read.await?;
    }
}

/// Reads a range of an ordered table to cache the locations of its records and leaves. It reads at
/// most `page` keys at a time, because the range may have many.
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

/// Draws one of several values, each with its share in percent.
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
