//! A handle of an ordered table, and its nodes as a transaction sees them.

use std::fmt;
use std::sync::Arc;

use remora_index::btree::{Damaged, Node, Shape};
use remora_index::learned;
use remora_txn::Abort;

use super::directory::Directory;
use super::keys::encoded;
use super::parts::NodeRecord;
#[cfg(doc)]
use crate::cluster::Cluster;
use crate::error::{Error, Named, Reason};
use crate::key::Key;
use crate::record::Record;
use crate::table::Table;
use crate::transaction::{Slot, Transaction};

/// The bytes of a node of this transaction.
pub(super) type NodeView<'t> = Node<&'t [u8]>;

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
    pub(super) inner: Table<u64, NodeRecord>,
    pub(super) leaves: Table<u64, NodeRecord>,
    /// Out of line.
    pub(super) values: Option<Table<K, V>>,
    pub(super) shape: Shape,
    pub(super) directory: Arc<Directory<K>>,
}

/// It is not what was expected: what led there has changed since.
pub(super) const CHANGED: Error = Error::Aborted(Reason::new(Abort::Changed));

impl<K: Key, V: Record> Ordered<K, V> {
    pub(super) fn new(
        inner: Table<u64, NodeRecord>,
        leaves: Table<u64, NodeRecord>,
        values: Option<Table<K, V>>,
        shape: Shape,
    ) -> Ordered<K, V> {
        Ordered { inner, leaves, values, shape, directory: Arc::default() }
    }

    /// What a leaf has of a value.
    pub(super) fn inline(&self, value: &V) -> Vec<u8> {
        if self.values.is_some() {
            return Vec::new();
        }
        let mut bytes = vec![0; V::BYTES];
        value.encode(&mut bytes);
        bytes
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
        Ordered { directory: Arc::new(Directory::forgetful()), ..self.clone() }
    }

    /// A handle of its own that remembers where keys are in a learned cache (XStore, see
    /// [`learned`]): in eight bytes for a leaf and half a byte of models, instead of some seventy.
    #[must_use]
    pub fn learned(&self) -> Ordered<K, V> {
        Ordered { directory: Arc::new(Directory::learned()), ..self.clone() }
    }

    /// How large that cache is; `None` if this handle has none.
    #[must_use]
    pub fn learned_size(&self) -> Option<learned::Size> {
        self.directory.size()
    }

    /// The nodes of a level.
    pub(super) fn of_level(&self, level: u16) -> &Table<u64, NodeRecord> {
        if level == 0 { &self.leaves } else { &self.inner }
    }

    pub(super) fn node<'n>(&self, bytes: &'n [u8]) -> Result<NodeView<'n>, Error> {
        Node::new(self.shape, bytes).map_err(|what| self.damaged(what))
    }

    pub(super) fn damaged(&self, what: Damaged) -> Error {
        Error::Damaged { table: self.name().to_owned(), what }
    }

    /// A node that has been fetched, if it is there.
    pub(super) fn find<'t>(
        &self,
        tx: &'t Transaction<'_, '_>,
        slot: Slot<NodeRecord>,
    ) -> Result<Option<NodeView<'t>>, Error> {
        slot.get(tx)?.map(|record| self.node(&record.0)).transpose()
    }

    /// A node that has been fetched and is there.
    pub(super) fn seen<'t>(&self, tx: &'t Transaction<'_, '_>, slot: Slot<NodeRecord>) -> Result<NodeView<'t>, Error> {
        self.find(tx, slot)?.ok_or(CHANGED)
    }

    /// A node that has been fetched and is there, to be changed.
    pub(super) fn changed<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        slot: Slot<NodeRecord>,
    ) -> Result<Node<&'t mut [u8]>, Error> {
        Node::new(self.shape, &mut slot.get_mut(tx)?.0[..]).map_err(|what| self.damaged(what))
    }

    pub(super) fn value(&self, leaf: &NodeView<'_>, at: usize) -> Result<V, Error> {
        let bytes = leaf.value(at);
        if bytes.len() == V::BYTES { Ok(V::decode(bytes)) } else { Err(self.damaged(Damaged("a value"))) }
    }
}

impl<K, V> Ordered<K, V> {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.leaves.name().strip_suffix("/leaves").unwrap_or(self.leaves.name())
    }
}

impl<K, V> Clone for Ordered<K, V> {
    fn clone(&self) -> Ordered<K, V> {
        let (inner, leaves, values) = (self.inner.clone(), self.leaves.clone(), self.values.clone());
        Ordered { inner, leaves, values, shape: self.shape, directory: self.directory.clone() }
    }
}

impl<K, V> fmt::Debug for Ordered<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered").field("name", &self.name()).finish_non_exhaustive()
    }
}
