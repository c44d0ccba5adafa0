//! The experiments on designs of trees (Ziegler et al., SIGMOD 2019; Ziegler thesis, chapters 4 and
//! 10): coarse-grained and two-sided, fine-grained and one-sided, and hybrid.
//!
//! The cluster has 4 memory servers and up to 6 machines with 40 clients each, with profile
//! `connectx3`, nodes of 1 KiB, and one copy. Keys and values have 8 bytes. The text has 100
//! million keys; here a million make a tree of the same height. Coarse and hybrid trees are
//! partitioned by ranges, one for each server. Skew is what the text calls attribute-value skew:
//! 80, 12, 5 and 3 % of the keys are in the ranges of the four servers.
//!
//! A range is one transaction, also if it has a tenth of the keys. It fits: it has some 2,400
//! leaves, and a transaction may have 4,096 records. The text's scans are not atomic.
//!
//! The operations are transactions here (`Ordered`), and the text's are not. So a lookup validates
//! what it has read on its way. The text's clients remember nothing. Further rows have clients that
//! remember the places of leaves.

use std::time::Duration;

use remora::protocol::Protocol;
use remora::{Cluster, Design, Error, OpenError, Ordered, OrderedOptions, Session, Transaction, TransactionOptions};
use remora_fabric::sim::{Deployment, Profile, SimOptions};
use remora_workload::guestbook::{PARAMETERS, Parameters};
use remora_workload::ycsb::{InsertOrder, OrderedSize, Size, Ycsb};
use remora_workload::{After, Invariant, Prng, Setting, Workload};

use super::numbers::{self, Number};
use super::{Measurement, ReproduceError, Reproduction, Row, Run, as_the_texts, measure, measured, run_all, violated};
use crate::Bench;
use remora_command::plot::{Labels, Series};

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of keys that are loaded.
    pub keys: u64,
    /// Few, more and many clients.
    pub clients: [Clients; 3],
    /// The shares of all keys that range queries ask for: small, large and largest.
    pub shares: [f64; 3],
    /// How many times as long the simulations of the largest ranges are. Such a range takes
    /// milliseconds.
    pub longer: u32,
    /// Virtual time before anything is counted.
    pub warmup: Duration,
    /// Virtual time that is counted.
    pub measure: Duration,
    /// Simulations that run at the same time, each on a thread.
    pub parallel: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The number of clients. Each coroutine is a client, with one operation at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clients {
    /// The number of machines.
    pub machines: usize,
    /// The number of threads of each machine.
    pub threads: usize,
    /// The number of clients of each thread.
    pub coroutines: usize,
}

const fn clients(machines: usize, threads: usize, coroutines: usize) -> Clients {
    Clients { machines, threads, coroutines }
}

impl Clients {
    fn count(self) -> usize {
        self.machines * self.threads * self.coroutines
    }
}

impl Scale {
    /// Returns the text's cluster.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        Scale {
            keys: 1_000_000,
            clients: [clients(1, 10, 2), clients(2, 10, 4), clients(6, 10, 4)],
            shares: [0.001, 0.01, 0.1],
            longer: 80,
            warmup: Duration::from_micros(500),
            measure: Duration::from_millis(4),
            parallel: super::parallel(),
            seed,
        }
    }

    /// Returns few clients and a small tree, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale {
            keys: 100_000,
            clients: [clients(1, 2, 2), clients(1, 4, 4), clients(2, 8, 8)],
            shares: [0.002, 0.02, 0.2],
            longer: 20,
            warmup: Duration::from_micros(100),
            measure: Duration::from_micros(600),
            ..Scale::full(seed)
        }
    }

    fn about(&self) -> Vec<String> {
        let clients: Vec<String> = self.clients.iter().map(|clients| clients.count().to_string()).collect();
        vec![
            "Ziegler thesis, chapter 10 (SIGMOD 2019): 4 memory servers, ConnectX-3, trees with nodes of 1 KiB"
                .to_owned(),
            format!(
                "{} keys of 8 bytes, {} clients, {} us of virtual time, seed {}",
                self.keys,
                clients.join(", "),
                self.measure.as_micros(),
                self.seed
            ),
        ]
    }
}

const PROFILE: &str = "connectx3";
const SERVERS: u16 = 4;
/// The percentage of the keys in each server's range.
const EVEN: [u64; SERVERS as usize] = [25; 4];
const SKEWED: [u64; SERVERS as usize] = [80, 12, 5, 3];

/// The designs that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum System {
    Coarse,
    Fine,
    Hybrid,
    /// Fine-grained, with clients that remember the places of leaves.
    Remembered,
}

impl System {
    const ALL: [System; 4] = [System::Coarse, System::Fine, System::Hybrid, System::Remembered];

    fn name(self) -> &'static str {
        match self {
            System::Coarse => "coarse, two-sided",
            System::Fine => "fine, one-sided",
            System::Hybrid => "hybrid",
            System::Remembered => "fine, remembered",
        }
    }
}

/// The operations of clients.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mix {
    Point,
    /// Scans of this many keys.
    Range(u64),
    /// Inserts, in this percentage of the operations. The others are lookups.
    Inserts(u64),
}

/// One simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    system: System,
    mix: Mix,
    clients: Clients,
    skewed: bool,
}

impl Point {
    fn name(&self) -> String {
        let mix = match self.mix {
            Mix::Point => "lookups".to_owned(),
            Mix::Range(keys) => format!("ranges of {keys}"),
            Mix::Inserts(percent) => format!("{percent} % inserts"),
        };
        format!("{}, {mix}{}", self.system.name(), if self.skewed { ", skewed" } else { "" })
    }
}

// ---- simulations --------------------------------------------------------------------------------

/// A table. Loaded keys are even, and inserted ones odd.
struct Trees {
    table: Ordered<u64, Number>,
    keys: u64,
    mix: Mix,
}

impl Trees {
    fn load(cluster: &Cluster, keys: u64, room: u64, point: &Point) -> Result<Trees, OpenError> {
        let design = match point.system {
            System::Coarse => Design::Coarse(0),
            System::Hybrid => Design::Hybrid(0),
            System::Fine | System::Remembered => Design::Fine,
        };
        let mut options = OrderedOptions::for_rows(keys + room).design(design).grows(false);
        if design != Design::Fine {
            let shares = if point.skewed { SKEWED } else { EVEN };
            let ends = shares.iter().scan(0, |end, share| {
                *end += share;
                Some(2 * (keys * *end / 100))
            });
            options = options.split_at(ends.take(shares.len() - 1));
            // Each partition gets an equal share of the room, and the largest one needs this.
            let largest = shares.iter().max().unwrap_or(&100);
            options.rows = (keys * largest / 100 + room) * u64::from(SERVERS);
        }
        let table = cluster.load_ordered("tree", options, (0..keys).map(|key| (2 * key, Number(2 * key))))?;
        let table = if point.system == System::Remembered { table } else { table.without_memory() };
        Ok(Trees { table, keys, mix: point.mix })
    }
}

impl Workload for Trees {
    /// Counts the inserted keys.
    type Ledger = i64;

    const NAME: &'static str = "trees";
    const TYPES: &'static [&'static str] = &["lookup", "range", "insert"];
    const INVARIANTS: &'static [&'static str] = &numbers::INVARIANTS;

    fn open(_: &Cluster, _: &Parameters) -> Result<Trees, OpenError> {
        unreachable!("of simulations there is one client process")
    }

    fn parameters(&self) -> Parameters {
        [0; PARAMETERS]
    }

    async fn warm(&self, session: &mut Session, _: u64, _: u64) -> Result<(), Error> {
        numbers::read_all(&self.table, session).await
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, inserted: &mut i64) -> Result<(), Error> {
        let label = |label| TransactionOptions::default().label(label);
        let key = 2 * random.below(self.keys);
        match self.mix {
            Mix::Inserts(percent) if random.below(100) < percent => {
                let key = key + 1;
                let put =
                    session.transact_with(label(2), async |tx| self.table.put(tx, key, Number(key)).await).await?;
                *inserted += i64::from(put.is_none());
            }
            Mix::Range(count) => {
                let from = key.min(2 * (self.keys - count));
                let scan = async |tx: &mut Transaction<'_, '_>| self.table.scan(tx, from.., count as usize).await;
                session.transact_with(label(1), scan).await?;
            }
            _ => {
                session.transact_with(label(0), async |tx| self.table.get(tx, key).await).await?;
            }
        }
        Ok(())
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        numbers::invariants(cluster, &self.table, self.keys, &after)
    }
}

// ---- experiments --------------------------------------------------------------------------------

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 4] = [
    "100 million to a billion keys: the height of the tree is the same with a million",
    "servers from 1 to 8, and machines that are server and client",
    "head nodes: the inner nodes above the leaves, which the designs read or ask for, say the same",
    "the analytic model",
];

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run. An invariant that does not hold is not an error: see
/// [`Reproduction::violated`].
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let runs = run_all(&points(scale), scale.parallel, look, |point| run(scale, point))?;
    let violated = violated(&runs, Point::name);
    let results = Results { scale, runs };
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.clients[2].count() == 240,
        rows: results.rows(),
        runs: results.runs(),
        left_out: &LEFT_OUT,
        violated,
        labels: LABELS,
        series: results.over_clients(),
    })
}

const LABELS: Labels<'static> = Labels {
    title: "Lookups in a tree on 4 memory servers, simulated (connectx3)",
    x: "clients",
    y: "million lookups a second",
};

/// Lists every simulation once, the largest first.
fn points(scale: &Scale) -> Vec<Point> {
    let [few, more, many] = scale.clients;
    let [small, large, largest] = ranges(scale);
    let mut points = Vec::new();
    for system in System::ALL {
        let mut add = |mix, clients, skewed| points.push(Point { system, mix, clients, skewed });
        for clients in [many, more, few] {
            add(Mix::Point, clients, false);
        }
        add(Mix::Point, many, true);
        add(small, more, false);
        add(large, more, false);
        add(small, many, false);
        add(small, many, true);
        add(largest, more, false);
        // No row compares clients that remember leaves under skew.
        if system != System::Remembered {
            add(largest, more, true);
        }
        for percent in [5, 50] {
            add(Mix::Inserts(percent), more, false);
            add(Mix::Inserts(percent), many, false);
        }
    }
    points.sort_by_key(|point| std::cmp::Reverse((point.mix == largest, point.clients.count())));
    points
}

/// Returns small, large and largest ranges.
fn ranges(scale: &Scale) -> [Mix; 3] {
    scale.shares.map(|share| Mix::Range((scale.keys as f64 * share) as u64))
}

fn run(scale: &Scale, point: Point) -> Result<Measurement, ReproduceError> {
    /// Room for inserts: more than a run makes.
    const ROOM: u64 = 200_000;
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let Clients { machines, threads, coroutines } = point.clients;
    let workers = (machines * threads) as u64;
    let longer = if point.mix == ranges(scale)[2] { scale.longer } else { 1 };
    let setting = Setting { memory_nodes: SERVERS, replicas: 1, workers, coroutines: coroutines as u64, archive: None };
    // A server must have room for the whole tree.
    let ordered = Some(OrderedSize { design: Design::Coarse(0), order: InsertOrder::Ordered, keys_first: None });
    let size = Size { records: scale.keys, inserts: 2 * ROOM, value_bytes: 32, ordered };
    let bench = Bench {
        sim: SimOptions { deployment: Deployment::Disaggregated, ..as_the_texts(profile, scale.seed) },
        memory_nodes: SERVERS,
        node_bytes: Ycsb::node_bytes(&size, &setting) as usize,
        replicas: 1,
        protocol: Protocol::DRTM_R,
        machines,
        threads,
        coroutines,
        warmup: scale.warmup * longer,
        measure: scale.measure * longer,
    };
    measure(&bench, || point.name(), |cluster| Trees::load(cluster, scale.keys, ROOM, &point))
}

struct Results<'a> {
    scale: &'a Scale,
    runs: Vec<(Point, Measurement)>,
}

impl Results<'_> {
    fn at(&self, system: System, mix: Mix, clients: Clients, skewed: bool) -> &Measurement {
        measured(&self.runs, &Point { system, mix, clients, skewed })
    }

    fn rows(&self) -> Vec<Row> {
        use System::{Coarse, Fine, Hybrid, Remembered};
        const POINTS: &str = "Ziegler thesis, section 10.6, point queries";
        const RANGES: &str = "Ziegler thesis, section 10.6, range queries";
        const INSERTS: &str = "Ziegler thesis, section 10.6, inserts";
        let [few, more, many] = self.scale.clients;
        let [small, large, largest] = ranges(self.scale);
        let rate = |system, mix, clients, skewed| self.at(system, mix, clients, skewed).throughput;
        let over = |one: System, other: System, mix, clients: Clients, skewed| {
            let ratio = rate(one, mix, clients, skewed) / rate(other, mix, clients, skewed);
            let what = Point { system: one, mix, clients, skewed }.name().replace(one.name(), "");
            (format!("{} over {}{what}, {} clients", one.name(), other.name(), clients.count()), ratio)
        };
        let row = |(name, ratio): (String, f64), source, holds: fn(f64) -> bool, note| {
            Row::ours(name, "x", ratio).said(source).holds(holds(ratio)).note(note)
        };
        let more_than_one = |ratio| ratio > 1.0;
        let about_one = |ratio: f64| (0.9..1.1).contains(&ratio);
        let mut rows: Vec<Row> = [(Coarse, 1.0), (Hybrid, 2.0), (Fine, 4.0), (Remembered, 1.0)]
            .into_iter()
            .map(|(system, published)| {
                let round_trips = self.at(system, Mix::Point, few, false).costs.round_trips;
                let row = Row::ours(format!("{}, round trips of a lookup", system.name()), "", round_trips);
                if system == Remembered {
                    row
                } else {
                    row.published(published, "Ziegler thesis, sections 10.3 to 10.5")
                }
                .note(VALIDATED)
            })
            .collect();
        rows.extend([
            row(over(Coarse, Fine, Mix::Point, many, false), POINTS, more_than_one, LINKS),
            row(over(Hybrid, Fine, Mix::Point, many, false), POINTS, more_than_one, LINKS),
            row(over(Coarse, Hybrid, Mix::Point, few, false), POINTS, more_than_one, LINKS),
            row(over(Hybrid, Coarse, Mix::Point, many, false), POINTS, more_than_one, LINKS),
        ]);
        let skew = |system: System, mix, clients| {
            let ratio = rate(system, mix, clients, true) / rate(system, mix, clients, false);
            (
                format!(
                    "{}, {} clients: skewed over even",
                    Point { system, mix, clients, skewed: false }.name(),
                    clients.count()
                ),
                ratio,
            )
        };
        let (name, ratio) = skew(Coarse, Mix::Point, many);
        rows.push(Row::ours(name, "x", ratio).published(0.8, POINTS).holds(ratio < 1.0).note(SKEW));
        for (mix, clients) in [(small, many), (largest, more)] {
            for system in [Fine, Hybrid] {
                let (name, ratio) = skew(system, mix, clients);
                rows.push(Row::ours(name, "x", ratio).published(1.0, RANGES).holds(about_one(ratio)).note(SKEW));
            }
            rows.extend([
                row(skew(Coarse, mix, clients), RANGES, |ratio| ratio < 0.9, SKEW),
                row(over(Fine, Coarse, mix, clients, true), RANGES, more_than_one, SKEW),
                row(over(Hybrid, Coarse, mix, clients, true), RANGES, more_than_one, SKEW),
            ]);
        }
        rows.push(row(over(Fine, Hybrid, largest, more, false), RANGES, |ratio| ratio > 0.8, LONG));
        let ratio = rate(Fine, small, more, false) / rate(Fine, large, more, false);
        rows.push(
            Row::ours("fine, one-sided: small ranges over ranges of ten times the size", "x", ratio)
                .published(10.0, RANGES)
                .holds(ratio > 5.0)
                .note(LONG),
        );
        let ratio = rate(Fine, large, more, false) / rate(Fine, largest, more, false);
        rows.push(Row::ours("fine, one-sided: large ranges over ranges of ten times the size", "x", ratio));
        for percent in [5, 50] {
            rows.push(row(over(Hybrid, Fine, Mix::Inserts(percent), more, false), INSERTS, more_than_one, ROOT));
            rows.push(row(over(Fine, Hybrid, Mix::Inserts(percent), many, false), INSERTS, more_than_one, ROOT));
        }
        let latency = |clients| {
            let of = |system| self.at(system, Mix::Point, clients, false).latency.p50;
            of(Coarse) / of(Fine)
        };
        let (light, heavy) = (latency(few), latency(many));
        let name =
            |clients: Clients| format!("median latency of coarse over fine, lookups, {} clients", clients.count());
        rows.extend([
            Row::ours(name(few), "x", light).said("Ziegler thesis, section 10.6: coarse lowest").holds(light < 1.0),
            Row::ours(name(many), "x", heavy)
                .said("Ziegler thesis, section 10.6: fine lower")
                .holds(heavy > 1.0)
                .note(ROOT),
        ]);
        for other in [Coarse, Hybrid, Fine] {
            let (name, ratio) = over(Remembered, other, Mix::Point, many, false);
            rows.push(Row::ours(name, "x", ratio));
        }
        rows
    }

    fn runs(&self) -> Vec<Run> {
        let run = |(point, measurement): &(Point, Measurement)| {
            measurement.run(point.name(), format!("{} clients", point.clients.count()))
        };
        let mut runs: Vec<Run> = self.runs.iter().map(run).collect();
        runs.sort_by(|one, other| (&one.name, &one.load).cmp(&(&other.name, &other.load)));
        runs
    }

    fn over_clients(&self) -> Vec<Series> {
        let line = |system: System| {
            let point = |clients: &Clients| {
                (clients.count() as f64, self.at(system, Mix::Point, *clients, false).throughput / 1e6)
            };
            Series { name: system.name().to_owned(), points: self.scale.clients.iter().map(point).collect() }
        };
        System::ALL.into_iter().map(line).collect()
    }
}

const VALIDATED: &str = "a lookup that reads its way validates what it has read, in one round more: the text's takes every READ for \
                         whole, and is torn";
const LINKS: &str = "a coarse server sends the value alone, and a hybrid one a leaf of 1 KiB, so that with many clients the hybrid servers' \
                     links are the bound here";
const ROOT: &str = "all that read their way READ the root, and the link of its server is the bound here; the text has servers whose \
                    threads spin on locks, which slows down those who ask";
const SKEW: &str = "the server that has 80 % of the keys is saturated here, and 1 / (4 x 0.8) of an even load is left; the text's has \
                    other bounds before";
const LONG: &str = "longer ranges are read in several rounds of 60 leaves, and validated in as many; and few of the large ones end \
                    within the time that is counted";
