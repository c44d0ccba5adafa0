//! A client of a worker, through all of its incarnations at the memory nodes.
//!
//! An incarnation ends with its epoch. When a memory node is lost, all clients lose their access,
//! and their transactions are decided ([`remora_txn::recovery::fail_over`]). The client's keeper,
//! which is a coroutine, notices this and connects the client again, as a new incarnation. Each
//! session moves to the new incarnation with its next transaction.
//!
//! An incarnation can also run out of transaction ids. Long before that, the keeper connects the
//! client as another incarnation, while transactions go on by the former one. When the new
//! incarnation is connected, the former one begins no attempt any more. Its lease then expires,
//! when everything that it had under way has long been done.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use remora_fabric::{ClientId, Endpoint, Lane, Nanos, NodeId, Outlined, outline};
use remora_membership::ConfigurationError;
use remora_node::hot::HotList;
use remora_node::{MemoryError, Registration, Room, identity};
use remora_record::TransactionId;
use remora_txn::{ClientTime, Outcomes, SessionConfig, SharedLocks, Turns, enter_epoch};

use crate::cluster::{Announced, Cluster, in_one_epoch};
use crate::conflicts::ClientConflicts;
use crate::error::OpenError;
use crate::keeper::Keeper;
use crate::usage::Usage;

/// One incarnation of a client: its connection, and what its sessions share.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) registration: Registration,
    pub(crate) endpoint: Rc<Endpoint>,
    /// The lane for everything that is not a transaction: the lease, recovery, leaving.
    pub(crate) admin: Lane,
    /// The keeper, if the cluster has a configuration.
    pub(crate) keeper: Option<Rc<Keeper>>,
    config: SessionConfig,
}

/// A client, through all of its incarnations. The head of this module says more.
pub(crate) struct Client {
    cluster: Cluster,
    worker: remora_fabric::Worker,
    manner: Manner,
    life: RefCell<Rc<Life>>,
    conflicts: Rc<ClientConflicts>,
}

/// How a client connects, in each of its incarnations.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// The memory that it takes at each memory node.
    pub(crate) room: Room,
    /// Whether its coroutines yield after each round.
    pub(crate) yields: bool,
    /// Whether it connects again if it was taken for dead.
    pub(crate) reconnects: bool,
}

/// A function that makes the lanes of a client on an endpoint: those of its sessions, and the one
/// of its keeper, which it returns.
pub(crate) type Lanes<'l> = dyn FnMut(&Rc<Endpoint>) -> Lane + 'l;

impl Client {
    /// Connects a client with `coroutines` coroutines. `lane` makes the lane of its keeper.
    pub(crate) fn connect(
        cluster: &Cluster,
        worker: &remora_fabric::Worker,
        manner: Manner,
        lane: &mut Lanes<'_>,
    ) -> Result<Client, OpenError> {
        let life = in_one_epoch(cluster.configuration(), None, || {
            cluster.follow_epoch()?;
            let announce = async |guest: &Lane| cluster.announce(guest).await;
            let announced = remora_fabric::block_on(cluster.fabric(), ClientId(0), announce)??;
            let arrived = Arrived::connect(cluster, worker, announced, manner.yields, lane)?;
            let mut lives = worker.run([(arrived.admin.id(), arrived.begin(cluster, manner))]);
            lives.pop().expect("a task that has run has a result")
        })?;
        Ok(Client::of(cluster, worker, manner, life))
    }

    /// Connects a client of one coroutine, from a task that runs already and has a lane.
    pub(crate) async fn come(
        cluster: &Cluster,
        worker: &remora_fabric::Worker,
        lane: &Lane,
    ) -> Result<Client, OpenError> {
        let guest = lane.on(&worker.connect(cluster.fabric(), ClientId(0))?);
        let announced = cluster.announce(&guest).await?;
        drop(guest);
        let arrived = Arrived::connect(cluster, worker, announced, false, &mut |endpoint| lane.on(endpoint))?;
        let manner = Manner { room: Room::without_archive(1), yields: false, reconnects: false };
        let life = arrived.begin(cluster, manner).await?;
        Ok(Client::of(cluster, worker, manner, life))
    }

    fn of(cluster: &Cluster, worker: &remora_fabric::Worker, manner: Manner, life: Life) -> Client {
        let (cluster, worker, life) = (cluster.clone(), worker.clone(), RefCell::new(Rc::new(life)));
        Client { cluster, worker, manner, life, conflicts: Rc::new(ClientConflicts::new()) }
    }

    /// Returns the client's current incarnation.
    pub(crate) fn life(&self) -> Rc<Life> {
        self.life.borrow().clone()
    }

    /// Returns whether an incarnation is the client's current one.
    pub(crate) fn lives(&self, life: &Rc<Life>) -> bool {
        Rc::ptr_eq(&*self.life.borrow(), life)
    }

    /// Makes a session of a former incarnation go on as the current one, with all tables as they
    /// are placed now. Returns the current incarnation.
    pub(crate) fn adopt(&self, session: &mut remora_txn::Session, ring: usize) -> Rc<Life> {
        let life = self.life();
        session.reincarnate(&life.endpoint, &life.registration, ring, life.config.clone());
        self.settle(session, &life);
        life
    }

    /// Makes a session of an incarnation. `ring` is the number of its lane among the client's
    /// lanes.
    pub(crate) fn session(&self, life: &Life, lane: Lane, ring: usize) -> remora_txn::Session {
        let mut session = remora_txn::Session::new(lane, &life.registration, ring, life.config.clone());
        self.settle(&mut session, life);
        session
    }

    /// Makes all open tables known to a session, as they are placed now. Tables that programs have
    /// opened in another epoch may be elsewhere now, so the session must not learn of them from
    /// these programs' handles.
    fn settle(&self, session: &mut remora_txn::Session, life: &Life) {
        let protocol = self.cluster.protocol();
        let tables = self.cluster.tables().into_iter();
        let accepted = tables.filter(|table| protocol.accepts(table.entry().spec.discipline));
        accepted.for_each(|table| session.register(table));
        session.count_conflicts(self.conflicts.clone());
        life.guard(session);
    }

    /// Returns the cluster of this client.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the memory node that has the list of all clients.
    pub(crate) fn leader(&self) -> NodeId {
        self.cluster.live_nodes().leader()
    }

    /// Does what the client has to do beside its transactions, for as long as the future is polled:
    /// the keeper's work, and the list of hot records.
    #[inline(never)]
    pub(crate) fn attend(&self) -> Outlined<impl Future<Output = ()>> {
        outline(async move {
            let (mut keep, mut list) = (pin!(self.keep()), pin!(self.list_hot_records()));
            // Both share one lane. So both are polled, and check by themselves whether they are
            // ready.
            poll_fn(|context| {
                let _ = keep.as_mut().poll(context);
                let _ = list.as_mut().poll(context);
                Poll::<()>::Pending
            })
            .await;
        })
    }

    /// Writes the list of the client's hot records, while it has any.
    async fn list_hot_records(&self) {
        loop {
            let end = self.conflicts.window_end().await;
            self.sleep_until(end).await;
            let life = self.life();
            let write = |list: &HotList| life.registration.write_hot_list(&life.admin, list);
            let Some(written) = self.conflicts.end_window(life.admin.now(), write) else { continue };
            if let Err(error) = written.await {
                tracing::debug!(%error, "the list of hot records could not be written");
            }
        }
    }

    async fn sleep_until(&self, end: Nanos) {
        let life = self.life();
        life.admin.sleep(end.saturating_sub(life.admin.now())).await;
    }

    /// Renews the lease, and watches the leases of other clients, if the client has a lease. When
    /// the epoch ends, or when few transaction ids are left, connects the client as another
    /// incarnation.
    #[inline(never)]
    fn keep(&self) -> Outlined<impl Future<Output = ()>> {
        outline(async move {
            loop {
                let life = self.life();
                let Some(keeper) = life.keeper.as_ref().filter(|keeper| keeper.is_leased()) else {
                    return pending().await;
                };
                let succeeded = {
                    let mut attending = pin!(keeper.attend(&life.admin));
                    let ends = poll_fn(|context| {
                        let _ = attending.as_mut().poll(context);
                        if keeper.outlived() || life.has_few_ids(&self.cluster) {
                            Poll::Ready(())
                        } else {
                            Poll::Pending
                        }
                    });
                    ends.await;
                    // The incarnation that has few ids keeps its lease until the next incarnation
                    // is connected, and recovers dead ones: their room may be what the next one
                    // lacks.
                    let succeeded = loop {
                        let coming = self.reincarnate(&life);
                        let came = unless_outlived(keeper, attending.as_mut(), coming).await;
                        let Some(Err(error)) = came else { break came.is_some() };
                        tracing::warn!(%error, "a client that has few transaction ids left cannot come as another one yet");
                        if unless_outlived(keeper, attending.as_mut(), keeper.pause(&life.admin)).await.is_none() {
                            break false;
                        }
                    };
                    let idle = poll_fn(|context| {
                        let _ = attending.as_mut().poll(context);
                        if keeper.is_busy() { Poll::Pending } else { Poll::Ready(()) }
                    });
                    idle.await;
                    succeeded
                };
                if succeeded {
                    keeper.retire();
                    continue;
                }
                keeper.until_next_epoch(&life.admin).await;
                while let Err(error) = self.reincarnate(&life).await {
                    if error.memory() != Some(&MemoryError::EpochChanging) {
                        tracing::warn!(%error, "a client cannot come back yet");
                    }
                    keeper.pause(&life.admin).await;
                }
            }
        })
    }

    async fn reincarnate(&self, former: &Life) -> Result<(), OpenError> {
        self.cluster.follow_nodes()?;
        let guest = self.worker.connect(self.cluster.fabric(), ClientId(0))?;
        let guest = former.admin.on(&guest);
        self.cluster.enter_epoch(&guest).await?;
        let announced = self.cluster.announce(&guest).await?;
        drop(guest);
        let lane = &mut |endpoint: &Rc<Endpoint>| former.admin.on(endpoint);
        let arrived = Arrived::connect(&self.cluster, &self.worker, announced, self.manner.yields, lane)?;
        let life = arrived.begin(&self.cluster, self.manner).await?;
        if let Some(keeper) = &life.keeper {
            keeper.wake(&life.admin);
        }
        tracing::info!(client = life.registration.incarnation, "a client goes on as a new incarnation");
        self.life.replace(Rc::new(life));
        Ok(())
    }
}

/// Runs a step and polls what the keeper does meanwhile. Returns `None` if the incarnation ends
/// before the step does.
async fn unless_outlived<T>(
    keeper: &Keeper,
    mut attending: Pin<&mut impl Future<Output = ()>>,
    step: impl Future<Output = T>,
) -> Option<T> {
    let mut step = pin!(step);
    poll_fn(|context| {
        let _ = attending.as_mut().poll(context);
        if keeper.outlived() { Poll::Ready(None) } else { step.as_mut().poll(context).map(Some) }
    })
    .await
}

/// A client that is connected, and has not registered at the memory nodes yet.
struct Arrived {
    announced: Announced,
    endpoint: Rc<Endpoint>,
    admin: Lane,
}

impl Arrived {
    fn connect(
        cluster: &Cluster,
        worker: &remora_fabric::Worker,
        announced: Announced,
        yields: bool,
        lane: &mut Lanes<'_>,
    ) -> Result<Arrived, MemoryError> {
        let endpoint = worker.connect(cluster.fabric(), ClientId(announced.incarnation))?;
        endpoint.yield_after_rounds(yields);
        let admin = lane(&endpoint);
        Ok(Arrived { announced, endpoint, admin })
    }

    /// Registers the client, by its own connection. So it takes nothing any more once its access is
    /// revoked.
    async fn begin(self, cluster: &Cluster, manner: Manner) -> Result<Life, OpenError> {
        let Arrived { announced: Announced { incarnation, epoch, nodes }, endpoint, admin } = self;
        // The nodes have been connected anew. One of them may have come back with empty memory
        // meanwhile.
        identity::remembered(&admin, nodes).await?;
        let registration = Registration::connect_as(&admin, nodes, incarnation, manner.room).await?;
        // Another client that drops tables from now on sees this client's slot, and waits for this
        // client.
        cluster.follow_drops(&admin).await?;
        if let Some(configuration) = cluster.configuration() {
            let followed = cluster.followed();
            let unusable = |error: ConfigurationError| MemoryError::Configuration(error.to_string());
            if configuration.look(|membership| membership.dropped() > 0).map_err(unusable)? {
                // A client that was taken for dead meanwhile notices it with its first round.
                let _ = configuration
                    .change(|membership| membership.acknowledge_drop(incarnation, followed))
                    .map_err(unusable)?;
            }
        }
        let sequence = {
            let max = cluster.protocol().sequence_max();
            Rc::new(Cell::new(max - cluster.transaction_ids().min(max) + 1))
        };
        let (protocol, vcache) = (cluster.protocol(), cluster.own_version_cache());
        let shared = SharedLocks::new(&registration, epoch);
        let keeper = cluster.configuration().cloned().map(|configuration| {
            let own = (sequence.clone(), Some(shared.clone()));
            let keeper = Keeper::new(cluster, configuration, incarnation, epoch, own);
            Rc::new(keeper.reconnecting(manner.reconnects))
        });
        let turns = Turns::default();
        let time = ClientTime::default();
        let begins = (protocol.discipline(), epoch, registration.incarnation);
        time.begin(&admin, nodes, begins).await.map_err(MemoryError::from)?;
        if protocol.discipline().has_clocks() {
            enter_epoch(&admin, nodes, epoch).await.map_err(MemoryError::from)?;
        }
        let archive_place = Rc::default();
        let outcomes = Outcomes::new(&registration);
        let config = SessionConfig { protocol, epoch, sequence, archive_place, vcache, shared, turns, time, outcomes };
        Ok(Life { registration, endpoint, admin, keeper, config })
    }
}

impl Life {
    /// Makes the keeper wait for a session before it acknowledges that tables were dropped.
    pub(crate) fn note_session(&self, usage: &Rc<Usage>) {
        self.keeper.iter().for_each(|keeper| keeper.note_session(usage));
    }

    /// Returns whether the client has heard which tables were dropped while it rested.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.keeper.as_ref().is_none_or(|keeper| keeper.is_awake())
    }

    /// Returns whether less than an eighth of the incarnation's transaction ids is left.
    fn has_few_ids(&self, cluster: &Cluster) -> bool {
        let left = self.config.protocol.sequence_max().saturating_sub(self.config.sequence.get());
        left < cluster.transaction_ids().min(self.config.protocol.sequence_max()) / 8
    }

    /// Returns the epoch of this incarnation.
    pub(crate) fn epoch(&self) -> u64 {
        self.config.epoch
    }

    /// Returns a transaction id of this incarnation, for locks that are taken outside of
    /// transactions. Returns `None` if no id is left.
    pub(crate) fn next_id(&self) -> Option<TransactionId> {
        TransactionId::even(self.registration.incarnation, &self.config.sequence)
    }

    fn guard(&self, session: &mut remora_txn::Session) {
        if let Some(keeper) = &self.keeper {
            keeper.guard(session);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("life", &self.life).finish_non_exhaustive()
    }
}
