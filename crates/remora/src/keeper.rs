//! What a client does for the cluster beside its transactions: it renews its lease, suspects those
//! whose leases have run out, and recovers them.
//!
//! All of it is one coroutine on a lane of the client's own, which runs as long as the worker does.
//! A worker that runs nothing holds no lock, so its lease does not run then: its last coroutine
//! waits until what was posted in the background has arrived, and until no repair is under way, and
//! lets the client rest.
//!
//! A change of the configuration may wait for other machines. A [helper](remora_membership::Helper)
//! makes it then, so that the client's transactions go on. A client that begins to run waits
//! for its first renewal, and runs nothing before.

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

/// How many times in its length a lease is renewed, and other clients' leases are checked. Two
/// renewals may be late.
const LOOKS: Nanos = 3;
/// Pause of a sweep after every few records: transactions go first.
const SWEEP_PAUSE_NS: Nanos = 50_000;
/// After this time, the log entries of a repair have nearly always been applied.
const APPLY_PAUSE_NS: Nanos = 5_000_000;
/// How often an ending run looks whether it may rest.
const REST_PAUSE_NS: Nanos = 5_000;

/// How often a client looks whether there is a change of the catalog to be acknowledged. A client
/// that asks the memory nodes for nothing looks less often.
const HEAR_PAUSE_NS: Nanos = 5_000_000;
const IDLE_HEAR_PAUSE_NS: Nanos = 200_000_000;

/// How often a client that lets go of dropped tables looks whether it has.
const LET_GO_PAUSE_NS: Nanos = 200_000;

/// How often it is asked whether processes have ended.
const ORPHANS_PAUSE_NS: Nanos = 10_000_000;
/// How many times in a lease a client looks for something that it waits for.
const PAUSES: Nanos = 16;
/// A controller finds a lost memory node, and begins the next epoch, within this number of leases.
/// If it does not, transactions that need the node fail.
const LEASES_BEFORE_EPOCH: Nanos = 16;
/// After this number of leases, a client that alone has lost a memory node goes on as another
/// incarnation.
const LEASES_BEFORE_GIVING_UP: Nanos = 4;
/// Minimum wait for the next epoch. However short leases are, finding a lost node and deciding
/// pending transactions takes a while.
const EPOCH_NS: Nanos = 100_000_000;
/// Recovery that fails is tried again at the next look, then after twice that time, and so on. The
/// longest pause is this number of leases: a memory node that is down may stay down.
const LEASES_BETWEEN_ATTEMPTS: Nanos = 8;

/// When to try again what has failed.
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

/// Waits until every round that a coroutine has posted is done, but no longer than its patience.
/// Returns whether they are.
pub(crate) async fn quiet(lane: &Lane, nodes: NodeSet, patience: Nanos) -> bool {
    let deadline = lane.now().saturating_add(patience);
    while lane.background() > 0 && lane.now() < deadline {
        if !(lane.may_hold_back() && ask_for_answers(lane, nodes).await) {
            lane.sleep(REST_PAUSE_NS).await;
        }
    }
    lane.background() == 0
}

/// Reads a word of each memory node, so that the nodes send with it what they hold back. Returns
/// false if a node cannot be reached.
async fn ask_for_answers(lane: &Lane, nodes: NodeSet) -> bool {
    let mut round = lane.round();
    for node in nodes.iter() {
        round.read(node::at(node, 0), WORD_BYTES);
    }
    lane.execute(round).await.is_ok()
}

/// See the [module](self).
pub(crate) struct Keeper {
    cluster: Cluster,
    configuration: Arc<dyn Configuration>,
    client: u32,
    /// The epoch that it has joined in.
    epoch: u64,
    /// `None`: nobody watches this client, and it watches nobody.
    lease: Option<Nanos>,
    held: Rc<Lease>,
    /// Memory nodes may be out of reach of some clients and answer others.
    partitions: bool,
    /// Repairs under way, and other steps that must not be given up half-way.
    busy: Cell<u32>,
    resting: Cell<bool>,
    /// Ids of this client's transactions.
    sequence: Rc<Cell<u64>>,
    /// The shared locks of this client's transactions, if it runs such.
    shared: Option<SharedLocks>,
    watch: RefCell<LeaseWatch>,
    /// Dead clients whose last locks have been freed, and whose rings have yet to be applied.
    swept: RefCell<BTreeSet<u32>>,
    /// When a renewal of this client's own was last acknowledged.
    renewed: Cell<Nanos>,
    /// This client has repaired dead clients, whose locks are to be swept.
    repaired: Cell<bool>,
    /// It looks for orphans also while its client does nothing.
    is_watchful: bool,
    /// What ends its doze.
    dozing: Cell<Option<Waker>>,
    /// This incarnation has lost a memory node that others still reach, and makes room for another
    /// one.
    given_up: Cell<bool>,
    /// The configuration knows that this client runs, and the client has heard since then which
    /// tables were dropped while it rested.
    awake: Cell<bool>,
    /// It looks for locks of dead clients, by a catalog that it has read before.
    sweeping: Cell<bool>,
    /// What the client's sessions run.
    sessions: RefCell<Vec<Rc<Usage>>>,
    /// The drops of tables up to this generation of the catalog are acknowledged.
    acknowledged: Cell<u64>,
}

/// A client looks for locks of dead clients until this is dropped.
struct Swept<'k>(&'k Cell<bool>);

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A step that must not be given up half-way, until this is dropped.
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

/// A drop of tables cannot be acknowledged, for now.
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

/// Recovery has failed, for now.
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
    /// A keeper for a client that has joined.
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
            // It does not run before it has been renewed.
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
            awake: Cell::default(),
            sweeping: Cell::default(),
            sessions: RefCell::default(),
            acknowledged: Cell::default(),
        }
    }

    /// Has the keeper wait for a session before it acknowledges that tables were dropped.
    pub(crate) fn note_session(&self, usage: &Rc<Usage>) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|session| Rc::strong_count(session) > 1 && !Rc::ptr_eq(session, usage));
        sessions.push(usage.clone());
    }

    /// Whether the client may run transactions: it has heard which tables were dropped while it
    /// rested. A client that has no lease does not rest.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.lease.is_none() || self.awake.get()
    }

    /// Hears of the drops of tables that came before the configuration knew that this client runs.
    /// Later drops wait for its acknowledgement.
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

    /// Looks for clients whose process has ended also while its own client does nothing.
    pub(crate) fn watchful(self) -> Keeper {
        Keeper { is_watchful: true, ..self }
    }

    /// A transaction begins, and may wait for what a dead client holds: the dead are looked for
    /// often from now on.
    #[inline]
    pub(crate) fn stir(&self) {
        if let Some(dozing) = self.dozing.take() {
            dozing.wake();
        }
    }

    /// Has a session free what it meets of the dead, and stop when its client is taken for dead.
    pub(crate) fn guard(&self, session: &mut remora_txn::Session) {
        session.watch_for(Rc::new(RecoveredClients::new(self.configuration.clone())), self.held.clone());
    }

    /// Whether this client's lease runs while it does.
    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// How long it is, if it runs.
    pub(crate) fn lease(&self) -> Option<Nanos> {
        self.lease
    }

    /// The client begins to run.
    pub(crate) fn wake(&self, lane: &Lane) {
        if self.lease.is_some() {
            self.resting.set(false);
            self.renew(lane);
        }
    }

    /// Whether this client was taken for dead.
    pub(crate) fn is_over(&self) -> bool {
        self.held.is_over() && !self.given_up.get()
    }

    /// Has this incarnation end: it has lost a memory node for so long that the cluster would go on
    /// without that, if others had lost it too.
    pub(crate) fn give_up(&self) {
        if !self.held.is_over() && !self.given_up.replace(true) {
            tracing::warn!(
                client = self.client,
                "a memory node is out of reach of this client alone: it connects again"
            );
            self.held.end();
        }
    }

    /// Another incarnation has taken this one's place: it begins nothing any more, and its lease
    /// runs out.
    pub(crate) fn retire(&self) {
        tracing::info!(
            client = self.client,
            "a client has used most of its transaction ids, and goes on as another one"
        );
        self.held.end();
    }

    /// Whether it is in the middle of steps that must not be given up half-way.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get() > 0
    }

    /// Whether this incarnation has ended, with its epoch or by itself, and another one may come.
    pub(crate) fn outlived(&self) -> bool {
        self.held.is_over() && self.may_outlive()
    }

    /// Whether this incarnation may end, even if it is not yet known here. True also while the
    /// cluster has a controller and the lease is held.
    pub(crate) fn may_outlive(&self) -> bool {
        let ends = |membership: &Membership| {
            self.given_up.get()
                || membership.is_changing()
                || membership.epoch() > self.epoch
                || membership.has_controller() && !self.held.is_over()
        };
        self.configuration.look(ends).unwrap_or(false)
    }

    /// How long to wait for another epoch.
    pub(crate) fn patience(&self) -> Option<Nanos> {
        self.lease.map(|lease| lease.saturating_mul(LEASES_BEFORE_EPOCH).max(EPOCH_NS))
    }

    /// How long to wait for it, before this client takes itself for the only one that has lost a
    /// memory node.
    pub(crate) fn patience_with_itself(&self) -> Option<Nanos> {
        self.patience().map(|patience| patience / LEASES_BEFORE_EPOCH * LEASES_BEFORE_GIVING_UP)
    }

    /// Says that nothing runs here any more, and waits until the next epoch has begun, unless it
    /// has given up itself.
    pub(crate) async fn until_next_epoch(&self, lane: &Lane) {
        let client = self.client;
        if self.given_up.get() {
            return self.note(self.change(move |membership| membership.give_up(client)).await);
        }
        if let Err(error) = self.change(move |membership| membership.stopped(client)).await {
            tracing::warn!(%error, "the configuration could not be told that a client has stopped");
        }
        while !self.configuration.look(|membership| membership.epoch() > self.epoch).unwrap_or(false) {
            self.pause(lane).await;
        }
    }

    /// A while that is short for a lease.
    pub(crate) async fn pause(&self, lane: &Lane) {
        lane.sleep(self.lease.unwrap_or(crate::cluster::LEASE.as_nanos() as Nanos) / PAUSES).await;
    }

    /// Finishes what must not be given up half-way.
    pub(crate) async fn finish_steps(&self, lane: &Lane) {
        while self.busy.get() > 0 {
            lane.sleep(REST_PAUSE_NS).await;
        }
    }

    /// The client has nothing under way, and has finished its steps: it rests until it runs again.
    pub(crate) async fn rest(&self) {
        if !self.resting.replace(true) {
            self.awake.set(false);
            if self.partitions {
                // An epoch does not wait for the lease of who rests.
                self.held.extend(0);
            }
            let client = self.client;
            self.note(self.change(move |membership| membership.rest(client)).await);
        }
    }

    /// The client ends without leaving: its lease runs out, if it has one.
    pub(crate) fn abandon(&self, lane: &Lane) {
        if self.lease.is_some() {
            self.renew(lane);
        }
    }

    /// The client has given its slot back.
    pub(crate) fn leave(&self) {
        let client = self.client;
        self.note(self.change_blocking(move |membership| membership.leave(client)));
    }

    fn renew(&self, lane: &Lane) {
        let (asked, client) = (lane.now(), self.client);
        let renewed = self.change_blocking(move |membership| membership.renew(client));
        self.note_renewal(lane, asked, renewed);
    }

    /// A lease runs from when its renewal was asked for: nobody can have begun to count it earlier.
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

    /// Makes a change while the client's transactions go on. Changes of one client are made in the
    /// order in which they are begun, also if nobody waits for them any more.
    async fn change<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Membership) -> T + Send + 'static,
    ) -> Result<T, ConfigurationError> {
        match self.configuration.helper() {
            Some(helper) => changed_by(helper, change).recv().await.unwrap_or(Err(ConfigurationError::Closed)),
            None => self.configuration.change(&mut change),
        }
    }

    /// Makes a change like [`change`](Keeper::change), for a client that has nothing else to do.
    /// Blocks the thread.
    fn change_blocking<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Membership) -> T + Send + 'static,
    ) -> Result<T, ConfigurationError> {
        match self.configuration.helper() {
            Some(helper) => changed_by(helper, change).recv_blocking().unwrap_or(Err(ConfigurationError::Closed)),
            None => self.configuration.change(&mut change),
        }
    }

    /// Waits until what is looked at is no older than this call.
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

    /// Keeps the lease and watches over the others', for as long as it is polled.
    pub(crate) async fn attend(&self, lane: &Lane) {
        let Some(lease) = self.lease else { return };
        let (mut renew, mut judge, mut sweep, mut acknowledge) = (
            pin!(self.keep_renewing(lane, lease)),
            pin!(self.keep_judging(lane, lease)),
            pin!(self.keep_sweeping(lane, lease)),
            pin!(self.keep_acknowledging(lane, lease)),
        );
        // All four share one lane. Each is polled, whichever is ready, and checks for itself.
        poll_fn(|context| {
            let _ = renew.as_mut().poll(context);
            let _ = judge.as_mut().poll(context);
            let _ = sweep.as_mut().poll(context);
            let _ = acknowledge.as_mut().poll(context);
            Poll::<()>::Pending
        })
        .await;
    }

    /// Sleeps until leases are to be looked at again, or the process of some client has ended;
    /// those clients. A client that asks the memory nodes for nothing waits for no other client,
    /// and looks again when it stirs.
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

    /// Sleeps until then, or until the client stirs.
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
        loop {
            lane.sleep(lease / LOOKS).await;
            self.unless_it_is_over().await;
            let (asked, client) = (lane.now(), self.client);
            let renewed = self.change(move |membership| membership.renew(client)).await;
            self.note_renewal(lane, asked, renewed);
        }
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

    /// Lets go of tables that were dropped, and says so when nothing is under way that the client
    /// may have done to them. See `dropping` for why.
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
        // Rounds to a node that the client has lost may arrive there still.
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

    /// Clients whose leases have run out, and how often they had renewed them.
    fn expired(&self, now: Nanos, lease: Nanos) -> Vec<(u32, u64)> {
        let mut watch = self.watch.borrow_mut();
        // What keeps this client from renewing its lease may keep the others.
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

    /// Sleeps until then, or, where the dead are found at once, until this client has repaired what
    /// one of them had logged.
    async fn until_there_is_to_sweep(&self, lane: &Lane, until: Nanos) {
        let at_once = self.configuration.process().is_some();
        let mut sleep = pin!(lane.sleep(until.saturating_sub(lane.now())));
        // The repair runs on this lane as well, so that its end is seen at once.
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
            // When the epoch changes, all of them are the conductor's, as such.
            let charges = membership.charges(self.client).filter(|_| !membership.is_changing());
            charges.filter(|charge| membership.standing(*charge).is_some_and(&wanted)).collect()
        })
    }

    /// Decides and repairs what this client's charges had logged.
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
            // What all clients see of a change must not stay unknown to the nodes' CPUs.
            metadata::end_change_of(lane, self.cluster.live_nodes(), me, client).await?;
            self.change(move |membership| membership.recovered(client, me, verdicts.clone())).await??;
        }
        Ok(())
    }

    /// Frees the last locks of this client's charges, and gives back their slots.
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

    /// Nothing is under way that must not be given up half-way.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.get() == 0
    }

    fn next_id(&self) -> Option<TransactionId> {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        TransactionId::new(self.client, sequence)
    }

    /// Takes a client for dead and recovers it, and whatever else this client has to.
    pub(crate) async fn recover(&self, lane: &Lane, client: u32) -> Result<(), RecoveryError> {
        let me = self.client;
        self.change(move |membership| membership.suspect(client, me)).await??;
        self.repair(lane).await?;
        self.sweep(lane, 0).await
    }

    /// What the configuration says of a transaction: nothing, if it has to be looked up in the
    /// rings.
    pub(crate) fn verdict(&self, id: TransactionId) -> Result<Option<Verdict>, ConfigurationError> {
        self.configuration.look(|membership| match membership.standing(id.owner()) {
            Some(Standing::Suspected { .. }) => Some(Verdict::Undecided),
            _ => membership.verdicts(id.owner()).map(|verdicts| verdicts.of(id)),
        })
    }
}

/// Has a helper make a change, and say what came of it.
fn changed_by<T: Send + 'static>(
    helper: &Helper,
    change: impl FnMut(&mut Membership) -> T + Send + 'static,
) -> Receiver<Result<T, ConfigurationError>> {
    let (tell, told) = async_channel::bounded(1);
    // The task that waited may have gone.
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
                // Also when it has been polled in between, for something else.
                keeper.stir();
                lane.sleep(1_000_000).await;
                keeper.stir();
            }
        };
        worker.run([(first.id(), doze(&first, true)), (second.id(), doze(&second, false))]);
        assert!(first.now() - began < HOUR);
        // Without a stir it ends by itself.
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
