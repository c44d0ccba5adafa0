//! Lookups: their costs without and with cached locations, loaded tables, and wrong locations that
//! are detected.

mod support;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use remora::floors::fabric::shm::Shm;
use remora::floors::fabric::{ClientId, Fabric, Lane, NodeId, NodeSet, Worker, block_on};
use remora::floors::index::cluster_hash::{BUCKET_WORDS, Geometry, entry_word, link_word};
use remora::floors::index::{IndexError, Location, Table};
use remora::floors::node::{Discipline, MemoryError, Metadata, Pointer, TableSpec, metadata, node};
use remora::floors::record::{Key, KeyHash};
use remora::floors::txn::{Intent, Session, Stop, TransactOptions};
use remora::observe::{Observer, TransactionEvent};
use remora::protocol::{Protocol, ReadScheme};
use remora::{OpenError, TableOptions, TransactionOptions};

use support::rig::{self, Rig};
use support::{NODES, Words, at_one_node, embedded, look, options, table, worker};

const PROTOCOL: Protocol = Protocol::DRTM_R;

/// The number of READs of every attempt.
#[derive(Clone, Default)]
struct Reads(Rc<RefCell<Vec<u64>>>);

impl Observer for Reads {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.0.borrow_mut().push(event.cost.reads);
    }
}

async fn read(session: &mut Session, table: &Arc<Table>, key: Key) -> Option<Vec<u8>> {
    let read = session.transact(TransactOptions::default(), async |tx| {
        tx.register(table);
        let slot = tx.want(table.id(), &key)?;
        tx.fetch().await?;
        Ok::<_, Stop>(Ok::<_, ()>(tx.value(slot)?.map(<[u8]>::to_vec)))
    });
    read.await.unwrap().unwrap()
}

/// A full table, looked up through a cache of one bucket and through one that holds all.
#[test]
fn a_cold_lookup_is_about_one_read_and_a_cached_one_none() {
    const ROWS: u64 = 20_000;
    let rig = Rig::new(Shm::new(&vec![vec![8 << 20]; 3]).unwrap());
    let rows: Vec<Vec<u8>> = (0..ROWS).map(|row| row.to_le_bytes().to_vec()).collect();
    // 75 % of the main slots are full; more rows than a shard's share would not be.
    let table = rig.table("rows", ReadScheme::SingleLine, 1, 8, &rows);
    let worker = Worker::new();
    for (cache_bytes, sweeps) in [(1, 1), (usize::MAX, 2)] {
        let table = rig.open("rows", cache_bytes);
        let reads = Reads::default();
        rig::run(&worker, &mut rig.sessions(&worker, PROTOCOL, 1), async |_, session| {
            session.observe(Some(Box::new(reads.clone())));
            for number in (0..sweeps).flat_map(|_| 0..ROWS) {
                // Not in the order of their buckets, which scatter.
                assert_eq!(read(session, &table, rig::key(number)).await, Some(number.to_le_bytes().to_vec()));
            }
        });
        let reads = reads.0.take();
        let lookups: Vec<f64> = reads
            .chunks(ROWS as usize)
            .map(|sweep| sweep.iter().map(|reads| reads - 1).sum::<u64>() as f64 / ROWS as f64)
            .collect();
        match lookups[..] {
            [cold] => assert!((1.0..1.15).contains(&cold), "{cold} READs for a cold lookup"),
            // A bucket is read for the first of its keys, and holds six on average.
            [filling, cached] => assert!(filling < 0.25 && cached == 0.0, "{filling}, then {cached}"),
            ref other => panic!("{other:?}"),
        }
    }
    drop(table);
}

/// A client that inserts a key first looks where the key was. Another key is there by now.
#[test]
fn an_insert_finds_another_key_where_its_own_was() {
    let rig = Rig::for_protocol(Shm::new(&[vec![8 << 20]]).unwrap(), Protocol::FORD);
    let rows: Vec<Vec<u8>> = (0..3u64).map(|row| row.to_le_bytes().to_vec()).collect();
    let tables = [rig.table("rows", ReadScheme::SingleLine, 1, 8, &rows), rig.open("rows", usize::MAX)];
    let worker = Worker::new();
    let mut sessions = rig.sessions(&worker, Protocol::FORD, 2);
    let reads = Reads::default();
    sessions[0].observe(Some(Box::new(reads.clone())));
    let put = async |session: &mut Session, table: &Arc<Table>, number: u64, value: u64| {
        let put = session.transact(TransactOptions::default(), async |tx| {
            tx.register(table);
            let slot = tx.want_for(table.id(), &rig::key(number), Intent::Insert)?;
            tx.fetch().await?;
            assert_eq!(tx.value(slot)?, None, "key {number}");
            tx.insert(slot, &value.to_le_bytes())?;
            Ok::<_, Stop>(Ok::<_, ()>(()))
        });
        put.await.unwrap().unwrap();
    };
    let delete = async |session: &mut Session, table: &Arc<Table>, number: u64| {
        let delete = session.transact(TransactOptions::default(), async |tx| {
            tx.register(table);
            let slot = tx.want_for(table.id(), &rig::key(number), Intent::Delete)?;
            tx.fetch().await?;
            tx.delete(slot)?;
            Ok::<_, Stop>(Ok::<_, ()>(()))
        });
        delete.await.unwrap().unwrap();
    };
    for step in 0..3 {
        rig::run(&worker, &mut sessions, async |client, session| match (step, client) {
            (0, 0) => assert!(read(session, &tables[0], rig::key(1)).await.is_some()),
            (1, 1) => {
                delete(session, &tables[1], 1).await;
                for number in 10..13 {
                    put(session, &tables[1], number, number).await;
                }
            }
            (2, 0) => put(session, &tables[0], 1, 77).await,
            _ => {}
        });
    }
    // The record where the key was, the bucket, and the place that is free.
    assert_eq!(reads.0.take().last(), Some(&3));
    rig::run(&worker, &mut sessions, async |client, session| {
        for (number, value) in [(0, 0), (1, 77), (2, 2), (10, 10), (11, 11), (12, 12)] {
            let found = read(session, &tables[client], rig::key(number)).await;
            assert_eq!(found, Some(u64::to_le_bytes(value).to_vec()), "key {number}, client {client}");
        }
    });
    let found = rig.inspect(&tables[0]);
    assert_eq!((found.locked, found.torn), (0, 0));
}

/// Memory nodes read their catalogs while a client writes them. What the nodes find out then must
/// not stay.
#[test]
fn a_node_looks_at_its_catalog_until_it_is_whole() {
    const COPIES: [usize; 2] = [68 << 10, 228 << 10];
    const NODES: u16 = 2;
    let rig = Rig::for_protocol(Shm::new(&[vec![4 << 20], vec![4 << 20]]).unwrap(), Protocol::FASST);
    let rows: Vec<Vec<u8>> = (0..10u64).map(|row| row.to_le_bytes().to_vec()).collect();
    let table = rig.table("rows", ReadScheme::SingleLine, 2, 8, &rows);
    let publish = |catalog: &Metadata| {
        let all = NodeSet::first(NODES);
        block_on(&rig.fabric, ClientId(0), async |lane: &Lane| metadata::publish(lane, all, catalog).await).unwrap()
    };
    let known = || block_on(&rig.fabric, ClientId(0), async |lane: &Lane| metadata::read(lane, NodeId(0)).await);
    let worker = Worker::new();
    rig::run(&worker, &mut rig.sessions(&worker, Protocol::FASST, 1), async |_, session| {
        let mut catalog = known().unwrap().unwrap();
        // The catalog must differ from the one that the nodes have.
        let mut other = catalog.clone();
        other.generation += 1;
        for shard in &mut other.shards {
            shard.replicas.remove(0);
        }
        catalog.generation += 2;
        publish(&other).unwrap();
        rig.apply();
        assert_eq!(read(session, &table, rig::key(1)).await, None, "no node has it any more");
        publish(&catalog).unwrap();
        let tear = || {
            for words in (0..NODES).map(|node| rig.fabric.region(NodeId(node), node::REGION).unwrap()) {
                let words = words.words();
                let newest = COPIES.into_iter().max_by_key(|copy| words[(copy + 24) / 8].load(Ordering::SeqCst));
                words[(newest.unwrap() + 200) / 8].fetch_xor(1, Ordering::SeqCst);
            }
        };
        tear();
        assert_eq!(known().unwrap(), Ok(other));
        rig.apply();
        assert_eq!(read(session, &table, rig::key(1)).await, None);
        tear();
        assert_eq!(known().unwrap(), Ok(catalog));
        assert_eq!(read(session, &table, rig::key(1)).await, Some(1u64.to_le_bytes().to_vec()));
        let written = session.transact(TransactOptions::default(), async |tx| {
            let slots: Vec<_> = (0..10).map(|row| tx.want_for(table.id(), &rig::key(row), Intent::Update)).collect();
            tx.fetch().await?;
            for slot in slots {
                tx.write(slot?, &7u64.to_le_bytes())?;
            }
            Ok::<_, Stop>(Ok::<_, ()>(()))
        });
        written.await.unwrap().unwrap();
        while session.lane().background() > 0 {
            session.lane().yield_now().await;
        }
    });
    rig.apply();
    assert_eq!(rig.inspect(&table).differing_lines, 0);
}

/// Few main buckets: every lookup follows a chain.
#[test]
fn chains_are_followed_to_their_end() {
    const ROWS: u64 = 120;
    let rig = Rig::new(Shm::new(&[vec![4 << 20], vec![4 << 20]]).unwrap());
    let rows: Vec<Vec<u8>> = (0..ROWS).map(|row| row.to_le_bytes().to_vec()).collect();
    let small = |geometry: &mut Geometry| {
        (geometry.buckets, geometry.indirect) = (2, 60);
    };
    let table = rig.table_with("rows", ReadScheme::SingleLine, 2, 8, &rows, small);
    let worker = Worker::new();
    let small_cache = rig.open("rows", 1);
    let reads = Reads::default();
    rig::run(&worker, &mut rig.sessions(&worker, PROTOCOL, 1), async |_, session| {
        session.observe(Some(Box::new(reads.clone())));
        for number in 0..ROWS {
            assert_eq!(read(session, &small_cache, rig::key(number)).await, Some(number.to_le_bytes().to_vec()));
        }
        let longest = reads.0.take().into_iter().max();
        assert!(longest > Some(3), "there are chains: {longest:?}");
    });
    rig::run(&worker, &mut rig.sessions(&worker, PROTOCOL, 1), async |_, session| {
        session.observe(Some(Box::new(reads.clone())));
        for number in 0..2 * ROWS {
            let found = read(session, &table, rig::key(number)).await;
            assert_eq!(found, (number < ROWS).then(|| number.to_le_bytes().to_vec()));
        }
        reads.0.take();
        for number in 0..ROWS {
            read(session, &table, rig::key(number)).await;
        }
        assert!(reads.0.take().into_iter().all(|reads| reads == 1), "whole chains are cached");
    });
    // Too few indirect buckets is an error of the load, which names what ran out.
    let none = |geometry: &mut Geometry| {
        (geometry.buckets, geometry.indirect) = (2, 1);
    };
    let error = rig.try_table("full", ReadScheme::SingleLine, 1, 8, &rows, none).unwrap_err();
    assert!(matches!(&error, IndexError::Full { what: "indirect buckets of a shard's index", .. }), "{error}");
}

/// Two keys of 16 bytes with the same hash: the hash finds both, the key in the record decides.
#[test]
fn keys_whose_hashes_collide() {
    // A hash of two words is mix(mix(2 ^ first) ^ second), so a second word can be made for any
    // first one.
    let mix = |word| KeyHash::of(&[word]).scatter;
    let wanted = mix(2 ^ 7) ^ 9;
    let colliding: Vec<[u64; 2]> = (0..30).map(|first| [first, wanted ^ mix(2 ^ first)]).collect();
    assert!(colliding.iter().all(|words| KeyHash::of(words) == KeyHash::of(&[7, 9])));
    let key = |words: [u64; 2]| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        bytes
    };
    let cluster = embedded(PROTOCOL, 3);
    let rows = cluster.create_table::<[u8; 16], Words<1>>("rows", at_one_node(30)).unwrap();
    let present = &colliding[..20];
    assert_eq!(cluster.load(&rows, present.iter().map(|words| (key(*words), Words([words[0]])))).unwrap(), 20);
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for words in &colliding {
            let limit = remora::floors::txn::limits::LOOKUP_ATTEMPTS as u64;
            let once = TransactionOptions::default().attempts(1);
            let found = session.transact_with(once, async |tx| rows.get(tx, key(*words)).await).await;
            // Twenty keys with equal 64-bit hashes do not occur by chance. A lookup handles a few
            // of them, and aborts if there are more.
            match found {
                Ok(found) => assert_eq!(found, (words[0] < 20).then_some(Words([words[0]]))),
                Err(error) => assert!(words[0] >= limit, "{words:?}: {error}"),
            }
        }
    });
    let duplicate = present.iter().chain(&present[3..4]).map(|words| (key(*words), Words([0])));
    let again = cluster.create_table::<[u8; 16], Words<1>>("again", at_one_node(30)).unwrap();
    let error = cluster.load(&again, duplicate).unwrap_err();
    assert!(matches!(error.cause(), IndexError::Duplicate { key, .. } if key.starts_with("0300")), "{error}");
}

/// What the cache says is checked: a location that names another record, or none, is looked up
/// again.
#[test]
fn a_wrong_location_in_the_cache_is_found_out() {
    const ROWS: u64 = 40;
    let cluster = embedded(PROTOCOL, 1);
    let rows = table(&cluster, "rows", at_one_node(ROWS), Words([0]));
    let untyped = rows.untyped();
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for key in 0..ROWS {
            session.transact(async |tx| rows.update(tx, key, Words([key])).await).await.unwrap();
        }
        let locate = |key: u64| {
            let hash = rig::key(key).hash();
            (untyped.home(hash), hash, untyped.cached(untyped.home(hash), hash))
        };
        for key in 0..ROWS {
            let (home, hash, location) = locate(key);
            let location = location.unwrap();
            let other = locate((key + 1) % ROWS).2.unwrap();
            // Another key's record; its own in another life; a place that no record can have.
            let wrong = [
                other,
                Location { incarnation: location.incarnation + 1, ..location },
                Location { pointer: Pointer::new(location.pointer.shard(), 1 << 40), ..location },
            ];
            for forged in wrong {
                let mut bucket = [0; BUCKET_WORDS];
                bucket[..2].copy_from_slice(&[entry_word(forged), hash.word]);
                let _ = untyped.probe(home, &bucket, hash, 0);
                let read = session.transact(async |tx| rows.get(tx, key).await);
                assert_eq!(read.await.unwrap(), Some(Words([key])), "{forged:?}");
                assert_eq!(locate(key).2, Some(location), "the cache has learned");
            }
        }
        // A link to its own bucket must not block a lookup.
        let (home, hash, _) = locate(3);
        let mut circle = [0; BUCKET_WORDS];
        circle[BUCKET_WORDS - 2] = link_word(untyped.cluster_hash().unwrap().bucket_at(home.bucket));
        let _ = untyped.probe(home, &circle, hash, 0);
        let read = session.transact(async |tx| rows.get(tx, 3).await);
        assert_eq!(read.await.unwrap(), Some(Words([3])));
    });
}

// --- Bulk load.

#[test]
fn loads_that_are_refused() {
    let cluster = embedded(PROTOCOL, 3);
    let make = |name: &str, rows| cluster.create_table::<u64, Words<1>>(name, TableOptions::for_rows(rows)).unwrap();
    let rows = |keys: std::ops::Range<u64>| keys.map(|key| (key, Words([key])));

    let twice = make("twice", 20);
    let error = cluster.load(&twice, rows(0..10).chain(rows(9..12))).unwrap_err();
    assert!(matches!(error.cause(), IndexError::Duplicate { key, .. } if key == "0000000000000009"), "{error}");
    assert_eq!(look(&cluster, &twice).1.records, 0, "nothing of it is there");
    assert_eq!(cluster.load(&twice, rows(0..20)).unwrap(), 20);
    let error = cluster.load(&twice, rows(50..51)).unwrap_err();
    assert!(matches!(error.cause(), IndexError::NotEmpty(_)), "{error}");

    let full = cluster.create_table::<u64, Words<1>>("full", at_one_node(20)).unwrap();
    let error = cluster.load(&full, rows(0..21)).unwrap_err();
    assert!(matches!(error.cause(), IndexError::Full { what: "record slots of a shard", rows: 21, .. }), "{error}");

    // Spread over shards, a table holds what it was made for, however its keys scatter.
    for (name, count) in [("a", 1), ("b", 3), ("c", 100), ("d", 5_000)] {
        let table = make(name, count);
        assert_eq!(cluster.load(&table, rows(0..count)).unwrap(), count);
        let (found, state) = look(&cluster, &table);
        assert_eq!(found.iter().map(|row| row.0[0]).sum::<u64>(), (0..count).sum::<u64>());
        assert_eq!((state.records, state.differing_lines, state.torn), (count, 0, 0));
    }

    // The untyped interface can bring the wrong sizes.
    let rig = Rig::new(Shm::new(&[vec![2 << 20]]).unwrap());
    let load = |name, key: &[u8], value: &[u8]| {
        let table = rig.table(name, ReadScheme::SingleLine, 1, 8, &[]);
        rig.load(&table, [(Key::new(key).unwrap(), value.to_vec())])
    };
    assert!(matches!(load("a", &[1; 7], &[1; 8]), Err(IndexError::Size { what: "key", bytes: 7, expected: 8, .. })));
    assert!(matches!(load("b", &[1; 8], &[1; 9]), Err(IndexError::Size { what: "value", bytes: 9, expected: 8, .. })));
    assert_eq!(load("c", &[1; 8], &[]), Ok(1));
}

/// A transaction of many records, which has them looked up by more than a glance at each.
#[test]
fn many_records_in_one_transaction() {
    const ROWS: u64 = 100;
    let cluster = embedded(PROTOCOL, 3);
    let [debit, credit] =
        ["debit", "credit"].map(|name| table(&cluster, name, TableOptions::for_rows(ROWS), Words([0; 1])));
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        // A small one in between leaves nothing of the large one behind, nor before.
        for rows in [ROWS, 3, ROWS, 8, 9, ROWS / 2, ROWS] {
            let added = session.transact(async |tx| {
                let first: Vec<_> = (0..rows).map(|row| [&debit, &credit].map(|table| tx.want(table, row))).collect();
                tx.fetch().await?;
                for (row, slots) in first.iter().enumerate().rev() {
                    for (slot, (table, each)) in slots.iter().zip([(&debit, 0), (&credit, 1_000)]) {
                        slot.get_mut(tx)?.0[0] += row as u64;
                        // Two records of one key would be in each other's way.
                        let again = tx.want(table, row as u64);
                        tx.fetch().await?;
                        again.get_mut(tx)?.0[0] += each;
                    }
                }
                Ok(())
            });
            added.await.unwrap();
        }
    });
    assert!(worker.drain().unwrap());
    // Row n is in the runs of more than n rows.
    let turns = |row: u64| [ROWS, 3, ROWS, 8, 9, ROWS / 2, ROWS].iter().filter(|rows| row < **rows).count() as u64;
    for (table, each) in [(&debit, 0), (&credit, 1_000)] {
        let mut expected: Vec<u64> = (0..ROWS).map(|row| turns(row) * (each + row)).collect();
        let mut found: Vec<u64> = look(&cluster, table).0.iter().map(|row| row.0[0]).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

// --- Opening.

#[test]
fn tables_of_others_are_not_opened() {
    #[derive(
        Clone,
        Copy,
        zerocopy::FromBytes,
        zerocopy::IntoBytes,
        zerocopy::Immutable,
        zerocopy::KnownLayout,
        remora::Record,
    )]
    #[record(schema = "other")]
    #[repr(C)]
    struct Other(u64);

    let cluster = embedded(PROTOCOL, 2);
    let rows = cluster.create_table::<u64, Words<1>>("rows", TableOptions::for_rows(4)).unwrap();
    assert!(cluster.open_table::<u64, Words<1>>("rows").is_ok());
    let memory = |error: OpenError| error.memory().cloned().unwrap_or_else(|| panic!("{error}"));
    let error = memory(cluster.open_table::<u64, Other>("rows").unwrap_err());
    let MemoryError::Fingerprint { ref table, ref found, ref wanted } = error else { panic!("{error}") };
    assert!(table == "rows" && found.fingerprint != wanted.fingerprint);
    for named in [found, wanted] {
        assert!(error.to_string().contains(&named.to_string()), "{error}");
    }
    assert_eq!((&*wanted.text, wanted.key_bytes, wanted.value_bytes), ("other", 8, 8));
    assert_eq!(found.text, <Words<1> as remora::Record>::schema());
    assert!(matches!(
        memory(cluster.open_table::<u32, Words<1>>("rows").unwrap_err()),
        MemoryError::Fingerprint { .. }
    ));
    assert!(matches!(
        memory(cluster.open_table::<u64, Words<2>>("rows").unwrap_err()),
        MemoryError::Fingerprint { .. }
    ));
    let error = cluster.open_table::<u64, Words<1>>("row").unwrap_err();
    assert_eq!(memory(error), MemoryError::UnknownTable("row".to_owned()));
    let error = cluster.create_table::<u64, Words<1>>("rows", TableOptions::for_rows(4)).unwrap_err();
    assert_eq!(memory(error), MemoryError::TableExists("rows".to_owned()));
    // A table of protocols that keep their locks and replicas in another way.
    let other = Discipline { lock: 9, ..Discipline::OCC_ONE_SIDED };
    let spec = TableSpec { name: "other".to_owned(), discipline: other, ..rows.untyped().entry().spec.clone() };
    let create = async |lane: &Lane| {
        metadata::create_table(lane, NodeSet::first(NODES), NodeSet::first(NODES), 1, spec, NodeId(0)).await
    };
    block_on(cluster.fabric(), ClientId(1), create).unwrap().unwrap();
    let error = memory(cluster.open_table::<u64, Words<1>>("other").unwrap_err());
    assert!(matches!(error, MemoryError::Discipline { .. }), "{error}");
    assert!(error.to_string().contains("#9 locks") && error.to_string().contains("owner locks"), "{error}");
    let zero = cluster.create_table::<u64, Words<1>>("zero", TableOptions::for_rows(0)).unwrap_err();
    assert!(matches!(memory(zero), MemoryError::Empty { .. }));
    let many = TableOptions::for_rows(4).replicas(4);
    let error = memory(cluster.create_table::<u64, Words<1>>("many", many).unwrap_err());
    assert_eq!(error, MemoryError::too_many_replicas(4, 3).of_table("many"));
    let error = options(PROTOCOL, 4).open().unwrap_err();
    assert_eq!(memory(error), MemoryError::too_many_replicas(4, 3));
    let error = options(PROTOCOL, 1).node_bytes(4096).open().unwrap_err();
    assert!(matches!(memory(error), MemoryError::TooSmall { .. }));
    assert!(options(PROTOCOL, 1).nodes(0).open().is_err());
    assert!(options(PROTOCOL, 1).nodes(65).open().is_err());
}

/// Records that could never be logged, or not be read by one round, are refused when the table is
/// made. The largest is a value of 32,000 bytes on the stack, in each frame that hands it on.
#[test]
fn records_that_are_too_large() {
    let roomy = std::thread::Builder::new().stack_size(32 << 20).spawn(too_large).unwrap();
    roomy.join().unwrap();
}

fn too_large() {
    let cluster = embedded(PROTOCOL, 3);
    let lines = TableOptions::for_rows(2).read_scheme(ReadScheme::LineVersions);
    assert!(cluster.create_table::<u64, Words<4000>>("lines", lines).is_err(), "32,000 bytes with line versions");
    let options = TableOptions::for_rows(2);
    let largest = table(&cluster, "largest", options, Words::<4000>::all(1));
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        session.transact(async |tx| largest.update(tx, 1, Words::all(2)).await).await.unwrap();
        assert_eq!(session.transact(async |tx| largest.get(tx, 1).await).await.unwrap(), Some(Words::all(2)));
    });
    assert!(worker.drain().unwrap());
    let (_, found) = look(&cluster, &largest);
    assert_eq!((found.records, found.differing_lines), (2, 0));
    assert!(cluster.create_table::<u64, Words<4100>>("larger", options).is_err());
    assert!(cluster.create_table::<u64, Words<8000>>("largest of all", options).is_err());
}
