//! Why a gateway does not begin to serve.

use std::io;

use remora::OpenError;
use remora_fabric::SystemError;

use super::READ_BYTES;

/// Why a gateway could not begin to serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is no listener, or no thread, or no connection would be served.
    #[error("a gateway needs {0}")]
    Nothing(&'static str),
    /// The limit of memory does not hold what threads read at once.
    #[error("{0} bytes for clients' input are too few: a gateway needs at least {MEMORY_MIN} for each thread")]
    Memory(usize),
    /// A thread could not get a worker of the cluster.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system refused an operation.
    #[error("cannot {what}: {cause}")]
    System {
        /// The operation that was refused.
        what: &'static str,
        /// The system's error.
        cause: SystemError,
    },
}

/// The least limit of unfinished input: a few buffers of a lane.
pub(super) const MEMORY_MIN: usize = 16 * READ_BYTES;

/// Makes the error of an operation that the system has refused.
pub(super) fn cannot(what: &'static str) -> impl Fn(io::Error) -> ServeError {
    move |error| ServeError::System { what, cause: error.into() }
}
