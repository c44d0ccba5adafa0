//! The keeper: what a client does for the cluster beside its transactions. It renews the client's
//! lease, suspects clients whose leases have expired, and recovers them.
//!
//! The keeper is one coroutine on its own lane of the client, which runs as long as the worker
//! does. A worker that runs nothing holds no lock, so its lease does not run then. Its last
//! coroutine waits until all background rounds have arrived, and until no repair is under way. Then
//! it lets the client rest.
//!
//! A change of the configuration may wait for other machines. A [helper](remora_membership::Helper)
//! makes it then, so that the client's transactions go on. A client that begins to run waits for
//! its first renewal, and runs no transaction before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use async_channel::Receiver;
use remora_fabric::{Lane, Nanos, NodeSet, WORD_BYTES};
use remora_membership::{
    Configuration, ConfigurationError, Fenced, Helper, LeaseWatch, Membership, RecoveredClients, Standing,
};
use remora_node::{MemoryError, metadata, node};
use remora_record::TransactionId;
use remora_txn::recovery::{self, Verdict};
use remora_txn::{Lease, SharedLocks};

use crate::cluster::Cluster;
use crate::error::OpenError;
use crate::usage::Usage;

/// How often a client renews its lease, and checks the leases of other clients, within the length
/// of a lease. So two renewals may be late.
const LOOKS: Nanos = 3;
/// Pause of a sweep after every few records, in nanoseconds, so that transactions go first.
const SWEEP_PAUSE_NS: Nanos = 50_000;
/// Time after which the log entries of a repair have nearly always been applied, in nanoseconds.
const APPLY_PAUSE_NS: Nanos = 5_000_000;
/// Pause of an ending run between two checks whether the client may rest, in nanoseconds.
const REST_PAUSE_NS: Nanos = 5_000;

/// Pause between two checks whether there is a change of the catalog to acknowledge, in
/// nanoseconds. A client that sends nothing to the memory nodes checks less often
/// ([`IDLE_HEAR_PAUSE_NS`]).
const HEAR_PAUSE_NS: Nanos = 5_000_000;
const IDLE_HEAR_PAUSE_NS: Nanos = 200_000_000;

/// Pause between two checks whether the client has given up all uses of dropped tables, in
/// nanoseconds.
const LET_GO_PAUSE_NS: Nanos = 200_000;

/// Pause between two checks whether processes of clients have ended, in nanoseconds.
const ORPHANS_PAUSE_NS: Nanos = 10_000_000;
/// Number of checks within a lease for something that a client waits for.
const PAUSES: Nanos = 16;
/// A controller finds a lost memory node, and begins the next epoch, within this number of leases.
/// If it does not, transactions that need the node fail.
const LEASES_BEFORE_EPOCH: Nanos = 16;
/// Number of leases after which a client goes on as another incarnation, if only this client has
/// lost a memory node.
const LEASES_BEFORE_GIVING_UP: Nanos = 4;
/// Shortest wait for the next epoch, in nanoseconds. Even with short leases, it takes a while to
/// find a lost node and to decide pending transactions.
const EPOCH_NS: Nanos = 100_000_000;
/// Longest pause between two attempts at a recovery that fails, in leases. The second attempt comes
/// at the next check, the third after twice that time, and so on. A memory node that is down may
/// stay down.
const LEASES_BETWEEN_ATTEMPTS: Nanos = 8;

/// Tells when to try a step again that has failed.
#[derive(Debug)]
struct Patience {
    lease: Nanos,
    pause: Nanos,
    again_at: Nanos,
}

impl Patience {
    fn new(lease: Nanos) -> Patience {
        Patience { lease, pause: 0, again_at: 0 }
    }

    fn is_over(&self, now: Nanos) -> bool {
        now >= self.again_at
    }

    fn note(&mut self, now: Nanos, outcome: Result<(), RecoveryError>, what: &'static str) {
        match outcome {
            Ok(()) => self.pause = 0,
            Err(error) => {
                let longest = self.lease.saturating_mul(LEASES_BETWEEN_ATTEMPTS);
                self.pause = self.pause.saturating_mul(2).clamp(self.lease / LOOKS, longest);
                self.again_at = now.saturating_add(self.pause);
                let pause_ms = self.pause / 1_000_000;
                tracing::warn!(%error, pause_ms, "{what}");
            }
        }
    }
}

/// Waits until every round that a coroutine has posted is done, but at most `patience` nanoseconds.
/// Returns whether they are done.
pub(crate) async fn quiet(lane: &Lane, nodes: NodeSet, patience: Nanos) -> bool {
    let deadline = lane.now().saturating_add(patience);
    while lane.background() > 0 && lane.now() < deadline {
        if !(lane.may_hold_back() && ask_for_answers(lane, nodes).await) {
            lane.sleep(REST_PAUSE_NS).await;
        }
    }
    lane.background() == 0
}

/// Reads a word of each memory node, so that the nodes also send the answers that they hold back.
/// Returns false if a node cannot be reached.
async fn ask_for_answers(lane: &Lane, nodes: NodeSet) -> bool {
    let mut round = lane.round();
    for node in nodes.iter() {
        round.read(node::at(node, 0), WORD_BYTES);
    }
    lane.execute(round).await.is_ok()
}

/// The keeper of a client. The head of this module says what it does.
pub(crate) struct Keeper {
    cluster: Cluster,
    configuration: Arc<dyn Configuration>,
    client: u32,
    /// The epoch in which the client has joined.
    epoch: u64,
    /// The client's lease in nanoseconds. If `None`, no client watches this one, and it watches no
    /// other.
    lease: Option<Nanos>,
    held: Rc<Lease>,
    /// Whether memory nodes may be unreachable for some clients while they answer others.
    partitions: bool,
    /// Number of steps under way that must not be given up half-way, such as repairs.
    busy: Cell<u32>,
    resting: Cell<bool>,
    /// The next sequence number of this client's transaction ids.
    sequence: Rc<Cell<u64>>,
    /// The shared locks of this client's transactions, if it runs such.
    shared: Option<SharedLocks>,
    watch: RefCell<LeaseWatch>,
    /// Dead clients whose last locks have been freed, and whose rings have yet to be applied.
    swept: RefCell<BTreeSet<u32>>,
    /// When a renewal of this client's own was last acknowledged.
    renewed: Cell<Nanos>,
    /// Whether this client has repaired dead clients whose locks are still to be swept.
    repaired: Cell<bool>,
    /// Whether the keeper looks for clients whose process has ended even while its own client does
    /// nothing.
    is_watchful: bool,
    /// The waker that ends the keeper's doze.
    dozing: Cell<Option<Waker>>,
    /// Whether this incarnation has lost a memory node that other clients still reach, and makes
    /// room for another incarnation.
    given_up: Cell<bool>,
    /// Whether the client connects again if it was taken for dead.
    reconnects: bool,
    /// Whether the configuration knows that this client runs, and the client has heard since then
    /// which tables were dropped while it rested.
    awake: Cell<bool>,
    /// Whether the client is looking for locks of dead clients, by a catalog that it has read
    /// before.
    sweeping: Cell<bool>,
    /// What each of the client's sessions runs.
    sessions: RefCell<Vec<Rc<Usage>>>,
    /// Generation of the catalog up to which the client has acknowledged drops of tables.
    acknowledged: Cell<u64>,
}

/// A guard: the client looks for locks of dead clients until it is dropped.
struct Swept<'k>(&'k Cell<bool>);

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A guard: a step that must not be given up half-way is under way until it is dropped.
struct Step<'k>(&'k Cell<u32>);

impl<'k> Step<'k> {
    fn begin(busy: &'k Cell<u32>) -> Step<'k> {
        busy.set(busy.get() + 1);
        Step(busy)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Why a client cannot acknowledge a drop of tables now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DropError {
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Fenced(#[from] Fenced),
}

/// Why recovery has failed for now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl From<Fenced> for RecoveryError {
    fn from(fenced: Fenced) -> RecoveryError {
        ConfigurationError::from(fenced).into()
    }
}

impl Keeper {
    /// Makes a keeper for a client that has joined.
    pub(crate) fn new(
        cluster: &Cluster,
        configuration: Arc<dyn Configuration>,
        client: u32,
        epoch: u64,
        (sequence, shared): (Rc<Cell<u64>>, Option<SharedLocks>),
    ) -> Keeper {
        let (lease, partitions) = (cluster.lease_ns(), cluster.capabilities().partitions);
        let held = Rc::<Lease>::default();
        if lease.is_some() && partitions {
            // The lease does not run before the client has renewed it.
            held.extend(0);
        }
        Keeper {
            cluster: cluster.clone(),
            configuration,
            client,
            epoch,
            lease,
            held,
            partitions,
            busy: Cell::new(0),
            resting: Cell::new(true),
            sequence,
            shared,
            watch: RefCell::new(LeaseWatch::every(lease.unwrap_or(0) / LOOKS)),
            swept: RefCell::default(),
            renewed: Cell::default(),
            repaired: Cell::default(),
            is_watchful: false,
            dozing: Cell::default(),
            given_up: Cell::default(),
            reconnects: false,
            awake: Cell::default(),
            sweeping: Cell::default(),
            sessions: RefCell::default(),
            acknowledged: Cell::default(),
        }
    }

    /// Makes the keeper wait for a session before it acknowledges that tables were dropped.
    pub(crate) fn note_session(&self, usage: &Rc<Usage>) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|session| Rc::strong_count(session) > 1 && !Rc::ptr_eq(session, usage));
        sessions.push(usage.clone());
    }

    /// Returns whether the client may run transactions, because it has heard which tables were
    /// dropped while it rested. A client that has no lease does not rest.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.lease.is_none() || self.awake.get()
    }

    /// Hears of the drops of tables that came before the configuration knew that this client runs.
    /// Later drops wait for this client's acknowledgement.
    fn hear_of_drops(&self) {
        let heard = self.configuration.look(|membership| membership.dropped());
        let is_behind = |dropped: &u64| *dropped > self.cluster.followed();
        let followed = match heard {
            Ok(dropped) if is_behind(&dropped) => {
                self.cluster.follow_drops_blocking().map_err(|error| error.to_string())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        match followed {
            Ok(()) => self.awake.set(true),
            Err(error) => tracing::warn!(%error, "a client cannot find out yet which tables were dropped"),
        }
    }

    /// Returns the keeper with a setting: it looks for clients whose process has ended even while
    /// its own client does nothing.
    pub(crate) fn watchful(self) -> Keeper {
        Keeper { is_watchful: true, ..self }
    }

    /// Returns the keeper with a setting: whether its client connects again, as another
    /// incarnation, if it was taken for dead.
    pub(crate) fn reconnecting(self, reconnects: bool) -> Keeper {
        Keeper { reconnects, ..self }
    }

    /// Notes that a transaction begins, which may wait for a lock of a dead client. So the keeper
    /// looks for dead clients often from now on.
    #[inline]
    pub(crate) fn stir(&self) {
        if let Some(dozing) = self.dozing.take() {
            dozing.wake();
        }
    }

    /// Makes a session free the locks of dead clients that it meets, and stop when its own client
    /// is taken for dead.
    pub(crate) fn guard(&self, session: &mut remora_txn::Session) {
        session.watch_for(Rc::new(RecoveredClients::new(self.configuration.clone())), self.held.clone());
    }

    /// Returns whether this client has a lease.
    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns the length of the client's lease in nanoseconds, if it has one.
    pub(crate) fn lease(&self) -> Option<Nanos> {
        self.lease
    }

    /// Notes that the client begins to run.
    pub(crate) fn wake(&self, lane: &Lane) {
        if self.lease.is_some() {
            self.resting.set(false);
            self.renew(lane);
        }
    }

    /// Returns whether this client was taken for dead.
    pub(crate) fn is_over(&self) -> bool {
        self.held.is_over() && !self.given_up.get()
    }

    /// Ends this incarnation, because it has lost a memory node for a long time. If other clients
    /// had lost the node, too, the cluster would have gone on without it by now.
    pub(crate) fn give_up(&self) {
        if !self.held.is_over() && !self.given_up.replace(true) {
            tracing::warn!(
                client = self.client,
                "a memory node is out of reach of this client alone: it connects again"
            );
            self.held.end();
        }
    }

    /// Notes that another incarnation has taken this one's place. This one begins nothing any more,
    /// and its lease expires.
    pub(crate) fn retire(&self) {
        tracing::info!(
            client = self.client,
            "a client has used most of its transaction ids, and goes on as another one"
        );
        self.held.end();
    }

    /// Returns whether the keeper is in the middle of steps that must not be given up half-way.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get() > 0
    }

    /// Returns whether this incarnation has ended, with its epoch or by itself, and another one may
    /// follow.
    pub(crate) fn outlived(&self) -> bool {
        self.held.is_over() && self.may_outlive()
    }

    /// Returns whether another incarnation may follow this one. This is so even if the end of this
    /// incarnation is not known here yet: while the cluster has a controller and the client holds
    /// its lease.
    pub(crate) fn may_outlive(&self) -> bool {
        if self.reconnects {
            return true;
        }
        let ends = |membership: &Membership| {
            self.given_up.get()
                || membership.is_changing()
                || membership.epoch() > self.epoch
                || membership.has_controller() && !self.held.is_over()
        };
        self.configuration.look(ends).unwrap_or(false)
    }

    /// Returns how long to wait for another epoch, in nanoseconds.
    pub(crate) fn patience(&self) -> Option<Nanos> {
        self.lease.map(|lease| lease.saturating_mul(LEASES_BEFORE_EPOCH).max(EPOCH_NS))
    }

    /// Returns how long to wait for another epoch before this client takes itself for the only one
    /// that has lost a memory node, in nanoseconds.
    pub(crate) fn patience_with_itself(&self) -> Option<Nanos> {
        self.patience().map(|patience| patience / LEASES_BEFORE_EPOCH * LEASES_BEFORE_GIVING_UP)
    }

    /// Tells the configuration that this client has stopped, and waits until the next epoch has
    /// begun. If the incarnation has given up by itself, or was taken for dead in its epoch, it
    /// only tells the configuration that.
    pub(crate) async fn until_next_epoch(&self, lane: &Lane) {
        let client = self.client;
        let is_same = |membership: &Membership| membership.epoch() == self.epoch && !membership.is_changing();
        if self.given_up.get() || self.reconnects && self.configuration.look(is_same).unwrap_or(false) {
            return self.note(self.change(move |membership| membership.give_up(client)).await);
        }
        if let Err(error) = self.change(move |membership| membership.stopped(client)).await {
            tracing::warn!(%error, "the configuration could not be told that a client has stopped");
        }
        while !self.configuration.look(|membership| membership.epoch() > self.epoch).unwrap_or(false) {
            self.pause(lane).await;
        }
    }

    /// Sleeps for a time that is short compared with a lease.
    pub(crate) async fn pause(&self, lane: &Lane) {
        lane.sleep(self.lease.unwrap_or(crate::cluster::LEASE.as_nanos() as Nanos) / PAUSES).await;
    }

    /// Waits until no step is under way that must not be given up half-way.
    pub(crate) async fn finish_steps(&self, lane: &Lane) {
        while self.busy.get() > 0 {
            lane.sleep(REST_PAUSE_NS).await;
        }
    }

    /// Lets the client rest until it runs again. It has nothing under way, and has finished its
    /// steps.
    pub(crate) async fn rest(&self) {
        if !self.resting.replace(true) {
            self.awake.set(false);
            if self.partitions {
                // An epoch does not wait for the lease of a client that rests.
                self.held.extend(0);
            }
            let client = self.client;
            self.note(self.change(move |membership| membership.rest(client)).await);
        }
    }

    /// Ends the client without leaving. Its lease expires, if it has one.
    pub(crate) fn abandon(&self, lane: &Lane) {
        if self.lease.is_some() {
            self.renew(lane);
        }
    }

    /// Notes in the configuration that the client has given its slot back.
    pub(crate) fn leave(&self) {
        let client = self.client;
        self.note(self.change_blocking(move |membership| membership.leave(client)));
    }

    fn renew(&self, lane: &Lane) {
        let (asked, client) = (lane.now(), self.client);
        let renewed = self.change_blocking(move |membership| membership.renew(client));
        self.note_renewal(lane, asked, renewed);
    }

    /// Notes a renewal. The lease runs from the time when the renewal was asked for, because no
    /// other client can have begun to count it earlier.
    fn note_renewal(&self, lane: &Lane, asked: Nanos, outcome: Result<Result<(), Fenced>, ConfigurationError>) {
        if let Ok(Ok(())) = outcome {
            self.renewed.set(lane.now());
            if let (Some(lease), true, false) = (self.lease, self.partitions, self.resting.get()) {
                self.held.extend(asked.saturating_add(lease));
            }
            if !self.resting.get() && !self.awake.get() {
                self.hear_of_drops();
            }
        }
        self.note(outcome);
    }

    /// Makes a change of the configuration while the client's transactions go on. Changes of one
    /// client are made in the order in which they are begun, even if the callers do not wait for
    /// them any more.
    async fn change<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Membership) -> T + Send + 'static,
    ) -> Result<T, ConfigurationError> {
        match self.configuration.helper() {
            Some(helper) => changed_by(helper, change).recv().await.unwrap_or(Err(ConfigurationError::Closed)),
            None => self.configuration.change(&mut change),
        }
    }

    /// Makes a change of the configuration, as [`change`](Keeper::change) does, but blocks the
    /// thread. It is for a client that has nothing else to do.
    fn change_blocking<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Membership) -> T + Send + 'static,
    ) -> Result<T, ConfigurationError> {
        match self.configuration.helper() {
            Some(helper) => changed_by(helper, change).recv_blocking().unwrap_or(Err(ConfigurationError::Closed)),
            None => self.configuration.change(&mut change),
        }
    }

    /// Waits until reads of the configuration are no older than this call.
    pub(crate) async fn refresh(&self) -> Result<(), ConfigurationError> {
        let Some(helper) = self.configuration.helper() else { return self.configuration.refresh() };
        let (tell, told) = async_channel::bounded(1);
        helper.hand_over(Box::new(move |configuration| drop(tell.try_send(configuration.refresh()))));
        told.recv().await.unwrap_or(Err(ConfigurationError::Closed))
    }

    fn note(&self, outcome: Result<Result<(), Fenced>, ConfigurationError>) {
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(_)) => self.held.end(),
            Err(error) => tracing::warn!(%error, "the configuration could not be told of a client"),
        }
    }

    /// Renews the lease, watches the leases of other clients, recovers dead clients, and
    /// acknowledges changes of the catalog, for as long as the future is polled.
    pub(crate) async fn attend(&self, lane: &Lane) {
        let Some(lease) = self.lease else { return };
        let (mut renew, mut judge, mut sweep, mut acknowledge) = (
            pin!(self.keep_renewing(lane, lease)),
            pin!(self.keep_judging(lane, lease)),
            pin!(self.keep_sweeping(lane, lease)),
            pin!(self.keep_acknowledging(lane, lease)),
        );
        // All four tasks share one lane. So every task is polled, and checks by itself whether it
        // is ready.
        poll_fn(|context| {
            let _ = renew.as_mut().poll(context);
            let _ = judge.as_mut().poll(context);
            let _ = sweep.as_mut().poll(context);
            let _ = acknowledge.as_mut().poll(context);
            Poll::<()>::Pending
        })
        .await;
    }

    /// Sleeps until leases are to be checked again, or until the process of some client has ended.
    /// Returns the clients whose process has ended. A client that sends nothing to the memory nodes
    /// waits for no other client, and looks again when it stirs.
    async fn orphans_until(&self, lane: &Lane, until: Nanos) -> Vec<u32> {
        if self.configuration.process().is_none() {
            lane.sleep(until.saturating_sub(lane.now())).await;
            return Vec::new();
        }
        loop {
            let rounds = lane.endpoint().rounds();
            lane.sleep(ORPHANS_PAUSE_NS.min(until.saturating_sub(lane.now()))).await;
            let orphans = self.configuration.orphans();
            if !orphans.is_empty() || lane.now() >= until {
                return orphans;
            }
            if lane.endpoint().rounds() == rounds && !self.is_watchful {
                self.doze(lane, until).await;
            }
        }
    }

    /// Sleeps until `until`, or until the client stirs.
    async fn doze(&self, lane: &Lane, until: Nanos) {
        let mut sleep = pin!(lane.sleep(until.saturating_sub(lane.now())));
        let mut dozes = false;
        poll_fn(|context| {
            let stirred = self.dozing.take().is_none();
            if std::mem::replace(&mut dozes, true) && stirred || sleep.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            self.dozing.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    async fn keep_renewing(&self, lane: &Lane, lease: Nanos) {
        let mut in_doubt_since = None;
        loop {
            lane.sleep(lease / LOOKS).await;
            self.unless_it_is_over().await;
            if self.is_in_doubt(lane) {
                let since = *in_doubt_since.get_or_insert_with(|| lane.now());
                let patience = self.patience_with_itself().unwrap_or(Nanos::MAX);
                if lane.now() >= since.saturating_add(patience) && self.may_outlive() {
                    self.give_up();
                    continue;
                }
            }
            let (asked, client) = (lane.now(), self.client);
            let renewed = self.change(move |membership| membership.renew(client)).await;
            self.note_renewal(lane, asked, renewed);
        }
    }

    /// Returns whether this client runs transactions, and one of them may have left locks because
    /// the answer to its commit or to a background round was lost. Only the recovery of this
    /// incarnation frees these locks, and other clients wait for them. So the incarnation makes
    /// room for another one, even if none of its transactions needs the lost node again.
    fn is_in_doubt(&self, lane: &Lane) -> bool {
        self.shared.is_some() && (self.held.is_in_doubt() || lane.endpoint().has_failed())
    }

    /// Frees shared locks that dropped transactions may have left, and looks for changes of the
    /// catalog that are to be acknowledged. Other clients wait for both, also while this client
    /// begins no transaction.
    async fn keep_acknowledging(&self, lane: &Lane, lease: Nanos) {
        let mut rounds = 0;
        loop {
            let is_idle = std::mem::replace(&mut rounds, lane.endpoint().rounds()) == rounds;
            let pause = if is_idle { IDLE_HEAR_PAUSE_NS } else { HEAR_PAUSE_NS };
            lane.sleep(pause.min(lease / LOOKS)).await;
            self.unless_it_is_over().await;
            if let Some(shared) = &self.shared
                && let Err(error) = shared.settle(lane).await
            {
                tracing::debug!(%error, "locks that dropped transactions have left are looked for again");
            }
            if let Err(error) = self.acknowledge_drops(lane).await {
                tracing::warn!(%error, "a client cannot acknowledge yet that tables were dropped");
            }
        }
    }

    /// Gives up tables that were dropped, and acknowledges that when the client has nothing under
    /// way that may touch them. `dropping` says why.
    async fn acknowledge_drops(&self, lane: &Lane) -> Result<(), DropError> {
        let dropped = self.configuration.look(|membership| membership.dropped())?;
        if dropped <= self.acknowledged.get() {
            return Ok(());
        }
        if dropped > self.cluster.followed() {
            self.cluster.follow_drops(lane).await?;
        }
        let forgotten = self.cluster.forgotten();
        let is_past = |session: &Rc<Usage>| session.is_past(forgotten, lane.endpoint());
        while self.sweeping.get() || !self.sessions.borrow().iter().all(is_past) {
            lane.sleep(LET_GO_PAUSE_NS).await;
        }
        // Rounds to a node that the client has lost may still arrive there. So the client
        // acknowledges only if it reaches all nodes.
        let mut round = lane.round();
        for node in self.cluster.live_nodes().iter() {
            round.read(node::at(node, 0), WORD_BYTES);
        }
        lane.execute(round).await.map_err(MemoryError::from)?;
        let client = self.client;
        self.change(move |membership| membership.acknowledge_drop(client, dropped)).await??;
        self.acknowledged.set(dropped);
        Ok(())
    }

    async fn keep_judging(&self, lane: &Lane, lease: Nanos) {
        let mut patience = Patience::new(lease);
        let mut look_at = lane.now() + lease / LOOKS;
        loop {
            let orphans = self.orphans_until(lane, look_at).await;
            self.unless_it_is_over().await;
            let now = lane.now();
            let expired = if now >= look_at {
                look_at = now + lease / LOOKS;
                self.expired(now, lease)
            } else {
                Vec::new()
            };
            let me = self.client;
            for (client, renewals) in expired.into_iter().filter(|(client, _)| *client != me) {
                tracing::warn!(client, by = me, "the lease of a client has run out");
                self.note(self.change(move |membership| membership.suspect_silent(client, renewals, me)).await);
            }
            for client in orphans.into_iter().filter(|client| *client != me) {
                tracing::warn!(client, by = me, "the process of a client has ended");
                self.note(self.change(move |membership| membership.suspect(client, me)).await);
            }
            if patience.is_over(lane.now()) {
                patience.note(lane.now(), self.repair(lane).await, "recovery failed, and is tried again");
            }
        }
    }

    /// Returns the clients whose leases have expired, and how often each of them had renewed its
    /// lease.
    fn expired(&self, now: Nanos, lease: Nanos) -> Vec<(u32, u64)> {
        let mut watch = self.watch.borrow_mut();
        // What keeps this client from renewing its lease may keep other clients, too.
        if now.saturating_sub(self.renewed.get()) > 2 * (lease / LOOKS) {
            watch.begin_anew();
            return Vec::new();
        }
        self.configuration.look(|membership| watch.expired(membership, now)).unwrap_or_default()
    }

    async fn keep_sweeping(&self, lane: &Lane, lease: Nanos) {
        let mut patience = Patience::new(lease);
        loop {
            self.until_there_is_to_sweep(lane, lane.now() + lease / LOOKS).await;
            self.unless_it_is_over().await;
            if patience.is_over(lane.now()) {
                let swept = self.sweep(lane, SWEEP_PAUSE_NS).await;
                patience.note(lane.now(), swept, "what a dead client has left is looked for again");
            }
        }
    }

    /// Sleeps until `until`. If the configuration finds dead clients at once, sleeps only until
    /// this client has repaired one of them.
    async fn until_there_is_to_sweep(&self, lane: &Lane, until: Nanos) {
        let at_once = self.configuration.process().is_some();
        let mut sleep = pin!(lane.sleep(until.saturating_sub(lane.now())));
        // The repair runs on this lane as well, so this future sees its end at once.
        poll_fn(|context| match at_once && self.repaired.take() {
            true => Poll::Ready(()),
            false => sleep.as_mut().poll(context),
        })
        .await;
    }

    async fn unless_it_is_over(&self) {
        if self.held.is_over() || self.resting.get() {
            pending::<()>().await;
        }
    }

    fn charges(&self, wanted: impl Fn(Standing) -> bool) -> Result<Vec<u32>, ConfigurationError> {
        self.configuration.look(|membership| {
            // While the epoch changes, the conductor decides all dead clients.
            let charges = membership.charges(self.client).filter(|_| !membership.is_changing());
            charges.filter(|charge| membership.standing(*charge).is_some_and(&wanted)).collect()
        })
    }

    /// Decides and repairs every transaction that this client's charges had logged. Its charges are
    /// the dead clients that it has to recover.
    async fn repair(&self, lane: &Lane) -> Result<(), RecoveryError> {
        let is_nobodys = |(_, standing)| standing == Standing::Suspected { by: 0 };
        let me = self.client;
        if self.configuration.look(|membership| membership.clients().any(is_nobodys))? {
            self.change(move |membership| membership.adopt(me)).await?;
        }
        let dead = self.charges(|standing| matches!(standing, Standing::Suspected { .. }))?;
        if dead.is_empty() {
            return Ok(());
        }
        let repaired = {
            let _step = Step::begin(&self.busy);
            self.repair_all(lane, &dead).await
        };
        self.repaired.set(repaired.is_ok());
        repaired
    }

    async fn repair_all(&self, lane: &Lane, dead: &[u32]) -> Result<(), RecoveryError> {
        let me = self.client;
        let repaired = recovery::repair(self.cluster.fabric(), lane, self.cluster.live_nodes(), dead, &|told| {
            self.cluster.tell(told)
        })
        .await?;
        for (client, verdicts) in repaired {
            // The nodes' CPUs must learn of a change of the catalog that clients may see already.
            metadata::end_change_of(lane, self.cluster.live_nodes(), me, client).await?;
            self.change(move |membership| membership.recovered(client, me, verdicts.clone())).await??;
        }
        Ok(())
    }

    /// Frees the last locks of this client's charges, and gives back their slots for new clients.
    async fn sweep(&self, lane: &Lane, pause: Nanos) -> Result<(), RecoveryError> {
        let me = self.client;
        let recovered = |standing| matches!(standing, Standing::Recovered { .. });
        if self.configuration.look(|membership| membership.clients().any(|(_, standing)| recovered(standing)))? {
            self.change(move |membership| membership.adopt(me)).await?;
        }
        let dead = self.charges(recovered)?;
        let unswept: Vec<u32> = dead.iter().copied().filter(|client| !self.swept.borrow().contains(client)).collect();
        if !unswept.is_empty() {
            let step = || Step::begin(&self.busy);
            self.sweeping.set(true);
            let _swept = Swept(&self.sweeping);
            recovery::sweep(lane, self.cluster.live_nodes(), &unswept, pause, || self.next_id(), step).await?;
            self.swept.borrow_mut().extend(&unswept);
        }
        for client in dead {
            let nodes = self.cluster.live_nodes();
            let mut given_back = recovery::give_back(lane, nodes, client).await?;
            if !given_back && pause > 0 {
                // Memory nodes apply what is in the rings as soon as they see it.
                lane.sleep(APPLY_PAUSE_NS).await;
                given_back = recovery::give_back(lane, nodes, client).await?;
            }
            if given_back {
                self.change(move |membership| membership.forget(client, me)).await??;
                self.swept.borrow_mut().remove(&client);
                tracing::info!(client, "nothing is left of a dead client");
            }
        }
        Ok(())
    }

    /// Returns whether no step is under way that must not be given up half-way.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.get() == 0
    }

    fn next_id(&self) -> Option<TransactionId> {
        TransactionId::even(self.client, &self.sequence)
    }

    /// Takes a client for dead and recovers it, together with all other charges of this client.
    pub(crate) async fn recover(&self, lane: &Lane, client: u32) -> Result<(), RecoveryError> {
        let me = self.client;
        self.change(move |membership| membership.suspect(client, me)).await??;
        self.repair(lane).await?;
        self.sweep(lane, 0).await
    }

    /// Returns the verdict that the configuration has of a transaction. Returns `None` if the
    /// transaction has to be looked up in the rings.
    pub(crate) fn verdict(&self, id: TransactionId) -> Result<Option<Verdict>, ConfigurationError> {
        self.configuration.look(|membership| match membership.standing(id.owner()) {
            Some(Standing::Suspected { .. }) => Some(Verdict::Undecided),
            _ => membership.verdicts(id.owner()).map(|verdicts| verdicts.of(id)),
        })
    }
}

/// Makes a helper make a change, and returns the channel by which the result comes.
fn changed_by<T: Send + 'static>(
    helper: &Helper,
    change: impl FnMut(&mut Membership) -> T + Send + 'static,
) -> Receiver<Result<T, ConfigurationError>> {
    let (tell, told) = async_channel::bounded(1);
    // The task that waited for the result may have been dropped.
    helper.hand_over(Box::new(move |configuration| drop(tell.try_send(configuration.change(change)))));
    told
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("client", &self.client).field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_stirs_ends_the_doze() {
        const HOUR: Nanos = 3_600_000_000_000;
        let options = crate::cluster::ClusterOptions { node_bytes: 4 << 20, ..Default::default() };
        let cluster = options.open().unwrap();
        let configuration = cluster.configuration().expect("it has one in memory").clone();
        let keeper = Keeper::new(&cluster, configuration, 1, cluster.epoch(), (Rc::default(), None));
        let worker = remora_fabric::Worker::new();
        let endpoint = worker.connect(cluster.fabric(), remora_fabric::ClientId(1)).unwrap();
        let [first, second] = [1, 2].map(|seed| worker.lane(&endpoint, seed).unwrap());
        let (keeper, began) = (&keeper, first.now());
        let doze = async |lane: &Lane, dozes: bool| match dozes {
            true => keeper.doze(lane, lane.now() + HOUR).await,
            false => {
                // This also holds if the task has been polled in between for another reason.
                keeper.stir();
                lane.sleep(1_000_000).await;
                keeper.stir();
            }
        };
        worker.run([(first.id(), doze(&first, true)), (second.id(), doze(&second, false))]);
        assert!(first.now() - began < HOUR);
        // Without a stir, the doze ends by itself.
        worker.run([(first.id(), keeper.doze(&first, first.now() + 1_000_000))]);
    }

    #[test]
    fn what_fails_is_tried_again_ever_more_rarely() {
        const LEASE: Nanos = 300;
        let mut patience = Patience::new(LEASE);
        let fails = || Err(Fenced(1).into());
        let (mut now, mut pauses) = (1_000, Vec::new());
        for _ in 0..8 {
            assert!(patience.is_over(now));
            patience.note(now, fails(), "a node is down");
            let pause = (0..).find(|pause| patience.is_over(now + pause)).unwrap();
            pauses.push(pause);
            now += pause;
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 2_400, 2_400, 2_400]);
        patience.note(now, Ok(()), "");
        patience.note(now, fails(), "down again");
        assert!(!patience.is_over(now + 99) && patience.is_over(now + 100));
    }
}
