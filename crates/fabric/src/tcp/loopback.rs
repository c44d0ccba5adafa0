//! A cluster of TCP servers in this process, each on a thread and a port of its own. It serves for
//! tests, and for trying out TCP.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::address::{NodeId, RegionId};
use crate::error::{FabricError, SystemError};
use crate::ids::ClientId;
use crate::region::{Region, RegionError};
use crate::service::{Service, ServiceHandle};
use crate::shm::Memory;
use crate::tcp::{Server, ServerError, ServerHandle, ServerOptions, Tcp, TcpOptions};
use crate::transport::{Capabilities, Fabric, Handler, Host, Transport};

/// The reason why a cluster of servers could not be started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoopbackError {
    /// The memory of the nodes could not be mapped.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// A server could not be started.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The system gives no thread.
    #[error("no thread for a server: {0}")]
    Thread(SystemError),
}

/// TCP servers in this process, and the fabric that reaches them. Dropping it stops them.
pub struct Loopback {
    tcp: Tcp,
    nodes: Vec<LocalNode>,
}

struct LocalNode {
    memory: Arc<Memory>,
    server: ServerHandle,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Loopback {
    /// Starts a server for each node, with regions of the given sizes in bytes. All servers have
    /// the clients' keys and RDMA device.
    pub fn new(nodes: &[Vec<usize>], options: TcpOptions) -> Result<Loopback, LoopbackError> {
        let (keys, rdma) = (options.keys.clone(), options.rdma.clone());
        let servers = ServerOptions { keys, rdma, ..ServerOptions::default() };
        Loopback::with_servers(nodes, &servers, options)
    }

    /// Starts servers as [`Loopback::new`] does, with the given options of the servers.
    pub fn with_servers(
        nodes: &[Vec<usize>],
        servers: &ServerOptions,
        options: TcpOptions,
    ) -> Result<Loopback, LoopbackError> {
        let mut addresses = Vec::with_capacity(nodes.len());
        let mut started = Vec::with_capacity(nodes.len());
        for sizes in nodes {
            let memory = Arc::new(Memory::map(std::slice::from_ref(sizes))?);
            let (node, address) = LocalNode::start(memory, servers.clone())?;
            addresses.push(address);
            started.push(node);
        }
        Ok(Loopback { tcp: Tcp::new(addresses, options), nodes: started })
    }

    /// Returns the fabric, which works as in any other process.
    #[must_use]
    pub fn tcp(&self) -> &Tcp {
        &self.tcp
    }

    /// Returns a handle of a node's server, or `None` if there is no such node.
    #[must_use]
    pub fn server(&self, node: NodeId) -> Option<&ServerHandle> {
        self.node(node).map(|node| &node.server)
    }

    /// Stops a node's server, as if its process had died. The clients must find out by themselves.
    pub fn stop(&self, node: NodeId) {
        if let Some(node) = self.node(node) {
            node.stop();
        }
    }

    fn node(&self, node: NodeId) -> Option<&LocalNode> {
        self.nodes.get(usize::from(node.0))
    }
}

impl LocalNode {
    fn start(memory: Arc<Memory>, options: ServerOptions) -> Result<(LocalNode, String), LoopbackError> {
        let server = Server::bind("127.0.0.1:0", options, memory.clone())?;
        let (handle, address) = (server.handle(), server.local_addr()?);
        let thread = thread::Builder::new()
            .name(format!("memory-{}", address.port()))
            .spawn(move || server.run())
            .map_err(|error| LoopbackError::Thread(error.into()))?;
        Ok((LocalNode { memory, server: handle, thread: Mutex::new(Some(thread)) }, address.to_string()))
    }

    fn stop(&self) {
        self.server.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a memory node's server panicked");
        }
    }
}

impl Drop for LocalNode {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Fabric for Loopback {
    fn nodes(&self) -> u16 {
        self.tcp.nodes()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        self.tcp.connect(client)
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.node(node)?.memory.region(NodeId(0), region).cloned()
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        self.tcp.revoke(client)
    }

    fn fail(&self, node: NodeId) {
        self.tcp.fail(node);
        self.stop(node);
    }

    fn forget(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        self.tcp.forget(node, order)
    }

    fn capabilities(&self) -> Capabilities {
        self.tcp.capabilities()
    }
}

impl Host for Loopback {
    fn serve(&self, node: NodeId, _: &str, service: Box<dyn Service>) -> ServiceHandle {
        match self.server(node) {
            Some(server) => server.serve(service),
            None => ServiceHandle::detached().0,
        }
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        if let Some(server) = self.server(node) {
            server.answer(handler);
        }
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}
