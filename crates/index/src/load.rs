//! Bulk load: a client builds the shards of an empty table in its own memory, and writes them to
//! every replica.
//!
//! A client that dies while it writes leaves a table that is neither empty nor whole. So the header
//! of each shard names the client while it writes. The client writes its name to all primaries
//! before anything else, and takes it out of all replicas when everything is written. The next load
//! finds the name, and first empties the table ([`clear`]), once that client cannot write any more.
//!
//! The client writes its name before it makes the rows ([`begin`]), so that a client that drops the
//! table finds the name.

use remora_fabric::{Lane, WORD_BYTES};
use remora_node::{MemoryError, Pointer, Replica, metadata};
use remora_record::{FetchedRecord, Key, KeyHash, Life, Place, RecordShape, Version};
use zerocopy::IntoBytes;

use crate::cluster_hash::{
    BUCKET_SLOTS, Geometry, HEADER_BYTES, HEADER_INDIRECT_WORD, HEADER_SLOTS_WORD, Location, entry_word, is_empty,
    link_word, linked_bucket, offset,
};
use crate::error::IndexError;
use crate::fstore;
use crate::objects;
use crate::table::Table;

/// The word of a shard's header that names the client that loads the table. It is 0 if no client
/// does.
const LOADER_WORD: usize = HEADER_BYTES as usize / WORD_BYTES - 1;

/// A client that loads rows, and how it learns whether to go on.
#[derive(Clone, Copy)]
pub struct Loader<'l> {
    /// The client's number.
    pub client: u32,
    /// A function that the load calls now and then, and that fails if the load is to end. Then the
    /// table is still empty, or the next load empties it.
    pub goes_on: &'l dyn Fn() -> Result<(), MemoryError>,
}

impl Loader<'static> {
    /// Makes the loader of a client that goes on until it has loaded everything.
    #[must_use]
    pub fn steady(client: u32) -> Loader<'static> {
        Loader { client, goes_on: &|| Ok(()) }
    }
}

/// A function that takes a row. It fails if the table has no room for the row.
pub type TakeRow<'t> = &'t mut dyn FnMut(&Key, &[u8]) -> Result<(), IndexError>;

/// Loads rows into an empty table, and returns their number. No client may use the table meanwhile.
/// `rows` gives every row to the function that it gets, and ends with the first error of that
/// function. Fails if the table has no room, if a key occurs twice, if a row has the wrong size, or
/// if a memory node is unreachable.
pub async fn bulk_load(
    lane: &Lane,
    table: &Table,
    loader: Loader<'_>,
    rows: &mut dyn FnMut(TakeRow<'_>) -> Result<(), IndexError>,
) -> Result<u64, IndexError> {
    begin(lane, table, loader.client).await?;
    let mut builders = builders(table);
    let mut count = 0;
    let made = rows(&mut |key, value| {
        (loader.goes_on)()?;
        count += 1;
        check_sizes(table, key, value)?;
        let shard = table.home(key.hash()).shard;
        builders[usize::from(shard)].add(key, value, count)
    });
    if let Err(error) = made {
        give_up(lane, table).await?;
        return Err(error);
    }
    write_all(lane, table, loader, builders).await?;
    Ok(count)
}

/// The word of a shard's header that counts the loaded rows, where clients change the index. In
/// FStore it comes after the structural record.
const LOADED_WORD: usize = 9;
const _: () = assert!(LOADED_WORD == objects::LOADED_WORD);

/// Loads rows from parts into an empty table, and returns their number. `parts.threads` threads
/// make the parts, sort their rows by shard, and lay the shards out. Only the calling thread writes
/// to the memory nodes. The table does not depend on the number of threads. `loaded` is called with
/// the number of rows that have been laid out since its last call. Fails as [`bulk_load`] does.
pub async fn bulk_load_parts(
    lane: &Lane,
    table: &Table,
    loader: Loader<'_>,
    parts: Parts<'_>,
    loaded: &mut dyn FnMut(u64),
) -> Result<u64, IndexError> {
    begin(lane, table, loader.client).await?;
    let mut builders = builders(table);
    match make_parts(table, loader, &parts, &mut builders, loaded) {
        Ok(count) => {
            write_all(lane, table, loader, builders).await?;
            Ok(count)
        }
        Err(error) => {
            give_up(lane, table).await?;
            Err(error)
        }
    }
}

/// Makes the rows of all parts, and lays them out. Returns their number.
fn make_parts(
    table: &Table,
    loader: Loader<'_>,
    parts: &Parts<'_>,
    builders: &mut [Box<dyn Build + '_>],
    loaded: &mut dyn FnMut(u64),
) -> Result<u64, IndexError> {
    let mut count = 0;
    let mut first = 0;
    while first < parts.count {
        (loader.goes_on)()?;
        let end = parts.count.min(first + parts.threads.max(1) as u64);
        let binned = side_by_side((first..end).collect(), |part| {
            let mut bins: Vec<Rows> = (0..table.shards()).map(|_| Rows::default()).collect();
            (parts.make)(part, &mut |key, value| {
                check_sizes(table, key, value)?;
                bins[usize::from(table.home(key.hash()).shard)].push(key, value);
                Ok(())
            })?;
            Ok(bins)
        })?;
        let rows: usize = binned.iter().flatten().map(|bin| bin.ends.len()).sum();
        count += rows as u64;
        // Each shard gets its rows in the order of the parts.
        side_by_side(builders.iter_mut().enumerate().collect(), |(shard, builder)| {
            binned
                .iter()
                .try_for_each(|bins| bins[shard].iter().try_for_each(|(key, value)| builder.add(key, value, count)))
        })?;
        loaded(rows as u64);
        first = end;
    }
    Ok(count)
}

/// A function that makes one part of a table's rows. It gives each row to the function that it
/// gets, and ends with the first error of that function.
pub type MakePart<'p> = &'p (dyn Fn(u64, TakeRow<'_>) -> Result<(), IndexError> + Sync);

/// The rows of a table, in parts that several threads can make at once.
pub struct Parts<'p> {
    /// Number of parts.
    pub count: u64,
    /// Makes the part with this number.
    pub make: MakePart<'p>,
    /// Number of threads, each of which makes one part at a time.
    pub threads: usize,
}

/// Rows of one shard.
#[derive(Default)]
struct Rows {
    /// Each key, and the offset at which its value ends.
    ends: Vec<(Key, usize)>,
    values: Vec<u8>,
}

impl Rows {
    fn push(&mut self, key: &Key, value: &[u8]) {
        self.values.extend_from_slice(value);
        self.ends.push((*key, self.values.len()));
    }

    fn iter(&self) -> impl Iterator<Item = (&Key, &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(key, end)| (key, &self.values[std::mem::replace(&mut start, *end)..*end]))
    }
}

/// A shard being built.
trait Build: Send {
    fn add(&mut self, key: &Key, value: &[u8], rows: u64) -> Result<(), IndexError>;
    /// Returns the words that are to be written to every replica, with their offsets, in the order
    /// of writing. The header comes last, and names the loader.
    fn finish(&mut self, loader: u32) -> Vec<(u64, &[u8])>;
}

/// Returns a builder for each shard of a table.
fn builders(table: &Table) -> Vec<Box<dyn Build + '_>> {
    let builder = |shard| -> Box<dyn Build + '_> {
        match (table.cluster_hash(), table.fstore(), table.objects()) {
            (Some(geometry), ..) => Box::new(ClusterHash::new(table, *geometry, shard)),
            (_, Some(geometry), _) => Box::new(FStore::new(table, *geometry)),
            (.., Some(geometry)) => Box::new(Objects::new(table, *geometry)),
            (None, None, None) => unreachable!("a table has one of the three"),
        }
    };
    (0..table.shards()).map(builder).collect()
}

/// Names in an empty table the client that is about to load rows. Does nothing if the client is
/// named already. The caller makes sure that no client drops the table meanwhile. Fails if the
/// table is not empty.
pub async fn begin(lane: &Lane, table: &Table, client: u32) -> Result<(), IndexError> {
    match check_empty(lane, table).await {
        Err(IndexError::Loading { client: named, .. }) if named == client => Ok(()),
        Ok(()) => Ok(name_loader(lane, primaries(table), client).await?),
        refused => refused,
    }
}

/// Takes the name of a client out of a table again. The client must not have written any rows.
pub async fn give_up(lane: &Lane, table: &Table) -> Result<(), MemoryError> {
    name_loader(lane, replicas(table), 0).await
}

/// Names a client that is about to load rows, in place of the one that is named, which cannot write
/// any more. The caller then empties the table ([`clear`]).
pub async fn take_over(lane: &Lane, table: &Table, client: u32) -> Result<(), MemoryError> {
    name_loader(lane, primaries(table), client).await
}

/// Returns the client that loads rows into a table, or that was loading when it died, if there is
/// one.
pub async fn loader(lane: &Lane, table: &Table) -> Result<Option<u32>, IndexError> {
    match check_empty(lane, table).await {
        Err(IndexError::Loading { client, .. }) => Ok(Some(client)),
        Ok(()) | Err(IndexError::NotEmpty(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails if a table has rows, or if a client loads rows into it, or was loading when it died.
pub async fn check_empty(lane: &Lane, table: &Table) -> Result<(), IndexError> {
    let loaded_word = if table.is_changed_by_clients() { LOADED_WORD } else { HEADER_SLOTS_WORD };
    let mut has_rows = false;
    for shard in 0..table.shards() {
        let mut round = lane.round();
        let header = round.read(table.shard_replicas(shard)[0].address(0), HEADER_BYTES as usize);
        let done = lane.execute(round).await?;
        let words = done.words(header);
        if words[LOADER_WORD] != 0 {
            return Err(IndexError::Loading { table: table.name().to_owned(), client: words[LOADER_WORD] as u32 });
        }
        has_rows |= words[loaded_word] != 0;
    }
    if has_rows { Err(IndexError::NotEmpty(table.name().to_owned())) } else { Ok(()) }
}

/// Empties a table into which a client was loading rows that cannot write any more. The table names
/// the client `client`, which empties it, and goes on to name it.
pub async fn clear(lane: &Lane, table: &Table, client: u32) -> Result<(), IndexError> {
    let bytes = table.entry().spec.shard_bytes;
    for replica in replicas(table) {
        metadata::zero(lane, replica.address(HEADER_BYTES), bytes - HEADER_BYTES).await?;
    }
    // The headers come last, because they say that the table is not empty.
    let mut header = [0; HEADER_BYTES as usize / WORD_BYTES];
    header[LOADER_WORD] = client.into();
    for replica in replicas(table) {
        let mut round = lane.round();
        round.write_words(replica.address(0), &header);
        lane.execute(round).await?;
    }
    Ok(())
}

fn primaries(table: &Table) -> impl Iterator<Item = &Replica> {
    (0..table.shards()).map(|shard| &table.shard_replicas(shard)[0])
}

fn replicas(table: &Table) -> impl Iterator<Item = &Replica> {
    (0..table.shards()).flat_map(|shard| table.shard_replicas(shard))
}

/// Writes the shards that have been built. The table names the loader meanwhile.
async fn write_all(
    lane: &Lane,
    table: &Table,
    loader: Loader<'_>,
    builders: Vec<Box<dyn Build + '_>>,
) -> Result<(), MemoryError> {
    if let Err(error) = (loader.goes_on)() {
        give_up(lane, table).await?;
        return Err(error);
    }
    for (shard, mut builder) in (0..table.shards()).zip(builders) {
        let pieces = builder.finish(loader.client);
        for replica in table.shard_replicas(shard) {
            for (offset, bytes) in &pieces {
                metadata::write_bytes(lane, replica.address(*offset), bytes).await?;
            }
        }
        (loader.goes_on)()?;
    }
    name_loader(lane, replicas(table), 0).await
}

async fn name_loader<'r>(
    lane: &Lane,
    replicas: impl Iterator<Item = &'r Replica>,
    loader: u32,
) -> Result<(), MemoryError> {
    for replica in replicas {
        let mut round = lane.round();
        round.write_words(replica.address((LOADER_WORD * WORD_BYTES) as u64), &[loader.into()]);
        lane.execute(round).await?;
    }
    Ok(())
}

/// Fails if a row's key or value has the wrong size for the table.
fn check_sizes(table: &Table, key: &Key, value: &[u8]) -> Result<(), IndexError> {
    let layout = &table.entry().spec.layout;
    let check = |what, bytes: usize, expected: usize, fits: bool| {
        if fits { Ok(()) } else { Err(IndexError::Size { table: table.name().to_owned(), what, bytes, expected }) }
    };
    let key_bytes = key.bytes().len();
    check("key", key_bytes, layout.key_bytes.into(), key_bytes == usize::from(layout.key_bytes))?;
    check("value", value.len(), layout.value_max as usize, value.len() <= layout.value_max as usize)
}

/// Calls `each` for several items at once. Each call runs on its own thread, and the last one on
/// the calling thread.
fn side_by_side<T: Send, R: Send>(
    mut all: Vec<T>,
    work: impl Fn(T) -> Result<R, IndexError> + Sync,
) -> Result<Vec<R>, IndexError> {
    let Some(last) = all.pop() else { return Ok(Vec::new()) };
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        let last = work(last);
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let mut done = threads.into_iter().map(join).collect::<Result<Vec<R>, _>>()?;
        done.push(last?);
        Ok(done)
    })
}

/// Builds a shard of the cluster-chaining hash table.
struct ClusterHash<'t> {
    table: &'t Table,
    shard: u16,
    geometry: Geometry,
    /// The words of the header and the buckets.
    index: Vec<u64>,
    slots: Vec<u64>,
    indirect_used: u64,
    image: Vec<u64>,
}

impl<'t> ClusterHash<'t> {
    fn new(table: &'t Table, geometry: Geometry, shard: u16) -> ClusterHash<'t> {
        let index_bytes = geometry.slot_at(0) as usize;
        ClusterHash {
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

    /// Returns the place in `index` of the pair for a key. It is the first empty pair of the key's
    /// chain, which grows by a bucket if it has none.
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

    /// Returns whether the record that an entry names has this key.
    fn holds(&self, word: u64, key: &Key) -> bool {
        let start = (offset(word) - self.geometry.slot_at(0)) as usize / WORD_BYTES;
        let words = &self.slots[start..][..self.table.shape().record_bytes() / WORD_BYTES];
        let record = FetchedRecord::new(words, self.table.shape()).check();
        record.is_ok_and(|record| record.has_key(key.words()))
    }
}

impl Build for ClusterHash<'_> {
    fn add(&mut self, key: &Key, value: &[u8], rows: u64) -> Result<(), IndexError> {
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
        let image_at = start + self.table.shape().image_at() as usize / WORD_BYTES;
        self.slots[image_at..image_at + self.image.len()].copy_from_slice(&self.image);
        Ok(())
    }

    /// The header's floor stays 0, because no version is above [`Version::LOADED`] yet.
    fn finish(&mut self, loader: u32) -> Vec<(u64, &[u8])> {
        self.index[LOADER_WORD] = loader.into();
        self.index[HEADER_SLOTS_WORD] = self.rows();
        self.index[HEADER_INDIRECT_WORD] = self.indirect_used;
        vec![(self.geometry.slot_at(0), self.slots.as_bytes()), (0, self.index.as_bytes())]
    }
}

/// Builds a shard of FStore.
struct FStore<'t> {
    table: &'t Table,
    geometry: fstore::Geometry,
    /// The words of the shard, up to the last bucket in use.
    words: Vec<u64>,
    /// Number of overflow buckets in use, for each part.
    used: Vec<u64>,
    rows: u64,
    image: Vec<u64>,
}

impl<'t> FStore<'t> {
    fn new(table: &'t Table, geometry: fstore::Geometry) -> FStore<'t> {
        let words = vec![0; geometry.buckets.at(geometry.buckets.main) as usize / WORD_BYTES];
        let used = vec![0; geometry.parts() as usize];
        FStore { table, geometry, words, used, rows: 0, image: Vec::new() }
    }

    fn record(&self, slot_at: u64) -> FetchedRecord<'_> {
        let shape = self.table.shape();
        FetchedRecord::new(&self.words[slot_at as usize / WORD_BYTES..][..shape.record_bytes() / WORD_BYTES], shape)
    }

    /// Copies the encoded record into a slot of this shape.
    fn install(&mut self, shape: &RecordShape, slot_at: u64) {
        let at = (slot_at + shape.image_at()) as usize / WORD_BYTES;
        self.words[at..at + self.image.len()].copy_from_slice(&self.image);
        self.image.clear();
    }

    fn set_structural(&mut self, at: u64, value: u64) {
        let life = Life::Present { incarnation: 0 };
        let shape = self.table.structural();
        shape.encode(Version::LOADED, life, &[], value.as_bytes(), &mut self.image);
        self.install(shape, at);
    }

    /// Returns the slot for a key. It is the first vacant slot of the key's chain, which grows by a
    /// bucket if it has none.
    fn place(&mut self, key: &Key, rows: u64) -> Result<u64, IndexError> {
        let home = self.table.home(key.hash()).bucket;
        let mut bucket = home;
        loop {
            for slot in (0..self.geometry.slots_of(bucket)).map(|slot| self.geometry.slot_at(bucket, slot)) {
                match self.record(slot).check_in_place() {
                    Ok(record) if record.has_key(key.words()) && record.is_present() => {
                        let key = format!("{key:?}");
                        return Err(IndexError::Duplicate { table: self.table.name().to_owned(), key });
                    }
                    Ok(record) if record.is_present() => {}
                    _ => return Ok(slot),
                }
            }
            let at = self.geometry.buckets.at(bucket);
            let words = &self.words[at as usize / WORD_BYTES..];
            let next = self.geometry.next(words, self.table.structural()).unwrap_or(0);
            bucket = match self.geometry.buckets.number(next) {
                Some(next) => next,
                None => {
                    let new = self.grow(home, rows)?;
                    self.set_structural(at, self.geometry.buckets.at(new));
                    new
                }
            };
        }
    }

    fn grow(&mut self, home: u64, rows: u64) -> Result<u64, IndexError> {
        let free = |part: fstore::Part| part.bucket(self.used[part.number() as usize]).map(|bucket| (part, bucket));
        let Some((part, new)) = self.geometry.parts_of(home).find_map(free) else {
            let table = self.table.name().to_owned();
            return Err(IndexError::Full { table, what: "reserved buckets of a shard", rows });
        };
        let end = self.geometry.buckets.at(new + 1) as usize / WORD_BYTES;
        self.words.resize(end.max(self.words.len()), 0);
        self.used[part.number() as usize] += 1;
        Ok(new)
    }
}

impl Build for FStore<'_> {
    fn add(&mut self, key: &Key, value: &[u8], rows: u64) -> Result<(), IndexError> {
        let slot = self.place(key, rows)?;
        let life = Life::Present { incarnation: 1 };
        let shape = self.table.shape();
        shape.encode(Version::LOADED, life, key.words(), value, &mut self.image);
        self.install(shape, slot);
        self.rows += 1;
        Ok(())
    }

    fn finish(&mut self, loader: u32) -> Vec<(u64, &[u8])> {
        for part in self.geometry.parts_of(0) {
            let used = self.used[part.number() as usize];
            if used > 0 {
                self.set_structural(part.at(), used);
            }
        }
        self.words[LOADED_WORD] = self.rows;
        self.words[LOADER_WORD] = loader.into();
        vec![(0, self.words.as_bytes())]
    }
}

/// Builds a shard of objects.
struct Objects<'t> {
    table: &'t Table,
    geometry: objects::Geometry,
    /// The words of the header and the buckets.
    index: Vec<u64>,
    /// The words of the blocks of the loaded rows.
    blocks: Vec<u64>,
    overflow_used: u64,
    image: Vec<u64>,
}

impl<'t> Objects<'t> {
    fn new(table: &'t Table, geometry: objects::Geometry) -> Objects<'t> {
        let index = vec![0; geometry.buckets.end() as usize / WORD_BYTES];
        Objects { table, geometry, index, blocks: Vec::new(), overflow_used: 0, image: Vec::new() }
    }

    fn rows(&self) -> u64 {
        (self.blocks.len() * WORD_BYTES) as u64 / self.geometry.block_bytes
    }

    /// Returns the index of the word of the place for a key: of the first vacant object of the
    /// key's chain, which grows by a bucket if it has none.
    fn place(&mut self, key: &Key, hash: KeyHash, rows: u64) -> Result<usize, IndexError> {
        let mut bucket = self.table.home(hash).bucket;
        loop {
            for object in 0..objects::BUCKET_OBJECTS {
                let word = self.geometry.object_at(bucket, object) as usize / WORD_BYTES + 1;
                let place = Place::from_bits(self.index[word]);
                let Some(block) = place.block() else { return Ok(word) };
                if place.may_be_of(hash) && self.holds(block, key) {
                    let key = format!("{key:?}");
                    return Err(IndexError::Duplicate { table: self.table.name().to_owned(), key });
                }
            }
            let link = self.geometry.buckets.at(bucket) as usize / WORD_BYTES + objects::LINK_WORD;
            if let Some(next) = self.geometry.linked(self.index[link]) {
                bucket = next;
                continue;
            }
            if self.overflow_used == self.geometry.buckets.overflow {
                let table = self.table.name().to_owned();
                return Err(IndexError::Full { table, what: "overflow buckets of a shard", rows });
            }
            bucket = self.geometry.buckets.main + self.overflow_used;
            self.index[link] = objects::Geometry::link_to(bucket);
            self.overflow_used += 1;
        }
    }

    /// Returns whether the record in a block has this key.
    fn holds(&self, block: u64, key: &Key) -> bool {
        let shape = self.table.shape();
        let start = (block * self.geometry.block_bytes) as usize / WORD_BYTES;
        let words = &self.blocks[start..][..shape.record_bytes() / WORD_BYTES];
        FetchedRecord::new(words, shape).check_in_place().is_ok_and(|record| record.has_key(key.words()))
    }
}

impl Build for Objects<'_> {
    fn add(&mut self, key: &Key, value: &[u8], rows: u64) -> Result<(), IndexError> {
        let block = self.rows();
        if block == self.geometry.blocks {
            return Err(IndexError::Full { table: self.table.name().to_owned(), what: "blocks of a shard", rows });
        }
        let hash = key.hash();
        let word = self.place(key, hash, rows)?;
        let place = Place::first_use(block, hash);
        self.index[word] = place.to_bits();
        let (shape, life) = (self.table.shape(), Life::Present { incarnation: 0 });
        self.image.clear();
        shape.encode_with_extra(Version::LOADED, life, &[place.unmarked()], key.words(), value, &mut self.image);
        let start = self.blocks.len();
        self.blocks.resize(start + self.geometry.block_bytes as usize / WORD_BYTES, 0);
        let at = start + shape.image_at() as usize / WORD_BYTES;
        self.blocks[at..at + self.image.len()].copy_from_slice(&self.image);
        Ok(())
    }

    fn finish(&mut self, loader: u32) -> Vec<(u64, &[u8])> {
        self.index[objects::AT_OVERFLOW as usize / WORD_BYTES] = self.overflow_used;
        self.index[objects::AT_BLOCKS as usize / WORD_BYTES] = self.rows();
        self.index[LOADED_WORD] = self.rows();
        self.index[LOADER_WORD] = loader.into();
        vec![(self.geometry.buckets.end(), self.blocks.as_bytes()), (0, self.index.as_bytes())]
    }
}
