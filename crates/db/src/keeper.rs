//! What a client does for the cluster beside its transactions: it renews its lease, suspects those whose leases have run
//! out, and recovers them.
//!
//! All of it is one coroutine on a lane of the client's own, which runs as long as the worker does. A worker that runs
//! nothing holds no lock, so its lease does not run then: its last coroutine waits until what was posted in the background
//! has arrived, and until no repair is under way, and lets the client rest.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use remora_cluster::{Configuration, ConfigurationError, Fenced, LeaseWatch, RecoveredClients, Standing};
use remora_fabric::{Lane, Nanos};
use remora_memory::MemoryError;
use remora_sync::TransactionId;
use remora_txn::recovery::{self, Verdict};
use remora_txn::{Observer, RolledBack};

use crate::cluster::Cluster;

/// A lease is renewed, and those of others are looked at, so many times in its length: two renewals may be late.
const LOOKS: Nanos = 3;
/// Pause of a sweep after every few records: transactions go first.
const SWEEP_PAUSE_NS: Nanos = 50_000;
/// How often an ending run looks whether it may rest.
const REST_PAUSE_NS: Nanos = 5_000;

/// See the [module](self).
pub(crate) struct Keeper {
    cluster: Cluster,
    configuration: Arc<dyn Configuration>,
    client: u32,
    /// `None`: nobody watches this client, and it watches nobody.
    lease: Option<Nanos>,
    fenced: Rc<Cell<bool>>,
    /// Repairs under way, and other steps that must not be given up half-way.
    busy: Cell<u32>,
    resting: Cell<bool>,
    /// Ids of this client's transactions.
    sequence: Rc<Cell<u64>>,
    watch: RefCell<LeaseWatch>,
    /// Who is told of what is rolled back.
    observer: RefCell<Option<Box<dyn Observer>>>,
    /// Dead clients whose last locks have been freed, and whose rings have yet to be applied.
    swept: RefCell<BTreeSet<u32>>,
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
    /// Joins a client that has been registered.
    pub(crate) fn join(
        cluster: &Cluster,
        configuration: Arc<dyn Configuration>,
        client: u32,
        sequence: Rc<Cell<u64>>,
    ) -> Result<Keeper, ConfigurationError> {
        let lease = cluster.lease().map(|lease| u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX));
        configuration.change(|membership| membership.join(client, lease.unwrap_or(u64::MAX / 2)))?;
        Ok(Keeper {
            cluster: cluster.clone(),
            configuration,
            client,
            lease,
            fenced: Rc::default(),
            busy: Cell::new(0),
            resting: Cell::new(true),
            sequence,
            watch: RefCell::new(LeaseWatch::every(lease.unwrap_or(0) / LOOKS)),
            observer: RefCell::default(),
            swept: RefCell::default(),
        })
    }

    /// Has a session free what it meets of the dead, and stop when its client is taken for dead.
    pub(crate) fn guard(&self, session: &mut remora_txn::Session) {
        session.watch_for(Rc::new(RecoveredClients::new(self.configuration.clone())), self.fenced.clone());
    }

    /// Whoever is told from now on before a transaction is rolled back.
    pub(crate) fn observe(&self, observer: Option<Box<dyn Observer>>) {
        *self.observer.borrow_mut() = observer;
    }

    /// Whether this client's lease runs while it does.
    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// The client begins to run.
    pub(crate) fn wake(&self) {
        if self.lease.is_some() {
            self.resting.set(false);
            self.renew();
        }
    }

    /// The client has nothing under way, and has finished what it repaired: it rests until it runs again.
    pub(crate) async fn rest(&self, lane: &Lane) {
        while self.busy.get() > 0 {
            lane.sleep(REST_PAUSE_NS).await;
        }
        if !self.resting.replace(true) {
            self.note(self.configuration.change(|membership| membership.rest(self.client)));
        }
    }

    /// Waits until nothing that a coroutine has posted is on its way; not for longer than a lease. Whether that is so.
    pub(crate) async fn quiet(&self, lane: &Lane) -> bool {
        let deadline = lane.now().saturating_add(self.lease.unwrap_or(0));
        while lane.background() > 0 && lane.now() < deadline {
            lane.sleep(REST_PAUSE_NS).await;
        }
        lane.background() == 0
    }

    /// The client ends without leaving: its lease runs out, if it has one.
    pub(crate) fn abandon(&self) {
        if self.lease.is_some() {
            self.renew();
        }
    }

    /// The client has given its slot back.
    pub(crate) fn leave(&self) {
        self.note(self.configuration.change(|membership| membership.leave(self.client)));
    }

    fn renew(&self) {
        self.note(self.configuration.change(|membership| membership.renew(self.client)));
    }

    fn note(&self, outcome: Result<Result<(), Fenced>, ConfigurationError>) {
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(_)) => self.fenced.set(true),
            Err(error) => tracing::warn!(%error, "the configuration could not be told of a client"),
        }
    }

    /// Keeps the lease and watches over the others', for as long as it is polled.
    pub(crate) async fn attend(&self, lane: &Lane) {
        let Some(lease) = self.lease else { return };
        let (mut renew, mut judge, mut sweep) = (
            pin!(self.keep_renewing(lane, lease)),
            pin!(self.keep_judging(lane, lease)),
            pin!(self.keep_sweeping(lane, lease)),
        );
        // One lane for all three, whoever of them is ready: each looks for itself.
        poll_fn(|context| {
            let _ = renew.as_mut().poll(context);
            let _ = judge.as_mut().poll(context);
            let _ = sweep.as_mut().poll(context);
            Poll::<()>::Pending
        })
        .await;
    }

    async fn keep_renewing(&self, lane: &Lane, lease: Nanos) {
        loop {
            lane.sleep(lease / LOOKS).await;
            self.unless_it_is_over().await;
            self.renew();
        }
    }

    async fn keep_judging(&self, lane: &Lane, lease: Nanos) {
        loop {
            lane.sleep(lease / LOOKS).await;
            self.unless_it_is_over().await;
            let now = lane.now();
            let expired = self
                .configuration
                .change(|membership| self.watch.borrow_mut().expired(membership, now))
                .unwrap_or_default();
            for client in expired.into_iter().filter(|client| *client != self.client) {
                tracing::warn!(client, by = self.client, "the lease of a client has run out");
                self.note(self.configuration.change(|membership| membership.suspect(client, self.client)));
            }
            if let Err(error) = self.repair(lane).await {
                tracing::warn!(%error, "recovery is tried again");
            }
        }
    }

    async fn keep_sweeping(&self, lane: &Lane, lease: Nanos) {
        loop {
            lane.sleep(lease / LOOKS).await;
            self.unless_it_is_over().await;
            if let Err(error) = self.sweep(lane, SWEEP_PAUSE_NS).await {
                tracing::warn!(%error, "what a dead client has left is looked for again");
            }
        }
    }

    async fn unless_it_is_over(&self) {
        if self.fenced.get() || self.resting.get() {
            pending::<()>().await;
        }
    }

    fn charges(&self, wanted: impl Fn(Standing) -> bool) -> Result<Vec<u32>, ConfigurationError> {
        self.configuration.change(|membership| {
            let charges = membership.charges(self.client);
            charges.filter(|charge| membership.standing(*charge).is_some_and(&wanted)).collect()
        })
    }

    /// Decides and repairs what this client's charges had logged.
    async fn repair(&self, lane: &Lane) -> Result<(), RecoveryError> {
        let dead = self.charges(|standing| matches!(standing, Standing::Suspected { .. }))?;
        if dead.is_empty() {
            return Ok(());
        }
        self.step(true);
        let mut rolling_back = |records: &[RolledBack<'_>]| {
            if let Some(observer) = &mut *self.observer.borrow_mut() {
                observer.rolling_back(records);
            }
        };
        let repaired = recovery::repair(self.cluster.fabric(), lane, &dead, &mut rolling_back).await;
        self.step(false);
        for (client, verdicts) in repaired? {
            self.configuration.change(|membership| membership.recovered(client, self.client, verdicts.clone()))??;
        }
        Ok(())
    }

    /// Frees the last locks of this client's charges, and gives back their slots.
    async fn sweep(&self, lane: &Lane, pause: Nanos) -> Result<(), RecoveryError> {
        let recovered = |standing| matches!(standing, Standing::Recovered { .. });
        if self.configuration.change(|membership| membership.clients().any(|(_, standing)| recovered(standing)))? {
            self.configuration.change(|membership| membership.adopt(self.client))?;
        }
        let dead = self.charges(recovered)?;
        let unswept: Vec<u32> = dead.iter().copied().filter(|client| !self.swept.borrow().contains(client)).collect();
        if !unswept.is_empty() {
            recovery::sweep(lane, &unswept, pause, || self.next_id(), |begins| self.step(begins)).await?;
            self.swept.borrow_mut().extend(&unswept);
        }
        for client in dead {
            if recovery::give_back(lane, self.cluster.fabric().nodes(), client).await? {
                self.configuration.change(|membership| membership.forget(client, self.client))??;
                self.swept.borrow_mut().remove(&client);
                tracing::info!(client, "nothing is left of a dead client");
            }
        }
        Ok(())
    }

    /// A step begins, or ends, that must not be given up half-way.
    fn step(&self, begins: bool) {
        self.busy.set(if begins { self.busy.get() + 1 } else { self.busy.get() - 1 });
    }

    fn next_id(&self) -> Option<TransactionId> {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        TransactionId::new(self.client, sequence)
    }

    /// Takes a client for dead and recovers it, and whatever else this client has to.
    pub(crate) async fn recover(&self, lane: &Lane, client: u32) -> Result<(), RecoveryError> {
        self.configuration.change(|membership| membership.suspect(client, self.client))??;
        self.repair(lane).await?;
        self.sweep(lane, 0).await
    }

    /// What the configuration says of a transaction: nothing, if it has to be looked up in the rings.
    pub(crate) fn verdict(&self, id: TransactionId) -> Result<Option<Verdict>, ConfigurationError> {
        self.configuration.change(|membership| match membership.standing(id.owner()) {
            Some(Standing::Suspected { .. }) => Some(Verdict::Undecided),
            _ => membership.verdicts(id.owner()).map(|verdicts| verdicts.of(id)),
        })
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("client", &self.client).field("lease", &self.lease).finish_non_exhaustive()
    }
}
