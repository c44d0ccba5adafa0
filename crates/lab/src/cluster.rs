//! A simulated cluster with a workload's tables, and a measurement on it.

use std::time::{Duration, Instant};

use remora::observe::Observer;
use remora::protocol::{Protocol, Validation};
use remora::simulate::SimulatedError;
use remora::{Cluster, OpenError};
use remora_fabric::Assumed;
use remora_fabric::sim::{Deployment, Profile, Sim, SimOptions};
use remora_workload::simulated::{Simulated, Simulation, simulate};
use remora_workload::{RunError, Workload};

/// The reason why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The cluster could not be simulated.
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    /// The tables could not be laid out.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Returns the options of a simulation of this hardware that takes for granted what the texts'
/// systems take for granted of their cards: whole lines, and WRITEs that are atomic against CASes.
pub(crate) fn as_the_texts(profile: Profile, seed: u64) -> SimOptions {
    SimOptions { assume: Assumed::AS_THE_TEXTS, ..SimOptions::new(profile, seed) }
}

/// A simulated cluster on which a workload is measured.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Hardware, deployment and seed.
    pub sim: SimOptions,
    /// The number of memory nodes.
    pub memory_nodes: u16,
    /// The bytes of each memory node.
    pub node_bytes: usize,
    /// The number of copies of each record.
    pub replicas: u8,
    /// The protocol of the transactions.
    pub protocol: Protocol,
    /// The number of client machines. With [`Deployment::Symmetric`] they are the memory nodes.
    pub machines: usize,
    /// The number of workers of each machine.
    pub threads: usize,
    /// The number of transactions that each worker has in flight.
    pub coroutines: usize,
    /// Virtual time before anything is counted.
    pub warmup: Duration,
    /// Virtual time that is counted.
    pub measure: Duration,
}

impl Bench {
    /// Returns a symmetric cluster of `nodes` machines, each with all threads of the profile.
    #[must_use]
    pub fn symmetric(sim: SimOptions, nodes: u16) -> Bench {
        let threads = sim.profile.machine.threads as usize;
        Bench {
            sim: SimOptions { deployment: Deployment::Symmetric, ..sim },
            memory_nodes: nodes,
            node_bytes: 256 << 20,
            replicas: 3,
            protocol: Protocol::default(),
            machines: nodes.into(),
            threads,
            coroutines: 8,
            warmup: Duration::from_millis(1),
            measure: Duration::from_millis(5),
        }
    }

    /// Builds the cluster and loads a workload's tables, in no virtual time. Also returns the real
    /// time that this took.
    pub fn load<W>(
        &self,
        load: impl FnOnce(&Cluster) -> Result<W, OpenError>,
    ) -> Result<(Sim, Cluster, W, Duration), LabError> {
        let began = Instant::now();
        // The cluster's version cache is on a machine of its own, which holds nothing else.
        let spares = u16::from(self.protocol.validation() == Validation::Global);
        let options = Cluster::embedded()
            .nodes(self.memory_nodes + spares)
            .spares(spares)
            .replicas(self.replicas)
            .node_bytes(self.node_bytes)
            .protocol(self.protocol);
        let (cluster, sim) = options.open_simulated(&self.sim)?;
        let workload = load(&cluster)?;
        Ok((sim, cluster, workload, began.elapsed()))
    }

    /// Returns the options of the simulated run: its workers, and its duration.
    #[must_use]
    pub fn simulation(&self) -> Simulation {
        Simulation {
            machines: self.machines,
            threads: self.threads,
            coroutines: self.coroutines,
            warmup: self.warmup.as_nanos() as u64,
            measure: self.measure.as_nanos() as u64,
            transaction: self.sim.profile.cpu.transaction_ns as u64,
            seed: self.sim.seed,
        }
    }

    /// Runs a workload that has been loaded.
    pub fn run<W: Workload>(
        &self,
        sim: &Sim,
        cluster: &Cluster,
        workload: &W,
        observers: &dyn Fn() -> Option<Box<dyn Observer>>,
    ) -> Result<Simulated, LabError> {
        Ok(simulate(cluster, sim, workload, &self.simulation(), observers, &|| false)?)
    }
}
