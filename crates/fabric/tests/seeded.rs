//! Tests of the seeded backend as a tool: runs replay from their seeds, and differ between seeds.

use remora_fabric::seeded::{Seeded, Tearing};
use remora_fabric::{Address, ClientId, Lane, NodeId, RegionId, Worker};

fn word(node: u16, index: u64) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index }
}

/// Returns what three clients see of each other, in the order in which they see it.
fn trace(seed: u64, tearing: Option<Tearing>) -> Vec<(usize, u64, Vec<u64>)> {
    let sizes = [vec![4096], vec![4096]];
    let fabric = match tearing {
        None => Seeded::new(&sizes, seed),
        Some(tearing) => Seeded::with_tearing(&sizes, seed, tearing),
    }
    .expect("a test's memory");
    fabric.revoke_after(ClientId(3), 400);
    let worker = Worker::new();
    let lanes: Vec<Lane> = (1..=3)
        .map(|number| worker.lane(&worker.connect(&fabric, ClientId(number)).unwrap(), seed).expect("a lane"))
        .collect();
    let seen = std::cell::RefCell::new(Vec::new());
    worker.run(lanes.iter().enumerate().map(|(number, lane)| {
        let seen = &seen;
        (lane.id(), async move {
            for turn in 0..20 {
                let mut round = lane.round();
                round.write_words(word(0, 1), &[turn; 20]);
                round.fetch_add(word(1, 0), 1);
                let read = round.read(word((turn % 2) as u16, 0), 200);
                match lane.execute(round).await {
                    Ok(done) => seen.borrow_mut().push((number, lane.now(), done.words(read).to_vec())),
                    Err(_) => seen.borrow_mut().push((number, lane.now(), Vec::new())),
                }
                lane.sleep(lane.random() % 200).await;
            }
        })
    }));
    seen.into_inner()
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        assert_eq!(trace(seed, None), trace(seed, None), "seed {seed}");
    }
}

#[test]
fn seeds_and_tearings_differ() {
    assert_ne!(trace(1, None), trace(2, None));
    assert_ne!(trace(1, Some(Tearing::Words)), trace(1, Some(Tearing::Lines)));
}

/// If writers write equal words, a line is read torn only where words tear, and lines are read out
/// of order only where lines tear.
#[test]
fn memory_tears_as_the_run_has_drawn() {
    let torn_within_a_line = |words: &[u64]| words[1..8].iter().any(|word| *word != words[1]);
    // A WRITE lands in ascending order. So a READ in ascending order that meets it halfway shows
    // newer words first.
    for (tearing, within) in [(Tearing::Words, true), (Tearing::Lines, false)] {
        let mut seen = false;
        for seed in 0..100 {
            seen |=
                trace(seed, Some(tearing)).iter().any(|(_, _, words)| words.len() == 25 && torn_within_a_line(words));
        }
        assert_eq!(seen, within, "{tearing:?}");
    }
}

#[test]
#[should_panic(expected = "deadlock in the seeded run 7")]
fn a_run_that_waits_for_nothing_says_so() {
    let fabric = Seeded::new(&[vec![4096]], 7).expect("a test's memory");
    remora_fabric::block_on(&fabric, ClientId(1), async |_| std::future::pending::<()>().await).unwrap();
}

#[test]
fn a_run_that_only_sleeps_is_no_deadlock() {
    let fabric = Seeded::new(&[vec![4096]], 7).expect("a test's memory");
    remora_fabric::block_on(&fabric, ClientId(1), async |lane| {
        for _ in 0..200_000 {
            lane.sleep(1_000_000).await;
        }
    })
    .unwrap();
}
