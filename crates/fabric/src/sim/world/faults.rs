//! Carries out the faults of a simulated cluster: clients that die, and the faults of a plan.

use std::sync::atomic::Ordering;

use super::{Event, World};
use crate::address::{Address, LINE_WORDS, NodeId};
use crate::limits::LANES_MAX;
use crate::probes;
use crate::sim::faults::{FaultKind, Happening, Injected, Planned};
use crate::sim::queue::{NS, Picos};

/// The shortest time from the posting of a release to its arrival.
const RELEASE_TAKES: Picos = 500 * NS;

impl World {
    pub(super) fn fault_due(&mut self, index: usize) {
        let Some(happening) = self.faults.due(index) else { return };
        self.happen(happening);
    }

    /// Kills a client's machine now. What the client has posted may have left, up to some packet.
    pub(in crate::sim) fn kill(&mut self, connection: usize) {
        if self.connections[connection].dead {
            return;
        }
        for node in 0..self.nodes.len() {
            let last = self.connections[connection].floors[node].arrival;
            let ahead = last.saturating_sub(self.now);
            let cut = self.now + if ahead == 0 { 0 } else { self.prng.below(ahead + 2) };
            self.connections[connection].floors[node].cut = cut;
        }
        self.connections[connection].dead = true;
        if let Some(core) = self.connections[connection].core {
            self.stop_core(core);
        }
    }

    /// Stops a core for good.
    pub(in crate::sim) fn stop_core(&mut self, core: usize) {
        if !std::mem::replace(&mut self.cores[core].stopped, true) {
            self.running_cores -= 1;
        }
    }

    /// Records that a client has reached a probe, and sets off planned faults.
    pub(in crate::sim) fn reach_probe(&mut self, connection: usize, lane: u8, name: &'static str) {
        let now = self.clock(connection);
        let faults = &mut self.faults;
        // There are few probes, and they are reached often.
        let at = faults.reached.iter().position(|(reached, _)| *reached == name).unwrap_or_else(|| {
            faults.reached.push((name, 0));
            faults.reached.len() - 1
        });
        let (_, reached) = &mut faults.reached[at];
        *reached += 1;
        let reached = *reached;
        let holding = match name {
            probes::LOCKS => Some(Picos::MAX),
            probes::INSTALLED | probes::RELEASED => Some(now + RELEASE_TAKES),
            _ => None,
        };
        if let Some(until) = holding {
            if faults.holding.len() <= connection {
                faults.holding.resize(connection + 1, [0; LANES_MAX]);
            }
            faults.holding[connection][usize::from(lane)] = until;
        }
        let due = |planned: &mut Planned| planned.probe == name && planned.nth <= reached;
        let set_off: Vec<Planned> = faults.planned.extract_if(.., due).collect();
        for planned in set_off {
            let index = self.faults.due.len() as u32;
            let at = now + planned.after * NS;
            self.faults.due.push(Some(Happening { planned, connection }));
            self.at(at, Event::Fault { index });
        }
    }

    /// Carries out a fault, or keeps it for another client if it does not fit this one.
    fn happen(&mut self, Happening { planned, connection }: Happening) {
        let now = self.now;
        let kind = planned.kind;
        // The fault's client may have connected anew since.
        let core = self.connections[connection].core.and_then(|core| self.cores.get(core));
        let connection = core.and_then(|core| core.connection).unwrap_or(connection);
        let holding = self.faults.holding.get(connection).is_some_and(|lanes| lanes.iter().any(|until| *until >= now));
        if (planned.holding && !holding) || self.connections[connection].dead {
            return self.faults.planned.push(planned);
        }
        let machine = self.connections[connection].machine;
        let node = self.prng.below(self.nodes.len() as u64) as usize;
        let mut client = Some(self.connections[connection].client);
        match kind {
            FaultKind::Crash => self.kill(connection),
            FaultKind::Pause(time) => {
                if let Some(core) = self.connections[connection].core {
                    self.cores[core].paused_until = now + time * NS;
                }
            }
            FaultKind::Delay(time) => self.connections[connection].floors[node].delay = time * NS,
            FaultKind::Partition(time) => self.faults.partitions.push((machine, node, now + time * NS)),
            FaultKind::Isolate(time, places) => {
                for place in (0..u64::BITS as usize).filter(|place| places >> place & 1 != 0) {
                    let machine = self.machine_of(place);
                    self.faults.partitions.push((machine, node, now + time * NS));
                }
                client = None;
            }
            FaultKind::Stall(time) => {
                self.nodes[node].stalled_until = now + time * NS;
                client = None;
            }
            FaultKind::Fail => {
                self.fail_node(node);
                client = None;
            }
            FaultKind::ClockStep(time) => self.step_clock(machine, time),
            FaultKind::Lose => self.connections[connection].lose_calls += 1,
            FaultKind::Duplicate => self.connections[connection].duplicate_calls += 1,
            FaultKind::Told(_) => {}
        }
        self.faults.injected.push(Injected { kind, at: now / NS, client, holding });
    }

    /// Makes a memory node fail.
    pub(in crate::sim) fn fail_node(&mut self, node: usize) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.down = true;
        }
    }

    /// Restarts a memory node, with what its medium has kept or with nothing. Its CPUs know nothing
    /// else.
    pub(in crate::sim) fn restart_node(&mut self, node: usize, persistent: bool) {
        let number = NodeId(node as u16);
        if persistent {
            let mut lines: Vec<Address> =
                self.faults.dirty.keys().filter(|line| line.node == number).copied().collect();
            // The order of the hash map would differ from run to run, so the lines are sorted.
            lines.sort_unstable_by_key(|line| (line.region.0, line.offset));
            for line in lines {
                let Some((kept, _)) = self.faults.dirty.remove(&line) else { continue };
                // A line that was not flushed may have been kept nevertheless.
                if self.prng.below(2) == 0
                    && let Ok((region, start)) = self.memory.words(line, LINE_WORDS as u32)
                {
                    region[start..].iter().zip(kept).for_each(|(word, kept)| word.store(kept, Ordering::Relaxed));
                }
            }
        } else {
            for region in 0..crate::limits::REGIONS_PER_NODE_MAX as u16 {
                if let Some(region) = self.memory.region(number, crate::address::RegionId(region)) {
                    region.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
                }
            }
        }
        if let Some(answering) = self.memory.answering(number) {
            answering.restart();
        }
        self.restart_services(node);
        self.nodes[node].down = false;
        self.nodes[node].life += 1;
    }

    /// Erases a memory node, and cancels what was on its way to it. Connections from before are no
    /// longer connected to it.
    pub(in crate::sim) fn renew_node(&mut self, node: usize) {
        self.faults.dirty.retain(|line, _| usize::from(line.node.0) != node);
        self.nodes[node].life += 1;
    }
}
