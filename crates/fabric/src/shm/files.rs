//! The fabric over memory nodes in files: the client's side, and the side of nodes that the
//! client's own process serves.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
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
use super::control::{Control, Mode, Phase, State, Word, service};
use super::file::{Mapped, OpenError, ShmNode, io_error, unlock};
use super::memory::Memory;
use super::process::{Process, Watch, realm};
use super::transport::ShmTransport;
use super::{Shared, gate_bit, lock, serve};

/// Time within which a live server answers a client that connects. Afterwards it is taken for dead.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time between two looks for that answer.
const ANSWER_PAUSE: Duration = Duration::from_micros(50);
/// Time between two checks of a client whether its servers have stopped without dying.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The fabrics of this process, with the files that they use. To revoke a client of this process
/// must not kill the process.
static FABRICS: Mutex<Vec<(Weak<Shared>, Vec<Identity>)>> = Mutex::new(Vec::new());

type Identity = (u64, u64);

/// Memory nodes in files. Either some process of this host serves each of them, or all of them are
/// passive. Clones share the mappings.
#[derive(Clone, Debug)]
pub struct ShmFiles {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    process: Process,
    /// The realm of this process ([`realm`]).
    realm: u64,
    shared: Arc<Shared>,
    nodes: Vec<Mapped>,
    hosted: BTreeMap<u16, ShmNode>,
    /// The files of the nodes, if these are passive.
    doors: Vec<Mutex<File>>,
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
        let (mut nodes, mut doors) = (Vec::with_capacity(paths.len()), Vec::new());
        for path in paths.iter().map(AsRef::as_ref) {
            let (file, mapped) = Mapped::open(path)?;
            let passive = mapped.control.mode() == Mode::Passive;
            if nodes.first().is_some_and(|first: &Mapped| first.control.mode() != mapped.control.mode()) {
                return Err(OpenError::Mixed { path: path.into(), passive });
            }
            nodes.push(mapped);
            doors.extend(passive.then(|| Mutex::new(file)));
        }
        let hosted = hosted.into_iter().filter_map(|node| {
            let at = nodes.iter().position(|mapped| mapped.identity == node.identity())?;
            Some((at as u16, node))
        });
        let hosted = hosted.collect();
        let memory = Memory::of_regions(nodes.iter().map(|node| node.region.clone()));
        let shared = Shared::new(memory, nodes.iter().map(|node| node.control.clone()).collect());
        let here = paths.first().map_or(Path::new(""), AsRef::as_ref);
        if doors.is_empty() {
            shared.watch_servers().map_err(io_error(here, "start a thread"))?;
        }
        let mut fabrics = lock(&FABRICS);
        fabrics.retain(|(shared, _)| shared.strong_count() > 0);
        fabrics.push((Arc::downgrade(&shared), nodes.iter().map(|node| node.identity).collect()));
        drop(fabrics);
        let who = |process: Process| Ok((process, realm()?));
        let (process, realm) = Process::current().and_then(who).map_err(io_error(here, "find out who connects"))?;
        let watched = Mutex::new(vec![0; nodes.len()]);
        Ok(ShmFiles { inner: Arc::new(Inner { process, realm, shared, nodes, hosted, doors, watched }) })
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
    /// Begins to look for servers that no longer exist.
    fn watch_servers(self: &Arc<Shared>) -> io::Result<()> {
        let theirs = Arc::downgrade(self);
        let look = move || {
            if let Some(shared) = theirs.upgrade() {
                shared.look_at_servers();
            }
        };
        let watch = Watch::spawn("memory-nodes-watch", LOOK_EVERY, look)?;
        let died = self.controls.iter().map(|_| AtomicU64::new(0)).collect();
        let _ = self.watched.set(Servers { watch, died }); // the cell is new, and not set yet
        Ok(())
    }

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
        if let Some(door) = self.doors.get(node) {
            return self.enter(control, &lock(door), client).map(|channel| (0, channel));
        }
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
                    thread::sleep(ANSWER_PAUSE);
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

    /// Gets a channel at a passive node, whose file is `door`. Returns its index and generation.
    fn enter(&self, control: &Control, door: &File, client: ClientId) -> Result<(usize, u32), Fault> {
        let (index, generation) = loop {
            // While a channel is claimed, it does not say whose it is. So this process holds a
            // lock until the channel is open. If the process dies before, nothing holds the lock
            // any more, and the channel is free: see `free_dead`.
            let entering = Lock::shared(door)?;
            let claimed = control.claim(self.process.pid);
            let opened = claimed.filter(|(index, claimed)| {
                control.channel(*index).begin(client.0, self.process.start);
                control.channel(*index).set_realm(self.realm);
                control.change(*index, *claimed, claimed.to(Phase::Open))
            });
            drop(entering);
            match opened {
                Some((index, state)) => break (index, state.generation()),
                None if claimed.is_some() || self.free_dead(control, door) => {}
                None => return Err(Fault::Refused(Refused::Full)),
            }
        };
        // Both checks come after the channel is open. A revoking process marks first, and then
        // looks at the channels: if this process does not see the mark, that one kills it. And of
        // two processes of different realms, the one that opens its channel later sees the other.
        let is_strange = |(other, state): (usize, State)| {
            !matches!(state.phase(), Phase::Claimed | Phase::Closing) && control.channel(other).realm() != self.realm
        };
        let fault = if control.channels().any(is_strange) {
            Fault::Refused(Refused::OtherRealm)
        } else if control.is_revoked(client) {
            Fault::Revoked
        } else {
            return Ok((index, generation));
        };
        control.close(index, generation);
        Err(fault)
    }

    /// Frees the channels of dead processes at a passive node. Returns whether there were any.
    fn free_dead(&self, control: &Control, door: &File) -> bool {
        let alone = Lock::alone(door);
        control.free_dead(self.realm, alone.is_some(), false).freed > 0
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

/// A lock of a passive node's file. It ends when this is dropped, or when the process dies.
struct Lock<'f>(&'f File);

impl Lock<'_> {
    /// Takes the lock together with others. The lock is only ever held for a moment.
    fn shared(file: &File) -> Result<Lock<'_>, Fault> {
        let unreachable = |cause: io::Error| Fault::Refused(Refused::Unreachable(cause.into()));
        for _ in 0..ANSWER_MAX.as_micros() / ANSWER_PAUSE.as_micros() {
            match file.try_lock_shared() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::WouldBlock) => thread::sleep(ANSWER_PAUSE),
                Err(TryLockError::Error(cause)) => return Err(unreachable(cause)),
            }
        }
        Err(unreachable(io::ErrorKind::TimedOut.into()))
    }

    /// Takes the lock, unless another process has it.
    fn alone(file: &File) -> Option<Lock<'_>> {
        file.try_lock().ok().map(|()| Lock(file))
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        unlock(self.0, "passive memory");
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
        self.inner.shared.capabilities
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::executor::block_on;
    use crate::limits::CHANNELS_MAX;
    use crate::shm::file::PassiveFile;

    /// Passive memory in a file without a name. Returns its fabric, and the control area that other
    /// processes have.
    fn passive(name: &str) -> (ShmFiles, Arc<Control>) {
        let path = std::env::temp_dir().join(format!("remora-passive-{name}-{}", std::process::id()));
        let file = PassiveFile::open(&path, Some(4096)).expect("a test's file");
        let unfinished = ShmFiles::new(&[&path], Vec::new());
        assert!(matches!(unfinished, Err(OpenError::Unfinished { .. })), "{unfinished:?}");
        file.publish();
        let fabric = ShmFiles::new(&[&path], Vec::new()).expect("a test's file");
        std::fs::remove_file(&path).expect("a test's file");
        let control = fabric.inner.nodes[0].control.clone();
        (fabric, control)
    }

    /// Writes the channel of a client in another process.
    fn stranger(control: &Control, process: Process, realm: u64) -> (usize, u32) {
        let (index, claimed) = control.claim(process.pid).expect("a free channel");
        control.channel(index).begin(7, process.start);
        control.channel(index).set_realm(realm);
        assert!(control.change(index, claimed, claimed.to(Phase::Open)));
        (index, claimed.generation())
    }

    fn refused(fabric: &ShmFiles, client: u32) -> Option<Fault> {
        fabric.connect(ClientId(client)).err().map(|error| error.fault)
    }

    #[test]
    fn passive_memory_says_that_it_has_no_cpu() {
        let (fabric, _) = passive("calls");
        assert!(!fabric.capabilities().node_cpu && fabric.capabilities().revoke);
        let called = block_on(&fabric, ClientId(1), async |lane| {
            assert!(!lane.capabilities().node_cpu);
            let mut round = lane.round();
            round.call(NodeId(0), &[1], None, 1);
            lane.execute(round).await.err()
        });
        assert_eq!(called, Ok(Some(FabricError { node: NodeId(0), fault: Fault::NoHandler })));
        assert_eq!(fabric.server_cpu_ns(NodeId(0)), None);
    }

    #[test]
    fn channels_of_dead_processes_are_used_again() {
        let (fabric, control) = passive("dead");
        let ours = fabric.inner.realm;
        let me = fabric.inner.process;
        // One process has ended, and its number belongs to another one. One has begun to come, and
        // one was leaving.
        let dead = Process { start: me.start + 1, ..me };
        stranger(&control, dead, ours);
        control.claim(dead.pid).expect("a free channel");
        let (closing, _) = stranger(&control, dead, ours);
        let open = control.state(closing);
        assert!(control.change(closing, open, open.to(Phase::Closing)));
        let connected: Vec<_> =
            (0..CHANNELS_MAX as u32).map_while(|client| fabric.connect(ClientId(client)).ok()).collect();
        assert_eq!(connected.len(), CHANNELS_MAX, "three channels were those of dead processes");
        assert_eq!(refused(&fabric, 9), Some(Fault::Refused(Refused::Full)), "all clients live");
        drop(connected);
        assert_eq!(control.channels().count(), 0);
    }

    /// A process that has claimed a channel and not opened it yet is alive while it has the lock.
    #[test]
    fn a_channel_that_is_being_taken_is_not_that_of_a_dead_process() {
        let (fabric, control) = passive("claimed");
        let door = format!("/proc/self/fd/{}", lock(&fabric.inner.doors[0]).as_raw_fd());
        let other = File::open(door).expect("the same file, opened again");
        other.lock_shared().expect("nothing hinders it");
        let (index, claimed) = control.claim(1).expect("a free channel");
        let connected: Vec<_> =
            (0..CHANNELS_MAX as u32).map_while(|client| fabric.connect(ClientId(client)).ok()).collect();
        assert_eq!((connected.len(), control.state(index)), (CHANNELS_MAX - 1, claimed));
        other.unlock().expect("it has the lock");
        assert_eq!(refused(&fabric, 9), None, "the process is dead");
        // A process that keeps the lock for itself makes the others wait, but not for ever.
        drop(connected);
        other.lock().expect("nothing hinders it");
        let late = Refused::Unreachable(io::ErrorKind::TimedOut.into());
        assert_eq!(refused(&fabric, 9), Some(Fault::Refused(late)));
    }

    #[test]
    fn processes_that_cannot_watch_one_another_do_not_share_passive_memory() {
        let (fabric, control) = passive("realm");
        let (ours, me) = (fabric.inner.realm, fabric.inner.process);
        let theirs = (ours + 1, Process { pid: 1, start: 1 });
        let (index, generation) = stranger(&control, theirs.1, theirs.0);
        assert_eq!(refused(&fabric, 1), Some(Fault::Refused(Refused::OtherRealm)));
        assert_eq!(control.channels().count(), 1, "only the stranger is left, alive or not");
        // A stranger that is coming will see this process. One that is leaving does nothing more.
        let open = control.state(index);
        for phase in [Phase::Claimed, Phase::Closing] {
            assert!(control.change(index, control.state(index), open.to(phase)));
            assert_eq!(refused(&fabric, 1), None, "{phase:?}");
        }
        control.close(index, generation);
        let ours_too = stranger(&control, me, ours);
        assert_eq!(refused(&fabric, 1), None, "a process of this realm");
        control.close(ours_too.0, ours_too.1);
    }

    #[test]
    fn a_revoked_client_of_passive_memory_does_not_come_back() {
        let (fabric, control) = passive("revoked");
        fabric.revoke(ClientId(3)).expect("nothing hinders it");
        let transport = fabric.connect(ClientId(3)).expect("an endpoint that reaches nothing");
        assert_eq!(control.channels().count(), 0);
        drop(transport);
        // The client was marked while it came.
        let connected = fabric.inner.join(0, ClientId(3)).map(|(_, channel)| channel);
        assert_eq!((connected, control.channels().count()), (Err(Fault::Revoked), 0));
    }
}
