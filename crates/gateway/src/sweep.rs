//! Deletes keys that have expired and that no client asks for, tokens of `REMORA.ONCE` that have
//! expired, and pages of collections that no key has.
//!
//! A sweep is a walk over all keys, then one over all tokens, and then one over all tombstones, on
//! a thread and a worker of its own. It is slow, so that clients do not notice it. Every gateway
//! sweeps. Two that meet at a key both find it expired, and one of them deletes it.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::{Cluster, Error, OpenError, Worker, WorkerOptions};

use crate::clock::now;
use crate::record::Recorder;
use crate::store::{Name, Store};

/// The number of places of records that a step reads.
const SLOTS: usize = 128;
/// The pause between two steps. A step reads 24 KB or more, so a sweep reads some megabytes a
/// second.
const PAUSE: Duration = Duration::from_millis(5);
/// The pause between two sweeps.
const REST: Duration = Duration::from_secs(10);

/// A thread that sweeps until this is dropped.
#[derive(Debug)]
pub struct Sweeper {
    /// The thread stops when this is dropped.
    runs: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts to sweep the keys of a store. `recorder` records what it deletes. Fails as
    /// [`Cluster::worker`] does, or if there can be no thread.
    pub fn start(cluster: &Cluster, store: &Store, recorder: Option<Recorder>) -> Result<Sweeper, OpenError> {
        let (runs, running) = mpsc::channel();
        let (cluster, store) = (cluster.clone(), store.clone());
        let run = move || loop {
            match cluster.worker(WorkerOptions::default().coroutines(1)) {
                Ok(mut worker) => {
                    if let Some(recorder) = &recorder {
                        worker.sessions().iter_mut().for_each(|session| recorder.observe(session));
                    }
                    sweep_on(worker, &store, &running);
                }
                Err(error) => tracing::warn!(%error, "keys that have expired are not swept"),
            }
            if has_stopped(&running, REST) {
                return;
            }
        };
        let thread = thread::Builder::new().name("sweeper".to_owned()).spawn(run);
        let thread = thread.map_err(|error| remora::floors::node::MemoryError::Thread(error.into()))?;
        Ok(Sweeper { runs: Some(runs), thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.runs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Waits for this time, or until the thread is to stop. Returns whether it is.
fn has_stopped(running: &Receiver<()>, time: Duration) -> bool {
    running.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}

/// Sweeps again and again, until it is to stop or the worker can do no more.
fn sweep_on(mut worker: Worker, store: &Store, running: &Receiver<()>) {
    let (mut cursor, mut at) = (0, Table::Keys);
    loop {
        let step = worker.block_on(async |session| match at {
            Table::Keys => step(session, store, cursor).await,
            Table::Tokens => store.tokens.sweep(session, cursor, SLOTS, now()).await,
            Table::Graves => store.pages.sweep(session, cursor, SLOTS, now()).await,
        });
        match step {
            Ok(next) => {
                cursor = next;
                if cursor == 0 {
                    at = match at {
                        Table::Keys => Table::Tokens,
                        Table::Tokens => Table::Graves,
                        Table::Graves => Table::Keys,
                    };
                }
            }
            Err(Error::Fenced) => return,
            // A record that a dead client has locked is freed when that client is recovered.
            Err(error) => tracing::debug!(%error, "a step of a sweep is taken again"),
        }
        if has_stopped(running, if cursor == 0 && at == Table::Keys { REST } else { PAUSE }) {
            return;
        }
    }
}

/// The table that a sweep walks over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Keys,
    Tokens,
    Graves,
}

/// Deletes the keys of a step that have expired. Returns the next cursor.
async fn step(session: &mut remora::Session, store: &Store, cursor: u64) -> Result<u64, Error> {
    let (mut found, cursor) = store.walk(session, cursor, SLOTS).await?;
    let now = now();
    found.retain(|found| found.expiry.is_some_and(|expiry| expiry <= now));
    let names: Vec<Name<'_>> = found.iter().map(|found| (found.database, found.key.as_slice())).collect();
    store.delete(session, &names, Some(now)).await?;
    Ok(cursor)
}
