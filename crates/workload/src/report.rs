//! The report of a run, which `--report` writes as JSON. Scripts rely on its names and their
//! meanings, so fields may be added but not renamed.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use remora::observe::{Cost, HotRecord};
use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// The protocol's name.
    pub protocol: String,
    /// The name of the backend.
    pub fabric: String,
    /// All options in force.
    pub config: Value,
    /// The duration of the run.
    pub seconds: f64,
    /// Transactions that committed.
    pub committed: u64,
    /// Committed transactions per second.
    pub throughput_tps: f64,
    /// Attempts that did not commit, by cause.
    pub aborted: BTreeMap<&'static str, u64>,
    /// The share of attempts that did not commit.
    pub abort_rate: f64,
    /// The records at which attempts aborted or stood in line most, the hottest first.
    pub hot_records: Vec<HotRecordReport>,
    /// Transactions that were given up, because every attempt had a conflict.
    pub given_up: u64,
    /// Transactions of unknown outcome.
    pub unknown: u64,
    /// How often a worker was taken for dead, and continued as a new client.
    pub fenced: u64,
    /// Whether the run ended early, because a table had no room for another row.
    pub table_full: bool,
    /// The reason why the history of the run is cut, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_failure: Option<String>,
    /// The longest time, in milliseconds, in which no transaction of this process ended: committed,
    /// or aborted by the workload. A millisecond or less is reported as one millisecond.
    pub max_gap_ms: f64,
    /// The time from the beginning of the first attempt to the commit, retries included, of
    /// committed transactions, in microseconds.
    pub latency_us: LatencyUs,
    /// Means over committed transactions. They count the attempt that committed.
    pub per_transaction: PerTransaction,
    /// Figures for each type of transaction.
    pub by_type: BTreeMap<&'static str, TypeReport>,
    /// How long the phases of committed attempts took, in microseconds. A phase counts only
    /// attempts that had it, and only a sample of them.
    pub phases_us: PhasesUs,
    /// The share of the time of these attempts in which they waited for records that other
    /// transactions had locked or were installing.
    pub waiting_share: f64,
    /// The scans that ran beside the transactions, if there was a scanner. No other figure of the
    /// report counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scans: Option<ScanReport>,
    /// The CPU time that was used.
    pub cpu_seconds: CpuSeconds,
    /// Committed transactions per second of CPU time, of workers and memory nodes together.
    pub per_cpu_second_tps: f64,
    /// The invariants, as they were checked after the run.
    pub invariants: Vec<Invariant>,
    /// The machine that was used.
    pub machine: Machine,
    /// What the simulation took, if the cluster is a simulated one. The rest of the report is then
    /// in virtual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedIn>,
}

/// The cost of a simulation, in real time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SimulatedIn {
    /// Real seconds for loading the tables.
    pub load_seconds: f64,
    /// Real seconds for connecting and warming.
    pub prepare_seconds: f64,
    /// Real seconds for the simulation itself.
    pub seconds: f64,
    /// The number of events of the simulation.
    pub events: u64,
    /// The number of verbs that were posted in the simulation.
    pub verbs: u64,
    /// Verbs posted per second of real time.
    pub verbs_per_second: f64,
    /// The most memory that the process had, in bytes; 0 where that is not known.
    pub peak_bytes: u64,
}

impl Report {
    /// Whether no invariant is known to be broken.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.invariants.iter().all(|invariant| invariant.holds != Some(false))
    }
}

/// A distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyUs {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The largest value.
    pub max: f64,
}

impl LatencyUs {
    /// Returns the figures of a histogram of nanoseconds.
    #[must_use]
    pub fn of(nanoseconds: &Histogram<u64>) -> LatencyUs {
        if nanoseconds.is_empty() {
            return LatencyUs::default();
        }
        let at = |quantile| nanoseconds.value_at_quantile(quantile) as f64 / 1e3;
        LatencyUs {
            mean: (nanoseconds.mean()).round() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: nanoseconds.max() as f64 / 1e3,
        }
    }
}

/// The mean cost of a transaction, background rounds included except where a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerTransaction {
    /// Round trips on the critical path: round trips that were awaited.
    pub round_trips: f64,
    /// READ verbs.
    pub reads: f64,
    /// WRITE verbs.
    pub writes: f64,
    /// CAS and FETCH_ADD verbs.
    pub atomics: f64,
    /// Flushes.
    pub flushes: f64,
    /// Calls served by a memory node's CPU.
    pub rpcs: f64,
    /// Payload bytes to memory nodes.
    pub bytes_out: f64,
    /// Payload bytes from memory nodes.
    pub bytes_in: f64,
}

impl PerTransaction {
    /// Divides a sum of costs by the number of transactions.
    #[must_use]
    pub fn of(sum: &Cost, transactions: u64) -> PerTransaction {
        let share = |sum: u64| ratio(sum as f64, transactions as f64);
        PerTransaction {
            round_trips: share(sum.round_trips),
            reads: share(sum.reads),
            writes: share(sum.writes),
            atomics: share(sum.atomics),
            flushes: share(sum.flushes),
            rpcs: share(sum.rpcs),
            bytes_out: share(sum.bytes_out),
            bytes_in: share(sum.bytes_in),
        }
    }
}

/// A record at which transactions got in each other's way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotRecordReport {
    /// The record's table.
    pub table: String,
    /// The record's key, in hex.
    pub key: String,
    /// The record, as errors name it.
    #[serde(skip)]
    pub name: String,
    /// Attempts that aborted because the record was locked.
    pub locked: u64,
    /// Attempts that aborted because the record had changed since they read it.
    pub changed: u64,
    /// Attempts that aborted at the record for another reason.
    pub otherwise: u64,
    /// Attempts before which a coroutine stood in line for the record.
    pub stood: u64,
    /// How long they stood there together, in milliseconds.
    pub stood_ms: f64,
}

impl HotRecordReport {
    pub(crate) fn of(hot: &HotRecord) -> HotRecordReport {
        let key = hot.record.key().unwrap_or_default();
        HotRecordReport {
            table: hot.record.table().unwrap_or_default().to_owned(),
            key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
            name: hot.record.to_string(),
            locked: hot.locked,
            changed: hot.changed,
            otherwise: hot.otherwise,
            stood: hot.stood,
            stood_ms: hot.stood_for.as_micros() as f64 / 1e3,
        }
    }
}

/// The figures of one type of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TypeReport {
    /// Transactions that committed.
    pub committed: u64,
    /// Committed transactions per second.
    pub throughput_tps: f64,
    /// Attempts that did not commit.
    pub aborted: u64,
    /// The aborted attempts that the workload itself gave up.
    pub user: u64,
    /// The latency of this type; see [`Report::latency_us`].
    pub latency_us: LatencyUs,
    /// Rounds on the critical path of committed transactions, on average.
    pub round_trips: f64,
}

/// The times of the phases of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhasesUs {
    /// The execution phase: the closure and its reads.
    pub execute: LatencyUs,
    /// The validation phase: locks are taken and the read set is validated.
    pub validate: LatencyUs,
    /// The logging phase: until the log is acknowledged.
    pub log: LatencyUs,
    /// The commit phase: until the install is posted.
    pub commit: LatencyUs,
}

/// What a report says of scans beside the transactions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScanReport {
    /// The number of rows of the table, all of which a scan reads.
    pub rows: u64,
    /// Scans that have read all rows, and committed.
    pub completed: u64,
    /// Scans that were given up, because every attempt had to restart.
    pub given_up: u64,
    /// Scans that were under way when their time was over.
    pub cut_off: u64,
    /// The attempts of all these scans.
    pub attempts: u64,
    /// The attempts for each of these scans.
    pub attempts_per_scan: f64,
    /// Attempts that had to restart, by cause.
    pub restarted: BTreeMap<&'static str, u64>,
    /// The largest share of the rows that an attempt has read.
    pub furthest: f64,
    /// Rows of complete scans for each second in which the scanner ran.
    pub rows_per_second: f64,
    /// Rows for each second in which the scanner ran, including those of attempts that restarted.
    pub rows_read_per_second: f64,
    /// How long complete scans took, restarts included, in microseconds.
    pub latency_us: LatencyUs,
    /// The CPU time of the scanner, in seconds; 0 in a simulation.
    pub cpu_seconds: f64,
    /// Whether the result of every complete scan was of one state of the table. `None` if no scan
    /// was complete.
    pub consistent: Option<bool>,
    /// The reason why the scanner ended before the run, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Transactions that ended per second while the scanner ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tps_with: Option<f64>,
    /// Transactions that ended per second while it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tps_without: Option<f64>,
}

/// The CPU time that was used, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuSeconds {
    /// The time of the threads that run transactions.
    pub workers: f64,
    /// The time of the memory nodes. In this process it is the time for applying logs. In processes
    /// of their own it is all their time.
    pub appliers: f64,
}

/// An invariant: something that must hold after a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Invariant {
    /// What must hold, in plain words.
    pub name: &'static str,
    /// Whether it holds. `None` if that cannot be decided; the detail says why.
    pub holds: Option<bool>,
    /// The figures behind the answer.
    pub detail: String,
}

/// Divides two measures, of which the second may be 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}
