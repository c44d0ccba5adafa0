//! What a transaction gives to a batch, and gets from it (`combine.rs`).

use zerocopy::IntoBytes;

use super::{Change, Fetch, Intent, Item, Part, Sets};
use crate::combine::{Batch, BatchRecord};
use crate::error::Stop;
use crate::words::Span;

impl Sets {
    /// Offers the records of this transaction to the members of a batch: the ones that are present
    /// and that it has read as a whole, and neither inserts nor deletes nor moves to a larger
    /// table.
    pub(crate) fn offer(&self, batch: &mut Batch) {
        for (number, item) in self.items.iter().enumerate() {
            let is_plain = !item.structural && item.twin == 0 && item.moved_to == 0 && !item.renamed;
            let is_here = matches!(item.fetch, Fetch::Here) && item.existed && item.present && item.is_whole();
            if !is_plain || !is_here || !matches!(item.change, Change::No | Change::Update) {
                continue;
            }
            let mut copy = |span: Span| {
                let at = batch.words.len() as u32;
                batch.words.extend_from_slice(span.of(&self.arena));
                Span { at, ..span }
            };
            let (key, value) = (copy(item.key), copy(item.value));
            let is_changed = item.change == Change::Update;
            batch.records.push(BatchRecord {
                table: item.table,
                name: item.name(),
                item: number,
                is_changed,
                version: if is_changed { item.version.committed_over() } else { item.version },
                key,
                value,
                value_bytes: item.value_bytes,
                changes: 0,
            });
        }
    }

    /// Gets all records that are named and not fetched from a batch. Returns false, and gets none,
    /// if the batch does not have one of them.
    pub(crate) fn adopt(&mut self, batch: &Batch) -> bool {
        let Sets { items, arena, fetched, .. } = self;
        let is_new = |item: &Item| !matches!(item.fetch, Fetch::Here | Fetch::Absent) || item.renamed;
        let can = |item: &Item| {
            !item.seen && item.intent != Intent::Delete && batch.find(item.table, item.key.of(arena)).is_some()
        };
        if !items.iter().filter(|item| is_new(item)).all(can) {
            return false;
        }
        for item in items.iter_mut().filter(|item| is_new(item)) {
            let Some(at) = batch.find(item.table, item.key.of(arena)) else { continue };
            let record = batch.records[at];
            (item.fetch, item.has, item.part, item.of_batch) = (Fetch::Here, Part::Whole, Part::Whole, true);
            (item.seen, item.existed, item.present) = (true, true, true);
            item.version = record.version;
            item.value = Span { at: arena.len() as u32, ..record.value };
            item.value_bytes = record.value_bytes;
            arena.extend_from_slice(record.value.of(&batch.words));
        }
        *fetched = items.len();
        true
    }

    /// Puts what this transaction has changed, if it `writes`, into a batch from which it has all
    /// its records. Returns false, and changes nothing, if the batch cannot have it
    /// ([`combine`](crate::combine), invariants 1 and 2).
    pub(crate) fn join(&self, batch: &mut Batch, writes: bool) -> bool {
        let Sets { items, arena, .. } = self;
        let can = |item: &Item| {
            let Some(at) = batch.find(item.table, item.key.of(arena)) else { return false };
            let record = &batch.records[at];
            let is_read = matches!(item.fetch, Fetch::Here) && !item.renamed;
            let is_current = record.version == item.version || mutant!(JoinUnchecked);
            let can_change = match item.change {
                Change::No => true,
                Change::Update => record.is_changed,
                Change::Insert | Change::Delete => false,
            };
            is_read && is_current && (can_change || !writes)
        };
        if !batch.is_open || !self.edits.is_empty() || !items.iter().all(can) {
            return false;
        }
        for item in items.iter().filter(|item| writes && item.is_written()) {
            let Some(at) = batch.find(item.table, item.key.of(arena)) else { continue };
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

    /// Takes over what the members of a batch have changed.
    pub(crate) fn gather(&mut self, batch: &Batch) -> Result<(), Stop> {
        for record in batch.records.iter().filter(|record| record.changes > 0) {
            let bytes = record.value_bytes as usize;
            self.resize_value(record.item, bytes)?;
            let value = &record.value.of(&batch.words).as_bytes()[..bytes];
            self.value_of(record.item).copy_from_slice(value);
            self.items[record.item].further_changes = if mutant!(OneVersionForAll) { 0 } else { record.changes };
        }
        Ok(())
    }
}
