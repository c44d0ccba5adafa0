//! The seeded backend: shared memory under a hostile scheduler, which does everything that the
//! contract of a round allows, in an order drawn from a seed.
//!
//! One thread plays any number of clients.
//!
//! 1. Every CAS, every group of words of a READ or WRITE, and every completion is a step of its
//!    own. Any coroutine may run between two steps.
//! 2. Verbs that the contract does not order run in any order, across rounds and endpoints.
//! 3. A client can lose its access after any step.
//! 4. A seed always gives the same run, so a failing run can be replayed.
//!
//! Memory tears in one of two ways, which is drawn for the whole run. A line of a record may not
//! tear (rule 2), and a backend cannot tell which lines are those of records:
//!
//! - [`Tearing::Words`]: WRITEs land one group of words after the other. READs take their lines in
//!   ascending order, and the words of a line in any order, by the algorithm of
//!   [`copy`](crate::copy).
//! - [`Tearing::Lines`]: WRITEs land one line after the other. READs take their lines in any order.
//!
//! [`explore`] uses these steps in another way: it runs a small program in every order of its
//! steps.

pub mod explore;
mod journal;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::{Address, LINE_WORDS, NodeId, RegionId};
use crate::error::{FabricError, Fault};
use crate::ids::{ClientId, LaneId, Nanos, Ticket};
use crate::prng::Prng;
use crate::region::{Region, RegionError};
use crate::round::buffer::{RoundBuffer, Verb};
use crate::service::{Progress, Service, ServiceHandle, ServiceStop};
use crate::shm::{CAPABILITIES, Memory, execute_verb};
use crate::transport::{Capabilities, Fabric, Handler, Host, Posted, Transport};

use journal::Journal;

/// Polls in which there was nothing to do, after which the run is taken for deadlocked.
const IDLE_POLLS_MAX: u32 = 10_000_000;

/// The way in which memory tears in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tearing {
    /// Memory tears between words. Lines are read in ascending order.
    Words,
    /// Memory tears between lines. Lines are read in any order.
    Lines,
}

/// The seeded backend. Clones share the memory and the scheduler.
#[derive(Clone)]
pub struct Seeded {
    memory: Arc<Memory>,
    state: Arc<Mutex<State>>,
    seed: u64,
}

struct State {
    schedule: Schedule,
    /// A client whose rounds run to their end when they are posted.
    undisturbed: Option<ClientId>,
    /// Whether the CAS or FETCH_ADD of a NIC loads in one step and stores in another.
    split_atomics: bool,
    /// Whether the one-sided verbs of a connection take effect in the order in which they were
    /// posted, over all nodes.
    in_order: bool,
    /// The changes that the explored run has made in memory.
    journal: Option<Journal>,
    /// For each node, a digest of what an exploration has seen its handler do.
    handlers: Vec<u64>,
    prng: Prng,
    tearing: Tearing,
    now: Nanos,
    steps: u64,
    idle_polls: u32,
    connections: Vec<Connection>,
    /// The connections with rounds in flight, and some that had rounds, in ascending order of their
    /// numbers. A run makes hundreds of connections, few of which do something at a time.
    posting: Vec<usize>,
    /// The candidates for the next step, unless something has begun, ended or failed since they
    /// were listed.
    candidates: Vec<Candidate>,
    are_candidates_known: bool,
    services: Vec<Serving>,
    revoked: Vec<ClientId>,
    /// Clients to revoke, each with the number of steps after which it is revoked.
    revocations: Vec<(u64, ClientId)>,
    down: Vec<NodeId>,
}

/// How the next step is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Schedule {
    /// The random numbers of the seed choose it.
    Random,
    /// There is no choice: a round runs to its end when it is posted.
    Instant,
    /// An exploration chooses it.
    Explored,
}

/// A service of a memory node.
struct Serving {
    node: NodeId,
    stop: ServiceStop,
    service: Box<dyn Service>,
    trail: explore::ServiceTrail,
}

struct Connection {
    client: ClientId,
    trail: explore::Trail,
    in_flight: VecDeque<InFlight>,
    completed: Vec<(Ticket, Box<RoundBuffer>)>,
    reclaimed: Vec<Box<RoundBuffer>>,
    ready: Vec<LaneId>,
}

struct InFlight {
    ticket: Ticket,
    buffer: Box<RoundBuffer>,
    verbs: Vec<Running>,
    outcome: Result<(), FabricError>,
    orphaned: bool,
    /// The fingerprint of everything that the round's verbs have read so far. It does not depend on
    /// their order.
    brought: u64,
}

/// How far a verb has got.
enum Running {
    Waiting,
    Reading {
        lines: Vec<usize>,
        look: Look,
        missing: u64,
    },
    Writing {
        next: usize,
    },
    /// An atomic that has loaded and has not stored.
    Loaded {
        found: u64,
    },
    Done,
}

/// How far the READ of a line has got with the line's head; see [`copy`](crate::copy).
#[derive(Clone, Copy)]
enum Look {
    None,
    Version(u64),
    Head { lock: u64, version: u64 },
}

impl Seeded {
    /// Creates memory nodes with the given regions (sizes in bytes). `seed` draws the schedule and
    /// the way of tearing.
    pub fn new(nodes: &[Vec<usize>], seed: u64) -> Result<Seeded, RegionError> {
        let mut prng = Prng::derive(seed, 0x5eed);
        let tearing = if prng.below(2) == 0 { Tearing::Words } else { Tearing::Lines };
        Seeded::with_tearing(nodes, seed, tearing)
    }

    /// Creates memory nodes as [`Seeded::new`] does, with the given way of tearing.
    pub fn with_tearing(nodes: &[Vec<usize>], seed: u64, tearing: Tearing) -> Result<Seeded, RegionError> {
        let state = State {
            schedule: Schedule::Random,
            undisturbed: None,
            split_atomics: false,
            in_order: false,
            journal: None,
            handlers: vec![0; nodes.len()],
            prng: Prng::new(seed),
            tearing,
            now: 1_000,
            steps: 0,
            idle_polls: 0,
            connections: Vec::new(),
            posting: Vec::new(),
            candidates: Vec::new(),
            are_candidates_known: false,
            services: Vec::new(),
            revoked: Vec::new(),
            revocations: Vec::new(),
            down: Vec::new(),
        };
        Ok(Seeded { memory: Arc::new(Memory::map(nodes)?), state: Arc::new(Mutex::new(state)), seed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the atomics of the NICs atomic among themselves only. The CPU of the node may change
    /// the word between the load and the store of a CAS or FETCH_ADD, and its store is then lost.
    /// Call this before the first client connects.
    #[must_use]
    pub fn with_split_atomics(self) -> Seeded {
        self.state().split_atomics = true;
        self
    }

    /// Makes the one-sided verbs of an endpoint take effect in the order in which they were posted,
    /// over all nodes, as on shared memory. Call this before the first client connects.
    #[must_use]
    pub fn in_order(self) -> Seeded {
        self.state().in_order = true;
        self
    }

    /// Returns the number of verb steps taken so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Revokes a client's access when `steps` more verb steps have been taken, in the middle of
    /// what the client does.
    pub fn revoke_after(&self, client: ClientId, steps: u64) {
        let mut state = self.state();
        let at = state.steps + steps;
        state.revocations.push((at, client));
    }

    /// Makes a client's rounds run to their end when they are posted, from now on. This is for a
    /// client that loads or inspects tables while no other client takes a step. No order of its
    /// verbs can show anything then, and each would take a step for every line that it reads.
    pub fn undisturbed(&self, client: ClientId) {
        self.state().undisturbed = Some(client);
    }

    /// Records that a client tells other clients something, beyond what it does in memory.
    /// [`explore`] needs to know this of recoverers.
    pub fn tells(&self, client: ClientId, what: u64) {
        self.state().tells(client, what);
    }

    /// Steps the memory nodes' services until none of them finds work.
    pub fn settle_services(&self) {
        let mut state = self.state();
        loop {
            let mut worked = false;
            state.services.retain(|serving| !serving.stop.requested());
            for serving in &mut state.services {
                worked |= serving.service.step() != Progress::Idle;
            }
            if !worked {
                break;
            }
        }
        let nodes = self.nodes();
        if let Some(journal) = &mut state.journal {
            (0..nodes).map(NodeId).for_each(|node| drop(journal.scan(&self.memory, node)));
        }
    }
}

impl fmt::Debug for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seeded").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Fabric for Seeded {
    fn nodes(&self) -> u16 {
        self.memory.nodes()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        let mut state = self.state();
        let index = state.connections.len();
        state.connections.push(Connection {
            client,
            trail: explore::Trail::default(),
            in_flight: VecDeque::new(),
            completed: Vec::new(),
            reclaimed: Vec::new(),
            ready: Vec::new(),
        });
        Ok(Box::new(SeededTransport { fabric: self.clone(), index }))
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.memory.region(node, region).cloned()
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        let mut state = self.state();
        if !state.revoked.contains(&client) {
            state.revoked.push(client);
        }
        if state.schedule == Schedule::Explored {
            state.cut_off(client);
        }
        Ok(())
    }

    fn fail(&self, node: NodeId) {
        self.state().down.push(node);
    }

    fn capabilities(&self) -> Capabilities {
        let state = self.state();
        Capabilities { coherent_atomics: !state.split_atomics, in_order: state.in_order, ..CAPABILITIES }
    }
}

impl Host for Seeded {
    fn serve(&self, node: NodeId, _: &str, service: Box<dyn Service>) -> ServiceHandle {
        let (handle, stop) = ServiceHandle::detached();
        self.state().services.push(Serving { node, stop, service, trail: explore::ServiceTrail::default() });
        handle
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        self.memory.answer(node, handler);
    }
}

impl State {
    /// Polls: takes a few steps of whatever can run.
    fn advance(&mut self, memory: &Memory) {
        self.now += 1 + self.prng.below(20);
        if !self.services.is_empty() && self.prng.below(16) == 0 {
            let service = self.prng.below(self.services.len() as u64) as usize;
            if self.services[service].stop.requested() {
                self.services.remove(service);
            } else {
                self.services[service].service.step();
            }
        }
        for _ in 0..=self.prng.below(3) {
            if !self.step(memory) {
                self.idle_polls += 1;
                return;
            }
            self.idle_polls = 0;
        }
    }

    /// Takes one step of a verb, or completes one round. Returns false if nothing is in flight.
    fn step(&mut self, memory: &Memory) -> bool {
        if !self.are_candidates_known {
            let connections = &self.connections;
            self.posting.retain(|posting| !connections[*posting].in_flight.is_empty());
            let mut candidates = std::mem::take(&mut self.candidates);
            candidates.clear();
            self.add_candidates(&mut candidates);
            self.candidates = candidates;
        }
        if self.candidates.is_empty() {
            return false;
        }
        self.steps += 1;
        self.now += 1 + self.prng.below(50);
        let steps = self.steps;
        let revoked = &mut self.revoked;
        self.revocations.retain(|(at, client)| {
            let due = *at < steps;
            if due {
                revoked.push(*client);
            }
            !due
        });
        let chosen = self.candidates[self.prng.below(self.candidates.len() as u64) as usize];
        self.are_candidates_known = false;
        let connection = &mut self.connections[chosen.connection];
        let Some(verb_index) = chosen.verb else {
            connection.complete(chosen.round);
            return true;
        };
        let client = connection.client;
        let round = &mut connection.in_flight[chosen.round];
        let verb = round.buffer.verbs()[verb_index];
        let result = match refusal(&self.revoked, &self.down, client, &verb) {
            Some(error) => Err(error),
            None if self.split_atomics && verb.is_atomic() => step_atomic(memory, round, verb_index, &verb),
            None => step_verb(memory, &mut self.prng, self.tearing, round, verb_index, &verb, client),
        };
        match result {
            Ok(()) => {
                let is_done = matches!(round.verbs[verb_index], Running::Done);
                self.are_candidates_known = !is_done && !self.split_atomics;
            }
            Err(error) => round.fail(error),
        }
        true
    }

    /// Adds all candidates for the next step.
    fn add_candidates(&self, candidates: &mut Vec<Candidate>) {
        // Nodes (one bit each) whose NIC is in the middle of an atomic. It does no other atomic
        // meanwhile.
        let mut busy = 0u64;
        for &index in &self.posting {
            let connection = &self.connections[index];
            connection.runnable(index, self.in_order, candidates);
            if self.split_atomics {
                busy |= connection.loaded().fold(0, |busy, node| busy | 1 << node.0);
            }
        }
        if busy != 0 {
            candidates.retain(|candidate| {
                let Some(index) = candidate.verb else { return true };
                let round = &self.connections[candidate.connection].in_flight[candidate.round];
                let verb = round.buffer.verbs()[index];
                let waits = verb.is_atomic() && verb.node().is_some_and(|node| busy & 1 << node.0 != 0);
                !waits || matches!(round.verbs[index], Running::Loaded { .. })
            });
        }
    }
}

/// Returns why a client may not execute a verb, or `None` if it may.
fn refusal(revoked: &[ClientId], down: &[NodeId], client: ClientId, verb: &Verb) -> Option<FabricError> {
    let node = verb.node()?;
    if revoked.contains(&client) {
        return Some(FabricError { node, fault: Fault::Revoked });
    }
    down.contains(&node).then_some(FabricError { node, fault: Fault::Unreachable })
}

/// A candidate for the next step: a verb, or a whole round that can complete.
#[derive(Clone, Copy)]
struct Candidate {
    connection: usize,
    round: usize,
    verb: Option<usize>,
}

impl Verb {
    fn is_atomic(&self) -> bool {
        matches!(self, Verb::CompareSwap { .. } | Verb::FetchAdd { .. })
    }
}

impl Connection {
    /// Adds the verbs that may run next. This is rule 1 of the contract: a verb waits for those
    /// earlier verbs of its connection and node that it is ordered behind. If all is `in_order`, it
    /// waits for all earlier verbs that are no calls.
    fn runnable(&self, connection: usize, in_order: bool, candidates: &mut Vec<Candidate>) {
        // Nodes (one bit each) with a WRITE, an atomic, or a call that has not been done.
        let (mut writes, mut atomics, mut calls) = (0u64, 0u64, 0u64);
        let mut waits = false;
        for (round_index, round) in self.in_flight.iter().enumerate() {
            let mut all_done = true;
            let mut fenced = false;
            for (verb_index, (verb, running)) in round.buffer.verbs().iter().zip(&round.verbs).enumerate() {
                if matches!(running, Running::Done) {
                    continue;
                }
                let node = verb.node().map_or(0, |node| 1u64.checked_shl(u32::from(node.0)).unwrap_or(0));
                let blocked = fenced
                    || waits
                    || match verb {
                        Verb::Read { .. } | Verb::CompareSwap { .. } | Verb::FetchAdd { .. } | Verb::Flush { .. } => {
                            (writes | atomics) & node != 0
                        }
                        Verb::Write { .. } => writes & node != 0,
                        Verb::Call { .. } => calls & node != 0,
                        Verb::AfterCompletion => !all_done,
                    };
                if !blocked {
                    candidates.push(Candidate { connection, round: round_index, verb: Some(verb_index) });
                }
                all_done = false;
                waits |= in_order && !matches!(verb, Verb::Call { .. });
                match verb {
                    Verb::Write { .. } => writes |= node,
                    Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => atomics |= node,
                    Verb::Call { .. } => calls |= node,
                    Verb::AfterCompletion => fenced = true,
                    Verb::Read { .. } | Verb::Flush { .. } => {}
                }
            }
            if all_done {
                candidates.push(Candidate { connection, round: round_index, verb: None });
            }
        }
    }

    /// Returns the nodes at which this connection has an atomic half done.
    fn loaded(&self) -> impl Iterator<Item = NodeId> {
        self.in_flight.iter().flat_map(|round| {
            let half_done = |(_, running): &(_, &Running)| matches!(running, Running::Loaded { .. });
            round.buffer.verbs().iter().zip(&round.verbs).filter(half_done).filter_map(|(verb, _)| verb.node())
        })
    }

    fn complete(&mut self, round: usize) {
        let Some(round) = self.in_flight.remove(round) else { return };
        let mut buffer = round.buffer;
        buffer.finish(round.outcome);
        if round.orphaned {
            self.reclaimed.push(buffer);
        } else {
            self.ready.push(buffer.lane());
            self.completed.push((round.ticket, buffer));
        }
    }
}

impl InFlight {
    /// Cancels everything that the connection has not done yet, because its client is revoked.
    fn cut_off(&mut self) {
        let left = |running: &Running| !matches!(running, Running::Done);
        while let Some(verb) = self.verbs.iter().position(left) {
            match self.buffer.verbs()[verb].node() {
                Some(node) => self.fail(FabricError { node, fault: Fault::Revoked }),
                None => self.verbs[verb] = Running::Done,
            }
        }
    }

    /// Fails the round. What the round has not done yet at that node does not happen. Neither does
    /// what waits for its completion.
    fn fail(&mut self, error: FabricError) {
        if self.outcome.is_ok() {
            self.outcome = Err(error);
        }
        let mut fenced = false;
        for (verb, running) in self.buffer.verbs().iter().zip(&mut self.verbs) {
            // Nothing in front of a fence that has been passed has failed.
            fenced |= matches!((verb, &*running), (Verb::AfterCompletion, Running::Waiting));
            if fenced || verb.node() == Some(error.node) {
                *running = Running::Done;
            }
        }
    }
}

/// Takes one of the two steps of an atomic. The node's CPU may act between the two.
fn step_atomic(memory: &Memory, round: &mut InFlight, index: usize, verb: &Verb) -> Result<(), FabricError> {
    let (at, into) = match *verb {
        Verb::CompareSwap { at, into, .. } | Verb::FetchAdd { at, into, .. } => (at, into),
        _ => return Ok(()),
    };
    let (region, start) = memory.words(at, 1)?;
    let Running::Loaded { found } = round.verbs[index] else {
        round.verbs[index] = Running::Loaded { found: region[start].load(Ordering::SeqCst) };
        return Ok(());
    };
    match *verb {
        Verb::CompareSwap { expected, new, .. } if found == expected => region[start].store(new, Ordering::SeqCst),
        Verb::FetchAdd { delta, .. } => region[start].store(found.wrapping_add(delta), Ordering::SeqCst),
        _ => {}
    }
    round.buffer.parts().1[into as usize] = found;
    round.verbs[index] = Running::Done;
    Ok(())
}

/// Takes one step of a verb that may run.
fn step_verb(
    memory: &Memory,
    prng: &mut Prng,
    tearing: Tearing,
    round: &mut InFlight,
    index: usize,
    verb: &Verb,
    client: ClientId,
) -> Result<(), FabricError> {
    let running = &mut round.verbs[index];
    let (_, words) = round.buffer.parts();
    match *verb {
        Verb::Read { at, words: count, into } => {
            let into = &mut words[into as usize..][..count as usize];
            step_read(memory, prng, tearing, running, at, into)
        }
        Verb::Write { at, words: count, from } => {
            let (region, start) = memory.words(at, count)?;
            let from = &words[from as usize..][..count as usize];
            let next = if let Running::Writing { next } = running { *next } else { 0 };
            let group = match tearing {
                Tearing::Words => 1 + prng.below(4) as usize,
                Tearing::Lines => LINE_WORDS - (start + next) % LINE_WORDS,
            };
            let end = (next + group).min(from.len());
            for (word, value) in region[start + next..start + end].iter().zip(&from[next..end]) {
                word.store(*value, Ordering::Release);
            }
            *running = if end == from.len() { Running::Done } else { Running::Writing { next: end } };
            Ok(())
        }
        Verb::CompareSwap { .. }
        | Verb::FetchAdd { .. }
        | Verb::Flush { .. }
        | Verb::Call { .. }
        | Verb::AfterCompletion => {
            *running = Running::Done;
            execute_verb(memory, verb, words, &Cell::new(false), client)
        }
    }
}

fn step_read(
    memory: &Memory,
    prng: &mut Prng,
    tearing: Tearing,
    running: &mut Running,
    at: Address,
    into: &mut [u64],
) -> Result<(), FabricError> {
    let (region, start) = memory.words(at, into.len() as u32)?;
    let end = start + into.len();
    let load = |index: usize| region[index].load(Ordering::Acquire);
    if !matches!(running, Running::Reading { .. }) {
        let mut lines: Vec<usize> =
            (start / LINE_WORDS..end.div_ceil(LINE_WORDS)).map(|line| line * LINE_WORDS).collect();
        if tearing == Tearing::Lines {
            for last in (1..lines.len()).rev() {
                lines.swap(last, prng.below(last as u64 + 1) as usize);
            }
        } else {
            lines.reverse(); // the lines are taken from the end
        }
        *running = Running::Reading { lines, look: Look::None, missing: 0 };
    }
    let Running::Reading { lines, look, missing } = running else { return Ok(()) };
    let Some(line) = lines.last().copied() else {
        *running = Running::Done;
        return Ok(());
    };
    let wanted = (0..LINE_WORDS).filter(|word| (start..end).contains(&(line + word)));
    match (tearing, *look) {
        (Tearing::Lines, _) => {
            for word in wanted {
                into[line + word - start] = load(line + word);
            }
            lines.pop();
        }
        (Tearing::Words, Look::None) => *look = Look::Version(load(line + 1)),
        (Tearing::Words, Look::Version(version)) => {
            *look = Look::Head { lock: load(line), version };
            *missing = wanted.map(|word| 1u64 << word).sum();
        }
        (Tearing::Words, Look::Head { lock, version }) if *missing != 0 => {
            for word in wanted {
                if *missing & 1 << word != 0 && prng.below(2) == 0 {
                    *missing &= !(1 << word);
                    into[line + word - start] = match word {
                        0 => lock,
                        1 => version,
                        _ => load(line + word),
                    };
                }
            }
        }
        (Tearing::Words, Look::Head { lock, version }) => {
            *look = Look::None;
            if (load(line), load(line + 1)) == (lock, version) {
                lines.pop();
            }
        }
    }
    if lines.is_empty() {
        *running = Running::Done;
    }
    Ok(())
}

struct SeededTransport {
    fabric: Seeded,
    index: usize,
}

impl Transport for SeededTransport {
    fn post(&self, round: Box<RoundBuffer>) -> Posted {
        let mut state = self.fabric.state();
        let state = &mut *state;
        let client = state.connections[self.index].client;
        if state.schedule == Schedule::Instant || state.undisturbed == Some(client) {
            return Posted::Done(state.execute_now(&self.fabric.memory, self.index, round));
        }
        let connection = &mut state.connections[self.index];
        let ticket = round.ticket();
        if state.schedule == Schedule::Explored && !connection.trail.posted(ticket) {
            return Posted::Pending(ticket); // nothing that a crashed client posts leaves it
        }
        let verbs = round.verbs().iter().map(|_| Running::Waiting).collect();
        let mut round = InFlight { ticket, buffer: round, verbs, outcome: Ok(()), orphaned: false, brought: 0 };
        if state.schedule == Schedule::Explored && state.revoked.contains(&connection.client) {
            round.cut_off();
        }
        connection.in_flight.push_back(round);
        state.are_candidates_known = false;
        if let Err(place) = state.posting.binary_search(&self.index) {
            state.posting.insert(place, self.index);
        }
        Posted::Pending(ticket)
    }

    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        let mut state = self.fabric.state();
        let completed = &mut state.connections[self.index].completed;
        let at = completed.iter().position(|(done, _)| *done == ticket)?;
        Some(completed.swap_remove(at).1)
    }

    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        if let Some(buffer) = self.take(ticket) {
            return Some(buffer);
        }
        let mut state = self.fabric.state();
        let round = state.connections[self.index].in_flight.iter_mut().find(|round| round.ticket == ticket)?;
        round.orphaned = true;
        None
    }

    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>)) {
        let (lanes, buffers) = {
            let mut state = self.fabric.state();
            if state.schedule == Schedule::Random {
                state.advance(&self.fabric.memory);
            }
            assert!(
                state.idle_polls < IDLE_POLLS_MAX,
                "deadlock in the seeded run {}: every coroutine waits and nothing is in flight",
                self.fabric.seed
            );
            let connection = &mut state.connections[self.index];
            (std::mem::take(&mut connection.ready), std::mem::take(&mut connection.reclaimed))
        };
        lanes.into_iter().for_each(ready);
        buffers.into_iter().for_each(reclaimed);
    }

    fn now(&self) -> Nanos {
        let state = self.fabric.state();
        match state.schedule {
            Schedule::Explored => state.connections[self.index].trail.clock,
            Schedule::Random | Schedule::Instant => state.now,
        }
    }

    fn idle(&self, until: Option<Nanos>) {
        let mut state = self.fabric.state();
        if let Some(until) = until
            && state.posting.iter().all(|posting| state.connections[*posting].in_flight.is_empty())
        {
            state.now = state.now.max(until);
            state.idle_polls = 0; // a run that sleeps is not deadlocked
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.fabric.capabilities()
    }
}
