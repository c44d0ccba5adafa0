//! Combining at hot records: coroutines of one client that wait for the same records change copies
//! of them in the client's memory, one after the other, and commit as one transaction.
//!
//! A commit on a hot record takes some round trips, in which no other one can make progress there.
//! So the coroutine whose turn it is ([`turns`](crate::turns)), the *leader*, takes others along:
//!
//! ```text
//! leader    has run its closure, and holds what it has read and changed
//!           opens a batch with these records, and wakes the coroutines in line that want no others
//! member    fetches the records that it wants and the batch does not have, and then gets the
//!           others from the batch; runs its closure, and puts what it has read and changed into
//!           the batch
//! leader    closes the batch, takes the changes over, and commits as ever: one validation,
//!           one log entry, one installation
//! all       have the outcome of the leader's commit
//! ```
//!
//! # Invariants
//!
//! 1. **Members stand right behind the leader** in the serial order, in the order in which they
//!    have joined. A member joins only if each version that it has got is still the newest in the
//!    batch. So it has read what the one before it left.
//! 2. **The leader's commit is the members' commit.** The leader validates, or has locked, each
//!    record that a member has. A member changes only records that the leader changes, too, and
//!    records that it has brought along, which become the leader's. So they are all locked and
//!    logged. A member reports nothing before the leader's outcome is known.
//! 3. **Each member's change is a version of its own.** The commit installs the last one, and no
//!    memory node ever has the versions before it. So histories tell the members apart.
//! 4. **Memory nodes know nothing of a member**: no lock, log entry or id. If its client dies,
//!    recovery decides about the leader, and with it about its members. If the outcome is unknown,
//!    a member names the leader. An attempt that the program has asked for its id joins no batch.
//! 5. **The leader does not wait long.** It yields twice, so that each coroutine that it has called
//!    runs at least once. Then it waits for members that are fetching, for as long as an attempt
//!    takes. A coroutine that has not joined by then has to commit by itself.
//! 6. **A member does not wait without end.** A program may keep the leader's coroutine from
//!    running. Then a member gives the batch up, or finds out what the leader's log says.
//! 7. **What the leader has not committed decides nothing.** A member that stops or panics instead
//!    of joining may have done so because of a value that never will be, and runs again by itself.
//! 8. **A member has no lock.** So it can bring records along only where the commit takes the locks
//!    and not the execution, and no record that it inserts or deletes: its slot may be prepared.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use remora_fabric::Address;
use remora_index::{BucketRef, Location};
use remora_node::TableId;
use remora_record::{KeyHash, TransactionId, Version};

use crate::error::{Abort, Stop};
use crate::limits::MEMBERS_MAX;
use crate::words::{Name, Span};

/// Who has a record of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// The leader: the number of its item.
    Leader(usize),
    /// The leader, and it does not share the record.
    LeaderAlone,
    /// A member has brought it along.
    Member(Brought),
}

/// What a leader needs to know of a record that a member has brought along.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brought {
    pub(crate) hash: KeyHash,
    pub(crate) home: BucketRef,
    pub(crate) location: Location,
    pub(crate) address: Address,
    /// The version that the member has read.
    pub(crate) read: Version,
    /// Where commits have times: the time of that version.
    pub(crate) time: u64,
}

/// A record of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRecord {
    pub(crate) table: TableId,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    /// Whether the record's owner has changed it.
    pub(crate) is_changed: bool,
    /// The version that the next member reads.
    pub(crate) version: Version,
    pub(crate) key: Span,
    pub(crate) value: Span,
    pub(crate) value_bytes: u32,
    /// How many members have changed the record.
    pub(crate) changes: u32,
}

/// Words of keys and values for which a batch has room before it grows.
const WORDS: usize = 512;
/// Records and tables for which a batch has room before it grows.
const RECORDS: usize = 64;
const TABLES: usize = 8;

/// What has become of a leader's commit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaderOutcome {
    /// The result of the commit, and the record that was in its way.
    Known(Result<(), Stop>, Option<Name>),
    /// The future of the leader was dropped when the log was on its way, which decides.
    Left,
}

/// The records of a batch, and who takes part.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The leader's attempt.
    pub(crate) leader: Option<TransactionId>,
    /// Whether members can still get records and join.
    pub(crate) is_open: bool,
    /// How many words of log entries members can still add for records that they bring along.
    pub(crate) room: usize,
    /// How many members are fetching records that the batch does not have.
    fetching: usize,
    /// The leader, if it waits for these members.
    leader_waits: Option<Waker>,
    pub(crate) records: Vec<BatchRecord>,
    /// The tables that the leader knows, and when they were created. Members bring records of these
    /// tables only: the leader's session may have heard already that another one is dropped.
    pub(crate) known: Vec<(TableId, u64)>,
    /// Keys and values.
    pub(crate) words: Vec<u64>,
    /// In timed tables: the time of the leader's commit, or 0 if it is not known.
    pub(crate) time: u64,
    /// What has become of the leader's commit, once it is known.
    outcome: Option<LeaderOutcome>,
    /// Members that wait for the outcome.
    waiting: Vec<Waker>,
}

impl Batch {
    /// Returns the number of a key's record, if the batch has it.
    pub(crate) fn find(&self, table: TableId, key: &[u64]) -> Option<usize> {
        self.records.iter().position(|record| record.table == table && record.key.of(&self.words) == key)
    }

    /// Returns whether a member can have a record.
    pub(crate) fn shares(&self, name: Name) -> bool {
        self.records.iter().any(|record| record.name == name && !matches!(record.owner, Owner::LeaderAlone))
    }
}

/// A batch that its leader and its members share.
#[derive(Clone, Debug)]
pub(crate) struct SharedBatch(Rc<RefCell<Batch>>);

impl SharedBatch {
    /// Returns a batch with room for some members, so that in steady state nothing is allocated.
    pub(crate) fn new() -> SharedBatch {
        let (records, known) = (Vec::with_capacity(RECORDS), Vec::with_capacity(TABLES));
        let (words, waiting) = (Vec::with_capacity(WORDS), Vec::with_capacity(MEMBERS_MAX));
        SharedBatch(Rc::new(RefCell::new(Batch { records, known, words, waiting, ..Batch::default() })))
    }

    /// Returns whether a leader or a member has the batch.
    pub(crate) fn is_used(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Batch) -> R) -> R {
        act(&mut self.0.borrow_mut())
    }

    /// Begins anew, for this leader, without records.
    pub(crate) fn open(&self, leader: TransactionId) {
        self.with(|batch| {
            batch.records.clear();
            batch.words.clear();
            batch.known.clear();
            (batch.leader, batch.is_open, batch.outcome) = (Some(leader), true, None);
            (batch.room, batch.fetching, batch.leader_waits, batch.time) = (0, 0, None, 0);
        });
    }

    pub(crate) fn leader(&self) -> Option<TransactionId> {
        self.0.borrow().leader
    }

    /// Tells the members the outcome of the leader's commit.
    pub(crate) fn finish(&self, outcome: LeaderOutcome) {
        self.with(|batch| {
            batch.is_open = false;
            batch.outcome = Some(outcome);
            batch.waiting.drain(..).for_each(Waker::wake);
        });
    }

    /// Returns the outcome of the leader's commit if it is known. Otherwise wakes the member when
    /// it is. `place` is what an earlier look of this member has left.
    pub(crate) fn look(&self, waker: &Waker, place: &mut Option<usize>) -> Option<LeaderOutcome> {
        self.with(|batch| {
            if batch.outcome.is_none() {
                match place.and_then(|place| batch.waiting.get_mut(place)) {
                    Some(known) => known.clone_from(waker),
                    None => {
                        *place = Some(batch.waiting.len());
                        batch.waiting.push(waker.clone());
                    }
                }
            }
            batch.outcome
        })
    }

    /// Notes that a member fetches records, until the guard is dropped.
    pub(crate) fn fetches(&self) -> Fetching {
        self.with(|batch| batch.fetching += 1);
        Fetching(self.clone())
    }

    /// Returns whether a member is fetching records. If so, wakes the leader when none is.
    pub(crate) fn is_fetching(&self, leader: &Waker) -> bool {
        self.with(|batch| {
            batch.leader_waits = (batch.fetching > 0).then(|| leader.clone());
            batch.fetching > 0
        })
    }

    /// Ends the batch for all members, because its leader does not run. If the leader may have
    /// begun its commit, its log decides.
    pub(crate) fn give_up(&self) -> LeaderOutcome {
        if !self.with(|batch| batch.is_open) {
            return LeaderOutcome::Left;
        }
        let outcome = LeaderOutcome::Known(Err(Abort::Dropped.into()), None);
        self.finish(outcome);
        outcome
    }
}

/// A member that fetches records.
pub(crate) struct Fetching(SharedBatch);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.with(|batch| {
            batch.fetching = batch.fetching.saturating_sub(1);
            if batch.fetching == 0 {
                batch.leader_waits.take().into_iter().for_each(Waker::wake);
            }
        });
    }
}
