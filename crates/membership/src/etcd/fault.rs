//! Why etcd cannot be used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why etcd cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdFault {
    /// The program cannot talk to etcd at all.
    #[error("this program was built without etcd: build it with --features etcd")]
    NotBuilt,
    /// It does not answer. A change that was asked for may still be made.
    #[error("no answer within {patience:?} ({why}): see that etcd runs there; it is used again as soon as it answers")]
    Away {
        /// The time after which it was given up.
        patience: Duration,
        /// What was last heard of it.
        why: String,
    },
    /// It refuses.
    #[error("it says {0:?}")]
    Refused(String),
    /// All the time others made changes first. Nothing has changed.
    #[error("for {0:?}, others were faster: there are too many clients for one etcd, or it is too slow")]
    Overtaken(Duration),
    /// An answer was lost, and etcd has compacted what would tell.
    #[error("it is not known whether a change was made: its answer was lost, and etcd has compacted its history since")]
    Unsettled,
    /// It has lost what it had.
    #[error("it is at revision {found}, and was at {known}: it has lost changes, so start all clients again")]
    WentBack {
        /// Revision that was found.
        found: i64,
        /// Revision that was seen before.
        known: i64,
    },
    /// It has lost what it had, and goes on from something older.
    #[error(
        "its membership is of generation {found}, and was of {known}: it has lost changes, so start all clients again"
    )]
    Lost {
        /// Generation that was found.
        found: u64,
        /// Generation that was seen before.
        known: u64,
    },
    /// A file of a certificate, key or password cannot be read.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Others than its owner may read a file that is secret.
    #[error("others may read {path} (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Addresses or certificates make no sense.
    #[error("{0}")]
    Unusable(String),
    /// This process cannot have what it takes: a thread, memory.
    #[error(transparent)]
    System(io::Error),
}
