//! An endpoint: one worker's connection to all memory nodes. This code is common to all backends.
//!
//! An endpoint leases buffers, posts background rounds (rounds that no coroutine awaits), and keeps
//! the timers of its lanes. It remembers which background rounds failed until it has reported them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use crate::address::{Address, NodeId};
use crate::error::FabricError;
use crate::ids::{LaneId, Nanos, Ticket};
use crate::limits::LANES_MAX;
use crate::poller::Poller;
use crate::probes::Phase;
use crate::ready::ReadySet;
use crate::round::buffer::{Fill, RoundBuffer};
use crate::round::cost::Cost;
use crate::transport::{BeforeWait, Capabilities, Posted, Transport};

/// A background round that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackgroundFailure {
    /// The lane that posted the round.
    pub lane: LaneId,
    /// Why the round failed.
    pub error: FabricError,
}

/// What is called when a round has completed or failed: a [`Listener`](crate::Listener).
pub(crate) trait Hear {
    fn hear(self: Rc<Self>, tag: u64, endpoint: &Endpoint, round: &RoundBuffer);
}

/// A round that has a listener.
struct Listened {
    round: Ticket,
    /// Whether the transport takes the round for one that a coroutine awaits.
    is_awaited: bool,
    listener: Rc<dyn Hear>,
    tag: u64,
}

/// One connection of a worker to all memory nodes. [`Worker::connect`](crate::Worker::connect)
/// makes it.
pub struct Endpoint {
    transport: Box<dyn Transport>,
    ready: Rc<ReadySet>,
    /// A buffer in front of the pool: the common lease and return then touch no `RefCell`.
    spare: Cell<Option<Box<RoundBuffer>>>,
    pool: RefCell<Vec<Box<RoundBuffer>>>,
    /// Buffers made so far, whether they are in the pool or in use.
    buffers: Cell<usize>,
    timers: RefCell<Vec<(Nanos, LaneId)>>,
    /// Rounds to post when the round with the given ticket has completed without error.
    continuations: RefCell<Vec<(Ticket, Box<RoundBuffer>)>>,
    /// How continuations are filled in before they are posted, by their tickets.
    fills: RefCell<Vec<(Ticket, Fill)>>,
    /// The rounds that have listeners.
    listened: RefCell<Vec<Listened>>,
    /// How many of these rounds the endpoint awaits.
    awaited: Cell<usize>,
    /// What listeners have posted for lanes, until the lanes count it.
    uncounted: RefCell<Vec<(LaneId, Cost)>>,
    has_uncounted: Cell<bool>,
    /// Background rounds of each lane that have not completed.
    background: [Cell<u32>; LANES_MAX],
    /// Lanes that go on when one of their background rounds has completed, one bit each.
    waiting: Cell<u64>,
    failures: RefCell<Vec<BackgroundFailure>>,
    /// Background rounds of each lane that have ever failed.
    failed: [Cell<u32>; LANES_MAX],
    /// Nodes with a failure that no `execute` has reported yet, one bit each.
    unreported: Cell<u64>,
    next_serial: Cell<u64>,
    yields: Cell<bool>,
    /// Whether the poller that the worker's thread waits in watches this endpoint.
    watched: Cell<bool>,
    probes: bool,
}

impl Endpoint {
    pub(crate) fn new(transport: Box<dyn Transport>, ready: Rc<ReadySet>) -> Endpoint {
        Endpoint {
            probes: transport.probes(),
            transport,
            ready,
            spare: Cell::new(None),
            pool: RefCell::default(),
            buffers: Cell::new(0),
            // A lane may have several timers.
            timers: RefCell::new(Vec::with_capacity(2 * LANES_MAX)),
            continuations: RefCell::default(),
            fills: RefCell::default(),
            listened: RefCell::default(),
            awaited: Cell::new(0),
            uncounted: RefCell::default(),
            has_uncounted: Cell::new(false),
            background: [const { Cell::new(0) }; LANES_MAX],
            waiting: Cell::new(0),
            failures: RefCell::default(),
            failed: [const { Cell::new(0) }; LANES_MAX],
            unreported: Cell::new(0),
            next_serial: Cell::new(1),
            yields: Cell::new(false),
            watched: Cell::new(false),
        }
    }

    /// Sets whether a lane lets the other coroutines run after every round, even where the round
    /// completed at once. It is off by default. Tests turn it on.
    pub fn yield_after_rounds(&self, yields: bool) {
        self.yields.set(yields);
    }

    pub(crate) fn yields(&self) -> bool {
        self.yields.get()
    }

    pub(crate) fn may_hold_back(&self) -> bool {
        self.transport.may_hold_back()
    }

    pub(crate) fn hurry(&self) {
        self.transport.hurry();
    }

    pub(crate) fn idle_waker(&self) -> Option<Waker> {
        self.transport.idle_waker()
    }

    /// Returns what the backend promises beyond the contract.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    /// Zeroes memory and gives it back to the system: see [`Transport::give_back`].
    pub(crate) fn give_back(&self, at: Address, bytes: u64) -> Result<bool, FabricError> {
        self.transport.give_back(at, bytes)
    }

    /// Returns the time of this endpoint's clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.transport.now()
    }

    /// Returns the time of this machine's clock, which may differ from the clocks of other
    /// machines. Leases and timestamps use it.
    #[must_use]
    pub fn clock(&self) -> Nanos {
        self.transport.clock()
    }

    /// Charges `time` of CPU to the coroutine that runs, for work that a simulator does not see
    /// otherwise. A simulated core is busy for that time.
    #[inline]
    pub fn charge(&self, time: Nanos) {
        self.transport.charge(time);
    }

    #[inline]
    pub(crate) fn work(&self, phase: Phase, records: usize) {
        if self.probes && records > 0 {
            self.transport.work(phase, records);
        }
    }

    #[inline]
    pub(crate) fn probe(&self, lane: LaneId, name: &'static str) {
        if self.probes {
            self.transport.probe(lane, name);
        }
    }

    /// Returns the number of rounds begun so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.next_serial.get() - 1
    }

    /// Returns the background rounds that have failed since the last call.
    pub fn failures(&self) -> Vec<BackgroundFailure> {
        self.unreported.set(0);
        self.failures.take()
    }

    /// Returns whether a background round of this endpoint has ever failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.iter().any(|failed| failed.get() > 0)
    }

    /// Leases a buffer for the next round of a lane.
    #[inline]
    pub(crate) fn lease(&self, lane: LaneId) -> Box<RoundBuffer> {
        let mut buffer = self.spare.take().unwrap_or_else(|| self.buffer_from_pool());
        let serial = self.next_serial.get();
        self.next_serial.set(serial + 1);
        buffer.reset(lane, serial);
        buffer
    }

    #[cold]
    fn buffer_from_pool(&self) -> Box<RoundBuffer> {
        let mut pool = self.pool.borrow_mut();
        pool.pop().unwrap_or_else(|| {
            // Reserve room in the pool for all buffers now, because giving one back must not
            // allocate.
            self.buffers.set(self.buffers.get() + 1);
            pool.reserve(self.buffers.get());
            RoundBuffer::new()
        })
    }

    #[inline]
    pub(crate) fn recycle(&self, buffer: Box<RoundBuffer>) {
        if let Some(former) = self.spare.replace(Some(buffer)) {
            self.pool.borrow_mut().push(former);
        }
    }

    #[inline]
    pub(crate) fn send(&self, buffer: Box<RoundBuffer>) -> Posted {
        self.transport.post(buffer)
    }

    pub(crate) fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.transport.take(ticket)
    }

    /// Whether a background round has failed and no round has reported it yet.
    #[inline]
    pub(crate) fn has_unreported(&self) -> bool {
        self.unreported.get() != 0
    }

    /// Returns the failure of an earlier background round, if a new round to the same node must
    /// report it.
    pub(crate) fn unreported_failure(&self, buffer: &RoundBuffer) -> Option<FabricError> {
        let node = buffer
            .verbs()
            .iter()
            .filter_map(|verb| verb.node())
            .find(|node| self.unreported.get() & bit(*node) != 0)?;
        self.unreported.set(self.unreported.get() & !bit(node));
        self.failures.borrow().iter().rev().find(|failure| failure.error.node == node).map(|failure| failure.error)
    }

    /// Sends a round that no coroutine will await.
    #[inline]
    pub(crate) fn post(&self, mut buffer: Box<RoundBuffer>) {
        buffer.background = true;
        self.count_background(buffer.lane, 1);
        if buffer.outcome.is_err() {
            return self.reclaim(buffer); // it was wrong from the start, and is reported as any other failure
        }
        match self.transport.post(buffer) {
            Posted::Done(buffer) => self.reclaim(buffer),
            Posted::Pending(ticket) => {
                if let Some(buffer) = self.transport.orphan(ticket) {
                    self.reclaim(buffer);
                }
            }
        }
    }

    /// Makes a round a background round: its coroutine does not await it any more.
    pub(crate) fn abandon(&self, ticket: Ticket, lane: LaneId) {
        self.count_background(lane, 1);
        if let Some(buffer) = self.transport.orphan(ticket) {
            self.reclaim(buffer);
        }
    }

    /// Posts `next` when the round with this ticket has completed without error. That round is
    /// under way or about to be posted.
    pub(crate) fn chain(&self, after: Ticket, mut next: Box<RoundBuffer>) {
        next.background = true;
        let lane = next.lane;
        // A transport that posts rounds by itself does not fill them in. So these wait here, and so
        // do all that are chained meanwhile, in their order.
        let chained = if self.has_fills() { Err(next) } else { self.transport.chain(after, next) };
        match chained {
            Ok(()) => self.count_background(lane, 1),
            Err(next) => self.continue_with(after, next),
        }
    }

    /// Makes a lane go on when one of its background rounds has completed.
    pub(crate) fn wait_for_background(&self, lane: LaneId) {
        self.waiting.set(self.waiting.get() | 1 << lane.0);
    }

    /// Whether this round still waits for another round and has not been posted.
    pub(crate) fn is_chained(&self, ticket: Ticket) -> bool {
        self.continuations.borrow().iter().any(|(_, next)| next.ticket() == ticket) || self.transport.is_chained(ticket)
    }

    /// Posts `next` when the round with this ticket has come back to this endpoint without error.
    pub(crate) fn continue_with(&self, after: Ticket, next: Box<RoundBuffer>) {
        self.count_background(next.lane, 1);
        self.continuations.borrow_mut().push((after, next));
    }

    /// Notes how a round is filled in when the round before it has completed.
    #[cold]
    pub(crate) fn fill_later(&self, round: Ticket, fill: Fill) {
        self.fills.borrow_mut().push((round, fill));
    }

    /// Whether any of the rounds that are not posted yet is to be filled in.
    pub(crate) fn has_fills(&self) -> bool {
        !self.fills.borrow().is_empty()
    }

    /// Forgets how a round is filled in, because it is not sent.
    pub(crate) fn forget_fill(&self, round: Ticket) {
        if self.has_fills() {
            self.fills.borrow_mut().retain(|(known, _)| *known != round);
        }
    }

    /// Fills a round in, if it is to be filled in, from what the round before it has brought.
    fn fill(&self, before: &RoundBuffer, next: &mut RoundBuffer) {
        let mut fills = self.fills.borrow_mut();
        let Some(at) = fills.iter().position(|(round, _)| *round == next.ticket()) else { return };
        let (_, fill) = fills.swap_remove(at);
        drop(fills);
        if before.outcome.is_ok() {
            fill(before, next);
        }
    }

    /// Takes back the buffer of a background round that has completed.
    fn reclaim(&self, buffer: Box<RoundBuffer>) {
        self.count_background(buffer.lane, -1);
        let waiting = self.waiting.get();
        if waiting & 1 << buffer.lane.0 != 0 {
            self.waiting.set(waiting & !(1 << buffer.lane.0));
            self.make_ready(buffer.lane);
        }
        let outcome = buffer.outcome;
        if let (Err(error), true) = (outcome, buffer.background) {
            self.failed(BackgroundFailure { lane: buffer.lane, error });
        }
        if !self.continuations.borrow().is_empty() {
            self.run_continuations(&buffer);
        }
        self.tell_listener(&buffer);
        self.recycle(buffer);
    }

    /// Has a listener called when a round has completed. The round has not been posted yet, or is
    /// under way.
    pub(crate) fn listen(&self, round: Ticket, is_awaited: bool, listener: Rc<dyn Hear>, tag: u64) {
        self.awaited.set(self.awaited.get() + usize::from(is_awaited));
        self.listened.borrow_mut().push(Listened { round, is_awaited, listener, tag });
    }

    /// Calls the listener of a round, if it has one.
    #[inline]
    fn tell_listener(&self, round: &RoundBuffer) {
        if !self.listened.borrow().is_empty() {
            self.tell_listener_of(round);
        }
    }

    #[cold]
    fn tell_listener_of(&self, round: &RoundBuffer) {
        let at = self.listened.borrow().iter().position(|one| one.round == round.ticket());
        if let Some(at) = at {
            let one = self.listened.borrow_mut().swap_remove(at);
            self.awaited.set(self.awaited.get() - usize::from(one.is_awaited));
            one.listener.hear(one.tag, self, round);
        }
    }

    /// Calls the listener of a round that has completed at once, or was not sent.
    pub(crate) fn tell(&self, buffer: Box<RoundBuffer>, listener: Rc<dyn Hear>, tag: u64) {
        listener.hear(tag, self, &buffer);
        self.recycle(buffer);
    }

    /// Counts a round that a listener posts. The lane adds it to its cost later.
    pub(crate) fn count_for_lane(&self, buffer: &RoundBuffer, awaited: bool) {
        let mut owed = self.uncounted.borrow_mut();
        let at = owed.iter().position(|(lane, _)| *lane == buffer.lane).unwrap_or_else(|| {
            owed.push((buffer.lane, Cost::default()));
            owed.len() - 1
        });
        buffer.tally.add_to(&mut owed[at].1, awaited);
        self.has_uncounted.set(true);
    }

    /// Takes back the buffers of the rounds that have completed and that this endpoint has awaited
    /// for their listeners.
    #[cold]
    fn hear_awaited(&self) {
        let mut next = 0;
        loop {
            let round = self.listened.borrow().get(next).map(|one| (one.round, one.is_awaited));
            let Some((round, is_awaited)) = round else { return };
            match if is_awaited { self.take(round) } else { None } {
                // Another one may have its place in the list now.
                Some(buffer) => self.reclaim(buffer),
                None => next += 1,
            }
        }
    }

    /// Notes that the endpoint awaits a round, for its listener.
    pub(crate) fn await_for(&self, round: Ticket, lane: LaneId, listener: Rc<dyn Hear>, tag: u64) {
        self.count_background(lane, 1);
        self.listen(round, true, listener, tag);
    }

    /// Whether listeners have posted rounds that no lane has counted.
    #[inline]
    pub(crate) fn has_uncounted(&self) -> bool {
        self.has_uncounted.get()
    }

    /// Returns what listeners have posted for a lane since this was last asked.
    #[cold]
    pub(crate) fn take_uncounted(&self, lane: LaneId) -> Cost {
        let mut owed = self.uncounted.borrow_mut();
        let at = owed.iter().position(|(known, _)| *known == lane);
        let cost = at.map_or(Cost::default(), |at| owed.swap_remove(at).1);
        self.has_uncounted.set(!owed.is_empty());
        cost
    }

    /// Takes back the buffer of a round that has completed, and posts its continuations, which were
    /// given to it after it was posted.
    #[cold]
    pub(crate) fn finish_abandoned(&self, buffer: Box<RoundBuffer>) {
        self.run_continuations(&buffer);
        self.recycle(buffer);
    }

    /// Posts the first continuation of a round. The others become continuations of that one.
    #[cold]
    fn run_continuations(&self, done: &RoundBuffer) {
        let (completed, outcome) = (done.ticket(), done.outcome);
        let mut continuations = self.continuations.borrow_mut();
        let Some(at) = continuations.iter().position(|(after, _)| *after == completed) else { return };
        let (_, mut next) = continuations.remove(at);
        for (after, _) in continuations.iter_mut().filter(|(after, _)| *after == completed) {
            *after = next.ticket();
        }
        drop(continuations);
        self.count_background(next.lane, -1);
        if self.has_fills() {
            self.fill(done, &mut next);
        }
        if let Err(error) = outcome {
            self.failed(BackgroundFailure { lane: next.lane, error });
        } else if !next.verbs().is_empty() {
            return self.post(next);
        }
        next.outcome = outcome;
        self.run_continuations(&next);
        self.tell_listener(&next);
        self.recycle(next);
    }

    #[cold]
    pub(crate) fn failed(&self, failure: BackgroundFailure) {
        tracing::warn!(lane = failure.lane.0, error = %failure.error, "a background round failed");
        self.unreported.set(self.unreported.get() | bit(failure.error.node));
        let count = &self.failed[failure.lane.0 as usize];
        count.set(count.get().saturating_add(1));
        let mut failures = self.failures.borrow_mut();
        // The list must not grow without bound if a worker never asks for it. The newest failures
        // say what is wrong now.
        if failures.len() == 1024 {
            failures.remove(0);
        }
        failures.push(failure);
    }

    fn count_background(&self, lane: LaneId, change: i32) {
        let count = &self.background[lane.0 as usize];
        count.set(count.get().wrapping_add_signed(change));
    }

    /// Returns the number of background rounds of a lane that have not completed.
    #[inline]
    #[must_use]
    pub fn background(&self, lane: LaneId) -> u32 {
        self.background[lane.0 as usize].get()
    }

    /// Returns the number of background rounds of a lane that have ever failed.
    #[inline]
    pub(crate) fn background_failures(&self, lane: LaneId) -> u32 {
        self.failed[lane.0 as usize].get()
    }

    pub(crate) fn wake_at(&self, deadline: Nanos, lane: LaneId) {
        self.timers.borrow_mut().push((deadline, lane));
    }

    pub(crate) fn make_ready(&self, lane: LaneId) {
        self.ready.set(lane);
    }

    /// Lets the transport make progress, and fires timers that are due.
    pub(crate) fn progress(&self) {
        self.transport.poll(&mut |lane| self.ready.set(lane), &mut |buffer| self.reclaim(buffer));
        if self.awaited.get() > 0 {
            self.hear_awaited();
        }
        let mut timers = self.timers.borrow_mut();
        if !timers.is_empty() {
            let now = self.now();
            timers.retain(|(deadline, lane)| {
                let due = *deadline <= now;
                if due {
                    self.ready.set(*lane);
                }
                !due
            });
        }
    }

    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        self.timers.borrow().iter().map(|(deadline, _)| *deadline).min()
    }

    pub(crate) fn idle(&self, until: Option<Nanos>) {
        self.transport.idle(until);
    }

    /// Prepares for a wait in this poller: see [`Transport::before_wait`].
    pub(crate) fn before_wait(&self, poller: &Poller, token: u64) -> BeforeWait {
        if !self.watched.get() {
            match self.transport.watch_in(poller, token) {
                Ok(()) => self.watched.set(true),
                Err(error) => {
                    tracing::warn!(%error, "a poller cannot watch an endpoint yet");
                    return BeforeWait::LookAgain;
                }
            }
        }
        self.transport.before_wait()
    }

    /// Ends what [`Endpoint::before_wait`] has begun.
    pub(crate) fn after_wait(&self) {
        self.transport.after_wait();
    }
}

fn bit(node: NodeId) -> u64 {
    1 << (node.0 % 64)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("capabilities", &self.capabilities()).finish_non_exhaustive()
    }
}
