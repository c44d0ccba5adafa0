//! A probe for what no maker of hardware promises: lines of records that are read whole, and WRITEs
//! that are atomic against CASes. It looks for accesses that contradict these assumptions
//! ([`Assumed`]). An access that was found refutes the assumption. If none was found, the
//! assumption may still be wrong.
//!
//! Three clients run at the same time, each with a connection of its own:
//!
//! ```text
//! writer   CAS lock 0 -> 1, WRITE version and data, CAS lock 1 -> 0    one round, again and again
//! reader   READ of the record: version and data must agree, or the lock is taken
//! other    CAS of a word, while the writer WRITEs the word
//! ```
//!
//! A record has the lock first, then the version. Every word of the data has the version's value. A
//! record of one line must be whole, or the reader must see the lock. A record of several lines is
//! read for comparison: it may be torn anywhere, and tables detect that by a checksum or by a
//! version in each line.
//!
//! For the word, the writer WRITEs `v` and awaits it. Then it WRITEs `w` while the other client
//! CASes `v -> v'`. If the CAS succeeds, it came before the WRITE, so the word must be `w` in the
//! end. If it is `v'`, the device has stored the result of its CAS over the WRITE.
//!
//! [`Assumed`]: remora_fabric::Assumed

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use remora_fabric::sim::{Driven, Ended, Sim};
use remora_fabric::{Address, ClientId, Fabric, FabricError, LINE_BYTES, Lane, Nanos, RegionId, WORD_BYTES, Worker};
use serde::Serialize;

use super::{MicroError, NODE};

/// Bytes of a record of several lines.
pub const LONG_BYTES: usize = 4 * LINE_BYTES;
/// Bytes of the memory that the probe needs.
pub const BYTES: usize = 4096;
const LOCK: u64 = 1;
/// The time after which a client looks again whether another one has done its part.
const PAUSE_NS: Nanos = 200;

/// The longest time by which the WRITE is sent later than the CAS may be.
const LATER_NS: Nanos = 1_000;

/// The results of the probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TornReport {
    /// Reads of a record of one line.
    pub lines: TornReads,
    /// Reads of a record of [`LONG_BYTES`].
    pub long_records: TornReads,
    /// WRITEs of a word that met a CAS which succeeded.
    pub writes: u64,
    /// How many of these WRITEs were lost.
    pub writes_lost: u64,
}

/// READs of a record that another client was writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TornReads {
    /// The number of READs.
    pub reads: u64,
    /// Whose words did not belong together, and whose lock was taken.
    pub torn_and_locked: u64,
    /// Whose words did not belong together, although the lock was free.
    pub torn_unnoticed: u64,
}

impl TornReads {
    fn count(&mut self, record: &[u64]) {
        let [lock, version, data @ ..] = record else { return };
        self.reads += 1;
        match (data.iter().all(|word| word == version), *lock) {
            (true, _) => {}
            (false, 0) => self.torn_unnoticed += 1,
            (false, _) => self.torn_and_locked += 1,
        }
    }
}

/// Where the records and the word are.
#[derive(Clone, Copy)]
struct Places {
    line: Address,
    long: Address,
    word: Address,
}

/// What the writer and the other client tell each other about the word.
#[derive(Default)]
struct Meeting {
    /// The trial that the writer has begun.
    begun: AtomicU64,
    /// The last trial in which the other client has CASed.
    swapped: AtomicU64,
    /// Whether that CAS has succeeded.
    succeeded: AtomicBool,
    over: AtomicBool,
}

impl Places {
    fn of(region: RegionId) -> Places {
        let at = |offset| Address { node: NODE, region, offset };
        Places { line: at(0), long: at(1024), word: at(2048) }
    }
}

/// Runs the probe on a fabric for `time`, with three threads. The first [`BYTES`] of node 0 are the
/// probe's.
pub fn probe(fabric: &dyn Fabric, time: Duration) -> Result<TornReport, MicroError> {
    let places = prepare(fabric);
    let meeting = Meeting::default();
    let until = time.as_nanos() as Nanos;
    let parts = thread::scope(|scope| {
        let threads = [1, 2, 3].map(|client| {
            let meeting = &meeting;
            scope.spawn(move || {
                remora_fabric::block_on(fabric, ClientId(client), async |lane: &Lane| {
                    part(lane, client, places, meeting, lane.now() + until).await
                })
                .inspect_err(|_| meeting.over.store(true, Ordering::Release))
            })
        });
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let mut report = TornReport::default();
    for part in parts {
        report.add(part??);
    }
    Ok(report)
}

/// Runs the probe on a simulated cluster for `time` of its virtual time.
pub fn probe_simulated(sim: &Sim, time: Duration) -> Result<TornReport, MicroError> {
    let places = prepare(sim);
    let meeting = Meeting::default();
    let until = sim.now() + time.as_nanos() as Nanos;
    let workers = [1, 2, 3].map(|client| (client, Worker::new()));
    let mut lanes = Vec::new();
    for (client, worker) in &workers {
        let endpoint = worker.connect(sim, ClientId(*client))?;
        lanes.push((*client, worker, worker.lane(&endpoint, u64::from(*client)).expect("the first lane")));
    }
    sim.instant(false);
    let mut runs: Vec<_> = lanes
        .iter()
        .map(|(client, worker, lane)| worker.start([(lane.id(), part(lane, *client, places, &meeting, until))]))
        .collect();
    let mut driven: Vec<Driven<'_>> =
        runs.iter_mut().zip(1..).map(|(run, client)| Driven { clients: vec![ClientId(client)], run }).collect();
    match sim.run(&mut driven, None) {
        Ended::Finished => {}
        ended => return Err(MicroError::Unfinished(ended)),
    }
    drop(driven);
    let mut report = TornReport::default();
    for part in runs.into_iter().flat_map(remora_fabric::Run::finish) {
        report.add(part?);
    }
    Ok(report)
}

/// Tells the fabric where a line of a record is, if it keeps such lines whole.
fn prepare(fabric: &dyn Fabric) -> Places {
    let places = Places::of(RegionId(0));
    if fabric.capabilities().atomic_line {
        fabric.lines_of_records(places.line, LINE_BYTES as u64);
    }
    places
}

impl TornReport {
    fn add(&mut self, part: TornReport) {
        for (sum, part) in [(&mut self.lines, part.lines), (&mut self.long_records, part.long_records)] {
            sum.reads += part.reads;
            sum.torn_and_locked += part.torn_and_locked;
            sum.torn_unnoticed += part.torn_unnoticed;
        }
        self.writes += part.writes;
        self.writes_lost += part.writes_lost;
    }
}

/// Does one client's part until `until`.
async fn part(
    lane: &Lane,
    client: u32,
    places: Places,
    meeting: &Meeting,
    until: Nanos,
) -> Result<TornReport, FabricError> {
    match client {
        1 => write(lane, places, meeting, until).await,
        2 => read(lane, places, meeting).await,
        _ => swap(lane, places, meeting).await,
    }
}

async fn write(lane: &Lane, places: Places, meeting: &Meeting, until: Nanos) -> Result<TornReport, FabricError> {
    let mut report = TornReport::default();
    for version in 1.. {
        if lane.now() >= until || meeting.over.load(Ordering::Acquire) {
            break;
        }
        let mut round = lane.round();
        for (record, bytes) in [(places.line, LINE_BYTES), (places.long, LONG_BYTES)] {
            round.compare_swap(record, 0, LOCK);
            round.write_words(
                record.plus(WORD_BYTES as u64),
                &[version; LONG_BYTES / WORD_BYTES][..bytes / WORD_BYTES - 1],
            );
            round.compare_swap(record, LOCK, 0);
        }
        let (old, new) = (3 * version, 3 * version + 1);
        round.write_words(places.word, &[old]);
        lane.execute(round).await?;
        meeting.begun.store(version, Ordering::Release);
        // Sometimes the CAS comes first, and sometimes the WRITE.
        lane.sleep(lane.random() % LATER_NS).await;
        let mut round = lane.round();
        round.write_words(places.word, &[new]);
        lane.execute(round).await?;
        while meeting.swapped.load(Ordering::Acquire) < version && !meeting.over.load(Ordering::Acquire) {
            lane.sleep(PAUSE_NS).await;
        }
        let mut round = lane.round();
        let word = round.read(places.word, WORD_BYTES);
        let found = lane.execute(round).await?.words(word)[0];
        if meeting.succeeded.load(Ordering::Acquire) {
            report.writes += 1;
            report.writes_lost += u64::from(found != new);
        }
    }
    meeting.over.store(true, Ordering::Release);
    Ok(report)
}

async fn read(lane: &Lane, places: Places, meeting: &Meeting) -> Result<TornReport, FabricError> {
    let mut report = TornReport::default();
    while !meeting.over.load(Ordering::Acquire) {
        let mut round = lane.round();
        let line = round.read(places.line, LINE_BYTES);
        let long = round.read(places.long, LONG_BYTES);
        let done = lane.execute(round).await?;
        report.lines.count(done.words(line));
        report.long_records.count(done.words(long));
        drop(done);
        lane.yield_now().await;
    }
    Ok(report)
}

async fn swap(lane: &Lane, places: Places, meeting: &Meeting) -> Result<TornReport, FabricError> {
    let mut done = 0;
    while !meeting.over.load(Ordering::Acquire) {
        let version = meeting.begun.load(Ordering::Acquire);
        if version == done {
            lane.sleep(PAUSE_NS / 2).await;
            continue;
        }
        let mut round = lane.round();
        let swapped = round.compare_swap(places.word, 3 * version, 3 * version + 2);
        let has_swapped = lane.execute(round).await?.swapped(swapped);
        meeting.succeeded.store(has_swapped, Ordering::Release);
        meeting.swapped.store(version, Ordering::Release);
        done = version;
    }
    Ok(TornReport::default())
}
