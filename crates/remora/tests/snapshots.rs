//! Snapshots: transactions that only read, in one round trip and without validation.

mod support;

use std::cell::Cell;
use std::time::Duration;

use remora::floors::fabric::{ClientId, Fabric, NodeId};
use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Freshness, Intent, Limit, Misuse, Session, Snapshot, Table, TableOptions, Worker, WorkerOptions,
};

use support::{Words, others_run, read, table, worker};

const ROWS: u64 = 6;
const ALL: u64 = ROWS * 100;

/// The protocols with fresh snapshots at landing clocks.
const PROTOCOLS: [Protocol; 2] = [Protocol::REMORA, Protocol::DRTM_R_CLOCKS];

/// Transfers between rows at three nodes, and snapshots of all rows beside them, in seeded orders.
#[test]
fn a_snapshot_has_each_transaction_as_a_whole() {
    PROTOCOLS.into_iter().for_each(each_transaction_as_a_whole);
}

fn each_transaction_as_a_whole(protocol: Protocol) {
    let (mut snapshots, mut committed) = (0, 0);
    for seed in support::seeds(0..if support::is_long() { 1_000 } else { 100 }) {
        let (cluster, _) = support::seeded_of_either_kind(protocol, 1 + (seed % 3) as u8, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
        let mut worker = worker(&cluster, 5, seed);
        let counts = worker.run(async |number, session| {
            let mut count = [0; 2];
            for _ in 0..12 {
                let random = session.lane().random();
                if number < 2 {
                    let sum = session.snapshot(async |tx| read(tx, &rows, 0..ROWS).await).await;
                    assert_eq!(sum.unwrap(), ALL, "seed {seed}");
                    count[0] += 1;
                    continue;
                }
                let (from, to) = (random % ROWS, (random >> 8) % ROWS);
                // A writer that reads all other rows fixes its time early.
                let reads_all = random >> 16 & 1 == 1;
                let moved = session.transact(async |tx| {
                    if from == to {
                        return Ok(ALL);
                    }
                    let others: Vec<_> = (0..ROWS)
                        .filter(|row| reads_all && ![from, to].contains(row))
                        .map(|row| tx.want(&rows, row))
                        .collect();
                    let two = [from, to].map(|row| tx.want_for(&rows, row, Intent::Update));
                    tx.fetch().await?;
                    let all =
                        others.iter().chain(&two).map(|row| Ok(row.require(tx)?.0[0])).sum::<Result<u64, Error>>();
                    two[0].get_mut(tx)?.0[0] -= 1;
                    two[1].get_mut(tx)?.0[0] += 1;
                    Ok(if reads_all { all? } else { ALL })
                });
                if let Ok(sum) = moved.await {
                    assert_eq!(sum, ALL, "seed {seed}: what a writer has read");
                    count[1] += 1;
                }
            }
            count
        });
        assert!(worker.drain().unwrap());
        let found = cluster.inspect(&rows, |_| ()).unwrap();
        assert_eq!((found.locked, found.differing_lines), (0, 0), "seed {seed}: a lock is left, or a replica differs");
        snapshots += counts.iter().map(|count| count[0]).sum::<u64>();
        committed += counts.iter().map(|count| count[1]).sum::<u64>();
    }
    assert!(snapshots > 1_000 && committed > 1_000, "{snapshots} {committed}");
}

#[test]
fn a_snapshot_takes_one_round_trip() {
    for (protocol, replicas) in PROTOCOLS.into_iter().flat_map(|protocol| [(protocol, 1), (protocol, 3)]) {
        let cluster = support::embedded(protocol, replicas);
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([7u64]));
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for turn in 0..3 {
                let before = session.lane().cost();
                let run = session.snapshot(async |tx| read(tx, &rows, 0..16).await);
                assert_eq!(run.await.unwrap(), 16 * 7);
                let cost = session.lane().cost().since(&before);
                if turn > 0 {
                    assert_eq!((cost.round_trips, cost.reads, cost.writes, cost.rpcs), (1, 16, 0, 0));
                    assert_eq!(cost.atomics, 0, "nobody changes the records, so what is known of clocks is enough");
                }
            }
        });
    }
}

/// A snapshot is strict where one clock counts for all nodes. Then it looks at that clock if others
/// may have changed its records, and raises none.
#[test]
fn a_snapshot_is_strict_where_rounds_are_in_order() {
    for replicas in [1, 3] {
        let cluster = support::embedded(Protocol::REMORA, replicas);
        if !cluster.capabilities().in_order {
            continue;
        }
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([0u64]));
        let [mut reader, mut writer] = [(); 2].map(|()| cluster.worker(WorkerOptions::default()).unwrap());
        for turn in 1..4 {
            for row in 0..8 {
                let add = async |session: &mut Session| {
                    session.transact(async |tx| rows.update(tx, row, Words([turn])).await).await
                };
                writer.block_on(add).unwrap();
            }
            assert!(writer.drain().unwrap());
            let read = async |session: &mut Session| {
                assert!(session.has_strict_snapshots());
                let before = session.lane().cost();
                let sum = session.read(Freshness::Strict, async |tx| read(tx, &rows, 0..8).await);
                (sum.await.unwrap(), session.lane().cost().since(&before))
            };
            let (sum, cost) = reader.block_on(read);
            assert_eq!(sum, 8 * turn);
            if turn > 1 {
                // It looks at the clock once at most, and then reads again what was too late for
                // what it knew of the clock.
                assert!(cost.round_trips <= 2 && cost.reads - 8 * cost.round_trips <= 1, "{cost:?}");
                assert_eq!((cost.atomics, cost.writes, cost.rpcs), (0, 0, 0));
            }
        }
    }
    let over_a_network = support::over_a_network(Protocol::REMORA, 1);
    let mut worker = over_a_network.worker(WorkerOptions::default()).unwrap();
    assert!(!worker.block_on(async |session| session.has_strict_snapshots()));
}

/// A transaction that writes, and only reads more than two records, locks what it writes at all
/// replicas, and validates what it only reads.
#[test]
fn a_writer_that_reads_much_fixes_its_time_early() {
    let clusters = [support::embedded, support::over_a_network];
    for (replicas, cluster) in [1, 3].into_iter().flat_map(|replicas| clusters.map(|open| (replicas, open))) {
        let cluster = cluster(Protocol::REMORA, replicas);
        let in_order = cluster.capabilities().in_order;
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([7u64]));
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let copies = u64::from(replicas);
        for turn in 0..3 {
            let cost = worker.block_on(async |session| {
                let before = session.lane().cost();
                let run = session.transact(async |tx| {
                    let written = tx.want_for(&rows, 0, Intent::Update);
                    let read: Vec<_> = (1..=3).map(|row| tx.want(&rows, row)).collect();
                    tx.fetch().await?;
                    for row in read {
                        assert_eq!(row.require(tx)?.0[0], 7);
                    }
                    written.get_mut(tx)?.0[0] += 1;
                    Ok(())
                });
                run.await.unwrap();
                session.lane().cost().since(&before)
            });
            assert!(worker.drain().unwrap());
            if turn > 0 {
                // It reads four records, and three of them again. At each copy it writes an undo
                // entry and the record, and the version and the entry's end; and the former image
                // at the primary.
                assert_eq!((cost.round_trips, cost.reads, cost.writes, cost.rpcs), (3, 7, 4 * copies + 1, 0));
                // A lock, a draw and an unlock at each copy; the other atomics raise clocks. Where
                // one clock counts for all nodes, no backup is locked, and no clock is raised.
                let raises = cost.atomics - if in_order { 3 } else { 3 * copies };
                assert!(raises <= if in_order { 0 } else { 3 }, "{cost:?}");
            }
        }
        let found = cluster.inspect(&rows, |_| ()).unwrap();
        assert_eq!((found.locked, found.differing_lines), (0, 0));
    }
}

/// The locks of a transaction whose time is early, and the draws behind them, may take many rounds.
#[test]
fn an_early_time_may_have_many_locks() {
    const SIZES: [(u8, u64); 8] = [(1, 61), (1, 62), (1, 63), (1, 64), (3, 30), (3, 31), (3, 32), (3, 200)];
    for (protocol, (replicas, written)) in PROTOCOLS.into_iter().flat_map(|protocol| SIZES.map(|size| (protocol, size)))
    {
        let cluster = support::embedded(protocol, replicas);
        let rows = table(&cluster, "rows", TableOptions::for_rows(256), Words([7u64]));
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for _ in 0..3 {
                let run = session.transact(async |tx| {
                    let read: Vec<_> = (0..3).map(|row| tx.want(&rows, row)).collect();
                    let changed: Vec<_> = (3..3 + written).map(|row| tx.want_for(&rows, row, Intent::Update)).collect();
                    tx.fetch().await?;
                    read.iter().try_for_each(|row| row.require(tx).map(drop))?;
                    for row in changed {
                        row.get_mut(tx)?.0[0] += 1;
                    }
                    Ok(())
                });
                run.await.unwrap();
            }
        });
        assert!(worker.drain().unwrap());
        let mut sum = 0;
        let found = cluster.inspect(&rows, |row| sum += row.0[0]).unwrap();
        assert_eq!((found.locked, found.differing_lines, sum), (0, 0, 256 * 7 + 3 * written));
    }
}

/// What was acknowledged before a snapshot began is in it, whichever client has written it.
#[test]
fn a_snapshot_is_fresh() {
    PROTOCOLS.into_iter().for_each(is_fresh);
}

fn is_fresh(protocol: Protocol) {
    let (cluster, _) = support::seeded(protocol, 3, 5);
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([0u64]));
    let mut worker = worker(&cluster, 4, 5);
    let newest = Cell::new([0u64; ROWS as usize]);
    worker.run(async |number, session| {
        for _ in 0..50 {
            let row = session.lane().random() % ROWS;
            if number < 2 {
                let written = session.transact(async |tx| {
                    let mut value = rows.get_mut(tx, row).await?;
                    value.0[0] += 1;
                    Ok(value.0[0])
                });
                if let Ok(written) = written.await {
                    let mut all = newest.get();
                    all[row as usize] = all[row as usize].max(written);
                    newest.set(all);
                }
                continue;
            }
            let known = newest.get();
            let read = session.snapshot(async |tx| {
                let all: Vec<_> = (0..ROWS).map(|row| tx.want(&rows, row)).collect();
                tx.fetch().await?;
                all.iter().map(|row| Ok(row.require(tx)?.0[0])).collect::<Result<Vec<_>, Error>>()
            });
            let read = read.await.unwrap();
            assert!(read.iter().zip(known).all(|(read, known)| *read >= known), "{read:?} {known:?}");
            others_run().await;
        }
    });
}

/// A snapshot that names records one after the other has them all of one time.
#[test]
fn a_snapshot_stays_the_same() {
    for seed in support::seeds(0..40) {
        let (cluster, _) = support::seeded_of_either_kind(PROTOCOLS[seed as usize / 2 % 2], 3, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
        let mut worker = worker(&cluster, 3, seed);
        worker.run(async |number, session| {
            for _ in 0..10 {
                let random = session.lane().random();
                if number > 0 {
                    let (from, to) = (random % ROWS, (random + 1) % ROWS);
                    let _ = session
                        .transact(async |tx| {
                            let [mut one, mut two] = rows.get_many_mut(tx, [from, to]).await?;
                            one.0[0] -= 1;
                            two.0[0] += 1;
                            Ok(())
                        })
                        .await;
                    session.lane().sleep(random % 20_000).await;
                    continue;
                }
                let sum = session.snapshot(async |tx| {
                    let mut sum = 0;
                    for row in 0..ROWS {
                        sum += rows.get(tx, row).await?.map_or(0, |row| row.0[0]);
                    }
                    Ok(sum)
                });
                assert_eq!(sum.await.unwrap(), ALL, "seed {seed}");
            }
        });
    }
}

/// Makes a table at each of two nodes, with the keys 0 and 1.
fn apart(cluster: &Cluster) -> [Table<u64, Words<1>>; 2] {
    [0, 1].map(|node| {
        let options = TableOptions::for_rows(2).shards(1).replicas(1).grows(false).first_node(node);
        table(cluster, &format!("at {node}"), options, Words([100u64]))
    })
}

/// Has a reader learn the clock of the node of a table, so that its next snapshot claims that.
fn knows_clock_of(reader: &mut Worker, rows: &Table<u64, Words<1>>) {
    let read = reader.block_on(async |session| session.snapshot(async |tx| rows.get(tx, 1).await).await);
    assert_eq!(read.unwrap(), Some(Words([7])));
}

/// Moves 1 from a row of one table to a row of the other.
async fn transfer(session: &mut Session, from: &Table<u64, Words<1>>, to: &Table<u64, Words<1>>) -> Result<(), Error> {
    session
        .transact(async |tx| {
            let two = [tx.want_for(from, 0, Intent::Update), tx.want_for(to, 0, Intent::Update)];
            tx.fetch().await?;
            two[0].get_mut(tx)?.0[0] -= 1;
            two[1].get_mut(tx)?.0[0] += 1;
            Ok(())
        })
        .await
}

/// A client dies at any verb of its transfer between records at two nodes, while another one reads
/// a snapshot: one record before the transfer, and the other one when recovery has decided.
fn recovered(protocol: Protocol, step: usize) -> Result<(), String> {
    let (cluster, fabric) = support::seeded_of_either_kind(protocol, 1, step as u64);
    let [here, there] = apart(&cluster);
    let mut workers = [0, 1, 2].map(|seed| worker(&cluster, 1, seed));
    let [reader, dying, survivor] = &mut workers;
    // The clock of the first node is ahead of the times of the records that are transferred.
    for _ in 0..4 {
        let raise =
            async |session: &mut Session| session.transact(async |tx| here.update(tx, 1, Words([7])).await).await;
        survivor.block_on(raise).unwrap();
    }
    let transfer = async |session: &mut Session| transfer(session, &here, &there).await;
    knows_clock_of(reader, &here);
    let mut answer = None;
    let mut is_first = true;
    let read = reader.block_on(async |session| {
        session
            .snapshot(async |tx| {
                let one = here.get(tx, 0).await?.map(|row| row.0[0]);
                if std::mem::take(&mut is_first) {
                    let client = dying.incarnations().next().unwrap();
                    fabric.revoke_after(ClientId(client), step as u64);
                    answer = Some(dying.block_on(async |session| transfer(session).await));
                    fabric.revoke(ClientId(client)).unwrap();
                    survivor.recover(client).unwrap();
                }
                let other = there.get(tx, 0).await?.map(|row| row.0[0]);
                Ok([one, other])
            })
            .await
    });
    let read = read.unwrap();
    if read != [Some(99), Some(101)] && read != [Some(100), Some(100)] {
        return Err(format!("step {step}: the snapshot has {read:?}"));
    }
    // The snapshot began before the transfer, so it may have it or not.
    let now = survivor.block_on(async |session| session.snapshot(async |tx| here.get(tx, 0).await).await).unwrap();
    let is_there = now.map(|row| row.0[0]) == Some(99);
    let [reader, dying, survivor] = workers;
    drop((reader, survivor));
    dying.abandon();
    if answer.is_some_and(|answer| answer.is_ok()) && !is_there {
        return Err(format!("step {step}: what was acknowledged is gone"));
    }
    Ok(())
}

#[test]
fn a_snapshot_has_what_recovery_decides() {
    for step in 0..80 {
        PROTOCOLS.into_iter().for_each(|protocol| recovered(protocol, step).unwrap());
    }
    mutant::set(Some(Mutant::RecoverUndrawn));
    let caught = (0..400).find(|step| recovered(Protocol::REMORA, *step).is_err());
    mutant::set(None);
    assert!(caught.is_some(), "recovery without a draw is not caught");
}

/// A client dies at any verb of a transfer whose time is early, and another one recovers it. Then
/// no replica has a lock of it, and the transfer is there as a whole, or not at all.
fn dies_early(step: usize) -> Result<(), String> {
    let (cluster, fabric) = support::seeded_of_either_kind(Protocol::REMORA, 3, step as u64);
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
    let [mut dying, mut survivor] = [0, 1].map(|seed| worker(&cluster, 1, seed));
    let client = dying.incarnations().next().unwrap();
    let transfer = async |session: &mut Session| {
        session
            .transact(async |tx| {
                let two = [0, 1].map(|row| tx.want_for(&rows, row, Intent::Update));
                let others: Vec<_> = (2..ROWS).map(|row| tx.want(&rows, row)).collect();
                tx.fetch().await?;
                others.iter().try_for_each(|row| row.require(tx).map(drop))?;
                two[0].get_mut(tx)?.0[0] -= 1;
                two[1].get_mut(tx)?.0[0] += 1;
                Ok(())
            })
            .await
    };
    // The first transfer looks the records up.
    dying.block_on(async |session| transfer(session).await).unwrap();
    assert!(dying.drain().unwrap());
    fabric.revoke_after(ClientId(client), step as u64);
    let answer = dying.block_on(async |session| transfer(session).await);
    fabric.revoke(ClientId(client)).unwrap();
    survivor.recover(client).unwrap();
    let read = survivor
        .block_on(async |session| session.snapshot(async |tx| tx.get_many(((&rows, 0), (&rows, 1))).await).await);
    let read = [read.as_ref().unwrap().0, read.unwrap().1].map(|row| row.unwrap().0[0]);
    assert!(survivor.drain().unwrap());
    let found = cluster.inspect(&rows, |_| ()).unwrap();
    drop(survivor);
    dying.abandon();
    if (found.locked, found.differing_lines) != (0, 0) {
        return Err(format!("step {step}: {found:?}"));
    }
    if read != [98, 102] && (read != [99, 101] || answer.is_ok()) {
        return Err(format!("step {step}: the snapshot has {read:?}, after {answer:?}"));
    }
    Ok(())
}

#[test]
fn recovery_frees_the_locks_of_early_times() {
    const STEPS: std::ops::Range<usize> = 0..60;
    for step in STEPS {
        dies_early(step).unwrap();
    }
    mutant::set(Some(Mutant::SweepPrimaries));
    let caught = STEPS.into_iter().find(|step| dies_early(*step).is_err());
    mutant::set(None);
    assert!(caught.is_some(), "a lock that is left at a backup is not found");
}

/// A snapshot reads a record at a node whose clock is ahead, and then two records at a node whose
/// clock is behind, one before and one after a transfer between them. Returns the sum of the two.
fn clock_behind(protocol: Protocol) -> u64 {
    let (cluster, _) = support::seeded(protocol, 1, 3);
    let [ahead, behind] = apart(&cluster);
    let [mut reader, mut writer] = [1, 2].map(|seed| worker(&cluster, 1, seed));
    let write = async |session: &mut Session| {
        for _ in 0..9 {
            session.transact(async |tx| ahead.update(tx, 1, Words([7])).await).await.unwrap();
        }
        // The reader does not know this clock's value either.
        session.transact(async |tx| behind.update(tx, 1, Words([100])).await).await.unwrap();
    };
    writer.block_on(write);
    let transfer = async |session: &mut Session| {
        session
            .transact(async |tx| {
                let [mut one, mut two] = behind.get_many_mut(tx, [0, 1]).await?;
                one.0[0] -= 1;
                two.0[0] += 1;
                Ok(())
            })
            .await
    };
    let mut is_first = true;
    let sum = reader.block_on(async |session| {
        session
            .snapshot(async |tx| {
                ahead.get(tx, 1).await?;
                let one = behind.get(tx, 0).await?.map_or(0, |row| row.0[0]);
                if std::mem::take(&mut is_first) {
                    writer.block_on(transfer).unwrap();
                }
                Ok(one + behind.get(tx, 1).await?.map_or(0, |row| row.0[0]))
            })
            .await
    });
    sum.unwrap()
}

#[test]
fn a_later_claim_is_not_below_the_snapshot() {
    for protocol in PROTOCOLS {
        assert_eq!(clock_behind(protocol), 200);
        mutant::set(Some(Mutant::KeepLowClaims));
        let sum = clock_behind(protocol);
        mutant::set(None);
        assert_ne!(sum, 200, "{protocol}: a claim below the snapshot is not caught");
    }
}

/// A snapshot reads one of two records before a first writer changes it, and the other one after a
/// second writer has changed that. Between the two writers, a transaction without a snapshot has
/// read both records: so the first writer is before the second. Returns what the snapshot has read.
fn read_in_between(protocol: Protocol, intent: Intent) -> [u64; 2] {
    let (cluster, _) = support::seeded(protocol, 1, 3);
    let [ahead, behind] = apart(&cluster);
    let [mut reader, mut writer, mut other] = [1, 2, 3].map(|seed| worker(&cluster, 1, seed));
    for _ in 0..9 {
        let raise =
            async |session: &mut Session| session.transact(async |tx| ahead.update(tx, 1, Words([7])).await).await;
        writer.block_on(raise).unwrap();
    }
    knows_clock_of(&mut reader, &ahead);
    let mut is_first = true;
    let read = reader.block_on(async |session| {
        session
            .snapshot(async |tx| {
                let one = ahead.get(tx, 0).await?.map_or(0, |row| row.0[0]);
                if std::mem::take(&mut is_first) {
                    let first = async |session: &mut Session| {
                        session.transact(async |tx| ahead.update(tx, 0, Words([101])).await).await
                    };
                    writer.block_on(first).unwrap();
                    let both = async |session: &mut Session| {
                        let read = session.transact(async |tx| {
                            let two = [tx.want(&ahead, 0), tx.want_for(&behind, 0, intent)];
                            tx.fetch().await?;
                            Ok([two[0].require(tx)?.0[0], two[1].require(tx)?.0[0]])
                        });
                        read.await
                    };
                    assert_eq!(other.block_on(both).unwrap(), [101, 100]);
                    let second = async |session: &mut Session| {
                        session.transact(async |tx| behind.update(tx, 0, Words([101])).await).await
                    };
                    writer.block_on(second).unwrap();
                }
                Ok([one, behind.get(tx, 0).await?.map_or(0, |row| row.0[0])])
            })
            .await
    });
    read.unwrap()
}

#[test]
fn a_validated_reader_raises_the_clocks() {
    // Also if it has a lock of what it has not changed in the end.
    for protocol in PROTOCOLS {
        for intent in [Intent::Read, Intent::Update] {
            assert_eq!(read_in_between(protocol, intent), [101, 101], "{protocol} {intent:?}");
        }
        mutant::set(Some(Mutant::ReaderUnraised));
        let read = read_in_between(protocol, Intent::Read);
        mutant::set(None);
        assert_eq!(read, [100, 101], "{protocol}: a reader that raises no clock is not caught");
    }
}

/// Loses the first memory node, whose clock counts for all nodes, after many changes of row 0. No
/// commit has drawn at the next first node before. Also returns a snapshot of the first epoch.
fn without_the_first_node(seed: u64) -> (Cluster, Table<u64, Words<1>>, Snapshot) {
    let (cluster, fabric) = support::options(Protocol::REMORA, 2).open_seeded_in_order(seed).unwrap();
    let cluster = cluster.with_lease(Some(Duration::from_micros(100)));
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
    let mut writer = worker(&cluster, 1, seed);
    // After 64 changes or more, the release of the next change of row 0 would raise the new clock.
    for change in 0..50 {
        change_row(&mut writer, &rows, 0, change);
    }
    let snapshot = writer.block_on(async |session| session.open_snapshot().await).unwrap();
    assert!(writer.drain().unwrap());
    drop(writer);
    let mut controller = cluster.controller().unwrap();
    fabric.fail(NodeId(0));
    let epoch = || cluster.configuration().unwrap().look(|membership| membership.epoch()).unwrap();
    controller.run(|| epoch() == 2);
    (cluster, rows, snapshot)
}

fn change_row(worker: &mut Worker, rows: &Table<u64, Words<1>>, row: u64, value: u64) {
    let change =
        async |session: &mut Session| session.transact(async |tx| rows.update(tx, row, Words([value])).await).await;
    worker.block_on(change).unwrap();
}

/// The clock of a new first node is above all earlier times, so the order of times is that of the
/// commits. One transaction reads row 1 and changes rows 0 and 2. Another one then changes row 1. A
/// snapshot that has the second one has the first one, too, even if it goes back to what row 2 was.
#[test]
fn times_go_on_when_the_first_node_is_lost() {
    for seed in support::seeds(0..4) {
        let (cluster, rows, former) = without_the_first_node(seed);
        let [mut reader, mut writer] = [1, 2].map(|number| worker(&cluster, 1, 10 * seed + number));
        let (mut attempts, mut is_first) = (0, true);
        let read = reader.block_on(async |session| {
            session
                .snapshot(async |tx| {
                    attempts += 1;
                    let two = rows.get(tx, 2).await?.map_or(0, |row| row.0[0]);
                    if std::mem::take(&mut is_first) {
                        let first = async |session: &mut Session| {
                            let first = session.transact(async |tx| {
                                let read = tx.want(&rows, 1);
                                let changed = [0, 2].map(|row| tx.want_for(&rows, row, Intent::Update));
                                tx.fetch().await?;
                                assert_eq!(read.require(tx)?.0[0], 100);
                                changed.iter().try_for_each(|row| row.get_mut(tx).map(|row| row.0[0] = 7))
                            });
                            first.await
                        };
                        writer.block_on(first).unwrap();
                        change_row(&mut writer, &rows, 1, 7);
                        change_row(&mut writer, &rows, 3, 7);
                    }
                    // The first attempt is too early for this row, so there is a second one.
                    assert_eq!(rows.get(tx, 3).await?, Some(Words([7])), "it was changed before");
                    Ok([rows.get(tx, 1).await?.map_or(0, |row| row.0[0]), two])
                })
                .await
        });
        assert_eq!(read.unwrap(), [7, 7], "seed {seed}");
        assert!(attempts > 1, "seed {seed}");
        let last = async |session: &mut Session| {
            assert!(session.has_strict_snapshots());
            session.read(Freshness::Strict, async |tx| rows.get(tx, 0).await).await
        };
        assert_eq!(reader.block_on(last).unwrap(), Some(Words([7])), "seed {seed}");
        let over = reader.block_on(async |session| session.snapshot_at(former, async |tx| rows.get(tx, 0).await).await);
        assert!(matches!(&over, Err(Error::Limit(reason)) if reason.cause == Limit::SnapshotOver), "{over:?}");
    }
}

/// A closure that goes on after an error, or drops a fetch and repeats it, gets no other state.
#[test]
fn a_snapshot_cannot_be_talked_out_of_its_time() {
    PROTOCOLS.into_iter().for_each(cannot_be_talked_out);
}

fn cannot_be_talked_out(protocol: Protocol) {
    let (cluster, _) = support::seeded(protocol, 1, 3);
    let [here, there] = apart(&cluster);
    let [mut reader, mut writer] = [1, 2].map(|seed| worker(&cluster, 1, seed));
    let transfer = async |session: &mut Session| transfer(session, &here, &there).await;
    for polls in 1..12 {
        let mut is_first = true;
        let sum = reader.block_on(async |session| {
            session
                .snapshot(async |tx| {
                    let slots = [tx.want(&here, 0), tx.want(&there, 0)];
                    let _ = support::cut_off(tx.fetch(), polls).await;
                    if std::mem::take(&mut is_first) {
                        writer.block_on(transfer).unwrap();
                    }
                    if tx.fetch().await.is_err() {
                        let _ = tx.fetch().await;
                    }
                    Ok(slots[0].require(tx)?.0[0] + slots[1].require(tx)?.0[0])
                })
                .await
        });
        assert_eq!(sum.unwrap(), 200, "{polls}");
        let mut is_first = true;
        let sum = reader.block_on(async |session| {
            session
                .snapshot(async |tx| {
                    let one = here.get(tx, 0).await?.map_or(0, |row| row.0[0]);
                    if std::mem::take(&mut is_first) {
                        writer.block_on(transfer).unwrap();
                    }
                    let mut other = there.get(tx, 0).await;
                    if other.is_err() {
                        other = there.get(tx, 0).await;
                    }
                    Ok(one + other?.map_or(0, |row| row.0[0]))
                })
                .await
        });
        assert_eq!(sum.unwrap(), 200, "{polls}");
    }
}

#[test]
fn a_snapshot_only_reads() {
    let cluster = support::embedded(Protocol::REMORA, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([7u64]));
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        let changed = session.snapshot(async |tx| rows.update(tx, 1, Words([8])).await).await;
        assert!(matches!(changed, Err(Error::Misuse(Misuse::ReadOnly))), "{changed:?}");
        let changed = session.snapshot(async |tx| rows.get_mut(tx, 1).await.map(|mut row| row.0[0] = 8)).await;
        assert!(matches!(changed, Err(Error::Misuse(Misuse::ReadOnly))), "{changed:?}");
        let absent = session.snapshot(async |tx| rows.get(tx, 9).await).await;
        assert!(matches!(absent, Ok(None)), "{absent:?}");
    });
    let cluster = support::embedded(Protocol::FORD, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([7u64]));
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        let none = session.snapshot(async |tx| rows.get(tx, 1).await).await;
        assert!(matches!(none, Err(Error::Misuse(Misuse::NoSnapshots))), "{none:?}");
    });
}

/// Rows move between keys, by a delete and an insert each, so that their keys are in the index or
/// not. Returns how many snapshots of all keys there were, and how many rows have moved. Fails if
/// a snapshot has not each row once.
fn rows_move(seed: u64) -> Result<[u64; 2], String> {
    const KEYS: u64 = 8;
    const MOVED: u64 = 3;
    let (cluster, _) = support::seeded(Protocol::DRTM_R_CLOCKS, 1 + (seed % 3) as u8, seed);
    let rows = cluster.create_table::<u64, Words<1>>("rows", TableOptions::for_rows(64)).unwrap();
    cluster.load(&rows, (0..MOVED).map(|key| (key, Words([1])))).unwrap();
    let mut worker = worker(&cluster, 4, seed);
    let counts = worker.run(async |number, session| {
        let mut count = [0; 2];
        for _ in 0..10 {
            let random = session.lane().random();
            if number < 2 {
                let found = session.snapshot(async |tx| {
                    let all: Vec<_> = (0..KEYS).map(|key| tx.want(&rows, key)).collect();
                    tx.fetch().await?;
                    all.iter().map(|row| Ok(u64::from(row.get(tx)?.is_some()))).sum::<Result<u64, Error>>()
                });
                let found = found.await.unwrap();
                if found != MOVED {
                    return Err(format!("seed {seed}: a snapshot has {found} rows"));
                }
                count[0] += 1;
                continue;
            }
            let (from, to) = (random % KEYS, (random >> 8) % KEYS);
            let done = session.transact(async |tx| {
                if from == to || rows.get(tx, from).await?.is_none() || rows.get(tx, to).await?.is_some() {
                    return Ok(false);
                }
                rows.remove(tx, from).await?;
                rows.insert(tx, to, Words([1])).await?;
                Ok(true)
            });
            count[1] += u64::from(done.await.is_ok_and(|done| done));
        }
        Ok(count)
    });
    assert!(worker.drain().unwrap());
    let counts = counts.into_iter().collect::<Result<Vec<_>, _>>()?;
    let found = cluster.inspect(&rows, |_| ()).unwrap();
    assert_eq!((found.records, found.locked, found.differing_lines), (MOVED, 0, 0), "seed {seed}");
    Ok([0, 1].map(|kind| counts.iter().map(|count| count[kind]).sum()))
}

#[test]
fn a_snapshot_beside_inserts_and_deletes() {
    let (mut snapshots, mut moved) = (0, 0);
    for seed in support::seeds(0..if support::is_long() { 1_000 } else { 40 }) {
        let counts = rows_move(seed).unwrap();
        (snapshots, moved) = (snapshots + counts[0], moved + counts[1]);
    }
    assert!(snapshots > 500 && moved > 100, "{snapshots} {moved}");
    mutant::set(Some(Mutant::AbsentAtNoTime));
    let caught = (0..200).find(|seed| rows_move(*seed).is_err());
    mutant::set(None);
    assert!(caught.is_some(), "an absent key without a time is not caught");
}
