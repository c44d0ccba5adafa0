//! The experiments of DrTM+H (Wei thesis, chapter 4): which primitive for which phase, on SmallBank
//! and on TPC-C's new orders; presets against each other; scaling.
//!
//! The cluster has 16 symmetric machines of the profile `connectx4` with 24 workers each. There are
//! three copies, and 90 % of the transactions concern 4 % of the accounts. Each experiment changes
//! one phase and leaves the others as in DrTM+H. It is run with one to eight coroutines, because
//! the text gives the range of a ratio over this load ("up to a, from b").
//!
//! The experiments differ from the text's in three ways:
//!
//! - There are fewer accounts ([`Scale`]), and warehouses have fewer customers and items.
//! - The independent reads of a transaction are posted together, also in execution. The text's
//!   study posts one after the other.
//! - Locks are freed by CAS, and not by WRITE.

use std::time::Duration;

use remora::Cluster;
use remora::floors::txn::{FirstRead, Locks, Primitive, Primitives};
use remora::protocol::Protocol;
use remora_fabric::sim::Profile;
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::tpcc::{self, NewOrders, Room, Tpcc};
use remora_workload::{LatencyUs, PhasesUs, Setting};

use super::{
    Measurement, ReproduceError, Reproduction, Row, Run, as_the_texts, greatest, measure, measured, run_all, violated,
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
    /// The number of accounts for each worker. The text has [`Customers::ACCOUNTS_PER_THREAD`].
    pub accounts: u64,
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
    /// Returns the text's machines, with a twentieth of its accounts.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        Scale {
            nodes: 16,
            threads: 24,
            accounts: Customers::ACCOUNTS_PER_THREAD / 20,
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
        Scale { nodes: 4, threads: 4, coroutines: vec![1, 8], ..Scale::full(seed) }
    }

    /// Whether the cluster is the text's, so that its figures can be compared. On a smaller cluster
    /// only directions can.
    #[must_use]
    pub fn is_comparable(&self) -> bool {
        (self.nodes, self.threads) == (16, 24)
    }

    fn about(&self) -> Vec<String> {
        let Scale { nodes, threads, accounts, coroutines, measure, seed, .. } = self;
        let loads: Vec<String> = coroutines.iter().map(ToString::to_string).collect();
        let fewer = Customers::ACCOUNTS_PER_THREAD as f64 / *accounts as f64;
        vec![
            "DrTM+H (Wei thesis, chapter 4), SmallBank and TPC-C/no on simulated machines of its cluster VAL"
                .to_owned(),
            format!(
                "{nodes} machines of {threads} workers with {} coroutines, 3 copies, {} us of virtual time, seed {seed}",
                loads.join(", "),
                measure.as_micros()
            ),
            format!(
                "{accounts} accounts a worker, {fewer} times fewer than the text has; as there 4 % of them in 90 % of the \
                 transactions"
            ),
        ]
    }
}

/// A workload of the experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    SmallBank,
    /// TPC-C/no: only new orders, each of which involves several warehouses.
    NewOrders,
}

/// One simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    kind: Kind,
    protocol: Protocol,
    nodes: u16,
    coroutines: usize,
    /// The number of connections of a thread to each machine.
    connections: u32,
}

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 1] =
    ["TPC-E customer-position: the rows of read-only transactions; remora bench tpce has the transaction"];

const PROFILE: &str = "connectx4";
const PRESETS: [Protocol; 4] = [Protocol::DRTM_H, Protocol::DRTM_R, Protocol::FARM, Protocol::FASST];

/// The primitives of experiments that are not a preset.
const CALLED_EXECUTION: Primitives = Primitives { execute: FirstRead::Call, ..Primitives::DRTM_H };
const UNCACHED_EXECUTION: Primitives =
    Primitives { execute: FirstRead::OneSided { cached: false }, ..Primitives::DRTM_H };
const CALLED_LOCKS: Primitives = Primitives { locks: Locks::Cpu { install: Primitive::Call }, ..Primitives::DRTM_H };
const CALLED_LOG: Primitives = Primitives { log: Primitive::Call, ..Primitives::DRTM_H };
/// The CPU takes locks, and a WRITE frees them.
const WRITTEN_INSTALL: Primitives =
    Primitives { locks: Locks::Cpu { install: Primitive::OneSided }, ..Primitives::DRTM_H };

const fn awaited(primitives: Primitives) -> Protocol {
    Protocol::Occ(Primitives { passive: false, ..primitives })
}

/// The systems that DrTM+H is compared with. Only DrTM+H has passive ACK (section 4.4.3).
const FARM: Protocol = awaited(Primitives::FARM);
const FASST: Protocol = awaited(Primitives::FASST);
const DRTM_R: Protocol = awaited(Primitives::DRTM_R);

/// The reason why locks by CAS cost more than in the text.
const ATOMICS: &str = "locks are freed by CAS here, by WRITE in the text: two atomics a record, and they are what occupies \
                       NICs longest; and the READ behind a CAS waits for it at the memory node";
/// The reason why passive ACK improves calls less than in the text.
const ANSWERS: &str = "the answer to a call that nobody awaits is a message all the same; the text's travels with a later one, \
                       which halves the messages";
/// The reason why calls are as good as one-sided verbs.
const CHEAP_CALLS: &str = "calls cost CPUs what bare RPCs and their handlers do; the text's cost more than that sum";

/// The reason why new orders gain less than in the text.
const ORDERS: &str = "conflicts limit new orders here, and concern all systems: 15 % of the attempts abort with one coroutine, and half \
                      or more with eight; warehouses have fewer customers and items than the text's";

/// The reason why phases gain less than in the text.
const PHASES: &str = "an idle call takes little longer than a READ here, and all reads of a phase go out together, so that phases \
                      gain less from one-sided verbs; the text's at most 16 coroutines are 8 here";

/// Copies of each record.
const COPIES: u8 = 3;

/// Connections of a thread to each machine, so that 16 machines look like 80.
const CONNECTIONS_80: u32 = 5;

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run. An invariant that does not hold is not an error: see
/// [`Reproduction::violated`].
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let mut points = Points::of(scale).0;
    // The largest come first, so that none of them runs alone at the end.
    points.sort_by_key(|point| std::cmp::Reverse(usize::from(point.nodes) * point.coroutines));
    let runs = run_all(&points, scale.parallel, look, |point| run(scale, point))?;
    let violated = violated(&runs, |point| name(*point));
    let of = |kind| Results { scale, kind, runs: &runs };
    let (results, orders) = (of(Kind::SmallBank), of(Kind::NewOrders));
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.is_comparable(),
        rows: results.rows().into_iter().chain(orders.new_orders()).collect(),
        runs: results.presets().into_iter().chain(orders.presets()).collect(),
        left_out: &LEFT_OUT,
        violated,
        labels: LABELS,
        series: results.over_nodes(),
    })
}

const LABELS: Labels<'static> = Labels {
    title: "SmallBank on simulated machines of cluster VAL (connectx4)",
    x: "machines, 24 workers each",
    y: "million transactions a second",
};

fn name(point: Point) -> String {
    let Point { kind, protocol, nodes, coroutines, .. } = point;
    let primitives = if let Protocol::Occ(primitives) = protocol { format!(", {primitives}") } else { String::new() };
    format!("{kind:?}, {protocol}{primitives} on {nodes} machines, {coroutines} coroutines")
}

/// The list of simulations, with each simulation once.
struct Points(Vec<Point>);

impl Points {
    fn of(scale: &Scale) -> Points {
        let mut all = Points(Vec::new());
        let studies = [
            Protocol::Occ(CALLED_EXECUTION),
            Protocol::Occ(UNCACHED_EXECUTION),
            Protocol::Occ(CALLED_LOCKS),
            Protocol::Occ(CALLED_LOG),
            Protocol::Occ(WRITTEN_INSTALL),
            awaited(CALLED_LOCKS),
            awaited(WRITTEN_INSTALL),
            FARM,
            FASST,
            DRTM_R,
        ];
        let new_orders =
            [Protocol::Occ(CALLED_EXECUTION), Protocol::Occ(UNCACHED_EXECUTION), Protocol::Occ(CALLED_LOG)];
        let new_orders = PRESETS.into_iter().chain(new_orders).chain([FARM, FASST, DRTM_R]);
        let on_all = |kind, protocol, coroutines, connections| Point {
            kind,
            protocol,
            nodes: scale.nodes,
            coroutines,
            connections,
        };
        for &coroutines in &scale.coroutines {
            for protocol in PRESETS.into_iter().chain(studies) {
                all.add(on_all(Kind::SmallBank, protocol, coroutines, 1));
            }
            for protocol in new_orders.clone() {
                all.add(on_all(Kind::NewOrders, protocol, coroutines, 1));
            }
            for kind in [Kind::SmallBank, Kind::NewOrders] {
                all.add(on_all(kind, Protocol::DRTM_H, coroutines, CONNECTIONS_80));
            }
        }
        for nodes in node_counts(scale) {
            for protocol in PRESETS {
                let coroutines = heaviest(scale);
                all.add(Point { kind: Kind::SmallBank, protocol, nodes, coroutines, connections: 1 });
            }
        }
        all
    }

    fn add(&mut self, point: Point) {
        if !self.0.contains(&point) {
            self.0.push(point);
        }
    }
}

/// Returns the numbers of machines to measure: 2, 4, 8 ... and all.
fn node_counts(scale: &Scale) -> impl Iterator<Item = u16> {
    let nodes = scale.nodes;
    std::iter::successors(Some(2), |nodes| Some(nodes * 2)).take_while(move |count| *count < nodes).chain([nodes])
}

fn heaviest(scale: &Scale) -> usize {
    scale.coroutines.iter().copied().max().unwrap_or(1)
}

fn run(scale: &Scale, point: Point) -> Result<Measurement, ReproduceError> {
    let Point { kind, protocol, nodes, coroutines, connections } = point;
    let mut profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    // Only the ratio of connections to the NIC's cache matters. So a fifth of the cache is
    // equivalent to five times as many connections.
    profile.nic.cached_connections /= connections;
    let workers = u64::from(nodes) * scale.threads as u64;
    let customers = Customers::standard(scale.accounts * workers);
    let replicas = nodes.min(COPIES.into()) as u8;
    let setting = Setting { memory_nodes: nodes, replicas, workers, coroutines: coroutines as u64, archive: None };
    let orders = tpcc::Scale::small(workers as u16, 10, CUSTOMERS, ITEMS);
    let room = Room::for_orders(ORDERS_MAX);
    let node_bytes = match kind {
        Kind::SmallBank => SmallBank::node_bytes(customers.accounts(), &setting),
        Kind::NewOrders => Tpcc::node_bytes(&orders, room, &setting, protocol),
    };
    let bench = Bench {
        protocol,
        threads: scale.threads,
        coroutines,
        replicas,
        node_bytes: node_bytes as usize,
        warmup: scale.warmup,
        measure: scale.measure,
        ..Bench::symmetric(as_the_texts(profile, scale.seed), nodes)
    };
    let load = |cluster: &Cluster| Tpcc::load(cluster, orders, room, scale.seed, |_| ());
    match kind {
        Kind::SmallBank => measure(&bench, || name(point), |cluster| SmallBank::load(cluster, customers)),
        Kind::NewOrders => measure(&bench, || name(point), |cluster| load(cluster).map(NewOrders::of)),
    }
}

/// The number of customers of a district, and of items. The text has a hundred times as many.
const CUSTOMERS: u16 = 30;
const ITEMS: u32 = 1_000;
/// Room for orders: more than any run makes.
const ORDERS_MAX: u64 = 40_000;

struct Results<'a> {
    scale: &'a Scale,
    kind: Kind,
    runs: &'a [(Point, Measurement)],
}

impl Results<'_> {
    fn at(&self, point: Point) -> &Measurement {
        measured(self.runs, &point)
    }

    /// Returns the measurements of a protocol on all machines, under every load.
    fn sweep(&self, protocol: Protocol, connections: u32) -> impl Iterator<Item = &Measurement> {
        let (kind, nodes) = (self.kind, self.scale.nodes);
        let point = move |coroutines: &usize| Point { kind, protocol, nodes, coroutines: *coroutines, connections };
        self.scale.coroutines.iter().map(move |coroutines| self.at(point(coroutines)))
    }

    /// Returns the greatest throughput of a protocol.
    fn peak(&self, protocol: Protocol) -> f64 {
        greatest(self.sweep(protocol, 1).map(|run| run.throughput))
    }

    /// Returns the throughput of one protocol divided by that of another, under every load.
    fn ratios(&self, one: Protocol, other: Protocol) -> Vec<f64> {
        let other = self.sweep(other, 1);
        self.sweep(one, 1).zip(other).map(|(one, other)| one.throughput / other.throughput).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.execution();
        rows.extend(self.validation());
        rows.extend(self.logging());
        rows.extend(self.commit());
        rows.extend(self.scaling());
        rows.extend(self.comparison());
        rows
    }

    fn execution(&self) -> Vec<Row> {
        let (read, call) = (Protocol::DRTM_H, Protocol::Occ(CALLED_EXECUTION));
        let cached = self.ratios(read, call);
        let called = self.ratios(call, Protocol::Occ(UNCACHED_EXECUTION));
        let source = "Wei thesis, section 4.3.1, figure 4-2";
        vec![
            at_most("E: cached READ over RPC", &cached).published(1.36, source).note(
                "with 24 workers the NICs bound both, and a READ occupies them for as long as a call's three messages; \
                 where CPUs are the bound, as with --quick, it is more",
            ),
            at_least("E: cached READ over RPC", &cached).said(source),
            at_most("E: RPC over uncached READ", &called).published(2.01, source).note(
                "the text's study reads one record after the other, so that each costs one round trip more; here all \
                 buckets go out together, then all records",
            ),
            at_least("E: RPC over uncached READ", &called)
                .published(1.13, source)
                .note("READs spare CPUs, which are the bound where workers are few"),
        ]
    }

    fn validation(&self) -> Vec<Row> {
        let ratios = self.ratios(Protocol::DRTM_H, Protocol::Occ(CALLED_LOCKS));
        let source = "Wei thesis, section 4.3.2, figure 4-3: one-sided is faster";
        vec![
            at_most("V: CAS and READ over RPC", &ratios).said(source).note(ATOMICS),
            at_least("V: CAS and READ over RPC", &ratios).said(source).note(ATOMICS),
        ]
    }

    fn logging(&self) -> Vec<Row> {
        let ratios = self.ratios(Protocol::DRTM_H, Protocol::Occ(CALLED_LOG));
        let source = "Wei thesis, section 4.3.4, figure 4-5";
        vec![
            at_most("L: WRITE over RPC", &ratios).published(1.12, source),
            at_least("L: WRITE over RPC", &ratios).published(1.10, source).note(CHEAP_CALLS),
        ]
    }

    fn commit(&self) -> Vec<Row> {
        let (called, written) = (Protocol::Occ(CALLED_LOCKS), Protocol::Occ(WRITTEN_INSTALL));
        let (called_awaited, written_awaited) = (awaited(CALLED_LOCKS), awaited(WRITTEN_INSTALL));
        let source = "Wei thesis, section 4.3.3, figure 4-4, V by RPC";
        let peaks = |name: &str, one: Protocol, other: Protocol| {
            let ratio = self.peak(one) / self.peak(other);
            Row::ours(format!("{name}, peaks"), "x", ratio).holds(ratio > 1.0).said(source)
        };
        let waiting = "C without passive ACK: WRITE over RPC";
        let passive = "C with passive ACK: RPC over WRITE";
        vec![
            at_most(waiting, &self.ratios(written_awaited, called_awaited)).said(source),
            peaks(waiting, written_awaited, called_awaited),
            at_most(passive, &self.ratios(called, written)).said(source).note(ANSWERS),
            peaks(passive, called, written).note(ANSWERS),
            at_most("passive ACK of WRITEs: gain", &self.ratios(written, written_awaited))
                .said("Wei thesis, section 2.2.3, of bare WRITEs: 1.13"),
            at_most("passive ACK of RPCs: gain", &self.ratios(called, called_awaited))
                .said("Wei thesis, section 2.2.3, of bare RPCs: 1.96")
                .note(ANSWERS),
        ]
    }

    fn scaling(&self) -> Vec<Row> {
        let section = "Wei thesis, section 4.4.2, figure 4-7";
        let all = self.scale.nodes;
        let at = |nodes: u16| {
            let coroutines = heaviest(self.scale);
            self.at(Point { kind: self.kind, protocol: Protocol::DRTM_H, nodes, coroutines, connections: 1 }).throughput
        };
        // Two machines have only two copies of a record.
        let few = node_counts(self.scale).find(|nodes| *nodes >= COPIES.into() && *nodes < all).unwrap_or(2);
        let linear = at(all) / at(few) * f64::from(few) / f64::from(all);
        let peak = self.peak(Protocol::DRTM_H);
        let throughput = Row::ours("DrTM+H, peak", "M/s", peak / 1e6);
        let throughput = if self.scale.is_comparable() {
            throughput.fitted(90.4, "Wei thesis, chapter 1")
        } else {
            throughput.said("Wei thesis, chapter 1: 90.4 with 16 machines of 24 workers")
        };
        let many = || self.sweep(Protocol::DRTM_H, CONNECTIONS_80);
        let peak_80 = greatest(many().map(|run| run.throughput));
        // All systems under the load at which the two-sided one peaks.
        let pairs = many().zip(self.sweep(FASST, 1));
        let peaked = pairs.max_by(|one, other| one.1.throughput.total_cmp(&other.1.throughput));
        let latency = |name: &str, published: f64, quantile: fn(&LatencyUs) -> f64| {
            let ratio = peaked.map_or(0.0, |(many, two_sided)| quantile(&many.latency) / quantile(&two_sided.latency));
            let row = Row::ours(format!("DrTM+H-80 over pure RPC, {name} latency"), "x", ratio);
            row.published(published, section).holds(ratio < 1.0).note(CHEAP_CALLS)
        };
        let alone = self.sweep(Protocol::DRTM_H, 1).next().map_or(0.0, |run| run.throughput);
        vec![
            throughput.note("the work of clients' software was fitted to this figure, so it proves nothing"),
            Row::ours(format!("scaling from {few} to {all} machines, over linear"), "x", linear)
                .published(1.0, section)
                .holds(linear > 0.8),
            Row::ours("coroutines: peak over one", "x", peak / alone)
                .said("Wei thesis, section 2.2.3, of bare verbs: 7")
                .holds(peak > alone)
                .note("bare verbs are not comparable: a transaction's rounds have several verbs in flight already"),
            Row::ours("DrTM+H-80 over DrTM+H, peaks", "x", peak_80 / peak)
                .published(0.91, section)
                .holds(peak_80 < peak)
                .note("CPUs are the limit here, and NICs have time to fetch the state of connections"),
            Row::ours("DrTM+H-80 over pure RPC, peaks", "x", peak_80 / self.peak(FASST))
                .published(1.3, section)
                .holds(peak_80 > self.peak(FASST))
                .note(CHEAP_CALLS),
            latency("median", 0.78, |one| one.p50),
            latency("p90", 0.61, |one| one.p90),
            latency("p99", 0.51, |one| one.p99),
        ]
    }

    fn comparison(&self) -> Vec<Row> {
        let source = "Wei thesis, section 4.4.3, figure 4-9";
        let hybrid = self.peak(Protocol::DRTM_H);
        let fasst_over_farm = self.peak(FASST) / self.peak(FARM);
        let over = |name: &str, other: Protocol| {
            let ratio = hybrid / self.peak(other);
            Row::ours(name, "x", ratio).said(source).holds(ratio >= 1.0)
        };
        vec![
            Row::ours("FaSST over FaRM, peaks", "x", fasst_over_farm)
                .published(1.0, source)
                .holds((0.8..1.25).contains(&fasst_over_farm))
                .note("FaRM's READs go out together here, and leave CPUs to the locks; FaSST is bound by CPUs"),
            over("DrTM+H over FaSST, peaks", FASST).note(CHEAP_CALLS),
            over("DrTM+H over FaRM, peaks", FARM).note(ATOMICS),
            over("DrTM+H over DrTM+R, peaks", DRTM_R)
                .note("with every location cached the two differ in passive ACK only, which NICs do not notice"),
            Row::ours("DrTM+H where locks are the CPU's, peak", "M/s", self.peak(Protocol::Occ(CALLED_LOCKS)) / 1e6),
        ]
    }

    /// Returns the rows of TPC-C/no, which has new orders only.
    fn new_orders(&self) -> Vec<Row> {
        let section = "Wei thesis, section 4.3.1";
        let read = Protocol::DRTM_H;
        let cached = self.ratios(read, Protocol::Occ(CALLED_EXECUTION));
        let called = self.ratios(Protocol::Occ(CALLED_EXECUTION), Protocol::Occ(UNCACHED_EXECUTION));
        let log = self.ratios(read, Protocol::Occ(CALLED_LOG));
        let logged = "Wei thesis, section 4.3.4, figure 4-5";
        let mut rows = vec![
            at_most("TPC-C/no, E: cached READ over RPC", &cached).published(1.45, section).note(ORDERS),
            at_least("TPC-C/no, E: cached READ over RPC", &cached).published(1.26, section).note(ORDERS),
            at_most("TPC-C/no, E: RPC over uncached READ", &called).published(1.28, section).note(ORDERS),
            at_most("TPC-C/no, L: WRITE over RPC", &log).published(1.29, logged).note(ORDERS),
            at_least("TPC-C/no, L: WRITE over RPC", &log).published(1.24, logged).note(ORDERS),
        ];
        let source = "Wei thesis, section 4.4.3";
        let systems = [
            ("FaSST", FASST, 2.96, 1.41, 0.67),
            ("DrTM+R", DRTM_R, 1.89, 1.12, 0.77),
            ("FaRM", FARM, 2.50, 1.21, 0.66),
        ];
        for (name, system, most, least, median) in systems {
            let ratios = self.ratios(read, system);
            rows.push(at_most(&format!("TPC-C/no: DrTM+H over {name}"), &ratios).published(most, source).note(ORDERS));
            rows.push(
                at_least(&format!("TPC-C/no: DrTM+H over {name}"), &ratios).published(least, source).note(ORDERS),
            );
            let at = |protocol| self.sweep(protocol, 1).last().map_or(0.0, |run| run.latency.p50);
            let ratio = at(read) / at(system);
            let row = Row::ours(format!("TPC-C/no: DrTM+H over {name}, median latency"), "x", ratio);
            rows.push(row.published(median, source).holds(ratio < 1.0).note(ORDERS));
        }
        let peak_80 = greatest(self.sweep(read, CONNECTIONS_80).map(|run| run.throughput));
        let ratio = peak_80 / self.peak(read);
        let row = Row::ours("TPC-C/no: DrTM+H-80 over DrTM+H, peaks", "x", ratio);
        let row = row.published(0.95, "Wei thesis, section 4.4.2").holds(ratio < 1.0);
        rows.push(
            row.note("conflicts limit new orders here, and not NICs, so that connections which miss cost nothing"),
        );
        rows.extend(self.factors());
        rows.extend(self.breakdown());
        rows
    }

    /// Returns the rows of the factor analysis: calls alone, one-sided verbs alone, and the choice
    /// for each phase.
    fn factors(&self) -> Vec<Row> {
        let source = "Wei thesis, section 4.4.3, figure 4-8";
        let sweep = |protocol| self.sweep(protocol, 1).collect::<Vec<_>>();
        let (called, one_sided, hybrid) = (sweep(FASST), sweep(DRTM_R), sweep(Protocol::DRTM_H));
        let uncached = sweep(Protocol::Occ(UNCACHED_EXECUTION));
        let fetched = sweep(Protocol::Occ(CALLED_EXECUTION));
        let rate = |runs: &[&Measurement], load: usize| runs.get(load).map_or(0.0, |run| run.throughput);
        let last = self.scale.coroutines.len().saturating_sub(1);
        let row = |name: &str, ratio: f64, holds: bool| {
            Row::ours(format!("TPC-C/no, factors: {name}"), "x", ratio).said(source).holds(holds).note(ORDERS)
        };
        let better = |quantile: fn(&LatencyUs) -> f64| {
            let of = |runs: &[&Measurement]| runs.get(last).map_or(0.0, |run| quantile(&run.latency));
            of(&hybrid) / of(&called).min(of(&one_sided))
        };
        let [light, heavy] = [0, last].map(|load| rate(&one_sided, load) / rate(&called, load));
        let (median, tail) = (better(|latency| latency.p50), better(|latency| latency.p99));
        let more_trips = rate(&uncached, last) / rate(&fetched, last);
        vec![
            row("one-sided over calls, one coroutine", light, light > 1.0),
            row("one-sided over calls, most coroutines: close", heavy, (0.8..1.25).contains(&heavy)),
            row("hybrid over the better of both, median latency", median, median < 1.0),
            row("hybrid over the better of both, p99 latency", tail, tail < 1.0),
            row("uncached READs over calls, most coroutines", more_trips, more_trips > 1.0),
        ]
    }

    /// Returns the rows of the latency breakdown: the mean times of the phases.
    fn breakdown(&self) -> Vec<Row> {
        let source = "Wei thesis, section 4.4.3, figure 4-10";
        let first = |protocol| self.sweep(protocol, 1).next();
        let last = |protocol| self.sweep(protocol, 1).last();
        let ratio = |one: Option<&Measurement>, other: Option<&Measurement>, mean: fn(&PhasesUs) -> f64| {
            let of = |run: Option<&Measurement>| run.map_or(0.0, |run| mean(&run.phases));
            of(one) / of(other)
        };
        let row = |name: &str, ratio: f64| Row::ours(format!("TPC-C/no, breakdown: {name}"), "x", ratio);
        let execute = |phases: &PhasesUs| phases.execute.mean;
        let log = |phases: &PhasesUs| phases.log.mean;
        let of_one = |system, mean| ratio(first(system), first(FASST), mean);
        let less = |name: &str, ratio: f64, published: f64| {
            row(name, ratio).published(published, source).holds(ratio < 1.0).note(PHASES)
        };
        let heavy = ratio(last(FARM), last(FASST), execute);
        let locks = of_one(DRTM_R, |phases| phases.validate.mean);
        let commit = of_one(Protocol::DRTM_H, |phases| phases.commit.mean);
        vec![
            less("E of FaRM over FaSST, one coroutine", of_one(FARM, execute), 0.87),
            less("E of DrTM+R over FaSST, one coroutine", of_one(DRTM_R, execute), 0.59),
            row("E of FaRM over FaSST, most coroutines", heavy).published(1.22, source).holds(heavy > 1.0).note(PHASES),
            row("V of DrTM+R over FaSST", locks).said(source).holds(locks < 1.0).note(ATOMICS),
            less("L of DrTM+R over FaSST", of_one(DRTM_R, log), 0.31),
            less("L of FaRM over FaSST", of_one(FARM, log), 0.25),
            row("C of DrTM+H over FaSST", commit).said(source).holds(commit < 1.0),
        ]
    }

    fn presets(&self) -> Vec<Run> {
        let nodes = self.scale.nodes;
        let runs = PRESETS
            .into_iter()
            .flat_map(|protocol| self.scale.coroutines.iter().map(move |coroutines| (protocol, *coroutines)));
        let runs = runs.map(|(protocol, coroutines)| {
            let run = self.at(Point { kind: self.kind, protocol, nodes, coroutines, connections: 1 });
            let name = if self.kind == Kind::SmallBank { "" } else { ", TPC-C/no" };
            run.run(format!("{}{name}", protocol.name()), format!("{coroutines} coroutines"))
        });
        runs.collect()
    }

    fn over_nodes(&self) -> Vec<Series> {
        let coroutines = heaviest(self.scale);
        let line = |protocol: Protocol| {
            let point = |nodes: u16| {
                let run = self.at(Point { kind: self.kind, protocol, nodes, coroutines, connections: 1 });
                (f64::from(nodes), run.throughput / 1e6)
            };
            Series { name: protocol.name().to_owned(), points: node_counts(self.scale).map(point).collect() }
        };
        PRESETS.into_iter().map(line).collect()
    }
}

/// Makes a row of the greatest of the ratios under every load. It is as the text says if it is
/// above 1.
fn at_most(name: &str, ratios: &[f64]) -> Row {
    let ratio = greatest(ratios.iter().copied());
    Row::ours(format!("{name}, at most"), "x", ratio).holds(ratio > 1.0)
}

/// Makes a row of the least of the ratios under every load. It is as the text says if it is above
/// 1.
fn at_least(name: &str, ratios: &[f64]) -> Row {
    let ratio = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    Row::ours(format!("{name}, at least"), "x", ratio).holds(ratio > 1.0)
}
