//! The driver: runs a workload on threads and coroutines, and measures it.
//!
//! A thread has one worker, whose coroutines share the thread's counters. Threads share only two
//! things: a flag that is written once, and a counter for each thread, on a cache line of its own.
//! A thread writes its counter from time to time, so that the caller can see the progress.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use remora::observe::{Nanos, Observer, Outcome, TransactionEvent};
use remora::{Cluster, Error, Limit, Session, Worker, WorkerOptions};
use remora_fabric::Fault;
use remora_fabric::thread_cpu_ns;

use crate::gaps::Pauses;
use crate::guestbook::unknown;
use crate::machine::Machine;
use crate::report::{
    CpuSeconds, HotRecordReport, Invariant, LatencyUs, PerTransaction, PhasesUs, Report, TypeReport, ratio,
};
use crate::scans::{self, Pace, Scanned, Scanner, Scans};
use crate::statistics::{Statistics, TypeStatistics};
use crate::{After, Prng, RunError, Workload};

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Length {
    /// After this time.
    Time(Duration),
    /// When this number of transactions has ended: committed, or aborted by the workload.
    Transactions(u64),
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The number of workers, each on a thread of its own.
    pub threads: usize,
    /// The number of transactions that each worker has in flight.
    pub coroutines: usize,
    /// When the run ends.
    pub length: Length,
    /// The seed of all randomness.
    pub seed: u64,
    /// Whether lanes let the other coroutines run after every round; see
    /// [`WorkerOptions::yield_after_rounds`].
    pub yield_after_rounds: bool,
    /// The largest number of transactions per second, of all threads together. Transactions that
    /// were missed are not caught up.
    pub rate: Option<f64>,
    /// The bytes of each worker's archive ([`WorkerOptions::archive`]), if they are not the
    /// default.
    pub archive: Option<u64>,
}

impl RunOptions {
    /// Returns the time between two transactions of one coroutine.
    fn pace(&self) -> Nanos {
        let coroutines = (self.threads * self.coroutines) as f64;
        self.rate.map_or(0, |rate| (coroutines * 1e9 / rate) as Nanos)
    }
}

/// A function that makes one more observer for a thread. It is called on each thread when all
/// threads are ready to begin.
pub type Observers<'a> = &'a (dyn Fn() -> Option<Box<dyn Observer>> + Sync);

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The time since the run began.
    pub elapsed: Duration,
    /// The number of transactions that have ended. It lags a little.
    pub ended: u64,
}

/// The results of a run.
#[derive(Debug)]
pub struct Measured {
    /// The counters of all threads together.
    pub statistics: Statistics,
    /// Transactions that were given up, because every attempt had a conflict.
    pub given_up: u64,
    /// How often a worker was taken for dead, and continued as a new client.
    pub fenced: u64,
    /// Whether the run ended early, because a table had no room for another row.
    pub table_full: bool,
    /// The time from the beginning of the first transaction to the end of the last.
    pub elapsed: Duration,
    /// The longest time in which no transaction of this process ended. A millisecond or less is
    /// reported as one millisecond.
    pub longest_gap: Duration,
    /// What the scanner has done, if there was one.
    pub scanned: Option<Scanned>,
    /// The CPU time that was used.
    pub cpu: CpuSeconds,
    /// The invariants, checked after all transactions had ended.
    pub invariants: Vec<Invariant>,
    /// The reason why the invariants could not be checked, if they could not. The other results are
    /// valid all the same.
    pub failure: Option<RunError>,
}

/// The time between two calls of `look`.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a workload, and checks its invariants. `look` is called from time to time on this thread.
pub fn run<W: Workload>(
    cluster: &Cluster,
    workload: &W,
    options: &RunOptions,
    observers: Observers<'_>,
    mut look: impl FnMut(Progress),
) -> Result<Measured, RunError> {
    let look = |progress| {
        look(progress);
        ControlFlow::Continue(())
    };
    run_then(cluster, workload, options, observers, look, |after| Ok(workload.invariants(cluster, after)?))
}

/// Runs a workload. `look` is called from time to time, and may end the run early. `conclude`
/// checks the invariants when all threads have ended. If it fails, the results are returned with
/// its error.
pub fn run_then<W: Workload>(
    cluster: &Cluster,
    workload: &W,
    options: &RunOptions,
    observers: Observers<'_>,
    mut look: impl FnMut(Progress) -> ControlFlow<()>,
    conclude: impl FnOnce(After<'_, W::Ledger>) -> Result<Vec<Invariant>, RunError>,
) -> Result<Measured, RunError> {
    let scanner = workload.scanner();
    // The scanner is one more thread, which must also be ready before the run begins.
    let clients = options.threads + usize::from(scanner.is_there());
    let mut turns = Turns::new(scanner, options.length);
    let shared = Shared {
        stop: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        scanning: AtomicBool::new(turns.is_on(Duration::ZERO)),
        ready: Barrier::new(clients + 1),
        ended: (0..options.threads).map(|_| Ended::default()).collect(),
    };
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(options.threads);
        for index in 0..options.threads {
            let shared = &shared;
            let client = move || client(cluster, workload, options, index, observers, shared);
            let thread = thread::Builder::new().name(format!("worker-{index}")).spawn_scoped(scope, client);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Threads that wait at the barrier are released. They find that there is
                    // nothing to do.
                    shared.stop.store(true, Ordering::Relaxed);
                    (index..clients).for_each(|_| drop(scope.spawn(|| shared.ready.wait())));
                    shared.ready.wait();
                    return Err(RunError::Thread(error));
                }
            }
        }
        let scans = scanner.is_there().then(|| {
            let shared = &shared;
            scope.spawn(move || scan(cluster, workload, options, observers, shared))
        });
        shared.ready.wait();
        let (began, appliers_began) = (Instant::now(), cluster.memory_node_cpu_ns());
        loop {
            let elapsed = began.elapsed();
            let ended = shared.ended.iter().map(|one| one.0.load(Ordering::Relaxed)).sum();
            turns.look(elapsed, ended, &shared.scanning);
            let looked = look(Progress { elapsed, ended });
            let left = match options.length {
                Length::Time(length) => length.saturating_sub(elapsed),
                Length::Transactions(_) => LOOK,
            };
            if looked.is_break() || left.is_zero() || threads.iter().all(|thread| thread.is_finished()) {
                break;
            }
            thread::sleep(left.min(LOOK));
        }
        shared.stop.store(true, Ordering::Relaxed);
        let mut sum = Ran::new(W::TYPES.len());
        let mut failure = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(ran)) => sum.add(ran),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let scanned = match scans.map(|scans| scans.join()) {
            None => None,
            Some(Ok(Ok((scans, ledger, settled)))) => {
                sum.ledgers.push(ledger);
                sum.settled &= settled;
                Some(Scanned { scans, with: turns.with, without: turns.without })
            }
            Some(Ok(Err(error))) => return Err(error),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        };
        let elapsed = sum.ended.map_or(Duration::ZERO, |ended| ended.saturating_duration_since(began));
        let appliers = cluster.memory_node_cpu_ns().saturating_sub(appliers_began) as f64 / 1e9;
        let after = After { ledgers: &sum.ledgers, settled: sum.settled, unknown: sum.statistics.unknown };
        let (invariants, failure) = match conclude(after) {
            Ok(invariants) => (invariants, None),
            Err(error) => (unknown::<W>(&format!("it could not be looked at: {error}")), Some(error)),
        };
        let cpu = CpuSeconds { workers: sum.cpu_seconds, appliers };
        let longest_gap = Duration::from_nanos(sum.pauses.map_or(0, |pauses| pauses.longest()));
        let Ran { statistics, given_up, fenced, table_full, .. } = sum;
        Ok(Measured {
            statistics,
            given_up,
            fenced,
            table_full,
            elapsed,
            longest_gap,
            scanned,
            cpu,
            invariants,
            failure,
        })
    })
}

/// Runs `transactions` transactions on every coroutine of a worker of the calling thread, and
/// checks the invariants. Tests use it, also on a seeded cluster, whose clients all live on one
/// thread.
pub fn run_here<W: Workload>(
    cluster: &Cluster,
    workload: &W,
    worker: &mut Worker,
    transactions: u64,
    seed: u64,
) -> Result<(Statistics, Vec<Invariant>), RunError> {
    let mut tasks: Vec<Task> = (0..worker.sessions().len() as u64).map(|lane| Task::new(seed, lane)).collect();
    let never = AtomicBool::new(false);
    let limit = &|_| transactions;
    let published = Ended::default();
    let failed = AtomicBool::new(false);
    let thread = Thread { workload, stop: &never, failed: &failed, limit, pace: 0, published: &published };
    let watched = thread.watched(worker, None);
    let mut ran = thread.run(worker, &mut tasks, &watched)?;
    ran.watched(watched);
    if ran.fenced > 0 {
        return Err(Error::Fenced.into());
    }
    let after = After { ledgers: &ran.ledgers, settled: ran.settled, unknown: ran.statistics.unknown };
    let invariants = workload.invariants(cluster, after)?;
    Ok((ran.statistics, invariants))
}

/// The state that the threads of a run share.
struct Shared {
    /// Whether no more transactions are begun.
    stop: AtomicBool,
    /// Whether transactions under way are also given up. A memory node is lost then, and they may
    /// wait for what it held.
    failed: AtomicBool,
    /// Whether the scanner is to run now, if there is one.
    scanning: AtomicBool,
    ready: Barrier,
    ended: Vec<Ended>,
}

/// Tells the scanner when to run, and counts the transactions with it and without it.
struct Turns {
    scanner: Scanner,
    /// The length of the run, if it is a time.
    length: Option<Duration>,
    /// When the scanner's state changed last, and how many transactions had ended then.
    since: (Duration, u64),
    with: Pace,
    without: Pace,
}

impl Turns {
    fn new(scanner: Scanner, length: Length) -> Turns {
        let length = match length {
            Length::Time(length) => Some(length),
            Length::Transactions(_) => None,
        };
        let (since, with, without) = ((Duration::ZERO, 0), Pace::default(), Pace::default());
        Turns { scanner, length, since, with, without }
    }

    /// Takes note of how many transactions have ended by now.
    fn look(&mut self, elapsed: Duration, ended: u64, scanning: &AtomicBool) {
        let (time, count) = self.since;
        let pace = if scanning.load(Ordering::Relaxed) { &mut self.with } else { &mut self.without };
        pace.add(ended.saturating_sub(count), elapsed.saturating_sub(time));
        self.since = (elapsed, ended);
        scanning.store(self.is_on(elapsed), Ordering::Relaxed);
    }

    fn is_on(&self, elapsed: Duration) -> bool {
        self.scanner.is_on(elapsed, self.length)
    }
}

/// The time between two looks of a scanner whether it is to run.
const REST_NS: Nanos = 200_000;

/// Runs the scanner. Returns what it has done, its ledger, and whether everything that it logged
/// has been applied.
fn scan<W: Workload>(
    cluster: &Cluster,
    workload: &W,
    options: &RunOptions,
    observers: Observers<'_>,
    shared: &Shared,
) -> Result<(Scans, W::Ledger, bool), RunError> {
    let seed = Prng::derive(options.seed, 1 << 32 | options.threads as u64).next_u64();
    // A scan is long, and the coroutine that renews the lease must run meanwhile.
    let prepared = cluster.worker(WorkerOptions::default().coroutines(1).seed(seed).yield_after_rounds(true));
    if prepared.is_err() {
        shared.stop.store(true, Ordering::Relaxed);
    }
    shared.ready.wait();
    let mut worker = prepared?;
    let mut scans = Scans::new(workload.scanned_rows());
    let mut ledger = W::Ledger::default();
    let is_over = || shared.stop.load(Ordering::Relaxed) || shared.failed.load(Ordering::Relaxed);
    let goes_on = || shared.scanning.load(Ordering::Relaxed) && !is_over();
    let statistics = Rc::new(RefCell::new(Statistics::new(1)));
    let also = if is_over() { None } else { observers() };
    let mut watch = Some(scans::watch(statistics.clone(), also));
    let cpu_began = thread_cpu_ns();
    let ran = worker.block_on(async |session| {
        session.observe(watch.take());
        while !is_over() && scans.stopped.is_none() {
            let began = session.lane().now();
            if goes_on() {
                let scanned = workload.scan(session, &mut scans, &mut ledger, &goes_on).await;
                scans.ended(scanned)?;
                scans.busy += session.lane().now() - began;
                session.lane().yield_now().await;
            } else {
                session.lane().sleep(REST_NS).await;
            }
        }
        drop(session.observe(None));
        Ok::<(), Error>(())
    });
    if ran.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
        shared.stop.store(true, Ordering::Relaxed);
    }
    ran?;
    // A scanner has logged nothing, so one that was taken for dead leaves nothing behind.
    let settled = matches!(worker.drain(), Ok(true) | Err(Error::Fenced));
    scans.statistics.add(&statistics.borrow());
    scans.cpu_ns = thread_cpu_ns() - cpu_began;
    Ok((scans, ledger, settled))
}

/// The number of a thread's transactions that have ended, for [`Progress`]. It has cache lines of
/// its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Ended(AtomicU64);

/// A thread publishes its counter once in this number of transactions, unless they come slowly.
const PUBLISH: u64 = 64;

/// The results of one thread, or of all threads.
struct Ran<Ledger> {
    statistics: Statistics,
    ledgers: Vec<Ledger>,
    given_up: u64,
    fenced: u64,
    table_full: bool,
    settled: bool,
    cpu_seconds: f64,
    ended: Option<Instant>,
    pauses: Option<Pauses>,
}

impl<Ledger> Ran<Ledger> {
    fn new(types: usize) -> Ran<Ledger> {
        let statistics = Statistics::new(types);
        let ledgers = Vec::new();
        Ran {
            statistics,
            ledgers,
            given_up: 0,
            fenced: 0,
            table_full: false,
            settled: true,
            cpu_seconds: 0.0,
            ended: None,
            pauses: None,
        }
    }

    /// Takes over what was counted, when no observer counts any more.
    fn watched(&mut self, watched: Rc<RefCell<Watched>>) {
        let Some(watched) = Rc::into_inner(watched) else { unreachable!("no session holds it any more") };
        let Watched { statistics, pauses, .. } = watched.into_inner();
        self.statistics.add(&statistics);
        self.pauses = Some(pauses);
    }

    fn add(&mut self, other: Ran<Ledger>) {
        self.statistics.add(&other.statistics);
        self.ledgers.extend(other.ledgers);
        self.given_up += other.given_up;
        self.fenced += other.fenced;
        self.table_full |= other.table_full;
        self.settled &= other.settled;
        self.cpu_seconds += other.cpu_seconds;
        self.ended = self.ended.max(other.ended);
        self.pauses = match (self.pauses.take(), other.pauses) {
            (Some(ours), Some(theirs)) => Some(ours.and(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
    }
}

/// Runs one thread of a run.
fn client<W: Workload>(
    cluster: &Cluster,
    workload: &W,
    options: &RunOptions,
    index: usize,
    observers: Observers<'_>,
    shared: &Shared,
) -> Result<Ran<W::Ledger>, RunError> {
    let prepare = || -> Result<Worker, RunError> {
        let &RunOptions { coroutines, yield_after_rounds, archive, .. } = options;
        // Lanes draw their pauses from streams of their own.
        let seed = Prng::derive(options.seed, 1 << 32 | index as u64).next_u64();
        let mut worker = cluster.worker(
            WorkerOptions::default()
                .coroutines(coroutines)
                .archive(archive.unwrap_or(WorkerOptions::default().archive))
                .seed(seed)
                .yield_after_rounds(yield_after_rounds),
        )?;
        let (part, parts) = (index as u64, options.threads as u64);
        worker.block_on(async |session| workload.warm(session, part, parts).await)?;
        Ok(worker)
    };
    let prepare = || {
        let again = |prepared: &Result<Worker, RunError>| matches!(prepared, Err(RunError::Transaction(Error::Fenced)));
        let mut prepared = prepare();
        for _ in 0..FENCED_MAX {
            if again(&prepared) {
                prepared = prepare();
            }
        }
        prepared
    };
    let prepared = prepare();
    if prepared.is_err() {
        shared.stop.store(true, Ordering::Relaxed);
    }
    shared.ready.wait();
    let mut worker = prepared?;
    let coroutines = options.coroutines as u64;
    let first = index as u64 * coroutines;
    let mut tasks: Vec<Task> = (first..first + coroutines).map(|lane| Task::new(options.seed, lane)).collect();
    let limit = |coroutine: u64| match options.length {
        Length::Time(_) => u64::MAX,
        Length::Transactions(all) => share(all, options.threads as u64 * coroutines, first + coroutine),
    };
    let published = &shared.ended[index];
    let (stop, failed, pace) = (&shared.stop, &shared.failed, options.pace());
    let thread = Thread { workload, stop, failed, limit: &limit, pace, published };
    // If another thread could not prepare, there is no run, and nothing to observe.
    let also = if shared.stop.load(Ordering::Relaxed) { None } else { observers() };
    let watched = thread.watched(&mut worker, also);
    let ran = thread.run(&mut worker, &mut tasks, &watched).and_then(|mut ran| {
        while ran.fenced > 0 && !shared.stop.load(Ordering::Relaxed) {
            // The worker was taken for dead, perhaps because the thread was kept from running. It
            // continues as a new client.
            drop(worker);
            worker = prepare()?;
            let more = thread.run(&mut worker, &mut tasks, &watched)?;
            let is_over = more.fenced == 0;
            ran.add(more);
            if is_over {
                break;
            }
        }
        ran.watched(watched);
        Ok(ran)
    });
    if let Err(RunError::Transaction(Error::Unavailable(lost))) = &ran
        && matches!(lost.fault, Fault::Unreachable | Fault::Behind)
    {
        // The other threads of this process need not find this out again by waiting.
        cluster.fabric().fail(lost.node);
    }
    ran
}

/// How often a worker is prepared again, because it was taken for dead meanwhile.
const FENCED_MAX: usize = 5;

/// The work of one coroutine. It outlives the coroutine's client.
struct Task {
    random: Prng,
    /// The number of transactions that have ended.
    ended: u64,
}

impl Task {
    fn new(seed: u64, lane: u64) -> Task {
        Task { random: Prng::derive(seed, lane), ended: 0 }
    }
}

/// Whether an error says that a table has no room left and does not grow.
fn is_full(error: &Error) -> bool {
    matches!(error.limit(), Some(Limit::TableFull { .. } | Limit::NodesFull { .. }))
}

/// Returns how many of `all` transactions coroutine `part` of `parts` runs.
fn share(all: u64, parts: u64, part: u64) -> u64 {
    all / parts + u64::from(part < all % parts)
}

/// Number of hot records in a report.
const HOT_RECORDS: usize = 8;

struct Thread<'a, W> {
    workload: &'a W,
    stop: &'a AtomicBool,
    failed: &'a AtomicBool,
    /// The number of transactions of each coroutine.
    limit: &'a dyn Fn(u64) -> u64,
    /// The shortest time between the beginnings of two transactions of a coroutine.
    pace: Nanos,
    published: &'a Ended,
}

impl<W: Workload> Thread<'_, W> {
    /// Begins to count what a worker does, and what later clients of its thread will do.
    fn watched(&self, worker: &mut Worker, also: Option<Box<dyn Observer>>) -> Rc<RefCell<Watched>> {
        let now = worker.sessions().first().map_or(0, |session| session.lane().now());
        let (statistics, pauses) = (Statistics::new(W::TYPES.len()), Pauses::new(now));
        Rc::new(RefCell::new(Watched { statistics, pauses, also }))
    }

    /// Runs until everything is done, or until the worker was taken for dead.
    fn run(
        &self,
        worker: &mut Worker,
        tasks: &mut [Task],
        watched: &Rc<RefCell<Watched>>,
    ) -> Result<Ran<W::Ledger>, RunError> {
        for session in worker.sessions() {
            session.observe(Some(Box::new(Watch(watched.clone()))));
        }
        let ended_before: u64 = tasks.iter().map(|task| task.ended).sum();
        let (ended_count, given_up) = (Cell::new(ended_before), Cell::new(0_u64));
        let (fenced, table_full) = (Cell::new(false), Cell::new(false));
        let tasks: Vec<Cell<Option<&mut Task>>> = tasks.iter_mut().map(|task| Cell::new(Some(task))).collect();
        let cpu_began = thread_cpu_ns();
        let results = worker.run(async |coroutine, session| {
            // No other code holds it at this time.
            let mut ledger = W::Ledger::default();
            let Some(Task { random, ended }) = tasks[coroutine].take() else { return Ok(ledger) };
            let mut next = session.lane().now();
            while *ended < (self.limit)(coroutine as u64) {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                let ended_one = {
                    // The future is pinned here, because it is large: what is passed on is its
                    // place.
                    let transact = pin!(self.transact(session, random, &mut ledger));
                    self.unless_failed(transact).await
                };
                match ended_one {
                    None => break,
                    Some(Ok(gave_up)) => given_up.set(given_up.get() + u64::from(gave_up)),
                    Some(Err(Error::Fenced)) => {
                        fenced.set(true);
                        break;
                    }
                    Some(Err(error)) if is_full(&error) => {
                        // What has been measured so far is valid.
                        table_full.set(true);
                        self.stop.store(true, Ordering::Relaxed);
                        break;
                    }
                    Some(Err(error)) => {
                        self.failed.store(true, Ordering::Relaxed);
                        self.stop.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
                *ended += 1;
                ended_count.set(ended_count.get() + 1);
                if ended_count.get().is_multiple_of(PUBLISH) || self.pace > 0 {
                    self.published.0.store(ended_count.get(), Ordering::Relaxed);
                }
                if self.pace > 0 {
                    let now = session.lane().now();
                    next = (next + self.pace).max(now);
                    session.lane().sleep(next - now).await;
                } else {
                    // Where rounds complete at once, nothing else lets the others run.
                    session.lane().yield_now().await;
                }
            }
            Ok(ledger)
        });
        let ended = Some(Instant::now());
        self.published.0.store(ended_count.get(), Ordering::Relaxed);
        worker.sessions().iter_mut().for_each(|session| drop(session.observe(None)));
        let ledgers = results.into_iter().collect::<Result<Vec<_>, Error>>()?;
        let settled = match worker.drain() {
            // The client that has recovered this one has made sure that its logs are applied.
            Err(Error::Fenced) => {
                fenced.set(true);
                true
            }
            settled => settled?,
        };
        let cpu_seconds = (thread_cpu_ns() - cpu_began) as f64 / 1e9;
        let ran = Ran::new(W::TYPES.len());
        let (given_up, fenced, table_full) = (given_up.get(), fenced.get().into(), table_full.get());
        Ok(Ran { ledgers, given_up, fenced, table_full, settled, cpu_seconds, ended, ..ran })
    }

    /// Returns the output of a future, or `None` if the run fails first.
    async fn unless_failed<T>(&self, mut something: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let polled = poll_fn(|context| {
            if self.failed.load(Ordering::Relaxed) {
                return Poll::Ready(None);
            }
            something.as_mut().poll(context).map(Some)
        });
        polled.await
    }

    /// Runs one transaction. Returns whether it was given up. An error ends the run.
    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut W::Ledger) -> Result<bool, Error> {
        match self.workload.transact(session, random, ledger).await {
            Ok(()) | Err(Error::User(_) | Error::Unknown(_)) => Ok(false),
            Err(Error::Aborted(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The observers of a thread's sessions: the thread's counters, and the caller's observer, if there
/// is one.
struct Watched {
    statistics: Statistics,
    pauses: Pauses,
    also: Option<Box<dyn Observer>>,
}

struct Watch(Rc<RefCell<Watched>>);

impl Observer for Watch {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let watched = &mut *self.0.borrow_mut();
        watched.statistics.transaction(event);
        if matches!(event.outcome, Outcome::Committed | Outcome::UserAbort) {
            watched.pauses.ended(event.ended);
        }
        if let Some(also) = &mut watched.also {
            also.transaction(event);
        }
    }

    fn wants_committing(&self) -> bool {
        self.0.borrow().also.as_ref().is_some_and(|also| also.wants_committing())
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        if let Some(also) = &mut self.0.borrow_mut().also {
            also.committing(event);
        }
    }
}

impl Measured {
    /// Makes the result of a run without transactions, whose invariants were checked.
    #[must_use]
    pub fn nothing<W: Workload>(invariants: Vec<Invariant>) -> Measured {
        let none = Duration::ZERO;
        let (statistics, cpu) = (Statistics::new(W::TYPES.len()), CpuSeconds::default());
        Measured {
            statistics,
            given_up: 0,
            fenced: 0,
            table_full: false,
            elapsed: none,
            longest_gap: none,
            scanned: None,
            cpu,
            invariants,
            failure: None,
        }
    }

    /// Makes the report of the run. The caller gives the fabric's name and the options in force.
    #[must_use]
    pub fn report<W: Workload>(&self, cluster: &Cluster, fabric: &str, config: serde_json::Value) -> Report {
        let statistics = &self.statistics;
        let (seconds, committed) = (self.elapsed.as_secs_f64(), statistics.committed());
        let aborted: u64 = statistics.aborted.iter().map(|(_, count)| count).sum();
        let by_type = W::TYPES.iter().zip(&statistics.types).map(|(name, one)| {
            let round_trips = PerTransaction::of(&one.cost, one.committed).round_trips;
            let latency_us = LatencyUs::of(&one.latency);
            let TypeStatistics { committed, aborted, by_user: user, .. } = *one;
            let throughput_tps = ratio(committed as f64, seconds);
            (*name, TypeReport { committed, throughput_tps, aborted, user, latency_us, round_trips })
        });
        let phases = &statistics.phases;
        Report {
            workload: W::NAME.to_owned(),
            protocol: cluster.protocol().name().to_owned(),
            fabric: fabric.to_owned(),
            config,
            seconds,
            committed,
            throughput_tps: ratio(committed as f64, seconds),
            aborted: statistics.aborted.iter().copied().collect(),
            abort_rate: ratio(aborted as f64, (committed + aborted) as f64),
            hot_records: statistics.hot.hottest(HOT_RECORDS).iter().map(HotRecordReport::of).collect(),
            given_up: self.given_up,
            unknown: statistics.unknown,
            fenced: self.fenced,
            table_full: self.table_full,
            history_failure: None,
            max_gap_ms: self.longest_gap.as_micros() as f64 / 1e3,
            latency_us: LatencyUs::of(&statistics.latency()),
            per_transaction: PerTransaction::of(&statistics.cost(), committed),
            by_type: by_type.collect(),
            phases_us: PhasesUs {
                execute: LatencyUs::of(&phases.execute),
                validate: LatencyUs::of(&phases.validate),
                log: LatencyUs::of(&phases.log),
                commit: LatencyUs::of(&phases.commit),
            },
            waiting_share: ratio(phases.waited as f64, phases.all as f64),
            scans: self.scanned.as_ref().map(Scanned::report),
            cpu_seconds: self.cpu,
            per_cpu_second_tps: ratio(committed as f64, self.cpu.workers + self.cpu.appliers),
            invariants: self.invariants.clone(),
            machine: Machine::this(cluster.pages()),
            simulated: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_add_up_and_differ_by_one_at_most() {
        for (all, parts) in [(0, 1), (1, 8), (7, 8), (8, 8), (1_000_003, 16)] {
            let shares: Vec<u64> = (0..parts).map(|part| share(all, parts, part)).collect();
            assert_eq!(shares.iter().sum::<u64>(), all);
            assert!(shares.iter().max().unwrap_or(&0) - shares.iter().min().unwrap_or(&0) <= 1);
        }
    }
}
