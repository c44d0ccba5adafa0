//! What a session keeps for protocol `rtx`: what the current attempt has seen of objects, its
//! blocks, its logs, and the locks that it has met.

use std::cell::RefCell;
use std::rc::Rc;

use remora_fabric::{Lane, Nanos, NodeId, ReadHandle, SwapHandle, WORD_BYTES};
use remora_index::objects::BUCKET_BYTES;
use remora_index::{BucketRef, Table};
use remora_node::{ClientSlot, Pointer, Registration, ShardId};
use remora_record::{KeyHash, LockWord, Place, RepairableLock, TransactionId};

use super::outcomes::Outcomes;
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
    /// The CAS by which execution asks for the lock, while its answer is awaited.
    pub(super) asks: Option<SwapHandle>,
    /// Whether the attempt has taken the lock in execution, by the word that names no log.
    pub(super) is_locked_early: bool,
}

impl Object {
    /// Returns an object that was never used, in a bucket that the attempt adds to a chain.
    pub(super) fn private() -> Object {
        Object { is_private: true, ..Object::default() }
    }

    /// Returns the object as it was found, unchanged.
    pub(super) fn found(free: LockWord, word: u64, floor: u64) -> Object {
        Object { free, word, floor, new_word: word, new_floor: floor, ..Object::default() }
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

/// A shard of a table. The number of the shard alone may be that of a shard of a later table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Site {
    pub(super) shard: ShardId,
    /// The birth of the table.
    pub(super) born: u64,
}

impl Site {
    /// Returns the site of an object of a table.
    pub(super) fn of(table: &Table, object: Pointer) -> Site {
        Site { shard: object.shard(), born: table.born() }
    }
}

/// An overflow bucket that an attempt adds to a chain. The attempt writes it before it decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grown {
    pub(super) site: Site,
    /// The bucket, as the place of a block is.
    pub(super) place: Place,
    pub(super) bucket: u64,
    pub(super) words: [u64; BUCKET_BYTES / WORD_BYTES],
}

/// The blocks of a shard that a session owns.
#[derive(Debug)]
pub(super) struct Pool {
    site: Site,
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

/// What a session has again, once it was heard how an attempt has ended that was dropped while it
/// was decided.
#[derive(Debug)]
pub(super) struct Heard {
    /// Blocks that are the session's: the attempt has displaced them, or has taken them in vain.
    pub(super) blocks: Vec<(Site, Place)>,
    /// Overflow buckets that the attempt has taken in vain.
    pub(super) grown: Vec<(Site, Place)>,
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

impl Suspect {
    /// Returns whether the session has met the lock for long enough to repair it.
    pub(super) fn is_due(&self, now: Nanos, suspicion_ns: Nanos) -> bool {
        now.saturating_sub(self.since) >= suspicion_ns
    }
}

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
    /// Whether a round of the attempt has failed, so that it is not known whether the log was
    /// begun.
    pub(super) is_log_in_doubt: bool,
    /// The outcomes of the client's attempts.
    pub(super) outcomes: Outcomes,
    /// What was heard of attempts that were dropped while they were decided.
    pub(super) heard: Rc<RefCell<Vec<Heard>>>,
    /// Places that the attempt has taken from pools, and the shards.
    pub(super) taken: Vec<(Site, Place)>,
    /// Overflow buckets that the attempt adds to chains.
    pub(super) grown: Vec<Grown>,
    /// The swaps of the attempt.
    pub(super) swaps: Vec<Swapped>,
    /// Words that are being encoded.
    pub(super) words: Vec<u64>,
    pools: Vec<Pool>,
    /// Items whose chains are to grow behind these buckets, for which their shards have no new
    /// buckets.
    pub(super) lack_buckets: Vec<(usize, BucketRef)>,
    /// The number of answers to the current round that stop the transaction.
    pub(super) stops: u32,
    /// Overflow buckets that the session has taken, and no chain has.
    spares: Vec<(Site, Place)>,
    /// The word of this lane's log at each node, by the node's number, as far as it is known.
    logs: Vec<Option<u64>>,
    /// The number of background rounds of the lane that had failed when the session last looked.
    failures: u32,
    pub(super) suspects: Vec<Suspect>,
    /// [`Rtx::suspicion_ns`](super::Rtx::suspicion_ns) of the session's protocol.
    pub(super) suspicion_ns: Nanos,
    /// Shards that the current round asks for blocks.
    asked: Vec<Site>,
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
    pub(crate) fn new(client: &Registration, ring: usize, outcomes: Outcomes) -> Repairs {
        let (lanes, ring_number) = (client.lanes() as u64, ring as u64);
        let mut repairs = Repairs { lanes, ring: ring_number, outcomes, ..Repairs::default() };
        for node in client.nodes().iter() {
            let word = client.attempt_word(node, ring).filter(|word| attempts::is_ended(*word));
            repairs.note_log_word(node, word);
        }
        repairs
    }

    /// Returns the first sequence number from this one on whose log is this lane's. The numbers of
    /// a client say in which of its rings the log of an attempt is (`attempts::ring_of`).
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
        (self.held, self.deciding, self.is_log_in_doubt) = (None, None, false);
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
        for Heard { blocks, grown, log } in all {
            blocks.into_iter().for_each(|(site, place)| self.pool(site).cooling.push(place));
            self.spares.extend(grown);
            if let Some((node, word)) = log {
                self.note_log_word(node, Some(word));
            }
        }
    }

    /// If background rounds have failed since the session last looked, forgets what it knew of its
    /// logs, and loses the blocks that verbs of these rounds may still name or write.
    pub(super) fn notice_failures(&mut self, lane: &Lane) {
        let failures = lane.background_failures();
        if std::mem::replace(&mut self.failures, failures) != failures {
            self.logs.clear();
            self.pools.iter_mut().for_each(|pool| pool.cooling.clear());
        }
    }

    /// Notes that a round of the attempt has failed. Its verbs may still come.
    #[cold]
    pub(super) fn round_failed(&mut self) {
        self.is_log_in_doubt = true;
        self.lose_taken();
    }

    fn pool(&mut self, site: Site) -> &mut Pool {
        let known = self.pools.iter().position(|pool| pool.site == site);
        let number = known.unwrap_or_else(|| {
            self.pools.push(Pool { site, fresh: Vec::new(), free: Vec::new(), cooling: Vec::new() });
            self.pools.len() - 1
        });
        &mut self.pools[number]
    }

    /// Takes a block of a shard that the session owns, for a value of a key with this hash.
    pub(super) fn take_block(&mut self, lane: &Lane, site: Site, hash: KeyHash) -> Option<Place> {
        self.cool(lane);
        let place = self.pool(site).take(hash)?;
        self.taken.push((site, place));
        Some(place)
    }

    /// Returns whether the current round should ask a shard for blocks: the session has none of it,
    /// and the round does not ask for some already.
    pub(super) fn lacks_blocks(&mut self, site: Site) -> bool {
        let pool = self.pool(site);
        let lacks = pool.fresh.is_empty() && pool.free.is_empty() && !self.asked.contains(&site);
        self.asked.extend(lacks.then_some(site));
        lacks
    }

    /// Notes that a new round is being made.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
        self.asked.clear();
    }

    /// Notes blocks that the shard has given to this session.
    pub(super) fn add_blocks(&mut self, site: Site, blocks: impl Iterator<Item = u64>) {
        self.pool(site).fresh.extend(blocks);
    }

    /// Notes a block that the session has got with its last place.
    pub(super) fn add_free(&mut self, site: Site, place: Place) {
        self.pool(site).free.push(place);
    }

    /// Takes a block that the session owns and does not need any more, with its last place. No swap
    /// may be on its way.
    pub(super) fn pop_block(&mut self) -> Option<(Site, Place)> {
        loop {
            let pool = self.pools.last_mut()?;
            let fresh = |pool: &mut Pool| Some(Place::first_use(pool.fresh.pop()?, KeyHash::default()));
            let place = pool.free.pop().or_else(|| pool.cooling.pop()).or_else(|| fresh(pool));
            match place {
                Some(place) => return Some((pool.site, place)),
                None => _ = self.pools.pop(),
            }
        }
    }

    /// Takes an overflow bucket that the session owns and does not need any more.
    pub(super) fn pop_spare(&mut self) -> Option<(Site, Place)> {
        self.spares.pop()
    }

    /// Frees the blocks that no swap on its way can name any more.
    fn cool(&mut self, lane: &Lane) {
        self.notice_failures(lane);
        if lane.background() == 0 {
            self.pools.iter_mut().for_each(|pool| pool.free.append(&mut pool.cooling));
        }
    }

    /// Notes that a commit has displaced a place, by a swap that may still be on its way.
    pub(super) fn displaced(&mut self, site: Site, place: Place) {
        if place.block().is_some() {
            self.pool(site).cooling.push(place);
        }
    }

    /// Notes that the objects have what the attempt has taken.
    pub(super) fn keep_taken(&mut self) {
        self.taken.clear();
        self.grown.clear();
    }

    /// Gives back what the attempt has taken and no object has got.
    pub(super) fn give_back_taken(&mut self) {
        while let Some((site, place)) = self.taken.pop() {
            self.pool(site).cooling.push(place);
        }
        self.spares.extend(self.grown.drain(..).map(|grown| (grown.site, grown.place)));
    }

    /// Forgets what the attempt has taken, because it is not known whether objects have it.
    pub(super) fn lose_taken(&mut self) {
        self.taken.clear();
        self.grown.clear();
    }

    /// Takes an overflow bucket of a shard that the session has in hand. `main` is the number of
    /// the shard's main buckets.
    pub(super) fn take_spare(&mut self, site: Site, main: u64) -> Option<u64> {
        let at = self.spares.iter().position(|(whose, _)| *whose == site)?;
        let (site, place) = self.spares.swap_remove(at);
        let bucket = main + place.block()?;
        self.grown.push(Grown { site, place, bucket, words: [0; BUCKET_BYTES / WORD_BYTES] });
        Some(bucket)
    }

    /// Returns an overflow bucket that the attempt adds to a chain.
    pub(super) fn grown(&mut self, site: Site, bucket: u64) -> Option<&mut Grown> {
        self.grown.iter_mut().find(|grown| (grown.site, grown.bucket) == (site, bucket))
    }

    /// Notes that an object has got a block that the attempt has taken.
    pub(super) fn keep_block(&mut self, place: Place) {
        self.taken.retain(|(_, one)| *one != place);
    }

    /// Notes an overflow bucket that a shard has given to this session.
    pub(super) fn add_spare(&mut self, site: Site, place: Place) {
        self.spares.push((site, place));
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

    /// Notes that the session has met a lock. Returns whether it has met the lock for long enough
    /// to repair it.
    pub(super) fn suspect(&mut self, now: Nanos, lock: Pointer, word: LockWord) -> bool {
        let mut suspect = Suspect { lock, word, since: now };
        match self.suspects.iter_mut().find(|known| known.lock == lock) {
            Some(known) if known.word == word => suspect = *known,
            Some(known) => *known = suspect,
            None => {
                if self.suspects.len() == SUSPECTS_MAX {
                    self.suspects.remove(0);
                }
                self.suspects.push(suspect);
            }
        }
        suspect.is_due(now, self.suspicion_ns)
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
