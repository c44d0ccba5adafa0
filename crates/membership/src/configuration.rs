//! Where the membership is kept, and the thread that waits for its changes.

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

/// Why the configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// This client was taken for dead.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The file cannot be read or written.
    #[error("the configuration {path} cannot be used: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// etcd cannot be used.
    #[error("the configuration in etcd at {endpoints}: {cause}")]
    Etcd {
        /// Host and port of each server that was asked.
        endpoints: String,
        /// Why.
        cause: EtcdFault,
    },
    /// What is there is something else.
    #[error("{0} holds no configuration of Remora's: name another place, or remove it")]
    Foreign(String),
    /// It was written by another version.
    #[error(
        "{place} has configuration format {found}; this program knows format {known}: use a program of that version"
    )]
    Format {
        /// The file, or the key in etcd.
        place: String,
        /// The version found.
        found: u32,
        /// The version known here.
        known: u32,
    },
    /// Nobody has made the change, since the configuration is being closed.
    #[error("the configuration is closed")]
    Closed,
    /// It is another cluster's.
    #[error(
        "{0} is the configuration of another cluster: name one place for each cluster, and remove what a cluster that is gone \
         has left"
    )]
    OtherCluster(String),
    /// It is another cluster's, and no process has it open: perhaps of a cluster that is gone.
    #[error(
        "{0} is the configuration of another cluster: name one place for each cluster; or, if that cluster is gone because its \
         memory nodes were started anew, remove {0}"
    )]
    OtherClusterAtRest(String),
}

/// A place that keeps the [`Membership`] and puts its changes into one order.
pub trait Configuration: Send + Sync + fmt::Debug {
    /// The membership's generation as last seen here: one load, so that a client may ask at any
    /// time. It may lag by as much as clients take to renew their leases.
    fn generation(&self) -> u64;

    /// Makes a change, atomically; nobody else sees a part of it. It may be made several times
    /// before it counts, so it is a function of the membership alone.
    fn update(&self, change: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError>;

    /// Looks at the membership as it was last seen here: with everything that has been changed or
    /// seen here before, and, a moment later, with what others have changed. Waits for nobody.
    fn inspect(&self, look: &mut dyn FnMut(&Membership)) -> Result<(), ConfigurationError> {
        self.update(&mut |membership| look(membership))
    }

    /// Has looks that are begun after it see what anybody has changed before it. Waits where they
    /// do not anyway.
    fn refresh(&self) -> Result<(), ConfigurationError> {
        Ok(())
    }

    /// The id of the cluster that it is the configuration of. `None` if it can serve any cluster.
    fn cluster(&self) -> Option<u64> {
        None
    }

    /// Who makes changes in another thread, where changes wait for other machines: transactions
    /// must not.
    fn helper(&self) -> Option<&Helper> {
        None
    }

    /// This process, as its clients join: by it others can tell when it has ended. `None` where all
    /// clients end with it.
    fn process(&self) -> Option<u64> {
        None
    }

    /// Whether a process that clients have joined from has ended, as far as can be told:
    /// [`Configuration::orphans`] is surer, and may be later.
    fn has_ended(&self, process: u64) -> bool {
        let _ = process;
        false
    }

    /// Clients of other processes that have ended without leaving. Nobody need wait until their
    /// leases have run out, and clients at rest have none that runs. To be asked many times a
    /// second; what it costs is the implementation's to bound.
    fn orphans(&self) -> Vec<u32> {
        Vec::new()
    }
}

impl dyn Configuration {
    /// Makes a change, for its result.
    pub fn change<T>(&self, mut change: impl FnMut(&mut Membership) -> T) -> Result<T, ConfigurationError> {
        let mut result = None;
        self.update(&mut |membership| result = Some(change(membership)))?;
        let Some(result) = result else { unreachable!("a change that was made has a result") };
        Ok(result)
    }

    /// The number of this configuration, which no other has. Clients that go by the same number
    /// know each other.
    pub fn identity(&self) -> Result<u64, ConfigurationError> {
        // Random, by what the standard library seeds its hash tables with.
        let proposed = RandomState::new().hash_one(std::process::id()) | 1;
        self.change(|membership| membership.identify(proposed))
    }

    /// Looks, for what is seen.
    pub fn look<T>(&self, mut look: impl FnMut(&Membership) -> T) -> Result<T, ConfigurationError> {
        let mut result = None;
        self.inspect(&mut |membership| result = Some(look(membership)))?;
        let Some(result) = result else { unreachable!("who has looked has seen something") };
        Ok(result)
    }
}

/// What is to be done with a configuration.
pub type Job = Box<dyn FnOnce(&(dyn Configuration + 'static)) + Send>;

/// A thread that does one job after the other, in the order in which they were handed over.
pub struct Helper {
    /// `None` when it ends.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// A new thread, for a configuration.
    pub fn start(name: &str, configuration: Arc<dyn Configuration>) -> io::Result<Helper> {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job(&*configuration));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Helper { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands over a job, which the thread does after all earlier jobs. Returns at once.
    pub fn hand_over(&self, job: Job) {
        // If the thread has panicked, the job is dropped: that tells a caller that waits for it.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

/// Waits until everything that was handed over is done.
impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was told there
        }
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}

/// The configuration of one process: of a simulation, a test, or a cluster that lives in it.
#[derive(Debug, Default)]
pub struct InMemory {
    membership: Mutex<Membership>,
    generation: AtomicU64,
    cluster: Option<u64>,
}

impl InMemory {
    /// Creates the configuration of the cluster with this id. No other cluster takes it.
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

/// The clients whose locks mean nothing any more, as the transactions of one thread ask for them:
/// the configuration is looked at only when its generation has changed.
#[derive(Debug)]
pub struct RecoveredClients {
    configuration: Arc<dyn Configuration>,
    looked: Cell<u64>,
    clients: RefCell<Vec<u32>>,
}

impl RecoveredClients {
    /// Creates a view of `configuration`.
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
