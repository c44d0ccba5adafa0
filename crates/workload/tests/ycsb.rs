//! Tests of YCSB on real and on seeded clusters, with every protocol: its invariants hold, and
//! broken ones are found.

mod support;

use remora::protocol::Protocol;
use remora::{Cluster, ClusterOptions, Design, Error, Intent, Ordered, Table, Transaction, Worker, WorkerOptions};
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::ycsb::{
    Distribution, Done, InsertOrder, Kind, Mix, OPERATIONS_MAX, OrderedSize, Row, Size, VALUE_BYTES, Ycsb,
};
use remora_workload::{After, Invariant, Prng, Setting, Statistics, Workload};

use support::{assert_sound, is_long, serializable};

const NAMES: [&str; 7] = [
    "every value was written in one piece",
    "every loaded record is there once",
    "inserted records add up",
    "changes add up",
    "replicas are identical",
    "no lock is held",
    "every log entry is settled",
];

/// A value of several lines, which can be torn.
type Value = Row<16>;

fn options(protocol: Protocol, replicas: u8) -> ClusterOptions {
    let replicas = replicas.min(protocol.discipline().copies_max() as u8);
    Cluster::embedded().nodes(3).replicas(replicas).node_bytes(24 << 20).protocol(protocol)
}

fn size(records: u64, inserts: u64) -> Size {
    Size { records, inserts, value_bytes: size_of::<Value>(), ordered: None }
}

const ORDERS: [InsertOrder; 2] = [InsertOrder::Hashed, InsertOrder::Ordered];

/// Returns the size of an ordered table, of each design, each order and both kinds of leaves in
/// turn. Twelve numbers give all combinations.
fn in_order(size: Size, number: usize) -> Size {
    let design = [Design::Fine, Design::Hybrid(1), Design::Coarse(0)][number % 3];
    let keys_first = (number % 4 > 1).then_some(8);
    Size { ordered: Some(OrderedSize { keys_first, ..tree(design, ORDERS[number % 2]) }), ..size }
}

fn tree(design: Design, order: InsertOrder) -> OrderedSize {
    OrderedSize { design, order, keys_first: None }
}

/// Returns one of YCSB's mixes, with `operations` operations in a transaction.
fn mix(name: &str, operations: usize) -> Mix {
    Mix { operations, ..Mix::named(name).unwrap() }
}

fn loaded(cluster: &Cluster, size: Size, mix: Mix) -> Ycsb {
    Ycsb::load(cluster, size).unwrap().with_mix(mix)
}

fn aborted(statistics: &Statistics) -> u64 {
    statistics.types.iter().map(|one| one.aborted).sum()
}

#[test]
fn a_run_on_shared_memory_keeps_the_invariants() {
    const TRANSACTIONS: u64 = 2_001;
    for (turn, protocol) in serializable().enumerate() {
        let in_order = |number| in_order(size(1_000, TRANSACTIONS), number);
        let hashed = size(1_000, TRANSACTIONS);
        let runs = [
            ("a", 4, 3, hashed),
            ("b", 1, 3, hashed),
            ("c", 1, 1, hashed),
            ("d", 1, 3, hashed),
            ("d", 5, 1, hashed),
            ("f", 3, 3, hashed),
            ("d", 3, 3, in_order(0)),
            ("d", 1, 3, in_order(3)),
            ("e", 1, 3, in_order(1)),
            ("e", 1, 3, in_order(4)),
            ("e", 3, 1, Size { value_bytes: 1_000, ..in_order(0) }),
            ("f", 3, 3, in_order(2)),
        ];
        // Each protocol runs a third of them, and the next protocol another third. If there is
        // time, each runs all.
        let (step, first) = if is_long() { (1, 0) } else { (3, turn % 3) };
        for (name, operations, replicas, size) in runs.into_iter().skip(first).step_by(step) {
            let cluster = options(protocol, replicas).open().unwrap();
            let ycsb = loaded(&cluster, size, mix(name, operations));
            let length = Length::Transactions(TRANSACTIONS);
            let run = RunOptions {
                threads: 3,
                coroutines: 4,
                length,
                seed: 7,
                yield_after_rounds: true,
                rate: None,
                archive: None,
            };
            let measured = driver::run(&cluster, &ycsb, &run, &|| None, |_| ()).unwrap();
            assert_sound(&measured.invariants, &NAMES);
            let committed = measured.statistics.committed();
            assert_eq!(committed + measured.given_up, TRANSACTIONS, "{protocol:?}, {name}");
            let types = &measured.statistics.types;
            let [other, mixed] = [mix(name, 1).other as usize, Kind::ALL.len()].map(|kind| types[kind].committed);
            assert_eq!(other + mixed > 0, name != "c", "{protocol:?}, {name}");
            assert_eq!(mixed > 0, operations > 1, "{protocol:?}, {name}");
            let report = measured.report::<Ycsb>(&cluster, "shm", serde_json::Value::Null);
            assert_eq!(report.by_type.values().map(|one| one.committed).sum::<u64>(), committed);
        }
    }
}

#[test]
fn a_run_on_a_seeded_cluster_keeps_the_invariants() {
    let seeds = if is_long() { 8 } else { 3 };
    for protocol in serializable() {
        let (mut conflicts, mut inserted) = (0, 0);
        for seed in 0..seeds {
            let (hashed, in_order) = (size(8, 1_000), in_order(size(8, 1_000), seed as usize));
            for (name, operations, size) in [
                ("a", 2, hashed),
                ("d", 2, hashed),
                ("f", 3, hashed),
                ("d", 2, in_order),
                ("e", 2, in_order),
                ("f", 3, in_order),
            ] {
                let (cluster, _seeded) = options(protocol, 3).open_seeded(seed).unwrap();
                let mix = Mix { read_share: 0.5, ..mix(name, operations) };
                let ycsb = loaded(&cluster, size, mix);
                let worker = WorkerOptions::default().coroutines(6).clients(3).seed(seed).yield_after_rounds(false);
                let mut worker = cluster.worker(worker).unwrap();
                let (statistics, invariants) = driver::run_here(&cluster, &ycsb, &mut worker, 40, seed).unwrap();
                assert_sound(&invariants, &NAMES);
                assert_eq!(statistics.committed(), 6 * 40, "{protocol:?}, seed {seed}");
                conflicts += aborted(&statistics);
                inserted += statistics.types[Kind::Insert as usize].committed;
            }
        }
        assert!(
            conflicts > 12 * seeds,
            "{protocol:?}: {conflicts} conflicts: six coroutines and eight records must meet"
        );
        assert!(inserted > 12 * seeds, "{protocol:?}: {inserted} records inserted");
    }
}

/// Every type has the expected round trips, while no other client runs.
#[test]
fn every_type_costs_its_round_trips() {
    // FORD's inserts read the chain of their key to its end.
    for (protocol, update, insert) in [(Protocol::DRTM_R, (3, 3), (3, 3)), (Protocol::FORD, (2, 2), (3, 4))] {
        let cluster = options(protocol, 3).open().unwrap();
        let ycsb = loaded(&cluster, size(1_000, 2_000), mix("a", 1));
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        worker.block_on(async |session| ycsb.warm(session, 0, 1).await).unwrap();
        let (mut random, mut done) = (Prng::new(1), Done::default());
        for (kind, expected) in
            [(Kind::Read, (1, 1)), (Kind::Update, update), (Kind::ReadModifyWrite, update), (Kind::Insert, insert)]
        {
            let (mut least, mut most) = (u64::MAX, 0);
            for _ in 0..200 {
                let cost = worker.block_on(async |session| {
                    let before = session.lane().cost();
                    ycsb.run(session, kind, &mut random, &mut done).await.unwrap();
                    session.lane().cost().round_trips - before.round_trips
                });
                // A transaction that finds its ring full needs one more round trip.
                assert!(worker.drain().unwrap());
                (least, most) = (least.min(cost), most.max(cost));
            }
            assert_eq!((least, most), expected, "{protocol:?}, {kind:?}");
        }
        let after = After { ledgers: &[done], settled: true, unknown: 0 };
        assert_eq!(done, Done { changed: 400, inserted: 200, ..Done::default() });
        assert_sound(&ycsb.invariants(&cluster, after).unwrap(), &NAMES);
    }
}

/// The operations of a transaction concern different records, however hot one is. There are as many
/// operations as records allow.
#[test]
fn records_of_a_transaction_are_different_ones() {
    for value_bytes in VALUE_BYTES {
        for protocol in [Protocol::DRTM_R, Protocol::FARM, Protocol::FORD] {
            let cluster = options(protocol, 3).open().unwrap();
            let mix = Mix { read_share: 0.0, ..mix("f", OPERATIONS_MAX) };
            let size = Size { records: OPERATIONS_MAX as u64, inserts: 0, value_bytes, ordered: None };
            let ycsb = loaded(&cluster, size, mix);
            let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
            let (statistics, invariants) = driver::run_here(&cluster, &ycsb, &mut worker, 50, 1).unwrap();
            assert_sound(&invariants, &NAMES);
            assert_eq!(statistics.types[Kind::ReadModifyWrite as usize].committed, 50);
            let counts = match value_bytes {
                32 => counts::<4>(&cluster),
                128 => counts::<16>(&cluster),
                _ => counts::<125>(&cluster),
            };
            assert_eq!(counts, [50; OPERATIONS_MAX], "{protocol:?}, {value_bytes} B: each once by each transaction");
        }
    }
}

/// Returns how often each record was changed.
fn counts<const WORDS: usize>(cluster: &Cluster) -> Vec<u64> {
    let table = cluster.open_table::<u64, Row<WORDS>>("usertable").unwrap();
    let mut counts = Vec::new();
    cluster.inspect(&table, |row| counts.push(row.count())).unwrap();
    counts
}

/// This holds also for clients that have not loaded the table. They have warmed up, and so read in
/// one round trip.
#[test]
fn records_are_where_their_order_says() {
    const RECORDS: u64 = 200;
    const INSERTS: u64 = 2_000;
    for order in ORDERS {
        let cluster = options(Protocol::DRTM_R, 1).open().unwrap();
        let size = Size { ordered: Some(tree(Design::Fine, order)), ..size(RECORDS, INSERTS) };
        let parameters = Ycsb::load(&cluster, size).unwrap().parameters();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        let (mut random, mut done) = (Prng::new(1), Done::default());
        for inserted in [0, INSERTS] {
            let ycsb = Ycsb::open(&cluster, &parameters).unwrap();
            assert_eq!(ycsb.size(), &size);
            worker.block_on(async |session| {
                for part in 0..3 {
                    ycsb.warm(session, part, 3).await.unwrap();
                }
                let before = session.lane().cost().round_trips;
                for _ in 0..RECORDS {
                    ycsb.run(session, Kind::Read, &mut random, &mut done).await.unwrap();
                }
                let cost = session.lane().cost().round_trips - before;
                assert_eq!(cost, RECORDS, "{order:?}, {inserted} inserted");
                for _ in inserted..INSERTS {
                    ycsb.run(session, Kind::Insert, &mut random, &mut done).await.unwrap();
                }
            });
        }
        let tree: Ordered<u64, Value> = cluster.open_ordered("usertable").unwrap();
        let rows = change(&mut worker, async |tx| tree.scan(tx, .., usize::MAX).await);
        assert_eq!(rows.len() as u64, RECORDS + INSERTS);
        let keys: Vec<u64> = rows.iter().map(|(_, row)| row.key()).collect();
        match order {
            InsertOrder::Ordered => assert!(keys.is_sorted() && rows.iter().all(|(place, row)| *place == row.key())),
            InsertOrder::Hashed => {
                let inserted = |part: &[u64]| part.iter().any(|key| *key >= RECORDS);
                assert!(keys.chunks(50).all(inserted), "inserts are all over the table: {keys:?}");
            }
        }
    }
}

/// Scans check that loaded records are found, and that their values are at the right keys.
#[test]
fn scans_find_what_is_broken() {
    for order in ORDERS {
        let cluster = options(Protocol::DRTM_R, 1).open().unwrap();
        let ycsb = Ycsb::load(&cluster, Size { ordered: Some(tree(Design::Fine, order)), ..size(50, 10) }).unwrap();
        let tree: Ordered<u64, Value> = cluster.open_ordered("usertable").unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        let scan = |worker: &mut Worker| {
            let (mut random, mut done) = (Prng::new(3), Done::default());
            worker.block_on(async |session| {
                for _ in 0..200 {
                    ycsb.run(session, Kind::Scan, &mut random, &mut done).await.unwrap();
                }
            });
            (done.missed > 0, done.mixed > 0)
        };
        assert_eq!(scan(&mut worker), (false, false), "{order:?}");
        let rows = change(&mut worker, async |tx| tree.scan(tx, .., usize::MAX).await);
        let (place, whole) = *rows.iter().find(|(_, row)| row.key() == 7).unwrap();
        change(&mut worker, async |tx| tree.update(tx, place, Value::new(8, 0, 0)).await);
        assert_eq!(scan(&mut worker), (false, true), "{order:?}: another record's value");
        change(&mut worker, async |tx| tree.update(tx, place, whole).await);
        assert_eq!(scan(&mut worker), (false, false), "{order:?}");
        change(&mut worker, async |tx| tree.remove(tx, place).await);
        assert_eq!(scan(&mut worker), (true, false), "{order:?}: a record is missing");
    }
}

/// Clients that insert at the same time, even in different processes, insert different keys, and
/// read the latest ones.
#[test]
fn clients_that_do_not_know_each_other_insert_their_own() {
    let cluster = options(Protocol::DRTM_R, 3).open().unwrap();
    let mix = Mix { read_share: 0.5, distribution: Distribution::Latest(0.99), ..mix("d", 2) };
    let one = loaded(&cluster, size(100, 2_000), mix);
    let other = Ycsb::open(&cluster, &one.parameters()).unwrap().with_mix(mix);
    let mut ledgers = Vec::new();
    for (seed, ycsb) in [&one, &other, &one].into_iter().enumerate() {
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(3)).unwrap();
        ledgers.extend(worker.run(async |coroutine, session| {
            let mut random = Prng::derive(seed as u64, coroutine as u64);
            let mut done = Done::default();
            for _ in 0..100 {
                ycsb.transact(session, &mut random, &mut done).await.unwrap();
            }
            done
        }));
        assert!(worker.drain().unwrap());
    }
    assert!(ledgers.iter().all(|done| done.inserted > 50), "{ledgers:?}");
    let after = After { ledgers: &ledgers, settled: true, unknown: 0 };
    assert_sound(&one.invariants(&cluster, after).unwrap(), &NAMES);
}

#[test]
fn a_full_table_ends_a_run_and_nothing_else() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let cluster = options(protocol, 3).open().unwrap();
        let ycsb = loaded(&cluster, size(100, 200), mix("d", 1));
        let length = Length::Transactions(1_000_000);
        let run = RunOptions {
            threads: 2,
            coroutines: 4,
            length,
            seed: 7,
            yield_after_rounds: false,
            rate: None,
            archive: None,
        };
        let measured = driver::run(&cluster, &ycsb, &run, &|| None, |_| ()).unwrap();
        assert!(measured.table_full, "{protocol:?}");
        assert_sound(&measured.invariants, &NAMES);
        let inserted = measured.statistics.types[Kind::Insert as usize].committed;
        assert!(inserted >= 200, "{protocol:?}: {inserted} inserted, and room for more");
    }
}

#[test]
fn without_transactions_nothing_is_claimed() {
    for name in ["a", "d", "f"] {
        let cluster = options(Protocol::UNSYNCHRONIZED, 3).open().unwrap();
        let ycsb = loaded(&cluster, size(20, 1_000), mix(name, 2));
        let mut worker = cluster.worker(WorkerOptions::default().yield_after_rounds(true)).unwrap();
        let (_, invariants) = driver::run_here(&cluster, &ycsb, &mut worker, 200, 1).unwrap();
        assert_eq!(invariants.len(), NAMES.len());
        let unclaimed = |one: &Invariant| one.holds.is_none() && one.detail.contains("no transactions");
        assert!(invariants.iter().all(unclaimed), "{invariants:?}");
    }
}

/// The memory that the sizing asks for is enough.
#[test]
fn nodes_are_sized_for_the_records() {
    for (records, memory_nodes, replicas) in [(1, 1, 1), (20_000, 4, 2)] {
        for (value_bytes, protocol) in [(32, Protocol::FORD), (128, Protocol::DRTM_R), (1_000, Protocol::FORD)] {
            let [hashed, ordered] = ORDERS;
            let trees = [(Design::Fine, ordered), (Design::Fine, hashed), (Design::Coarse(0), hashed)];
            let mut trees = trees.map(|(design, order)| Some(tree(design, order)));
            if value_bytes == 128
                && let Some(tree) = &mut trees[1]
            {
                tree.keys_first = Some(16);
            }
            for ordered in [None].into_iter().chain(trees) {
                let (setting, size) = (
                    Setting { memory_nodes, replicas, workers: 1, coroutines: 2, archive: None },
                    Size { records, inserts: 1_000, value_bytes, ordered },
                );
                let node_bytes = Ycsb::node_bytes(&size, &setting) as usize;
                let sized = options(protocol, replicas).nodes(memory_nodes).node_bytes(node_bytes);
                let cluster = sized.open().unwrap();
                let ycsb = loaded(&cluster, size, Mix { read_share: 0.0, ..mix("d", 1) });
                let mut worker = cluster.worker(WorkerOptions::default().coroutines(2)).unwrap();
                let (statistics, invariants) = driver::run_here(&cluster, &ycsb, &mut worker, 450, 1).unwrap();
                assert_sound(&invariants, &NAMES);
                assert_eq!(statistics.committed(), 900, "{size:?}");
            }
        }
    }
}

/// Damage that no client knows of must be found and named. Otherwise the checks above prove
/// nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    const NOTHING: Done = Done { changed: 0, inserted: 0, mixed: 0, missed: 0 };
    let cluster = &options(Protocol::DRTM_R, 3).open().unwrap();
    let ycsb = &loaded(cluster, size(50, 100), mix("a", 1));
    let found = |done: Done, settled: bool| {
        let after = After { ledgers: &[done, NOTHING], settled, unknown: 0 };
        let invariants = ycsb.invariants(cluster, after).unwrap();
        (0..NAMES.len()).filter(|index| invariants[*index].holds == Some(false)).collect::<Vec<_>>()
    };
    assert!(found(NOTHING, true).is_empty());
    assert_eq!(found(Done { mixed: 1, ..NOTHING }, true), [0], "somebody has seen a mixture");
    assert_eq!(found(Done { missed: 1, ..NOTHING }, true), [1], "a scan has missed a record");
    assert_eq!(found(Done { inserted: 1, ..NOTHING }, true), [2], "an insert is lost");
    assert_eq!(found(Done { changed: 1, ..NOTHING }, true), [3], "a change is lost");
    assert_eq!(found(NOTHING, false), [6]);
    let after = After { ledgers: &[], settled: true, unknown: 1 };
    let holds: Vec<_> = ycsb.invariants(cluster, after).unwrap().iter().map(|one| one.holds).collect();
    assert_eq!(holds[..4], [Some(true), Some(true), None, None], "nobody knows");

    // The damage is done by transactions that are not YCSB's. The next one undoes each.
    let table = cluster.open_table::<u64, Value>("usertable").unwrap();
    let worker = &mut cluster.worker(WorkerOptions::default()).unwrap();
    let (whole, next) = (Value::new(7, 0, 0), Value::new(7, 1, 5));
    for (value, broken, why) in [
        (mixture(&next, &whole), vec![0, 1], "a mixture of two values"),
        (Value::new(8, 0, 0), vec![1], "another record's value"),
        (next, vec![3], "a change that nobody has made"),
        (Value::new(7, 1, 6), vec![3], "another one"),
        (Value::new(1 << 63 | 9, 0, 0), vec![1, 2], "an inserted record's value"),
    ] {
        change(worker, async |tx| table.update(tx, 7, value).await);
        assert_eq!(found(NOTHING, true), broken, "{why}");
    }
    change(worker, async |tx| table.update(tx, 7, whole).await);
    assert!(found(NOTHING, true).is_empty());
    change(worker, async |tx| table.remove(tx, 7).await);
    assert_eq!(found(NOTHING, true), [1], "a record is missing");
    change(worker, async |tx| table.insert(tx, 7, whole).await);
    change(worker, async |tx| table.insert(tx, 50, Value::new(50, 0, 0)).await);
    assert_eq!(found(NOTHING, true), [1], "a record too many");
    change(worker, async |tx| table.remove(tx, 50).await);
    let inserted = [1 << 63 | 1, 1 << 63 | 2];
    change(worker, async |tx| table.insert(tx, inserted[0], Value::new(inserted[0], 0, 3)).await);
    assert!(found(Done { inserted: 1, ..NOTHING }, true).is_empty());
    assert_eq!(found(NOTHING, true), [2], "an insert that nobody has made");
    change(worker, async |tx| table.insert(tx, inserted[1], Value::new(inserted[0], 0, 3)).await);
    assert_eq!(found(Done { inserted: 1, ..NOTHING }, true), [1], "an inserted record that is there twice");
    change(worker, async |tx| table.remove(tx, inserted[1]).await);

    // A client that reads a mixture, or another record's value, reports it.
    let read_all = |worker: &mut Worker| {
        let mut done = Done::default();
        let few = Ycsb::open(cluster, &ycsb.parameters()).unwrap();
        let few = few.with_mix(Mix { distribution: Distribution::Uniform, ..mix("c", OPERATIONS_MAX) });
        worker.block_on(async |session| {
            let mut random = Prng::new(9);
            for _ in 0..200 {
                few.run(session, Kind::Read, &mut random, &mut done).await.unwrap();
            }
        });
        done.mixed
    };
    assert_eq!(read_all(worker), 0);
    for value in [mixture(&next, &whole), Value::new(8, 0, 0)] {
        change(worker, async |tx| table.update(tx, 7, value).await);
        assert!(read_all(worker) > 0, "{value:?}");
    }
}

/// Returns a value that begins like one value and ends like another.
fn mixture(first: &Value, rest: &Value) -> Value {
    use zerocopy::{FromBytes, IntoBytes};
    let mut bytes = rest.as_bytes().to_vec();
    bytes[..64].copy_from_slice(&first.as_bytes()[..64]);
    Value::read_from_bytes(&bytes).unwrap()
}

/// Runs a transaction, and waits until the backups have applied it.
fn change<T>(worker: &mut Worker, body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>) -> T {
    let result = worker.block_on(async |session| session.transact(body).await).unwrap();
    assert!(worker.drain().unwrap());
    result
}

/// A read-modify-write that forgets what it has read loses changes. The check must see that,
/// whatever the values look like.
#[test]
fn changes_that_overwrite_each_other_are_found() {
    let cluster = options(Protocol::UNSYNCHRONIZED, 1).open().unwrap();
    let ycsb = loaded(&cluster, size(1, 0), mix("f", 1));
    let table: Table<u64, Value> = cluster.open_table("usertable").unwrap();
    let worker = WorkerOptions::default().yield_after_rounds(true).coroutines(2);
    let mut worker = cluster.worker(worker).unwrap();
    worker.run(async |_, session| {
        let changed = session.transact(async |tx| {
            let slot = tx.want_for(&table, 0, Intent::Update);
            tx.fetch().await?;
            let row = slot.get_mut(tx)?;
            *row = Value::new(0, row.count() + 1, 5);
            Ok(())
        });
        changed.await.unwrap();
    });
    drop(worker);
    let cluster = cluster.with_protocol(Protocol::DRTM_R);
    let after = After { ledgers: &[Done { changed: 2, ..Done::default() }], settled: true, unknown: 0 };
    let changes = &ycsb.invariants(&cluster, after).unwrap()[3];
    assert_eq!((changes.holds, changes.detail.as_str()), (Some(false), "1 changes are in the values, 2 committed"));
}
