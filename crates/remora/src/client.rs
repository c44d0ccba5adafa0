//! A client of a worker, through all of its incarnations.
//!
//! An incarnation ends with its epoch: when a memory node is lost, everybody's access is taken
//! away, and what they had begun is decided ([`remora_txn::recovery::fail_over`]). The client's
//! keeper, which is the coroutine that notices, connects it again, as a new incarnation; each of
//! its sessions moves there with its next transaction.
//!
//! An incarnation can also come to the end of its transaction ids. Long before, the keeper connects
//! the client as another one, while transactions go on by the former one. When the new one is
//! there, the former one begins no attempt any more, and ends like a client that has gone: with its
//! lease, when what it had under way has long been done.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use remora_fabric::{ClientId, Endpoint, Lane, NodeId, Outlined, outline};
use remora_membership::ConfigurationError;
use remora_node::{MemoryError, Registration, identity};
use remora_record::TransactionId;
use remora_txn::{SessionConfig, SharedLocks};

use crate::cluster::{Announced, Cluster, in_one_epoch};
use crate::error::OpenError;
use crate::keeper::Keeper;
use crate::usage::Usage;

/// One incarnation.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) registration: Registration,
    pub(crate) endpoint: Rc<Endpoint>,
    /// For what is not a transaction: the lease, recovery, leaving.
    pub(crate) admin: Lane,
    /// Where there is a configuration.
    pub(crate) keeper: Option<Rc<Keeper>>,
    config: SessionConfig,
}

/// See the [module](self).
pub(crate) struct Client {
    cluster: Cluster,
    worker: remora_fabric::Worker,
    coroutines: usize,
    yields: bool,
    life: RefCell<Rc<Life>>,
}

/// A lane of an endpoint: the client's sessions', and one more for its keeper.
pub(crate) type Lanes<'l> = dyn FnMut(&Rc<Endpoint>) -> Lane + 'l;

impl Client {
    /// Connects a client with `coroutines` coroutines. `lane` makes the lane of its keeper.
    pub(crate) fn connect(
        cluster: &Cluster,
        worker: &remora_fabric::Worker,
        coroutines: usize,
        yields: bool,
        lane: &mut Lanes<'_>,
    ) -> Result<Client, OpenError> {
        let life = in_one_epoch(cluster.configuration(), None, || {
            cluster.follow_epoch()?;
            let announce = async |guest: &Lane| cluster.announce(guest).await;
            let announced = remora_fabric::block_on(cluster.fabric(), ClientId(0), announce)??;
            let arrived = Arrived::connect(cluster, worker, announced, yields, lane)?;
            let mut lives = worker.run([(arrived.admin.id(), arrived.begin(cluster, coroutines))]);
            lives.pop().expect("a task that has run has a result")
        })?;
        let life = RefCell::new(Rc::new(life));
        Ok(Client { cluster: cluster.clone(), worker: worker.clone(), coroutines, yields, life })
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
        let life = RefCell::new(Rc::new(arrived.begin(cluster, 1).await?));
        Ok(Client { cluster: cluster.clone(), worker: worker.clone(), coroutines: 1, yields: false, life })
    }

    /// The client's current incarnation.
    pub(crate) fn life(&self) -> Rc<Life> {
        self.life.borrow().clone()
    }

    /// Whether an incarnation is the last one so far.
    pub(crate) fn lives(&self, life: &Rc<Life>) -> bool {
        Rc::ptr_eq(&*self.life.borrow(), life)
    }

    /// Has a session of a former incarnation go on as the last one, with all tables where they are
    /// now; that one.
    pub(crate) fn adopt(&self, session: &mut remora_txn::Session, ring: usize) -> Rc<Life> {
        let life = self.life();
        session.reincarnate(&life.endpoint, &life.registration, ring, life.config.clone());
        self.settle(session, &life);
        life
    }

    /// A session of an incarnation, on a lane that is numbered so among the client's.
    pub(crate) fn session(&self, life: &Life, lane: Lane, ring: usize) -> remora_txn::Session {
        let mut session = remora_txn::Session::new(lane, &life.registration, ring, life.config.clone());
        self.settle(&mut session, life);
        session
    }

    /// Tables that programs have opened in another epoch are elsewhere now: a session must know
    /// before it is told of them.
    fn settle(&self, session: &mut remora_txn::Session, life: &Life) {
        let protocol = self.cluster.protocol();
        let tables = self.cluster.tables().into_iter();
        let accepted = tables.filter(|table| protocol.accepts(table.entry().spec.discipline));
        accepted.for_each(|table| session.register(table));
        life.guard(session);
    }

    /// The cluster that it is a client of.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The memory node that says which clients there are.
    pub(crate) fn leader(&self) -> NodeId {
        self.cluster.live_nodes().leader()
    }

    /// Keeps the lease, watches over the others', and has it live on in the next epoch, or when its
    /// transaction ids come to an end, for as long as it is polled.
    #[inline(never)]
    pub(crate) fn attend(&self) -> Outlined<impl Future<Output = ()>> {
        outline(async move {
            loop {
                let life = self.life();
                let Some(keeper) = &life.keeper else { return pending().await };
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
                    // The lease of the one that has few ids is kept until the next one is there.
                    let mut coming = pin!(self.reincarnate(&life));
                    let succeeded = poll_fn(|context| {
                        let _ = attending.as_mut().poll(context);
                        if keeper.outlived() {
                            return Poll::Ready(None);
                        }
                        coming.as_mut().poll(context).map(Some)
                    });
                    let succeeded = succeeded.await;
                    let idle = poll_fn(|context| {
                        let _ = attending.as_mut().poll(context);
                        if keeper.is_busy() { Poll::Pending } else { Poll::Ready(()) }
                    });
                    idle.await;
                    succeeded
                };
                match succeeded {
                    Some(Ok(())) => {
                        keeper.retire();
                        continue;
                    }
                    Some(Err(error)) => {
                        tracing::warn!(%error, "a client that has few transaction ids left cannot come as another one yet");
                        keeper.pause(&life.admin).await;
                        continue;
                    }
                    None => {}
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
        let arrived = Arrived::connect(&self.cluster, &self.worker, announced, self.yields, lane)?;
        let life = arrived.begin(&self.cluster, self.coroutines).await?;
        if let Some(keeper) = &life.keeper {
            keeper.wake(&life.admin);
        }
        tracing::info!(client = life.registration.incarnation, "a client goes on as a new incarnation");
        self.life.replace(Rc::new(life));
        Ok(())
    }
}

/// A client that is connected, and has nothing at the memory nodes yet.
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

    /// Registers the client, by its own connection: once it is revoked, it takes nothing any more.
    async fn begin(self, cluster: &Cluster, coroutines: usize) -> Result<Life, OpenError> {
        let Arrived { announced: Announced { incarnation, epoch, nodes }, endpoint, admin } = self;
        // They have been reached anew: one may have come back with nothing meanwhile.
        identity::remembered(&admin, nodes).await?;
        let registration = Registration::connect_as(&admin, nodes, incarnation, coroutines).await?;
        // A client that drops tables from now on sees the client's slot, and waits for it.
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
        let sequence = Rc::new(Cell::new(TransactionId::SEQUENCE_MAX - cluster.transaction_ids() + 1));
        let (protocol, vcache) = (cluster.protocol(), cluster.own_version_cache());
        let shared = SharedLocks::new(&registration, epoch);
        let keeper = cluster.configuration().cloned().map(|configuration| {
            let own = (sequence.clone(), Some(shared.clone()));
            Rc::new(Keeper::new(cluster, configuration, incarnation, epoch, own))
        });
        let config = SessionConfig { protocol, epoch, sequence, vcache, shared };
        Ok(Life { registration, endpoint, admin, keeper, config })
    }
}

impl Life {
    /// Has its keeper look at what a session runs, before it acknowledges that tables were dropped.
    pub(crate) fn note_session(&self, usage: &Rc<Usage>) {
        self.keeper.iter().for_each(|keeper| keeper.note_session(usage));
    }

    /// Whether it has heard which tables were dropped while it rested.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.keeper.as_ref().is_none_or(|keeper| keeper.is_awake())
    }

    /// Whether its transaction ids come to an end: less than an eighth of them is left.
    fn has_few_ids(&self, cluster: &Cluster) -> bool {
        let left = TransactionId::SEQUENCE_MAX.saturating_sub(self.config.sequence.get());
        left < cluster.transaction_ids() / 8
    }

    /// The epoch that it is of.
    pub(crate) fn epoch(&self) -> u64 {
        self.config.epoch
    }

    /// An id of its own, of no transaction.
    pub(crate) fn next_id(&self) -> Option<TransactionId> {
        let sequence = self.config.sequence.get();
        self.config.sequence.set(sequence + 1);
        TransactionId::new(self.registration.incarnation, sequence)
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
