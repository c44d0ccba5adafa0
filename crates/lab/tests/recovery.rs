//! Measures how long a simulated cluster takes to recover from the death of a client, or of a
//! memory node: the time until every survivor commits as often again as before.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Session, WorkerOptions};
use remora_fabric::sim::{Driven, FaultKind, Planned, Profile, Sim, SimOptions};
use remora_fabric::{ClientId, Nanos, probes};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::{After, Prng, Workload};

const MS: Nanos = 1_000_000;
const NODES: u16 = 4;
const CLIENTS: usize = 4;
/// The number of controllers, which look after the memory nodes where one of them dies.
const CONTROLLERS: usize = 2;
const COROUTINES: usize = 4;
/// CPU time of a transaction beside its verbs. With it, each client has 40 transactions in a bin,
/// which is enough to see its rate.
const THINKING: Nanos = 25_000;
/// The time over which the rate before the crash is averaged.
const BEFORE: Nanos = 100 * MS;
const AFTER: Nanos = 80 * MS;
const BOUND: Nanos = 50 * MS;
/// The number of clients, or memory nodes, that are killed, unless `REMORA_KILLS` says otherwise.
/// `.ci/long` kills a hundred.
const KILLS: usize = 4;

/// The times at which transactions of a client have committed.
struct Commits(Rc<RefCell<Vec<Nanos>>>);

impl Observer for Commits {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if matches!(event.outcome, Outcome::Committed | Outcome::UserAbort) {
            self.0.borrow_mut().push(event.ended);
        }
    }
}

/// Kills a client, or a memory node, when a client reaches a place in the protocol with its locks
/// held. Returns the time until each surviving client is back at 90 % of its rate; `None` for a
/// client that was not back in the measured time.
fn kill(protocol: Protocol, seed: u64, kind: FaultKind, probe: &'static str) -> Vec<Option<Nanos>> {
    const BYTES: usize = 64 << 20;
    let profile = Profile::named("connectx5").unwrap();
    let sim = Sim::new(&vec![vec![BYTES]; NODES.into()], &SimOptions::new(profile, seed)).unwrap();
    sim.instant(true);
    let options = Cluster::embedded().nodes(NODES).replicas(3).node_bytes(BYTES).protocol(protocol);
    let cluster = options.open_on(Arc::new(sim.clone())).unwrap().with_lease(Some(Duration::from_millis(5)));
    // There are few customers, so that survivors meet locks of the dead client.
    let bank = SmallBank::load(&cluster, Customers::new(2_000, 0.01, 0.9)).unwrap();
    let mut commits = Vec::new();
    let mut workers: Vec<_> = (0..CLIENTS)
        .map(|client| {
            sim.place(client);
            let options = WorkerOptions::default().coroutines(COROUTINES).seed(seed);
            let mut worker = cluster.worker(options).unwrap();
            let times = Rc::new(RefCell::new(Vec::new()));
            for session in worker.sessions() {
                session.observe(Some(Box::new(Commits(times.clone()))));
            }
            commits.push(times);
            worker
        })
        .collect();
    let controllers = if kind == FaultKind::Fail { CONTROLLERS } else { 0 };
    let mut controllers: Vec<_> = (0..controllers)
        .map(|number| {
            sim.place(CLIENTS + number);
            cluster.controller().unwrap()
        })
        .collect();
    sim.instant(false);
    let began = sim.now();
    let crash_at = began + BEFORE + 2 * MS;
    let body = |client: usize| {
        let (bank, sim) = (&bank, &sim);
        async move |coroutine: usize, session: &mut Session| {
            let mut random = Prng::derive(seed, (client * COROUTINES + coroutine) as u64);
            let mut ledger = Default::default();
            while session.lane().now() < crash_at + AFTER {
                if client == 0
                    && session.lane().now() > crash_at
                    && coroutine == 0
                    && sim.injected().is_empty()
                    && sim.waiting() == 0
                {
                    sim.plan(Planned { probe, nth: 1, after: 0, kind, holding: true });
                }
                session.lane().endpoint().charge(THINKING);
                match bank.transact(session, &mut random, &mut ledger).await {
                    Ok(()) | Err(Error::User(_) | Error::Aborted(_) | Error::Unknown(_)) => {}
                    Err(error) => panic!("seed {seed}, client {client}: {error}"),
                }
                session.lane().yield_now().await;
            }
        }
    };
    let bodies: Vec<_> = (0..CLIENTS).map(body).collect();
    let clients: Vec<Vec<ClientId>> =
        workers.iter().map(|worker| worker.incarnations().map(ClientId).collect()).collect();
    let mut runs: Vec<_> = workers.iter_mut().zip(&bodies).map(|(worker, body)| worker.start(body)).collect();
    let over = || sim.now() > crash_at + AFTER;
    let ids: Vec<_> = controllers.iter().map(|controller| vec![ClientId(controller.incarnation())]).collect();
    let mut watching: Vec<_> = controllers.iter_mut().map(|controller| controller.start(over)).collect();
    let driven = runs.iter_mut().zip(&clients).map(|(run, clients)| Driven { clients: clients.clone(), run });
    let watched = watching.iter_mut().zip(ids).map(|(run, clients)| Driven { clients, run });
    sim.run(&mut driven.chain(watched).collect::<Vec<_>>(), Some(crash_at + 2 * AFTER));
    drop((runs, watching));
    let injected = sim.injected();
    let crash = injected.iter().find(|fault| fault.kind == kind).expect("somebody died");
    assert!(crash.holding, "locks were held");
    let died = |clients: &Vec<ClientId>| crash.client.is_some_and(|client| clients.contains(&client));
    let survivors = clients.iter().zip(&commits).filter(|(clients, _)| !died(clients));
    let times: Vec<Option<Nanos>> = survivors.map(|(_, commits)| back_after(&commits.borrow(), crash.at)).collect();
    assert_eq!(times.len(), CLIENTS - usize::from(kind == FaultKind::Crash));
    // Nothing is left of the dead client.
    sim.instant(true);
    drop(controllers);
    for (mut worker, clients) in workers.into_iter().zip(clients) {
        worker.sessions().iter_mut().for_each(|session| drop(session.observe(None)));
        if clients.iter().any(|client| sim.is_dead(*client)) {
            worker.abandon()
        } else {
            assert!(worker.drain().unwrap())
        }
    }
    sim.settle_services();
    // The test does not ask for the outcomes of the last transactions. So it cannot check how much
    // money there is.
    for invariant in bank.invariants(&cluster, After { ledgers: &[], settled: true, unknown: 1 }).unwrap() {
        assert_ne!(invariant.holds, Some(false), "seed {seed}: {invariant:?}");
    }
    times
}

/// Returns the time from the crash to the end of the first bin from which on a client commits at 90
/// % of its mean rate before. The rate is the mean of that bin and the four bins after it.
fn back_after(commits: &[Nanos], crash: Nanos) -> Option<Nanos> {
    let between = |from: Nanos, to: Nanos| commits.iter().filter(|at| (from..to).contains(at)).count() as f64;
    let wanted = 0.9 * between(crash - BEFORE, crash) / (BEFORE / MS) as f64;
    (0..AFTER / MS - 5).find_map(|bin| {
        let from = crash + bin * MS;
        let enough = between(from, from + MS) >= wanted && between(from, from + 5 * MS) / 5.0 >= wanted;
        enough.then_some((bin + 1) * MS)
    })
}

#[test]
fn survivors_are_back_within_50_ms() {
    survivors_are_back(Protocol::DRTM_R, FaultKind::Crash);
}

#[test]
fn survivors_are_back_within_50_ms_ford() {
    survivors_are_back(Protocol::FORD, FaultKind::Crash);
}

#[test]
fn clients_are_back_within_50_ms_of_a_lost_node() {
    survivors_are_back(Protocol::DRTM_R, FaultKind::Fail);
}

#[test]
fn clients_are_back_within_50_ms_of_a_lost_node_ford() {
    survivors_are_back(Protocol::FORD, FaultKind::Fail);
}

fn survivors_are_back(protocol: Protocol, kind: FaultKind) {
    let kills = std::env::var("REMORA_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    let probes = [probes::LOCKS, probes::VALIDATED, probes::LOGGED].into_iter().cycle();
    let times = probes.take(kills).enumerate().flat_map(|(number, probe)| kill(protocol, number as u64, kind, probe));
    let mut times: Vec<Nanos> = times.map(|time| time.unwrap_or(Nanos::MAX)).collect();
    times.sort_unstable();
    let percentile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    let (median, p99, most) = (percentile(50), percentile(99), percentile(100));
    let ms = |time: Nanos| time / MS;
    println!(
        "{}: {kills} kills ({}), median {} ms, p99 {} ms, most {} ms",
        protocol.name(),
        kind.name(),
        ms(median),
        ms(p99),
        ms(most)
    );
    assert!(p99 <= BOUND, "{times:?}");
}
