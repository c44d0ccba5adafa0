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
    /// More verbs or bytes than one round holds: see [`crate::limits`].
    #[error("the round is full: at most 128 verbs and 64 KiB")]
    RoundFull,
}

impl Fault {
    /// Whether the node itself is lost to this client, rather than one request being wrong.
    #[must_use]
    pub fn lost(self) -> bool {
        matches!(self, Fault::Unreachable | Fault::Revoked)
    }
}
