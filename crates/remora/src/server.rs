//! A memory node that this process serves to clients in other processes. `remora memnode` runs one.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use remora_fabric::shm::Memory;
use remora_fabric::shm::file::{self, PassiveFile, PriorMemory, ShmFiles, ShmNode};
use remora_fabric::tcp::{Server, ServerError, ServerHandle, ServerOptions};
use remora_fabric::{Host, LINE_BYTES, NodeId, Region, RegionError, ServiceHandle};
use remora_node::{MemoryError, node};
use remora_txn::{Applier, RpcHandler};

/// Why a memory node could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The address cannot be served.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The file cannot be served.
    #[error(transparent)]
    File(#[from] file::OpenError),
    /// The system does not give the memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The memory is too small, or has content that this program does not know.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The system does not give a thread.
    #[error("the system gives no thread: {0}")]
    Thread(std::io::Error),
}

/// A memory node that this process serves, over TCP ([`MemoryNode::listen`]) or in a file
/// ([`MemoryNode::map`]). Dropping it stops the node.
#[derive(Debug)]
pub struct MemoryNode {
    region: Arc<Region>,
    found: PriorMemory,
    address: Option<SocketAddr>,
    // The fields are in the order in which they must be dropped.
    _applier: Option<ServiceHandle>,
    _files: Option<ShmFiles>,
    server: Option<(ServerHandle, Option<JoinHandle<()>>)>,
}

impl MemoryNode {
    /// Serves `bytes` bytes of new memory over TCP, at `address` (`host:port`). The memory is lost
    /// when the node is stopped. The call takes all of the memory from the system at once, so that
    /// a node never promises more than it has. Fails if the address cannot be served, or if the
    /// system does not give the memory.
    pub fn listen(address: &str, bytes: u64, options: ServerOptions) -> Result<MemoryNode, NodeError> {
        MemoryNode::serve(address, bytes, options, Region::take)
    }

    /// Serves new memory over TCP, and takes it from the system page by page when it is first used.
    /// So the node starts at once, however large it is. If the system then has no memory left, it
    /// kills the process.
    pub fn listen_on_demand(address: &str, bytes: u64, options: ServerOptions) -> Result<MemoryNode, NodeError> {
        MemoryNode::serve(address, bytes, options, |_| Ok(()))
    }

    fn serve(
        address: &str,
        bytes: u64,
        options: ServerOptions,
        take: impl FnOnce(&Region) -> Result<(), RegionError>,
    ) -> Result<MemoryNode, NodeError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).checked_next_multiple_of(LINE_BYTES).unwrap_or(0);
        let memory = Arc::new(Memory::map(&[vec![bytes]])?);
        let region = memory.region(NodeId(0), node::REGION).ok_or(MemoryError::Foreign(NodeId(0)))?.clone();
        take(&region)?;
        node::format(&region, node::Place::default())?;
        let mut server = Server::bind(address, options, memory)?;
        server.answer(Box::new(RpcHandler::new(region.clone())));
        server.serve(Box::new(Applier::new(region.clone())));
        let (address, handle) = (server.local_addr()?, server.handle());
        let thread = thread::Builder::new().name("memory-node".to_owned()).spawn(move || server.run());
        let server = Some((handle, Some(thread.map_err(NodeError::Thread)?)));
        let address = Some(address);
        Ok(MemoryNode { region, found: PriorMemory::New, address, _applier: None, _files: None, server })
    }

    /// Serves a file of this host, or a memory device, with its content. Makes the file, with
    /// `bytes` bytes, if there is none. If `bytes` is `None`, the file must exist, and has the size
    /// that it has. Fails if the file cannot be used, is too small, or has content that this
    /// program does not know.
    pub fn map(path: &Path, bytes: Option<u64>) -> Result<MemoryNode, NodeError> {
        large_enough(bytes)?;
        let file = ShmNode::open(path, bytes)?;
        let (region, found) = (file.region().clone(), file.found());
        let line = first_line(&region);
        // If the first line is zeros, the process that made the file was killed before it laid the
        // memory out. So no client has used it.
        if found == PriorMemory::New || line == [0; 8] {
            node::format(&region, node::Place::default())?;
        } else {
            node::Superblock::parse(NodeId(0), &line)?;
        }
        file.answer(Box::new(RpcHandler::new(region.clone())));
        let files = ShmFiles::new(&[path], vec![file])?;
        let applier = files.serve(NodeId(0), "applier", Box::new(Applier::new(region.clone())));
        Ok(MemoryNode { region, found, address: None, _applier: Some(applier), _files: Some(files), server: None })
    }

    /// Returns what the node's memory held when the node was started.
    #[must_use]
    pub fn found(&self) -> PriorMemory {
        self.found
    }

    /// Returns the address on which the node listens, or `None` if it serves a file.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the memory of this node.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// Fails if a memory node cannot have so few bytes. Call this before there is a file of that size.
fn large_enough(bytes: Option<u64>) -> Result<(), MemoryError> {
    match bytes.filter(|bytes| *bytes < node::BYTES_MIN) {
        Some(bytes) => Err(MemoryError::TooSmall { wanted: node::BYTES_MIN, bytes }),
        None => Ok(()),
    }
}

fn first_line(region: &Region) -> [u64; 8] {
    let mut line = [0; 8];
    remora_fabric::copy::read(region.words(), 0, &mut line);
    line
}

/// Passive memory: a memory node in a file of this host, or in a memory device, that clients use
/// without a server. `remora memnode --passive` makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PassiveMemory {
    /// The size of the node's memory in bytes.
    pub bytes: u64,
    /// Whether the memory was formatted now, and is empty.
    pub is_new: bool,
}

impl PassiveMemory {
    /// Formats a file or memory device, or checks that it is passive memory of this version
    /// already. Then clients can use it ([`Nodes::Shm`](crate::connect::Nodes::Shm)). Makes the
    /// file, with `bytes` bytes, if there is none. If `bytes` is `None`, the file must exist, and
    /// has the size that it has.
    ///
    /// Fails, and changes nothing, if the file is something else, has another size or version, or
    /// has a server.
    pub fn format(path: &Path, bytes: Option<u64>) -> Result<PassiveMemory, NodeError> {
        large_enough(bytes)?;
        let file = PassiveFile::open(path, bytes)?;
        let (region, is_new) = (file.region(), !file.is_published());
        if is_new {
            node::format(region, node::Place::default())?;
            file.publish();
        } else {
            node::Superblock::parse(NodeId(0), &first_line(region))?;
        }
        Ok(PassiveMemory { bytes: region.bytes(), is_new })
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        if let Some((handle, thread)) = &mut self.server {
            handle.stop();
            if thread.take().is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("a memory node's server panicked");
            }
        }
    }
}
