//! The options of a configuration in etcd: servers, time limits, certificates, user and password.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fault::EtcdFault;

/// Where etcd is, and how to connect to it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EtcdOptions {
    /// Host and port of etcd's servers. Each of them can answer, and others are asked when one is
    /// down.
    pub endpoints: Vec<String>,
    /// The beginning of all keys, without a slash at the end. The default is `/remora`. Each
    /// cluster has a folder of its own there.
    pub prefix: String,
    /// The longest time that a call waits for etcd before it fails. The default is 2 s.
    pub patience: Duration,
    /// The time after which etcd takes a process for ended if it has not heard of it. The default
    /// is 5 s. Etcd counts whole seconds, and takes at least 2.
    pub ttl: Duration,
    /// The certificates for TLS. `None` means plain TCP.
    pub tls: Option<EtcdTls>,
    /// The etcd user to log in as. `None` means none.
    pub user: Option<EtcdUser>,
}

remora_fabric::setters!(EtcdOptions {
    endpoints: Vec<String>,
    prefix: impl Into<String>,
    patience: Duration,
    ttl: Duration,
    tls: impl Into<Option<EtcdTls>>,
    user: impl Into<Option<EtcdUser>>,
});

impl EtcdOptions {
    /// Returns the defaults, for these servers.
    #[must_use]
    pub fn of(endpoints: Vec<String>) -> EtcdOptions {
        let (patience, ttl) = (Duration::from_secs(2), Duration::from_secs(5));
        EtcdOptions { endpoints, prefix: "/remora".to_owned(), patience, ttl, tls: None, user: None }
    }
}

/// The certificates that this client trusts, and the one that it shows. All files are PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdTls {
    /// The file of certificates to trust: an authority's, or the servers' own.
    pub ca: PathBuf,
    /// The files of the certificate that this client shows to servers that ask for it, and of its
    /// private key. Only the owner may read the latter.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd, with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The user's name.
    pub name: String,
    /// The user's password.
    pub password: String,
}

impl EtcdUser {
    /// Reads the password of a user from a file that only its owner may read. The end of its line
    /// does not count.
    pub fn read(name: impl Into<String>, password: &Path) -> Result<EtcdUser, EtcdFault> {
        let password = read_private(password)?;
        Ok(EtcdUser { name: name.into(), password: password.trim_end_matches(['\n', '\r']).to_owned() })
    }
}

/// Hides the password, which must not get into logs.
impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUser({:?}, ..)", self.name)
    }
}

/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;

/// Reads a text that must be secret. A file that others may read protects nothing, and is refused.
pub(super) fn read_private(path: &Path) -> Result<String, EtcdFault> {
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
