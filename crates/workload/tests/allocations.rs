//! A transaction of a warm worker allocates nothing, statistics included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use remora::{Cluster, ClusterOptions, WorkerOptions};
use remora_workload::Workload;
use remora_workload::driver;
use remora_workload::smallbank::{Customers, SmallBank};

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
        worker.block_on(async |session| bank.warm(session, 0, 1).await).unwrap();
        let mut allocations = |transactions: u64| {
            let before = ALLOCATIONS.get();
            driver::run_here(&cluster, &bank, &mut worker, transactions, 1).unwrap();
            ALLOCATIONS.get() - before
        };
        // A run has costs of its own, and the first ones find out how much room the sets need.
        allocations(2_000);
        let (short, long) = (allocations(100), allocations(5_000));
        assert!(long <= short + 20, "{short} allocations for 400 transactions, {long} for 20,000");
    }
}
