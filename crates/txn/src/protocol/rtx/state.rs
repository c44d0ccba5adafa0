//! What a session keeps for protocol `rtx`: what the current attempt has seen of objects, its
//! blocks, its logs, and the locks that it has met.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use remora_fabric::{Lane, Nanos, NodeId, ReadHandle, SwapHandle, WORD_BYTES};
use remora_index::objects::BUCKET_BYTES;
use remora_node::{ClientSlot, Pointer, Registration, ShardId};
use remora_record::{KeyHash, LockWord, Place, RepairableLock, TransactionId};

use crate::attempts::{self, Swapped};

/// How a transaction that writes commits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The node that has the attempt's log. `None` if it has none.
    pub(super) log: Option<NodeId>,
    /// The word by which the attempt locks.
    pub(super) lock: RepairableLock,
    /// Whether the transaction writes at several nodes.
    pub(super) is_spread: bool,
}

/// What an attempt has seen of an item's object: of a record, or of a bucket of the index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Object {
    /// The lock word, which was free.
    pub(crate) free: LockWord,
    /// The word behind the lock: the place of a record, or the link of a bucket.
    pub(crate) word: u64,
    /// The word behind that: the floor of a bucket.
    pub(crate) floor: u64,
    /// What the commit puts in place of `word`.
    pub(crate) new_word: u64,
    /// What the commit puts in place of `floor`.
    pub(crate) new_floor: u64,
    /// Whether the object lies in a bucket that the attempt adds to a chain. Then no other client
    /// can reach it before the commit links the bucket, so it needs neither a lock nor a swap.
    pub(crate) is_private: bool,
    /// The round in which the object was first looked at, and the one in which it was found to be
    /// the same. 0 if there was none.
    pub(crate) looks: [u32; 2],
}

impl Object {
    /// Returns an object that was never used, in a bucket that the attempt adds to a chain.
    pub(super) fn private() -> Object {
        Object { is_private: true, ..Object::default() }
    }

    /// Returns the object as it was found, unchanged.
    pub(super) fn found(free: LockWord, word: u64, floor: u64) -> Object {
        Object { free, word, floor, new_word: word, new_floor: floor, is_private: false, looks: [0; 2] }
    }

    /// Returns the place of a record.
    pub(super) fn place(&self) -> Place {
        Place::from_bits(self.word)
    }

    /// Returns the words that the commit swaps, of the object whose lock is at a pointer.
    pub(super) fn swaps(&self, lock: Pointer) -> impl Iterator<Item = Swapped> + use<> {
        let swaps = [(1, self.word, self.new_word), (2, self.floor, self.new_floor)];
        let is_private = self.is_private;
        let differs = move |(_, old, new): &(u64, u64, u64)| old != new && !is_private;
        swaps.into_iter().filter(differs).map(move |(word, old, new)| Swapped { lock, word, old, new })
    }
}

/// An overflow bucket that an attempt adds to a chain. The attempt writes it before it decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grown {
    pub(super) shard: ShardId,
    pub(super) bucket: u64,
    pub(super) words: [u64; BUCKET_BYTES / WORD_BYTES],
}

/// The blocks of a shard that a session owns.
#[derive(Debug)]
pub(super) struct Pool {
    shard: ShardId,
    /// Places that were never given out. The first use of a block has no place before it.
    fresh: Vec<u64>,
    /// Places that objects have had, or that no object has ever had because the attempt aborted.
    /// The next write to their blocks is their next use.
    free: Vec<Place>,
    /// Places that were displaced by swaps that may still be on their way.
    cooling: Vec<Place>,
}

impl Pool {
    /// Takes a block, for a value of a key with this hash.
    fn take(&mut self, hash: KeyHash) -> Option<Place> {
        while let Some(place) = self.free.pop() {
            // A block whose uses are used up is dropped here: it is retired.
            if let Some(next) = place.next_use(hash) {
                return Some(next);
            }
        }
        Some(Place::first_use(self.fresh.pop()?, hash))
    }
}

/// A verb of a commit's first rounds, whose answer the commit looks at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    /// The CAS that begins the attempt's log.
    Log { swap: SwapHandle },
    /// The CAS that takes an item's lock, and a READ of the words behind it.
    Lock { item: usize, swap: SwapHandle, read: ReadHandle },
    /// A READ of an object that is only read.
    Same { item: usize, read: ReadHandle },
    /// A READ of a bucket of the chain of an absent key. `chain` is the bucket's place in the
    /// arena.
    Chain { item: usize, chain: usize, read: ReadHandle },
}

/// What was heard of an attempt that was dropped while it was decided.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) id: TransactionId,
    /// Whether the attempt has committed.
    pub(super) is_decided: bool,
    /// Blocks that are the session's: the attempt has displaced them, or has taken them in vain.
    pub(super) blocks: Vec<(ShardId, Place)>,
    /// Overflow buckets that the attempt has taken in vain.
    pub(super) grown: Vec<(ShardId, u64)>,
    /// The word of the lane's log at a node, if it is known.
    pub(super) log: Option<(NodeId, u64)>,
}

/// A lock that the session has met, and since when it has been the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub(super) lock: Pointer,
    pub(super) word: LockWord,
    pub(super) since: Nanos,
}

/// Number of attempts of each kind whose outcomes a session remembers: as many as a session
/// remembers that it has given up.
const OUTCOMES: usize = 64;

/// Largest number of locks that a session suspects at a time.
const SUSPECTS_MAX: usize = 16;

/// What a session keeps for protocol `rtx`.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// What the attempt has seen of each item's object, by the item's number.
    pub(super) objects: Vec<Object>,
    /// Items, and places that turned out to be another key's.
    pub(super) rejected: Vec<(usize, Place)>,
    /// The number of execution rounds of the attempt.
    pub(super) round: u32,
    /// The lock that the attempt takes, once it has decided how it commits.
    pub(super) held: Option<RepairableLock>,
    /// The node that has the attempt's log, once the round that begins it was posted.
    pub(super) log_at: Option<NodeId>,
    /// The CAS that decides the attempt, while its answer is awaited.
    pub(super) deciding: Option<(Plan, SwapHandle)>,
    /// The last attempts that have committed.
    outcomes: VecDeque<(TransactionId, bool)>,
    /// The last attempts that were dropped while they were decided, and whether they have
    /// committed.
    heard_outcomes: VecDeque<(TransactionId, bool)>,
    /// Attempts whose outcome this session will never hear of.
    lost: Vec<TransactionId>,
    /// What was heard of attempts that were dropped while they were decided.
    pub(super) heard: Rc<RefCell<Vec<Heard>>>,
    /// Places that the attempt has taken from pools, and the shards.
    pub(super) taken: Vec<(ShardId, Place)>,
    /// Overflow buckets that the attempt adds to chains.
    pub(super) grown: Vec<Grown>,
    /// The swaps of the attempt.
    pub(super) swaps: Vec<Swapped>,
    /// Words that are being encoded.
    pub(super) words: Vec<u64>,
    pools: Vec<Pool>,
    /// Overflow buckets that the session has taken, and no chain has.
    spares: Vec<(ShardId, u64)>,
    /// The word of this lane's log at each node, by the node's number, as far as it is known.
    logs: Vec<Option<u64>>,
    pub(super) suspects: Vec<Suspect>,
    /// Shards that the current round asks for blocks.
    asked: Vec<ShardId>,
    /// What the current round of the commit looks at.
    pub(super) looks: Vec<Look>,
    /// The clients of a node, as they were when the session last asked.
    clients: Vec<(NodeId, Vec<ClientSlot>)>,
    /// The number of the client's lanes.
    lanes: u64,
    /// The number of this lane's ring.
    ring: u64,
}

impl Repairs {
    pub(crate) fn new(client: &Registration, ring: usize) -> Repairs {
        let mut repairs = Repairs { lanes: client.lanes() as u64, ring: ring as u64, ..Repairs::default() };
        for node in client.nodes().iter() {
            let word = client.attempt_word(node, ring).filter(|word| attempts::is_ended(*word));
            repairs.note_log_word(node, word);
        }
        repairs
    }

    /// Returns the first sequence number from this one on whose log is this lane's. The numbers of
    /// a client say in which of its rings the log of an attempt is ([`ring_of`]).
    pub(crate) fn sequence_from(&self, sequence: u64) -> u64 {
        sequence + (self.ring + self.lanes - sequence % self.lanes) % self.lanes
    }

    /// Returns whether an attempt of this client was this session's.
    pub(super) fn is_own(&self, id: TransactionId) -> bool {
        id.sequence() % self.lanes == self.ring
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self) {
        debug_assert!(self.log_at.is_none(), "rtx 2: an attempt ends its log before the next one begins");
        self.hear();
        (self.held, self.deciding) = (None, None);
        self.objects.clear();
        self.rejected.clear();
        self.swaps.clear();
        self.round = 0;
    }

    /// Returns what was seen of an item's object.
    pub(super) fn object(&mut self, item: usize) -> &mut Object {
        if self.objects.len() <= item {
            self.objects.resize(item + 1, Object::default());
        }
        &mut self.objects[item]
    }

    /// Takes what was heard of attempts that were dropped while they were decided.
    pub(super) fn hear(&mut self) {
        if self.heard.borrow().is_empty() {
            return;
        }
        let all = std::mem::take(&mut *self.heard.borrow_mut());
        for Heard { id, is_decided, blocks, grown, log } in all {
            push(&mut self.heard_outcomes, (id, is_decided));
            blocks.into_iter().for_each(|(shard, place)| self.pool(shard).cooling.push(place));
            self.spares.extend(grown);
            if let Some((node, word)) = log {
                self.note_log_word(node, Some(word));
            }
        }
    }

    /// Notes that an attempt has committed.
    pub(super) fn note_commit(&mut self, id: TransactionId) {
        push(&mut self.outcomes, (id, true));
    }

    /// Notes an attempt whose outcome this session will never hear of.
    pub(super) fn note_lost(&mut self, id: TransactionId) {
        self.lost.truncate(OUTCOMES - 1);
        self.lost.insert(0, id);
    }

    /// Returns whether an attempt of this session has committed, if the session knows. An attempt
    /// that the program has `given_up`, and of which nothing is on its way, has aborted, unless it
    /// was being decided.
    pub(super) fn has_committed(&mut self, id: TransactionId, given_up: bool) -> Option<bool> {
        self.hear();
        let all = self.outcomes.iter().chain(&self.heard_outcomes);
        let known = all.filter(|(one, _)| *one == id).map(|(_, has_committed)| *has_committed).last();
        known.or_else(|| (given_up && !self.lost.contains(&id)).then_some(false))
    }

    fn pool(&mut self, shard: ShardId) -> &mut Pool {
        let known = self.pools.iter().position(|pool| pool.shard == shard);
        let number = known.unwrap_or_else(|| {
            self.pools.push(Pool { shard, fresh: Vec::new(), free: Vec::new(), cooling: Vec::new() });
            self.pools.len() - 1
        });
        &mut self.pools[number]
    }

    /// Takes a block of a shard that the session owns, for a value of a key with this hash.
    pub(super) fn take_block(&mut self, lane: &Lane, shard: ShardId, hash: KeyHash) -> Option<Place> {
        self.cool(lane);
        let place = self.pool(shard).take(hash)?;
        self.taken.push((shard, place));
        Some(place)
    }

    /// Returns whether the current round should ask a shard for blocks: the session has none of it,
    /// and the round does not ask for some already.
    pub(super) fn lacks_blocks(&mut self, shard: ShardId) -> bool {
        let pool = self.pool(shard);
        let lacks = pool.fresh.is_empty() && pool.free.is_empty() && !self.asked.contains(&shard);
        self.asked.extend(lacks.then_some(shard));
        lacks
    }

    /// Notes that a new round is being made.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
        self.asked.clear();
    }

    /// Notes blocks that the shard has given to this session.
    pub(super) fn add_blocks(&mut self, shard: ShardId, blocks: impl Iterator<Item = u64>) {
        self.pool(shard).fresh.extend(blocks);
    }

    /// Notes a block that the session has got with its last place.
    pub(super) fn add_free(&mut self, shard: ShardId, place: Place) {
        self.pool(shard).free.push(place);
    }

    /// Returns all blocks that the session owns, with the last place of each, and forgets them.
    pub(super) fn drain(&mut self) -> Vec<(ShardId, Vec<Place>)> {
        let of = |pool: Pool| {
            let fresh = pool.fresh.into_iter().map(|block| Place::first_use(block, KeyHash::default()));
            (pool.shard, pool.free.into_iter().chain(pool.cooling).chain(fresh).collect())
        };
        std::mem::take(&mut self.pools).into_iter().map(of).collect()
    }

    /// Frees the blocks that no swap on its way can name any more.
    fn cool(&mut self, lane: &Lane) {
        if lane.background() == 0 {
            self.pools.iter_mut().for_each(|pool| pool.free.append(&mut pool.cooling));
        }
    }

    /// Notes that a commit has displaced a place, by a swap that may still be on its way.
    pub(super) fn displaced(&mut self, shard: ShardId, place: Place) {
        if place.block().is_some() {
            self.pool(shard).cooling.push(place);
        }
    }

    /// Notes that the objects have what the attempt has taken.
    pub(super) fn keep_taken(&mut self) {
        self.taken.clear();
        self.grown.clear();
    }

    /// Gives back what the attempt has taken and no object has got.
    pub(super) fn give_back_taken(&mut self) {
        for (shard, place) in std::mem::take(&mut self.taken) {
            self.pool(shard).cooling.push(place);
        }
        let grown = std::mem::take(&mut self.grown);
        self.spares.extend(grown.into_iter().map(|grown| (grown.shard, grown.bucket)));
    }

    /// Forgets what the attempt has taken, because it is not known whether objects have it.
    pub(super) fn lose_taken(&mut self) {
        self.taken.clear();
        self.grown.clear();
    }

    /// Takes an overflow bucket of a shard that the session has in hand.
    pub(super) fn take_spare(&mut self, shard: ShardId) -> Option<u64> {
        let at = self.spares.iter().position(|(whose, _)| *whose == shard)?;
        let (shard, bucket) = self.spares.swap_remove(at);
        self.grown.push(Grown { shard, bucket, words: [0; BUCKET_BYTES / WORD_BYTES] });
        Some(bucket)
    }

    /// Returns an overflow bucket that the attempt adds to a chain.
    pub(super) fn grown(&mut self, shard: ShardId, bucket: u64) -> Option<&mut Grown> {
        self.grown.iter_mut().find(|grown| (grown.shard, grown.bucket) == (shard, bucket))
    }

    /// Notes that an object has got a block that the attempt has taken.
    pub(super) fn keep_block(&mut self, place: Place) {
        self.taken.retain(|(_, one)| *one != place);
    }

    /// Notes an overflow bucket that a shard has given to this session.
    pub(super) fn add_spare(&mut self, shard: ShardId, bucket: u64) {
        self.spares.push((shard, bucket));
    }

    /// Returns the word of this lane's log at a node, if it is known.
    pub(super) fn log_word(&self, node: NodeId) -> Option<u64> {
        self.logs.get(usize::from(node.0)).copied().flatten()
    }

    /// Notes the word of this lane's log at a node. `None` if it is not known any more.
    pub(super) fn note_log_word(&mut self, node: NodeId, word: Option<u64>) {
        let number = usize::from(node.0);
        if self.logs.len() <= number {
            self.logs.resize(number + 1, None);
        }
        self.logs[number] = word;
    }

    /// Notes that the session has met a lock.
    pub(crate) fn suspect(&mut self, now: Nanos, lock: Pointer, word: LockWord) {
        let known = self.suspects.iter_mut().find(|suspect| suspect.lock == lock);
        let suspect = Suspect { lock, word, since: now };
        match known {
            Some(known) if known.word == word => {}
            Some(known) => *known = suspect,
            None => {
                if self.suspects.len() == SUSPECTS_MAX {
                    self.suspects.remove(0);
                }
                self.suspects.push(suspect);
            }
        }
    }

    /// Returns a client of a node, as the session knows it.
    pub(super) fn client(&self, node: NodeId, owner: u32) -> Option<ClientSlot> {
        let (_, clients) = self.clients.iter().find(|(whose, _)| *whose == node)?;
        clients.iter().find(|client| client.incarnation == owner).copied()
    }

    /// Notes the clients of a node.
    pub(super) fn note_clients(&mut self, node: NodeId, clients: Vec<ClientSlot>) {
        self.clients.retain(|(whose, _)| *whose != node);
        self.clients.push((node, clients));
    }
}

/// Adds an outcome to a list, which keeps the last ones.
fn push(outcomes: &mut VecDeque<(TransactionId, bool)>, outcome: (TransactionId, bool)) {
    if outcomes.len() == OUTCOMES {
        outcomes.pop_front();
    }
    outcomes.push_back(outcome);
}

/// Returns the number of the ring that has the log of the attempt with this sequence number, of a
/// client with this number of lanes.
pub(super) fn ring_of(sequence: u64, lanes: usize) -> usize {
    (sequence % lanes.max(1) as u64) as usize
}
