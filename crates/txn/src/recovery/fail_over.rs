//! Fail-over: the next epoch, without memory nodes that have died or that nobody may count on any
//! more.
//!
//! ```text
//! lose        the configuration makes one client the conductor: nobody else's lease is renewed     (`remora_cluster`)
//! wait        until each client has stopped by itself, or its lease has run out                     (`remora_cluster`)
//! revoke      all of them, at every survivor                                                        [`fail_over`]
//! decide      what they had logged, from the survivors' rings, by the configuration to come
//! apply       until every survivor has applied its rings: backups are what their primaries were
//! publish     the configuration to come, at every survivor
//! begin       the next epoch: clients come back as new incarnations                                 (`remora_cluster`)
//! ```
//!
//! An epoch ends every incarnation, as if all clients had died at once. So what is true of the
//! recovery of clients ([`recovery`](super)) is all that fail-over needs, and one more thing for
//! each of its rules:
//!
//! 1. *Revoke* cannot reach a node that is lost. It may be alive, and answer clients that do not
//!    know: they could read there what is no longer so. Hence the wait: no transaction ends well
//!    whose client's lease has run out, by its own clock, and the next epoch begins after that.
//!    What writes needs an answer of every participant, and some of them are survivors.
//! 2. *Forward, if there is any entry*, at a survivor: what was reported had an entry at every
//!    participant. An entry that only lost nodes had was never reported.
//! 3. *Log before data* puts the entry into the rings of all survivors that take part; where the
//!    primary is lost, its backups have the record when these are applied. A promoted backup has no
//!    lock: what was not logged is gone.
//! 4. Where replicas are written in place, a transaction is complete if every surviving replica has
//!    it.
//! 5. *Publish after apply*: an applier touches no primary, and it knows what is one from the
//!    published configuration. A successor of a dead conductor finds every entry where it belongs
//!    already, if any node has that configuration.

use remora_fabric::{Fabric, Lane, Nanos, NodeId, NodeSet, probes};
use remora_memory::metadata::{self, Wanted};
use remora_memory::ring::RingCopy;
use remora_memory::{MemoryError, Metadata, Remains, ShardId, follow_leader, identity};

use super::copy::copy_header;
use super::{Verdicts, decide, revoke};
use crate::event::Rollback;

/// Between two looks whether rings have been applied.
const APPLY_PAUSE_NS: Nanos = 20_000;
/// A node whose rings have not been applied for so long will not apply them.
const APPLY_PATIENCE_NS: Nanos = 10_000_000_000;

/// What a fail-over is about.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'d> {
    /// The memory nodes that the cluster goes on with.
    pub survivors: NodeSet,
    /// Those that it goes on without.
    pub lost: NodeSet,
    /// The epoch that begins.
    pub epoch: u64,
    /// Nodes that it takes in, which have nothing.
    pub admitted: NodeSet,
    /// Nodes that are to have nothing any more.
    pub leaving: NodeSet,
    /// Those of them whose copies need not be made elsewhere first.
    pub expendable: NodeSet,
    /// Nodes that are to have their share.
    pub filling: NodeSet,
    /// Joining replicas that have everything.
    pub copied: &'d [(ShardId, NodeId)],
    /// Every client that may have had anything under way: the conductor's own, too, but not the
    /// conductor.
    pub clients: &'d [u32],
    /// No client that comes may have an incarnation up to here.
    pub incarnations: u32,
}

/// Who is told of what a fail-over does.
#[derive(Clone, Copy)]
pub struct Tell<'d> {
    /// Of each record that is put back, before it is.
    pub rollback: &'d dyn Fn(&Rollback<'_>),
    /// What became of the clients' transactions, for each, before its slot may be given to another:
    /// a successor of a dead conductor does not find out any more.
    pub decided: &'d Decided<'d>,
}

/// Takes down what became of the transactions of clients, for each.
pub type Decided<'d> = dyn Fn(&[(u32, Verdicts)]) -> Result<(), MemoryError> + 'd;

/// Makes the survivors ready for the next epoch: the configuration to come. Done again, by
/// whomever, it does nothing more.
pub async fn fail_over(
    fabric: &dyn Fabric,
    lane: &Lane,
    loss: &Loss<'_>,
    tell: &Tell<'_>,
) -> Result<Metadata, MemoryError> {
    let Loss { survivors, lost, epoch, admitted, leaving, expendable, filling, copied, clients, incarnations } = *loss;
    lost.iter().for_each(|node| fabric.abandon(node));
    for client in clients {
        // Over a network each takes a while, and the conductor's own lease runs.
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
    // Who conducted this before, and did not get to its end, may have published at any of them.
    let before = metadata::newest(lane, all).await?;
    let after = metadata::without(&before, lost, epoch)?;
    let verdicts = decide(lane, survivors, after.clone(), clients, tell.rollback).await?;
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
    // Who leaves with this epoch may have led until now, and knows what it has given.
    let leader = all.without(after.without_replicas(leaving)).leader();
    follow_leader(lane, all, leader, incarnations).await?;
    metadata::unlock_catalog(lane, leader).await?;
    metadata::publish(lane, all, &after).await?;
    Ok(after)
}
