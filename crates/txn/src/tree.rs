//! Finds leaves of ordered tables by the CPU of a memory node, where all inner nodes lie at one
//! node: the client's end of that call. The other end is `descent.rs`.
//!
//! The answer is a hint. The leaf is a record of the read set like one that was READ: nodes prove
//! themselves by their fences (`remora_index::btree`). So the CPU takes any whole version of an
//! inner node. It does so even if the node is locked, and the holder of the lock may have committed
//! another version.
//!
//! The client's end of TAKE, which has such a CPU lock a leaf for a change, is here, too. The other
//! end is `edit.rs`.

use remora_fabric::{NodeId, Outlined, WORD_BYTES, outline};
use remora_index::btree::Shape;
use remora_node::TableId;
use remora_record::{Key, LockWord, Version};

use crate::descent::{ANSWER, ANSWER_WORDS, NONE, PARENT, REQUEST_WORDS, Start, node_key, start_word};
use crate::edit::{EditKind, EditOutcome, TAKE_WORDS, TAKEN_WORDS};
use crate::error::{Abort, Stop};
use crate::protocol::lookup::Examined;
use crate::protocol::spec::{FirstRead, Primitive};
use crate::rpc::{Code, READ_REPLY_WORDS};
use crate::sets::{Fetch, Intent, LocationSource, Part, PendingEdit};
use crate::tx::Tx;
use crate::words::push_bytes;

/// What a memory node's CPU says of a key.
#[derive(Debug)]
pub struct Located {
    /// The leaf's id.
    pub leaf: u64,
    /// The words of the inner node above it, if it was asked for.
    pub parent: Option<Box<[u64]>>,
    /// What the leaf has of the key, if the CPU has said that, and has not sent the leaf: the words
    /// of the key's value, or `None` if the key is not there. The leaf is validated as one that was
    /// read.
    pub answer: Option<Option<Box<[u64]>>>,
}

/// What a memory node's CPU says of a leaf that it was to lock for a change.
#[derive(Debug)]
pub struct Taken {
    /// The leaf's id.
    pub leaf: u64,
    /// The words of the key's value as it was; `None` if the key was not there.
    pub before: Option<Box<[u64]>>,
}

/// What is asked of a memory node's CPU that finds a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Question<'k> {
    /// The key whose leaf is looked for.
    pub key: &'k [u8],
    /// The shape of the tree's nodes.
    pub shape: Shape,
    /// Where the tree begins.
    pub start: Start,
    /// Whether the inner node above the leaf is wanted, too.
    pub parent: bool,
    /// What the leaf is wanted for, and how much of it. If that is [`Part::Answer`], only the key's
    /// value comes, where the CPU can tell it.
    pub purpose: (Intent, Part),
}

impl Tx<'_> {
    /// Asks the CPU of the memory node that has all inner nodes of a tree for the leaf of a key:
    /// one round trip. Returns `None` if its CPU does not know the leaf. If the leaf lies there
    /// too, it has been fetched, or its answer has, unless another transaction has it locked.
    #[inline(never)]
    pub fn locate_in_tree(
        &mut self,
        inner: TableId,
        leaves: TableId,
        question: Question<'_>,
    ) -> Outlined<impl Future<Output = Result<Option<Located>, Stop>>> {
        outline(async move {
            let Question { key, shape, start, parent, purpose: (intent, part) } = question;
            let (inner, leaves) = (self.state.sets.table(inner), self.state.sets.table(leaves));
            if inner.cluster_hash().is_none() {
                return Ok(None);
            }
            let node = inner.shard_replicas(start.inner)[0].node;
            let leaf_shard = start.leaves.filter(|shard| leaves.shard_replicas(*shard)[0].node == node);
            let has_times = leaves.entry().spec.discipline.has_times();
            // A snapshot has a way of its own to read the leaf.
            let leaf_shard = leaf_shard.filter(|_| !(has_times && self.attempt.snapshot.is_some()));
            let is_there = leaf_shard.is_some();
            // A transaction that locks what it reads has to read the leaf under its lock. And an
            // answer does not have the time of the leaf.
            let wants_answer = is_there && part == Part::Answer && !self.state.spec.locks_reads && !has_times;
            let mut request = vec![
                Code::Descend.word(key.len() | if parent { PARENT } else { 0 } | if wants_answer { ANSWER } else { 0 }),
                start_word(inner.shard_id(start.inner), start.root),
                leaf_shard.map_or(NONE, |shard| leaves.shard_id(shard).0.into()),
                shape.to_word(),
            ];
            debug_assert_eq!(request.len(), REQUEST_WORDS);
            push_bytes(&mut request, key);

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

    /// Asks the CPU of a leaf's memory node to lock the leaf of a key for a change of one entry:
    /// one round trip. The leaf is the one that the client remembers, if it remembers one, or the
    /// one that the CPU finds, if all inner nodes of the tree lie there too (`start`). The value is
    /// the new one; empty, if the change has none.
    ///
    /// Returns `None` if this is not possible: the table's locks are changed by NICs, the table
    /// grows, the transaction has named the leaf before, the leaf has no room, or it would be
    /// empty. Then nothing has happened.
    ///
    /// The commit has every replica make the change by itself, if the transaction writes nothing
    /// else. Otherwise the leaf is fetched before.
    #[inline(never)]
    pub fn take_leaf(
        &mut self,
        (inner, leaves): (TableId, TableId),
        (start, leaf): (Option<Start>, Option<u64>),
        (shape, kind): (Shape, EditKind),
        (key, value): (&[u8], &[u8]),
    ) -> Outlined<impl Future<Output = Result<Option<Taken>, Stop>>> {
        outline(async move {
            if self.unheard {
                Box::pin(self.forget_unheard()).await?;
            }
            let Some((node, mut request)) = self.take_request((inner, leaves), (start, leaf), (shape, kind), key)
            else {
                return Ok(None);
            };
            let mut round = self.lane.round();
            let call = round.call(node, &request, None, TAKEN_WORDS + shape.value_bytes().div_ceil(WORD_BYTES));
            request[0] = Code::Untake.word(kind.count(key.len()));
            self.taking = Some((node, request));
            (self.locking, self.took_leaf, self.unheard) = (true, true, true);
            let done = self.lane.execute(round).await?;
            self.unheard = false;
            let Some((reply, found)) = done.reply(call).split_first_chunk().map(|(head, found)| (*head, found.into()))
            else {
                self.taking = None; // it was refused
                return Ok(None);
            };
            drop(done);
            let edit = PendingEdit { item: 0, kind, shape, key: key.to_vec(), value: value.to_vec(), frame_at: 0 };
            let taken = self.heard_take(leaves, reply, found, edit);
            // What has been locked, and is not kept, is freed.
            if let Some((node, request)) = self.taking.take() {
                let mut round = self.lane.round();
                round.call(node, &request, None, 0);
                self.lane.post(round);
            }
            taken
        })
    }

    /// Returns a TAKE, and the node that has the leaf. Returns `None` if the CPU cannot make the
    /// change.
    fn take_request(
        &self,
        (inner, leaves): (TableId, TableId),
        (start, leaf): (Option<Start>, Option<u64>),
        (shape, kind): (Shape, EditKind),
        key: &[u8],
    ) -> Option<(NodeId, Vec<u64>)> {
        let sets = &self.state.sets;
        let (inner, leaves) = (sets.table(inner), sets.table(leaves));
        let by_call = Primitive::from(leaves.entry().spec.discipline) == Primitive::Call;
        // A replica cannot make the log entry by itself, without the time of the commit.
        let has_times = leaves.entry().spec.discipline.has_times();
        if !by_call || has_times || leaves.growth().is_some() || inner.growth().is_some() {
            return None;
        }
        let shard = match leaf.and_then(node_key) {
            Some(named) if sets.has(leaves.id(), &named) => return None,
            Some(named) => leaves.home(named.hash()).shard,
            // Only the CPU can say which leaf it is.
            None => start?.leaves?,
        };
        let node = leaves.shard_replicas(shard)[0].node;
        let start =
            start.filter(|start| start.leaves == Some(shard) && inner.shard_replicas(start.inner)[0].node == node);
        if leaf.is_none() && start.is_none() {
            return None;
        }
        let mut request = vec![
            Code::Take.word(kind.count(key.len())),
            leaves.shard_id(shard).0.into(),
            start.map_or(NONE, |start| start_word(inner.shard_id(start.inner), start.root)),
            leaf.unwrap_or(NONE),
            self.id.lock().to_bits(),
            shape.to_word(),
        ];
        debug_assert_eq!(request.len(), TAKE_WORDS);
        push_bytes(&mut request, key);
        Some((node, request))
    }

    /// Takes the answer to a TAKE. If the transaction keeps the lock, clears [`Tx::taking`].
    fn heard_take(
        &mut self,
        leaves: TableId,
        [id, outcome, entry, lock, version]: [u64; TAKEN_WORDS],
        found: Box<[u64]>,
        edit: PendingEdit,
    ) -> Result<Option<Taken>, Stop> {
        let outcome = EditOutcome::of_word(outcome).unwrap_or(EditOutcome::Another);
        if !outcome.is_taken() {
            self.taking = None;
        }
        let lock = LockWord::from_bits(lock);
        match outcome {
            EditOutcome::Busy if !lock.is_held_by(self.id) => return Err(Abort::Locked(lock).into()),
            EditOutcome::Busy | EditOutcome::Structural | EditOutcome::Another => return Ok(None),
            _ => {}
        }
        let table = self.state.sets.table(leaves);
        // If the transaction has named the leaf before, it may have changed it.
        let Some(named) = node_key(id).filter(|named| !self.state.sets.has(leaves, named)) else { return Ok(None) };
        let home = table.home(named.hash());
        let Some(location) = table.located(home, entry) else { return Ok(None) };
        table.learn(home, named.hash(), location);
        let address = table.primary(location.pointer);
        let slot = self.want_part(leaves, &named, (Intent::Read, Part::Answer))?;
        let item = self.state.sets.number(slot)?;
        let of_leaf = &mut self.state.sets.items[item];
        (of_leaf.location, of_leaf.address) = (location, address);
        of_leaf.answered(Version::from_bits(version).0);
        self.skip_what_is_here();
        if outcome.is_taken() {
            self.state.sets.taken(PendingEdit { item, ..edit });
            self.taking = None;
        }
        let is_there = matches!(outcome, EditOutcome::Present | EditOutcome::Exists);
        Ok(Some(Taken { leaf: id, before: is_there.then_some(found) }))
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
        let before = self.state.sets.items[index];
        let is_kept = !spec.locks_reads && matches!(self.examine(index, record), Examined::Kept);
        if is_kept && !self.state.sets.items[index].is_as(&before) {
            return Err(Abort::Changed.into());
        }
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
