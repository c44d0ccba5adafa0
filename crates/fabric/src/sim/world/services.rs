//! The work that CPUs of memory nodes do on their own: services look for work, and nap between.

use super::{Event, RunningService, World};
use crate::address::NodeId;
use crate::service::{self, Progress, Service, ServiceStop};
use crate::sim::queue::{NS, Picos};

/// The shortest and the longest nap of a memory node's services.
const NAP_MIN: Picos = service::NAP_MIN.as_nanos() as Picos * NS;
const NAP_MAX: Picos = service::NAP_MAX.as_nanos() as Picos * NS;
/// CPU time of a service's step that has found work.
const SERVICE_STEP: Picos = 1_000 * NS;

impl World {
    pub(in crate::sim) fn serve(&mut self, node: usize, stop: ServiceStop, service: Box<dyn Service>) {
        let index = self.services.len() as u32;
        let at = self.now + NAP_MIN;
        self.services.push(Some(RunningService { node, stop, service, nap: NAP_MIN }));
        self.queue.push(at, Event::Service { index });
    }

    /// Takes a service whose nap is over, if it is to be stepped.
    pub(super) fn step_service(&mut self, index: usize) -> Option<RunningService> {
        let running = self.services[index].take_if(|running| {
            let node = &self.nodes[running.node];
            running.stop.requested() || !(node.down || node.stalled_until > self.now)
        });
        if running.is_none()
            && let Some(standing) = &self.services[index]
        {
            let at = self.nodes[standing.node].stalled_until.max(self.now + NAP_MAX);
            self.queue.push(at, Event::Service { index: index as u32 });
        }
        running.filter(|running| !running.stop.requested())
    }

    pub(super) fn service_stepped(&mut self, index: u32, mut running: RunningService, progress: Progress) {
        let pause = match progress {
            Progress::Behind => SERVICE_STEP,
            Progress::Worked => {
                running.nap = NAP_MIN;
                NAP_MIN
            }
            Progress::Idle => {
                running.nap = (running.nap * 2).min(NAP_MAX);
                running.nap
            }
        };
        if progress != Progress::Idle {
            running.stop.add_cpu_ns(SERVICE_STEP / NS);
            self.occupy_idlest(running.node, SERVICE_STEP);
            if let Some(recording) = &mut self.recording {
                recording.served.push((NodeId(running.node as u16), self.now / NS));
            }
        }
        self.services[index as usize] = Some(running);
        self.queue.push(self.now + pause, Event::Service { index });
    }

    /// Restarts the services of a node.
    pub(in crate::sim) fn restart_services(&mut self, node: usize) {
        for running in self.services.iter_mut().flatten().filter(|running| running.node == node) {
            running.service.restart();
            running.nap = NAP_MIN;
        }
    }

    /// Steps all services until none finds work.
    pub(in crate::sim) fn settle_services(&mut self) {
        loop {
            let mut worked = false;
            for running in self.services.iter_mut().flatten() {
                if !running.stop.requested() && !self.nodes[running.node].down {
                    worked |= running.service.step() != Progress::Idle;
                }
            }
            if !worked {
                return;
            }
        }
    }

    pub(in crate::sim) fn is_persistent(&self, node: usize) -> bool {
        self.nodes[node].medium.persistent
    }
}
