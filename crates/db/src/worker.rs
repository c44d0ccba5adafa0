//! The first door: a worker of this thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use remora_cluster::Configuration;
use remora_fabric::limits::LANES_MAX;
use remora_fabric::{ClientId, Lane, Nanos};
use remora_memory::{MemoryError, Registration};
use remora_sync::TransactionId;
use remora_txn::recovery::Verdict;
use remora_txn::{Observer, SessionConfig, TransactOptions};

use crate::cluster::Cluster;
use crate::error::{Error, OpenError};
use crate::keeper::{Keeper, quiet};
use crate::transaction::{Begun, Transaction};

/// Of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Transactions in flight: so many coroutines share the thread. 1 to 63.
    pub coroutines: usize,
    /// Client incarnations, each with a connection of its own, that the coroutines are spread over. One is right but for
    /// tests on one thread, because the rounds of one connection are ordered and those of several are not.
    pub clients: usize,
    /// Of the coroutines' random streams.
    pub seed: u64,
    /// Lets the other coroutines run after every round, also where it completes at once.
    pub yield_after_rounds: bool,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions { coroutines: 8, clients: 1, seed: 1, yield_after_rounds: false }
    }
}

/// Of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct TransactionOptions {
    /// A number for its type, for observers.
    pub label: u16,
    /// How often it is tried while it aborts.
    pub attempts: u32,
    /// When to give up, counted from the beginning of the first attempt.
    pub deadline: Option<Duration>,
}

impl Default for TransactionOptions {
    fn default() -> TransactionOptions {
        let TransactOptions { label, attempts, .. } = TransactOptions::default();
        TransactionOptions { label, attempts, deadline: None }
    }
}

/// Pause between two looks for what became of a transaction.
const RESOLVE_PAUSE_NS: Nanos = 100_000;

/// How long a coroutine that ends waits for what it has posted, if no lease says it.
const QUIET_NS: Nanos = 100_000_000;
/// How long a worker that ends waits for the memory nodes to apply what it has logged.
const DRAIN_NS: Nanos = 5_000_000_000;

/// A thread's place to run transactions: one endpoint, several coroutines, each with a [`Session`]. Not `Send`.
#[derive(Debug)]
pub struct Worker {
    worker: remora_fabric::Worker,
    sessions: Vec<Session>,
    clients: Vec<Client>,
    _cluster: Cluster,
}

/// One incarnation of a worker.
#[derive(Debug)]
struct Client {
    registration: Registration,
    /// For what is not a transaction: the lease, recovery, leaving.
    admin: Lane,
    /// Where there is a configuration.
    keeper: Option<Rc<Keeper>>,
}

/// A coroutine lets the others have a turn after so many transactions, where a lease has to be kept: on shared memory a
/// round completes at once, so that otherwise it might never wait.
const TURN: u32 = 64;

impl Worker {
    pub(crate) fn new(cluster: &Cluster, options: WorkerOptions) -> Result<Worker, OpenError> {
        // One lane of each client is for leaving.
        let limit = |what, value: usize, max: usize| MemoryError::Limit { what, value: value as u64, max: max as u64 };
        if cluster.protocol().needs_atomic_writes() && !cluster.fabric().capabilities().atomic_writes {
            return Err(MemoryError::NeedsAtomicWrites(cluster.protocol().name()).into());
        }
        if options.coroutines == 0 || options.clients == 0 {
            return Err(MemoryError::Empty("the number of coroutines or clients").into());
        }
        if options.coroutines + options.clients > LANES_MAX {
            return Err(limit("coroutines of a worker", options.coroutines, LANES_MAX - options.clients).into());
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
        let nodes = cluster.fabric().nodes();
        let (configuration, lease) = (cluster.configuration(), cluster.lease_ns());
        let registration = remora_fabric::block_on(cluster.fabric(), ClientId(0), async |lane: &Lane| {
            register(lane, nodes, coroutines, configuration, lease).await
        })??;
        let endpoint = self.worker.connect(cluster.fabric(), ClientId(registration.incarnation))?;
        endpoint.yield_after_rounds(options.yield_after_rounds);
        let (protocol, epoch, sequence) = (cluster.protocol(), cluster.epoch(), Rc::new(Cell::new(1)));
        let incarnation = registration.incarnation;
        let keeper = configuration
            .cloned()
            .map(|configuration| Rc::new(Keeper::new(cluster, configuration, incarnation, sequence.clone())));
        let config = SessionConfig { protocol, epoch, nodes, sequence };
        for ring in 0..coroutines {
            let seed = options.seed.wrapping_mul(1009).wrapping_add(self.sessions.len() as u64);
            let lane = self.worker.lane(&endpoint, seed).expect("lanes were counted");
            let mut inner = remora_txn::Session::new(lane, &registration, ring, config.clone());
            if let Some(keeper) = &keeper {
                keeper.guard(&mut inner);
            }
            self.sessions.push(Session { inner, keeper: keeper.clone(), until_turn: TURN });
        }
        let admin = self.worker.lane(&endpoint, 0).expect("lanes were counted");
        self.clients.push(Client { registration, admin, keeper });
        Ok(())
    }

    /// Its client incarnations: the owners in the ids of its transactions.
    pub fn incarnations(&self) -> impl Iterator<Item = u32> + '_ {
        self.clients.iter().map(|client| client.registration.incarnation)
    }

    /// Its sessions, to set observers.
    pub fn sessions(&mut self) -> &mut [Session] {
        &mut self.sessions
    }

    /// Runs a body on every coroutine, with the coroutine's number and session, until all have returned.
    pub fn run<T>(&mut self, body: impl AsyncFn(usize, &mut Session) -> T) -> Vec<T> {
        self.start(&body).to_end()
    }

    /// Begins a body on every coroutine, for whoever drives the worker turn by turn: a simulator.
    pub fn start<'w, T, B: AsyncFn(usize, &mut Session) -> T>(
        &'w mut self,
        body: &'w B,
    ) -> remora_fabric::Run<'w, impl Future<Output = T> + use<'w, T, B>> {
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

    /// Ends it as the death of its client does: nothing is waited for, and its slot, its locks and its logs stay.
    pub fn abandon(mut self) {
        self.let_leases_run_out();
        self.clients.clear();
        self.sessions.clear();
    }

    fn let_leases_run_out(&self) {
        self.clients.iter().filter_map(|client| client.keeper.as_ref()).for_each(|keeper| keeper.abandon());
    }

    /// Takes a client for dead and recovers it at once, instead of waiting until its lease has run out; also where clients
    /// have no leases. Its access is revoked first: if it is alive, it is told so ([`Error::Fenced`]) and can connect again.
    /// Does nothing with a client that has left, or was recovered by somebody else.
    pub fn recover(&mut self, client: u32) -> Result<(), OpenError> {
        let Some(Client { admin, keeper: Some(keeper), .. }) = self.clients.first() else { return Ok(()) };
        let recovery = async {
            keeper.recover(admin, client).await.map_err(|error| match error {
                crate::keeper::RecoveryError::Memory(error) => error,
                error => MemoryError::Configuration(error.to_string()),
            })
        };
        Ok(self.worker.run([(admin.id(), recovery)]).pop().unwrap_or(Ok(()))?)
    }

    /// Runs one body on the first coroutine.
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

    /// Waits until everything that was logged has been applied at every memory node, and every background round is done.
    pub fn drain(&mut self) -> Result<bool, Error> {
        let drained = self.run(async |_, session| session.inner.drain(DRAIN_NS).await);
        drained.into_iter().try_fold(true, |all, one| Ok(all & one?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.let_leases_run_out(); // a crash like any other: recovery will find what it left
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
            Err(Error::Fenced) => return, // whoever has recovered it gives its slot back
            Err(error) => {
                tracing::warn!(%error, "the client slot stays");
                return self.let_leases_run_out();
            }
        }
        let leaving = self.clients.iter().map(|client| {
            let lane = &client.admin;
            (lane.id(), client.registration.clone().disconnect(lane))
        });
        for (result, client) in self.worker.run(leaving).into_iter().zip(&self.clients) {
            match (result, &client.keeper) {
                (Ok(()), Some(keeper)) => keeper.leave(),
                (Ok(()), None) => {}
                (Err(error), _) => tracing::warn!(%error, "the client slot stays"),
            }
        }
    }
}

/// Registers a client, whom the configuration knows before it takes anything.
pub(crate) async fn register(
    lane: &Lane,
    nodes: u16,
    lanes: usize,
    configuration: Option<&Arc<dyn Configuration>>,
    lease: Option<Nanos>,
) -> Result<Registration, MemoryError> {
    let announce = |incarnation| {
        let Some(configuration) = configuration else { return Ok(()) };
        let lease = lease.unwrap_or(u64::MAX / 2);
        let process = configuration.process();
        let joined = configuration.change(|membership| membership.join(incarnation, lease, process));
        joined.map_err(|error| MemoryError::Configuration(error.to_string()))
    };
    Registration::connect_announced(lane, nodes, lanes, announce).await
}

/// Has every client's keeper run beside the coroutines.
fn attend<'w, F: Future>(run: &mut remora_fabric::Run<'w, F>, clients: &'w [Client]) {
    for Client { admin, keeper, .. } in clients {
        if let Some(keeper) = keeper.as_ref().filter(|keeper| keeper.is_leased()) {
            run.attend(admin.id(), keeper.attend(admin));
        }
    }
}

/// One run of a worker: leases run from its begin until its last coroutine ends.
struct Shift {
    keepers: Vec<Rc<Keeper>>,
    running: Cell<usize>,
    /// Something is still on its way, and may hold locks: the leases run on.
    restless: Cell<bool>,
}

impl Shift {
    fn begin(clients: &[Client], coroutines: usize) -> Shift {
        let keepers = clients.iter().filter_map(|client| client.keeper.clone()).filter(|keeper| keeper.is_leased());
        let shift = Shift { keepers: keepers.collect(), running: Cell::new(coroutines), restless: Cell::default() };
        shift.keepers.iter().for_each(|keeper| keeper.wake());
        shift
    }

    /// What waits for something else before it is sent, as an unlock behind a WRITE may, is sent by who runs. Locks must not
    /// wait for the next run.
    async fn end_of(&self, session: &Session) {
        let lease = session.keeper.as_ref().and_then(|keeper| keeper.lease());
        let lane = session.inner.lane();
        if !quiet(lane, lease.unwrap_or(QUIET_NS)).await {
            self.restless.set(true);
        }
        self.running.set(self.running.get() - 1);
        if self.running.get() == 0 && !self.restless.get() {
            for keeper in &self.keepers {
                keeper.rest(lane).await;
            }
        }
    }
}

/// A coroutine's place to run transactions, one at a time.
#[derive(Debug)]
pub struct Session {
    inner: remora_txn::Session,
    keeper: Option<Rc<Keeper>>,
    /// Transactions until the others have a turn.
    until_turn: u32,
}

impl Session {
    /// Begins a transaction that the caller ends: see [`Begun`]. Most programs want [`Session::transact`].
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
    /// # #[repr(C)]
    /// # struct Counter(u64);
    /// # impl remora::Record for Counter {
    /// #     const SCHEMA: &'static str = "counter";
    /// # }
    /// # let cluster = Cluster::embedded(Default::default())?;
    /// # let counters = cluster.create_table::<u64, Counter>("counters", TableOptions::for_rows(1))?;
    /// # cluster.load(&counters, [(1, Counter(41))].into_iter())?;
    /// # let mut worker = cluster.worker(Default::default())?;
    /// worker.block_on(async |session| {
    ///     let mut begun = session.begin()?;
    ///     begun.transaction().read_for_update(&counters, 1).await?.0 += 1;
    ///     begun.commit().await?;
    ///
    ///     let mut begun = session.begin()?;
    ///     begun.transaction().write(&counters, 1, Counter(0)).await?;
    ///     begun.abort().await;
    ///
    ///     let counter = session.transact(async |tx| tx.read(&counters, 1).await).await?;
    ///     assert_eq!(counter.map(|counter| counter.0), Some(42));
    ///     Ok::<_, remora::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(&mut self) -> Result<Begun<'_>, Error> {
        Ok(Begun::new(self.inner.begin(0)?))
    }

    /// Runs a closure as a transaction, again while it aborts. See the crate's first page for what it must know.
    ///
    /// A panic in the closure aborts the transaction, and resumes when its locks are gone.
    pub async fn transact<T>(
        &mut self,
        body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.transact_with(TransactionOptions::default(), body).await
    }

    /// The same with options.
    pub async fn transact_with<T>(
        &mut self,
        options: TransactionOptions,
        mut body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.keeper.as_ref().is_some_and(|keeper| keeper.is_leased()) {
            self.until_turn -= 1;
            if self.until_turn == 0 {
                self.until_turn = TURN;
                self.inner.lane().yield_now().await;
            }
        }
        let deadline = options.deadline.map(|patience| {
            let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
            self.inner.lane().now().saturating_add(patience)
        });
        let options = TransactOptions { label: options.label, attempts: options.attempts, deadline };
        let outcome = self.inner.transact(options, async |tx| {
            let mut refused = None;
            match body(&mut Transaction::new(tx, &mut refused)).await {
                Ok(value) => Ok(Ok(value)),
                Err(error) => match error.into_stop() {
                    Ok(stop) => Err(stop),
                    Err(own) => Ok(Err(own)),
                },
            }
        });
        outcome.await.unwrap_or_else(|stop| Err(stop.into()))
    }

    /// What became of a transaction whose answer was lost ([`Error::Unknown`]), of this client or of any other.
    ///
    /// Waits as long as nobody can know, but not longer than `patience`: until its client is recovered, if that is dead.
    /// [`Verdict::Committed`] and [`Verdict::Aborted`] are final. The answer can be had while the transaction's log entry is
    /// in the rings (the last 64 KiB that its coroutine has logged at each memory node, and without limit after an answer
    /// was lost to a failure), and of dead clients for the last transactions of each, until 256 more have died:
    /// [`Verdict::Forgotten`] after that.
    pub async fn resolve(&mut self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let deadline = self.inner.lane().now().saturating_add(patience);
        loop {
            let recorded = || match &self.keeper {
                Some(keeper) => keeper.verdict(id).unwrap_or_else(|error| {
                    tracing::warn!(%error, "the configuration does not say what became of a transaction");
                    None
                }),
                None => None,
            };
            let mut verdict = recorded();
            if verdict.is_none() {
                let found = self.inner.look_up(id).await?;
                // A client that was recovered meanwhile has no rings any more.
                verdict = if found == Verdict::Forgotten { recorded() } else { None }.or(Some(found));
            }
            match verdict {
                Some(verdict) if verdict != Verdict::Undecided => return Ok(verdict),
                _ if self.inner.lane().now() >= deadline => return Ok(Verdict::Undecided),
                _ => self.inner.lane().sleep(RESOLVE_PAUSE_NS).await,
            }
        }
    }

    /// Whoever is told of every attempt from now on; the former one back.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        self.inner.observe(observer)
    }

    /// The lane: time, random numbers, pauses, and the cost of all rounds so far.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        self.inner.lane()
    }
}
