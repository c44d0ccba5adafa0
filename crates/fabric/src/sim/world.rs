//! The state of a simulated cluster, and its events, which happen one after the other in virtual
//! time.
//!
//! A round goes through these events, once for each node it has verbs for (a *group*):
//!
//! ```text
//! post     the client's core pays; its NIC sends (no event: computed when posted)
//! Arrive   the group is at the node: its NIC, or a CPU, takes the verbs one after the other; when
//!          each takes effect is drawn here, within the time that the access to memory takes
//! Piece    a part of a verb takes effect: an atomic, some words of a WRITE, some lines of a READ,
//!          a call; the last of a group sends its answer
//! Done     the last group's answer is at the client: the round has completed (one event for the
//!          round)
//! ```
//!
//! This file has the state. The files below it have the events: `posting`, `node` and `completion`
//! are the path of a round, in its order. `time` takes the events one by one. `services` has the
//! work that memory nodes do on their own, and `faults` has the faults.
//!
//! For calls and services, the CPUs of memory nodes run real code, which may store at any time.
//! That code runs outside of the world ([`Step::Work`]), so that other verbs take effect between
//! its stores: see [`World::meanwhile`].
//!
//! **Order** (contract, rule 1) is kept by *floors*, which are a few times for each connection and
//! node: when the last WRITE and the last atomic take effect. A verb that is ordered behind one of
//! these takes effect after it. All other verbs take effect when their own access to memory is
//! over, which is in any order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::costs::{Costs, MediumState, NicState};
use super::faults::Faults;
use super::profile::Path;
use super::queue::{NS, Picos, Queue};
use super::recording::Recording;
use super::{Deployment, SimOptions, SimStatistics};
use crate::address::{Address, NodeId};
use crate::error::FabricError;
use crate::ids::{ClientId, LaneId, Ticket};
use crate::limits::{REGIONS_PER_NODE_MAX, ROUND_VERBS_MAX};
use crate::prng::{Prng, splitmix};
use crate::round::buffer::RoundBuffer;
use crate::service::{Progress, Service, ServiceStop};
use crate::shm::Memory;

mod completion;
mod faults;
mod node;
mod posting;
mod services;
mod time;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Arrive {
        flight: u32,
        group: u16,
    },
    Piece {
        flight: u32,
        group: u16,
        verb: u8,
        part: u8,
        parts: u8,
    },
    Done {
        flight: u32,
    },
    /// A core looks for something that it can do.
    Turn {
        core: u32,
    },
    Service {
        index: u32,
    },
    Fault {
        index: u32,
    },
}

impl Event {
    /// Returns the round that the event belongs to.
    #[inline(always)]
    fn flight(&self) -> Option<u32> {
        match *self {
            Event::Arrive { flight, .. } | Event::Piece { flight, .. } | Event::Done { flight } => Some(flight),
            Event::Turn { .. } | Event::Service { .. } | Event::Fault { .. } => None,
        }
    }
}

/// The result of handling an event.
pub(super) enum Step {
    Nothing,
    /// It is this core's turn.
    Turn(usize),
    /// A memory node's CPU has work to do: call [`Work::run`], and then [`World::worked`].
    Work(Work),
}

/// The next work of a memory node's CPU.
pub(super) enum Work {
    Call(Call),
    Service { index: u32, running: RunningService, progress: Progress },
}

/// A call that is being served.
pub(super) struct Call {
    flight: Box<Flight>,
    client: ClientId,
    index: u32,
    group: u16,
    verb: u8,
    result: Result<(), FabricError>,
}

impl Work {
    pub(super) fn run(&mut self, memory: &Memory) {
        match self {
            Work::Call(Call { flight, client, verb, result, .. }) => {
                let (verbs, words) = flight.buffer.parts();
                *result = memory.call(*client, &verbs[usize::from(*verb)], words);
            }
            Work::Service { running, progress, .. } => *progress = running.service.step(),
        }
    }
}

/// A round under way. Its fields are in this order so that what every event touches lies together.
#[repr(C)]
struct Flight {
    buffer: Box<RoundBuffer>,
    groups: Vec<Group>,
    connection: u32,
    groups_left: u16,
    /// The verbs up to here, where a fence is, are under way.
    end: u16,
    /// The time at which all answers so far are at the client.
    back: Picos,
    ticket: Ticket,
    /// The number of destinations whose completion the client's CPU takes.
    polls: u16,
    calls: u16,
    orphaned: bool,
    outcome: Result<(), FabricError>,
}

/// The verbs of a round for one node.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The verbs of the round that belong to the group, one bit each.
    verbs: u128,
    node: NodeId,
    failed: bool,
    has_calls: bool,
    /// Parts of verbs that have not taken effect.
    pieces: u32,
    /// Payload bytes out and back, without the answers of calls.
    bytes_out: u32,
    bytes_back: u32,
}

const _: () = assert!(ROUND_VERBS_MAX <= u128::BITS as usize);

impl Group {
    fn of(node: NodeId) -> Group {
        Group { verbs: 0, node, failed: false, has_calls: false, pieces: 0, bytes_out: 0, bytes_back: 0 }
    }

    /// Returns the places of the group's verbs in the round.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.verbs;
        std::iter::from_fn(move || {
            let place = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            place
        })
    }
}

/// The times that order the verbs of one connection at one node.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Floor {
    /// The arrival of the last group.
    pub(super) arrival: Picos,
    /// The time at which the last WRITE takes effect.
    write: Picos,
    /// The time at which the last atomic takes effect.
    atomic: Picos,
    /// The time at which the last call is served.
    call: Picos,
    /// The time until which the connection's unit of the NIC is occupied.
    sending: Picos,
    used: bool,
    /// The time at which the client died, if it has. What it posted to be sent later never left.
    pub(super) cut: Picos,
    /// The time that is added to the next group's way.
    pub(super) delay: Picos,
}

pub(super) struct Connection {
    pub(super) client: ClientId,
    pub(super) machine: usize,
    nic: usize,
    /// The core whose coroutines use the connection, while a driver runs the simulation.
    pub(super) core: Option<usize>,
    pub(super) floors: Box<[Floor]>,
    completed: Vec<(Ticket, Box<RoundBuffer>, Picos)>,
    reclaimed: Vec<Box<RoundBuffer>>,
    ready: Vec<LaneId>,
    /// Whether the endpoint need not poll: a driver runs the simulation, and there is nothing to
    /// tell the endpoint.
    pub(super) idle: Arc<AtomicBool>,
    /// The number of rounds with parts behind a fence that have not been posted.
    fenced: u32,
    /// Rounds that wait for the fenced rounds.
    held: VecDeque<u32>,
    pub(super) dead: bool,
    /// Nodes that have revoked the client's access, one bit each.
    pub(super) revoked: u64,
    /// For each node, the life in which the connection was made.
    lives: Box<[u32]>,
    /// Rounds of this connection that are under way.
    under_way: Vec<(Ticket, u32)>,
    /// The number of the client's next calls that are lost (or their answers are), and of those
    /// that arrive twice.
    pub(super) lose_calls: u32,
    pub(super) duplicate_calls: u32,
}

/// A core that runs a worker's coroutines.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) clock: Picos,
    /// The connection of the core's worker. Only one connection of a worker is alive: the last.
    pub(super) connection: Option<usize>,
    /// The time of its next turn.
    turn_at: Option<Picos>,
    pub(super) paused_until: Picos,
    pub(super) stopped: bool,
}

pub(super) struct MachineState {
    nics: Vec<NicState>,
    /// The clocks of its own serving threads.
    servers: Vec<Picos>,
    /// The cores that run workers.
    cores: Vec<usize>,
    /// How far its clock is ahead of true time: the offset at the beginning, and the drift for each
    /// billion.
    offset: i64,
    drift: i64,
}

pub(super) struct NodeState {
    pub(super) down: bool,
    /// Counts restarts. A connection to an earlier life does not exist any more.
    pub(super) life: u32,
    medium: MediumState,
    /// The time until which the node's services stand still.
    pub(super) stalled_until: Picos,
}

pub(super) struct RunningService {
    node: usize,
    stop: ServiceStop,
    service: Box<dyn Service>,
    nap: Picos,
}

pub(super) struct World {
    pub(super) memory: Arc<Memory>,
    /// For each region, the ranges of bytes that are lines of records, ascending.
    record_lines: Vec<Vec<Range<u64>>>,
    queue: Queue<Event>,
    pub(super) now: Picos,
    pub(super) prng: Prng,
    pub(super) seed: u64,
    path: Path,
    symmetric: bool,
    hostile: bool,
    pub(super) stretch: f64,
    costs: Costs,
    server_threads: usize,
    /// The largest offset of a clock in nanoseconds, and the largest drift in billionths.
    clock_offset: u64,
    clock_drift: u64,
    machines: Vec<MachineState>,
    pub(super) nodes: Vec<NodeState>,
    pub(super) connections: Vec<Connection>,
    /// The client machine of the next connection.
    pub(super) place: usize,
    /// The rounds under way. They are boxed, because every event takes one out and puts it back.
    flights: Vec<Option<Box<Flight>>>,
    free_flights: Vec<u32>,
    pub(super) cores: Vec<Core>,
    pub(super) running_cores: usize,
    /// The core whose turn has come with the event that is being handled.
    turning: Option<usize>,
    services: Vec<Option<RunningService>>,
    /// Whether rounds complete at once and take no time.
    pub(super) instant: bool,
    /// Whether a flush reaches persistent memory, and not only a cache that a loss of power
    /// empties.
    pub(super) flush_persists: bool,
    /// Whether a driver runs the simulation. Endpoints that poll do not run it then.
    pub(super) driven: bool,
    /// The core whose worker has its turn.
    pub(super) acting: Option<usize>,
    /// Nodes that the cluster goes on without, one bit each. A revocation no longer includes them.
    pub(super) abandoned: u64,
    pub(super) faults: Faults,
    /// What passes through, if it is recorded.
    pub(super) recording: Option<Recording>,
    /// A word that is polled, and when it was written.
    pub(super) watched: Option<(Address, Option<Picos>)>,
    /// Clients to revoke, each with the number of pieces after which it is revoked.
    pub(super) revocations: Vec<(u64, ClientId)>,
    pub(super) statistics: SimStatistics,
    spare_groups: Vec<Vec<Group>>,
    /// Polls that found nothing to do, in a simulation that is not driven.
    pub(super) idle_polls: u64,
}

impl World {
    pub(super) fn new(memory: Arc<Memory>, options: &SimOptions) -> Option<World> {
        let profile = &options.profile;
        let medium = profile.media.get(&options.medium)?;
        let nodes = usize::from(memory.nodes());
        let node = || NodeState {
            down: false,
            life: 0,
            medium: MediumState::new(medium, options.ddio, options.cross_socket),
            stalled_until: 0,
        };
        let mut world = World {
            record_lines: vec![Vec::new(); nodes * REGIONS_PER_NODE_MAX],
            memory,
            queue: Queue::new(),
            now: 1_000 * NS,
            prng: Prng::derive(options.seed, 0x51a1),
            seed: splitmix(options.seed),
            path: profile.path,
            symmetric: options.deployment == Deployment::Symmetric,
            hostile: options.hostile,
            stretch: options.stretch,
            costs: Costs::of(profile),
            server_threads: profile.machine.server_threads.max(1) as usize,
            clock_offset: profile.clock.offset_ns as u64,
            clock_drift: (profile.clock.drift_ppm * 1_000.0) as u64,
            machines: Vec::new(),
            nodes: (0..nodes).map(|_| node()).collect(),
            connections: Vec::new(),
            place: 0,
            flights: Vec::new(),
            free_flights: Vec::new(),
            cores: Vec::new(),
            running_cores: 0,
            turning: None,
            services: Vec::new(),
            instant: false,
            flush_persists: false,
            driven: false,
            acting: None,
            abandoned: 0,
            faults: Faults::default(),
            recording: None,
            watched: None,
            revocations: Vec::new(),
            statistics: SimStatistics::default(),
            spare_groups: Vec::new(),
            idle_polls: 0,
        };
        world.add_machines(nodes, profile.machine.nics.max(1) as usize);
        Some(world)
    }

    fn add_machines(&mut self, until: usize, nics: usize) {
        while self.machines.len() < until {
            self.machines.push(MachineState {
                nics: (0..nics).map(|_| NicState::new(&self.costs)).collect(),
                servers: vec![0; self.server_threads],
                cores: Vec::new(),
                offset: between(&mut self.prng, self.clock_offset),
                drift: between(&mut self.prng, self.clock_drift),
            });
        }
    }

    /// Returns the machine that has this number among the client machines.
    pub(super) fn machine_of(&mut self, place: usize) -> usize {
        let nodes = self.nodes.len().max(1);
        let machine = if self.symmetric { place % nodes } else { nodes + place };
        let nics = self.machines.first().map_or(1, |machine| machine.nics.len());
        self.add_machines(machine + 1, nics);
        machine
    }

    /// Connects a client. Returns the connection's number, and its flag [`idle`](Connection::idle).
    pub(super) fn connect(&mut self, client: ClientId) -> (usize, Arc<AtomicBool>) {
        let acting = self.acting.and_then(|core| self.cores[core].connection);
        let machine = match acting {
            Some(former) => self.connections[former].machine,
            None => self.machine_of(self.place),
        };
        let index = self.connections.len();
        let revoked = self.connections.iter().filter(|other| other.client == client).map(|other| other.revoked);
        let revoked = revoked.fold(0, |all, one| all | one);
        self.connections.push(Connection {
            client,
            machine,
            nic: acting.map_or(index % self.machines[machine].nics.len(), |former| self.connections[former].nic),
            core: self.acting,
            floors: vec![Floor::default(); self.nodes.len()].into(),
            completed: Vec::new(),
            reclaimed: Vec::new(),
            ready: Vec::new(),
            idle: Arc::default(),
            fenced: 0,
            held: VecDeque::new(),
            dead: false,
            revoked,
            lives: self.nodes.iter().map(|node| node.life).collect(),
            under_way: Vec::new(),
            lose_calls: 0,
            duplicate_calls: 0,
        });
        // A worker that connects anew continues with the new connection.
        if let Some(core) = self.acting {
            self.cores[core].connection = Some(index);
            self.connections[index].idle.store(true, Ordering::Relaxed);
        }
        (index, self.connections[index].idle.clone())
    }

    /// Gives a worker's connections a core of their own, on the machine where the clients are.
    pub(super) fn add_core(&mut self, clients: &[ClientId]) -> usize {
        let core = self.cores.len();
        self.cores.push(Core { clock: self.now, connection: None, turn_at: None, paused_until: 0, stopped: false });
        self.running_cores += 1;
        let mut machine = None;
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if clients.contains(&connection.client) {
                self.cores[core].connection = Some(index);
                connection.core = Some(core);
                connection
                    .idle
                    .store(connection.ready.is_empty() && connection.reclaimed.is_empty(), Ordering::Relaxed);
                // The NIC is chosen by worker: each worker may have had several connections before
                // this one.
                connection.nic = core % self.machines[connection.machine].nics.len();
                machine = Some(connection.machine);
            }
        }
        if let Some(machine) = machine {
            self.machines[machine].cores.push(core);
        }
        core
    }

    /// Removes all cores, because the driver of the simulation has stopped.
    pub(super) fn remove_cores(&mut self) {
        for core in &self.cores {
            self.now = self.now.max(core.clock.min(self.now + 1_000_000 * NS));
        }
        self.cores.clear();
        self.running_cores = 0;
        self.machines.iter_mut().for_each(|machine| machine.cores.clear());
        for connection in &mut self.connections {
            connection.core = None;
            connection.idle.store(false, Ordering::Relaxed);
        }
    }
}

/// Draws a number from -`most` to `most`.
fn between(prng: &mut Prng, most: u64) -> i64 {
    prng.below(2 * most + 1) as i64 - most as i64
}
