//! Finding the leaf of a key: where it is remembered, by asking a memory node, or from the root.

use remora_index::btree::{Damaged, MAP_LEVEL, ROOT};
use remora_txn::{Intent, Part, Question};
use zerocopy::IntoBytes;

use super::directory::Directory;
use super::keys::TreeKey;
use super::partitions;
use super::tree::{CHANGED, NodeView, Tree};
use crate::error::Error;
use crate::transaction::{RawSlot, Transaction};
use crate::worker::Session;

/// Links that are followed from a leaf that was split, before its key is looked for from the root.
const HOPS_MAX: u32 = 4;

/// A node on the way from the root to a leaf.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) id: u64,
    pub(super) level: u16,
    pub(super) slot: RawSlot,
}

/// What a look for the leaf of a key has found.
pub(super) enum Found {
    /// The leaf.
    Leaf(RawSlot),
    /// What a memory node's CPU says that the leaf has of the key: the words of its value.
    Answer(Option<Box<[u64]>>),
}

impl Tree {
    /// The whole leaf of a key, which is in the read set from now on.
    pub(super) async fn leaf(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory,
        key: &[u8],
        intent: Intent,
    ) -> Result<RawSlot, Error> {
        match self.look_for(tx, directory, key, (intent, Part::Whole)).await? {
            Found::Leaf(slot) => Ok(slot),
            Found::Answer(_) => Err(CHANGED),
        }
    }

    /// The leaf of a key, or the part of it that is needed, which is in the read set from now on.
    /// First where it is remembered to be; if nothing is remembered, where the memory node's CPU
    /// says, if there is one to be asked; and then from the root. The CPU gives an answer only if
    /// no more is needed ([`Part::Answer`]).
    pub(super) async fn look_for(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory,
        key: &[u8],
        (intent, mut part): (Intent, Part),
    ) -> Result<Found, Error> {
        let mut hint = directory.find(key);
        let mut is_known = hint.is_some();
        if !is_known && let Some(start) = self.start_of(key) {
            let (shape, parent) = (self.shape, !directory.is_forgetful());
            let question = Question { key, shape, start, parent, purpose: (intent, part) };
            let located = tx.locate_in_tree(&self.inner, &self.leaves, question).await?;
            hint = located.as_ref().map(|located| located.leaf);
            if let Some(located) = located {
                if let Some(parent) = located.parent {
                    learn_children(directory, &self.node(parent.as_bytes())?);
                }
                if let Some(answer) = located.answer {
                    tx.fetch().await?; // the leaf, in the larger table if the table grows
                    return Ok(Found::Answer(answer));
                }
            }
        }
        part = part.max(self.looked_at());
        for _ in 0..=HOPS_MAX {
            let Some(id) = hint else { break };
            let slot = self.name_leaf(tx, id, (intent, part));
            tx.fetch().await?;
            let Some(node) = self.find(tx, slot)?.filter(|node| node.level() == 0) else {
                // It has gone, or has never been there.
                if !tx.reads_past() {
                    directory.forget(key, id);
                }
                hint = directory.find(key).filter(|_| is_known);
                continue;
            };
            let is_it = node.contains(key) || mutant!(LeafByHint);
            if (!is_it || !is_known) && !tx.reads_past() {
                learn_leaf(directory, id, &node);
            }
            if is_it {
                return Ok(Found::Leaf(slot));
            }
            is_known = false;
            // The last leaf of a partition is linked to none.
            hint = node.side_of(key).is_gt().then(|| node.next()).filter(|next| *next != 0);
        }
        let path = self.descend(tx, directory, key, (intent, part)).await?;
        path.last().map(|leaf| Found::Leaf(leaf.slot)).ok_or(CHANGED)
    }

    /// Reads the path from the root to the leaf of a key. The leaf is named for a purpose; the
    /// inner nodes are named for reading.
    pub(super) async fn descend(
        &self,
        tx: &mut Transaction<'_, '_>,
        directory: &Directory,
        key: &[u8],
        purpose: (Intent, Part),
    ) -> Result<Vec<Step>, Error> {
        let (mut path, mut below) = (Vec::new(), None);
        let mut id = self.partitions.get().map_or(ROOT, |partitions| partitions.root_of(key));
        loop {
            let is_leaf = below == Some(1);
            let slot = match is_leaf {
                true => self.name_leaf(tx, id, purpose),
                false => self.name_node(tx, &self.inner, id, Intent::Read),
            };
            tx.fetch().await?;
            // Whatever led here was read in this transaction, and has changed since.
            let node = self.find(tx, slot)?.ok_or(CHANGED)?;
            let level = node.level();
            if self.partitions.get().is_none() {
                let first = partitions::of_first(&node).map_err(|what| self.damaged(what))?;
                let partitions = self.partitions.get_or_init(|| first);
                if level == MAP_LEVEL {
                    id = partitions.root_of(key);
                    continue;
                }
            }
            if below.is_some_and(|above| above != level + 1) || !node.contains(key) {
                return Err(CHANGED);
            }
            if (level == 0) != is_leaf {
                return Err(self.damaged(Damaged("the root's level")));
            }
            path.push(Step { id, level, slot });
            match level {
                0 => return Ok(path),
                // Where keys were at a past time helps nobody else.
                1 if tx.reads_past() => {}
                1 => {
                    learn_children(directory, &node);
                    let (low, high) = (node.low(), node.high());
                    directory.learn_parent((&low, high.as_deref(), id));
                }
                _ => {}
            }
            (id, below) = (node.child(node.child_of(key)), Some(level));
        }
    }

    /// Reads all nodes above leaves, a transaction for each, so that this handle knows where all
    /// keys are.
    pub(super) async fn train(&self, session: &mut Session) -> Result<(), Error> {
        let mut from = Some(TreeKey::of(&self.shape.least()));
        while let Some(key) = from {
            let read = session.transact(async |tx| {
                let path = self.descend(tx, &self.directory, key.bytes(), (Intent::Read, self.looked_at())).await?;
                let above = path.len().checked_sub(2).and_then(|at| path.get(at)).ok_or(CHANGED)?;
                Ok(self.seen(tx, above.slot)?.high().map(|high| TreeKey::of(&high)))
            });
            from = read.await?;
        }
        Ok(())
    }
}

/// Notes where a leaf is.
pub(super) fn learn_leaf(directory: &Directory, id: u64, leaf: &NodeView<'_>) {
    let (low, high) = (leaf.low(), leaf.high());
    directory.learn([(&low[..], high.as_deref(), id)]);
}

/// Notes where the leaves below a node of level 1 are.
fn learn_children(directory: &Directory, node: &NodeView<'_>) {
    let (keys, high): (Vec<_>, _) = ((0..node.count()).map(|at| node.key(at)).collect(), node.high());
    directory.learn(keys.iter().enumerate().map(|(at, low)| {
        let high = keys.get(at + 1).or(high.as_ref());
        (&low[..], high.map(|high| &high[..]), node.child(at))
    }));
}
