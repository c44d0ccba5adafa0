//! How to found a cluster whose memory nodes are in this process.

use remora_memory::MemoryError;
use remora_memory::limits::REPLICAS_MAX;
use remora_txn::Protocol;

/// How to found a cluster whose memory nodes are in this process.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// Memory nodes that it is founded with.
    pub memory_nodes: u16,
    /// Copies of each record, unless a table says otherwise: the primary and its backups.
    pub replicas: u8,
    /// The last `spares` memory nodes get no shards of new tables. They take copies of what other
    /// nodes held, when those die.
    pub spares: u16,
    /// Bytes of each memory node.
    pub node_bytes: usize,
    /// How transactions are run.
    pub protocol: Protocol,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions { memory_nodes: 3, replicas: 3, spares: 0, node_bytes: 256 << 20, protocol: Protocol::default() }
    }
}

pub(super) fn check(options: &ClusterOptions) -> Result<(), MemoryError> {
    let (nodes, replicas) = (usize::from(options.memory_nodes), usize::from(options.replicas));
    if nodes == 0 || replicas == 0 {
        return Err(MemoryError::Empty("the number of memory nodes and of replicas"));
    }
    let max = remora_fabric::limits::NODES_MAX;
    if nodes > max {
        return Err(MemoryError::Limit { what: "memory nodes", value: nodes as u64, max: max as u64 });
    }
    if usize::from(options.spares) >= nodes {
        return Err(MemoryError::Limit {
            what: "spare memory nodes",
            value: options.spares.into(),
            max: nodes as u64 - 1,
        });
    }
    if replicas > nodes || replicas > REPLICAS_MAX {
        return Err(MemoryError::TooManyReplicas { replicas, nodes });
    }
    if options.node_bytes as u64 > NODE_BYTES_MAX {
        let value = options.node_bytes as u64;
        return Err(MemoryError::Limit { what: "bytes of a memory node", value, max: NODE_BYTES_MAX });
    }
    Ok(())
}

/// Offsets in a region have 48 bits.
const NODE_BYTES_MAX: u64 = 1 << 48;

pub(super) fn regions(options: &ClusterOptions) -> Vec<Vec<usize>> {
    vec![vec![options.node_bytes.next_multiple_of(64)]; options.memory_nodes.into()]
}
