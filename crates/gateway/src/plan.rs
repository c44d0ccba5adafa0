//! Plans: commands of one connection that run as one transaction.
//!
//! A connection's commands are planned in order. What is about the connection or the server takes
//! effect then, and its reply is kept for its place. What is about keys runs later, perhaps
//! several times, because its transaction may abort.

use std::collections::BTreeMap;
use std::ops::Range;

use remora_redis::Command;
use remora_resp::Version;

use crate::once::Claim;

/// The number of steps that a plan has room for at first.
const STEPS: usize = 16;

/// Commands that run as one transaction, with their replies in order.
#[derive(Debug, Default)]
pub(crate) struct Plan<'b> {
    /// The arguments of the steps, one step behind the other.
    pub(crate) args: Vec<&'b [u8]>,
    /// The commands that were planned, in order.
    pub(crate) commands: Vec<Planned>,
    /// The replies that are ready.
    pub(crate) replies: Vec<u8>,
    pub(crate) steps: Vec<Step>,
    /// The token of the only step, if it is applied at most once.
    pub(crate) claim: Option<Claim>,
}

/// A command that was planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// The number of the command: [`remora_redis::table::number_of`].
    pub(crate) number: usize,
    /// The place of its first argument among the plan's.
    pub(crate) start: usize,
    /// Whether it was refused before it was looked at.
    pub(crate) is_rejected: bool,
}

/// A step of a plan: what writes one reply, or several that are ready.
#[derive(Debug)]
pub(crate) enum Step {
    /// Replies that are ready: their place among the plan's replies.
    Ready(Range<usize>),
    /// A command of keys. Its arguments are at this place among the plan's.
    Keys { command: &'static Command, args: Range<usize>, database: u8, version: Version },
    /// Commands that were queued, and the keys that were watched.
    Exec {
        queue: Vec<Queued>,
        watched: Watched,
        version: Version,
        /// Whether nothing is applied if a command fails.
        rolls_back: bool,
    },
}

/// A command that `MULTI` has queued, when `EXEC` plans it.
#[derive(Debug)]
pub(crate) enum Queued {
    /// A reply that is ready.
    Ready(Vec<u8>),
    /// A command of keys.
    Keys { command: &'static Command, args: Vec<Vec<u8>>, database: u8 },
}

/// The keys that a connection watches, with their databases. Each has the stamp that its record
/// had, or `None` if the key was absent or had expired.
pub(crate) type Watched = BTreeMap<(u8, Vec<u8>), Option<u64>>;

/// Returns arguments that outlive the bytes that the client has sent.
pub(crate) fn owned(args: &[&[u8]]) -> Vec<Vec<u8>> {
    args.iter().map(|argument| argument.to_vec()).collect()
}

/// Returns arguments as commands take them.
pub(crate) fn borrowed(args: &[Vec<u8>]) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}

impl Plan<'_> {
    /// Makes a plan that has room for the steps of most packets.
    pub(crate) fn new() -> Self {
        let (args, steps) = (Vec::with_capacity(4 * STEPS), Vec::with_capacity(STEPS));
        Plan { args, commands: Vec::with_capacity(STEPS), steps, ..Plan::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn has_exec(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Exec { .. }))
    }

    /// Adds a reply that is ready, which `write` appends.
    pub(crate) fn ready(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.replies.len();
        write(&mut self.replies);
        let end = self.replies.len();
        match self.steps.last_mut() {
            Some(Step::Ready(place)) if place.end == start => place.end = end,
            _ => self.steps.push(Step::Ready(start..end)),
        }
    }
}
