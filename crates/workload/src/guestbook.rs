//! The guest book: what the client processes that run one workload on one cluster must know about
//! each other. A process may come and leave at any time.
//!
//! The guest book is a *page*: one row in a table of its own, which clients change by ordinary
//! transactions.
//!
//! 1. The first client creates that table and the workload's tables together, and loads them
//!    ([`Cluster::create_together`]). Other clients see none of these tables before all are loaded,
//!    and wait until then. If the loading client fails or dies, nothing is left of the tables, and
//!    the next client loads them.
//! 2. A client is counted as come before its first transaction. It is counted as left after its
//!    last one, in the transaction that also adds its results to the sums. So while as many clients
//!    have left as have come, no client runs transactions.
//! 3. A client that finds this checks the invariants, and then reads the counts again. The result
//!    is valid only if no client has come meanwhile.
//! 4. A client that was killed has come and never leaves. If the configuration knows all clients
//!    that have come, a checking client waits until nothing of the dead clients is left. Then it
//!    checks every invariant that needs no farewell of theirs. Otherwise the invariants are
//!    reported as unknown, and not as broken. For this, the page names the configuration of the
//!    clients that have come and not left. It also counts how many of these clients use another
//!    configuration, or none.
//! 5. A copier of a joining replica holds locks of records, and the replica lacks records until it
//!    is copied. So a check reads the tables in an epoch in which no replica joins. The end of a
//!    copy begins the next epoch, which ends all clients: a check that waits for it has no client
//!    of its own meanwhile.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use remora::admin::{Configuration, ConfigurationError, Standing};
use remora::observe::WAITS;
use remora::{
    Cluster, Error, OpenError, OpenErrorKind, Session, Table, TableOptions, TransactionOptions, Worker, WorkerOptions,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::report::Invariant;
use crate::{After, Workload};

/// The number of words that describe how a workload was loaded.
pub const PARAMETERS: usize = 16;
/// The words that describe how a workload was loaded. Their meaning is the workload's own.
pub type Parameters = [u64; PARAMETERS];

/// The number of words of a ledger.
pub const LEDGER_WORDS: usize = 4;

/// A ledger: what a client remembers of its own transactions so that the invariants can be checked.
/// It consists of sums, so the words of several ledgers add up to the ledger of all.
pub trait Ledger: Default + Send {
    /// Returns the ledger as words.
    fn to_words(&self) -> [i64; LEDGER_WORDS];
    /// Makes a ledger from its words.
    fn from_words(words: [i64; LEDGER_WORDS]) -> Self;
}

impl Ledger for i64 {
    fn to_words(&self) -> [i64; LEDGER_WORDS] {
        [*self, 0, 0, 0]
    }

    fn from_words([sum, ..]: [i64; LEDGER_WORDS]) -> i64 {
        sum
    }
}

/// The name of the table in which clients of a run say that they are there.
pub const TABLE: &str = "remora.workload";
const KEY: u64 = 0;
const NAME_BYTES: usize = 16;
/// The time between two looks of a client whether the tables are loaded.
const LOOK: Duration = Duration::from_millis(50);
/// The longest time for a transaction on the page. A client that died during one holds the page's
/// lock for good.
const TURN: Duration = Duration::from_secs(10);
/// How long a checking client waits until dead clients are recovered.
const QUIET: Duration = Duration::from_secs(30);
/// How long it waits if the program should end. That is longer than recovery takes with the default
/// lease.
const QUIET_AT_THE_END: Duration = Duration::from_secs(3);
/// The time between two looks of a waiting client.
const SETTLE: Duration = Duration::from_millis(20);
/// How often a transaction on the page is repeated, because its client was taken for dead.
const FENCED_MAX: usize = 5;

/// The only row of the guest book's table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
struct Page {
    workload: [u8; NAME_BYTES],
    parameters: Parameters,
    /// The number of clients that have come.
    came: u64,
    /// The number of these clients that have left.
    left: u64,
    /// Sums of the ledgers of the clients that have left.
    ledger: [i64; LEDGER_WORDS],
    /// Transactions of unknown outcome of the clients that have left.
    unknown: u64,
    /// The number of clients that left before everything that they logged had been applied.
    unsettled: u64,
    /// The number of clients that came to run bare rounds, and no transactions.
    bare: u64,
    /// The identity of the configuration of the clients that have come and not left; 0 if they have
    /// none.
    configuration: u64,
    /// The number of clients that have come and not left and that this configuration does not know.
    /// It cannot tell whether they are dead.
    unwatched: u64,
}

impl Page {
    /// Makes the page of a workload that has just been loaded.
    fn of<W: Workload>(loaded: &W) -> Page {
        let mut workload = [0; NAME_BYTES];
        workload[..W::NAME.len()].copy_from_slice(W::NAME.as_bytes());
        Page { workload, parameters: loaded.parameters(), ..Page::new_zeroed() }
    }

    /// Whether the page's configuration knows a client that uses `configuration`.
    fn is_watched_by(&self, configuration: u64) -> bool {
        configuration != 0 && configuration == self.configuration
    }
}

/// The reason why a workload that clients share cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// A table could not be created or opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A transaction on the page failed.
    #[error("the clients' own table: {0}")]
    Transaction(#[from] Error),
    /// Another workload has been loaded.
    #[error("these memory nodes hold {found}, not {wanted}: use others, or start them anew")]
    OtherWorkload {
        /// The name of the workload that was loaded.
        found: String,
        /// The name of this workload.
        wanted: &'static str,
    },
    /// The program stopped waiting for this client, which loads the tables.
    #[error("interrupted while client {0} loaded the tables")]
    Interrupted(u32),
    /// The configuration cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// The guest book of a cluster's workload. Its connection to the cluster may be another one than
/// the workload's, because clients change the page by transactions even where the workload runs
/// none.
#[derive(Clone, Debug)]
pub struct GuestBook {
    cluster: Cluster,
    table: Table<u64, Page>,
}

/// The results that a client leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Farewell {
    /// The sum of the ledgers of its coroutines.
    pub ledger: [i64; LEDGER_WORDS],
    /// Whether everything that the client logged has been applied.
    pub settled: bool,
    /// The number of the client's transactions of unknown outcome.
    pub unknown: u64,
}

impl Farewell {
    /// Makes a client's results, from the ledgers of its coroutines.
    #[must_use]
    pub fn of<L: Ledger>(after: &After<'_, L>) -> Farewell {
        let mut ledger = [0; LEDGER_WORDS];
        after.ledgers.iter().for_each(|one| add(&mut ledger, &one.to_words()));
        Farewell { ledger, settled: after.settled, unknown: after.unknown }
    }
}

fn add(sums: &mut [i64; LEDGER_WORDS], more: &[i64; LEDGER_WORDS]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
}

impl GuestBook {
    /// Returns the guest book of a cluster whose workload is loaded, or `None` if no client has
    /// loaded one. While another client loads it, this call waits. From time to time it then asks
    /// `waiting`, with that client's number, whether to go on waiting.
    pub fn find(
        cluster: Cluster,
        mut waiting: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<GuestBook>, GuestError> {
        loop {
            let error = match cluster.open_table(TABLE) {
                Ok(table) => return Ok(Some(GuestBook { cluster, table })),
                Err(error) => error,
            };
            match error.kind() {
                OpenErrorKind::NoTable => return Ok(None),
                OpenErrorKind::Unfinished { client } => {
                    if cluster.is_dead(client) {
                        return Ok(None);
                    }
                    if waiting(client).is_break() {
                        return Err(GuestError::Interrupted(client));
                    }
                    thread::sleep(LOOK);
                }
                _ => return Err(error.into()),
            }
        }
    }

    /// Returns the guest book of a cluster, with its workload. If no client has loaded one, loads
    /// it, through the cluster that `load` gets. While another client loads it, `waiting` is asked
    /// as in [`find`](GuestBook::find).
    pub fn open<W: Workload>(
        cluster: Cluster,
        workload: &Cluster,
        load: impl FnOnce(&Cluster) -> Result<W, OpenError>,
        mut waiting: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(GuestBook, W), GuestError> {
        let mut load = Some(load);
        loop {
            if let Some(book) = GuestBook::find(cluster.clone(), &mut waiting)? {
                let found = book.workload(workload)?;
                return Ok((book, found));
            }
            let loaded = workload.create_together(|creating| {
                let books = creating.with_protocol(cluster.protocol());
                let options = TableOptions::for_rows(1).shards(1);
                let table = books.create_table(TABLE, options)?;
                let Some(load) = load.take() else { unreachable!("it is asked once that the table is created") };
                let loaded = load(creating)?;
                books.load(&table, [(KEY, Page::of(&loaded))])?;
                Ok::<W, GuestError>(loaded)
            });
            match loaded {
                Ok(loaded) => return Ok((GuestBook { table: cluster.open_table(TABLE)?, cluster }, loaded)),
                // Another client was faster.
                Err(GuestError::Open(error))
                    if load.is_some()
                        && matches!(error.kind(), OpenErrorKind::TableExists | OpenErrorKind::Unfinished { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the workload that a client has loaded.
    pub fn workload<W: Workload>(&self, workload: &Cluster) -> Result<W, GuestError> {
        let page = self.read(&mut self.worker()?)?.ok_or_else(|| self.table.missing(KEY))?;
        let found = page.workload.split(|byte| *byte == 0).next().unwrap_or_default();
        if found != W::NAME.as_bytes() {
            let found = String::from_utf8_lossy(found).into_owned();
            return Err(GuestError::OtherWorkload { found, wanted: W::NAME });
        }
        Ok(W::open(workload, &page.parameters)?)
    }

    /// Counts a client in, before its first transaction. Returns whether the client uses the same
    /// configuration as the clients that are present. If not, these clients do not recover each
    /// other.
    pub fn arrive(&self, workload: &Cluster) -> Result<bool, GuestError> {
        let (bare, own) = (u64::from(!workload.protocol().is_serializable()), self.configuration()?);
        self.turn(|page| {
            if page.came == page.left {
                page.configuration = own;
            }
            page.came += 1;
            page.bare += bare;
            page.unwatched += u64::from(!page.is_watched_by(own));
            page.configuration == own
        })
    }

    /// Counts a client out, after its last transaction.
    pub fn leave(&self, farewell: &Farewell) -> Result<(), GuestError> {
        let own = self.configuration()?;
        self.turn(|page| {
            page.left += 1;
            page.unwatched -= u64::from(!page.is_watched_by(own));
            add(&mut page.ledger, &farewell.ledger);
            page.unknown += farewell.unknown;
            page.unsettled += u64::from(!farewell.settled);
        })
    }

    /// Returns the identity of the configuration that this client uses; 0 if it has none.
    fn configuration(&self) -> Result<u64, GuestError> {
        Ok(self.cluster.configuration().map_or(Ok(0), |configuration| configuration.identity())?)
    }

    /// Waits until nothing of dead clients is left, and first logs that it waits. Returns whether
    /// no client of another process is alive then, as far as the configuration knows. It waits for
    /// a shorter time once the program has set the interrupt of the cluster's handle
    /// ([`Cluster::with_interrupt`]).
    fn is_quiet(&self, worker: &mut Worker) -> Result<bool, GuestError> {
        let Some(configuration) = self.cluster.configuration().cloned() else { return Ok(false) };
        let (began, mut is_told) = (Instant::now(), false);
        // Meanwhile the worker's own client finds dead clients and recovers them.
        Ok(worker.block_on(async |session: &mut Session| {
            loop {
                let (others, dead) = remains(&configuration)?;
                if dead.is_empty() || began.elapsed() > patience(&self.cluster) {
                    return Ok::<bool, ConfigurationError>(!others && dead.is_empty());
                }
                if !is_told {
                    tracing::warn!(target: WAITS, clients = ?dead, "waiting until nothing is left of dead clients");
                    is_told = true;
                }
                session.lane().sleep(SETTLE.as_nanos() as u64).await;
            }
        })?)
    }

    /// Waits until no copy of a shard is made. Returns the epoch in which that is so, or `None` if
    /// it takes too long. It waits for as long as [`GuestBook::is_quiet`] does.
    fn until_copied(&self, cluster: &Cluster, began: Instant) -> Result<Option<u64>, GuestError> {
        let mut is_told = false;
        loop {
            cluster.in_one_epoch(|| cluster.refresh())?;
            let catalog = cluster.catalog();
            if catalog.joining().next().is_none() {
                return Ok(Some(catalog.epoch));
            }
            if began.elapsed() > patience(&self.cluster) {
                return Ok(None);
            }
            if !is_told {
                tracing::warn!(target: WAITS, "waiting until copies are made of what was lost");
                is_told = true;
            }
            thread::sleep(SETTLE);
        }
    }

    /// Computes something from the tables in an epoch in which no copy of a shard is made (rule 5).
    /// Returns `None` if there is no such epoch for too long.
    fn when_copied<T>(
        &self,
        cluster: &Cluster,
        mut what: impl FnMut() -> Result<T, Error>,
    ) -> Result<Option<T>, GuestError> {
        let began = Instant::now();
        while let Some(epoch) = self.until_copied(cluster, began)? {
            let found = cluster.in_one_epoch(&mut what)?;
            cluster.in_one_epoch(|| cluster.refresh())?;
            if cluster.catalog().epoch == epoch {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Checks the invariants, if no client is present.
    pub fn check<W: Workload>(&self, cluster: &Cluster, workload: &W) -> Result<Vec<Invariant>, GuestError> {
        let mut worker = self.worker()?;
        let page = self.read(&mut worker)?.ok_or_else(|| self.table.missing(KEY))?;
        let there = page.came - page.left;
        if there > 0 && page.unwatched < there && page.configuration != self.configuration()? {
            let reason = "clients have come and not left that go by another configuration than this one: name theirs \
                          (--configuration)";
            return Ok(unknown::<W>(reason));
        }
        if there > 0 && (page.unwatched > 0 || !self.is_quiet(&mut worker)?) {
            let (who, them) =
                if there == 1 { ("another client has", "it is") } else { ("other clients have", "they are") };
            let count = if there == 1 { String::new() } else { format!("{there} ") };
            return Ok(unknown::<W>(&format!("{count}{who} come and not left: {them} at work, or killed")));
        }
        if page.bare > 0 {
            return Ok(unknown::<W>("clients have run here without transactions"));
        }
        let ledgers = [W::Ledger::from_words(page.ledger)];
        // The dead clients have not reported their last transactions. So these count as at least of
        // unknown outcome.
        drop(worker);
        let checked = self.when_copied(cluster, || {
            let (settled, unknown) = (page.unsettled == 0, page.unknown + there);
            workload.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
        })?;
        let Some(mut invariants) = checked else {
            return Ok(unknown::<W>("copies of shards are being made, and records are locked meanwhile"));
        };
        if there > 0 {
            let who = if there == 1 { "a client was".to_owned() } else { format!("{there} clients were") };
            let detail = format!("{who} killed, and nobody knows the last transactions: load with --ledger to know");
            let untold = invariants.iter_mut().filter(|invariant| invariant.holds.is_none());
            untold.for_each(|invariant| invariant.detail.clone_from(&detail));
        }
        let later = self.read(&mut self.worker()?)?.ok_or_else(|| self.table.missing(KEY))?;
        Ok(if later.came == page.came {
            invariants
        } else {
            unknown::<W>("another client came while they were checked")
        })
    }

    fn worker(&self) -> Result<Worker, GuestError> {
        let seed = std::process::id().into();
        Ok(self.cluster.worker(WorkerOptions::default().coroutines(1).seed(seed))?)
    }

    /// Reads the page. Returns `None` if the table has lost it.
    fn read(&self, worker: &mut Worker) -> Result<Option<Page>, GuestError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let page = worker.block_on(async |session: &mut Session| {
                session.transact_with(turning(), async |tx| self.table.get(tx, KEY).await).await
            });
            match page {
                Err(Error::Fenced) if attempts < FENCED_MAX => *worker = self.worker()?,
                page => return Ok(page?),
            }
        }
    }

    fn turn<T>(&self, change: impl Fn(&mut Page) -> T) -> Result<T, GuestError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let changed = self.worker()?.block_on(async |session: &mut Session| {
                let changed =
                    session.transact_with(turning(), async |tx| Ok(change(&mut *self.table.get_mut(tx, KEY).await?)));
                changed.await
            });
            match changed {
                // The transaction has not committed. A new client can repeat it.
                Err(Error::Fenced) if attempts < FENCED_MAX => {}
                changed => return Ok(changed?),
            }
        }
    }
}

/// Returns whether clients of other processes are alive, as far as is known, and the dead clients
/// of which something is left.
fn remains(configuration: &Arc<dyn Configuration>) -> Result<(bool, Vec<u32>), ConfigurationError> {
    let own = configuration.process();
    configuration.refresh()?;
    configuration.look(|membership| {
        let left = |standing| matches!(standing, Standing::Suspected { .. } | Standing::Recovered { .. });
        let has_ended = |process: Option<u64>| process.is_some_and(|process| configuration.has_ended(process));
        let others = || membership.processes().filter(|(_, process)| *process != own);
        let unnoticed = others().filter(|(_, process)| has_ended(*process)).map(|(client, _)| client);
        let recovering = membership.clients().filter(|(_, standing)| left(*standing)).map(|(client, _)| client);
        (others().next().is_some(), unnoticed.chain(recovering).collect())
    })
}

/// Returns how long a check waits for something that ends by itself.
fn patience(cluster: &Cluster) -> Duration {
    if cluster.is_interrupted() { QUIET_AT_THE_END } else { QUIET }
}

fn turning() -> TransactionOptions {
    TransactionOptions::default().attempts(u32::MAX).deadline(TURN)
}

/// Returns a workload's invariants when they cannot be checked.
pub(crate) fn unknown<W: Workload>(reason: &str) -> Vec<Invariant> {
    W::INVARIANTS.iter().map(|name| Invariant { name, holds: None, detail: reason.to_owned() }).collect()
}
