//! Waiting in one place: a thread that has sockets of its own and drives a worker waits for both in
//! one poller, and so for the answers of memory nodes, for timers and for wakes of other threads,
//! too.
//!
//! A wait must end when something comes, and must not begin when something has come already. That
//! something is one of these five, and each has its own reason why no wake is missed:
//!
//! 1. **A socket of the thread.** The kernel keeps its event until the poller has shown it.
//! 2. **A wake of a lane by another thread**, or an order for the thread. The other thread stores
//!    what it brings, and then rings the [`Bell`]. The waiting thread first says that it sleeps,
//!    which fails if the bell has rung since it was last awake, and then looks at the ready bits.
//!    So either the thread sees the ring or the bit, or the ring finds it asleep and writes to the
//!    bell's descriptor, which the poller watches.
//! 3. **An answer over TCP.** The poller watches the transport's own poller, which shows a socket
//!    for as long as there is something to read. No other thread reads from it while the worker
//!    waits: the stand-in leaves a transport alone that has said that it sleeps.
//! 4. **An answer on shared memory.** A round without calls has completed when it was posted.
//!    Replies to calls lie in memory, which no poller watches and another process may write. While
//!    calls are under way, waits are short: at most a quarter of the time since the last reply, and
//!    at most a millisecond. Such a wait needs no wake.
//! 5. **A timer**: of a lane, of a transport, or of the caller. The wait ends then.
//!
//! An endpoint may be made while the worker runs, when its client connects anew. So each wait first
//! makes the poller watch the endpoints that it does not watch yet.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::executor::Run;
use crate::ids::{LaneId, Nanos};
use crate::limits::SPIN_NS;
use crate::poller::{BELL, Bell, Poller};
use crate::shm::monotonic_ns;
use crate::transport::BeforeWait;

/// The token by which the poller shows that a memory node may have answered. The worker's next turn
/// sees it.
pub const WORKER: u64 = BELL - 1;

/// Returns the time of the clock by which waits end.
#[must_use]
pub fn now() -> Nanos {
    monotonic_ns()
}

impl<T> Run<'_, T> {
    /// Makes wakes of the worker's lanes ring this bell from now on.
    pub fn ring(&self, bell: &Arc<Bell>) {
        self.worker().ready.set_poller(bell.clone().into());
    }

    /// Makes a lane ready. Only the worker's own thread can call this, so it costs less than a
    /// waker.
    #[inline]
    pub fn make_ready(&self, lane: LaneId) {
        self.worker().ready.set(lane);
    }

    /// Waits in the poller until there is something for its sockets or for the worker, but not
    /// beyond `until`, if that is given. With a time that has passed it only looks. Then the poller
    /// has the events, and the worker needs a turn.
    ///
    /// The poller has been made with the bell that was given to [`Run::ring`]. The caller looks at
    /// what other threads have stored for it after every wait.
    pub fn wait_in(&self, poller: &mut Poller, bell: &Bell, until: Option<Nanos>) {
        if until.is_some_and(|until| until <= now()) {
            poller.wait(Some(Duration::ZERO));
        } else {
            self.wait_long(poller, bell, until);
        }
        if (0..).map_while(|number| poller.event(number)).any(|(token, _)| token == BELL) {
            bell.quiet();
        }
    }

    fn wait_long(&self, poller: &mut Poller, bell: &Bell, until: Option<Nanos>) {
        let worker = self.worker();
        let mut limit = Some(Duration::ZERO);
        if bell.sleep() && worker.ready.is_empty() {
            let endpoints = worker.endpoints.borrow();
            let mut look_again = false;
            let mut first = until.into_iter().chain(worker.next_timer()).min();
            for endpoint in &*endpoints {
                match endpoint.before_wait(poller, WORKER) {
                    BeforeWait::LookAgain => look_again = true,
                    BeforeWait::Until(until) => first = first.into_iter().chain(until).min(),
                }
            }
            if !look_again {
                let left = first.map(|first| first.saturating_sub(now()));
                match left {
                    Some(left @ ..=SPIN_NS) if left > 0 => thread::yield_now(),
                    left => limit = left.map(Duration::from_nanos),
                }
            }
            poller.wait(limit);
            endpoints.iter().for_each(|endpoint| endpoint.after_wait());
        } else {
            poller.wait(limit);
        }
        bell.wake_up();
    }
}
