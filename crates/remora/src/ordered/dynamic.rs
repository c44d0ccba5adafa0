//! Ordered tables of bytes: [`DynOrdered`], a thin layer over a [`Tree`].
//!
//! ```text
//! key in a node      the key, if all keys have one length, or if nodes are slotted; otherwise
//!                    | key, zero-padded : max | length : 1 |
//! value in a leaf    the value, if all values have one length; otherwise
//!                    | value, zero-padded : max | length : 1 |
//! longer values      a [`DynTable`](crate::DynTable) NAME/values, by the key as nodes have it
//! ```
//!
//! Nodes are slotted if keys have different lengths and are too long, when they are padded, to be
//! the key of a record. Values that are out of line then lie by digests of the longer keys.
//!
//! A shorter key is padded with the least byte. Where two keys are equal with their padding, the
//! shorter one comes first. So padded keys compare as keys do: byte by byte, and a key comes before
//! its extensions.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use remora_txn::{Inspection, Intent};

use super::keys::{TreeKey, pad, padded_bytes, stored, unpadded};
use super::load::TreeInspection;
use super::options::OrderedOptions;
use super::scanning::Order;
use super::tree::Tree;
use crate::cluster::Cluster;
use crate::dynamic::{DynSchema, DynTable, Lengths};
use crate::error::{Error, Misuse, Named, OpenError};
use crate::transaction::Transaction;

/// A table whose keys are in order, whose keys and values are bytes, and whose shape is known at
/// run time only. Made by [`Cluster::create_dyn_ordered`]; clones are cheap, and share what they
/// remember of where its keys are.
///
/// Keys are in the order of their bytes: `"a"`, `"a\0"`, `"ab"`, `"b"`. Verbs and ranges are those
/// of an [`Ordered`](crate::Ordered) table. A typed handle and this one open the same tables if
/// keys have one length, values have one length, and the schemas agree ([`DynSchema::of`]).
///
/// ```
/// use remora::{Cluster, DynSchema, Lengths, OrderedOptions};
///
/// let cluster = Cluster::embedded().open()?;
/// let schema = DynSchema::new("scores, as text", Lengths::UpTo(40), Lengths::UpTo(100));
/// let options = OrderedOptions::for_rows(1000);
/// let scores = cluster.create_dyn_ordered("scores", &schema, options)?;
/// let mut worker = cluster.worker(Default::default())?;
/// let found = worker.block_on(async |session| {
///     session
///         .transact(async |tx| {
///             for (key, value) in [("2025/bob", "7"), ("2026/anna", "12"), ("2026/eve", "9")] {
///                 scores.put(tx, key.as_bytes(), value.as_bytes()).await?;
///             }
///             scores.scan_prefix(tx, b"2026/", 100).await
///         })
///         .await
/// })?;
/// assert_eq!(found[0], (b"2026/anna".to_vec(), b"12".to_vec()));
/// assert_eq!(found.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DynOrdered {
    schema: Arc<DynSchema>,
    tree: Tree,
}

impl Cluster {
    /// Creates an ordered table whose keys and values are bytes, empty: tables `name/inner` and
    /// `name/leaves`, and `name/values` if a leaf has no room for four values. If these values have
    /// different lengths, there is a table `name/values/rest`, too.
    /// [`drop_ordered`](Cluster::drop_ordered) drops all of them.
    ///
    /// Keys have 1 to 64 bytes if all of them have one length (one byte less if there is a table
    /// `name/values/rest`), and 1 to 512 ([`DYN_KEY_BYTES_MAX`](crate::DYN_KEY_BYTES_MAX))
    /// otherwise. Values have up to some 32,600 bytes if all of them have one length and keys have
    /// at most 63 bytes, and up to 16 KiB
    /// ([`DYN_VALUE_BYTES_MAX`](crate::DYN_VALUE_BYTES_MAX)) otherwise. Other lengths are refused,
    /// with the limit ([`OpenErrorKind::Argument`](crate::OpenErrorKind::Argument)).
    ///
    /// Keys of different lengths that can have more than 63 bytes take the room that they need: a
    /// node of 2,656 bytes has 82 keys of 20 bytes with values of 8, where keys can have 512 bytes.
    /// Shorter limits pad all keys to the longest one.
    ///
    /// A transaction writes at most 32 KiB, unless its worker has larger logs
    /// ([`WorkerOptions::log_bytes`](crate::WorkerOptions::log_bytes)). An insert writes a leaf,
    /// too. So an insert of a value of more than some 28,000 bytes can fail, or of some 15,000
    /// bytes beside keys that can have more than 63 bytes
    /// ([`Limit::LogEntry`](crate::Limit::LogEntry)).
    pub fn create_dyn_ordered(
        &self,
        name: &str,
        schema: &DynSchema,
        options: OrderedOptions,
    ) -> Result<DynOrdered, OpenError> {
        let tree = self.create_tree(name, schema, options, &mut std::iter::empty())?;
        Ok(DynOrdered { schema: Arc::new(schema.clone()), tree })
    }

    /// Opens an ordered table whose keys and values are bytes. Fails if it was created with another
    /// schema ([`OpenErrorKind::OtherTypes`](crate::OpenErrorKind::OtherTypes)). What is remembered
    /// of where its keys are is this handle's and its clones' own.
    pub fn open_dyn_ordered(&self, name: &str, schema: &DynSchema) -> Result<DynOrdered, OpenError> {
        Ok(DynOrdered { schema: Arc::new(schema.clone()), tree: self.open_tree(name, schema)? })
    }

    /// Opens an ordered table whose keys and values are bytes, or creates it, empty: see
    /// [`open_or_create_table`](Cluster::open_or_create_table).
    pub fn open_or_create_dyn_ordered(
        &self,
        name: &str,
        schema: &DynSchema,
        options: OrderedOptions,
    ) -> Result<DynOrdered, OpenError> {
        self.open_or_create(
            || self.open_dyn_ordered(name, schema),
            || self.create_dyn_ordered(name, schema, options.clone()),
        )
    }

    /// Reads a whole ordered table whose keys and values are bytes, while nothing runs: what there
    /// is of its records (of inner nodes, of leaves, and of the tables of values, if there are
    /// such), and of its tree.
    pub fn inspect_dyn_ordered(&self, ordered: &DynOrdered) -> Result<(Vec<Inspection>, TreeInspection), Error> {
        self.inspect_tree(&ordered.tree, &mut |_, _| ())
    }
}

impl DynOrdered {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tree.name()
    }

    /// The schema that it was opened with.
    #[must_use]
    pub fn schema(&self) -> &DynSchema {
        &self.schema
    }

    /// A handle that shares what this one remembers, and whose inserts, updates, puts and removes
    /// are calls: see [`Ordered::by_call`](crate::Ordered::by_call).
    #[must_use]
    pub fn by_call(&self) -> DynOrdered {
        DynOrdered { tree: self.tree.by_call(), ..self.clone() }
    }

    #[cfg(test)]
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The error of a transaction that needs a key of this table which is not there.
    #[must_use]
    pub fn missing(&self, key: &[u8]) -> Error {
        Error::NotFound(Named::new(self.name(), key))
    }

    /// Names a key, for what the transaction is about to do with it. The next round trip brings
    /// what that needs, together with all else that was named by then, as far as this handle
    /// remembers where it is. The operation itself then takes no round trip.
    pub fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: &[u8], intent: Intent) -> Result<(), Error> {
        let stored = self.key(key)?;
        self.tree.prefetch(tx, stored.bytes(), intent)
    }

    /// Names what a key's value has beyond its head, which has been fetched. Returns whether there
    /// is such.
    pub(crate) fn name_rest_of(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<bool, Error> {
        let stored = self.key(key)?;
        self.tree.values.as_ref().map_or(Ok(false), |values| values.name_rest_of(tx, stored.bytes()))
    }

    /// Returns the value of a key; `None` if the key is not there.
    ///
    /// This verb and all others fail with [`Error::Limit`] if the key is empty or too long for the
    /// table's schema.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let stored = self.key(key)?;
        let value = self.tree.get(tx, stored.bytes()).await?;
        value.map(|value| self.value(&value)).transpose()
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Vec<u8>, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. Fails with [`Error::NotFound`] if the
    /// key is not there, and with [`Misuse::NotInPlace`] if the table's values have different
    /// lengths, or are out of line and not kept in one piece because keys are long: replace them by
    /// [`DynOrdered::update`].
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: &[u8]) -> Result<&'t mut [u8], Error> {
        let is_in_parts = self.tree.values.as_ref().is_some_and(DynTable::has_parts);
        if !self.schema.values().is_one() || is_in_parts {
            return Err(Misuse::NotInPlace { table: self.name().to_owned() }.into());
        }
        let stored = self.key(key)?;
        self.tree.get_mut(tx, stored.bytes()).await?.ok_or_else(|| self.missing(key))
    }

    /// Inserts a key. Fails with [`Error::Exists`] if the key is there, and with [`Error::Limit`]
    /// if the value has another length than the schema says.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let (stored, value) = self.row(key, value)?;
        if self.tree.insert(tx, stored.bytes(), &value).await? {
            return Ok(());
        }
        Err(Error::Exists(Named::new(self.name(), key)))
    }

    /// Inserts a key, or replaces its value. Returns the value that it had. Fails with
    /// [`Error::Limit`] if the value has another length than the schema says.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let (stored, value) = self.row(key, value)?;
        self.tree.put(tx, stored.bytes(), &value, |before| self.value(before)).await
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is not there, and
    /// with [`Error::Limit`] if the value has another length than the schema says.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let (stored, value) = self.row(key, value)?;
        if self.tree.update(tx, stored.bytes(), &value).await? {
            return Ok(());
        }
        Err(self.missing(key))
    }

    /// Deletes a key. Returns the value that it had; `None` if the key was not there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let stored = self.key(key)?;
        self.tree.remove(tx, stored.bytes(), |before| self.value(before)).await
    }

    /// The first keys of a range and their values, in ascending order: at most `limit`. No other
    /// transaction inserts into or deletes from the part of the range that this one has seen,
    /// before this one commits. Otherwise this one aborts.
    ///
    /// The ends of a range may be bytes of any length: also empty, or longer than any key.
    pub async fn scan<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<&'k [u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.scan_in(tx, &range, (Order::Ascending, limit)).await
    }

    /// The first keys that begin with `prefix` and their values, in ascending order: at most
    /// `limit`. Otherwise like [`scan`](DynOrdered::scan).
    pub async fn scan_prefix(
        &self,
        tx: &mut Transaction<'_, '_>,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let mut end = prefix.to_vec();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        let behind = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(&end[..])
            }
            // No key is behind all that begin with it.
            None => Bound::Unbounded,
        };
        self.scan(tx, (Bound::Included(prefix), behind), limit).await
    }

    /// The last keys of a range and their values, in descending order: at most `limit`. It takes a
    /// round trip for each leaf.
    pub async fn scan_back<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<&'k [u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.scan_in(tx, &range, (Order::Descending, limit)).await
    }

    /// The first key of a range, and its value.
    pub async fn first<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<&'k [u8]>,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, Error> {
        Ok(self.scan(tx, range, 1).await?.pop())
    }

    /// The last key of a range, and its value.
    pub async fn last<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<&'k [u8]>,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, Error> {
        Ok(self.scan_back(tx, range, 1).await?.pop())
    }

    async fn scan_in<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: &impl RangeBounds<&'k [u8]>,
        limit: (Order, usize),
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let bounds = (self.start(range.start_bound()), self.end(range.end_bound()));
        let row = |key: &[u8], value: &[u8]| Ok((self.unpadded(key)?.to_vec(), self.value(value)?));
        self.tree.scan(tx, bounds, limit, row).await
    }

    /// Where a range begins, as nodes have keys.
    fn start(&self, bound: Bound<&&[u8]>) -> Bound<TreeKey> {
        match bound {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(bytes) | Bound::Excluded(bytes) => match self.place(bytes) {
                Place::Key(key) if matches!(bound, Bound::Excluded(_)) => Bound::Excluded(key),
                Place::Key(key) | Place::Before(key) => Bound::Included(key),
                Place::Behind(key) => Bound::Excluded(key),
            },
        }
    }

    /// Where a range ends, as nodes have keys.
    fn end(&self, bound: Bound<&&[u8]>) -> Bound<TreeKey> {
        match bound {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(bytes) | Bound::Excluded(bytes) => match self.place(bytes) {
                Place::Key(key) if matches!(bound, Bound::Excluded(_)) => Bound::Excluded(key),
                Place::Key(key) | Place::Behind(key) => Bound::Included(key),
                Place::Before(key) => Bound::Excluded(key),
            },
        }
    }

    /// Where bytes of any length are among the keys.
    fn place(&self, bytes: &[u8]) -> Place {
        let lengths = self.schema.keys();
        match bytes.get(..lengths.max()) {
            Some(first) if first.len() < bytes.len() => Place::Behind(self.padded(first)),
            None if lengths.is_one() => Place::Before(self.padded(bytes)),
            _ => Place::Key(self.padded(bytes)),
        }
    }

    /// Bytes that are no longer than keys, as nodes have keys.
    fn padded(&self, bytes: &[u8]) -> TreeKey {
        stored(bytes, self.schema.keys(), &self.tree.shape)
    }

    /// A key that nodes have.
    fn unpadded<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Error> {
        if self.tree.shape.is_slotted() {
            return Ok(key);
        }
        unpadded(key, self.schema.keys()).map_err(|what| self.tree.damaged(what))
    }

    /// A key as nodes have it.
    fn key(&self, key: &[u8]) -> Result<TreeKey, Error> {
        self.schema.check_key(self.name(), key)?;
        Ok(self.padded(key))
    }

    /// A key and a value as the tree has them.
    fn row<'v>(&self, key: &[u8], value: &'v [u8]) -> Result<(TreeKey, Cow<'v, [u8]>), Error> {
        let stored = self.key(key)?;
        self.schema.check_value(self.name(), key, value)?;
        let lengths = self.lengths_in_leaves();
        if lengths.is_one() {
            return Ok((stored, Cow::Borrowed(value)));
        }
        let mut room = vec![0; padded_bytes(lengths)];
        pad(value, lengths, &mut room);
        Ok((stored, Cow::Owned(room)))
    }

    /// A value of the tree.
    fn value(&self, stored: &[u8]) -> Result<Vec<u8>, Error> {
        let value = unpadded(stored, self.lengths_in_leaves()).map_err(|what| self.tree.damaged(what))?;
        Ok(value.to_vec())
    }

    /// The lengths that values are padded by. Values that are out of line are not padded.
    fn lengths_in_leaves(&self) -> Lengths {
        if self.tree.values.is_some() { Lengths::Exactly(self.schema.values().max()) } else { self.schema.values() }
    }
}

/// Where bytes are among the keys of a table.
enum Place {
    /// They can be a key.
    Key(TreeKey),
    /// They are shorter than keys: right before this one, which they begin.
    Before(TreeKey),
    /// They are longer than keys: right behind this one, which begins them.
    Behind(TreeKey),
}

impl fmt::Debug for DynOrdered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynOrdered").field("name", &self.name()).field("schema", &self.schema).finish_non_exhaustive()
    }
}
