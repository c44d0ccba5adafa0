//! The catalog and the configuration: what tables there are, and where the replicas of each shard
//! lie.
//!
//! Both are one value. Every node has it in two copies, of which the newer whole one counts. Every
//! client reads it at connect. Only the holder of the leader's catalog lock may change it, or a
//! client that has revoked the access of all clients. The leader is the live node with the lowest
//! number.
//!
//! ```text
//! header, 64 bytes                                  shard, 128 bytes
//! +0   magic       u64                              +0   table      u16
//! +8   format      u32                              +2   replicas   u16
//! +12  checksum    u32   of all else, crc32c        +8   bytes      u64
//! +16  features    u64                              +16  replica    7 times: node u16, region u16,
//! +24  generation  u64   grows with every change                    joining u32, base u64
//! +32  epoch       u64   of the configuration
//! +40  tables      u32   count
//! +44  shards      u32   count
//! then tables, then shards
//!
//! table, 192 bytes
//! +0    name         64 bytes, zero-padded UTF-8
//! +64   fingerprint  u64   of the schema
//! +72   buckets      u64   of a shard's index
//! +80   indirect     u64
//! +88   slots        u64
//! +96   value_max    u32   bytes
//! +100  slot_bytes   u32
//! +104  shard_first  u16
//! +106  shard_count  u16
//! +108  key_bytes    u16
//! +110  value_at     u16   bytes of a slot before the value, headers of further lines not counted
//! +112  line_header  u16   bytes of each further line before data
//! +114  replicas     u8
//! +115  index        u8    1 = cluster hash, 2 = FStore
//! +116  read_scheme  u8
//! +120  discipline   4 times u8
//! +124  creator      u32   0 = ready, see below
//! +128  born         u64   generation of the change that entered the table
//! +136  dropped      u64   generation of the change that dropped it; 0 = not dropped
//! +144  last_client  u32   once the space of a dropped table is free; 0 = not yet
//! ```
//!
//! # Tables that are not ready
//!
//! A table that is created in several steps must not be seen half-made, nor be in the way when its
//! client dies. So a table may be *unfinished*: its entry names the client that creates it
//! ([`begin_table`]), and no other client opens it.
//!
//! 1. The client takes the marks from all tables that it creates together in one change
//!    ([`finish_tables`]): other clients see all of them or none.
//! 2. If it fails, it discards them ([`discard_tables`]). If it dies, another client does, once no
//!    verb of the dead one can take effect any more.
//! 3. Ids are places in the lists. So the entry of a discarded table with others behind it stays,
//!    *vacant*: without a name, and its shards without replicas. The next table of as many shards
//!    gets its ids.
//!
//! # Tables that are dropped
//!
//! Clients use a table that is ready. So a drop has two steps, each of which is one change:
//!
//! 1. [`drop_tables`]: the entry says that the table is dropped. Its name is free, and no client
//!    opens the table. Its shards keep their replicas, because clients that have not heard of the
//!    drop may still read and write them.
//! 2. [`free_dropped`]: the shards lose their replicas, which frees the space. The caller knows
//!    that no client uses the table any more (the module `dropping` of `remora-db` has the rule and
//!    the argument).
//!
//! The entry stays after that, as a *tombstone*. It still has the table's name, for errors. Redo
//! rings and undo entries name shards by their ids, so the ids are given to another table only when
//! no ring can name the dropped one: when every client up to `last_client` has given its rings
//! back. Handles are told apart by the generation at which their table was `born`.
//!
//! # Space
//!
//! Space that neither a shard of the catalog nor a client's slot names is free, whatever it once
//! was. The holder of the catalog lock can tell what is free: only it changes the catalog, and a
//! client that takes space for its rings shows that at the leader (`client`). It uses free space
//! before the untouched space of a node, since clients take their rings from untouched space. So a
//! client that dies between taking space and naming it in the catalog leaks nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Address, Lane, NodeId, NodeSet, RegionId, WORD_BYTES};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::client;
use crate::error::MemoryError;
use crate::limits::{
    INCARNATIONS_MAX, KEY_BYTES_MAX, NAME_BYTES_MAX, REPLICAS_MAX, RINGS_SPARE, SHARDS_MAX, SLOT_BYTES_MAX, TABLES_MAX,
    VALUE_BYTES_MAX,
};
use crate::node::{self, AT_LOCK, AT_METADATA, AT_SPACE, FEATURES_KNOWN, FORMAT, METADATA_BYTES};
use crate::ring::RING_EXTENT_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"REMORAcd");

/// A table, by its place in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u16);

/// A shard: the unit of placement. Every shard belongs to one table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);

/// A stored pointer: `shard : 16 | offset : 48`. It never names a node, so it survives a fail-over;
/// the configuration turns it into an address. The same pointer names a record on all of its
/// replicas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Pointer(u64);

impl Pointer {
    const OFFSET_BITS: u32 = 48;

    /// Packs a pointer. Offsets are below 2^48: a shard is never larger.
    #[inline]
    #[must_use]
    pub fn new(shard: ShardId, offset: u64) -> Pointer {
        debug_assert!(offset < 1 << Pointer::OFFSET_BITS);
        Pointer(u64::from(shard.0) << Pointer::OFFSET_BITS | offset)
    }

    /// The packed form.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Decodes a pointer from its packed form: every word is some pointer.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Pointer {
        Pointer(bits)
    }

    /// The shard.
    #[inline]
    #[must_use]
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> Pointer::OFFSET_BITS) as u16)
    }

    /// Bytes from the shard's start.
    #[inline]
    #[must_use]
    pub fn offset(self) -> u64 {
        self.0 & ((1 << Pointer::OFFSET_BITS) - 1)
    }
}

/// A hash of what a program believes about a table's rows. Programs whose beliefs differ must not
/// share the table.
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

/// How one READ of a record shows whether it is torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ReadScheme {
    /// The record is one line: fabrics with atomic lines read it whole.
    SingleLine = 1,
    /// A checksum in the header covers version, key and value. Works on any fabric; the only scheme
    /// that also accepts a record that is locked but not being written.
    Checksum = 2,
    /// Every line after the first begins with the record's version.
    LineVersions = 3,
}

impl ReadScheme {
    fn from_code(code: u8) -> Option<ReadScheme> {
        [ReadScheme::SingleLine, ReadScheme::Checksum, ReadScheme::LineVersions].into_iter().find(|s| *s as u8 == code)
    }
}

/// Who may change a table's lock words and how its replicas are kept: presets of one discipline may
/// run together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discipline {
    /// Format of the lock word: 1 = exclusive, CASed from and to 0; 2 = exclusive or shared.
    pub lock: u8,
    /// Who changes it: 1 = atomics of the NIC only; 2 = the CPU of the primary's node only, at the
    /// request of clients.
    pub atomics: u8,
    /// How backups follow: 1 = redo rings applied by the memory node; 2 = clients install on every
    /// replica in place; 3 and 4 = the same, and every writer publishes its versions in the one
    /// version cache that the table's readers validate by: of one process, which alone has the
    /// table, or of the cluster.
    pub replication: u8,
    /// Format of log entries: 2 = whole write set with new values and index patches; 3 = whole
    /// write set with old values.
    pub log: u8,
}

impl Discipline {
    /// Optimistic concurrency control with redo rings, locks taken by one-sided atomics: presets
    /// `drtm-r`, `drtm-h`.
    pub const OCC_ONE_SIDED: Discipline = Discipline { lock: 1, atomics: 1, replication: 1, log: 2 };
    /// Optimistic concurrency control whose locks are taken by the CPU of the primary's node:
    /// presets `farm`, `fasst`, and `drtm-h` where it must.
    pub const OCC_CALLS: Discipline = Discipline { atomics: 2, ..Discipline::OCC_ONE_SIDED };
    /// Exclusive and shared locks taken by one-sided atomics, redo rings: preset `no-wait-2pl`.
    pub const TWO_PHASE: Discipline = Discipline { lock: 2, ..Discipline::OCC_ONE_SIDED };
    /// Locks taken by one-sided atomics, every replica updated in place, undo logs: preset `ford`.
    pub const IN_PLACE: Discipline = Discipline { replication: 2, log: 3, ..Discipline::OCC_ONE_SIDED };
    /// In-place updates with the version cache of one process: preset `ford-local`. The cache
    /// validates records that are only read, without a look at the record. So a client that does
    /// not publish in the cache must not write.
    pub const IN_PLACE_LOCAL: Discipline = Discipline { replication: 3, ..Discipline::IN_PLACE };
    /// In-place updates with the version cache of the whole cluster: preset `ford-global`.
    pub const IN_PLACE_GLOBAL: Discipline = Discipline { replication: 4, ..Discipline::IN_PLACE };

    /// Whether clients install on every replica in place, and log old values.
    #[must_use]
    pub fn is_in_place(self) -> bool {
        self == Discipline::IN_PLACE || self.has_version_cache()
    }

    /// Whether its tables have a version cache.
    #[must_use]
    pub fn has_version_cache(self) -> bool {
        matches!(self, Discipline::IN_PLACE_LOCAL | Discipline::IN_PLACE_GLOBAL)
    }
}

/// What finds a table's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum IndexKind {
    /// Buckets that say where records are.
    ClusterHash = 1,
    /// Buckets that hold the records.
    FStore = 2,
}

impl IndexKind {
    fn from_code(code: u8) -> Option<IndexKind> {
        [IndexKind::ClusterHash, IndexKind::FStore].into_iter().find(|kind| *kind as u8 == code)
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
            code => name("redo rings", code),
        };
        write!(
            f,
            "{} locks, changed by {}, {}, log format {}",
            if self.lock == 2 { "exclusive and shared".to_owned() } else { name("owner", self.lock) },
            atomics,
            replication,
            self.log
        )
    }
}

/// Where the parts of a slot lie. See `remora_sync::record` for the slot itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of a key.
    pub key_bytes: u16,
    /// Bytes of the slot before the value, headers of further lines not counted: the header of the
    /// slot and the key. So it says how many extra words the header has.
    pub value_at: u16,
    /// Bytes of each further line that are not data (8 with line versions, else 0).
    pub line_header: u16,
    /// Largest value, in bytes.
    pub value_max: u32,
    /// Bytes of a slot: whole lines.
    pub slot_bytes: u32,
    /// How torn records are told.
    pub scheme: ReadScheme,
}

/// What a table is created from. Sizes are of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// Name of the table.
    pub name: String,
    /// Fingerprint of the schema.
    pub fingerprint: Fingerprint,
    /// Layout of the slots.
    pub layout: Layout,
    /// Index that finds the records.
    pub index: IndexKind,
    /// Discipline that the table's protocols share.
    pub discipline: Discipline,
    /// Number of shards.
    pub shards: u16,
    /// Copies of each record.
    pub replicas: u8,
    /// Main buckets of a shard's index.
    pub buckets: u64,
    /// Indirect buckets of a shard's index.
    pub indirect: u64,
    /// Slots of a shard.
    pub slots: u64,
    /// Bytes of a shard in all.
    pub shard_bytes: u64,
}

/// A table of the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// What it was created from.
    pub spec: TableSpec,
    /// First of the table's shards; the others follow.
    pub shard_first: ShardId,
    /// The client that is still creating it; `None` when it is ready.
    pub creator: Option<u32>,
    /// Generation of the change that entered the table. Ids are used again, so this tells a table
    /// from a later one with the same id.
    pub born: u64,
    /// Says that the table was dropped; `None` if it was not.
    pub dropped: Option<Tombstone>,
}

/// What the catalog keeps of a table that was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone {
    /// Generation of the change that dropped the table.
    pub generation: u64,
    /// `None` while the table's space is kept. When the space is free: the last client that was
    /// given an incarnation before, so that no ring of a later client names the table.
    pub last_client: Option<u32>,
}

impl TableEntry {
    /// Whether the entry has no space: its table was discarded, or was dropped and its space is
    /// free. Its shards have no replicas.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.spec.name.is_empty() || self.dropped.is_some_and(|dropped| dropped.last_client.is_some())
    }

    /// Whether the table can be opened, or is being created: it was neither discarded nor dropped.
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
    /// Region of the node that has the shard.
    pub region: RegionId,
    /// Where the shard begins.
    pub base: u64,
    /// It gets every write, and has not got all of the rest yet: nobody reads it, and it does not
    /// count as a copy.
    pub joining: bool,
}

impl Replica {
    /// The address of an offset of the shard.
    #[inline]
    #[must_use]
    pub fn address(&self, offset: u64) -> Address {
        Address { node: self.node, region: self.region, offset: self.base + offset }
    }
}

/// Where a shard is: the primary first, then the backups, then the joining replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardPlacement {
    /// Table that the shard belongs to.
    pub table: TableId,
    /// Bytes of each replica.
    pub bytes: u64,
    /// Replicas, the primary first.
    pub replicas: Vec<Replica>,
}

impl ShardPlacement {
    /// The replicas that have everything.
    pub fn copies(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| !replica.joining)
    }
}

/// The catalog and the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// Grows with every change.
    pub generation: u64,
    /// Epoch of the configuration: grows when replicas move.
    pub epoch: u64,
    /// Tables, by [`TableId`].
    pub tables: Vec<TableEntry>,
    /// Shards, by [`ShardId`].
    pub shards: Vec<ShardPlacement>,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata { generation: 0, epoch: 1, tables: Vec::new(), shards: Vec::new() }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: u64,
    format: u32,
    checksum: u32,
    features: u64,
    generation: u64,
    epoch: u64,
    tables: u32,
    shards: u32,
    reserved: [u64; 2],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawTable {
    name: [u8; NAME_BYTES_MAX],
    fingerprint: u64,
    buckets: u64,
    indirect: u64,
    slots: u64,
    value_max: u32,
    slot_bytes: u32,
    shard_first: u16,
    shard_count: u16,
    key_bytes: u16,
    value_at: u16,
    line_header: u16,
    replicas: u8,
    index: u8,
    read_scheme: u8,
    reserved: [u8; 3],
    discipline: [u8; 4],
    creator: u32,
    born: u64,
    dropped: u64,
    last_client: u32,
    more_reserved: [u8; 44],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawReplica {
    node: u16,
    region: u16,
    joining: u32,
    base: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawShard {
    table: u16,
    replicas: u16,
    reserved: u32,
    bytes: u64,
    replica: [RawReplica; REPLICAS_MAX],
}

const HEADER_BYTES: usize = size_of::<RawHeader>();
const TABLE_BYTES: usize = size_of::<RawTable>();
const SHARD_BYTES: usize = size_of::<RawShard>();
const CHECKSUM_AT: usize = 12;

const _: () = assert!(HEADER_BYTES == 64 && TABLE_BYTES == 192 && SHARD_BYTES == 128);
const _: () = assert!(std::mem::offset_of!(RawHeader, checksum) == CHECKSUM_AT);
const _: () =
    assert!(std::mem::offset_of!(RawTable, discipline) == 120 && std::mem::offset_of!(RawTable, creator) == 124);
const _: () = assert!(std::mem::offset_of!(RawTable, dropped) == 136 && size_of::<RawTable>() == 192);
const _: () = assert!(HEADER_BYTES + TABLES_MAX * TABLE_BYTES + SHARDS_MAX * SHARD_BYTES <= METADATA_BYTES as usize);

impl Metadata {
    /// The table with a name.
    pub fn table(&self, name: &str) -> Result<(TableId, &TableEntry), MemoryError> {
        let mut tables = self.tables.iter().enumerate();
        let found = tables.find(|(_, table)| table.is_there() && table.spec.name == name);
        let (index, table) = found.ok_or_else(|| self.missing(name))?;
        Ok((TableId(index as u16), table))
    }

    /// The error that says why no table has a name: none ever had, or it was dropped.
    fn missing(&self, name: &str) -> MemoryError {
        let was_dropped = self.tables.iter().any(|table| table.dropped.is_some() && table.spec.name == name);
        let name = name.to_owned();
        if was_dropped { MemoryError::Dropped { table: name } } else { MemoryError::UnknownTable(name) }
    }

    /// Tables that were dropped and whose space is kept still.
    pub fn kept(&self) -> impl Iterator<Item = (TableId, &TableEntry)> + '_ {
        let kept = |table: &TableEntry| table.dropped.is_some() && !table.is_vacant();
        (0..).map(TableId).zip(&self.tables).filter(move |(_, table)| kept(table))
    }

    /// The shards of a table.
    pub fn shards_of(&self, table: &TableEntry) -> impl Iterator<Item = &ShardPlacement> + '_ {
        self.shards.iter().skip(table.shard_first.0.into()).take(table.spec.shards.into())
    }

    /// Takes the space of a dropped table away, and leaves its tombstone.
    fn bury(&mut self, id: TableId, last_client: u32) {
        let Some(table) = self.tables.get_mut(usize::from(id.0)) else { return };
        let Some(dropped) = &mut table.dropped else { return };
        dropped.last_client = Some(last_client.max(1));
        (table.creator, table.spec.replicas, table.spec.shard_bytes) = (None, 0, 0);
        for shard in self.shards.iter_mut().filter(|shard| shard.table == id) {
            (shard.bytes, shard.replicas) = (0, Vec::new());
        }
    }

    /// Clients that have not finished what they create.
    #[must_use]
    pub fn creators(&self) -> BTreeSet<u32> {
        self.tables.iter().filter_map(|table| table.creator).collect()
    }

    /// Those of some nodes that have no replica of anything.
    #[must_use]
    pub fn without_replicas(&self, nodes: NodeSet) -> NodeSet {
        nodes.without(self.shards.iter().flat_map(|shard| &shard.replicas).map(|replica| replica.node).collect())
    }

    /// Shards and nodes of all replicas that are joining.
    pub fn joining(&self) -> impl Iterator<Item = (ShardId, NodeId)> + '_ {
        (0..).map(ShardId).zip(&self.shards).flat_map(|(id, shard)| {
            shard.replicas.iter().filter(|replica| replica.joining).map(move |replica| (id, replica.node))
        })
    }

    /// The bytes that nodes keep.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = RawHeader {
            magic: MAGIC,
            format: FORMAT,
            features: FEATURES_KNOWN,
            generation: self.generation,
            epoch: self.epoch,
            tables: self.tables.len() as u32,
            shards: self.shards.len() as u32,
            ..RawHeader::new_zeroed()
        };
        let mut bytes = header.as_bytes().to_vec();
        for table in &self.tables {
            let spec = &table.spec;
            let mut raw = RawTable {
                fingerprint: spec.fingerprint.0,
                buckets: spec.buckets,
                indirect: spec.indirect,
                slots: spec.slots,
                value_max: spec.layout.value_max,
                slot_bytes: spec.layout.slot_bytes,
                shard_first: table.shard_first.0,
                shard_count: spec.shards,
                key_bytes: spec.layout.key_bytes,
                value_at: spec.layout.value_at,
                line_header: spec.layout.line_header,
                replicas: spec.replicas,
                index: spec.index as u8,
                read_scheme: spec.layout.scheme as u8,
                discipline: [
                    spec.discipline.lock,
                    spec.discipline.atomics,
                    spec.discipline.replication,
                    spec.discipline.log,
                ],
                creator: table.creator.unwrap_or(0),
                born: table.born,
                dropped: table.dropped.map_or(0, |dropped| dropped.generation),
                last_client: table.dropped.and_then(|dropped| dropped.last_client).unwrap_or(0),
                ..RawTable::new_zeroed()
            };
            raw.name[..spec.name.len()].copy_from_slice(spec.name.as_bytes());
            bytes.extend_from_slice(raw.as_bytes());
        }
        for shard in &self.shards {
            let mut raw = RawShard {
                table: shard.table.0,
                replicas: shard.replicas.len() as u16,
                bytes: shard.bytes,
                ..RawShard::new_zeroed()
            };
            for (raw, replica) in raw.replica.iter_mut().zip(&shard.replicas) {
                let (node, region, joining) = (replica.node.0, replica.region.0, replica.joining.into());
                *raw = RawReplica { node, region, joining, base: replica.base };
            }
            bytes.extend_from_slice(raw.as_bytes());
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes bytes that a node kept, which may be anything: `Ok(None)` if no whole copy is there.
    pub fn decode(node: NodeId, bytes: &[u8]) -> Result<Option<Metadata>, MemoryError> {
        let Ok((header, _)) = RawHeader::read_from_prefix(bytes) else { return Ok(None) };
        if header.magic != MAGIC {
            return Ok(None);
        }
        if header.format != FORMAT {
            return Err(MemoryError::Format { node, found: header.format, known: FORMAT });
        }
        if header.features & !FEATURES_KNOWN != 0 {
            return Err(MemoryError::Features { node, unknown: header.features & !FEATURES_KNOWN });
        }
        let Some(whole) = encoded_bytes(&header).and_then(|length| bytes.get(..length)) else { return Ok(None) };
        let mut copy = whole.to_vec();
        copy[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        if crc32c::crc32c(&copy) != header.checksum {
            return Ok(None);
        }
        let (tables, shards) = whole[HEADER_BYTES..].split_at(header.tables as usize * TABLE_BYTES);
        let tables: Option<Vec<_>> =
            tables.chunks_exact(TABLE_BYTES).map(|raw| decode_table(raw, header.shards)).collect();
        let shards: Option<Vec<_>> =
            shards.chunks_exact(SHARD_BYTES).map(|raw| decode_shard(raw, header.tables)).collect();
        let (Some(mut tables), Some(shards)) = (tables, shards) else { return Err(MemoryError::Damaged(node)) };
        let is_nowhere = |shard: &ShardPlacement| shard.replicas.is_empty();
        if shards.iter().any(|shard| is_nowhere(shard) != tables[usize::from(shard.table.0)].is_vacant()) {
            return Err(MemoryError::Damaged(node));
        }
        for table in &mut tables {
            table.spec.shard_bytes = shards[table.shard_first.0 as usize].bytes;
        }
        Ok(Some(Metadata { generation: header.generation, epoch: header.epoch, tables, shards }))
    }
}

/// Length of the whole value; `None` if it has more tables or shards than the format allows.
fn encoded_bytes(header: &RawHeader) -> Option<usize> {
    let (tables, shards) = (header.tables as usize, header.shards as usize);
    (tables <= TABLES_MAX && shards <= SHARDS_MAX).then_some(HEADER_BYTES + tables * TABLE_BYTES + shards * SHARD_BYTES)
}

fn decode_table(raw: &[u8], shards: u32) -> Option<TableEntry> {
    let raw = RawTable::read_from_bytes(raw).ok()?;
    let name_bytes = raw.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX);
    let name = std::str::from_utf8(&raw.name[..name_bytes]).ok()?.to_owned();
    let [lock, atomics, replication, log] = raw.discipline;
    let layout = Layout {
        key_bytes: raw.key_bytes,
        value_at: raw.value_at,
        line_header: raw.line_header,
        value_max: raw.value_max,
        slot_bytes: raw.slot_bytes,
        scheme: ReadScheme::from_code(raw.read_scheme)?,
    };
    let fits = u32::from(raw.shard_first) + u32::from(raw.shard_count) <= shards
        && raw.shard_count > 0
        && usize::from(raw.key_bytes) <= KEY_BYTES_MAX
        && raw.value_max as usize <= VALUE_BYTES_MAX
        && (1..=SLOT_BYTES_MAX).contains(&(raw.slot_bytes as usize))
        && raw.buckets > 0;
    let index = IndexKind::from_code(raw.index)?;
    fits.then_some(TableEntry {
        spec: TableSpec {
            name,
            fingerprint: Fingerprint(raw.fingerprint),
            layout,
            index,
            discipline: Discipline { lock, atomics, replication, log },
            shards: raw.shard_count,
            replicas: raw.replicas,
            buckets: raw.buckets,
            indirect: raw.indirect,
            slots: raw.slots,
            shard_bytes: 0,
        },
        shard_first: ShardId(raw.shard_first),
        creator: (raw.creator != 0).then_some(raw.creator),
        born: raw.born,
        dropped: (raw.dropped != 0).then_some(Tombstone {
            generation: raw.dropped,
            last_client: (raw.last_client != 0).then_some(raw.last_client),
        }),
    })
}

fn decode_shard(raw: &[u8], tables: u32) -> Option<ShardPlacement> {
    let raw = RawShard::read_from_bytes(raw).ok()?;
    let replicas = raw.replica.get(..raw.replicas as usize)?;
    let replica = |raw: &RawReplica| {
        let (node, region) = (NodeId(raw.node), RegionId(raw.region));
        Replica { node, region, base: raw.base, joining: raw.joining != 0 }
    };
    let has_primary = replicas.first().is_none_or(|primary| primary.joining == 0);
    (has_primary && u32::from(raw.table) < tables).then(|| ShardPlacement {
        table: TableId(raw.table),
        bytes: raw.bytes,
        replicas: replicas.iter().map(replica).collect(),
    })
}

/// Reads the metadata that a node keeps. An empty node gives the default value.
pub async fn read(lane: &Lane, node: NodeId) -> Result<Metadata, MemoryError> {
    node::superblock(lane, node).await?;
    // A reader can meet a writer; the copy it writes is then no whole one, and the other one is.
    // Twice in a row needs two changes of the catalog within one read.
    for _ in 0..16 {
        let copies = [read_copy(lane, node, 0).await?, read_copy(lane, node, 1).await?];
        let newest = copies.into_iter().flatten().max_by_key(|metadata| metadata.generation);
        if let Some(metadata) = newest {
            return Ok(metadata);
        }
        if is_blank(lane, node).await? {
            return Ok(Metadata::default());
        }
        lane.sleep(10_000).await;
    }
    Err(MemoryError::Damaged(node))
}

/// The generation that a node's metadata claims, by its own CPU: changes whenever they do.
#[must_use]
pub fn generation_local(region: &[AtomicU64]) -> u64 {
    let generation = |copy| {
        let start = (AT_METADATA + copy * METADATA_BYTES) as usize / WORD_BYTES;
        region[start + std::mem::offset_of!(RawHeader, generation) / WORD_BYTES].load(Ordering::Acquire)
    };
    generation(0).max(generation(1))
}

/// The metadata of a node, by its own CPU.
pub fn read_local(node: NodeId, region: &[AtomicU64]) -> Result<Metadata, MemoryError> {
    let copies = [0, 1].map(|copy| {
        let start = copy_at(node, copy).offset as usize / WORD_BYTES;
        let words = &region[start..start + METADATA_BYTES as usize / WORD_BYTES];
        let bytes: Vec<u64> = words.iter().map(|word| word.load(Ordering::Acquire)).collect();
        Metadata::decode(node, bytes.as_bytes())
    });
    let [first, second] = copies;
    let newest = [first?, second?].into_iter().flatten().max_by_key(|metadata| metadata.generation);
    Ok(newest.unwrap_or_default())
}

fn copy_at(node: NodeId, copy: u64) -> Address {
    node::at(node, AT_METADATA + copy * METADATA_BYTES)
}

async fn read_copy(lane: &Lane, node: NodeId, copy: u64) -> Result<Option<Metadata>, MemoryError> {
    let mut bytes = read_bytes(lane, copy_at(node, copy), HEADER_BYTES).await?;
    let length = RawHeader::read_from_bytes(&bytes).ok().filter(|header| header.magic == MAGIC);
    if let Some(length) = length.as_ref().and_then(encoded_bytes) {
        bytes = read_bytes(lane, copy_at(node, copy), length).await?;
    }
    Metadata::decode(node, &bytes)
}

async fn is_blank(lane: &Lane, node: NodeId) -> Result<bool, MemoryError> {
    let first = read_bytes(lane, copy_at(node, 0), HEADER_BYTES).await?;
    let second = read_bytes(lane, copy_at(node, 1), HEADER_BYTES).await?;
    Ok(first.iter().chain(&second).all(|byte| *byte == 0))
}

/// Bytes moved by one round of the loops below: well under a round's limit.
const CHUNK_BYTES: usize = 32 << 10;

/// Reads bytes of any length, in several rounds.
pub async fn read_bytes(lane: &Lane, at: Address, length: usize) -> Result<Vec<u8>, MemoryError> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let chunk = CHUNK_BYTES.min(length - bytes.len());
        let mut round = lane.round();
        let read = round.read(at.plus(bytes.len() as u64), chunk);
        bytes.extend_from_slice(lane.execute(round).await?.bytes(read));
    }
    Ok(bytes)
}

/// Writes bytes of any length to `at`, in ascending order.
pub async fn write_bytes(lane: &Lane, at: Address, bytes: &[u8]) -> Result<(), MemoryError> {
    for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        let mut round = lane.round();
        round.write(at.plus((index * CHUNK_BYTES) as u64), chunk);
        lane.execute(round).await?;
    }
    Ok(())
}

/// Creates a table: takes space for every replica of every shard and publishes it. The space is
/// zero: an index crate gives it meaning. `client` is the incarnation that does it. Of the
/// cluster's `nodes` it lies at the `places`: the primary of the first shard is at `first`, and
/// those of the others at the places behind it. If it fails, nothing has been taken.
pub async fn create_table(
    lane: &Lane,
    nodes: NodeSet,
    places: NodeSet,
    client: u32,
    spec: TableSpec,
    first: NodeId,
) -> Result<(TableId, Metadata), MemoryError> {
    create(lane, nodes, places, client, (spec, None), first).await
}

/// Creates a table that is not ready before [`finish_tables`], otherwise like [`create_table`].
pub async fn begin_table(
    lane: &Lane,
    nodes: NodeSet,
    places: NodeSet,
    client: u32,
    spec: TableSpec,
    first: NodeId,
) -> Result<(TableId, Metadata), MemoryError> {
    create(lane, nodes, places, client, (spec, Some(client)), first).await
}

async fn create(
    lane: &Lane,
    nodes: NodeSet,
    places: NodeSet,
    client: u32,
    (spec, creator): (TableSpec, Option<u32>),
    first: NodeId,
) -> Result<(TableId, Metadata), MemoryError> {
    check_spec(places.count(), &spec)?;
    let Some(first) = places.iter().position(|node| node == first) else {
        let highest = places.iter().next_back().unwrap_or_default();
        let (what, value, max) = ("the number of a table's first node", first.0.into(), highest.0.into());
        return Err(MemoryError::Limit { what, value, max });
    };
    let mut places: Vec<NodeId> = places.iter().collect();
    places.rotate_left(first);
    let create = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        let first_client = client::first_registered(lane, nodes.leader()).await?;
        let table = enter_table(&mut metadata, spec, creator, first_client)?;
        place_shards(lane, nodes.leader(), &mut metadata, table, &places).await?;
        metadata.generation += 1;
        publish(lane, nodes, &metadata).await?;
        Ok((table, metadata))
    };
    with_catalog_locked(lane, nodes.leader(), client, create).await
}

/// Makes tables ready that `client` has begun: all of them at once. Fails, and changes nothing, if
/// one of them has been discarded.
pub async fn finish_tables(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    tables: &[TableId],
) -> Result<Metadata, MemoryError> {
    let finish = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        for table in tables {
            let entry = metadata.tables.get_mut(usize::from(table.0));
            let entry = entry.filter(|entry| entry.creator == Some(client)).ok_or(MemoryError::Discarded)?;
            entry.creator = None;
        }
        metadata.generation += 1;
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, finish).await
}

/// Discards the `wanted` ones among the tables that client `creator` has begun and not finished. No
/// verb of the creator that writes to them may take effect any more. Returns the names of the
/// discarded tables, which are free again, and the catalog.
///
/// The space of the tables becomes free. With `give_back`, space at the end of a node's memory is
/// zeroed and becomes untouched space, which takes as long as writing it does.
pub async fn discard_tables(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    creator: u32,
    wanted: impl Fn(TableId) -> bool,
    give_back: bool,
) -> Result<(Vec<String>, Metadata), MemoryError> {
    let discard = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        let names = vacate(&mut metadata, |id, table| table.creator == Some(creator) && wanted(id));
        if !names.is_empty() {
            metadata.generation += 1;
            publish(lane, nodes, &metadata).await?;
            if give_back {
                for node in nodes.iter() {
                    return_space(lane, nodes.leader(), node, &metadata).await?;
                }
            }
        }
        Ok((names, metadata))
    };
    with_catalog_locked(lane, nodes.leader(), client, discard).await
}

/// Drops tables: the first of the two steps, see the module's page. No client opens them from then
/// on, their names are free, and their space is kept until [`free_dropped`]. All of them are
/// dropped in one change, or, with an error that says why, none.
pub async fn drop_tables(lane: &Lane, nodes: NodeSet, client: u32, names: &[String]) -> Result<Metadata, MemoryError> {
    let drop = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        metadata.generation += 1;
        for name in names {
            let (id, table) = metadata.table(name)?;
            if let Some(client) = table.creator {
                return Err(MemoryError::Unfinished { table: name.clone(), client });
            }
            let tombstone = Tombstone { generation: metadata.generation, last_client: None };
            metadata.tables[usize::from(id.0)].dropped = Some(tombstone);
        }
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, drop).await
}

/// Does something to a table while no client can drop it. Fails with [`MemoryError::Dropped`] if
/// the table with this id is not the one that was `born` with this generation, or was dropped.
pub async fn while_there<E: From<MemoryError>>(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    (id, born, name): (TableId, u64, &str),
    what: impl AsyncFnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let look = async || {
        let metadata = read(lane, nodes.leader()).await?;
        let is_there = |table: &TableEntry| table.is_there() && table.born == born;
        if metadata.tables.get(usize::from(id.0)).is_some_and(is_there) {
            return Ok(what().await);
        }
        Err(MemoryError::Dropped { table: name.to_owned() })
    };
    with_catalog_locked(lane, nodes.leader(), client, look).await?
}

/// Frees the space of all tables that were dropped by the change of this `generation` or before:
/// the second of the two steps, see the module's page. No client may use any of them. A table that
/// is just being copied to another node keeps its space. Space at the end of a node's memory is
/// zeroed and becomes untouched space, which takes as long as writing it does. Returns the catalog.
pub async fn free_dropped(lane: &Lane, nodes: NodeSet, client: u32, generation: u64) -> Result<Metadata, MemoryError> {
    let free = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        let is_wanted = |table: &TableEntry| table.dropped.is_some_and(|dropped| dropped.generation <= generation);
        let is_still = |table: &TableEntry| {
            metadata.shards_of(table).flat_map(|shard| &shard.replicas).all(|replica| !replica.joining)
        };
        let freed: Vec<TableId> =
            metadata.kept().filter(|(_, table)| is_wanted(table) && is_still(table)).map(|(id, _)| id).collect();
        if !freed.is_empty() {
            let last_client = client::last_incarnation(lane, nodes.leader()).await?;
            freed.into_iter().for_each(|id| metadata.bury(id, last_client));
            metadata.generation += 1;
            publish(lane, nodes, &metadata).await?;
            // Clients take their rings from untouched space.
            for node in nodes.iter() {
                return_space(lane, nodes.leader(), node, &metadata).await?;
            }
        }
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, free).await
}

/// Takes tables out of a catalog; their names.
fn vacate(metadata: &mut Metadata, wanted: impl Fn(TableId, &TableEntry) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for (id, table) in (0..).map(TableId).zip(&mut metadata.tables) {
        if !table.is_there() || !wanted(id, table) {
            continue;
        }
        names.push(std::mem::take(&mut table.spec.name));
        (table.creator, table.spec.replicas, table.spec.shard_bytes) = (None, 0, 0);
        for shard in metadata.shards.iter_mut().filter(|shard| shard.table == id) {
            (shard.bytes, shard.replicas) = (0, Vec::new());
        }
    }
    trim(metadata, |table| table.spec.name.is_empty());
    names
}

/// Removes vacant entries at the end of the list whose ids may be used again.
fn trim(metadata: &mut Metadata, is_free: impl Fn(&TableEntry) -> bool) {
    while let Some(last) = metadata.tables.pop_if(|table| is_free(table)) {
        metadata.shards.truncate(last.shard_first.0.into());
    }
}

/// Gives a table its entry and its shards their ids, without replicas. `first_client` is the
/// lowest incarnation of all clients that have rings.
fn enter_table(
    metadata: &mut Metadata,
    spec: TableSpec,
    creator: Option<u32>,
    first_client: u32,
) -> Result<TableId, MemoryError> {
    let born = metadata.generation + 1;
    match metadata.table(&spec.name) {
        Ok((_, TableEntry { creator: Some(client), .. })) => {
            return Err(MemoryError::Unfinished { table: spec.name, client: *client });
        }
        Ok(_) => return Err(MemoryError::TableExists(spec.name)),
        Err(_) => {}
    }
    let is_free = |table: &TableEntry| {
        let last = table.dropped.and_then(|dropped| dropped.last_client);
        table.is_vacant() && last.is_none_or(|last| last < first_client)
    };
    let is_fitting = |table: &TableEntry| is_free(table) && table.spec.shards == spec.shards;
    if let Some(at) = metadata.tables.iter().position(is_fitting) {
        let entry = &mut metadata.tables[at];
        *entry = TableEntry { spec, shard_first: entry.shard_first, creator, born, dropped: None };
        return Ok(TableId(at as u16));
    }
    if metadata.tables.len() == TABLES_MAX || metadata.shards.len() + usize::from(spec.shards) > SHARDS_MAX {
        trim(metadata, is_free);
    }
    let room = |what, value: usize, max: usize| {
        if value > max { Err(MemoryError::Limit { what, value: value as u64, max: max as u64 }) } else { Ok(()) }
    };
    room("tables", metadata.tables.len() + 1, TABLES_MAX)?;
    room("shards", metadata.shards.len() + usize::from(spec.shards), SHARDS_MAX)?;
    let table = TableId(metadata.tables.len() as u16);
    let shard_first = ShardId(metadata.shards.len() as u16);
    let nowhere = ShardPlacement { table, bytes: spec.shard_bytes, replicas: Vec::new() };
    metadata.shards.resize(metadata.shards.len() + usize::from(spec.shards), nowhere);
    metadata.tables.push(TableEntry { spec, shard_first, creator, born, dropped: None });
    Ok(table)
}

/// Finds places for the shards of a table that has just been entered, and takes the space: at every
/// node, or at none.
async fn place_shards(
    lane: &Lane,
    leader: NodeId,
    metadata: &mut Metadata,
    table: TableId,
    places: &[NodeId],
) -> Result<(), MemoryError> {
    let TableEntry { spec, shard_first, .. } = metadata.tables[usize::from(table.0)].clone();
    let copies = |shard: u16| (0..u16::from(spec.replicas)).map(move |copy| usize::from(shard + copy) % places.len());
    let mut wanted = vec![0u64; places.len()];
    for place in (0..spec.shards).flat_map(copies) {
        wanted[place] += 1;
    }
    let extent = node::extent(spec.shard_bytes.max(1));
    // All nodes are asked before any space is taken.
    let mut space = Vec::with_capacity(places.len());
    for (node, extents) in places.iter().zip(wanted) {
        space.push(find_space(lane, leader, *node, metadata, extents, extent).await?);
    }
    let mut bases = Vec::with_capacity(places.len());
    for (node, Found { mut reused, untouched }) in places.iter().zip(space) {
        for base in &reused {
            zero(lane, node::at(*node, *base), extent).await?;
        }
        if untouched > 0 {
            // If a client took the space meanwhile for its rings, what has been taken at other
            // nodes is free still.
            let first = node::allocate(lane, *node, untouched * extent).await?;
            reused.extend((0..untouched).map(|at| first + at * extent));
        }
        bases.push(reused.into_iter());
    }
    for shard in 0..spec.shards {
        let mut replica = |place: usize| {
            let base = bases[place].next().unwrap_or(UNPLACED);
            Replica { node: places[place], region: node::REGION, base, joining: false }
        };
        let replicas = copies(shard).map(&mut replica).collect();
        metadata.shards[usize::from(shard_first.0 + shard)] =
            ShardPlacement { table, bytes: spec.shard_bytes, replicas };
    }
    Ok(())
}

/// Where extents can be had at a node.
struct Found {
    /// Where some of them begin, which were something else's once.
    reused: Vec<u64>,
    /// How many of them come out of the untouched space.
    untouched: u64,
}

/// So often it is asked again whether clients that are coming have taken their rings, with so long
/// a pause.
const RINGS_LOOKS: usize = 100;
const RINGS_PAUSE_NS: u64 = 1_000_000;

/// Looks for `extents` extents of a node, of `extent` bytes each. Only the holder of the catalog
/// lock may.
async fn find_space(
    lane: &Lane,
    leader: NodeId,
    node: NodeId,
    metadata: &Metadata,
    extents: u64,
    extent: u64,
) -> Result<Found, MemoryError> {
    let mut looks = 0;
    loop {
        let superblock = node::superblock(lane, node).await?;
        let untouched = superblock.free() / extent;
        let free = free_space(lane, leader, node, metadata, superblock.allocated).await?;
        let is_known = free.is_some();
        if !is_known && extents <= untouched {
            return Ok(Found { reused: Vec::new(), untouched: extents });
        }
        let free = free.unwrap_or_default();
        let starts =
            free.iter().flat_map(|(start, end)| (0..(end - start) / extent).map(move |at| start + at * extent));
        // Clients find space for their rings in what is untouched alone.
        let reused: Vec<u64> = starts.take(extents as usize).collect();
        let lacking = extents - reused.len() as u64;
        if lacking <= untouched {
            return Ok(Found { reused, untouched: lacking });
        }
        looks += 1;
        if is_known || looks == RINGS_LOOKS {
            let reusable: u64 = free.iter().map(|(start, end)| end - start).sum();
            let wanted = extents.saturating_mul(extent);
            return Err(MemoryError::OutOfMemory { node, wanted, free: superblock.free() + reusable });
        }
        lane.sleep(RINGS_PAUSE_NS).await;
    }
}

/// The space of a node below `allocated` that nothing has, in ascending order; `None` if that
/// cannot be told, because a client is about to take space for its rings. `allocated` must have
/// been read before.
async fn free_space(
    lane: &Lane,
    leader: NodeId,
    node: NodeId,
    metadata: &Metadata,
    allocated: u64,
) -> Result<Option<Vec<(u64, u64)>>, MemoryError> {
    let Some(mut used) = client::ring_space(lane, leader, node).await? else { return Ok(None) };
    for shard in &metadata.shards {
        let here = shard.replicas.iter().filter(|replica| replica.node == node);
        used.extend(here.map(|replica| (replica.base, replica.base.saturating_add(node::extent(shard.bytes)))));
    }
    used.sort_unstable();
    let (mut free, mut from) = (Vec::new(), AT_SPACE);
    for (start, end) in used.into_iter().chain([(allocated, allocated)]) {
        if from < start.min(allocated) {
            free.push((from, start.min(allocated)));
        }
        from = from.max(end);
    }
    Ok(Some(free))
}

/// Zeroes what is free at the end of a node's memory, and makes it untouched space again. Only the
/// holder of the catalog lock may.
async fn return_space(lane: &Lane, leader: NodeId, node: NodeId, metadata: &Metadata) -> Result<(), MemoryError> {
    let allocated = node::superblock(lane, node).await?.allocated;
    let free = free_space(lane, leader, node, metadata, allocated).await?.unwrap_or_default();
    let Some((start, end)) = free.last().copied().filter(|(_, end)| *end == allocated) else { return Ok(()) };
    zero(lane, node::at(node, start), end - start).await?;
    node::give_back(lane, node, start, end).await
}

/// Zeroes bytes of any length.
pub async fn zero(lane: &Lane, at: Address, bytes: u64) -> Result<(), MemoryError> {
    static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];
    let mut done = 0;
    while done < bytes {
        let chunk = (bytes - done).min(CHUNK_BYTES as u64);
        let mut round = lane.round();
        round.write(at.plus(done), &ZEROS[..chunk as usize]);
        lane.execute(round).await?;
        done += chunk;
    }
    Ok(())
}

/// Runs `what` while this client alone may change the catalog.
async fn with_catalog_locked<T>(
    lane: &Lane,
    leader: NodeId,
    client: u32,
    what: impl AsyncFnOnce() -> Result<T, MemoryError>,
) -> Result<T, MemoryError> {
    lock_catalog(lane, leader, client.into()).await?;
    let result = what().await;
    free_catalog_lock(lane, leader, client).await?;
    result
}

/// What is left of a configuration without some nodes, in this epoch: their backups are promoted.
/// An error names a table of which some shard has no replica then.
pub fn without(before: &Metadata, lost: NodeSet, epoch: u64) -> Result<Metadata, MemoryError> {
    let mut after = before.clone();
    let mut gone = BTreeSet::new();
    for shard in after.shards.iter_mut().filter(|shard| !shard.replicas.is_empty()) {
        shard.replicas.retain(|replica| !lost.has(replica.node));
        if shard.copies().next().is_none() {
            let table = before.tables.get(usize::from(shard.table.0));
            if table.is_none_or(|table| table.is_there()) {
                return Err(MemoryError::NoReplica(table.map(|table| table.spec.name.clone()).unwrap_or_default()));
            }
            gone.insert(shard.table);
        }
    }
    // Nobody wants what is left of a dropped table. Its ids are not used again before every client
    // that has rings now has given them back.
    gone.into_iter().for_each(|table| after.bury(table, INCARNATIONS_MAX as u32));
    after.epoch = epoch;
    if after != *before {
        // Far above any generation that a client whose access was just revoked may be about to
        // write.
        after.generation += CHANGES_UNDER_WAY;
    }
    Ok(after)
}

/// What is to become of memory nodes and shards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'w> {
    /// Nodes that are to have shards.
    pub nodes: NodeSet,
    /// Nodes that are to have none, even if that leaves fewer copies than there should be. All
    /// other nodes keep their shards until there are enough copies elsewhere.
    pub expendable: NodeSet,
    /// Nodes, out of `nodes`, that are to have as much as the others. Until then, shards move
    /// there.
    pub filling: NodeSet,
    /// Joining replicas that have everything by now.
    pub copied: &'w [(ShardId, NodeId)],
}

/// Base of a replica that has no place yet.
const UNPLACED: u64 = u64::MAX;

/// Computes the next step from a configuration to what is wanted:
///
/// 1. Joining replicas that have been copied become copies.
/// 2. Nodes that are to have nothing lose their copies where the others have enough.
/// 3. Replicas join where copies are missing, at the nodes with most `room`, in bytes.
/// 4. The fullest node of a shard loses its copy where a filling node has got one.
/// 5. Replicas join at filling nodes as long as that spreads bytes more evenly.
///
/// New replicas have no place yet. Repeated steps come to an end: once all joining replicas are
/// copied and nothing else has changed, the bytes are spread more evenly than before.
#[must_use]
pub fn arrangement(before: &Metadata, wanted: &Wanted<'_>, room: &BTreeMap<NodeId, u64>) -> Metadata {
    let mut after = before.clone();
    let mut room: Vec<(u64, NodeId)> =
        wanted.nodes.iter().map(|node| (room.get(&node).copied().unwrap_or(0), node)).collect();
    for (number, shard) in (0..).zip(&mut after.shards) {
        let Some(table) = before.tables.get(usize::from(shard.table.0)) else { continue };
        let copies = usize::from(table.spec.replicas);
        for replica in &mut shard.replicas {
            replica.joining &= !wanted.copied.contains(&(ShardId(number), replica.node));
        }
        let here = |replica: &Replica| wanted.nodes.has(replica.node);
        let kept = |replica: &Replica| !wanted.expendable.has(replica.node);
        // The primary stays primary until it leaves: no other node would free the locks held there,
        // or take back an insert.
        shard.replicas.sort_by_key(|replica| replica.joining);
        let staying = shard.copies().filter(|replica| here(replica)).count();
        let keeping = shard.copies().filter(|replica| kept(replica)).count();
        let most = usize::from(wanted.nodes.count()) + keeping - staying;
        if staying >= copies {
            shard.replicas.retain(here);
        } else if keeping >= copies.min(most) && keeping > 0 {
            shard.replicas.retain(kept);
        }
        let needed = node::extent(shard.bytes);
        let missing = copies.saturating_sub(shard.replicas.iter().filter(|replica| here(replica)).count());
        for _ in 0..missing.min(REPLICAS_MAX.saturating_sub(shard.replicas.len())) {
            let fits = room
                .iter_mut()
                .filter(|(room, node)| *room >= needed && !shard.replicas.iter().any(|replica| replica.node == *node));
            // Of those with as much room, the first.
            let Some((room, node)) = fits.max_by_key(|(room, node)| (*room, std::cmp::Reverse(*node))) else { break };
            *room -= needed;
            shard.replicas.push(Replica { node: *node, region: node::REGION, base: UNPLACED, joining: true });
        }
    }
    leave_fullest(&mut after, wanted.nodes);
    fill(&mut after, wanted, &mut room);
    if after != *before {
        after.generation += CHANGES_UNDER_WAY;
    }
    after
}

/// Bytes of replicas, and shards with their primary there, of each node.
#[derive(Clone, Copy)]
struct Load([(u64, u32); NODES_MAX]);

impl Load {
    fn of(metadata: &Metadata) -> Load {
        let mut load = Load([(0, 0); NODES_MAX]);
        for shard in &metadata.shards {
            for (at, replica) in shard.replicas.iter().enumerate() {
                if let Some((bytes, primaries)) = load.0.get_mut(usize::from(replica.node.0)) {
                    *bytes += node::extent(shard.bytes);
                    *primaries += u32::from(at == 0);
                }
            }
        }
        load
    }

    fn bytes(&self, node: NodeId) -> u64 {
        self.0.get(usize::from(node.0)).map_or(0, |(bytes, _)| *bytes)
    }

    fn primaries(&self, node: NodeId) -> u32 {
        self.0.get(usize::from(node.0)).map_or(0, |(_, primaries)| *primaries)
    }

    /// The less, the more evenly what there is is spread.
    fn unevenness(&self) -> u128 {
        self.0.iter().map(|(bytes, _)| u128::from(*bytes).pow(2)).sum()
    }
}

/// Gives up the copies that a shard has too many, after a filling node, or a node that a copy moves
/// to, has got one. A copy outside `nodes` goes first, then the copy at the node with most bytes.
/// The last copy takes the place of the copy that goes, also as the primary.
fn leave_fullest(metadata: &mut Metadata, nodes: NodeSet) {
    let mut load = Load::of(metadata);
    for shard in &mut metadata.shards {
        let Some(table) = metadata.tables.get(usize::from(shard.table.0)) else { continue };
        while shard.copies().count() > usize::from(table.spec.replicas) {
            let last = shard.copies().count() - 1;
            let most = |at: &usize| {
                let node = shard.replicas[*at].node;
                (!nodes.has(node), load.bytes(node), std::cmp::Reverse(*at))
            };
            let Some(fullest) = (0..last).max_by_key(most) else { break };
            let came = shard.replicas.remove(last);
            let left = std::mem::replace(&mut shard.replicas[fullest], came);
            if let Some((bytes, _)) = load.0.get_mut(usize::from(left.node.0)) {
                *bytes -= node::extent(shard.bytes);
            }
        }
    }
}

/// Has replicas join at the nodes that are to be filled, so long as that spreads all more evenly.
fn fill(after: &mut Metadata, wanted: &Wanted<'_>, room: &mut [(u64, NodeId)]) {
    // What becomes of it when everything has been copied.
    let settled = |metadata: &Metadata| {
        let mut settled = metadata.clone();
        settled.shards.iter_mut().flat_map(|shard| &mut shard.replicas).for_each(|replica| replica.joining = false);
        leave_fullest(&mut settled, wanted.nodes);
        settled
    };
    let mut load = Load::of(&settled(after));
    while let Some((at, to)) = next_to_move(after, wanted, room, &load) {
        after.shards[at].replicas.push(Replica { node: to, region: node::REGION, base: UNPLACED, joining: true });
        let moved = Load::of(&settled(after));
        if moved.unevenness() >= load.unevenness() {
            after.shards[at].replicas.pop();
            break;
        }
        let needed = node::extent(after.shards[at].bytes);
        room.iter_mut().filter(|(_, node)| *node == to).for_each(|(room, _)| *room -= needed);
        load = moved;
    }
}

/// Finds the next shard, by its place in the list, and the filling node that should get a replica
/// of it. The replica at the fullest node of the shard is then one too many.
fn next_to_move(
    metadata: &Metadata,
    wanted: &Wanted<'_>,
    room: &[(u64, NodeId)],
    load: &Load,
) -> Option<(usize, NodeId)> {
    let mut filling: Vec<_> = room.iter().filter(|(_, node)| wanted.filling.has(*node)).collect();
    filling.sort_by_key(|(_, node)| load.bytes(*node));
    filling.into_iter().find_map(|(room, to)| {
        let gain = |shard: &ShardPlacement| {
            let table = metadata.tables.get(usize::from(shard.table.0))?;
            let is_whole = shard.replicas.len() == usize::from(table.spec.replicas)
                && shard.replicas.iter().all(|replica| !replica.joining && replica.node != *to);
            let needed = node::extent(shard.bytes);
            let from = shard.replicas.iter().map(|replica| replica.node).max_by_key(|node| load.bytes(*node))?;
            let gain = load.bytes(from).checked_sub(load.bytes(*to) + needed).filter(|gain| *gain > 0)?;
            let fits = is_whole && shard.replicas.len() < REPLICAS_MAX && *room >= needed;
            // Primaries have more to do.
            let has_too_many = load.primaries(from) > load.primaries(*to) + 1;
            fits.then_some(((shard.replicas[0].node == from) == has_too_many, gain))
        };
        let gains = metadata.shards.iter().enumerate().filter_map(|(at, shard)| Some((gain(shard)?, at)));
        gains.max_by_key(|(gain, at)| (*gain, std::cmp::Reverse(*at))).map(|(_, at)| (at, *to))
    })
}

/// Bytes of these nodes that shards may take. The rest is for the redo rings of clients: as many as
/// they have at any of the others, and [`RINGS_SPARE`].
pub async fn room(lane: &Lane, nodes: NodeSet) -> Result<BTreeMap<NodeId, u64>, MemoryError> {
    let mut rings = BTreeMap::new();
    for node in nodes.iter() {
        rings.insert(node, client::ring_bytes(lane, node).await?);
    }
    let most = |slot: usize| rings.values().map(|bytes| bytes[slot]).max().unwrap_or(0);
    let mut room = BTreeMap::new();
    for (node, bytes) in &rings {
        let superblock = node::superblock(lane, *node).await?;
        // Rings that are too small are not made larger, but others are taken.
        let lacking = bytes.iter().enumerate().map(|(slot, here)| Some(most(slot)).filter(|most| most > here));
        let spare = (superblock.bytes / 8).min(RINGS_SPARE * RING_EXTENT_BYTES);
        room.insert(*node, lacking.flatten().fold(superblock.free().saturating_sub(spare), u64::saturating_sub));
    }
    Ok(room)
}

/// Computes the [`arrangement`] with the [`room`] that the nodes have.
pub async fn arranged(lane: &Lane, before: &Metadata, wanted: &Wanted<'_>) -> Result<Metadata, MemoryError> {
    let mut free = BTreeMap::new();
    for node in wanted.nodes.iter() {
        free.insert(node, node::superblock(lane, node).await?.free());
    }
    let after = arrangement(before, wanted, &free);
    // A caller may ask all the time. So the slots of clients are read only if a replica is to join.
    let is_new = |replica: &Replica| replica.base == UNPLACED;
    if !after.shards.iter().flat_map(|shard| &shard.replicas).any(is_new) {
        return Ok(after);
    }
    Ok(arrangement(before, wanted, &room(lane, wanted.nodes).await?))
}

/// Computes the next step as [`arranged`] does, and allocates zeroed memory for new replicas. The
/// caller must have stopped the whole cluster. If the result is not published, the memory is lost.
pub async fn rearrange(lane: &Lane, before: &Metadata, wanted: &Wanted<'_>) -> Result<Metadata, MemoryError> {
    let mut after = arranged(lane, before, wanted).await?;
    for shard in &mut after.shards {
        let bytes = shard.bytes;
        for replica in shard.replicas.iter_mut().filter(|replica| replica.base == UNPLACED) {
            replica.base = node::allocate(lane, replica.node, bytes).await?;
        }
    }
    Ok(after)
}

/// No more changes of the catalog than this are under way at one time.
const CHANGES_UNDER_WAY: u64 = 1 << 20;

/// The newest metadata that some of these nodes has.
pub async fn newest(lane: &Lane, nodes: NodeSet) -> Result<Metadata, MemoryError> {
    let mut newest = Metadata::default();
    for node in nodes.iter() {
        let found = read(lane, node).await?;
        if found.generation >= newest.generation {
            newest = found;
        }
    }
    Ok(newest)
}

/// Writes metadata to nodes whose clients have no access, or under the catalog lock. Readers find
/// the copy before it until it is whole.
pub async fn publish(lane: &Lane, nodes: NodeSet, metadata: &Metadata) -> Result<(), MemoryError> {
    let bytes = metadata.encode();
    for node in nodes.iter() {
        // Not over the copy that counts.
        let copies = [read_copy(lane, node, 0).await?, read_copy(lane, node, 1).await?];
        let [first, second] = copies.map(|copy| copy.map_or(0, |metadata| metadata.generation));
        if first.max(second) < metadata.generation {
            // The header last: when a node's CPU sees a new generation, all of it is there.
            let at = copy_at(node, u64::from(first > second));
            let (header, rest) = bytes.split_at(HEADER_BYTES);
            write_bytes(lane, at.plus(HEADER_BYTES as u64), rest).await?;
            write_bytes(lane, at, header).await?;
        }
    }
    Ok(())
}

/// Frees the catalog lock of a leader that a client has, or had: its own, or of one whose access
/// has been taken away.
pub async fn free_catalog_lock(lane: &Lane, leader: NodeId, from: u32) -> Result<(), MemoryError> {
    let mut round = lane.round();
    round.compare_swap(node::at(leader, AT_LOCK), from.into(), 0);
    lane.execute(round).await?;
    Ok(())
}

/// Frees the catalog lock of a leader, whichever client holds it. The access of every client must
/// have been revoked.
pub async fn unlock_catalog(lane: &Lane, leader: NodeId) -> Result<(), MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::at(leader, AT_LOCK), WORD_BYTES);
    let holder = lane.execute(round).await?.words(read)[0];
    let mut round = lane.round();
    round.compare_swap(node::at(leader, AT_LOCK), holder, 0);
    lane.execute(round).await?;
    Ok(())
}

fn check_spec(nodes: u16, spec: &TableSpec) -> Result<(), MemoryError> {
    let limit = |what, value: u64, max: u64| {
        if value > max { Err(MemoryError::Limit { what, value, max }) } else { Ok(()) }
    };
    if spec.name.is_empty() {
        return Err(MemoryError::Empty("a table's name"));
    }
    if spec.name.contains(char::is_control) {
        return Err(MemoryError::Name(spec.name.clone()));
    }
    if spec.shards == 0 || spec.replicas == 0 || spec.buckets == 0 {
        return Err(MemoryError::Empty("the number of shards, replicas or buckets"));
    }
    limit("bytes of a table's name", spec.name.len() as u64, NAME_BYTES_MAX as u64)?;
    limit("bytes of a key", u64::from(spec.layout.key_bytes), KEY_BYTES_MAX as u64)?;
    limit("bytes of a value", u64::from(spec.layout.value_max), VALUE_BYTES_MAX as u64)?;
    limit("bytes of a record's slot", u64::from(spec.layout.slot_bytes), SLOT_BYTES_MAX as u64)?;
    limit("bytes of a shard", spec.shard_bytes, 1 << 48)?;
    let replicas = usize::from(spec.replicas);
    if replicas > usize::from(nodes) || replicas > REPLICAS_MAX {
        return Err(MemoryError::TooManyReplicas { replicas, nodes: nodes.into() });
    }
    Ok(())
}

async fn lock_catalog(lane: &Lane, leader: NodeId, client: u64) -> Result<(), MemoryError> {
    let mut holder = 0;
    for _ in 0..1000 {
        let mut round = lane.round();
        let swap = round.compare_swap(node::at(leader, AT_LOCK), 0, client);
        let done = lane.execute(round).await?;
        if done.swapped(swap) {
            return Ok(());
        }
        holder = done.previous(swap);
        lane.sleep(1_000_000).await;
    }
    Err(MemoryError::CatalogLocked(holder))
}
