//! What a server's connections share: the memory node, who may use it, and what has been counted.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

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

/// How a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStatus {
    /// Time since it began to serve.
    pub uptime_ns: u64,
    /// Connections of clients that are open.
    pub connections: u64,
    /// Clients whose access has been revoked.
    pub revoked: u64,
    /// Frames of verbs that have been served.
    pub frames: u64,
    /// Times that answers were sent: a batch of them is one.
    pub sends: u64,
    /// CPU time of the node's services.
    pub service_cpu_ns: u64,
    /// CPU time of the server's whole process.
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

/// Counts of a server, written by its own thread only.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) revoked: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) sends: AtomicU64,
    pub(crate) service_cpu_ns: AtomicU64,
}

/// Counts up what only this thread writes: no locked instruction needed.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn status(&self, since: Nanos) -> NodeStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeStatus {
            uptime_ns: monotonic_ns().saturating_sub(since),
            connections: load(&self.connections),
            revoked: load(&self.revoked),
            frames: load(&self.frames),
            sends: load(&self.sends),
            service_cpu_ns: load(&self.service_cpu_ns),
            cpu_ns: process_cpu_ns(),
        }
    }
}

/// A memory node as its connections use it.
#[derive(Debug)]
pub(crate) struct Node {
    memory: Arc<Memory>,
    keys: Option<Keys>,
    connections_max: u64,
    counters: Arc<Counters>,
    since: Nanos,
    revoked: BTreeSet<ClientId>,
    /// Open connections of each client that has any.
    connected: BTreeMap<ClientId, usize>,
    /// Revoked just now: the server closes their connections before it serves anything else.
    evicted: Vec<ClientId>,
    /// An order to forget everything has just come: the server carries it out before it serves
    /// anything else.
    pub(super) forgetting: Option<Vec<u64>>,
    /// Whether memory may have changed since the services looked.
    pub(crate) wrote: bool,
    unfenced: Cell<bool>,
    /// A call's request and reply, next to each other.
    call: Vec<u64>,
    /// What clients reach by RDMA, and how many do.
    exports: Option<Exports>,
    /// Memory is changed by the NIC only: its atomics are none to the CPU's.
    pub(super) exclusive: bool,
    pub(crate) queues: usize,
    /// For the log.
    pub(crate) turned_away: TurnedAway,
}

impl Node {
    pub(crate) fn new(
        memory: Arc<Memory>,
        keys: Option<Keys>,
        connections_max: usize,
        counters: Arc<Counters>,
        exports: Option<Exports>,
    ) -> Node {
        Node {
            exclusive: exports.as_ref().is_some_and(Exports::one_sided),
            exports,
            queues: 0,
            memory,
            keys,
            connections_max: connections_max as u64,
            counters,
            since: monotonic_ns(),
            revoked: BTreeSet::new(),
            connected: BTreeMap::new(),
            evicted: Vec::new(),
            forgetting: None,
            wrote: false,
            unfenced: Cell::new(false),
            call: Vec::new(),
            turned_away: TurnedAway::default(),
        }
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max as usize
    }

    /// The key to prove to a client that has come now.
    pub(crate) fn key(&self) -> Option<Key> {
        self.keys.as_ref().map(|keys| keys.now().first)
    }

    /// Our hello to a new connection. `None` if the system gives no nonce.
    pub(crate) fn hello(&self) -> Option<ServerHello> {
        let nonce = random();
        let nonce = nonce.inspect_err(|error| tracing::warn!(%error, "the system gives no random bytes")).ok()?;
        let regions =
            (0..REGIONS_PER_NODE_MAX as u16).map_while(|region| self.memory.region(NodeId(0), RegionId(region)));
        let bytes: Vec<u64> = regions.map(|region| region.bytes()).collect();
        Some(ServerHello::new(&bytes, self.keys.is_some(), nonce))
    }

    /// Whether one that has proved himself may come in.
    pub(crate) fn admit(&mut self, purpose: Purpose) -> Verdict {
        let Purpose::Verbs(client) = purpose else { return Verdict::Welcome };
        if self.revoked.contains(&client) {
            return Verdict::Revoked;
        }
        if self.counters.connections.load(Ordering::Relaxed) >= self.connections_max {
            return Verdict::Full;
        }
        count(&self.counters.connections, 1);
        *self.connected.entry(client).or_default() += 1;
        Verdict::Welcome
    }

    /// A connection of a client that was admitted has ended.
    pub(crate) fn leave(&mut self, client: ClientId) {
        count(&self.counters.connections, u64::MAX);
        if let Some(connections) = self.connected.get_mut(&client) {
            *connections -= 1;
        }
        self.connected.retain(|_, connections| *connections > 0);
    }

    /// Executes a frame of verbs and appends the response.
    pub(crate) fn execute(
        &mut self,
        client: ClientId,
        request: &Request,
        frame: &mut [u64],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        count(&self.counters.frames, 1);
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

    /// Serves a call: its request lies in the frame, its reply goes out, and a handler's caller has
    /// both in one place.
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

    /// Makes a queue pair for a client that has introduced its own, and answers. `None` if it
    /// cannot: that is the answer.
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

    /// Has `add` look at the channels that connections share.
    pub(crate) fn watch(&self, add: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        self.exports.as_ref().map_or(Ok(()), |exports| exports.watch(add))
    }

    /// Sees what has come over what connections share; has the channels wake for what comes later,
    /// if `arm`.
    pub(crate) fn poll(&self, arm: bool) {
        if let Some(exports) = &self.exports {
            exports.poll(arm);
        }
    }

    /// When to poll though nothing comes.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.exports.as_ref()?.due()
    }

    /// Whether polling has found something for any connection.
    pub(crate) fn has_ready(&self) -> bool {
        self.exports.as_ref().is_some_and(Exports::has_ready)
    }

    /// The places of those connections.
    pub(crate) fn ready(&self, into: &mut Vec<usize>) {
        if let Some(exports) = &self.exports {
            exports.ready(into);
        }
    }

    /// Serves a request that is no round.
    pub(crate) fn administrate(&mut self, request: &Request, frame: &[u64], out: &mut Outbox) -> Result<(), Malformed> {
        let at = frame::begin_response(out, frame::DONE, request.ticket);
        match (request.kind, &frame[frame::HEAD_WORDS..]) {
            (Kind::Status, []) => out.extend(&self.status().to_words()),
            (Kind::Status, &[client]) => {
                let connections = self.connected.iter().find(|(one, _)| u64::from(one.0) == client);
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

    pub(crate) fn status(&self) -> NodeStatus {
        self.counters.status(self.since)
    }

    /// Takes a client's access. Its connections are closed before any other is served, so that no
    /// verb of it takes effect once anybody can know of the revocation.
    pub(crate) fn revoke(&mut self, client: ClientId) {
        if self.revoked.insert(client) {
            count(&self.counters.revoked, 1);
            tracing::warn!(client = client.0, "a client's access is revoked");
        }
        self.evicted.push(client);
    }

    /// Whether any have been revoked just now, or everything is to be forgotten.
    pub(crate) fn has_orders(&self) -> bool {
        !self.evicted.is_empty() || self.forgetting.is_some()
    }

    /// Those revoked just now.
    pub(crate) fn evicted(&mut self) -> Option<ClientId> {
        self.evicted.pop()
    }

    /// An answer says that what was written is there: it must be, for every other CPU.
    pub(crate) fn before_send(&mut self) {
        count(&self.counters.sends, 1);
        if self.unfenced.replace(false) {
            fence(Ordering::SeqCst);
        }
    }
}
