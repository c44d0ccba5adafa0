//! A tree whose keys and values are numbers, as several experiments have it.

use remora::admin::TreeInspection;
use remora::{Cluster, Error, Ordered, Session};
use remora_workload::{After, Invariant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value of 8 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "number")]
#[repr(transparent)]
pub(super) struct Number(pub(super) u64);

/// The names of what [`invariants`] checks.
pub(super) const INVARIANTS: [&str; 2] = ["a tree is a tree", "every key is there"];

/// Reads all rows, so that the client remembers the inner nodes and the leaves.
pub(super) async fn read_all<V: remora::Record>(table: &Ordered<u64, V>, session: &mut Session) -> Result<(), Error> {
    const AT_ONCE: usize = 2_000;
    let mut from = Some(0);
    while let Some(key) = from {
        let found = session.transact(async |tx| table.scan(tx, key.., AT_ONCE).await).await?;
        from = if found.len() == AT_ONCE { found[AT_ONCE - 1].0.checked_add(1) } else { None };
    }
    Ok(())
}

/// Checks that the tree is one, and that it has as many rows as were loaded and inserted.
pub(super) fn invariants(
    cluster: &Cluster,
    table: &Ordered<u64, Number>,
    loaded: u64,
    after: &After<'_, i64>,
) -> Result<Vec<Invariant>, Error> {
    let (_, TreeInspection { fault, rows, .. }) = cluster.inspect_ordered(table, |_, _| ())?;
    let expected = loaded as i64 + after.ledgers.iter().sum::<i64>();
    let [tree, keys] = INVARIANTS;
    let detail = format!("{rows} of {expected}, {} unknown", after.unknown);
    Ok(vec![
        Invariant { name: tree, holds: Some(fault.is_none()), detail: fault.unwrap_or_default() },
        Invariant { name: keys, holds: Some(rows as i64 == expected), detail },
    ])
}
