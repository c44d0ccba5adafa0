//! A memory node's CPU goes down an ordered table, from the root to a leaf, for a client that asks.
//!
//! ```text
//! DESCEND  inner shard (16 bits) and root, leaf shard or NONE, shape, key
//!    ->    leaf id; its parent, if it is asked for;
//!          then, if the leaf lies at this node, too: 0, or 1, place, entry, and
//!              the record of the leaf
//!              or, if an answer is asked for: lock, version, 0 or 1, the key's value
//!
//! The highest bit of the request's first word asks for the parent, the next one for an answer.
//! The shape is that of the tree's nodes (`Shape::to_word`).
//! ```

use std::sync::atomic::AtomicU64;

use remora_fabric::{WORD_BYTES, copy};
use remora_index::btree::{LEVELS_MAX, Node, Shape};
use remora_index::{HostShard, Presence};
use remora_node::ShardId;
use remora_record::{FetchedRecord, Key, LockWord, Version};
use zerocopy::IntoBytes;

use crate::limits::READ_ATTEMPTS;
use crate::words::push_bytes;

/// No shard: leaves lie at many nodes.
pub(crate) const NONE: u64 = u64::MAX;
/// Words of a request before the key.
pub(crate) const REQUEST_WORDS: usize = 4;
/// Words of an answer before the key's value: lock, version, and whether the key is there.
pub(crate) const ANSWER_WORDS: usize = 3;

/// Bit in the length of the key: the parent is wanted.
pub(crate) const PARENT: usize = 1 << 31;
/// Bit in the length of the key: an answer is wanted, and not the leaf.
pub(crate) const ANSWER: usize = 1 << 30;

/// Where a memory node's CPU begins to look for a leaf: at the root of a tree whose inner nodes all
/// lie in one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// Id of the root, less than 2^48.
    pub root: u64,
    /// The shard of the inner nodes, by its place within their table.
    pub inner: u16,
    /// The shard of the leaves, by its place within their table, if all of them lie in one.
    pub leaves: Option<u16>,
}

/// Bits of a shard's id in the word of a request that names a shard and a root.
const SHARD_BITS: u32 = u16::BITS;

/// Returns the word of a request that names the shard of inner nodes, and the root.
pub(crate) fn start_word(inner: ShardId, root: u64) -> u64 {
    u64::from(inner.0) | root << SHARD_BITS
}

/// Returns the shard and the root that a word names, unless it is [`NONE`].
pub(crate) fn parse_start(word: u64) -> Option<(ShardId, u64)> {
    (word != NONE).then_some((ShardId(word as u16), word >> SHARD_BITS))
}

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
        let (key, shape) = (wanted.key, wanted.shape);
        let mut id = wanted.root;
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

    /// Adds to the reply what a leaf says of the key.
    pub(crate) fn answer(
        &mut self,
        region: &[AtomicU64],
        leaves: &HostShard,
        (wanted, id): (&Wanted<'_>, u64),
        reply: &mut Vec<u64>,
    ) -> Option<()> {
        self.levels += 1;
        let Presence::Linked { bucket_slot, entry, location } = leaves.find(region, &node_key(id)?) else {
            reply.push(0);
            return Some(());
        };
        let (lock, version) = self.read(region, leaves, location.pointer.offset())?;
        let leaf = Node::new(wanted.shape, self.value.as_bytes()).ok()?;
        if leaf.level() != 0 || !leaf.contains(wanted.key) {
            return None;
        }
        let found = leaf.find(wanted.key).ok();
        reply.extend([1, bucket_slot, entry, lock.to_bits(), version.to_bits(), found.is_some().into()]);
        if let Some(at) = found {
            push_bytes(reply, leaf.value(at));
        }
        Some(())
    }

    /// Reads the value of a record, once the record is whole. Returns the record's lock and
    /// version.
    fn read(&mut self, region: &[AtomicU64], shard: &HostShard, offset: u64) -> Option<(LockWord, Version)> {
        let at = shard.slot_word(offset)?;
        self.record.resize(shard.shape.record_bytes() / WORD_BYTES, 0);
        for _ in 0..READ_ATTEMPTS {
            copy::read(region, at, &mut self.record);
            if let Ok(record) = FetchedRecord::new(&self.record, &shard.shape).check_in_place() {
                self.value.clear();
                record.copy_value(&mut self.value);
                return record.is_present().then_some((record.lock(), record.version()));
            }
        }
        None
    }
}

/// A request for the leaf of a key.
pub(crate) struct Wanted<'a> {
    pub(crate) inner: ShardId,
    root: u64,
    /// Shard of the leaves, if they are all here.
    pub(crate) leaves: Option<ShardId>,
    parent: bool,
    /// Whether the value of the key is wanted, and not the leaf.
    pub(crate) answer: bool,
    shape: Shape,
    key: &'a [u8],
}

impl<'a> Wanted<'a> {
    /// A request of this CPU's own, for the id of a leaf alone.
    pub(crate) fn of_leaf((inner, root): (ShardId, u64), shape: Shape, key: &'a [u8]) -> Wanted<'a> {
        Wanted { inner, root, leaves: None, parent: false, answer: false, shape, key }
    }
}

impl Wanted<'_> {
    pub(crate) fn parse(count: usize, arguments: &[u64]) -> Option<Wanted<'_>> {
        let (&[inner, leaves, shape], key) = arguments.split_first_chunk()?;
        let (inner, root) = parse_start(inner)?;
        let leaves = u16::try_from(leaves).ok().map(ShardId);
        let shape = Shape::from_word(shape)?;
        let key = key.as_bytes().get(..count & !(PARENT | ANSWER)).filter(|key| shape.has_key_of(key.len()))?;
        let [parent, answer] = [PARENT, ANSWER].map(|bit| count & bit != 0);
        Some(Wanted { inner, root, leaves, parent, answer, shape, key })
    }
}
