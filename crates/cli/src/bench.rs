//! What all benchmarks of transactions have in common: their options, and one run of a workload.
//! Each has a file of its own for its options and what it loads.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::simulated::SimArgs;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use remora::floors::fabric::Headroom;
use remora::floors::memory::MemoryError;
use remora::floors::memory::limits::{CLIENTS_MAX, REPLICAS_MAX};
use remora::floors::{fabric, index};
use remora::{Cluster, ClusterOptions, Nodes, Observer, OpenError, Place, Protocol};
use remora_check::HistoryFile;
use remora_workload::driver::{Length, Progress, RunOptions};
use remora_workload::{Report, Setting, Workload};
use serde::Serialize;

use crate::connected::Opened;
use crate::etcd::EtcdArgs;
use crate::output::{OutputFile, ReportTo};
use crate::rdma::RdmaArgs;
use crate::{Failure, Verdict, output, value};

const SECONDS: f64 = 10.0;
const MEMORY_NODES: u16 = 3;
const REPLICAS: u8 = 3;

/// Options of every workload that runs transactions.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct RunArgs {
    /// Backend: shm, everything in this process; verbs, an RDMA device, to running memory nodes
    /// with --connect; sim, a simulated cluster [default: shm, or what --connect names].
    #[arg(long, value_name = "NAME", value_parser = value::fabric)]
    #[serde(skip)] // a field of the report already, as is the protocol
    pub(crate) fabric: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) rdma: RdmaArgs,
    /// Use running memory nodes: host:port of each, or shm: and the path of each. The first
    /// client loads the tables.
    #[arg(long, value_name = "ADDR,...", value_parser = value::nodes())]
    #[serde(serialize_with = "value::serialize_nodes")]
    pub(crate) connect: Option<Nodes>,
    /// The key that these memory nodes ask for.
    #[arg(long, value_name = "FILE", requires = "connect")]
    #[serde(serialize_with = "value::serialize_path")]
    pub(crate) key_file: Option<PathBuf>,
    /// What says which clients are alive, the same for all client processes of a cluster: a file,
    /// if they are on one host, or etcd://host:port,host:port,.../PATH. Beside the first file of
    /// memory nodes if they are files
    #[arg(long, value_name = "FILE|etcd://...", requires = "connect", value_parser = value::place())]
    #[serde(serialize_with = "value::serialize_place")]
    pub(crate) configuration: Option<Place>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// Talk TLS to them, and trust these certificates: PEM, of an authority or their own.
    #[arg(long, value_name = "FILE", requires = "connect")]
    #[serde(serialize_with = "value::serialize_path")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Run no transactions: check what must hold of these memory nodes' tables.
    #[arg(long, requires = "connect", conflicts_with_all = ["seconds", "transactions", "history"])]
    pub(crate) check: bool,
    /// How transactions are run: farm, fasst, drtm-r, drtm-h, ford, ford-lean, ford-local,
    /// ford-global; or unsynchronized, the bound without transactions.
    #[arg(long, value_name = "NAME", default_value = Protocol::default().name(), value_parser = value::protocol)]
    #[serde(skip)]
    protocol: String,
    /// Of FORD: what to do without, separated by commas: hitchhike, address-cache, coalesce,
    /// background-release, backup-reads, selective-flush; or corrections, which leaves no
    /// transactions, but the cost of the published ones.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value::ford_mechanism)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ford_without: Vec<String>,
    /// Memory nodes [default: 3].
    #[arg(long, value_name = "N", conflicts_with = "connect",
          value_parser = clap::value_parser!(u16).range(1..=fabric::limits::NODES_MAX as i64))]
    memory_nodes: Option<u16>,
    /// Number of memory nodes, the last ones, that get nothing of new tables: they are there for
    /// what others lose.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..64))]
    pub(crate) spares: u16,
    /// Copies of each record [default: 3].
    #[arg(long, value_name = "R",
          value_parser = clap::value_parser!(u8).range(1..=REPLICAS_MAX as i64))]
    pub(crate) replicas: Option<u8>,
    /// Bytes of each memory node, such as 512MiB [default: what the workload needs].
    #[arg(long, value_name = "SIZE", value_parser = value::bytes, conflicts_with = "connect")]
    node_size: Option<u64>,
    /// Workers, each a thread [default: all cores].
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..CLIENTS_MAX as u64))]
    threads: Option<u64>,
    /// Transactions in flight for each worker.
    #[arg(long, value_name = "C", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(1..fabric::limits::LANES_MAX as u64))]
    pub(crate) coroutines: u64,
    /// Let other coroutines run after every round, also where it completes at once.
    #[arg(long)]
    yield_after_rounds: bool,
    /// How long to run [default: 10].
    #[arg(long, value_name = "S", value_parser = value::seconds, conflicts_with = "transactions")]
    seconds: Option<f64>,
    /// Run N transactions instead: committed, or aborted by the workload.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    transactions: Option<u64>,
    /// At most N transactions a second, of all workers; what was missed is not caught up with.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<u64>,
    /// Of all randomness.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    #[serde(serialize_with = "value::serialize_path")]
    report: Option<PathBuf>,
    /// Record every attempt, as JSON lines for `remora check`.
    #[arg(long, value_name = "FILE")]
    #[serde(serialize_with = "value::serialize_path")]
    history: Option<PathBuf>,
    /// Record also what is about to commit, before it does: for clients that may be killed, and
    /// `remora check --crashed`.
    #[arg(long, requires = "history")]
    history_durable: bool,
    /// So long may a client that runs give no sign of life until others take it for dead and
    /// recover it; one whose process has ended, they find at once [default: 2000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) sim: SimArgs,
}

impl RunArgs {
    /// With what nobody said filled in.
    pub(crate) fn settled(&self) -> Result<RunArgs, Failure> {
        if let (Some(fabric), Some(nodes)) = (&self.fabric, &self.connect)
            && !(self.is_rdma() && matches!(nodes, Nodes::Tcp(_)))
        {
            let why = format!("--connect {nodes} says it already: of memory nodes over TCP, verbs reaches the memory");
            return Err(Failure::new(format!("--fabric {fabric}"), why));
        }
        let connected = self.connect.as_ref().map(|nodes| nodes.count() as u16);
        let memory_nodes = connected.or(self.memory_nodes).unwrap_or(MEMORY_NODES);
        // Where there are running nodes, it is known when they have been asked.
        let replicas = self.replicas.or(if connected.is_some() { None } else { Some(REPLICAS) });
        if let Some(replicas) = replicas.filter(|replicas| u16::from(*replicas) > memory_nodes) {
            let option = if connected.is_some() { "--connect names" } else { "--memory-nodes is" };
            let why = format!("needs as many memory nodes, and {option} {memory_nodes}");
            return Err(Failure::new(format!("--replicas {replicas}"), why));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(CLIENTS_MAX);
        let simulated = self.is_simulated();
        let seconds = if self.transactions.is_some() || simulated { None } else { self.seconds.or(Some(SECONDS)) };
        if simulated && self.rate.is_some() {
            return Err(Failure::new("--rate", "is for real time: simulated clients do what they can"));
        }
        if simulated && self.lease_ms.is_some() {
            return Err(Failure::new("--lease-ms", "nobody dies in a simulated run: see remora-lab campaign"));
        }
        let sim = match self.sim.given() {
            _ if simulated => {
                if self.seconds.is_some() || self.transactions.is_some() {
                    let why = "a simulation's time is virtual: use --measure-ms";
                    return Err(Failure::new("--seconds and --transactions", why));
                }
                self.sim.settled(memory_nodes)?
            }
            Some(option) => return Err(Failure::new(option, "is for simulated clusters only: add --fabric sim")),
            None => self.sim.clone(),
        };
        let threads = match self.threads {
            Some(threads) => threads,
            None if simulated => sim.threads()?,
            None => cores as u64,
        };
        let all = threads * sim.machines();
        if all > CLIENTS_MAX as u64 {
            let why = format!("{all} workers in all are more than the {CLIENTS_MAX} clients of a cluster");
            return Err(Failure::new(format!("--threads {threads}"), why));
        }
        let (threads, memory_nodes) = (Some(threads), Some(memory_nodes));
        Ok(RunArgs { threads, seconds, memory_nodes, replicas, sim, ..self.clone() })
    }

    /// Whether the cluster is a simulated one.
    pub(crate) fn is_simulated(&self) -> bool {
        self.fabric.as_deref() == Some("sim")
    }

    /// Over an RDMA device?
    pub(crate) fn is_rdma(&self) -> bool {
        self.fabric.as_deref() == Some("verbs")
    }

    /// Workers of each client machine.
    pub(crate) fn threads_each(&self) -> u64 {
        self.threads.unwrap_or(1)
    }

    /// Workers of all machines.
    pub(crate) fn threads(&self) -> u64 {
        self.threads_each() * self.sim.machines()
    }

    pub(crate) fn protocol(&self) -> Protocol {
        value::protocol_without(&self.protocol, &self.ford_without)
    }

    /// A cluster with the leases that are asked for.
    pub(crate) fn leased(&self, cluster: Cluster) -> Result<Cluster, Failure> {
        let Some(lease) = self.lease_ms else { return Ok(cluster) };
        if cluster.lease().is_none() {
            return Err(Failure::new(
                "--lease-ms",
                "nobody keeps leases here: name a file, or etcd, with --configuration",
            ));
        }
        Ok(cluster.with_lease(Some(Duration::from_millis(lease))))
    }

    pub(crate) fn memory_nodes(&self) -> u16 {
        self.memory_nodes.unwrap_or(MEMORY_NODES)
    }

    pub(crate) fn replicas(&self) -> u8 {
        self.replicas.unwrap_or(REPLICAS)
    }

    /// What the size of a memory node depends on.
    pub(crate) fn setting(&self) -> Setting {
        Setting {
            memory_nodes: self.memory_nodes(),
            replicas: self.replicas(),
            workers: self.threads(),
            coroutines: self.coroutines,
        }
    }

    /// How many transactions are run, if that is what ends the run.
    pub(crate) fn transactions(&self) -> Option<u64> {
        self.transactions
    }

    /// How long the run is, in seconds; virtual ones of a simulated cluster.
    pub(crate) fn seconds_at_most(&self) -> f64 {
        if self.is_simulated() { self.sim.seconds() } else { self.seconds.unwrap_or(SECONDS) }
    }

    fn length(&self) -> Length {
        match self.transactions {
            Some(transactions) => Length::Transactions(transactions),
            None => Length::Time(Duration::from_secs_f64(self.seconds.unwrap_or(SECONDS))),
        }
    }
}

/// A benchmark whose size is known: from here on, its options are all settled.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Every option in force.
    pub(crate) run: RunArgs,
    node_bytes: u64,
    /// The option that has said how large memory nodes are.
    sized_by: String,
    /// Where the memory nodes are, in the order of their numbers, once they have been connected to.
    pub(crate) nodes: Option<Nodes>,
    pub(crate) history: Option<Arc<HistoryTo>>,
    report_to: ReportTo,
}

/// The history of a run: a file that is left as it is until every worker is ready, or until there
/// is something to tell before.
#[derive(Debug)]
pub(crate) struct HistoryTo {
    output: OutputFile,
    durable: bool,
    begun: OnceLock<Result<Arc<HistoryFile>, Failure>>,
}

impl HistoryTo {
    /// As it was until it is begun.
    pub(crate) fn open(path: &Path, durable: bool) -> Result<Arc<HistoryTo>, Failure> {
        let output = OutputFile::open("--history", path)?;
        Ok(Arc::new(HistoryTo { output, durable, begun: OnceLock::new() }))
    }

    /// Has a history, if there is one, be told of what this process puts back that others had
    /// written.
    pub(crate) fn told_of_rollbacks(history: Option<&Arc<HistoryTo>>, cluster: Cluster) -> Cluster {
        let Some(history) = history.cloned() else { return cluster };
        cluster.with_rollbacks_told(Arc::new(move |rollback| {
            if let Some(file) = history.file() {
                file.rollback(rollback);
            }
        }))
    }

    /// Empties the file, and begins the history.
    pub(crate) fn begin(&self) -> Result<&Arc<HistoryFile>, Failure> {
        let begin = |file| HistoryFile::in_file(file, self.durable).map_err(|error| self.output.failure(error));
        let begun = self.begun.get_or_init(|| self.output.begin().and_then(begin));
        begun.as_ref().map_err(|Failure(why)| Failure(why.clone()))
    }

    pub(crate) fn file(&self) -> Option<&Arc<HistoryFile>> {
        self.begin().ok()
    }

    /// Whether it could not be begun, or not be written on.
    pub(crate) fn is_cut(&self) -> bool {
        self.begun.get().is_some_and(|begun| begun.as_ref().map_or(true, |file| file.has_failed()))
    }

    /// Ends it, if it was begun, when all is recorded. What went wrong, if anything has.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        match self.begun.get() {
            Some(_) => self.begin()?.finish().map_err(|error| self.output.failure(error)),
            None => Ok(()),
        }
    }
}

impl Bench {
    /// A bench with memory nodes of `needed` bytes, unless `--node-size` says otherwise.
    /// `because_of` names the option of the workload that needs them.
    pub(crate) fn sized(run: RunArgs, needed: u64, because_of: String) -> Bench {
        let sized_by = run.node_size.map_or(because_of, |bytes| format!("--node-size {bytes}"));
        let node_bytes = run.node_size.unwrap_or(needed);
        let node_size = if run.connect.is_some() { None } else { Some(node_bytes) };
        let run = RunArgs { node_size, ..run };
        Bench { run, node_bytes, sized_by, nodes: None, history: None, report_to: ReportTo::People }
    }

    /// Bytes of a memory node of this process, if there is memory for all of them.
    pub(crate) fn node_bytes(&self) -> Result<usize, Failure> {
        let run = &self.run;
        let nodes = run.memory_nodes();
        let all = self.node_bytes.saturating_mul(nodes.into());
        let left = Headroom::now();
        if all > left.bytes {
            let all = value::show_bytes(all);
            return Err(Failure::new(&self.sized_by, format!("{nodes} memory nodes need {all} together, and {left}")));
        }
        Ok(usize::try_from(self.node_bytes).unwrap_or(usize::MAX))
    }

    /// A cluster of this process.
    pub(crate) fn embedded(&self) -> Result<Cluster, Failure> {
        let run = &self.run;
        let options = ClusterOptions {
            memory_nodes: run.memory_nodes(),
            replicas: run.replicas(),
            node_bytes: self.node_bytes()?,
            protocol: run.protocol(),
            spares: self.run.spares,
        };
        let cluster = match run.rdma.open(run.is_rdma())? {
            None => Cluster::embedded(options),
            rdma => Cluster::embedded_servers(rdma, options),
        };
        run.leased(cluster.map_err(|error| self.blame(&error))?)
    }

    /// Opens all files that the run will write, before anything takes time.
    pub(crate) fn open_files(&mut self) -> Result<(), Failure> {
        let run = &self.run;
        self.report_to = ReportTo::open(run.report.as_deref())?;
        self.history = run.history.as_deref().map(|path| HistoryTo::open(path, run.history_durable)).transpose()?;
        Ok(())
    }

    /// Which option to change, when memory cannot be laid out.
    pub(crate) fn blame(&self, error: &OpenError) -> Failure {
        let option = match error {
            index::IndexError::Memory(
                MemoryError::OutOfMemory { .. } | MemoryError::TooSmall { .. } | MemoryError::Region(_),
            ) => &self.sized_by,
            index::IndexError::Memory(MemoryError::TooManyReplicas { .. }) => "--replicas",
            index::IndexError::Memory(MemoryError::Limit { what: "connected clients", .. }) => "--threads",
            index::IndexError::Memory(MemoryError::Fabric(error)) => return self.lost(error),
            _ => return Failure(error.to_string()),
        };
        Failure::new(option, error)
    }

    /// Runs a workload, and reports.
    pub(crate) fn run<W: Workload>(&self, opened: &Opened<W>, config: &impl Serialize) -> Result<Verdict, Failure> {
        let (run, cluster) = (&self.run, &opened.cluster);
        let config = serde_json::to_value(config).map_err(|error| Failure::new("the report", error))?;
        let observer = || Some(Box::new(self.history.as_ref()?.file()?.recorder()) as Box<dyn Observer>);
        let options = RunOptions {
            threads: run.threads() as usize,
            coroutines: run.coroutines as usize,
            length: run.length(),
            seed: run.seed,
            yield_after_rounds: run.yield_after_rounds,
            rate: run.rate.map(|rate| rate as f64),
        };
        let ran = match &opened.sim {
            Some(sim) => {
                let bar = ProgressBar::new_spinner().with_message("simulating");
                bar.enable_steady_tick(Duration::from_millis(100));
                let done = self.simulate(opened, sim, &observer);
                bar.finish_and_clear();
                done.map(|(measured, simulated)| (measured, Some(simulated)))
            }
            None => {
                let bar = progress_bar(options.length);
                let measured = self.measure(opened, &options, &observer, |progress| {
                    advance(&bar, &options, progress);
                    self.goes_on()
                });
                bar.finish_and_clear();
                measured.map(|measured| (measured, None))
            }
        };
        let recorded = self.history.as_ref().map_or(Ok(()), |history| history.finish());
        let (measured, simulated) = match ran {
            Ok(ran) => ran,
            Err(failure) => return output::all([Err(failure), recorded]).map(|()| Verdict::Unsound),
        };
        let history_failure = recorded.as_ref().err().map(|Failure(why)| why.clone());
        let report = Report { simulated, history_failure, ..measured.report::<W>(cluster, self.fabric(), config) };
        let hardware = match &run.sim.profile {
            Some(profile) => format!("{}, {} client machines, ", profile.display(), run.sim.machines()),
            None => String::new(),
        };
        let setting = format!(
            "{hardware}{} memory nodes{}, {} copies, {} threads x {} coroutines, seed {}",
            run.memory_nodes(),
            self.nodes.as_ref().map(|nodes| format!(" ({nodes})")).unwrap_or_default(),
            run.replicas(),
            run.threads(),
            run.coroutines,
            run.seed
        );
        let written = self.report_to.write(&report, || output::table(&report, &setting));
        let told = output::all([written, recorded]);
        let broken: Vec<&str> = report
            .invariants
            .iter()
            .filter(|invariant| invariant.holds == Some(false))
            .map(|invariant| invariant.name)
            .collect();
        if broken.is_empty() {
            return Verdict::Sound.told(told);
        }
        output::complain(&format!("an invariant does not hold: {}", broken.join(", ")));
        Verdict::Unsound.told(told)
    }

    /// Whether the run goes on: not without the history that it was to record.
    fn goes_on(&self) -> ControlFlow<()> {
        if !self.history.as_ref().is_some_and(|history| history.is_cut()) {
            return ControlFlow::Continue(());
        }
        output::note("the history cannot be written, so the run ends now");
        ControlFlow::Break(())
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
