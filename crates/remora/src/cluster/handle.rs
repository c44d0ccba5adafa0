//! The handle [`Cluster`]: how it is made, what its clones share, and its getters and settings.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use remora_fabric::rdma::Device;
use remora_fabric::seeded::Seeded;
use remora_fabric::shm::Shm;
use remora_fabric::sim::{Sim, SimOptions};
use remora_fabric::tcp::{Loopback, NodeStatus, Tcp, TcpOptions};
use remora_fabric::{Capabilities, ClientId, Fabric, Host, Lane, Nanos, NodeId, NodeSet, Pages, ServiceHandle};
use remora_membership::{Configuration, InMemory};
use remora_node::{MemoryError, Metadata, come, identity, node};
use remora_record::TransactionId;
use remora_txn::recovery::Rollback;
use remora_txn::{Applier, Observer, Protocol, RpcHandler, VersionCache};

use super::draft::Draft;
use super::growths::Growths;
use super::interrupt;
use super::nodes::{Nodes, Remote};
use super::opened::Opened;
use super::options::ClusterOptions;
use crate::error::{ConnectError, OpenError, SimulatedError};
use crate::mutex::lock;
use crate::table::ClusterNumber;

/// A handle of a cluster. [`Cluster::embedded`] makes a cluster in this process, and
/// [`Cluster::connect`] connects to one. The handle creates tables, and makes workers
/// ([`Cluster::worker`]) and pools ([`Cluster::db`]). Clones are cheap, and share the connection.
/// The connection, or the cluster in this process, ends when the last clone, worker and pool is
/// dropped. Handles of tables do not keep it.
#[derive(Clone)]
pub struct Cluster {
    pub(super) inner: Arc<Inner>,
    pub(super) protocol: Protocol,
    pub(super) configuration: Option<Arc<dyn Configuration>>,
    lease: Option<Duration>,
    /// Number of transaction ids of each client incarnation.
    transaction_ids: u64,
    told: Option<Told>,
    /// Makes an observer for each session that moves rows of a table that grows.
    pub(super) movers: Option<Movers>,
    /// The growths that this process has begun by itself; `None` if it begins none.
    pub(super) growths: Option<Arc<Growths>>,
    /// The tables that this handle creates together, if it does.
    pub(super) draft: Option<Arc<Draft>>,
    /// A flag that the program sets to interrupt the creations and loads of this handle.
    pub(super) interrupt: Option<Arc<AtomicBool>>,
}

/// A function that is called for each record that recovery puts back.
type Told = Arc<dyn Fn(&Rollback<'_>) + Send + Sync>;

/// A function that makes observers.
pub(super) type Movers = Arc<dyn Fn() -> Box<dyn Observer> + Send + Sync>;

/// Default lease of workers. [`Cluster::with_lease`] sets another. A lease must exceed the longest
/// scheduling delay of a healthy client on an overloaded machine, and the longest computation of a
/// closure. A client that needs a lock of a dead client waits a little longer than the dead
/// client's lease.
pub const LEASE: Duration = Duration::from_secs(2);

/// The state that all handles of a cluster share.
pub(super) struct Inner {
    // The appliers must be stopped before the memory is freed.
    appliers: Vec<ServiceHandle>,
    pub(super) fabric: Arc<dyn Fabric>,
    /// The names of the memory nodes and their fabric, if they are processes of their own.
    pub(super) remote: Option<(Mutex<Nodes>, Remote)>,
    pages: Option<Pages>,
    pub(super) options: ClusterOptions,
    /// The incarnation that changes the catalog.
    pub(super) admin: Mutex<u32>,
    /// The configuration that knows this incarnation. Through it, another client can have the
    /// incarnation's access revoked.
    announced_to: Option<Arc<dyn Configuration>>,
    pub(super) opened: Opened,
    /// Tables into which this process loads rows, by the generation of the catalog with which they
    /// were born.
    pub(super) loading: Mutex<BTreeSet<u64>>,
    /// Memory nodes that the cluster goes on without, as far as this process knows.
    pub(super) lost: Mutex<NodeSet>,
    /// Memory nodes that were unreachable when this controller connected. It does without them
    /// until they answer again, or are lost.
    pub(super) absent: Mutex<NodeSet>,
    /// Whether a task of this process is entering the next epoch.
    pub(super) entering: AtomicBool,
    /// The id that the cluster was founded with.
    id: u64,
    /// The number of this cluster in this process, which handles of tables have.
    pub(super) cluster: ClusterNumber,
    /// The incarnation of this process's first client. No other process has this number.
    pub(super) number: u32,
    pub(super) vcache: OnceLock<Arc<VersionCache>>,
}

impl ClusterOptions {
    /// Makes the cluster in memory of this process. Nothing has to be installed, and nothing is
    /// kept when the program ends. Workers of the cluster have leases of [`LEASE`]. Fails with
    /// [`OpenErrorKind::Argument`](crate::OpenErrorKind::Argument) if the options make no cluster,
    /// and with [`OpenErrorKind::Full`](crate::OpenErrorKind::Full) if the system does not give the
    /// memory.
    pub fn open(self) -> Result<Cluster, OpenError> {
        self.check()?;
        let shm = Shm::new(&self.regions()).map_err(MemoryError::from)?;
        let pages = shm.memory().pages();
        Ok(Cluster::format(Arc::new(shm), pages, self)?.with_lease(Some(LEASE)).with_growth(true))
    }

    /// Makes the cluster of memory nodes that each have a server in this process. Clients reach the
    /// servers over TCP on the loopback interface, or by an RDMA device. It is for trying these
    /// transports out. Fails as [`ClusterOptions::open`] does, and if the servers or the device
    /// cannot be used.
    pub fn open_servers(self, rdma: Option<Device>) -> Result<Cluster, OpenError> {
        self.check()?;
        let clients = TcpOptions { rdma, ..TcpOptions::default() };
        let loopback = Loopback::new(&self.regions(), clients).map_err(MemoryError::from)?;
        Ok(Cluster::format(Arc::new(loopback), None, self)?.with_lease(Some(LEASE)).with_growth(true))
    }

    /// Makes the cluster on one thread under a hostile scheduler, for tests
    /// (`remora_fabric::seeded`). One `seed` gives one schedule. The scheduler does not disturb
    /// calls that are no transactions, such as [`load`](Cluster::load) and
    /// [`inspect`](Cluster::inspect). Clients of this cluster have no leases, unless
    /// [`Cluster::with_lease`] gives them one.
    pub fn open_seeded(self, seed: u64) -> Result<(Cluster, Seeded), OpenError> {
        self.open_on_seeded(seed, |seeded| seeded)
    }

    /// Makes the cluster as [`ClusterOptions::open_seeded`] does, on a fabric whose rounds take
    /// effect in order, over all nodes, as on shared memory.
    pub fn open_seeded_in_order(self, seed: u64) -> Result<(Cluster, Seeded), OpenError> {
        self.open_on_seeded(seed, Seeded::in_order)
    }

    fn open_on_seeded(self, seed: u64, kind: fn(Seeded) -> Seeded) -> Result<(Cluster, Seeded), OpenError> {
        self.check()?;
        let seeded = kind(Seeded::new(&self.regions(), seed).map_err(MemoryError::from)?);
        let cluster = Cluster::format(Arc::new(seeded.clone()), None, self)?;
        seeded.undisturbed(ClientId(cluster.admin()));
        Ok((cluster, seeded))
    }

    /// Makes the cluster in a simulator with virtual time, on the hardware of a profile
    /// (`remora_fabric::sim`). Nothing takes time before [`Sim::instant`] says so.
    pub fn open_simulated(self, sim: &SimOptions) -> Result<(Cluster, Sim), SimulatedError> {
        self.check().map_err(OpenError::from)?;
        let sim = Sim::new(&self.regions(), sim)?;
        sim.instant(true);
        Ok((Cluster::format(Arc::new(sim.clone()), None, self)?, sim))
    }

    /// Makes the cluster on any fabric whose memory nodes are in this process and new, for tests
    /// and tools. The fabric, and not these options, determines how many memory nodes there are and
    /// how large they are. The cluster's clients have no leases, unless [`Cluster::with_lease`]
    /// gives them one.
    pub fn open_on(self, fabric: Arc<dyn Host>) -> Result<Cluster, OpenError> {
        let options = self.nodes(fabric.nodes());
        options.check()?;
        Cluster::format(fabric, None, options)
    }
}

impl Cluster {
    /// Begins to describe a cluster whose memory nodes are in this process, for
    /// [`ClusterOptions::open`]. It has three memory nodes of 256 MiB, unless the options say
    /// otherwise.
    ///
    /// ```
    /// use remora::{Cluster, protocol::Protocol};
    ///
    /// let cluster = Cluster::embedded().nodes(5).replicas(2).protocol(Protocol::FORD).open()?;
    /// assert_eq!((cluster.memory_nodes(), cluster.replicas()), (5, 2));
    /// # Ok::<(), remora::OpenError>(())
    /// ```
    #[must_use]
    pub fn embedded() -> ClusterOptions {
        ClusterOptions::default()
    }

    /// Lays out new memory nodes in this process, and founds their cluster.
    fn format(fabric: Arc<dyn Host>, pages: Option<Pages>, options: ClusterOptions) -> Result<Cluster, OpenError> {
        let mut appliers = Vec::with_capacity(options.nodes.into());
        for node in (0..options.nodes).map(NodeId) {
            let region = fabric.region(node, node::REGION).ok_or(MemoryError::Foreign(node))?;
            node::format(&region, node::Place::default())?;
            fabric.answer(node, Box::new(RpcHandler::new(region.clone())));
            appliers.push(fabric.serve(node, "applier", Box::new(Applier::new(region))));
        }
        let (cluster, admin) = remora_fabric::block_on(&*fabric, ClientId(0), async |lane: &Lane| {
            let founded = identity::found(lane, options.nodes).await?;
            let cluster = founded.first().map_or(0, |node| node.cluster);
            Ok::<_, MemoryError>((cluster, come(lane, NodeSet::first(options.nodes)).await?))
        })??;
        let inner = Inner {
            appliers,
            fabric,
            remote: None,
            pages,
            options,
            admin: Mutex::new(admin),
            announced_to: None,
            opened: Opened::default(),
            loading: Mutex::default(),
            lost: Mutex::default(),
            absent: Mutex::default(),
            entering: AtomicBool::new(false),
            id: cluster,
            cluster: ClusterNumber::embedded(),
            number: admin,
            vcache: OnceLock::new(),
        };
        let configuration: Arc<dyn Configuration> = Arc::new(InMemory::of(cluster));
        let reserved = configuration.change(|membership| membership.reserve(Ok(admin)));
        reserved.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        Ok(Cluster {
            inner: Arc::new(inner),
            protocol: options.protocol,
            configuration: Some(configuration),
            lease: None,
            transaction_ids: TransactionId::SEQUENCE_MAX,
            told: None,
            movers: None,
            growths: None,
            draft: None,
            interrupt: None,
        })
    }

    /// Makes the handle of a cluster whose memory nodes are processes of their own.
    pub(super) fn remote(
        fabric: Arc<dyn Fabric>,
        cluster: u64,
        (nodes, remote): (Nodes, Remote),
        options: ClusterOptions,
        admin: u32,
        configuration: Option<Arc<dyn Configuration>>,
        (metadata, lost, absent): (Metadata, NodeSet, NodeSet),
    ) -> Cluster {
        let inner = Inner {
            appliers: Vec::new(),
            fabric,
            remote: Some((Mutex::new(nodes), remote)),
            pages: None,
            options,
            admin: Mutex::new(admin),
            announced_to: configuration.clone(),
            opened: Opened::none(metadata),
            loading: Mutex::default(),
            lost: Mutex::new(lost),
            absent: Mutex::new(absent),
            entering: AtomicBool::new(false),
            id: cluster,
            cluster: ClusterNumber::founded(cluster),
            number: admin,
            vcache: OnceLock::new(),
        };
        let lease = configuration.is_some().then_some(LEASE);
        let (inner, protocol) = (Arc::new(inner), options.protocol);
        let transaction_ids = TransactionId::SEQUENCE_MAX;
        let (told, movers, draft, interrupt) = (None, None, None, None);
        let growths = Some(Arc::default());
        Cluster { inner, protocol, configuration, lease, transaction_ids, told, movers, growths, draft, interrupt }
    }

    /// Returns the catalog as this handle has last read it.
    #[must_use]
    pub fn catalog(&self) -> Metadata {
        self.inner.opened.catalog()
    }

    /// Returns the epoch that this process has entered.
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.opened.epoch()
    }

    /// Returns all tables that this process has open, as they are placed now.
    pub(crate) fn tables(&self) -> Vec<Arc<remora_index::Table>> {
        self.inner.opened.all()
    }

    /// Returns a table of this process as it is now, as far as this process knows. Returns `None`
    /// if the table was dropped or discarded.
    pub(crate) fn now(&self, table: &remora_index::Table) -> Option<Arc<remora_index::Table>> {
        self.inner.opened.now(table)
    }

    /// Returns the generation of the catalog up to which this process has forgotten all dropped
    /// tables.
    pub(crate) fn followed(&self) -> u64 {
        self.inner.opened.followed()
    }

    /// Returns the generation of the catalog by which this process has last forgotten a table.
    #[inline]
    pub(crate) fn forgotten(&self) -> u64 {
        self.inner.opened.forgotten()
    }

    /// Returns the cluster's number in this process.
    pub(crate) fn number(&self) -> ClusterNumber {
        self.inner.cluster
    }

    /// Returns the names of the memory nodes, in the order of their numbers, or `None` if the
    /// memory nodes are in this process.
    #[must_use]
    pub fn nodes(&self) -> Option<Nodes> {
        self.inner.remote.as_ref().map(|(nodes, _)| lock(nodes).clone())
    }

    /// Returns the number of memory nodes that founded the cluster. They have the lowest numbers.
    pub(super) fn founders(&self) -> u16 {
        self.inner.options.nodes
    }

    /// Returns a fabric of one other memory node, with the options by which the cluster's fabric
    /// reaches its own nodes. Returns `None` if these are not reached over TCP.
    pub(super) fn beside(&self, address: &str) -> Option<Tcp> {
        match &self.inner.remote {
            Some((_, Remote::Tcp(tcp))) => Some(tcp.beside(address.to_owned())),
            _ => None,
        }
    }

    /// Returns the status of a memory node's server, or `None` if the node has no server that can
    /// be asked.
    #[must_use]
    pub fn node_status(&self, node: NodeId) -> Option<NodeStatus> {
        self.inner.remote.as_ref()?.1.status(node)
    }

    /// Returns the number of copies of each record, for tables whose options name no other.
    #[must_use]
    pub fn replicas(&self) -> u8 {
        self.inner.options.copies()
    }

    /// Returns the capabilities of the fabric.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.fabric.capabilities()
    }

    /// Returns the number of memory nodes, including the ones that were added and the ones that are
    /// lost.
    #[must_use]
    pub fn memory_nodes(&self) -> u16 {
        self.inner.fabric.nodes()
    }

    /// The incarnation that changes the catalog.
    pub(super) fn admin(&self) -> u32 {
        *lock(&self.inner.admin)
    }

    /// Returns the client whose death ends the creation that this handle makes
    /// ([`Cluster::create_together`]). Returns `None` outside of such a creation.
    #[must_use]
    pub fn creator(&self) -> Option<u32> {
        self.draft().map(|draft| draft.creator())
    }

    /// Returns the tables that this handle creates together, if it does.
    pub(super) fn draft(&self) -> Option<Arc<Draft>> {
        self.draft.as_ref().filter(|draft| !draft.is_over()).cloned()
    }

    /// Returns a handle that creates tables together.
    pub(super) fn drafting(&self, draft: Arc<Draft>) -> Cluster {
        Cluster { draft: Some(draft), ..self.clone() }
    }

    /// Returns the CPU time that the memory nodes have used, in nanoseconds. For a memory node in
    /// this process, this is the time in which it has applied redo logs. For one that is a process
    /// of its own, it is all CPU time of the process.
    #[must_use]
    pub fn memory_node_cpu_ns(&self) -> u64 {
        let here: u64 = self.inner.appliers.iter().map(ServiceHandle::cpu_ns).sum();
        let elsewhere = self
            .inner
            .remote
            .iter()
            .flat_map(|(_, remote)| (0..self.memory_nodes()).map(|node| remote.cpu_ns(NodeId(node))));
        here + elsewhere.sum::<u64>()
    }

    /// Returns which pages of the system back the memory nodes, if they are in shared memory of
    /// this process.
    #[must_use]
    pub fn pages(&self) -> Option<Pages> {
        self.inner.pages
    }

    /// Returns the protocol by which the workers of this handle run transactions.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns a handle to this cluster whose workers run another protocol. Tables must be opened
    /// through the new handle. It refuses tables whose discipline the protocol does not accept.
    #[must_use]
    pub fn with_protocol(&self, protocol: Protocol) -> Cluster {
        Cluster { protocol, ..self.clone() }
    }

    /// Returns the configuration, which says which clients are alive, and which client recovers a
    /// dead one. Returns `None` if client processes share no configuration. Then no client frees
    /// the locks of a dead client.
    #[must_use]
    pub fn configuration(&self) -> Option<&Arc<dyn Configuration>> {
        self.configuration.as_ref()
    }

    /// Returns the id with which the cluster was founded, and by which its configuration knows it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns a handle to this cluster whose workers use another configuration. All clients of a
    /// cluster must use the same configuration. Fails with
    /// [`ConnectError::ConfigurationOfOtherCluster`] if it is the configuration of another cluster
    /// ([`Configuration::cluster`]).
    pub fn with_configuration(&self, configuration: Arc<dyn Configuration>) -> Result<Cluster, ConnectError> {
        match configuration.cluster() {
            Some(other) if other != self.id() => {
                Err(ConnectError::ConfigurationOfOtherCluster { configuration: other, cluster: self.id() })
            }
            _ => Ok(Cluster { configuration: Some(configuration), ..self.clone() }),
        }
    }

    /// Returns the lease of this handle's workers, or `None` if they have none. If a worker that
    /// runs does not renew its lease for this time, other clients take it for dead.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Returns the lease in nanoseconds.
    pub(crate) fn lease_ns(&self) -> Option<Nanos> {
        self.lease.map(|lease| u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns a handle to this cluster whose workers have leases of this length. `None` turns
    /// leases off. A worker with a lease also recovers clients whose leases have expired.
    ///
    /// Other clients take a worker for dead if its thread only computes, or blocks, for longer than
    /// the lease. The worker's transactions then fail with [`Error::Fenced`](crate::Error::Fenced).
    /// A worker that runs nothing is not taken for dead. Over a network, a worker without a lease
    /// may read stale records at a memory node that the cluster has given up, until it hears of
    /// that.
    #[must_use]
    pub fn with_lease(&self, lease: Option<Duration>) -> Cluster {
        Cluster { lease, ..self.clone() }
    }

    /// Returns a handle to the cluster whose workers' clients have `ids` transaction ids each, at
    /// least 1 and at most 2^39. It is for tests of what happens when the ids are used up. A client
    /// with a lease goes on as another incarnation before that. Without a lease, its transactions
    /// then fail with [`Limit::TransactionIds`](crate::Limit::TransactionIds).
    #[must_use]
    pub fn with_transaction_ids(&self, ids: u64) -> Cluster {
        Cluster { transaction_ids: ids.clamp(1, TransactionId::SEQUENCE_MAX), ..self.clone() }
    }

    /// Number of transaction ids of each client incarnation.
    pub(crate) fn transaction_ids(&self) -> u64 {
        self.transaction_ids
    }

    /// Returns a handle to this cluster whose workers call `told` for each record that they put
    /// back when they recover a dead client. They call it before they put the record back. If a
    /// recoverer dies, its successor reports the record again. The recorder of a history needs
    /// this, because other clients read the versions that recovery installs.
    #[must_use]
    pub fn with_rollbacks_told(&self, told: Arc<dyn Fn(&Rollback<'_>) + Send + Sync>) -> Cluster {
        Cluster { told: Some(told), ..self.clone() }
    }

    /// Returns a handle whose workers make tables larger by themselves, on threads of their own, if
    /// `by_itself` is true. Otherwise tables grow only by [`grow_table`](Cluster::grow_table). The
    /// default is true for clusters in this process and for connected ones, and false for seeded
    /// and simulated ones.
    #[must_use]
    pub fn with_growth(&self, by_itself: bool) -> Cluster {
        Cluster { growths: by_itself.then(|| self.growths.clone().unwrap_or_default()), ..self.clone() }
    }

    /// Returns a handle whose workers make full tables larger in the coroutine that has found one
    /// full, and on no threads. A simulated cluster needs this, because its clients have no
    /// threads. The handle stands for one process: workers of one handle do not begin the growth of
    /// a table twice.
    #[doc(hidden)]
    #[must_use]
    pub fn with_growth_in_turn(&self) -> Cluster {
        Cluster { growths: Some(Arc::new(Growths::in_turn())), ..self.clone() }
    }

    /// Returns a handle that gives an observer to each session that moves the rows of a growing
    /// table. `movers` makes the observers. Recorded histories need the transactions of these
    /// sessions.
    #[must_use]
    pub fn with_movers_observed(&self, movers: Arc<dyn Fn() -> Box<dyn Observer> + Send + Sync>) -> Cluster {
        Cluster { movers: Some(movers), ..self.clone() }
    }

    /// Reports a record that recovery is about to put back.
    pub(crate) fn tell(&self, rollback: &Rollback<'_>) {
        if let Some(told) = &self.told {
            told(rollback);
        }
    }

    /// Returns a handle whose creations and loads a program can interrupt. Once the program has set
    /// the flag, they fail with [`MemoryError::Interrupted`]. A creation of several steps is then
    /// undone.
    #[must_use]
    pub fn with_interrupt(&self, interrupt: Arc<AtomicBool>) -> Cluster {
        let mut cluster = self.clone();
        cluster.interrupt = Some(interrupt);
        cluster
    }

    /// Returns whether the program has set the flag that interrupts this handle's creations and
    /// loads ([`Cluster::with_interrupt`]).
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        interrupt::is_set(self.interrupt.as_ref())
    }

    /// Fails if the program has set the flag that interrupts this handle's creations and loads.
    pub(super) fn unless_interrupted(&self) -> Result<(), MemoryError> {
        interrupt::unless_set(self.interrupt.as_ref())
    }

    /// Returns the fabric, for tests and tools.
    #[must_use]
    pub fn fabric(&self) -> &dyn Fabric {
        &*self.inner.fabric
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Memory nodes that are other processes live longer than this handle, and so does the
        // configuration that knows its clients.
        if std::thread::panicking() {
            return;
        }
        let admin = *lock(&self.admin);
        if let Some(configuration) = &self.announced_to
            && let Err(error) = configuration.change(|membership| membership.leave(admin))
        {
            tracing::warn!(%error, "the configuration could not be told that a client has left");
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
