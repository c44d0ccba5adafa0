//! The pool `Db`, used from an executor of the program and from plain threads.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use remora::floors::fabric::NodeId;
use remora::floors::node::{clients, node};
use remora::protocol::Protocol;
use remora::{Cluster, Db, Error, Limit, Reason, Table, TableOptions, Verdict, WorkerOptions};

use support::{Words, look, table};

const ACCOUNTS: u64 = 16;

fn bank() -> (Cluster, Table<u64, Words<1>>, Db) {
    let cluster = support::embedded(Protocol::default(), 3);
    let accounts = table(&cluster, "accounts", TableOptions::for_rows(ACCOUNTS), Words([100]));
    let db = cluster.db(2, WorkerOptions::default().coroutines(4)).unwrap();
    (cluster, accounts, db)
}

async fn transfer(db: &Db, accounts: &Table<u64, Words<1>>, from: u64, to: u64) -> Result<u64, Error> {
    let accounts = accounts.clone();
    let run = db.transact(async move |tx| {
        let (from, to) = (tx.want(&accounts, from % ACCOUNTS), tx.want(&accounts, to % ACCOUNTS));
        tx.fetch().await?;
        from.get_mut(tx)?.0[0] -= 1;
        to.get_mut(tx)?.0[0] += 1;
        Ok(to.require(tx)?.0[0])
    });
    run.await
}

fn at_rest(cluster: &Cluster, accounts: &Table<u64, Words<1>>) {
    let (rows, found) = look(cluster, accounts);
    assert_eq!(rows.iter().map(|row| row.0[0]).sum::<u64>(), 100 * ACCOUNTS);
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_of_an_executor() {
    let (cluster, accounts, db) = bank();
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let (db, accounts) = (db.clone(), accounts.clone());
            tokio::spawn(async move {
                for turn in 0..5 {
                    transfer(&db, &accounts, number + turn, number * 7 + 1).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(db); // waits for the workers, which wait for the appliers
    at_rest(&cluster, &accounts);
}

#[test]
fn blocking_from_plain_threads() {
    let (cluster, accounts, db) = bank();
    thread::scope(|scope| {
        for thread in 0..4 {
            let (db, accounts) = (db.clone(), &accounts);
            scope.spawn(move || {
                for turn in 0..50 {
                    let rows = accounts.clone();
                    let (from, to) = ((thread + turn) % ACCOUNTS, (thread * 5 + 1) % ACCOUNTS);
                    let run = db.transact_blocking(async move |tx| {
                        rows.get_mut(tx, from).await?.0[0] -= 1;
                        rows.get_mut(tx, to).await?.0[0] += 1;
                        Ok(())
                    });
                    run.unwrap();
                }
            });
        }
    });
    drop(db);
    at_rest(&cluster, &accounts);
}

#[tokio::test]
async fn a_future_that_is_dropped_early_or_late_breaks_nothing() {
    let (cluster, accounts, db) = bank();
    let runs = Arc::new(AtomicU64::new(0));
    let transfer = |from: u64| {
        let (accounts, runs) = (accounts.clone(), runs.clone());
        db.transact(async move |tx| {
            runs.fetch_add(1, Ordering::SeqCst);
            accounts.get_mut(tx, from % ACCOUNTS).await?.0[0] -= 1;
            accounts.get_mut(tx, (from + 1) % ACCOUNTS).await?.0[0] += 1;
            Ok(())
        })
    };
    drop(transfer(0));
    assert_eq!(runs.load(Ordering::SeqCst), 0, "nothing is sent before the first poll");
    for number in 0..200 {
        tokio::select! {
            biased;
            done = transfer(number) => done.unwrap(),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(db);
    assert!(runs.load(Ordering::SeqCst) > 0);
    at_rest(&cluster, &accounts);
}

#[tokio::test]
async fn a_panic_arrives_at_the_caller_and_the_pool_goes_on() {
    let (cluster, accounts, db) = bank();
    // More panics than the pool has coroutines.
    for number in 0..20u64 {
        let (db, rows) = (db.clone(), accounts.clone());
        let task = tokio::spawn(async move {
            db.transact(async move |tx| -> Result<(), Error> {
                rows.get_mut(tx, number % ACCOUNTS).await?.0[0] = 0;
                panic!("number {number}");
            })
            .await
        });
        let panic = task.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<String>(), Some(&format!("number {number}")));
    }
    let blocking = catch_unwind(AssertUnwindSafe(|| {
        db.transact_blocking(async |_| -> Result<(), Error> { panic!("blocking") }).unwrap();
    }));
    assert_eq!(blocking.unwrap_err().downcast_ref(), Some(&"blocking"));
    transfer(&db, &accounts, 1, 2).await.unwrap();
    drop(db);
    at_rest(&cluster, &accounts);
}

#[test]
fn errors_keep_their_types() {
    #[derive(Debug, thiserror::Error)]
    #[error("no money")]
    struct NoMoney;

    let (_cluster, accounts, db) = bank();
    let rows = accounts.clone();
    let poor = db.transact_blocking(async move |tx| {
        let row = rows.get_mut(tx, 1).await?;
        if row.0[0] < 1_000 { Err(Error::user(NoMoney)) } else { Ok(()) }
    });
    let error = poor.unwrap_err();
    assert!(error.downcast_user::<NoMoney>().is_some() && error.downcast_user::<std::fmt::Error>().is_none());
    let rows = accounts.clone();
    let absent = db.transact_blocking(async move |tx| rows.update(tx, 10_000, Words([1])).await);
    assert!(matches!(absent, Err(Error::NotFound(_))));
    let late = db.with_deadline(Duration::ZERO);
    let rows = accounts.clone();
    let late = late.transact_blocking(async move |tx| rows.get(tx, 1).await);
    assert!(matches!(late, Err(Error::Limit(Reason { cause: Limit::Deadline, .. }))));
    // Only the other handle has the deadline.
    let rows = accounts.clone();
    assert!(db.transact_blocking(async move |tx| rows.get(tx, 1).await).is_ok());
}

#[test]
fn what_became_of_a_transaction_can_be_asked_of_the_pool() {
    let (cluster, accounts, db) = bank();
    let rows = accounts.clone();
    let id = db.transact_blocking(async move |tx| rows.update(tx, 0, Words([100])).await.map(|()| tx.id())).unwrap();
    assert_eq!(db.resolve_blocking(id, Duration::from_secs(5)).unwrap(), Verdict::Committed);
    drop(db);
    at_rest(&cluster, &accounts);
}

#[test]
fn the_pool_ends_with_its_last_handle_wherever_that_is() {
    let (cluster, accounts, db) = bank();
    let second = db.clone();
    drop(db);
    let rows = accounts.clone();
    second.transact_blocking(async move |tx| rows.update(tx, 0, Words([100])).await).unwrap();
    // The last handle is dropped on a worker of the pool itself, in a closure that outlives all
    // other handles.
    let (go, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
    let (their_go, their_gone, handle) = (go.clone(), gone.clone(), second.clone());
    let run = second.transact(async move |_| {
        let _keep = (&handle, &their_gone);
        while their_go.load(Ordering::SeqCst) == 0 {
            support::others_run().await;
        }
        Ok(())
    });
    let mut run = Box::pin(run);
    assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it is under way");
    drop(run);
    drop(second);
    go.store(1, Ordering::SeqCst);
    let patience = Instant::now() + Duration::from_secs(20);
    let connected = || {
        let region = cluster.fabric().region(NodeId(0), node::REGION).unwrap();
        clients(region.words()).count()
    };
    // Only the client that made the table is left.
    while Arc::strong_count(&gone) > 1 || connected() > 1 {
        assert!(Instant::now() < patience, "it must end");
        thread::yield_now();
    }
    // Client slots are given back: there are more pools, one after the other, than a cluster has
    // slots at one time.
    for _ in 0..5 {
        let db = cluster.db(2, WorkerOptions::default().coroutines(1)).unwrap();
        let rows = accounts.clone();
        assert!(db.transact_blocking(async move |tx| rows.get(tx, 0).await).unwrap().is_some());
    }
    assert!(cluster.db(0, WorkerOptions::default()).is_err());
    assert!(cluster.db(1, WorkerOptions::default().coroutines(0)).is_err());
    assert!(cluster.db(1, WorkerOptions::default().coroutines(64)).is_err());
}

/// If the caller is gone, the worker drops what the closure has returned, and that drop may panic.
#[test]
fn a_thread_that_dies_is_an_error() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a destructor that panics");
        }
    }

    let (cluster, accounts, _) = bank();
    let db = cluster.db(1, WorkerOptions::default().coroutines(1)).unwrap();
    let is_dropped = Arc::new(AtomicBool::new(false));
    let seen = is_dropped.clone();
    let mut call = Box::pin(db.transact(async move |_| {
        while !seen.load(Ordering::Acquire) {
            thread::yield_now();
        }
        Ok(Bomb)
    }));
    let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(call); // it was sent, and nobody awaits the answer
    is_dropped.store(true, Ordering::Release);
    let read = || {
        let accounts = accounts.clone();
        db.transact_blocking(async move |tx| accounts.get(tx, 1).await)
    };
    let died = loop {
        match read() {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(died, Error::WorkerDied { .. }), "{died}");
    let after = read().unwrap_err();
    assert!(matches!(after, Error::WorkerDied { may_have_committed: false }), "{after}");
    assert!(after.to_string().contains("make a new pool"), "{after}");
    // Another pool works.
    let another = cluster.db(1, WorkerOptions::default()).unwrap();
    assert!(another.transact_blocking(async move |tx| accounts.get(tx, 1).await).unwrap().is_some());
}
