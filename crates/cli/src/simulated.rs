//! Benchmarks on simulated clusters: `remora bench WORKLOAD --fabric sim`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use remora::Cluster;
use remora::observe::Observer;
use remora::simulate::SimulatedError;
use remora_fabric::sim::{self, Sim, SimOptions};
use remora_workload::simulated::{Simulation, simulate};
use remora_workload::{SimulatedIn, Workload};

use crate::Failure;
use crate::bench::{Bench, Opened};
use crate::options::Deployment;
use crate::rdma::assumed;

impl Bench {
    /// Makes a simulated cluster, on which nothing takes time yet.
    pub(crate) fn simulated(&self) -> Result<(Cluster, Sim), Failure> {
        let (run, args) = (&self.run, &self.run.sim);
        let options = SimOptions {
            medium: args.memory.clone().unwrap_or_else(|| "dram".to_owned()),
            deployment: match args.deployment {
                Some(Deployment::Symmetric) => sim::Deployment::Symmetric,
                _ => sim::Deployment::Disaggregated,
            },
            ddio: !args.no_ddio,
            assume: assumed(&args.assume),
            ..SimOptions::new(args.hardware()?, run.seed)
        };
        let cluster = Cluster::embedded()
            .nodes(run.memory_nodes())
            .replicas(run.replicas())
            .node_bytes(self.node_bytes()?)
            .protocol(run.protocol());
        cluster.open_simulated(&options).map_err(|error| match error {
            SimulatedError::Sim(error) => Failure::new("--fabric sim", error),
            SimulatedError::Open(error) => self.blame(&error),
        })
    }

    /// Runs a workload in virtual time, and shows its report.
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
        let is_over = || opened.stop.load(Ordering::Relaxed);
        let done = simulate(&opened.cluster, sim, &opened.workload, &options, observers, &is_over)
            .map_err(|error| self.failure(error))?;
        let spent = SimulatedIn::of(&done, opened.loaded_in);
        Ok((done.measured, spent))
    }
}
