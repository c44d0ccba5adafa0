//! Ordered tables whose keys and values have types: [`Ordered`], a thin layer over a [`Tree`].

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use remora_index::learned;
use remora_txn::{Inspection, Intent};

use super::keys::TreeKey;
use super::load::TreeInspection;
use super::options::OrderedOptions;
use super::scanning::Order;
use super::tree::Tree;
use crate::cluster::Cluster;
use crate::dynamic::DynSchema;
use crate::error::{Error, Named, OpenError};
use crate::key::Key;
use crate::record::Record;
use crate::table::Table;
use crate::transaction::{Transaction, ValueMut};
use crate::worker::Session;

/// A table whose keys are in order: for ranges, and for the first or last key of one. Made by
/// [`Cluster::create_ordered`]; clones are cheap, and share what they remember of where its keys
/// are.
///
/// ```
/// use remora::{Cluster, Error, OrderedOptions};
/// # #[derive(Clone, Copy, remora::Record)]
/// # struct Order { items: u64 }
/// # let cluster = Cluster::embedded().open()?;
/// // By customer, and then by number.
/// let options = OrderedOptions::for_rows(1000);
/// let orders = cluster.create_ordered::<(u32, u32), Order>("orders", options)?;
/// let mut worker = cluster.worker(Default::default())?;
/// let items = worker.block_on(async |session| {
///     session
///         .transact(async |tx| {
///             // The customer's next number: nobody else can insert it meanwhile.
///             let last = orders.last(tx, (7, 0)..=(7, u32::MAX)).await?;
///             let number = last.map_or(1, |((_, number), _)| number + 1);
///             orders.insert(tx, (7, number), Order { items: 3 }).await
///         })
///         .await?;
///     let of_the_customer =
///         session.transact(async |tx| orders.scan(tx, (7, 0)..(8, 0), 100).await).await?;
///     Ok::<_, Error>(of_the_customer.iter().map(|(_, order)| order.items).sum::<u64>())
/// })?;
/// assert_eq!(items, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ordered<K, V> {
    tree: Tree,
    types: PhantomData<fn(K) -> V>,
}

impl Cluster {
    /// Creates an ordered table, empty: tables `name/inner` and `name/leaves`, and `name/values` if
    /// a leaf has no room for four values: if they have more than 232 bytes, beside keys of 8.
    pub fn create_ordered<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
    ) -> Result<Ordered<K, V>, OpenError> {
        self.load_ordered(name, options, std::iter::empty())
    }

    /// Creates an ordered table with rows, which must ascend. Much faster than transactions, and
    /// none. If it fails, or this client dies, nothing of it is left, as in
    /// [`create_together`](Cluster::create_together).
    pub fn load_ordered<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Ordered<K, V>, OpenError> {
        options.check_split_type::<K>(name)?;
        let row = |(key, value): (K, V)| (encoded(&key).bytes().to_vec(), Encoded::new(&value).bytes().to_vec());
        let tree = self.create_tree(name, &DynSchema::of::<K, V>(), options, &mut rows.into_iter().map(row));
        Ok(Ordered::new(tree?))
    }

    /// Opens an ordered table that exists. What is remembered of where its keys are is this
    /// handle's and its clones' own.
    pub fn open_ordered<K: Key, V: Record>(&self, name: &str) -> Result<Ordered<K, V>, OpenError> {
        Ok(Ordered::new(self.open_tree(name, &DynSchema::of::<K, V>())?))
    }

    /// Opens an ordered table, or creates it, empty: see
    /// [`open_or_create_table`](Cluster::open_or_create_table).
    pub fn open_or_create_ordered<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
    ) -> Result<Ordered<K, V>, OpenError> {
        self.open_or_create(|| self.open_ordered(name), || self.create_ordered(name, options.clone()))
    }

    /// Reads a whole ordered table while nothing runs, and shows each of its rows, in any order:
    /// whether its records are as they should be (of inner nodes, of leaves, and of values that are
    /// out of line), and a tree. (Nodes that make no sense at all are not in the tree.)
    pub fn inspect_ordered<K: Key, V: Record>(
        &self,
        ordered: &Ordered<K, V>,
        mut visit: impl FnMut(&K, &V),
    ) -> Result<(Vec<Inspection>, TreeInspection), Error> {
        self.inspect_tree(&ordered.tree, &mut |key, value| {
            if let (Some(key), Some(value)) = (key.get(..K::BYTES), value.get(..V::BYTES)) {
                visit(&K::decode(key), &V::decode(value));
            }
        })
    }
}

fn encoded<K: Key>(key: &K) -> remora_record::Key {
    Table::<K, ()>::key(key)
}

/// Bytes of an encoding that needs no allocation: leaves have room for no longer values.
const SHORT: usize = 256;

/// The encoding of a value.
struct Encoded {
    short: [u8; SHORT],
    /// Instead, if it is longer.
    long: Vec<u8>,
    length: usize,
}

impl Encoded {
    fn new<V: Record>(value: &V) -> Encoded {
        let mut encoded = Encoded { short: [0; SHORT], long: Vec::new(), length: V::BYTES };
        if V::BYTES > SHORT {
            encoded.long.resize(V::BYTES, 0);
            value.encode(&mut encoded.long);
        } else {
            value.encode(&mut encoded.short[..V::BYTES]);
        }
        encoded
    }

    fn bytes(&self) -> &[u8] {
        if self.length > SHORT { &self.long } else { &self.short[..self.length] }
    }
}

impl<K: Key, V: Record> Ordered<K, V> {
    fn new(tree: Tree) -> Ordered<K, V> {
        let () = Table::<K, V>::FITS;
        Ordered { tree, types: PhantomData }
    }

    /// The error of a transaction that needs a key of this table which is not there.
    #[must_use]
    pub fn missing(&self, key: K) -> Error {
        Error::NotFound(Named::new(self.name(), encoded(&key).bytes()))
    }

    /// A handle that remembers nothing of where keys are, for measurements: every operation asks,
    /// or reads its way from the root.
    #[must_use]
    pub fn without_memory(&self) -> Ordered<K, V> {
        Ordered::new(self.tree.without_memory())
    }

    /// A handle that shares what this one remembers, and whose inserts, updates, puts and removes
    /// are calls: the CPU of the leaf's memory node locks the leaf and says what was there, and at
    /// the commit every replica makes the change by itself. The client sends keys and values, and
    /// no leaves.
    ///
    /// Use it for transactions that change one key. Such a transaction takes two round trips. In a
    /// transaction that writes more, the leaf is fetched after all, and it is locked earlier than
    /// otherwise.
    ///
    /// The client makes a change itself where it cannot be a call: if NICs change the locks of the
    /// table's records (the protocol that created it decides, see
    /// [`protocol`](crate::protocol)), while the table grows, if values are out of line, if the
    /// leaf is split or merged, or if the transaction has used the leaf before.
    #[must_use]
    pub fn by_call(&self) -> Ordered<K, V> {
        Ordered::new(self.tree.by_call())
    }

    /// A handle of its own that remembers where keys are in a learned cache (XStore, see
    /// [`learned`]): in eight bytes for a leaf and half a byte of models, instead of some seventy.
    #[must_use]
    pub fn learned(&self) -> Ordered<K, V> {
        Ordered::new(self.tree.learned())
    }

    /// How large that cache is; `None` if this handle has none.
    #[must_use]
    pub fn learned_size(&self) -> Option<learned::Size> {
        self.tree.directory.size()
    }

    /// Reads all nodes above leaves, a transaction for each, so that this handle knows where all
    /// keys are.
    pub async fn train(&self, session: &mut Session) -> Result<(), Error> {
        self.tree.train(session).await
    }

    /// Names a key, for what the transaction is about to do with it. The next round trip brings
    /// what that needs, together with all else that was named by then, as far as this handle
    /// remembers where it is. The operation itself then takes no round trip.
    pub fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: K, intent: Intent) {
        // A key of this type cannot be refused.
        _ = self.tree.prefetch(tx, encoded(&key).bytes(), intent);
    }

    /// Returns the value of a key; `None` if the key is not there.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        let value = self.tree.get(tx, encoded(&key).bytes()).await?;
        Ok(value.map(|value| V::decode(&value)))
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<V, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. Fails with [`Error::NotFound`] if the
    /// key is not there.
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: K) -> Result<ValueMut<'t, V>, Error> {
        let value = self.tree.get_mut(tx, encoded(&key).bytes()).await?;
        value.map(ValueMut::new).ok_or_else(|| self.missing(key))
    }

    /// Inserts a key. Fails with [`Error::Exists`] if the key is there.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        let key = encoded(&key);
        if self.tree.insert(tx, key.bytes(), Encoded::new(&value).bytes()).await? {
            return Ok(());
        }
        Err(Error::Exists(Named::new(self.name(), key.bytes())))
    }

    /// Inserts a key, or replaces its value. Returns the value that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<Option<V>, Error> {
        let value = Encoded::new(&value);
        self.tree.put(tx, encoded(&key).bytes(), value.bytes(), |before| Ok(V::decode(before))).await
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        if !self.tree.is_by_call() {
            *self.get_mut(tx, key).await? = value;
            return Ok(());
        }
        let encoded = encoded(&key);
        if self.tree.update(tx, encoded.bytes(), Encoded::new(&value).bytes()).await? {
            return Ok(());
        }
        Err(self.missing(key))
    }

    /// Deletes a key. Returns the value that it had; `None` if the key was not there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        self.tree.remove(tx, encoded(&key).bytes(), |before| Ok(V::decode(before))).await
    }

    /// The first keys of a range and their values, in ascending order: at most `limit`. No other
    /// transaction inserts into or deletes from the part of the range that this one has seen,
    /// before this one commits. Otherwise this one aborts.
    pub async fn scan(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, Error> {
        self.tree.scan(tx, bounds(&range), (Order::Ascending, limit), row).await
    }

    /// The last keys of a range and their values, in descending order: at most `limit`. It takes a
    /// round trip for each leaf.
    pub async fn scan_back(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, Error> {
        self.tree.scan(tx, bounds(&range), (Order::Descending, limit), row).await
    }

    /// The first key of a range.
    pub async fn first(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
    ) -> Result<Option<(K, V)>, Error> {
        Ok(self.scan(tx, range, 1).await?.pop())
    }

    /// The last key of a range.
    pub async fn last(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
    ) -> Result<Option<(K, V)>, Error> {
        Ok(self.scan_back(tx, range, 1).await?.pop())
    }
}

/// The ends of a range, encoded.
fn bounds<K: Key>(range: &impl RangeBounds<K>) -> (Bound<TreeKey>, Bound<TreeKey>) {
    let encoded = |key: &K| TreeKey::Short(encoded(key));
    (range.start_bound().map(encoded), range.end_bound().map(encoded))
}

fn row<K: Key, V: Record>(key: &[u8], value: &[u8]) -> Result<(K, V), Error> {
    Ok((K::decode(key), V::decode(value)))
}

impl<K, V> Ordered<K, V> {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tree.name()
    }
}

impl<K, V> Clone for Ordered<K, V> {
    fn clone(&self) -> Ordered<K, V> {
        Ordered { tree: self.tree.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for Ordered<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered").field("name", &self.name()).finish_non_exhaustive()
    }
}
