//! The identity of a memory node: which node it is, and of which cluster.
//!
//! Replicas are placed by node number. So all clients must number the nodes alike, in whatever
//! order they name them. The first client *founds* the cluster: it gives every node a word that
//! says the node's cluster and number, once and for all.
//!
//! ```text
//! superblock +64   identity u64   | cluster : 40 | founders : 8 | number : 16 |
//!                  CASed; 0 = not founded
//! ```
//!
//! Founding begins at the first node named. A CAS there decides the cluster's id, and the other
//! nodes follow. If a founder dies in between, some nodes have no identity, and the next client
//! gives them the missing numbers. Nodes that are added later have the numbers after those of the
//! founders. They get them when the cluster admits them.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Lane, NodeId, NodeSet, WORD_BYTES};

use crate::error::MemoryError;
use crate::metadata;
use crate::node;

const AT_IDENTITY: u64 = 64;
const CLUSTER_SHIFT: u32 = 24;
const FOUNDERS_SHIFT: u32 = 16;
/// How often founding is begun again, because another client founds at the same time.
const ATTEMPTS: usize = 16;

/// The identity of a memory node: its cluster, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's id, which is random and never 0.
    pub cluster: u64,
    /// The number of memory nodes that the cluster was founded with.
    pub founders: u16,
    /// The number of this node.
    pub number: NodeId,
}

impl Identity {
    fn to_bits(self) -> u64 {
        self.cluster << CLUSTER_SHIFT | u64::from(self.founders) << FOUNDERS_SHIFT | u64::from(self.number.0)
    }

    fn from_bits(bits: u64) -> Option<Identity> {
        let founders = u16::from((bits >> FOUNDERS_SHIFT) as u8);
        (bits != 0).then_some(Identity { cluster: bits >> CLUSTER_SHIFT, founders, number: NodeId(bits as u16) })
    }
}

/// Returns the identity of a node. The node's own CPU calls this.
#[must_use]
pub fn local(region: &[AtomicU64]) -> Option<Identity> {
    Identity::from_bits(region.get(AT_IDENTITY as usize / WORD_BYTES)?.load(Ordering::Acquire))
}

/// The message to a node that its cluster has gone on without it: no client relies on its memory
/// any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenUp {
    /// The cluster's id.
    pub cluster: u64,
    /// The first epoch without the node.
    pub since: u64,
}

impl GivenUp {
    /// Encodes the message as it is sent to the node.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        [self.cluster, self.since]
    }

    /// Decodes the message, or returns `None` if the words are not this message.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<GivenUp> {
        let &[cluster, since] = words else { return None };
        Some(GivenUp { cluster, since })
    }

    /// Whether the message is true of the node with this memory. The node's own CPU calls this. It
    /// is true if the node holds data of this cluster, and of no later epoch. A node that was
    /// readmitted since has a later epoch. A node may hold data of the epoch `since` itself, if it
    /// was lost while that epoch was about to begin.
    #[must_use]
    pub fn is_of(&self, region: &[AtomicU64]) -> bool {
        let Some(own) = local(region).filter(|own| own.cluster == self.cluster) else { return false };
        let known = metadata::read_local(own.number, region);
        known.is_ok_and(|known| known.generation > 0 && known.epoch <= self.since)
    }
}

/// Returns the identity of one node. `None` if no client has founded a cluster with it.
pub async fn of(lane: &Lane, at: NodeId) -> Result<Option<Identity>, MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::at(at, AT_IDENTITY), WORD_BYTES);
    Ok(Identity::from_bits(lane.execute(round).await?.words(read)[0]))
}

/// Returns the identity of each of these nodes, which are asked at the same time. So a node that
/// does not answer does not delay the others.
pub async fn of_each(lane: &Lane, nodes: NodeSet) -> Vec<(NodeId, Result<Option<Identity>, MemoryError>)> {
    let mut asked = Vec::with_capacity(nodes.count().into());
    for at in nodes.iter() {
        let mut round = lane.round();
        let read = round.read(node::at(at, AT_IDENTITY), WORD_BYTES);
        asked.push((at, read, lane.execute(round)));
    }
    let mut found = Vec::with_capacity(asked.len());
    for (at, read, answer) in asked {
        let identity = answer.await.map(|done| Identity::from_bits(done.words(read)[0]));
        found.push((at, identity.map_err(MemoryError::from)));
    }
    found
}

/// Checks that these nodes are still the nodes that the cluster knows. A node that has lost its
/// memory would answer as if it had never held data. A node may also have another number than this
/// client gives it: the client that admitted it may have named the nodes in another order.
pub async fn remembered(lane: &Lane, nodes: NodeSet) -> Result<(), MemoryError> {
    let known = read(lane, nodes.iter()).await?;
    for (node, identity) in nodes.iter().zip(known) {
        match identity {
            Some(identity) if identity.number == node => {}
            Some(identity) => return Err(MemoryError::OtherNumber { node, number: identity.number }),
            None => return Err(MemoryError::LostMemory(node)),
        }
    }
    Ok(())
}

/// Returns the identity of each node, in the order in which this fabric names them. Founds the
/// cluster if no client has. Fails if the nodes are not exactly the nodes that one cluster was
/// founded with.
pub async fn found(lane: &Lane, nodes: u16) -> Result<Vec<Identity>, MemoryError> {
    for node in (0..nodes).map(NodeId) {
        node::superblock(lane, node).await?;
    }
    for _ in 0..ATTEMPTS {
        let known = read(lane, (0..nodes).map(NodeId)).await?;
        let Some(one) = known.iter().flatten().next().copied() else {
            let cluster = (lane.random() ^ lane.now().rotate_left(32)) >> CLUSTER_SHIFT | 1;
            give(lane, NodeId(0), Identity { cluster, founders: nodes, number: NodeId(0) }).await?;
            continue;
        };
        check(&known, one, nodes)?;
        let added = known.iter().flatten().filter(|identity| identity.number.0 >= one.founders).count() as u16;
        if nodes != one.founders || added > 0 {
            return Err(MemoryError::NodeCount { given: nodes - added, nodes: one.founders });
        }
        let taken: Vec<NodeId> = known.iter().flatten().map(|identity| identity.number).collect();
        let mut free = (0..nodes).map(NodeId).filter(|number| !taken.contains(number));
        let missing: Vec<NodeId> = (0..nodes).map(NodeId).filter(|at| known[usize::from(at.0)].is_none()).collect();
        if missing.is_empty() {
            return Ok(known.into_iter().flatten().collect());
        }
        // Nodes are founded before there are tables. So if a node has no identity while another has
        // tables, it has lost its memory.
        let founded = (0..nodes).map(NodeId).find(|at| known[usize::from(at.0)].is_some()).unwrap_or_default();
        if !metadata::read(lane, founded).await?.tables.is_empty() {
            return Err(MemoryError::LostMemory(missing[0]));
        }
        for (at, number) in missing.into_iter().zip(&mut free) {
            give(lane, at, Identity { number, ..one }).await?;
        }
    }
    Err(MemoryError::Founding)
}

/// Returns the identity of each node, in the order in which this fabric names them. It serves for a
/// cluster that goes on without some nodes, or that has more than it was founded with. Returns
/// `None` for the `silent` nodes, which are not asked, and for nodes without an identity, which are
/// new or have lost their memory.
pub async fn known(lane: &Lane, nodes: u16, silent: NodeSet) -> Result<Vec<Option<Identity>>, MemoryError> {
    let mut known = Vec::with_capacity(nodes.into());
    for at in (0..nodes).map(NodeId) {
        let is_silent = silent.has(at);
        if !is_silent {
            node::superblock(lane, at).await?;
        }
        known.push(if is_silent { None } else { of(lane, at).await? });
    }
    if let Some(one) = known.iter().flatten().next() {
        check(&known, *one, nodes)?;
    }
    Ok(known)
}

fn check(known: &[Option<Identity>], one: Identity, nodes: u16) -> Result<(), MemoryError> {
    if one.founders > nodes {
        return Err(MemoryError::NodeCount { given: nodes, nodes: one.founders });
    }
    for (at, identity) in (0..).map(NodeId).zip(known) {
        let Some(identity) = identity else { continue };
        let twice = known[..usize::from(at.0)].iter().flatten().any(|other| other.number == identity.number);
        let is_another = (identity.cluster, identity.founders) != (one.cluster, one.founders);
        if is_another || usize::from(identity.number.0) >= NODES_MAX || twice {
            return Err(MemoryError::OtherCluster(at));
        }
    }
    Ok(())
}

async fn read(lane: &Lane, nodes: impl Iterator<Item = NodeId>) -> Result<Vec<Option<Identity>>, MemoryError> {
    let mut round = lane.round();
    let reads: Vec<_> = nodes.map(|at| round.read(node::at(at, AT_IDENTITY), WORD_BYTES)).collect();
    let done = lane.execute(round).await?;
    Ok(reads.into_iter().map(|read| Identity::from_bits(done.words(read)[0])).collect())
}

/// Admits a new node to the cluster of node `cluster`, in the place of a node that was lost.
/// `epoch` has not begun yet. Returns false if the node is not new. A node with metadata of `epoch`
/// is still new: the publisher died before it could begin that epoch.
pub async fn rejoin(lane: &Lane, node: NodeId, cluster: NodeId, epoch: u64) -> Result<bool, MemoryError> {
    node::superblock(lane, node).await?;
    let Some(one) = of(lane, cluster).await? else { return Ok(false) };
    let identity = Identity { number: node, ..one };
    give(lane, node, identity).await?;
    let metadata = metadata::read(lane, node).await?;
    let is_new = metadata.generation == 0 || metadata.epoch == epoch;
    Ok(of(lane, node).await? == Some(identity) && is_new)
}

/// Gives a node its identity, unless it has one.
async fn give(lane: &Lane, at: NodeId, identity: Identity) -> Result<(), MemoryError> {
    let mut round = lane.round();
    round.compare_swap(node::at(at, AT_IDENTITY), 0, identity.to_bits());
    lane.execute(round).await?;
    Ok(())
}
