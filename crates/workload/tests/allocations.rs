//! Tests that a transaction of a warm worker allocates nothing, statistics included.

#[path = "../../fabric/tests/counting_allocator/mod.rs"]
mod counting_allocator;

use counting_allocator::allocations;
use remora::{Cluster, Error, WorkerOptions};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::{Prng, Statistics, Workload};

#[test]
fn no_transaction_allocates_on_a_warm_worker() {
    let options = Cluster::embedded().node_bytes(32 << 20);
    let cluster = options.open().unwrap();
    let bank = SmallBank::load(&cluster, Customers::standard(1_000)).unwrap();
    for yield_after_rounds in [false, true] {
        let options = WorkerOptions::default().coroutines(4).yield_after_rounds(yield_after_rounds);
        let mut worker = cluster.worker(options).unwrap();
        for session in worker.sessions() {
            session.observe(Some(Box::new(Statistics::new(SmallBank::TYPES.len()))));
        }
        let mut allocations = |transactions: u64| {
            let counts = worker.run(async |coroutine, session| {
                let mut random = Prng::derive(transactions, coroutine as u64);
                session.lane().sleep(0).await;
                let before = allocations();
                for _ in 0..transactions {
                    match bank.transact(session, &mut random, &mut 0).await {
                        Ok(()) | Err(Error::User(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                allocations() - before
            });
            counts.iter().sum::<u64>()
        };
        // The first transactions find out how much room the sets need. A transaction that looks up
        // a key for the first time needs the most. The statistics list 64 hot records, and each
        // takes its place when it is first in the way.
        allocations(100_000);
        // On a busy machine, other transactions meet than before, and records are still in the way
        // for the first time.
        let is_warm = (0..5).any(|_| allocations(5_000) == 0);
        assert!(is_warm, "each of five runs of 20,000 transactions has allocated, yields {yield_after_rounds}");
    }
}
