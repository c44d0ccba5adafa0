//! The errors of this library. [`Error`] is about a transaction. [`ConnectError`] and [`OpenError`]
//! are about what comes before: clusters, tables and workers.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use remora_fabric::shm::file;
use remora_fabric::sim::SimError;
use remora_fabric::{FabricError, Fault};
use remora_index::btree::Damaged;
use remora_membership::ConfigurationError;
use remora_node::MemoryError;
use remora_record::TransactionId;
use remora_txn::{Abort, Decision, Limit, Stop, Tried, Tx};

pub use crate::open_error::{OpenError, OpenErrorKind};

/// Why a cluster could not be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A memory node cannot be used.
    #[error("memory node {name} {fault}")]
    Node {
        /// The node's address or path.
        name: String,
        /// Why the node cannot be used.
        fault: Fault,
    },
    /// A file of a memory node cannot be used.
    #[error(transparent)]
    File(#[from] file::OpenError),
    /// The content of the memory nodes cannot be used, or an option does not fit them.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// A memory node has missed an epoch: the cluster has gone on without it. No configuration was
    /// named that would say so.
    #[error(
        "memory node {name} has missed an epoch: its cluster has gone on without it; name the cluster's configuration \
         (--configuration), which says so, or start this node again, empty"
    )]
    Behind {
        /// The node's address or path.
        name: String,
    },
    /// The configuration that was named is new, and clients are connected that use another one. A
    /// client of the new configuration would take them for dead, and free their locks.
    #[error(
        "{configuration} is a new configuration, and clients are connected to these memory nodes that go by another one: {}; \
         name their configuration, or, if that is lost, end these clients first",
        numbers(clients)
    )]
    OtherConfiguration {
        /// The place of the configuration that was named.
        configuration: String,
        /// The clients that are connected, and that this configuration does not know.
        clients: Vec<u32>,
    },
    /// The configuration is that of another cluster.
    #[error("the configuration of cluster {configuration:010x} cannot be that of cluster {cluster:010x}")]
    ConfigurationOfOtherCluster {
        /// Id of the cluster that the configuration is of.
        configuration: u64,
        /// Id of this cluster.
        cluster: u64,
    },
    /// A memory node cannot be added.
    #[error("memory node {name} cannot be added: {why}")]
    CannotAdd {
        /// The node's address.
        name: String,
        /// Why the node cannot be added.
        why: String,
    },
}

/// Writes numbers as a list that a person can read.
pub(crate) fn numbers(clients: &[u32]) -> String {
    let numbers: Vec<_> = clients.iter().map(u32::to_string).collect();
    numbers.join(", ")
}

/// Why a simulated cluster could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedError {
    /// The cluster's hardware cannot be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The cluster's memory nodes cannot be laid out.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The record that an error is about: its table and its key, as far as they are known.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Named(Option<Box<(String, Vec<u8>)>>);

impl Named {
    /// Names a record by its table, and by the bytes of its key.
    #[must_use]
    pub fn new(table: &str, key: &[u8]) -> Named {
        Named(Some(Box::new((table.to_owned(), key.to_owned()))))
    }

    /// Names another record, in the same memory if there is any.
    pub(crate) fn rename(&mut self, table: &str, key: &[u8]) {
        const ROOM: usize = 64;
        let room = || Box::new((String::with_capacity(ROOM), Vec::with_capacity(ROOM)));
        let (of_table, of_key) = &mut **self.0.get_or_insert_with(room);
        of_table.clear();
        of_table.push_str(table);
        of_key.clear();
        of_key.extend_from_slice(key);
    }

    pub(crate) fn of(name: Option<(&remora_index::Table, remora_record::Key)>) -> Named {
        name.map_or(Named::default(), |(table, key)| Named::new(table.name(), key.bytes()))
    }

    /// Returns the table's name, if it is known.
    #[must_use]
    pub fn table(&self) -> Option<&str> {
        self.0.as_ref().map(|name| name.0.as_str())
    }

    /// Returns the key, if it is known, in the encoding of [`Key`](crate::Key).
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.as_ref().map(|name| name.1.as_slice()).filter(|key| !key.is_empty())
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.table(), self.key()) {
            (Some(table), Some(key)) => write!(f, "record {} of table {table:?}", Printed(key)),
            (Some(table), None) => write!(f, "a record of table {table:?}"),
            _ => f.write_str("a record"),
        }
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Named({self})")
    }
}

/// Writes the bytes of a key for a person: as text if they are text, and otherwise in hex. If the
/// bytes can be a number, writes the number, too.
pub(crate) struct Printed<'k>(pub(crate) &'k [u8]);

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Printed(key) = self;
        if key.iter().all(|byte| byte.is_ascii_graphic()) {
            return write!(f, "\"{}\"", key.escape_ascii());
        }
        f.write_str("0x")?;
        key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if [2, 4, 8, 16].contains(&key.len()) {
            write!(f, " ({})", key.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))?;
        }
        Ok(())
    }
}

/// The cause that ended a transaction, the record that the cause is about, and how often and for
/// how long the transaction was tried.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reason<T> {
    /// The cause. If the transaction aborted several times, it is the cause of the last abort.
    pub cause: T,
    details: Option<Box<Details>>,
}

#[derive(Clone, Debug, Default)]
struct Details {
    record: Named,
    tried: Tried,
}

impl<T> Reason<T> {
    pub(crate) const fn new(cause: T) -> Reason<T> {
        Reason { cause, details: None }
    }

    pub(crate) fn of(cause: T, record: Named) -> Reason<T> {
        Reason {
            details: (record != Named::default()).then(|| Box::new(Details { record, tried: Tried::default() })),
            cause,
        }
    }

    fn with(self, record: Named, tried: Tried) -> Reason<T> {
        let known = self.details.map(|details| details.record).filter(|known| *known != Named::default());
        Reason { cause: self.cause, details: Some(Box::new(Details { record: known.unwrap_or(record), tried })) }
    }

    /// Returns the record that the cause is about, if it is about one that is known.
    #[must_use]
    pub fn record(&self) -> Option<&Named> {
        self.details.as_ref().map(|details| &details.record).filter(|record| record.table().is_some())
    }

    fn tried(&self) -> Tried {
        self.details.as_ref().map(|details| details.tried).unwrap_or_default()
    }

    /// Returns how often the transaction was tried. It is 0 in an error that the transaction's
    /// closure gets, because the transaction has not ended yet.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.tried().attempts
    }

    /// Returns for how long the transaction was tried, counted from its first abort.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.tried().elapsed)
    }
}

impl<T> From<T> for Reason<T> {
    fn from(cause: T) -> Reason<T> {
        Reason::new(cause)
    }
}

/// A mistake of the program: it uses a handle in a way that is not allowed. The transaction has not
/// committed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// This session cannot use a table. The table belongs to another cluster, or to a protocol that
    /// cannot run together with the session's protocol.
    #[error(transparent)]
    Table(Box<OpenError>),
    /// A table was dropped, by this client or by another one.
    #[error(
        "table {table:?} was dropped, and its rows are gone: create it again, or open the table that has its name now"
    )]
    Dropped {
        /// The name that the table had.
        table: String,
    },
    /// The program uses a slot of another transaction, or of an earlier run of the same closure.
    #[error(
        "a slot of another transaction, or of an earlier run of this closure, is used: name the record again by `want` in \
         each run"
    )]
    OtherRun,
    /// The program reads or changes a record before it was fetched.
    #[error("{0} was named, and not fetched since: await `fetch` between `want` and the use of its slot")]
    NotFetched(Named),
    /// The program inserts or deletes a record that was not named for that
    /// ([`Intent`](crate::Intent)).
    #[error(
        "{0} is to be inserted or deleted, and was not named for that: name it by `want_for` with `Intent::Insert` or \
         `Intent::Delete`, and fetch it then"
    )]
    NotNamed(Named),
    /// The program asks for one record twice, to change it in both places at once
    /// ([`Transaction::get_many_mut`](crate::Transaction::get_many_mut)).
    #[error("a record is named twice, to be changed in both places at once: name it once")]
    Twice,
    /// The closure of a snapshot changes a record.
    #[error("a record is changed in a snapshot, which only reads: use a transaction")]
    ReadOnly,
    /// A snapshot of another cluster is read.
    #[error("a snapshot is read in another cluster than the one that it was opened in")]
    SnapshotOfOtherCluster,
    /// The cluster's protocol has no snapshots that stay open.
    #[error("the cluster's protocol has no snapshots that stay open: make the cluster with protocol `remora`")]
    NoOpenSnapshots,
    /// The cluster's protocol has no snapshots.
    #[error("the cluster's protocol has no snapshots: make the cluster with protocol `remora` or `drtm-r-clocks`")]
    NoSnapshots,
    /// The program asks to change a value in place, but the table does not keep its values in one
    /// piece.
    #[error(
        "values of table {table:?} have different lengths, or are too long to be changed in place: `update` replaces them"
    )]
    NotInPlace {
        /// The table's name.
        table: String,
    },
    /// The program links or discards a large value by a table that has not stored it.
    #[error("a large value that was uploaded to another table is used with table {table:?}: upload it to this one")]
    OtherLargeTable {
        /// The name of the table by which the value is used.
        table: String,
    },
    /// Every coroutine of a pool waits for a transaction of the same pool. So no coroutine is left
    /// to run this transaction.
    #[error(
        "all {coroutines} coroutines of the pool wait for transactions that were sent to the same pool from within others, \
         so that none is left to run this one: make it part of the transaction that waits for it, or give the pool more \
         threads or coroutines"
    )]
    PoolWaitsForItself {
        /// Number of coroutines of the pool, over all its threads.
        coroutines: usize,
    },
    /// A thread of a pool makes a blocking call of the same pool.
    #[error("a call that blocks was made on a thread of its own pool: await the form that does not block")]
    PoolThreadBlocked,
}

/// Why a transaction has no result. Each variant says whether the transaction may have committed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The transaction aborted again and again, mostly because of other transactions, until its
    /// attempts or its patience were over. It has not committed, and has left no trace. The cause
    /// is that of the last attempt.
    Aborted(Reason<Abort>),
    /// The transaction may or may not have committed, because the answer was lost. The library does
    /// not try it again. [`Session::resolve`](crate::Session::resolve) finds out whether it has
    /// committed.
    Unknown(TransactionId),
    /// A memory node that the transaction needs is unreachable, and no epoch without this node has
    /// begun in time. The transaction has not committed. If the cluster has no controller, no such
    /// epoch begins. Then a worker does not connect again to a node that it has lost: make a new
    /// worker.
    Unavailable(FabricError),
    /// The cluster has taken this client for dead, and another client has ended what it had begun.
    /// The transaction has not committed. If [`Session::transact`](crate::Session::transact)
    /// returns this, the worker cannot be used any more: make a new worker, which is a new client.
    /// If a [`Begun`](crate::Begun) transaction returns it, the next `transact` of the session
    /// waits until the client has connected again.
    Fenced,
    /// The transaction exceeds a limit. It has not committed.
    Limit(Reason<Limit>),
    /// The program has made a mistake: it has used a handle where the handle does not belong, or
    /// too early. The transaction has not committed.
    Misuse(Misuse),
    /// A record that the transaction requires or writes is absent. The transaction has not
    /// committed. The absence was validated, as for an error of the application ([`Error::User`]).
    NotFound(Named),
    /// A record that the transaction inserts is present already. The transaction has not committed.
    /// The presence was validated, as for an error of the application ([`Error::User`]).
    Exists(Named),
    /// The transaction links a large value that another client has uploaded
    /// ([`Large::put`](crate::Large::put)). It has not committed.
    Foreign {
        /// The table's name.
        table: String,
        /// The client that has uploaded the value.
        by: u32,
        /// The client whose transaction links the value.
        client: u32,
    },
    /// A thread of the pool has died. Its work has panicked in a place from which the panic cannot
    /// be passed to the caller, for example in a destructor. The other threads of the pool go on.
    WorkerDied {
        /// Whether the transaction may have committed. If this is false, it has not committed,
        /// because no thread of the pool was left to begin it.
        may_have_committed: bool,
    },
    /// A node of an ordered table, or a record of a table of bytes, has content that makes no
    /// sense. Either memory was damaged, or two keys of a table of bytes have the same digest of
    /// 120 bits. The transaction has not committed.
    Damaged {
        /// The table's name.
        table: String,
        /// The part of the content that makes no sense.
        what: Damaged,
    },
    /// The application's own error, which its closure has returned. The transaction has not
    /// committed. The reads that made the closure give up were validated.
    User(Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Makes an error of the application, for a transaction's closure to return. The transaction
    /// then writes nothing.
    pub fn user(error: impl StdError + Send + Sync + 'static) -> Error {
        Error::User(Box::new(error))
    }

    /// Returns the application's own error, if this is one and it has the type `E`.
    #[must_use]
    pub fn downcast_user<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Error::User(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the cause of an [`Error::Aborted`], and `None` for other errors.
    #[must_use]
    pub fn abort(&self) -> Option<Abort> {
        if let Error::Aborted(reason) = self { Some(reason.cause) } else { None }
    }

    /// Returns the limit of an [`Error::Limit`], and `None` for other errors.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        if let Error::Limit(reason) = self { Some(reason.cause) } else { None }
    }

    /// Returns the stop of a transaction whose closure has returned this error. Returns `None` if
    /// the error is a decision of the application: then the transaction validates its reads and
    /// gives up. If the closure has awaited another transaction that was given up, this transaction
    /// is not tried again for that reason.
    pub(crate) fn stop(&self) -> Option<Stop> {
        match self {
            Error::Aborted(reason) if reason.attempts() > 0 => None,
            Error::Aborted(reason) => Some(Stop::Abort(reason.cause)),
            Error::Unknown(id) => Some(Stop::Unknown(*id)),
            Error::Unavailable(error) => Some(Stop::Unavailable(*error)),
            Error::Fenced => Some(Stop::Fenced),
            Error::Limit(reason) => Some(Stop::Limit(reason.cause)),
            Error::Misuse(misuse) => Some(Stop::Misuse(misuse.kind())),
            Error::NotFound(_)
            | Error::Exists(_)
            | Error::Foreign { .. }
            | Error::WorkerDied { .. }
            | Error::Damaged { .. }
            | Error::User(_) => None,
        }
    }

    /// Decides what a transaction does after its closure has returned. If the closure has returned
    /// an error, or has named a record that was refused, the transaction stops. If the error is a
    /// decision of the application, it validates its reads and gives up.
    #[cold]
    pub(crate) fn decide<T>(tx: &mut Tx<'_>, returned: &mut Result<T, Error>, refused: Option<Error>) -> Decision {
        if let (Ok(_), Some(refused)) = (&returned, refused) {
            *returned = Err(refused);
        }
        match returned {
            Ok(_) => Decision::Commit,
            Err(error) => error.stop().map_or(Decision::GiveUp, |stop| tx.stop(stop)),
        }
    }

    /// Makes the error of a transaction that has stopped for this reason, about this record.
    pub(crate) fn of(stop: Stop, record: Named) -> Error {
        match stop {
            Stop::Abort(abort) => Error::Aborted(Reason::of(abort, record)),
            Stop::Unknown(id) => Error::Unknown(id),
            Stop::Unavailable(error) => Error::Unavailable(error),
            Stop::Fenced => Error::Fenced,
            Stop::Limit(limit) => Error::Limit(Reason::of(limit, record)),
            Stop::Misuse(remora_txn::Misuse::OtherRun) => Error::Misuse(Misuse::OtherRun),
            Stop::Misuse(remora_txn::Misuse::NotFetched) => Error::Misuse(Misuse::NotFetched(record)),
            Stop::Misuse(remora_txn::Misuse::NotNamed) => Error::Misuse(Misuse::NotNamed(record)),
            Stop::Misuse(remora_txn::Misuse::Twice) => Error::Misuse(Misuse::Twice),
            Stop::Misuse(remora_txn::Misuse::ReadOnly) => Error::Misuse(Misuse::ReadOnly),
            Stop::Misuse(remora_txn::Misuse::NoSnapshots) => Error::Misuse(Misuse::NoSnapshots),
            Stop::Misuse(remora_txn::Misuse::NoOpenSnapshots) => Error::Misuse(Misuse::NoOpenSnapshots),
            Stop::Absent => Error::NotFound(record),
            Stop::Exists => Error::Exists(record),
        }
    }

    /// Adds to the error of a transaction that was given up the record that was in its way, and how
    /// often and for how long it was tried.
    pub(crate) fn given_up(self, record: Named, tried: Tried) -> Error {
        match self {
            Error::Aborted(reason) => Error::Aborted(reason.with(record, tried)),
            Error::Limit(reason) if reason.cause == Limit::Deadline => Error::Limit(reason.with(record, tried)),
            error => error,
        }
    }
}

impl Misuse {
    /// Returns the mistake in the terms of the crate below.
    fn kind(&self) -> remora_txn::Misuse {
        match self {
            Misuse::NotFetched(_) => remora_txn::Misuse::NotFetched,
            Misuse::NotNamed(_) => remora_txn::Misuse::NotNamed,
            Misuse::Twice => remora_txn::Misuse::Twice,
            Misuse::ReadOnly => remora_txn::Misuse::ReadOnly,
            Misuse::NoSnapshots => remora_txn::Misuse::NoSnapshots,
            Misuse::NoOpenSnapshots => remora_txn::Misuse::NoOpenSnapshots,
            _ => remora_txn::Misuse::OtherRun,
        }
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        Error::of(stop, Named::default())
    }
}

impl From<FabricError> for Error {
    fn from(error: FabricError) -> Error {
        Stop::from(error).into()
    }
}

impl From<Abort> for Error {
    fn from(abort: Abort) -> Error {
        Error::Aborted(abort.into())
    }
}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Error {
        Error::Limit(limit.into())
    }
}

impl From<Misuse> for Error {
    fn from(misuse: Misuse) -> Error {
        Error::Misuse(misuse)
    }
}

/// Makes an error of a table that cannot be used. This is a mistake of the program, except if a
/// memory node is unreachable or the epoch is changing.
impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        match error.memory() {
            Some(MemoryError::Fabric(error)) => (*error).into(),
            Some(MemoryError::EpochChanging) => Abort::Changed.into(),
            Some(MemoryError::Dropped { table }) => Error::Misuse(Misuse::Dropped { table: table.clone() }),
            _ => Error::Misuse(Misuse::Table(Box::new(error))),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Aborted(reason) if reason.attempts() == 0 => {
                write!(f, "the transaction aborted: {}", Cause(reason.cause, reason.record()))
            }
            Error::Aborted(reason) => {
                let tried = Often(reason.tried());
                write!(f, "the transaction aborted every time it was tried: {tried}; the last time, ")?;
                Cause(reason.cause, reason.record()).fmt(f)
            }
            Error::Unknown(id) => write!(f, "transaction {id} may or may not have committed: its answer was lost"),
            Error::Unavailable(error) => write!(f, "the transaction did not commit: {error}"),
            Error::Fenced => f.write_str(
                "the transaction did not commit: this client was taken for dead; connect again, as a new one",
            ),
            Error::Limit(Reason { cause: Limit::Deadline, details: Some(details) }) => {
                let tried = Often(details.tried);
                write!(f, "the transaction did not commit: the deadline has passed; it was tried {tried}")?;
                let Some(last) = details.tried.last else { return Ok(()) };
                let record = Some(&details.record).filter(|record| record.table().is_some());
                write!(f, "; the last time, {}", Cause(last, record))
            }
            Error::Limit(reason) => {
                write!(f, "the transaction did not commit: {}", reason.cause)?;
                match reason.record() {
                    Some(record) => write!(f, " (at {record})"),
                    None => Ok(()),
                }
            }
            Error::Misuse(misuse) => misuse.fmt(f),
            Error::NotFound(record) => write!(f, "{record} is not there, and the transaction needs it"),
            Error::Exists(record) => write!(f, "{record} is there already, and the transaction was to insert it"),
            Error::Foreign { table, by, client } => write!(
                f,
                "a large value of table {table:?} was uploaded by client {by}, and client {client} was to link it: only the \
                 client can that has uploaded it"
            ),
            Error::WorkerDied { may_have_committed: true } => f.write_str(
                "the thread of the pool that ran the transaction has died (its panic is on standard error), and the \
                 transaction may or may not have committed: look at what it was to change before you repeat it",
            ),
            Error::WorkerDied { may_have_committed: false } => f.write_str(
                "the transaction did not commit: all threads of the pool have died (their panics are on standard error); \
                 make a new pool",
            ),
            Error::Damaged { table, what } => write!(f, "table {table:?}: {what}"),
            Error::User(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Aborted(reason) => Some(&reason.cause),
            Error::Unavailable(error) => Some(error),
            Error::Limit(reason) => Some(&reason.cause),
            Error::Misuse(misuse) => Some(misuse),
            Error::Damaged { what, .. } => Some(what),
            Error::User(error) => error.source(),
            Error::Unknown(_)
            | Error::Fenced
            | Error::NotFound(_)
            | Error::Exists(_)
            | Error::Foreign { .. }
            | Error::WorkerDied { .. } => None,
        }
    }
}

/// Writes an abort and the record that it is about.
struct Cause<'r>(Abort, Option<&'r Named>);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause(abort, Some(record)) = self else { return self.0.fmt(f) };
        match abort {
            Abort::Locked(lock) => {
                write!(f, "{record} was locked")?;
                lock.holder().map_or(Ok(()), |holder| write!(f, " by transaction {holder}"))
            }
            Abort::Changed => write!(f, "{record} changed after it was read"),
            abort => write!(f, "{abort} ({record})"),
        }
    }
}

/// Writes how often and for how long a transaction was tried.
struct Often(Tried);

impl fmt::Display for Often {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Often(Tried { attempts, elapsed, .. }) = self;
        match attempts {
            1 => f.write_str("once"),
            _ => write!(f, "{attempts} times in {:.3} s", Duration::from_nanos(*elapsed).as_secs_f64()),
        }
    }
}
