//! Hot records: the records at which transactions abort or stand in line most.

use std::cmp::Reverse;
use std::time::Duration;

use remora_index::Table;
use remora_node::hot::Conflicts;
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
pub struct HotRecords(Tally<Named>);

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
        self.0.note(event, |tally, (table, key)| named(tally, table.name(), key.bytes()));
    }

    /// Adds what another list has noted.
    pub fn add(&mut self, other: &HotRecords) {
        for (theirs, conflicts) in other.0.all() {
            let (Some(table), Some(key)) = (theirs.table(), theirs.key()) else { continue };
            named(&mut self.0, table, key).add(conflicts);
        }
    }

    /// Returns the hottest records, the hottest first: at most `most` of them.
    #[must_use]
    pub fn hottest(&self, most: usize) -> Vec<HotRecord> {
        let mut all = self.0.clone();
        all.sort();
        let hottest = all.0.into_iter().take(most).map(|(record, conflicts)| HotRecord {
            record,
            locked: conflicts.locked,
            changed: conflicts.changed,
            otherwise: conflicts.otherwise,
            stood: conflicts.stood,
            stood_for: Duration::from_nanos(conflicts.stood_ns),
        });
        hottest.collect()
    }
}

/// Returns the conflicts at a record that is known by its names.
fn named<'t>(tally: &'t mut Tally<Named>, table: &str, key: &[u8]) -> &'t mut Conflicts {
    let is_it = |one: &Named| one.table() == Some(table) && one.key() == Some(key);
    tally.of(is_it, |record| record.rename(table, key))
}

/// Number of records that a tally remembers.
pub(crate) const RECORDS: usize = 64;

/// The conflicts at records, by whatever names the records. When a tally is full, a record that is
/// new takes the place of the one with the fewest conflicts.
#[derive(Clone, Debug)]
pub(crate) struct Tally<N>(Vec<(N, Conflicts)>);

impl<N> Default for Tally<N> {
    fn default() -> Tally<N> {
        Tally(Vec::new())
    }
}

impl<N> Tally<N> {
    /// Makes a tally that allocates nothing when records are noted.
    pub(crate) fn with_room() -> Tally<N> {
        Tally(Vec::with_capacity(RECORDS))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Notes an attempt that other transactions have hindered. `of` finds the conflicts at a
    /// record.
    pub(crate) fn note(
        &mut self,
        event: &TransactionEvent<'_>,
        of: impl for<'t> Fn(&'t mut Tally<N>, (&Table, Key)) -> &'t mut Conflicts,
    ) {
        if let (Outcome::Aborted(abort), Some(record)) = (event.outcome, event.culprit()) {
            let conflicts = of(self, record);
            match abort {
                Abort::Locked(_) => conflicts.locked += 1,
                Abort::Changed => conflicts.changed += 1,
                _ => conflicts.otherwise += 1,
            }
        }
        if let Some(record) = event.stood_at() {
            let conflicts = of(self, record);
            conflicts.stood += 1;
            conflicts.stood_ns += event.stood;
        }
    }

    pub(crate) fn all(&self) -> &[(N, Conflicts)] {
        &self.0
    }

    /// Sorts the records: the hottest one comes first.
    pub(crate) fn sort(&mut self) {
        self.0.sort_unstable_by_key(|(_, conflicts)| Reverse(conflicts.count()));
    }
}

impl<N: Default> Tally<N> {
    /// Returns the conflicts at a record. If the record is new, `rename` gives its name to a place.
    pub(crate) fn of(&mut self, is_it: impl Fn(&N) -> bool, rename: impl FnOnce(&mut N)) -> &mut Conflicts {
        let at = self.0.iter().position(|(name, _)| is_it(name)).unwrap_or_else(|| {
            let at = if self.0.len() < RECORDS {
                self.0.push(Default::default());
                self.0.len() - 1
            } else {
                (0..RECORDS).min_by_key(|at| self.0[*at].1.count()).unwrap_or(0)
            };
            let (name, conflicts) = &mut self.0[at];
            rename(name);
            *conflicts = Conflicts::default();
            at
        });
        &mut self.0[at].1
    }
}
