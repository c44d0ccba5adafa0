//! Conversations over datagrams that may be lost, come twice or out of order: a stream of words
//! each way, every word once and in its place. No device, no clock and no memory of the NIC's here;
//! `present/datagrams.rs` has those.
//!
//! ```text
//! word  0   token           from the receiver to this sender, on their authenticated connection
//!       1   sequence        from 1; 0: nothing is carried
//!       2   acknowledged    all below it have come to the sender of this datagram
//!       3   early           bit i: so has acknowledged + 1 + i
//!       4.. words of the stream
//! ```
//!
//! # Rules
//!
//! 1. A datagram is for the conversation whose token and sender it has, or is dropped and counted,
//!    like one that says impossible things.
//! 2. What has a sequence is taken once: below `expected`, or marked as early, it is a duplicate,
//!    and only has the sender told again what has come. So a frame that was sent twice is executed
//!    once: frames are what the stream carries, and the answers that are kept for a client are the
//!    datagrams that it has not acknowledged.
//! 3. At most [`WINDOW`] datagrams are under way each way, so that each finds a receive buffer
//!    ([`RECEIVES`]).
//! 4. What is not acknowledged is sent again: the oldest after [`RESEND_NS`], then after twice that
//!    time, and so on; the others that were under way then, as soon as the other end shows that it
//!    lives; and one that [`REORDER`] later ones have overtaken, at once. What is sent again is the
//!    same bytes, so that the NIC may still be reading them.
//! 5. What has come is acknowledged by the next datagram that goes the other way (passive ACK), or
//!    by one of its own: after half a window, or a duplicate, at once; otherwise after [`TELL_NS`],
//!    or before this end sleeps.
//! 6. An end that does not read does not acknowledge: beyond [`UNREAD_WORDS_MAX`], what comes next
//!    is refused.

use std::collections::VecDeque;

use crate::address::WORD_BYTES;
use crate::ids::Nanos;

/// Words in front of what a datagram carries.
pub(crate) const HEAD_WORDS: usize = 4;
/// Datagrams under way each way.
pub(crate) const WINDOW: u64 = 16;
/// Receive buffers for each conversation: for a window of datagrams, and one of acknowledgements
/// for what this end has sent; as much again for repetitions while this end looks at nothing. The
/// oldest is repeated eight times within the patience of clients (`PATIENCE_NS`), and an
/// acknowledgement of each; beyond, a datagram that finds no buffer is lost like any other.
pub(crate) const RECEIVES: usize = 4 * WINDOW as usize;
/// Time after which the oldest datagram that is not acknowledged is sent again; then twice as long,
/// and so on.
pub(crate) const RESEND_NS: Nanos = 5_000_000;
/// Time that an acknowledgement waits for a datagram to ride on.
pub(crate) const TELL_NS: Nanos = 2_000_000;
/// A datagram is taken for lost when this many later ones have overtaken it.
const REORDER: u64 = 3;
/// Words that may wait to be read.
const UNREAD_WORDS_MAX: usize = 16 << 10;

// An acknowledgement that waits causes no repetition, early ones fit their word, and a place is a
// sequence modulo the window.
const _: () = assert!(2 * TELL_NS < RESEND_NS && WINDOW <= 64 && WINDOW.is_power_of_two());

/// A datagram under way.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    arrived: bool,
    /// To be sent again now, ...
    again: bool,
    /// ... or when the other end shows that it lives.
    suspect: bool,
    /// Has been sent again because others overtook it.
    overtaken: bool,
}

/// When the other end is to be told what has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tell {
    Nothing,
    At(Nanos),
    Now,
}

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// The first sequence that was not sent, and the first that is not known to have arrived.
    next: u64,
    acknowledged: u64,
    sent: [Sent; WINDOW as usize],
    /// When the oldest is sent again, and the time between.
    resend_at: Nanos,
    timeout: Nanos,
    /// The first sequence that has not come, and which of those behind it have: what they carry.
    expected: u64,
    early: u64,
    early_words: [Vec<u64>; WINDOW as usize],
    unread: VecDeque<u64>,
    tell: Tell,
    /// Taken since the other end was told.
    untold: u64,
}

/// A datagram that says impossible things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Strange;

fn place(sequence: u64) -> usize {
    (sequence % WINDOW) as usize
}

impl Conversation {
    pub(crate) fn new() -> Conversation {
        Conversation {
            next: 1,
            acknowledged: 1,
            sent: Default::default(),
            resend_at: 0,
            timeout: RESEND_NS,
            expected: 1,
            early: 0,
            early_words: Default::default(),
            unread: VecDeque::new(),
            tell: Tell::Nothing,
            untold: 0,
        }
    }

    /// The sequence of the next new datagram, if one may be sent.
    pub(crate) fn next(&self) -> Option<u64> {
        (self.next < self.acknowledged + WINDOW).then_some(self.next)
    }

    /// Datagrams that have been sent, each counted once.
    pub(crate) fn sent(&self) -> u64 {
        self.next - 1
    }

    /// Datagrams that may be sent.
    pub(crate) fn room(&self) -> u64 {
        self.acknowledged + WINDOW - self.next
    }

    /// The next new datagram is sent.
    pub(crate) fn sends(&mut self, now: Nanos) {
        if self.acknowledged == self.next {
            self.resend_at = now + self.timeout;
        }
        self.sent[place(self.next)] = Sent::default();
        self.next += 1;
    }

    /// What a datagram that is sent now begins with. The other end is told by it what has come.
    pub(crate) fn head(&mut self, token: u64, sequence: u64) -> [u64; HEAD_WORDS] {
        self.tell = Tell::Nothing;
        self.untold = 0;
        [token, sequence, self.expected, self.early]
    }

    /// A datagram to be sent again. Ask until there is none.
    pub(crate) fn again(&mut self, now: Nanos) -> Option<u64> {
        let under_way = self.acknowledged..self.next;
        if !under_way.is_empty() && self.resend_at <= now {
            self.timeout = self.timeout.saturating_mul(2);
            self.resend_at = now.saturating_add(self.timeout);
            for sequence in under_way.clone() {
                let sent = &mut self.sent[place(sequence)];
                sent.suspect = !sent.arrived;
            }
            self.sent[place(self.acknowledged)].again = true;
        }
        let sequence = under_way.clone().find(|sequence| self.sent[place(*sequence)].again)?;
        let sent = &mut self.sent[place(sequence)];
        (sent.again, sent.suspect) = (false, false);
        Some(sequence)
    }

    /// Whether a datagram that carries nothing is to be sent for what it tells; `idle` if none will
    /// go that carries more.
    pub(crate) fn tells(&self, now: Nanos, idle: bool) -> bool {
        match self.tell {
            Tell::Nothing => false,
            Tell::At(at) => idle || at <= now,
            Tell::Now => true,
        }
    }

    /// When it must be asked again what to send.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let told = match self.tell {
            Tell::Nothing => None,
            Tell::At(at) => Some(at),
            Tell::Now => Some(0),
        };
        told.into_iter().chain(self.resend_due()).min()
    }

    /// When something must be sent again, unless it is acknowledged.
    pub(crate) fn resend_due(&self) -> Option<Nanos> {
        let mut under_way = self.acknowledged..self.next;
        let again = under_way.clone().any(|sequence| self.sent[place(sequence)].again);
        under_way.next().map(|_| if again { 0 } else { self.resend_at })
    }

    /// A datagram has come: what is behind its token.
    pub(crate) fn arrived(&mut self, now: Nanos, words: &[u64]) -> Result<(), Strange> {
        let (&[sequence, acknowledged, early], carried) = words.split_first_chunk().ok_or(Strange)?;
        let beyond = (early.checked_ilog2().map_or(0, |bit| u64::from(bit) + 2)).checked_add(acknowledged);
        if acknowledged == 0 || beyond.is_none_or(|end| end > self.next) || early & !(u64::MAX >> (65 - WINDOW)) != 0 {
            return Err(Strange);
        }
        if (sequence == 0) != carried.is_empty() || sequence >= self.expected + WINDOW {
            return Err(Strange);
        }
        self.acknowledge(now, acknowledged, early);
        if sequence != 0 {
            self.take(now, sequence, carried);
        }
        Ok(())
    }

    fn acknowledge(&mut self, now: Nanos, acknowledged: u64, early: u64) {
        let (first, next) = (self.acknowledged, self.next);
        let mut news = false;
        let mut last = 0;
        for sequence in first..next {
            let bit = sequence.wrapping_sub(acknowledged + 1);
            if sequence < acknowledged || sequence > acknowledged && bit < WINDOW && early & 1 << bit != 0 {
                let sent = &mut self.sent[place(sequence)];
                news |= !sent.arrived;
                (sent.arrived, sent.again, sent.suspect) = (true, false, false);
                last = sequence;
            }
        }
        if !news {
            return;
        }
        while self.acknowledged < next && self.sent[place(self.acknowledged)].arrived {
            self.acknowledged += 1;
        }
        (self.timeout, self.resend_at) = (RESEND_NS, now + RESEND_NS);
        for sequence in self.acknowledged..next {
            let sent = &mut self.sent[place(sequence)];
            let overtaken = sequence + REORDER <= last && !sent.overtaken;
            if !sent.arrived && (sent.suspect || overtaken) {
                (sent.again, sent.suspect) = (true, false);
                sent.overtaken |= overtaken;
            }
        }
    }

    fn take(&mut self, now: Nanos, sequence: u64, carried: &[u64]) {
        let behind = sequence.wrapping_sub(self.expected + 1);
        if sequence < self.expected || sequence > self.expected && self.early & 1 << behind != 0 {
            self.tell = Tell::Now; // the other end does not know
            return;
        }
        if self.unread.len() > UNREAD_WORDS_MAX {
            return;
        }
        if sequence > self.expected {
            self.early |= 1 << behind;
            let kept = &mut self.early_words[place(sequence)];
            kept.clear();
            kept.extend_from_slice(carried);
            self.tell = Tell::Now; // the other end does not know what is missing
            return;
        }
        self.unread.extend(carried);
        self.untold += 1;
        loop {
            self.expected += 1;
            let there = self.early & 1 != 0;
            self.early >>= 1;
            if !there {
                break;
            }
            self.unread.extend(&self.early_words[place(self.expected)]);
            self.untold += 1;
        }
        self.tell = match self.tell {
            _ if self.untold >= WINDOW / 2 => Tell::Now,
            Tell::Nothing => Tell::At(now + TELL_NS),
            told => told,
        };
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Reads what has come, whole words; how many bytes.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let words = self.unread.len().min(into.len() / WORD_BYTES);
        for (word, bytes) in self.unread.drain(..words).zip(into.chunks_exact_mut(WORD_BYTES)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        words * WORD_BYTES
    }
}

/// Conversations that share a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    doors: Vec<Option<Door>>,
    /// Datagrams of no conversation, or that said impossible things.
    strange: u64,
}

/// A conversation, and whose datagrams it takes.
#[derive(Debug)]
struct Door {
    token: u64,
    from: u32,
    conversation: Conversation,
}

/// Bits of a token that say which door.
const DOOR_BITS: u32 = 16;

impl Doors {
    /// Opens one, with a token that nobody can guess. Returns its place and its token.
    pub(crate) fn open(&mut self, random: u64) -> (usize, u64) {
        let place = self.doors.iter().position(Option::is_none).unwrap_or_else(|| {
            self.doors.push(None);
            self.doors.len() - 1
        });
        let token = random << DOOR_BITS | place as u64;
        // Until it is said from whom, nothing has this number: queue pairs' have 24 bits.
        self.doors[place] = Some(Door { token, from: u32::MAX, conversation: Conversation::new() });
        (place, token)
    }

    /// Who speaks at a door: the number of the other end's queue pair.
    pub(crate) fn expect(&mut self, place: usize, from: u32) {
        if let Some(Some(door)) = self.doors.get_mut(place) {
            door.from = from;
        }
    }

    /// Drops from now on all that comes for a conversation.
    pub(crate) fn close(&mut self, place: usize) {
        if let Some(door) = self.doors.get_mut(place) {
            *door = None;
        }
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.doors.iter().flatten().count()
    }

    pub(crate) fn places(&self) -> usize {
        self.doors.len()
    }

    pub(crate) fn get(&mut self, place: usize) -> Option<&mut Conversation> {
        Some(&mut self.doors.get_mut(place)?.as_mut()?.conversation)
    }

    /// A datagram has come from a queue pair; the place of the door that it was for.
    pub(crate) fn arrived(&mut self, now: Nanos, from: u32, words: &[u64]) -> Option<usize> {
        let arrived = words.split_first().and_then(|(token, words)| {
            let place = (token & ((1 << DOOR_BITS) - 1)) as usize;
            let door = self.doors.get_mut(place)?.as_mut()?;
            let known = door.token == *token && door.from == from;
            (known && door.conversation.arrived(now, words).is_ok()).then_some(place)
        });
        if arrived.is_none() {
            self.strange += 1;
            if self.strange.is_power_of_two() {
                tracing::warn!(from, count = self.strange, "datagrams were dropped: nobody's, or malformed");
            }
        }
        arrived
    }

    /// Datagrams that have been dropped.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn strange(&self) -> u64 {
        self.strange
    }
}

#[cfg(test)]
mod tests;
