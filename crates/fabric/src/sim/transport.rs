//! A client's side of the simulation.

use std::cell::RefCell;

use super::Sim;
use super::faults;
use super::queue::NS;
use crate::round::RoundBuffer;
use crate::transport::{Capabilities, LaneId, Nanos, Posted, Ticket, Transport};

/// Polls of a simulation that nobody drives, without anything to do, after which it is taken for deadlocked.
const IDLE_POLLS_MAX: u64 = 10_000_000;

pub(super) struct SimTransport {
    pub(super) sim: Sim,
    pub(super) connection: usize,
    /// Empty but while polling: so that a poll allocates nothing.
    pub(super) news: RefCell<(Vec<LaneId>, Vec<Box<RoundBuffer>>)>,
}

impl Transport for SimTransport {
    fn post(&self, round: Box<RoundBuffer>) -> Posted {
        self.sim.world().post(self.connection, round)
    }

    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.sim.world().take(self.connection, ticket)
    }

    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.sim.world().orphan(self.connection, ticket)
    }

    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>)) {
        let mut news = self.news.take();
        {
            let mut world = self.sim.world();
            if !world.driven && !world.instant {
                world.step();
                if world.is_quiet() {
                    world.idle_polls += 1;
                    assert!(
                        world.idle_polls < IDLE_POLLS_MAX,
                        "deadlock in a simulation: every coroutine waits, and nothing is under way"
                    );
                } else {
                    world.idle_polls = 0;
                }
            }
            world.news(self.connection, &mut news.0, &mut news.1);
        }
        news.0.drain(..).for_each(ready);
        news.1.drain(..).for_each(reclaimed);
        self.news.replace(news);
    }

    fn now(&self) -> Nanos {
        self.sim.world().clock(self.connection) / NS
    }

    fn clock(&self) -> Nanos {
        self.sim.world().clock_of(self.connection)
    }

    fn idle(&self, until: Option<Nanos>) {
        let mut world = self.sim.world();
        let Some(until) = until.map(|until| until.saturating_mul(NS)) else { return };
        if world.instant {
            // Time passes for sleepers only; what is under way and what memory nodes have to do gets done meanwhile.
            while world.next_at().is_some_and(|at| at <= until) {
                world.step();
            }
            world.now = world.now.max(until);
            world.settle_services();
        } else if world.next_at().is_none_or(|at| at > until) {
            world.now = world.now.max(until);
        } else {
            world.step();
        }
        world.idle_polls = 0;
    }

    fn capabilities(&self) -> Capabilities {
        self.sim.capabilities
    }

    fn charge(&self, time: Nanos) {
        self.sim.world().charge(self.connection, time * NS);
    }

    fn probes(&self) -> bool {
        true
    }

    fn probe(&self, lane: LaneId, name: &'static str) {
        faults::probe(&mut self.sim.world(), self.connection, lane.0, name);
    }
}
