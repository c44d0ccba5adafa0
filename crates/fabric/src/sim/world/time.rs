//! Virtual time: the clocks of cores and machines, and the loop that takes one event after the
//! other.

use super::{Call, Core, Event, Step, Work, World};
use crate::ids::LaneId;
use crate::prefetch::prefetch;
use crate::probes::Phase;
use crate::round::buffer::Verb;
use crate::service::Progress;
use crate::sim::queue::{NS, Picos};

/// A CPU may pause between two of its stores. These are the longest pause, and the number of stores
/// among which there is one pause.
const BETWEEN_STORES: Picos = 200 * NS;
const BETWEEN_STORES_ONE_IN: u64 = 4;

impl World {
    /// Returns the time at which something happens that a client does now.
    pub(in crate::sim) fn clock(&self, connection: usize) -> Picos {
        self.connections[connection].core.map_or(self.now, |core| self.cores[core].clock.max(self.now))
    }

    /// Returns the clock of a client's machine, in nanoseconds.
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

    /// Makes a client's core work for `time`. Returns when it is done.
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

    /// Makes a client's core do a phase of a transaction for `records` records.
    pub(in crate::sim) fn work(&mut self, connection: usize, phase: Phase, records: usize) {
        self.charge(connection, self.costs.phases[phase as usize] * records as Picos);
    }

    /// Makes a core look for work, at this time or as soon as it can.
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

    /// Makes a core look for work at once, without an event, if it is idle.
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

    /// Whether a core's turn has come. If the core was busy meanwhile, its turn comes later.
    fn turn(&mut self, index: usize) -> bool {
        let now = self.now;
        // Cores of an earlier drive may have events left.
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

    /// Lets the next event happen.
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

    /// Prefetches what the next events need, one step further for each of them. The events of a
    /// large cluster touch more memory than the caches hold. They would wait for memory longer than
    /// they work.
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

    /// Names the cores and lanes that go on with the event after the next one.
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

    /// Sometimes pauses the CPU of a memory node between two of its stores. The next effects of
    /// verbs happen before it goes on. Nothing else happens meanwhile, above all no client's turn
    /// and no other call. So this is only a slow CPU.
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

    /// Whether an event belongs to verbs that no CPU of a memory node executes.
    fn is_verbs(&self, event: &Event) -> bool {
        // The round whose call is being served has no flight here meanwhile.
        let flight = |index: u32| self.flights[index as usize].as_deref();
        match *event {
            // When a call arrives, its handler must say what the call will cost, and the handler is
            // busy.
            Event::Arrive { flight: index, group } => {
                flight(index).is_some_and(|flight| !flight.groups[usize::from(group)].has_calls)
            }
            Event::Piece { flight: index, verb, .. } => flight(index)
                .is_some_and(|flight| !matches!(flight.buffer.verbs()[usize::from(verb)], Verb::Call { .. })),
            Event::Done { .. } | Event::Turn { .. } | Event::Service { .. } | Event::Fault { .. } => false,
        }
    }

    /// Records that the CPU of a memory node has done its work.
    pub(in crate::sim) fn worked(&mut self, work: Work) {
        match work {
            Work::Call(Call { flight, index, group, result, .. }) => {
                self.piece_over(flight, index, group.into(), result)
            }
            Work::Service { index, running, progress } => self.service_stepped(index, running, progress),
        }
    }

    /// Whether nothing is left to happen except that services of memory nodes look for work.
    pub(in crate::sim) fn is_quiet(&self) -> bool {
        self.connections.iter().all(|connection| connection.under_way.is_empty() || connection.dead)
    }
}
