//! The errors of a configuration in etcd.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why etcd cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdFault {
    /// The program was built without etcd.
    #[error("this program was built without etcd: build it with --features etcd")]
    NotBuilt,
    /// Etcd does not answer. A change that was asked for may still be made later.
    #[error("no answer within {patience:?} ({why}): see that etcd runs there; it is used again as soon as it answers")]
    Away {
        /// The time after which the process stopped waiting.
        patience: Duration,
        /// The last error that was received.
        why: String,
    },
    /// Etcd refuses the request.
    #[error("it says {0:?}")]
    Refused(String),
    /// For this whole time, other processes made their changes first. Nothing has changed.
    #[error("for {0:?}, others were faster: there are too many clients for one etcd, or it is too slow")]
    Overtaken(Duration),
    /// An answer was lost, and etcd has compacted the history that would tell whether the change
    /// was made.
    #[error("it is not known whether a change was made: its answer was lost, and etcd has compacted its history since")]
    Unsettled,
    /// Etcd has lost data: its revision is older than one that was seen before.
    #[error("it is at revision {found}, and was at {known}: it has lost changes, so start all clients again")]
    WentBack {
        /// The revision that was found.
        found: i64,
        /// The revision that was seen before.
        known: i64,
    },
    /// Etcd has lost data, and continues from an older membership.
    #[error(
        "its membership is of generation {found}, and was of {known}: it has lost changes, so start all clients again"
    )]
    Lost {
        /// The generation that was found.
        found: u64,
        /// The generation that was seen before.
        known: u64,
    },
    /// A file of a certificate, key or password cannot be read.
    #[error("{path}: {cause}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// Users other than its owner may read a file that must be secret.
    #[error("others may read {path} (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// The path of the file.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// Addresses or certificates are malformed.
    #[error("{0}")]
    Unusable(String),
    /// The system refuses this process a resource that it needs, such as a thread or memory.
    #[error(transparent)]
    System(io::Error),
}
