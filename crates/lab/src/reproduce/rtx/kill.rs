//! The clients of one of three machines are killed while all clients insert (rTX, section 6.2):
//! into a tree, and into a RACE hash table that grows from nothing.
//!
//! A client is killed by not being polled any more. What it has sent lands, and nothing follows.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use remora::{Cluster, Error, RaceOptions, Session};
use remora_fabric::sim::Sim;
use remora_fabric::{Nanos, splitmix};
use remora_workload::simulated::{connect, drive};
use remora_workload::{RunError, Workload};

use super::{Operations, ReproduceError, Row, Scale, System, Tree, bench};
use crate::{Bench, LabError};

const MACHINES: usize = 3;
const BIN: Nanos = 1_000_000;

/// An insert that was answered.
#[derive(Clone, Copy, Debug)]
struct Inserted {
    machine: usize,
    began: Nanos,
    ended: Nanos,
}

/// What clients have inserted around the moment at which those of the last machine were killed.
#[derive(Debug)]
struct Timeline {
    inserted: Vec<Inserted>,
    killed: Nanos,
    until: Nanos,
}

impl Timeline {
    /// Returns how many inserts of the survivors ended in each millisecond of a time.
    fn bins(&self, from: Nanos, until: Nanos) -> Vec<u64> {
        let mut bins = vec![0; ((until - from) / BIN) as usize];
        for insert in self.inserted.iter().filter(|insert| insert.machine + 1 < MACHINES && insert.ended >= from) {
            if let Some(bin) = bins.get_mut(((insert.ended - from) / BIN) as usize) {
                *bin += 1;
            }
        }
        bins
    }

    /// Returns how many inserts ended per second, in a time before or after the kill.
    fn throughput(&self, from: Nanos, until: Nanos) -> f64 {
        let in_time = |insert: &&Inserted| (from..until).contains(&insert.ended);
        self.inserted.iter().filter(in_time).count() as f64 / ((until - from) as f64 / 1e9)
    }

    /// Returns the longest time that an insert of a survivor took which ended in a time.
    fn longest(&self, from: Nanos, until: Nanos) -> Nanos {
        let of_survivors = self.inserted.iter().filter(|insert| insert.machine + 1 < MACHINES);
        let in_time = of_survivors.filter(|insert| (from..until).contains(&insert.ended));
        in_time.map(|insert| insert.ended - insert.began).max().unwrap_or(0)
    }
}

/// Has all clients insert, kills the last machine's clients after a while, and goes on for another
/// while. `insert` returns false if the cluster takes no more.
fn kill(
    bench: &Bench,
    (sim, cluster): (&Sim, &Cluster),
    around: [Duration; 2],
    warm: impl AsyncFnOnce(&mut Session) -> Result<(), Error>,
    insert: impl AsyncFn(&mut Session) -> Result<(), Error>,
) -> Result<Timeline, ReproduceError> {
    let simulation = bench.simulation();
    sim.instant(true);
    let mut workers = connect(cluster, sim, &simulation).map_err(LabError::from)?;
    workers[0].block_on(warm).map_err(|error| LabError::Run(RunError::from(error)))?;
    sim.instant(false);
    let [before, after] = around.map(|time| time.as_nanos() as Nanos);
    let killed = sim.now() + before;
    let until = killed + after;
    let inserted = RefCell::new(Vec::new());
    let bodies: Vec<_> = (0..workers.len())
        .map(|worker| {
            let (machine, inserted, insert) = (worker / bench.threads, &inserted, &insert);
            async move |_: usize, session: &mut Session| {
                loop {
                    let began = session.lane().now();
                    if began >= until {
                        return;
                    }
                    session.lane().endpoint().charge(simulation.transaction);
                    let mut insert = pin!(insert(session));
                    let lives = || machine + 1 < MACHINES || sim.now() < killed;
                    let done = poll_fn(|context| if lives() { insert.as_mut().poll(context) } else { Poll::Pending });
                    if done.await.is_ok() {
                        inserted.borrow_mut().push(Inserted { machine, began, ended: sim.now() });
                    }
                }
            }
        })
        .collect();
    // Clients that were killed never end.
    let _ = drive(sim, &mut workers, &bodies, until + BIN);
    Ok(Timeline { inserted: inserted.into_inner(), killed, until })
}

/// Kills clients that insert into a tree.
pub(super) fn of_tree(scale: &Scale, system: System) -> Result<Vec<Row>, ReproduceError> {
    const SOURCE: &str = "rTX, section 6.2";
    let bench = bench(scale, system.protocol(), MACHINES, 1)?;
    let mix = Operations::Inserts.mix(false);
    let (sim, cluster, tree, _) = bench.load(|cluster| Tree::load(cluster, scale.keys, mix))?;
    let warm = async |session: &mut Session| tree.warm(session, 0, 1).await;
    let insert = async |session: &mut Session| tree.insert(session).await.map(|_| ());
    let timeline = kill(&bench, (&sim, &cluster), scale.around_kill, warm, insert)?;
    let Timeline { killed, until, .. } = timeline;
    let from = killed - (scale.around_kill[0].as_nanos() as Nanos) / 2;
    let (before, after) = (timeline.throughput(from, killed), timeline.throughput(killed, until));
    let usual = timeline.bins(from, killed);
    let usual = usual.iter().sum::<u64>() as f64 / usual.len() as f64;
    let bins = timeline.bins(killed, until);
    let share = |bin: u64| bin as f64 / usual;
    let worst = share(bins.iter().copied().min().unwrap_or(0));
    let last = share(bins.last().copied().unwrap_or(0));
    // Milliseconds from the first one in which the survivors are slow to the last one.
    let is_slow = |bin: &u64| share(*bin) < 0.9;
    let slow = match (bins.iter().position(is_slow), bins.iter().rposition(is_slow)) {
        (Some(first), Some(last)) => last + 1 - first,
        _ => 0,
    };
    let row = |what: &str, unit, ours| Row::ours(format!("kill under {}: {what}", system.name()), unit, ours);
    let ratio = row("all clients after over before", "x", after / before);
    let worst = row("survivors' worst millisecond over their usual one", "x", worst);
    let at_the_end = row("survivors' last millisecond over their usual one", "x", last).said(SOURCE);
    let slow_for = row("time for which survivors are below 0.9 of their usual rate", "ms", slow as f64);
    Ok(match system {
        System::Optimal => vec![ratio, worst, at_the_end.holds(last < 0.9), slow_for],
        System::Suspects(_) => vec![ratio, worst, at_the_end.holds(last > 0.9), slow_for],
        _ => {
            let holds = (after / before - 2.0 / 3.0).abs() < 0.1;
            let ratio = ratio.published(4.2 / 6.5, SOURCE).holds(holds).note(MET);
            vec![ratio, worst.note(MET), at_the_end.holds(last > 0.9).note(MET), slow_for.note(MET)]
        }
    })
}

/// Kills clients that insert into a RACE hash table, which splits its subtables meanwhile.
pub(super) fn of_race(scale: &Scale, system: System) -> Result<Vec<Row>, ReproduceError> {
    const SOURCE: &str = "rTX, section 6.2";
    let bench = bench(scale, system.protocol(), MACHINES, 1)?;
    let (sim, cluster, race, _) = bench.load(|cluster| cluster.create_race("race", RaceOptions::default()))?;
    let next = AtomicU64::new(0);
    let insert = async |session: &mut Session| {
        let key = splitmix(next.fetch_add(1, Ordering::Relaxed));
        race.insert(session, &key.to_le_bytes(), &key.to_le_bytes()).await.map(|_| ())
    };
    let timeline = kill(&bench, (&sim, &cluster), scale.around_kill, async |_: &mut Session| Ok(()), insert)?;
    let Timeline { killed, until, .. } = timeline;
    let ms = |nanos: Nanos| nanos as f64 / 1e6;
    let (while_all_live, after) = (timeline.longest(0, killed), timeline.longest(killed, until));
    let after_is_short = ms(after) < 185.0;
    let row = |what: &str, unit, ours| {
        let table = if system == System::Rtx { "a RACE table" } else { "a RACE table of Optimal" };
        Row::ours(format!("{table} grows: {what}"), unit, ours)
    };
    let mut rows = vec![row("millions of keys", "M", timeline.inserted.len() as f64 / 1e6)];
    let longest = row("the longest insert", "ms", ms(while_all_live)).note(SPLITS);
    if system == System::Rtx {
        rows.push(longest.said(SOURCE).holds(ms(while_all_live) < 200.0));
        let after = row("the longest insert of a survivor after the kill", "ms", ms(after)).note(SPLITS);
        rows.push(after.said(SOURCE).holds(after_is_short));
    } else {
        rows.push(longest);
    }
    Ok(rows)
}

const MET: &str =
    "a client that meets the lock of a dead one waits for 8 ms from then; the text's lease began with the lock";
const SPLITS: &str =
    "a split here moves a subtable of 1,536 slots; the text's rehash takes 200 ms, and 185 ms if its client dies";
