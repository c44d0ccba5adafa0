//! Checks that a transaction which was reported as committed outlives its client: every memory node
//! that had to log it has its entry.
//!
//! Recovery can finish a transaction only from its log. So this must hold whichever clients and
//! nodes have died, and whatever other faults there were.

use std::collections::BTreeMap;

use remora::admin::Standing;
use remora::floors::node::ring::RingReader;
use remora::floors::node::{clients, node};
use remora::floors::record::Key;
use remora::observe::TransactionEvent;
use remora::{Cluster, TransactionId};
use remora_fabric::sim::Sim;
use remora_fabric::{Fabric, NodeId};

/// A redo ring, by its client's incarnation, its lane, and its memory node.
type Ring = (u32, usize, NodeId);

/// For each ring, the last reported transaction that had to be logged there. A node applies a ring
/// in order, so it has applied all earlier ones before.
#[derive(Debug, Default)]
pub(super) struct Reported(BTreeMap<Ring, TransactionId>);

impl Reported {
    /// Records that a lane was told that its transaction has committed.
    pub(super) fn note(&mut self, lane: usize, event: &TransactionEvent<'_>) {
        if event.decided_by != event.id {
            return; // another lane has logged it, and notes it
        }
        for access in event.accesses().filter(|access| access.written.is_some()) {
            let discipline = access.table.entry().spec.discipline;
            if discipline.is_in_place() || discipline.is_repairable() {
                continue; // nothing is logged any more: the history shows what was reported
            }
            let Some(key) = Key::new(access.key) else { continue };
            let shard = access.table.home(key.hash()).shard;
            for replica in access.table.shard_replicas(shard) {
                self.0.insert((event.id.owner(), lane, replica.node), event.id);
            }
        }
    }

    /// Returns a description of a reported transaction that a memory node has not applied, although
    /// no client runs any more. The rings of recovered clients may be gone already, and are left
    /// out.
    pub(super) fn lost(&self, cluster: &Cluster, sim: &Sim) -> Option<String> {
        let standing = |client| cluster.configuration()?.change(|membership| membership.standing(client)).ok()?;
        let mut left = self.0.iter().filter(|((client, ..), _)| standing(*client) == Some(Standing::Alive));
        let lost = left.find(|(ring, id)| last_applied(sim, **ring) < id.to_bits());
        lost.map(|((_, lane, node), id)| format!("{id} was reported, and {node} has no log entry of it (lane {lane})"))
    }
}

/// Returns the id of the last entry of a ring that its node has applied. Returns 0 if there is
/// none, or if the client has no slot there.
fn last_applied(sim: &Sim, (incarnation, lane, at): Ring) -> u64 {
    let Some(region) = sim.region(at, node::REGION) else { return 0 };
    let client = clients(region.words()).find(|client| client.incarnation == incarnation);
    let reader = client.and_then(|client| RingReader::resume(region.words(), client.ring(lane), incarnation));
    reader.map_or(0, |reader| reader.last())
}
