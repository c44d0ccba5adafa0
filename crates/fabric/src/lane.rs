//! A lane: one coroutine's view of its worker's endpoint. Everything it awaits is counted here,
//! because coroutines interleave and only their own counters can tell what one transaction cost.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::ids::{LaneId, Nanos, Ticket};
use crate::prng::Prng;
use crate::round::buffer::RoundBuffer;
use crate::round::cost::{Cost, Tally};
use crate::round::{Completed, Round};
use crate::transport::{Capabilities, Posted};

/// One coroutine of a worker. Made by [`Worker::lane`](crate::Worker::lane).
pub struct Lane {
    endpoint: Rc<Endpoint>,
    id: LaneId,
    cost: Cell<Cost>,
    prng: Cell<Prng>,
}

impl Lane {
    pub(crate) fn new(endpoint: Rc<Endpoint>, id: LaneId, seed: u64) -> Lane {
        Lane { endpoint, id, cost: Cell::default(), prng: Cell::new(Prng::new(seed)) }
    }

    /// Returns this coroutine's view of another endpoint of its worker, in place of this lane.
    #[must_use]
    pub fn on(&self, endpoint: &Rc<Endpoint>) -> Lane {
        Lane {
            endpoint: endpoint.clone(),
            id: self.id,
            cost: Cell::new(self.cost.get()),
            prng: Cell::new(self.prng.get()),
        }
    }

    /// Returns the lane's number within the worker.
    #[must_use]
    pub fn id(&self) -> LaneId {
        self.id
    }

    /// The endpoint that it shares with the other lanes of its worker.
    #[must_use]
    pub fn endpoint(&self) -> &Rc<Endpoint> {
        &self.endpoint
    }

    /// What the backend promises.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.endpoint.capabilities()
    }

    /// A new round.
    #[inline]
    pub fn round(&self) -> Round<'_> {
        Round::new(&self.endpoint, self.endpoint.lease(self.id))
    }

    /// Posts a round **now**; await the result for one round trip. An error names the node, and
    /// leaves open which verbs have run. An empty round costs nothing.
    // Inlined, so that what it returns is built where it is kept: a copy would wait until its parts
    // have been stored.
    #[inline(always)]
    pub fn execute<'l>(&'l self, round: Round<'l>) -> Execute<'l> {
        let (endpoint, buffer) = round.into_buffer();
        debug_assert!(
            std::ptr::eq(endpoint, Rc::as_ptr(&self.endpoint)) && buffer.as_ref().is_none_or(|one| one.lane == self.id),
            "a round is executed by the lane that began it"
        );
        Execute { lane: self, state: self.dispatch(buffer), yielded: !self.endpoint.yields() }
    }

    #[inline(never)]
    fn dispatch(&self, buffer: Option<Box<RoundBuffer>>) -> State {
        let Some(buffer) = buffer else { return State::Finished };
        if buffer.outcome.is_err() || self.endpoint.has_unreported() {
            return self.dispatch_after_trouble(buffer);
        }
        self.send(buffer)
    }

    #[inline]
    fn send(&self, mut buffer: Box<RoundBuffer>) -> State {
        if buffer.verbs().is_empty() {
            return State::Done(buffer);
        }
        self.count(buffer.tally, true);
        buffer.sent = true;
        match self.endpoint.send(buffer) {
            Posted::Done(buffer) => State::Done(buffer),
            Posted::Pending(ticket) => State::Pending(ticket),
        }
    }

    #[cold]
    fn dispatch_after_trouble(&self, mut buffer: Box<RoundBuffer>) -> State {
        if buffer.outcome.is_ok() {
            match self.endpoint.unreported_failure(&buffer) {
                None => return self.send(buffer),
                Some(error) => buffer.outcome = Err(error),
            }
        }
        State::Done(buffer)
    }

    /// Posts a round that nobody awaits. Never fails here: a failure fails the next
    /// [`Lane::execute`] to that node, and is listed by [`Endpoint::failures`].
    #[inline]
    pub fn post(&self, round: Round<'_>) {
        let (_, Some(buffer)) = round.into_buffer() else { return };
        if buffer.verbs().is_empty() {
            return self.endpoint.recycle(buffer);
        }
        if buffer.outcome.is_ok() {
            self.count(buffer.tally, false);
        }
        self.endpoint.post(buffer);
    }

    /// Posts several rounds that nobody awaits, each when the one before it has completed without
    /// error. What others post meanwhile does not wait for them, as it would behind a fence
    /// ([`Round::after_completion`]). Names the last of them, if there is any.
    pub fn post_all<'l>(&'l self, rounds: impl IntoIterator<Item = Round<'l>>) -> Option<Ticket> {
        let mut rounds = rounds.into_iter().filter_map(|round| {
            let buffer = round.into_buffer().1?;
            if buffer.verbs().is_empty() {
                self.endpoint.recycle(buffer);
                return None;
            }
            self.count(buffer.tally, false);
            Some(buffer)
        });
        let first = rounds.next()?;
        let mut last = first.ticket();
        rounds.for_each(|next| {
            last = next.ticket();
            self.endpoint.chain(first.ticket(), next);
        });
        self.endpoint.post(first);
        Some(last)
    }

    /// Whether a round of [`Lane::post_all`] still waits for one before it, and has not been
    /// posted.
    #[must_use]
    pub fn is_held_back(&self, round: Ticket) -> bool {
        self.endpoint.is_chained(round)
    }

    /// Waits until a round of [`Lane::post_all`] is not held back any more: it has been posted, or
    /// a round before it has failed.
    pub fn until_posted(&self, round: Ticket) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(move |_| {
            if !self.is_held_back(round) {
                return Poll::Ready(());
            }
            self.endpoint.wait_for_background(self.id);
            Poll::Pending
        })
    }

    /// Posts a round that nobody awaits, when that other one, if it is still held back, has
    /// completed without error.
    pub fn post_behind(&self, other: Ticket, round: Round<'_>) {
        if !self.is_held_back(other) {
            return self.post(round);
        }
        let (_, Some(buffer)) = round.into_buffer() else { return };
        if buffer.verbs().is_empty() {
            return self.endpoint.recycle(buffer);
        }
        self.count(buffer.tally, false);
        self.endpoint.chain(other, buffer);
    }

    /// Whether memory nodes may hold back the answers to rounds that no coroutine awaits, until
    /// the next round or for about a millisecond.
    #[must_use]
    pub fn may_hold_back(&self) -> bool {
        self.endpoint.may_hold_back()
    }

    #[inline]
    fn count(&self, tally: Tally, awaited: bool) {
        let mut total = self.cost.get();
        tally.add_to(&mut total, awaited);
        self.cost.set(total);
    }

    /// What this lane has spent since it was made. The cost of a transaction is the difference of
    /// two values.
    #[inline]
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.cost.get()
    }

    /// Rounds of this lane that nobody awaits and that have not completed.
    #[inline]
    #[must_use]
    pub fn background(&self) -> u32 {
        self.endpoint.background(self.id)
    }

    /// Background rounds of this lane that have failed, ever.
    #[inline]
    #[must_use]
    pub fn background_failures(&self) -> u32 {
        self.endpoint.background_failures(self.id)
    }

    /// The time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.endpoint.now()
    }

    /// This coroutine has come to a place with a name: see [`sim`](crate::sim). Costs nothing
    /// elsewhere.
    #[inline]
    pub fn probe(&self, name: &'static str) {
        self.endpoint.probe(self.id, name);
    }

    /// The next number of this lane's random stream.
    #[inline]
    pub fn random(&self) -> u64 {
        let mut prng = self.prng.get();
        let value = prng.next_u64();
        self.prng.set(prng);
        value
    }

    /// Lets the worker's other coroutines run once. For loops whose rounds complete at once, where
    /// nothing else would.
    pub fn yield_now(&self) -> impl Future<Output = ()> + '_ {
        let mut yielded = false;
        std::future::poll_fn(move |_| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.endpoint.make_ready(self.id);
            Poll::Pending
        })
    }

    /// Lets the others run for at least `time`, and at least once even if that is 0.
    pub fn sleep(&self, time: Nanos) -> impl Future<Output = ()> + '_ {
        Sleep { lane: self, deadline: self.now().saturating_add(time), registered: false }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("id", &self.id).field("cost", &self.cost.get()).finish_non_exhaustive()
    }
}

struct Sleep<'l> {
    lane: &'l Lane,
    deadline: Nanos,
    registered: bool,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.registered && self.lane.now() >= self.deadline {
            return Poll::Ready(());
        }
        if !self.registered {
            self.registered = true;
            self.lane.endpoint.wake_at(self.deadline, self.lane.id);
        }
        Poll::Pending
    }
}

#[derive(Debug)]
enum State {
    /// It has come back, or was never sent; the buffer has the outcome.
    Done(Box<RoundBuffer>),
    Pending(Ticket),
    Finished,
}

/// A round that has been posted. Await it for its answers. Dropping it leaves the round to run:
/// whether its verbs have taken effect is then unknown. It must be awaited by the coroutine of its
/// own lane, and it wakes that coroutine rather than a waker: no combinator that polls only what
/// its own wakers named may stand in between.
#[must_use = "await it, or hand it over with `then_post`; to send a round that nobody awaits use `Lane::post`"]
#[derive(Debug)]
pub struct Execute<'l> {
    lane: &'l Lane,
    state: State,
    yielded: bool,
}

impl<'l> Execute<'l> {
    /// Whether anything was sent. If not, the round has failed and none of its verbs will ever run.
    #[inline]
    #[must_use]
    pub fn was_sent(&self) -> bool {
        !matches!(&self.state, State::Done(buffer) if !buffer.sent)
    }

    /// Gives up waiting, and has `next` posted in the background once this round has completed
    /// without error. If it fails, `next` is not sent and the failure is a background failure.
    /// Plain code: callable from `Drop`.
    pub fn then_post(self, next: Round<'l>) {
        self.then_post_all([next]);
    }

    /// Posts several rounds after this one, each when the one before it has completed without
    /// error.
    pub fn then_post_all(mut self, rounds: impl IntoIterator<Item = Round<'l>>) {
        let endpoint = &self.lane.endpoint;
        let rounds = rounds.into_iter().filter_map(|next| {
            let buffer = next.into_buffer().1?;
            self.lane.count(buffer.tally, false);
            Some(buffer)
        });
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Done(buffer) => {
                rounds.for_each(|next| endpoint.continue_with(buffer.ticket(), next));
                endpoint.finish_abandoned(buffer);
            }
            State::Pending(ticket) => {
                rounds.for_each(|next| endpoint.chain(ticket, next));
                endpoint.abandon(ticket, self.lane.id);
            }
            State::Finished => {}
        }
    }
}

impl<'l> Future for Execute<'l> {
    type Output = Result<Completed<'l>, FabricError>;

    // Inlined for the same reason as `Lane::execute`.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match this.completed() {
            None => Poll::Pending,
            Some(buffer) if buffer.outcome.is_ok() => Poll::Ready(Ok(Completed::new(&this.lane.endpoint, buffer))),
            Some(buffer) => Poll::Ready(Err(this.failed(buffer))),
        }
    }
}

impl Execute<'_> {
    /// The round's buffer, once it has completed and the other coroutines have had their turn.
    #[inline(never)]
    fn completed(&mut self) -> Option<Box<RoundBuffer>> {
        if let State::Pending(ticket) = self.state {
            self.state = State::Done(self.lane.endpoint.take(ticket)?);
            self.yielded = true;
        }
        if !self.yielded {
            self.yielded = true;
            self.lane.endpoint.make_ready(self.lane.id);
            return None;
        }
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Done(buffer) => Some(buffer),
            State::Pending(..) | State::Finished => None,
        }
    }

    #[cold]
    fn failed(&self, buffer: Box<RoundBuffer>) -> FabricError {
        let error = buffer.outcome.expect_err("a round that has failed says why");
        self.lane.endpoint.recycle(buffer);
        error
    }
}

impl Drop for Execute<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Done(buffer) => self.lane.endpoint.recycle(buffer),
            State::Pending(ticket) => self.lane.endpoint.abandon(ticket, self.lane.id),
            State::Finished => {}
        }
    }
}
