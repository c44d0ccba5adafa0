//! Rounds with calls: the rounds of an endpoint that servers of its nodes still have to answer.
//!
//! The one-sided verbs of such a round run at once, in order. Its calls go to the mailboxes, or
//! wait here while those are full. At an [`AfterCompletion`](Verb::AfterCompletion) the round waits
//! for its replies. Rounds that are posted meanwhile wait behind it, whatever they contain, because
//! rule 1 orders them after what it still has to do.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::address::NodeId;
use crate::error::{FabricError, Fault};
use crate::ids::{LaneId, Nanos, Ticket};
use crate::limits::{NODES_MAX, SPIN_NS, WAIT_SLICE_NS_MAX};
use crate::region::futex_wait;
use crate::round::buffer::{RoundBuffer, Verb};
use crate::transport::{BeforeWait, Posted};

use super::access::Access;
use super::channel::{Outcome, Sender};
use super::control::{Control, Phase, Word};
use super::gate_bit;
use super::memory::{monotonic_ns, no_such_node};

/// A round that has not completed.
struct Flight {
    buffer: Box<RoundBuffer>,
    /// The first verb that has not been executed or handed over.
    next: usize,
    /// Calls that were handed over and are not answered.
    waiting: usize,
    orphaned: bool,
}

/// A call that has been handed over, with its round and its place among the round's verbs.
#[derive(Clone, Copy)]
struct Handed {
    round: Ticket,
    verb: usize,
    /// The place for the reply, if the round has not failed meanwhile.
    into: u32,
    capacity: u32,
}

/// The endpoint's channel at one node.
struct Mailbox {
    index: usize,
    generation: u32,
    sender: Sender,
    /// Calls in the mailbox, oldest first. Replies come in this order.
    sent: VecDeque<Handed>,
    /// Calls that are not in the mailbox yet, because it has no room.
    queued: VecDeque<Handed>,
}

impl Mailbox {
    fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.queued.is_empty()
    }

    /// Whether the server still serves this channel.
    fn is_open(&self, control: &Control) -> bool {
        let state = control.state(self.index);
        state.phase() == Phase::Open && state.generation() == self.generation
    }
}

/// The calls of an endpoint, and the rounds that wait for them; see the [module](self).
pub(super) struct Calls {
    /// Whether a round waits in its middle for replies, so that rounds posted meanwhile wait behind
    /// it.
    stalled: Cell<bool>,
    /// Whether some rounds have not completed.
    in_flight: Cell<bool>,
    /// The number of rings of the endpoint's own bell that have woken it from idling.
    rings_seen: Cell<u64>,
    /// When the endpoint began to wait without a reply, 0 if it does not.
    quiet_since: Cell<Nanos>,
    under_way: RefCell<UnderWay>,
}

/// The rounds with calls that have not been taken back, and the channels that the calls go through.
struct UnderWay {
    mailboxes: Vec<Option<Mailbox>>,
    /// The rounds, in the order posted.
    flights: VecDeque<Flight>,
    completed: Vec<Box<RoundBuffer>>,
    ready: Vec<LaneId>,
    reclaimed: VecDeque<Box<RoundBuffer>>,
    /// The buffer for replies to rounds that have failed.
    discarded: Vec<u64>,
}

impl UnderWay {
    fn new(channels: Vec<Option<(usize, u32)>>) -> UnderWay {
        let mailbox = |(index, generation)| Mailbox {
            index,
            generation,
            sender: Sender::default(),
            sent: VecDeque::new(),
            queued: VecDeque::new(),
        };
        UnderWay {
            mailboxes: channels.into_iter().map(|channel| channel.map(mailbox)).collect(),
            flights: VecDeque::new(),
            completed: Vec::new(),
            ready: Vec::new(),
            reclaimed: VecDeque::new(),
            discarded: Vec::new(),
        }
    }

    fn take(&mut self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        let at = self.completed.iter().position(|buffer| buffer.ticket() == ticket)?;
        Some(self.completed.swap_remove(at))
    }

    fn orphan(&mut self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.buffer.ticket() == ticket) {
            flight.orphaned = true;
            return None;
        }
        self.take(ticket)
    }

    /// Removes a flight, with its outcome.
    fn complete(&mut self, at: usize, outcome: Result<(), FabricError>) {
        let Some(mut flight) = self.flights.remove(at) else { return };
        flight.buffer.finish(outcome);
        if outcome.is_err() {
            // The reply to a call that was handed over is discarded. A call that was not handed
            // over is not sent.
            let ticket = flight.buffer.ticket();
            for mailbox in self.mailboxes.iter_mut().flatten() {
                mailbox.queued.retain(|handed| handed.round != ticket);
            }
        }
        if flight.orphaned {
            self.reclaimed.push_back(flight.buffer);
        } else {
            self.ready.push(flight.buffer.lane());
            self.completed.push(flight.buffer);
        }
    }

    /// Sends calls that have waited for room.
    fn pump(&mut self, controls: &[Arc<Control>]) {
        for (mailbox, control) in self.mailboxes.iter_mut().zip(controls) {
            let Some(mailbox) = mailbox else { continue };
            let mut sent = false;
            while let Some(handed) = mailbox.queued.front() {
                let flight = self.flights.iter_mut().find(|flight| flight.buffer.ticket() == handed.round);
                let (verbs, words) = flight.expect("a call that waits is of a round under way").buffer.parts();
                let Verb::Call { head, head_words, body, body_words, capacity, .. } = verbs[handed.verb] else { break };
                let head = &words[head as usize..][..head_words as usize];
                let body = &words[body as usize..][..body_words as usize];
                if !mailbox.sender.send(control.channel(mailbox.index), head, body, capacity) {
                    break;
                }
                mailbox.sent.extend(mailbox.queued.pop_front());
                sent = true;
            }
            if sent {
                control.ring_server();
            }
        }
    }

    /// Takes the replies that have come.
    fn receive(&mut self, controls: &[Arc<Control>]) {
        for (node, control) in controls.iter().enumerate() {
            while let Some(mailbox) = &mut self.mailboxes[node] {
                let channel = control.channel(mailbox.index);
                if mailbox.sent.is_empty() || !mailbox.sender.has_reply(channel) {
                    break;
                }
                let Some(handed) = mailbox.sent.pop_front() else { break };
                let at = self.flights.iter().position(|flight| flight.buffer.ticket() == handed.round);
                let flight = at.and_then(|at| self.flights.get_mut(at));
                let into = match flight {
                    Some(flight) => {
                        flight.waiting -= 1;
                        &mut flight.buffer.parts().1[handed.into as usize..][..1 + handed.capacity as usize]
                    }
                    None => {
                        self.discarded.resize(1 + handed.capacity as usize, 0);
                        &mut self.discarded[..]
                    }
                };
                let (outcome, words) = mailbox.sender.receive(channel, &mut into[1..]);
                let fault = match outcome {
                    Outcome::Served => {
                        into[0] = u64::from(words);
                        continue;
                    }
                    Outcome::NoHandler => Fault::NoHandler,
                    Outcome::TooLong => Fault::ReplyTooLong { words, capacity: handed.capacity },
                };
                if let Some(at) = at {
                    self.complete(at, Err(FabricError { node: NodeId(node as u16), fault }));
                }
            }
        }
    }

    /// Fails every round that waits for a node which will not answer, or that still has to go
    /// there.
    fn fail(&mut self, node: NodeId, fault: Fault) {
        let error = FabricError { node, fault };
        if let Some(Some(mailbox)) = self.mailboxes.get_mut(usize::from(node.0)) {
            let lost: Vec<Ticket> =
                mailbox.sent.drain(..).chain(mailbox.queued.drain(..)).map(|handed| handed.round).collect();
            for ticket in lost {
                if let Some(at) = self.flights.iter().position(|flight| flight.buffer.ticket() == ticket) {
                    self.complete(at, Err(error));
                }
            }
        }
    }

    /// Fails the rounds that wait for nodes that are refused, or whose server is gone.
    fn fail_lost(&mut self, access: &Access) {
        for node in (0..self.mailboxes.len()).map(|node| NodeId(node as u16)) {
            let Some(mailbox) = &self.mailboxes[usize::from(node.0)] else { continue };
            if mailbox.is_idle() {
                continue;
            }
            // The order matters: a thread that takes the node away first says why, and then closes
            // the channel.
            let is_open = mailbox.is_open(&access.controls()[usize::from(node.0)]);
            if access.attachment.gate.refused() & gate_bit(node) != 0 {
                self.fail(node, access.why());
            } else if !is_open {
                self.fail(node, Fault::Unreachable);
            }
        }
    }
}

impl Calls {
    /// Makes the calls of an endpoint. `channels` are its channels at the nodes, in order, with
    /// their generations; `None` where it has none.
    pub(super) fn new(channels: Vec<Option<(usize, u32)>>) -> Calls {
        Calls {
            stalled: Cell::new(false),
            in_flight: Cell::new(false),
            rings_seen: Cell::new(0),
            quiet_since: Cell::new(0),
            under_way: RefCell::new(UnderWay::new(channels)),
        }
    }

    /// Whether a round waits in its middle, so that any round that is posted must wait behind it.
    #[inline(always)]
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.get()
    }

    /// Whether some rounds have not completed.
    #[inline(always)]
    pub(super) fn are_in_flight(&self) -> bool {
        self.in_flight.get()
    }

    pub(super) fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.under_way.borrow_mut().take(ticket)
    }

    pub(super) fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        self.under_way.borrow_mut().orphan(ticket)
    }

    /// Posts a round that has calls, or that must wait behind one.
    #[cold]
    pub(super) fn post(&self, access: &Access, buffer: Box<RoundBuffer>) -> Posted {
        let calls = &mut *self.under_way.borrow_mut();
        let ticket = buffer.ticket();
        calls.flights.push_back(Flight { buffer, next: 0, waiting: 0, orphaned: false });
        if !self.stalled.get() {
            self.advance(access, calls, calls.flights.len() - 1);
        }
        self.in_flight.set(!calls.flights.is_empty());
        self.quiet_since.set(0);
        match calls.take(ticket) {
            Some(buffer) => {
                calls.ready.pop(); // no coroutine has begun to wait
                Posted::Done(buffer)
            }
            None => Posted::Pending(ticket),
        }
    }

    /// Takes a round as far as it gets. Returns false if it waits in its middle.
    fn advance(&self, access: &Access, calls: &mut UnderWay, at: usize) -> bool {
        let flight = &mut calls.flights[at];
        let ticket = flight.buffer.ticket();
        let (verbs, words) = flight.buffer.parts();
        let mailboxes = &mut calls.mailboxes;
        let controls = access.controls();
        let mut handed_over = false;
        let outcome = access.inside(|refused| {
            while let Some(verb) = verbs.get(flight.next) {
                match *verb {
                    Verb::Call { node, into, capacity, .. } => {
                        access.admitted(refused, verb)?;
                        let error = |fault| FabricError { node, fault };
                        let control = controls.get(usize::from(node.0)).ok_or_else(|| no_such_node(node))?;
                        let mailbox = mailboxes[usize::from(node.0)].as_mut();
                        let mailbox = mailbox.filter(|mailbox| mailbox.is_open(control));
                        let mailbox = mailbox.ok_or(error(Fault::Unreachable))?;
                        if control.get(Word::Answers) == 0 {
                            return Err(error(Fault::NoHandler));
                        }
                        mailbox.queued.push_back(Handed { round: ticket, verb: flight.next, into, capacity });
                        flight.waiting += 1;
                        handed_over = true;
                    }
                    Verb::AfterCompletion if flight.waiting > 0 => return Ok(false),
                    _ => execute_apart(access, refused, verb, words)?,
                }
                flight.next += 1;
            }
            Ok(true)
        });
        let waiting = flight.waiting;
        if handed_over && outcome.is_ok() {
            calls.pump(controls);
        }
        match outcome {
            Err(error) => calls.complete(at, Err(error)),
            Ok(true) if waiting == 0 => calls.complete(at, Ok(())),
            Ok(true) => {}
            Ok(false) => self.stalled.set(true),
        }
        outcome != Ok(false)
    }

    /// Takes the replies that have come, and goes on with the rounds that waited for them.
    #[cold]
    pub(super) fn poll(
        &self,
        access: &Access,
        ready: &mut dyn FnMut(LaneId),
        reclaimed: &mut dyn FnMut(Box<RoundBuffer>),
    ) {
        self.progress(access, &mut self.under_way.borrow_mut());
        // Either callback may post a round, so nothing may stay borrowed while one runs.
        loop {
            let lane = self.under_way.borrow_mut().ready.pop();
            let Some(lane) = lane else { break };
            self.quiet_since.set(0);
            ready(lane);
        }
        loop {
            let buffer = self.under_way.borrow_mut().reclaimed.pop_front();
            let Some(buffer) = buffer else { break };
            self.quiet_since.set(0);
            reclaimed(buffer);
        }
        self.in_flight.set(!self.under_way.borrow().flights.is_empty());
    }

    fn progress(&self, access: &Access, calls: &mut UnderWay) {
        calls.receive(access.controls());
        calls.fail_lost(access);
        // This covers the rounds that are through, the one that may go on, and those behind it. A
        // round that goes on may complete.
        let mut at = 0;
        let stalled = self.stalled.replace(false);
        while let Some(flight) = calls.flights.get(at) {
            let (all, through) = (flight.buffer.verbs().len(), flight.waiting == 0);
            if flight.next == all {
                if through {
                    calls.complete(at, Ok(()));
                } else {
                    at += 1;
                }
                continue;
            }
            debug_assert!(stalled, "only a stall keeps a round from going on");
            if flight.next > 0 && !through {
                self.stalled.set(true);
                break;
            }
            let before = calls.flights.len();
            if !self.advance(access, calls, at) {
                break;
            }
            at += usize::from(calls.flights.len() == before);
        }
        calls.pump(access.controls());
    }

    /// Whether there is a reason to stop idling: a ring of the endpoint's own bell, a reply, or a
    /// server that is gone.
    fn has_news(&self, access: &Access) -> bool {
        let rings = access.attachment.bell().rings.load(Ordering::Acquire);
        let rung = self.rings_seen.replace(rings) != rings;
        let calls = self.under_way.borrow();
        rung || calls.mailboxes.iter().zip(access.controls()).any(|(mailbox, control)| {
            mailbox.as_ref().is_some_and(|mailbox| {
                let channel = control.channel(mailbox.index);
                !mailbox.sent.is_empty() && (mailbox.sender.has_reply(channel) || !mailbox.is_open(control))
            })
        })
    }

    /// Returns how long the thread may wait in a poller, which sees no reply, while calls are under
    /// way. The wait grows with the time for which no reply has come: a reply is late by at most a
    /// quarter of that time.
    pub(super) fn before_wait(&self, access: &Access) -> BeforeWait {
        if self.has_news(access) {
            return BeforeWait::LookAgain;
        }
        let now = monotonic_ns();
        if self.quiet_since.get() == 0 {
            self.quiet_since.set(now);
        }
        let slice = ((now - self.quiet_since.get()) / 4).min(WAIT_SLICE_NS_MAX);
        BeforeWait::Until(Some(now + slice))
    }

    /// Waits while calls are under way and no coroutine can run.
    pub(super) fn wait_for_replies(&self, access: &Access, until: Option<Nanos>) {
        let began = monotonic_ns();
        let until = until.unwrap_or(Nanos::MAX);
        let bell = access.attachment.bell();
        loop {
            for _ in 0..32 {
                if self.has_news(access) {
                    return;
                }
                std::hint::spin_loop();
            }
            let now = monotonic_ns();
            if now >= until {
                return;
            }
            if now - began > SPIN_NS {
                break;
            }
            thread::yield_now();
        }
        let calls = self.under_way.borrow();
        let channels = || {
            let mailboxes = calls.mailboxes.iter().zip(access.controls());
            let busy = mailboxes.filter_map(|(mailbox, control)| Some((mailbox.as_ref()?, control)));
            busy.filter(|(mailbox, _)| !mailbox.sent.is_empty())
                .map(|(mailbox, control)| control.channel(mailbox.index).bell())
        };
        let mut words = [(bell.rings, self.rings_seen.get()); 1 + NODES_MAX];
        bell.park();
        let mut count = 1;
        for channel in channels() {
            words[count] = (channel.rings, channel.park());
            count += 1;
        }
        if !self.has_news(access) {
            futex_wait(&words[..count], (until != Nanos::MAX).then_some(until));
        }
        channels().for_each(|channel| channel.unpark());
        bell.unpark();
    }

    /// Gives the channels back when the endpoint ends.
    pub(super) fn close(&self, access: &Access) {
        let refused = || access.attachment.gate.refused();
        let calls = self.under_way.borrow();
        for (node, (mailbox, control)) in calls.mailboxes.iter().zip(access.controls()).enumerate() {
            if let Some(mailbox) = mailbox {
                // A node that was taken away is not waited for, because its server may be stopped
                // in a call.
                let bit = gate_bit(NodeId(node as u16));
                control.close_within(mailbox.index, mailbox.generation, || refused() & bit == 0);
            }
        }
    }
}

/// Executes a verb as [`Access::execute`] does, which is inlined where it must be fast.
#[inline(never)]
fn execute_apart(access: &Access, refused: u64, verb: &Verb, words: &mut [u64]) -> Result<(), FabricError> {
    access.execute(refused, verb, words)
}
