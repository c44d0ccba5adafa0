//! Dropping tables, so that their names and their memory can be used again.
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
//! the table is dropped all the same. The next creation that needs the space does the remaining
//! steps.
//!
//! # Why no client harms the next table in the same space
//!
//! A client that has not heard of the drop may read, lock, log and install records of the table. So
//! the space is kept until all of these conditions hold, in this order:
//!
//! 1. *Each registered client has acknowledged the drop.* The slots at the leader are looked at
//!    after step 2. A client that takes its slot later reads the catalog after that, before it runs
//!    a transaction (`Arrived::begin`). So every client that may know the table is in a slot.
//! 2. *A client acknowledges a drop when nothing of it is under way* (`Keeper::acknowledge_drops`).
//!    That is so when four conditions hold. Its process has forgotten the table. Each of its
//!    sessions runs an attempt that began after that, or none. Each round that a session had posted
//!    in the background before has completed. Its keeper looks for no locks of dead clients by an
//!    older catalog. A client that has lost a memory node does not acknowledge, since its last
//!    rounds may still arrive there.
//! 3. *A client that rests has acknowledged.* It has nothing under way. It begins to run with a
//!    renewal, which is a change of the configuration. The configuration knew of the drop before
//!    the dropping client asked it which clients rest. So the client hears of the drop before its
//!    first attempt. If the renewal fails, its transactions abort (`Keeper::is_awake`).
//! 4. *A client that dies is waited for until its slot is given back*: its transactions are
//!    decided, its locks are freed, and its rings are applied. No client is being recovered, since
//!    recovery goes by the catalog that it has read at its beginning.
//! 5. *Each ring has been applied as far as it was written when its client had acknowledged.* So no
//!    applier is about to write into a backup of the table.
//! 6. *No client loads rows into the table.* A client that loads names itself in the table while it
//!    holds the lock of the catalog, and only if the table is not dropped. So its name is found
//!    after step 2, or it is never written. A client that loads keeps its name until it has written
//!    its last row; if it is dead, it is revoked.
//! 7. *No replica of the table is being copied* ([`remora_node::metadata::free_dropped`]).
//!
//! A client that has no lease, or that the configuration does not know, never acknowledges. The
//! space is kept until this client has left.
//!
//! # Why log entries that stay do no harm
//!
//! 8. *Rings still have entries that name shards of the table*, and recovery reads rings as a
//!    whole. The ids of these shards have no replicas from step 5 on, and recovery leaves such
//!    records out: by 2, the entry's transaction had ended. The ids are given to another table only
//!    when every client that was registered at step 5 has given its rings back.
//! 9. *The next table finds zeros*: the client that creates it writes zeros to used space first.
//!
//! # Stale handles
//!
//! 10. A process forgets a dropped table as soon as it reads a catalog without it, and every
//!     session forgets it before its next attempt. A handle names the generation of the catalog
//!     with which its table was *born*. So it is never taken for a handle of a later table with the
//!     same name or id.
//!
//! That a freed table has no replicas (8) is asserted in [`remora_node::metadata::free_dropped`].
//! Everything else is about several clients and memory nodes: `crates/remora/tests/trials/drop.rs`
//! checks it.

use remora_fabric::Lane;
#[cfg(doc)]
use remora_index::IndexError;
#[cfg(doc)]
use remora_node::MemoryError;
use remora_node::{Metadata, metadata};

use super::freeing::Freed;
use super::handle::Cluster;
use crate::error::OpenError;

impl Cluster {
    /// Drops a table. Its rows are gone, its name is free at once, and its memory can be used
    /// again.
    ///
    /// The call waits until no client uses the table any more, for at most half of the longest
    /// lease of any client, or for a second if that is longer. If a client still uses the table
    /// then, the call returns [`Freed::Later`]. The table is dropped all the same. A transaction
    /// that is under way commits before the memory is freed, or fails. A transaction that uses a
    /// handle of the table later fails with [`Misuse::Dropped`](crate::Misuse::Dropped). Its client
    /// goes on with its other tables.
    ///
    /// Fails
    ///
    /// - with [`OpenErrorKind::NoTable`](crate::OpenErrorKind::NoTable) if no table has the name,
    /// - with [`OpenErrorKind::Dropped`](crate::OpenErrorKind::Dropped) if the table was dropped
    ///   before,
    /// - with [`OpenErrorKind::Unfinished`](crate::OpenErrorKind::Unfinished) while a client is
    ///   creating the table,
    /// - with [`OpenErrorKind::Loading`](crate::OpenErrorKind::Loading) while a client is loading
    ///   rows into the table.
    ///
    /// A table that a dead client was creating or loading can be dropped.
    ///
    /// Do not call it on a thread that runs a worker. That worker could not give up the table while
    /// its thread waits for this call.
    ///
    /// Other kinds of tables consist of several tables, and this call drops only one of these. For
    /// other kinds use [`drop_ordered`](Cluster::drop_ordered),
    /// [`drop_dyn_table`](Cluster::drop_dyn_table) or [`drop_large`](Cluster::drop_large).
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions, admin::Freed};
    /// # let cluster = Cluster::embedded().open()?;
    /// let options = TableOptions::for_rows(100);
    /// cluster.create_table::<u64, u64>("numbers", options)?;
    /// assert_eq!(cluster.drop_table("numbers")?, Freed::Now);
    /// cluster.create_table::<[u8; 16], u64>("numbers", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drop_table(&self, name: &str) -> Result<Freed, OpenError> {
        self.drop_together(&[name.to_owned()])
    }

    /// Drops several tables in one change of the catalog.
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
        self.inner.opened.follow(catalog)?;
        self.free_dropped()
    }
}
