//! The client's side of rounds over TCP: frames go out in batches, and answers complete rounds in
//! place.
//!
//! 1. A posted round becomes a frame for each of its nodes, in what that node's connection sends
//!    next. With RDMA it becomes a list of work requests, which is posted at once, and a frame for
//!    its calls.
//! 2. A worker polls after all its coroutines have run. So all that they posted leaves in one
//!    system call for each node.
//! 3. The answers of a node come in the order of its frames, so a queue tells which part an answer
//!    belongs to.
//! 4. The part of a round between two fences is a *stage*. A stage is sent when all answers of the
//!    stage before have come, and none was an error. Rounds that are posted meanwhile are held
//!    back, because rule 1 of the contract orders them behind all stages.
//!
//! A round that waits for another one ([`Transport::chain`]) is also posted here, so the worker is
//! not needed to see that the first one was answered. If the program keeps the worker's thread
//! busy, the thread of [`stand_in`](super::stand_in) does the worker's part. That is the reason for
//! the lock, which only that thread contends for.
//!
//! A transport loses a node for good if the node closes the connection, breaks the protocol, or
//! leaves a frame unanswered for longer than the client's patience. The transport never connects to
//! that node again, and never sends anything twice, because it cannot know which verbs have run.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::address::{Address, NodeId, RegionId};
use crate::error::{FabricError, Fault};
use crate::ids::{LaneId, Nanos, Ticket};
use crate::limits::{BATCH_BYTES, SPIN_NS};
use crate::poller::{BELL, Bell, Interest, Poller};
use crate::round::buffer::{RoundBuffer, Verb};
use crate::round::part::Part;
use crate::shm::monotonic_ns;
use crate::tcp::buffer::{Received, Receiver};
use crate::tcp::cluster::Cluster;
use crate::tcp::frame::{self, Malformed};
use crate::tcp::link::Link;
use crate::tcp::stand_in::{Left, StandIn, Worked};
use crate::tcp::stream::{Stream, Timed};
use crate::transport::{BeforeWait, Capabilities, Posted, Transport};

/// The number of hints where a ticket probably is. A hint is checked, and a wrong one costs a
/// search.
const HINTS: usize = 256;

/// Time between two looks at the connections beside queue pairs, by a thread that waits for an
/// answer.
const LOOK_NS: Nanos = 1_000_000;

/// Longest wait for rounds that are under way when a transport is dropped.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(500);

/// A round under way.
#[derive(Debug)]
struct Flight {
    ticket: u64,
    /// The round. `None` if the place is free.
    round: Option<Box<RoundBuffer>>,
    /// Frames of the present stage that have not been answered.
    parts: u32,
    /// The first verb of the next stage.
    next: usize,
    outcome: Result<(), FabricError>,
    complete: bool,
    orphan: bool,
}

/// What the next poll has to report.
#[derive(Debug)]
enum News {
    Ready(LaneId),
    Reclaimed(Box<RoundBuffer>),
}

/// The transport over TCP: a connection to every node.
#[derive(Debug)]
pub(crate) struct TcpTransport {
    shared: Arc<Shared>,
}

/// The state that a transport's worker shares with the thread that stands in for it.
#[derive(Debug)]
struct Shared {
    cluster: Arc<Cluster>,
    bell: Arc<Bell>,
    worked: Worked,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cluster: Arc<Cluster>,
    links: Vec<Link>,
    poller: Poller,
    receiver: Receiver,
    flights: Vec<Flight>,
    free: Vec<u32>,
    hints: [u32; HINTS],
    news: VecDeque<News>,
    /// The round whose last stage has not been sent. `held` has the rounds that were posted since.
    fenced: Option<u32>,
    held: VecDeque<u32>,
    /// Rounds to be posted when the rounds with these tickets have completed.
    chained: Vec<(u64, Box<RoundBuffer>)>,
    /// Rounds under way, and below it the links with something to send. Without either there is
    /// nothing to poll for.
    under_way: usize,
    /// Nodes that are known to be down, one bit each.
    down: u64,
    /// When to look again at the connections beside queue pairs.
    look_at: Nanos,
    patience: Nanos,
}

impl TcpTransport {
    /// Makes a transport over these connections, one for each node. An error is that of a node
    /// which is lost from the start.
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        streams: Vec<Result<Stream, Fault>>,
        bell: Arc<Bell>,
        poller: Poller,
    ) -> TcpTransport {
        let links = (0..).zip(streams).map(|(node, stream)| Link::new(NodeId(node), stream)).collect();
        let patience = cluster.options.patience.as_nanos() as Nanos; // PATIENCE_MAX_NS at most
        let state = State {
            cluster: cluster.clone(),
            links,
            poller,
            receiver: Receiver::new(),
            flights: Vec::new(),
            free: Vec::new(),
            hints: [0; HINTS],
            news: VecDeque::new(),
            fenced: None,
            held: VecDeque::new(),
            chained: Vec::new(),
            under_way: 0,
            down: 0,
            look_at: 0,
            patience,
        };
        let shared = Arc::new(Shared { cluster, bell, worked: Worked::default(), state: Mutex::new(state) });
        TcpTransport { shared }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic within this transport would be a defect of this file. The state is as good as it
        // was.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the stand-in that no coroutine awaits a round under way, so the round continues even
    /// if the worker's thread does something else. Call it with the lock held. If the stand-in sees
    /// that a round was left, it then also sees the round.
    fn leave_if(&self, background: bool) {
        if background && self.shared.worked.leave() {
            StandIn::watch(&self.shared);
        }
    }
}

impl Left for Shared {
    fn worked(&self) -> &Worked {
        &self.worked
    }

    /// Does what the worker's next poll would do, except to report it. The worker is busy
    /// elsewhere.
    fn stand_in(&self) {
        // A worker that waits for answers holds the lock, or has said that it sleeps. It looks for
        // itself. What was taken from its sockets meanwhile would not wake it.
        if let Ok(mut state) = self.state.try_lock()
            && !self.bell.is_asleep()
        {
            state.progress(self.cluster.down.load(Ordering::Relaxed));
            self.worked.rest_if(state.under_way == 0);
        }
    }
}

impl Transport for TcpTransport {
    fn post(&self, mut round: Box<RoundBuffer>) -> Posted {
        let (ticket, background) = (round.ticket(), round.background);
        let mut state = self.state();
        state.lose_those_down(self.shared.cluster.down.load(Ordering::Relaxed));
        if let Some(error) = state.refusal(round.verbs()) {
            round.finish(Err(error));
            state.run_chain(ticket.0, Err(error));
            return Posted::Done(round);
        }
        let slot = state.admit(round);
        if !state.start(slot) {
            self.leave_if(background);
            return Posted::Pending(ticket);
        }
        let round = state.release(slot);
        state.run_chain(ticket.0, round.outcome);
        Posted::Done(round)
    }

    fn take(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        let mut state = self.state();
        let slot = state.find(ticket)?;
        state.flights[slot as usize].complete.then(|| state.release(slot))
    }

    fn orphan(&self, ticket: Ticket) -> Option<Box<RoundBuffer>> {
        let mut state = self.state();
        let slot = state.find(ticket)?;
        let flight = &mut state.flights[slot as usize];
        if flight.complete {
            let round = state.release(slot);
            state.run_chain(ticket.0, round.outcome);
            return Some(round);
        }
        flight.orphan = true;
        self.leave_if(true);
        None
    }

    fn chain(&self, after: Ticket, next: Box<RoundBuffer>) -> Result<(), Box<RoundBuffer>> {
        self.state().chained.push((after.0, next));
        Ok(())
    }

    fn hurry(&self) {
        self.state().links.iter_mut().for_each(|link| link.ask(Nanos::MAX));
    }

    fn may_hold_back(&self) -> bool {
        true
    }

    fn is_chained(&self, ticket: Ticket) -> bool {
        self.state().chained.iter().any(|(_, next)| next.ticket() == ticket)
    }

    fn poll(&self, ready: &mut dyn FnMut(LaneId), reclaimed: &mut dyn FnMut(Box<RoundBuffer>)) {
        {
            let mut state = self.state();
            state.progress(self.shared.cluster.down.load(Ordering::Relaxed));
            self.shared.worked.turn(state.under_way == 0);
        }
        loop {
            // News is taken out one by one, because a callback may post a round.
            let Some(news) = self.state().news.pop_front() else { return };
            match news {
                News::Ready(lane) => ready(lane),
                News::Reclaimed(round) => reclaimed(round),
            }
        }
    }

    fn now(&self) -> Nanos {
        monotonic_ns()
    }

    fn idle_waker(&self) -> Option<Waker> {
        Some(self.shared.bell.clone().into())
    }

    fn idle(&self, until: Option<Nanos>) {
        let mut state = self.state();
        let now = monotonic_ns();
        state.send(now);
        if !state.news.is_empty() {
            return;
        }
        let until = state.due().into_iter().chain(until).min();
        let left = until.map(|until| until.saturating_sub(now));
        if left.is_some_and(|left| left <= SPIN_NS) {
            thread::yield_now();
            return;
        }
        let bell = &self.shared.bell;
        if bell.sleep() {
            state.wait(left.map(Duration::from_nanos), bell);
            bell.wake_up();
        }
    }

    fn watch_in(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.state().poller, token, Interest::IN)
    }

    fn before_wait(&self) -> BeforeWait {
        let mut state = self.state();
        state.send(monotonic_ns());
        let is_quiet = state.news.is_empty() && self.shared.bell.sleep();
        // From here on, the stand-in leaves the state alone.
        if !is_quiet || state.arm() {
            return BeforeWait::LookAgain;
        }
        BeforeWait::Until(state.due())
    }

    fn after_wait(&self) {
        let mut state = self.state();
        self.shared.bell.wake_up();
        state.poller.wait(Some(Duration::ZERO));
        state.collect(&self.shared.bell);
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.cluster.capabilities()
    }
}

impl State {
    /// Sends what there is to send, and takes the answers that have come.
    fn progress(&mut self, down: u64) {
        self.lose_those_down(down);
        if self.under_way == 0 && self.links.iter().all(|link| !link.readable) {
            return;
        }
        let now = monotonic_ns();
        self.send(now);
        self.receive(now);
    }

    /// Returns why a round cannot be sent at all, or `None` if it can.
    fn refusal(&mut self, verbs: &[Verb]) -> Option<FabricError> {
        verbs.iter().find_map(|verb| {
            let node = verb.node()?;
            let fault = match self.links.get_mut(usize::from(node.0)) {
                Some(link) => link.refusal(verb)?,
                // The node was added after this transport connected.
                None if node.0 < self.cluster.count() => Fault::Unreachable,
                None => Fault::NoSuchRegion(match *verb {
                    Verb::Read { at, .. }
                    | Verb::Write { at, .. }
                    | Verb::CompareSwap { at, .. }
                    | Verb::FetchAdd { at, .. } => at,
                    _ => Address { node, region: RegionId(0), offset: 0 },
                }),
            };
            Some(FabricError { node, fault })
        })
    }

    /// Posts a round that has a place, or holds it back behind a fence. Returns true if that
    /// completes the round.
    fn start(&mut self, slot: u32) -> bool {
        if self.fenced.is_some() {
            self.held.push_back(slot);
            return false;
        }
        self.begin(slot)
    }

    /// Posts the rounds that waited for a round that has completed. If it has failed, they fail as
    /// well.
    fn run_chain(&mut self, completed: u64, outcome: Result<(), FabricError>) {
        let Some(at) = self.chained.iter().position(|(after, _)| *after == completed) else { return };
        let (_, mut next) = self.chained.remove(at);
        let ticket = next.ticket().0;
        for (after, _) in self.chained.iter_mut().filter(|(after, _)| *after == completed) {
            *after = ticket;
        }
        let refused = outcome.and(next.outcome).err().or_else(|| self.refusal(next.verbs()));
        if let Some(error) = refused {
            next.finish(Err(error));
            self.news.push_back(News::Reclaimed(next));
            return self.run_chain(ticket, Err(error));
        }
        let slot = self.admit(next);
        self.flights[slot as usize].orphan = true;
        if self.start(slot) {
            self.complete(slot);
        }
    }

    /// Gives a round a place.
    fn admit(&mut self, round: Box<RoundBuffer>) -> u32 {
        let ticket = round.ticket().0;
        let flight =
            Flight { ticket, round: Some(round), parts: 0, next: 0, outcome: Ok(()), complete: false, orphan: false };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.flights[slot as usize] = flight;
                slot
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        };
        self.hints[ticket as usize % HINTS] = slot;
        self.under_way += 1;
        slot
    }

    /// Takes a round from its place.
    fn release(&mut self, slot: u32) -> Box<RoundBuffer> {
        let flight = &mut self.flights[slot as usize];
        let mut round = flight.round.take().expect("a place in use has a round");
        round.finish(flight.outcome);
        self.free.push(slot);
        self.under_way -= 1;
        round
    }

    fn find(&self, ticket: Ticket) -> Option<u32> {
        let here = |flight: &Flight| flight.ticket == ticket.0 && flight.round.is_some();
        let hint = self.hints[ticket.0 as usize % HINTS];
        if self.flights.get(hint as usize).is_some_and(here) {
            return Some(hint);
        }
        self.flights.iter().position(here).map(|slot| slot as u32)
    }

    /// Posts the first stage of a round. Returns true if that completes the round.
    fn begin(&mut self, slot: u32) -> bool {
        let complete = self.advance(slot);
        self.fenced = (!complete && self.has_more(slot)).then_some(slot);
        complete
    }

    /// Whether a round has a stage that has not been sent.
    fn has_more(&self, slot: u32) -> bool {
        let flight = &self.flights[slot as usize];
        flight.outcome.is_ok() && flight.round.as_ref().is_some_and(|round| flight.next < round.verbs().len())
    }

    /// Posts the rounds that were held back, up to the next fence.
    fn let_go(&mut self) {
        self.fenced = None;
        while self.fenced.is_none() {
            let Some(slot) = self.held.pop_front() else { return };
            if self.begin(slot) {
                self.complete(slot);
            }
        }
    }

    /// Posts the next stage of a round. Returns true if there is none, or if it cannot be sent: the
    /// round is then complete.
    fn advance(&mut self, slot: u32) -> bool {
        let flight = &mut self.flights[slot as usize];
        let Some(mut round) = flight.round.take() else { return false };
        let (ticket, mut next) = (flight.ticket, flight.next);
        let background = round.background;
        let is_followed = self.chained.iter().any(|(after, _)| *after == ticket);
        let (verbs, words) = round.parts();
        let (mut parts, mut outcome) = (0, Ok(()));
        while parts == 0 && next < verbs.len() {
            let stage = &verbs[next..];
            let stage = &stage[..stage.iter().position(|verb| verb.node().is_none()).unwrap_or(stage.len())];
            let end = next + stage.len();
            // A node may have been lost while the stage before ran.
            if let Some(error) = self.refusal(stage) {
                outcome = Err(error);
                break;
            }
            // An answer may be delayed, or a completion known late, only if it is the last one of a
            // background round, and no other round waits for it.
            let lazy = background && end == verbs.len() && !is_followed;
            let mut nodes = 0u64;
            for (index, verb) in (next..).zip(stage) {
                let Some(node) = verb.node() else { continue };
                nodes |= 1 << node.0;
                let link = &mut self.links[usize::from(node.0)];
                if link.frames(verb) {
                    parts += u32::from(link.add(slot, ticket, lazy, index, verb, words));
                }
            }
            while nodes != 0 {
                let link = &mut self.links[nodes.trailing_zeros() as usize];
                parts += u32::from(link.end(slot, ticket, end));
                parts += u32::from(link.post(slot, ticket, lazy, next, stage, words));
                nodes &= nodes - 1;
                if link.out.bytes() > BATCH_BYTES && !link.blocked {
                    // If sending fails, the next poll finds out why.
                    link.readable |= !link.send(monotonic_ns());
                    link.ring();
                }
            }
            next = end + 1;
        }
        let flight = &mut self.flights[slot as usize];
        flight.round = Some(round);
        flight.next = next;
        flight.parts = parts;
        flight.outcome = outcome;
        parts == 0
    }

    /// Records that a frame has been answered, or never will be.
    fn answered(&mut self, part: Part, outcome: Result<(), FabricError>) {
        let flight = &mut self.flights[part.slot as usize];
        flight.parts -= 1;
        if flight.outcome.is_ok() {
            flight.outcome = outcome;
        }
        if flight.parts > 0 {
            return;
        }
        let complete = flight.outcome.is_err() || self.advance(part.slot);
        if complete {
            self.complete(part.slot);
        }
        if self.fenced == Some(part.slot) && (complete || !self.has_more(part.slot)) {
            self.let_go();
        }
    }

    /// Records that all frames of a round have been answered, or never will be.
    fn complete(&mut self, slot: u32) {
        let flight = &mut self.flights[slot as usize];
        flight.complete = true;
        let (ticket, outcome, orphan) = (flight.ticket, flight.outcome, flight.orphan);
        let news = match &flight.round {
            Some(round) if !orphan => News::Ready(round.lane()),
            _ => News::Reclaimed(self.release(slot)),
        };
        self.news.push_back(news);
        // A round that is still awaited may be dropped, and given a continuation, later.
        if orphan && !self.chained.is_empty() {
            self.run_chain(ticket, outcome);
        }
    }

    /// Sends what there is to send. What goes by datagrams leaves as one list for all nodes.
    fn send(&mut self, now: Nanos) {
        let mut written = 0u64;
        for place in 0..self.links.len() {
            let link = &mut self.links[place];
            if link.out.is_empty() {
                continue;
            }
            written |= 1 << place;
            if !link.send(now) {
                // The node may have said why before it closed the connection.
                link.readable = true;
                self.receive_from(place, now);
                if self.links[place].fault().is_none() {
                    self.lose(place, Fault::Unreachable);
                }
            }
        }
        while written != 0 {
            self.links[written.trailing_zeros() as usize].ring();
            written &= written - 1;
        }
    }

    fn receive(&mut self, now: Nanos) {
        let look = now >= self.look_at;
        if look {
            self.look_at = now + LOOK_NS;
        }
        for place in 0..self.links.len() {
            let link = &mut self.links[place];
            if link.is_awaited() || link.readable {
                if let Ok(stream) = &mut link.stream
                    && (look || link.readable)
                {
                    stream.look();
                }
                link.ask(now);
                self.receive_from(place, now);
            }
        }
    }

    /// Reads a node's answers until there are no more.
    fn receive_from(&mut self, place: usize, now: Nanos) {
        self.links[place].readable = false;
        if self.links[place].fault().is_some() {
            return;
        }
        while let Some(fetched) = self.links[place].fetched() {
            let (part, link) = (fetched.part, &mut self.links[place]);
            if let Some(round) = &mut self.flights[part.slot as usize].round {
                let (verbs, words) = round.parts();
                link.deliver(fetched, &verbs[usize::from(part.first)..usize::from(part.end)], words);
            }
            self.answered(part, Ok(()));
        }
        loop {
            let received = self.links[place].read(&mut self.receiver);
            match self.consume(place) {
                Ok(None) => {}
                Ok(Some(fault)) => return self.lose(place, fault),
                Err(malformed) => {
                    let node = self.links[place].node;
                    tracing::warn!(%node, %malformed, "a memory node does not keep to the protocol");
                    return self.lose(place, Fault::Unreachable);
                }
            }
            match received {
                Some(Received::Some) => {}
                Some(Received::All | Received::Nothing) => break,
                Some(Received::End) | None => return self.lose(place, Fault::Unreachable),
            }
        }
        if self.links[place].due(self.patience).is_some_and(|due| due <= now) {
            let node = self.links[place].node;
            tracing::warn!(%node, "a memory node does not answer");
            self.lose(place, Fault::Unreachable);
        }
    }

    /// Processes the answers that have been read. Returns a fault if the node said that it is lost
    /// to this client.
    fn consume(&mut self, place: usize) -> Result<Option<Fault>, Malformed> {
        let mut used = 0;
        loop {
            let link = &mut self.links[place];
            let words = &self.receiver.words()[used..];
            let Some(response) = frame::response(words)? else { break };
            let Some(answer) = words.get(frame::HEAD_WORDS..response.words) else { break };
            used += response.words;
            if response.status == frame::REVOKED {
                return Ok(Some(Fault::Revoked));
            }
            let part = *link.waiting.front().ok_or(Malformed::Answer)?;
            let round = self.flights[part.slot as usize].round.as_mut().ok_or(Malformed::Answer)?;
            if response.ticket != part.ticket {
                return Err(Malformed::Answer);
            }
            let node = link.node;
            let outcome = if response.status == frame::DONE {
                let (verbs, words) = round.parts();
                let verbs = &verbs[usize::from(part.first)..usize::from(part.end)];
                let framed = verbs.iter().filter(|verb| verb.node() == Some(node) && link.frames(verb));
                frame::take_answers(answer, framed, words)?;
                Ok(())
            } else {
                Err(FabricError { node, fault: frame::fault(response.status, answer, node)? })
            };
            link.waiting.pop_front();
            self.answered(part, outcome);
        }
        self.receiver.leave(used, &mut self.links[place].rest);
        Ok(None)
    }

    /// Marks a node as lost to this transport: everything that waits for it fails.
    fn lose(&mut self, place: usize, fault: Fault) {
        let node = self.links[place].node;
        for part in self.links[place].lose(fault) {
            self.answered(part, Err(FabricError { node, fault }));
        }
    }

    fn lose_those_down(&mut self, down: u64) {
        let mut new = down & !self.down;
        self.down = down;
        while new != 0 {
            let place = new.trailing_zeros() as usize;
            new &= new - 1;
            if self.links.get(place).is_some_and(|link| link.fault().is_none()) {
                self.lose(place, Fault::Unreachable);
            }
        }
    }

    /// Returns when the transport must be polled, even if nothing comes.
    fn due(&mut self) -> Option<Nanos> {
        let patience = self.patience;
        let due = |link: &mut Link| [link.due(patience), link.resend_due(), link.ask_at()];
        self.links.iter_mut().flat_map(due).flatten().min()
    }

    /// Makes the poller end a wait for whatever may come. Returns true if there is something
    /// already.
    fn arm(&mut self) -> bool {
        self.watch_blocked(Interest::IN | Interest::OUT);
        // What arrived before a channel was armed does not wake it, so look once now.
        let mut there = self.links.iter_mut().filter_map(|link| link.arm().then_some(())).count() > 0;
        for link in &mut self.links {
            // Looking at one link may have brought something for another.
            let news = link.has_news();
            link.readable |= news;
            there |= news;
        }
        there
    }

    fn wait(&mut self, limit: Option<Duration>, bell: &Bell) {
        let limit = if self.arm() { Some(Duration::ZERO) } else { limit };
        self.poller.wait(limit);
        self.collect(bell);
    }

    /// Notes what the poller has shown.
    fn collect(&mut self, bell: &Bell) {
        self.watch_blocked(Interest::IN);
        for number in 0.. {
            match self.poller.event(number) {
                None => break,
                Some((BELL, _)) => bell.quiet(),
                Some((place, _)) => {
                    if let Some(link) = self.links.get_mut(place as usize) {
                        link.readable = true;
                    }
                }
            }
        }
    }

    /// Makes the poller watch sockets that accept no more. They are rare: those of a node that is
    /// slow to read.
    fn watch_blocked(&self, interest: Interest) {
        for link in self.links.iter().filter(|link| link.blocked) {
            if let Ok(stream) = &link.stream
                && stream.channel().is_none()
            {
                // The call fails only for a socket that the poller does not have.
                let _ = self.poller.modify(stream.socket(), u64::from(link.node.0), interest);
            }
        }
    }
}

impl Drop for TcpTransport {
    /// Waits for the rounds that have been posted, but not long. As on any other backend, they run.
    fn drop(&mut self) {
        let state = &mut *self.state();
        let deadline = Instant::now() + Duration::from_nanos(state.patience).min(CLOSE_TIME_MAX);
        let has_queue = |link: &Link| link.stream.as_ref().is_ok_and(|stream| stream.channel().is_some());
        while state.links.iter_mut().any(|link| has_queue(link) && link.is_awaited()) && Instant::now() < deadline {
            let now = monotonic_ns();
            state.send(now);
            state.receive(now);
            thread::yield_now();
        }
        let busy = |link: &&mut Link| !has_queue(link) && !link.waiting.is_empty();
        for link in state.links.iter_mut().filter(busy) {
            if let Ok(stream) = &mut link.stream {
                let _ = stream.socket().set_nonblocking(false);
                let _ = Timed { stream, deadline }.write_all(link.out.unsent());
                let _ = stream.socket().shutdown(Shutdown::Write);
            }
        }
        for link in state.links.iter_mut().filter(busy) {
            if let Ok(stream) = &mut link.stream {
                while matches!(Timed { stream, deadline }.read(&mut [0; 4096]), Ok(1..)) {}
            }
        }
    }
}
