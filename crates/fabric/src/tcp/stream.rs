//! What server and clients read and write through: a socket, or TLS over one.
//!
//! Both behave alike, so that no event loop knows which one it has. Of TLS that asks two things. What has been read from
//! the socket is handed out whole, so that a poller that reports no socket has nothing to report. And bytes count as
//! written when their ciphertext has left, so that who waits to write has something unsent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::tcp::tls::{ClientTls, ServerTls, Session, TlsReason};

/// A connection to the other end.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<Session>),
}

impl Stream {
    /// A client's end; `host` is who the server must be.
    pub(crate) fn client(socket: TcpStream, tls: Option<&ClientTls>, host: &str) -> Result<Stream, TlsReason> {
        Ok(match tls {
            Some(tls) => Stream::Tls(Box::new(tls.session(socket, host)?)),
            None => Stream::Plain(socket),
        })
    }

    /// A server's end.
    pub(crate) fn server(socket: TcpStream, tls: Option<&ServerTls>) -> io::Result<Stream> {
        Ok(match tls {
            Some(tls) => Stream::Tls(Box::new(tls.session(socket)?)),
            None => Stream::Plain(socket),
        })
    }

    /// The socket itself, for its options and for pollers.
    #[inline]
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(session) => session.socket(),
        }
    }

    /// Whether what is read and written is secret.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Whether TLS has something of its own to send, and the socket took no more.
    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(session) => session.is_blocked(),
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(into),
            Stream::Tls(session) => session.read(into),
        }
    }
}

impl Write for Stream {
    /// After "would block", the next bytes to be written are the same ones.
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(from),
            Stream::Tls(session) => session.write(from),
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
        while let Stream::Tls(session) = &mut self.stream
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

    /// A socket's time limit shows as "would block", as does TLS that has read something but no whole record.
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
