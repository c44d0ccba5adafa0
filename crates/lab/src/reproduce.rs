//! Reproduced experiments: figures that the texts have published about transactions, beside the
//! results of the same experiments on simulated clusters.
//!
//! No number of a profile was fitted to the figures here, except to the ones of [`FITTED`], which
//! count for nothing. A test compares the sources ([`hardware`](crate::hardware)). A result that
//! differs from the published one is shown and explained.

pub mod drtm_h;
pub mod dst;
pub mod ford;
pub mod kv;
pub mod latches;
pub mod multi_object;
mod numbers;
pub mod rtx;
pub mod trees;
pub mod xstore;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use remora::floors::index::IndexError;
use remora::floors::node::MemoryError;
use remora::{Cluster, OpenError};
use remora_fabric::sim::Ended;
use remora_workload::{Invariant, LatencyUs, PerTransaction, PhasesUs, TypeReport, Workload};
use serde::Serialize;

use crate::cluster::as_the_texts;
use crate::hardware::CalibrationError;
use crate::{Bench, LabError};
use remora_command::plot::{self, Labels, Series};

/// The reason why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A cluster could not be simulated, or a transaction failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Bare verbs could not be simulated.
    #[error(transparent)]
    Verbs(#[from] CalibrationError),
    /// Records of this size are not possible.
    #[error(transparent)]
    Record(MemoryError),
    /// A hash table could not be loaded.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A hash table of another system has no room for its keys.
    #[error("{0} has no room")]
    Full(&'static str),
    /// The simulator has no profile of this name.
    #[error("there is no profile {0}")]
    NoProfile(&'static str),
    /// Workers waited for something that never came.
    #[error("{what} came to no end: {how:?}")]
    Unfinished {
        /// The name of the experiment.
        what: String,
        /// The way in which the simulation ended.
        how: Ended,
    },
}

/// Figures to which numbers of profiles were fitted, each as the reproduction's name and the row's
/// name. Such a row is shown, and is no evidence.
pub const FITTED: [(&str, &str); 1] = [("drtm-h", "DrTM+H, peak")];

/// One published figure, beside the figure of the simulation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The name of the figure.
    pub name: String,
    /// The unit of both figures. `x` is a ratio.
    pub unit: &'static str,
    /// The figure as printed. `None` where the text has only words, or a figure that is not
    /// transcribed.
    pub published: Option<f64>,
    /// The figure as printed, if a number of the profile was fitted to it ([`FITTED`]). Then
    /// `published` is `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<f64>,
    /// The figure of the simulation.
    pub ours: f64,
    /// The difference of the simulated figure from the published one, as a share of the published
    /// one.
    pub error: Option<f64>,
    /// The place of publication; empty if the figure was not published.
    pub source: &'static str,
    /// Whether the system that the text calls better is better here as well, by however little.
    /// `None` where the text compares nothing.
    pub direction_holds: Option<bool>,
    /// Whether the figure is as the text says. `None` where the text says nothing.
    ///
    /// - A gain of one system over another (`x`) has the text's direction, and at least half of the
    ///   published gain.
    /// - Any other figure is within 25 % of the published one, and in the text's direction if it
    ///   has one.
    /// - Systems that the text calls equal, and figures that are exact, are within the bounds of
    ///   [`direction_holds`](Row::direction_holds).
    /// - Where the text has a direction without a figure, the direction holds.
    pub as_said: Option<bool>,
    /// The reason why the figure is off, or what is different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// A figure that is off by more than this share needs an explanation.
pub const EXPLAINED_FROM: f64 = 0.25;
/// The share of a published gain that a gain must have to be as the text says.
const HALF: f64 = 0.5;

impl Row {
    /// Makes a row of a figure that was not published.
    fn ours(name: impl Into<String>, unit: &'static str, ours: f64) -> Row {
        let name = name.into();
        Row {
            name,
            unit,
            published: None,
            fit: None,
            ours,
            error: None,
            source: "",
            direction_holds: None,
            as_said: None,
            note: None,
        }
    }

    /// Adds the published figure.
    fn published(self, published: f64, source: &'static str) -> Row {
        Row { published: Some(published), error: Some(self.ours / published - 1.0), source, ..self }.judged()
    }

    /// Adds the published figure, to which a number of the profile was fitted. So the row proves
    /// nothing, and is not judged.
    fn fitted(self, published: f64, source: &'static str) -> Row {
        debug_assert!(FITTED.iter().any(|(_, name)| *name == self.name), "FITTED has all such rows");
        Row { fit: Some(published), source, ..self }
    }

    /// Adds the place where the text says something in words only.
    fn said(self, source: &'static str) -> Row {
        Row { source, ..self }
    }

    /// Records whether the direction is as the text says.
    fn holds(self, holds: bool) -> Row {
        Row { direction_holds: Some(holds), ..self }.judged()
    }

    /// Decides whether the figure is as the text says.
    fn judged(self) -> Row {
        let as_said = match (self.published, self.direction_holds) {
            (None, holds) => holds,
            (Some(1.0), Some(holds)) => Some(holds),
            (Some(published), Some(holds)) if self.unit == "x" => {
                Some(holds && (self.ours - 1.0) / (published - 1.0) >= HALF)
            }
            (Some(_), holds) => Some(holds != Some(false) && self.is_near()),
        };
        Row { as_said, ..self }
    }

    fn is_near(&self) -> bool {
        self.error.is_some_and(|error| error.abs() <= EXPLAINED_FROM)
    }

    fn note(self, note: &'static str) -> Row {
        Row { note: Some(note), ..self }
    }

    /// Returns the simulated figure divided by the published one.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.published.map(|published| self.ours / published)
    }

    /// Whether the figure is not as published, so that its note has to say why.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.as_said == Some(false) || self.error.is_some() && !self.is_near()
    }
}

/// All results of a text's experiments.
#[derive(Debug)]
pub struct Reproduction {
    /// What was done, and on which cluster, in a few lines.
    pub about: Vec<String>,
    /// Whether the cluster is the text's, so that its figures can be compared. On a smaller cluster
    /// only directions can.
    pub is_comparable: bool,
    /// The published figures, beside the simulated ones.
    pub rows: Vec<Row>,
    /// The results of some of the simulations by themselves.
    pub runs: Vec<Run>,
    /// The experiments of the text that are left out here.
    pub left_out: &'static [&'static str],
    /// The invariants that did not hold, each with the experiment's name.
    pub violated: Vec<String>,
    labels: Labels<'static>,
    series: Vec<Series>,
}

/// The result of one simulation by itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The name of the simulation.
    pub name: String,
    /// The load under which it was run.
    pub load: String,
    /// Committed transactions per second.
    pub throughput: f64,
    /// The time from the beginning of the first attempt to the commit.
    pub latency: LatencyUs,
    /// The share of the attempts that did not commit.
    pub abort_rate: f64,
    /// Round trips on the critical path of a committed transaction.
    pub round_trips: f64,
    /// Verbs and calls of a committed transaction.
    pub verbs: f64,
}

impl Reproduction {
    /// Returns the simulations' own figures as rows. They were not published.
    #[must_use]
    pub fn run_rows(&self) -> Vec<Row> {
        let rows = self.runs.iter().flat_map(|run| {
            let name = |what: &str| format!("{} with {}: {what}", run.name, run.load);
            [
                Row::ours(name("throughput"), "M/s", run.throughput / 1e6),
                Row::ours(name("median latency"), "us", run.latency.p50),
            ]
        });
        rows.collect()
    }

    /// Draws throughput as an SVG.
    ///
    /// # Errors
    ///
    /// No case is known.
    pub fn plot(&self) -> Result<String, std::fmt::Error> {
        plot::lines(&self.labels, &self.series)
    }
}

/// The result of a simulation.
#[derive(Clone, Debug)]
struct Measurement {
    throughput: f64,
    latency: LatencyUs,
    phases: PhasesUs,
    abort_rate: f64,
    /// The costs of a committed transaction.
    costs: PerTransaction,
    by_type: BTreeMap<&'static str, TypeReport>,
    waiting_share: f64,
    /// Invariants that do not hold.
    broken: Vec<Invariant>,
}

impl Measurement {
    fn verbs(&self) -> f64 {
        let PerTransaction { reads, writes, atomics, flushes, rpcs, .. } = self.costs;
        reads + writes + atomics + flushes + rpcs
    }

    fn run(&self, name: impl Into<String>, load: impl Into<String>) -> Run {
        Run {
            name: name.into(),
            load: load.into(),
            throughput: self.throughput,
            latency: self.latency,
            abort_rate: self.abort_rate,
            round_trips: self.costs.round_trips,
            verbs: self.verbs(),
        }
    }
}

/// Loads a workload and runs it. `what` names the experiment.
fn measure<W: Workload>(
    bench: &Bench,
    what: impl FnOnce() -> String,
    load: impl FnOnce(&Cluster) -> Result<W, OpenError>,
) -> Result<Measurement, ReproduceError> {
    let (sim, cluster, workload, _) = bench.load(load)?;
    let done = bench.run(&sim, &cluster, &workload, &|| None)?;
    if done.ended != Ended::Finished {
        return Err(ReproduceError::Unfinished { what: what(), how: done.ended });
    }
    let report = done.measured.report::<W>(&cluster, "sim", serde_json::Value::Null);
    Ok(Measurement {
        throughput: report.throughput_tps,
        latency: report.latency_us,
        phases: report.phases_us,
        abort_rate: report.abort_rate,
        costs: report.per_transaction,
        by_type: report.by_type,
        waiting_share: report.waiting_share,
        broken: report.invariants.into_iter().filter(|invariant| invariant.holds == Some(false)).collect(),
    })
}

/// Runs simulations, at most `parallel` at a time, and begins them in this order. Calls `look` with
/// the numbers of finished simulations and of all.
fn run_all<P: Copy + Send + Sync, M: Send>(
    points: &[P],
    parallel: usize,
    look: &(dyn Fn(usize, usize) + Sync),
    run: impl Fn(P) -> Result<M, ReproduceError> + Sync,
) -> Result<Vec<(P, M)>, ReproduceError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(points.len()));
    let work = || -> Result<(), ReproduceError> {
        while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
            let measurement = run(*point)?;
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((*point, measurement));
            look(done.len(), points.len());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..parallel.max(1)).map(|_| scope.spawn(work)).collect();
        let panicked = |panic| std::panic::resume_unwind(panic);
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns how many simulations run side by side: at most two, because more need too much memory.
fn parallel() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(2)
}

/// Returns what was measured at a point that has been run.
fn measured<'r, P: PartialEq + fmt::Debug, M>(runs: &'r [(P, M)], point: &P) -> &'r M {
    let found = runs.iter().find(|(ran, _)| ran == point);
    let Some((_, measured)) = found else { unreachable!("{point:?} was not run") };
    measured
}

/// Lists the invariants that did not hold, each with the name of its experiment.
fn violated<P>(runs: &[(P, Measurement)], name: impl Fn(&P) -> String) -> Vec<String> {
    let broken = runs.iter().flat_map(|(point, measurement)| {
        let named = |invariant: &Invariant| format!("{}: {}: {}", name(point), invariant.name, invariant.detail);
        measurement.broken.iter().map(named).collect::<Vec<_>>()
    });
    broken.collect()
}

fn greatest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, f64::max)
}
