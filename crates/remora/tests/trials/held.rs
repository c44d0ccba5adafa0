//! How long locks are held, and that a release is sent even if the holder's thread is busy.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Intent, Table, TableOptions, Verdict, WorkerOptions};

use super::support::{self, Words, look, on_every_fabric, table};

most_protocols!(a_thread_that_is_kept_busy_holds_up_nobody, a_lone_client_is_never_in_its_own_way);

/// Memory nodes over TCP, and leases so long that a client whose thread is busy is not taken for
/// dead.
fn over_tcp(protocol: Protocol) -> Cluster {
    let options = support::options(protocol, 3).node_bytes(32 << 20);
    options.open_servers(None).unwrap().with_lease(Some(Duration::from_secs(100)))
}

/// A client commits, and then its thread does something else for as long as another client has not
/// committed, too.
fn a_thread_that_is_kept_busy_holds_up_nobody(protocol: Protocol) {
    let cluster = over_tcp(protocol);
    let rows = table(&cluster, "rows", TableOptions::for_rows(3), Words([0u64]));
    let (committed, first) = mpsc::channel();
    let (done, second) = mpsc::channel();
    thread::scope(|scope| {
        let (cluster, rows) = (&cluster, &rows);
        let busy = scope.spawn(move || {
            let mut worker = cluster.worker(Default::default()).unwrap();
            worker.block_on(async |session| {
                session.transact(async |tx| support::add(tx, rows, 0..3, 3).await).await.unwrap();
                committed.send(()).unwrap();
                // Much longer than it takes, also on a machine that has much else to do.
                second.recv_timeout(Duration::from_secs(20))
            })
        });
        scope.spawn(move || {
            let mut worker = cluster.worker(Default::default()).unwrap();
            worker.block_on(async |session| {
                first.recv().unwrap();
                loop {
                    match session.transact(async |tx| support::add(tx, rows, 0..3, 3).await).await {
                        Ok(()) => break,
                        Err(Error::Aborted(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            let _ = done.send(()); // the other one may have given up
        });
        assert_eq!(busy.join().unwrap(), Ok(()), "others have waited for a thread that was busy");
    });
    assert_eq!(look(&cluster, &rows).0, [Words([2]); 3]);
}

/// The thread of a client stands still in the middle of a transaction, for longer than its lease. A
/// client that reconnects goes on as another incarnation, and adds each time once. Another client
/// is told that it was taken for dead.
#[test]
fn a_client_that_was_taken_for_dead_connects_again() {
    const LEASE: Duration = Duration::from_millis(100);
    for protocol in [Protocol::DRTM_R, Protocol::FORD, Protocol::REMORA] {
        let cluster = support::embedded(protocol, 3).with_lease(Some(LEASE));
        let rows = table(&cluster, "rows", TableOptions::for_rows(2), Words([0u64]));
        let (cluster, rows, is_over) = (&cluster, &rows, &AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                // It ends with the test, also if the test fails.
                let began = Instant::now();
                let mut others = cluster.worker(Default::default()).unwrap();
                others.block_on(async |session| {
                    while !is_over.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(30) {
                        session.transact(async |tx| support::add(tx, rows, 1..2, 1).await).await.unwrap();
                    }
                });
            });
            for reconnects in [true, false] {
                let mut added = rows_of(cluster, rows);
                loop {
                    let mut worker = cluster.worker(WorkerOptions::default().reconnects(reconnects)).unwrap();
                    let before = worker.incarnations().next();
                    let mut stood = false;
                    let slow = worker.block_on(async |session| {
                        let mut committed = 0;
                        while committed < 2 {
                            let added = session.transact(async |tx| {
                                support::add(tx, rows, 0..1, 1).await?;
                                if !std::mem::replace(&mut stood, true) {
                                    thread::sleep(4 * LEASE);
                                }
                                Ok(())
                            });
                            match added.await {
                                Ok(()) => committed += 1,
                                // Its log entry was written, and who recovered it has decided.
                                Err(Error::Unknown(id)) if reconnects => {
                                    match session.resolve(id, Duration::from_secs(10)).await? {
                                        Verdict::Committed => committed += 1,
                                        Verdict::Aborted => {}
                                        verdict => panic!("{protocol:?}: {verdict:?}"),
                                    }
                                }
                                Err(error) => return Err(error),
                            }
                        }
                        Ok(())
                    });
                    if let Err(error) = slow {
                        assert!(
                            !reconnects && matches!(error, Error::Fenced | Error::Unknown(_)),
                            "{protocol:?}: {error}"
                        );
                        break;
                    }
                    added += 2;
                    assert_eq!(rows_of(cluster, rows), added, "{protocol:?}");
                    // On a busy machine, the others may not have looked in time.
                    if reconnects && worker.incarnations().next() != before {
                        break;
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// Returns the value of row 0.
fn rows_of(cluster: &Cluster, rows: &Table<u64, Words<1>>) -> u64 {
    let mut worker = cluster.worker(Default::default()).unwrap();
    worker.block_on(async |session| session.transact(async |tx| rows.get(tx, 0).await).await).unwrap().unwrap().0[0]
}

/// Counts the ends of attempts, and the round trips of committed attempts.
#[derive(Default)]
struct Counts {
    committed: Cell<u64>,
    others: Cell<u64>,
    round_trips: Cell<u64>,
}

struct Counter(Rc<Counts>);

impl Observer for Counter {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let Counts { committed, others, round_trips } = &*self.0;
        if event.outcome == Outcome::Committed {
            committed.set(committed.get() + 1);
            round_trips.set(round_trips.get() + event.cost.round_trips);
        } else {
            others.set(others.get() + 1);
        }
    }
}

/// What a transaction of a client on its own does with a record that its last one has written.
async fn again(session: &mut remora::Session, rows: &Table<u64, Words<1>>, turn: u64) -> Result<(), Error> {
    session
        .transact(async |tx| match turn % 4 {
            // Locked when it is fetched, where the protocol does that; or only when it is
            // committed.
            0 | 1 => support::add(tx, rows, 1..2, 1).await,
            2 => {
                let row = rows.get(tx, 1).await?.map_or(0, |row| row.0[0]);
                rows.update(tx, 1, Words([row + 1])).await
            }
            _ => support::add(tx, rows, 0..3, 0).await,
        })
        .await
}

/// A client's transaction never conflicts with the locks of its last one, wherever their release
/// is.
fn a_lone_client_is_never_in_its_own_way(protocol: Protocol) {
    const TURNS: u64 = 80;
    for cluster in on_every_fabric(protocol, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(3), Words([0u64]));
        let mut worker = support::worker(&cluster, 1, 1);
        let counts = Rc::new(Counts::default());
        worker.block_on(async |session| {
            session.transact(async |tx| support::add(tx, &rows, 0..3, 0).await).await.unwrap();
            session.observe(Some(Box::new(Counter(counts.clone()))));
            for turn in 0..TURNS {
                again(session, &rows, turn).await.unwrap();
            }
            session.observe(None);
        });
        drop(worker);
        assert_eq!(counts.committed.get(), TURNS);
        if protocol.discipline().is_in_place() {
            assert_eq!(counts.others.get(), 0, "attempts that did not commit");
        }
        let (found, at_rest) = look(&cluster, &rows);
        assert_eq!((found[1].0[0], at_rest.locked, at_rest.differing_lines), (TURNS / 4 * 3, 0, 0));
    }
}

/// An update of the record that the last transaction has updated takes no round trip more than one
/// of another record.
#[test]
fn a_lock_is_taken_over_without_a_round_trip() {
    for cluster in on_every_fabric(Protocol::FORD, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(9), Words([0u64]));
        let mut worker = support::worker(&cluster, 1, 1);
        let round_trips = |keys: u64, worker: &mut remora::Worker| {
            let counts = Rc::new(Counts::default());
            worker.block_on(async |session| {
                session.transact(async |tx| support::add(tx, &rows, 0..9, 0).await).await.unwrap();
                session.observe(Some(Box::new(Counter(counts.clone()))));
                for turn in 0..30 {
                    let update = session.transact(async |tx| {
                        let slot = tx.want_for(&rows, turn % keys, Intent::Update);
                        tx.fetch().await?;
                        slot.get_mut(tx)?.0[0] += 1;
                        Ok(())
                    });
                    update.await.unwrap();
                }
                session.observe(None);
            });
            counts.round_trips.get()
        };
        assert_eq!((round_trips(9, &mut worker), round_trips(1, &mut worker)), (60, 60));
    }
}
