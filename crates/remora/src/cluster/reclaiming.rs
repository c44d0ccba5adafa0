//! Reclaiming what clients that are gone have left.

use std::sync::Arc;
use std::time::Duration;

use remora_fabric::Lane;
use remora_node::{IndexKind, MemoryError, Metadata, TableEntry, TableId, metadata, registered};
use remora_txn::{Abort, DeadArrays, Race, Reclaimed, Stop, find_dead_arrays, free_dead_arrays, reclaim, reclaim_race};

use super::freeing::PAUSE;
use super::handle::{Cluster, LEASE};
use crate::error::{Error, OpenError};
use crate::worker::WorkerOptions;

impl Cluster {
    /// Reclaims what clients that are gone have left in memory. First it recovers each client that
    /// is known to be dead. Under protocol `rtx`, a client also has room for its next values in
    /// hand, which is lost when the client dies. This finds that room, and makes it usable again.
    /// In a [`Race`](crate::Race) it also finds the room of parts that were split. It reads all
    /// chains of all tables once.
    ///
    /// A living client has such room in hand, too, and no other client can tell whose it is. So
    /// this fails with [`MemoryError::InUse`] while another client is connected, or if one comes
    /// meanwhile. What was reclaimed by then stays so.
    pub fn reclaim(&self) -> Result<Reclaimed, Error> {
        // This client keeps others from reclaiming at the same time.
        let mut worker = self.worker(WorkerOptions::default().coroutines(1))?;
        let Some(own) = worker.incarnations().next() else { unreachable!("a worker is a client") };
        let leader = self.live_nodes().leader();
        let others = || {
            let clients = self.administer(async |lane: &Lane| registered(lane, leader).await)?;
            Ok::<_, OpenError>(clients.into_iter().filter(|client| *client != own).collect::<Vec<_>>())
        };
        others()?.into_iter().filter(|client| self.is_dead(*client)).try_for_each(|client| worker.recover(client))?;
        let in_use = |clients| OpenError::from(MemoryError::InUse { clients });
        let clients = others()?;
        if !clients.is_empty() {
            return Err(in_use(clients).into());
        }
        let catalog = self.read_catalog()?;
        let is_whole = |table: &TableEntry| table.is_there() && table.creator.is_none();
        let entries = (0..).map(TableId).zip(&catalog.tables).filter(|(_, table)| is_whole(table));
        let reclaimed = self.administer(async |lane: &Lane| {
            let mut all = Reclaimed::default();
            for (id, entry) in entries {
                let table = remora_index::Table::open_entry(&catalog, (id, entry));
                if entry.spec.index != IndexKind::Race {
                    all += reclaim(lane, leader, own, &table).await?;
                } else if let Some(name) = entry.spec.name.strip_suffix("/0")
                    && let Some(race) = remora_txn::Race::open(&catalog, name, Arc::new(table))
                {
                    // All extents of the table at once.
                    all += reclaim_race(lane, leader, own, &race).await?;
                }
            }
            Ok::<_, Stop>(all)
        });
        match reclaimed {
            Err(Stop::Abort(Abort::Changed)) => Err(in_use(others()?).into()),
            reclaimed => Ok(reclaimed?),
        }
    }

    /// Reclaims the arrays of [`Race`](crate::Race) tables that were split, while other clients
    /// use the tables. What dead clients had in hand is not found: see
    /// [`reclaim`](Cluster::reclaim). Under another protocol than `rtx` there is nothing to find.
    ///
    /// An array is reclaimed when every client has acknowledged that no operation of it is under
    /// way which began before the array was found. That needs a configuration, by which clients
    /// have leases. Fails with [`MemoryError::InUse`], which names the clients, if one of them has
    /// no lease, or has an operation under way for half of its lease. Then nothing was changed.
    pub fn reclaim_arrays(&self) -> Result<Reclaimed, Error> {
        // While this client is connected, the other way of reclaiming stops.
        let mut worker = self.worker(WorkerOptions::default().coroutines(1))?;
        let Some(own) = worker.incarnations().next() else { unreachable!("a worker is a client") };
        let leader = self.live_nodes().leader();
        let clients = self.administer(async |lane: &Lane| Ok::<_, OpenError>(registered(lane, leader).await?))?;
        let dead = clients.into_iter().filter(|client| *client != own && self.is_dead(*client));
        dead.collect::<Vec<_>>().into_iter().try_for_each(|client| worker.recover(client))?;
        let catalog = self.read_catalog()?;
        let mut found: Vec<(Race, DeadArrays)> = Vec::new();
        for race in races(&catalog) {
            let dead = self.administer(async |lane: &Lane| find_dead_arrays(lane, &race).await)?;
            found.push((race, dead));
        }
        if found.iter().any(|(_, dead)| dead.must_wait()) {
            self.until_operations_have_ended(own)?;
        }
        self.administer(async |lane: &Lane| {
            let mut all = Reclaimed::default();
            for (race, dead) in found {
                all += free_dead_arrays(lane, &race, dead).await?;
            }
            Ok::<_, Stop>(all)
        })
        .map_err(Error::from)
    }

    /// Waits until no operation on a RACE table is under way that began before this was called.
    ///
    /// A process that has a RACE table open takes each new generation of the catalog for a drop.
    /// So rules 1 to 4 of `dropping` hold for it: a client acknowledges the generation when each of
    /// its sessions runs an operation that began after it had heard of the generation, or none. A
    /// process that opens such a table later begins its operations later.
    fn until_operations_have_ended(&self, own: u32) -> Result<(), Error> {
        let touch = || {
            self.administer(async |lane: &Lane| {
                Ok::<Metadata, OpenError>(metadata::touch(lane, self.live_nodes(), self.admin()).await?)
            })
        };
        let touched = self.with_lock_freed(touch)?;
        let generation = touched.generation;
        self.follow_catalog(touched)?;
        let longest = self.configuration().and_then(|one| one.look(|now| now.longest_lease()).ok()).unwrap_or(0);
        let patience = Duration::from_nanos(longest).max(LEASE) / 2;
        let looks = patience.as_millis() / PAUSE.as_millis();
        for look in 0.. {
            self.tell_of_change(generation).map_err(OpenError::from)?;
            let leader = self.live_nodes().leader();
            let mut clients =
                self.administer(async |lane: &Lane| Ok::<_, OpenError>(registered(lane, leader).await?))?;
            // This client runs nothing.
            clients.retain(|client| *client != own);
            let users = self.unaware(&clients, generation).map_err(OpenError::from)?;
            if users.is_empty() {
                return Ok(());
            }
            if !users.unknown.is_empty() || look >= looks || self.is_interrupted() {
                let clients = users.waited_for.into_iter().chain(users.unknown).collect();
                return Err(OpenError::from(MemoryError::InUse { clients }).into());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Opens all RACE hash tables of a catalog.
fn races(catalog: &Metadata) -> Vec<Race> {
    let is_whole = |table: &TableEntry| table.is_there() && table.creator.is_none();
    let entries = (0..).map(TableId).zip(&catalog.tables).filter(|(_, table)| is_whole(table));
    let races = entries.filter(|(_, entry)| entry.spec.index == IndexKind::Race).filter_map(|(id, entry)| {
        let table = remora_index::Table::open_entry(catalog, (id, entry));
        Race::open(catalog, entry.spec.name.strip_suffix("/0")?, Arc::new(table))
    });
    races.collect()
}
