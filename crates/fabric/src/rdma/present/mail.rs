//! Calls through the reliable connection: a stream of bytes each way. Each end has a ring in its
//! memory that the other end writes messages to.
//!
//! ```text
//! words                        written by
//! 0          inbox : ring      the other end, by WRITE with immediate: number of words added
//! RING       consumed          the other end, by WRITE with immediate 0: bytes that it has read,
//!                              and messages
//! RING + 8   outbox : ring     this end: what its messages are sent from, at the place that they
//!                              have at the other end
//! 2 RING + 8 consumed          this end, likewise
//! ```
//!
//! An end sends a message when the other end has room for it. Room means bytes of the other end's
//! ring that it has read. It also means messages that it has seen, because it has a receive posted
//! for each of these. A message stays in the outbox until the other end has read it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::Domain;
use super::queue::{Access, Operation, QueuePair, Registered, WorkRequest};
use crate::address::WORD_BYTES;
use crate::limits::FRAME_WORDS_MAX;
use crate::rdma::VerbsError;
use crate::region::Region;

/// Words of a ring.
pub(super) const RING_WORDS: usize = 16 << 10;
const RING_BYTES: u64 = (RING_WORDS * WORD_BYTES) as u64;
/// Messages that may be under way before the other end has seen them.
const MESSAGES_MAX: u64 = 64;
/// Receives that are posted: for messages, and for WRITEs that tell of room.
pub(super) const RECEIVES: u32 = MESSAGES_MAX as u32 + 16;
/// An end tells the other end of new room when there are this many bytes more.
const TELL_BYTES: u64 = RING_BYTES / 4;
const TELL_MESSAGES: u64 = MESSAGES_MAX / 4;

const CONSUMED: usize = RING_WORDS;
const OUTBOX: usize = CONSUMED + 8;
const OUR_CONSUMED: usize = OUTBOX + RING_WORDS;
const ALL_WORDS: usize = OUR_CONSUMED + 8;

// Otherwise a frame might wait for room for ever.
const _: () = assert!(RING_WORDS > FRAME_WORDS_MAX);

/// The place of the other end's memory for messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mailbox {
    pub(super) address: u64,
    pub(super) key: u32,
}

pub(super) struct Mail {
    /// The index of this memory in the queue pair.
    memory: u32,
    theirs: Mailbox,
    /// Bytes and messages sent since the beginning.
    sent: [u64; 2],
    /// Bytes that the other end has read, and messages that it has seen, as it has told this end.
    consumed: [u64; 2],
    /// Bytes that have arrived.
    arrived: u64,
    /// Bytes that this end has read, and messages that it has seen. `told` is what of it this end
    /// has told.
    read: [u64; 2],
    told: [u64; 2],
}

impl Mail {
    pub(super) fn new(domain: &Arc<Domain>, pair: &mut QueuePair) -> Result<Mail, VerbsError> {
        let bytes = (ALL_WORDS * WORD_BYTES).next_multiple_of(4096);
        let refused = |_| VerbsError::Memory { bytes: bytes as u64, cause: io::ErrorKind::OutOfMemory.into() };
        let region = Arc::new(Region::sparse(bytes).map_err(refused)?);
        let memory = pair.add_memory(Registered::new(domain, region, Access::RemoteWrite)?);
        let theirs = Mailbox { address: 0, key: 0 };
        Ok(Mail { memory, theirs, sent: [0; 2], consumed: [0; 2], arrived: 0, read: [0; 2], told: [0; 2] })
    }

    /// Returns the place of this end's memory, which the other end needs.
    pub(super) fn place(&self, pair: &QueuePair) -> Mailbox {
        let ours = pair.memory(self.memory);
        ours.map_or(self.theirs, |memory| Mailbox { address: memory.address(), key: memory.rkey() })
    }

    pub(super) fn connect(&mut self, theirs: Mailbox) {
        self.theirs = theirs;
    }

    fn words<'q>(&self, pair: &'q QueuePair) -> &'q [std::sync::atomic::AtomicU64] {
        pair.memory(self.memory).map_or(&[], |memory| memory.region().words())
    }

    /// Takes a message of the other end: `words` words, or, if 0, the news of what the other end
    /// has read.
    pub(super) fn arrived(&mut self, pair: &QueuePair, words: u32) -> io::Result<()> {
        if words == 0 {
            let consumed = [CONSUMED, CONSUMED + 1].map(|at| self.words(pair)[at].load(Ordering::Relaxed));
            if consumed.iter().zip(&self.sent).any(|(consumed, sent)| consumed > sent) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.consumed = consumed;
            return Ok(());
        }
        self.read[1] += 1;
        self.arrived += u64::from(words) * WORD_BYTES as u64;
        // An end that sends more than there is room for has overwritten words that were not read.
        if self.arrived - self.read[0] > RING_BYTES { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
    }

    pub(super) fn has_more(&self) -> bool {
        self.arrived > self.read[0]
    }

    /// Reads what has arrived, in whole words. Returns the number of bytes.
    pub(super) fn read(&mut self, pair: &QueuePair, into: &mut [u8]) -> usize {
        let from = (self.read[0] % RING_BYTES) as usize / WORD_BYTES;
        let there = (self.arrived - self.read[0]) as usize / WORD_BYTES;
        let words = there.min(RING_WORDS - from).min(into.len() / WORD_BYTES);
        for (word, bytes) in self.words(pair)[from..from + words].iter().zip(into.chunks_exact_mut(WORD_BYTES)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        self.read[0] += (words * WORD_BYTES) as u64;
        words * WORD_BYTES
    }

    /// Returns the bytes that the other end has room for.
    pub(super) fn room(&self) -> u64 {
        RING_BYTES - (self.sent[0] - self.consumed[0])
    }

    /// Returns a work request for a message of these bytes, or of as many of them as fit. `None` if
    /// there is no room.
    pub(super) fn message(&mut self, pair: &QueuePair, from: &[u8]) -> Option<WorkRequest> {
        let room = self.room();
        let at = (self.sent[0] % RING_BYTES) as usize / WORD_BYTES;
        let words = (from.len().min(room as usize) / WORD_BYTES).min(RING_WORDS - at);
        if words == 0 || self.sent[1] - self.consumed[1] >= MESSAGES_MAX {
            return None;
        }
        for (word, bytes) in self.words(pair)[OUTBOX + at..].iter().zip(from.chunks_exact(WORD_BYTES).take(words)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
        self.sent[0] += (words * WORD_BYTES) as u64;
        self.sent[1] += 1;
        Some(self.request(words as u32, at, OUTBOX + at, words))
    }

    /// Returns a work request that tells the other end of new room, if it is time to do so.
    pub(super) fn credit(&mut self, pair: &QueuePair) -> Option<WorkRequest> {
        let [bytes, messages] = [0, 1].map(|index| self.read[index] - self.told[index]);
        if bytes < TELL_BYTES && messages < TELL_MESSAGES {
            return None;
        }
        self.told = self.read;
        for (word, value) in self.words(pair)[OUR_CONSUMED..].iter().zip(self.read) {
            word.store(value, Ordering::Relaxed);
        }
        Some(self.request(0, CONSUMED, OUR_CONSUMED, 2))
    }

    fn request(&self, tells: u32, to: usize, at: usize, words: usize) -> WorkRequest {
        WorkRequest {
            operation: Operation::Message(tells),
            address: self.theirs.address.wrapping_add((to * WORD_BYTES) as u64),
            key: self.theirs.key,
            memory: self.memory,
            at,
            words,
            signaled: true,
        }
    }
}
