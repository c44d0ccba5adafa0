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

/// Memory nodes, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// The set of the first `count` nodes.
    #[must_use]
    pub fn first(count: u16) -> NodeSet {
        NodeSet(u64::MAX.checked_shr(u64::BITS.saturating_sub(count.into())).unwrap_or(0))
    }

    /// Builds a set from its bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> NodeSet {
        NodeSet(bits)
    }

    /// The bits of this set.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether a node is in it.
    #[inline]
    #[must_use]
    pub fn has(self, node: NodeId) -> bool {
        self.0.checked_shr(node.0.into()).unwrap_or(0) & 1 == 1
    }

    /// Returns this set with one more node.
    #[must_use]
    pub fn with(self, node: NodeId) -> NodeSet {
        NodeSet(self.0 | 1 << node.0)
    }

    /// Returns this set without the nodes of another set.
    #[must_use]
    pub fn without(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & !others.0)
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> u16 {
        self.0.count_ones() as u16
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The one with the lowest number, which keeps what the others follow in: node 0 if there are
    /// none.
    #[must_use]
    pub fn leader(self) -> NodeId {
        NodeId(if self.0 == 0 { 0 } else { self.0.trailing_zeros() as u16 })
    }

    /// All of them, ascending.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = NodeId> {
        (0..u64::BITS as u16).map(NodeId).filter(move |node| self.has(*node))
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeSet {
        nodes.into_iter().fold(NodeSet::default(), NodeSet::with)
    }
}

/// Their numbers, such as `0, 2`.
impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.iter().map(|node| node.0.to_string()).collect();
        f.write_str(&numbers.join(", "))
    }
}

/// A region of a memory node: one mapping, on one NUMA node, whose atomics one NIC serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RegionId(pub u16);

/// A byte of remote memory. Never stored in remote memory itself: what is stored is a shard and an
/// offset, which the current configuration turns into an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The memory node.
    pub node: NodeId,
    /// Region of the node.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_nodes_are_shown_by_their_numbers() {
        assert_eq!(NodeSet::from_bits(0b101).to_string(), "0, 2");
        assert_eq!(NodeSet::default().to_string(), "");
    }
}
