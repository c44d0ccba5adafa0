//! The event that tells how an attempt of a transaction went. One function emits all events
//! (`Tx::tell` in `tx.rs`), and reports, histories and traces consume them.

use remora_fabric::{Cost, Nanos};
use remora_index::Table;
use remora_record::{Key, TransactionId, Version};

use crate::access::{Access, Scan};
use crate::error::{Abort, Stop};
use crate::landing::Snapshot;
use crate::sets::Sets;
use crate::words::Name;

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The attempt committed.
    Committed,
    /// The closure returned an error of its own, and its reads were validated. The attempt has
    /// written nothing.
    UserAbort,
    /// The attempt aborted; the transaction may be tried again.
    Aborted(Abort),
    /// Whether the attempt committed is unknown: see [`Stop::Unknown`].
    Unknown,
    /// The attempt failed for another reason, and has written nothing.
    Failed(Stop),
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Outcome {
        match stop {
            Stop::Abort(abort) => Outcome::Aborted(abort),
            Stop::Unknown(_) => Outcome::Unknown,
            stop => Outcome::Failed(stop),
        }
    }
}

/// When the phases of an attempt ended, in nanoseconds on the lane's clock. The last phase ends
/// with the attempt. The times are noted for some attempts only, and are zeros for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Phases {
    /// When execution ended: the closure has run, and all records that it named have arrived.
    pub executed: Nanos,
    /// When validation ended: the locks are taken, and the read set is validated.
    pub validated: Nanos,
    /// When the log round ended: every participant has acknowledged the entry.
    pub logged: Nanos,
    /// How long the attempt waited, during its execution, for records that other transactions had
    /// locked or were installing. This is a duration in nanoseconds.
    pub waited: Nanos,
}

/// One attempt of a transaction.
#[derive(Debug)]
pub struct TransactionEvent<'a> {
    /// The id of the attempt, which no other attempt of any process has.
    pub id: TransactionId,
    /// The attempt whose commit decides this one. It is another one if transactions of several
    /// coroutines have committed together, at a record that all of them change. To find out an
    /// unknown outcome, ask for that of this attempt.
    pub decided_by: TransactionId,
    /// The caller's number for this type of transaction.
    pub label: u16,
    /// The number of the attempt: 1 for the first one.
    pub attempt: u32,
    /// How the attempt ended.
    pub outcome: Outcome,
    /// When the first attempt began.
    pub began: Nanos,
    /// When this attempt began.
    pub attempt_began: Nanos,
    /// When this attempt ended.
    pub ended: Nanos,
    /// What this attempt cost. The install of a committed attempt is included, though the client
    /// did not wait for it.
    pub cost: Cost,
    /// When the phases of the attempt ended. Zeros stand for phases that it did not reach.
    pub phases: Phases,
    /// How long the coroutine stood in line before this attempt, at the record of
    /// [`TransactionEvent::stood_at`]: a time in nanoseconds.
    pub stood: Nanos,
    /// The snapshot that the attempt read, if it read one.
    pub snapshot: Option<Snapshot>,
    /// How the attempt is ordered in real time, if it commits.
    pub order: Order,
    pub(crate) stood_at: Option<Name>,
    pub(crate) sets: &'a Sets,
}

/// How a transaction that has committed is ordered in real time. All transactions together are
/// serializable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As it ran: behind all transactions that were reported before it began, and before all that
    /// began after its report.
    Strict,
    /// It has everything that was reported before it began, of the records that it reads.
    Fresh,
    /// In no particular way.
    Any,
}

impl<'a> TransactionEvent<'a> {
    /// Returns the records that the attempt read or wrote.
    pub fn accesses(&self) -> impl Iterator<Item = Access<'a>> {
        self.sets.accesses()
    }

    /// Returns the table and the key of the record because of which the attempt has aborted.
    /// Returns `None` if no record was the reason, or if it is not known.
    #[must_use]
    pub fn culprit(&self) -> Option<(&'a Table, Key)> {
        match self.outcome {
            Outcome::Aborted(abort) => self.sets.culprit(abort.into()),
            _ => None,
        }
    }

    /// Returns the table and the key of the record at which the coroutine stood in line before this
    /// attempt. Returns `None` if it did not, or if the attempt has not named the record.
    #[must_use]
    pub fn stood_at(&self) -> Option<(&'a Table, Key)> {
        self.sets.named(self.stood_at?)
    }

    /// Returns the ranges of keys that the attempt looked at, as far as their keys have records of
    /// their own.
    pub fn scans(&self) -> impl Iterator<Item = Scan<'a>> {
        self.sets.scans()
    }
}

/// A counter of conflicts receives an event only for attempts that other transactions have
/// hindered: the attempt has aborted, or its coroutine has stood in line before. The session calls
/// it as it calls its [`Observer`]. All sessions of a client share one counter.
pub trait ConflictCounter {
    /// Receives the event of an attempt that was hindered.
    fn hindered(&self, event: &TransactionEvent<'_>);
}

/// A record that recovery puts back to what it was before a transaction of a dead client.
#[derive(Clone, Copy, Debug)]
pub struct Rollback<'a> {
    /// The table's name.
    pub table: &'a str,
    /// The record's key.
    pub key: &'a [u8],
    /// The version that is installed with the old value, one above what the transaction had
    /// installed.
    pub installed: Version,
    /// The version that had this value before.
    pub restored: Version,
}

/// An observer receives an event for every attempt. The session calls it on the worker's thread,
/// when an attempt has ended and before the caller has the answer. So its methods must be quick.
pub trait Observer {
    /// Receives the event of an attempt that has ended.
    fn transaction(&mut self, event: &TransactionEvent<'_>);

    /// Returns whether the session is to call [`Observer::committing`]. The session asks once, when
    /// it is given the observer.
    fn wants_committing(&self) -> bool {
        false
    }

    /// Receives the event of an attempt that writes and is about to commit. The session sends the
    /// first verb that could make it commit after this has returned. It is for observers that must
    /// know of the attempt even if the client dies before the attempt has ended.
    ///
    /// The event has what is known by then: its outcome is [`Outcome::Unknown`], and its accesses
    /// have the versions that the attempt will install. [`Observer::transaction`] tells later how
    /// the attempt has ended, as for every attempt. This call is in the critical path, while the
    /// attempt holds its locks.
    fn committing(&mut self, _event: &TransactionEvent<'_>) {}
}
