//! Hot records: the records at which transactions abort or stand in line most.

use std::time::Duration;

use remora_record::Key;
use remora_txn::{Abort, Outcome, TransactionEvent};

use crate::error::Named;

/// A record at which transactions got in each other's way.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HotRecord {
    /// The record's table and key.
    pub record: Named,
    /// Attempts that aborted because the record was locked.
    pub locked: u64,
    /// Attempts that aborted because the record had changed since they read it.
    pub changed: u64,
    /// Attempts that aborted at the record for another reason.
    pub otherwise: u64,
    /// Attempts before which a coroutine stood in line for the record.
    pub stood: u64,
    /// How long they stood there together.
    pub stood_for: Duration,
}

impl HotRecord {
    fn weight(&self) -> u64 {
        self.locked + self.changed + self.otherwise + self.stood
    }

    fn add(&mut self, other: &HotRecord) {
        self.locked += other.locked;
        self.changed += other.changed;
        self.otherwise += other.otherwise;
        self.stood += other.stood;
        self.stood_for += other.stood_for;
    }
}

/// A list of the hottest records that an observer has been told of. It remembers some dozens of
/// records, and nothing of transactions that commit at once.
///
/// When it is full, a record that is new takes the place of the one with the smallest counts. So
/// the counts of a record may lack what came before it had its place. A record with far higher
/// counts than the others is always listed.
///
/// ```
/// use remora::observe::{HotRecords, Observer, TransactionEvent};
///
/// #[derive(Default)]
/// struct Hot(HotRecords);
///
/// impl Observer for Hot {
///     fn transaction(&mut self, event: &TransactionEvent<'_>) {
///         self.0.note(event);
///     }
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct HotRecords(Vec<HotRecord>);

/// Number of records that a list remembers.
const RECORDS: usize = 64;

impl HotRecords {
    /// Notes an attempt. It costs a look at the event unless the attempt has aborted at a record,
    /// or has stood in line for one.
    #[inline]
    pub fn note(&mut self, event: &TransactionEvent<'_>) {
        if event.stood > 0 || matches!(event.outcome, Outcome::Aborted(_)) {
            self.note_hot(event);
        }
    }

    #[cold]
    fn note_hot(&mut self, event: &TransactionEvent<'_>) {
        if let (Outcome::Aborted(abort), Some(record)) = (event.outcome, event.culprit()) {
            let counts = self.of(record);
            match abort {
                Abort::Locked(_) => counts.locked += 1,
                Abort::Changed => counts.changed += 1,
                _ => counts.otherwise += 1,
            }
        }
        if let Some(record) = event.stood_at() {
            let counts = self.of(record);
            counts.stood += 1;
            counts.stood_for += Duration::from_nanos(event.stood);
        }
    }

    /// Adds what another list has noted.
    pub fn add(&mut self, other: &HotRecords) {
        for theirs in &other.0 {
            let (Some(table), Some(key)) = (theirs.record.table(), theirs.record.key()) else { continue };
            self.counts(table, key).add(theirs);
        }
    }

    /// Returns the hottest records, the hottest first: at most `most` of them.
    #[must_use]
    pub fn hottest(&self, most: usize) -> Vec<HotRecord> {
        let mut all = self.0.clone();
        all.sort_by_key(|one| std::cmp::Reverse(one.weight()));
        all.truncate(most);
        all
    }

    fn of(&mut self, (table, key): (&remora_index::Table, Key)) -> &mut HotRecord {
        self.counts(table.name(), key.bytes())
    }

    fn counts(&mut self, table: &str, key: &[u8]) -> &mut HotRecord {
        let is_it = |one: &HotRecord| one.record.table() == Some(table) && one.record.key() == Some(key);
        let at = self.0.iter().position(is_it).unwrap_or_else(|| {
            let new =
                |record| HotRecord { record, locked: 0, changed: 0, otherwise: 0, stood: 0, stood_for: Duration::ZERO };
            let at = if self.0.len() < RECORDS {
                self.0.push(new(Named::default()));
                self.0.len() - 1
            } else {
                (0..RECORDS).min_by_key(|at| self.0[*at].weight()).unwrap_or(0)
            };
            let mut record = std::mem::take(&mut self.0[at].record);
            record.rename(table, key);
            self.0[at] = new(record);
            at
        });
        &mut self.0[at]
    }
}
