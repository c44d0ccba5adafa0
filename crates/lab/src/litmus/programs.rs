//! The litmus programs: what each client does, and what must hold at the end.

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::node::ReadScheme;
use remora::floors::node::ReadScheme::{Checksum, LineVersions, SingleLine};
use remora::floors::node::limits::RING_BYTES;
use remora::floors::node::ring::FRAME_OVERHEAD_WORDS;
use remora::floors::record::{RecordShape, layout};
use remora::floors::txn::log::{HEADER_WORDS, RECORD_WORDS};
use remora::floors::txn::{Slot, Stop, Tx};
use remora::protocol::Protocol;

use super::stage::{
    Actor, Broken, Explored, Row, Said, Scene, Stage, check, get, insert, put, want, want_to_change, want_to_delete,
    want_to_insert, words,
};

type Outcome = Exploration<Broken>;
type Want = fn(&mut Tx<'_>, Row) -> Result<Slot, Stop>;

fn within(runs_max: u64) -> Explored {
    Explored { runs_max, ..Explored::default() }
}

/// Explores write skew: each of two clients reads both halves of a pair, and takes its own half if
/// both are there. One half must stay.
pub(super) fn write_skew(protocol: Protocol, runs_max: u64) -> Outcome {
    skew(&mut Stage::new(1, &[protocol; 2]), want, runs_max, |_, _| ())
}

/// Explores write skew of two clients that each name for an update the half that they will change.
pub(super) fn write_skew_named(protocol: Protocol, runs_max: u64) -> Outcome {
    skew(&mut Stage::new(1, &[protocol; 2]), want_to_change, runs_max, |_, _| ())
}

/// Explores write skew of two clients whose reads may go to a backup.
pub(super) fn write_skew_backup(protocol: Protocol, runs_max: u64) -> Outcome {
    skew(&mut Stage::new(2, &[protocol; 2]), want_to_change, runs_max, |_, _| ())
}

/// Explores write skew of two clients that also read a third record. A version of it was published,
/// but no transaction has written that version. So both clients have to read the record again at
/// its primary.
pub(super) fn write_skew_beside_a_miss(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    skew(&mut stage, want_to_change, runs_max, |stage, rows| {
        let third = stage.table(SingleLine, 1, &[0])(0);
        stage.publish(third);
        rows.push(third);
    })
}

/// Explores write skew of two clients whose version cache has no room.
pub(super) fn write_skew_without_room(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    skew(&mut stage, want_to_change, runs_max, |stage, _| stage.fill_version_cache())
}

/// Checks that not both halves of a pair were taken, and that no lock is left.
fn one_half_is_left(scene: &Scene<'_>, halves: &[Row]) -> Result<(), Broken> {
    let (values, found) = scene.look(halves);
    check(values.iter().sum::<u64>() >= 1, || "both halves were taken, each because the other was there".into())?;
    check(found.locked == 0, || format!("{found:?}"))
}

fn skew(stage: &mut Stage, want_own: Want, runs_max: u64, prepare: impl Fn(&mut Stage, &mut Vec<Row>)) -> Outcome {
    let halves = stage.table(SingleLine, 1, &[1, 1]);
    let mut rows = vec![halves(0), halves(1)];
    prepare(stage, &mut rows);
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let mut slots = Vec::new();
                    for (half, row) in rows.iter().copied().enumerate() {
                        slots.push(if half == client { want_own(tx, row)? } else { want(tx, row)? });
                    }
                    tx.fetch().await?;
                    if get(tx, slots[0])? + get(tx, slots[1])? == 2 {
                        put(tx, rows[client], slots[client], 0)?;
                    }
                    Ok(Vec::new())
                })
                .await
        },
        |scene| one_half_is_left(scene, &rows[..2]),
    )
}

/// Explores write skew in which each client first reads the other's half, and then names its own
/// half and what it will do with it.
pub(super) fn write_skew_in_turn(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let halves = stage.table(SingleLine, 1, &[1, 1]);
    let rows = [halves(0), halves(1)];
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let other = want(tx, rows[1 - client])?;
                    tx.fetch().await?;
                    let own = want_to_change(tx, rows[client])?;
                    tx.fetch().await?;
                    if get(tx, other)? + get(tx, own)? == 2 {
                        put(tx, rows[client], own, 0)?;
                    }
                    Ok(Vec::new())
                })
                .await
        },
        |scene| one_half_is_left(scene, &rows),
    )
}

/// Each client adds one to one record, once. The increments that committed must be there.
fn increments(protocol: Protocol, clients: usize, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &vec![protocol; clients]);
    let counter = stage.table(SingleLine, 1, &[0])(0);
    counted(&stage, counter, &within(runs_max))
}

/// Adds one to a counter, in one attempt.
async fn increment(actor: &mut Actor, counter: Row) -> Said {
    actor
        .once(async |tx| {
            let slot = want(tx, counter)?;
            tx.fetch().await?;
            let value = get(tx, slot)?;
            put(tx, counter, slot, value + 1)?;
            Ok(Vec::new())
        })
        .await
}

fn counted(stage: &Stage, counter: Row, explored: &Explored) -> Outcome {
    stage.explore(
        explored,
        async |_, actor| actor.look_up(&[counter]).await,
        async |_, actor| increment(actor, counter).await,
        |scene| counts(scene, counter),
    )
}

/// Checks that all committed increments are there, and that nothing is locked.
fn counts(scene: &Scene<'_>, counter: Row) -> Result<(), Broken> {
    let (values, found) = scene.look(&[counter]);
    let committed = scene.committed();
    check(values == [committed], || format!("{committed} increments have committed, the counter says {values:?}"))?;
    check(found.locked == 0, || format!("{found:?}"))
}

pub(super) fn lost_update(protocol: Protocol, runs_max: u64) -> Outcome {
    increments(protocol, 2, runs_max)
}

/// One client holds the lock, a second one fails to get it and aborts, and a third one comes.
pub(super) fn complicit_abort(protocol: Protocol, runs_max: u64) -> Outcome {
    increments(protocol, 3, runs_max)
}

/// One client writes a record of two lines, and another reads it. The reader sees all or nothing,
/// even if it will not commit.
fn torn(protocol: Protocol, scheme: ReadScheme, runs_max: u64) -> Outcome {
    const WORDS: usize = 8;
    let mut stage = Stage::new(1, &[protocol; 2]);
    let record = stage.table(scheme, WORDS, &[0])(0);
    let torn = std::cell::Cell::new(false);
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[record]).await,
        async |client, actor| {
            let mut seen = Vec::new();
            let said = actor
                .once(async |tx| {
                    let slot = want(tx, record)?;
                    tx.fetch().await?;
                    seen = words(tx, slot)?;
                    if client == 0 {
                        put(tx, record, slot, 1)?;
                    }
                    Ok(Vec::new())
                })
                .await;
            torn.set(torn.get() | seen.iter().any(|word| *word != seen[0]));
            said
        },
        |scene| {
            let (values, found) = scene.look(&[record]);
            let committed = u64::from(scene.said[0].is_some());
            check(!torn.take(), || "a client has seen a part of a write".into())?;
            check(values == [committed] && found.torn + found.locked == 0, || format!("{values:?}, {found:?}"))
        },
    )
}

pub(super) fn torn_lines(protocol: Protocol, runs_max: u64) -> Outcome {
    torn(protocol, LineVersions, runs_max)
}

pub(super) fn torn_checksum(protocol: Protocol, runs_max: u64) -> Outcome {
    torn(protocol, Checksum, runs_max)
}

/// A client crashes anywhere while it writes a record. If its commit was reported, every replica
/// has the commit in its log.
pub(super) fn logged(protocol: Protocol, runs_max: u64) -> Outcome {
    const NODES: u16 = 3;
    let mut stage = Stage::new(NODES, &[protocol]);
    let record = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { crash: Some(0), ..within(runs_max) },
        async |_, actor| actor.look_up(&[record]).await,
        async |_, actor| {
            actor
                .once(async |tx| {
                    let slot = want(tx, record)?;
                    tx.fetch().await?;
                    put(tx, record, slot, 1)?;
                    Ok(vec![tx.id().to_bits()])
                })
                .await
        },
        |scene| {
            let Some(id) = &scene.said[0] else { return Ok(()) };
            (0..NODES).try_for_each(|node| {
                check(scene.is_logged(node, id[0]), || format!("a commit was reported that node {node} has not logged"))
            })
        },
    )
}

/// A ring is full of entries that its node has not applied. One more is written while the node
/// begins to apply them.
pub(super) fn ring_overwrite(protocol: Protocol, runs_max: u64) -> Outcome {
    /// Words of a value. Some thirty entries fill a ring.
    const WORDS: usize = 250;
    let mut stage = Stage::new(2, &[protocol]);
    let layout = layout(8, 8 * WORDS, Checksum).expect("a value that a slot has room for");
    let entry = FRAME_OVERHEAD_WORDS + HEADER_WORDS + RECORD_WORDS + RecordShape::of(&layout).image_words();
    let fit = RING_BYTES / 8 / entry as u64;
    let records = stage.table(Checksum, WORDS, &vec![0; fit as usize + 1]);
    stage.explore(
        &Explored { appliers: true, ..within(runs_max) },
        async |_, actor| {
            for number in 0..fit {
                write(actor, records(number)).await;
            }
            while actor.session.lane().background() > 0 {
                actor.session.lane().sleep(1).await;
            }
        },
        async |_, actor| write(actor, records(fit)).await,
        |scene| {
            scene.apply();
            let (_, found) = scene.look(&[records(0)]);
            check(scene.committed() == 1, || "a client that can wait for room has not committed".into())?;
            check(found.differing_lines == 0, || format!("the backup has missed a write: {found:?}"))
        },
    )
}

async fn write(actor: &mut super::stage::Actor, row: Row) -> super::stage::Said {
    actor
        .once(async |tx| {
            let slot = want_to_change(tx, row)?;
            tx.fetch().await?;
            put(tx, row, slot, 1)?;
            Ok(Vec::new())
        })
        .await
}

/// Two clients write one record, and its backup applies their entries at any time.
pub(super) fn backup_order(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(2, &[protocol; 2]);
    let record = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { appliers: true, ..within(runs_max) },
        async |_, actor| actor.look_up(&[record]).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let slot = want(tx, record)?;
                    tx.fetch().await?;
                    put(tx, record, slot, client as u64 + 1)?;
                    Ok(Vec::new())
                })
                .await
        },
        |scene| {
            scene.apply();
            let (_, found) = scene.look(&[record]);
            check(found.differing_lines + found.locked == 0, || {
                format!("the backup is another than its primary: {found:?}")
            })
        },
    )
}

/// Two clients insert one key. It is there once, with the value of the client that committed.
pub(super) fn insert_insert(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let record = stage.table(SingleLine, 1, &[])(7);
    stage.explore(
        &within(runs_max),
        async |_, _| (),
        async |client, actor| {
            actor
                .once(async |tx| {
                    let slot = want_to_insert(tx, record)?;
                    tx.fetch().await?;
                    insert(tx, record, slot, client as u64)?;
                    Ok(vec![client as u64])
                })
                .await
        },
        |scene| {
            let said: Vec<u64> = scene.said.iter().flatten().flatten().copied().collect();
            let (values, found) = scene.look(&[record]);
            check(said.len() <= 1 && values == said, || format!("{said:?} have inserted the key, it has {values:?}"))?;
            check(found.locked + found.torn == 0 && found.records == values.len() as u64, || format!("{found:?}"))
        },
    )
}

/// One client deletes a record that another writes, and a third one gives up an insert. The only
/// slot for the insert is that of the deleted record.
pub(super) fn reused_slot(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]).tight();
    let rows = stage.table(SingleLine, 1, &[1]);
    let (old, new) = (rows(0), rows(1));
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[old]).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let name = [want_to_delete, want, want_to_insert][client];
                    let slot = name(tx, if client == 2 { new } else { old })?;
                    match (client, tx.fetch().await) {
                        (0, fetched) => fetched.and_then(|()| tx.delete(slot))?,
                        (1, fetched) => fetched.and_then(|()| put(tx, old, slot, 2))?,
                        // There may have been no room.
                        (_, _) => return Err(Stop::Exists),
                    }
                    Ok(Vec::new())
                })
                .await
        },
        |scene| {
            let (_, found) = scene.look(&[old]);
            check(found.prepared == 0, || {
                format!("the slot stays prepared for an insert that was given up: {found:?}")
            })?;
            check(found.locked + found.torn == 0, || format!("{found:?}"))
        },
    )
}

/// Client 0 has a slot linked for a key, and gives up its insert. Client 1 wants to delete the key,
/// finds that it is absent, and inserts it in the same transaction. If that commits, client 0 finds
/// the key afterwards.
pub(super) fn stale_place(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let record = stage.table(SingleLine, 1, &[])(0);
    stage.explore(
        &within(runs_max),
        async |_, _| (),
        async |client, actor| {
            if client == 1 {
                let inserted = actor.once(async |tx| {
                    want_to_delete(tx, record)?;
                    tx.fetch().await?;
                    let slot = want_to_insert(tx, record)?;
                    tx.fetch().await?;
                    insert(tx, record, slot, 2)?;
                    Ok(vec![2])
                });
                let said = inserted.await;
                actor.report();
                return said;
            }
            let given_up = actor.once(async |tx| {
                want_to_insert(tx, record)?;
                tx.fetch().await?;
                Err(Stop::Exists)
            });
            given_up.await;
            actor.reported(1).await;
            actor
                .once(async |tx| {
                    let slot = want(tx, record)?;
                    tx.fetch().await?;
                    Ok(tx.value(slot)?.map(|value| value[0].into()).into_iter().collect())
                })
                .await
        },
        |scene| {
            let [read, inserted] = [0, 1].map(|client| scene.said[client].as_deref().unwrap_or_default());
            let is_lost = !inserted.is_empty() && scene.said[0].is_some() && read != inserted;
            check(!is_lost, || format!("the key was inserted with {inserted:?}, and found with {read:?}"))?;
            let (_, found) = scene.look(&[record]);
            check(found.locked + found.torn == 0, || format!("{found:?}"))
        },
    )
}

/// One client takes a token because a key is absent. The other inserts the key because the token is
/// there. Not both may commit.
pub(super) fn absent_read(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let tokens = stage.table(SingleLine, 1, &[1]);
    let (token, absent) = (tokens(0), tokens(1));
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[token]).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let slot = want(tx, token)?;
                    let other = if client == 0 { want(tx, absent)? } else { want_to_insert(tx, absent)? };
                    tx.fetch().await?;
                    match client {
                        0 if tx.value(other)?.is_none() => put(tx, token, slot, 0)?,
                        1 if get(tx, slot)? == 1 => insert(tx, absent, other, 2)?,
                        _ => {}
                    }
                    Ok(Vec::new())
                })
                .await
        },
        |scene| {
            let (values, found) = scene.look(&[token, absent]);
            let both = values.contains(&0) && values.contains(&2);
            check(!both, || {
                "the token was taken because the key was absent, and the key inserted because it was not".into()
            })?;
            check(found.locked + found.torn == 0, || format!("{found:?}"))
        },
    )
}

/// Each of two clients inserts a key because the key of the other one is absent. Not both may
/// commit. There is no record that both lock.
pub(super) fn absent_read_each(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let rows = stage.table(SingleLine, 1, &[]);
    let keys = [rows(0), rows(1)];
    stage.explore(
        &within(runs_max),
        async |_, _| {},
        async |client, actor| {
            let (own, others) = (keys[client], keys[1 - client]);
            actor
                .once(async |tx| {
                    let (other, slot) = (want(tx, others)?, want_to_insert(tx, own)?);
                    tx.fetch().await?;
                    if tx.value(other)?.is_none() {
                        insert(tx, own, slot, 2)?;
                    }
                    Ok(Vec::new())
                })
                .await
        },
        |scene| {
            let (values, found) = scene.look(&keys);
            check(values.len() < 2, || "each key was inserted because the other one was absent".into())?;
            check(found.locked + found.torn == 0, || format!("{found:?}"))
        },
    )
}

/// One client writes a record, and its commit is reported. After that, the other begins, and reads
/// that record alone.
pub(super) fn stale_read(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let record = stage.table(Checksum, 1, &[0])(0);
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[record]).await,
        async |client, actor| {
            if client == 0 {
                let said = write(actor, record).await;
                actor.report();
                return said;
            }
            actor.reported(1).await;
            actor
                .once(async |tx| {
                    let slot = want(tx, record)?;
                    tx.fetch().await?;
                    Ok(vec![get(tx, slot)?])
                })
                .await
        },
        |scene| {
            let seen = scene.said[1].as_deref();
            check(seen.is_none_or(|seen| seen == [1]), || format!("{seen:?} was read after 1 had been reported"))
        },
    )
}

/// One client writes y, and its commit is reported. After that, another begins and writes x. A
/// transaction that sees x sees y, even if it only reads.
pub(super) fn reported_before(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]);
    let rows = stage.table(SingleLine, 1, &[0, 0]);
    let (x, y) = (rows(0), rows(1));
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[x, y]).await,
        async |client, actor| match client {
            0 => {
                let said = write(actor, y).await;
                if said.is_some() {
                    actor.report();
                }
                said
            }
            1 => {
                actor.reported(1).await;
                write(actor, x).await
            }
            _ => {
                actor
                    .once(async |tx| {
                        let y = want(tx, y)?;
                        tx.fetch().await?;
                        let x = want(tx, x)?;
                        tx.fetch().await?;
                        Ok(vec![get(tx, x)?, get(tx, y)?])
                    })
                    .await
            }
        },
        |scene| {
            let seen = scene.said[2].as_deref();
            check(seen != Some(&[1, 0]), || "x was seen without y, which had been reported before x began".into())
        },
    )
}

/// One client takes locks by its NIC, and another has the CPU take them, with the same lock words.
pub(super) fn mixed_atomics(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::with_split_atomics(&[protocol, Protocol::FARM]);
    let counter = stage.table(SingleLine, 1, &[0])(0);
    counted(&stage, counter, &within(runs_max))
}

/// Three clients add one to a record. The future of one is dropped at any time, which releases its
/// lock if it holds one.
pub(super) fn shared_ids(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]);
    let counter = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { cancel: Some((1, 0)), ..within(runs_max) },
        async |_, actor| actor.look_up(&[counter]).await,
        async |_, actor| increment(actor, counter).await,
        |scene| {
            let (values, found) = scene.look(&[counter]);
            let least = scene.committed();
            // The client whose future was dropped may have written its log already.
            let most = least + u64::from(scene.said[1].is_none());
            check(values.iter().all(|value| (least..=most).contains(value)), || {
                format!("{least} increments were reported, the counter says {values:?}")
            })?;
            check(found.locked + found.torn == 0, || format!("{found:?}"))
        },
    )
}

/// One client writes two records, and another reads both. The reader sees all or nothing.
pub(super) fn half_visible(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let rows = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [rows(0), rows(1)];
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&rows).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let slots = match client {
                        0 => [want_to_change(tx, rows[0])?, want_to_change(tx, rows[1])?],
                        _ => [want(tx, rows[0])?, want(tx, rows[1])?],
                    };
                    tx.fetch().await?;
                    let seen = vec![get(tx, slots[0])?, get(tx, slots[1])?];
                    if client == 0 {
                        put(tx, rows[0], slots[0], 1)?;
                        put(tx, rows[1], slots[1], 1)?;
                    }
                    Ok(seen)
                })
                .await
        },
        |scene| {
            let seen = scene.said[1].as_deref();
            check(seen.is_none_or(|seen| seen[0] == seen[1]), || {
                format!("{seen:?} were seen of two that change together")
            })
        },
    )
}

/// Two clients write one record, and one of them crashes. If a replica shows a version, it shows
/// the value of that version.
pub(super) fn late_release(protocol: Protocol, runs_max: u64) -> Outcome {
    const NODES: u16 = 2;
    let mut stage = Stage::new(NODES, &[protocol; 2]);
    let record = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { crash: Some(1), ..within(runs_max) },
        async |_, actor| actor.look_up(&[record]).await,
        async |client, actor| write_own(actor, record, client).await,
        |scene| shown_is_right(scene, NODES, record),
    )
}

/// One client writes a record, takes over its own lock and gives it up. Another one writes the
/// record, and crashes. If a replica shows a version, it shows the value of that version.
pub(super) fn heir_aborts(protocol: Protocol, runs_max: u64) -> Outcome {
    const NODES: u16 = 2;
    let mut stage = Stage::new(NODES, &[protocol; 2]);
    let record = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { crash: Some(1), ..within(runs_max) },
        async |_, actor| actor.look_up(&[record]).await,
        async |client, actor| {
            let written = write_own(actor, record, client).await;
            if client == 0 {
                let gives_up = actor.once(async |tx| {
                    want_to_change(tx, record)?;
                    tx.fetch().await?;
                    Err(Stop::Absent)
                });
                gives_up.await;
            }
            written
        },
        |scene| shown_is_right(scene, NODES, record),
    )
}

/// Writes a client's own value. Returns the value that was there before.
async fn write_own(actor: &mut Actor, record: Row, client: usize) -> Said {
    actor
        .once(async |tx| {
            let slot = want_to_change(tx, record)?;
            tx.fetch().await?;
            let before = get(tx, slot)?;
            put(tx, record, slot, client as u64 + 1)?;
            Ok(vec![before])
        })
        .await
}

/// Checks a record that client 0 and client 1 write once each: if a replica shows a version, it
/// shows the value of that version.
fn shown_is_right(scene: &Scene<'_>, nodes: u16, record: Row) -> Result<(), Broken> {
    // What client 0 has read tells which client came first. If client 0 has not committed, only
    // client 1 wrote.
    let first = if scene.said[0].as_deref() == Some(&[0]) { 1 } else { 2 };
    let values = [0, first, 3 - first];
    (0..nodes).try_for_each(|node| {
        let (version, value) = scene.replica(node, record);
        let visible = version >> 63 == 0;
        let expected = values.get((version as usize).wrapping_sub(2) / 2);
        check(!visible || expected == Some(&value), || {
            format!("node {node} shows {value} as version {version}, which was {expected:?}")
        })
    })
}

/// Two clients add one to a record. One of them drops the future of its fetch, and fetches again.
pub(super) fn dropped_fetch(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 2]);
    let counter = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[counter]).await,
        async |client, actor| {
            actor
                .once(async |tx| {
                    let slot = want_to_change(tx, counter)?;
                    if client == 0 {
                        let mut fetch = std::pin::pin!(tx.fetch());
                        std::future::poll_fn(|context| {
                            let _ = fetch.as_mut().poll(context);
                            std::task::Poll::Ready(())
                        })
                        .await;
                    }
                    tx.fetch().await?;
                    let value = get(tx, slot)?;
                    put(tx, counter, slot, value + 1)?;
                    Ok(Vec::new())
                })
                .await
        },
        |scene| counts(scene, counter),
    )
}

/// One client writes x because of what it has read of y. Another overwrites y, and its commit is
/// reported. After that, a third one begins and reads x alone. If the first has seen the old y, it
/// comes before the second, and the third comes after both.
pub(super) fn read_behind_lock(protocol: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[protocol; 3]);
    let rows = stage.table(SingleLine, 1, &[0, 0]);
    let (x, y) = (rows(0), rows(1));
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[x, y]).await,
        async |client, actor| match client {
            0 => {
                actor
                    .once(async |tx| {
                        let (own, other) = (want_to_change(tx, x)?, want(tx, y)?);
                        tx.fetch().await?;
                        let seen = get(tx, other)?;
                        put(tx, x, own, 1)?;
                        Ok(vec![seen])
                    })
                    .await
            }
            1 => {
                let said = write(actor, y).await;
                if said.is_some() {
                    actor.report();
                }
                said
            }
            _ => {
                actor.reported(1).await;
                actor
                    .once(async |tx| {
                        let slot = want(tx, x)?;
                        tx.fetch().await?;
                        Ok(vec![get(tx, slot)?])
                    })
                    .await
            }
        },
        |scene| {
            let (first, third) = (scene.said[0].as_deref(), scene.said[2].as_deref());
            check(first != Some(&[0]) || third != Some(&[0]), || {
                "x was read as it was before a write that comes before what had been reported".into()
            })
        },
    )
}

/// A client crashes anywhere while it writes a record. If its commit was reported, every replica
/// has the record.
pub(super) fn complete_everywhere(protocol: Protocol, runs_max: u64) -> Outcome {
    const NODES: u16 = 2;
    let mut stage = Stage::new(NODES, &[protocol]);
    let record = stage.table(SingleLine, 1, &[0])(0);
    stage.explore(
        &Explored { crash: Some(0), ..within(runs_max) },
        async |_, actor| actor.look_up(&[record]).await,
        async |_, actor| write(actor, record).await,
        |scene| {
            let reported = scene.said[0].is_some();
            (0..NODES).try_for_each(|node| {
                let (_, value) = scene.replica(node, record);
                check(!reported || value == 1, || format!("a commit was reported that node {node} does not have"))
            })
        },
    )
}

/// One client reads y and writes x, and another writes y. Then a third one begins. Whatever the
/// outcome of the first, the third can read both records after some attempts.
pub(super) fn read_behind_an_abort(protocol: Protocol, runs_max: u64) -> Outcome {
    /// The number of attempts of the third client. The unlocks of the others are still under way in
    /// its first attempts.
    const ATTEMPTS: u32 = 8;
    let mut stage = Stage::new(1, &[protocol; 3]);
    let rows = stage.table(SingleLine, 1, &[0, 0]);
    let (x, y) = (rows(0), rows(1));
    stage.explore(
        &within(runs_max),
        async |_, actor| actor.look_up(&[x, y]).await,
        async |client, actor| {
            if client == 2 {
                actor.reported(2).await;
                return actor
                    .attempt(ATTEMPTS, async |tx| {
                        let both = [want(tx, x)?, want(tx, y)?];
                        tx.fetch().await?;
                        Ok(vec![get(tx, both[0])?, get(tx, both[1])?])
                    })
                    .await;
            }
            let said = actor
                .once(async |tx| {
                    let (own, other) = if client == 0 { (x, Some(y)) } else { (y, None) };
                    let slot = want_to_change(tx, own)?;
                    let other = other.map(|other| want(tx, other)).transpose()?;
                    tx.fetch().await?;
                    let seen = other.map(|other| get(tx, other)).transpose()?;
                    put(tx, own, slot, 1)?;
                    Ok(seen.into_iter().collect())
                })
                .await;
            actor.report();
            said
        },
        |scene| {
            let expected: Vec<u64> = scene.said[..2].iter().map(|said| u64::from(said.is_some())).collect();
            check(scene.said[2].as_ref() == Some(&expected), || {
                format!("{:?} was read, {expected:?} have committed", scene.said[2])
            })
        },
    )
}
