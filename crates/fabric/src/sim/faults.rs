//! The faults of a simulation, from a plan: clients die or pause, nodes fail, messages are late.
//!
//! A fault happens at a time, or when a client has reached a *probe* for the n-th time. A probe is
//! a place in a protocol, such as "a lock may have been taken". With probes, faults hit where they
//! do the most harm.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::queue::Picos;
use crate::address::{Address, LINE_BYTES, LINE_WORDS, NodeId, WORD_BYTES};
use crate::ids::{ClientId, Nanos};
use crate::limits::LANES_MAX;
use crate::shm::Memory;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultKind {
    /// A client dies for ever. What it has posted has left up to some packet. The rest never
    /// leaves.
    Crash,
    /// A client pauses for this time, and then goes on as if nothing had happened (a zombie).
    Pause(Nanos),
    /// The next group of verbs that a client posts to some node takes this much longer to arrive,
    /// as a WRITE that is delayed in the network. What the client posts to that node later arrives
    /// after it.
    Delay(Nanos),
    /// A client's machine and a memory node cannot reach each other for this time.
    Partition(Nanos),
    /// Several client machines and a memory node cannot reach each other for this time. The bits
    /// say by which numbers the machines were placed ([`Sim::place`](super::Sim::place)).
    Isolate(Nanos, u64),
    /// A memory node's CPU does not apply redo logs for this time, so its rings fill.
    Stall(Nanos),
    /// A memory node fails. It works again after [`Sim::restart`](super::Sim::restart).
    Fail,
    /// The clock of a client's machine steps by this number of nanoseconds.
    ClockStep(i64),
    /// The next call of a client, or its answer, is lost. The client sends it again after a while.
    Lose,
    /// The next call of a client arrives twice.
    Duplicate,
    /// The simulation itself does nothing. The test that has planned the fault sees that it has
    /// been set off ([`Sim::injected`](super::Sim::injected)), and then does something of this
    /// name.
    Told(&'static str),
}

impl FaultKind {
    /// Returns the name of the fault on the command line.
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
    /// The probe that sets the fault off. The fault hits the client that reaches the probe.
    pub probe: &'static str,
    /// How often all clients together must have reached the probe.
    pub nth: u64,
    /// The time from that moment to the fault.
    pub after: Nanos,
    /// The kind of fault.
    pub kind: FaultKind,
    /// Whether a transaction of that client must be between its first lock and its release. If it
    /// is not, the fault waits for the next client that reaches the probe.
    pub holding: bool,
}

/// A fault that has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Injected {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The time at which it happened.
    pub at: Nanos,
    /// The client that the fault concerns, if it concerns one.
    pub client: Option<ClientId>,
    /// Whether a transaction of that client was between its first lock and its release.
    pub holding: bool,
}

/// A fault that is about to happen, with the connection of the client that it concerns.
#[derive(Clone, Debug)]
pub(super) struct Happening {
    pub(super) planned: Planned,
    pub(super) connection: usize,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) planned: Vec<Planned>,
    pub(super) due: Vec<Option<Happening>>,
    /// Machines and nodes that cannot reach each other, and until when.
    pub(super) partitions: Vec<(usize, usize, Picos)>,
    /// Lines whose present content a loss of power would lose: the content that is kept, and the
    /// connections whose writes it lacks.
    pub(super) dirty: HashMap<Address, ([u64; LINE_WORDS], Vec<usize>)>,
    /// How often each probe was reached.
    pub(super) reached: Vec<(&'static str, u64)>,
    pub(super) injected: Vec<Injected>,
    /// For each connection, until when each of its lanes may hold locks.
    pub(super) holding: Vec<[Picos; LANES_MAX]>,
}

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

    /// Returns until when a machine and a node cannot reach each other. `None` if they can.
    pub(super) fn cut_off(&self, machine: usize, node: usize, now: Picos) -> Option<Picos> {
        let mut all = self.partitions.iter();
        all.find(|(one, other, until)| (*one, *other) == (machine, node) && *until > now).map(|(.., until)| *until)
    }

    /// Records that a connection is about to write words at `at`.
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

    /// Records that what a connection has written to a node is kept from now on.
    pub(super) fn flushed(&mut self, node: NodeId, connection: usize) {
        self.dirty.retain(|line, (_, writers)| {
            if line.node == node {
                writers.retain(|writer| *writer != connection);
            }
            !writers.is_empty()
        });
    }
}
