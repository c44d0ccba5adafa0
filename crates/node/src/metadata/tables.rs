//! The value of the catalog and the configuration: tables with their layouts and disciplines, and
//! the places of the replicas of their shards.

use std::collections::BTreeSet;

use remora_fabric::{Address, NodeId, NodeSet, RegionId};

use crate::error::MemoryError;
use crate::id::{ShardId, TableId};
use crate::limits::{REPLICAS_MAX, SCHEMA_BYTES_MAX};

/// A stored pointer: `shard : 16 | offset : 48`. It never names a node, so it survives a fail-over.
/// The configuration turns it into an address. One pointer names a record on all its replicas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Pointer(u64);

impl Pointer {
    const OFFSET_BITS: u32 = 48;

    /// Packs a pointer. Offsets must be below 2^48, and a shard is never larger.
    #[inline]
    #[must_use]
    pub fn new(shard: ShardId, offset: u64) -> Pointer {
        debug_assert!(offset < 1 << Pointer::OFFSET_BITS);
        Pointer(u64::from(shard.0) << Pointer::OFFSET_BITS | offset)
    }

    /// Returns the packed form.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Decodes a pointer from its packed form. Every word is a valid pointer.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Pointer {
        Pointer(bits)
    }

    /// Returns the shard that the pointer points into.
    #[inline]
    #[must_use]
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> Pointer::OFFSET_BITS) as u16)
    }

    /// Returns the bytes from the shard's start.
    #[inline]
    #[must_use]
    pub fn offset(self) -> u64 {
        self.0 & ((1 << Pointer::OFFSET_BITS) - 1)
    }
}

/// A hash of what a program assumes about a table's rows. Programs with different assumptions must
/// not share the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// Computes the fingerprint of a schema's description and sizes (FNV-1a).
    #[must_use]
    pub fn of(schema: &str, key_bytes: usize, value_bytes: usize) -> Fingerprint {
        let sizes = [key_bytes as u64, value_bytes as u64];
        let bytes = schema.bytes().chain(sizes.iter().flat_map(|size| size.to_le_bytes()));
        Fingerprint(
            bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)),
        )
    }
}

/// A read scheme: how one READ of a record shows whether it is torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ReadScheme {
    /// The record is one line. A fabric with atomic lines reads it whole.
    SingleLine = 1,
    /// A checksum in the header covers version, key and value. It works on any fabric. It is the
    /// only scheme that also accepts a record that is locked and not being written.
    Checksum = 2,
    /// Every line after the first begins with the record's version.
    LineVersions = 3,
}

impl ReadScheme {
    pub(super) fn from_code(code: u8) -> Option<ReadScheme> {
        [ReadScheme::SingleLine, ReadScheme::Checksum, ReadScheme::LineVersions].into_iter().find(|s| *s as u8 == code)
    }
}

/// The parts of a value that can be read alone. The value is its *head* and, behind that, *cells*
/// of one size. The checksum of such a record covers the value's head only. Each cell has a check
/// of its own, which names the record's version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cells {
    /// The bytes of the head, which are whole words.
    pub head_bytes: u32,
    /// The bytes of the value that a cell has, which are whole words.
    pub cell_bytes: u16,
}

/// A discipline: what may change a table's lock words, and how the table's replicas are kept.
/// Presets of one discipline may run together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discipline {
    /// The format of the lock word: 1 = exclusive, CASed from and to 0; 2 = exclusive or shared; 3
    /// = repairable.
    pub lock: u8,
    /// What changes the lock word: 1 = atomics of the NIC only; 2 = only the CPU of the primary's
    /// node, at the request of clients.
    pub atomics: u8,
    /// How backups follow:
    ///
    /// - 1: the memory node applies redo rings;
    /// - 2: clients install on every replica in place;
    /// - 5: as 2, and every writer notes the time of its commit in the records;
    /// - 6: there are none, and clients write each new value into a block of its own;
    /// - 3 and 4: as 2, and every writer publishes its versions in the one version cache by which
    ///   the table's readers validate. With 3 it is the cache of one process, which alone has the
    ///   table; with 4 it is the cache of the cluster.
    pub replication: u8,
    /// The format of log entries:
    ///
    /// - 1: there is no log;
    /// - 2: the whole write set with new values and index patches;
    /// - 3: the whole write set with old values;
    /// - 4 to 8: as 2, and each new value has the time of its commit. With 4, transactions derive
    ///   their times from the records; with 5, the cluster's oracle gives the times; with 6, they
    ///   draw their times from landing clocks; with 7, each client numbers its commits, and a time
    ///   is the name of a commit; with 8, as with 4, and a lock may protect a read.
    /// - 9: the words that the commit swaps, each with its old and new value.
    pub log: u8,
}

impl Discipline {
    /// Optimistic concurrency control with redo rings. One-sided atomics take the locks. Presets:
    /// `drtm-r`, `drtm-h`.
    pub const OCC_ONE_SIDED: Discipline = Discipline { lock: 1, atomics: 1, replication: 1, log: 2 };
    /// Optimistic concurrency control as with [`Discipline::OCC_ONE_SIDED`], where each value has
    /// the time of its commit, which the client has drawn from landing clocks. Preset:
    /// `drtm-r-clocks`. A client that draws no times must not write.
    pub const OCC_TIMED: Discipline = Discipline { log: 6, ..Discipline::OCC_ONE_SIDED };
    /// Optimistic concurrency control in which the CPU of the primary's node takes the locks.
    /// Presets: `farm`, `fasst`, and `drtm-h` where it must.
    pub const OCC_CALLS: Discipline = Discipline { atomics: 2, ..Discipline::OCC_ONE_SIDED };
    /// Optimistic concurrency control as with [`Discipline::OCC_CALLS`], where each value has the
    /// time of its commit, and the primary's CPU remembers up to which times records were read.
    /// Presets: `dst`, `rc`. A client that heeds no times must not write.
    pub const OCC_STAMPED: Discipline = Discipline { log: 4, ..Discipline::OCC_CALLS };
    /// Optimistic concurrency control as with [`Discipline::OCC_CALLS`], where each value has the
    /// time of its commit, which the cluster's oracle has given. Preset: `gts`.
    pub const OCC_ORDERED: Discipline = Discipline { log: 5, ..Discipline::OCC_CALLS };
    /// Optimistic concurrency control as with [`Discipline::OCC_CALLS`], where each value has the
    /// name of its commit: the client, and the number that the client has given the commit. Preset:
    /// `vts`.
    pub const OCC_VECTOR: Discipline = Discipline { log: 7, ..Discipline::OCC_CALLS };
    /// As [`Discipline::OCC_STAMPED`], where transactions also lock what they only read, and the
    /// release of such a lock notes the time of the read. Preset: `dst-2pl`. A client that frees
    /// locks without that must not write.
    pub const TWO_PHASE_STAMPED: Discipline = Discipline { log: 8, ..Discipline::OCC_CALLS };
    /// Exclusive and shared locks, which one-sided atomics take, with redo rings. Preset:
    /// `no-wait-2pl`.
    pub const TWO_PHASE: Discipline = Discipline { lock: 2, ..Discipline::OCC_ONE_SIDED };
    /// Locks that one-sided atomics take, in-place updates of every replica, and undo logs. Preset:
    /// `ford`.
    pub const IN_PLACE: Discipline = Discipline { replication: 2, log: 3, ..Discipline::OCC_ONE_SIDED };
    /// In-place updates with the version cache of one process. Preset: `ford-local`. The cache
    /// validates records that are only read, without a look at the record. So a client that does
    /// not publish in the cache must not write.
    pub const IN_PLACE_LOCAL: Discipline = Discipline { replication: 3, ..Discipline::IN_PLACE };
    /// In-place updates with the version cache of the whole cluster. Preset: `ford-global`.
    pub const IN_PLACE_GLOBAL: Discipline = Discipline { replication: 4, ..Discipline::IN_PLACE };

    /// In-place updates with the times of commits, on which readers of snapshots rely. Preset:
    /// `remora`. A client that notes no times must not write.
    pub const IN_PLACE_TIMED: Discipline = Discipline { replication: 5, ..Discipline::IN_PLACE };

    /// Repairable locks, values in blocks of their own, and logs by which any client finishes or
    /// undoes the transaction of another one. One copy. Preset: `rtx`.
    pub const COPY_ON_WRITE: Discipline = Discipline { lock: 3, atomics: 1, replication: 6, log: 9 };

    /// As [`Discipline::COPY_ON_WRITE`], without logs and without repairs: a client that dies
    /// leaves what it has begun. Only RACE hash tables of the study `native` have it.
    pub const COPY_UNLOGGED: Discipline = Discipline { log: 1, ..Discipline::COPY_ON_WRITE };

    /// Whether any client finishes or undoes the transactions of another one, on the spot. Then the
    /// locks of a dead client need no recovery. There is one copy of each record.
    #[must_use]
    pub fn is_repairable(self) -> bool {
        self == Discipline::COPY_ON_WRITE
    }

    /// Returns the largest number of copies that a record can have.
    #[must_use]
    pub fn copies_max(self) -> usize {
        if self.is_repairable() || self == Discipline::COPY_UNLOGGED { 1 } else { REPLICAS_MAX }
    }

    /// Whether a shard can move to another node. While it does, clients must write the copy there,
    /// too.
    #[must_use]
    pub fn can_move(self) -> bool {
        self.copies_max() > 1
    }

    /// Whether clients install on every replica in place, and log old values.
    #[must_use]
    pub fn is_in_place(self) -> bool {
        self == Discipline::IN_PLACE || self.is_timed() || self.has_version_cache()
    }

    /// Whether clients install on every replica in place, and draw the times of their commits from
    /// landing clocks.
    #[must_use]
    pub fn is_timed(self) -> bool {
        self == Discipline::IN_PLACE_TIMED
    }

    /// Whether the primary's CPU installs, and keeps older versions of the records, each with the
    /// time of its commit.
    #[must_use]
    pub fn is_stamped(self) -> bool {
        matches!(self, Discipline::OCC_STAMPED | Discipline::OCC_ORDERED | Discipline::OCC_VECTOR)
            || self.stamps_at_release()
    }

    /// Whether transactions lock what they only read, and the primary's CPU notes the time of the
    /// read when such a lock is released.
    #[must_use]
    pub fn stamps_at_release(self) -> bool {
        self == Discipline::TWO_PHASE_STAMPED
    }

    /// Whether times of commits are their names, which have no order among clients.
    #[must_use]
    pub fn has_vectors(self) -> bool {
        self == Discipline::OCC_VECTOR
    }

    /// Whether clients draw the times of their commits from landing clocks.
    #[must_use]
    pub fn has_clocks(self) -> bool {
        self.is_timed() || self == Discipline::OCC_TIMED
    }

    /// Whether records have the times of their commits.
    #[must_use]
    pub fn has_times(self) -> bool {
        self.has_clocks() || self.is_stamped()
    }

    /// Whether the CPU of the primary's node unlinks deleted records from the index, and notes up
    /// to which time keys were deleted. Elsewhere the client that deletes a record unlinks it.
    #[must_use]
    pub fn unlinks_by_cpu(self) -> bool {
        self == Discipline::OCC_TIMED
    }

    /// Whether the CPU of the primary's node changes the lock words, and nothing else does.
    #[must_use]
    pub fn locks_by_cpu(self) -> bool {
        self.atomics == Discipline::OCC_CALLS.atomics
    }

    /// Whether tables of this discipline need CPUs of memory nodes, which take its locks or apply
    /// its redo rings.
    #[must_use]
    pub fn needs_node_cpu(self) -> bool {
        self.locks_by_cpu() || self.replication == Discipline::OCC_ONE_SIDED.replication
    }

    /// Whether tables of this discipline have a version cache.
    #[must_use]
    pub fn has_version_cache(self) -> bool {
        matches!(self, Discipline::IN_PLACE_LOCAL | Discipline::IN_PLACE_GLOBAL)
    }
}

/// The kind of index that finds a table's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum IndexKind {
    /// Buckets that say where records are.
    ClusterHash = 1,
    /// Buckets that hold the records themselves.
    FStore = 2,
    /// Buckets of objects, each a lock and the place of a value.
    Objects = 3,
    /// An extent of a RACE hash table, which is no table by itself.
    Race = 4,
}

impl IndexKind {
    /// Whether the CPU of the primary's node changes the index for clients.
    #[must_use]
    pub fn needs_node_cpu(self) -> bool {
        self == IndexKind::ClusterHash
    }

    pub(super) fn from_code(code: u8) -> Option<IndexKind> {
        let kinds = [IndexKind::ClusterHash, IndexKind::FStore, IndexKind::Objects, IndexKind::Race];
        kinds.into_iter().find(|kind| *kind as u8 == code)
    }
}

impl std::fmt::Display for Discipline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |known: &'static str, code: u8| if code == 1 { known.to_owned() } else { format!("#{code}") };
        let atomics = if self.atomics == 2 { "the node's CPU".to_owned() } else { name("NIC atomics", self.atomics) };
        let replication = match self.replication {
            2 => "replicas in place".to_owned(),
            3 => "replicas in place, versions published in one process".to_owned(),
            4 => "replicas in place, versions published in the cluster".to_owned(),
            5 => "replicas in place, with times".to_owned(),
            6 => "one copy, each value in a block of its own".to_owned(),
            code => name("redo rings", code),
        };
        write!(
            f,
            "{} locks, changed by {}, {}, log format {}",
            match self.lock {
                2 => "exclusive and shared".to_owned(),
                3 => "repairable".to_owned(),
                code => name("owner", code),
            },
            atomics,
            replication,
            self.log
        )
    }
}

/// The layout of a slot: where its parts lie. See `remora_record::record` for the slot itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The bytes of a key.
    pub key_bytes: u16,
    /// The bytes of the slot before the value, which are the header of the slot and the key.
    /// Headers of further lines are not counted. So this also says how many extra words the header
    /// has.
    pub value_at: u16,
    /// The bytes of each further line that are not data: 8 with line versions, else 0.
    pub line_header: u16,
    /// The largest value, in bytes.
    pub value_max: u32,
    /// The bytes of a slot, which is whole lines.
    pub slot_bytes: u32,
    /// How readers recognize torn records.
    pub scheme: ReadScheme,
    /// The parts of the value that can be read alone, if there are any. Then the scheme is
    /// [`ReadScheme::Checksum`].
    pub cells: Option<Cells>,
    /// Whether a slot also has the time of the commit that installed the value. Then the header has
    /// an extra word for it.
    pub timed: bool,
}

impl Layout {
    /// Returns the number of cells of a record, if its value has cells.
    #[must_use]
    pub fn cell_count(&self) -> Option<usize> {
        let cells = self.cells?;
        let bytes = self.value_max.checked_sub(cells.head_bytes)?;
        bytes.checked_div(cells.cell_bytes.into()).map(|count| count as usize)
    }
}

/// The description from which a table is created. Sizes are for one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// The name of the table.
    pub name: String,
    /// What keys and values mean, for people: see [`TableSpec::schema_to_keep`].
    pub schema: String,
    /// The fingerprint of the schema.
    pub fingerprint: Fingerprint,
    /// The layout of the slots.
    pub layout: Layout,
    /// The kind of index that finds the records.
    pub index: IndexKind,
    /// The discipline that the table's protocols share.
    pub discipline: Discipline,
    /// The number of shards.
    pub shards: u16,
    /// The number of copies of each record.
    pub replicas: u8,
    /// The number of main buckets of a shard's index.
    pub buckets: u64,
    /// The number of indirect buckets of a shard's index.
    pub indirect: u64,
    /// The number of slots of a shard.
    pub slots: u64,
    /// The number of slots of an indirect bucket, if buckets have the records themselves and
    /// indirect buckets have fewer slots than main ones. Otherwise 0.
    pub indirect_slots: u8,
    /// The bytes of a whole shard.
    pub shard_bytes: u64,
    /// When clients make it larger.
    pub grows: Grows,
}

impl TableSpec {
    /// Returns the part of a schema's text that the catalog keeps: at most [`SCHEMA_BYTES_MAX`]
    /// bytes, which end with `...` if the text was longer. Fingerprints, which tell schemas apart,
    /// are those of whole texts.
    #[must_use]
    pub fn schema_to_keep(text: &str) -> String {
        let text = text.replace('\0', " ");
        if text.len() <= SCHEMA_BYTES_MAX {
            return text;
        }
        let end = text.floor_char_boundary(SCHEMA_BYTES_MAX - 3);
        format!("{}...", &text[..end])
    }

    /// Returns the number of rows that fit into all shards together.
    #[must_use]
    pub fn rows_that_fit(&self) -> u64 {
        self.slots * u64::from(self.shards)
    }

    /// Returns the bytes that the table takes at all memory nodes together.
    #[must_use]
    pub fn bytes_in_all(&self) -> u64 {
        self.shard_bytes * u64::from(self.shards) * u64::from(self.replicas)
    }
}

/// When clients make a table larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Grows {
    /// When a program says so.
    WhenTold = 1,
    /// By themselves, before the table is full, and when a program says so.
    ByItself = 2,
}

impl Grows {
    pub(super) fn from_code(code: u8) -> Option<Grows> {
        [Grows::WhenTold, Grows::ByItself].into_iter().find(|grows| *grows as u8 == code)
    }
}

/// A table's entry in the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// The description from which the table was created.
    pub spec: TableSpec,
    /// The first of the table's shards. The others follow.
    pub shard_first: ShardId,
    /// The client that is still creating the table. `None` when it is ready.
    pub creator: Option<u32>,
    /// The generation of the change that entered the table. Ids are used again, so this tells a
    /// table from a later one with the same id.
    pub born: u64,
    /// The generation of the change that entered the first of the tables that this one has grown
    /// from. It is `born` if the table has not grown. A program sees two tables with one origin as
    /// one table.
    pub origin: u64,
    /// The number of tables that this one has grown from, one after the other.
    pub growths: u32,
    /// The state of growth, if another table is growing into this one.
    pub growth: Option<Growth>,
    /// The tombstone, if the table was dropped.
    pub dropped: Option<Tombstone>,
}

/// The growth of a table into a larger one. The rules are on the module's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The table that grows.
    pub from: TableId,
    /// The stage of the growth.
    pub stage: Stage,
    /// The client that moves the rows.
    pub by: u32,
}

/// The stage of a table's growth into a larger one. In either stage, clients look for a key in both
/// tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Clients insert keys into the smaller table.
    Announced = 1,
    /// Clients insert keys into the larger table, and the rows move there.
    Filling = 2,
}

impl Stage {
    pub(super) fn from_code(code: u8) -> Option<Stage> {
        [Stage::Announced, Stage::Filling].into_iter().find(|stage| *stage as u8 == code)
    }
}

/// The tombstone of a table that was dropped: what the catalog keeps of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone {
    /// The generation of the change that dropped the table.
    pub generation: u64,
    /// `None` while the table's space is kept. When the space is free, this is the last client that
    /// had been given an incarnation by then. No ring of a later client names the table.
    pub last_client: Option<u32>,
}

impl TableEntry {
    /// Whether the entry has no space: its table was discarded, or was dropped and its space is
    /// free. Its shards have no replicas.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.spec.name.is_empty() || self.dropped.is_some_and(|dropped| dropped.last_client.is_some())
    }

    /// Whether the table can be opened, or is being created. It was then neither discarded nor
    /// dropped.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !self.spec.name.is_empty() && self.dropped.is_none()
    }
}

/// One replica of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replica {
    /// The memory node.
    pub node: NodeId,
    /// The region of the node that has the shard.
    pub region: RegionId,
    /// The offset in the region at which the shard begins.
    pub base: u64,
    /// Whether the replica is joining. A joining replica gets every write, and has not got all
    /// earlier data yet. No client reads it, and it does not count as a copy.
    pub joining: bool,
}

impl Replica {
    /// Returns the address of an offset of the shard.
    #[inline]
    #[must_use]
    pub fn address(&self, offset: u64) -> Address {
        Address { node: self.node, region: self.region, offset: self.base + offset }
    }
}

/// The placement of a shard: its replicas. The primary comes first, then the backups, then the
/// joining replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardPlacement {
    /// The table that the shard belongs to.
    pub table: TableId,
    /// The bytes of each replica.
    pub bytes: u64,
    /// The replicas, the primary first.
    pub replicas: Vec<Replica>,
}

impl ShardPlacement {
    /// Returns the replicas that have all data.
    pub fn copies(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| !replica.joining)
    }
}

/// The metadata: the catalog and the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The generation, which grows with every change.
    pub generation: u64,
    /// The epoch of the configuration, which grows when replicas move.
    pub epoch: u64,
    /// The tables, by [`TableId`].
    pub tables: Vec<TableEntry>,
    /// The shards, by [`ShardId`].
    pub shards: Vec<ShardPlacement>,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata { generation: 0, epoch: 1, tables: Vec::new(), shards: Vec::new() }
    }
}

/// The base of a replica that has no place yet.
pub(super) const UNPLACED: u64 = u64::MAX;

impl Metadata {
    /// Returns the table with this name. If the table grows, it is the smaller one.
    pub fn table(&self, name: &str) -> Result<(TableId, &TableEntry), MemoryError> {
        let mut tables = self.tables.iter().enumerate();
        let found = tables.find(|(_, table)| table.is_there() && table.growth.is_none() && table.spec.name == name);
        let (index, table) = found.ok_or_else(|| self.missing(name))?;
        Ok((TableId(index as u16), table))
    }

    /// Returns the table of an origin, whatever its name is by now. If the table grows, it is the
    /// smaller one. Fails with [`MemoryError::Dropped`] if there is none any more. `name` is the
    /// name that the table had, for the error.
    pub fn table_of_origin(&self, origin: u64, name: &str) -> Result<(TableId, &TableEntry), MemoryError> {
        let is_it = |table: &TableEntry| table.is_there() && table.growth.is_none() && table.origin == origin;
        let found = (0..).map(TableId).zip(&self.tables).find(|(_, table)| is_it(table));
        found.ok_or_else(|| MemoryError::Dropped { table: name.to_owned() })
    }

    /// Returns the number of copies that every record of a table has at least. After a memory node
    /// was lost, that may be fewer than there should be.
    #[must_use]
    pub fn copies_of(&self, table: &TableEntry) -> usize {
        self.shards_of(table).map(|shard| shard.copies().count()).min().unwrap_or(0)
    }

    /// Returns a table, and the larger ones that it grows into, one after the other.
    pub fn and_larger(&self, id: TableId) -> impl Iterator<Item = TableId> + '_ {
        std::iter::successors(Some(id), |id| self.larger(*id).map(|(larger, _)| larger))
    }

    /// Returns the larger table that a table grows into, if it grows.
    #[must_use]
    pub fn larger(&self, id: TableId) -> Option<(TableId, &TableEntry)> {
        let is_larger = |table: &TableEntry| table.is_there() && table.growth.is_some_and(|growth| growth.from == id);
        (0..).map(TableId).zip(&self.tables).find(|(_, table)| is_larger(table))
    }

    /// Returns the error that says why no table has this name: none ever had it, or the table was
    /// dropped.
    fn missing(&self, name: &str) -> MemoryError {
        let was_dropped = self.tables.iter().any(|table| table.dropped.is_some() && table.spec.name == name);
        let name = name.to_owned();
        if was_dropped { MemoryError::Dropped { table: name } } else { MemoryError::UnknownTable(name) }
    }

    /// Returns the tables that were dropped and whose space is still kept.
    pub fn kept(&self) -> impl Iterator<Item = (TableId, &TableEntry)> + '_ {
        let kept = |table: &TableEntry| table.dropped.is_some() && !table.is_vacant();
        (0..).map(TableId).zip(&self.tables).filter(move |(_, table)| kept(table))
    }

    /// Returns the shards of a table.
    pub fn shards_of(&self, table: &TableEntry) -> impl Iterator<Item = &ShardPlacement> + '_ {
        self.shards.iter().skip(table.shard_first.0.into()).take(table.spec.shards.into())
    }

    /// Frees the space of a dropped table, and leaves its tombstone.
    pub(super) fn bury(&mut self, id: TableId, last_client: u32) {
        let Some(table) = self.tables.get_mut(usize::from(id.0)) else { return };
        let Some(dropped) = &mut table.dropped else { return };
        dropped.last_client = Some(last_client.max(1));
        (table.creator, table.spec.replicas, table.spec.shard_bytes) = (None, 0, 0);
        for shard in self.shards.iter_mut().filter(|shard| shard.table == id) {
            (shard.bytes, shard.replicas) = (0, Vec::new());
        }
    }

    /// Returns the clients that have not finished the tables that they create.
    #[must_use]
    pub fn creators(&self) -> BTreeSet<u32> {
        self.tables.iter().filter_map(|table| table.creator).collect()
    }

    /// Returns the nodes, out of `nodes`, that have no replica of any shard.
    #[must_use]
    pub fn without_replicas(&self, nodes: NodeSet) -> NodeSet {
        nodes.without(self.shards.iter().flat_map(|shard| &shard.replicas).map(|replica| replica.node).collect())
    }

    /// Returns the shard and the node of each joining replica.
    pub fn joining(&self) -> impl Iterator<Item = (ShardId, NodeId)> + '_ {
        (0..).map(ShardId).zip(&self.shards).flat_map(|(id, shard)| {
            shard.replicas.iter().filter(|replica| replica.joining).map(move |replica| (id, replica.node))
        })
    }
}
