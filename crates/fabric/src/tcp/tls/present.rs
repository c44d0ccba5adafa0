//! TLS by `rustls`: whom to trust, and a session over a socket.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, InvalidMessage, RootCertStore,
    ServerConfig, ServerConnection, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::{MAGIC, TlsError, TlsReason};
use crate::address::WORD_BYTES;
use crate::limits::{FRAME_WORDS_MAX, RECEIVE_BYTES};
use crate::tcp::key::OTHERS;

/// Ciphertext that is read from a socket at once.
const SEALED_BYTES: usize = 32 << 10;
/// The largest record, with what is around it.
const RECORD_BYTES_MAX: usize = (16 << 10) + 256 + 5;

// A receiver has room for all that one read can uncover: the rest would wait in the session, and no
// poller knows of it.
const _: () = assert!(RECEIVE_BYTES - FRAME_WORDS_MAX * WORD_BYTES >= SEALED_BYTES + RECORD_BYTES_MAX);

thread_local! {
    /// Where a thread receives ciphertext, for one session after the other: none stays there
    /// between two reads.
    static SEALED: RefCell<Box<[u8]>> = RefCell::new(vec![0; SEALED_BYTES].into());
}

/// The only provider there is: not the process's, which others could set.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = std::fs::read(path).map_err(|error| TlsError::Certificates(error.into()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(TlsError::NoCertificate)
}

/// What a server proves by who it is: a certificate, and the private key to it. Clones share it.
#[derive(Clone)]
pub struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// Reads files in PEM: the server's certificate, followed by the certificates that lead to one
    /// that clients trust, and its private key. A key that others may read is refused: it would
    /// prove nothing.
    pub fn read(certificates: &Path, private_key: &Path) -> Result<ServerTls, TlsError> {
        let chain = self::certificates(certificates)?;
        let file = |error: io::Error| TlsError::PrivateKey(error.into());
        let mut opened = File::open(private_key).map_err(file)?;
        let mode = opened.metadata().map_err(file)?.mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(TlsError::Exposed { mode });
        }
        let mut pem = Vec::new();
        opened.read_to_end(&mut pem).map_err(file)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| TlsError::NoPrivateKey)?;
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let config = config.and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(|_| TlsError::Unusable)?;
        // Nobody comes back to a session: connections live as long as their clients.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(ServerTls(Arc::new(config)))
    }

    pub(crate) fn session(&self, socket: TcpStream) -> io::Result<TlsSession> {
        let session = ServerConnection::new(self.0.clone()).map_err(failed)?;
        Ok(TlsSession::new(socket, session.into()))
    }
}

/// Whose certificates a client trusts. Clones share it.
#[derive(Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads a file in PEM: certificates of authorities, or of the servers themselves.
    pub fn read(trusted: &Path) -> Result<ClientTls, TlsError> {
        let own = certificates(trusted)?;
        let mut roots = RootCertStore::empty();
        for certificate in &own {
            roots.add(certificate.clone()).map_err(|_| TlsError::Unusable)?;
        }
        let authorities = WebPkiServerVerifier::builder_with_provider(roots.into(), provider()).build();
        let trust = Trust { authorities: authorities.map_err(|_| TlsError::Unusable)?, own };
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let config = config.map_err(|_| TlsError::Unusable)?.dangerous();
        let mut config = config.with_custom_certificate_verifier(Arc::new(trust)).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(ClientTls(Arc::new(config)))
    }

    /// A session with a server that must be `host`, a name or an address.
    pub(crate) fn session(&self, socket: TcpStream, host: &str) -> Result<TlsSession, TlsReason> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsReason::Name)?;
        let session = ClientConnection::new(self.0.clone(), name).map_err(|_| TlsReason::Failed)?;
        Ok(TlsSession::new(socket, session.into()))
    }
}

/// What a client trusts: the usual rules, and one exception.
#[derive(Debug)]
struct Trust {
    authorities: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.authorities.verify_server_cert(certificate, chain, name, ocsp, now) {
            // A self-signed certificate says, unless its maker takes care, that it is an
            // authority's; and no server may show such a certificate. If just this one is what the
            // client trusts, that is what was meant. It is in time, which is checked first, but its
            // name has not been looked at.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_))) if self.own.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// A private key is not for logs.
impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls(..)")
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls(..)")
    }
}

/// TLS has refused what came: the whole story, for logs.
fn failed(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Why TLS refused the other end, if that is what an error is about.
pub(crate) fn reason(error: &io::Error) -> Option<TlsReason> {
    let inner = error.get_ref()?;
    if let Some(reason) = inner.downcast_ref() {
        return Some(*reason);
    }
    Some(match inner.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => TlsReason::Name,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsReason::Expired,
            _ => TlsReason::Untrusted,
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => TlsReason::NotOffered,
        _ => TlsReason::Failed,
    })
}

/// TLS over a socket, blocking or not.
///
/// Nothing says goodbye: every frame tells its length. The end of a connection is the end of its
/// node or client, whichever end has cut it.
pub(crate) struct TlsSession {
    socket: TcpStream,
    tls: Connection,
    /// Bytes that have been sealed for the caller, but whose ciphertext has not all left.
    sealed: usize,
    /// Something has come from the other end.
    heard: bool,
}

impl TlsSession {
    fn new(socket: TcpStream, tls: Connection) -> TlsSession {
        TlsSession { socket, tls, sealed: 0, heard: false }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether ciphertext is to be sent that the socket has not taken.
    pub(crate) fn is_blocked(&self) -> bool {
        self.tls.wants_write()
    }

    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Reads once, and hands out all that it uncovers. "Would block" also if that is nothing: no
    /// record is whole yet, or they were TLS's own.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Only who has less room than a receiver leaves something: the key's handshake.
        match self.uncovered(into)? {
            0 => {}
            bytes => return Ok(bytes),
        }
        // If something cannot be sent, what is read says why: the other end's last words come
        // first.
        let _ = self.send();
        let outcome = SEALED.with_borrow_mut(|sealed| self.receive(sealed, into));
        let _ = self.send(); // answers of TLS itself, or why it refuses
        outcome
    }

    fn receive(&mut self, sealed: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(sealed)?;
        let mut sealed = &sealed[..count];
        if !std::mem::replace(&mut self.heard, true) && sealed.starts_with(&MAGIC) && self.is_server() {
            return Err(io::Error::new(ErrorKind::InvalidData, TlsReason::Needed));
        }
        let (mut bytes, mut closed) = (0, count == 0);
        while !sealed.is_empty() && !closed {
            self.tls.read_tls(&mut sealed)?;
            closed = self.tls.process_new_packets().map_err(failed)?.peer_has_closed();
            bytes += self.uncovered(&mut into[bytes..])?;
        }
        if bytes > 0 || closed { Ok(bytes) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn is_server(&self) -> bool {
        matches!(self.tls, Connection::Server(_))
    }

    /// What has been uncovered and not been handed out.
    fn uncovered(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = 0;
        while bytes < into.len() {
            match self.tls.reader().read(&mut into[bytes..]) {
                Ok(0) => break,
                Ok(count) => bytes += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    pub(crate) fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if self.sealed == 0 {
            self.sealed = self.tls.writer().write(from)?;
        }
        self.send()?;
        Ok(std::mem::take(&mut self.sealed))
    }

    /// Sends all ciphertext there is.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("socket", &self.socket).finish_non_exhaustive()
    }
}
