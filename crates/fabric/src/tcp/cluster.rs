//! The state that all transports of one TCP fabric share: the nodes' addresses, the options, which
//! nodes are down, and how a connection to a node is made.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

use crate::address::NodeId;
use crate::error::{FabricError, Fault, Refusal};
use crate::ids::ClientId;
use crate::limits::{HANDSHAKE_NS, PATIENCE_NS};
use crate::poller::Bell;
use crate::rdma::{Device, Domain};
use crate::shm::CAPABILITIES;
use crate::tcp::handshake::{self, Purpose, ServerHello};
use crate::tcp::key::Keys;
use crate::tcp::names::Names;
use crate::tcp::rdma;
use crate::tcp::stream::{Stream, set_up};
use crate::tcp::tls::ClientTls;
use crate::transport::Capabilities;

/// Options of a client's connections.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The keys of the client. The first key of each server must be among them.
    pub keys: Option<Keys>,
    /// The certificates that the client trusts. If they are given, the client connects only to
    /// servers with TLS, and checks the name in the address.
    pub tls: Option<ClientTls>,
    /// The RDMA device by which the client reaches the nodes' memory; see [RDMA](crate::rdma). The
    /// nodes must have one, too.
    pub rdma: Option<Device>,
    /// Time without an answer after which a node is taken for down. More than a day counts as one
    /// day.
    pub patience: Duration,
    /// Time limit for making a connection, without the handshakes.
    pub connect_timeout: Duration,
    /// The memory of names' addresses.
    pub names: Names,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            keys: None,
            tls: None,
            rdma: None,
            patience: Duration::from_nanos(PATIENCE_NS),
            connect_timeout: Duration::from_secs(2),
            names: Names::default(),
        }
    }
}

/// The state that the transports of a fabric share.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The nodes' addresses. The list only grows.
    pub(crate) addresses: RwLock<Vec<String>>,
    pub(crate) options: TcpOptions,
    /// The nodes that are down, one bit each.
    pub(crate) down: AtomicU64,
    /// The bells of the transports. They wake a transport that waits, to tell it which nodes are
    /// down.
    pub(crate) bells: Mutex<Vec<Weak<Bell>>>,
    /// What is known about which nodes answer. At most one thread asks each node.
    pub(crate) inquiries: Mutex<BTreeMap<NodeId, Inquiry>>,
}

/// What is known about whether a node answers.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    pub(crate) is_under_way: bool,
    /// The time at which the last question ended, if the node had answered.
    pub(crate) answered: Option<Instant>,
}

/// The time for which an answer shows that a node answers.
pub(crate) const ANSWER_COUNTS: Duration = Duration::from_secs(10);

impl Cluster {
    pub(crate) fn is_down(&self, node: NodeId) -> bool {
        self.down.load(Ordering::Relaxed) & bit(node) != 0
    }

    /// Opens a blocking connection to a node, and shakes hands.
    pub(crate) fn open(&self, node: NodeId, purpose: Purpose) -> Result<(Stream, ServerHello), Fault> {
        let names = &self.options.names;
        let name = self.addresses().get(usize::from(node.0)).cloned().ok_or(Fault::Unreachable)?;
        // The brackets around an IPv6 address do not belong to the host's name.
        let host = name.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
        let mut last = std::io::ErrorKind::AddrNotAvailable.into();
        for address in names.find(&name).map_err(|error| Fault::Refused(Refusal::Name(error)))? {
            match TcpStream::connect_timeout(&address, self.options.connect_timeout) {
                Ok(socket) => {
                    set_up(&socket, self.options.patience).map_err(not_connected)?;
                    let stream = Stream::client(socket, self.options.tls.as_ref(), host);
                    let mut stream = stream.map_err(|reason| Fault::Refused(Refusal::Tls(reason)))?;
                    let deadline = Instant::now() + Duration::from_nanos(HANDSHAKE_NS);
                    let hello = handshake::greet(&mut stream, self.options.keys.as_ref(), purpose, deadline)?;
                    names.met(&name, address);
                    return Ok((stream, hello));
                }
                Err(error) => last = error,
            }
        }
        Err(not_connected(last))
    }

    /// Makes a transport's connection to a node. Returns `Ok(Err)` for a node that is lost already.
    pub(crate) fn connect(
        &self,
        node: NodeId,
        client: ClientId,
        domain: Option<&mut Domain>,
    ) -> Result<Result<Stream, Fault>, FabricError> {
        if self.is_down(node) {
            return Ok(Err(Fault::Unreachable));
        }
        let opened = self.open(node, Purpose::Verbs(client)).and_then(|(stream, _)| match domain {
            Some(domain) => rdma::dial(stream, domain),
            None => Ok(stream),
        });
        match opened {
            Ok(stream) => match stream.socket().set_nonblocking(true) {
                Ok(()) => Ok(Ok(stream)),
                Err(error) => Err(FabricError { node, fault: not_connected(error) }),
            },
            // This is as for a client that is revoked while it is connected: its rounds report it.
            Err(Fault::Revoked) => Ok(Err(Fault::Revoked)),
            Err(fault) => Err(FabricError { node, fault }),
        }
    }

    /// Begins to look up the names of all nodes that are not down.
    pub(crate) fn prepare(&self) {
        let up = |(node, address)| (!self.is_down(NodeId(node))).then_some(address);
        self.options.names.prepare((0..).zip(&*self.addresses()).filter_map(up));
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        let shm = Capabilities { partitions: true, ..CAPABILITIES };
        self.options.rdma.as_ref().map_or(shm, Device::capabilities)
    }

    pub(crate) fn addresses(&self) -> RwLockReadGuard<'_, Vec<String>> {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> u16 {
        self.addresses().len() as u16
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.count()).map(NodeId)
    }
}

/// Converts an error into the reason why there is no connection.
fn not_connected(error: std::io::Error) -> Fault {
    Fault::Refused(error.into())
}

/// Returns the bit of a node, or no bit for a node that cannot exist.
pub(crate) fn bit(node: NodeId) -> u64 {
    1u64.checked_shl(u32::from(node.0)).unwrap_or(0)
}
