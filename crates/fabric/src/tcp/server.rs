//! The server of one memory node over TCP: threads, with one event loop each.
//!
//! The thread that reads a frame executes it, and appends the answer to what the connection sends
//! next. It needs no other thread, no queue and no lock. So the frames of one thread are executed
//! one after the other. The frames of several threads meet in memory, as the verbs of clients do
//! that share memory, and in the node's [`Handler`].
//!
//! The first thread accepts all connections, and gives them to the threads in turn. It also runs
//! the node's services, between frames. A batch of frames that changed memory wakes them, because
//! one-sided writes notify no other code.
//!
//! A revocation is a frame, too. The thread that has read it waits until every other thread has
//! closed the client's connections, between two batches of frames ([`Cut`]). Then it answers. So
//! no frame of the client is half executed when another client has the answer.

mod cut;
mod event_loop;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use crate::address::NodeId;
use crate::error::{NameError, SystemError};
use crate::ids::ClientId;
use crate::limits::{CONNECTIONS_MAX, SERVER_THREADS_MAX};
use crate::poller::Bell;
use crate::rdma::{Device, Exports, VerbsError};
use crate::service::{Service, ServiceHandle, ServiceStop};
use crate::shm::Memory;
use crate::tcp::key::Keys;
use crate::tcp::names::{Names, is_address};
use crate::tcp::node::{Common, Node, NodeStatus};
use crate::tcp::tls::ServerTls;
use crate::transport::Handler;

use self::cut::Cut;
use self::event_loop::EventLoop;

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
    /// The number of threads that serve clients, from 1 to [`SERVER_THREADS_MAX`]. A server with an
    /// RDMA device has one.
    pub threads: usize,
}

crate::setters!(ServerOptions {
    keys: impl Into<Option<Keys>>,
    tls: impl Into<Option<ServerTls>>,
    insecure: bool,
    rdma: impl Into<Option<Device>>,
    connections_max: usize,
    threads: usize,
});

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            keys: None,
            tls: None,
            insecure: false,
            rdma: None,
            connections_max: CONNECTIONS_MAX,
            threads: 1,
        }
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
    /// The number of threads is not one that a server can have.
    #[error("cannot serve with {0} threads: a memory node has 1 to {SERVER_THREADS_MAX}")]
    Threads(usize),
    /// A server with an RDMA device was to have several threads.
    #[error("cannot serve RDMA with {0} threads: a memory node that is reached by RDMA has 1")]
    RdmaThreads(usize),
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

/// The state that the threads of a server and its handles share.
struct Shared {
    stop: AtomicBool,
    threads: Box<[Seat]>,
    common: Arc<Common>,
    /// The number of threads beside the first that have not ended.
    others: AtomicUsize,
    /// Whether memory may have changed since the services last looked, by another thread than
    /// theirs.
    wrote: AtomicBool,
    /// Held by the thread that makes all others close connections.
    cutting: Mutex<()>,
}

/// How the others reach a thread of a server.
struct Seat {
    bell: Arc<Bell>,
    /// The number of sockets that the thread has.
    sockets: AtomicUsize,
    /// What the thread is to do. `None` when the thread is gone.
    orders: Mutex<Option<VecDeque<Order>>>,
}

enum Order {
    /// To the first thread: revokes a client's access, and says when it is done.
    Revoke(ClientId, mpsc::Sender<()>),
    /// To the first thread: runs a service.
    Serve(Running),
    /// To the first thread: the services are to look at the memory.
    Wake,
    /// Serves a connection that the first thread has accepted.
    Take(TcpStream),
    /// Closes connections.
    Cut(Arc<Cut>),
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

impl Seat {
    fn orders(&self) -> MutexGuard<'_, Option<VecDeque<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the thread an order. Returns the order if the thread is gone.
    fn order(&self, order: Order) -> Result<(), Order> {
        match &mut *self.orders() {
            Some(orders) => orders.push_back(order),
            None => return Err(order),
        }
        self.bell.ring();
        Ok(())
    }

    /// Gives the thread a connection. Returns the connection if the thread is gone.
    fn give(&self, stream: TcpStream) -> Result<(), TcpStream> {
        self.sockets.fetch_add(1, Ordering::Relaxed);
        match self.order(Order::Take(stream)) {
            Err(Order::Take(stream)) => Err(stream),
            _ => Ok(()),
        }
    }

    fn sockets(&self) -> usize {
        self.sockets.load(Ordering::Relaxed)
    }
}

/// The server of one memory node.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    threads: Vec<EventLoop>,
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
        let count = options.threads;
        if !(1..=SERVER_THREADS_MAX).contains(&count) {
            return Err(ServerError::Threads(count));
        }
        if count > 1 && options.rdma.is_some() {
            return Err(ServerError::RdmaThreads(count));
        }
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
        let mut exports = options.rdma.as_ref().map(|device| Exports::new(device, &memory)).transpose()?;
        let seat = |bell| Seat {
            bell: Arc::new(bell),
            sockets: AtomicUsize::new(0),
            orders: Mutex::new(Some(VecDeque::new())),
        };
        let seats = (0..count).map(|_| Bell::new().map(seat)).collect::<Result<_, _>>();
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            threads: seats.map_err(cannot("make an eventfd"))?,
            common: Arc::new(Common::new(memory, options.keys, options.connections_max, count)),
            others: AtomicUsize::new(count - 1),
            wrote: AtomicBool::new(false),
            cutting: Mutex::new(()),
        });
        let threads = (0..count).map(|number| {
            let node = Node::new(shared.common.clone(), number, exports.take());
            EventLoop::new(shared.clone(), number, node, options.tls.clone()).map_err(cannot("make an epoll"))
        });
        let threads = threads.collect::<Result<Vec<_>, _>>()?;
        Ok(Server { shared, listener, threads })
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

    /// Runs a service on the server's first thread for as long as the server runs.
    pub fn serve(&mut self, service: Box<dyn Service>) {
        self.threads[0].add_service(Running { service, stop: None, panicked: false });
    }

    /// Makes a handler serve the node's calls from now on.
    pub fn answer(&mut self, handler: Box<dyn Handler>) {
        self.shared.common.memory.answer(NodeId(0), handler);
    }

    /// Serves until a handle stops it. Rounds in flight are then cut off.
    pub fn run(self) {
        let Server { listener, threads, .. } = self;
        thread::scope(|scope| {
            let mut threads = threads.into_iter();
            let first = threads.next();
            for other in threads {
                let name = format!("memory-node-{}", other.number());
                // A thread that could not be started leaves its connections to the others.
                if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, || other.run(None)) {
                    tracing::warn!(%error, "a memory node serves with fewer threads");
                }
            }
            if let Some(first) = first {
                first.run(Some(listener));
            }
        });
    }
}

impl Shared {
    /// Makes all threads end.
    fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.threads.iter().for_each(|seat| seat.bell.ring());
    }
}

impl ServerHandle {
    /// Makes the server return from [`Server::run`].
    pub fn stop(&self) {
        self.shared.end();
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
        self.shared.common.memory.answer(NodeId(0), handler);
    }

    /// Makes the services look at memory that this process has changed by itself.
    pub fn wake(&self) {
        self.order(Order::Wake);
    }

    /// Returns the status of the server.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.shared.common.status()
    }

    /// Gives the first thread an order, unless it is gone.
    fn order(&self, order: Order) {
        drop(self.shared.threads[0].order(order));
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
