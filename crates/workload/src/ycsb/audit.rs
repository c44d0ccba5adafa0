//! The invariants of YCSB's table, which must hold when no transaction runs.

use remora::{Cluster, Error};

use crate::report::Invariant;
use crate::ycsb::draw::INSERTED;
use crate::ycsb::row::Row;
use crate::ycsb::{Done, Ycsb, each_size};
use crate::{After, invariants};

const WHOLE: &str = "every value was written in one piece";
const LOADED: &str = "every loaded record is there once";
const INSERTS: &str = "inserted records add up";
const CHANGES: &str = "changes add up";

/// The names of the invariants, in the order of [`audit`].
pub(super) const NAMES: &[&str] =
    &[WHOLE, LOADED, INSERTS, CHANGES, invariants::REPLICAS, invariants::LOCKS, invariants::LOG];

/// What the audit finds while it walks the table.
#[derive(Default)]
struct Tally {
    /// For each loaded key, whether it was seen.
    seen: Vec<bool>,
    inserted: Vec<u64>,
    /// The number of values that are a mixture of several.
    mixed: u64,
    /// The number of records that exist twice, or should not exist.
    strangers: u64,
    /// The sum of the values' counts.
    changes: u64,
}

impl Tally {
    fn look<const WORDS: usize>(&mut self, row: &Row<WORDS>) {
        // The contents of such a value mean nothing.
        if !row.is_whole() {
            self.mixed += 1;
            return;
        }
        self.changes += row.count();
        if row.key() & INSERTED != 0 {
            self.inserted.push(row.key());
            return;
        }
        match self.seen.get_mut(row.key() as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => self.strangers += 1,
        }
    }
}

/// Walks the table and checks the invariants. No transaction may run meanwhile.
pub(super) fn audit(ycsb: &Ycsb, cluster: &Cluster, after: &After<'_, Done>) -> Result<Vec<Invariant>, Error> {
    let mut found = Tally { seen: vec![false; ycsb.records() as usize], ..Tally::default() };
    let (tables, fault) = each_size!(&ycsb.table, rows => rows.inspect(cluster, |row| found.look(row))?);
    found.inserted.sort_unstable();
    let keys = found.inserted.len();
    found.inserted.dedup();
    found.strangers += (keys - found.inserted.len()) as u64;
    let sum = |part: fn(&Done) -> u64| after.ledgers.iter().map(part).sum::<u64>();

    let (mixed, read) = (found.mixed, sum(|done| done.mixed));
    let whole = Invariant {
        name: WHOLE,
        holds: Some(mixed == 0 && read == 0),
        detail: format!("{mixed} values are mixed, and {read} were when they were read"),
    };
    let (missing, strangers) = (found.seen.iter().filter(|seen| !**seen).count(), found.strangers);
    let missed = sum(|done| done.missed);
    let fault_of_tree = fault.as_ref().map(|fault| format!("; the tree is none: {fault}")).unwrap_or_default();
    let loaded = Invariant {
        name: LOADED,
        holds: Some(missing == 0 && strangers == 0 && missed == 0 && fault.is_none()),
        detail: format!(
            "{missing} of {} are missing, {strangers} should not be there, scans have missed {missed}{fault_of_tree}",
            ycsb.records()
        ),
    };
    let adds_up = |name, what, found: u64, committed: u64| {
        if after.unknown > 0 {
            return invariants::unknown(name, after.unknown);
        }
        let detail = format!("{found} {what}, {committed} committed");
        Invariant { name, holds: Some(found == committed), detail }
    };
    let inserts = adds_up(INSERTS, "were inserted", found.inserted.len() as u64, sum(|done| done.inserted));
    let changes = adds_up(CHANGES, "changes are in the values", found.changes, sum(|done| done.changed));
    let mut all = vec![whole, loaded, inserts, changes];
    all.extend(invariants::of_tables(&tables, after.settled));
    Ok(invariants::claimed_by(cluster.protocol(), all))
}
