//! The second door: a pool of workers behind a handle that any thread and any executor can use.

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

/// A handle to a pool of workers. Clones share the pool; it ends when the last clone is gone and
/// what was sent is done.
///
/// A closure may await the same `Db`: its coroutine waits meanwhile, and the other transaction
/// needs one of its own. When all coroutines of the pool wait like that, the next such call is
/// refused ([`Misuse::PoolWaitsForItself`]), since none would ever be free again. What a closure
/// awaits through other pools or other threads is not seen: give it a deadline.
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

/// How long a worker is waited for at least that is to look for what became of a transaction.
const LOOK: Duration = Duration::from_secs(1);
/// Alarms have no later times; 136 years.
const ALARM_MAX: Duration = Duration::from_secs(1 << 32);
/// Transactions that wait for a worker, for each coroutine: more make their senders wait.
const QUEUED_PER_COROUTINE: usize = 4;

impl Cluster {
    /// A pool of `threads` workers behind one handle that is `Send` and `Sync`.
    pub fn db(&self, threads: usize, options: WorkerOptions) -> Result<Db, OpenError> {
        Db::new(self, threads, options)
    }
}

impl Db {
    fn new(cluster: &Cluster, threads: usize, options: WorkerOptions) -> Result<Db, OpenError> {
        options.check()?;
        match threads {
            0 => return Err(MemoryError::empty("the number of threads").into()),
            // Each of them is a client.
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

    /// A handle to this pool whose transactions give up after a time, counted from the call. The
    /// deadline bounds the wait for a worker, all attempts, and the wait for the answer. Once it
    /// has passed the transaction will not commit, unless its commit had begun: then the answer to
    /// that is awaited. What [`Db::run`] runs is bounded until a worker begins it. A closure that
    /// blocks its thread, which several coroutines share, holds up the answers of the others: no
    /// deadline bounds that.
    #[must_use]
    pub fn with_deadline(&self, patience: Duration) -> Db {
        Db { pool: self.pool.clone(), options: TransactionOptions { deadline: Some(patience), ..self.options } }
    }

    /// Runs a closure as a transaction on some worker, again while it aborts. See the crate's first
    /// page for what it must know. A panic in it aborts the transaction and resumes here.
    ///
    /// Dropping the returned future before its first poll does nothing; later it does not stop the
    /// transaction, whose outcome is then lost.
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

    /// What became of a transaction of this cluster whose answer was lost: see
    /// [`Session::resolve`]. The wait for a worker counts, but a second is given to it at least.
    pub async fn resolve(&self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        let (asked, gate) = (Instant::now(), Arc::new(Gate::default()));
        // Without any patience there is still one look.
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

    /// Finds out what became of a transaction, like [`resolve`](Db::resolve), but blocks the
    /// calling thread. Do not call it on a thread that runs an executor.
    pub fn resolve_blocking(&self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        self.block_on(self.resolve(id, patience))
    }

    /// Runs something on some worker that takes several transactions, or more than transactions:
    /// [`Large::write`], say. A panic in it resumes here.
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

    /// Sends work to some worker and waits for its answer, but no longer than the gate stays open.
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
                // Its caller can go on from here, and is not one that waits any more when this
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
            return Err(Error::WorkerDied { may_have_committed: false }); // all of them have
        }
        let mut answer = pin!(answer.recv());
        let answered = match before(&mut alarm, answer.as_mut()).await {
            Some(answered) => answered,
            None if gate.is_some_and(|gate| gate.close()) => return Err(Limit::Deadline.into()),
            // It is committing: no longer than memory nodes are waited for, or than something else
            // keeps the worker's thread from running.
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

    /// [`Db::run`], blocking the calling thread. Not for a thread that runs an executor.
    pub fn run_blocking<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Session) -> Result<T, Error> + Send + 'static,
    {
        self.block_on(self.run(work))
    }

    /// [`Db::transact`], blocking the calling thread. Not for a thread that runs an executor.
    pub fn transact_blocking<T, F>(&self, body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error> + Send + 'static,
    {
        self.block_on(self.transact(body))
    }
}

/// Ends the queue with the pool's last thread. If that thread has died, no thread is left to answer
/// what was sent. Then it is dropped, and its senders are told ([`Error::WorkerDied`]).
struct Last {
    /// Threads of the pool that run.
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

/// What a future returns, unless the alarm goes off first.
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

/// What a caller and the worker that runs its work agree on: before the gate is passed, the caller
/// can give the work up for good; after that it awaits the answer.
#[derive(Default)]
struct Gate(AtomicU8);

impl Gate {
    const OPEN: u8 = 0;
    const PASSED: u8 = 1;
    const CLOSED: u8 = 2;

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The commit is next.
    fn pass(&self) -> Result<(), Error> {
        if self.change(Gate::OPEN, Gate::PASSED) { Ok(()) } else { Err(Limit::Deadline.into()) }
    }

    /// The next attempt begins: the commit of the last one, if there was one, has aborted.
    fn reopen(&self) -> Result<(), Error> {
        let is_closed = !self.change(Gate::PASSED, Gate::OPEN) && self.0.load(Ordering::Acquire) == Gate::CLOSED;
        if is_closed { Err(Limit::Deadline.into()) } else { Ok(()) }
    }

    /// The caller gives up; false if it is too late for that.
    fn close(&self) -> bool {
        self.change(Gate::OPEN, Gate::CLOSED)
    }
}

thread_local! {
    /// The calls within the pool whose worker runs on this thread.
    static OF_POOL: RefCell<Option<Arc<Waits>>> = const { RefCell::new(None) };
    /// The coroutine of that pool that is being polled.
    static COROUTINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Which coroutines of a pool wait for work that they have sent to the same pool.
struct Waits {
    /// Calls that each coroutine awaits.
    calls: Mutex<Vec<u32>>,
}

impl Waits {
    /// Whether this is a thread of the pool.
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
    /// Notes such a call. It is refused if every other coroutine waits already: then nothing that
    /// the pool has begun can end.
    fn begin(waits: &Arc<Waits>) -> Result<Option<Arc<Wait>>, Misuse> {
        let Some(coroutine) = COROUTINE.get().filter(|_| waits.is_here()) else { return Ok(None) };
        let mut calls = lock(&waits.calls);
        if calls.iter().enumerate().all(|(other, calls)| *calls > 0 || other == coroutine) {
            return Err(Misuse::PoolWaitsForItself { coroutines: calls.len() });
        }
        calls[coroutine] += 1;
        Ok(Some(Arc::new(Wait { waits: waits.clone(), coroutine, is_over: AtomicBool::new(false) })))
    }

    /// The answer is there, or its future was dropped.
    fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            let mut calls = lock(&self.waits.calls);
            calls[self.coroutine] -= 1;
        }
    }
}

/// Ends a call also if its future is dropped.
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
            // The last handle may be dropped on a worker, by a closure that held one.
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
