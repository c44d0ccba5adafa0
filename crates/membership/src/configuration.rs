//! The configuration: the place that keeps the membership and puts its changes into one order. Also
//! the helper thread that makes changes for callers which must not wait.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use remora_txn::recovery::Departed;

use crate::etcd::fault::EtcdFault;
use crate::membership::{Fenced, Membership, Standing};

/// The reason why the configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// This client was taken for dead, so it may not change the configuration.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The file cannot be read or written.
    #[error("the configuration {path} cannot be used: {cause}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// etcd cannot be used.
    #[error("the configuration in etcd at {endpoints}: {cause}")]
    Etcd {
        /// Host and port of each server that was asked.
        endpoints: String,
        /// The reason.
        cause: EtcdFault,
    },
    /// The place holds something that is not a configuration of Remora.
    #[error("{0} holds no configuration of Remora's: name another place, or remove it")]
    Foreign(String),
    /// Another version of the program wrote the configuration.
    #[error(
        "{place} has configuration format {found}; this program knows format {known}: use a program of that version"
    )]
    Format {
        /// The file, or the key in etcd.
        place: String,
        /// The format version that was found.
        found: u32,
        /// The format version that this program knows.
        known: u32,
    },
    /// The change was not made, because the configuration is being closed.
    #[error("the configuration is closed")]
    Closed,
    /// The configuration belongs to another cluster.
    #[error(
        "{0} is the configuration of another cluster: name one place for each cluster, and remove what a cluster that is gone \
         has left"
    )]
    OtherCluster(String),
    /// The configuration belongs to another cluster, and no process has it open. Perhaps that
    /// cluster is gone.
    #[error(
        "{0} is the configuration of another cluster: name one place for each cluster; or, if that cluster is gone because its \
         memory nodes were started anew, remove {0}"
    )]
    OtherClusterAtRest(String),
}

/// A place that keeps the [`Membership`] and puts its changes into one order.
pub trait Configuration: Send + Sync + fmt::Debug {
    /// Returns the membership's generation as this process last saw it. It costs one load, so a
    /// client may ask at any time. It may lag by as much as clients take to renew their leases.
    fn generation(&self) -> u64;

    /// Makes a change atomically: no other client sees a part of it. The closure may be called
    /// several times before the change counts, so it must be a function of the membership alone.
    fn update(&self, change: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError>;

    /// Calls `look` with the membership as this process last saw it. That contains everything that
    /// this process has changed or seen before, and after a moment also what others have changed.
    /// It waits for no other process.
    fn inspect(&self, look: &mut dyn FnMut(&Membership)) -> Result<(), ConfigurationError> {
        self.update(&mut |membership| look(membership))
    }

    /// Makes sure that looks which begin after this call see every change that any client made
    /// before it. Waits where looks do not see them anyway.
    fn refresh(&self) -> Result<(), ConfigurationError> {
        Ok(())
    }

    /// Returns the id of the cluster that this is the configuration of. `None` if it can serve any
    /// cluster.
    fn cluster(&self) -> Option<u64> {
        None
    }

    /// Returns the helper, a thread that makes changes in place of others. It exists where changes
    /// wait for other machines, because transactions must not wait for those.
    fn helper(&self) -> Option<&Helper> {
        None
    }

    /// Returns the name of this process with which its clients join. Others can tell by it when the
    /// process has ended. `None` where all clients end with the process.
    fn process(&self) -> Option<u64> {
        None
    }

    /// Whether a process that clients have joined from has ended, as far as can be told.
    /// [`Configuration::orphans`] is more certain, and may be later.
    fn has_ended(&self, process: u64) -> bool {
        let _ = process;
        false
    }

    /// Returns the clients of other processes that have ended without leaving. Their recovery need
    /// not wait until their leases have expired, and clients at rest have no lease that runs.
    /// Callers ask several times a second, so the implementation must bound the cost.
    fn orphans(&self) -> Vec<u32> {
        Vec::new()
    }
}

impl dyn Configuration {
    /// Makes a change, and returns the closure's result.
    pub fn change<T>(&self, mut change: impl FnMut(&mut Membership) -> T) -> Result<T, ConfigurationError> {
        let mut result = None;
        self.update(&mut |membership| result = Some(change(membership)))?;
        let Some(result) = result else { unreachable!("a change that was made has a result") };
        Ok(result)
    }

    /// Returns the number of this configuration, which no other configuration has. Clients that
    /// know the same number use the same configuration.
    pub fn identity(&self) -> Result<u64, ConfigurationError> {
        // This is random, because the standard library seeds its hash tables with random numbers.
        let proposed = RandomState::new().hash_one(std::process::id()) | 1;
        self.change(|membership| membership.identify(proposed))
    }

    /// Looks at the membership as this process last saw it, and returns the closure's result.
    pub fn look<T>(&self, mut look: impl FnMut(&Membership) -> T) -> Result<T, ConfigurationError> {
        let mut result = None;
        self.inspect(&mut |membership| result = Some(look(membership)))?;
        let Some(result) = result else { unreachable!("who has looked has seen something") };
        Ok(result)
    }
}

/// A piece of work on a configuration that a [`Helper`] does.
pub type Job = Box<dyn FnOnce(&(dyn Configuration + 'static)) + Send>;

/// A thread that does one job after the other, in the order in which they were handed over.
pub struct Helper {
    /// The queue of jobs. `None` when the helper ends.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts a thread for a configuration.
    pub fn start(name: &str, configuration: Arc<dyn Configuration>) -> io::Result<Helper> {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job(&*configuration));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Helper { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands over a job, which the thread does after all earlier jobs. This call returns at once.
    pub fn hand_over(&self, job: Job) {
        // If the thread has panicked, the job is dropped, and a caller that waits for the job
        // notices that.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

/// Waits until all jobs that were handed over are done.
impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was reported there
        }
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}

/// The configuration of one process: a simulation, a test, or a cluster that lives in the process.
#[derive(Debug, Default)]
pub struct InMemory {
    membership: Mutex<Membership>,
    generation: AtomicU64,
    cluster: Option<u64>,
}

impl InMemory {
    /// Creates the configuration of the cluster with this id. No other cluster can use it.
    #[must_use]
    pub fn of(cluster: u64) -> InMemory {
        InMemory { cluster: Some(cluster), ..InMemory::default() }
    }
}

impl Configuration for InMemory {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn update(&self, change: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError> {
        let mut membership = self.membership.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut membership);
        self.generation.store(membership.generation(), Ordering::Release);
        Ok(())
    }

    fn cluster(&self) -> Option<u64> {
        self.cluster
    }
}

/// The clients whose locks are void, as the transactions of one thread ask for them. It looks at
/// the configuration only when the generation has changed.
#[derive(Debug)]
pub struct RecoveredClients {
    configuration: Arc<dyn Configuration>,
    looked: Cell<u64>,
    clients: RefCell<Vec<u32>>,
}

impl RecoveredClients {
    /// Creates a view of `configuration` for one thread.
    #[must_use]
    pub fn new(configuration: Arc<dyn Configuration>) -> RecoveredClients {
        RecoveredClients { configuration, looked: Cell::new(0), clients: RefCell::default() }
    }
}

impl Departed for RecoveredClients {
    fn is_recovered(&self, client: u32) -> bool {
        let generation = self.configuration.generation();
        if self.looked.get() != generation {
            let recovered = |standing| matches!(standing, Standing::Recovered { .. } | Standing::Forgotten);
            let clients = self.configuration.look(|membership| {
                membership.clients().filter(|(_, standing)| recovered(*standing)).map(|(client, _)| client).collect()
            });
            match clients {
                Ok(clients) => {
                    self.clients.replace(clients);
                    self.looked.set(generation);
                }
                Err(error) => tracing::warn!(%error, "nobody knows whether the holder of a lock is dead"),
            }
        }
        self.clients.borrow().contains(&client)
    }
}
