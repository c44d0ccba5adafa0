//! A handle of a cluster: how it is made, what its clones share, and what it says of the cluster.

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

/// A cluster. Clones are cheap and are the same cluster. It ends when the last clone, worker and
/// pool is gone; tables do not keep it.
#[derive(Clone)]
pub struct Cluster {
    pub(super) inner: Arc<Inner>,
    pub(super) protocol: Protocol,
    pub(super) configuration: Option<Arc<dyn Configuration>>,
    lease: Option<Duration>,
    /// Transaction ids of each client incarnation.
    transaction_ids: u64,
    told: Option<Told>,
    /// Makes an observer for each session that moves rows of a table that grows.
    pub(super) movers: Option<Movers>,
    /// The growths that this process has begun by itself; `None` if it begins none.
    pub(super) growths: Option<Arc<Growths>>,
    /// What this handle creates together.
    pub(super) draft: Option<Arc<Draft>>,
    /// A flag that the program sets, to end what this handle creates.
    pub(super) interrupt: Option<Arc<AtomicBool>>,
}

/// A callback that is told of each record that recovery puts back.
type Told = Arc<dyn Fn(&Rollback<'_>) + Send + Sync>;

/// A function that makes observers.
pub(super) type Movers = Arc<dyn Fn() -> Box<dyn Observer> + Send + Sync>;

/// Default lease, unless [`Cluster::with_lease`] sets another. It must exceed the longest
/// scheduling delay of a healthy client on an overloaded machine, and the longest computation of a
/// closure. A client that waits for a dead client waits a little longer.
pub const LEASE: Duration = Duration::from_secs(2);

/// What all handles of a cluster share.
pub(super) struct Inner {
    // Stopped before the memory goes.
    appliers: Vec<ServiceHandle>,
    pub(super) fabric: Arc<dyn Fabric>,
    /// The names of the memory nodes and their fabric, if they are processes of their own.
    pub(super) remote: Option<(Mutex<Nodes>, Remote)>,
    pages: Option<Pages>,
    pub(super) options: ClusterOptions,
    /// The incarnation that changes the catalog.
    pub(super) admin: Mutex<u32>,
    /// The configuration that knows that incarnation, and so can have its access taken away.
    announced_to: Option<Arc<dyn Configuration>>,
    pub(super) opened: Opened,
    /// Tables that this process loads rows into, by when they were born.
    pub(super) loading: Mutex<BTreeSet<u64>>,
    /// Memory nodes that the cluster goes on without, as far as is known here.
    pub(super) lost: Mutex<NodeSet>,
    /// Memory nodes that were away when this controller came. It does without them until they
    /// answer again, or are lost.
    pub(super) absent: Mutex<NodeSet>,
    /// A task of this process has begun to learn of the next epoch.
    pub(super) entering: AtomicBool,
    /// The id that the cluster was founded with.
    id: u64,
    /// The cluster that its tables are of.
    pub(super) cluster: ClusterNumber,
    /// The incarnation of this process's first client, a number that no other process has.
    pub(super) number: u32,
    pub(super) vcache: OnceLock<Arc<VersionCache>>,
}

impl ClusterOptions {
    /// Makes the cluster in shared memory of this process. Nothing has to be installed, and nothing
    /// is kept when the program ends. Its workers have leases of [`LEASE`].
    pub fn open(self) -> Result<Cluster, OpenError> {
        self.check()?;
        let shm = Shm::new(&self.regions()).map_err(MemoryError::from)?;
        let pages = shm.memory().pages();
        Ok(Cluster::format(Arc::new(shm), pages, self)?.with_lease(Some(LEASE)).with_growth(true))
    }

    /// Makes the cluster of memory nodes that each have a server in this process. Clients reach the
    /// servers over TCP on the loopback, or by an RDMA device: for trying these transports out.
    pub fn open_servers(self, rdma: Option<Device>) -> Result<Cluster, OpenError> {
        self.check()?;
        let clients = TcpOptions { rdma, ..TcpOptions::default() };
        let loopback = Loopback::new(&self.regions(), clients).map_err(MemoryError::from)?;
        Ok(Cluster::format(Arc::new(loopback), None, self)?.with_lease(Some(LEASE)).with_growth(true))
    }

    /// Makes the cluster on one thread under a hostile scheduler, for tests: see
    /// `remora_fabric::seeded`. The scheduler does not disturb what is no transaction, such as
    /// [`load`](Cluster::load) and [`inspect`](Cluster::inspect). Clients of this cluster have no
    /// leases, unless [`Cluster::with_lease`] gives them one.
    pub fn open_seeded(self, seed: u64) -> Result<(Cluster, Seeded), OpenError> {
        self.check()?;
        let seeded = Seeded::new(&self.regions(), seed).map_err(MemoryError::from)?;
        let cluster = Cluster::format(Arc::new(seeded.clone()), None, self)?;
        seeded.undisturbed(ClientId(cluster.admin()));
        Ok((cluster, seeded))
    }

    /// Makes the cluster in virtual time, on the hardware of a profile: see `remora_fabric::sim`.
    /// Nothing takes time before [`Sim::instant`] says so.
    pub fn open_simulated(self, sim: &SimOptions) -> Result<(Cluster, Sim), SimulatedError> {
        self.check().map_err(OpenError::from)?;
        let sim = Sim::new(&self.regions(), sim)?;
        sim.instant(true);
        Ok((Cluster::format(Arc::new(sim.clone()), None, self)?, sim))
    }

    /// Makes the cluster on any fabric whose memory nodes are in this process and new: for tests
    /// and tools. The fabric, and not these options, determines how many memory nodes there are and
    /// how large they are. The cluster's clients have no leases: see [`Cluster::with_lease`].
    pub fn open_on(self, fabric: Arc<dyn Host>) -> Result<Cluster, OpenError> {
        let options = self.nodes(fabric.nodes());
        options.check()?;
        Cluster::format(fabric, None, options)
    }
}

impl Cluster {
    /// Begins to describe a cluster whose memory nodes are in this process, for
    /// [`ClusterOptions::open`]: three memory nodes of 256 MiB unless you say otherwise.
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

    /// A cluster of memory nodes that are processes of their own.
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

    /// The catalog, as it was last read.
    #[must_use]
    pub fn catalog(&self) -> Metadata {
        self.inner.opened.catalog()
    }

    /// The epoch that this process has entered.
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.opened.epoch()
    }

    /// All tables that this process has open, where they are now.
    pub(crate) fn tables(&self) -> Vec<Arc<remora_index::Table>> {
        self.inner.opened.all()
    }

    /// A table of this process as it is now, as far as is known here; `None` if it was dropped or
    /// discarded, or has grown into another one.
    pub(crate) fn now(&self, table: &remora_index::Table) -> Option<Arc<remora_index::Table>> {
        self.inner.opened.now(table)
    }

    /// The generation of the catalog up to which this process has forgotten all dropped tables.
    pub(crate) fn followed(&self) -> u64 {
        self.inner.opened.followed()
    }

    /// The generation of the catalog by which this process has last forgotten a table.
    #[inline]
    pub(crate) fn forgotten(&self) -> u64 {
        self.inner.opened.forgotten()
    }

    /// The cluster's number in this process.
    pub(crate) fn number(&self) -> ClusterNumber {
        self.inner.cluster
    }

    /// The names of the memory nodes, in the order of their numbers. `None` if the memory nodes are
    /// in this process.
    #[must_use]
    pub fn nodes(&self) -> Option<Nodes> {
        self.inner.remote.as_ref().map(|(nodes, _)| lock(nodes).clone())
    }

    /// Number of memory nodes that founded the cluster. They have the lowest numbers.
    pub(super) fn founders(&self) -> u16 {
        self.inner.options.nodes
    }

    /// A fabric of one other memory node, which it reaches as the cluster's fabric reaches its own.
    /// `None` if that is not TCP.
    pub(super) fn beside(&self, address: &str) -> Option<Tcp> {
        match &self.inner.remote {
            Some((_, Remote::Tcp(tcp))) => Some(tcp.beside(address.to_owned())),
            _ => None,
        }
    }

    /// The status of a memory node's server, if it is a process that can be asked.
    #[must_use]
    pub fn node_status(&self, node: NodeId) -> Option<NodeStatus> {
        self.inner.remote.as_ref()?.1.status(node)
    }

    /// Number of copies of each record, unless a table says otherwise.
    #[must_use]
    pub fn replicas(&self) -> u8 {
        self.inner.options.copies()
    }

    /// The capabilities of the fabric.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.fabric.capabilities()
    }

    /// Number of memory nodes.
    #[must_use]
    pub fn memory_nodes(&self) -> u16 {
        self.inner.fabric.nodes()
    }

    /// The incarnation that changes the catalog.
    pub(super) fn admin(&self) -> u32 {
        *lock(&self.inner.admin)
    }

    /// The client whose death ends what this handle creates: see [`Cluster::create_together`].
    /// `None` outside of it.
    #[must_use]
    pub fn creator(&self) -> Option<u32> {
        self.draft().map(|draft| draft.creator())
    }

    /// What this handle creates together, if it does.
    pub(super) fn draft(&self) -> Option<Arc<Draft>> {
        self.draft.as_ref().filter(|draft| !draft.is_over()).cloned()
    }

    /// A handle that creates tables together.
    pub(super) fn drafting(&self, draft: Arc<Draft>) -> Cluster {
        Cluster { draft: Some(draft), ..self.clone() }
    }

    /// CPU time that the memory nodes have used, in nanoseconds. A memory node in this process
    /// counts the time in which it applies redo logs. A process of its own counts all of its time.
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

    /// Which pages back the memory nodes, if they are in shared memory of this process.
    #[must_use]
    pub fn pages(&self) -> Option<Pages> {
        self.inner.pages
    }

    /// The protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// A handle to this cluster whose workers run another protocol. Tables must be opened through
    /// it. It refuses tables whose discipline the protocol does not have.
    #[must_use]
    pub fn with_protocol(&self, protocol: Protocol) -> Cluster {
        Cluster { protocol, ..self.clone() }
    }

    /// The configuration. It says which clients are alive, and which client recovers a dead one.
    /// `None` if client processes share no configuration: then no client frees the locks of a dead
    /// one.
    #[must_use]
    pub fn configuration(&self) -> Option<&Arc<dyn Configuration>> {
        self.configuration.as_ref()
    }

    /// The id that the cluster was founded with, by which its configuration knows it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// A handle to this cluster whose workers trust another configuration. All clients of a cluster
    /// must trust the same configuration. Fails if it is the configuration of another cluster
    /// ([`Configuration::cluster`]), whose clients have nothing to do with those of this one.
    pub fn with_configuration(&self, configuration: Arc<dyn Configuration>) -> Result<Cluster, ConnectError> {
        match configuration.cluster() {
            Some(other) if other != self.id() => {
                Err(ConnectError::ConfigurationOfOtherCluster { configuration: other, cluster: self.id() })
            }
            _ => Ok(Cluster { configuration: Some(configuration), ..self.clone() }),
        }
    }

    /// The lease of a worker that runs. Other clients take the worker for dead if it gives no sign
    /// of life for that long.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// The lease in nanoseconds.
    pub(crate) fn lease_ns(&self) -> Option<Nanos> {
        self.lease.map(|lease| u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX))
    }

    /// A handle to this cluster whose workers have leases of this length; `None` turns leases off.
    /// A worker with a lease also recovers clients whose leases have expired.
    ///
    /// Other clients take a worker for dead if its thread only computes, or blocks, for longer than
    /// the lease. The worker's transactions then fail with
    /// [`Error::Fenced`](crate::Error::Fenced). A worker that runs nothing is not taken for dead.
    /// Over a network, a worker without a lease may read at a memory node that the cluster has
    /// given up, until it hears of that.
    #[must_use]
    pub fn with_lease(&self, lease: Option<Duration>) -> Cluster {
        Cluster { lease, ..self.clone() }
    }

    /// A handle to the cluster whose workers' clients have `ids` transaction ids each, at least 1
    /// and at most 2^39: for tests of what happens at the end. A client goes on as another
    /// incarnation before its ids come to an end, if it has a lease; otherwise its transactions end
    /// with [`Limit::TransactionIds`](crate::Limit::TransactionIds).
    #[must_use]
    pub fn with_transaction_ids(&self, ids: u64) -> Cluster {
        Cluster { transaction_ids: ids.clamp(1, TransactionId::SEQUENCE_MAX), ..self.clone() }
    }

    /// Number of transaction ids of each client incarnation.
    pub(crate) fn transaction_ids(&self) -> u64 {
        self.transaction_ids
    }

    /// A handle to this cluster whose workers report what they put back when they recover a dead
    /// client. They report each record before they put it back. If a recoverer dies, its successor
    /// reports the record again. A recorded history needs this, because other clients read the
    /// versions that recovery installs.
    #[must_use]
    pub fn with_rollbacks_told(&self, told: Arc<dyn Fn(&Rollback<'_>) + Send + Sync>) -> Cluster {
        Cluster { told: Some(told), ..self.clone() }
    }

    /// A handle whose workers make tables larger by themselves, on threads of their own (`true`),
    /// or leave that to [`grow_table`](Cluster::grow_table) (`false`). The default is `true` for
    /// clusters in this process and for connected ones, and `false` for seeded and simulated ones.
    #[must_use]
    pub fn with_growth(&self, by_itself: bool) -> Cluster {
        Cluster { growths: by_itself.then(|| self.growths.clone().unwrap_or_default()), ..self.clone() }
    }

    /// A handle that attaches an observer to each session that moves the rows of a growing table:
    /// `movers` makes the observers. Recorded histories need the transactions of these sessions.
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

    /// A handle whose creations and loads a program can end. Once the flag is set, they fail with
    /// [`MemoryError::Interrupted`]. A creation of several steps is then undone.
    #[must_use]
    pub fn with_interrupt(&self, interrupt: Arc<AtomicBool>) -> Cluster {
        let mut cluster = self.clone();
        cluster.interrupt = Some(interrupt);
        cluster
    }

    /// Whether the program has ended what this handle creates: see [`Cluster::with_interrupt`].
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        interrupt::is_set(self.interrupt.as_ref())
    }

    /// Fails if the program has ended what this handle creates.
    pub(super) fn unless_interrupted(&self) -> Result<(), MemoryError> {
        interrupt::unless_set(self.interrupt.as_ref())
    }

    /// The fabric, for tests and tools.
    #[must_use]
    pub fn fabric(&self) -> &dyn Fabric {
        &*self.inner.fabric
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Memory nodes that are other processes outlive this cluster, and so does what knows its
        // clients.
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
