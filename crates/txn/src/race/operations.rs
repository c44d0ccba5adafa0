//! The operations on a key of a RACE hash table.

use remora_fabric::{Address, Completed, FabricError, ReadHandle, Round, WORD_BYTES};
use remora_index::race::{AT_IMAGE, Class, Content, Kind, Slot, WINDOW_BYTES, WINDOW_SLOTS, Window, decode, encode};

use super::known::{Block, Leaf};
use super::{Operation, Put, too_long};
use crate::error::Stop;
use crate::limits::BACKOFF_NS;

/// The number of blocks of other keys that a round reads beside the one of the key, at most.
pub(super) const CANDIDATES: usize = 4;
/// How often the bound of the pause doubles, of an insert that another one has withdrawn.
const DOUBLINGS: u32 = 6;

/// The slots that the key can have, as they were read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) windows: [Window; 2],
    pub(super) words: [[u64; WINDOW_SLOTS]; 2],
}

impl Seen {
    /// Returns the slots that satisfy a condition, as a bit for each.
    #[inline]
    pub(super) fn bits(&self, is_one: impl Fn(Slot) -> bool) -> u32 {
        let mut bits = 0;
        for (number, word) in self.words.as_flattened().iter().enumerate() {
            bits |= u32::from(is_one(Slot::from_bits(*word))) << number;
        }
        bits
    }

    /// Returns a slot by the number of its bit.
    #[inline]
    pub(super) fn slot(&self, bit: usize) -> Slot {
        Slot::from_bits(self.words.as_flattened()[bit])
    }

    /// Asks in a round for the slots as they are now.
    pub(super) fn ask(&self, array: Address, round: &mut Round<'_>) -> [ReadHandle; 2] {
        let first = |window: Window| array.plus((window.first_slot() * WORD_BYTES) as u64);
        self.windows.map(|window| round.read(first(window), WINDOW_BYTES))
    }

    /// Takes the slots that were asked for.
    pub(super) fn hear(&mut self, done: &Completed<'_>, reads: [ReadHandle; 2]) {
        for (words, read) in self.words.iter_mut().zip(reads) {
            words.copy_from_slice(done.words(read));
        }
    }

    /// Returns the address of a slot of an array by the number of its bit.
    #[inline]
    pub(super) fn at(&self, array: Address, bit: usize) -> Address {
        let slot = self.windows[bit / WINDOW_SLOTS].first_slot() + bit % WINDOW_SLOTS;
        array.plus((slot * WORD_BYTES) as u64)
    }
}

/// Calls `each` with the number of each bit that is set, until it returns false.
#[inline]
fn each_bit(mut bits: u32, mut each: impl FnMut(usize) -> bool) {
    while bits != 0 && each(bits.trailing_zeros() as usize) {
        bits &= bits - 1;
    }
}

/// What a search has found. The leaf was live when it was found.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is returned once for each search, and a box would cost more")]
pub(super) enum Found {
    /// The key is in this slot.
    Here { leaf: Leaf, slot: Slot, at: Address },
    /// The key is in none of these slots.
    Absent { leaf: Leaf, seen: Seen },
    /// The leaf has no array.
    Bare,
}

/// What has become of a slot that was installed when the lock was not the same any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It has taken effect.
    Landed,
    /// It has not, and never will.
    Never,
    /// That cannot be told.
    Unknown,
}

impl Operation<'_> {
    /// Searches the key, and shows its value to `visit` if it is there.
    pub(super) async fn find(&mut self, makes: bool, visit: &mut dyn FnMut(&[u8])) -> Result<Found, Stop> {
        if self.is_native() {
            return self.find_native(makes, visit).await;
        }
        let windows = self.hash.windows(self.shape().geometry.groups);
        loop {
            let Some(leaf) = self.leaf(makes).await? else { return Ok(Found::Bare) };
            let Some(array) = leaf.array else { continue };
            let mut seen = Seen { windows, words: [[0; WINDOW_SLOTS]; 2] };
            self.read_windows(array, &mut seen).await?;
            let (hash, key) = (self.hash, self.key);
            let mut candidates = seen.bits(|slot| slot.may_have(hash));
            let mut found = None;
            let mut is_torn = false;
            loop {
                let mut blocks = [None; CANDIDATES];
                if !self.locate(&seen, &mut candidates, &mut blocks).await? {
                    self.forget(leaf);
                    is_torn = true;
                    break;
                }
                let mut round = self.lane.round();
                let mut reads = [None; CANDIDATES];
                for (block, read) in blocks.iter().zip(&mut reads) {
                    let Some((bit, at)) = *block else { break };
                    let bytes = seen.slot(bit).class().bytes() - AT_IMAGE as usize;
                    *read = Some((bit, round.read(at.plus(AT_IMAGE), bytes)));
                }
                // The slots have been read, so the lock says whether their array was live then.
                let lock = round.read(leaf.object, WORD_BYTES);
                let done = self.lane.execute(round).await?;
                let is_live = done.words(lock)[0] == leaf.lock.to_bits() || mutant!(RaceReadBehindLock);
                if !is_live {
                    is_torn = true;
                    drop(done);
                    self.forget(leaf);
                    break;
                }
                for (bit, read) in reads.iter().flatten() {
                    match decode(seen.slot(*bit), done.words(*read)) {
                        Some((_, Content { key: found_key, value })) if found_key == key => {
                            visit(value);
                            found = Some(*bit);
                        }
                        Some(_) => {}
                        // The slot has changed since, and its block has another use.
                        None => is_torn = true,
                    }
                }
                if found.is_some() || candidates == 0 {
                    break;
                }
            }
            match found {
                Some(bit) => return Ok(Found::Here { leaf, slot: seen.slot(bit), at: seen.at(array, bit) }),
                None if !is_torn => return Ok(Found::Absent { leaf, seen }),
                None => self.again()?,
            }
        }
    }

    pub(super) async fn read_windows(&mut self, array: Address, seen: &mut Seen) -> Result<(), Stop> {
        let mut round = self.lane.round();
        let reads = seen.ask(array, &mut round);
        let done = self.lane.execute(round).await?;
        seen.hear(&done, reads);
        Ok(())
    }

    /// Finds the addresses of the blocks of some slots, and takes these out of `bits`. Returns
    /// false if the catalog had to be read, so that what was seen may be old. It may also come from
    /// an array that was split, and whose memory has another use by now.
    pub(super) async fn locate(
        &mut self,
        seen: &Seen,
        bits: &mut u32,
        blocks: &mut [Option<(usize, Address)>; CANDIDATES],
    ) -> Result<bool, Stop> {
        for block in blocks {
            if *bits == 0 {
                break;
            }
            let bit = bits.trailing_zeros() as usize;
            *bits &= *bits - 1;
            let slot = seen.slot(bit);
            match self.known_block(slot) {
                Some(at) => *block = Some((bit, at)),
                None => {
                    self.read_catalog().await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads the value of the key.
    pub(crate) async fn get(mut self, visit: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        Ok(matches!(self.find(false, visit).await?, Found::Here { .. }))
    }

    /// Changes the value of the key. Returns whether the key was there.
    pub(crate) async fn put(mut self, value: &[u8], how: Put) -> Result<bool, Stop> {
        let Some(class) = Class::for_content(self.key.len(), value.len()) else {
            return Err(too_long(self.key, value));
        };
        if self.key.len() > usize::from(u16::MAX) || value.len() > usize::from(u16::MAX) {
            return Err(too_long(self.key, value));
        }
        if !self.is_native() {
            self.reserve().await?;
        }
        let mut in_hand = None;
        let mut lost = 0;
        loop {
            let found = self.find(how != Put::Update, &mut |_| ()).await?;
            let (is_done, was_there) = match found {
                Found::Here { leaf, slot, at } if how != Put::Insert => {
                    let block = self.block(&mut in_hand, class).await?;
                    (self.replace(leaf, (slot, at), block, Some(value), &mut in_hand).await?, true)
                }
                Found::Here { .. } => (true, true),
                Found::Absent { .. } | Found::Bare if how == Put::Update => (true, false),
                Found::Bare => continue,
                Found::Absent { leaf, mut seen } => {
                    let [one, other] = &seen.words;
                    let Some((window, slot)) = self.hash.free_slot(seen.windows, [one, other]) else {
                        self.split(leaf).await?;
                        continue;
                    };
                    let block = self.block(&mut in_hand, class).await?;
                    let bit = window * WINDOW_SLOTS + slot;
                    (self.insert(leaf, (&mut seen, bit), block, value, &mut in_hand).await?, false)
                }
            };
            if is_done {
                if let Some(block) = in_hand {
                    self.keep(block).await;
                }
                return Ok(was_there);
            }
            self.again()?;
            self.back_off(&mut lost).await;
        }
    }

    /// Deletes the key. Returns whether it was there.
    pub(crate) async fn delete(mut self) -> Result<bool, Stop> {
        if self.is_native() {
            return self.delete_native().await;
        }
        let mut in_hand = None;
        let mut lost = 0;
        loop {
            let Found::Here { leaf, slot, at } = self.find(false, &mut |_| ()).await? else {
                if let Some(block) = in_hand {
                    self.keep(block).await;
                }
                return Ok(false);
            };
            let block = match in_hand.take() {
                Some(block) => block,
                None => self.take_tombstone().await?,
            };
            if self.replace(leaf, (slot, at), block, None, &mut in_hand).await? {
                return Ok(true);
            }
            self.again()?;
            self.back_off(&mut lost).await;
        }
    }

    /// Pauses for a short random time, after another client was faster.
    pub(super) async fn back_off(&self, lost: &mut u32) {
        *lost += 1;
        if *lost > 1 {
            let bound = BACKOFF_NS << (*lost - 2).min(DOUBLINGS);
            self.lane.sleep(self.lane.random() % bound).await;
        }
    }

    /// Returns the block that the operation has in hand, or takes one.
    pub(super) async fn block(&mut self, in_hand: &mut Option<Block>, class: Class) -> Result<Block, Stop> {
        match in_hand.take() {
            Some(block) => Ok(block),
            None => self.take_block(class).await,
        }
    }

    /// Replaces what is in a slot by a block with another value, or by a tombstone. Returns false
    /// if that has not taken effect. Then the block is in hand again.
    async fn replace(
        &mut self,
        leaf: Leaf,
        (old, at): (Slot, Address),
        block: Block,
        value: Option<&[u8]>,
        in_hand: &mut Option<Block>,
    ) -> Result<bool, Stop> {
        if self.is_native() {
            return self.replace_native((old, at), block, value.unwrap_or_default(), in_hand).await;
        }
        let new = if value.is_some() { block.slot } else { block.slot.tombstone() };
        let marks = self.has_marks();
        let block_at = self.address(new.unit()).await?;
        let old_at = self.address(old.unit()).await?;
        if let Some(value) = value {
            self.encode(new, value);
        }
        let mut round = self.lane.round();
        if value.is_some() {
            round.write_words(block_at.plus(AT_IMAGE), &self.state.races[self.table].words);
        }
        if marks {
            round.compare_swap(block_at, block.mark, new.to_bits());
            round.compare_swap(old_at, old.to_bits(), old.marked());
        }
        let swap = round.compare_swap(at, old.to_bits(), new.to_bits());
        let lock = round.read(leaf.object, WORD_BYTES);
        let (is_installed, lock) = match self.lane.execute(round).await {
            Ok(done) => (done.swapped(swap), done.words(lock)[0]),
            Err(error) => return Err(self.lost(error)),
        };
        let mark = if marks { new.to_bits() } else { block.mark };
        if !is_installed {
            *in_hand = Some(Block { mark, ..block });
            return Ok(false);
        }
        if lock != leaf.lock.to_bits() && !mutant!(RaceUnchecked) {
            match self.fate(leaf, new).await? {
                Fate::Landed => {}
                Fate::Never => {
                    *in_hand = self.next_use(Block { slot: new, mark });
                    return Ok(false);
                }
                Fate::Unknown => return Err(self.unknown()),
            }
        }
        self.keep(Block { slot: old, mark: if marks { old.marked() } else { 0 } }).await;
        Ok(true)
    }

    /// Inserts the key into a free slot. Returns false if that has not taken effect. Then the block
    /// is in hand again.
    async fn insert(
        &mut self,
        leaf: Leaf,
        (seen, bit): (&mut Seen, usize),
        block: Block,
        value: &[u8],
        in_hand: &mut Option<Block>,
    ) -> Result<bool, Stop> {
        let Some(array) = leaf.array else { return Ok(false) };
        if self.is_native() {
            return self.insert_native(array, (seen, bit), block, value, in_hand).await;
        }
        let (free, at, new) = (seen.slot(bit), seen.at(array, bit), block.slot);
        let marks = self.has_marks();
        let is_tombstone = free.kind() == Kind::Tombstone;
        let block_at = self.address(new.unit()).await?;
        let tombstone_at = if is_tombstone { Some(self.address(free.unit()).await?) } else { None };
        self.encode(new, value);
        let taken = if mutant!(RaceInsertAtOnce) { new } else { new.pending() };
        let mut round = self.lane.round();
        round.write_words(block_at.plus(AT_IMAGE), &self.state.races[self.table].words);
        if marks {
            round.compare_swap(block_at, block.mark, new.to_bits());
            tombstone_at.inspect(|at| _ = round.compare_swap(*at, free.to_bits(), free.marked()));
        }
        let swap = round.compare_swap(at, free.to_bits(), taken.to_bits());
        let reads = seen.ask(array, &mut round);
        let lock = mutant!(RaceInsertAtOnce).then(|| round.read(leaf.object, WORD_BYTES));
        let done = match self.lane.execute(round).await {
            Ok(done) => done,
            Err(error) => return Err(self.lost(error)),
        };
        seen.hear(&done, reads);
        let is_taken = done.swapped(swap);
        let early = lock.map(|lock| done.words(lock)[0]);
        drop(done);
        let mark = if marks { new.to_bits() } else { block.mark };
        if !is_taken {
            *in_hand = Some(Block { mark, ..block });
            return Ok(false);
        }
        let mut now = early.unwrap_or_default();
        if early.is_none() {
            if !self.is_alone(leaf, array, seen, bit).await? {
                let mut round = self.lane.round();
                round.compare_swap(at, taken.to_bits(), new.withdrawn().to_bits());
                self.lane.execute(round).await?;
                *in_hand = self.next_use(Block { slot: new, mark });
                return Ok(false);
            }
            let mut round = self.lane.round();
            let swap = round.compare_swap(at, taken.to_bits(), new.to_bits());
            let lock = round.read(leaf.object, WORD_BYTES);
            let is_live = match self.lane.execute(round).await {
                Ok(done) => {
                    now = done.words(lock)[0];
                    done.swapped(swap)
                }
                Err(error) => return Err(self.lost(error)),
            };
            if !is_live {
                // Another insert of the key has withdrawn this one.
                *in_hand = self.next_use(Block { slot: new, mark });
                return Ok(false);
            }
        }
        if now == leaf.lock.to_bits() || mutant!(RaceUnchecked) {
            if is_tombstone {
                self.keep(Block { slot: free, mark: if marks { free.marked() } else { 0 } }).await;
            }
            return Ok(true);
        }
        // If the tombstone was in the way of a rehash, that client may own its block.
        match self.fate(leaf, new).await? {
            Fate::Landed => Ok(true),
            Fate::Never => {
                *in_hand = self.next_use(Block { slot: new, mark });
                Ok(false)
            }
            Fate::Unknown => Err(self.unknown()),
        }
    }

    /// Makes sure that no other slot has the key, or will get it, as long as the slot of an insert
    /// stays pending. Returns false if the key is there, or the array may not be live any more.
    async fn is_alone(&mut self, leaf: Leaf, array: Address, seen: &mut Seen, own: usize) -> Result<bool, Stop> {
        let (hash, key) = (self.hash, self.key);
        loop {
            let others = seen.bits(|slot| slot.may_have(hash) || slot.may_get(hash)) & !(1 << own);
            if others == 0 {
                return Ok(true);
            }
            let (mut left, mut is_torn, mut is_there) = (others, false, false);
            let mut rivals = 0u32;
            while left != 0 {
                let mut blocks = [None; CANDIDATES];
                if !self.locate(seen, &mut left, &mut blocks).await? {
                    is_torn = true;
                    break;
                }
                let mut round = self.lane.round();
                let reads: [Option<(usize, ReadHandle)>; CANDIDATES] = blocks.map(|block| {
                    let (bit, at) = block?;
                    let bytes = seen.slot(bit).class().bytes() - AT_IMAGE as usize;
                    Some((bit, round.read(at.plus(AT_IMAGE), bytes)))
                });
                let lock = round.read(leaf.object, WORD_BYTES);
                let done = self.lane.execute(round).await?;
                if done.words(lock)[0] != leaf.lock.to_bits() {
                    drop(done);
                    self.forget(leaf);
                    return Ok(false);
                }
                for (bit, read) in reads.iter().flatten() {
                    let slot = seen.slot(*bit);
                    match decode(slot.live(), done.words(*read)) {
                        Some((_, found)) if found.key == key => {
                            if slot.may_have(hash) {
                                is_there = true;
                            } else {
                                rivals |= 1 << bit;
                            }
                        }
                        Some(_) => {}
                        None => is_torn = true,
                    }
                }
            }
            if is_there {
                return Ok(false);
            }
            if rivals == 0 && !is_torn {
                return Ok(true);
            }
            // The rivals are withdrawn. Then all slots are read again: one of the rivals may have
            // become live before.
            let known = |unit| self.known_address(unit);
            let mut round = self.lane.round();
            each_bit(rivals, |bit| {
                let slot = seen.slot(bit);
                if mutant!(RaceMarkPending)
                    && let Some(at) = known(slot.unit())
                {
                    round.compare_swap(at, slot.live().to_bits(), slot.live().marked());
                }
                round.compare_swap(seen.at(array, bit), slot.to_bits(), slot.withdrawn().to_bits());
                true
            });
            let reads = seen.ask(array, &mut round);
            let done = self.lane.execute(round).await?;
            seen.hear(&done, reads);
            drop(done);
            self.again()?;
        }
    }

    /// Finds out whether a slot has taken effect that the operation has installed in an array which
    /// may have been dead by then.
    async fn fate(&mut self, leaf: Leaf, installed: Slot) -> Result<Fate, Stop> {
        self.forget(leaf);
        match self.search(installed).await {
            Err(Stop::Abort(_)) => Ok(Fate::Unknown),
            Err(stop) => {
                tracing::warn!(%stop, "it is not known whether an operation has taken effect");
                Err(self.unknown())
            }
            found => found,
        }
    }

    async fn search(&mut self, installed: Slot) -> Result<Fate, Stop> {
        let windows = self.hash.windows(self.shape().geometry.groups);
        let mark_at = self.address(installed.unit()).await?;
        loop {
            let Some(leaf) = self.leaf(false).await? else { return Ok(Fate::Unknown) };
            let Some(array) = leaf.array else { continue };
            let mut seen = Seen { windows, words: [[0; WINDOW_SLOTS]; 2] };
            self.read_windows(array, &mut seen).await?;
            let mut round = self.lane.round();
            let (mark, lock) = (round.read(mark_at, WORD_BYTES), round.read(leaf.object, WORD_BYTES));
            let done = self.lane.execute(round).await?;
            let [mark, lock] = [mark, lock].map(|read| done.words(read)[0]);
            drop(done);
            if lock != leaf.lock.to_bits() {
                self.forget(leaf);
                self.again()?;
                continue;
            }
            let is_there = seen.bits(|slot| slot == installed) != 0;
            return Ok(match (is_there, self.has_marks()) {
                (true, _) => Fate::Landed,
                _ if mutant!(RaceRedoAbsent) => Fate::Never,
                (false, false) => Fate::Unknown,
                (false, true) if mark == installed.to_bits() => Fate::Never,
                (false, true) => Fate::Landed,
            });
        }
    }

    /// Returns the next use of a block whose last use was in a slot in vain. `None` if the block is
    /// retired.
    pub(super) fn next_use(&self, block: Block) -> Option<Block> {
        Some(Block { slot: block.slot.next_use(self.hash)?, ..block })
    }

    pub(super) fn encode(&mut self, slot: Slot, value: &[u8]) {
        let (hash, key) = (self.hash, self.key);
        encode(slot, hash, Content { key, value }, &mut self.own().words);
    }

    /// Returns the error of an operation that may have taken effect.
    #[cold]
    fn unknown(&mut self) -> Stop {
        self.state.unknown()
    }

    /// Returns the error of an operation whose answer was lost.
    #[cold]
    pub(super) fn lost(&mut self, error: FabricError) -> Stop {
        tracing::warn!(%error, "the answer to an operation was lost: its outcome is unknown");
        self.unknown()
    }
}
