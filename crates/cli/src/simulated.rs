//! Benchmarks on simulated clusters: `remora bench WORKLOAD --fabric sim`.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{Args, ValueEnum};
use remora::{Cluster, ClusterOptions, Observer, SimulatedError};
use remora_fabric::sim::{self, Profile, Sim, SimOptions};
use remora_workload::simulated::{Simulation, simulate};
use remora_workload::{SimulatedIn, Workload};
use serde::Serialize;

use crate::bench::Bench;
use crate::connected::Opened;
use crate::{Failure, value};

/// The simulator's own options.
#[derive(Clone, Debug, Args, Serialize)]
#[command(next_help_heading = "With --fabric sim")]
pub(crate) struct SimArgs {
    /// The hardware: a profile that comes with remora, or a TOML file [default: connectx4].
    #[arg(long, value_name = "NAME|FILE")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    pub(crate) profile: Option<OsString>,
    /// Client machines, each with --threads workers [default: 1; if symmetric, the memory nodes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compute_nodes: Option<u64>,
    /// Whether memory nodes run workers too.
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deployment: Option<Deployment>,
    /// The memory nodes' memory, as the profile has it: dram, optane ... [default: dram].
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// NICs write to memory and not to the processors' caches (DDIO off).
    #[arg(long)]
    pub(crate) no_ddio: bool,
    /// Virtual time before anything is counted [default: 1].
    #[arg(long, value_name = "MS", value_parser = value::seconds)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warmup_ms: Option<f64>,
    /// Virtual time that is counted [default: 5].
    #[arg(long, value_name = "MS", value_parser = value::seconds)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) measure_ms: Option<f64>,
}

/// Who runs where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Deployment {
    /// Every machine is a memory node and runs workers.
    Symmetric,
    /// Memory nodes are machines of their own.
    Disaggregated,
}

/// The profile of a simulation that names none.
const DEFAULT: &str = "connectx4";
const WARMUP_MS: f64 = 1.0;
const MEASURE_MS: f64 = 5.0;

impl SimArgs {
    /// An option that means nothing elsewhere.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let SimArgs { profile, compute_nodes, deployment, memory, no_ddio, warmup_ms, measure_ms } = self;
        let given = [
            ("--profile", profile.is_some()),
            ("--compute-nodes", compute_nodes.is_some()),
            ("--deployment", deployment.is_some()),
            ("--memory", memory.is_some()),
            ("--no-ddio", *no_ddio),
            ("--warmup-ms", warmup_ms.is_some()),
            ("--measure-ms", measure_ms.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// With what nobody said filled in.
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
        let name = self.profile.clone().unwrap_or_else(|| DEFAULT.into());
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
            warmup_ms: self.warmup_ms.or(Some(WARMUP_MS)),
            measure_ms: self.measure_ms.or(Some(MEASURE_MS)),
        })
    }

    fn hardware(&self) -> Result<Profile, Failure> {
        remora_command::profile(self.profile.as_deref().unwrap_or(OsStr::new(DEFAULT)))
    }

    /// Worker threads of a client machine, as the profile has them.
    pub(crate) fn threads(&self) -> Result<u64, Failure> {
        Ok(self.hardware()?.machine.threads.into())
    }

    /// Virtual seconds of a run.
    pub(crate) fn seconds(&self) -> f64 {
        (self.warmup_ms.unwrap_or(WARMUP_MS) + self.measure_ms.unwrap_or(MEASURE_MS)) / 1e3
    }

    pub(crate) fn machines(&self) -> u64 {
        self.compute_nodes.unwrap_or(1)
    }
}

impl Bench {
    /// A simulated cluster: nothing takes time on it yet.
    pub(crate) fn simulated(&self) -> Result<(Cluster, Sim), Failure> {
        let (run, args) = (&self.run, &self.run.sim);
        let options = SimOptions {
            medium: args.memory.clone().unwrap_or_else(|| "dram".to_owned()),
            deployment: match args.deployment {
                Some(Deployment::Symmetric) => sim::Deployment::Symmetric,
                _ => sim::Deployment::Disaggregated,
            },
            ddio: !args.no_ddio,
            ..SimOptions::new(args.hardware()?, run.seed)
        };
        let cluster = ClusterOptions {
            memory_nodes: run.memory_nodes(),
            replicas: run.replicas(),
            node_bytes: self.node_bytes()?,
            protocol: run.protocol(),
            ..ClusterOptions::default()
        };
        Cluster::simulated(cluster, &options).map_err(|error| match error {
            SimulatedError::Sim(error) => Failure::new("--fabric sim", error),
            SimulatedError::Open(error) => self.blame(&error),
        })
    }

    /// Runs it in virtual time.
    pub(crate) fn simulate<W: Workload>(
        &self,
        opened: &Opened<W>,
        sim: &Sim,
        observers: &dyn Fn() -> Option<Box<dyn Observer>>,
    ) -> Result<(remora_workload::driver::Measured, SimulatedIn), Failure> {
        let (run, args) = (&self.run, &self.run.sim);
        let ms = |ms: Option<f64>| Duration::from_secs_f64(ms.unwrap_or(1.0) / 1e3).as_nanos() as u64;
        let options = Simulation {
            machines: args.machines() as usize,
            threads: run.threads_each() as usize,
            coroutines: run.coroutines as usize,
            warmup: ms(args.warmup_ms),
            measure: ms(args.measure_ms),
            transaction: args.hardware()?.cpu.transaction_ns as u64,
            seed: run.seed,
        };
        let done = simulate(&opened.cluster, sim, &opened.workload, &options, observers)
            .map_err(|error| self.failure(error))?;
        let spent = SimulatedIn::of(&done, opened.loaded_in);
        Ok((done.measured, spent))
    }
}
