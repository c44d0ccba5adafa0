//! Workers, the way to run transactions for a program that gives its threads to the library.
//! [`Worker`] runs coroutines on its thread, and each coroutine has a [`Session`] for its
//! transactions.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_fabric::limits::LANES_MAX;
use remora_fabric::{Lane, Nanos, NodeId, Outlined, catch_panic, outline};
use remora_node::limits::{RING_BYTES, RING_BYTES_MAX};
use remora_node::{MemoryError, Room, Stage, TableId};
use remora_record::TransactionId;
use remora_txn::recovery::Verdict;
use remora_txn::{
    Abort, Decision, Limit, Observer, Protocol, Settled, Snapshot as Past, Stop, TransactOptions, Trial, Tried, Tx,
};

use crate::client::{Client, Life, Manner};
use crate::cluster::{Cluster, Growing, LEASE};
use crate::error::{Error, Named, OpenError};
use crate::keeper::quiet;
use crate::snapshot::{LastOpened, Snapshot};
use crate::table::{ClusterNumber, Handle};
use crate::transaction::{Begun, Transaction};
use crate::usage::{InUse, Usage};
use remora_fabric::setters;

/// Settings of a worker: its coroutines, its clients, and the seed of its random numbers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// Number of coroutines that share the thread, from 1 to 63. Each has at most one transaction
    /// in flight.
    pub coroutines: usize,
    /// Number of client incarnations over which the coroutines are spread, each with its own
    /// connection. Use 1, except in tests on one thread: the rounds of one connection are ordered,
    /// and the rounds of several connections are not.
    pub clients: usize,
    /// Bytes that each client takes at each memory node to keep what its transactions have
    /// overwritten, so that open snapshots can read it ([`Snapshot`](crate::Snapshot)): at most 32
    /// MiB. Only clusters with a protocol that has snapshots use it. The writers of a
    /// table decide with it how long the table's past can be read.
    pub archive: u64,
    /// Bytes of log that each coroutine takes at each memory node: 64 KiB, if not more, and at most
    /// 1 MiB. They are rounded up to a power of two. The changes of one transaction can take half
    /// of them. What is beyond 64 KiB is written to only by transactions with large changes. A
    /// client gets less if its logs would take more than a sixteenth of a memory node, or half of
    /// what is free there.
    pub log_bytes: u64,
    /// Seed of the coroutines' random streams.
    pub seed: u64,
    /// Whether a coroutine lets the others run after every round, even if the round completes at
    /// once.
    pub yield_after_rounds: bool,
    /// Whether the client connects again, as another incarnation, if the cluster took it for dead:
    /// its thread had no time for longer than its lease. Transactions that have not committed are
    /// tried again then, and do not fail with [`Error::Fenced`]. The cluster must have leases.
    pub reconnects: bool,
}

setters!(WorkerOptions {
    coroutines: usize,
    clients: usize,
    archive: u64,
    log_bytes: u64,
    seed: u64,
    yield_after_rounds: bool,
    reconnects: bool,
});

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            coroutines: 8,
            clients: 1,
            archive: ARCHIVE_BYTES,
            log_bytes: RING_BYTES,
            seed: 1,
            yield_after_rounds: false,
            reconnects: false,
        }
    }
}

impl WorkerOptions {
    /// Fails if a worker cannot have this number of coroutines and clients, or logs of this size.
    /// The lanes of a worker are limited, and each client needs one lane for its keeper.
    pub(crate) fn check(&self) -> Result<(), MemoryError> {
        let WorkerOptions { coroutines, clients, .. } = *self;
        if coroutines == 0 || clients == 0 {
            return Err(MemoryError::empty("the number of coroutines or clients"));
        }
        let limit = |what, value: usize, max: usize| MemoryError::limit(what, value as u64, max as u64);
        if self.log_bytes > RING_BYTES_MAX {
            return Err(MemoryError::limit("bytes of log of a coroutine", self.log_bytes, RING_BYTES_MAX));
        }
        match LANES_MAX.checked_sub(clients) {
            None | Some(0) => Err(limit("clients of a worker", clients, LANES_MAX - 1)),
            Some(max) if coroutines > max => Err(limit("coroutines of a worker", coroutines, max)),
            Some(_) => Ok(()),
        }
    }
}

/// Settings of one transaction: how often and for how long it is tried.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TransactionOptions {
    /// A number for the transaction's type, for observers.
    pub label: u16,
    /// Largest number of attempts while the transaction aborts. By default it is tried as often as
    /// its patience allows.
    pub attempts: u32,
    /// How long the transaction is tried while it aborts. The time counts from its first abort or,
    /// through a [`Db`](crate::Db), from the call. If this is `None`, the transaction is tried
    /// until the deadline. Without a deadline it is tried for twice the longest lease of any
    /// client, because a client that has died holds its locks for about one lease.
    pub patience: Option<Duration>,
    /// When to give up. The time counts from the beginning of the first attempt or, through a
    /// [`Db`](crate::Db), from the call.
    pub deadline: Option<Duration>,
    /// Whether the transaction only reads, in a snapshot ([`Session::snapshot`]).
    pub snapshot: bool,
    /// The open snapshot that the transaction reads, if it reads one ([`Session::snapshot_at`]).
    pub at: Option<Snapshot>,
    /// Whether the transaction only reads. If it changes anything, it fails with
    /// [`Misuse::ReadOnly`](crate::Misuse::ReadOnly). If the session has strict snapshots
    /// ([`Session::has_strict_snapshots`]), the transaction reads one, and is not validated.
    pub only_reads: bool,
}

setters!(TransactionOptions {
    label: u16,
    attempts: u32,
    patience: impl Into<Option<Duration>>,
    deadline: impl Into<Option<Duration>>,
    snapshot: bool,
    at: impl Into<Option<Snapshot>>,
    only_reads: bool,
});

impl Default for TransactionOptions {
    fn default() -> TransactionOptions {
        TransactionOptions {
            label: 0,
            attempts: u32::MAX,
            patience: None,
            deadline: None,
            snapshot: false,
            at: None,
            only_reads: false,
        }
    }
}

/// Bytes that a client takes at each memory node, by default, to keep what it overwrites.
const ARCHIVE_BYTES: u64 = 256 << 10;

/// Pause between two checks whether another epoch has begun, in nanoseconds.
const EPOCH_PAUSE_NS: Nanos = 50_000;

/// Pause between two looks for the outcome of a transaction, in nanoseconds.
const RESOLVE_PAUSE_NS: Nanos = 100_000;

/// Pause between two checks whether a table that was full has grown, or whether a client that has
/// rested has heard what has changed, in nanoseconds.
const GROWTH_PAUSE_NS: Nanos = 200_000;

/// How long a coroutine that ends waits for the rounds that it has posted, in nanoseconds, if it
/// has no lease. With a lease, it waits for the lease's length.
const QUIET_NS: Nanos = 100_000_000;
/// How long a worker that ends waits for the memory nodes to apply what it has logged, in
/// nanoseconds.
const DRAIN_NS: Nanos = 5_000_000_000;

/// A thread's place to run transactions. It has one connection to the memory nodes and several
/// coroutines, each with a [`Session`]. While one coroutine waits for memory nodes, the others run.
/// A worker is not `Send`: it runs on the thread that made it.
///
/// Dropping a worker waits up to 5 seconds until the memory nodes have applied its logs, and then
/// gives its client slot back. If that fails, or if the thread panics, the slot stays, and another
/// client recovers the worker's client as soon as its lease has expired.
#[derive(Debug)]
pub struct Worker {
    worker: remora_fabric::Worker,
    sessions: Vec<Session>,
    clients: Vec<Rc<Client>>,
    _cluster: Cluster,
}

/// Number of transactions that a coroutine runs before the others have a turn, if the client has a
/// lease. On shared memory a round completes at once. So without this limit the coroutine might
/// never wait, and the lease would not be renewed.
const TURN: u32 = 64;

impl Cluster {
    /// Makes a worker of this thread, and connects it to the memory nodes. Fails if the options
    /// exceed a limit, if the fabric cannot do what the protocol needs, or if the memory nodes or
    /// the configuration cannot be reached.
    pub fn worker(&self, options: WorkerOptions) -> Result<Worker, OpenError> {
        Worker::new(self, options)
    }
}

impl Worker {
    fn new(cluster: &Cluster, options: WorkerOptions) -> Result<Worker, OpenError> {
        options.check()?;
        if cluster.protocol().needs_atomic_writes() && !cluster.fabric().capabilities().atomic_writes {
            return Err(MemoryError::NeedsAtomicWrites(cluster.protocol().name()).into());
        }
        let worker = remora_fabric::Worker::new();
        let mut built = Worker {
            worker,
            sessions: Vec::with_capacity(options.coroutines),
            clients: Vec::with_capacity(options.clients),
            _cluster: cluster.clone(),
        };
        for index in 0..options.clients {
            let coroutines =
                options.coroutines / options.clients + usize::from(index < options.coroutines % options.clients);
            built.add_client(cluster, options, coroutines)?;
        }
        Ok(built)
    }

    fn add_client(&mut self, cluster: &Cluster, options: WorkerOptions, coroutines: usize) -> Result<(), OpenError> {
        let first = self.sessions.len();
        let (worker, mut lanes) = (self.worker.clone(), Vec::with_capacity(coroutines));
        let mut admin = |endpoint: &Rc<_>| {
            lanes.extend((first..first + coroutines).map(|session| {
                let seed = options.seed.wrapping_mul(1009).wrapping_add(session as u64);
                worker.lane(endpoint, seed).expect("lanes were counted")
            }));
            worker.lane(endpoint, 0).expect("lanes were counted")
        };
        let archive = if cluster.protocol().has_open_snapshots() { options.archive } else { 0 };
        let room = Room { lanes: coroutines, archive, ring: options.log_bytes };
        let manner = Manner { room, yields: options.yield_after_rounds, reconnects: options.reconnects };
        let client = Client::connect(cluster, &self.worker, manner, &mut admin)?;
        let (life, client) = (client.life(), Rc::new(client));
        for (ring, lane) in lanes.into_iter().enumerate() {
            let usage = Usage::of(&lane);
            let inner = client.session(&life, lane, ring);
            life.note_session(&usage);
            let lease = cluster.lease_ns().unwrap_or(0);
            self.sessions.push(Session {
                inner,
                client: client.clone(),
                life: life.clone(),
                ring,
                usage,
                until_turn: TURN,
                patience: patience_with(lease),
                waited: 0,
                last_opened: None,
            });
        }
        self.clients.push(client);
        Ok(())
    }

    /// Returns the worker's client incarnations. They are the owners in the ids of its
    /// transactions, and change when a memory node is lost.
    pub fn incarnations(&self) -> impl Iterator<Item = u32> + '_ {
        self.clients.iter().map(|client| client.life().registration.incarnation)
    }

    /// Returns a function that reads the worker's client incarnations while the worker runs.
    pub fn lives(&self) -> impl Fn() -> Vec<u32> + use<> {
        let clients = self.clients.clone();
        move || clients.iter().map(|client| client.life().registration.incarnation).collect()
    }

    /// Returns the worker's sessions, so that a program can set observers.
    pub fn sessions(&mut self) -> &mut [Session] {
        &mut self.sessions
    }

    /// Runs a body on every coroutine, with the coroutine's number and session, until all bodies
    /// have returned. Returns what they have returned, by the coroutine's number.
    pub fn run<T>(&mut self, body: impl AsyncFn(usize, &mut Session) -> T) -> Vec<T> {
        self.start(&body).to_end()
    }

    /// Begins a body on every coroutine, for a simulator, which drives the worker turn by turn.
    pub fn start<'w, T: 'w, B: AsyncFn(usize, &mut Session) -> T>(
        &'w mut self,
        body: &'w B,
    ) -> remora_fabric::Run<'w, T> {
        let Worker { worker, sessions, clients, .. } = self;
        let shift = Rc::new(Shift::begin(clients, sessions.len()));
        let tasks = sessions.iter_mut().enumerate().map(|(index, session)| {
            let (lane, shift) = (session.inner.lane().id(), shift.clone());
            (lane, async move {
                let result = body(index, &mut *session).await;
                shift.end_of(session).await;
                result
            })
        });
        let mut run = worker.start(tasks);
        attend(&mut run, clients);
        run
    }

    /// Ends the worker as a crash of its client would, for tests: it waits for nothing, and its
    /// slot, its locks and its logs stay.
    pub fn abandon(mut self) {
        self.let_leases_run_out();
        self.clients.clear();
        self.sessions.clear();
    }

    fn let_leases_run_out(&self) {
        for life in self.clients.iter().map(|client| client.life()) {
            life.keeper.iter().for_each(|keeper| keeper.abandon(&life.admin));
        }
    }

    /// Takes a client for dead and recovers it at once, instead of waiting until its lease has
    /// expired. This also works for a client without a lease. The worker revokes the client's
    /// access first. If the client is alive, its transactions fail with [`Error::Fenced`], and its
    /// program can connect again. Does nothing if the client has left, or if another client has
    /// recovered it. Fails if the recovery fails, for example because a memory node is unreachable.
    pub fn recover(&mut self, client: u32) -> Result<(), OpenError> {
        let Some(life) = self.clients.first().map(|client| client.life()) else { return Ok(()) };
        let Life { admin, keeper: Some(keeper), .. } = &*life else { return Ok(()) };
        let recovery = async {
            keeper.recover(admin, client).await.map_err(|error| match error {
                crate::keeper::RecoveryError::Memory(error) => error,
                error => MemoryError::Configuration(error.to_string()),
            })
        };
        Ok(self.worker.run([(admin.id(), recovery)]).pop().unwrap_or(Ok(()))?)
    }

    /// Runs one body on the first coroutine, blocks the thread until the body has returned, and
    /// returns its result.
    pub fn block_on<T>(&mut self, body: impl AsyncFnOnce(&mut Session) -> T) -> T {
        let Worker { worker, sessions, clients, .. } = self;
        let Some(session) = sessions.first_mut() else { unreachable!("a worker has a coroutine") };
        let shift = Shift::begin(clients, 1);
        let task = (session.inner.lane().id(), async move {
            let result = body(&mut *session).await;
            shift.end_of(session).await;
            result
        });
        let mut run = worker.start([task]);
        attend(&mut run, clients);
        run.to_end().pop().expect("a task that has run has a result")
    }

    /// Waits until the memory nodes have applied everything that the worker has logged, and every
    /// background round is done. Returns false if a memory node has not finished within 5 seconds,
    /// or if the log holds a transaction whose outcome is unknown. Fails if a memory node is
    /// unreachable and no epoch without it begins.
    pub fn drain(&mut self) -> Result<bool, Error> {
        let drained = self.run(async |_, session| {
            loop {
                session.follow();
                let _in_use = session.usage.begin();
                match session.inner.drain(DRAIN_NS).await {
                    // The session's logged transactions are decided when its epoch ends.
                    Err(Stop::Fenced | Stop::Unavailable(_)) if session.next_epoch(None).await => {}
                    drained => return drained,
                }
            }
        });
        drained.into_iter().try_fold(true, |all, one| Ok(all & one?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.let_leases_run_out(); // a crash like any other: recovery will find what the worker has left
        }
        if self.clients.is_empty() {
            return; // abandoned
        }
        match self.drain() {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("a memory node has not applied the log in time: the client slot stays");
                return self.let_leases_run_out();
            }
            Err(Error::Fenced) => return, // the client that has recovered it gives its slot back
            Err(error) => {
                tracing::warn!(%error, "the client slot stays");
                return self.let_leases_run_out();
            }
        }
        let lives: Vec<Rc<Life>> = self.clients.iter().map(|client| client.life()).collect();
        let leaving = lives.iter().map(|life| {
            let lane = &life.admin;
            (lane.id(), life.registration.clone().disconnect(lane))
        });
        for (result, life) in self.worker.run(leaving).into_iter().zip(&lives) {
            match (result, &life.keeper) {
                (Ok(()), Some(keeper)) => keeper.leave(),
                (Ok(()), None) => {}
                (Err(error), _) => tracing::warn!(%error, "the client slot stays"),
            }
        }
    }
}

/// Makes what every client has to do beside its transactions run beside the coroutines.
fn attend<'w, T>(run: &mut remora_fabric::Run<'w, T>, clients: &'w [Rc<Client>]) {
    clients.iter().for_each(|client| run.attend(client.life().admin.id(), client.attend()));
}

/// One run of a worker. Leases run from its beginning until its last coroutine ends.
struct Shift {
    clients: Vec<Rc<Client>>,
    running: Cell<usize>,
    /// Whether a round is still under way, which may hold locks. Then the leases go on.
    restless: Cell<bool>,
}

impl Shift {
    fn begin(clients: &[Rc<Client>], coroutines: usize) -> Shift {
        let shift = Shift { clients: clients.to_vec(), running: Cell::new(coroutines), restless: Cell::default() };
        for life in clients.iter().map(|client| client.life()) {
            life.keeper.iter().filter(|keeper| keeper.is_leased()).for_each(|keeper| keeper.wake(&life.admin));
        }
        shift
    }

    /// Ends a coroutine's part of the run. A round that waits for another one before it is sent,
    /// such as an unlock after a WRITE, is sent only while the worker runs. Locks must not wait for
    /// the next run, so this waits until all rounds are done.
    #[inline(never)]
    fn end_of(&self, session: &Session) -> Outlined<impl Future<Output = ()>> {
        outline(async move {
            let lease = session.life.keeper.as_ref().and_then(|keeper| keeper.lease());
            let lane = session.inner.lane();
            // A dropped transaction may have left a shared lock.
            let is_settled = session.inner.shared_locks().settle(lane).await.is_ok();
            let is_quiet = quiet(lane, session.client.cluster().live_nodes(), lease.unwrap_or(QUIET_NS)).await;
            if !is_settled || !is_quiet {
                self.restless.set(true);
            }
            self.running.set(self.running.get() - 1);
            if self.running.get() == 0 {
                for life in self.clients.iter().map(|client| client.life()) {
                    if let Some(keeper) = life.keeper.as_ref().filter(|keeper| keeper.is_leased()) {
                        // The keeper is polled only while the worker runs.
                        keeper.finish_steps(lane).await;
                        if !self.restless.get() {
                            keeper.rest().await;
                        }
                    }
                }
            }
        })
    }
}

/// A coroutine's place to run transactions, one at a time. A [`Worker`] has one for each of its
/// coroutines.
#[derive(Debug)]
pub struct Session {
    inner: remora_txn::Session,
    client: Rc<Client>,
    /// The incarnation of the client by which this session runs.
    life: Rc<Life>,
    /// The session's place among the client's sessions.
    ring: usize,
    /// Tells whether the session runs something, and which dropped tables it may still know.
    usage: Rc<Usage>,
    /// Number of transactions until the other coroutines have a turn.
    until_turn: u32,
    /// How long a transaction without own patience is tried, in nanoseconds.
    patience: Nanos,
    /// How long the caller of the next transaction has waited for this session, in nanoseconds.
    waited: Nanos,
    /// The snapshot that the session has opened last.
    pub(crate) last_opened: Option<LastOpened>,
}

/// Makes an attempt that has named no record use the catalog that its process follows by now. Waits
/// until the rounds that the session had posted before have completed. Fails if the attempt must
/// not run, because its client has not heard yet whether tables were dropped while it rested.
#[cold]
#[inline(never)]
fn catch_up(
    tx: &mut Tx<'_>,
    cluster: &Cluster,
    usage: &Usage,
    life: &Life,
) -> Outlined<impl Future<Output = Result<(), Stop>>> {
    outline(async move {
        if !life.is_awake() {
            return Err(Abort::Late.into());
        }
        let forgotten = cluster.forgotten();
        tx.replace_tables(|table| cluster.now(table));
        if quiet(tx.lane(), cluster.live_nodes(), QUIET_NS).await {
            usage.catch_up(forgotten);
        }
        Ok(())
    })
}

/// Tells whether a table that was full has grown.
enum Grown {
    Yes,
    No,
    NodesFull,
}

/// What is left of the attempts and the time of a transaction, over the epochs in which it is
/// tried.
struct Course {
    /// The options for the attempts in this epoch.
    options: TransactOptions,
    /// Largest number of attempts in all epochs together.
    attempts: u32,
    /// Whether the transaction is tried for as long as a session tries by default.
    is_default: bool,
    tried: Tried,
}

/// Returns how long a transaction is tried if clients have leases of this length. It is twice the
/// lease, or twice the default lease if that is longer.
fn patience_with(lease: Nanos) -> Nanos {
    lease.max(nanos(LEASE)).saturating_mul(2)
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Session {
    /// Begins a transaction that the caller ends ([`Begun`]). Most programs want
    /// [`Session::transact`] instead. Fails with [`Error::Aborted`] if the client has rested, and
    /// has not heard yet whether tables were dropped meanwhile. Fails with [`Error::Limit`] if the
    /// client has no transaction id left.
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// # let options = TableOptions::for_rows(1);
    /// # let counters = cluster.create_table::<u64, u64>("counters", options)?;
    /// # cluster.load(&counters, [(1, 41)])?;
    /// # let mut worker = cluster.worker(Default::default())?;
    /// worker.block_on(async |session| {
    ///     let mut begun = session.begin()?;
    ///     *counters.get_mut(&mut begun.transaction(), 1).await? += 1;
    ///     begun.commit().await?;
    ///
    ///     let mut begun = session.begin()?;
    ///     counters.update(&mut begun.transaction(), 1, 0).await?;
    ///     begun.abort().await;
    ///
    ///     let counter = session.transact(async |tx| counters.get(tx, 1).await).await?;
    ///     assert_eq!(counter, Some(42));
    ///     Ok::<_, remora::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(&mut self) -> Result<Begun<'_>, Error> {
        self.follow();
        if !self.is_awake() {
            return Err(Abort::Late.into());
        }
        let in_use = self.usage.begin();
        Ok(Begun::new(self.inner.begin(0)?, self.client.cluster(), in_use))
    }

    /// Runs a closure as a transaction, and tries it again while it aborts. Returns what the
    /// closure has returned, once the transaction has committed or the closure's error has been
    /// validated. The [crate's documentation](crate) says what a closure must know, when a
    /// transaction is tried again, and what the errors mean.
    ///
    /// A panic in the closure aborts the transaction, and resumes when its locks are gone.
    pub async fn transact<T>(
        &mut self,
        body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.transact_with(TransactionOptions::default(), body).await
    }

    /// Runs a closure as a transaction, as [`Session::transact`] does, with options for how often
    /// and for how long it is tried.
    pub async fn transact_with<T>(
        &mut self,
        options: TransactionOptions,
        mut body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.has_had_its_turn() {
            self.inner.lane().yield_now().await;
        }
        let _in_use = self.usage.begin();
        let mut course = self.begin_course(options);
        let mut outcome = None;
        // The compiler makes a copy of this loop for every closure. So parts that do not depend on
        // the closure are in functions of their own.
        loop {
            let stop = 'trial: {
                if self.inner.has_loose()
                    && let Err(stop) = pin!(self.inner.take_back()).await
                {
                    break 'trial stop;
                }
                let (cluster, usage, life) = (self.client.cluster(), &*self.usage, &*self.life);
                let mut trial = Trial::begin(course.options);
                loop {
                    let mut tx = match self.inner.attempt(&mut trial) {
                        Ok(tx) => tx,
                        Err(stop) => break 'trial stop,
                    };
                    let is_behind = usage.is_behind(cluster.forgotten()) || !life.is_awake();
                    let caught_up =
                        if is_behind { pin!(catch_up(&mut tx, cluster, usage, life)).await } else { Ok(()) };
                    let generation = usage.generation();
                    if let Some(error) = options.at.and_then(|at| at.refused(cluster.number(), generation)) {
                        return Err(error);
                    }
                    let decision = match caught_up {
                        Ok(()) => {
                            let mut refused = None;
                            let returned =
                                catch_panic(body(&mut Transaction::new(&mut tx, &mut refused, cluster))).await;
                            returned.map(|returned| match (outcome.insert(returned), refused) {
                                (Ok(_), None) => Decision::Commit,
                                (returned, refused) => Error::decide(&mut tx, returned, refused),
                            })
                        }
                        Err(late) => Ok(tx.stop(late)),
                    };
                    let settled = pin!(trial.settle(&mut tx, decision)).await;
                    match settled {
                        Settled::Decided => {
                            return outcome.expect("a run of the closure has decided the transaction");
                        }
                        Settled::Stopped => break 'trial tx.stopped(),
                        Settled::Again => {}
                    }
                    drop(tx);
                    pin!(self.inner.pause(&trial)).await;
                }
            };
            let goes_on = pin!(self.go_on(&mut course, stop)).await;
            if let Err(stop) = goes_on {
                return Err(self.given_up(stop, outcome.and_then(Result::err), course.tried));
            }
        }
    }

    /// Runs a closure in a snapshot: a transaction that only reads, in one round trip for all
    /// records that it names together, from any copy of each, and without validation. Returns what
    /// the closure has returned.
    ///
    /// The snapshot has all changes that were acknowledged before it began, of the records that it
    /// reads, and each transaction as a whole. Snapshots and transactions together are
    /// serializable. But two transactions that share no record may be ordered otherwise than in
    /// real time: the snapshot may have the later one, and not the earlier one.
    ///
    /// If a record that the closure names later has changed since, the closure runs again.
    ///
    /// This is what protocols `remora` and `drtm-r-clocks` promise. The latter reads primaries. On
    /// shared memory both do, and order by real time
    /// ([`has_strict_snapshots`](Session::has_strict_snapshots)). A snapshot of `dst`, `dst-2pl`,
    /// `gts` or `vts` may miss changes that were acknowledged just before it began, and reads
    /// primaries (`docs/protocols/dst.md`). Under `rc` it is no snapshot.
    ///
    /// Fails as [`Session::transact`] does. Fails with [`Error::Misuse`] if the closure changes
    /// anything, or if the cluster's protocol has no snapshots ([`Protocol::has_snapshots`]).
    ///
    /// [`Protocol::has_snapshots`]: crate::protocol::Protocol::has_snapshots
    pub async fn snapshot<T>(
        &mut self,
        body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.transact_with(TransactionOptions::default().snapshot(true), body).await
    }

    /// Returns the time of the session's clock, in nanoseconds.
    pub(crate) fn now(&self) -> Nanos {
        self.inner.lane().now()
    }

    /// Returns the generation of the catalog that the session's process follows.
    pub(crate) fn followed(&self) -> u64 {
        self.client.cluster().followed()
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.client.cluster().protocol()
    }

    pub(crate) fn cluster_number(&self) -> ClusterNumber {
        self.client.cluster().number()
    }

    /// Returns the bytes that the changes of one transaction can take in the log: half of what
    /// [`WorkerOptions::log_bytes`] has got. A transaction that writes more fails with
    /// [`Limit::LogEntry`](crate::Limit::LogEntry).
    #[must_use]
    pub fn log_entry_max(&self) -> usize {
        self.inner.log_entry_max()
    }

    /// Returns whether [`Session::snapshot`] is ordered by real time with all other transactions,
    /// as [`Freshness::Strict`](crate::Freshness::Strict) promises. It is on shared memory, under
    /// the protocols `remora` and `drtm-r-clocks`.
    #[must_use]
    pub fn has_strict_snapshots(&self) -> bool {
        self.inner.has_strict_snapshots()
    }

    /// Returns whether a snapshot has everything that the session has committed, or has read.
    pub(crate) fn has_seen_nothing_later(&self, snapshot: Snapshot) -> bool {
        self.inner.has_seen_nothing_later(snapshot.past())
    }

    /// Returns whether the worker's other coroutines, and with them its keeper, are to run before
    /// this one goes on.
    fn has_had_its_turn(&mut self) -> bool {
        if !self.life.keeper.as_ref().is_some_and(|keeper| keeper.is_leased()) {
            return false;
        }
        self.until_turn -= 1;
        let is_over = self.until_turn == 0;
        if is_over {
            self.until_turn = TURN;
        }
        is_over
    }

    fn begin_course(&mut self, options: TransactionOptions) -> Course {
        let waited = std::mem::take(&mut self.waited);
        let deadline = options.deadline.map(|deadline| {
            let now = self.inner.lane().now();
            now.saturating_add(nanos(deadline).saturating_sub(waited))
        });
        let patience = match (options.patience, deadline) {
            (Some(patience), _) => nanos(patience),
            (None, Some(_)) => Nanos::MAX,
            (None, None) => self.patience,
        };
        self.follow();
        let patience = patience.saturating_sub(waited);
        let is_strict = options.only_reads && self.has_strict_snapshots();
        let fresh = options.snapshot.then_some(Past::Fresh).or(is_strict.then_some(Past::Strict));
        let snapshot = options.at.map(|at| Past::At(at.past())).or(fresh);
        Course {
            options: TransactOptions {
                label: options.label,
                attempts: options.attempts,
                patience,
                deadline,
                snapshot,
                only_reads: options.only_reads,
            },
            attempts: options.attempts,
            is_default: options.patience.is_none() && deadline.is_none(),
            tried: Tried::default(),
        }
    }

    /// Decides about a transaction that has stopped without a commit. Fails if the transaction is
    /// not to be tried again. Otherwise waits until it can be.
    #[inline(never)]
    fn go_on(&mut self, course: &mut Course, stop: Stop) -> Outlined<impl Future<Output = Result<(), Stop>>> {
        outline(async move {
            let last = self.inner.tried();
            course.tried = Tried {
                attempts: course.tried.attempts.saturating_add(last.attempts),
                elapsed: course.tried.elapsed.saturating_add(last.elapsed),
                last: last.last.or(course.tried.last),
            };
            let deadline = course.options.deadline;
            match stop {
                Stop::Fenced | Stop::Unavailable(_) => {
                    if !self.next_epoch(deadline).await {
                        // A client that was taken for dead has to connect again, even if something
                        // else is unreachable, too. So this error is the one to report.
                        let is_over = self.life.keeper.as_ref().is_some_and(|keeper| keeper.is_over());
                        return Err(if is_over { Stop::Fenced } else { stop });
                    }
                }
                Stop::Limit(Limit::TransactionIds) if self.next_incarnation(deadline).await => {}
                Stop::Limit(Limit::TableFull { slots }) => match self.until_larger(stop, course).await {
                    Grown::Yes => {}
                    Grown::No => return Err(stop),
                    Grown::NodesFull => {
                        let full = Limit::NodesFull { slots }.into();
                        self.inner.restate(full);
                        return Err(full);
                    }
                },
                Stop::Abort(_) if course.is_default && course.tried.attempts < course.attempts => {
                    // Other clients may have longer leases than this client.
                    let longer = self.longest_patience().saturating_sub(course.tried.elapsed);
                    if longer == 0 {
                        return Err(stop);
                    }
                    course.options.patience = longer;
                }
                stop => return Err(stop),
            }
            self.follow();
            course.options.attempts = course.attempts.saturating_sub(course.tried.attempts).max(1);
            Ok(())
        })
    }

    /// Waits until a full table has grown so far that clients insert into the larger one. The
    /// transaction inserts into this table, or changes a row of it, which needs room under `rtx`.
    #[cold]
    async fn until_larger(&mut self, stop: Stop, course: &Course) -> Grown {
        let full = self.inner.culprit(stop).map(|(table, _)| table.id()).and_then(|id| self.inner.table(id).cloned());
        let Some(full) = full else { return Grown::No };
        let began = self.inner.lane().now();
        let patience = course.options.patience.saturating_sub(course.tried.elapsed);
        let give_up = began.saturating_add(patience).min(course.options.deadline.unwrap_or(Nanos::MAX));
        loop {
            let cluster = self.client.cluster();
            let Some(now) = cluster.now(&full) else { return Grown::Yes };
            let moves = full.stage() == Some(Stage::Filling);
            if now.stage() == Some(Stage::Filling) && !moves {
                return Grown::Yes;
            }
            match self.grow_in_turn(&now).await {
                Some(Ok(())) => return Grown::Yes,
                Some(Err(Growing::Failed { nodes_full: true })) => return Grown::NodesFull,
                Some(Err(_)) | None => {}
            }
            // If rows move already, the row of this transaction has not. The client that moved rows
            // may have died.
            let cluster = self.client.cluster();
            match cluster.ask_to_grow(&now) {
                Some(Growing::UnderWay) if moves => {
                    self.inner.lane().sleep(GROWTH_PAUSE_NS).await;
                    return if self.inner.lane().now() < give_up { Grown::Yes } else { Grown::No };
                }
                // A growth that has failed for another reason begins again soon.
                Some(Growing::UnderWay | Growing::Failed { nodes_full: false }) => {}
                Some(Growing::Failed { nodes_full: true }) => return Grown::NodesFull,
                None => return Grown::No,
            }
            if self.inner.lane().now() >= give_up || cluster.is_interrupted() {
                return Grown::No;
            }
            self.inner.lane().sleep(GROWTH_PAUSE_NS).await;
            // The client that makes the table larger waits until this client has heard of the
            // change.
            self.follow();
        }
    }

    /// Returns how long a transaction is tried by default, by the longest lease of all clients now.
    #[cold]
    pub(crate) fn longest_patience(&self) -> Nanos {
        let configuration = self.client.cluster().configuration();
        let longest = configuration.and_then(|all| all.look(|membership| membership.longest_lease()).ok());
        patience_with(longest.unwrap_or(0)).max(self.patience)
    }

    /// Returns the error of a transaction that is not tried again. `told` is the last error that
    /// its closure has returned.
    #[cold]
    fn given_up(&self, stop: Stop, told: Option<Error>, tried: Tried) -> Error {
        let named = |stop| Named::of(self.inner.culprit(stop));
        let error = told.filter(|error| error.stop() == Some(stop)).unwrap_or_else(|| Error::of(stop, named(stop)));
        let met = if let (Stop::Limit(_), Some(abort)) = (stop, tried.last) { Stop::Abort(abort) } else { stop };
        error.given_up(named(met), tried)
    }

    /// Notes when the caller of the next transaction has called. The deadline and the patience of
    /// the transaction count from then.
    pub(crate) fn asked_at(&mut self, asked: Instant) {
        self.waited = nanos(asked.elapsed());
    }

    /// Returns the client incarnation by which the session runs.
    pub(crate) fn incarnation(&self) -> u32 {
        self.life.registration.incarnation
    }

    /// Returns the cluster of the session.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.client.cluster()
    }

    /// Returns a table as this session's cluster has it now, for work outside of transactions.
    pub(crate) fn table(&self, table: Handle<'_>) -> Result<Arc<remora_index::Table>, Error> {
        Ok(self.client.cluster().own(table)?)
    }

    /// Begins work outside of transactions, with the tables as they are now. Until the returned
    /// guard is dropped, no table that the session has ([`Session::table`]) is dropped, and none
    /// grows further than its next step. Fails with [`Abort::Late`] if the client has rested, and
    /// does not hear in time what has changed.
    pub(crate) async fn begin_outside(&mut self) -> Result<InUse, Error> {
        let give_up = self.inner.lane().now().saturating_add(self.patience);
        loop {
            self.follow();
            if self.is_awake() {
                return Ok(self.usage.begin());
            }
            if self.inner.lane().now() >= give_up {
                return Err(Abort::Late.into());
            }
            self.inner.lane().sleep(GROWTH_PAUSE_NS).await;
        }
    }

    /// Begins an operation outside of transactions, as [`Session::begin_outside`] does. Lets the
    /// client's other coroutines run now and then, because rounds may take effect at once.
    #[inline]
    pub(crate) async fn begin_operation(&mut self) -> Result<InUse, Error> {
        if self.has_had_its_turn() {
            self.inner.lane().yield_now().await;
        }
        if self.client.lives(&self.life) && self.is_awake() && !self.usage.is_behind(self.client.cluster().forgotten())
        {
            return Ok(self.usage.begin());
        }
        pin!(self.begin_outside()).await
    }

    /// Returns the session of the floor below.
    pub(crate) fn inner(&mut self) -> &mut remora_txn::Session {
        &mut self.inner
    }

    /// Makes the session go on as the last incarnation of its client, with the tables as they are
    /// now.
    pub(crate) fn follow(&mut self) {
        if !self.client.lives(&self.life) {
            self.life = self.client.adopt(&mut self.inner, self.ring);
            // The new incarnation does not know what the former one has committed.
            self.last_opened = None;
            self.life.note_session(&self.usage);
        }
        let cluster = self.client.cluster();
        let forgotten = cluster.forgotten();
        if self.usage.is_behind(forgotten) {
            self.inner.replace_tables(|table| cluster.now(table));
            if self.inner.lane().background() == 0 {
                self.usage.catch_up(forgotten);
            }
        }
        if let Some(crowded) = self.inner.take_crowded() {
            self.make_room(crowded);
        }
        if let Some(keeper) = &self.life.keeper {
            keeper.stir();
        }
    }

    /// Makes a table grow before it is full.
    #[cold]
    fn make_room(&self, crowded: TableId) {
        let cluster = self.client.cluster();
        let now = self.inner.table(crowded).and_then(|table| cluster.now(table));
        if let Some(table) = now.filter(|table| table.growth().is_none()) {
            let _growing = cluster.ask_to_grow(&table);
        }
    }

    fn is_awake(&self) -> bool {
        self.life.is_awake()
    }

    /// Waits after a memory node has become unreachable, or this incarnation was ended, until
    /// another epoch has begun or this client has connected again. Returns true then, so that the
    /// transaction, which has not committed, is tried again. Returns false if none of that happens
    /// in time.
    #[cold]
    pub(crate) async fn next_epoch(&self, deadline: Option<Nanos>) -> bool {
        let (lane, Some(keeper)) = (self.inner.lane(), &self.life.keeper) else { return false };
        let (Some(patience), Some(alone)) = (keeper.patience(), keeper.patience_with_itself()) else { return false };
        let began = lane.now();
        let give_up = began.saturating_add(patience).min(deadline.unwrap_or(Nanos::MAX));
        while self.client.lives(&self.life) {
            if lane.now() >= give_up || !keeper.may_outlive() {
                return false;
            }
            if lane.now() >= began.saturating_add(alone) {
                keeper.give_up();
            }
            lane.sleep(EPOCH_PAUSE_NS).await;
        }
        true
    }

    /// Waits until the client has connected as another incarnation, because this one has no
    /// transaction id left. The client's keeper began to connect long ago. Returns false if this
    /// does not happen in time.
    #[cold]
    async fn next_incarnation(&self, deadline: Option<Nanos>) -> bool {
        let lane = self.inner.lane();
        let keeper = self.life.keeper.as_ref().filter(|keeper| keeper.is_leased());
        let Some(patience) = keeper.and_then(|keeper| keeper.patience()) else { return false };
        let give_up = lane.now().saturating_add(patience).min(deadline.unwrap_or(Nanos::MAX));
        while self.client.lives(&self.life) {
            if lane.now() >= give_up {
                return false;
            }
            lane.sleep(EPOCH_PAUSE_NS).await;
        }
        true
    }

    /// Returns the outcome of a transaction whose answer was lost ([`Error::Unknown`]). The
    /// transaction may be one of this client or of any other client of this cluster.
    ///
    /// [`Verdict::Committed`] and [`Verdict::Aborted`] are final. If the outcome is not decided
    /// yet, the call waits for at most `patience`, and then returns [`Verdict::Undecided`]. The
    /// outcome of a dead client's transaction is decided when the client is recovered. Fails if a
    /// memory node is unreachable and no epoch without it begins in time.
    ///
    /// The outcome is known as long as the transaction's log entry is in the rings. These hold the
    /// last 64 KiB that its coroutine has logged at each memory node, and keep an entry without
    /// limit after its answer was lost to a failure. For dead clients, the outcomes of the last
    /// transactions of each are known until 256 more clients have died. After that the verdict is
    /// [`Verdict::Forgotten`].
    ///
    /// An id does not say to which cluster it belongs, and every cluster begins to number its
    /// clients with 1. So the call does not refuse the id of another cluster: it returns
    /// [`Verdict::Forgotten`], or the outcome of a transaction of this cluster that has the same
    /// number. Keep an id together with the id of its cluster
    /// ([`Cluster::id`](crate::Cluster::id)).
    #[inline(never)]
    pub fn resolve(
        &mut self,
        id: TransactionId,
        patience: Duration,
    ) -> Outlined<impl Future<Output = Result<Verdict, Error>>> {
        outline(async move {
            let deadline = self.inner.lane().now().saturating_add(nanos(patience));
            loop {
                self.follow();
                let mut verdict = self.recorded(id);
                if verdict.is_none() {
                    let found = match self.inner.look_up(id).await {
                        Err(Stop::Fenced | Stop::Unavailable(_)) if self.next_epoch(Some(deadline)).await => continue,
                        found => found?,
                    };
                    // A client that was recovered meanwhile has no rings any more. Then the
                    // configuration has the verdict.
                    verdict =
                        if found == Verdict::Forgotten { self.recorded_now(id).await } else { None }.or(Some(found));
                }
                match verdict {
                    Some(verdict) if verdict != Verdict::Undecided => return Ok(verdict),
                    _ if self.inner.lane().now() >= deadline => return Ok(Verdict::Undecided),
                    _ => self.inner.lane().sleep(RESOLVE_PAUSE_NS).await,
                }
            }
        })
    }

    pub(crate) fn leader(&self) -> NodeId {
        self.client.leader()
    }

    /// Reads the configuration again, and returns the verdict that it then has of a transaction.
    async fn recorded_now(&self, id: TransactionId) -> Option<Verdict> {
        if let Err(error) = self.life.keeper.as_ref()?.refresh().await {
            tracing::warn!(%error, "the configuration may know more of a transaction");
        }
        self.recorded(id)
    }

    /// Returns the verdict that the configuration has of a transaction, if it has one.
    fn recorded(&self, id: TransactionId) -> Option<Verdict> {
        let verdict = self.life.keeper.as_ref()?.verdict(id);
        verdict.unwrap_or_else(|error| {
            tracing::warn!(%error, "the configuration does not say what became of a transaction");
            None
        })
    }

    /// Sets the observer that receives an event for every attempt from now on, and returns the
    /// former observer.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        self.inner.observe(observer)
    }

    /// Pauses this coroutine for at least `time`, while the worker's other coroutines run.
    ///
    /// A coroutine that must wait calls this, and not [`std::thread::sleep`]. A worker whose thread
    /// sleeps or computes runs none of its coroutines, and sends nothing in the background: others
    /// may then wait for locks that its last transactions have not freed yet.
    pub async fn sleep(&mut self, time: Duration) {
        self.lane().sleep(time.as_nanos().try_into().unwrap_or(Nanos::MAX)).await;
    }

    /// Returns the session's lane, which has the time, random numbers, pauses, and the cost of all
    /// rounds so far.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        self.inner.lane()
    }
}
