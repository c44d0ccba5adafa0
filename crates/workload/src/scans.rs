//! Scans of a whole table that one coroutine of each process runs beside the transactions of a mix.
//!
//! The scanner has a worker of its own, so the coroutines of the mix are the same with it and
//! without it. What it does is counted apart from the transactions.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use remora::Error;
use remora::observe::{Nanos, Observer, TransactionEvent};

use crate::report::{LatencyUs, ScanReport, ratio};
use crate::statistics::{Counting, Statistics, USER};

/// When the scanner runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scanner {
    /// There is no scanner.
    Never,
    /// It runs all the time.
    Always,
    /// It runs in the second and in the last quarter of the time. So one run shows the rate of the
    /// transactions with it and without it. A run whose length is not a time has no quarters; there
    /// it runs all the time.
    Turns,
}

impl Scanner {
    /// Whether there is a scanner.
    #[must_use]
    pub fn is_there(self) -> bool {
        self != Scanner::Never
    }

    /// Whether the scanner runs at a moment of a run. `length` is the length of the run, if it is a
    /// time.
    #[must_use]
    pub fn is_on(self, elapsed: Duration, length: Option<Duration>) -> bool {
        match (self, length) {
            (Scanner::Never, _) => false,
            (Scanner::Turns, Some(length)) => (4 * elapsed.as_nanos() / length.as_nanos().max(1)) % 2 == 1,
            (Scanner::Always, _) | (Scanner::Turns, None) => true,
        }
    }

    /// Returns for how long of `elapsed` the scanner did not run, and for how long it ran, in a run
    /// that was to take `length`.
    pub(crate) fn times(self, elapsed: Duration, length: Duration) -> [Duration; 2] {
        let quarter = length / 4;
        let part = |number: u32| elapsed.saturating_sub(number * quarter).min(quarter);
        match self {
            Scanner::Never => [elapsed, Duration::ZERO],
            Scanner::Always => [Duration::ZERO, elapsed],
            Scanner::Turns => [part(0) + part(2), part(1) + part(3)],
        }
    }
}

/// What a scanner has done.
#[derive(Clone, Debug)]
pub struct Scans {
    /// The number of rows of the table.
    pub rows: u64,
    /// The attempts, as those of transactions of one type.
    pub statistics: Statistics,
    /// The number of scans all of whose attempts had to restart.
    pub given_up: u64,
    /// The number of complete scans whose result is of no state that the table has had.
    pub torn: u64,
    /// The number of rows that all attempts together have read.
    pub rows_read: u64,
    /// The largest number of rows that an attempt has read.
    pub furthest: u64,
    /// The time in which the scanner ran, in nanoseconds.
    pub busy: Nanos,
    /// The CPU time of the scanner's thread, in nanoseconds; 0 in a simulation.
    pub cpu_ns: u64,
    /// The reason why the scanner has ended before the run, if it has.
    pub stopped: Option<String>,
}

impl Scans {
    /// Makes the counters of a scanner that has done nothing yet. `rows` is the number of rows of
    /// the table.
    #[must_use]
    pub fn new(rows: u64) -> Scans {
        Scans {
            rows,
            statistics: Statistics::new(1),
            given_up: 0,
            torn: 0,
            rows_read: 0,
            furthest: 0,
            busy: 0,
            cpu_ns: 0,
            stopped: None,
        }
    }

    /// Counts a complete scan that was several transactions, at one time, and how long it took.
    pub fn completed(&mut self, took: Nanos) {
        if let Some(one) = self.statistics.types.first_mut() {
            one.committed += 1;
            one.latency.saturating_record(took);
        }
    }

    /// Counts an attempt at a scan of several transactions that has ended before it was complete.
    /// `cause` is the name that the report has.
    pub fn restarted(&mut self, cause: &'static str) {
        if let Some(one) = self.statistics.types.first_mut() {
            one.aborted += 1;
            one.by_user += u64::from(cause == USER);
        }
        *self.statistics.cause(cause) += 1;
    }

    /// Counts how a scan has ended. Returns an error that ends the run.
    pub(crate) fn ended(&mut self, scanned: Result<bool, Error>) -> Result<(), Error> {
        match scanned {
            Ok(is_whole) => self.torn += u64::from(!is_whole),
            // It was cut off, which its statistics count.
            Err(Error::User(_)) => {}
            Err(Error::Aborted(_)) => self.given_up += 1,
            Err(error @ Error::Unavailable(_)) => return Err(error),
            Err(error) => self.stopped = Some(error.to_string()),
        }
        Ok(())
    }
}

/// Makes the observer that counts the attempts of a scanner, for [`Scans::statistics`].
pub(crate) fn watch(statistics: Rc<RefCell<Statistics>>, also: Option<Box<dyn Observer>>) -> Box<dyn Observer> {
    let count = move |event: &TransactionEvent<'_>| {
        // A scan that is several transactions counts itself.
        if event.snapshot.is_none() {
            statistics.borrow_mut().transaction(event);
        }
    };
    Box::new(Counting(count, also))
}

/// How many transactions of the mix ended in some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pace {
    /// The number of transactions.
    pub ended: u64,
    /// The time.
    pub time: Duration,
}

impl Pace {
    pub(crate) fn add(&mut self, ended: u64, time: Duration) {
        self.ended += ended;
        self.time += time;
    }

    fn rate(self) -> Option<f64> {
        (!self.time.is_zero()).then(|| ratio(self.ended as f64, self.time.as_secs_f64()))
    }
}

/// What a scanner has done, and the rates of the transactions with it and without it.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// What the scanner has done.
    pub scans: Scans,
    /// The transactions while it ran.
    pub with: Pace,
    /// The transactions while it did not run.
    pub without: Pace,
}

impl Scanned {
    /// Returns what a report says of the scans.
    pub(crate) fn report(&self) -> ScanReport {
        let Scanned { scans, with, without } = self;
        let Some(one) = scans.statistics.types.first() else { unreachable!("scans are one type") };
        let (completed, cut_off) = (one.committed, one.by_user);
        let begun = completed + scans.given_up + cut_off + u64::from(scans.stopped.is_some());
        let attempts = completed + one.aborted;
        let seconds = scans.busy as f64 / 1e9;
        let causes = scans.statistics.aborted.iter().copied();
        ScanReport {
            rows: scans.rows,
            completed,
            given_up: scans.given_up,
            cut_off,
            attempts,
            attempts_per_scan: ratio(attempts as f64, begun as f64),
            restarted: causes.filter(|(cause, count)| *cause != USER && *count > 0).collect(),
            furthest: ratio(scans.furthest as f64, scans.rows as f64),
            rows_per_second: ratio((completed * scans.rows) as f64, seconds),
            rows_read_per_second: ratio(scans.rows_read as f64, seconds),
            latency_us: LatencyUs::of(&one.latency),
            cpu_seconds: scans.cpu_ns as f64 / 1e9,
            consistent: (completed > 0).then_some(scans.torn == 0),
            stopped: scans.stopped.clone(),
            tps_with: with.rate(),
            tps_without: without.rate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_quarters() {
        let on = |scanner: Scanner, ms: u64| scanner.is_on(Duration::from_millis(ms), Some(Duration::from_millis(400)));
        assert_eq!(
            [0, 99, 100, 199, 200, 299, 300, 399].map(|ms| on(Scanner::Turns, ms)),
            [false, false, true, true, false, false, true, true]
        );
        assert!(!on(Scanner::Never, 150) && on(Scanner::Always, 50));
        assert!(Scanner::Turns.is_on(Duration::ZERO, None));
    }

    #[test]
    fn a_scanner_that_completes_nothing_says_so() {
        let mut scans = Scans::new(1_000);
        (scans.rows_read, scans.furthest, scans.busy, scans.given_up) = (3_000, 250, 1_000_000_000, 2);
        scans.statistics.types[0].aborted = 32;
        let with = Pace { ended: 10, time: Duration::from_secs(1) };
        let report = Scanned { scans, with, without: Pace::default() }.report();
        assert_eq!((report.completed, report.attempts, report.consistent), (0, 32, None));
        assert_eq!((report.attempts_per_scan, report.furthest, report.rows_per_second), (16.0, 0.25, 0.0));
        assert_eq!((report.rows_read_per_second, report.tps_with, report.tps_without), (3_000.0, Some(10.0), None));
    }
}
