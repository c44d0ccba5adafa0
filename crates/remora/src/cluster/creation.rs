//! Creating several tables together: either all of them become visible, or none does, even if the
//! client dies.
//!
//! 1. While a client creates tables together, each of them is *unfinished*: the catalog names the
//!    client as its creator, and no other client opens it.
//! 2. When all steps have succeeded, one change of the catalog makes all of the tables ready.
//! 3. When a step fails, the client discards them.
//! 4. When the client dies, the next client that needs their names or their space discards them. A
//!    client can also ask for that ([`Cluster::discard_unfinished`]). It revokes the creator's
//!    access first. So a creator that was taken for dead by mistake does no harm. Its creation
//!    fails.
//!
//! A client counts as dead when the configuration says so, when its process has ended, or when no
//! memory node has a connection of it. So a client that creates tables stays connected meanwhile.

use std::fmt;
use std::sync::Arc;

use remora_fabric::{ClientId, Lane, Transport};
use remora_node::{MemoryError, Metadata, TableId, metadata};

use super::draft::Draft;
use super::freeing::Freed;
use super::handle::Cluster;
use crate::error::OpenError;

impl Cluster {
    /// Creates and loads several tables together. Other clients see all of them at once, or none.
    ///
    /// `steps` creates the tables through the cluster that it gets. When it has succeeded, other
    /// clients see all of them. If it fails or panics, the tables are discarded, and their names
    /// are free again. If this client dies, another client discards them when it needs their names
    /// or their space.
    ///
    /// Until `steps` has succeeded, use the tables only for [`load`](Cluster::load), through the
    /// cluster that `steps` gets. If the epoch ends meanwhile, the creation fails.
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions, OpenError};
    /// # let cluster = Cluster::embedded().open()?;
    /// let (names, ages) = cluster.create_together(|cluster| {
    ///     let names = cluster.create_table::<u64, u64>("names", TableOptions::for_rows(100))?;
    ///     let ages = cluster.create_table::<u64, u64>("ages", TableOptions::for_rows(100))?;
    ///     cluster.load(&names, (0..100).map(|id| (id, id)))?;
    ///     cluster.load(&ages, (0..100).map(|id| (id, 30)))?;
    ///     Ok::<_, OpenError>((names, ages))
    /// })?;
    /// # let _ = (names, ages);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create_together<T, E: From<OpenError>>(&self, steps: impl FnOnce(&Cluster) -> Result<T, E>) -> Result<T, E> {
        if let Some(draft) = self.draft() {
            // The outer creation finishes the tables that this one has made. If this one fails, the
            // outer one may go on without them.
            let mut undo = Undo { cluster: self, draft: &draft, first: draft.tables().len() };
            let made = steps(self)?;
            undo.first = usize::MAX;
            return Ok(made);
        }
        let client = self.admin();
        let _presence = self.stay_connected(client)?;
        let draft = Arc::new(Draft::new(client));
        let cluster = self.drafting(draft.clone());
        let mut undo = Undo { cluster: &cluster, draft: &draft, first: 0 };
        let made = steps(&cluster)?;
        cluster.finish(&draft)?;
        undo.first = usize::MAX;
        draft.end();
        Ok(made)
    }

    /// Discards tables that dead clients have begun to create and not finished. Returns the names
    /// of these tables. A creation that needs their names or their space does this by itself.
    pub fn discard_unfinished(&self) -> Result<Vec<String>, OpenError> {
        let mut all = Vec::new();
        let catalog = self.read_catalog()?;
        for creator in catalog.creators() {
            let unfinished = |catalog: &Metadata| {
                let tables = catalog.tables.iter().filter(|table| table.creator == Some(creator));
                tables.map(|table| table.born).collect::<Vec<_>>()
            };
            // A client that has finished meanwhile is not connected any more, and is not dead.
            let is_same = |now: &Metadata| unfinished(now).iter().any(|born| unfinished(&catalog).contains(born));
            if self.is_dead(creator) && is_same(&self.read_catalog()?) {
                self.fabric().revoke(ClientId(creator)).map_err(MemoryError::from)?;
                let names = self.discard(creator, |_| true, true)?;
                tracing::warn!(creator, ?names, "tables are discarded whose creator died before they were ready");
                all.extend(names);
            }
        }
        Ok(all)
    }

    /// Makes a change of the catalog. If the change lacks a name or space, discards tables that
    /// dead clients have left, frees dropped tables, and tries again.
    pub(super) fn change_catalog<T>(&self, mut change: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
        match self.with_lock_freed(&mut change) {
            Err(error)
                if matches!(
                    error.memory(),
                    Some(MemoryError::Unfinished { .. } | MemoryError::OutOfMemory { .. } | MemoryError::Limit { .. })
                ) =>
            {
                let has_discarded = !self.discard_unfinished()?.is_empty();
                // The memory of dropped tables that is not free yet may suffice.
                let may_need_space = !matches!(error.memory(), Some(MemoryError::Unfinished { .. }));
                let keeps_space = may_need_space && self.read_catalog()?.kept().next().is_some();
                let has_freed = keeps_space && self.free_dropped()? == Freed::Now;
                if !has_discarded && !has_freed {
                    return Err(error);
                }
                self.with_lock_freed(&mut change)
            }
            changed => changed,
        }
    }

    /// Makes the tables of a draft ready, so that other clients can open them.
    fn finish(&self, draft: &Draft) -> Result<(), OpenError> {
        self.unless_interrupted()?;
        let tables = draft.tables();
        if tables.is_empty() {
            return Ok(());
        }
        let finish = || {
            self.administer(async |lane: &Lane| {
                Ok(metadata::finish_tables(lane, self.live_nodes(), draft.creator(), &tables).await?)
            })
        };
        let metadata: Metadata = self.with_lock_freed(finish)?;
        self.inner.opened.follow(metadata)
    }

    /// Discards tables of a creator that can do nothing more to them.
    fn discard(
        &self,
        creator: u32,
        wanted: impl Fn(TableId) -> bool,
        give_back: bool,
    ) -> Result<Vec<String>, OpenError> {
        let discard = || {
            self.administer(async |lane: &Lane| {
                let (nodes, admin) = (self.live_nodes(), self.admin());
                Ok(metadata::discard_tables(lane, nodes, admin, creator, &wanted, give_back).await?)
            })
        };
        let (names, metadata) = self.with_lock_freed(discard)?;
        self.inner.opened.follow(metadata)?;
        Ok(names)
    }

    /// Makes a connection by which other processes see that a client is alive. If the memory nodes
    /// are files or in this process, no such connection is needed.
    pub(super) fn stay_connected(&self, client: u32) -> Result<Option<Box<dyn Transport>>, OpenError> {
        if !self.is_seen_by_connections() {
            return Ok(None);
        }
        Ok(Some(self.fabric().connect(ClientId(client)).map_err(MemoryError::from)?))
    }
}

/// Discards the tables that a creation has made, unless the creation has succeeded.
struct Undo<'c> {
    cluster: &'c Cluster,
    draft: &'c Draft,
    /// The place in the draft of the first table that is to be discarded.
    first: usize,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let undone = self.draft.take_behind(self.first);
        if undone.is_empty() {
            return;
        }
        // The tables are discarded outside of the draft, which ends with its epoch. A user who
        // interrupts the program does not want to wait until memory is zeroed. The next client that
        // needs the space does that.
        let mut outside = self.cluster.clone();
        (outside.draft, outside.interrupt) = (None, None);
        let give_back = !self.cluster.is_interrupted();
        if let Err(error) = outside.discard(self.draft.creator(), |table| undone.contains(&table), give_back) {
            tracing::warn!(%error, "what could not be created is left for another client to discard");
        }
    }
}

impl fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undo").field("first", &self.first).finish_non_exhaustive()
    }
}
