//! What goes wrong in a simulated cluster: clients that die, and what a plan has happen.

use std::sync::atomic::Ordering;

use super::{Event, World};
use crate::address::{Address, LINE_WORDS, NodeId};
use crate::limits::LANES_MAX;
use crate::probes;
use crate::sim::faults::{FaultKind, Happening, Injected, Planned};
use crate::sim::queue::{NS, Picos};

/// A release that has been posted is not there before this time.
const RELEASE_TAKES: Picos = 500 * NS;

impl World {
    pub(super) fn fault_due(&mut self, index: usize) {
        let Some(happening) = self.faults.due(index) else { return };
        happen(self, happening);
    }

    /// A client's machine dies now: what it has posted may have left, up to some packet.
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

    /// A core does nothing any more.
    pub(in crate::sim) fn stop_core(&mut self, core: usize) {
        if !std::mem::replace(&mut self.cores[core].stopped, true) {
            self.running_cores -= 1;
        }
    }
}

/// A client has reached a probe.
pub(in crate::sim) fn probe(world: &mut World, connection: usize, lane: u8, name: &'static str) {
    let now = world.clock(connection);
    let faults = &mut world.faults;
    // There are few, and they come often.
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
        let index = world.faults.due.len() as u32;
        let at = now + planned.after * NS;
        world.faults.due.push(Some(Happening { planned, connection }));
        world.at(at, Event::Fault { index });
    }
}

fn happen(world: &mut World, Happening { planned, connection }: Happening) {
    let now = world.now;
    let kind = planned.kind;
    // Its client may have connected anew since.
    let core = world.connections[connection].core.and_then(|core| world.cores.get(core));
    let connection = core.and_then(|core| core.connection).unwrap_or(connection);
    let holding = world.faults.holding.get(connection).is_some_and(|lanes| lanes.iter().any(|until| *until >= now));
    if (planned.holding && !holding) || world.connections[connection].dead {
        return world.faults.planned.push(planned);
    }
    let machine = world.connections[connection].machine;
    let node = world.prng.below(world.nodes.len() as u64) as usize;
    let mut client = Some(world.connections[connection].client);
    match kind {
        FaultKind::Crash => world.kill(connection),
        FaultKind::Pause(time) => {
            if let Some(core) = world.connections[connection].core {
                world.cores[core].paused_until = now + time * NS;
            }
        }
        FaultKind::Delay(time) => world.connections[connection].floors[node].delay = time * NS,
        FaultKind::Partition(time) => world.faults.partitions.push((machine, node, now + time * NS)),
        FaultKind::Isolate(time, places) => {
            for place in (0..u64::BITS as usize).filter(|place| places >> place & 1 != 0) {
                let machine = world.machine_of(place);
                world.faults.partitions.push((machine, node, now + time * NS));
            }
            client = None;
        }
        FaultKind::Stall(time) => {
            world.nodes[node].stalled_until = now + time * NS;
            client = None;
        }
        FaultKind::Fail => {
            fail(world, node);
            client = None;
        }
        FaultKind::ClockStep(time) => world.step_clock(machine, time),
        FaultKind::Lose => world.connections[connection].lose_calls += 1,
        FaultKind::Duplicate => world.connections[connection].duplicate_calls += 1,
        FaultKind::Told(_) => {}
    }
    world.faults.injected.push(Injected { kind, at: now / NS, client, holding });
}

/// A memory node fails.
pub(in crate::sim) fn fail(world: &mut World, node: usize) {
    if let Some(state) = world.nodes.get_mut(node) {
        state.down = true;
    }
}

/// It restarts: with what its medium has kept, or with nothing; and with CPUs that know nothing
/// else.
pub(in crate::sim) fn restart(world: &mut World, node: usize, persistent: bool) {
    let number = NodeId(node as u16);
    if persistent {
        let mut lines: Vec<Address> = world.faults.dirty.keys().filter(|line| line.node == number).copied().collect();
        // The map has no order of its own that a seed would give again.
        lines.sort_unstable_by_key(|line| (line.region.0, line.offset));
        for line in lines {
            let Some((kept, _)) = world.faults.dirty.remove(&line) else { continue };
            // What was not flushed may have been kept all the same.
            if world.prng.below(2) == 0
                && let Ok((region, start)) = world.memory.words(line, LINE_WORDS as u32)
            {
                region[start..].iter().zip(kept).for_each(|(word, kept)| word.store(kept, Ordering::Relaxed));
            }
        }
    } else {
        for region in 0..crate::limits::REGIONS_PER_NODE_MAX as u16 {
            if let Some(region) = world.memory.region(number, crate::address::RegionId(region)) {
                region.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
        }
    }
    if let Some(answering) = world.memory.answering(number) {
        answering.restart();
    }
    world.restart_services(node);
    world.nodes[node].down = false;
    world.nodes[node].life += 1;
}

/// What it had is given up, and what was on its way to it: connections of before are none to it any
/// more.
pub(in crate::sim) fn renew(world: &mut World, node: usize) {
    world.faults.dirty.retain(|line, _| usize::from(line.node.0) != node);
    world.nodes[node].life += 1;
}
