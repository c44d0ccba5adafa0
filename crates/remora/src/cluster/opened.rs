//! The tables that this process has open, and the catalog that they follow.
//!
//! Several threads read the catalog at the same time, so a thread may have a catalog that is older
//! than one which another thread has followed. A table in an older catalog may have been dropped
//! since. So:
//!
//! 1. Tables are opened, moved and forgotten under one lock, that of `tables`.
//! 2. A catalog of an older generation than the one that was followed last opens no table and
//!    forgets no table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use remora_fabric::Fabric;
use remora_node::{IndexKind, Metadata, Replica, TableEntry, TableId};

use crate::error::OpenError;
use crate::mutex::lock;

/// The tables that this process has open, and the catalog that they follow.
#[derive(Default)]
pub(super) struct Opened {
    /// The open tables by their origins, which neither growth nor another name changes.
    tables: Mutex<HashMap<u64, Arc<remora_index::Table>>>,
    /// The catalog, as it was last read.
    catalog: Mutex<Metadata>,
    /// Generation of the catalog up to which all dropped tables are forgotten.
    followed: AtomicU64,
    /// Generation of the catalog by which a table was last forgotten, or was last replaced by the
    /// larger table that it has grown into. If a RACE table is open, the last generation that was
    /// followed.
    forgotten: AtomicU64,
    /// Ids of the tables that are validated by this process's version cache.
    claimed: Mutex<Vec<u16>>,
}

/// Names the table that is to be opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'n> {
    /// The table that has this name now.
    Name(&'n str),
    /// The table with this origin, which had this name.
    Origin(u64, &'n str),
}

impl Opened {
    /// Makes the list without open tables. `catalog` is the catalog, if it was read already.
    pub(super) fn none(catalog: Metadata) -> Opened {
        Opened { catalog: Mutex::new(catalog), ..Opened::default() }
    }

    /// The catalog, as it was last read.
    pub(super) fn catalog(&self) -> Metadata {
        lock(&self.catalog).clone()
    }

    /// Returns the epoch of the catalog.
    pub(super) fn epoch(&self) -> u64 {
        lock(&self.catalog).epoch
    }

    /// Notes a catalog that was read, without following it.
    pub(super) fn note_catalog(&self, catalog: Metadata) {
        *lock(&self.catalog) = catalog;
    }

    /// Returns the generation of the catalog up to which this process has forgotten all dropped
    /// tables.
    pub(super) fn followed(&self) -> u64 {
        self.followed.load(Ordering::Acquire)
    }

    /// Returns the generation of the catalog by which this process has last forgotten a table, or
    /// replaced a table by the one that it has grown into.
    #[inline]
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Returns the open table that has this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<remora_index::Table>> {
        lock(&self.tables).values().find(|table| table.name() == name).cloned()
    }

    /// Returns the open table that has this origin.
    pub(super) fn of_origin(&self, origin: u64) -> Option<Arc<remora_index::Table>> {
        lock(&self.tables).get(&origin).cloned()
    }

    /// Returns a table as it is now, or the larger table that it has grown into. Returns `None` if
    /// it was dropped or discarded, as far as this process knows.
    pub(super) fn now(&self, table: &remora_index::Table) -> Option<Arc<remora_index::Table>> {
        let mut own = self.of_origin(table.origin())?;
        while own.born() != table.born() {
            own = own.growth()?.table.clone();
        }
        Some(own)
    }

    /// Returns all open tables, as they are placed now.
    pub(super) fn all(&self) -> Vec<Arc<remora_index::Table>> {
        lock(&self.tables).values().cloned().collect()
    }

    /// Opens the table with a name, or with an origin, by a catalog that was just read, unless the
    /// table is open. Returns `None` if the catalog is older than one that this process has
    /// followed, because a table in it may have been dropped since.
    pub(super) fn open(
        &self,
        catalog: &Metadata,
        wanted: Wanted<'_>,
    ) -> Result<Option<Arc<remora_index::Table>>, OpenError> {
        let found = match wanted {
            Wanted::Name(name) => catalog.table(name),
            Wanted::Origin(origin, name) => catalog.table_of_origin(origin, name),
        };
        let mut tables = lock(&self.tables);
        if catalog.generation < self.followed() {
            return Ok(None);
        }
        let is_stale = |(_, entry): &(TableId, &TableEntry)| {
            let known = tables.get(&entry.origin);
            known.is_some_and(|table| table.born() != entry.born || table.name() != entry.spec.name)
        };
        if found.as_ref().map_or(true, is_stale) {
            // Another client has dropped the table, or it has grown, or has another name.
            drop(tables);
            self.follow(catalog.clone())?;
            tables = lock(&self.tables);
        }
        let (id, entry) = found?;
        if let Some(table) = tables.get(&entry.origin) {
            return Ok(Some(table.clone()));
        }
        if catalog.generation < self.followed() {
            return Ok(None);
        }
        let table = Arc::new(remora_index::Table::open_entry(catalog, (id, entry)));
        tables.insert(entry.origin, table.clone());
        Ok(Some(table))
    }

    /// Updates the open tables from a catalog. A table that is not in the catalog has been
    /// discarded or dropped, and is no longer open. A table that grows, or has grown, is replaced
    /// by its new state.
    pub(super) fn follow(&self, catalog: Metadata) -> Result<(), OpenError> {
        let mut tables = lock(&self.tables);
        if catalog.generation < self.followed() {
            return Ok(()); // another thread has followed a newer catalog
        }
        let is_there = |id: TableId, born: u64| {
            let entry = catalog.tables.get(usize::from(id.0));
            entry.is_some_and(|entry| entry.is_there() && entry.born == born)
        };
        let (mut now, mut gone) = (HashMap::with_capacity(tables.len()), Vec::new());
        // The memory of a RACE table may be about to be reclaimed: see `reclaiming`.
        let is_race = |table: &Arc<remora_index::Table>| table.entry().spec.index == IndexKind::Race;
        let mut has_changed = catalog.generation > self.followed() && tables.values().any(is_race);
        for (&origin, table) in tables.iter() {
            gone.extend(table.and_larger().filter(|one| !is_there(one.id(), one.born())).map(|one| one.id().0));
            let has = catalog.table_of_origin(origin, table.name()).is_ok();
            let moved = if has { Some(table.moved(&catalog)?) } else { None };
            has_changed |= moved.as_ref().is_none_or(|moved| !moved.grows_like(table));
            now.extend(moved.map(|moved| (origin, Arc::new(moved))));
        }
        *tables = now;
        lock(&self.claimed).retain(|claimed| !gone.contains(claimed));
        if has_changed {
            self.forgotten.store(catalog.generation, Ordering::Release);
        }
        self.followed.store(catalog.generation, Ordering::Release);
        // No table is added by the former catalog before the new one is noted.
        self.note_catalog(catalog);
        drop(tables);
        Ok(())
    }

    /// Returns the ids of the tables that this process's version cache validates.
    pub(super) fn claimed(&self) -> Vec<u16> {
        lock(&self.claimed).clone()
    }

    /// Returns whether this process's version cache validates a table.
    pub(super) fn has_claimed(&self, table: TableId) -> bool {
        lock(&self.claimed).contains(&table.0)
    }

    /// Notes that this process's version cache validates a table. Returns whether that is new.
    pub(super) fn note_claim(&self, table: TableId) -> bool {
        let mut claimed = lock(&self.claimed);
        let is_new = !claimed.contains(&table.0);
        if is_new {
            claimed.push(table.0);
        }
        is_new
    }
}

/// Tells the fabric where a table's records are, in each replica that is `new` to the fabric.
pub(super) fn announce_lines(fabric: &dyn Fabric, table: &remora_index::Table, new: impl Fn(&Replica) -> bool) {
    let lines = table.index().lines_of_records();
    for replica in (0..table.shards()).flat_map(|shard| table.shard_replicas(shard)).filter(|replica| new(replica)) {
        fabric.lines_of_records(replica.address(lines.start), lines.end - lines.start);
    }
}
