//! Listing the tables of a cluster with their room, and counting the rows of a table.

use remora_fabric::Lane;
use remora_node::{Grows, Metadata, TableEntry, TableId};

use super::handle::Cluster;
use crate::error::{Error, OpenError};

/// A table as the catalog has it. Ordered tables, tables of large values and some tables of bytes
/// consist of several of these, whose names begin with the table's name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableInfo {
    /// The table's name.
    pub name: String,
    /// What the table's keys and values mean, as the program that created it has said. The text has
    /// at most 128 bytes, and ends with `...` if there was more.
    pub schema: String,
    /// The fingerprint of the table's schema, which is a description and the sizes of keys and
    /// values. Tables with the same schema have the same fingerprint.
    pub fingerprint: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of the longest value. For a table of bytes, it counts the part of a value that the
    /// head holds.
    pub value_bytes: usize,
    /// Number of rows for which the table has room now. Keys scatter unevenly over shards, so a
    /// shard may be full before the table is.
    pub room: u64,
    /// Bytes that the table takes at all memory nodes together, used or not, including the larger
    /// table that it grows into.
    pub bytes: u64,
    /// Number of copies that each record should have.
    pub replicas: u8,
    /// Number of copies that every record has at least. It is smaller than `replicas` after a
    /// memory node was lost, until other copies are made.
    pub copies: usize,
    /// Whether the table grows by itself.
    pub grows: bool,
    /// Number of rows for which the larger table has room, if the table is growing into one now.
    pub growing_to: Option<u64>,
}

impl TableInfo {
    fn of(catalog: &Metadata, id: TableId, entry: &TableEntry) -> TableInfo {
        let spec = &entry.spec;
        let all: Vec<&TableEntry> = catalog.and_larger(id).map(|id| &catalog.tables[usize::from(id.0)]).collect();
        TableInfo {
            name: spec.name.clone(),
            schema: spec.schema.clone(),
            fingerprint: spec.fingerprint.0,
            key_bytes: spec.layout.key_bytes.into(),
            value_bytes: spec.layout.value_max as usize,
            room: spec.rows_that_fit(),
            bytes: all.iter().map(|entry| entry.spec.bytes_in_all()).sum(),
            replicas: spec.replicas,
            copies: all.iter().map(|entry| catalog.copies_of(entry)).min().unwrap_or(0),
            grows: spec.grows == Grows::ByItself,
            growing_to: all[1..].last().map(|larger| larger.spec.rows_that_fit()),
        }
    }
}

impl Cluster {
    /// Returns the tables of the cluster, in the order of their names. Tables that a client is
    /// creating are not among them. Fails if the catalog cannot be read.
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// cluster.create_table::<u64, u64>("visits", TableOptions::for_rows(100))?;
    /// let tables = cluster.list_tables()?;
    /// assert_eq!((&*tables[0].name, tables[0].key_bytes, tables[0].copies), ("visits", 8, 3));
    /// assert!(tables[0].room >= 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list_tables(&self) -> Result<Vec<TableInfo>, OpenError> {
        let catalog = self.read_catalog()?;
        let is_listed = |table: &TableEntry| table.is_there() && table.creator.is_none() && table.growth.is_none();
        let tables = (0..).map(TableId).zip(&catalog.tables).filter(|(_, table)| is_listed(table));
        let mut tables: Vec<_> = tables.map(|(id, table)| TableInfo::of(&catalog, id, table)).collect();
        tables.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(tables)
    }

    /// Counts the rows of a table while transactions go on. The call reads the whole table once, so
    /// it takes a time in proportion to the table's size. A row that is inserted or removed
    /// meanwhile may be counted or not.
    ///
    /// A table of bytes, or of large values, consists of several tables. The one with the table's
    /// own name has a row for each key, so the call counts the keys. An ordered table has no part
    /// with its own name, and each of its leaves holds several keys.
    ///
    /// Fails as [`Cluster::open_table`] does if there is no such table.
    pub fn count_rows(&self, name: &str) -> Result<u64, Error> {
        let catalog = self.read_catalog()?;
        let table = remora_index::Table::open_with_cache(&catalog, name, 0).map_err(OpenError::from)?;
        self.administer(async |lane: &Lane| Ok(remora_txn::count_rows(lane, &table).await?))
    }
}
