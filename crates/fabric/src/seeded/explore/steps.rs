//! The steps of an exploration: which can be taken, what they touch, and what they do.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::super::{Candidate, Connection, InFlight, Look, Running, Serving, State, step_atomic};
use super::{ExploreOptions, Footprint, Looked, Step, StepId, Taken, Trail, What, fold};
use crate::address::{Address, LINE_WORDS, NodeId, WORD_BYTES};
use crate::round::Verb;
use crate::service::Progress;
use crate::shm::{Memory, execute_verb};
use crate::transport::Ticket;

impl State {
    /// Whether a client may still crash, or have its future dropped.
    fn is_mortal(&self, connection: usize, options: &ExploreOptions) -> bool {
        let Connection { client, trail, .. } = &self.connections[connection];
        let crashes = options.crash == Some(*client) && !trail.crashed;
        crashes || options.cancel == Some(*client) && trail.running && !trail.dropped
    }

    /// Whether all that can happen to a client is that its one round goes on: it has no other, does not sleep, and cannot
    /// crash.
    fn is_busy_with_one(&self, connection: usize, options: &ExploreOptions) -> bool {
        let Connection { in_flight, trail, .. } = &self.connections[connection];
        in_flight.len() == 1 && trail.asleep_until.is_none() && !self.is_mortal(connection, options)
    }

    /// Every step that can be taken, in an order that depends on the state only.
    pub(super) fn enabled(&self, options: &ExploreOptions) -> Vec<Step> {
        let mut steps = Vec::new();
        for Candidate { connection, round, verb } in self.candidates() {
            let InFlight { ticket, buffer, verbs, .. } = &self.connections[connection].in_flight[round];
            match verb {
                None => {
                    let id = StepId::Complete { connection, ticket: *ticket };
                    steps.push(Step { id, footprint: Footprint::Nothing });
                }
                Some(verb) => {
                    let of = |(part, footprint)| Step {
                        id: StepId::Part { connection, ticket: *ticket, verb, part },
                        footprint,
                    };
                    steps.extend(parts(&buffer.verbs()[verb], &verbs[verb]).into_iter().map(of));
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
        steps
    }

    /// Whether a step commutes with everything that others can ever do, and its client has nothing else to do.
    pub(super) fn is_no_choice(&self, step: &Step, options: &ExploreOptions) -> bool {
        let (StepId::Part { connection, .. } | StepId::Complete { connection, .. }) = step.id else { return false };
        let client = self.connections[connection].client;
        self.is_busy_with_one(connection, options)
            && match step.footprint {
                Footprint::Nothing => true,
                Footprint::Words { node, region, start, end, .. } => {
                    let mut own = options.private.iter().filter(|private| private.client == client);
                    own.any(|own| own.contains(node, region, start) && own.contains(node, region, end - 1))
                }
                Footprint::Node(_) => false,
            }
    }

    /// Whether two steps that can both be taken now do not commute.
    pub(super) fn conflict(&self, one: &Step, other: &Step) -> bool {
        match (one.id.connection(), other.id.connection()) {
            (Some(a), Some(b)) if a == b => match (one.id, other.id) {
                _ if one.id == other.id => true,
                (StepId::Part { ticket: a, .. }, StepId::Part { ticket: b, .. }) if a == b => {
                    one.footprint.meets(&other.footprint, self.split_atomics)
                }
                _ => true,
            },
            (a, b) => {
                one.footprint.meets(&other.footprint, self.split_atomics)
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

    /// Wakes a client that sleeps, if what it has last looked at has changed.
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
                if done && self.is_busy_with_one(connection, options) {
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
                let connection = &mut self.connections[connection];
                connection.trail.crashed = true;
                connection.trail.running = false;
                connection.trail.asleep_until = None;
                connection.in_flight.clear();
                What::Crash
            }
            StepId::Drop { connection } => {
                self.connections[connection].trail.dropped = true;
                What::Drop
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
        let round = &mut self.connections[connection].in_flight[round];
        let verb = round.buffer.verbs()[index];
        let footprint = parts(&verb, &round.verbs[index]).into_iter().find(|(one, _)| *one == part);
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
            (Verb::Read { at, words, into }, Footprint::Words { start, end, .. }) => {
                memory.words(at, words).map(|(region, first)| {
                    let Some(lines) = lines_left(&mut round.verbs[index], first, words as usize) else { return };
                    lines.retain(|line| *line != start / LINE_WORDS * LINE_WORDS);
                    let all_read = lines.is_empty();
                    let into = &mut round.buffer.parts().1[into as usize + start - first..];
                    for (place, word) in into.iter_mut().zip(&region[start..end]) {
                        *place = word.load(Ordering::Acquire);
                    }
                    if all_read {
                        round.verbs[index] = Running::Done;
                    }
                })
            }
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
        let brought = brought(round, &verb, footprint);
        round.brought = round.brought.wrapping_add(fold(fold(index as u64, part.into()), brought));
        // Also what is only read must not be another's.
        let mut touched = self.note(memory, &verb);
        if let Footprint::Words { region, start, end, .. } = footprint {
            touched.extend([(region, start), (region, end - 1)]);
        }
        let Some(node) = verb.node() else { return };
        for (region, word) in touched {
            let owner = options.private.iter().find(|private| private.contains(node, region, word));
            let others = owner.filter(|owner| owner.client != client);
            assert!(others.is_none(), "client {} accesses what is private: {others:?}", client.0);
        }
    }

    /// A round completes, and its client hears of it.
    fn complete(&mut self, connection: usize, round: usize) {
        let in_flight = &mut self.connections[connection].in_flight[round];
        let (brought, orphaned) = (in_flight.brought, in_flight.orphaned);
        let Ticket(ticket) = in_flight.ticket;
        let failed = u64::from(in_flight.outcome.is_err());
        if !orphaned {
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
    /// Whoever sleeps wakes.
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
            Footprint::Nothing => None,
            Footprint::Words { node, .. } | Footprint::Node(node) => Some(*node),
        }
    }

    /// Whether the order of two steps of different verbs matters to memory, or to what they bring.
    fn meets(&self, other: &Footprint, split_atomics: bool) -> bool {
        let same_node = self.node().is_some() && self.node() == other.node();
        match (self, other) {
            (
                Footprint::Words { region: r1, start: s1, end: e1, writes: w1, atomic: a1, .. },
                Footprint::Words { region: r2, start: s2, end: e2, writes: w2, atomic: a2, .. },
            ) => {
                let overlap = r1 == r2 && s1 < e2 && s2 < e1;
                // A NIC that is in the middle of one atomic does no other.
                same_node && (overlap && (*w1 || *w2) || split_atomics && *a1 && *a2)
            }
            _ => same_node,
        }
    }
}

fn reading(at: Address, words: usize) -> Footprint {
    let start = at.offset as usize / WORD_BYTES;
    let Address { node, region, .. } = at;
    Footprint::Words { node, region, start, end: start + words, writes: false, atomic: false }
}

/// The parts of a verb that can be taken now, and what they touch.
fn parts(verb: &Verb, running: &Running) -> Vec<(u32, Footprint)> {
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
            match running {
                Running::Reading { lines, .. } => lines.iter().copied().map(of_line).collect(),
                _ => lines(first, words as usize).map(of_line).collect(),
            }
        }
        Verb::Write { at, words, .. } => {
            let first = at.offset as usize / WORD_BYTES;
            let next = first + if let Running::Writing { next } = running { *next } else { 0 };
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

/// The first words of the lines of a READ.
fn lines(first: usize, words: usize) -> impl Iterator<Item = usize> {
    (first / LINE_WORDS..(first + words).div_ceil(LINE_WORDS)).map(|line| line * LINE_WORDS)
}

/// The lines that a READ has not read, to be changed.
fn lines_left(running: &mut Running, first: usize, words: usize) -> Option<&mut Vec<usize>> {
    if let Running::Waiting = running {
        *running = Running::Reading { lines: lines(first, words).collect(), look: Look::None, missing: 0 };
    }
    match running {
        Running::Reading { lines, .. } => Some(lines),
        _ => None,
    }
}

/// What a part has brought its client.
fn brought(round: &mut InFlight, verb: &Verb, footprint: Footprint) -> u64 {
    let words = round.buffer.parts().1;
    let words = match (*verb, footprint) {
        (Verb::Read { at, into, .. }, Footprint::Words { start, end, .. }) => {
            let first = at.offset as usize / WORD_BYTES;
            &words[into as usize + start - first..][..end - start]
        }
        (Verb::CompareSwap { into, .. } | Verb::FetchAdd { into, .. }, _) => &words[into as usize..][..1],
        (Verb::Call { into, .. }, _) => {
            let (length, reply) = words[into as usize..].split_first().unwrap_or((&0, &[]));
            &reply[..*length as usize]
        }
        _ => &[],
    };
    words.iter().fold(0, |all, word| fold(all, *word))
}
