//! The items of a transaction by the chains of FStore in which their keys are.
//!
//! An insert asks which slots of its chain other keys of the transaction have. If it looked at all
//! items, n inserts would look at n items each.
//!
//! 1. An item's chain never changes: it is the chain of the item's home.
//! 2. Items are only added, until the sets are cleared. So the chains are brought up to date when
//!    they are asked for, and transactions without inserts do not pay for them.

use remora_index::BucketRef;
use remora_node::TableId;

use super::{Item, Sets};

/// Items by chains. Every number of an item is one higher than in the sets, and 0 stands for none.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// Hash table of the newest item of each chain: open addressing with linear probing. At least
    /// half of the slots are free.
    newest: Vec<u32>,
    /// For each item that is known here, the item of its chain before it.
    before: Vec<u32>,
}

impl Chains {
    pub(super) fn clear(&mut self) {
        self.newest.clear();
        self.before.clear();
    }

    /// Returns the slot of a chain, which is free if the chain has no item.
    fn slot(&self, items: &[Item], table: TableId, home: BucketRef) -> Option<usize> {
        let mask = self.newest.len().checked_sub(1)?; // the length is a power of two
        let first = remora_record::KeyHash::of(&[home.bucket, home.shard.into(), table.0.into()]).scatter as usize;
        let is_it = |item: &Item| item.table == table && item.home == home;
        let has_it = |slot: &usize| match self.newest[*slot] {
            0 => true,
            number => is_it(&items[number as usize - 1]),
        };
        (0..=mask).map(|step| first.wrapping_add(step) & mask).find(has_it)
    }

    fn add_new(&mut self, items: &[Item]) {
        if self.before.len() == items.len() {
            return;
        }
        if self.newest.len() < 2 * items.len() {
            self.clear();
            self.newest.resize(4 * items.len().next_power_of_two(), 0);
        }
        for (number, item) in items.iter().enumerate().skip(self.before.len()) {
            let slot = self.slot(items, item.table, item.home).filter(|_| !item.structural);
            let before = slot.map(|slot| std::mem::replace(&mut self.newest[slot], number as u32 + 1));
            self.before.push(before.unwrap_or(0));
        }
    }

    fn of<'c>(&'c self, items: &[Item], table: TableId, home: BucketRef) -> impl Iterator<Item = usize> + use<'c> {
        let newest = self.slot(items, table, home).map_or(0, |slot| self.newest[slot]);
        let mut next = newest;
        std::iter::from_fn(move || {
            let number = (next as usize).checked_sub(1)?;
            next = self.before[number];
            Some(number)
        })
    }
}

impl Sets {
    /// Brings the chains up to date, for [`Sets::chain_items`].
    pub(crate) fn add_to_chains(&mut self) {
        self.chains.add_new(&self.items);
    }

    /// Returns the items of the keys whose home is this bucket.
    pub(crate) fn chain_items(&self, table: TableId, home: BucketRef) -> impl Iterator<Item = &Item> {
        debug_assert_eq!(self.chains.before.len(), self.items.len(), "chains 2: they are up to date");
        self.chains.of(&self.items, table, home).map(|number| &self.items[number])
    }
}
