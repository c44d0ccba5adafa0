//! The system's allocator, counting for each thread: for tests of any crate that say "this
//! allocates nothing".

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Of this thread: the test harness and the memory nodes allocate on their own when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of the calling thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local
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
