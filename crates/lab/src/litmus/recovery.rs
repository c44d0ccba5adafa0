//! The litmus programs of recovery: a client is taken for dead at any time, whether it is or not,
//! and another one recovers it.
//!
//! Every transaction that writes adds an amount of its own to each of its records. So the values
//! say which transactions have committed, and that none was lost, done twice, or done in part.

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::node::ReadScheme;
use remora::floors::node::ReadScheme::{Checksum, LineVersions, SingleLine};
use remora::floors::txn::recovery::Verdict;
use remora::floors::txn::{Inspection, Slot, Stop, Tx};
use remora::protocol::Protocol;

use super::stage::{
    Actor, Answer, Broken, Explored, Row, Said, Scene, Stage, amount, check, get, insert, put, want, want_to_change,
    want_to_delete, want_to_insert, words,
};

type Outcome = Exploration<Broken>;

/// The number of memory nodes of most programs.
const NODES: u16 = 2;
const TWO_LINES: usize = 8;

/// Client 0 is taken for dead, and client 1 recovers it.
const SUSPECTED: [(usize, usize); 1] = [(0, 1)];
/// Client 1 is taken for dead as well, once it recovers, and client 2 recovers both.
const BOTH_SUSPECTED: [(usize, usize); 2] = [(0, 1), (1, 2)];

fn suspected(suspicions: &[(usize, usize)], runs_max: u64) -> Explored {
    Explored { suspicions: suspicions.to_vec(), runs_max, ..Explored::default() }
}

/// Adds the client's amount to each of these records, which `name` names.
async fn add_named(actor: &mut Actor, rows: &[Row], name: fn(&mut Tx<'_>, Row) -> Result<Slot, Stop>) -> Said {
    let amount = actor.amount();
    actor
        .once(async |tx| {
            let slots = rows.iter().map(|row| name(tx, *row)).collect::<Result<Vec<_>, _>>()?;
            tx.fetch().await?;
            for (row, slot) in rows.iter().zip(slots) {
                let value = get(tx, slot)?;
                put(tx, *row, slot, value + amount)?;
            }
            Ok(Vec::new())
        })
        .await
}

/// Adds the client's amount to each of these records.
pub(super) async fn add(actor: &mut Actor, rows: &[Row]) -> Said {
    add_named(actor, rows, want_to_change).await
}

/// Adds the client's amount to each of these records, which are named for reading only. So they are
/// locked at commit.
async fn add_late(actor: &mut Actor, rows: &[Row]) -> Said {
    add_named(actor, rows, want).await
}

/// Reads these records.
async fn read(actor: &mut Actor, rows: &[Row]) -> Said {
    let seen = actor.seen();
    actor
        .once(async |tx| {
            let slots = rows.iter().map(|row| want(tx, *row)).collect::<Result<Vec<_>, _>>()?;
            tx.fetch().await?;
            let mut values = Vec::new();
            for slot in slots {
                let all = words(tx, slot)?;
                values.push(all[0]);
                seen(all);
            }
            Ok(values)
        })
        .await
}

/// A transaction that writes: its client, its number among the client's transactions, and the rows
/// that it writes.
pub(super) struct Writes<'a> {
    pub(super) client: usize,
    pub(super) nth: usize,
    pub(super) rows: &'a [Row],
}

pub(super) fn writes(client: usize, rows: &[Row]) -> Writes<'_> {
    Writes { client, nth: 0, rows }
}

/// Checks the end of a run that had these transactions, and others that only read:
///
/// 1. No client has left anything behind.
/// 2. The values agree with what clients were told.
/// 3. What was read was committed.
pub(super) fn judge(scene: &Scene<'_>, rows: &[Row], all: &[Writes<'_>]) -> Result<(), Broken> {
    scene.apply();
    let mut values = Vec::new();
    for row in rows {
        let (found, inspection) = scene.look(&[*row]);
        clean(&inspection)?;
        let [value] = found[..] else { return Err(format!("a record is there as {found:?}")) };
        values.push((*row, value));
    }
    let value_of = |row: &Row| values.iter().find(|(one, _)| one == row).map_or(0, |(_, value)| *value);
    let mut committed = 0;
    for Writes { client, nth, rows } in all {
        let amount = amount(*client, *nth);
        let there = value_of(&rows[0]) & amount != 0;
        check(rows.iter().all(|row| (value_of(row) & amount != 0) == there), || {
            format!("client {client} has committed in part: {values:?}")
        })?;
        committed |= if there { amount } else { 0 };
        answers(scene, (*client, *nth), there)?;
    }
    for (row, value) in &values {
        let of_row = all.iter().filter(|one| one.rows.contains(row)).map(|one| amount(one.client, one.nth));
        let expected: u64 = of_row.filter(|amount| amount & committed != 0).sum();
        check(*value == expected, || format!("a record is {value:#x}, not {expected:#x}"))?;
    }
    for seen in &scene.seen {
        check(seen.iter().all(|word| *word == seen[0]), || format!("a part of a write was seen: {seen:x?}"))?;
        check(seen[0] & !committed == 0, || format!("{:#x} was seen, which never was", seen[0]))?;
    }
    Ok(())
}

/// Checks that nothing is locked, invisible or torn, and that replicas are equal.
fn clean(found: &Inspection) -> Result<(), Broken> {
    check(found.locked + found.torn + found.differing_lines == 0, || format!("something is left: {found:?}"))
}

/// Checks the end of a run as [`judge`] does, and also that no undo entry is left.
fn judge_all(scene: &Scene<'_>, rows: &[Row], all: &[Writes<'_>]) -> Result<(), Broken> {
    let entries = scene.undo_entries();
    check(entries == 0, || format!("{entries} undo entries are left"))?;
    judge(scene, rows, all)
}

/// Checks that the outcome that was reported, and the outcome that recovery has found, agree with
/// whether the transaction is there.
fn answers(scene: &Scene<'_>, (client, nth): (usize, usize), there: bool) -> Result<(), Broken> {
    for told in scene.told.iter().filter(|told| (told.client, told.nth) == (client, nth)) {
        let reported = match told.answer {
            Answer::Committed => Some(true),
            Answer::Aborted => Some(false),
            Answer::Unknown => None,
        };
        let verdicts = scene.verdicts_of(*told).map(|verdict| match verdict {
            Verdict::Committed => Some(true),
            Verdict::Aborted => Some(false),
            Verdict::Undecided | Verdict::Forgotten => None,
        });
        for (who, said) in std::iter::once(("its client", reported)).chain(verdicts.map(|said| ("who asks", said))) {
            check(said.is_none_or(|said| said == there), || {
                let [said, is] = [!there, there].map(|there| if there { "committed" } else { "aborted" });
                format!("transaction {nth} of client {client} has {is}, and {who} was told that it has {said}")
            })?;
        }
    }
    Ok(())
}

/// Checks that a reader has seen each other transaction as a whole, or not at all.
fn sees_whole(scene: &Scene<'_>, reader: usize, all: &[Writes<'_>]) -> Result<(), Broken> {
    let Some(seen) = &scene.said[reader] else { return Ok(()) };
    all.iter().try_for_each(|Writes { client, nth, .. }| {
        let amount = amount(*client, *nth);
        check(seen.iter().all(|value| value & amount == seen[0] & amount), || {
            format!("{seen:x?} were seen of what changes together")
        })
    })
}

/// One client writes a record, and is taken for dead.
fn one_writer(protocol: Protocol, nodes: u16, scheme: ReadScheme, words: usize, explored: &Explored) -> Outcome {
    let mut stage = Stage::new(nodes, &[protocol; 2]).tight();
    let rows = [stage.table(scheme, words, &[0])(0)];
    stage.explore(
        explored,
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| add(actor, &rows).await,
        |scene| judge_all(scene, &rows, &[writes(0, &rows)]),
    )
}

pub(super) fn one_line(protocol: Protocol, runs_max: u64) -> Outcome {
    one_writer(protocol, NODES, SingleLine, 1, &suspected(&SUSPECTED, runs_max))
}

pub(super) fn two_lines(protocol: Protocol, runs_max: u64) -> Outcome {
    one_writer(protocol, NODES, LineVersions, TWO_LINES, &suspected(&SUSPECTED, runs_max))
}

pub(super) fn two_lines_checksum(protocol: Protocol, runs_max: u64) -> Outcome {
    one_writer(protocol, NODES, Checksum, TWO_LINES, &suspected(&SUSPECTED, runs_max))
}

/// One client writes the only copy of a record of one line, and is taken for dead. Each WRITE may
/// be cut short between two words.
pub(super) fn words_of_a_line(protocol: Protocol, runs_max: u64) -> Outcome {
    let explored = Explored { words: true, ..suspected(&SUSPECTED, runs_max) };
    one_writer(protocol, 1, SingleLine, 1, &explored)
}

/// One client writes a record whose location it does not know, and is taken for dead. It first
/// looks up the location, and takes the lock afterwards.
pub(super) fn cold(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 2]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, _| (),
        async |_, actor| add(actor, &rows).await,
        |scene| judge(scene, &rows, &[writes(0, &rows)]),
    )
}

/// One client writes a record, and is taken for dead, while another writes it.
pub(super) fn two_writers(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| add(actor, &rows).await,
        |scene| judge(scene, &rows, &[writes(0, &rows), writes(2, &rows)]),
    )
}

/// One client writes a record, which it locks at commit, and is taken for dead, while another
/// writes the record.
pub(super) fn two_late_writers(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| if client == 0 { add_late(actor, &rows).await } else { add(actor, &rows).await },
        |scene| judge(scene, &rows, &[writes(0, &rows), writes(2, &rows)]),
    )
}

/// One client writes a record, and is taken for dead, while another writes it and tries again. The
/// second one would free the locks of clients that it knows to be recovered, but it knows of none.
pub(super) fn no_lazy_unlock(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            if client == 2 {
                actor.watch_for(&[]);
                add(actor, &rows).await;
            }
            add(actor, &rows).await
        },
        |scene| {
            let again = Writes { nth: 1, ..writes(2, &rows) };
            judge(scene, &rows, &[writes(0, &rows), writes(2, &rows), again])
        },
    )
}

/// One client writes a record, and is taken for dead. Another begins when the recoverer has
/// decided. It frees the locks that it meets, as the recoverer does, and tries again. A third one
/// writes the record as well.
pub(super) fn lazy_unlock(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 4]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            if client == 2 {
                actor.recovered(&[0]).await;
                add(actor, &rows).await;
            }
            add(actor, &rows).await
        },
        |scene| {
            let again = Writes { nth: 1, ..writes(2, &rows) };
            judge(scene, &rows, &[writes(0, &rows), writes(2, &rows), again, writes(3, &rows)])
        },
    )
}

/// One client writes a record, and is taken for dead. So is its recoverer, which may also stop at
/// any time.
pub(super) fn successor(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &Explored { crash: Some(1), ..suspected(&BOTH_SUSPECTED, runs_max) },
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| add(actor, &rows).await,
        |scene| judge(scene, &rows, &[writes(0, &rows)]),
    )
}

/// One client writes a record, and is taken for dead. So is its recoverer, while another client
/// writes the record.
pub(super) fn successor_and_writer(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 4]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&BOTH_SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| add(actor, &rows).await,
        |scene| judge(scene, &rows, &[writes(0, &rows), writes(3, &rows)]),
    )
}

/// A client that begins when the recoverer has decided reads the record and another one. Whatever
/// the outcome of the writer, this client can read both after some attempts.
pub(super) fn read_behind_recovery(protocol: Protocol, runs_max: u64) -> Outcome {
    /// The number of attempts of the reader. Its first ones may meet the dead client's lock.
    const ATTEMPTS: u32 = 8;
    let mut stage = Stage::new(1, &[protocol; 3]).tight();
    let records = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [records(0), records(1)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            if client == 0 {
                return add(actor, &rows[..1]).await;
            }
            actor.recovered(&[0]).await;
            actor
                .attempt(ATTEMPTS, async |tx| {
                    let slots = [want(tx, rows[0])?, want(tx, rows[1])?];
                    tx.fetch().await?;
                    Ok(vec![get(tx, slots[0])?, get(tx, slots[1])?])
                })
                .await
        },
        |scene| {
            let (values, _) = scene.look(&rows);
            check(scene.said[2].as_ref() == Some(&values), || format!("{:?} was read, not {values:?}", scene.said[2]))?;
            judge(scene, &rows, &[writes(0, &rows[..1])])
        },
    )
}

/// A recoverer crashes anywhere, and no other follows it. Each node alone shows which of its
/// records are half written.
pub(super) fn half_recovered(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 2]).tight();
    let record = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { crash: Some(1), ..suspected(&SUSPECTED, runs_max) },
        async |_, actor| actor.look_up(&[record]).await,
        async |_, actor| add(actor, &[record]).await,
        |scene| {
            (0..NODES).try_for_each(|node| {
                let (version, _) = scene.replica(node, record);
                check(version >> 63 == 0 || scene.undo_entries_at(node) > 0, || {
                    format!("node {node} has a record half written, and no entry that names it")
                })
            })
        },
    )
}

/// One client writes two records with opposite primaries, and is taken for dead. Another client
/// reads both.
pub(super) fn opposite_primaries(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0), stage.table_at(1, NODES, SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| if client == 0 { add(actor, &rows).await } else { read(actor, &rows).await },
        |scene| {
            let all = [writes(0, &rows)];
            judge(scene, &rows, &all)?;
            sees_whole(scene, 2, &all)
        },
    )
}

/// One client writes two records that have no node in common, and is taken for dead.
pub(super) fn no_common_node(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 2]).tight();
    let rows = [stage.table_at(0, 1, SingleLine, 1, &[0])(0), stage.table_at(1, 1, SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| add(actor, &rows).await,
        |scene| judge(scene, &rows, &[writes(0, &rows)]),
    )
}

/// One client writes two records, and is taken for dead. Another client reads them, one of them at
/// a backup.
pub(super) fn reader(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let table = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [table(0), table(1)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| if client == 0 { add(actor, &rows).await } else { read(actor, &rows).await },
        |scene| {
            let all = [writes(0, &rows)];
            judge(scene, &rows, &all)?;
            sees_whole(scene, 2, &all)
        },
    )
}

/// One client writes a record, and is taken for dead. Another client reads it twice.
pub(super) fn two_reads(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            if client == 0 {
                return add(actor, &rows).await;
            }
            let first = read(actor, &rows).await;
            let second = read(actor, &rows).await;
            Some([first.unwrap_or_default(), second.unwrap_or_default()].concat())
        },
        |scene| {
            judge(scene, &rows, &[writes(0, &rows)])?;
            let seen = scene.said[2].as_deref().unwrap_or(&[]);
            check(seen.is_sorted(), || format!("{seen:?} were seen one after the other"))
        },
    )
}

/// One client writes a record of two lines, and is taken for dead. Then another writes it. A third
/// one reads it all the time. The program is not explored to the end, which would take 165 000
/// runs.
pub(super) fn reader_of_lines(protocol: Protocol, runs_max: u64) -> Outcome {
    const RUNS: u64 = 40_000;
    let mut stage = Stage::new(1, &[protocol; 4]).tight();
    // The first client has not written the second record yet when it is undone.
    let all = [stage.table(LineVersions, TWO_LINES, &[0])(0), stage.table(SingleLine, 1, &[0])(0)];
    let rows = [all[0]];
    stage.explore(
        &suspected(&SUSPECTED, runs_max.min(RUNS)),
        async |_, actor| actor.look_up(&all).await,
        async |client, actor| match client {
            0 => add(actor, &all).await,
            2 => {
                actor.recovered(&[0]).await;
                add(actor, &rows).await
            }
            _ => read(actor, &rows).await,
        },
        |scene| judge(scene, &all, &[writes(0, &all), writes(2, &rows)]),
    )
}

/// One client writes a record because of what it has read of another record, and is taken for dead.
/// Another client writes that other record.
pub(super) fn skew(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]).tight();
    let halves = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [halves(0), halves(1)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            if client == 2 {
                return add(actor, &rows[1..]).await;
            }
            let amount = actor.amount();
            actor
                .once(async |tx| {
                    let (own, other) = (want_to_change(tx, rows[0])?, want(tx, rows[1])?);
                    tx.fetch().await?;
                    let value = get(tx, own)?;
                    put(tx, rows[0], own, value + amount)?;
                    Ok(vec![get(tx, other)?])
                })
                .await
        },
        |scene| judge(scene, &rows, &[writes(0, &rows[..1]), writes(2, &rows[1..])]),
    )
}

/// One client writes a record and then another one whose primary is elsewhere, and is taken for
/// dead, as is its recoverer. The entry of the second write has the place of the first one's entry.
pub(super) fn two_in_a_row(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0), stage.table_at(1, NODES, SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&BOTH_SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| {
            add(actor, &rows[..1]).await;
            add(actor, &rows[1..]).await
        },
        |scene| {
            let second = Writes { nth: 1, ..writes(0, &rows[1..]) };
            judge(scene, &rows, &[writes(0, &rows[..1]), second])
        },
    )
}

/// One client writes a record twice, and is taken for dead, while another writes it.
pub(super) fn again(protocol: Protocol, runs_max: u64) -> Outcome {
    again_of(SingleLine, 1, protocol, runs_max)
}

/// One client writes a record of two lines twice, and is taken for dead, while another writes it.
pub(super) fn again_two_lines(protocol: Protocol, runs_max: u64) -> Outcome {
    again_of(Checksum, TWO_LINES, protocol, runs_max)
}

fn again_of(scheme: ReadScheme, words: usize, protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(scheme, words, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            add(actor, &rows).await;
            if client == 0 { add(actor, &rows).await } else { None }
        },
        |scene| judge(scene, &rows, &[writes(0, &rows), Writes { nth: 1, ..writes(0, &rows) }, writes(2, &rows)]),
    )
}

/// One client writes two records, each at a node of its own. Then it writes one of them again,
/// under the lock that it takes over, and is taken for dead.
pub(super) fn heir(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 2]).tight();
    let rows = [0, 1].map(|node| stage.table_at(node, 1, SingleLine, 1, &[0])(0));
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| {
            add(actor, &rows).await;
            add(actor, &rows[..1]).await
        },
        |scene| judge_all(scene, &rows, &[writes(0, &rows), Writes { nth: 1, ..writes(0, &rows[..1]) }]),
    )
}

/// Each of two clients takes its half of a pair if both halves are there, and one of the clients is
/// taken for dead. One half stays.
pub(super) fn skew_of_two(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]).tight();
    let halves = stage.table(SingleLine, 1, &[1, 1]);
    let rows = [halves(0), halves(1)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            let (own, other) = (rows[client / 2], rows[1 - client / 2]);
            actor
                .once(async |tx| {
                    let (slot, other) = (want_to_change(tx, own)?, want(tx, other)?);
                    tx.fetch().await?;
                    if get(tx, slot)? + get(tx, other)? == 2 {
                        put(tx, own, slot, 0)?;
                    }
                    Ok(Vec::new())
                })
                .await
        },
        |scene| {
            let (values, found) = scene.look(&rows);
            clean(&found)?;
            check(values.iter().sum::<u64>() >= 1, || "both halves were taken, each because the other was there".into())
        },
    )
}

/// One client writes two records with opposite primaries, and is taken for dead. Another client
/// writes one of them.
pub(super) fn one_of_two(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 3]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0), stage.table_at(1, NODES, SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| add(actor, if client == 0 { &rows } else { &rows[..1] }).await,
        |scene| judge(scene, &rows, &[writes(0, &rows), writes(2, &rows[..1])]),
    )
}

/// Two clients write a record, and both are taken for dead, each by another client.
pub(super) fn two_victims(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 4]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    stage.explore(
        &suspected(&[(0, 1), (2, 3)], runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |_, actor| add(actor, &rows).await,
        |scene| judge(scene, &rows, &[writes(0, &rows), writes(2, &rows)]),
    )
}

/// Inserts a record, if its key is absent.
async fn insert_once(actor: &mut Actor, row: Row) -> Said {
    let amount = actor.amount();
    actor
        .once(async |tx| {
            let slot = want_to_insert(tx, row)?;
            tx.fetch().await?;
            insert(tx, row, slot, amount)?;
            Ok(Vec::new())
        })
        .await
}

/// Checks the end of a run in which client 0, and perhaps client 2, inserts or deletes a record. A
/// case has the values that may be there, and whether client 0 and client 2 have then committed.
fn judge_presence(scene: &Scene<'_>, row: Row, cases: &[(&[u64], bool, bool)]) -> Result<(), Broken> {
    let (values, found) = scene.look(&[row]);
    clean(&found)?;
    let case = cases.iter().find(|(there, ..)| *there == values);
    let Some((_, first, second)) = case else { return Err(format!("{values:x?} is there")) };
    answers(scene, (0, 0), *first)?;
    answers(scene, (2, 0), *second)
}

/// One client inserts a record beside another, and is taken for dead.
pub(super) fn inserter(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(NODES, &[protocol; 2]);
    let table = stage.table(SingleLine, 1, &[0]);
    let row = table(1);
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, _| (),
        async |_, actor| insert_once(actor, row).await,
        |scene| judge_presence(scene, row, &[(&[], false, false), (&[amount(0, 0)], true, false)]),
    )
}

/// One client inserts a record, and is taken for dead, while another inserts the same key.
pub(super) fn two_inserters(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]);
    let row = stage.table(SingleLine, 1, &[])(1);
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, _| (),
        async |_, actor| insert_once(actor, row).await,
        |scene| {
            let cases: [(&[u64], _, _); 3] =
                [(&[], false, false), (&[amount(0, 0)], true, false), (&[amount(2, 0)], false, true)];
            judge_presence(scene, row, &cases)
        },
    )
}

/// One client deletes a record, and is taken for dead, while another inserts the key again.
pub(super) fn deleter(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]);
    let row = stage.table(SingleLine, 1, &[7])(0);
    stage.explore(
        &suspected(&SUSPECTED, runs_max),
        async |_, actor| actor.look_up(&[row]).await,
        async |client, actor| {
            if client == 2 {
                return insert_once(actor, row).await;
            }
            actor
                .once(async |tx| {
                    let slot = want_to_delete(tx, row)?;
                    tx.fetch().await?;
                    tx.delete(slot)?;
                    Ok(Vec::new())
                })
                .await
        },
        |scene| {
            let cases: [(&[u64], _, _); 3] = [(&[7], false, false), (&[], true, false), (&[amount(2, 0)], true, true)];
            judge_presence(scene, row, &cases)
        },
    )
}

/// One client writes a record with two backups, which apply the redo log at the end, and is taken
/// for dead.
pub(super) fn two_backups(protocol: Protocol, runs_max: u64) -> Outcome {
    one_writer(protocol, 3, SingleLine, 1, &suspected(&SUSPECTED, runs_max))
}

/// One client writes the only copy of a record, and is taken for dead.
pub(super) fn one_copy(protocol: Protocol, runs_max: u64) -> Outcome {
    one_writer(protocol, 1, SingleLine, 1, &suspected(&SUSPECTED, runs_max))
}
