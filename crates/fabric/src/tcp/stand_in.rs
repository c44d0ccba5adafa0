//! The stand-in: a thread that continues the rounds which workers have left under way, while the
//! workers' threads do something else.
//!
//! A worker sends and receives when it polls, after its coroutines have run. A program may keep its
//! thread for any time: it computes, or waits for another thread. A round that it has posted and
//! does not await may be the unlock of its last transaction, and other clients wait for that. So a
//! thread of this process looks at each transport that has such rounds under way, every [`LOOK`].
//! If the worker has not polled since the last look, the thread sends and receives in its place.
//!
//! While workers poll, this thread reads two words of each, and nothing else. When no worker has
//! left rounds under way for some time, it sleeps until one does. Where a look costs much, as on an
//! emulated processor, it looks less often.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::service::thread_cpu_ns;

/// Time between two looks. A round that its worker has left continues after at most two of them,
/// plus the time that the kernel adds.
const LOOK: Duration = Duration::from_micros(100);

/// The thread works for at most one part in `SHARE` of the time.
const SHARE: u64 = 25;

/// The number of looks that find no rounds left under way, before the thread sleeps.
const LOOKS_MAX: u32 = 32;

/// What a worker tells the stand-in about itself.
#[derive(Debug, Default)]
pub(crate) struct Worked {
    /// How often the worker has polled. Only its own thread writes this.
    turns: AtomicU64,
    /// That count at the last look. Only the stand-in writes this.
    seen: AtomicU64,
    /// Whether rounds may be under way that no coroutine awaits.
    left: AtomicBool,
}

impl Worked {
    /// Records that a background round was posted. Returns true if it is the first since there was
    /// none.
    pub(crate) fn leave(&self) -> bool {
        !self.left.load(Ordering::Relaxed) && !self.left.swap(true, Ordering::SeqCst)
    }

    /// Records that the worker polls.
    pub(crate) fn turn(&self, is_at_rest: bool) {
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.rest_if(is_at_rest);
    }

    /// Records that nothing is under way any more, if `is_at_rest`.
    pub(crate) fn rest_if(&self, is_at_rest: bool) {
        if is_at_rest && self.left.load(Ordering::Relaxed) {
            self.left.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether rounds are left, and whether the worker has not polled since the last look.
    fn look(&self) -> (bool, bool) {
        if !self.left.load(Ordering::SeqCst) {
            return (false, false);
        }
        let turns = self.turns.load(Ordering::Relaxed);
        let before = self.seen.swap(turns, Ordering::Relaxed);
        (true, before == turns)
    }
}

/// A transport, as the stand-in uses it.
pub(crate) trait Left: Send + Sync {
    /// Returns what its worker tells about itself.
    fn worked(&self) -> &Worked;

    /// Sends and receives in the worker's place, unless the worker is doing so itself.
    fn stand_in(&self);
}

/// The thread, and the transports that it looks at.
pub(crate) struct StandIn {
    all: Mutex<Vec<Weak<dyn Left>>>,
    sleeps: AtomicBool,
    thread: OnceLock<Thread>,
}

impl StandIn {
    /// Makes the stand-in look at a transport that has left rounds under way.
    pub(crate) fn watch<T: Left + 'static>(transport: &Arc<T>) {
        static ONE: StandIn =
            StandIn { all: Mutex::new(Vec::new()), sleeps: AtomicBool::new(false), thread: OnceLock::new() };
        let weak: Weak<dyn Left> = Arc::downgrade(transport) as Weak<dyn Left>;
        let mut all = ONE.all.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|one| one.ptr_eq(&weak)) {
            all.retain(|one| one.strong_count() > 0);
            all.push(weak);
        }
        drop(all);
        let thread = ONE.thread.get_or_init(|| {
            let run = thread::Builder::new().name("remora-stand-in".to_owned()).spawn(|| ONE.run());
            run.map_or_else(
                |error| {
                    tracing::warn!(%error, "no thread goes on for workers that are kept from running");
                    thread::current()
                },
                |handle| handle.thread().clone(),
            )
        });
        // The stand-in says that it sleeps before it looks once more. So one of the two sees the
        // other.
        if ONE.sleeps.load(Ordering::SeqCst) {
            thread.unpark();
        }
    }

    fn run(&self) {
        let (mut quiet, mut worked) = (0, thread_cpu_ns());
        loop {
            if self.look() {
                quiet = 0;
            } else {
                quiet += 1;
            }
            if quiet < LOOKS_MAX {
                let before = std::mem::replace(&mut worked, thread_cpu_ns());
                thread::sleep(LOOK.max(Duration::from_nanos(SHARE * (worked - before))));
                continue;
            }
            self.sleeps.store(true, Ordering::SeqCst);
            if !self.look() {
                thread::park();
            }
            self.sleeps.store(false, Ordering::SeqCst);
            quiet = 0;
        }
    }

    /// Looks at all transports. Returns whether any has left rounds under way.
    fn look(&self) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut any = false;
        for one in all.iter().filter_map(Weak::upgrade) {
            let (left, stands_still) = one.worked().look();
            any |= left;
            if stands_still {
                one.stand_in();
            }
        }
        any
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").finish_non_exhaustive()
    }
}
