//! The transport of the simulated backend: a client's side of the simulation.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Sim;
use super::queue::NS;
use crate::ids::{LaneId, Nanos, Ticket};
use crate::probes::Phase;
use crate::round::buffer::RoundBuffer;
use crate::transport::{Capabilities, Posted, Transport};

/// Polls in which there was nothing to do, in a simulation that is not driven, after which it is
/// taken for deadlocked.
const IDLE_POLLS_MAX: u64 = 10_000_000;

pub(super) struct SimTransport {
    pub(super) sim: Sim,
    pub(super) connection: usize,
    /// Whether there is nothing to poll for.
    pub(super) idle: Arc<AtomicBool>,
    /// Vectors that are empty except during a poll. They are kept so that a poll does not allocate.
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
        if self.idle.load(Ordering::Relaxed) {
            return;
        }
        let mut world = self.sim.world();
        if !world.driven && !world.instant {
            drop(world);
            self.sim.step();
            world = self.sim.world();
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
        let mut news = self.news.take();
        world.news(self.connection, &mut news.0, &mut news.1);
        drop(world);
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
        let Some(until) = until.map(|until| until.saturating_mul(NS)) else { return };
        let due = || self.sim.world().next_at().is_some_and(|at| at <= until);
        let instant = self.sim.world().instant;
        if instant {
            // Time passes for sleepers only. Verbs under way, and the work of memory nodes, get
            // done meanwhile.
            while due() {
                self.sim.step();
            }
        } else if due() {
            self.sim.step();
            self.sim.world().idle_polls = 0;
            return;
        }
        let mut world = self.sim.world();
        world.now = world.now.max(until);
        world.idle_polls = 0;
        if instant {
            world.settle_services();
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.sim.capabilities
    }

    fn charge(&self, time: Nanos) {
        self.sim.world().charge(self.connection, time * NS);
    }

    fn work(&self, phase: Phase, records: usize) {
        self.sim.world().work(self.connection, phase, records);
    }

    fn probes(&self) -> bool {
        true
    }

    fn probe(&self, lane: LaneId, name: &'static str) {
        self.sim.world().reach_probe(self.connection, lane.0, name);
    }
}
