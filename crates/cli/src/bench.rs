//! `remora bench smallbank`, and what all benchmarks of transactions have in common.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use remora::floors::memory::MemoryError;
use remora::floors::memory::limits::{CLIENTS_MAX, REPLICAS_MAX};
use remora::floors::{fabric, index};
use remora::{Cluster, ClusterOptions, Observer, OpenError, Protocol};
use remora_check::HistoryFile;
use remora_workload::driver::{self, Length, Progress, RunOptions};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::{RunError, Workload, available_bytes};
use serde::Serialize;

use crate::output::{OutputFile, ReportTo};
use crate::{Failure, Verdict, output, value};

const SECONDS: f64 = 10.0;

/// Options of every workload that runs transactions.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct RunArgs {
    /// Backend: shm, everything in this process.
    #[arg(long, value_name = "NAME", default_value = "shm", value_parser = value::fabric)]
    #[serde(skip)] // a field of the report already, as is the protocol
    fabric: String,
    /// How transactions are run: drtm-r, or unsynchronized, the bound without transactions.
    #[arg(long, value_name = "NAME", default_value = Protocol::default().name(), value_parser = value::protocol)]
    #[serde(skip)]
    protocol: String,
    /// Memory nodes.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..=fabric::limits::NODES_MAX as i64))]
    memory_nodes: u16,
    /// Copies of each record.
    #[arg(long, value_name = "R", default_value_t = 3,
          value_parser = clap::value_parser!(u8).range(1..=REPLICAS_MAX as i64))]
    replicas: u8,
    /// Bytes of each memory node, such as 512MiB [default: what the workload needs].
    #[arg(long, value_name = "SIZE", value_parser = value::bytes)]
    node_size: Option<u64>,
    /// Workers, each a thread [default: all cores].
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..CLIENTS_MAX as u64))]
    threads: Option<u64>,
    /// Transactions in flight for each worker.
    #[arg(long, value_name = "C", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(1..fabric::limits::LANES_MAX as u64))]
    coroutines: u64,
    /// Let other coroutines run after every round, also where it completes at once.
    #[arg(long)]
    yield_after_rounds: bool,
    /// How long to run [default: 10].
    #[arg(long, value_name = "S", value_parser = value::seconds, conflicts_with = "transactions")]
    seconds: Option<f64>,
    /// Run so many transactions instead: committed, or aborted by the workload.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    transactions: Option<u64>,
    /// Of all randomness.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
    /// Record every attempt, as JSON lines for `remora check`.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

impl RunArgs {
    /// With what nobody said filled in.
    fn settled(&self) -> Result<RunArgs, Failure> {
        if u16::from(self.replicas) > self.memory_nodes {
            let why = format!("needs as many memory nodes, and --memory-nodes is {}", self.memory_nodes);
            return Err(Failure::new(format!("--replicas {}", self.replicas), why));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(CLIENTS_MAX);
        let seconds = if self.transactions.is_some() { None } else { self.seconds.or(Some(SECONDS)) };
        Ok(RunArgs { threads: self.threads.or(Some(cores as u64)), seconds, ..self.clone() })
    }

    fn threads(&self) -> u64 {
        self.threads.unwrap_or(1)
    }

    fn cluster(&self, node_bytes: u64, sized_by: &str) -> Result<Cluster, Failure> {
        let all = node_bytes.saturating_mul(self.memory_nodes.into());
        if let Some(available) = available_bytes().filter(|available| all > *available) {
            let (all, available) = (value::show_bytes(all), value::show_bytes(available));
            let nodes = self.memory_nodes;
            let why = format!("{nodes} memory nodes need {all} together, and this machine has {available} to give");
            return Err(Failure::new(sized_by, why));
        }
        let options = ClusterOptions {
            memory_nodes: self.memory_nodes,
            replicas: self.replicas,
            node_bytes: usize::try_from(node_bytes).unwrap_or(usize::MAX),
            protocol: Protocol::named(&self.protocol).unwrap_or_default(),
        };
        Cluster::embedded(options).map_err(|error| self.blame(&error, sized_by))
    }

    /// Which option to change, when memory cannot be laid out.
    fn blame(&self, error: &OpenError, sized_by: &str) -> Failure {
        let option = match error {
            index::IndexError::Memory(MemoryError::OutOfMemory { .. } | MemoryError::Region(_)) => sized_by,
            index::IndexError::Memory(MemoryError::TooManyReplicas { .. }) => "--replicas",
            index::IndexError::Memory(MemoryError::Limit { what: "connected clients", .. }) => "--threads",
            _ => return Failure(error.to_string()),
        };
        Failure::new(option, error)
    }

    fn length(&self) -> Length {
        match self.transactions {
            Some(transactions) => Length::Transactions(transactions),
            None => Length::Time(Duration::from_secs_f64(self.seconds.unwrap_or(SECONDS))),
        }
    }

    /// Runs a workload that has been loaded, and reports.
    fn run<W: Workload>(
        &self,
        cluster: &Cluster,
        workload: &W,
        config: &impl Serialize,
        sized_by: &str,
    ) -> Result<Verdict, Failure> {
        // Both are there before either is touched; the history is emptied when every worker is ready.
        let report_to = ReportTo::open(self.report.as_deref())?;
        let history_to = self.history.as_deref().map(|path| OutputFile::open("--history", path)).transpose()?;
        let history = OnceLock::new();
        let observer = || {
            let history_to = history_to.as_ref()?;
            let history = history.get_or_init(|| history_to.begin().map(HistoryFile::new)).as_ref().ok()?;
            Some(Box::new(history.recorder()) as Box<dyn Observer>)
        };
        let options = RunOptions {
            threads: self.threads() as usize,
            coroutines: self.coroutines as usize,
            length: self.length(),
            seed: self.seed,
            yield_after_rounds: self.yield_after_rounds,
        };
        let bar = progress_bar(options.length);
        let measured =
            driver::run(cluster, workload, &options, &observer, |progress| advance(&bar, &options, progress));
        bar.finish_and_clear();
        let measured = measured.map_err(|error| match error {
            RunError::Open(error) => self.blame(&error, sized_by),
            RunError::Thread(_) => Failure::new("--threads", error),
            error => Failure(error.to_string()),
        })?;
        if let (Some(history), Some(output)) = (history.into_inner(), &history_to) {
            history?.finish().map_err(|error| output.failure(&error))?;
        }
        let config = serde_json::to_value(config).map_err(|error| Failure::new("the report", error))?;
        let report = measured.report::<W>(cluster, &self.fabric, config);
        let setting = format!(
            "{} memory nodes, {} copies, {} threads x {} coroutines, seed {}",
            self.memory_nodes,
            self.replicas,
            self.threads(),
            self.coroutines,
            self.seed
        );
        report_to.write(&report, || output::table(&report, &setting))?;
        let broken: Vec<&str> = report
            .invariants
            .iter()
            .filter(|invariant| invariant.holds == Some(false))
            .map(|invariant| invariant.name)
            .collect();
        if broken.is_empty() {
            return Ok(Verdict::Sound);
        }
        output::complain(&format!("an invariant does not hold: {}", broken.join(", ")));
        Ok(Verdict::Unsound)
    }
}

fn progress_bar(length: Length) -> ProgressBar {
    // Draws on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(match length {
        Length::Time(length) => length.as_millis() as u64,
        Length::Transactions(transactions) => transactions,
    });
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn advance(bar: &ProgressBar, options: &RunOptions, progress: Progress) {
    if bar.is_hidden() {
        return;
    }
    bar.set_position(match options.length {
        Length::Time(_) => progress.elapsed.as_millis() as u64,
        Length::Transactions(_) => progress.ended,
    });
    let rate = progress.ended as f64 / progress.elapsed.as_secs_f64().max(1e-3);
    bar.set_message(format!("{} transactions/s", output::grouped(rate as u64)));
}

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // to be refused with the option's name
#[command(after_help = "Examples:
  remora bench smallbank
  remora bench smallbank --threads 2 --replicas 1 --seconds 5 --report -
  remora bench smallbank --transactions 100000 --history run.jsonl && remora check run.jsonl

Exit status: 0 done, 1 an invariant does not hold, 2 bad input.")]
pub(crate) struct SmallBankOptions {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunArgs,
    /// Customers, each with a savings and a checking account [default: 100,000 for each thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(Customers::ACCOUNTS_MIN..))]
    accounts: Option<u64>,
    /// The share of the customers that is hot.
    #[arg(long, value_name = "SHARE", default_value_t = 0.04, value_parser = value::share)]
    hot_fraction: f64,
    /// How probable it is that a transaction is about a hot customer.
    #[arg(long, value_name = "P", default_value_t = 0.9, value_parser = value::share)]
    hot_probability: f64,
}

pub(crate) fn smallbank(options: &SmallBankOptions) -> Result<Verdict, Failure> {
    let run = options.run.settled()?;
    let threads = run.threads();
    let accounts = options.accounts.unwrap_or(threads * Customers::ACCOUNTS_PER_THREAD);
    let needed = SmallBank::node_bytes(accounts, run.memory_nodes, run.replicas, threads, run.coroutines);
    let node_bytes = run.node_size.unwrap_or(needed);
    let sized_by = match run.node_size {
        Some(bytes) => format!("--node-size {bytes}"),
        None => format!("--accounts {accounts}"),
    };
    let cluster = run.cluster(node_bytes, &sized_by)?;
    let customers = Customers::new(accounts, options.hot_fraction, options.hot_probability);
    let workload = SmallBank::load(&cluster, customers).map_err(|error| run.blame(&error, &sized_by))?;
    let config = SmallBankOptions {
        accounts: Some(accounts),
        run: RunArgs { node_size: Some(node_bytes), ..run.clone() },
        ..options.clone()
    };
    run.run(&cluster, &workload, &config, &sized_by)
}
