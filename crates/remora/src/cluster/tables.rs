//! Creating and opening tables.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use remora_fabric::{Lane, NodeId, NodeSet};
use remora_index::Sizes;
use remora_node::limits::REPLICAS_MAX;
use remora_node::metadata::Places;
use remora_node::{Discipline, Grows, MemoryError, Metadata, ReadScheme, SchemaShown, TableEntry, TableSpec, metadata};
use remora_record::{layout_of_block, layout_with_cells, layout_with_time};

use super::handle::Cluster;
use super::opened::{Wanted, announce_lines};
use crate::error::{OpenError, OpenErrorKind};
use crate::key::Key;
use crate::record::Record;
use crate::table::{RawTable, Schema, Table};
use remora_fabric::setters;

/// Options for creating a table: its first size, its copies, and how it is spread over memory
/// nodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TableOptions {
    /// Number of rows for which the table has room at first.
    pub rows: u64,
    /// Number of copies of each record. If `None`, the cluster's default.
    pub replicas: Option<u8>,
    /// Number of parts (shards) over which the table is spread. If `None`, one for each memory node
    /// that is not a spare.
    pub shards: Option<u16>,
    /// The memory node that has the primary of the first part, counted from 0. The primaries of the
    /// other parts are at the nodes after it.
    pub first_node: u16,
    /// How a reader notices that a record is just being written. If `None`, the library chooses.
    /// Records of one line of 64 bytes need nothing. If key and value have up to 512 bytes
    /// together, the record has line versions. Longer records have a checksum. If the fabric does
    /// not read lines whole, all records have a checksum.
    pub read_scheme: Option<ReadScheme>,
    /// Bytes of a value's head, bytes of a cell, and the number of cells, if the parts of records
    /// are read alone.
    pub(crate) parts: Option<(usize, usize, usize)>,
    /// Whether the table grows by itself before it is full, while transactions go on. If not, it
    /// grows only when [`Cluster::grow_table`] is called.
    pub grows: bool,
    /// Whether the table takes as little memory as its index allows. A table of protocol `ford`
    /// then takes about 60 % of the memory; with other protocols, this changes nothing. Operations
    /// on keys whose place is not known, and inserts, read longer pieces of the index, and need one
    /// more round trip more often (`remora_index::fstore` has the figures).
    pub dense: bool,
}

setters!(TableOptions {
    replicas: u8,
    shards: u16,
    first_node: u16,
    read_scheme: impl Into<Option<ReadScheme>>,
    grows: bool,
    dense: bool,
});

impl TableOptions {
    /// Returns the options for a table of `rows` rows, which grows by itself when it needs more.
    /// For everything else it has the cluster's defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> TableOptions {
        TableOptions {
            rows,
            replicas: None,
            shards: None,
            first_node: 0,
            read_scheme: None,
            parts: None,
            grows: true,
            dense: false,
        }
    }
}

/// Pause between two checks whether a table that another client creates is ready.
const CREATION_PAUSE: Duration = Duration::from_millis(5);
/// Number of checks whether a table that another client creates is ready. Together they take a
/// minute.
const CREATION_LOOKS: u32 = 12_000;

/// Largest number of bytes of key and value for which records have line versions. For such records,
/// line versions cost readers less CPU time than a checksum, and writers none. For larger records
/// they cost readers no less, and take an eighth more bytes (`docs/reproduce-latches.md`).
const LINE_VERSIONS_MAX: usize = 512;

impl Cluster {
    /// Creates an empty table, and returns its handle. A name has 1 to 64 bytes, and no control
    /// characters.
    ///
    /// A cluster has at most 128 tables. The parts of ordered tables, and of other kinds, count as
    /// tables.
    ///
    /// Fails
    ///
    /// - with [`OpenErrorKind::TableExists`] if a table has this name,
    /// - with [`OpenErrorKind::Full`] if a memory node has no room for the table,
    /// - with [`OpenErrorKind::Argument`] if the name, a size or a number of copies is not allowed.
    pub fn create_table<K: Key, V: Record>(&self, name: &str, options: TableOptions) -> Result<Table<K, V>, OpenError> {
        let created = self.create_with(name, Table::<K, V>::schema(), options);
        Ok(Table::new(created.map_err(|error| error.of_table(name))?, self.inner.cluster))
    }

    /// Creates a table with this schema. Its handle has no types.
    pub(crate) fn create_raw(&self, name: &str, schema: Schema, options: TableOptions) -> Result<RawTable, OpenError> {
        let created = self.create_with(name, schema, options).map_err(|error| error.of_table(name));
        Ok(RawTable::new(created?, self.inner.cluster))
    }

    /// Opens a table with this schema. Its handle has no types.
    pub(crate) fn open_raw(&self, name: &str, schema: Schema) -> Result<RawTable, OpenError> {
        Ok(RawTable::new(self.open_with(name, schema)?, self.inner.cluster))
    }

    fn create_with(
        &self,
        name: &str,
        schema: Schema,
        options: TableOptions,
    ) -> Result<Arc<remora_index::Table>, OpenError> {
        let Schema { ref text, fingerprint, key_bytes, value_bytes } = schema;
        let atomic_line = self.capabilities().atomic_line;
        let timed = self.protocol.discipline().has_times();
        let lay_out = |scheme| layout_with_time(timed, key_bytes, value_bytes, scheme);
        let single_line = lay_out(ReadScheme::SingleLine);
        let layout = match options.read_scheme {
            // A block repeats the word that names it, and its checksum covers that word.
            Some(ReadScheme::SingleLine | ReadScheme::LineVersions) if self.protocol.discipline().is_repairable() => {
                return Err(MemoryError::NeedsChecksums(self.protocol.name()).into());
            }
            _ if self.protocol.discipline().is_repairable() => layout_of_block(key_bytes, value_bytes, options.parts)?,
            Some(ReadScheme::SingleLine | ReadScheme::LineVersions) if !atomic_line => {
                return Err(MemoryError::NeedsAtomicLines.into());
            }
            _ if let Some((head, cell, count)) = options.parts => {
                layout_with_cells(timed, key_bytes, head, cell, count)?
            }
            Some(scheme) => lay_out(scheme)?,
            None => match single_line {
                Ok(layout) if atomic_line => layout,
                Err(_) if atomic_line && key_bytes + value_bytes <= LINE_VERSIONS_MAX => {
                    lay_out(ReadScheme::LineVersions)?
                }
                _ => lay_out(ReadScheme::Checksum)?,
            },
        };
        let copies = usize::from(options.replicas.unwrap_or_else(|| self.replicas()));
        if copies > self.protocol.discipline().copies_max() && copies <= REPLICAS_MAX {
            return Err(MemoryError::OneCopy { protocol: self.protocol.name(), copies }.into());
        }
        if options.rows == 0 {
            return Err(MemoryError::empty("the number of rows of a table").into());
        }
        self.lacks_nothing()?;
        self.unless_interrupted()?;
        let shards = options.shards.unwrap_or(self.memory_nodes() - self.inner.options.spares);
        let index = self.protocol.index();
        let size = if options.dense { Sizes::dense_for_rows } else { Sizes::for_rows };
        let sizes = size(index, rows_of_a_shard(options.rows, shards.max(1)), layout.slot_bytes);
        let spec = TableSpec {
            name: name.to_owned(),
            schema: TableSpec::schema_to_keep(text),
            fingerprint,
            layout,
            index,
            discipline: self.protocol.discipline(),
            shards,
            replicas: options.replicas.unwrap_or_else(|| self.replicas()),
            buckets: sizes.buckets,
            indirect: sizes.indirect,
            slots: sizes.slots,
            indirect_slots: sizes.indirect_slots,
            shard_bytes: sizes.shard_bytes,
            grows: if options.grows { Grows::ByItself } else { Grows::WhenTold },
        };
        // The closure itself asks for the nodes and the client, because the last epoch has been
        // entered by then.
        let draft = self.draft();
        let create = || {
            self.administer(async |lane: &Lane| {
                let (nodes, places, client) = (self.live_nodes(), self.places(spec.replicas), self.admin());
                let (spec, first) = (spec.clone(), NodeId(options.first_node));
                Ok(match draft {
                    Some(_) => metadata::begin_table(lane, nodes, places, client, spec, first).await?,
                    None => metadata::create_table(lane, nodes, places, client, spec, first).await?,
                })
            })
        };
        let (id, metadata) = self.change_catalog(create)?;
        if let Some(draft) = &draft {
            draft.note(id);
        }
        // Records with a checksum need this, too. The checksum covers the value, but validation
        // reads only the lock and the version, which must be of one instant.
        if atomic_line {
            let table = remora_index::Table::open(&metadata, name)?;
            announce_lines(self.fabric(), &table, |_| true);
        }
        self.inner.opened.note_catalog(metadata);
        self.open_with(name, schema)
    }

    /// Creates the first extent of a RACE hash table. The primary of its first shard is at the node
    /// `first`.
    pub(crate) fn create_extent(&self, spec: TableSpec, first: NodeId) -> Result<(), OpenError> {
        if !self.protocol.accepts(spec.discipline) {
            return Err(MemoryError::Discipline {
                table: spec.name,
                found: spec.discipline.to_string(),
                protocol: self.protocol.name(),
                wanted: self.protocol.discipline().to_string(),
            }
            .into());
        }
        self.lacks_nothing()?;
        self.unless_interrupted()?;
        let create = || {
            self.administer(async |lane: &Lane| {
                let (nodes, places, client) = (self.live_nodes(), self.places(spec.replicas), self.admin());
                Ok(metadata::create_table(lane, nodes, places, client, spec.clone(), first).await?)
            })
        };
        let (_, metadata) = self.change_catalog(create)?;
        self.inner.opened.note_catalog(metadata);
        Ok(())
    }

    /// Returns the number of shards of a table whose program has not chosen it: one for each memory
    /// node that is not a spare.
    pub(crate) fn shards_by_default(&self) -> u16 {
        self.memory_nodes() - self.inner.options.spares
    }

    /// Opens the first extent of a RACE hash table, and returns it with the catalog.
    pub(crate) fn open_extent(&self, name: &str) -> Result<(Arc<remora_index::Table>, Metadata), OpenError> {
        loop {
            let catalog = self.read_catalog()?;
            let Some(table) = self.inner.opened.open(&catalog, Wanted::Name(name))? else { continue };
            self.check_protocol(&table)?;
            return Ok((table, catalog));
        }
    }

    /// Returns the memory nodes for a new table of this number of copies: live nodes that are
    /// neither spares nor about to leave. If these are too few, all live nodes.
    pub(super) fn places(&self, copies: u8) -> Places {
        let live = self.live_nodes();
        let regular = NodeSet::first(self.founders() - self.inner.options.spares.min(self.founders()));
        let spares = NodeSet::first(self.founders()).without(regular);
        let leaving = self.configuration.as_ref().and_then(|all| all.look(|membership| membership.leaving()).ok());
        let nodes = live.without(spares).without(leaving.unwrap_or_default());
        let nodes = if nodes.count() < u16::from(copies) { live } else { nodes };
        Places { nodes, members: self.memory_nodes() }
    }

    /// Opens a table, or creates an empty one if there is none of this name. If another client is
    /// creating the table, waits until that client has finished or has died, but at most a minute.
    ///
    /// Fails as [`open_table`](Cluster::open_table) and [`create_table`](Cluster::create_table) do.
    /// The options of a table that exists stay as they are.
    pub fn open_or_create_table<K: Key, V: Record>(
        &self,
        name: &str,
        options: TableOptions,
    ) -> Result<Table<K, V>, OpenError> {
        self.open_or_create(|| self.open_table(name), || self.create_table(name, options))
    }

    /// Opens something, or creates it if it does not exist.
    pub(crate) fn open_or_create<T>(
        &self,
        open: impl Fn() -> Result<T, OpenError>,
        create: impl Fn() -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let is_unfinished = |error: &OpenError| matches!(error.kind(), OpenErrorKind::Unfinished { .. });
        let (mut looks, mut creator_is_gone) = (0, false);
        loop {
            let waits = match open() {
                Err(error) if self.is_being_created(&error) => error,
                // Before its creator has left, it may have finished. Then the next look finds that.
                Err(error) if is_unfinished(&error) && !std::mem::replace(&mut creator_is_gone, true) => error,
                Err(error) if matches!(error.kind(), OpenErrorKind::NoTable | OpenErrorKind::Dropped) => match create()
                {
                    // Another client has created it meanwhile.
                    Err(error) if error.kind() == OpenErrorKind::TableExists || is_unfinished(&error) => error,
                    created => return created,
                },
                opened => return opened,
            };
            looks += 1;
            if looks > CREATION_LOOKS {
                return Err(waits);
            }
            self.unless_interrupted()?;
            thread::sleep(CREATION_PAUSE);
        }
    }

    /// Returns whether a client that is alive is creating the table of this name.
    fn is_being_created(&self, error: &OpenError) -> bool {
        matches!(error.kind(), OpenErrorKind::Unfinished { client } if !self.is_dead(client))
    }

    /// Opens a table that exists, and returns its handle.
    ///
    /// Fails
    ///
    /// - with [`OpenErrorKind::NoTable`] or [`OpenErrorKind::Dropped`] if no table has this name,
    /// - with [`OpenErrorKind::Unfinished`] while a client creates the table,
    /// - with [`OpenErrorKind::OtherTypes`] if the table was made with another schema,
    /// - with [`OpenErrorKind::OtherProtocol`] if transactions of this cluster's protocol cannot
    ///   use the table.
    pub fn open_table<K: Key, V: Record>(&self, name: &str) -> Result<Table<K, V>, OpenError> {
        Ok(Table::new(self.open_with(name, Table::<K, V>::schema())?, self.inner.cluster))
    }

    fn open_with(&self, name: &str, wanted: Schema) -> Result<Arc<remora_index::Table>, OpenError> {
        let known = self.inner.opened.get(name);
        // Another client may have dropped the table, and created another one with the same name.
        let has_heard = || self.configuration.as_ref().and_then(|all| all.look(|membership| membership.dropped()).ok());
        let is_current = |table: &Arc<remora_index::Table>| {
            table.entry().spec.fingerprint == wanted.fingerprint
                && has_heard().is_none_or(|dropped| dropped <= self.followed())
        };
        let table = match known.filter(is_current) {
            Some(table) => table,
            None => loop {
                let catalog = self.read_catalog()?;
                if let (_, TableEntry { creator: Some(client), .. }) = catalog.table(name)?
                    && self.creator() != Some(*client)
                {
                    // This process does not open the table yet: when the name is ready, it may be
                    // the one of another table.
                    return Err(MemoryError::Unfinished { table: name.to_owned(), client: *client }.into());
                }
                if let Some(table) = self.inner.opened.open(&catalog, Wanted::Name(name))? {
                    break table;
                }
            },
        };
        if let Some(client) = table.entry().creator.filter(|client| self.creator() != Some(*client)) {
            return Err(MemoryError::Unfinished { table: name.to_owned(), client }.into());
        }
        let spec = &table.entry().spec;
        if spec.fingerprint != wanted.fingerprint {
            let layout = &spec.layout;
            return Err(MemoryError::Fingerprint {
                table: name.to_owned(),
                found: Box::new(SchemaShown {
                    text: spec.schema.clone(),
                    key_bytes: layout.key_bytes.into(),
                    value_bytes: layout.value_max as usize,
                    fingerprint: spec.fingerprint.0,
                }),
                wanted: Box::new(wanted.shown()),
            }
            .into());
        }
        self.check_protocol(&table)?;
        if table.entry().spec.discipline == Discipline::IN_PLACE_LOCAL {
            self.claim(&table)?;
        }
        Ok(table)
    }

    /// Makes sure that a session of this handle can run transactions on a table, which another
    /// handle may have opened.
    pub(crate) fn accept(&self, table: &remora_index::Table) -> Result<(), OpenError> {
        self.check_protocol(table)?;
        let is_local = table.entry().spec.discipline == Discipline::IN_PLACE_LOCAL;
        // Workers do not wait for the configuration if this process has claimed the table already.
        if is_local && !self.inner.opened.has_claimed(table.id()) {
            self.claim(table)?;
        }
        Ok(())
    }

    /// Fails if transactions of this handle's protocol cannot run on a table.
    fn check_protocol(&self, table: &remora_index::Table) -> Result<(), OpenError> {
        let spec = &table.entry().spec;
        let protocol = self.protocol;
        if !protocol.accepts(spec.discipline) {
            return Err(MemoryError::Discipline {
                table: table.name().to_owned(),
                found: spec.discipline.to_string(),
                protocol: protocol.name(),
                wanted: protocol.discipline().to_string(),
            }
            .into());
        }
        if spec.layout.scheme != ReadScheme::Checksum && !self.capabilities().atomic_line {
            return Err(MemoryError::NeedsAtomicLines.into());
        }
        Ok(())
    }
}

/// Returns the number of rows for which a shard needs room. This is its share of all rows, and five
/// standard deviations more, because keys scatter unevenly.
pub(super) fn rows_of_a_shard(rows: u64, shards: u16) -> u64 {
    if shards == 1 {
        return rows;
    }
    let share = rows as f64 / f64::from(shards);
    ((share + 5.0 * share.sqrt()).ceil() as u64).saturating_add(8).min(rows)
}
