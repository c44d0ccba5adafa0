//! The experiments of one-sided synchronization (Ziegler thesis, sections 5 and 11): the gain of
//! optimizations of latches, and the cost of reads without latches. They run on the text's cluster,
//! with profile `connectx5`.
//!
//! A worker has one operation at a time, which [`latches`](remora_workload::latches) executes. It
//! works on tuples of some bytes, each with a latch in front of it, or on records in the format of
//! Remora's tables. Where the lines of a READ meet those of a WRITE, the simulator tears what a NIC
//! may tear. So the errors of the incorrect schemes are counted, not argued.

use std::hint::black_box;
use std::time::Instant;

use remora::floors::record::{FetchedRecord, Life, RecordShape, TransactionId, Version, layout};
use remora_fabric::sim::{Profile, SimOptions};
use remora_fabric::{Address, FabricError, LINE_BYTES, NodeId, RegionId, WORD_BYTES};
use remora_workload::Prng;
use zerocopy::IntoBytes;

use super::{ReproduceError, Reproduction, Row, measured, run_all};
use crate::hardware::rig::{Client, NODE_BYTES, Rig};
use remora_command::plot::{Labels, Series};
use remora_workload::latches::{Item, Latching, Reading, Unlatch, change};

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The numbers of workers: alone, few, some, many.
    pub workers: [usize; 4],
    /// Virtual time that is counted, in microseconds.
    pub measure_us: u64,
    /// Simulations that run at the same time, each on a thread.
    pub parallel: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Scale {
    /// Returns the text's cluster.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        Scale { workers: [1, 8, 32, 128], measure_us: 400, parallel: super::parallel(), seed }
    }

    /// Returns fewer workers, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale { workers: [1, 4, 16, 48], measure_us: 300, ..Scale::full(seed) }
    }
}

const PROFILE: &str = "connectx5";
const SOURCE: &str = "Ziegler thesis, section 11.3.4";
const READS: &str = "Ziegler thesis, section 11.4.5";
const SYSTEMS: &str = "Ziegler thesis, sections 11.3.5 and 11.4.6";
/// The bytes of a tuple.
const TUPLE_BYTES: usize = 256;
/// The number of tuples at a node, if there is room for them.
const TUPLES: u64 = 20_000;
/// The bytes of the values that are read.
const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 32 << 10];
const LARGE: usize = 16 << 10;
/// The number of memory nodes in the rows that compare whole systems.
const NODES: u16 = 4;
/// Exponents of the skew sweep, in tenths.
const SKEWS: [u32; 5] = [0, 10, 15, 18, 20];

/// Returns the CPU time of a reader in nanoseconds, as it was measured (the rows "this machine"
/// measure it again). A reader compares line versions and leaves them out of the copy, or it
/// computes a checksum.
fn cpu_ns(how: Reading, bytes: usize) -> u64 {
    let ns_of_kib = match how {
        Reading::Checksum => 55,
        Reading::Lines | Reading::Bookends => 60,
        _ => 8,
    };
    ns_of_kib * bytes as u64 / 1024
}

/// The operation of a worker.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Does {
    /// Changes a tuple under its latch. `None` means without a latch, which is an upper bound.
    Update(Option<Latching>),
    /// Reads a tuple under its latch, shared.
    Shared(Latching),
    /// Reads a record.
    Read(Reading),
    /// Changes a record.
    Change,
    /// Counts torn reads of records, while other workers change them.
    Torn(Reading),
    /// Counts torn reads of plain blocks, by the first word and the last. One of two workers WRITEs
    /// the blocks.
    Detect,
    /// Takes and leaves the worker's own latch, which is `stride` bytes from the next worker's.
    Own { stride: u64 },
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    does: Does,
    bytes: usize,
    workers: usize,
    nodes: u16,
    /// The exponent of Zipf's law, in tenths.
    skew: u32,
}

impl Point {
    fn new(does: Does, bytes: usize, workers: usize) -> Point {
        Point { does, bytes, workers, nodes: 1, skew: 0 }
    }
}

/// Ranks that are drawn by Zipf's law with any exponent.
struct Ranks(Vec<f64>);

impl Ranks {
    fn new(ranks: u64, exponent: f64) -> Ranks {
        let sums = (1..=ranks).scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-exponent);
            Some(*sum)
        });
        Ranks(sums.collect())
    }

    fn draw(&self, random: &mut Prng) -> u64 {
        let at = random.unit() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1) as u64
    }
}

/// Runs one simulation. Returns million operations per second; for [`Does::Torn`] the share of torn
/// reads.
fn run(scale: &Scale, point: Point) -> Result<f64, ReproduceError> {
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let sim = SimOptions::new(profile, scale.seed);
    let machines = point.workers.min(4);
    let is_torn = matches!(point.does, Does::Torn(_) | Does::Detect);
    // Accesses to memory take longer or shorter, and rarely much longer, as on a bus that other
    // devices also use.
    let sim = SimOptions { hostile: is_torn, stretch: if is_torn { 0.1 } else { 0.0 }, ..sim };
    // Torn reads are rare, so runs that count them are longer. Large operations take longer, too.
    let longer = if is_torn { 50 } else { 1 + point.bytes as u64 / 512 };
    let measure_us = longer * scale.measure_us;
    let rig = Rig::server(&sim, machines, point.workers / machines, 1).for_us(scale.measure_us / 4, measure_us);
    let is_record = matches!(point.does, Does::Read(_) | Does::Change | Does::Torn(_));
    let rig = Rig { nodes: point.nodes, records: is_record || is_torn, ..rig };
    let scheme = match point.does {
        Does::Read(how) | Does::Torn(how) => how.scheme(),
        _ => Reading::Lines.scheme(),
    };
    let shape = RecordShape::of(&layout(0, point.bytes, scheme).map_err(ReproduceError::Record)?);
    let lines = |bytes: usize| bytes.next_multiple_of(LINE_BYTES) as u64;
    let stride = match point.does {
        Does::Detect => lines(point.bytes),
        _ if is_record => lines(shape.record_bytes()),
        // Eight bytes are added, so that latches do not share the slots of the NIC's table of
        // locks.
        _ => lines(point.bytes + WORD_BYTES) + 8,
    };
    let tuples = if is_torn { HOT_RECORDS } else { (NODE_BYTES / stride - 1).min(TUPLES) } * u64::from(point.nodes);
    let ranks = Ranks::new(tuples, f64::from(point.skew) / 10.0);
    let body = async |client: &Client<'_>| {
        let mut random = Prng::new(client.lane.random());
        let rank = ranks.draw(&mut random);
        let (node, place) = (rank % u64::from(point.nodes), rank / u64::from(point.nodes));
        let at = Address { node: NodeId(node as u16), region: RegionId(0), offset: place * stride };
        operate(client, point, at, &shape).await
    };
    Ok(if is_torn { rig.mean(body)? } else { rig.rate(body)? })
}

async fn operate(client: &Client<'_>, point: Point, at: Address, shape: &RecordShape) -> Result<f64, FabricError> {
    let lane = client.lane;
    let words = point.bytes / WORD_BYTES;
    let before = Item { latch: at, data: at.plus(WORD_BYTES as u64), words };
    let mark = |data: &mut [u64]| data.fill(lane.now());
    let owner = TransactionId::new(client.number as u32 + 1, 1);
    match point.does {
        Does::Update(Some(how)) if how.unlatch == Unlatch::Write => {
            how.update(lane, Item { latch: at.plus(point.bytes as u64), data: at, words }, mark).await?;
        }
        Does::Update(Some(how)) => how.update(lane, before, mark).await?,
        Does::Update(None) => {
            let mut round = lane.round();
            let read = round.read(before.data, point.bytes);
            let mut data = lane.execute(round).await?.words(read).to_vec();
            mark(&mut data);
            let mut round = lane.round();
            round.write_words(before.data, &data);
            Latching::BEST.finish(lane, round).await?;
        }
        Does::Shared(how) => drop(how.read(lane, before).await?),
        Does::Read(how) => {
            how.read(lane, at, shape).await?;
            lane.endpoint().charge(cpu_ns(how, point.bytes));
        }
        Does::Torn(how) if client.number.is_multiple_of(2) => {
            let value = how.read(lane, at, shape).await?;
            return Ok(if value.iter().any(|word| *word != value[0]) { 1.0 } else { 0.0 });
        }
        Does::Detect => {
            let mut round = lane.round();
            if client.number == 0 {
                round.write_words(at, &vec![lane.now(); words]);
                return lane.execute(round).await.map(|_| 0.0);
            }
            let read = round.read(at, point.bytes);
            let done = lane.execute(round).await?;
            let block = done.words(read);
            let is_torn = block.last() == block.first() && block.iter().any(|word| *word != block[0]);
            return Ok(if is_torn { 1.0 } else { 0.0 });
        }
        Does::Change | Does::Torn(_) => {
            let Some(owner) = owner else { return Ok(0.0) };
            change(lane, at, shape, owner, mark).await?;
            return Ok(if point.does == Does::Change { 1.0 } else { 0.0 });
        }
        Does::Own { stride } => {
            let latch = client.at(client.number as u64 * stride);
            let item = Item { latch, data: latch.plus(WORD_BYTES as u64), words: 1 };
            Latching::BEST.update(lane, item, mark).await?;
        }
    }
    Ok(1.0)
}

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run.
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let ran = run_all(&points(scale), scale.parallel, look, |point| run(scale, point))?;
    let results = Results { scale, ran };
    let mut rows = results.of_latches();
    rows.extend(results.of_reads());
    rows.extend(results.of_systems());
    rows.extend(results.torn());
    rows.extend(this_machine());
    Ok(Reproduction {
        about: vec![
            "One-sided synchronization (Ziegler thesis, sections 5 and 11): one memory node or four, four machines of workers, \
             ConnectX-5"
                .to_owned(),
            format!("{TUPLES} tuples a node at most, an operation at a time each worker, seed {}", scale.seed),
        ],
        is_comparable: scale.workers[3] == 128,
        rows,
        runs: Vec::new(),
        left_out: &LEFT_OUT,
        violated: results.violated(),
        labels: LABELS,
        series: results.over_sizes(),
    })
}

const LEFT_OUT: [&str; 3] = [
    "CRC64: the checksum is CRC-32C, which processors compute; its cost was measured on the machine that this ran on",
    "sizes above 32 KiB: a round carries 64 KiB",
    "B-trees of nodes of 4 KiB: see `remora-lab reproduce tree-designs`",
];

const LABELS: Labels<'static> = Labels {
    title: "Reads of records without latches and under them, simulated (connectx5), many workers",
    x: "bytes of the value",
    y: "GB/s",
};

fn points(scale: &Scale) -> Vec<Point> {
    let [alone, few, _, many] = scale.workers;
    let ladder = Latching::LADDER.map(|(_, how)| how);
    let mut points = Vec::new();
    for workers in scale.workers {
        points.extend(ladder.map(|how| Point::new(Does::Update(Some(how)), TUPLE_BYTES, workers)));
        points.push(Point::new(Does::Update(None), TUPLE_BYTES, workers));
        points.extend(ladder[..4].iter().map(|how| Point::new(Does::Shared(*how), TUPLE_BYTES, workers)));
    }
    for workers in [alone, few, many] {
        for bytes in SIZES {
            points.extend(Reading::CORRECT.map(|how| Point::new(Does::Read(how), bytes, workers)));
            points.push(Point::new(Does::Shared(Latching::BEST), bytes, workers));
        }
    }
    points.extend([64, 256, 512, 4096, 4104].map(|stride| Point::new(Does::Own { stride }, 8, many)));
    for skew in SKEWS {
        let does = [
            Does::Shared(Latching::BASIC),
            Does::Shared(Latching::BEST),
            Does::Read(Reading::Lines),
            Does::Update(Some(Latching::BASIC)),
            Does::Update(Some(Latching::BEST)),
            Does::Change,
        ];
        points.extend(does.map(|does| Point { nodes: NODES, skew, ..Point::new(does, TUPLE_BYTES, many) }));
    }
    for how in Reading::CORRECT.into_iter().chain(Reading::INCORRECT) {
        points.extend(TORN_SIZES.map(|bytes| Point::new(Does::Torn(how), bytes, few)));
    }
    points.extend(BLOCKS.map(|bytes| Point::new(Does::Detect, bytes, 2)));
    points.sort_by_key(|point| std::cmp::Reverse(point.workers));
    points.dedup();
    points
}

/// Values of records of two lines and of ten.
const TORN_SIZES: [usize; 2] = [12 * 8, 512];
/// Blocks of the text's detector.
const BLOCKS: [usize; 4] = [128, 256, 512, 2048];
/// The number of records that are written again and again.
const HOT_RECORDS: u64 = 8;

struct Results<'a> {
    scale: &'a Scale,
    ran: Vec<(Point, f64)>,
}

impl Results<'_> {
    fn of(&self, point: Point) -> f64 {
        *measured(&self.ran, &point)
    }

    fn one(&self, does: Does, bytes: usize, workers: usize) -> f64 {
        self.of(Point::new(does, bytes, workers))
    }

    fn of_latches(&self) -> Vec<Row> {
        let [alone, few, some, many] = self.scale.workers;
        let update = |how: Option<Latching>, workers| self.one(Does::Update(how), TUPLE_BYTES, workers);
        let shared = |how: Latching| self.one(Does::Shared(how), TUPLE_BYTES, alone);
        let mut rows = Vec::new();
        let mut add = |kind: &str, measured: &[(&str, f64)]| {
            let mut before = 0.0;
            for (name, rate) in measured {
                let row = Row::ours(format!("one worker, {kind}: {name}"), "us", 1.0 / rate).said(SOURCE);
                rows.push(if before > 0.0 { row.holds(*rate >= 0.98 * before) } else { row });
                before = *rate;
            }
        };
        let ladder = Latching::LADDER;
        add("exclusive", &ladder.map(|(name, how)| (name, update(Some(how), alone))));
        let of_shared: Vec<_> = ladder[..4].iter().map(|(name, how)| (*name, shared(*how))).collect();
        add("shared", &of_shared);
        let best = ladder[4].1;
        for workers in [few, some, many] {
            let ratio = update(Some(best), workers) / update(None, workers);
            let row = Row::ours(format!("{workers} workers, all optimizations over no latch at all"), "x", ratio);
            rows.push(if workers == many {
                row.said(SOURCE).holds(ratio > 0.7).note(MANY)
            } else {
                row.published(1.0, SOURCE).holds(ratio > 0.8).note(BEHIND_ATOMIC)
            });
        }
        let growth = update(Some(best), some) / update(Some(best), few);
        let linear = some as f64 / few as f64;
        rows.push(
            Row::ours(format!("all optimizations, {some} workers over {few}"), "x", growth)
                .published(linear, SOURCE)
                .holds(growth > 0.8 * linear),
        );
        let at_end = |at: usize| update(Some(ladder[at].1), many);
        rows.push(
            Row::ours(format!("{many} workers, asynchronous unlatch over awaited"), "x", at_end(3) / at_end(2))
                .said("Ziegler thesis, section 11.3.4: hurts at 128 workers")
                .holds(at_end(3) < 0.98 * at_end(2))
                .note(ASYNCHRONOUS),
        );
        let own = |stride| self.one(Does::Own { stride }, 8, many);
        let strides = "Ziegler thesis, section 11.3.2: CASes alone";
        rows.extend([64, 256, 512].map(|stride| {
            Row::ours(format!("{many} workers, latches of their own, {stride} B apart"), "M/s", own(stride))
                .said(strides)
        }));
        let padded = own(4104) / own(4096);
        rows.push(Row::ours("latches 4096 B apart", "M/s", own(4096)).said(strides));
        rows.push(
            Row::ours("latches 4104 B apart over 4096 B", "x", padded)
                .said("Ziegler thesis, section 11.3.2: CASes alone, 22 times")
                .holds(padded > 2.0)
                .note(PADDED),
        );
        rows
    }

    fn of_reads(&self) -> Vec<Row> {
        let [alone, few, _, many] = self.scale.workers;
        let read = |how, bytes, workers| self.one(Does::Read(how), bytes, workers);
        let latched = |bytes, workers| self.one(Does::Shared(Latching::BEST), bytes, workers);
        let best = |bytes, workers| super::greatest(Reading::CORRECT.map(|how| read(how, bytes, workers)).into_iter());
        let mut rows: Vec<Row> = SIZES
            .into_iter()
            .flat_map(|bytes| {
                let row = |name: &str, rate: f64| Row::ours(format!("one worker, {bytes} B: {name}"), "us", 1.0 / rate);
                let mut rows = Reading::CORRECT.map(|how| row(how.name(), read(how, bytes, alone))).to_vec();
                rows.push(row("shared latch", latched(bytes, alone)));
                rows
            })
            .collect();
        let over = |name: String, ratio: f64| Row::ours(name, "x", ratio);
        let alone_ratio = latched(TUPLE_BYTES, alone) / best(TUPLE_BYTES, alone);
        rows.push(
            over("one worker, 256 B: shared latch over the best without".to_owned(), alone_ratio)
                .said("Ziegler thesis, section 11.4.5: beats all")
                .holds(alone_ratio > 1.0),
        );
        let few_ratio = latched(TUPLE_BYTES, few) / best(TUPLE_BYTES, few);
        rows.push(
            over(format!("{few} workers, 256 B: shared latch over the best without"), few_ratio)
                .said("Ziegler thesis, section 11.4.5: leads")
                .holds(few_ratio > 1.0),
        );
        for how in Reading::CORRECT {
            let ratio = read(how, TUPLE_BYTES, many) / latched(TUPLE_BYTES, many);
            let row = over(format!("{many} workers, 256 B: {} over shared latch", how.name()), ratio).note(NIC_BOUND);
            rows.push(if how == Reading::Versioning {
                row.said("Ziegler thesis, section 11.4.5: ahead, too").holds(ratio > 1.0)
            } else {
                row.published(2.0, READS).holds(ratio > 1.0)
            });
        }
        let gigabytes = |rate: f64, bytes: usize| rate * bytes as f64 / 1e3;
        rows.push(
            Row::ours(format!("{few} workers, 16 KiB: shared latch"), "GB/s", gigabytes(latched(LARGE, few), LARGE))
                .published(12.0, READS),
        );
        let large = latched(LARGE, few) / best(LARGE, few);
        rows.push(
            over(format!("{few} workers, 16 KiB: shared latch over the best without"), large)
                .said("Ziegler thesis, section 11.4.5: better")
                .holds(large > 1.0),
        );
        for bytes in SIZES {
            let of = |how| read(how, bytes, many);
            let ratio = of(Reading::Lines) / of(Reading::Checksum);
            rows.push(over(format!("{many} workers, {bytes} B: line versions over checksum"), ratio));
            let ratio = of(Reading::Lines) / of(Reading::Versioning);
            rows.push(
                over(format!("{many} workers, {bytes} B: line versions over versioning"), ratio)
                    .said("Ziegler thesis, section 11.4.5: line versions are best up to 64 KB")
                    .holds(ratio > 0.97)
                    .note(HEADERS),
            );
        }
        rows
    }

    fn of_systems(&self) -> Vec<Row> {
        let many = self.scale.workers[3];
        let of = |does, skew| self.of(Point { nodes: NODES, skew, ..Point::new(does, TUPLE_BYTES, many) });
        let (basic, best) = (Latching::BASIC, Latching::BEST);
        let mut rows = Vec::new();
        for skew in SKEWS {
            let zipf = if skew == 0 { "uniform".to_owned() } else { format!("Zipf {:.1}", f64::from(skew) / 10.0) };
            let read = of(Does::Shared(best), skew);
            let optimistic = of(Does::Read(Reading::Lines), skew);
            let ratio = read / of(Does::Shared(basic), skew);
            let row = Row::ours(format!("reads, {zipf}: optimized latches over basic"), "x", ratio);
            rows.push(match skew {
                0 | 10 => row.published(2.0, SYSTEMS).holds(ratio > 1.2).note(BASIC),
                _ => row,
            });
            let read_row = Row::ours(format!("reads, {zipf}: optimized latches"), "M/s", read);
            let read_row = if skew == 20 { read_row.published(4.5, SYSTEMS).note(HOT) } else { read_row };
            let ratio = optimistic / read;
            let row = Row::ours(format!("reads, {zipf}: line versions over optimized latches"), "x", ratio);
            rows.extend([read_row, if skew >= 15 { row.said(SYSTEMS).holds(ratio > 1.0) } else { row }]);
            let write = of(Does::Update(Some(best)), skew);
            let row = Row::ours(format!("writes, {zipf}: optimized latches"), "M/s", write);
            rows.push(if skew == 20 { row.published(0.17, SYSTEMS).note(HOT) } else { row });
            let ratio = write / of(Does::Update(Some(basic)), skew);
            rows.push(Row::ours(format!("writes, {zipf}: optimized latches over basic"), "x", ratio));
            let ratio = of(Does::Change, skew) / write;
            rows.push(Row::ours(format!("writes, {zipf}: records over optimized latches"), "x", ratio));
        }
        rows
    }

    fn share_torn(&self, how: Reading, bytes: usize) -> f64 {
        self.one(Does::Torn(how), bytes, self.scale.workers[1])
    }

    fn torn(&self) -> Vec<Row> {
        let percent = |what: String, share: f64| Row::ours(what, "%", 100.0 * share);
        let detector = "Ziegler thesis, section 11.1";
        let mut rows: Vec<Row> = BLOCKS
            .into_iter()
            .map(|bytes| {
                let share = self.one(Does::Detect, bytes, 2);
                let row = percent(format!("blocks of {bytes} B whose ends agree and whose middle does not"), share);
                row.said(detector).holds((share > 0.0) == (bytes > 128))
            })
            .collect();
        let torn = |how: Reading, bytes: usize| {
            let share = self.share_torn(how, bytes);
            let row = percent(format!("records of {bytes} B, torn: {}", how.name()), share);
            let ends_are_all = how == Reading::Bookends && bytes == TORN_SIZES[0];
            let is_right = Reading::CORRECT.contains(&how) || ends_are_all;
            row.said(detector).holds((share == 0.0) == is_right)
        };
        let all = || Reading::CORRECT.into_iter().chain(Reading::INCORRECT);
        rows.extend(all().flat_map(|how| TORN_SIZES.map(|bytes| torn(how, bytes))));
        rows
    }

    fn violated(&self) -> Vec<String> {
        let wrong = Reading::CORRECT
            .into_iter()
            .filter(|how| TORN_SIZES.iter().any(|bytes| self.share_torn(*how, *bytes) > 0.0));
        wrong.map(|how| format!("{}: reads of two instants", how.name())).collect()
    }

    fn over_sizes(&self) -> Vec<Series> {
        let many = self.scale.workers[3];
        let line = |name: &str, does: Does| {
            let point = |bytes: usize| (bytes as f64, self.one(does, bytes, many) * bytes as f64 / 1e3);
            Series { name: name.to_owned(), points: SIZES.map(point).into() }
        };
        let mut series = Reading::CORRECT.map(|how| line(how.name(), Does::Read(how))).to_vec();
        series.push(line("shared latch", Does::Shared(Latching::BEST)));
        series
    }
}

/// Measures the CPU time of checking and copying values of several sizes on this machine.
fn this_machine() -> Vec<Row> {
    const TIMES: u32 = 2_000;
    let mut rows = Vec::new();
    for bytes in [TUPLE_BYTES, 4 << 10, LARGE] {
        for how in Reading::CORRECT {
            let Ok(layout) = layout(0, bytes, how.scheme()) else { continue };
            let shape = RecordShape::of(&layout);
            let mut words = vec![0; shape.image_at() as usize / WORD_BYTES];
            let (version, life) = (Version::default().committed_over(), Life::Present { incarnation: 0 });
            shape.encode(version, life, &[], vec![1_u64; bytes / WORD_BYTES].as_bytes(), &mut words);
            let mut value = Vec::with_capacity(words.len());
            let began = Instant::now();
            for _ in 0..TIMES {
                let fetched = FetchedRecord::new(black_box(&words), &shape);
                let found = if how == Reading::Versioning { fetched.unchecked() } else { fetched.check().ok() };
                value.clear();
                found.inspect(|found| found.copy_value(&mut value));
                black_box(&value);
            }
            let each = began.elapsed().as_nanos() as f64 / f64::from(TIMES);
            rows.push(Row::ours(format!("this machine, {bytes} B: {}, checked and copied", how.name()), "ns", each));
        }
    }
    rows
}

const BEHIND_ATOMIC: &str = "a READ behind an atomic begins here when that is over, 0.7 us later than a READ alone; the text's hardware \
                             overlaps them";
const MANY: &str =
    "an update takes three verbs or four where none without latch takes two, and many workers come to the NIC's limit";
const ASYNCHRONOUS: &str =
    "two unlatches of a worker may be on their way here, and the NIC that all share has no more work by that";
const PADDED: &str = "two atomics, a READ and a WRITE an update, where the text counts CASes alone; and the word in front of the data is \
                      in another slot for each stride";
const NIC_BOUND: &str = "the NIC's rates of READs and atomics are alike in the profile: two READs cost it as much as a READ and two \
                         atomics cost it by 3 to 2";
const HEADERS: &str = "line versions take an eighth more bytes, and a READ less";
const BASIC: &str = "the hottest of 80,000 tuples has 8 % of the operations, and their atomics on its word take the NIC 420 ns each in \
                     the profile: the limit of both";
const HOT: &str = "the hottest tuple has 61 % of all operations, and what they do to its word takes the NIC 420 ns each in the profile";
