//! Freeing the memory of dropped tables, once no client uses them. These are steps 3 to 5 of
//! `dropping.rs`, whose head says why they are safe.

use std::time::Duration;

use remora_fabric::{Lane, Nanos, NodeId};
use remora_membership::ConfigurationError;
use remora_node::ring::{RingCopy, RingSpan};
use remora_node::{MemoryError, Metadata, Remains, TableId, metadata, registered};

use super::handle::{Cluster, LEASE};
use super::loading::Load;
use crate::error::OpenError;

/// Pause between two looks for clients that use a dropped table.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Tells whether the memory of a dropped table is free.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the memory of a dropped table may still be kept"]
pub enum Freed {
    /// The memory is free, so the next table that is created can have it.
    Now,
    /// The memory is kept, because these clients may still use the table: they run a transaction
    /// that began before the drop, have died and are being recovered, or have no lease. The next
    /// creation that needs the memory frees it, as soon as none of them is left.
    Later {
        /// The client incarnations that may still use the table. The list is empty if the memory is
        /// kept because a copy of the table is being made.
        clients: Vec<u32>,
    },
}

impl Cluster {
    /// Frees the space of tables that were dropped, as soon as no client uses them. Waits as long
    /// as clients that have a lease need to give up a table.
    pub(super) fn free_dropped(&self) -> Result<Freed, OpenError> {
        let longest = self.configuration().and_then(|one| one.look(|now| now.longest_lease()).ok()).unwrap_or(0);
        let patience = Duration::from_nanos(longest).max(LEASE) / 2;
        let mut began = None;
        // Looks are counted, too, because the clock of a simulated cluster may stand still.
        let looks = patience.as_millis() / PAUSE.as_millis();
        for look in 0.. {
            let catalog = self.read_catalog()?;
            let Some(generation) =
                catalog.kept().filter_map(|(_, table)| table.dropped).map(|one| one.generation).max()
            else {
                return Ok(Freed::Now);
            };
            let Users { waited_for, unknown, now, .. } = self.users(&catalog, generation)?;
            let elapsed = Duration::from_nanos(now - *began.get_or_insert(now));
            let is_over = look >= looks || elapsed > patience || self.is_interrupted();
            if waited_for.is_empty() && unknown.is_empty() {
                return self.free_up_to(generation);
            }
            if !unknown.is_empty() || is_over {
                let clients: Vec<u32> = waited_for.into_iter().chain(unknown).collect();
                tracing::warn!(?clients, "the memory of dropped tables is kept: clients may still use it");
                return Ok(Freed::Later { clients });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Freed::Later { clients: Vec::new() })
    }

    /// Frees the space of the tables that were dropped by this generation.
    fn free_up_to(&self, generation: u64) -> Result<Freed, OpenError> {
        let free = || {
            self.administer(async |lane: &Lane| {
                let (nodes, admin) = (self.live_nodes(), self.admin());
                Ok::<Metadata, OpenError>(metadata::free_dropped(lane, nodes, admin, generation).await?)
            })
        };
        let catalog = self.with_lock_freed(free)?;
        let is_kept = catalog.kept().any(|(_, table)| table.dropped.is_some_and(|one| one.generation <= generation));
        self.inner.opened.follow(catalog)?;
        Ok(if is_kept { Freed::Later { clients: Vec::new() } } else { Freed::Now })
    }

    /// Returns the clients that may still use tables which were dropped by this generation, by
    /// rules 1 to 7 of `dropping`.
    fn users(&self, catalog: &Metadata, generation: u64) -> Result<Users, OpenError> {
        self.tell_of_change(generation)?;
        // Everything that is read from here on is at least as new as this.
        let leader = self.live_nodes().leader();
        let looked = async |lane: &Lane| Ok::<_, OpenError>((registered(lane, leader).await?, lane.now()));
        let (clients, now) = self.administer(looked)?;
        let mut users = self.unaware(&clients, generation)?;
        users.now = now;
        if users.is_empty() {
            self.administer(async |lane: &Lane| {
                self.find_loaders(lane, catalog, generation, &mut users).await?;
                self.find_unapplied(lane, &clients, &mut users).await
            })?;
        }
        users.waited_for.sort_unstable();
        users.waited_for.dedup();
        Ok(users)
    }

    /// Tells the configuration that clients have to hear of the change of this generation.
    pub(super) fn tell_of_change(&self, generation: u64) -> Result<(), MemoryError> {
        let unusable = |error: ConfigurationError| MemoryError::Configuration(error.to_string());
        if let Some(configuration) = self.configuration()
            && configuration.look(|now| now.dropped()).map_err(unusable)? < generation
        {
            configuration.change(|now| now.drop_tables(generation)).map_err(unusable)?;
        }
        Ok(())
    }

    /// Returns the clients, registered or being recovered, that may still use a catalog from before
    /// the change of this generation, by rules 1 to 4 of `dropping`.
    pub(super) fn unaware(&self, clients: &[u32], generation: u64) -> Result<Users, MemoryError> {
        let unusable = |error: ConfigurationError| MemoryError::Configuration(error.to_string());
        let mut users = Users::default();
        let Some(configuration) = self.configuration() else {
            users.unknown = clients.to_vec();
            return Ok(users);
        };
        users.waited_for = configuration.look(|now| now.recovering().collect()).map_err(unusable)?;
        for client in clients {
            let acknowledged = configuration.look(|now| now.has_acknowledged_drop(*client, generation));
            match acknowledged.map_err(unusable)? {
                Some(true) => {}
                Some(false) => users.waited_for.push(*client),
                None => users.unknown.push(*client),
            }
        }
        Ok(users)
    }

    /// Finds the clients that load rows into the dropped tables.
    async fn find_loaders(
        &self,
        lane: &Lane,
        catalog: &Metadata,
        generation: u64,
        users: &mut Users,
    ) -> Result<(), OpenError> {
        let wanted: Vec<TableId> = catalog
            .kept()
            .filter(|(_, table)| table.dropped.is_some_and(|one| one.generation <= generation))
            .map(|(id, _)| id)
            .collect();
        for id in wanted {
            let Some(table) = remora_index::Table::open_by_id(catalog, id) else { continue };
            if let Load::UnderWay(client) = self.find_load(lane, &table).await? {
                users.waited_for.push(client);
            }
        }
        Ok(())
    }

    /// Waits until the rings of clients that have acknowledged are applied as far as they are
    /// written now, for a few pauses.
    async fn find_unapplied(&self, lane: &Lane, clients: &[u32], users: &mut Users) -> Result<(), OpenError> {
        const LOOKS: u32 = 200;
        let nodes = self.live_nodes();
        let mut rings: Vec<(u32, NodeId, RingSpan, u64)> = Vec::new();
        for client in clients {
            let Some(remains) = Remains::find(lane, nodes, *client).await? else { continue };
            for (node, _, base) in remains.rings() {
                let now = RingCopy::progress(lane, node, base, *client).await?;
                if now.applied < now.tail {
                    rings.push((*client, node, base, now.tail));
                }
            }
        }
        for _ in 0..LOOKS {
            let mut left = Vec::new();
            for (client, node, base, tail) in rings {
                if RingCopy::progress(lane, node, base, client).await?.applied < tail {
                    left.push((client, node, base, tail));
                }
            }
            rings = left;
            if rings.is_empty() {
                return Ok(());
            }
            lane.sleep(PAUSE.as_nanos() as u64 / 10).await;
            // A client that has left had its rings applied before. They may belong to another
            // client now.
            let there = registered(lane, nodes.leader()).await?;
            rings.retain(|(client, ..)| there.contains(client));
        }
        users.waited_for.extend(rings.into_iter().map(|(client, ..)| client));
        Ok(())
    }
}

/// Clients that may still use tables which were dropped, or a catalog from before a change.
#[derive(Default)]
pub(super) struct Users {
    /// Clients that will acknowledge the change, or be recovered.
    pub(super) waited_for: Vec<u32>,
    /// Clients that will not acknowledge anything. They may use the tables until they have left.
    pub(super) unknown: Vec<u32>,
    /// The time at which they were looked for.
    now: Nanos,
}

impl Users {
    pub(super) fn is_empty(&self) -> bool {
        self.waited_for.is_empty() && self.unknown.is_empty()
    }
}
