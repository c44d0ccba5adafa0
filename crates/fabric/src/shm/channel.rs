//! A channel: one endpoint's mailboxes at one node, which are a ring of requests and a ring of
//! replies.
//!
//! ```text
//! byte     0  client 8 | start of its process 8 | realm 8 | zero 40
//!                                                              the client, before it asks
//!         64  requests put 8 | replies taken 8 | zero 48       the client
//!        128  requests taken 8 | replies put 8 | zero 48       the server
//!        192  doorbell of the client:
//!             rings 8 (server, and others) | parked 8 (the client) | zero 48
//!       256.. zero
//!       4096  requests, 128 KiB                                the client, while it owns the words
//! 4096+128Ki  replies, 128 KiB                                 the server, while it owns the words
//!
//! request:  words 32 | room for the reply, in words 32 | the words
//! reply:    words 32 | outcome 32                      | the words, if the outcome is 0
//! ```
//!
//! A channel of a passive node is only the first 256 bytes. There the client also writes the realm
//! of its process ([`realm`](super::process::realm)).
//!
//! 1. Positions count words since the channel was claimed. A word's place is its position modulo
//!    the ring.
//! 2. Every word has one writer at a time: the words from `taken` to `put` belong to the side that
//!    takes, the others to the side that puts.
//! 3. A position is stored with Release after the words that it hands over, and loaded with Acquire
//!    before they are touched.
//!
//! Replies come in the order of the requests. A client sends a request only while the replies to
//! all its requests fit, so the server never waits for a client. A client that breaks this rule
//! only makes itself wait.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::ROUND_WORDS_MAX;

use super::doorbell::Doorbell;

const RING_BYTES: usize = 128 << 10;
pub(super) const RING_WORDS: u64 = (RING_BYTES / 8) as u64;
const HEADER_BYTES: usize = 4096;
/// Bytes of a channel.
pub(super) const CHANNEL_BYTES: usize = HEADER_BYTES + 2 * RING_BYTES;
/// Bytes of a channel without mailboxes.
pub(super) const BARE_CHANNEL_BYTES: usize = 256;

// A call that fits a round fits an empty ring. So a call that waits for room will get it.
const _: () = assert!((ROUND_WORDS_MAX as u64) < RING_WORDS);

const CLIENT: usize = 0;
const START: usize = 1;
const REALM: usize = 2;
const REQUESTS_PUT: usize = 8;
const REPLIES_TAKEN: usize = 9;
const REQUESTS_TAKEN: usize = 16;
const REPLIES_PUT: usize = 17;
const RINGS: usize = 24;
const PARKED: usize = 25;
const _: () = assert!(PARKED < BARE_CHANNEL_BYTES / 8);

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Served = 0,
    /// The node has no handler.
    NoHandler = 1,
    /// The reply would not have fitted. Only its words are counted.
    TooLong = 2,
}

/// The words of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Channel<'a> {
    pub(super) fn of(words: &'a [AtomicU64]) -> Channel<'a> {
        debug_assert!([BARE_CHANNEL_BYTES, CHANNEL_BYTES].contains(&(8 * words.len())));
        Channel { words }
    }

    #[inline]
    fn load(self, index: usize) -> u64 {
        self.words[index].load(Ordering::Acquire)
    }

    #[inline]
    fn store(self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::Release);
    }

    fn requests(self) -> Ring<'a> {
        Ring { words: &self.words[HEADER_BYTES / 8..][..RING_BYTES / 8] }
    }

    fn replies(self) -> Ring<'a> {
        Ring { words: &self.words[(HEADER_BYTES + RING_BYTES) / 8..] }
    }

    /// Returns the client's doorbell.
    pub(super) fn bell(self) -> Doorbell<'a, AtomicU64> {
        Doorbell { rings: &self.words[RINGS], parked: &self.words[PARKED] }
    }

    /// Writes which client has claimed the channel, and that nothing has been sent.
    pub(super) fn begin(self, client: u32, start: u64) {
        for index in [REQUESTS_PUT, REPLIES_TAKEN, REQUESTS_TAKEN, REPLIES_PUT, PARKED] {
            self.store(index, 0);
        }
        self.store(START, start);
        self.store(CLIENT, u64::from(client));
    }

    /// Writes the realm of the client's process.
    pub(super) fn set_realm(self, realm: u64) {
        self.store(REALM, realm);
    }

    /// Returns the realm of the client's process. Only channels of passive nodes have it.
    pub(super) fn realm(self) -> u64 {
        self.load(REALM)
    }

    pub(super) fn client(self) -> u32 {
        self.load(CLIENT) as u32
    }

    /// Returns the time at which the client's process began.
    pub(super) fn start(self) -> u64 {
        self.load(START)
    }
}

/// A ring of words, addressed by position.
#[derive(Clone, Copy)]
struct Ring<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Ring<'a> {
    /// Returns the places of `count` words from a position on: up to the end of the ring, then from
    /// its beginning.
    fn places(self, at: u64, count: usize) -> impl Iterator<Item = &'a AtomicU64> {
        let start = (at % RING_WORDS) as usize;
        let first = count.min(self.words.len() - start);
        self.words[start..start + first].iter().chain(&self.words[..count - first])
    }

    fn put(self, at: u64, from: &[u64]) {
        for (place, word) in self.places(at, from.len()).zip(from) {
            place.store(*word, Ordering::Relaxed);
        }
    }

    fn get(self, at: u64, into: &mut [u64]) {
        for (place, word) in self.places(at, into.len()).zip(into) {
            *word = place.load(Ordering::Relaxed);
        }
    }
}

fn header(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The client's end. It keeps its own positions, and does not read them back.
#[derive(Debug, Default)]
pub(super) struct Sender {
    put: u64,
    taken: u64,
    /// The words that the replies to all unanswered requests may take.
    reserved: u64,
}

impl Sender {
    /// Sends a request. Returns false if there is no room for it, or for its reply, until replies
    /// have been taken.
    pub(super) fn send(&mut self, channel: Channel<'_>, head: &[u64], body: &[u64], capacity: u32) -> bool {
        let words = (head.len() + body.len()) as u64;
        let reply = 1 + u64::from(capacity);
        let end = self.put + 1 + words;
        if end - channel.load(REQUESTS_TAKEN) > RING_WORDS || self.reserved + reply > RING_WORDS {
            return false;
        }
        let ring = channel.requests();
        ring.put(self.put, &[header(words as u32, capacity)]);
        ring.put(self.put + 1, head);
        ring.put(self.put + 1 + head.len() as u64, body);
        channel.store(REQUESTS_PUT, end);
        self.put = end;
        self.reserved += reply;
        true
    }

    /// Whether a reply has come.
    #[inline]
    pub(super) fn has_reply(&self, channel: Channel<'_>) -> bool {
        channel.load(REPLIES_PUT) != self.taken
    }

    /// Takes the next reply into `into`, which has the capacity that the request named. Returns the
    /// outcome and the reply's words. Call it only when there is a reply.
    pub(super) fn receive(&mut self, channel: Channel<'_>, into: &mut [u64]) -> (Outcome, u32) {
        let mut first = [0];
        channel.replies().get(self.taken, &mut first);
        let words = first[0] as u32;
        let outcome = match first[0] >> 32 {
            0 if words as usize <= into.len() => Outcome::Served,
            1 => Outcome::NoHandler,
            _ => Outcome::TooLong,
        };
        self.taken += 1;
        if outcome == Outcome::Served {
            channel.replies().get(self.taken, &mut into[..words as usize]);
            self.taken += u64::from(words);
        }
        channel.store(REPLIES_TAKEN, self.taken);
        self.reserved -= 1 + into.len() as u64;
        (outcome, words)
    }
}

/// The server's end. It keeps its own positions, and checks the client's positions before it uses
/// them.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    taken: u64,
    put: u64,
}

/// The result of looking for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// There is no request, or no room for the reply.
    Nothing,
    /// There is a request, with this much room for the reply.
    Request { capacity: u32 },
    /// The positions or lengths are impossible.
    Nonsense,
}

impl Receiver {
    /// Whether there may be a request. It costs one load.
    #[inline]
    pub(super) fn has_request(&self, channel: Channel<'_>) -> bool {
        channel.load(REQUESTS_PUT) != self.taken
    }

    /// Takes the next request.
    pub(super) fn receive(&mut self, channel: Channel<'_>, request: &mut Vec<u64>) -> Received {
        let there = channel.load(REQUESTS_PUT).wrapping_sub(self.taken);
        if there == 0 {
            return Received::Nothing;
        }
        let mut first = [0];
        channel.requests().get(self.taken, &mut first);
        let (words, capacity) = (first[0] as u32, (first[0] >> 32) as u32);
        if there > RING_WORDS || u64::from(words) >= there || u64::from(capacity) >= RING_WORDS {
            return Received::Nonsense;
        }
        if self.put - channel.load(REPLIES_TAKEN).min(self.put) + 1 + u64::from(capacity) > RING_WORDS {
            return Received::Nothing;
        }
        request.resize(words as usize, 0);
        channel.requests().get(self.taken + 1, request);
        self.taken += 1 + u64::from(words);
        Received::Request { capacity }
    }

    /// Answers the request that was received last.
    pub(super) fn reply(&mut self, channel: Channel<'_>, outcome: Outcome, reply: &[u64]) {
        let ring = channel.replies();
        ring.put(self.put, &[header(reply.len() as u32, outcome as u32)]);
        self.put += 1;
        if outcome == Outcome::Served {
            ring.put(self.put, reply);
            self.put += reply.len() as u64;
        }
        // This comes before the reply: a client that sees the reply sends again, and must see the
        // room.
        channel.store(REQUESTS_TAKEN, self.taken);
        channel.store(REPLIES_PUT, self.put);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..CHANNEL_BYTES / 8).map(|_| AtomicU64::new(0)).collect()
    }

    /// Requests of all sizes go around the ring several times, with several under way.
    #[test]
    fn what_is_sent_arrives_and_is_answered_in_order() {
        let words = words();
        let channel = Channel::of(&words);
        channel.begin(1, 2);
        let (mut client, mut server) = (Sender::default(), Receiver::default());
        let (mut request, mut sent, mut served, mut answered) = (Vec::new(), 0u64, 0u64, 0u64);
        let body = |number: u64| -> Vec<u64> { (0..number * 37 % 8000).map(|word| number ^ word << 20).collect() };
        while answered < 2000 {
            while client.send(channel, &[sent], &body(sent), body(sent).len() as u32 + 1) {
                sent += 1;
            }
            assert!(sent > answered, "an empty ring has no room");
            for _ in 0..sent % 3 + 1 {
                if let Received::Request { capacity } = server.receive(channel, &mut request) {
                    assert_eq!((request[0], &request[1..]), (served, &body(served)[..]));
                    assert_eq!(capacity as usize, request.len());
                    server.reply(channel, Outcome::Served, &request);
                    served += 1;
                }
            }
            if client.has_reply(channel) {
                let mut reply = vec![0; body(answered).len() + 1];
                assert_eq!(client.receive(channel, &mut reply), (Outcome::Served, reply.len() as u32));
                assert_eq!((reply[0], &reply[1..]), (answered, &body(answered)[..]));
                answered += 1;
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_from_a_request() {
        let mut request = Vec::new();
        for (put, first) in
            [(RING_WORDS + 1, 0), (u64::MAX, 0), (3, 3), (3, u64::from(u32::MAX)), (3, RING_WORDS << 32)]
        {
            let words = words();
            let channel = Channel::of(&words);
            channel.store(REQUESTS_PUT, put);
            channel.requests().put(0, &[first]);
            assert_eq!(Receiver::default().receive(channel, &mut request), Received::Nonsense, "{put} {first:x}");
        }
        // A client that does not take its replies waits, and does not hinder other clients.
        let words = words();
        let channel = Channel::of(&words);
        let (mut client, mut server) = (Sender::default(), Receiver::default());
        let replies = |server: &mut Receiver, request: &mut Vec<u64>| server.receive(channel, request);
        for _ in 0..2 {
            client.reserved = 0;
            assert!(client.send(channel, &[1], &[], 8191));
            assert!(matches!(replies(&mut server, &mut request), Received::Request { .. }));
            server.reply(channel, Outcome::Served, &[7; 8191]);
        }
        client.reserved = 0;
        assert!(client.send(channel, &[1], &[], 8191));
        assert_eq!(replies(&mut server, &mut request), Received::Nothing);
    }
}
