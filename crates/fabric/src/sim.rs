//! A cluster in virtual time, on one thread: memory nodes with real bytes, and machines, NICs and
//! memory that cost what a [`Profile`] says. The same seed gives the same run, event for event.
//!
//! Two ways to use it:
//!
//! - **Driven**: the caller starts workers on simulated machines
//!   ([`Worker::start`](crate::Worker::start)) and hands them to [`Sim::run`]. Each worker has a
//!   core of its own, which runs one coroutine at a time, and pays for what that does: posting,
//!   polling, switching, and what [`Endpoint::charge`](crate::Endpoint::charge) says.
//! - **By itself**: any [`Worker::run`](crate::Worker::run) on its endpoints lets time pass
//!   whenever it polls. CPUs cost nothing then. Tests and tools use it so.
//!
//! While it is [`instant`](Sim::instant), rounds complete at once and no time passes: for
//! formatting and loading.
//!
//! It is as hostile as the contract of a round allows, unless [`SimOptions::hostile`] is off: a
//! READ takes its lines at separate instants in any order; what is no line of a record tears at
//! words; verbs that are not ordered change places. Faults come from a plan: [`Planned`].

mod costs;
mod faults;
mod profile;
#[cfg(feature = "profiles")]
mod profiles;
mod queue;
mod recording;
mod transport;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use faults::{FaultKind, Injected, Planned};
pub use profile::{Calls, Clock, Cpu, Machine, Medium, Nic, Path, Profile, Switch};
#[cfg(feature = "profiles")]
pub use profiles::ProfileError;
pub use recording::{Recorded, Recording};

use crate::address::{Address, NodeId, RegionId};
use crate::copy;
use crate::error::FabricError;
use crate::executor::{Turn, Turned};
use crate::ids::{ClientId, Nanos};
use crate::region::{Region, RegionError};
use crate::service::{Service, ServiceHandle};
use crate::shm::Memory;
use crate::transport::{Capabilities, Fabric, Flush, Handler, Host, Transport};
use queue::NS;
use transport::SimTransport;
use world::{Step, Work, World};

/// Who runs where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deployment {
    /// Memory nodes are machines of their own, whose few threads serve calls.
    #[default]
    Disaggregated,
    /// Every machine is a memory node and runs workers, which serve the calls of others between
    /// their own transactions.
    Symmetric,
}

/// Options of a simulated cluster.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The hardware.
    pub profile: Profile,
    /// Memory of the memory nodes, by its name in the profile.
    pub medium: String,
    /// Who runs where.
    pub deployment: Deployment,
    /// Whether NICs write to the processors' caches.
    pub ddio: bool,
    /// Whether NIC and memory of a node belong to different sockets.
    pub cross_socket: bool,
    /// Everything that the contract allows happens, by chance.
    pub hostile: bool,
    /// How often an access to memory takes many times as long as usual, 0 to 1.
    pub stretch: f64,
    /// Seed of all chance.
    pub seed: u64,
}

impl SimOptions {
    /// A cluster of this hardware with DRAM.
    #[must_use]
    pub fn new(profile: Profile, seed: u64) -> SimOptions {
        SimOptions {
            profile,
            medium: "dram".to_owned(),
            deployment: Deployment::default(),
            ddio: true,
            cross_socket: false,
            hostile: true,
            stretch: 0.0,
            seed,
        }
    }
}

/// What a simulation has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimStatistics {
    /// Events.
    pub events: u64,
    /// Verbs posted.
    pub verbs: u64,
    /// Parts of verbs that have taken effect.
    pub pieces: u64,
    /// Groups of verbs that their client's death kept from leaving.
    pub lost_groups: u64,
    /// Groups that were sent again because of a partition.
    pub resent_groups: u64,
    /// Calls that were lost, or their answers, and sent again.
    pub resent_calls: u64,
    /// Calls that arrived again after they had been served, and were not served again.
    pub suppressed_calls: u64,
}

impl SimStatistics {
    /// What has been done since `earlier`, a former value of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &SimStatistics) -> SimStatistics {
        SimStatistics {
            events: self.events - earlier.events,
            verbs: self.verbs - earlier.verbs,
            pieces: self.pieces - earlier.pieces,
            lost_groups: self.lost_groups - earlier.lost_groups,
            resent_groups: self.resent_groups - earlier.resent_groups,
            resent_calls: self.resent_calls - earlier.resent_calls,
            suppressed_calls: self.suppressed_calls - earlier.suppressed_calls,
        }
    }
}

/// Why there is no simulation.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The memory cannot be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The profile has no such medium.
    #[error("profile {profile} has no medium {medium}: it has {known}")]
    NoMedium {
        /// Name of the profile.
        profile: String,
        /// What was asked for.
        medium: String,
        /// What there is.
        known: String,
    },
}

/// A worker of a driven simulation.
pub struct Driven<'r> {
    /// The worker's client incarnations.
    pub clients: Vec<ClientId>,
    /// The worker's coroutines.
    pub run: &'r mut dyn Turn,
}

impl fmt::Debug for Driven<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").field("clients", &self.clients).finish_non_exhaustive()
    }
}

/// How a driven simulation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Every worker that is alive has finished.
    Finished,
    /// The time is over.
    OutOfTime,
    /// Workers wait for something that never comes.
    Deadlock,
}

/// The simulated backend. Clones are the same cluster.
#[derive(Clone)]
pub struct Sim {
    memory: Arc<Memory>,
    world: Arc<Mutex<World>>,
    capabilities: Capabilities,
}

impl Sim {
    /// Memory nodes with the given regions, sizes in bytes.
    pub fn new(nodes: &[Vec<usize>], options: &SimOptions) -> Result<Sim, SimError> {
        let memory = Arc::new(Memory::map(nodes)?);
        let profile = &options.profile;
        let mut world = World::new(memory.clone(), options).ok_or_else(|| SimError::NoMedium {
            profile: profile.name.clone(),
            medium: options.medium.clone(),
            known: profile.media.keys().cloned().collect::<Vec<_>>().join(", "),
        })?;
        let medium = &profile.media[&options.medium];
        // With DDIO a flush reaches the processor's cache.
        let flush = match medium {
            Medium { persistent: true, caches_persistent, .. } if *caches_persistent || !options.ddio => {
                Flush::Persistent
            }
            _ => Flush::Visible,
        };
        world.flush_persists = flush == Flush::Persistent;
        let capabilities = Capabilities {
            atomic_line: true,
            coherent_atomics: profile.coherent_atomics,
            atomic_writes: true,
            flush,
            revoke: true,
            partitions: true,
        };
        Ok(Sim { memory, world: Arc::new(Mutex::new(world)), capabilities })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether rounds complete at once and take no time from now on.
    pub fn instant(&self, instant: bool) {
        self.world().instant = instant;
    }

    /// Clients that connect from now on are on this client machine. With [`Deployment::Symmetric`]
    /// client machines are the memory nodes.
    pub fn place(&self, machine: usize) {
        self.world().place = machine;
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.world().now / NS
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> SimStatistics {
        self.world().statistics
    }

    /// Runs workers, each on a core of its own, until all have finished or the time is over.
    pub fn run(&self, workers: &mut [Driven<'_>], until: Option<Nanos>) -> Ended {
        let ended = self.drive(workers, until);
        let mut world = self.world();
        world.driven = false;
        world.remove_cores();
        ended
    }

    fn drive(&self, workers: &mut [Driven<'_>], until: Option<Nanos>) -> Ended {
        {
            let mut world = self.world();
            world.driven = true;
            for worker in &*workers {
                let core = world.add_core(&worker.clients);
                let now = world.now;
                // Not all in the same instant.
                let begin = now + world.prng.below(1_000 * NS);
                world.wake(core, begin);
            }
        }
        let until = until.map_or(u64::MAX, |until| until.saturating_mul(NS));
        let mut idle_events = 0u32;
        loop {
            let core = {
                let mut world = self.world();
                loop {
                    if world.running_cores == 0 {
                        return Ended::Finished;
                    }
                    match world.next_at() {
                        None => return Ended::Deadlock,
                        Some(at) if at > until => return Ended::OutOfTime,
                        Some(_) => {}
                    }
                    world.coming(|core, lane| workers[core].run.prefetch(lane));
                    match world.step() {
                        Step::Turn(core) => {
                            idle_events = 0;
                            break core;
                        }
                        Step::Work(work) => {
                            drop(world);
                            self.work(work);
                            world = self.world();
                        }
                        Step::Nothing => {}
                    }
                    idle_events += 1;
                    if idle_events > IDLE_EVENTS_MAX {
                        return Ended::Deadlock;
                    }
                }
            };
            self.world().acting = Some(core);
            let turned = workers[core].run.turn();
            let mut world = self.world();
            world.acting = None;
            let clock = world.cores[core].clock;
            match turned {
                Turned::Finished => world.stop_core(core),
                Turned::Ready => world.wake(core, clock),
                Turned::Waiting(Some(timer)) => world.wake(core, timer.saturating_mul(NS)),
                Turned::Waiting(None) => {}
            }
        }
    }

    /// The next event happens, of a simulation that nobody drives.
    fn step(&self) {
        let step = self.world().step();
        if let Step::Work(work) = step {
            self.work(work);
        }
    }

    /// A memory node's CPU does what it has to do, while verbs go on.
    fn work(&self, mut work: Work) {
        let beside = self.clone();
        copy::with_pauses(Rc::new(move || beside.world().meanwhile()), || work.run(&self.memory));
        self.world().worked(work);
    }

    /// Steps the memory nodes' services until none finds work; takes no time.
    pub fn settle_services(&self) {
        self.world().settle_services();
    }

    /// A fault that happens when its probe has been reached.
    pub fn plan(&self, planned: Planned) {
        self.world().faults.plan(planned);
    }

    /// The faults that have happened.
    #[must_use]
    pub fn injected(&self) -> Vec<Injected> {
        self.world().faults.injected.clone()
    }

    /// Faults that have been planned and have not happened.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.world().faults.waiting()
    }

    /// Planned faults that wait for a client to reach a probe.
    #[must_use]
    pub fn waiting_for(&self, probe: &str) -> usize {
        self.world().faults.waiting_for(probe)
    }

    /// How often each probe was reached.
    #[must_use]
    pub fn reached(&self) -> BTreeMap<&'static str, u64> {
        self.world().faults.reached.iter().copied().collect()
    }

    /// A client's machine dies now.
    pub fn crash(&self, client: ClientId) {
        let mut world = self.world();
        for connection in 0..world.connections.len() {
            if world.connections[connection].client == client {
                world.kill(connection);
            }
        }
    }

    /// Whether a client has died.
    #[must_use]
    pub fn is_dead(&self, client: ClientId) -> bool {
        self.world().connections.iter().any(|connection| connection.client == client && connection.dead)
    }

    /// A node that has failed works again, for clients that connect from now on: with what its
    /// medium has kept, or, where that keeps nothing, empty. Its process is another one: handler
    /// and services know nothing of before.
    pub fn restart(&self, node: NodeId) {
        let mut world = self.world();
        if usize::from(node.0) < world.nodes.len() {
            let persistent = world.is_persistent(usize::from(node.0));
            world.restart_node(node.0.into(), persistent);
        }
    }

    /// Looks out for WRITEs of a word from now on, as a CPU that polls it would: see
    /// [`Sim::written_at`]. One word at a time.
    pub fn watch(&self, at: Address) {
        self.world().watched = Some((at, None));
    }

    /// When the watched word was last written, if it was.
    #[must_use]
    pub fn written_at(&self) -> Option<Nanos> {
        let (_, when) = self.world().watched?;
        when.map(|when| when / NS)
    }

    /// Takes a client's access away when `steps` more parts of verbs have taken effect.
    pub fn revoke_after(&self, client: ClientId, steps: u64) {
        let mut world = self.world();
        let at = world.statistics.pieces + steps;
        world.revocations.push((at, client));
    }
}

/// Events without a turn of any worker after which it is taken for deadlocked.
const IDLE_EVENTS_MAX: u32 = 10_000_000;

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Fabric for Sim {
    fn nodes(&self) -> u16 {
        self.memory.nodes()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        let (connection, idle) = self.world().connect(client);
        Ok(Box::new(SimTransport { sim: self.clone(), connection, idle, news: RefCell::default() }))
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.memory.region(node, region).cloned()
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        self.world().revoke(client);
        Ok(())
    }

    fn fail(&self, node: NodeId) {
        self.world().fail_node(node.0.into());
    }

    /// Nothing happens to the node itself: it may be alive and answer a client that does not know
    /// that it is abandoned.
    fn abandon(&self, node: NodeId) {
        self.world().abandoned |= 1 << node.0;
    }

    fn readmit(&self, node: NodeId) {
        self.world().abandoned &= !(1 << node.0);
    }

    fn answers(&self, node: NodeId) -> bool {
        self.world().nodes.get(usize::from(node.0)).is_some_and(|node| !node.down)
    }

    fn forget(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        let Some(answering) = self.memory.answering(node) else { return Ok(()) };
        answering.forget(order, &mut || self.world().renew_node(node.0.into()));
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn lines_of_records(&self, at: Address, bytes: u64) {
        self.world().lines_of_records(at, bytes);
    }
}

impl Host for Sim {
    fn serve(&self, node: NodeId, _: &str, service: Box<dyn Service>) -> ServiceHandle {
        let (handle, stop) = ServiceHandle::detached();
        self.world().serve(node.0.into(), stop, service);
        handle
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        self.memory.answer(node, handler);
    }
}
