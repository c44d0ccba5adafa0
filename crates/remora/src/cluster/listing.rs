//! What tables there are, how much room each has, and how much of it is used.

use remora_fabric::Lane;
use remora_node::{Grows, Metadata, TableEntry, TableId};

use super::handle::Cluster;
use crate::error::{Error, OpenError};

/// A table, as the catalog has it. Ordered tables, tables of large values and some tables of bytes
/// consist of several of these, whose names begin with theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableInfo {
    /// The table's name.
    pub name: String,
    /// What its keys and values mean, as the program that created it has said: at most 128 bytes,
    /// which end with `...` if there was more.
    pub schema: String,
    /// The fingerprint of its schema: of a description, and of the sizes of keys and values. Tables
    /// of one schema have one fingerprint.
    pub fingerprint: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of the longest value: of a table of bytes, of the part of it that the head holds.
    pub value_bytes: usize,
    /// Rows that there is room for, before it has grown. Keys scatter unevenly over shards, so a
    /// shard may be full before the table is.
    pub room: u64,
    /// Bytes that it takes at all memory nodes together, used or not, with the larger table that it
    /// grows into.
    pub bytes: u64,
    /// Copies that each record should have.
    pub replicas: u8,
    /// Copies that every record has at least: fewer than `replicas` after a memory node was lost,
    /// until others are made.
    pub copies: usize,
    /// Whether it grows by itself.
    pub grows: bool,
    /// Room of the larger table that it grows into just now.
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
    /// Lists the tables that there are now, in the order of their names. Tables that a client is
    /// creating are not among them.
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

    /// Counts the rows of a table while transactions go on. Reads all of the table once, so that it
    /// takes as long as that; rows that are inserted or removed meanwhile may be counted or not.
    ///
    /// A table of bytes, or of large values, consists of several tables. The one with its own name
    /// has a row for each key, so that the call counts its keys. An ordered table has no part with
    /// its own name, and its leaves hold several keys.
    ///
    /// Fails as [`Cluster::open_table`] does if there is no such table.
    pub fn count_rows(&self, name: &str) -> Result<u64, Error> {
        let catalog = self.read_catalog()?;
        let table = remora_index::Table::open_with_cache(&catalog, name, 0).map_err(OpenError::from)?;
        self.administer(async |lane: &Lane| Ok(remora_txn::count_rows(lane, &table).await?))
    }
}
