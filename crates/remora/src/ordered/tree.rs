//! A tree of bytes, and its nodes as a transaction sees them.

use std::sync::{Arc, OnceLock};

use remora_index::btree::{Damaged, Node, Shape};
use remora_txn::{Abort, EditKind, Intent, Part, Start};
use zerocopy::IntoBytes;

use super::directory::Directory;
use super::partitions::Partitions;
use super::parts::node_key;
use crate::dynamic::DynTable;
use crate::error::{Error, Reason};
use crate::table::RawTable;
use crate::transaction::{RawSlot, Transaction};

/// The bytes of a node of this transaction.
pub(super) type NodeView<'t> = Node<&'t [u8]>;

/// An ordered table, whose keys and values are bytes: see [`Shape`]. Clones share what they
/// remember of where keys are.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) inner: RawTable,
    pub(super) leaves: RawTable,
    /// Values that are out of line.
    pub(super) values: Option<DynTable>,
    pub(super) shape: Shape,
    pub(super) directory: Arc<Directory>,
    /// The table's partitions, once they are known.
    pub(super) partitions: Arc<OnceLock<Partitions>>,
    /// Whether changes of one key are calls, where they can be.
    by_call: bool,
}

/// It is not what was expected: what led there has changed since.
pub(super) const CHANGED: Error = Error::Aborted(Reason::new(Abort::Changed));

impl Tree {
    pub(super) fn new(inner: RawTable, leaves: RawTable, values: Option<DynTable>, shape: Shape) -> Tree {
        let (directory, partitions) = (Arc::new(Directory::new(shape)), Arc::<OnceLock<Partitions>>::default());
        if inner.handle().inner.shards() == 1 {
            partitions.get_or_init(|| Partitions::One);
        }
        Tree { inner, leaves, values, shape, directory, partitions, by_call: false }
    }

    /// The table's name.
    pub(super) fn name(&self) -> &str {
        self.leaves.name().strip_suffix("/leaves").unwrap_or(self.leaves.name())
    }

    /// A handle that remembers nothing of where keys are.
    pub(super) fn without_memory(&self) -> Tree {
        Tree { directory: Arc::new(Directory::forgetful(self.shape)), ..self.clone() }
    }

    /// A handle of its own that remembers where keys are in a learned cache.
    pub(super) fn learned(&self) -> Tree {
        Tree { directory: Arc::new(Directory::learned(self.shape)), ..self.clone() }
    }

    /// A handle that shares what this one remembers, and whose changes of one key are calls, where
    /// they can be.
    pub(super) fn by_call(&self) -> Tree {
        Tree { by_call: true, ..self.clone() }
    }

    pub(super) fn is_by_call(&self) -> bool {
        self.by_call
    }

    /// Has the CPU of a leaf's memory node make a change of one key. Returns the words of the value
    /// that the key had, if it was there. `None` if that is not possible: then the client makes the
    /// change itself.
    pub(super) async fn change_by_call(
        &self,
        tx: &mut Transaction<'_, '_>,
        kind: EditKind,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Option<Box<[u64]>>>, Error> {
        if !self.by_call || self.values.is_some() {
            return Ok(None);
        }
        let known = (self.start_of(key), self.directory.find(key));
        let taken = tx.take_leaf((&self.inner, &self.leaves), known, (self.shape, kind), (key, value)).await?;
        Ok(taken.map(|taken| taken.before))
    }

    /// Where a memory node's CPU begins to look for the leaf of a key, as far as that is known, and
    /// if all inner nodes lie at one.
    pub(super) fn start_of(&self, key: &[u8]) -> Option<Start> {
        self.partitions.get()?.start_of(key, &self.inner, &self.leaves)
    }

    /// What `read` makes of the words of a value.
    pub(super) fn of_words<B>(&self, words: &[u64], read: impl FnOnce(&[u8]) -> Result<B, Error>) -> Result<B, Error> {
        read(words.as_bytes().get(..self.shape.value_bytes()).ok_or(CHANGED)?)
    }

    /// What a leaf has of a value.
    pub(super) fn inline<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        if self.values.is_some() { &[] } else { value }
    }

    /// The nodes of a level.
    pub(super) fn of_level(&self, level: u16) -> &RawTable {
        if level == 0 { &self.leaves } else { &self.inner }
    }

    /// Names a node for what the transaction is about to do with it.
    pub(super) fn name_node(&self, tx: &mut Transaction<'_, '_>, table: &RawTable, id: u64, intent: Intent) -> RawSlot {
        tx.name_raw(table.handle(), &node_key(id), intent)
    }

    /// Names a leaf for what the transaction is about to do with it, and says how much of it is
    /// needed.
    pub(super) fn name_leaf(&self, tx: &mut Transaction<'_, '_>, id: u64, purpose: (Intent, Part)) -> RawSlot {
        tx.name_part(self.leaves.handle(), &node_key(id), purpose)
    }

    /// How much of a leaf a lookup needs at first.
    pub(super) fn looked_at(&self) -> Part {
        if self.shape.leaf_parts().is_some() { Part::Head } else { Part::Whole }
    }

    pub(super) fn node<'n>(&self, bytes: &'n [u8]) -> Result<NodeView<'n>, Error> {
        Node::new(self.shape, bytes).map_err(|what| self.damaged(what))
    }

    pub(super) fn damaged(&self, what: Damaged) -> Error {
        Error::Damaged { table: self.name().to_owned(), what }
    }

    /// A node that has been fetched, if it is there.
    pub(super) fn find<'t>(&self, tx: &'t Transaction<'_, '_>, slot: RawSlot) -> Result<Option<NodeView<'t>>, Error> {
        tx.raw(slot)?.map(|bytes| self.node(bytes)).transpose()
    }

    /// A node that has been fetched and is there.
    pub(super) fn seen<'t>(&self, tx: &'t Transaction<'_, '_>, slot: RawSlot) -> Result<NodeView<'t>, Error> {
        self.find(tx, slot)?.ok_or(CHANGED)
    }

    /// A node that has been fetched and is there, to be changed.
    pub(super) fn changed<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        slot: RawSlot,
    ) -> Result<Node<&'t mut [u8]>, Error> {
        let node = self.seen(tx, slot)?;
        if self.shape.is_slotted() {
            node.check().map_err(|what| self.damaged(what))?;
        }
        Node::new(self.shape, tx.raw_mut(slot)?).map_err(|what| self.damaged(what))
    }
}
