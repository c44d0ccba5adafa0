//! How to found a cluster whose memory nodes are in this process.

use remora_fabric::LINE_BYTES;
use remora_node::MemoryError;
use remora_node::limits::REPLICAS_MAX;
use remora_txn::Protocol;

use remora_fabric::setters;

/// How to found a cluster whose memory nodes are in this process.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// Number of memory nodes with which the cluster is founded.
    pub nodes: u16,
    /// Number of copies of each record, the primary and its backups, for tables whose options name
    /// no other. If `None`, one at each memory node that is not a spare, but at most 3.
    pub replicas: Option<u8>,
    /// Number of spares: the last `spares` memory nodes get no shards of new tables. When other
    /// nodes die, copies of their shards are made at the spares.
    pub spares: u16,
    /// Bytes of each memory node.
    pub node_bytes: usize,
    /// The protocol by which transactions run.
    pub protocol: Protocol,
}

setters!(ClusterOptions { nodes: u16, replicas: u8, spares: u16, node_bytes: usize, protocol: Protocol });

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions { nodes: 3, replicas: None, spares: 0, node_bytes: 256 << 20, protocol: Protocol::default() }
    }
}

/// Largest size of a memory node in bytes, because offsets in a region have 48 bits.
const NODE_BYTES_MAX: u64 = 1 << 48;

impl ClusterOptions {
    /// Returns the number of copies of each record.
    pub(super) fn copies(&self) -> u8 {
        let usual = self.nodes.saturating_sub(self.spares).clamp(1, 3);
        self.replicas.unwrap_or_else(|| usual.min(self.protocol.discipline().copies_max() as u16) as u8)
    }

    /// Fails if no cluster can be founded with these options.
    pub(super) fn check(&self) -> Result<(), MemoryError> {
        let (nodes, replicas) = (usize::from(self.nodes), usize::from(self.copies()));
        if nodes == 0 || replicas == 0 {
            return Err(MemoryError::empty("the number of memory nodes and of replicas"));
        }
        let limit = |what, value, max| Err(MemoryError::limit(what, value, max));
        let max = remora_fabric::limits::NODES_MAX;
        if nodes > max {
            return limit("memory nodes", nodes as u64, max as u64);
        }
        if usize::from(self.spares) >= nodes {
            return limit("spare memory nodes", self.spares.into(), nodes as u64 - 1);
        }
        if replicas > nodes || replicas > REPLICAS_MAX {
            return Err(MemoryError::too_many_replicas(replicas, nodes));
        }
        if replicas > self.protocol.discipline().copies_max() {
            return Err(MemoryError::OneCopy { protocol: self.protocol.name(), copies: replicas });
        }
        if self.node_bytes as u64 > NODE_BYTES_MAX {
            return limit("bytes of a memory node", self.node_bytes as u64, NODE_BYTES_MAX);
        }
        Ok(())
    }

    /// Returns the sizes of each memory node's regions. A node has one region of whole lines.
    pub(super) fn regions(&self) -> Vec<Vec<usize>> {
        vec![vec![self.node_bytes.next_multiple_of(LINE_BYTES)]; self.nodes.into()]
    }
}
