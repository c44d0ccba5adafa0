//! Tables that grow while transactions go on: no row is lost, no row is there twice, and every
//! handle stays valid.

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use remora::floors::node::metadata::Stage;
use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use remora::{
    Cluster, Design, DynOptions, DynSchema, Error, LargeOptions, Lengths, Limit, OpenErrorKind, Ordered,
    OrderedOptions, Table, TableOptions, Transaction, TransactionOptions, WorkerOptions,
};

every_protocol! {
    full_memory_nodes_are_told,
    a_load_grows_its_table,
}

most_protocols! {
    rows_move_while_transactions_go_on,
    a_table_grows_by_itself,
    no_key_returns_to_the_smaller_table,
    all_parts_of_a_table_grow,
    no_linked_value_is_collected_while_its_head_moves,
    ordered_tables_grow_while_they_are_used,
}

const ACCOUNTS: u64 = 150;
const BALANCE: u64 = 1000;
/// The keys of a thread begin at the thread's number times this.
const OWN: u64 = 1 << 32;

fn cluster(protocol: Protocol) -> Cluster {
    let copies = protocol.discipline().copies_max().min(2) as u8;
    Cluster::embedded().nodes(3).replicas(copies).node_bytes(256 << 20).protocol(protocol).open().unwrap()
}

fn is_full(error: &Error) -> bool {
    matches!(error.limit(), Some(Limit::TableFull { .. }))
}

/// Moves money between accounts, and inserts and removes rows of its own, until it is told to end.
/// Returns the rows that are its own at the end.
fn work(cluster: &Cluster, rows: &Table<u64, u64>, thread: u64, ends: &AtomicBool, inserted: &AtomicU64) -> u64 {
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(2).seed(thread)).unwrap();
    let own = worker.run(async |coroutine, session| {
        let first = (2 * thread + coroutine as u64 + 1) * OWN;
        let (mut next, mut oldest) = (0, 0);
        while !ends.load(Ordering::Relaxed) {
            let random = session.lane().random();
            let (from, to) = (random % ACCOUNTS, (random >> 16) % ACCOUNTS);
            let moved = session.transact(async |tx| {
                if from != to {
                    let (mut from, mut to) = tx.get_many_mut(((rows, from), (rows, to))).await?;
                    if *from > 0 {
                        (*from, *to) = (*from - 1, *to + 1);
                    }
                }
                Ok(())
            });
            moved.await.unwrap();
            let put = session.transact(async |tx| rows.insert(tx, first + next, next).await).await;
            match put {
                Ok(()) => {
                    next += 1;
                    inserted.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if is_full(&error) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            if random >> 32 & 3 == 0 && oldest < next {
                let removed = session.transact(async |tx| rows.remove(tx, first + oldest).await).await.unwrap();
                assert_eq!(removed, Some(oldest));
                oldest += 1;
            }
            if oldest < next {
                let key = oldest + random % (next - oldest);
                let found = session.transact(async |tx| rows.get(tx, first + key).await).await.unwrap();
                assert_eq!(found, Some(key));
            }
        }
        next - oldest
    });
    own.iter().sum()
}

fn rows_move_while_transactions_go_on(protocol: Protocol) {
    let cluster = cluster(protocol);
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(300).grows(false)).unwrap();
    cluster.load(&rows, (0..ACCOUNTS).map(|account| (account, BALANCE))).unwrap();
    let (ends, inserted) = (AtomicBool::new(false), AtomicU64::new(0));
    let own: u64 = thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                let (cluster, rows, ends, inserted) = (&cluster, &rows, &ends, &inserted);
                scope.spawn(move || work(cluster, rows, thread, ends, inserted))
            })
            .collect();
        for size in [600, 2_000, 3_000] {
            cluster.grow_table("rows", size).unwrap();
            // Some of it is used before it grows again.
            let enough = inserted.load(Ordering::Relaxed) + size / 20;
            while inserted.load(Ordering::Relaxed) < enough && !workers.iter().any(|worker| worker.is_finished()) {
                thread::yield_now();
            }
        }
        ends.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let found = cluster.inspect(&rows, |_| {}).unwrap();
    assert_eq!((found.records, found.locked, found.torn), (ACCOUNTS + own, 0, 0));
    assert_eq!(found.differing_lines, 0);
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let all = worker.block_on(async |session| {
        let mut all = 0;
        for account in 0..ACCOUNTS {
            all += session.transact(async |tx| rows.require(tx, account).await).await.unwrap();
        }
        all
    });
    assert_eq!(all, ACCOUNTS * BALANCE);
    assert_eq!(cluster.catalog().kept().count(), 0, "the memory of the smaller ones is free");
}

/// A first size is no limit: no insert fails because the table is full.
fn a_table_grows_by_itself(protocol: Protocol) {
    const THREADS: u64 = 2;
    const ROWS: u64 = 6_000;
    let cluster = cluster(protocol);
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(64).dense(true)).unwrap();
    let is_dense = |table: &remora::floors::index::Table| table.fstore().is_none_or(|fstore| fstore.is_dense());
    assert!(is_dense(rows.untyped()));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cluster, rows) = (&cluster, &rows);
            scope.spawn(move || {
                let mut worker = cluster.worker(WorkerOptions::default().coroutines(2).seed(thread)).unwrap();
                worker.run(async |coroutine, session| {
                    for key in (0..ROWS).filter(|key| key % 2 == coroutine as u64) {
                        let key = key * THREADS + thread;
                        session.transact(async |tx| rows.insert(tx, key, !key).await).await.unwrap();
                    }
                });
            });
        }
    });
    let mut found = 0;
    let all = cluster.inspect(&rows, |_| found += 1).unwrap();
    assert_eq!((all.records, all.locked, all.torn, all.differing_lines), (THREADS * ROWS, 0, 0, 0));
    assert_eq!(found, THREADS * ROWS);
    let larger = cluster.open_table::<u64, u64>("rows").unwrap();
    assert!(is_dense(larger.untyped()), "a dense table grows dense");
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in (0..THREADS * ROWS).step_by(7) {
            assert_eq!(session.transact(async |tx| rows.get(tx, key).await).await.unwrap(), Some(!key));
        }
    });
}

/// If the memory nodes have no room for a larger table, the error says so, and the rows stay.
fn full_memory_nodes_are_told(protocol: Protocol) {
    let copies = protocol.discipline().copies_max().min(2) as u8;
    let cluster = Cluster::embedded().nodes(2).replicas(copies).node_bytes(3 << 20).protocol(protocol).open().unwrap();
    let rows: Table<u64, [u64; 100]> = cluster.create_table("rows", TableOptions::for_rows(200)).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let inserted = worker.block_on(async |session| {
        for key in 0.. {
            match session.transact(async |tx| rows.insert(tx, key, [key; 100]).await).await {
                Ok(()) => {}
                Err(error) => {
                    assert!(matches!(error.limit(), Some(Limit::NodesFull { .. })), "{error}");
                    assert!(
                        error.to_string().contains("rows") && error.to_string().contains("memory nodes are full"),
                        "{error}"
                    );
                    return key;
                }
            }
        }
        unreachable!()
    });
    assert!(inserted >= 200);
    let full = cluster.grow_table("rows", 1 << 20).unwrap_err();
    assert_eq!(full.kind(), OpenErrorKind::Full, "{full}");
    assert_eq!(cluster.inspect(&rows, |_| {}).unwrap().records, inserted);
    assert_eq!(cluster.grow_table("nothing", 10).unwrap_err().kind(), OpenErrorKind::NoTable);
}

/// A load makes its table large enough, before or after it has found the table too small.
fn a_load_grows_its_table(protocol: Protocol) {
    let cluster = cluster(protocol);
    let count = |table: &Table<u64, u64>| cluster.inspect(table, |_| {}).unwrap().records;
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(64)).unwrap();
    assert_eq!(cluster.load(&rows, (0..5_000).map(|key| (key, key))).unwrap(), 5_000);
    assert_eq!(count(&rows), 5_000);
    let parts: Table<u64, u64> = cluster.create_table("parts", TableOptions::for_rows(64)).unwrap();
    let part = |number: u64| (0..500).map(|row| (500 * number + row, row)).collect();
    assert_eq!(cluster.load_parts(&parts, 10, part, |_| ()).unwrap(), 5_000);
    assert_eq!(count(&parts), 5_000);
    for rows in [1, 10, 300, 5_000] {
        let exact: Table<u64, u64> = cluster.create_table("exact", TableOptions::for_rows(rows)).unwrap();
        cluster.load(&exact, (0..rows).map(|key| (key, key))).unwrap();
        assert_eq!(cluster.catalog().table("exact").unwrap().1.growths, 0, "{rows} rows fit as they are");
        let _freed = cluster.drop_table("exact").unwrap();
    }
    let fixed: Table<u64, u64> = cluster.create_table("fixed", TableOptions::for_rows(64).grows(false)).unwrap();
    let full = cluster.load(&fixed, (0..5_000).map(|key| (key, key))).unwrap_err();
    assert_eq!((full.kind(), count(&fixed)), (OpenErrorKind::Full, 0));
    let full = cluster.load_parts(&fixed, 10, part, |_| ()).unwrap_err();
    assert_eq!((full.kind(), count(&fixed)), (OpenErrorKind::Full, 0));
}

/// Tables of bytes and of large values consist of tables that grow, each when it is full.
fn all_parts_of_a_table_grow(protocol: Protocol) {
    const ROWS: u64 = 600;
    let cluster = cluster(protocol);
    let schema = DynSchema::new("notes", Lengths::UpTo(40), Lengths::UpTo(2_000));
    let options = DynOptions::for_rows(20).bytes(2_000);
    let notes = cluster.create_dyn_table("notes", &schema, options).unwrap();
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(10, 10_000)).unwrap();
    let value = |key: u64| vec![key as u8; 500 + key as usize];
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in 0..ROWS {
            let name = format!("the note {key}");
            session.transact(async |tx| notes.insert(tx, name.as_bytes(), &value(key)).await).await.unwrap();
            large.write(session, key, &[key as u8; 9_000]).await.unwrap();
        }
        for key in (0..ROWS).step_by(7) {
            let name = format!("the note {key}");
            let found = session.transact(async |tx| notes.get(tx, name.as_bytes()).await).await.unwrap();
            assert_eq!(found, Some(value(key)));
            assert_eq!(large.read(session, key).await.unwrap(), Some(vec![key as u8; 9_000]));
        }
    });
    let (bytes, chunks) = (cluster.inspect_dyn_table(&notes).unwrap(), cluster.inspect_large(&large).unwrap());
    for found in bytes.iter().chain(&chunks) {
        assert!(found.records >= ROWS && (found.locked, found.torn) == (0, 0), "{found:?}");
    }
    for name in ["notes", "notes/rest", "large", "large/chunks"] {
        assert!(cluster.catalog().table(name).unwrap().1.growths > 0, "{name} has grown");
    }
}

/// Clients upload values, link them and leave, so that only the heads keep the values. The table of
/// the heads grows while another client collects.
fn no_linked_value_is_collected_while_its_head_moves(protocol: Protocol) {
    const KEYS: u64 = 50;
    let cluster = cluster(protocol);
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(1, 20_000_000)).unwrap();
    let value = |key: u64| vec![key as u8; 10 + key as usize];
    let growths = || cluster.catalog().table("large").unwrap().1.growths;
    let (collected, keys) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut keys = 0;
            while keys < 400 || growths() == 0 {
                let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
                worker.block_on(async |session| {
                    for key in keys..keys + KEYS {
                        large.write(session, key, &value(key)).await.unwrap();
                    }
                });
                keys += KEYS;
            }
            keys
        });
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let mut collected = 0;
        while !writer.is_finished() {
            match worker.block_on(async |session| large.collect(session).await) {
                Ok(more) => collected += more,
                // A thread that has a head locked may stand still for longer than this waits.
                Err(Error::Aborted(_)) => {}
                Err(error) => panic!("{error}"),
            }
            // A growth waits for this client at each step. Without a pause, it would take longer on
            // a loaded machine than the writer's inserts are patient.
            thread::sleep(Duration::from_millis(2));
        }
        (collected, writer.join().unwrap())
    });
    assert_eq!(collected, 0);
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in 0..keys {
            assert_eq!(large.read(session, key).await.unwrap(), Some(value(key)), "{key}");
        }
    });
}

/// A value of which a leaf has room for 13.
type Wide = [u64; 8];

/// Returns a key of this thread. The keys are in two groups, so that leaves and inner nodes split
/// in the middle, too.
fn ordered_key(thread: u64, number: u64) -> u64 {
    thread << 32 | (number & 1) << 20 | number
}

/// Inserts, removes and scans keys of this thread until it has `rows` of them. Each scan of all of
/// them finds exactly the keys that are there.
fn fill(cluster: &Cluster, ordered: &Ordered<u64, Wide>, thread: u64, rows: u64) {
    let mut worker = cluster.worker(WorkerOptions::default().seed(thread)).unwrap();
    worker.block_on(async |session| {
        let mut own = BTreeMap::new();
        for number in 0..rows + rows / 4 {
            let key = ordered_key(thread, number);
            session.transact(async |tx| ordered.insert(tx, key, [number; 8]).await).await.unwrap();
            own.insert(key, [number; 8]);
            if number % 5 == 4 {
                let oldest = *own.keys().next().unwrap();
                let removed = session.transact(async |tx| ordered.remove(tx, oldest).await).await.unwrap();
                assert_eq!(removed, own.remove(&oldest));
            }
            if number % 97 == 0 {
                let range = ordered_key(thread, 0)..ordered_key(thread + 1, 0);
                let all = async |tx: &mut Transaction<'_, '_>| ordered.scan(tx, range.clone(), usize::MAX).await;
                let found = session.transact(all).await.unwrap();
                assert_eq!(found, own.iter().map(|(key, number)| (*key, *number)).collect::<Vec<_>>());
            }
        }
    });
}

fn ordered_tables_grow_while_they_are_used(protocol: Protocol) {
    const THREADS: u64 = 2;
    // Tables of `rtx` have more room to spare.
    let count = if protocol == Protocol::RTX { 2_400 } else { 1_200 };
    let cluster = cluster(protocol);
    // One with a partition for each thread.
    let parts = vec![ordered_key(1, 0)];
    let designs =
        [(Design::Coarse(0), parts), (Design::Hybrid(1), vec![]), (Design::Fine, vec![]), (Design::Coarse(2), vec![])];
    for (design, cuts) in designs.into_iter().take(if support::is_long() { 4 } else { 2 }) {
        let options = OrderedOptions::for_rows(10).design(design).split_at(cuts);
        let ordered = cluster.create_ordered::<u64, Wide>("ordered", options).unwrap();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (cluster, ordered) = (&cluster, &ordered);
                scope.spawn(move || fill(cluster, ordered, thread, count));
            }
        });
        let (nodes, tree) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
        assert_eq!((tree.fault, tree.rows), (None, THREADS * count), "{design:?}");
        assert!(nodes.iter().all(|found| (found.locked, found.torn, found.differing_lines) == (0, 0, 0)));
        assert!(cluster.catalog().table("ordered/leaves").unwrap().1.growths > 0, "{design:?}");
        // A new handle finds the root where the tables are by now.
        let opened = cluster.open_ordered::<u64, Wide>("ordered").unwrap();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let last = worker.block_on(async |session| session.transact(async |tx| opened.last(tx, ..).await).await);
        assert_eq!(last.unwrap().unwrap().0 >> 32, THREADS - 1);
        drop(worker);
        let _freed = cluster.drop_ordered("ordered").unwrap();
    }
    let options = OrderedOptions::for_rows(10).grows(false);
    let fixed = cluster.create_ordered::<u64, u64>("fixed", options).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let full = worker.block_on(async |session| {
        for key in 0.. {
            if let Err(error) = session.transact(async |tx| fixed.insert(tx, key, key).await).await {
                return error;
            }
        }
        unreachable!("the table is full at some time")
    });
    assert!(is_full(&full), "{full}");
    drop(worker);
    cluster.grow_table("fixed/leaves", 1_000).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let put = async |tx: &mut Transaction<'_, '_>| fixed.put(tx, u64::MAX, 1).await;
    assert_eq!(worker.block_on(async |session| session.transact(put).await).unwrap(), None);
    let loaded = (0..2_000).map(|key| (key, key));
    let loaded = cluster.load_ordered::<u64, u64>("loaded", OrderedOptions::for_rows(10), loaded).unwrap();
    assert_eq!(cluster.inspect_ordered(&loaded, |_, _| ()).unwrap().1.rows, 2_000);
}

/// Waits for what another thread does.
fn wait_for(what: &dyn Fn() -> bool) {
    while !what() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A transaction finds no row of a key. Then the table grows, as far as it does without this
/// transaction, and another one inserts the row and leaves a mark elsewhere. Returns the row and
/// the mark, as the first transaction has them when it commits.
fn row_and_mark(mutant: Option<Mutant>) -> (Option<u64>, Option<u64>) {
    let cluster = cluster(Protocol::default());
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(100).grows(false)).unwrap();
    let marks: Table<u64, u64> = cluster.create_table("marks", TableOptions::for_rows(100)).unwrap();
    let born = || cluster.catalog().table("rows").unwrap().1.born;
    let (before, found_none, is_marked) = (born(), AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(&|| found_none.load(Ordering::Relaxed));
            mutant::set(mutant);
            let grown = cluster.grow_table("rows", 1_000);
            mutant::set(None);
            grown.unwrap();
        });
        scope.spawn(|| {
            wait_for(&|| found_none.load(Ordering::Relaxed));
            // A growth that waits for this transaction is not awaited.
            let patience = Instant::now() + Duration::from_millis(100);
            wait_for(&|| born() != before || mutant.is_none() && Instant::now() > patience);
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            let both = async |tx: &mut Transaction<'_, '_>| {
                rows.insert(tx, 7, 70).await?;
                marks.insert(tx, 1, 1).await
            };
            worker.block_on(async |session| session.transact(both).await).unwrap();
            is_marked.store(true, Ordering::Relaxed);
        });
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let both = async |tx: &mut Transaction<'_, '_>| {
            let row = rows.get(tx, 7).await?;
            found_none.store(true, Ordering::Relaxed);
            while !is_marked.load(Ordering::Relaxed) {
                tx.lane().sleep(1_000_000).await;
            }
            Ok((row, marks.get(tx, 1).await?))
        };
        worker.block_on(async |session| session.transact(both).await).unwrap()
    })
}

/// A transaction begins while a table begins to grow. Then the growth goes on, and a client that
/// knows of that inserts a row into the larger table, and removes it. Then the transaction inserts
/// the row. Returns how often it is tried.
fn attempts_of_a_late_insert(protocol: Protocol, mutant: Option<Mutant>) -> u64 {
    let cluster = cluster(protocol);
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(100).grows(false)).unwrap();
    let stage = || {
        let catalog = cluster.catalog();
        let (id, _) = catalog.table("rows").unwrap();
        catalog.larger(id).and_then(|(_, larger)| larger.growth).map(|growth| growth.stage)
    };
    let (holds, has_begun, was_removed) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(&|| holds.load(Ordering::Relaxed));
            cluster.grow_table("rows", 1_000).unwrap();
        });
        // This transaction keeps the growth announced until the late one has begun.
        scope.spawn(|| {
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            let hold = async |tx: &mut Transaction<'_, '_>| {
                rows.get(tx, 1).await?;
                holds.store(true, Ordering::Relaxed);
                while !has_begun.load(Ordering::Relaxed) {
                    tx.lane().sleep(1_000_000).await;
                }
                Ok(())
            };
            worker.block_on(async |session| session.transact(hold).await).unwrap();
        });
        scope.spawn(|| {
            wait_for(&|| stage() == Some(Stage::Filling));
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            worker.block_on(async |session| {
                session.transact(async |tx| rows.insert(tx, 7, 70).await).await.unwrap();
                session.transact(async |tx| rows.remove(tx, 7).await).await.unwrap();
            });
            was_removed.store(true, Ordering::Relaxed);
        });
        wait_for(&|| stage() == Some(Stage::Announced));
        mutant::set(mutant);
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let attempts = AtomicU64::new(0);
        let late = async |tx: &mut Transaction<'_, '_>| {
            attempts.fetch_add(1, Ordering::Relaxed);
            rows.get(tx, 2).await?;
            has_begun.store(true, Ordering::Relaxed);
            while !was_removed.load(Ordering::Relaxed) {
                tx.lane().sleep(1_000_000).await;
            }
            rows.insert(tx, 7, 71).await
        };
        worker.block_on(async |session| session.transact(late).await).unwrap();
        mutant::set(None);
        attempts.into_inner()
    })
}

/// Otherwise the key would have a smaller version than before.
fn no_key_returns_to_the_smaller_table(protocol: Protocol) {
    assert!(attempts_of_a_late_insert(protocol, None) > 1);
}

#[test]
#[cfg(feature = "mutants")]
fn a_key_returns_to_the_smaller_table_if_its_client_does_not_hear() {
    assert_eq!(attempts_of_a_late_insert(Protocol::default(), Some(Mutant::InsertUnheard)), 1);
}

/// The client that moves rows is gone, and changes of rows that have not moved need more room than
/// the smaller table has. Then a client that changes rows goes on with the growth. Under `rtx`,
/// each session takes blocks for its changes.
#[test]
fn changes_go_on_with_a_growth_that_nobody_goes_on_with() {
    let cluster = cluster(Protocol::RTX);
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
    cluster.load(&rows, (0..50).map(|key| (key, 0))).unwrap();
    let stage = || {
        let catalog = cluster.catalog();
        let (id, _) = catalog.table("rows").ok()?;
        catalog.larger(id).and_then(|(_, larger)| larger.growth).map(|growth| growth.stage)
    };
    let mut mover = cluster.worker(WorkerOptions::default()).unwrap();
    mover.block_on(async |session| {
        let mut growth = pin!(session.grow_table("rows", 10_000));
        let begun = poll_fn(|context| {
            if stage() == Some(Stage::Filling) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            growth.as_mut().poll(context).map(|ended| panic!("the growth has ended: {ended:?}"))
        });
        begun.await;
    });
    drop(mover);
    let mut workers = Vec::new();
    for number in 0..200 {
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(16)).unwrap();
        let soon = TransactionOptions::default().deadline(Duration::from_secs(20));
        let changed = worker.run(async |coroutine, session| {
            let key = (number + coroutine as u64) % 50;
            session.transact_with(soon, async |tx| rows.put(tx, key, number).await).await
        });
        changed.into_iter().for_each(|was| assert!(was.unwrap().is_some()));
        workers.push(worker);
        if stage().is_none() {
            return;
        }
    }
    panic!("the smaller table had room for all changes");
}

#[test]
fn what_cannot_grow_says_why() {
    let cluster = cluster(Protocol::default());
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
    // A client without a lease never acknowledges a change.
    let unleased = cluster.clone().with_lease(None);
    let mut silent = unleased.worker(WorkerOptions::default()).unwrap();
    let unheard = cluster.grow_table("rows", 10_000).unwrap_err();
    assert_eq!(unheard.kind(), OpenErrorKind::Configuration, "{unheard}");
    let client = silent.incarnations().next().unwrap().to_string();
    assert!(unheard.to_string().contains(&client), "{unheard}");
    assert_eq!(cluster.catalog().tables.iter().filter(|table| table.growth.is_some()).count(), 0, "nothing is begun");
    silent.block_on(async |session| session.transact(async |tx| rows.insert(tx, 1, 1).await).await).unwrap();
    drop(silent);
    cluster.grow_table("rows", 10_000).unwrap();
}

/// A growth that fails for want of anything but memory is tried again after a second. An insert
/// waits for that as long as it is patient.
#[test]
fn an_insert_waits_for_a_growth_that_is_tried_again() {
    let cluster = cluster(Protocol::default());
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
    // A client without a lease never acknowledges a change, so that the first growth fails.
    let unleased = cluster.clone().with_lease(None);
    let silent = unleased.worker(WorkerOptions::default()).unwrap();
    let fails = cluster.grow_table("rows", 10_000).unwrap_err();
    assert_eq!(fails.kind(), OpenErrorKind::Configuration, "{fails}");
    let inserted = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            worker.block_on(async |session| {
                let options = TransactionOptions::default().deadline(Duration::from_secs(60));
                for key in 0..1_000 {
                    session.transact_with(options, async |tx| rows.insert(tx, key, key).await).await.unwrap();
                    inserted.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        // The inserts are at the end of the room, and stay there while a growth fails.
        let (mut before, began) = (u64::MAX, Instant::now());
        while before != inserted.load(Ordering::Relaxed) || before < 100 {
            before = inserted.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1_500));
            assert!(began.elapsed() < Duration::from_secs(60), "{before} rows");
        }
        assert!(before < 1_000, "no insert had to wait");
        drop(silent);
    });
    assert_eq!(inserted.into_inner(), 1_000);
}

#[test]
fn a_growth_waits_for_transactions_that_began_before() {
    assert_eq!(row_and_mark(None), (Some(70), Some(1)));
}

#[test]
#[cfg(feature = "mutants")]
fn a_row_is_missed_if_a_growth_waits_for_nobody() {
    assert_eq!(row_and_mark(Some(Mutant::GrowUnheard)), (None, Some(1)));
}
