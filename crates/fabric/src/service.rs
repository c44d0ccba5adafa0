//! What a memory node's own CPU does beside the one-sided verbs: a service is stepped until it is
//! stopped.
//!
//! One-sided writes tell the CPU nothing, so a service polls; it polls in batches and sleeps in
//! between, longer the longer it finds nothing, so that many of them share few cores and an idle
//! one costs next to nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What a step of a service found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// So much work that there is probably more already: step it again at once.
    Behind,
    /// Some work: more will have come after a short nap, and a batch costs less than its parts.
    Worked,
    /// There was nothing to do.
    Idle,
}

/// Work of a memory node's CPU.
pub trait Service: Send {
    /// Does a bounded piece of work.
    fn step(&mut self) -> Progress;

    /// The node's process has been started anew: what it knew is gone, except for what is in its
    /// memory. For simulated nodes.
    fn restart(&mut self) {}
}

/// Sleep after a step that found work. Short enough that a log ring of the default size does not
/// fill meanwhile.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(50);
/// Sleep of a service that has found nothing for long: under 1 % of a CPU.
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

    /// Makes the two ends of a service that its owner steps, until the stop is requested.
    pub(crate) fn detached() -> (ServiceHandle, ServiceStop) {
        let shared = Arc::<Shared>::default();
        (ServiceHandle { shared: shared.clone(), thread: None }, ServiceStop(shared))
    }

    /// CPU time that the service has used so far, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }
}

/// The other end of a [`ServiceHandle`]: whether it has been dropped.
#[derive(Debug)]
pub(crate) struct ServiceStop(Arc<Shared>);

impl ServiceStop {
    pub(crate) fn requested(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// The service has used so much more CPU time.
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

/// CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    cpu_ns(ClockId::ThreadCPUTime)
}

/// CPU time of this process, in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
