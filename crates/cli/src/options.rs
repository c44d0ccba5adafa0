//! The options that all benchmarks of transactions have in common, and the simulator's own.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use remora::Cluster;
use remora::connect::{Nodes, Place};
use remora::floors::fabric;
use remora::floors::node::limits::{ARCHIVE_BYTES_MAX, CLIENTS_MAX, REPLICAS_MAX};
use remora::protocol::Protocol;
use remora_command::inputs::Inputs;
use remora_fabric::sim::Profile;
use remora_workload::Setting;
use remora_workload::driver::Length;
use serde::Serialize;

use crate::etcd::EtcdArgs;
use crate::rdma::{Assumption, RdmaArgs};
use crate::{Failure, value};

const SECONDS: f64 = 10.0;

// Headings of `--help`. The options of one workload come before them.
const CLUSTER: &str = "Cluster";
const TRANSACTIONS: &str = "Transactions";
const LOAD: &str = "Load";
const RESULTS: &str = "Results";
const SIMULATED: &str = "Simulated cluster (--fabric sim)";

const MEMORY_NODES: u16 = 3;
const REPLICAS: u8 = 3;

/// Options of every workload that runs transactions.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct RunArgs {
    /// Backend: shm, everything in this process; tcp or verbs (an RDMA device), to running memory
    /// nodes with --connect; sim, a simulated cluster [default: shm, or what --connect names].
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = value::fabric)]
    #[serde(skip)] // a field of the report already, as is the protocol
    pub(crate) fabric: Option<String>,
    /// Use running memory nodes: host:port of each, or shm: and the path of each. The first client
    /// loads the tables.
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR,...", value_parser = value::nodes())]
    #[serde(serialize_with = "value::serialize_nodes")]
    pub(crate) connect: Option<Nodes>,
    /// The key that these memory nodes ask for.
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", requires = "connect")]
    #[serde(serialize_with = "value::serialize_path")]
    pub(crate) key_file: Option<PathBuf>,
    /// Configuration that says which clients are alive, the same for all client processes of a
    /// cluster: a file, if they are on one host, or etcd://host:port,host:port,.../PATH [default:
    /// beside the first file, if memory nodes are files]
    #[arg(long, help_heading = CLUSTER, value_name = "FILE|etcd://...", requires = "connect", value_parser = value::place())]
    #[serde(serialize_with = "value::serialize_place")]
    pub(crate) configuration: Option<Place>,
    /// Use TLS, and trust these certificates: PEM, of an authority or of the memory nodes.
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", requires = "connect")]
    #[serde(serialize_with = "value::serialize_path")]
    pub(crate) tls_ca: Option<PathBuf>,
    #[arg(
        long,
        help_heading = TRANSACTIONS,
        value_name = "NAME",
        default_value = Protocol::default().name(),
        value_parser = value::protocol,
        help = value::protocol_help() + "; or rc, read committed, or unsynchronized, without transactions, as bounds"
    )]
    #[serde(skip)]
    protocol: String,
    /// FORD's mechanisms to leave out, separated by commas: hitchhike, address-cache, coalesce,
    /// background-release, backup-reads, selective-flush; or corrections, to measure the published
    /// verbs, which do not keep transactions apart.
    #[arg(long, help_heading = TRANSACTIONS, value_name = "LIST", value_delimiter = ',', value_parser = value::ford_mechanism)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ford_without: Vec<String>,
    /// Memory nodes [default: 3].
    #[arg(long, help_heading = CLUSTER, value_name = "N", conflicts_with = "connect",
          value_parser = clap::value_parser!(u16).range(1..=fabric::limits::NODES_MAX as i64))]
    memory_nodes: Option<u16>,
    /// Spare memory nodes, the last ones: they get no shards of new tables, and take copies when
    /// another node dies.
    #[arg(long, help_heading = CLUSTER, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..64))]
    pub(crate) spares: u16,
    /// Copies of each record [default: 3, or 1 if the protocol keeps no more].
    #[arg(long, help_heading = CLUSTER, value_name = "R",
          value_parser = clap::value_parser!(u8).range(1..=REPLICAS_MAX as i64))]
    pub(crate) replicas: Option<u8>,
    /// Bytes of each memory node, such as 512MiB [default: what the workload needs].
    #[arg(long, help_heading = CLUSTER, value_name = "SIZE", value_parser = value::bytes, conflicts_with = "connect")]
    pub(crate) node_size: Option<u64>,
    /// Lease of a client: after this time without a renewal, other clients take it for dead and
    /// recover it. They see at once if a process has ended [default: 2000].
    #[arg(long, help_heading = CLUSTER, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    /// Workers, each a thread [default: all cores].
    #[arg(long, help_heading = LOAD, value_name = "T", value_parser = clap::value_parser!(u64).range(1..CLIENTS_MAX as u64))]
    threads: Option<u64>,
    /// Transactions in flight for each worker.
    #[arg(long, help_heading = LOAD, value_name = "C", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(1..fabric::limits::LANES_MAX as u64))]
    pub(crate) coroutines: u64,
    /// Bytes that each worker takes at each memory node to keep what it overwrites, so that open
    /// snapshots can read it, such as 8MiB. Only protocols with snapshots do so [default: 256 KiB].
    #[arg(long, help_heading = LOAD, value_name = "SIZE", value_parser = archive)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) archive: Option<u64>,
    /// Let other coroutines run after every round, even if it completes at once.
    #[arg(long, help_heading = LOAD)]
    pub(crate) yield_after_rounds: bool,
    /// How long to run [default: 10].
    #[arg(long, help_heading = LOAD, value_name = "S", value_parser = value::seconds, conflicts_with = "transactions")]
    seconds: Option<f64>,
    /// Run N transactions instead: committed, or aborted by the workload.
    #[arg(long, help_heading = LOAD, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    transactions: Option<u64>,
    /// At most N transactions a second, of all workers together; missed ones are not made up for.
    #[arg(long, help_heading = LOAD, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<u64>,
    /// Seed of all random choices.
    #[arg(long, help_heading = LOAD, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run no transactions, and check the invariants of the memory nodes' tables.
    #[arg(long, help_heading = RESULTS, requires = "connect", conflicts_with_all = ["seconds", "transactions", "history"])]
    pub(crate) check: bool,
    /// Write the report as JSON; - for standard output.
    #[arg(long, help_heading = RESULTS, value_name = "FILE|-")]
    #[serde(serialize_with = "value::serialize_path")]
    pub(crate) report: Option<PathBuf>,
    /// Record every attempt, as JSON lines for `remora check`.
    #[arg(long, help_heading = RESULTS, value_name = "FILE")]
    #[serde(serialize_with = "value::serialize_path")]
    pub(crate) history: Option<PathBuf>,
    /// Record each commit also before it begins, for clients that may be killed, and `remora check
    /// --crashed`.
    #[arg(long, help_heading = RESULTS, requires = "history")]
    pub(crate) history_durable: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) rdma: RdmaArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) sim: SimArgs,
}

impl RunArgs {
    /// Returns the options with defaults in place of the ones that were not given.
    pub(crate) fn settled(&self) -> Result<RunArgs, Failure> {
        if let Some(fabric) = self.fabric.as_deref() {
            let refused = |why| Err(Failure::new(format!("--fabric {fabric}"), why));
            match &self.connect {
                None if fabric == "tcp" => {
                    let why = "its memory nodes are processes of their own: start them with remora memnode, and name them \
                               with --connect";
                    return refused(why.to_owned());
                }
                Some(nodes) if fabric != nodes.fabric() && !(self.is_rdma() && matches!(nodes, Nodes::Tcp(_))) => {
                    return refused(format!(
                        "--connect {nodes} names memory nodes that are reached by {}",
                        nodes.fabric()
                    ));
                }
                _ => {}
            }
        }
        let connected = self.connect.as_ref().map(|nodes| nodes.count() as u16);
        let memory_nodes = connected.or(self.memory_nodes).unwrap_or(MEMORY_NODES);
        // With running nodes, this is known only after they have been asked.
        let replicas = self.replicas.or(if connected.is_some() { None } else { Some(self.replicas()) });
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

    /// Returns the options with defaults, for a run that has one more thread. The default number of
    /// workers leaves a core to it.
    pub(crate) fn with_a_core_left(&self) -> Result<RunArgs, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(CLIENTS_MAX) as u64;
        let usual = if self.is_simulated() { None } else { Some(cores.saturating_sub(1).max(1)) };
        RunArgs { threads: self.threads.or(usual), ..self.clone() }.settled()
    }

    /// Returns the files that these options name, which the command reads.
    pub(crate) fn inputs(&self) -> Inputs {
        let (key_file, tls_ca) = (self.key_file.as_deref(), self.tls_ca.as_deref());
        let inputs = self.etcd.inputs_with(self.connect.as_ref(), self.configuration.as_ref(), key_file, tls_ca);
        inputs.with_profile("--profile", self.sim.profile.as_deref())
    }

    /// Returns whether the cluster is a simulated one.
    pub(crate) fn is_simulated(&self) -> bool {
        self.fabric.as_deref() == Some("sim")
    }

    /// Returns whether the memory nodes are reached by an RDMA device.
    pub(crate) fn is_rdma(&self) -> bool {
        self.fabric.as_deref() == Some("verbs")
    }

    /// Returns the number of workers of each client machine.
    pub(crate) fn threads_each(&self) -> u64 {
        self.threads.unwrap_or(1)
    }

    /// Returns the number of workers of all machines.
    pub(crate) fn threads(&self) -> u64 {
        self.threads_each() * self.sim.machines()
    }

    pub(crate) fn protocol(&self) -> Protocol {
        value::protocol_without(&self.protocol, &self.ford_without)
    }

    /// Returns an error if `--snapshots` is asked for, and the protocol has none.
    pub(crate) fn has_snapshots(&self, wanted: bool) -> Result<(), Failure> {
        if wanted { has_snapshots(self.protocol()) } else { Ok(()) }
    }

    /// Returns the cluster with the leases that the options ask for.
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
        self.replicas.unwrap_or_else(|| usual_replicas(self.protocol()))
    }

    /// Returns the settings on which the size of a memory node depends.
    pub(crate) fn setting(&self) -> Setting {
        Setting {
            memory_nodes: self.memory_nodes(),
            replicas: self.replicas(),
            workers: self.threads(),
            coroutines: self.coroutines,
            archive: self.archive,
        }
    }

    /// Returns the number of transactions of the run, if that number ends the run.
    pub(crate) fn transactions(&self) -> Option<u64> {
        self.transactions
    }

    /// Returns the length of the run, in seconds. On a simulated cluster these are virtual seconds.
    pub(crate) fn seconds_at_most(&self) -> f64 {
        if self.is_simulated() { self.sim.seconds() } else { self.seconds.unwrap_or(SECONDS) }
    }

    pub(crate) fn length(&self) -> Length {
        match self.transactions {
            Some(transactions) => Length::Transactions(transactions),
            None => Length::Time(Duration::from_secs_f64(self.seconds.unwrap_or(SECONDS))),
        }
    }
}

/// The simulator's own options.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct SimArgs {
    /// The hardware: a profile that comes with remora, or a TOML file [default: connectx4].
    #[arg(long, help_heading = SIMULATED, value_name = "NAME|FILE")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    pub(crate) profile: Option<OsString>,
    /// Client machines, each with --threads workers [default: 1; if symmetric, the memory nodes].
    #[arg(long, help_heading = SIMULATED, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compute_nodes: Option<u64>,
    /// Whether memory nodes run workers too.
    #[arg(long, help_heading = SIMULATED, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deployment: Option<Deployment>,
    /// Memory of the memory nodes, as the profile names it: dram, optane ... [default: dram].
    #[arg(long, help_heading = SIMULATED, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// Let NICs write to memory and not to the processors' caches (DDIO off).
    #[arg(long, help_heading = SIMULATED)]
    pub(crate) no_ddio: bool,
    /// What to take for granted of the hardware although its makers do not promise it, as the texts
    /// do: whole-lines, atomic-writes, or both, separated by commas.
    #[arg(long, help_heading = SIMULATED, value_name = "LIST", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) assume: Vec<Assumption>,
    /// Virtual time before anything is counted [default: 1].
    #[arg(long, help_heading = SIMULATED, value_name = "MS", value_parser = value::seconds)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warmup_ms: Option<f64>,
    /// Virtual time that is counted [default: 5].
    #[arg(long, help_heading = SIMULATED, value_name = "MS", value_parser = value::seconds)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) measure_ms: Option<f64>,
}

/// The machines on which workers and memory nodes run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Deployment {
    /// Every machine is a memory node and runs workers.
    Symmetric,
    /// Memory nodes are machines of their own.
    Disaggregated,
}

/// The profile of a simulation that names none.
const PROFILE: &str = "connectx4";
const WARMUP_MS: f64 = 1.0;
const MEASURE_MS: f64 = 5.0;

impl SimArgs {
    /// Returns one of these options that was given, for an error if the cluster is not simulated.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let SimArgs { profile, compute_nodes, deployment, memory, no_ddio, assume, warmup_ms, measure_ms } = self;
        let given = [
            ("--profile", profile.is_some()),
            ("--compute-nodes", compute_nodes.is_some()),
            ("--deployment", deployment.is_some()),
            ("--memory", memory.is_some()),
            ("--no-ddio", *no_ddio),
            ("--assume", !assume.is_empty()),
            ("--warmup-ms", warmup_ms.is_some()),
            ("--measure-ms", measure_ms.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// Returns the options with defaults in place of the ones that were not given.
    pub(crate) fn settled(&self, memory_nodes: u16) -> Result<SimArgs, Failure> {
        let deployment = self.deployment.unwrap_or(Deployment::Disaggregated);
        let compute_nodes = match deployment {
            Deployment::Disaggregated => self.compute_nodes.unwrap_or(1),
            Deployment::Symmetric => self.compute_nodes.unwrap_or(memory_nodes.into()),
        };
        if deployment == Deployment::Symmetric && compute_nodes != u64::from(memory_nodes) {
            let why = format!("with --deployment symmetric the client machines are the {memory_nodes} memory nodes");
            return Err(Failure::new(format!("--compute-nodes {compute_nodes}"), why));
        }
        let name = self.profile.clone().unwrap_or_else(|| PROFILE.into());
        let memory = self.memory.clone().unwrap_or_else(|| "dram".to_owned());
        let profile = remora_command::profile(&name)?;
        if !profile.media.contains_key(&memory) {
            let known: Vec<&str> = profile.media.keys().map(String::as_str).collect();
            let why = format!("the profile {} has {}", name.display(), known.join(", "));
            return Err(Failure::new(format!("--memory {memory}"), why));
        }
        Ok(SimArgs {
            profile: Some(name),
            compute_nodes: Some(compute_nodes),
            deployment: Some(deployment),
            memory: Some(memory),
            no_ddio: self.no_ddio,
            assume: self.assume.clone(),
            warmup_ms: self.warmup_ms.or(Some(WARMUP_MS)),
            measure_ms: self.measure_ms.or(Some(MEASURE_MS)),
        })
    }

    pub(crate) fn hardware(&self) -> Result<Profile, Failure> {
        remora_command::profile(self.profile.as_deref().unwrap_or(OsStr::new(PROFILE)))
    }

    /// Returns the number of worker threads of a client machine, as the profile has it.
    pub(crate) fn threads(&self) -> Result<u64, Failure> {
        Ok(self.hardware()?.machine.threads.into())
    }

    /// Returns the virtual seconds of a run.
    pub(crate) fn seconds(&self) -> f64 {
        (self.warmup_ms.unwrap_or(WARMUP_MS) + self.measure_ms.unwrap_or(MEASURE_MS)) / 1e3
    }

    pub(crate) fn machines(&self) -> u64 {
        self.compute_nodes.unwrap_or(1)
    }
}

/// Returns the bytes of an archive, if a client can have one of that size.
fn archive(text: &str) -> Result<u64, String> {
    let bytes = value::bytes(text)?;
    if bytes > ARCHIVE_BYTES_MAX {
        return Err(format!("an archive has at most {}", value::show_bytes(ARCHIVE_BYTES_MAX)));
    }
    Ok(bytes)
}

/// Returns the number of copies of each record, if `--replicas` does not say it.
pub(crate) fn usual_replicas(protocol: Protocol) -> u8 {
    REPLICAS.min(protocol.discipline().copies_max() as u8)
}

/// Returns an error, about `--snapshots`, if a protocol has none.
pub(crate) fn has_snapshots(protocol: Protocol) -> Result<(), Failure> {
    if protocol.has_snapshots() {
        return Ok(());
    }
    let with: Vec<&str> = Protocol::ALL.into_iter().filter(|one| one.has_snapshots()).map(Protocol::name).collect();
    let why = format!("--protocol {protocol} has no snapshots: use --protocol {}", with.join(" or "));
    Err(Failure::new("--snapshots", why))
}
