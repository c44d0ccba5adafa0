//! The fabric over memory nodes in files: the client's side, and the side of nodes that the
//! client's own process serves.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::address::{NodeId, RegionId};
use crate::error::{FabricError, Fault, Refusal as Refused};
use crate::gate::Refusal;
use crate::ids::ClientId;
use crate::limits::NODES_MAX;
use crate::region::Region;
use crate::service::{Service, ServiceHandle};
use crate::transport::{Capabilities, Fabric, Handler, Host, Transport};

use super::access::Attachment;
use super::control::{Control, Phase, Word, service};
use super::file::{Mapped, OpenError, ShmNode, io_error};
use super::memory::{Memory, OWN_CAPABILITIES};
use super::process::{Process, Watch};
use super::transport::ShmTransport;
use super::{Shared, gate_bit, lock, serve};

/// Time within which a live server answers a client that connects. Afterwards it is taken for dead.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time between two checks of a client whether its servers have stopped without dying.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The fabrics of this process, with the files that they use. To revoke a client of this process
/// must not kill the process.
static FABRICS: Mutex<Vec<(Weak<Shared>, Vec<Identity>)>> = Mutex::new(Vec::new());

type Identity = (u64, u64);

/// Memory nodes in files, each of which some process of this host serves. Clones share the
/// mappings.
#[derive(Clone, Debug)]
pub struct ShmFiles {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    process: Process,
    shared: Arc<Shared>,
    nodes: Vec<Mapped>,
    hosted: BTreeMap<u16, ShmNode>,
    /// For each node, the incarnation of the server that is watched.
    watched: Mutex<Vec<u64>>,
}

/// What the endpoints of a fabric must know about the servers.
#[derive(Debug)]
pub(super) struct Servers {
    watch: Watch,
    /// For each node, the incarnation of the server that was seen to have died.
    died: Box<[AtomicU64]>,
}

impl ShmFiles {
    /// Makes the fabric of the nodes in these files, numbered in this order. The fabric keeps those
    /// nodes of `hosted` whose file is among them. It stops any other.
    pub fn new(paths: &[impl AsRef<Path>], hosted: Vec<ShmNode>) -> Result<ShmFiles, OpenError> {
        assert!(paths.len() <= NODES_MAX, "at most {NODES_MAX} memory nodes");
        let mut nodes = Vec::with_capacity(paths.len());
        for path in paths.iter().map(AsRef::as_ref) {
            let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error(path, "open it"))?;
            nodes.push(Mapped::of(path, &file)?.ok_or_else(|| OpenError::Foreign { path: path.into() })?);
        }
        let hosted = hosted.into_iter().filter_map(|node| {
            let at = nodes.iter().position(|mapped| mapped.identity == node.identity())?;
            Some((at as u16, node))
        });
        let hosted = hosted.collect();
        let memory = Memory::of_regions(nodes.iter().map(|node| node.region.clone()));
        let shared = Shared::new(memory, nodes.iter().map(|node| node.control.clone()).collect());
        let here = paths.first().map_or(Path::new(""), AsRef::as_ref);
        let theirs = Arc::downgrade(&shared);
        let look = move || {
            if let Some(shared) = theirs.upgrade() {
                shared.look_at_servers();
            }
        };
        let watch = Watch::spawn("memory-nodes-watch", LOOK_EVERY, look).map_err(io_error(here, "start a thread"))?;
        let died = nodes.iter().map(|_| AtomicU64::new(0)).collect();
        let _ = shared.watched.set(Servers { watch, died }); // the cell is new, and not set yet
        let mut fabrics = lock(&FABRICS);
        fabrics.retain(|(shared, _)| shared.strong_count() > 0);
        fabrics.push((Arc::downgrade(&shared), nodes.iter().map(|node| node.identity).collect()));
        drop(fabrics);
        let process = Process::current().map_err(io_error(here, "find out who connects"))?;
        let watched = Mutex::new(vec![0; nodes.len()]);
        Ok(ShmFiles { inner: Arc::new(Inner { process, shared, nodes, hosted, watched }) })
    }

    /// Returns the node of this number, if this process serves it.
    #[must_use]
    pub fn hosted(&self, node: NodeId) -> Option<&ShmNode> {
        self.inner.hosted.get(&node.0)
    }
}

impl ShmFiles {
    /// Returns the CPU time that the process which serves a node has used so far, in nanoseconds,
    /// to a hundredth of a second. `None` if the system does not tell.
    #[must_use]
    pub fn server_cpu_ns(&self, node: NodeId) -> Option<u64> {
        self.inner.nodes.get(usize::from(node.0))?.control.server().cpu_ns()
    }
}

impl Shared {
    /// Takes nodes from the endpoints that were connected to servers which no longer exist.
    fn look_at_servers(&self) {
        let Some(servers) = self.watched.get() else { return };
        for attachment in &lock(&self.gates).open {
            let nodes = self.controls.iter().zip(&servers.died).zip(&attachment.incarnations).enumerate();
            for (node, ((control, died), incarnation)) in nodes {
                let lost = control.get(Word::Incarnation) != *incarnation
                    || control.get(Word::Service) != service::SERVING
                    || died.load(Ordering::Acquire) == *incarnation;
                let bit = gate_bit(NodeId(node as u16));
                if lost && attachment.gate.refused() & bit == 0 {
                    tracing::warn!(node, "a memory node's server is gone");
                    attachment.refuse(bit, Refusal::Down);
                }
            }
        }
    }
}

impl Inner {
    /// Watches a node's server, so that its death is noticed. Returns false if it is dead.
    fn watch(&self, node: usize, incarnation: u64) -> bool {
        let mut watched = lock(&self.watched);
        if watched[node] == incarnation {
            return self
                .shared
                .watched
                .get()
                .is_none_or(|servers| servers.died[node].load(Ordering::Acquire) != incarnation);
        }
        let Ok(Some(handle)) = self.nodes[node].control.server().open() else { return false };
        watched[node] = incarnation;
        let shared = Arc::downgrade(&self.shared);
        if let Some(servers) = self.shared.watched.get() {
            servers.watch.watch(handle, move || {
                if let Some(shared) = shared.upgrade()
                    && let Some(servers) = shared.watched.get()
                {
                    servers.died[node].store(incarnation, Ordering::Release);
                    shared.look_at_servers();
                }
            });
        }
        true
    }

    /// Gets a channel at one node. Returns the server's incarnation, and the channel's index and
    /// generation.
    fn join(&self, node: usize, client: ClientId) -> Result<(u64, (usize, u32)), Fault> {
        let unreachable = |kind: io::ErrorKind| Fault::Refused(Refused::Unreachable(kind.into()));
        let control = &self.nodes[node].control;
        let incarnation = control.get(Word::Incarnation);
        if control.get(Word::Service) != service::SERVING || !self.watch(node, incarnation) {
            return Err(unreachable(io::ErrorKind::ConnectionRefused));
        }
        let (index, claimed) = control.claim(self.process.pid).ok_or(Fault::Refused(Refused::Full))?;
        control.channel(index).begin(client.0, self.process.start);
        control.change(index, claimed, claimed.to(Phase::Asked));
        control.ring_server();
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let fault = match control.state(index).phase() {
                Phase::Open => return Ok((incarnation, (index, claimed.generation()))),
                Phase::Asked if Instant::now() < deadline => {
                    thread::sleep(Duration::from_micros(50));
                    continue;
                }
                Phase::Asked => unreachable(io::ErrorKind::TimedOut),
                _ if control.is_revoked(client) => Fault::Revoked,
                _ => Fault::Refused(Refused::NoRight),
            };
            // The channel is given up, with everything that the server may do for it meanwhile.
            control.close_within(index, claimed.generation(), || false);
            return Err(fault);
        }
    }

    /// Ends the access of a client at one node. A process that uses it is killed, unless it is this
    /// one.
    fn end(&self, control: &Control, client: ClientId) -> io::Result<()> {
        // The server will refuse a channel that is only claimed.
        for (index, state) in control.channels_of(client) {
            let process = Process { pid: state.process(), start: control.channel(index).start() };
            if control.state(index) == state && !process.is_current() {
                process.end()?;
            }
            control.close(index, state.generation());
        }
        Ok(())
    }
}

impl Fabric for ShmFiles {
    fn nodes(&self) -> u16 {
        self.inner.nodes.len() as u16
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        let inner = &self.inner;
        let down = lock(&inner.shared.gates).down;
        let revoked = || inner.nodes.iter().any(|node| node.control.is_revoked(client));
        let mut channels = vec![None; inner.nodes.len()];
        let mut incarnations = vec![0; inner.nodes.len()].into_boxed_slice();
        let mut outcome = Ok(());
        for node in 0..inner.nodes.len() {
            let id = NodeId(node as u16);
            if down & gate_bit(id) != 0 || revoked() {
                continue;
            }
            match inner.join(node, client) {
                Ok((incarnation, channel)) => {
                    incarnations[node] = incarnation;
                    channels[node] = Some(channel);
                }
                Err(Fault::Revoked) => {}
                Err(fault) => {
                    outcome = Err(FabricError { node: id, fault });
                    break;
                }
            }
        }
        let attachment = Attachment::new(client, incarnations);
        // Dropping it gives the channels back.
        let transport = ShmTransport::new(inner.shared.clone(), attachment.clone(), channels);
        outcome?;
        let mut gates = lock(&inner.shared.gates);
        Shared::attach(&mut gates, &attachment);
        // This is asked after the endpoint is listed: a revoking thread marks first, and then takes
        // nodes from the endpoints that are listed.
        if revoked() {
            attachment.refuse(u64::MAX, Refusal::Revoked);
        }
        Ok(Box::new(transport))
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.hosted(node).filter(|_| region == RegionId(0)).map(|node| node.region().clone())
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        let inner = &self.inner;
        for node in &inner.nodes {
            node.control.mark_revoked(client);
        }
        let fabrics: Vec<Arc<Shared>> = {
            let ours =
                |files: &[Identity]| files.iter().any(|file| inner.nodes.iter().any(|node| node.identity == *file));
            let fabrics = lock(&FABRICS);
            fabrics.iter().filter(|(_, files)| ours(files)).filter_map(|(shared, _)| shared.upgrade()).collect()
        };
        for shared in fabrics {
            shared.revoke(client);
        }
        let mut outcome = Ok(());
        for (node, mapped) in (0..).map(NodeId).zip(&inner.nodes) {
            if let Err(cause) = inner.end(&mapped.control, client) {
                tracing::error!(%cause, client = client.0, node = node.0, "a client's process could not be ended");
                outcome = Err(FabricError { node, fault: Fault::Refused(Refused::NoRight) });
            }
        }
        outcome
    }

    /// Never returns `Some(false)`: a client may be using the files without a channel at the
    /// moment.
    fn is_connected(&self, client: ClientId) -> Option<bool> {
        let lives = |node: &Mapped| {
            node.control.channels_of(client).any(|(index, state)| {
                Process { pid: state.process(), start: node.control.channel(index).start() }.lives()
            })
        };
        self.inner.nodes.iter().any(lives).then_some(true)
    }

    fn fail(&self, node: NodeId) {
        self.inner.shared.fail(node);
    }

    fn capabilities(&self) -> Capabilities {
        OWN_CAPABILITIES
    }
}

impl Host for ShmFiles {
    fn serve(&self, node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle {
        serve(node, name, service)
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        if let Some(node) = self.hosted(node) {
            node.answer(handler);
        }
    }
}
