//! How keys and their values lie in tables.
//!
//! ```text
//! table NAME         | database : 4 bits, is digest : 1 | key, or digest of the key : 32 |  ->
//!                    | stamp : 8 | is large : 1 | length : 2 | key |   the last two with a digest
//!                    | packed value, or the head of one that is large |
//! table NAME/large   the first 16 bytes of the digest of the name    ->   packed value
//! ```
//!
//! Table NAME/once has the tokens of `REMORA.ONCE`.
//!
//! A key of up to 511 bytes is in the name of its record. A longer one is in its value, and its
//! SHA-256 is in the name.
//!
//! # Rules
//!
//! 1. **The stamp is the id of the transaction that has written the record.** No two transactions
//!    have the same id. So a key has been written if and only if its stamp has changed, and `WATCH`
//!    compares stamps.
//! 2. **A large value is there if and only if its record says so.** One transaction changes both.
//! 3. **A large value is uploaded before the transaction that links it**, and is discarded if that
//!    transaction does not commit. What a transaction unlinks is discarded after its commit.

use std::collections::VecDeque;

use remora::{
    Cluster, DynOptions, DynSchema, DynSlot, DynTable, Error, Intent, Large, LargeOptions, Lengths, OpenError, Session,
};
use remora::{Stored, Transaction};
use remora_redis::{Keyspace, Object, footprint, packed};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::damaged::damaged;
use crate::once::Tokens;

/// Bytes of the longest key.
pub(crate) const KEY_BYTES_MAX: usize = 15_000;
/// Bytes of the longest key that is in the name of its record.
const NAME_BYTES_MAX: usize = 511;
/// Bytes of the longest record of a key. A longer value is large.
const ROW_BYTES_MAX: usize = 16 << 10;
/// Bytes of a record before the packed value, but for the key.
const ROW_HEAD_BYTES: usize = 8 + 1 + 2;
/// Bytes of a key's record for which the tables have room at first, beyond what is in its head.
const VALUE_BYTES: u64 = 16;
/// The number of keys that one transaction deletes when all are deleted.
const DELETED: usize = 16;
const _: () = assert!(KEY_BYTES_MAX + ROW_HEAD_BYTES < ROW_BYTES_MAX);
/// Bytes of the longest packed value that is not large.
const INLINE_BYTES_MAX: usize = 8 << 10;
const _: () = assert!(INLINE_BYTES_MAX == footprint::INLINE_ROOM);

/// The tables that have the keys of a gateway and their values.
#[derive(Clone, Debug)]
pub struct Store {
    rows: DynTable,
    large: Large<[u8; 16]>,
    pub(crate) tokens: Tokens,
}

/// How large the tables of a store are at first.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Number of keys that there is room for at first.
    pub keys: u64,
    /// Number of copies of each record. If `None`, the cluster's default.
    pub copies: Option<u8>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { keys: 16 << 10, copies: None }
    }
}

/// A key of a database.
pub(crate) type Name<'a> = (u8, &'a [u8]);

/// A key that a transaction wants, and what for.
pub(crate) type Wanted<'a> = (Name<'a>, Intent);

/// The record of a key, as a transaction has found it.
pub(crate) struct Row {
    record: RecordName,
    slot: DynSlot,
    /// The id of the transaction that has written it, if the key is there.
    stamp: Option<u64>,
    is_large: bool,
    /// When the key expires, in milliseconds since 1970.
    expiry: Option<u64>,
}

impl Row {
    /// Returns the stamp of the record, or `None` if there is no record.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.stamp
    }

    /// Returns the stamp of the key, or `None` if it is absent or has expired.
    pub(crate) fn stamp_at(&self, now: u64) -> Option<u64> {
        self.stamp.filter(|_| self.expiry.is_none_or(|expiry| expiry > now))
    }
}

/// A key that a walk has found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) database: u8,
    pub(crate) key: Vec<u8>,
    /// What `TYPE` answers.
    pub(crate) kind: &'static str,
    /// When the key expires, in milliseconds since 1970.
    pub(crate) expiry: Option<u64>,
}

/// Values that are uploaded and not linked yet, with the bytes that each has.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    uploads: Vec<(Vec<u8>, Stored, bool)>,
    /// Values that the last attempt wanted to be uploaded.
    wanted: Vec<Vec<u8>>,
    /// Values that the last attempt has unlinked.
    unlinked: Vec<Stored>,
}

impl Store {
    /// Opens the tables of this name, or creates them if there are none.
    pub fn open_or_create(cluster: &Cluster, name: &str, options: StoreOptions) -> Result<Store, OpenError> {
        let schema =
            DynSchema::new("keys of a gateway", Lengths::UpTo(NAME_BYTES_MAX + 1), Lengths::UpTo(ROW_BYTES_MAX));
        let mut rows = DynOptions::for_rows(options.keys).bytes(options.keys.saturating_mul(VALUE_BYTES)).dense(true);
        let mut large = LargeOptions::for_values(64, 1 << 20);
        if let Some(copies) = options.copies {
            (rows, large) = (rows.replicas(copies), large.replicas(copies));
        }
        Ok(Store {
            rows: cluster.open_or_create_dyn_table(name, &schema, rows)?,
            large: cluster.open_or_create_large(&format!("{name}/large"), large)?,
            tokens: Tokens::open_or_create(cluster, &format!("{name}/once"), options.copies)?,
        })
    }

    /// Returns the name of the table that has the keys.
    pub(crate) fn name(&self) -> &str {
        self.rows.name()
    }

    /// Reads keys and their values into an empty keyspace, in the order of the names, of which no
    /// two are the same. Returns the records.
    pub(crate) async fn load(
        &self,
        tx: &mut Transaction<'_, '_>,
        wanted: &[Wanted<'_>],
        keys: &mut Keyspace,
    ) -> Result<Vec<Row>, Error> {
        let records: Vec<RecordName> = wanted.iter().map(|(name, _)| record_of(*name)).collect();
        let intents = wanted.iter().map(|(_, intent)| *intent);
        let slots = self.rows.fetch_for(tx, records.iter().map(SmallVec::as_slice).zip(intents)).await?;
        let mut rows = Vec::with_capacity(wanted.len());
        for (((name, _), record), slot) in wanted.iter().zip(records).zip(slots) {
            let (mut row, mut object) = (Row { record, slot, stamp: None, is_large: false, expiry: None }, None);
            if let Some(bytes) = self.rows.value_of(tx, &row.record, &row.slot)? {
                let parts = Parts::of(&row.record, &bytes).ok_or(damaged("a record is too short"))?;
                if parts.key.is_some_and(|key| key != name.1) {
                    return Err(damaged("a key whose digest is that of another"));
                }
                (row.stamp, row.is_large) = (Some(parts.stamp), parts.is_large);
                if !parts.is_large {
                    object = Some(unpack(parts.packed)?);
                }
            }
            if row.is_large {
                let bytes = self.large.get(tx, digest_of(*name)).await?;
                object = Some(unpack(&bytes.ok_or(damaged("a large value is absent"))?)?);
            }
            row.expiry = object.as_ref().and_then(|object| object.expiry);
            rows.push(row);
            keys.push(name.0, name.1, object);
        }
        Ok(rows)
    }

    /// Reads the next keys of a walk over all keys of all databases, and returns the cursor of the
    /// next step ([`DynTable::walk`]).
    pub(crate) async fn walk(
        &self,
        session: &mut Session,
        cursor: u64,
        slots: usize,
    ) -> Result<(Vec<Found>, u64), Error> {
        let walked = self.rows.walk(session, cursor, slots).await?;
        let found = walked.rows.iter().map(|(record, row)| Found::of(record, row)).collect::<Result<_, _>>()?;
        Ok((found, walked.cursor))
    }

    /// Returns a cursor at a place that `random` draws.
    pub(crate) fn cursor_at(&self, session: &Session, random: u64) -> Result<u64, Error> {
        self.rows.cursor_at(session, random)
    }

    /// Deletes keys, a few in each transaction: all of them, or only keys that have expired at a
    /// time.
    pub(crate) async fn delete(
        &self,
        session: &mut Session,
        names: &[Name<'_>],
        expired_at: Option<u64>,
    ) -> Result<(), Error> {
        for names in names.chunks(DELETED) {
            let wanted: Vec<Wanted<'_>> = names.iter().map(|name| (*name, Intent::Delete)).collect();
            let mut uploads = Uploads::default();
            let deleted = session
                .transact(async |tx| {
                    let mut keys = Keyspace::default();
                    let rows = self.load(tx, &wanted, &mut keys).await?;
                    match expired_at {
                        Some(now) => keys.expire(now),
                        None => keys.clear(),
                    }
                    self.save(tx, &keys, rows, &mut uploads).await
                })
                .await;
            self.finish(session, &mut uploads, deleted.is_ok()).await;
            deleted?;
        }
        Ok(())
    }

    /// Writes the keys that have changed. If values are to be uploaded first, writes nothing and
    /// returns false.
    pub(crate) async fn save(
        &self,
        tx: &mut Transaction<'_, '_>,
        keys: &Keyspace,
        rows: Vec<Row>,
        uploads: &mut Uploads,
    ) -> Result<bool, Error> {
        uploads.begin();
        // The heads of the large values, and the values, in the order of their keys.
        let mut large = VecDeque::new();
        for slot in keys.slots().iter().filter(|slot| slot.is_changed) {
            if let Some(object) = slot.object.as_ref().filter(|object| is_large(object, &slot.key)) {
                let mut packed = Vec::new();
                packed::pack(object, &mut packed);
                if let Some(stored) = uploads.find(&packed) {
                    large.push_back((packed, stored));
                }
            }
        }
        if !uploads.wanted.is_empty() {
            return Ok(false);
        }
        let stamp = tx.id().to_bits();
        let mut bytes = Vec::new();
        for (slot, row) in keys.slots().iter().zip(rows).filter(|(slot, _)| slot.is_changed) {
            let name: Name<'_> = (slot.database, &slot.key);
            bytes.clear();
            let mut linked = None;
            match &slot.object {
                Some(object) if is_large(object, &slot.key) => {
                    let (packed, stored) = large.pop_front().ok_or(damaged("a large value was not uploaded"))?;
                    let head = packed::head(&packed).map_err(Error::user)?;
                    begin_row(name, stamp, true, &mut bytes);
                    bytes.extend_from_slice(&packed[..head.bytes]);
                    linked = Some(stored);
                }
                Some(object) => {
                    begin_row(name, stamp, false, &mut bytes);
                    packed::pack(object, &mut bytes);
                }
                None => {}
            }
            match &slot.object {
                Some(_) => self.rows.put_at(tx, &row.record, row.slot, &bytes).await?,
                None if row.stamp.is_some() => _ = self.rows.remove(tx, &row.record).await?,
                None => {}
            }
            let unlinked = match linked {
                Some(stored) => self.large.put(tx, digest_of(name), &stored).await?,
                None if row.is_large => self.large.remove(tx, digest_of(name)).await?,
                None => None,
            };
            uploads.unlinked.extend(unlinked);
        }
        Ok(true)
    }

    /// Uploads the values that an attempt wanted. Discards the uploads that it did not want.
    pub(crate) async fn upload(&self, session: &mut Session, uploads: &mut Uploads) -> Result<(), Error> {
        let (kept, unused) = std::mem::take(&mut uploads.uploads).into_iter().partition(|(_, _, is_linked)| *is_linked);
        uploads.uploads = kept;
        self.discard(session, unused.into_iter().map(|(_, stored, _): (_, _, bool)| stored)).await;
        for bytes in std::mem::take(&mut uploads.wanted) {
            let stored = self.large.upload(session, &bytes).await?;
            uploads.uploads.push((bytes, stored, false));
        }
        Ok(())
    }

    /// Ends a transaction: discards the values that it has unlinked, if it has `committed`, and the
    /// values that it has not linked.
    pub(crate) async fn finish(&self, session: &mut Session, uploads: &mut Uploads, committed: bool) {
        let unlinked = std::mem::take(&mut uploads.unlinked);
        let unused =
            std::mem::take(&mut uploads.uploads).into_iter().filter(|(_, _, is_linked)| !(*is_linked && committed));
        let discarded = unlinked.into_iter().filter(|_| committed).chain(unused.map(|(_, stored, _)| stored));
        self.discard(session, discarded).await;
    }

    /// Deletes values that no key has. What fails here is collected later.
    async fn discard(&self, session: &mut Session, values: impl Iterator<Item = Stored>) {
        for stored in values.collect::<Vec<_>>() {
            if let Err(error) = self.large.discard(session, &stored).await {
                tracing::warn!(%error, "a large value that no key has is not discarded yet");
            }
        }
    }
}

impl Uploads {
    /// Begins an attempt, which links and unlinks nothing yet.
    pub(crate) fn begin(&mut self) {
        self.wanted.clear();
        self.unlinked.clear();
        self.uploads.iter_mut().for_each(|(_, _, is_linked)| *is_linked = false);
    }

    /// Returns the upload of these bytes, which no other key of this attempt has. If there is none,
    /// notes that it is wanted.
    fn find(&mut self, bytes: &[u8]) -> Option<Stored> {
        let free = self.uploads.iter_mut().find(|(uploaded, _, is_linked)| !is_linked && uploaded == bytes);
        if let Some((_, stored, is_linked)) = free {
            *is_linked = true;
            return Some(*stored);
        }
        self.wanted.push(bytes.to_vec());
        None
    }
}

/// The name of a record. Most are short.
type RecordName = SmallVec<[u8; 32]>;

/// Returns the name of a key's record.
fn record_of((database, key): Name<'_>) -> RecordName {
    let (is_digest, digest);
    let name = if key.len() <= NAME_BYTES_MAX {
        is_digest = 0;
        key
    } else {
        (is_digest, digest) = (1, Sha256::digest(key));
        &digest[..]
    };
    let mut record = RecordName::with_capacity(1 + name.len());
    record.push(database << 1 | is_digest);
    record.extend_from_slice(name);
    record
}

/// Returns the name of a key's large value.
fn digest_of((database, key): Name<'_>) -> [u8; 16] {
    let digest = Sha256::new().chain_update([database]).chain_update(key).finalize();
    *digest.first_chunk().expect("a digest has 32 bytes")
}

/// Returns the bytes of the longest packed value of this key that is not large.
fn inline_max(key: &[u8]) -> usize {
    let in_row = if key.len() > NAME_BYTES_MAX { key.len() } else { 0 };
    INLINE_BYTES_MAX.min(ROW_BYTES_MAX - ROW_HEAD_BYTES - in_row)
}

/// Whether the value of this key does not fit the key's record.
fn is_large(object: &Object, key: &[u8]) -> bool {
    packed::length(object) > inline_max(key)
}

/// Begins the value of a key's record: appends what is in front of the packed value, or of its
/// head.
fn begin_row(name: Name<'_>, stamp: u64, is_large: bool, row: &mut Vec<u8>) {
    row.extend(stamp.to_le_bytes());
    row.push(u8::from(is_large));
    if name.1.len() > NAME_BYTES_MAX {
        row.extend((name.1.len() as u16).to_le_bytes());
        row.extend_from_slice(name.1);
    }
}

/// The value of a key's record, taken apart.
struct Parts<'r> {
    stamp: u64,
    is_large: bool,
    /// The key, if the record's name has its digest.
    key: Option<&'r [u8]>,
    /// The packed value, or the head of one that is large.
    packed: &'r [u8],
}

impl<'r> Parts<'r> {
    fn of(record: &[u8], row: &'r [u8]) -> Option<Parts<'r>> {
        let (stamp, rest) = row.split_first_chunk()?;
        let (is_large, mut packed) = rest.split_first()?;
        let mut key = None;
        if record.first()? & 1 == 1 {
            let (length, rest) = packed.split_first_chunk()?;
            let (own, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
            (key, packed) = (Some(own), rest);
        }
        Some(Parts { stamp: u64::from_le_bytes(*stamp), is_large: *is_large == 1, key, packed })
    }
}

impl Found {
    fn of(record: &[u8], row: &[u8]) -> Result<Found, Error> {
        let parts = Parts::of(record, row).ok_or(damaged("a record is too short"))?;
        let head = packed::head(parts.packed).map_err(Error::user)?;
        let key = parts.key.unwrap_or(&record[1..]).to_vec();
        Ok(Found { database: record[0] >> 1, key, kind: head.kind, expiry: head.expiry })
    }
}

fn unpack(bytes: &[u8]) -> Result<Object, Error> {
    packed::unpack(bytes).map_err(Error::user)
}
