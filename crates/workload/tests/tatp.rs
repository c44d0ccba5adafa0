//! Tests of TATP on real and on seeded clusters, with every protocol: its invariants hold, and
//! broken ones are found.

mod support;

use remora::protocol::Protocol;
use remora::{Cluster, ClusterOptions, Error, Transaction, Worker, WorkerOptions};
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::tatp::population::{
    CallForwarding, Digits, ForwardingKey, Number, SpecialFacility, Subscriber, digits,
};
use remora_workload::tatp::{Changes, Kind, Subscribers, Tatp};
use remora_workload::{After, Invariant, Prng, Setting, Statistics, Workload};

use support::{assert_sound, serializable};

const NAMES: [&str; 6] = [
    "call forwarding adds up",
    "every call forwarding has its facility",
    "every subscriber has its number",
    "replicas are identical",
    "no lock is held",
    "every log entry is settled",
];

fn options(protocol: Protocol, replicas: u8) -> ClusterOptions {
    let replicas = replicas.min(protocol.discipline().copies_max() as u8);
    Cluster::embedded().nodes(3).replicas(replicas).node_bytes(16 << 20).protocol(protocol)
}

fn by_user(statistics: &Statistics) -> u64 {
    statistics.types.iter().map(|one| one.by_user).sum()
}

#[test]
fn a_run_on_shared_memory_keeps_the_invariants() {
    for protocol in serializable() {
        for (replicas, subscribers) in [(1, 20), (3, 1_000)] {
            let cluster = options(protocol, replicas).open().unwrap();
            let tatp = Tatp::load(&cluster, Subscribers::new(subscribers), 1).unwrap();
            let length = Length::Transactions(20_001);
            let run = RunOptions {
                threads: 3,
                coroutines: 4,
                length,
                seed: 7,
                yield_after_rounds: true,
                rate: None,
                archive: None,
            };
            let measured = driver::run(&cluster, &tatp, &run, &|| None, |_| ()).unwrap();
            assert_sound(&measured.invariants, &NAMES);
            let statistics = &measured.statistics;
            assert_eq!(statistics.committed() + by_user(statistics) + measured.given_up, 20_001, "{protocol:?}");
            let report = measured.report::<Tatp>(&cluster, "shm", serde_json::Value::Null);
            assert_eq!(report.by_type.values().map(|one| one.user).sum::<u64>(), report.aborted["user"]);
        }
    }
}

#[test]
fn a_run_on_a_seeded_cluster_keeps_the_invariants() {
    for protocol in serializable() {
        let (mut conflicts, mut changed) = (0, 0);
        for seed in 0..12 {
            let (cluster, _seeded) = options(protocol, 3).open_seeded(seed).unwrap();
            let tatp = Tatp::load(&cluster, Subscribers::new(4), seed).unwrap();
            let worker = WorkerOptions::default().coroutines(6).clients(3).seed(seed).yield_after_rounds(false);
            let mut worker = cluster.worker(worker).unwrap();
            let (statistics, invariants) = driver::run_here(&cluster, &tatp, &mut worker, 60, seed).unwrap();
            assert_sound(&invariants, &NAMES);
            let user = by_user(&statistics);
            assert_eq!(statistics.committed() + user, 6 * 60, "{protocol:?}, seed {seed}");
            conflicts += statistics.types.iter().map(|one| one.aborted).sum::<u64>() - user;
            let changes = [Kind::InsertCallForwarding, Kind::DeleteCallForwarding];
            changed += changes.map(|kind| statistics.types[kind as usize].committed).iter().sum::<u64>();
        }
        assert!(conflicts > 20, "{protocol:?}: {conflicts} conflicts: six coroutines and four subscribers must meet");
        assert!(changed > 20, "{protocol:?}: {changed} rows inserted or deleted");
    }
}

/// Only inserts and deletes run, of a handful of keys. So every slot and every pair of the index is
/// used again and again.
#[test]
fn rows_come_and_go_for_long() {
    for protocol in serializable() {
        let cluster = options(protocol, 3).open().unwrap();
        let tatp = Tatp::load(&cluster, Subscribers::new(2), 5).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().yield_after_rounds(true)).unwrap();
        let ledgers = worker.run(async |coroutine, session| {
            let (mut random, mut ledger) = (Prng::derive(5, coroutine as u64), Changes::default());
            for _ in 0..3_000 {
                let kinds = [Kind::InsertCallForwarding, Kind::DeleteCallForwarding, Kind::GetNewDestination];
                let kind = kinds[random.below(3) as usize];
                match tatp.run(session, kind, &mut random, &mut ledger).await {
                    Ok(()) | Err(Error::User(_) | Error::Aborted(_)) => {}
                    Err(error) => panic!("{protocol:?}: {error}"),
                }
            }
            ledger
        });
        let settled = worker.drain().unwrap();
        assert_sound(&tatp.invariants(&cluster, After { ledgers: &ledgers, settled, unknown: 0 }).unwrap(), &NAMES);
        assert!(ledgers.iter().all(|ledger| ledger.inserted > 100 && ledger.deleted > 100), "{ledgers:?}");
    }
}

/// Every type has the expected round trips and the expected share of success.
#[test]
fn every_type_costs_its_round_trips_and_has_its_success() {
    let cluster = options(Protocol::DRTM_R, 3).open().unwrap();
    let tatp = Tatp::load(&cluster, Subscribers::new(2_000), 1).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    worker.block_on(async |session| tatp.warm(session, 0, 1).await).unwrap();
    let mut statistics = Statistics::new(Tatp::TYPES.len());
    for chunk in 0..75 {
        // Each chunk ends with drained rings, because a transaction that finds its ring full needs
        // one more round trip. Invariants concern a whole run, and a chunk is not one.
        statistics.add(&driver::run_here(&cluster, &tatp, &mut worker, 400, chunk).unwrap().0);
    }
    for (kind, _) in Kind::MIX {
        let (round_trips, success) = match kind {
            Kind::GetSubscriberData => (1, 1.0),
            Kind::GetAccessData => (1, 0.625),
            Kind::GetNewDestination => (2, 0.158),
            Kind::UpdateSubscriberData => (3, 0.625),
            Kind::UpdateLocation => (5, 1.0),
            Kind::InsertCallForwarding | Kind::DeleteCallForwarding => (5, 0.3125),
        };
        let one = &statistics.types[kind as usize];
        let share = one.committed as f64 / (one.committed + one.aborted) as f64;
        assert!((share - success).abs() < 0.06, "{kind:?}: {share:.3} succeed");
        assert_eq!(one.aborted, one.by_user, "{kind:?}: there is nobody to meet");
        let mean = one.cost.round_trips as f64 / one.committed as f64;
        // An absent key is looked for up to the end of its chain, and a row that was deleted and
        // inserted again is elsewhere. So now and then there is one more lookup.
        let looks_for_absent = matches!(kind, Kind::GetNewDestination | Kind::InsertCallForwarding);
        let more = mean - f64::from(round_trips);
        assert!((0.0..=if looks_for_absent { 0.2 } else { 0.0 }).contains(&more), "{kind:?}: {mean} round trips");
    }
}

#[test]
fn without_transactions_nothing_is_claimed() {
    let cluster = options(Protocol::UNSYNCHRONIZED, 3).open().unwrap();
    let tatp = Tatp::load(&cluster, Subscribers::new(500), 1).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let (_, invariants) = driver::run_here(&cluster, &tatp, &mut worker, 200, 1).unwrap();
    assert_eq!(invariants.len(), NAMES.len());
    let unclaimed = |one: &Invariant| one.holds.is_none() && one.detail.contains("no transactions");
    assert!(invariants.iter().all(unclaimed), "{invariants:?}");
}

/// The memory that the sizing asks for is enough.
#[test]
fn nodes_are_sized_for_the_population() {
    for (subscribers, memory_nodes, replicas) in [(1, 1, 1), (7, 3, 3), (5_000, 4, 2)] {
        let setting = Setting { memory_nodes, replicas, workers: 1, coroutines: 2, archive: None };
        let node_bytes = Tatp::node_bytes(subscribers, &setting) as usize;
        let options = Cluster::embedded().nodes(memory_nodes).replicas(replicas).node_bytes(node_bytes);
        let cluster = options.open().unwrap();
        let tatp = Tatp::load(&cluster, Subscribers::new(subscribers), 1).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(2)).unwrap();
        let (_, invariants) = driver::run_here(&cluster, &tatp, &mut worker, 500, 1).unwrap();
        assert_sound(&invariants, &NAMES);
    }
}

/// Damage that no client knows of must be found and named. Otherwise the checks above prove
/// nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    const NOTHING: Changes = Changes { inserted: 0, deleted: 0 };
    struct Broken<'a> {
        cluster: &'a Cluster,
        tatp: &'a Tatp,
    }
    impl Broken<'_> {
        /// Returns the indices of the invariants that do not hold.
        fn found(&self, ledgers: &[Changes], settled: bool) -> Vec<usize> {
            let after = After { ledgers, settled, unknown: 0 };
            let invariants = self.tatp.invariants(self.cluster, after).unwrap();
            (0..NAMES.len()).filter(|index| invariants[*index].holds == Some(false)).collect()
        }
    }
    let cluster = &options(Protocol::DRTM_R, 3).open().unwrap();
    let tatp = &Tatp::load(cluster, Subscribers::new(50), 3).unwrap();
    let broken = Broken { cluster, tatp };
    assert!(broken.found(&[NOTHING], true).is_empty());
    assert_eq!(broken.found(&[Changes { inserted: 1, ..NOTHING }, NOTHING], true), [0]);
    assert_eq!(broken.found(&[Changes { deleted: 1, ..NOTHING }], true), [0]);
    assert_eq!(broken.found(&[NOTHING], false), [5]);
    let after = After { ledgers: &[], settled: true, unknown: 1 };
    assert_eq!(tatp.invariants(cluster, after).unwrap()[0].holds, None, "nobody knows");

    // The damage is done by transactions that are not TATP's. The next one undoes each.
    let subscriber = cluster.open_table::<u32, Subscriber>("subscriber").unwrap();
    let number = cluster.open_table::<Digits, Number>("sub_nbr").unwrap();
    let facility = cluster.open_table::<(u32, u8), SpecialFacility>("special_facility").unwrap();
    let forwarding = cluster.open_table::<ForwardingKey, CallForwarding>("call_forwarding").unwrap();
    let worker = &mut cluster.worker(WorkerOptions::default()).unwrap();

    let key = digits(7);
    let row = change(worker, async |tx| number.get(tx, key).await).unwrap();
    change(worker, async |tx| number.remove(tx, key).await);
    assert_eq!(broken.found(&[NOTHING], true), [2], "a number is missing");
    let wrong = Number { s_id: 8, ..row };
    change(worker, async |tx| number.insert(tx, key, wrong).await);
    assert_eq!(broken.found(&[NOTHING], true), [2], "a number is another's");
    change(worker, async |tx| number.update(tx, key, row).await);
    assert!(broken.found(&[NOTHING], true).is_empty());

    let row = change(worker, async |tx| subscriber.get(tx, 7).await).unwrap();
    change(worker, async |tx| subscriber.remove(tx, 7).await);
    assert_eq!(broken.found(&[NOTHING], true), [2], "a subscriber is missing");
    change(worker, async |tx| subscriber.insert(tx, 7, row).await);
    assert!(broken.found(&[NOTHING], true).is_empty());

    // Insert a row of call forwarding of a facility that does not exist, and then one of a time
    // that does not exist.
    let types = change(worker, async |tx| {
        let types = [1, 2, 3, 4].map(|sf_type| (sf_type, tx.want(&facility, (7, sf_type))));
        tx.fetch().await?;
        Ok(types.map(|(sf_type, slot)| (sf_type, slot.get(tx).unwrap().is_some())))
    });
    let (with, without) = (types.iter().find(|one| one.1).unwrap().0, types.iter().find(|one| !one.1).unwrap().0);
    let ledger = [Changes { inserted: 1, deleted: 0 }];
    for (sf_type, start_time) in [(without, 8), (with, 9)] {
        let key = (7, sf_type, start_time);
        let row = CallForwarding { s_id: 7, sf_type, start_time, end_time: 24, numberx: digits(1), spare: [0; 2] };
        change(worker, async |tx| forwarding.insert(tx, key, row).await);
        assert_eq!(broken.found(&ledger, true), [1], "{key:?}");
        change(worker, async |tx| forwarding.remove(tx, key).await);
    }
    assert!(broken.found(&[NOTHING], true).is_empty());
    change(worker, async |tx| facility.remove(tx, (7, with)).await);
    assert!(broken.found(&[NOTHING], true).contains(&2), "a facility is missing");
}

/// Runs a transaction, and waits until the backups have applied it.
fn change<T>(worker: &mut Worker, body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>) -> T {
    let result = worker.block_on(async |session| session.transact(body).await).unwrap();
    assert!(worker.drain().unwrap());
    result
}

/// The audit finds damage that shows only in memory itself.
#[test]
fn damaged_memory_is_found() {
    let cluster = options(Protocol::DRTM_R, 3).open().unwrap();
    let tatp = Tatp::load(&cluster, Subscribers::new(50), 3).unwrap();
    let broken = || {
        let after = After { ledgers: &[], settled: true, unknown: 0 };
        let invariants = tatp.invariants(&cluster, after).unwrap();
        let no: Vec<_> = invariants.iter().filter(|one| one.holds == Some(false)).map(|one| one.name).collect();
        no
    };
    let table = cluster.open_table::<ForwardingKey, CallForwarding>("call_forwarding").unwrap();
    let table = table.untyped();
    let change = |replica: usize, offset: u64, bits: u64| {
        let replica = &table.shard_replicas(0)[replica];
        let region = cluster.fabric().region(replica.node, replica.region).unwrap();
        region.words()[((replica.base + offset) / 8) as usize].fetch_xor(bits, std::sync::atomic::Ordering::SeqCst);
    };
    // Damage a pair of a backup's index, and the lock of a primary's record.
    let (pair, lock) = (table.cluster_hash().unwrap().pair_at(0, 6), table.cluster_hash().unwrap().slot_at(0));
    let cases: [(usize, u64, u64, &[&str]); 2] =
        [(1, pair, 1 << 50, &NAMES[3..4]), (0, lock, 1 << 39 | 1, &[NAMES[0], NAMES[3], NAMES[4]])];
    for (replica, offset, bits, expected) in cases {
        change(replica, offset, bits);
        assert_eq!(broken(), expected);
        change(replica, offset, bits);
        assert!(broken().is_empty());
    }
}
