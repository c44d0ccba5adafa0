//! Fail-over: the conductor prepares the next epoch, which goes on without the memory nodes that
//! are lost.
//!
//! ```text
//! lose        the configuration makes one client the conductor:             (`remora_membership`)
//!             no other client's lease is renewed any more
//! wait        until each client has stopped by itself,                      (`remora_membership`)
//!             or its lease has expired
//! revoke      all of these clients, at every survivor                       [`fail_over`]
//! decide      what they had logged, from the survivors' rings, by the configuration to come
//! apply       until every survivor has applied its rings: backups are what their primaries were
//! publish     the configuration to come, at every survivor
//! begin       the next epoch: clients come back as new incarnations         (`remora_membership`)
//! ```
//!
//! The end of an epoch ends every client incarnation, as if all clients had died at once.
//! Controllers go on, except a controller that has a dead client to repair: the conductor decides
//! that client now, and must still find its rings. So the rules of the recovery of clients
//! ([`recovery`](super)) hold for fail-over, too. Each rule needs an addition:
//!
//! 1. *Revoke* cannot reach a node that is lost. That node may be alive, and answer clients that do
//!    not know of the loss. What they read there may be stale. So the conductor waits until all
//!    leases have expired, and the next epoch begins after that. A transaction that only reads does
//!    not succeed if its client's lease has expired, by the client's own clock. A transaction that
//!    writes needs an answer of every participant, and some participants are survivors.
//! 2. *Forward, if there is any entry*, at a survivor: a transaction that was reported had an entry
//!    at every participant. An entry that only lost nodes had was never reported.
//! 3. *Log before data* puts the entry into the rings of all survivors that take part. If the
//!    primary is lost, its backups have the record once they have applied their rings. A promoted
//!    backup has no locks, and lacks what was not logged.
//! 4. Where replicas are written in place, a transaction is complete if every surviving replica has
//!    it.
//! 5. *Publish after apply*. An applier touches no primary, and the published configuration tells
//!    it which replicas are primaries. If any node has the configuration to come, a successor of a
//!    dead conductor finds every entry where it belongs already.
//!
//! The code asserts rule 2 in this file, rule 3 where a backup is promoted, and the part of rule 5
//! that epochs only grow. The rest is about several machines: the campaigns in
//! `crates/lab/tests/fail_over.rs` check rules 1 and 4, and rule 5 as a whole.

use remora_fabric::{Fabric, Lane, Nanos, NodeId, NodeSet, probes};
use remora_node::metadata::{self, Wanted};
use remora_node::ring::RingCopy;
use remora_node::{MemoryError, Metadata, Remains, ShardId, follow_leader, identity};

use super::copy::copy_header;
use super::{Verdicts, decide, revoke};
use crate::event::Rollback;

/// Pause between two questions whether a node has applied its rings, in nanoseconds.
const APPLY_PAUSE_NS: Nanos = 20_000;
/// How long the conductor waits for a node to apply its rings, in nanoseconds. After that it gives
/// up.
const APPLY_PATIENCE_NS: Nanos = 10_000_000_000;

/// The memory nodes, replicas and clients that a fail-over is about.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'d> {
    /// The memory nodes that the cluster goes on with.
    pub survivors: NodeSet,
    /// The memory nodes that the cluster goes on without.
    pub lost: NodeSet,
    /// The epoch that begins.
    pub epoch: u64,
    /// Memory nodes that the cluster takes in, which hold nothing yet.
    pub admitted: NodeSet,
    /// Memory nodes that are to hold no replicas any more.
    pub leaving: NodeSet,
    /// Those of the leaving nodes whose replicas need not be copied elsewhere first.
    pub expendable: NodeSet,
    /// Memory nodes that are to hold their share of the replicas.
    pub filling: NodeSet,
    /// Joining replicas that have been copied completely: the shard of each, and its node.
    pub copied: &'d [(ShardId, NodeId)],
    /// Every client that may have had a transaction under way. This includes the other clients of
    /// the conductor's process, but not the conductor itself.
    pub clients: &'d [u32],
    /// New clients get incarnations above this one.
    pub incarnations: u32,
}

/// The functions that a fail-over calls to report what it does.
#[derive(Clone, Copy)]
pub struct Tell<'d> {
    /// Called for each record that is put back, before the record is written.
    pub rollback: &'d dyn Fn(&Rollback<'_>),
    /// Called with the verdicts of each client, before the client's slot may be given to another
    /// client. After that, a successor of a dead conductor cannot find the verdicts any more.
    pub decided: &'d Decided<'d>,
}

/// A function that stores the verdicts of each client.
pub type Decided<'d> = dyn Fn(&[(u32, Verdicts)]) -> Result<(), MemoryError> + 'd;

/// Makes the survivors ready for the next epoch, and returns the configuration to come. The call is
/// idempotent: a successor may run it again.
pub async fn fail_over(
    fabric: &dyn Fabric,
    lane: &Lane,
    loss: &Loss<'_>,
    tell: &Tell<'_>,
) -> Result<Metadata, MemoryError> {
    let Loss { survivors, lost, epoch, admitted, leaving, expendable, filling, copied, clients, incarnations } = *loss;
    lost.iter().for_each(|node| fabric.abandon(node));
    for client in clients {
        // Over a network each revocation takes a while, and the conductor's own lease keeps
        // running.
        revoke(fabric, &[*client])?;
        lane.sleep(1).await;
    }
    lane.probe(probes::REPAIRS);
    let all = NodeSet::from_bits(survivors.to_bits() | admitted.to_bits());
    for node in admitted.iter() {
        if !identity::rejoin(lane, node, survivors.leader(), epoch).await? {
            return Err(MemoryError::OtherCluster(node));
        }
    }
    // An earlier conductor that died before the end may have published at any of the nodes.
    let before = metadata::newest(lane, all).await?;
    debug_assert!(before.epoch <= epoch, "fail_over 5: no configuration of a later epoch was published");
    let after = metadata::without(&before, lost, epoch)?;
    let verdicts = decide(lane, survivors, after.clone(), clients, tell.rollback).await?;
    debug_assert!(
        verdicts.iter().map(|(client, _)| client).eq(clients),
        "fail_over 2: what every client had logged is decided before the next epoch is published"
    );
    let began = lane.now();
    for client in clients {
        let Some(remains) = Remains::find(lane, survivors, *client).await? else { continue };
        for (node, _, base) in remains.rings() {
            while !mutant!(PublishBeforeApply) && !RingCopy::is_applied(lane, node, base, *client).await? {
                if lane.now().saturating_sub(began) > APPLY_PATIENCE_NS {
                    return Err(MemoryError::NotApplied(node));
                }
                lane.sleep(APPLY_PAUSE_NS).await;
            }
        }
    }
    (tell.decided)(&verdicts)?;
    for (shard, node) in copied {
        copy_header(lane, &after, *shard, *node).await?;
    }
    let wanted = Wanted { nodes: all.without(leaving), expendable, filling, copied };
    let after = metadata::rearrange(lane, &after, &wanted).await?;
    // A node that leaves with this epoch may have been the leader until now. Then only that node
    // knows which space it has allocated.
    let leader = all.without(after.without_replicas(leaving)).leader();
    follow_leader(lane, all, leader, incarnations).await?;
    metadata::unlock_catalog(lane, leader).await?;
    metadata::publish(lane, all, &after).await?;
    Ok(after)
}
