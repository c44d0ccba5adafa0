//! A lane: one coroutine's view of its worker's endpoint. The lane counts everything that its
//! coroutine awaits. Coroutines interleave, so only counters of their own can tell what one
//! transaction cost.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::ids::{LaneId, Nanos, Ticket};
use crate::listener::Listener;
use crate::prng::Prng;
use crate::probes::Phase;
use crate::round::buffer::RoundBuffer;
use crate::round::cost::{Cost, Tally};
use crate::round::{Completed, Round};
use crate::transport::{Capabilities, Posted};

/// The view that one coroutine of a worker has of its endpoint.
/// [`Worker::lane`](crate::Worker::lane) makes it.
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

    /// Returns this coroutine's view of another endpoint of its worker. It takes the place of this
    /// lane.
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

    /// Returns the endpoint, which the lane shares with the other lanes of its worker.
    #[must_use]
    pub fn endpoint(&self) -> &Rc<Endpoint> {
        &self.endpoint
    }

    /// Returns what the backend promises beyond the contract.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.endpoint.capabilities()
    }

    /// Zeroes `bytes` bytes of a memory node that nothing uses, and gives the node's memory for
    /// them back to the system. A verb that reaches the bytes all the same finds each word as it
    /// was before, or zero.
    ///
    /// Returns false if this client cannot do that. The bytes may then be zero in part. Only a
    /// client in the process of the memory node can, and only if the node did not take its memory
    /// at its start.
    pub fn give_back(&self, at: Address, bytes: u64) -> Result<bool, FabricError> {
        self.endpoint.give_back(at, bytes)
    }

    /// Begins a new round.
    #[inline]
    pub fn round(&self) -> Round<'_> {
        Round::new(&self.endpoint, self.endpoint.lease(self.id))
    }

    /// Posts a round **now**. Awaiting the result takes one round trip. An error names the node,
    /// and leaves open which verbs have run. An empty round costs nothing.
    // This is inlined so that the result is built where the caller keeps it. A copy would wait
    // until all its parts have been stored.
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

    /// Posts a round **now**, whose answers several coroutines may wait for. A listener gets them
    /// when the round has completed, whichever coroutines run or are dropped meanwhile. It may be
    /// called before this function returns. The lane counts the round as one that it awaits, and
    /// counts what the listener posts. A failure is reported to the listener only.
    pub fn execute_for<L: Listener + 'static>(&self, round: Round<'_>, listener: &Rc<L>, tag: u64) {
        match self.dispatch(round.into_buffer().1) {
            State::Done(buffer) => self.endpoint.tell(buffer, listener.clone(), tag),
            State::Pending(round) => self.endpoint.await_for(round, self.id, listener.clone(), tag),
            State::Finished => {}
        }
    }

    /// Posts a round in the background: no coroutine awaits it. The call itself never fails. If the
    /// round fails, the next [`Lane::execute`] to that node fails, and [`Endpoint::failures`] lists
    /// the failure.
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

    /// Posts several rounds in the background, each when the one before it has completed without
    /// error. Returns the ticket of the last one, if there is any. Rounds that are posted meanwhile
    /// do not wait for these, as they would behind a fence ([`Round::after_completion`]).
    pub fn post_all<'l>(&'l self, rounds: impl IntoIterator<Item = Round<'l>>) -> Option<Ticket> {
        self.post_chain(rounds, |_| ())
    }

    /// Posts several rounds in the background, as [`Lane::post_all`] does. A listener is called
    /// when the last one has completed, or has failed because one of them has.
    pub fn post_all_for<'l, L: Listener + 'static>(
        &'l self,
        rounds: impl IntoIterator<Item = Round<'l>>,
        listener: &Rc<L>,
        tag: u64,
    ) {
        self.post_chain(rounds, |last| self.endpoint.listen(last, false, listener.clone(), tag));
    }

    /// Posts rounds one after the other. Calls `ends_with` with the ticket of the last one, before
    /// it posts the first.
    fn post_chain<'l>(
        &'l self,
        rounds: impl IntoIterator<Item = Round<'l>>,
        ends_with: impl FnOnce(Ticket),
    ) -> Option<Ticket> {
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
        ends_with(last);
        self.endpoint.post(first);
        Some(last)
    }

    /// Whether a round of [`Lane::post_all`] is held back: it waits for a round before it and has
    /// not been posted.
    #[must_use]
    pub fn is_held_back(&self, round: Ticket) -> bool {
        self.endpoint.is_chained(round)
    }

    /// Waits until a round of [`Lane::post_all`] is no longer held back: it has been posted, or a
    /// round before it has failed.
    pub fn until_posted(&self, round: Ticket) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(move |_| {
            if !self.is_held_back(round) {
                return Poll::Ready(());
            }
            self.endpoint.wait_for_background(self.id);
            Poll::Pending
        })
    }

    /// Posts a round in the background. If the round `other` is still held back, it is posted when
    /// `other` has completed without error.
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

    /// Whether memory nodes may hold back the answers to background rounds until the next round, or
    /// for about a millisecond.
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

    /// Returns what this lane has spent since it was made. The cost of a transaction is the
    /// difference of two such values.
    #[inline]
    #[must_use]
    pub fn cost(&self) -> Cost {
        if self.endpoint.has_uncounted() {
            self.count_of_listeners();
        }
        self.cost.get()
    }

    #[cold]
    fn count_of_listeners(&self) {
        let mut total = self.cost.get();
        total.add(&self.endpoint.take_uncounted(self.id));
        self.cost.set(total);
    }

    /// Returns the number of this lane's background rounds that have not completed.
    #[inline]
    #[must_use]
    pub fn background(&self) -> u32 {
        self.endpoint.background(self.id)
    }

    /// Makes [`Lane::background`] fall as soon as it can, because this coroutine waits for it. A
    /// backend may otherwise learn of background rounds from the next round, and ask for them if
    /// none comes soon. Call it before each look.
    #[inline]
    pub fn hurry(&self) {
        self.endpoint.hurry();
    }

    /// Returns the number of this lane's background rounds that have ever failed.
    #[inline]
    #[must_use]
    pub fn background_failures(&self) -> u32 {
        self.endpoint.background_failures(self.id)
    }

    /// Returns the time of the endpoint's clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.endpoint.now()
    }

    /// Tells a simulation that this coroutine has come to a place with a name: see
    /// [`sim`](crate::sim). It costs nothing on other backends.
    #[inline]
    pub fn probe(&self, name: &'static str) {
        self.endpoint.probe(self.id, name);
    }

    /// Tells a simulation that this client's software has done a phase of a transaction for
    /// `records` records. A simulated core is busy meanwhile ([`sim::Cpu`](crate::sim::Cpu)). It
    /// costs nothing on other backends.
    #[inline]
    pub fn work(&self, phase: Phase, records: usize) {
        self.endpoint.work(phase, records);
    }

    /// Draws the next number of this lane's random stream.
    #[inline]
    pub fn random(&self) -> u64 {
        let mut prng = self.prng.get();
        let value = prng.next_u64();
        self.prng.set(prng);
        value
    }

    /// Lets the worker's other coroutines run once. Loops whose rounds complete at once need it,
    /// because nothing else there lets the others run.
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

    /// Sleeps for at least `time` while the others run. They run at least once, even if `time` is
    /// 0.
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
    /// The round has come back, or was never sent. The buffer has the outcome.
    Done(Box<RoundBuffer>),
    Pending(Ticket),
    Finished,
}

/// A round that has been posted. Await it for its answers.
///
/// Dropping it leaves the round to run; it is then unknown whether its verbs have taken effect. The
/// coroutine of its own lane must await it. Its completion wakes that coroutine and no waker. So it
/// must not be awaited through a combinator that polls only the futures whose own wakers were
/// woken.
#[must_use = "await it, or hand it over with `then_post`; to send a round that nobody awaits use `Lane::post`"]
#[derive(Debug)]
pub struct Execute<'l> {
    lane: &'l Lane,
    state: State,
    yielded: bool,
}

impl<'l> Execute<'l> {
    /// Whether anything was sent. If not, the round has failed, and none of its verbs will ever
    /// run.
    #[inline]
    #[must_use]
    pub fn was_sent(&self) -> bool {
        !matches!(&self.state, State::Done(buffer) if !buffer.sent)
    }

    /// Stops waiting, and has `next` posted in the background when this round has completed without
    /// error. If this round fails, `next` is not sent, and the failure is a background failure.
    /// This is not an async function, so `Drop` can call it.
    pub fn then_post(self, next: Round<'l>) {
        self.then_post_all([next]);
    }

    /// Stops waiting, and has several rounds posted in the background. Each is posted when the one
    /// before it has completed without error; the first, when this round has.
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

    // This is inlined for the same reason as `Lane::execute`.
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
    /// Returns the round's buffer when the round has completed and the other coroutines have had
    /// their turn.
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
