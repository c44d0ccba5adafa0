//! Bulk load: builds the shards of an empty table in the client's memory and writes them to every replica.

use remora_fabric::{Lane, WORD_BYTES};
use remora_memory::{Pointer, metadata};
use remora_sync::{IMAGE_AT, Key, KeyHash, Life, Version};
use zerocopy::IntoBytes;

use crate::cluster_hash::{
    BUCKET_SLOTS, Geometry, HEADER_BYTES, HEADER_INDIRECT_WORD, HEADER_SLOTS_WORD, Location, entry_word, is_empty,
    link_word, linked_bucket, offset,
};
use crate::error::IndexError;
use crate::table::Table;

/// Loads rows into an empty table. Returns how many. Nothing of the table may be in use.
pub async fn bulk_load<V: AsRef<[u8]>>(
    lane: &Lane,
    table: &Table,
    rows: impl Iterator<Item = (Key, V)>,
) -> Result<u64, IndexError> {
    for shard in 0..table.shards() {
        let mut round = lane.round();
        let header = round.read(table.shard_replicas(shard)[0].address(0), HEADER_BYTES as usize);
        if lane.execute(round).await?.words(header)[HEADER_SLOTS_WORD] != 0 {
            return Err(IndexError::NotEmpty(table.name().to_owned()));
        }
    }
    let mut builders: Vec<Builder> = (0..table.shards()).map(|shard| Builder::new(table, shard)).collect();
    let mut count = 0;
    for (key, value) in rows {
        count += 1;
        let shard = table.home(key.hash()).shard;
        builders[usize::from(shard)].add(&key, value.as_ref(), count)?;
    }
    for builder in builders {
        builder.write(lane).await?;
    }
    Ok(count)
}

/// A shard being built.
struct Builder<'t> {
    table: &'t Table,
    shard: u16,
    geometry: Geometry,
    /// Header and buckets.
    index: Vec<u64>,
    slots: Vec<u64>,
    indirect_used: u64,
    image: Vec<u64>,
}

impl<'t> Builder<'t> {
    fn new(table: &'t Table, shard: u16) -> Builder<'t> {
        let geometry = *table.geometry();
        let index_bytes = geometry.slot_at(0) as usize;
        Builder {
            table,
            shard,
            geometry,
            index: vec![0; index_bytes / WORD_BYTES],
            slots: Vec::new(),
            indirect_used: 0,
            image: Vec::new(),
        }
    }

    fn rows(&self) -> u64 {
        (self.slots.len() * WORD_BYTES) as u64 / self.geometry.slot_bytes
    }

    fn add(&mut self, key: &Key, value: &[u8], rows: u64) -> Result<(), IndexError> {
        let layout = &self.table.entry().spec.layout;
        self.check_size(
            "key",
            key.bytes().len(),
            layout.key_bytes.into(),
            key.bytes().len() == usize::from(layout.key_bytes),
        )?;
        self.check_size("value", value.len(), layout.value_max as usize, value.len() <= layout.value_max as usize)?;
        let number = self.rows();
        if number == self.geometry.slots {
            return Err(IndexError::Full {
                table: self.table.name().to_owned(),
                what: "record slots of a shard",
                rows,
            });
        }
        let pointer = Pointer::new(self.table.shard_id(self.shard), self.geometry.slot_at(number));
        let location = Location { pointer, incarnation: 1 };
        let hash = key.hash();
        let pair = self.place(key, hash, rows)?;
        self.index[pair] = entry_word(location);
        self.index[pair + 1] = hash.word;
        self.image.clear();
        self.table.shape().encode(
            Version::LOADED,
            Life::Present { incarnation: 1 },
            key.words(),
            value,
            &mut self.image,
        );
        let start = self.slots.len();
        self.slots.resize(start + self.geometry.slot_bytes as usize / WORD_BYTES, 0);
        let image_at = start + IMAGE_AT as usize / WORD_BYTES;
        self.slots[image_at..image_at + self.image.len()].copy_from_slice(&self.image);
        Ok(())
    }

    fn check_size(&self, what: &'static str, bytes: usize, expected: usize, fits: bool) -> Result<(), IndexError> {
        if fits { Ok(()) } else { Err(IndexError::Size { table: self.table.name().to_owned(), what, bytes, expected }) }
    }

    /// The pair for a key, by its place in the index: the first empty one of its chain, which grows by a bucket if it has
    /// none.
    fn place(&mut self, key: &Key, hash: KeyHash, rows: u64) -> Result<usize, IndexError> {
        let mut bucket = self.table.home(hash).bucket;
        loop {
            for pair in (0..BUCKET_SLOTS).map(|slot| self.geometry.pair_at(bucket, slot) as usize / WORD_BYTES) {
                let word = self.index[pair];
                if is_empty(word) {
                    return Ok(pair);
                }
                if self.index[pair + 1] == hash.word && self.holds(word, key) {
                    let key = format!("{key:?}");
                    return Err(IndexError::Duplicate { table: self.table.name().to_owned(), key });
                }
            }
            let link = self.geometry.link_at(bucket) as usize / WORD_BYTES;
            if let Some(next) = linked_bucket(self.index[link]).and_then(|at| self.geometry.bucket_number(at)) {
                bucket = next;
                continue;
            }
            if self.indirect_used == self.geometry.indirect {
                let table = self.table.name().to_owned();
                return Err(IndexError::Full { table, what: "indirect buckets of a shard's index", rows });
            }
            bucket = self.geometry.buckets + self.indirect_used;
            self.index[link] = link_word(self.geometry.bucket_at(bucket));
            self.indirect_used += 1;
        }
    }

    /// Whether the record that an entry names has this very key.
    fn holds(&self, word: u64, key: &Key) -> bool {
        let start = (offset(word) - self.geometry.slot_at(0)) as usize / WORD_BYTES;
        let words = &self.slots[start..][..self.table.shape().record_bytes() / WORD_BYTES];
        let record = remora_sync::FetchedRecord::new(words, self.table.shape()).check();
        record.is_ok_and(|record| record.has_key(key.words()))
    }

    /// The header's floor stays 0: no version is above [`Version::LOADED`] yet.
    async fn write(mut self, lane: &Lane) -> Result<(), IndexError> {
        self.index[HEADER_SLOTS_WORD] = self.rows();
        self.index[HEADER_INDIRECT_WORD] = self.indirect_used;
        for replica in self.table.shard_replicas(self.shard) {
            metadata::write_bytes(lane, replica.address(self.geometry.slot_at(0)), self.slots.as_bytes()).await?;
            metadata::write_bytes(lane, replica.address(0), self.index.as_bytes()).await?;
        }
        Ok(())
    }
}
