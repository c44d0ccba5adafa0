//! What goes wrong, from a plan: clients that die or stand still, nodes that fail, messages that
//! are late.
//!
//! A fault happens at a time, or when a client has reached a *probe* for the n-th time. A probe is
//! a place in a protocol, such as "a lock may have been taken". Probes make faults hit where they
//! hurt.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::queue::{NS, Picos};
use super::world::{Event, World};
use crate::address::{Address, LINE_BYTES, LINE_WORDS, NodeId, WORD_BYTES};
use crate::ids::{ClientId, Nanos};
use crate::limits::LANES_MAX;
use crate::probes;
use crate::shm::Memory;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultKind {
    /// A client dies for ever. What it had posted has left up to some packet; the rest never does.
    Crash,
    /// A client stands still for so long, and goes on as if nothing had happened (a zombie).
    Pause(Nanos),
    /// What a client posts next to some node is that much longer on its way: a WRITE that flies.
    /// What it posts to that node later comes behind.
    Delay(Nanos),
    /// A client's machine and a memory node cannot reach each other for so long.
    Partition(Nanos),
    /// These client machines, of which bits say by what numbers they were placed
    /// ([`Sim::place`](super::Sim::place)), and a memory node cannot reach each other for so long.
    Isolate(Nanos, u64),
    /// A memory node's CPU does not apply redo logs for so long: its rings fill.
    Stall(Nanos),
    /// A memory node fails. It works again when [`Sim::restart`](super::Sim::restart) says so.
    Fail,
    /// The clock of a client's machine steps by so much.
    ClockStep(i64),
    /// The next call of a client is lost, or its answer: it is sent again after a while.
    Lose,
    /// The next call of a client arrives twice.
    Duplicate,
    /// The simulation itself does nothing. The test that has planned the fault does something by
    /// this name when it has been set off ([`Sim::injected`](super::Sim::injected)).
    Told(&'static str),
}

impl FaultKind {
    /// Name of the fault on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Crash => "crash",
            FaultKind::Pause(_) => "pause",
            FaultKind::Delay(_) => "delay",
            FaultKind::Partition(_) => "partition",
            FaultKind::Isolate(..) => "isolate",
            FaultKind::Stall(_) => "stall",
            FaultKind::Fail => "fail",
            FaultKind::ClockStep(_) => "clock-step",
            FaultKind::Lose => "lose",
            FaultKind::Duplicate => "duplicate",
            FaultKind::Told(name) => name,
        }
    }
}

/// A fault of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The probe that sets it off; the client that reaches it is the client concerned.
    pub probe: &'static str,
    /// How often it must have been reached, by anyone.
    pub nth: u64,
    /// How long after that.
    pub after: Nanos,
    /// What happens.
    pub kind: FaultKind,
    /// Only while a transaction of that client is between its first lock and its release. Otherwise
    /// the fault waits for the next client that reaches the probe.
    pub holding: bool,
}

/// A fault that has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Injected {
    /// What.
    pub kind: FaultKind,
    /// When.
    pub at: Nanos,
    /// The client concerned, if it is about one.
    pub client: Option<ClientId>,
    /// Whether a transaction of that client was between its first lock and its release.
    pub holding: bool,
}

/// A fault, with whom it concerns.
#[derive(Clone, Debug)]
pub(super) struct Happening {
    planned: Planned,
    connection: usize,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Vec<Planned>,
    due: Vec<Option<Happening>>,
    /// Machine and node that cannot reach each other until then.
    partitions: Vec<(usize, usize, Picos)>,
    /// Lines that are not kept yet: what is, and the connections whose writes it lacks.
    dirty: HashMap<Address, ([u64; LINE_WORDS], Vec<usize>)>,
    /// How often each probe was reached.
    pub(super) reached: Vec<(&'static str, u64)>,
    pub(super) injected: Vec<Injected>,
    /// Until when each lane may hold locks, by connection.
    holding: Vec<[Picos; LANES_MAX]>,
}

/// A release that has been posted is not there before this time.
const RELEASE_TAKES: Picos = 500 * NS;

impl Faults {
    pub(super) fn plan(&mut self, planned: Planned) {
        self.planned.push(planned);
    }

    pub(super) fn waiting(&self) -> usize {
        self.planned.len() + self.due.iter().flatten().count()
    }

    pub(super) fn waiting_for(&self, probe: &str) -> usize {
        self.planned.iter().filter(|planned| planned.probe == probe).count()
    }

    pub(super) fn due(&mut self, index: usize) -> Option<Happening> {
        self.due.get_mut(index)?.take()
    }

    /// Until when a machine and a node cannot reach each other.
    pub(super) fn cut_off(&self, machine: usize, node: usize, now: Picos) -> Option<Picos> {
        let mut all = self.partitions.iter();
        all.find(|(one, other, until)| (*one, *other) == (machine, node) && *until > now).map(|(.., until)| *until)
    }

    /// Words at `at` are about to be written by a connection.
    pub(super) fn dirty(&mut self, memory: &Memory, at: Address, words: Range<usize>, connection: usize) {
        let first = at.offset / WORD_BYTES as u64 + words.start as u64;
        let end = at.offset / WORD_BYTES as u64 + words.end as u64;
        for line in first / LINE_WORDS as u64..end.div_ceil(LINE_WORDS as u64) {
            let line = Address { offset: line * LINE_BYTES as u64, ..at };
            let Ok((region, start)) = memory.words(line, LINE_WORDS as u32) else { continue };
            let kept = || {
                let mut kept = [0; LINE_WORDS];
                kept.iter_mut().zip(&region[start..]).for_each(|(kept, word)| *kept = word.load(Ordering::Relaxed));
                (kept, Vec::new())
            };
            let (_, writers) = self.dirty.entry(line).or_insert_with(kept);
            if !writers.contains(&connection) {
                writers.push(connection);
            }
        }
    }

    /// What a connection has written to a node is kept from now on.
    pub(super) fn flushed(&mut self, node: NodeId, connection: usize) {
        self.dirty.retain(|line, (_, writers)| {
            if line.node == node {
                writers.retain(|writer| *writer != connection);
            }
            !writers.is_empty()
        });
    }
}

/// A client has reached a probe.
pub(super) fn probe(world: &mut World, connection: usize, lane: u8, name: &'static str) {
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

pub(super) fn happen(world: &mut World, Happening { planned, connection }: Happening) {
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
pub(super) fn fail(world: &mut World, node: usize) {
    if let Some(state) = world.nodes.get_mut(node) {
        state.down = true;
    }
}

/// It restarts: with what its medium has kept, or with nothing; and with CPUs that know nothing
/// else.
pub(super) fn restart(world: &mut World, node: usize, persistent: bool) {
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
pub(super) fn renew(world: &mut World, node: usize) {
    world.faults.dirty.retain(|line, _| usize::from(line.node.0) != node);
    world.nodes[node].life += 1;
}
