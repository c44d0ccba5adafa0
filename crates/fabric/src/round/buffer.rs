//! The buffer of a round: its verbs, and the words that they read into and write from.
//!
//! A transport gets this buffer and gives it back. [`Round`](crate::Round) fills it, and
//! [`Completed`](crate::Completed) reads the answers.

use crate::address::{Address, NodeId, WORD_BYTES};
use crate::error::{FabricError, Fault};
use crate::ids::{LaneId, Ticket};
use crate::limits::{ROUND_VERBS_MAX, ROUND_WORDS_MAX};

use super::cost::Tally;

/// One verb of a round. Counts and places are in words. `into` and `from` are places in the round's
/// own buffer.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// Reads remote words into the buffer.
    Read {
        /// The remote address.
        at: Address,
        /// The number of words.
        words: u32,
        /// The place in the buffer that gets them.
        into: u32,
    },
    /// Writes words of the buffer to remote memory, in ascending order.
    Write {
        /// The remote address.
        at: Address,
        /// The number of words.
        words: u32,
        /// The place in the buffer of the words to write.
        from: u32,
    },
    /// Replaces a word if it is the expected one. The word that was there goes to the buffer.
    CompareSwap {
        /// The remote address.
        at: Address,
        /// The expected word.
        expected: u64,
        /// The new word.
        new: u64,
        /// The place in the buffer that gets the word that was there.
        into: u32,
    },
    /// Adds to a word. The word that was there goes to the buffer.
    FetchAdd {
        /// The remote address.
        at: Address,
        /// The number to add, wrapping.
        delta: u64,
        /// The place in the buffer that gets the word that was there.
        into: u32,
    },
    /// Flushes the earlier writes of the round to a node.
    Flush {
        /// The node whose memory is flushed.
        node: NodeId,
    },
    /// Makes the node's CPU serve a request: `head_words` and then `body_words` of the buffer.
    Call {
        /// The node that serves the request.
        node: NodeId,
        /// The place of the request's first part.
        head: u32,
        /// The number of words of the first part.
        head_words: u32,
        /// The place of the request's second part.
        body: u32,
        /// The number of words of the second part.
        body_words: u32,
        /// The place in the buffer of the reply: its length in words, then its words.
        into: u32,
        /// The number of words of the longest reply that fits.
        capacity: u32,
    },
    /// A fence: the verbs after it start when all verbs before it, at every node, have completed.
    AfterCompletion,
}

impl Verb {
    /// Returns the node that the verb acts on. `None` for [`Verb::AfterCompletion`].
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

/// Fills a round in, from what the round before it has brought.
pub(crate) type Fill = Box<dyn FnOnce(&RoundBuffer, &mut RoundBuffer)>;

/// Verbs that a new buffer has room for; [`WORDS_AT_FIRST`] is the same for words. A buffer grows
/// once, to the limits of a round, when a round needs more. Most rounds are far smaller. Thousands
/// of buffers of the full size would fill the caches of a simulation with unused memory.
const VERBS_AT_FIRST: usize = 16;
const WORDS_AT_FIRST: usize = 128;

/// The buffer of a round, which a transport gets and gives back.
///
/// The fields are in this order so that what a small round touches lies together.
#[derive(Debug)]
#[repr(C)]
pub struct RoundBuffer {
    verbs: Vec<Verb>,
    pub(super) words: Vec<u64>,
    words_used: usize,
    pub(crate) tally: Tally,
    pub(crate) outcome: Result<(), FabricError>,
    pub(crate) lane: LaneId,
    /// No coroutine awaits the round, so a failure must be reported elsewhere.
    pub(crate) background: bool,
    /// The round was given to the transport.
    pub(crate) sent: bool,
    /// The number of the round within its endpoint. It tells handles and continuations of different
    /// rounds apart.
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

    /// Takes all verbs out.
    pub(super) fn clear_verbs(&mut self) {
        self.verbs.clear();
    }

    /// Sets what the FETCH_ADD adds whose answer comes to this place.
    pub(super) fn set_added(&mut self, answer: u32, added: u64) {
        for verb in &mut self.verbs {
            if let Verb::FetchAdd { delta, into, .. } = verb
                && *into == answer
            {
                *delta = added;
            }
        }
    }

    /// Returns the verbs in the order in which they were added.
    #[inline]
    #[must_use]
    pub fn verbs(&self) -> &[Verb] {
        &self.verbs
    }

    /// Returns the verbs, and the words that they read into and write from.
    #[inline]
    #[must_use]
    pub fn parts(&mut self) -> (&[Verb], &mut [u64]) {
        (&self.verbs, &mut self.words[..self.words_used])
    }

    /// Whether any verb of the round is a call.
    #[inline(always)]
    pub(crate) fn has_calls(&self) -> bool {
        self.tally.has_calls()
    }

    /// Whether the round has parts that wait for earlier parts.
    #[inline(always)]
    pub(crate) fn has_fences(&self) -> bool {
        self.tally.fences != 0
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.serial as u32)
    }

    /// Panics if a caller redeems a handle, or writes a staged piece, of another round.
    #[inline(always)]
    pub(super) fn check(&self, mark: Mark) {
        assert!(mark == self.mark(), "the handle is another round's");
    }

    /// Returns the ticket that names the round while it is under way. It is unique among the rounds
    /// of an endpoint.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket(self.serial)
    }

    /// Returns the lane to wake when the round has completed.
    #[must_use]
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// Sets the outcome of the round. The transport calls this.
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

    /// Whether `verbs` more verbs and `bytes` more bytes fit into the round.
    #[inline]
    pub(super) fn has_room(&self, verbs: usize, bytes: usize) -> bool {
        verbs <= ROUND_VERBS_MAX - self.verbs.len() && bytes.div_ceil(WORD_BYTES) <= ROUND_WORDS_MAX - self.words_used
    }

    /// Takes `words` words of the buffer. Returns their place. If the round has no room for them,
    /// returns 0 and sets the outcome.
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

    /// Makes room for `words` more words, if a round may have that many.
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

/// The mark of a round in its handles and staged pieces: the low half of the round's serial number.
///
/// A handle can outlive its round, because a coroutine may drop the future of a round and go on. An
/// answer that is looked up by such a handle would be a word of another round. So every look-up
/// compares marks, in every build.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mark(pub(super) u32);
