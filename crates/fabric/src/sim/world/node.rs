//! The middle of a round's path: a group is at its memory node. The NIC or a CPU takes its verbs,
//! they take effect part by part, and the answer leaves.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::{Call, Connection, Event, Flight, Group, World};
use crate::address::{Address, LINE_BYTES, LINE_WORDS, WORD_BYTES};
use crate::error::{FabricError, Fault};
use crate::ids::ClientId;
use crate::limits::REGIONS_PER_NODE_MAX;
use crate::prng::splitmix;
use crate::round::buffer::Verb;
use crate::shm::{execute_verb, no_such_node};
use crate::sim::costs::occupy;
use crate::sim::profile::Path;
use crate::sim::queue::{NS, Picos};

/// The largest number of parts in which a READ or WRITE takes effect.
const PARTS_MAX: u64 = 4;
/// The largest number of parts in which a READ or WRITE that tears at words takes effect. Two
/// instants show every way in which a reader can meet a writer.
const WORD_PARTS_MAX: u64 = 2;
/// The time for which a reliable connection sends again before it gives a node up.
const RETRY: Picos = 1_000_000 * NS;
/// The value of a life for a node that a connection has lost.
const BROKEN: u32 = u32::MAX;
/// A stretched access to memory takes 2 to `STRETCH + 1` times as long as usual.
const STRETCH: u64 = 30;

impl World {
    pub(super) fn arrive(&mut self, index: u32, group: usize) {
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
            return; // it never left, and no coroutine waits
        }
        if let Some(until) = self.faults.cut_off(self.connections[connection].machine, number, self.now) {
            let give_up = self.now + RETRY;
            if until > give_up {
                // The connection is now like a queue pair whose retries are exhausted: nothing
                // passes over it any more.
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
        // The message took as long on the sender's link. Here it only waits for others.
        let on_link = costs.link(bytes_in);
        let arrived = occupy(link, self.now, self.now, on_link) - on_link;
        let received = arrived + if self.path == Path::Loads { 0 } else { costs.receive };
        // In software: the group is one message, which one thread serves.
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
                // The last part takes effect when the access is over. The others take effect at
                // some time before.
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

    /// Returns the latency and the serving time of the switch that stands for a node, if one does.
    pub(super) fn switch(&self, node: usize, has_calls: bool) -> Option<(Picos, Picos)> {
        self.costs.in_switch.filter(|_| has_calls && node + 1 == self.nodes.len())
    }

    /// Makes a call arrive once more, because the network has doubled it or its answer was lost.
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

    /// Returns why a node takes no verb of this connection, or `None` if it does.
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

    /// Occupies the thread that serves a connection's messages and calls at a node. Returns when
    /// the work is done.
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

    /// Occupies the core of a node that has the least to do. The services of a node are threads,
    /// which run where there is room.
    pub(super) fn occupy_idlest(&mut self, node: usize, time: Picos) {
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

    /// Makes a NIC take a verb. Returns when the verb's access to memory begins. `work` is the time
    /// for which the handler of a call works.
    fn take_verb(&mut self, node: usize, connection: usize, verb: &Verb, received: Picos, work: Picos) -> Picos {
        let occupied = match verb {
            Verb::Read { .. } | Verb::Flush { .. } | Verb::AfterCompletion => self.costs.read,
            Verb::Write { .. } => self.costs.write,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => self.costs.atomic,
            Verb::Call { .. } => 2 * self.costs.message, // the call, and its answer
        };
        let machine = &mut self.machines[node];
        let nic = match offset_of(verb) {
            // Machines have one or two NICs, so a 64-bit division is not needed.
            Some(offset) => ((offset >> 12) as u32 % machine.nics.len() as u32) as usize,
            None => self.connections[connection].nic,
        };
        let now = self.now;
        let taken = occupy(&mut machine.nics[nic].engine, now, received, occupied);
        match verb {
            Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => {
                let slot = self.costs.slot_of(at.offset);
                // Another atomic may have the slot when this one is done. This atomic's own access
                // to memory begins when it gets the slot.
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

    /// Returns the time from which and the time until which a verb that has been taken has its
    /// effect. Verbs that are ordered behind it take effect later.
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
                // WRITEs of a connection follow each other into memory. None waits until the one
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
            Verb::Call { .. } => {
                // A node serves the calls of one endpoint in the order posted (contract, rule 8),
                // even if a later one takes less work.
                floor.call = taken.max(floor.call + 1);
                (floor.call, floor.call)
            }
            Verb::AfterCompletion => (taken, taken),
        }
    }

    /// Draws the actual value of a latency: around the usual value, and rarely far above.
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

    pub(in crate::sim) fn lines_of_records(&mut self, at: Address, bytes: u64) {
        let region = usize::from(at.node.0) * REGIONS_PER_NODE_MAX + usize::from(at.region.0);
        let Some(ranges) = self.record_lines.get_mut(region) else { return };
        let line = LINE_BYTES as u64;
        ranges.push(at.offset / line * line..(at.offset + bytes).next_multiple_of(line));
        ranges.sort_unstable_by_key(|range| range.start);
        // Ranges that touch become one. A table's shards lie side by side, and every part of a verb
        // looks here.
        ranges.dedup_by(|range, former| {
            let touches = range.start <= former.end;
            former.end = if touches { former.end.max(range.end) } else { former.end };
            touches
        });
    }

    /// Draws the number of parts in which a verb takes effect.
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

    /// Lets a part of a verb take effect. Returns a call if one is to be served.
    pub(super) fn piece(&mut self, index: u32, group: u16, at: u8, part: u8, parts: u8) -> Option<Call> {
        let mut flight = self.flights[index as usize].take()?;
        let connection = flight.connection as usize;
        let Group { node, failed, .. } = flight.groups[usize::from(group)];
        let number = usize::from(node.0);
        let verb = flight.buffer.verbs()[usize::from(at)];
        if self.connections[connection].dead && self.now > self.connections[connection].floors[number].cut {
            // This is the rest of a WRITE whose packets were not all sent. What is ordered behind
            // it is lost too, above all an unlock.
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

    pub(super) fn piece_over(
        &mut self,
        mut flight: Box<Flight>,
        index: u32,
        group: usize,
        result: Result<(), FabricError>,
    ) {
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

    /// Records that a group's answer is at the client at `back`.
    pub(super) fn group_over(&mut self, flight: &mut Flight, index: u32, back: Picos) {
        flight.back = flight.back.max(back);
        flight.groups_left -= 1;
        if flight.groups_left == 0 {
            self.queue.push(flight.back, Event::Done { flight: index });
        }
    }

    /// Sends the answer of a group. Returns when it is at the client.
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
            // The CPU posts the answer as a message.
            left += costs.send;
        }
        match path {
            // The core that loads has waited for its own bytes. Here it only waits for others.
            Path::Loads => return occupy(&mut nic.sending, *now, left, link) - link,
            Path::Messages => left = occupy(&mut nic.engine, *now, left, costs.request),
            Path::Nic => {}
        }
        let sent = occupy(&mut nic.sending, *now, left, link);
        if client.machine == node {
            return sent + costs.pcie(bytes) + costs.completion;
        }
        // The answer took as long on the node's link. On the client's link it only waits for
        // others.
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

    pub(in crate::sim) fn revoke(&mut self, client: ClientId) {
        let connections = self.connections.iter_mut().filter(|connection| connection.client == client);
        connections.for_each(|connection| connection.revoked |= !self.abandoned);
    }

    /// Carries out a part of a verb.
    fn effect(
        &mut self,
        flight: &mut Flight,
        connection: usize,
        verb: &Verb,
        part: u64,
        parts: u64,
    ) -> Result<(), FabricError> {
        // The division into parts is drawn at random. It is the same draw for all parts of a verb.
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
            // The call has been served already, as the caller's sequence number shows. The caller
            // gets the answer again.
            Verb::Call { .. } if part > 0 => self.statistics.suppressed_calls += 1,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } | Verb::Call { .. } | Verb::AfterCompletion => {
                let client = self.connections[connection].client;
                let words = flight.buffer.parts().1;
                execute_verb(&self.memory, verb, words, &Cell::new(false), client)?;
                if let Some(recording) = &mut self.recording {
                    recording.swap(verb, words, self.now / NS);
                }
            }
            Verb::Flush { node } => {
                if self.flush_persists {
                    self.faults.flushed(node, connection);
                }
            }
        }
        Ok(())
    }
}

fn offset_of(verb: &Verb) -> Option<u64> {
    match verb {
        Verb::Read { at, .. } | Verb::Write { at, .. } | Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => {
            Some(at.offset)
        }
        Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => None,
    }
}

/// Returns a number that tells the verbs of a round apart: a verb's place in the round's buffer.
fn verb_key(verb: &Verb) -> u32 {
    match verb {
        Verb::Read { into, .. } | Verb::CompareSwap { into, .. } | Verb::FetchAdd { into, .. } => *into,
        Verb::Write { from, at, .. } => *from ^ (at.node.0 as u32) << 16,
        Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => 0,
    }
}
