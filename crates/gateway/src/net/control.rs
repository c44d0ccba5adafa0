//! What the threads of a gateway share: how they reach each other, and what they count.

use std::collections::VecDeque;
use std::fmt;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora_fabric::poller::Bell;

use super::Origin;

/// A handle of a running gateway, which any thread may use. Clones are handles of the same gateway.
#[derive(Clone)]
pub struct Control {
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("counts", &self.counts()).finish()
    }
}

/// What a gateway counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that are open.
    pub connections: usize,
    /// Connections that have been accepted so far.
    pub accepted: u64,
    /// Connections that have been turned away so far, because there were too many, or by the
    /// handler.
    pub refused: u64,
    /// Batches that lanes have run so far.
    pub batches: u64,
    /// Bytes that have been read so far.
    pub bytes_in: u64,
    /// Bytes that have been sent so far.
    pub bytes_out: u64,
    /// Bytes of unfinished input that connections hold.
    pub held: usize,
    /// Lanes that have a batch.
    pub lanes_busy: usize,
    /// Connections that wait for a lane.
    pub stalled_by_lanes: usize,
    /// Connections that wait until the client has fetched some of its output.
    pub stalled_by_output: usize,
    /// Connections that wait until others have less unfinished input.
    pub stalled_by_memory: usize,
}

impl Control {
    /// Makes the gateway stop: see rule 7 of the [module](super).
    pub fn stop(&self) {
        self.shared.end();
    }

    /// Whether the gateway stops or has stopped.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Closes a connection. If a batch of it is under way, the connection is closed when the batch
    /// is done, and the answers are not sent. Does nothing if there is no such connection.
    pub fn kill(&self, id: u64) {
        self.shared.tell_all(|| Order::Kill(id));
    }

    /// Ends the pause of a connection, if it is in one.
    pub fn wake(&self, id: u64) {
        self.shared.tell_all(|| Order::Wake(Some(id)));
    }

    /// Ends the pauses of all connections.
    pub fn wake_all(&self) {
        self.shared.tell_all(|| Order::Wake(None));
    }

    /// Returns the greatest number of connections that the gateway serves at a time.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        self.shared.connections_max
    }

    /// Returns what the gateway has counted. The numbers may be of different moments.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shared = &self.shared;
        let mut counts = Counts {
            connections: shared.connections.load(Ordering::Relaxed),
            accepted: shared.accepted.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            ..Counts::default()
        };
        for tally in shared.seats.iter().map(|seat| &seat.tally) {
            counts.batches += tally.batches.load(Ordering::Relaxed);
            counts.bytes_in += tally.bytes_in.load(Ordering::Relaxed);
            counts.bytes_out += tally.bytes_out.load(Ordering::Relaxed);
            counts.held += tally.held.load(Ordering::Relaxed);
            counts.lanes_busy += tally.lanes_busy.load(Ordering::Relaxed);
            counts.stalled_by_lanes += tally.stalled_by_lanes.load(Ordering::Relaxed);
            counts.stalled_by_output += tally.stalled_by_output.load(Ordering::Relaxed);
            counts.stalled_by_memory += tally.stalled_by_memory.load(Ordering::Relaxed);
        }
        counts
    }
}

/// What a thread is told by others.
pub(super) enum Order {
    /// Serve a connection.
    Serve(TcpStream, Origin),
    Kill(u64),
    /// End the pause of this connection, or of all.
    Wake(Option<u64>),
}

/// How the others reach a thread.
pub(super) struct Seat {
    pub(super) bell: Arc<Bell>,
    /// Connections that the thread has or will have.
    pub(super) connections: AtomicUsize,
    pub(super) tally: Tally,
    /// What the thread is told. `None` if it has ended.
    orders: Mutex<Option<VecDeque<Order>>>,
    /// Whether there are orders. It is set after the order is stored, and before the bell rings.
    has_orders: AtomicBool,
}

/// What a thread counts. Only the thread itself writes it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Tally {
    pub(super) batches: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    /// Bytes of unfinished input that the thread's connections hold.
    pub(super) held: AtomicUsize,
    pub(super) lanes_busy: AtomicUsize,
    pub(super) stalled_by_lanes: AtomicUsize,
    pub(super) stalled_by_output: AtomicUsize,
    pub(super) stalled_by_memory: AtomicUsize,
}

/// Adds to a number that only the calling thread writes.
pub(super) fn add(count: &AtomicU64, more: usize) {
    count.store(count.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}

impl Seat {
    pub(super) fn new(bell: Arc<Bell>) -> Seat {
        Seat {
            bell,
            connections: AtomicUsize::new(0),
            tally: Tally::default(),
            orders: Mutex::new(Some(VecDeque::new())),
            has_orders: AtomicBool::new(false),
        }
    }

    fn orders(&self) -> MutexGuard<'_, Option<VecDeque<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the thread an order. Returns false if the thread has ended.
    pub(super) fn tell(&self, order: Order) -> bool {
        let Some(()) = self.orders().as_mut().map(|orders| orders.push_back(order)) else { return false };
        self.has_orders.store(true, Ordering::SeqCst);
        self.bell.ring();
        true
    }

    /// Returns the orders that have been given.
    pub(super) fn take_orders(&self) -> VecDeque<Order> {
        if !self.has_orders.load(Ordering::SeqCst) {
            return VecDeque::new();
        }
        self.has_orders.store(false, Ordering::SeqCst);
        self.orders().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Says that the thread has ended. Orders that it has not taken are dropped.
    pub(super) fn close(&self) {
        *self.orders() = None;
    }
}

/// The state that the threads of a gateway and its handles share.
pub(super) struct Shared {
    pub(super) seats: Box<[Seat]>,
    pub(super) connections_max: usize,
    pub(super) stop: AtomicBool,
    pub(super) connections: AtomicUsize,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Shared {
    /// Makes all threads end.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.seats.iter().for_each(|seat| seat.bell.ring());
    }

    fn tell_all(&self, order: impl Fn() -> Order) {
        for seat in &self.seats {
            // A thread that has ended has no connection.
            seat.tell(order());
        }
    }
}
