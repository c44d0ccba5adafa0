//! The beginning of a round's path: a round is posted, and the client's core and NIC work until its
//! groups leave.

use std::cell::Cell;

use super::{Connection, Event, Flight, Group, World};
use crate::address::WORD_BYTES;
use crate::error::{FabricError, Fault};
use crate::prng::splitmix;
use crate::round::buffer::{RoundBuffer, Verb};
use crate::shm::execute_verb;
use crate::sim::costs::occupy;
use crate::sim::profile::Path;
use crate::sim::queue::{NS, Picos};
use crate::transport::Posted;

impl World {
    pub(in crate::sim) fn post(&mut self, connection: usize, mut buffer: Box<RoundBuffer>) -> Posted {
        if self.instant {
            let outcome = self.execute_now(connection, &mut buffer);
            buffer.finish(outcome);
            return Posted::Done(buffer);
        }
        let now = self.clock(connection) / NS;
        if let Some(recording) = &mut self.recording {
            recording.post(connection, now, &mut buffer);
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
            // A client that has died posts nothing more.
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

    pub(super) fn flight(&mut self, index: u32) -> &mut Flight {
        let Some(flight) = &mut self.flights[index as usize] else { unreachable!("events do not outlive their round") };
        flight
    }

    /// Sends the first part of a round.
    pub(super) fn launch(&mut self, index: u32) {
        let flight = self.flight(index);
        let connection = flight.connection as usize;
        if flight.buffer.has_fences() {
            self.connections[connection].fenced += 1;
        }
        self.segment(index, 0);
    }

    /// Sends the verbs from `from` on, up to a fence.
    pub(super) fn segment(&mut self, index: u32, from: usize) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        let connection = flight.connection as usize;
        let Flight { buffer, groups, .. } = &mut *flight;
        let (verbs, fenced) = (buffer.verbs(), buffer.has_fences());
        groups.clear();
        let mut end = from;
        while let Some(verb) = verbs.get(end) {
            match verb.node() {
                // A fence with no verbs in front of it has nothing to wait for.
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

    /// Handles the moment at which the last part of a fenced round has gone out: rounds that waited
    /// for it may go.
    pub(super) fn unfence(&mut self, connection: usize) {
        let client = &mut self.connections[connection];
        client.fenced -= 1;
        while self.connections[connection].fenced == 0 {
            let Some(next) = self.connections[connection].held.pop_front() else { return };
            self.launch(next);
        }
    }

    /// Sends one group: the work of the client's core and NIC. Returns when the group is at the
    /// node.
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
            // The core waits for its loads. The loads of one round overlap.
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
            // There is no such node, and the NIC says so at once.
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
            // The request is lost: the client has no answer in time, and sends it again.
            client.lose_calls -= 1;
            self.statistics.resent_calls += 1;
            arrival += costs.resend;
        }
        // The packets of one connection arrive in the order in which they were sent.
        floor.arrival = arrival.max(floor.arrival + 1);
        floor.arrival
    }
}

/// Returns the payload bytes that a verb sends.
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

/// Returns the payload bytes that come back for a verb, without the answer of a call.
fn bytes_back(verb: &Verb) -> u32 {
    let words = match verb {
        Verb::Read { words, .. } => *words,
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 1,
        Verb::Write { .. } | Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => 0,
    };
    words * WORD_BYTES as u32
}
