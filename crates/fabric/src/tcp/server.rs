//! The server of one memory node over TCP: one thread, with one event loop for everything.
//!
//! The thread that reads a frame executes it, and appends the answer to what the connection sends
//! next. It needs no other thread, no queue and no lock. So frames are executed one after the
//! other. A revocation is a frame too, and finds no other frame half executed. The node's services
//! run between frames. A batch of frames that changed memory wakes them, because one-sided writes
//! notify no other code.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use crate::address::NodeId;
use crate::error::{NameError, SystemError};
use crate::ids::{ClientId, Nanos};
use crate::limits::{CONNECTIONS_MAX, HANDSHAKE_NS, LAZY_NS, SPARE_CONNECTIONS};
use crate::rdma::{Device, Exports, VerbsError};
use crate::service::{Progress, Service, ServiceHandle, ServiceStop, thread_cpu_ns};
use crate::shm::{Memory, monotonic_ns};
use crate::tcp::buffer::{Outbox, Receiver};
use crate::tcp::connection::{Connection, Turn};
use crate::tcp::key::Keys;
use crate::tcp::names::{Names, is_address};
use crate::tcp::node::{Counters, Node, NodeStatus, count};
use crate::tcp::poller::{BELL, Bell, Interest, Poller};
use crate::tcp::stream::{Stream, set_up};
use crate::tcp::tls::ServerTls;
use crate::transport::Handler;

/// Token of the listener; connections have their places.
const LISTENER: u64 = BELL - 1;
/// Token of the channels that connections share.
const SHARED: u64 = BELL - 2;
/// The shortest time between two steps of the services. A batch costs less than its parts.
const STEP_GAP_NS: Nanos = 50_000;
/// The time until a service that found work is stepped again. Then the time doubles, and so on.
const NAP_MIN_NS: Nanos = 1_000_000;
/// The longest of these times. After it, the service waits to be woken.
const NAP_MAX_NS: Nanos = 64_000_000;
/// The longest of these times while clients have queue pairs. What such clients write is noticed
/// only by looking.
const QUEUE_NAP_MAX_NS: Nanos = 1_000_000;
/// The time until the server accepts connections again, after the system had no room for one.
const ACCEPT_PAUSE_NS: Nanos = 100_000_000;

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The keys of the server. Clients must have the first of them, too.
    pub keys: Option<Keys>,
    /// The certificate and key by which the server proves who it is. If they are given, it speaks
    /// TLS only.
    pub tls: Option<ServerTls>,
    /// Whether to serve every client that reaches the address although there is no key.
    pub insecure: bool,
    /// The device by which clients may reach the memory directly: see [RDMA](crate::rdma).
    pub rdma: Option<Device>,
    /// The number of clients' connections that the server accepts.
    pub connections_max: usize,
}

crate::setters!(ServerOptions {
    keys: impl Into<Option<Keys>>,
    tls: impl Into<Option<ServerTls>>,
    insecure: bool,
    rdma: impl Into<Option<Device>>,
    connections_max: usize,
});

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions { keys: None, tls: None, insecure: false, rdma: None, connections_max: CONNECTIONS_MAX }
    }
}

/// The reason why a server could not be started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// There is no key, so every program that reaches the address could read and write all memory.
    #[error("will not serve {0} without a key: give one (--key-file), or say that everybody is welcome (--insecure)")]
    NoKey(SocketAddr),
    /// The memory cannot be served by RDMA.
    #[error(transparent)]
    Rdma(#[from] VerbsError),
    /// The text is not an address with a port.
    #[error("is no address to listen on: write HOST:PORT, such as 127.0.0.1:7000, [::1]:7000 or 0.0.0.0:7000")]
    NotAddress,
    /// The name does not lead to an address.
    #[error("the name does not resolve: {0}")]
    Name(NameError),
    /// The system refused an operation.
    #[error("cannot {what}: {cause}")]
    System {
        /// The operation that was refused.
        what: &'static str,
        /// The system's error.
        cause: SystemError,
    },
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |error| ServerError::System { what, cause: error.into() }
}

/// The state that a server and its handles share.
struct Shared {
    bell: Arc<Bell>,
    stop: AtomicBool,
    /// The orders of the handles. `None` when the server is gone.
    orders: Mutex<Option<Vec<Order>>>,
    counters: Arc<Counters>,
    memory: Arc<Memory>,
    since: Nanos,
}

enum Order {
    Revoke(ClientId, mpsc::Sender<()>),
    Serve(Running),
    Wake,
}

/// A service that is running, with the handle's end that can stop it.
struct Running {
    service: Box<dyn Service>,
    stop: Option<ServiceStop>,
    panicked: bool,
}

impl Running {
    fn is_over(&self) -> bool {
        self.panicked || self.stop.as_ref().is_some_and(ServiceStop::requested)
    }
}

/// The server of one memory node.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    poller: Poller,
    tls: Option<ServerTls>,
    node: Node,
    receiver: Receiver,
    spare: Outbox,
    connections: Vec<Option<Box<Connection>>>,
    /// Places of connections whose turn it is because something has come over a queue pair that
    /// they share.
    ready: Vec<usize>,
    free: Vec<usize>,
    serials: u64,
    /// The times by which connections must have shaken hands, or taken the last message. They are
    /// ascending, because all connections have the same time limit.
    deadlines: VecDeque<(Nanos, usize, u64)>,
    /// Connections with answers that no coroutine waits for, and the time at which these are sent.
    deferred: Vec<usize>,
    deferred_until: Nanos,
    /// The time at which to accept connections again, after the system had no room for one.
    accept_at: Option<Nanos>,
    services: Vec<Running>,
    stepped_at: Nanos,
    step_at: Option<Nanos>,
    nap: Nanos,
}

/// A handle of a server that runs on another thread. Clones are handles of the same server.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl Server {
    /// Binds the address, `host:port`, to serve node 0 of this memory. Without a key it accepts an
    /// address of the local host only, unless [`ServerOptions::insecure`] is set.
    pub fn bind(address: &str, options: ServerOptions, memory: Arc<Memory>) -> Result<Server, ServerError> {
        if !is_address(address) {
            return Err(ServerError::NotAddress);
        }
        let addresses = Names::default().find(address).map_err(ServerError::Name)?;
        let listener = TcpListener::bind(&*addresses).map_err(cannot("bind the address"))?;
        let bound = listener.local_addr().map_err(cannot("bind the address"))?;
        if options.keys.is_none() && !options.insecure && !bound.ip().is_loopback() {
            return Err(ServerError::NoKey(bound));
        }
        listener.set_nonblocking(true).map_err(cannot("listen"))?;
        let bell = Arc::new(Bell::new().map_err(cannot("make an eventfd"))?);
        let poller = Poller::new(&bell).map_err(cannot("make an epoll"))?;
        poller.add(&listener, LISTENER, Interest::IN).map_err(cannot("listen"))?;
        let counters = Arc::<Counters>::default();
        let exports = options.rdma.as_ref().map(|device| Exports::new(device, &memory)).transpose()?;
        let shared = Shared {
            bell,
            stop: AtomicBool::new(false),
            orders: Mutex::new(Some(Vec::new())),
            counters: counters.clone(),
            memory: memory.clone(),
            since: monotonic_ns(),
        };
        Ok(Server {
            shared: Arc::new(shared),
            listener,
            poller,
            tls: options.tls,
            node: Node::new(memory, options.keys, options.connections_max, counters, exports),
            receiver: Receiver::new(),
            spare: Outbox::default(),
            connections: Vec::new(),
            ready: Vec::new(),
            free: Vec::new(),
            serials: 0,
            deadlines: VecDeque::new(),
            deferred: Vec::new(),
            deferred_until: 0,
            accept_at: None,
            services: Vec::new(),
            stepped_at: 0,
            step_at: None,
            nap: NAP_MIN_NS,
        })
    }

    /// Returns the address that the server is bound to.
    pub fn local_addr(&self) -> Result<SocketAddr, ServerError> {
        self.listener.local_addr().map_err(cannot("name the address"))
    }

    /// Returns a handle, by which other threads stop the server and ask it questions.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: self.shared.clone() }
    }

    /// Runs a service in the server's loop for as long as the server runs.
    pub fn serve(&mut self, service: Box<dyn Service>) {
        self.add_service(Running { service, stop: None, panicked: false });
    }

    /// Makes a handler serve the node's calls from now on.
    pub fn answer(&mut self, handler: Box<dyn Handler>) {
        self.shared.memory.answer(NodeId(0), handler);
    }

    fn add_service(&mut self, running: Running) {
        self.services.push(running);
        self.step_at = Some(0);
    }

    /// Serves until a handle stops it. Rounds in flight are then cut off.
    pub fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.wait();
            let mut arrivals = false;
            for number in 0.. {
                match self.poller.event(number) {
                    None => break,
                    Some((BELL, _)) => self.shared.bell.quiet(),
                    Some((LISTENER, _)) => arrivals = true,
                    Some((SHARED, _)) => self.node.poll(false),
                    Some((place, _)) => self.turn(place as usize),
                }
            }
            let mut ready = std::mem::take(&mut self.ready);
            self.node.ready(&mut ready);
            ready.drain(..).for_each(|place| self.turn(place));
            self.ready = ready;
            // This comes last, so that no event of this batch is taken for one of a new connection
            // that has an old one's place.
            if arrivals {
                self.accept();
            }
            self.obey();
            let now = monotonic_ns();
            if self.accept_at.take_if(|at| *at <= now).is_some() {
                // The call fails only for a socket that the poller does not have.
                let _ = self.poller.modify(&self.listener, LISTENER, Interest::IN);
            }
            self.send_deferred(now);
            self.expire(now);
            self.node.turned_away.tell(now);
            self.step(now);
        }
    }

    fn wait(&mut self) {
        // What arrived before a channel was armed does not wake it, so look once now.
        self.node.poll(true);
        let timers = [
            self.deadlines.front().map(|(at, ..)| *at),
            (!self.deferred.is_empty()).then_some(self.deferred_until),
            self.accept_at,
            self.step_at,
            self.node.turned_away.due(),
            if self.node.has_ready() { Some(0) } else { self.node.due() },
        ];
        let limit = timers.into_iter().flatten().min().map(|at| match at {
            0 => Duration::ZERO,
            at => Duration::from_nanos(at.saturating_sub(monotonic_ns())),
        });
        if self.shared.bell.sleep() {
            self.poller.wait(limit);
            self.shared.bell.wake_up();
        } else {
            self.poller.wait(Some(Duration::ZERO));
        }
    }

    /// Gives a connection its turn, and does what follows from that.
    fn turn(&mut self, place: usize) {
        let Some(mut connection) = self.connections.get_mut(place).and_then(Option::take) else { return };
        let (was_timed, had_channel) = (connection.is_timed(), connection.channel().is_some());
        let mut turn = connection.turn(&mut self.node, &mut self.receiver, &mut self.spare);
        if let Some(channel) = connection.channel().filter(|_| !had_channel) {
            let added = self.poller.add(channel, place as u64, Interest::IN);
            let poller = &self.poller;
            connection.own(place);
            let added = added.and_then(|()| self.node.watch(|shared| poller.add(shared, SHARED, Interest::IN)));
            turn = match added {
                // The channel wakes for what comes after a look that has found nothing.
                Ok(()) => connection.turn(&mut self.node, &mut self.receiver, &mut self.spare),
                Err(_) => Turn::Close,
            };
        }
        if connection.deferred && !std::mem::replace(&mut connection.listed, true) {
            if self.deferred.is_empty() {
                self.deferred_until = monotonic_ns() + LAZY_NS;
            }
            self.deferred.push(place);
        }
        self.put_back(place, connection, turn, was_timed);
        if (self.evict() | self.forget(place))
            && let Some(mut connection) = self.connections[place].take()
        {
            // Only now is the order carried out, so only now may it be answered.
            let turn = connection.send(&mut self.node, true);
            self.put_back(place, connection, turn, true);
        }
    }

    fn put_back(&mut self, place: usize, mut connection: Box<Connection>, turn: Turn, was_timed: bool) {
        let wanted = connection.wanted();
        let kept = turn == Turn::Keep
            && (wanted == connection.interest || self.poller.modify(connection.socket(), place as u64, wanted).is_ok());
        if !kept {
            if let Some(client) = connection.client() {
                self.node.leave(client);
                self.node.queues -= usize::from(connection.has_queue());
            }
            self.free.push(place);
            return;
        }
        connection.interest = wanted;
        if connection.is_timed() && !was_timed {
            self.deadlines.push_back((monotonic_ns() + HANDSHAKE_NS, place, connection.serial));
        }
        self.connections[place] = Some(connection);
    }

    /// Closes the connections of clients that have been revoked. Returns true if there were any.
    fn evict(&mut self) -> bool {
        let mut any = false;
        while let Some(client) = self.node.evicted() {
            any = true;
            for place in 0..self.connections.len() {
                if self.connections[place].as_ref().is_some_and(|connection| connection.client() == Some(client))
                    && let Some(mut connection) = self.connections[place].take()
                {
                    let turn = connection.revoke(&mut self.node);
                    self.put_back(place, connection, turn, false);
                }
            }
        }
        any
    }

    /// Erases everything, if the connection at this place has ordered that. Returns true if it has.
    fn forget(&mut self, asking: usize) -> bool {
        let Some(order) = self.node.forgetting.take() else { return false };
        let memory = self.shared.memory.clone();
        let mut cut = || {
            for place in (0..self.connections.len()).filter(|place| *place != asking) {
                if let Some(connection) = self.connections[place].take() {
                    self.put_back(place, connection, Turn::Close, false);
                }
            }
        };
        if let Some(answering) = memory.answering(NodeId(0)) {
            answering.forget(&order, &mut cut);
        }
        self.node.wrote = true;
        true
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    let open = self.connections.len() - self.free.len();
                    if open >= self.node.connections_max().saturating_add(SPARE_CONNECTIONS) {
                        self.node.turned_away.note(Some(peer), &format_args!("{open} are open already"));
                        continue;
                    }
                    if let Err(error) = self.welcome(stream) {
                        self.node.turned_away.note(Some(peer), &error);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    // The process is out of descriptors, most likely. The listener would be
                    // reported as ready all the time.
                    self.node.turned_away.note(None, &format_args!("none can be taken for now: {error}"));
                    if self.poller.modify(&self.listener, LISTENER, Interest::empty()).is_ok() {
                        self.accept_at = Some(monotonic_ns() + ACCEPT_PAUSE_NS);
                    }
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: TcpStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        set_up(&socket, Duration::from_secs(30))?;
        let stream = Stream::server(socket, self.tls.as_ref())?;
        self.serials += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if let Err(error) = self.poller.add(stream.socket(), place as u64, Interest::IN) {
            self.free.push(place);
            return Err(error);
        }
        self.deadlines.push_back((monotonic_ns() + HANDSHAKE_NS, place, self.serials));
        self.connections[place] = Some(Box::new(Connection::new(stream, self.serials)));
        Ok(())
    }

    /// Carries out the orders of the handles.
    fn obey(&mut self) {
        let orders = self.shared.orders().as_mut().map(std::mem::take);
        for order in orders.into_iter().flatten() {
            match order {
                Order::Revoke(client, confirm) => {
                    self.node.revoke(client);
                    self.evict();
                    let _ = confirm.send(()); // the thread that asked may have gone
                }
                Order::Serve(running) => self.add_service(running),
                Order::Wake => self.node.wrote = true,
            }
        }
    }

    fn send_deferred(&mut self, now: Nanos) {
        if self.deferred.is_empty() || now < self.deferred_until {
            return;
        }
        for place in std::mem::take(&mut self.deferred) {
            if let Some(mut connection) = self.connections[place].take() {
                connection.listed = false;
                let turn = if connection.deferred { connection.send(&mut self.node, true) } else { Turn::Keep };
                self.put_back(place, connection, turn, true);
            }
        }
    }

    /// Closes connections whose time limit has passed.
    fn expire(&mut self, now: Nanos) {
        while let Some((_, place, serial)) = self.deadlines.pop_front_if(|(at, ..)| *at <= now) {
            let late = |connection: &mut Box<Connection>| connection.serial == serial && connection.is_timed();
            if self.connections[place].take_if(late).is_some() {
                self.free.push(place);
            }
        }
    }

    /// Steps the services, if there may be something for them to do.
    fn step(&mut self, now: Nanos) {
        if std::mem::take(&mut self.node.wrote) {
            let soon = (self.stepped_at + STEP_GAP_NS).max(now);
            self.step_at = Some(self.step_at.map_or(soon, |at| at.min(soon)));
        }
        if self.step_at.is_none_or(|at| at > now) {
            return;
        }
        self.services.retain(|running| !running.is_over());
        if self.services.is_empty() {
            self.step_at = None;
            return;
        }
        let mut before = thread_cpu_ns();
        let (mut behind, mut worked) = (false, false);
        for running in &mut self.services {
            // A service that panics is not stepped again, so no code sees its half-changed state.
            match catch_unwind(AssertUnwindSafe(|| running.service.step())) {
                Ok(progress) => {
                    behind |= progress == Progress::Behind;
                    worked |= progress == Progress::Worked;
                }
                Err(_) => {
                    tracing::error!("a memory node's service panicked, and is stepped no more");
                    running.panicked = true;
                }
            }
            let after = thread_cpu_ns();
            count(&self.shared.counters.service_cpu_ns, after - before);
            if let Some(stop) = &running.stop {
                stop.add_cpu_ns(after - before);
            }
            before = after;
        }
        self.stepped_at = now;
        // What is written by RDMA wakes no service.
        let (nap_min, nap_max) = match self.node.queues {
            0 => (NAP_MIN_NS, 2 * NAP_MAX_NS),
            _ => (STEP_GAP_NS, QUEUE_NAP_MAX_NS),
        };
        self.nap = if worked || behind { nap_min } else { (self.nap * 2).min(nap_max) };
        self.step_at = match behind {
            true => Some(0),
            false => (self.nap <= NAP_MAX_NS).then_some(now + self.nap),
        };
    }
}

impl ServerHandle {
    /// Makes the server return from [`Server::run`].
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.bell.ring();
    }

    /// Revokes all access of a client. Returns when no verb of the client can take effect any more.
    /// If the server has not begun to run, it waits until it has.
    pub fn revoke(&self, client: ClientId) {
        let (confirm, confirmed) = mpsc::channel();
        self.order(Order::Revoke(client, confirm));
        let _ = confirmed.recv(); // a server that is gone serves no client
    }

    /// Runs a service in the server's loop until the handle is stopped or dropped.
    #[must_use = "the service ends when its handle is dropped"]
    pub fn serve(&self, service: Box<dyn Service>) -> ServiceHandle {
        let (handle, stop) = ServiceHandle::detached();
        self.order(Order::Serve(Running { service, stop: Some(stop), panicked: false }));
        handle
    }

    /// Makes a handler serve the node's calls from now on.
    pub fn answer(&self, handler: Box<dyn Handler>) {
        self.shared.memory.answer(NodeId(0), handler);
    }

    /// Makes the services look at memory that this process has changed by itself.
    pub fn wake(&self) {
        self.order(Order::Wake);
    }

    /// Returns the status of the server.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.shared.counters.status(self.shared.since)
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &mut *self.shared.orders() {
            orders.push(order);
            self.shared.bell.ring();
        }
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Option<Vec<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    /// Ends the waiting of threads, when the server is gone.
    fn drop(&mut self) {
        *self.shared.orders() = None;
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("status", &self.status()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
