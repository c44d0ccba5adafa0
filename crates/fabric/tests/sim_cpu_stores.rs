//! Tests that the stores of a memory node's CPU become visible word by word, in the order of its
//! program. Verbs meet them halfway.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::sim::{Profile, Sim, SimOptions};
use remora_fabric::{
    Address, ClientId, Fabric, Handler, Host, LINE_WORDS, Lane, NodeId, Progress, Region, RegionId, Service, Worker,
    copy,
};

const NODE: NodeId = NodeId(0);
const LINE: Address = Address { node: NODE, region: RegionId(0), offset: 0 };
const TURNS: u64 = 60;

/// A service that fills a line with a number that grows.
struct Filler {
    region: Arc<Region>,
    number: AtomicU64,
}

impl Filler {
    fn fill(&self) -> u64 {
        let number = 1 + self.number.fetch_add(1, Ordering::Relaxed);
        copy::write(self.region.words(), 0, &[number; LINE_WORDS]);
        // A CPU takes a lock by one atomic instruction. That happens at once, and may happen
        // between two stores.
        self.region.words()[LINE_WORDS].fetch_add(1, Ordering::SeqCst);
        number
    }
}

impl Handler for Filler {
    fn call(&self, _: ClientId, _: &[u64], reply: &mut Vec<u64>) {
        reply.push(self.fill());
    }
}

impl Service for Filler {
    fn step(&mut self) -> Progress {
        self.fill();
        Progress::Worked
    }
}

fn cluster(seed: u64) -> (Sim, Filler) {
    let profile = Profile::named("connectx4").expect("a shipped profile");
    let sim = Sim::new(&[vec![4096]], &SimOptions::new(profile, seed)).expect("a test's memory");
    // A READ takes a line of a record in one instant. So if it sees the line torn, the line was
    // torn.
    sim.lines_of_records(LINE, 64);
    let region = sim.region(NODE, RegionId(0)).expect("a region");
    (sim, Filler { region, number: AtomicU64::new(0) })
}

fn lanes(sim: &Sim, worker: &Worker, count: u32, seed: u64) -> Vec<Lane> {
    let lane = |client| {
        let endpoint = worker.connect(sim, ClientId(client)).expect("a client");
        worker.lane(&endpoint, seed + u64::from(client)).expect("a lane")
    };
    (1..=count).map(lane).collect()
}

/// Reads the line and the word behind it until `enough`. If some words were newer than the last,
/// their number goes into `seen`.
async fn watch(lane: &Lane, enough: impl Fn(u64) -> bool, seen: &mut BTreeSet<usize>) {
    loop {
        let mut round = lane.round();
        let line = round.read(LINE, 64);
        let done = lane.execute(round).await.expect("a healthy node");
        let words = done.words(line);
        let (first, last) = (words[0], words[LINE_WORDS - 1]);
        let newer = words.iter().filter(|word| **word == first).count();
        assert!(first == last || first == last + 1, "two at once: {words:?}");
        assert!(words[newer..].iter().all(|word| *word == last), "out of order: {words:?}");
        if newer < LINE_WORDS {
            seen.insert(newer);
        }
        if enough(last) {
            return;
        }
    }
}

/// A client must have looked after each word but the last.
fn every_word(seen: &BTreeSet<usize>) {
    assert_eq!(seen.iter().copied().collect::<Vec<_>>(), (1..LINE_WORDS).collect::<Vec<_>>());
}

#[test]
fn reads_meet_the_stores_of_a_handler() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let (sim, filler) = cluster(seed);
        sim.answer(NODE, Box::new(filler));
        let worker = Worker::new();
        let lanes = lanes(&sim, &worker, 8, seed);
        let found = worker.run(lanes.iter().enumerate().map(|(number, lane)| {
            (lane.id(), async move {
                let mut seen = BTreeSet::new();
                if number == 0 {
                    for turn in 1..=TURNS {
                        let mut round = lane.round();
                        let call = round.call(NODE, &[turn], None, 1);
                        let done = lane.execute(round).await.expect("a healthy node");
                        assert_eq!(done.reply(call), [turn]);
                    }
                } else {
                    watch(lane, |last| last == TURNS, &mut seen).await;
                }
                seen
            })
        }));
        seen.extend(found.into_iter().flatten());
        let region = sim.region(NODE, RegionId(0)).expect("a region");
        assert_eq!(region.words()[LINE_WORDS].load(Ordering::SeqCst), TURNS, "an atomic was lost");
    }
    every_word(&seen);
}

#[test]
fn reads_meet_the_stores_of_a_service() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let (sim, filler) = cluster(seed);
        let handle = sim.serve(NODE, "filler", Box::new(filler));
        let worker = Worker::new();
        let lanes = lanes(&sim, &worker, 8, seed);
        let found = worker.run(lanes.iter().map(|lane| {
            (lane.id(), async move {
                let mut seen = BTreeSet::new();
                watch(lane, |last| last >= TURNS, &mut seen).await;
                seen
            })
        }));
        seen.extend(found.into_iter().flatten());
        drop(handle);
    }
    every_word(&seen);
}

/// The pauses of a CPU that is overtaken are part of the run that a seed gives.
#[test]
fn a_seed_replays() {
    let run = |seed| {
        let (sim, filler) = cluster(seed);
        sim.answer(NODE, Box::new(filler));
        let worker = Worker::new();
        let lanes = lanes(&sim, &worker, 4, seed);
        let trace = std::cell::RefCell::new(Vec::new());
        worker.run(lanes.iter().map(|lane| {
            let trace = &trace;
            (lane.id(), async move {
                for turn in 0..TURNS {
                    let mut round = lane.round();
                    round.call(NODE, &[turn], None, 1);
                    lane.post(round);
                    let mut round = lane.round();
                    let line = round.read(LINE, 64);
                    let done = lane.execute(round).await.expect("a healthy node");
                    trace.borrow_mut().push((lane.now(), done.words(line).to_vec()));
                }
            })
        }));
        trace.into_inner()
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
}
