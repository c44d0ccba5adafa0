//! The TCP backend: any machine can be a memory node, without special hardware.
//!
//! A [`Server`] serves the regions of one memory node, from one thread or several
//! ([`ServerOptions::threads`]). [`Tcp`] is the fabric of the clients. It has a connection for each
//! endpoint and node, so what an endpoint posts to a node arrives in order. A connection stays with
//! one thread. The thread executes verbs by the same code as shared memory, one frame after the
//! other.
//!
//! # What it costs
//!
//! A round trip costs two system calls at each end, and the time that the network takes. The
//! coroutines of a worker may post several rounds in one go. All of these leave in one system call
//! for each node, and are answered in one. So with more coroutines each of them pays less. The
//! answers of background rounds are not sent by themselves (passive ACK). They ride on the next
//! answer that a client waits for, or leave after a millisecond.
//!
//! # Which clients may connect
//!
//! Ends that share a [`Key`] prove it to each other before any verb (`tcp/handshake.rs`). While the
//! cluster changes its key, an end may have two ([`Keys`]); connections that are open then stay
//! open. Without a key, a server binds the local host only, unless [`ServerOptions::insecure`] is
//! set. After the handshake, plain TCP is neither encrypted nor signed: an attacker who can read or
//! change the packets between the machines can read and change memory.
//!
//! With [`tls`], every packet is encrypted and signed, including the handshake, and the server
//! shows a certificate. The certificate proves which server it is. The key proves which clients may
//! connect. So a cluster across a network that others use needs both. An end with TLS and an end
//! without refuse each other.
//!
//! # Names
//!
//! Names of memory nodes are looked up on a separate thread, with a deadline, and are remembered
//! ([`Names`]). So a name server that is slow or silent does not keep a client from nodes that it
//! has reached before.
//!
//! # Failure
//!
//! A transport loses a node for good if the node closes the connection, breaks the protocol, or
//! leaves a round unanswered for longer than [`TcpOptions::patience`]. From then on, rounds to the
//! node fail with [`Fault::Unreachable`]. Nothing is ever sent twice, and nothing reconnects by
//! itself. It is unknown whether the verbs of a lost round have run, and only the layers above can
//! find out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::address::{NodeId, RegionId};
use crate::error::{FabricError, Fault, Refusal};
use crate::ids::ClientId;
use crate::limits::{NODES_MAX, PATIENCE_MAX_NS};
use crate::poller::{BELL, Bell, Interest, Poller};
use crate::rdma::Domain;
use crate::region::Region;
use crate::transport::{Capabilities, Fabric, Transport};

mod admin;
mod buffer;
mod cluster;
mod connection;
mod exchange;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod handshake;
mod key;
mod link;
mod loopback;
mod names;
mod node;
mod rdma;
mod server;
mod stand_in;
mod stream;
pub mod tls;
mod transport;
mod turned_away;

pub use cluster::TcpOptions;
pub use key::{Key, KeyError, KeyStep, Keys};
pub use loopback::{Loopback, LoopbackError};
pub use names::{Names, is_address};
pub use node::NodeStatus;
pub use server::{Server, ServerError, ServerHandle, ServerOptions};

use cluster::{ANSWER_COUNTS, Cluster, Inquiry, bit};
use frame::Kind;
use handshake::Purpose;
use transport::TcpTransport;

// Frames are words as the processor has them.
const _: () = assert!(cfg!(target_endian = "little"), "the tcp backend is for little-endian machines");

/// The fabric over TCP: memory nodes by their addresses. Clones are the same fabric.
#[derive(Clone)]
pub struct Tcp {
    cluster: Arc<Cluster>,
}

impl Tcp {
    /// Makes the fabric of these memory nodes, each as `host:port`. A node's number is its place in
    /// the list. Names are looked up when a connection is made; see [`Names`].
    #[must_use]
    pub fn new(addresses: Vec<String>, options: TcpOptions) -> Tcp {
        let patience = options.patience.min(Duration::from_nanos(PATIENCE_MAX_NS));
        let options = TcpOptions { patience, ..options };
        assert!(addresses.len() <= NODES_MAX, "at most {NODES_MAX} memory nodes");
        let addresses = RwLock::new(addresses);
        let (down, bells, inquiries) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        let cluster = Cluster { addresses, options, down, bells, inquiries };
        Tcp { cluster: Arc::new(cluster) }
    }

    /// Adds one memory node, which gets the last number, for clients that connect from now on.
    /// Returns false if the fabric has as many nodes as it can have.
    #[must_use]
    pub fn add(&self, address: String) -> bool {
        let mut addresses = self.cluster.addresses.write().unwrap_or_else(PoisonError::into_inner);
        let has_room = addresses.len() < NODES_MAX;
        if has_room {
            self.cluster.options.names.prepare([&address]);
            addresses.push(address);
        }
        has_room
    }

    /// Whether a memory node is at this address, as far as the names known here tell. The address
    /// may be another name of the node.
    #[must_use]
    pub fn is_at(&self, node: NodeId, address: &str) -> bool {
        let resolved = |name: &str| self.cluster.options.names.find(name).unwrap_or_default();
        let own = self.cluster.addresses().get(usize::from(node.0)).cloned().unwrap_or_default();
        let own = resolved(&own);
        resolved(address).iter().any(|address| own.contains(address))
    }

    /// Makes a fabric of this memory node alone, with the same options.
    #[must_use]
    pub fn beside(&self, address: String) -> Tcp {
        Tcp::new(vec![address], self.cluster.options.clone())
    }
}

impl Tcp {
    /// Asks a node for the status of its server.
    pub fn status(&self, node: NodeId) -> Result<NodeStatus, FabricError> {
        let words = self.cluster.ask(node, Kind::Status, &[])?;
        Ok(NodeStatus::from_words(words))
    }

    /// Returns the sizes of a node's regions, in bytes.
    pub fn region_bytes(&self, node: NodeId) -> Result<Vec<u64>, FabricError> {
        match self.cluster.open(node, Purpose::Administration) {
            Ok((_, hello)) => Ok(hello.region_bytes().collect()),
            Err(fault) => Err(FabricError { node, fault }),
        }
    }
}

impl Fabric for Tcp {
    fn nodes(&self) -> u16 {
        self.cluster.count()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        let cluster = &self.cluster;
        let domain = cluster.options.rdma.as_ref().map(Domain::of).transpose();
        let mut domain = domain.map_err(|error| FabricError { node: NodeId(0), fault: rdma::refused(&error) })?;
        // Names are looked up side by side, although connections are made one after the other.
        cluster.prepare();
        let connect = |node| cluster.connect(node, client, domain.as_mut());
        let streams = cluster.all().map(connect).collect::<Result<Vec<_>, _>>()?;
        let local = |error: std::io::Error| FabricError {
            node: NodeId(0),
            fault: Fault::Refused(Refusal::Local(error.into())),
        };
        let bell = Arc::new(Bell::new().map_err(local)?);
        let poller = Poller::new(&bell).map_err(local)?;
        for (place, stream) in streams.iter().enumerate() {
            if let Ok(stream) = stream {
                poller.add(stream.socket(), place as u64, Interest::IN).map_err(local)?;
                if let Some(channel) = stream.channel() {
                    poller.add(channel, place as u64, Interest::IN).map_err(local)?;
                }
            }
        }
        if let Some(domain) = &domain {
            // The channels that connections share have no place among the nodes. It is enough that
            // they wake the thread.
            domain.watch(|channel| poller.add(channel, BELL - 1, Interest::IN)).map_err(local)?;
        }
        let mut bells = cluster.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        drop(bells);
        Ok(Box::new(TcpTransport::new(cluster.clone(), streams, bell, poller)))
    }

    /// Returns `None` always, because the memory belongs to other processes.
    fn region(&self, _: NodeId, _: RegionId) -> Option<Arc<Region>> {
        None
    }

    /// Revokes a client at all nodes, except the ones that [`Fabric::fail`] has taken away.
    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        self.cluster.prepare();
        // All nodes are asked, even if one does not answer.
        self.cluster.ask_all(|node| self.cluster.revoke_at(node, client)).into_iter().collect()
    }

    /// A node that does not answer cannot tell that a client has gone, so the answer is then not
    /// `false`.
    fn is_connected(&self, client: ClientId) -> Option<bool> {
        self.cluster.prepare();
        let counts = self.cluster.ask_all(|node| self.cluster.connections_at(node, client));
        if counts.iter().any(|count| count.is_ok_and(|count| count > 0)) {
            return Some(true);
        }
        counts.iter().all(Result::is_ok).then_some(false)
    }

    fn fail(&self, node: NodeId) {
        self.cluster.down.fetch_or(bit(node), Ordering::Relaxed);
        for bell in &*self.cluster.bells.lock().unwrap_or_else(PoisonError::into_inner) {
            if let Some(bell) = bell.upgrade() {
                bell.ring();
            }
        }
    }

    fn readmit(&self, node: NodeId) {
        self.cluster.down.fetch_and(!bit(node), Ordering::Relaxed);
    }

    /// Asks on a thread of its own, because a machine that is silently gone keeps its caller
    /// waiting for seconds.
    fn answers(&self, node: NodeId) -> bool {
        let mut inquiries = self.cluster.inquiries.lock().unwrap_or_else(PoisonError::into_inner);
        let inquiry = inquiries.entry(node).or_default();
        if !inquiry.is_under_way {
            let asker = self.clone();
            let ask = move || {
                let answered = asker.status(node).is_ok().then(Instant::now);
                let mut inquiries = asker.cluster.inquiries.lock().unwrap_or_else(PoisonError::into_inner);
                inquiries.insert(node, Inquiry { is_under_way: false, answered });
            };
            let begun = thread::Builder::new().name("inquiry".to_owned()).spawn(ask);
            inquiry.is_under_way = begun.is_ok();
        }
        inquiry.answered.is_some_and(|answered| answered.elapsed() < ANSWER_COUNTS)
    }

    fn forget(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        self.cluster.forget_at(node, order)
    }

    fn capabilities(&self) -> Capabilities {
        self.cluster.capabilities()
    }
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp").field("addresses", &*self.cluster.addresses()).finish_non_exhaustive()
    }
}
