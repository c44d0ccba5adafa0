//! Clusters whose memory nodes are processes of their own: started by `remora memnode`, found by address or by file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_cluster::{Configuration, ConfigurationError, LockedFile, Membership, Place};
use remora_fabric::shm::file::{self, ShmFiles};
use remora_fabric::tcp::tls::ClientTls;
use remora_fabric::tcp::{Keys, NodeStatus, Tcp, TcpOptions};
use remora_fabric::verbs::Device;
use remora_fabric::{ClientId, Fabric, FabricError, Fault, Lane, NodeId, NodeSet, Refusal, block_on};
use remora_memory::identity::{self, Identity};
use remora_memory::limits::REPLICAS_MAX;
use remora_memory::{MemoryError, metadata};
use remora_txn::Protocol;

use crate::cluster::{Cluster, ClusterOptions, EPOCH_PATIENCE, come, in_one_epoch, join};
use crate::error::OpenError;

/// Where the memory nodes of a cluster are: all of them, in any order.
///
/// Written as `host:port,host:port,...` for nodes over TCP, or `shm:path,path,...` for nodes in files of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nodes {
    /// Over TCP: host and port of each.
    Tcp(Vec<String>),
    /// Mapped files of this host, or devices.
    Shm(Vec<PathBuf>),
}

impl Nodes {
    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Nodes::Tcp(addresses) => addresses.len(),
            Nodes::Shm(paths) => paths.len(),
        }
    }

    /// The name of the fabric, for reports.
    #[must_use]
    pub fn fabric(&self) -> &'static str {
        match self {
            Nodes::Tcp(_) => "tcp",
            Nodes::Shm(_) => "shm",
        }
    }

    /// The address or path of a node, by its place here.
    #[must_use]
    pub fn name(&self, node: NodeId) -> Option<String> {
        let at = usize::from(node.0);
        match self {
            Nodes::Tcp(addresses) => addresses.get(at).cloned(),
            Nodes::Shm(paths) => paths.get(at).map(|path| path.display().to_string()),
        }
    }

    /// The same nodes, in the order of these numbers.
    fn sorted(&self, numbers: &[NodeId]) -> Nodes {
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

/// A list of memory nodes cannot be one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no list of memory nodes: write host:port,host:port,... or shm:path,path,...")]
pub struct NotNodes(String);

impl FromStr for Nodes {
    type Err = NotNodes;

    fn from_str(text: &str) -> Result<Nodes, NotNodes> {
        let wrong = || NotNodes(text.to_owned());
        let nodes = match text.strip_prefix("shm:") {
            // Every path may have the prefix again.
            Some(paths) => {
                let path = |path: &str| PathBuf::from(path.strip_prefix("shm:").unwrap_or(path));
                Nodes::Shm(paths.split(',').map(path).collect())
            }
            None => Nodes::Tcp(text.split(',').map(|address| address.trim().to_owned()).collect()),
        };
        let whole = match &nodes {
            Nodes::Shm(paths) => paths.iter().all(|path| !path.as_os_str().is_empty()),
            Nodes::Tcp(addresses) => addresses.iter().all(|address| {
                address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            }),
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

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// How transactions are run.
    pub protocol: Protocol,
    /// Copies of each record of tables that are created; as many as there are nodes, at most 3, if `None`.
    pub replicas: Option<u8>,
    /// So many nodes, the last ones in the order of their numbers, get nothing of tables that are created: see
    /// [`ClusterOptions::spares`].
    pub spares: u16,
    /// The keys that nodes over TCP may ask for.
    pub keys: Option<Keys>,
    /// Whose certificates to trust: nodes over TCP must have TLS then.
    pub tls: Option<ClientTls>,
    /// The RDMA device to reach nodes over TCP with: they must have one too.
    pub rdma: Option<Device>,
    /// What says who of the clients is alive, the same for all client processes of the cluster: a file, if they are on one
    /// host, or etcd. If `None`, nodes in files have a file beside that of node 0; with nodes over TCP nobody recovers the
    /// clients of other processes, nor any of this one.
    pub configuration: Option<Place>,
    /// Time without an answer after which a node over TCP is taken for dead.
    pub patience: Option<Duration>,
    /// To look after the memory nodes ([`Cluster::controller`]): comes also while some of them are away that the cluster has
    /// not given up, or while an epoch changes that nobody conducts. Until that has ended it has no workers, and creates no
    /// tables.
    pub controls: bool,
}

/// Why a cluster could not be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A memory node cannot be had.
    #[error("memory node {name} {fault}")]
    Node {
        /// Its address or path.
        name: String,
        /// Why.
        fault: Fault,
    },
    /// A file of a memory node cannot be used.
    #[error(transparent)]
    File(#[from] file::OpenError),
    /// What the nodes hold cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// The fabric of memory nodes that are other processes.
#[derive(Clone)]
pub(crate) enum Remote {
    Tcp(Tcp),
    Shm(ShmFiles),
}

impl Remote {
    fn new(nodes: &Nodes, options: &ConnectOptions) -> Result<Remote, ConnectError> {
        Ok(match nodes {
            Nodes::Tcp(addresses) => {
                let defaults = TcpOptions::default();
                let patience = options.patience.unwrap_or(defaults.patience);
                let (keys, tls, rdma) = (options.keys.clone(), options.tls.clone(), options.rdma.clone());
                let tcp = TcpOptions { keys, tls, rdma, patience, ..defaults };
                Remote::Tcp(Tcp::new(addresses.clone(), tcp))
            }
            Nodes::Shm(paths) => Remote::Shm(ShmFiles::new(paths, Vec::new())?),
        })
    }

    fn fabric(&self) -> Arc<dyn Fabric> {
        match self {
            Remote::Tcp(tcp) => Arc::new(tcp.clone()),
            Remote::Shm(files) => Arc::new(files.clone()),
        }
    }

    /// CPU time that the process of a node has used so far, in nanoseconds; 0 if nobody tells.
    pub(crate) fn cpu_ns(&self, node: NodeId) -> u64 {
        match self {
            Remote::Tcp(tcp) => tcp.status(node).map_or(0, |status| status.cpu_ns),
            Remote::Shm(files) => files.server_cpu_ns(node).unwrap_or(0),
        }
    }

    /// How the server of a node is, if that can be asked.
    pub(crate) fn status(&self, node: NodeId) -> Option<NodeStatus> {
        match self {
            Remote::Tcp(tcp) => tcp.status(node).ok(),
            Remote::Shm(_) => None,
        }
    }
}

impl Cluster {
    /// Connects to memory nodes that are running. The first client to come founds the cluster; whoever comes later may
    /// name the nodes in any order, but all of them.
    pub fn connect(nodes: &Nodes, options: &ConnectOptions) -> Result<Cluster, ConnectError> {
        let count = nodes.count() as u16;
        let replicas = options.replicas.unwrap_or((count.saturating_sub(options.spares) as u8).clamp(1, 3));
        if usize::from(replicas) > usize::from(count) || usize::from(replicas) > REPLICAS_MAX || replicas == 0 {
            let too_many = MemoryError::TooManyReplicas { replicas: replicas.into(), nodes: count.into() };
            return Err(OpenError::from(too_many).into());
        }
        let (began, mut known) = (Instant::now(), None);
        let Met { nodes, remote, configuration, missing } = loop {
            let met = meet(nodes, options, &mut known)?;
            // A node that has just died will be lost, if there is somebody who sees to that.
            let is_awaited = match &met.configuration {
                Some(configuration) if !options.controls && !met.missing.is_empty() => {
                    configuration.look(Membership::has_controller)?
                }
                _ => false,
            };
            if !is_awaited || began.elapsed() > EPOCH_PATIENCE {
                break met;
            }
            std::thread::sleep(LOSS_PAUSE);
        };
        let of_epoch = |membership: &Membership| (membership.epoch(), membership.lost());
        let fabric = remote.fabric();
        let (admin, metadata, lost, absent) = in_one_epoch(configuration.as_ref(), || {
            let (epoch, lost) = match &configuration {
                Some(configuration) => configuration.look(of_epoch)?,
                None => (1, NodeSet::default()),
            };
            let absent =
                missing.keys().copied().filter(|node| !lost.has(*node)).fold(NodeSet::default(), NodeSet::with);
            if let Some(error) = absent.iter().find_map(|node| missing.get(&node)).filter(|_| !options.controls) {
                return Err(blame(&nodes, error.clone()));
            }
            let live = NodeSet::first(count).without(lost).without(absent);
            NodeSet::first(count).without(live).iter().for_each(|node| fabric.abandon(node));
            live.iter().for_each(|node| fabric.readmit(node));
            let connected = block_on(&*fabric, ClientId(0), async |lane: &Lane| {
                let admin = come(lane, live).await?;
                let mut metadata = metadata::read(lane, live.leader()).await?;
                if options.controls {
                    // Of an epoch that is about to begin, perhaps: it is read again then.
                    metadata.epoch = epoch;
                } else if let Some(configuration) = &configuration {
                    join(configuration, admin, epoch, u64::MAX / 2)?;
                    if metadata.epoch != epoch {
                        return Err(MemoryError::EpochChanging);
                    }
                }
                Ok((admin, metadata, lost, absent))
            });
            connected.map_err(MemoryError::from).and_then(|connected| connected).map_err(|error| blame(&nodes, error))
        })?;
        let options = ClusterOptions {
            memory_nodes: count,
            replicas,
            spares: options.spares,
            protocol: options.protocol,
            ..ClusterOptions::default()
        };
        Ok(Cluster::remote(fabric, (nodes, remote), options, admin, configuration, (metadata, lost, absent)))
    }
}

/// Between two looks whether a node that does not answer has been lost.
const LOSS_PAUSE: Duration = Duration::from_millis(20);

/// Memory nodes as they were found.
struct Met {
    /// In the order of their numbers.
    nodes: Nodes,
    remote: Remote,
    configuration: Option<Arc<dyn Configuration>>,
    /// Those that the cluster counts on and that cannot be had, and why.
    missing: BTreeMap<NodeId, MemoryError>,
}

/// A cluster's configuration.
type Known = (u64, Option<Arc<dyn Configuration>>);

/// Looks which node is which, and which are missing. The configuration is opened unless it is known.
fn meet(named: &Nodes, options: &ConnectOptions, known: &mut Option<Known>) -> Result<Met, ConnectError> {
    let mut remote = Remote::new(named, options)?;
    let mut found = find(&*remote.fabric(), named.count() as u16).map_err(|error| blame(named, error))?;
    let mut nodes = named.clone();
    if !found.numbers.is_sorted() {
        nodes = named.sorted(&found.numbers);
        remote = Remote::new(&nodes, options)?;
    }
    let configuration = match known {
        Some((cluster, configuration)) if *cluster == found.cluster => configuration.clone(),
        _ => {
            let opened = configuration(&nodes, options.configuration.as_ref(), found.cluster)?;
            known.insert((found.cluster, opened)).1.clone()
        }
    };
    if let Some(configuration) = &configuration {
        if configuration.look(Membership::is_deserted)? {
            let there = (0..named.count() as u16).map(NodeId).filter(|node| !found.missing.contains_key(node));
            let there = there.fold(NodeSet::default(), NodeSet::with);
            let silent = found.missing.values().find(|error| !matches!(error, MemoryError::LostMemory(_)));
            catch_up(&*remote.fabric(), configuration, there, silent).map_err(|error| blame(&nodes, error))?;
        }
        let lost = configuration.look(Membership::lost)?;
        found.missing.retain(|number, _| !lost.has(*number));
    }
    Ok(Met { nodes, remote, configuration, missing: found.missing })
}

/// Has a configuration that is new, because what the cluster had before was lost, go on in the memory nodes' epoch: without
/// those that have not come to it. Fails if one is `silent`: it may know of an epoch that these have missed.
fn catch_up(
    fabric: &dyn Fabric,
    configuration: &Arc<dyn Configuration>,
    nodes: NodeSet,
    silent: Option<&MemoryError>,
) -> Result<(), MemoryError> {
    let failed = |error: ConfigurationError| MemoryError::Configuration(error.to_string());
    let known = configuration.look(Membership::epoch).map_err(failed)?;
    NodeSet::first(fabric.nodes()).without(nodes).iter().for_each(|node| fabric.abandon(node));
    let (newest, behind) = block_on(fabric, ClientId(0), async |lane: &Lane| {
        let newest = metadata::newest(lane, nodes).await?;
        let mut behind = NodeSet::default();
        for node in nodes.iter() {
            if metadata::read(lane, node).await?.epoch < newest.epoch {
                behind = behind.with(node);
            }
        }
        Ok::<_, MemoryError>((newest, behind))
    })??;
    if newest.epoch > known {
        if let Some(error) = silent {
            return Err(MemoryError::Configuration(format!(
                "it is new, and one that may know more is silent: {error}"
            )));
        }
        metadata::without(&newest, behind, newest.epoch)?;
        tracing::warn!(epoch = newest.epoch, lost = ?behind, "the configuration is new, and goes on from what the memory nodes say");
        configuration.change(|membership| membership.catch_up(newest.epoch, behind)).map_err(failed)?;
    }
    Ok(())
}

/// An error that names its memory node as the caller did.
fn blame(nodes: &Nodes, error: MemoryError) -> ConnectError {
    match error {
        MemoryError::Fabric(FabricError { node, fault }) => {
            ConnectError::Node { name: nodes.name(node).unwrap_or_else(|| node.to_string()), fault }
        }
        error => OpenError::from(error).into(),
    }
}

/// Memory nodes in the order in which they were named.
struct Found {
    cluster: u64,
    /// Of each. Those that are missing have the numbers that nobody has, in any order.
    numbers: Vec<NodeId>,
    /// Those that do not answer, or have lost their memory, and why they cannot be had: nothing is wrong if the cluster goes
    /// on without them.
    missing: BTreeMap<NodeId, MemoryError>,
}

/// Finds out which memory node is which; founds their cluster if nobody has.
fn find(fabric: &dyn Fabric, count: u16) -> Result<Found, MemoryError> {
    let mut silent = BTreeMap::new();
    let mut known = loop {
        let of_whom = silent.keys().fold(NodeSet::default(), |nodes, node| nodes.with(*node));
        let asked = block_on(fabric, ClientId(0), async |lane: &Lane| identity::known(lane, count, of_whom).await);
        match asked.map_err(MemoryError::from).and_then(|known| known) {
            Ok(known) => break known,
            Err(MemoryError::Fabric(error)) if is_silence(error.fault) && !of_whom.has(error.node) => {
                fabric.fail(error.node);
                silent.insert(error.node, MemoryError::Fabric(error));
            }
            Err(error) => return Err(error),
        }
    };
    if silent.is_empty() && known.contains(&None) {
        match block_on(fabric, ClientId(0), async |lane: &Lane| identity::found(lane, count).await)? {
            Ok(all) => known = all.into_iter().map(Some).collect(),
            Err(MemoryError::LostMemory(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let taken: Vec<Identity> = known.iter().flatten().copied().collect();
    let Some(cluster) = taken.first().map(|identity| identity.cluster) else {
        let why = silent.into_values().next();
        return Err(why.unwrap_or(MemoryError::Empty("the number of memory nodes")));
    };
    let mut free = (0..count).map(NodeId).filter(|number| !taken.iter().any(|identity| identity.number == *number));
    let (mut numbers, mut missing) = (Vec::new(), BTreeMap::new());
    for (at, identity) in (0..).map(NodeId).zip(known) {
        let number = identity.map(|identity| identity.number).or_else(|| free.next()).unwrap_or(at);
        if identity.is_none() {
            let why = match silent.remove(&at) {
                Some(MemoryError::Fabric(error)) => FabricError { node: number, ..error }.into(),
                _ => MemoryError::LostMemory(number),
            };
            missing.insert(number, why);
        }
        numbers.push(number);
    }
    Ok(Found { cluster, numbers, missing })
}

/// Whether a node is not there at all, rather than refusing to be talked to.
fn is_silence(fault: Fault) -> bool {
    matches!(fault, Fault::Refused(Refusal::Unreachable(_)) | Fault::Unreachable | Fault::Behind)
}

/// The configuration of a cluster's clients, by option or where it is by default.
fn configuration(
    nodes: &Nodes,
    given: Option<&Place>,
    cluster: u64,
) -> Result<Option<Arc<dyn Configuration>>, ConfigurationError> {
    let file: LockedFile = match (given, nodes) {
        (Some(place), _) => return Ok(Some(place.open(cluster)?)),
        (None, Nodes::Shm(paths)) => {
            let Some(first) = paths.first() else { return Ok(None) };
            let mut path = first.clone().into_os_string();
            path.push(".configuration");
            // Of an earlier cluster in a file of that name, perhaps.
            match LockedFile::open_or_replace(path, cluster) {
                Ok(file) => file,
                Err(ConfigurationError::File { path, cause }) => {
                    tracing::warn!(path = %path.display(), %cause, "no configuration: nobody recovers clients that die");
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        (None, Nodes::Tcp(_)) => {
            tracing::info!("no configuration is named: nobody recovers clients that die");
            return Ok(None);
        }
    };
    Ok(Some(Arc::new(file)))
}
