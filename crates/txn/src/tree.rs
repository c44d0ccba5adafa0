//! Finds leaves of ordered tables by the CPU of a memory node, where all inner nodes lie at one
//! node. This file has both ends of that call.
//!
//! ```text
//! DESCEND  inner shard, leaf shard or NONE, key
//!    ->    leaf id; its parent, if it is asked for;
//!          then as READ if the leaf lies at this node, too
//!
//! The parent is asked for by the highest bit of the request's first word;
//! it is a node (`btree::NODE_BYTES`).
//! ```
//!
//! The answer is a hint. The leaf is a record of the read set like one that was READ: nodes prove
//! themselves by their fences (`remora_index::btree`). So the CPU takes any whole version of an
//! inner node. It does so even if the node is locked, and the holder of the lock may have committed
//! another version.

use std::sync::atomic::AtomicU64;

use remora_fabric::{Outlined, WORD_BYTES, copy, outline};
use remora_index::btree::{LEVELS_MAX, NODE_BYTES, Node, ROOT, Shape};
use remora_index::{Found, HostShard};
use remora_memory::{ShardId, TableId};
use remora_sync::{FetchedRecord, Key};
use zerocopy::IntoBytes;

use crate::error::Stop;
use crate::limits::READ_ATTEMPTS;
use crate::protocol::{Execute, Seen};
use crate::rpc::{Code, READ_REPLY_WORDS};
use crate::sets::{Fetch, Found as Known, Intent};
use crate::tx::Tx;

/// No shard: leaves lie at many nodes.
const NONE: u64 = u64::MAX;
/// Words of a request before the key.
const REQUEST_WORDS: usize = 3;

/// Bit in the length of the key: the parent is wanted.
const PARENT: usize = 1 << 31;
/// Words of a node.
const NODE_WORDS: usize = NODE_BYTES / WORD_BYTES;

/// What a memory node's CPU says of a key.
#[derive(Debug)]
pub struct Located {
    /// The leaf's id.
    pub leaf: u64,
    /// The words of the inner node above it, if it was asked for.
    pub parent: Option<Box<[u64]>>,
}

/// The key of a node in its table.
fn node_key(id: u64) -> Option<Key> {
    Key::new(&id.to_be_bytes())
}

impl Tx<'_> {
    /// Asks the CPU of the memory node that has all inner nodes for the leaf of a key: one round
    /// trip. Returns `None` if there is no such node, or if its CPU does not know the leaf. If the
    /// leaf lies there too, it has been fetched, unless another transaction has it locked. `parent`
    /// says whether the parent is wanted too.
    #[inline(never)]
    pub fn locate_in_tree(
        &mut self,
        inner: TableId,
        leaves: TableId,
        key: &[u8],
        parent: bool,
        intent: Intent,
    ) -> Outlined<impl Future<Output = Result<Option<Located>, Stop>>> {
        outline(async move {
            let (inner, leaves) = (self.state.sets.table(inner), self.state.sets.table(leaves));
            if inner.shards() != 1 || inner.cluster_hash().is_none() {
                return Ok(None);
            }
            let node = inner.shard_replicas(0)[0].node;
            let is_there = leaves.shards() == 1 && leaves.shard_replicas(0)[0].node == node;
            let leaf_shard = if is_there { leaves.shard_id(0).0.into() } else { NONE };
            let mut request = vec![
                Code::Descend.word(key.len() | if parent { PARENT } else { 0 }),
                inner.shard_id(0).0.into(),
                leaf_shard,
            ];
            request.resize(REQUEST_WORDS + key.len().div_ceil(WORD_BYTES), 0);
            request[REQUEST_WORDS..].as_mut_bytes()[..key.len()].copy_from_slice(key);

            let mut round = self.lane.round();
            let record_words = if is_there { READ_REPLY_WORDS + leaves.shape().record_bytes() / WORD_BYTES } else { 0 };
            let parent_words = if parent { NODE_WORDS } else { 0 };
            let call = round.call(node, &request, None, 1 + parent_words + record_words);
            let done = self.lane.execute(round).await?;
            let Some((&leaf, rest)) = done.reply(call).split_first() else { return Ok(None) };
            let Some((node, rest)) = rest.split_at_checked(parent_words) else { return Ok(None) };
            if let (&[1, _, entry, ref record @ ..], Some(key)) = (rest, node_key(leaf)) {
                let leaves = leaves.id();
                self.bring(leaves, &key, intent, entry, record)?;
            }
            Ok(Some(Located { leaf, parent: parent.then(|| node.into()) }))
        })
    }

    /// Adds a record that was not asked for by its key to the read set.
    fn bring(&mut self, table: TableId, key: &Key, intent: Intent, entry: u64, record: &[u64]) -> Result<(), Stop> {
        let table = self.state.sets.table(table);
        let home = table.home(key.hash());
        let Some(location) = table.located(home, entry) else { return Ok(()) };
        table.learn(home, key.hash(), location);
        let (id, address) = (table.id(), table.primary(location.pointer));
        let slot = self.want_for(id, key, intent)?;
        let index = self.state.sets.number(slot)?;
        let item = &mut self.state.sets.items[index];
        if !matches!(item.fetch, Fetch::Record(_) | Fetch::Ask | Fetch::Probe(..)) {
            return Ok(());
        }
        (item.location, item.address) = (location, address);
        // If it cannot be used now, it is read like any other.
        let spec = self.state.spec;
        let is_kept = !spec.locks_reads && matches!(self.examine(index, record), Seen::Kept);
        if !is_kept && spec.execute != Execute::Call {
            self.state.sets.items[index].fetch = Fetch::Record(Known::Cached);
        }
        self.skip_what_is_here();
        Ok(())
    }
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
        let shape = Shape::new(key.len(), 0)?;
        let mut id = ROOT;
        for level in 1..=LEVELS_MAX {
            self.levels = level.into();
            let Found::Linked { location, .. } = inner.find(region, &node_key(id)?) else { return None };
            self.read(region, inner, location.pointer.offset())?;
            let node = Node::new(shape, self.value.as_bytes()).ok()?;
            if !node.contains(key) || node.level() == 0 {
                return None;
            }
            id = node.child(node.child_of(key));
            if node.level() == 1 {
                reply.push(id);
                if wanted.parent {
                    reply.extend_from_slice(self.value.get(..NODE_WORDS)?);
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
    key: &'a [u8],
}

impl Wanted<'_> {
    pub(crate) fn parse(count: usize, arguments: &[u64]) -> Option<Wanted<'_>> {
        let (&[inner, leaves], key) = arguments.split_first_chunk()?;
        let shard = |number| u16::try_from(number).ok().map(ShardId);
        let key = key.as_bytes().get(..count & !PARENT)?;
        Some(Wanted { inner: shard(inner)?, leaves: shard(leaves), parent: count & PARENT != 0, key })
    }
}
