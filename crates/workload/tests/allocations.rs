//! A transaction of a warm worker allocates nothing, statistics included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use remora::{Cluster, ClusterOptions, Error, WorkerOptions};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::{Prng, Statistics, Workload};

/// The system's allocator, counting.
struct Counting;

thread_local! {
    /// Of this thread: the test harness and the memory nodes allocate on their own when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; what comes back was allocated above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_transaction_allocates_on_a_warm_worker() {
    let options = ClusterOptions { node_bytes: 32 << 20, ..ClusterOptions::default() };
    let cluster = Cluster::embedded(options).unwrap();
    let bank = SmallBank::load(&cluster, Customers::standard(1_000)).unwrap();
    for yield_after_rounds in [false, true] {
        let options = WorkerOptions { coroutines: 4, yield_after_rounds, ..WorkerOptions::default() };
        let mut worker = cluster.worker(options).unwrap();
        for session in worker.sessions() {
            session.observe(Some(Box::new(Statistics::new(SmallBank::TYPES.len()))));
        }
        let mut allocations = |transactions: u64| {
            let counts = worker.run(async |coroutine, session| {
                let mut random = Prng::derive(transactions, coroutine as u64);
                session.lane().sleep(0).await;
                let before = ALLOCATIONS.get();
                for _ in 0..transactions {
                    match bank.transact(session, &mut random, &mut 0).await {
                        Ok(()) | Err(Error::User(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                ALLOCATIONS.get() - before
            });
            counts.iter().sum::<u64>()
        };
        // The first ones find out how much room the sets need, and the first pause how much the timers do.
        allocations(2_000);
        assert_eq!(allocations(5_000), 0, "in 20,000 transactions, yields {yield_after_rounds}");
    }
}
