//! Giving tables other names.
//!
//! A name is only how a table is found: what clients remember of a table goes by its place in the
//! catalog. So a table has its new name at once, and no client is waited for. One that opens the
//! old name before it has heard of the change gets the table that it had open by that name.

use remora_fabric::Lane;
use remora_node::{Metadata, metadata};

use super::handle::Cluster;
use crate::error::OpenError;

impl Cluster {
    /// Gives a table another name. Handles of the table, in every process, are as good as before;
    /// their errors may go on to have the old name. The old name is free.
    ///
    /// Another client hears of it within 0.2 s. Until then, the table that it gets by the old name
    /// may be the renamed one, if it has that open.
    ///
    /// Fails with [`OpenErrorKind::TableExists`](crate::OpenErrorKind::TableExists) if a table has
    /// the new name, with [`OpenErrorKind::NoTable`](crate::OpenErrorKind::NoTable) if no table has
    /// the old one, and with [`OpenErrorKind::Unfinished`](crate::OpenErrorKind::Unfinished) while
    /// a client is creating the table.
    ///
    /// Other kinds of tables consist of several tables, of which this call renames one: for them
    /// use [`rename_ordered`](Cluster::rename_ordered), [`rename_large`](Cluster::rename_large) or
    /// [`rename_dyn_table`](Cluster::rename_dyn_table).
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

    /// Gives the parts of a table, whose names begin with that of the table, other names, in one
    /// change of the catalog.
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
        // Others hear of it when they look next.
        Ok(self.tell_of_change(generation)?)
    }
}
