//! TLS 1.3 around everything that the two ends send. No machine between them can read it, or change
//! it unnoticed.
//!
//! The server shows a certificate. Clients check it against the certificates that they trust and
//! the name that they called. Clients have no certificates: they prove the [`Key`](crate::tcp::Key)
//! within TLS. An end with TLS refuses an end without, and says so in a way that the other end
//! understands.
//!
//! A handshake costs each end some hundred microseconds of CPU time. At the server, that is time of
//! a thread that serves verbs. A certificate with an elliptic-curve key is a better choice
//! than RSA, whose signatures take several times as long.
//!
//! TLS needs the cargo feature `tls`. Without it this module has all its types, but no
//! [`ServerTls`] or [`ClientTls`] can be made: reading the files fails, and the error names the
//! feature.

use crate::error::SystemError;
pub use crate::error::TlsReason;

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod present;

#[cfg(not(feature = "tls"))]
use absent as backend;
#[cfg(feature = "tls")]
use present as backend;

pub(crate) use backend::reason;
pub use backend::{ClientTls, ServerTls, TlsSession};

/// The first bytes of both hellos of the handshake inside TLS. They differ from those of an end
/// without TLS.
pub(crate) const MAGIC: [u8; 8] = *b"REMORA\x00T";

/// The files for TLS cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The program was built without TLS.
    #[error("this program was built without TLS: build it with --features tls")]
    NotBuilt,
    /// The file of certificates cannot be read.
    #[error("the certificates: {0}")]
    Certificates(SystemError),
    /// The file of the private key cannot be read.
    #[error("the private key: {0}")]
    PrivateKey(SystemError),
    /// The file of certificates has no certificate.
    #[error("no certificate in PEM there")]
    NoCertificate,
    /// The file of the private key has no private key.
    #[error("no private key in PEM there")]
    NoPrivateKey,
    /// Users other than its owner may read the private key.
    #[error("others may read the private key (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// The permission bits of its file.
        mode: u32,
    },
    /// The certificates to which a client's has to lead are damaged, or none are there.
    #[error("no certificate there that could have signed those of clients")]
    Authorities,
    /// A certificate is damaged or of an unknown kind, or the private key belongs to another
    /// certificate.
    #[error("the certificate cannot be used, or the private key is not that of the certificate")]
    Unusable,
}
