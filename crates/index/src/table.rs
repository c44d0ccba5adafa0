//! A table as a client sees it: what the catalog says, where its shards are, and the location
//! cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::Address;
use remora_node::{IndexKind, Metadata, Pointer, Replica, ShardId, Stage, TableEntry, TableId};
use remora_record::{KeyHash, RecordShape, Version, structural};

use crate::buckets::{Buckets, Index};
use crate::cache::LocationCache;
use crate::cluster_hash::{self, Location, Probe, location, search};
use crate::error::IndexError;
use crate::fstore;

/// Chains longer than this are not followed in the cache, where a stale link could make a circle.
const CACHED_CHAIN_MAX: usize = 16;
/// Location cache of one table, at most.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// An index bucket of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketRef {
    /// The shard's place within its table.
    pub shard: u16,
    /// The bucket's number within the shard; the indirect ones come after the main ones.
    pub bucket: u64,
}

/// An open table: what the catalog says of it, where its shards are, and the location cache. Shared
/// by the workers of a client.
#[derive(Clone, Debug)]
pub struct Table {
    id: TableId,
    entry: TableEntry,
    shape: RecordShape,
    /// The shape of the records that the table's index consists of, if it does.
    structural: RecordShape,
    geometry: Geometry,
    buckets: Buckets,
    shard_bytes: u64,
    /// Replicas of each shard, the primary first.
    shards: Vec<Vec<Replica>>,
    cache: LocationCache,
    lineage: Arc<Lineage>,
    growth: Option<Larger>,
}

/// The table that another one grows into.
#[derive(Clone, Debug)]
pub struct Larger {
    /// The larger table.
    pub table: Arc<Table>,
    /// How far the growth has come.
    pub stage: Stage,
}

/// Tables that grew one from the other, as this process knows them: they are one table to a
/// program, whose handle may be of any of them.
#[derive(Debug)]
struct Lineage {
    /// The newest of them that this process has found by its name: its generation above its id.
    newest: AtomicU64,
}

impl Lineage {
    const ID_BITS: u32 = 16;

    fn of(id: TableId, entry: &TableEntry) -> Arc<Lineage> {
        let newest = AtomicU64::new(Lineage::packed(id, entry.born));
        Arc::new(Lineage { newest })
    }

    fn packed(id: TableId, born: u64) -> u64 {
        born << Lineage::ID_BITS | u64::from(id.0)
    }
}

/// The index of a table's shards.
#[derive(Clone, Copy, Debug)]
enum Geometry {
    ClusterHash(cluster_hash::Geometry),
    FStore(fstore::Geometry),
}

impl Table {
    /// Opens a table of the catalog.
    pub fn open(metadata: &Metadata, name: &str) -> Result<Table, IndexError> {
        Table::open_with_cache(metadata, name, CACHE_BYTES_MAX)
    }

    /// Opens a table of the catalog, with a location cache of at most `cache_bytes` bytes.
    pub fn open_with_cache(metadata: &Metadata, name: &str, cache_bytes: usize) -> Result<Table, IndexError> {
        let (id, entry) = metadata.table(name)?;
        Ok(Table::growing(metadata, (id, entry), cache_bytes, &Lineage::of(id, entry)))
    }

    /// Opens a table of the catalog by its entry there.
    #[must_use]
    pub fn open_entry(metadata: &Metadata, (id, entry): (TableId, &TableEntry)) -> Table {
        Table::growing(metadata, (id, entry), CACHE_BYTES_MAX, &Lineage::of(id, entry))
    }

    /// A table with the larger ones that it grows into, one after the other.
    fn growing(
        metadata: &Metadata,
        (id, entry): (TableId, &TableEntry),
        cache_bytes: usize,
        lineage: &Arc<Lineage>,
    ) -> Table {
        let mut table = Table::of(metadata, id, entry, cache_bytes, lineage.clone());
        // Each is younger than the one before, or else the catalog is damaged.
        let larger = metadata.larger(id).filter(|(_, larger)| larger.born > entry.born);
        table.growth = larger.and_then(|larger| {
            let stage = larger.1.growth?.stage;
            Some(Larger { table: Arc::new(Table::growing(metadata, larger, cache_bytes, lineage)), stage })
        });
        table
    }

    /// The table that has an id in the catalog, also if it was dropped and its space is kept: to
    /// look at it, without a location cache. `None` if the table has no space.
    #[must_use]
    pub fn open_by_id(metadata: &Metadata, id: TableId) -> Option<Table> {
        let entry = metadata.tables.get(usize::from(id.0)).filter(|table| !table.is_vacant())?;
        Some(Table::of(metadata, id, entry, 0, Lineage::of(id, entry)))
    }

    fn of(metadata: &Metadata, id: TableId, entry: &TableEntry, cache_bytes: usize, lineage: Arc<Lineage>) -> Table {
        let spec = &entry.spec;
        let geometry = match spec.index {
            IndexKind::ClusterHash => Geometry::ClusterHash(cluster_hash::Geometry::of(spec)),
            IndexKind::FStore => Geometry::FStore(fstore::Geometry::of(spec)),
        };
        let first = usize::from(entry.shard_first.0);
        let shards =
            metadata.shards[first..first + usize::from(spec.shards)].iter().map(|shard| shard.replicas.clone());
        let buckets = match &geometry {
            Geometry::ClusterHash(geometry) => Index::buckets(geometry),
            Geometry::FStore(geometry) => geometry.buckets,
        };
        let cached = buckets.count() * u64::from(spec.shards);
        Table {
            id,
            entry: entry.clone(),
            shape: RecordShape::of(&spec.layout),
            structural: structural(spec.layout.scheme),
            shard_bytes: entry.spec.shard_bytes,
            geometry,
            buckets,
            shards: shards.collect(),
            cache: LocationCache::new(cached, cache_bytes),
            lineage,
            growth: None,
        }
    }

    /// This table as a later catalog has it: where it is now, and what it grows into, or has grown
    /// into. Both share the location cache, because what it remembers names no nodes.
    pub fn moved(&self, metadata: &Metadata) -> Result<Table, IndexError> {
        let (id, entry) = metadata.table_of_origin(self.origin(), self.name())?;
        let mut moved = Table::growing(metadata, (id, entry), 0, &Lineage::of(id, entry));
        self.note_newest(&moved);
        moved.follow(self);
        Ok(moved)
    }

    /// Takes over what this process has of the same tables, and of their lineage.
    fn follow(&mut self, before: &Table) {
        self.lineage = before.lineage.clone();
        let same = before.and_larger().find(|table| table.born() == self.born());
        let fresh = || LocationCache::new(self.buckets.count() * u64::from(self.shards()), CACHE_BYTES_MAX);
        self.cache = same.map_or_else(fresh, |same| same.cache.clone());
        if let Some(larger) = &mut self.growth {
            let mut table = (*larger.table).clone();
            table.follow(before);
            larger.table = Arc::new(table);
        }
    }

    /// This table, and the larger ones that it grows into, one after the other.
    pub fn and_larger(&self) -> impl Iterator<Item = &Table> {
        std::iter::successors(Some(self), |table| table.growth.as_ref().map(|larger| &*larger.table))
    }

    /// Whether two tables have the same larger ones, in the same stages.
    #[must_use]
    pub fn grows_like(&self, other: &Table) -> bool {
        let stages = |table: &Table| table.and_larger().map(|one| (one.born(), one.stage())).collect::<Vec<_>>();
        stages(self) == stages(other)
    }

    /// The table that this one grows into, if it grows.
    #[inline]
    #[must_use]
    pub fn growth(&self) -> Option<&Larger> {
        self.growth.as_ref()
    }

    /// How far this one has grown into a larger one, if it grows.
    #[inline]
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.growth.as_ref().map(|larger| larger.stage)
    }

    /// The generation of the catalog that entered the first of the tables that this one has grown
    /// from. Two tables with one origin are one table to a program.
    #[inline]
    #[must_use]
    pub fn origin(&self) -> u64 {
        self.entry.origin
    }

    /// The id of the newest table that this one is known to have grown into, or its own.
    #[inline]
    #[must_use]
    pub fn newest_id(&self) -> TableId {
        TableId(self.lineage.newest.load(Ordering::Relaxed) as u16)
    }

    /// Notes that this table has grown into another one.
    pub fn note_newest(&self, newest: &Table) {
        self.lineage.newest.fetch_max(Lineage::packed(newest.id, newest.born()), Ordering::Relaxed);
    }

    /// The lowest version that a record of this table may have. It is above each version that a
    /// table has given which this one has grown from, so that versions of a key never restart.
    #[inline]
    #[must_use]
    pub fn version_floor(&self) -> Version {
        version_floor(&self.entry)
    }

    /// The table's id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// The generation of the catalog that entered the table. With the id, it tells the table from
    /// every other one, also from one that has the same id later.
    #[inline]
    #[must_use]
    pub fn born(&self) -> u64 {
        self.entry.born
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.spec.name
    }

    /// What the catalog says of it.
    #[must_use]
    pub fn entry(&self) -> &TableEntry {
        &self.entry
    }

    /// The shape of the table's records.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> &RecordShape {
        &self.shape
    }

    /// The shape of the structural records of the table's index.
    #[inline]
    #[must_use]
    pub fn structural(&self) -> &RecordShape {
        &self.structural
    }

    /// How its index lies in a shard.
    #[must_use]
    pub fn index(&self) -> &dyn Index {
        match &self.geometry {
            Geometry::ClusterHash(geometry) => geometry,
            Geometry::FStore(geometry) => geometry,
        }
    }

    /// How the index lies in a shard, if it is the cluster-chaining hash table.
    #[must_use]
    pub fn cluster_hash(&self) -> Option<&cluster_hash::Geometry> {
        match &self.geometry {
            Geometry::ClusterHash(geometry) => Some(geometry),
            Geometry::FStore(_) => None,
        }
    }

    /// How the index lies in a shard, if it is FStore.
    #[inline]
    #[must_use]
    pub fn fstore(&self) -> Option<&fstore::Geometry> {
        match &self.geometry {
            Geometry::ClusterHash(_) => None,
            Geometry::FStore(geometry) => Some(geometry),
        }
    }

    /// The rows that each of its shards is made for.
    #[must_use]
    pub fn rows_of_shard(&self) -> u64 {
        match &self.geometry {
            Geometry::ClusterHash(geometry) => geometry.slots,
            Geometry::FStore(geometry) => geometry.rows(),
        }
    }

    /// Rows that all shards together have room for.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.rows_of_shard().saturating_mul(self.shards().into())
    }

    /// Bytes to READ for a bucket.
    #[inline]
    #[must_use]
    pub fn bucket_bytes(&self) -> usize {
        self.buckets.bytes as usize
    }

    /// Number of its shards.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// The shard of a key, by its place within the table, and its main bucket.
    #[inline]
    #[must_use]
    pub fn home(&self, hash: KeyHash) -> BucketRef {
        let shard = ((hash.scatter >> 48) * self.shards.len() as u64) >> 16;
        BucketRef { shard: shard as u16, bucket: self.buckets.home(hash.scatter) }
    }

    /// Where a record of this table is: its primary's slot.
    #[inline]
    #[must_use]
    pub fn primary(&self, pointer: Pointer) -> Address {
        self.replicas(pointer)[0].address(pointer.offset())
    }

    /// Where something else of a record's shard is, at its primary.
    #[must_use]
    pub fn primary_at(&self, pointer: Pointer, offset: u64) -> Address {
        self.replicas(pointer)[0].address(offset)
    }

    /// The replicas of a record, the primary first.
    #[inline]
    #[must_use]
    pub fn replicas(&self, pointer: Pointer) -> &[Replica] {
        &self.shards[usize::from(pointer.shard().0 - self.entry.shard_first.0)]
    }

    /// The replicas of a shard, by its place within the table.
    #[must_use]
    pub fn shard_replicas(&self, shard: u16) -> &[Replica] {
        &self.shards[usize::from(shard)]
    }

    /// The id of a shard, by its place within the table.
    #[inline]
    #[must_use]
    pub fn shard_id(&self, shard: u16) -> ShardId {
        ShardId(self.entry.shard_first.0 + shard)
    }

    /// Where to READ a bucket of the index.
    #[inline]
    #[must_use]
    pub fn bucket_address(&self, bucket: BucketRef) -> Address {
        self.shards[usize::from(bucket.shard)][0].address(self.buckets.at(bucket.bucket))
    }

    fn cache_number(&self, bucket: BucketRef) -> u64 {
        u64::from(bucket.shard) * self.buckets.count() + bucket.bucket
    }

    /// Where the cache believes a key to be.
    #[inline]
    #[must_use]
    pub fn cached(&self, home: BucketRef, hash: KeyHash) -> Option<Location> {
        let mut at = home;
        for _ in 0..CACHED_CHAIN_MAX {
            match self.cache.search(self.shard_id(at.shard), self.cache_number(at), hash.word) {
                Probe::Entry { location, .. } => return self.belongs(location).then_some(location),
                Probe::Link(offset) => at.bucket = self.buckets.number(offset)?,
                Probe::Absent => return None,
            }
        }
        None
    }

    /// Whether a location can be one of this table: what a cache or a torn bucket says may be
    /// anything.
    #[inline]
    fn belongs(&self, location: Location) -> bool {
        location.pointer.offset() + self.shape.record_bytes() as u64 <= self.shard_bytes
    }

    /// What a bucket that has been read says of a key, from a pair on. Keeps the bucket in the
    /// cache.
    #[must_use]
    pub fn probe(&self, at: BucketRef, words: &[u64], hash: KeyHash, from_slot: usize) -> Probe {
        self.cache.fill(self.cache_number(at), words);
        match search(self.shard_id(at.shard), |index| words.get(index).copied().unwrap_or(0), hash.word, from_slot) {
            Probe::Entry { location, .. } if !self.belongs(location) => Probe::Absent,
            probe => probe,
        }
    }

    /// The bucket that a link names; `None` if it is no bucket of this table.
    #[inline]
    #[must_use]
    pub fn linked(&self, from: BucketRef, offset: u64) -> Option<BucketRef> {
        Some(BucketRef { bucket: self.buckets.number(offset)?, ..from })
    }

    /// The location that an entry of the index names, in the shard of its key; `None` if it can be
    /// none of this table.
    #[must_use]
    pub fn located(&self, home: BucketRef, entry: u64) -> Option<Location> {
        let location = location(self.shard_id(home.shard), entry);
        self.belongs(location).then_some(location)
    }

    /// Keeps a location that was learned otherwise than by reading a bucket, for the next lookup of
    /// the key.
    pub fn learn(&self, home: BucketRef, hash: KeyHash, location: Location) {
        self.cache.learn(self.cache_number(home), hash, location);
    }

    /// A location of the cache has turned out wrong.
    #[cold]
    pub fn forget(&self, home: BucketRef, hash: KeyHash, location: Location) {
        let mut at = home;
        for _ in 0..CACHED_CHAIN_MAX {
            self.cache.forget(self.cache_number(at), location);
            let probe = self.cache.search(self.shard_id(at.shard), self.cache_number(at), hash.word);
            let Probe::Link(offset) = probe else { return };
            let Some(next) = self.linked(at, offset) else { return };
            at = next;
        }
    }
}

/// Bits of a version that count within one table. The bits above count how often the table has
/// grown.
const GROWTH_SHIFT: u32 = 42;

/// The lowest version that a record of a table may have.
pub(crate) fn version_floor(entry: &TableEntry) -> Version {
    let (floor, _) = Version::from_bits(u64::from(entry.growths) << GROWTH_SHIFT);
    floor
}
