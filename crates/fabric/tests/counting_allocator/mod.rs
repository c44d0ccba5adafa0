//! The system's allocator with a counter for each thread. Tests of any crate use it to show that
//! something allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread. The test harness and the memory nodes allocate on other threads
    /// at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of allocations of the calling thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged. Counting touches a thread-local
// without a destructor, which neither allocates nor unwinds.
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
static ALLOCATOR: Counting = Counting;
