//! What can go wrong: with a transaction ([`Error`]), or before there is one ([`OpenError`]).

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
    /// A memory node cannot be had.
    #[error("memory node {name} {fault}")]
    Node {
        /// The node's address or path.
        name: String,
        /// Why.
        fault: Fault,
    },
    /// A file of a memory node cannot be used.
    #[error(transparent)]
    File(#[from] file::OpenError),
    /// What the nodes hold cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// No configuration was named, and a memory node has something that the others have gone on
    /// without.
    #[error(
        "memory node {name} has missed an epoch: its cluster has gone on without it; name the cluster's configuration \
         (--configuration), which says so, or start this node again, empty"
    )]
    Behind {
        /// The node's address or path.
        name: String,
    },
    /// Clients are at work that go by another configuration than the one that was named, which is
    /// new. It would take them for dead, and free their locks.
    #[error(
        "{configuration} is a new configuration, and clients are connected to these memory nodes that go by another one: {}; \
         name their configuration, or, if that is lost, end these clients first",
        numbers(clients)
    )]
    OtherConfiguration {
        /// The place of the configuration that was named.
        configuration: String,
        /// Clients that are connected and that this configuration does not know.
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
        /// Why.
        why: String,
    },
}

/// Numbers for a reader.
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

/// The record that an error is about: its table and its key, if they are known.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Named(Option<Box<(String, Vec<u8>)>>);

impl Named {
    pub(crate) fn new(table: &str, key: &[u8]) -> Named {
        Named(Some(Box::new((table.to_owned(), key.to_owned()))))
    }

    pub(crate) fn of(name: Option<(&remora_index::Table, remora_record::Key)>) -> Named {
        name.map_or(Named::default(), |(table, key)| Named::new(table.name(), key.bytes()))
    }

    /// The table's name.
    #[must_use]
    pub fn table(&self) -> Option<&str> {
        self.0.as_ref().map(|name| name.0.as_str())
    }

    /// The key, encoded as [`Key`](crate::Key) says.
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

/// The bytes of a key for a reader: as text if they are, and otherwise in hex; as a number, too, if
/// they can be one.
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

/// What ended a transaction, the record that it is about, and how often and for how long the
/// transaction was tried.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reason<T> {
    /// The cause; of an abort, that of the last attempt.
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

    /// The record that it is about, if it is about one and that is known.
    #[must_use]
    pub fn record(&self) -> Option<&Named> {
        self.details.as_ref().map(|details| &details.record).filter(|record| record.table().is_some())
    }

    fn tried(&self) -> Tried {
        self.details.as_ref().map(|details| details.tried).unwrap_or_default()
    }

    /// How often the transaction was tried; 0 within its closure, where that is not decided yet.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.tried().attempts
    }

    /// How long it was tried, from its first abort on.
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

/// The mistake of a program that uses a handle as it must not. A transaction that meets one is not
/// committed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A table cannot be used by this session: it is of another cluster, or of a protocol that
    /// cannot run together with the session's.
    #[error(transparent)]
    Table(Box<OpenError>),
    /// A table was dropped, by this client or another one.
    #[error(
        "table {table:?} was dropped, and its rows are gone: create it again, or open the table that has its name now"
    )]
    Dropped {
        /// The table.
        table: String,
    },
    /// A slot of another transaction, or of an earlier run of the same closure.
    #[error(
        "a slot of another transaction, or of an earlier run of this closure, is used: name the record again by `want` in \
         each run"
    )]
    OtherRun,
    /// A record is looked at or changed before it was fetched.
    #[error("{0} was named, and not fetched since: await `fetch` between `want` and the use of its slot")]
    NotFetched(Named),
    /// A record is inserted or deleted that was not named for that.
    #[error(
        "{0} is to be inserted or deleted, and was not named for that: name it by `want_for` with `Intent::Insert` or \
         `Intent::Delete`, and fetch it then"
    )]
    NotNamed(Named),
    /// One record is to be changed in two places at once: see
    /// [`Transaction::get_many_mut`](crate::Transaction::get_many_mut).
    #[error("a record is named twice, to be changed in both places at once: name it once")]
    Twice,
    /// A value is to be changed in place that is not kept in one piece.
    #[error(
        "values of table {table:?} have different lengths, or are too long to be changed in place: `update` replaces them"
    )]
    NotInPlace {
        /// The table.
        table: String,
    },
    /// A large value is linked or discarded by a table that has not stored it.
    #[error("a large value that was uploaded to another table is used with table {table:?}: upload it to this one")]
    OtherLargeTable {
        /// The table that it is used with.
        table: String,
    },
    /// Every coroutine of a pool waits for a transaction of the same pool, so that none is left to
    /// run this one.
    #[error(
        "all {coroutines} coroutines of the pool wait for transactions that were sent to the same pool from within others, \
         so that none is left to run this one: make it part of the transaction that waits for it, or give the pool more \
         threads or coroutines"
    )]
    PoolWaitsForItself {
        /// Coroutines of the pool, over all its threads.
        coroutines: usize,
    },
    /// A thread of a pool is blocked by a call of the same pool.
    #[error("a call that blocks was made on a thread of its own pool: await the form that does not block")]
    PoolThreadBlocked,
}

/// Why a transaction has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It met other transactions, again and again, until its attempts or its patience were over.
    /// The cause is that of the last attempt. It has left no trace.
    Aborted(Reason<Abort>),
    /// It may or may not have committed: the answer was lost. Never retried;
    /// [`Session::resolve`](crate::Session::resolve) finds out.
    Unknown(TransactionId),
    /// A memory node that it needs is out of reach, and no epoch without it has begun in time; or
    /// there is nobody who would begin one, and then a worker does not connect again to a node that
    /// it has lost: make a new one. It has not committed.
    Unavailable(FabricError),
    /// This client was taken for dead, and what it had begun was ended by another. The transaction
    /// has not committed. From [`Session::transact`](crate::Session::transact): the worker is of no
    /// use any more; make a new one, which is a new client. From a [`Begun`](crate::Begun)
    /// transaction: the next `transact` of the session waits until the client has connected again.
    Fenced,
    /// It exceeds a limit. It has not committed.
    Limit(Reason<Limit>),
    /// A handle was used where it does not belong, or too early: a mistake of the program. It has
    /// not committed.
    Misuse(Misuse),
    /// A record that it wants to have or to write is not there. Validated like an error of the
    /// application.
    NotFound(Named),
    /// A record that it inserts is there already. Validated like an error of the application.
    Exists(Named),
    /// A large value that it links was uploaded by another client: see
    /// [`Large::put`](crate::Large::put).
    Foreign {
        /// The table.
        table: String,
        /// The client that has uploaded it.
        by: u32,
        /// The client that was to link it.
        client: u32,
    },
    /// A thread of the pool has died: what it ran has panicked where no panic can be handed to the
    /// caller, in a destructor, say. The other threads of the pool go on.
    WorkerDied {
        /// Whether the transaction may have committed. Otherwise it has not: no thread is left that
        /// could have begun it.
        may_have_committed: bool,
    },
    /// A node of an ordered table, or a record of a table of bytes, makes no sense: the memory that
    /// it is in was damaged, or two keys of a table of bytes have one digest of 120 bits.
    Damaged {
        /// The table.
        table: String,
        /// What makes no sense.
        what: Damaged,
    },
    /// The application's own error; what made it give up was validated.
    User(Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// An error of the application, to be returned by a transaction's closure: the transaction
    /// writes nothing.
    pub fn user(error: impl StdError + Send + Sync + 'static) -> Error {
        Error::User(Box::new(error))
    }

    /// The application's own error, if it is one of this type.
    #[must_use]
    pub fn downcast_user<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Error::User(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// The cause, if another transaction was in the way.
    #[must_use]
    pub fn abort(&self) -> Option<Abort> {
        if let Error::Aborted(reason) = self { Some(reason.cause) } else { None }
    }

    /// The limit that was exceeded, if it is one.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        if let Error::Limit(reason) = self { Some(reason.cause) } else { None }
    }

    /// What the protocol is to do about it: stop, or, for a decision of the application, validate
    /// and give up. That another transaction was given up, which the closure has awaited, is no
    /// reason to try this one again.
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

    /// What the protocol is to do when a closure has returned an error, or has named a record that
    /// was refused: stop, or, for a decision of the application, validate and give up.
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

    /// Why the floor below has stopped, with the record that it is about.
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
            Stop::Absent => Error::NotFound(record),
            Stop::Exists => Error::Exists(record),
        }
    }

    /// Adds to the error of a transaction that was given up what was in its way, and how often and
    /// for how long it was tried.
    pub(crate) fn given_up(self, record: Named, tried: Tried) -> Error {
        match self {
            Error::Aborted(reason) => Error::Aborted(reason.with(record, tried)),
            Error::Limit(reason) if reason.cause == Limit::Deadline => Error::Limit(reason.with(record, tried)),
            error => error,
        }
    }
}

impl Misuse {
    /// As the floor below counts it.
    fn kind(&self) -> remora_txn::Misuse {
        match self {
            Misuse::NotFetched(_) => remora_txn::Misuse::NotFetched,
            Misuse::NotNamed(_) => remora_txn::Misuse::NotNamed,
            Misuse::Twice => remora_txn::Misuse::Twice,
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

/// A table cannot be used. That memory nodes cannot be reached, or that the epoch is changing, is
/// no mistake of the program.
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

/// An abort, with the record that it is about.
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

/// How often and for how long a transaction was tried.
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
