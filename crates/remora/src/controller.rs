//! The controller of a cluster. It finds memory nodes that are lost, leads the cluster into the
//! next epoch without them, and makes new copies of the shards that they had.
//!
//! A cluster has at least one controller. One of them is the conductor, and when it dies, another
//! takes over. A controller runs no transactions, so epochs do not end it. It makes copies as a
//! client like any other (`remora_txn::recovery::copy`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use remora_fabric::{ClientId, Endpoint, FabricError, Lane, Nanos, NodeId, NodeSet, Outlined, outline};
use remora_membership::{Configuration, ConfigurationError, Membership, RecoveredClients};
use remora_node::metadata::{self, Wanted};
use remora_node::{GivenUp, Identity, MemoryError, Metadata, identity, next_incarnation};
use remora_txn::recovery::{self, Copier, Loss, Rollback, Tell, Verdicts};

use crate::client::Client;
use crate::cluster::{Cluster, is_silence};
use crate::error::OpenError;
use crate::keeper::{Keeper, RecoveryError};

/// The controller of a cluster. It finds memory nodes that are lost, and leads the cluster into the
/// next epoch without them. [`Cluster::controller`] makes it, and [`Controller::run`] runs it. It
/// is not `Send`: it runs on the thread that made it.
///
/// A controller that cannot renew its lease is taken for dead. A new epoch also ends a controller
/// that is recovering a dead client. In both cases it goes on as another incarnation, as soon as it
/// can. So a cluster keeps the number of its controllers.
pub struct Controller {
    cluster: Cluster,
    worker: remora_fabric::Worker,
    lane: Lane,
    life: Life,
    copy_rate: Option<u64>,
}

/// One incarnation of a controller.
struct Life {
    client: u32,
    keeper: Rc<Keeper>,
}

impl Cluster {
    /// Makes a controller of this cluster, on this thread. A cluster needs at least one controller
    /// to go on when a memory node dies. Fails if the cluster has no configuration, or if the
    /// memory nodes or the configuration cannot be reached.
    pub fn controller(&self) -> Result<Controller, OpenError> {
        Controller::new(self)
    }

    /// Returns whether all shards are arranged, so that no copy is left to make. Then no shard has
    /// fewer copies than it could have. No shard has to leave its node, or to move to a node that
    /// is to get its share ([`add_node`](Cluster::add_node)). Fails if the catalog or the
    /// configuration cannot be read.
    pub fn is_arranged(&self) -> Result<bool, OpenError> {
        let Some(configuration) = self.configuration() else { return Ok(true) };
        let arranged = self.administer(async |lane: &Lane| Ok(arranged(lane, configuration, self.live_nodes()).await));
        let arranged = arranged.map_err(|error: FabricError| MemoryError::from(error))?;
        let (before, after) = arranged.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        Ok(before == after && before.joining().next().is_none())
    }
}

impl Controller {
    fn new(cluster: &Cluster) -> Result<Controller, OpenError> {
        cluster.follow_epoch()?;
        let life = remora_fabric::block_on(cluster.fabric(), ClientId(0), async |guest: &Lane| {
            Life::begin(cluster, guest).await
        })??;
        let worker = remora_fabric::Worker::new();
        let endpoint = life.connect(cluster, &worker)?;
        let lane = worker.lane(&endpoint, life.client.into()).expect("the first lane");
        Ok(Controller { cluster: cluster.clone(), worker, lane, life, copy_rate: None })
    }

    /// Returns the controller with a limit for copying, of at most `copy_rate` bytes per second.
    /// `None` sets no limit.
    #[must_use]
    pub fn with_copy_rate(mut self, copy_rate: Option<u64>) -> Controller {
        self.copy_rate = copy_rate;
        self
    }

    /// Returns the controller's current incarnation. It has another one after it was taken for
    /// dead.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.life.client
    }

    /// Begins the controller's work, for a caller that drives it turn by turn, such as a simulator.
    /// The work ends when `over` returns true. The controller calls `over` several times in a
    /// lease.
    pub fn start<'c>(&'c mut self, over: impl Fn() -> bool + 'c) -> remora_fabric::Run<'c, ()> {
        let Controller { cluster, worker, lane, life, copy_rate } = self;
        let (worker, id) = (&*worker, lane.id());
        life.keeper.wake(lane);
        let work = async move {
            loop {
                let watcher = Watcher {
                    cluster,
                    worker,
                    keeper: &life.keeper,
                    me: life.client,
                    copy_rate: *copy_rate,
                    reached: Cell::new(cluster.live_nodes()),
                    epoch: Cell::new(cluster.epoch()),
                    shut: Cell::default(),
                };
                watcher.watch_all(lane, &over).await;
                if over() {
                    break;
                }
                match life.reincarnate(cluster, worker, lane).await {
                    Ok(()) => tracing::warn!(
                        client = life.client,
                        "a controller that was taken for dead goes on as a new incarnation"
                    ),
                    Err(error) => {
                        tracing::warn!(%error, "a controller that was taken for dead cannot come back yet");
                        life.keeper.pause(lane).await;
                    }
                }
            }
            life.keeper.finish_steps(lane).await;
            life.keeper.rest().await;
        };
        worker.start([(id, work)])
    }

    /// Does the controller's work until `over` returns true, and blocks the thread meanwhile. The
    /// controller calls `over` several times in a lease.
    pub fn run(&mut self, over: impl Fn() -> bool) {
        self.start(over).to_end();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.life.keeper.leave();
    }
}

impl Life {
    /// Begins an incarnation. `guest` is a lane of client id 0. The configuration knows the
    /// incarnation before the incarnation connects.
    async fn begin(cluster: &Cluster, guest: &Lane) -> Result<Life, OpenError> {
        let none = || MemoryError::Configuration("there is no configuration, or no lease".to_owned());
        let configuration = cluster.configuration().ok_or_else(none)?;
        let lease = cluster.lease_ns().ok_or_else(none)?;
        // A controller is needed most when nodes are in trouble, the leading one among them.
        let drawn = match cluster.draw_incarnation(guest).await {
            Ok(drawn) => Ok(drawn),
            Err(error) => {
                tracing::info!(%error, "the configuration gives a controller its incarnation");
                Err(next_incarnation(guest, cluster.live_nodes().leader()).await.unwrap_or(0))
            }
        };
        let process = configuration.process();
        let joined = configuration.change(|membership| membership.join_controller(drawn, lease, process));
        let client = joined.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        let keeper = Keeper::new(cluster, configuration.clone(), client, cluster.epoch(), (Rc::default(), None));
        Ok(Life { client, keeper: Rc::new(keeper.watchful()) })
    }

    /// Connects this incarnation. If it cannot connect, it leaves the configuration again, because
    /// a controller that never works must not lead the others.
    fn connect(&self, cluster: &Cluster, worker: &remora_fabric::Worker) -> Result<Rc<Endpoint>, FabricError> {
        worker.connect(cluster.fabric(), ClientId(self.client)).inspect_err(|_| self.keeper.leave())
    }

    /// Makes the controller another incarnation. The former one was taken for dead, and has nothing
    /// under way.
    async fn reincarnate(
        &mut self,
        cluster: &Cluster,
        worker: &remora_fabric::Worker,
        lane: &mut Lane,
    ) -> Result<(), OpenError> {
        cluster.follow_nodes()?;
        let guest = lane.on(&worker.connect(cluster.fabric(), ClientId(0))?);
        cluster.enter_epoch(&guest).await?;
        let life = Life::begin(cluster, &guest).await?;
        *lane = lane.on(&life.connect(cluster, worker)?);
        life.keeper.wake(lane);
        *self = life;
        Ok(())
    }
}

struct Watcher<'c> {
    cluster: &'c Cluster,
    worker: &'c remora_fabric::Worker,
    keeper: &'c Keeper,
    me: u32,
    copy_rate: Option<u64>,
    /// Nodes that the controller's connection reaches, as long as they are alive.
    reached: Cell<NodeSet>,
    /// The last epoch that the controller has seen.
    epoch: Cell<u64>,
    /// Whether the controller is to end.
    shut: Cell<bool>,
}

/// Number of pauses of the keeper between two looks for lost nodes that have come back.
const PAUSES_OF_ABSENCE: u32 = 8;

impl Watcher<'_> {
    fn configuration(&self) -> Result<&Arc<dyn Configuration>, RecoveryError> {
        let none = || MemoryError::Configuration("there is none".to_owned());
        Ok(self.cluster.configuration().ok_or_else(none)?)
    }

    /// Works until the controller is to end, or is taken for dead. Connects again when there are
    /// memory nodes that `lane` does not reach.
    async fn watch_all(&self, lane: &mut Lane, over: &dyn Fn() -> bool) {
        loop {
            let reach = self.watch_on(lane, over).await;
            if self.shut.get() {
                return;
            }
            match self.worker.connect(self.cluster.fabric(), ClientId(self.me)) {
                Ok(endpoint) => {
                    *lane = lane.on(&endpoint);
                    self.reached.set(reach);
                }
                Err(error) => self.lose_in_the_way(lane, error).await,
            }
        }
    }

    /// Works with one connection. Returns when some memory nodes need another connection, or may
    /// not be reached any more, or the controller is to end. Returns the nodes that the next
    /// connection reaches.
    #[inline(never)]
    fn watch_on(&self, lane: &Lane, over: &dyn Fn() -> bool) -> Outlined<impl Future<Output = NodeSet>> {
        outline(async move {
            let mut all = pin!(self.keeper.attend(lane));
            let mut watch = pin!(self.watch(lane));
            let mut copy = pin!(self.keep_copying(lane));
            let mut end = pin!(async {
                while !over() && !self.keeper.is_over() {
                    self.keeper.pause(lane).await;
                }
                self.shut.set(true);
            });
            let mut ends = None;
            // All tasks share one lane. So every task is polled, and checks by itself whether it is
            // ready.
            poll_fn(|context| {
                let _ = all.as_mut().poll(context);
                if ends.is_none() {
                    let _ = copy.as_mut().poll(context);
                    ends = match (end.as_mut().poll(context), watch.as_mut().poll(context)) {
                        (_, Poll::Ready(reach)) => Some(reach),
                        (Poll::Ready(()), Poll::Pending) => Some(self.reached.get()),
                        _ => None,
                    };
                }
                ends.filter(|_| self.keeper.is_idle()).map_or(Poll::Pending, Poll::Ready)
            })
            .await
        })
    }

    /// Checks the memory nodes again and again, and conducts the next epoch if this is the
    /// controller's part. Ends when another connection is needed, and returns the nodes that it
    /// reaches.
    async fn watch(&self, lane: &Lane) -> NodeSet {
        let mut absence = 0;
        let mut stuck = Stuck::default();
        loop {
            self.keeper.pause(lane).await;
            if let Err(error) = self.cluster.learn_names() {
                tracing::warn!(%error, "a controller does not know where memory nodes are that were added");
            }
            let looked = self.configuration().and_then(|configuration| {
                let now = |membership: &Membership| {
                    let (changing, leads) = (membership.is_changing(), membership.leads(self.me));
                    (membership.epoch(), membership.lost(), changing, leads)
                };
                Ok(configuration.look(now)?)
            });
            let (epoch, lost, changing, leads) = match looked {
                Ok(now) => now,
                Err(error) => {
                    tracing::warn!(%error, "nobody knows which memory nodes there are");
                    continue;
                }
            };
            let live = NodeSet::first(self.cluster.memory_nodes()).without(lost);
            // In an epoch that the controller has missed, a node may have been lost that the next
            // epoch has taken in again.
            let missed = epoch > self.epoch.replace(epoch) + 1;
            self.reached.set(if missed { NodeSet::default() } else { self.reached.get().without(lost) });
            if changing && !missed {
                if stuck.makes_way(lane.now()) {
                    continue;
                }
                let Err(error) = self.conduct(lane).await else {
                    stuck = Stuck::default();
                    continue;
                };
                tracing::warn!(%error, "the next epoch cannot begin yet");
                if stuck.for_too_long(lane.now(), self.keeper.lease().unwrap_or(0)) {
                    self.make_way().unwrap_or_else(|error| tracing::warn!(%error, "nor can another begin it"));
                }
                continue;
            }
            stuck = Stuck::default();
            let unreached = live.without(self.reached.get());
            if !unreached.is_empty() {
                // These nodes were added since this connection was made, or were unreachable when
                // this controller connected.
                let gone = self.gone(lane, self.cluster.absent().without(lost)).await;
                if !gone.is_empty() {
                    if !self.lose_or_say(lane, live, gone).await {
                        return self.reached.get();
                    }
                    continue;
                }
                self.cluster.expect_all();
                match self.cluster.follow_nodes() {
                    Ok(()) => return live,
                    Err(error) => tracing::warn!(%error, "a controller cannot go near new memory nodes yet"),
                }
                continue;
            }
            let entered = self.cluster.enter_epoch(lane).await;
            if let Err(error) = &entered {
                tracing::warn!(%error, "a controller cannot follow the others into the next epoch yet");
            }
            // One reason why the controller cannot enter an epoch is that another node has died
            // meanwhile. So it looks for silent nodes in any case.
            let silent = silent(lane, live, false).await;
            if silent == live {
                // More likely, this connection is lost, and not all of the nodes.
                if let Some(reach) = self.come_anew(live) {
                    return reach;
                }
                continue;
            }
            if !silent.is_empty() {
                if !self.lose_or_say(lane, live, silent).await {
                    return self.reached.get();
                }
                continue;
            }
            if !leads || entered.is_err() {
                continue;
            }
            absence += 1;
            let back = if absence % PAUSES_OF_ABSENCE == 0 { self.back(lane, lost).await } else { None };
            let asked = match back {
                Some(node) => self.admit(node),
                None => self.rearrange(lane, live).await,
            };
            match asked {
                Ok(()) => {
                    if let Some(node) = back {
                        return self.reached.get().with(node);
                    }
                }
                Err(error) => tracing::warn!(%error, "copies cannot be made yet"),
            }
        }
    }

    /// Returns the nodes that another connection may reach, when this one reaches no node any more.
    /// Returns `None` if no node answers. Nodes that do not answer are given up once the other
    /// connection is there.
    fn come_anew(&self, live: NodeSet) -> Option<NodeSet> {
        let fabric = self.cluster.fabric();
        let away = live.iter().filter(|node| !fabric.answers(*node)).fold(NodeSet::default(), NodeSet::with);
        if away == live {
            tracing::error!("no memory node answers");
            return None;
        }
        self.cluster.miss(away);
        Some(live.without(away))
    }

    /// Handles a node that kept the controller from connecting again. If the node does not answer
    /// by the connection that the controller has either, it counts as lost.
    async fn lose_in_the_way(&self, lane: &Lane, error: FabricError) {
        tracing::warn!(%error, "a controller cannot connect again yet");
        let (reached, node) = (self.reached.get(), NodeSet::default().with(error.node));
        let is_there = reached.has(error.node) && silent(lane, node, false).await.is_empty();
        if is_silence(error.fault) && !is_there && !reached.without(node).is_empty() {
            self.lose_or_say(lane, reached, node).await;
        }
    }

    /// Leaves the conductor's part to another controller, which may reach nodes that this one does
    /// not reach.
    fn make_way(&self) -> Result<(), RecoveryError> {
        tracing::warn!(client = self.me, "another controller is to conduct the next epoch");
        Ok(self.configuration()?.change(|membership| membership.resign(self.me))??)
    }

    /// Returns a node that was lost, and now answers and is empty. Tells a node that still has its
    /// former content to give it up.
    async fn back(&self, lane: &Lane, lost: NodeSet) -> Option<NodeId> {
        let of_cluster = identity::of(lane, self.reached.get().leader()).await.ok()??;
        let found = async |guest: &Lane, node| {
            let metadata = metadata::read(guest, node).await.ok()?;
            Some((identity::of(guest, node).await.ok()?, metadata.generation))
        };
        for node in lost.iter() {
            match self.visit(lane, node, found).await.flatten() {
                // The node is empty, or is one whose conductor died before the epoch began that
                // takes it in.
                Some((None, 0)) => return Some(node),
                Some((Some(identity), 0)) if identity == (Identity { number: node, ..of_cluster }) => {
                    return Some(node);
                }
                Some((Some(identity), _)) if identity.cluster == of_cluster.cluster => {
                    if let Err(error) = self.tell_given_up(node, of_cluster.cluster) {
                        tracing::warn!(%node, %error, "a memory node that was lost cannot be told so");
                    }
                }
                _ => {}
            }
            self.cluster.fabric().abandon(node);
        }
        None
    }

    fn tell_given_up(&self, node: NodeId, cluster: u64) -> Result<(), RecoveryError> {
        if let Some(since) = self.configuration()?.look(|membership| membership.given_up(node))? {
            self.cluster.fabric().forget(node, &GivenUp { cluster, since }.to_words()).map_err(MemoryError::from)?;
        }
        Ok(())
    }

    /// Returns the nodes among `nodes` that are still unreachable, or that are empty.
    async fn gone(&self, lane: &Lane, nodes: NodeSet) -> NodeSet {
        let is_there = async |guest: &Lane, node| identity::of(guest, node).await.is_ok_and(|found| found.is_some());
        let mut gone = NodeSet::default();
        for node in nodes.iter() {
            if self.visit(lane, node, is_there).await != Some(true) {
                self.cluster.fabric().abandon(node);
                gone = gone.with(node);
            }
        }
        gone
    }

    /// Asks a node by a new connection, and returns its answer, or `None` if the node does not
    /// answer.
    async fn visit<T>(&self, lane: &Lane, node: NodeId, what: impl AsyncFn(&Lane, NodeId) -> T) -> Option<T> {
        let fabric = self.cluster.fabric();
        if !fabric.answers(node) {
            return None;
        }
        fabric.readmit(node);
        match self.worker.connect(fabric, ClientId(0)) {
            Ok(guest) => Some(what(&lane.on(&guest), node).await),
            Err(_) => None,
        }
    }

    fn admit(&self, node: NodeId) -> Result<(), RecoveryError> {
        tracing::info!(%node, "a memory node comes back with nothing: the cluster takes it in");
        self.configuration()?.change(|membership| membership.admit(NodeSet::default().with(node), self.me))??;
        Ok(())
    }

    /// Ends the epoch if shards have to move.
    async fn rearrange(&self, lane: &Lane, live: NodeSet) -> Result<(), RecoveryError> {
        let configuration = self.configuration()?;
        let (before, after) = arranged(lane, configuration, live).await?;
        let leaving = configuration.look(|membership| membership.leaving())?;
        if after != before || !before.without_replicas(leaving).is_empty() {
            configuration.change(|membership| membership.rearrange(self.me))??;
        }
        Ok(())
    }

    /// Ends the epoch without the silent nodes, and logs an error if that fails. Returns whether it
    /// has succeeded.
    async fn lose_or_say(&self, lane: &Lane, live: NodeSet, silent: NodeSet) -> bool {
        let lost = self.lose(lane, live, silent).await;
        if let Err(error) = &lost {
            tracing::error!(%error, nodes = %silent, "memory nodes do not answer, and the cluster cannot go on without");
        }
        lost.is_ok()
    }

    /// Ends the epoch without the silent nodes, if the other nodes have a replica of every shard.
    async fn lose(&self, lane: &Lane, live: NodeSet, mut silent: NodeSet) -> Result<(), RecoveryError> {
        let catalog = loop {
            let rest = live.without(silent);
            if rest.is_empty() {
                return Err(MemoryError::NoNode.into());
            }
            match metadata::newest(lane, rest).await {
                // Nodes may die one after the other.
                Err(MemoryError::Fabric(error)) if error.fault.lost() && rest.has(error.node) => {
                    silent = silent.with(error.node);
                }
                catalog => break catalog?,
            }
        };
        let lost: Result<(), RecoveryError> = self.configuration()?.change(|membership| {
            // Other controllers may have declared more nodes lost.
            let lost =
                [membership.lost(), membership.losing(), silent].into_iter().fold(0, |all, one| all | one.to_bits());
            metadata::without(&catalog, NodeSet::from_bits(lost), 0)?;
            Ok(membership.lose(silent, self.me)?)
        })?;
        lost?;
        tracing::warn!(nodes = %silent, by = self.me, "memory nodes do not answer: the cluster goes on without them");
        Ok(())
    }

    /// Leads the cluster into the next epoch, if this controller is the conductor.
    async fn conduct(&self, lane: &Lane) -> Result<(), RecoveryError> {
        let (cluster, configuration, me) = (self.cluster, self.configuration()?, self.me);
        let all = NodeSet::first(cluster.memory_nodes());
        if configuration.look(|membership| membership.is_abandoned())? {
            configuration.change(|membership| membership.adopt(me))?;
        }
        let began = lane.now();
        while let Some(conducting) = configuration.look(|membership| membership.conducting(me))? {
            if lane.now() < began.saturating_add(conducting.wait) {
                lane.sleep(LOOK_PAUSE_NS).await;
                continue;
            }
            let reached = all.without(conducting.lost);
            let survivors = reached.without(conducting.admitted);
            let loss = Loss {
                survivors,
                lost: conducting.lost,
                epoch: conducting.epoch,
                admitted: conducting.admitted,
                leaving: conducting.leaving,
                expendable: conducting.expendable,
                filling: conducting.filling,
                copied: &conducting.copied,
                clients: &conducting.clients,
                incarnations: conducting.incarnations,
            };
            let decided = |verdicts: &[(u32, Verdicts)]| {
                let decided = configuration.change(|membership| membership.decided(me, verdicts));
                let failed = |error: ConfigurationError| MemoryError::Configuration(error.to_string());
                decided.and_then(|decided| Ok(decided?)).map_err(failed)
            };
            let tell = Tell { rollback: &|rollback: &Rollback<'_>| cluster.tell(rollback), decided: &decided };
            let after = match recovery::fail_over(cluster.fabric(), lane, &loss, &tell).await {
                Ok(after) => after,
                Err(error) => {
                    let mut silent = silent(lane, reached, true).await;
                    if let MemoryError::NotApplied(node) = error {
                        silent = silent.with(node);
                    }
                    // The nodes to take in may be the cause of the failure. The epoch then begins
                    // without them.
                    let lost = if silent.is_empty() { conducting.admitted } else { silent };
                    if !lost.is_empty() {
                        self.lose(lane, reached, lost).await?;
                    }
                    return Err(error.into());
                }
            };
            let emptied = after.without_replicas(conducting.leaving);
            if configuration.change(|membership| membership.begin_epoch(me, &conducting, emptied))?? {
                tracing::info!(epoch = conducting.epoch, lost = %conducting.lost, "the next epoch begins");
                let entered = cluster.enter_epoch(lane).await;
                return Ok(entered.map_err(|error| MemoryError::Configuration(error.to_string()))?);
            }
        }
        Ok(())
    }

    /// Copies to joining replicas what they lack, if this controller leads.
    async fn keep_copying(&self, lane: &Lane) {
        loop {
            self.keeper.pause(lane).await;
            match self.copy_all(lane).await {
                Ok(()) => {}
                Err(error) => tracing::info!(%error, "copies are begun again"),
            }
        }
    }

    async fn copy_all(&self, lane: &Lane) -> Result<(), RecoveryError> {
        let configuration = self.configuration()?;
        let left = || {
            let (metadata, copied) = (self.cluster.catalog(), configuration.look(|membership| membership.copied())?);
            let left: Vec<_> = metadata.joining().filter(|one| !copied.contains(one)).collect();
            Ok::<_, RecoveryError>((metadata, left))
        };
        let may_copy = |membership: &Membership| membership.leads(self.me) && !membership.is_changing();
        if !configuration.look(may_copy)? || left()?.1.is_empty() {
            return Ok(());
        }
        let failed = |error: OpenError| MemoryError::Configuration(error.to_string());
        let client = Client::come(self.cluster, self.worker, lane).await.map_err(failed)?;
        let life = client.life();
        let Some(keeper) = life.keeper.clone() else { return Ok(()) };
        keeper.wake(&life.admin);
        let (metadata, left) = left()?;
        if metadata.epoch != life.epoch() {
            // The controller does not know yet where the replicas of its client's epoch are.
            life.registration.clone().disconnect(&life.admin).await?;
            keeper.leave();
            return Err(MemoryError::EpochChanging.into());
        }
        tracing::info!(shards = left.len(), client = life.registration.incarnation, "copies are made of what was lost");
        let mut attending = pin!(keeper.attend(&life.admin));
        let departed = RecoveredClients::new(configuration.clone());
        let ids = || life.next_id();
        let mut work = pin!(async {
            let mut rings = BTreeMap::new();
            for (shard, node) in left {
                let ring = rings.entry(node).or_insert_with(|| life.registration.ring(node, 0));
                let copier = Copier { lane: &life.admin, ring, ids: &ids, departed: &departed, rate: self.copy_rate };
                recovery::copy(copier, &metadata, shard, node).await?;
                let by = life.registration.incarnation;
                configuration.change(|membership| membership.has_copied(shard, node, by))??;
            }
            Ok::<(), RecoveryError>(())
        });
        let copied = poll_fn(|context| {
            let _ = attending.as_mut().poll(context);
            work.as_mut().poll(context)
        })
        .await;
        match copied {
            Ok(()) => {
                life.registration.clone().disconnect(&life.admin).await?;
                keeper.leave();
            }
            // Another client recovers what this client has left when its lease has expired.
            Err(_) => keeper.abandon(&life.admin),
        }
        copied
    }
}

/// Returns the catalog as it is, and as it would be in the next epoch. Both are equal if no shard
/// has to move.
async fn arranged(
    lane: &Lane,
    configuration: &Arc<dyn Configuration>,
    live: NodeSet,
) -> Result<(Metadata, Metadata), RecoveryError> {
    let now = |all: &Membership| (all.leaving(), all.expendable(), all.filling(), all.copied());
    let (leaving, expendable, filling, copied) = configuration.look(now)?;
    let before = metadata::read(lane, live.leader()).await?;
    let all_copied = before.joining().all(|one| copied.contains(&one));
    let copied = if all_copied { &copied[..] } else { &[] };
    let wanted = Wanted { nodes: live.without(leaving), expendable, filling, copied };
    let after = metadata::arranged(lane, &before, &wanted).await?;
    Ok((before, after))
}

/// Returns the nodes among `nodes` that do not answer. Unless they `may_be_new`, also returns the
/// ones that are empty, because they were started again before any controller missed them.
async fn silent(lane: &Lane, nodes: NodeSet, may_be_new: bool) -> NodeSet {
    let mut silent = NodeSet::default();
    for (node, identity) in identity::of_each(lane, nodes).await {
        let is_silent = match identity {
            Ok(identity) => identity.is_none() && !may_be_new,
            Err(MemoryError::Fabric(error)) => error.fault.lost(),
            Err(_) => false,
        };
        if is_silent {
            silent = silent.with(node);
        }
    }
    silent
}

/// Tells whether a conductor makes no progress, so that another controller is to try.
#[derive(Clone, Copy, Debug, Default)]
struct Stuck {
    since: Option<Nanos>,
    /// Until this time other controllers may conduct.
    aside: Nanos,
}

impl Stuck {
    /// Returns whether another controller may conduct now.
    fn makes_way(&self, now: Nanos) -> bool {
        now < self.aside
    }

    /// Notes that the conductor has failed again. Returns whether it has failed for so long that
    /// other controllers are to try, for one lease.
    fn for_too_long(&mut self, now: Nanos, lease: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_too_long = now.saturating_sub(since) > lease.saturating_mul(LEASES_OF_A_CONDUCTOR);
        if is_too_long {
            *self = Stuck { since: None, aside: now.saturating_add(lease) };
        }
        is_too_long
    }
}

/// A conductor that has failed for this number of leases lets other controllers try.
const LEASES_OF_A_CONDUCTOR: Nanos = 2;

/// Pause between two checks whether all clients have stopped, in nanoseconds.
const LOOK_PAUSE_NS: Nanos = 50_000;

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("client", &self.life.client).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conductor_that_gets_no_further_makes_way_for_a_lease() {
        const LEASE: Nanos = 100;
        let mut stuck = Stuck::default();
        assert!([1_000, 1_100, 1_200].iter().all(|now| !stuck.for_too_long(*now, LEASE)));
        assert!(!stuck.makes_way(1_200) && stuck.for_too_long(1_201, LEASE));
        assert!(stuck.makes_way(1_300) && !stuck.makes_way(1_301));
        assert!(!stuck.for_too_long(1_301, LEASE), "it tries again itself");
    }
}
