//! Every order of the steps of a small program, up to steps that commute.
//!
//! A program is a closure that sets up its clients and hands their coroutines to [`Play::run`];
//! [`explore`] runs it again and again, each time in another order, until there is none left or a
//! bound is hit. Futures cannot be cloned, so every run starts from the beginning: memory is put
//! back to what it was when the exploration began, and the run repeats the steps that lead to the
//! place where it takes another turn. What a program does outside of [`Play::run`] happens at once.
//!
//! # Steps
//!
//! A line of a READ, a line of a WRITE, a CAS or FETCH_ADD (or its load and its store, with
//! [`Seeded::with_split_atomics`]), a call, and a step of a memory node's service. READs take their
//! lines in any order, WRITEs in ascending order, and verbs wait for each other as the contract of
//! a round says and no more. Where [`ExploreOptions`] ask for it: the crash of a client, after
//! which nothing of it happens any more, and the drop of a client's future, whose verbs are sent. A
//! verb in flight at a crash may land or not, also half of it: that it lands after the crash is the
//! same as before it, since nobody else can see the crash. And that a client is taken for dead
//! ([`Suspicion`]), dead or not: another one begins then, and may revoke it
//! ([`Fabric::revoke`](crate::Fabric::revoke)), which ends all its verbs at that instant, whichever
//! have landed, also half of one; it goes on, and is told errors.
//!
//! # Reduction, and why nothing is lost
//!
//! *Steps that are no choice.* A coroutine runs as soon as its round has completed: what it does
//! until it posts again concerns nobody else, and what it posts can be held back for as long as
//! anybody likes. The completion of a round is a step only where its client has other rounds in
//! flight, which it might ask about, or sleeps, or may crash. A step in memory that is declared to
//! be its client's own ([`Private`], and checked: another's access panics) commutes with everything
//! that others can ever do, so it is taken at once, with the same exceptions; and all lines of a
//! READ that are such memory are one step.
//!
//! *Sleep sets* (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems",
//! 1996): of two steps that commute, in a state where both can be taken, only one order is
//! followed. Steps of different clients commute if they touch different words, or only read them; a
//! call and a service's step touch every word of their node. Steps of one client commute if they
//! are of one round and touch different words, or only read them. Crashes and drops commute with
//! the steps of other clients.
//!
//! *States.* What can still happen depends only on: the words of memory; for each client the rounds
//! it has posted and what came back, in this order, since coroutines are deterministic; what its
//! verbs in flight have done and brought; for each handler and service the memory and the requests
//! it has seen, save that a service which has found nothing to do is the same as before. A state
//! met again is left, except for the steps that slept when it was left before (the algorithm of the
//! same book, with state matching). States are known by 64 bits: that two of a million share them
//! has a chance of one in thirty million.
//!
//! *Sleep.* A coroutine that sleeps wakes when a word that its last round looked at has changed, or
//! when nothing else can happen. To look again before would bring the same; to look again after it
//! can wait as long as it likes. What is not explored is therefore how often a client looks before
//! its patience ends while others are in the middle of something.
//!
//! A program keeps to this: coroutines share nothing but memory, or say so
//! ([`ExploreOptions::shared`]: then every completion is a step, and those of different clients do
//! not commute); one may wait for another before its first round, but not ask how far it has come;
//! results are judged at the end.

mod steps;

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::journal::{Journal, fold};
use super::{Connection, InFlight, Running, Schedule, Seeded, State, refusal};
use crate::address::{Address, NodeId, RegionId, WORD_BYTES};
use crate::endpoint::Endpoint;
use crate::executor::Worker;
use crate::ids::{ClientId, Nanos, Ticket};
use crate::round::buffer::{RoundBuffer, Verb};
use crate::shm::{Memory, execute_verb};

/// How much is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// Nothing: every order of all steps.
    Nothing,
    /// One order of each set that differs in the order of commuting steps only.
    Commuting,
    /// One order of each set that differs in the order of commuting steps only, and nothing behind
    /// a state that was met before.
    #[default]
    States,
}

/// Memory that others leave alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Private {
    /// Clients that access it, in verbs: one; or several, one after the other, each once it has
    /// revoked the clients before it. If there are none, every client may read it, and none writes.
    pub clients: Vec<ClientId>,
    /// Where it begins.
    pub at: Address,
    /// Length in bytes.
    pub bytes: u64,
}

impl Private {
    fn contains(&self, node: NodeId, region: RegionId, start: usize, end: usize) -> bool {
        let own = self.at.offset as usize / WORD_BYTES;
        (self.at.node, self.at.region) == (node, region) && own <= start && end <= self.end()
    }

    /// The word behind it.
    fn end(&self) -> usize {
        (self.at.offset + self.bytes) as usize / WORD_BYTES
    }
}

/// A client that is taken for dead at any time, whether it is or not. What its recoverer does
/// concerns others by what is in memory, and by what it says with [`Seeded::tells`].
///
/// That a recoverer that is revoked goes on is not explored: nothing of it lands. Nor is that a
/// client is taken for dead before a round completes rather than behind: what is posted before the
/// revocation and what is posted after it fail alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspicion {
    /// The client that is taken for dead; if it is a recoverer itself, only once it has begun.
    pub of: ClientId,
    /// The client that recovers it: begins then, in every run, and does nothing before.
    pub by: ClientId,
}

/// How a program is explored.
#[derive(Clone, Debug)]
pub struct ExploreOptions {
    /// Runs after which the exploration gives up, and says that it is bounded.
    pub runs_max: u64,
    /// How much is left out.
    pub reduction: Reduction,
    /// A client that crashes at any time.
    pub crash: Option<ClientId>,
    /// A client whose future is dropped at any time.
    pub cancel: Option<ClientId>,
    /// WRITEs land word by word, and not line by line: for what a revocation or crash cuts short.
    pub words: bool,
    /// Who is taken for dead, and by whom.
    pub suspicions: Vec<Suspicion>,
    /// Coroutines share more than memory, which they look at and change when a round of theirs has
    /// completed, and at no other time: so the order of completions matters. Recoverers do not.
    /// With [`Reduction::States`] they say what it is: [`Play::share`].
    pub shared: bool,
    /// Memory that others leave alone.
    pub private: Vec<Private>,
}

impl Default for ExploreOptions {
    fn default() -> ExploreOptions {
        ExploreOptions {
            runs_max: u64::MAX,
            reduction: Reduction::default(),
            crash: None,
            cancel: None,
            words: false,
            suspicions: Vec::new(),
            shared: false,
            private: Vec::new(),
        }
    }
}

/// What an exploration has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Orders explored, to the end or to a state that was met before: no two differ in commuting
    /// steps only.
    pub interleavings: u64,
    /// Orders that were run to the end.
    pub complete: u64,
    /// Runs, also runs that turned out to be another order of what had been explored.
    pub runs: u64,
    /// Different states in which there was a choice.
    pub states: u64,
    /// Steps, without steps that were only repeated.
    pub steps: u64,
    /// Verbs of those steps.
    pub verbs: u64,
    /// Lines that they have read or written.
    pub lines: u64,
    /// Crashes, drops, and suspicions.
    pub crashes: u64,
}

/// What [`explore`] has found.
#[derive(Clone, Debug)]
pub struct Exploration<E> {
    /// What was done.
    pub counts: Counts,
    /// Whether it gave up before it had seen everything.
    pub bounded: bool,
    /// What a run returned, and the steps that led there.
    pub violation: Option<(E, Vec<Taken>)>,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    client: Option<ClientId>,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Verb(Verb, u32),
    Completion,
    Crash,
    Drop,
    Begin(ClientId),
    Service(NodeId),
    Time,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ClientId(client)) = self.client {
            write!(f, "client {client}: ")?;
        }
        let place = |at: Address, words: u32| format!("node {} +{:#x}, {words} words", at.node.0, at.offset);
        match self.what {
            What::Verb(Verb::Read { at, words, .. }, part) => write!(f, "READ {}, line {part}", place(at, words)),
            What::Verb(Verb::Write { at, words, .. }, part) => write!(f, "WRITE {}, line {part}", place(at, words)),
            What::Verb(Verb::CompareSwap { at, expected, new, .. }, part) => {
                write!(f, "CAS {} {expected:#x} -> {new:#x}, step {part}", place(at, 1))
            }
            What::Verb(Verb::FetchAdd { at, delta, .. }, part) => {
                write!(f, "FETCH_ADD {} + {delta}, step {part}", place(at, 1))
            }
            What::Verb(Verb::Call { node, .. }, _) => write!(f, "call to node {}", node.0),
            What::Verb(Verb::Flush { node }, _) => write!(f, "flush of node {}", node.0),
            What::Verb(Verb::AfterCompletion, _) => f.write_str("all before has completed"),
            What::Completion => f.write_str("its round completes"),
            What::Crash => f.write_str("crashes"),
            What::Drop => f.write_str("drops what it was doing"),
            What::Begin(ClientId(dead)) => write!(f, "takes client {dead} for dead"),
            What::Service(node) => write!(f, "the service of node {} takes a step", node.0),
            What::Time => f.write_str("time passes"),
        }
    }
}

/// What names a step, in every run that comes to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StepId {
    Part {
        connection: usize,
        ticket: Ticket,
        verb: usize,
        part: u32,
    },
    Complete {
        connection: usize,
        ticket: Ticket,
    },
    Crash {
        connection: usize,
    },
    Drop {
        connection: usize,
    },
    /// A recoverer begins.
    Begin {
        connection: usize,
    },
    Service {
        index: usize,
    },
    /// Nothing else can happen: every client that sleeps wakes.
    Time,
}

impl StepId {
    fn connection(self) -> Option<usize> {
        match self {
            StepId::Part { connection, .. }
            | StepId::Complete { connection, .. }
            | StepId::Crash { connection }
            | StepId::Drop { connection }
            | StepId::Begin { connection } => Some(connection),
            StepId::Service { .. } | StepId::Time => None,
        }
    }
}

/// What a step touches.
#[derive(Clone, Copy, Debug)]
enum Footprint {
    Nothing,
    Words {
        node: NodeId,
        region: RegionId,
        start: usize,
        end: usize,
        writes: bool,
        atomic: bool,
    },
    /// Any word of a node, and whatever its CPU remembers.
    Node(NodeId),
    /// What coroutines share beside memory.
    Shared,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    id: StepId,
    footprint: Footprint,
}

/// What an exploration keeps of a connection.
#[derive(Default)]
pub(super) struct Trail {
    /// The client's own time, which only rounds and sleep let pass.
    pub(super) clock: Nanos,
    /// Everything that the client has done and seen, in order.
    history: u64,
    /// What the client's last completed round has seen.
    looked: Vec<Looked>,
    /// When it will wake, if it sleeps.
    asleep_until: Option<Nanos>,
    /// Whether one of its coroutines runs.
    running: bool,
    /// Whether it is a recoverer.
    recovers: bool,
    /// Whether it is one that has not begun.
    waits: bool,
    /// Everything that it has told others, in order.
    told: u64,
    crashed: bool,
    dropped: bool,
}

/// What an exploration keeps of a service.
#[derive(Default)]
pub(super) struct ServiceTrail {
    /// Everything that it has seen, in order.
    history: u64,
    /// How many words had changed when it last looked.
    changes: u64,
}

/// What a round has seen somewhere.
enum Looked {
    Words(Address, Vec<u64>),
    /// A call: how many words of the node had changed then.
    Node(NodeId, u64),
}

impl Connection {
    /// Nothing of its client happens any more.
    pub(super) fn crash(&mut self) {
        let trail = &mut self.trail;
        if trail.recovers && trail.running {
            // How far it had come is to be seen in memory only.
            (trail.history, trail.clock) = (trail.told, 0);
        }
        trail.crashed = true;
        trail.running = false;
        trail.asleep_until = None;
        self.in_flight.clear();
    }
}

impl Trail {
    /// Notes that a round is posted. False if it is not, because the client has crashed.
    pub(super) fn posted(&mut self, Ticket(ticket): Ticket) -> bool {
        self.history = fold(self.history, ticket << 1);
        !self.crashed
    }
}

/// A state in which there was a choice.
struct Node {
    /// Steps that led there.
    at: usize,
    enabled: Vec<StepId>,
    /// For each enabled step, the enabled steps that it does not commute with: bits.
    conflicts: Vec<u64>,
    sleep: u64,
    todo: u64,
    current: usize,
}

impl Node {
    /// What sleeps behind the current step.
    fn asleep_behind(&self) -> Vec<StepId> {
        let asleep = self.sleep & !self.conflicts[self.current];
        bits(asleep).map(|index| self.enabled[index]).collect()
    }
}

fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        bit
    })
}

#[derive(Default)]
struct Search {
    nodes: Vec<Node>,
    path: Vec<StepId>,
    /// How many of the path's first steps only repeat what an earlier run has done.
    repeats: usize,
    /// Steps that were left asleep at a state, by the fingerprint of the state.
    visited: HashMap<u64, Vec<StepId>>,
    counts: Counts,
    taken: Vec<Taken>,
    ended: Option<Ended>,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Complete,
    /// In a state that was met before.
    Known,
    /// In another order of what was explored before.
    Asleep,
}

/// A coroutine of a client.
pub struct Player<'p, T> {
    client: ClientId,
    endpoint: Rc<Endpoint>,
    future: Pin<Box<dyn Future<Output = T> + 'p>>,
}

impl<'p, T> Player<'p, T> {
    /// A client, its one connection, and what it does.
    pub fn new(client: ClientId, endpoint: &Rc<Endpoint>, part: impl Future<Output = T> + 'p) -> Player<'p, T> {
        Player { client, endpoint: endpoint.clone(), future: Box::pin(part) }
    }
}

impl<T> fmt::Debug for Player<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player").field("client", &self.client).finish_non_exhaustive()
    }
}

/// One run of a program.
pub struct Play<'e> {
    fabric: &'e Seeded,
    options: &'e ExploreOptions,
    search: &'e mut Search,
    /// A digest of what coroutines share beside memory.
    shared: Option<Box<dyn Fn() -> u64>>,
}

impl fmt::Debug for Play<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Play").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Runs a program in every order, until a run returns an error, or the bound is hit. Memory is put
/// back to what it is now before each run, and in the end; connections, services and handlers are
/// the program's to make anew.
pub fn explore<E>(
    fabric: &Seeded,
    options: &ExploreOptions,
    mut program: impl FnMut(&mut Play<'_>) -> Result<(), E>,
) -> Exploration<E> {
    explore_all(fabric, options, &mut program)
}

fn explore_all<E>(
    fabric: &Seeded,
    options: &ExploreOptions,
    program: &mut dyn FnMut(&mut Play<'_>) -> Result<(), E>,
) -> Exploration<E> {
    let mut search = Search::default();
    {
        let mut state = fabric.state();
        state.schedule = Schedule::Instant;
        state.journal = Some(Journal::begin(&fabric.memory));
        state.put_back(&fabric.memory);
    }
    let mut bounded = false;
    let violation = loop {
        search.ended = None;
        search.taken.clear();
        let result = program(&mut Play { fabric, options, search: &mut search, shared: None });
        fabric.state().put_back(&fabric.memory);
        search.counts.runs += 1;
        match search.ended {
            Some(Ended::Asleep) => {}
            ended => {
                search.counts.interleavings += 1;
                search.counts.complete += u64::from(ended != Some(Ended::Known));
            }
        }
        if let Err(error) = result {
            break Some((error, std::mem::take(&mut search.taken)));
        }
        if !search.turn() {
            break None;
        }
        if search.counts.runs >= options.runs_max {
            bounded = true;
            break None;
        }
    };
    let mut state = fabric.state();
    state.journal = None;
    state.schedule = Schedule::Random;
    Exploration { counts: search.counts, bounded, violation }
}

impl Search {
    /// Makes the path lead to the next unexplored step. False if there is none.
    fn turn(&mut self) -> bool {
        while let Some(node) = self.nodes.last_mut() {
            node.sleep |= 1 << node.current;
            let next = node.todo.trailing_zeros() as usize;
            if node.todo == 0 {
                self.nodes.pop();
                continue;
            }
            node.todo &= node.todo - 1;
            node.current = next;
            self.path.truncate(node.at);
            self.repeats = node.at;
            self.path.push(node.enabled[next]);
            return true;
        }
        false
    }
}

impl Play<'_> {
    /// What coroutines share beside memory ([`ExploreOptions::shared`]), as a digest of all that
    /// they may see of it.
    pub fn share(&mut self, digest: impl Fn() -> u64 + 'static) {
        self.shared = Some(Box::new(digest));
    }

    fn shared(&self) -> u64 {
        self.shared.as_ref().map_or(0, |digest| digest())
    }

    /// Runs the coroutines, and whatever they leave in flight, to the end. What they returned,
    /// `None` for one that has crashed or was dropped; or `None` if the run ends earlier, because
    /// everything that could follow is explored already: return `Ok` then. Once in a run.
    ///
    /// # Panics
    ///
    /// If a coroutine waits for nothing, a client accesses what is private to another, or nobody
    /// has said what is shared.
    pub fn run<T>(&mut self, worker: &Worker, players: Vec<Player<'_, T>>) -> Option<Vec<Option<T>>> {
        let matches_states = self.options.reduction == Reduction::States;
        assert!(!self.options.shared || !matches_states || self.shared.is_some(), "states show all that is shared");
        let member = |player| Member::new(self.fabric, player, self.options);
        let mut cast: Vec<Member<'_, T>> = players.into_iter().map(member).collect();
        self.fabric.state().schedule = Schedule::Explored;
        self.settle(worker, &mut cast);
        let mut at = 0;
        let mut sleep = self.search.nodes.last().map(Node::asleep_behind).unwrap_or_default();
        let ended = loop {
            let step = match self.search.path.get(at) {
                Some(step) => *step,
                None => match self.choose(&mut sleep) {
                    Ok(step) => step,
                    Err(ended) => break ended,
                },
            };
            self.take(step, at >= self.search.repeats, worker, &mut cast);
            at += 1;
        };
        self.search.ended = Some(ended);
        let mut state = self.fabric.state();
        for connection in &mut state.connections {
            connection.trail.crashed = true; // what is dropped now is not sent
            connection.in_flight.clear();
        }
        drop(state);
        let outputs = cast.into_iter().map(|member| member.output).collect();
        self.fabric.state().schedule = Schedule::Instant;
        (ended == Ended::Complete).then_some(outputs)
    }

    /// The next step, and what sleeps behind it.
    fn choose(&mut self, sleep: &mut Vec<StepId>) -> Result<StepId, Ended> {
        let state = self.fabric.state();
        let enabled = state.enabled(self.options);
        if enabled.is_empty() {
            if state.connections.iter().any(|connection| connection.trail.asleep_until.is_some()) {
                self.search.path.push(StepId::Time);
                return Ok(StepId::Time);
            }
            let waiting = state.connections.iter().find(|connection| connection.trail.running);
            assert!(waiting.is_none(), "client {:?} waits for nothing", waiting.map(|connection| connection.client));
            return Err(Ended::Complete);
        }
        let reduces = self.options.reduction != Reduction::Nothing;
        if let Some(step) = enabled.iter().find(|step| reduces && state.is_no_choice(step, self.options)) {
            if sleep.contains(&step.id) {
                return Err(Ended::Asleep);
            }
            self.search.path.push(step.id);
            return Ok(step.id);
        }
        assert!(enabled.len() <= 64, "a program for exploration has few verbs in flight");
        let all = u64::MAX >> (64 - enabled.len());
        let set = |steps: &[StepId]| {
            let is_in = |(index, step): (usize, &Step)| u64::from(steps.contains(&step.id)) << index;
            enabled.iter().enumerate().map(is_in).sum::<u64>()
        };
        let mut asleep = if reduces { set(sleep) } else { 0 };
        let mut todo = all & !asleep;
        if self.options.reduction == Reduction::States {
            let of = |set: u64| bits(set).map(|index| enabled[index].id).collect();
            match self.search.visited.entry(fold(state.fingerprint(), self.shared())) {
                Entry::Vacant(entry) => {
                    entry.insert(of(asleep));
                    self.search.counts.states += 1;
                }
                Entry::Occupied(mut entry) => {
                    let left = set(entry.get());
                    todo = left & !asleep;
                    asleep &= left;
                    entry.insert(of(asleep));
                    if todo == 0 {
                        return Err(Ended::Known);
                    }
                }
            }
        } else {
            let new = self.search.visited.insert(fold(state.fingerprint(), self.shared()), Vec::new()).is_none();
            self.search.counts.states += u64::from(new);
        }
        if todo == 0 {
            return Err(Ended::Asleep);
        }
        let conflicts = enabled.iter().map(|one| {
            let conflict = |(index, other)| u64::from(state.conflict(one, other, self.options)) << index;
            enabled.iter().enumerate().map(conflict).sum()
        });
        let current = todo.trailing_zeros() as usize;
        let node = Node {
            at: self.search.path.len(),
            conflicts: conflicts.collect(),
            enabled: enabled.iter().map(|step| step.id).collect(),
            sleep: asleep,
            todo: todo & (todo - 1),
            current,
        };
        *sleep = node.asleep_behind();
        self.search.path.push(node.enabled[current]);
        self.search.nodes.push(node);
        Ok(enabled[current].id)
    }

    fn take<T>(&mut self, step: StepId, new: bool, worker: &Worker, cast: &mut [Member<'_, T>]) {
        let mut state = self.fabric.state();
        let taken = state.take(&self.fabric.memory, step, self.options);
        self.search.taken.push(taken);
        if let StepId::Complete { connection, .. } = step
            && state.shares(connection, self.options)
        {
            // Its coroutine goes on now, and may look at it.
            let trail = &mut state.connections[connection].trail;
            trail.history = fold(trail.history, self.shared());
        }
        if new {
            let counts = &mut self.search.counts;
            counts.steps += 1;
            match taken.what {
                What::Verb(Verb::Read { .. } | Verb::Write { .. }, part) => {
                    counts.lines += 1;
                    counts.verbs += u64::from(part == 0);
                }
                What::Verb(Verb::AfterCompletion, _) => {}
                What::Verb(_, part) => counts.verbs += u64::from(part == 0),
                What::Crash | What::Drop | What::Begin(_) => counts.crashes += 1,
                What::Completion | What::Service(_) | What::Time => {}
            }
        }
        drop(state);
        if let StepId::Drop { connection } = step {
            for member in cast.iter_mut().filter(|member| member.connection == connection) {
                member.future = None;
            }
            self.fabric.state().connections[connection].trail.running = false;
        }
        self.settle(worker, cast);
    }

    /// Lets every coroutine run until it waits for a step.
    fn settle<T>(&self, worker: &Worker, cast: &mut [Member<'_, T>]) {
        loop {
            worker.progress();
            let before = self.fabric.state().activity();
            let mut finished = false;
            for member in cast.iter_mut() {
                finished |= member.poll(self.fabric);
            }
            if finished || self.fabric.state().activity() != before {
                continue;
            }
            // Nobody can go on. Who sleeps wakes, if there is something to see.
            let mut state = self.fabric.state();
            let mut woken = false;
            for member in cast.iter() {
                let trail = &mut state.connections[member.connection].trail;
                trail.asleep_until = member.future.as_ref().and_then(|_| member.endpoint.next_timer());
                woken |= trail.asleep_until.is_some()
                    && trail.clock < trail.asleep_until.unwrap_or(0)
                    && state.wake(&self.fabric.memory, member.connection);
            }
            if !woken {
                return;
            }
        }
    }
}

/// A coroutine on its way.
struct Member<'p, T> {
    connection: usize,
    endpoint: Rc<Endpoint>,
    future: Option<Pin<Box<dyn Future<Output = T> + 'p>>>,
    output: Option<T>,
}

impl<'p, T> Member<'p, T> {
    fn new(fabric: &Seeded, player: Player<'p, T>, options: &ExploreOptions) -> Member<'p, T> {
        let mut state = fabric.state();
        let connection = state.connections.iter().rposition(|connection| connection.client == player.client);
        let connection = connection.expect("a client that plays is connected");
        let trail = &mut state.connections[connection].trail;
        trail.running = true;
        trail.recovers = options.suspicions.iter().any(|suspicion| suspicion.by == player.client);
        trail.waits = trail.recovers;
        Member { connection, endpoint: player.endpoint, future: Some(player.future), output: None }
    }

    /// True if it has finished just now.
    fn poll(&mut self, fabric: &Seeded) -> bool {
        let Some(future) = &mut self.future else { return false };
        let Trail { crashed, waits, .. } = fabric.state().connections[self.connection].trail;
        if crashed || waits {
            return false;
        }
        let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { return false };
        self.output = Some(output);
        self.future = None;
        fabric.state().connections[self.connection].trail.running = false;
        true
    }
}

impl State {
    /// Runs a round to its end, its verbs in order.
    pub(super) fn execute_now(
        &mut self,
        memory: &Memory,
        connection: usize,
        mut round: Box<RoundBuffer>,
    ) -> Box<RoundBuffer> {
        let client = self.connections[connection].client;
        let verbs = round.verbs().to_vec();
        let mut outcome = Ok(());
        for verb in &verbs {
            let refused = refusal(&self.revoked, &self.down, client, verb).map_or(Ok(()), Err);
            let executed =
                refused.and_then(|()| execute_verb(memory, verb, round.parts().1, &Cell::new(false), client));
            if let Err(error) = executed {
                outcome = Err(error);
                break;
            }
            self.note(memory, verb);
        }
        round.finish(outcome);
        round
    }

    /// Notes what a verb may have changed.
    fn note(&mut self, memory: &Memory, verb: &Verb) -> Vec<(RegionId, usize)> {
        let Some(journal) = &mut self.journal else { return Vec::new() };
        let (at, words) = match *verb {
            Verb::Write { at, words, .. } => (at, words),
            Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => (at, 1),
            Verb::Call { node, .. } => return journal.scan(memory, node),
            _ => return Vec::new(),
        };
        journal.note(memory, at.node, at.region, at.offset as usize / WORD_BYTES, words as usize);
        Vec::new()
    }

    /// Makes everything as it was before the run.
    fn put_back(&mut self, memory: &Memory) {
        self.connections.clear();
        self.revoked.clear();
        self.services.clear();
        self.handlers.fill(0);
        if let Some(journal) = &mut self.journal {
            journal.rewind(memory);
        }
    }

    /// A client is revoked: whatever of it has not landed does not.
    pub(super) fn cut_off(&mut self, client: ClientId) {
        for connection in self.connections.iter_mut().filter(|connection| connection.client == client) {
            if connection.trail.recovers {
                connection.crash();
            }
            connection.in_flight.iter_mut().for_each(InFlight::cut_off);
        }
    }

    /// A client tells others something that they, or who judges the run, may go by. Needed of
    /// recoverers only.
    pub(super) fn tells(&mut self, client: ClientId, what: u64) {
        for connection in self.connections.iter_mut().filter(|connection| connection.client == client) {
            connection.trail.told = fold(connection.trail.told, what);
        }
    }

    /// Rounds posted and completed so far: what a coroutine can notice or do.
    fn activity(&self) -> u64 {
        self.connections.iter().map(|connection| connection.trail.history).fold(0, fold)
    }

    fn fingerprint(&self) -> u64 {
        let mut all = self.journal.as_ref().map_or(0, Journal::fingerprint);
        for connection in &self.connections {
            let trail = &connection.trail;
            all = fold(all, trail.history);
            let [waits, crashed, dropped] = [trail.waits, trail.crashed, trail.dropped].map(u64::from);
            all = fold(all, trail.clock << 3 | waits << 2 | crashed << 1 | dropped);
            for round in &connection.in_flight {
                all = fold(fold(all, round.ticket.0), round.brought);
                for running in &round.verbs {
                    all = match running {
                        Running::Waiting => fold(all, 0),
                        Running::Done => fold(all, 1),
                        Running::Writing { next } => fold(fold(all, 2), *next as u64),
                        Running::Loaded { found } => fold(fold(all, 3), *found),
                        Running::Reading { lines, .. } => {
                            lines.iter().fold(fold(all, 4), |all, line| fold(all, *line as u64))
                        }
                    };
                }
            }
        }
        for history in &self.handlers {
            all = fold(all, *history);
        }
        for serving in &self.services {
            let changed = self.has_news(serving);
            all = fold(fold(all, serving.trail.history), changed.into());
        }
        all
    }
}
