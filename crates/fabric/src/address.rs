//! Where a verb acts: a memory node, one of its regions, and a byte offset.

use std::fmt;

/// Bytes of a word, the unit that every backend reads, writes and swaps atomically.
pub const WORD_BYTES: usize = 8;
/// Words of a line, the unit of a record's versions (contract, rule 2).
pub const LINE_WORDS: usize = 8;
/// Bytes of a line.
pub const LINE_BYTES: usize = LINE_WORDS * WORD_BYTES;

/// A memory node of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u16);

/// A region of a memory node: one mapping, on one NUMA node, whose atomics one NIC serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RegionId(pub u16);

/// A byte of remote memory. Never stored in remote memory itself: what is stored is a shard and an offset, which the
/// current configuration turns into an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The memory node.
    pub node: NodeId,
    /// Its region.
    pub region: RegionId,
    /// Bytes from the region's start.
    pub offset: u64,
}

impl Address {
    /// The address `bytes` further on in the same region.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: u64) -> Address {
        Address { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} region {} offset {:#x}", self.node, self.region.0, self.offset)
    }
}
