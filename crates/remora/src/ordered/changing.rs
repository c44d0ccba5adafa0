//! Changing the nodes of a tree: adding entries to leaves, splits and merges.

use std::borrow::Cow;

use remora_index::btree::{Image, Node, ROOT, Split};
use remora_index::learned;
use remora_record::KeyHash;
use remora_txn::{Intent, Part};

use super::finding::{Step, learn_leaf};
use super::partitions::lies_in;
use super::tree::{CHANGED, NodeView, Tree};
use crate::dynamic::Access;
use crate::error::Error;
use crate::transaction::{RawSlot, Transaction};

/// A merge of nodes with their neighbours, all of which have been fetched: of a leaf, and of each
/// ancestor that has no other child.
pub(super) struct Merge {
    /// The parent of the topmost node that is merged.
    parent: RawSlot,
    /// Which child that parent loses.
    at: usize,
    /// Each with its neighbour.
    nodes: Vec<(RawSlot, RawSlot)>,
    /// Whether the neighbours are on the left.
    to_left: bool,
}

impl Merge {
    /// A node and its neighbour, the left one first.
    fn in_order(&self, (ours, theirs): &(RawSlot, RawSlot)) -> [RawSlot; 2] {
        if self.to_left { [*theirs, *ours] } else { [*ours, *theirs] }
    }
}

/// The first entry that a merge takes over: the first child of what is gone goes itself.
fn first_of(gone: &NodeView<'_>) -> usize {
    usize::from(gone.level() > 0)
}

impl Tree {
    /// Adds an entry to a leaf that was named for an update, or to one half of it.
    pub(super) async fn add(
        &self,
        tx: &mut Transaction<'_, '_>,
        mut leaf: RawSlot,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let apart = match &self.values {
            Some(values) => Some((values, values.fetch(tx, key, Access::Insert(value.len())).await?)),
            None => None,
        };
        if apart.as_ref().is_some_and(|(_, found)| found.is_there()) {
            return Err(CHANGED); // the leaf was read before
        }
        if !self.seen(tx, leaf)?.has_room(key) {
            leaf = self.split(tx, leaf, key).await?;
        }
        let mut node = self.changed(tx, leaf)?;
        let at = node.find(key).unwrap_or_else(|at| at);
        node.insert(at, key, self.inline(value));
        apart.map_or(Ok(()), |(values, found)| values.write(tx, key, value, &found))
    }

    /// Splits the leaf of a key, which has no room for it, and its ancestors as far as they have
    /// none for the fence between the halves. Returns the half that the key belongs to.
    async fn split(&self, tx: &mut Transaction<'_, '_>, leaf: RawSlot, key: &[u8]) -> Result<RawSlot, Error> {
        // Mostly its parent is known, and has room: one round trip, and not one for each level.
        if let Some(id) = self.directory.parent(key) {
            let parent = self.name_node(tx, &self.inner, id, Intent::Update);
            let new = self.want_new(tx, 0, key);
            tx.fetch().await?;
            let full = self.seen(tx, leaf)?;
            let split = self.split_point(&full, key)?;
            let is_its = |node: &NodeView<'_>| node.level() == 1 && node.find(&full.low()).is_ok();
            let has_room = |node: NodeView<'_>| is_its(&node) && node.has_room(&split.fence);
            if self.find(tx, parent)?.is_some_and(has_room) && tx.raw(new.slot)?.is_none() {
                return self.split_one(tx, parent, leaf, (new, &split), key);
            }
        }
        let path = self.descend(tx, &self.directory, key, (Intent::Update, Part::Whole)).await?;
        let mut from = path.len();
        let mut splits = Vec::new();
        let mut fence = key;
        while from > 0 {
            let node = self.seen(tx, path[from - 1].slot)?;
            if node.has_room(fence) {
                break;
            }
            from -= 1;
            splits.insert(0, self.split_point(&node, fence)?);
            fence = &splits[0].fence;
        }
        for step in &path[from.saturating_sub(1)..] {
            self.name_node(tx, self.of_level(step.level), step.id, Intent::Update);
        }
        // A node beside each that is full, and one below the root for what it has.
        let for_root = path.first().filter(|_| from == 0);
        let new: Vec<Step> =
            for_root.into_iter().chain(&path[from..]).map(|step| self.want_new(tx, step.level, key)).collect();
        tx.fetch().await?;
        for new in &new {
            if tx.raw(new.slot)?.is_some() {
                return Err(CHANGED);
            }
        }
        self.split_path(tx, &path, (&splits, new), key)
    }

    fn split_point(&self, node: &NodeView<'_>, key: &[u8]) -> Result<Split, Error> {
        node.split_point(key).map_err(|what| self.damaged(what))
    }

    /// A record for a node that nobody has seen, beside the one of this level that has a key.
    fn want_new(&self, tx: &mut Transaction<'_, '_>, level: u16, key: &[u8]) -> Step {
        let shard = self.partitions.get().and_then(|partitions| partitions.shard_of(level, key));
        let mut drawn = [tx.id().to_bits(), tx.named() as u64, 0];
        let id = loop {
            let id = KeyHash::of(&drawn).word % learned::ID_END;
            if id != ROOT && lies_in(self.of_level(level), id, shard) {
                break id;
            }
            drawn[2] += 1;
        };
        Step { id, level, slot: self.name_node(tx, self.of_level(level), id, Intent::Insert) }
    }

    /// Splits the last nodes of a path, once all nodes are fetched. There is a new node for each of
    /// them, and one more if the root is among them.
    fn split_path(
        &self,
        tx: &mut Transaction<'_, '_>,
        path: &[Step],
        (splits, new): (&[Split], Vec<Step>),
        key: &[u8],
    ) -> Result<RawSlot, Error> {
        let (above, full) = path.split_at(path.len() - splits.len());
        let mut new = new.into_iter();
        let mut next = || new.next().ok_or(CHANGED);
        let mut parent = above.last().map(|step| step.slot);
        let mut full: Vec<_> = full.iter().map(|step| step.slot).collect();
        if parent.is_none() {
            // The root's content goes to a node of its own, which is split then, like any other.
            let root = full.first_mut().ok_or(CHANGED)?;
            let content = self.seen(tx, *root)?;
            let (level, low, high) = (content.level(), content.low().into_owned(), content.high());
            let (high, content) = (high.map(Cow::into_owned), content.image());
            let below = next()?;
            tx.put_raw(below.slot, &content, false)?;
            let mut image = Image::new();
            let mut top = Node::create(self.shape, &mut image, level + 1, &low);
            top.end(high.as_deref(), 0);
            top.insert_child(&low, below.id);
            tx.put_raw(*root, &image, true)?;
            parent = Some(std::mem::replace(root, below.slot));
        }
        for (full, split) in full.into_iter().zip(splits) {
            let above = parent.ok_or(CHANGED)?;
            parent = Some(self.split_one(tx, above, full, (next()?, split), key)?);
        }
        parent.ok_or(CHANGED)
    }

    /// Splits a node; the half that a key belongs to. Its parent has room.
    fn split_one(
        &self,
        tx: &mut Transaction<'_, '_>,
        parent: RawSlot,
        full: RawSlot,
        (new, split): (Step, &Split),
        key: &[u8],
    ) -> Result<RawSlot, Error> {
        let mut node = self.changed(tx, full)?;
        let right = node.split(split, new.id);
        tx.put_raw(new.slot, &right, false)?;
        let right = self.node(&right[..])?;
        if new.level == 0 {
            // The next ones come there; if this aborts, they will not find it.
            learn_leaf(&self.directory, new.id, &right);
        }
        self.changed(tx, parent)?.insert_child(&right.low(), new.id);
        Ok(if right.contains(key) { new.slot } else { full })
    }

    /// Fetches what a merge of the leaf of a key with a neighbour needs: the leaf is about to lose
    /// its last entry. `None` if it has no neighbour that has room. Nothing is changed yet, so that
    /// the operation can be dropped here.
    pub(super) async fn plan_merge(
        &self,
        tx: &mut Transaction<'_, '_>,
        leaf: RawSlot,
        key: &[u8],
    ) -> Result<Option<Merge>, Error> {
        let mut path = self.descend(tx, &self.directory, key, (Intent::Update, Part::Whole)).await?;
        let mut below = path.len();
        let last = path.last().ok_or(CHANGED)?;
        if last.slot != leaf {
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
        let (at, count) = (node.child_of(key), node.count());
        self.name_node(tx, self.of_level(parent.level), parent.id, Intent::Update);
        for (at, to_left) in [(at, true), (at + 1, false)] {
            if (1..count).contains(&at) {
                let merge = self.plan_merge_to(tx, &path, (parent.slot, at), to_left).await?;
                if self.has_room(tx, &merge)? {
                    return Ok(Some(merge));
                }
            }
        }
        Ok(None)
    }

    /// Fetches what a merge needs of nodes with their neighbours on one side. The parent of the
    /// topmost one is to lose a child.
    async fn plan_merge_to(
        &self,
        tx: &mut Transaction<'_, '_>,
        path: &[Step],
        (parent, at): (RawSlot, usize),
        to_left: bool,
    ) -> Result<Merge, Error> {
        let mut id = self.seen(tx, parent)?.child(if to_left { at - 1 } else { at });
        // What is left of two goes on, what is right of it is deleted.
        let (ours, theirs) = if to_left { (Intent::Delete, Intent::Update) } else { (Intent::Update, Intent::Delete) };
        for step in path {
            self.name_node(tx, self.of_level(step.level), step.id, ours);
        }
        let mut nodes = Vec::with_capacity(path.len());
        for step in path {
            let slot = self.name_node(tx, self.of_level(step.level), id, theirs);
            tx.fetch().await?;
            nodes.push((step.slot, slot));
            let node = self.find(tx, slot)?.ok_or(CHANGED)?;
            if node.level() > 0 {
                id = node.child(if to_left { node.count() - 1 } else { 0 });
            }
        }
        Ok(Merge { parent, at, nodes, to_left })
    }

    /// Whether what is left of two nodes has room for what a merge adds: for a longer fence, too.
    fn has_room(&self, tx: &Transaction<'_, '_>, merge: &Merge) -> Result<bool, Error> {
        for pair in &merge.nodes {
            let [left, right] = merge.in_order(pair);
            let (left, right) = (self.seen(tx, left)?, self.seen(tx, right)?);
            // The leaf's last entry goes before.
            let (kept, first) = match (left.level(), merge.to_left) {
                (0, true) => (left.count(), right.count()),
                (0, false) => (0, 0),
                _ => (left.count(), first_of(&right)),
            };
            if !left.can_absorb(kept, &right, first) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Merges nodes with their neighbours, once everything is there: see invariant 4.
    pub(super) fn merge(&self, tx: &mut Transaction<'_, '_>, merge: &Merge) -> Result<(), Error> {
        for pair in &merge.nodes {
            let [left, right] = merge.in_order(pair);
            let gone = self.seen(tx, right)?.image();
            let gone = self.node(&gone[..])?;
            let mut node = self.changed(tx, left)?;
            if node.level() != gone.level() || node.high() != Some(gone.low()) {
                return Err(CHANGED);
            }
            node.absorb(&gone, first_of(&gone));
            tx.delete_raw(right)?;
        }
        self.changed(tx, merge.parent)?.remove(merge.at);
        Ok(())
    }
}
