//! A gateway: its options, and its threads.

use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use remora::{Cluster, WorkerOptions};
use remora_fabric::poller::Bell;
use remora_fabric::setters;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::control::{Control, Seat, Shared};
use super::error::{MEMORY_MIN, ServeError, cannot};
use super::{Handler, Tls, thread as one};

/// Settings of a gateway.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Number of threads. Each is a client of the cluster. By default half the cores.
    pub threads: usize,
    /// Number of lanes of a thread, which is the number of batches that it runs at a time. By
    /// default 16 where rounds complete at once, and otherwise 32.
    pub lanes: Option<usize>,
    /// The greatest number of connections at a time. It is lower if the process may not open so
    /// many descriptors; [`Control::connections_max`] says.
    pub connections_max: usize,
    /// The greatest number of bytes of unfinished input of all connections together. Each thread
    /// gets an equal part, and a command that is longer than about three quarters of it is refused.
    pub memory_max: usize,
    /// What clients are shown. With it, they have to speak TLS.
    pub tls: Option<Tls>,
    /// How long a client may take for the handshake of TLS.
    pub handshake_max: Duration,
    /// How long a gateway that stops waits for batches that run, and for clients that fetch their
    /// answers. Its workers take up to five seconds more to leave the cluster.
    pub stop_patience: Duration,
    /// Settings of the workers, of which the number of coroutines does not count. By default, they
    /// connect again if they were taken for dead, and a lane's log has 1 MiB, so that one
    /// transaction can write 512 KiB. It has less if the logs of all lanes would have more than 128
    /// MiB.
    pub worker: WorkerOptions,
}

setters!(ServeOptions {
    threads: usize,
    lanes: impl Into<Option<usize>>,
    connections_max: usize,
    memory_max: usize,
    tls: impl Into<Option<Tls>>,
    handshake_max: Duration,
    stop_patience: Duration,
    worker: WorkerOptions,
});

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            threads: thread::available_parallelism().map_or(1, NonZeroUsize::get).div_ceil(2),
            lanes: None,
            connections_max: 10_000,
            memory_max: 256 << 20,
            tls: None,
            handshake_max: Duration::from_secs(30),
            stop_patience: Duration::from_secs(5),
            worker: WorkerOptions::default().log_bytes(LOG_BYTES).reconnects(true),
        }
    }
}

/// Bytes of a lane's log at each memory node.
const LOG_BYTES: u64 = 1 << 20;
/// Bytes of the logs of all lanes at each memory node, if a lane's log is to have more than it has
/// in other programs.
const LOGS_BYTES_MAX: u64 = 128 << 20;

/// Descriptors that a gateway leaves to the rest of the process, and those of each thread.
const DESCRIPTORS_SPARE: u64 = 128;

/// A running gateway. [`serve`] makes it. Dropping it stops it.
pub struct Gateway {
    control: Control,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("control", &self.control).finish_non_exhaustive()
    }
}

/// Serves connections from these listeners, on threads of its own. `make_handler` makes the handler
/// of each thread, on that thread; it gets the thread's number and a handle of the gateway.
///
/// Returns when all threads serve. Fails if the options make no gateway, or if a thread cannot be
/// started or gets no worker of the cluster.
pub fn serve<H: Handler>(
    cluster: &Cluster,
    listeners: Vec<TcpListener>,
    options: ServeOptions,
    make_handler: impl Fn(usize, &Control) -> H + Send + Sync + 'static,
) -> Result<Gateway, ServeError> {
    let shared = Arc::new(share(&listeners, &options)?);
    let control = Control { shared: shared.clone() };
    let lanes = options.lanes.unwrap_or(if cluster.capabilities().in_order { 16 } else { 32 });
    let mut gateway = Gateway { control: control.clone(), threads: Vec::with_capacity(options.threads) };
    let (make, mut listeners) = (Arc::new(make_handler), Some(listeners));
    for number in 0..options.threads {
        let mut worker = options.worker.coroutines(lanes);
        worker.log_bytes = worker.log_bytes.min(LOGS_BYTES_MAX / (options.threads * lanes).max(1) as u64);
        worker.seed = worker.seed.wrapping_add(number as u64);
        let own = one::Start {
            number,
            cluster: cluster.clone(),
            shared: shared.clone(),
            listeners: listeners.take().unwrap_or_default(),
            worker,
            memory_max: options.memory_max / options.threads,
            tls: options.tls.clone(),
            handshake_max: options.handshake_max,
            stop_patience: options.stop_patience,
        };
        let (make, control) = (make.clone(), control.clone());
        let (started, is_started) = mpsc::channel();
        let run = move || one::run(own, |number| make(number, &control), &started);
        let thread = thread::Builder::new().name(format!("gateway-{number}")).spawn(run);
        gateway.threads.push(thread.map_err(cannot("start a thread"))?);
        // A thread that ends without a word has panicked.
        is_started.recv().unwrap_or(Err(ServeError::Nothing("threads that do not panic")))?;
    }
    Ok(gateway)
}

fn share(listeners: &[TcpListener], options: &ServeOptions) -> Result<Shared, ServeError> {
    let needed = [
        (!listeners.is_empty(), "a listener"),
        (options.threads > 0, "a thread"),
        (options.connections_max > 0, "room for a connection"),
    ];
    if let Some((_, what)) = needed.into_iter().find(|(there, _)| !there) {
        return Err(ServeError::Nothing(what));
    }
    if options.memory_max / options.threads < MEMORY_MIN {
        return Err(ServeError::Memory(options.memory_max));
    }
    for listener in listeners {
        listener.set_nonblocking(true).map_err(cannot("listen"))?;
    }
    let connections_max = within_descriptors(options.connections_max);
    if connections_max < options.connections_max {
        tracing::warn!(connections_max, "the process may open so few descriptors that it serves fewer connections");
    }
    let seat = |_| Ok(Seat::new(Arc::new(Bell::new()?)));
    let seats = (0..options.threads).map(seat).collect::<io::Result<_>>().map_err(cannot("make an eventfd"))?;
    Ok(Shared {
        seats,
        connections_max,
        stop: AtomicBool::new(false),
        connections: AtomicUsize::new(0),
        accepted: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    })
}

/// Raises the process's limit of descriptors as far as this number of connections needs it. Returns
/// the number of connections that the limit allows.
fn within_descriptors(wanted: usize) -> usize {
    let needed = wanted as u64 + DESCRIPTORS_SPARE;
    let limit = getrlimit(Resource::Nofile);
    let Some(mut current) = limit.current.filter(|current| *current < needed) else { return wanted };
    let raised = needed.min(limit.maximum.unwrap_or(needed));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }).is_ok() {
        current = raised;
    }
    usize::try_from(current.saturating_sub(DESCRIPTORS_SPARE)).unwrap_or(wanted).clamp(1, wanted)
}

impl Gateway {
    /// Returns a handle of the gateway.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Waits until the gateway has stopped: [`Control::stop`] makes it.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // The thread has said so itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.control.stop();
        self.join();
    }
}
