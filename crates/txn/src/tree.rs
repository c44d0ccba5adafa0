//! Finds leaves of ordered tables by the CPU of a memory node, where all inner nodes lie at one
//! node: the client's end of that call. The other end is `descent.rs`.
//!
//! The answer is a hint. The leaf is a record of the read set like one that was READ: nodes prove
//! themselves by their fences (`remora_index::btree`). So the CPU takes any whole version of an
//! inner node. It does so even if the node is locked, and the holder of the lock may have committed
//! another version.

use remora_fabric::{Outlined, WORD_BYTES, outline};
use remora_index::btree::Shape;
use remora_node::TableId;
use remora_record::Key;
use zerocopy::IntoBytes;

use crate::descent::{ANSWER, ANSWER_WORDS, NONE, PARENT, REQUEST_WORDS, node_key};
use crate::error::Stop;
use crate::protocol::lookup::Examined;
use crate::protocol::spec::FirstRead;
use crate::rpc::{Code, READ_REPLY_WORDS};
use crate::sets::{Fetch, Intent, LocationSource, Part};
use crate::tx::Tx;

/// What a memory node's CPU says of a key.
#[derive(Debug)]
pub struct Located {
    /// The leaf's id.
    pub leaf: u64,
    /// The words of the inner node above it, if it was asked for.
    pub parent: Option<Box<[u64]>>,
    /// The record of the leaf in this transaction, if the CPU has said what the leaf has of the
    /// key; and the words of the key's value, if the leaf has the key. The leaf is validated as
    /// one that was read.
    pub answer: Option<Option<Box<[u64]>>>,
}

/// What is asked of a memory node's CPU that finds a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Question<'k> {
    /// The key whose leaf is looked for.
    pub key: &'k [u8],
    /// The shape of the tree's nodes.
    pub shape: Shape,
    /// Whether the inner node above the leaf is wanted, too.
    pub parent: bool,
    /// What the leaf is wanted for, and how much of it. If that is [`Part::Answer`], only the key's
    /// value comes, where the CPU can tell it.
    pub purpose: (Intent, Part),
}

impl Tx<'_> {
    /// Asks the CPU of the memory node that has all inner nodes for the leaf of a key: one round
    /// trip. Returns `None` if there is no such node, or if its CPU does not know the leaf. If the
    /// leaf lies there too, it has been fetched, or its answer has, unless another transaction has
    /// it locked.
    #[inline(never)]
    pub fn locate_in_tree(
        &mut self,
        inner: TableId,
        leaves: TableId,
        question: Question<'_>,
    ) -> Outlined<impl Future<Output = Result<Option<Located>, Stop>>> {
        outline(async move {
            let Question { key, shape, parent, purpose: (intent, part) } = question;
            let (inner, leaves) = (self.state.sets.table(inner), self.state.sets.table(leaves));
            if inner.shards() != 1 || inner.cluster_hash().is_none() {
                return Ok(None);
            }
            let node = inner.shard_replicas(0)[0].node;
            let is_there = leaves.shards() == 1 && leaves.shard_replicas(0)[0].node == node;
            // A transaction that locks what it reads has to read the leaf under its lock.
            let wants_answer = is_there && part == Part::Answer && !self.state.spec.locks_reads;
            let leaf_shard = if is_there { leaves.shard_id(0).0.into() } else { NONE };
            let mut request = vec![
                Code::Descend.word(key.len() | if parent { PARENT } else { 0 } | if wants_answer { ANSWER } else { 0 }),
                inner.shard_id(0).0.into(),
                leaf_shard,
                shape.to_word(),
            ];
            request.resize(REQUEST_WORDS + key.len().div_ceil(WORD_BYTES), 0);
            request[REQUEST_WORDS..].as_mut_bytes()[..key.len()].copy_from_slice(key);

            let mut round = self.lane.round();
            let record_words = match (is_there, wants_answer) {
                (false, _) => 0,
                (true, false) => READ_REPLY_WORDS + leaves.shape().record_bytes() / WORD_BYTES,
                (true, true) => READ_REPLY_WORDS + ANSWER_WORDS + shape.value_bytes().div_ceil(WORD_BYTES),
            };
            let parent_words = if parent { inner.shape().value_max() / WORD_BYTES } else { 0 };
            let call = round.call(node, &request, None, 1 + parent_words + record_words);
            let done = self.lane.execute(round).await?;
            let Some((&leaf, rest)) = done.reply(call).split_first() else { return Ok(None) };
            let Some((node, rest)) = rest.split_at_checked(parent_words) else { return Ok(None) };
            let mut located = Located { leaf, parent: parent.then(|| node.into()), answer: None };
            if let (&[1, _, entry, ref record @ ..], Some(key)) = (rest, node_key(leaf)) {
                let leaves = leaves.id();
                if wants_answer {
                    located.answer = self.bring_answer(leaves, &key, entry, record)?;
                } else {
                    self.bring(leaves, &key, (intent, part), entry, record)?;
                }
            }
            Ok(Some(located))
        })
    }

    /// Adds a record that was not asked for by its key to the read set.
    fn bring(
        &mut self,
        table: TableId,
        key: &Key,
        purpose: (Intent, Part),
        entry: u64,
        record: &[u64],
    ) -> Result<(), Stop> {
        let table = self.state.sets.table(table);
        let home = table.home(key.hash());
        let Some(location) = table.located(home, entry) else { return Ok(()) };
        table.learn(home, key.hash(), location);
        let (id, address) = (table.id(), table.primary(location.pointer));
        let slot = self.want_part(id, key, purpose)?;
        let index = self.state.sets.number(slot)?;
        let item = &mut self.state.sets.items[index];
        if !matches!(item.fetch, Fetch::Record(_) | Fetch::Ask | Fetch::Probe(..)) {
            return Ok(());
        }
        (item.location, item.address) = (location, address);
        // If it cannot be used now, it is read like any other.
        let spec = self.state.spec;
        let is_kept = !spec.locks_reads && matches!(self.examine(index, record), Examined::Kept);
        if !is_kept && spec.execute != FirstRead::Call {
            self.state.sets.items[index].fetch = Fetch::Record(LocationSource::Cached);
        }
        self.skip_what_is_here();
        Ok(())
    }

    /// Adds a record of which a memory node's CPU has said something to the read set. Returns what
    /// it has said. Returns `None` if that is of no use: another transaction has the record locked,
    /// or this one has named it before, and perhaps changed it.
    fn bring_answer(
        &mut self,
        table: TableId,
        key: &Key,
        entry: u64,
        answer: &[u64],
    ) -> Result<Option<Option<Box<[u64]>>>, Stop> {
        let table = self.state.sets.table(table);
        let home = table.home(key.hash());
        let (Some(location), &[_, _, found, ref value @ ..]) = (table.located(home, entry), answer) else {
            return Ok(None);
        };
        let Some(header) = table.shape().validated(answer) else { return Ok(None) };
        table.learn(home, key.hash(), location);
        let (id, address) = (table.id(), table.primary(location.pointer));
        let named = self.named();
        let slot = self.want_part(id, key, (Intent::Read, Part::Answer))?;
        let index = self.state.sets.number(slot)?;
        if index < named {
            return Ok(None);
        }
        if header.invisible || !header.lock.is_free() {
            return Ok(None); // it is read like any other
        }
        let item = &mut self.state.sets.items[index];
        (item.location, item.address) = (location, address);
        item.answered(header.version);
        self.skip_what_is_here();
        Ok(Some((found == 1).then(|| value.into())))
    }
}
