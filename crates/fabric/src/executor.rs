//! A worker: one thread that runs several coroutines over its endpoints, each coroutine on a lane
//! of its own.
//!
//! This is sixty lines and not an executor crate, because a switch between coroutines must cost
//! only a few nanoseconds. A completion sets the ready bit of a lane, and the worker polls only
//! coroutines that are ready. Wakers still work, so a coroutine may also await something of another
//! thread, such as a channel.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;

use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::ids::{ClientId, LaneId, Nanos};
use crate::lane::Lane;
use crate::limits::{IDLE_SLICE_NS, IDLE_SPINS, LANES_MAX};
use crate::prefetch::prefetch_lines;
use crate::ready::ReadySet;
use crate::transport::Fabric;

/// One thread that runs several coroutines. A worker stays on the thread that made it. Clones are
/// the same worker: a coroutine may have one to connect anew.
#[derive(Clone)]
pub struct Worker {
    pub(crate) ready: Rc<ReadySet>,
    pub(crate) endpoints: Rc<RefCell<Vec<Rc<Endpoint>>>>,
    lanes: Rc<Cell<usize>>,
}

impl Worker {
    /// Makes a worker of the calling thread.
    #[must_use]
    pub fn new() -> Worker {
        Worker { ready: Rc::new(ReadySet::new()), endpoints: Rc::default(), lanes: Rc::default() }
    }

    /// Connects to all memory nodes as `client`. A worker has one endpoint. A seeded test gives it
    /// several, one for each client that the test plays. An endpoint that no lane uses any more is
    /// dropped when the next one is made.
    pub fn connect(&self, fabric: &dyn Fabric, client: ClientId) -> Result<Rc<Endpoint>, FabricError> {
        let endpoint = Rc::new(Endpoint::new(fabric.connect(client)?, self.ready.clone()));
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.retain(|endpoint| Rc::strong_count(endpoint) > 1);
        endpoints.push(endpoint.clone());
        // A worker without work idles in its first endpoint.
        self.ready.set_endpoint(endpoints.first().and_then(|first| first.idle_waker()));
        Ok(endpoint)
    }

    /// Makes a new lane, with a random stream of its own. Returns `None` when the worker has
    /// [`LANES_MAX`] lanes already.
    #[must_use]
    pub fn lane(&self, endpoint: &Rc<Endpoint>, seed: u64) -> Option<Lane> {
        let id = self.lanes.get();
        if id == LANES_MAX {
            return None;
        }
        self.lanes.set(id + 1);
        Some(Lane::new(endpoint.clone(), LaneId(id as u8), seed))
    }

    /// Runs one coroutine for each named lane until all have finished. Returns their results in the
    /// order given. A panic of one coroutine ends the run.
    pub fn run<'w, F: Future + 'w>(&'w self, tasks: impl IntoIterator<Item = (LaneId, F)>) -> Vec<F::Output> {
        self.start(tasks).to_end()
    }

    /// Runs one coroutine until it has finished.
    fn complete<'w>(&'w self, lane: LaneId, task: Pin<Box<dyn Future<Output = ()> + 'w>>) {
        let mut turns = Turns::new(self);
        turns.begin(lane, task);
        (turns.awaited, turns.running) = (1, 1);
        turns.run_to_end();
    }

    /// Begins a run that the caller drives, turn by turn. So a simulator plays many workers on one
    /// thread.
    pub fn start<'w, F: Future + 'w>(&'w self, tasks: impl IntoIterator<Item = (LaneId, F)>) -> Run<'w, F::Output> {
        let mut run = Run { turns: Turns::new(self), outputs: Vec::new() };
        for (lane, future) in tasks {
            let output = Rc::new(Cell::new(None));
            run.outputs.push(output.clone());
            run.turns.begin(lane, Box::pin(async move { output.set(Some(future.await)) }));
            run.turns.awaited += 1;
        }
        run.turns.running = run.turns.awaited;
        run
    }

    /// Lets every endpoint make progress once. It may also be called outside of [`Worker::run`].
    pub fn progress(&self) {
        for endpoint in &*self.endpoints.borrow() {
            endpoint.progress();
        }
    }

    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        self.endpoints.borrow().iter().filter_map(|endpoint| endpoint.next_timer()).min()
    }

    /// Waits while no lane is ready: spins for a bounded time, then parks until the next timer,
    /// completion or wake.
    fn wait(&self) {
        // Where an answer comes from another thread or process, that one may need this core.
        let awaits_others = self.ready.has_endpoint();
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
        // The worker waits in its first endpoint only. Where that is a real wait, it soon looks at
        // the others again.
        let soon = (endpoints.len() > 1 && awaits_others).then(|| first.now() + IDLE_SLICE_NS);
        first.idle(timer.into_iter().chain(soon).min());
    }
}

/// A run of a worker: its coroutines, and the results of those which have finished.
/// [`Worker::start`] makes it.
pub struct Run<'w, T> {
    turns: Turns<'w>,
    outputs: Vec<Rc<Cell<Option<T>>>>,
}

/// The part of a run whose code does not depend on the type of the coroutines.
struct Turns<'w> {
    worker: &'w Worker,
    /// The first `awaited` tasks, for which the run waits, and then the tasks that serve them and
    /// end with them.
    tasks: Vec<Task<'w>>,
    awaited: usize,
    /// The number of awaited tasks that have not finished.
    running: usize,
    /// The task of each lane.
    by_lane: [u8; LANES_MAX],
}

struct Task<'w> {
    future: Option<Pin<Box<dyn Future<Output = ()> + 'w>>>,
    waker: Waker,
}

/// The result of one turn of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turned {
    /// Every coroutine has finished.
    Finished,
    /// Some coroutines can go on at once.
    Ready,
    /// All coroutines wait, for a completion or until this time.
    Waiting(Option<Nanos>),
}

/// A worker's run, without the type of its coroutines.
pub trait Turn {
    /// Runs every coroutine that is ready up to its next wait.
    fn turn(&mut self) -> Turned;

    /// Prefetches the state of a lane's coroutine, which will go on soon. A simulator runs
    /// thousands of coroutines, whose states are in no cache. Without this it would spend more time
    /// on fetching one line after the other than on the work.
    fn prefetch(&self, lane: LaneId);
}

/// Lines of a coroutine's state that are fetched before the coroutine goes on.
const STATE_LINES: usize = 64;

impl<'w> Turns<'w> {
    fn new(worker: &'w Worker) -> Turns<'w> {
        Turns { worker, tasks: Vec::new(), awaited: 0, running: 0, by_lane: [u8::MAX; LANES_MAX] }
    }

    fn begin(&mut self, lane: LaneId, future: Pin<Box<dyn Future<Output = ()> + 'w>>) {
        assert_eq!(self.by_lane[lane.0 as usize], u8::MAX, "a lane runs one coroutine");
        // Every coroutine has a lane of its own, so their number fits a byte.
        self.by_lane[lane.0 as usize] = self.tasks.len() as u8;
        let ready = &self.worker.ready;
        ready.set(lane);
        self.tasks.push(Task { future: Some(future), waker: ready.waker(lane) });
    }

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
            let number = usize::from(self.by_lane[lane]);
            let Some(task) = self.tasks.get_mut(number) else { continue };
            let Some(future) = &mut task.future else { continue };
            if future.as_mut().poll(&mut Context::from_waker(&task.waker)).is_ready() {
                task.future = None;
                self.running -= usize::from(number < self.awaited);
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

    fn run_to_end(&mut self) {
        loop {
            match self.turn() {
                Turned::Finished => return,
                Turned::Ready => {}
                Turned::Waiting(_) => self.worker.wait(),
            }
        }
    }
}

impl<T> Turn for Run<'_, T> {
    #[inline]
    fn turn(&mut self) -> Turned {
        self.turns.turn()
    }

    fn prefetch(&self, lane: LaneId) {
        if let Some(task) = self.turns.tasks.get(usize::from(self.turns.by_lane[usize::from(lane.0)]))
            && let Some(future) = &task.future
        {
            prefetch_lines(&**future, STATE_LINES);
        }
    }
}

impl<'w, T> Run<'w, T> {
    /// Returns the worker that runs.
    pub(crate) fn worker(&self) -> &'w Worker {
        self.turns.worker
    }

    /// Adds a coroutine that serves the others. The run does not wait for it, and drops it when the
    /// others have finished.
    pub fn attend(&mut self, lane: LaneId, future: impl Future<Output = ()> + 'w) {
        self.turns.begin(lane, Box::pin(future));
    }

    /// Runs until every coroutine has finished; see [`Worker::run`].
    pub fn to_end(mut self) -> Vec<T> {
        self.turns.run_to_end();
        self.finish()
    }

    /// Returns the results of the coroutines that have finished, in the order in which the
    /// coroutines were given.
    #[must_use]
    pub fn finish(self) -> Vec<T> {
        self.outputs.iter().filter_map(|output| output.take()).collect()
    }
}

impl<T> fmt::Debug for Run<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("running", &self.turns.running).finish_non_exhaustive()
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

/// Returns what a coroutine returns, or the panic that ended it.
pub async fn catch_panic<T>(future: impl Future<Output = T>) -> thread::Result<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        // A coroutine that has panicked is dropped without another poll, so no code sees its
        // half-changed state.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Runs one coroutine on a worker of its own, until it has finished. Tests, tools and one-time work
/// use it.
pub fn block_on<T>(
    fabric: &dyn Fabric,
    client: ClientId,
    body: impl AsyncFnOnce(&Lane) -> T,
) -> Result<T, FabricError> {
    let (worker, lane) = alone(fabric, client)?;
    let mut result = None;
    worker.complete(lane.id(), Box::pin(async { result = Some(body(&lane).await) }));
    Ok(result.expect("a task that has run has a result"))
}

/// Makes a worker with one lane.
fn alone(fabric: &dyn Fabric, client: ClientId) -> Result<(Worker, Lane), FabricError> {
    let worker = Worker::new();
    let endpoint = worker.connect(fabric, client)?;
    let lane = worker.lane(&endpoint, u64::from(client.0)).expect("the first lane");
    Ok((worker, lane))
}
