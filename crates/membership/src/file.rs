//! The configuration of several processes of one host, kept in a file.
//!
//! ```text
//! FILE               the membership as JSON, with the file's kind, its format and the cluster's id
//! FILE.lock          locked by the process that changes it; empty
//! FILE.process-NAME  locked by a process for as long as it lives; empty
//! ```
//!
//! A change is written to a new file, which then replaces the former one. If a process is killed in
//! the middle, the former file stays. A process that only looks needs no lock.
//!
//! The system releases the locks of a process that ends. So a process has ended if its file is not
//! locked any more.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::configuration::{Configuration, ConfigurationError};
use crate::membership::Membership;
use crate::stored;

/// The shortest time between two looks of a process for others that have ended, and for their
/// changes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A configuration in a file that the client processes of one host share.
#[derive(Debug)]
pub struct LockedFile {
    path: PathBuf,
    /// Excludes the threads of this process from each other. The file's own lock excludes other
    /// processes, and other openings of the file.
    lock: Mutex<File>,
    cluster: u64,
    generation: AtomicU64,
    process: u64,
    /// The sign of life of this process, which it keeps locked as long as it lives.
    _alive: File,
    seen: Mutex<LastLook>,
    known: Mutex<Option<Known>>,
}

/// A membership that was read from a file, or written to it.
#[derive(Debug)]
struct Known {
    version: Version,
    membership: Membership,
    /// The open file. As long as it is open, no other file gets its inode.
    _file: File,
}

/// The identity and state of a file: inode, time of the last write in seconds and nanoseconds, and
/// length. It tells a file from the file that replaces it, and from itself after another write.
type Version = (u64, i64, i64, u64);

fn version(file: &Metadata) -> Version {
    (file.ino(), file.mtime(), file.mtime_nsec(), file.len())
}

/// What this process saw when it last looked.
#[derive(Debug)]
struct LastLook {
    at: Instant,
    /// The state of the file. An inode alone would not do, because inodes are used again.
    version: Option<Version>,
    /// Clients of other processes that were taken for alive, each with its process.
    others: Vec<(u64, u32)>,
}

impl LockedFile {
    /// Returns the default path of a cluster's configuration, beside the file of the cluster's node
    /// 0.
    #[must_use]
    pub fn beside(node: &Path) -> PathBuf {
        beside(node, "configuration")
    }

    /// Returns the path of the file that locks a configuration.
    #[must_use]
    pub fn lock_of(path: &Path) -> PathBuf {
        beside(path, "lock")
    }

    /// Opens the configuration in a file, of the cluster with this id. Makes the file if it does
    /// not exist.
    pub fn open(path: impl Into<PathBuf>, cluster: u64) -> Result<LockedFile, ConfigurationError> {
        let path = path.into();
        let lock = File::options().create(true).truncate(false).write(true).open(LockedFile::lock_of(&path));
        let lock = lock.map_err(|cause| ConfigurationError::File { path: path.clone(), cause })?;
        let (process, alive) =
            sign(&path, &lock).map_err(|cause| ConfigurationError::File { path: path.clone(), cause })?;
        let seen = Mutex::new(LastLook { at: Instant::now(), version: None, others: Vec::new() });
        let (lock, generation) = (Mutex::new(lock), AtomicU64::new(0));
        let known = Mutex::default();
        let file = LockedFile { path, lock, cluster, generation, process, _alive: alive, seen, known };
        // This reports at once what is wrong with the file.
        let opened = file.update(&mut |membership| file.clear_signs(membership));
        match opened {
            Err(ConfigurationError::OtherCluster(place)) if !file.is_used_by_others() => {
                Err(ConfigurationError::OtherClusterAtRest(place))
            }
            opened => opened.map(|()| file),
        }
    }

    /// Opens the file. If it is the file of another cluster, deletes it first. That cluster must be
    /// gone.
    pub fn open_or_replace(path: impl Into<PathBuf>, cluster: u64) -> Result<LockedFile, ConfigurationError> {
        let path = path.into();
        match LockedFile::open(&path, cluster) {
            Err(ConfigurationError::OtherCluster(_) | ConfigurationError::OtherClusterAtRest(_)) => {
                let gone = fs::remove_file(&path);
                gone.or_else(|cause| if cause.kind() == ErrorKind::NotFound { Ok(()) } else { Err(cause) })
                    .map_err(|cause| ConfigurationError::File { path: path.clone(), cause })?;
                LockedFile::open(path, cluster)
            }
            opened => opened,
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the membership in the file, or `None` if there is no file. A file that this process
    /// has read or written before is not read again, because its clients look several times a
    /// second.
    fn read(&self) -> Result<Option<Membership>, ConfigurationError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match fs::metadata(&self.path) {
            Ok(found) => version(&found),
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(self.unusable(cause)),
        };
        if let Some(known) = known.as_ref().filter(|known| known.version == found) {
            return Ok(Some(known.membership.clone()));
        }
        let read = || {
            let (mut file, mut text) = (File::open(&self.path)?, Vec::new());
            let version = version(&file.metadata()?);
            file.read_to_end(&mut text)?;
            Ok((file, version, text))
        };
        let (file, version, text) = read().map_err(|cause| self.unusable(cause))?;
        let (membership, _) = stored::decode(&text, self.cluster, || self.path.display().to_string())?;
        *known = Some(Known { version, membership: membership.clone(), _file: file });
        Ok(Some(membership))
    }

    fn write(&self, membership: Membership) -> Result<(), ConfigurationError> {
        let new = beside(&self.path, "new");
        let text = stored::encode(self.cluster, None, membership.clone());
        let text = text.map_err(|error| self.unusable(io::Error::other(error)))?;
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(&text)?;
            let version = version(&file.metadata()?);
            fs::rename(&new, &self.path)?;
            Ok(Known { version, membership, _file: file })
        };
        let known = write().map_err(|cause| self.unusable(cause))?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(())
    }

    /// Whether another live process has opened this configuration.
    fn is_used_by_others(&self) -> bool {
        self.signs().any(|process| process != self.process && !self.has_ended(process))
    }

    /// Returns the processes that have opened this configuration and whose signs of life still
    /// exist.
    fn signs(&self) -> impl Iterator<Item = u64> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter_map(|name| process_of(&self.path, &name))
    }

    /// Removes the signs of dead processes that have no clients left in the membership.
    fn clear_signs(&self, membership: &Membership) {
        let needed: BTreeSet<u64> = membership.processes().filter_map(|(_, process)| process).collect();
        for process in self.signs() {
            if !needed.contains(&process) && self.has_ended(process) {
                let _ = fs::remove_file(sign_of(&self.path, process)); // another process may have been faster
            }
        }
    }

    fn unusable(&self, cause: io::Error) -> ConfigurationError {
        ConfigurationError::File { path: self.path.clone(), cause }
    }
}

/// Makes a process's sign of life: a locked file with a new name. Call it under the configuration's
/// lock, so that no other process removes the file before it is locked.
fn sign(path: &Path, lock: &File) -> io::Result<(u64, File)> {
    // This is random, because the standard library seeds its hash tables with random numbers.
    let process = RandomState::new().hash_one(std::process::id());
    lock.lock()?;
    let signed = File::options().create_new(true).write(true).open(sign_of(path, process)).and_then(|file| {
        file.lock()?;
        Ok((process, file))
    });
    lock.unlock()?;
    signed
}

const SIGN: &str = "process-";

fn sign_of(path: &Path, process: u64) -> PathBuf {
    beside(path, &format!("{SIGN}{process:016x}"))
}

/// Returns the process whose sign of life has this file name.
fn process_of(path: &Path, name: &OsStr) -> Option<u64> {
    let rest = name.as_bytes().strip_prefix(path.file_name()?.as_bytes())?.strip_prefix(b".")?;
    u64::from_str_radix(str::from_utf8(rest).ok()?.strip_prefix(SIGN)?, 16).ok()
}

/// Returns the path of a file beside another, with this suffix.
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

    /// Looks without the lock. So a process that is kept from running while it holds the lock does
    /// not keep others from looking.
    fn inspect(&self, look: &mut dyn FnMut(&Membership)) -> Result<(), ConfigurationError> {
        let membership = self.read()?.unwrap_or_default();
        self.generation.fetch_max(membership.generation(), Ordering::AcqRel);
        look(&membership);
        Ok(())
    }

    fn cluster(&self) -> Option<u64> {
        Some(self.cluster)
    }

    fn process(&self) -> Option<u64> {
        Some(self.process)
    }

    fn has_ended(&self, process: u64) -> bool {
        match File::open(sign_of(&self.path, process)) {
            // The lock is shared, so that processes that look do not take each other for the
            // process.
            Ok(sign) => sign.try_lock_shared().is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    fn orphans(&self) -> Vec<u32> {
        // It is enough if one thread does this.
        let Ok(mut seen) = self.seen.try_lock() else { return Vec::new() };
        if seen.at.elapsed() < LOOK_EVERY {
            return Vec::new();
        }
        seen.at = Instant::now();
        // Every change makes another file.
        let version = fs::metadata(&self.path).ok().map(|file| version(&file));
        if version != seen.version
            && let Ok(Some(membership)) = self.read()
        {
            seen.version = version;
            let others = membership.processes().filter_map(|(client, process)| Some((process?, client)));
            seen.others = others.filter(|(process, _)| *process != self.process).collect();
            seen.others.sort_unstable();
            self.generation.fetch_max(membership.generation(), Ordering::AcqRel);
        }
        let mut orphans = Vec::new();
        for of_one in seen.others.chunk_by(|one, other| one.0 == other.0) {
            if self.has_ended(of_one[0].0) {
                orphans.extend(of_one.iter().map(|(_, client)| *client));
            }
        }
        orphans
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(sign_of(&self.path, self.process)); // the folder may be gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for the files of one test, which is removed after it.
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
            ["", "{", "hello", "{\"kind\":\"recipe\",\"format\":1}", "{\"kind\":\"remora configuration\",\"format\":4}"]
        {
            assert!(matches!(refused(text), ConfigurationError::Foreign(_)), "{text}");
        }
        // The version before this one, and a newer one.
        for version in [stored::FORMAT - 1, 9] {
            let other = refused(&format!("{{\"kind\":\"remora configuration\",\"format\":{version},\"what\":[]}}"));
            let names =
                matches!(other, ConfigurationError::Format { found, known: stored::FORMAT, .. } if found == version);
            assert!(names, "{other:?}");
            let told = other.to_string();
            for part in
                [path.display().to_string(), format!("format {version};"), format!("format {}:", stored::FORMAT)]
            {
                assert!(told.contains(&part), "{part}: {told}");
            }
        }
        fs::remove_file(&path).unwrap();
        open(path.clone(), 8).unwrap();
        let other = LockedFile::open(&path, 8).unwrap();
        assert!(matches!(open(path.clone(), 7), Err(ConfigurationError::OtherCluster(_))), "its clients run");
        drop(other);
        let at_rest = open(path.clone(), 7).map(|_| ()).unwrap_err();
        assert!(matches!(at_rest, ConfigurationError::OtherClusterAtRest(_)));
        assert!(at_rest.to_string().ends_with(&format!("remove {}", path.display())), "{at_rest}");
        LockedFile::open_or_replace(&path, 7).unwrap();
        open(path, 7).unwrap();
    }

    #[test]
    fn clients_of_a_process_that_has_ended_are_known() {
        let place = Place::new("ended");
        let path = place.file();
        let (here, there) = (LockedFile::open(&path, 7).unwrap(), LockedFile::open(&path, 7).unwrap());
        let join = |file: &LockedFile, client| {
            let process = file.process();
            assert!(process.is_some());
            (file as &dyn Configuration).change(|membership| membership.join(client, 1, 1, process)).unwrap().unwrap();
        };
        join(&here, 1);
        join(&there, 2);
        join(&there, 3);
        let wait = || {
            std::thread::sleep(2 * LOOK_EVERY);
            here.orphans()
        };
        assert!(wait().is_empty());
        // This is what the system does when a process ends: the locks go, and the files stay.
        let sign = sign_of(&path, there.process);
        drop(there);
        fs::write(&sign, "").unwrap();
        assert_eq!(wait(), [2, 3], "at rest, both of them");
        assert!(here.orphans().is_empty(), "asked too soon");
        (&here as &dyn Configuration).change(|membership| membership.suspect(2, 1)).unwrap().unwrap();
        assert_eq!((wait(), here.generation()), (vec![3], 4));
        // The next process removes the files that are not needed any more.
        (&here as &dyn Configuration).change(|membership| membership.leave(3)).unwrap().unwrap();
        assert!(fs::exists(&sign).unwrap());
        let later = LockedFile::open(&path, 7).unwrap();
        assert!(!fs::exists(&sign).unwrap() && fs::exists(sign_of(&path, here.process)).unwrap());
        drop((here, later));
        assert!(
            fs::read_dir(&place.0).unwrap().all(|file| file
                .unwrap()
                .path()
                .extension()
                .is_none_or(|name| name == "lock"))
        );
    }

    /// A process is killed before its change replaces the former file. The file is as it was, and
    /// the next change works.
    #[test]
    fn a_change_that_was_cut_short_never_was() {
        let place = Place::new("killed");
        let path = place.file();
        let file = open(path.clone(), 7).unwrap();
        file.change(|membership| membership.join(1, 1, 1, None)).unwrap().unwrap();
        fs::write(beside(&path, "new"), "{\"kind\":\"remora conf").unwrap();
        let other = open(path, 7).unwrap();
        assert_eq!(other.change(|membership| membership.clients().count()).unwrap(), 1);
        other.change(|membership| membership.join(2, 1, 1, None)).unwrap().unwrap();
        assert_eq!(file.change(|membership| membership.clients().count()).unwrap(), 2);
    }
}
