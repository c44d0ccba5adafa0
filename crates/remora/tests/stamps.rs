//! Snapshots of the protocols whose commits have times that the memory nodes' CPUs heed: `dst`,
//! `gts`, `vts`, and what `rc` has in their place.

mod support;

use std::cell::Cell;

use remora::protocol::Protocol;
use remora::{Error, Intent, TableOptions, TransactionOptions, WorkerOptions};

use support::{Words, others_run, read, rest, table, worker};

const ROWS: u64 = 6;
const ALL: u64 = ROWS * 100;
const SERIALIZABLE: [Protocol; 4] = [Protocol::DST, Protocol::DST_2PL, Protocol::GTS, Protocol::VTS];
/// Memory nodes of an embedded cluster, all of which have some of 16 rows.
const NODES: u64 = 3;

#[test]
fn round_trips_of_snapshots_are_exact() {
    let protocols = SERIALIZABLE.into_iter().chain([Protocol::RC]);
    for protocol in protocols {
        let oracle = u64::from([Protocol::GTS, Protocol::VTS].contains(&protocol));
        for replicas in [1, 3] {
            let cluster = support::embedded(protocol, replicas);
            let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([7u64]));
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            worker.block_on(async |session| {
                for _ in 0..3 {
                    let before = session.lane().cost();
                    let run = session.snapshot(async |tx| read(tx, &rows, 0..16).await);
                    assert_eq!(run.await.unwrap(), 16 * 7);
                    let cost = session.lane().cost().since(&before);
                    assert_eq!((cost.round_trips, cost.rpcs), (1 + oracle, NODES + oracle), "{protocol}");
                    assert_eq!((cost.reads, cost.writes, cost.atomics), (0, 0, 0));
                }
            });
        }
    }
}

/// Transfers between rows at three nodes, and snapshots of all rows beside them, in seeded orders.
/// Rows that two writers want are read all the same, so a snapshot is never tried again.
#[test]
fn a_snapshot_has_each_transaction_as_a_whole_and_never_aborts() {
    for protocol in SERIALIZABLE {
        let (mut snapshots, mut committed) = (0, 0);
        for seed in support::seeds(0..if support::is_long() { 500 } else { 60 }) {
            let (cluster, _) = support::seeded(protocol, 1 + (seed % 3) as u8, seed);
            let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
            // Coroutines are clients of their own, or share two clients.
            let clients = if seed % 2 == 0 { 6 } else { 2 };
            let options = WorkerOptions::default().coroutines(6).clients(clients).seed(seed).yield_after_rounds(true);
            let mut worker = cluster.worker(options).unwrap();
            let counts = worker.run(async |number, session| {
                let mut count = [0; 2];
                for _ in 0..12 {
                    let random = session.lane().random();
                    if number % 3 == 0 {
                        let together = random % 2 == 0;
                        let once = TransactionOptions::default().snapshot(true).attempts(1);
                        let sum = session.transact_with(once, async |tx| {
                            let mut sum = 0;
                            if together {
                                return read(tx, &rows, 0..ROWS).await;
                            }
                            for row in 0..ROWS {
                                sum += rows.get(tx, row).await?.map_or(0, |row| row.0[0]);
                            }
                            Ok(sum)
                        });
                        assert_eq!(sum.await.unwrap(), ALL, "{protocol}, seed {seed}");
                        count[0] += 1;
                        continue;
                    }
                    let (from, to) = (random % ROWS, (random >> 8) % ROWS);
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
                        assert_eq!(sum, ALL, "{protocol}, seed {seed}: what a writer has read");
                        count[1] += 1;
                    }
                }
                count
            });
            assert!(worker.drain().unwrap());
            let found = cluster.inspect(&rows, |_| ()).unwrap();
            assert_eq!((found.locked, found.differing_lines), (0, 0), "seed {seed}");
            snapshots += counts.iter().map(|count| count[0]).sum::<u64>();
            committed += counts.iter().map(|count| count[1]).sum::<u64>();
        }
        assert!(snapshots > 1_000 && committed > 1_000, "{snapshots} {committed}");
    }
}

/// What coroutines of a client ask the oracle goes in fewer calls than two for each commit. Clients
/// of one coroutine each share nothing.
#[test]
fn coroutines_of_a_client_share_calls_to_the_oracle() {
    const COROUTINES: usize = 6;
    const COMMITS: u64 = 20;
    let calls_to_the_oracle = |clients, seed| {
        let (cluster, _) = support::seeded(Protocol::GTS, 1, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([0u64]));
        let options = WorkerOptions::default().coroutines(COROUTINES).clients(clients).seed(seed);
        let mut worker = cluster.worker(options).unwrap();
        let costs = worker.run(async |number, session| {
            let before = session.lane().cost();
            for _ in 0..COMMITS {
                let add = session.transact(async |tx| {
                    rows.get_mut(tx, number as u64).await?.0[0] += 1;
                    Ok(())
                });
                add.await.unwrap();
            }
            before
        });
        assert!(worker.drain().unwrap());
        let calls = worker.run(async |number, session| session.lane().cost().since(&costs[number]).rpcs);
        // READ, LOCK, LOG and COMMIT do not go to the oracle.
        calls.iter().sum::<u64>() - 4 * COMMITS * COROUTINES as u64
    };
    let commits = COROUTINES as u64 * COMMITS;
    let mut shared = Vec::new();
    for seed in support::seeds(0..10) {
        assert_eq!(calls_to_the_oracle(COROUTINES, seed), 2 * commits, "seed {seed}");
        shared.push(calls_to_the_oracle(1, seed));
    }
    assert!(shared.iter().all(|calls| *calls < commits * 3 / 2), "{shared:?} for {commits} commits");
}

/// Rows move between keys, by a delete and an insert each. A snapshot sees every row once.
#[test]
fn a_snapshot_sees_rows_that_move_once() {
    const KEYS: u64 = 9;
    for protocol in SERIALIZABLE {
        let (mut moves, mut again) = (0, 0);
        for seed in support::seeds(0..60) {
            let (cluster, _) = support::seeded(protocol, 2, seed);
            let rows = cluster.create_table::<u64, Words<1>>("rows", TableOptions::for_rows(64)).unwrap();
            cluster.load(&rows, (0..3).map(|key| (key, Words([key])))).unwrap();
            let mut worker = worker(&cluster, 4, seed);
            let counts = worker.run(async |number, session| {
                let mut count = [0; 2];
                for _ in 0..12 {
                    let random = session.lane().random();
                    if number == 0 {
                        let mut attempts = 0;
                        let seen = session.snapshot(async |tx| {
                            attempts += 1;
                            let mut seen = Vec::new();
                            for key in 0..KEYS {
                                seen.extend(rows.get(tx, key).await?.map(|row| row.0[0]));
                            }
                            Ok(seen)
                        });
                        let mut seen = seen.await.unwrap();
                        seen.sort_unstable();
                        assert_eq!(seen, [0, 1, 2], "{protocol}, seed {seed}");
                        count[1] += attempts - 1;
                        continue;
                    }
                    let (from, to) = (random % KEYS, (random >> 8) % KEYS);
                    let moved = session.transact(async |tx| {
                        let two = [tx.want_for(&rows, from, Intent::Delete), tx.want_for(&rows, to, Intent::Insert)];
                        tx.fetch().await?;
                        if from == to || two[0].get(tx)?.is_none() || two[1].get(tx)?.is_some() {
                            return Ok(0);
                        }
                        let row = *two[0].require(tx)?;
                        two[0].remove(tx)?;
                        two[1].insert(tx, row)?;
                        Ok(1)
                    });
                    count[0] += moved.await.unwrap_or(0);
                }
                count
            });
            assert!(worker.drain().unwrap());
            moves += counts.iter().map(|count| count[0]).sum::<u64>();
            again += counts.iter().map(|count| count[1]).sum::<u64>();
        }
        assert!(moves > 100, "{moves}");
        // The primary keeps what a deleted key was. So few of 720 snapshots run again.
        assert!(again < 120, "{protocol}: {again}");
    }
}

/// A snapshot of `dst` has the commits of its own client.
#[test]
fn a_client_sees_its_own_commits_in_snapshots() {
    for seed in support::seeds(0..20) {
        let (cluster, _) = support::seeded(Protocol::DST, 3, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([0u64]));
        let options = WorkerOptions::default().coroutines(3).seed(seed).yield_after_rounds(true);
        let mut worker = cluster.worker(options).unwrap();
        let newest = Cell::new([0u64; ROWS as usize]);
        worker.run(async |_, session| {
            for _ in 0..20 {
                let row = session.lane().random() % ROWS;
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
}

/// `rc` reads what has been committed, and no more is asked of it.
#[test]
fn read_committed_is_not_serializable_and_says_so() {
    assert!(!Protocol::RC.is_serializable() && SERIALIZABLE.into_iter().all(Protocol::is_serializable));
    let cluster = support::embedded(Protocol::RC, 2);
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for _ in 0..5 {
            let changed = session.transact(async |tx| {
                let [mut one, mut two] = rows.get_many_mut(tx, [0, 1]).await?;
                (one.0[0], two.0[0]) = (one.0[0] - 1, two.0[0] + 1);
                Ok(())
            });
            changed.await.unwrap();
            rest(session).await;
        }
        let read = session.snapshot(async |tx| Ok([rows.get(tx, 0).await?, rows.get(tx, 1).await?])).await.unwrap();
        assert_eq!(read, [Some(Words([95])), Some(Words([105]))]);
    });
}
