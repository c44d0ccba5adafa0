//! The errors of a round, as small `Copy` values: the node, the kind of failure, and the address
//! where one is known.

use std::fmt;
use std::io::{self, ErrorKind};

use rustix::io::Errno;

use crate::address::{Address, NodeId};

/// An error of the operating system, in the system's own words. It is small enough to be copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemError {
    /// The system gave an error number.
    Number(i32),
    /// There is no error number, because a library between this program and the system found the
    /// error.
    Kind(ErrorKind),
}

impl SystemError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        match self {
            SystemError::Number(number) => io::Error::from_raw_os_error(number).kind(),
            SystemError::Kind(kind) => kind,
        }
    }
}

impl From<&io::Error> for SystemError {
    fn from(error: &io::Error) -> SystemError {
        error.raw_os_error().map_or_else(|| error.kind().into(), SystemError::Number)
    }
}

impl From<io::Error> for SystemError {
    fn from(error: io::Error) -> SystemError {
        (&error).into()
    }
}

impl From<Errno> for SystemError {
    fn from(number: Errno) -> SystemError {
        SystemError::Number(number.raw_os_error())
    }
}

impl From<ErrorKind> for SystemError {
    fn from(kind: ErrorKind) -> SystemError {
        SystemError::Kind(kind)
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SystemError::Number(number) => io::Error::from_raw_os_error(*number).fmt(f),
            SystemError::Kind(kind) => kind.fmt(f),
        }
    }
}

impl std::error::Error for SystemError {}

/// A round failed. Its verbs may or may not have run (contract, rule 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{node}: {fault}")]
pub struct FabricError {
    /// The memory node that the failing verb was for.
    pub node: NodeId,
    /// What failed.
    pub fault: Fault,
}

/// Why a round failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The node is down or cannot be reached.
    #[error("is down or cannot be reached")]
    Unreachable,
    /// The node answers, but its CPU lags behind with its part: it does not apply redo logs.
    #[error("does not apply its redo logs: it hangs, or has far too much to do")]
    Behind,
    /// The node has revoked this client's access, because another client took it for dead. The
    /// client may come back as a new incarnation.
    #[error("has revoked this client's access")]
    Revoked,
    /// The cluster has no such node, or the node has no such region.
    #[error("no region at {0}")]
    NoSuchRegion(Address),
    /// The verb would leave its region.
    #[error("{bytes} bytes at {at} are outside the region")]
    OutOfBounds {
        /// The address at which the access began.
        at: Address,
        /// The length of the access in bytes.
        bytes: u64,
    },
    /// The address or the length is not a multiple of 8 bytes.
    #[error("{bytes} bytes at {at}: address and length must be multiples of 8")]
    Unaligned {
        /// The address at which the access began.
        at: Address,
        /// The length of the access in bytes.
        bytes: u64,
    },
    /// The node's CPU serves no calls.
    #[error("serves no calls")]
    NoHandler,
    /// A call was answered with more words than the caller has room for.
    #[error("answered a call with {words} words, more than the {capacity} asked for")]
    ReplyTooLong {
        /// The number of words of the reply.
        words: u32,
        /// The number of words that there was room for.
        capacity: u32,
    },
    /// There is no connection to the node.
    #[error("{0}")]
    Refused(Refusal),
    /// The round has more verbs or bytes than one round holds: see [`crate::limits`].
    #[error("the round is full: at most 128 verbs and 64 KiB")]
    RoundFull,
}

/// The reason why a client has no connection to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The node does not answer.
    #[error("does not answer: {0}")]
    Unreachable(SystemError),
    /// The node's name does not lead to an address.
    #[error("has a name that does not resolve: {0}")]
    Name(NameError),
    /// This process lacks descriptors, ports or memory for a connection. The node may be well.
    #[error("cannot be connected to: this process gets no connection from its system: {0}")]
    Local(SystemError),
    /// The machine at the address answers, but not as a memory node does.
    #[error("answers, but is no memory node (or not of this program)")]
    Foreign,
    /// The node speaks another version of the protocol.
    #[error("speaks protocol version {found}; this program speaks {known}: use programs of one version")]
    Version {
        /// The version that the node speaks.
        found: u32,
        /// The version that this program speaks.
        known: u32,
    },
    /// The node asks for a key, and the client was given none.
    #[error("asks for a key: give the one it was started with (--key-file)")]
    KeyNeeded,
    /// The client was given a key, and the node has none by which it could prove itself.
    #[error("has no key, so it cannot prove that it is the right one: start it with --key-file, or connect without")]
    NoKey,
    /// Client and node do not agree on TLS.
    #[error("{0}")]
    Tls(TlsReason),
    /// The node has another key than the client.
    #[error("has another key")]
    WrongKey,
    /// The node offers no RDMA.
    #[error("offers no RDMA: start it with --fabric verbs, or connect without")]
    NoRdma,
    /// The client uses no RDMA, and the node needs it. The node's NIC executes the verbs that
    /// change memory, and these verbs are not atomic to verbs of its CPU.
    #[error("is reached by RDMA only: connect with --fabric verbs")]
    NeedsRdma,
    /// Client and node could not connect over RDMA.
    #[error("cannot be reached over RDMA: {0}; REMORA_LOG=warn says more")]
    Rdma(SystemError),
    /// The node has as many connections as it accepts.
    #[error("has as many connections as it takes")]
    Full,
    /// The node could never revoke this client's access, because it may not signal the client's
    /// process.
    #[error("may not stop this process, and could not revoke its access: run both as one user")]
    NoRight,
    /// The node is passive, and processes use it that this process can neither watch nor stop.
    #[error(
        "is passive memory in use by processes that this one cannot stop: of another host, container or user, or from before a \
         restart; run all clients as one user of one host; if those are gone for good, say so with: remora reclaim --gone PATH"
    )]
    OtherRealm,
}

impl From<io::Error> for Refusal {
    /// Converts the error of an attempt to connect. It tells apart what this process lacks and what
    /// the node does.
    fn from(error: io::Error) -> Refusal {
        let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(number) if lacks.contains(&number) => Refusal::Local(error.into()),
            _ => Refusal::Unreachable(error.into()),
        }
    }
}

/// The reason why a name has no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// The resolver has not answered in time.
    #[error("the resolver (DNS) does not answer")]
    Silent,
    /// The resolver reported an error, in these words.
    #[error("{0}")]
    Failed(&'static str),
}

/// The reason why there is no TLS connection with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlsReason {
    /// The node accepts TLS only, and the client does not use it.
    #[error("asks for TLS: say whose certificate to trust (--tls-ca)")]
    Needed,
    /// The node does not offer TLS, and the client accepts nothing else.
    #[error("does not talk TLS: start it with --tls-cert and --tls-key, or connect without --tls-ca")]
    NotOffered,
    /// The client trusts neither the node's certificate nor a certificate that signed it.
    #[error("has a certificate that is not to be trusted: it is not the one given (--tls-ca), nor signed by it")]
    Untrusted,
    /// The node's certificate is not for the name or address that the client used.
    #[error("has a certificate for another name: call it by a name or address that is in its certificate")]
    Name,
    /// The node's certificate has expired, or is not valid yet.
    #[error("has a certificate that has expired, or is not valid yet by this machine's clock")]
    Expired,
    /// Any other reason: another version, damaged packets, or packets of another protocol.
    #[error("could not agree on TLS (1.3)")]
    Failed,
}

impl Fault {
    /// Whether the fault means that the node itself is lost to this client. Otherwise one request
    /// was wrong.
    #[must_use]
    pub fn lost(self) -> bool {
        matches!(self, Fault::Unreachable | Fault::Behind | Fault::Revoked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_the_systems_words() {
        let refused = io::Error::from(Errno::CONNREFUSED);
        let fault = Fault::Refused(refused.into());
        assert_eq!(fault.to_string(), "does not answer: Connection refused (os error 111)");
        // An error that the standard library has no kind for.
        let odd = Refusal::from(io::Error::from(Errno::PROTO));
        assert_eq!(odd.to_string(), "does not answer: Protocol error (os error 71)");
        let late = Refusal::from(io::Error::from(ErrorKind::TimedOut));
        assert_eq!(late, Refusal::Unreachable(ErrorKind::TimedOut.into()));
        assert_eq!(late.to_string(), "does not answer: timed out");
        assert_eq!(SystemError::from(Errno::NOENT).kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_this_process_lacks_is_not_blamed_on_the_node() {
        for lacking in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(Refusal::from(io::Error::from(lacking)), Refusal::Local(lacking.into()));
        }
    }
}
