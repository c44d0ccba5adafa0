//! What all transports of one fabric over TCP share: the nodes' addresses, the options, which nodes
//! are down, and how a connection to a node is made.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

use crate::address::NodeId;
use crate::error::{FabricError, Fault, Refusal};
use crate::ids::ClientId;
use crate::limits::{HANDSHAKE_NS, PATIENCE_NS};
use crate::rdma::{Device, Domain};
use crate::shm::CAPABILITIES;
use crate::tcp::handshake::{self, Purpose, ServerHello};
use crate::tcp::key::Keys;
use crate::tcp::names::Names;
use crate::tcp::poller::Bell;
use crate::tcp::rdma;
use crate::tcp::stream::{Stream, set_up};
use crate::tcp::tls::ClientTls;
use crate::transport::Capabilities;

/// How clients connect.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The first key of each server must be among them.
    pub keys: Option<Keys>,
    /// Whose certificates to trust: with it, only servers with TLS are talked to, by the name that
    /// stands in the address.
    pub tls: Option<ClientTls>,
    /// The device to reach the nodes' memory with: what makes it [RDMA](crate::rdma). They must
    /// have one too.
    pub rdma: Option<Device>,
    /// Time without an answer after which a node is down. More than a day counts as one
    /// day.
    pub patience: Duration,
    /// Time for a connection to be made, the handshakes not counted.
    pub connect_timeout: Duration,
    /// Where addresses are known by their names.
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

/// What the transports of a fabric share.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Only grow.
    pub(crate) addresses: RwLock<Vec<String>>,
    pub(crate) options: TcpOptions,
    /// Bits of the nodes that are down.
    pub(crate) down: AtomicU64,
    /// Bells of the transports: a transport that waits is told which nodes are down.
    pub(crate) bells: Mutex<Vec<Weak<Bell>>>,
    /// Whether nodes answer: one thread at most asks each.
    pub(crate) inquiries: Mutex<BTreeMap<NodeId, Inquiry>>,
}

/// Whether a node answers, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    pub(crate) is_under_way: bool,
    /// When the last one ended, if the node had answered.
    pub(crate) answered: Option<Instant>,
}

/// So long an answer says that a node answers.
pub(crate) const ANSWER_COUNTS: Duration = Duration::from_secs(10);

impl Cluster {
    pub(crate) fn is_down(&self, node: NodeId) -> bool {
        self.down.load(Ordering::Relaxed) & bit(node) != 0
    }

    /// A blocking connection to a node that has been welcomed.
    pub(crate) fn open(&self, node: NodeId, purpose: Purpose) -> Result<(Stream, ServerHello), Fault> {
        let names = &self.options.names;
        let name = self.addresses().get(usize::from(node.0)).cloned().ok_or(Fault::Unreachable)?;
        // Of an address in brackets, these are not part.
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

    /// A transport's connection to a node. `Ok(Err)` of one that is lost already.
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
            // As for a client that is revoked while it is connected: its rounds tell.
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

/// Why there is no connection.
fn not_connected(error: std::io::Error) -> Fault {
    Fault::Refused(error.into())
}

/// The bit of a node; none for one that cannot exist.
pub(crate) fn bit(node: NodeId) -> u64 {
    1u64.checked_shl(u32::from(node.0)).unwrap_or(0)
}
