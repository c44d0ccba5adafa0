//! The open snapshot of a campaign, which its clients share.

use std::cell::Cell;

use remora::{Error, Limit, Session, Snapshot, Transaction, TransactionOptions};
use remora_workload::Prng;

/// A snapshot that some client has opened. All clients read it until one of them opens another.
#[derive(Debug, Default)]
pub(super) struct Past(Cell<Option<Snapshot>>);

impl Past {
    /// Runs a closure that only reads, at the time of the open snapshot. Opens one if there is
    /// none, and now and then another one. If the snapshot is too old, or of an earlier epoch, the
    /// closure does not run, and the next one opens another.
    pub(super) async fn read(
        &self,
        session: &mut Session,
        random: &mut Prng,
        options: TransactionOptions,
        body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !session.has_open_snapshots() {
            return session.transact_with(options.snapshot(true), body).await;
        }
        let snapshot = match self.0.get().filter(|_| random.below(4) > 0) {
            Some(snapshot) => snapshot,
            None => session.open_snapshot().await?,
        };
        self.0.set(Some(snapshot));
        match session.transact_with(options.at(snapshot), body).await {
            Err(Error::Limit(reason)) if matches!(reason.cause, Limit::SnapshotTooOld | Limit::SnapshotOver) => {
                self.0.set(None);
                Ok(())
            }
            outcome => outcome,
        }
    }
}
