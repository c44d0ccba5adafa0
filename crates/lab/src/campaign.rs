//! Fault campaigns: a workload runs from several seeds with every kind of fault, and every history
//! is checked.
//!
//! A [`Case`] is one run, with everything that it depends on. The campaign shrinks a failing case
//! to fewer clients, keys and faults as long as it fails. Faults are planned between the first lock
//! of some transaction and its release, because they do the most harm there.
//!
//! Each seed draws the faults of its run from the campaign's faults (*swarm testing*), because a
//! fault can hide what another one shows.
//!
//! In some runs memory nodes fail, or are declared lost: at most as many as there are copies to
//! spare. Such a run has controllers, which detect the loss. Every client continues in the next
//! epoch. There may be a spare node. A node that failed may come back empty. A node that was
//! declared lost while it was alive erases what it had. The run does not end before everything has
//! as many copies again as it can have.
//!
//! Where transactions are validated locally, all clients share one version cache. They stand for
//! threads of one process. But each client has a network of its own, and dies alone while the
//! process continues.
//!
//! Where futures are dropped (the fault `cancel`), a program gives up what it awaits: a whole
//! transaction, at whatever point it is at the time of the fault. In the workloads `registers` and
//! `ranges`, programs also give up single fetches and operations inside a transaction. The
//! transaction then repeats them and continues.
//!
//! In three of four runs clients have leases. These are often so short that other clients take a
//! client for dead that has only paused. It continues as a zombie and finds that out, and another
//! client takes its place. In the other runs no client watches the others.
//!
//! At the end of every run, a *janitor* recovers all clients that are gone. It asks for the outcome
//! of each transaction whose answer was lost, and reads every record. The history with these
//! outcomes and these reads must be strictly serializable.

mod aftermath;
mod cancel;
mod case;
mod faults;
mod gateways;
mod nodes;
mod past;
mod play;
mod races;
mod ranges;
mod recording;
mod registers;
mod reported;
mod run;
mod stage;
mod tables;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use remora::floors::txn::mutant::{self, Mutant};
use remora_fabric::probes;

pub use case::{Case, FAULTS, Load, Ran, Violation, faults_of};
pub use run::{run, run_recorded};

/// Shrinks a failing case to one that also fails: with fewer faults, clients, coroutines, keys or
/// transactions.
#[must_use]
pub fn shrink(case: &Case) -> Case {
    let mut best = case.clone();
    loop {
        let mut smaller = Vec::new();
        for fault in 0..best.faults.len() {
            let mut one = best.clone();
            one.faults.remove(fault);
            smaller.push(one);
        }
        let half = |value: u64, least: u64| Some(value / 2).filter(|half| *half >= least);
        smaller.extend(half(best.clients as u64, 1).map(|clients| Case { clients: clients as usize, ..best.clone() }));
        let coroutines = half(best.coroutines as u64, 1);
        smaller.extend(coroutines.map(|coroutines| Case { coroutines: coroutines as usize, ..best.clone() }));
        smaller.extend(half(best.keys, 4).map(|keys| Case { keys, ..best.clone() }));
        smaller.extend(half(best.transactions, 20).map(|transactions| Case { transactions, ..best.clone() }));
        let Some(found) = smaller.into_iter().find(|case| run(case).is_err()) else { return best };
        best = found;
    }
}

/// The result of a campaign.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// The number of runs.
    pub runs: u64,
    /// The sum of the results of all runs.
    pub total: Ran,
    /// The first few runs that show an error.
    pub violations: Vec<Violation>,
    /// The number of runs that show an error.
    pub violating: u64,
    /// What the campaign should have tested and has not.
    pub untested: Vec<String>,
}

impl Summary {
    /// Whether no run shows an error, and everything was tested that should have been.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violating == 0 && self.untested.is_empty()
    }
}

/// Runs a case for each seed, with some of its faults ([`Case::of`]), on `threads` threads. Calls
/// `look` after each run.
pub fn campaign(case: &Case, seeds: Range<u64>, threads: usize, look: &(dyn Fn() + Sync)) -> Summary {
    const SHOWN: usize = 3;
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let case = case.of(seed);
                    let result = run(&case);
                    let shown = {
                        let Ok(mut summary) = summary.lock() else { return };
                        summary.runs += 1;
                        match &result {
                            Ok(ran) => summary.total.add(ran),
                            Err(_) => summary.violating += 1,
                        }
                        summary.violations.len() < SHOWN
                    };
                    if let (Err(what), true) = (result, shown) {
                        let shrunk = shrink(&case);
                        if let Ok(mut summary) = summary.lock() {
                            summary.violations.push(Violation { case, what, shrunk });
                        }
                    }
                    look();
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_default();
    if summary.runs > summary.violating {
        summary.untested = untested(case, summary.runs, &summary.total);
    }
    summary
}

/// Lists what the campaign should have tested and has not.
fn untested(case: &Case, runs: u64, total: &Ran) -> Vec<String> {
    /// With fewer runs, it is a matter of chance whether a pause is longer than a lease.
    const MANY: u64 = 20;
    let mut untested = Vec::new();
    for fault in &case.faults {
        if total.faults.get(fault.as_str()).is_none_or(|(_, holding)| *holding == 0) {
            untested.push(format!("no {fault} has met a transaction that held locks"));
        }
    }
    if case.load == Load::Race {
        untested.extend(untested_of_race(case, total));
        return untested;
    }
    // A protocol that reads under locks has only absent keys to validate.
    let causes = ["lock_conflict", "validation"].into_iter().take(2 - usize::from(case.protocol.spec().locks_reads));
    for cause in causes {
        if total.aborted.get(cause).is_none_or(|count| *count == 0) {
            untested.push(format!("no attempt aborted by {cause}"));
        }
    }
    for probe in [probes::LOCKS, probes::VALIDATED, probes::LOGGED, probes::INSTALLED, probes::RELEASED] {
        if total.probes.get(probe).is_none_or(|count| *count == 0) {
            untested.push(format!("no transaction has reached the probe {probe}"));
        }
    }
    // The entries of other workloads are too small for a stall to fill a ring.
    let has_rings = !case.protocol.discipline().is_in_place() && !case.protocol.discipline().is_repairable();
    let fills = case.load == Load::Registers && has_rings && case.has("stall");
    if fills && !total.probes.contains_key(probes::RING_FULL) {
        untested.push("no log ring was ever full".to_owned());
    }
    if case.has(case::GROW) && total.grown == 0 {
        untested.push("no table has grown".to_owned());
    }
    if case.has("crash") && total.recovered == total.fenced {
        untested.push("no client that had died was recovered".to_owned());
    }
    if runs >= MANY && case.has("pause") && total.fenced == 0 {
        untested.push("no client that was alive was taken for dead".to_owned());
    }
    if runs >= MANY && case.loses_nodes() && !total.probes.contains_key(probes::COPIES) {
        untested.push("no copy was made again of what a lost node had".to_owned());
    }
    if total.unknown * 100 > total.attempts() {
        untested.push(format!("{} of {} attempts ended unknown: more than 1 %", total.unknown, total.attempts()));
    }
    untested
}

/// Lists what a campaign of the workload `race` should have tested and has not.
fn untested_of_race(case: &Case, total: &Ran) -> Vec<String> {
    let mut untested = Vec::new();
    for probe in [probes::LOCKS, probes::INSTALLED] {
        if total.probes.get(probe).is_none_or(|count| *count == 0) {
            untested.push(format!("no split has reached the probe {probe}"));
        }
    }
    if case.has("crash") && total.recovered == total.fenced {
        untested.push("no client that had died was recovered".to_owned());
    }
    untested
}

/// An error that a campaign puts back into the code, on the calling thread.
pub trait PutBack: Copy + std::fmt::Debug + Send + Sync {
    /// Puts one error back, or none.
    fn put_back(error: Option<Self>);

    /// Returns the workloads that may find the error.
    fn loads(self) -> &'static [Load];
}

impl PutBack for Mutant {
    fn put_back(error: Option<Mutant>) {
        mutant::set(error);
    }

    fn loads(self) -> &'static [Load] {
        match self {
            Mutant::LeafByHint | Mutant::CellOfAnyState => &[Load::Ranges],
            Mutant::GrowPastLocks | Mutant::SnapshotBeforeMove => &[Load::Registers],
            _ if self.is_of_race() => &[Load::Race],
            _ => &[Load::Registers, Load::SmallBank, Load::Tatp],
        }
    }
}

impl PutBack for remora_gateway::mutant::Mutant {
    fn put_back(error: Option<remora_gateway::mutant::Mutant>) {
        remora_gateway::mutant::set(error);
    }

    fn loads(self) -> &'static [Load] {
        &[Load::Redis]
    }
}

/// Returns the published errors that a campaign may find.
#[must_use]
pub fn mutants_of(case: &Case) -> Vec<Mutant> {
    let concerns = |mutant: &Mutant| match case.load {
        Load::Race => mutant.is_of_race(),
        _ => mutant.concerns(case.protocol),
    };
    Mutant::ALL.into_iter().filter(concerns).collect()
}

/// The result of hunting a published error: whether a campaign finds it, and where.
#[derive(Clone, Debug)]
pub struct Caught<M> {
    /// The published error.
    pub mutant: M,
    /// The workload and the first seed that show the error.
    pub seed: Option<(Load, u64)>,
    /// What that run showed.
    pub what: String,
    /// The number of runs until then.
    pub runs: u64,
}

/// Puts back published errors one at a time, and checks whether a campaign finds each within these
/// seeds of each workload.
pub fn mutation_score<M: PutBack>(
    mutants: &[M],
    case: &Case,
    seeds: Range<u64>,
    threads: usize,
    look: &(dyn Fn(M, bool) + Sync),
) -> Vec<Caught<M>> {
    let next = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(mutant) = mutants.get(index).copied() else { return };
                    let caught = hunt(mutant, case, seeds.clone());
                    look(mutant, caught.seed.is_some());
                    if let Ok(mut found) = found.lock() {
                        found.push((index, caught));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, caught)| caught).collect()
}

/// Looks for a seed whose run fails with the error and passes without it. The error is put back on
/// the calling thread only.
fn hunt<M: PutBack>(mutant: M, case: &Case, seeds: Range<u64>) -> Caught<M> {
    let mut caught = Caught { mutant, seed: None, what: String::new(), runs: 0 };
    for seed in seeds {
        for &load in mutant.loads() {
            let case = Case { load, ..case.of(seed) };
            caught.runs += 1;
            M::put_back(Some(mutant));
            let with = run(&case);
            M::put_back(None);
            if let Err(what) = with
                && run(&case).is_ok()
            {
                return Caught { seed: Some((load, seed)), what, ..caught };
            }
        }
    }
    caught
}
