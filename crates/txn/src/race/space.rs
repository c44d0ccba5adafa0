//! The space of a RACE hash table: extents, which are entries of the catalog, and the units that a
//! session has in hand.
//!
//! A table begins with one extent. When the last extent is given out, a client creates the next
//! one, which is as large as all before together. So the table grows as long as the memory nodes
//! have room, and a table of n units has about log n extents. An extent has the same number of
//! shards as the others, at the same memory nodes.

use std::ops::Range;

use remora_fabric::{Address, Lane, NodeId, NodeSet, WORD_BYTES};
use remora_index::race::{AT_GIVEN, AT_IMAGE, AT_RECLAIMED, CLASSES, Class, Geometry, Slot, UNIT_BYTES, UnitRange};
use remora_node::{MemoryError, Metadata, metadata};

use super::Operation;
use super::known::{Block, Race, address_of, read};
use crate::error::{Limit, Stop};
use crate::limits::READ_PAUSE_NS;

/// The largest number of units that a session takes at a time, and the share of an extent.
const TAKEN_MAX: u64 = 1024;
const TAKEN_SHARE: u64 = 64;
/// The bytes of blocks of a class that a session keeps. It returns half of more.
const KEPT_BYTES: usize = 256 << 10;
/// The smallest extent that is worth an entry of the catalog, in units.
const UNITS_MIN: u64 = 1024;
/// The largest number of units of a table, which slots have bits for.
const UNITS_MAX: u64 = 1 << 32;
/// The pause before the catalog is read again, which another client changes.
const CATALOG_PAUSE_NS: u64 = 100_000;
/// How often the catalog is read again before the operation gives up: for about ten seconds.
const CATALOG_LOOKS: u32 = 100_000;

impl Operation<'_> {
    /// Returns the address of a unit. Learns of extents that other clients have created, if it
    /// must.
    pub(super) async fn address(&mut self, unit: u32) -> Result<Address, Stop> {
        let mut looks = 0;
        loop {
            if let Some(at) = self.known_address(unit) {
                return Ok(at);
            }
            // What names the unit was written after the catalog.
            self.read_catalog().await?;
            looks += 1;
            if looks > 2 && self.known_address(unit).is_none() {
                self.again()?;
            }
        }
    }

    /// Returns the address of a unit, if the session knows its extent.
    #[inline]
    pub(super) fn known_address(&self, unit: u32) -> Option<Address> {
        address_of(&self.state.races[self.table].extents, self.part, unit)
    }

    /// Returns the address of a slot's block, if all of it is in an extent that the session knows.
    #[inline]
    pub(super) fn known_block(&self, slot: Slot) -> Option<Address> {
        let first = self.known_address(slot.unit())?;
        let within = slot.class().bytes() as u64 - UNIT_BYTES;
        let last = slot.unit().checked_add(slot.class().units() as u32 - 1)?;
        (self.known_address(last)? == first.plus(within)).then_some(first)
    }

    /// Reads the extents from the catalog.
    pub(super) async fn read_catalog(&mut self) -> Result<(), Stop> {
        let metadata = metadata::read(self.lane, self.state.nodes.leader()).await?;
        self.follow(&metadata);
        Ok(())
    }

    fn follow(&mut self, metadata: &Metadata) {
        let own = self.own();
        let Race { name, born, extents, .. } = &*own.race;
        let Some((_, _, read)) = read(metadata, name).filter(|(found, ..)| found == born) else { return };
        let mut known = extents.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if read.len() > known.len() {
            *known = read.into();
        }
        let known = known.clone();
        own.extents = known;
    }

    /// Keeps units for arrays. No other client has seen them.
    pub(super) fn spare(&mut self, first: u32, units: u64) {
        self.part().pool.spare.push((first, units));
    }

    /// Takes units for an array or a pair, one behind the other. They need not be zero.
    pub(super) async fn take_array(&mut self, units: u64) -> Result<u32, Stop> {
        let spare = &mut self.part().pool.spare;
        match spare.iter().position(|(_, count)| *count == units) {
            Some(at) => Ok(spare.swap_remove(at).0),
            None => self.take_units(units).await,
        }
    }

    /// Asks for units once, if the session has fewer in hand. What it gets may be less.
    pub(super) async fn have_units(&mut self, units: u64) -> Result<(), Stop> {
        let pool = &self.part().pool;
        if pool.spare.is_empty() && pool.fresh.end - pool.fresh.start < units {
            self.ask_for_units(units).await?;
        }
        Ok(())
    }

    /// Takes units that no operation has seen in use, one behind the other. Their first words are
    /// 0.
    async fn take_units(&mut self, units: u64) -> Result<u32, Stop> {
        loop {
            let fresh = &mut self.part().pool.fresh;
            if fresh.end - fresh.start >= units {
                let first = fresh.start;
                fresh.start += units;
                return Ok(first as u32);
            }
            self.ask_for_units(units).await?;
        }
    }

    /// Asks the last extent for units. Makes another extent, if the last one is given out.
    async fn ask_for_units(&mut self, units: u64) -> Result<(), Stop> {
        let part = self.part;
        let Some(last) = self.own().extents.last().cloned() else { return Err(Limit::NodesFull { slots: 0 }.into()) };
        let wanted = units.max(TAKEN_MAX.min(last.units / TAKEN_SHARE));
        let mut round = self.lane.round();
        let add = round.fetch_add(last.shards[part].plus(AT_GIVEN), wanted);
        let given = self.lane.execute(round).await?.added(add);
        if given < last.units {
            self.take_fresh(last.first + given..last.first + (given + wanted).min(last.units));
            return Ok(());
        }
        match self.take_reclaimed(wanted).await? {
            true => Ok(()),
            false => self.grow().await,
        }
    }

    /// Takes units that were reclaimed. Returns false if there are none.
    async fn take_reclaimed(&mut self, wanted: u64) -> Result<bool, Stop> {
        let list = self.state.races[self.table].extents[0].shards[self.part].plus(AT_RECLAIMED);
        let least = self.shape().geometry.units_together_max();
        loop {
            let mut round = self.lane.round();
            let read = round.read(list, WORD_BYTES);
            let head = self.lane.execute(round).await?.words(read)[0];
            let Some(units) = UnitRange::from_bits(head).map(UnitRange::units) else { return Ok(false) };
            // What is left must be enough for any purpose.
            let is_all = units.end - units.start < wanted + least;
            let end = if is_all { units.end } else { units.start + wanted };
            let next = if is_all {
                let last = self.address((units.end - 1) as u32).await?;
                let mut round = self.lane.round();
                let read = round.read(last.plus(AT_IMAGE), WORD_BYTES);
                self.lane.execute(round).await?.words(read)[0]
            } else {
                UnitRange::new(&(end..units.end)).map_or(0, UnitRange::to_bits)
            };
            let mut round = self.lane.round();
            let swap = round.compare_swap(list, head, next);
            if self.lane.execute(round).await?.swapped(swap) {
                self.take_fresh(units.start..end);
                return Ok(true);
            }
            self.lane.sleep(READ_PAUSE_NS).await;
        }
    }

    /// Takes units that the session owns now, and whose first words are 0.
    fn take_fresh(&mut self, taken: Range<u64>) {
        // A block lies in one extent.
        let begins_extent = self.own().extents.iter().any(|extent| extent.first == taken.start);
        let pool = &mut self.part().pool;
        if pool.fresh.end == taken.start && !begins_extent {
            pool.fresh.end = taken.end;
        } else {
            pool.cut();
            pool.fresh = taken;
        }
    }

    /// Makes the table larger by an extent, unless another client has done so.
    #[cold]
    async fn grow(&mut self) -> Result<(), Stop> {
        let known = self.own().extents.len();
        let Some(last) = self.own().extents.last().cloned() else { return Err(Limit::NodesFull { slots: 0 }.into()) };
        let before = last.first + last.units;
        let places: NodeSet = self.own().extents[0].shards.iter().map(|at| at.node).collect();
        let first = self.own().extents[0].shards.first().map_or(NodeId(0), |at| at.node);
        let mut units = before.min(UNITS_MAX - before);
        for _ in 0..CATALOG_LOOKS {
            self.read_catalog().await?;
            if self.own().extents.len() > known {
                return Ok(());
            }
            let own = self.own();
            let spec = own.shape.spec(&own.race.name, known, units)?;
            let (nodes, owner) = (self.state.nodes, self.state.owner());
            match metadata::create_table(self.lane, nodes, places, owner, spec, first).await {
                Ok((_, metadata)) => self.follow(&metadata),
                // Another client has been faster, or is.
                Err(MemoryError::TableExists(_)) => {}
                Err(MemoryError::CatalogLocked(_)) => self.lane.sleep(CATALOG_PAUSE_NS).await,
                Err(MemoryError::OutOfMemory { .. }) if units / 2 >= UNITS_MIN => units /= 2,
                Err(MemoryError::OutOfMemory { .. } | MemoryError::Limit { .. }) => {
                    return Err(Limit::NodesFull { slots: before }.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(crate::error::Abort::Changed.into())
    }

    /// Takes a block of a class, with the slot of its last use.
    pub(super) async fn take_block(&mut self, class: Class) -> Result<Block, Stop> {
        let hash = self.hash;
        loop {
            let pool = &mut self.part().pool;
            while let Some(block) = pool.free[class.number()].pop() {
                // A block whose uses are used up is dropped here: it is retired.
                if let Some(slot) = block.slot.next_use(hash) {
                    return Ok(Block { slot, ..block });
                }
            }
            let is_left = pool.fresh.end - pool.fresh.start >= class.units();
            if !is_left && self.take_returned(class).await? {
                continue;
            }
            match self.take_units(class.units()).await {
                Ok(unit) => self.part().pool.put(Block { slot: Slot::unused(unit, class), mark: 0 }),
                Err(full) if matches!(full, Stop::Limit(Limit::NodesFull { .. })) => {
                    self.cut_larger(class, full).await?
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Makes blocks of a class of a larger one that the session has in hand, or that was returned.
    /// Fails with `full` if there is none.
    #[cold]
    async fn cut_larger(&mut self, class: Class, full: Stop) -> Result<(), Stop> {
        let larger = class.number() + 1..CLASSES;
        for one in larger.clone().filter_map(Class::new) {
            if self.part().pool.free[larger.clone()].iter().any(|free| !free.is_empty()) {
                break;
            }
            self.take_returned(one).await?;
        }
        let larger = &mut self.part().pool.free[larger];
        let Some(block) = larger.iter_mut().find_map(Vec::pop) else { return Err(full) };
        let units = class.units()..block.slot.class().units();
        self.part().pool.put(Block { slot: block.slot.cut_to(class), ..block });
        // The other pieces have not been blocks before. Their marks are what the block had there.
        for piece in units.step_by(class.units() as usize).filter(|piece| piece + class.units() <= block_units(block)) {
            let unit = block.slot.unit() + piece as u32;
            let at = self.address(unit).await?;
            let mut round = self.lane.round();
            let read = round.read(at, WORD_BYTES);
            let mark = self.lane.execute(round).await?.words(read)[0];
            self.part().pool.put(Block { slot: Slot::unused(unit, class), mark });
        }
        Ok(())
    }

    /// Takes a block for a tombstone.
    pub(super) async fn take_tombstone(&mut self) -> Result<Block, Stop> {
        match self.take_block(Class::SMALLEST).await {
            Err(full) if matches!(full, Stop::Limit(Limit::NodesFull { .. })) => {
                let hash = self.hash;
                let reserve = self.part().pool.reserve.take().ok_or(full)?;
                let slot = reserve.slot.next_use(hash);
                slot.map(|slot| Block { slot, ..reserve }).ok_or(full)
            }
            taken => taken,
        }
    }

    /// Makes sure that the session has a block for a tombstone.
    pub(super) async fn reserve(&mut self) -> Result<(), Stop> {
        if self.part().pool.reserve.is_none() {
            let block = self.take_block(Class::SMALLEST).await?;
            self.part().pool.reserve = Some(block);
        }
        Ok(())
    }

    /// Keeps a block that the session has got. Returns some to the shard, if it has many. If that
    /// fails, those are lost: the operation has ended, and its answer stays the same.
    pub(super) async fn keep(&mut self, block: Block) {
        let class = block.slot.class();
        let pool = &mut self.part().pool;
        pool.put(block);
        let free = &mut pool.free[class.number()];
        if free.len() * class.bytes() <= KEPT_BYTES || free.len() < 2 * RETURNED_MAX {
            return;
        }
        let returned = free.drain(..RETURNED_MAX).collect();
        if let Err(stop) = self.give_back(class, returned).await {
            tracing::warn!(%stop, "blocks could not be returned, and are lost");
        }
    }

    fn list_of(&self, class: Class) -> Address {
        self.state.races[self.table].extents[0].shards[self.part].plus(Geometry::returned_at(class))
    }

    /// Puts blocks into the shard's list of a class. The word of a block behind its mark names the
    /// next block of the list.
    async fn give_back(&mut self, class: Class, blocks: Vec<Block>) -> Result<(), Stop> {
        let hash = self.hash;
        // The head of the list must not recur, either. So a block is returned with its next use.
        let mut chain = Vec::with_capacity(blocks.len());
        for block in blocks {
            if let Some(slot) = block.slot.next_use(hash) {
                chain.push((slot.to_bits(), self.address(slot.unit()).await?.plus(AT_IMAGE)));
            }
        }
        put_in_list(self.lane, self.list_of(class), &chain).await
    }

    /// Takes a block from the shard's list of a class. Returns false if the list is empty.
    async fn take_returned(&mut self, class: Class) -> Result<bool, Stop> {
        let list = self.list_of(class);
        loop {
            let mut round = self.lane.round();
            let read = round.read(list, WORD_BYTES);
            let head = self.lane.execute(round).await?.words(read)[0];
            if head == 0 {
                return Ok(false);
            }
            let slot = Slot::from_bits(head);
            let at = self.address(slot.unit()).await?;
            let mut round = self.lane.round();
            let read = round.read(at, 2 * WORD_BYTES);
            let done = self.lane.execute(round).await?;
            let [mark, next] = [0, 1].map(|word| done.words(read)[word]);
            drop(done);
            let mut round = self.lane.round();
            let swap = round.compare_swap(list, head, next);
            if self.lane.execute(round).await?.swapped(swap) {
                self.part().pool.put(Block { slot, mark });
                return Ok(true);
            }
            self.lane.sleep(READ_PAUSE_NS).await;
        }
    }

    /// Returns what a session has in hand of a shard, before it rests or leaves.
    pub(super) async fn give_all_back(&mut self) -> Result<(), Stop> {
        let pool = &mut self.part().pool;
        pool.release();
        pool.cut();
        for class in (0..CLASSES).filter_map(Class::new) {
            loop {
                let free = &mut self.part().pool.free[class.number()];
                let blocks: Vec<Block> = free.drain(..free.len().min(RETURNED_MAX)).collect();
                if blocks.is_empty() {
                    break;
                }
                self.give_back(class, blocks).await?;
            }
        }
        Ok(())
    }
}

/// The largest number of blocks that are returned at a time.
pub(super) const RETURNED_MAX: usize = 64;

/// Puts members into a list, at most [`RETURNED_MAX`]. Each is the word that names it, and the
/// address of its word that names the next member.
pub(super) async fn put_in_list(lane: &Lane, list: Address, chain: &[(u64, Address)]) -> Result<(), Stop> {
    let Some((first, _)) = chain.first().copied() else { return Ok(()) };
    let mut round = lane.round();
    let read = round.read(list, WORD_BYTES);
    let mut head = lane.execute(round).await?.words(read)[0];
    loop {
        let mut round = lane.round();
        for (number, (_, next_at)) in chain.iter().enumerate() {
            round.write_words(*next_at, &[chain.get(number + 1).map_or(head, |(next, _)| *next)]);
        }
        let swap = round.compare_swap(list, head, first);
        let done = lane.execute(round).await?;
        if done.swapped(swap) {
            return Ok(());
        }
        head = done.previous(swap);
    }
}

fn block_units(block: Block) -> u64 {
    block.slot.class().units()
}
