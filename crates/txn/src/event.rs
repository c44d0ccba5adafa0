//! What happened to each attempt of a transaction, emitted at one place and consumed by reports,
//! histories and traces.

use remora_fabric::{Cost, Nanos};
use remora_record::{TransactionId, Version};

use crate::access::{Access, Scan};
use crate::error::{Abort, Stop};
use crate::sets::Sets;

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The attempt committed.
    Committed,
    /// The closure returned an error of its own, and its reads were validated: it has written
    /// nothing.
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

/// When the phases of an attempt ended, in nanoseconds; the last one ends with the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Phases {
    /// Closure and reads.
    pub executed: Nanos,
    /// Locks taken, read set validated.
    pub validated: Nanos,
    /// Log acknowledged everywhere.
    pub logged: Nanos,
    /// How long of its execution it waited for records that others had locked, or were installing.
    pub waited: Nanos,
}

/// One attempt of a transaction.
#[derive(Debug)]
pub struct TransactionEvent<'a> {
    /// Unique for the attempt, over all processes.
    pub id: TransactionId,
    /// The caller's number for this type of transaction.
    pub label: u16,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// When the first attempt began.
    pub began: Nanos,
    /// When this attempt began.
    pub attempt_began: Nanos,
    /// When it ended.
    pub ended: Nanos,
    /// What this attempt cost. The install of a committed attempt is included, though the client
    /// did not wait for it.
    pub cost: Cost,
    /// Ends of its phases; zeros for those it did not reach.
    pub phases: Phases,
    pub(crate) sets: &'a Sets,
}

impl<'a> TransactionEvent<'a> {
    /// The records that it read or wrote.
    pub fn accesses(&self) -> impl Iterator<Item = Access<'a>> {
        self.sets.accesses()
    }

    /// The ranges that it looked at, as far as their keys have records of their own.
    pub fn scans(&self) -> impl Iterator<Item = Scan<'a>> {
        self.sets.scans()
    }
}

/// A record that recovery puts back, as it was before the transaction of a dead client.
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

/// An observer is told of every attempt. A session calls its observer on the worker's thread, when
/// an attempt has ended but before the caller has the answer: be quick.
pub trait Observer {
    /// An attempt has ended.
    fn transaction(&mut self, event: &TransactionEvent<'_>);

    /// Whether the observer wants [`Observer::committing`]. Asked once, when a session is given the
    /// observer.
    fn wants_committing(&self) -> bool {
        false
    }

    /// An attempt that writes is about to commit: the first verb that could make it commit is sent
    /// when this has returned. For observers that must know of it also if the client dies before it
    /// has ended.
    ///
    /// The event is what can be said by then: its outcome is [`Outcome::Unknown`], its accesses
    /// have the versions that will be installed. How the attempt ends is told by
    /// [`Observer::transaction`], as of every attempt. This one is in the critical path, and the
    /// locks are held.
    fn committing(&mut self, _event: &TransactionEvent<'_>) {}
}
