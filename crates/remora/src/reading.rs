//! Sessions run transactions that only read, as fresh as is asked for, and open snapshots.

use std::time::Duration;

use remora_txn::Limit;

use crate::error::Error;
use crate::snapshot::{Freshness, LastOpened, Snapshot};
use crate::transaction::Transaction;
use crate::worker::{Session, TransactionOptions};

/// How often a stale read opens another snapshot, because the last one is over or too old.
const OPENED_AGAIN: u32 = 3;

impl Session {
    /// Runs a closure as a transaction that only reads, as fresh as is asked for. Returns what the
    /// closure has returned.
    ///
    /// Fails as [`Session::snapshot`] does. [`Freshness::Strict`] does not need a protocol with
    /// snapshots.
    pub async fn read<T>(
        &mut self,
        freshness: Freshness,
        body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.read_with(freshness, TransactionOptions::default(), body).await
    }

    /// Runs a closure as [`Session::read`] does, with options for how often and for how long it is
    /// tried.
    pub async fn read_with<T>(
        &mut self,
        freshness: Freshness,
        options: TransactionOptions,
        mut body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let age = match freshness {
            Freshness::Strict => return self.transact_with(options.only_reads(true), body).await,
            Freshness::Fresh => return self.transact_with(options.snapshot(true), body).await,
            Freshness::Stale(age) => age,
        };
        let mut again = 0;
        loop {
            let snapshot = self.opened_within(age).await?;
            match self.transact_with(options.at(snapshot), &mut body).await {
                Err(Error::Limit(reason))
                    if matches!(reason.cause, Limit::SnapshotTooOld | Limit::SnapshotOver) && again < OPENED_AGAIN =>
                {
                    again += 1;
                    self.last_opened = None;
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns whether this session can open snapshots: whether the cluster's protocol has
    /// snapshots that stay open.
    #[must_use]
    pub fn has_open_snapshots(&self) -> bool {
        self.protocol().has_open_snapshots()
    }

    /// Opens a snapshot of all records as they are now. It has everything that this session has
    /// committed, and everything that its transactions have read. [`Freshness::Stale`] says what it
    /// has of other clients.
    ///
    /// Takes one round trip, and more if the clocks of the memory nodes differ. Fails as
    /// [`Session::snapshot`] does.
    pub async fn open_snapshot(&mut self) -> Result<Snapshot, Error> {
        let (generation, cluster) = (self.followed(), self.cluster_number());
        let past = self.snapshot(async |tx| tx.open_snapshot().await).await?;
        let snapshot = Snapshot { past, cluster, generation };
        self.last_opened = Some(LastOpened { snapshot, opened: self.now() });
        Ok(snapshot)
    }

    /// Runs a closure as a transaction that only reads, in an open snapshot. Returns what the
    /// closure has returned. Each call is a transaction of its own: it has room for as many records
    /// as any other one.
    ///
    /// Fails as [`Session::snapshot`] does, and as [`Snapshot`] says.
    pub async fn snapshot_at<T>(
        &mut self,
        snapshot: Snapshot,
        body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.transact_with(TransactionOptions::default().at(snapshot), body).await
    }

    /// Returns a snapshot that this session has opened at most this long ago, and that has all that
    /// the session has seen. Opens one if there is none.
    async fn opened_within(&mut self, age: Duration) -> Result<Snapshot, Error> {
        let now = self.now();
        let is_new = |last: &LastOpened| u128::from(now.saturating_sub(last.opened)) <= age.as_nanos();
        match self.last_opened.filter(is_new).filter(|last| self.has_seen_nothing_later(last.snapshot)) {
            Some(last) => Ok(last.snapshot),
            None => self.open_snapshot().await,
        }
    }
}
