//! Pools, the way to run transactions for a program that has its own threads or executor. [`Db`] is
//! a handle to a pool of workers, and any thread and any executor can use it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use futures_timer::Delay;
use remora_fabric::catch_panic;
use remora_node::MemoryError;
use remora_node::limits::CLIENTS_MAX;
use remora_record::TransactionId;
use remora_txn::Limit;
use remora_txn::recovery::Verdict;

use crate::cluster::Cluster;
use crate::error::{Error, Misuse, OpenError};
use crate::mutex::lock;
use crate::transaction::Transaction;
use crate::worker::{Session, TransactionOptions, WorkerOptions};

type Job = Box<dyn for<'s> FnOnce(&'s mut Session) -> Pin<Box<dyn Future<Output = ()> + 's>> + Send>;

/// A handle to a pool of workers, which any thread and any executor can use. [`Cluster::db`] makes
/// it. Clones share the pool. The pool ends when the last clone is dropped and the work that was
/// sent to it is done.
///
/// A closure may itself await a transaction of the same `Db`. Its coroutine waits meanwhile, and
/// the other transaction needs another coroutine. If all other coroutines of the pool wait like
/// this already, the next such call fails ([`Misuse::PoolWaitsForItself`]), because no coroutine
/// would ever be free again. The pool does not notice if closures wait for each other through other
/// pools or other threads. Give such calls a deadline.
#[derive(Clone)]
pub struct Db {
    pool: Arc<Pool>,
    options: TransactionOptions,
}

struct Pool {
    jobs: Sender<Job>,
    threads: Vec<JoinHandle<()>>,
    waits: Arc<Waits>,
}

/// Shortest time for which [`Db::resolve`] waits for a worker.
const LOOK: Duration = Duration::from_secs(1);
/// Latest time of an alarm: 136 years.
const ALARM_MAX: Duration = Duration::from_secs(1 << 32);
/// Number of transactions that can wait in the queue, for each coroutine of the pool. If there are
/// more, their callers wait.
const QUEUED_PER_COROUTINE: usize = 4;

impl Cluster {
    /// Makes a pool of `threads` workers, each on its own thread, and returns a handle to it that
    /// is `Send` and `Sync`. Fails if `threads` or the options exceed a limit, and as
    /// [`Cluster::worker`] does.
    pub fn db(&self, threads: usize, options: WorkerOptions) -> Result<Db, OpenError> {
        Db::new(self, threads, options)
    }
}

impl Db {
    fn new(cluster: &Cluster, threads: usize, options: WorkerOptions) -> Result<Db, OpenError> {
        options.check()?;
        match threads {
            0 => return Err(MemoryError::empty("the number of threads").into()),
            // Each thread is a client.
            _ if threads > CLIENTS_MAX => {
                return Err(MemoryError::limit("threads", threads as u64, CLIENTS_MAX as u64).into());
            }
            _ => {}
        }
        let coroutines = threads * options.coroutines;
        let (jobs, queue) = async_channel::bounded(coroutines * QUEUED_PER_COROUTINE);
        let alive = Arc::new(AtomicUsize::new(threads));
        let waits = Arc::new(Waits { calls: Mutex::new(vec![0; coroutines]) });
        let mut pool = Pool { jobs, threads: Vec::with_capacity(threads), waits };
        for index in 0..threads {
            let (ready, opened) = async_channel::bounded(1);
            let (cluster, queue, waits) = (cluster.clone(), queue.clone(), pool.waits.clone());
            let first = index * options.coroutines;
            let options = WorkerOptions { seed: options.seed.wrapping_add(index as u64), ..options };
            let alive = alive.clone();
            let run = move || match cluster.worker(options) {
                Ok(mut worker) => {
                    let _ = ready.try_send(Ok(()));
                    let _last = Last { alive, queue: queue.clone() };
                    OF_POOL.set(Some(waits));
                    worker.run(async |number, session| serve(session, &queue, first + number).await);
                }
                Err(error) => drop(ready.try_send(Err(error))),
            };
            let thread = thread::Builder::new().name(format!("remora-{index}")).spawn(run);
            pool.threads.push(thread.map_err(|error| MemoryError::Thread(error.into()))?);
            opened.recv_blocking().unwrap_or(Err(MemoryError::empty("the worker").into()))?;
        }
        Ok(Db { pool: Arc::new(pool), options: TransactionOptions::default() })
    }

    /// Returns a handle to this pool whose transactions give up after `patience`, counted from the
    /// call. They then fail with [`Limit::Deadline`].
    ///
    /// The deadline bounds the wait for a worker, all attempts, and the wait for the answer. Once
    /// it has passed, the transaction does not commit. There is one exception: if its commit had
    /// begun, the call waits for the commit's answer. For [`Db::run`], the deadline bounds only the
    /// wait for a worker. No deadline bounds the wait if a closure blocks its thread: several
    /// coroutines share the thread, and the answers of the others come late.
    #[must_use]
    pub fn with_deadline(&self, patience: Duration) -> Db {
        Db { pool: self.pool.clone(), options: TransactionOptions { deadline: Some(patience), ..self.options } }
    }

    /// Runs a closure as a transaction on one of the workers, and tries it again while it aborts.
    /// The [crate's documentation](crate) says what a closure must know, and what the errors mean.
    /// In addition, the call fails with [`Error::WorkerDied`] if the worker's thread dies, and with
    /// [`Misuse::PoolWaitsForItself`] if no coroutine of the pool could ever run the closure. A
    /// panic in the closure aborts the transaction, and resumes in the caller.
    ///
    /// If the returned future is dropped before its first poll, the transaction does not run. If it
    /// is dropped later, the transaction may run all the same, and its outcome is lost.
    pub async fn transact<T, F>(&self, mut body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error> + Send + 'static,
    {
        let (options, asked) = (self.options, Instant::now());
        let Some(deadline) = options.deadline else {
            let work = async move |session: &mut Session| {
                session.asked_at(asked);
                session.transact_with(options, body).await
            };
            return self.send(None, work).await;
        };
        let gate = Arc::new(Gate::default());
        let at_work = gate.clone();
        let work = async move |session: &mut Session| {
            let gate = at_work;
            session.asked_at(asked);
            let outcome = session.transact_with(options, async |tx| {
                gate.reopen()?;
                let value = body(tx).await?;
                gate.pass()?;
                Ok(value)
            });
            outcome.await
        };
        self.send(Some((gate, deadline)), work).await
    }

    /// Returns the outcome of a transaction of this cluster whose answer was lost, as
    /// [`Session::resolve`] does. The wait for a worker counts as a part of `patience`, but the
    /// call waits for a worker for at least a second. Returns [`Verdict::Undecided`] if no worker
    /// is free in that time.
    pub async fn resolve(&self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        let (asked, gate) = (Instant::now(), Arc::new(Gate::default()));
        // Even without any patience, the call looks once.
        let until = patience.max(LOOK);
        let at_work = gate.clone();
        let work = async move |session: &mut Session| {
            at_work.pass()?;
            session.resolve(id, patience.saturating_sub(asked.elapsed())).await
        };
        match self.send(Some((gate, until)), work).await {
            Err(Error::Limit(reason)) if reason.cause == Limit::Deadline => Ok(Verdict::Undecided),
            resolved => resolved,
        }
    }

    /// Returns the outcome of a transaction, as [`resolve`](Db::resolve) does, but blocks the
    /// calling thread. Do not call it on a thread that runs an executor. Fails with
    /// [`Misuse::PoolThreadBlocked`] on a thread of the same pool.
    pub fn resolve_blocking(&self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        self.block_on(self.resolve(id, patience))
    }

    /// Runs a closure on one of the workers with the worker's session. It is for work that takes
    /// several transactions, or that is more than a transaction, such as [`Large::write`]. Fails
    /// with the closure's error, and with [`Error::WorkerDied`] or [`Misuse::PoolWaitsForItself`]
    /// as [`Db::transact`] does. A panic in the closure resumes in the caller.
    ///
    /// [`Large::write`]: crate::Large::write
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Session) -> Result<T, Error> + Send + 'static,
    {
        let Some(deadline) = self.options.deadline else { return self.send(None, work).await };
        let gate = Arc::new(Gate::default());
        let at_work = gate.clone();
        let work = async move |session: &mut Session| {
            at_work.pass()?;
            work(session).await
        };
        self.send(Some((gate, deadline)), work).await
    }

    /// Sends work to one of the workers and waits for its answer, but no longer than the gate stays
    /// open.
    async fn send<T, F>(&self, until: Option<(Arc<Gate>, Duration)>, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Session) -> Result<T, Error> + Send + 'static,
    {
        let wait = Wait::begin(&self.pool.waits)?;
        let is_awaited = wait.clone();
        let (reply, answer) = async_channel::bounded(1);
        let job: Job = Box::new(move |session| {
            Box::pin(async move {
                let outcome = catch_panic(work(session)).await;
                // The caller can go on from here. It must not count as waiting any more when this
                // coroutine takes its next job.
                is_awaited.iter().for_each(|wait| wait.end());
                // The caller may have gone.
                let _ = reply.try_send(outcome);
            })
        });
        let _wait = Waiting(wait);
        let (gate, mut alarm) = match until {
            Some((gate, deadline)) => (Some(gate), Some(Delay::new(deadline.min(ALARM_MAX)))),
            None => (None, None),
        };
        let sent = before(&mut alarm, self.pool.jobs.send(job)).await;
        let Some(sent) = sent else { return Err(Limit::Deadline.into()) };
        if sent.is_err() {
            return Err(Error::WorkerDied { may_have_committed: false }); // all threads have died
        }
        let mut answer = pin!(answer.recv());
        let answered = match before(&mut alarm, answer.as_mut()).await {
            Some(answered) => answered,
            None if gate.is_some_and(|gate| gate.close()) => return Err(Limit::Deadline.into()),
            // The transaction is committing. This takes no longer than the worker waits for memory
            // nodes, unless something else keeps the worker's thread from running.
            None => answer.await,
        };
        match answered {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(Error::WorkerDied { may_have_committed: true }),
        }
    }

    fn block_on<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.pool.waits.is_here() {
            return Err(Misuse::PoolThreadBlocked.into());
        }
        pollster::block_on(call)
    }

    /// Runs a closure on one of the workers, as [`Db::run`] does, but blocks the calling thread. Do
    /// not call it on a thread that runs an executor. Fails with [`Misuse::PoolThreadBlocked`] on a
    /// thread of the same pool.
    pub fn run_blocking<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Session) -> Result<T, Error> + Send + 'static,
    {
        self.block_on(self.run(work))
    }

    /// Runs a closure as a transaction, as [`Db::transact`] does, but blocks the calling thread. Do
    /// not call it on a thread that runs an executor. Fails with [`Misuse::PoolThreadBlocked`] on a
    /// thread of the same pool.
    pub fn transact_blocking<T, F>(&self, body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error> + Send + 'static,
    {
        self.block_on(self.transact(body))
    }
}

/// Ends the queue with the pool's last thread. If that thread has died, no thread is left to run
/// the work in the queue. So the work is dropped, and its callers get [`Error::WorkerDied`].
struct Last {
    /// Number of threads of the pool that run.
    alive: Arc<AtomicUsize>,
    queue: Receiver<Job>,
}

impl Drop for Last {
    fn drop(&mut self) {
        if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.queue.close();
            while self.queue.try_recv().is_ok() {}
        }
    }
}

async fn serve(session: &mut Session, queue: &Receiver<Job>, coroutine: usize) {
    while let Ok(job) = queue.recv().await {
        let mut job = job(session);
        let turn = poll_fn(|context| {
            COROUTINE.set(Some(coroutine));
            let polled = job.as_mut().poll(context);
            COROUTINE.set(None);
            polled
        });
        turn.await;
    }
}

/// Returns what a future returns, or `None` if the alarm goes off first.
async fn before<T>(alarm: &mut Option<Delay>, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let first = poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        match alarm.as_mut().map(|alarm| pin!(alarm).poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(None),
            _ => Poll::Pending,
        }
    });
    first.await
}

/// The agreement between a caller and the worker that runs its work. Before the worker passes the
/// gate, the caller can close it and give the work up for good. After that, the caller awaits the
/// answer.
#[derive(Default)]
struct Gate(AtomicU8);

impl Gate {
    const OPEN: u8 = 0;
    const PASSED: u8 = 1;
    const CLOSED: u8 = 2;

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Passes the gate, because the commit is next. Fails if the caller has given up.
    fn pass(&self) -> Result<(), Error> {
        if self.change(Gate::OPEN, Gate::PASSED) { Ok(()) } else { Err(Limit::Deadline.into()) }
    }

    /// Opens the gate again, because the next attempt begins: the commit of the last attempt, if
    /// there was one, has aborted. Fails if the caller has given up.
    fn reopen(&self) -> Result<(), Error> {
        let is_closed = !self.change(Gate::PASSED, Gate::OPEN) && self.0.load(Ordering::Acquire) == Gate::CLOSED;
        if is_closed { Err(Limit::Deadline.into()) } else { Ok(()) }
    }

    /// Gives the work up for the caller. Returns false if it is too late for that.
    fn close(&self) -> bool {
        self.change(Gate::OPEN, Gate::CLOSED)
    }
}

thread_local! {
    /// The waits of the pool whose worker runs on this thread, if there is one.
    static OF_POOL: RefCell<Option<Arc<Waits>>> = const { RefCell::new(None) };
    /// The number of the pool's coroutine that is being polled, if there is one.
    static COROUTINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Which coroutines of a pool wait for work that they have sent to the same pool.
struct Waits {
    /// Number of calls that each coroutine awaits.
    calls: Mutex<Vec<u32>>,
}

impl Waits {
    /// Returns whether this is a thread of the pool.
    fn is_here(self: &Arc<Waits>) -> bool {
        OF_POOL.with_borrow(|pool| pool.as_ref().is_some_and(|pool| Arc::ptr_eq(pool, self)))
    }
}

/// A call from a coroutine of a pool to the same pool.
struct Wait {
    waits: Arc<Waits>,
    coroutine: usize,
    is_over: AtomicBool,
}

impl Wait {
    /// Notes a call from a coroutine of the pool, if this is one. Refuses the call if every other
    /// coroutine waits already, because then no work that the pool has begun could end.
    fn begin(waits: &Arc<Waits>) -> Result<Option<Arc<Wait>>, Misuse> {
        let Some(coroutine) = COROUTINE.get().filter(|_| waits.is_here()) else { return Ok(None) };
        let mut calls = lock(&waits.calls);
        if calls.iter().enumerate().all(|(other, calls)| *calls > 0 || other == coroutine) {
            return Err(Misuse::PoolWaitsForItself { coroutines: calls.len() });
        }
        calls[coroutine] += 1;
        Ok(Some(Arc::new(Wait { waits: waits.clone(), coroutine, is_over: AtomicBool::new(false) })))
    }

    /// Notes that the call has ended: its answer has come, or its future was dropped.
    fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            let mut calls = lock(&self.waits.calls);
            calls[self.coroutine] -= 1;
        }
    }
}

/// Ends a call even if its future is dropped.
struct Waiting(Option<Arc<Wait>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.iter().for_each(|wait| wait.end());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs.close();
        for thread in self.threads.drain(..) {
            // The last handle may be dropped on a thread of the pool, by a closure that held it. A
            // thread cannot join itself.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker of the pool panicked");
            }
        }
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("threads", &self.pool.threads.len()).finish_non_exhaustive()
    }
}
