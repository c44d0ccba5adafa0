//! The lanes of a thread: coroutines of its worker, each of which runs one batch at a time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::Poll;

use remora::Session;
use remora_fabric::{LaneId, catch_panic};

use super::{Handler, Next, READ_BYTES};

/// What a lane works on: bytes of one connection. A thread has one for each lane, and uses its
/// buffers again and again.
pub(super) struct Batch<C> {
    /// The number of the lane.
    pub(super) lane: usize,
    /// The place of the connection.
    pub(super) place: u32,
    /// The state of the connection. It is there while the batch is under way.
    pub(super) state: Option<C>,
    /// What has been read, of which `length` bytes count.
    pub(super) input: Box<[u8]>,
    pub(super) length: usize,
    /// The connection's unfinished input, before the lane that of former batches.
    pub(super) rest: Vec<u8>,
    /// Bytes of memory that the unfinished input had before the lane.
    pub(super) held: usize,
    pub(super) output: Vec<u8>,
    /// How the connection goes on. `None` if the handler has panicked.
    pub(super) next: Option<Next>,
}

impl<C> Batch<C> {
    pub(super) fn new(lane: usize) -> Box<Batch<C>> {
        Box::new(Batch {
            lane,
            place: 0,
            state: None,
            input: vec![0; READ_BYTES].into(),
            length: 0,
            rest: Vec::new(),
            held: 0,
            output: Vec::new(),
            next: None,
        })
    }

    /// Runs the handler over the unfinished input and what has been read, and keeps what it leaves.
    async fn run<H: Handler<Connection = C>>(&mut self, session: &mut Session, handler: &H) {
        let Some(state) = &mut self.state else { return };
        let read = &mut self.input[..self.length];
        let is_new = self.rest.is_empty();
        let bytes = if is_new {
            read
        } else {
            append(&mut self.rest, read);
            &mut self.rest[..]
        };
        let all = bytes.len();
        let mut input = &mut *bytes;
        let served = catch_panic(handler.serve(session, state, &mut input, &mut self.output)).await;
        let left = input.len();
        assert!(left <= all, "a handler takes bytes from the front of its input");
        if is_new {
            self.rest = self.input[self.length - left..self.length].to_vec();
        } else {
            self.rest.drain(..all - left);
            if self.rest.capacity() > 2 * left {
                self.rest.shrink_to_fit();
            }
        }
        self.next = served.ok();
    }
}

/// Appends to a buffer. It grows by a quarter, because there may be thousands of long ones.
fn append(buffer: &mut Vec<u8>, bytes: &[u8]) {
    if buffer.capacity() - buffer.len() < bytes.len() {
        buffer.reserve_exact(bytes.len().max(buffer.len() / 4));
    }
    buffer.extend_from_slice(bytes);
}

/// The lanes of a thread, and the batches that they have done.
pub(super) struct Lanes<C> {
    lanes: Box<[Lane<C>]>,
    done: RefCell<Vec<Box<Batch<C>>>>,
    ends: Cell<bool>,
}

struct Lane<C> {
    id: Cell<Option<LaneId>>,
    batch: Cell<Option<Box<Batch<C>>>>,
}

impl<C> Lanes<C> {
    pub(super) fn new(count: usize) -> Lanes<C> {
        let lane = |_| Lane { id: Cell::new(None), batch: Cell::new(None) };
        Lanes {
            lanes: (0..count).map(lane).collect(),
            done: RefCell::new(Vec::with_capacity(count)),
            ends: Cell::new(false),
        }
    }

    /// The body of a lane: runs batches until [`Lanes::end`].
    pub(super) async fn run<H: Handler<Connection = C>>(&self, number: usize, session: &mut Session, handler: &H) {
        let lane = &self.lanes[number];
        lane.id.set(Some(session.lane().id()));
        handler.begin(session);
        loop {
            let next = poll_fn(|_| match lane.batch.take() {
                None if self.ends.get() => Poll::Ready(None),
                None => Poll::Pending,
                batch => Poll::Ready(batch),
            });
            let Some(mut batch) = next.await else { return };
            batch.run(session, handler).await;
            self.done.borrow_mut().push(batch);
        }
    }

    /// Gives its lane a batch. The caller makes the returned lane ready.
    pub(super) fn hand_over(&self, batch: Box<Batch<C>>) -> Option<LaneId> {
        let lane = &self.lanes[batch.lane];
        let former = lane.batch.replace(Some(batch));
        assert!(former.is_none(), "a lane has one batch at a time");
        lane.id.get()
    }

    /// Returns a batch that is done.
    pub(super) fn done(&self) -> Option<Box<Batch<C>>> {
        self.done.borrow_mut().pop()
    }

    /// Makes all lanes end when their batches are done. The caller makes the returned lanes ready.
    pub(super) fn end(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.ends.set(true);
        self.lanes.iter().filter_map(|lane| lane.id.get())
    }
}
