//! Services: the work that a memory node's own CPU does beside the one-sided verbs. A service is
//! stepped until it is stopped.
//!
//! One-sided writes do not notify the CPU, so a service polls. It works in batches and sleeps
//! between them, for longer the longer it finds nothing. So several services share few cores, and
//! an idle one costs next to nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The result of one step of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There was so much work that there is probably more already. Step the service again at once.
    Behind,
    /// There was some work. More will have come after a short nap, and one batch costs less than
    /// several small ones.
    Worked,
    /// There was nothing to do.
    Idle,
}

/// A piece of software that the CPU of a memory node runs repeatedly.
pub trait Service: Send {
    /// Does a bounded piece of work.
    fn step(&mut self) -> Progress;

    /// Forgets everything but what is in the node's memory, because the node's process has been
    /// started anew. Simulated nodes call this.
    fn restart(&mut self) {}
}

/// Sleep after a step that found work. It is short enough that a log ring of the default size does
/// not fill meanwhile.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(50);
/// Sleep of a service that has found nothing for a long time. It then uses less than 1 % of a CPU.
pub(crate) const NAP_MAX: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    cpu_ns: AtomicU64,
}

/// A running service. Dropping it stops the service.
#[derive(Debug)]
pub struct ServiceHandle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ServiceHandle {
    /// Runs a service on a thread of its own.
    pub(crate) fn spawn(name: &str, mut service: Box<dyn Service>) -> std::io::Result<ServiceHandle> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut nap = NAP_MIN;
            while !theirs.stop.load(Ordering::Relaxed) {
                match service.step() {
                    Progress::Behind => continue,
                    Progress::Worked => nap = NAP_MIN,
                    Progress::Idle => nap = (nap * 2).min(NAP_MAX),
                }
                theirs.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
                thread::park_timeout(nap);
            }
            theirs.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        })?;
        Ok(ServiceHandle { shared, thread: Some(thread) })
    }

    /// Makes the two ends of a service that its owner steps itself, until the stop is requested.
    pub(crate) fn detached() -> (ServiceHandle, ServiceStop) {
        let shared = Arc::<Shared>::default();
        (ServiceHandle { shared: shared.clone(), thread: None }, ServiceStop(shared))
    }

    /// Returns the CPU time that the service has used so far, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }
}

/// The service's end of a [`ServiceHandle`]. It tells whether the handle has been dropped.
#[derive(Debug)]
pub(crate) struct ServiceStop(Arc<Shared>);

impl ServiceStop {
    pub(crate) fn requested(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Adds to the CPU time that the service has used.
    pub(crate) fn add_cpu_ns(&self, ns: u64) {
        self.0.cpu_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a memory node's service panicked");
            }
        }
    }
}

/// Returns the CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    cpu_ns(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of this process, in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
