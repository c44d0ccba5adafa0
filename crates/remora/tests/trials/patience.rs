//! How long a transaction is tried, and what a deadline bounds.

use std::cell::Cell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use remora::floors::fabric::{ClientId, Fabric};
use remora::protocol::Protocol;
use remora::{
    Abort, Db, Error, Limit, Misuse, Reason, Session, Table, TableOptions, TransactionId, TransactionOptions, Verdict,
    WorkerOptions,
};

use super::support::{Words, embedded, look, seeded, table, worker};

type Rows = Table<u64, Words<1>>;

async fn add(session: &mut Session, rows: &Rows, key: u64, options: TransactionOptions) -> Result<(), Error> {
    let change = session.transact_with(options, async |tx| {
        rows.get_mut(tx, key).await?.0[0] += 1;
        Ok(())
    });
    change.await
}

/// A closure that holds a lock for longer than a thousand attempts took: the other one is served
/// all the same.
#[test]
fn a_holder_that_blocks_is_waited_for() {
    let cluster = embedded(Protocol::FORD, 3);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let (cluster, rows) = (&cluster, &rows);
        scope.spawn(move || {
            worker(cluster, 1, 1).block_on(async |session| {
                let blocked = session.transact(async |tx| {
                    rows.get_mut(tx, 1).await?.0[0] += 1;
                    let _ = tell.send(());
                    thread::sleep(Duration::from_millis(900));
                    Ok(())
                });
                blocked.await.unwrap();
            });
        });
        told.recv().unwrap();
        worker(cluster, 1, 2).block_on(async |session| add(session, rows, 1, Default::default()).await.unwrap());
    });
    assert_eq!(look(&cluster, &rows).0.iter().map(|row| row.0[0]).max(), Some(2));
}

/// A lock that is never freed: the transaction is tried for its patience, which is no number of
/// attempts, and says how often and how long that was, at which record, and whose lock it was.
fn a_lock_that_stays(protocol: Protocol) {
    let (cluster, fabric) = seeded(protocol, 3, 5);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
    let (mut holder, mut other) = (worker(&cluster, 1, 1), worker(&cluster, 1, 2));
    let mut id = None;
    let dead = holder.incarnations().next().unwrap();
    holder.block_on(async |session| {
        // It dies in the middle of a commit, and no client recovers it.
        let commit = session.transact(async |tx| {
            id = Some(tx.id());
            rows.get_mut(tx, 1).await?.0[0] += 1;
            Ok(())
        });
        let mut commit = std::pin::pin!(commit);
        while look(&cluster, &rows).1.locked == 0 {
            assert!(super::support::cut_off(&mut commit, 1).await.is_none());
        }
        fabric.revoke(ClientId(dead)).unwrap();
    });
    holder.abandon();
    other.block_on(async |session| {
        for (options, least) in [
            (TransactionOptions::default(), Duration::from_secs(4)),
            (TransactionOptions::default().patience(Duration::from_millis(700)), Duration::from_millis(700)),
        ] {
            let began = session.lane().now();
            let error = add(session, &rows, 1, options).await.unwrap_err();
            let waited = Duration::from_nanos(session.lane().now() - began);
            let text = error.to_string();
            let Error::Aborted(reason) = error else { panic!("{text}") };
            assert!(waited >= least && reason.elapsed() >= least && waited < 2 * least, "{waited:?} {text}");
            assert!(reason.attempts() > 100, "{text}");
            let record = reason.record().expect("the record is known");
            assert_eq!((record.table(), record.key()), (Some("rows"), Some(&1u64.to_be_bytes()[..])));
            assert!(matches!(reason.cause, Abort::Locked(lock) if lock.holder() == id), "{text}");
            let says = [format!("{} times", reason.attempts()), id.unwrap().to_string(), "\"rows\"".to_owned()];
            assert!(says.iter().all(|what| text.contains(what)), "{text}");
        }
        // Attempts bound it still, and so does a deadline, which says the same.
        let three = TransactionOptions::default().attempts(3);
        let Error::Aborted(reason) = add(session, &rows, 1, three).await.unwrap_err() else { panic!() };
        assert_eq!(reason.attempts(), 3);
        let until = TransactionOptions::default().deadline(Duration::from_millis(50));
        let error = add(session, &rows, 1, until).await.unwrap_err();
        assert_eq!(error.limit(), Some(Limit::Deadline));
        assert!(error.to_string().contains("times") && error.to_string().contains("\"rows\""), "{error}");
        add(session, &rows, 2, Default::default()).await.unwrap();
    });
}

#[test]
fn a_lock_that_stays_drtm_r() {
    a_lock_that_stays(Protocol::DRTM_R);
}

#[test]
fn a_lock_that_stays_ford() {
    a_lock_that_stays(Protocol::FORD);
}

fn pool(threads: usize, coroutines: usize) -> (remora::Cluster, Rows, Db) {
    let cluster = embedded(Protocol::FORD, 3);
    let rows = table(&cluster, "rows", TableOptions::for_rows(16), Words([0]));
    let db = cluster.db(threads, WorkerOptions::default().coroutines(coroutines)).unwrap();
    (cluster, rows, db)
}

/// Adds 1 to a row, and within that transaction to another one, by a transaction of its own.
async fn nested(db: Db, rows: Rows, outer: u64, inner: u64) -> Result<(), Error> {
    let within = db.clone();
    let run = db.transact(async move |tx| {
        rows.get_mut(tx, outer).await?.0[0] += 1;
        let rows = rows.clone();
        within.transact(async move |tx| rows.get_mut(tx, inner).await.map(|mut row| row.0[0] += 1)).await
    });
    run.await
}

/// As many nested calls as a pool has coroutines: all of them end, and one at least is told why.
#[test]
fn a_pool_that_waits_for_itself() {
    let (cluster, rows, db) = pool(1, 4);
    for with_deadline in [false, true] {
        let db = if with_deadline { db.with_deadline(Duration::from_secs(30)) } else { db.clone() };
        let began = Instant::now();
        let ended: Vec<_> = thread::scope(|scope| {
            let one = |number: u64| {
                let (db, rows) = (db.clone(), rows.clone());
                scope.spawn(move || pollster(nested(db, rows, number, 8 + number)))
            };
            let threads: Vec<_> = (0..4).map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(began.elapsed() < Duration::from_secs(10), "nothing waits until it is over");
        for ended in &ended {
            let refused = matches!(ended, Err(Error::Misuse(Misuse::PoolWaitsForItself { coroutines: 4 })));
            assert!(ended.is_ok() || refused, "{ended:?}");
        }
    }
    // Alone in its pool, the first of them is one too many; where others are free, it is none.
    let (_alone, others, single) = pool(1, 1);
    let refused = pollster(nested(single, others, 0, 1)).unwrap_err();
    assert!(matches!(refused, Error::Misuse(Misuse::PoolWaitsForItself { coroutines: 1 })), "{refused}");
    assert!(refused.to_string().contains("coroutines"), "{refused}");
    for _ in 0..20 {
        pollster(nested(db.clone(), rows.clone(), 0, 8)).unwrap();
    }
    // Several at a time from one coroutine are one coroutine that waits.
    let (within, many) = (db.clone(), rows.clone());
    let joined = db.transact_blocking(async move |_| {
        let one = |key: u64| {
            let rows = many.clone();
            within.transact(async move |tx| rows.get(tx, key).await)
        };
        let (a, b, c, d, e) = futures_join(one(0), one(1), one(2), one(3), one(4)).await;
        a.and(b).and(c).and(d).and(e)
    });
    joined.unwrap();
    drop(db);
    assert_eq!(look(&cluster, &rows).1.locked, 0);
}

fn pollster<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(future)
}

async fn futures_join<T>(
    a: impl Future<Output = T>,
    b: impl Future<Output = T>,
    c: impl Future<Output = T>,
    d: impl Future<Output = T>,
    e: impl Future<Output = T>,
) -> (T, T, T, T, T) {
    tokio::join!(a, b, c, d, e)
}

/// A call that blocks a thread of its own pool would stop all coroutines of that thread.
#[test]
fn a_thread_of_a_pool_is_not_blocked_by_its_own_calls() {
    let (_cluster, rows, db) = pool(2, 2);
    let within = db.clone();
    let blocked = db.transact_blocking(async move |_| {
        let rows = rows.clone();
        within.transact_blocking(async move |tx| rows.get(tx, 1).await)
    });
    assert!(matches!(blocked, Err(Error::Misuse(Misuse::PoolThreadBlocked))), "{blocked:?}");
    let within = db.clone();
    let id = TransactionId::new(1, 1).unwrap();
    let blocked = db.run_blocking(async move |_| within.resolve_blocking(id, Duration::ZERO));
    assert!(matches!(blocked, Err(Error::Misuse(Misuse::PoolThreadBlocked))), "{blocked:?}");
}

/// The inner transaction wants what the outer one has locked: it is given up after its patience,
/// and the outer one with it, instead of once for each attempt of the other.
#[test]
fn nested_aborts_do_not_multiply() {
    let (cluster, rows, db) = pool(1, 4);
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (within, counted) = (db.clone(), runs.clone());
    let table = rows.clone();
    let ended = db.transact_blocking(async move |tx| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        table.get_mut(tx, 1).await?.0[0] += 1;
        let rows = table.clone();
        let brief = TransactionOptions::default().attempts(20);
        let inner = within.run(async move |session: &mut Session| add(session, &rows, 1, brief).await);
        inner.await
    });
    assert!(matches!(&ended, Err(Error::Aborted(reason)) if reason.attempts() == 20), "{ended:?}");
    assert_eq!(runs.load(std::sync::atomic::Ordering::Relaxed), 1);
    drop(db);
    let (values, found) = look(&cluster, &rows);
    assert!(values.iter().all(|row| row.0[0] == 0) && found.locked == 0);
}

/// The deadline counts from the call: a place in the queue, a worker, all attempts, and the answer.
#[test]
fn a_deadline_bounds_the_whole_wait() {
    let (cluster, rows, db) = pool(1, 1);
    let (go, gone) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel();
    let hurried = db.with_deadline(Duration::from_millis(200));
    thread::scope(|scope| {
        let (db, rows) = (&db, &rows);
        let table = rows.clone();
        // It occupies the only thread.
        let blocked = scope.spawn(move || {
            db.transact_blocking(async move |tx| {
                table.get_mut(tx, 0).await?.0[0] += 1;
                began.send(()).unwrap();
                gone.recv().unwrap();
                Ok(())
            })
        });
        has_begun.recv().unwrap();
        // More than there are places in the queue.
        let hurried = &hurried;
        let late: Vec<_> = (0..8)
            .map(|_| {
                let table = rows.clone();
                scope.spawn(move || {
                    let called = Instant::now();
                    let write = hurried.transact_blocking(async move |tx| table.update(tx, 1, Words([7])).await);
                    (write, called.elapsed())
                })
            })
            .collect();
        for late in late {
            let (ended, waited) = late.join().unwrap();
            assert_eq!(ended.unwrap_err().limit(), Some(Limit::Deadline));
            assert!(waited >= Duration::from_millis(200) && waited < Duration::from_secs(20), "{waited:?}");
        }
        let id = TransactionId::new(1, 1).unwrap();
        assert!(matches!(db.resolve_blocking(id, Duration::from_millis(20)), Ok(Verdict::Undecided)));
        let run =
            hurried.run_blocking(async |_| -> Result<(), Error> { panic!("nothing is begun after the deadline") });
        assert_eq!(run.unwrap_err().limit(), Some(Limit::Deadline));
        go.send(()).unwrap();
        blocked.join().unwrap().unwrap();
    });
    // What was given up never commits, and times without end are no mistake.
    let endless = db.with_deadline(Duration::MAX);
    let table = rows.clone();
    assert_eq!(endless.transact_blocking(async move |tx| table.get(tx, 1).await).unwrap(), Some(Words([0])));
    // A closure that blocks its thread beyond the deadline: its caller is told in time, and its
    // changes are not there.
    let table = rows.clone();
    let (go, gone) = mpsc::channel::<()>();
    let slow = hurried.transact_blocking(async move |tx| {
        table.update(tx, 2, Words([7])).await?;
        gone.recv().unwrap();
        Ok(())
    });
    assert!(matches!(slow, Err(Error::Limit(Reason { cause: Limit::Deadline, .. }))), "{slow:?}");
    go.send(()).unwrap();
    let table = rows.clone();
    assert_eq!(db.transact_blocking(async move |tx| table.get(tx, 2).await).unwrap(), Some(Words([0])));
    drop((db, endless, hurried));
    assert_eq!(look(&cluster, &rows).1.locked, 0);
}

/// The time that a call has waited for a worker counts towards its patience as well.
#[test]
fn waiting_for_a_worker_counts() {
    let (cluster, _) = seeded(Protocol::DRTM_R, 1, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
    let runs = Cell::new(0);
    worker(&cluster, 1, 1).block_on(async |session| {
        let once = TransactionOptions::default().patience(Duration::ZERO);
        let run = session.transact_with(once, async |tx| {
            rows.get(tx, 1).await?;
            runs.set(runs.get() + 1);
            Err::<(), _>(Abort::Changed.into())
        });
        let Error::Aborted(reason) = run.await.unwrap_err() else { panic!() };
        assert_eq!((reason.attempts(), runs.get()), (1, 1), "without any patience it is tried once");
    });
}

/// A transaction whose deadline passes while it stands in line behind others of its worker fails
/// then, and names the record.
#[test]
fn a_deadline_ends_standing_in_line() {
    const MS: u64 = 1_000_000;
    let (cluster, _) = seeded(Protocol::FORD, 3, 5);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
    let options = WorkerOptions::default().coroutines(3).yield_after_rounds(true);
    let mut worker = cluster.worker(options).unwrap();
    worker.run(async |number, session| match number {
        0 => {
            let slow = session.transact(async |tx| {
                rows.get_mut(tx, 1).await?.0[0] += 1;
                tx.lane().sleep(50 * MS).await;
                Ok(())
            });
            slow.await.unwrap();
        }
        1 => {
            // It meets the lock, and has the turn from then on.
            session.lane().sleep(MS).await;
            add(session, &rows, 1, Default::default()).await.unwrap();
        }
        _ => {
            session.lane().sleep(5 * MS).await;
            let began = session.lane().now();
            let options = TransactionOptions::default().deadline(Duration::from_millis(3));
            let error = add(session, &rows, 1, options).await.unwrap_err();
            let took = session.lane().now() - began;
            assert!((3 * MS..4 * MS).contains(&took), "{took}");
            assert_eq!(error.limit(), Some(Limit::Deadline));
            let text = error.to_string();
            assert!(text.contains("deadline") && text.contains("(1) of table \"rows\""), "{text}");
        }
    });
}
