//! The invariants of TATP's tables, which must hold when no transaction runs.

use remora::{Cluster, Error};

use crate::report::Invariant;
use crate::tatp::population::{START_TIMES, TYPES, digits};
use crate::tatp::{Changes, Tatp};
use crate::{After, invariants};

const ACCOUNTED: &str = "call forwarding adds up";
const FACILITY: &str = "every call forwarding has its facility";
const EVERYBODY: &str = "every subscriber has its number";

/// The names of the invariants, in the order of [`audit`].
pub(super) const NAMES: &[&str] =
    &[ACCOUNTED, FACILITY, EVERYBODY, invariants::REPLICAS, invariants::LOCKS, invariants::LOG];

/// What the audit remembers of each subscriber while it walks the tables.
#[derive(Clone, Copy, Default)]
struct Tally {
    subscriber: bool,
    number: bool,
    /// The types of its special facilities, one bit each.
    facilities: u8,
}

/// Returns what was seen of a subscriber, if there is such a subscriber.
fn seen_of(seen: &mut [Tally], s_id: u32) -> Option<&mut Tally> {
    seen.get_mut((s_id as usize).wrapping_sub(1))
}

/// Walks all tables and checks the invariants. No transaction may run meanwhile.
pub(super) fn audit(tatp: &Tatp, cluster: &Cluster, after: &After<'_, Changes>) -> Result<Vec<Invariant>, Error> {
    let mut seen = vec![Tally::default(); tatp.subscribers.count() as usize];
    // Rows that should not be there, of which nothing else is known.
    let (mut strangers, mut orphans) = (0_u64, 0_u64);

    let subscribers = cluster.inspect(&tatp.subscriber, |row| match seen_of(&mut seen, row.s_id) {
        Some(seen) if row.sub_nbr == digits(row.s_id.into()) => seen.subscriber = true,
        _ => strangers += 1,
    })?;
    let numbers = cluster.inspect(&tatp.number, |row| match seen_of(&mut seen, row.s_id) {
        Some(seen) if row.sub_nbr == digits(row.s_id.into()) => seen.number = true,
        _ => strangers += 1,
    })?;
    let access = cluster.inspect(&tatp.access_info, |_| ())?;
    let facilities = cluster.inspect(&tatp.special_facility, |row| match seen_of(&mut seen, row.s_id) {
        Some(seen) if (1..=TYPES).contains(&row.sf_type) => seen.facilities |= 1 << row.sf_type,
        _ => strangers += 1,
    })?;
    let forwarding = cluster.inspect(&tatp.call_forwarding, |row| {
        let facilities = seen_of(&mut seen, row.s_id).map_or(0, |seen| seen.facilities);
        let has_facility = (1..=TYPES).contains(&row.sf_type) && facilities & 1 << row.sf_type != 0;
        orphans += u64::from(!has_facility || !START_TIMES.contains(&row.start_time));
    })?;

    let without_number = seen.iter().filter(|seen| !(seen.subscriber && seen.number)).count();
    let tables = [subscribers, numbers, access, facilities, forwarding];
    let [subscribers, numbers, access, facilities, forwarding] = tables.each_ref().map(|table| table.records);
    let unchanging = [subscribers, numbers, access, facilities];
    let everybody = Invariant {
        name: EVERYBODY,
        holds: Some(without_number == 0 && strangers == 0 && unchanging == tatp.at_first.unchanging),
        detail: format!(
            "{subscribers} subscribers, {numbers} numbers, {access} access_info, {facilities} special_facility; \
             {without_number} subscribers or numbers are missing, {strangers} rows should not be there"
        ),
    };
    let facility = Invariant {
        name: FACILITY,
        holds: Some(orphans == 0),
        detail: format!("{orphans} of {forwarding} rows have none"),
    };
    let mut all = vec![accounted(tatp.at_first.forwarding, forwarding, after), facility, everybody];
    all.extend(invariants::of_tables(&tables, after.settled));
    Ok(invariants::claimed_by(cluster.protocol(), all))
}

/// Checks the number of call forwarding rows against the ledgers.
fn accounted(at_first: u64, found: u64, after: &After<'_, Changes>) -> Invariant {
    if after.unknown > 0 {
        return invariants::unknown(ACCOUNTED, after.unknown);
    }
    let inserted: u64 = after.ledgers.iter().map(|ledger| ledger.inserted).sum();
    let deleted: u64 = after.ledgers.iter().map(|ledger| ledger.deleted).sum();
    let holds = at_first + inserted == found + deleted;
    let detail = format!("{found} rows; {at_first} at first, {inserted} inserted, {deleted} deleted");
    Invariant { name: ACCOUNTED, holds: Some(holds), detail }
}
