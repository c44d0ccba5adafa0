//! The tables that this process has open, and where they are in the present epoch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use remora_memory::{Metadata, Replica};

use super::handle::{Cluster, Drops};
use crate::error::OpenError;
use crate::mutex::lock;

impl Cluster {
    /// Whether a table is open in this process: it was neither dropped nor discarded, as far as is
    /// known here.
    pub(crate) fn has(&self, table: &remora_index::Table) -> bool {
        lock(&self.inner.tables).get(table.name()).is_some_and(|own| own.born() == table.born())
    }

    /// All that have been opened, where they are now.
    pub(crate) fn tables(&self) -> Vec<Arc<remora_index::Table>> {
        lock(&self.inner.tables).values().cloned().collect()
    }

    /// Opens a table by a catalog that was just read, unless it is open. `None` if the catalog is
    /// older than one that this process has followed: a table in it may have been dropped since.
    pub(super) fn remember(
        &self,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Option<Arc<remora_index::Table>>, OpenError> {
        let opened = metadata.table(name).map(|(_, entry)| entry.born);
        let mut tables = lock(&self.inner.tables);
        if metadata.generation < self.followed() {
            return Ok(None);
        }
        let is_other = |table: &Arc<remora_index::Table>| opened.as_ref().is_ok_and(|born| *born != table.born());
        if opened.is_err() || tables.get(name).is_some_and(is_other) {
            // Dropped, and perhaps created again, by another client.
            drop(tables);
            self.follow_catalog(metadata.clone())?;
            opened?;
            tables = lock(&self.inner.tables);
        }
        if let Some(table) = tables.get(name) {
            return Ok(Some(table.clone()));
        }
        if metadata.generation < self.followed() {
            return Ok(None);
        }
        let table = Arc::new(remora_index::Table::open(metadata, name)?);
        tables.insert(name.to_owned(), table.clone());
        Ok(Some(table))
    }

    /// Updates the open tables from a catalog. A table that is not in it has been discarded or
    /// dropped, and is no longer open.
    pub(crate) fn follow_catalog(&self, metadata: Metadata) -> Result<(), OpenError> {
        let mut tables = lock(&self.inner.tables);
        let Drops { followed, forgotten, .. } = &self.inner.drops;
        if metadata.generation < followed.load(Ordering::Acquire) {
            return Ok(()); // another thread has followed a newer one
        }
        let has = |table: &remora_index::Table| {
            metadata.table(table.name()).is_ok_and(|(id, entry)| (id, entry.born) == (table.id(), table.born()))
        };
        let gone: Vec<u16> = tables.values().filter(|table| !has(table)).map(|table| table.id().0).collect();
        if !gone.is_empty() {
            tables.retain(|_, table| has(table));
            lock(&self.inner.claimed).retain(|claimed| !gone.contains(claimed));
            forgotten.store(metadata.generation, Ordering::Release);
        }
        followed.store(metadata.generation, Ordering::Release);
        for table in tables.values_mut() {
            *table = Arc::new(table.moved(&metadata)?);
        }
        // Until all of it is known, no table is added by what was known before.
        *lock(&self.inner.metadata) = metadata;
        drop(tables);
        Ok(())
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

    /// Says where a table's records are.
    pub(super) fn announce_lines(&self, table: &remora_index::Table, new: impl Fn(&Replica) -> bool) {
        let lines = table.index().lines_of_records();
        for replica in (0..table.shards()).flat_map(|shard| table.shard_replicas(shard)).filter(|replica| new(replica))
        {
            self.inner.fabric.lines_of_records(replica.address(lines.start), lines.end - lines.start);
        }
    }
}
