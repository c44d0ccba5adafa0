//! Tables whose shape is known at run time only: keys and values are bytes.
//!
//! ```text
//! table NAME          key             -> head:  total u32, then the first bytes of the content
//! table NAME/rest     (key, index u8) -> 976 bytes of the content, if it is longer than a head
//!
//! content             the value; behind the key's length u16 and the key, if that is not the
//!                     record's own
//! record's key        the key, if all keys have one length; otherwise 16 bytes:
//!                     | key, zero-padded : 15 bytes | length : 1 |   up to 15 bytes
//!                     | digest of the key : 15 bytes | 255 : 1 |     longer keys
//! ```
//!
//! A table whose keys have one length and whose values have one length is laid out as a typed
//! [`Table`](crate::Table) is: a record holds the value alone. So a typed handle can open it, if
//! the schemas agree.
//!
//! All of it is records of ordinary tables, and every operation is a part of the transaction that
//! runs it. So values are replicated, recovered and serializable under every protocol.
//!
//! # Invariants
//!
//! 1. **In every committed state a head says how long its content is, and exactly the parts that
//!    follow from that are there.** A reader that misses one has an old head: it aborts as
//!    [`Abort::Changed`], and is tried again.
//! 2. **An operation fetches all that it needs before it changes anything**, and awaits nothing
//!    from its first change on. So its future can be dropped at any await: the transaction then
//!    holds none of it, or all of it.
//! 3. **A record is of one key.** A digest has 120 bits, and every reader compares the key. Two
//!    keys with one digest are an error ([`Error::Damaged`]), never a wrong value.
//!
//! # Round trips
//!
//! With locations cached, reading takes one round trip for a content that fits a head (132 bytes),
//! and one more for the rest of a longer one. [`DynTable::insert`] takes one for all of it. What
//! replaces or deletes a longer content takes two.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use remora_index::btree::Damaged;
use remora_node::MemoryError;
use remora_txn::{Abort, Inspection, Intent};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::cluster::{Cluster, Freed, TableOptions};
use crate::error::{Error, Misuse, Named, OpenError};
use crate::table::{Handle, RawTable};
use crate::transaction::{RawSlot, Transaction};

mod schema;
mod slots;
#[cfg(test)]
mod tests;
mod walk;

use schema::{DIGEST_BYTES, HEAD_BYTES, PART_BYTES, TOTAL_BYTES};
pub use schema::{DYN_KEY_BYTES_MAX, DYN_VALUE_BYTES_MAX, DynSchema, Lengths};
pub use slots::DynSlot;
pub use walk::Walked;

/// The last byte of a record's key that is a digest.
const DIGEST: u8 = u8::MAX;

/// How to create a [`DynTable`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DynOptions {
    /// Keys that it has room for at first.
    pub rows: u64,
    /// Bytes of all keys and values together that it has room for at first; if `None`, `rows` of
    /// the longest ones.
    pub bytes: Option<u64>,
    /// Copies of each record; the cluster's default if `None`.
    pub replicas: Option<u8>,
    /// Parts that it is spread over; one for each memory node that is not a spare if `None`.
    pub shards: Option<u16>,
    /// Whether the table grows before it is full: see
    /// [`TableOptions::grows`](crate::TableOptions::grows).
    pub grows: bool,
    /// Whether the table takes as little memory as its index allows: see
    /// [`TableOptions::dense`](crate::TableOptions::dense).
    pub dense: bool,
}

remora_fabric::setters!(DynOptions { bytes: u64, replicas: u8, shards: u16, grows: bool, dense: bool });

impl DynOptions {
    /// A table of `rows` keys, which grows when it needs more, otherwise with the cluster's
    /// defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> DynOptions {
        DynOptions { rows, bytes: None, replicas: None, shards: None, grows: true, dense: false }
    }

    fn table(&self) -> TableOptions {
        let DynOptions { rows, replicas, shards, grows, dense, .. } = *self;
        TableOptions { replicas, shards, grows, dense, ..TableOptions::for_rows(rows) }
    }
}

/// A table whose keys and values are bytes, and whose shape is known at run time only. Made by
/// [`Cluster::create_dyn_table`]; clones are cheap.
///
/// Its verbs are those of a [`Table`](crate::Table). Values of different lengths are read and
/// written whole; [`DynTable::get_mut`] is for values of one length.
///
/// ```
/// use remora::{Cluster, DynOptions, DynSchema, Lengths};
///
/// let cluster = Cluster::embedded().open()?;
/// let schema = DynSchema::new("profiles, as JSON", Lengths::UpTo(128), Lengths::UpTo(4096));
/// let profiles = cluster.create_dyn_table("profiles", &schema, DynOptions::for_rows(1000))?;
/// let mut worker = cluster.worker(Default::default())?;
/// let found = worker.block_on(async |session| {
///     session
///         .transact(async |tx| {
///             profiles.put(tx, b"anna@example.org", br#"{"visits": 1}"#).await?;
///             profiles.get(tx, b"anna@example.org").await
///         })
///         .await
/// })?;
/// assert_eq!(found.as_deref(), Some(&br#"{"visits": 1}"#[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DynTable {
    schema: Arc<DynSchema>,
    heads: RawTable,
    /// `None` if every content fits a head.
    parts: Option<RawTable>,
}

impl Cluster {
    /// Creates a table whose keys and values are bytes, empty: table `name`, and table `name/rest`
    /// if there can be contents that a record of `name` has no room for.
    pub fn create_dyn_table(&self, name: &str, schema: &DynSchema, options: DynOptions) -> Result<DynTable, OpenError> {
        schema.check().map_err(|error| error.of_table(name))?;
        if options.rows == 0 {
            return Err(MemoryError::empty("the number of rows of a table").of_table(name).into());
        }
        self.create_together(|cluster| cluster.create_dyn_parts(name, schema, options.table(), options.bytes))
    }

    /// Creates the tables of a [`DynTable`]. The table of heads has `options`; that of parts, too,
    /// with rows for contents of `bytes` bytes together.
    pub(crate) fn create_dyn_parts(
        &self,
        name: &str,
        schema: &DynSchema,
        options: TableOptions,
        bytes: Option<u64>,
    ) -> Result<DynTable, OpenError> {
        // The one that may not fit comes first.
        let create = || {
            let rows = schema.parts_for(options.rows, bytes);
            self.create_raw(&rest_of(name), schema.parts(), TableOptions { rows, ..options })
        };
        let parts = schema.has_parts().then(create).transpose()?;
        let heads = self.create_raw(name, schema.heads(), options)?;
        Ok(DynTable { schema: Arc::new(schema.clone()), heads, parts })
    }

    /// Opens a table whose keys and values are bytes. Fails if it was created with another schema.
    pub fn open_dyn_table(&self, name: &str, schema: &DynSchema) -> Result<DynTable, OpenError> {
        schema.check().map_err(|error| error.of_table(name))?;
        let heads = self.open_raw(name, schema.heads())?;
        let parts = schema.has_parts().then(|| self.open_raw(&rest_of(name), schema.parts())).transpose()?;
        Ok(DynTable { schema: Arc::new(schema.clone()), heads, parts })
    }

    /// Opens a table whose keys and values are bytes, or creates it, empty: see
    /// [`open_or_create_table`](Cluster::open_or_create_table).
    pub fn open_or_create_dyn_table(
        &self,
        name: &str,
        schema: &DynSchema,
        options: DynOptions,
    ) -> Result<DynTable, OpenError> {
        self.open_or_create(|| self.open_dyn_table(name, schema), || self.create_dyn_table(name, schema, options))
    }

    /// Drops a table whose keys and values are bytes, with all the tables that it consists of, in
    /// one change of the catalog. Otherwise like [`drop_table`](Cluster::drop_table).
    pub fn drop_dyn_table(&self, name: &str) -> Result<Freed, OpenError> {
        self.drop_together(&self.dyn_parts(name)?)
    }

    /// The names of the tables that a table of bytes consists of.
    fn dyn_parts(&self, name: &str) -> Result<Vec<String>, OpenError> {
        let mut names = vec![name.to_owned()];
        names.extend(self.existing(rest_of(name))?);
        Ok(names)
    }

    /// Gives a table whose keys and values are bytes another name, with all the tables that it
    /// consists of, in one change of the catalog. Otherwise like
    /// [`rename_table`](Cluster::rename_table).
    pub fn rename_dyn_table(&self, from: &str, to: &str) -> Result<(), OpenError> {
        self.rename_together(from, to, self.dyn_parts(from)?)
    }
}

impl Cluster {
    /// Reads a whole table whose keys and values are bytes, while nothing runs: what there is of
    /// its records, and, if it has such, of the rests of long values.
    pub fn inspect_dyn_table(&self, table: &DynTable) -> Result<Vec<Inspection>, Error> {
        let (heads, parts) = self.inspect_dyn_parts(table, &mut |_, _| ())?;
        Ok([heads].into_iter().chain(parts).collect())
    }

    /// Inspects the tables of a [`DynTable`], and shows the bytes of each head.
    pub(crate) fn inspect_dyn_parts(
        &self,
        table: &DynTable,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(Inspection, Option<Inspection>), Error> {
        let parts = table.parts.as_ref().map(|parts| self.inspect_bytes(parts.handle(), &mut |_, _| ()));
        Ok((self.inspect_bytes(table.heads.handle(), visit)?, parts.transpose()?))
    }
}

pub(crate) fn rest_of(name: &str) -> String {
    format!("{name}/rest")
}

/// Bytes of most records' keys.
const RECORD_KEY_BYTES: usize = 24;

/// A key, as the table's records have it.
struct RecordKey {
    bytes: SmallVec<[u8; RECORD_KEY_BYTES]>,
    /// Bytes of the content that are the key and its length: 0 if the record's key is the key.
    own: usize,
}

impl RecordKey {
    fn of_record(record: &remora_record::Key) -> RecordKey {
        RecordKey { bytes: SmallVec::from_slice(record.bytes()), own: 0 }
    }

    fn record(&self) -> remora_record::Key {
        remora_record::Key::new(&self.bytes).expect("a record's key has at most 64 bytes")
    }

    /// The key of a part.
    fn part(&self, index: usize) -> remora_record::Key {
        let mut bytes = self.bytes.clone();
        bytes.push(index as u8);
        remora_record::Key::new(&bytes).expect("one byte was left for parts")
    }
}

/// What a transaction is about to do with a key; the bytes of the value that it writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Remove,
    Insert(usize),
    Put(usize),
    Update(usize),
}

/// The records of a key that a transaction has named, and then fetched.
pub(crate) struct Fetched {
    record: RecordKey,
    head: RawSlot,
    parts: Vec<RawSlot>,
    /// How long the content is; `None` if the key is not there.
    total: Option<usize>,
}

impl Fetched {
    /// A key that is about to be named.
    fn of(record: RecordKey) -> Fetched {
        Fetched { record, head: None, parts: Vec::new(), total: None }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.total.is_some()
    }
}

impl DynTable {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.heads.name()
    }

    /// The schema that it was opened with.
    #[must_use]
    pub fn schema(&self) -> &DynSchema {
        &self.schema
    }

    /// The error of a transaction that needs a key of this table which is not there.
    #[must_use]
    pub fn missing(&self, key: &[u8]) -> Error {
        Error::NotFound(Named::new(self.name(), key))
    }

    /// Names a key, for what the transaction is about to do with it. The next round trip brings its
    /// record, together with all others that were named by then.
    pub fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: &[u8], intent: Intent) -> Result<(), Error> {
        let record = self.record_key(key)?;
        tx.name_raw(self.heads.handle(), &record.record(), intent);
        Ok(())
    }

    /// Returns the values of several keys, in their order; `None` for each key that is not there.
    ///
    /// Takes one round trip, and another one if some values are longer than 132 bytes.
    /// [`Transaction::get_many`] also takes keys of different tables.
    pub async fn get_many(
        &self,
        tx: &mut Transaction<'_, '_>,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let all = self.fetch_all(tx, keys.iter().map(AsRef::as_ref)).await?;
        let value = |(key, found): (&_, &Fetched)| match found.is_there() {
            true => Ok(Some(self.value(tx, AsRef::as_ref(key), found)?.into_owned())),
            false => Ok(None),
        };
        keys.iter().zip(&all).map(value).collect()
    }

    /// Returns the value of a key; `None` if the key is not there.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.read(tx, key).await?.map(Cow::into_owned))
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Vec<u8>, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. Fails with [`Error::NotFound`] if the
    /// key is not there, and with [`Misuse::NotInPlace`] if the table's values have different
    /// lengths or are not kept in one piece: replace them by [`DynTable::update`].
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: &[u8]) -> Result<&'t mut [u8], Error> {
        if !self.schema.values().is_one() || self.parts.is_some() {
            return Err(Misuse::NotInPlace { table: self.name().to_owned() }.into());
        }
        self.read_mut(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Inserts a key. Fails with [`Error::Exists`] if the key is there.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.change(tx, key, value, Access::Insert(value.len())).await.map(drop)
    }

    /// Inserts a key, or replaces its value. Returns the value that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.change(tx, key, value, Access::Put(value.len())).await
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.change(tx, key, value, Access::Update(value.len())).await.map(drop)
    }

    /// Deletes a key. Returns the value that it had; `None` if the key was not there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let found = self.fetch(tx, key, Access::Remove).await?;
        if !found.is_there() {
            return Ok(None);
        }
        let before = self.value(tx, key, &found)?.into_owned();
        self.delete(tx, &found)?;
        Ok(Some(before))
    }

    async fn change(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        value: &[u8],
        access: Access,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.schema.check_value(self.name(), key, value)?;
        let found = self.fetch(tx, key, access).await?;
        match (access, found.is_there()) {
            (Access::Insert(_), true) => return Err(Error::Exists(Named::new(self.name(), key))),
            (Access::Update(_), false) => return Err(self.missing(key)),
            _ => {}
        }
        // From here on nothing is awaited.
        let before = if found.is_there() { Some(self.value(tx, key, &found)?.into_owned()) } else { None };
        self.write(tx, key, value, &found)?;
        Ok(before)
    }
}

/// The steps of operations, which ordered tables run together with their own.
impl DynTable {
    /// Whether there can be contents that are not kept in one piece.
    pub(crate) fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// The table of heads.
    pub(crate) fn heads(&self) -> &RawTable {
        &self.heads
    }

    /// Returns the value of a key, without a copy if it is kept in one piece.
    pub(crate) async fn read<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        key: &[u8],
    ) -> Result<Option<Cow<'t, [u8]>>, Error> {
        let found = self.fetch(tx, key, Access::Read).await?;
        if found.is_there() { self.value(tx, key, &found).map(Some) } else { Ok(None) }
    }

    /// Returns the value of a key, to be changed in place: values have one length, and no parts.
    pub(crate) async fn read_mut<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        key: &[u8],
    ) -> Result<Option<&'t mut [u8]>, Error> {
        let found = self.fetch(tx, key, Access::Update(self.schema.values().max())).await?;
        let Some(bytes) = tx.raw(found.head)? else { return Ok(None) };
        let before = if self.schema.is_plain() { 0 } else { TOTAL_BYTES };
        let begin = before + self.value_at(&bytes[before..], key, &found)?;
        Ok(Some(&mut tx.raw_mut(found.head)?[begin..]))
    }

    /// Fetches all that an access to a key needs. Nothing is changed yet.
    pub(crate) async fn fetch(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        access: Access,
    ) -> Result<Fetched, Error> {
        let mut named = self.name_key(tx, key, access)?;
        tx.fetch().await?;
        if self.name_rest(tx, &mut named, access)? {
            tx.fetch().await?;
        }
        Ok(named)
    }

    /// Names what a key's value has beyond its head, which has been fetched. Returns whether there
    /// is such.
    pub(crate) fn name_rest_of(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<bool, Error> {
        let mut named = self.name_key(tx, key, Access::Read)?;
        self.name_rest(tx, &mut named, Access::Read)
    }

    /// Fetches the records of several keys, to be read.
    pub(crate) async fn fetch_all<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Vec<Fetched>, Error> {
        let mut all = keys.map(|key| self.name_key(tx, key, Access::Read)).collect::<Result<Vec<_>, _>>()?;
        self.fetch_named(tx, &mut all).await?;
        Ok(all)
    }

    /// Fetches records whose heads were named, with what the values have beyond them, to be read.
    async fn fetch_named<'f>(
        &self,
        tx: &mut Transaction<'_, '_>,
        all: impl IntoIterator<Item = &'f mut Fetched>,
    ) -> Result<(), Error> {
        tx.fetch().await?;
        let mut has_more = false;
        for named in all {
            has_more |= self.name_rest(tx, named, Access::Read)?;
        }
        if has_more {
            tx.fetch().await?;
        }
        Ok(())
    }

    /// Names the records of a key that an access needs, as far as they are known before the head is
    /// there.
    pub(crate) fn name_key(&self, tx: &mut Transaction<'_, '_>, key: &[u8], access: Access) -> Result<Fetched, Error> {
        let intent = match access {
            Access::Read => Intent::Read,
            Access::Remove => Intent::Delete,
            Access::Insert(_) | Access::Put(_) => Intent::Insert,
            Access::Update(_) => Intent::Update,
        };
        let mut named = self.name_head(tx, key, intent)?;
        // Most probably nothing of what is inserted is there: one round trip for all.
        if let Access::Insert(bytes) = access {
            let parts = 0..self.parts_of(named.record.own + bytes);
            named.parts = parts.map(|index| self.name_part(tx, &named.record, index, Intent::Insert)).collect();
        }
        Ok(named)
    }

    /// Names the head of a key.
    fn name_head(&self, tx: &mut Transaction<'_, '_>, key: &[u8], intent: Intent) -> Result<Fetched, Error> {
        let record = self.record_key(key)?;
        let head = tx.name_raw(self.heads.handle(), &record.record(), intent);
        Ok(Fetched { head, ..Fetched::of(record) })
    }

    /// Names the rest, once the head is there. Returns whether there is such.
    fn name_rest(&self, tx: &mut Transaction<'_, '_>, named: &mut Fetched, access: Access) -> Result<bool, Error> {
        named.total = self.total(tx, named.head)?;
        let had = named.total.map_or(0, |total| self.parts_of(total));
        let wanted = match access {
            Access::Insert(_) => return Ok(false),
            Access::Update(_) if !named.is_there() => return Ok(false),
            Access::Put(bytes) | Access::Update(bytes) => self.parts_of(named.record.own + bytes),
            Access::Read => had,
            Access::Remove => 0,
        };
        for index in 0..had.max(wanted) {
            let intent = match access {
                Access::Read => Intent::Read,
                _ if index >= had => Intent::Insert,
                _ if index >= wanted => Intent::Delete,
                _ => Intent::Update,
            };
            named.parts.push(self.name_part(tx, &named.record, index, intent));
        }
        Ok(had.max(wanted) > 0)
    }

    /// Writes the value of a key whose records have been fetched for it.
    pub(crate) fn write(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        value: &[u8],
        found: &Fetched,
    ) -> Result<(), Error> {
        if self.schema.is_plain() {
            return tx.put_raw(found.head, value, found.is_there());
        }
        let (mut with_key, mut content) = (SmallVec::<[u8; 128]>::new(), value);
        if found.record.own > 0 {
            with_key.extend_from_slice(&(key.len() as u16).to_le_bytes());
            with_key.extend_from_slice(key);
            with_key.extend_from_slice(value);
            content = &with_key;
        }
        let had = found.total.map_or(0, |total| self.parts_of(total));
        let (first, rest) = content.split_at(content.len().min(self.schema.head_bytes()));
        let mut bytes = [0; TOTAL_BYTES + HEAD_BYTES];
        bytes[..TOTAL_BYTES].copy_from_slice(&(content.len() as u32).to_le_bytes());
        bytes[TOTAL_BYTES..][..first.len()].copy_from_slice(first);
        tx.put_raw(found.head, &bytes[..TOTAL_BYTES + first.len()], found.is_there())?;
        let mut rest = rest.chunks(PART_BYTES);
        for (index, slot) in found.parts.iter().enumerate() {
            match rest.next() {
                Some(part) => tx.put_raw(*slot, part, index < had)?,
                None => tx.delete_raw(*slot)?,
            }
        }
        Ok(())
    }

    /// Deletes the records of a key, which have been fetched for that.
    pub(crate) fn delete(&self, tx: &mut Transaction<'_, '_>, found: &Fetched) -> Result<(), Error> {
        found.parts.iter().chain([&found.head]).try_for_each(|slot| tx.delete_raw(*slot))
    }

    /// How long the content is that a head begins; `None` if the key is not there.
    fn total(&self, tx: &Transaction<'_, '_>, head: RawSlot) -> Result<Option<usize>, Error> {
        let Some(bytes) = tx.raw(head)? else { return Ok(None) };
        let total = match bytes.first_chunk() {
            _ if self.schema.is_plain() => Some(bytes.len()).filter(|bytes| *bytes == self.schema.values().max()),
            Some(total) => Some(u32::from_le_bytes(*total) as usize).filter(|total| {
                let first = (*total).min(self.schema.head_bytes());
                *total <= self.schema.content_max() && bytes.len() - TOTAL_BYTES == first
            }),
            None => None,
        };
        total.map(Some).ok_or_else(|| self.damaged("the length of a value"))
    }

    /// The value of a key, whose records have been fetched.
    pub(crate) fn value<'t>(
        &self,
        tx: &'t Transaction<'_, '_>,
        key: &[u8],
        found: &Fetched,
    ) -> Result<Cow<'t, [u8]>, Error> {
        let mut content = self.content(tx, found)?;
        if !self.schema.is_plain() {
            let begin = self.value_at(&content, key, found)?;
            match &mut content {
                Cow::Borrowed(content) => *content = &content[begin..],
                Cow::Owned(content) => _ = content.drain(..begin),
            }
        }
        Ok(content)
    }

    /// The content of a record, whose parts have been fetched.
    fn content<'t>(&self, tx: &'t Transaction<'_, '_>, found: &Fetched) -> Result<Cow<'t, [u8]>, Error> {
        let (Some(total), Some(bytes)) = (self.total(tx, found.head)?, tx.raw(found.head)?) else {
            return Err(Abort::Changed.into());
        };
        if self.schema.is_plain() {
            return Ok(Cow::Borrowed(bytes));
        }
        let first = &bytes[TOTAL_BYTES..];
        if first.len() == total {
            return Ok(Cow::Borrowed(first));
        }
        let mut content = Vec::with_capacity(total);
        content.extend_from_slice(first);
        // Parts behind them were named to be inserted.
        for part in found.parts.iter().take(self.parts_of(total)) {
            content.extend_from_slice(tx.raw(*part)?.ok_or(Error::from(Abort::Changed))?);
        }
        if content.len() != total {
            return Err(Abort::Changed.into()); // a part of it was read before the rest
        }
        Ok(Cow::Owned(content))
    }

    /// Where the value begins in a content.
    fn value_at(&self, content: &[u8], key: &[u8], found: &Fetched) -> Result<usize, Error> {
        let own = found.record.own;
        let is_own = |begin: &[u8]| begin.strip_prefix(&(key.len() as u16).to_le_bytes()) == Some(key);
        if own > 0 && !content.get(..own).is_some_and(is_own) {
            return Err(self.damaged("a key whose digest is that of another"));
        }
        if self.schema.values().is_one() && content.len() - own != self.schema.values().max() {
            return Err(self.damaged("the length of a value"));
        }
        Ok(own)
    }

    /// Parts of a content of this length.
    fn parts_of(&self, total: usize) -> usize {
        if self.schema.is_plain() { 0 } else { total.saturating_sub(self.schema.head_bytes()).div_ceil(PART_BYTES) }
    }

    fn name_part(&self, tx: &mut Transaction<'_, '_>, record: &RecordKey, index: usize, intent: Intent) -> RawSlot {
        let parts: Handle<'_> = self.parts.as_ref().unwrap_or(&self.heads).handle();
        tx.name_raw(parts, &record.part(index), intent)
    }

    fn record_key(&self, key: &[u8]) -> Result<RecordKey, Error> {
        self.schema.check_key(self.name(), key)?;
        let (length, own) = match self.schema.keys() {
            Lengths::Exactly(length) => (length, 0),
            Lengths::UpTo(_) if key.len() < DIGEST_BYTES => (DIGEST_BYTES, 0),
            Lengths::UpTo(_) => (DIGEST_BYTES, 2 + key.len()),
        };
        let mut bytes = SmallVec::from_elem(0, length);
        if own > 0 {
            bytes.copy_from_slice(&Sha256::digest(key)[..DIGEST_BYTES]);
            bytes[DIGEST_BYTES - 1] = DIGEST;
        } else {
            bytes[..key.len()].copy_from_slice(key);
            if !self.schema.keys().is_one() {
                bytes[DIGEST_BYTES - 1] = key.len() as u8;
            }
        }
        Ok(RecordKey { bytes, own })
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { table: self.name().to_owned(), what: Damaged(what) }
    }
}

impl fmt::Debug for DynTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynTable").field("name", &self.name()).field("schema", &self.schema).finish_non_exhaustive()
    }
}
