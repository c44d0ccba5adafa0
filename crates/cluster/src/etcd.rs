//! The configuration of client processes on any number of hosts: a key in etcd.
//!
//! ```text
//! PREFIX/CLUSTER/configuration   the membership as JSON, as a file has it
//! PREFIX/CLUSTER/process/NAME    a process that lives; goes with its lease; says nothing else
//! ```
//!
//! A change replaces the value by a transaction of etcd's that compares the revision which was
//! read. If another process was faster, the change is made anew. It begins with the value that was
//! seen last, so that it costs one round trip if no other process interferes. A client that runs
//! transactions has another thread, the [helper](Configuration::helper), make the change.
//!
//! A look returns the value that was seen last, by a change or by the watch, and waits for nothing.
//! [`Configuration::refresh`] asks etcd, with the agreement of its servers, for a newer value.
//!
//! **An answer that is lost** leaves open whether a change was made. Not every change is
//! idempotent: a client that leaves twice is told that it is dead.
//!
//! 1. The process sends the same transaction again. Etcd carries it out at most once, because the
//!    first time changes the revision.
//! 2. If the comparison fails, the process looks up the value that followed the compared one in
//!    etcd's history. Every value names the change that made it: either this change, or another
//!    one, and then this change was not made.
//!
//! **A watch** of all keys, in a thread of its own, shows changes in the order of their revisions.
//! A process puts its key before any of its clients join. So a process has ended if the watch has
//! it in the membership but has no key of it. The process has a second to put its key again: when
//! etcd itself has stood still, all keys may be gone with their leases. A watch that breaks is
//! begun again with a look at everything. Only the last state counts, so nothing is lost by that.
//! The watch does not ask for history that etcd has compacted.
//!
//! **While etcd is unreachable**, or this process is partitioned with a minority of its servers,
//! changes fail: the first after [`EtcdOptions::patience`], later ones at once. A look returns what
//! was seen last. So no client renews its lease, and no client suspects another: see
//! [`LeaseWatch`](crate::LeaseWatch). If etcd has not heard of a process for [`EtcdOptions::ttl`],
//! the process is taken for ended, and its clients are recovered. It puts its key again as soon as
//! it can.
//!
//! Every renewal of a lease writes the whole value, and etcd keeps all of them until it is told to
//! compact its history: run it with
//! `--auto-compaction-mode=periodic --auto-compaction-retention=5m`, or the like.
//!
//! Needs the cargo feature `etcd`, and the packages `protobuf-compiler libprotobuf-dev` to build.
//! Without it everything is here, but [`Etcd::open`] says what is missing.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(doc)]
use crate::Configuration;

#[cfg(not(feature = "etcd"))]
mod absent;
#[cfg(feature = "etcd")]
mod present;

#[cfg(not(feature = "etcd"))]
use absent as backend;
#[cfg(feature = "etcd")]
use present as backend;

pub(crate) use backend::BUILT;
pub use backend::Etcd;

/// Where etcd is, and how to talk to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdOptions {
    /// Host and port of its servers; each of them will do, and more are asked when one is down.
    pub endpoints: Vec<String>,
    /// What the keys begin with, without a slash at the end. `/remora` by default; clusters have
    /// folders of their own there.
    pub prefix: String,
    /// How long a call waits for etcd at most, until it fails. 2 s by default.
    pub patience: Duration,
    /// So long after etcd has heard of a process last, the process is taken for one that has ended.
    /// 5 s by default; etcd counts whole seconds, and takes 2 at least.
    pub ttl: Duration,
    /// Talk TLS.
    pub tls: Option<EtcdTls>,
    /// Who to be there.
    pub user: Option<EtcdUser>,
}

impl EtcdOptions {
    /// The defaults, for these servers.
    #[must_use]
    pub fn of(endpoints: Vec<String>) -> EtcdOptions {
        let (patience, ttl) = (Duration::from_secs(2), Duration::from_secs(5));
        EtcdOptions { endpoints, prefix: "/remora".to_owned(), patience, ttl, tls: None, user: None }
    }
}

/// Whom to trust, and what to show. Files are PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdTls {
    /// Certificates to trust: of an authority, or the servers' own.
    pub ca: PathBuf,
    /// What to show servers that ask for it: the certificate, and its private key, for nobody else
    /// to read.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd's.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl EtcdUser {
    /// With the password that stands in a file, for nobody else to read. The end of its line does
    /// not count.
    pub fn read(name: impl Into<String>, password: &Path) -> Result<EtcdUser, EtcdFault> {
        let password = read_private(password)?;
        Ok(EtcdUser { name: name.into(), password: password.trim_end_matches(['\n', '\r']).to_owned() })
    }
}

/// A password is not for logs.
impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUser({:?}, ..)", self.name)
    }
}

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

/// Permission bits of others than the owner.
const OTHERS: u32 = 0o077;

/// Reads a text that is secret. What others may read protects nothing, and is refused.
fn read_private(path: &Path) -> Result<String, EtcdFault> {
    let unreadable = |cause| EtcdFault::File { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(EtcdFault::Exposed { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}
