//! Runs a workload on a simulated cluster: several machines and workers on one thread, in virtual
//! time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::{Cluster, Error, Session, Worker, WorkerOptions};
use remora_fabric::sim::{Driven, Ended, Sim, SimStatistics};
use remora_fabric::{ClientId, Nanos};

use crate::driver::Measured;
use crate::gaps::Pauses;
use crate::machine::peak_bytes;
use crate::report::{CpuSeconds, SimulatedIn, ratio};
use crate::scans::{self, Pace, Scanned, Scans};
use crate::statistics::{Counting, Statistics};
use crate::{After, Prng, RunError, Workload};

/// Options of a simulated run: its workers, and its duration.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    /// The number of client machines.
    pub machines: usize,
    /// The number of workers on each machine.
    pub threads: usize,
    /// The number of transactions that each worker has in flight.
    pub coroutines: usize,
    /// Virtual time before anything is counted, in nanoseconds.
    pub warmup: Nanos,
    /// Virtual time that is counted, in nanoseconds.
    pub measure: Nanos,
    /// CPU time that a transaction takes beside its verbs, in nanoseconds.
    pub transaction: Nanos,
    /// The seed of all randomness.
    pub seed: u64,
}

/// The results of a simulated run.
#[derive(Debug)]
pub struct Simulated {
    /// What was measured, in virtual time.
    pub measured: Measured,
    /// How the simulation ended.
    pub ended: Ended,
    /// Real time for connecting and warming.
    pub prepared_in: Duration,
    /// Real time for the simulation itself.
    pub simulated_in: Duration,
    /// Counts of what the simulator did meanwhile.
    pub statistics: SimStatistics,
}

impl SimulatedIn {
    /// Returns the figures of a simulation whose tables took `loading` to load.
    #[must_use]
    pub fn of(done: &Simulated, loading: Duration) -> SimulatedIn {
        let seconds = done.simulated_in.as_secs_f64();
        SimulatedIn {
            load_seconds: loading.as_secs_f64(),
            prepare_seconds: done.prepared_in.as_secs_f64(),
            seconds,
            events: done.statistics.events,
            verbs: done.statistics.verbs,
            verbs_per_second: ratio(done.statistics.verbs as f64, seconds),
            peak_bytes: peak_bytes().unwrap_or(0),
        }
    }
}

/// An observer that counts what ends within the measured time.
struct Watched {
    statistics: Statistics,
    pauses: Pauses,
    from: Nanos,
    until: Nanos,
    /// How many transactions have ended within the measured time while the scanner did not run, and
    /// while it ran.
    counts: [u64; 2],
    /// Whether the scanner runs at a moment.
    is_on: Box<dyn Fn(Nanos) -> bool>,
    /// The number of transactions that have ended, including those outside of the measured time.
    ended: u64,
}

impl Watched {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if (self.from..self.until).contains(&event.ended) {
            self.statistics.transaction(event);
            if matches!(event.outcome, Outcome::Committed | Outcome::UserAbort) {
                self.pauses.ended(event.ended);
                self.counts[usize::from((self.is_on)(event.ended))] += 1;
            }
        }
        self.ended += 1;
    }
}

/// Runs a workload on a cluster that lives in `sim` and whose tables are loaded. Checks the
/// invariants after all transactions have ended. The run ends early when `is_over` returns true;
/// the measured time is then the virtual time until that moment.
pub fn simulate<W: Workload>(
    cluster: &Cluster,
    sim: &Sim,
    workload: &W,
    options: &Simulation,
    observers: &dyn Fn() -> Option<Box<dyn Observer>>,
    is_over: &dyn Fn() -> bool,
) -> Result<Simulated, RunError> {
    let preparing = Instant::now();
    sim.instant(true);
    let mut workers = connect(cluster, sim, options)?;
    let scanner = workload.scanner();
    if scanner.is_there() {
        // It is one more worker, of the first machine.
        sim.place(0);
        let seed = Prng::derive(options.seed, 1 << 32 | workers.len() as u64).next_u64();
        workers.push(cluster.worker(WorkerOptions::default().coroutines(1).seed(seed))?);
    }
    let scanning = if scanner.is_there() { workers.len() - 1 } else { usize::MAX };
    if let Some(worker) = workers.first_mut() {
        // The machines of one process share a location cache. So it is as if each machine had found
        // all records before.
        worker.block_on(async |session| workload.warm(session, 0, 1).await)?;
    }
    sim.instant(false);
    let from = sim.now() + options.warmup;
    let until = from + options.measure;
    let statistics = Statistics::new(W::TYPES.len());
    let length = Duration::from_nanos(options.measure);
    let is_on = move |now: Nanos| {
        let elapsed = Duration::from_nanos(now.saturating_sub(from));
        (from..until).contains(&now) && scanner.is_on(elapsed, Some(length))
    };
    let watched = Watched {
        statistics,
        pauses: Pauses::new(from),
        from,
        until,
        ended: 0,
        counts: [0; 2],
        is_on: Box::new(is_on),
    };
    let watched = Rc::new(RefCell::new(watched));
    let scanned = Rc::new(RefCell::new(Statistics::new(1)));
    for (index, worker) in workers.iter_mut().enumerate() {
        for session in worker.sessions() {
            let observer: Box<dyn Observer> = if index == scanning {
                scans::watch(scanned.clone(), observers())
            } else {
                let watched = watched.clone();
                let count = move |event: &TransactionEvent<'_>| watched.borrow_mut().transaction(event);
                Box::new(Counting(count, observers()))
            };
            session.observe(Some(observer));
        }
    }
    let scans = RefCell::new(Scans::new(workload.scanned_rows()));
    let prepared_in = preparing.elapsed();
    let before = sim.statistics();
    let simulating = Instant::now();
    let bodies: Vec<_> = (0..workers.len())
        .map(|worker| {
            let (first, watched, scans) = ((worker * options.coroutines) as u64, &watched, &scans);
            async move |coroutine: usize, session: &mut remora::Session| {
                let mut random = Prng::derive(options.seed, first + coroutine as u64);
                let mut ledger = W::Ledger::default();
                let mut given_up = 0u64;
                loop {
                    let now = session.lane().now();
                    if is_over() {
                        let mut watched = watched.borrow_mut();
                        watched.until = watched.until.min(now);
                    }
                    if now >= watched.borrow().until {
                        break;
                    }
                    if worker == scanning {
                        let goes_on = || is_on(sim.now()) && sim.now() < watched.borrow().until;
                        if !goes_on() || scans.borrow().stopped.is_some() {
                            session.lane().sleep(REST_NS).await;
                            continue;
                        }
                        let mut so_far = scans.replace(Scans::new(0));
                        let scanned = workload.scan(session, &mut so_far, &mut ledger, &goes_on).await;
                        let ended = so_far.ended(scanned);
                        so_far.busy += session.lane().now() - now;
                        scans.replace(so_far);
                        ended?;
                        session.lane().yield_now().await;
                        continue;
                    }
                    session.lane().endpoint().charge(options.transaction);
                    match workload.transact(session, &mut random, &mut ledger).await {
                        Ok(()) | Err(Error::User(_) | Error::Unknown(_)) => {}
                        Err(Error::Aborted(_)) => given_up += 1,
                        Err(error) => return Err(error),
                    }
                    // A transaction without any round lets no other coroutine run.
                    session.lane().yield_now().await;
                }
                Ok((ledger, given_up))
            }
        })
        .collect();
    // Transactions under way at the end of the time may finish.
    let (results, ended) = drive(sim, &mut workers, &bodies, until + GRACE);
    let simulated_in = simulating.elapsed();
    let results = results.into_iter().collect::<Result<Vec<_>, Error>>()?;
    sim.instant(true);
    let mut settled = true;
    for worker in &mut workers {
        worker.sessions().iter_mut().for_each(|session| drop(session.observe(None)));
        settled &= worker.drain()?;
    }
    let given_up = results.iter().map(|(_, given_up)| given_up).sum();
    let ledgers: Vec<_> = results.into_iter().map(|(ledger, _)| ledger).collect();
    let Some(watched) = Rc::into_inner(watched) else { unreachable!("no session holds it any more") };
    let Watched { statistics, pauses, until, counts, .. } = watched.into_inner();
    let unknown = statistics.unknown;
    let invariants = workload.invariants(cluster, After { ledgers: &ledgers, settled, unknown })?;
    let measured = until.saturating_sub(from);
    let seconds = measured as f64 / 1e9;
    let cpu = CpuSeconds { workers: seconds * (options.machines * options.threads) as f64, appliers: 0.0 };
    let measured = Measured {
        statistics,
        given_up,
        fenced: 0,
        table_full: false,
        elapsed: Duration::from_nanos(measured),
        longest_gap: Duration::from_nanos(pauses.longest()),
        scanned: scanner.is_there().then(|| {
            let mut scans = scans.into_inner();
            scans.statistics.add(&scanned.borrow());
            let [without, with] = scanner.times(Duration::from_nanos(measured), length);
            let pace = |ended, time| Pace { ended, time };
            Scanned { scans, with: pace(counts[1], with), without: pace(counts[0], without) }
        }),
        cpu,
        invariants,
        failure: None,
    };
    let statistics = sim.statistics().since(&before);
    Ok(Simulated { measured, ended, prepared_in, simulated_in, statistics })
}

/// Virtual time between two looks of a scanner whether it is to run.
const REST_NS: Nanos = 5_000;

/// Virtual time within which transactions under way at the end must finish.
const GRACE: Nanos = 1_000_000_000;

/// Runs a body on every coroutine of each worker, until all have finished or the time has come.
/// Returns what the coroutines of the workers have returned that have finished, and how it ended.
pub fn drive<'w, T: 'w, B: AsyncFn(usize, &mut Session) -> T>(
    sim: &Sim,
    workers: &'w mut [Worker],
    bodies: &'w [B],
    until: Nanos,
) -> (Vec<T>, Ended) {
    let clients: Vec<Vec<ClientId>> =
        workers.iter().map(|worker| worker.incarnations().map(ClientId).collect()).collect();
    let mut runs: Vec<_> = workers.iter_mut().zip(bodies).map(|(worker, body)| worker.start(body)).collect();
    let mut driven: Vec<Driven<'_>> =
        runs.iter_mut().zip(clients).map(|(run, clients)| Driven { clients, run }).collect();
    let ended = sim.run(&mut driven, Some(until));
    drop(driven);
    (runs.into_iter().flat_map(remora_fabric::Run::finish).collect(), ended)
}

/// Connects one worker for each thread of each machine.
pub fn connect(cluster: &Cluster, sim: &Sim, options: &Simulation) -> Result<Vec<Worker>, RunError> {
    let mut workers = Vec::with_capacity(options.machines * options.threads);
    for machine in 0..options.machines {
        sim.place(machine);
        for _ in 0..options.threads {
            let seed = Prng::derive(options.seed, 1 << 32 | workers.len() as u64).next_u64();
            let coroutines = options.coroutines;
            workers.push(cluster.worker(WorkerOptions::default().coroutines(coroutines).seed(seed))?);
        }
    }
    Ok(workers)
}
