//! Native RACE hash tables: what the paper rTX calls *Optimal*, as a bound for what transactions
//! cost. **A client that dies leaves its locks and half of what it did, and nothing repairs that.**
//! Only the study `native` has such tables.
//!
//! ```text
//! get     1  READ both windows of the key
//!         2  READ the blocks whose fingerprints fit, if any          -> found, or absent
//!
//! update: as get, and then
//!         3  WRITE the block; CAS slot, found -> new                 -> done
//!
//! delete: as get, and then
//!         3  CAS slot, found -> withdrawn                            -> done
//!
//! insert: as get, and then
//!         3  WRITE the block; CAS slot, free -> live; READ both windows
//!                                                                    -> done, if it is alone
//! ```
//!
//! No operation looks at a lock. A group has a header, which says which keys its array has. An
//! insert that meets another live slot of its key behind its CAS withdraws its own one, and tries
//! again. So for a moment a key may have two values, of which one goes.
//!
//! # A rehash
//!
//! ```text
//! 1  CAS lock, free -> this attempt
//! 2  WRITE an array for the second half of the keys; CAS headers -> moving
//! 3  READ the array; READ the hashes of all blocks
//! 4  CAS slot of the new array, empty -> pair; CAS slot of the old one, pair -> withdrawn
//!    3 and 4 again, until no pair is left that belongs to the second half
//! 5  CAS headers -> the first half; WRITE a pair of objects;
//!    CAS node, leaf -> fork; CAS unlock                                -> done
//! ```
//!
//! The old array stays the one of the first half, whose keys are never kept waiting. A key of the
//! second half is live as long as the old array has it. A client that does not find it there waits
//! for step 5.
//!
//! *Why no change is lost.* Words never recur in a slot. So a client that changes a pair in the old
//! array makes the second CAS of step 4 fail, or fails itself. In the first case the pair is read
//! again. An insert that lands after step 3 reads a header that was changed before step 3. It
//! withdraws its slot, or finds that the pair was moved.

use std::collections::{HashMap, HashSet};

use remora_fabric::{Address, WORD_BYTES};
use remora_index::race::{AT_IMAGE, Hash, Header, Keys, Kind, NodeWord, OBJECT_BYTES, Slot, WINDOW_SLOTS, decode};
use remora_record::LockWord;

use super::Operation;
use super::known::{Block, Leaf};
use super::operations::{CANDIDATES, Found, Seen};
use super::tree::{HASH_BYTES, VERBS, empty_of};
use crate::error::Stop;
use crate::limits::READ_PAUSE_NS;

impl Seen {
    /// Returns what the array has of the keys with a hash.
    fn keys(&self, hash: Hash) -> Keys {
        let header = Header::from_bits(self.words[0][self.windows[0].header()]);
        let other = Header::from_bits(self.words[1][self.windows[1].header()]);
        match (header.keys(hash), other.keys(hash)) {
            (one, other) if one == other => one,
            // The headers of an array change one after the other.
            (Keys::None, _) | (_, Keys::None) => Keys::None,
            _ => Keys::Moving,
        }
    }
}

impl Operation<'_> {
    /// Searches the key in a native table, and shows its value to `visit` if it is there.
    pub(super) async fn find_native(&mut self, makes: bool, visit: &mut dyn FnMut(&[u8])) -> Result<Found, Stop> {
        let windows = self.hash.windows(self.shape().geometry.groups);
        loop {
            let Some(leaf) = self.leaf(makes).await? else { return Ok(Found::Bare) };
            let Some(array) = leaf.array else { continue };
            let mut seen = Seen { windows, words: [[0; WINDOW_SLOTS]; 2] };
            self.read_windows(array, &mut seen).await?;
            let keys = seen.keys(self.hash);
            let (found, is_torn) = if keys == Keys::None { (None, false) } else { self.look(&seen, 0, visit).await? };
            match (found, keys) {
                (Some(bit), _) => return Ok(Found::Here { leaf, slot: seen.slot(bit), at: seen.at(array, bit) }),
                (None, Keys::All) if !is_torn => return Ok(Found::Absent { leaf, seen }),
                (None, Keys::All) => {}
                (None, _) => {
                    self.forget(leaf);
                    self.lane.sleep(READ_PAUSE_NS).await;
                }
            }
            self.again()?;
        }
    }

    /// Reads the blocks of the slots that may have the key, except one of these slots, whose bit is
    /// set in `but`. Returns the slot that has the key, and whether a slot has changed meanwhile.
    async fn look(
        &mut self,
        seen: &Seen,
        but: u32,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(Option<usize>, bool), Stop> {
        let (hash, key) = (self.hash, self.key);
        let mut candidates = seen.bits(|slot| slot.may_have(hash)) & !but;
        let (mut found, mut is_torn) = (None, false);
        while candidates != 0 && found.is_none() {
            let mut blocks = [None; CANDIDATES];
            if !self.locate(seen, &mut candidates, &mut blocks).await? {
                return Ok((None, true));
            }
            let mut round = self.lane.round();
            let reads = blocks.map(|block| {
                let (bit, at) = block?;
                let bytes = seen.slot(bit).class().bytes() - AT_IMAGE as usize;
                Some((bit, round.read(at.plus(AT_IMAGE), bytes)))
            });
            let done = self.lane.execute(round).await?;
            for (bit, read) in reads.iter().flatten() {
                match decode(seen.slot(*bit), done.words(*read)) {
                    Some((_, content)) if content.key == key => {
                        visit(content.value);
                        found = Some(*bit);
                    }
                    Some(_) => {}
                    None => is_torn = true,
                }
            }
        }
        Ok((found, is_torn))
    }

    /// Replaces what is in a slot by a block with another value. Returns false if another client
    /// was faster. Then the block is in hand again.
    pub(super) async fn replace_native(
        &mut self,
        (old, at): (Slot, Address),
        block: Block,
        value: &[u8],
        in_hand: &mut Option<Block>,
    ) -> Result<bool, Stop> {
        let block_at = self.address(block.slot.unit()).await?;
        self.encode(block.slot, value);
        let mut round = self.lane.round();
        round.write_words(block_at.plus(AT_IMAGE), &self.state.races[self.table].words);
        let swap = round.compare_swap(at, old.to_bits(), block.slot.to_bits());
        let is_installed = match self.lane.execute(round).await {
            Ok(done) => done.swapped(swap),
            Err(error) => return Err(self.lost(error)),
        };
        if is_installed {
            self.keep(Block { slot: old, mark: 0 }).await;
        } else {
            *in_hand = Some(block);
        }
        Ok(is_installed)
    }

    /// Deletes the key. Returns whether it was there.
    pub(super) async fn delete_native(&mut self) -> Result<bool, Stop> {
        let mut lost = 0;
        loop {
            let Found::Here { slot, at, .. } = self.find(false, &mut |_| ()).await? else { return Ok(false) };
            let mut round = self.lane.round();
            let swap = round.compare_swap(at, slot.to_bits(), slot.withdrawn().to_bits());
            let is_deleted = match self.lane.execute(round).await {
                Ok(done) => done.swapped(swap),
                Err(error) => return Err(self.lost(error)),
            };
            if is_deleted {
                self.keep(Block { slot, mark: 0 }).await;
                return Ok(true);
            }
            self.again()?;
            self.back_off(&mut lost).await;
        }
    }

    /// Inserts the key into a free slot. Returns false if that has not taken effect. Then the block
    /// is in hand again.
    pub(super) async fn insert_native(
        &mut self,
        array: Address,
        (seen, bit): (&mut Seen, usize),
        block: Block,
        value: &[u8],
        in_hand: &mut Option<Block>,
    ) -> Result<bool, Stop> {
        let (free, at, new) = (seen.slot(bit), seen.at(array, bit), block.slot);
        let block_at = self.address(new.unit()).await?;
        self.encode(new, value);
        let mut round = self.lane.round();
        round.write_words(block_at.plus(AT_IMAGE), &self.state.races[self.table].words);
        let swap = round.compare_swap(at, free.to_bits(), new.to_bits());
        let reads = seen.ask(array, &mut round);
        let done = match self.lane.execute(round).await {
            Ok(done) => done,
            Err(error) => return Err(self.lost(error)),
        };
        if !done.swapped(swap) {
            drop(done);
            *in_hand = Some(block);
            return Ok(false);
        }
        seen.hear(&done, reads);
        drop(done);
        let is_alone = match seen.keys(self.hash) {
            Keys::All => matches!(self.look(seen, 1 << bit, &mut |_| ()).await?, (None, false)),
            Keys::Moving | Keys::None => false,
        };
        if is_alone {
            return Ok(true);
        }
        let mut round = self.lane.round();
        let undo = round.compare_swap(at, new.to_bits(), new.withdrawn().to_bits());
        let is_undone = match self.lane.execute(round).await {
            Ok(done) => done.swapped(undo),
            Err(error) => return Err(self.lost(error)),
        };
        if is_undone {
            *in_hand = self.next_use(block);
        }
        // If the slot has changed, a rehash has moved it, or another client has found it live.
        Ok(!is_undone)
    }

    /// Adds headers to the empty array that the session is about to write, if the table is native.
    pub(super) fn add_headers(&mut self, words: &mut [u64]) {
        if !self.is_native() {
            return;
        }
        let (groups, bits) = (self.shape().geometry.groups, self.hash.leaf_bits());
        let directory = &self.part().directory;
        let header = Header::new(directory.depth_of(directory.find(bits)), bits);
        Header::slots(groups).for_each(|slot| words[slot] = header.to_bits());
    }

    /// Splits a full leaf of a native table in two. Returns false if another client has been
    /// faster.
    pub(super) async fn split_native(&mut self, leaf: Leaf) -> Result<bool, Stop> {
        let geometry = self.shape().geometry;
        let bits = self.hash.leaf_bits();
        let Some((old, depth)) = self.splittable(leaf)? else { return Ok(false) };
        let wanted = geometry.array_units() + 1;
        let units = self.take_array(wanted).await?;
        let pair = units + geometry.array_units() as u32;
        let (new, pair_at) = (self.address(units).await?, self.address(pair).await?);
        let own = self.next_lock()?;
        let mut round = self.lane.round();
        let swap = round.compare_swap(leaf.object, leaf.lock.to_bits(), own.word().to_bits());
        if !self.lane.execute(round).await?.swapped(swap) {
            self.forget(leaf);
            self.again()?;
            self.spare(units, wanted);
            return Ok(false);
        }
        let [whole, first, second] = [
            Header::new(depth, bits),
            Header::new(depth + 1, bits & ((1 << depth) - 1)),
            Header::new(depth + 1, bits | 1 << depth),
        ];
        let mut image = vec![empty_of(own).to_bits(); geometry.array_slots()];
        Header::slots(geometry.groups).for_each(|slot| image[slot] = second.to_bits());
        let mut round = self.lane.round();
        round.write_words(new, &image);
        self.lane.execute(round).await?;
        self.swap_headers(old, whole, first.moving()).await?;
        self.move_pairs((old, new), &mut image, depth).await?;
        self.swap_headers(old, first.moving(), first).await?;
        let nodes = [leaf.node, NodeWord::leaf(units)];
        let mut round = self.lane.round();
        round.write_words(pair_at, &[0, nodes[0].to_bits(), 0, nodes[1].to_bits()]);
        let node = leaf.object.plus(WORD_BYTES as u64);
        round.compare_swap(node, leaf.node.to_bits(), NodeWord::fork(pair).to_bits());
        round.compare_swap(leaf.object, own.word().to_bits(), own.freed().to_bits());
        self.lane.execute(round).await?;
        self.forget(leaf);
        let half = |half: usize| Leaf {
            object: pair_at.plus(half as u64 * OBJECT_BYTES),
            lock: LockWord::FREE,
            node: nodes[half],
            array: Some([old, new][half]),
        };
        self.fork(leaf.object, [half(0), half(1)])?;
        Ok(true)
    }

    async fn swap_headers(&mut self, array: Address, from: Header, to: Header) -> Result<(), Stop> {
        let slots: Vec<usize> = Header::slots(self.shape().geometry.groups).collect();
        for some in slots.chunks(VERBS) {
            let mut round = self.lane.round();
            for slot in some {
                round.compare_swap(array.plus((slot * WORD_BYTES) as u64), from.to_bits(), to.to_bits());
            }
            self.lane.execute(round).await?;
        }
        Ok(())
    }

    /// Moves the pairs of the second half from the old array to the new one, whose words are in
    /// `image`.
    async fn move_pairs(&mut self, (old, new): (Address, Address), image: &mut [u64], depth: u32) -> Result<(), Stop> {
        let at = |array: Address, slot: usize| array.plus((slot * WORD_BYTES) as u64);
        // Pairs that stay, and slots of the new array whose pairs have changed while they moved.
        let (mut stays, mut changed) = (HashSet::new(), HashMap::new());
        loop {
            let words = self.read_array(old, image.len()).await?;
            let live = |(_, word): &(usize, &u64)| Slot::from_bits(**word).kind() == Kind::Live;
            let live: Vec<(usize, u64)> = words.iter().enumerate().filter(live).map(|(at, word)| (at, *word)).collect();
            let (mut moves, mut is_torn) = (Vec::new(), false);
            let unknown: Vec<_> = live.into_iter().filter(|(_, word)| !stays.contains(word)).collect();
            for some in unknown.chunks(VERBS) {
                let mut blocks = Vec::with_capacity(some.len());
                for (_, word) in some {
                    blocks.push(self.address(Slot::from_bits(*word).unit()).await?);
                }
                let mut round = self.lane.round();
                let reads: Vec<_> =
                    blocks.into_iter().map(|block| round.read(block.plus(AT_IMAGE), HASH_BYTES)).collect();
                let done = self.lane.execute(round).await?;
                for ((slot, word), read) in some.iter().zip(reads) {
                    let [found, hash] = [0, 1].map(|word| done.words(read)[word]);
                    if found != *word {
                        is_torn = true;
                    } else if Hash::from_bits(hash).leaf_bits() >> depth & 1 == 0 {
                        stays.insert(*word);
                    } else {
                        moves.push((*slot, *word));
                    }
                }
            }
            let is_over = moves.is_empty() && !is_torn;
            for some in moves.chunks(VERBS / 2) {
                let mut round = self.lane.round();
                let swaps: Vec<_> = some
                    .iter()
                    .map(|(slot, word)| {
                        round.compare_swap(at(new, *slot), image[*slot], *word);
                        round.compare_swap(at(old, *slot), *word, Slot::from_bits(*word).withdrawn().to_bits())
                    })
                    .collect();
                let done = self.lane.execute(round).await?;
                for ((slot, word), swap) in some.iter().zip(swaps) {
                    image[*slot] = *word;
                    if done.swapped(swap) {
                        changed.remove(slot);
                    } else {
                        changed.insert(*slot, *word);
                    }
                }
            }
            if !is_over {
                continue;
            }
            // These pairs were deleted while they moved.
            for (slot, word) in changed {
                let mut round = self.lane.round();
                round.compare_swap(at(new, slot), word, Slot::from_bits(word).withdrawn().to_bits());
                self.lane.execute(round).await?;
            }
            return Ok(());
        }
    }
}
