//! The catalog: how this process reads and changes it, by a client of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_fabric::{ClientId, FabricError, Fault, Lane};
use remora_index::IndexError;
use remora_node::{MemoryError, Metadata, metadata};

use super::handle::Cluster;
use super::opened::Wanted;
use crate::error::OpenError;
use crate::observe::WAITS;
use crate::table::Handle;

/// How long this process waits at most for another client that is alive and changes the catalog.
const CATALOG_PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    /// Reads the catalog again, so that this handle knows the tables as they are now. Fails if the
    /// memory nodes cannot be reached.
    pub fn refresh(&self) -> Result<(), OpenError> {
        let metadata = self.read_catalog()?;
        if metadata.epoch == self.epoch() {
            return self.inner.opened.follow(metadata);
        }
        self.inner.opened.note_catalog(metadata);
        Ok(())
    }

    /// Reads the catalog, as this process's client for the catalog.
    pub(crate) fn read_catalog(&self) -> Result<Metadata, OpenError> {
        let leader = self.live_nodes().leader();
        self.administer(async |lane: &Lane| Ok(metadata::read(lane, leader).await?))
    }

    /// Returns the name if a table has it.
    pub(crate) fn existing(&self, name: String) -> Result<Option<String>, OpenError> {
        Ok(self.read_catalog()?.table(&name).is_ok().then_some(name))
    }

    /// Returns the table as it is placed now, as far as this handle knows. If another handle has
    /// opened the table, this handle opens it, too, so that it follows the epochs.
    pub(crate) fn own(&self, table: Handle<'_>) -> Result<Arc<remora_index::Table>, OpenError> {
        let name = table.inner.name();
        if table.cluster != self.inner.cluster {
            return Err(IndexError::OtherCluster(name.to_owned()).into());
        }
        let known = self.inner.opened.of_origin(table.inner.origin());
        let own = known.map_or_else(|| self.adopt(table.inner), Ok)?;
        table.inner.note_newest(&own);
        Ok(own)
    }

    /// Opens a table by the catalog of the epoch that this handle is in. Waits only for the memory
    /// node, because this may be the thread of a worker which has to follow an epoch meanwhile.
    #[cold]
    fn adopt(&self, table: &remora_index::Table) -> Result<Arc<remora_index::Table>, OpenError> {
        let leader = self.live_nodes().leader();
        let read = async |lane: &Lane| metadata::read(lane, leader).await;
        loop {
            let metadata = remora_fabric::block_on(&*self.inner.fabric, ClientId(0), read)??;
            if metadata.epoch != self.epoch() {
                return Err(MemoryError::EpochChanging.into());
            }
            if let Some(table) = self.inner.opened.open(&metadata, Wanted::Origin(table.origin(), table.name()))? {
                return Ok(table);
            }
        }
    }

    /// Reads the catalog, and forgets tables that are not in it. `lane` may be a lane of any
    /// client.
    pub(crate) async fn follow_drops(&self, lane: &Lane) -> Result<(), OpenError> {
        let catalog = metadata::read(lane, self.live_nodes().leader()).await?;
        if catalog.epoch != self.epoch() {
            return Err(MemoryError::EpochChanging.into());
        }
        if catalog.generation > self.followed() { self.inner.opened.follow(catalog) } else { Ok(()) }
    }

    /// Uses a catalog that was just written, unless it is of another epoch.
    pub(crate) fn follow_catalog(&self, catalog: Metadata) -> Result<(), OpenError> {
        if catalog.epoch == self.epoch() {
            self.inner.opened.follow(catalog)
        } else {
            Err(MemoryError::EpochChanging.into())
        }
    }

    /// Follows drops like [`follow_drops`](Cluster::follow_drops), and blocks the thread for as
    /// long as the memory node needs to answer.
    pub(crate) fn follow_drops_blocking(&self) -> Result<(), OpenError> {
        remora_fabric::block_on(self.fabric(), ClientId(0), async |lane: &Lane| self.follow_drops(lane).await)?
    }

    /// Makes a change of the catalog. Waits while another client changes the catalog, and frees the
    /// catalog's lock if its holder has died.
    pub(super) fn with_lock_freed<T>(&self, mut change: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
        let (began, mut is_told) = (Instant::now(), false);
        loop {
            let changed = change();
            let holder = match changed.as_ref().err().and_then(OpenError::memory) {
                Some(MemoryError::CatalogLocked(holder)) => *holder as u32,
                _ => return changed,
            };
            if self.administer(async |lane: &Lane| self.has_died_changing(lane, holder).await)? {
                self.fabric().revoke(ClientId(holder)).map_err(MemoryError::from)?;
                self.administer(async |lane: &Lane| {
                    metadata::end_change_of(lane, self.live_nodes(), self.admin(), holder).await
                })?;
            } else if began.elapsed() > CATALOG_PATIENCE || self.is_interrupted() {
                return Err(MemoryError::CatalogLocked(holder.into()).into());
            } else if !is_told {
                is_told = true;
                tracing::warn!(target: WAITS, holder, "waiting for a client that changes the catalog");
            }
        }
    }

    /// Returns whether a client has died while it changes the catalog. A client that has ended its
    /// change need not be connected any more, and is not dead. So it must be at the same change
    /// before and after it was found dead.
    pub(super) async fn has_died_changing(&self, lane: &Lane, client: u32) -> Result<bool, MemoryError> {
        let leader = self.live_nodes().leader();
        let generation = metadata::read(lane, leader).await?.generation;
        let changes = async || Ok::<_, MemoryError>(metadata::who_changes(lane, leader).await? == Some(client));
        let has_died = changes().await? && self.is_dead(client) && changes().await?;
        Ok(has_died && metadata::read(lane, leader).await?.generation == generation)
    }

    /// Runs something that is no transaction, as this process's client for the catalog.
    pub(crate) fn administer<T, E: From<FabricError>>(
        &self,
        body: impl AsyncFnOnce(&Lane) -> Result<T, E>,
    ) -> Result<T, E> {
        remora_fabric::block_on(&*self.inner.fabric, self.administrator()?, body)?
    }

    /// Returns the id of this process's client for the catalog. Enters the last epoch first.
    pub(super) fn administrator(&self) -> Result<ClientId, FabricError> {
        // A process that runs no transactions learns here that an epoch has begun, and that its
        // client has another incarnation.
        if self.inner.remote.is_some()
            && let Err(error) = self.follow_epoch()
        {
            tracing::warn!(%error, "the next epoch cannot be entered yet");
        }
        let admin = ClientId(self.admin());
        if self.draft().is_some_and(|draft| draft.creator() != admin.0) {
            // The epoch has ended, and with it the client that creates the tables.
            return Err(FabricError { node: self.live_nodes().leader(), fault: Fault::Revoked });
        }
        Ok(admin)
    }
}
