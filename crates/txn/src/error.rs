//! The reasons why a transaction does not commit, as small `Copy` values. An abort is no failure:
//! aborts are expected, and counted.

use remora_fabric::{FabricError, Fault, NodeId};
use remora_node::MemoryError;
use remora_record::{LockWord, SharedLock, TransactionId};

use crate::limits::{LOG_NODES_MAX, SET_MAX};

/// Why a transaction aborted, most often because of another transaction. The aborted transaction
/// has left no trace, and can be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Abort {
    /// A record is locked by another transaction.
    #[error("a record is locked{}", holder(.0))]
    Locked(LockWord),
    /// A record has changed since the transaction read it.
    #[error("a record changed after it was read")]
    Changed,
    /// The transaction could not read a record whole, because other transactions kept changing it.
    #[error("a record changed while it was read, again and again")]
    Torn,
    /// What the transaction read may be stale, because its client's lease has expired. The cluster
    /// may have removed a memory node that still answers the client.
    #[error("the client's lease had run out when it had read: it was kept from running, or could not be renewed")]
    Late,
    /// The program gave the transaction up, or dropped it, before its outcome was decided.
    #[error("the transaction was given up before it was decided")]
    Dropped,
    /// The transaction has read a record and wants to change it, and another transaction of its
    /// client has its turn at the record. It makes way, and stands in line.
    #[error("a record is wanted by other transactions of this client, and one of them has its turn")]
    OutOfTurn,
    /// A record has changed since the snapshot was taken, or the clock of a node was behind its
    /// commit. The snapshot is taken again, at a later time.
    #[error("a record is later than the snapshot")]
    Later,
}

impl Abort {
    /// Returns a short name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Abort::Locked(_) => "lock_conflict",
            Abort::Changed => "validation",
            Abort::Torn => "torn_read",
            Abort::Late => "lease_run_out",
            Abort::Dropped => "dropped",
            Abort::OutOfTurn => "out_of_turn",
            Abort::Later => "later_than_snapshot",
        }
    }
}

fn holder(lock: &LockWord) -> String {
    lock.holder().map(|id| format!(" by transaction {id}")).unwrap_or_default()
}

/// A limit that a transaction has exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Limit {
    /// A record has changed since the time of the snapshot, and what it was then is not kept any
    /// more.
    #[error(
        "what a record was at the time of the snapshot is not kept any more, or was not kept because its commit was \
         large: open a new snapshot, or give workers larger archives"
    )]
    SnapshotTooOld,
    /// The snapshot was opened in an earlier epoch of the configuration, or before a table had
    /// grown or was dropped.
    #[error("the cluster has other nodes or tables since the snapshot was opened: open a new one")]
    SnapshotOver,
    /// Under `vts`, too many clients have committed in this epoch: their vector leaves no room in a
    /// round for the records of a snapshot.
    #[error("the vector of {clients} clients leaves no room for a snapshot's records: use protocol dst")]
    Vector {
        /// Clients that the vector names, at least.
        clients: usize,
    },
    /// The transaction names more records than [`SET_MAX`].
    #[error("it names more than {SET_MAX} records, which is the most that one transaction can: split it")]
    Set,
    /// The log entry of the write set is larger than a frame of the client's rings.
    #[error("its changes take {bytes} bytes of log, and at most {max} fit: write fewer or smaller records")]
    LogEntry {
        /// Bytes of the entry.
        bytes: usize,
        /// Bytes of the largest entry for which the client's rings have room.
        max: usize,
    },
    /// The write set touches more nodes than [`LOG_NODES_MAX`].
    #[error("its changes go to {nodes} memory nodes, and at most {LOG_NODES_MAX} fit: write records of fewer shards")]
    LogNodes {
        /// Memory nodes that have a replica of a record which the transaction writes.
        nodes: u32,
    },
    /// A key that does not have the table's width.
    #[error("a key of {found} bytes in a table whose keys have {expected}")]
    Key {
        /// Bytes of the key.
        found: usize,
        /// Bytes of the table's keys.
        expected: usize,
    },
    /// A key without bytes, or longer than the table's longest.
    #[error("a key of {found} bytes in a table whose keys have 1 to {max}")]
    KeyLength {
        /// Bytes of the key.
        found: usize,
        /// Longest key of the table.
        max: usize,
    },
    /// A value that does not have the length of the table's values.
    #[error("a value of {found} bytes in a table whose values have {expected}")]
    ValueLength {
        /// Bytes of the value.
        found: usize,
        /// Bytes of the table's values.
        expected: usize,
    },
    /// A value longer than the table's largest.
    #[error("a value of {found} bytes in a table whose values have at most {max}")]
    Value {
        /// Bytes of the value.
        found: usize,
        /// Largest value of the table.
        max: usize,
    },
    /// A table's shard has no room for another key.
    #[error("the table is full: a part of it has no room left in its {slots} slots; delete records, or make it larger")]
    TableFull {
        /// Slots that each shard of the table has for records.
        slots: u64,
    },
    /// The table is full, and cannot grow: the memory nodes have no room for a larger one.
    #[error(
        "the memory nodes are full: the table has no room left in the {slots} slots of a part of it, and no larger \
         one has room; drop tables, or add memory nodes"
    )]
    NodesFull {
        /// Slots that each shard of the table has for records.
        slots: u64,
    },
    /// The log ring has no room left. It holds the entry of a transaction whose outcome is unknown,
    /// and the entry stays until recovery has seen it.
    #[error("the log is full, and holds a transaction whose outcome is unknown: connect again as a new client")]
    LogInDoubt,
    /// The session validates locally, but was made without a version cache.
    #[error("the session has no version cache to validate by")]
    NoVersionCache,
    /// Shared lock words can name the clients in 50 slots, and this client is in another slot.
    #[error(
        "{} clients can take shared locks at a time, and this one is in slot {slot}: close other clients, or run another \
         protocol",
        SharedLock::CLIENTS_MAX
    )]
    SharedLocks {
        /// The client's slot at the memory nodes.
        slot: u64,
    },
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The client incarnation has used all its transaction ids. The program has to connect again.
    #[error("all transaction ids of this client are used: connect again")]
    TransactionIds,
}

/// A mistake of the program: it uses a slot in a way that no transaction allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misuse {
    /// The slot was made by another transaction, or by an earlier run of the same closure.
    #[error("a slot is used outside of the run of the transaction that made it")]
    OtherRun,
    /// The record has not been fetched since it was named.
    #[error("a record is used that was named, and not fetched since")]
    NotFetched,
    /// The program inserts or deletes a record that it has not named for that
    /// ([`Intent`](crate::Intent)).
    #[error("a record is inserted or deleted that was not named for it")]
    NotNamed,
    /// The program asks for one record twice, to change it in both places at once.
    #[error("a record is named twice, to be changed in both places at once")]
    Twice,
    /// The program changes a record in a snapshot.
    #[error("a record is changed in a snapshot, which only reads: use a transaction")]
    ReadOnly,
    /// The program opens a snapshot, and the protocol's snapshots do not stay open.
    #[error("the cluster's protocol has no snapshots that stay open: make the cluster with protocol `remora`")]
    NoOpenSnapshots,
    /// The program asks for a snapshot, and the protocol has none.
    #[error("the cluster's protocol has no snapshots: make the cluster with protocol `remora` or `drtm-r-clocks`")]
    NoSnapshots,
}

/// Why a transaction has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stop {
    /// The transaction aborted and left no trace; trying again may help.
    #[error("aborted: {0}")]
    Abort(Abort),
    /// A node that the transaction needs is unreachable. The transaction has not committed.
    #[error("unavailable: {0}")]
    Unavailable(FabricError),
    /// The transaction may or may not have committed, because the answer to its log was lost. To
    /// try it again could apply it twice.
    #[error("the outcome of transaction {0} is unknown")]
    Unknown(TransactionId),
    /// The cluster has taken this client for dead, and revoked its access. The transaction has not
    /// committed.
    #[error("this client was taken for dead: connect again")]
    Fenced,
    /// The transaction exceeds a limit. It has not committed.
    #[error("limit: {0}")]
    Limit(Limit),
    /// The program made a mistake. The transaction has not committed.
    #[error("{0}")]
    Misuse(Misuse),
    /// The transaction writes or deletes a record that is not there.
    #[error("a record to be written is not there")]
    Absent,
    /// The transaction inserts a record that is there.
    #[error("a record to be inserted is there already")]
    Exists,
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Stop {
        Stop::Abort(abort)
    }
}

impl From<FabricError> for Stop {
    fn from(error: FabricError) -> Stop {
        if error.fault == Fault::Revoked { Stop::Fenced } else { Stop::Unavailable(error) }
    }
}

impl From<MemoryError> for Stop {
    fn from(error: MemoryError) -> Stop {
        match error {
            MemoryError::Fabric(error) => error.into(),
            error => {
                tracing::error!(%error, "what memory nodes know of their clients cannot be read");
                Stop::Unavailable(FabricError { node: NodeId(0), fault: Fault::Behind })
            }
        }
    }
}

impl From<Limit> for Stop {
    fn from(limit: Limit) -> Stop {
        Stop::Limit(limit)
    }
}

impl From<Misuse> for Stop {
    fn from(misuse: Misuse) -> Stop {
        Stop::Misuse(misuse)
    }
}

// Every step of a transaction returns one of these, so they must stay small.
const _: () = assert!(size_of::<Abort>() <= 16 && size_of::<Stop>() <= 40, "aborts and stops are small values");
