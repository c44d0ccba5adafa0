//! The experiments of XStore (Wei thesis, chapter 3). Clients that find leaves by a learned cache
//! are compared with clients that keep all inner nodes, some of them or none, and with a server's
//! CPU.
//!
//! The cluster has one server and 15 machines, profile `connectx4`. There are two kinds of
//! experiment.
//!
//! *Bare verbs* are the text's own experiments. A client READs the keys of a leaf with 16 slots,
//! then a value. Clients' CPUs are charged the times that the text measured (0.35 us for a lookup
//! in its models, 2.14 us for a walk through all inner nodes). The cache is Remora's
//! ([`remora::floors::index::learned`]). It is asked for every key, so wrong predictions cost READs
//! here. Fences are read with the keys, because a leaf proves by them which keys it has. That is 16
//! B more than published.
//!
//! *Ordered tables* are Remora's: transactions, leaves of 16 slots whose keys come first, changes
//! by calls, and inserts that split leaves. Leaves of 1 KiB are beside them.

mod store;

use std::time::{Duration, Instant};

use remora::floors::index::learned::{Learned, Size};
use remora::floors::txn::{FirstRead, Primitives};
use remora::protocol::Protocol;
use remora::{Cluster, Design, Ordered, OrderedOptions};
use remora_fabric::FabricError;
use remora_fabric::sim::{Deployment, Profile, SimOptions};
use remora_workload::ycsb::{self, InsertOrder, OrderedSize, Ycsb, Zipf};
use remora_workload::{Prng, Setting};

use self::store::{Mix, Store};
use super::{Measurement, ReproduceError, Reproduction, Row, Run, as_the_texts, measure, measured, run_all, violated};
use crate::Bench;
use crate::hardware::rig::{Client, Rig};
use remora_command::plot::{Labels, Series};

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of keys of the cache whose memory is counted.
    pub cached: u64,
    /// The number of keys that clients look up.
    pub keys: u64,
    /// The numbers of client machines for bare verbs, from few to all.
    pub machines: Vec<usize>,
    /// The number of threads of each machine.
    pub threads: usize,
    /// The number of client machines for ordered tables.
    pub of_tables: usize,
    /// Virtual time that is counted for bare verbs, in microseconds.
    pub measure_us: u64,
    /// Virtual time that is counted for ordered tables.
    pub measure: Duration,
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
            cached: 100_000_000,
            keys: 1_000_000,
            machines: vec![1, 2, 4, 8, 15],
            threads: 24,
            of_tables: 15,
            measure_us: 400,
            measure: Duration::from_millis(2),
            parallel: super::parallel(),
            seed,
        }
    }

    /// Returns few keys, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale {
            cached: 400_000,
            keys: 100_000,
            machines: vec![1, 6],
            of_tables: 2,
            measure_us: 150,
            measure: Duration::from_micros(300),
            ..Scale::full(seed)
        }
    }

    fn about(&self) -> Vec<String> {
        vec![
            "XStore (Wei thesis, chapter 3): one server, 15 machines of 24 threads, ConnectX-4".to_owned(),
            format!(
                "{} keys of 8 bytes, {} in the cache whose memory is counted, seed {}",
                self.keys, self.cached, self.seed
            ),
        ]
    }
}

const PROFILE: &str = "connectx4";
/// The number of slots of a leaf, and of keys in it.
const SLOTS: u64 = 16;
const FILLED: u64 = SLOTS / 2;
/// The bytes of a leaf's header, fences and keys.
const LEAF_BYTES: usize = 8 + 2 * 8 + 8 * SLOTS as usize;
/// The bytes of an inner node: header, fences, keys and children.
const INNER_BYTES: usize = LEAF_BYTES + 8 * SLOTS as usize;
/// The bytes of a record's header and its key.
const RECORD_BYTES: usize = 24 + 8;
/// The bytes of a value with its key and its version.
const VALUE_BYTES: usize = 24;
/// The levels of inner nodes (Wei thesis, section 3.7).
const LEVELS: u64 = 8;
const MODEL_NS: u64 = 350;
const WALK_NS: u64 = 2140;
/// CPU time that Remora's ordered tables charge a memory node for a descent: see `remora_txn`.
const SERVE_NS: u64 = 308 + 70 * LEVELS;
/// Clients that READ what they look up, and leave changes to the memory node's CPU.
const CLIENT_DIRECT: Protocol =
    Protocol::Occ(Primitives { execute: FirstRead::OneSided { cached: true }, ..Primitives::FARM });
/// The number of coroutines of a thread.
const COROUTINES: usize = 4;
/// The number of links that a lookup follows at most.
const HOPS_MAX: u64 = 4;

// ---- bare verbs ---------------------------------------------------------------------------------

/// The way in which a client finds a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    TwoSided,
    Uncached,
    /// The levels that are at least four above leaves are cached, as in Cell.
    Cell,
    WholeIndex,
    Learned,
    /// The translation table stays at the server.
    ModelsOnly,
    /// The translation table and the sub-models stay at the server.
    TopOnly,
}

impl Way {
    const ALL: [Way; 7] =
        [Way::TwoSided, Way::Uncached, Way::Cell, Way::WholeIndex, Way::Learned, Way::ModelsOnly, Way::TopOnly];

    fn name(self) -> &'static str {
        match self {
            Way::TwoSided => "two-sided",
            Way::Uncached => "uncached",
            Way::Cell => "top levels cached",
            Way::WholeIndex => "whole index cached",
            Way::Learned => "learned",
            Way::ModelsOnly => "learned, models only",
            Way::TopOnly => "learned, top model only",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Bare {
    way: Way,
    is_zipf: bool,
    /// The number of client machines. `None` means one client alone, whose latency is measured.
    machines: Option<usize>,
}

/// Keys that were drawn evenly, with what a client has learnt about their leaves.
struct Index {
    /// The low fence of each leaf. The id of a leaf is its index here plus one.
    lows: Vec<u64>,
    learned: Learned,
    size: Size,
    zipf: Zipf,
    keys: u64,
}

impl Index {
    fn new(keys: u64, seed: u64) -> Index {
        let lows: Vec<u64> = lows(keys, seed).collect();
        let learned = Learned::of_leaves(8, lows.iter().zip(1..).map(|(low, id)| (low.to_be_bytes(), id)));
        let size = learned.size();
        Index { lows, learned, size, zipf: Zipf::new(keys, ycsb::Mix::THETA), keys }
    }

    fn draw(&self, random: &mut Prng, is_zipf: bool) -> u64 {
        let of_leaf = |rank: u64| rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.keys / FILLED;
        let leaf = if is_zipf { of_leaf(self.zipf.draw(random)) } else { random.below(self.lows.len() as u64) };
        let low = self.lows[leaf as usize % self.lows.len()];
        let high = self.lows.get(leaf as usize + 1).copied().unwrap_or(u64::MAX);
        low + random.below((high - low).max(1))
    }

    /// Returns the number of READs that a lookup takes. Links lead to leaves to the right. A leaf
    /// to the left is looked up from the root.
    fn leaves_read(&self, key: u64) -> u64 {
        let leaf = self.lows.partition_point(|low| *low <= key) as u64;
        match self.learned.find(&key.to_be_bytes()) {
            Some(id) if id <= leaf && leaf - id <= HOPS_MAX => 1 + leaf - id,
            Some(_) => 1 + LEVELS,
            None => LEVELS,
        }
    }
}

/// Draws the low fences of leaves that have eight of `keys` keys each, which are spread evenly.
fn lows(keys: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mean = u64::MAX / keys;
    let (mut random, mut low) = (Prng::new(seed), 0_u64);
    // Gaps between neighbours of many random keys are exponential.
    let mut gap = move || (mean as f64 * -(1.0 - random.unit()).ln()) as u64;
    (0..keys / FILLED)
        .map(move |_| {
            let this = low;
            low = low.saturating_add((0..FILLED).map(|_| gap()).sum::<u64>().max(1));
            this
        })
        .take_while(|low| *low < u64::MAX)
}

async fn look_up(client: &Client<'_>, index: &Index, bare: Bare) -> Result<f64, FabricError> {
    let charge = |time| client.lane.endpoint().charge(time);
    let mut random = Prng::new(client.lane.random());
    let key = index.draw(&mut random, bare.is_zipf);
    let inner = match bare.way {
        Way::TwoSided => return client.call().await,
        Way::Uncached => LEVELS - 1,
        Way::Cell => 3,
        _ => 0,
    };
    for _ in 0..inner {
        client.read(INNER_BYTES).await?;
    }
    let mut leaves = 1;
    match bare.way {
        Way::WholeIndex => charge(WALK_NS),
        Way::Learned | Way::ModelsOnly | Way::TopOnly => {
            charge(MODEL_NS);
            leaves = index.leaves_read(key);
            if bare.way == Way::TopOnly {
                client.read(32).await?;
            }
            if bare.way != Way::Learned {
                client.read(8 * index.size.searched.ceil() as usize).await?;
            }
        }
        _ => {}
    }
    for _ in 0..leaves {
        client.read(LEAF_BYTES).await?;
    }
    client.read(VALUE_BYTES).await
}

fn run_bare(scale: &Scale, index: &Index, bare: Bare) -> Result<f64, ReproduceError> {
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let sim = SimOptions::new(profile, scale.seed);
    let body = async |client: &Client<'_>| look_up(client, index, bare).await;
    Ok(match bare.machines {
        None => Rig { work: SERVE_NS, ..Rig::pair(&sim) }.time(body)?,
        Some(machines) => {
            let rig = Rig { work: SERVE_NS, ..Rig::server(&sim, machines, scale.threads, 4) };
            rig.for_us(scale.measure_us, scale.measure_us).rate(body)?
        }
    })
}

// ---- ordered tables -----------------------------------------------------------------------------

/// The way in which clients of an ordered table find leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    TwoSided,
    WholeIndex,
    Learned,
}

impl Memory {
    const ALL: [Memory; 3] = [Memory::TwoSided, Memory::WholeIndex, Memory::Learned];

    fn name(self) -> &'static str {
        match self {
            Memory::TwoSided => "two-sided",
            Memory::WholeIndex => "all leaves remembered",
            Memory::Learned => "learned",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct InTable {
    memory: Memory,
    mix: Mix,
    /// Whether leaves have 16 slots and their keys first, as the text's. Otherwise they have 1 KiB
    /// and are read whole.
    keys_first: bool,
    /// The number of servers. If there are several, each has a range of the keys.
    servers: u16,
}

fn name(point: &InTable) -> String {
    let leaves = if point.keys_first { "" } else { ", whole leaves" };
    let servers = if point.servers == 1 { String::new() } else { format!(", {} servers", point.servers) };
    format!("ordered table{leaves}, YCSB {:?}, {}{servers}", point.mix, point.memory.name())
}

fn run_table(scale: &Scale, point: InTable) -> Result<Measurement, ReproduceError> {
    /// Room for inserts: more than a run makes.
    const ROOM: u64 = 200_000;
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let is_coarse = point.memory == Memory::TwoSided || point.servers > 1;
    let design = if is_coarse { Design::Coarse(0) } else { Design::Fine };
    let keys_first = point.keys_first.then_some(SLOTS as u16);
    let mut options = OrderedOptions::for_rows(scale.keys + ROOM).design(design).grows(false);
    options.keys_first = keys_first;
    // Keys are spread evenly.
    let share = u64::MAX / u64::from(point.servers);
    options = options.split_at((1..u64::from(point.servers)).map(|server| server * share));
    // Rows of YCSB, which are larger, are enough.
    let ordered = Some(OrderedSize { design, order: InsertOrder::Hashed, keys_first });
    let size = ycsb::Size { records: scale.keys, inserts: ROOM, value_bytes: 32, ordered };
    let workers = (scale.of_tables * scale.threads) as u64;
    let setting =
        Setting { memory_nodes: point.servers, replicas: 1, workers, coroutines: COROUTINES as u64, archive: None };
    let bench = Bench {
        sim: SimOptions { deployment: Deployment::Disaggregated, ..as_the_texts(profile, scale.seed) },
        memory_nodes: point.servers,
        node_bytes: Ycsb::node_bytes(&size, &setting) as usize,
        replicas: 1,
        protocol: if point.memory == Memory::TwoSided { Protocol::FASST } else { CLIENT_DIRECT },
        machines: scale.of_tables,
        threads: scale.threads,
        coroutines: COROUTINES,
        warmup: scale.measure / 10,
        measure: scale.measure,
    };
    let handle = |table: Ordered<u64, u64>| match point.memory {
        Memory::TwoSided => table.without_memory().by_call(),
        Memory::WholeIndex => table.by_call(),
        Memory::Learned => table.learned().by_call(),
    };
    let load = |cluster: &Cluster| Store::load(cluster, (scale.keys, point.mix), options, handle);
    measure(&bench, || name(&point), load)
}

// ---- results ------------------------------------------------------------------------------------

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 6] = [
    "neural networks and multi-variate lines as top models: cuts spread keys evenly, whatever they are",
    "training at the server, in the background: a client fits a part again when it sees a split",
    "updates without position hints, and without logging",
    "Nutanix's and OpenStreetMap's data",
    "the bare verbs' leaves have no content: which of them a lookup READs is what the cache says",
    "ordered tables whose clients remember nothing: at one memory node they ask its CPU, which is two-sided",
];

const SOURCE: &str = "Wei thesis, section 3.7";

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run. An invariant that does not hold is not an error: see
/// [`Reproduction::violated`].
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let (bare, tables) = (bare_points(scale), table_points());
    let all = bare.len() + tables.len();
    let index = Index::new(scale.keys, scale.seed);
    let bare = run_all(&bare, scale.parallel, &|done, _| look(done, all), |point| run_bare(scale, &index, point))?;
    let tables =
        run_all(&tables, scale.parallel, &|done, _| look(bare.len() + done, all), |point| run_table(scale, point))?;
    let violated = violated(&tables, name);
    let results = Results { scale, index: &index, bare, tables };
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.machines.contains(&15) && scale.cached == 100_000_000,
        rows: results.rows(),
        runs: results.runs(),
        left_out: &LEFT_OUT,
        violated,
        labels: LABELS,
        series: results.over_machines(),
    })
}

const LABELS: Labels<'static> = Labels {
    title: "Lookups at one server, simulated (connectx4), YCSB C, uniform",
    x: "client machines",
    y: "million lookups a second",
};

fn bare_points(scale: &Scale) -> Vec<Bare> {
    let mut points = Vec::new();
    for way in Way::ALL {
        points.extend(scale.machines.iter().rev().map(|machines| Bare {
            way,
            is_zipf: false,
            machines: Some(*machines),
        }));
        points.push(Bare { way, is_zipf: true, machines: scale.machines.last().copied() });
        points.push(Bare { way, is_zipf: false, machines: None });
    }
    points
}

fn table_points() -> Vec<InTable> {
    let mixes = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E];
    let all = mixes.map(|mix| (mix, true)).into_iter().chain([(Mix::C, false)]);
    let one =
        all.flat_map(|(mix, keys_first)| Memory::ALL.map(|memory| InTable { memory, mix, keys_first, servers: 1 }));
    let several = [2, 3].map(|servers| InTable { memory: Memory::Learned, mix: Mix::C, keys_first: true, servers });
    one.chain(several).collect()
}

/// Returns the bytes of the inner nodes above `leaves` leaves, as a client keeps them: records of
/// 312 B. The inner nodes are half full, as the leaves are.
fn inner_bytes(leaves: u64) -> u64 {
    let (mut below, mut nodes) = (leaves, 0);
    while below > 1 {
        below = below.div_ceil(FILLED);
        nodes += below;
    }
    nodes * (INNER_BYTES + RECORD_BYTES) as u64
}

struct Results<'a> {
    scale: &'a Scale,
    index: &'a Index,
    bare: Vec<(Bare, f64)>,
    tables: Vec<(InTable, Measurement)>,
}

impl Results<'_> {
    fn bare(&self, way: Way, is_zipf: bool, machines: Option<usize>) -> f64 {
        *measured(&self.bare, &Bare { way, is_zipf, machines })
    }

    fn table(&self, memory: Memory, mix: Mix, keys_first: bool) -> &Measurement {
        measured(&self.tables, &InTable { memory, mix, keys_first, servers: 1 })
    }

    /// Returns how many times as many lookups several servers serve as one does.
    fn scale_out(&self, servers: u16) -> f64 {
        let of = |servers| InTable { memory: Memory::Learned, mix: Mix::C, keys_first: true, servers };
        measured(&self.tables, &of(servers)).throughput / measured(&self.tables, &of(1)).throughput
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.memory();
        rows.extend(self.lookups());
        rows.extend(self.in_tables());
        rows
    }

    fn memory(&self) -> Vec<Row> {
        let leaves = self.scale.cached / FILLED;
        let lows = lows(self.scale.cached, self.scale.seed).zip(1..).map(|(low, id)| (low.to_be_bytes(), id));
        let began = Instant::now();
        let size = Learned::of_leaves(8, lows).size();
        tracing::debug!(?size, took = ?began.elapsed(), "learnt");
        let (cache, inner) = (size.bytes as f64, inner_bytes(leaves) as f64);
        let megabytes = |bytes: f64| bytes / 1e6;
        let searched: f64 = self.index.size.searched;
        let mut random = Prng::new(self.scale.seed);
        const PROBES: u64 = 100_000;
        let read: u64 = (0..PROBES).map(|_| self.index.leaves_read(self.index.draw(&mut random, false))).sum();
        vec![
            Row::ours("memory: learned cache", "MB", megabytes(cache)).published(107.0, SOURCE),
            Row::ours("memory: its models", "MB", megabytes(size.model_bytes as f64))
                .published(6.8, SOURCE)
                .note(MODELS),
            Row::ours("memory: all inner nodes", "MB", megabytes(inner)).published(654.0, SOURCE),
            Row::ours("memory: learned cache over inner nodes, at most a fifth", "x", cache / inner)
                .published(107.0 / 654.0, SOURCE)
                .holds(cache / inner <= 0.2),
            Row::ours("leaves READ by a lookup", "", read as f64 / PROBES as f64)
                .published(2.26, "Wei thesis, section 3.4: all leaves within the bounds")
                .holds(read < 3 * PROBES / 2)
                .note(SEPARATORS),
            Row::ours("entries within a lookup's bounds", "", searched),
        ]
    }

    fn lookups(&self) -> Vec<Row> {
        let most = self.scale.machines.last().copied();
        let uniform = |way| self.bare(way, false, most);
        let zipf = |way| self.bare(way, true, most);
        let alone = |way| self.bare(way, false, None);
        let published = [
            (Way::Learned, 82.0, None),
            (Way::WholeIndex, 78.0, None),
            (Way::TwoSided, 22.2, None),
            (Way::Uncached, 7.0, Some(UNCACHED)),
            (Way::Cell, 14.5, Some(UNCACHED)),
            (Way::ModelsOnly, 0.74 * 78.0, Some(MODES)),
            (Way::TopOnly, 40.0, Some(MODES)),
        ];
        let mut rows: Vec<Row> = published
            .into_iter()
            .map(|(way, published, note)| {
                let row =
                    Row::ours(format!("C uniform: {}", way.name()), "M/s", uniform(way)).published(published, SOURCE);
                note.map_or(row.clone(), |note| row.note(note))
            })
            .collect();
        let ratio = |name: &str, ours: f64, published: f64, least: f64| {
            Row::ours(name, "x", ours).published(published, SOURCE).holds(ours >= least)
        };
        let over = |one: f64, other: f64| one / other;
        rows.extend([
            ratio("C uniform: learned over two-sided", over(uniform(Way::Learned), uniform(Way::TwoSided)), 3.7, 3.0),
            ratio(
                "C uniform: learned over whole index",
                over(uniform(Way::Learned), uniform(Way::WholeIndex)),
                82.0 / 78.0,
                0.95,
            )
            .note(NICS),
            ratio("C uniform: learned over uncached", over(uniform(Way::Learned), uniform(Way::Uncached)), 11.7, 3.0)
                .note(UNCACHED),
            ratio("C Zipfian: learned over two-sided", over(zipf(Way::Learned), zipf(Way::TwoSided)), 2.5, 1.0)
                .note(ZIPF),
            Row::ours("C Zipfian over uniform, learned", "x", over(zipf(Way::Learned), uniform(Way::Learned)))
                .published(0.82, SOURCE)
                .holds(zipf(Way::Learned) < uniform(Way::Learned))
                .note(ZIPF),
        ]);
        rows.extend(Way::ALL.map(|way| Row::ours(format!("one client: {}", way.name()), "us", alone(way))));
        rows.push(
            Row::ours(
                "one client: learned over two-sided, latency",
                "x",
                over(alone(Way::Learned), alone(Way::TwoSided)),
            )
            .said("Wei thesis, section 3.7: at low load one RPC is faster than two READs")
            .holds(alone(Way::Learned) > alone(Way::TwoSided)),
        );
        rows.push(
            Row::ours(
                "one client: learned over whole index, latency",
                "x",
                over(alone(Way::Learned), alone(Way::WholeIndex)),
            )
            .said("Wei thesis, section 3.7: 0.35 us of the client's CPU instead of 2.14")
            .holds(alone(Way::Learned) < alone(Way::WholeIndex)),
        );
        rows
    }

    fn in_tables(&self) -> Vec<Row> {
        let rate = |memory, mix| self.table(memory, mix, true).throughput;
        let mut rows = Vec::new();
        for mix in [Mix::A, Mix::B] {
            let ratio = rate(Memory::Learned, mix) / rate(Memory::TwoSided, mix);
            let costs = &self.table(Memory::Learned, mix, true).by_type;
            let trips = costs.get("update").map_or(0.0, |kind| kind.round_trips);
            rows.extend([
                Row::ours(format!("ordered table, YCSB {mix:?}: learned over two-sided"), "x", ratio)
                    .said("Wei thesis, section 3.7: from 2.4 to 3.1 in A, from 3.4 to 5.4 in B")
                    .holds(ratio >= if mix == Mix::A { 1.0 + (2.4 - 1.0) / 2.0 } else { 1.0 + (3.4 - 1.0) / 2.0 })
                    .note(UPDATES),
                Row::ours(format!("ordered table, YCSB {mix:?}: learned"), "M/s", rate(Memory::Learned, mix) / 1e6)
                    .published(if mix == Mix::A { 41.0 } else { 80.0 }, SOURCE)
                    .note(UPDATES),
                Row::ours(format!("ordered table, YCSB {mix:?}: round trips of an update by call"), "", trips)
                    .said("one call")
                    .holds(trips < 2.5)
                    .note(UPDATES),
            ]);
        }
        for (mix, published) in [(Mix::C, None), (Mix::D, Some(53.0 / 25.0)), (Mix::E, None)] {
            let over = |other: Memory| {
                let ratio = rate(Memory::Learned, mix) / rate(other, mix);
                let what = format!("ordered table, YCSB {mix:?}: learned over {}", other.name());
                Row::ours(what, "x", ratio)
            };
            let whole = over(Memory::WholeIndex);
            let holds = whole.ours >= 0.95;
            let whole = match published {
                Some(published) => whole.published(published, SOURCE).note(LEARNT),
                None => whole.said(SOURCE),
            };
            let two_sided = over(Memory::TwoSided);
            let two_sided = match mix {
                Mix::C => {
                    let holds = two_sided.ours >= 2.5;
                    two_sided.published(3.7, SOURCE).holds(holds)
                }
                _ => two_sided,
            };
            rows.extend([whole.holds(holds), two_sided]);
            let label = if mix == Mix::E { "scan" } else { "read" };
            let trips = |memory| self.table(memory, mix, true).by_type.get(label).map_or(0.0, |kind| kind.round_trips);
            let what = format!("ordered table, YCSB {mix:?}: round trips of a {label}, learned");
            let row = Row::ours(what, "", trips(Memory::Learned)).published(2.0, "Wei thesis, section 3.4");
            let row = row.holds(trips(Memory::Learned) < 2.5);
            rows.push(if mix == Mix::E { row.note(SCANS) } else { row });
        }
        let absolute = |memory: Memory| {
            Row::ours(format!("ordered table, YCSB C: {}", memory.name()), "M/s", rate(memory, Mix::C) / 1e6)
        };
        rows.extend([
            absolute(Memory::Learned).published(82.0, SOURCE).note(IN_TRANSACTIONS),
            absolute(Memory::WholeIndex).published(78.0, SOURCE).note(IN_TRANSACTIONS),
            absolute(Memory::TwoSided).published(22.2, SOURCE).note(IN_TRANSACTIONS),
        ]);
        let of_whole = |memory| self.table(memory, Mix::C, false);
        let ratio = of_whole(Memory::Learned).throughput / of_whole(Memory::TwoSided).throughput;
        let keys_first = rate(Memory::Learned, Mix::C) / of_whole(Memory::Learned).throughput;
        rows.extend([
            Row::ours("ordered table, YCSB C: learned, keys first over whole leaves", "x", keys_first),
            Row::ours("ordered table, whole leaves, YCSB C: learned over two-sided", "x", ratio),
        ]);
        rows.extend([(2, 1.97), (3, 2.81)].map(|(servers, published)| {
            let what = format!("ordered table, YCSB C: {servers} servers over one, learned");
            let source = "Wei thesis, section 3.7.5: server NICs";
            Row::ours(what, "x", self.scale_out(servers)).published(published, source).note(CLIENTS)
        }));
        rows
    }

    fn runs(&self) -> Vec<Run> {
        self.tables
            .iter()
            .map(|(point, measured)| {
                measured.run(name(point), format!("{} threads", self.scale.of_tables * self.scale.threads))
            })
            .collect()
    }

    fn over_machines(&self) -> Vec<Series> {
        let line = |way: Way| {
            let point = |machines: &usize| (*machines as f64, self.bare(way, false, Some(*machines)));
            Series { name: way.name().to_owned(), points: self.scale.machines.iter().map(point).collect() }
        };
        Way::ALL.into_iter().map(line).collect()
    }
}

const MODELS: &str = "128 leaves to a sub-model, and the key at which it begins; the text has 25";
const SEPARATORS: &str = "an entry has 23 bits of its leaf's low fence instead of an incarnation, so that one leaf is named; those \
                          that need more READs follow a link or go down from the root";
const UNCACHED: &str = "inner nodes are READs of 280 B here, as many as the text has levels";
const MODES: &str =
    "the entries within the bounds are one READ, and 128 leaves to a sub-model have wider bounds than 25";
const NICS: &str = "the server's NICs limit both here, as they limit READs; in the text, clients' CPUs do as well";
const ZIPF: &str =
    "the simulated NIC does not slow down where READs meet at few addresses, as the text suspects of its own";
const LEARNT: &str = "clients that remember all leaves learn of splits by the leaf itself here, as those with a learned cache do; the \
                      text's whole index is fetched again node by node";
const IN_TRANSACTIONS: &str = "each lookup is a transaction, and a leaf is a record with its key, its fences and its checks: 192 B and 40 B are \
                               READ";
const UPDATES: &str = "an update is a call that locks the leaf, a call that logs, and one that installs in the background; in the \
                       text, it is one call, and nothing is logged";
const CLIENTS: &str =
    "15 machines of 24 threads ask, each with four lookups at a time; the text has 13, and NICs instead of servers";
const SCANS: &str =
    "leaves have the values: all of them at once where their number was foreseen, and once more to validate them";
