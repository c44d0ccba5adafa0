//! The state of a simulated cluster, and what happens in it: one event after the other, in virtual time.
//!
//! A round goes through these events, once for each node it has verbs for (a *group*):
//!
//! ```text
//! post     the client's core pays; its NIC sends                        (no event: computed when posted)
//! Arrive   the group is at the node: its NIC, or a CPU, takes the verbs one after the other; when each takes effect
//!          is drawn here, within the time that the access to memory takes
//! Piece    a part of a verb takes effect: an atomic, some words of a WRITE, some lines of a READ, a call
//! Done     the answer is at the client; with the last group's the round has completed
//! ```
//!
//! **Order** (contract, rule 1) is kept by a few times for each connection and node, its *floors*: when the last WRITE and
//! the last atomic take effect. A verb that is ordered behind one of them takes effect after it; all others take effect
//! whenever their own access to memory is over, which is in any order.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::costs::{Costs, MediumState, NicState, occupy};
use super::faults::{self, Faults};
use super::profile::Path;
use super::queue::{NS, Picos, Queue};
use super::{Deployment, SimOptions, SimStatistics};
use crate::address::{Address, LINE_BYTES, LINE_WORDS, NodeId, WORD_BYTES};
use crate::error::{FabricError, Fault};
use crate::limits::REGIONS_PER_NODE_MAX;
use crate::prng::{Prng, splitmix};
use crate::round::{RoundBuffer, Verb};
use crate::service::{Progress, Service, ServiceStop};
use crate::shm::{Memory, execute_verb, no_such_node};
use crate::transport::{ClientId, LaneId, Posted, Ticket};

/// In how many parts a READ or WRITE takes effect at most.
const PARTS_MAX: u64 = 4;
/// The same where it tears at words: two instants show every way in which a reader can meet a writer.
const WORD_PARTS_MAX: u64 = 2;
/// How long an RC connection sends again before it gives a node up.
pub(super) const RETRY: Picos = 1_000_000 * NS;
/// How much longer than usual a stretched access to memory takes, at most.
const STRETCH: u64 = 30;
/// Naps of a memory node's services: see `service.rs`.
const NAP_MIN: Picos = 20_000 * NS;
const NAP_MAX: Picos = 500_000 * NS;
/// What a step of a service that has found work costs its CPU.
const SERVICE_STEP: Picos = 1_000 * NS;

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

/// A round under way.
struct Flight {
    buffer: Box<RoundBuffer>,
    connection: u32,
    ticket: Ticket,
    outcome: Result<(), FabricError>,
    orphaned: bool,
    /// The verbs that are under way: up to a fence.
    segment: (usize, usize),
    groups: Vec<Group>,
    groups_left: u16,
    /// Destinations that the client's CPU takes a completion of.
    polls: u16,
    calls: u16,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    node: NodeId,
    pieces: u32,
    failed: bool,
}

/// What orders the verbs of one connection at one node.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Of a client that has died: what was sent later never left.
    pub(super) cut: Picos,
    /// Added to the next group's way.
    pub(super) delay: Picos,
}

pub(super) struct Connection {
    pub(super) client: ClientId,
    pub(super) machine: usize,
    nic: usize,
    /// The core whose coroutines use it, while somebody drives the simulation.
    pub(super) core: Option<usize>,
    pub(super) floors: Box<[Floor]>,
    completed: Vec<(Ticket, Box<RoundBuffer>, Picos)>,
    reclaimed: Vec<Box<RoundBuffer>>,
    ready: Vec<LaneId>,
    /// Rounds with parts behind a fence that have not been posted.
    fenced: u32,
    /// Rounds that wait for those.
    held: VecDeque<u32>,
    pub(super) dead: bool,
    pub(super) revoked: bool,
    /// Which lives of the nodes it is connected to.
    lives: Box<[u32]>,
    /// Its rounds under way.
    under_way: Vec<(Ticket, u32)>,
    /// So many of its next calls, or their answers, are lost; arrive twice.
    pub(super) lose_calls: u32,
    pub(super) duplicate_calls: u32,
}

/// A core that runs a worker's coroutines.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) clock: Picos,
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
    /// Its services stand still until then.
    pub(super) stalled_until: Picos,
}

struct RunningService {
    node: usize,
    stop: ServiceStop,
    service: Box<dyn Service>,
    nap: Picos,
}

pub(super) struct World {
    pub(super) memory: Arc<Memory>,
    /// For each region, a bit for each line that is a record's.
    record_lines: Vec<Vec<u64>>,
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
    /// Somebody drives it, so that endpoints that poll do not.
    pub(super) driven: bool,
    pub(super) faults: Faults,
    /// A word that somebody polls, and when it was written.
    pub(super) watched: Option<(Address, Option<Picos>)>,
    /// Clients that lose their access when so many pieces have taken effect.
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
            medium: MediumState::new(medium.clone(), options.ddio, options.cross_socket),
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
            driven: false,
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
    fn machine_of(&mut self, place: usize) -> usize {
        let nodes = self.nodes.len().max(1);
        let machine = if self.symmetric { place % nodes } else { nodes + place };
        let nics = self.machines.first().map_or(1, |machine| machine.nics.len());
        self.add_machines(machine + 1, nics);
        machine
    }

    pub(super) fn connect(&mut self, client: ClientId) -> usize {
        let machine = self.machine_of(self.place);
        let index = self.connections.len();
        let revoked = self.connections.iter().any(|other| other.client == client && other.revoked);
        self.connections.push(Connection {
            client,
            machine,
            nic: index % self.machines[machine].nics.len(),
            core: None,
            floors: vec![Floor::default(); self.nodes.len()].into(),
            completed: Vec::new(),
            reclaimed: Vec::new(),
            ready: Vec::new(),
            fenced: 0,
            held: VecDeque::new(),
            dead: false,
            revoked,
            lives: self.nodes.iter().map(|node| node.life).collect(),
            under_way: Vec::new(),
            lose_calls: 0,
            duplicate_calls: 0,
        });
        index
    }

    /// Gives a worker's connections a core of their own, on the machine where they are.
    pub(super) fn add_core(&mut self, clients: &[ClientId]) -> usize {
        let core = self.cores.len();
        self.cores.push(Core { clock: self.now, turn_at: None, paused_until: 0, stopped: false });
        self.running_cores += 1;
        let mut machine = None;
        for connection in &mut self.connections {
            if clients.contains(&connection.client) {
                connection.core = Some(core);
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

    /// All cores are gone: whoever drove the simulation has stopped.
    pub(super) fn remove_cores(&mut self) {
        for core in &self.cores {
            self.now = self.now.max(core.clock.min(self.now + 1_000_000 * NS));
        }
        self.cores.clear();
        self.running_cores = 0;
        self.machines.iter_mut().for_each(|machine| machine.cores.clear());
        self.connections.iter_mut().for_each(|connection| connection.core = None);
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
        let Core { clock, turn_at, paused_until, stopped } = &mut self.cores[core];
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
        let Core { clock, turn_at, paused_until, stopped } = &mut self.cores[core];
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

    /// The next event happens. The core whose turn has come, if it is one's.
    pub(super) fn step(&mut self) -> Option<usize> {
        let (at, event) = self.queue.pop()?;
        self.now = self.now.max(at);
        self.statistics.events += 1;
        match event {
            Event::Arrive { flight, group } => self.arrive(flight, group.into()),
            Event::Piece { flight, group, verb, part, parts } => {
                self.piece(flight, group.into(), verb.into(), part.into(), parts.into());
            }
            Event::Done { flight } => {
                self.done(flight);
                return self.turning.take();
            }
            Event::Turn { core } => {
                if self.turn(core as usize) {
                    return Some(core as usize);
                }
            }
            Event::Service { index } => self.step_service(index as usize),
            Event::Fault { index } => self.fault_due(index as usize),
        }
        None
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
            connection: connection as u32,
            ticket,
            outcome: Ok(()),
            orphaned: false,
            segment: (0, 0),
            groups: self.spare_groups.pop().unwrap_or_default(),
            groups_left: 0,
            polls: 0,
            calls: 0,
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
        let revoked = self.connections[connection].revoked || self.connections[connection].dead;
        let (verbs, words) = buffer.parts();
        for verb in verbs {
            if let Some(node) = verb.node() {
                let down = self.nodes.get(usize::from(node.0)).is_some_and(|node| node.down);
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
        let fenced = flight.buffer.verbs().iter().any(|verb| matches!(verb, Verb::AfterCompletion));
        let connection = flight.connection as usize;
        if fenced {
            self.connections[connection].fenced += 1;
        }
        self.segment(index, 0);
    }

    /// The verbs from `from` on go out, up to a fence.
    fn segment(&mut self, index: u32, mut from: usize) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        let connection = flight.connection as usize;
        let verbs = flight.buffer.verbs();
        let mut end = from;
        flight.groups.clear();
        while end < verbs.len() {
            match verbs[end].node() {
                None if flight.groups.is_empty() => {
                    from = end + 1;
                }
                None => break,
                Some(node) => {
                    if !flight.groups.iter().any(|group| group.node == node) {
                        flight.groups.push(Group { node, pieces: 0, failed: false });
                    }
                }
            }
            end += 1;
        }
        flight.segment = (from, end);
        flight.groups_left = flight.groups.len() as u16;
        let last = !verbs[end..].iter().any(|verb| matches!(verb, Verb::AfterCompletion));
        let was_fenced = verbs[..end].iter().any(|verb| matches!(verb, Verb::AfterCompletion)) || !last;
        if flight.groups.is_empty() {
            self.flights[index as usize] = Some(flight);
            return self.complete(index, was_fenced);
        }
        let mut calls_posted = 0;
        for group in 0..flight.groups.len() {
            let arrival = self.send(&mut flight, group, &mut calls_posted);
            self.queue.push(arrival, Event::Arrive { flight: index, group: group as u16 });
        }
        self.flights[index as usize] = Some(flight);
        if was_fenced && last {
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
        let node = flight.groups[group].node;
        let verbs = flight.buffer.verbs()[flight.segment.0..flight.segment.1].iter();
        let verbs = verbs.filter(|verb| verb.node() == Some(node));
        let (mut cpu, mut count, mut calls) = (0, 0u64, 0u64);
        for verb in verbs.clone() {
            if let Verb::Call { .. } = verb {
                cpu += if *calls_posted == 0 { self.costs.call_post } else { self.costs.call_next };
                *calls_posted += 1;
                calls += 1;
            } else {
                count += 1;
            }
        }
        flight.calls += calls as u16;
        if count > 0 {
            cpu += self.costs.doorbell + count * self.costs.post;
            flight.polls += 1;
        }
        let posted = self.charge(connection, cpu);
        if self.path == Path::Loads {
            // The core waits for its loads; those of one round overlap.
            let loads = |verb: &Verb| !matches!(verb, Verb::Write { .. } | Verb::Call { .. });
            let bytes =
                verbs.clone().map(|verb| if let Verb::Read { words, .. } = verb { u64::from(*words) * 8 } else { 0 });
            let time = self.costs.pcie(bytes.sum());
            let latency = if verbs.clone().any(loads) { self.costs.dma_read } else { 0 };
            self.charge(connection, latency + time);
        }
        self.statistics.verbs += count + calls;
        let World { costs, machines, connections, nodes, now, .. } = self;
        let now = *now;
        let client = &mut connections[connection];
        let Some(floor) = client.floors.get_mut(usize::from(node.0)) else {
            // There is no such node: the NIC says so at once.
            return posted + costs.send;
        };
        let away = if client.machine == usize::from(node.0) && nodes.len() > client.machine { 0 } else { costs.wire };
        let nic = &mut machines[client.machine].nics[client.nic];
        if !floor.used {
            floor.used = true;
            nic.connections += 1;
        }
        let miss = costs.miss(nic.connections);
        let mut arrival = match self.path {
            Path::Loads => posted,
            Path::Messages => {
                let bytes = verbs.map(bytes_out).sum();
                let asked = occupy(&mut nic.engine, now, posted, costs.request + miss);
                let asked = occupy(&mut floor.sending, now, asked, costs.connection);
                occupy(&mut nic.sending, now, asked, costs.link(bytes)) + costs.send + costs.pcie(bytes) + away
            }
            Path::Nic => {
                let mut left = posted;
                for verb in verbs {
                    let bytes = bytes_out(verb);
                    let engine = if let Verb::Call { .. } = verb { costs.message } else { costs.request + miss };
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
            let mut verbs = flight.buffer.verbs()[flight.segment.0..].iter();
            let error = match verbs.find(|verb| verb.node() == Some(node)) {
                Some(
                    Verb::Read { at, .. }
                    | Verb::Write { at, .. }
                    | Verb::CompareSwap { at, .. }
                    | Verb::FetchAdd { at, .. },
                ) => FabricError { node, fault: Fault::NoSuchRegion(*at) },
                _ => no_such_node(node),
            };
            self.flights[index as usize] = Some(flight);
            return self.fail_group(index, group, error, self.now);
        }
        if self.connections[connection].dead && self.now > self.connections[connection].floors[number].cut {
            self.statistics.lost_groups += 1;
            return; // it never left; nobody waits
        }
        if let Some(until) = self.faults.cut_off(self.connections[connection].machine, number, self.now) {
            let give_up = self.now + RETRY;
            self.flights[index as usize] = Some(flight);
            if until > give_up {
                return self.fail_group(index, group, FabricError { node, fault: Fault::Unreachable }, give_up);
            }
            self.statistics.resent_groups += 1;
            self.queue.push(until, Event::Arrive { flight: index, group: group as u16 });
            return;
        }
        if let Some(fault) = self.refusal(connection, number) {
            self.flights[index as usize] = Some(flight);
            let when = if fault == Fault::Unreachable { self.now + RETRY } else { self.now };
            return self.fail_group(index, group, FabricError { node, fault }, when);
        }
        let (first, end) = flight.segment;
        let mut pieces = 0;
        let bytes_in: u64 =
            flight.buffer.verbs()[first..end].iter().filter(|verb| verb.node() == Some(node)).map(bytes_out).sum();
        let World { costs, machines, connections, .. } = self;
        let client = &connections[connection];
        let nics = machines[number].nics.len();
        let link = &mut machines[number].nics[client.nic % nics].receiving;
        // It was as long on the sender's link: here it only waits for others.
        let arrived = occupy(link, self.now, self.now, costs.link(bytes_in)) - costs.link(bytes_in);
        let received = arrived + if self.path == Path::Loads { 0 } else { costs.receive };
        // In software: one message, served by one thread.
        let words = bytes_in / WORD_BYTES as u64 + (end - first) as u64;
        let (there, time) = (received + costs.pcie(bytes_in), costs.serve + words * costs.serve_word);
        let software = (self.path == Path::Messages).then(|| self.serving_core(number, connection, there, time));
        for at in first..end {
            let verb = flight.buffer.verbs()[at];
            if verb.node() != Some(node) {
                continue;
            }
            let taken = match software {
                Some(served) => served,
                None => {
                    let work = self.memory.work(&verb, flight.buffer.parts().1) * NS;
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
        if client.revoked {
            Some(Fault::Revoked)
        } else if self.nodes[node].down || self.nodes[node].life != client.lives[node] {
            Some(Fault::Unreachable)
        } else {
            None
        }
    }

    /// Occupies the thread that serves a connection's messages and calls at a node; when it is done.
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

    /// Occupies the core of a node that has least to do: its services are threads that run where there is room.
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

    /// A NIC takes a verb: when its access to memory begins. A call has its handler `work` for so long.
    fn take_verb(&mut self, node: usize, connection: usize, verb: &Verb, received: Picos, work: Picos) -> Picos {
        let occupied = match verb {
            Verb::Read { .. } | Verb::Flush { .. } | Verb::AfterCompletion => self.costs.read,
            Verb::Write { .. } => self.costs.write,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => self.costs.atomic,
            Verb::Call { .. } => 2 * self.costs.message, // it, and its answer
        };
        let machine = &mut self.machines[node];
        let nics = machine.nics.len();
        let nic = match offset_of(verb) {
            Some(offset) => (offset >> 12) as usize % nics,
            None => self.connections[connection].nic % nics,
        };
        let now = self.now;
        let taken = occupy(&mut machine.nics[nic].engine, now, received, occupied);
        match verb {
            Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => {
                let slot = self.costs.slot_of(at.offset);
                // Others may have it when this one is over; its own access to memory begins when it has it.
                occupy(&mut machine.nics[nic].slots[slot], now, taken, self.costs.slot) - self.costs.slot
            }
            Verb::Call { head_words, body_words, .. } => {
                let time = self.costs.serve + work + u64::from(head_words + body_words) * self.costs.serve_word;
                let from = taken + self.costs.dma_write;
                self.serving_core(node, connection, from, time)
            }
            _ => taken,
        }
    }

    /// From when to when a verb that has been taken has its effect; what is ordered behind it comes after.
    fn access(&mut self, node: usize, connection: usize, verb: &Verb, taken: Picos) -> (Picos, Picos) {
        let (dma_read, dma_write) = match self.path {
            Path::Messages => (0, 0),
            Path::Nic | Path::Loads => (self.costs.dma_read, self.costs.dma_write),
        };
        let (read_time, write_time) = (self.spread(dma_read), self.spread(dma_write));
        let World { costs, nodes, connections, now, .. } = self;
        let floor = &mut connections[connection].floors[node];
        let medium = &mut nodes[node].medium;
        match *verb {
            Verb::Read { at, words, .. } => {
                let bytes = u64::from(words) * WORD_BYTES as u64;
                let begin = taken.max(floor.write).max(floor.atomic);
                let stored = medium.read(*now, begin, at.offset, bytes);
                (begin + read_time / 2, stored.max(begin) + read_time + costs.pcie(bytes))
            }
            Verb::Write { at, words, .. } => {
                let bytes = u64::from(words) * WORD_BYTES as u64;
                let stored = medium.write(*now, taken, at.offset, bytes);
                // WRITEs of a connection follow each other into memory; none waits until the one before has arrived.
                let former = std::mem::replace(&mut floor.write, stored + write_time + costs.pcie(bytes));
                floor.write = floor.write.max(former + 1);
                (former.max(floor.write - write_time / 2), floor.write)
            }
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => {
                let begin = taken.max(floor.write).max(floor.atomic);
                floor.atomic = (begin + read_time).max(floor.atomic + 1);
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
        let line = at.offset / LINE_BYTES as u64;
        let bits = self.record_lines.get(region).and_then(|bits| bits.get((line / 64) as usize));
        bits.is_some_and(|bits| bits >> (line % 64) & 1 != 0)
    }

    pub(super) fn lines_of_records(&mut self, at: Address, bytes: u64) {
        let region = usize::from(at.node.0) * REGIONS_PER_NODE_MAX + usize::from(at.region.0);
        let Some(bits) = self.record_lines.get_mut(region) else { return };
        let lines = at.offset / LINE_BYTES as u64..(at.offset + bytes).div_ceil(LINE_BYTES as u64);
        if bits.len() * 64 < lines.end as usize {
            bits.resize((lines.end as usize).div_ceil(64), 0);
        }
        for line in lines {
            bits[(line / 64) as usize] |= 1 << (line % 64);
        }
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

    fn piece(&mut self, index: u32, group: usize, at: usize, part: u64, parts: u64) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        let connection = flight.connection as usize;
        let Group { node, failed, .. } = flight.groups[group];
        let number = usize::from(node.0);
        let verb = flight.buffer.verbs()[at];
        if self.connections[connection].dead
            && self.now > self.connections[connection].floors[number].cut
            && matches!(verb, Verb::Write { .. })
        {
            // The rest of a WRITE whose packets were not all sent.
            return;
        }
        if !failed {
            self.statistics.pieces += 1;
            if !self.revocations.is_empty() {
                self.revoke_due();
            }
            let result = match self.refusal(connection, number) {
                Some(fault) => Err(FabricError { node, fault }),
                None => self.effect(&mut flight, connection, &verb, part, parts),
            };
            if let Err(error) = result {
                flight.outcome = flight.outcome.and(Err(error));
                flight.groups[group].failed = true;
            }
        }
        let group_state = &mut flight.groups[group];
        group_state.pieces -= 1;
        if group_state.pieces == 0 {
            let back = self.answer(&mut flight, number);
            self.queue.push(back, Event::Done { flight: index });
        }
        self.flights[index as usize] = Some(flight);
    }

    /// The answer leaves; when it is at the client.
    fn answer(&mut self, flight: &mut Flight, node: usize) -> Picos {
        let (first, end) = flight.segment;
        let (verbs, words) = flight.buffer.parts();
        let verbs = verbs[first..end].iter().filter(|verb| verb.node().is_some_and(|at| usize::from(at.0) == node));
        let (mut bytes, mut reply_words, mut called) = (0, 0, false);
        for verb in verbs {
            bytes += WORD_BYTES as u64
                * match *verb {
                    Verb::Read { words, .. } => words.into(),
                    Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 1,
                    Verb::Call { into, .. } => {
                        called = true;
                        reply_words += words[into as usize];
                        words[into as usize]
                    }
                    Verb::Write { .. } | Verb::Flush { .. } | Verb::AfterCompletion => 0,
                };
        }
        let World { costs, machines, connections, now, path, .. } = self;
        let client = &connections[flight.connection as usize];
        let machine = &mut machines[node];
        let nics = machine.nics.len();
        let nic = &mut machine.nics[client.nic % nics];
        let link = costs.link(bytes);
        let mut left = *now + reply_words * costs.serve_word;
        if called && *path == Path::Nic {
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
        let received = occupy(receiving, *now, sent + costs.wire - link, link);
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
        connections.for_each(|connection| connection.revoked = true);
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
        let draw = splitmix(self.seed ^ flight.ticket.0 << 20 ^ (connection as u64) << 8 ^ u64::from(verb_key(verb)));
        let (_, buffer) = flight.buffer.parts();
        match *verb {
            Verb::Read { at, words, into } => {
                let (region, start) = self.memory.words(at, words)?;
                let into = &mut buffer[into as usize..][..words as usize];
                let from = &region[start..start + words as usize];
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
                let by_line = self.is_record_line(at);
                let cut = |part: u64| {
                    if part == 0 || part == parts {
                        return if part == 0 { 0 } else { words };
                    }
                    let cut = (words * part as usize + draw as usize % words) / parts as usize;
                    // A line of a record lands whole.
                    if by_line { ((start + cut).next_multiple_of(LINE_WORDS) - start).min(words) } else { cut }
                };
                let range = cut(part)..cut(part + 1);
                if self.nodes[usize::from(at.node.0)].medium.medium.persistent {
                    self.faults.dirty(&self.memory, at, range.clone(), connection);
                }
                if let Some((watched, when)) = &mut self.watched
                    && (watched.node, watched.region) == (at.node, at.region)
                    && range.contains(&((watched.offset.wrapping_sub(at.offset) / WORD_BYTES as u64) as usize))
                {
                    *when = Some(self.now);
                }
                let from = &buffer[from as usize..][..words];
                for (word, value) in region[start..][range.clone()].iter().zip(&from[range]) {
                    word.store(*value, Ordering::Release);
                }
            }
            // It has been served: the caller's sequence number says so, and it has its answer again.
            Verb::Call { .. } if part > 0 => self.statistics.suppressed_calls += 1,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } | Verb::Call { .. } | Verb::AfterCompletion => {
                let client = self.connections[connection].client;
                execute_verb(&self.memory, verb, buffer, &Cell::new(false), client)?;
            }
            Verb::Flush { node } => self.faults.flushed(node, connection),
        }
        Ok(())
    }

    // --- Back at the client

    /// A group will not be done.
    fn fail_group(&mut self, index: u32, group: usize, error: FabricError, at: Picos) {
        let flight = self.flight(index);
        flight.outcome = flight.outcome.and(Err(error));
        flight.groups[group].failed = true;
        let back = at + self.costs.wire + self.costs.completion;
        self.queue.push(back, Event::Done { flight: index });
    }

    fn done(&mut self, index: u32) {
        let flight = self.flight(index);
        flight.groups_left -= 1;
        if flight.groups_left > 0 {
            return;
        }
        let (_, end) = flight.segment;
        let verbs = flight.buffer.verbs();
        let fenced = verbs.iter().any(|verb| matches!(verb, Verb::AfterCompletion));
        let more = end < verbs.len();
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

    fn step_service(&mut self, index: usize) {
        let Some(running) = &mut self.services[index] else { return };
        if running.stop.requested() {
            self.services[index] = None;
            return;
        }
        let node = &self.nodes[running.node];
        if node.down || node.stalled_until > self.now {
            let at = node.stalled_until.max(self.now + NAP_MAX);
            self.queue.push(at, Event::Service { index: index as u32 });
            return;
        }
        let progress = running.service.step();
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
            let node = running.node;
            self.occupy_idlest(node, SERVICE_STEP);
        }
        self.queue.push(self.now + pause, Event::Service { index: index as u32 });
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
        self.nodes[node].medium.medium.persistent
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
fn bytes_out(verb: &Verb) -> u64 {
    let words = match verb {
        Verb::Write { words, .. } => *words,
        Verb::CompareSwap { .. } => 2,
        Verb::FetchAdd { .. } => 1,
        Verb::Call { head_words, body_words, .. } => head_words + body_words,
        Verb::Read { .. } | Verb::Flush { .. } | Verb::AfterCompletion => 0,
    };
    u64::from(words) * WORD_BYTES as u64
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
