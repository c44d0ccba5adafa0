//! The addresses of memory nodes that are processes of their own, and the fabric that reaches them.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use remora_fabric::shm::file::{self, ShmFiles};
use remora_fabric::tcp::{NodeStatus, Tcp, TcpOptions, is_address};
use remora_fabric::{Fabric, Fault, NodeId, Refusal};
use remora_node::{MemoryError, Metadata};

/// The addresses or paths of all memory nodes of a cluster, in any order.
///
/// As text they are `host:port,host:port,...` for nodes over TCP, or `shm:path,path,...` for nodes
/// in files of this host. Paths need not be valid text, so a list can also be parsed from an
/// [`OsStr`]. A path with a comma cannot be in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nodes {
    /// Memory nodes over TCP: host and port of each.
    Tcp(Vec<String>),
    /// Memory nodes in files of this host, or in memory devices: the path of each.
    Shm(Vec<PathBuf>),
}

impl From<&Nodes> for Nodes {
    fn from(nodes: &Nodes) -> Nodes {
        nodes.clone()
    }
}

/// The default is a list without memory nodes.
impl Default for Nodes {
    fn default() -> Nodes {
        Nodes::Tcp(Vec::new())
    }
}

impl Nodes {
    /// Returns the number of memory nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Nodes::Tcp(addresses) => addresses.len(),
            Nodes::Shm(paths) => paths.len(),
        }
    }

    /// Returns the name of the fabric, for reports.
    #[must_use]
    pub fn fabric(&self) -> &'static str {
        match self {
            Nodes::Tcp(_) => "tcp",
            Nodes::Shm(_) => "shm",
        }
    }

    /// Returns the address or path of a node, by its place in the list.
    #[must_use]
    pub fn name(&self, node: NodeId) -> Option<String> {
        let at = usize::from(node.0);
        match self {
            Nodes::Tcp(addresses) => addresses.get(at).cloned(),
            Nodes::Shm(paths) => paths.get(at).map(|path| path.display().to_string()),
        }
    }

    /// Returns whether a node has this name. The name is an address as it was written, or a path,
    /// which need not be valid text.
    #[must_use]
    pub fn is_named(&self, node: NodeId, name: &OsStr) -> bool {
        let at = usize::from(node.0);
        match self {
            Nodes::Tcp(addresses) => addresses.get(at).is_some_and(|address| *address.as_str() == *name),
            Nodes::Shm(paths) => paths.get(at).is_some_and(|path| path.as_os_str() == name),
        }
    }

    /// Returns the place in the list of the node that has this name.
    pub(super) fn place_of(&self, name: &str) -> Option<NodeId> {
        (0..self.count() as u16).map(NodeId).find(|node| self.name(*node).as_deref() == Some(name))
    }

    /// Returns these nodes and further ones, whose names must have the form of these nodes' names.
    pub(super) fn with(&self, names: &[&String]) -> Nodes {
        match self {
            Nodes::Tcp(addresses) => Nodes::Tcp(addresses.iter().chain(names.iter().copied()).cloned().collect()),
            Nodes::Shm(paths) => Nodes::Shm(paths.iter().cloned().chain(names.iter().map(PathBuf::from)).collect()),
        }
    }

    /// Returns these nodes, sorted by `numbers`: `numbers[i]` is the number of the i-th node.
    pub(super) fn sorted(&self, numbers: &[NodeId]) -> Nodes {
        fn sort<T: Clone>(list: &[T], numbers: &[NodeId]) -> Vec<T> {
            let mut numbered: Vec<_> = numbers.iter().zip(list).collect();
            numbered.sort_by_key(|(number, _)| **number);
            numbered.into_iter().map(|(_, one)| one.clone()).collect()
        }
        match self {
            Nodes::Tcp(addresses) => Nodes::Tcp(sort(addresses, numbers)),
            Nodes::Shm(paths) => Nodes::Shm(sort(paths, numbers)),
        }
    }
}

/// The error of a text that is no list of memory nodes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no list of memory nodes: write host:port,host:port,... or shm:path,path,...")]
pub struct NotNodes(String);

impl FromStr for Nodes {
    type Err = NotNodes;

    fn from_str(text: &str) -> Result<Nodes, NotNodes> {
        OsStr::new(text).try_into()
    }
}

impl TryFrom<&OsStr> for Nodes {
    type Error = NotNodes;

    fn try_from(text: &OsStr) -> Result<Nodes, NotNodes> {
        const IN_FILES: &[u8] = b"shm:";
        let wrong = || NotNodes(text.to_string_lossy().into_owned());
        let nodes = match text.as_bytes().strip_prefix(IN_FILES) {
            // Every path may have the prefix, not only the first one.
            Some(paths) => {
                let path = |path: &[u8]| OsStr::from_bytes(path.strip_prefix(IN_FILES).unwrap_or(path)).into();
                Nodes::Shm(paths.split(|byte| *byte == b',').map(path).collect())
            }
            None => {
                let addresses = text.to_str().ok_or_else(wrong)?.split(',');
                Nodes::Tcp(addresses.map(|address| address.trim().to_owned()).collect())
            }
        };
        let whole = match &nodes {
            Nodes::Shm(paths) => paths.iter().all(|path| !path.as_os_str().is_empty()),
            Nodes::Tcp(addresses) => addresses.iter().all(|address| is_address(address)),
        };
        if whole && nodes.count() <= remora_fabric::limits::NODES_MAX { Ok(nodes) } else { Err(wrong()) }
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nodes::Tcp(addresses) => f.write_str(&addresses.join(",")),
            Nodes::Shm(paths) => {
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                write!(f, "shm:{}", paths.join(","))
            }
        }
    }
}

/// The fabric of memory nodes that are other processes.
#[derive(Clone)]
pub(super) enum Remote {
    Tcp(Tcp),
    Shm(ShmFiles),
}

impl Remote {
    /// Makes a fabric that reaches these nodes. `tcp` has the options for nodes over TCP.
    pub(super) fn new(nodes: &Nodes, tcp: TcpOptions) -> Result<Remote, file::OpenError> {
        Ok(match nodes {
            Nodes::Tcp(addresses) => Remote::Tcp(Tcp::new(addresses.clone(), tcp)),
            Nodes::Shm(paths) => Remote::Shm(ShmFiles::new(paths, Vec::new())?),
        })
    }

    /// Returns the fabric, for clients.
    pub(super) fn fabric(&self) -> Arc<dyn Fabric> {
        match self {
            Remote::Tcp(tcp) => Arc::new(tcp.clone()),
            Remote::Shm(files) => Arc::new(files.clone()),
        }
    }

    /// Adds a node, which new connections reach from now on. Returns false if nodes cannot be
    /// added.
    #[must_use]
    pub(super) fn add(&self, name: &str) -> bool {
        match self {
            Remote::Tcp(tcp) => tcp.add(name.to_owned()),
            Remote::Shm(_) => false,
        }
    }

    /// Returns the CPU time that the process of a node has used so far, in nanoseconds, or 0 if it
    /// is not known.
    pub(super) fn cpu_ns(&self, node: NodeId) -> u64 {
        match self {
            Remote::Tcp(tcp) => tcp.status(node).map_or(0, |status| status.cpu_ns),
            Remote::Shm(files) => files.server_cpu_ns(node).unwrap_or(0),
        }
    }

    /// Returns the status of a node's server, if it can be asked.
    pub(super) fn status(&self, node: NodeId) -> Option<NodeStatus> {
        match self {
            Remote::Tcp(tcp) => tcp.status(node).ok(),
            Remote::Shm(_) => None,
        }
    }
}

/// Fails if a replica is at a node whose name is not known.
pub(super) fn are_named(metadata: &Metadata, nodes: u16) -> Result<(), MemoryError> {
    let replicas = metadata.shards.iter().flat_map(|shard| &shard.replicas);
    match replicas.map(|replica| replica.node).find(|node| node.0 >= nodes) {
        Some(node) => Err(MemoryError::NotNamed(node)),
        None => Ok(()),
    }
}

/// Returns whether a fault means that a node does not answer at all, rather than that it refuses
/// the client.
pub(crate) fn is_silence(fault: Fault) -> bool {
    let refused = matches!(fault, Fault::Refused(Refusal::Unreachable(_) | Refusal::Name(_)));
    refused || matches!(fault, Fault::Unreachable | Fault::Behind)
}
