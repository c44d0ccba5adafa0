//! Measurements of single verbs, as perftest makes them: how long one verb takes, and how many
//! verbs one worker executes that has several under way.
//!
//! One function measures fabrics and simulated clusters, so that their numbers can be compared. In
//! this way a profile of the simulator is fitted to a device (`remora_lab::fit`).

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use remora_fabric::sim::{Driven, Ended, Sim};
use remora_fabric::{
    Address, ClientId, FabricError, Handler, Host, LINE_BYTES, Lane, Nanos, RegionId, Round, WORD_BYTES, Worker,
};
use serde::Serialize;

use super::{MicroError, NODE};
use crate::Prng;
use crate::statistics::{merge, times};

/// A kind of verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// A READ.
    Read,
    /// A WRITE.
    Write,
    /// A compare-and-swap.
    Cas,
    /// A FETCH_ADD.
    FetchAdd,
    /// A call of the memory node's CPU, with an empty request.
    Call,
}

/// A verb, with the number of bytes that it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct VerbKind {
    /// The kind of verb.
    pub verb: Verb,
    /// The number of bytes that it moves.
    pub bytes: usize,
}

impl VerbKind {
    /// Returns the READ of `bytes` bytes.
    #[must_use]
    pub const fn read(bytes: usize) -> VerbKind {
        VerbKind { verb: Verb::Read, bytes }
    }

    /// Returns the WRITE of `bytes` bytes.
    #[must_use]
    pub const fn write(bytes: usize) -> VerbKind {
        VerbKind { verb: Verb::Write, bytes }
    }

    /// The compare-and-swap.
    pub const CAS: VerbKind = VerbKind { verb: Verb::Cas, bytes: WORD_BYTES };
    /// The FETCH_ADD.
    pub const FETCH_ADD: VerbKind = VerbKind { verb: Verb::FetchAdd, bytes: WORD_BYTES };
    /// The call.
    pub const CALL: VerbKind = VerbKind { verb: Verb::Call, bytes: 0 };

    /// All verbs that are measured.
    pub const ALL: [VerbKind; 11] = [
        VerbKind::read(8),
        VerbKind::read(64),
        VerbKind::read(1024),
        VerbKind::read(4096),
        VerbKind::write(8),
        VerbKind::write(64),
        VerbKind::write(1024),
        VerbKind::write(4096),
        VerbKind::CAS,
        VerbKind::FETCH_ADD,
        VerbKind::CALL,
    ];

    /// Adds `count` of these verbs to a round, each at a random place in the region.
    fn add_to(self, round: &mut Round<'_>, lane: &Lane, count: usize) {
        // All of them write the same bytes, as perftest does.
        let staged = (self.verb == Verb::Write).then(|| round.stage_words(self.bytes / WORD_BYTES));
        for _ in 0..count {
            let unit = self.bytes.next_multiple_of(LINE_BYTES).max(LINE_BYTES) as u64;
            let offset = lane.random() % (NODE_BYTES as u64 / unit) * unit;
            let at = Address { node: NODE, region: RegionId(0), offset };
            match (self.verb, staged) {
                (Verb::Read, _) => drop(round.read(at, self.bytes)),
                (Verb::Write, Some(staged)) => round.write_staged(at, staged),
                (Verb::Cas, _) => drop(round.compare_swap(at, 0, 0)),
                (Verb::FetchAdd, _) => drop(round.fetch_add(at, 1)),
                (Verb::Write | Verb::Call, _) => drop(round.call(NODE, &[], None, 0)),
            }
        }
    }
}

impl fmt::Display for VerbKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verb {
            Verb::Read => write!(f, "READ of {} B", self.bytes),
            Verb::Write => write!(f, "WRITE of {} B", self.bytes),
            Verb::Cas => f.write_str("CAS"),
            Verb::FetchAdd => f.write_str("FETCH_ADD"),
            Verb::Call => f.write_str("call"),
        }
    }
}

/// The figures of one verb.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct VerbFigures {
    /// The verb.
    #[serde(flatten)]
    pub kind: VerbKind,
    /// The median time of one verb, while there is no other, in nanoseconds. Where verbs complete
    /// at once, the time of several is divided by their number, because reading the clock would
    /// cost as much as a verb.
    pub p50_ns: f64,
    /// The time that 99 of 100 verbs did not exceed, in nanoseconds.
    pub p99_ns: f64,
    /// Millions of verbs per second, each in a round of its own: see [`Stand::under_way`]. It is
    /// the rate that a tenth of the repetitions reached, because a machine is not disturbed all the
    /// time.
    pub single_m_s: f64,
    /// Millions of verbs per second, with [`LIST`] verbs in a round.
    pub list_m_s: f64,
    /// Gigabytes (10^9 bytes) per second at the rate `list_m_s`.
    pub gb_s: f64,
}

/// The number of verbs in a round that has several. They share one doorbell.
pub const LIST: usize = 16;
/// The number of coroutines that each have such a round under way. perftest has the same number of
/// verbs under way.
const LISTS: usize = 128 / LIST;
/// The number of coroutines that each have one verb under way.
const SINGLES: usize = 32;
/// The bytes of memory, which fit into the cache, as perftest's do.
const NODE_BYTES: usize = 4 << 20;
/// The client that measures.
const CLIENT: ClientId = ClientId(1);
/// The number of rounds between two readings of the clock, where rounds complete at once and
/// reading the clock costs as much as a round.
const CHUNK: u64 = 16;
/// The duration of one measurement. It is repeated if there is time, because disturbances last
/// longer than it does.
const SLICE: Nanos = 1_000_000;
/// The smallest number of rounds of each coroutine in a measurement of a rate.
const ROUNDS: u64 = 10;
/// The percentage of the repetitions that are slower than the one that is reported.
const UNDISTURBED: usize = 90;

/// Returns the bytes of each region of a node that can be measured.
#[must_use]
pub fn regions() -> Vec<Vec<usize>> {
    vec![vec![NODE_BYTES]]
}

/// A handler that answers with no words.
struct Empty;

impl Handler for Empty {
    fn call(&self, _: ClientId, _: &[u64], _: &mut Vec<u64>) {}
}

/// One worker that is connected to one memory node, with all its coroutines.
#[derive(Debug)]
pub struct Stand {
    worker: Worker,
    lanes: Vec<Lane>,
    sim: Option<Sim>,
    /// Whether rounds complete at once. A second coroutine would only wait for the first then.
    at_once: bool,
    /// The time that reading the clock takes.
    clock: Nanos,
}

impl Stand {
    /// Makes a stand on a fabric with [`regions`]. `at_once` says whether its rounds complete at
    /// once.
    pub fn new(fabric: &dyn Host, at_once: bool, seed: u64) -> Result<Stand, MicroError> {
        Stand::with(fabric, None, at_once, seed)
    }

    /// Makes a stand on a simulated cluster with such a node.
    pub fn simulated(sim: &Sim, at_once: bool, seed: u64) -> Result<Stand, MicroError> {
        Stand::with(sim, Some(sim.clone()), at_once, seed)
    }

    fn with(fabric: &dyn Host, sim: Option<Sim>, at_once: bool, seed: u64) -> Result<Stand, MicroError> {
        fabric.answer(NODE, Box::new(Empty));
        let worker = Worker::new();
        let endpoint = worker.connect(fabric, CLIENT)?;
        let seed = |lane: usize| Prng::derive(seed, lane as u64).next_u64();
        let lanes: Vec<Lane> = (0..SINGLES).map_while(|lane| worker.lane(&endpoint, seed(lane))).collect();
        let clock = match (&sim, lanes.first()) {
            (None, Some(lane)) => clock_cost(lane),
            _ => 0,
        };
        Ok(Stand { worker, lanes, sim, at_once, clock })
    }

    /// Returns the largest number of verbs under way, with rounds of `list` verbs each.
    #[must_use]
    pub fn under_way(&self, list: usize) -> usize {
        self.coroutines(list) * list
    }

    fn coroutines(&self, list: usize) -> usize {
        match (self.at_once, list) {
            (true, _) => 1,
            (false, 1) => SINGLES,
            (false, _) => LISTS,
        }
    }

    fn chunk(&self) -> u64 {
        if self.at_once { CHUNK } else { 1 }
    }

    fn run<T>(
        &self,
        coroutines: usize,
        body: impl AsyncFn(&Lane) -> Result<T, FabricError>,
    ) -> Result<Vec<T>, MicroError> {
        let tasks = self.lanes.iter().take(coroutines).map(|lane| (lane.id(), body(lane)));
        let mut run = self.worker.start(tasks);
        let results = match &self.sim {
            None => run.to_end(),
            Some(sim) => match sim.run(&mut [Driven { clients: vec![CLIENT], run: &mut run }], None) {
                Ended::Finished => run.finish(),
                ended => return Err(MicroError::Unfinished(ended)),
            },
        };
        Ok(results.into_iter().collect::<Result<_, _>>()?)
    }

    fn now(&self) -> Nanos {
        self.lanes.first().map_or(0, Lane::now)
    }

    /// Executes one verb after the other for `time`, after `warmup`. Returns how long each took.
    pub fn latency(&self, kind: VerbKind, warmup: Nanos, time: Nanos) -> Result<Histogram<u64>, MicroError> {
        let from = self.now() + warmup;
        let chunk = self.chunk();
        let all = self.run(1, async |lane| {
            let mut all = times();
            let mut began = lane.now();
            loop {
                for _ in 0..chunk {
                    execute(lane, kind, 1).await?;
                }
                let ended = lane.now();
                if ended >= from {
                    all.saturating_record((ended - began).saturating_sub(self.clock) / chunk);
                }
                if ended >= from + time {
                    return Ok(all);
                }
                began = ended;
            }
        })?;
        Ok(all.into_iter().next().unwrap_or_else(times))
    }

    /// Returns verbs per second, with `list` verbs in a round and as many rounds as a worker has
    /// under way, for `time` after `warmup`.
    pub fn rate(&self, kind: VerbKind, list: usize, warmup: Nanos, time: Nanos) -> Result<f64, MicroError> {
        let from = self.now() + warmup;
        let chunk = self.chunk();
        let rates = self.run(self.coroutines(list), async |lane| {
            let mut rounds = 0;
            let mut first = None;
            loop {
                for _ in 0..chunk {
                    execute(lane, kind, list).await?;
                }
                rounds += chunk;
                let now = lane.now();
                match first {
                    None if now >= from => first = Some((now, rounds)),
                    Some((began, before)) if now >= from + time && rounds - before >= ROUNDS => {
                        return Ok((rounds - before) as f64 * list as f64 * 1e9 / (now - began) as f64);
                    }
                    _ => {}
                }
            }
        })?;
        Ok(rates.into_iter().sum())
    }

    /// Measures these verbs for about `time`. `look` is called from time to time with the time that
    /// has passed.
    pub fn measure(
        &self,
        kinds: &[VerbKind],
        time: Duration,
        mut look: impl FnMut(Duration) -> ControlFlow<()>,
    ) -> Result<Vec<VerbFigures>, MicroError> {
        let began = Instant::now();
        let mut series: Vec<Series> = kinds.iter().map(|kind| Series::new(*kind)).collect();
        let (mut repeated, mut goes_on) = (false, true);
        while !repeated || (goes_on && began.elapsed() < time) {
            for one in &mut series {
                one.repeat(self)?;
                goes_on &= look(began.elapsed()).is_continue();
            }
            repeated = true;
        }
        Ok(series.into_iter().map(Series::figures).collect())
    }
}

async fn execute(lane: &Lane, kind: VerbKind, list: usize) -> Result<(), FabricError> {
    let mut round = lane.round();
    kind.add_to(&mut round, lane, list);
    lane.execute(round).await.map(drop)
}

fn clock_cost(lane: &Lane) -> Nanos {
    let mut costs: Vec<Nanos> = (0..1001).map(|_| lane.now()).collect();
    costs = costs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// The measurements of a verb so far.
struct Series {
    kind: VerbKind,
    latency: Histogram<u64>,
    single: Vec<f64>,
    list: Vec<f64>,
}

impl Series {
    fn new(kind: VerbKind) -> Series {
        Series { kind, latency: times(), single: Vec::new(), list: Vec::new() }
    }

    fn repeat(&mut self, stand: &Stand) -> Result<(), MicroError> {
        merge(&mut self.latency, &stand.latency(self.kind, SLICE / 4, SLICE)?);
        // After this time, all verbs are under way.
        let warmup = (SLICE / 4).max(4 * self.latency.value_at_quantile(0.5));
        self.single.push(stand.rate(self.kind, 1, warmup, SLICE)?);
        self.list.push(stand.rate(self.kind, LIST, warmup, SLICE)?);
        Ok(())
    }

    fn figures(mut self) -> VerbFigures {
        let reached = |rates: &mut Vec<f64>| {
            rates.sort_by(f64::total_cmp);
            rates.get(rates.len() * UNDISTURBED / 100).copied().unwrap_or_default()
        };
        let (single, list) = (reached(&mut self.single), reached(&mut self.list));
        VerbFigures {
            kind: self.kind,
            p50_ns: self.latency.value_at_quantile(0.5) as f64,
            p99_ns: self.latency.value_at_quantile(0.99) as f64,
            single_m_s: four_digits(single / 1e6),
            list_m_s: four_digits(list / 1e6),
            gb_s: four_digits(list * self.kind.bytes as f64 / 1e9),
        }
    }
}

/// Rounds a value to four digits.
#[must_use]
pub fn four_digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}
