//! Tests of a simulated memory node that fails and works again: what its memory has kept, and what
//! happened to verbs in flight.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::sim::{FaultKind, Planned, Profile, Sim, SimOptions};
use remora_fabric::{
    Address, ClientId, Fabric, FabricError, Fault, Flush, Handler, Host, LINE_WORDS, Lane, NodeId, Progress, RegionId,
    Service, Worker, block_on,
};

const NODE: NodeId = NodeId(0);
const LINES: usize = 4;
const WORDS: usize = LINES * LINE_WORDS;

fn word(index: usize) -> Address {
    Address { node: NODE, region: RegionId(0), offset: 8 * index as u64 }
}

/// Makes two nodes, whose memory is lines of records.
fn cluster(options: &SimOptions) -> Sim {
    let sim = Sim::new(&[vec![4096], vec![4096]], options).expect("a test's memory");
    sim.lines_of_records(word(0), 4096);
    sim
}

fn volatile(seed: u64) -> SimOptions {
    SimOptions::new(Profile::named("connectx4").expect("a shipped profile"), seed)
}

/// Returns options for Optane, whose DIMMs keep what has reached them (ADR).
fn persistent(seed: u64, ddio: bool) -> SimOptions {
    SimOptions { medium: "optane".to_owned(), ddio, ..volatile(seed) }
}

/// Returns options for Optane whose processors' caches are kept as well (eADR).
fn persistent_caches(seed: u64) -> SimOptions {
    let mut options = persistent(seed, true);
    options.profile.media.get_mut("optane").expect("a medium of the profile").caches_persistent = true;
    options
}

async fn write(lane: &Lane, value: u64, flush: bool) -> Result<(), FabricError> {
    let mut round = lane.round();
    round.write_words(word(0), &[value; WORDS]);
    if flush {
        round.flush(NODE);
    }
    lane.execute(round).await.map(drop)
}

async fn read(lane: &Lane) -> Result<Vec<u64>, FabricError> {
    let mut round = lane.round();
    let all = round.read(word(0), 8 * WORDS);
    lane.execute(round).await.map(|done| done.words(all).to_vec())
}

/// Returns what a client that connects now reads, line by line. Each line must be of one WRITE.
fn lines(sim: &Sim) -> Vec<u64> {
    let words = block_on(sim, ClientId(9), read).expect("a client").expect("a healthy node");
    let line = |line: &[u64]| {
        assert!(line.iter().all(|word| *word == line[0]), "a line of two WRITEs: {line:?}");
        line[0]
    };
    words.chunks(LINE_WORDS).map(line).collect()
}

/// Writes 1 and flushes it, writes 2 and flushes that if `flush`. Then the node fails and restarts.
fn after_a_crash(options: &SimOptions, flush: bool) -> Vec<u64> {
    let sim = cluster(options);
    block_on(&sim, ClientId(1), async |lane| {
        write(lane, 1, true).await.expect("a healthy node");
        write(lane, 2, flush).await.expect("a healthy node");
    })
    .expect("a client");
    sim.fail(NODE);
    sim.restart(NODE);
    lines(&sim)
}

const UNREACHABLE: FabricError = FabricError { node: NODE, fault: Fault::Unreachable };

#[test]
fn a_node_that_is_down_is_unreachable_and_so_is_its_next_life_to_its_old_clients() {
    let sim = cluster(&volatile(1));
    block_on(&sim, ClientId(1), async |lane| {
        write(lane, 1, false).await.expect("a healthy node");
        sim.fail(NODE);
        assert_eq!(read(lane).await, Err(UNREACHABLE));
        sim.restart(NODE);
        assert_eq!(read(lane).await, Err(UNREACHABLE), "the connection survived the node");
        let mut round = lane.round();
        let other = round.read(Address { node: NodeId(1), ..word(0) }, 8);
        assert_eq!(lane.execute(round).await.expect("the other node is healthy").words(other), [0]);
    })
    .expect("a client");
    assert_eq!(lines(&sim), [0; LINES]);
}

/// A NIC sends again for a millisecond.
#[test]
fn a_connection_survives_a_short_partition_and_no_long_one() {
    for (microseconds, survives) in [(500, true), (3_000, false)] {
        let sim = Sim::new(&[vec![4096]], &volatile(1)).expect("a test's memory");
        let kind = FaultKind::Partition(microseconds * 1_000);
        sim.plan(Planned { probe: "here", nth: 1, after: 0, kind, holding: false });
        block_on(&sim, ClientId(1), async |lane| {
            lane.probe("here");
            lane.sleep(10).await;
            assert_eq!(write(lane, 1, false).await.is_ok(), survives);
            lane.sleep(10_000_000).await;
            assert_eq!(read(lane).await.is_ok(), survives, "what comes later passes what was lost");
        })
        .expect("a client");
        assert_eq!(sim.injected().len(), 1);
        assert_eq!(lines(&sim), [u64::from(survives); LINES]);
    }
}

#[test]
fn volatile_memory_is_empty_after_a_restart() {
    assert_eq!(after_a_crash(&volatile(1), true), [0; LINES]);
}

#[test]
fn persistent_memory_keeps_what_was_flushed() {
    for seed in 0..50 {
        assert_eq!(after_a_crash(&persistent(seed, false), true), [2; LINES], "ADR without DDIO, seed {seed}");
        assert_eq!(after_a_crash(&persistent_caches(seed), true), [2; LINES], "eADR, seed {seed}");
    }
}

#[test]
fn what_was_not_flushed_is_kept_or_lost_line_by_line() {
    let seen: BTreeSet<Vec<u64>> = (0..200).map(|seed| after_a_crash(&persistent(seed, false), false)).collect();
    // Every line is as it was flushed or as it was written last, independently of the other lines.
    assert_eq!(seen.len(), 1 << LINES, "{seen:?}");
    assert!(seen.iter().flatten().all(|line| [1, 2].contains(line)), "{seen:?}");
}

#[test]
fn what_is_lost_follows_from_the_seed() {
    for seed in 0..20 {
        let options = persistent(seed, false);
        assert_eq!(after_a_crash(&options, false), after_a_crash(&options, false), "seed {seed}");
    }
}

/// What a process knows beside its node's memory: how often it was called, and stepped.
#[derive(Clone, Default)]
struct Knowing {
    calls: Arc<AtomicU64>,
    steps: Arc<AtomicU64>,
}

impl Handler for Knowing {
    fn call(&self, _: ClientId, _: &[u64], reply: &mut Vec<u64>) {
        reply.push(1 + self.calls.fetch_add(1, Ordering::Relaxed));
    }

    fn restart(&self) {
        self.calls.store(0, Ordering::Relaxed);
    }
}

impl Service for Knowing {
    fn step(&mut self) -> Progress {
        self.steps.fetch_add(1, Ordering::Relaxed);
        Progress::Idle
    }

    fn restart(&mut self) {
        self.steps.store(0, Ordering::Relaxed);
    }
}

#[test]
fn a_node_that_restarts_knows_only_what_its_memory_has() {
    for options in [volatile(1), persistent(1, false)] {
        let sim = cluster(&options);
        let known = Knowing::default();
        sim.answer(NODE, Box::new(known.clone()));
        let _service = sim.serve(NODE, "knowing", Box::new(known.clone()));
        let calls = || {
            let call = async |lane: &Lane| {
                let mut round = lane.round();
                let call = round.call(NODE, &[], None, 1);
                lane.execute(round).await.expect("a healthy node").reply(call)[0]
            };
            block_on(&sim, ClientId(1), call).expect("a client")
        };
        assert_eq!([calls(), calls()], [1, 2]);
        sim.settle_services();
        assert!(known.steps.load(Ordering::Relaxed) > 0);
        sim.fail(NODE);
        sim.restart(NODE);
        assert_eq!((known.steps.load(Ordering::Relaxed), calls()), (0, 1));
    }
}

/// With DDIO a flush reaches the processor's cache, which ADR does not keep.
#[test]
fn with_ddio_a_flush_keeps_nothing() {
    let flush = |options: &SimOptions| cluster(options).capabilities().flush;
    assert_eq!(flush(&persistent(1, false)), Flush::Persistent);
    assert_eq!(flush(&persistent_caches(1)), Flush::Persistent);
    assert_eq!(flush(&persistent(1, true)), Flush::Visible);
    let seen: BTreeSet<Vec<u64>> = (0..50).map(|seed| after_a_crash(&persistent(seed, true), true)).collect();
    assert!(seen.iter().flatten().any(|line| *line != 2), "nothing was ever lost");
}

/// A WRITE is under way when the node fails. Some of its lines may have landed, each whole, and its
/// client gets an error.
#[test]
fn a_crash_tears_a_write_at_lines() {
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let sim = cluster(&SimOptions { stretch: 1.0, ..persistent(seed, false) });
        let worker = Worker::new();
        let lanes: Vec<Lane> = (1..=2)
            .map(|client| {
                let endpoint = worker.connect(&sim, ClientId(client)).expect("a client");
                worker.lane(&endpoint, seed).expect("a lane")
            })
            .collect();
        let [writer, killer] = &lanes[..] else { unreachable!("two were made") };
        worker.run([(writer.id(), write(writer, 1, true))]);
        worker.run([writer, killer].map(|lane| {
            let sim = &sim;
            (lane.id(), async move {
                if std::ptr::eq(lane, writer) {
                    let outcome = write(lane, 2, false).await;
                    assert!([Ok(()), Err(UNREACHABLE)].contains(&outcome), "{outcome:?}");
                    // By this time the node is down.
                    lane.sleep(1_000_000).await;
                    assert_eq!(write(lane, 3, false).await, Err(UNREACHABLE));
                } else {
                    if !seed.is_multiple_of(8) {
                        lane.sleep(lane.random() % 20_000).await;
                    }
                    sim.fail(NODE);
                }
            })
        }));
        // This is the memory at the failure, before the medium loses anything.
        let region = sim.region(NODE, RegionId(0)).expect("a region");
        let words: Vec<u64> = region.words()[..WORDS].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        sim.restart(NODE);
        let kept = lines(&sim);
        for (line, kept) in words.chunks(LINE_WORDS).zip(&kept) {
            assert!(line.iter().all(|word| *word == line[0]), "a line of two WRITEs: {words:?}");
            assert!(*kept <= line[0], "a line that was never written was kept");
        }
        let first: Vec<u64> = words.chunks(LINE_WORDS).map(|line| line[0]).collect();
        if first.contains(&1) && first.contains(&2) {
            assert!(first.is_sorted_by(|former, next| former >= next), "not in ascending order: {first:?}");
        }
        seen.insert(first);
    }
    assert!(seen.contains(&vec![1; LINES]) && seen.contains(&vec![2; LINES]), "{seen:?}");
    assert!(seen.iter().any(|lines| lines.contains(&1) && lines.contains(&2)), "no WRITE was torn: {seen:?}");
}

#[test]
fn a_planned_failure_happens_when_its_probe_is_reached() {
    let sim = cluster(&volatile(5));
    let after = 2_000;
    sim.plan(Planned { probe: "here", nth: 2, after, kind: FaultKind::Fail, holding: false });
    let outcomes = block_on(&sim, ClientId(1), async |lane| {
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            lane.probe("here");
            for node in 0..2 {
                let mut round = lane.round();
                round.read(Address { node: NodeId(node), ..word(0) }, 8);
                outcomes.push(lane.execute(round).await.is_ok());
            }
            lane.sleep(2 * after).await;
        }
        for node in 0..2 {
            let mut round = lane.round();
            round.read(Address { node: NodeId(node), ..word(0) }, 8);
            outcomes.push(lane.execute(round).await.is_ok());
        }
        outcomes
    })
    .expect("a client");
    assert_eq!(outcomes[..2], [true; 2], "it was reached once");
    assert_eq!(outcomes[4..].iter().filter(|healthy| **healthy).count(), 1, "one node has failed: {outcomes:?}");
    let injected = sim.injected();
    assert_eq!((injected.len(), injected[0].kind, injected[0].client), (1, FaultKind::Fail, None));
    assert_eq!((sim.waiting(), sim.reached()["here"]), (0, 2));
}
