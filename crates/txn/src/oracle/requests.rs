//! What the coroutines of one client ask the oracle of `gts` for, and tell it. They share requests.
//! `oracle.rs` has the requests, and `protocol/dst/oracle.rs` the transactions' end.
//!
//! ```text
//! coroutine 1   asks; nothing is under way       NEXT for 1 ------------>
//! coroutine 2   asks, and waits                                              oracle
//! coroutine 3   asks, and waits                  <------------ time of 1
//! all three     the answer has come              NEXT for 2 and 3 ------>
//! coroutine 1   its commit is over, and waits    <----- times of 2 and 3
//!               the answer has come              DONE of 1 ------------->
//! ```
//!
//! If a coroutine had asked before the last answer came, its NEXT would have had the DONE of 1. At
//! most one request of a client is under way that has an answer. A client with one coroutine sends
//! what it would send without this, and waits for nothing more.
//!
//! # Invariants
//!
//! 1. **A request answers only coroutines that had asked before it was sent.** The oracle counts a
//!    commit as outstanding from the request that has its id, and that must be before the commit
//!    installs anything. A snapshot has all commits of which the oracle knew, when the transaction
//!    began, that they were over. An answer that was on its way by then may be without them.
//! 2. **A request belongs to no coroutine.** The endpoint calls [`Listener::heard`] with the
//!    answer. That wakes the coroutines that have asked for it, and sends the next request. So no
//!    coroutine depends on another one, which may be dropped, or may not run for long.
//! 3. **The oracle hears that a commit is over after it has answered for its time.** If a future is
//!    dropped that waits for a time, its place stays in the list until the answer has come. The
//!    commit is over then. If a DONE came before its NEXT, the commit would be outstanding for
//!    ever.
//! 4. **What is over waits only while a request is under way.** The next request has it, which goes
//!    as soon as the answer comes, or a DONE if no coroutine asks. So the oracle hears of it at
//!    most one round trip later than without batches, and no timer is needed. If a request fails,
//!    what it was to tell is told again.
//! 5. **A commit's DONE waits for the client's thread only while another coroutine asks for a
//!    time.** Otherwise the transport posts it as soon as the installation is acknowledged, even if
//!    the program keeps its thread busy. The other one's commit is outstanding in any case.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use remora_fabric::limits::LANES_MAX;
use remora_fabric::{CallHandle, FabricError, Heard, Lane, LaneId, Listener, NodeId, Round};
use remora_record::TransactionId;

use super::Question;
use crate::error::{Abort, Stop};
use crate::rpc::Code;

/// The number of commits of which one request says that they are over.
const OVER_MAX: usize = 2 * LANES_MAX;
/// The tag of a request that has an answer. Other rounds have the id of their transaction.
const ASKED: u64 = 0;

/// What the coroutines of a client ask the oracle for, and tell it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OracleRequests(Rc<Desk>);

/// What a transaction asks the oracle for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// The time of its commit.
    Time(TransactionId),
    /// The time up to which all commits are installed.
    Stable,
}

/// The answer of the oracle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    /// The time that was asked for.
    pub(crate) time: u64,
    /// With [`Wish::Stable`]: the client of the first commit that is not installed, or 0. Only one
    /// of the coroutines that share an answer is told.
    pub(crate) client: u64,
}

/// Where the oracle is, and the epoch of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OraclePlace {
    pub(crate) host: NodeId,
    pub(crate) epoch: u64,
}

#[derive(Debug, Default)]
struct Desk(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    oracle: OraclePlace,
    asking: Vec<Asking>,
    /// The number of the next place in `asking`.
    next: u64,
    /// The call that is under way and has an answer.
    under_way: Option<CallHandle>,
    /// Commits that are over, of which the oracle has not been told.
    over: Vec<u64>,
    /// Commits that the request under way says are over.
    told: Vec<u64>,
    /// The request that is being made.
    words: Vec<u64>,
}

/// A coroutine that asks.
#[derive(Debug)]
struct Asking {
    number: u64,
    lane: LaneId,
    wish: Wish,
    /// The answer must not be below this time.
    bound: u64,
    progress: Progress,
    /// Whether the coroutine has dropped the future.
    has_left: bool,
    /// Whether the commit of a coroutine that has left is over.
    is_over: bool,
    waker: Option<Waker>,
}

/// What has become of a coroutine's wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// No request has it.
    Waits,
    /// The request under way has it.
    Sent,
    /// The oracle has answered. `None` if it has refused.
    Heard(Result<Option<Given>, FabricError>),
}

impl OracleRequests {
    /// Asks the oracle for a time that is not below a bound. If the oracle refuses, the transaction
    /// is to try again later.
    pub(crate) async fn ask(&self, lane: &Lane, oracle: OraclePlace, wish: Wish, bound: u64) -> Result<Given, Stop> {
        let place = Place { desk: &self.0, number: self.0.enter(oracle, (lane.id(), wish), bound) };
        if self.0.may_send() {
            let mut round = lane.round();
            self.0.0.borrow_mut().request(&mut round);
            lane.execute_for(round, &self.0, ASKED);
        }
        let heard = poll_fn(|context| self.0.look(place.number, context.waker()));
        heard.await?.ok_or(Abort::Later.into())
    }

    /// Notes that a commit is over which is installed, or will not be, if the oracle is to hear of
    /// it by another request. If this is false, the caller tells the oracle.
    pub(crate) fn will_tell(&self, commit: u64) -> bool {
        self.0.0.borrow_mut().will_tell(commit)
    }

    /// Whether a coroutine asks for the time of its commit.
    pub(crate) fn is_asked_for_times(&self) -> bool {
        let asks = |one: &Asking| matches!(one.wish, Wish::Time(_)) && !matches!(one.progress, Progress::Heard(_));
        self.0.0.borrow().asking.iter().any(asks)
    }

    /// Posts the rounds that install a commit. When the last one has completed, the oracle hears
    /// that the commit is over, with what else it is to hear then.
    pub(crate) fn install<'l>(&self, lane: &'l Lane, rounds: impl IntoIterator<Item = Round<'l>>, commit: u64) {
        lane.post_all_for(rounds, &self.0, commit);
    }
}

/// The place of a coroutine that asks.
struct Place<'d> {
    desk: &'d Desk,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.desk.0.borrow_mut().leave(self.number);
    }
}

impl Desk {
    fn enter(&self, oracle: OraclePlace, asks: (LaneId, Wish), bound: u64) -> u64 {
        let mut state = self.0.borrow_mut();
        state.oracle = oracle;
        state.enter(asks, bound)
    }

    /// Whether no request is under way.
    fn may_send(&self) -> bool {
        self.0.borrow().under_way.is_none()
    }

    /// Returns the answer to a coroutine's wish. If there is none yet, wakes the coroutine when
    /// there is.
    fn look(&self, number: u64, waker: &Waker) -> Poll<Result<Option<Given>, FabricError>> {
        let mut state = self.0.borrow_mut();
        let one = state.asking.iter_mut().find(|one| one.number == number).expect("a coroutine that asks has a place");
        match one.progress {
            Progress::Heard(answer) => Poll::Ready(answer),
            Progress::Waits | Progress::Sent => {
                match &mut one.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl State {
    fn enter(&mut self, (lane, wish): (LaneId, Wish), bound: u64) -> u64 {
        if self.asking.capacity() == 0 {
            // A client of `gts` allocates once, and nothing from then on.
            self.asking.reserve(2 * LANES_MAX);
            self.over.reserve(2 * OVER_MAX);
            self.told.reserve(OVER_MAX);
            self.words.reserve(3 + LANES_MAX + OVER_MAX);
        }
        let number = self.next;
        self.next += 1;
        let (progress, waker) = (Progress::Waits, None);
        self.asking.push(Asking { number, lane, wish, bound, progress, has_left: false, is_over: false, waker });
        number
    }

    /// Notes that a coroutine does not wait any more.
    fn leave(&mut self, number: u64) {
        if let Some(at) = self.asking.iter().position(|one| one.number == number) {
            if self.asking[at].progress == Progress::Sent {
                self.asking[at].has_left = true;
            } else {
                self.asking.remove(at);
            }
        }
    }

    /// Puts the call into a round that asks for all coroutines that wait, and tells what is over.
    fn request(&mut self, round: &mut Round<'_>) {
        let (mut bound, mut times, mut is_stable_asked) = (0, 0, false);
        self.words.clear();
        self.words.extend([0, self.oracle.epoch, 0]);
        for one in self.asking.iter_mut().filter(|one| one.progress == Progress::Waits) {
            one.progress = Progress::Sent;
            bound = bound.max(one.bound);
            match one.wish {
                Wish::Time(id) => {
                    self.words.push(id.to_bits());
                    times += 1;
                }
                Wish::Stable => is_stable_asked = true,
            }
        }
        let question = if is_stable_asked { Question::Stable } else { Question::Next };
        (self.words[0], self.words[2]) = (Code::Oracle.word(question.with_times(times)), bound);
        self.told.clear();
        self.told.extend(self.over.drain(..self.over.len().min(OVER_MAX)));
        self.words.extend(&self.told);
        let reply_words = usize::from(times > 0) + if is_stable_asked { 2 } else { 0 };
        self.under_way = Some(round.call(self.oracle.host, &self.words, None, reply_words));
    }

    /// Gives the answer to the coroutines that it is for, and wakes them.
    fn answered(&mut self, reply: Result<&[u64], FabricError>) {
        self.under_way = None;
        if mutant!(TakeAnswerUnderWay) {
            let waiting = self.asking.iter_mut().filter(|one| one.progress == Progress::Waits);
            waiting.for_each(|one| one.progress = Progress::Sent);
        }
        let sent = self.asking.iter().filter(|one| one.progress == Progress::Sent);
        let is_stable_asked = sent.clone().any(|one| one.wish == Wish::Stable);
        let mut stable = None;
        let mut first = None;
        match reply {
            Ok(&[time, client]) if is_stable_asked => stable = Some(Given { time, client }),
            Ok(&[time, client, next]) if is_stable_asked => {
                (stable, first) = (Some(Given { time, client }), Some(next));
            }
            Ok(&[next]) if !is_stable_asked => first = Some(next),
            Ok(_) => {}
            // The oracle may not have heard what the request was to tell.
            Err(_) => self.over.append(&mut self.told),
        }
        let step = if mutant!(TakeAnswerUnderWay) { 0 } else { 1 };
        let mut times = first.into_iter().flat_map(|first| (0..).map(move |number| first + number * step));
        for one in self.asking.iter_mut().filter(|one| one.progress == Progress::Sent) {
            let given = match one.wish {
                Wish::Time(_) => times.next().map(|time| Given { time, client: 0 }),
                Wish::Stable => stable,
            };
            if let (Wish::Stable, Some(stable), false) = (one.wish, &mut stable, one.has_left) {
                stable.client = 0;
            }
            one.progress = Progress::Heard(reply.map(|_| given));
            if let (Wish::Time(id), true) = (one.wish, one.is_over) {
                self.over.push(id.to_bits());
            }
        }
        self.asking.retain(|one| !one.has_left);
        let heard = self.asking.iter_mut().filter(|one| matches!(one.progress, Progress::Heard(_)));
        heard.filter_map(|one| one.waker.take()).for_each(Waker::wake);
    }

    fn will_tell(&mut self, commit: u64) -> bool {
        let is_of = |one: &&mut Asking| matches!(one.wish, Wish::Time(id) if id.to_bits() == commit);
        if let Some(one) = self.asking.iter_mut().filter(|one| one.progress == Progress::Sent).find(is_of) {
            debug_assert!(one.has_left, "a commit is over when its transaction does not ask any more");
            one.is_over = true;
            return true;
        }
        if self.under_way.is_some() {
            self.over.push(commit);
            return true;
        }
        false
    }

    /// Puts a DONE into a round.
    fn tell(&mut self, round: &mut Round<'_>) {
        self.words.clear();
        self.words.extend([Code::Oracle.word(Question::Done as usize), self.oracle.epoch]);
        self.words.extend(self.over.drain(..self.over.len().min(OVER_MAX)));
        round.call(self.oracle.host, &self.words, None, 0);
    }
}

impl Listener for Desk {
    fn heard(self: Rc<Self>, tag: u64, heard: &Heard<'_>) {
        let mut state = self.0.borrow_mut();
        if tag != ASKED {
            if heard.outcome().is_err() {
                return;
            }
            state.over.push(tag);
        } else if let Some(call) = state.under_way {
            state.answered(heard.reply(call));
        }
        if state.under_way.is_some() {
            return;
        }
        let waits = state.asking.iter().find(|one| one.progress == Progress::Waits).map(|one| one.lane);
        if let Some(lane) = waits {
            let mut round = heard.round(lane);
            state.request(&mut round);
            drop(state);
            return heard.execute_for(round, &self, ASKED);
        }
        while !state.over.is_empty() {
            let mut round = heard.round(heard.lane());
            state.tell(&mut round);
            drop(state);
            heard.post(round);
            state = self.0.borrow_mut();
        }
    }
}

#[cfg(test)]
mod tests;
