//! The client's time: the largest time of a transaction that a client knows of, where commits have
//! times that transactions derive, or that an oracle gives (`protocol/dst`).

use std::cell::Cell;
use std::rc::Rc;

use remora_fabric::{FabricError, Lane, NodeSet, WORD_BYTES};
use remora_node::node::clock_at;

/// The largest time of a transaction that a client knows of, for all of its sessions. It lives as
/// long as the client's incarnation.
#[derive(Clone, Debug, Default)]
pub struct ClientTime(Rc<Cell<u64>>);

impl ClientTime {
    /// Returns the time. It is 0 until the client has asked the memory nodes.
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    /// Notes a time that the client has met.
    pub(crate) fn raise(&self, time: u64) {
        // Without what the memory nodes have heard of, no time is large enough.
        if self.0.get() > 0 {
            self.0.set(self.0.get().max(time));
        }
    }

    /// Asks all memory nodes for the largest time that they have heard of. The client has
    /// registered by then (`protocol/dst`, invariant 6).
    pub async fn learn(&self, lane: &Lane, nodes: NodeSet) -> Result<(), FabricError> {
        let mut round = lane.round();
        let reads: Vec<_> = nodes.iter().map(|node| round.read(clock_at(node), WORD_BYTES)).collect();
        let done = lane.execute(round).await?;
        let heard = reads.into_iter().map(|read| done.words(read)[0]).max().unwrap_or(0);
        self.0.set(self.0.get().max(heard).max(1));
        Ok(())
    }
}
