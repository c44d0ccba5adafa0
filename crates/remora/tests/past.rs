//! Open snapshots: reads of what records were at a past time.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use remora::floors::txn::mutant::{self, Mutant};
use remora::observe::{Observer, Order, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Freshness, Intent, Limit, Misuse, Ordered, OrderedOptions, Session, Snapshot, Table, TableOptions,
    Worker, WorkerOptions,
};

use support::{Words, others_run, table};

type Row = Words<1>;
/// What a commit keeps of a row: version, meta word, time, former image, key and value.
const IMAGE_BYTES: u64 = 48;

/// A worker that plays `clients` clients, one coroutine each, which keep much of what they
/// overwrite.
fn worker(cluster: &Cluster, clients: usize, seed: u64) -> Worker {
    let options = WorkerOptions::default().coroutines(clients).clients(clients).archive(256 << 10);
    cluster.worker(options.seed(seed).yield_after_rounds(true)).unwrap()
}

/// Returns a cluster with a table of 64 rows, all 100, a worker that reads and one that writes.
fn read_and_written(replicas: u8, archive: u64) -> (Cluster, Table<u64, Row>, [Worker; 2]) {
    let cluster = support::embedded(Protocol::REMORA, replicas);
    let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([100u64]));
    let options = WorkerOptions::default().archive(archive);
    let workers = [(); 2].map(|()| cluster.worker(options).unwrap());
    (cluster, rows, workers)
}

fn open(worker: &mut Worker) -> Snapshot {
    worker.block_on(async |session| session.open_snapshot().await).unwrap()
}

fn read(worker: &mut Worker, snapshot: Snapshot, rows: &Table<u64, Row>, key: u64) -> Result<Option<u64>, Error> {
    worker.block_on(async |session| {
        session.snapshot_at(snapshot, async |tx| Ok(rows.get(tx, key).await?.map(|row| row.0[0]))).await
    })
}

fn write(worker: &mut Worker, rows: &Table<u64, Row>, key: u64, value: u64) {
    worker
        .block_on(async |session| session.transact(async |tx| rows.update(tx, key, Words([value])).await).await)
        .unwrap();
    assert!(worker.drain().unwrap());
}

/// Runs a test with a mutant.
fn with<T>(mutant: Mutant, test: impl FnOnce() -> T) -> T {
    mutant::set(Some(mutant));
    let outcome = test();
    mutant::set(None);
    outcome
}

fn is_limit<T: std::fmt::Debug>(outcome: Result<T, Error>, limit: Limit) {
    assert!(matches!(&outcome, Err(Error::Limit(reason)) if reason.cause == limit), "{outcome:?}");
}

/// A record that has not changed takes one round trip, and no atomics. One that has changed takes
/// one more for each change since, and the first one of each writer also has to be found.
#[test]
fn an_open_snapshot_has_what_records_were() {
    for replicas in [1, 3] {
        let (cluster, rows, [mut reader, mut writer]) = read_and_written(replicas, 4096);
        let first = open(&mut reader);
        read(&mut reader, first, &rows, 1).unwrap();
        let snapshots: Vec<Snapshot> = (0..4)
            .map(|change| {
                let opened = open(&mut reader);
                write(&mut writer, &rows, 1, change);
                opened
            })
            .collect();
        let expected = [100, 0, 1, 2];
        for (number, snapshot) in snapshots.into_iter().enumerate() {
            let (value, cost) = reader.block_on(async |session| {
                let before = session.lane().cost();
                let value =
                    session.snapshot_at(snapshot, async |tx| Ok(rows.get(tx, 1).await?.map(|row| row.0[0]))).await;
                (value.unwrap(), session.lane().cost().since(&before))
            });
            assert_eq!(value, Some(expected[number]), "{replicas} {number}");
            let back = 4 - number as u64;
            let found = u64::from(number == 0);
            assert_eq!((cost.round_trips, cost.reads), (1 + back + found, 1 + back + found), "{replicas} {number}");
            assert_eq!((cost.writes, cost.atomics, cost.rpcs), (0, 0, 0));
        }
        let last = open(&mut reader);
        // So does a read by a client that has not asked for any clock itself.
        for mut worker in [reader, cluster.worker(WorkerOptions::default()).unwrap()] {
            let (value, cost) = worker.block_on(async |session| {
                let before = session.lane().cost();
                let value = session.snapshot_at(last, async |tx| Ok(rows.get(tx, 1).await?.map(|row| row.0[0]))).await;
                (value.unwrap(), session.lane().cost().since(&before))
            });
            assert_eq!((value, cost.round_trips, cost.reads, cost.atomics), (Some(3), 1, 1, 0));
        }
    }
}

/// A commit writes what it overwrites to the archive at each primary, and no more than that. It has
/// a third record locked, which it only reads.
#[test]
fn a_commit_writes_its_archive_once_at_each_primary() {
    for replicas in [1, 3] {
        let costs = [0, 4096].map(|archive| {
            let (_cluster, rows, [_, mut writer]) = read_and_written(replicas, archive);
            let write = |turn| {
                let update = async |session: &mut Session| {
                    let before = session.lane().cost();
                    let all = async |tx: &mut remora::Transaction<'_, '_>| {
                        let changed = [1, 2].map(|row| tx.want_for(&rows, row, Intent::Update));
                        let read = tx.want(&rows, 3);
                        tx.fetch().await?;
                        assert_eq!(read.require(tx)?.0[0], 100);
                        changed.iter().try_for_each(|row| row.get_mut(tx).map(|row| row.0[0] = turn))
                    };
                    session.transact(all).await.unwrap();
                    session.lane().cost().since(&before)
                };
                let cost = writer.block_on(update);
                assert!(writer.drain().unwrap());
                cost
            };
            (0..3).map(write).last().unwrap()
        });
        let [without, with] = costs;
        // Both rows may be at one node.
        let nodes = with.writes - without.writes;
        assert!((1..=2).contains(&nodes), "{with:?} {without:?}");
        assert_eq!(with.bytes_out - without.bytes_out, nodes * 2 * IMAGE_BYTES, "{with:?} {without:?}");
        assert_eq!((with.round_trips, with.reads, with.atomics), (without.round_trips, without.reads, without.atomics));
    }
}

/// What the archive does not have any more cannot be read.
#[test]
fn a_snapshot_gets_too_old() {
    for (archive, kept) in [(0, 0), (64, 1), (4 * IMAGE_BYTES, 4), (256, 5)] {
        let (_cluster, rows, [mut reader, mut writer]) = read_and_written(1, archive);
        let snapshot = open(&mut reader);
        for change in 0..kept {
            write(&mut writer, &rows, 1, change);
            assert_eq!(read(&mut reader, snapshot, &rows, 1).unwrap(), Some(100), "{archive} {change}");
        }
        write(&mut writer, &rows, 1, kept);
        is_limit(read(&mut reader, snapshot, &rows, 1), Limit::SnapshotTooOld);
        assert_eq!(read(&mut reader, snapshot, &rows, 2).unwrap(), Some(100), "another row has not changed");
        let next = open(&mut reader);
        assert_eq!(read(&mut reader, next, &rows, 1).unwrap(), Some(kept));
    }
}

/// The slot of a writer that has left may be another client's by now, with another archive.
#[test]
fn an_archive_may_have_a_new_owner() {
    let (cluster, rows, [mut reader, writer]) = read_and_written(1, 4096);
    drop(writer);
    // An archive lies behind the rings of the client, so it lies elsewhere if there are more rings.
    for (archive, coroutines, value) in [(4096, 2, 1), (64, 3, 2), (2048, 1, 3)] {
        let mut writer = cluster.worker(WorkerOptions::default().archive(archive).coroutines(coroutines)).unwrap();
        let snapshot = open(&mut reader);
        write(&mut writer, &rows, 1, value);
        assert_eq!(read(&mut reader, snapshot, &rows, 1).unwrap(), Some(if value == 1 { 100 } else { value - 1 }));
        drop(writer);
        // What a client that has left has kept is there until another one has its slot.
        assert_eq!(read(&mut reader, snapshot, &rows, 1).unwrap(), Some(if value == 1 { 100 } else { value - 1 }));
    }
}

/// Keys that share a chain: what is in which slot changes with every insert.
fn crowded() -> (Cluster, Table<u64, Row>, [Worker; 2]) {
    let cluster = support::embedded(Protocol::REMORA, 1);
    let rows = cluster.create_table::<u64, Row>("rows", TableOptions::for_rows(1)).unwrap();
    let workers = [(); 2].map(|()| cluster.worker(WorkerOptions::default()).unwrap());
    (cluster, rows, workers)
}

/// Replaces the rows of a table by these.
fn replace(writer: &mut Worker, rows: &Table<u64, Row>, before: &BTreeMap<u64, u64>, after: &BTreeMap<u64, u64>) {
    for key in before.keys().filter(|key| !after.contains_key(key)) {
        writer.block_on(async |session| session.transact(async |tx| rows.remove(tx, *key).await).await).unwrap();
    }
    for (key, value) in after {
        writer
            .block_on(async |session| {
                session
                    .transact(async |tx| match before.contains_key(key) {
                        true => rows.update(tx, *key, Words([*value])).await,
                        false => rows.insert(tx, *key, Words([*value])).await,
                    })
                    .await
            })
            .unwrap();
    }
    assert!(writer.drain().unwrap());
}

/// Keys come and go, and come back in other slots. An open snapshot has the keys that were there.
fn come_and_go(turns: u64) -> Result<(), String> {
    let (_cluster, rows, [mut reader, mut writer]) = crowded();
    let mut now = BTreeMap::new();
    let mut open_ones = VecDeque::new();
    let mut random = 7u64;
    for turn in 0..turns {
        let mut next = BTreeMap::new();
        for key in 0..6 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if random >> 33 & 1 == 1 {
                next.insert(key, turn * 10 + key);
            }
        }
        replace(&mut writer, &rows, &now, &next);
        now = next;
        open_ones.push_back((open(&mut reader), now.clone()));
        if open_ones.len() > 5 {
            open_ones.pop_front();
        }
        for (snapshot, then) in &open_ones {
            for key in 0..6 {
                let found = read(&mut reader, *snapshot, &rows, key).map_err(|error| error.to_string())?;
                if found != then.get(&key).copied() {
                    return Err(format!("turn {turn}: {found:?} instead of {:?}", then.get(&key)));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn an_open_snapshot_has_the_keys_that_were_there() {
    come_and_go(40).unwrap();
    let wrong = with(Mutant::PastOwnSlot, || come_and_go(40));
    assert!(wrong.is_err(), "a key that has moved to another slot is not found");
    let wrong = with(Mutant::PastTakesCurrent, || come_and_go(5));
    assert!(wrong.is_err());
}

/// An image that was overwritten by another row's is not taken for the row's.
#[test]
fn an_archive_is_not_trusted() {
    let other = || -> Result<Option<u64>, Error> {
        let cluster = support::embedded(Protocol::REMORA, 1);
        let [one, two] = ["one", "two"].map(|name| table(&cluster, name, TableOptions::for_rows(8), Words([100u64])));
        let options = WorkerOptions::default().archive(64);
        let [mut reader, mut writer] = [(); 2].map(|()| cluster.worker(options).unwrap());
        write(&mut writer, &two, 1, 7);
        let snapshot = open(&mut reader);
        write(&mut writer, &one, 1, 8);
        write(&mut writer, &two, 1, 9);
        read(&mut reader, snapshot, &one, 1)
    };
    is_limit(other(), Limit::SnapshotTooOld);
    assert_eq!(with(Mutant::TrustArchive, other).unwrap(), Some(7));
}

async fn sum_of(session: &mut Session, snapshot: Snapshot, rows: &Ordered<u64, u64>) -> Result<(u64, u64), Error> {
    let (mut count, mut sum, mut from) = (0, 0, Bound::Unbounded);
    loop {
        let piece = async |tx: &mut remora::Transaction<'_, '_>| rows.scan(tx, (from, Bound::Unbounded), 7).await;
        let found = session.snapshot_at(snapshot, piece).await?;
        let Some((last, _)) = found.last() else { return Ok((count, sum)) };
        from = Bound::Excluded(*last);
        count += found.len() as u64;
        sum += found.iter().map(|(_, value)| value).sum::<u64>();
    }
}

/// A scan in pieces has all rows of one time, while others insert, delete and change rows, and
/// split and empty leaves.
#[test]
fn a_scan_in_pieces_is_of_one_time() {
    let (mut scans, mut too_old) = (0, 0);
    for seed in support::seeds(0..if support::is_long() { 300 } else { 30 }) {
        let (cluster, _) = support::seeded_of_either_kind(Protocol::REMORA, 1 + (seed % 3) as u8, seed);
        let options = OrderedOptions::for_rows(2_000);
        let rows = cluster.load_ordered::<u64, u64>("rows", options, (0..200).map(|key| (10 * key, 100))).unwrap();
        let mut worker = worker(&cluster, 4, seed);
        let counts = worker.run(async |number, session| {
            let mut counts = [0; 2];
            for turn in 0..if number == 0 { 4 } else { 60 } {
                if number == 0 {
                    let snapshot = session.open_snapshot().await.unwrap();
                    match sum_of(session, snapshot, &rows).await {
                        Ok((_, sum)) => {
                            assert_eq!(sum, 20_000, "seed {seed}");
                            counts[0] += 1;
                        }
                        Err(Error::Limit(reason)) if reason.cause == Limit::SnapshotTooOld => counts[1] += 1,
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                    continue;
                }
                // The value of one row moves to another one, which is new, or was there.
                let random = session.lane().random();
                let (from, to) = (random % 200 * 10, random >> 20 & 2047);
                let moved = session.transact(async |tx| {
                    let Some(value) = rows.get(tx, from).await? else { return Ok(()) };
                    if from == to {
                        return Ok(());
                    }
                    if turn % 2 == 0 {
                        rows.remove(tx, from).await?;
                    } else {
                        rows.update(tx, from, 0).await?;
                    }
                    match rows.get(tx, to).await? {
                        Some(there) => rows.update(tx, to, there + value).await,
                        None => rows.insert(tx, to, value).await,
                    }
                });
                let _ = moved.await;
            }
            counts
        });
        scans += counts.iter().map(|count| count[0]).sum::<u64>();
        too_old += counts.iter().map(|count| count[1]).sum::<u64>();
    }
    assert!(scans > 20 * too_old && scans > 50, "{scans} {too_old}");
}

/// A stale read sees what its own session has done, opens a snapshot only when the last one is too
/// old, and needs no atomics otherwise.
#[test]
fn a_stale_read_sees_its_own_session() {
    let (_cluster, rows, [mut one, mut other]) = read_and_written(3, 4096);
    let stale = Freshness::Stale(Duration::from_secs(3600));
    let get = async |session: &mut Session| {
        let before = session.lane().cost();
        let value = session.read(stale, async |tx| Ok(rows.get(tx, 1).await?.map(|row| row.0[0]))).await.unwrap();
        (value, session.lane().cost().since(&before))
    };
    assert_eq!(one.block_on(get).0, Some(100));
    write(&mut other, &rows, 1, 1);
    let (value, cost) = one.block_on(get);
    assert_eq!((value, cost.atomics), (Some(100), 0), "the snapshot is kept");
    write(&mut one, &rows, 2, 2);
    assert_eq!(one.block_on(get).0, Some(1), "a snapshot that has the session's own commit");
    // What a session has read in a transaction, its snapshots have.
    write(&mut other, &rows, 1, 3);
    let read = one.block_on(async |session| session.transact(async |tx| rows.get(tx, 1).await).await).unwrap();
    assert_eq!(read.map(|row| row.0[0]), Some(3));
    assert_eq!(one.block_on(get).0, Some(3));
    write(&mut other, &rows, 1, 4);
    let now = async |session: &mut Session| {
        session
            .read(Freshness::Stale(Duration::ZERO), async |tx| Ok(rows.get(tx, 1).await?.map(|row| row.0[0])))
            .await
            .unwrap()
    };
    assert_eq!(one.block_on(now), Some(4));
}

/// Every level only reads. A strict read needs no protocol with snapshots.
#[test]
fn a_read_only_reads() {
    for freshness in [Freshness::Strict, Freshness::Fresh, Freshness::Stale(Duration::ZERO)] {
        let (_cluster, rows, [mut reader, _]) = read_and_written(1, 4096);
        reader.block_on(async |session| {
            let value = session.read(freshness, async |tx| rows.get(tx, 1).await).await.unwrap();
            assert_eq!(value, Some(Words([100])));
            let changed = session.read(freshness, async |tx| rows.update(tx, 1, Words([8])).await).await;
            assert!(matches!(changed, Err(Error::Misuse(Misuse::ReadOnly))), "{changed:?}");
            let changed = session.read(freshness, async |tx| rows.insert(tx, 1000, Words([8])).await).await;
            assert!(matches!(changed, Err(Error::Misuse(Misuse::ReadOnly))), "{changed:?}");
        });
    }
    let cluster = support::embedded(Protocol::DRTM_R, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([7u64]));
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        let value = session.read(Freshness::Strict, async |tx| rows.get(tx, 1).await).await.unwrap();
        assert_eq!(value, Some(Words([7])));
        let none = session.open_snapshot().await;
        assert!(matches!(none, Err(Error::Misuse(Misuse::NoSnapshots))), "{none:?}");
    });
    for protocol in [Protocol::DST, Protocol::DRTM_R_CLOCKS] {
        let cluster = support::embedded(protocol, 1);
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let none = worker.block_on(async |session| session.open_snapshot().await);
        assert!(matches!(none, Err(Error::Misuse(Misuse::NoOpenSnapshots))), "{protocol}: {none:?}");
    }
}

/// Transfers between rows, and a reader that reads one row after the other, a transaction for each,
/// of one past time. Clients die beside it, and others recover them.
#[test]
fn a_past_time_has_each_transaction_as_a_whole() {
    const ROWS: u64 = 6;
    let mut read = 0;
    for seed in support::seeds(0..if support::is_long() { 1_000 } else { 60 }) {
        let (cluster, _) = support::seeded_of_either_kind(Protocol::REMORA, 1 + (seed % 3) as u8, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([100u64]));
        let mut worker = worker(&cluster, 5, seed);
        // A snapshot that one session has opened and another one reads.
        let shared = RefCell::new(None);
        let counts = worker.run(async |number, session| {
            let mut count = 0;
            for turn in 0..12 {
                let random = session.lane().random();
                if number < 2 {
                    let known = *shared.borrow();
                    let snapshot = match known {
                        Some(snapshot) if turn % 3 > 0 => snapshot,
                        _ => session.open_snapshot().await.unwrap(),
                    };
                    *shared.borrow_mut() = Some(snapshot);
                    let mut sum = 0;
                    for row in 0..ROWS {
                        let row = session.snapshot_at(snapshot, async |tx| rows.get(tx, row).await).await.unwrap();
                        sum += row.unwrap().0[0];
                    }
                    assert_eq!(sum, 100 * ROWS, "seed {seed}");
                    count += 1;
                    continue;
                }
                let (from, to) = (random % ROWS, (random + 1 + random % 3) % ROWS);
                let reads_all = random >> 16 & 1 == 1;
                let moved = session.transact(async |tx| {
                    for row in (0..ROWS).filter(|row| reads_all && ![from, to].contains(row)) {
                        tx.want(&rows, row);
                    }
                    let two = [from, to].map(|row| tx.want_for(&rows, row, Intent::Update));
                    tx.fetch().await?;
                    two[0].get_mut(tx)?.0[0] -= 1;
                    two[1].get_mut(tx)?.0[0] += 1;
                    Ok(())
                });
                let _ = moved.await;
            }
            count
        });
        assert!(worker.drain().unwrap());
        let found = cluster.inspect(&rows, |_| ()).unwrap();
        assert_eq!((found.locked, found.differing_lines), (0, 0), "seed {seed}: a lock is left, or a replica differs");
        read += counts.iter().sum::<u64>();
    }
    assert!(read > 500, "{read}");
}

/// Makes a table at each of two nodes, with the keys 0 and 1.
fn apart(cluster: &Cluster) -> [Table<u64, Row>; 2] {
    [0, 1].map(|node| {
        let options = TableOptions::for_rows(2).shards(1).replicas(1).grows(false).first_node(node);
        table(cluster, &format!("at {node}"), options, Words([100u64]))
    })
}

/// The clock of one node is far ahead. A fresh snapshot, which is taken again because a record at
/// the other node has changed, then also reads a record of that node. It must have what was
/// acknowledged before it began.
fn fresh_beside_a_clock_that_is_ahead() -> u64 {
    let cluster = support::over_a_network(Protocol::REMORA, 1);
    let [here, there] = apart(&cluster);
    let [mut reader, mut writer] = [(); 2].map(|()| cluster.worker(WorkerOptions::default()).unwrap());
    for change in 0..1_000 {
        write(&mut writer, &here, 0, change);
    }
    let mut attempts = 0;
    let value = reader.block_on(async |session| {
        session
            .snapshot(async |tx| {
                attempts += 1;
                assert_eq!(there.get(tx, 0).await?, Some(Words([100])));
                if attempts == 1 {
                    write(&mut writer, &there, 1, 7);
                }
                assert_eq!(there.get(tx, 1).await?, Some(Words([7])));
                Ok(here.get(tx, 0).await?.map_or(0, |row| row.0[0]))
            })
            .await
    });
    assert!(attempts >= 2, "the record that has changed meanwhile is later than the snapshot");
    value.unwrap()
}

#[test]
fn a_fresh_snapshot_goes_back_only_where_it_has_been() {
    assert_eq!(fresh_beside_a_clock_that_is_ahead(), 999);
    assert!(with(Mutant::FormerOfUnseen, fresh_beside_a_clock_that_is_ahead) < 999);
}

/// Notes how the last attempt that committed is ordered in real time.
#[derive(Clone, Default)]
struct LastOrder(Rc<Cell<Option<Order>>>);

impl Observer for LastOrder {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            self.0.set(Some(event.order));
        }
    }
}

/// Where one clock counts for all nodes, reads two rows, of which the second one changes before the
/// first attempt reads it. The first one changes before the second attempt reads it. Returns the
/// first row as it was read, and how the transaction is ordered.
fn reads_what_changes(freshness: Freshness) -> (Option<u64>, Option<Order>) {
    let (cluster, _) = support::options(Protocol::REMORA, 1).open_seeded_in_order(3).unwrap();
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([100u64]));
    let [mut reader, mut writer] = [1, 2].map(|seed| worker(&cluster, 1, seed));
    let (mut attempts, last) = (0, LastOrder::default());
    let first = reader.block_on(async |session| {
        session.observe(Some(Box::new(last.clone())));
        let read = session.read(freshness, async |tx| {
            attempts += 1;
            let first = if attempts == 1 {
                let first = rows.get(tx, 1).await?;
                write(&mut writer, &rows, 2, 7);
                first
            } else {
                // The snapshot has its time.
                rows.get(tx, 3).await?;
                if attempts == 2 {
                    write(&mut writer, &rows, 1, 7);
                }
                rows.get(tx, 1).await?
            };
            rows.get(tx, 2).await?;
            Ok(first.map(|row| row.0[0]))
        });
        read.await.unwrap()
    });
    (first, last.0.get())
}

#[test]
fn a_strict_snapshot_does_not_go_back() {
    assert_eq!(reads_what_changes(Freshness::Fresh), (Some(100), Some(Order::Fresh)));
    assert_eq!(reads_what_changes(Freshness::Strict), (Some(7), Some(Order::Strict)));
}

/// A closure that names records one after the other, all of which change all the time, ends: an
/// attempt reads what earlier ones have read as it was.
#[test]
fn a_snapshot_of_hot_records_ends() {
    for seed in support::seeds(0..10) {
        let (cluster, _) = support::seeded(Protocol::REMORA, 1, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([100u64]));
        let mut worker = worker(&cluster, 4, seed);
        let done = Cell::new(false);
        let attempts = worker.run(async |number, session| {
            let mut attempts = Vec::new();
            while number > 0 && !done.get() {
                let (from, to) = (session.lane().random() % 8, session.lane().random() % 8);
                let moved = session.transact(async |tx| {
                    if from != to {
                        let [mut one, mut two] = rows.get_many_mut(tx, [from, to]).await?;
                        one.0[0] -= 1;
                        two.0[0] += 1;
                    }
                    Ok(())
                });
                let _ = moved.await;
            }
            for _ in 0..if number == 0 { 20 } else { 0 } {
                let mut count = 0;
                let sum = session.snapshot(async |tx| {
                    count += 1;
                    let mut sum = 0;
                    for row in 0..8 {
                        sum += rows.get(tx, row).await?.map_or(0, |row| row.0[0]);
                        others_run().await;
                    }
                    Ok(sum)
                });
                assert_eq!(sum.await.unwrap(), 800, "seed {seed}");
                attempts.push(count);
            }
            done.set(done.get() || number == 0);
            attempts
        });
        let most = attempts.into_iter().flatten().max().unwrap();
        assert!(most <= 10, "seed {seed}: {most} attempts");
    }
}

/// What was in a table before it grew is gone.
#[test]
fn a_snapshot_is_over_when_a_table_has_grown() {
    let cluster = Cluster::embedded().nodes(3).replicas(2).node_bytes(64 << 20).protocol(Protocol::REMORA);
    let cluster = cluster.open().unwrap();
    let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([100u64]));
    let [mut reader, mut writer] = [(); 2].map(|()| cluster.worker(WorkerOptions::default()).unwrap());
    let snapshot = open(&mut reader);
    write(&mut writer, &rows, 1, 7);
    let removed = writer.block_on(async |session| session.transact(async |tx| rows.remove(tx, 2).await).await);
    assert_eq!(removed.unwrap(), Some(Words([100])));
    assert!(writer.drain().unwrap());
    assert_eq!(read(&mut reader, snapshot, &rows, 2).unwrap(), Some(100));
    cluster.grow_table("rows", 1_000).unwrap();
    for key in [1, 2, 3] {
        is_limit(read(&mut reader, snapshot, &rows, key), Limit::SnapshotOver);
    }
    let next = open(&mut reader);
    write(&mut writer, &rows, 1, 8);
    let found = [1, 2, 3].map(|key| read(&mut reader, next, &rows, key).unwrap());
    assert_eq!(found, [Some(7), None, Some(100)]);
}

#[test]
fn a_snapshot_is_of_one_cluster() {
    let (_one, _, [mut reader, _]) = read_and_written(1, 4096);
    let (_other, rows, [mut stranger, _]) = read_and_written(1, 4096);
    let snapshot = open(&mut reader);
    let refused = read(&mut stranger, snapshot, &rows, 1);
    assert!(matches!(refused, Err(Error::Misuse(Misuse::SnapshotOfOtherCluster))), "{refused:?}");
}

/// A session's stale reads have what its snapshots had.
#[test]
fn a_stale_read_sees_what_a_snapshot_has_seen() {
    let (_cluster, rows, [mut one, mut other]) = read_and_written(1, 4096);
    let get = |worker: &mut Worker, freshness| {
        let get = async |session: &mut Session| session.read(freshness, async |tx| rows.get(tx, 1).await).await;
        worker.block_on(get).unwrap().map(|row| row.0[0])
    };
    let stale = Freshness::Stale(Duration::from_secs(3600));
    assert_eq!(get(&mut one, stale), Some(100));
    write(&mut other, &rows, 1, 1);
    assert_eq!([Freshness::Fresh, stale].map(|freshness| get(&mut one, freshness)), [Some(1); 2]);
    write(&mut other, &rows, 1, 2);
    let newer = open(&mut other);
    assert_eq!(read(&mut one, newer, &rows, 1).unwrap(), Some(2));
    assert_eq!(get(&mut one, stale), Some(2));
}

/// The time of a record is far above all clocks. A session that has read it opens no snapshot that
/// misses it, and neither does another one once the release of the last change has arrived.
#[test]
fn a_snapshot_is_above_times_that_are_above_the_clocks() {
    for open in [support::embedded, support::over_a_network] {
        is_above_times(&open(Protocol::REMORA, 1));
    }
}

fn is_above_times(cluster: &Cluster) {
    let [here, there] = apart(cluster);
    let [mut reader, mut other, mut writer] = [(); 3].map(|()| cluster.worker(WorkerOptions::default()).unwrap());
    // The lag of the second clock is below what a snapshot is opened ahead, or above.
    for changes in [40, 1_000] {
        // The first snapshot of an epoch raises all clocks far.
        open(&mut other);
        for change in 0..changes {
            write(&mut writer, &here, 0, change);
        }
        let both = async |session: &mut Session| {
            let both = session.transact(async |tx| {
                here.update(tx, 0, Words([1])).await?;
                there.update(tx, 0, Words([1])).await
            });
            both.await
        };
        writer.block_on(both).unwrap();
        for change in 0..changes / 2 {
            write(&mut writer, &there, 0, change);
        }
        let last = changes / 2 - 1;
        let seen = reader.block_on(async |session| session.transact(async |tx| there.get(tx, 0).await).await).unwrap();
        assert_eq!(seen, Some(Words([last])));
        for worker in [&mut other, &mut reader] {
            let snapshot = open(worker);
            assert_eq!(read(worker, snapshot, &there, 0).unwrap(), Some(last));
        }
    }
}

/// A session whose changes commit together with those of others sees them in its stale reads.
#[test]
fn a_stale_read_sees_what_was_committed_together() {
    let (cluster, rows, _) = read_and_written(1, 256 << 10);
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(8)).unwrap();
    worker.run(async |_, session| {
        for _ in 0..200 {
            let added = session
                .transact(async |tx| {
                    let mut row = rows.get_mut(tx, 1).await?;
                    row.0[0] += 1;
                    Ok(row.0[0])
                })
                .await
                .unwrap();
            let stale = Freshness::Stale(Duration::from_secs(3600));
            let seen = session.read(stale, async |tx| rows.get(tx, 1).await).await.unwrap().unwrap().0[0];
            assert!(seen >= added, "{seen} {added}");
        }
    });
}

/// The sessions of a client write its archives one behind the other.
#[test]
fn sessions_of_a_client_share_its_archives() {
    const CHANGES: u64 = 4;
    let (cluster, rows, [mut reader, _]) = read_and_written(1, 0);
    let snapshot = open(&mut reader);
    let options = WorkerOptions::default().coroutines(4).archive(4 * CHANGES * IMAGE_BYTES);
    let mut writer = cluster.worker(options).unwrap();
    writer.run(async |number, session| {
        for change in 0..CHANGES {
            let row = number as u64;
            session.transact(async |tx| rows.update(tx, row, Words([change])).await).await.unwrap();
        }
    });
    assert!(writer.drain().unwrap());
    for row in 0..4 {
        assert_eq!(read(&mut reader, snapshot, &rows, row).unwrap(), Some(100));
    }
}

/// A commit that overwrites more than 16 KiB keeps nothing of it, and a reader is told so.
#[test]
fn a_large_commit_keeps_nothing() {
    type Large = Words<128>;
    let cluster = support::embedded(Protocol::REMORA, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(16), Large::all(100));
    let [mut reader, mut writer] = [(); 2].map(|()| cluster.worker(WorkerOptions::default()).unwrap());
    for (changed, is_kept) in [(15, true), (16, false)] {
        let snapshot = open(&mut reader);
        let change = async |session: &mut Session| {
            let change = session.transact(async |tx| {
                let changed: Vec<_> = (0..changed).map(|row| tx.want_for(&rows, row, Intent::Update)).collect();
                tx.fetch().await?;
                changed.iter().try_for_each(|row| row.get_mut(tx).map(|row| *row = Large::all(7)))
            });
            change.await
        };
        writer.block_on(change).unwrap();
        assert!(writer.drain().unwrap());
        for row in 0..changed {
            let read = reader
                .block_on(async |session| session.snapshot_at(snapshot, async |tx| rows.get(tx, row).await).await);
            if is_kept {
                assert_eq!(read.unwrap(), Some(Large::all(100)));
            } else {
                is_limit(read, Limit::SnapshotTooOld);
            }
        }
    }
}

/// A stale read opens another snapshot if the session's last one is too old.
#[test]
fn a_stale_read_opens_another_snapshot() {
    let (_cluster, rows, [mut reader, mut writer]) = read_and_written(1, IMAGE_BYTES);
    let mut get = || {
        let get = async |session: &mut Session| {
            session.read(Freshness::Stale(Duration::from_secs(3600)), async |tx| rows.get(tx, 1).await).await
        };
        reader.block_on(get).unwrap().map(|row| row.0[0])
    };
    assert_eq!(get(), Some(100));
    for change in 0..2 {
        write(&mut writer, &rows, 1, change);
    }
    assert_eq!(get(), Some(1));
}

/// The program drops the future of a commit at any poll. If the commit lands all the same, the
/// session's stale reads have it.
#[test]
fn a_stale_read_sees_what_its_session_has_left() {
    let stale = Freshness::Stale(Duration::from_secs(3600));
    let mut left = [0; 2];
    for polls in 0..80 {
        let (cluster, _) = support::seeded_of_either_kind(Protocol::REMORA, 1, polls);
        let is_in_order = cluster.capabilities().in_order;
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([100u64]));
        let mut worker = worker(&cluster, 1, polls);
        let is_left = worker.block_on(async |session| {
            let get = async |session: &mut Session| {
                let before = session.lane().cost();
                let row = session.read(stale, async |tx| rows.get(tx, 1).await).await.unwrap();
                (row.unwrap().0[0], session.lane().cost().since(&before).atomics)
            };
            assert_eq!(get(session).await.0, 100);
            let change = session.transact(async |tx| rows.update(tx, 1, Words([7])).await);
            let ended = support::cut_off(change, polls as usize / 2).await;
            // This read may come before the commit has landed.
            get(session).await;
            support::rest(session).await;
            let (seen, _) = get(session).await;
            let (_, atomics) = get(session).await;
            let now = session.snapshot(async |tx| rows.get(tx, 1).await).await.unwrap().unwrap().0[0];
            assert_eq!(seen, now, "{polls}");
            assert!(atomics == 0 || !is_in_order, "{polls}: another snapshot was opened");
            ended.is_none() && now == 7
        });
        left[usize::from(is_in_order)] += u64::from(is_left);
    }
    assert!(left.iter().all(|left| *left > 0), "{left:?}");
}

/// A reader of a past time that misses a key leaves the cached location of the key alone.
#[test]
fn a_past_read_forgets_no_location() {
    let (_cluster, rows, [mut reader, mut writer]) = crowded();
    let snapshot = open(&mut reader);
    replace(&mut writer, &rows, &BTreeMap::new(), &BTreeMap::from([(1, 7)]));
    let get = |reader: &mut Worker| {
        reader.block_on(async |session| {
            let before = session.lane().cost();
            let row = session.snapshot(async |tx| rows.get(tx, 1).await).await.unwrap();
            let cost = session.lane().cost().since(&before);
            (row.map(|row| row.0[0]), cost.round_trips, cost.bytes_in)
        })
    };
    get(&mut reader);
    let before = get(&mut reader);
    assert_eq!((before.0, before.1), (Some(7), 1));
    assert_eq!(read(&mut reader, snapshot, &rows, 1).unwrap(), None);
    assert_eq!(get(&mut reader), before, "a read of the record, and not of its bucket");
}
