//! What can go wrong: with a transaction ([`Error`]), or before there is one ([`OpenError`]).

use std::error::Error as StdError;
use std::fmt;

use remora_fabric::FabricError;
use remora_fabric::sim::SimError;
use remora_index::btree::Damaged;
use remora_sync::TransactionId;
use remora_txn::{Abort, Limit, Stop};

/// Why a cluster, table or worker could not be made or opened.
pub type OpenError = remora_index::IndexError;

/// Why a simulated cluster could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedError {
    /// Its hardware cannot be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// Its memory nodes cannot be laid out.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Why a transaction has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It met other transactions, again and again: see the cause. It has left no trace.
    Aborted(Abort),
    /// It may or may not have committed: the answer was lost. Never retried.
    Unknown(TransactionId),
    /// A memory node that it needs is out of reach, and no epoch without it has begun in time; or there is nobody who would
    /// begin one, and then a worker does not connect again to a node that it has lost: make a new one. It has not committed.
    Unavailable(FabricError),
    /// This client was taken for dead, and what it had begun was ended by another. The transaction has not committed. The
    /// worker is of no use any more: make a new one, which is a new client.
    Fenced,
    /// It exceeds a limit. It has not committed.
    Limit(Limit),
    /// A record that it wants to have or to write is not there. Validated like an error of the application.
    NotFound,
    /// A record that it inserts is there already. Validated like an error of the application.
    Exists,
    /// A large value that it links was uploaded by another client: see [`Large::put`](crate::Large::put).
    Foreign,
    /// A node of an ordered table makes no sense: the memory that it is in was damaged.
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
    /// An error of the application, to be returned by a transaction's closure: the transaction writes nothing.
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

    /// What the protocol is to do about it: stop, or, for a decision of the application, validate and give up.
    pub(crate) fn into_stop(self) -> Result<Stop, Error> {
        match self {
            Error::Aborted(abort) => Ok(Stop::Abort(abort)),
            Error::Unknown(id) => Ok(Stop::Unknown(id)),
            Error::Unavailable(error) => Ok(Stop::Unavailable(error)),
            Error::Fenced => Ok(Stop::Fenced),
            Error::Limit(limit) => Ok(Stop::Limit(limit)),
            Error::NotFound | Error::Exists | Error::Foreign | Error::Damaged { .. } | Error::User(_) => Err(self),
        }
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        match stop {
            Stop::Abort(abort) => Error::Aborted(abort),
            Stop::Unknown(id) => Error::Unknown(id),
            Stop::Unavailable(error) => Error::Unavailable(error),
            Stop::Fenced => Error::Fenced,
            Stop::Limit(limit) => Error::Limit(limit),
            Stop::Absent => Error::NotFound,
            Stop::Exists => Error::Exists,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Aborted(cause) => {
                write!(f, "the transaction aborted every time it was tried; the last time, {cause}")
            }
            Error::Unknown(id) => write!(f, "transaction {id} may or may not have committed: its answer was lost"),
            Error::Unavailable(error) => write!(f, "the transaction did not commit: {error}"),
            Error::Fenced => f.write_str(
                "the transaction did not commit: this client was taken for dead; connect again, as a new one",
            ),
            Error::Limit(limit) => write!(f, "the transaction did not commit: {limit}"),
            Error::NotFound => f.write_str("a record that the transaction needs is not there"),
            Error::Exists => f.write_str("a record that the transaction inserts is there already"),
            Error::Foreign => f.write_str("a large value can be linked only by the client that has uploaded it"),
            Error::Damaged { table, what } => write!(f, "ordered table {table:?}: {what}"),
            Error::User(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Aborted(cause) => Some(cause),
            Error::Unavailable(error) => Some(error),
            Error::Limit(limit) => Some(limit),
            Error::Damaged { what, .. } => Some(what),
            Error::User(error) => error.source(),
            Error::Unknown(_) | Error::Fenced | Error::NotFound | Error::Exists | Error::Foreign => None,
        }
    }
}
