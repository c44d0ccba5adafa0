//! What a connection reads from and writes to: a socket, or TLS over a socket.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use remora_fabric::tcp::tls::TlsSession;

use super::Tls;

pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsSession>),
}

impl Wire {
    pub(super) fn new(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Wire> {
        Ok(match tls {
            None => Wire::Plain(socket),
            Some(tls) => Wire::Tls(Box::new(tls.session(socket)?)),
        })
    }

    /// Reads once.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(into),
            Wire::Tls(session) => session.read(into),
        }
    }

    /// Whether the last read may have left something, which the poller does not report again. It
    /// has filled all of its room, or not.
    pub(super) fn has_more(&self, is_full: bool) -> bool {
        match self {
            Wire::Plain(_) => is_full,
            Wire::Tls(session) => session.has_more(),
        }
    }

    /// Whether a read must have room for a whole buffer.
    pub(super) fn needs_room(&self) -> bool {
        matches!(self, Wire::Tls(_))
    }

    /// Writes bytes. After "would block", the next call must begin with the same bytes.
    pub(super) fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.write(from),
            Wire::Tls(session) => session.write(from),
        }
    }

    /// Whether TLS has something of its own to send.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self, Wire::Tls(session) if session.is_blocked())
    }

    /// Sends what TLS has to send.
    pub(super) fn send(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(_) => Ok(()),
            Wire::Tls(session) => session.send(),
        }
    }

    /// Whether the client has not finished the handshake.
    pub(super) fn is_shaking_hands(&self) -> bool {
        matches!(self, Wire::Tls(session) if session.is_shaking_hands())
    }

    /// Tells the client that nothing more comes, if it is not silent and the socket accepts that.
    pub(super) fn end(&mut self) {
        if let Wire::Tls(session) = self
            && !session.is_shaking_hands()
        {
            // The socket is closed next, whatever the client knows.
            let _ = session.close();
        }
    }
}
