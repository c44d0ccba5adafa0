//! The host: what the CPU of a primary's memory node does for inserts and deletes. It chooses pairs
//! and record slots, so that clients need not agree on them. [`cluster_hash`](crate::cluster_hash)
//! says who writes which word, and why versions never restart.
//!
//! One thread of the node calls these functions, with the region for which the shard was made. The
//! requests come from clients, so they may name anything, and the host refuses a request that makes
//! no sense. Some of the host's state is only in this process's memory: its free list, and what it
//! needs to undo inserts. If that is lost, the host finds slots again by a search for tombstones.
//! Inserts that were not undone stay prepared until a client inserts that key.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use remora_fabric::{LINE_BYTES, LINE_WORDS, NodeId, WORD_BYTES, copy};
use remora_node::{Metadata, ShardId, TableEntry, node};
use remora_record::{Key, KeyHash, Life, LockWord, RecordHeader, RecordShape, Version};

use crate::cluster_hash::{
    BUCKET_SLOTS, Geometry, HEADER_FLOOR_WORD, HEADER_GONE_WORD, HEADER_INDIRECT_WORD, HEADER_SLOTS_WORD, Location,
    is_empty, is_entry, link_word, linked_bucket, linked_over, location, offset, unlinked,
};
use crate::table::version_floor;

/// Largest number of links on the way to a pair that is taken for an insert. An answer to a client,
/// and a log entry, have room for no more. Pairs further down a chain, which a bulk load may have
/// made, are found like all others.
pub const LINKS_MAX: usize = 16;

#[cfg(feature = "mutants")]
use crate::mutant::is_insert_beside_locked as insert_beside_locked;

/// Returns whether a published error has been put back into the code. It is always false without
/// the feature `mutants`.
#[cfg(not(feature = "mutants"))]
const fn insert_beside_locked() -> bool {
    false
}

/// Number of prepared inserts that the host remembers before it forgets the committed ones among
/// them.
const REMEMBERED_MAX: usize = 4096;

/// A shard whose primary is in this node's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostShard {
    /// The shard's id.
    pub id: ShardId,
    /// The generation of the catalog with which the shard's table was born. The shard's id may have
    /// belonged to another table before.
    pub born: u64,
    /// The byte of the region at which the shard begins.
    pub base: u64,
    /// The layout of the shard.
    pub geometry: Geometry,
    /// The shape of the shard's records.
    pub shape: RecordShape,
    /// The lowest version that a record may have.
    pub version_floor: Version,
    /// Whether the host unlinks deleted records, and notes the times of their deletes.
    pub unlinks: bool,
}

impl HostShard {
    /// Makes the description of a shard whose primary is at this node. Returns `None` if the
    /// primary is at another node, or if what the catalog says does not fit the region.
    #[must_use]
    pub fn of(metadata: &Metadata, id: ShardId, node: NodeId, region: &[AtomicU64]) -> Option<HostShard> {
        let placement = metadata.shards.get(usize::from(id.0))?;
        let primary = placement.replicas.first()?;
        let entry @ TableEntry { spec, born, .. } = metadata.tables.get(usize::from(placement.table.0))?;
        let (geometry, shape) = (Geometry::of(spec), RecordShape::of(&spec.layout));
        let whole_lines = primary.base.is_multiple_of(LINE_BYTES as u64)
            && geometry.slot_bytes.is_multiple_of(LINE_BYTES as u64)
            && shape.record_bytes() as u64 <= geometry.slot_bytes;
        let end = geometry.checked_bytes().filter(|bytes| *bytes <= placement.bytes)?.checked_add(primary.base)?;
        let fits = end / WORD_BYTES as u64 <= region.len() as u64;
        (primary.node == node && primary.region == node::REGION && whole_lines && fits && geometry.buckets > 0)
            .then_some(HostShard {
                id,
                born: *born,
                base: primary.base,
                geometry,
                shape,
                version_floor: version_floor(entry),
                unlinks: spec.discipline.unlinks_by_cpu() && shape.is_timed(),
            })
    }

    /// Looks for a key in the index.
    #[must_use]
    pub fn find(&self, region: &[AtomicU64], key: &Key) -> Presence {
        let view = self.view(region);
        let chain = view.chain(key.hash());
        match view.pairs(&chain).find(|pair| view.links(pair, key)) {
            Some(pair) => {
                Presence::Linked { bucket_slot: pair.at, entry: pair.entry, location: location(self.id, pair.entry) }
            }
            None => Presence::Absent,
        }
    }

    /// Returns a time from which on every key that the index does not have was absent, as far as
    /// the host unlinks.
    #[must_use]
    pub fn gone(&self, region: &[AtomicU64]) -> u64 {
        self.view(region).words[HEADER_GONE_WORD].load(Ordering::Acquire)
    }

    /// Returns the index in the region of a record's first word, if there is a record's slot at
    /// this offset of the shard.
    #[must_use]
    pub fn slot_word(&self, offset: u64) -> Option<usize> {
        self.geometry.is_slot(offset).then_some((self.base + offset) as usize / WORD_BYTES)
    }

    /// Returns the shard's words in the region for which it was made.
    fn view<'r>(&'r self, region: &'r [AtomicU64]) -> View<'r> {
        let words = |bytes: u64| (bytes / WORD_BYTES as u64) as usize;
        View { shard: self, words: &region[words(self.base)..][..words(self.geometry.bytes())] }
    }
}

/// Tells whether a key is in the index. The record of a linked key may be present, or prepared, or
/// a tombstone that is about to be unlinked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The index has the key.
    Linked {
        /// Offset within the shard of the pair that links the key.
        bucket_slot: u64,
        /// The pair's first word.
        entry: u64,
        /// The location of the key's record.
        location: Location,
    },
    /// The index does not have the key.
    Absent,
}

/// The answer to a client that inserts a key: a record to lock, and a version to validate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prepared {
    /// The key was linked already: present, or prepared by another client, or a tombstone about to
    /// be unlinked. The record says which.
    Linked {
        /// Offset within the shard of the pair that links the key.
        bucket_slot: u64,
        /// The pair's first word.
        entry: u64,
        /// The location of the key's record.
        location: Location,
        /// The links on the way to the pair, as offset and word, for the log. There are none if
        /// there would be more than [`LINKS_MAX`].
        links: Vec<(u64, u64)>,
    },
    /// The host has linked the key now.
    New {
        /// Offset within the shard of the pair that links the key.
        bucket_slot: u64,
        /// The pair's first word.
        entry: u64,
        /// The pair's second word.
        key_word: u64,
        /// The location of the key's record.
        location: Location,
        /// The version of the prepared record, which is odd. The commit installs the next version.
        version: Version,
        /// The links on the way to the pair, as offset and word, for the log.
        links: Vec<(u64, u64)>,
        /// Whether the shard has little room left, so that the table is to grow.
        is_crowded: bool,
    },
}

/// Why an insert could not be prepared. The shard has not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// All record slots are taken.
    #[error("all record slots of the shard are taken; create the table with a larger capacity")]
    SlotsFull,
    /// The key's chain is full, and is as long as a chain may be.
    #[error("a chain of the shard's index is full and too long to grow; create the table with a larger capacity")]
    ChainFull,
    /// The key's chain is full, and cannot grow, because all indirect buckets are in use.
    #[error("all indirect buckets of the shard's index are taken; create the table with a larger capacity")]
    BucketsFull,
    /// Keys of this table have another size.
    #[error("keys of this table have another size")]
    KeySize,
}

/// The state that a memory node's CPU keeps for the shards whose primary it has.
#[derive(Debug, Default)]
pub struct Host {
    shards: HashMap<ShardId, Allocator>,
}

impl Host {
    /// Makes a host that knows no shard yet.
    #[must_use]
    pub fn new() -> Host {
        Host::default()
    }

    /// Makes sure that a key is linked. If it is not, links a prepared record. Fails, and changes
    /// nothing, if the shard has no room or the key has the wrong size.
    pub fn prepare(&mut self, region: &[AtomicU64], shard: &HostShard, key: &Key) -> Result<Prepared, Refused> {
        if key.words().len() != shard.shape.key_words() {
            return Err(Refused::KeySize);
        }
        let allocator = Allocator::of(&mut self.shards, shard);
        let view = shard.view(region);
        let hash = key.hash();
        let mut chain = view.chain(hash);
        // The host reads the chain once for everything. A delete may unlink a pair meanwhile, but
        // only this thread links.
        let pairs: Vec<Pair> = view.pairs(&chain).collect();
        let passed_over = |pair: &Pair| insert_beside_locked() && !view.is_unlocked(offset(pair.entry));
        if let Some(pair) = pairs.iter().find(|pair| view.links(pair, key) && !passed_over(pair)) {
            let location = location(shard.id, pair.entry);
            let slot = location.pointer.offset();
            if matches!(view.life(slot), Some(Life::Present { .. })) {
                allocator.remembered.remove(&slot);
            }
            let mut links = view.way_to(&chain, pair);
            if links.len() > LINKS_MAX {
                // A bulk load has taken this pair, so no insert is under way at its record, and its
                // links are at every replica.
                links.clear();
            }
            return Ok(Prepared::Linked { bucket_slot: pair.at, entry: pair.entry, location, links });
        }

        let retains_key = |pair: &&Pair| is_empty(pair.entry) && pair.key_word == hash.word;
        let near = &pairs[..pairs.len().min((LINKS_MAX + 1) * BUCKET_SLOTS)];
        let empty = near.iter().find(retains_key).or_else(|| near.iter().find(|pair| is_empty(pair.entry)));
        if empty.is_none() && chain.len() > LINKS_MAX {
            return Err(Refused::ChainFull);
        }
        let grown = if empty.is_none() { Some(view.next_indirect().ok_or(Refused::BucketsFull)?) } else { None };
        let mut slot = allocator.take(&view).ok_or(Refused::SlotsFull)?;
        if let Some(bucket) = grown {
            view.grow(&mut chain, bucket);
        }
        let pair = empty.copied().unwrap_or_else(|| view.pair(chain[chain.len() - 1], 0));

        // The versions that this insert makes the pair forget, and the versions with which the
        // key's former lives ended.
        let forgotten = pairs.iter().filter(retains_key).chain([&pair]).map(|pair| view.retained_version(pair));
        let forgotten = forgotten.fold(shard.version_floor, Version::max);
        let (before, entry, location, version) = loop {
            let version = view.raise_floor(forgotten.max(view.version(slot))).rolled_back_over();
            view.raise_floor(version);
            let before = Before { pair, image: view.image(slot) };
            let entry = linked_over(pair.entry, slot);
            let location = location(shard.id, entry);
            let mut image = Vec::with_capacity(shard.shape.image_words());
            let life = Life::Prepared { incarnation: location.incarnation };
            shard.shape.encode(version, life, key.words(), &[], &mut image);
            if shard.unlinks {
                // The time comes first. So no reader takes the record for prepared, and its time
                // for that of a former life of the slot.
                let gone = shard.gone(region);
                shard.shape.settle(&mut image, gone);
                view.store(slot + shard.shape.time_at(), gone);
            }
            view.install(slot, &image);
            // A client that locks the slot from here on sees that it is prepared. A client may have
            // locked it before, by a stale location, after the slot was taken. That client may not
            // have seen that the slot is prepared, and would not take it back.
            fence(Ordering::SeqCst);
            if view.is_unlocked(slot) {
                break (before, entry, location, version);
            }
            view.install(slot, &before.image);
            allocator.free.insert(slot);
            slot = allocator.take(&view).ok_or(Refused::SlotsFull)?;
        };
        debug_assert!(
            view.key(slot).eq(key.words().iter().copied())
                && view.life(slot) == Some(Life::Prepared { incarnation: location.incarnation })
                || insert_beside_locked(),
            "cluster_hash 1: an entry names a whole record"
        );
        view.store(pair.at + WORD_BYTES as u64, hash.word);
        view.store(pair.at, entry);
        allocator.remember(&view, slot, before);
        let links = view.way_to(&chain, &pair);
        let (bucket_slot, key_word, is_crowded) = (pair.at, hash.word, view.is_crowded());
        Ok(Prepared::New { bucket_slot, entry, key_word, location, version, links, is_crowded })
    }

    /// Takes back a prepared insert that did not commit, at the request of the transaction `me`.
    /// That transaction has the record locked, and keeps it locked until it has the answer. Returns
    /// whether the insert has been taken back. If not, the slot was not prepared, or this host does
    /// not remember it.
    ///
    /// Any client that holds the lock may ask for this. The slot may have been prepared anew since,
    /// for another client. That client cannot hold the lock, too: its lock or its validation fails,
    /// and it tries again. The host must not refuse in that case. Otherwise the slot would stay
    /// prepared without end if that client gives up meanwhile because the lock is taken.
    pub fn undo(&mut self, region: &[AtomicU64], shard: &HostShard, slot: u64, me: LockWord) -> bool {
        let allocator = Allocator::of(&mut self.shards, shard);
        let view = shard.view(region);
        let mine = shard.geometry.is_slot(slot)
            && !me.is_free()
            && view.header(slot).is_some_and(|header| header.lock == me)
            && matches!(view.life(slot), Some(Life::Prepared { .. }));
        let Some(Before { pair, image }) = mine.then(|| allocator.remembered.remove(&slot)).flatten() else {
            return false;
        };
        // The pair is unlinked first, so that no client finds the entry of a record that is gone.
        view.store(pair.at, pair.entry);
        view.store(pair.at + WORD_BYTES as u64, pair.key_word);
        view.install(slot, &image);
        allocator.free.insert(slot);
        true
    }

    /// Frees the record slot of a delete that has been committed, installed and unlocked, at this
    /// version. Returns whether the slot has been freed. A slot that no client asks to free is
    /// found when all others are taken.
    ///
    /// If the host [unlinks](HostShard::unlinks), it unlinks the slot before.
    pub fn free(&mut self, region: &[AtomicU64], shard: &HostShard, slot: u64, version: Version) -> bool {
        let allocator = Allocator::of(&mut self.shards, shard);
        let view = shard.view(region);
        let is_tombstone = shard.geometry.is_slot(slot)
            && view.version(slot) == version
            && matches!(view.life(slot), Some(Life::Deleted { .. }));
        if is_tombstone && shard.unlinks {
            view.unlink(slot);
        }
        let gone = is_tombstone && view.is_reusable(slot);
        if gone {
            view.raise_floor(version);
            allocator.remembered.remove(&slot);
        }
        gone && allocator.free.insert(slot)
    }
}

/// The state that a host keeps for one shard.
#[derive(Debug, Default)]
struct Allocator {
    /// The generation of the catalog with which the shard's table was born.
    born: u64,
    /// Record slots that could be taken when they were freed, the lowest first.
    free: BTreeSet<u64>,
    /// The prepared inserts, by the slot of the prepared record. The primary may have been at
    /// another node meanwhile. Clients neither log nor copy a prepared record. So a record that is
    /// prepared here was prepared here since, and is remembered anew.
    remembered: HashMap<u64, Before>,
    /// Number of inserts that may be remembered before the host looks for the committed ones among
    /// them.
    remembered_max: usize,
    /// Number of the record slot at which the search for tombstones goes on, counted from 0.
    searched: u64,
}

/// What pair and slot held before an insert was prepared.
#[derive(Debug)]
struct Before {
    pair: Pair,
    image: Vec<u64>,
}

impl Allocator {
    /// Returns the state of a shard. It is empty if the shard's id belonged to another table
    /// before.
    fn of<'a>(shards: &'a mut HashMap<ShardId, Allocator>, shard: &HostShard) -> &'a mut Allocator {
        let allocator = shards.entry(shard.id).or_default();
        if allocator.born != shard.born {
            *allocator = Allocator { born: shard.born, ..Allocator::default() };
        }
        allocator
    }

    /// Takes a record slot: one that was freed, or else one that was never used, or else a
    /// tombstone that no client has freed. Such a tombstone stays when the client that deleted the
    /// record has died, or the free list is lost.
    fn take(&mut self, view: &View<'_>) -> Option<u64> {
        let Geometry { slots, .. } = view.shard.geometry;
        let used = view.words[HEADER_SLOTS_WORD].load(Ordering::Acquire).min(slots);
        // If a slot is locked, the client that has undone an insert there is about to unlock it.
        // The unlocked slots in the list are hints. The primary may have been at another node since
        // they were freed, and may have used them there, or may count them as never used.
        while let Some(slot) = self.free.iter().copied().find(|slot| view.is_unlocked(*slot)) {
            self.free.remove(&slot);
            if slot < view.shard.geometry.slot_at(used) && view.is_vacant(slot) {
                // It does not matter which client made the slot a tombstone: `prepare` raises the
                // floor above the slot's version.
                return Some(slot);
            }
        }
        if used < slots {
            view.words[HEADER_SLOTS_WORD].store(used + 1, Ordering::Release);
            return Some(view.shard.geometry.slot_at(used));
        }
        let number = (0..slots)
            .map(|step| (self.searched + step) % slots)
            .find(|number| view.is_vacant(view.shard.geometry.slot_at(*number)))?;
        self.searched = number + 1;
        let slot = view.shard.geometry.slot_at(number);
        // The slot may have been locked when the host looked at the free ones, and unlocked since.
        self.free.remove(&slot);
        Some(slot)
    }

    fn remember(&mut self, view: &View<'_>, slot: u64, before: Before) {
        self.remembered.insert(slot, before);
        if self.remembered.len() > self.remembered_max.max(REMEMBERED_MAX) {
            self.remembered.retain(|slot, _| matches!(view.life(*slot), Some(Life::Prepared { .. })));
            // With this limit, the host looks on average at one remembered insert for each one that
            // it adds.
            self.remembered_max = 2 * self.remembered.len();
        }
    }
}

/// A pair of a bucket, as it was read.
#[derive(Clone, Copy, Debug)]
struct Pair {
    bucket: u64,
    at: u64,
    entry: u64,
    key_word: u64,
}

/// The words of a shard. The caller checks by the geometry that offsets are those of pairs and
/// slots.
#[derive(Clone, Copy)]
struct View<'r> {
    shard: &'r HostShard,
    words: &'r [AtomicU64],
}

impl View<'_> {
    fn load(&self, offset: u64) -> u64 {
        self.words[offset as usize / WORD_BYTES].load(Ordering::Acquire)
    }

    fn store(&self, offset: u64, word: u64) {
        self.words[offset as usize / WORD_BYTES].store(word, Ordering::Release);
    }

    /// Returns the numbers of the buckets of a key's chain.
    fn chain(&self, hash: KeyHash) -> Vec<u64> {
        let geometry = &self.shard.geometry;
        let mut chain = vec![geometry.main_bucket(hash.scatter)];
        // A chain that is longer than the number of buckets is a circle.
        while chain.len() as u64 <= geometry.indirect {
            let link = self.load(geometry.link_at(chain[chain.len() - 1]));
            let Some(next) = linked_bucket(link).and_then(|at| geometry.bucket_number(at)) else { break };
            chain.push(next);
        }
        chain
    }

    fn pair(&self, bucket: u64, slot: usize) -> Pair {
        let at = self.shard.geometry.pair_at(bucket, slot);
        Pair { bucket, at, entry: self.load(at), key_word: self.load(at + WORD_BYTES as u64) }
    }

    fn pairs(&self, chain: &[u64]) -> impl Iterator<Item = Pair> {
        chain.iter().flat_map(move |bucket| (0..BUCKET_SLOTS).map(move |slot| self.pair(*bucket, slot)))
    }

    /// Returns the links from the main bucket to the bucket of a pair.
    fn way_to(&self, chain: &[u64], pair: &Pair) -> Vec<(u64, u64)> {
        let geometry = &self.shard.geometry;
        let steps = chain.windows(2).take_while(|step| step[0] != pair.bucket);
        steps.map(|step| (geometry.link_at(step[0]), link_word(geometry.bucket_at(step[1])))).collect()
    }

    /// Returns whether three quarters of the record slots, or of the indirect buckets, are in use.
    fn is_crowded(&self) -> bool {
        let Geometry { slots, indirect, .. } = self.shard.geometry;
        let used = |word: usize| self.words[word].load(Ordering::Acquire);
        used(HEADER_SLOTS_WORD) >= slots - slots / 4 || used(HEADER_INDIRECT_WORD) >= indirect - indirect / 4
    }

    /// Returns an indirect bucket that is in no chain yet, if there is one.
    fn next_indirect(&self) -> Option<u64> {
        let used = self.words[HEADER_INDIRECT_WORD].load(Ordering::Acquire);
        (used < self.shard.geometry.indirect).then(|| self.shard.geometry.buckets + used)
    }

    /// Links a bucket to the end of a chain.
    fn grow(&self, chain: &mut Vec<u64>, bucket: u64) {
        let geometry = &self.shard.geometry;
        self.words[HEADER_INDIRECT_WORD].store(bucket - geometry.buckets + 1, Ordering::Release);
        self.store(geometry.link_at(chain[chain.len() - 1]), link_word(geometry.bucket_at(bucket)));
        chain.push(bucket);
    }

    /// Returns whether a pair links a key. The holder of the record's lock may be changing the
    /// record meanwhile, but the record's key stays.
    fn links(&self, pair: &Pair, key: &Key) -> bool {
        let slot = offset(pair.entry);
        is_entry(pair.entry)
            && pair.key_word == key.hash().word
            && self.shard.geometry.is_slot(slot)
            && self.key(slot).eq(key.words().iter().copied())
    }

    fn key(&self, slot: u64) -> impl Iterator<Item = u64> {
        self.shard.shape.key_places().map(move |place| self.load(slot + (place * WORD_BYTES) as u64))
    }

    fn header(&self, slot: u64) -> Option<RecordHeader> {
        self.shard.shape.validated(&self.start(slot))
    }

    fn version(&self, slot: u64) -> Version {
        self.header(slot).map_or(Version::default(), |header| header.version)
    }

    fn life(&self, slot: u64) -> Option<Life> {
        self.shard.shape.life(&self.start(slot))
    }

    /// Loads the words of a slot that have its lock, its version and the life of its key.
    fn start(&self, slot: u64) -> [u64; LINE_WORDS] {
        let mut words = [0; LINE_WORDS];
        let count = self.shard.shape.life_bytes() / WORD_BYTES;
        for (word, at) in words[..count].iter_mut().zip((slot..).step_by(WORD_BYTES)) {
            *word = self.load(at);
        }
        words
    }

    /// Returns the version of the record that an empty pair retains.
    fn retained_version(&self, pair: &Pair) -> Version {
        let slot = offset(pair.entry);
        if self.shard.geometry.is_slot(slot) { self.version(slot) } else { Version::default() }
    }

    /// Returns whether a record slot can be taken: it was never used or holds a tombstone, and it
    /// is reusable.
    fn is_vacant(&self, slot: u64) -> bool {
        matches!(self.life(slot), None | Some(Life::Deleted { .. })) && self.is_reusable(slot)
    }

    /// Returns whether no pair links a slot, and no client has it locked. The slot must be a
    /// tombstone, or never used.
    fn is_reusable(&self, slot: u64) -> bool {
        self.pair_of(slot).is_none() && self.is_unlocked(slot)
    }

    /// Returns the pair that links a slot, if one does.
    fn pair_of(&self, slot: u64) -> Option<Pair> {
        let key: Vec<u64> = self.key(slot).collect();
        self.pairs(&self.chain(KeyHash::of(&key))).find(|pair| is_entry(pair.entry) && offset(pair.entry) == slot)
    }

    /// Unlinks a tombstone, if it is linked. Before that, raises the bound of the times of deletes
    /// to the time of this one, for clients that find the key absent from then on.
    fn unlink(&self, slot: u64) {
        let Some(pair) = self.pair_of(slot) else { return };
        let time = self.shard.shape.time_of_image(&self.image(slot));
        self.words[HEADER_GONE_WORD].fetch_max(time, Ordering::AcqRel);
        self.store(pair.at, unlinked(pair.entry));
    }

    fn is_unlocked(&self, slot: u64) -> bool {
        self.header(slot).is_some_and(|header| header.lock.is_free())
    }

    /// Raises the floor of versions to at least `version`, and returns the floor.
    fn raise_floor(&self, version: Version) -> Version {
        let floor = &self.words[HEADER_FLOOR_WORD];
        let (old, _) = Version::from_bits(floor.load(Ordering::Acquire));
        let new = old.max(version).max(Version::LOADED);
        floor.store(new.to_bits(), Ordering::Release);
        new
    }

    fn image(&self, slot: u64) -> Vec<u64> {
        let mut image = vec![0; self.shard.shape.image_words()];
        copy::read(self.words, (slot + self.shard.shape.image_at()) as usize / WORD_BYTES, &mut image);
        image
    }

    fn install(&self, slot: u64, image: &[u64]) {
        self.shard.shape.install(&self.words[slot as usize / WORD_BYTES..], image);
    }
}
