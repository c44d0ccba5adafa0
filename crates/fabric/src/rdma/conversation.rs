//! Conversations over datagrams. A conversation is a stream of words each way. Every word arrives
//! once and in its place, although datagrams may be lost, come twice or come out of order.
//!
//! This file has no device, no clock and no memory of the NIC. `present/datagrams.rs` has them.
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
//! 1. A datagram belongs to the conversation that has its token and its sender. Any other datagram
//!    is dropped and counted, and so is one that has impossible contents.
//! 2. A datagram with a sequence is taken once. If its sequence is below `expected` or marked as
//!    early, it is a duplicate; its sender is then told again what has arrived. The stream carries
//!    frames, so a frame that was sent twice is executed once. The answers that a server keeps for
//!    a client are the datagrams that the client has not acknowledged.
//! 3. At most [`WINDOW`] datagrams are under way in each direction, so that each finds a receive
//!    buffer ([`RECEIVES`]).
//! 4. A datagram that is not acknowledged is sent again. The oldest is sent again after
//!    [`RESEND_NS`], then after twice that time, and so on. The others that were under way then are
//!    sent again when the other end shows that it lives. A datagram that [`REORDER`] later ones
//!    have overtaken is sent again at once. It is sent again with the same bytes, because the NIC
//!    may still be reading them.
//! 5. An end acknowledges what has arrived with its next datagram to the other end (passive ACK),
//!    or with a datagram that carries nothing else. It sends the latter at once after half a window
//!    or a duplicate. Otherwise it does so after [`TELL_NS`], or before it sleeps.
//! 6. An end that does not read does not acknowledge. Beyond [`UNREAD_WORDS_MAX`] unread words, it
//!    refuses what arrives.

use std::collections::VecDeque;

use crate::address::WORD_BYTES;
use crate::ids::Nanos;

/// Words of a datagram in front of what it carries.
pub(crate) const HEAD_WORDS: usize = 4;
/// Datagrams that may be under way in each direction.
pub(crate) const WINDOW: u64 = 16;
/// Receive buffers for each conversation: a window of datagrams, a window of acknowledgements for
/// what this end has sent, and the same number again. The second half is for repetitions while this
/// end looks at nothing. Within the patience of clients (`PATIENCE_NS`) the other end repeats its
/// oldest datagram eight times, and an acknowledgement of each. A datagram beyond these that finds
/// no buffer is lost like any other.
pub(crate) const RECEIVES: usize = 4 * WINDOW as usize;
/// Time after which the oldest datagram that is not acknowledged is sent again. Each further
/// repetition waits twice as long as the one before.
pub(crate) const RESEND_NS: Nanos = 5_000_000;
/// Longest time that an acknowledgement waits for a datagram to ride on.
pub(crate) const TELL_NS: Nanos = 2_000_000;
/// A datagram is taken for lost when this many later ones have overtaken it.
const REORDER: u64 = 3;
/// Words that may wait to be read before this end refuses more.
const UNREAD_WORDS_MAX: usize = 16 << 10;

// A delayed acknowledgement causes no repetition, the early datagrams fit their word, and the place
// of a datagram is its sequence modulo the window.
const _: () = assert!(2 * TELL_NS < RESEND_NS && WINDOW <= 64 && WINDOW.is_power_of_two());

/// A datagram that is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    arrived: bool,
    /// It must be sent again now.
    again: bool,
    /// It must be sent again when the other end shows that it lives.
    suspect: bool,
    /// It has already been sent again because later datagrams overtook it.
    overtaken: bool,
}

/// When this end tells the other end what has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tell {
    Nothing,
    At(Nanos),
    Now,
}

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// The first sequence that was not sent. `acknowledged` is the first that is not known to have
    /// arrived.
    next: u64,
    acknowledged: u64,
    sent: [Sent; WINDOW as usize],
    /// When the oldest datagram is sent again. `timeout` is the time between two repetitions.
    resend_at: Nanos,
    timeout: Nanos,
    /// The first sequence that has not arrived. `early` and `early_words` are the later ones that
    /// have, and what they carry.
    expected: u64,
    early: u64,
    early_words: [Vec<u64>; WINDOW as usize],
    unread: VecDeque<u64>,
    tell: Tell,
    /// Datagrams taken since this end last told the other end.
    untold: u64,
}

/// The error for a datagram with impossible contents.
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

    /// Returns the sequence of the next new datagram, if one may be sent now.
    pub(crate) fn next(&self) -> Option<u64> {
        (self.next < self.acknowledged + WINDOW).then_some(self.next)
    }

    /// Returns the number of datagrams that have been sent, each counted once.
    pub(crate) fn sent(&self) -> u64 {
        self.next - 1
    }

    /// Returns the number of new datagrams that may be sent now.
    pub(crate) fn room(&self) -> u64 {
        self.acknowledged + WINDOW - self.next
    }

    /// Records that the next new datagram is sent.
    pub(crate) fn sends(&mut self, now: Nanos) {
        if self.acknowledged == self.next {
            self.resend_at = now + self.timeout;
        }
        self.sent[place(self.next)] = Sent::default();
        self.next += 1;
    }

    /// Returns the first words of a datagram that is sent now. They also tell the other end what
    /// has arrived.
    pub(crate) fn head(&mut self, token: u64, sequence: u64) -> [u64; HEAD_WORDS] {
        self.tell = Tell::Nothing;
        self.untold = 0;
        [token, sequence, self.expected, self.early]
    }

    /// Returns a datagram that must be sent again. Call this until it returns `None`.
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

    /// Whether to send a datagram that carries nothing, only to tell what has arrived. `idle` says
    /// that no other datagram will go soon.
    pub(crate) fn tells(&self, now: Nanos, idle: bool) -> bool {
        match self.tell {
            Tell::Nothing => false,
            Tell::At(at) => idle || at <= now,
            Tell::Now => true,
        }
    }

    /// Returns when this conversation must next be asked what to send.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let told = match self.tell {
            Tell::Nothing => None,
            Tell::At(at) => Some(at),
            Tell::Now => Some(0),
        };
        told.into_iter().chain(self.resend_due()).min()
    }

    /// Returns when a datagram must be sent again, unless it is acknowledged first.
    pub(crate) fn resend_due(&self) -> Option<Nanos> {
        let mut under_way = self.acknowledged..self.next;
        let again = under_way.clone().any(|sequence| self.sent[place(sequence)].again);
        under_way.next().map(|_| if again { 0 } else { self.resend_at })
    }

    /// Takes a datagram that has arrived. `words` are its words behind the token.
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

    /// Reads what has arrived, in whole words. Returns the number of bytes.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let words = self.unread.len().min(into.len() / WORD_BYTES);
        for (word, bytes) in self.unread.drain(..words).zip(into.chunks_exact_mut(WORD_BYTES)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        words * WORD_BYTES
    }
}

/// The conversations that share a queue pair. Each has a *door*, at a place of its own.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    doors: Vec<Option<Door>>,
    /// Datagrams that belonged to no conversation, or had impossible contents.
    strange: u64,
}

/// A conversation, with the token and the sender of the datagrams that it takes.
#[derive(Debug)]
struct Door {
    token: u64,
    from: u32,
    conversation: Conversation,
}

/// Bits of a token that name the door.
const DOOR_BITS: u32 = 16;

impl Doors {
    /// Opens a conversation with a token that cannot be guessed. Returns its place and its token.
    pub(crate) fn open(&mut self, random: u64) -> (usize, u64) {
        let place = self.doors.iter().position(Option::is_none).unwrap_or_else(|| {
            self.doors.push(None);
            self.doors.len() - 1
        });
        let token = random << DOOR_BITS | place as u64;
        // No queue pair has this number, because theirs have 24 bits. So the door takes nothing
        // until its sender is known.
        self.doors[place] = Some(Door { token, from: u32::MAX, conversation: Conversation::new() });
        (place, token)
    }

    /// Sets the sender of a door: the number of the other end's queue pair.
    pub(crate) fn expect(&mut self, place: usize, from: u32) {
        if let Some(Some(door)) = self.doors.get_mut(place) {
            door.from = from;
        }
    }

    /// Closes a conversation: drops from now on all datagrams that come for it.
    pub(crate) fn close(&mut self, place: usize) {
        if let Some(door) = self.doors.get_mut(place) {
            *door = None;
        }
    }

    /// Returns the number of open conversations.
    pub(crate) fn count(&self) -> usize {
        self.doors.iter().flatten().count()
    }

    pub(crate) fn places(&self) -> usize {
        self.doors.len()
    }

    pub(crate) fn get(&mut self, place: usize) -> Option<&mut Conversation> {
        Some(&mut self.doors.get_mut(place)?.as_mut()?.conversation)
    }

    /// Takes a datagram that has arrived from the queue pair `from`. Returns the place of the door
    /// that it was for.
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

    /// Returns the number of datagrams that have been dropped.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn strange(&self) -> u64 {
        self.strange
    }
}

#[cfg(test)]
mod tests;
