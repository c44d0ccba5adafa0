//! How fresh what a transaction reads has to be ([`Freshness`]), and snapshots of a past time that
//! stay open ([`Snapshot`]).

use std::time::Duration;

use remora_fabric::Nanos;
use remora_txn::{Limit, PastTime, Stop};

use crate::error::{Error, Misuse};
use crate::table::ClusterNumber;

/// How fresh what a transaction reads has to be, if it only reads
/// ([`Session::read`](crate::Session::read)). Whichever it is, all transactions together are
/// serializable.
///
/// | | what is read | round trips | runs again |
/// | --- | --- | --- | --- |
/// | `Strict` | what [`Session::transact`](crate::Session::transact) reads | 2, or 1 for one record | if a record has changed meanwhile |
/// | `Fresh` | everything that was acknowledged before, of the records that are read | 1 | if a record that is named later has changed meanwhile |
/// | `Stale` | all records as they were at one time | 1, and no atomics; one more for each change since | only if a record stays locked, or is lost from its archive |
///
/// With `Fresh` and `Stale`, two transactions that share no record may seem to have run in another
/// order than in real time. On shared memory, `Fresh` is strict under landing clocks
/// ([`Session::has_strict_snapshots`](crate::Session::has_strict_snapshots)), unless it goes back
/// to what records were when its closure runs again. `Strict` reads the same way, and never goes
/// back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Freshness {
    /// The transaction is ordered by real time with all others. It runs under every protocol.
    Strict,
    /// The transaction reads a snapshot as [`Session::snapshot`](crate::Session::snapshot) does.
    #[default]
    Fresh,
    /// The transaction reads a snapshot that this session has opened at most this long ago. The
    /// snapshot has everything that the session itself has committed or read before.
    ///
    /// Of other sessions, it has the commits whose release had arrived when it was opened. The
    /// release follows the acknowledgement by about a round trip. The snapshot may miss a commit
    /// whose client died in between, and one whose time was far above the clocks of the nodes that
    /// it wrote, if its release could not raise them because they ran on.
    Stale(Duration),
}

/// A snapshot that stays open: the state of all records at a past time. Any session of any client
/// can read it ([`Session::snapshot_at`](crate::Session::snapshot_at)), as often as it likes,
/// without atomics, and in pieces.
///
/// A snapshot holds nothing back. What records were before, their writers keep for a while
/// ([`WorkerOptions::archive`](crate::WorkerOptions::archive)). To read a record that has changed
/// takes a round trip more for each change since. If what it was is not kept any more, the read
/// fails with [`Limit::SnapshotTooOld`]. A commit that overwrites more than 16 KiB keeps nothing.
/// If the cluster gets another configuration, because a memory node is lost, joins or leaves, or if
/// a table has grown or was dropped, the read fails with [`Limit::SnapshotOver`]. Then open another
/// snapshot.
///
/// ```
/// # use remora::{Cluster, OrderedOptions, protocol::Protocol};
/// # use std::ops::Bound;
/// # let cluster = Cluster::embedded().protocol(Protocol::REMORA).open()?;
/// # let options = OrderedOptions::for_rows(1000);
/// # let rows = (0..1000).map(|item| (item, 2));
/// # let stock = cluster.load_ordered::<u64, u64>("stock", options, rows)?;
/// # let mut worker = cluster.worker(Default::default())?;
/// worker.block_on(async |session| {
///     // All rows as they are now, in pieces, whatever writers do meanwhile.
///     let snapshot = session.open_snapshot().await?;
///     let (mut sum, mut from) = (0, Bound::Unbounded);
///     loop {
///         let range = (from, Bound::Unbounded);
///         let scan = session.snapshot_at(snapshot, async |tx| stock.scan(tx, range, 100).await);
///         let rows = scan.await?;
///         let Some((last, _)) = rows.last() else { break };
///         from = Bound::Excluded(*last);
///         sum += rows.iter().map(|(_, amount)| amount).sum::<u64>();
///     }
///     assert_eq!(sum, 2000);
///     Ok::<_, remora::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub(crate) past: PastTime,
    pub(crate) cluster: ClusterNumber,
    /// The generation of the catalog that the session followed when it opened the snapshot.
    pub(crate) generation: u64,
}

impl Snapshot {
    pub(crate) fn past(self) -> PastTime {
        self.past
    }

    /// Returns why a session cannot read the snapshot. `forgotten` is the generation of the catalog
    /// by which the session has last forgotten a table, or replaced one by the table that it has
    /// grown into. What was in these tables before is gone.
    pub(crate) fn refused(self, cluster: ClusterNumber, forgotten: u64) -> Option<Error> {
        if self.cluster != cluster {
            return Some(Misuse::SnapshotOfOtherCluster.into());
        }
        (forgotten > self.generation).then(|| Stop::from(Limit::SnapshotOver).into())
    }
}

/// The snapshot that a session has opened last, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastOpened {
    pub(crate) snapshot: Snapshot,
    pub(crate) opened: Nanos,
}
