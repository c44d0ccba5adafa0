//! The ready bits of a worker: one bit for each lane that may go on. Completions set them on the
//! worker's own thread, and wakers set them on any thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use crate::ids::LaneId;

/// The ready bits of a worker's lanes.
pub(crate) struct ReadySet {
    /// Bits that are set on the worker's own thread.
    local: Cell<u64>,
    /// Bits that wakers set on any thread.
    remote: Arc<RemoteReady>,
}

struct RemoteReady {
    bits: AtomicU64,
    thread: Thread,
    /// The waker of the endpoint that the thread idles in, if unparking the thread is not enough.
    idle: Mutex<Option<Waker>>,
}

struct LaneWaker {
    remote: Arc<RemoteReady>,
    bit: u64,
}

impl Wake for LaneWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.remote.bits.fetch_or(self.bit, Ordering::Release);
        self.remote.thread.unpark();
        if let Some(idle) = &*self.remote.idle() {
            idle.wake_by_ref();
        }
    }
}

impl RemoteReady {
    fn idle(&self) -> MutexGuard<'_, Option<Waker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadySet {
    /// Makes the set of a worker of the calling thread. No lane is ready.
    pub(crate) fn new() -> ReadySet {
        let remote =
            Arc::new(RemoteReady { bits: AtomicU64::new(0), thread: thread::current(), idle: Mutex::default() });
        ReadySet { local: Cell::new(0), remote }
    }

    /// Makes a waker that any thread may use to make a lane ready.
    pub(crate) fn waker(&self, lane: LaneId) -> Waker {
        Arc::new(LaneWaker { remote: self.remote.clone(), bit: 1 << lane.0 }).into()
    }

    /// Returns the waker of the endpoint that the thread idles in, if unparking the thread is not
    /// enough.
    pub(crate) fn idle(&self) -> MutexGuard<'_, Option<Waker>> {
        self.remote.idle()
    }

    #[inline]
    pub(crate) fn set(&self, lane: LaneId) {
        self.local.set(self.local.get() | 1 << lane.0);
    }

    /// Returns all ready lanes, and clears their bits.
    #[inline]
    pub(crate) fn take(&self) -> u64 {
        let mut bits = self.local.take();
        if self.remote.bits.load(Ordering::Relaxed) != 0 {
            bits |= self.remote.bits.swap(0, Ordering::Acquire);
        }
        bits
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.local.get() == 0 && self.remote.bits.load(Ordering::Relaxed) == 0
    }
}
