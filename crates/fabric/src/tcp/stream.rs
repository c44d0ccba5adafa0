//! A stream, through which server and client read and write: a socket, TLS over a socket, or the
//! queue pair that was made over one.
//!
//! All kinds behave alike, so no event loop knows which one it has. For TLS this needs two things.
//! All that has been read from the socket is handed out, so there is nothing to read when a poller
//! reports no socket. And bytes count as written only when their ciphertext has left, so a caller
//! that waits to write has something unsent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::rdma::Queue;
use crate::tcp::tls::{ClientTls, ServerTls, TlsReason, TlsSession};

/// A connection to the other end.
#[derive(Debug)]
pub(crate) struct Stream {
    wire: Wire,
    /// The queue pair, if there is one. Everything goes through it except the last message. The end
    /// of the connection is its end.
    queue: Option<Box<Queued>>,
}

#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsSession>),
}

#[derive(Debug)]
struct Queued {
    queue: Queue,
    /// Whether the next read also looks at the connection.
    look: bool,
    /// Whether every read also looks at the connection.
    always: bool,
    /// Whether the last read has found nothing, and the channel is armed to wake for what comes.
    quiet: bool,
}

impl Stream {
    /// Makes a client's end. `host` is the name or address that the server must prove.
    pub(crate) fn client(socket: TcpStream, tls: Option<&ClientTls>, host: &str) -> Result<Stream, TlsReason> {
        let wire = match tls {
            Some(tls) => Wire::Tls(Box::new(tls.session(socket, host)?)),
            None => Wire::Plain(socket),
        };
        Ok(Stream { wire, queue: None })
    }

    /// Makes a server's end.
    pub(crate) fn server(socket: TcpStream, tls: Option<&ServerTls>) -> io::Result<Stream> {
        let wire = match tls {
            Some(tls) => Wire::Tls(Box::new(tls.session(socket)?)),
            None => Wire::Plain(socket),
        };
        Ok(Stream { wire, queue: None })
    }

    /// Makes everything that is written and read go over the queue pair from now on. With `always`,
    /// a read looks at the connection whenever the queue pair has nothing. Otherwise a read does so
    /// only after [`Stream::look`].
    pub(crate) fn set_queue(&mut self, queue: Queue, always: bool) {
        self.queue = Some(Box::new(Queued { queue, look: true, always, quiet: false }));
    }

    /// Destroys the queue pair. When this returns, no verb takes effect through it any more.
    pub(crate) fn end_queue(&mut self) {
        self.queue = None;
    }

    /// Returns the queue pair, if there is one.
    #[inline]
    pub(crate) fn queue(&mut self) -> Option<&mut Queue> {
        self.queue.as_mut().map(|queued| &mut queued.queue)
    }

    /// Returns the channel that becomes readable beside the socket.
    pub(crate) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref().map(|queued| queued.queue.channel())
    }

    /// Makes the next read also look at the connection.
    #[inline]
    pub(crate) fn look(&mut self) {
        if let Some(queued) = &mut self.queue {
            queued.look = true;
        }
    }

    /// Sets the owner that is told of news of the queue pair, beside the channel.
    pub(crate) fn own(&mut self, owner: usize) {
        if let Some(queued) = &self.queue {
            queued.queue.own(owner);
        }
    }

    /// Whether there is room to write now that was not there before. If not, the channel is armed
    /// to wake for it.
    pub(crate) fn has_room_since(&mut self) -> bool {
        self.queue.as_mut().is_some_and(|queued| queued.queue.arm_for_room())
    }

    /// Whether there may be more to read that no poller reports: the last read has found something.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.queue.as_ref().is_some_and(|queued| !queued.quiet)
    }

    /// Returns the socket itself, for its options and for pollers.
    #[inline]
    pub(crate) fn socket(&self) -> &TcpStream {
        match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Tls(session) => session.socket(),
        }
    }

    /// Whether what is read and written is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.wire, Wire::Tls(_))
    }

    /// Whether TLS has something of its own to send, and the socket accepted no more.
    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        match &self.wire {
            Wire::Plain(_) => false,
            Wire::Tls(session) => session.is_blocked(),
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.queue {
            None => self.wire.read(into),
            Some(queued) => queued.read(into, &mut self.wire),
        }
    }
}

impl Read for Wire {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(into),
            Wire::Tls(session) => session.read(into),
        }
    }
}

impl Queued {
    #[inline]
    fn read(&mut self, into: &mut [u8], wire: &mut Wire) -> io::Result<usize> {
        let first = self.queue.read(into);
        let first = match first {
            Err(error) if error.kind() == ErrorKind::WouldBlock && self.always && self.queue.arm() => {
                self.queue.read(into)
            }
            other => other,
        };
        self.quiet = first.is_err();
        let Err(error) = first else { return first };
        let look = std::mem::replace(&mut self.look, self.always);
        if !look && error.kind() == ErrorKind::WouldBlock {
            return Err(error);
        }
        // The connection carries nothing but its last message. If it has not come to that, the
        // result of the queue pair counts.
        match wire.read(into) {
            Err(nothing) if nothing.kind() == ErrorKind::WouldBlock => Err(error),
            last => last,
        }
    }
}

impl Write for Stream {
    /// Writes bytes. After "would block", the next call must begin with the same bytes. What is
    /// written to a queue pair may wait for [`Stream::flush`].
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match (&mut self.queue, &mut self.wire) {
            (Some(queued), _) => queued.queue.write(from),
            (None, Wire::Plain(socket)) => socket.write(from),
            (None, Wire::Tls(session)) => session.write(from),
        }
    }

    /// Makes what was written leave, together with what was written to other streams of the same
    /// endpoint. It never fails: a broken queue pair shows at the next read.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if let Some(queued) = &mut self.queue {
            queued.queue.ring();
        }
        Ok(())
    }
}

/// A blocking stream whose operations all together have one deadline.
pub(crate) struct Timed<'s> {
    pub(crate) stream: &'s mut Stream,
    pub(crate) deadline: Instant,
}

impl Timed<'_> {
    /// Does the TLS handshake, if the stream uses TLS.
    pub(crate) fn secure(&mut self) -> io::Result<()> {
        while let Wire::Tls(session) = &mut self.stream.wire
            && session.is_shaking_hands()
        {
            limit(session.socket(), self.deadline)?;
            match session.read(&mut []) {
                Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Repeats an operation until it is done. A socket's time limit shows as "would block", as does
    /// TLS that has read a part of a record only.
    fn repeat<T>(&mut self, mut operation: impl FnMut(&mut Stream) -> io::Result<T>) -> io::Result<T> {
        loop {
            limit(self.stream.socket(), self.deadline)?;
            match operation(self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }
}

/// Limits the next operation of a socket to the time until the deadline.
fn limit(socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => return Err(ErrorKind::TimedOut.into()),
        left => Some(left),
    };
    socket.set_read_timeout(left)?;
    socket.set_write_timeout(left)
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.repeat(|stream| stream.read(into))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.repeat(|stream| stream.write(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sets the options of a connection's socket, at both ends: answers go out at once, and a peer that
/// is gone is noticed.
pub(crate) fn set_up(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_keepalive(stream, true)?;
    // Whole seconds, because the kernel knows no shorter times.
    let third = Duration::from_secs((patience.as_secs() / 3).max(1));
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, third)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}
