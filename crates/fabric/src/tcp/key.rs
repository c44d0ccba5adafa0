//! The shared secret of a cluster: who has it may open memory, and knows the memory nodes from
//! impostors.
//!
//! A cluster that changes its key has two for a while. A server proves itself with the first of its
//! keys and asks the client for the same; a client takes any of its own. So if the new key is added
//! as the second, then put first, then left alone, each step on every machine before the next
//! begins, no two machines ever refuse each other ([`KeyStep`]): at most one step apart, the client
//! has the key that the server has first. Both ends look at the file when they greet, so that
//! neither has to be started again. What has been greeted stays: a connection ends when its client
//! does, not its key.

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
/// What a line of a key file begins with; then 64 hexadecimal digits and the end of the line.
const LINE_TAG: &str = "remora-key-1 ";
const LINE_BYTES: usize = LINE_TAG.len() + 2 * KEY_BYTES + 1;
const LINES_MAX: usize = 2;
/// Permission bits of others than the owner.
pub(crate) const OTHERS: u32 = 0o077;

/// A key that clients and memory nodes of a cluster share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

/// The keys that an end has: one, or two while the cluster changes its key. Clones share them.
///
/// Those of a file are read again when a connection is made and the file is another than before.
/// One that cannot be used then changes nothing: the last good keys stay, and a warning in the log
/// says why.
#[derive(Clone)]
pub struct Keys(Arc<Mutex<State>>);

struct State {
    pair: Pair,
    /// `None` if there is nothing to read again.
    file: Option<Watched>,
}

/// The file that keys are from.
struct Watched {
    path: PathBuf,
    /// Stamp of the file that has been read.
    stamp: Stamp,
    /// What the log has been told since.
    complaint: Option<KeyError>,
}

/// Tells one state of a file from another: where it is, how long, changed when. A new mode changes
/// only the last.
type Stamp = ([u64; 3], [i64; 4]);

/// The keys of one handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pair {
    /// What a server proves itself with.
    pub(crate) first: Key,
    /// What a client takes as well.
    pub(crate) second: Option<Key>,
}

/// A step to another key. Every machine takes one before any takes the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyStep {
    /// A new key becomes the second.
    Add,
    /// The second becomes the first.
    Swap,
    /// Only the first stays.
    Drop,
}

/// A key could not be made, written or read.
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
    /// Others than its owner may read the file.
    #[error("others may read the key file (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// Permission bits of the file.
        mode: u32,
    },
    /// There is no second key to put first, or none but the first.
    #[error("holds one key only: add another first (--add)")]
    One,
    /// There is a second key already.
    #[error("holds two keys already: end that change first (--swap, --drop)")]
    Two,
    /// Another process has the file take a step.
    #[error("another process changes the key file just now: try again when it has ended")]
    Busy,
}

fn failed(error: io::Error) -> KeyError {
    KeyError::File(error.into())
}

impl Key {
    /// A new random key.
    pub fn generate() -> Result<Key, KeyError> {
        random().map(Key).map_err(KeyError::NoRandom)
    }

    /// Writes the key to a new file that only its owner may read. Never overwrites one. The file
    /// gets its name when it is written: it is there as a whole or not at all, even if the process
    /// is killed. Not on a file system that has no files without names.
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

    /// A keyed hash of all parts, one after the other.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl Keys {
    /// Reads a key file. One that others may read is refused: a key that is known to others
    /// protects nothing. What is not a file (a pipe) is read once.
    pub fn read(path: &Path) -> Result<Keys, KeyError> {
        let (pair, metadata) = read(path)?;
        let file = Watched { path: path.to_owned(), stamp: stamp(&metadata), complaint: None };
        Ok(Keys::new(pair, metadata.is_file().then_some(file)))
    }

    /// Has a key file take a step. The new file takes the place of the old one at once and as a
    /// whole, whatever happens. Until then it lies beside it, as `FILE.new`, locked by this
    /// process: another process that tries a step meanwhile is refused ([`KeyError::Busy`]). A
    /// process that was killed has left its `FILE.new` unlocked, and the next step replaces that.
    /// Where files have no locks, `FILE.new` is in the way until it is removed
    /// ([`ErrorKind::AlreadyExists`]).
    pub fn step(path: &Path, step: KeyStep) -> Result<(), KeyError> {
        let path = fs::canonicalize(path).map_err(failed)?;
        let mut beside = OsString::from(&path);
        beside.push(".new");
        let beside = Path::new(&beside);
        let new = claim(beside)?;
        let stepped = replace(&path, step, &new, beside);
        // The new file may be in its place already, and another process may have made the next.
        if stepped.is_err() && is_at(&new, beside) {
            let _ = fs::remove_file(beside); // the next step would replace it
        }
        stepped
    }

    fn new(pair: Pair, file: Option<Watched>) -> Keys {
        Keys(Arc::new(Mutex::new(State { pair, file })))
    }

    /// The keys as they are now, for one handshake from its beginning to its end.
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
            // It is tried again each time: what failed may have been the system.
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

/// For keys that do not come from a file: they never change.
impl From<Key> for Keys {
    fn from(key: Key) -> Keys {
        Keys::new(key.into(), None)
    }
}

impl Watched {
    /// What the file holds, if that may be something else than before.
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
    /// The key that is looked for, if it is among them.
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

/// A new file without a name, in the folder of `path`, that only its owner may read.
fn create_nameless(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE.bits() as i32;
    OpenOptions::new().write(true).custom_flags(flags).mode(0o600).open(folder)
}

/// A new file that only its owner may read.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes the file in which a step is prepared, and locks it for as long as it is open. Each process
/// does the same, and uses or deletes the file at this path only while it holds the file's lock:
///
/// 1. It creates the file, or opens the one that is there.
/// 2. It locks the file. Another process that holds the lock is alive, and at work.
/// 3. It checks that the locked file is still at this path. Another process may have deleted the
///    file, or put it in its place, between 1 and 2; then the process begins again.
/// 4. If the process has created the file, the file is its own. Otherwise a process that was killed
///    has left it. The file may have any owner, mode and contents, so it is not used: the process
///    deletes it, and begins again.
fn claim(path: &Path) -> Result<File, KeyError> {
    /// More often than that a process begins again only where many others do steps, too.
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
            // No locks here: a file that is new is nevertheless the work of this process alone.
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

/// Opens a file that is there, to lock it: no link, and no pipe, which would wait for a reader.
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
    // Before the contents: what is written meanwhile is seen as a change the next time.
    let metadata = opened.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(KeyError::Exposed { mode });
    }
    let mut bytes = Vec::with_capacity(LINES_MAX * LINE_BYTES + 1);
    opened.take((LINES_MAX * LINE_BYTES) as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok((parse(&bytes).ok_or(KeyError::Format)?, metadata))
}

/// Writes what a file holds after a step into a new one, and puts that in its place.
fn replace(path: &Path, step: KeyStep, new: &File, beside: &Path) -> Result<(), KeyError> {
    let (pair, old) = read(path)?;
    if new.metadata().map_err(failed)?.uid() != old.uid() {
        fchown(new, Some(old.uid()), None).map_err(failed)?; // who could read it still can
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

/// A key is not for logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Nor are several.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

#[cfg(test)]
mod tests;
