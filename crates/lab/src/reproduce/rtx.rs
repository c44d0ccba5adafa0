//! The experiments of rTX ("Repairable transactions for indexes on disaggregated memory"), section
//! 6: what it costs that any client can finish or undo the operation of another one.
//!
//! A tree on one memory node is used by up to 5 machines with 24 threads each, with profile
//! `connectx4`. Nodes have 1 KiB, keys and values 8 bytes. Clients remember the inner nodes. The
//! text has 100 million keys, and here are a million. Three systems run the same tree:
//!
//! - *Optimal*, the protocol `native`: locks without logs. A client that dies leaves its locks.
//! - *DTX*, the protocol `drtm-h-one-sided`: optimistic transactions with a log of values.
//! - *rTX*, the protocol `rtx`.
//!
//! Optimal and rTX also run a RACE hash table (`rtx/race.rs`).
//!
//! Further experiments kill the clients of one of three machines, while all insert into the tree,
//! or into a RACE hash table that grows (`rtx/kill.rs`).

mod kill;
mod race;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remora::floors::txn::{Primitives, Rtx};
use remora::protocol::Protocol;
use remora::{Cluster, Error, OpenError, Ordered, OrderedOptions, Session, TransactionOptions};
use remora_fabric::sim::{Deployment, Profile, SimOptions};
use remora_fabric::splitmix;
use remora_workload::guestbook::{PARAMETERS, Parameters};
use remora_workload::ycsb::{Distribution, Kind, Mix, Zipf};
use remora_workload::{After, Invariant, Prng, Workload};

use super::numbers::{self, Number};
use super::{Measurement, ReproduceError, Reproduction, Row, as_the_texts, measure, measured, run_all, violated};
use crate::Bench;
use remora_command::plot::{Labels, Series};

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of keys that are loaded.
    pub keys: u64,
    /// The number of keys that are loaded into RACE hash tables.
    pub race_keys: u64,
    /// The number of client machines.
    pub machines: usize,
    /// The number of threads of each machine.
    pub threads: usize,
    /// The number of operations that each thread has in flight, from light to heavy load.
    pub coroutines: Vec<usize>,
    /// Virtual time before anything is counted.
    pub warmup: Duration,
    /// Virtual time that is counted.
    pub measure: Duration,
    /// Virtual time before clients are killed, and after that.
    pub around_kill: [Duration; 2],
    /// Simulations that run at the same time, each on a thread.
    pub parallel: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Scale {
    /// Returns the text's cluster.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        Scale {
            keys: 1_000_000,
            race_keys: 200_000,
            machines: 5,
            threads: 24,
            coroutines: vec![1, 2, 4],
            warmup: Duration::from_millis(1),
            measure: Duration::from_millis(3),
            around_kill: [Duration::from_millis(5), Duration::from_millis(20)],
            parallel: super::parallel(),
            seed,
        }
    }

    /// Returns few clients and a small tree, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale {
            keys: 200_000,
            race_keys: 50_000,
            machines: 2,
            threads: 8,
            coroutines: vec![1, 4],
            warmup: Duration::from_micros(300),
            measure: Duration::from_millis(1),
            around_kill: [Duration::from_millis(2), Duration::from_millis(16)],
            ..Scale::full(seed)
        }
    }

    fn most_in_flight(&self) -> usize {
        self.coroutines.last().copied().unwrap_or(1)
    }

    fn about(&self) -> Vec<String> {
        let loads: Vec<String> = self.coroutines.iter().map(ToString::to_string).collect();
        vec![
            "rTX, section 6: a tree with nodes of 1 KiB on one memory node, ConnectX-4".to_owned(),
            format!(
                "{} keys of 8 bytes, {} machines of {} threads with {} operations in flight, {} us of virtual time, seed {}",
                self.keys,
                self.machines,
                self.threads,
                loads.join(", "),
                self.measure.as_micros(),
                self.seed
            ),
        ]
    }
}

const PROFILE: &str = "connectx4";

/// The systems that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum System {
    Optimal,
    Dtx,
    Rtx,
    /// rTX that locks nothing in execution.
    LocksLate,
    /// rTX that locks nothing in execution, and always has a log.
    LogsAlways,
    /// rTX with clients that suspect a lock after this many microseconds.
    Suspects(u64),
}

impl System {
    const COMPARED: [System; 3] = [System::Optimal, System::Dtx, System::Rtx];
    /// Times after which clients suspect, from long to short, in microseconds.
    const SUSPICIONS: [u64; 4] = [8_000, 1_000, 100, 20];

    fn name(self) -> String {
        match self {
            System::Optimal => "Optimal".to_owned(),
            System::Dtx => "DTX".to_owned(),
            System::Rtx => "rTX".to_owned(),
            System::LocksLate => "rTX without early locks".to_owned(),
            System::LogsAlways => "rTX with neither optimization".to_owned(),
            System::Suspects(us) => format!("rTX, suspicion after {us} us"),
        }
    }

    fn protocol(self) -> Protocol {
        match self {
            System::Optimal => Protocol::NATIVE,
            System::Dtx => Protocol::Occ(Primitives::DRTM_H_ONE_SIDED),
            System::Rtx => Protocol::RTX,
            System::LocksLate => Protocol::Rtx(Rtx { locks_early: false, ..Rtx::USUAL }),
            System::LogsAlways => Protocol::Rtx(Rtx { locks_early: false, logs_always: true, ..Rtx::USUAL }),
            System::Suspects(us) => Protocol::Rtx(Rtx { suspicion_ns: us * 1_000, ..Rtx::USUAL }),
        }
    }
}

/// The operations of clients: those of YCSB as the text has them, or inserts alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operations {
    A,
    B,
    C,
    D,
    E,
    Inserts,
}

impl Operations {
    const YCSB: [Operations; 5] = [Operations::A, Operations::B, Operations::C, Operations::D, Operations::E];

    fn name(self) -> &'static str {
        match self {
            Operations::A => "YCSB A",
            Operations::B => "YCSB B",
            Operations::C => "YCSB C",
            Operations::D => "YCSB D",
            Operations::E => "YCSB E",
            Operations::Inserts => "inserts",
        }
    }

    /// Returns the mix. The text's B has 10 % updates, and its E scans of up to 100 keys.
    fn mix(self, skewed: bool) -> Mix {
        let distribution = match self {
            Operations::D => Distribution::Latest(Mix::THETA),
            _ if skewed => Distribution::Zipf(Mix::THETA),
            _ => Distribution::Uniform,
        };
        let (read, read_share, other) = match self {
            Operations::A => (Kind::Read, 0.5, Kind::Update),
            Operations::B => (Kind::Read, 0.9, Kind::Update),
            Operations::C => (Kind::Read, 1.0, Kind::Update),
            Operations::D => (Kind::Read, 0.95, Kind::Insert),
            Operations::E => (Kind::Scan, 0.95, Kind::Insert),
            Operations::Inserts => (Kind::Read, 0.0, Kind::Insert),
        };
        Mix { read, read_share, other, distribution, operations: 1 }
    }
}

/// How many clients there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Clients {
    /// One client, with one operation at a time.
    One,
    /// All threads, each with this many operations in flight.
    All(usize),
}

/// One simulation of a tree.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    system: System,
    operations: Operations,
    skewed: bool,
    clients: Clients,
}

impl Point {
    fn name(&self) -> String {
        let skewed = if self.skewed { ", skewed" } else { "" };
        format!("{}, {}{skewed}", self.system.name(), self.operations.name())
    }

    fn load(&self) -> String {
        match self.clients {
            Clients::One => "one client".to_owned(),
            Clients::All(coroutines) => format!("{coroutines} in flight"),
        }
    }
}

// ---- the tree -----------------------------------------------------------------------------------

/// A tree. Loaded keys are multiples of [`Tree::APART`], and inserted ones lie between them.
struct Tree {
    table: Ordered<u64, Number>,
    keys: u64,
    mix: Mix,
    zipf: Zipf,
    /// The number of inserts that have begun.
    begun: AtomicU64,
}

impl Tree {
    /// Room for inserts: more than a run makes.
    const ROOM: u64 = 1_000_000;
    /// Bytes of the memory node. With copies on write, a node of the tree takes twice its size.
    const NODE_BYTES: usize = 1 << 30;
    /// Loaded keys have this distance.
    const APART: u64 = 1 << 24;
    /// The longest scan of YCSB E.
    const SCAN_MAX: u64 = 100;

    fn load(cluster: &Cluster, keys: u64, mix: Mix) -> Result<Tree, OpenError> {
        let options = OrderedOptions::for_rows(keys + Tree::ROOM).grows(false);
        let table = cluster.load_ordered("tree", options, (0..keys).map(|key| (key * Tree::APART, Number(key))))?;
        let theta = match mix.distribution {
            Distribution::Zipf(theta) | Distribution::Latest(theta) => theta,
            Distribution::Uniform => 0.0,
        };
        Ok(Tree { table, keys, mix, zipf: Zipf::new(keys, theta), begun: AtomicU64::new(0) })
    }

    /// Returns the key that the n-th insert adds. Inserts are spread over the tree.
    fn inserted(&self, number: u64) -> u64 {
        (splitmix(number) % self.keys) * Tree::APART + 1 + number % (Tree::APART - 1)
    }

    /// Draws a key that is there, or is about to be.
    fn draw(&self, random: &mut Prng) -> u64 {
        match self.mix.distribution {
            Distribution::Uniform => random.below(self.keys) * Tree::APART,
            Distribution::Zipf(_) => splitmix(self.zipf.draw(random)) % self.keys * Tree::APART,
            Distribution::Latest(_) => {
                let age = self.zipf.draw(random);
                let latest = self.begun.load(Ordering::Relaxed).checked_sub(1 + age);
                latest.map_or(splitmix(age) % self.keys * Tree::APART, |number| self.inserted(number))
            }
        }
    }

    /// Inserts the next key.
    async fn insert(&self, session: &mut Session) -> Result<bool, Error> {
        let key = self.inserted(self.begun.fetch_add(1, Ordering::Relaxed));
        let label = TransactionOptions::default().label(3);
        let put = session.transact_with(label, async |tx| self.table.put(tx, key, Number(key)).await).await?;
        Ok(put.is_none())
    }
}

impl Workload for Tree {
    /// Counts the inserted keys.
    type Ledger = i64;

    const NAME: &'static str = "rtx-tree";
    const TYPES: &'static [&'static str] = &["read", "update", "scan", "insert"];
    const INVARIANTS: &'static [&'static str] = &numbers::INVARIANTS;

    fn open(_: &Cluster, _: &Parameters) -> Result<Tree, OpenError> {
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
        match self.mix.draw(random) {
            Kind::Insert => *inserted += i64::from(self.insert(session).await?),
            Kind::Update | Kind::ReadModifyWrite => {
                let (key, value) = (self.draw(random), Number(random.next_u64()));
                session.transact_with(label(1), async |tx| self.table.put(tx, key, value).await).await?;
            }
            Kind::Scan => {
                let (from, count) = (self.draw(random), 1 + random.below(Tree::SCAN_MAX) as usize);
                session.transact_with(label(2), async |tx| self.table.scan(tx, from.., count).await).await?;
            }
            Kind::Read => {
                let key = self.draw(random);
                session.transact_with(label(0), async |tx| self.table.get(tx, key).await).await?;
            }
        }
        Ok(())
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        numbers::invariants(cluster, &self.table, self.keys, &after)
    }
}

/// Returns a cluster of one memory node, and of machines of clients.
fn bench(scale: &Scale, protocol: Protocol, machines: usize, coroutines: usize) -> Result<Bench, ReproduceError> {
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    Ok(Bench {
        sim: SimOptions { deployment: Deployment::Disaggregated, ..as_the_texts(profile, scale.seed) },
        memory_nodes: 1,
        node_bytes: Tree::NODE_BYTES,
        replicas: 1,
        protocol,
        machines,
        threads: scale.threads,
        coroutines,
        warmup: scale.warmup,
        measure: scale.measure,
    })
}

fn run(scale: &Scale, point: Point) -> Result<Measurement, ReproduceError> {
    let (machines, threads, coroutines) = match point.clients {
        Clients::One => (1, 1, 1),
        Clients::All(coroutines) => (scale.machines, scale.threads, coroutines),
    };
    let bench = Bench { threads, ..bench(scale, point.system.protocol(), machines, coroutines)? };
    let mix = point.operations.mix(point.skewed);
    measure(&bench, || point.name(), |cluster| Tree::load(cluster, scale.keys, mix))
}

// ---- experiments --------------------------------------------------------------------------------

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 4] = [
    "RACE under DTX",
    "the factors OCC, ICommit and Log one by one: DTX has all three",
    "machines that are killed under DTX: its clients wait for a recoverer, which the simulation has not",
    "many locks of one transaction (figure 18-b): no lock has a lease here",
];

const LABELS: Labels<'static> = Labels {
    title: "YCSB A on a tree, skewed, 1 memory node, simulated (connectx4)",
    x: "operations in flight of each thread",
    y: "million operations a second",
};

/// Lists every simulation of trees once.
fn points(scale: &Scale) -> Vec<Point> {
    let all = Clients::All(scale.most_in_flight());
    let mut points = Vec::new();
    let mut add = |system, operations, skewed, clients| {
        let point = Point { system, operations, skewed, clients };
        if !points.contains(&point) {
            points.push(point);
        }
    };
    for system in System::COMPARED {
        for operations in Operations::YCSB {
            add(system, operations, false, all);
            if operations != Operations::D {
                add(system, operations, true, all);
            }
        }
        for clients in scale.coroutines.iter().map(|coroutines| Clients::All(*coroutines)) {
            add(system, Operations::A, true, clients);
        }
        for skewed in [false, true] {
            add(system, Operations::A, skewed, Clients::One);
        }
    }
    for system in System::COMPARED.into_iter().chain([System::LocksLate, System::LogsAlways]) {
        add(system, Operations::Inserts, false, all);
        add(system, Operations::Inserts, false, Clients::One);
    }
    for operations in [Operations::A, Operations::B] {
        add(System::LocksLate, operations, true, all);
    }
    for us in System::SUSPICIONS {
        add(System::Suspects(us), Operations::A, true, all);
    }
    points
}

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run. An invariant that does not hold is not an error: see
/// [`Reproduction::violated`].
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    const KILLS: usize = 5;
    let points = points(scale);
    let of_races = race::count(scale);
    let seen = |done, all| look(done, all + KILLS + of_races);
    let runs = run_all(&points, scale.parallel, &seen, |point| run(scale, point))?;
    let results = Results { scale, runs: &runs };
    let mut rows = results.rows();
    rows.extend(kill::of_tree(scale, System::Optimal)?);
    seen(runs.len() + 1, runs.len());
    rows.extend(kill::of_tree(scale, System::Rtx)?);
    seen(runs.len() + 2, runs.len());
    rows.extend(kill::of_tree(scale, System::Suspects(1_000))?);
    seen(runs.len() + 3, runs.len());
    for (number, system) in [System::Rtx, System::Optimal].into_iter().enumerate() {
        rows.extend(kill::of_race(scale, system)?);
        seen(runs.len() + 4 + number, runs.len());
    }
    rows.extend(race::rows(scale, &|done, _| seen(runs.len() + KILLS + done, runs.len()))?);
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.machines == 5 && scale.threads == 24,
        rows,
        runs: runs.iter().map(|(point, measurement)| measurement.run(point.name(), point.load())).collect(),
        left_out: &LEFT_OUT,
        violated: violated(&runs, Point::name),
        labels: LABELS,
        series: results.over_loads(),
    })
}

struct Results<'a> {
    scale: &'a Scale,
    runs: &'a [(Point, Measurement)],
}

impl Results<'_> {
    fn at(&self, system: System, operations: Operations, skewed: bool, clients: Clients) -> &Measurement {
        measured(self.runs, &Point { system, operations, skewed, clients })
    }

    /// Returns the measurement under the most_in_flight load.
    fn peak(&self, system: System, operations: Operations, skewed: bool) -> &Measurement {
        self.at(system, operations, skewed, Clients::All(self.scale.most_in_flight()))
    }

    /// Returns the peak throughput of one system over that of another, with a name.
    fn over(&self, one: System, other: System, operations: Operations, skewed: bool) -> (String, f64) {
        let ratio = self.peak(one, operations, skewed).throughput / self.peak(other, operations, skewed).throughput;
        let skewed = if skewed { ", skewed" } else { "" };
        (format!("{}{skewed}: {} over {}", operations.name(), one.name(), other.name()), ratio)
    }

    fn rows(&self) -> Vec<Row> {
        use Operations::{A, B, C, D, E, Inserts};
        use System::{Dtx, LocksLate, Optimal, Rtx};
        const PEAK: &str = "rTX, section 6.1";
        const FACTORS: &str = "rTX, section 6.3";
        const BYTES: &str = "rTX, section 6, table 2";
        let mut rows = Vec::new();
        let costs = |system: System| self.at(system, Inserts, false, Clients::One).costs;
        for (system, read, written, atomics) in
            [(Optimal, 1024.0, 1032.0, 1.0), (Dtx, 1040.0, 2056.0, 1.0), (System::Rtx, 1040.0, 1032.0, 3.0)]
        {
            let (name, costs) = (system.name(), costs(system));
            let row = |what: &str, unit, ours| Row::ours(format!("an insert by {name}: {what}"), unit, ours);
            rows.extend([
                row("bytes from memory", "B", costs.bytes_in).published(read, BYTES).note(PAYLOAD),
                row("bytes to memory", "B", costs.bytes_out).published(written, BYTES).note(PAYLOAD),
                row("atomics", "", costs.atomics).published(atomics, BYTES).note(ATOMICS),
                row("round trips", "", costs.round_trips),
            ]);
        }
        let share = |(name, ratio): (String, f64), published, note| {
            Row::ours(name, "x", ratio).published(published, PEAK).holds(ratio < 1.0).note(note)
        };
        for (operations, published) in [(A, 0.87), (B, 0.90), (C, 0.92), (D, 0.92)] {
            rows.push(share(self.over(Rtx, Optimal, operations, false), published, LINK));
        }
        for (operations, published) in [(A, 0.58), (B, 0.60), (E, 0.92)] {
            rows.push(share(self.over(Rtx, Optimal, operations, true), published, HOT));
        }
        rows.push(share(self.over(Rtx, Dtx, C, false), 0.93, LINK));
        for operations in [A, B] {
            let (name, ratio) = self.over(Rtx, Dtx, operations, true);
            rows.push(Row::ours(name, "x", ratio).published(1.2, PEAK).holds(ratio > 1.0).note(DTX));
        }
        let latency = |system: System, operations, skewed| {
            let of = |system| self.at(system, operations, skewed, Clients::One).latency.mean;
            of(system) / of(Optimal)
        };
        for skewed in [false, true] {
            let ratio = latency(Rtx, A, skewed);
            let name =
                format!("YCSB A{}, one client: latency of rTX over Optimal", if skewed { ", skewed" } else { "" });
            rows.push(Row::ours(name, "x", ratio).published(1.6, PEAK).holds(ratio > 1.0).note(LATENCY));
        }
        // The products of the published factors, up to the log of values, and up to all.
        for (system, throughput, took) in [(Dtx, 0.67 * 0.86 * 0.74, 1.35 * 1.7), (Rtx, 0.65, 1.6)] {
            let (name, ratio) = self.over(system, Optimal, Inserts, false);
            rows.push(Row::ours(name, "x", ratio).published(throughput, FACTORS).holds(ratio < 1.0).note(LADDER));
            let ratio = latency(system, Inserts, false);
            let name = format!("inserts, one client: latency of {} over Optimal", system.name());
            rows.push(Row::ours(name, "x", ratio).published(took, FACTORS).holds(ratio > 1.0).note(LADDER));
        }
        // The ladder, one rung after the other. DTX is the text's third rung.
        let rungs = [(System::LogsAlways, Dtx, 1.06, 1.0, SEPARATE), (Rtx, System::LogsAlways, 1.43, 0.70, OPTIMIZED)];
        for (system, before, throughput, took, note) in rungs {
            let (name, ratio) = self.over(system, before, Inserts, false);
            rows.push(Row::ours(name, "x", ratio).published(throughput, FACTORS).holds(ratio > 1.0).note(note));
            let of = |system| self.at(system, Inserts, false, Clients::One).latency.mean;
            let ratio = of(system) / of(before);
            let name = format!("inserts, one client: latency of {} over {}", system.name(), before.name());
            rows.push(Row::ours(name, "x", ratio).published(took, FACTORS).holds(ratio < 1.05).note(note));
        }
        let (name, ratio) = self.over(LocksLate, System::LogsAlways, Inserts, false);
        rows.push(Row::ours(name, "x", ratio).said(FACTORS).holds(ratio > 1.0).note(OPTIMIZED));
        for (operations, skewed) in [(Inserts, false), (A, true), (B, true)] {
            let (name, ratio) = self.over(Rtx, LocksLate, operations, skewed);
            rows.push(Row::ours(name, "x", ratio).said(FACTORS).holds(ratio > 1.0).note(EARLY));
        }
        let usual = self.peak(System::Suspects(System::SUSPICIONS[0]), A, true).throughput;
        for us in &System::SUSPICIONS[1..] {
            let ratio = self.peak(System::Suspects(*us), A, true).throughput / usual;
            rows.push(Row::ours(format!("YCSB A, skewed: suspicion after {us} us over 8,000 us"), "x", ratio));
        }
        rows
    }

    fn over_loads(&self) -> Vec<Series> {
        let line = |system: System| {
            let point = |coroutines: &usize| {
                let clients = Clients::All(*coroutines);
                (*coroutines as f64, self.at(system, Operations::A, true, clients).throughput / 1e6)
            };
            Series { name: system.name(), points: self.scale.coroutines.iter().map(point).collect() }
        };
        System::COMPARED.into_iter().map(line).collect()
    }
}

const PAYLOAD: &str = "a leaf has a header, and its record has a lock and a version or a place";
const ATOMICS: &str = "Optimal and DTX free their locks by a CAS here, and by a WRITE of 8 bytes in the text";
const LINK: &str = "the memory node's link is the bound, and most of what goes over it is leaves";
const HOT: &str = "as in Sherman, a get of Optimal heeds no lock";
const DTX: &str =
    "a get of rTX takes two round trips in which the leaf must be free, and updates hold their early locks for two";
const LATENCY: &str = "1.6 to 2 in the text, whose rTX reads in three round trips, and this one in two";
const LADDER: &str = "DTX has the first three factors of the text, and rTX all of them";
const SEPARATE: &str = "the log is smaller, but all words of a commit are swapped: 12 verbs an insert, and 7 under DTX";
const OPTIMIZED: &str = "without the log, and with an early lock";
const EARLY: &str = "an early lock is held for a round trip longer, and readers of hot leaves wait for it";
