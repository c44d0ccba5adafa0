//! The handle of an open hash table, [`Table`], and what it has in common with handles of other
//! kinds.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_node::limits::KEY_BYTES_MAX;
use remora_node::{Fingerprint, SchemaShown};

use crate::error::{Error, Named};
use crate::key::Key;
use crate::record::Record;

/// The schema of a table: a text that says what its keys and values mean, and their sizes.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    /// The text that says what keys and values mean.
    pub(crate) text: String,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
}

impl Schema {
    /// Makes the schema with this text and the sizes of these types.
    pub(crate) fn of<K: Key, V: Record>(schema: &str) -> Schema {
        Schema::new(schema, K::BYTES, V::BYTES)
    }

    /// Makes the schema with this text and these sizes.
    pub(crate) fn new(schema: &str, key_bytes: usize, value_bytes: usize) -> Schema {
        let fingerprint = Fingerprint::of(schema, key_bytes, value_bytes);
        Schema { text: schema.to_owned(), fingerprint, key_bytes, value_bytes }
    }

    /// Returns the schema as errors show it.
    pub(crate) fn shown(self) -> SchemaShown {
        let Schema { text, fingerprint, key_bytes, value_bytes } = self;
        SchemaShown { text, key_bytes, value_bytes, fingerprint: fingerprint.0 }
    }
}

/// A number that tells clusters apart within a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClusterNumber(u64);

impl ClusterNumber {
    /// Returns a new number, for a cluster whose memory nodes are in this process. No other handle
    /// can be of the same cluster, so the number need not come from its memory.
    pub(crate) fn embedded() -> ClusterNumber {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        ClusterNumber(1 << 63 | NUMBERS.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of the cluster that was founded with this id.
    pub(crate) fn founded(cluster: u64) -> ClusterNumber {
        ClusterNumber(cluster)
    }
}

/// A handle of a table without its types.
#[derive(Clone, Copy)]
pub(crate) struct Handle<'t> {
    pub(crate) inner: &'t Arc<remora_index::Table>,
    /// The cluster of the table.
    pub(crate) cluster: ClusterNumber,
}

/// An open table without the types of its keys and values.
#[derive(Clone)]
pub(crate) struct RawTable {
    inner: Arc<remora_index::Table>,
    cluster: ClusterNumber,
}

impl RawTable {
    pub(crate) fn new(inner: Arc<remora_index::Table>, cluster: ClusterNumber) -> RawTable {
        RawTable { inner, cluster }
    }

    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle { inner: &self.inner, cluster: self.cluster }
    }

    pub(crate) fn name(&self) -> &str {
        self.inner.name()
    }
}

/// An open table: records by key, in a hash index. Clones are cheap, and share the cache of record
/// locations.
///
/// [`Cluster::create_table`](crate::Cluster::create_table) and
/// [`Cluster::open_table`](crate::Cluster::open_table) make it. Its verbs, such as
/// [`get`](Table::get) and [`insert`](Table::insert), work on one key in a transaction. The handle
/// can be used with the cluster that has opened it, with the cluster's clones, and with every other
/// [`Cluster`](crate::Cluster) of the same memory nodes. Sessions of any other cluster refuse it,
/// and so do sessions of a protocol that cannot run on it
/// ([`Error::Misuse`](crate::Error::Misuse)).
pub struct Table<K, V> {
    pub(crate) inner: Arc<remora_index::Table>,
    /// The cluster of the table.
    pub(crate) cluster: ClusterNumber,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Key, V: Record> Table<K, V> {
    pub(crate) const FITS: () = assert!(K::BYTES <= KEY_BYTES_MAX, "a key has at most 64 bytes");

    pub(crate) fn schema() -> Schema {
        Schema::of::<K, V>(&V::schema())
    }

    pub(crate) fn new(inner: Arc<remora_index::Table>, cluster: ClusterNumber) -> Table<K, V> {
        let () = Table::<K, V>::FITS;
        Table { inner, cluster, types: PhantomData }
    }

    /// Returns the encoded key, as records hold it.
    #[inline]
    pub(crate) fn key(key: &K) -> remora_record::Key {
        let mut bytes = [0; KEY_BYTES_MAX];
        let bytes = &mut bytes[..K::BYTES];
        key.encode(bytes);
        remora_record::Key::new(bytes).expect("FITS has been checked")
    }

    /// Returns the error of a transaction that needs a record of this table whose key is absent
    /// ([`Error::NotFound`]).
    #[must_use]
    pub fn missing(&self, key: K) -> Error {
        Error::NotFound(Named::new(self.name(), Self::key(&key).bytes()))
    }
}

impl<K, V> Table<K, V> {
    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle { inner: &self.inner, cluster: self.cluster }
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the table as the crates below see it.
    #[must_use]
    pub fn untyped(&self) -> &Arc<remora_index::Table> {
        &self.inner
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Table<K, V> {
        Table { inner: self.inner.clone(), cluster: self.cluster, types: PhantomData }
    }
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name()).finish_non_exhaustive()
    }
}
