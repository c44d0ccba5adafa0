//! Giving tables other names.
//!
//! Clients use a name only to find a table. What they remember of a table is kept by the table's
//! place in the catalog. So a table has its new name at once, and the renaming waits for no client.
//! A client that opens the old name before it has heard of the change gets the table that it had
//! open by that name.

use remora_fabric::Lane;
use remora_node::{Metadata, metadata};

use super::handle::Cluster;
use crate::error::OpenError;

impl Cluster {
    /// Gives a table another name. Handles of the table, in every process, stay valid. Errors from
    /// these handles may still have the old name. The old name is free.
    ///
    /// Other clients hear of the change within 0.2 s. Until then, a client that has the renamed
    /// table open may get it by its old name.
    ///
    /// Fails
    ///
    /// - with [`OpenErrorKind::TableExists`](crate::OpenErrorKind::TableExists) if a table has the
    ///   new name,
    /// - with [`OpenErrorKind::NoTable`](crate::OpenErrorKind::NoTable) if no table has the old
    ///   name,
    /// - with [`OpenErrorKind::Unfinished`](crate::OpenErrorKind::Unfinished) while a client is
    ///   creating the table.
    ///
    /// Other kinds of tables consist of several tables, and this call renames only one of these.
    /// For other kinds use [`rename_ordered`](Cluster::rename_ordered),
    /// [`rename_large`](Cluster::rename_large) or [`rename_dyn_table`](Cluster::rename_dyn_table).
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// cluster.create_table::<u64, u64>("visits", TableOptions::for_rows(100))?;
    /// cluster.rename_table("visits", "visits of 2025")?;
    /// cluster.create_table::<u64, u64>("visits", TableOptions::for_rows(100))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rename_table(&self, from: &str, to: &str) -> Result<(), OpenError> {
        self.rename_together(from, to, vec![from.to_owned()])
    }

    /// Gives the parts of a table other names, in one change of the catalog. The names of parts
    /// begin with the name of the table.
    pub(crate) fn rename_together(&self, from: &str, to: &str, parts: Vec<String>) -> Result<(), OpenError> {
        let new = |part: &String| format!("{to}{}", part.strip_prefix(from).unwrap_or_default());
        let names: Vec<_> = parts.into_iter().map(|part| (part.clone(), new(&part))).collect();
        self.lacks_nothing()?;
        self.unless_interrupted()?;
        let rename = || {
            self.administer(async |lane: &Lane| {
                Ok::<Metadata, OpenError>(metadata::rename_tables(lane, self.live_nodes(), self.admin(), &names).await?)
            })
        };
        let catalog = self.change_catalog(rename)?;
        tracing::info!(?names, generation = catalog.generation, "tables are renamed");
        let generation = catalog.generation;
        self.inner.opened.follow(catalog)?;
        // Other clients hear of the change when they look next.
        Ok(self.tell_of_change(generation)?)
    }
}
