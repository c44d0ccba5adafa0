//! The tree of a RACE hash table: how a session finds the leaf of a key, waits for a lock or
//! repairs it, and splits a leaf.

use remora_fabric::{Address, WORD_BYTES, probes};
use remora_index::race::{AT_IMAGE, DEPTH_MAX, Geometry, Hash, Kind, Node, NodeWord, OBJECT_BYTES, Slot, UnitRange};
use remora_record::{LockWord, LogPlace, RepairableLock};

use super::Operation;
use super::known::{Block, Leaf};
use crate::error::{Limit, Stop};
use crate::limits::READ_PAUSE_NS;
use crate::protocol::{Protocol, Rtx, take_mark_free};

/// The longest pause of a session that waits for a lock.
const WAIT_NS: u64 = 20_000;
/// The bytes of a block that a rehash reads: its slot and its hash.
pub(super) const HASH_BYTES: usize = 2 * WORD_BYTES;
/// The largest number of verbs of a round of a rehash.
pub(super) const VERBS: usize = 120;

impl Operation<'_> {
    /// Returns the leaf that has the key, with a lock that was free and an array that was there at
    /// the same time. If the leaf has no array, makes one if `makes`, and otherwise returns `None`.
    pub(super) async fn leaf(&mut self, makes: bool) -> Result<Option<Leaf>, Stop> {
        let bits = self.hash.leaf_bits();
        loop {
            let part = self.part();
            let leaf = *part.directory.leaf(part.directory.find(bits));
            if leaf.array.is_some() {
                return Ok(Some(leaf));
            }
            let Some((lock, node)) = self.read_object(leaf.object).await? else { continue };
            if !lock.is_free() {
                self.wait_for(leaf.object, lock).await?;
                continue;
            }
            self.own().met = None;
            match node.node() {
                Node::Leaf(unit) => {
                    let array = self.address(unit).await?;
                    let known = Leaf { lock, node, array: Some(array), ..leaf };
                    self.learn(known);
                    return Ok(Some(known));
                }
                Node::Fork(unit) => {
                    let pair = self.address(unit).await?;
                    self.fork(leaf.object, [0, OBJECT_BYTES].map(|at| Leaf::unknown(pair.plus(at))))?;
                }
                Node::Bare if makes => self.make(Leaf { lock, node, ..leaf }).await?,
                Node::Bare => return Ok(None),
            }
        }
    }

    /// Reads an object. Returns `None` if it was being changed.
    async fn read_object(&mut self, object: Address) -> Result<Option<(LockWord, NodeWord)>, Stop> {
        let mut looks = [[0; 2]; 2];
        for look in &mut looks {
            let mut round = self.lane.round();
            // Nothing orders two READs, nor the words of one READ.
            let reads = [0, WORD_BYTES as u64].map(|at| round.read(object.plus(at), WORD_BYTES));
            let done = self.lane.execute(round).await?;
            *look = reads.map(|read| done.words(read)[0]);
            if mutant!(RacePairOnce) {
                looks[1] = looks[0];
                break;
            }
        }
        if looks[0] != looks[1] {
            self.again()?;
            return Ok(None);
        }
        let [lock, node] = looks[0];
        Ok(Some((LockWord::from_bits(lock), NodeWord::from_bits(node))))
    }

    /// Notes what the session knows of the leaf of the key.
    fn learn(&mut self, leaf: Leaf) {
        let bits = self.hash.leaf_bits();
        let directory = &mut self.part().directory;
        let number = directory.find(bits);
        if directory.leaf(number).object == leaf.object {
            *directory.leaf_mut(number) = leaf;
        }
    }

    /// Forgets the lock and the array of a leaf, because its lock has changed.
    pub(super) fn forget(&mut self, leaf: Leaf) {
        self.learn(Leaf::unknown(leaf.object));
    }

    /// Notes that the leaf of the key has been split.
    pub(super) fn fork(&mut self, object: Address, halves: [Leaf; 2]) -> Result<(), Stop> {
        let bits = self.hash.leaf_bits();
        let directory = &mut self.part().directory;
        let number = directory.find(bits);
        if directory.leaf(number).object == object && !directory.split(number, bits, halves) {
            return Err(Limit::TableFull { slots: directory.len() as u64 }.into());
        }
        Ok(())
    }

    /// Waits for the holder of a lock. If the session has met the lock for long, repairs it.
    async fn wait_for(&mut self, object: Address, lock: LockWord) -> Result<(), Stop> {
        self.again()?;
        let now = self.lane.now();
        let Rtx { suspicion_ns, .. } = if let Protocol::Rtx(rtx) = self.state.protocol { rtx } else { Rtx::USUAL };
        let met = self.own().met.filter(|(at, word, _)| (*at, *word) == (object, lock));
        let (_, _, since) = *self.own().met.insert(met.unwrap_or((object, lock, now)));
        let waited = now.saturating_sub(since);
        if waited < suspicion_ns || self.is_native() {
            self.lane.sleep((waited / 4).clamp(READ_PAUSE_NS, WAIT_NS)).await;
            return Ok(());
        }
        let own = self.next_lock()?;
        take_mark_free(self.lane, object, lock, own, |node| Some(NodeWord::from_bits(node).marked()?.to_bits())).await
    }

    /// Returns a lock word of this client that was never used.
    pub(super) fn next_lock(&mut self) -> Result<RepairableLock, Stop> {
        let id = self.state.next_id()?;
        RepairableLock::held_by(id, LogPlace::Nowhere).ok_or(Stop::Limit(Limit::TransactionIds))
    }

    /// Makes the array of a leaf that has none.
    async fn make(&mut self, leaf: Leaf) -> Result<(), Stop> {
        let geometry = self.shape().geometry;
        let unit = self.take_array(geometry.array_units()).await?;
        let array = self.address(unit).await?;
        let own = self.next_lock()?;
        let empty = empty_of(own);
        let mut round = self.lane.round();
        let swap = round.compare_swap(leaf.object, leaf.lock.to_bits(), own.word().to_bits());
        let taken = self.lane.execute(round).await?.swapped(swap);
        if taken {
            let mut words = std::mem::take(&mut self.own().words);
            words.clear();
            words.resize(geometry.array_slots(), empty.to_bits());
            self.add_headers(&mut words);
            let mut round = self.lane.round();
            round.write_words(array, &words);
            self.own().words = words;
            let node = leaf.object.plus(WORD_BYTES as u64);
            round.compare_swap(node, leaf.node.to_bits(), NodeWord::leaf(unit).to_bits());
            round.compare_swap(leaf.object, own.word().to_bits(), own.freed().to_bits());
            self.lane.execute(round).await?;
        } else {
            self.spare(unit, geometry.array_units());
        }
        self.again()
    }

    /// Splits the leaf that has the key. Returns false if another client has been faster.
    pub(crate) async fn split_now(mut self) -> Result<bool, Stop> {
        let Some(leaf) = self.leaf(true).await? else { return Ok(false) };
        self.split(leaf).await
    }

    /// Returns the array of a leaf that is to be split, and the leaf's depth. Returns `None` if the
    /// session knows by now that the leaf was split. Fails if the tree has its greatest depth
    /// there.
    pub(super) fn splittable(&mut self, leaf: Leaf) -> Result<Option<(Address, u32)>, Stop> {
        let bits = self.hash.leaf_bits();
        let directory = &self.part().directory;
        let number = directory.find(bits);
        let depth = directory.depth_of(number);
        let Some(array) = leaf.array.filter(|_| directory.leaf(number).object == leaf.object) else {
            return Ok(None);
        };
        if depth == DEPTH_MAX {
            return Err(Limit::TableFull { slots: directory.len() as u64 }.into());
        }
        Ok(Some((array, depth)))
    }

    /// Splits a full leaf in two. Returns false if another client has been faster.
    pub(super) async fn split(&mut self, leaf: Leaf) -> Result<bool, Stop> {
        if self.is_native() {
            return self.split_native(leaf).await;
        }
        let geometry = self.shape().geometry;
        let slots = geometry.array_slots();
        let Some((array, depth)) = self.splittable(leaf)? else { return Ok(false) };
        // The lock is held for a short time if all space is at hand before.
        self.have_units(split_units(geometry).iter().sum()).await?;
        let mut units = [0; 3];
        for (unit, wanted) in units.iter_mut().zip(split_units(geometry)) {
            *unit = self.take_array(wanted).await?;
        }
        let [halves @ .., pair] = units;
        let own = self.next_lock()?;

        let mut before = Vec::new();
        if mutant!(RaceCopyUnlocked) {
            before = self.read_array(array, slots).await?;
        }
        let mut round = self.lane.round();
        let swap = round.compare_swap(leaf.object, leaf.lock.to_bits(), own.word().to_bits());
        if !self.lane.execute(round).await?.swapped(swap) {
            self.forget(leaf);
            self.again()?;
            self.spare_all(units);
            return Ok(false);
        }
        self.lane.probe(probes::LOCKS);
        if !mutant!(RaceCopyUnlocked) {
            before = self.read_array(array, slots).await?;
            // Two READs agree on what was there at one moment. The lock is READ after the first of
            // them: if it is lost, the array may have been dead, and nothing of it may be marked.
            loop {
                let mut round = self.lane.round();
                let reads = [(array, slots), (leaf.object, 1)].map(|(at, words)| round.read(at, words * WORD_BYTES));
                let done = self.lane.execute(round).await?;
                let [after, lock] = reads.map(|read| done.words(read));
                if lock[0] != own.word().to_bits() && !mutant!(RaceMarkUnlocked) {
                    drop(done);
                    self.forget(leaf);
                    self.spare_all(units);
                    return Ok(false);
                }
                let after = after.to_vec();
                drop(done);
                if after == before {
                    break;
                }
                before = after;
                self.again()?;
            }
        }
        let Some(copies) = self.copies(&before, depth, empty_of(own)).await? else {
            // The lock was lost, and the array has changed since.
            self.forget(leaf);
            self.spare_all(units);
            return Ok(false);
        };
        let mut dropped = Vec::new();
        if geometry.marks {
            dropped = self.mark_tombstones(&before).await?;
        }
        let addresses = [self.address(halves[0]).await?, self.address(halves[1]).await?];
        let pair_at = self.address(pair).await?;
        let nodes = halves.map(NodeWord::leaf);
        let mut round = self.lane.round();
        for (at, words) in addresses.iter().zip(&copies) {
            round.write_words(*at, words);
        }
        let dead = match leaf.node.node() {
            Node::Leaf(unit) => UnitRange::new(&(u64::from(unit)..u64::from(unit) + geometry.array_units())),
            _ => None,
        };
        let dead = dead.map_or(0, UnitRange::to_bits);
        round.write_words(pair_at, &[0, nodes[0].to_bits(), 0, nodes[1].to_bits(), dead]);
        let node = leaf.object.plus(WORD_BYTES as u64);
        let install = round.compare_swap(node, leaf.node.to_bits(), NodeWord::fork(pair).to_bits());
        round.compare_swap(leaf.object, own.word().to_bits(), own.freed().to_bits());
        let is_installed = self.lane.execute(round).await?.swapped(install);
        self.lane.probe(probes::INSTALLED);
        self.forget(leaf);
        if !is_installed {
            // Another client has taken the lock. It has not seen the new arrays.
            self.spare_all(units);
            return Ok(false);
        }
        let half = |half: usize| Leaf {
            object: pair_at.plus(half as u64 * OBJECT_BYTES),
            lock: LockWord::FREE,
            node: nodes[half],
            array: Some(addresses[half]),
        };
        self.fork(leaf.object, [half(0), half(1)])?;
        for tombstone in dropped {
            self.keep(Block { slot: tombstone, mark: tombstone.marked() }).await;
        }
        Ok(true)
    }

    /// Keeps what a split has taken and does not need.
    fn spare_all(&mut self, units: [u32; 3]) {
        let wanted = split_units(self.shape().geometry);
        units.into_iter().zip(wanted).for_each(|(unit, wanted)| self.spare(unit, wanted));
    }

    pub(super) async fn read_array(&mut self, array: Address, slots: usize) -> Result<Vec<u64>, Stop> {
        let mut round = self.lane.round();
        let read = round.read(array, slots * WORD_BYTES);
        Ok(self.lane.execute(round).await?.words(read).to_vec())
    }

    /// Returns the arrays of both halves. Each slot is at the same place as before, because the
    /// windows of a key do not depend on its leaf. Returns `None` if a block is not the one that
    /// its slot names.
    async fn copies(&mut self, before: &[u64], depth: u32, empty: Slot) -> Result<Option<[Vec<u64>; 2]>, Stop> {
        let mut copies = [vec![empty.to_bits(); before.len()], vec![empty.to_bits(); before.len()]];
        let is_live = |(_, word): &(usize, &u64)| Slot::from_bits(**word).kind() == Kind::Live;
        let live: Vec<(usize, Slot)> =
            before.iter().enumerate().filter(is_live).map(|(at, word)| (at, Slot::from_bits(*word))).collect();
        for some in live.chunks(VERBS) {
            let mut addresses = Vec::with_capacity(some.len());
            for (_, slot) in some {
                addresses.push(self.address(slot.unit()).await?);
            }
            let mut round = self.lane.round();
            let reads: Vec<_> =
                addresses.into_iter().map(|block| round.read(block.plus(AT_IMAGE), HASH_BYTES)).collect();
            let done = self.lane.execute(round).await?;
            for ((at, slot), read) in some.iter().zip(reads) {
                let [word, hash] = [0, 1].map(|word| done.words(read)[word]);
                if word != slot.to_bits() {
                    return Ok(None);
                }
                let half = Hash::from_bits(hash).leaf_bits() >> depth & 1;
                copies[half as usize][*at] = word;
            }
        }
        Ok(Some(copies))
    }

    /// Marks the tombstones of an array, which the copies do not have. Returns them.
    async fn mark_tombstones(&mut self, before: &[u64]) -> Result<Vec<Slot>, Stop> {
        let slots = before.iter().map(|word| Slot::from_bits(*word));
        let tombstones: Vec<Slot> = slots.filter(|slot| slot.kind() == Kind::Tombstone).collect();
        for some in tombstones.chunks(VERBS) {
            let mut marks = Vec::with_capacity(some.len());
            for slot in some {
                marks.push((*slot, self.address(slot.unit()).await?));
            }
            let mut round = self.lane.round();
            for (slot, mark) in marks {
                round.compare_swap(mark, slot.to_bits(), slot.marked());
            }
            self.lane.execute(round).await?;
        }
        Ok(tombstones)
    }
}

/// Returns the units of what a split needs: two arrays and a pair of objects.
fn split_units(geometry: Geometry) -> [u64; 3] {
    [geometry.array_units(), geometry.array_units(), 1]
}

/// Returns the empty slots of the arrays that the holder of a lock makes.
pub(super) fn empty_of(lock: RepairableLock) -> Slot {
    Slot::empty(lock.freed().to_bits())
}
