//! The end of a round's path: an answer is back at the client, and the round goes on behind its
//! fence or has completed.

use std::sync::atomic::Ordering;

use super::{Flight, World};
use crate::error::FabricError;
use crate::ids::{LaneId, Ticket};
use crate::round::buffer::RoundBuffer;
use crate::sim::queue::{NS, Picos};

impl World {
    /// Fails a group: its verbs will not be done.
    pub(super) fn fail_group(
        &mut self,
        mut flight: Box<Flight>,
        index: u32,
        group: usize,
        error: FabricError,
        at: Picos,
    ) {
        flight.outcome = flight.outcome.and(Err(error));
        flight.groups[group].failed = true;
        let back = at + self.costs.wire + self.costs.completion;
        self.group_over(&mut flight, index, back);
        self.flights[index as usize] = Some(flight);
    }

    /// Handles the moment at which all verbs that were under way are done.
    pub(super) fn done(&mut self, index: u32) {
        let flight = self.flight(index);
        let (fenced, end) = (flight.buffer.has_fences(), usize::from(flight.end));
        let more = end < flight.buffer.verbs().len();
        let (failed, connection) = (flight.outcome.is_err(), flight.connection as usize);
        if more && !failed && !self.connections[connection].dead {
            return self.segment(index, end + 1);
        }
        // The fence was lifted when the last part went out, unless there was no such part.
        self.complete(index, fenced && more);
    }

    /// Completes a round.
    pub(super) fn complete(&mut self, index: u32, still_fenced: bool) {
        let Some(mut flight) = self.flights[index as usize].take() else { return };
        self.free_flights.push(index);
        let connection = flight.connection as usize;
        flight.buffer.finish(flight.outcome);
        self.spare_groups.push(std::mem::take(&mut flight.groups));
        if let Some(recording) = &mut self.recording {
            recording.complete(connection, flight.ticket, self.now / NS);
        }
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

    pub(in crate::sim) fn take(&mut self, connection: usize, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        let completed = &mut self.connections[connection].completed;
        let at = completed.iter().position(|(done, ..)| *done == ticket)?;
        let (_, buffer, time) = completed.swap_remove(at);
        self.charge(connection, time);
        Some(buffer)
    }

    pub(in crate::sim) fn orphan(&mut self, connection: usize, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        if let Some(buffer) = self.take(connection, ticket) {
            return Some(buffer);
        }
        let under_way = &self.connections[connection].under_way;
        let (_, index) = *under_way.iter().rev().find(|(under_way, _)| *under_way == ticket)?;
        let flight = self.flights[index as usize].as_mut()?;
        flight.orphaned = true;
        None
    }

    /// Collects what an endpoint is told when it polls. The vectors must be empty.
    pub(in crate::sim) fn news(
        &mut self,
        connection: usize,
        ready: &mut Vec<LaneId>,
        reclaimed: &mut Vec<Box<RoundBuffer>>,
    ) {
        let client = &mut self.connections[connection];
        client.idle.store(client.core.is_some(), Ordering::Relaxed);
        std::mem::swap(&mut client.ready, ready);
        std::mem::swap(&mut client.reclaimed, reclaimed);
    }
}
