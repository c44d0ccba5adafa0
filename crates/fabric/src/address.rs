//! The place where a verb acts: a memory node, one of its regions, and a byte offset.

use std::fmt;

/// Bytes of a word: the unit that every backend reads, writes and swaps atomically.
pub const WORD_BYTES: usize = 8;
/// Words of a line: the unit of a record's line versions (contract, rule 2).
pub const LINE_WORDS: usize = 8;
/// Bytes of a line.
pub const LINE_BYTES: usize = LINE_WORDS * WORD_BYTES;

/// The number of a memory node in the cluster, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u16);

/// A set of memory nodes, one bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// Returns the set of the first `count` nodes.
    #[must_use]
    pub fn first(count: u16) -> NodeSet {
        NodeSet(u64::MAX.checked_shr(u64::BITS.saturating_sub(count.into())).unwrap_or(0))
    }

    /// Builds a set from its bits: bit n is node n.
    #[must_use]
    pub fn from_bits(bits: u64) -> NodeSet {
        NodeSet(bits)
    }

    /// Returns the bits of this set: bit n is node n.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether a node is in the set.
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

    /// Returns the nodes of this set and of another one.
    #[must_use]
    pub fn union(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 | others.0)
    }

    /// Returns how many nodes are in the set.
    #[must_use]
    pub fn count(self) -> u16 {
        self.0.count_ones() as u16
    }

    /// Whether the set has no node.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the leader of the set: the node with the lowest number, whose state the others
    /// follow. For an empty set it returns node 0.
    #[must_use]
    pub fn leader(self) -> NodeId {
        NodeId(if self.0 == 0 { 0 } else { self.0.trailing_zeros() as u16 })
    }

    /// Returns the nodes of the set in ascending order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = NodeId> {
        (0..u64::BITS as u16).map(NodeId).filter(move |node| self.has(*node))
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeSet {
        nodes.into_iter().fold(NodeSet::default(), NodeSet::with)
    }
}

/// Lists the numbers of the nodes, such as `0, 2`.
impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.iter().map(|node| node.0.to_string()).collect();
        f.write_str(&numbers.join(", "))
    }
}

/// The number of a region within its memory node. A region is one mapping, on one NUMA node, whose
/// atomics one NIC serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RegionId(pub u16);

/// The address of a byte of remote memory: node, region and offset.
///
/// An address is never stored in remote memory. What is stored there is a shard and an offset,
/// which the current configuration turns into an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The memory node.
    pub node: NodeId,
    /// The region of the node.
    pub region: RegionId,
    /// The distance from the region's start, in bytes.
    pub offset: u64,
}

impl Address {
    /// Returns the address `bytes` bytes further on in the same region.
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
