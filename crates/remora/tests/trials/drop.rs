//! Tables that are dropped: their memory is used again, even if clients still have handles, or if
//! the client that was loading them has died.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use remora::admin::Freed;
use remora::connect::{Nodes, Place};
use remora::floors::fabric::{ClientId, Lane, block_on};
use remora::floors::index::IndexError;
use remora::floors::node::{MemoryError, Registration, metadata};
use remora::node::{MemoryNode, ServerOptions};
use remora::protocol::Protocol;
use remora::{
    Abort, Cluster, Error, LargeOptions, Misuse, OpenError, OpenErrorKind, OrderedOptions, Session, Table, TableOptions,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::small::{ROW, Row, assert_whole, memory_error, rows, small};
use crate::support::{self, Words, look};

type Rows = Table<u64, Row>;

/// Another schema of other sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "other")]
#[repr(transparent)]
struct Other([u64; 9]);

/// The protocols that these tests are about: locks by NICs, locks by CPUs, replicas in place,
/// shared locks.
const PROTOCOLS: [Protocol; 5] =
    [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD, Protocol::FORD_LEAN, Protocol::NO_WAIT];

fn leased(protocol: Protocol) -> Cluster {
    small(protocol).with_lease(Some(Duration::from_millis(400)))
}

fn dropped(name: &str) -> MemoryError {
    MemoryError::Dropped { table: name.to_owned() }
}

fn is_dropped<T>(result: &Result<T, Error>, name: &str) -> bool {
    matches!(result, Err(Error::Misuse(Misuse::Dropped { table })) if table == name)
}

/// Creates a table with as many rows as fit, of several numbers that are tried.
fn fill(cluster: &Cluster, name: &str) -> (Rows, u64) {
    for count in [8_000, 7_000, 6_000, 5_000, 4_000, 3_000, 2_000] {
        match cluster.create_table::<u64, Row>(name, TableOptions::for_rows(count)) {
            Ok(table) => return (table, count),
            Err(error) if error.kind() == OpenErrorKind::Full => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing fits");
}

#[test]
fn space_is_used_again() {
    for protocol in PROTOCOLS {
        let cluster = leased(protocol);
        // A client that rests, has used each table, and never hears of a drop.
        let mut worker = support::worker(&cluster, 1, 1);
        let (table, count) = fill(&cluster, "rows");
        let mut table = Some(table);
        for turn in 0..20u64 {
            let now = match table.take() {
                Some(first) => first,
                None => cluster.create_table("rows", TableOptions::for_rows(count)).unwrap(),
            };
            assert_eq!(look(&cluster, &now).0, [], "turn {turn}: what is used again is zero");
            cluster.load(&now, rows(count / 2)).unwrap();
            let changed = worker.block_on(async |session| {
                session
                    .transact(async |tx| {
                        now.update(tx, turn, ROW).await?;
                        now.insert(tx, count - 1, ROW).await
                    })
                    .await
            });
            changed.unwrap();
            assert!(worker.drain().unwrap());
            assert_whole(&cluster, &now, count as usize / 2 + 1);
            let fits = cluster.create_table::<u64, Row>("more", TableOptions::for_rows(count));
            assert!(matches!(memory_error(fits.map(drop)), MemoryError::OutOfMemory { .. }));
            assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
        }
        assert!(cluster.catalog().tables.len() < 25, "the worker's rings name the tables still");
        // When it has left, ids are used again, too: more tables than a cluster has ids for.
        drop(worker);
        let before = cluster.catalog().tables.len();
        for _ in 0..200 {
            let _: Rows = cluster.create_table("rows", TableOptions::for_rows(10)).unwrap();
            assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
        }
        assert!(cluster.catalog().tables.len() <= before + 1);
        // A memory node's CPU does not take the records of one table for those of the next.
        for turn in 0..10 {
            let now: Rows = cluster.create_table("rows", TableOptions::for_rows(200)).unwrap();
            let mut worker = support::worker(&cluster, 1, turn);
            worker.block_on(async |session| {
                for key in 0..150 {
                    session.transact(async |tx| now.insert(tx, key, ROW).await).await.unwrap();
                }
                for key in 0..50 {
                    session.transact(async |tx| now.remove(tx, (key * 7 + turn) % 150).await).await.unwrap();
                }
                // Prepared, and taken back.
                let mut begun = session.begin().unwrap();
                now.insert(&mut begun.transaction(), 1_000, ROW).await.unwrap();
                begun.abort().await;
            });
            assert!(worker.drain().unwrap());
            drop(worker);
            assert_whole(&cluster, &now, 100);
            assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
        }
    }
}

#[test]
fn what_consists_of_several_tables_is_dropped_as_a_whole() {
    let cluster = support::embedded(Protocol::DRTM_R, 3);
    let ordered = OrderedOptions::for_rows(100);
    for _ in 0..3 {
        cluster.load_ordered("inline", ordered.clone(), rows(100)).unwrap();
        cluster.create_ordered::<u64, Words<64>>("values", ordered.clone()).unwrap();
        let large = cluster.create_large::<u64>("large", LargeOptions::for_values(10, 100_000)).unwrap();
        let mut worker = support::worker(&cluster, 1, 1);
        worker.block_on(async |session| large.write(session, 1, &[3; 20_000]).await).unwrap();
        assert_eq!(cluster.drop_ordered("inline").unwrap(), Freed::Now);
        assert_eq!(cluster.drop_ordered("values").unwrap(), Freed::Now);
        assert_eq!(cluster.drop_large("large").unwrap(), Freed::Now);
        assert!(cluster.catalog().tables.iter().all(|table| !table.is_there()));
        let refused = worker.block_on(async |session| large.read(session, 1).await);
        assert!(is_dropped(&refused, "large"), "{refused:?}");
    }
    assert_eq!(memory_error(cluster.drop_ordered("inline")), dropped("inline/leaves"));
    assert_eq!(memory_error(cluster.drop_large("none")), MemoryError::UnknownTable("none".to_owned()));
    // All or nothing.
    let _: Rows = cluster.create_table("half", TableOptions::for_rows(10)).unwrap();
    assert_eq!(memory_error(cluster.drop_large("half")), MemoryError::UnknownTable("half/chunks".to_owned()));
    cluster.open_table::<u64, Row>("half").unwrap();
}

#[test]
fn a_table_that_cannot_be_dropped_says_why() {
    let cluster = support::embedded(Protocol::DRTM_R, 3);
    assert_eq!(memory_error(cluster.drop_table("rows")), MemoryError::UnknownTable("rows".to_owned()));
    let table: Rows = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
    // While it is loaded; by the same process, too.
    let while_loading = rows(100).inspect(|(key, _)| {
        if *key == 50 {
            let refused = cluster.drop_table("rows");
            let refused = refused.unwrap_err();
            assert!(matches!(refused.cause(), IndexError::Loading { table, .. } if table == "rows"), "{refused}");
            let refused = cluster.load(&table, rows(1));
            assert!(matches!(refused.unwrap_err().kind(), OpenErrorKind::Loading { .. }));
        }
    });
    cluster.load(&table, while_loading).unwrap();
    // While it is created.
    let created = cluster.create_together(|creating| {
        creating.create_table::<u64, Row>("new", TableOptions::for_rows(10))?;
        let refused = memory_error(cluster.drop_table("new"));
        assert!(matches!(&refused, MemoryError::Unfinished { table, .. } if table == "new"), "{refused}");
        Ok::<_, OpenError>(())
    });
    created.unwrap();
    assert_eq!(cluster.drop_table("new").unwrap(), Freed::Now);
    assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
    assert_eq!(memory_error(cluster.drop_table("rows")), dropped("rows"), "twice");
    assert_eq!(memory_error(cluster.open_table::<u64, Row>("rows").map(drop)), dropped("rows"));
    assert_eq!(memory_error(cluster.load(&table, rows(1))), dropped("rows"));
    assert!(is_dropped(&cluster.inspect(&table, |_| ()), "rows"));
}

#[test]
fn a_name_is_used_again_with_another_schema() {
    for protocol in PROTOCOLS {
        for cluster in support::on_every_fabric(protocol, 3) {
            let old: Rows = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
            cluster.load(&old, rows(100)).unwrap();
            {
                let mut worker = support::worker(&cluster, 1, 1);
                let read = worker.block_on(async |session| session.transact(async |tx| old.get(tx, 1).await).await);
                assert_eq!(read.unwrap(), Some(ROW));
            }
            assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
            let new: Table<u32, Other> = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
            cluster.load(&new, (0..100).map(|key| (key, Other([u64::from(key); 9])))).unwrap();
            let mut worker = support::worker(&cluster, 1, 1);
            worker.block_on(async |session| {
                let stale = session.transact(async |tx| old.get(tx, 1).await).await;
                assert!(is_dropped(&stale, "rows"), "{stale:?}");
                let stale = session.transact(async |tx| old.insert(tx, 1_000, ROW).await).await;
                assert!(is_dropped(&stale, "rows"), "{stale:?}");
                let read = session.transact(async |tx| new.get(tx, 99).await).await;
                assert_eq!(read.unwrap(), Some(Other([99; 9])));
            });
            let refused = memory_error(cluster.open_table::<u64, Row>("rows").map(drop));
            assert!(matches!(refused, MemoryError::Fingerprint { .. }), "{refused}");
        }
    }
}

/// Two clients of the same memory nodes, as if each were a process of its own.
struct Processes {
    _nodes: Vec<MemoryNode>,
    clients: Vec<Cluster>,
    folder: PathBuf,
}

impl Processes {
    fn new(protocol: Protocol, count: usize, lease: Duration) -> Processes {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("remora-drop-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let listen = || MemoryNode::listen("127.0.0.1:0", 12 << 20, ServerOptions::default()).unwrap();
        let nodes: Vec<MemoryNode> = (0..3).map(|_| listen()).collect();
        let names = Nodes::Tcp(nodes.iter().map(|node| node.address().unwrap().to_string()).collect());
        let place = Some(Place::File(folder.join("configuration")));
        let connect = || {
            let options = Cluster::connect(&names).configuration(place.clone()).protocol(protocol);
            options.open().unwrap().with_lease(Some(lease))
        };
        Processes { clients: (0..count).map(|_| connect()).collect(), _nodes: nodes, folder }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.clients.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client that runs all the time, one that rests, and one that has only a handle.
#[test]
fn other_clients_are_told_and_go_on() {
    for protocol in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD, Protocol::NO_WAIT] {
        let processes = Processes::new(protocol, 3, Duration::from_secs(1));
        let [one, running, resting] = [0, 1, 2].map(|at| processes.clients[at].clone());
        let table: Rows = support::table(&one, "rows", TableOptions::for_rows(100), ROW);
        let other: Rows = support::table(&one, "other", TableOptions::for_rows(100), ROW);
        let is_over = AtomicBool::new(false);
        let mut rests = support::worker(&resting, 1, 1);
        let (opened_table, opened_other): (Rows, Rows) =
            (resting.open_table("rows").unwrap(), resting.open_table("other").unwrap());
        let write = async |session: &mut Session, table: &Rows| {
            session.transact(async |tx| table.update(tx, 3, ROW).await).await
        };
        rests.block_on(async |session| write(session, &opened_table).await).unwrap();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let (table, other, is_over) = (&table, &other, &is_over);
            let _over = Over(is_over);
            let runs = scope.spawn(move || {
                let mut worker = support::worker(&running, 2, 2);
                worker.run(async |number, session| {
                    let (mut committed, mut refused) = (0u32, 0u32);
                    while !is_over.load(Ordering::Relaxed) {
                        match write(session, if number == 0 { table } else { other }).await {
                            Ok(()) => {
                                committed += 1;
                                if committed == 10 {
                                    tell.send(()).unwrap();
                                }
                            }
                            error if is_dropped(&error, "rows") => refused += 1,
                            error => panic!("{error:?}"),
                        }
                        if refused == 10 {
                            break;
                        }
                    }
                    (committed, refused)
                })
            });
            told.recv().unwrap();
            told.recv().unwrap();
            assert_eq!(one.drop_table("rows").unwrap(), Freed::Now, "{protocol:?}");
            // The same name, perhaps the same space, and another schema.
            let new: Table<u32, Other> = one.create_table("rows", TableOptions::for_rows(100)).unwrap();
            one.load(&new, (0..100).map(|key| (key, Other([5; 9])))).unwrap();
            thread::sleep(Duration::from_millis(100));
            is_over.store(true, Ordering::Relaxed);
            let seen = runs.join().unwrap();
            assert!(seen[0].0 >= 10 && seen[0].1 == 10, "{protocol:?}: {seen:?}");
            assert!(seen[1].0 > 10 && seen[1].1 == 0, "{protocol:?}: {seen:?}");
            let inspection = one.inspect(&new, |row| assert_eq!(*row, Other([5; 9]))).unwrap();
            assert_eq!((inspection.records, inspection.locked, inspection.differing_lines), (100, 0, 0));
        });
        rests.block_on(async |session| {
            let refused = write(session, &opened_table).await;
            assert!(is_dropped(&refused, "rows"), "{refused:?}");
            write(session, &opened_other).await.unwrap();
        });
        // It opens what has the name now.
        let new: Table<u32, Other> = resting.open_table("rows").unwrap();
        let read = rests.block_on(async |session| session.transact(async |tx| new.get(tx, 7).await).await);
        assert_eq!(read.unwrap(), Some(Other([5; 9])));
        drop(rests);
    }
}

/// As long as a transaction is under way that began before the drop, its table's memory is kept.
#[test]
fn a_transaction_under_way_keeps_the_memory() {
    for protocol in PROTOCOLS {
        let cluster = leased(protocol);
        let (table, count) = fill(&cluster, "rows");
        cluster.load(&table, rows(count / 2)).unwrap();
        let (tell, told) = mpsc::channel();
        let (release, released) = async_channel::bounded::<()>(1);
        let (cluster, table) = (&cluster, &table);
        thread::scope(move |scope| {
            let under_way = scope.spawn(move || {
                let mut worker = support::worker(cluster, 1, 1);
                let committed = worker.block_on(async |session| {
                    let mut begun = session.begin()?;
                    table.update(&mut begun.transaction(), 3, Words([8])).await?;
                    tell.send(()).unwrap();
                    released.recv().await.unwrap();
                    table.get(&mut begun.transaction(), 4).await?;
                    begun.commit().await
                });
                let refused =
                    worker.block_on(async |session| session.transact(async |tx| table.get(tx, 3).await).await);
                (committed, refused)
            });
            told.recv().unwrap();
            // Closed also if this fails, so that the other thread ends.
            let release = release;
            let freed = cluster.drop_table("rows").unwrap();
            assert!(matches!(&freed, Freed::Later { clients } if clients.len() == 1), "{freed:?}");
            let fits = cluster.create_table::<u64, Row>("new", TableOptions::for_rows(count));
            assert!(matches!(memory_error(fits.map(drop)), MemoryError::OutOfMemory { .. }), "it is kept");
            release.send_blocking(()).unwrap();
            let (committed, refused) = under_way.join().unwrap();
            committed.unwrap();
            assert!(is_dropped(&refused, "rows"), "{refused:?}");
            // The creation that needs the memory frees it.
            let new = cluster.create_table::<u64, Row>("new", TableOptions::for_rows(count)).unwrap();
            cluster.load(&new, rows(count)).unwrap();
            assert_whole(cluster, &new, count as usize);
        });
    }
}

/// Threads change tables all the time that are dropped and created again all the time, in the same
/// memory: what is loaded is what is found.
#[test]
fn tables_in_the_same_memory_are_whole() {
    const TURNS: u64 = 12;
    for protocol in PROTOCOLS {
        for seed in support::seeds(1..if support::is_long() { 4 } else { 2 }) {
            // Nobody dies here. On a busy machine a thread may have no core for longer than a short
            // lease, and then for longer than a drop waits for it.
            let cluster = small(protocol).with_lease(Some(Duration::from_secs(20)));
            let (_, count) = fill(&cluster, "rows");
            assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
            // All memory, except what a table after it and the clients need.
            let count = count / 2;
            // The client that makes a table larger would need memory, too.
            let options = TableOptions::for_rows(count).grows(false);
            let _: Rows = cluster.create_table("rows", options).unwrap();
            let _: Rows = cluster.create_table("behind", TableOptions::for_rows(count / 4)).unwrap();
            assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let (cluster, is_over) = (&cluster, &is_over);
                let _end = Over(is_over);
                let threads: Vec<_> = (0..2)
                    .map(|thread| scope.spawn(move || change(cluster, seed * 10 + thread, count, is_over)))
                    .collect();
                for turn in 0..TURNS {
                    let table: Rows = cluster.create_table("rows", options).unwrap();
                    cluster.load(&table, (0..count / 2).map(|key| (key, Words([turn])))).unwrap();
                    thread::sleep(Duration::from_millis(5));
                    let freed = cluster.drop_table("rows").unwrap();
                    assert_eq!(freed, Freed::Now, "{protocol:?} {seed} {turn}");
                    // A table that no other thread opens, in the same memory.
                    let own: Rows = cluster.create_table("own", options).unwrap();
                    assert_eq!(look(cluster, &own).0, []);
                    cluster.load(&own, rows(count / 2)).unwrap();
                    thread::sleep(Duration::from_millis(5));
                    assert_whole(cluster, &own, count as usize / 2);
                    assert_eq!(cluster.drop_table("own").unwrap(), Freed::Now);
                }
                is_over.store(true, Ordering::Relaxed);
                let changed: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
                assert!(changed > TURNS, "{protocol:?} {seed}: {changed}");
            });
        }
    }
}

/// Ends threads, also if their test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes the table that has the name now. Returns the number of committed transactions.
fn change(cluster: &Cluster, seed: u64, count: u64, is_over: &AtomicBool) -> u64 {
    let mut worker = support::worker(cluster, 2, seed);
    let done = worker.run(async |number, session| {
        let mut changed = 0;
        while !is_over.load(Ordering::Relaxed) {
            let table = match cluster.open_table::<u64, Row>("rows") {
                Ok(table) => table,
                Err(_) => {
                    session.lane().sleep(200_000).await;
                    continue;
                }
            };
            loop {
                let (key, new) = (session.lane().random() % (count / 2), session.lane().random() % (count / 2));
                let run = session.transact(async |tx| {
                    table.get_mut(tx, key).await?.0[0] += 1;
                    if number == 1 {
                        table.insert(tx, count / 2 + new, ROW).await?;
                    }
                    Ok(())
                });
                match run.await {
                    Ok(()) => changed += 1,
                    Err(Error::NotFound(_) | Error::Exists(_) | Error::Aborted(_)) => {}
                    Err(Error::Limit(_)) => break,
                    error if is_dropped(&error, "rows") => break,
                    error => panic!("{error:?}"),
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                session.lane().yield_now().await;
            }
        }
        changed
    });
    done.into_iter().sum()
}

/// A client without a lease cannot acknowledge a drop: only its slot is known.
#[test]
fn a_client_without_a_lease_is_waited_for_until_it_leaves() {
    let cluster = leased(Protocol::DRTM_R);
    let (_, count) = fill(&cluster, "rows");
    let unleased = cluster.with_lease(None);
    let worker = support::worker(&unleased, 1, 1);
    let client = worker.incarnations().next().unwrap();
    assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Later { clients: vec![client] });
    let fits = cluster.create_table::<u64, Row>("new", TableOptions::for_rows(count));
    assert!(matches!(memory_error(fits.map(drop)), MemoryError::OutOfMemory { .. }));
    drop(worker);
    // One that is coming, and is not known to the configuration at all.
    let nodes = cluster.live_nodes();
    let stranger = block_on(cluster.fabric(), ClientId(5_000), async |lane: &Lane| {
        Registration::connect_as(lane, nodes, 5_000, 0).await
    });
    let stranger = stranger.unwrap().unwrap();
    let fits = cluster.create_table::<u64, Row>("new", TableOptions::for_rows(count));
    assert!(matches!(memory_error(fits.map(drop)), MemoryError::OutOfMemory { .. }));
    block_on(cluster.fabric(), ClientId(5_000), async |lane: &Lane| stranger.disconnect(lane).await).unwrap().unwrap();
    cluster.create_table::<u64, Row>("new", TableOptions::for_rows(count)).unwrap();
}

/// A client that dies with locks on a table that is dropped: its space is free when it is
/// recovered.
#[test]
fn a_client_that_died_is_recovered_before() {
    for protocol in PROTOCOLS {
        let cluster = leased(protocol);
        let (table, count) = fill(&cluster, "rows");
        cluster.load(&table, rows(count / 2)).unwrap();
        let mut dead = support::worker(&cluster, 1, 1);
        let client = dead.incarnations().next().unwrap();
        // The leases begin to run, and then nothing happens any more.
        let left: Result<(), Error> = dead.block_on(async |session| {
            let mut begun = session.begin()?;
            table.update(&mut begun.transaction(), 3, Words([8])).await?;
            let _forgotten = std::mem::ManuallyDrop::new(begun);
            Ok(())
        });
        left.unwrap();
        dead.abandon();
        let freed = cluster.drop_table("rows").unwrap();
        assert_eq!(freed, Freed::Later { clients: vec![client] }, "{protocol:?}");
        let mut survivor = support::worker(&cluster, 1, 2);
        survivor.recover(client).unwrap();
        let new = cluster.create_table::<u64, Row>("new", TableOptions::for_rows(count)).unwrap();
        cluster.load(&new, rows(count / 2)).unwrap();
        let read = survivor.block_on(async |session| session.transact(async |tx| new.get(tx, 3).await).await);
        assert_eq!(read.unwrap(), Some(ROW));
        assert_whole(&cluster, &new, count as usize / 2);
    }
}

/// A client that was loading a table when it died: the next one drops what is there, or loads anew.
#[test]
fn a_loader_that_died_half_way() {
    let words_of = |table: &Rows, cluster: &Cluster, client: u64| {
        let at = table.untyped().shard_replicas(1)[0].address(15 * 8);
        let named = block_on(cluster.fabric(), ClientId(client as u32), async |lane: &Lane| {
            let mut round = lane.round();
            round.write_words(at, &[client]);
            lane.execute(round).await.map(drop)
        });
        named.unwrap().unwrap();
    };
    for protocol in PROTOCOLS {
        let processes = Processes::new(protocol, 2, Duration::from_secs(1));
        let [one, other] = [0, 1].map(|at| processes.clients[at].clone());
        for drops in [true, false] {
            let table: Rows = one.create_table("rows", TableOptions::for_rows(100)).unwrap();
            let configuration = one.configuration().unwrap();
            let dead = 10_000 + u32::from(drops);
            // It has written some of the rows, is connected, and known.
            one.load(&table, rows(60)).unwrap();
            configuration.change(|now| now.join(dead, now.epoch(), u64::MAX / 2, None)).unwrap().unwrap();
            let connection = one.fabric().connect(ClientId(dead)).unwrap();
            words_of(&table, &one, dead.into());
            let refused = OpenError::from(IndexError::Loading { table: "rows".to_owned(), client: dead });
            assert_eq!(other.drop_table("rows"), Err(refused.clone()));
            let opened: Rows = other.open_table("rows").unwrap();
            assert_eq!(other.load(&opened, rows(100)), Err(refused));
            // It dies.
            drop(connection);
            configuration.change(|now| now.give_up(dead)).unwrap().unwrap();
            if drops {
                // No client recovers the dead one here, so the table's memory is kept.
                let _ = other.drop_table("rows").unwrap();
                let again: Rows = other.create_table("rows", TableOptions::for_rows(100)).unwrap();
                assert_eq!(other.load(&again, rows(100)), Ok(100));
                assert_whole(&other, &again, 100);
                let _ = other.drop_table("rows").unwrap();
            } else {
                assert_eq!(other.load(&opened, rows(100)), Ok(100));
                assert_whole(&other, &opened, 100);
            }
        }
    }
}

/// A load that began before a drop writes nothing into the memory of the next table.
#[test]
fn a_load_that_comes_too_late_is_refused() {
    let cluster = leased(Protocol::DRTM_R);
    let table: Rows = cluster.create_table("rows", TableOptions::for_rows(100)).unwrap();
    // The catalog says that the table is dropped, and this client has not heard of it.
    let nodes = cluster.live_nodes();
    let before = block_on(cluster.fabric(), ClientId(0), async |lane: &Lane| {
        metadata::drop_tables(lane, nodes, 1, &["rows".to_owned()]).await
    });
    before.unwrap().unwrap();
    assert_eq!(memory_error(cluster.load(&table, rows(100))), dropped("rows"));
    assert_eq!(memory_error(cluster.load_parts(&table, 1, |_| rows(3).collect(), |_| ())), dropped("rows"));
    // The client has taken its name out of the table again, so that no other client waits for it.
    let _: Rows = cluster.create_table("new", TableOptions::for_rows(10)).unwrap();
    assert_eq!(cluster.drop_table("new").unwrap(), Freed::Now);
    assert_eq!(cluster.catalog().kept().count(), 0);
}

/// A drop that ends between its two changes of the catalog is finished by the next creation that
/// needs the memory.
#[test]
fn a_drop_that_ends_half_way_is_finished_by_the_next_creation() {
    let cluster = leased(Protocol::DRTM_R);
    let (table, count) = fill(&cluster, "rows");
    let mut worker = support::worker(&cluster, 1, 1);
    let nodes = cluster.live_nodes();
    let half = block_on(cluster.fabric(), ClientId(0), async |lane: &Lane| {
        metadata::drop_tables(lane, nodes, 1, &["rows".to_owned()]).await
    });
    half.unwrap().unwrap();
    assert_eq!(memory_error(cluster.drop_table("rows")), dropped("rows"));
    let new: Rows = cluster.create_table("rows", TableOptions::for_rows(count)).unwrap();
    cluster.load(&new, rows(count)).unwrap();
    assert_whole(&cluster, &new, count as usize);
    worker.block_on(async |session| {
        let refused = session.transact(async |tx| table.get(tx, 1).await).await;
        assert!(is_dropped(&refused, "rows"), "{refused:?}");
        assert_eq!(session.transact(async |tx| new.get(tx, 1).await).await.unwrap(), Some(ROW));
        // An abort of another kind stays one.
        let aborted = session.transact(async |_| Err::<(), _>(Error::Aborted(Abort::Dropped.into()))).await;
        assert!(aborted.is_err());
    });
}

/// The rings of a client name a dropped table for as long as the client stays. If it dies then, its
/// recovery touches no table that was created since.
#[test]
fn recovery_of_a_client_that_used_a_dropped_table() {
    for protocol in PROTOCOLS {
        let cluster = leased(protocol);
        let one_shard = TableOptions::for_rows(100).shards(1);
        let old: Rows = cluster.create_table("old", one_shard).unwrap();
        cluster.load(&old, (0..100).map(|key| (key, Words([1])))).unwrap();
        let mut dead = support::worker(&cluster, 1, 1);
        let client = dead.incarnations().next().unwrap();
        dead.block_on(async |session| {
            for key in 0..50 {
                session.transact(async |tx| old.update(tx, key, Words([2])).await).await.unwrap();
            }
        });
        assert!(dead.drain().unwrap());
        assert_eq!(cluster.drop_table("old").unwrap(), Freed::Now);
        // In the same memory, with the same layout.
        let new: Rows = cluster.create_table("new", one_shard).unwrap();
        assert_eq!(new.untyped().shard_replicas(0), old.untyped().shard_replicas(0));
        assert_ne!(new.untyped().shard_id(0), old.untyped().shard_id(0), "its id is in the rings");
        cluster.load(&new, rows(100)).unwrap();
        dead.abandon();
        let mut survivor = support::worker(&cluster, 1, 2);
        survivor.recover(client).unwrap();
        drop(survivor);
        assert_whole(&cluster, &new, 100);
        // No ring names it any more.
        assert_eq!(cluster.drop_table("new").unwrap(), Freed::Now);
        let again: Rows = cluster.create_table("again", one_shard).unwrap();
        assert_eq!(again.untyped().shard_id(0), old.untyped().shard_id(0), "{protocol:?}");
    }
}
