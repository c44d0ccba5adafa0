//! Tests of scans beside the transactions of a mix: they are counted apart, they see one state, and
//! a scan that cannot end does not keep a run from ending.

mod support;

use std::cell::Cell;
use std::time::Duration;

use remora::protocol::Protocol;
use remora::{Cluster, ClusterOptions, Error, Session, WorkerOptions};
use remora_fabric::sim::{Profile, SimOptions};
use remora_workload::driver::{self, Length, Measured, RunOptions};
use remora_workload::simulated::{Simulation, simulate};
use remora_workload::ycsb::analytic::{Analytic, AnalyticSize, Moved};
use remora_workload::ycsb::{Distribution, Mix};
use remora_workload::{After, Report, ScanReport, Scanner, Scans, Setting, Workload};

use support::{assert_sound, serializable};

const NAMES: [&str; 7] = [
    "the sum of all records stays",
    "changes add up",
    "every record is there once",
    "every scan has seen one state",
    "replicas are identical",
    "no lock is held",
    "every log entry is settled",
];

const HOT: Distribution = Distribution::Zipf(Mix::THETA);

fn size(records: u64) -> AnalyticSize {
    AnalyticSize { records, keys_first: None }
}

fn options(protocol: Protocol, size: AnalyticSize, workers: u64) -> ClusterOptions {
    let replicas = protocol.discipline().copies_max().min(2) as u8;
    let setting = Setting { memory_nodes: 3, replicas, workers, coroutines: 4, archive: None };
    let node_bytes = Analytic::node_bytes(size, &setting) as usize;
    Cluster::embedded().nodes(3).replicas(replicas).node_bytes(node_bytes).protocol(protocol)
}

/// Runs two workers, and the scanner.
fn run(cluster: &Cluster, analytic: &Analytic, length: Length, rate: Option<f64>) -> (Measured, Report) {
    let run = RunOptions { threads: 2, coroutines: 4, length, seed: 7, yield_after_rounds: true, rate, archive: None };
    let measured = driver::run(cluster, analytic, &run, &|| None, |_| ()).unwrap();
    let report = measured.report::<Analytic>(cluster, "shm", serde_json::Value::Null);
    (measured, report)
}

fn time(ms: u64) -> Length {
    Length::Time(Duration::from_millis(ms))
}

fn scans(report: &Report) -> &ScanReport {
    report.scans.as_ref().expect("there is a scanner")
}

/// Writers that leave a scan some time let it end, with every protocol, and each scan has the sum.
#[test]
fn scans_beside_slow_writers_see_one_state() {
    for protocol in serializable() {
        let size = size(1_000);
        let cluster = options(protocol, size, 2).open().unwrap();
        let analytic = Analytic::load(&cluster, size).unwrap().with_mix(0.5, HOT).with_scanner(Scanner::Turns);
        let (measured, report) = run(&cluster, &analytic, time(800), Some(50.0));
        assert_sound(&measured.invariants, &NAMES);
        let scans = scans(&report);
        assert!(scans.completed > 0 && scans.consistent == Some(true), "{protocol:?}: {scans:?}");
        assert_eq!((scans.rows, scans.furthest, &scans.stopped), (1_000, 1.0, &None), "{protocol:?}");
        assert!(scans.attempts >= scans.completed && scans.rows_per_second > 0.0, "{protocol:?}: {scans:?}");
        // Both rates are those of the writers alone, who are held to 50 a second.
        for rate in [scans.tps_with, scans.tps_without] {
            assert!(rate.is_some_and(|rate| (1.0..100.0).contains(&rate)), "{protocol:?}: {scans:?}");
        }
        assert!(report.committed < 80, "{protocol:?}: scans do not count: {}", report.committed);
        assert_eq!(report.by_type.keys().copied().collect::<Vec<_>>(), ["read", "transfer"]);
    }
}

/// Writers at full speed may overtake every scan. The run ends in time all the same, and says what
/// became of its scans.
#[test]
fn a_scan_that_is_overtaken_ends_with_the_run() {
    for protocol in [Protocol::REMORA, Protocol::DRTM_R, Protocol::NO_WAIT] {
        let size = size(60_000);
        let cluster = options(protocol, size, 2).open().unwrap();
        let analytic = Analytic::load(&cluster, size).unwrap().with_mix(0.0, HOT).with_scanner(Scanner::Always);
        let (measured, report) = run(&cluster, &analytic, time(600), None);
        assert_sound(&measured.invariants, &NAMES);
        let scans = scans(&report);
        assert!(scans.completed + scans.given_up + scans.cut_off > 0, "{protocol:?}: {scans:?}");
        assert!(scans.attempts > 0 && scans.furthest > 0.0 && scans.rows_read_per_second > 0.0, "{scans:?}");
        assert!(scans.tps_without.is_none() && scans.tps_with.is_some(), "{scans:?}");
        assert!(scans.cpu_seconds > 0.0, "{protocol:?}: {scans:?}");
        assert!(report.seconds < 5.0 && report.committed > 100, "{protocol:?}: {report:?}");
    }
}

/// A scan that is told to end reads no further page, and does not count as complete.
#[test]
fn a_scan_ends_when_it_is_told_to() {
    for protocol in [Protocol::REMORA, Protocol::DRTM_R] {
        let size = size(7_000);
        let cluster = options(protocol, size, 1).open().unwrap();
        let analytic = Analytic::load(&cluster, size).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let (asked, mut scans, mut done) = (Cell::new(0), Scans::new(size.records), Moved::default());
        let goes_on = || asked.replace(asked.get() + 1) < 2;
        let ended = worker.block_on(async |session| analytic.scan(session, &mut scans, &mut done, &goes_on).await);
        assert!(matches!(ended, Err(Error::User(_))), "{protocol:?}: {ended:?}");
        assert_eq!(
            (scans.rows_read, scans.furthest, done),
            (4_000, 4_000, Moved::default()),
            "{protocol:?}: two pages"
        );
    }
}

#[test]
fn there_may_be_no_scanner_and_a_number_of_transactions() {
    let size = size(1_000);
    let cluster = options(Protocol::REMORA, size, 2).open().unwrap();
    let analytic = Analytic::load(&cluster, size).unwrap().with_mix(0.5, Distribution::Uniform);
    let (measured, report) = run(&cluster, &analytic, Length::Transactions(2_001), None);
    assert!(report.scans.is_none() && measured.scanned.is_none());
    assert_eq!(report.committed, 2_001);
    let (measured, report) =
        run(&cluster, &analytic.with_scanner(Scanner::Turns), Length::Transactions(2_001), Some(4_000.0));
    assert_eq!(report.committed, 2_001, "as many, and scans beside them");
    assert!(scans(&report).attempts > 0 && scans(&report).tps_without.is_none());
    // The table has the changes of both runs, and the ledgers those of the second one.
    let broken: Vec<_> = measured.invariants.iter().filter(|one| one.holds == Some(false)).collect();
    assert!(broken.len() == 1 && broken[0].name == NAMES[1], "{broken:?}");
}

/// A table with more leaves than one transaction reads: without snapshots, the report says so, and
/// the run goes on. An open snapshot has no limit.
#[test]
#[ignore = "long: a part of .ci/long"]
fn a_scan_of_too_many_leaves_says_so() {
    let most = Analytic::rows_max(size(1));
    let [few, many] = [97, 103].map(|percent| most * percent / 100);
    for (protocol, records, fits) in
        [(Protocol::FORD, few, true), (Protocol::FORD, many, false), (Protocol::REMORA, many, true)]
    {
        let size = size(records);
        let cluster = options(protocol, size, 2).open().unwrap();
        let analytic = Analytic::load(&cluster, size).unwrap().with_scanner(Scanner::Always);
        let (measured, report) = run(&cluster, &analytic, time(1_500), Some(1.0));
        assert_sound(&measured.invariants, &NAMES);
        let scans = scans(&report);
        assert_eq!(scans.completed > 0, fits, "{records}: {scans:?}");
        let says_why = scans.stopped.as_ref().is_some_and(|why| why.contains("4096 records"));
        assert_eq!(says_why, !fits, "{records}: {scans:?}");
    }
}

#[test]
fn scans_run_in_virtual_time_too() {
    let profile = Profile::named("connectx4").expect("it comes with the simulator");
    for scanner in [Scanner::Turns, Scanner::Always, Scanner::Never] {
        let size = size(2_000);
        let sim_options = SimOptions::new(profile.clone(), 3);
        let (cluster, sim) = options(Protocol::REMORA, size, 4).open_simulated(&sim_options).unwrap();
        let analytic = Analytic::load(&cluster, size).unwrap().with_mix(0.9, Distribution::Uniform);
        let analytic = analytic.with_scanner(scanner);
        let simulation = Simulation {
            machines: 1,
            threads: 2,
            coroutines: 1,
            warmup: 100_000,
            measure: 4_000_000,
            transaction: 2_000_000 / 10,
            seed: 1,
        };
        let done = simulate(&cluster, &sim, &analytic, &simulation, &|| None, &|| false).unwrap();
        assert_sound(&done.measured.invariants, &NAMES);
        let report = done.measured.report::<Analytic>(&cluster, "sim", serde_json::Value::Null);
        let Some(scans) = &report.scans else {
            assert_eq!(scanner, Scanner::Never);
            continue;
        };
        assert!(scans.completed > 0 && scans.consistent == Some(true), "{scans:?}");
        assert_eq!(scans.tps_without.is_some(), scanner == Scanner::Turns);
        let busy = scans.completed as f64 * 2_000.0 / scans.rows_per_second;
        let expected = if scanner == Scanner::Turns { 0.002 } else { 0.004 };
        assert!((expected * 0.7..expected * 1.3).contains(&busy), "{scanner:?}: it was busy for {busy} s");
    }
}

/// A sum that is wrong is found, by the scan and after the run. Otherwise the checks above prove
/// nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    let size = size(500);
    let cluster = options(Protocol::REMORA, size, 2).open().unwrap();
    let analytic = Analytic::load(&cluster, size).unwrap().with_scanner(Scanner::Always);
    let broken = |done: Moved| {
        let invariants = analytic.invariants(&cluster, After { ledgers: &[done], settled: true, unknown: 0 }).unwrap();
        (0..NAMES.len()).filter(|index| invariants[*index].holds == Some(false)).collect::<Vec<_>>()
    };
    assert!(broken(Moved::default()).is_empty());
    assert_eq!(broken(Moved { transfers: 1, ..Moved::default() }), [1]);
    assert_eq!(broken(Moved { scans: 5, torn: 1, ..Moved::default() }), [3]);
    let table = cluster.open_ordered::<u64, remora_workload::ycsb::analytic::Entry>("accounts").unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let more = worker.block_on(async |session| {
        session
            .transact(async |tx| {
                table.get_mut(tx, 7).await?.balance += 1;
                Ok(())
            })
            .await
    });
    more.unwrap();
    assert!(worker.drain().unwrap());
    assert_eq!(broken(Moved::default()), [0]);
    let (measured, report) = run(&cluster, &analytic, time(300), Some(10.0));
    assert_eq!(scans(&report).consistent, Some(false));
    let wrong: Vec<_> = measured.invariants.iter().filter(|one| one.holds == Some(false)).collect();
    assert!(wrong.iter().any(|one| one.name == NAMES[3]) && !report.is_sound(), "{wrong:?}");
    let gone = worker.block_on(async |session| session.transact(async |tx| table.remove(tx, 7).await).await).unwrap();
    assert!(worker.drain().unwrap());
    assert!(broken(Moved::default()).contains(&2));
    // As many records, one of which is not of the table.
    let entry = gone.expect("it was there");
    let insert = async |session: &mut Session| session.transact(async |tx| table.insert(tx, 500, entry).await).await;
    worker.block_on(insert).unwrap();
    assert!(worker.drain().unwrap());
    assert!(broken(Moved::default()).contains(&2));
}
