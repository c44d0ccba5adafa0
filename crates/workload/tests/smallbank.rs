//! Tests of SmallBank on real and on seeded clusters: its invariants hold, and every type has the
//! expected round trips.

mod support;

use std::ops::ControlFlow;

use remora::protocol::Protocol;
use remora::{Cluster, ClusterOptions, WorkerOptions};
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::smallbank::{Customers, Kind, SmallBank};
use remora_workload::{Invariant, RunError, Statistics, Workload};

use support::assert_sound;

const NAMES: [&str; 4] =
    ["money is conserved", "replicas are identical", "no lock is held", "every log entry is settled"];
const NODE_BYTES: usize = 32 << 20;

fn options(replicas: u8) -> ClusterOptions {
    Cluster::embedded().nodes(3).replicas(replicas).node_bytes(NODE_BYTES)
}

/// Returns the number of transactions that have ended, if none was given up.
fn ended(statistics: &Statistics) -> u64 {
    let by_user = statistics.aborted.iter().find(|(cause, _)| *cause == "user").map_or(0, |(_, count)| *count);
    statistics.committed() + by_user
}

#[test]
fn a_run_on_shared_memory_keeps_the_invariants() {
    for replicas in [1, 3] {
        let cluster = options(replicas).open().unwrap();
        let bank = SmallBank::load(&cluster, Customers::new(1_000, 0.05, 0.9)).unwrap();
        let run = RunOptions {
            threads: 3,
            coroutines: 4,
            length: Length::Transactions(20_001),
            seed: 7,
            yield_after_rounds: true,
            rate: None,
            archive: None,
        };
        let mut looks = 0;
        let measured = driver::run(&cluster, &bank, &run, &|| None, |_| looks += 1).unwrap();
        assert_sound(&measured.invariants, &NAMES);
        assert_eq!(ended(&measured.statistics) + measured.given_up, 20_001);
        assert!(looks > 0);
        let report = measured.report::<SmallBank>(&cluster, "shm", serde_json::Value::Null);
        assert!(report.is_sound() && report.throughput_tps > 0.0 && report.latency_us.p50 > 0.0);
        assert_eq!(report.by_type.values().map(|one| one.committed).sum::<u64>(), report.committed);
    }
}

/// The results of a run are reported even if its invariants cannot be checked: a memory node may
/// have died at the end.
#[test]
fn a_run_that_cannot_be_checked_is_told() {
    let cluster = options(1).open().unwrap();
    let bank = SmallBank::load(&cluster, Customers::standard(1_000)).unwrap();
    let length = Length::Transactions(500);
    let run =
        RunOptions { threads: 1, coroutines: 2, length, seed: 1, yield_after_rounds: false, rate: None, archive: None };
    let lost = || RunError::Thread(std::io::Error::other("it is lost"));
    let go_on = |_| ControlFlow::Continue(());
    let measured = driver::run_then(&cluster, &bank, &run, &|| None, go_on, |_| Err(lost())).unwrap();
    assert_eq!(ended(&measured.statistics) + measured.given_up, 500);
    assert_eq!(measured.failure.unwrap().to_string(), lost().to_string());
    assert_eq!(measured.invariants.len(), NAMES.len());
    let is_told = |one: &Invariant| one.holds.is_none() && one.detail.contains("it is lost");
    assert!(measured.invariants.iter().all(is_told), "{:?}", measured.invariants);
}

#[test]
fn a_timed_run_ends_in_time() {
    let cluster = options(3).open().unwrap();
    let bank = SmallBank::load(&cluster, Customers::standard(1_000)).unwrap();
    let length = Length::Time(std::time::Duration::from_millis(300));
    let run =
        RunOptions { threads: 2, coroutines: 2, length, seed: 1, yield_after_rounds: false, rate: None, archive: None };
    let measured = driver::run(&cluster, &bank, &run, &|| None, |_| ()).unwrap();
    assert_sound(&measured.invariants, &NAMES);
    assert!(measured.elapsed.as_secs_f64() < 3.0, "{:?}", measured.elapsed);
}

#[test]
fn a_run_on_a_seeded_cluster_keeps_the_invariants() {
    let mut conflicts = 0;
    for seed in 0..30 {
        let (cluster, _seeded) = options(3).open_seeded(seed).unwrap();
        let bank = SmallBank::load(&cluster, Customers::new(50, 0.1, 0.9)).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(6).seed(seed)).unwrap();
        let (statistics, invariants) = driver::run_here(&cluster, &bank, &mut worker, 40, seed).unwrap();
        assert_sound(&invariants, &NAMES);
        assert_eq!(ended(&statistics), 6 * 40, "seed {seed}");
        let user = |cause: &str| cause == "user";
        conflicts += statistics.aborted.iter().filter(|(cause, _)| !user(cause)).map(|(_, count)| count).sum::<u64>();
    }
    assert!(conflicts > 100, "{conflicts} conflicts: five hot customers and six coroutines must meet");
}

#[test]
fn every_type_costs_its_round_trips() {
    for (replicas, seed) in [(1, 1_000), (3, 2_000)] {
        let cluster = options(replicas).protocol(Protocol::DRTM_R).open().unwrap();
        let bank = SmallBank::load(&cluster, Customers::standard(5_000)).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        worker.block_on(async |session| bank.warm(session, 0, 1).await).unwrap();
        let mut statistics = Statistics::new(SmallBank::TYPES.len());
        for chunk in 0..80 {
            // Each chunk ends with drained rings. A transaction that finds its ring full asks how
            // far it has been applied, which is one more round trip.
            let (these, _) = driver::run_here(&cluster, &bank, &mut worker, 100, seed + chunk).unwrap();
            statistics.add(&these);
        }
        for (kind, _) in Kind::MIX {
            let round_trips = match kind {
                Kind::Balance => 2,
                Kind::WriteCheck => 4,
                Kind::Amalgamate | Kind::DepositChecking | Kind::SendPayment | Kind::TransactSavings => 3,
            };
            let one = &statistics.types[kind as usize];
            assert!(one.committed > 200, "{kind:?}: {}", one.committed);
            assert_eq!(one.cost.round_trips, round_trips * one.committed, "{kind:?}, all of them");
        }
    }
}

#[test]
fn without_transactions_nothing_is_claimed() {
    let cluster = options(3).protocol(Protocol::UNSYNCHRONIZED).open().unwrap();
    let bank = SmallBank::load(&cluster, Customers::standard(500)).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let (_, invariants) = driver::run_here(&cluster, &bank, &mut worker, 100, 1).unwrap();
    assert_eq!(invariants.len(), 4);
    let unclaimed = |one: &Invariant| one.holds.is_none() && one.detail.contains("no transactions");
    assert!(invariants.iter().all(unclaimed), "{invariants:?}");
}

/// A wrong ledger, or a lock that stays, must be found. Otherwise the checks above prove nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    let cluster = options(3).protocol(Protocol::DRTM_R).open().unwrap();
    let bank = SmallBank::load(&cluster, Customers::standard(100)).unwrap();
    let after = |ledgers, settled, unknown| remora_workload::After { ledgers, settled, unknown };
    assert_sound(&bank.invariants(&cluster, after(&[5, -5], true, 0)).unwrap(), &NAMES);
    let holds = |invariants: Vec<Invariant>| invariants.iter().map(|one| one.holds).collect::<Vec<_>>();
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(holds(bank.invariants(&cluster, after(&[1], true, 0)).unwrap()), [no, yes, yes, yes]);
    assert_eq!(holds(bank.invariants(&cluster, after(&[], false, 2)).unwrap()), [None, yes, yes, no]);

    // The test writes to a backup, and locks a record at a primary, without any client knowing.
    let table = cluster.open_table::<u64, remora_workload::smallbank::Account>("savings").unwrap();
    let table = table.untyped();
    let slots = table.cluster_hash().unwrap().slot_at(0);
    let word = |replica: usize, offset: u64, value: u64| {
        let replica = &table.shard_replicas(0)[replica];
        let region = cluster.fabric().region(replica.node, replica.region).unwrap();
        region.words()[((replica.base + offset) / 8) as usize].store(value, std::sync::atomic::Ordering::SeqCst);
    };
    word(1, slots + 32, 77);
    assert_eq!(holds(bank.invariants(&cluster, after(&[], true, 0)).unwrap()), [yes, no, yes, yes]);
    word(0, slots, 1 << 39 | 1);
    assert_eq!(holds(bank.invariants(&cluster, after(&[], true, 0)).unwrap())[2], no);
}

/// Transactions of clients that were killed, whose outcome no client was told, are in the ledger if
/// they have committed.
#[test]
fn a_ledger_knows_what_nobody_was_told() {
    for protocol in [Protocol::DRTM_R, Protocol::FARM, Protocol::FORD] {
        let cluster = options(3).protocol(protocol).open().unwrap();
        let bank = SmallBank::load(&cluster, Customers::standard(500)).unwrap().with_ledger(&cluster).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let (_, invariants) = driver::run_here(&cluster, &bank, &mut worker, 200, 1).unwrap();
        assert_sound(&invariants, &NAMES);
        let bank = SmallBank::open(&cluster, &bank.parameters()).unwrap();
        assert!(bank.has_ledger());
        let untold = || remora_workload::After { ledgers: &[], settled: true, unknown: 3 };
        assert_sound(&bank.invariants(&cluster, untold()).unwrap(), &NAMES);
        // Add money that no client has paid in.
        let savings = cluster.open_table::<u64, remora_workload::smallbank::Account>("savings").unwrap();
        worker.block_on(async |session| {
            let forged = session.transact(async |tx| {
                savings.get_mut(tx, 7).await?.balance += 1;
                Ok(())
            });
            forged.await.unwrap();
        });
        assert!(worker.drain().unwrap());
        let money = &bank.invariants(&cluster, untold()).unwrap()[0];
        assert!(money.holds == Some(false) && money.detail.contains("ledger"), "{money:?}");
    }
}
