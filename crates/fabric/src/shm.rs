//! Shared memory: memory nodes are mappings of this process, and the thread that posts a round
//! executes its one-sided verbs. With [`Shm`], all nodes are in one process. With
//! [`file`](mod@file), they are in files that several processes map.
//!
//! A round without calls completes when it is posted. Its verbs run in the order in which they were
//! added, which is more order than the contract gives. Only code that asks for
//! [`Capabilities::in_order`] may rely on that, and tests on the [`seeded`](crate::seeded) backend
//! find other code that does.
//!
//! Calls go through mailboxes in shared memory (`channel`) to the node's own thread (`server`),
//! which parks when it is idle. A handler must not revoke a client, nor wait for a call of its own,
//! because both wait for handlers.

mod access;
mod calls;
mod channel;
mod control;
mod doorbell;
pub mod file;
mod files;
mod memory;
mod process;
mod server;
mod transport;

use std::process::id as process_id;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::address::{NodeId, RegionId};
use crate::error::{FabricError, Fault, Refusal as Refused};
use crate::gate::{GateWord, Refusal};
use crate::ids::ClientId;
use crate::limits::NODES_MAX;
use crate::region::{Region, RegionError};
use crate::service::{Service, ServiceHandle};
use crate::transport::{Capabilities, Fabric, Handler, Host, Transport};

use access::Attachment;
use control::{Control, Mode, Phase, Word};
use files::Servers;
use server::Server;
use transport::ShmTransport;

pub use control::Reclaimed;
pub use memory::Memory;
use memory::OWN_CAPABILITIES;
pub(crate) use memory::{CAPABILITIES, execute_verb, monotonic_ns, no_such_node};

/// The shared-memory backend within one process. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Shm {
    shared: Arc<Shared>,
}

/// The state that a fabric over shared memory shares with its transports.
#[derive(Debug)]
struct Shared {
    memory: Memory,
    capabilities: Capabilities,
    controls: Box<[Arc<Control>]>,
    /// The servers of nodes to which [`Shm`] has given a handler. They stop with the last
    /// transport.
    servers: Mutex<Vec<(NodeId, Server)>>,
    /// What is known about servers in other processes.
    watched: OnceLock<Servers>,
    gates: Mutex<Gates>,
}

#[derive(Debug, Default)]
struct Gates {
    open: Vec<Arc<Attachment>>,
    revoked: Vec<ClientId>,
    /// The nodes that are down, one bit each.
    down: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GateWord for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::SeqCst)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Release);
    }

    #[inline(always)]
    fn swap(&self, value: u64) -> u64 {
        AtomicU64::swap(self, value, Ordering::SeqCst)
    }

    fn set_bits(&self, bits: u64) {
        self.fetch_or(bits, Ordering::SeqCst);
    }
}

/// Returns the gate bit of a node, or no bit for a node that cannot exist.
#[inline]
fn gate_bit(node: NodeId) -> u64 {
    const _: () = assert!(NODES_MAX == u64::BITS as usize);
    1u64.checked_shl(u32::from(node.0)).unwrap_or(0)
}

impl Shared {
    fn new(memory: Memory, controls: Box<[Arc<Control>]>) -> Arc<Shared> {
        let node_cpu = controls.iter().all(|control| control.mode() == Mode::Served);
        Arc::new(Shared {
            memory,
            capabilities: Capabilities { node_cpu, ..OWN_CAPABILITIES },
            controls,
            servers: Mutex::default(),
            watched: OnceLock::new(),
            gates: Mutex::default(),
        })
    }

    /// Adds an endpoint to the list from which nodes can be taken.
    fn attach(gates: &mut Gates, attachment: &Arc<Attachment>) {
        if gates.down != 0 {
            attachment.refuse(gates.down, Refusal::Down);
        }
        if gates.revoked.contains(&attachment.client) {
            attachment.refuse(u64::MAX, Refusal::Revoked);
        }
        gates.open.retain(|attachment| Arc::strong_count(attachment) > 1);
        gates.open.push(attachment.clone());
    }

    /// Takes all nodes from the endpoints of a client in this process, now and in future.
    fn revoke(&self, client: ClientId) {
        let mut gates = lock(&self.gates);
        if !gates.revoked.contains(&client) {
            gates.revoked.push(client);
        }
        for attachment in gates.open.iter().filter(|attachment| attachment.client == client) {
            attachment.refuse(u64::MAX, Refusal::Revoked);
        }
    }

    /// Takes a node from all endpoints.
    fn fail(&self, node: NodeId) {
        let mut gates = lock(&self.gates);
        gates.down |= gate_bit(node);
        for attachment in &gates.open {
            attachment.refuse(gate_bit(node), Refusal::Down);
        }
    }
}

impl Shm {
    /// Creates memory nodes with the given regions (sizes in bytes).
    pub fn new(nodes: &[Vec<usize>]) -> Result<Shm, RegionError> {
        let memory = Memory::map(nodes)?;
        let controls = nodes.iter().map(|_| Control::anonymous()).collect::<Result<_, _>>()?;
        Ok(Shm { shared: Shared::new(memory, controls) })
    }

    /// Returns the memory of the nodes.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.shared.memory
    }
}

impl Fabric for Shm {
    fn nodes(&self) -> u16 {
        self.shared.memory.nodes()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        let mut gates = lock(&self.shared.gates);
        let mut claimed = Vec::with_capacity(self.shared.controls.len());
        for (node, control) in (0..).map(NodeId).zip(&self.shared.controls) {
            let Some((index, state)) = control.claim(process_id()) else {
                let full = FabricError { node, fault: Fault::Refused(Refused::Full) };
                for ((index, generation), control) in claimed.into_iter().flatten().zip(&self.shared.controls) {
                    control.close(index, generation);
                }
                return Err(full);
            };
            control.channel(index).begin(client.0, 0);
            control.change(index, state, state.to(Phase::Open));
            claimed.push(Some((index, state.generation())));
        }
        let attachment = Attachment::new(client, Box::default());
        Shared::attach(&mut gates, &attachment);
        Ok(Box::new(ShmTransport::new(self.shared.clone(), attachment, claimed)))
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.shared.memory.region(node, region).cloned()
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        self.shared.revoke(client);
        for control in &self.shared.controls {
            for (index, state) in control.channels_of(client) {
                control.close(index, state.generation());
            }
        }
        Ok(())
    }

    fn fail(&self, node: NodeId) {
        self.shared.fail(node);
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }
}

impl Host for Shm {
    fn serve(&self, node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle {
        serve(node, name, service)
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        let shared = &self.shared;
        let (Some(control), Some(answering)) =
            (shared.controls.get(usize::from(node.0)), shared.memory.answering(node))
        else {
            return;
        };
        answering.set(handler);
        let mut servers = lock(&shared.servers);
        if !servers.iter().any(|(whose, _)| *whose == node) {
            match Server::spawn(&format!("memory-node-{}", node.0), control.clone(), answering.clone(), None) {
                Ok(server) => servers.push((node, server)),
                Err(error) => return tracing::error!(%error, node = node.0, "no thread for a memory node's calls"),
            }
        }
        control.set(Word::Answers, 1);
    }
}

/// Runs a service of a node on a thread of its own.
fn serve(node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle {
    let name = format!("{name}-{}", node.0);
    ServiceHandle::spawn(&name, service).unwrap_or_else(|error| {
        tracing::error!(%error, name, "no thread for a memory node's service");
        ServiceHandle::detached().0
    })
}
