//! What server and clients read and write through: a socket, or TLS over one, or the queue pair
//! that was made by it.
//!
//! Both behave alike, so that no event loop knows which one it has. Of TLS that asks two things.
//! What has been read from the socket is handed out whole, so that a poller that reports no socket
//! has nothing to report. And bytes count as written when their ciphertext has left, so that who
//! waits to write has something unsent.

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
    /// If there is one, everything goes through it but the last words, and the end of the
    /// connection is its end.
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
    /// Whether reading looks at the connection too, ...
    look: bool,
    /// ... and does so every time.
    always: bool,
    /// The last read has found nothing, and its channel wakes for whatever comes.
    quiet: bool,
}

impl Stream {
    /// A client's end; `host` is who the server must be.
    pub(crate) fn client(socket: TcpStream, tls: Option<&ClientTls>, host: &str) -> Result<Stream, TlsReason> {
        let wire = match tls {
            Some(tls) => Wire::Tls(Box::new(tls.session(socket, host)?)),
            None => Wire::Plain(socket),
        };
        Ok(Stream { wire, queue: None })
    }

    /// A server's end.
    pub(crate) fn server(socket: TcpStream, tls: Option<&ServerTls>) -> io::Result<Stream> {
        let wire = match tls {
            Some(tls) => Wire::Tls(Box::new(tls.session(socket)?)),
            None => Wire::Plain(socket),
        };
        Ok(Stream { wire, queue: None })
    }

    /// From now on what is written and read goes over the queue pair. `always` looks at the
    /// connection whenever there is nothing else to read; otherwise that is done after
    /// [`Stream::look`].
    pub(crate) fn set_queue(&mut self, queue: Queue, always: bool) {
        self.queue = Some(Box::new(Queued { queue, look: true, always, quiet: false }));
    }

    /// Destroys the queue pair: when this returns, no verb takes effect through it any more.
    pub(crate) fn end_queue(&mut self) {
        self.queue = None;
    }

    /// The queue pair, if there is one.
    #[inline]
    pub(crate) fn queue(&mut self) -> Option<&mut Queue> {
        self.queue.as_mut().map(|queued| &mut queued.queue)
    }

    /// What becomes readable beside the socket.
    pub(crate) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.queue.as_ref().map(|queued| queued.queue.channel())
    }

    /// Has the next read look at the connection, too.
    #[inline]
    pub(crate) fn look(&mut self) {
        if let Some(queued) = &mut self.queue {
            queued.look = true;
        }
    }

    /// Names who is to be told of news of the queue pair, beside the channel.
    pub(crate) fn own(&mut self, owner: usize) {
        if let Some(queued) = &self.queue {
            queued.queue.own(owner);
        }
    }

    /// For who waits to write: whether there is room now that was not there before. If not, its
    /// channel wakes for it.
    pub(crate) fn has_room_since(&mut self) -> bool {
        self.queue.as_mut().is_some_and(|queued| queued.queue.arm_for_room())
    }

    /// Whether there may be more to read that no poller tells of: as long as the last read has
    /// found something.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.queue.as_ref().is_some_and(|queued| !queued.quiet)
    }

    /// The socket itself, for its options and for pollers.
    #[inline]
    pub(crate) fn socket(&self) -> &TcpStream {
        match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Tls(session) => session.socket(),
        }
    }

    /// Whether what is read and written is secret.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.wire, Wire::Tls(_))
    }

    /// Whether TLS has something of its own to send, and the socket took no more.
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
        // The connection says nothing but its last words. If it has not come to them, the queue
        // pair's word counts.
        match wire.read(into) {
            Err(nothing) if nothing.kind() == ErrorKind::WouldBlock => Err(error),
            last => last,
        }
    }
}

impl Write for Stream {
    /// After "would block", the next bytes to be written are the same ones.
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match (&mut self.queue, &mut self.wire) {
            (Some(queued), _) => queued.queue.write(from),
            (None, Wire::Plain(socket)) => socket.write(from),
            (None, Wire::Tls(session)) => session.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A blocking stream all of whose operations together have one deadline.
pub(crate) struct Timed<'s> {
    pub(crate) stream: &'s mut Stream,
    pub(crate) deadline: Instant,
}

impl Timed<'_> {
    /// Shakes hands for TLS, if it is to be TLS.
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

    /// A socket's time limit shows as "would block", as does TLS that has read something but no
    /// whole record.
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

/// Leaves the next operation of a socket the time until the deadline.
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

/// Options of a connection's socket, at both ends: answers go out at once, and a peer that is gone
/// is noticed.
pub(crate) fn set_up(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_keepalive(stream, true)?;
    // Whole seconds: the kernel knows no shorter times.
    let third = Duration::from_secs((patience.as_secs() / 3).max(1));
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, third)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}
