//! What a transaction gives to a batch, and gets from it (`combine.rs`).

use zerocopy::IntoBytes;

use super::{Change, Fetch, Intent, Item, LINEAR_MAX, Lock, Part, Sets};
use crate::combine::{Batch, BatchRecord, Brought, Owner};
use crate::error::Stop;
use crate::limits::LOG_WORDS_SHARED;
use crate::log::RECORD_WORDS;
use crate::words::Span;

/// What has become of the records that a member has named, and not fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Adopted {
    /// The batch has all of them.
    All,
    /// The batch has some of them. The member fetches the others by itself.
    Some,
    /// The member cannot have one of them.
    Not,
}

impl Sets {
    /// Offers the records of this transaction to the members of a batch: the ones that are present
    /// and that it has read as a whole, and neither inserts nor deletes nor moves to a larger
    /// table. If members `may_bring` records along, leaves room for them in the log entry.
    pub(crate) fn offer(&self, batch: &mut Batch, may_bring: bool) {
        if may_bring && self.edits.is_empty() {
            let written = self.items.iter().filter(|item| item.is_written());
            batch.room = LOG_WORDS_SHARED.saturating_sub(written.map(|item| self.log_words(item)).sum());
            batch.known.extend(self.tables.iter().flatten().map(|table| (table.id(), table.born())));
        }
        for (number, item) in self.items.iter().enumerate() {
            let owner = if item.is_plain() { Owner::Leader(number) } else { Owner::LeaderAlone };
            self.put(item, owner, item.change == Change::Update, batch);
        }
    }

    /// Puts a record of this transaction into a batch that does not have it yet.
    fn put(&self, item: &Item, owner: Owner, is_changed: bool, batch: &mut Batch) {
        let mut copy = |span: Span| {
            let at = batch.words.len() as u32;
            batch.words.extend_from_slice(span.of(&self.arena));
            Span { at, ..span }
        };
        let key = copy(item.key);
        let value = if matches!(owner, Owner::LeaderAlone) { Span::default() } else { copy(item.value) };
        batch.records.push(BatchRecord {
            table: item.table,
            name: item.name(),
            owner,
            is_changed,
            version: if is_changed { item.version.committed_over() } else { item.version },
            key,
            value,
            value_bytes: item.value_bytes,
            changes: 0,
        });
    }

    /// Returns an upper bound of the words that a record takes in a log entry.
    fn log_words(&self, item: &Item) -> usize {
        RECORD_WORDS + self.shape(item).image_words()
    }

    /// Gets the records that are named and not fetched from a batch, as far as it has them. Gets
    /// none if the member cannot have one of them.
    pub(crate) fn adopt(&mut self, batch: &Batch) -> Adopted {
        let Sets { items, arena, fetched, .. } = self;
        let is_new = |item: &Item| !matches!(item.fetch, Fetch::Here | Fetch::Absent) || item.renamed;
        let mut all = true;
        for item in items.iter().filter(|item| is_new(item)) {
            let can = match batch.find(item.table, item.key.of(arena)).map(|at| batch.records[at].owner) {
                Some(Owner::LeaderAlone) => false,
                Some(Owner::Leader(_) | Owner::Member(_)) => !item.seen && item.intent != Intent::Delete,
                None => {
                    all = false;
                    batch.room > 0 && matches!(item.intent, Intent::Read | Intent::Update)
                }
            };
            if !can {
                return Adopted::Not;
            }
        }
        for item in items.iter_mut().filter(|item| is_new(item)) {
            if batch.find(item.table, item.key.of(arena)).is_some() {
                (item.fetch, item.of_batch) = (Fetch::Shared, true);
            }
        }
        if !all {
            return Adopted::Some;
        }
        *fetched = items.len();
        self.take_shared(batch);
        Adopted::All
    }

    /// Takes the records that are to come from a batch as they are there now. Nothing may happen
    /// between this and the closure that uses them: the next member may change them.
    pub(crate) fn take_shared(&mut self, batch: &Batch) {
        let Sets { items, arena, .. } = self;
        for item in items.iter_mut().filter(|item| matches!(item.fetch, Fetch::Shared)) {
            let Some(at) = batch.find(item.table, item.key.of(arena)) else { continue };
            let record = batch.records[at];
            (item.fetch, item.has, item.part) = (Fetch::Here, Part::Whole, Part::Whole);
            (item.seen, item.existed, item.present) = (true, true, true);
            item.version = record.version;
            item.value = Span { at: arena.len() as u32, ..record.value };
            item.value_bytes = record.value_bytes;
            arena.extend_from_slice(record.value.of(&batch.words));
        }
    }

    /// Puts what this transaction has read and, if it `writes`, changed into a batch. Returns
    /// false, and changes nothing, if the batch cannot have it ([`combine`](crate::combine),
    /// invariants 1, 2 and 8).
    pub(crate) fn join(&self, batch: &mut Batch, writes: bool) -> bool {
        let Sets { items, arena, .. } = self;
        let mut room = batch.room;
        let mut can = |item: &Item| {
            let Some(at) = batch.find(item.table, item.key.of(arena)) else {
                let words = self.log_words(item);
                let has_room = words <= room;
                room = room.saturating_sub(words);
                // Who gives up has changed its copy, which nobody may read.
                let is_as_read = writes || !item.is_written() || mutant!(BringUncommitted);
                let is_known = batch.known.contains(&(item.table, self.table(item.table).born()));
                let is_free = !item.of_batch && item.lock == Lock::No && !item.prepared;
                return has_room && is_as_read && is_known && is_free && item.is_plain();
            };
            let record = &batch.records[at];
            if matches!(record.owner, Owner::LeaderAlone) {
                return false;
            }
            let is_read = matches!(item.fetch, Fetch::Here) && !item.renamed;
            let is_current = record.version == item.version || mutant!(JoinUnchecked);
            let can_change = match item.change {
                Change::No => true,
                Change::Update => record.is_changed || mutant!(JoinUnlocked),
                Change::Insert | Change::Delete => false,
            };
            is_read && is_current && (can_change || !writes)
        };
        let is_open = batch.is_open || mutant!(JoinClosed);
        if !is_open || !self.edits.is_empty() || !items.iter().all(&mut can) {
            return false;
        }
        batch.room = room;
        for item in items {
            let Some(at) = batch.find(item.table, item.key.of(arena)) else {
                // It is the leader's from now on.
                let Item { hash, home, location, address, version: read, time, .. } = *item;
                let owner = Owner::Member(Brought { hash, home, location, address, read, time });
                self.put(item, owner, writes && item.is_written(), batch);
                continue;
            };
            if !writes || !item.is_written() {
                continue;
            }
            let from = batch.words.len() as u32;
            batch.words.extend_from_slice(item.value.of(arena));
            let record = &mut batch.records[at];
            record.value = Span { at: from, ..item.value };
            record.value_bytes = item.value_bytes;
            record.version = record.version.committed_over();
            record.changes += 1;
        }
        true
    }

    /// Takes over what the members of a batch have changed, and what they have brought along.
    pub(crate) fn gather(&mut self, batch: &Batch) -> Result<(), Stop> {
        // What the leader has named and not fetched, its commit fetches.
        let all_here = self.fetched == self.items.len();
        for record in &batch.records {
            let item = match record.owner {
                Owner::Leader(item) if record.changes > 0 => item,
                Owner::Leader(_) | Owner::LeaderAlone => continue,
                Owner::Member(brought) => self.take_over(record, &brought, batch),
            };
            if !record.is_changed {
                continue;
            }
            let bytes = record.value_bytes as usize;
            self.resize_value(item, bytes)?;
            let value = &record.value.of(&batch.words).as_bytes()[..bytes];
            self.value_of(item).copy_from_slice(value);
            self.items[item].further_changes = if mutant!(OneVersionForAll) { 0 } else { record.changes };
        }
        if all_here {
            self.fetched = self.items.len();
        }
        Ok(())
    }

    /// Makes an item for a record that a member has brought along.
    fn take_over(&mut self, record: &BatchRecord, brought: &Brought, batch: &Batch) -> usize {
        let at = self.arena.len() as u32;
        self.arena.extend_from_slice(record.key.of(&batch.words));
        let key = Span { at, ..record.key };
        let Brought { hash, home, location, address, read, time } = *brought;
        self.items.push(Item {
            key,
            location,
            fetch: Fetch::Here,
            version: read,
            time,
            seen: true,
            existed: true,
            present: true,
            brought: true,
            lock: if mutant!(TrustBrought) { Lock::Held } else { Lock::No },
            ..Item::new(record.table, Intent::Read, hash, home, address)
        });
        if self.items.len() > LINEAR_MAX {
            self.add_to_index();
        }
        self.items.len() - 1
    }
}
