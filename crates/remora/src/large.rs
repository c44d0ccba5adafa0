//! Values of any length, kept out of line: a record has a slot of a fixed size, and one
//! transaction's log entry holds about 32 KiB, so a longer value is written by several transactions
//! before one of another kind makes it visible.
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
//! All of it is ordinary transactions over ordinary tables, so it is replicated, recovered and
//! serializable as those are, under every protocol.
//!
//! # Invariants
//!
//! 1. **Chunks never change**, and an id never comes again: it is that of the first transaction of
//!    the upload. So a reader that sees a head and all of its chunks sees the value, and validates
//!    the head.
//! 2. **A reader that misses a chunk has an old head**: the value has been replaced and discarded
//!    since. It aborts as [`Abort::Changed`], and is tried again.
//! 3. **Only the client that has uploaded an id links it** ([`Error::Foreign`] otherwise), and only
//!    chunks of ids that are not linked are deleted.
//!
//! # Round trips
//!
//! With locations cached: [`Large::get`] takes one for the head, one for every 8 chunks (61 KB),
//! and validates as one that reads several records does. [`Large::put`] costs what one insert does.
//! [`Large::upload`] is one transaction of inserts for every 4 chunks, and [`Large::discard`] one
//! of deletes. [`Large::collect`] reads 40 bytes of every chunk that the table has room for, 128 a
//! round trip, and all heads.
//!
//! # What nobody links
//!
//! A client that dies, or a future that is dropped, between upload and commit or between commit and
//! discard leaves chunks that no head has. [`Large::collect`] finds them, without any journal:
//!
//! ```text
//! 1  read the keys of all chunks             -> ids
//! 2  read which clients are registered       -> of the ids, those whose client is not
//! 3  read all heads, none of them locked     -> of those, the ones that no head has: their chunks
//!                                               are deleted
//! ```
//!
//! An id that step 3 does not find will never be linked again. Its client had come before step 1,
//! since it had uploaded, and is never registered again once it has gone: who looked for clients
//! before chunks would take a newcomer for dead. A client keeps its slot until each of its
//! transactions is decided and installed, also if it has died, so that after step 2 all heads that
//! it has linked are there. By rule 3 nobody else links the id: a head may lose it from then on,
//! and none gets it. A head that is locked may hold the id still, and is read again until it is
//! free.
//!
//! What a client that lives has uploaded is never touched, linked or not: a program that drops such
//! futures often ends its workers now and then. Where nobody recovers dead clients, nothing of
//! theirs is collected.

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

/// Bytes of a chunk: its slot is 121 lines, 40 of whose bytes are header and key.
const CHUNK_BYTES: usize = SLOT_BYTES - HEADER_BYTES - ID_BYTES.next_multiple_of(8);
const SLOT_BYTES: usize = 121 * 64;
const HEADER_BYTES: usize = 24;
const ID_BYTES: usize = 12;

/// Chunks that one transaction inserts.
const BATCH: u32 = 4;

// They fit a log entry also if the index has as many links to log as there can be; FORD's entry has
// up to three structural records for each instead.
const _: () = {
    let structural = 3 * (log::RECORD_WORDS + 3);
    let patches = (1 + LINKS_MAX) * log::PATCH_WORDS;
    let index = if patches > structural { patches } else { structural };
    let record = log::RECORD_WORDS + SLOT_BYTES / 8 - 1 + index;
    assert!(FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + BATCH as usize * record <= FRAME_BYTES_MAX / 8);
};

/// Chunks of the longest value: a transaction that reads it has room for 95 other records.
const CHUNKS_MAX: usize = SET_MAX - 96;

/// Bytes of the longest value: 30.8 MB. It must be possible to read it in one transaction. (A
/// session that has read one keeps as much memory for the next.)
pub const LARGE_BYTES_MAX: usize = CHUNKS_MAX * CHUNK_BYTES;

/// What a key has.
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

/// A value that has been uploaded: to be linked by [`Large::put`], or discarded. Of a value that
/// was replaced or removed, to be discarded once that has committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "what is neither linked nor discarded takes room until it is collected"]
pub struct Stored {
    /// Id of the transaction that inserted the value's first chunk; 0 if the value has no chunks.
    id: u64,
    length: u64,
    /// The table that has its chunks.
    cluster: ClusterNumber,
    table: TableId,
    /// Tells that table from a later one with its id.
    born: u64,
}

impl Stored {
    /// Bytes of the value.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// As many as a value of the greatest length has, if its length makes no sense.
    fn chunks(&self) -> u32 {
        self.length.div_ceil(CHUNK_BYTES as u64).min(CHUNKS_MAX as u64) as u32
    }

    fn head(&self) -> Head {
        Head { id: self.id, length: self.length }
    }
}

/// The client that has uploaded an id.
fn owner(id: u64) -> Option<u32> {
    TransactionId::from_bits(id).map(TransactionId::owner)
}

/// How to create a table of large values.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LargeOptions {
    /// Keys that it has room for at first.
    pub rows: u64,
    /// Bytes of all values together that it has room for at first. It has an eighth more and some
    /// chunks, so that values can be replaced.
    pub bytes: u64,
    /// Copies of each record; the cluster's default if `None`.
    pub replicas: Option<u8>,
    /// Parts that it is spread over; one for each memory node that is not a spare if `None`.
    pub shards: Option<u16>,
    /// Whether the table grows before it is full: see
    /// [`TableOptions::grows`](crate::TableOptions::grows).
    pub grows: bool,
}

setters!(LargeOptions { replicas: u8, shards: u16, grows: bool });

impl LargeOptions {
    /// A table of `rows` keys, whose values have `bytes` bytes together. It grows when it needs
    /// more of either. Otherwise the cluster's defaults hold.
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
        // Line versions would take an eighth of the room; a chunk that is there has long been
        // installed.
        TableOptions { rows, read_scheme: Some(ReadScheme::Checksum), ..self.heads() }
    }
}

/// A table of values of any length, up to [`LARGE_BYTES_MAX`]. Made by [`Cluster::create_large`];
/// clones are cheap.
///
/// A value is stored in chunks of 7704 bytes, which no reader sees at first. It becomes the value
/// of a key by a transaction of yours ([`Large::put`]), or by one of its own ([`Large::write`]). A
/// reader sees all of one value, never parts of two. [`Large::collect`] finds what a client leaves
/// behind that dies on the way.
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
    /// Creates a table of large values, empty: two tables, `name` and `name/chunks`.
    pub fn create_large<K: Key>(&self, name: &str, options: LargeOptions) -> Result<Large<K>, OpenError> {
        if options.rows == 0 {
            return Err(MemoryError::empty("the number of rows of a table").of_table(name).into());
        }
        self.create_together(|cluster| {
            // The one that may not fit comes first.
            let chunks = cluster.create_table(&chunks_of(name), options.chunks())?;
            Ok(Large { heads: cluster.create_table(name, options.heads())?, chunks })
        })
    }

    /// Opens a table of large values that exists.
    pub fn open_large<K: Key>(&self, name: &str) -> Result<Large<K>, OpenError> {
        Ok(Large { heads: self.open_table(name)?, chunks: self.open_table(&chunks_of(name))? })
    }

    /// Opens a table of large values, or creates it, empty: see
    /// [`open_or_create_table`](Cluster::open_or_create_table).
    pub fn open_or_create_large<K: Key>(&self, name: &str, options: LargeOptions) -> Result<Large<K>, OpenError> {
        self.open_or_create(|| self.open_large(name), || self.create_large(name, options))
    }

    /// Drops a table of large values, with all the tables that it consists of, in one change of the
    /// catalog. Otherwise like [`drop_table`](Cluster::drop_table).
    pub fn drop_large(&self, name: &str) -> Result<Freed, OpenError> {
        self.drop_together(&[name.to_owned(), chunks_of(name)])
    }

    /// Gives a table of large values another name, with all the tables that it consists of, in one
    /// change of the catalog. Otherwise like [`rename_table`](Cluster::rename_table).
    pub fn rename_large(&self, from: &str, to: &str) -> Result<(), OpenError> {
        self.rename_together(from, to, vec![from.to_owned(), chunks_of(from)])
    }

    /// Reads a whole table of large values while nothing runs: what there is of heads and of
    /// chunks.
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

    /// Fails if another table has stored a value: this one does not have its chunks.
    fn check(&self, stored: &Stored) -> Result<(), Misuse> {
        let own = &self.chunks.inner;
        let is_own = (stored.cluster, stored.table, stored.born) == (self.chunks.cluster, own.id(), own.born());
        if is_own { Ok(()) } else { Err(Misuse::OtherLargeTable { table: self.heads.name().to_owned() }) }
    }

    fn too_long(&self, found: usize) -> Error {
        let limit = Limit::Value { found, max: LARGE_BYTES_MAX };
        Error::Limit(Reason::of(limit, Named::new(self.heads.name(), &[])))
    }

    /// Reads a value and writes nothing: [`Large::get`] in a transaction of its own.
    pub async fn read(&self, session: &mut Session, key: K) -> Result<Option<Vec<u8>>, Error> {
        session.transact(async |tx| self.get(tx, key).await).await
    }

    /// Inserts or replaces a value: upload, put and discard. After an [`Error::Unknown`] the key
    /// has the new value or the old one, and the other's chunks stay until they are collected;
    /// after any other error it has the old one.
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
                    // Its client lives on as another one since then: an epoch has begun.
                    if !matches!(error, Error::Foreign { .. }) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Deletes a value, and says whether there was one: remove and discard. After an
    /// [`Error::Unknown`] it is there or not; after any other error it is there still.
    pub async fn delete(&self, session: &mut Session, key: K) -> Result<bool, Error> {
        let removed = session.transact(async |tx| self.remove(tx, key).await).await?;
        self.try_discard(session, removed).await;
        Ok(removed.is_some())
    }

    /// Stores a value that nobody sees yet, by as many transactions as it takes. A value that is
    /// too long is refused before anything is stored. If this fails, or its future is dropped,
    /// nothing of it can be linked; so it fails with [`Abort::Dropped`], and not with
    /// [`Error::Unknown`], also where an answer is lost.
    pub async fn upload(&self, session: &mut Session, bytes: &[u8]) -> Result<Stored, Error> {
        if bytes.len() > LARGE_BYTES_MAX {
            return Err(self.too_long(bytes.len()));
        }
        let mut stored = self.stored(Head { id: 0, length: 0 });
        for part in bytes.chunks(BATCH as usize * CHUNK_BYTES) {
            match self.insert(session, &stored, part).await {
                Ok(id) => stored = Stored { id, length: stored.length + part.len() as u64, ..stored },
                Err(Error::Unknown(id)) => {
                    // The caller would ask what became of this id, and take the answer for its own
                    // transaction's.
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

    /// Inserts the next chunks of a value; its id.
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

    /// Makes a stored value that of a key. Gives the one that it replaces, to be discarded when
    /// this has committed.
    ///
    /// Only transactions of the client that has uploaded it may: others are refused
    /// ([`Error::Foreign`]), because a client that has gone links nothing any more, which
    /// [`Large::collect`] goes by. The sessions of a worker are one client (unless it was made with
    /// several), those of a [`Db`](crate::Db) are several: see [`Db::run`](crate::Db::run).
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, stored: &Stored) -> Result<Option<Stored>, Error> {
        self.check(stored)?;
        let client = tx.id().owner();
        if let Some(by) = owner(stored.id).filter(|owner| *owner != client) {
            return Err(Error::Foreign { table: self.heads.name().to_owned(), by, client });
        }
        let slot = tx.want_for(&self.heads, key, Intent::Insert);
        tx.fetch().await?;
        Ok(slot.put(tx, stored.head())?.map(|before| self.stored(before)))
    }

    /// Deletes a key. Gives the value that it had, if it was there, to be discarded when this has
    /// committed.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<Stored>, Error> {
        let slot = tx.want_for(&self.heads, key, Intent::Delete);
        tx.fetch().await?;
        Ok(slot.remove(tx)?.map(|before| self.stored(before)))
    }

    /// The value of a key.
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

    /// What a key has, without its bytes: for its length.
    pub async fn find(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<Stored>, Error> {
        let slot = tx.want_for(&self.heads, key, Intent::Read);
        tx.fetch().await?;
        Ok(slot.value(tx)?.map(|head| self.stored(head)))
    }

    /// Deletes the chunks of a value that no key has: one that was replaced or removed by a
    /// transaction that has committed, or was uploaded for one that has not. What is gone is gone,
    /// so it can be done again. A value that a key has must not be discarded: who reads it aborts.
    pub async fn discard(&self, session: &mut Session, stored: &Stored) -> Result<(), Error> {
        self.check(stored)?;
        self.delete_chunks(session, stored.id, stored.chunks()).await.map(|_| ())
    }

    /// Discards what is not needed any more, and if that fails leaves it to [`Large::collect`].
    async fn try_discard(&self, session: &mut Session, stored: Option<Stored>) {
        let Some(stored) = stored else { return };
        if let Err(error) = self.discard(session, &stored).await {
            tracing::warn!(table = self.heads.name(), %error, "a large value stays until it is collected");
        }
    }

    /// Deletes the first chunks of an id, as far as they are there; whether one was.
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

    /// Deletes values that no key has and nobody can give one any more, because the clients that
    /// uploaded them have gone; returns how many. Others may work meanwhile, and collect too. It
    /// takes nothing that is needed (the first page of `large.rs` says why). [`Error::Aborted`] if
    /// a head stays locked: of a client that has died and is not recovered yet, say.
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
            // Some were seen while they were being deleted.
            collected += u64::from(self.delete_chunks(session, *id, *count).await?);
        }
        Ok(collected)
    }

    /// The ids of all chunks, and how many chunks each has, as far as one can see.
    async fn uploaded(&self, session: &mut Session) -> Result<BTreeMap<u64, u32>, Error> {
        let table = &*session.table(&self.chunks)?;
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

    /// Reads every head, while nobody has it locked.
    async fn visit_heads(&self, session: &mut Session, mut visit: impl FnMut(Head)) -> Result<(), Error> {
        let table = &*session.table(&self.heads)?;
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
