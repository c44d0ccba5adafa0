//! The version cache of a process whose workers validate locally, and the tables that it vouches
//! for.

use std::sync::Arc;

use remora_membership::OtherCache;
use remora_node::MemoryError;
use remora_txn::{Validation, VersionCache};

use super::handle::Cluster;

/// Largest size of a version cache, in bytes. A larger one would be of no use, so the process must
/// not ask the system for it.
const VERSION_CACHE_BYTES_MAX: usize = 1 << 30;

impl Cluster {
    /// Returns the version cache that all workers of this cluster share that validate locally
    /// (`ford-local`). The first call makes it, with about `bytes` bytes, and at most 1 GiB. If a
    /// worker comes before that, it makes one of [`VersionCache::BYTES`] bytes. A table has one
    /// version cache. So while this handle has workers that may write a table, clients of another
    /// [`Cluster::connect`] are refused the table, even in the same process.
    pub fn version_cache(&self, bytes: usize) -> &Arc<VersionCache> {
        self.inner.vcache.get_or_init(|| Arc::new(VersionCache::new(bytes.min(VERSION_CACHE_BYTES_MAX))))
    }

    /// Returns the version cache, if the workers of this handle validate by one.
    pub(crate) fn own_version_cache(&self) -> Option<Arc<VersionCache>> {
        let is_local = self.protocol.validation() == Validation::Local;
        is_local.then(|| self.version_cache(VersionCache::BYTES).clone())
    }

    /// Claims a table for this process's version cache, as long as this process has workers.
    pub(super) fn claim(&self, table: &remora_index::Table) -> Result<(), MemoryError> {
        let Some(configuration) = &self.configuration else { return Ok(()) };
        let claim = || {
            let claimed = configuration.change(|membership| membership.claim(self.inner.number, &[table.id().0]));
            claimed.map_err(|error| MemoryError::Configuration(error.to_string()))?.map_err(other_cache)
        };
        claim()?;
        if self.inner.opened.note_claim(table.id()) {
            // A worker that was made in between has not claimed the table.
            claim()?;
        }
        Ok(())
    }
}

/// Returns the error of a table that another process's version cache validates.
pub(super) fn other_cache(OtherCache(client): OtherCache) -> MemoryError {
    MemoryError::OtherVersionCache(client)
}
