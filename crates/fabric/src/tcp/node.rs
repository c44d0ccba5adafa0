//! The state that a server's connections share: the memory node, which clients may use it, and
//! counters. A [`Node`] is what the connections of one thread share, and [`Common`] is what all
//! threads of the server share.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::{NodeId, RegionId};
use crate::entropy::random;
use crate::error::{FabricError, Fault, Refusal};
use crate::ids::{ClientId, Nanos};
use crate::limits::{CLIENT_BITS, REGIONS_PER_NODE_MAX, ROUND_WORDS_MAX};
use crate::rdma::{Exports, Queue};
use crate::round::buffer::Verb;
use crate::service::process_cpu_ns;
use crate::shm::{Memory, execute_verb, monotonic_ns};
use crate::tcp::buffer::Outbox;
use crate::tcp::frame::{self, Kind, Malformed, Request};
use crate::tcp::handshake::{Purpose, ServerHello, Verdict};
use crate::tcp::key::{Key, Keys};
use crate::tcp::turned_away::TurnedAway;

/// The status of a server, as counters and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStatus {
    /// Time since the server began to serve, in nanoseconds.
    pub uptime_ns: u64,
    /// Connections of clients that are open now.
    pub connections: u64,
    /// Clients whose access has been revoked.
    pub revoked: u64,
    /// Frames of verbs that have been served.
    pub frames: u64,
    /// How often answers were sent. A batch of answers counts once.
    pub sends: u64,
    /// CPU time of the node's services, in nanoseconds.
    pub service_cpu_ns: u64,
    /// CPU time of the server's whole process, in nanoseconds.
    pub cpu_ns: u64,
}

impl NodeStatus {
    pub(crate) const WORDS: usize = 7;

    pub(crate) fn to_words(self) -> [u64; NodeStatus::WORDS] {
        let NodeStatus { uptime_ns, connections, revoked, frames, sends, service_cpu_ns, cpu_ns } = self;
        [uptime_ns, connections, revoked, frames, sends, service_cpu_ns, cpu_ns]
    }

    pub(crate) fn from_words(words: [u64; NodeStatus::WORDS]) -> NodeStatus {
        let [uptime_ns, connections, revoked, frames, sends, service_cpu_ns, cpu_ns] = words;
        NodeStatus { uptime_ns, connections, revoked, frames, sends, service_cpu_ns, cpu_ns }
    }
}

/// Counters of a server's thread. Only this thread writes them, so each thread has cache lines of
/// its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) frames: AtomicU64,
    pub(crate) sends: AtomicU64,
    pub(crate) service_cpu_ns: AtomicU64,
}

/// Adds to a counter that only this thread writes, so no locked instruction is needed.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// What all threads of a server share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) memory: Arc<Memory>,
    keys: Option<Keys>,
    connections_max: u64,
    since: Nanos,
    clients: Mutex<Clients>,
    /// The counters of each thread.
    counters: Box<[Counters]>,
}

/// The clients of a server.
#[derive(Debug, Default)]
struct Clients {
    revoked: BTreeSet<ClientId>,
    /// The number of open connections of each client that has any.
    connected: BTreeMap<ClientId, usize>,
    /// The number of open connections of all clients.
    open: u64,
}

impl Common {
    pub(crate) fn new(memory: Arc<Memory>, keys: Option<Keys>, connections_max: usize, threads: usize) -> Common {
        Common {
            memory,
            keys,
            connections_max: connections_max as u64,
            since: monotonic_ns(),
            clients: Mutex::default(),
            counters: (0..threads).map(|_| Counters::default()).collect(),
        }
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max as usize
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            self.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
        };
        let clients = self.clients();
        NodeStatus {
            uptime_ns: monotonic_ns().saturating_sub(self.since),
            connections: clients.open,
            revoked: clients.revoked.len() as u64,
            frames: sum(|counters| &counters.frames),
            sends: sum(|counters| &counters.sends),
            service_cpu_ns: sum(|counters| &counters.service_cpu_ns),
            cpu_ns: process_cpu_ns(),
        }
    }

    /// Notes that a client's access is revoked: none of its connections is admitted from now on.
    /// The open ones have yet to be closed.
    fn revoke(&self, client: ClientId) {
        if self.clients().revoked.insert(client) {
            tracing::warn!(client = client.0, "a client's access is revoked");
        }
    }
}

/// A memory node, as the connections of one thread of its server use it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) common: Arc<Common>,
    memory: Arc<Memory>,
    /// The thread's number.
    thread: usize,
    /// Clients that were revoked a moment ago. The server closes their connections before it serves
    /// anything else.
    evicted: Vec<ClientId>,
    /// An order to erase everything that came a moment ago. The server carries it out before it
    /// serves anything else.
    pub(super) forgetting: Option<Vec<u64>>,
    /// Whether memory may have changed since the services last looked.
    pub(crate) wrote: bool,
    unfenced: Cell<bool>,
    /// A call's request and reply, next to each other.
    call: Vec<u64>,
    /// The regions that clients reach by RDMA, and the number of queue pairs that do.
    exports: Option<Exports>,
    /// Whether only the NIC may change memory, because its atomics are not atomic to the CPU's.
    pub(super) exclusive: bool,
    pub(crate) queues: usize,
    /// What the log has to say about connections that were turned away.
    pub(crate) turned_away: TurnedAway,
}

impl Node {
    pub(crate) fn new(common: Arc<Common>, thread: usize, exports: Option<Exports>) -> Node {
        Node {
            exclusive: exports.as_ref().is_some_and(Exports::one_sided),
            exports,
            queues: 0,
            memory: common.memory.clone(),
            common,
            thread,
            evicted: Vec::new(),
            forgetting: None,
            wrote: false,
            unfenced: Cell::new(false),
            call: Vec::new(),
            turned_away: TurnedAway::default(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.common.counters[self.thread]
    }

    /// Returns the key to prove to a client that connects now.
    pub(crate) fn key(&self) -> Option<Key> {
        self.common.keys.as_ref().map(|keys| keys.now().first)
    }

    /// Returns this end's hello for a new connection. `None` if the system gives no nonce.
    pub(crate) fn hello(&self) -> Option<ServerHello> {
        let nonce = random();
        let nonce = nonce.inspect_err(|error| tracing::warn!(%error, "the system gives no random bytes")).ok()?;
        let regions =
            (0..REGIONS_PER_NODE_MAX as u16).map_while(|region| self.memory.region(NodeId(0), RegionId(region)));
        let bytes: Vec<u64> = regions.map(|region| region.bytes()).collect();
        Some(ServerHello::new(&bytes, self.common.keys.is_some(), nonce))
    }

    /// Decides whether a client that has proved itself may come in.
    pub(crate) fn admit(&self, purpose: Purpose) -> Verdict {
        let Purpose::Verbs(client) = purpose else { return Verdict::Welcome };
        let mut clients = self.common.clients();
        if clients.revoked.contains(&client) {
            return Verdict::Revoked;
        }
        if clients.open >= self.common.connections_max {
            return Verdict::Full;
        }
        clients.open += 1;
        *clients.connected.entry(client).or_default() += 1;
        Verdict::Welcome
    }

    /// Records that a connection of an admitted client has ended.
    pub(crate) fn leave(&self, client: ClientId) {
        let mut clients = self.common.clients();
        clients.open -= 1;
        if let Some(connections) = clients.connected.get_mut(&client) {
            *connections -= 1;
        }
        clients.connected.retain(|_, connections| *connections > 0);
    }

    /// Executes a frame of verbs and appends the response.
    pub(crate) fn execute(
        &mut self,
        client: ClientId,
        request: &Request,
        frame: &mut [u64],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        count(&self.counters().frames, 1);
        let at = frame::begin_response(out, frame::DONE, request.ticket);
        let answers_max = out.end() + ROUND_WORDS_MAX;
        let mut next = frame::HEAD_WORDS;
        while next < frame.len() {
            let into = out.end();
            let verb = frame::verb(frame, &mut next, into as u32)?;
            let words = frame::answer_words(&verb);
            if into + words > answers_max {
                return Err(Malformed::TooLong);
            }
            let executed = match verb {
                Verb::Write { .. } | Verb::CompareSwap { .. } | Verb::FetchAdd { .. } if self.exclusive => {
                    Err(FabricError { node: NodeId(0), fault: Fault::Refused(Refusal::NeedsRdma) })
                }
                Verb::Write { .. } => execute_verb(&self.memory, &verb, frame, &self.unfenced, client),
                Verb::Call { .. } => self.call(&verb, frame, client, out),
                _ => {
                    out.grow(words);
                    execute_verb(&self.memory, &verb, out.words_mut(), &self.unfenced, client)
                }
            };
            self.wrote |= !matches!(verb, Verb::Read { .. } | Verb::Flush { .. });
            if let Err(error) = executed {
                out.truncate(at);
                frame::put_fault(out, error.fault, request.ticket);
                return Ok(());
            }
        }
        frame::end(out, at);
        Ok(())
    }

    /// Serves a call. Its request lies in the frame and its reply goes out. A handler gets both in
    /// one place.
    fn call(&mut self, verb: &Verb, frame: &[u64], client: ClientId, out: &mut Outbox) -> Result<(), FabricError> {
        let &Verb::Call { node, head, head_words, capacity, .. } = verb else { return Ok(()) };
        let request = &frame[head as usize..][..head_words as usize];
        self.call.clear();
        self.call.extend_from_slice(request);
        self.call.resize(request.len() + 1 + capacity as usize, 0);
        let into = head_words;
        let verb = Verb::Call { node, head: 0, head_words, body: 0, body_words: 0, into, capacity };
        execute_verb(&self.memory, &verb, &mut self.call, &self.unfenced, client)?;
        let reply = &self.call[into as usize..];
        out.extend(&reply[..1 + reply[0] as usize]);
        Ok(())
    }

    /// Makes a queue pair for a client that has introduced its own, and appends the answer. Returns
    /// `None` if it cannot, and the answer says so.
    pub(crate) fn accept(&mut self, request: &Request, frame: &[u64], out: &mut Outbox) -> Option<Queue> {
        let mut reply = Vec::new();
        let accepted = match &mut self.exports {
            Some(exports) => exports.accept(&frame[frame::HEAD_WORDS..], &mut reply).map_err(|error| {
                tracing::warn!(%error, "no queue pair for a client");
                Refusal::Rdma(error.cause().unwrap_or(ErrorKind::ConnectionRefused.into()))
            }),
            None => Err(Refusal::NoRdma),
        };
        match accepted {
            Ok(queue) => {
                let at = frame::begin_response(out, frame::DONE, request.ticket);
                out.extend(&reply);
                frame::end(out, at);
                self.queues += 1;
                self.wrote = true; // the services look often from now on
                Some(queue)
            }
            Err(refusal) => {
                frame::put_fault(out, Fault::Refused(refusal), request.ticket);
                None
            }
        }
    }

    /// Calls `add` with each channel that connections share, so that the caller waits for it.
    pub(crate) fn watch(&self, add: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        self.exports.as_ref().map_or(Ok(()), |exports| exports.watch(add))
    }

    /// Looks at what has arrived over the queue pairs that connections share. With `arm`, their
    /// channels also wake for what arrives later.
    pub(crate) fn poll(&self, arm: bool) {
        if let Some(exports) = &self.exports {
            exports.poll(arm);
        }
    }

    /// Returns when to poll even if nothing arrives.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.exports.as_ref()?.due()
    }

    /// Whether polling has found something for any connection.
    pub(crate) fn has_ready(&self) -> bool {
        self.exports.as_ref().is_some_and(Exports::has_ready)
    }

    /// Appends the places of the connections that polling has found something for.
    pub(crate) fn ready(&self, into: &mut Vec<usize>) {
        if let Some(exports) = &self.exports {
            exports.ready(into);
        }
    }

    /// Serves a request that is not a round.
    pub(crate) fn administrate(&mut self, request: &Request, frame: &[u64], out: &mut Outbox) -> Result<(), Malformed> {
        let at = frame::begin_response(out, frame::DONE, request.ticket);
        match (request.kind, &frame[frame::HEAD_WORDS..]) {
            (Kind::Status, []) => out.extend(&self.common.status().to_words()),
            (Kind::Status, &[client]) => {
                let clients = self.common.clients();
                let connections = clients.connected.iter().find(|(one, _)| u64::from(one.0) == client);
                out.extend(&[connections.map_or(0, |(_, connections)| *connections as u64)]);
            }
            (Kind::Revoke, &[client]) => {
                let client = u32::try_from(client).ok().filter(|client| *client >> CLIENT_BITS == 0);
                self.revoke(ClientId(client.ok_or(Malformed::Answer)?));
            }
            (Kind::Forget, order) => self.forgetting = Some(order.to_vec()),
            _ => return Err(Malformed::Forbidden),
        }
        frame::end(out, at);
        Ok(())
    }

    /// Revokes a client's access. Its connections are closed before this thread serves anything
    /// else. So no verb of the client takes effect once any other client can know of the
    /// revocation.
    pub(crate) fn revoke(&mut self, client: ClientId) {
        self.common.revoke(client);
        self.evicted.push(client);
    }

    /// Whether a client was revoked a moment ago, or everything is to be erased.
    pub(crate) fn has_orders(&self) -> bool {
        !self.evicted.is_empty() || self.forgetting.is_some()
    }

    /// Takes one of the clients that were revoked a moment ago.
    pub(crate) fn evicted(&mut self) -> Option<ClientId> {
        self.evicted.pop()
    }

    /// Makes the writes of this thread visible to every other CPU, because an answer promises that
    /// they are.
    pub(crate) fn before_send(&mut self) {
        count(&self.counters().sends, 1);
        if self.unfenced.replace(false) {
            fence(Ordering::SeqCst);
        }
    }
}
