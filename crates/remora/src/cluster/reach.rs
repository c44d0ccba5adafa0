//! The memory nodes that this process may connect to. It connects neither to a node that the
//! cluster has lost, nor to one that was unreachable when this controller connected.

use remora_fabric::{Lane, NodeId, NodeSet};
use remora_node::MemoryError;

use super::clients::draw;
use super::handle::Cluster;
use crate::error::OpenError;
use crate::mutex::lock;

impl Cluster {
    /// Returns the memory nodes that this process uses: the ones that are neither lost nor absent.
    /// A node is absent if it was unreachable when this controller connected.
    #[must_use]
    pub fn live_nodes(&self) -> NodeSet {
        NodeSet::first(self.memory_nodes()).without(*lock(&self.inner.lost)).without(*lock(&self.inner.absent))
    }

    /// Returns the absent memory nodes: they were unreachable when this controller connected, and
    /// it has not heard of them since.
    pub(crate) fn absent(&self) -> NodeSet {
        *lock(&self.inner.absent)
    }

    /// Draws an incarnation from the counter of the epoch's leading node. Fails if that node is
    /// absent, or does not answer, or has lost its memory: its counter then begins again.
    pub(crate) async fn draw_incarnation(&self, guest: &Lane) -> Result<u32, MemoryError> {
        let leader = NodeSet::first(self.memory_nodes()).without(*lock(&self.inner.lost)).leader();
        if self.absent().has(leader) {
            return Err(MemoryError::EpochChanging);
        }
        draw(guest, NodeSet::default().with(leader)).await
    }

    /// Takes nodes that do not answer for absent, as if they had been unreachable when this
    /// controller connected.
    pub(crate) fn miss(&self, nodes: NodeSet) {
        nodes.iter().for_each(|node| self.inner.fabric.abandon(node));
        let mut absent = lock(&self.inner.absent);
        *absent = NodeSet::from_bits(absent.to_bits() | nodes.to_bits());
    }

    /// Fails while nodes are absent. If they came back with their memory, a client would lack its
    /// rings there, and their catalog would lack new tables.
    pub(super) fn lacks_nothing(&self) -> Result<(), MemoryError> {
        if self.absent().is_empty() { Ok(()) } else { Err(MemoryError::EpochChanging) }
    }

    /// Counts on the absent nodes again, because they answer, or because the configuration has them
    /// as lost.
    pub(crate) fn expect_all(&self) {
        let absent = std::mem::take(&mut *lock(&self.inner.absent));
        absent.iter().for_each(|node| self.inner.fabric.readmit(node));
    }

    /// Makes new connections reach the memory nodes of the last epoch, except nodes that are lost
    /// or absent.
    pub(crate) fn follow_nodes(&self) -> Result<(), OpenError> {
        self.learn_names()?;
        let Some(configuration) = &self.configuration else { return Ok(()) };
        let lost = configuration.look(|membership| membership.lost());
        let lost = lost.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        let (known, absent) = (*lock(&self.inner.lost), *lock(&self.inner.absent));
        lost.without(known).iter().for_each(|node| self.inner.fabric.abandon(node));
        known.without(lost).without(absent).iter().for_each(|node| self.inner.fabric.readmit(node));
        Ok(())
    }

    /// Learns the names of memory nodes that were added. Such a node counts as lost here until this
    /// process enters an epoch with it.
    pub(crate) fn learn_names(&self) -> Result<(), OpenError> {
        let (Some(configuration), Some((nodes, remote))) = (&self.configuration, &self.inner.remote) else {
            return Ok(());
        };
        let mut nodes = lock(nodes);
        let known = self.memory_nodes();
        let new = configuration.look(|membership| -> Vec<_> {
            membership.added().range(known..).map(|(number, name)| (NodeId(*number), name.clone())).collect()
        });
        for (number, name) in new.map_err(|error| MemoryError::Configuration(error.to_string()))? {
            let mut lost = lock(&self.inner.lost);
            *lost = lost.with(number);
            self.inner.fabric.abandon(number);
            if !remote.add(&name) {
                return Err(MemoryError::NotNamed(number).into());
            }
            *nodes = nodes.with(&[&name]);
        }
        Ok(())
    }
}
