//! Campaigns of SmallBank, TATP and the part of TPC-E on the seeded backend, with few hot records
//! and several clients, from tens of seeds. Every history must be strictly serializable, and every
//! invariant must hold.
//!
//! `REMORA_SEEDS=5000 cargo test --release -p remora-check --test seeds` runs more;
//! `REMORA_SEED=17` replays one.

use std::io::Write;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Session, WorkerOptions};
use remora_check::{Counts, HistoryFile, HistoryReader, ReadOptions, check};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::tatp::{Kind, Subscribers, Tatp};
use remora_workload::tpce::{self, Room, Scale, Tpce};
use remora_workload::ycsb::analytic::{Analytic, AnalyticSize};
use remora_workload::{After, Prng, Scans, Workload};

const ACCOUNTS: u64 = 50;
const SUBSCRIBERS: u32 = 2;
const TRANSACTIONS_PER_COROUTINE: u64 = 25;

/// Returns the seeds to run.
fn seeds(default: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("REMORA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("REMORA_SEEDS").unwrap_or(default),
    }
}

/// A file in memory that can be read while its writer is used elsewhere.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs a seed of SmallBank.
fn run_smallbank(protocol: Protocol, seed: u64) -> Result<Counts, String> {
    let load = |cluster: &Cluster| SmallBank::load(cluster, Customers::new(ACCOUNTS, 0.1, 0.7)).unwrap();
    run(protocol, seed, load, SmallBank::transact)
}

/// Runs a seed of TATP. All kinds of transactions are equally frequent, so rows come and go all the
/// time.
fn run_tatp(protocol: Protocol, seed: u64) -> Result<Counts, String> {
    let load = |cluster: &Cluster| Tatp::load(cluster, Subscribers::new(SUBSCRIBERS), seed).unwrap();
    run(protocol, seed, load, async |tatp: &Tatp, session, random, ledger| {
        let (kind, _) = Kind::MIX[random.below(Kind::MIX.len() as u64) as usize];
        tatp.run(session, kind, random, ledger).await
    })
}

/// The part of TPC-E, for two customers.
fn market(cluster: &Cluster, seed: u64) -> Tpce {
    Tpce::load(cluster, Scale { customers: 2, securities: 25 }, Room { trades: 400 }, seed).unwrap()
}

/// Runs a transaction of the part of TPC-E. All kinds are equally frequent.
async fn transact_in_market(
    tpce: &Tpce,
    session: &mut Session,
    random: &mut Prng,
    ledger: &mut tpce::Done,
) -> Result<(), Error> {
    let (kind, _) = tpce::Kind::MIX[random.below(tpce::Kind::MIX.len() as u64) as usize];
    tpce.run(session, kind, random, ledger).await
}

/// Runs a seed of the part of TPC-E.
fn run_tpce(protocol: Protocol, seed: u64) -> Result<Counts, String> {
    run(protocol, seed, |cluster| market(cluster, seed), transact_in_market)
}

/// Runs a seed of the part of TPC-E whose readers read snapshots. Their histories are strictly
/// serializable if the rounds of the fabric take effect in order, and otherwise they have what was
/// reported before, of the records that they read.
fn run_readers(seed: u64) -> Result<(), String> {
    let load = |cluster: &Cluster| market(cluster, seed).with_snapshots(true);
    let protocol = [Protocol::REMORA, Protocol::DRTM_R_CLOCKS][seed as usize % 2];
    run(protocol, seed, load, transact_in_market).map(drop)
}

/// Runs a seed of transfers, with a scan of the whole table in place of one in eight. Returns what
/// is wrong with the invariants.
fn run_scans(seed: u64) -> Result<(), String> {
    let size = AnalyticSize { records: 200, keys_first: None };
    let load = |cluster: &Cluster| Analytic::load(cluster, size).unwrap();
    let transact = async |analytic: &Analytic, session: &mut Session, random: &mut Prng, ledger: &mut _| {
        if random.below(8) > 0 {
            return analytic.transact(session, random, ledger).await;
        }
        analytic.scan(session, &mut Scans::new(size.records), ledger, &|| true).await.map(drop)
    };
    observe(Protocol::REMORA, seed, load, transact).map(drop)
}

/// Runs a workload once, and checks its history. Returns its counts, or what is wrong with it.
fn run<W: Workload>(
    protocol: Protocol,
    seed: u64,
    load: impl FnOnce(&Cluster) -> W,
    transact: impl AsyncFn(&W, &mut Session, &mut Prng, &mut W::Ledger) -> Result<(), Error>,
) -> Result<Counts, String> {
    let lines = observe(protocol, seed, load, transact)?;
    let mut reader = HistoryReader::new(ReadOptions::default());
    reader.read("seeded", lines.0.lock().unwrap().as_slice()).map_err(|error| error.to_string())?;
    let report = check(&reader.finish().history);
    if report.is_clean() { Ok(report.counts) } else { Err(report.to_string()) }
}

/// Runs a workload once, and checks its invariants. Returns its history, or what is wrong.
fn observe<W: Workload>(
    protocol: Protocol,
    seed: u64,
    load: impl FnOnce(&Cluster) -> W,
    transact: impl AsyncFn(&W, &mut Session, &mut Prng, &mut W::Ledger) -> Result<(), Error>,
) -> Result<Shared, String> {
    // The coroutines of a worker share one connection, or have one each, or something in between.
    let (coroutines, clients) = [(4, 4), (6, 3), (4, 1), (8, 8)][seed as usize % 4];
    let replicas = [3, 1, 2][seed as usize % 3].min(protocol.discipline().copies_max() as u8);
    let options = Cluster::embedded().replicas(replicas).node_bytes(8 << 20).protocol(protocol);
    // On shared memory, one clock counts for all nodes.
    let in_order = protocol.discipline().has_clocks() && seed / 4 % 2 == 1;
    let (cluster, _) = if in_order { options.open_seeded_in_order(seed) } else { options.open_seeded(seed) }.unwrap();
    let workload = load(&cluster);
    let mut worker = cluster
        .worker(WorkerOptions::default().coroutines(coroutines).clients(clients).seed(seed).yield_after_rounds(true))
        .unwrap();
    let lines = Shared::default();
    let file = HistoryFile::new(lines.clone());
    for session in worker.sessions() {
        session.observe(Some(Box::new(file.recorder())));
    }
    let ledgers = worker.run(async |coroutine, session| {
        let mut random = Prng::derive(seed, coroutine as u64);
        let mut ledger = W::Ledger::default();
        for _ in 0..TRANSACTIONS_PER_COROUTINE {
            match transact(&workload, session, &mut random, &mut ledger).await {
                Ok(()) | Err(Error::User(_) | Error::Aborted(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(ledger)
    });
    worker.sessions().iter_mut().for_each(|session| drop(session.observe(None)));
    file.finish().map_err(|error| error.to_string())?;
    let ledgers = ledgers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let settled = worker.drain().map_err(|error| error.to_string())?;
    let invariants = workload.invariants(&cluster, After { ledgers: &ledgers, settled, unknown: 0 }).unwrap();
    if let Some(broken) = invariants.iter().find(|invariant| invariant.holds != Some(true)) {
        return Err(format!("{}: {}", broken.name, broken.detail));
    }
    Ok(lines)
}

/// Runs all seeds, which must be clean and must have conflicts.
fn campaign(name: &str, seeds: Range<u64>, run: impl Fn(u64) -> Result<Counts, String>) {
    let (mut committed, mut aborted) = (0, 0);
    for seed in seeds {
        match run(seed) {
            Ok(counts) => {
                committed += counts.committed;
                aborted += counts.aborted;
            }
            Err(what) => panic!("{name}: {what}\nreplay: REMORA_SEED={seed} cargo test -p remora-check --test seeds"),
        }
    }
    assert!(committed > 0);
    assert!(
        aborted > committed / 50,
        "{name}: the runs must meet conflicts: {aborted} attempts aborted, {committed} committed"
    );
}

#[test]
fn seeded_histories_are_strictly_serializable() {
    let protocol = |seed| [Protocol::DRTM_R, Protocol::FORD][seed as usize % 2];
    campaign("smallbank", seeds(60), |seed| run_smallbank(protocol(seed), seed));
}

/// The transactions include inserts, deletes, and reads of absent keys.
#[test]
fn seeded_histories_with_inserts_and_deletes_are_strictly_serializable() {
    for protocol in Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable()) {
        campaign(protocol.name(), seeds(30), |seed| run_tatp(protocol, seed));
    }
}

/// The transactions include ranges, and records that all of them read and some change.
#[test]
fn seeded_histories_with_ranges_are_strictly_serializable() {
    for protocol in Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable()) {
        campaign(protocol.name(), seeds(10), |seed| run_tpce(protocol, seed));
    }
}

/// Readers of snapshots check by themselves that they have seen one state. So a snapshot that is
/// none shows without a history.
#[test]
fn readers_find_snapshots_that_are_none() {
    type Run = fn(u64) -> Result<(), String>;
    let all = [("tpce", run_readers as Run, Mutant::TakeLater), ("scans", run_scans, Mutant::PastTakesCurrent)];
    for (name, run, error) in all {
        for seed in seeds(20) {
            assert_eq!(run(seed), Ok(()), "{name}, seed {seed}");
        }
        let found = (0..200).find(|seed| {
            mutant::set(Some(error));
            let outcome = run(*seed);
            mutant::set(None);
            outcome.is_err_and(|what| what.contains("seen one state"))
        });
        println!("{name}: found by seed {found:?}");
        assert!(found.is_some(), "{name}: the error survives 200 seeds");
    }
}

/// The campaign finds published errors of the protocol by itself. They are put back one at a time.
/// Other errors, such as write skew, which SmallBank's transactions cannot have, are caught by
/// litmus tests of their own (`crates/remora/tests/litmus.rs`).
#[test]
fn the_campaign_finds_published_errors() {
    let findable = [
        Mutant::ReleaseAll,
        Mutant::AcceptTorn,
        Mutant::UnlockFirst,
        Mutant::LockWithoutValidation,
        Mutant::ApplyOlderVersions,
    ];
    for error in findable {
        let found = (0..200).find(|seed| {
            mutant::set(Some(error));
            let outcome = catch_unwind(|| run_smallbank(Protocol::DRTM_R, *seed));
            mutant::set(None);
            !matches!(outcome, Ok(Ok(_)))
        });
        println!("{error:?}: found by seed {found:?}");
        assert!(found.is_some(), "{error:?} survives 200 seeds: they prove less than they should");
    }
}
