//! Partitions of a tree by ranges of keys, each of which lies at a memory node of its own
//! ([`OrderedOptions::split_at`](super::OrderedOptions::split_at)).
//!
//! ```text
//! node 0 (`ROOT`)   the map: least key -> root, of each partition. It never changes
//! a root            like the root of a table that has one: it keeps its id, and its fences are the
//!                   partition's range
//! ```
//!
//! Partition `p` lies in shard `p` of its tables, at a memory node: its inner nodes, and its leaves
//! if the design is [`Design::Coarse`](super::Design::Coarse). Rows scatter over shards by their
//! keys' hashes, and a node's key is its id. So ids are drawn until one belongs to the shard.
//! Placement, growth and recovery know nothing of partitions.
//!
//! No leaf has keys of two partitions, and none is linked to one of another: a scan that comes to
//! the end of a partition looks for the key behind it.

use remora_index::btree::{Damaged, Image, MAP_LEVEL, Node, ROOT, Shape};
use remora_node::MemoryError;
use remora_txn::Start;

use super::parts::node_key;
use crate::table::RawTable;

/// What a map's link says if leaves lie by ranges, too.
const LEAVES_LIE_BY_RANGE: u64 = 1;

/// Where the trees of a table begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Partitions {
    /// One root, of all keys. Nodes of a level lie in all shards of their table.
    One,
    /// Several.
    Several {
        /// The least key and the root of each, in order.
        starts: Vec<(Vec<u8>, u64)>,
        /// Whether leaves lie by ranges, too.
        with_leaves: bool,
    },
}

/// What the first node of a table is: the one root, or the map.
pub(super) fn of_first(node: &Node<&[u8]>) -> Result<Partitions, Damaged> {
    if node.level() < MAP_LEVEL {
        return Ok(Partitions::One);
    }
    node.check()?;
    let starts = (0..node.count()).map(|at| (node.key(at).into_owned(), node.child(at))).collect();
    Ok(Partitions::Several { starts, with_leaves: node.next() == LEAVES_LIE_BY_RANGE })
}

impl Partitions {
    /// The map of a table that begins at several roots.
    pub(super) fn map(&self, shape: Shape) -> Result<Option<Image>, MemoryError> {
        let Partitions::Several { starts, with_leaves } = self else { return Ok(None) };
        let mut image = Image::new();
        let mut map = Node::create(shape, &mut image, MAP_LEVEL, &shape.least());
        for (number, (low, root)) in starts.iter().enumerate() {
            if !map.has_room(low) {
                let what = "the number of partitions of an ordered table";
                return Err(MemoryError::limit(what, starts.len() as u64, number as u64));
            }
            map.insert_child(low, *root);
        }
        if *with_leaves {
            map.end(None, LEAVES_LIE_BY_RANGE);
        }
        Ok(Some(image))
    }

    /// The number of a key's partition.
    fn number_of(&self, key: &[u8]) -> usize {
        match self {
            Partitions::One => 0,
            Partitions::Several { starts, .. } => starts.partition_point(|(low, _)| &low[..] <= key).saturating_sub(1),
        }
    }

    /// The root of the tree that has a key.
    pub(super) fn root_of(&self, key: &[u8]) -> u64 {
        match self {
            Partitions::One => ROOT,
            Partitions::Several { starts, .. } => starts.get(self.number_of(key)).map_or(ROOT, |(_, root)| *root),
        }
    }

    /// The shard that the nodes of a level which have a key lie in, if all of them lie in one.
    pub(super) fn shard_of(&self, level: u16, key: &[u8]) -> Option<u16> {
        match self {
            Partitions::Several { with_leaves, .. } if level > 0 || *with_leaves => Some(self.number_of(key) as u16),
            _ => None,
        }
    }

    /// Where a memory node's CPU begins to look for the leaf of a key, if all inner nodes of its
    /// tree lie at one.
    pub(super) fn start_of(&self, key: &[u8], inner: &RawTable, leaves: &RawTable) -> Option<Start> {
        let lies_in_one = |table: &RawTable| (table.handle().inner.shards() == 1).then_some(0);
        let shard_of = |level, table| self.shard_of(level, key).or_else(|| lies_in_one(table));
        let inner = shard_of(1, inner).filter(|shard| *shard < inner.handle().inner.shards())?;
        let leaves = shard_of(0, leaves).filter(|shard| *shard < leaves.handle().inner.shards());
        Some(Start { root: self.root_of(key), inner, leaves })
    }
}

/// Whether a node with this id lies in a shard of its table.
pub(super) fn lies_in(table: &RawTable, id: u64, shard: Option<u16>) -> bool {
    shard.is_none_or(|shard| table.handle().inner.home(node_key(id).hash()).shard == shard)
}
