//! What goes wrong, from a plan: clients that die or stand still, nodes that fail, messages that
//! are late.
//!
//! A fault happens at a time, or when a client has reached a *probe* for the n-th time. A probe is
//! a place in a protocol, such as "a lock may have been taken". Probes make faults hit where they
//! hurt.

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
    pub(super) planned: Planned,
    pub(super) connection: usize,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) planned: Vec<Planned>,
    pub(super) due: Vec<Option<Happening>>,
    /// Machine and node that cannot reach each other until then.
    pub(super) partitions: Vec<(usize, usize, Picos)>,
    /// Lines that are not kept yet: what is, and the connections whose writes it lacks.
    pub(super) dirty: HashMap<Address, ([u64; LINE_WORDS], Vec<usize>)>,
    /// How often each probe was reached.
    pub(super) reached: Vec<(&'static str, u64)>,
    pub(super) injected: Vec<Injected>,
    /// Until when each lane may hold locks, by connection.
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
