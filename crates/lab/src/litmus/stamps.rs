//! The litmus programs of times of commits: transactions of `dst` and `gts` beside ones that read a
//! snapshot.
//!
//! There are two memory nodes and two records: X at node 0, Y at node 1. Every transaction that
//! writes adds an amount of its own, so the values say which transactions the reader has seen. Each
//! client has written a record of its own before. So of two clients, the one with the larger number
//! has a later time.

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::node::ReadScheme::SingleLine;
use remora::floors::txn::Stop;
use remora::protocol::Protocol;

use super::recovery::add;
use super::stage::{Actor, Broken, Explored, Row, Said, Scene, Stage, amount, check, get, put, want, want_to_change};

type Outcome = Exploration<Broken>;

/// The number of clients of the largest program.
const CLIENTS_MAX: usize = 3;

/// How often a snapshot is tried. Then the program goes on without it.
const ATTEMPTS: u32 = 2;

/// The stage of a program.
struct Apart {
    stage: Stage,
    /// X and Y.
    rows: [Row; 2],
    /// A record at node 1 that two clients use.
    beside: Row,
    /// A record for each client.
    own: [Row; CLIENTS_MAX],
}

impl Apart {
    fn new(protocol: Protocol, clients: usize) -> Apart {
        let mut stage = Stage::new(2, &vec![protocol; clients]);
        let mut row = |node| stage.table_at(node, 1, SingleLine, 1, &[0])(0);
        let (rows, beside, own) = ([row(0), row(1)], row(1), [row(0), row(0), row(0)]);
        Apart { stage, rows, beside, own }
    }

    /// Plays a program. Each client writes its own record before.
    fn explore(
        &self,
        runs_max: u64,
        program: impl AsyncFn(usize, &mut Actor) -> Said,
        invariant: impl Fn(&Scene<'_>) -> Result<(), Broken>,
    ) -> Outcome {
        self.stage.explore(
            &Explored { runs_max, ..Explored::default() },
            async |client, actor| _ = add(actor, &self.own[client..=client]).await,
            program,
            invariant,
        )
    }
}

/// Checks that a snapshot of X and Y has both changes of a writer, or none.
fn is_whole(writer: usize, read: &Said) -> Result<(), Broken> {
    let Some(read) = read else { return Ok(()) };
    let [x, y] = [read[0], read[1]].map(|value| value & amount(writer, 0) != 0);
    check(x == y, || format!("the snapshot has half of a transaction: {read:x?}"))
}

/// Client 0 adds to X and Y, and client 1 reads a snapshot.
pub(super) fn whole(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 2);
    apart.explore(
        runs_max,
        async |client, actor| match client {
            0 => add(actor, &apart.rows).await,
            _ => actor.snapshot(ATTEMPTS, &apart.rows).await,
        },
        |scene| is_whole(0, &scene.said[1]),
    )
}

/// Client 0 has two coroutines. One of them adds to a record of its own, and the other one to X and
/// Y. Client 1 reads a snapshot of X and Y.
pub(super) fn whole_beside_a_coroutine(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::with_coroutines(2, 2, &[protocol; 2]);
    let mut row = |node| stage.table_at(node, 1, SingleLine, 1, &[0])(0);
    let (rows, own) = ([row(0), row(1)], row(1));
    stage.explore(
        &Explored { runs_max, ..Explored::default() },
        async |_, _| (),
        async |client, actor| match (client, actor.coroutine) {
            (0, 0) => add(actor, &[own]).await,
            (0, _) => add(actor, &rows).await,
            _ => actor.snapshot(ATTEMPTS, &rows).await,
        },
        |scene| {
            let Some(read) = &scene.said[1] else { return Ok(()) };
            check(read[0] == read[1], || format!("the snapshot has half of a transaction: {read:x?}"))
        },
    )
}

/// As [`whole`], beside a later snapshot of X.
pub(super) fn whole_beside_a_claim(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 3);
    apart.explore(
        runs_max,
        async |client, actor| match client {
            0 => add(actor, &apart.rows).await,
            1 => actor.snapshot(1, &apart.rows).await,
            _ => actor.snapshot(1, &apart.rows[..1]).await,
        },
        |scene| is_whole(0, &scene.said[1]),
    )
}

/// Client 0 adds to X. Client 1 adds to X and Y behind it. Client 2 reads a snapshot, first of X
/// and then of Y.
pub(super) fn whole_twice(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 3);
    let [x, y] = apart.rows;
    apart.explore(
        runs_max,
        async |client, actor| match client {
            0 => add(actor, &[x]).await.inspect(|_| actor.report()),
            1 => {
                actor.reported(1).await;
                add(actor, &apart.rows).await
            }
            _ => actor.snapshot_of_each(1, &[x, y]).await,
        },
        |scene| is_whole(1, &scene.said[2]),
    )
}

/// Client 1 reads a record and adds to X. Client 0 adds to that record and to Y. Client 2 reads a
/// snapshot of X and Y. If client 1 has not seen the change of client 0, it is before it. So a
/// snapshot that has the change of client 0 has that of client 1.
pub(super) fn stamped(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 3);
    let ([x, y], beside) = (apart.rows, apart.beside);
    apart.explore(
        runs_max,
        async |client, actor| match client {
            0 => add(actor, &[beside, y]).await,
            1 => add_beside(actor, x, beside).await,
            _ => actor.snapshot(1, &apart.rows).await,
        },
        |scene| {
            let (Some(seen), Some(read)) = (&scene.said[1], &scene.said[2]) else { return Ok(()) };
            let is_first = seen[0] & amount(0, 0) == 0;
            let (first, second) = (read[0] & amount(1, 0) != 0, read[1] & amount(0, 0) != 0);
            let fits = if is_first { first || !second } else { second || !first };
            check(fits, || format!("client 1 has read {seen:x?}, and the snapshot {read:x?}"))
        },
    )
}

/// Client 1 adds to Y. Client 0 has then read Y, and adds to X. Client 2 reads a snapshot of X and
/// Y. If the snapshot has the change of client 0, it has that of client 1.
pub(super) fn behind(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 3);
    let [x, y] = apart.rows;
    apart.explore(
        runs_max,
        async |client, actor| match client {
            0 => {
                actor.reported(1).await;
                add_beside(actor, x, y).await
            }
            1 => add(actor, &[y]).await.inspect(|_| actor.report()),
            _ => {
                actor.reported(1).await;
                actor.snapshot(1, &apart.rows).await
            }
        },
        |scene| {
            let Some(read) = &scene.said[2] else { return Ok(()) };
            let (first, second) = (read[1] & amount(1, 0) != 0, read[0] & amount(0, 0) != 0);
            check(first || !second, || format!("the snapshot has what was read, and not its writer: {read:x?}"))
        },
    )
}

/// Client 1 reads a record and adds to X. When it has committed, client 0 adds to the record.
/// Client 2 reads a snapshot of the record and X. Client 1 has not seen the change of client 0. So
/// if the snapshot has it, it has that of client 1.
pub(super) fn behind_a_reader(protocol: Protocol, runs_max: u64) -> Outcome {
    let apart = Apart::new(protocol, 3);
    let ([x, _], beside) = (apart.rows, apart.beside);
    apart.explore(
        runs_max,
        async |client, actor| match client {
            0 => {
                actor.reported(1).await;
                add(actor, &[beside]).await
            }
            1 => add_beside(actor, x, beside).await.inspect(|_| actor.report()),
            _ => {
                actor.reported(1).await;
                actor.snapshot(1, &[x, beside]).await
            }
        },
        |scene| {
            let Some(read) = &scene.said[2] else { return Ok(()) };
            let (first, second) = (read[0] & amount(1, 0) != 0, read[1] & amount(0, 0) != 0);
            check(first || !second, || format!("the snapshot has a writer, and not a reader before it: {read:x?}"))
        },
    )
}

/// Adds the client's amount to a record, and reads another one. Returns what it has read.
async fn add_beside(actor: &mut Actor, written: Row, read: Row) -> Said {
    let amount = actor.amount();
    actor
        .once(async |tx| {
            let (own, other) = (want_to_change(tx, written)?, want(tx, read)?);
            tx.fetch().await?;
            let (seen, value) = (get(tx, other)?, get(tx, own)?);
            put(tx, written, own, value + amount)?;
            Ok::<_, Stop>(vec![seen])
        })
        .await
}
