//! The configuration of several processes of one host: a file.
//!
//! ```text
//! FILE        the membership as JSON, with the file's kind, its format and the cluster's id
//! FILE.lock   locked by who reads and changes it; empty
//! ```
//!
//! A change is written to a file of its own, which then takes the place of the former one: a process that is killed in the
//! middle leaves the former. Its lock goes with it, because locks of files are the system's.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::configuration::{Configuration, ConfigurationError};
use crate::membership::Membership;

const KIND: &str = "remora configuration";
const FORMAT: u32 = 1;

/// A configuration in a file that the client processes of one host share.
#[derive(Debug)]
pub struct LockedFile {
    path: PathBuf,
    /// Locks of files exclude other processes, and other openings of the file; this one excludes threads.
    lock: Mutex<File>,
    cluster: u64,
    generation: AtomicU64,
}

/// What every version of the file says of itself.
#[derive(Deserialize)]
struct Head {
    kind: String,
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Content {
    kind: String,
    format: u32,
    cluster: u64,
    membership: Membership,
}

impl LockedFile {
    /// The configuration in a file, of a cluster with this id; made if it does not exist.
    pub fn open(path: impl Into<PathBuf>, cluster: u64) -> Result<LockedFile, ConfigurationError> {
        let path = path.into();
        let lock = File::options().create(true).truncate(false).write(true).open(beside(&path, "lock"));
        let lock = Mutex::new(lock.map_err(|cause| ConfigurationError::File { path: path.clone(), cause })?);
        let file = LockedFile { path, lock, cluster, generation: AtomicU64::new(0) };
        // Says at once what is wrong with it.
        file.update(&mut |_| ())?;
        Ok(file)
    }

    /// The same where a file of another cluster is one that is gone, and makes room.
    pub fn open_or_replace(path: impl Into<PathBuf>, cluster: u64) -> Result<LockedFile, ConfigurationError> {
        let path = path.into();
        match LockedFile::open(&path, cluster) {
            Err(ConfigurationError::OtherCluster(_)) => {
                let gone = fs::remove_file(&path);
                gone.or_else(|cause| if cause.kind() == ErrorKind::NotFound { Ok(()) } else { Err(cause) })
                    .map_err(|cause| ConfigurationError::File { path: path.clone(), cause })?;
                LockedFile::open(path, cluster)
            }
            opened => opened,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Option<Membership>, ConfigurationError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(self.unusable(cause)),
        };
        let foreign = || ConfigurationError::Foreign(self.path.clone());
        let head: Head = serde_json::from_slice(&text).map_err(|_| foreign())?;
        if head.kind != KIND {
            return Err(foreign());
        }
        if head.format != FORMAT {
            return Err(ConfigurationError::Format { path: self.path.clone(), found: head.format, known: FORMAT });
        }
        let content: Content = serde_json::from_slice(&text).map_err(|_| foreign())?;
        if content.cluster != self.cluster {
            return Err(ConfigurationError::OtherCluster(self.path.clone()));
        }
        Ok(Some(content.membership))
    }

    fn write(&self, membership: Membership) -> Result<(), ConfigurationError> {
        let content = Content { kind: KIND.to_owned(), format: FORMAT, cluster: self.cluster, membership };
        let new = beside(&self.path, "new");
        let text = serde_json::to_vec(&content).map_err(|error| self.unusable(io::Error::other(error)))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &self.path)).map_err(|cause| self.unusable(cause))
    }

    fn unusable(&self, cause: io::Error) -> ConfigurationError {
        ConfigurationError::File { path: self.path.clone(), cause }
    }
}

/// A file beside another.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

impl Configuration for LockedFile {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn update(&self, change: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError> {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        lock.lock().map_err(|cause| self.unusable(cause))?;
        let changed = (|| {
            let found = self.read()?;
            let (new, mut membership) = (found.is_none(), found.unwrap_or_default());
            let before = membership.clone();
            change(&mut membership);
            self.generation.store(membership.generation(), Ordering::Release);
            if new || membership != before { self.write(membership) } else { Ok(()) }
        })();
        lock.unlock().map_err(|cause| self.unusable(cause))?;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place for the files of one test, gone with it.
    struct Place(PathBuf);

    impl Place {
        fn new(test: &str) -> Place {
            let place = std::env::temp_dir().join(format!("remora-configuration-{}-{test}", std::process::id()));
            fs::create_dir(&place).unwrap();
            Place(place)
        }

        fn file(&self) -> PathBuf {
            self.0.join("configuration")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn open(path: PathBuf, cluster: u64) -> Result<Box<dyn Configuration>, ConfigurationError> {
        Ok(Box::new(LockedFile::open(path, cluster)?))
    }

    #[test]
    fn changes_of_several_openings_are_in_one_order() {
        let place = Place::new("order");
        let path = place.file();
        std::thread::scope(|scope| {
            for client in 1..5u32 {
                let path = path.clone();
                scope.spawn(move || {
                    let file = open(path, 7).unwrap();
                    file.change(|membership| membership.join(client, 1)).unwrap();
                    for _ in 0..50 {
                        file.change(|membership| membership.renew(client)).unwrap().unwrap();
                    }
                });
            }
        });
        let file = open(path, 7).unwrap();
        let leases = file.change(|membership| membership.leases().collect::<Vec<_>>()).unwrap();
        assert_eq!(leases, (1..5).map(|client| (client, 50, 1)).collect::<Vec<_>>());
        assert_eq!(file.generation(), 4);
    }

    #[test]
    fn files_that_are_something_else_are_refused_untouched() {
        let place = Place::new("foreign");
        let path = place.file();
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            let error = open(path.clone(), 7).map(|_| ()).unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            error
        };
        for text in
            ["", "{", "hello", "{\"kind\":\"recipe\",\"format\":1}", "{\"kind\":\"remora configuration\",\"format\":1}"]
        {
            assert!(matches!(refused(text), ConfigurationError::Foreign(_)), "{text}");
        }
        let newer = refused("{\"kind\":\"remora configuration\",\"format\":9,\"what\":[]}");
        assert!(matches!(newer, ConfigurationError::Format { found: 9, known: FORMAT, .. }), "{newer}");
        fs::remove_file(&path).unwrap();
        open(path.clone(), 8).unwrap();
        assert!(matches!(open(path.clone(), 7), Err(ConfigurationError::OtherCluster(_))));
        LockedFile::open_or_replace(&path, 7).unwrap();
        open(path, 7).unwrap();
    }

    /// Killed before its change took the place of the former one: the file is as it was, and the next change goes on.
    #[test]
    fn a_change_that_was_cut_short_never_was() {
        let place = Place::new("killed");
        let path = place.file();
        let file = open(path.clone(), 7).unwrap();
        file.change(|membership| membership.join(1, 1)).unwrap();
        fs::write(beside(&path, "new"), "{\"kind\":\"remora conf").unwrap();
        let other = open(path, 7).unwrap();
        assert_eq!(other.change(|membership| membership.clients().count()).unwrap(), 1);
        other.change(|membership| membership.join(2, 1)).unwrap();
        assert_eq!(file.change(|membership| membership.clients().count()).unwrap(), 2);
    }
}
