//! Entering the next epoch: this process learns which memory nodes the cluster goes on without, and
//! where its tables are now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_cluster::Configuration;
use remora_fabric::{ClientId, Lane, Nanos, NodeSet};
use remora_memory::{MemoryError, come, metadata};

use super::clients::join;
use super::handle::Cluster;
use super::nodes::are_named;
use super::opened::announce_lines;
use crate::error::OpenError;
use crate::mutex::lock;

/// Who finds an epoch changing, or a memory node dead that others look after, waits no longer for
/// the next epoch.
pub(super) const EPOCH_PATIENCE: Duration = Duration::from_secs(10);

impl Cluster {
    /// Learns of the last epoch: which nodes are lost, and where tables are now. `lane` is a lane
    /// of client id 0. A task that calls this while another one does waits.
    pub(crate) async fn enter_epoch(&self, lane: &Lane) -> Result<(), OpenError> {
        const PAUSE_NS: Nanos = 20_000;
        let Some(configuration) = &self.configuration else { return Ok(()) };
        while self.inner.entering.swap(true, Ordering::Acquire) {
            lane.sleep(PAUSE_NS).await;
        }
        let _entering = Entering(&self.inner.entering);
        self.enter(configuration, lane).await
    }

    async fn enter(&self, configuration: &Arc<dyn Configuration>, lane: &Lane) -> Result<(), OpenError> {
        let now = configuration.look(|membership| (membership.epoch(), membership.lost()));
        let (epoch, lost) = now.map_err(|error| MemoryError::Configuration(error.to_string()))?;
        // A node that this has come without, though the epoch has it, was added while it came.
        if epoch == self.epoch() && lock(&self.inner.lost).without(lost).is_empty() {
            return Ok(());
        }
        self.expect_all();
        self.follow_nodes()?;
        let live = NodeSet::first(self.memory_nodes()).without(lost);
        let metadata = metadata::read(lane, live.leader()).await?;
        are_named(&metadata, self.memory_nodes())?;
        if metadata.epoch != epoch {
            // That of the next one, which is about to begin, and may have other nodes.
            return Err(MemoryError::EpochChanging.into());
        }
        // What changes the catalog of processes of their own had its access taken away, too.
        if self.inner.remote.is_some() {
            let admin = come(lane, live).await?;
            join(configuration, admin, epoch, u64::MAX / 2)?;
            *lock(&self.inner.admin) = admin;
        }
        self.inner.opened.follow(metadata)?;
        self.tables().iter().for_each(|table| announce_lines(self.fabric(), table, |replica| replica.joining));
        *lock(&self.inner.lost) = lost;
        Ok(())
    }

    /// Learns of the last epoch, where nobody runs.
    pub(crate) fn follow_epoch(&self) -> Result<(), OpenError> {
        self.follow_nodes()?;
        let enter = async |lane: &Lane| self.enter_epoch(lane).await;
        remora_fabric::block_on(&*self.inner.fabric, ClientId(0), enter)?
    }

    /// Does what is no transaction, like [`inspect`](Cluster::inspect), and does it again from its
    /// beginning if it fails because an epoch has ended meanwhile.
    pub fn in_one_epoch<T, E>(&self, what: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        in_one_epoch(self.configuration(), what)
    }
}

/// Lets the next one look for an epoch, also if this one is dropped.
struct Entering<'c>(&'c AtomicBool);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Runs `what`, which fails if an epoch ends meanwhile, and runs it again in the next epoch. If the
/// cluster has a controller, the next epoch begins within milliseconds.
pub(crate) fn in_one_epoch<T, E>(
    configuration: Option<&Arc<dyn Configuration>>,
    mut what: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    const PAUSE: Duration = Duration::from_millis(5);
    let epoch = || configuration.and_then(|one| one.look(|now| (now.epoch(), now.is_changing())).ok());
    let began = Instant::now();
    loop {
        let before = epoch();
        let done = what();
        let now = epoch();
        let has_changed = now != before || now.is_some_and(|(_, is_changing)| is_changing);
        if done.is_ok() || !has_changed || began.elapsed() > EPOCH_PATIENCE {
            return done;
        }
        std::thread::sleep(PAUSE);
    }
}
