//! Tables whose creation or loading fails on its way: the next attempt finds no trace of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remora::connect::Nodes;
use remora::floors::fabric::{ClientId, Lane, NodeId, block_on};
use remora::floors::index::IndexError;
use remora::floors::node::{MemoryError, node};
use remora::node::{MemoryNode, ServerOptions};
use remora::protocol::Protocol;
use remora::{Cluster, LargeOptions, OpenError, OpenErrorKind, OrderedOptions, TableOptions};

use crate::small::{ROW, Row, assert_whole, memory_error, rows, small};
use crate::support::{self, Words, look};

#[test]
fn a_table_that_does_not_fit_takes_nothing() {
    let cluster = small(Protocol::default());
    for attempt in 0..20 {
        let refused = memory_error(cluster.create_table::<u64, Row>("rows", TableOptions::for_rows(40_000)));
        assert!(matches!(refused, MemoryError::OutOfMemory { .. }), "{attempt}: {refused}");
    }
    // Most of the memory: it fits only if all of it is there.
    let table = cluster.create_table::<u64, Row>("rows", TableOptions::for_rows(8_000)).unwrap();
    cluster.load(&table, rows(8_000)).unwrap();
    assert_whole(&cluster, &table, 8_000);
}

#[test]
fn an_ordered_table_that_fails_gives_its_name_and_its_space_back() {
    let cluster = small(Protocol::default());
    let sorted = |count: u64| (0..count).map(|key| (key, ROW));
    for values in 0..60 {
        let unsorted = sorted(2_000).chain([(3, ROW)]);
        let refused = cluster.load_ordered("orders", OrderedOptions::for_rows(4_000), unsorted);
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused.cause(), IndexError::Unsorted { .. }), "{values}: {refused}");
        assert_eq!(cluster.catalog().tables.len(), 0);
    }
    let table = cluster.load_ordered("orders", OrderedOptions::for_rows(4_000), sorted(4_000)).unwrap();
    let mut found = 0;
    let (records, tree) = cluster.inspect_ordered(&table, |_, row| found += u64::from(*row == ROW)).unwrap();
    assert_eq!((found, tree.rows, tree.fault), (4_000, 4_000, None));
    assert!(records.iter().all(|table| table.differing_lines == 0), "{records:?}");
    assert_eq!(
        memory_error(cluster.create_ordered::<u64, Row>("orders", OrderedOptions::for_rows(1)).map(drop)),
        MemoryError::TableExists("orders/leaves".to_owned())
    );
}

#[test]
fn a_large_table_of_which_one_half_fails_leaves_no_half() {
    let (cluster, options) = (small(Protocol::default()), TableOptions::for_rows(10));
    cluster.create_table::<u64, Row>("pictures", options).unwrap();
    let refused = cluster.create_large::<u64>("pictures", LargeOptions::for_values(10, 10_000));
    assert_eq!(memory_error(refused.map(drop)), MemoryError::TableExists("pictures".to_owned()));
    cluster.create_table::<u64, Row>("pictures/chunks", options).unwrap();
}

#[test]
fn what_is_created_together_is_seen_together_or_not_at_all() {
    for cluster in support::on_every_fabric(Protocol::default(), 3) {
        let step = |cluster: &Cluster, name: &str| {
            let table = cluster.create_table::<u64, Row>(name, TableOptions::for_rows(100))?;
            cluster.load(&table, rows(100))?;
            Ok::<_, OpenError>(table)
        };
        let outside = |name: &str| memory_error(cluster.open_table::<u64, Row>(name).map(drop));
        let failed = cluster.create_together(|creating| {
            step(creating, "one")?;
            assert!(matches!(outside("one"), MemoryError::Unfinished { .. }));
            assert!(matches!(memory_error(step(&cluster, "one").map(drop)), MemoryError::Unfinished { .. }));
            // A creation within it that fails alone is undone alone.
            let inner = creating.create_together(|creating| {
                step(creating, "two")?;
                step(creating, "one")
            });
            assert!(matches!(memory_error(inner.map(drop)), MemoryError::Unfinished { .. }));
            step(creating, "two")?;
            // Another client's table behind them, whose ids stay as they are.
            step(&cluster, "between")?;
            step(creating, "between")
        });
        assert_eq!(memory_error(failed.map(drop)), MemoryError::TableExists("between".to_owned()));
        assert_eq!((outside("one"), outside("two")), {
            let unknown = |name: &str| MemoryError::UnknownTable(name.to_owned());
            (unknown("one"), unknown("two"))
        });
        assert_eq!(outside(""), MemoryError::UnknownTable(String::new()), "a vacant entry is no table");
        let (one, two) = cluster
            .create_together(|creating| Ok::<_, OpenError>((step(creating, "one")?, step(creating, "two")?)))
            .unwrap();
        assert_eq!(cluster.catalog().tables.len(), 3, "vacant entries are used again");
        let between = cluster.open_table("between").unwrap();
        [&one, &two, &between].into_iter().for_each(|table| assert_whole(&cluster, table, 100));
        // They are tables like others.
        let mut worker = support::worker(&cluster, 1, 1);
        let read = worker.block_on(async |session| {
            session
                .transact(async |tx| {
                    one.update(tx, 5, Words([8])).await?;
                    Ok((two.get(tx, 5).await?, between.get(tx, 5).await?))
                })
                .await
        });
        assert_eq!(read.unwrap(), (Some(ROW), Some(ROW)));
    }
}

#[test]
fn space_of_discarded_tables_is_used_again_and_is_zero() {
    let cluster = small(Protocol::default());
    // A third of the memory each; the discarded one is in front of the other.
    let third = TableOptions::for_rows(2_300);
    let discarded: Result<(), OpenError> = cluster.create_together(|creating| {
        let table = creating.create_table::<u64, Row>("first", third)?;
        creating.load(&table, rows(2_300))?;
        let behind = cluster.create_table::<u64, Row>("behind", third)?;
        cluster.load(&behind, rows(2_300))?;
        creating.create_table::<u64, Row>("behind", third).map(drop)
    });
    assert!(discarded.is_err());
    let tables: Vec<_> = ["second", "third"]
        .map(|name| cluster.create_table::<u64, Row>(name, third).expect("the space in front is free"))
        .into();
    let mut worker = support::worker(&cluster, 1, 1);
    for table in &tables {
        let (found, inspection) = look(&cluster, table);
        assert_eq!((found.len(), inspection.differing_lines), (0, 0));
        let inserted =
            worker.block_on(async |session| session.transact(async |tx| table.insert(tx, 3, ROW).await).await);
        inserted.unwrap();
        assert_eq!(look(&cluster, table).0, [ROW]);
    }
    assert_whole(&cluster, &cluster.open_table("behind").unwrap(), 2_300);
}

#[test]
fn a_program_can_interrupt_a_load() {
    for cluster in support::on_every_fabric(Protocol::default(), 3) {
        let interrupt = Arc::new(AtomicBool::new(false));
        let interruptible = cluster.with_interrupt(interrupt.clone());
        let until = rows(1_000).inspect(|(key, _)| _ = interrupt.fetch_or(*key == 500, Ordering::Relaxed));
        let loaded = interruptible.load_ordered("rows", OrderedOptions::for_rows(1_000), until);
        assert_eq!(memory_error(loaded.map(drop)), MemoryError::Interrupted);
        interrupt.store(false, Ordering::Relaxed);
        interruptible.load_ordered("rows", OrderedOptions::for_rows(1_000), rows(1_000)).unwrap();
    }
}

/// Two memory nodes over TCP, without a configuration, and two clients, as if each were a process
/// of its own.
fn two_clients() -> (Vec<MemoryNode>, [Cluster; 2]) {
    let listen = || MemoryNode::listen("127.0.0.1:0", 8 << 20, ServerOptions::default()).unwrap();
    let nodes = vec![listen(), listen()];
    let addresses = || Nodes::Tcp(nodes.iter().map(|node| node.address().unwrap().to_string()).collect());
    let connect = || Cluster::connect(addresses()).open().unwrap();
    let clients = [connect(), connect()];
    (nodes, clients)
}

#[test]
fn what_a_dead_client_was_creating_makes_way() {
    let (_nodes, [doomed, other]) = two_clients();
    let options = TableOptions::for_rows(100);
    let ended = doomed.create_together(|creating| {
        let one = creating.create_table::<u64, Row>("one", options)?;
        creating.create_table::<u64, Row>("two", options)?;
        let creator = creating.creator().unwrap();
        assert!(!other.is_dead(creator), "it is connected");
        let refused = memory_error(other.create_table::<u64, Row>("two", options).map(drop));
        assert_eq!(refused, MemoryError::Unfinished { table: "two".to_owned(), client: creator });
        assert_eq!(other.discard_unfinished().unwrap(), [""; 0]);
        // As its death would: its connections are gone.
        other.fabric().revoke(ClientId(creator)).unwrap();
        assert!(other.is_dead(creator));
        let two = other.create_table::<u64, Row>("two", options)?;
        other.load(&two, rows(100))?;
        assert_whole(&other, &two, 100);
        assert_eq!(
            memory_error(other.open_table::<u64, Row>("one").map(drop)),
            MemoryError::UnknownTable("one".to_owned()),
            "all of the dead client's tables are gone"
        );
        // One that was taken for dead by mistake can do no harm any more.
        creating.load(&one, rows(100))
    });
    assert_eq!(ended.as_ref().err().map(OpenError::kind), Some(OpenErrorKind::Unavailable), "{ended:?}");
    assert_whole(&other, &other.open_table("two").unwrap(), 100);
}

/// A client shows that it is alive by a connection, and only while it creates or loads tables. It
/// is not dead if it has just finished.
#[test]
fn a_client_that_has_just_finished_is_not_taken_for_dead() {
    const TIMES: u64 = 100;
    let (_nodes, [busy, other]) = two_clients();
    let options = TableOptions::for_rows(100);
    let is_gone = |error: &OpenError| matches!(error.kind(), OpenErrorKind::NoTable | OpenErrorKind::Dropped);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_done);
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(other.discard_unfinished().unwrap(), [""; 0]);
            }
        });
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                if let Err(error) = other.drop_table("loaded") {
                    let is_loading = matches!(error.kind(), OpenErrorKind::Loading { .. });
                    assert!(is_loading || is_gone(&error), "{error}");
                }
            }
        });
        for time in 0..TIMES {
            let make = |creating: &Cluster| creating.create_table::<u64, Row>("made", options).map(drop);
            let made = busy.create_together(make).and_then(|()| busy.drop_table("made"));
            assert!(made.is_ok(), "{time}: {made:?}");
            let loaded = busy.create_table::<u64, Row>("loaded", options).and_then(|table| busy.load(&table, rows(10)));
            for result in [loaded.map(drop), busy.drop_table("loaded").map(drop)] {
                assert!(result.as_ref().err().is_none_or(is_gone), "{time}: {result:?}");
            }
        }
    });
}

/// Says that something is done when this is dropped.
struct Ends<'d>(&'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that dies, or is revoked, while it writes what it loads into a table that was there
/// before.
#[test]
fn a_load_that_was_cut_short_is_begun_anew() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let cluster = support::embedded(protocol, 3);
        let interrupt = Arc::new(AtomicBool::new(false));
        let table = cluster.create_table::<u64, Row>("rows", TableOptions::for_rows(1_000)).unwrap();
        // While rows are read, nothing is written yet.
        let interruptible = cluster.with_interrupt(interrupt.clone());
        let until = rows(1_000).inspect(|(key, _)| _ = interrupt.fetch_or(*key == 500, Ordering::Relaxed));
        assert_eq!(memory_error(interruptible.load(&table, until)), MemoryError::Interrupted);
        assert_eq!(look(&cluster, &table).0, []);
        // As if it had died between two shards: the last row is another one's, and the header names
        // it.
        cluster.load(&table, rows(900)).unwrap();
        assert_eq!(cluster.load(&table, rows(1)), Err(IndexError::NotEmpty("rows".to_owned()).into()));
        let loader = 15 * 8;
        let name = async |lane: &Lane, client: u64| {
            let mut round = lane.round();
            round.write_words(table.untyped().shard_replicas(1)[0].address(loader), &[client]);
            lane.execute(round).await.map(drop)
        };
        let other = 77;
        block_on(cluster.fabric(), ClientId(1), async |lane: &Lane| name(lane, other).await).unwrap().unwrap();
        let lives = cluster.load(&table, rows(1_000));
        assert_eq!(
            lives,
            Err(IndexError::Loading { table: "rows".to_owned(), client: other as u32 }.into()),
            "for all that is known"
        );
        let configuration = cluster.configuration().unwrap();
        configuration.change(|now| now.join(other as u32, now.epoch(), u64::MAX / 2, None)).unwrap().unwrap();
        configuration.change(|now| now.give_up(other as u32)).unwrap().unwrap();
        assert_eq!(cluster.load(&table, rows(1_000)), Ok(1_000));
        assert_whole(&cluster, &table, 1_000);
    }
}

#[test]
fn a_client_that_dies_while_it_changes_the_catalog_keeps_nobody_from_it() {
    const LOCK: u64 = 48;
    let (_nodes, [cluster, _]) = two_clients();
    let dead = 999;
    let taken = block_on(cluster.fabric(), ClientId(dead), async |lane: &Lane| {
        let mut round = lane.round();
        let swap = round.compare_swap(node::at(NodeId(0), LOCK), 0, dead.into());
        lane.execute(round).await.unwrap().swapped(swap)
    });
    assert!(taken.unwrap());
    cluster.create_table::<u64, Row>("rows", TableOptions::for_rows(100)).unwrap();
}
