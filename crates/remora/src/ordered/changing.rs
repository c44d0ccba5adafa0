//! Changing the nodes of a tree: adding entries to leaves, splits and merges.

use remora_index::btree::{NODE_BYTES, Node};
use remora_index::learned;
use remora_record::KeyHash;
use remora_txn::Intent;

use super::finding::{Step, of_node};
use super::parts::NodeRecord;
use super::tree::{CHANGED, NodeView, Tree};
use crate::dynamic::Access;
use crate::error::Error;
use crate::transaction::{Slot, Transaction};

/// A merge of nodes with their neighbours, all of which have been fetched: of a leaf, and of each
/// ancestor that has no other child.
pub(super) struct Merge {
    /// The parent of the topmost node that is merged.
    parent: Slot<NodeRecord>,
    /// Which child that parent loses.
    at: usize,
    /// Each with its neighbour.
    nodes: Vec<(Slot<NodeRecord>, Slot<NodeRecord>)>,
    /// Whether the neighbours are on the left.
    to_left: bool,
}

impl Tree {
    /// Adds an entry to a leaf that was named for an update, or to one half of it.
    pub(super) async fn add(
        &self,
        tx: &mut Transaction<'_, '_>,
        mut leaf: Slot<NodeRecord>,
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
        if self.seen(tx, leaf)?.is_full() {
            leaf = self.split(tx, leaf, key).await?;
        }
        let mut node = self.changed(tx, leaf)?;
        let at = node.find(key).unwrap_or_else(|at| at);
        node.insert(at, key, self.inline(value));
        apart.map_or(Ok(()), |(values, found)| values.write(tx, key, value, &found))
    }

    /// Splits the leaf of a key, which is full, and its ancestors as far as they are; the half that
    /// the key belongs to.
    async fn split(
        &self,
        tx: &mut Transaction<'_, '_>,
        leaf: Slot<NodeRecord>,
        key: &[u8],
    ) -> Result<Slot<NodeRecord>, Error> {
        // Mostly its parent is known, and has room: one round trip, and not one for each level.
        if let Some(id) = self.directory.parent(key) {
            let parent = tx.want_for(&self.inner, id, Intent::Update);
            let new = self.want_new(tx, 0);
            tx.fetch().await?;
            let full = self.seen(tx, leaf)?;
            let has_it = |node: NodeView<'_>| node.level() == 1 && node.find(full.low()).is_ok() && !node.is_full();
            if self.find(tx, parent)?.is_some_and(has_it) && new.slot.get(tx)?.is_none() {
                return self.split_one(tx, parent, leaf, new, key);
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
            if new.slot.get(tx)?.is_some() {
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
        key: &[u8],
    ) -> Result<Slot<NodeRecord>, Error> {
        let mut new = new.into_iter();
        let mut next = || new.next().ok_or(CHANGED);
        let (mut parent, mut full) = (path.get(from.wrapping_sub(1)).map(|step| step.slot), &path[from..]);
        if parent.is_none() {
            // The root's content goes to a node of its own, which is split then, like any other.
            let root = path.first().ok_or(CHANGED)?.slot;
            let content = self.seen(tx, root)?;
            let (level, low, content) = (content.level(), content.low().to_vec(), content.image());
            let below = next()?;
            below.slot.insert(tx, NodeRecord(content))?;
            let mut image = [0; NODE_BYTES];
            Node::create(self.shape, &mut image, level + 1, &low).insert_child(&low, below.id);
            root.update(tx, NodeRecord(image))?;
            parent = Some(self.split_one(tx, root, below.slot, next()?, key)?);
            full = &full[1..];
        }
        for step in full {
            let above = parent.ok_or(CHANGED)?;
            parent = Some(self.split_one(tx, above, step.slot, next()?, key)?);
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
        new.slot.insert(tx, NodeRecord(right))?;
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
    pub(super) async fn plan_merge(
        &self,
        tx: &mut Transaction<'_, '_>,
        leaf: Slot<NodeRecord>,
        key: &[u8],
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
        let at = node.child_of(key);
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
    pub(super) fn merge(&self, tx: &mut Transaction<'_, '_>, merge: &Merge) -> Result<(), Error> {
        for (ours, theirs) in &merge.nodes {
            let (left, right) = if merge.to_left { (*theirs, *ours) } else { (*ours, *theirs) };
            let gone = right.require(tx)?.0;
            let gone = self.node(&gone[..])?;
            let mut node = self.changed(tx, left)?;
            if node.level() != gone.level() || node.high() != Some(gone.low()) {
                return Err(CHANGED);
            }
            // The first child of what is gone goes itself.
            let first = if gone.level() > 0 { 1 } else { 0 };
            node.absorb(&gone, first);
            right.remove(tx)?;
        }
        self.changed(tx, merge.parent)?.remove(merge.at);
        Ok(())
    }
}
