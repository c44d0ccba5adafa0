//! Connecting to a cluster whose memory nodes are processes of their own. `remora memnode` starts
//! them, and a program finds them by address or by file.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use remora_fabric::rdma::Device;
use remora_fabric::tcp::tls::ClientTls;
use remora_fabric::tcp::{Keys, Names, TcpOptions};
use remora_fabric::{ClientId, Fabric, FabricError, Fault, Lane, NodeId, NodeSet, block_on};
use remora_membership::{Configuration, ConfigurationError, LockedFile, Membership, Place};
use remora_node::identity::{self, Identity};
use remora_node::limits::REPLICAS_MAX;
use remora_node::{MemoryError, Metadata, connected, metadata};
use remora_txn::Protocol;

use super::clients::{draw, join};
use super::epoch::{EPOCH_PATIENCE, in_one_epoch};
use super::handle::Cluster;
use super::interrupt;
use super::nodes::{Nodes, Remote, are_named, is_silence};
use super::options::ClusterOptions;
use crate::error::{ConnectError, OpenError, numbers};
use crate::observe::WAITS;
use remora_fabric::setters;

/// Options of a connection to memory nodes that are processes of their own. [`Cluster::connect`]
/// makes them, and [`ConnectOptions::open`] connects.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The memory nodes. The first client founds the cluster. Later clients may name the nodes in
    /// any order, but must name all founding nodes. The configuration lists the nodes that were
    /// added since ([`Cluster::add_node`]).
    pub nodes: Nodes,
    /// The protocol by which transactions run.
    pub protocol: Protocol,
    /// Number of copies of each record, for tables that are created. If `None`, one at each node
    /// that is not a spare, but at most 3.
    pub replicas: Option<u8>,
    /// Number of spares: the last `spares` of the nodes that founded the cluster get no shards of
    /// new tables ([`ClusterOptions::spares`]).
    pub spares: u16,
    /// The keys that memory nodes over TCP may ask for.
    pub keys: Option<Keys>,
    /// The certificates to trust. If this is set, memory nodes over TCP must have TLS.
    pub tls: Option<ClientTls>,
    /// The RDMA device by which to reach memory nodes over TCP. If this is set, the nodes must have
    /// RDMA devices, too.
    pub rdma: Option<Device>,
    /// The place of the configuration, which says which clients are alive. All client processes of
    /// the cluster must name the same place: a file, if they are on one host, or etcd. If this is
    /// `None` and the memory nodes are files, the configuration is a file beside the one of node 0.
    /// If this is `None` and the memory nodes are reached over TCP, no client recovers dead
    /// clients.
    pub configuration: Option<Place>,
    /// Time without an answer after which a memory node over TCP is taken for dead.
    pub patience: Option<Duration>,
    /// Whether the connection is for a controller ([`Cluster::controller`]). Then it succeeds even
    /// while some nodes are unreachable that the cluster has not given up, and while an epoch
    /// changes that no controller conducts. Until that has ended, this handle makes no workers, and
    /// creates no tables.
    pub controls: bool,
    /// The way in which the names of memory nodes over TCP are looked up. The default is the
    /// system's.
    pub names: Names,
    /// A flag that the program can set to interrupt calls. Once it is set, [`ConnectOptions::open`]
    /// fails with [`MemoryError::Interrupted`], and so do creations and loads by the cluster's
    /// handle ([`Cluster::with_interrupt`]).
    pub interrupt: Option<Arc<AtomicBool>>,
}

setters!(ConnectOptions {
    nodes: impl Into<Nodes>,
    protocol: Protocol,
    replicas: u8,
    spares: u16,
    keys: impl Into<Option<Keys>>,
    tls: impl Into<Option<ClientTls>>,
    rdma: impl Into<Option<Device>>,
    configuration: impl Into<Option<Place>>,
    patience: impl Into<Option<Duration>>,
    controls: bool,
    names: Names,
    interrupt: impl Into<Option<Arc<AtomicBool>>>,
});

impl ConnectOptions {
    /// Returns the options for reaching memory nodes over TCP.
    fn tcp(&self) -> TcpOptions {
        let defaults = TcpOptions::default();
        let patience = self.patience.unwrap_or(defaults.patience);
        let (keys, tls, rdma) = (self.keys.clone(), self.tls.clone(), self.rdma.clone());
        TcpOptions { keys, tls, rdma, patience, names: self.names.clone(), ..defaults }
    }

    /// Fails if the program has set the flag that interrupts calls.
    fn unless_interrupted(&self) -> Result<(), OpenError> {
        Ok(interrupt::unless_set(self.interrupt.as_ref())?)
    }

    /// Returns the name of the place of the configuration.
    fn place(&self) -> String {
        let named = self.configuration.as_ref().map(Place::to_string);
        named.unwrap_or_else(|| "the configuration beside the file of node 0".to_owned())
    }
}

impl ConnectOptions {
    /// Connects to the memory nodes, which must be running or passive, and founds their cluster if
    /// no client has yet. This blocks the calling thread. If the cluster has a controller, the call
    /// waits up to 10 seconds for nodes that do not answer, until the cluster goes on without them.
    /// The call fails if a node that the cluster counts on cannot be used, or if the configuration
    /// cannot be used. It also fails if the nodes are passive and the protocol needs their CPUs, or
    /// if the nodes do not form one cluster ([`ConnectError`] has the reasons).
    pub fn open(&self) -> Result<Cluster, ConnectError> {
        let options = self;
        if self.nodes.count() == 0 {
            return Err(OpenError::from(MemoryError::empty("the number of memory nodes")).into());
        }
        let (began, mut known, mut is_told) = (Instant::now(), None, false);
        let Met { nodes, cluster, founders, remote, configuration, missing } = loop {
            let met = meet(&self.nodes, options, &mut known)?;
            // If there is a controller, it will declare a node lost that has just died.
            let is_awaited = match &met.configuration {
                Some(configuration) if !options.controls && !met.missing.is_empty() => {
                    configuration.look(Membership::has_controller)?
                }
                _ => false,
            };
            if !is_awaited || began.elapsed() > EPOCH_PATIENCE {
                break met;
            }
            options.unless_interrupted()?;
            if !is_told {
                let names: Vec<_> = met.missing.keys().filter_map(|node| met.nodes.name(*node)).collect();
                tracing::warn!(target: WAITS, nodes = %names.join(","), "memory nodes do not answer: waiting until the cluster goes on without them");
                is_told = true;
            }
            std::thread::sleep(LOSS_PAUSE);
        };
        let count = nodes.count() as u16;
        let copies_max = options.protocol.discipline().copies_max() as u8;
        let usual = (count.saturating_sub(options.spares) as u8).clamp(1, 3).min(copies_max);
        let replicas = options.replicas.unwrap_or(usual);
        if replicas > copies_max && usize::from(replicas) <= REPLICAS_MAX {
            let (protocol, copies) = (options.protocol.name(), replicas.into());
            return Err(OpenError::from(MemoryError::OneCopy { protocol, copies }).into());
        }
        if usize::from(replicas) > usize::from(count) || usize::from(replicas) > REPLICAS_MAX || replicas == 0 {
            let too_many = MemoryError::too_many_replicas(replicas.into(), count.into());
            return Err(OpenError::from(too_many).into());
        }
        let of_epoch = |membership: &Membership| {
            let is_named = membership.added().range(count..).all(|(number, _)| membership.lost().has(NodeId(*number)));
            is_named.then(|| (membership.epoch(), membership.lost()))
        };
        let fabric = remote.fabric();
        let (admin, metadata, lost, absent) = in_one_epoch(configuration.as_ref(), options.interrupt.as_ref(), || {
            options.unless_interrupted()?;
            let (epoch, lost) = match &configuration {
                // A node that was added and taken in just now must first be found, together with
                // the other nodes.
                Some(configuration) => {
                    configuration.look(of_epoch)?.ok_or(OpenError::from(MemoryError::EpochChanging))?
                }
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
            // A controller then hears which absent nodes are back when it looks for the first time.
            absent.iter().for_each(|node| _ = fabric.answers(node));
            let connected = block_on(&*fabric, ClientId(0), async |lane: &Lane| {
                let mut admin = draw(lane, live).await?;
                let mut metadata = metadata::read(lane, live.leader()).await?;
                are_named(&metadata, count)?;
                let mut behind = NodeSet::default();
                if options.controls {
                    // The catalog may be that of an epoch which is about to begin. It is read again
                    // then.
                    metadata.epoch = epoch;
                    if let Some(configuration) = &configuration {
                        let leads = live.leader() == NodeSet::first(count).without(lost).leader();
                        let drawn = if leads { Ok(admin) } else { Err(admin) };
                        let reserved = configuration.change(|membership| membership.reserve(drawn));
                        admin = reserved.map_err(|error| MemoryError::Configuration(error.to_string()))?;
                    }
                } else if let Some(configuration) = &configuration {
                    admin = join(configuration, admin, epoch, u64::MAX / 2)?;
                    if metadata.epoch != epoch {
                        return Err(MemoryError::EpochChanging);
                    }
                } else {
                    // There is no configuration that says which nodes are lost, and a lost node
                    // that is alive does not know it.
                    (_, behind) = newest(lane, live).await?;
                }
                Ok((behind, (admin, metadata, lost, absent)))
            });
            let connected = connected.map_err(MemoryError::from).and_then(|connected| connected);
            let (behind, connected) = connected.map_err(|error| blame(&nodes, error))?;
            match behind.iter().next() {
                Some(node) => Err(ConnectError::Behind { name: nodes.name(node).unwrap_or_else(|| node.to_string()) }),
                None => Ok(connected),
            }
        })?;
        let of_cluster = ClusterOptions {
            nodes: founders,
            replicas: Some(replicas),
            spares: options.spares,
            protocol: options.protocol,
            ..ClusterOptions::default()
        };
        let of_epoch = (metadata, lost, absent);
        let mut connected =
            Cluster::remote(fabric, cluster, (nodes, remote), of_cluster, admin, configuration, of_epoch);
        connected.interrupt.clone_from(&options.interrupt);
        Ok(connected)
    }
}

impl Cluster {
    /// Begins to describe a connection to memory nodes that are processes of their own, for
    /// [`ConnectOptions::open`].
    ///
    /// ```no_run
    /// use remora::{Cluster, connect::Nodes};
    ///
    /// let nodes: Nodes = "127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002".parse()?;
    /// let cluster = Cluster::connect(nodes).replicas(3).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn connect(nodes: impl Into<Nodes>) -> ConnectOptions {
        ConnectOptions::default().nodes(nodes)
    }

    /// Adds an empty memory node over TCP to the cluster, and returns its number. `address` is
    /// `host:port`. A controller takes the node in, and moves shards there until it has as much as
    /// the others. Clients that run go on, and find the node in their configuration. If the cluster
    /// has the node already, and the node came back empty, it gets its share again.
    ///
    /// Fails
    ///
    /// - with [`ConnectError::CannotAdd`] if the cluster has no configuration, or can have no more
    ///   nodes,
    /// - with [`ConnectError::CannotAdd`] if the address is not `host:port`, or the node has
    ///   content,
    /// - with [`ConnectError::Node`] if the node does not answer.
    pub fn add_node(&self, address: &str) -> Result<NodeId, ConnectError> {
        let cannot = |why: &str| ConnectError::CannotAdd { name: address.to_owned(), why: why.to_owned() };
        let configuration = self.configuration().ok_or_else(|| cannot("the cluster has no configuration"))?;
        self.learn_names()?;
        let known = self.nodes().and_then(|nodes| nodes.place_of(address));
        let add = |membership: &mut Membership| {
            let number = known.or_else(|| membership.add(self.founders(), address))?;
            membership.fill(NodeSet::default().with(number));
            membership.filling().has(number).then_some(number)
        };
        if known.is_none() {
            let node = |fault| ConnectError::Node { name: address.to_owned(), fault };
            if !matches!(Nodes::from_str(address), Ok(Nodes::Tcp(addresses)) if addresses.len() == 1) {
                return Err(cannot("it is none of host:port"));
            }
            let tcp = self.beside(address).ok_or_else(|| cannot("memory nodes in files cannot be added"))?;
            // This check keeps the cluster from taking in one node by two names.
            let lost = configuration.look(Membership::lost)?;
            let names = lost.iter().filter_map(|node| self.nodes()?.name(node));
            if let Some(name) = names.into_iter().find(|name| tcp.is_at(NodeId(0), name)) {
                return Err(cannot(&format!("it is {name} by another name, which is to be taken in already")));
            }
            let asked = block_on(&tcp, ClientId(0), async |lane: &Lane| {
                let is_there = identity::of(lane, NodeId(0)).await?;
                metadata::read(lane, NodeId(0)).await.map(|metadata| is_there.is_some() || metadata.generation > 0)
            });
            match asked.map_err(MemoryError::from).and_then(|has_something| has_something) {
                Ok(false) => {}
                Ok(true) => {
                    return Err(cannot(
                        "it has something, and may be another cluster's, or this one's by another name",
                    ));
                }
                Err(MemoryError::Fabric(error)) => return Err(node(error.fault)),
                Err(error) => return Err(OpenError::from(error).into()),
            }
        }
        let added = configuration.change(add)?;
        let full = "the cluster has as many memory nodes as it can have, or it is just being drained";
        let added = added.ok_or_else(|| cannot(full))?;
        self.learn_names()?;
        Ok(added)
    }
}

/// Pause between two checks whether the cluster has given up a node that does not answer.
const LOSS_PAUSE: Duration = Duration::from_millis(20);

/// The memory nodes of a cluster as they were found.
struct Met {
    /// The nodes, in the order of their numbers.
    nodes: Nodes,
    /// The id of their cluster.
    cluster: u64,
    /// Number of memory nodes that founded the cluster. They have the lowest numbers.
    founders: u16,
    remote: Remote,
    configuration: Option<Arc<dyn Configuration>>,
    /// The nodes that the cluster counts on and that cannot be used, and why not.
    missing: BTreeMap<NodeId, MemoryError>,
}

/// A cluster's configuration.
type Known = (u64, Option<Arc<dyn Configuration>>);

/// Finds out which node is which, and which nodes are missing. Opens the configuration, unless it
/// is known.
fn meet(named: &Nodes, options: &ConnectOptions, known: &mut Option<Known>) -> Result<Met, ConnectError> {
    let mut remote = Remote::new(named, options.tcp())?;
    works_on(&*remote.fabric(), options.protocol)?;
    // The address of a node that was added and is lost may by now be the one of another cluster's
    // node, or of a node that has come by another name.
    let unasked = match known {
        Some((_, Some(configuration))) => configuration.look(|membership| {
            let lost = membership.added().iter().filter(|(number, _)| membership.lost().has(NodeId(**number)));
            lost.filter_map(|(_, name)| named.place_of(name)).collect()
        })?,
        _ => NodeSet::default(),
    };
    let found = find(&*remote.fabric(), named.count() as u16, unasked).map_err(|error| blame(named, error))?;
    let configuration = match known {
        Some((cluster, configuration)) if *cluster == found.cluster => configuration.clone(),
        _ => {
            let opened = configuration(named, &found, options.configuration.as_ref())?;
            known.insert((found.cluster, opened)).1.clone()
        }
    };
    let mut added = match &configuration {
        Some(configuration) => configuration.look(|membership| membership.added().clone())?,
        None => BTreeMap::new(),
    };
    let unnamed: Vec<&String> = added.values().filter(|name| named.place_of(name).is_none()).collect();
    if !unnamed.is_empty() {
        return meet(&named.with(&unnamed), options, known);
    }
    let (numbers, mut missing) = found.numbered(named, &mut added).map_err(|error| blame(named, error))?;
    let mut nodes = named.clone();
    if !numbers.is_sorted() {
        nodes = named.sorted(&numbers);
        remote = Remote::new(&nodes, options.tcp())?;
    }
    if let Some(configuration) = &configuration {
        if configuration.look(Membership::is_deserted)? {
            catch_up(&nodes, &*remote.fabric(), configuration, (&added, &missing), options)?;
        }
        let lost = configuration.look(Membership::lost)?;
        missing.retain(|number, _| !lost.has(*number));
    }
    Ok(Met { nodes, cluster: found.cluster, founders: found.founders, remote, configuration, missing })
}

/// Fails if the memory nodes of this fabric have no CPU, and the protocol needs one.
fn works_on(fabric: &dyn Fabric, protocol: Protocol) -> Result<(), OpenError> {
    if fabric.capabilities().node_cpu || !protocol.needs_node_cpu() {
        return Ok(());
    }
    let needs_none = Protocol::ALL.into_iter().filter(|other| other.is_serializable() && !other.needs_node_cpu());
    let instead = needs_none.map(Protocol::name).collect();
    Err(MemoryError::NeedsNodeCpu { protocol: protocol.name(), instead }.into())
}

/// Brings a new configuration to the memory nodes' epoch, after the cluster's former configuration
/// was lost. Nodes that have not come to that epoch are lost; `added` nodes belong to the cluster.
/// All clients that the memory nodes know end, because no lease shows whether they are alive. So
/// this fails if one of them is connected, because it uses another configuration. It also fails if
/// one of the `missing` nodes is silent, because that node may know of a later epoch.
fn catch_up(
    nodes: &Nodes,
    fabric: &dyn Fabric,
    configuration: &Arc<dyn Configuration>,
    (added, missing): (&BTreeMap<u16, String>, &BTreeMap<NodeId, MemoryError>),
    options: &ConnectOptions,
) -> Result<(), ConnectError> {
    let there: NodeSet = (0..nodes.count() as u16).map(NodeId).filter(|node| !missing.contains_key(node)).collect();
    let known = configuration.look(Membership::epoch)?;
    NodeSet::first(fabric.nodes()).without(there).iter().for_each(|node| fabric.abandon(node));
    let read = block_on(fabric, ClientId(0), async |lane: &Lane| {
        let (newest, behind) = newest(lane, there).await?;
        // In the first epoch, living clients may use no configuration.
        let is_new = newest.epoch > known;
        let clients = if is_new { connected(lane, there.without(behind).leader()).await? } else { Vec::new() };
        let clients: Vec<u32> = clients.iter().map(|client| client.incarnation).collect();
        Ok::<_, MemoryError>((newest, behind, clients))
    });
    let read = read.map_err(MemoryError::from).and_then(|read| read);
    let (newest, behind, clients) = read.map_err(|error| blame(nodes, error))?;
    if newest.epoch <= known {
        return Ok(());
    }
    if let Some(error) = missing.values().find(|error| !matches!(error, MemoryError::LostMemory(_))) {
        let error = MemoryError::Configuration(format!(
            "it is new, or an old one, and a memory node that may know more is silent: {error}"
        ));
        return Err(OpenError::from(error).into());
    }
    let can_go_on = are_named(&newest, fabric.nodes()).and_then(|()| metadata::without(&newest, behind, newest.epoch));
    can_go_on.map_err(|error| blame(nodes, error))?;
    let strangers = still_connected(fabric, &clients, options)?;
    if !strangers.is_empty() {
        return Err(ConnectError::OtherConfiguration { configuration: options.place(), clients: strangers });
    }
    tracing::warn!(epoch = newest.epoch, lost = %behind, "the configuration is new, and goes on from what the memory nodes say");
    configuration.change(|membership| {
        membership.inherit(clients.iter().copied());
        membership.catch_up(newest.epoch, behind, added);
    })?;
    Ok(())
}

/// Returns the clients among these that are connected to memory nodes, and stay connected. Memory
/// nodes may notice only after a while that a client has ended, so this waits a little.
fn still_connected(fabric: &dyn Fabric, clients: &[u32], options: &ConnectOptions) -> Result<Vec<u32>, ConnectError> {
    const ENDING: Duration = Duration::from_secs(2);
    let (began, mut is_told) = (Instant::now(), false);
    let mut left = clients.to_vec();
    loop {
        left.retain(|client| fabric.is_connected(ClientId(*client)) == Some(true));
        if left.is_empty() || began.elapsed() > ENDING {
            return Ok(left);
        }
        options.unless_interrupted()?;
        if !is_told {
            tracing::warn!(target: WAITS, clients = %numbers(&left), "waiting for clients to end that the configuration does not know");
            is_told = true;
        }
        std::thread::sleep(LOSS_PAUSE);
    }
}

/// Returns the newest catalog of these nodes, and the nodes that have not reached its epoch.
async fn newest(lane: &Lane, nodes: NodeSet) -> Result<(Metadata, NodeSet), MemoryError> {
    let newest = metadata::newest(lane, nodes).await?;
    let mut behind = NodeSet::default();
    for node in nodes.iter() {
        if metadata::read(lane, node).await?.epoch < newest.epoch {
            behind = behind.with(node);
        }
    }
    Ok((newest, behind))
}

/// Makes an error that names its memory node as the caller has named it.
fn blame(nodes: &Nodes, error: MemoryError) -> ConnectError {
    match error {
        MemoryError::Fabric(FabricError { node, fault }) => {
            ConnectError::Node { name: nodes.name(node).unwrap_or_else(|| node.to_string()), fault }
        }
        error => OpenError::from(error).into(),
    }
}

/// Memory nodes in the order in which they were named.
struct NamedNodes {
    cluster: u64,
    founders: u16,
    /// The number of each node, or the reason why it has none: it does not answer, or has lost its
    /// memory. This is no error if the cluster goes on without the node.
    identities: Vec<Result<NodeId, MemoryError>>,
}

impl NamedNodes {
    /// Returns the number of each node, and the nodes that are missing. Missing founders get the
    /// free numbers of founders, in any order. Adds to `added` the nodes that answer and are not
    /// founders.
    fn numbered(
        &self,
        named: &Nodes,
        added: &mut BTreeMap<u16, String>,
    ) -> Result<(Vec<NodeId>, BTreeMap<NodeId, MemoryError>), MemoryError> {
        let names = (0..).map(NodeId).map_while(|at| named.name(at));
        let places: Vec<_> = self.identities.iter().zip(names).collect();
        for (identity, name) in &places {
            if let Ok(number) = identity
                && number.0 >= self.founders
            {
                added.entry(number.0).or_insert_with(|| name.clone());
            }
        }
        let taken: Vec<NodeId> = self.identities.iter().flatten().copied().collect();
        let mut free = (0..self.founders).map(NodeId).filter(|number| !taken.contains(number));
        let (mut numbers, mut missing) = (Vec::new(), BTreeMap::new());
        for (identity, name) in places {
            let known = || added.iter().find(|(_, known)| **known == name).map(|(number, _)| NodeId(*number));
            let number = match identity {
                Ok(number) => Some(*number),
                Err(_) => known().or_else(|| free.next()),
            };
            let given = self.identities.len() - added.len().min(self.identities.len());
            let other = MemoryError::NodeCount { given: given as u16, nodes: self.founders };
            let number = number.ok_or(other)?;
            if let Err(error) = identity {
                let why = match error {
                    MemoryError::Fabric(error) => FabricError { node: number, ..*error }.into(),
                    _ => MemoryError::LostMemory(number),
                };
                missing.insert(number, why);
            }
            numbers.push(number);
        }
        let mut sorted = numbers.clone();
        sorted.sort();
        match (0..).map(NodeId).zip(&sorted).find(|(place, number)| place != *number) {
            None => Ok((numbers, missing)),
            Some((place, _)) if place.0 >= self.founders => Err(MemoryError::NotNamed(place)),
            Some(_) => {
                let given = sorted.iter().filter(|number| number.0 < self.founders).count() as u16;
                Err(MemoryError::NodeCount { given, nodes: self.founders })
            }
        }
    }
}

/// Finds out which memory node is which, and founds their cluster if no client has yet. Nodes in
/// `unasked` count as silent.
fn find(fabric: &dyn Fabric, count: u16, unasked: NodeSet) -> Result<NamedNodes, MemoryError> {
    let is_away = |node| (node, FabricError { node, fault: Fault::Unreachable }.into());
    let mut silent: BTreeMap<NodeId, MemoryError> = unasked.iter().map(is_away).collect();
    unasked.iter().for_each(|node| fabric.fail(node));
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
    let is_of_founders = known.iter().flatten().next().is_none_or(|one| one.founders == count);
    if silent.is_empty() && known.contains(&None) && is_of_founders {
        match block_on(fabric, ClientId(0), async |lane: &Lane| identity::found(lane, count).await)? {
            Ok(all) => known = all.into_iter().map(Some).collect(),
            Err(MemoryError::LostMemory(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(Identity { cluster, founders, .. }) = known.iter().flatten().next().copied() else {
        let why = silent.into_values().next();
        return Err(why.unwrap_or(MemoryError::empty("the number of memory nodes")));
    };
    let identity = |(at, identity): (NodeId, Option<Identity>)| match identity {
        Some(identity) => Ok(identity.number),
        None => Err(silent.remove(&at).unwrap_or(MemoryError::LostMemory(at))),
    };
    let identities = (0..).map(NodeId).zip(known).map(identity).collect();
    Ok(NamedNodes { cluster, founders, identities })
}

/// Opens the configuration of a cluster's clients: the given one, or the default one.
fn configuration(
    nodes: &Nodes,
    found: &NamedNodes,
    given: Option<&Place>,
) -> Result<Option<Arc<dyn Configuration>>, ConfigurationError> {
    let cluster = found.cluster;
    let file: LockedFile = match (given, nodes) {
        (Some(place), _) => return Ok(Some(place.open(cluster)?)),
        (None, Nodes::Shm(paths)) => {
            // The file is beside the file of node 0. If node 0 is missing, it is the first missing
            // node in the list.
            let at = |which: fn(&Result<NodeId, MemoryError>) -> bool| found.identities.iter().position(which);
            let first = at(|identity| *identity == Ok(NodeId(0))).or_else(|| at(Result::is_err));
            let Some(first) = first.and_then(|at| paths.get(at)) else { return Ok(None) };
            // A file of that name may be the configuration of an earlier cluster.
            match LockedFile::open_or_replace(LockedFile::beside(first), cluster) {
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
