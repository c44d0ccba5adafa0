//! In steady state a transaction on a worker allocates nothing: latency has no room for an allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use remora::{Protocol, TableOptions, WorkerOptions};

use support::{Words, embedded, table};

thread_local! {
    /// Of this thread only: the appliers may do as they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local without a destructor,
// which neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn none_in_a_committed_transaction() {
    const ROWS: u64 = 64;
    const TRANSACTIONS: u64 = 2_000;
    for (protocol, replicas) in Protocol::ALL.into_iter().flat_map(|protocol| [(protocol, 1), (protocol, 3)]) {
        let cluster = embedded(protocol, replicas);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words::<3>::all(1));
        let options = WorkerOptions { coroutines: 4, yield_after_rounds: true, ..WorkerOptions::default() };
        let mut worker = cluster.worker(options).unwrap();
        let allocated = worker.run(async |_, session| {
            let mut before = 0;
            // The first half warms up: location cache, sets, buffers, redo rings.
            for number in 0..2 * TRANSACTIONS {
                if number == TRANSACTIONS {
                    before = ALLOCATIONS.get();
                }
                let random = session.lane().random();
                let (one, two) = (random % ROWS, (random >> 8) % ROWS);
                let run = session.transact(async |tx| {
                    let both = [tx.want(&rows, one), tx.want(&rows, two)];
                    tx.fetch().await?;
                    both.into_iter().try_for_each(|slot| tx.get_mut(slot).map(|row| row.0[0] += 1))
                });
                run.await.unwrap();
            }
            ALLOCATIONS.get() - before
        });
        // All coroutines share the thread; the last to begin its second half has seen nobody's warming up.
        let fewest = allocated.iter().min();
        assert_eq!(fewest, Some(&0), "{protocol:?}, {replicas} replicas: {allocated:?} in {TRANSACTIONS} transactions");
    }
}
