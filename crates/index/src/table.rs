//! A table as a client sees it: its entry in the catalog, the places of its shards, and the
//! location cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::{Address, WORD_BYTES};
use remora_node::{IndexKind, Metadata, Pointer, Replica, ShardId, Stage, TableEntry, TableId};
use remora_record::{KeyHash, RecordShape, Version, structural};

use crate::buckets::{Buckets, Index};
use crate::cache::LocationCache;
use crate::cluster_hash::{self, Location, Probe, location, search};
use crate::error::IndexError;
use crate::{fstore, objects, race};

/// Longest chain that is followed in the cache, where a stale link could make a circle.
const CACHED_CHAIN_MAX: usize = 16;
/// Largest size of the location cache of one table, in bytes.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// An index bucket of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketRef {
    /// The shard's place within its table.
    pub shard: u16,
    /// The bucket's number within the shard. The indirect buckets come after the main ones.
    pub bucket: u64,
}

/// An open table: its entry in the catalog, the places of its shards, and the location cache. The
/// workers of a client share it.
#[derive(Clone, Debug)]
pub struct Table {
    id: TableId,
    entry: TableEntry,
    shape: RecordShape,
    /// The shape of the structural records of the table's index, if it has any.
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

/// The tables that have grown one from the other, as this process knows them. To a program they are
/// one table, and its handle may be the one of any of them.
#[derive(Debug)]
struct Lineage {
    /// The newest of these tables that this process has found by its name. The upper bits have its
    /// generation, and the lower bits its id.
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

/// The layout of the index in a table's shards.
#[derive(Clone, Copy, Debug)]
enum Geometry {
    ClusterHash(cluster_hash::Geometry),
    FStore(fstore::Geometry),
    Objects(objects::Geometry),
    Race(race::Geometry),
}

impl Table {
    /// Opens the table with this name by the catalog. Fails if no table has the name, or if the
    /// table cannot be used.
    pub fn open(metadata: &Metadata, name: &str) -> Result<Table, IndexError> {
        Table::open_with_cache(metadata, name, CACHE_BYTES_MAX)
    }

    /// Opens the table with this name, as [`Table::open`] does, with a location cache of at most
    /// `cache_bytes` bytes.
    pub fn open_with_cache(metadata: &Metadata, name: &str, cache_bytes: usize) -> Result<Table, IndexError> {
        let (id, entry) = metadata.table(name)?;
        Ok(Table::growing(metadata, (id, entry), cache_bytes, &Lineage::of(id, entry)))
    }

    /// Opens a table by its entry in the catalog.
    #[must_use]
    pub fn open_entry(metadata: &Metadata, (id, entry): (TableId, &TableEntry)) -> Table {
        Table::growing(metadata, (id, entry), CACHE_BYTES_MAX, &Lineage::of(id, entry))
    }

    /// Makes a table, with the larger tables that it grows into, one after the other.
    fn growing(
        metadata: &Metadata,
        (id, entry): (TableId, &TableEntry),
        cache_bytes: usize,
        lineage: &Arc<Lineage>,
    ) -> Table {
        let mut table = Table::of(metadata, id, entry, cache_bytes, lineage.clone());
        // Each larger table is younger than the one before. Otherwise the catalog is damaged.
        let larger = metadata.larger(id).filter(|(_, larger)| larger.born > entry.born);
        table.growth = larger.and_then(|larger| {
            let stage = larger.1.growth?.stage;
            Some(Larger { table: Arc::new(Table::growing(metadata, larger, cache_bytes, lineage)), stage })
        });
        table
    }

    /// Returns the table that has an id in the catalog, without a location cache, to look at it.
    /// The table may have been dropped, as long as its space is kept. Returns `None` if the table
    /// has no space.
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
            IndexKind::Objects => Geometry::Objects(objects::Geometry::of(spec)),
            IndexKind::Race => Geometry::Race(race::Geometry::of(spec)),
        };
        let first = usize::from(entry.shard_first.0);
        let shards =
            metadata.shards[first..first + usize::from(spec.shards)].iter().map(|shard| shard.replicas.clone());
        let buckets = match &geometry {
            Geometry::ClusterHash(geometry) => Index::buckets(geometry),
            Geometry::FStore(geometry) => geometry.buckets,
            Geometry::Objects(geometry) => geometry.buckets,
            Geometry::Race(geometry) => Index::buckets(geometry),
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

    /// Returns this table as a later catalog has it: its places now, and the table that it grows
    /// into, or has grown into. Both share the location cache, because cached locations name no
    /// nodes. Fails if the catalog does not have the table.
    pub fn moved(&self, metadata: &Metadata) -> Result<Table, IndexError> {
        let (id, entry) = metadata.table_of_origin(self.origin(), self.name())?;
        let mut moved = Table::growing(metadata, (id, entry), 0, &Lineage::of(id, entry));
        self.note_newest(&moved);
        moved.follow(self);
        Ok(moved)
    }

    /// Takes over the caches that this process has of the same tables, and their lineage.
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

    /// Returns this table, and the larger tables that it grows into, one after the other.
    pub fn and_larger(&self) -> impl Iterator<Item = &Table> {
        std::iter::successors(Some(self), |table| table.growth.as_ref().map(|larger| &*larger.table))
    }

    /// Returns whether two tables grow into the same larger tables, in the same stages.
    #[must_use]
    pub fn grows_like(&self, other: &Table) -> bool {
        let stages = |table: &Table| table.and_larger().map(|one| (one.born(), one.stage())).collect::<Vec<_>>();
        stages(self) == stages(other)
    }

    /// Returns the table that this one grows into, if it grows.
    #[inline]
    #[must_use]
    pub fn growth(&self) -> Option<&Larger> {
        self.growth.as_ref()
    }

    /// Returns how far this table has grown into a larger one, if it grows.
    #[inline]
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.growth.as_ref().map(|larger| larger.stage)
    }

    /// Returns the generation of the catalog that entered the first of the tables from which this
    /// one has grown. Two tables with one origin are one table to a program.
    #[inline]
    #[must_use]
    pub fn origin(&self) -> u64 {
        self.entry.origin
    }

    /// Returns the id of the newest table that this one is known to have grown into, or its own id.
    #[inline]
    #[must_use]
    pub fn newest_id(&self) -> TableId {
        TableId(self.lineage.newest.load(Ordering::Relaxed) as u16)
    }

    /// Notes that this table has grown into another one.
    pub fn note_newest(&self, newest: &Table) {
        self.lineage.newest.fetch_max(Lineage::packed(newest.id, newest.born()), Ordering::Relaxed);
    }

    /// Returns the lowest version that a record of this table may have. It is above every version
    /// that was given by the tables from which this one has grown, so versions of a key never
    /// restart.
    #[inline]
    #[must_use]
    pub fn version_floor(&self) -> Version {
        version_floor(&self.entry)
    }

    /// Returns the table's id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Returns the generation of the catalog that entered the table. Together with the id, it tells
    /// the table from every other one, even from a later table with the same id.
    #[inline]
    #[must_use]
    pub fn born(&self) -> u64 {
        self.entry.born
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.spec.name
    }

    /// Returns the table's entry in the catalog.
    #[must_use]
    pub fn entry(&self) -> &TableEntry {
        &self.entry
    }

    /// Returns the shape of the table's records.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> &RecordShape {
        &self.shape
    }

    /// Returns the shape of the structural records of the table's index.
    #[inline]
    #[must_use]
    pub fn structural(&self) -> &RecordShape {
        &self.structural
    }

    /// Returns the layout of the table's index in a shard.
    #[must_use]
    pub fn index(&self) -> &dyn Index {
        match &self.geometry {
            Geometry::ClusterHash(geometry) => geometry,
            Geometry::FStore(geometry) => geometry,
            Geometry::Objects(geometry) => geometry,
            Geometry::Race(geometry) => geometry,
        }
    }

    /// Returns the layout of the index in a shard, if it is the cluster-chaining hash table.
    #[must_use]
    pub fn cluster_hash(&self) -> Option<&cluster_hash::Geometry> {
        match &self.geometry {
            Geometry::ClusterHash(geometry) => Some(geometry),
            Geometry::FStore(_) | Geometry::Objects(_) | Geometry::Race(_) => None,
        }
    }

    /// Returns the layout of the index in a shard, if it is FStore.
    #[inline]
    #[must_use]
    pub fn fstore(&self) -> Option<&fstore::Geometry> {
        match &self.geometry {
            Geometry::ClusterHash(_) | Geometry::Objects(_) | Geometry::Race(_) => None,
            Geometry::FStore(geometry) => Some(geometry),
        }
    }

    /// Returns the layout of the index in a shard, if its buckets have objects.
    #[inline]
    #[must_use]
    pub fn objects(&self) -> Option<&objects::Geometry> {
        match &self.geometry {
            Geometry::ClusterHash(_) | Geometry::FStore(_) | Geometry::Race(_) => None,
            Geometry::Objects(geometry) => Some(geometry),
        }
    }

    /// Returns the layout of an extent, if the table is an extent of a RACE hash table.
    #[must_use]
    pub fn race(&self) -> Option<&race::Geometry> {
        match &self.geometry {
            Geometry::ClusterHash(_) | Geometry::FStore(_) | Geometry::Objects(_) => None,
            Geometry::Race(geometry) => Some(geometry),
        }
    }

    /// Returns whether clients change the index by themselves. Otherwise the CPUs of memory nodes
    /// do, at the request of clients.
    #[inline]
    #[must_use]
    pub fn is_changed_by_clients(&self) -> bool {
        !matches!(self.geometry, Geometry::ClusterHash(_))
    }

    /// Returns the number of rows for which each shard of the table is made.
    #[must_use]
    pub fn rows_of_shard(&self) -> u64 {
        match &self.geometry {
            Geometry::ClusterHash(geometry) => geometry.slots,
            Geometry::FStore(geometry) => geometry.rows(),
            Geometry::Objects(geometry) => geometry.rows(),
            Geometry::Race(geometry) => geometry.units,
        }
    }

    /// Returns the number of rows for which all shards together have room.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.rows_of_shard().saturating_mul(self.shards().into())
    }

    /// Returns the number of bytes to READ for a bucket.
    #[inline]
    #[must_use]
    pub fn bucket_bytes(&self, bucket: BucketRef) -> usize {
        self.buckets.bytes_of(bucket.bucket) as usize
    }

    /// Returns the number of the table's shards.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Returns the shard of a key, by its place within the table, and the key's main bucket.
    #[inline]
    #[must_use]
    pub fn home(&self, hash: KeyHash) -> BucketRef {
        let shard = ((hash.scatter >> 48) * self.shards.len() as u64) >> 16;
        BucketRef { shard: shard as u16, bucket: self.buckets.home(hash.scatter) }
    }

    /// Returns the address of a record's slot at its primary.
    #[inline]
    #[must_use]
    pub fn primary(&self, pointer: Pointer) -> Address {
        self.replicas(pointer)[0].address(pointer.offset())
    }

    /// Returns the address of another offset of a record's shard, at its primary.
    #[must_use]
    pub fn primary_at(&self, pointer: Pointer, offset: u64) -> Address {
        self.replicas(pointer)[0].address(offset)
    }

    /// Returns the replicas of a record, the primary first.
    #[inline]
    #[must_use]
    pub fn replicas(&self, pointer: Pointer) -> &[Replica] {
        &self.shards[usize::from(pointer.shard().0 - self.entry.shard_first.0)]
    }

    /// Returns the replicas of a shard, the primary first. `shard` is the shard's place within the
    /// table.
    #[must_use]
    pub fn shard_replicas(&self, shard: u16) -> &[Replica] {
        &self.shards[usize::from(shard)]
    }

    /// Returns the id of a shard, by its place within the table.
    #[inline]
    #[must_use]
    pub fn shard_id(&self, shard: u16) -> ShardId {
        ShardId(self.entry.shard_first.0 + shard)
    }

    /// Returns whether this is the id of one of the table's shards.
    #[inline]
    #[must_use]
    pub fn has_shard(&self, shard: ShardId) -> bool {
        shard.0.checked_sub(self.entry.shard_first.0).is_some_and(|number| number < self.shards())
    }

    /// Returns the address of the word that bounds the times of deletes whose keys a shard's index
    /// does not have any more. The host keeps the word, where it unlinks
    /// ([`Discipline::unlinks_by_cpu`](remora_node::Discipline::unlinks_by_cpu)).
    #[must_use]
    pub fn gone_address(&self, shard: u16) -> Address {
        self.shards[usize::from(shard)][0].address((cluster_hash::HEADER_GONE_WORD * WORD_BYTES) as u64)
    }

    /// Returns the address at which to READ a bucket of the index.
    #[inline]
    #[must_use]
    pub fn bucket_address(&self, bucket: BucketRef) -> Address {
        self.shards[usize::from(bucket.shard)][0].address(self.buckets.at(bucket.bucket))
    }

    fn cache_number(&self, bucket: BucketRef) -> u64 {
        u64::from(bucket.shard) * self.buckets.count() + bucket.bucket
    }

    /// Prefetches into the processor's cache what [`Table::cached`] looks at.
    #[inline]
    pub fn prefetch_cached(&self, home: BucketRef) {
        self.cache.prefetch(self.cache_number(home));
    }

    /// Returns the location of a key in the cache, if the cache has one. It may be stale.
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

    /// Returns the bytes that the location cache takes, however many locations it has.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Counts the locations that the location cache has. This looks at the whole cache.
    #[must_use]
    pub fn cached_locations(&self) -> usize {
        self.cache.count()
    }

    /// Returns whether a location can be one of this table. A cache or a torn bucket may have any
    /// words.
    #[inline]
    fn belongs(&self, location: Location) -> bool {
        location.pointer.offset() + self.shape.record_bytes() as u64 <= self.shard_bytes
    }

    /// Searches a bucket that was read for a key, from the pair `from_slot` on. Keeps the bucket in
    /// the cache.
    #[must_use]
    pub fn probe(&self, at: BucketRef, words: &[u64], hash: KeyHash, from_slot: usize) -> Probe {
        self.cache.fill(self.cache_number(at), words);
        match search(self.shard_id(at.shard), |index| words.get(index).copied().unwrap_or(0), hash.word, from_slot) {
            Probe::Entry { location, .. } if !self.belongs(location) => Probe::Absent,
            probe => probe,
        }
    }

    /// Returns the bucket that a link names, or `None` if it is no bucket of this table.
    #[inline]
    #[must_use]
    pub fn linked(&self, from: BucketRef, offset: u64) -> Option<BucketRef> {
        Some(BucketRef { bucket: self.buckets.number(offset)?, ..from })
    }

    /// Returns the location that an entry of the index names, in the shard of its key, or `None` if
    /// it cannot be one of this table.
    #[must_use]
    pub fn located(&self, home: BucketRef, entry: u64) -> Option<Location> {
        let location = location(self.shard_id(home.shard), entry);
        self.belongs(location).then_some(location)
    }

    /// Keeps a location in the cache that was learned without a READ of a bucket, for the next
    /// lookup of the key.
    pub fn learn(&self, home: BucketRef, hash: KeyHash, location: Location) {
        self.cache.learn(self.cache_number(home), hash, location);
    }

    /// Removes a location from the cache that has turned out to be wrong.
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

/// Number of the lower bits of a version that count within one table. The bits above count how
/// often the table has grown.
const GROWTH_SHIFT: u32 = 42;

/// Returns the lowest version that a record of a table may have.
pub(crate) fn version_floor(entry: &TableEntry) -> Version {
    let (floor, _) = Version::from_bits(u64::from(entry.growths) << GROWTH_SHIFT);
    floor
}
