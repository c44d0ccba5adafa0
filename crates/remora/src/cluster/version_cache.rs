//! The version cache of a process whose workers validate locally, and the tables that it vouches
//! for.

use std::sync::Arc;

use remora_membership::OtherCache;
use remora_node::MemoryError;
use remora_txn::{Validation, VersionCache};

use super::handle::Cluster;

/// The most bytes of a version cache. More has no use, and must not be asked of the system.
const VERSION_CACHE_BYTES_MAX: usize = 1 << 30;

impl Cluster {
    /// The version cache that all workers of this cluster share that validate locally
    /// (`ford-local`). The first call makes it, of about as many bytes as asked for, at most 1 GiB;
    /// the first worker makes one of [`VersionCache::BYTES`]. A table has one version cache:
    /// clients of another [`Cluster::connect`], also of this process, are refused a table while
    /// workers of this one are there that may write it.
    pub fn version_cache(&self, bytes: usize) -> &Arc<VersionCache> {
        self.inner.vcache.get_or_init(|| Arc::new(VersionCache::new(bytes.min(VERSION_CACHE_BYTES_MAX))))
    }

    /// The version cache, if the workers of this handle validate by one.
    pub(crate) fn own_version_cache(&self) -> Option<Arc<VersionCache>> {
        let is_local = self.protocol.validation() == Validation::Local;
        is_local.then(|| self.version_cache(VersionCache::BYTES).clone())
    }

    /// Has a table validated by this process's version cache alone, as long as workers of it are
    /// there.
    pub(super) fn claim(&self, table: &remora_index::Table) -> Result<(), MemoryError> {
        let Some(configuration) = &self.configuration else { return Ok(()) };
        let claim = || {
            let claimed = configuration.change(|membership| membership.claim(self.inner.number, &[table.id().0]));
            claimed.map_err(|error| MemoryError::Configuration(error.to_string()))?.map_err(other_cache)
        };
        claim()?;
        if self.inner.opened.note_claim(table.id()) {
            // A worker that came in between did not claim it.
            claim()?;
        }
        Ok(())
    }
}

/// The error of a table that another process's version cache vouches for.
pub(super) fn other_cache(OtherCache(client): OtherCache) -> MemoryError {
    MemoryError::OtherVersionCache(client)
}
