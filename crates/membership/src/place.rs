//! The place of a configuration, by name: a file or etcd.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::configuration::{Configuration, ConfigurationError};
use crate::etcd::{BUILT, Etcd, EtcdFault, EtcdOptions};
use crate::file::LockedFile;

/// The place at which the clients of a cluster keep their configuration. All clients must use the
/// same place.
///
/// A place is written as the path of a file, or as `etcd://host:port,host:port,...`. A path need
/// not be valid UTF-8. A path may follow etcd's addresses: see [`EtcdOptions::prefix`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A file, for the client processes of one host: [`LockedFile`].
    File(PathBuf),
    /// Etcd, for client processes on any number of hosts: [`Etcd`].
    Etcd(EtcdOptions),
}

impl Place {
    /// Opens the configuration of the cluster with this id at this place. Makes it if it does not
    /// exist.
    pub fn open(&self, cluster: u64) -> Result<Arc<dyn Configuration>, ConfigurationError> {
        Ok(match self {
            Place::File(path) => Arc::new(LockedFile::open(path, cluster)?),
            Place::Etcd(options) => Arc::new(Etcd::open(options, cluster)?),
        })
    }
}

/// The reason why a text names no place for a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPlace {
    /// The text names no servers.
    #[error("{0:?} names no servers of etcd: write etcd://host:port,host:port,..., and /path behind it if you like")]
    Endpoints(String),
    /// The program was built without etcd.
    #[error(transparent)]
    Etcd(EtcdFault),
}

impl FromStr for Place {
    type Err = NotPlace;

    fn from_str(text: &str) -> Result<Place, NotPlace> {
        OsStr::new(text).try_into()
    }
}

impl TryFrom<&OsStr> for Place {
    type Error = NotPlace;

    fn try_from(text: &OsStr) -> Result<Place, NotPlace> {
        if !text.as_bytes().starts_with(SCHEME.as_bytes()) {
            return Ok(Place::File(text.into()));
        }
        if !BUILT {
            return Err(NotPlace::Etcd(EtcdFault::NotBuilt));
        }
        let wrong = || NotPlace::Endpoints(text.to_string_lossy().into_owned());
        let rest = text.to_str().and_then(|text| text.strip_prefix(SCHEME)).ok_or_else(wrong)?;
        let (endpoints, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<String> = endpoints.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
        let whole = endpoints.iter().all(|endpoint| {
            let named = endpoint.rsplit_once(':');
            // A password must not be written where others can read it.
            named.is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(['@', '/']) && port.parse::<u16>().is_ok()
            })
        });
        if !whole {
            return Err(wrong());
        }
        let mut options = EtcdOptions::of(endpoints);
        let prefix = prefix.trim_matches('/');
        if !prefix.is_empty() {
            options.prefix = format!("/{prefix}");
        }
        Ok(Place::Etcd(options))
    }
}

const SCHEME: &str = "etcd://";

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Etcd(options) => write!(f, "{SCHEME}{}{}", options.endpoints.join(","), options.prefix),
        }
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Place {
        Place::File(path)
    }
}
