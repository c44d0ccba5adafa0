//! The steps of an exploration: which steps can be taken, what they touch, and what they do.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::{Candidate, Connection, InFlight, Look, Running, Serving, State, step_atomic};
use super::{ExploreOptions, Footprint, Looked, Private, Step, StepId, Suspicion, Taken, Trail, What, fold};
use crate::address::{Address, LINE_WORDS, NodeId, RegionId, WORD_BYTES};
use crate::ids::{ClientId, Ticket};
use crate::round::buffer::Verb;
use crate::service::Progress;
use crate::shm::{Memory, execute_verb};

impl State {
    /// Whether a client may still crash, or have its future dropped.
    fn is_mortal(&self, connection: usize, options: &ExploreOptions) -> bool {
        let Connection { client, trail, .. } = &self.connections[connection];
        // A recoverer tells other clients nothing before it is through.
        let crashes = options.crash == Some(*client) && !trail.crashed && !trail.recovers;
        crashes || options.cancel == Some(*client) && trail.running && !trail.dropped
    }

    /// Whether a client may still be taken for dead.
    fn is_suspect(&self, client: ClientId, options: &ExploreOptions) -> bool {
        let crashed = |one: &Connection| one.client == client && one.trail.crashed;
        let crashes = options.crash == Some(client) && !self.connections.iter().any(crashed);
        crashes || options.suspicions.iter().any(|one| one.of == client && self.waits(one.by))
    }

    /// Whether a client is a recoverer that has not begun.
    fn waits(&self, client: ClientId) -> bool {
        self.connections.iter().any(|connection| connection.client == client && connection.trail.waits)
    }

    /// Whether a client does nothing in memory now, and will not before another client revokes all
    /// clients that do.
    fn is_out(&self, client: ClientId) -> bool {
        let crashed = |connection: &Connection| connection.client == client && connection.trail.crashed;
        self.revoked.contains(&client) || self.waits(client) || self.connections.iter().any(crashed)
    }

    /// Whether only this client accesses these words now, or no client changes them.
    fn is_quiet(&self, client: ClientId, at: Address, words: Range<usize>, options: &ExploreOptions) -> bool {
        let mut pieces = pieces(at, words, options);
        pieces.all(|(_, private)| {
            private.is_some_and(|Private { clients, .. }| {
                let are_out = || clients.iter().all(|other| *other == client || self.is_out(*other));
                clients.is_empty() || clients.contains(&client) && are_out()
            })
        })
    }

    /// Whether only the client of a verb accesses these words now, or no client changes them. Nor
    /// may another verb of its round, which might not be ordered with it, interfere.
    fn is_quiet_for(
        &self,
        connection: usize,
        round: &InFlight,
        verb: usize,
        (at, words): (Address, Range<usize>),
        options: &ExploreOptions,
    ) -> bool {
        let verbs = round.buffer.verbs();
        let others = verbs.iter().zip(&round.verbs).enumerate().filter(|(other, _)| *other != verb);
        let mut left = others.filter(|(_, (_, running))| !matches!(running, Running::Done));
        let own = touching(at, words.clone(), !matches!(verbs[verb], Verb::Read { .. }));
        self.is_quiet(self.connections[connection].client, at, words, options)
            && left.all(|(_, (other, _))| !touched_by(other).is_some_and(|other| other.meets(&own, false)))
    }

    /// Returns the parts of a verb that can be taken now, and what they touch.
    fn parts(
        &self,
        connection: usize,
        round: &InFlight,
        verb: usize,
        options: &ExploreOptions,
    ) -> Vec<(u32, Footprint)> {
        let quiet = |at, words| self.is_quiet_for(connection, round, verb, (at, words), options);
        parts(&round.buffer.verbs()[verb], &round.verbs[verb], options.words, quiet)
    }

    /// Whether only one thing can happen to a client: its one round goes on. The client has no
    /// other round, does not sleep, and cannot crash.
    fn is_busy_with_one(&self, connection: usize, options: &ExploreOptions) -> bool {
        let Connection { in_flight, trail, .. } = &self.connections[connection];
        in_flight.len() == 1 && trail.asleep_until.is_none() && !self.is_mortal(connection, options)
    }

    /// Whether a client looks at, or changes, more than memory when one of its rounds has
    /// completed.
    pub(super) fn shares(&self, connection: usize, options: &ExploreOptions) -> bool {
        options.shared && !self.connections[connection].trail.recovers
    }

    /// Returns every step that can be taken. Their order depends on the state only.
    pub(super) fn enabled(&self, options: &ExploreOptions) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut candidates = Vec::new();
        self.add_candidates(&mut candidates);
        for Candidate { connection, round, verb } in candidates {
            let round = &self.connections[connection].in_flight[round];
            let InFlight { ticket, .. } = round;
            match verb {
                None => {
                    let id = StepId::Complete { connection, ticket: *ticket };
                    let footprint =
                        if self.shares(connection, options) { Footprint::Shared } else { Footprint::Nothing };
                    steps.push(Step { id, footprint });
                }
                Some(verb) => {
                    let of = |(part, footprint)| Step {
                        id: StepId::Part { connection, ticket: *ticket, verb, part },
                        footprint,
                    };
                    steps.extend(self.parts(connection, round, verb, options).into_iter().map(of));
                }
            }
        }
        for (index, serving) in self.services.iter().enumerate().filter(|(_, serving)| self.has_news(serving)) {
            steps.push(Step { id: StepId::Service { index }, footprint: Footprint::Node(serving.node) });
        }
        for (connection, one) in self.connections.iter().enumerate() {
            let lives = one.trail.running || !one.in_flight.is_empty();
            let mut end = |id| steps.push(Step { id, footprint: Footprint::Nothing });
            if options.crash == Some(one.client) && !one.trail.crashed && lives {
                end(StepId::Crash { connection });
            }
            if options.cancel == Some(one.client) && !one.trail.dropped && one.trail.running {
                end(StepId::Drop { connection });
            }
        }
        for Suspicion { of, by } in &options.suspicions {
            if self.waits(*by) && !self.waits(*of) {
                let by = self.connections.iter().position(|connection| connection.client == *by);
                let begin = by.map(|connection| StepId::Begin { connection });
                steps.extend(begin.map(|id| Step { id, footprint: Footprint::Nothing }));
            }
        }
        steps
    }

    /// Whether a step commutes with everything that other clients can ever do, and its client has
    /// nothing else to do.
    pub(super) fn is_no_choice(&self, step: &Step, options: &ExploreOptions) -> bool {
        let connection = match step.id {
            StepId::Part { connection, .. } | StepId::Complete { connection, .. } => connection,
            // The recoverer has nothing left to end.
            StepId::Begin { connection } => {
                return self.ended_by(connection, options).all(|dead| self.is_at_rest(dead));
            }
            _ => return false,
        };
        let Connection { client, trail, .. } = &self.connections[connection];
        // The recoverer of a client sees which parts of its verbs have landed. The client tells
        // whether a verb failed.
        let commutes = trail.recovers && !matches!(step.footprint, Footprint::Words { writes: true, .. });
        let commutes = commutes || matches!(step.id, StepId::Complete { .. }) || !self.is_suspect(*client, options);
        commutes
            && self.is_busy_with_one(connection, options)
            && match step.footprint {
                Footprint::Nothing => true,
                Footprint::Words { node, region, start, end, .. } => {
                    let words = (Address { node, region, offset: 0 }, start..end);
                    let StepId::Part { verb, .. } = step.id else { return false };
                    let Some(round) = self.connections[connection].in_flight.front() else { return false };
                    self.is_quiet_for(connection, round, verb, words, options)
                }
                Footprint::Node(_) | Footprint::Shared => false,
            }
    }

    /// Returns the clients that a recoverer revokes: the client that was taken for dead, and the
    /// client which that one was to recover, and so on.
    fn ended_by<'o>(&self, recoverer: usize, options: &'o ExploreOptions) -> impl Iterator<Item = ClientId> + use<'o> {
        let of = |by: ClientId| options.suspicions.iter().find(|one| one.by == by).map(|one| one.of);
        std::iter::successors(of(self.connections[recoverer].client), move |dead| of(*dead))
    }

    /// Whether a client has finished, and has nothing in flight.
    fn is_at_rest(&self, client: ClientId) -> bool {
        let mut own = self.connections.iter().filter(|connection| connection.client == client);
        own.all(|connection| !connection.trail.running && connection.in_flight.is_empty())
    }

    /// Whether two steps that can both be taken now do not commute.
    pub(super) fn conflict(&self, one: &Step, other: &Step, options: &ExploreOptions) -> bool {
        match (one.id.connection(), other.id.connection()) {
            (Some(a), Some(b)) if a == b => match (one.id, other.id) {
                _ if one.id == other.id => true,
                (StepId::Part { ticket: a, .. }, StepId::Part { ticket: b, .. }) if a == b => {
                    one.footprint.meets(&other.footprint, self.split_atomics)
                }
                _ => true,
            },
            (a, b) => {
                let ends = |step: &Step, connection: Option<usize>| match (step.id, connection) {
                    (StepId::Begin { connection: recoverer }, Some(connection)) => {
                        let client = self.connections[connection].client;
                        self.ended_by(recoverer, options).any(|dead| dead == client)
                    }
                    _ => false,
                };
                ends(one, b)
                    || ends(other, a)
                    || one.footprint.meets(&other.footprint, self.split_atomics)
                    || b.is_some_and(|b| self.wakes(one, b))
                    || a.is_some_and(|a| self.wakes(other, a))
            }
        }
    }

    /// Whether a step may end the sleep of a client.
    fn wakes(&self, step: &Step, connection: usize) -> bool {
        let trail = &self.connections[connection].trail;
        trail.asleep_until.is_some()
            && trail.looked.iter().any(|looked| match looked {
                Looked::Node(node, _) => step.footprint.node() == Some(*node),
                Looked::Words(at, words) => step.footprint.meets(&reading(*at, words.len()), false),
            })
    }

    /// Wakes a client that sleeps, if what it last looked at has changed.
    pub(super) fn wake(&mut self, memory: &Memory, connection: usize) -> bool {
        let differs = |looked: &Looked| match looked {
            Looked::Node(node, changes) => self.changes(*node) != *changes,
            Looked::Words(at, seen) => memory.words(*at, seen.len() as u32).is_ok_and(|(region, start)| {
                seen.iter().zip(&region[start..]).any(|(seen, now)| *seen != now.load(Ordering::Relaxed))
            }),
        };
        let woken = self.connections[connection].trail.looked.iter().any(differs);
        if woken {
            self.connections[connection].trail.wake();
        }
        woken
    }

    fn changes(&self, node: NodeId) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.node(node).changes)
    }

    fn node_fingerprint(&self, node: NodeId) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.node(node).fingerprint)
    }

    /// Whether a service's node has been changed by others since the service last looked.
    pub(super) fn has_news(&self, serving: &Serving) -> bool {
        self.changes(serving.node) != serving.trail.changes && !serving.stop.requested()
    }

    pub(super) fn take(&mut self, memory: &Memory, step: StepId, options: &ExploreOptions) -> Taken {
        let client = step.connection().map(|connection| self.connections[connection].client);
        let what = match step {
            StepId::Part { connection, ticket, verb, part } => {
                let in_flight = &self.connections[connection].in_flight;
                let round = in_flight.iter().position(|round| round.ticket == ticket).expect("a round in flight");
                let taken = in_flight[round].buffer.verbs()[verb];
                self.take_part(memory, connection, round, verb, part, options);
                let in_flight = &self.connections[connection].in_flight;
                let done = in_flight[round].verbs.iter().all(|running| matches!(running, Running::Done));
                if done && !self.shares(connection, options) && self.is_busy_with_one(connection, options) {
                    self.complete(connection, round);
                }
                What::Verb(taken, part)
            }
            StepId::Complete { connection, ticket } => {
                let mut in_flight = self.connections[connection].in_flight.iter();
                let round = in_flight.position(|round| round.ticket == ticket).expect("a round in flight");
                self.complete(connection, round);
                What::Completion
            }
            StepId::Crash { connection } => {
                self.connections[connection].crash();
                What::Crash
            }
            StepId::Drop { connection } => {
                let trail = &mut self.connections[connection].trail;
                trail.dropped = true;
                // The client's other coroutines go on, and see that this one is gone.
                trail.history = fold(trail.history, u64::MAX);
                What::Drop
            }
            StepId::Begin { connection } => {
                self.connections[connection].trail.waits = false;
                What::Begin(self.ended_by(connection, options).next().unwrap_or(ClientId(0)))
            }
            StepId::Service { index } => {
                let node = self.services[index].node;
                let before = self.node_fingerprint(node);
                let mut worked = false;
                loop {
                    let progress = self.services[index].service.step();
                    worked |= progress != Progress::Idle;
                    if progress != Progress::Behind {
                        break;
                    }
                }
                if let Some(journal) = &mut self.journal {
                    journal.scan(memory, node);
                }
                let changes = self.changes(node);
                let trail = &mut self.services[index].trail;
                trail.changes = changes;
                if worked {
                    trail.history = fold(trail.history, before);
                }
                What::Service(node)
            }
            StepId::Time => {
                self.connections.iter_mut().for_each(|connection| connection.trail.wake());
                What::Time
            }
        };
        Taken { client, what }
    }

    /// Takes a part of a verb.
    fn take_part(
        &mut self,
        memory: &Memory,
        connection: usize,
        round: usize,
        index: usize,
        part: u32,
        options: &ExploreOptions,
    ) {
        let client = self.connections[connection].client;
        let split = self.split_atomics;
        let of = &self.connections[connection].in_flight[round];
        let verb = of.buffer.verbs()[index];
        let mut now = self.parts(connection, of, index, options).into_iter();
        let footprint = now.find(|(one, _)| *one == part);
        let quiet = |at, words| self.is_quiet_for(connection, of, index, (at, words), options);
        let reads = reads_now(&verb, &of.verbs[index], footprint, quiet);
        let round = &mut self.connections[connection].in_flight[round];
        let Some((_, footprint)) = footprint else { unreachable!("a step is taken where it can be") };
        if let Verb::Call { node, head, head_words, body, body_words, .. } = verb {
            let words = round.buffer.parts().1;
            let request = words[head as usize..][..head_words as usize].iter();
            let request = request.chain(&words[body as usize..][..body_words as usize]);
            let request = request.fold(client.0.into(), |all, word| fold(all, *word));
            let seen = fold(self.journal.as_ref().map_or(0, |journal| journal.node(node).fingerprint), request);
            let history = &mut self.handlers[usize::from(node.0)];
            *history = fold(*history, seen);
        }
        let result = match (verb, footprint) {
            _ if split && verb.is_atomic() => step_atomic(memory, round, index, &verb),
            (Verb::Read { at, words, into }, _) => memory.words(at, words).map(|(region, first)| {
                for range in &reads {
                    let into = &mut round.buffer.parts().1[into as usize + range.start - first..];
                    for (place, word) in into.iter_mut().zip(&region[range.clone()]) {
                        *place = word.load(Ordering::Acquire);
                    }
                }
                let mut lines = Vec::new();
                if reads.iter().map(Range::len).sum::<usize>() < words as usize {
                    lines = lines_to_read(&round.verbs[index], first, words as usize);
                    lines.retain(|line| !reads.iter().any(|range| range.contains(&first.max(*line))));
                }
                round.verbs[index] = match lines.as_slice() {
                    [] => Running::Done,
                    _ => Running::Reading { lines, look: Look::None, missing: 0 },
                };
            }),
            (Verb::Write { at, words, from }, Footprint::Words { start, end, .. }) => {
                memory.words(at, words).map(|(region, first)| {
                    let from = &round.buffer.parts().1[from as usize + start - first..];
                    for (word, value) in region[start..end].iter().zip(from) {
                        word.store(*value, Ordering::Release);
                    }
                    let next = end - first;
                    round.verbs[index] = if next == words as usize { Running::Done } else { Running::Writing { next } };
                })
            }
            _ => {
                round.verbs[index] = Running::Done;
                execute_verb(memory, &verb, round.buffer.parts().1, &Cell::new(false), client)
            }
        };
        if let Err(error) = result {
            round.fail(error);
        }
        // Words that no client changes have nothing new to show.
        let at = if let Verb::Read { at, .. } = verb {
            at
        } else {
            Address { node: NodeId(0), region: RegionId(0), offset: 0 }
        };
        let changing = reads.into_iter().flat_map(|range| {
            let unchanging = |private: Option<&Private>| private.is_some_and(|private| private.clients.is_empty());
            pieces(at, range, options).filter(move |(_, private)| !unchanging(*private)).map(|(piece, _)| piece)
        });
        let brought = brought(round, &verb, changing);
        round.brought = round.brought.wrapping_add(fold(fold(index as u64, part.into()), brought));
        // Words that are only read must not belong to another client either.
        let mut touched: Vec<_> =
            self.note(memory, &verb).into_iter().map(|(region, word)| (region, word, true)).collect();
        if let Footprint::Words { region, start, end, writes, .. } = footprint {
            touched.extend([(region, start, writes), (region, end - 1, writes)]);
        }
        let Some(node) = verb.node() else { return };
        for (region, word, writes) in touched {
            let owner = options.private.iter().find(|private| private.contains(node, region, word, word + 1));
            let others =
                owner.filter(|owner| if owner.clients.is_empty() { writes } else { !owner.clients.contains(&client) });
            assert!(others.is_none(), "client {} accesses what is private: {others:?}", client.0);
        }
    }

    /// Completes a round, and tells its client.
    fn complete(&mut self, connection: usize, round: usize) {
        let patient = self.connections[connection].trail.patient;
        let in_flight = &mut self.connections[connection].in_flight[round];
        let (brought, orphaned) = (in_flight.brought, in_flight.orphaned);
        let Ticket(ticket) = in_flight.ticket;
        let failed = in_flight.outcome.as_ref().err().map_or(0, |error| 1 + u64::from(error.node.0));
        if !orphaned && !patient {
            let (verbs, words) = in_flight.buffer.parts();
            let words = |place: u32, count: u32| words[place as usize..][..count as usize].to_vec();
            let journal = &self.journal;
            let looked = verbs.iter().filter_map(|verb| match *verb {
                Verb::Read { at, words: count, into } => Some(Looked::Words(at, words(into, count))),
                Verb::CompareSwap { at, into, .. } | Verb::FetchAdd { at, into, .. } => {
                    Some(Looked::Words(at, words(into, 1)))
                }
                Verb::Call { node, .. } => {
                    Some(Looked::Node(node, journal.as_ref().map_or(0, |journal| journal.node(node).changes)))
                }
                _ => None,
            });
            let looked = looked.collect();
            self.connections[connection].trail.looked = looked;
        }
        let trail = &mut self.connections[connection].trail;
        trail.clock += 1; // a round takes some time
        trail.history = fold(fold(trail.history, ticket << 1 | 1), brought.wrapping_add(failed));
        self.connections[connection].complete(round);
    }
}

impl Trail {
    /// Wakes the client if it sleeps.
    fn wake(&mut self) {
        if let Some(until) = self.asleep_until.take() {
            self.clock = self.clock.max(until);
            self.history = fold(self.history, self.clock);
        }
    }
}

impl Footprint {
    fn node(&self) -> Option<NodeId> {
        match self {
            Footprint::Nothing | Footprint::Shared => None,
            Footprint::Words { node, .. } | Footprint::Node(node) => Some(*node),
        }
    }

    /// Whether the order of two steps of different verbs matters to memory, or to what they read.
    fn meets(&self, other: &Footprint, split_atomics: bool) -> bool {
        let same_node = self.node().is_some() && self.node() == other.node();
        match (self, other) {
            (
                Footprint::Words { region: r1, start: s1, end: e1, writes: w1, atomic: a1, .. },
                Footprint::Words { region: r2, start: s2, end: e2, writes: w2, atomic: a2, .. },
            ) => {
                let overlap = r1 == r2 && s1 < e2 && s2 < e1;
                // A NIC in the middle of one atomic does no other.
                same_node && (overlap && (*w1 || *w2) || split_atomics && *a1 && *a2)
            }
            (Footprint::Shared, Footprint::Shared) => true,
            _ => same_node,
        }
    }
}

fn reading(at: Address, words: usize) -> Footprint {
    let start = at.offset as usize / WORD_BYTES;
    touching(at, start..start + words, false)
}

fn touching(at: Address, words: Range<usize>, writes: bool) -> Footprint {
    let Address { node, region, .. } = at;
    Footprint::Words { node, region, start: words.start, end: words.end, writes, atomic: false }
}

/// Returns what a verb touches from its beginning to its end.
fn touched_by(verb: &Verb) -> Option<Footprint> {
    let (at, words, writes) = match *verb {
        Verb::Read { at, words, .. } => (at, words as usize, false),
        Verb::Write { at, words, .. } => (at, words as usize, true),
        Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => (at, 1, true),
        Verb::Call { node, .. } => return Some(Footprint::Node(node)),
        Verb::Flush { .. } | Verb::AfterCompletion => return None,
    };
    let start = at.offset as usize / WORD_BYTES;
    Some(touching(at, start..start + words, writes))
}

/// Returns the parts of a verb that can be taken now, and what they touch. Quiet lines of a READ
/// are read with its next part.
fn parts(
    verb: &Verb,
    running: &Running,
    by_words: bool,
    quiet: impl Fn(Address, Range<usize>) -> bool,
) -> Vec<(u32, Footprint)> {
    let access = |at: Address, start, end, writes, atomic| {
        let Address { node, region, .. } = at;
        Footprint::Words { node, region, start, end, writes, atomic }
    };
    match *verb {
        Verb::Read { at, words, .. } => {
            let first = at.offset as usize / WORD_BYTES;
            let end = first + words as usize;
            let of_line = |line: usize| {
                let part = (line / LINE_WORDS - first / LINE_WORDS) as u32;
                (part, access(at, line.max(first), (line + LINE_WORDS).min(end), false, false))
            };
            let mut left = lines_to_read(running, first, words as usize);
            if quiet(at, first..end) {
                left.clear();
            }
            left.retain(|line| !quiet(at, (*line).max(first)..(line + LINE_WORDS).min(end)));
            if left.is_empty() {
                return vec![(0, Footprint::Nothing)];
            }
            left.into_iter().map(of_line).collect()
        }
        Verb::Write { at, words, .. } => {
            let first = at.offset as usize / WORD_BYTES;
            let next = first + if let Running::Writing { next } = running { *next } else { 0 };
            if by_words {
                return vec![((next - first) as u32, access(at, next, next + 1, true, false))];
            }
            let part = (next / LINE_WORDS - first / LINE_WORDS) as u32;
            let end = (next / LINE_WORDS * LINE_WORDS + LINE_WORDS).min(first + words as usize);
            vec![(part, access(at, next, end, true, false))]
        }
        Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => {
            let word = at.offset as usize / WORD_BYTES;
            vec![(matches!(running, Running::Loaded { .. }).into(), access(at, word, word + 1, true, true))]
        }
        Verb::Call { node, .. } => vec![(0, Footprint::Node(node))],
        Verb::Flush { .. } | Verb::AfterCompletion => vec![(0, Footprint::Nothing)],
    }
}

/// Returns the first words of the lines of a READ.
fn lines(first: usize, words: usize) -> impl Iterator<Item = usize> {
    (first / LINE_WORDS..(first + words).div_ceil(LINE_WORDS)).map(|line| line * LINE_WORDS)
}

/// Returns the first words of the lines that a READ has not read yet.
fn lines_to_read(running: &Running, first: usize, words: usize) -> Vec<usize> {
    match running {
        Running::Reading { lines, .. } => lines.clone(),
        _ => lines(first, words).collect(),
    }
}

/// Returns the words that a part of a READ reads: its line, and all lines that are quiet.
fn reads_now(
    verb: &Verb,
    running: &Running,
    footprint: Option<(u32, Footprint)>,
    quiet: impl Fn(Address, Range<usize>) -> bool,
) -> Vec<Range<usize>> {
    let Verb::Read { at, words, .. } = *verb else { return Vec::new() };
    let first = at.offset as usize / WORD_BYTES;
    let end = first + words as usize;
    let own = if let Some((_, Footprint::Words { start, .. })) = footprint { Some(start) } else { None };
    if own.is_none() && matches!(running, Running::Waiting) {
        return std::iter::once(first..end).collect();
    }
    let range = |line: usize| line.max(first)..(line + LINE_WORDS).min(end);
    let ranges = lines_to_read(running, first, words as usize).into_iter().map(range);
    ranges.filter(|range| Some(range.start) == own || quiet(at, range.clone())).collect()
}

/// Splits these words into pieces, each of which is in one [`Private`] or in none. A piece in none
/// is no longer than a line.
fn pieces(
    at: Address,
    mut words: Range<usize>,
    options: &ExploreOptions,
) -> impl Iterator<Item = (Range<usize>, Option<&Private>)> {
    std::iter::from_fn(move || {
        let start = words.next()?;
        let private = options.private.iter().find(|one| one.contains(at.node, at.region, start, start + 1));
        let end = private.map_or((start / LINE_WORDS + 1) * LINE_WORDS, Private::end);
        let end = end.min(words.end);
        words.start = end;
        Some((start..end, private))
    })
}

/// Returns a digest of what a part has read for its client. For a READ, `read` has the words.
fn brought(round: &mut InFlight, verb: &Verb, read: impl Iterator<Item = Range<usize>>) -> u64 {
    let words = round.buffer.parts().1;
    let fold_all = |all: u64, words: &[u64]| words.iter().fold(all, |all, word| fold(all, *word));
    match *verb {
        Verb::Read { at, into, .. } => {
            let first = at.offset as usize / WORD_BYTES;
            read.fold(0, |all, range| fold_all(all, &words[into as usize + range.start - first..][..range.len()]))
        }
        Verb::CompareSwap { into, .. } | Verb::FetchAdd { into, .. } => fold_all(0, &words[into as usize..][..1]),
        Verb::Call { into, .. } => {
            let (length, reply) = words[into as usize..].split_first().unwrap_or((&0, &[]));
            fold_all(0, &reply[..*length as usize])
        }
        _ => 0,
    }
}
