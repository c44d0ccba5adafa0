//! The second door: a pool of workers behind a handle that any thread and any executor can use.

use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use remora_fabric::catch_panic;
use remora_memory::MemoryError;
use remora_sync::TransactionId;
use remora_txn::recovery::Verdict;

use crate::cluster::Cluster;
use crate::error::{Error, OpenError};
use crate::transaction::Transaction;
use crate::worker::{Session, TransactionOptions, WorkerOptions};

type Job = Box<dyn for<'s> FnOnce(&'s mut Session) -> Pin<Box<dyn Future<Output = ()> + 's>> + Send>;

/// A handle to a pool of workers. Clones share the pool; it ends when the last clone is gone and what was sent is done.
#[derive(Clone)]
pub struct Db {
    pool: Arc<Pool>,
    options: TransactionOptions,
}

struct Pool {
    jobs: Sender<Job>,
    threads: Vec<JoinHandle<()>>,
}

/// Transactions that wait for a worker, for each coroutine: more make their senders wait.
const QUEUED_PER_COROUTINE: usize = 4;

impl Db {
    pub(crate) fn new(cluster: &Cluster, threads: usize, options: WorkerOptions) -> Result<Db, OpenError> {
        if threads == 0 {
            return Err(MemoryError::Empty("the number of threads").into());
        }
        let (jobs, queue) = async_channel::bounded(threads * options.coroutines.max(1) * QUEUED_PER_COROUTINE);
        let mut pool = Pool { jobs, threads: Vec::with_capacity(threads) };
        for index in 0..threads {
            let (ready, opened) = async_channel::bounded(1);
            let (cluster, queue) = (cluster.clone(), queue.clone());
            let options = WorkerOptions { seed: options.seed.wrapping_add(index as u64), ..options };
            let run = move || match cluster.worker(options) {
                Ok(mut worker) => {
                    let _ = ready.try_send(Ok(()));
                    worker.run(async |_, session| serve(session, &queue).await);
                }
                Err(error) => drop(ready.try_send(Err(error))),
            };
            let thread = thread::Builder::new().name(format!("remora-{index}")).spawn(run);
            let Ok(thread) = thread else {
                return Err(MemoryError::Limit { what: "threads", value: threads as u64, max: index as u64 }.into());
            };
            pool.threads.push(thread);
            opened.recv_blocking().unwrap_or(Err(MemoryError::Empty("the worker").into()))?;
        }
        Ok(Db { pool: Arc::new(pool), options: TransactionOptions::default() })
    }

    /// The same pool, for transactions that give up after so long.
    #[must_use]
    pub fn with_deadline(&self, patience: Duration) -> Db {
        Db { pool: self.pool.clone(), options: TransactionOptions { deadline: Some(patience), ..self.options } }
    }

    /// Runs a closure as a transaction on some worker, again while it aborts. See the crate's first page for what it must
    /// know. A panic in it aborts the transaction and resumes here.
    ///
    /// Dropping the returned future before its first poll does nothing; later it does not stop the transaction, whose
    /// outcome is then lost.
    pub async fn transact<T, F>(&self, mut body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error> + Send + 'static,
    {
        let options = self.options;
        self.run(async move |session: &mut Session| session.transact_with(options, async |tx| body(tx).await).await)
            .await
    }

    /// What became of a transaction whose answer was lost: see [`Session::resolve`].
    pub async fn resolve(&self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        self.run(async move |session: &mut Session| session.resolve(id, patience).await).await
    }

    /// The same, blocking the calling thread. Not for a thread that runs an executor.
    pub fn resolve_blocking(&self, id: TransactionId, patience: Duration) -> Result<Verdict, Error> {
        pollster::block_on(self.resolve(id, patience))
    }

    /// Runs something on some worker that takes several transactions, or more than transactions: [`Large::write`], say. A
    /// panic in it resumes here.
    ///
    /// [`Large::write`]: crate::Large::write
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Session) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = async_channel::bounded(1);
        let job: Job = Box::new(move |session| {
            Box::pin(async move {
                let outcome = catch_panic(work(session)).await;
                // Whoever asked may have gone.
                let _ = reply.try_send(outcome);
            })
        });
        assert!(self.pool.jobs.send(job).await.is_ok(), "workers run as long as there is a handle");
        match answer.recv().await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => panic!("a worker of the pool has died"),
        }
    }

    /// [`Db::run`], blocking the calling thread. Not for a thread that runs an executor.
    pub fn run_blocking<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut Session) -> Result<T, Error> + Send + 'static,
    {
        pollster::block_on(self.run(work))
    }

    /// [`Db::transact`], blocking the calling thread. Not for a thread that runs an executor.
    pub fn transact_blocking<T, F>(&self, body: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error> + Send + 'static,
    {
        pollster::block_on(self.transact(body))
    }
}

async fn serve(session: &mut Session, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv().await {
        job(session).await;
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
