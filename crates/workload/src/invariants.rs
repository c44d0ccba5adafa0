//! Invariants that every workload reports, and their wording.

use std::fmt::Display;

use remora::admin::Inspection;
use remora::protocol::Protocol;

use crate::report::Invariant;

pub(crate) const REPLICAS: &str = "replicas are identical";
pub(crate) const LOCKS: &str = "no lock is held";
pub(crate) const LOG: &str = "every log entry is settled";

/// Returns the invariants that every workload has: the state of its tables from outside, and
/// whether all logs have been applied.
pub(crate) fn of_tables(tables: &[Inspection], settled: bool) -> [Invariant; 3] {
    [replicas(tables), locks(tables), log(settled)]
}

/// Returns the invariants as they are. For a protocol that promises none, returns them as
/// unchecked.
pub(crate) fn claimed_by(protocol: Protocol, invariants: Vec<Invariant>) -> Vec<Invariant> {
    if protocol.is_serializable() {
        return invariants;
    }
    let reason = format!("{} runs no transactions", protocol.name());
    let unchecked = |invariant: Invariant| Invariant { holds: None, detail: reason.clone(), ..invariant };
    invariants.into_iter().map(unchecked).collect()
}

/// Makes an invariant that cannot be decided, because the outcome of `transactions` transactions is
/// unknown.
pub(crate) fn unknown(name: &'static str, transactions: u64) -> Invariant {
    Invariant { name, holds: None, detail: format!("the outcome of {transactions} transactions is unknown") }
}

fn replicas(tables: &[Inspection]) -> Invariant {
    let differing: u64 = tables.iter().map(|table| table.differing_lines).sum();
    let torn: u64 = tables.iter().map(|table| table.torn).sum();
    let detail = format!("{differing} lines differ between a primary and a backup, {torn} records are torn");
    Invariant { name: REPLICAS, holds: Some(differing == 0 && torn == 0), detail }
}

fn locks(tables: &[Inspection]) -> Invariant {
    let locked: u64 = tables.iter().map(|table| table.locked).sum();
    let holder = tables.iter().find_map(|table| table.holder);
    let holder = holder.map(|holder| format!(", the first by transaction {holder}")).unwrap_or_default();
    let abandoned = match tables.iter().map(|table| table.abandoned).sum() {
        0u64 => String::new(),
        abandoned => format!(", and {abandoned} have a lock of a client that is gone, which the next client frees"),
    };
    let detail = format!("{locked} records are locked{holder}{abandoned}");
    Invariant { name: LOCKS, holds: Some(locked == 0), detail }
}

fn log(settled: bool) -> Invariant {
    let detail = if settled {
        "every ring has been applied to its end"
    } else {
        "a memory node has not applied all that was logged"
    };
    Invariant { name: LOG, holds: Some(settled), detail: detail.to_owned() }
}

/// A broken condition: how often it is broken, and the first place.
#[derive(Default)]
pub(crate) struct Broken {
    places: u64,
    first: Option<String>,
}

impl Broken {
    pub(crate) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        self.places += u64::from(!holds);
        if !holds && self.first.is_none() {
            self.first = Some(what());
        }
    }

    pub(crate) fn equal<T: PartialEq + Display>(&mut self, found: T, wanted: T, whose: impl Display) {
        let holds = found == wanted;
        self.check(holds, || format!("{whose}: {found}, not {wanted}"));
    }

    pub(crate) fn invariant(self, name: &'static str, of: &str) -> Invariant {
        let holds = Some(self.places == 0);
        let detail = match self.first {
            None => format!("holds for all {of}"),
            Some(first) => format!("does not hold in {} places of {of}; {first}", self.places),
        };
        Invariant { name, holds, detail }
    }
}
