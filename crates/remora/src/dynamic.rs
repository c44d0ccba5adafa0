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

use std::fmt;
use std::sync::Arc;

use remora_index::btree::Damaged;
use remora_index::host::LINKS_MAX;
use remora_node::MemoryError;
use remora_node::limits::{FRAME_BYTES_MAX, KEY_BYTES_MAX};
use remora_node::ring::FRAME_OVERHEAD_WORDS;
use remora_txn::{Abort, Inspection, Intent, Limit, log};
use sha2::{Digest, Sha256};

use crate::cluster::{Cluster, Freed, TableOptions};
use crate::error::{Error, Misuse, Named, OpenError, Reason};
use crate::key::Key;
use crate::record::Record;
use crate::table::{Handle, RawTable, Schema};
use crate::transaction::{RawSlot, Transaction};

/// Bytes of the longest key of a table whose keys have different lengths.
pub const DYN_KEY_BYTES_MAX: usize = 512;
/// Bytes of the longest value of a table whose values have different lengths.
pub const DYN_VALUE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a record's key where keys have different lengths.
const DIGEST_BYTES: usize = 16;
/// The last byte of a record's key that is a digest.
const DIGEST: u8 = u8::MAX;
/// Bytes before a head's part of the content.
const TOTAL_BYTES: usize = 4;
/// Bytes of the content that a head has room for: with a key of 8 or 16 bytes, its slot is three
/// lines.
const HEAD_BYTES: usize = 132;
/// Bytes of a part: with a key of 17 bytes, its slot is 16 lines.
const PART_BYTES: usize = 976;
/// Parts of the longest content.
const PARTS_MAX: usize = (DYN_KEY_BYTES_MAX + 2 + DYN_VALUE_BYTES_MAX - HEAD_BYTES).div_ceil(PART_BYTES);

// They fit a log entry also if the index has as many links to log as there can be. FORD's entry has
// up to three structural records for each instead.
const _: () = {
    let structural = 3 * (log::RECORD_WORDS + 3);
    let patches = (1 + LINKS_MAX) * log::PATCH_WORDS;
    let index = if patches > structural { patches } else { structural };
    let head = log::RECORD_WORDS + 4 * 64 / 8 + index;
    let part = log::RECORD_WORDS + 17 * 64 / 8 + index;
    assert!(FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + head + PARTS_MAX * part <= FRAME_BYTES_MAX / 8);
    assert!(PARTS_MAX < 256, "their index is a byte");
};

/// How long the keys, or the values, of a [`DynTable`] are, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lengths {
    /// All of them are this long.
    Exactly(usize),
    /// They have different lengths, up to this one. A short one does not pay for a long one.
    UpTo(usize),
}

impl Lengths {
    fn max(self) -> usize {
        match self {
            Lengths::Exactly(bytes) | Lengths::UpTo(bytes) => bytes,
        }
    }

    fn is_one(self) -> bool {
        matches!(self, Lengths::Exactly(_))
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Exactly(bytes) => write!(f, "{bytes} bytes"),
            Lengths::UpTo(bytes) => write!(f, "up to {bytes} bytes"),
        }
    }
}

/// What the keys and the values of a [`DynTable`] are.
///
/// Every program that opens a table says the schema that it was created with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DynSchema {
    text: String,
    keys: Lengths,
    values: Lengths,
}

impl DynSchema {
    /// Makes a schema. The text says what the bytes mean.
    ///
    /// Keys have 1 to 64 bytes if all of them have one length, and 1 to [`DYN_KEY_BYTES_MAX`]
    /// otherwise. Values have up to [`DYN_VALUE_BYTES_MAX`] bytes if they have different lengths.
    #[must_use]
    pub fn new(text: impl Into<String>, keys: Lengths, values: Lengths) -> DynSchema {
        DynSchema { text: text.into(), keys, values }
    }

    /// Returns the schema of a typed table: a [`DynTable`] can open that table, and the other way
    /// round.
    #[must_use]
    pub fn of<K: Key, V: Record>() -> DynSchema {
        DynSchema::new(V::schema(), Lengths::Exactly(K::BYTES), Lengths::Exactly(V::BYTES))
    }

    /// Whether records hold values alone, as those of typed tables do.
    fn is_plain(&self) -> bool {
        self.keys.is_one() && self.values.is_one()
    }

    /// Bytes of a record's key.
    fn record_key_bytes(&self) -> usize {
        match self.keys {
            Lengths::Exactly(bytes) => bytes,
            Lengths::UpTo(_) => DIGEST_BYTES,
        }
    }

    /// Bytes of the longest content.
    fn content_max(&self) -> usize {
        let key = if self.keys.is_one() || self.keys.max() < DIGEST_BYTES { 0 } else { 2 + self.keys.max() };
        key + self.values.max()
    }

    /// Bytes of the content that a head has room for.
    fn head_bytes(&self) -> usize {
        self.content_max().min(HEAD_BYTES)
    }

    fn has_parts(&self) -> bool {
        !self.is_plain() && self.content_max() > HEAD_BYTES
    }

    fn check(&self) -> Result<(), MemoryError> {
        let limit = |what, value: usize, max: usize| Err(MemoryError::limit(what, value as u64, max as u64));
        match self.keys {
            Lengths::Exactly(0) | Lengths::UpTo(0) => return Err(MemoryError::empty("the length of keys")),
            // A part has one byte more in its key.
            Lengths::Exactly(bytes) if bytes > KEY_BYTES_MAX - usize::from(self.has_parts()) => {
                return limit("bytes of a key", bytes, KEY_BYTES_MAX - usize::from(self.has_parts()));
            }
            Lengths::UpTo(bytes) if bytes > DYN_KEY_BYTES_MAX => {
                return limit("bytes of a key", bytes, DYN_KEY_BYTES_MAX);
            }
            _ => {}
        }
        match self.values {
            Lengths::UpTo(0) => Err(MemoryError::empty("the length of values")),
            values if !self.is_plain() && values.max() > DYN_VALUE_BYTES_MAX => {
                limit("bytes of a value", values.max(), DYN_VALUE_BYTES_MAX)
            }
            _ => Ok(()),
        }
    }

    fn heads(&self) -> Schema {
        let key_bytes = self.record_key_bytes();
        if self.is_plain() {
            return Schema::new(&self.text, key_bytes, self.values.max());
        }
        let text = format!("{}; keys of {}, values of {}", self.text, self.keys, self.values);
        Schema::new(&text, key_bytes, TOTAL_BYTES + self.head_bytes())
    }

    fn parts(&self) -> Schema {
        let text = format!("{}; rest of values of {}", self.text, self.values);
        Schema::new(&text, self.record_key_bytes() + 1, PART_BYTES)
    }
}

/// How to create a [`DynTable`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DynOptions {
    /// Keys that it can hold.
    pub rows: u64,
    /// Bytes of all keys and values together that it can hold; if `None`, `rows` of the longest
    /// ones.
    pub bytes: Option<u64>,
    /// Copies of each record; the cluster's default if `None`.
    pub replicas: Option<u8>,
    /// Parts that it is spread over; one for each memory node if `None`.
    pub shards: Option<u16>,
}

remora_fabric::setters!(DynOptions { bytes: u64, replicas: u8, shards: u16 });

impl DynOptions {
    /// A table of at most `rows` keys, otherwise with the cluster's defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> DynOptions {
        DynOptions { rows, bytes: None, replicas: None, shards: None }
    }

    fn heads(&self) -> TableOptions {
        let mut options = TableOptions::for_rows(self.rows);
        (options.replicas, options.shards) = (self.replicas, self.shards);
        options
    }

    fn parts(&self, schema: &DynSchema) -> TableOptions {
        let longest = self.rows.saturating_mul((schema.content_max() - HEAD_BYTES).div_ceil(PART_BYTES) as u64);
        // The last part of a content is not full.
        let parts =
            self.bytes.map_or(longest, |bytes| (bytes / PART_BYTES as u64).saturating_add(self.rows).min(longest));
        TableOptions { rows: parts.max(1), ..self.heads() }
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
        self.create_together(|cluster| {
            // The one that may not fit comes first.
            let rest = schema.has_parts().then(|| options.parts(schema));
            let parts = rest.map(|rest| cluster.create_raw(&rest_of(name), schema.parts(), rest)).transpose()?;
            let heads = cluster.create_raw(name, schema.heads(), options.heads())?;
            Ok(DynTable { schema: Arc::new(schema.clone()), heads, parts })
        })
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
        let mut names = vec![name.to_owned()];
        names.extend(Some(rest_of(name)).filter(|rest| self.has_table(rest)));
        self.drop_together(&names)
    }

    /// Gives a table whose keys and values are bytes another name, with all the tables that it
    /// consists of, in one change of the catalog. Otherwise like
    /// [`rename_table`](Cluster::rename_table).
    pub fn rename_dyn_table(&self, from: &str, to: &str) -> Result<(), OpenError> {
        let mut names = vec![(from.to_owned(), to.to_owned())];
        names.extend(Some((rest_of(from), rest_of(to))).filter(|(rest, _)| self.has_table(rest)));
        self.rename_together(names)
    }
}

impl Cluster {
    /// Reads a whole table whose keys and values are bytes, while nothing runs: what there is of
    /// its records, and, if it has such, of the rests of long values.
    pub fn inspect_dyn_table(&self, table: &DynTable) -> Result<Vec<Inspection>, Error> {
        let all = [Some(&table.heads), table.parts.as_ref()];
        all.into_iter().flatten().map(|one| self.inspect_bytes(one.handle(), &mut |_, _| ())).collect()
    }
}

fn rest_of(name: &str) -> String {
    format!("{name}/rest")
}

/// A key, as the table's records have it.
struct RecordKey {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
    /// Whether the content begins with the key.
    is_digest: bool,
}

impl RecordKey {
    fn record(&self) -> remora_record::Key {
        remora_record::Key::new(&self.bytes[..self.length]).expect("a record's key has at most 64 bytes")
    }

    /// The key of a part.
    fn part(&self, index: usize) -> remora_record::Key {
        let mut bytes = self.bytes;
        bytes[self.length] = index as u8;
        remora_record::Key::new(&bytes[..=self.length]).expect("one byte was left for parts")
    }
}

/// What is done to a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Insert,
    Put,
    Update,
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

    /// Returns the value of a key; `None` if the key is not there.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let record = self.record_key(key)?;
        let head = tx.name_raw(self.heads.handle(), &record.record(), Intent::Read);
        tx.fetch().await?;
        let Some(total) = self.total(tx, head)? else { return Ok(None) };
        let parts: Vec<RawSlot> =
            (0..self.parts_of(total)).map(|index| self.name_part(tx, &record, index, Intent::Read)).collect();
        if !parts.is_empty() {
            tx.fetch().await?;
        }
        self.value(tx, key, &record, head, &parts).map(Some)
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Vec<u8>, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. Fails with [`Error::NotFound`] if the
    /// key is not there, and with [`Misuse::NotInPlace`] if the table's values have different
    /// lengths or are not kept in one piece: replace them by [`DynTable::update`].
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: &[u8]) -> Result<&'t mut [u8], Error> {
        if !self.schema.values.is_one() || self.parts.is_some() {
            return Err(Misuse::NotInPlace { table: self.name().to_owned() }.into());
        }
        let record = self.record_key(key)?;
        let head = tx.name_raw(self.heads.handle(), &record.record(), Intent::Update);
        tx.fetch().await?;
        if self.total(tx, head)?.is_none() {
            return Err(self.missing(key));
        }
        let begin = tx.raw(head)?.map_or(0, <[u8]>::len) - self.schema.values.max();
        Ok(&mut tx.raw_mut(head)?[begin..])
    }

    /// Inserts a key. Fails with [`Error::Exists`] if the key is there.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.change(tx, key, value, Change::Insert).await.map(|_| ())
    }

    /// Inserts a key, or replaces its value. Returns the value that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.change(tx, key, value, Change::Put).await
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.change(tx, key, value, Change::Update).await.map(|_| ())
    }

    /// Deletes a key. Returns the value that it had; `None` if the key was not there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let record = self.record_key(key)?;
        let head = tx.name_raw(self.heads.handle(), &record.record(), Intent::Delete);
        tx.fetch().await?;
        let Some(total) = self.total(tx, head)? else { return Ok(None) };
        let parts: Vec<RawSlot> =
            (0..self.parts_of(total)).map(|index| self.name_part(tx, &record, index, Intent::Delete)).collect();
        if !parts.is_empty() {
            tx.fetch().await?;
        }
        let before = self.value(tx, key, &record, head, &parts)?;
        parts.into_iter().chain([head]).try_for_each(|slot| tx.delete_raw(slot))?;
        Ok(Some(before))
    }

    async fn change(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        value: &[u8],
        change: Change,
    ) -> Result<Option<Vec<u8>>, Error> {
        let record = self.record_key(key)?;
        let content = self.content(key, value, &record)?;
        let wanted = self.parts_of(content.len());
        let intent = if change == Change::Update { Intent::Update } else { Intent::Insert };
        let head = tx.name_raw(self.heads.handle(), &record.record(), intent);
        let mut parts: Vec<RawSlot> = Vec::new();
        if change == Change::Insert {
            // Most probably nothing of it is there: one round trip for all.
            parts.extend((0..wanted).map(|index| self.name_part(tx, &record, index, Intent::Insert)));
        }
        tx.fetch().await?;
        let there = self.total(tx, head)?;
        match (change, there) {
            (Change::Insert, Some(_)) => return Err(Error::Exists(Named::new(self.name(), key))),
            (Change::Update, None) => return Err(self.missing(key)),
            _ => {}
        }
        let had = there.map_or(0, |total| self.parts_of(total));
        if change != Change::Insert && had.max(wanted) > 0 {
            parts.extend((0..had.max(wanted)).map(|index| {
                let intent = match index {
                    _ if index >= had => Intent::Insert,
                    _ if index >= wanted => Intent::Delete,
                    _ => Intent::Update,
                };
                self.name_part(tx, &record, index, intent)
            }));
            tx.fetch().await?;
        }
        // From here on nothing is awaited.
        let before = there.map(|_| self.value(tx, key, &record, head, &parts[..had])).transpose()?;
        self.write(tx, &content, (head, &parts), (there.is_some(), had))?;
        Ok(before)
    }

    /// Writes a content to the records that have been fetched for it.
    fn write(
        &self,
        tx: &mut Transaction<'_, '_>,
        content: &[u8],
        (head, parts): (RawSlot, &[RawSlot]),
        (is_there, had): (bool, usize),
    ) -> Result<(), Error> {
        if self.schema.is_plain() {
            return tx.put_raw(head, content, is_there);
        }
        let (first, rest) = content.split_at(content.len().min(self.schema.head_bytes()));
        let mut bytes = [0; TOTAL_BYTES + HEAD_BYTES];
        bytes[..TOTAL_BYTES].copy_from_slice(&(content.len() as u32).to_le_bytes());
        bytes[TOTAL_BYTES..][..first.len()].copy_from_slice(first);
        tx.put_raw(head, &bytes[..TOTAL_BYTES + first.len()], is_there)?;
        let mut rest = rest.chunks(PART_BYTES);
        for (index, slot) in parts.iter().enumerate() {
            match rest.next() {
                Some(part) => tx.put_raw(*slot, part, index < had)?,
                None => tx.delete_raw(*slot)?,
            }
        }
        Ok(())
    }

    /// How long the content is that a head begins; `None` if the key is not there.
    fn total(&self, tx: &Transaction<'_, '_>, head: RawSlot) -> Result<Option<usize>, Error> {
        let Some(bytes) = tx.raw(head)? else { return Ok(None) };
        if self.schema.is_plain() {
            return Ok(Some(bytes.len()));
        }
        let total = bytes.first_chunk().map(|total| u32::from_le_bytes(*total) as usize);
        let is_one = |total: &usize| {
            *total <= self.schema.content_max() && bytes.len() - TOTAL_BYTES == (*total).min(self.schema.head_bytes())
        };
        total.filter(is_one).map(Some).ok_or_else(|| self.damaged("the length of a value"))
    }

    /// The value of a key, whose records have been fetched.
    fn value(
        &self,
        tx: &Transaction<'_, '_>,
        key: &[u8],
        record: &RecordKey,
        head: RawSlot,
        parts: &[RawSlot],
    ) -> Result<Vec<u8>, Error> {
        let (Some(total), Some(bytes)) = (self.total(tx, head)?, tx.raw(head)?) else {
            return Err(Abort::Changed.into());
        };
        if self.schema.is_plain() {
            return Ok(bytes.to_vec());
        }
        let mut content = Vec::with_capacity(total);
        content.extend_from_slice(&bytes[TOTAL_BYTES..]);
        for part in parts {
            content.extend_from_slice(tx.raw(*part)?.ok_or(Error::from(Abort::Changed))?);
        }
        if content.len() != total {
            return Err(Abort::Changed.into()); // a part of it was read before the rest
        }
        if !record.is_digest {
            return Ok(content);
        }
        let begin = content.first_chunk().map(|length| 2 + usize::from(u16::from_le_bytes(*length)));
        match begin.and_then(|begin| content.split_at_checked(begin)) {
            Some((own, value)) if own[2..] == *key => Ok(value.to_vec()),
            _ => Err(self.damaged("a key whose digest is that of another")),
        }
    }

    /// The content of a key and its value.
    fn content(&self, key: &[u8], value: &[u8], record: &RecordKey) -> Result<Vec<u8>, Error> {
        let (found, lengths) = (value.len(), self.schema.values);
        if found > lengths.max() || lengths.is_one() && found != lengths.max() {
            let limit = if lengths.is_one() {
                Limit::ValueLength { found, expected: lengths.max() }
            } else {
                Limit::Value { found, max: lengths.max() }
            };
            return Err(Error::Limit(Reason::of(limit, Named::new(self.name(), key))));
        }
        let mut content = Vec::with_capacity(2 + key.len() + value.len());
        if record.is_digest {
            content.extend_from_slice(&(key.len() as u16).to_le_bytes());
            content.extend_from_slice(key);
        }
        content.extend_from_slice(value);
        Ok(content)
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
        let (found, lengths) = (key.len(), self.schema.keys);
        let refused = |limit| Err(Error::Limit(Reason::of(limit, Named::new(self.name(), key))));
        let mut bytes = [0; KEY_BYTES_MAX];
        match lengths {
            Lengths::Exactly(expected) if found != expected => refused(Limit::Key { found, expected }),
            Lengths::Exactly(length) => {
                bytes[..length].copy_from_slice(key);
                Ok(RecordKey { bytes, length, is_digest: false })
            }
            Lengths::UpTo(max) if found == 0 || found > max => refused(Limit::KeyLength { found, max }),
            Lengths::UpTo(_) if found < DIGEST_BYTES => {
                bytes[..found].copy_from_slice(key);
                bytes[DIGEST_BYTES - 1] = found as u8;
                Ok(RecordKey { bytes, length: DIGEST_BYTES, is_digest: false })
            }
            Lengths::UpTo(_) => {
                bytes[..DIGEST_BYTES].copy_from_slice(&Sha256::digest(key)[..DIGEST_BYTES]);
                bytes[DIGEST_BYTES - 1] = DIGEST;
                Ok(RecordKey { bytes, length: DIGEST_BYTES, is_digest: true })
            }
        }
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
