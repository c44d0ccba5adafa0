//! A memory node's CPU goes down an ordered table, from the root to a leaf, for a client that asks.
//!
//! ```text
//! DESCEND  inner shard, leaf shard or NONE, key
//!    ->    leaf id; its parent, if it is asked for;
//!          then as READ if the leaf lies at this node, too
//!
//! The parent is asked for by the highest bit of the request's first word.
//! The next bit says that nodes are slotted (`btree`).
//! ```

use std::sync::atomic::AtomicU64;

use remora_fabric::{WORD_BYTES, copy};
use remora_index::btree::{LEVELS_MAX, Node, ROOT, Shape};
use remora_index::{HostShard, Presence};
use remora_node::ShardId;
use remora_record::{FetchedRecord, Key};
use zerocopy::IntoBytes;

use crate::limits::READ_ATTEMPTS;

/// No shard: leaves lie at many nodes.
pub(crate) const NONE: u64 = u64::MAX;
/// Words of a request before the key.
pub(crate) const REQUEST_WORDS: usize = 3;

/// Bit in the length of the key: the parent is wanted.
pub(crate) const PARENT: usize = 1 << 31;
/// Bit in the length of the key: nodes are slotted.
pub(crate) const SLOTTED: usize = 1 << 30;

/// The key of a node in its table.
pub(crate) fn node_key(id: u64) -> Option<Key> {
    Key::new(&id.to_be_bytes())
}

/// Finds leaves at a memory node: its CPU reads inner nodes in the records of its region.
#[derive(Debug, Default)]
pub(crate) struct Descent {
    record: Vec<u64>,
    value: Vec<u64>,
    /// Levels that the last descent has read.
    pub(crate) levels: u64,
}

impl Descent {
    /// Goes down from the root and returns the leaf's id, if every node on the way is here and
    /// whole. Adds the id to the reply, and the leaf's parent if it is wanted.
    pub(crate) fn leaf(
        &mut self,
        region: &[AtomicU64],
        inner: &HostShard,
        wanted: &Wanted<'_>,
        reply: &mut Vec<u64>,
    ) -> Option<u64> {
        let key = wanted.key;
        // The size of values does not matter for inner nodes.
        let shape = match wanted.is_slotted {
            true => Shape::of_slotted_inner(inner.shape.value_max()),
            false => Shape::new(key.len(), 0)?,
        };
        let mut id = ROOT;
        for level in 1..=LEVELS_MAX {
            self.levels = level.into();
            let Presence::Linked { location, .. } = inner.find(region, &node_key(id)?) else { return None };
            self.read(region, inner, location.pointer.offset())?;
            let node = Node::new(shape, self.value.as_bytes()).ok()?;
            if !node.contains(key) || node.level() == 0 {
                return None;
            }
            id = node.child(node.child_of(key));
            if node.level() == 1 {
                reply.push(id);
                if wanted.parent {
                    reply.extend_from_slice(&self.value);
                }
                return Some(id);
            }
        }
        None
    }

    /// Reads the value of a record, once the record is whole.
    fn read(&mut self, region: &[AtomicU64], shard: &HostShard, offset: u64) -> Option<()> {
        let at = shard.slot_word(offset)?;
        self.record.resize(shard.shape.record_bytes() / WORD_BYTES, 0);
        for _ in 0..READ_ATTEMPTS {
            copy::read(region, at, &mut self.record);
            if let Ok(record) = FetchedRecord::new(&self.record, &shard.shape).check_in_place() {
                self.value.clear();
                record.copy_value(&mut self.value);
                return record.is_present().then_some(());
            }
        }
        None
    }
}

/// A request for the leaf of a key.
pub(crate) struct Wanted<'a> {
    pub(crate) inner: ShardId,
    /// Shard of the leaves, if they are all here.
    pub(crate) leaves: Option<ShardId>,
    parent: bool,
    is_slotted: bool,
    key: &'a [u8],
}

impl Wanted<'_> {
    pub(crate) fn parse(count: usize, arguments: &[u64]) -> Option<Wanted<'_>> {
        let (&[inner, leaves], key) = arguments.split_first_chunk()?;
        let shard = |number| u16::try_from(number).ok().map(ShardId);
        let key = key.as_bytes().get(..count & !(PARENT | SLOTTED))?;
        let [parent, is_slotted] = [PARENT, SLOTTED].map(|bit| count & bit != 0);
        Some(Wanted { inner: shard(inner)?, leaves: shard(leaves), parent, is_slotted, key })
    }
}
