//! Snapshots: transactions that only read, in one round trip and without validation.

mod support;

use std::cell::Cell;

use remora::floors::fabric::Fabric;
use remora::protocol::Protocol;
use remora::{Error, Intent, Misuse, TableOptions, WorkerOptions};

use support::{Words, crash, look, others_run, table, worker};

const ROWS: u64 = 6;
const ALL: u64 = ROWS * 100;

/// Transfers between rows at three nodes, and snapshots of all rows beside them, in seeded orders.
/// Clients die, and others recover them.
#[test]
fn a_snapshot_has_each_transaction_as_a_whole() {
    let (mut snapshots, mut committed) = (0, 0);
    for seed in support::seeds(0..if support::is_long() { 1_000 } else { 100 }) {
        let (cluster, _) = support::seeded(Protocol::REMORA, 1 + (seed % 3) as u8, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
        let mut worker = worker(&cluster, 5, seed);
        let counts = worker.run(async |number, session| {
            let mut count = [0; 2];
            for _ in 0..12 {
                let random = session.lane().random();
                if number < 2 {
                    let sum = session
                        .snapshot(async |tx| {
                            let all: Vec<_> = (0..ROWS).map(|row| tx.want(&rows, row)).collect();
                            tx.fetch().await?;
                            all.iter().map(|row| Ok(row.require(tx)?.0[0])).sum::<Result<u64, Error>>()
                        })
                        .await;
                    assert_eq!(sum.unwrap(), ALL, "seed {seed}");
                    count[0] += 1;
                    continue;
                }
                let (from, to) = (random % ROWS, (random >> 8) % ROWS);
                let moved = session.transact(async |tx| {
                    if from == to {
                        return Ok(());
                    }
                    let two = [from, to].map(|row| tx.want_for(&rows, row, Intent::Update));
                    tx.fetch().await?;
                    two[0].get_mut(tx)?.0[0] -= 1;
                    two[1].get_mut(tx)?.0[0] += 1;
                    Ok(())
                });
                count[1] += u64::from(moved.await.is_ok());
            }
            count
        });
        snapshots += counts.iter().map(|count| count[0]).sum::<u64>();
        committed += counts.iter().map(|count| count[1]).sum::<u64>();
    }
    assert!(snapshots > 1_000 && committed > 1_000, "{snapshots} {committed}");
}

#[test]
fn a_snapshot_takes_one_round_trip() {
    for replicas in [1, 3] {
        let cluster = support::embedded(Protocol::REMORA, replicas);
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([7u64]));
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for turn in 0..3 {
                let before = session.lane().cost();
                let run = session.snapshot(async |tx| {
                    let all: Vec<_> = (0..16).map(|row| tx.want(&rows, row)).collect();
                    tx.fetch().await?;
                    all.iter().map(|row| Ok(row.require(tx)?.0[0])).sum::<Result<u64, Error>>()
                });
                assert_eq!(run.await.unwrap(), 16 * 7);
                let cost = session.lane().cost().since(&before);
                if turn > 0 {
                    assert_eq!((cost.round_trips, cost.reads, cost.writes, cost.rpcs), (1, 16, 0, 0));
                    assert!(cost.atomics <= 3, "a claim at each node: {cost:?}");
                }
            }
        });
    }
}

/// What was acknowledged before a snapshot began is in it, whoever has written it.
#[test]
fn a_snapshot_is_fresh() {
    let (cluster, _) = support::seeded(Protocol::REMORA, 3, 5);
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
        let (cluster, _) = support::seeded(Protocol::REMORA, 3, seed);
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

/// A client dies at any verb of its transfer. Another one recovers it, and snapshots go on.
#[test]
fn a_snapshot_has_what_recovery_decides() {
    for polls in 1..40 {
        let (cluster, fabric) = support::seeded(Protocol::REMORA, 3, polls);
        let rows = table(&cluster, "rows", TableOptions::for_rows(2), Words([100u64]));
        let transfer = async |session: &mut remora::Session| {
            session
                .transact(async |tx| {
                    let two = [0, 1].map(|row| tx.want_for(&rows, row, Intent::Update));
                    tx.fetch().await?;
                    two[0].get_mut(tx)?.0[0] -= 1;
                    two[1].get_mut(tx)?.0[0] += 1;
                    Ok(())
                })
                .await
        };
        let mut dying = worker(&cluster, 1, polls);
        let done = dying.block_on(async |session| support::cut_off(transfer(session), polls as usize).await);
        let dead: Vec<u32> = dying.incarnations().collect();
        crash(dying, &fabric);
        let mut worker = worker(&cluster, 1, polls + 1);
        for client in dead {
            worker.recover(client).unwrap();
        }
        let read = worker.block_on(async |session| {
            let read = session.snapshot(async |tx| {
                let two = [tx.want(&rows, 0), tx.want(&rows, 1)];
                tx.fetch().await?;
                Ok([two[0].require(tx)?.0[0], two[1].require(tx)?.0[0]])
            });
            read.await.unwrap()
        });
        assert!(read == [99, 101] || read == [100, 100], "{polls}: {read:?}");
        assert!(done.is_none_or(|done| done.is_err()) || read == [99, 101], "{polls}: what was acknowledged is there");
        drop(worker);
        look(&cluster, &rows);
        let _ = fabric.nodes();
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
