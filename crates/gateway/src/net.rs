//! Threads and sockets. Each thread owns connections, one poller and one worker of the cluster.
//! What the bytes of a connection mean is for a [`Handler`] to say.
//!
//! A connection is a small struct and has no coroutine. The worker's coroutines are *lanes*: each
//! takes one batch of bytes at a time, whichever connection it is of. A turn of a thread is:
//!
//! 1. Look at the poller, or wait in it if there is nothing to do ([`remora_fabric::waiting`]).
//! 2. While a lane is free, take the connection that has waited longest, read once into the lane's
//!    buffer, and hand it over. If no lane is free, the bytes stay in the kernel.
//! 3. Turn the worker: lanes run the handler, and rounds to memory nodes leave and arrive.
//! 4. Send what the finished lanes have answered, with one call for each connection.
//!
//! These rules hold:
//!
//! 1. **Order.** A connection has at most one batch under way, and is read again only when that
//!    batch is done. So answers leave in the order of the commands.
//! 2. **Fairness.** Connections wait in one queue, and a connection that has been served goes to
//!    its end. So a lane that is free serves every other connection before one is served twice.
//! 3. **Unfinished input** stays with its connection. Its buffer grows with what has come, never
//!    with what was announced, and a connection without unfinished input or unsent output has no
//!    buffer at all.
//! 4. **Memory.** All unfinished input together has at most [`ServeOptions::memory_max`] bytes, of
//!    which each thread has an equal part. Over half of its part, a thread reads little pieces
//!    only, and stops reading from connections that have much unfinished input; of these it serves
//!    one at a time, in the order in which they were stopped. If that one finds no room for a
//!    second, the connections that hold more than it are closed, the longest first, until there is
//!    room; or else itself. A connection that was stopped and whose client closes its end is closed
//!    at once.
//! 5. **Back-pressure.** A connection with more than [`UNSENT_MAX`] unsent bytes is neither read
//!    nor served until it has less than [`UNSENT_LOW`]. A handler returns [`Next::Again`] when its
//!    output is that long, so that a batch does not add to it without bound.
//! 6. **Half-closed connections.** A client that has closed its end for writing still gets the
//!    answers to all complete commands. Then the gateway closes the connection.
//! 7. **Stop.** After [`Control::stop`] no connection is accepted and nothing is read. What has
//!    been read is run, the answers are sent, and the worker leaves the cluster.
//! 8. **TLS** is a part of the connection: a read decrypts all that it has read, and bytes count as
//!    sent when their ciphertext has left. No handshake holds a lane. A client that does not end it
//!    within [`ServeOptions::handshake_max`] is closed.

mod connection;
mod control;
mod error;
mod gateway;
mod lanes;
mod thread;
mod tls;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use remora::Session;

pub use control::{Control, Counts};
pub use error::ServeError;
pub use gateway::{Gateway, ServeOptions, serve};
pub use tls::{Tls, TlsFiles};

/// Unsent bytes with which a connection is neither read nor served.
pub const UNSENT_MAX: usize = 1 << 20;
/// Unsent bytes below which a connection that was stopped is read and served again.
pub const UNSENT_LOW: usize = 256 << 10;
/// Bytes that are read from a connection at once.
pub const READ_BYTES: usize = 64 << 10;

const _: () = assert!(UNSENT_LOW < UNSENT_MAX);

/// What the bytes of a connection mean. Each thread has a handler of its own, which serves all
/// connections of that thread.
pub trait Handler: 'static {
    /// The state of a connection. While a batch of the connection runs, the lane has it.
    type Connection;

    /// Begins a connection. An error refuses it: its bytes are sent, and the connection is closed.
    fn open(&self, origin: &Origin) -> Result<Self::Connection, Vec<u8>>;

    /// Begins a lane, with the session that all of its batches will have.
    fn begin(&self, session: &mut Session) {
        let _ = session;
    }

    /// Runs complete commands from the front of `input`, takes them from it, and writes the answers
    /// behind what `output` has. [`Next`] says how the connection goes on.
    ///
    /// The next call gets the bytes that were not taken, in the state in which this call has left
    /// them, and more bytes behind them. A call may get no new byte, after [`Next::Again`] and
    /// [`Next::Pause`].
    ///
    /// Errors of transactions are for the handler to answer. If it panics, the connection is
    /// closed.
    fn serve(
        &self,
        session: &mut Session,
        connection: &mut Self::Connection,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> impl Future<Output = Next>;

    /// Returns whether to close a connection that has sent nothing for this time. Each thread asks
    /// about once a second, for the connections that no lane serves.
    fn is_overdue(&self, connection: &Self::Connection, quiet: Duration) -> bool {
        let _ = (connection, quiet);
        false
    }

    /// Ends a connection, whichever side has closed it.
    fn close(&self, connection: Self::Connection);
}

/// How a connection goes on after [`Handler::serve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The handler has run all complete commands, and needs more bytes.
    More,
    /// The handler has left complete commands, for example because the output is long, or because
    /// other connections should have their turn. It is called again without new bytes.
    Again,
    /// The handler is called again after this time, or when [`Control::wake`] names the connection,
    /// without new bytes. Meanwhile the connection has no lane and is not read. A handler that
    /// delays an answer keeps it in the state of the connection.
    Pause(Duration),
    /// The output is sent, and the connection is closed.
    Close,
}

/// Where a connection comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The number of the connection. No other connection of this gateway has it, at any time.
    pub id: u64,
    /// The client's address.
    pub peer: SocketAddr,
    /// The address at which the client has reached the gateway.
    pub local: SocketAddr,
}
