//! Finding the leaf of a key: where it is remembered, by asking a memory node, or from the root.

use remora_index::btree::{Damaged, ROOT};
use remora_record::Key;
use remora_txn::Intent;
use zerocopy::IntoBytes;

use super::directory::{Directory, Known};
use super::keys::{key_of, least};
use super::parts::NodeRecord;
use super::tree::{CHANGED, NodeView, Tree};
use crate::error::Error;
use crate::transaction::{Slot, Transaction};
use crate::worker::Session;

/// Links that are followed from a leaf that was split, before its key is looked for from the root.
const HOPS_MAX: u32 = 4;

/// A node on the way from the root to a leaf.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) id: u64,
    pub(super) level: u16,
    pub(super) slot: Slot<NodeRecord>,
}

impl Tree {
    /// The leaf of a key, which is in the read set from now on. First where it is remembered to be;
    /// if nothing is remembered, where the memory node's CPU says, if there is one to be asked; and
    /// then from the root.
    pub(super) async fn leaf(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory,
        key: &[u8],
        intent: Intent,
    ) -> Result<Slot<NodeRecord>, Error> {
        let mut hint = directory.find(key);
        let mut is_known = hint.is_some();
        if !is_known {
            let parent = !directory.is_forgetful();
            let located = tx.locate_in_tree(&self.inner, &self.leaves, key, parent, intent).await?;
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
            let is_it = node.contains(key) || mutant!(LeafByHint);
            if !is_it || !is_known {
                directory.learn([of_node(id, &node)]);
            }
            if is_it {
                return Ok(slot);
            }
            is_known = false;
            hint = node.side_of(key).is_gt().then(|| node.next());
        }
        let path = self.descend(tx, directory, key, intent).await?;
        path.last().map(|leaf| leaf.slot).ok_or(CHANGED)
    }

    /// Reads the path from the root to the leaf of a key. The leaf is named with `intent`; the
    /// inner nodes are named for reading.
    pub(super) async fn descend(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory,
        key: &[u8],
        intent: Intent,
    ) -> Result<Vec<Step>, Error> {
        let (mut path, mut id, mut below) = (Vec::new(), ROOT, None);
        loop {
            let is_leaf = below == Some(1);
            let (table, intent) = if is_leaf { (&self.leaves, intent) } else { (&self.inner, Intent::Read) };
            let slot = tx.want_for(table, id, intent);
            tx.fetch().await?;
            // Whatever led here was read in this transaction, and has changed since.
            let node = self.find(tx, slot)?.ok_or(CHANGED)?;
            let level = node.level();
            if below.is_some_and(|above| above != level + 1) || !node.contains(key) {
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
            (id, below) = (node.child(node.child_of(key)), Some(level));
        }
    }

    /// Reads all nodes above leaves, a transaction for each, so that this handle knows where all
    /// keys are.
    pub(super) async fn train(&self, session: &mut Session) -> Result<(), Error> {
        let mut from: Option<Key> = Some(least(self.shape.key_bytes()));
        while let Some(key) = from {
            let read = session.transact(async |tx| {
                let path = self.descend(tx, &self.directory, key.bytes(), Intent::Read).await?;
                let above = path.len().checked_sub(2).and_then(|at| path.get(at)).ok_or(CHANGED)?;
                Ok(self.seen(tx, above.slot)?.high().map(key_of))
            });
            from = read.await?;
        }
        Ok(())
    }
}

/// A node, as the directory keeps it.
pub(super) fn of_node<'n>(id: u64, node: &'n NodeView<'n>) -> Known<'n> {
    (node.low(), node.high(), id)
}

/// The leaves below a node of level 1.
fn children<'n>(node: &'n NodeView<'n>) -> impl Iterator<Item = Known<'n>> {
    (0..node.count()).map(|at| {
        let high = if at + 1 < node.count() { Some(node.key(at + 1)) } else { node.high() };
        (node.key(at), high, node.child(at))
    })
}
