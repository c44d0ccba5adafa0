//! TLS with `rustls`: the certificates of servers and clients, and a session over a socket.

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
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
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

/// Bytes of ciphertext that are read from a socket at once.
const SEALED_BYTES: usize = 32 << 10;
/// Bytes of the largest record, with its header and tag.
const RECORD_BYTES_MAX: usize = (16 << 10) + 256 + 5;

// A receiver has room for all that one read can decrypt. Otherwise the rest would wait in the
// session, and no poller would report it.
const _: () = assert!(RECEIVE_BYTES - FRAME_WORDS_MAX * WORD_BYTES >= SEALED_BYTES + RECORD_BYTES_MAX);

thread_local! {
    /// The buffer into which a thread reads ciphertext, for one session after the other. No
    /// ciphertext stays there between two reads.
    static SEALED: RefCell<Box<[u8]>> = RefCell::new(vec![0; SEALED_BYTES].into());
}

/// Returns the cryptographic provider. It is not the process's default, which other code could set.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = std::fs::read(path).map_err(|error| TlsError::Certificates(error.into()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(TlsError::NoCertificate)
}

fn roots_of(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(|_| TlsError::Unusable)?;
    }
    Ok(roots)
}

/// The certificate by which a server proves who it is, and the private key of that certificate.
/// Clones share it.
#[derive(Clone)]
pub struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// Reads two files in PEM. The first has the server's certificate, followed by the certificates
    /// that lead to one that clients trust. The second has the private key. A key that others may
    /// read is refused, because it would prove nothing.
    pub fn read(certificates: &Path, private_key: &Path) -> Result<ServerTls, TlsError> {
        ServerTls::read_all(certificates, private_key, None)
    }

    /// Reads files as [`ServerTls::read`] does, and one in PEM with certificates of authorities. A
    /// client must show a certificate that leads to one of these.
    pub fn read_for(certificates: &Path, private_key: &Path, clients: &Path) -> Result<ServerTls, TlsError> {
        ServerTls::read_all(certificates, private_key, Some(clients))
    }

    fn read_all(certificates: &Path, private_key: &Path, clients: Option<&Path>) -> Result<ServerTls, TlsError> {
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
        let config = config.map_err(|_| TlsError::Unusable)?;
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(clients) => {
                let roots = roots_of(&self::certificates(clients).map_err(|error| match error {
                    TlsError::NoCertificate => TlsError::Authorities,
                    error => error,
                })?);
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    roots.map_err(|_| TlsError::Authorities)?.into(),
                    provider(),
                );
                config.with_client_cert_verifier(verifier.build().map_err(|_| TlsError::Authorities)?)
            }
        };
        let mut config = config.with_single_cert(chain, key).map_err(|_| TlsError::Unusable)?;
        // No client resumes a session, because connections live as long as their clients.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(ServerTls(Arc::new(config)))
    }

    /// Begins a session with a client.
    pub fn session(&self, socket: TcpStream) -> io::Result<TlsSession> {
        let session = ServerConnection::new(self.0.clone()).map_err(failed)?;
        Ok(TlsSession::new(socket, session.into()))
    }
}

/// The certificates that a client trusts. Clones share them.
#[derive(Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads a file in PEM that has certificates of authorities, or of the servers themselves.
    pub fn read(trusted: &Path) -> Result<ClientTls, TlsError> {
        let own = certificates(trusted)?;
        let roots = roots_of(&own)?;
        let authorities = WebPkiServerVerifier::builder_with_provider(roots.into(), provider()).build();
        let trust = Trust { authorities: authorities.map_err(|_| TlsError::Unusable)?, own };
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let config = config.map_err(|_| TlsError::Unusable)?.dangerous();
        let mut config = config.with_custom_certificate_verifier(Arc::new(trust)).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(ClientTls(Arc::new(config)))
    }

    /// Begins a session with a server that must be `host`, a name or an address.
    pub(crate) fn session(&self, socket: TcpStream, host: &str) -> Result<TlsSession, TlsReason> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsReason::Name)?;
        let session = ClientConnection::new(self.0.clone(), name).map_err(|_| TlsReason::Failed)?;
        Ok(TlsSession::new(socket, session.into()))
    }
}

/// The rules by which a client trusts a server: the usual ones, and one exception.
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
            // Unless its maker takes care, a self-signed certificate says that it belongs to an
            // authority, and no server may show such a certificate. If the client trusts exactly
            // this certificate, that is what the operator meant. The certificate has not expired,
            // which was checked first. But its name has not been checked yet.
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

/// Hides the private key, which must not get into logs.
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

/// Makes the error for data that TLS has refused. It has the full reason, for logs.
fn failed(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Returns why TLS refused the other end, if the error is about that.
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

/// A session of TLS over a socket, blocking or not.
///
/// Clients and memory nodes send no closing message of TLS, because every frame has its length.
/// When a connection ends, its node or client is gone, whichever end has cut the connection.
pub struct TlsSession {
    socket: TcpStream,
    tls: Connection,
    /// The bytes of the caller that have been encrypted, but whose ciphertext has not all left.
    sealed: usize,
    /// Whether anything has come from the other end.
    heard: bool,
    /// Whether the last read may have left something.
    more: bool,
}

impl TlsSession {
    fn new(socket: TcpStream, tls: Connection) -> TlsSession {
        TlsSession { socket, tls, sealed: 0, heard: false, more: false }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether there is ciphertext to send that the socket has not accepted.
    pub fn is_blocked(&self) -> bool {
        self.tls.wants_write()
    }

    /// Whether there may be more to read that no poller reports: in the socket, because the last
    /// read has not emptied it, or in the session, because the caller had no room.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Whether the handshake has not ended.
    pub fn is_shaking_hands(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Reads once, and hands out everything that this read decrypts. It also returns "would block"
    /// if that is nothing: no record is whole yet, or the records were TLS's own. A caller has room
    /// for 64 KiB, or calls again while [`TlsSession::has_more`].
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Something is left only by a caller with less room than a receiver: the handshake of the
        // key.
        match self.uncovered(into)? {
            0 => self.more = false,
            bytes => return Ok(bytes),
        }
        // If something cannot be sent, reading tells why: the other end's last message comes first.
        let _ = self.send();
        let outcome = SEALED.with_borrow_mut(|sealed| self.receive(sealed, into));
        let _ = self.send(); // answers of TLS itself, or why it refuses
        outcome
    }

    fn receive(&mut self, sealed: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(sealed)?;
        self.more = count == sealed.len();
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
        self.more |= bytes > 0 && bytes == into.len();
        if bytes > 0 || closed { Ok(bytes) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn is_server(&self) -> bool {
        matches!(self.tls, Connection::Server(_))
    }

    /// Hands out what has been decrypted and not been handed out.
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

    /// Writes bytes. After "would block", the next call must begin with the same bytes.
    pub fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if self.sealed == 0 {
            self.sealed = self.tls.writer().write(from)?;
        }
        self.send()?;
        Ok(std::mem::take(&mut self.sealed))
    }

    /// Tells the other end that nothing more comes. Fails if the socket does not accept that now.
    pub fn close(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        self.send()
    }

    /// Sends all ciphertext that there is.
    pub fn send(&mut self) -> io::Result<()> {
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
