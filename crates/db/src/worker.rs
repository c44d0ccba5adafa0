//! The first door: a worker of this thread.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use remora_fabric::limits::LANES_MAX;
use remora_fabric::{ClientId, Lane, LaneId, Nanos};
use remora_memory::{MemoryError, Registration};
use remora_txn::{Observer, SessionConfig, TransactOptions};

use crate::cluster::Cluster;
use crate::error::{Error, OpenError};
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
    /// For what is not a transaction: leaving.
    admin: Lane,
}

impl Worker {
    pub(crate) fn new(cluster: &Cluster, options: WorkerOptions) -> Result<Worker, OpenError> {
        // One lane of each client is for leaving.
        let limit = |what, value: usize, max: usize| MemoryError::Limit { what, value: value as u64, max: max as u64 };
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
        let registration = remora_fabric::block_on(cluster.fabric(), ClientId(0), async |lane: &Lane| {
            Registration::connect(lane, nodes, coroutines).await
        })??;
        let endpoint = self.worker.connect(cluster.fabric(), ClientId(registration.incarnation))?;
        endpoint.yield_after_rounds(options.yield_after_rounds);
        let (protocol, epoch, sequence) = (cluster.protocol(), cluster.epoch(), Rc::new(Cell::new(1)));
        let config = SessionConfig { protocol, epoch, nodes, sequence };
        for ring in 0..coroutines {
            let seed = options.seed.wrapping_mul(1009).wrapping_add(self.sessions.len() as u64);
            let lane = self.worker.lane(&endpoint, seed).expect("lanes were counted");
            self.sessions.push(Session { inner: remora_txn::Session::new(lane, &registration, ring, config.clone()) });
        }
        let admin = self.worker.lane(&endpoint, 0).expect("lanes were counted");
        self.clients.push(Client { registration, admin });
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
        let tasks: Vec<(LaneId, _)> = self
            .sessions
            .iter_mut()
            .enumerate()
            .map(|(index, session)| (session.inner.lane().id(), body(index, session)))
            .collect();
        self.worker.run(tasks)
    }

    /// Begins a body on every coroutine, for whoever drives the worker turn by turn: a simulator.
    pub fn start<'w, T, B: AsyncFn(usize, &mut Session) -> T>(
        &'w mut self,
        body: &'w B,
    ) -> remora_fabric::Run<'w, impl Future<Output = T> + use<'w, T, B>> {
        let Worker { worker, sessions, .. } = self;
        let tasks = sessions.iter_mut().enumerate().map(|(index, session)| {
            let lane = session.inner.lane().id();
            (lane, async move { body(index, session).await })
        });
        worker.start(tasks)
    }

    /// Ends it as the death of its client does: nothing is waited for, and its slot, its locks and its logs stay.
    pub fn abandon(mut self) {
        self.clients.clear();
        self.sessions.clear();
    }

    /// Runs one body on the first coroutine.
    pub fn block_on<T>(&mut self, body: impl AsyncFnOnce(&mut Session) -> T) -> T {
        let Some(session) = self.sessions.first_mut() else { unreachable!("a worker has a coroutine") };
        let task = (session.inner.lane().id(), body(session));
        self.worker.run([task]).pop().expect("a task that has run has a result")
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
            return; // a crash like any other: the client's slot stays, and recovery will find what it left
        }
        if self.clients.is_empty() {
            return; // abandoned
        }
        match self.drain() {
            Ok(true) => {}
            Ok(false) => return tracing::warn!("a memory node has not applied the log in time: the client slot stays"),
            Err(error) => return tracing::warn!(%error, "the client slot stays"),
        }
        let leaving = self.clients.iter().map(|client| {
            let lane = &client.admin;
            (lane.id(), client.registration.clone().disconnect(lane))
        });
        for result in self.worker.run(leaving) {
            if let Err(error) = result {
                tracing::warn!(%error, "the client slot stays");
            }
        }
    }
}

/// A coroutine's place to run transactions, one at a time.
#[derive(Debug)]
pub struct Session {
    inner: remora_txn::Session,
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
