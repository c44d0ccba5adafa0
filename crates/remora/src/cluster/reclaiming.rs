//! Reclaiming what clients that are gone have left.

use std::sync::Arc;

use remora_fabric::Lane;
use remora_node::{IndexKind, MemoryError, TableEntry, TableId, registered};
use remora_txn::{Abort, Reclaimed, Stop, reclaim, reclaim_race};

use super::handle::Cluster;
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
}
