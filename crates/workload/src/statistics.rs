//! The statistics of a thread's transactions, counted by an observer that allocates nothing.

use hdrhistogram::Histogram;
use remora::observe::{Cost, HotRecords, Observer, Outcome, TransactionEvent};

/// The counters of one type of transactions.
#[derive(Clone, Debug)]
pub struct TypeStatistics {
    /// Transactions that committed.
    pub committed: u64,
    /// Attempts that did not commit.
    pub aborted: u64,
    /// The aborted attempts that the workload itself gave up.
    pub by_user: u64,
    /// Latencies of committed transactions, retries included, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The sum of the costs of the attempts that committed.
    pub cost: Cost,
}

/// The times of the phases of committed attempts, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct PhaseTimes {
    pub(crate) execute: Histogram<u64>,
    pub(crate) validate: Histogram<u64>,
    pub(crate) log: Histogram<u64>,
    pub(crate) commit: Histogram<u64>,
    /// The sum of the times that these attempts waited for records of other transactions.
    pub(crate) waited: u64,
    /// The sum of all the time that these attempts took.
    pub(crate) all: u64,
}

/// The counters of a thread, or of several threads together.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The counters of each type of transactions, by its label.
    pub types: Vec<TypeStatistics>,
    /// Attempts that did not commit, by cause.
    pub aborted: Vec<(&'static str, u64)>,
    /// Transactions of unknown outcome.
    pub unknown: u64,
    /// The records at which transactions aborted or stood in line.
    pub hot: HotRecords,
    pub(crate) phases: PhaseTimes,
}

/// The name of the workload's own abort in reports.
pub(crate) const USER: &str = "user";
/// Causes that a report always names. Other causes are added when they occur.
const CAUSES: [&str; 3] = ["lock_conflict", "validation", USER];

/// Makes a histogram of times, from a nanosecond to a minute, precise to a thousandth.
pub(crate) fn times() -> Histogram<u64> {
    const MINUTE_NS: u64 = 60_000_000_000;
    Histogram::new_with_bounds(1, MINUTE_NS, 3).expect("the bounds and digits are allowed ones")
}

impl Statistics {
    /// Makes empty statistics, for `types` types of transactions.
    #[must_use]
    pub fn new(types: usize) -> Statistics {
        let one = || TypeStatistics { committed: 0, aborted: 0, by_user: 0, latency: times(), cost: Cost::default() };
        Statistics {
            types: (0..types).map(|_| one()).collect(),
            aborted: CAUSES.map(|cause| (cause, 0)).into(),
            unknown: 0,
            hot: HotRecords::default(),
            phases: PhaseTimes {
                execute: times(),
                validate: times(),
                log: times(),
                commit: times(),
                waited: 0,
                all: 0,
            },
        }
    }

    /// Adds the counters of another one.
    pub fn add(&mut self, other: &Statistics) {
        for (ours, theirs) in self.types.iter_mut().zip(&other.types) {
            ours.committed += theirs.committed;
            ours.aborted += theirs.aborted;
            ours.by_user += theirs.by_user;
            ours.cost.add(&theirs.cost);
            merge(&mut ours.latency, &theirs.latency);
        }
        for (cause, count) in &other.aborted {
            *self.cause(cause) += count;
        }
        self.unknown += other.unknown;
        self.hot.add(&other.hot);
        let (ours, theirs) = (&mut self.phases, &other.phases);
        merge(&mut ours.execute, &theirs.execute);
        merge(&mut ours.validate, &theirs.validate);
        merge(&mut ours.log, &theirs.log);
        merge(&mut ours.commit, &theirs.commit);
        ours.waited += theirs.waited;
        ours.all += theirs.all;
    }

    /// Returns the number of transactions that committed.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.types.iter().map(|one| one.committed).sum()
    }

    /// Returns the latencies of all types together.
    #[must_use]
    pub fn latency(&self) -> Histogram<u64> {
        let mut all = times();
        self.types.iter().for_each(|one| merge(&mut all, &one.latency));
        all
    }

    /// Returns the costs of all types together.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let mut all = Cost::default();
        self.types.iter().for_each(|one| all.add(&one.cost));
        all
    }

    pub(crate) fn cause(&mut self, cause: &'static str) -> &mut u64 {
        let index = self.aborted.iter().position(|(known, _)| *known == cause).unwrap_or_else(|| {
            self.aborted.push((cause, 0));
            self.aborted.len() - 1
        });
        &mut self.aborted[index].1
    }
}

/// Counts attempts by a function, and tells another observer of them, if there is one.
pub(crate) struct Counting<F>(pub(crate) F, pub(crate) Option<Box<dyn Observer>>);

impl<F: FnMut(&TransactionEvent<'_>)> Observer for Counting<F> {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        (self.0)(event);
        if let Some(also) = &mut self.1 {
            also.transaction(event);
        }
    }

    fn wants_committing(&self) -> bool {
        self.1.as_ref().is_some_and(|also| also.wants_committing())
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        if let Some(also) = &mut self.1 {
            also.committing(event);
        }
    }
}

impl Observer for Statistics {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.hot.note(event);
        let Some(one) = self.types.get_mut(usize::from(event.label)) else { return };
        let cause = match event.outcome {
            Outcome::Committed => {
                one.committed += 1;
                one.cost.add(&event.cost);
                one.latency.saturating_record(event.ended - event.began);
                self.phases.record(event);
                return;
            }
            Outcome::UserAbort => USER,
            Outcome::Aborted(abort) => abort.name(),
            Outcome::Failed(_) => "failed",
            Outcome::Unknown => {
                self.unknown += 1;
                return;
            }
        };
        one.aborted += 1;
        one.by_user += u64::from(event.outcome == Outcome::UserAbort);
        *self.cause(cause) += 1;
    }
}

impl PhaseTimes {
    /// The session records the ends of phases for a sample of the attempts. They are zero for the
    /// others, and for phases that a transaction did not have.
    fn record(&mut self, event: &TransactionEvent<'_>) {
        let phases = event.phases;
        if phases.executed == 0 {
            return;
        }
        self.waited += phases.waited;
        self.all += event.ended - event.attempt_began;
        self.execute.saturating_record(phases.executed - event.attempt_began);
        if phases.validated != 0 {
            self.validate.saturating_record(phases.validated - phases.executed);
        }
        if phases.logged != 0 {
            self.log.saturating_record(phases.logged - phases.validated);
            self.commit.saturating_record(event.ended - phases.logged);
        }
    }
}

pub(crate) fn merge(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("all histograms of times have the same bounds");
}
