//! A worker: one thread that runs several coroutines, each on a lane, over its endpoints.
//!
//! Sixty lines instead of an executor crate because a switch must cost a few nanoseconds: completions set a lane's ready
//! bit, and only ready coroutines are polled. Wakers are real all the same, so that a coroutine may also await something
//! of another thread, such as a channel.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::lane::Lane;
use crate::limits::{IDLE_SLICE_NS, IDLE_SPINS, LANES_MAX};
use crate::prefetch::prefetch_lines;
use crate::transport::{ClientId, Fabric, LaneId, Nanos};

/// The ready bits of a worker's lanes.
pub(crate) struct ReadySet {
    /// Set on the worker's own thread.
    local: Cell<u64>,
    /// Set by wakers on any thread.
    remote: Arc<RemoteReady>,
}

struct RemoteReady {
    bits: AtomicU64,
    thread: Thread,
    /// Of the endpoint that the thread idles in, if unparking it is not enough.
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
    #[inline]
    pub(crate) fn set(&self, lane: LaneId) {
        self.local.set(self.local.get() | 1 << lane.0);
    }

    /// All ready lanes; none is ready afterwards.
    #[inline]
    fn take(&self) -> u64 {
        let mut bits = self.local.take();
        if self.remote.bits.load(Ordering::Relaxed) != 0 {
            bits |= self.remote.bits.swap(0, Ordering::Acquire);
        }
        bits
    }

    fn is_empty(&self) -> bool {
        self.local.get() == 0 && self.remote.bits.load(Ordering::Relaxed) == 0
    }
}

/// One thread that runs several coroutines. It stays on the thread that made it. Clones are the same worker: a coroutine
/// may have one, to connect anew.
#[derive(Clone)]
pub struct Worker {
    ready: Rc<ReadySet>,
    endpoints: Rc<RefCell<Vec<Rc<Endpoint>>>>,
    lanes: Rc<Cell<usize>>,
}

impl Worker {
    /// A worker of the calling thread.
    #[must_use]
    pub fn new() -> Worker {
        let remote =
            Arc::new(RemoteReady { bits: AtomicU64::new(0), thread: thread::current(), idle: Mutex::default() });
        Worker {
            ready: Rc::new(ReadySet { local: Cell::new(0), remote }),
            endpoints: Rc::default(),
            lanes: Rc::default(),
        }
    }

    /// Connects to all memory nodes as `client`. A worker has one endpoint; a seeded test gives it several, one for each
    /// client that it plays. One that no lane uses any more goes when the next one comes.
    pub fn connect(&self, fabric: &dyn Fabric, client: ClientId) -> Result<Rc<Endpoint>, FabricError> {
        let endpoint = Rc::new(Endpoint::new(fabric.connect(client)?, self.ready.clone()));
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.retain(|endpoint| Rc::strong_count(endpoint) > 1);
        endpoints.push(endpoint.clone());
        // A worker without work idles in the first one.
        *self.ready.remote.idle() = endpoints.first().and_then(|first| first.idle_waker());
        Ok(endpoint)
    }

    /// A new lane, with a random stream of its own. `None` when the worker has [`LANES_MAX`].
    #[must_use]
    pub fn lane(&self, endpoint: &Rc<Endpoint>, seed: u64) -> Option<Lane> {
        let id = self.lanes.get();
        if id == LANES_MAX {
            return None;
        }
        self.lanes.set(id + 1);
        Some(Lane::new(endpoint.clone(), LaneId(id as u8), seed))
    }

    /// Runs one coroutine for each named lane until all have finished; their results in the order given. A panic of one
    /// ends the run.
    pub fn run<F: Future>(&self, tasks: impl IntoIterator<Item = (LaneId, F)>) -> Vec<F::Output> {
        self.start(tasks).to_end()
    }

    /// Begins a run that the caller drives, turn by turn: a simulator plays many workers on one thread.
    pub fn start<F: Future>(&self, tasks: impl IntoIterator<Item = (LaneId, F)>) -> Run<'_, F> {
        let mut by_lane = [u8::MAX; LANES_MAX];
        let tasks: Vec<Task<F>> = tasks
            .into_iter()
            .enumerate()
            .map(|(index, (lane, future))| {
                assert_eq!(by_lane[lane.0 as usize], u8::MAX, "a lane runs one coroutine");
                by_lane[lane.0 as usize] = index as u8;
                self.ready.set(lane);
                let waker = LaneWaker { remote: self.ready.remote.clone(), bit: 1 << lane.0 };
                Task { future: Some(Box::pin(future)), waker: Arc::new(waker).into(), output: None }
            })
            .collect();
        Run { worker: self, running: tasks.len(), tasks, by_lane, attendants: Vec::new() }
    }

    /// Lets every endpoint make progress once, also outside of [`Worker::run`].
    pub fn progress(&self) {
        for endpoint in &*self.endpoints.borrow() {
            endpoint.progress();
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.endpoints.borrow().iter().filter_map(|endpoint| endpoint.next_timer()).min()
    }

    /// Nothing is ready: spin a bounded time, then park until the next timer, completion or wake.
    fn wait(&self) {
        // Where an answer comes from another thread or process, it may need this core.
        let awaits_others = self.ready.remote.idle().is_some();
        for _ in 0..IDLE_SPINS {
            self.progress();
            if !self.ready.is_empty() {
                return;
            }
            if awaits_others {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let timer = self.next_timer();
        let endpoints = self.endpoints.borrow();
        let Some(first) = endpoints.first() else {
            thread::park();
            return;
        };
        // Only the first endpoint is waited in. Where that is a real wait, the others are looked at again soon.
        let soon = (endpoints.len() > 1 && awaits_others).then(|| first.now() + IDLE_SLICE_NS);
        first.idle(timer.into_iter().chain(soon).min());
    }
}

struct Task<F: Future> {
    future: Option<Pin<Box<F>>>,
    waker: Waker,
    output: Option<F::Output>,
}

/// Coroutines of a worker that have begun. Made by [`Worker::start`].
pub struct Run<'w, F: Future> {
    worker: &'w Worker,
    tasks: Vec<Task<F>>,
    /// The coroutine of each lane: attendants are numbered after the tasks.
    by_lane: [u8; LANES_MAX],
    running: usize,
    attendants: Vec<Attendant<'w>>,
}

/// A coroutine that serves the others, and ends with them.
struct Attendant<'w> {
    future: Option<Pin<Box<dyn Future<Output = ()> + 'w>>>,
    waker: Waker,
}

/// What a turn of a worker has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turned {
    /// Every coroutine has finished.
    Finished,
    /// Some can go on at once.
    Ready,
    /// All wait, for a completion or until this time.
    Waiting(Option<Nanos>),
}

/// A worker's run, whatever its coroutines are.
pub trait Turn {
    /// Every coroutine that is ready goes on to where it waits next.
    fn turn(&mut self) -> Turned;

    /// The coroutine of a lane will go on soon. A simulator runs thousands, whose states no cache holds: fetching one line
    /// after the other when it does would take longer than what it does.
    fn prefetch(&self, lane: LaneId);
}

/// Lines of a coroutine's state that are fetched before it goes on.
const STATE_LINES: usize = 64;

impl<F: Future> Turn for Run<'_, F> {
    #[inline]
    fn turn(&mut self) -> Turned {
        if self.running == 0 {
            return Turned::Finished;
        }
        let mut bits = self.worker.ready.take();
        if bits == 0 {
            self.worker.progress();
            bits = self.worker.ready.take();
        }
        while bits != 0 {
            let lane = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let Some(task) = self.tasks.get_mut(usize::from(self.by_lane[lane])) else {
                self.attend_to(lane);
                continue;
            };
            let Some(future) = &mut task.future else { continue };
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
                task.future = None;
                task.output = Some(output);
                self.running -= 1;
            }
        }
        self.worker.progress();
        if self.running == 0 {
            Turned::Finished
        } else if self.worker.ready.is_empty() {
            Turned::Waiting(self.worker.next_timer())
        } else {
            Turned::Ready
        }
    }

    fn prefetch(&self, lane: LaneId) {
        if let Some(task) = self.tasks.get(usize::from(self.by_lane[usize::from(lane.0)]))
            && let Some(future) = &task.future
        {
            prefetch_lines(&**future, STATE_LINES);
        }
    }
}

impl<'w, F: Future> Run<'w, F> {
    /// Adds a coroutine that serves the others: the run does not wait for it, and drops it when they have finished.
    pub fn attend(&mut self, lane: LaneId, future: impl Future<Output = ()> + 'w) {
        assert_eq!(self.by_lane[lane.0 as usize], u8::MAX, "a lane runs one coroutine");
        // Every coroutine has a lane of its own, so that there are fewer than a byte counts.
        self.by_lane[lane.0 as usize] = (self.tasks.len() + self.attendants.len()) as u8;
        self.worker.ready.set(lane);
        let waker = LaneWaker { remote: self.worker.ready.remote.clone(), bit: 1 << lane.0 };
        self.attendants.push(Attendant { future: Some(Box::pin(future)), waker: Arc::new(waker).into() });
    }

    #[cold]
    fn attend_to(&mut self, lane: usize) {
        let Some(number) = usize::from(self.by_lane[lane]).checked_sub(self.tasks.len()) else { return };
        let Some(attendant) = self.attendants.get_mut(number) else { return };
        let Some(future) = &mut attendant.future else { return };
        if future.as_mut().poll(&mut Context::from_waker(&attendant.waker)).is_ready() {
            attendant.future = None;
        }
    }

    /// Goes on until every coroutine has finished; see [`Worker::run`].
    pub fn to_end(mut self) -> Vec<F::Output> {
        loop {
            match self.turn() {
                Turned::Finished => return self.finish(),
                Turned::Ready => {}
                Turned::Waiting(_) => self.worker.wait(),
            }
        }
    }

    /// What the coroutines have returned, in the order in which they were given: of those that have finished.
    #[must_use]
    pub fn finish(self) -> Vec<F::Output> {
        self.tasks.into_iter().filter_map(|task| task.output).collect()
    }
}

impl<F: Future> fmt::Debug for Run<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("running", &self.running).finish_non_exhaustive()
    }
}

impl Default for Worker {
    fn default() -> Worker {
        Worker::new()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("lanes", &self.lanes.get()).finish_non_exhaustive()
    }
}

/// What a coroutine returns, or the panic that ended it.
pub async fn catch_panic<T>(future: impl Future<Output = T>) -> thread::Result<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        // A coroutine that has panicked is dropped without being polled again, so nobody sees it half-way.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Runs one coroutine on a worker of its own: for tests, tools, and what is done once.
pub fn block_on<T>(
    fabric: &dyn Fabric,
    client: ClientId,
    body: impl AsyncFnOnce(&Lane) -> T,
) -> Result<T, FabricError> {
    let worker = Worker::new();
    let endpoint = worker.connect(fabric, client)?;
    let lane = worker.lane(&endpoint, u64::from(client.0)).expect("the first lane");
    let mut results = worker.run([(lane.id(), body(&lane))]);
    Ok(results.pop().expect("a task that has run has a result"))
}
