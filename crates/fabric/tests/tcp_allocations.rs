//! Tests that a round over TCP allocates nothing at the client once its worker is warm.

mod counting_allocator;

use counting_allocator::allocations;
use remora_fabric::tcp::{Loopback, TcpOptions};
use remora_fabric::{Address, ClientId, Lane, NodeId, RegionId, Worker};

fn word(node: u16, index: u64) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index }
}

async fn turn(lane: &Lane, turn: u64) {
    let mut round = lane.round();
    let swap = round.compare_swap(word(0, 0), turn, turn);
    let read = round.read(word(1, 8), 4_000);
    round.write_words(word(0, 16), &[turn; 8]);
    round.after_completion();
    round.fetch_add(word(1, 0), 1);
    let done = lane.execute(round).await.expect("healthy nodes");
    std::hint::black_box((done.swapped(swap), done.words(read)));
    let mut background = lane.round();
    background.write_words(word(0, 16), &[turn; 8]);
    lane.post(background);
    while lane.background() > 4 {
        lane.sleep(0).await;
    }
}

#[test]
fn no_round_allocates_on_a_warm_worker() {
    let fabric = Loopback::new(&[vec![1 << 20], vec![1 << 20]], TcpOptions::default()).expect("a test's servers");
    let worker = Worker::new();
    let endpoint = worker.connect(&fabric, ClientId(1)).unwrap();
    let lanes: Vec<Lane> = (0..4).map(|seed| worker.lane(&endpoint, seed).expect("a lane")).collect();
    let counts = worker.run(lanes.iter().map(|lane| {
        (lane.id(), async {
            for count in 0..300 {
                turn(lane, count).await;
            }
            let before = allocations();
            for count in 0..500 {
                turn(lane, count).await;
            }
            allocations() - before
        })
    }));
    // All lanes share the thread, so each has counted the allocations of all. On a busy machine
    // there may be more rounds under way than ever before, which need buffers. Those are a handful,
    // and not one allocation for each of 4,000 rounds.
    assert!(counts.iter().all(|count| *count <= 32), "allocations in 500 turns of each lane: {counts:?}");
}
