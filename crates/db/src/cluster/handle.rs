//! A cluster: its memory nodes, its catalog, and what is opened of it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use remora_cluster::{Configuration, EpochChanging, InMemory, OtherCache};
use remora_fabric::seeded::Seeded;
use remora_fabric::shm::Shm;
use remora_fabric::sim::{Sim, SimOptions};
use remora_fabric::tcp::{Loopback, NodeStatus, Tcp, TcpOptions};
use remora_fabric::verbs::Device;
use remora_fabric::{
    Capabilities, ClientId, Fabric, FabricError, Fault, Host, Lane, Nanos, NodeId, NodeSet, Pages, ServiceHandle,
};
use remora_index::{MakePart, Parts, Sizes, TakeRow};
use remora_memory::limits::REPLICAS_MAX;
use remora_memory::{
    Discipline, MemoryError, Metadata, ReadScheme, Replica, TableEntry, TableSpec, come, connected, identity, metadata,
    node,
};
use remora_sync::{StableRecord, TransactionId};
use remora_txn::recovery::Rollback;
use remora_txn::{Applier, Inspection, Protocol, RpcHandler, Validation, VersionCache, inspect};

use zerocopy::IntoBytes;

use super::creation::Draft;
use super::nodes::{Nodes, Remote, are_named};
use crate::error::{OpenError, SimulatedError};
use crate::table::{Handle, Key, Record, Schema, Table};

/// How to found a cluster whose memory nodes are in this process.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// Memory nodes that it is founded with.
    pub memory_nodes: u16,
    /// Copies of each record, unless a table says otherwise: the primary and its backups.
    pub replicas: u8,
    /// The last `spares` memory nodes get no shards of new tables. They take copies of what other
    /// nodes held, when those die.
    pub spares: u16,
    /// Bytes of each memory node.
    pub node_bytes: usize,
    /// How transactions are run.
    pub protocol: Protocol,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions { memory_nodes: 3, replicas: 3, spares: 0, node_bytes: 256 << 20, protocol: Protocol::default() }
    }
}

/// Bytes of a version cache, at most: more has no use, and must not be asked of the system.
const VERSION_CACHE_BYTES_MAX: usize = 1 << 30;

/// Bytes of key and value up to which records have line versions: those cost readers less CPU time
/// than a checksum, and writers none, but for larger records no longer less, and an eighth more
/// bytes (`docs/reproduce-latches.md`).
const LINE_VERSIONS_MAX: usize = 512;

/// How to create a table.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// Rows that it can hold.
    pub rows: u64,
    /// Copies of each record; the cluster's default if `None`.
    pub replicas: Option<u8>,
    /// Parts that it is spread over; one for each memory node if `None`.
    pub shards: Option<u16>,
    /// The memory node that has the primary of its first part, counted from 0; those of the others
    /// are at the ones behind.
    pub first_node: u16,
    /// How torn records are told. If `None`: not at all where a record is one line that is read
    /// whole; by line versions up to 512 bytes of key and value, where lines are read whole; and by
    /// a checksum.
    pub read_scheme: Option<ReadScheme>,
}

impl TableOptions {
    /// A table of at most `rows` rows, otherwise with the cluster's defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> TableOptions {
        TableOptions { rows, replicas: None, shards: None, first_node: 0, read_scheme: None }
    }
}

/// A shard gets this much more than its share of the rows, because keys scatter unevenly: five
/// standard deviations.
fn rows_of_a_shard(rows: u64, shards: u16) -> u64 {
    if shards == 1 {
        return rows;
    }
    let share = rows as f64 / f64::from(shards);
    ((share + 5.0 * share.sqrt()).ceil() as u64).saturating_add(8).min(rows)
}

/// A cluster. Clones are cheap and are the same cluster; it ends when the last clone, worker and
/// table is gone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
    protocol: Protocol,
    configuration: Option<Arc<dyn Configuration>>,
    lease: Option<Duration>,
    /// Transaction ids of each client incarnation.
    transaction_ids: u64,
    told: Option<Told>,
    /// What this handle creates together.
    pub(super) draft: Option<Arc<Draft>>,
    /// The program sets it to end what this handle creates.
    pub(super) interrupt: Option<Arc<AtomicBool>>,
}

/// A client that is about to register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) incarnation: u32,
    pub(crate) epoch: u64,
    /// The memory nodes of that epoch.
    pub(crate) nodes: NodeSet,
}

/// A callback that is told of each record that recovery puts back.
type Told = Arc<dyn Fn(&Rollback<'_>) + Send + Sync>;

/// Default lease, unless [`Cluster::with_lease`] sets another. It must exceed the longest
/// scheduling delay of a healthy client on an overloaded machine, and the longest computation of a
/// closure. A client that waits for a dead client waits a little longer.
pub const LEASE: Duration = Duration::from_secs(2);

struct Inner {
    // Stopped before the memory goes.
    appliers: Vec<ServiceHandle>,
    fabric: Arc<dyn Fabric>,
    /// Where the memory nodes are, if they are processes of their own.
    remote: Option<(Mutex<Nodes>, Remote)>,
    pages: Option<Pages>,
    options: ClusterOptions,
    /// The incarnation that changes the catalog.
    admin: Mutex<u32>,
    /// Who knows of it, so that its access can be taken away.
    announced_to: Option<Arc<dyn Configuration>>,
    tables: Mutex<HashMap<String, Arc<remora_index::Table>>>,
    drops: Drops,
    metadata: Mutex<Metadata>,
    /// Memory nodes that the cluster goes on without, as far as is known here.
    lost: Mutex<NodeSet>,
    /// Memory nodes that this controller's cluster does without until they are lost, or there
    /// again: they were away when it came.
    absent: Mutex<NodeSet>,
    /// A task of this process has begun to learn of the next epoch.
    entering: AtomicBool,
    /// The cluster that its tables are of.
    cluster: ClusterNumber,
    /// A number that no other process has: that of its first client.
    number: u32,
    /// Tables that are validated by this process's version cache.
    claimed: Mutex<Vec<u16>>,
    vcache: OnceLock<Arc<VersionCache>>,
}

/// What this process knows of tables that were dropped. See `dropping`.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// Generation of the catalog up to which all dropped tables are forgotten.
    pub(crate) followed: AtomicU64,
    /// Generation of the catalog by which a table was last forgotten.
    pub(crate) forgotten: AtomicU64,
    /// Tables that this process loads rows into, by when they were born.
    loading: Mutex<BTreeSet<u64>>,
}

/// Tells the clusters apart that a process knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClusterNumber(u64);

impl ClusterNumber {
    /// A cluster whose memory nodes are in this process: no other handle finds it, and its memory
    /// need not be asked.
    fn embedded() -> ClusterNumber {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        ClusterNumber(1 << 63 | NUMBERS.fetch_add(1, Ordering::Relaxed))
    }

    /// A cluster whose memory nodes were founded with this id.
    pub(crate) fn founded(cluster: u64) -> ClusterNumber {
        ClusterNumber(cluster)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// A cluster whose memory nodes are shared memory of this process: nothing to install, nothing
    /// kept when it ends.
    pub fn embedded(options: ClusterOptions) -> Result<Cluster, OpenError> {
        check(&options)?;
        let shm = Shm::new(&regions(&options)).map_err(MemoryError::from)?;
        let pages = shm.memory().pages();
        Ok(Cluster::format(Arc::new(shm), pages, options)?.with_lease(Some(LEASE)))
    }

    /// A cluster whose memory nodes each have a server in this process. Clients reach them over TCP
    /// on the loopback, or by an RDMA device. For trying these transports out.
    pub fn embedded_servers(rdma: Option<Device>, options: ClusterOptions) -> Result<Cluster, OpenError> {
        check(&options)?;
        let clients = TcpOptions { rdma, ..TcpOptions::default() };
        let loopback = Loopback::new(&regions(&options), clients).map_err(MemoryError::from)?;
        Ok(Cluster::format(Arc::new(loopback), None, options)?.with_lease(Some(LEASE)))
    }

    /// A cluster on one thread under a hostile scheduler: see `remora_fabric::seeded`. For tests.
    /// Its clients have no leases: see [`Cluster::with_lease`].
    pub fn seeded(options: ClusterOptions, seed: u64) -> Result<(Cluster, Seeded), OpenError> {
        check(&options)?;
        let seeded = Seeded::new(&regions(&options), seed).map_err(MemoryError::from)?;
        Ok((Cluster::format(Arc::new(seeded.clone()), None, options)?, seeded))
    }

    /// A cluster in virtual time, on the hardware of a profile: see `remora_fabric::sim`. Nothing
    /// takes time before [`Sim::instant`] says so.
    pub fn simulated(options: ClusterOptions, sim: &SimOptions) -> Result<(Cluster, Sim), SimulatedError> {
        check(&options).map_err(OpenError::from)?;
        let sim = Sim::new(&regions(&options), sim)?;
        sim.instant(true);
        Ok((Cluster::format(Arc::new(sim.clone()), None, options)?, sim))
    }

    /// A cluster on any fabric whose memory nodes are in this process. The memory nodes must be
    /// new. For tests and tools: the fabric determines `options.memory_nodes` and `node_bytes`. Its
    /// clients have no leases: see [`Cluster::with_lease`].
    pub fn on(fabric: Arc<dyn Host>, options: ClusterOptions) -> Result<Cluster, OpenError> {
        let options = ClusterOptions { memory_nodes: fabric.nodes(), ..options };
        check(&options)?;
        Cluster::format(fabric, None, options)
    }

    fn format(fabric: Arc<dyn Host>, pages: Option<Pages>, options: ClusterOptions) -> Result<Cluster, OpenError> {
        let mut appliers = Vec::with_capacity(options.memory_nodes.into());
        for node in (0..options.memory_nodes).map(NodeId) {
            let region = fabric.region(node, node::REGION).ok_or(MemoryError::Foreign(node))?;
            node::format(&region, node::Place::default())?;
            fabric.answer(node, Box::new(RpcHandler::new(region.clone())));
            appliers.push(fabric.serve(node, "applier", Box::new(Applier::new(region))));
        }
        let admin = remora_fabric::block_on(&*fabric, ClientId(0), async |lane: &Lane| {
            identity::found(lane, options.memory_nodes).await?;
            come(lane, NodeSet::first(options.memory_nodes)).await
        })??;
        let inner = Inner {
            appliers,
            fabric,
            remote: None,
            pages,
            options,
            admin: Mutex::new(admin),
            announced_to: None,
            tables: Mutex::default(),
            drops: Drops::default(),
            metadata: Mutex::default(),
            lost: Mutex::default(),
            absent: Mutex::default(),
            entering: AtomicBool::new(false),
            cluster: ClusterNumber::embedded(),
            number: admin,
            claimed: Mutex::default(),
            vcache: OnceLock::new(),
        };
        let configuration: Arc<dyn Configuration> = Arc::new(InMemory::default());
        Ok(Cluster {
            inner: Arc::new(inner),
            protocol: options.protocol,
            configuration: Some(configuration),
            lease: None,
            transaction_ids: TransactionId::SEQUENCE_MAX,
            told: None,
            draft: None,
            interrupt: None,
        })
    }

    /// A cluster of memory nodes that are processes of their own.
    pub(crate) fn remote(
        fabric: Arc<dyn Fabric>,
        cluster: ClusterNumber,
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
            tables: Mutex::default(),
            drops: Drops::default(),
            metadata: Mutex::new(metadata),
            lost: Mutex::new(lost),
            absent: Mutex::new(absent),
            entering: AtomicBool::new(false),
            cluster,
            number: admin,
            claimed: Mutex::default(),
            vcache: OnceLock::new(),
        };
        let lease = configuration.is_some().then_some(LEASE);
        let (inner, protocol) = (Arc::new(inner), options.protocol);
        let transaction_ids = TransactionId::SEQUENCE_MAX;
        Cluster { inner, protocol, configuration, lease, transaction_ids, told: None, draft: None, interrupt: None }
    }

    /// Reads the catalog again.
    pub fn refresh(&self) -> Result<(), OpenError> {
        let metadata = self.read_catalog()?;
        if metadata.epoch == self.epoch() {
            return self.follow_catalog(metadata);
        }
        *lock(&self.inner.metadata) = metadata;
        Ok(())
    }

    pub(crate) fn drops(&self) -> &Drops {
        &self.inner.drops
    }

    pub(crate) fn loading(&self) -> &Mutex<BTreeSet<u64>> {
        &self.inner.drops.loading
    }

    /// Whether a table is open in this process: it was neither dropped nor discarded, as far as is
    /// known here.
    pub(crate) fn has(&self, table: &remora_index::Table) -> bool {
        lock(&self.inner.tables).get(table.name()).is_some_and(|own| own.born() == table.born())
    }

    pub(crate) fn read_catalog(&self) -> Result<Metadata, OpenError> {
        let leader = self.live_nodes().leader();
        self.administer(async |lane: &Lane| Ok(metadata::read(lane, leader).await?))
    }

    /// Memory nodes that are not lost, nor were away when this cluster's controller came.
    #[must_use]
    pub fn live_nodes(&self) -> NodeSet {
        NodeSet::first(self.memory_nodes()).without(*lock(&self.inner.lost)).without(*lock(&self.inner.absent))
    }

    /// Memory nodes for new tables: neither spare nor about to leave, or, if that leaves too few,
    /// all.
    fn places(&self) -> NodeSet {
        let live = self.live_nodes();
        let regular = NodeSet::first(self.founders() - self.inner.options.spares.min(self.founders()));
        let spares = NodeSet::first(self.founders()).without(regular);
        let leaving = self.configuration.as_ref().and_then(|all| all.look(|membership| membership.leaving()).ok());
        let places = live.without(spares).without(leaving.unwrap_or_default());
        if places.count() < u16::from(self.inner.options.replicas) { live } else { places }
    }

    /// Gives a client an incarnation. `guest` is a lane of client id 0. The configuration knows the
    /// incarnation before the client takes anything.
    pub(crate) async fn announce(&self, guest: &Lane) -> Result<Announced, MemoryError> {
        identity::remembered(guest, self.live_nodes()).await?;
        self.lacks_nothing()?;
        // The epoch first: if another one is entered meanwhile, this one is refused, whichever
        // nodes go with it.
        let epoch = self.epoch();
        let nodes = self.live_nodes();
        let incarnation = come(guest, nodes).await?;
        let is_local = self.protocol.validation() == Validation::Local;
        if let Some(configuration) = &self.configuration {
            if is_local {
                self.knows_all(configuration, guest).await?;
            }
            let tables = || is_local.then(|| (self.inner.number, lock(&self.inner.claimed).clone()));
            join_by(configuration, incarnation, epoch, self.lease_ns().unwrap_or(u64::MAX / 2), tables)?;
        } else if is_local {
            return Err(MemoryError::NeedsConfiguration(self.protocol.name()));
        }
        Ok(Announced { incarnation, epoch, nodes })
    }

    /// Fails if a client is connected that the configuration does not know: it goes by another one,
    /// or by none, where it may have claimed tables for a version cache of its own.
    async fn knows_all(&self, configuration: &Arc<dyn Configuration>, lane: &Lane) -> Result<(), MemoryError> {
        let clients = connected(lane, self.live_nodes().leader()).await?;
        let stranger = configuration.look(|membership| {
            clients.iter().map(|client| client.incarnation).find(|client| membership.standing(*client).is_none())
        });
        match stranger.map_err(|error| MemoryError::Configuration(error.to_string()))? {
            Some(stranger) => Err(MemoryError::UnknownClient(stranger)),
            None => Ok(()),
        }
    }

    /// Learns of the last epoch: which nodes are lost, and where tables are now. `lane` is a lane
    /// of client id 0. A task that calls this while another one does waits.
    pub(crate) async fn enter_epoch(&self, lane: &Lane) -> Result<(), OpenError> {
        const PAUSE_NS: Nanos = 20_000;
        let Some(configuration) = &self.configuration else { return Ok(()) };
        while self.inner.entering.swap(true, Ordering::Acquire) {
            lane.sleep(PAUSE_NS).await;
        }
        let _entering = Entering(&self.inner.entering);
        self.enter(configuration, lane).await
    }

    async fn enter(&self, configuration: &Arc<dyn Configuration>, lane: &Lane) -> Result<(), OpenError> {
        let now = configuration.look(|membership| (membership.epoch(), membership.lost()));
        let (epoch, lost) = now.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        // A node that this has come without, though the epoch has it, was added while it came.
        if epoch == self.epoch() && lock(&self.inner.lost).without(lost).is_empty() {
            return Ok(());
        }
        self.expect_all();
        self.follow_nodes()?;
        let live = NodeSet::first(self.memory_nodes()).without(lost);
        let metadata = metadata::read(lane, live.leader()).await?;
        are_named(&metadata, self.memory_nodes())?;
        if metadata.epoch != epoch {
            // That of the next one, which is about to begin, and may have other nodes.
            return Err(MemoryError::EpochChanging.into());
        }
        // What changes the catalog of processes of their own had its access taken away, too.
        if self.inner.remote.is_some() {
            let admin = come(lane, live).await?;
            join(configuration, admin, epoch, u64::MAX / 2)?;
            *lock(&self.inner.admin) = admin;
        }
        self.follow_catalog(metadata)?;
        self.tables().iter().for_each(|table| self.announce_lines(table, |replica| replica.joining));
        *lock(&self.inner.lost) = lost;
        Ok(())
    }

    /// Updates the open tables from a catalog. A table that is not in it has been discarded or
    /// dropped, and is no longer open.
    pub(crate) fn follow_catalog(&self, metadata: Metadata) -> Result<(), OpenError> {
        let mut tables = lock(&self.inner.tables);
        let Drops { followed, forgotten, .. } = &self.inner.drops;
        if metadata.generation < followed.load(Ordering::Acquire) {
            return Ok(()); // another thread has followed a newer one
        }
        let has = |table: &remora_index::Table| {
            metadata.table(table.name()).is_ok_and(|(id, entry)| (id, entry.born) == (table.id(), table.born()))
        };
        let gone: Vec<u16> = tables.values().filter(|table| !has(table)).map(|table| table.id().0).collect();
        if !gone.is_empty() {
            tables.retain(|_, table| has(table));
            lock(&self.inner.claimed).retain(|claimed| !gone.contains(claimed));
            forgotten.store(metadata.generation, Ordering::Release);
        }
        followed.store(metadata.generation, Ordering::Release);
        for table in tables.values_mut() {
            *table = Arc::new(table.moved(&metadata)?);
        }
        // Until all of it is known, no table is added by what was known before.
        *lock(&self.inner.metadata) = metadata;
        drop(tables);
        Ok(())
    }

    /// Who connects from now on does so to the memory nodes of the last epoch: goes near none that
    /// the cluster goes on without, nor one that is absent.
    pub(crate) fn follow_nodes(&self) -> Result<(), OpenError> {
        self.learn_names()?;
        let Some(configuration) = &self.configuration else { return Ok(()) };
        let lost = configuration.look(|membership| membership.lost());
        let lost = lost.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        let (known, absent) = (*lock(&self.inner.lost), *lock(&self.inner.absent));
        lost.without(known).iter().for_each(|node| self.inner.fabric.abandon(node));
        known.without(lost).without(absent).iter().for_each(|node| self.inner.fabric.readmit(node));
        Ok(())
    }

    /// Learns where memory nodes are that have been added. As far as is known here, the cluster
    /// does without them still.
    pub(crate) fn learn_names(&self) -> Result<(), OpenError> {
        let (Some(configuration), Some((nodes, remote))) = (&self.configuration, &self.inner.remote) else {
            return Ok(());
        };
        let mut nodes = lock(nodes);
        let known = self.memory_nodes();
        let new = configuration.look(|membership| -> Vec<_> {
            membership.added().range(known..).map(|(number, name)| (NodeId(*number), name.clone())).collect()
        });
        for (number, name) in new.map_err(|error| MemoryError::Configuration(error.to_string()))? {
            let mut lost = lock(&self.inner.lost);
            *lost = lost.with(number);
            self.inner.fabric.abandon(number);
            if !remote.add(&name) {
                return Err(MemoryError::NotNamed(number).into());
            }
            *nodes = nodes.with(&[&name]);
        }
        Ok(())
    }

    /// Memory nodes that were away when this controller's cluster came, and that it has not heard
    /// of since.
    pub(crate) fn absent(&self) -> NodeSet {
        *lock(&self.inner.absent)
    }

    /// Has this controller's cluster do without nodes that do not answer, as if they had been away
    /// when it came.
    pub(crate) fn miss(&self, nodes: NodeSet) {
        nodes.iter().for_each(|node| self.inner.fabric.abandon(node));
        let mut absent = lock(&self.inner.absent);
        *absent = NodeSet::from_bits(absent.to_bits() | nodes.to_bits());
    }

    /// Fails as long as nodes are absent: a client would lack its rings there, a table its entry in
    /// the catalog, if they came back as they were.
    pub(crate) fn lacks_nothing(&self) -> Result<(), MemoryError> {
        if self.absent().is_empty() { Ok(()) } else { Err(MemoryError::EpochChanging) }
    }

    /// Nodes that were away when this cluster came are there again, or lost.
    pub(crate) fn expect_all(&self) {
        let absent = std::mem::take(&mut *lock(&self.inner.absent));
        absent.iter().for_each(|node| self.inner.fabric.readmit(node));
    }

    /// Learns of the last epoch, where nobody runs.
    pub(crate) fn follow_epoch(&self) -> Result<(), OpenError> {
        self.follow_nodes()?;
        let enter = async |lane: &Lane| self.enter_epoch(lane).await;
        remora_fabric::block_on(&*self.inner.fabric, ClientId(0), enter)?
    }

    /// A table where it is now, as far as this handle of its cluster knows. Another handle may have
    /// opened it: then it is this one's, too, from now on, and follows the epochs with the others.
    pub(crate) fn own(&self, table: Handle<'_>) -> Result<Arc<remora_index::Table>, OpenError> {
        let name = table.inner.name();
        if table.cluster != self.inner.cluster {
            return Err(OpenError::OtherCluster(name.to_owned()));
        }
        let is_it = |own: &Arc<remora_index::Table>| own.born() == table.inner.born();
        let known = lock(&self.inner.tables).get(name).cloned();
        if let Some(own) = known.filter(is_it) {
            return Ok(own);
        }
        match self.adopt(name) {
            Ok(own) if is_it(&own) => Ok(own),
            Ok(_) | Err(OpenError::Memory(MemoryError::UnknownTable(_))) => {
                Err(MemoryError::Dropped { table: name.to_owned() }.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a table by the catalog of the epoch that this handle is in. Waits for nothing but the
    /// memory node, since the thread may be that of a worker which has to follow an epoch
    /// meanwhile.
    #[cold]
    fn adopt(&self, name: &str) -> Result<Arc<remora_index::Table>, OpenError> {
        let leader = self.live_nodes().leader();
        let read = async |lane: &Lane| metadata::read(lane, leader).await;
        loop {
            let metadata = remora_fabric::block_on(&*self.inner.fabric, ClientId(0), read)??;
            if metadata.epoch != self.epoch() {
                return Err(MemoryError::EpochChanging.into());
            }
            if let Some(table) = self.remember(&metadata, name)? {
                return Ok(table);
            }
        }
    }

    /// Opens a table by a catalog that was just read, unless it is open. `None` if the catalog is
    /// older than one that this process has followed: a table in it may have been dropped since.
    fn remember(&self, metadata: &Metadata, name: &str) -> Result<Option<Arc<remora_index::Table>>, OpenError> {
        let opened = metadata.table(name).map(|(_, entry)| entry.born);
        let mut tables = lock(&self.inner.tables);
        if metadata.generation < self.followed() {
            return Ok(None);
        }
        let is_other = |table: &Arc<remora_index::Table>| opened.as_ref().is_ok_and(|born| *born != table.born());
        if opened.is_err() || tables.get(name).is_some_and(is_other) {
            // Dropped, and perhaps created again, by another client.
            drop(tables);
            self.follow_catalog(metadata.clone())?;
            opened?;
            tables = lock(&self.inner.tables);
        }
        if let Some(table) = tables.get(name) {
            return Ok(Some(table.clone()));
        }
        if metadata.generation < self.followed() {
            return Ok(None);
        }
        let table = Arc::new(remora_index::Table::open(metadata, name)?);
        tables.insert(name.to_owned(), table.clone());
        Ok(Some(table))
    }

    /// The cluster's number in this process.
    pub(crate) fn number(&self) -> ClusterNumber {
        self.inner.cluster
    }

    /// All that have been opened, where they are now.
    pub(crate) fn tables(&self) -> Vec<Arc<remora_index::Table>> {
        lock(&self.inner.tables).values().cloned().collect()
    }

    /// The catalog, as it was last read.
    #[must_use]
    pub fn catalog(&self) -> Metadata {
        lock(&self.inner.metadata).clone()
    }

    /// Where the memory nodes are, in the order of their numbers; `None` if they are in this
    /// process.
    #[must_use]
    pub fn nodes(&self) -> Option<Nodes> {
        self.inner.remote.as_ref().map(|(nodes, _)| lock(nodes).clone())
    }

    /// Number of memory nodes that founded the cluster. They have the lowest numbers.
    pub(crate) fn founders(&self) -> u16 {
        self.inner.options.memory_nodes
    }

    /// The fabric of another memory node alone, which is reached as those of the cluster are.
    pub(crate) fn beside(&self, address: &str) -> Option<Tcp> {
        match &self.inner.remote {
            Some((_, Remote::Tcp(tcp))) => Some(tcp.beside(address.to_owned())),
            _ => None,
        }
    }

    /// How the server of a memory node is, if it is a process that can be asked.
    #[must_use]
    pub fn node_status(&self, node: NodeId) -> Option<NodeStatus> {
        self.inner.remote.as_ref()?.1.status(node)
    }

    /// Copies of each record of tables that do not say otherwise.
    #[must_use]
    pub fn replicas(&self) -> u8 {
        self.inner.options.replicas
    }

    /// What the backend promises.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.fabric.capabilities()
    }

    /// Number of memory nodes.
    #[must_use]
    pub fn memory_nodes(&self) -> u16 {
        self.inner.fabric.nodes()
    }

    /// Runs something that is no transaction, as the cluster's own client.
    pub(crate) fn administer<T, E: From<FabricError>>(
        &self,
        body: impl AsyncFnOnce(&Lane) -> Result<T, E>,
    ) -> Result<T, E> {
        remora_fabric::block_on(&*self.inner.fabric, self.administrator()?, body)?
    }

    /// The cluster's own client, once it has entered the present epoch.
    fn administrator(&self) -> Result<ClientId, FabricError> {
        // A process that runs no transactions learns here that an epoch has begun, and with it
        // another life of its own client.
        if self.inner.remote.is_some()
            && let Err(error) = self.follow_epoch()
        {
            tracing::warn!(%error, "the next epoch cannot be entered yet");
        }
        let admin = ClientId(self.admin());
        if self.draft().is_some_and(|draft| draft.client() != admin.0) {
            // The epoch has ended, and with it the client that creates the tables.
            return Err(FabricError { node: self.live_nodes().leader(), fault: Fault::Revoked });
        }
        Ok(admin)
    }

    /// The incarnation that changes the catalog.
    pub(crate) fn admin(&self) -> u32 {
        *lock(&self.inner.admin)
    }

    /// A handle that creates tables together.
    pub(crate) fn drafting(&self, draft: Arc<Draft>) -> Cluster {
        Cluster { draft: Some(draft), ..self.clone() }
    }

    /// Whether other processes know by its connections that a client of this one lives.
    pub(crate) fn is_seen_by_connections(&self) -> bool {
        matches!(&self.inner.remote, Some((_, Remote::Tcp(_))))
    }

    /// Creates a table, empty.
    pub fn create_table<K: Key, V: Record>(&self, name: &str, options: TableOptions) -> Result<Table<K, V>, OpenError> {
        self.create_table_as(name, Table::<K, V>::schema(), options)
    }

    /// Creates a table of this schema, of which the caller knows that it fits the types.
    pub(crate) fn create_table_as<K: Key, V: Record>(
        &self,
        name: &str,
        schema: Schema,
        options: TableOptions,
    ) -> Result<Table<K, V>, OpenError> {
        Ok(Table::new(self.create_with(name, schema, options)?, self.inner.cluster))
    }

    fn create_with(
        &self,
        name: &str,
        schema: Schema,
        options: TableOptions,
    ) -> Result<Arc<remora_index::Table>, OpenError> {
        let Schema { fingerprint, key_bytes, value_bytes } = schema;
        let atomic_line = self.capabilities().atomic_line;
        let single_line = remora_sync::layout(key_bytes, value_bytes, ReadScheme::SingleLine);
        let layout = match options.read_scheme {
            Some(ReadScheme::SingleLine | ReadScheme::LineVersions) if !atomic_line => {
                return Err(MemoryError::NeedsAtomicLines.into());
            }
            Some(scheme) => remora_sync::layout(key_bytes, value_bytes, scheme)?,
            None => match single_line {
                Ok(layout) if atomic_line => layout,
                Err(_) if atomic_line && key_bytes + value_bytes <= LINE_VERSIONS_MAX => {
                    remora_sync::layout(key_bytes, value_bytes, ReadScheme::LineVersions)?
                }
                _ => remora_sync::layout(key_bytes, value_bytes, ReadScheme::Checksum)?,
            },
        };
        if options.rows == 0 {
            return Err(MemoryError::Empty("the number of rows of a table").into());
        }
        self.lacks_nothing()?;
        self.unless_interrupted()?;
        let shards = options.shards.unwrap_or(self.memory_nodes() - self.inner.options.spares);
        let index = self.protocol.index();
        let sizes = Sizes::for_rows(index, rows_of_a_shard(options.rows, shards.max(1)), layout.slot_bytes);
        let spec = TableSpec {
            name: name.to_owned(),
            fingerprint,
            layout,
            index,
            discipline: self.protocol.discipline(),
            shards,
            replicas: options.replicas.unwrap_or(self.inner.options.replicas),
            buckets: sizes.buckets,
            indirect: sizes.indirect,
            slots: sizes.slots,
            shard_bytes: sizes.shard_bytes,
        };
        // Asked in there, where the last epoch has been entered.
        let draft = self.draft();
        let create = || {
            self.administer(async |lane: &Lane| {
                let (nodes, places, client) = (self.live_nodes(), self.places(), self.admin());
                let (spec, first) = (spec.clone(), NodeId(options.first_node));
                Ok(match draft {
                    Some(_) => metadata::begin_table(lane, nodes, places, client, spec, first).await?,
                    None => metadata::create_table(lane, nodes, places, client, spec, first).await?,
                })
            })
        };
        let (id, metadata) = self.change_catalog(create)?;
        if let Some(draft) = &draft {
            draft.note(id);
        }
        // Also of records with a checksum: it vouches for the value, but validation looks at lock
        // and version alone, which must be of one instant.
        if atomic_line {
            let table = remora_index::Table::open(&metadata, name)?;
            self.announce_lines(&table, |_| true);
        }
        *lock(&self.inner.metadata) = metadata;
        self.open_with(name, schema)
    }

    /// Says where a table's records are.
    fn announce_lines(&self, table: &remora_index::Table, new: impl Fn(&Replica) -> bool) {
        let lines = table.index().lines_of_records();
        for replica in (0..table.shards()).flat_map(|shard| table.shard_replicas(shard)).filter(|replica| new(replica))
        {
            self.inner.fabric.lines_of_records(replica.address(lines.start), lines.end - lines.start);
        }
    }

    /// Opens a table that exists.
    pub fn open_table<K: Key, V: Record>(&self, name: &str) -> Result<Table<K, V>, OpenError> {
        self.open_table_as(name, Table::<K, V>::schema())
    }

    /// Opens a table of this schema, of which the caller knows that it fits the types.
    pub(crate) fn open_table_as<K: Key, V: Record>(
        &self,
        name: &str,
        schema: Schema,
    ) -> Result<Table<K, V>, OpenError> {
        Ok(Table::new(self.open_with(name, schema)?, self.inner.cluster))
    }

    fn open_with(&self, name: &str, wanted: Schema) -> Result<Arc<remora_index::Table>, OpenError> {
        let known = lock(&self.inner.tables).get(name).cloned();
        // Another client may have dropped it, and created another one of that name.
        let has_heard = || self.configuration.as_ref().and_then(|all| all.look(|membership| membership.dropped()).ok());
        let is_current = |table: &Arc<remora_index::Table>| {
            table.entry().spec.fingerprint == wanted.fingerprint
                && has_heard().is_none_or(|dropped| dropped <= self.followed())
        };
        let table = match known.filter(is_current) {
            Some(table) => table,
            None => loop {
                let catalog = self.read_catalog()?;
                if let (_, TableEntry { creator: Some(client), .. }) = catalog.table(name)?
                    && self.creator() != Some(*client)
                {
                    // Not remembered: it is another table when it is ready, perhaps.
                    return Err(MemoryError::Unfinished { table: name.to_owned(), client: *client }.into());
                }
                if let Some(table) = self.remember(&catalog, name)? {
                    break table;
                }
            },
        };
        if let Some(client) = table.entry().creator.filter(|client| self.creator() != Some(*client)) {
            return Err(MemoryError::Unfinished { table: name.to_owned(), client }.into());
        }
        let spec = &table.entry().spec;
        if spec.fingerprint != wanted.fingerprint {
            let layout = &spec.layout;
            return Err(MemoryError::Fingerprint {
                table: name.to_owned(),
                found: spec.fingerprint.0,
                wanted: wanted.fingerprint.0,
                found_sizes: (layout.key_bytes.into(), layout.value_max as usize),
                wanted_sizes: (wanted.key_bytes, wanted.value_bytes),
            }
            .into());
        }
        self.check_protocol(&table)?;
        if table.entry().spec.discipline == Discipline::IN_PLACE_LOCAL {
            self.claim(&table)?;
        }
        Ok(table)
    }

    /// Makes sure that a session of this handle can run transactions on a table, which another
    /// handle may have opened.
    pub(crate) fn accept(&self, table: &remora_index::Table) -> Result<(), OpenError> {
        self.check_protocol(table)?;
        let is_local = table.entry().spec.discipline == Discipline::IN_PLACE_LOCAL;
        // Workers do not wait for the configuration if this process has the table already.
        if is_local && !lock(&self.inner.claimed).contains(&table.id().0) {
            self.claim(table)?;
        }
        Ok(())
    }

    /// Fails if transactions of this handle's protocol cannot run on a table.
    fn check_protocol(&self, table: &remora_index::Table) -> Result<(), OpenError> {
        let spec = &table.entry().spec;
        let protocol = self.protocol;
        if !protocol.accepts(spec.discipline) {
            return Err(MemoryError::Discipline {
                table: table.name().to_owned(),
                found: spec.discipline.to_string(),
                protocol: protocol.name(),
                wanted: protocol.discipline().to_string(),
            }
            .into());
        }
        if spec.layout.scheme != ReadScheme::Checksum && !self.capabilities().atomic_line {
            return Err(MemoryError::NeedsAtomicLines.into());
        }
        Ok(())
    }

    /// Loads rows into an empty table; returns how many. Much faster than transactions, and none:
    /// nobody else may use the table meanwhile. If it fails, or this client dies, the next load
    /// finds the table as if it were empty.
    pub fn load<K: Key, V: Record>(
        &self,
        table: &Table<K, V>,
        mut rows: impl Iterator<Item = (K, V)>,
    ) -> Result<u64, OpenError> {
        self.load_rows(table.handle(), &mut |take| {
            rows.try_for_each(|(key, value)| take(&Table::<K, V>::key(&key), value.as_bytes()))
        })
    }

    fn load_rows(
        &self,
        table: Handle<'_>,
        rows: &mut dyn FnMut(TakeRow<'_>) -> Result<(), OpenError>,
    ) -> Result<u64, OpenError> {
        let table = self.own_now(table)?;
        let _loading = self.begin_loading(&table)?;
        self.name_as_loader(&table)?;
        self.administer(async |lane: &Lane| {
            let goes_on = || self.unless_interrupted();
            remora_index::bulk_load(lane, &table, self.loader(&goes_on), rows).await
        })
    }

    /// Loads rows in parts, which `part` makes. The parts are made and laid out on as many threads
    /// as the machine has cores. `loaded` is called now and then with the number of rows loaded
    /// since its last call.
    pub fn load_parts<K: Key, V: Record + Send + Sync>(
        &self,
        table: &Table<K, V>,
        parts: u64,
        part: impl Fn(u64) -> Vec<(K, V)> + Sync,
        mut loaded: impl FnMut(u64),
    ) -> Result<u64, OpenError> {
        let make = |number, take: TakeRow<'_>| {
            part(number).iter().try_for_each(|(key, value)| take(&Table::<K, V>::key(key), value.as_bytes()))
        };
        self.load_made(table.handle(), parts, &make, &mut loaded)
    }

    /// A table where it is in the present epoch.
    fn own_now(&self, table: Handle<'_>) -> Result<Arc<remora_index::Table>, OpenError> {
        self.administrator().map_err(MemoryError::from)?;
        self.own(table)
    }

    fn load_made(
        &self,
        table: Handle<'_>,
        parts: u64,
        make: MakePart<'_>,
        loaded: &mut dyn FnMut(u64),
    ) -> Result<u64, OpenError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let parts = Parts { count: parts, make, threads };
        let table = self.own_now(table)?;
        let _loading = self.begin_loading(&table)?;
        self.name_as_loader(&table)?;
        self.administer(async |lane: &Lane| {
            let goes_on = || self.unless_interrupted();
            remora_index::bulk_load_parts(lane, &table, self.loader(&goes_on), parts, loaded).await
        })
    }

    /// Reads a whole table while nothing runs: gives every record to `visit`, and says whether all
    /// is as it should be.
    pub fn inspect<K: Key, V: Record>(
        &self,
        table: &Table<K, V>,
        mut visit: impl FnMut(&V),
    ) -> Result<Inspection, crate::Error> {
        self.inspect_keyed(table, |_, row| visit(row))
    }

    /// Inspects a table as [`inspect`](Cluster::inspect) does. `visit` also gets the bytes of each
    /// record's key, zero-padded to whole words.
    pub(crate) fn inspect_keyed<K: Key, V: Record>(
        &self,
        table: &Table<K, V>,
        mut visit: impl FnMut(&[u8], &V),
    ) -> Result<Inspection, crate::Error> {
        self.inspect_bytes(table.handle(), &mut |key, value| {
            if let Ok((row, _)) = V::ref_from_prefix(value) {
                visit(key, row);
            }
        })
    }

    fn inspect_bytes(
        &self,
        table: Handle<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Inspection, crate::Error> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.administer(async |lane: &Lane| {
            let own = self.own(table)?;
            let mut each = |record: &StableRecord<'_>| {
                key.clear();
                key.extend(record.key());
                value.clear();
                record.copy_value(&mut value);
                visit(key.as_bytes(), value.as_bytes());
            };
            Ok(inspect(lane, &own, &mut each).await?)
        })
    }

    /// Does what is no transaction, like [`inspect`](Cluster::inspect), and does it again from its
    /// beginning if it fails because an epoch has ended meanwhile.
    pub fn in_one_epoch<T, E>(&self, what: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        in_one_epoch(self.configuration(), what)
    }

    /// CPU time that the memory nodes have used, in nanoseconds: of those in this process to apply
    /// redo logs, of others all.
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

    /// Which pages back the memory nodes; `None` for seeded ones.
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

    /// The version cache that all workers of this cluster share that validate locally
    /// (`ford-local`). The first call makes it, of about as many bytes as asked for, at most 1 GiB;
    /// the first worker makes one of [`VersionCache::BYTES`]. A table has one version cache:
    /// clients of another [`Cluster::connect`], also of this process, are refused a table while
    /// workers of this one are there that may write it.
    pub fn version_cache(&self, bytes: usize) -> &Arc<VersionCache> {
        self.inner.vcache.get_or_init(|| Arc::new(VersionCache::new(bytes.min(VERSION_CACHE_BYTES_MAX))))
    }

    /// That, for workers that validate by it.
    pub(crate) fn own_version_cache(&self) -> Option<Arc<VersionCache>> {
        let is_local = self.protocol.validation() == Validation::Local;
        is_local.then(|| self.version_cache(VersionCache::BYTES).clone())
    }

    /// Has a table validated by this process's version cache alone, as long as workers of it are
    /// there.
    fn claim(&self, table: &remora_index::Table) -> Result<(), MemoryError> {
        let Some(configuration) = &self.configuration else { return Ok(()) };
        let claim = || {
            let claimed = configuration.change(|membership| membership.claim(self.inner.number, &[table.id().0]));
            claimed.map_err(|error| MemoryError::Configuration(error.to_string()))?.map_err(other_cache)
        };
        claim()?;
        let mut claimed = lock(&self.inner.claimed);
        if !claimed.contains(&table.id().0) {
            claimed.push(table.id().0);
            drop(claimed);
            // A worker that came in between did not claim it.
            claim()?;
        }
        Ok(())
    }

    /// Who of its clients is alive, and who recovers the others. `None` where nothing says so:
    /// clients of other processes that share no configuration, whose locks nobody frees when they
    /// die.
    #[must_use]
    pub fn configuration(&self) -> Option<&Arc<dyn Configuration>> {
        self.configuration.as_ref()
    }

    /// A handle to this cluster whose workers trust another configuration. All clients of a cluster
    /// must trust the same configuration.
    #[must_use]
    pub fn with_configuration(&self, configuration: Arc<dyn Configuration>) -> Cluster {
        Cluster { configuration: Some(configuration), ..self.clone() }
    }

    /// How long a worker that runs may give no sign of life until others take it for dead.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    pub(crate) fn lease_ns(&self) -> Option<Nanos> {
        self.lease.map(|lease| u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX))
    }

    /// A handle to this cluster whose workers have leases of this length; `None` turns leases off.
    /// A worker with a lease also recovers clients whose leases have expired.
    ///
    /// A worker whose thread only computes, or blocks, for longer than its lease is taken for dead.
    /// Its transactions then fail with [`Error::Fenced`](crate::Error::Fenced). A worker that runs
    /// nothing is not taken for dead. Over a network, a worker without a lease may read at a memory
    /// node that the cluster has given up, until it hears of that.
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

    pub(crate) fn tell(&self, rollback: &Rollback<'_>) {
        if let Some(told) = &self.told {
            told(rollback);
        }
    }

    /// The fabric, for tests and tools.
    #[must_use]
    pub fn fabric(&self) -> &dyn Fabric {
        &*self.inner.fabric
    }

    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.inner.metadata).epoch
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

/// Lets the next one look for an epoch, also if this one is dropped.
struct Entering<'c>(&'c AtomicBool);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Who finds an epoch changing, or a memory node dead that others look after, waits no longer for
/// the next epoch.
pub(crate) const EPOCH_PATIENCE: Duration = Duration::from_secs(10);

/// Runs `what`, which fails if an epoch ends meanwhile, and runs it again in the next epoch. If the
/// cluster has a controller, the next epoch begins within milliseconds.
pub(crate) fn in_one_epoch<T, E>(
    configuration: Option<&Arc<dyn Configuration>>,
    mut what: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    const PAUSE: Duration = Duration::from_millis(5);
    let epoch = || configuration.and_then(|one| one.look(|now| (now.epoch(), now.is_changing())).ok());
    let began = Instant::now();
    loop {
        let before = epoch();
        let done = what();
        let now = epoch();
        let has_changed = now != before || now.is_some_and(|(_, is_changing)| is_changing);
        if done.is_ok() || !has_changed || began.elapsed() > EPOCH_PATIENCE {
            return done;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Announces a client to the configuration.
pub(crate) fn join(
    configuration: &Arc<dyn Configuration>,
    incarnation: u32,
    epoch: u64,
    lease: Nanos,
) -> Result<(), MemoryError> {
    join_by(configuration, incarnation, epoch, lease, || None)
}

/// Announces a client to the configuration, with the version cache by which it validates and the
/// tables that it may write.
fn join_by(
    configuration: &Arc<dyn Configuration>,
    incarnation: u32,
    epoch: u64,
    lease: Nanos,
    vcache: impl Fn() -> Option<(u32, Vec<u16>)>,
) -> Result<(), MemoryError> {
    let process = configuration.process();
    let joined = configuration.change(|membership| {
        let vcache = vcache();
        if let Some((vcache, tables)) = &vcache {
            membership.claim(*vcache, tables).map_err(other_cache)?;
        }
        let joined = membership.join(incarnation, epoch, lease, process);
        joined.map_err(|EpochChanging| MemoryError::EpochChanging)?;
        if let Some((vcache, _)) = vcache {
            membership.validates_by(incarnation, vcache);
        }
        Ok(())
    });
    joined.map_err(|error| MemoryError::Configuration(error.to_string()))?
}

fn other_cache(OtherCache(client): OtherCache) -> MemoryError {
    MemoryError::OtherVersionCache(client)
}

fn check(options: &ClusterOptions) -> Result<(), MemoryError> {
    let (nodes, replicas) = (usize::from(options.memory_nodes), usize::from(options.replicas));
    if nodes == 0 || replicas == 0 {
        return Err(MemoryError::Empty("the number of memory nodes and of replicas"));
    }
    let max = remora_fabric::limits::NODES_MAX;
    if nodes > max {
        return Err(MemoryError::Limit { what: "memory nodes", value: nodes as u64, max: max as u64 });
    }
    if usize::from(options.spares) >= nodes {
        return Err(MemoryError::Limit {
            what: "spare memory nodes",
            value: options.spares.into(),
            max: nodes as u64 - 1,
        });
    }
    if replicas > nodes || replicas > REPLICAS_MAX {
        return Err(MemoryError::TooManyReplicas { replicas, nodes });
    }
    if options.node_bytes as u64 > NODE_BYTES_MAX {
        let value = options.node_bytes as u64;
        return Err(MemoryError::Limit { what: "bytes of a memory node", value, max: NODE_BYTES_MAX });
    }
    Ok(())
}

/// Offsets in a region have 48 bits.
const NODE_BYTES_MAX: u64 = 1 << 48;

fn regions(options: &ClusterOptions) -> Vec<Vec<usize>> {
    vec![vec![options.node_bytes.next_multiple_of(64)]; options.memory_nodes.into()]
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
