//! Ordered tables: a B-link tree whose nodes are records.
//!
//! ```text
//! table NAME/leaves    id u64 -> node of level 0: 992 bytes, see `remora_index::btree`
//! table NAME/inner     id u64 -> node of another level
//! table NAME/values    key -> value, of values that are too long for leaves
//!
//! insert    the leaf := with another entry      if it is full: the leaf and its parent, and a new
//!                                               leaf
//! remove    the leaf := without it              if it is empty then: its neighbour and its parent,
//!                                               and a leaf less
//! scan      the leaves of the range, together
//! ```
//!
//! All of it is parts of the transaction that does it, over ordinary tables. So splits and merges
//! are replicated, recovered and serializable with whatever else it does, under every protocol, and
//! a client that dies within one leaves all of it or nothing.
//!
//! # Invariants
//!
//! 1. **In every committed state the leaves that are there partition the keys**, by their fences.
//!    So a leaf that is validated, and whose fences have a key between them, is *the* leaf of that
//!    key, by whatever way it was found; if it has no entry for the key, the table has none.
//!    A scan reads leaves whose fences follow one upon the other. That is all the protection from
//!    phantoms that there is: an insert or a remove changes the version of its leaf.
//! 2. Hence **inner nodes are hints**, and so is what clients remember of them
//!    (`ordered/directory.rs`). Nobody need validate them but who changes them. (What a transaction
//!    has read it validates; so it reads them only if nothing is remembered.)
//! 3. **The root has id 0 for ever**, and when it is split, its content goes to two new nodes. It
//!    is never a leaf. Ids of other nodes are drawn from those of the transactions that insert
//!    them; should one come again while the first is there, its transaction aborts. By 1, it would
//!    do no harm if it came again later.
//! 4. **An inner node has a child.** A leaf that becomes empty is merged with a neighbour, and so
//!    is each ancestor that has no other child, below the first that has one. So a leaf is empty
//!    only if it is the only one, and nothing stays of ranges that are not used any more. (A leaf
//!    with few entries stays as it is, and a tree keeps its height.)
//!
//! 5. **An operation fetches all that it needs before it changes anything**, and awaits nothing
//!    from its first change on. So its future can be dropped at any await: the transaction then
//!    holds none of it, or all of it.
//!
//! # Round trips
//!
//! With the leaf and its location known: [`Ordered::get`] takes one, as does [`Ordered::scan`] of
//! up to 60 leaves; each leaf is validated as one record is. If nothing is known, it is one for
//! each level, or one to ask ([`Design`]). [`Ordered::insert`] and [`Ordered::remove`] are updates
//! of one record, but for splits and merges. A split takes a round trip for the new leaf and the
//! parent, if that is known and has room; otherwise, and for merges, the path from the root is
//! read, and then all that is new or goes together. A split is seen by others as a leaf that has
//! lost the upper half of its keys: they follow its link, and remember it.
//!
//! Values that are out of line are records by their keys, inserted and deleted together with the
//! entries of leaves. So a lookup of one key reads or changes its value alone, and needs no leaf. A
//! scan takes a round trip more, for the values of the keys that it has found.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use remora_index::btree::{Damaged, Image, NODE_BYTES, Node, ROOT, Shape};
use remora_index::{IndexError, learned};
use remora_memory::{Fingerprint, MemoryError, ReadScheme};
use remora_sync::KeyHash;
use remora_txn::{Abort, Inspection, Intent};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cluster::{Cluster, Freed, TableOptions};
use crate::error::{Error, Named, OpenError, Reason};
use crate::table::{OrderedKey, Record, Schema, Table};
use crate::transaction::{Slot, Transaction};
use crate::worker::Session;

mod directory;
mod load;

use directory::Directory;
pub use load::TreeInspection;
use load::{Builder, Nodes};

/// Links that are followed from a leaf that was split, before its key is looked for from the root.
const HOPS_MAX: u32 = 4;
/// Leaves that a scan asks for at a time: as many as one round has room for, under every protocol.
const AHEAD_MAX: usize = 60;

/// A node as a record has it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
struct NodeRecord(Image);

impl Record for NodeRecord {
    const SCHEMA: &'static str = "node of an ordered table";
}

/// The bytes of a node of this transaction.
type Seen<'t> = Node<&'t [u8]>;

/// A node on the way from the root to a leaf.
#[derive(Clone, Copy)]
struct Step {
    id: u64,
    level: u16,
    slot: Slot<NodeRecord>,
}

/// A merge of nodes with their neighbours, all of which have been fetched: of a leaf, and of each
/// ancestor that has no other child.
struct Merge {
    /// The parent of the topmost node that is merged.
    parent: Slot<NodeRecord>,
    /// Which child that parent loses.
    at: usize,
    /// Each with its neighbour.
    nodes: Vec<(Slot<NodeRecord>, Slot<NodeRecord>)>,
    /// Whether the neighbours are on the left.
    to_left: bool,
}

/// Where the nodes of an ordered table lie, and so how a client finds a leaf that it remembers
/// nothing of. The three designs are those of Ziegler et al., SIGMOD 2019. Whatever finds a leaf,
/// it is read, locked and validated as a record like any other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Design {
    /// Fine-grained, one-sided: all nodes are spread over the memory nodes, and clients READ their
    /// way from the root.
    #[default]
    Fine,
    /// Inner nodes lie at one memory node (counted from 0), whose CPU says which leaf it is; leaves
    /// are spread, and READ.
    Hybrid(u16),
    /// Coarse-grained, two-sided: the whole table lies at one memory node, whose CPU finds the leaf
    /// and sends it. For one that owns a range: a table for each range.
    Coarse(u16),
}

/// How to create an ordered table.
#[derive(Clone, Copy, Debug)]
pub struct OrderedOptions {
    /// Keys that it can hold. It has room for nodes that are half full; after many deletes they can
    /// be less.
    pub rows: u64,
    /// Copies of each record; the cluster's default if `None`.
    pub replicas: Option<u8>,
    /// Where its nodes lie. Under FORD, whose memory nodes' CPUs do nothing, clients READ their way
    /// in any case.
    pub design: Design,
    /// Loaded rows share no leaf if their keys differ in their first `apart` bytes. Use it if new
    /// rows come last among the rows with an equal prefix. Each such group then grows at an end of
    /// its own, and leaves become full.
    pub apart: usize,
}

impl OrderedOptions {
    /// A table of at most `rows` keys, otherwise with the cluster's defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> OrderedOptions {
        OrderedOptions { rows, replicas: None, design: Design::Fine, apart: 0 }
    }

    /// The tables that it will consist of, for keys and values of these types: rows, bytes of a
    /// key, and bytes of a value of each. From that follows how much memory it needs.
    #[must_use]
    pub fn tables<K: OrderedKey, V: Record>(&self) -> Vec<(u64, usize, usize)> {
        let Ok(shape) = shape::<K, V>() else { return Vec::new() };
        // Some that come while others go.
        let node = |rows: u64| (rows.saturating_add(16), size_of::<u64>(), NODE_BYTES);
        let (leaves, inner) = shape.nodes_for(self.rows);
        let values = (!is_inline::<K, V>()).then_some((self.rows, K::BYTES, size_of::<V>()));
        [node(inner), node(leaves)].into_iter().chain(values).collect()
    }
}

/// A table whose keys are in order: for ranges, and for the first or last key of one. Made by
/// [`Cluster::create_ordered`]; clones are cheap, and share what they remember of where its keys
/// are.
///
/// ```
/// use remora::{Cluster, Error, OrderedOptions};
/// # #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes)]
/// # #[derive(zerocopy::Immutable, zerocopy::KnownLayout)]
/// # #[repr(C)]
/// # struct Order { items: u64 }
/// # impl remora::Record for Order { const SCHEMA: &'static str = "order: items u64"; }
/// # let cluster = Cluster::embedded(Default::default())?;
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
    inner: Table<u64, NodeRecord>,
    leaves: Table<u64, NodeRecord>,
    /// Out of line.
    values: Option<Table<K, V>>,
    shape: Shape,
    directory: Arc<Directory<K>>,
}

impl Cluster {
    /// Creates an ordered table, empty: tables `name/inner` and `name/leaves`, and `name/values` if
    /// a leaf has no room for four values: if they have more than 232 bytes, beside keys of 8.
    pub fn create_ordered<K: OrderedKey, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
    ) -> Result<Ordered<K, V>, OpenError> {
        self.load_ordered(name, options, std::iter::empty())
    }

    /// Creates an ordered table with rows, which must ascend. Much faster than transactions, and
    /// none. If it fails, or this client dies, nothing of it is left, as in
    /// [`create_together`](Cluster::create_together).
    pub fn load_ordered<K: OrderedKey, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
        rows: impl Iterator<Item = (K, V)>,
    ) -> Result<Ordered<K, V>, OpenError> {
        if options.rows == 0 {
            return Err(MemoryError::Empty("the number of rows of a table").into());
        }
        self.create_together(|cluster| cluster.load_ordered_unfinished(name, options, rows))
    }

    fn load_ordered_unfinished<K: OrderedKey, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
        rows: impl Iterator<Item = (K, V)>,
    ) -> Result<Ordered<K, V>, OpenError> {
        let shape = shape::<K, V>()?;
        let node = |node: Option<u16>| TableOptions {
            replicas: options.replicas,
            shards: node.map(|_| 1),
            first_node: node.unwrap_or(0),
            ..TableOptions::for_rows(options.rows)
        };
        let (of_leaves, of_inner) = match options.design {
            Design::Fine => (None, None),
            Design::Hybrid(node) => (None, Some(node)),
            Design::Coarse(node) => (Some(node), Some(node)),
        };
        let sizes = options.tables::<K, V>();
        let create = |what, size: usize, at: Option<u16>| {
            let options = TableOptions { rows: sizes[size].0, read_scheme: Some(ReadScheme::Checksum), ..node(at) };
            self.create_table_as(&part(name, what), schema::<K, V>(), options)
        };
        let values =
            if is_inline::<K, V>() { None } else { Some(self.create_table(&part(name, VALUES), node(of_leaves))?) };
        let (leaves, inner) = (create(LEAVES, 1, of_leaves)?, create(INNER, 0, of_inner)?);
        let ordered = Ordered::new(inner, leaves, values, shape);
        let unsorted = match &ordered.values {
            None => self.load_tree(&ordered, options.apart, rows)?,
            Some(values) => {
                // Rows come once: values are loaded first, and their keys kept.
                let mut keys = Vec::new();
                let note = |(key, value)| {
                    keys.push(key);
                    (key, value)
                };
                self.load(values, rows.map(note))?;
                self.load_tree(&ordered, options.apart, keys.into_iter().map(|key| (key, V::new_zeroed())))?
            }
        };
        match unsorted {
            None => Ok(ordered),
            Some(key) => {
                let key = key.iter().map(|byte| format!("{byte:02x}")).collect();
                Err(IndexError::Unsorted { table: name.to_owned(), key })
            }
        }
    }

    /// Builds the nodes; the key that is not behind the one before it, if there is one.
    fn load_tree<K: OrderedKey, V: Record>(
        &self,
        ordered: &Ordered<K, V>,
        apart: usize,
        rows: impl Iterator<Item = (K, V)>,
    ) -> Result<Option<Vec<u8>>, OpenError> {
        let rows = rows.map(|(key, value)| (encoded(&key).bytes().to_vec(), ordered.inline(&value).to_vec()));
        let mut builder = Builder::new(ordered.shape, apart, rows);
        let record = |(id, image)| (id, NodeRecord(image));
        self.load(&ordered.leaves, builder.by_ref().map(record))?;
        if builder.unsorted.is_some() {
            return Ok(builder.unsorted);
        }
        self.load(&ordered.inner, builder.inner().into_iter().map(record))?;
        Ok(None)
    }

    /// Opens an ordered table that exists. What is remembered of where its keys are is this
    /// handle's and its clones' own.
    pub fn open_ordered<K: OrderedKey, V: Record>(&self, name: &str) -> Result<Ordered<K, V>, OpenError> {
        let shape = shape::<K, V>()?;
        let open = |what| self.open_table_as(&part(name, what), schema::<K, V>());
        let values = if is_inline::<K, V>() { None } else { Some(self.open_table(&part(name, VALUES))?) };
        Ok(Ordered::new(open(INNER)?, open(LEAVES)?, values, shape))
    }

    /// Drops an ordered table, with all the tables that it consists of, in one change of the
    /// catalog. Otherwise like [`drop_table`](Cluster::drop_table); errors name the part that is
    /// missing.
    pub fn drop_ordered(&self, name: &str) -> Result<Freed, OpenError> {
        let [inner, leaves, values] = [INNER, LEAVES, VALUES].map(|what| part(name, what));
        let mut names = vec![leaves, inner];
        names.extend(Some(values).filter(|values| self.read_catalog().is_ok_and(|all| all.table(values).is_ok())));
        self.drop_together(&names)
    }

    /// Reads a whole ordered table while nothing runs, and shows each of its rows, in any order:
    /// whether its records are as they should be (of inner nodes, of leaves, and of values that are
    /// out of line), and a tree. (Nodes that make no sense at all are not in the tree.)
    pub fn inspect_ordered<K: OrderedKey, V: Record>(
        &self,
        ordered: &Ordered<K, V>,
        mut visit: impl FnMut(&K, &V),
    ) -> Result<(Vec<Inspection>, TreeInspection), Error> {
        let mut nodes = Nodes { inner: BTreeMap::new(), leaves: BTreeMap::new() };
        let look = |table, nodes: &mut BTreeMap<_, _>| {
            self.inspect_keyed(table, |id, node: &NodeRecord| _ = nodes.insert(u64::decode(id), node.0))
        };
        let mut records = vec![look(&ordered.inner, &mut nodes.inner)?, look(&ordered.leaves, &mut nodes.leaves)?];
        if ordered.values.is_none() {
            for leaf in nodes.leaves.values().filter_map(|image| ordered.node(image).ok()) {
                let row = |at| Some((K::decode(leaf.key(at)), V::read_from_bytes(leaf.value(at)).ok()?));
                (0..leaf.count()).filter_map(row).for_each(|(key, value)| visit(&key, &value));
            }
        }
        let mut tree = load::inspect(ordered.shape, nodes);
        if let Some(values) = &ordered.values {
            let values = self.inspect_keyed(values, |key, value| visit(&K::decode(&key[..K::BYTES]), value))?;
            if values.records != tree.rows {
                let (there, keys) = (values.records, tree.rows);
                tree.fault.get_or_insert(format!("there are {there} values, and {keys} keys in leaves"));
            }
            records.push(values);
        }
        Ok((records, tree))
    }
}

const INNER: &str = "inner";
const LEAVES: &str = "leaves";
const VALUES: &str = "values";

fn part(name: &str, what: &str) -> String {
    format!("{name}/{what}")
}

fn schema<K: OrderedKey, V: Record>() -> Schema {
    let of = format!("{}, of {}", NodeRecord::SCHEMA, V::SCHEMA);
    Schema { fingerprint: Fingerprint::of(&of, K::BYTES, size_of::<V>()), ..Table::<u64, NodeRecord>::schema() }
}

/// Whether leaves have the values.
fn is_inline<K: OrderedKey, V: Record>() -> bool {
    Shape::new(K::BYTES, size_of::<V>()).is_some()
}

fn shape<K: OrderedKey, V: Record>() -> Result<Shape, MemoryError> {
    let () = Table::<K, V>::FITS;
    let refused = || MemoryError::Limit { what: "bytes of a key of an ordered table", value: K::BYTES as u64, max: 64 };
    Shape::new(K::BYTES, size_of::<V>()).or_else(|| Shape::new(K::BYTES, 0)).ok_or_else(refused)
}

fn encoded<K: OrderedKey>(key: &K) -> remora_sync::Key {
    Table::<K, ()>::key(key)
}

/// The key before (or behind) another, if there is one. Keys are numbers of a fixed number of
/// digits.
fn neighbour<K: OrderedKey>(key: &K, before: bool) -> Option<K> {
    let mut bytes = encoded(key).bytes().to_vec();
    for byte in bytes.iter_mut().rev() {
        let (digit, carries) = if before { byte.overflowing_sub(1) } else { byte.overflowing_add(1) };
        *byte = digit;
        if !carries {
            return Some(K::decode(&bytes));
        }
    }
    None
}

/// The first and the last key of a range; `None` if it has none.
fn ends<K: OrderedKey>(range: &impl RangeBounds<K>) -> Option<(K, K)> {
    let from = match range.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => neighbour(key, false)?,
        Bound::Unbounded => K::decode(&vec![0; K::BYTES]),
    };
    let to = match range.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => neighbour(key, true)?,
        Bound::Unbounded => K::decode(&vec![u8::MAX; K::BYTES]),
    };
    (from <= to).then_some((from, to))
}

/// Whether a published error has been put back. Always false without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
const fn leaf_by_hint() -> bool {
    false
}
#[cfg(feature = "mutants")]
fn leaf_by_hint() -> bool {
    remora_txn::mutant::is_on(remora_txn::mutant::Mutant::LeafByHint)
}

/// It is not what was expected: what led there has changed since.
const CHANGED: Error = Error::Aborted(Reason::new(Abort::Changed));

impl<K: OrderedKey, V: Record> Ordered<K, V> {
    fn new(
        inner: Table<u64, NodeRecord>,
        leaves: Table<u64, NodeRecord>,
        values: Option<Table<K, V>>,
        shape: Shape,
    ) -> Ordered<K, V> {
        Ordered { inner, leaves, values, shape, directory: Arc::default() }
    }

    /// What a leaf has of a value.
    fn inline<'v>(&self, value: &'v V) -> &'v [u8] {
        if self.values.is_some() { &[] } else { value.as_bytes() }
    }

    /// The error of a transaction that needs a key of this table which is not there.
    #[must_use]
    pub fn missing(&self, key: &K) -> Error {
        Error::NotFound(Named::new(self.name(), encoded(key).bytes()))
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

    /// Reads all nodes above leaves, a transaction for each, so that this handle knows where all
    /// keys are.
    pub async fn train(&self, session: &mut Session) -> Result<(), Error> {
        let mut from = Some(K::decode(&vec![0; K::BYTES]));
        while let Some(key) = from {
            let read = session.transact(async |tx| {
                let path = self.descend(tx, &self.directory, &key, Intent::Read).await?;
                let above = path.len().checked_sub(2).and_then(|at| path.get(at)).ok_or(CHANGED)?;
                Ok(self.seen(tx, above.slot)?.high().map(K::decode))
            });
            from = read.await?;
        }
        Ok(())
    }

    /// The nodes of a level.
    fn of_level(&self, level: u16) -> &Table<u64, NodeRecord> {
        if level == 0 { &self.leaves } else { &self.inner }
    }

    /// Names a key, for what is to be done with it. The next [`Transaction::fetch`] brings what
    /// that needs, together with all else that was named, as far as this handle remembers where it
    /// is; the operation itself then takes no round trip.
    pub fn want(&self, tx: &mut Transaction<'_, '_>, key: &K, intent: Intent) {
        self.want_value(tx, key, intent);
        if self.values.is_none() || matches!(intent, Intent::Insert | Intent::Delete) {
            let intent = if intent == Intent::Read { Intent::Read } else { Intent::Update };
            self.directory.find(key).map(|id| tx.want_for(&self.leaves, id, intent));
        }
    }

    /// Names a value that is out of line.
    fn want_value(&self, tx: &mut Transaction<'_, '_>, key: &K, intent: Intent) {
        if let Some(values) = &self.values {
            tx.want_borrowed(values, key, intent);
        }
    }

    /// The value of a key.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: &K) -> Result<Option<V>, Error> {
        if let Some(values) = &self.values {
            return tx.read(values, *key).await;
        }
        let leaf = self.leaf(tx, &self.directory, key, Intent::Read).await?;
        let leaf = self.seen(tx, leaf)?;
        leaf.find(encoded(key).bytes()).ok().map(|at| self.value(&leaf, at)).transpose()
    }

    /// Inserts a key, or [`Error::Exists`].
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        self.want_value(tx, &key, Intent::Insert);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        match self.seen(tx, leaf)?.find(encoded(&key).bytes()) {
            Ok(_) => Err(Error::Exists(Named::new(self.name(), encoded(&key).bytes()))),
            Err(_) => self.add(tx, leaf, key, value).await,
        }
    }

    /// Replaces the value of a key, or [`Error::NotFound`].
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: &K, value: V) -> Result<(), Error> {
        if let Some(values) = &self.values {
            return tx.write(values, *key, value).await;
        }
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let at = self.seen(tx, leaf)?.find(encoded(key).bytes()).map_err(|_| self.missing(key))?;
        self.changed(tx, leaf)?.set_value(at, value.as_bytes());
        Ok(())
    }

    /// Inserts a key or replaces its value; the one that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<Option<V>, Error> {
        self.want_value(tx, &key, Intent::Insert);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(encoded(&key).bytes()) else {
            return self.add(tx, leaf, key, value).await.map(|()| None);
        };
        let before = match &self.values {
            Some(values) => std::mem::replace(tx.read_for_update(values, key).await?, value),
            None => {
                let before = self.value(&node, at)?;
                self.changed(tx, leaf)?.set_value(at, value.as_bytes());
                before
            }
        };
        Ok(Some(before))
    }

    /// Deletes a key; the value that it had, if it was there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: &K) -> Result<Option<V>, Error> {
        self.want_value(tx, key, Intent::Delete);
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(encoded(key).bytes()) else { return Ok(None) };
        let (inline, is_last) = (self.value(&node, at), node.count() == 1);
        let apart = self.values.as_ref().map(|values| tx.want_for(values, *key, Intent::Delete));
        if apart.is_some() {
            tx.fetch().await?;
        }
        let merge = if is_last { self.plan_merge(tx, leaf, key).await? } else { None };
        let before = match apart {
            Some(apart) => {
                // Leaf and value are changed together; if not, one of them was read before.
                let before = *tx.find(apart)?.ok_or(CHANGED)?;
                tx.remove(apart)?;
                before
            }
            None => inline?,
        };
        self.changed(tx, leaf)?.remove(at);
        merge.map_or(Ok(()), |merge| self.merge(tx, &merge))?;
        Ok(Some(before))
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
        let mut found = Vec::new();
        let Some((first, to)) = ends(&range) else { return Ok(found) };
        let mut from = first;
        let own = self.directory.of_an_operation();
        let directory = own.as_ref().unwrap_or(&self.directory);
        let mut ahead = 0;
        while found.len() < limit {
            if ahead == 0 {
                // Not more than it probably needs: others' changes of leaves that are not needed
                // would be conflicts.
                let leaves = directory.leaves_of(limit - found.len(), self.shape.capacity(0)).min(AHEAD_MAX);
                let known = directory.chain(&from, &to, leaves);
                for id in &known {
                    tx.want(&self.leaves, *id);
                }
                tx.fetch().await?;
                ahead = known.len();
            }
            ahead = ahead.saturating_sub(1);
            let leaf = self.leaf(tx, directory, &from, Intent::Read).await?;
            let leaf = self.seen(tx, leaf)?;
            directory.seen(leaf.count());
            let start = leaf.find(encoded(&from).bytes()).unwrap_or_else(|at| at);
            self.take(&leaf, start..leaf.count(), |key| key <= &to, limit, &mut found)?;
            match leaf.high().map(K::decode) {
                Some(high) if from < high && high <= to => from = high,
                _ => break,
            }
        }
        let last = if found.len() == limit { found.last().map(|(key, _)| *key) } else { Some(to) };
        self.bring_values(tx, &mut found, Some(first).zip(last)).await?;
        Ok(found)
    }

    /// The last keys of a range and their values, in descending order: at most `limit`. It takes a
    /// round trip for each leaf.
    pub async fn scan_back(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, Error> {
        let mut found = Vec::new();
        let Some((from, last)) = ends(&range) else { return Ok(found) };
        let mut to = last;
        let own = self.directory.of_an_operation();
        let directory = own.as_ref().unwrap_or(&self.directory);
        while found.len() < limit {
            let leaf = self.leaf(tx, directory, &to, Intent::Read).await?;
            let leaf = self.seen(tx, leaf)?;
            let behind = leaf.find(encoded(&to).bytes()).map_or_else(|at| at, |at| at + 1);
            self.take(&leaf, (0..behind).rev(), |key| key >= &from, limit, &mut found)?;
            match neighbour(&K::decode(leaf.low()), true) {
                Some(before) if from <= before && before < to => to = before,
                _ => break,
            }
        }
        let first = if found.len() == limit { found.last().map(|(key, _)| *key) } else { Some(from) };
        self.bring_values(tx, &mut found, first.zip(Some(last))).await?;
        Ok(found)
    }

    /// The values of what a scan has found between two keys, where they are out of line.
    async fn bring_values(
        &self,
        tx: &mut Transaction<'_, '_>,
        found: &mut [(K, V)],
        range: Option<(K, K)>,
    ) -> Result<(), Error> {
        let Some(values) = &self.values else { return Ok(()) };
        let slots: Vec<Slot<V>> = found.iter().map(|(key, _)| tx.want(values, *key)).collect();
        tx.fetch().await?;
        for ((_, value), slot) in found.iter_mut().zip(slots) {
            *value = *tx.find(slot)?.ok_or(CHANGED)?;
        }
        if let Some((first, last)) = range {
            tx.note_scan(values, &first, &last)?;
        }
        Ok(())
    }

    /// Takes entries of a leaf, as long as their keys are of the range, and there are not enough.
    fn take(
        &self,
        leaf: &Seen<'_>,
        entries: impl Iterator<Item = usize>,
        is_of_range: impl Fn(&K) -> bool,
        limit: usize,
        found: &mut Vec<(K, V)>,
    ) -> Result<(), Error> {
        for at in entries {
            let key = K::decode(leaf.key(at));
            if found.len() == limit || !is_of_range(&key) {
                break;
            }
            let value = if self.values.is_some() { V::new_zeroed() } else { self.value(leaf, at)? };
            found.push((key, value));
        }
        Ok(())
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

    // ---- finding ------------------------------------------------------------------------------

    /// The leaf of a key, which is in the read set from now on. First where it is remembered to be;
    /// if nothing is remembered, where the memory node's CPU says, if there is one to be asked; and
    /// then from the root.
    async fn leaf(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory<K>,
        key: &K,
        intent: Intent,
    ) -> Result<Slot<NodeRecord>, Error> {
        let bytes = encoded(key);
        let mut hint = directory.find(key);
        let mut is_known = hint.is_some();
        if !is_known {
            let parent = !directory.is_forgetful();
            let located = tx.locate_in_tree(&self.inner, &self.leaves, bytes.bytes(), parent, intent).await?;
            hint = located.as_ref().map(|located| located.leaf);
            if let Some(parent) = located.and_then(|located| located.parent) {
                directory.learn(children(&self.node(parent.as_bytes())?));
            }
        }
        for _ in 0..=HOPS_MAX {
            let Some(id) = hint else { break };
            let slot = tx.want_for(&self.leaves, id, intent);
            tx.fetch().await?;
            let Some(node) = self.find(tx, slot)?.filter(|node| node.level() == 0) else {
                // It has gone, or has never been there.
                directory.forget(key, id);
                hint = directory.find(key).filter(|_| is_known);
                continue;
            };
            let is_it = node.contains(bytes.bytes()) || leaf_by_hint();
            if !is_it || !is_known {
                directory.learn([of_node(id, &node)]);
            }
            if is_it {
                return Ok(slot);
            }
            is_known = false;
            hint = node.side_of(bytes.bytes()).is_gt().then(|| node.next());
        }
        let path = self.descend(tx, directory, key, intent).await?;
        path.last().map(|leaf| leaf.slot).ok_or(CHANGED)
    }

    /// Reads the path from the root to the leaf of a key. The leaf is named with `intent`; the
    /// inner nodes are named for reading.
    async fn descend(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory<K>,
        key: &K,
        intent: Intent,
    ) -> Result<Vec<Step>, Error> {
        let bytes = encoded(key);
        let (mut path, mut id, mut below) = (Vec::new(), ROOT, None);
        loop {
            let is_leaf = below == Some(1);
            let (table, intent) = if is_leaf { (&self.leaves, intent) } else { (&self.inner, Intent::Read) };
            let slot = tx.want_for(table, id, intent);
            tx.fetch().await?;
            // Whatever led here was read in this transaction, and has changed since.
            let node = self.find(tx, slot)?.ok_or(CHANGED)?;
            let level = node.level();
            if below.is_some_and(|above| above != level + 1) || !node.contains(bytes.bytes()) {
                return Err(CHANGED);
            }
            if (level == 0) != is_leaf {
                return Err(self.damaged(Damaged("the root's level")));
            }
            path.push(Step { id, level, slot });
            match level {
                0 => return Ok(path),
                1 => {
                    directory.learn(children(&node));
                    directory.learn_parent(of_node(id, &node));
                }
                _ => {}
            }
            (id, below) = (node.child(node.child_of(bytes.bytes())), Some(level));
        }
    }

    // ---- splitting and merging ----------------------------------------------------------------

    /// Adds an entry to a leaf that was named for an update, or to one half of it.
    async fn add(
        &self,
        tx: &mut Transaction<'_, '_>,
        mut leaf: Slot<NodeRecord>,
        key: K,
        value: V,
    ) -> Result<(), Error> {
        let apart = self.values.as_ref().map(|values| tx.want_for(values, key, Intent::Insert));
        if let Some(apart) = apart {
            tx.fetch().await?;
            if tx.find(apart)?.is_some() {
                return Err(CHANGED); // the leaf was read before
            }
        }
        if self.seen(tx, leaf)?.is_full() {
            leaf = self.split(tx, leaf, &key).await?;
        }
        let (encoded, inline) = (encoded(&key), self.inline(&value));
        let mut node = self.changed(tx, leaf)?;
        let at = node.find(encoded.bytes()).unwrap_or_else(|at| at);
        node.insert(at, encoded.bytes(), inline);
        apart.map_or(Ok(()), |apart| tx.put(apart, value))
    }

    /// Splits the leaf of a key, which is full, and its ancestors as far as they are; the half that
    /// the key belongs to.
    async fn split(
        &self,
        tx: &mut Transaction<'_, '_>,
        leaf: Slot<NodeRecord>,
        key: &K,
    ) -> Result<Slot<NodeRecord>, Error> {
        // Mostly its parent is known, and has room: one round trip, and not one for each level.
        if let Some(id) = self.directory.parent(key) {
            let parent = tx.want_for(&self.inner, id, Intent::Update);
            let new = self.want_new(tx, 0);
            tx.fetch().await?;
            let full = self.seen(tx, leaf)?;
            let has_it = |node: Seen<'_>| node.level() == 1 && node.find(full.low()).is_ok() && !node.is_full();
            if self.find(tx, parent)?.is_some_and(has_it) && tx.find(new.slot)?.is_none() {
                return self.split_one(tx, parent, leaf, new, encoded(key).bytes());
            }
        }
        let path = self.descend(tx, &self.directory, key, Intent::Update).await?;
        let mut from = path.len();
        while from > 0 && self.seen(tx, path[from - 1].slot)?.is_full() {
            from -= 1;
        }
        for step in &path[from.saturating_sub(1)..] {
            tx.want_for(self.of_level(step.level), step.id, Intent::Update);
        }
        // A node beside each that is full, and one below the root for what it has.
        let for_root = path.first().filter(|_| from == 0);
        let new: Vec<Step> =
            for_root.into_iter().chain(&path[from..]).map(|step| self.want_new(tx, step.level)).collect();
        tx.fetch().await?;
        for new in &new {
            if tx.find(new.slot)?.is_some() {
                return Err(CHANGED);
            }
        }
        self.split_path(tx, &path, from, new, key)
    }

    /// A record for a node that nobody has seen.
    fn want_new(&self, tx: &mut Transaction<'_, '_>, level: u16) -> Step {
        let id = KeyHash::of(&[tx.id().to_bits(), tx.named() as u64]).word % learned::ID_END;
        Step { id, level, slot: tx.want_for(self.of_level(level), id, Intent::Insert) }
    }

    /// Splits the nodes of a path, once all nodes are fetched. The nodes of the path from `from` on
    /// are full. There is a new node for each of them, and one more if the root is among them.
    fn split_path(
        &self,
        tx: &mut Transaction<'_, '_>,
        path: &[Step],
        from: usize,
        new: Vec<Step>,
        key: &K,
    ) -> Result<Slot<NodeRecord>, Error> {
        let key = encoded(key);
        let mut new = new.into_iter();
        let mut next = || new.next().ok_or(CHANGED);
        let (mut parent, mut full) = (path.get(from.wrapping_sub(1)).map(|step| step.slot), &path[from..]);
        if parent.is_none() {
            // The root's content goes to a node of its own, which is split then, like any other.
            let root = path.first().ok_or(CHANGED)?.slot;
            let content = self.seen(tx, root)?;
            let (level, low, content) = (content.level(), content.low().to_vec(), content.image());
            let below = next()?;
            tx.put(below.slot, NodeRecord(content))?;
            let mut image = [0; NODE_BYTES];
            Node::create(self.shape, &mut image, level + 1, &low).insert_child(&low, below.id);
            *tx.get_mut(root)? = NodeRecord(image);
            parent = Some(self.split_one(tx, root, below.slot, next()?, key.bytes())?);
            full = &full[1..];
        }
        for step in full {
            let above = parent.ok_or(CHANGED)?;
            parent = Some(self.split_one(tx, above, step.slot, next()?, key.bytes())?);
        }
        parent.ok_or(CHANGED)
    }

    /// Splits a node that is full; the half that a key belongs to. Its parent has room.
    fn split_one(
        &self,
        tx: &mut Transaction<'_, '_>,
        parent: Slot<NodeRecord>,
        full: Slot<NodeRecord>,
        new: Step,
        key: &[u8],
    ) -> Result<Slot<NodeRecord>, Error> {
        let mut node = self.changed(tx, full)?;
        let right = node.split(node.split_point(key), new.id);
        tx.put(new.slot, NodeRecord(right))?;
        let right = self.node(&right[..])?;
        if new.level == 0 {
            // The next ones come there; if this aborts, they will not find it.
            self.directory.learn([of_node(new.id, &right)]);
        }
        self.changed(tx, parent)?.insert_child(right.low(), new.id);
        Ok(if right.contains(key) { new.slot } else { full })
    }

    /// Fetches what a merge of the leaf of a key with a neighbour needs: the leaf is about to lose
    /// its last entry. `None` if it has no neighbour. Nothing is changed yet, so that the operation
    /// can be dropped here.
    async fn plan_merge(
        &self,
        tx: &mut Transaction<'_, '_>,
        leaf: Slot<NodeRecord>,
        key: &K,
    ) -> Result<Option<Merge>, Error> {
        let mut path = self.descend(tx, &self.directory, key, Intent::Update).await?;
        let mut below = path.len();
        let last = path.last().ok_or(CHANGED)?;
        if !last.slot.is(leaf) {
            return Err(CHANGED); // another leaf of the key: one of them has gone
        }
        loop {
            match below.checked_sub(2) {
                None => return Ok(None), // it is the only one
                Some(parent) if self.seen(tx, path[parent].slot)?.count() > 1 => break,
                Some(_) => below -= 1,
            }
        }
        below -= 1;
        let parent = path[below - 1];
        path.drain(..below);
        let node = self.seen(tx, parent.slot)?;
        let at = node.child_of(encoded(key).bytes());
        let (to_left, mut id) = if at > 0 { (true, node.child(at - 1)) } else { (false, node.child(1)) };
        // What is left of two goes on, what is right of it is deleted.
        let (ours, theirs) = if to_left { (Intent::Delete, Intent::Update) } else { (Intent::Update, Intent::Delete) };
        tx.want_for(self.of_level(parent.level), parent.id, Intent::Update);
        for step in &path {
            tx.want_for(self.of_level(step.level), step.id, ours);
        }
        let mut beside = Vec::with_capacity(path.len());
        for step in &path {
            let slot = tx.want_for(self.of_level(step.level), id, theirs);
            tx.fetch().await?;
            beside.push(slot);
            let node = self.find(tx, slot)?.ok_or(CHANGED)?;
            if node.level() > 0 {
                id = node.child(if to_left { node.count() - 1 } else { 0 });
            }
        }
        let nodes = path.iter().map(|step| step.slot).zip(beside).collect();
        Ok(Some(Merge { parent: parent.slot, at: if to_left { at } else { 1 }, nodes, to_left }))
    }

    /// Merges nodes with their neighbours, once everything is there: see invariant 4.
    fn merge(&self, tx: &mut Transaction<'_, '_>, merge: &Merge) -> Result<(), Error> {
        for (ours, theirs) in &merge.nodes {
            let (left, right) = if merge.to_left { (*theirs, *ours) } else { (*ours, *theirs) };
            let gone = tx.get(right)?.0;
            let gone = self.node(&gone[..])?;
            let mut node = self.changed(tx, left)?;
            if node.level() != gone.level() || node.high() != Some(gone.low()) {
                return Err(CHANGED);
            }
            // The first child of what is gone goes itself.
            let first = if gone.level() > 0 { 1 } else { 0 };
            node.absorb(&gone, first);
            tx.remove(right)?;
        }
        self.changed(tx, merge.parent)?.remove(merge.at);
        Ok(())
    }

    // ---- bytes --------------------------------------------------------------------------------

    fn node<'n>(&self, bytes: &'n [u8]) -> Result<Seen<'n>, Error> {
        Node::new(self.shape, bytes).map_err(|what| self.damaged(what))
    }

    fn damaged(&self, what: Damaged) -> Error {
        Error::Damaged { table: self.name().to_owned(), what }
    }

    /// A node that has been fetched, if it is there.
    fn find<'t>(&self, tx: &'t Transaction<'_, '_>, slot: Slot<NodeRecord>) -> Result<Option<Seen<'t>>, Error> {
        tx.find(slot)?.map(|record| self.node(&record.0)).transpose()
    }

    /// A node that has been fetched and is there.
    fn seen<'t>(&self, tx: &'t Transaction<'_, '_>, slot: Slot<NodeRecord>) -> Result<Seen<'t>, Error> {
        self.find(tx, slot)?.ok_or(CHANGED)
    }

    /// A node that has been fetched and is there, to be changed.
    fn changed<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        slot: Slot<NodeRecord>,
    ) -> Result<Node<&'t mut [u8]>, Error> {
        Node::new(self.shape, &mut tx.get_mut(slot)?.0[..]).map_err(|what| self.damaged(what))
    }

    fn value(&self, leaf: &Seen<'_>, at: usize) -> Result<V, Error> {
        V::read_from_bytes(leaf.value(at)).map_err(|_| self.damaged(Damaged("a value")))
    }
}

/// A node, as the directory keeps it.
fn of_node<K: OrderedKey>(id: u64, node: &Seen<'_>) -> (K, Option<K>, u64) {
    (K::decode(node.low()), node.high().map(K::decode), id)
}

/// The leaves below a node of level 1.
fn children<'n, K: OrderedKey>(node: &'n Seen<'n>) -> impl Iterator<Item = (K, Option<K>, u64)> + use<'n, K> {
    (0..node.count()).map(|at| {
        let high = if at + 1 < node.count() { Some(node.key(at + 1)) } else { node.high() };
        (K::decode(node.key(at)), high.map(K::decode), node.child(at))
    })
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
