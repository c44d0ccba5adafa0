//! The micro benchmark: bare rounds of one coroutine, over memory of this process. They show the
//! cost of the fabric itself.
//!
//! Every kind of round is measured beside the same work done without rounds, in blocks that take
//! turns. So a disturbance of the machine disturbs both. The report has medians over several
//! blocks. There are two kinds of memory:
//!
//! - *cached*: a few lines, which stay in the nearest cache;
//! - *missing*: random lines of a region that is several times as large as the last cache.
//!
//! In both, the address of a READ depends on what the READ before it returned, so misses do not
//! overlap.
//!
//! The plain work on cached memory is a memcpy of ordinary memory, or the processor's instruction.
//! On missing memory, the plain work reads and writes word by word the same region that the rounds
//! use, because ordinary memory would have other pages.
//!
//! [`verbs`] measures single verbs and their rates, as perftest does. [`torn`] looks for accesses
//! that are not atomic. [`latches`] measures latches, and reads without latches.

pub mod fit;
pub mod latches;
pub mod torn;
pub mod verbs;

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::rdma::Device;
use remora_fabric::shm::Shm;
use remora_fabric::sim::Ended;
use remora_fabric::tcp::{Loopback, LoopbackError, TcpOptions};
use remora_fabric::{
    Address, ClientId, FabricError, Host, LINE_BYTES, Lane, NodeId, RegionError, RegionId, WORD_BYTES,
};
use serde::Serialize;

use crate::Prng;
use crate::machine::Machine;
use verbs::{Stand, VerbFigures, VerbKind};

/// The verbs of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// READs of a record.
    Read,
    /// WRITEs of a record.
    Write,
    /// Compare-and-swaps, which succeed.
    Cas,
    /// Pairs of a compare-and-swap and a READ of the same record: a hitchhiked lock.
    CasRead,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Cas, Kind::CasRead];

    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Cas => "cas",
            Kind::CasRead => "cas-read",
        }
    }

    /// Returns the kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the number of verbs of one access.
    fn verbs(self) -> usize {
        if self == Kind::CasRead { 2 } else { 1 }
    }
}

/// Where the records of a measurement lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In the nearest cache.
    Cached,
    /// In memory: random lines of a region that no cache can hold.
    Missing,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Cached => "cached",
            Place::Missing => "missing",
        })
    }
}

/// How this process reaches its own memory.
#[derive(Clone, Debug)]
pub enum Backend {
    /// As shared memory.
    Shm,
    /// Through a server, over TCP.
    Tcp,
    /// By an RDMA device.
    Verbs(Device),
}

impl Backend {
    /// Returns the name of the backend.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Shm => "shm",
            Backend::Tcp => "tcp",
            Backend::Verbs(_) => "verbs",
        }
    }

    /// Makes a fabric with nodes of this process, which have regions of these sizes in bytes.
    pub fn fabric(self, bytes: &[Vec<usize>]) -> Result<Box<dyn Host>, MicroError> {
        let rdma = match self {
            Backend::Shm => return Ok(Box::new(Shm::new(bytes)?)),
            Backend::Tcp => None,
            Backend::Verbs(device) => Some(device),
        };
        Ok(Box::new(Loopback::new(bytes, TcpOptions { rdma, ..TcpOptions::default() })?))
    }
}

/// Options of the micro benchmark.
#[derive(Clone, Debug)]
pub struct MicroOptions {
    /// The kinds of rounds to measure.
    pub kinds: Vec<Kind>,
    /// Bytes of a record.
    pub size: usize,
    /// Accesses of a round.
    pub batch: usize,
    /// The duration of the measurement. The rates take the same time again.
    pub time: Duration,
    /// Whether to measure each verb's latency and rates as well: see [`verbs`].
    pub rates: bool,
    /// Seed of the addresses.
    pub seed: u64,
}

impl MicroOptions {
    /// Fails if there are no rounds of this size.
    pub fn check(&self) -> Result<(), Unfit> {
        let &MicroOptions { size, batch, .. } = self;
        if size == 0 || !size.is_multiple_of(WORD_BYTES) {
            return Err(Unfit::Size);
        }
        let unfit = |kind: &Kind| {
            let bytes = size.saturating_add(WORD_BYTES).saturating_mul(batch);
            bytes > ROUND_BYTES_MAX || batch.saturating_mul(kind.verbs()) > ROUND_VERBS_MAX
        };
        if batch == 0 || self.kinds.iter().any(unfit) {
            return Err(Unfit::Round { accesses: batch, bytes: size });
        }
        Ok(())
    }
}

/// Options that do not fit together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// The size of a record is not possible: see [`MicroOptions::size`].
    #[error("a record has a positive multiple of {WORD_BYTES} bytes")]
    Size,
    /// A round has no room for that many accesses.
    #[error(
        "{accesses} accesses of {bytes} bytes are more than a round takes: {} bytes and {} verbs",
        ROUND_BYTES_MAX,
        ROUND_VERBS_MAX
    )]
    Round {
        /// The number of accesses that was asked for.
        accesses: usize,
        /// The bytes of each access.
        bytes: usize,
    },
}

/// The reason why nothing was measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MicroError {
    /// The options do not fit together.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The memory could not be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The memory cannot be served.
    #[error(transparent)]
    Loopback(#[from] LoopbackError),
    /// A round failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A simulated measurement came to no end.
    #[error("a simulated measurement came to nothing: it ended as {0:?}")]
    Unfinished(Ended),
}

/// The cost of a kind of round, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Measurement {
    /// The verbs of the round.
    pub kind: Kind,
    /// Where the records lie.
    pub memory: Place,
    /// Bytes of a record.
    pub size: usize,
    /// Accesses of a round.
    pub batch: usize,
    /// The median time of a round, in nanoseconds.
    pub round_ns: f64,
    /// A tenth of the blocks took less than this per round, in nanoseconds.
    pub round_p10_ns: f64,
    /// A tenth of the blocks took more than this per round, in nanoseconds.
    pub round_p90_ns: f64,
    /// The plain work that the round is compared with.
    pub plain: &'static str,
    /// The median time of the plain work, in nanoseconds.
    pub plain_ns: f64,
    /// The difference of the two medians: what the round adds, in nanoseconds.
    pub over_ns: f64,
}

/// The results of the micro benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct MicroReport {
    /// The workload's name.
    pub workload: &'static str,
    /// The name of the backend.
    pub fabric: &'static str,
    /// All options in force.
    pub config: serde_json::Value,
    /// The duration of the measurement.
    pub seconds: f64,
    /// The number of blocks behind each median.
    pub repetitions: usize,
    /// The bytes of the region that no cache can hold.
    pub missing_bytes: u64,
    /// The measurements.
    pub rounds: Vec<Measurement>,
    /// Latencies and rates of single verbs, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbs: Option<VerbsReport>,
    /// The machine that was used.
    pub machine: Machine,
}

/// Latencies and rates of single verbs.
#[derive(Clone, Debug, Serialize)]
pub struct VerbsReport {
    /// The largest number of verbs under way, in rounds of one verb.
    pub singles_under_way: usize,
    /// The largest number of verbs under way, in rounds of several verbs.
    pub lists_under_way: usize,
    /// The figures of each verb.
    pub verbs: Vec<VerbFigures>,
}

/// The approximate duration of a block: long compared with the cost of reading the clock, and short
/// compared with disturbances of the machine.
const BLOCK: Duration = Duration::from_micros(20);
/// The bytes that cached records lie within: the smaller half of a small first-level cache.
const CACHED_BYTES: usize = 16 << 10;
/// The missing region is this many times as large as the last cache.
const CACHES: u64 = 4;
/// The assumed size of the last cache, for a machine that does not tell it.
const LAST_CACHE_BYTES: u64 = 64 << 20;

/// Measures a backend. `look` is called from time to time with the time that has passed, and may
/// end the measurement early. The report then has what was measured until then, and it has verbs
/// only if all rounds had been measured.
pub fn run(
    options: &MicroOptions,
    backend: Backend,
    config: serde_json::Value,
    mut look: impl FnMut(Duration) -> ControlFlow<()>,
) -> Result<MicroReport, MicroError> {
    options.check()?;
    let missing_bytes = (CACHES * last_cache_bytes()).max(1 << 20);
    let name = backend.name();
    let fabric = backend.clone().fabric(&[vec![missing_bytes as usize]])?;
    let Some(region) = fabric.region(NODE, RegionId(0)) else { unreachable!("the node has been made with a region") };
    // This touches every page before anything is measured.
    region.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    let began = Instant::now();
    let mut goes_on = true;
    let (series, repetitions) = remora_fabric::block_on(&*fabric, ClientId(1), async |lane: &Lane| {
        let mut bench = Bench::new(lane, region.words(), options);
        let mut series: Vec<Series> = [Place::Cached, Place::Missing]
            .into_iter()
            .flat_map(|place| options.kinds.iter().map(move |kind| Series::new(*kind, place)))
            .collect();
        for one in &mut series {
            one.calibrate(&mut bench).await?;
        }
        let mut repetitions = 0;
        while repetitions == 0 || (goes_on && began.elapsed() < options.time) {
            for one in &mut series {
                one.repeat(&mut bench).await?;
            }
            repetitions += 1;
            goes_on = look(began.elapsed()).is_continue();
        }
        Ok::<_, FabricError>((series, repetitions))
    })??;
    let verbs = match options.rates && goes_on {
        true => Some(rates(options, backend, |elapsed| look(options.time + elapsed))?),
        false => None,
    };
    let seconds = began.elapsed().as_secs_f64();
    let rounds = series.into_iter().map(|one| one.measurement(options)).collect();
    let machine = Machine::this(Some(region.pages()));
    let workload = "micro";
    Ok(MicroReport { workload, fabric: name, config, seconds, repetitions, missing_bytes, rounds, verbs, machine })
}

fn rates(
    options: &MicroOptions,
    backend: Backend,
    look: impl FnMut(Duration) -> ControlFlow<()>,
) -> Result<VerbsReport, MicroError> {
    let at_once = matches!(backend, Backend::Shm);
    let fabric = backend.fabric(&verbs::regions())?;
    let stand = Stand::new(&*fabric, at_once, options.seed)?;
    let (singles_under_way, lists_under_way) = (stand.under_way(1), stand.under_way(verbs::LIST));
    let verbs = stand.measure(&VerbKind::ALL, options.time, look)?;
    Ok(VerbsReport { singles_under_way, lists_under_way, verbs })
}

fn last_cache_bytes() -> u64 {
    let size = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok();
    let kilobytes = size.and_then(|size| size.trim().strip_suffix('K')?.parse::<u64>().ok());
    kilobytes.map_or(LAST_CACHE_BYTES, |kilobytes| kilobytes << 10)
}

const NODE: NodeId = NodeId(0);

/// The memory that the blocks work on.
struct Bench<'a> {
    lane: &'a Lane,
    region: &'a [AtomicU64],
    /// Ordinary memory of the size of the cached part.
    ordinary: Vec<u64>,
    /// The record that plain reads fill and plain writes take.
    record: Vec<u64>,
    batch: usize,
    /// The words from one record to the next.
    stride: usize,
    random: Prng,
}

impl<'a> Bench<'a> {
    fn new(lane: &'a Lane, region: &'a [AtomicU64], options: &MicroOptions) -> Bench<'a> {
        let stride = options.size.next_multiple_of(LINE_BYTES) / WORD_BYTES;
        let mut bench = Bench {
            lane,
            region,
            ordinary: Vec::new(),
            record: vec![0; options.size / WORD_BYTES],
            batch: options.batch,
            stride,
            random: Prng::new(options.seed),
        };
        bench.ordinary = vec![0; bench.records(Place::Cached) as usize * stride];
        bench
    }

    /// Returns the number of records.
    fn records(&self, place: Place) -> u64 {
        let bytes = match place {
            Place::Cached => CACHED_BYTES,
            Place::Missing => size_of_val(self.region),
        };
        (bytes / (self.stride * WORD_BYTES)).max(1) as u64
    }

    /// Returns the first word of a random record. `seen` is always 0, but the compiler does not
    /// know that.
    #[inline]
    fn pick(&mut self, records: u64, seen: u64) -> usize {
        (self.random.below(records) + seen) as usize * self.stride
    }

    /// Executes `count` rounds. Returns the time that they take.
    async fn rounds(&mut self, kind: Kind, place: Place, count: u32) -> Result<Duration, FabricError> {
        let (lane, records) = (self.lane, self.records(place));
        let bytes = size_of_val(&*self.record);
        let mut seen = 0;
        let began = Instant::now();
        for _ in 0..count {
            let mut round = lane.round();
            let mut read = None;
            for _ in 0..self.batch {
                let offset = (self.pick(records, seen) * WORD_BYTES) as u64;
                let at = Address { node: NODE, region: RegionId(0), offset };
                match kind {
                    Kind::Read => read = Some(round.read(at, bytes)),
                    Kind::Write => round.write_words(at, &self.record),
                    Kind::Cas => drop(round.compare_swap(at, 0, 0)),
                    Kind::CasRead => {
                        round.compare_swap(at, 0, 0);
                        read = Some(round.read(at, bytes));
                    }
                }
            }
            let done = lane.execute(round).await?;
            if let Some(read) = read {
                seen = done.words(read)[0];
            }
        }
        Ok(began.elapsed())
    }

    /// Does the work of `count` rounds on the memory itself, without rounds. Returns the time that
    /// it takes.
    fn plain(&mut self, kind: Kind, place: Place, count: u32) -> Duration {
        let (region, records) = (self.region, self.records(place));
        let words = self.record.len();
        let mut seen = 0;
        let began = Instant::now();
        for _ in 0..count {
            for _ in 0..self.batch {
                let at = self.pick(records, seen);
                if matches!(kind, Kind::Cas | Kind::CasRead) {
                    let found = region[at].compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst);
                    let _ = black_box(found);
                }
                match (kind, place) {
                    (Kind::Cas, _) => {}
                    (Kind::Write, Place::Cached) => {
                        self.ordinary[at..at + words].copy_from_slice(black_box(&self.record))
                    }
                    (Kind::Write, Place::Missing) => {
                        let to = &region[at..at + words];
                        to.iter()
                            .zip(black_box(&self.record))
                            .for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
                    }
                    (Kind::Read | Kind::CasRead, Place::Cached) => {
                        self.record.copy_from_slice(black_box(&self.ordinary[at..at + words]));
                    }
                    (Kind::Read | Kind::CasRead, Place::Missing) => {
                        let from = &region[at..at + words];
                        self.record.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
                    }
                }
                black_box((&self.record, &self.ordinary));
            }
            if matches!(kind, Kind::Read | Kind::CasRead) {
                seen = self.record[0];
            }
        }
        began.elapsed()
    }
}

/// The blocks of one kind of round.
struct Series {
    kind: Kind,
    place: Place,
    /// The number of rounds in a block.
    count: u32,
    rounds_ns: Vec<f64>,
    plain_ns: Vec<f64>,
}

impl Series {
    fn new(kind: Kind, place: Place) -> Series {
        Series { kind, place, count: 16, rounds_ns: Vec::new(), plain_ns: Vec::new() }
    }

    /// Determines how many rounds make a block.
    async fn calibrate(&mut self, bench: &mut Bench<'_>) -> Result<(), FabricError> {
        while bench.rounds(self.kind, self.place, self.count).await? < BLOCK && self.count < 1 << 16 {
            self.count *= 2;
        }
        Ok(())
    }

    async fn repeat(&mut self, bench: &mut Bench<'_>) -> Result<(), FabricError> {
        let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(self.count);
        self.rounds_ns.push(each(bench.rounds(self.kind, self.place, self.count).await?));
        self.plain_ns.push(each(bench.plain(self.kind, self.place, self.count)));
        Ok(())
    }

    fn measurement(mut self, options: &MicroOptions) -> Measurement {
        self.rounds_ns.sort_by(f64::total_cmp);
        self.plain_ns.sort_by(f64::total_cmp);
        let at = |sorted: &[f64], part: f64| {
            let index = (sorted.len() as f64 * part) as usize;
            (sorted[index.min(sorted.len() - 1)] * 100.0).round() / 100.0
        };
        let (round_ns, plain_ns) = (at(&self.rounds_ns, 0.5), at(&self.plain_ns, 0.5));
        let plain = match (self.kind, self.place) {
            (Kind::Read | Kind::Write, Place::Cached) => "memcpy",
            (Kind::Read | Kind::Write, Place::Missing) => "word by word",
            (Kind::Cas, _) => "instruction",
            (Kind::CasRead, Place::Cached) => "instruction, memcpy",
            (Kind::CasRead, Place::Missing) => "instruction, word by word",
        };
        Measurement {
            kind: self.kind,
            memory: self.place,
            size: options.size,
            batch: options.batch,
            round_ns,
            round_p10_ns: at(&self.rounds_ns, 0.1),
            round_p90_ns: at(&self.rounds_ns, 0.9),
            plain,
            plain_ns,
            over_ns: ((round_ns - plain_ns) * 100.0).round() / 100.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(size: usize, batch: usize) -> MicroOptions {
        MicroOptions { kinds: Kind::ALL.into(), size, batch, time: Duration::from_millis(1), rates: false, seed: 1 }
    }

    #[test]
    fn what_does_not_fit_a_round_is_refused() {
        assert_eq!(options(0, 1).check(), Err(Unfit::Size));
        assert_eq!(options(12, 1).check(), Err(Unfit::Size));
        assert_eq!(options(64, 0).check(), Err(Unfit::Round { accesses: 0, bytes: 64 }));
        assert!(options(64, ROUND_VERBS_MAX).check().is_err(), "pairs are two verbs");
        assert!(options(ROUND_BYTES_MAX, 1).check().is_err());
        assert!(options(usize::MAX - 7, usize::MAX).check().is_err());
        assert_eq!(options(64, 16).check(), Ok(()));
    }

    #[test]
    fn every_kind_is_measured_on_both_kinds_of_memory() {
        let report = run(&options(64, 2), Backend::Shm, serde_json::Value::Null, |_| ControlFlow::Continue(()))
            .expect("options that fit");
        assert_eq!(report.rounds.len(), 8);
        assert!(report.rounds.iter().all(|one| one.round_ns > 0.0 && one.plain_ns > 0.0), "{:?}", report.rounds);
    }
}
