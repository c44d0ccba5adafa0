//! The report of a run: what `--report` writes as JSON. Names and meanings are relied on by
//! scripts: extend, don't rename.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use remora::observe::Cost;
use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;

/// What came out of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// The protocol's name.
    pub protocol: String,
    /// The backend.
    pub fabric: String,
    /// Every option in force.
    pub config: Value,
    /// How long the run took.
    pub seconds: f64,
    /// Transactions that committed.
    pub committed: u64,
    /// Committed transactions per second.
    pub throughput_tps: f64,
    /// Attempts that did not commit, by cause.
    pub aborted: BTreeMap<&'static str, u64>,
    /// Their share of all attempts.
    pub abort_rate: f64,
    /// Transactions that were given up because every attempt met others.
    pub given_up: u64,
    /// Transactions whose outcome nobody knows.
    pub unknown: u64,
    /// How often a worker was taken for dead, and went on as a new client.
    pub fenced: u64,
    /// The run ended early, because a table had no room for another row.
    pub table_full: bool,
    /// Why the history of the run is cut, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_failure: Option<String>,
    /// The longest time in which no transaction of this process ended, committed or aborted by the
    /// workload; a millisecond or less is told as one.
    pub max_gap_ms: f64,
    /// From the first attempt's begin to the commit, retries included; committed transactions only.
    pub latency_us: LatencyUs,
    /// Means over committed transactions, of the attempt that committed.
    pub per_transaction: PerTransaction,
    /// Figures for each type of transaction.
    pub by_type: BTreeMap<&'static str, TypeReport>,
    /// How long the phases of committed attempts took. A phase counts the attempts that had it, and
    /// only a sample of them.
    pub phases_us: PhasesUs,
    /// Share of the time of these attempts that they waited for records which others had locked, or
    /// were installing.
    pub waiting_share: f64,
    /// CPU time.
    pub cpu_seconds: CpuSeconds,
    /// Committed transactions for each second of CPU time, of workers and memory nodes together.
    pub per_cpu_second_tps: f64,
    /// What must hold after the run.
    pub invariants: Vec<Invariant>,
    /// What it ran on.
    pub machine: Machine,
    /// If the cluster is a simulated one: what that took. The rest of the report is in virtual
    /// time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedIn>,
}

/// What a simulation took, in real time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SimulatedIn {
    /// Real seconds for loading the tables.
    pub load_seconds: f64,
    /// Real seconds for connecting and warming.
    pub prepare_seconds: f64,
    /// Real seconds for the simulation itself.
    pub seconds: f64,
    /// Events in it.
    pub events: u64,
    /// Verbs posted in it.
    pub verbs: u64,
    /// Verbs posted per second of real time.
    pub verbs_per_second: f64,
    /// Most memory that the process had, in bytes; 0 where that is not known.
    pub peak_bytes: u64,
}

impl Report {
    /// Whether no invariant is known not to hold.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.invariants.iter().all(|invariant| invariant.holds != Some(false))
    }
}

/// A distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyUs {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl LatencyUs {
    /// The figures of a histogram of nanoseconds.
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

/// What a transaction costs, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerTransaction {
    /// Rounds on the critical path.
    pub round_trips: f64,
    /// READ verbs; background rounds included, here and below.
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
    /// Means over `transactions` transactions, of a sum.
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

/// Of one type of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TypeReport {
    /// Transactions that committed.
    pub committed: u64,
    /// Committed transactions per second.
    pub throughput_tps: f64,
    /// Attempts that did not.
    pub aborted: u64,
    /// Of these, the ones that the workload itself gave up.
    pub user: u64,
    /// See [`Report::latency_us`].
    pub latency_us: LatencyUs,
    /// Rounds on the critical path of committed transactions, on average.
    pub round_trips: f64,
}

/// Of each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhasesUs {
    /// The closure and its reads.
    pub execute: LatencyUs,
    /// Locks taken, read set validated.
    pub validate: LatencyUs,
    /// Log acknowledged.
    pub log: LatencyUs,
    /// Install posted.
    pub commit: LatencyUs,
}

/// CPU time used, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuSeconds {
    /// By the threads that run transactions.
    pub workers: f64,
    /// By the memory nodes. In this process it is the time to apply logs, in processes of their own
    /// all of their time.
    pub appliers: f64,
}

/// Something that must hold after a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Invariant {
    /// In plain words.
    pub name: &'static str,
    /// Whether it does; `None` where that cannot be told, and the detail says why.
    pub holds: Option<bool>,
    /// The figures behind it.
    pub detail: String,
}

/// Two measures of which the second may be 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}
