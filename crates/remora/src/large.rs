//! Tables of large values, which are kept out of line. A record has a slot of a fixed size, and the
//! log entry of a transaction holds about 32 KiB. So several transactions store the parts of a
//! longer value, and then one more makes the value visible.
//!
//! ```text
//! table NAME           key          -> head:  id u64, length u64
//! table NAME/chunks    (id, index)  -> chunk: 7704 bytes of the value, the last one zero-padded
//!
//! upload    insert chunks, 4 a transaction         no reader sees them
//! put       head of the key := id, length          in any transaction, together with any other
//!                                                  records: the value is there
//! discard   delete the chunks of the id that the key had before
//! ```
//!
//! All of this is done by ordinary transactions over ordinary tables. So it is replicated,
//! recovered and serializable as they are, under every protocol.
//!
//! # Invariants
//!
//! 1. **Chunks never change**, and an id never comes again: it is the id of the first transaction
//!    of the upload. So a reader that sees a head and all of its chunks sees the value, and
//!    validates the head.
//! 2. **A reader that misses a chunk has an old head**: the value has been replaced and discarded
//!    since. The reader aborts as [`Abort::Changed`], and is tried again.
//! 3. **Only the client that has uploaded an id links it** ([`Error::Foreign`] otherwise). Only
//!    chunks of ids that are not linked are deleted.
//!
//! # Round trips
//!
//! With locations cached, [`Large::get`] takes one round trip for the head and one for every 8
//! chunks (61 KB), and validates like a transaction that reads several records. [`Large::put`]
//! costs what one insert does. [`Large::upload`] is one transaction of inserts for every 4 chunks,
//! and [`Large::discard`] one of deletes. [`Large::collect`] reads 40 bytes of every chunk that the
//! table has room for, 128 a round trip, and all heads.
//!
//! # Chunks that no key links
//!
//! If a client dies, or a future is dropped, between upload and commit or between commit and
//! discard, chunks stay that no head has. [`Large::collect`] finds them, without any journal:
//!
//! ```text
//! 1  read the keys of all chunks             -> ids
//! 2  read which clients are registered       -> of the ids, those whose client is not
//! 3  read all heads, none of them locked     -> of those, the ones that no head has: their chunks
//!                                               are deleted
//! ```
//!
//! An id that step 3 does not find will never be linked again, for these reasons:
//!
//! - Its client had registered before step 1, because it had uploaded, and a client incarnation is
//!   never registered again once it has left. (If step 2 came before step 1, a client that
//!   registers in between would be taken for dead.)
//! - A client keeps its slot until each of its transactions is decided and installed, even if it
//!   has died. So after step 2, all heads that it has linked are in the table.
//! - By rule 3 no other client links the id. So from then on a head may lose the id, but no head
//!   gets it.
//! - A head that is locked may still hold the id. Step 3 reads it again until it is free.
//! - A head that moves because its table grows moves from the smaller table to the larger one. Step
//!   3 reads them in this order, and the growth waits for the end of step 3 before it goes further
//!   than its next step. So step 3 sees the head in one of them at least.
//!
//! Chunks that a living client has uploaded are never collected, linked or not. So a program that
//! often drops such futures should end its workers now and then. Chunks of a dead client are
//! collected only after the client was recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use remora_index::host::LINKS_MAX;
use remora_node::limits::FRAME_BYTES_MAX;
use remora_node::ring::FRAME_OVERHEAD_WORDS;
use remora_node::{MemoryError, ReadScheme, TableId, connected};
use remora_record::{FetchedRecord, Life, TransactionId, Unstable};
use remora_txn::limits::SET_MAX;
use remora_txn::{Abort, Inspection, Intent, Limit, Stop, log, scan};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cluster::{Cluster, Freed, TableOptions};
use crate::error::{Error, Misuse, Named, OpenError, Reason};
use crate::key::Key;
use crate::record::Record;
use crate::table::{ClusterNumber, Table};
use crate::transaction::Transaction;
use crate::worker::Session;
use remora_fabric::setters;

/// Bytes of a chunk. Its slot has 121 lines, of which 40 bytes are header and key.
const CHUNK_BYTES: usize = SLOT_BYTES - HEADER_BYTES - ID_BYTES.next_multiple_of(8);
const SLOT_BYTES: usize = 121 * 64;
const HEADER_BYTES: usize = 24;
const ID_BYTES: usize = 12;

/// Number of chunks that one transaction inserts.
const BATCH: u32 = 4;

// A batch of chunks fits a log entry even with the largest number of links of the index. With FORD,
// the entry has up to three structural records for each chunk instead.
const _: () = {
    let structural = 3 * (log::RECORD_WORDS + 3);
    let patches = (1 + LINKS_MAX) * log::PATCH_WORDS;
    let index = if patches > structural { patches } else { structural };
    let record = log::RECORD_WORDS + SLOT_BYTES / 8 - 1 + index;
    assert!(FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + BATCH as usize * record <= FRAME_BYTES_MAX / 8);
};

/// Number of chunks of the longest value. A transaction that reads it has room for its head and 95
/// other records.
const CHUNKS_MAX: usize = SET_MAX - 96;

/// Bytes of the longest value of a table of large values: 30.8 MB. One transaction must be able to
/// read it. A session that has read such a value keeps the memory for the next one.
pub const LARGE_BYTES_MAX: usize = CHUNKS_MAX * CHUNK_BYTES;

/// The record of a key: the id and the length of its value.
#[derive(Clone, Copy, Record)]
#[record(schema = "head of a large value: id u64, length u64")]
struct Head {
    id: u64,
    length: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Record)]
#[record(schema = "chunk of a large value")]
#[repr(transparent)]
struct Chunk([u8; CHUNK_BYTES]);

impl Chunk {
    fn of(bytes: &[u8]) -> Chunk {
        let mut chunk = Chunk([0; CHUNK_BYTES]);
        chunk.0[..bytes.len()].copy_from_slice(bytes);
        chunk
    }
}

/// A large value that is stored in chunks. After an upload it waits to be linked to a key
/// ([`Large::put`]), or to be discarded. If it was replaced or removed, it waits to be discarded
/// ([`Large::discard`]) once that transaction has committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "what is neither linked nor discarded takes room until it is collected"]
pub struct Stored {
    /// Id of the transaction that inserted the value's first chunk, or 0 if the value has no
    /// chunks.
    id: u64,
    length: u64,
    /// The cluster of the table that has the value's chunks.
    cluster: ClusterNumber,
    table: TableId,
    /// A number that tells this table from a later one with the same id.
    born: u64,
}

impl Stored {
    /// Returns the number of bytes of the value.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of chunks. If the length makes no sense, returns the number for the
    /// longest value.
    fn chunks(&self) -> u32 {
        self.length.div_ceil(CHUNK_BYTES as u64).min(CHUNKS_MAX as u64) as u32
    }

    fn head(&self) -> Head {
        Head { id: self.id, length: self.length }
    }
}

/// Returns the client that has uploaded an id.
fn owner(id: u64) -> Option<u32> {
    TransactionId::from_bits(id).map(TransactionId::owner)
}

/// How to create a table of large values.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LargeOptions {
    /// Number of keys for which the table has room at first.
    pub rows: u64,
    /// Bytes of all values together for which the table has room at first. The table gets room for
    /// an eighth more and some chunks, so that values can be replaced.
    pub bytes: u64,
    /// Number of copies of each record. If `None`, the cluster's default.
    pub replicas: Option<u8>,
    /// Number of parts over which the table is spread. If `None`, one for each memory node that is
    /// not a spare.
    pub shards: Option<u16>,
    /// Whether the table grows by itself before it is full
    /// ([`TableOptions::grows`](crate::TableOptions::grows)).
    pub grows: bool,
}

setters!(LargeOptions { replicas: u8, shards: u16, grows: bool });

impl LargeOptions {
    /// Returns the options for a table of `rows` keys, whose values have `bytes` bytes together.
    /// The table grows when it needs more of either. For everything else it has the cluster's
    /// defaults.
    #[must_use]
    pub fn for_values(rows: u64, bytes: u64) -> LargeOptions {
        LargeOptions { rows, bytes, replicas: None, shards: None, grows: true }
    }

    fn heads(&self) -> TableOptions {
        let LargeOptions { rows, replicas, shards, grows, .. } = *self;
        TableOptions { replicas, shards, grows, ..TableOptions::for_rows(rows) }
    }

    fn chunks(&self) -> TableOptions {
        let full = self.bytes / CHUNK_BYTES as u64;
        // The last chunk of a value is not full.
        let rows = full.saturating_add(full / 8).saturating_add(self.rows).saturating_add(BATCH.into());
        // The chunks have checksums, because line versions would take an eighth of the room.
        // Readers do not wait for a chunk: it was installed long before its head.
        TableOptions { rows, read_scheme: Some(ReadScheme::Checksum), ..self.heads() }
    }
}

/// A table of values of any length, up to [`LARGE_BYTES_MAX`]. [`Cluster::create_large`] makes it.
/// Clones are cheap.
///
/// A value is stored in chunks of 7704 bytes, which no reader sees at first. Then a transaction of
/// the program makes it the value of a key ([`Large::put`]), or a transaction of the library does
/// ([`Large::write`]). A reader always sees the whole of one value, and never parts of two. If a
/// client dies on the way, [`Large::collect`] finds the chunks that it has left.
///
/// ```
/// use remora::{Cluster, Error, LargeOptions, TableOptions};
/// # let cluster = Cluster::embedded().open()?;
/// # let views = cluster.create_table::<u64, u64>("views", TableOptions::for_rows(100))?;
/// let pictures = cluster.create_large::<u64>("pictures", LargeOptions::for_values(100, 1 << 20))?;
/// let mut worker = cluster.worker(Default::default())?;
/// worker.block_on(async |session| {
///     // The picture and the number of its views become visible together.
///     let picture = pictures.upload(session, &[7; 100_000]).await?;
///     let linked = session
///         .transact(async |tx| {
///             views.insert(tx, 1, 0).await?;
///             pictures.put(tx, 1, &picture).await
///         })
///         .await;
///     match linked {
///         Ok(Some(replaced)) => pictures.discard(session, &replaced).await?,
///         Ok(None) => {}
///         Err(unknown @ Error::Unknown(_)) => return Err(unknown), // it may be linked
///         Err(error) => {
///             pictures.discard(session, &picture).await?;
///             return Err(error);
///         }
///     }
///     let found = session.transact(async |tx| pictures.get(tx, 1).await).await?;
///     assert_eq!(found.map(|picture| picture.len()), Some(100_000));
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Large<K> {
    heads: Table<K, Head>,
    chunks: Table<(u64, u32), Chunk>,
}

impl Cluster {
    /// Creates an empty table of large values. It consists of two tables, `name` and `name/chunks`.
    /// Fails as [`create_table`](Cluster::create_table) does.
    pub fn create_large<K: Key>(&self, name: &str, options: LargeOptions) -> Result<Large<K>, OpenError> {
        if options.rows == 0 {
            return Err(MemoryError::empty("the number of rows of a table").of_table(name).into());
        }
        self.create_together(|cluster| {
            // The larger table comes first, because it is the one that may not fit.
            let chunks = cluster.create_table(&chunks_of(name), options.chunks())?;
            Ok(Large { heads: cluster.create_table(name, options.heads())?, chunks })
        })
    }

    /// Opens a table of large values that exists. Fails as [`open_table`](Cluster::open_table)
    /// does.
    pub fn open_large<K: Key>(&self, name: &str) -> Result<Large<K>, OpenError> {
        Ok(Large { heads: self.open_table(name)?, chunks: self.open_table(&chunks_of(name))? })
    }

    /// Opens a table of large values, or creates an empty one if none has this name. Otherwise it
    /// works like [`open_or_create_table`](Cluster::open_or_create_table).
    pub fn open_or_create_large<K: Key>(&self, name: &str, options: LargeOptions) -> Result<Large<K>, OpenError> {
        self.open_or_create(|| self.open_large(name), || self.create_large(name, options))
    }

    /// Drops a table of large values, with all the tables that it consists of, in one change of the
    /// catalog. Otherwise it works like [`drop_table`](Cluster::drop_table).
    pub fn drop_large(&self, name: &str) -> Result<Freed, OpenError> {
        self.drop_together(&[name.to_owned(), chunks_of(name)])
    }

    /// Gives a table of large values another name, with all the tables that it consists of, in one
    /// change of the catalog. Otherwise it works like [`rename_table`](Cluster::rename_table).
    pub fn rename_large(&self, from: &str, to: &str) -> Result<(), OpenError> {
        self.rename_together(from, to, vec![from.to_owned(), chunks_of(from)])
    }

    /// Reads a whole table of large values, while no transaction runs, and checks it. Returns the
    /// findings about its heads and about its chunks.
    pub fn inspect_large<K: Key>(&self, large: &Large<K>) -> Result<[Inspection; 2], Error> {
        Ok([self.inspect(&large.heads, |_| ())?, self.inspect(&large.chunks, |_| ())?])
    }
}

fn chunks_of(name: &str) -> String {
    format!("{name}/chunks")
}

impl<K: Key> Large<K> {
    fn stored(&self, Head { id, length }: Head) -> Stored {
        Stored {
            id,
            length,
            cluster: self.chunks.cluster,
            table: self.chunks.inner.id(),
            born: self.chunks.inner.born(),
        }
    }

    /// Fails if another table has stored a value, because this one does not have its chunks.
    fn check(&self, stored: &Stored) -> Result<(), Misuse> {
        let own = &self.chunks.inner;
        let is_own = (stored.cluster, stored.table, stored.born) == (self.chunks.cluster, own.id(), own.born());
        if is_own { Ok(()) } else { Err(Misuse::OtherLargeTable { table: self.heads.name().to_owned() }) }
    }

    fn too_long(&self, found: usize) -> Error {
        let limit = Limit::Value { found, max: LARGE_BYTES_MAX };
        Error::Limit(Reason::of(limit, Named::new(self.heads.name(), &[])))
    }

    /// Returns the value of a key, or `None` if the key is absent. It is [`Large::get`] in a
    /// transaction of its own, and fails as [`Session::transact`](crate::Session::transact) does.
    pub async fn read(&self, session: &mut Session, key: K) -> Result<Option<Vec<u8>>, Error> {
        session.transact(async |tx| self.get(tx, key).await).await
    }

    /// Inserts or replaces the value of a key: uploads the value, links it, and discards the old
    /// one. If it fails with [`Error::Unknown`], the key has the new value or the old one, and the
    /// chunks of the other value stay until they are collected. With every other error, the key has
    /// the old value.
    pub async fn write(&self, session: &mut Session, key: K, bytes: &[u8]) -> Result<(), Error> {
        loop {
            let stored = self.upload(session, bytes).await?;
            match session.transact(async |tx| self.put(tx, key, &stored).await).await {
                Ok(replaced) => {
                    self.try_discard(session, replaced).await;
                    return Ok(());
                }
                Err(error) => {
                    if !matches!(error, Error::Unknown(_)) {
                        self.try_discard(session, Some(stored)).await;
                    }
                    // An epoch has begun since the upload, so this client is another incarnation
                    // now. It uploads the value again.
                    if !matches!(error, Error::Foreign { .. }) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Deletes a key and its value: removes the key, and discards the value. Returns whether the
    /// key was present. If it fails with [`Error::Unknown`], the key may be present or absent. With
    /// every other error, the key is as it was.
    pub async fn delete(&self, session: &mut Session, key: K) -> Result<bool, Error> {
        let removed = session.transact(async |tx| self.remove(tx, key).await).await?;
        self.try_discard(session, removed).await;
        Ok(removed.is_some())
    }

    /// Stores a value that no transaction sees yet, by one transaction for every 4 chunks. A value
    /// that is longer than [`LARGE_BYTES_MAX`] is refused before anything is stored
    /// ([`Limit::Value`]). If the call fails, or its future is dropped, no part of the value can be
    /// linked. So if an answer is lost, it fails with [`Abort::Dropped`], and not with
    /// [`Error::Unknown`].
    pub async fn upload(&self, session: &mut Session, bytes: &[u8]) -> Result<Stored, Error> {
        if bytes.len() > LARGE_BYTES_MAX {
            return Err(self.too_long(bytes.len()));
        }
        let mut stored = self.stored(Head { id: 0, length: 0 });
        for part in bytes.chunks(BATCH as usize * CHUNK_BYTES) {
            match self.insert(session, &stored, part).await {
                Ok(id) => stored = Stored { id, length: stored.length + part.len() as u64, ..stored },
                Err(Error::Unknown(id)) => {
                    // With `Error::Unknown`, the caller would ask for the outcome of this id, and
                    // take it for the outcome of its own transaction.
                    tracing::warn!(table = self.heads.name(), %id, "an upload has lost an answer, and is given up");
                    return Err(Abort::Dropped.into());
                }
                Err(error) => {
                    self.try_discard(session, Some(stored)).await;
                    return Err(error);
                }
            }
        }
        Ok(stored)
    }

    /// Inserts the next chunks of a value. Returns the value's id.
    async fn insert(&self, session: &mut Session, stored: &Stored, part: &[u8]) -> Result<u64, Error> {
        let insert = session.transact(async |tx| {
            let id = if stored.id == 0 { tx.id().to_bits() } else { stored.id };
            let slots: Vec<_> = (stored.chunks()..)
                .zip(part.chunks(CHUNK_BYTES))
                .map(|(index, bytes)| (tx.want_for(&self.chunks, (id, index), Intent::Insert), bytes))
                .collect();
            tx.fetch().await?;
            for (slot, bytes) in slots {
                slot.insert(tx, Chunk::of(bytes))?;
            }
            Ok(id)
        });
        insert.await
    }

    /// Makes a stored value the value of a key, in this transaction. Returns the value that it
    /// replaces, which the program discards when this transaction has committed
    /// ([`Large::discard`]).
    ///
    /// Only transactions of the client that has uploaded the value may link it. Others fail with
    /// [`Error::Foreign`]. [`Large::collect`] relies on this: it deletes the unlinked values of
    /// clients that have left. The sessions of a worker are one client, unless it was made with
    /// several. The sessions of a [`Db`](crate::Db) are several clients, so upload and link by one
    /// call of [`Db::run`](crate::Db::run).
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, stored: &Stored) -> Result<Option<Stored>, Error> {
        self.check(stored)?;
        let client = tx.client();
        if let Some(by) = owner(stored.id).filter(|owner| *owner != client) {
            return Err(Error::Foreign { table: self.heads.name().to_owned(), by, client });
        }
        let slot = tx.want_for(&self.heads, key, Intent::Insert);
        tx.fetch().await?;
        Ok(slot.put(tx, stored.head())?.map(|before| self.stored(before)))
    }

    /// Deletes a key, in this transaction. Returns the value that the key had, or `None` if the key
    /// was absent. The program discards the value when this transaction has committed
    /// ([`Large::discard`]).
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<Stored>, Error> {
        let slot = tx.want_for(&self.heads, key, Intent::Delete);
        tx.fetch().await?;
        Ok(slot.remove(tx)?.map(|before| self.stored(before)))
    }

    /// Returns the value of a key, or `None` if the key is absent.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<Vec<u8>>, Error> {
        let Some(stored) = self.find(tx, key).await? else { return Ok(None) };
        let length = usize::try_from(stored.length).unwrap_or(usize::MAX);
        if length > LARGE_BYTES_MAX {
            return Err(self.too_long(length));
        }
        let slots: Vec<_> = (0..stored.chunks()).map(|index| tx.want(&self.chunks, (stored.id, index))).collect();
        tx.fetch().await?;
        let mut bytes = Vec::with_capacity(length);
        for slot in slots {
            let Chunk(chunk) = slot.get(tx)?.ok_or(Error::from(Abort::Changed))?;
            bytes.extend_from_slice(&chunk[..CHUNK_BYTES.min(length - bytes.len())]);
        }
        Ok(Some(bytes))
    }

    /// Returns the stored value of a key without its bytes, for its length, or `None` if the key is
    /// absent.
    pub async fn find(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<Stored>, Error> {
        let slot = tx.want_for(&self.heads, key, Intent::Read);
        tx.fetch().await?;
        Ok(slot.value(tx)?.map(|head| self.stored(head)))
    }

    /// Deletes the chunks of a value that no key has. Such a value was replaced or removed by a
    /// transaction that has committed, or was uploaded for a transaction that has not committed.
    /// The call is idempotent. A value that a key still has must not be discarded: transactions
    /// that read it abort. Fails with [`Misuse::OtherLargeTable`] if another table has stored the
    /// value.
    pub async fn discard(&self, session: &mut Session, stored: &Stored) -> Result<(), Error> {
        self.check(stored)?;
        self.delete_chunks(session, stored.id, stored.chunks()).await.map(|_| ())
    }

    /// Discards a value that is not needed any more. If that fails, leaves it to
    /// [`Large::collect`].
    async fn try_discard(&self, session: &mut Session, stored: Option<Stored>) {
        let Some(stored) = stored else { return };
        if let Err(error) = self.discard(session, &stored).await {
            tracing::warn!(table = self.heads.name(), %error, "a large value stays until it is collected");
        }
    }

    /// Deletes the first `count` chunks of an id, as far as they are present. Returns whether any
    /// was.
    async fn delete_chunks(&self, session: &mut Session, id: u64, count: u32) -> Result<bool, Error> {
        let mut any = false;
        for first in (0..count).step_by(BATCH as usize) {
            let delete = session.transact(async |tx| {
                let indices = first..count.min(first + BATCH);
                let slots: Vec<_> =
                    indices.map(|index| tx.want_for(&self.chunks, (id, index), Intent::Delete)).collect();
                tx.fetch().await?;
                let mut any = false;
                for slot in slots {
                    any |= slot.remove(tx)?.is_some();
                }
                Ok(any)
            });
            any |= delete.await?;
        }
        Ok(any)
    }

    /// Deletes stored values that no key has and that no client can link any more, because the
    /// clients that uploaded them have left or were recovered. Returns the number of deleted
    /// values. Other clients may use the table meanwhile, and may also collect. The call never
    /// deletes a value that is needed (the head of `large.rs` says why). Fails with
    /// [`Error::Aborted`] if a head stays locked, for example by a client that has died and is not
    /// recovered yet, or if this client has rested and does not hear in time which tables have
    /// changed. A table that grows waits for the call at each of its steps.
    pub async fn collect(&self, session: &mut Session) -> Result<u64, Error> {
        let mut unlinked = self.uploaded(session).await?;
        let registered = connected(session.lane(), session.leader()).await.map_err(Stop::from)?;
        let registered: BTreeSet<u32> = registered.iter().map(|client| client.incarnation).collect();
        unlinked.retain(|id, _| owner(*id).is_none_or(|owner| !registered.contains(&owner)));
        if !unlinked.is_empty() {
            self.visit_heads(session, |head| {
                unlinked.remove(&head.id);
            })
            .await?;
        }
        let mut collected = 0;
        for (id, count) in &unlinked {
            // Some values may have been seen while another client was deleting them.
            collected += u64::from(self.delete_chunks(session, *id, *count).await?);
        }
        Ok(collected)
    }

    /// Returns the ids of all chunks that the scan has found, and how many chunks each of them has.
    async fn uploaded(&self, session: &mut Session) -> Result<BTreeMap<u64, u32>, Error> {
        let _in_use = session.begin_outside().await?;
        let table = &*session.table(self.chunks.handle())?;
        let shape = table.shape();
        let key_begin = shape.header_bytes() / 8;
        let key_at = key_begin..key_begin + shape.key_words();
        let mut found = BTreeMap::new();
        let mut visit = |words: &[u64]| {
            let present = matches!(shape.life(words), Some(Life::Present { .. }));
            if let (true, &[id, index]) = (present, &words[key_at.clone()]) {
                let (id, index) = (u64::from_be(id), u64::from_be(index) >> 32); // big-endian, the second one of 4 bytes
                let count: &mut u32 = found.entry(id).or_insert(0);
                *count = (*count).max((index as u32).min(CHUNKS_MAX as u32 - 1) + 1);
            }
            Ok(())
        };
        scan(session.lane(), table, key_at.end * 8, &mut visit).await?;
        Ok(found)
    }

    /// Reads every head, at a moment when no transaction has it locked exclusively.
    async fn visit_heads(&self, session: &mut Session, mut visit: impl FnMut(Head)) -> Result<(), Error> {
        let _in_use = session.begin_outside().await?;
        let table = &*session.table(self.heads.handle())?;
        let mut visit = |words: &[u64]| match FetchedRecord::new(words, table.shape()).check() {
            Ok(record) if record.lock().is_exclusive() => Err(Abort::Locked(record.lock())),
            Ok(record) => {
                if record.is_present() {
                    let mut head = [0; 2];
                    record.first_words(&mut head);
                    visit(Head { id: head[0], length: head[1] });
                }
                Ok(())
            }
            Err(Unstable::Locked(lock) | Unstable::Invisible(lock)) => Err(Abort::Locked(lock)),
            Err(Unstable::Torn) => Err(Abort::Torn),
        };
        scan(session.lane(), table, table.shape().record_bytes(), &mut visit).await?;
        Ok(())
    }
}

impl<K> Clone for Large<K> {
    fn clone(&self) -> Large<K> {
        Large { heads: self.heads.clone(), chunks: self.chunks.clone() }
    }
}

impl<K> fmt::Debug for Large<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Large").field("name", &self.heads.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_fills_its_slot() {
        let layout = remora_record::layout(ID_BYTES, CHUNK_BYTES, ReadScheme::Checksum).unwrap();
        assert_eq!(layout.slot_bytes as usize, SLOT_BYTES);
        assert_eq!(layout.value_at as usize + CHUNK_BYTES, SLOT_BYTES);
        assert_eq!(layout.value_at as usize, HEADER_BYTES + ID_BYTES.next_multiple_of(8), "where the key is");
    }
}
