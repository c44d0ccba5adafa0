//! The litmus programs of repair (protocol `rtx`): a client meets a lock, and finishes or undoes
//! the attempt that has it, whether that attempt's client is dead, slow, or about to go on.
//!
//! Suspicion is free: a client takes every lock that it meets for that of a dead client. Every
//! transaction that writes adds an amount of its own to each of its records.

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::node::ReadScheme::Checksum;
use remora::floors::txn::{Rtx, Tx};
use remora::protocol::Protocol;

use super::stage::{
    Actor, Answer, Broken, Explored, Row, Said, Scene, Stage, amount, check, get, insert, put, want, want_to_change,
    want_to_insert,
};

type Outcome = Exploration<Broken>;

/// The protocol of clients that suspect whatever they meet.
const SUSPICIOUS: Protocol = Protocol::Rtx(Rtx { suspicion_ns: 0, ..Rtx::USUAL });

/// The protocol of clients that lock nothing in execution.
const LATE: Protocol = Protocol::Rtx(Rtx { locks_early: false, ..Rtx::USUAL });

/// How often a client tries, which meets the locks of one other.
const ATTEMPTS: u32 = 4;

fn within(runs_max: u64) -> Explored {
    Explored { runs_max, ..Explored::default() }
}

/// Adds the client's amount to each of these records.
async fn add(actor: &mut Actor, attempts: u32, rows: &[Row]) -> Said {
    let amount = actor.amount();
    actor
        .attempt(attempts, async |tx| {
            let slots = rows.iter().map(|row| want_to_change(tx, *row)).collect::<Result<Vec<_>, _>>()?;
            tx.fetch().await?;
            for (row, slot) in rows.iter().zip(slots) {
                let value = get(tx, slot)?;
                put(tx, *row, slot, value + amount)?;
            }
            Ok(Vec::new())
        })
        .await
}

/// Reads a record.
async fn read(actor: &mut Actor, attempts: u32, row: Row) -> Said {
    actor
        .attempt(attempts, async |tx| {
            let slot = want(tx, row)?;
            tx.fetch().await?;
            Ok(vec![get(tx, slot)?])
        })
        .await
}

/// Checks that each transaction has changed all its records or none, and that this agrees with what
/// its client was told. `all` has a client and the records that it adds to, for each transaction.
fn judge(scene: &Scene<'_>, rows: &[Row], all: &[(usize, &[Row])]) -> Result<(), Broken> {
    let mut values = Vec::new();
    for row in rows {
        let (found, inspection) = scene.look(&[*row]);
        check(inspection.torn == 0, || format!("{inspection:?}"))?;
        let [value] = found[..] else { return Err(format!("a record is there as {found:?}")) };
        values.push((*row, value));
    }
    let value_of = |row: &Row| values.iter().find(|(one, _)| one == row).map_or(0, |(_, value)| *value);
    for (client, of_client) in all {
        let has = |row: &&Row| value_of(row) & amount(*client, 0) != 0;
        let there = of_client.iter().filter(has).count();
        let told = scene.told.iter().find(|told| told.client == *client && told.nth == 0).map(|told| told.answer);
        let right = match told {
            Some(Answer::Committed) => there == of_client.len(),
            Some(Answer::Aborted) => there == 0,
            // A client that has died may have committed what nobody has met yet.
            Some(Answer::Unknown) | None => true,
        };
        check(right, || format!("client {client} was told {told:?}, and {there} records have it: {values:x?}"))?;
    }
    let sum: u64 = all.iter().map(|(client, _)| amount(*client, 0)).sum();
    check(values.iter().all(|(_, value)| value & !sum == 0), || format!("added twice: {values:x?}"))
}

/// Explores a transaction that writes two records, beside another client that writes one of them,
/// and suspects the first.
pub(super) fn two_beside_one(_: Protocol, runs_max: u64) -> Outcome {
    beside_one(runs_max, async |actor, both| add(actor, 1, both).await)
}

/// Explores what a client does that writes two records, beside another client that writes the first
/// of them, and suspects the first client.
fn beside_one(runs_max: u64, write_both: impl AsyncFn(&mut Actor, &[Row]) -> Said) -> Outcome {
    let mut stage = Stage::new(1, &[Protocol::RTX, SUSPICIOUS]);
    let rows = stage.table(Checksum, 1, &[0, 0]);
    let both = [rows(0), rows(1)];
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&both).await,
        async |client, actor| match client {
            0 => write_both(actor, &both).await,
            _ => add(actor, ATTEMPTS, &both[..1]).await,
        },
        |scene| judge(scene, &both, &[(0, &both), (1, &both[..1])]),
    )
}

/// Explores two transactions that each write the same record, without a log, and lock it in
/// execution. One of them suspects the other.
pub(super) fn one_beside_one(_: Protocol, runs_max: u64) -> Outcome {
    two_of_one(Protocol::RTX, runs_max)
}

/// Explores the same, but the suspect locks the record when it commits.
pub(super) fn late_beside_one(_: Protocol, runs_max: u64) -> Outcome {
    two_of_one(LATE, runs_max)
}

fn two_of_one(suspect: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[suspect, SUSPICIOUS]);
    let row = stage.table(Checksum, 1, &[0])(0);
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[row]).await,
        async |client, actor| add(actor, if client == 0 { 1 } else { ATTEMPTS }, &[row]).await,
        |scene| judge(scene, &[row], &[(0, &[row]), (1, &[row])]),
    )
}

/// Explores a transaction that locks a record in execution, and then names another one and writes
/// both, beside a client that writes the first one, and suspects the lock.
pub(super) fn early_beside_one(_: Protocol, runs_max: u64) -> Outcome {
    beside_one(runs_max, async |actor, both| {
        let amount = actor.amount();
        let one_by_one = async |tx: &mut Tx<'_>| {
            for row in both {
                let slot = want_to_change(tx, *row)?;
                tx.fetch().await?;
                let value = get(tx, slot)?;
                put(tx, *row, slot, value + amount)?;
            }
            Ok(Vec::new())
        };
        actor.once(one_by_one).await
    })
}

/// Explores a transaction that writes one record, without a log, beside another client that
/// suspects it and writes this record and another one.
pub(super) fn one_beside_two(_: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[Protocol::RTX, SUSPICIOUS]);
    let rows = stage.table(Checksum, 1, &[0, 0]);
    let both = [rows(0), rows(1)];
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&both).await,
        async |client, actor| match client {
            0 => add(actor, 1, &both[..1]).await,
            _ => add(actor, ATTEMPTS, &both).await,
        },
        |scene| judge(scene, &both, &[(0, &both[..1]), (1, &both)]),
    )
}

/// Explores the death, at any time, of a client whose transaction writes two records. Another
/// client writes one of them: it must not be kept from that.
pub(super) fn dead_beside_one(_: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[Protocol::RTX, SUSPICIOUS]);
    let rows = stage.table(Checksum, 1, &[0, 0]);
    let both = [rows(0), rows(1)];
    stage.explore(
        &Explored { crash: Some(0), ..within(runs_max) },
        async |_, actor| actor.look_up(&both).await,
        async |client, actor| match client {
            0 => add(actor, 1, &both).await,
            _ => add(actor, ATTEMPTS, &both[..1]).await,
        },
        |scene| {
            let (values, found) = scene.look(&both[..1]);
            for told in &scene.told {
                let has = values.iter().any(|value| value & amount(told.client, 0) != 0);
                // What has been decided, and nobody has met, may not be done yet.
                let is_right = match told.answer {
                    Answer::Committed => has || found.locked > 0,
                    Answer::Aborted => !has,
                    Answer::Unknown => true,
                };
                check(is_right, || format!("{told:?}, and the record has {values:x?}"))?;
            }
            check(scene.said[1].is_some(), || "a client was kept from its record".into())
        },
    )
}

/// Explores the death, at any time, of a client that inserts a record. Another client looks for it
/// when the insert was reported, if it ever is.
pub(super) fn dead_inserter(_: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[Protocol::RTX, SUSPICIOUS]);
    let rows = stage.table(Checksum, 1, &[0]);
    let row = rows(1);
    stage.explore(
        &Explored { crash: Some(0), ..within(runs_max) },
        async |_, _| (),
        async |client, actor| {
            if client == 1 {
                return if actor.reported_or_never(1).await { read(actor, ATTEMPTS, row).await } else { None };
            }
            let said = actor
                .once(async |tx| {
                    let slot = want_to_insert(tx, row)?;
                    tx.fetch().await?;
                    insert(tx, row, slot, amount(0, 0))?;
                    Ok(Vec::new())
                })
                .await;
            if said.is_some() {
                actor.report();
            }
            said
        },
        |scene| {
            // A reader that finds no record is stopped by that, and has committed nothing.
            let read = scene.told.iter().find(|told| told.client == 1);
            let seen = scene.said[1].as_deref();
            check(read.is_none() || seen == Some(&[amount(0, 0)]), || format!("{seen:?} was read after the report"))
        },
    )
}

/// Explores a transaction that writes two records, and a reader that begins when it was reported.
pub(super) fn read_what_was_reported(_: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[Protocol::RTX, Protocol::RTX]);
    let rows = stage.table(Checksum, 1, &[0, 0]);
    let both = [rows(0), rows(1)];
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&both).await,
        async |client, actor| match client {
            0 => {
                let said = add(actor, 1, &both).await;
                if said.is_some() {
                    actor.report();
                }
                said
            }
            _ => {
                actor.reported(1).await;
                read(actor, ATTEMPTS, both[1]).await
            }
        },
        |scene| {
            judge(scene, &both, &[(0, &both)])?;
            let seen = scene.said[1].as_deref();
            check(seen.is_none_or(|seen| seen == [amount(0, 0)]), || format!("{seen:x?} was read after the report"))
        },
    )
}
