//! Dropping tables: their names and their memory can be used again.
//!
//! ```text
//! 1  refuse     a table that is missing, was dropped, is being created, or is being loaded
//! 2  drop       one change of the catalog: no client opens the tables, and their space is kept
//! 3  tell       the configuration has the generation of that change
//! 4  wait       until no client uses the tables, and no log entry that names them is to be applied
//! 5  free       another change of the catalog: the shards are nowhere, and their space is free
//! ```
//!
//! If the client that drops a table dies between two steps, or if it has waited for long enough,
//! the table is dropped all the same. The next creation that needs the space does what is left.
//!
//! # Why no client harms the next table in the same space
//!
//! A client that has not heard of the drop may read, lock, log and install records of the table. So
//! the space is kept until all of these hold, in this order:
//!
//! 1. *Each registered client has acknowledged the drop.* The slots at the leader are looked at
//!    after step 2. A client that takes its slot later reads the catalog after that, before it runs
//!    a transaction (`Arrived::begin`). So every client that may know the table is in a slot.
//! 2. *A client acknowledges a drop when nothing of it is under way* (`Keeper::acknowledge_drops`):
//!    its process has forgotten the table; each of its sessions runs an attempt that began after
//!    that, or none; each round that a session had posted in the background before has completed;
//!    and its keeper looks for no locks of dead clients by an older catalog. A client that has lost
//!    a memory node does not acknowledge, since its last rounds may still arrive there.
//! 3. *A client that rests has acknowledged.* It has nothing under way. It begins to run with a
//!    renewal, which is a change of the configuration, and the configuration has been told of the
//!    drop before it was asked who rests. So the client hears of the drop before its first attempt.
//!    If the renewal fails, its transactions abort (`Keeper::is_awake`).
//! 4. *A client that dies is waited for until its slot is given back*: its transactions are
//!    decided, its locks are freed, and its rings are applied. No client is being recovered, since
//!    recovery goes by the catalog that it has read at its beginning.
//! 5. *Each ring has been applied as far as it was written when its client had acknowledged.* So no
//!    applier is about to write into a backup of the table.
//! 6. *No client loads rows into the table.* A client that loads names itself in the table while it
//!    holds the lock of the catalog, and only if the table is there. So a name is found behind step
//!    2, or it is never written. A client that loads keeps its name until it has written its last
//!    row; if it is dead, it is revoked.
//! 7. *No replica of the table is being copied* ([`remora_memory::metadata::free_dropped`]).
//!
//! A client that has no lease, or that the configuration does not know, never acknowledges. It is
//! waited for until it has left.
//!
//! # Why log entries that stay do no harm
//!
//! 8. *Rings still have entries that name shards of the table*, and recovery reads rings as a
//!    whole. The ids of these shards have no replicas from step 5 on, and recovery leaves such
//!    records out: by 2, the entry's transaction had ended. The ids are given to another table only
//!    when every client that was registered at step 5 has given its rings back.
//! 9. *The next table finds zeros*: the client that creates it writes zeros to used space first.
//!
//! # What stale handles meet
//!
//! 10. A process forgets a dropped table as soon as it reads a catalog without it, and every
//!     session forgets it before its next attempt. A handle is of a table that was *born* with one
//!     generation of the catalog, so that it is never taken for one of a later table with the same
//!     name or id.

use std::sync::atomic::Ordering;
use std::time::Duration;

use remora_fabric::{ClientId, Lane, Nanos, NodeId};
use remora_index::IndexError;
use remora_memory::ring::RingCopy;
use remora_memory::{MemoryError, Metadata, Remains, TableId, metadata, registered};

use super::handle::{Cluster, LEASE, lock};
use crate::error::OpenError;

/// How long a client that drops a table looks for others that use it, in pauses of this length.
const PAUSE: Duration = Duration::from_millis(1);

/// What became of the memory of a table that was dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the memory of a dropped table may still be kept"]
pub enum Freed {
    /// The memory is free: the next table that is created can have it.
    Now,
    /// The memory is kept, because these clients may still use the table: they run a transaction
    /// that began before the drop, have died and are being recovered, or have no lease. The next
    /// creation that needs the memory frees it, as soon as none of them is left.
    Later {
        /// The client incarnations that are waited for. Empty if something else keeps the memory: a
        /// copy of the table is being made.
        clients: Vec<u32>,
    },
}

/// Tables that this process loads rows into just now, told apart by when they were born.
#[derive(Debug)]
pub(crate) struct Loading<'c> {
    cluster: &'c Cluster,
    born: u64,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        lock(self.cluster.loading()).remove(&self.born);
    }
}

impl Cluster {
    /// Drops a table: its rows are gone, its name is free at once, and its memory is used again.
    ///
    /// The call waits until no client uses the table any more, for at most half of the longest
    /// lease of any client. If that does not suffice, it returns [`Freed::Later`]; the table is
    /// dropped all the same. A transaction that is under way commits before that, or fails. A
    /// client that still has a handle gets [`Misuse::Dropped`](crate::Misuse::Dropped), and goes on
    /// with its other tables.
    ///
    /// Fails with [`MemoryError::UnknownTable`] if no table has the name, with
    /// [`MemoryError::Dropped`] if it was dropped before, with [`MemoryError::Unfinished`] while a
    /// client is creating it, and with [`IndexError::Loading`] while a client is loading rows into
    /// it. What a dead client was creating or loading is no obstacle.
    ///
    /// Call it where this thread runs no worker: a worker that waits for this call cannot let go of
    /// the table. Of an ordered table, or one of large values, this drops a part: use
    /// [`drop_ordered`](Cluster::drop_ordered) or [`drop_large`](Cluster::drop_large).
    ///
    /// ```
    /// # use remora::{Cluster, Freed, TableOptions};
    /// # #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes)]
    /// # #[derive(zerocopy::Immutable, zerocopy::KnownLayout)]
    /// # #[repr(C)]
    /// # struct Number(u64);
    /// # impl remora::Record for Number {
    /// #     const SCHEMA: &'static str = "number";
    /// # }
    /// # let cluster = Cluster::embedded(Default::default())?;
    /// let options = TableOptions::for_rows(100);
    /// cluster.create_table::<u64, Number>("numbers", options)?;
    /// assert_eq!(cluster.drop_table("numbers")?, Freed::Now);
    /// cluster.create_table::<[u8; 16], Number>("numbers", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drop_table(&self, name: &str) -> Result<Freed, OpenError> {
        self.drop_together(&[name.to_owned()])
    }

    pub(crate) fn drop_together(&self, names: &[String]) -> Result<Freed, OpenError> {
        self.lacks_nothing()?;
        self.unless_interrupted()?;
        let drop = || {
            self.administer(async |lane: &Lane| {
                let (nodes, admin) = (self.live_nodes(), self.admin());
                let catalog = metadata::read(lane, nodes.leader()).await?;
                for name in names {
                    let table = remora_index::Table::open_with_cache(&catalog, name, 0)?;
                    self.unless_loading(lane, &table).await?;
                }
                Ok::<Metadata, OpenError>(metadata::drop_tables(lane, nodes, admin, names).await?)
            })
        };
        let catalog = self.change_catalog(drop)?;
        tracing::info!(?names, generation = catalog.generation, "tables are dropped");
        self.follow_catalog(catalog)?;
        self.free_dropped()
    }

    /// Fails while a client loads rows into a table. A dead client loads nothing any more.
    async fn unless_loading(&self, lane: &Lane, table: &remora_index::Table) -> Result<(), OpenError> {
        match remora_index::loader(lane, table).await? {
            Some(client) if self.may_load(table, client)? => {
                Err(IndexError::Loading { table: table.name().to_owned(), client })
            }
            _ => Ok(()),
        }
    }

    /// Whether the client that is named in a table may still write to it. A dead client is revoked,
    /// and then it may not.
    pub(crate) fn may_load(&self, table: &remora_index::Table, client: u32) -> Result<bool, OpenError> {
        if client == self.admin() {
            return Ok(lock(self.loading()).contains(&table.born()));
        }
        let is_dead = self.is_dead(client);
        if is_dead {
            self.fabric().revoke(ClientId(client)).map_err(MemoryError::from)?;
        }
        Ok(!is_dead)
    }

    /// Notes that this process begins to load rows into a table. Fails if it does so already.
    pub(crate) fn begin_loading(&self, table: &remora_index::Table) -> Result<Loading<'_>, OpenError> {
        if !lock(self.loading()).insert(table.born()) {
            return Err(IndexError::Loading { table: table.name().to_owned(), client: self.admin() });
        }
        Ok(Loading { cluster: self, born: table.born() })
    }

    /// Frees the space of tables that were dropped, as soon as no client uses them. Waits for that
    /// as long as clients that have a lease need to let go of a table.
    pub(crate) fn free_dropped(&self) -> Result<Freed, OpenError> {
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
            let Users { waited_for, unknown, now } = self.users(&catalog, generation)?;
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

    fn free_up_to(&self, generation: u64) -> Result<Freed, OpenError> {
        let free = || {
            self.administer(async |lane: &Lane| {
                let (nodes, admin) = (self.live_nodes(), self.admin());
                Ok::<Metadata, OpenError>(metadata::free_dropped(lane, nodes, admin, generation).await?)
            })
        };
        let catalog = self.with_lock_freed(free)?;
        let is_kept = catalog.kept().any(|(_, table)| table.dropped.is_some_and(|one| one.generation <= generation));
        self.follow_catalog(catalog)?;
        Ok(if is_kept { Freed::Later { clients: Vec::new() } } else { Freed::Now })
    }

    /// The clients that may still use tables which were dropped by this generation: see the
    /// module's page.
    fn users(&self, catalog: &Metadata, generation: u64) -> Result<Users, OpenError> {
        let unusable = |error: remora_cluster::ConfigurationError| MemoryError::Configuration(error.to_string());
        let mut users = Users::default();
        if let Some(configuration) = self.configuration() {
            if configuration.look(|now| now.dropped()).map_err(unusable)? < generation {
                configuration.change(|now| now.drop_tables(generation)).map_err(unusable)?;
            }
            // What is looked at from here on is as new as that.
            users.waited_for = configuration.look(|now| now.recovering().collect()).map_err(unusable)?;
        }
        let leader = self.live_nodes().leader();
        let looked = async |lane: &Lane| Ok::<_, OpenError>((registered(lane, leader).await?, lane.now()));
        let (clients, now) = self.administer(looked)?;
        users.now = now;
        for client in &clients {
            let acknowledged = match self.configuration() {
                Some(all) => all.look(|now| now.has_acknowledged_drop(*client, generation)).map_err(unusable)?,
                None => None,
            };
            match acknowledged {
                Some(true) => {}
                Some(false) => users.waited_for.push(*client),
                None => users.unknown.push(*client),
            }
        }
        if users.waited_for.is_empty() && users.unknown.is_empty() {
            self.administer(async |lane: &Lane| {
                self.find_loaders(lane, catalog, generation, &mut users).await?;
                self.find_unapplied(lane, &clients, &mut users).await
            })?;
        }
        users.waited_for.sort_unstable();
        users.waited_for.dedup();
        Ok(users)
    }

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
            if let Some(client) = remora_index::loader(lane, &table).await?
                && self.may_load(&table, client)?
            {
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
        let mut rings: Vec<(u32, NodeId, u64, u64)> = Vec::new();
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
            // A client that has left had its rings applied before, and they are another client's.
            let there = registered(lane, nodes.leader()).await?;
            rings.retain(|(client, ..)| there.contains(client));
        }
        users.waited_for.extend(rings.into_iter().map(|(client, ..)| client));
        Ok(())
    }

    /// Reads the catalog, and forgets tables that are not in it. `lane` may be any client's.
    pub(crate) async fn follow_drops(&self, lane: &Lane) -> Result<(), OpenError> {
        let catalog = metadata::read(lane, self.live_nodes().leader()).await?;
        if catalog.epoch != self.epoch() {
            return Err(MemoryError::EpochChanging.into());
        }
        if catalog.generation > self.followed() { self.follow_catalog(catalog) } else { Ok(()) }
    }

    /// Follows drops like [`follow_drops`](Cluster::follow_drops), and blocks the thread for as
    /// long as the memory node needs to answer.
    pub(crate) fn follow_drops_blocking(&self) -> Result<(), OpenError> {
        remora_fabric::block_on(self.fabric(), ClientId(0), async |lane: &Lane| self.follow_drops(lane).await)?
    }

    /// The generation of the catalog up to which this process has forgotten all dropped tables.
    pub(crate) fn followed(&self) -> u64 {
        self.drops().followed.load(Ordering::Acquire)
    }

    /// The generation of the catalog by which this process has last forgotten a table.
    #[inline]
    pub(crate) fn forgotten(&self) -> u64 {
        self.drops().forgotten.load(Ordering::Acquire)
    }
}

/// Clients that may still use tables which were dropped.
#[derive(Default)]
struct Users {
    /// They will acknowledge the drop, or be recovered.
    waited_for: Vec<u32>,
    /// They will not acknowledge anything: only when they have left is it known.
    unknown: Vec<u32>,
    /// When they were looked for.
    now: Nanos,
}
