//! The shared secret of a cluster. A client with the key may open memory, and can tell the memory
//! nodes from impostors.
//!
//! A cluster that changes its key has two for a while. A server proves itself with the first of its
//! keys, and asks the client for the same key. A client accepts any of its own keys. The change
//! takes three steps ([`KeyStep`]), and every machine takes a step before any machine takes the
//! next:
//!
//! 1. The new key is added as the second.
//! 2. The new key is put first.
//! 3. The old key is removed.
//!
//! So two machines are at most one step apart, and then the client has the key that the server has
//! first. No two machines ever refuse each other. Both ends look at the file at each handshake, so
//! neither has to be restarted. An open connection stays open: it ends when its client does, not
//! when its key does.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use sha2::Sha256;

use crate::entropy::random;
use crate::error::SystemError;

const KEY_BYTES: usize = 32;
/// The beginning of a line of a key file. After it come 64 hexadecimal digits and the end of the
/// line.
const LINE_TAG: &str = "remora-key-1 ";
const LINE_BYTES: usize = LINE_TAG.len() + 2 * KEY_BYTES + 1;
const LINES_MAX: usize = 2;
/// Permission bits of users other than the owner.
pub(crate) const OTHERS: u32 = 0o077;

/// A key that the clients and memory nodes of a cluster share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

/// The keys of an end: one, or two while the cluster changes its key. Clones share them.
///
/// Keys from a file are read again when a connection is made and the file has changed. If the new
/// file cannot be used, nothing changes: the last good keys stay, and a warning in the log says
/// why.
#[derive(Clone)]
pub struct Keys(Arc<Mutex<State>>);

struct State {
    pair: Pair,
    /// The file to read again. `None` for keys that are not from a file.
    file: Option<Watched>,
}

/// The file that keys are from.
struct Watched {
    path: PathBuf,
    /// The stamp of the file when it was read.
    stamp: Stamp,
    /// The error that the log has been told of since.
    complaint: Option<KeyError>,
}

/// A stamp tells one state of a file from another: its place, its length, and the times of its
/// changes. A new mode changes only the last time.
type Stamp = ([u64; 3], [i64; 4]);

/// The keys of one handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pair {
    /// The key with which a server proves itself.
    pub(crate) first: Key,
    /// The other key, which a client accepts as well.
    pub(crate) second: Option<Key>,
}

/// A step of the change to another key. Every machine takes a step before any machine takes the
/// next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyStep {
    /// A new key becomes the second.
    Add,
    /// The second key becomes the first, and the first the second.
    Swap,
    /// Only the first key stays.
    Drop,
}

/// A key could not be made, written, read or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    NoRandom(SystemError),
    /// The file cannot be read or written.
    #[error("the key file: {0}")]
    File(SystemError),
    /// The file is no key file.
    #[error("not a key file: it must hold one line or two, each `{LINE_TAG}` and 64 hexadecimal digits")]
    Format,
    /// Users other than its owner may read the file.
    #[error("others may read the key file (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// The permission bits of the file.
        mode: u32,
    },
    /// There is no second key, to be put first or to be removed.
    #[error("holds one key only: add another first (--add)")]
    One,
    /// There is a second key already.
    #[error("holds two keys already: end that change first (--swap, --drop)")]
    Two,
    /// Another process is taking a step of the file.
    #[error("another process changes the key file just now: try again when it has ended")]
    Busy,
}

fn failed(error: io::Error) -> KeyError {
    KeyError::File(error.into())
}

impl Key {
    /// Generates a new random key.
    pub fn generate() -> Result<Key, KeyError> {
        random().map(Key).map_err(KeyError::NoRandom)
    }

    /// Writes the key to a new file that only its owner may read. It never overwrites a file. The
    /// file gets its name after it has been written, so it exists as a whole or not at all, even if
    /// the process is killed. This fails on a file system that has no files without names.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let pair = Pair::from(*self);
        if let Ok(file) = create_nameless(path) {
            pair.write(&file)?;
            let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
            if linkat(CWD, itself, CWD, path, AtFlags::SYMLINK_FOLLOW).is_ok() {
                return Ok(());
            }
        }
        pair.write(&create(path).map_err(failed)?)
    }

    /// Starts a keyed hash of all parts, one after the other.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl Keys {
    /// Reads a key file. A file that others may read is refused, because a key that others know
    /// protects nothing. If the path is not a regular file (but a pipe, for example), it is read
    /// once only.
    pub fn read(path: &Path) -> Result<Keys, KeyError> {
        let (pair, metadata) = read(path)?;
        let file = Watched { path: path.to_owned(), stamp: stamp(&metadata), complaint: None };
        Ok(Keys::new(pair, metadata.is_file().then_some(file)))
    }

    /// Takes a step of a key file. The new file replaces the old one at once and as a whole,
    /// whatever happens.
    ///
    /// Until then the new file lies beside the old one as `FILE.new`, locked by this process.
    /// Another process that tries a step meanwhile is refused ([`KeyError::Busy`]). A process that
    /// was killed has left its `FILE.new` unlocked, and the next step replaces it. On a file system
    /// without locks, a left `FILE.new` prevents every step until it is removed
    /// ([`ErrorKind::AlreadyExists`]).
    pub fn step(path: &Path, step: KeyStep) -> Result<(), KeyError> {
        let path = fs::canonicalize(path).map_err(failed)?;
        let mut beside = OsString::from(&path);
        beside.push(".new");
        let beside = Path::new(&beside);
        let new = claim(beside)?;
        let stepped = replace(&path, step, &new, beside);
        // The new file may have replaced the old one already, and another process may have made the
        // next `FILE.new`.
        if stepped.is_err() && is_at(&new, beside) {
            let _ = fs::remove_file(beside); // the next step would replace it
        }
        stepped
    }

    fn new(pair: Pair, file: Option<Watched>) -> Keys {
        Keys(Arc::new(Mutex::new(State { pair, file })))
    }

    /// Returns the keys as they are now, for one handshake from its beginning to its end.
    pub(crate) fn now(&self) -> Pair {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { pair, file: Some(file) } = &mut *state else { return state.pair };
        match file.read_again() {
            Ok(changed) => {
                file.complaint = None;
                if let Some(changed) = changed {
                    let keys = 1 + usize::from(changed.second.is_some());
                    tracing::info!(file = %file.path.display(), keys, "the key file has been read again");
                    *pair = changed;
                }
            }
            // This is tried again each time, because the reason may have been the system.
            Err(error) => {
                if file.complaint.replace(error) != Some(error) {
                    let file = file.path.display();
                    tracing::warn!(%file, %error, "the key file cannot be used: the keys that it had stay in use");
                }
            }
        }
        *pair
    }
}

/// Makes keys that do not come from a file. They never change.
impl From<Key> for Keys {
    fn from(key: Key) -> Keys {
        Keys::new(key.into(), None)
    }
}

impl Watched {
    /// Reads the file again, if it may have changed. Returns its keys, or `None` if it has not.
    fn read_again(&mut self) -> Result<Option<Pair>, KeyError> {
        let now = fs::metadata(&self.path).map_err(failed)?;
        if stamp(&now) == self.stamp {
            return Ok(None);
        }
        if !now.is_file() {
            return Err(KeyError::Format); // opening a pipe may wait for ever
        }
        let (pair, metadata) = read(&self.path)?;
        self.stamp = stamp(&metadata);
        Ok(Some(pair))
    }
}

impl Pair {
    /// Returns the first key of which `is_it` is true.
    pub(crate) fn find(&self, is_it: impl Fn(&Key) -> bool) -> Option<Key> {
        [Some(self.first), self.second].into_iter().flatten().find(is_it)
    }

    fn stepped(self, step: KeyStep) -> Result<Pair, KeyError> {
        match (step, self.second) {
            (KeyStep::Add, None) => Ok(Pair { second: Some(Key::generate()?), ..self }),
            (KeyStep::Add, Some(_)) => Err(KeyError::Two),
            (KeyStep::Swap, Some(second)) => Ok(Pair { first: second, second: Some(self.first) }),
            (KeyStep::Drop, Some(_)) => Ok(Pair { second: None, ..self }),
            (KeyStep::Swap | KeyStep::Drop, None) => Err(KeyError::One),
        }
    }

    fn write(self, mut file: &File) -> Result<(), KeyError> {
        let mut lines = String::with_capacity(LINES_MAX * LINE_BYTES);
        for key in [Some(self.first), self.second].into_iter().flatten() {
            lines.push_str(LINE_TAG);
            for byte in key.0 {
                let _ = write!(lines, "{byte:02x}"); // a string takes everything
            }
            lines.push('\n');
        }
        file.write_all(lines.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)
    }
}

impl From<Key> for Pair {
    fn from(first: Key) -> Pair {
        Pair { first, second: None }
    }
}

/// Creates a file without a name, in the folder of `path`, that only its owner may read.
fn create_nameless(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE.bits() as i32;
    OpenOptions::new().write(true).custom_flags(flags).mode(0o600).open(folder)
}

/// Creates a file that only its owner may read.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes the file in which a step is prepared, and locks it for as long as it is open. Each process
/// follows these steps, and uses or deletes the file at this path only while it holds the file's
/// lock:
///
/// 1. The process creates the file, or opens the one that exists.
/// 2. The process locks the file. If another process holds the lock, that process is alive and at
///    work.
/// 3. The process checks that the locked file is still at this path. Another process may have
///    deleted the file, or put it in its place, between 1 and 2. In that case the process begins
///    again.
/// 4. If the process has created the file, the file is its own. Otherwise a process that was killed
///    has left it. A left file may have any owner, mode and contents, so the process does not use
///    it: it deletes the file, and begins again.
fn claim(path: &Path) -> Result<File, KeyError> {
    /// The largest number of attempts. A process begins again this often only where several others
    /// take steps, too.
    const ATTEMPTS: usize = 16;
    for _ in 0..ATTEMPTS {
        let (file, is_new) = match create(path) {
            Ok(file) => (file, true),
            Err(exists) if exists.kind() == ErrorKind::AlreadyExists => match open_left(path) {
                Ok(file) => (file, false),
                Err(gone) if gone.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            },
            Err(error) => return Err(failed(error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(KeyError::Busy),
            // There are no locks here. A file that is new is nevertheless the work of this process
            // alone.
            Err(TryLockError::Error(_)) if is_new => return Ok(file),
            Err(TryLockError::Error(_)) => return Err(failed(ErrorKind::AlreadyExists.into())),
        }
        match (is_at(&file, path), is_new) {
            (true, true) => return Ok(file),
            (true, false) => fs::remove_file(path).map_err(failed)?,
            (false, _) => {}
        }
    }
    Err(KeyError::Busy)
}

/// Opens an existing file to lock it. It refuses a link, and a pipe, which would wait for a reader.
fn open_left(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path)
}

/// Whether a file is the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |file: Metadata| (file.dev(), file.ino());
    let there = fs::symlink_metadata(path).ok().map(identity);
    there.is_some() && there == file.metadata().ok().map(identity)
}

fn read(path: &Path) -> Result<(Pair, Metadata), KeyError> {
    let opened = File::open(path).map_err(failed)?;
    // The stamp is taken before the contents are read. A change in between is then seen the next
    // time.
    let metadata = opened.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(KeyError::Exposed { mode });
    }
    let mut bytes = Vec::with_capacity(LINES_MAX * LINE_BYTES + 1);
    opened.take((LINES_MAX * LINE_BYTES) as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok((parse(&bytes).ok_or(KeyError::Format)?, metadata))
}

/// Writes what a file holds after a step into a new file, and puts that in its place.
fn replace(path: &Path, step: KeyStep, new: &File, beside: &Path) -> Result<(), KeyError> {
    let (pair, old) = read(path)?;
    if new.metadata().map_err(failed)?.uid() != old.uid() {
        fchown(new, Some(old.uid()), None).map_err(failed)?; // users who could read the old one still can
    }
    pair.stepped(step)?.write(new)?;
    fs::rename(beside, path).map_err(failed)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn stamp(file: &Metadata) -> Stamp {
    ([file.dev(), file.ino(), file.len()], [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()])
}

fn parse(file: &[u8]) -> Option<Pair> {
    let mut lines = file.strip_suffix(b"\n").unwrap_or(file).split(|byte| *byte == b'\n').map(parse_line);
    match (lines.next()?, lines.next(), lines.next()) {
        (Some(first), None, None) => Some(first.into()),
        (Some(first), Some(Some(second)), None) => Some(Pair { first, second: Some(second) }),
        _ => None,
    }
}

fn parse_line(line: &[u8]) -> Option<Key> {
    let (pairs, []) = line.strip_prefix(LINE_TAG.as_bytes())?.as_chunks::<2>() else { return None };
    let mut key = [0; KEY_BYTES];
    if pairs.len() != KEY_BYTES {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(Key(key))
}

/// Hides the key, which must not get into logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Hides the keys, which must not get into logs.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

#[cfg(test)]
mod tests;
