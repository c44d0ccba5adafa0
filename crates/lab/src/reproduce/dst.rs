//! The experiments of DST (Wei thesis, chapter 5) on TPC-C: times that transactions derive, times
//! of an oracle, read committed as the bound, and optimistic concurrency control without times.
//!
//! The cluster has 16 symmetric machines of the profile `connectx4` with 24 workers each. There are
//! three copies. The mix is the standard one. Order-Status and Stock-Level read snapshots, except
//! under OCC, where they are validated.
//!
//! The experiments differ from the text's in four ways:
//!
//! - Warehouses have fewer customers and items ([`Scale`]).
//! - All systems send calls in every phase, as `fasst` does. The text's are DrTM+H.
//! - The oracle's requests are not batched, and the oracle is on one of the machines that have the
//!   tables. The text's has a machine of its own.
//! - Stock-Level looks at one district. The text also has up to 20.

use std::time::Duration;

use remora::Cluster;
use remora::protocol::Protocol;
use remora_fabric::sim::Profile;
use remora_workload::Setting;
use remora_workload::tpcc::{self, Room, Tpcc};

use super::{
    Measurement, ReproduceError, Reproduction, Row, as_the_texts, greatest, measure, measured, run_all, violated,
};
use crate::Bench;
use remora_command::plot::{Labels, Series};

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of machines. The text has 16.
    pub nodes: u16,
    /// The number of workers of each machine. The text has 24.
    pub threads: usize,
    /// Transactions in flight for each worker, from light to heavy load.
    pub coroutines: Vec<usize>,
    /// Virtual time before anything is counted.
    pub warmup: Duration,
    /// Virtual time that is counted.
    pub measure: Duration,
    /// Simulations that run at the same time, each on a thread.
    pub parallel: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Scale {
    /// Returns the text's machines.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        Scale {
            nodes: 16,
            threads: 24,
            coroutines: vec![1, 4, 8],
            warmup: Duration::from_micros(300),
            measure: Duration::from_millis(1),
            parallel: super::parallel(),
            seed,
        }
    }

    /// Returns four small machines, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale { nodes: 4, threads: 4, coroutines: vec![1, 8], measure: Duration::from_millis(2), ..Scale::full(seed) }
    }

    /// Whether the cluster is the text's, so that its figures can be compared. On a smaller cluster
    /// only directions can.
    #[must_use]
    pub fn is_comparable(&self) -> bool {
        (self.nodes, self.threads) == (16, 24)
    }

    fn about(&self) -> Vec<String> {
        let Scale { nodes, threads, coroutines, measure, seed, .. } = self;
        let loads: Vec<String> = coroutines.iter().map(ToString::to_string).collect();
        vec![
            "DST (Wei thesis, chapter 5), TPC-C on simulated machines of its cluster VAL".to_owned(),
            format!(
                "{nodes} machines of {threads} workers with {} coroutines, 3 copies, {} us of virtual time, seed {seed}",
                loads.join(", "),
                measure.as_micros()
            ),
            "Order-Status and Stock-Level read snapshots, except under fasst, where they are validated".to_owned(),
        ]
    }
}

/// One simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    protocol: Protocol,
    coroutines: usize,
}

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 5] = [
    "TPC-E, which is not there yet",
    "vector timestamps (VTS), which are not built",
    "MySQL Cluster and Rococo with DST",
    "TPC-C with Stock-Level of up to 20 districts",
    "the cost of waiting, and of stamping the read set (figure 5-15)",
];

const LABELS: Labels<'static> = Labels {
    title: "TPC-C on simulated machines of cluster VAL (connectx4)",
    x: "coroutines of each worker",
    y: "million transactions a second",
};

const PROFILE: &str = "connectx4";
const SYSTEMS: [Protocol; 4] = [Protocol::DST, Protocol::GTS, Protocol::RC, Protocol::FASST];

/// The number of customers of a district, and of items. The text has a hundred times as many.
const CUSTOMERS: u16 = 30;
const ITEMS: u32 = 1_000;
/// Room for orders: more than any run makes.
const ORDERS_MAX: u64 = 40_000;

/// Why the oracle holds the others up less than in the text.
const ORACLE: &str = "the oracle answers calls as any machine does, by all of its threads; the text's has one queue of \
                      installed times, which one thread goes through";
/// Why read committed is faster than in the text.
const COMMITTED: &str = "rc validates nothing that is only read, also in transactions that write, which abort less often \
                         for it; the text does not say what its own does";
/// Why optimistic reads cost less than in the text.
const DISTRICTS: &str = "Stock-Level of one district, which is what the mix says, meets few writers; the text's largest \
                         gain is with 20 districts";

/// Runs the experiments. Calls `look` with the numbers of finished simulations and of all.
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let points: Vec<Point> = scale
        .coroutines
        .iter()
        .flat_map(|coroutines| SYSTEMS.map(|protocol| Point { protocol, coroutines: *coroutines }))
        .collect();
    let runs = run_all(&points, scale.parallel, look, |point| simulate(scale, point))?;
    let at = |protocol, coroutines| measured(&runs, &Point { protocol, coroutines });
    let ratios = |one: Protocol, other: Protocol| -> Vec<f64> {
        let of = |coroutines: &usize| at(one, *coroutines).throughput / at(other, *coroutines).throughput;
        scale.coroutines.iter().map(of).collect()
    };
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (rc, gts, occ) = (
        ratios(Protocol::DST, Protocol::RC),
        ratios(Protocol::DST, Protocol::GTS),
        ratios(Protocol::DST, Protocol::FASST),
    );
    let share = least(&rc);
    let rows = vec![
        Row::ours("TPC-C, DST over read committed, at least", "x", share)
            .said("5.5: more than 95 % of it")
            .holds(share > 0.95)
            .note(COMMITTED),
        Row::ours("TPC-C, DST over GTS, at most", "x", greatest(gts.iter().copied()))
            .published(4.49, "5.5.1, figure 5-12")
            .holds(greatest(gts.iter().copied()) > 1.0)
            .note(ORACLE),
        Row::ours("TPC-C, DST over GTS, at least", "x", least(&gts))
            .published(1.19, "5.5.1, figure 5-12")
            .holds(least(&gts) > 1.0)
            .note(ORACLE),
        Row::ours("TPC-C, DST over OCC, at most", "x", greatest(occ.iter().copied()))
            .published(4.94, "5.5.1, 20 districts, another cluster")
            .holds(greatest(occ.iter().copied()) > 1.0)
            .note(DISTRICTS),
    ];
    let shown = points.iter().map(|point| {
        let run = measured(&runs, point);
        run.run(format!("{}, TPC-C", point.protocol.name()), format!("{} coroutines", point.coroutines))
    });
    let line = |protocol: Protocol| {
        let point = |coroutines: &usize| (*coroutines as f64, at(protocol, *coroutines).throughput / 1e6);
        Series { name: protocol.name().to_owned(), points: scale.coroutines.iter().map(point).collect() }
    };
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.is_comparable(),
        rows,
        runs: shown.collect(),
        left_out: &LEFT_OUT,
        violated: violated(&runs, |point| format!("{}, {} coroutines", point.protocol.name(), point.coroutines)),
        labels: LABELS,
        series: SYSTEMS.into_iter().map(line).collect(),
    })
}

fn simulate(scale: &Scale, point: Point) -> Result<Measurement, ReproduceError> {
    let Point { protocol, coroutines } = point;
    let Scale { nodes, threads, .. } = *scale;
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let warehouses = (usize::from(nodes) * threads) as u16;
    let orders = tpcc::Scale::small(warehouses, 10, CUSTOMERS, ITEMS);
    let room = Room::for_orders(ORDERS_MAX);
    let replicas = nodes.min(3) as u8;
    let workers = u64::from(nodes) * threads as u64;
    let setting = Setting { memory_nodes: nodes, replicas, workers, coroutines: coroutines as u64, archive: None };
    let bench = Bench {
        protocol,
        threads,
        coroutines,
        replicas,
        node_bytes: Tpcc::node_bytes(&orders, room, &setting, protocol) as usize,
        warmup: scale.warmup,
        measure: scale.measure,
        ..Bench::symmetric(as_the_texts(profile, scale.seed), nodes)
    };
    let snapshots = protocol.has_snapshots();
    let load = |cluster: &Cluster| Tpcc::load(cluster, orders, room, scale.seed, |_| ());
    let name = || format!("{}, {coroutines} coroutines", protocol.name());
    measure(&bench, name, |cluster| load(cluster).map(|tpcc| tpcc.with_snapshots(snapshots)))
}
