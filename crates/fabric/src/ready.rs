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
    /// What wakes the thread where unparking it is not enough.
    idle: Mutex<Idle>,
}

/// What wakes the worker's thread, by the place where it may wait.
#[derive(Default)]
struct Idle {
    /// The waker of the endpoint that the worker idles in.
    endpoint: Option<Waker>,
    /// The waker of the poller that the worker's thread waits in.
    poller: Option<Waker>,
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
        let idle = self.remote.idle();
        idle.endpoint.iter().chain(&idle.poller).for_each(Waker::wake_by_ref);
    }
}

impl RemoteReady {
    fn idle(&self) -> MutexGuard<'_, Idle> {
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

    /// Sets the waker of the endpoint that the worker idles in, if unparking the thread is not
    /// enough.
    pub(crate) fn set_endpoint(&self, waker: Option<Waker>) {
        self.remote.idle().endpoint = waker;
    }

    /// Whether the worker idles in an endpoint that has a waker.
    pub(crate) fn has_endpoint(&self) -> bool {
        self.remote.idle().endpoint.is_some()
    }

    /// Sets the waker of the poller that the worker's thread waits in.
    pub(crate) fn set_poller(&self, waker: Waker) {
        self.remote.idle().poller = Some(waker);
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
