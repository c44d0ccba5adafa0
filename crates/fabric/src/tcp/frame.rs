//! Frames: the messages that a connection carries after the handshake. This file encodes and
//! decodes them by pure functions on words.
//!
//! A frame consists of little-endian 64-bit words throughout, so everything in a receive buffer is
//! aligned. The words of a READ go straight from the region into the frame that carries them. The
//! words of a WRITE go straight from the frame into the region.
//!
//! ```text
//!                 63        56 55    48 47    40 39    32 31                               0
//! request        +---------------------+--------+--------+----------------------------------+
//!                |                   0 |  flags |   kind |       words of the whole frame   |
//!                +---------------------+--------+--------+----------------------------------+
//!                |                                  ticket                                  |
//!                +--------------------------------------------------------------------------+
//!                |  ROUND: verbs    REVOKE: the client    STATUS: nothing    QUEUE: who     |
//!                |  FORGET: whatever the node's handler knows                               |
//!
//! verb           +----------------------------------+--------+--------------------+---------+
//!                |                            words |      0 |             region |    verb |
//!                +----------------------------------+--------+--------------------+---------+
//!   READ         | offset |                          31       24 23               8 7       0
//!   WRITE        | offset | data ...
//!   SWAP         | offset | expected | new           (words: 1)
//!   ADD          | offset | delta                    (words: 1)
//!   CALL         | words of the longest reply | request ...
//!   FLUSH        (nothing)
//!
//! response       +------------------------------------------+--------+----------------------+
//!                |                                        0 | status |  words of the frame  |
//!                +------------------------------------------+--------+----------------------+
//!                |                                  ticket                                  |
//!                +--------------------------------------------------------------------------+
//!                |  answers in the order of the verbs; of a call: its length n, n words     |
//! ```
//!
//! The status of a failure is its kind. Its words are what the client needs to report the same
//! fault that shared memory would report. Whatever the words are, no function here panics or
//! allocates. Words that do not have this form are [`Malformed`].

use crate::address::{Address, NodeId, RegionId};
use crate::error::{Fault, Refusal, SystemError};
use crate::limits::{FRAME_WORDS_MAX, ROUND_WORDS_MAX};
use crate::round::buffer::Verb;
use crate::tcp::buffer::Outbox;

/// Words in front of the contents of every frame.
pub(crate) const HEAD_WORDS: usize = 2;
/// Words of a verb beside what it carries.
pub(crate) const VERB_WORDS_MAX: usize = 4;
/// The flag of a request whose response no coroutine waits for, so that the response may ride on
/// the next one.
const LAZY: u64 = 1 << 40;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Execute verbs.
    Round = 1,
    /// Revoke all access of a client.
    Revoke = 2,
    /// Report the server's status.
    Status = 3,
    /// Make a queue pair, which carries everything that follows.
    Queue = 4,
    /// Erase the node, because the cluster has gone on without it: see
    /// [`Handler::forget`](crate::Handler::forget).
    Forget = 5,
}

/// The head of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The number of words of the whole frame.
    pub(crate) words: usize,
    pub(crate) kind: Kind,
    pub(crate) lazy: bool,
    pub(crate) ticket: u64,
}

/// The head of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Response {
    /// The number of words of the whole frame.
    pub(crate) words: usize,
    pub(crate) status: u8,
    pub(crate) ticket: u64,
}

/// The error for words that are no frame of this protocol. The end that sent them is disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a frame of {0} words")]
    Length(u32),
    #[error("a frame of kind {0:#x}")]
    Kind(u32),
    #[error("verb {0:#x}")]
    Verb(u64),
    #[error("a verb that leaves its frame")]
    Truncated,
    #[error("an offset that is no multiple of 8")]
    Unaligned,
    #[error("answers of more than a round holds")]
    TooLong,
    #[error("a response of status {0}")]
    Status(u8),
    #[error("an answer that does not fit its question")]
    Answer,
    #[error("a frame that this connection may not send")]
    Forbidden,
    #[error("no hello of this protocol")]
    Hello,
}

/// Appends the head of a request whose length is not known yet. Returns its place, for [`end`].
pub(crate) fn begin_request(out: &mut Outbox, kind: Kind, lazy: bool, ticket: u64) -> usize {
    let at = out.end();
    out.push((kind as u64) << 32 | if lazy { LAZY } else { 0 });
    out.push(ticket);
    at
}

/// Appends the head of a response. Returns its place, for [`end`].
pub(crate) fn begin_response(out: &mut Outbox, status: u8, ticket: u64) -> usize {
    let at = out.end();
    out.push(u64::from(status) << 32);
    out.push(ticket);
    at
}

/// Ends the frame that begins at `at`: writes its length.
pub(crate) fn end(out: &mut Outbox, at: usize) {
    let words = (out.end() - at) as u64;
    out.words_mut()[at] |= words;
}

/// Returns the head of the request at the front of `words`. `None` until it has arrived.
pub(crate) fn request(words: &[u64]) -> Result<Option<Request>, Malformed> {
    let &[head, ticket, ..] = words else { return Ok(None) };
    let kind = match (head & !LAZY) >> 32 {
        1 => Kind::Round,
        2 => Kind::Revoke,
        3 => Kind::Status,
        4 => Kind::Queue,
        5 => Kind::Forget,
        other => return Err(Malformed::Kind(other as u32)),
    };
    Ok(Some(Request { words: length(head)?, kind, lazy: head & LAZY != 0, ticket }))
}

/// Returns the head of the response at the front of `words`. `None` until it has arrived.
pub(crate) fn response(words: &[u64]) -> Result<Option<Response>, Malformed> {
    let &[head, ticket, ..] = words else { return Ok(None) };
    let Ok(status) = u8::try_from(head >> 32) else { return Err(Malformed::Status(u8::MAX)) };
    Ok(Some(Response { words: length(head)?, status, ticket }))
}

fn length(head: u64) -> Result<usize, Malformed> {
    let words = head as u32;
    if (HEAD_WORDS..=FRAME_WORDS_MAX).contains(&(words as usize)) {
        Ok(words as usize)
    } else {
        Err(Malformed::Length(words))
    }
}

const READ: u64 = 1;
const WRITE: u64 = 2;
const SWAP: u64 = 3;
const ADD: u64 = 4;
const CALL: u64 = 5;
const FLUSH: u64 = 6;

/// Returns the number of words of a verb in a frame.
pub(crate) fn verb_words(verb: &Verb) -> usize {
    match *verb {
        Verb::Read { .. } => 2,
        Verb::Write { words, .. } => 2 + words as usize,
        Verb::CompareSwap { .. } => 4,
        Verb::FetchAdd { .. } => 3,
        Verb::Call { head_words, body_words, .. } => 2 + (head_words + body_words) as usize,
        Verb::Flush { .. } => 1,
        Verb::AfterCompletion => 0,
    }
}

/// Appends a verb, with the words of the round that it writes.
pub(crate) fn put_verb(out: &mut Outbox, verb: &Verb, words: &[u64]) {
    let first = |verb: u64, region: RegionId, count: u32| verb | u64::from(region.0) << 8 | u64::from(count) << 32;
    match *verb {
        Verb::Read { at, words: count, .. } => out.extend(&[first(READ, at.region, count), at.offset]),
        Verb::Write { at, words: count, from } => {
            out.extend(&[first(WRITE, at.region, count), at.offset]);
            out.extend(&words[from as usize..][..count as usize]);
        }
        Verb::CompareSwap { at, expected, new, .. } => {
            out.extend(&[first(SWAP, at.region, 1), at.offset, expected, new]);
        }
        Verb::FetchAdd { at, delta, .. } => out.extend(&[first(ADD, at.region, 1), at.offset, delta]),
        Verb::Call { head, head_words, body, body_words, capacity, .. } => {
            out.extend(&[first(CALL, RegionId(0), head_words + body_words), u64::from(capacity)]);
            out.extend(&words[head as usize..][..head_words as usize]);
            out.extend(&words[body as usize..][..body_words as usize]);
        }
        Verb::Flush { .. } => out.push(FLUSH),
        Verb::AfterCompletion => {}
    }
}

/// Decodes the verb at `at` of a request frame, for the server's only node, and moves `at` behind
/// the verb. The words that it writes are in the frame. The words that it reads go to `into`.
pub(crate) fn verb(frame: &[u64], at: &mut usize, into: u32) -> Result<Verb, Malformed> {
    let mut next = |count: usize| {
        let start = *at;
        let words = frame.get(start..start + count).ok_or(Malformed::Truncated)?;
        *at = start + count;
        Ok((start as u32, words))
    };
    let head = next(1)?.1[0];
    let words = (head >> 32) as u32;
    let mut address = || {
        let offset = next(1)?.1[0];
        let address = Address { node: NodeId(0), region: RegionId((head >> 8) as u16), offset };
        if offset.is_multiple_of(8) { Ok(address) } else { Err(Malformed::Unaligned) }
    };
    Ok(match (head & 0xff00_00ff, words) {
        (READ, _) => Verb::Read { at: address()?, words, into },
        (WRITE, _) => {
            let at = address()?;
            Verb::Write { at, words, from: next(words as usize)?.0 }
        }
        (SWAP, 1) => {
            let at = address()?;
            let (_, operands) = next(2)?;
            Verb::CompareSwap { at, expected: operands[0], new: operands[1], into }
        }
        (ADD, 1) => {
            let at = address()?;
            Verb::FetchAdd { at, delta: next(1)?.1[0], into }
        }
        (CALL, _) => {
            let capacity = next(1)?.1[0];
            let capacity = u32::try_from(capacity).map_err(|_| Malformed::TooLong)?;
            let (start, _) = next(words as usize)?;
            Verb::Call { node: NodeId(0), head: start, head_words: words, body: start, body_words: 0, into, capacity }
        }
        (FLUSH, 0) => Verb::Flush { node: NodeId(0) },
        _ => return Err(Malformed::Verb(head)),
    })
}

/// Returns the number of words of a verb's answer in a response. For a call it is the largest
/// number.
pub(crate) fn answer_words(verb: &Verb) -> usize {
    match *verb {
        Verb::Read { words, .. } => words as usize,
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 1,
        Verb::Call { capacity, .. } => 1 + capacity as usize,
        Verb::Write { .. } | Verb::Flush { .. } | Verb::AfterCompletion => 0,
    }
}

/// Copies the answers of a response to where the verbs of its request want them.
pub(crate) fn take_answers<'v>(
    mut answers: &[u64],
    verbs: impl Iterator<Item = &'v Verb>,
    words: &mut [u64],
) -> Result<(), Malformed> {
    for verb in verbs {
        let (into, count) = match *verb {
            Verb::Read { into, words, .. } => (into, words as usize),
            Verb::CompareSwap { into, .. } | Verb::FetchAdd { into, .. } => (into, 1),
            Verb::Call { into, capacity, .. } => {
                let length = *answers.first().ok_or(Malformed::Answer)?;
                if length > u64::from(capacity) {
                    return Err(Malformed::Answer);
                }
                (into, 1 + length as usize)
            }
            Verb::Write { .. } | Verb::Flush { .. } | Verb::AfterCompletion => continue,
        };
        let (now, later) = answers.split_at_checked(count).ok_or(Malformed::Answer)?;
        words[into as usize..][..count].copy_from_slice(now);
        answers = later;
    }
    if answers.is_empty() { Ok(()) } else { Err(Malformed::Answer) }
}

/// The status of a frame that has run.
pub(crate) const DONE: u8 = 0;
const NO_SUCH_REGION: u8 = 1;
const OUT_OF_BOUNDS: u8 = 2;
const NO_HANDLER: u8 = 3;
const REPLY_TOO_LONG: u8 = 4;
/// The status of a client whose access has been revoked. It is the last frame of a connection,
/// whatever was asked.
pub(crate) const REVOKED: u8 = 5;
const NO_RDMA: u8 = 6;
/// The status of a server that cannot make a queue pair, because of what it was told or because of
/// its device. The error number of the server's system follows, if there is one.
const NO_QUEUE: u8 = 7;
const NEEDS_RDMA: u8 = 8;

/// Appends the response of a round that failed.
pub(crate) fn put_fault(out: &mut Outbox, fault: Fault, ticket: u64) {
    let (status, words, count) = match fault {
        Fault::NoSuchRegion(at) => (NO_SUCH_REGION, [u64::from(at.region.0), at.offset, 0], 2),
        Fault::OutOfBounds { at, bytes } => (OUT_OF_BOUNDS, [u64::from(at.region.0), at.offset, bytes], 3),
        Fault::NoHandler => (NO_HANDLER, [0; 3], 0),
        Fault::ReplyTooLong { words, capacity } => (REPLY_TOO_LONG, [u64::from(words), u64::from(capacity), 0], 2),
        Fault::Refused(Refusal::NoRdma) => (NO_RDMA, [0; 3], 0),
        Fault::Refused(Refusal::NeedsRdma) => (NEEDS_RDMA, [0; 3], 0),
        Fault::Refused(Refusal::Rdma(SystemError::Number(number))) => (NO_QUEUE, [u64::from(number as u32), 0, 0], 1),
        Fault::Refused(Refusal::Rdma(SystemError::Kind(_))) => (NO_QUEUE, [0; 3], 0),
        // Executing a verb that could be decoded has no other faults. If one appears, the client
        // has lost this node.
        _ => (REVOKED, [0; 3], 0),
    };
    let at = begin_response(out, status, ticket);
    out.extend(&words[..count]);
    end(out, at);
}

/// Returns the fault that a response's status and words report. `node` is the number by which the
/// client knows the node.
pub(crate) fn fault(status: u8, words: &[u64], node: NodeId) -> Result<Fault, Malformed> {
    let address = |region: u64, offset: u64| match u16::try_from(region) {
        Ok(region) => Ok(Address { node, region: RegionId(region), offset }),
        Err(_) => Err(Malformed::Answer),
    };
    let short = |word: u64| u32::try_from(word).map_err(|_| Malformed::Answer);
    Ok(match (status, words) {
        (NO_SUCH_REGION, &[region, offset]) => Fault::NoSuchRegion(address(region, offset)?),
        (OUT_OF_BOUNDS, &[region, offset, bytes]) => Fault::OutOfBounds { at: address(region, offset)?, bytes },
        (NO_HANDLER, []) => Fault::NoHandler,
        (REPLY_TOO_LONG, &[words, capacity]) => {
            Fault::ReplyTooLong { words: short(words)?, capacity: short(capacity)? }
        }
        (REVOKED, []) => Fault::Revoked,
        (NO_RDMA, []) => Fault::Refused(Refusal::NoRdma),
        (NEEDS_RDMA, []) => Fault::Refused(Refusal::NeedsRdma),
        (NO_QUEUE, []) => Fault::Refused(Refusal::Rdma(std::io::ErrorKind::ConnectionRefused.into())),
        (NO_QUEUE, &[number]) => Fault::Refused(Refusal::Rdma(SystemError::Number(short(number)? as i32))),
        _ => return Err(Malformed::Status(status)),
    })
}

// A frame has room for any one verb with all that a round can carry. A response has room for all
// that a round can read.
const _: () = assert!(FRAME_WORDS_MAX >= HEAD_WORDS + VERB_WORDS_MAX + ROUND_WORDS_MAX);

#[cfg(test)]
mod tests;
