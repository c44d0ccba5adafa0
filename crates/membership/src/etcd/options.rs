//! Where etcd is, and how to talk to it: servers, time limits, certificates, user and password.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fault::EtcdFault;

/// Where etcd is, and how to talk to it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
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

remora_fabric::setters!(EtcdOptions {
    endpoints: Vec<String>,
    prefix: impl Into<String>,
    patience: Duration,
    ttl: Duration,
    tls: impl Into<Option<EtcdTls>>,
    user: impl Into<Option<EtcdUser>>,
});

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

/// Permission bits of others than the owner.
const OTHERS: u32 = 0o077;

/// Reads a text that is secret. What others may read protects nothing, and is refused.
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
