//! Who looks after the memory nodes: finds those that are lost, and leads the cluster into the next epoch without them.
//!
//! A cluster has one or more; one conducts, and when it dies another takes that over. A controller runs no transactions, so
//! that epochs do not end it.

use std::fmt;
use std::rc::Rc;

use remora_cluster::Membership;
use remora_fabric::{ClientId, Lane, Nanos, NodeSet, WORD_BYTES};
use remora_memory::{MemoryError, metadata, next_incarnation, node};
use remora_txn::recovery::{self, Loss};

use crate::cluster::{Cluster, join};
use crate::error::OpenError;
use crate::keeper::{Keeper, RecoveryError};

/// Who looks after the memory nodes: finds those that are lost, and leads the cluster into the next epoch without them. Not
/// `Send`: it runs on the thread that made it.
pub struct Controller {
    cluster: Cluster,
    worker: remora_fabric::Worker,
    client: u32,
    lane: Lane,
    keeper: Rc<Keeper>,
}

impl Controller {
    pub(crate) fn new(cluster: &Cluster) -> Result<Controller, OpenError> {
        let none = || MemoryError::Configuration("there is no configuration, or no lease".to_owned());
        cluster.follow_epoch()?;
        let configuration = cluster.configuration().ok_or_else(none)?;
        let lease = cluster.lease_ns().ok_or_else(none)?;
        let leader = cluster.live_nodes().leader();
        let client = remora_fabric::block_on(cluster.fabric(), ClientId(0), async |lane: &Lane| {
            next_incarnation(lane, leader).await
        })??;
        join(configuration, client, cluster.epoch(), lease)?;
        let controls = configuration.change(|membership| membership.control(client));
        controls.map_err(|error| MemoryError::Configuration(error.to_string()))?.map_err(|_| none())?;
        let worker = remora_fabric::Worker::new();
        let endpoint = worker.connect(cluster.fabric(), ClientId(client))?;
        let lane = worker.lane(&endpoint, client.into()).expect("the first lane");
        let keeper = Rc::new(Keeper::new(cluster, configuration.clone(), client, Rc::default()));
        Ok(Controller { cluster: cluster.clone(), worker, client, lane, keeper })
    }

    /// Its incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.client
    }

    /// Whether it was taken for dead, as one is that cannot renew its lease. Another one can be made in its place.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.keeper.is_over()
    }

    /// Begins its work, for whoever drives it turn by turn: a simulator. It ends when `over` says so, which it asks a few
    /// times in a lease, or when it was taken for dead.
    pub fn start<'c, O: Fn() -> bool + 'c>(
        &'c mut self,
        over: O,
    ) -> remora_fabric::Run<'c, impl Future<Output = ()> + use<'c, O>> {
        let Controller { cluster, worker, lane, keeper, client } = self;
        keeper.wake(lane);
        let (client, lane) = (*client, &*lane);
        let work = async move {
            let mut all = std::pin::pin!(keeper.attend(lane));
            let mut watch = std::pin::pin!(watch(cluster, keeper, lane, client));
            let mut end = std::pin::pin!(async {
                while !over() && !keeper.is_over() {
                    keeper.pause(lane).await;
                }
            });
            // One lane for all, whoever of them is ready: each looks for itself.
            std::future::poll_fn(|context| {
                let _ = all.as_mut().poll(context);
                let _ = watch.as_mut().poll(context);
                end.as_mut().poll(context)
            })
            .await;
            keeper.rest(lane).await;
        };
        worker.start([(lane.id(), work)])
    }

    /// Works until `over` says that it is to end, or until it was taken for dead: see [`Controller::is_fenced`].
    pub fn run(&mut self, over: impl Fn() -> bool) {
        self.start(over).to_end();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.keeper.leave();
    }
}

/// Looks at the memory nodes, and conducts what there is to conduct.
async fn watch(cluster: &Cluster, keeper: &Keeper, lane: &Lane, me: u32) {
    let Some(configuration) = cluster.configuration() else { return };
    loop {
        keeper.pause(lane).await;
        let lost = match configuration.look(|membership| (membership.lost(), membership.is_changing())) {
            // Another controller may have conducted it; or this one, and the answer was lost.
            Ok((_, false)) if epoch_has_begun(cluster) => {
                if let Err(error) = cluster.enter_epoch(lane).await {
                    tracing::warn!(%error, "a controller cannot enter the epoch that has begun");
                }
                continue;
            }
            Ok((lost, false)) => lost,
            Ok((_, true)) => {
                if let Err(error) = conduct(cluster, lane, me).await {
                    tracing::warn!(%error, "the next epoch cannot begin yet");
                }
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "nobody knows which memory nodes there are");
                continue;
            }
        };
        let live = NodeSet::first(cluster.memory_nodes()).without(lost);
        let silent = silent(lane, live).await;
        if !silent.is_empty()
            && let Err(error) = lose(cluster, lane, me, live, silent).await
        {
            tracing::error!(%error, nodes = ?silent, "memory nodes do not answer, and the cluster cannot go on without");
        }
    }
}

/// Whether it is another one than the cluster's, as far as is known here.
fn epoch_has_begun(cluster: &Cluster) -> bool {
    let epoch = cluster.configuration().and_then(|configuration| configuration.look(Membership::epoch).ok());
    epoch.is_some_and(|epoch| epoch != cluster.epoch())
}

/// Those of some nodes that do not answer.
async fn silent(lane: &Lane, nodes: NodeSet) -> NodeSet {
    let mut silent = NodeSet::default();
    for node in nodes.iter() {
        let mut round = lane.round();
        round.read(node::at(node, 0), WORD_BYTES);
        if lane.execute(round).await.is_err_and(|error| error.fault.lost()) {
            silent = silent.with(node);
        }
    }
    silent
}

/// Has the epoch end, if the others have a replica of everything.
async fn lose(cluster: &Cluster, lane: &Lane, me: u32, live: NodeSet, silent: NodeSet) -> Result<(), RecoveryError> {
    let rest = live.without(silent);
    metadata::without(&metadata::newest(lane, rest).await?, silent, 0)?;
    let Some(configuration) = cluster.configuration() else { return Ok(()) };
    tracing::warn!(nodes = ?silent, by = me, "memory nodes do not answer: the cluster goes on without them");
    configuration.change(|membership| membership.lose(silent, me))??;
    Ok(())
}

/// Leads the cluster into the next epoch, if that is for this client to do.
async fn conduct(cluster: &Cluster, lane: &Lane, me: u32) -> Result<(), RecoveryError> {
    let Some(configuration) = cluster.configuration() else { return Ok(()) };
    let all = NodeSet::first(cluster.memory_nodes());
    let began = lane.now();
    while let Some(conducting) = configuration.look(|membership| membership.conducting(me))? {
        if lane.now() < began.saturating_add(conducting.wait) {
            lane.sleep(LOOK_PAUSE_NS).await;
            continue;
        }
        let survivors = all.without(conducting.lost);
        let loss = Loss { survivors, lost: conducting.lost, epoch: conducting.epoch, clients: &conducting.clients };
        let ready = recovery::fail_over(cluster.fabric(), lane, &loss, &|told| cluster.tell(told)).await;
        let verdicts = match ready {
            Ok(verdicts) => verdicts,
            Err(error) => {
                let silent = silent(lane, survivors).await;
                if !silent.is_empty() {
                    lose(cluster, lane, me, survivors, silent).await?;
                }
                return Err(error.into());
            }
        };
        if configuration.change(|membership| membership.begin_epoch(me, &conducting, &verdicts))?? {
            tracing::info!(epoch = conducting.epoch, lost = ?conducting.lost, "the next epoch begins");
            return Ok(cluster
                .enter_epoch(lane)
                .await
                .map_err(|error| MemoryError::Configuration(error.to_string()))?);
        }
    }
    Ok(())
}

/// Between two looks whether everybody has stopped.
const LOOK_PAUSE_NS: Nanos = 50_000;

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("client", &self.client).finish_non_exhaustive()
    }
}
