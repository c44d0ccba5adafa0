//! The experiments of DST (Wei thesis, chapter 5) on TPC-C and TPC-E: times that transactions
//! derive, times of an oracle, vectors of clients' own times, read committed as the bound, and
//! optimistic concurrency control without times.
//!
//! The cluster has 16 symmetric machines of the profile `connectx4` with 24 workers each. There are
//! three copies. TPC-C's mix is the standard one. Its Order-Status and Stock-Level read snapshots,
//! and so does Customer-Position of TPC-E; except under OCC, where they are validated.
//!
//! The experiments differ from the text's in five ways:
//!
//! - Warehouses have fewer customers and items, and a market fewer customers ([`Scale`]).
//! - TPC-E has three of its transactions (`remora_workload::tpce`).
//! - All systems send calls in every phase, as `fasst` does. The text's are DrTM+H.
//! - Requests to the oracle are batched for the coroutines of a worker, under `gts` alone. The text
//!   has a thread for them on each machine. The oracle is on one of the machines that have the
//!   tables. The text's has a machine of its own.
//! - Stock-Level looks at one district. The text also has up to 20.

use std::time::Duration;

use remora::protocol::Protocol;
use remora_fabric::sim::Profile;
use remora_workload::Setting;
use remora_workload::tpcc::{self, Tpcc};
use remora_workload::tpce::{self, Tpce};

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
            "DST (Wei thesis, chapter 5), TPC-C and TPC-E on simulated machines of its cluster VAL".to_owned(),
            format!(
                "{nodes} machines of {threads} workers with {} coroutines, 3 copies, {} us of virtual time, seed {seed}",
                loads.join(", "),
                measure.as_micros()
            ),
            "Order-Status, Stock-Level and Customer-Position read snapshots; under fasst they are validated".to_owned(),
        ]
    }
}

/// The workload of a simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Load {
    Tpcc,
    Tpce,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Tpcc => "TPC-C",
            Load::Tpce => "TPC-E",
        }
    }
}

/// One simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    load: Load,
    protocol: Protocol,
    coroutines: usize,
}

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 4] = [
    "DST on two-phase locking, which the text has in MySQL Cluster only",
    "MySQL Cluster and Rococo with DST",
    "TPC-C with Stock-Level of up to 20 districts",
    "the cost of waiting, and of stamping the read set (figure 5-15)",
];

const LABELS: Labels<'static> = Labels {
    title: "TPC-C and TPC-E on simulated machines of cluster VAL (connectx4)",
    x: "coroutines of each worker",
    y: "million transactions a second",
};

const PROFILE: &str = "connectx4";
const SYSTEMS: [Protocol; 5] = [Protocol::DST, Protocol::GTS, Protocol::VTS, Protocol::RC, Protocol::FASST];

/// The number of customers of a district, and of items. The text has a hundred times as many.
const CUSTOMERS: u16 = 30;
const ITEMS: u32 = 1_000;
/// Room for orders: more than any run makes.
const ORDERS_MAX: u64 = 40_000;
/// The number of customers of a market for each worker.
const MARKET: u32 = 20;
/// Room for trades: more than any run makes.
const TRADES_MAX: u64 = 40_000;

/// Why the oracle holds the others up less than in the text.
const ORACLE: &str = "the oracle answers calls as any machine does, by all of its threads; the text's has one queue of \
                      installed times, which one thread goes through";
/// Why vectors cost less than in the text.
const VECTORS: &str = "8 % of TPC-C's transactions read snapshots, and such a reader sends the vector once to each machine, \
                       with all records that it reads there; on TPC-E, where 79 % do, vectors cost more than in the text";
/// Why optimistic reads cost more than in the text.
const MARKET_READS: &str = "a market of 20 customers for each worker is small, so validated readers abort often; the text's \
                            figure is of another cluster";
/// Why read committed is faster on TPC-E.
const MARKET_COMMITTED: &str = "with few transactions in flight, a round trip more counts: dst validates what a trade only \
                                reads, and asks again for what is locked; with 8 coroutines dst is ahead of rc";
/// Why read committed is faster than in the text.
const COMMITTED: &str = "rc validates nothing that is only read, also in transactions that write, which abort less often \
                         for it; the text does not say what its own does";
/// Why optimistic reads cost less than in the text.
const DISTRICTS: &str = "Stock-Level of one district, which is what the mix says, meets few writers; the text's largest \
                         gain is with 20 districts";

/// Runs the experiments. Calls `look` with the numbers of finished simulations and of all.
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let lines = [Load::Tpcc, Load::Tpce].into_iter().flat_map(|load| SYSTEMS.map(|protocol| (load, protocol)));
    let at_each_load = |(load, protocol)| {
        scale.coroutines.iter().map(move |coroutines| Point { load, protocol, coroutines: *coroutines })
    };
    let points: Vec<Point> = lines.clone().flat_map(at_each_load).collect();
    let runs = run_all(&points, scale.parallel, look, |point| simulate(scale, point))?;
    let throughput = |point: Point| measured(&runs, &point).throughput;
    // The throughput of DST over that of another system, at each load.
    let over = |load, other| -> Vec<f64> {
        let both = at_each_load((load, Protocol::DST)).zip(at_each_load((load, other)));
        both.map(|(dst, other)| throughput(dst) / throughput(other)).collect()
    };
    let at_least = |load, other| over(load, other).into_iter().fold(f64::INFINITY, f64::min);
    let at_most = |load, other| greatest(over(load, other).into_iter());
    let bound = |load: Load, note| {
        let share = at_least(load, Protocol::RC);
        let row = Row::ours(format!("{}, DST over read committed, at least", load.name()), "x", share);
        row.said("5.5: more than 95 % of it").holds(share > 0.95).note(note)
    };
    let gain = |name: &str, gain: f64, published, source, note| {
        Row::ours(name, "x", gain).published(published, source).holds(gain > 1.0).note(note)
    };
    let figure = "5.5.1, figure 5-12";
    let rows = vec![
        bound(Load::Tpcc, COMMITTED),
        gain("TPC-C, DST over GTS, at most", at_most(Load::Tpcc, Protocol::GTS), 4.49, figure, ORACLE),
        gain("TPC-C, DST over GTS, at least", at_least(Load::Tpcc, Protocol::GTS), 1.19, figure, ORACLE),
        gain("TPC-C, DST over VTS, at most", at_most(Load::Tpcc, Protocol::VTS), 1.76, figure, VECTORS),
        gain("TPC-C, DST over VTS, at least", at_least(Load::Tpcc, Protocol::VTS), 1.15, figure, VECTORS),
        gain(
            "TPC-C, DST over OCC, at most",
            at_most(Load::Tpcc, Protocol::FASST),
            4.94,
            "5.5.1, 20 districts, another cluster",
            DISTRICTS,
        ),
        bound(Load::Tpce, MARKET_COMMITTED),
        gain("TPC-E, DST over GTS, at most", at_most(Load::Tpce, Protocol::GTS), 1.07, figure, ORACLE),
        gain("TPC-E, DST over VTS, at most", at_most(Load::Tpce, Protocol::VTS), 1.32, figure, VECTORS),
        gain(
            "TPC-E, DST over OCC, at most",
            at_most(Load::Tpce, Protocol::FASST),
            1.79,
            "5.5.1, figure 5-10, another cluster",
            MARKET_READS,
        ),
    ];
    let name = |load: Load, protocol: Protocol| format!("{}, {}", protocol.name(), load.name());
    let shown = points.iter().map(|point| {
        let run = measured(&runs, point);
        run.run(name(point.load, point.protocol), format!("{} coroutines", point.coroutines))
    });
    let line = |(load, protocol)| {
        let points = at_each_load((load, protocol)).map(|point| (point.coroutines as f64, throughput(point) / 1e6));
        Series { name: name(load, protocol), points: points.collect() }
    };
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.is_comparable(),
        rows,
        runs: shown.collect(),
        left_out: &LEFT_OUT,
        violated: violated(&runs, |point| {
            format!("{}, {} coroutines", name(point.load, point.protocol), point.coroutines)
        }),
        labels: LABELS,
        series: lines.map(line).collect(),
    })
}

fn simulate(scale: &Scale, point: Point) -> Result<Measurement, ReproduceError> {
    let Point { load, protocol, coroutines } = point;
    let Scale { nodes, threads, .. } = *scale;
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let warehouses = (usize::from(nodes) * threads) as u16;
    let orders = (tpcc::Scale::small(warehouses, 10, CUSTOMERS, ITEMS), tpcc::Room::for_orders(ORDERS_MAX));
    let market = tpce::Scale::of_customers(MARKET * u32::from(warehouses));
    let market = (market, tpce::Room { trades: TRADES_MAX });
    let replicas = nodes.min(3) as u8;
    let workers = u64::from(nodes) * threads as u64;
    let setting = Setting { memory_nodes: nodes, replicas, workers, coroutines: coroutines as u64, archive: None };
    let bench = Bench {
        protocol,
        threads,
        coroutines,
        replicas,
        node_bytes: match load {
            Load::Tpcc => Tpcc::node_bytes(&orders.0, orders.1, &setting, protocol),
            Load::Tpce => Tpce::node_bytes(&market.0, market.1, &setting, protocol),
        } as usize,
        warmup: scale.warmup,
        measure: scale.measure,
        ..Bench::symmetric(as_the_texts(profile, scale.seed), nodes)
    };
    let snapshots = protocol.has_snapshots();
    let name = || format!("{}, {}, {coroutines} coroutines", protocol.name(), load.name());
    match load {
        Load::Tpcc => measure(&bench, name, |cluster| {
            Tpcc::load(cluster, orders.0, orders.1, scale.seed, |_| ()).map(|tpcc| tpcc.with_snapshots(snapshots))
        }),
        Load::Tpce => measure(&bench, name, |cluster| {
            Tpce::load(cluster, market.0, market.1, scale.seed).map(|tpce| tpce.with_snapshots(snapshots))
        }),
    }
}
