//! Clients as the cluster knows them: how a client announces itself, and when a client counts as
//! dead.

use std::sync::Arc;

use remora_fabric::{ClientId, Lane, Nanos, NodeSet};
use remora_membership::{Configuration, EpochChanging, Standing};
use remora_node::{MemoryError, come, connected, identity};
use remora_txn::Validation;

use super::handle::Cluster;
use super::nodes::Remote;
use super::version_cache::other_cache;

/// A client that is about to register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) incarnation: u32,
    pub(crate) epoch: u64,
    /// The memory nodes of the epoch.
    pub(crate) nodes: NodeSet,
}

impl Cluster {
    /// Gives a client an incarnation. `guest` is a lane of client id 0. The configuration knows the
    /// incarnation before the client takes a slot or a lock.
    pub(crate) async fn announce(&self, guest: &Lane) -> Result<Announced, MemoryError> {
        self.lacks_nothing()?;
        // The epoch is read before the nodes. If another epoch is entered meanwhile, the
        // configuration refuses this epoch, so the nodes do not matter.
        let epoch = self.epoch();
        let nodes = self.live_nodes();
        // All clients of an epoch have the same nodes: no one was missed meanwhile.
        self.lacks_nothing()?;
        let mut incarnation = draw(guest, nodes).await?;
        let is_local = self.protocol.validation() == Validation::Local;
        if let Some(configuration) = &self.configuration {
            if is_local {
                self.knows_all(configuration, guest).await?;
            }
            let tables = || is_local.then(|| (self.inner.number, self.inner.opened.claimed()));
            incarnation = join_by(configuration, incarnation, epoch, self.lease_ns().unwrap_or(u64::MAX / 2), tables)?;
        } else if is_local {
            return Err(MemoryError::NeedsConfiguration(self.protocol.name()));
        }
        Ok(Announced { incarnation, epoch, nodes })
    }

    /// Fails if a client is connected that this configuration does not know. Such a client may have
    /// claimed tables for its own version cache, in another configuration or in none.
    async fn knows_all(&self, configuration: &Arc<dyn Configuration>, lane: &Lane) -> Result<(), MemoryError> {
        let clients = connected(lane, self.live_nodes().leader()).await?;
        let unknown = configuration.look(|membership| {
            let unknown = clients.iter().map(|client| client.incarnation);
            unknown.filter(|client| membership.standing(*client).is_none()).collect::<Vec<_>>()
        });
        let mut unknown = unknown.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        if !unknown.is_empty() {
            // A client of this configuration may have left since the first look. It gives its slot
            // back before the configuration forgets it, so it is not connected any more.
            let clients = connected(lane, self.live_nodes().leader()).await?;
            unknown.retain(|stranger| clients.iter().any(|client| client.incarnation == *stranger));
        }
        unknown.first().map_or(Ok(()), |stranger| Err(MemoryError::UnknownClient(*stranger)))
    }

    /// Returns whether a client is known to be dead. It is if the configuration says so, or if its
    /// process has ended. A client that stays connected is also known to be dead if no memory node
    /// has a connection of it. Returns false for a client that may be alive.
    #[must_use]
    pub fn is_dead(&self, client: u32) -> bool {
        if client == self.admin() {
            return false;
        }
        let known = self.configuration().and_then(|configuration| {
            let standing = configuration.look(|membership| {
                let process = membership.processes().find(|(one, _)| *one == client).and_then(|(_, process)| process);
                membership.standing(client).map(|standing| (standing, process))
            });
            standing.ok().flatten().map(|(standing, process)| match standing {
                Standing::Alive => process.is_some_and(|process| configuration.has_ended(process)),
                Standing::Suspected { .. } | Standing::Recovered { .. } | Standing::Forgotten => true,
            })
        });
        known == Some(true) || self.fabric().is_connected(ClientId(client)) == Some(false)
    }

    /// Returns whether other processes can tell by a client's connections that it is alive.
    pub(super) fn is_seen_by_connections(&self) -> bool {
        matches!(&self.inner.remote, Some((_, Remote::Tcp(_))))
    }
}

/// Draws an incarnation from the counter of the leader of these nodes. Fails if one of them does
/// not answer, or has lost its memory: its counter would begin again.
pub(super) async fn draw(guest: &Lane, nodes: NodeSet) -> Result<u32, MemoryError> {
    identity::remembered(guest, nodes).await?;
    come(guest, nodes).await
}

/// Announces a client to the configuration. Returns its incarnation, which is nearly always the
/// one that it has drawn.
pub(super) fn join(
    configuration: &Arc<dyn Configuration>,
    drawn: u32,
    epoch: u64,
    lease: Nanos,
) -> Result<u32, MemoryError> {
    join_by(configuration, drawn, epoch, lease, || None)
}

/// Announces a client to the configuration, with the version cache by which it validates and the
/// tables that it may write.
fn join_by(
    configuration: &Arc<dyn Configuration>,
    drawn: u32,
    epoch: u64,
    lease: Nanos,
    vcache: impl Fn() -> Option<(u32, Vec<u16>)>,
) -> Result<u32, MemoryError> {
    let process = configuration.process();
    let joined = configuration.change(|membership| {
        let vcache = vcache();
        if let Some((vcache, tables)) = &vcache {
            membership.claim(*vcache, tables).map_err(other_cache)?;
        }
        let joined = membership.join(drawn, epoch, lease, process);
        let incarnation = joined.map_err(|EpochChanging| MemoryError::EpochChanging)?;
        if let Some((vcache, _)) = vcache {
            membership.validates_by(incarnation, vcache);
        }
        Ok(incarnation)
    });
    joined.map_err(|error| MemoryError::Configuration(error.to_string()))?
}
