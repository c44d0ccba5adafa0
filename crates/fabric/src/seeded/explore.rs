//! Exploration: runs a small program in every order of its steps, up to steps that commute.
//!
//! A program is a closure that sets up its clients and hands their coroutines to [`Play::run`].
//! [`explore`] runs the closure again and again, each time in another order, until no order is left
//! or a bound is hit.
//!
//! Futures cannot be cloned, so every run starts from the beginning. Memory is restored to its
//! state at the beginning of the exploration. The run then repeats the steps up to the place where
//! it takes another turn. What a program does outside of [`Play::run`] happens at once.
//!
//! # Steps
//!
//! These are the steps:
//!
//! - a line of a READ;
//! - a line of a WRITE;
//! - a CAS or FETCH_ADD, or its load and its store, with [`Seeded::with_split_atomics`];
//! - a call;
//! - a step of a memory node's service.
//!
//! READs take their lines in any order, WRITEs in ascending order. Verbs wait for each other as the
//! contract of a round says, and no more. [`ExploreOptions`] can ask for three more kinds of step:
//!
//! - *The crash of a client*, after which the client does nothing any more. A verb in flight at the
//!   crash may land or not, and a half of it may land. No other client can see the crash. So a
//!   landing after the crash is equivalent to one before it, and is not a case of its own.
//! - *The drop of a client's future*, or of the future of one of its coroutines
//!   ([`Player::dropping`]). The verbs of its round are sent.
//! - *A suspicion* ([`Suspicion`]): a client is taken for dead, whether it is or not. Then another
//!   client begins, and may revoke it ([`Fabric::revoke`](crate::Fabric::revoke)). The revocation
//!   ends all verbs of the suspected client at that instant, whichever have landed, also with a
//!   half of one landed. The suspected client goes on, and gets errors.
//!
//! # Reduction, and why nothing is lost
//!
//! *Steps that are no choice.* A coroutine runs as soon as its round has completed. What it does
//! until it posts again concerns no other client, and what it posts can be held back for any time.
//! If a client has several coroutines, its worker runs all that can go on, in the order of lanes.
//! The completion of a round is a step only in three cases: its client has other rounds in flight,
//! about which it might ask; or it sleeps; or it may crash.
//!
//! A step in memory that is declared to be its client's own ([`Private`]) commutes with everything
//! that other clients can ever do. So it is taken at once, except in the three cases above. All
//! lines of a READ of such memory are one step, also if another coroutine of its client writes
//! there. The declaration is checked: an access by another client panics.
//!
//! *Sleep sets* (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems",
//! 1996). If two steps commute, and both can be taken in a state, only one order of them is
//! followed. Steps of different clients commute if they touch different words, or only read them. A
//! call and a service's step touch every word of their node. Steps of one client commute if they
//! are of one round and touch different words, or only read them. Crashes and drops commute with
//! the steps of other clients.
//!
//! *States.* What can still happen depends only on these:
//!
//! - the words of memory;
//! - for each client, the rounds that it has posted and their answers, in this order, because
//!   coroutines are deterministic;
//! - what the client's verbs in flight have done and read;
//! - for each handler and service, the memory and the requests that it has seen. A service that has
//!   found nothing to do is in its former state.
//!
//! When a run meets a state again, it stops there, except for the steps that slept when the state
//! was left before. This is the algorithm of the same book, with state matching. States are known
//! by 64 bits. The chance that two of a million states share these bits is one in thirty million.
//!
//! *Sleep.* A coroutine that sleeps wakes when a word that its last round looked at has changed, or
//! when nothing else can happen. If it looked earlier, it would see what it saw before. After the
//! change it may wait for any time before it looks. So one thing is not explored: how often a
//! client looks before its patience ends while other clients are in the middle of something. A
//! client of several coroutines may sleep until nothing else can happen, whatever changes
//! ([`ExploreOptions::patient`]). Then what it does when its time is over is explored only where
//! all others wait or have finished.
//!
//! A program must keep to these rules:
//!
//! 1. Coroutines share nothing but memory, or the program says that they do
//!    ([`ExploreOptions::shared`]). In the latter case every completion is a step, and completions
//!    of different clients do not commute.
//! 2. A coroutine may wait for another one before its first round, but may not ask how far that one
//!    has got.
//! 3. Results are judged at the end.

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
use crate::ids::{ClientId, Nanos, Ticket};
use crate::round::buffer::{RoundBuffer, Verb};
use crate::shm::{Memory, execute_verb};

/// How much an exploration leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// It leaves out nothing: every order of all steps is run.
    Nothing,
    /// It runs one of all orders that differ only in the order of commuting steps.
    Commuting,
    /// It runs one of all orders that differ only in the order of commuting steps, and leaves a
    /// state that was met before.
    #[default]
    States,
}

/// Memory that only some clients access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Private {
    /// The clients that access the memory by verbs. If there are several, they do so one after the
    /// other, each after it has revoked the clients before it. If there are none, every client may
    /// read the memory and none writes it.
    pub clients: Vec<ClientId>,
    /// The address of the first byte.
    pub at: Address,
    /// The length in bytes.
    pub bytes: u64,
}

impl Private {
    fn contains(&self, node: NodeId, region: RegionId, start: usize, end: usize) -> bool {
        let own = self.at.offset as usize / WORD_BYTES;
        (self.at.node, self.at.region) == (node, region) && own <= start && end <= self.end()
    }

    /// Returns the index of the word behind the memory.
    fn end(&self) -> usize {
        (self.at.offset + self.bytes) as usize / WORD_BYTES
    }
}

/// A client that is taken for dead at any time, whether it is or not. Its recoverer influences
/// other clients only through memory, and through what it says with [`Seeded::tells`].
///
/// Two things are not explored. A recoverer that was revoked may go on; nothing of what it does
/// lands. And a client may be taken for dead before a round completes rather than after it; what
/// the client posts before and after the revocation fails alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspicion {
    /// The client that is taken for dead. If it is a recoverer itself, this happens only after it
    /// has begun.
    pub of: ClientId,
    /// The client that recovers it. It begins after the suspicion, in every run, and does nothing
    /// before.
    pub by: ClientId,
}

/// Options of an exploration.
#[derive(Clone, Debug)]
pub struct ExploreOptions {
    /// The number of runs after which the exploration gives up, and says that it was bounded.
    pub runs_max: u64,
    /// How much the exploration leaves out.
    pub reduction: Reduction,
    /// A client that crashes at any time.
    pub crash: Option<ClientId>,
    /// A client whose future is dropped at any time.
    pub cancel: Option<ClientId>,
    /// Whether WRITEs land word by word and not line by line. This shows what a revocation or a
    /// crash cuts off.
    pub words: bool,
    /// Which clients are taken for dead, and which client recovers each.
    pub suspicions: Vec<Suspicion>,
    /// Whether coroutines share more than memory. They may look at it and change it only when a
    /// round of theirs has completed, so the order of completions matters. Recoverers do not share
    /// it. With [`Reduction::States`] the program must say what is shared: [`Play::share`].
    pub shared: bool,
    /// Memory that only some clients access.
    pub private: Vec<Private>,
    /// Clients that sleep until nothing else can happen, whatever changes meanwhile. It is for
    /// clients of several coroutines, which sleep for the time and not for a change of memory.
    pub patient: Vec<ClientId>,
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
            patient: Vec::new(),
        }
    }
}

/// Counts of what an exploration has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Orders explored, to the end or to a state that was met before. No two of them differ only in
    /// commuting steps.
    pub interleavings: u64,
    /// Orders that were run to the end.
    pub complete: u64,
    /// Runs, including runs that turned out to be another order of what had been explored.
    pub runs: u64,
    /// Different states in which there was a choice.
    pub states: u64,
    /// Steps that were new, and not repeated from an earlier run.
    pub steps: u64,
    /// Verbs of those steps.
    pub verbs: u64,
    /// Lines that those verbs have read or written.
    pub lines: u64,
    /// Crashes, drops, and suspicions.
    pub crashes: u64,
}

/// The result of [`explore`].
#[derive(Clone, Debug)]
pub struct Exploration<E> {
    /// What was done.
    pub counts: Counts,
    /// Whether the exploration gave up before it had seen everything.
    pub bounded: bool,
    /// The error that a run returned, and the steps that led to it.
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

/// The name of a step, the same in every run that comes to it.
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
    /// Nothing else can happen, so every client that sleeps wakes.
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

/// The memory and other state that a step touches.
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
    /// Any word of a node, and everything that its CPU remembers.
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
    /// Whether the client sleeps until nothing else can happen.
    patient: bool,
    /// Whether the client is a recoverer.
    recovers: bool,
    /// Whether the client is a recoverer that has not begun.
    waits: bool,
    /// Everything that the client has told other clients, in order.
    told: u64,
    crashed: bool,
    dropped: bool,
}

/// What an exploration keeps of a service.
#[derive(Default)]
pub(super) struct ServiceTrail {
    /// Everything that the service has seen, in order.
    history: u64,
    /// How many words had changed when the service last looked.
    changes: u64,
}

/// What a round has seen at one place.
enum Looked {
    Words(Address, Vec<u64>),
    /// A call, with the number of words of the node that had changed by then.
    Node(NodeId, u64),
}

impl Connection {
    /// Crashes the client: it does nothing any more.
    pub(super) fn crash(&mut self) {
        let trail = &mut self.trail;
        if trail.recovers && trail.running {
            // How far the client had got shows in memory only.
            (trail.history, trail.clock) = (trail.told, 0);
        }
        trail.crashed = true;
        trail.running = false;
        trail.asleep_until = None;
        self.in_flight.clear();
    }
}

impl Trail {
    /// Records that a round is posted. Returns false if it is not, because the client has crashed.
    pub(super) fn posted(&mut self, Ticket(ticket): Ticket) -> bool {
        self.history = fold(self.history, ticket << 1);
        !self.crashed
    }
}

/// A state in which there was a choice.
struct Node {
    /// The number of steps that led there.
    at: usize,
    enabled: Vec<StepId>,
    /// For each enabled step, the enabled steps that it does not commute with, as bits.
    conflicts: Vec<u64>,
    sleep: u64,
    todo: u64,
    current: usize,
}

impl Node {
    /// Returns the steps that sleep behind the current step.
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
    /// How many of the path's first steps repeat what an earlier run has done.
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
    /// It came to a state that was met before.
    Known,
    /// It was another order of what was explored before.
    Asleep,
}

/// A coroutine of a client.
pub struct Player<'p, T> {
    client: ClientId,
    endpoint: Rc<Endpoint>,
    future: Pin<Box<dyn Future<Output = T> + 'p>>,
    drop_part: Option<Box<dyn FnMut() + 'p>>,
}

impl<'p, T> Player<'p, T> {
    /// Makes a coroutine of a client, which has one connection. A client may have several
    /// coroutines: then `part` runs all of them, until each waits for a round or for time.
    pub fn new(client: ClientId, endpoint: &Rc<Endpoint>, part: impl Future<Output = T> + 'p) -> Player<'p, T> {
        Player { client, endpoint: endpoint.clone(), future: Box::pin(part), drop_part: None }
    }

    /// Sets what a drop of the client's future does ([`ExploreOptions::cancel`]). `drop_part` tells
    /// the future to drop one of the coroutines that it runs. Without this, the whole future is
    /// dropped.
    #[must_use]
    pub fn dropping(self, drop_part: impl FnMut() + 'p) -> Player<'p, T> {
        Player { drop_part: Some(Box::new(drop_part)), ..self }
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
    /// A function that returns a digest of what coroutines share beside memory.
    shared: Option<Box<dyn Fn() -> u64>>,
}

impl fmt::Debug for Play<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Play").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Runs a program in every order, until a run returns an error or the bound is hit. Memory is
/// restored to its present state before each run and at the end. The program itself has to make
/// connections, services and handlers anew in each run.
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
    let began = {
        let mut state = fabric.state();
        state.schedule = Schedule::Instant;
        state.journal = Some(Journal::begin(&fabric.memory));
        state.put_back(&fabric.memory);
        state.now
    };
    let mut bounded = false;
    let violation = loop {
        search.ended = None;
        search.taken.clear();
        fabric.state().now = began;
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
    /// Changes the path so that it leads to the next unexplored step. Returns false if there is
    /// none.
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
    /// Sets the function that returns a digest of what coroutines share beside memory
    /// ([`ExploreOptions::shared`]). The digest must cover everything that they may see of it.
    pub fn share(&mut self, digest: impl Fn() -> u64 + 'static) {
        self.shared = Some(Box::new(digest));
    }

    fn shared(&self) -> u64 {
        self.shared.as_ref().map_or(0, |digest| digest())
    }

    /// Runs the coroutines, and whatever they leave in flight, to the end. Call it once in a run.
    ///
    /// Returns what each coroutine returned, or `None` in place of a coroutine that has crashed or
    /// was dropped. Returns `None` in all if the run ends earlier, because everything that could
    /// follow is explored already. Then the program must return `Ok`.
    ///
    /// # Panics
    ///
    /// Panics if a coroutine waits for nothing, if a client accesses memory that is private to
    /// another, or if the program has not said what is shared.
    pub fn run<T>(&mut self, players: Vec<Player<'_, T>>) -> Option<Vec<Option<T>>> {
        let matches_states = self.options.reduction == Reduction::States;
        assert!(!self.options.shared || !matches_states || self.shared.is_some(), "states show all that is shared");
        let member = |player| Member::new(self.fabric, player, self.options);
        let mut cast: Vec<Member<'_, T>> = players.into_iter().map(member).collect();
        self.fabric.state().schedule = Schedule::Explored;
        self.settle(&mut cast);
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
            self.take(step, at >= self.search.repeats, &mut cast);
            at += 1;
        };
        self.search.ended = Some(ended);
        let mut state = self.fabric.state();
        for connection in &mut state.connections {
            connection.trail.crashed = true; // a round that is dropped now is not sent
            connection.in_flight.clear();
        }
        drop(state);
        let outputs = cast.into_iter().map(|member| member.output).collect();
        self.fabric.state().schedule = Schedule::Instant;
        (ended == Ended::Complete).then_some(outputs)
    }

    /// Chooses the next step, and what sleeps behind it.
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

    fn take<T>(&mut self, step: StepId, new: bool, cast: &mut [Member<'_, T>]) {
        let mut state = self.fabric.state();
        let taken = state.take(&self.fabric.memory, step, self.options);
        self.search.taken.push(taken);
        if let StepId::Complete { connection, .. } = step
            && state.shares(connection, self.options)
        {
            // Its coroutine goes on now, and may look at the round.
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
                if let Some(drop_part) = &mut member.drop_part {
                    drop_part();
                    continue;
                }
                member.future = None;
                self.fabric.state().connections[connection].trail.running = false;
            }
        }
        self.settle(cast);
    }

    /// Lets every coroutine run until it waits for a step.
    fn settle<T>(&self, cast: &mut [Member<'_, T>]) {
        loop {
            cast.iter().for_each(|member| member.endpoint.progress());
            let before = self.fabric.state().activity();
            let mut finished = false;
            for member in cast.iter_mut() {
                finished |= member.poll(self.fabric);
            }
            if finished || self.fabric.state().activity() != before {
                continue;
            }
            // No coroutine can go on. One that sleeps wakes, if there is something new to see.
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

/// A coroutine that is running.
struct Member<'p, T> {
    connection: usize,
    endpoint: Rc<Endpoint>,
    future: Option<Pin<Box<dyn Future<Output = T> + 'p>>>,
    drop_part: Option<Box<dyn FnMut() + 'p>>,
    output: Option<T>,
}

impl<'p, T> Member<'p, T> {
    fn new(fabric: &Seeded, player: Player<'p, T>, options: &ExploreOptions) -> Member<'p, T> {
        let mut state = fabric.state();
        let connection = state.connections.iter().rposition(|connection| connection.client == player.client);
        let connection = connection.expect("a client that plays is connected");
        let now = state.now;
        let trail = &mut state.connections[connection].trail;
        trail.clock = now;
        trail.running = true;
        trail.patient = options.patient.contains(&player.client);
        trail.recovers = options.suspicions.iter().any(|suspicion| suspicion.by == player.client);
        trail.waits = trail.recovers;
        let Player { endpoint, future, drop_part, .. } = player;
        Member { connection, endpoint, future: Some(future), drop_part, output: None }
    }

    /// Polls the coroutine. Returns true if it has finished with this poll.
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
    /// Runs a round to its end, with its verbs in order.
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

    /// Records what a verb may have changed.
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

    /// Restores everything to its state before the run.
    fn put_back(&mut self, memory: &Memory) {
        self.connections.clear();
        self.revoked.clear();
        self.services.clear();
        self.handlers.fill(0);
        if let Some(journal) = &mut self.journal {
            journal.rewind(memory);
        }
    }

    /// Revokes a client: whatever of its verbs has not landed will not land.
    pub(super) fn cut_off(&mut self, client: ClientId) {
        for connection in self.connections.iter_mut().filter(|connection| connection.client == client) {
            if connection.trail.recovers {
                connection.crash();
            }
            connection.in_flight.iter_mut().for_each(InFlight::cut_off);
        }
    }

    /// Records that a client tells other clients something that they, or the code that judges the
    /// run, may act on. Only recoverers need this.
    pub(super) fn tells(&mut self, client: ClientId, what: u64) {
        for connection in self.connections.iter_mut().filter(|connection| connection.client == client) {
            connection.trail.told = fold(connection.trail.told, what);
        }
    }

    /// Returns the number of rounds posted and completed so far: all that a coroutine can notice or
    /// do.
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
