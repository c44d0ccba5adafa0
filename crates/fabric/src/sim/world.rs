//! The state of a simulated cluster, and what happens in it: one event after the other, in virtual
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
//! What memory nodes' CPUs do for calls and services is their own code, which stores whenever it
//! likes. It runs outside of the world ([`Step::Work`]), so that other verbs take effect between
//! its stores: see [`World::meanwhile`].
//!
//! **Order** (contract, rule 1) is kept by a few times for each connection and node, its *floors*:
//! when the last WRITE and the last atomic take effect. A verb that is ordered behind one of them
//! takes effect after it; all others take effect whenever their own access to memory is over, which
//! is in any order.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::costs::{Costs, MediumState, NicState, occupy};
use super::faults::{self, Faults};
use super::profile::Path;
use super::queue::{NS, Picos, Queue};
use super::{Deployment, SimOptions, SimStatistics};
use crate::address::{Address, LINE_BYTES, LINE_WORDS, NodeId, WORD_BYTES};
use crate::error::{FabricError, Fault};
use crate::ids::{ClientId, LaneId, Ticket};
use crate::limits::{REGIONS_PER_NODE_MAX, ROUND_VERBS_MAX};
use crate::prefetch::prefetch;
use crate::prng::{Prng, splitmix};
use crate::round::buffer::{RoundBuffer, Verb};
use crate::service::{self, Progress, Service, ServiceStop};
use crate::shm::{Memory, execute_verb, no_such_node};
use crate::transport::Posted;

/// In how many parts a READ or WRITE takes effect at most.
const PARTS_MAX: u64 = 4;
/// In how many parts a READ or WRITE that tears at words takes effect at most: two instants show
/// every way in which a reader can meet a writer.
const WORD_PARTS_MAX: u64 = 2;
/// How long an RC connection sends again before it gives a node up.
pub(super) const RETRY: Picos = 1_000_000 * NS;
/// The life of a node that a connection has lost.
const BROKEN: u32 = u32::MAX;
/// How much longer than usual a stretched access to memory takes, at most.
const STRETCH: u64 = 30;
/// Naps of a memory node's services.
const NAP_MIN: Picos = service::NAP_MIN.as_nanos() as Picos * NS;
const NAP_MAX: Picos = service::NAP_MAX.as_nanos() as Picos * NS;
/// What a step of a service that has found work costs its CPU.
const SERVICE_STEP: Picos = 1_000 * NS;
/// A CPU may stand still between two of its stores: for how long at most, and how often. The latter
/// is the number of stores to one that it stands still at.
const BETWEEN_STORES: Picos = 200 * NS;
const BETWEEN_STORES_ONE_IN: u64 = 4;

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
    /// A core looks for what it can do.
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
    /// The round that it belongs to.
    #[inline(always)]
    fn flight(&self) -> Option<u32> {
        match *self {
            Event::Arrive { flight, .. } | Event::Piece { flight, .. } | Event::Done { flight } => Some(flight),
            Event::Turn { .. } | Event::Service { .. } | Event::Fault { .. } => None,
        }
    }
}

/// What an event has come to.
pub(super) enum Step {
    Nothing,
    /// A core's turn has come.
    Turn(usize),
    /// A memory node's CPU has something to do: [`Work::run`], and then [`World::worked`].
    Work(Work),
}

/// What a memory node's CPU does next.
pub(super) enum Work {
    Call(Call),
    Service { index: u32, running: RunningService, progress: Progress },
}

/// A call that is served now.
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

/// A round under way. In this order, so that what every event touches lies together.
#[repr(C)]
struct Flight {
    buffer: Box<RoundBuffer>,
    groups: Vec<Group>,
    connection: u32,
    groups_left: u16,
    /// The verbs up to here are under way: up to a fence.
    end: u16,
    /// When all answers so far are at the client.
    back: Picos,
    ticket: Ticket,
    /// Destinations that the client's CPU takes a completion of.
    polls: u16,
    calls: u16,
    orphaned: bool,
    outcome: Result<(), FabricError>,
}

/// The verbs of a round for one node.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Which of the round's verbs, a bit each.
    verbs: u128,
    node: NodeId,
    failed: bool,
    has_calls: bool,
    /// Parts that have not taken effect.
    pieces: u32,
    /// Payload, but for what calls answer.
    bytes_out: u32,
    bytes_back: u32,
}

const _: () = assert!(ROUND_VERBS_MAX <= u128::BITS as usize);

impl Group {
    fn of(node: NodeId) -> Group {
        Group { verbs: 0, node, failed: false, has_calls: false, pieces: 0, bytes_out: 0, bytes_back: 0 }
    }

    /// The places of its verbs in the round.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.verbs;
        std::iter::from_fn(move || {
            let place = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            place
        })
    }
}

/// What orders the verbs of one connection at one node.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Floor {
    /// The last group's arrival.
    pub(super) arrival: Picos,
    /// When the last WRITE has taken effect.
    write: Picos,
    /// When the last atomic has.
    atomic: Picos,
    /// Until when the connection's unit of the NIC is occupied.
    sending: Picos,
    used: bool,
    /// When a client that has died did so: what was sent later never left.
    pub(super) cut: Picos,
    /// Added to the next group's way.
    pub(super) delay: Picos,
}

pub(super) struct Connection {
    pub(super) client: ClientId,
    pub(super) machine: usize,
    nic: usize,
    /// The core whose coroutines use it, while a driver runs the simulation.
    pub(super) core: Option<usize>,
    pub(super) floors: Box<[Floor]>,
    completed: Vec<(Ticket, Box<RoundBuffer>, Picos)>,
    reclaimed: Vec<Box<RoundBuffer>>,
    ready: Vec<LaneId>,
    /// The endpoint need not poll: a driver runs the simulation, and there is nothing to be told.
    pub(super) idle: Arc<AtomicBool>,
    /// Rounds with parts behind a fence that have not been posted.
    fenced: u32,
    /// Rounds that wait for those.
    held: VecDeque<u32>,
    pub(super) dead: bool,
    /// Nodes that have taken its access away, a bit each.
    pub(super) revoked: u64,
    /// Which lives of the nodes it is connected to.
    lives: Box<[u32]>,
    /// Rounds of this connection that are under way.
    under_way: Vec<(Ticket, u32)>,
    /// How many of its next calls, or their answers, are lost; how many arrive twice.
    pub(super) lose_calls: u32,
    pub(super) duplicate_calls: u32,
}

/// A core that runs a worker's coroutines.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) clock: Picos,
    /// Connection of the core's worker, which has only one that is alive: the last.
    pub(super) connection: Option<usize>,
    /// When it looks next.
    turn_at: Option<Picos>,
    pub(super) paused_until: Picos,
    pub(super) stopped: bool,
}

pub(super) struct MachineState {
    nics: Vec<NicState>,
    /// Threads of its own that serve, by their clocks.
    servers: Vec<Picos>,
    /// Cores that run workers.
    cores: Vec<usize>,
    /// What its clock is ahead of true time by, at the beginning and for each billion.
    offset: i64,
    drift: i64,
}

pub(super) struct NodeState {
    pub(super) down: bool,
    /// Grows with each restart: what was connected before is not any more.
    pub(super) life: u32,
    medium: MediumState,
    /// The node's services stand still until then.
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
    /// For each region, from where to where its bytes are lines of records, ascending.
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
    /// How far clocks may be off, in nanoseconds, and how far they may drift, in billionths.
    clock_offset: u64,
    clock_drift: u64,
    machines: Vec<MachineState>,
    pub(super) nodes: Vec<NodeState>,
    pub(super) connections: Vec<Connection>,
    /// Where the next connection's client is.
    pub(super) place: usize,
    /// Boxed, because every event takes one out and puts it back.
    flights: Vec<Option<Box<Flight>>>,
    free_flights: Vec<u32>,
    pub(super) cores: Vec<Core>,
    pub(super) running_cores: usize,
    /// A core whose turn has come with the event that is being handled.
    turning: Option<usize>,
    services: Vec<Option<RunningService>>,
    /// Rounds complete at once and take no time.
    pub(super) instant: bool,
    /// What a flush covers is kept by persistent memory: it gets further than to a cache that is
    /// lost.
    pub(super) flush_persists: bool,
    /// A driver runs the simulation, so endpoints that poll do not.
    pub(super) driven: bool,
    /// The core whose worker has its turn.
    pub(super) acting: Option<usize>,
    /// Nodes that the cluster goes on without, a bit each: nobody takes access to them away any
    /// more.
    pub(super) abandoned: u64,
    pub(super) faults: Faults,
    /// A word that is polled, and when it was written.
    pub(super) watched: Option<(Address, Option<Picos>)>,
    /// Clients that lose their access, each with the number of pieces after which it does.
    pub(super) revocations: Vec<(u64, ClientId)>,
    pub(super) statistics: SimStatistics,
    spare_groups: Vec<Vec<Group>>,
    /// Polls of a simulation that nobody drives, that found nothing to do.
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

    /// The machine of a client machine's number.
    pub(super) fn machine_of(&mut self, place: usize) -> usize {
        let nodes = self.nodes.len().max(1);
        let machine = if self.symmetric { place % nodes } else { nodes + place };
        let nics = self.machines.first().map_or(1, |machine| machine.nics.len());
        self.add_machines(machine + 1, nics);
        machine
    }

    /// The connection's number, and whether it is [`idle`](Connection::idle).
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
        // A worker that connects anew goes on with that.
        if let Some(core) = self.acting {
            self.cores[core].connection = Some(index);
            self.connections[index].idle.store(true, Ordering::Relaxed);
        }
        (index, self.connections[index].idle.clone())
    }

    /// Gives a worker's connections a core of their own, on the machine where they are.
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
                // By the worker: each may have had several connections before this one.
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

    // --- Time

    /// When something happens that a client does now.
    pub(super) fn clock(&self, connection: usize) -> Picos {
        self.connections[connection].core.map_or(self.now, |core| self.cores[core].clock.max(self.now))
    }

    /// The clock of a client's machine, in nanoseconds.
    pub(super) fn clock_of(&self, connection: usize) -> u64 {
        let machine = &self.machines[self.connections[connection].machine];
        let now = self.clock(connection) / NS;
        let drift = (i128::from(now) * i128::from(machine.drift) / 1_000_000_000) as i64;
        now.saturating_add_signed(machine.offset.saturating_add(drift))
    }

    pub(super) fn step_clock(&mut self, machine: usize, by: i64) {
        let offset = &mut self.machines[machine].offset;
        *offset = offset.saturating_add(by);
    }

    /// A client's core works for so long; when it has.
    pub(super) fn charge(&mut self, connection: usize, time: Picos) -> Picos {
        let now = self.now;
        match self.connections[connection].core {
            None => now,
            Some(core) => {
                let clock = &mut self.cores[core].clock;
                *clock = now.max(*clock) + time;
                *clock
            }
        }
    }

    /// Has a core look at what it can do, at this time or when it can.
    pub(super) fn wake(&mut self, core: usize, at: Picos) {
        let Core { clock, turn_at, paused_until, stopped, .. } = &mut self.cores[core];
        if *stopped {
            return;
        }
        let at = at.max(*clock).max(*paused_until);
        if turn_at.is_none_or(|turn| turn > at) {
            *turn_at = Some(at);
            self.queue.push(at, Event::Turn { core: core as u32 });
        }
    }

    /// Has a core look at once, without an event, if it is idle.
    fn wake_now(&mut self, core: usize) {
        let now = self.now;
        let Core { clock, turn_at, paused_until, stopped, .. } = &mut self.cores[core];
        let idle = *clock <= now && *paused_until <= now && !*stopped;
        if !idle || self.turning.is_some() {
            return self.wake(core, now);
        }
        *turn_at = None;
        *clock = now;
        self.turning = Some(core);
    }

    /// Whether a core's turn has come; if it was busy meanwhile, it comes later.
    fn turn(&mut self, index: usize) -> bool {
        let now = self.now;
        // Cores of a former drive may have events left.
        let Some(core) = self.cores.get_mut(index) else { return false };
        if core.turn_at != Some(now) {
            return false;
        }
        core.turn_at = None;
        if core.stopped {
            return false;
        }
        if core.clock > now || core.paused_until > now {
            self.wake(index, now);
            return false;
        }
        core.clock = now;
        true
    }

    pub(super) fn at(&mut self, at: Picos, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    pub(super) fn next_at(&mut self) -> Option<Picos> {
        self.queue.next_at()
    }

    /// The next event happens.
    pub(super) fn step(&mut self) -> Step {
        let Some((at, event)) = self.queue.pop() else { return Step::Nothing };
        self.prefetch();
        self.now = self.now.max(at);
        self.statistics.events += 1;
        match event {
            Event::Arrive { flight, group } => self.arrive(flight, group.into()),
            Event::Piece { flight, group, verb, part, parts } => {
                if let Some(call) = self.piece(flight, group, verb, part, parts) {
                    return Step::Work(Work::Call(call));
                }
            }
            Event::Done { flight } => {
                self.done(flight);
                if let Some(core) = self.turning.take() {
                    return Step::Turn(core);
                }
            }
            Event::Turn { core } => {
                if self.turn(core as usize) {
                    return Step::Turn(core as usize);
                }
            }
            Event::Service { index } => {
                if let Some(running) = self.step_service(index as usize) {
                    return Step::Work(Work::Service { index, running, progress: Progress::Idle });
                }
            }
            Event::Fault { index } => self.fault_due(index as usize),
        }
        Step::Nothing
    }

    /// Fetches what the next events need, for each of them one step on the way to it: events of a
    /// large cluster touch more than caches hold, and would wait for memory longer than they work.
    fn prefetch(&self) {
        let flight = |others: usize| self.flights.get(self.queue.ahead(others)?.flight()? as usize)?.as_deref();
        if let Some(flight) = flight(3) {
            prefetch(flight);
        }
        if let Some(flight) = flight(2) {
            prefetch(&*flight.buffer);
            flight.groups.first().inspect(|group| prefetch(*group));
        }
        let verb = |others: usize| match *self.queue.ahead(others)? {
            Event::Piece { flight, verb, .. } => {
                self.flights.get(flight as usize)?.as_ref()?.buffer.verbs().get(usize::from(verb))
            }
            _ => None,
        };
        if let Some(verb) = verb(1) {
            prefetch(verb);
        }
        if let Some(verb) = verb(0) {
            self.memory.prefetch(std::slice::from_ref(verb));
        }
    }

    /// The cores and lanes that the next event but one lets go on.
    pub(super) fn coming(&self, mut lane: impl FnMut(usize, LaneId)) {
        match self.queue.ahead(1) {
            Some(Event::Done { flight }) => {
                if let Some(flight) = self.flights.get(*flight as usize).and_then(Option::as_ref)
                    && let (Some(core), false) = (self.connections[flight.connection as usize].core, flight.orphaned)
                {
                    lane(core, flight.buffer.lane());
                }
            }
            Some(Event::Turn { core }) => {
                let connection = self.cores.get(*core as usize).and_then(|core| core.connection);
                for ready in connection.iter().flat_map(|connection| &self.connections[*connection].ready) {
                    lane(*core as usize, *ready);
                }
            }
            _ => {}
        }
    }

    /// The CPU of a memory node stands still between two of its stores, sometimes: what verbs do
    /// next happens before it goes on. Nothing else does, above all no client's turn and no other
    /// call, so that this is but a slow CPU.
    pub(super) fn meanwhile(&mut self) {
        if !self.hostile || !self.prng.next_u64().is_multiple_of(BETWEEN_STORES_ONE_IN) {
            return;
        }
        let until = self.now + BETWEEN_STORES;
        while self.queue.next_at().is_some_and(|at| at <= until)
            && self.queue.ahead(0).is_some_and(|next| self.is_verbs(next))
        {
            self.step();
        }
    }

    /// Whether an event is of verbs that no CPU of a memory node executes.
    fn is_verbs(&self, event: &Event) -> bool {
        // The round whose call is being served has no flight here meanwhile.
        let flight = |index: u32| self.flights[index as usize].as_deref();
        match *event {
            // That a call arrives asks its handler, who is busy, what it will cost.
            Event::Arrive { flight: index, group } => {
                flight(index).is_some_and(|flight| !flight.groups[usize::from(group)].has_calls)
            }
            Event::Piece { flight: index, verb, .. } => flight(index)
                .is_some_and(|flight| !matches!(flight.buffer.verbs()[usize::from(verb)], Verb::Call { .. })),
            Event::Done { .. } | Event::Turn { .. } | Event::Service { .. } | Event::Fault { .. } => false,
        }
    }

    /// The CPU of a memory node has done its work.
    pub(super) fn worked(&mut self, work: Work) {
        match work {
            Work::Call(Call { flight, index, group, result, .. }) => {
                self.piece_over(flight, index, group.into(), result)
            }
            Work::Service { index, running, progress } => self.service_stepped(index, running, progress),
        }
    }

    /// Whether nothing is left to happen but memory nodes that look for work.
    pub(super) fn is_quiet(&self) -> bool {
        self.connections.iter().all(|connection| connection.under_way.is_empty() || connection.dead)
    }

    // --- Posting

    pub(super) fn post(&mut self, connection: usize, mut buffer: Box<RoundBuffer>) -> Posted {
        if self.instant {
            let outcome = self.execute_now(connection, &mut buffer);
            buffer.finish(outcome);
            return Posted::Done(buffer);
        }
        let ticket = buffer.ticket();
        let flight = Box::new(Flight {
            buffer,
            groups: self.spare_groups.pop().unwrap_or_default(),
            connection: connection as u32,
            groups_left: 0,
            end: 0,
            back: 0,
            ticket,
            polls: 0,
            calls: 0,
            orphaned: false,
            outcome: Ok(()),
        });
        let index = match self.free_flights.pop() {
            Some(index) => {
                self.flights[index as usize] = Some(flight);
                index
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() as u32 - 1
            }
        };
        let client = &mut self.connections[connection];
        client.under_way.push((ticket, index));
        if client.dead {
            // Of a client that has died nothing comes any more.
        } else if client.fenced > 0 {
            client.held.push_back(index);
        } else {
            self.launch(index);
        }
        Posted::Pending(ticket)
    }

    fn execute_now(&mut self, connection: usize, buffer: &mut RoundBuffer) -> Result<(), FabricError> {
        let client = self.connections[connection].client;
        let Connection { revoked, dead, .. } = self.connections[connection];
        let (verbs, words) = buffer.parts();
        for verb in verbs {
            if let Some(node) = verb.node() {
                let down = self.nodes.get(usize::from(node.0)).is_some_and(|node| node.down);
                let revoked = dead || revoked >> node.0 & 1 == 1;
                let fault = if revoked { Some(Fault::Revoked) } else { down.then_some(Fault::Unreachable) };
                if let Some(fault) = fault {
                    return Err(FabricError { node, fault });
                }
            }
            execute_verb(&self.memory, verb, words, &Cell::new(false), client)?;
        }
        Ok(())
    }

    fn flight(&mut self, index: u32) -> &mut Flight {
        let Some(flight) = &mut self.flights[index as usize] else { unreachable!("events do not outlive their round") };
        flight
    }

    /// The first part of a round goes out.
    fn launch(&mut self, index: u32) {
        let flight = self.flight(index);
        let connection = flight.connection as usize;
        if flight.buffer.has_fences() {
            self.connections[connection].fenced += 1;
        }
        self.segment(index, 0);
    }

    /// The verbs from `from` on go out, up to a fence.
    fn segment(&mut self, index: u32, from: usize) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        let connection = flight.connection as usize;
        let Flight { buffer, groups, .. } = &mut *flight;
        let (verbs, fenced) = (buffer.verbs(), buffer.has_fences());
        groups.clear();
        let mut end = from;
        while let Some(verb) = verbs.get(end) {
            match verb.node() {
                // A fence with nothing in front of it has nothing to wait for.
                None if groups.is_empty() => {}
                None => break,
                Some(node) => {
                    let group = groups.iter().position(|group| group.node == node).unwrap_or_else(|| {
                        groups.push(Group::of(node));
                        groups.len() - 1
                    });
                    groups[group].verbs |= 1 << end;
                }
            }
            end += 1;
        }
        let last = !fenced || !verbs[end..].iter().any(|verb| matches!(verb, Verb::AfterCompletion));
        flight.end = end as u16;
        flight.groups_left = flight.groups.len() as u16;
        if flight.groups.is_empty() {
            self.flights[index as usize] = Some(flight);
            return self.complete(index, fenced);
        }
        let mut calls_posted = 0;
        for group in 0..flight.groups.len() {
            let arrival = self.send(&mut flight, group, &mut calls_posted);
            self.queue.push(arrival, Event::Arrive { flight: index, group: group as u16 });
        }
        self.flights[index as usize] = Some(flight);
        if fenced && last {
            self.unfence(connection);
        }
    }

    /// The last part of a fenced round has gone out: what waited for it may.
    fn unfence(&mut self, connection: usize) {
        let client = &mut self.connections[connection];
        client.fenced -= 1;
        while self.connections[connection].fenced == 0 {
            let Some(next) = self.connections[connection].held.pop_front() else { return };
            self.launch(next);
        }
    }

    /// One group leaves: what the client's core and NIC do. When it is at the node.
    fn send(&mut self, flight: &mut Flight, group: usize, calls_posted: &mut u32) -> Picos {
        let connection = flight.connection as usize;
        let Flight { buffer, groups, .. } = flight;
        let group = &mut groups[group];
        let (node, verbs) = (group.node, buffer.verbs());
        let (mut cpu, mut count, mut calls) = (0, 0u64, 0u64);
        for place in group.places() {
            let verb = &verbs[place];
            group.bytes_out += bytes_out(verb);
            group.bytes_back += bytes_back(verb);
            if let Verb::Call { .. } = verb {
                cpu += if *calls_posted == 0 { self.costs.call_post } else { self.costs.call_next };
                *calls_posted += 1;
                calls += 1;
            } else {
                count += 1;
            }
        }
        group.has_calls = calls > 0;
        flight.calls += calls as u16;
        if count > 0 {
            cpu += self.costs.doorbell + count * self.costs.post;
            flight.polls += 1;
        }
        let posted = self.charge(connection, cpu);
        if self.path == Path::Loads {
            // The core waits for its loads; those of one round overlap.
            let loads = |place: usize| !matches!(verbs[place], Verb::Write { .. } | Verb::Call { .. });
            let words = |place: usize| if let Verb::Read { words, .. } = verbs[place] { u64::from(words) } else { 0 };
            let time = self.costs.pcie(group.places().map(words).sum::<u64>() * WORD_BYTES as u64);
            let latency = if group.places().any(loads) { self.costs.dma_read } else { 0 };
            self.charge(connection, latency + time);
        }
        self.statistics.verbs += count + calls;
        let switch = self.switch(usize::from(node.0), group.has_calls);
        let World { costs, machines, connections, nodes, now, .. } = self;
        let now = *now;
        let client = &mut connections[connection];
        let Some(floor) = client.floors.get_mut(usize::from(node.0)) else {
            // There is no such node: the NIC says so at once.
            return posted + costs.send;
        };
        let wire = switch.map_or(costs.wire, |(wire, _)| wire);
        let away = if client.machine == usize::from(node.0) && nodes.len() > client.machine { 0 } else { wire };
        let nic = &mut machines[client.machine].nics[client.nic];
        if !floor.used {
            floor.used = true;
            nic.connected(costs);
        }
        let mut arrival = match self.path {
            Path::Loads => posted,
            Path::Messages => {
                let bytes = group.bytes_out.into();
                let asked = occupy(&mut nic.engine, now, posted, costs.request + nic.miss);
                let asked = occupy(&mut floor.sending, now, asked, costs.connection);
                occupy(&mut nic.sending, now, asked, costs.link(bytes)) + costs.send + costs.pcie(bytes) + away
            }
            Path::Nic => {
                let mut left = posted;
                for place in group.places() {
                    let verb = &verbs[place];
                    let bytes = bytes_out(verb).into();
                    let engine = if let Verb::Call { .. } = verb { costs.message } else { costs.request + nic.miss };
                    let asked = occupy(&mut nic.engine, now, posted, engine);
                    let asked = occupy(&mut floor.sending, now, asked, costs.connection);
                    let fetched = if bytes > costs.inline_bytes { costs.fetch + costs.pcie(bytes) } else { 0 };
                    left = left.max(occupy(&mut nic.sending, now, asked, costs.link(bytes)) + fetched);
                }
                left + costs.send + away
            }
        };
        arrival += std::mem::take(&mut floor.delay);
        if calls > 0 && client.lose_calls > 0 && splitmix(flight.ticket.0 ^ self.seed).is_multiple_of(2) {
            // The request: the client has no answer in time, and sends it again.
            client.lose_calls -= 1;
            self.statistics.resent_calls += 1;
            arrival += costs.resend;
        }
        // One connection's packets arrive in the order sent.
        floor.arrival = arrival.max(floor.arrival + 1);
        floor.arrival
    }

    // --- At the memory node

    fn arrive(&mut self, index: u32, group: usize) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        let connection = flight.connection as usize;
        let node = flight.groups[group].node;
        let number = usize::from(node.0);
        if number >= self.nodes.len() {
            let verbs = flight.buffer.verbs();
            let error = match flight.groups[group].places().next().map(|place| &verbs[place]) {
                Some(
                    Verb::Read { at, .. }
                    | Verb::Write { at, .. }
                    | Verb::CompareSwap { at, .. }
                    | Verb::FetchAdd { at, .. },
                ) => FabricError { node, fault: Fault::NoSuchRegion(*at) },
                _ => no_such_node(node),
            };
            return self.fail_group(flight, index, group, error, self.now);
        }
        if self.connections[connection].dead && self.now > self.connections[connection].floors[number].cut {
            self.statistics.lost_groups += 1;
            self.flights[index as usize] = Some(flight); // its other groups may have left
            return; // it never left; nobody waits
        }
        if let Some(until) = self.faults.cut_off(self.connections[connection].machine, number, self.now) {
            let give_up = self.now + RETRY;
            if until > give_up {
                // As a queue pair whose retries are exhausted: nothing passes over it any more.
                self.connections[connection].lives[number] = BROKEN;
                return self.fail_group(flight, index, group, FabricError { node, fault: Fault::Unreachable }, give_up);
            }
            self.flights[index as usize] = Some(flight);
            self.statistics.resent_groups += 1;
            self.queue.push(until, Event::Arrive { flight: index, group: group as u16 });
            return;
        }
        if let Some(fault) = self.refusal(connection, number) {
            let when = if fault == Fault::Unreachable { self.now + RETRY } else { self.now };
            return self.fail_group(flight, index, group, FabricError { node, fault }, when);
        }
        let mut pieces = 0;
        let bytes_in = u64::from(flight.groups[group].bytes_out);
        let World { costs, machines, connections, .. } = self;
        let link = &mut machines[number].nics[connections[connection].nic].receiving;
        // It was as long on the sender's link: here it only waits for others.
        let on_link = costs.link(bytes_in);
        let arrived = occupy(link, self.now, self.now, on_link) - on_link;
        let received = arrived + if self.path == Path::Loads { 0 } else { costs.receive };
        // In software: one message, served by one thread.
        let words = bytes_in / WORD_BYTES as u64 + u64::from(flight.groups[group].verbs.count_ones());
        let (there, time) = (received + costs.pcie(bytes_in), costs.serve + words * costs.serve_word);
        let software = (self.path == Path::Messages).then(|| self.serving_core(number, connection, there, time));
        for at in flight.groups[group].places() {
            let verb = flight.buffer.verbs()[at];
            let taken = match software {
                Some(served) => served,
                None => {
                    let work = match verb {
                        Verb::Call { .. } => self.memory.work(&verb, flight.buffer.parts().1) * NS,
                        _ => 0,
                    };
                    self.take_verb(number, connection, &verb, received, work)
                }
            };
            let (from, until) = self.access(number, connection, &verb, taken);
            let parts = self.parts(&verb);
            for part in 0..parts {
                // The last part is when it is over; the others are somewhere in between.
                let ascending = matches!(verb, Verb::Write { .. });
                let when = if part + 1 == parts || until <= from {
                    until
                } else if ascending {
                    from + (until - from) * part / parts
                } else {
                    from + self.prng.below(until - from)
                };
                let event = Event::Piece {
                    flight: index,
                    group: group as u16,
                    verb: at as u8,
                    part: part as u8,
                    parts: parts as u8,
                };
                self.queue.push(when, event);
                pieces += 1;
            }
            if let Verb::Call { .. } = verb {
                pieces += self.again(index, group, at, connection, until);
            }
        }
        flight.groups[group].pieces = pieces;
        self.flights[index as usize] = Some(flight);
    }

    /// The switch that stands for a node: how far it is, and how long it takes for a call.
    fn switch(&self, node: usize, has_calls: bool) -> Option<(Picos, Picos)> {
        self.costs.in_switch.filter(|_| has_calls && node + 1 == self.nodes.len())
    }

    /// A call arrives once more, because the network has doubled it or its answer was lost.
    fn again(&mut self, flight: u32, group: usize, at: usize, connection: usize, served: Picos) -> u32 {
        let client = &mut self.connections[connection];
        let after = if client.lose_calls > 0 {
            client.lose_calls -= 1;
            self.statistics.resent_calls += 1;
            self.costs.resend
        } else if client.duplicate_calls > 0 {
            client.duplicate_calls -= 1;
            self.costs.wire
        } else {
            return 0;
        };
        let event = Event::Piece { flight, group: group as u16, verb: at as u8, part: 1, parts: 2 };
        self.queue.push(served + after, event);
        1
    }

    /// Why a node takes no verb of this connection.
    fn refusal(&self, connection: usize, node: usize) -> Option<Fault> {
        let client = &self.connections[connection];
        if client.revoked >> node & 1 == 1 {
            Some(Fault::Revoked)
        } else if self.nodes[node].down || self.nodes[node].life != client.lives[node] {
            Some(Fault::Unreachable)
        } else {
            None
        }
    }

    /// Occupies the thread that serves a connection's messages and calls at a node; when it is
    /// done.
    fn serving_core(&mut self, node: usize, connection: usize, from: Picos, time: Picos) -> Picos {
        let worker = self.connections[connection].core.unwrap_or(connection);
        let machine = &mut self.machines[node];
        if self.symmetric && !machine.cores.is_empty() {
            let core = machine.cores[worker % machine.cores.len()];
            return occupy(&mut self.cores[core].clock, self.now, from, time);
        }
        let thread = worker % machine.servers.len();
        occupy(&mut machine.servers[thread], self.now, from, time)
    }

    /// Occupies the core of a node that has least to do: its services are threads that run where
    /// there is room.
    fn occupy_idlest(&mut self, node: usize, time: Picos) {
        let machine = &mut self.machines[node];
        let idlest = machine.cores.iter().copied().min_by_key(|core| self.cores[*core].clock);
        let clock = match idlest {
            Some(core) if self.symmetric => Some(&mut self.cores[core].clock),
            _ => machine.servers.iter_mut().min(),
        };
        if let Some(clock) = clock {
            occupy(clock, self.now, self.now, time);
        }
    }

    /// A NIC takes a verb. Returns when its access to memory begins. `work` is the time for which
    /// the handler of a call works.
    fn take_verb(&mut self, node: usize, connection: usize, verb: &Verb, received: Picos, work: Picos) -> Picos {
        let occupied = match verb {
            Verb::Read { .. } | Verb::Flush { .. } | Verb::AfterCompletion => self.costs.read,
            Verb::Write { .. } => self.costs.write,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => self.costs.atomic,
            Verb::Call { .. } => 2 * self.costs.message, // it, and its answer
        };
        let machine = &mut self.machines[node];
        let nic = match offset_of(verb) {
            // Machines have one or two: no 64-bit division.
            Some(offset) => ((offset >> 12) as u32 % machine.nics.len() as u32) as usize,
            None => self.connections[connection].nic,
        };
        let now = self.now;
        let taken = occupy(&mut machine.nics[nic].engine, now, received, occupied);
        match verb {
            Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => {
                let slot = self.costs.slot_of(at.offset);
                // Others may have it when this one is over; its own access to memory begins when it
                // has it.
                occupy(&mut machine.nics[nic].slots[slot], now, taken, self.costs.slot) - self.costs.slot
            }
            Verb::Call { head_words, body_words, .. } => {
                if let Some((_, time)) = self.switch(node, true) {
                    return taken + time;
                }
                let time = self.costs.serve + work + u64::from(head_words + body_words) * self.costs.serve_word;
                let from = taken + self.costs.dma_write;
                self.serving_core(node, connection, from, time)
            }
            _ => taken,
        }
    }

    /// Returns from when to when a verb that has been taken has its effect. What is ordered behind
    /// the verb comes after.
    fn access(&mut self, node: usize, connection: usize, verb: &Verb, taken: Picos) -> (Picos, Picos) {
        let (dma_read, dma_write) = match self.path {
            Path::Messages => (0, 0),
            Path::Nic | Path::Loads => (self.costs.dma_read, self.costs.dma_write),
        };
        let time = match verb {
            Verb::Write { .. } => self.spread(dma_write),
            Verb::Read { .. } | Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => self.spread(dma_read),
            Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => 0,
        };
        let World { costs, nodes, connections, now, .. } = self;
        let floor = &mut connections[connection].floors[node];
        let medium = &mut nodes[node].medium;
        match *verb {
            Verb::Read { at, words, .. } => {
                let bytes = u64::from(words) * WORD_BYTES as u64;
                let begin = taken.max(floor.write).max(floor.atomic);
                let stored = medium.read(*now, begin, at.offset, bytes);
                (begin + time / 2, stored.max(begin) + time + costs.pcie(bytes))
            }
            Verb::Write { at, words, .. } => {
                let bytes = u64::from(words) * WORD_BYTES as u64;
                let stored = medium.write(*now, taken, at.offset, bytes);
                // WRITEs of a connection follow each other into memory; none waits until the one
                // before has arrived.
                let former = std::mem::replace(&mut floor.write, stored + time + costs.pcie(bytes));
                floor.write = floor.write.max(former + 1);
                (former.max(floor.write - time / 2), floor.write)
            }
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => {
                let begin = taken.max(floor.write).max(floor.atomic);
                floor.atomic = (begin + time).max(floor.atomic + 1);
                (floor.atomic, floor.atomic)
            }
            Verb::Flush { .. } => {
                let begin = taken.max(floor.write).max(floor.atomic);
                let over = begin + costs.flush;
                (over, over)
            }
            Verb::Call { .. } | Verb::AfterCompletion => (taken, taken),
        }
    }

    /// A latency as it is this time: around what it is usually, and rarely far above.
    fn spread(&mut self, latency: Picos) -> Picos {
        if !self.hostile || latency == 0 {
            return latency;
        }
        let random = self.prng.next_u64();
        let spread = latency * 3 / 4 + ((u128::from(random as u32) * u128::from(latency / 2)) >> 32) as u64;
        let stretched = self.stretch > 0.0 && ((random >> 32) as f64) < self.stretch * (1u64 << 32) as f64;
        if stretched { spread * (2 + self.prng.below(STRETCH)) } else { spread }
    }

    fn is_record_line(&self, at: Address) -> bool {
        let region = usize::from(at.node.0) * REGIONS_PER_NODE_MAX + usize::from(at.region.0);
        self.record_lines.get(region).is_some_and(|ranges| ranges.iter().any(|range| range.contains(&at.offset)))
    }

    pub(super) fn lines_of_records(&mut self, at: Address, bytes: u64) {
        let region = usize::from(at.node.0) * REGIONS_PER_NODE_MAX + usize::from(at.region.0);
        let Some(ranges) = self.record_lines.get_mut(region) else { return };
        let line = LINE_BYTES as u64;
        ranges.push(at.offset / line * line..(at.offset + bytes).next_multiple_of(line));
        ranges.sort_unstable_by_key(|range| range.start);
        // What touches is one: a table's shards lie side by side, and every part of a verb looks
        // here.
        ranges.dedup_by(|range, former| {
            let touches = range.start <= former.end;
            former.end = if touches { former.end.max(range.end) } else { former.end };
            touches
        });
    }

    /// In how many parts a verb takes effect.
    fn parts(&self, verb: &Verb) -> u64 {
        let (Verb::Read { at, words, .. } | Verb::Write { at, words, .. }) = verb else { return 1 };
        if !self.hostile {
            return 1;
        }
        let first = at.offset / WORD_BYTES as u64;
        let words = u64::from(*words);
        if self.is_record_line(*at) {
            ((first + words).div_ceil(LINE_WORDS as u64) - first / LINE_WORDS as u64).clamp(1, PARTS_MAX)
        } else {
            words.clamp(1, WORD_PARTS_MAX)
        }
    }

    /// A part of a verb takes effect; or a call is to be served.
    fn piece(&mut self, index: u32, group: u16, at: u8, part: u8, parts: u8) -> Option<Call> {
        let mut flight = self.flights[index as usize].take()?;
        let connection = flight.connection as usize;
        let Group { node, failed, .. } = flight.groups[usize::from(group)];
        let number = usize::from(node.0);
        let verb = flight.buffer.verbs()[usize::from(at)];
        if self.connections[connection].dead && self.now > self.connections[connection].floors[number].cut {
            // The rest of a WRITE whose packets were not all sent, and whatever is ordered behind
            // it: an unlock, above all.
            self.flights[index as usize] = Some(flight);
            return None;
        }
        let mut result = Ok(());
        if !failed {
            self.statistics.pieces += 1;
            if !self.revocations.is_empty() {
                self.revoke_due();
            }
            let Connection { client, .. } = self.connections[connection];
            result = match self.refusal(connection, number) {
                Some(fault) => Err(FabricError { node, fault }),
                None if part == 0 && matches!(verb, Verb::Call { .. }) => {
                    return Some(Call { flight, client, index, group, verb: at, result });
                }
                None => self.effect(&mut flight, connection, &verb, part.into(), parts.into()),
            };
        }
        self.piece_over(flight, index, group.into(), result);
        None
    }

    fn piece_over(&mut self, mut flight: Box<Flight>, index: u32, group: usize, result: Result<(), FabricError>) {
        if result.is_err() {
            flight.outcome = flight.outcome.and(result);
            flight.groups[group].failed = true;
        }
        flight.groups[group].pieces -= 1;
        if flight.groups[group].pieces == 0 {
            let back = self.answer(&mut flight, group);
            self.group_over(&mut flight, index, back);
        }
        self.flights[index as usize] = Some(flight);
    }

    /// A group's answer is at the client at `back`.
    fn group_over(&mut self, flight: &mut Flight, index: u32, back: Picos) {
        flight.back = flight.back.max(back);
        flight.groups_left -= 1;
        if flight.groups_left == 0 {
            self.queue.push(flight.back, Event::Done { flight: index });
        }
    }

    /// The answer leaves; when it is at the client.
    fn answer(&mut self, flight: &mut Flight, group: usize) -> Picos {
        let group = &flight.groups[group];
        let node = usize::from(group.node.0);
        let (mut bytes, mut reply_words) = (u64::from(group.bytes_back), 0);
        if group.has_calls {
            let (verbs, words) = flight.buffer.parts();
            for place in group.places() {
                if let Verb::Call { into, .. } = verbs[place] {
                    reply_words += words[into as usize];
                }
            }
            bytes += reply_words * WORD_BYTES as u64;
        }
        let switch = self.switch(node, group.has_calls);
        let World { costs, machines, connections, now, path, .. } = self;
        let client = &connections[flight.connection as usize];
        let nic = &mut machines[node].nics[client.nic];
        let link = costs.link(bytes);
        let mut left = *now + reply_words * costs.serve_word;
        if group.has_calls && *path == Path::Nic && switch.is_none() {
            // The answer is a message that the CPU posts.
            left += costs.send;
        }
        match path {
            // The core that loads has waited for its own bytes: here it only waits for others.
            Path::Loads => return occupy(&mut nic.sending, *now, left, link) - link,
            Path::Messages => left = occupy(&mut nic.engine, *now, left, costs.request),
            Path::Nic => {}
        }
        let sent = occupy(&mut nic.sending, *now, left, link);
        if client.machine == node {
            return sent + costs.pcie(bytes) + costs.completion;
        }
        // It was as long on the node's link: on the client's it only waits for others.
        let receiving = &mut machines[client.machine].nics[client.nic].receiving;
        let wire = switch.map_or(costs.wire, |(wire, _)| wire);
        let received = occupy(receiving, *now, sent + wire - link, link);
        received + costs.pcie(bytes) + costs.completion
    }

    fn revoke_due(&mut self) {
        let pieces = self.statistics.pieces;
        let mut due = Vec::new();
        self.revocations.retain(|(at, client)| {
            if *at < pieces {
                due.push(*client);
            }
            *at >= pieces
        });
        due.into_iter().for_each(|client| self.revoke(client));
    }

    pub(super) fn revoke(&mut self, client: ClientId) {
        let connections = self.connections.iter_mut().filter(|connection| connection.client == client);
        connections.for_each(|connection| connection.revoked |= !self.abandoned);
    }

    /// A part of a verb takes effect.
    fn effect(
        &mut self,
        flight: &mut Flight,
        connection: usize,
        verb: &Verb,
        part: u64,
        parts: u64,
    ) -> Result<(), FabricError> {
        // Which parts take what is drawn, the same for all parts of a verb.
        let draw =
            || splitmix(self.seed ^ flight.ticket.0 << 20 ^ (connection as u64) << 8 ^ u64::from(verb_key(verb)));
        match *verb {
            Verb::Read { at, words, into } => {
                let (region, start) = self.memory.words(at, words)?;
                let from = &region[start..start + words as usize];
                let draw = if parts == 1 { 0 } else { draw() };
                let into = &mut flight.buffer.parts().1[into as usize..][..words as usize];
                if parts == 1 {
                    into.iter_mut().zip(from).for_each(|(into, word)| *into = word.load(Ordering::Acquire));
                    return Ok(());
                }
                let by_line = self.is_record_line(at);
                for (index, (into, word)) in into.iter_mut().zip(from).enumerate() {
                    let unit = if by_line { (start + index) / LINE_WORDS } else { index };
                    if splitmix(draw ^ unit as u64) % parts == part {
                        *into = word.load(Ordering::Acquire);
                    }
                }
            }
            Verb::Write { at, words, from } => {
                let (region, start) = self.memory.words(at, words)?;
                let words = words as usize;
                let range = if parts == 1 {
                    0..words
                } else {
                    let (draw, by_line) = (draw() as usize % words, self.is_record_line(at));
                    let cut = |part: u64| {
                        if part == 0 || part == parts {
                            return if part == 0 { 0 } else { words };
                        }
                        let cut = (words * part as usize + draw) / parts as usize;
                        // A line of a record lands whole.
                        if by_line { ((start + cut).next_multiple_of(LINE_WORDS) - start).min(words) } else { cut }
                    };
                    cut(part)..cut(part + 1)
                };
                if self.nodes[usize::from(at.node.0)].medium.persistent {
                    self.faults.dirty(&self.memory, at, range.clone(), connection);
                }
                if let Some((watched, when)) = &mut self.watched
                    && (watched.node, watched.region) == (at.node, at.region)
                    && range.contains(&((watched.offset.wrapping_sub(at.offset) / WORD_BYTES as u64) as usize))
                {
                    *when = Some(self.now);
                }
                let from = &flight.buffer.parts().1[from as usize..][..words];
                for (word, value) in region[start..][range.clone()].iter().zip(&from[range]) {
                    word.store(*value, Ordering::Release);
                }
            }
            // It has been served: the caller's sequence number says so, and it has its answer
            // again.
            Verb::Call { .. } if part > 0 => self.statistics.suppressed_calls += 1,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } | Verb::Call { .. } | Verb::AfterCompletion => {
                let client = self.connections[connection].client;
                execute_verb(&self.memory, verb, flight.buffer.parts().1, &Cell::new(false), client)?;
            }
            Verb::Flush { node } => {
                if self.flush_persists {
                    self.faults.flushed(node, connection);
                }
            }
        }
        Ok(())
    }

    // --- Back at the client

    /// A group will not be done.
    fn fail_group(&mut self, mut flight: Box<Flight>, index: u32, group: usize, error: FabricError, at: Picos) {
        flight.outcome = flight.outcome.and(Err(error));
        flight.groups[group].failed = true;
        let back = at + self.costs.wire + self.costs.completion;
        self.group_over(&mut flight, index, back);
        self.flights[index as usize] = Some(flight);
    }

    /// All verbs that were under way are over.
    fn done(&mut self, index: u32) {
        let flight = self.flight(index);
        let (fenced, end) = (flight.buffer.has_fences(), usize::from(flight.end));
        let more = end < flight.buffer.verbs().len();
        let (failed, connection) = (flight.outcome.is_err(), flight.connection as usize);
        if more && !failed && !self.connections[connection].dead {
            return self.segment(index, end + 1);
        }
        // Its fence has been lifted when the last part went out, unless there was none.
        self.complete(index, fenced && more);
    }

    /// A round is over.
    fn complete(&mut self, index: u32, still_fenced: bool) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        self.free_flights.push(index);
        let connection = flight.connection as usize;
        flight.buffer.finish(flight.outcome);
        self.spare_groups.push(std::mem::take(&mut flight.groups));
        let costs = &self.costs;
        let taking = u64::from(flight.polls) * costs.poll + u64::from(flight.calls) * costs.call_poll + costs.switch;
        let client = &mut self.connections[connection];
        if let Some(at) = client.under_way.iter().position(|(ticket, _)| *ticket == flight.ticket) {
            client.under_way.swap_remove(at);
        }
        client.idle.store(false, Ordering::Relaxed);
        if flight.orphaned {
            client.reclaimed.push(flight.buffer);
        } else {
            client.ready.push(flight.buffer.lane());
            client.completed.push((flight.ticket, flight.buffer, taking));
        }
        if let (Some(core), false) = (client.core, client.dead) {
            self.wake_now(core);
        }
        if still_fenced {
            self.unfence(connection);
        }
    }

    pub(super) fn take(&mut self, connection: usize, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        let completed = &mut self.connections[connection].completed;
        let at = completed.iter().position(|(done, ..)| *done == ticket)?;
        let (_, buffer, time) = completed.swap_remove(at);
        self.charge(connection, time);
        Some(buffer)
    }

    pub(super) fn orphan(&mut self, connection: usize, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        if let Some(buffer) = self.take(connection, ticket) {
            return Some(buffer);
        }
        let under_way = &self.connections[connection].under_way;
        let (_, index) = *under_way.iter().rev().find(|(under_way, _)| *under_way == ticket)?;
        let flight = self.flights[index as usize].as_mut()?;
        flight.orphaned = true;
        None
    }

    /// What an endpoint is told when it polls: goes into vectors that are empty.
    pub(super) fn news(&mut self, connection: usize, ready: &mut Vec<LaneId>, reclaimed: &mut Vec<Box<RoundBuffer>>) {
        let client = &mut self.connections[connection];
        client.idle.store(client.core.is_some(), Ordering::Relaxed);
        std::mem::swap(&mut client.ready, ready);
        std::mem::swap(&mut client.reclaimed, reclaimed);
    }

    // --- Services of memory nodes

    pub(super) fn serve(&mut self, node: usize, stop: ServiceStop, service: Box<dyn Service>) {
        let index = self.services.len() as u32;
        let at = self.now + NAP_MIN;
        self.services.push(Some(RunningService { node, stop, service, nap: NAP_MIN }));
        self.queue.push(at, Event::Service { index });
    }

    /// A service whose nap is over, if it is to be stepped.
    fn step_service(&mut self, index: usize) -> Option<RunningService> {
        let running = self.services[index].take_if(|running| {
            let node = &self.nodes[running.node];
            running.stop.requested() || !(node.down || node.stalled_until > self.now)
        });
        if running.is_none()
            && let Some(standing) = &self.services[index]
        {
            let at = self.nodes[standing.node].stalled_until.max(self.now + NAP_MAX);
            self.queue.push(at, Event::Service { index: index as u32 });
        }
        running.filter(|running| !running.stop.requested())
    }

    fn service_stepped(&mut self, index: u32, mut running: RunningService, progress: Progress) {
        let pause = match progress {
            Progress::Behind => SERVICE_STEP,
            Progress::Worked => {
                running.nap = NAP_MIN;
                NAP_MIN
            }
            Progress::Idle => {
                running.nap = (running.nap * 2).min(NAP_MAX);
                running.nap
            }
        };
        if progress != Progress::Idle {
            running.stop.add_cpu_ns(SERVICE_STEP / NS);
            self.occupy_idlest(running.node, SERVICE_STEP);
        }
        self.services[index as usize] = Some(running);
        self.queue.push(self.now + pause, Event::Service { index });
    }

    /// A node's services begin anew.
    pub(super) fn restart_services(&mut self, node: usize) {
        for running in self.services.iter_mut().flatten().filter(|running| running.node == node) {
            running.service.restart();
            running.nap = NAP_MIN;
        }
    }

    /// Steps the services until none finds work.
    pub(super) fn settle_services(&mut self) {
        loop {
            let mut worked = false;
            for running in self.services.iter_mut().flatten() {
                if !running.stop.requested() && !self.nodes[running.node].down {
                    worked |= running.service.step() != Progress::Idle;
                }
            }
            if !worked {
                return;
            }
        }
    }

    pub(super) fn is_persistent(&self, node: usize) -> bool {
        self.nodes[node].medium.persistent
    }

    // --- Faults

    fn fault_due(&mut self, index: usize) {
        let Some(happening) = self.faults.due(index) else { return };
        faults::happen(self, happening);
    }

    /// A client's machine dies now: what it has posted may have left, up to some packet.
    pub(super) fn kill(&mut self, connection: usize) {
        if self.connections[connection].dead {
            return;
        }
        for node in 0..self.nodes.len() {
            let last = self.connections[connection].floors[node].arrival;
            let ahead = last.saturating_sub(self.now);
            let cut = self.now + if ahead == 0 { 0 } else { self.prng.below(ahead + 2) };
            self.connections[connection].floors[node].cut = cut;
        }
        self.connections[connection].dead = true;
        if let Some(core) = self.connections[connection].core {
            self.stop_core(core);
        }
    }

    /// A core does nothing any more.
    pub(super) fn stop_core(&mut self, core: usize) {
        if !std::mem::replace(&mut self.cores[core].stopped, true) {
            self.running_cores -= 1;
        }
    }
}

/// A number from -`most` to `most`.
fn between(prng: &mut Prng, most: u64) -> i64 {
    prng.below(2 * most + 1) as i64 - most as i64
}

/// Payload that a verb sends.
fn bytes_out(verb: &Verb) -> u32 {
    let words = match verb {
        Verb::Write { words, .. } => *words,
        Verb::CompareSwap { .. } => 2,
        Verb::FetchAdd { .. } => 1,
        Verb::Call { head_words, body_words, .. } => head_words + body_words,
        Verb::Read { .. } | Verb::Flush { .. } | Verb::AfterCompletion => 0,
    };
    words * WORD_BYTES as u32
}

/// Payload that comes back, but for what a call answers.
fn bytes_back(verb: &Verb) -> u32 {
    let words = match verb {
        Verb::Read { words, .. } => *words,
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 1,
        Verb::Write { .. } | Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => 0,
    };
    words * WORD_BYTES as u32
}

fn offset_of(verb: &Verb) -> Option<u64> {
    match verb {
        Verb::Read { at, .. } | Verb::Write { at, .. } | Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => {
            Some(at.offset)
        }
        Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => None,
    }
}

/// Tells the verbs of a round apart, by their place in its buffer.
fn verb_key(verb: &Verb) -> u32 {
    match verb {
        Verb::Read { into, .. } | Verb::CompareSwap { into, .. } | Verb::FetchAdd { into, .. } => *into,
        Verb::Write { from, at, .. } => *from ^ (at.node.0 as u32) << 16,
        Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => 0,
    }
}
