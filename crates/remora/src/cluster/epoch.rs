//! Entering the next epoch: this process learns which memory nodes the cluster goes on without, and
//! where its tables are now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_fabric::{ClientId, Lane, Nanos, NodeSet};
use remora_membership::Configuration;
use remora_node::{MemoryError, metadata};

use super::clients::{draw, join};
use super::handle::Cluster;
use super::interrupt;
use super::nodes::are_named;
use super::opened::announce_lines;
use crate::error::OpenError;
use crate::mutex::lock;
use crate::observe::WAITS;

/// How long this process waits at most for the next epoch, while an epoch changes, or while a
/// memory node is dead and no controller has declared it lost yet.
pub(super) const EPOCH_PATIENCE: Duration = Duration::from_secs(10);

impl Cluster {
    /// Enters the last epoch: learns which nodes are lost, and where the tables are now. `lane` is
    /// a lane of client id 0. Waits while another task enters the epoch.
    pub(crate) async fn enter_epoch(&self, lane: &Lane) -> Result<(), OpenError> {
        const PAUSE_NS: Nanos = 20_000;
        let Some(configuration) = &self.configuration else { return Ok(()) };
        while self.inner.entering.swap(true, Ordering::Acquire) {
            lane.sleep(PAUSE_NS).await;
        }
        let _entering = Entering(&self.inner.entering);
        self.enter(configuration, lane).await
    }

    /// Enters the last epoch. The caller makes sure that no other task does so.
    async fn enter(&self, configuration: &Arc<dyn Configuration>, lane: &Lane) -> Result<(), OpenError> {
        let now = configuration.look(|membership| (membership.epoch(), membership.lost()));
        let (epoch, lost) = now.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        // A node that was added while this process connected counts as lost here, though the epoch
        // has it.
        if epoch == self.epoch() && lock(&self.inner.lost).without(lost).is_empty() {
            return Ok(());
        }
        self.expect_all();
        self.follow_nodes()?;
        let live = NodeSet::first(self.memory_nodes()).without(lost);
        let metadata = metadata::read(lane, live.leader()).await?;
        are_named(&metadata, self.memory_nodes())?;
        if metadata.epoch != epoch {
            // This is the catalog of the next epoch, which is about to begin, and may have other
            // nodes.
            return Err(MemoryError::EpochChanging.into());
        }
        // The end of the epoch has revoked the incarnation that changes the catalog of remote
        // memory nodes.
        if self.inner.remote.is_some() {
            let drawn = draw(lane, live).await?;
            *lock(&self.inner.admin) = join(configuration, drawn, epoch, u64::MAX / 2)?;
        }
        self.inner.opened.follow(metadata)?;
        for table in self.tables().iter().flat_map(|table| table.and_larger()) {
            announce_lines(self.fabric(), table, |replica| replica.joining);
        }
        *lock(&self.inner.lost) = lost;
        Ok(())
    }

    /// Enters the last epoch, and blocks the thread meanwhile. The thread must not run tasks.
    pub(crate) fn follow_epoch(&self) -> Result<(), OpenError> {
        self.follow_nodes()?;
        let enter = async |lane: &Lane| self.enter_epoch(lane).await;
        remora_fabric::block_on(&*self.inner.fabric, ClientId(0), enter)?
    }

    /// Runs `what`, and runs it again from its beginning if it fails because an epoch has ended
    /// meanwhile. It is for calls that are no transactions, such as [`inspect`](Cluster::inspect).
    pub fn in_one_epoch<T, E>(&self, what: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        in_one_epoch(self.configuration(), None, what)
    }
}

/// A task that enters an epoch. When this is dropped, another task may enter one.
struct Entering<'c>(&'c AtomicBool);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Runs `what`, which fails if an epoch ends meanwhile, and runs it again in the next epoch. If the
/// cluster has a controller, the next epoch begins within milliseconds. Does not run it again once
/// the program has set `interrupt`.
pub(crate) fn in_one_epoch<T, E>(
    configuration: Option<&Arc<dyn Configuration>>,
    interrupt: Option<&Arc<AtomicBool>>,
    mut what: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    const PAUSE: Duration = Duration::from_millis(5);
    let epoch = || configuration.and_then(|one| one.look(|now| (now.epoch(), now.is_changing())).ok());
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        let before = epoch();
        let done = what();
        let now = epoch();
        let has_changed = now != before || now.is_some_and(|(_, is_changing)| is_changing);
        if done.is_ok() || !has_changed || began.elapsed() > EPOCH_PATIENCE || interrupt::is_set(interrupt) {
            return done;
        }
        if !is_told {
            tracing::warn!(target: WAITS, "the epoch is changing: waiting for the next one");
            is_told = true;
        }
        std::thread::sleep(PAUSE);
    }
}
