//! Deletes keys that have expired and that no client asks for.
//!
//! A sweep is a walk over all keys, on a thread and a worker of its own. It is slow, so that
//! clients do not notice it. Every gateway sweeps. Two that meet at a key both find it expired, and
//! one of them deletes it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::{Cluster, Error, OpenError, Worker, WorkerOptions};

use crate::clock::now;
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
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Sweeper {
    /// Starts to sweep the keys of a store. Fails as [`Cluster::worker`] does, or if there can be
    /// no thread.
    pub fn start(cluster: &Cluster, store: &Store) -> Result<Sweeper, OpenError> {
        let stop = Arc::new(Stop::default());
        let (cluster, store, until) = (cluster.clone(), store.clone(), stop.clone());
        let run = move || {
            while !until.is_set() {
                match cluster.worker(WorkerOptions::default().coroutines(1)) {
                    Ok(worker) => sweep_on(worker, &store, &until),
                    Err(error) => tracing::warn!(%error, "keys that have expired are not swept"),
                }
                until.wait(REST);
            }
        };
        let thread = thread::Builder::new().name("sweeper".to_owned()).spawn(run);
        let thread = thread.map_err(|error| remora::floors::node::MemoryError::Thread(error.into()))?;
        Ok(Sweeper { stop, thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Stop {
    fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for this time, or until it is set.
    fn wait(&self, time: Duration) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(is_set, time, |is_set| !*is_set));
    }
}

/// Sweeps again and again, until it is to stop or the worker can do no more.
fn sweep_on(mut worker: Worker, store: &Store, stop: &Stop) {
    let mut cursor = 0;
    while !stop.is_set() {
        match worker.block_on(async |session| step(session, store, cursor).await) {
            Ok(next) => cursor = next,
            Err(Error::Fenced) => return,
            // A record that a dead client has locked is freed when that client is recovered.
            Err(error) => tracing::debug!(%error, "a step of a sweep is taken again"),
        }
        stop.wait(if cursor == 0 { REST } else { PAUSE });
    }
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
