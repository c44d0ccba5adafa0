//! DrTM's key-value store (TOCS 2017, sections 6.2 and 6.3), which is Remora's own hash table and
//! location cache ([`remora::floors::index`]), looked up without a transaction.
//!
//! The buckets have 128 bytes, as in the text. Seven of their eight slots name pairs, and the
//! eighth is the link; in the text, the eighth slot becomes a link only when a bucket overflows.

use std::sync::atomic::Ordering;

use remora::floors::index::cluster_hash::{BUCKET_BYTES, BUCKET_SLOTS, Geometry, HEADER_INDIRECT_WORD};
use remora::floors::index::{BucketRef, Loader, Location, Probe, Table, bulk_load};
use remora::floors::node::{
    Discipline, Fingerprint, Grows, IndexKind, Metadata, ReadScheme, Replica, ShardId, ShardPlacement, TableEntry,
    TableId, TableSpec, node,
};
use remora::floors::record::{FetchedRecord, Key, layout};
use remora_fabric::sim::{Sim, SimOptions};
use remora_fabric::{ClientId, Fabric as _, FabricError, Lane, NodeId, WORD_BYTES, block_on};

use zerocopy::IntoBytes;

use super::{Pairs, read};
use crate::hardware::CalibrationError;
use crate::reproduce::ReproduceError;

const NAME: &str = "pairs";

/// A table, as its bytes lie in the memory node's region.
#[derive(Clone, Debug)]
pub struct Cluster {
    metadata: Metadata,
    geometry: Geometry,
    words: Vec<u64>,
}

/// What the clients of one machine have of a table: its description, and a location cache.
#[derive(Clone, Debug)]
pub struct Store {
    table: Table,
    is_cached: bool,
}

impl Cluster {
    /// Loads pairs into a table whose main buckets are filled to `occupancy` percent, at least one.
    ///
    /// # Errors
    ///
    /// Fails if values are too large for a record, or if the simulation has no memory for the
    /// table.
    pub fn load(pairs: &Pairs, occupancy: u64, options: &SimOptions) -> Result<Cluster, ReproduceError> {
        let layout = layout(WORD_BYTES, pairs.value_bytes, ReadScheme::Checksum).map_err(ReproduceError::Record)?;
        let buckets = (100 * pairs.count).div_ceil(occupancy * BUCKET_SLOTS as u64);
        // An indirect bucket for each main bucket is more than chance gives.
        let indirect = buckets;
        let geometry = Geometry { buckets, indirect, slots: pairs.count, slot_bytes: layout.slot_bytes.into() };
        let spec = TableSpec {
            name: NAME.to_owned(),
            schema: String::new(),
            fingerprint: Fingerprint(0),
            layout,
            index: IndexKind::ClusterHash,
            discipline: Discipline::OCC_ONE_SIDED,
            shards: 1,
            replicas: 1,
            buckets,
            indirect,
            slots: pairs.count,
            indirect_slots: 0,
            shard_bytes: geometry.bytes(),
            grows: Grows::WhenTold,
        };
        let shard_first = ShardId(0);
        let (creator, growth, dropped) = (None, None, None);
        let entry = TableEntry { spec, shard_first, creator, born: 1, origin: 1, growths: 0, growth, dropped };
        let replicas = vec![Replica { node: NodeId(0), region: node::REGION, base: 0, joining: false }];
        let metadata = Metadata {
            tables: vec![entry],
            shards: vec![ShardPlacement { table: TableId(0), bytes: geometry.bytes(), replicas }],
            ..Metadata::default()
        };
        let table = Table::open_with_cache(&metadata, NAME, 0)?;
        let sim = Sim::new(&[vec![geometry.bytes() as usize]], options).map_err(CalibrationError::from)?;
        sim.instant(true);
        let client = ClientId(1);
        let load = async |lane: &Lane| {
            bulk_load(lane, &table, Loader::steady(client.0), &mut |take| {
                let mut value = vec![0; pairs.value_words()];
                (0..pairs.count).try_for_each(|number| {
                    let key = pairs.key(number);
                    pairs.write_value(key, &mut value);
                    take(&key_of(key), &value.as_bytes()[..pairs.value_bytes])
                })
            })
            .await
        };
        block_on(&sim, client, load).map_err(CalibrationError::from)??;
        let region = sim.region(NodeId(0), node::REGION);
        let words = region
            .map_or_else(Vec::new, |region| region.words().iter().map(|word| word.load(Ordering::Relaxed)).collect());
        Ok(Cluster { metadata, geometry, words })
    }

    /// Returns the words of the region.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the bytes of all buckets that are in use.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        (self.geometry.buckets + self.words[HEADER_INDIRECT_WORD]) as usize * BUCKET_BYTES
    }

    /// Opens the table for the clients of one machine. `share` is the part of the index for which
    /// their cache has room. `None` means that they have no cache.
    ///
    /// # Errors
    ///
    /// No case is known.
    pub fn open(&self, share: Option<f64>) -> Result<Store, ReproduceError> {
        let bytes = share.map_or(0, |share| (share * self.index_bytes() as f64) as usize);
        Ok(Store { table: Table::open_with_cache(&self.metadata, NAME, bytes)?, is_cached: share.is_some() })
    }

    /// Fills a machine's cache as lookups of these keys do, which take no virtual time here.
    pub fn warm(&self, store: &Store, keys: impl Iterator<Item = u64>) {
        for key in keys {
            let hash = key_of(key).hash();
            let home = store.table.home(hash);
            let mut at = store.table.cached(home, hash).is_none().then_some(home);
            while let Some(bucket) = at {
                let from = self.geometry.bucket_at(bucket.bucket) as usize / WORD_BYTES;
                let words = &self.words[from..from + BUCKET_BYTES / WORD_BYTES];
                at = match store.table.probe(bucket, words, hash, 0) {
                    Probe::Link(offset) => store.table.linked(bucket, offset),
                    Probe::Entry { .. } | Probe::Absent => None,
                };
            }
        }
    }
}

impl Store {
    /// Looks a key up, and returns the first word of its value. Returns `None` if the table does
    /// not have the key. Fails if the memory node cannot be reached.
    ///
    /// A location from the cache is one READ, of the record. Otherwise the buckets of the key's
    /// chain are READ, and kept in the cache.
    pub async fn get(&self, lane: &Lane, key: u64) -> Result<Option<u64>, FabricError> {
        let key = key_of(key);
        let hash = key.hash();
        let home = self.table.home(hash);
        let cached = if self.is_cached { self.table.cached(home, hash) } else { None };
        if let Some(location) = cached {
            if let Some(found) = self.value(lane, &key, location).await? {
                return Ok(Some(found));
            }
            self.table.forget(home, hash, location);
        }
        let mut next = Some((home, 0));
        while let Some((bucket, from)) = next {
            next = match self.probe(lane, bucket, &key, from).await? {
                Probe::Entry { location, slot } => match self.value(lane, &key, location).await? {
                    Some(found) => return Ok(Some(found)),
                    None => Some((bucket, slot + 1)),
                },
                Probe::Link(offset) => self.table.linked(bucket, offset).map(|bucket| (bucket, 0)),
                Probe::Absent => None,
            };
        }
        Ok(None)
    }

    async fn probe(&self, lane: &Lane, at: BucketRef, key: &Key, from: usize) -> Result<Probe, FabricError> {
        let words = read(lane, self.table.bucket_address(at), BUCKET_BYTES).await?;
        Ok(self.table.probe(at, &words, key.hash(), from))
    }

    /// READs the record at a location, if it is whole and the key's. Returns the first word of its
    /// value.
    async fn value(&self, lane: &Lane, key: &Key, location: Location) -> Result<Option<u64>, FabricError> {
        let shape = self.table.shape();
        let words = read(lane, self.table.primary(location.pointer), shape.record_bytes()).await?;
        let Ok(record) = FetchedRecord::new(&words, shape).check() else { return Ok(None) };
        let mut first = [0];
        record.first_words(&mut first);
        let is_its_own = record.has_key(key.words()) && record.incarnation() == location.incarnation;
        Ok((is_its_own && record.is_present()).then_some(first[0]))
    }
}

fn key_of(key: u64) -> Key {
    Key::new(&key.to_be_bytes()).unwrap_or_else(|| unreachable!("a table's keys may have eight bytes"))
}
