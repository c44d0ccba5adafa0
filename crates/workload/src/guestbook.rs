//! Several client processes run one workload on one cluster; each comes and leaves when it likes.
//!
//! What they must know of each other is a page: one row of a table of its own, changed by transactions like any other.
//!
//! 1. Who creates that table loads the workload. Everybody else waits until the page says that it is ready; meanwhile its
//!    beat grows, as long as the loading process lives.
//! 2. Who comes is counted before its first transaction; who leaves is counted after its last one, in the transaction
//!    that adds what it has done to the sums. So while as many have left as have come, nothing runs.
//! 3. Who finds that looks at what must hold. It is believed if nobody has come meanwhile, which is read afterwards.
//! 4. A client that was killed has come and never leaves. Where a configuration says who is alive, whoever checks waits until
//!    nothing of the dead is left, and then looks at everything that needs no word of theirs. Otherwise nobody knows whether
//!    they are dead, and the invariants are reported as unknown, and not as broken.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use remora::floors::index::IndexError;
use remora::floors::memory::MemoryError;
use remora::{
    Cluster, Configuration, ConfigurationError, Error, OpenError, Session, Standing, Table, TableOptions,
    TransactionOptions, Worker, WorkerOptions,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::report::Invariant;
use crate::{After, Workload};

/// Words that say what a workload was loaded with.
pub const PARAMETERS: usize = 16;
/// See [`PARAMETERS`]; their meaning is the workload's.
pub type Parameters = [u64; PARAMETERS];

/// Words of a ledger.
pub const LEDGER_WORDS: usize = 4;

/// What a client must remember of its own transactions for the invariants to be checked: sums, so that the words of
/// several ledgers add up to the ledger of all.
pub trait Ledger: Default + Send {
    /// As words.
    fn to_words(&self) -> [i64; LEDGER_WORDS];
    /// From words.
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

const TABLE: &str = "remora.workload";
const KEY: u64 = 0;
const NAME_BYTES: usize = 16;
/// How often the loading client says that it lives, ...
const BEAT: Duration = Duration::from_secs(1);
/// ... and how long the others wait for it to say so.
const PATIENCE: Duration = Duration::from_secs(60);
const _: () = assert!(PATIENCE.as_secs() > 10 * BEAT.as_secs(), "a busy machine is not a dead client");
/// How often the others look.
const LOOK: Duration = Duration::from_millis(50);
/// A client that died while it turned the page holds its lock for good.
const TURN: Duration = Duration::from_secs(10);
/// How long who checks waits for what is left of the dead to be recovered, ...
const QUIET: Duration = Duration::from_secs(30);
/// ... and how often it looks.
const SETTLE: Duration = Duration::from_millis(20);
/// How often a page is turned, or read, again because its client was taken for dead.
const FENCED_MAX: usize = 5;

/// The only row.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Page {
    phase: u64,
    /// Grows while the workload is loaded.
    beat: u64,
    workload: [u8; NAME_BYTES],
    parameters: Parameters,
    /// Clients that have come, ...
    came: u64,
    /// ... and those of them that have left.
    left: u64,
    /// Sums over those that have left.
    ledger: [i64; LEDGER_WORDS],
    /// Their transactions of unknown outcome.
    unknown: u64,
    /// Those that left before all that they logged had been applied.
    unsettled: u64,
    /// Those that came to run no transactions, but bare rounds.
    bare: u64,
    /// Those that have come and not left and that no configuration knows: nobody can tell whether they are dead.
    unwatched: u64,
}

impl remora::Record for Page {
    const SCHEMA: &'static str = "remora workload: phase, beat, name 16 B, 16 parameters, came, left, 4 sums, unknown, \
                                  unsettled, bare, unwatched";
}

const LOADING: u64 = 0;
const READY: u64 = 1;
const FAILED: u64 = 2;

/// A workload that clients share cannot be used.
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
        /// Its name.
        found: String,
        /// This one's.
        wanted: &'static str,
    },
    /// Who loads the workload seems to be dead.
    #[error("the client that loads these memory nodes has not been heard of for {} s: if it was killed, start the nodes anew", .0.as_secs())]
    Silent(Duration),
    /// It has said that it failed.
    #[error("the client that loaded these memory nodes has failed: start them anew")]
    Failed,
}

/// The page of a cluster's workload. Its own cluster may be another connection than the workload's, because the page is
/// changed by transactions also where the workload runs none.
#[derive(Clone, Debug)]
pub struct GuestBook {
    cluster: Cluster,
    table: Table<u64, Page>,
}

/// What a client says when it leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Farewell {
    /// The sum of its coroutines' ledgers.
    pub ledger: [i64; LEDGER_WORDS],
    /// Whether all that it logged has been applied.
    pub settled: bool,
    /// Its transactions of unknown outcome.
    pub unknown: u64,
}

impl Farewell {
    /// Of the coroutines of a client.
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
    /// The book of a cluster; `None` if nothing has been loaded.
    pub fn find(cluster: Cluster) -> Result<Option<GuestBook>, GuestError> {
        match cluster.open_table(TABLE) {
            Ok(table) => Ok(Some(GuestBook { cluster, table })),
            Err(IndexError::Memory(MemoryError::UnknownTable(_))) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The book of a cluster and the workload that is there; loads it if nobody has. `waiting` is called now and then
    /// while somebody else does.
    pub fn open<W: Workload>(
        cluster: Cluster,
        workload: &Cluster,
        load: impl FnOnce() -> Result<W, OpenError>,
        waiting: impl FnMut(Duration),
    ) -> Result<(GuestBook, W), GuestError> {
        let table = match GuestBook::find(cluster.clone())? {
            Some(book) => return Ok((book.clone(), book.wait(workload, waiting)?)),
            None => cluster.create_table(TABLE, TableOptions { shards: Some(1), ..TableOptions::for_rows(1) }),
        };
        match table {
            Ok(table) => {
                let book = GuestBook { cluster, table };
                let loaded = book.load(load)?;
                Ok((book, loaded))
            }
            // Somebody else was faster.
            Err(IndexError::Memory(MemoryError::TableExists(_))) => {
                let book = GuestBook { table: cluster.open_table(TABLE)?, cluster };
                let found = book.wait(workload, waiting)?;
                Ok((book, found))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn load<W: Workload>(&self, load: impl FnOnce() -> Result<W, OpenError>) -> Result<W, GuestError> {
        let mut workload = [0; NAME_BYTES];
        workload[..W::NAME.len()].copy_from_slice(W::NAME.as_bytes());
        let page = Page { phase: LOADING, workload, ..Page::new_zeroed() };
        self.cluster.load(&self.table, [(KEY, page)].into_iter())?;
        let loaded = thread::scope(|scope| {
            let (loading, ended) = mpsc::channel::<()>();
            scope.spawn(move || self.beat(&ended));
            let loaded = load();
            drop(loading);
            loaded
        });
        let outcome = self.turn(|page| match &loaded {
            Ok(workload) => (page.phase, page.parameters) = (READY, workload.parameters()),
            Err(_) => page.phase = FAILED,
        });
        let loaded = loaded?;
        outcome?;
        Ok(loaded)
    }

    /// Says that this process lives, until the other end of the channel is gone.
    fn beat(&self, ended: &mpsc::Receiver<()>) {
        while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
            // Whatever is wrong with the nodes, loading them meets it too.
            let _ = self.turn(|page| page.beat += 1);
        }
    }

    /// The workload that somebody has loaded, or is loading.
    pub fn wait<W: Workload>(&self, workload: &Cluster, mut waiting: impl FnMut(Duration)) -> Result<W, GuestError> {
        let began = Instant::now();
        let (mut heard, mut heard_at) = (None, began);
        let mut worker = self.worker()?;
        loop {
            let page = self.read(&mut worker)?;
            match page.map(|page| page.phase) {
                Some(READY) => break,
                Some(FAILED) => return Err(GuestError::Failed),
                _ => {}
            }
            let beat = page.map(|page| page.beat);
            if beat != heard {
                (heard, heard_at) = (beat, Instant::now());
            } else if heard_at.elapsed() > PATIENCE {
                return Err(GuestError::Silent(PATIENCE));
            }
            waiting(began.elapsed());
            thread::sleep(LOOK);
        }
        let page = self.read(&mut worker)?.ok_or_else(|| self.table.missing(&KEY))?;
        let found = page.workload.split(|byte| *byte == 0).next().unwrap_or_default();
        if found != W::NAME.as_bytes() {
            let found = String::from_utf8_lossy(found).into_owned();
            return Err(GuestError::OtherWorkload { found, wanted: W::NAME });
        }
        Ok(W::open(workload, &page.parameters)?)
    }

    /// Counts a client in, before its first transaction.
    pub fn arrive(&self, workload: &Cluster) -> Result<(), GuestError> {
        let (bare, unwatched) = (u64::from(!workload.protocol().is_serializable()), self.unwatched());
        self.turn(|page| {
            page.came += 1;
            page.bare += bare;
            page.unwatched += unwatched;
        })
    }

    /// Counts a client out, after its last transaction.
    pub fn leave(&self, farewell: &Farewell) -> Result<(), GuestError> {
        let unwatched = self.unwatched();
        self.turn(|page| {
            page.left += 1;
            page.unwatched -= unwatched;
            add(&mut page.ledger, &farewell.ledger);
            page.unknown += farewell.unknown;
            page.unsettled += u64::from(!farewell.settled);
        })
    }

    fn unwatched(&self) -> u64 {
        self.cluster.configuration().is_none().into()
    }

    /// Waits until nothing of dead clients is left; whether nobody of another process is alive then, as far as the
    /// configuration says.
    fn is_quiet(&self, worker: &mut Worker) -> Result<bool, GuestError> {
        let Some(configuration) = self.cluster.configuration().cloned() else { return Ok(false) };
        let began = Instant::now();
        // Beside it, for as long as it takes, the worker's own client finds out who is dead, and recovers them.
        let quiet = worker.block_on(async |session: &mut Session| {
            loop {
                let (others, remains) = remains(&configuration)?;
                if !remains || began.elapsed() > QUIET {
                    return Ok(!others && !remains);
                }
                session.lane().sleep(SETTLE.as_nanos() as u64).await;
            }
        });
        quiet.map_err(|error: ConfigurationError| OpenError::from(MemoryError::Configuration(error.to_string())).into())
    }

    /// Looks at what must hold, if no client is there.
    pub fn check<W: Workload>(&self, cluster: &Cluster, workload: &W) -> Result<Vec<Invariant>, GuestError> {
        let mut worker = self.worker()?;
        let page = self.read(&mut worker)?.ok_or_else(|| self.table.missing(&KEY))?;
        let there = page.came - page.left;
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
        // What the dead did last, nobody has said: of unknown outcome, at least.
        let mut invariants = cluster.in_one_epoch(|| {
            let (settled, unknown) = (page.unsettled == 0, page.unknown + there);
            workload.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
        })?;
        if there > 0 {
            let who = if there == 1 { "a client was".to_owned() } else { format!("{there} clients were") };
            let detail = format!("{who} killed, and nobody knows the last transactions: load with --ledger to know");
            let untold = invariants.iter_mut().filter(|invariant| invariant.holds.is_none());
            untold.for_each(|invariant| invariant.detail.clone_from(&detail));
        }
        let later = self.read(&mut worker)?.ok_or_else(|| self.table.missing(&KEY))?;
        Ok(if later.came == page.came {
            invariants
        } else {
            unknown::<W>("another client came while they were checked")
        })
    }

    fn worker(&self) -> Result<Worker, GuestError> {
        let seed = std::process::id().into();
        Ok(self.cluster.worker(WorkerOptions { coroutines: 1, seed, ..WorkerOptions::default() })?)
    }

    /// The page; `None` between the creation of the table and that of its row.
    fn read(&self, worker: &mut Worker) -> Result<Option<Page>, GuestError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let page = worker.block_on(async |session: &mut Session| {
                session.transact_with(turning(), async |tx| tx.read(&self.table, KEY).await).await
            });
            match page {
                Err(Error::Fenced) if attempts < FENCED_MAX => *worker = self.worker()?,
                page => return Ok(page?),
            }
        }
    }

    fn turn(&self, change: impl Fn(&mut Page)) -> Result<(), GuestError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let changed = self.worker()?.block_on(async |session: &mut Session| {
                let changed = session.transact_with(turning(), async |tx| {
                    change(tx.read_for_update(&self.table, KEY).await?);
                    Ok(())
                });
                changed.await
            });
            match changed {
                // It has not committed; a new client can try again.
                Err(Error::Fenced) if attempts < FENCED_MAX => {}
                changed => return Ok(changed?),
            }
        }
    }
}

/// Whether clients of other processes are alive, as far as is known, and whether something is left of dead ones.
fn remains(configuration: &Arc<dyn Configuration>) -> Result<(bool, bool), ConfigurationError> {
    let own = configuration.process();
    configuration.refresh()?;
    configuration.look(|membership| {
        let left = |standing| matches!(standing, Standing::Suspected { .. } | Standing::Recovered { .. });
        let has_ended = |process: Option<u64>| process.is_some_and(|process| configuration.has_ended(process));
        let others = || membership.processes().filter(|(_, process)| *process != own);
        let unnoticed = others().any(|(_, process)| has_ended(process));
        (others().next().is_some(), unnoticed || membership.clients().any(|(_, standing)| left(standing)))
    })
}

fn turning() -> TransactionOptions {
    TransactionOptions { attempts: u32::MAX, deadline: Some(TURN), ..TransactionOptions::default() }
}

/// A workload's invariants when they cannot be told.
fn unknown<W: Workload>(reason: &str) -> Vec<Invariant> {
    W::INVARIANTS.iter().map(|name| Invariant { name, holds: None, detail: reason.to_owned() }).collect()
}
