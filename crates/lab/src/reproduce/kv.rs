//! The experiments of DrTM's key-value store (Chen et al., TOCS 2017, section 6.4): its hash table,
//! with a location cache and without one, is compared with the tables of Pilaf and FaRM.
//!
//! The cluster has one server and five machines of eight client threads, profile `connectx3`. The
//! bytes of each table are laid out in the server's region, and clients look keys up by one-sided
//! READs. There are two kinds of experiment.
//!
//! *READs of a lookup* are counted as they are posted. They do not include the READ that fetches
//! the pair, which each table needs alike.
//!
//! *Throughput and latency* are simulated. Clients' CPUs are charged for posting READs and polling
//! completions. They are charged neither for checksums, nor for a search in buckets and caches.
//!
//! The text's cache of 320 MB has room for all locations of 20 million pairs, by 16 B each. So the
//! caches of 320, 80 and 20 MB are the whole index here, a quarter of it, and a sixteenth.

pub mod cluster;
pub mod cuckoo;
pub mod hopscotch;

use remora_fabric::sim::{Profile, SimOptions};
use remora_fabric::{Address, ClientId, FabricError, Lane, NodeId, RegionId, WORD_BYTES, block_on, splitmix};
use remora_workload::Prng;
use remora_workload::ycsb::{Mix, Zipf};

use self::cluster::{Cluster, Store};
use self::cuckoo::Cuckoo;
use self::hopscotch::{Hopscotch, Values};
use super::{ReproduceError, Reproduction, Row, measured, run_all};
use crate::hardware::CalibrationError;
use crate::hardware::rig::{Client, Rig, holding};
use remora_command::plot::{Labels, Series};

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of pairs of the tables whose READs are counted.
    pub counted: u64,
    /// The number of pairs of the tables whose throughput is simulated.
    pub timed: u64,
    /// The bytes of the values whose throughput is simulated. They include 64 and 128.
    pub sizes: Vec<usize>,
    /// Virtual time that is counted, in microseconds.
    pub measure_us: u64,
    /// Simulations that run at the same time, each on a thread.
    pub parallel: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Scale {
    /// Returns the text's cluster, with fewer pairs.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        Scale {
            counted: 1_000_000,
            timed: 100_000,
            sizes: vec![16, 32, 64, 128, 256, 512, 1024, 2048],
            measure_us: 1_000,
            parallel: super::parallel(),
            seed,
        }
    }

    /// Returns few pairs, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale { counted: 4_000, timed: 4_000, sizes: vec![16, 64, 128, 2048], measure_us: 40, ..Scale::full(seed) }
    }

    fn about(&self) -> Vec<String> {
        vec![
            format!(
                "DrTM-KV (DrTM TOCS 2017, section 6.4): one server, {MACHINES} machines of {THREADS} threads of {COROUTINES} \
                 coroutines, ConnectX-3"
            ),
            format!(
                "{} pairs where READs are counted, {} where throughput is, tables {TIMED_OCCUPANCY} % full, seed {}",
                self.counted, self.timed, self.seed
            ),
        ]
    }
}

const PROFILE: &str = "connectx3";
const MACHINES: usize = 5;
const THREADS: usize = 8;
/// The lookups that a thread has in flight. The text prints no number, but its throughput times its
/// latency is 70 to 80 lookups for three of its four systems, which is two for each of 40 threads.
const COROUTINES: usize = 2;
const CLIENTS: usize = MACHINES * THREADS * COROUTINES;
/// The occupancies of the tables whose READs are counted, in percent.
const OCCUPANCIES: [u64; 3] = [50, 75, 90];
/// The occupancy of the tables whose throughput is simulated, in percent. The text prints none.
/// This is the one for which Remora makes its tables.
const TIMED_OCCUPANCY: u64 = 75;
/// The parts of the index for which the text's caches of 80 MB and 20 MB have room.
const QUARTER: f64 = 0.25;
const SIXTEENTH: f64 = 0.0625;

/// The pairs of a table, by number. A pair's key and value follow from its number.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// The number of pairs.
    pub count: u64,
    /// The bytes of each value, at least eight.
    pub value_bytes: usize,
}

impl Pairs {
    /// Returns the key of a pair: a number that differs for each pair.
    #[must_use]
    pub fn key(&self, number: u64) -> u64 {
        splitmix(number)
    }

    /// Returns the words of a value.
    #[must_use]
    pub fn value_words(&self) -> usize {
        self.value_bytes.div_ceil(WORD_BYTES)
    }

    /// Writes the value of a key. Only the first word says something.
    pub fn write_value(&self, key: u64, value: &mut [u64]) {
        if let Some(first) = value.first_mut() {
            *first = value_of(key);
        }
    }
}

/// Returns the first word of the value of a key.
#[must_use]
pub fn value_of(key: u64) -> u64 {
    !key
}

/// Returns a place below `places`, by a hash.
fn within(hash: u64, places: u64) -> u64 {
    ((u128::from(hash) * u128::from(places)) >> u64::BITS) as u64
}

/// Returns the address at an offset of the server's region.
fn at(offset: u64) -> Address {
    Address { node: NodeId(0), region: RegionId(0), offset }
}

/// Executes one READ, and returns its words.
async fn read(lane: &Lane, at: Address, bytes: usize) -> Result<Vec<u64>, FabricError> {
    let mut round = lane.round();
    let read = round.read(at, bytes);
    Ok(lane.execute(round).await?.words(read).to_vec())
}

/// A hash table, and its clients.
#[derive(Clone, Copy, PartialEq, Debug)]
enum System {
    Pilaf,
    Farm(Values),
    /// With a location cache that has room for this share of the index, or without one.
    DrTm(Option<f64>),
}

impl System {
    const COMPARED: [System; 5] = [
        System::DrTm(Some(1.0)),
        System::DrTm(None),
        System::Farm(Values::Outside),
        System::Farm(Values::Inside),
        System::Pilaf,
    ];

    fn name(self) -> &'static str {
        match self {
            System::Pilaf => "Pilaf",
            System::Farm(Values::Inside) => "FaRM-KV/I",
            System::Farm(Values::Outside) => "FaRM-KV/O",
            System::DrTm(None) => "DrTM-KV",
            System::DrTm(Some(_)) => "DrTM-KV/$",
        }
    }

    /// The READs of a lookup that bring the value, and that the text does not count.
    fn reads_of_value(self) -> u64 {
        u64::from(self != System::Farm(Values::Inside))
    }
}

/// A table in the server's memory.
#[derive(Debug)]
enum Table {
    Cuckoo(Cuckoo),
    Hopscotch(Hopscotch),
    /// With the handles of the machines, each of which has a cache of its own.
    Cluster(Cluster, Vec<Store>),
}

impl Table {
    fn new(system: System, pairs: &Pairs, occupancy: u64, sim: &SimOptions) -> Result<Table, ReproduceError> {
        let slots = (100 * pairs.count).div_ceil(occupancy);
        Ok(match system {
            System::Pilaf => {
                Table::Cuckoo(Cuckoo::build(pairs, slots, sim.seed).ok_or(ReproduceError::Full("Pilaf's table"))?)
            }
            System::Farm(values) => {
                Table::Hopscotch(Hopscotch::build(pairs, slots, values).ok_or(ReproduceError::Full("FaRM's table"))?)
            }
            System::DrTm(share) => {
                let cluster = Cluster::load(pairs, occupancy, sim)?;
                let stores = (0..MACHINES).map(|_| cluster.open(share)).collect::<Result<_, _>>()?;
                Table::Cluster(cluster, stores)
            }
        })
    }

    fn words(&self) -> &[u64] {
        match self {
            Table::Cuckoo(table) => table.words(),
            Table::Hopscotch(table) => table.words(),
            Table::Cluster(table, _) => table.words(),
        }
    }

    /// Looks a key up as a client of this machine. Returns whether it has its value.
    async fn finds(&self, lane: &Lane, machine: usize, key: u64) -> Result<bool, FabricError> {
        let found = match self {
            Table::Cuckoo(table) => table.get(lane, key).await,
            Table::Hopscotch(table) => table.get(lane, key).await,
            Table::Cluster(_, stores) => stores[machine].get(lane, key).await,
        };
        Ok(found? == Some(value_of(key)))
    }
}

/// A distribution of the keys that are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Keys {
    Uniform,
    Zipf,
}

impl Keys {
    const BOTH: [Keys; 2] = [Keys::Uniform, Keys::Zipf];

    fn name(self) -> &'static str {
        match self {
            Keys::Uniform => "uniform",
            Keys::Zipf => "Zipf 0.99",
        }
    }

    /// Returns a function that draws keys. How often a key is drawn says nothing about when it was
    /// inserted.
    fn drawn(self, pairs: Pairs) -> impl Fn(&mut Prng) -> u64 {
        /// It has no divisor in common with the numbers of pairs, so each rank is another pair.
        const SCATTER: u64 = 15_485_863;
        let zipf = (self == Keys::Zipf).then(|| Zipf::new(pairs.count, Mix::THETA));
        move |random| {
            pairs.key(match &zipf {
                None => random.below(pairs.count),
                Some(zipf) => zipf.draw(random) * SCATTER % pairs.count,
            })
        }
    }
}

fn options(scale: &Scale) -> Result<SimOptions, ReproduceError> {
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    Ok(SimOptions::new(profile, scale.seed))
}

// ---- READs of a lookup --------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    system: System,
    keys: Keys,
    /// In percent.
    occupancy: u64,
    /// The number of clients that share a cache. Each makes as many lookups as there are pairs.
    clients: u64,
    is_warm: bool,
}

impl Counted {
    fn cold(system: System, keys: Keys, occupancy: u64) -> Counted {
        Counted { system, keys, occupancy, clients: 1, is_warm: false }
    }
}

/// The mean READs of a lookup, and how many lookups brought no value, or a wrong one.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Reads {
    mean: f64,
    wrong: u64,
}

fn count(scale: &Scale, point: Counted) -> Result<Reads, ReproduceError> {
    let sim = options(scale)?;
    let pairs = Pairs { count: scale.counted, value_bytes: WORD_BYTES };
    let table = Table::new(point.system, &pairs, point.occupancy, &sim)?;
    let draw = point.keys.drawn(pairs);
    let mut random = Prng::new(scale.seed);
    if let (true, Table::Cluster(cluster, stores)) = (point.is_warm, &table) {
        cluster.warm(&stores[0], (0..pairs.count).map(|_| draw(&mut random)));
    }
    let cluster = holding(table.words(), 1, &sim).map_err(CalibrationError::from)?;
    cluster.instant(true);
    let lookups = point.clients * pairs.count;
    let counted = block_on(&cluster, ClientId(1), async |lane: &Lane| {
        let mut wrong = 0;
        for _ in 0..lookups {
            wrong += u64::from(!table.finds(lane, 0, draw(&mut random)).await?);
        }
        Ok::<_, FabricError>((lane.cost().reads, wrong))
    });
    let (reads, wrong) = counted.and_then(|counted| counted).map_err(CalibrationError::from)?;
    let mean = reads as f64 / lookups as f64 - point.system.reads_of_value() as f64;
    Ok(Reads { mean, wrong })
}

// ---- throughput and latency ---------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Debug)]
struct Timed {
    system: System,
    keys: Keys,
    value_bytes: usize,
    /// Whether one client is alone.
    is_alone: bool,
}

impl Timed {
    fn uniform(system: System, value_bytes: usize) -> Timed {
        Timed { system, keys: Keys::Uniform, value_bytes, is_alone: false }
    }
}

/// Runs one simulation. Returns million lookups per second.
fn time(scale: &Scale, point: Timed) -> Result<f64, ReproduceError> {
    let sim = options(scale)?;
    let pairs = Pairs { count: scale.timed, value_bytes: point.value_bytes };
    let table = Table::new(point.system, &pairs, TIMED_OCCUPANCY, &sim)?;
    let draw = point.keys.drawn(pairs);
    if let Table::Cluster(cluster, stores) = &table {
        for (machine, store) in stores.iter().enumerate() {
            let mut random = Prng::derive(scale.seed, machine as u64);
            // Lookups enough that a cache which has room for all of the index has nearly all of it.
            cluster.warm(store, (0..4 * pairs.count).map(|_| draw(&mut random)));
        }
    }
    let rig = if point.is_alone { Rig::pair(&sim) } else { Rig::server(&sim, MACHINES, THREADS, COROUTINES) };
    let body = async |client: &Client<'_>| {
        let key = draw(&mut Prng::new(client.lane.random()));
        let machine = client.number / (THREADS * COROUTINES);
        Ok(if table.finds(client.lane, machine, key).await? { 1.0 } else { 0.0 })
    };
    Ok(rig.for_us(scale.measure_us / 10, scale.measure_us).rate_over(table.words(), body)?)
}

// ---- results ------------------------------------------------------------------------------------

/// Experiments of the text that are left out here.
const LEFT_OUT: [&str; 5] = [
    "20 million pairs: here are fewer, which matters to caches of skewed keys only",
    "writes and inserts: the tables of Pilaf and FaRM are read-only here, and those of DrTM-KV have no writer",
    "throughput that starts from an empty cache: its READs are counted",
    "CPU time for checksums, and for searches in buckets and caches: the text prints none",
    "other sizes of the location cache, and other loads than the full one and one client",
];

const LOOKUPS: &str = "DrTM TOCS 2017, section 6.4, table VI";
const READS: &str = "DrTM TOCS 2017, section 6.4, figure 13a";
const LATENCY: &str = "DrTM TOCS 2017, section 6.4, figure 13b";
const CACHES: &str = "DrTM TOCS 2017, section 6.4, figure 13c";

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run. A lookup that brings no value or a wrong one is not an error:
/// see [`Reproduction::violated`].
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let (counted, timed) = (counted_points(), timed_points(scale));
    let all = counted.len() + timed.len();
    let timed = run_all(&timed, scale.parallel, &|done, _| look(done, all), |point| time(scale, point))?;
    let counted =
        run_all(&counted, scale.parallel, &|done, _| look(timed.len() + done, all), |point| count(scale, point))?;
    let results = Results { scale, counted, timed };
    let mut rows = results.lookups();
    rows.extend(results.caches());
    rows.extend(results.throughput());
    rows.extend(results.latency());
    Ok(Reproduction {
        about: scale.about(),
        is_comparable: scale.counted == 1_000_000 && scale.timed == 100_000,
        rows,
        runs: Vec::new(),
        left_out: &LEFT_OUT,
        violated: results.violated(),
        labels: LABELS,
        series: results.over_sizes(),
    })
}

const LABELS: Labels<'static> = Labels {
    title: "Lookups at one server, simulated (connectx3), uniform",
    x: "bytes of a value",
    y: "million lookups a second",
};

/// The tables whose READs are compared.
const TABLES: [(&str, System); 3] =
    [("Cuckoo", System::Pilaf), ("Hopscotch", System::Farm(Values::Outside)), ("cluster", System::DrTm(None))];
const CACHED: System = System::DrTm(Some(1.0));
/// The caches that are compared, by the text's name, with their shares of the index.
const SHARES: [(&str, f64); 3] = [("whole index", 1.0), ("quarter", QUARTER), ("sixteenth", SIXTEENTH)];

fn counted_points() -> Vec<Counted> {
    let mut points = Vec::new();
    for keys in Keys::BOTH {
        for occupancy in OCCUPANCIES {
            let systems = TABLES.map(|(_, system)| system).into_iter().chain([CACHED]);
            points.extend(systems.map(|system| Counted::cold(system, keys, occupancy)));
        }
        points.extend(SHARES[1..].iter().map(|(_, share)| warm(*share, keys)));
    }
    points.push(SHARED);
    points.push(small());
    points
}

fn warm(share: f64, keys: Keys) -> Counted {
    Counted { is_warm: true, ..Counted::cold(System::DrTm(Some(share)), keys, TIMED_OCCUPANCY) }
}

/// The clients of a machine that share an empty cache.
const SHARED: Counted = Counted {
    system: CACHED,
    keys: Keys::Uniform,
    occupancy: TIMED_OCCUPANCY,
    clients: THREADS as u64,
    is_warm: false,
};

/// A client of skewed keys with an empty cache for a sixteenth of the index.
fn small() -> Counted {
    Counted::cold(System::DrTm(Some(SIXTEENTH)), Keys::Zipf, TIMED_OCCUPANCY)
}

fn timed_points(scale: &Scale) -> Vec<Timed> {
    let mut points = Vec::new();
    for value_bytes in scale.sizes.iter().rev() {
        points.extend(System::COMPARED.map(|system| Timed::uniform(system, *value_bytes)));
    }
    points.extend(System::COMPARED.map(|system| Timed { is_alone: true, ..Timed::uniform(system, 64) }));
    points.extend(Keys::BOTH.into_iter().flat_map(|keys| SHARES.map(|(_, share)| with_cache(share, keys))));
    let mut found: Vec<Timed> = Vec::new();
    points.into_iter().for_each(|point| {
        if !found.contains(&point) {
            found.push(point);
        }
    });
    found
}

fn with_cache(share: f64, keys: Keys) -> Timed {
    Timed { keys, ..Timed::uniform(System::DrTm(Some(share)), 64) }
}

struct Results<'a> {
    scale: &'a Scale,
    counted: Vec<(Counted, Reads)>,
    timed: Vec<(Timed, f64)>,
}

impl Results<'_> {
    fn reads(&self, point: Counted) -> f64 {
        measured(&self.counted, &point).mean
    }

    fn rate(&self, system: System, value_bytes: usize) -> f64 {
        *measured(&self.timed, &Timed::uniform(system, value_bytes))
    }

    /// The READs of a lookup without a cache, and with one that starts empty.
    fn lookups(&self) -> Vec<Row> {
        const PUBLISHED: [[[f64; 3]; 3]; 2] = [
            [[1.348, 1.652, 1.956], [1.000, 1.011, 1.044], [1.008, 1.052, 1.100]],
            [[1.304, 1.712, 1.924], [1.000, 1.020, 1.040], [1.004, 1.039, 1.091]],
        ];
        const CACHED_UNIFORM: [f64; 3] = [0.204, 0.475, 0.587];
        let mut rows = Vec::new();
        for (keys, published) in Keys::BOTH.into_iter().zip(PUBLISHED) {
            for (index, occupancy) in OCCUPANCIES.into_iter().enumerate() {
                let of = |system| self.reads(Counted::cold(system, keys, occupancy));
                let row = |what: &str, system| {
                    Row::ours(format!("READs, {}, {occupancy} % full: {what}", keys.name()), "", of(system))
                };
                for ((what, system), published) in TABLES.into_iter().zip(published) {
                    let row = row(what, system).published(published[index], LOOKUPS);
                    let is_better = of(System::Pilaf) > of(system);
                    rows.push(if system == System::Pilaf { row } else { row.holds(is_better) });
                }
                let row = row("cluster, cache", CACHED).note(COLD);
                rows.push(match keys {
                    Keys::Uniform => row.published(CACHED_UNIFORM[index], LOOKUPS),
                    Keys::Zipf => row.said("DrTM TOCS 2017, section 6.4, table VI: about 0").holds(of(CACHED) < 0.05),
                });
            }
        }
        rows
    }

    /// The READs of a lookup by cache.
    fn caches(&self) -> Vec<Row> {
        let alone = self.reads(Counted::cold(CACHED, Keys::Uniform, TIMED_OCCUPANCY));
        let mut rows = vec![
            Row::ours("READs, empty cache: one client", "", alone)
                .published(0.178, "DrTM TOCS 2017, section 6.4")
                .note(CHAINED),
            Row::ours("READs, empty cache: eight clients that share it", "", self.reads(SHARED))
                .published(0.024, "DrTM TOCS 2017, section 6.4")
                .holds(self.reads(SHARED) < alone)
                .note(CHAINED),
        ];
        let without = self.reads(Counted::cold(System::DrTm(None), Keys::Zipf, TIMED_OCCUPANCY));
        let saved = 100.0 * (1.0 - self.reads(small()) / without);
        rows.push(
            Row::ours("READs saved, Zipf 0.99, empty cache of a sixteenth", "%", saved)
                .published(75.0, "DrTM TOCS 2017, section 6.4")
                .note(FEWER),
        );
        for keys in Keys::BOTH {
            rows.extend(SHARES[1..].iter().map(|(what, share)| {
                let reads = self.reads(warm(*share, keys));
                Row::ours(format!("READs, {}, warm cache: {what}", keys.name()), "", reads)
            }));
        }
        rows
    }

    fn throughput(&self) -> Vec<Row> {
        let row = |system: System, published: f64| {
            Row::ours(format!("64 B, uniform: {}", system.name()), "M/s", self.rate(system, 64))
                .published(published, LATENCY)
        };
        let [cached, uncached, outside, inside, pilaf] = System::COMPARED;
        let over = |one, other, bytes| self.rate(one, bytes) / self.rate(other, bytes);
        let sizes = || self.scale.sizes.iter().copied();
        let most =
            |other| super::greatest(sizes().filter(|bytes| *bytes <= 128).map(|bytes| over(cached, other, bytes)));
        let ratio = |what: &str, ratio: f64| Row::ours(what, "x", ratio);
        let [least, large] = [sizes().min().unwrap_or(64), sizes().max().unwrap_or(64)];
        let mut rows = vec![
            row(cached, 23.4).note(WARM),
            row(uncached, 11.6),
            Row::ours("64 B, uniform: FaRM-KV/O", "M/s", self.rate(outside, 64)),
            row(pilaf, 8.4),
            row(inside, 5.6),
            ratio("64 B, uniform: FaRM-KV/O over DrTM-KV", over(outside, uncached, 64))
                .published(1.0, LATENCY)
                .holds((0.8..=1.2).contains(&over(outside, uncached, 64))),
            Row::ours("128 B, uniform: DrTM-KV/$", "M/s", self.rate(cached, 128)).published(23.0, READS).note(WARM),
            ratio("DrTM-KV/$ over FaRM-KV/O, at most", most(outside)).published(2.09, READS).holds(most(outside) > 1.0),
            ratio("DrTM-KV/$ over Pilaf, at most", most(pilaf)).published(2.74, READS).holds(most(pilaf) > 1.0),
        ];
        let small = over(cached, inside, least);
        let said = "DrTM TOCS 2017, section 6.4: best even for small values";
        rows.push(ratio(&format!("{least} B: DrTM-KV/$ over FaRM-KV/I"), small).said(said).holds(small > 1.0));
        let far = over(inside, outside, large);
        let said = "DrTM TOCS 2017, section 6.4: eight values a READ";
        rows.push(ratio(&format!("{large} B: FaRM-KV/I over FaRM-KV/O"), far).said(said).holds(far < 1.0));
        let gap = |bytes| over(uncached, pilaf, bytes);
        let said = "DrTM TOCS 2017, section 6.4: the difference decreases";
        rows.push(ratio(&format!("{least} B: DrTM-KV over Pilaf"), gap(least)));
        let closer = ratio(&format!("{large} B: DrTM-KV over Pilaf"), gap(large)).said(said);
        rows.push(closer.holds(gap(large) < gap(least)));
        let published = [[Some(24.9), Some(11.2), None], [Some(25.1), None, Some(19.1)]];
        for (keys, published) in Keys::BOTH.into_iter().zip(published) {
            for ((what, share), published) in SHARES.into_iter().zip(published) {
                let rate = *measured(&self.timed, &with_cache(share, keys));
                let row = Row::ours(format!("64 B, {}, warm cache: {what}", keys.name()), "M/s", rate);
                let row = published.map_or(row.clone(), |published| row.published(published, CACHES));
                rows.push(if keys == Keys::Zipf { row.note(FEWER) } else { row.note(MISSES) });
            }
        }
        rows
    }

    fn latency(&self) -> Vec<Row> {
        let [cached, uncached, outside, inside, pilaf] = System::COMPARED;
        let published =
            [(cached, Some(3.4)), (uncached, Some(6.3)), (outside, None), (inside, Some(4.5)), (pilaf, Some(8.2))];
        let mut rows = Vec::new();
        for (system, published) in published {
            // A client makes one lookup after the other, so this is their mean time.
            let mean = CLIENTS as f64 / self.rate(system, 64);
            let row = Row::ours(format!("latency at full load: {}", system.name()), "us", mean).note(LITTLE);
            rows.push(published.map_or(row.clone(), |published| row.published(published, LATENCY)));
        }
        let alone = |system| 1.0 / *measured(&self.timed, &Timed { is_alone: true, ..Timed::uniform(system, 64) });
        rows.extend(
            System::COMPARED
                .map(|system| Row::ours(format!("latency of one client: {}", system.name()), "us", alone(system))),
        );
        rows
    }

    fn violated(&self) -> Vec<String> {
        let wrong = self.counted.iter().filter(|(_, reads)| reads.wrong > 0);
        wrong.map(|(point, reads)| format!("{point:?}: {} lookups without their value", reads.wrong)).collect()
    }

    fn over_sizes(&self) -> Vec<Series> {
        let line = |system: System| {
            let point = |bytes: &usize| (*bytes as f64, self.rate(system, *bytes));
            Series { name: system.name().to_owned(), points: self.scale.sizes.iter().map(point).collect() }
        };
        System::COMPARED.into_iter().map(line).collect()
    }
}

const COLD: &str = "an empty cache with room for the whole index, and as many lookups as pairs: the fuller a table, the fewer buckets it \
                    has; the text says neither how large this cache is, nor how many lookups were counted";
const CHAINED: &str = "as many lookups as pairs for each client, because the text prints no number; a bucket has seven pairs instead of \
                       eight, and a lookup whose indirect bucket is not cached READs the main bucket again";
const FEWER: &str = "fewer pairs than the text's 20 million";
const WARM: &str = "the caches are warm here; in the text they start empty, which it calls close";
const MISSES: &str = "a cache that misses costs no more than no cache here; in the text it is slower than none";
const LITTLE: &str =
    "lookups in flight divided by throughput: two for each of 40 threads; by the text's figures FaRM-KV/I had 25";

#[cfg(test)]
mod tests;
