//! Virtual time: the clocks of cores and machines, and the loop that takes one event after the
//! other.

use super::{Call, Core, Event, Step, Work, World};
use crate::ids::LaneId;
use crate::prefetch::prefetch;
use crate::round::buffer::Verb;
use crate::service::Progress;
use crate::sim::queue::{NS, Picos};

/// A CPU may stand still between two of its stores: for how long at most, and how often. The latter
/// is the number of stores to one that it stands still at.
const BETWEEN_STORES: Picos = 200 * NS;
const BETWEEN_STORES_ONE_IN: u64 = 4;

impl World {
    /// When something happens that a client does now.
    pub(in crate::sim) fn clock(&self, connection: usize) -> Picos {
        self.connections[connection].core.map_or(self.now, |core| self.cores[core].clock.max(self.now))
    }

    /// The clock of a client's machine, in nanoseconds.
    pub(in crate::sim) fn clock_of(&self, connection: usize) -> u64 {
        let machine = &self.machines[self.connections[connection].machine];
        let now = self.clock(connection) / NS;
        let drift = (i128::from(now) * i128::from(machine.drift) / 1_000_000_000) as i64;
        now.saturating_add_signed(machine.offset.saturating_add(drift))
    }

    pub(in crate::sim) fn step_clock(&mut self, machine: usize, by: i64) {
        let offset = &mut self.machines[machine].offset;
        *offset = offset.saturating_add(by);
    }

    /// A client's core works for so long; when it has.
    pub(in crate::sim) fn charge(&mut self, connection: usize, time: Picos) -> Picos {
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
    pub(in crate::sim) fn wake(&mut self, core: usize, at: Picos) {
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
    pub(super) fn wake_now(&mut self, core: usize) {
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

    pub(in crate::sim) fn at(&mut self, at: Picos, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    pub(in crate::sim) fn next_at(&mut self) -> Option<Picos> {
        self.queue.next_at()
    }

    /// The next event happens.
    pub(in crate::sim) fn step(&mut self) -> Step {
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
    pub(in crate::sim) fn coming(&self, mut lane: impl FnMut(usize, LaneId)) {
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
    pub(in crate::sim) fn meanwhile(&mut self) {
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
    pub(in crate::sim) fn worked(&mut self, work: Work) {
        match work {
            Work::Call(Call { flight, index, group, result, .. }) => {
                self.piece_over(flight, index, group.into(), result)
            }
            Work::Service { index, running, progress } => self.service_stepped(index, running, progress),
        }
    }

    /// Whether nothing is left to happen but memory nodes that look for work.
    pub(in crate::sim) fn is_quiet(&self) -> bool {
        self.connections.iter().all(|connection| connection.under_way.is_empty() || connection.dead)
    }
}
