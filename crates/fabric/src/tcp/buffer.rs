//! Buffers for words on their way to and from a socket.
//!
//! A thread has one [`Receiver`] for all its connections. A connection itself keeps only the part
//! of its last read that was not a whole frame. So an idle connection holds next to no memory, and
//! a frame that came in one piece is not copied.

use std::io::{self, ErrorKind, Read, Write};

use zerocopy::IntoBytes;

use crate::address::WORD_BYTES;
use crate::limits::RECEIVE_BYTES;
use crate::tcp::stream::Stream;

/// The words of a connection that are to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The words. They are initialized once and then overwritten; what lies behind `end` belongs to
    /// earlier frames.
    words: Vec<u64>,
    end: usize,
    sent_bytes: usize,
}

impl Outbox {
    /// Returns the place of the next word.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Returns the number of bytes that have not been sent.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.end * WORD_BYTES - self.sent_bytes
    }

    /// Returns the bytes that have not been sent.
    #[inline]
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.words[..self.end].as_bytes()[self.sent_bytes..]
    }

    /// Returns all words, from the first that [`Outbox::end`] has counted.
    #[inline]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words[..self.end]
    }

    /// Adds `words` words of arbitrary content. Returns the place of the first.
    #[inline]
    pub(crate) fn grow(&mut self, words: usize) -> usize {
        let at = self.end;
        self.end = at + words;
        if self.end > self.words.len() {
            self.words.resize(self.end.next_power_of_two().max(512), 0);
        }
        at
    }

    #[inline]
    pub(crate) fn push(&mut self, word: u64) {
        let at = self.grow(1);
        self.words[at] = word;
    }

    #[inline]
    pub(crate) fn extend(&mut self, words: &[u64]) {
        let at = self.grow(words.len());
        self.words[at..][..words.len()].copy_from_slice(words);
    }

    /// Adds bytes, whose number is a multiple of 8.
    pub(crate) fn extend_bytes(&mut self, bytes: &[u8]) {
        let at = self.grow(bytes.len() / WORD_BYTES);
        self.words[at..self.end].as_mut_bytes().copy_from_slice(bytes);
    }

    /// Removes everything from `end` on.
    #[inline]
    pub(crate) fn truncate(&mut self, end: usize) {
        self.end = end;
    }

    pub(crate) fn clear(&mut self) {
        self.end = 0;
        self.sent_bytes = 0;
    }

    /// Sends as many bytes as the stream accepts. Returns true if that was everything. Places of
    /// words are no longer valid after it.
    pub(crate) fn send(&mut self, stream: &mut Stream) -> io::Result<bool> {
        while self.bytes() > 0 {
            match stream.write(self.unsent()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent_bytes += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.compact();
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(true)
    }

    /// Gives back the room in front of the unsent words, once that is worth the copy.
    fn compact(&mut self) {
        let words = self.sent_bytes / WORD_BYTES;
        if words > self.end / 2 {
            self.words.copy_within(words..self.end, 0);
            self.end -= words;
            self.sent_bytes -= words * WORD_BYTES;
        }
    }
}

/// The part of a connection's last read that was not a whole frame.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    words: Vec<u64>,
    bytes: usize,
}

/// The buffer in which a thread receives, for one connection after the other.
#[derive(Debug)]
pub(crate) struct Receiver {
    words: Box<[u64]>,
    bytes: usize,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// It found something, and there may be more.
    Some,
    /// It found something, and there is no more for now.
    All,
    /// It found nothing for now.
    Nothing,
    /// The other end has closed the connection.
    End,
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        Receiver { words: vec![0; RECEIVE_BYTES / WORD_BYTES].into(), bytes: 0 }
    }

    /// Begins with the words that are left of a connection's last read.
    #[inline]
    pub(crate) fn resume(&mut self, rest: &mut Rest) {
        let words = rest.bytes.div_ceil(WORD_BYTES);
        self.words[..words].copy_from_slice(&rest.words[..words]);
        self.bytes = std::mem::take(&mut rest.bytes);
    }

    /// Reads once.
    pub(crate) fn read(&mut self, stream: &mut Stream) -> io::Result<Received> {
        let room = &mut self.words.as_mut_bytes()[self.bytes..];
        let bytes = room.len();
        if bytes == 0 {
            return Ok(Received::Some); // an empty read would look like the end
        }
        loop {
            return match stream.read(room) {
                Ok(0) => Ok(Received::End),
                Ok(count) => {
                    self.bytes += count;
                    Ok(if count == bytes { Received::Some } else { Received::All })
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Received::Nothing),
                Err(error) => Err(error),
            };
        }
    }

    /// Returns the whole words that have been received.
    #[inline]
    pub(crate) fn words(&mut self) -> &mut [u64] {
        &mut self.words[..self.bytes / WORD_BYTES]
    }

    /// Keeps the words behind the first `used` words for the connection's next turn.
    #[inline]
    pub(crate) fn leave(&mut self, used: usize, rest: &mut Rest) {
        rest.bytes = self.bytes - used * WORD_BYTES;
        if rest.bytes > 0 {
            rest.words.clear();
            rest.words.extend_from_slice(&self.words[used..self.bytes.div_ceil(WORD_BYTES)]);
        }
        self.bytes = 0;
    }
}
