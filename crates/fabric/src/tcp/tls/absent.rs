//! The types of TLS for a program that was built without it. No value of them can exist, and the
//! compiler knows that.

use std::io;
use std::net::TcpStream;
use std::path::Path;

use super::{TlsError, TlsReason};

/// The certificate and key by which a server proves who it is. It needs the cargo feature `tls`.
#[derive(Clone, Debug)]
pub enum ServerTls {}

impl ServerTls {
    /// Fails always, with [`TlsError::NotBuilt`].
    pub fn read(_certificates: &Path, _private_key: &Path) -> Result<ServerTls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// Fails always, with [`TlsError::NotBuilt`].
    pub fn read_for(_certificates: &Path, _private_key: &Path, _clients: &Path) -> Result<ServerTls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// Begins a session with a client.
    pub fn session(&self, _: TcpStream) -> io::Result<TlsSession> {
        match *self {}
    }
}

/// The certificates that a client trusts. It needs the cargo feature `tls`.
#[derive(Clone, Debug)]
pub enum ClientTls {}

impl ClientTls {
    /// Fails always, with [`TlsError::NotBuilt`].
    pub fn read(_trusted: &Path) -> Result<ClientTls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub(crate) fn session(&self, _: TcpStream, _: &str) -> Result<TlsSession, TlsReason> {
        match *self {}
    }
}

/// Returns why TLS refused the other end, if the error is about that.
pub(crate) fn reason(_: &io::Error) -> Option<TlsReason> {
    None
}

/// A session of TLS. It needs the cargo feature `tls`.
#[derive(Debug)]
pub enum TlsSession {}

impl TlsSession {
    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        match *self {}
    }

    /// Whether there is ciphertext to send that the socket has not accepted.
    pub fn is_blocked(&self) -> bool {
        match *self {}
    }

    /// Whether there may be more to read that no poller reports.
    pub fn has_more(&self) -> bool {
        match *self {}
    }

    /// Whether the handshake has not ended.
    pub fn is_shaking_hands(&self) -> bool {
        match *self {}
    }

    /// Reads once.
    pub fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    /// Writes bytes.
    pub fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    /// Sends all ciphertext that there is.
    pub fn send(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// Tells the other end that nothing more comes.
    pub fn close(&mut self) -> io::Result<()> {
        match *self {}
    }
}
