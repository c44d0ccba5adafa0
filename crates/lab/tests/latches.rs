//! Tests of latches, and of reads without latches, in every order of their steps: the correct
//! forms, and forms that have been published and are wrong.

use std::sync::atomic::Ordering;

use remora::floors::record::{Life, RecordShape, TransactionId, Version, layout};
use remora_fabric::seeded::Seeded;
use remora_fabric::seeded::explore::{ExploreOptions, Play, Player, explore};
use remora_fabric::{Address, ClientId, Cost, Fabric, Lane, NodeId, RegionId, Worker, block_on};
use remora_workload::latches::{Item, Latching, Reading, Unlatch, change};

const NODE: NodeId = NodeId(0);
const REGION: RegionId = RegionId(0);

fn at(offset: u64) -> Address {
    Address { node: NODE, region: REGION, offset }
}

/// Two words in two lines, with the latch in front of them or behind them.
const BEFORE: fn() -> Item = || Item { latch: at(48), data: at(56), words: 2 };
const BEHIND: fn() -> Item = || Item { latch: at(72), data: at(56), words: 2 };

fn memory() -> Seeded {
    Seeded::new(&[vec![4096]], 1).unwrap()
}

fn words(fabric: &Seeded, at: Address, words: usize) -> Vec<u64> {
    let region = fabric.region(NODE, REGION).unwrap();
    region.words()[at.offset as usize / 8..][..words].iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

/// Explores what clients do. Returns what is wrong with some order, if anything is. At the end of
/// each order `judge` checks the clients' results.
fn wrong(
    fabric: &Seeded,
    clients: u32,
    prepare: impl Fn(),
    body: impl AsyncFn(u32, &Lane) -> Vec<u64>,
    judge: impl Fn(&[Vec<u64>]) -> Result<(), String>,
) -> Option<String> {
    let found = explore(fabric, &ExploreOptions::default(), |play: &mut Play<'_>| {
        prepare();
        let worker = Worker::new();
        let lane = |client| worker.lane(&worker.connect(fabric, ClientId(client)).unwrap(), 1).unwrap();
        let lanes: Vec<Lane> = (1..=clients).map(lane).collect();
        let players = Vec::from_iter(
            lanes
                .iter()
                .zip(1..)
                .map(|(lane, number)| Player::new(ClientId(number), lane.endpoint(), body(number, lane))),
        );
        match play.run(players) {
            Some(said) => judge(&said.into_iter().flatten().collect::<Vec<_>>()),
            None => Ok(()),
        }
    });
    assert!(!found.bounded && found.counts.complete > 1, "{:?}", found.counts);
    found.violation.map(|(what, _)| what)
}

/// Two clients add one to each word. If `reads`, a third one reads them. Each of them tries once.
fn wrong_with(fabric: &Seeded, how: Latching, item: Item, reads: bool) -> Option<String> {
    let body = async |client: u32, lane: &Lane| -> Vec<u64> {
        if client == 3 {
            return how.try_read(lane, item).await.unwrap().unwrap_or_default();
        }
        let updated = how.try_update(lane, item, |data| data.iter_mut().for_each(|word| *word += 1)).await.unwrap();
        if updated { vec![1] } else { Vec::new() }
    };
    let judge = |said: &[Vec<u64>]| {
        let updates = said[..2].iter().flatten().sum::<u64>();
        let (data, latch) = (words(fabric, item.data, item.words), words(fabric, item.latch, 1)[0]);
        if data.iter().any(|word| *word != updates) {
            return Err(format!("{updates} updates have left {data:?}"));
        }
        if latch != 0 {
            return Err(format!("the latch is left at {latch:#x}"));
        }
        let seen = said.get(2).filter(|seen| seen.iter().any(|word| *word != seen[0]));
        seen.map_or(Ok(()), |seen| Err(format!("a reader saw {seen:?}")))
    };
    wrong(fabric, if reads { 3 } else { 2 }, || (), body, judge)
}

#[test]
fn latches_exclude_and_are_left_free() {
    for (name, how) in Latching::LADDER {
        let written = how.unlatch == Unlatch::Write;
        let item = if written { BEHIND() } else { BEFORE() };
        assert_eq!(wrong_with(&memory(), how, item, !written), None, "{name}");
        assert_eq!(wrong_with(&memory().with_split_atomics(), how, item, !written), None, "{name}, split");
    }
}

/// Tests trap 8, and the trap that follows from it: counts of readers make a CAS fail.
#[test]
fn counts_of_readers_leak_and_hold_latches() {
    let leaks = Latching { takes_back: false, ..Latching::BEST };
    assert!(wrong_with(&memory(), leaks, BEFORE(), true).unwrap().starts_with("the latch is left at 0x2"));
    let by_cas = Latching { unlatch: Unlatch::Cas, ..Latching::BEST };
    assert_eq!(wrong_with(&memory(), by_cas, BEFORE(), true), Some("the latch is left at 0x1".into()));
    assert_eq!(wrong_with(&memory(), by_cas, BEFORE(), false), None, "without readers it is right");
}

/// Tests traps 4 and 6.
#[test]
fn latches_are_written_only_behind_the_data_and_where_all_are_swapped() {
    let write = Latching::LADDER[4].1;
    assert!(wrong_with(&memory(), write, BEFORE(), false).unwrap().contains("updates have left"));
    for fabric in [memory(), memory().with_split_atomics()] {
        assert!(wrong_with(&fabric, write, BEHIND(), true).unwrap().starts_with("the latch is left at"));
    }
}

/// One client writes the value of a record of `lines` lines once, while another reads it.
fn wrong_reading(how: Reading, lines: usize) -> Option<String> {
    let value = 5 + 7 * (lines - 1);
    let shape = RecordShape::of(&layout(0, 8 * value, how.scheme()).unwrap());
    let fabric = memory();
    let prepare = || {
        let region = fabric.region(NODE, REGION).unwrap();
        let (mut image, life) = (Vec::new(), Life::Present { incarnation: 0 });
        shape.encode(Version::default().committed_over(), life, &[], &vec![0; 8 * value], &mut image);
        let begin = shape.image_at() as usize / 8;
        image.iter().zip(&region.words()[begin..]).for_each(|(word, place)| place.store(*word, Ordering::Relaxed));
    };
    prepare();
    let body = async |client: u32, lane: &Lane| {
        if client == 1 {
            let owner = TransactionId::new(1, 1).unwrap();
            change(lane, at(0), &shape, owner, |value| value.fill(1)).await.unwrap();
            return Vec::new();
        }
        how.attempt(lane, at(0), &shape).await.unwrap().unwrap_or_default()
    };
    let judge = |said: &[Vec<u64>]| {
        let seen = &said[1];
        if seen.iter().any(|word| *word != seen[0]) { Err(format!("{seen:?}")) } else { Ok(()) }
    };
    wrong(&fabric, 2, || (), body, judge)
}

/// Tests traps 1, 2, 3, and 9.
#[test]
fn reads_without_latches_are_of_one_instant() {
    for how in Reading::CORRECT {
        assert_eq!(wrong_reading(how, 3), None, "{how:?}");
    }
}

#[test]
fn published_reads_without_latches_are_torn() {
    for how in Reading::INCORRECT {
        assert!(wrong_reading(how, 3).is_some(), "{how:?}");
    }
    assert_eq!(wrong_reading(Reading::Bookends, 2), None, "two lines have no middle");
}

#[test]
fn each_optimization_saves_a_round_trip() {
    let fabric = memory();
    // Round trips that were awaited, and verbs.
    let spent = |before: Cost, after: Cost| {
        let Cost { round_trips, reads, writes, atomics, .. } = after.since(&before);
        (round_trips, reads + writes + atomics)
    };
    let found = block_on(&fabric, ClientId(1), async |lane: &Lane| {
        let (mut updates, mut reads, mut readings) = (Vec::new(), Vec::new(), Vec::new());
        for (_, how) in Latching::LADDER {
            let before = lane.cost();
            let item = if how.unlatch == Unlatch::Write { BEHIND() } else { BEFORE() };
            how.update(lane, item, |data| data[0] += 1).await.unwrap();
            updates.push(spent(before, lane.cost()));
            let before = lane.cost();
            if how.unlatch == Unlatch::Add {
                how.read(lane, item).await.unwrap();
                reads.push(spent(before, lane.cost()));
            }
        }
        for how in Reading::CORRECT {
            let shape = RecordShape::of(&layout(0, 256, how.scheme()).unwrap());
            let before = lane.cost();
            how.attempt(lane, at(512), &shape).await.unwrap();
            readings.push(spent(before, lane.cost()));
        }
        (updates, reads, readings)
    });
    let (updates, reads, readings) = found.unwrap();
    assert_eq!(updates, [(4, 4), (3, 4), (2, 4), (1, 4), (1, 3)]);
    assert_eq!(reads, [(3, 3), (2, 3), (2, 3), (1, 3)]);
    assert_eq!(readings, [(3, 3), (2, 2), (2, 2)]);
}
