//! Tests that a round on shared memory allocates nothing once its worker is warm.

mod counting_allocator;

use counting_allocator::allocations;
use remora_fabric::shm::Shm;
use remora_fabric::{Address, ClientId, Lane, NodeId, RegionId, Worker};

fn word(node: u16, index: u64) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index }
}

/// Uses a round in every way.
async fn turn(lane: &Lane, turn: u64) {
    let mut round = lane.round();
    let swap = round.compare_swap(word(0, 0), turn, turn);
    let first = round.read(word(0, 8), 64);
    let second = round.read(word(1, 8), 128);
    round.write_words(word(0, 16), &[turn; 8]);
    let staged = round.stage(&[1; 24]);
    round.write_staged(word(1, 24), staged);
    round.flush(NodeId(1));
    round.after_completion();
    round.fetch_add(word(1, 0), 1);
    let done = lane.execute(round).await.expect("healthy nodes");
    std::hint::black_box((done.swapped(swap), done.words(first), done.bytes(second)));
    // A second round is built while the first one's buffer is still leased, and one runs in the
    // background.
    let mut background = lane.round();
    background.write_words(word(1, 16), &[turn; 8]);
    let mut next = lane.round();
    next.write_words(word(0, 24), &[turn; 8]);
    let posted = lane.execute(background);
    posted.then_post(next);
    let mut dropped = lane.round();
    dropped.read(word(0, 0), 8);
    drop(lane.execute(dropped));
    drop(lane.round());
    let mut background = lane.round();
    background.compare_swap(word(0, 0), turn, 0);
    lane.post(background);
    lane.sleep(0).await;
}

#[test]
fn no_round_allocates_on_a_warm_worker() {
    let fabric = Shm::new(&[vec![4096], vec![4096]]).expect("a test's memory");
    let worker = Worker::new();
    let endpoint = worker.connect(&fabric, ClientId(1)).unwrap();
    for yields in [false, true] {
        endpoint.yield_after_rounds(yields);
        let lanes: Vec<Lane> = (0..4).map(|seed| worker.lane(&endpoint, seed).expect("a lane")).collect();
        let counts = worker.run(lanes.iter().map(|lane| {
            (lane.id(), async {
                for count in 0..100 {
                    turn(lane, count).await;
                }
                let before = allocations();
                for count in 0..1_000 {
                    turn(lane, count).await;
                }
                allocations() - before
            })
        }));
        assert_eq!(counts, [0; 4], "allocations in 1,000 turns of each lane, yields {yields}");
    }
}
