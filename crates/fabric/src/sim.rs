//! The simulated backend: a cluster in virtual time, on one thread. Its memory nodes have real
//! bytes. Its machines, NICs and memory cost what a [`Profile`] says. A seed always gives the same
//! run, event for event.
//!
//! It can be used in two ways:
//!
//! - **Driven**: the caller starts workers on simulated machines
//!   ([`Worker::start`](crate::Worker::start)) and gives them to [`Sim::run`]. Each worker has a
//!   core of its own, which runs one coroutine at a time. The core pays for what the coroutine
//!   does: posting, polling, switching, and what [`Endpoint::charge`](crate::Endpoint::charge)
//!   says.
//! - **By itself**: any [`Worker::run`](crate::Worker::run) on its endpoints lets time pass
//!   whenever it polls. CPUs cost nothing then. Tests and tools use it so.
//!
//! While it is [`instant`](Sim::instant), rounds complete at once and no time passes. This is for
//! formatting and loading.
//!
//! The simulation is as hostile as the contract of a round allows, unless [`SimOptions::hostile`]
//! is off. A READ takes its lines at separate instants in any order. Memory that is not a line of a
//! record tears at words. Verbs that are not ordered change places. Faults come from a plan:
//! [`Planned`].

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
pub use recording::{Recorded, Recording, Swapped};

use crate::address::{Address, NodeId, RegionId};
use crate::copy;
use crate::error::FabricError;
use crate::executor::{Turn, Turned};
use crate::ids::{ClientId, Nanos};
use crate::region::{Region, RegionError};
use crate::service::{Service, ServiceHandle};
use crate::shm::Memory;
use crate::transport::{Assumed, Capabilities, Fabric, Flush, Handler, Host, Transport};
use queue::NS;
use transport::SimTransport;
use world::{Step, Work, World};

/// Which machines are memory nodes, and which run workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deployment {
    /// Memory nodes are machines of their own. A few threads of each serve calls.
    #[default]
    Disaggregated,
    /// Every machine is a memory node and also runs workers, which serve the calls of others
    /// between their own transactions.
    Symmetric,
}

/// Options of a simulated cluster.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The hardware of the cluster.
    pub profile: Profile,
    /// The kind of memory of the memory nodes, by its name in the profile.
    pub medium: String,
    /// Which machines are memory nodes, and which run workers.
    pub deployment: Deployment,
    /// Whether NICs write to the processors' caches (DDIO).
    pub ddio: bool,
    /// Whether NIC and memory of a node belong to different sockets.
    pub cross_socket: bool,
    /// Whether everything that the contract allows happens, by chance.
    pub hostile: bool,
    /// The probability, from 0 to 1, that an access to memory takes many times as long as usual.
    pub stretch: f64,
    /// What to take for granted beyond what the profile promises. By default, nothing.
    pub assume: Assumed,
    /// The seed of all chance.
    pub seed: u64,
}

impl SimOptions {
    /// Makes the options of a cluster of this hardware with DRAM.
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
            assume: Assumed::default(),
            seed,
        }
    }
}

/// Counts of what a simulation has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimStatistics {
    /// Events that have happened.
    pub events: u64,
    /// Verbs that were posted.
    pub verbs: u64,
    /// Parts of verbs that have taken effect.
    pub pieces: u64,
    /// Groups of verbs that were posted and never left, because their client died.
    pub lost_groups: u64,
    /// Groups of verbs that were sent again because of a partition.
    pub resent_groups: u64,
    /// Calls that were sent again, because they or their answers were lost.
    pub resent_calls: u64,
    /// Calls that arrived again after they had been served, and were not served again.
    pub suppressed_calls: u64,
}

impl SimStatistics {
    /// Returns what has been done since `earlier`, a former value of the same counters.
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

/// The reason why a simulation could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The memory of the nodes could not be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The profile has no such medium.
    #[error("profile {profile} has no medium {medium}: it has {known}")]
    NoMedium {
        /// The name of the profile.
        profile: String,
        /// The medium that was asked for.
        medium: String,
        /// The media that the profile has.
        known: String,
    },
}

/// A worker of a driven simulation.
pub struct Driven<'r> {
    /// The incarnations of the worker's clients.
    pub clients: Vec<ClientId>,
    /// The run of the worker's coroutines.
    pub run: &'r mut dyn Turn,
}

impl fmt::Debug for Driven<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").field("clients", &self.clients).finish_non_exhaustive()
    }
}

/// The way in which a driven simulation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Every live worker has finished.
    Finished,
    /// The time limit was reached.
    OutOfTime,
    /// Workers wait for something that will never come.
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
    /// Makes memory nodes with the given regions (sizes in bytes).
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
            atomic_line: profile.whole_lines || options.assume.whole_lines,
            coherent_atomics: profile.coherent_atomics,
            atomic_writes: profile.atomic_writes || options.assume.atomic_writes,
            in_order: false,
            flush,
            revoke: true,
            partitions: true,
            node_cpu: true,
        };
        Ok(Sim { memory, world: Arc::new(Mutex::new(world)), capabilities })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether rounds complete at once and take no time, from now on.
    pub fn instant(&self, instant: bool) {
        self.world().instant = instant;
    }

    /// Places the clients that connect from now on, on this client machine. With
    /// [`Deployment::Symmetric`], client machines are the memory nodes.
    pub fn place(&self, machine: usize) {
        self.world().place = machine;
    }

    /// Returns the virtual time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.world().now / NS
    }

    /// Returns counts of what has been done so far.
    #[must_use]
    pub fn statistics(&self) -> SimStatistics {
        self.world().statistics
    }

    /// Runs workers, each on a core of its own, until all have finished or the time limit is
    /// reached.
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
                // They do not all start in the same instant.
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

    /// Lets the next event happen, in a simulation that is not driven.
    fn step(&self) {
        let step = self.world().step();
        if let Step::Work(work) = step {
            self.work(work);
        }
    }

    /// Does the next work of a memory node's CPU, while verbs go on.
    fn work(&self, mut work: Work) {
        let beside = self.clone();
        copy::with_pauses(Rc::new(move || beside.world().meanwhile()), || work.run(&self.memory));
        self.world().worked(work);
    }

    /// Steps the memory nodes' services until none finds work. It takes no time.
    pub fn settle_services(&self) {
        self.world().settle_services();
    }

    /// Plans a fault, which happens when its probe has been reached.
    pub fn plan(&self, planned: Planned) {
        self.world().faults.plan(planned);
    }

    /// Returns the faults that have happened.
    #[must_use]
    pub fn injected(&self) -> Vec<Injected> {
        self.world().faults.injected.clone()
    }

    /// Returns the number of faults that have been planned and have not happened.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.world().faults.waiting()
    }

    /// Returns the number of planned faults that wait for a client to reach this probe.
    #[must_use]
    pub fn waiting_for(&self, probe: &str) -> usize {
        self.world().faults.waiting_for(probe)
    }

    /// Returns how often each probe was reached.
    #[must_use]
    pub fn reached(&self) -> BTreeMap<&'static str, u64> {
        self.world().faults.reached.iter().copied().collect()
    }

    /// Makes a client's machine die now.
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

    /// Restarts a node that has failed, for clients that connect from now on. It has what its
    /// medium has kept; if the medium keeps nothing, it is empty. Its process is a new one: the
    /// handler and the services know nothing of before.
    pub fn restart(&self, node: NodeId) {
        let mut world = self.world();
        if usize::from(node.0) < world.nodes.len() {
            let persistent = world.is_persistent(usize::from(node.0));
            world.restart_node(node.0.into(), persistent);
        }
    }

    /// Watches for WRITEs of a word from now on, as a CPU that polls the word would: see
    /// [`Sim::written_at`]. It watches one word at a time.
    pub fn watch(&self, at: Address) {
        self.world().watched = Some((at, None));
    }

    /// Returns when the watched word was last written, if it was.
    #[must_use]
    pub fn written_at(&self) -> Option<Nanos> {
        let (_, when) = self.world().watched?;
        when.map(|when| when / NS)
    }

    /// Revokes a client's access when `steps` more parts of verbs have taken effect.
    pub fn revoke_after(&self, client: ClientId, steps: u64) {
        let mut world = self.world();
        let at = world.statistics.pieces + steps;
        world.revocations.push((at, client));
    }
}

/// Events without a turn of any worker, after which the simulation is taken for deadlocked.
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

    /// Nothing happens to the node itself. It may be alive, and answer a client that does not know
    /// that the node is abandoned.
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
