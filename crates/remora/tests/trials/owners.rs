//! Handles that are used with a cluster, a protocol or a transaction that they do not belong to.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use remora::connect::{ConnectError, Nodes, Place};
use remora::floors::membership::InMemory;
use remora::node::{MemoryNode, ServerOptions};
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Intent, Large, LargeOptions, Misuse, OpenErrorKind, Ordered, OrderedOptions, Session, Slot, Table,
    TableOptions, Transaction, Worker,
};

use super::support::{Words, embedded, look, table, worker};

type Rows = Table<u64, Words<1>>;

/// One handle of each kind, all of one cluster, with a row of key 1 in the table and in the ordered
/// tables.
struct Handles {
    rows: Rows,
    inline: Ordered<u64, Words<1>>,
    out_of_line: Ordered<u64, Words<64>>,
    large: Large<u64>,
}

impl Handles {
    fn of(cluster: &Cluster, name: &str) -> Handles {
        let of = |what: &str| format!("{name}-{what}");
        let sorted = OrderedOptions::for_rows(100);
        Handles {
            rows: table(cluster, &of("rows"), TableOptions::for_rows(20), Words([5])),
            inline: cluster.load_ordered(&of("inline"), sorted.clone(), [(1, Words([5]))]).unwrap(),
            out_of_line: cluster.load_ordered(&of("values"), sorted, [(1, Words::all(5))]).unwrap(),
            large: cluster.create_large(&of("large"), LargeOptions::for_values(10, 100_000)).unwrap(),
        }
    }
}

/// Everything that a session can do with a handle: each is refused, and none does anything.
async fn every_operation(session: &mut Session, of: &Handles, is_refused: &dyn Fn(&Error) -> bool) {
    macro_rules! refused {
        ($($what:literal: $operation:expr,)*) => { $(
            let done: Result<_, Error> = session.transact($operation).await;
            let error = done.map(|_| ()).expect_err($what);
            assert!(is_refused(&error), "{}: {error}", $what);
        )* };
    }
    let Handles { rows, inline, out_of_line, large } = of;
    refused! {
        "read": async |tx| rows.get(tx, 1).await,
        "read_for_update": async |tx| rows.get_mut(tx, 1).await.map(|_| ()),
        "write": async |tx| rows.update(tx, 1, Words([77])).await,
        "insert": async |tx| rows.insert(tx, 50, Words([77])).await,
        "delete": async |tx| rows.remove(tx, 1).await,
        "want, and nothing else": async |tx| Ok(_ = tx.want(rows, 1)),
        "want, a fetch whose error is swallowed, get": async |tx| {
            let slot = tx.want_for(rows, 1, Intent::Update);
            let refused = tx.fetch().await;
            assert!(matches!(slot.get_mut(tx), Err(Error::Misuse(Misuse::NotFetched(_)))));
            refused
        },
        "get of an ordered table": async |tx| inline.get(tx, 1).await,
        "insert into an ordered table": async |tx| inline.insert(tx, 9, Words([77])).await,
        "update of an ordered table": async |tx| inline.update(tx, 1, Words([77])).await,
        "put into an ordered table": async |tx| inline.put(tx, 1, Words([77])).await,
        "remove from an ordered table": async |tx| inline.remove(tx, 1).await,
        "scan": async |tx| inline.scan(tx, .., 10).await,
        "scan back": async |tx| inline.scan_back(tx, .., 10).await,
        "first": async |tx| inline.first(tx, ..).await,
        "last": async |tx| inline.last(tx, ..).await,
        "want of an ordered table": async |tx| {
            out_of_line.prefetch(tx, 1, Intent::Read);
            tx.fetch().await
        },
        "get, out of line": async |tx| out_of_line.get(tx, 1).await.map(|_| ()),
        "insert, out of line": async |tx| out_of_line.insert(tx, 9, Words::all(7)).await,
        "remove, out of line": async |tx| out_of_line.remove(tx, 1).await.map(|_| ()),
        "scan, out of line": async |tx| out_of_line.scan(tx, .., 10).await.map(|_| ()),
        "get of a large value": async |tx| large.get(tx, 1).await,
        "find of a large value": async |tx| large.find(tx, 1).await.map(|_| ()),
        "remove of a large value": async |tx| large.remove(tx, 1).await.map(|_| ()),
    }
    let others = [
        ("train", inline.train(session).await),
        ("upload", large.upload(session, &[7; 100]).await.map(|_| ())),
        ("write a large value", large.write(session, 1, &[7; 100]).await),
        ("delete a large value", large.delete(session, 1).await.map(|_| ())),
        ("read a large value", large.read(session, 1).await.map(|_| ())),
    ];
    for (what, done) in others {
        assert!(is_refused(done.as_ref().expect_err(what)), "{what}: {done:?}");
    }
    let mut begun = session.begin().unwrap();
    let _ = begun.transaction().want(rows, 1);
    let refused = begun.commit().await.expect_err("a transaction without a closure");
    assert!(is_refused(&refused), "{refused}");
}

fn of_another_cluster(error: &Error) -> bool {
    matches!(error, Error::Misuse(Misuse::Table(cause)) if cause.kind() == OpenErrorKind::OtherCluster)
}

/// All rows of a table are as they were loaded.
fn is_untouched(cluster: &Cluster, of: &Handles) {
    let (rows, found) = look(cluster, &of.rows);
    assert!(rows.len() == 20 && rows.iter().all(|row| *row == Words([5])), "{rows:?}");
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0));
    for (records, tree) in [
        cluster.inspect_ordered(&of.inline, |_, row| assert_eq!(*row, Words([5]))).unwrap(),
        cluster.inspect_ordered(&of.out_of_line, |_, row| assert!(row.is_whole() && row.0[0] == 5)).unwrap(),
    ] {
        assert_eq!((tree.rows, tree.fault), (1, None));
        assert!(records.iter().all(|found| (found.locked, found.torn, found.differing_lines) == (0, 0, 0)));
    }
}

/// Two clusters in one process, whose tables have the same numbers: nothing of one reaches the
/// other.
fn of_one_cluster_with_another(protocol: Protocol) {
    let (old, new) = (embedded(protocol, 3), embedded(protocol, 3));
    let (strangers, own) = (Handles::of(&old, "old"), Handles::of(&new, "new"));
    let mut worker = worker(&new, 2, 1);
    worker.block_on(async |session| {
        // Before the session knows any table of its own cluster, and after.
        every_operation(session, &strangers, &of_another_cluster).await;
        session.transact(async |tx| own.rows.get(tx, 1).await).await.unwrap();
        every_operation(session, &strangers, &of_another_cluster).await;
        let swallowed = session.transact(async |tx| {
            let found = own.rows.get(tx, 1).await?;
            let _ = tx.want(&strangers.rows, 1);
            Ok(found)
        });
        assert!(of_another_cluster(&swallowed.await.unwrap_err()), "what could not be named is told at the end");
        let collected = strangers.large.collect(session).await.unwrap_err();
        assert!(of_another_cluster(&collected), "{collected}");
    });
    assert!(worker.drain().unwrap());
    for same_name in [false, true] {
        let stranger: Rows =
            old.create_table(if same_name { "new-empty" } else { "old-empty" }, TableOptions::for_rows(9)).unwrap();
        let _: Rows =
            new.create_table(if same_name { "new-empty" } else { "other" }, TableOptions::for_rows(9)).unwrap();
        let rows = || (0..9).map(|key| (key, Words([1])));
        let loaded = new.load(&stranger, rows()).unwrap_err();
        assert!(loaded.to_string().contains(stranger.name()), "{loaded}");
        assert_eq!(loaded.kind(), OpenErrorKind::OtherCluster);
        let loaded = new.load_parts(&stranger, 1, |_| rows().collect(), |_| ()).unwrap_err();
        assert_eq!(loaded.kind(), OpenErrorKind::OtherCluster, "{loaded}");
        assert!(of_another_cluster(&new.inspect(&stranger, |_| ()).unwrap_err()));
        assert_eq!(look(&old, &stranger).0, []);
    }
    assert!(of_another_cluster(&new.inspect_ordered(&strangers.inline, |_, _| ()).unwrap_err()));
    assert!(of_another_cluster(&new.inspect_ordered(&strangers.out_of_line, |_, _| ()).unwrap_err()));
    assert!(of_another_cluster(&new.inspect_large(&strangers.large).unwrap_err()));
    let db = new.db(1, Default::default()).unwrap();
    let rows = strangers.rows.clone();
    assert!(of_another_cluster(&db.transact_blocking(async move |tx| rows.get(tx, 1).await).unwrap_err()));
    drop((db, worker));
    is_untouched(&old, &strangers);
    is_untouched(&new, &own);
}

#[test]
fn of_one_cluster_with_another_drtm_r() {
    of_one_cluster_with_another(Protocol::DRTM_R);
}

#[test]
fn of_one_cluster_with_another_ford() {
    of_one_cluster_with_another(Protocol::FORD);
}

/// Protocols that change lock words by other means cannot run together; those of one discipline
/// can.
#[test]
fn of_another_protocol() {
    for (one, other) in
        [(Protocol::DRTM_R, Protocol::FARM), (Protocol::FASST, Protocol::FORD), (Protocol::FORD, Protocol::DRTM_R)]
    {
        let cluster = embedded(one, 3);
        let of = Handles::of(&cluster, "t");
        let with_other = cluster.with_protocol(other);
        let refused = |error: &Error| {
            matches!(error, Error::Misuse(Misuse::Table(_)))
                && error.to_string().contains(other.name())
                && error.to_string().contains("\"t-")
        };
        worker(&with_other, 1, 1).block_on(async |session| every_operation(session, &of, &refused).await);
        is_untouched(&cluster, &of);
        // What is no transaction goes by what the table is.
        is_untouched(&with_other, &of);
    }
    let cluster = embedded(Protocol::FARM, 3);
    let of = Handles::of(&cluster, "t");
    worker(&cluster.with_protocol(Protocol::FASST), 1, 1).block_on(async |session| {
        session.transact(async |tx| of.rows.update(tx, 1, Words([5])).await).await.unwrap();
    });
}

/// Slots that are kept from another run of a closure, another transaction, another session or
/// another client.
fn slots_of_other_runs(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let rows = table(&cluster, "rows", TableOptions::for_rows(20), Words([5]));
    let kept: RefCell<Vec<Slot<Words<1>>>> = RefCell::default();
    let misused = async |tx: &mut Transaction<'_, '_>, slot: Slot<Words<1>>| {
        let mut refused = vec![
            slot.get(tx).map(|_| ()),
            slot.require(tx).map(|_| ()),
            slot.get_mut(tx).map(|_| ()),
            slot.insert(tx, Words([77])),
            slot.remove(tx).map(|_| ()),
        ];
        // Also when as many records have been named, and when more have.
        for key in 10..14 {
            let own = tx.want_for(&rows, key, Intent::Update);
            tx.fetch().await?;
            own.require(tx)?;
            refused.extend([slot.get(tx).map(|_| ()), slot.get_mut(tx).map(|_| ()), slot.remove(tx).map(|_| ())]);
        }
        for refused in refused {
            assert!(matches!(refused, Err(Error::Misuse(Misuse::OtherRun))), "{refused:?}");
        }
        Ok::<_, Error>(())
    };
    let (mut one, mut other) = (worker(&cluster, 2, 1), worker(&cluster, 2, 2));
    let keep = async |session: &mut Session| {
        let run = session.transact(async |tx| {
            let slots = [0, 1, 2].map(|key| tx.want_for(&rows, key, Intent::Update));
            kept.borrow_mut().extend(slots);
            tx.fetch().await
        });
        run.await.unwrap();
    };
    for worker in [&mut one, &mut other] {
        worker.block_on(async |session| {
            keep(session).await;
            for slot in kept.take() {
                session.transact(async |tx| misused(tx, slot).await).await.unwrap();
                let mut begun = session.begin().unwrap();
                misused(&mut begun.transaction(), slot).await.unwrap();
                begun.commit().await.unwrap();
            }
            // An earlier run of the same closure.
            let runs = std::cell::Cell::new(0);
            let again = session.transact(async |tx| {
                runs.set(runs.get() + 1);
                let slot = tx.want_for(&rows, 3, Intent::Update);
                tx.fetch().await?;
                if runs.get() == 1 {
                    kept.borrow_mut().push(slot);
                    return Err(remora::Abort::Changed.into());
                }
                let (earlier, _) = (kept.take()[0], slot.require(tx)?);
                misused(tx, earlier).await
            });
            again.await.unwrap();
            keep(session).await;
        });
        // Two clients that have begun as many transactions.
    }
    let slots = kept.take();
    for worker in [&mut one, &mut other] {
        worker.run(async |_, session| {
            for slot in &slots {
                session.transact(async |tx| misused(tx, *slot).await).await.unwrap();
            }
        });
    }
    drop((one, other));
    let (values, found) = look(&cluster, &rows);
    assert!(values.iter().all(|row| *row == Words([5])) && found.locked == 0, "{values:?} {found:?}");
}

/// What has not been fetched is neither there nor not there, and what was not named for it is
/// neither inserted nor deleted.
fn slots_before_a_fetch(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let rows = table(&cluster, "rows", TableOptions::for_rows(20), Words([5]));
    let name = |error: &Error| error.to_string().contains("of table \"rows\"");
    let not_fetched = |done: Result<(), Error>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Misuse(Misuse::NotFetched(_))) && name(&error), "{error}");
    };
    let not_named = |done: Result<(), Error>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Misuse(Misuse::NotNamed(_))) && name(&error), "{error}");
    };
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for (key, is_there) in [(1, true), (100, false)] {
            for intent in [Intent::Read, Intent::Update, Intent::Insert, Intent::Delete] {
                let run = session.transact(async |tx| {
                    let slot = tx.want_for(&rows, key, intent);
                    not_fetched(slot.get(tx).map(|_| ()));
                    not_fetched(slot.require(tx).map(|_| ()));
                    not_fetched(slot.get_mut(tx).map(|_| ()));
                    not_fetched(slot.remove(tx).map(|_| ()));
                    not_fetched(slot.insert(tx, Words([7])));
                    tx.fetch().await?;
                    assert_eq!(slot.get(tx)?.is_some(), is_there, "{intent:?}");
                    match (is_there, intent) {
                        (true, Intent::Read | Intent::Update) => {
                            not_named(slot.remove(tx).map(|_| ()));
                            // Named for it now, and not fetched since.
                            let _ = tx.want_for(&rows, key, Intent::Delete);
                            not_fetched(slot.remove(tx).map(|_| ()));
                            assert_eq!(*slot.require(tx)?, Words([5]), "what was fetched stays");
                            tx.fetch().await?;
                            slot.remove(tx)?;
                        }
                        (true, _) => assert_eq!(slot.remove(tx)?, Some(Words([5]))),
                        (false, Intent::Insert) => {
                            assert_eq!(slot.remove(tx)?, None);
                            slot.insert(tx, Words([7]))?;
                        }
                        (false, _) => {
                            not_named(slot.insert(tx, Words([7])));
                            let _ = tx.want_for(&rows, key, Intent::Insert);
                            not_fetched(slot.insert(tx, Words([7])));
                            assert_eq!(slot.get(tx)?, None, "it was looked for");
                            tx.fetch().await?;
                            slot.insert(tx, Words([7]))?;
                        }
                    }
                    Err::<(), _>(rows.missing(key))
                });
                assert!(matches!(run.await, Err(Error::NotFound(_))), "{intent:?}");
            }
        }
    });
    drop(worker);
    let (values, found) = look(&cluster, &rows);
    assert!(values.len() == 20 && values.iter().all(|row| *row == Words([5])), "nothing has committed: {values:?}");
    assert_eq!((found.locked, found.prepared, found.differing_lines), (0, 0, 0));
}

every_protocol![slots_of_other_runs, slots_before_a_fetch];

/// A large value is linked and discarded by the table that has its chunks.
#[test]
fn a_stored_value_of_another_table() {
    let (old, new) = (embedded(Protocol::DRTM_R, 3), embedded(Protocol::DRTM_R, 3));
    let create =
        |cluster: &Cluster, name| cluster.create_large::<u64>(name, LargeOptions::for_values(10, 100_000)).unwrap();
    let (stranger, first, second) = (create(&old, "first"), create(&new, "first"), create(&new, "second"));
    let mut others: Worker = worker(&old, 1, 1);
    let foreign = others.block_on(async |session| stranger.upload(session, &[1; 100]).await).unwrap();
    worker(&new, 1, 1).block_on(async |session| {
        let own = first.upload(session, &[2; 9_000]).await.unwrap();
        let empty = first.upload(session, &[]).await.unwrap();
        for (table, stored) in [(&first, &foreign), (&second, &foreign), (&second, &own), (&second, &empty)] {
            let linked = session.transact(async |tx| table.put(tx, 1, stored).await).await;
            let discarded = table.discard(session, stored).await;
            for refused in [linked.map(|_| ()), discarded] {
                assert!(matches!(refused, Err(Error::Misuse(Misuse::OtherLargeTable { .. }))), "{refused:?}");
            }
        }
        session.transact(async |tx| first.put(tx, 1, &own).await).await.unwrap();
        assert_eq!(first.read(session, 1).await.unwrap(), Some(vec![2; 9_000]));
        assert_eq!(second.read(session, 1).await.unwrap(), None);
    });
}

/// Ends a controller, also if its test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two handles of one cluster, whose tables were opened by either: each works with the other, and
/// goes on doing so when a memory node is lost.
#[test]
fn two_handles_of_one_cluster() {
    let folder = std::env::temp_dir().join(format!("remora-owners-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut nodes: Vec<_> =
        (0..3).map(|_| MemoryNode::listen("127.0.0.1:0", 24 << 20, ServerOptions::default()).unwrap()).collect();
    let names = Nodes::Tcp(nodes.iter().map(|node| node.address().unwrap().to_string()).collect());
    let options = Cluster::connect(names)
        .configuration(Place::File(folder.join("configuration")))
        .patience(Duration::from_millis(300));
    let connect = |controls| {
        let options = options.clone().controls(controls);
        options.open().unwrap().with_lease(Some(Duration::from_millis(500)))
    };
    let (one, other) = (connect(false), connect(false));
    let mut early = other.worker(Default::default()).unwrap();
    // The other handle has read the catalog before there was any of these.
    let of = Handles::of(&one, "t");
    let mut late = other.worker(Default::default()).unwrap();
    let add = |worker: &mut Worker| {
        worker.block_on(async |session| {
            let run = session.transact(async |tx| {
                of.rows.get_mut(tx, 1).await?.0[0] += 1;
                let found = of.inline.get(tx, 1).await?.unwrap_or(Words([0]));
                of.inline.update(tx, 1, Words([found.0[0] + 1])).await?;
                Ok((of.rows.get(tx, 1).await?, of.out_of_line.get(tx, 1).await?.map(|row| row.is_whole())))
            });
            let (row, is_whole) = run.await.unwrap();
            assert_eq!(is_whole, Some(true));
            of.large.write(session, row.unwrap().0[0], &[7; 9_000]).await.unwrap();
            row.unwrap().0[0]
        })
    };
    assert_eq!((add(&mut early), add(&mut late)), (6, 7));
    // Loads and looks, by the handle that has not opened them.
    let empty: Rows = one.create_table("empty", TableOptions::for_rows(9)).unwrap();
    assert_eq!(other.load(&empty, (0..9).map(|key| (key, Words([1])))).unwrap(), 9);
    assert_eq!(other.inspect(&of.rows, |_| ()).unwrap().records, 20);
    assert_eq!(other.inspect_ordered(&of.inline, |_, row| assert_eq!(*row, Words([7]))).unwrap().1.rows, 1);

    let is_over = AtomicBool::new(false);
    let controls = connect(true);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            let mut controller = controls.controller().unwrap();
            tell.send(()).unwrap();
            controller.run(|| is_over.load(Ordering::Relaxed));
        });
        let _over = Over(is_over);
        told.recv().unwrap();
        drop(nodes.remove(0));
        let configuration = other.configuration().unwrap();
        while !configuration.change(|now| now.epoch() > 1 && !now.is_changing()).unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        // Every primary of a third of the tables has gone: only a handle that follows the epoch
        // finds them.
        assert_eq!((add(&mut early), add(&mut late)), (8, 9));
        late.block_on(async |session| of.large.collect(session).await).unwrap();
        let rows = other.in_one_epoch(|| other.inspect(&of.rows, |_| ())).unwrap();
        assert_eq!(rows.records, 20);
    });
    drop((early, late, one, other));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A configuration says of which cluster it is, in this process and in a file.
#[test]
fn the_configuration_of_another_cluster_is_refused() {
    let [one, other] = [(); 2].map(|()| embedded(Protocol::default(), 3));
    assert_ne!(one.id(), other.id());
    let file = std::env::temp_dir().join(format!("remora-trials-{}-other-configuration", std::process::id()));
    let in_a_file = Place::File(file.clone()).open(other.id()).unwrap();
    for of_the_other in [other.configuration().unwrap().clone(), in_a_file.clone()] {
        let refused = one.with_configuration(of_the_other).unwrap_err();
        let text = refused.to_string();
        let ConnectError::ConfigurationOfOtherCluster { configuration, cluster } = refused else { panic!("{text}") };
        assert_eq!((configuration, cluster), (other.id(), one.id()), "{text}");
        assert!([one.id(), other.id()].iter().all(|id| text.contains(&format!("{id:010x}"))), "{text}");
    }
    other.with_configuration(in_a_file).unwrap();
    one.with_configuration(one.configuration().unwrap().clone()).unwrap();
    // A configuration that is bound to no cluster serves any.
    one.with_configuration(Arc::new(InMemory::default())).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(file.with_extension("lock")).unwrap();
}

/// A client that leaves while another one connects is not taken for a client of another
/// configuration.
#[test]
fn clients_come_and_go_while_tables_are_validated_locally() {
    let cluster = embedded(Protocol::FORD_LOCAL, 2);
    thread::scope(|scope| {
        for thread in 0..4 {
            let cluster = &cluster;
            scope.spawn(move || (0..50).for_each(|_| drop(worker(cluster, 1, thread))));
        }
    });
}
