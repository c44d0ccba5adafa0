//! What can go wrong with a round, as a small `Copy` value: the node, the kind, and the address where one is known.

use crate::address::{Address, NodeId};

/// A round failed. Its verbs may or may not have run (contract, rule 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{node}: {fault}")]
pub struct FabricError {
    /// The memory node that the failing verb was for.
    pub node: NodeId,
    /// What happened.
    pub fault: Fault,
}

/// Why a round failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The node is down or cannot be reached.
    #[error("is down or cannot be reached")]
    Unreachable,
    /// The node answers, but its CPU does not do what is its part: redo logs are not applied.
    #[error("does not apply its redo logs: it hangs, or has far too much to do")]
    Behind,
    /// The node has revoked this client's access: another believed it dead. It may come back as a new incarnation.
    #[error("has revoked this client's access")]
    Revoked,
    /// The cluster has no such node, or the node no such region.
    #[error("no region at {0}")]
    NoSuchRegion(Address),
    /// The verb would leave its region.
    #[error("{bytes} bytes at {at} are outside the region")]
    OutOfBounds {
        /// Where it began.
        at: Address,
        /// How long it was.
        bytes: u64,
    },
    /// Address or length is not a multiple of 8 bytes.
    #[error("{bytes} bytes at {at}: address and length must be multiples of 8")]
    Unaligned {
        /// Where it began.
        at: Address,
        /// How long it was.
        bytes: u64,
    },
    /// The node's CPU serves no calls.
    #[error("serves no calls")]
    NoHandler,
    /// A call was answered with more words than the caller has room for.
    #[error("answered a call with {words} words, more than the {capacity} asked for")]
    ReplyTooLong {
        /// Words of the reply.
        words: u32,
        /// Words there was room for.
        capacity: u32,
    },
    /// No connection: the node cannot be had at all.
    #[error("{0}")]
    Refused(Refusal),
    /// More verbs or bytes than one round holds: see [`crate::limits`].
    #[error("the round is full: at most 128 verbs and 64 KiB")]
    RoundFull,
}

/// Why a node gave no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Nobody answers there.
    #[error("does not answer: {0}")]
    Unreachable(std::io::ErrorKind),
    /// What answers is no memory node of ours.
    #[error("answers, but is no memory node (or not of this program)")]
    Foreign,
    /// It speaks another version of the protocol.
    #[error("speaks protocol version {found}; this program speaks {known}: use programs of one version")]
    Version {
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// It asks for a key, and none was given.
    #[error("asks for a key: give the one it was started with (--key-file)")]
    KeyNeeded,
    /// A key was given, and it has none to prove itself by.
    #[error("has no key, so it cannot prove that it is the right one: start it with --key-file, or connect without")]
    NoKey,
    /// The ends do not agree on TLS.
    #[error("{0}")]
    Tls(TlsReason),
    /// It has another key.
    #[error("has another key")]
    WrongKey,
    /// It offers no RDMA.
    #[error("offers no RDMA: start it with --fabric verbs, or connect without")]
    NoRdma,
    /// Its NIC executes the verbs that change memory, which are not atomic to those of its CPU.
    #[error("is reached by RDMA only: connect with --fabric verbs")]
    NeedsRdma,
    /// The ends do not come together over RDMA.
    #[error("cannot be reached over RDMA: {0}; REMORA_LOG=warn says more")]
    Rdma(std::io::ErrorKind),
    /// It has as many connections as it takes.
    #[error("has as many connections as it takes")]
    Full,
    /// It could revoke no access from this client: it may not signal the client's process.
    #[error("may not stop this process, and could not revoke its access: run both as one user")]
    NoRight,
}

/// Why there is no TLS with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlsReason {
    /// It talks TLS only, and the client does not.
    #[error("asks for TLS: say whose certificate to trust (--tls-ca)")]
    Needed,
    /// It does not talk TLS, and the client talks nothing else.
    #[error("does not talk TLS: start it with --tls-cert and --tls-key, or connect without --tls-ca")]
    NotOffered,
    /// Its certificate is neither trusted by itself, nor signed by one that is.
    #[error("has a certificate that is not to be trusted: it is not the one given (--tls-ca), nor signed by it")]
    Untrusted,
    /// Its certificate is for other names or addresses than the one it was called by.
    #[error("has a certificate for another name: call it by a name or address that is in its certificate")]
    Name,
    /// Its certificate is not valid any more, or not yet.
    #[error("has a certificate that has expired, or is not valid yet by this machine's clock")]
    Expired,
    /// Anything else: another version, damaged or foreign packets.
    #[error("could not agree on TLS (1.3)")]
    Failed,
}

impl Fault {
    /// Whether the node itself is lost to this client, rather than one request being wrong.
    #[must_use]
    pub fn lost(self) -> bool {
        matches!(self, Fault::Unreachable | Fault::Behind | Fault::Revoked)
    }
}
