//! TLS 1.3 around everything that the ends say: nobody between the machines reads it, or changes it
//! unnoticed.
//!
//! The server shows a certificate, which clients check by what they trust and by the name they
//! called. Clients have no certificates: they prove the [`Key`](crate::tcp::Key), inside. An end
//! that has TLS talks to nobody who has none, and says so in a way that the other one understands.
//!
//! A handshake costs both ends some hundred microseconds of CPU time, the server's on the one
//! thread that serves verbs. A certificate with an elliptic-curve key is a better choice than RSA,
//! whose signatures take several times as long.
//!
//! Needs the cargo feature `tls`. Without it everything is here, but there is no way to come by a
//! [`ServerTls`] or a
//! [`ClientTls`]: reading the files says what is missing.

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

pub use backend::{ClientTls, ServerTls};
pub(crate) use backend::{TlsSession, reason};

/// What both hellos of the handshake begin with. An end without TLS is known by it.
pub(crate) const MAGIC: [u8; 8] = *b"REMORA\x00T";

/// Files for TLS cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The program cannot do TLS at all.
    #[error("this program was built without TLS: build it with --features tls")]
    NotBuilt,
    /// The file of certificates cannot be read.
    #[error("the certificates: {0}")]
    Certificates(SystemError),
    /// The file of the private key cannot be read.
    #[error("the private key: {0}")]
    PrivateKey(SystemError),
    /// There is no certificate in the file that should have one.
    #[error("no certificate in PEM there")]
    NoCertificate,
    /// There is no private key in the file that should have one.
    #[error("no private key in PEM there")]
    NoPrivateKey,
    /// Others than its owner may read the private key.
    #[error("others may read the private key (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// Permission bits of its file.
        mode: u32,
    },
    /// A certificate is damaged or of a kind that is not known, or the private key is another
    /// one's.
    #[error("the certificate cannot be used, or the private key is not that of the certificate")]
    Unusable,
}
