//! A connection: a socket, and what has not been served or sent yet.

use std::io::{self, ErrorKind};

use remora_fabric::Nanos;

use super::wire::Wire;
use super::{UNSENT_LOW, UNSENT_MAX};

/// A connection of a thread.
pub(super) struct Connection<C> {
    pub(super) id: u64,
    pub(super) wire: Wire,
    /// The handler's state. A lane has it while a batch is under way.
    pub(super) state: Option<C>,
    /// Input that the handler has not taken.
    pub(super) rest: Vec<u8>,
    /// Output, of which the first `sent` bytes have left.
    output: Vec<u8>,
    sent: usize,
    /// When the last bytes were read.
    pub(super) heard: Nanos,
    /// Until when the handler does not want to be called.
    pub(super) paused: Option<Nanos>,
    /// Whether there may be something to read.
    pub(super) readable: bool,
    /// Whether the client has closed its end, so that a read will show it, or an error.
    pub(super) ending: bool,
    /// Whether the handler is to be called without new bytes.
    pub(super) again: bool,
    /// Whether the connection waits for a lane.
    pub(super) queued: bool,
    /// Whether the connection waits until others have less unfinished input.
    pub(super) short_of_memory: bool,
    /// Whether the connection has had too much unsent output, and still has.
    pub(super) stalled: bool,
    /// Whether the connection is closed as soon as its output has been sent.
    pub(super) closing: bool,
    /// Whether the connection is closed although output may be unsent.
    pub(super) broken: bool,
}

impl<C> Connection<C> {
    pub(super) fn new(id: u64, wire: Wire, state: Option<C>, now: Nanos) -> Connection<C> {
        Connection {
            id,
            wire,
            state,
            rest: Vec::new(),
            output: Vec::new(),
            sent: 0,
            heard: now,
            paused: None,
            readable: false,
            ending: false,
            again: false,
            queued: false,
            short_of_memory: false,
            stalled: false,
            closing: false,
            broken: false,
        }
    }

    /// Whether a lane is to serve the connection.
    pub(super) fn wants_lane(&self) -> bool {
        let hindered = self.queued | self.closing | self.broken | self.stalled | self.short_of_memory;
        self.state.is_some() && !hindered && self.paused.is_none() && (self.readable || self.again)
    }

    /// Whether the connection has come to its end, and no lane has its state.
    pub(super) fn is_over(&self) -> bool {
        let is_served = self.state.is_none() && !self.closing;
        !is_served && (self.broken || self.closing && self.unsent() == 0)
    }

    /// Returns the number of bytes that have not been sent.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Reads once. Returns the number of bytes, 0 at the end of the stream, and `None` if there is
    /// nothing now.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.wire.read(into) {
            Ok(bytes) => {
                // All that had come has been read. The poller shows what comes later, and the end.
                self.readable = self.ending || self.wire.has_more(bytes == into.len());
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = self.wire.has_more(false);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends this output behind what is unsent, and keeps what does not leave. Returns the number
    /// of bytes that have left. `output` is empty then.
    pub(super) fn send(&mut self, output: &mut Vec<u8>) -> usize {
        if self.unsent() > 0 {
            self.output.append(output);
            self.stalled |= self.unsent() > UNSENT_MAX;
            return 0;
        }
        std::mem::swap(&mut self.output, output);
        self.sent = 0;
        let sent = self.flush();
        std::mem::swap(&mut self.output, output);
        if self.sent == output.len() || self.broken {
            output.clear();
            self.sent = 0;
        } else {
            self.output = std::mem::take(output);
            self.stalled |= self.unsent() > UNSENT_MAX;
        }
        sent
    }

    /// Sends unsent output. Returns the number of bytes that have left.
    pub(super) fn flush(&mut self) -> usize {
        let before = self.sent;
        while self.sent < self.output.len() {
            match self.wire.write(&self.output[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.broken = true;
                    break;
                }
            }
        }
        self.sent - before
    }

    /// Sends unsent output because the socket accepts some again. Returns the number of bytes that
    /// have left.
    pub(super) fn go_on_sending(&mut self) -> usize {
        let sent = self.flush();
        if self.unsent() == 0 {
            let outcome = self.wire.send();
            self.broken |= outcome.is_err_and(|error| error.kind() != ErrorKind::WouldBlock);
            self.output = Vec::new();
            self.sent = 0;
        } else if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        self.stalled &= self.unsent() >= UNSENT_LOW;
        sent
    }
}
