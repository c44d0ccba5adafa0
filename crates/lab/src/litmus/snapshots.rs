//! The litmus programs of snapshots: transactions of protocols with landing clocks (`remora`,
//! `drtm-r-clocks`) beside one that reads a snapshot.
//!
//! There are two memory nodes and two records: X at node 0, Y at node 1. Every transaction that
//! writes adds an amount of its own, so the values say which transactions the reader has seen.
//! Before some programs, one node's landing clock is ahead of the other's.

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::node::ReadScheme;
use remora::floors::node::ReadScheme::{Checksum, SingleLine};
use remora::floors::txn::{Locks, Primitives, Stop};
use remora::protocol::{Ford, Protocol};

use super::recovery::add;
use super::stage::{
    Actor, Broken, Explored, Row, Said, Scene, Stage, amount, check, get, insert, put, want, want_to_change,
    want_to_insert,
};

type Outcome = Exploration<Broken>;

/// How often a snapshot is tried. Then the program goes on without it.
const ATTEMPTS: u32 = 2;

/// The stage of a program.
struct Apart {
    stage: Stage,
    /// X and Y.
    rows: [Row; 2],
    /// Records at node 0 and at node 1, which no program reads.
    others: [Row; 2],
}

impl Apart {
    fn new(protocol: Protocol, clients: usize, replicas: u16) -> Apart {
        Apart::with(SingleLine, protocol, clients, replicas)
    }

    fn with(scheme: ReadScheme, protocol: Protocol, clients: usize, replicas: u16) -> Apart {
        Apart::on(Stage::new(2, &vec![protocol; clients]), scheme, replicas)
    }

    fn on(mut stage: Stage, scheme: ReadScheme, replicas: u16) -> Apart {
        let mut row = |node| stage.table_at(node, replicas, scheme, 1, &[0])(0);
        let (rows, others) = ([row(0), row(1)], [row(0), row(1)]);
        Apart { stage, rows, others }
    }

    /// Has the client raise the clocks of these nodes, by writes of records that no program reads,
    /// and then look up where the records are.
    async fn begin(&self, client: usize, actor: &mut Actor, raised: &[usize]) {
        for _ in 0..if client == 0 && !raised.is_empty() { 3 } else { 0 } {
            actor
                .once(async |tx| {
                    let rows = raised.iter().map(|node| self.others[*node]);
                    let slots =
                        rows.map(|row| Ok((row, want_to_change(tx, row)?))).collect::<Result<Vec<_>, Stop>>()?;
                    tx.fetch().await?;
                    slots.into_iter().try_for_each(|(row, slot)| put(tx, row, slot, 0))?;
                    Ok(Vec::new())
                })
                .await;
        }
        actor.look_up(&self.rows).await;
    }
}

/// The amount that a client's only transaction adds.
fn of(client: usize) -> u64 {
    amount(client, 0)
}

/// Returns whether a value has an amount.
fn has(value: u64, amount: u64) -> bool {
    value & amount != 0
}

/// The writer of X and Y is client 0, and client 1 reads a snapshot. The snapshot must have both
/// changes, or none.
fn whole(protocol: Protocol, runs_max: u64, raised: &[usize]) -> Outcome {
    whole_in(&Apart::new(protocol, 2, 1), runs_max, raised)
}

fn whole_in(apart: &Apart, runs_max: u64, raised: &[usize]) -> Outcome {
    apart.stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |client, actor| apart.begin(client, actor, raised).await,
        async |client, actor| {
            if client == 0 { add(actor, &apart.rows).await } else { actor.snapshot(ATTEMPTS, &apart.rows).await }
        },
        is_whole,
    )
}

/// Checks that the snapshot of client 1 has all changes of client 0, or none.
fn is_whole(scene: &Scene<'_>) -> Result<(), Broken> {
    let Some(read) = &scene.said[1] else { return Ok(()) };
    check((read[0] == 0) == (read[1] == 0), || format!("the snapshot has half of a transaction: {read:x?}"))
}

/// Client 0 adds to two records, and client 1 opens a snapshot and then reads them in it, a
/// transaction for each. It must have both changes, or none.
fn past(apart: &Apart, rows: [Row; 2], runs_max: u64, raised: &'static [usize]) -> Outcome {
    apart.stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |client, actor| {
            apart.begin(client, actor, raised).await;
            actor.look_up(&rows).await;
        },
        async |client, actor| {
            if client == 0 {
                return add(actor, &rows).await;
            }
            let past = actor.open_snapshot().await?;
            let first = actor.read_at(past, rows[0]).await?;
            let second = actor.read_at(past, rows[1]).await?;
            Some(vec![first[0], second[0]])
        },
        is_whole,
    )
}

/// An open snapshot beside a writer.
pub(super) fn past_whole(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 2, 1);
    past(&apart, apart.rows, runs_max, &[])
}

/// An open snapshot beside a writer of two records at node 1, where the clock of node 0 is ahead.
pub(super) fn past_whole_ahead(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 2, 1);
    past(&apart, [apart.rows[1], apart.others[1]], runs_max, &[0])
}

/// A snapshot beside a writer.
pub(super) fn snapshot_whole(protocol: Protocol, runs_max: u64) -> Outcome {
    whole(protocol, runs_max, &[])
}

/// A snapshot beside a writer, where the clock of node 0 is ahead.
pub(super) fn snapshot_whole_ahead(protocol: Protocol, runs_max: u64) -> Outcome {
    whole(protocol, runs_max, &[0])
}

/// A snapshot beside a writer. Records have checksums, which are right also while they are locked.
pub(super) fn snapshot_whole_checksum(protocol: Protocol, runs_max: u64) -> Outcome {
    whole_in(&Apart::with(Checksum, protocol, 2, 1), runs_max, &[])
}

/// Client 0 reads Y and adds to X, client 1 adds to Y, client 2 reads a snapshot. If client 0 has
/// not seen the change of client 1, it is before it. So a snapshot that has the change of client 1
/// has that of client 0.
fn guarded(protocol: Protocol, runs_max: u64, raised: &'static [usize]) -> Outcome {
    let apart = Apart::new(protocol, 3, 1);
    let [x, y] = apart.rows;
    apart.stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |client, actor| apart.begin(client, actor, raised).await,
        async |client, actor| match client {
            0 => add_beside(actor, &[x], y).await,
            1 => add(actor, &[y]).await,
            _ => actor.snapshot(ATTEMPTS, &apart.rows).await,
        },
        |scene| {
            let (Some(seen), Some(read)) = (&scene.said[0], &scene.said[2]) else { return Ok(()) };
            let (own, other) = (has(read[0], of(0)), has(read[1], of(1)));
            let is_first = !has(seen[0], of(1));
            let fits = if is_first { own || !other } else { other || !own };
            check(fits, || format!("client 0 has read {seen:x?}, and the snapshot {read:x?}"))
        },
    )
}

/// Adds the client's amount to records beside which it reads another one. Returns what it has read.
async fn add_beside(actor: &mut Actor, written: &[Row], read: Row) -> Said {
    let amount = actor.amount();
    actor
        .once(async |tx| {
            let own = written.iter().map(|row| want_to_change(tx, *row)).collect::<Result<Vec<_>, _>>()?;
            let other = want(tx, read)?;
            tx.fetch().await?;
            let seen = get(tx, other)?;
            for (row, slot) in written.iter().zip(own) {
                let value = get(tx, slot)?;
                put(tx, *row, slot, value + amount)?;
            }
            Ok(vec![seen, u64::from(tx.id().fixes_time_early())])
        })
        .await
}

/// `remora`, whose transactions fix their times early as soon as they only read a record.
pub(super) const EARLY: Protocol = Protocol::Ford(Ford { guards_max: 0, known_clocks: false, ..Ford::TIMED });

/// `remora`, whose snapshots always ask for clocks.
pub(super) const ASKING: Protocol = Protocol::Ford(Ford { known_clocks: false, ..Ford::TIMED });

/// `drtm-r-clocks`, whose snapshots always ask for clocks.
pub(super) const OCC_ASKING: Protocol =
    Protocol::Occ(Primitives { locks: Locks::NicTimed { known_clocks: false }, ..Primitives::DRTM_R_CLOCKS });

/// The writer of X and Y only reads another record, so that its time is fixed early. Client 1 reads
/// a snapshot of X and Y.
fn early_whole_of(apart: &Apart, runs_max: u64) -> Outcome {
    let (rows, beside) = (apart.rows, apart.others[0]);
    apart.stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |client, actor| {
            actor.look_up(&[rows[0], rows[1], beside]).await;
            // A transaction reads a single record at its primary. After this, the snapshot reads X
            // at its backup, because the client has sent less there.
            for _ in 0..if client == 1 { 3 } else { 0 } {
                actor.look_up(&rows[..1]).await;
            }
        },
        async |client, actor| {
            if client == 0 { add_beside(actor, &rows, beside).await } else { actor.snapshot(ATTEMPTS, &rows).await }
        },
        is_early_and_whole,
    )
}

/// Checks that the time of client 0 was fixed early, and what [`is_whole`] checks.
fn is_early_and_whole(scene: &Scene<'_>) -> Result<(), Broken> {
    let early = scene.said[0].as_ref().is_none_or(|said| said[1] == 1);
    check(early, || "the writer's time was not fixed early".to_owned()).and_then(|()| is_whole(scene))
}

/// A writer whose time is fixed early, beside a snapshot.
pub(super) fn early_whole(protocol: Protocol, runs_max: u64) -> Outcome {
    early_whole_of(&Apart::new(protocol, 2, 1), runs_max)
}

/// A writer whose time is fixed early inserts a row, and changes another one of the same bucket.
/// The snapshot must have both, or none.
pub(super) fn early_insert(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(2, &[protocol; 2]);
    let table = stage.table_at(0, 1, SingleLine, 1, &[0]);
    let rows = [table(0), table(1)];
    let beside = stage.table_at(1, 1, SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |_, actor| actor.look_up(&[rows[0], beside]).await,
        async |client, actor| {
            if client == 1 {
                return actor.snapshot(ATTEMPTS, &rows).await;
            }
            let amount = actor.amount();
            actor
                .once(async |tx| {
                    let slots = [want_to_change(tx, rows[0])?, want_to_insert(tx, rows[1])?];
                    want(tx, beside)?;
                    tx.fetch().await?;
                    put(tx, rows[0], slots[0], amount)?;
                    insert(tx, rows[1], slots[1], amount)?;
                    Ok(vec![0, u64::from(tx.id().fixes_time_early())])
                })
                .await
        },
        is_early_and_whole,
    )
}

/// As [`early_whole`], with a backup of each record, which the snapshot may read.
pub(super) fn early_whole_at_backups(protocol: Protocol, runs_max: u64) -> Outcome {
    early_whole_of(&Apart::new(protocol, 2, 2), runs_max)
}

/// A writer that reads what another one writes, beside a snapshot.
pub(super) fn snapshot_guard(protocol: Protocol, runs_max: u64) -> Outcome {
    guarded(protocol, runs_max, &[])
}

/// As [`snapshot_guard`], where the clock of node 0 is ahead.
pub(super) fn snapshot_guard_ahead(protocol: Protocol, runs_max: u64) -> Outcome {
    guarded(protocol, runs_max, &[0])
}

/// Client 0 adds to X and Y, and is answered. Then client 1 adds to Y. Client 2 reads a snapshot
/// meanwhile. The clock of node 0 is ahead.
pub(super) fn snapshot_order(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 3, 1);
    let [_, y] = apart.rows;
    apart.stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |client, actor| apart.begin(client, actor, &[0]).await,
        async |client, actor| match client {
            0 => add(actor, &apart.rows).await.inspect(|_| actor.report()),
            1 => {
                actor.reported(1).await;
                add(actor, &[y]).await
            }
            _ => actor.snapshot(1, &apart.rows).await,
        },
        |scene| {
            let Some(read) = &scene.said[2] else { return Ok(()) };
            let (x, y) = (has(read[0], of(0)), has(read[1], of(0)));
            check(x == y, || format!("the snapshot has half of a transaction: {read:x?}"))
        },
    )
}

/// As [`early_whole_at_backups`], on a fabric whose rounds take effect in order.
pub(super) fn early_whole_in_order(protocol: Protocol, runs_max: u64) -> Outcome {
    early_whole_of(&Apart::on(Stage::in_order(2, &[protocol; 2]), SingleLine, 2), runs_max)
}

/// Client 0 adds to X, and is answered. Then client 1 adds to Y. Client 2 reads a snapshot
/// meanwhile. The rounds of the fabric take effect in order, so the snapshot is strict: if it has
/// the change of client 1, it has that of client 0. The clock of node 0 is ahead.
pub(super) fn strict_order(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::on(Stage::in_order(2, &[protocol; 3]), SingleLine, 1);
    let [x, y] = apart.rows;
    apart.stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |client, actor| apart.begin(client, actor, &[0]).await,
        async |client, actor| match client {
            0 => add(actor, &[x]).await.inspect(|_| actor.report()),
            1 => {
                actor.reported(1).await;
                add(actor, &[y]).await
            }
            _ => actor.snapshot(ATTEMPTS, &apart.rows).await,
        },
        |scene| {
            let Some(read) = &scene.said[2] else { return Ok(()) };
            let (first, second) = (has(read[0], of(0)), has(read[1], of(1)));
            check(first || !second, || format!("the snapshot has the second writer only: {read:x?}"))
        },
    )
}
