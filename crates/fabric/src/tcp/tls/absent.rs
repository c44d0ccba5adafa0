//! A program without TLS: none of these can exist, and the compiler knows it.

use std::io;
use std::net::TcpStream;
use std::path::Path;

use super::{TlsError, TlsReason};

/// What a server proves by who it is. Needs the cargo feature `tls`.
#[derive(Clone, Debug)]
pub enum ServerTls {}

impl ServerTls {
    /// Always [`TlsError::NotBuilt`].
    pub fn read(_certificates: &Path, _private_key: &Path) -> Result<ServerTls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub(crate) fn session(&self, _: TcpStream) -> io::Result<TlsSession> {
        match *self {}
    }
}

/// Whose certificates a client trusts. Needs the cargo feature `tls`.
#[derive(Clone, Debug)]
pub enum ClientTls {}

impl ClientTls {
    /// Always [`TlsError::NotBuilt`].
    pub fn read(_trusted: &Path) -> Result<ClientTls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub(crate) fn session(&self, _: TcpStream, _: &str) -> Result<TlsSession, TlsReason> {
        match *self {}
    }
}

/// Why TLS refused the other end, if that is what an error is about.
pub(crate) fn reason(_: &io::Error) -> Option<TlsReason> {
    None
}

#[derive(Debug)]
pub(crate) enum TlsSession {}

impl TlsSession {
    pub(crate) fn socket(&self) -> &TcpStream {
        match *self {}
    }

    pub(crate) fn is_blocked(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_shaking_hands(&self) -> bool {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }
}
