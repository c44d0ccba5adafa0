//! RACE hash tables under YCSB (rTX, section 6.1): the transactional ones over native ones.
//!
//! Operations on RACE hash tables are no transactions, so they are counted here, and not by the
//! driver of workloads.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use remora::floors::index::race::Hash;
use remora::{Error, Race, RaceOptions, Session};
use remora_fabric::sim::Ended;
use remora_fabric::{Cost, Nanos};
use remora_workload::simulated::{connect, drive};
use remora_workload::ycsb::{Distribution, Kind, Zipf};
use remora_workload::{Prng, RunError};

use super::{Clients, Operations, Point, ReproduceError, Row, Scale, System, bench, measured, run_all};
use crate::LabError;

/// What a simulation of a RACE hash table has measured.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// Operations that ended in the measured time, and the sum of their times.
    ended: u64,
    took: Nanos,
    cost: Cost,
    /// Operations a second.
    throughput: f64,
}

impl Measured {
    fn latency(&self) -> f64 {
        self.took as f64 / self.ended as f64
    }

    fn of_each(&self, count: u64) -> f64 {
        count as f64 / self.ended as f64
    }
}

const SYSTEMS: [System; 2] = [System::Optimal, System::Rtx];
/// The number of keys among which there is one of each leaf.
const WARM_KEYS: u64 = 1 << 16;
/// Bytes for each key in the first extent. Each session takes 64 KiB of it, so that the table does
/// not grow while it is measured.
const ROOM_BYTES: usize = 1_000;
/// Virtual time within which operations under way at the end must finish.
const GRACE: Nanos = 1_000_000_000;

fn points(scale: &Scale) -> Vec<Point> {
    let all = Clients::All(scale.most_in_flight());
    let mut points = Vec::new();
    for system in SYSTEMS {
        for operations in [Operations::A, Operations::B, Operations::C] {
            for skewed in [false, true] {
                points.push(Point { system, operations, skewed, clients: all });
            }
        }
        for operations in [Operations::D, Operations::Inserts] {
            points.push(Point { system, operations, skewed: false, clients: all });
        }
        for operations in [Operations::A, Operations::C, Operations::Inserts] {
            points.push(Point { system, operations, skewed: false, clients: Clients::One });
        }
    }
    points
}

/// The keys of a table. Loaded keys are the first numbers, and inserted ones follow.
struct Keys {
    loaded: u64,
    /// The number of inserts that have begun.
    begun: AtomicU64,
    zipf: Zipf,
    distribution: Distribution,
}

impl Keys {
    fn draw(&self, random: &mut Prng) -> u64 {
        match self.distribution {
            Distribution::Uniform => random.below(self.loaded),
            Distribution::Zipf(_) => self.zipf.draw(random),
            Distribution::Latest(_) => {
                let there = self.loaded + self.begun.load(Ordering::Relaxed);
                there - 1 - self.zipf.draw(random)
            }
        }
    }
}

fn value(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Runs one operation of the mix.
async fn operate(
    (race, keys, point): (&Race, &Keys, &Point),
    session: &mut Session,
    random: &mut Prng,
) -> Result<(), Error> {
    match point.operations.mix(point.skewed).draw(random) {
        Kind::Insert => {
            let key = keys.loaded + keys.begun.fetch_add(1, Ordering::Relaxed);
            race.insert(session, &key.to_le_bytes(), &value(key)).await?;
        }
        Kind::Read => {
            let key = keys.draw(random).to_le_bytes();
            race.get_with(session, &key, |_| ()).await?;
        }
        _ => {
            let key = keys.draw(random).to_le_bytes();
            race.update(session, &key, &value(random.next_u64())).await?;
        }
    }
    Ok(())
}

fn run(scale: &Scale, point: &Point) -> Result<Measured, ReproduceError> {
    let (machines, threads, coroutines) = match point.clients {
        Clients::One => (1, 1, 1),
        Clients::All(coroutines) => (scale.machines, scale.threads, coroutines),
    };
    let bench = crate::Bench { threads, ..bench(scale, point.system.protocol(), machines, coroutines)? };
    let options = RaceOptions::default().rows(scale.race_keys).bytes(ROOM_BYTES);
    let (sim, cluster, race, _) = bench.load(|cluster| cluster.create_race("race", options))?;
    let simulation = bench.simulation();
    let failed = |error: Error| LabError::Run(RunError::from(error));
    sim.instant(true);
    let mut workers = connect(&cluster, &sim, &simulation).map_err(LabError::from)?;
    let load = async |session: &mut Session| {
        for key in 0..scale.race_keys {
            race.insert(session, &key.to_le_bytes(), &value(key)).await?;
        }
        Ok(())
    };
    workers[0].block_on(load).map_err(failed)?;
    // Each session learns of all leaves, by a key of each, and has blocks in hand.
    let leaves = race_leaves(scale.race_keys);
    for worker in &mut workers {
        let warm = async |_: usize, session: &mut Session| {
            for key in &leaves {
                race.get_with(session, &key.to_le_bytes(), |_| ()).await?;
            }
            race.update(session, &0u64.to_le_bytes(), &value(0)).await?;
            Ok(())
        };
        worker.run(warm).into_iter().collect::<Result<(), Error>>().map_err(failed)?;
    }
    sim.instant(false);
    let mix = point.operations.mix(point.skewed);
    let theta = match mix.distribution {
        Distribution::Zipf(theta) | Distribution::Latest(theta) => theta,
        Distribution::Uniform => 0.0,
    };
    let zipf = Zipf::new(scale.race_keys, theta);
    let keys = Keys { loaded: scale.race_keys, begun: AtomicU64::new(0), zipf, distribution: mix.distribution };
    let from = sim.now() + simulation.warmup;
    let until = from + simulation.measure;
    let (measured, failure) = (RefCell::new(Measured::default()), Cell::new(None));
    let bodies: Vec<_> = (0..workers.len())
        .map(|worker| {
            let (race, keys, measured, failure) = (&race, &keys, &measured, &failure);
            async move |coroutine: usize, session: &mut Session| {
                let mut random = Prng::derive(simulation.seed, (worker * simulation.coroutines + coroutine) as u64);
                loop {
                    let (began, before) = (session.lane().now(), session.lane().cost());
                    if began >= until {
                        return;
                    }
                    session.lane().endpoint().charge(simulation.transaction);
                    if let Err(error) = operate((race, keys, point), session, &mut random).await {
                        failure.set(Some(error));
                        return;
                    }
                    let ended = session.lane().now();
                    if (from..until).contains(&ended) {
                        let mut measured = measured.borrow_mut();
                        measured.ended += 1;
                        measured.took += ended - began;
                        measured.cost.add(&session.lane().cost().since(&before));
                    }
                    session.lane().yield_now().await;
                }
            }
        })
        .collect();
    let (_, ended) = drive(&sim, &mut workers, &bodies, until + GRACE);
    if let Some(error) = failure.take() {
        return Err(failed(error).into());
    }
    if ended != Ended::Finished {
        return Err(ReproduceError::Unfinished { what: format!("RACE, {}", point.name()), how: ended });
    }
    let mut measured = measured.into_inner();
    measured.throughput = measured.ended as f64 / (simulation.measure as f64 / 1e9);
    Ok(measured)
}

/// Returns keys of which each leaf of the table has one, as long as nothing was split.
fn race_leaves(keys: u64) -> Vec<u64> {
    let mut found = std::collections::BTreeMap::new();
    for key in 0..keys.min(WARM_KEYS) {
        found.entry(Hash::of(&key.to_le_bytes()).leaf_bits() & 0x3ff).or_insert(key);
    }
    found.into_values().collect()
}

/// Runs all experiments of RACE hash tables.
pub(super) fn rows(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Vec<Row>, ReproduceError> {
    const PEAK: &str = "rTX, section 6.1";
    let runs = run_all(&points(scale), scale.parallel, look, |point| run(scale, &point))?;
    let at = |system, operations, skewed, clients| measured(&runs, &Point { system, operations, skewed, clients });
    let all = Clients::All(scale.most_in_flight());
    let mut rows = Vec::new();
    for (system, operations) in [Operations::C, Operations::Inserts]
        .into_iter()
        .flat_map(|operations| SYSTEMS.map(|system| (system, operations)))
    {
        let found = at(system, operations, false, Clients::One);
        let what = if operations == Operations::C { "a get" } else { "an insert" };
        let row =
            |unit: &str, ours| Row::ours(format!("{what} of a RACE table by {}: {unit}", system.name()), "", ours);
        rows.extend([
            row("round trips", found.of_each(found.cost.round_trips)),
            row("verbs", found.of_each(found.cost.reads + found.cost.writes + found.cost.atomics)),
            row("atomics", found.of_each(found.cost.atomics)),
        ]);
    }
    for (operations, skewed) in [
        (Operations::A, false),
        (Operations::B, false),
        (Operations::C, false),
        (Operations::D, false),
        (Operations::A, true),
        (Operations::B, true),
        (Operations::C, true),
        (Operations::Inserts, false),
    ] {
        let throughput = |system| at(system, operations, skewed, all).throughput;
        let ratio = throughput(System::Rtx) / throughput(System::Optimal);
        let name = format!("RACE, {}{}: rTX over Optimal", operations.name(), if skewed { ", skewed" } else { "" });
        let row = Row::ours(name, "x", ratio);
        // The text has plots of RACE, and these words: the overhead is 42 % at most.
        rows.push(if operations == Operations::Inserts {
            row.note(INSERTS)
        } else {
            let is_hot = skewed && operations != Operations::C;
            row.said(PEAK).holds((0.58..1.0).contains(&ratio)).note(if is_hot { HOT } else { VERBS })
        });
    }
    for operations in [Operations::A, Operations::C, Operations::Inserts] {
        let latency = |system| at(system, operations, false, Clients::One).latency();
        let name = format!("RACE, {}, one client: latency of rTX over Optimal", operations.name());
        rows.push(Row::ours(name, "x", latency(System::Rtx) / latency(System::Optimal)));
    }
    Ok(rows)
}

/// The number of simulations of [`rows`].
pub(super) fn count(scale: &Scale) -> usize {
    points(scale).len()
}

const VERBS: &str =
    "a table with marks: a get reads the lock, too, and an update has two more atomics and reads the lock";
const HOT: &str =
    "updates of hot keys fail and are tried again under both systems; why rTX is faster there was not found out";
const INSERTS: &str = "an insert of rTX first takes its slot as pending, in a round trip of its own";
