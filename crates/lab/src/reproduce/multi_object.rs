//! The multi-object benchmark of R2 (Wei thesis, section 2.2.4, figure 2-5): requests that read or
//! write several objects at random machines, by bare verbs or by bare calls, with one optimization
//! after the other.
//!
//! | step | what a coroutine does with the objects of a request | rounds |
//! | --- | --- | --- |
//! | each awaited | posts one access, and awaits it before the next | n, one after the other |
//! | + coroutines | the same, while other coroutines of its thread have their turn | n |
//! | + outstanding requests | posts all accesses, then awaits all | n, at once |
//! | + doorbell batching | posts all accesses as one round | 1 |
//! | + passive acknowledgement | posts that round, and awaits nothing (writes only) | 1 |
//!
//! The fabric has no switch for doorbells. A round rings one doorbell for each node to which it has
//! verbs, and one for all of its calls. So accesses without doorbell batching are rounds of their
//! own.

use std::cell::Cell;

use remora_fabric::limits::NODES_MAX;
use remora_fabric::sim::{Profile, SimOptions};
use remora_fabric::{Address, Cost, FabricError, Lane, Nanos, Round, WORD_BYTES};

use super::{ReproduceError, Reproduction, Row, greatest, measured, run_all};
use crate::hardware::rig::{Client, Rig};
use remora_command::plot::{Labels, Series};

/// The number of objects of a request. The text does not print it. It follows from two of its
/// figures: machines peak at 8.43 million requests and at 86.9 million READs per second.
pub const OBJECTS: usize = 10;
/// The bytes of an object.
const BYTES: usize = 64;
/// The number of requests of a coroutine that may be under way while it awaits none of them.
const UNDER_WAY_MAX: u32 = 2;
/// The time in nanoseconds after which a coroutine with too many of them looks again.
const PAUSE_NS: Nanos = 500;

const PROFILE: &str = "connectx4";
const SOURCE: &str = "Wei thesis, figure 2-5";

/// The size of the experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of machines. The text has 16.
    pub nodes: u16,
    /// The number of threads of each machine. The text has 24.
    pub threads: usize,
    /// The numbers of coroutines of a thread, from 1 on.
    pub coroutines: Vec<usize>,
    /// Virtual time that is counted, in microseconds.
    pub measure_us: u64,
    /// Simulations that run at the same time, each on a thread.
    pub parallel: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Scale {
    /// Returns the text's machines.
    #[must_use]
    pub fn full(seed: u64) -> Scale {
        let coroutines = vec![1, 2, 4, 8, 16];
        Scale { nodes: 16, threads: 24, coroutines, measure_us: 200, parallel: super::parallel(), seed }
    }

    /// Returns four small machines, which show directions only.
    #[must_use]
    pub fn quick(seed: u64) -> Scale {
        Scale { nodes: 4, threads: 4, coroutines: vec![1, 8], ..Scale::full(seed) }
    }
}

/// The way in which an object is read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
    /// A call whose answer has the object.
    CallToRead,
    /// A call that brings the object.
    CallToWrite,
}

impl Access {
    const ALL: [Access; 4] = [Access::Read, Access::CallToRead, Access::Write, Access::CallToWrite];

    fn name(self) -> &'static str {
        match self {
            Access::Read => "READs",
            Access::Write => "WRITEs",
            Access::CallToRead => "calls that read",
            Access::CallToWrite => "calls that write",
        }
    }

    fn is_call(self) -> bool {
        matches!(self, Access::CallToRead | Access::CallToWrite)
    }

    /// Returns the steps that this access allows. A reader waits for what it reads.
    fn steps(self) -> &'static [Step] {
        match self {
            Access::Read | Access::CallToRead => &Step::ALL[..3],
            Access::Write | Access::CallToWrite => &Step::ALL,
        }
    }

    /// Makes the round that accesses these objects.
    fn round<'l>(self, lane: &'l Lane, objects: &[Address]) -> Round<'l> {
        const WORDS: usize = BYTES / WORD_BYTES;
        let mut round = lane.round();
        for at in objects {
            match self {
                Access::Read => {
                    round.read(*at, BYTES);
                }
                Access::Write => {
                    let object = round.stage_words(WORDS);
                    round.write_staged(*at, object);
                }
                Access::CallToRead => {
                    round.call(at.node, &[1, WORDS as u64], None, WORDS);
                }
                Access::CallToWrite => {
                    let object = round.stage_words(WORDS);
                    round.call(at.node, &[1, 1], Some(object), 1);
                }
            }
        }
        round
    }
}

/// What a coroutine does with the accesses of a request. Each step has the optimizations of the
/// steps before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Awaited,
    Outstanding,
    Batched,
    Passive,
}

impl Step {
    const ALL: [Step; 4] = [Step::Awaited, Step::Outstanding, Step::Batched, Step::Passive];

    fn name(self) -> &'static str {
        match self {
            Step::Awaited => "each awaited",
            Step::Outstanding => "+ outstanding requests",
            Step::Batched => "+ doorbell batching",
            Step::Passive => "+ passive acknowledgement",
        }
    }

    /// Executes or posts one request.
    async fn request(self, lane: &Lane, access: Access, objects: [Address; OBJECTS]) -> Result<(), FabricError> {
        match self {
            Step::Awaited => {
                for at in objects {
                    lane.execute(access.round(lane, &[at])).await?;
                }
            }
            Step::Outstanding => {
                for posted in objects.map(|at| lane.execute(access.round(lane, &[at]))) {
                    posted.await?;
                }
            }
            Step::Batched => drop(lane.execute(access.round(lane, &objects)).await?),
            Step::Passive => {
                lane.post(access.round(lane, &objects));
                lane.yield_now().await;
                while lane.background() >= UNDER_WAY_MAX {
                    lane.sleep(PAUSE_NS).await;
                }
            }
        }
        Ok(())
    }

    /// Returns the number of doorbells of a request.
    fn doorbells(self, access: Access, objects: &[Address]) -> u64 {
        match self {
            Step::Awaited | Step::Outstanding => objects.len() as u64,
            Step::Batched | Step::Passive if access.is_call() => 1,
            Step::Batched | Step::Passive => {
                let nodes = objects.iter().fold([false; NODES_MAX], |mut nodes, at| {
                    nodes[usize::from(at.node.0)] = true;
                    nodes
                });
                nodes.iter().filter(|is_there| **is_there).count() as u64
            }
        }
    }
}

/// The clients of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    /// One coroutine in the whole cluster.
    Alone,
    /// All threads of all machines, each with as many coroutines.
    Coroutines(usize),
}

/// One simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Point {
    access: Access,
    step: Step,
    load: Load,
}

/// The results of one simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Found {
    /// Millions of requests per second that a machine makes.
    rate: f64,
    /// Microseconds from one request of a coroutine to its next.
    us: f64,
    /// Rounds of a request that were awaited.
    awaited: f64,
    /// Verbs and calls of a request.
    verbs: f64,
    /// Doorbells of a request.
    doorbells: f64,
}

fn run(scale: &Scale, point: Point) -> Result<Found, ReproduceError> {
    let Point { access, step, load } = point;
    let profile = Profile::named(PROFILE).ok_or(ReproduceError::NoProfile(PROFILE))?;
    let sim = SimOptions::new(profile, scale.seed);
    let (rig, longer) = match load {
        // One client makes few requests in a time in which a whole cluster makes many.
        Load::Alone => (Rig { machines: 1, ..Rig::all_to_all(&sim, scale.nodes, 1, 1) }, 20),
        Load::Coroutines(coroutines) => (Rig::all_to_all(&sim, scale.nodes, scale.threads, coroutines), 1),
    };
    let rig = rig.for_us(scale.measure_us / 2, scale.measure_us * longer);
    let (requests, doorbells, costs) = (Cell::new(0.0), Cell::new(0), Cell::new(Cost::default()));
    let total = rig.rate(async |client: &Client<'_>| {
        let lane = client.lane;
        let objects: [Address; OBJECTS] = std::array::from_fn(|_| client.anywhere(BYTES));
        let before = lane.cost();
        step.request(lane, access, objects).await?;
        let mut cost = costs.get();
        cost.add(&lane.cost().since(&before));
        costs.set(cost);
        doorbells.set(doorbells.get() + step.doorbells(access, &objects));
        requests.set(requests.get() + 1.0);
        Ok(1.0)
    })?;
    let Cost { round_trips, reads, writes, rpcs, .. } = costs.get();
    let each = |count: u64| count as f64 / requests.get();
    Ok(Found {
        rate: total / rig.machines as f64,
        us: (rig.machines * rig.threads * rig.coroutines) as f64 / total,
        awaited: each(round_trips),
        verbs: each(reads + writes + rpcs),
        doorbells: each(doorbells.get()),
    })
}

/// Runs all experiments. Calls `look` with the numbers of finished simulations and of all.
///
/// # Errors
///
/// Fails if a simulation cannot run.
pub fn reproduce(scale: &Scale, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, ReproduceError> {
    let loads =
        [Load::Alone].into_iter().chain(scale.coroutines.iter().map(|coroutines| Load::Coroutines(*coroutines)));
    let points: Vec<Point> = loads
        .flat_map(|load| {
            Access::ALL.map(|access| access.steps().iter().map(move |step| Point { access, step: *step, load }))
        })
        .flatten()
        .collect();
    let results = Results { scale, ran: run_all(&points, scale.parallel, look, |point| run(scale, point))? };
    let mut rows = results.of_a_request();
    rows.extend(results.rates());
    rows.extend(results.gains());
    let coroutines: Vec<String> = scale.coroutines.iter().map(ToString::to_string).collect();
    Ok(Reproduction {
        about: vec![
            format!(
                "Requests of {OBJECTS} objects of {BYTES} B at random machines (Wei thesis, section 2.2.4, figure 2-5)"
            ),
            format!(
                "{} machines of {} threads with {} coroutines, all to all, {} us of virtual time, seed {}",
                scale.nodes,
                scale.threads,
                coroutines.join(", "),
                scale.measure_us,
                scale.seed
            ),
        ],
        is_comparable: (scale.nodes, scale.threads) == (16, 24),
        rows,
        runs: Vec::new(),
        left_out: &LEFT_OUT,
        violated: Vec::new(),
        labels: LABELS,
        series: results.over_coroutines(),
    })
}

const LEFT_OUT: [&str; 2] = [
    "acknowledgements of calls that ride on later requests: a simulated answer is a message of its own",
    "doorbell batching without outstanding requests: there is nothing to batch",
];

const LABELS: Labels<'static> = Labels {
    title: "Requests of ten objects, simulated (connectx4), all to all",
    x: "coroutines of a thread",
    y: "M requests/s, a machine",
};

struct Results<'a> {
    scale: &'a Scale,
    ran: Vec<(Point, Found)>,
}

impl Results<'_> {
    fn at(&self, access: Access, step: Step, load: Load) -> Found {
        *measured(&self.ran, &Point { access, step, load })
    }

    /// Returns the rate of a step by coroutines.
    fn sweep(&self, access: Access, step: Step) -> impl Iterator<Item = (usize, f64)> {
        let rate = move |coroutines: &usize| (*coroutines, self.at(access, step, Load::Coroutines(*coroutines)).rate);
        self.scale.coroutines.iter().map(rate)
    }

    /// Returns the rate of a step with one coroutine a thread.
    fn with_one(&self, access: Access, step: Step) -> f64 {
        self.at(access, step, Load::Coroutines(1)).rate
    }

    /// Returns the rate of a step with the best number of coroutines.
    fn peak(&self, access: Access, step: Step) -> f64 {
        greatest(self.sweep(access, step).map(|(_, rate)| rate))
    }

    /// Returns exact counts of a request, and its time for a client that has the cluster for
    /// itself.
    fn of_a_request(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for access in Access::ALL {
            for step in access.steps() {
                let Found { us, awaited, verbs, doorbells, .. } = self.at(access, *step, Load::Alone);
                let name = |what: &str| format!("{}, {}: {what}", access.name(), step.name());
                let kind = if access.is_call() { "calls" } else { "verbs" };
                rows.push(Row::ours(name(kind), "", verbs));
                rows.push(Row::ours(name("rounds awaited"), "", awaited));
                rows.push(Row::ours(name("doorbells"), "", doorbells));
                rows.push(Row::ours(name("one client"), "us", us));
            }
        }
        rows
    }

    /// Returns the rate of each step.
    fn rates(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for access in Access::ALL {
            let name = |what: &str| format!("{}: {what}", access.name());
            rows.push(Row::ours(name("each awaited, one coroutine"), "M/s", self.with_one(access, Step::Awaited)));
            rows.push(Row::ours(name("+ coroutines"), "M/s", self.peak(access, Step::Awaited)));
            let later = access.steps()[1..].iter();
            rows.extend(later.map(|step| Row::ours(name(step.name()), "M/s", self.peak(access, *step))));
        }
        rows
    }

    fn gains(&self) -> Vec<Row> {
        let gain = |access: Access, what: &str, ratio: f64| Row::ours(format!("{}: {what}", access.name()), "x", ratio);
        let mut rows = Vec::new();
        for access in Access::ALL {
            let coroutines = self.peak(access, Step::Awaited) / self.with_one(access, Step::Awaited);
            let row = gain(access, "coroutines, gain", coroutines);
            rows.push(match access {
                Access::Read => row.published(7.0, SOURCE).holds(coroutines > 1.0),
                Access::CallToRead => row.published(6.46, SOURCE).holds(coroutines > 1.0),
                _ => row,
            });
            let outstanding = self.with_one(access, Step::Outstanding) / self.with_one(access, Step::Awaited);
            rows.push(gain(access, "outstanding requests, gain with one coroutine", outstanding));
            let outstanding = self.peak(access, Step::Outstanding) / self.peak(access, Step::Awaited);
            rows.push(gain(access, "outstanding requests, gain of peaks", outstanding));
            let batched = self.peak(access, Step::Batched) / self.peak(access, Step::Outstanding);
            let row = gain(access, "doorbell batching, gain of peaks", batched);
            rows.push(if access.is_call() {
                row.said("Wei thesis, figure 2-5: always helps").holds(batched > 1.0)
            } else {
                row.said("Wei thesis, figure 2-5: does not always help")
            });
        }
        let row = |access| {
            let ratio = self.peak(access, Step::Passive) / self.peak(access, Step::Batched);
            gain(access, "passive acknowledgement, gain of peaks", ratio).holds(ratio > 1.0)
        };
        rows.push(row(Access::Write).published(1.13, SOURCE).note(NICS));
        rows.push(row(Access::CallToWrite).published(1.96, SOURCE).note(ANSWERS));
        let reads = self.peak(Access::Read, Step::Batched) / self.peak(Access::CallToRead, Step::Batched);
        rows.push(
            Row::ours("READs over calls that read, all optimizations", "x", reads)
                .said("Wei thesis, figure 2-5: two-sided is faster in writes only")
                .holds(reads > 1.0),
        );
        let writes = self.peak(Access::CallToWrite, Step::Passive) / self.peak(Access::Write, Step::Passive);
        rows.push(
            Row::ours("calls that write over WRITEs, all optimizations", "x", writes)
                .said("Wei thesis, figure 2-5: two-sided is faster in writes only")
                .holds(writes > 1.0)
                .note(ANSWERS),
        );
        rows
    }

    fn over_coroutines(&self) -> Vec<Series> {
        let steps = Access::ALL.into_iter().flat_map(|access| access.steps().iter().map(move |step| (access, *step)));
        let is_drawn = |(_, step): &(Access, Step)| *step != Step::Outstanding;
        let line = |(access, step): (Access, Step)| Series {
            name: format!("{}, {}", access.name(), step.name()),
            points: self.sweep(access, step).map(|(coroutines, rate)| (coroutines as f64, rate)).collect(),
        };
        steps.filter(is_drawn).map(line).collect()
    }
}

const NICS: &str = "the NICs are the limit already without it, and a simulated completion takes no time of a NIC; only the \
                    client's CPU is spared, which shows where CPUs are the limit (--quick)";
const ANSWERS: &str = "a simulated call is answered by a message of its own even if no coroutine awaits it, so that NICs and servers \
                       have as much to do; only the client's CPU is spared";
