//! The buffer of a round: its verbs, and the words that they read into and write from.
//!
//! This is what a transport gets and gives back. [`Round`](crate::Round) fills it, and
//! [`Completed`](crate::Completed) reads the answers.

use crate::address::{Address, NodeId, WORD_BYTES};
use crate::error::{FabricError, Fault};
use crate::ids::{LaneId, Ticket};
use crate::limits::{ROUND_VERBS_MAX, ROUND_WORDS_MAX};

use super::cost::Tally;

/// One verb. Counts and places are in words; `into` and `from` are places in the round's own
/// buffer.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// Reads remote words into the buffer.
    Read {
        /// Remote address.
        at: Address,
        /// Words.
        words: u32,
        /// Place in the buffer.
        into: u32,
    },
    /// Writes words of the buffer to remote memory, ascending.
    Write {
        /// Remote address.
        at: Address,
        /// Words.
        words: u32,
        /// Place in the buffer.
        from: u32,
    },
    /// Replaces a word if it is as expected; what was there goes to the buffer.
    CompareSwap {
        /// Remote address.
        at: Address,
        /// Expected word.
        expected: u64,
        /// New word.
        new: u64,
        /// Place in the buffer.
        into: u32,
    },
    /// Adds to a word; what was there goes to the buffer.
    FetchAdd {
        /// Remote address.
        at: Address,
        /// What to add, wrapping.
        delta: u64,
        /// Place in the buffer.
        into: u32,
    },
    /// Flushes the earlier writes of the round to a node.
    Flush {
        /// The node.
        node: NodeId,
    },
    /// Has the node's CPU serve a request: `head_words` and `body_words` of the buffer, one after
    /// the other.
    Call {
        /// The node.
        node: NodeId,
        /// Place of the request's first part.
        head: u32,
        /// Words of it.
        head_words: u32,
        /// Place of its second part.
        body: u32,
        /// Words of it.
        body_words: u32,
        /// Place in the buffer of the reply: its length in words, then the reply.
        into: u32,
        /// Words of the longest reply.
        capacity: u32,
    },
    /// What follows starts when everything before it, at every node, has completed.
    AfterCompletion,
}

impl Verb {
    /// The node that the verb acts on; `None` for [`Verb::AfterCompletion`].
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Verb::Read { at, .. }
            | Verb::Write { at, .. }
            | Verb::CompareSwap { at, .. }
            | Verb::FetchAdd { at, .. } => Some(at.node),
            Verb::Flush { node } | Verb::Call { node, .. } => Some(*node),
            Verb::AfterCompletion => None,
        }
    }
}

/// Verbs of a new buffer, and words: it grows up to the limits of a round when one needs more,
/// once. Most rounds are far smaller, and thousands of buffers of the full size would fill the
/// caches of a simulation with nothing.
const VERBS_AT_FIRST: usize = 16;
const WORDS_AT_FIRST: usize = 128;

/// The buffer of a round: what a transport gets and gives back.
///
/// In this order, so that what a small round touches lies together.
#[derive(Debug)]
#[repr(C)]
pub struct RoundBuffer {
    verbs: Vec<Verb>,
    pub(super) words: Vec<u64>,
    words_used: usize,
    pub(crate) tally: Tally,
    pub(crate) outcome: Result<(), FabricError>,
    pub(crate) lane: LaneId,
    /// Nobody awaits it: a failure must be reported elsewhere.
    pub(crate) background: bool,
    /// It was given to the transport.
    pub(crate) sent: bool,
    /// Tells rounds apart: their handles, and their continuations.
    pub(crate) serial: u64,
}

impl RoundBuffer {
    pub(crate) fn new() -> Box<RoundBuffer> {
        Box::new(RoundBuffer {
            verbs: Vec::with_capacity(VERBS_AT_FIRST),
            words: vec![0; WORDS_AT_FIRST],
            words_used: 0,
            tally: Tally::default(),
            outcome: Ok(()),
            lane: LaneId(0),
            background: false,
            sent: false,
            serial: 0,
        })
    }

    pub(crate) fn reset(&mut self, lane: LaneId, serial: u64) {
        self.verbs.clear();
        self.words_used = 0;
        self.tally = Tally::default();
        self.outcome = Ok(());
        self.lane = lane;
        self.background = false;
        self.sent = false;
        self.serial = serial;
    }

    /// The verbs in the order added.
    #[inline]
    #[must_use]
    pub fn verbs(&self) -> &[Verb] {
        &self.verbs
    }

    /// The verbs, and the words they read into and write from.
    #[inline]
    #[must_use]
    pub fn parts(&mut self) -> (&[Verb], &mut [u64]) {
        (&self.verbs, &mut self.words[..self.words_used])
    }

    /// Whether any of its verbs is a call.
    #[inline(always)]
    pub(crate) fn has_calls(&self) -> bool {
        self.tally.has_calls()
    }

    /// Whether it has parts that wait for others.
    #[inline(always)]
    pub(crate) fn has_fences(&self) -> bool {
        self.tally.fences != 0
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.serial as u32)
    }

    /// Stops a caller that redeems a handle, or writes a staged piece, of another round.
    #[inline(always)]
    pub(super) fn check(&self, mark: Mark) {
        assert!(mark == self.mark(), "the handle is another round's");
    }

    /// What names it while it is under way: unique among the rounds of an endpoint.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket(self.serial)
    }

    /// The lane to wake when the round has completed.
    #[must_use]
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// The transport's verdict.
    pub fn finish(&mut self, outcome: Result<(), FabricError>) {
        self.outcome = outcome;
    }

    #[inline]
    pub(super) fn push(&mut self, verb: Verb) {
        if self.verbs.len() < ROUND_VERBS_MAX {
            self.verbs.push(verb);
        } else {
            self.refuse(verb.node(), Fault::RoundFull);
        }
    }

    /// Whether `verbs` more verbs and `bytes` more bytes fit.
    #[inline]
    pub(super) fn has_room(&self, verbs: usize, bytes: usize) -> bool {
        verbs <= ROUND_VERBS_MAX - self.verbs.len() && bytes.div_ceil(WORD_BYTES) <= ROUND_WORDS_MAX - self.words_used
    }

    /// Takes `words` of the buffer: their place, or 0 and an outcome if the round has no room for
    /// them.
    #[inline]
    pub(super) fn lease(&mut self, words: usize, node: NodeId) -> u32 {
        let at = self.words_used;
        if words > self.words.len() - at && !self.grow(words) {
            self.refuse(Some(node), Fault::RoundFull);
            return 0;
        }
        self.words_used = at + words;
        at as u32
    }

    /// Makes room for `words` more words, if a round may have them.
    #[cold]
    fn grow(&mut self, words: usize) -> bool {
        if words > ROUND_WORDS_MAX - self.words_used {
            return false;
        }
        self.words.resize((self.words_used + words).next_power_of_two(), 0);
        true
    }

    #[cold]
    pub(super) fn refuse(&mut self, node: Option<NodeId>, fault: Fault) {
        if self.outcome.is_ok() {
            self.outcome = Err(FabricError { node: node.unwrap_or_default(), fault });
        }
    }
}

/// Which round a handle or a staged piece belongs to: the low half of the round's serial number.
///
/// A handle can outlive its round, because a coroutine may drop the future of a round and go on. An
/// answer that is looked up by such a handle would be a word of another round, so every look-up
/// compares marks, in every build.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mark(pub(super) u32);
