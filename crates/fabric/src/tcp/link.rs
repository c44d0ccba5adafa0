//! A client's connection to one node: frames to be sent, and the parts of rounds that wait for an
//! answer. With a queue pair, only calls travel in frames, and the other verbs are posted.

use std::collections::VecDeque;
use std::io;

use crate::address::NodeId;
use crate::error::Fault;
use crate::ids::Nanos;
use crate::limits::FRAME_WORDS_MAX;
use crate::rdma::{Fetched, Queue};
use crate::round::buffer::Verb;
use crate::round::part::Part;
use crate::shm::monotonic_ns;
use crate::tcp::buffer::{Outbox, Received, Receiver, Rest};
use crate::tcp::frame::{self, Kind};
use crate::tcp::stream::Stream;

/// A frame that is being built.
#[derive(Clone, Copy, Debug)]
struct Open {
    at: usize,
    first: usize,
}

/// A connection to a node, or the fault by which it was lost.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeId,
    /// The stream. It is `Err` for good when the node is lost.
    pub(crate) stream: Result<Stream, Fault>,
    pub(crate) out: Outbox,
    pub(crate) rest: Rest,
    open: Option<Open>,
    /// The parts in the order sent, which is the order in which their answers come.
    pub(crate) waiting: VecDeque<Part>,
    /// The number of parts at the end of the queue that have not been sent yet.
    unsent: usize,
    /// Whether the socket accepts no more. The poller says when it does again.
    pub(crate) blocked: bool,
    /// Whether the poller has said that there is something to read, which may be only the end.
    pub(crate) readable: bool,
}

impl Link {
    pub(crate) fn new(node: NodeId, stream: Result<Stream, Fault>) -> Link {
        Link {
            node,
            stream,
            out: Outbox::default(),
            rest: Rest::default(),
            open: None,
            waiting: VecDeque::new(),
            unsent: 0,
            blocked: false,
            readable: false,
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.stream.as_ref().err().copied()
    }

    fn queue(&mut self) -> Option<&mut Queue> {
        self.stream.as_mut().ok()?.queue()
    }

    /// Returns why a verb for this node is not sent at all, or `None` if it is.
    pub(crate) fn refusal(&mut self, verb: &Verb) -> Option<Fault> {
        match &mut self.stream {
            Err(fault) => Some(*fault),
            Ok(stream) => stream.queue().filter(|queue| queue.takes(verb)).and_then(|queue| queue.refusal(verb)),
        }
    }

    /// Whether a verb goes into a frame.
    pub(crate) fn frames(&mut self, verb: &Verb) -> bool {
        self.queue().is_none_or(|queue| !queue.takes(verb))
    }

    /// Posts the verbs of a stage that do not go into frames. `first` is the number of the stage's
    /// first verb. Returns true if there are any. If the stage is `lazy`, nobody waits to know that
    /// it has completed.
    pub(crate) fn post(
        &mut self,
        slot: u32,
        ticket: u64,
        lazy: bool,
        first: usize,
        stage: &[Verb],
        words: &[u64],
    ) -> bool {
        let node = self.node;
        let Some(queue) = self.queue() else { return false };
        let (first, end) = (first as u8, (first + stage.len()) as u8);
        queue.post(Part { slot, first, end, ticket, since: monotonic_ns() }, lazy, stage, node, words)
    }

    /// Returns when to [ask](Link::ask) for stages that do not report.
    pub(crate) fn ask_at(&mut self) -> Option<Nanos> {
        self.queue()?.ask_at()
    }

    /// Asks whether stages that do not report have completed, if it is time to do so.
    pub(crate) fn ask(&mut self, now: Nanos) {
        if let Some(queue) = self.queue() {
            queue.ask(now);
        }
    }

    /// Returns a list of verbs that has completed.
    pub(crate) fn fetched(&mut self) -> Option<Fetched> {
        self.queue()?.fetched()
    }

    /// Copies what a list has read to the round.
    pub(crate) fn deliver(&mut self, fetched: Fetched, verbs: &[Verb], words: &mut [u64]) {
        let node = self.node;
        if let Some(queue) = self.queue() {
            queue.deliver(fetched, verbs, node, words);
        }
    }

    /// Whether any round waits for this node.
    pub(crate) fn is_awaited(&mut self) -> bool {
        !self.waiting.is_empty() || self.queue().is_some_and(|queue| queue.is_awaited())
    }

    /// Arms the queue pair to wake a poller. Returns true if there is something already.
    pub(crate) fn arm(&mut self) -> bool {
        self.queue().is_some_and(Queue::arm)
    }

    /// Whether the queue pairs of any connection have brought something.
    pub(crate) fn has_news(&mut self) -> bool {
        self.queue().is_some_and(|queue| queue.has_news())
    }

    /// Returns when something must be sent again. Reading sends it.
    pub(crate) fn resend_due(&mut self) -> Option<Nanos> {
        if self.is_awaited() { self.queue()?.resend_due() } else { None }
    }

    /// Adds a verb of a round to the frame that is being built. Returns true if that ended a frame,
    /// because it was full.
    pub(crate) fn add(&mut self, slot: u32, ticket: u64, lazy: bool, index: usize, verb: &Verb, words: &[u64]) -> bool {
        let mut ended = false;
        if let Some(open) = self.open
            && self.out.end() - open.at + frame::verb_words(verb) > FRAME_WORDS_MAX
        {
            self.end(slot, ticket, index);
            ended = true;
        }
        if self.open.is_none() {
            self.open = Some(Open { at: frame::begin_request(&mut self.out, Kind::Round, lazy, ticket), first: index });
        }
        frame::put_verb(&mut self.out, verb, words);
        ended
    }

    /// Ends the frame that is being built, before the round's verb `end`. Returns true if there was
    /// one.
    pub(crate) fn end(&mut self, slot: u32, ticket: u64, end: usize) -> bool {
        let Some(open) = self.open.take() else { return false };
        frame::end(&mut self.out, open.at);
        self.waiting.push_back(Part { slot, first: open.first as u8, end: end as u8, ticket, since: 0 });
        self.unsent += 1;
        true
    }

    /// Makes what was sent leave: see [`Stream`]'s `flush`.
    pub(crate) fn ring(&mut self) {
        if let Some(queue) = self.queue() {
            queue.ring();
        }
    }

    /// Sends what there is to send; [`Link::ring`] makes it leave. Returns false if the connection
    /// is broken. What the node said last may still be read then.
    pub(crate) fn send(&mut self, now: Nanos) -> bool {
        let Ok(stream) = &mut self.stream else { return true };
        // Their time begins now. They may have waited for a coroutine that had much to do.
        for part in self.waiting.iter_mut().rev().take(std::mem::take(&mut self.unsent)) {
            part.since = now;
        }
        match self.out.send(stream) {
            Ok(all) => {
                self.blocked = !all;
                true
            }
            Err(_) => {
                self.out.clear();
                false
            }
        }
    }

    /// Reads once. Returns `None` if the connection is broken.
    pub(crate) fn read(&mut self, receiver: &mut Receiver) -> Option<Received> {
        receiver.resume(&mut self.rest);
        match &mut self.stream {
            Ok(stream) => {
                let broken = |error: &io::Error| tracing::info!(node = %self.node, %error, "a connection broke");
                receiver.read(stream).inspect_err(broken).ok()
            }
            Err(_) => None,
        }
    }

    /// Returns when the node must have answered, if it has to answer anything.
    pub(crate) fn due(&mut self, patience: Nanos) -> Option<Nanos> {
        let posted = self.queue().and_then(|queue| queue.oldest());
        let framed = self.waiting.front().filter(|_| self.waiting.len() > self.unsent).map(|part| part.since);
        posted.into_iter().chain(framed).min().map(|since| since + patience)
    }

    /// Marks the node as lost: nothing is sent to it or read from it any more. Returns the parts
    /// that waited, which the caller must fail.
    pub(crate) fn lose(&mut self, fault: Fault) -> VecDeque<Part> {
        let posted: Vec<Part> = self.queue().into_iter().flat_map(|queue| queue.parts().collect::<Vec<_>>()).collect();
        // This destroys the queue pair, so nothing is written to this process's memory any more.
        self.stream = Err(fault);
        self.out = Outbox::default();
        self.rest = Rest::default();
        self.unsent = 0;
        self.blocked = false;
        let mut parts = std::mem::take(&mut self.waiting);
        parts.extend(posted);
        parts
    }
}
