//! Shared memory across the processes of a host: a memory node is a file, or a memory device, which
//! its server and its clients map. [`ShmNode`] serves one node. [`PassiveFile`] lays out a node
//! that no process serves. [`ShmFiles`] is the fabric of several nodes.
//!
//! ```text
//! file of a served node:   control area 134 MiB | region
//! file of a passive node:  control area   4 MiB | region
//! ```
//!
//! A server takes all the space of its file before it serves, so its clients are safe from a file
//! system that becomes full later. A device is used whole. The server holds the file's lock while
//! it serves, so a node has one server. The memory outlives the server. A server that is started
//! again says how the last one ended.
//!
//! **Who may use the memory** is recorded in the control area: every endpoint has a channel there,
//! which names its process. A client's process has mapped the memory, and nothing can stop that
//! process from using it. So to revoke a client is to kill its process, and a server admits a
//! client only if it may signal the client's process.
//!
//! Endpoints outlive their server in this respect. A server that is started again keeps the former
//! endpoints in its list until their processes end, and no longer serves them.
//!
//! **A passive node** has no server that admits clients. A client writes itself into a free
//! channel, and then looks at all other channels. It goes away again if one of them is of another
//! *realm*: of a process that it could not see or not kill. Of two clients that come at the same
//! time, the one that looks later sees the other one. So all clients of a passive node can watch
//! and kill one another, which revocation needs. A client that finds all channels taken frees
//! those of dead processes.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::num::ParseIntError;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, fstatfs, fstatvfs};
use rustix::io::{Errno, retry_on_intr};

use crate::address::LINE_BYTES;
use crate::headroom::{Headroom, MemoryLimit};
use crate::limits::{RESERVE_BYTES, TAKE_BYTES};
use crate::region::{HUGE_PAGE_BYTES, Region, RegionError};
use crate::transport::Handler;

use super::control::{Control, FEATURES, MAGIC, Mode, Phase, Reclaimed, State, VERSION, Word, service};
pub use super::files::ShmFiles;
use super::memory::Answering;
use super::process::{Process, Watch, exists, realm};
use super::server::{Admission, Server};

/// The unit in which `stat` counts the space of files, in bytes.
const BLOCK_BYTES: u64 = 512;
/// The numbers of file systems whose files are memory, as `statfs` gives them.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The time between two looks whether another process has finished with a file that this one is to
/// lay out.
const LOCKED_PAUSE: Duration = Duration::from_millis(10);
/// Number of such looks, after which the other process is taken for a server.
const LOCKED_LOOKS: u32 = 1000;

/// The time between two searches of a server for clients that died before it knew their process.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The reason why a node's file could not be used. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused an operation.
    #[error("{path}: cannot {what}: {cause}")]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The operation that was refused.
        what: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// Another server serves the file.
    #[error("{path}: another process ({pid}) serves it; stop that one first, or use another file")]
    Served {
        /// The path of the file.
        path: PathBuf,
        /// The process id of the other server, as the file has it.
        pid: u64,
    },
    /// The file is passive memory, and the call was to serve it.
    #[error(
        "{path}: is passive memory, which clients use without a server: name it to them as it is, or serve another file"
    )]
    Passive {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file was made for a server, and the call was to lay it out as passive memory.
    #[error("{path}: was made for a server (memnode --shm): start that one, or give another path for passive memory")]
    NeedsServer {
        /// The path of the file.
        path: PathBuf,
    },
    /// The process that laid out the passive memory was ended before it had finished.
    #[error("{path}: is passive memory that was not laid out to its end: run remora memnode --passive on it again")]
    Unfinished {
        /// The path of the file.
        path: PathBuf,
    },
    /// Some nodes of the fabric are passive, and others are not.
    #[error("{path}: {}, unlike the file before it: name files of one kind", made_for(*passive))]
    Mixed {
        /// The path of the first file that differs.
        path: PathBuf,
        /// Whether that file is passive.
        passive: bool,
    },
    /// The file is not a memory node.
    #[error("{path}: is not a memory node of this program, and not empty; give another path, or remove it")]
    Foreign {
        /// The path of the file.
        path: PathBuf,
    },
    /// Another version of the program made the file.
    #[error("{path}: has format version {found}; this program knows version {known}")]
    Version {
        /// The path of the file.
        path: PathBuf,
        /// The version of the file.
        found: u64,
        /// The version that this program knows.
        known: u64,
    },
    /// The file uses features that this program does not know.
    #[error("{path}: uses features {unknown:#x} that this program does not know")]
    Features {
        /// The path of the file.
        path: PathBuf,
        /// The bits of the unknown features.
        unknown: u64,
    },
    /// The size of the file or region is not the expected one.
    #[error("{path}: has {found} bytes; {expected} are expected")]
    Size {
        /// The path of the file.
        path: PathBuf,
        /// Bytes of the region, or of the whole file.
        found: u64,
        /// Bytes that the region, or the whole file, should have.
        expected: u64,
    },
    /// There is not enough memory or space for the node.
    #[error(
        "{path}: has no room: it takes {} MiB, of which {} MiB are for its clients' channels, and {left}",
        bytes.div_ceil(1 << 20), control >> 20
    )]
    NoRoom {
        /// The path of the file.
        path: PathBuf,
        /// The bytes that the node takes in all.
        bytes: u64,
        /// The bytes of that which are not memory for clients to use.
        control: u64,
        /// What the process may still take.
        left: Headroom,
    },
    /// The file could not be mapped.
    #[error("{path}: {cause}")]
    Region {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        cause: RegionError,
    },
}

fn made_for(passive: bool) -> &'static str {
    if passive { "is passive memory" } else { "was made for a server" }
}

/// What a server found in its file: the memory of an earlier server, if there was one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PriorMemory {
    /// The memory is new, and zero.
    New,
    /// The memory of a server that was stopped.
    Stopped,
    /// The memory of a server that was killed, or whose machine stopped.
    Killed,
}

/// A node's file, after it has been mapped.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) control: Arc<Control>,
    pub(super) region: Arc<Region>,
    /// Device and inode. They are the same for every mapping of the file.
    pub(super) identity: (u64, u64),
}

pub(super) fn io_error<'p>(path: &'p Path, what: &'static str) -> impl FnOnce(io::Error) -> OpenError + 'p {
    move |cause| OpenError::Io { path: path.into(), what, cause }
}

/// Returns the bytes of a file or a character device, and whether it is a device. The system tells
/// the size of a device in another place.
fn size(path: &Path, file: &File) -> Result<(u64, bool), OpenError> {
    let metadata = file.metadata().map_err(io_error(path, "read its metadata"))?;
    if !metadata.file_type().is_char_device() {
        return Ok((metadata.len(), false));
    }
    let number = metadata.rdev();
    let (major, minor) = (number >> 32 & 0xffff_f000 | number >> 8 & 0xfff, number >> 12 & 0xffff_ff00 | number & 0xff);
    let size = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
    let size = size.map_err(io_error(path, "find the device's size"))?;
    parse_size(&size).map(|size| (size, true)).map_err(io_error(path, "read the device's size"))
}

/// Parses a size as the system writes it.
fn parse_size(text: &str) -> io::Result<u64> {
    let text = text.trim();
    let refused = |error: ParseIntError| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?}: {error}"));
    text.parse().map_err(refused)
}

/// Takes all the space of a file with a region of `region` bytes. Otherwise an access to its
/// mapping could find the file system full, which would be a SIGBUS in the server and in every
/// client. What the file holds stays. A file system in memory takes the process's memory, so the
/// limits of the process are checked before each piece.
fn take(path: &Path, file: &File, mode: Mode, region: u64) -> Result<(), OpenError> {
    let control = mode.control_bytes() as u64;
    let bytes = control.saturating_add(region);
    let failed = |cause: Errno| io_error(path, "take its space")(cause.into());
    let metadata = file.metadata().map_err(io_error(path, "read its metadata"))?;
    let has = metadata.blocks().saturating_mul(BLOCK_BYTES);
    if metadata.len() == bytes && has >= bytes {
        return Ok(());
    }
    let room = |wanted: u64, left: Headroom| {
        let path = path.to_path_buf();
        if wanted > left.bytes { Err(OpenError::NoRoom { path, bytes, control, left }) } else { Ok(()) }
    };
    room(bytes, Headroom::of_a_file())?;
    let system = fstatvfs(file).map_err(failed)?;
    // A file system that does not know its free space reports no blocks at all.
    if system.f_blocks > 0 {
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        room(bytes.saturating_sub(has), Headroom { bytes: free, limit: MemoryLimit::FileSystem(path.into()) })?;
    }
    let kind = fstatfs(file).map_err(failed)?.f_type as u64;
    let is_memory = [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind);
    let memory =
        |wanted: u64| if is_memory { room(wanted.saturating_add(RESERVE_BYTES), Headroom::now()) } else { Ok(()) };
    memory(bytes.saturating_sub(has))?;
    file.set_len(bytes).map_err(io_error(path, "give it its size"))?;
    for from in (0..bytes).step_by(TAKE_BYTES) {
        let piece = (TAKE_BYTES as u64).min(bytes - from);
        if has == 0 {
            memory(piece)?;
        }
        match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, piece)) {
            Ok(()) => {}
            // The file system cannot reserve space: write a new file in full.
            Err(Errno::OPNOTSUPP) if metadata.len() == 0 => {
                let zeros = vec![0; piece as usize];
                file.write_all_at(&zeros, from).map_err(io_error(path, "take its space"))?;
            }
            Err(Errno::OPNOTSUPP) => {
                tracing::warn!(path = %path.display(), "this file system sets no space aside: it must not fill up");
                return Ok(());
            }
            Err(cause) => return Err(failed(cause)),
        }
    }
    Ok(())
}

/// Takes the space that a file lacks. The file may have been copied without its zeros.
fn take_again(path: &Path, file: &File, mapped: &Mapped) -> Result<(), OpenError> {
    match size(path, file)? {
        (_, true) => Ok(()),
        (_, false) => take(path, file, mapped.control.mode(), mapped.region.bytes()),
    }
}

impl Mapped {
    /// Checks what a file holds, and maps it. Returns `None` if the file is new: it has only zeros
    /// where the header would be.
    pub(super) fn of(path: &Path, file: &File) -> Result<Option<Mapped>, OpenError> {
        let (size, device) = size(path, file)?;
        if size == 0 {
            return Ok(None);
        }
        // The header is the same in both modes, and names the mode.
        let least = Mode::Passive;
        if size <= least.control_bytes() as u64 {
            return Err(OpenError::Foreign { path: path.into() });
        }
        let mut control = Control::of(Mapped::map(path, file, 0, least.control_bytes())?, least);
        match (control.get(Word::Magic), control.get(Word::Version)) {
            // The magic number is written last, so a file without it was never used. But then the
            // rest of the header must be zero, too, and of a file all that a control area covers:
            // files of other programs may begin with some pages of zeros.
            (0, _) if device && control.header_is_zero() || !device && control.is_zero() => return Ok(None),
            (MAGIC, VERSION) => {}
            (MAGIC, found) => return Err(OpenError::Version { path: path.into(), found, known: VERSION }),
            _ => return Err(OpenError::Foreign { path: path.into() }),
        }
        let features = control.get(Word::Features);
        if features & !FEATURES != 0 {
            return Err(OpenError::Features { path: path.into(), unknown: features & !FEATURES });
        }
        let (mode, bytes) = (Mode::of_features(features), control.get(Word::RegionBytes));
        let expected = (mode.control_bytes() as u64).saturating_add(bytes);
        if size < expected || size > expected && !device {
            return Err(OpenError::Size { path: path.into(), found: size, expected });
        }
        if mode != least {
            control = Control::of(Mapped::map(path, file, 0, mode.control_bytes())?, mode);
        }
        Mapped::with(path, file, control, bytes).map(Some)
    }

    /// Opens a node's file as a client does. Fails if it is none, or is not laid out yet.
    pub(super) fn open(path: &Path) -> Result<(File, Mapped), OpenError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error(path, "open it"))?;
        let mapped = Mapped::of(path, &file)?.ok_or_else(|| OpenError::Foreign { path: path.into() })?;
        if mapped.control.mode() == Mode::Passive && !mapped.is_laid_out() {
            return Err(OpenError::Unfinished { path: path.into() });
        }
        Ok((file, mapped))
    }

    /// Lays out a new file.
    fn new(path: &Path, file: &File, mode: Mode, bytes: Option<u64>) -> Result<Mapped, OpenError> {
        let (size, device) = size(path, file)?;
        let control_bytes = mode.control_bytes() as u64;
        let room = size.saturating_sub(control_bytes);
        // A file of zeros may be what a process has left that was killed while it took its space.
        if size > 0 && room == 0 {
            return Err(OpenError::Foreign { path: path.into() });
        }
        let bytes = bytes.unwrap_or(if device { room } else { 0 });
        let expected = control_bytes.saturating_add(bytes);
        if bytes == 0 || !bytes.is_multiple_of(LINE_BYTES as u64) {
            let cause = RegionError::Size(bytes as usize);
            return Err(OpenError::Region { path: path.into(), cause });
        }
        if device && size < expected {
            return Err(OpenError::Size { path: path.into(), found: size, expected });
        }
        if !device {
            let taken = take(path, file, mode, bytes);
            if taken.is_err() {
                let _ = file.set_len(size); // this gives back what has been taken of the file
            }
            taken?;
        }
        let control = Control::of(Mapped::map(path, file, 0, mode.control_bytes())?, mode);
        control.set(Word::RegionBytes, bytes);
        control.set(Word::Features, mode.features());
        control.set(Word::Version, VERSION);
        control.set(Word::Magic, MAGIC);
        Mapped::with(path, file, control, bytes)
    }

    /// Whether the node is passive, and clients can use its memory.
    pub(super) fn is_laid_out(&self) -> bool {
        self.control.mode() == Mode::Passive && self.control.get(Word::Service) == service::LAID_OUT
    }

    fn with(path: &Path, file: &File, control: Arc<Control>, bytes: u64) -> Result<Mapped, OpenError> {
        let region = Mapped::map(path, file, control.mode().control_bytes() as u64, bytes as usize)?;
        let metadata = file.metadata().map_err(io_error(path, "read its metadata"))?;
        Ok(Mapped { control, region: Arc::new(region), identity: (metadata.dev(), metadata.ino()) })
    }

    fn map(path: &Path, file: &File, offset: u64, bytes: usize) -> Result<Region, OpenError> {
        let huge = offset != 0 && bytes >= HUGE_PAGE_BYTES;
        Region::of_file(file, offset, bytes, huge).map_err(|cause| OpenError::Region { path: path.into(), cause })
    }
}

/// A node's file that this process has locked and mapped, and laid out if it was new.
struct Laid {
    mapped: Mapped,
    is_new: bool,
    locked: File,
}

impl Laid {
    /// Opens a file or memory device with a region of `bytes` bytes, in this mode. Makes the file
    /// if it does not exist. Without a size, an existing file keeps the size that it has. A file
    /// that is not as expected is left untouched.
    fn open(path: &Path, mode: Mode, bytes: Option<u64>) -> Result<Laid, OpenError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(bytes.is_some()).truncate(false).mode(0o600);
        let was_there = path.exists();
        let locked = options.open(path).map_err(io_error(path, "open it"))?;
        lock_file(path, &locked)?;
        let Some(mapped) = Mapped::of(path, &locked)? else {
            let made = Mapped::new(path, &locked, mode, bytes);
            if made.is_err() && !was_there {
                let _ = std::fs::remove_file(path); // the file system is as it was
            }
            return Ok(Laid { mapped: made?, is_new: true, locked });
        };
        match (mapped.control.mode(), mode) {
            (Mode::Passive, Mode::Served) => return Err(OpenError::Passive { path: path.into() }),
            (Mode::Served, Mode::Passive) => return Err(OpenError::NeedsServer { path: path.into() }),
            _ => {}
        }
        let found = mapped.region.bytes();
        if let Some(expected) = bytes.filter(|expected| *expected != found) {
            return Err(OpenError::Size { path: path.into(), found, expected });
        }
        take_again(path, &locked, &mapped)?;
        Ok(Laid { mapped, is_new: false, locked })
    }
}

/// Takes the lock of a node's file. Fails if a server has it. A process that lays out passive
/// memory has it only for as long as that takes, so this waits for such a process for a while.
fn lock_file(path: &Path, file: &File) -> Result<(), OpenError> {
    let mut looks = 0;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(cause)) => return Err(io_error(path, "lock it")(cause)),
        }
        let (pid, may_end) = match Mapped::of(path, file) {
            Ok(Some(mapped)) => (mapped.control.server().pid, mapped.control.mode() == Mode::Passive),
            found => (0, found.is_ok()),
        };
        looks += 1;
        if !may_end || looks == LOCKED_LOOKS {
            return Err(OpenError::Served { path: path.into(), pid: pid.into() });
        }
        std::thread::sleep(LOCKED_PAUSE);
    }
}

/// Gives the lock of a node's file back. To close the file is not enough: a process that this one
/// starts at that moment may have it open, too, and would keep the lock.
pub(super) fn unlock(file: &File, of: impl fmt::Display) {
    if let Err(cause) = file.unlock() {
        tracing::error!(%cause, %of, "unlocking a memory node's file failed");
    }
}

/// Passive memory: a file or memory device that clients use and no process serves. This value is
/// the one process that lays the memory out, or checks it. It has the file's lock until it is
/// dropped.
#[derive(Debug)]
pub struct PassiveFile {
    mapped: Mapped,
    locked: File,
}

impl PassiveFile {
    /// Opens a file or memory device as passive memory with a region of `bytes` bytes. Makes the
    /// file if it does not exist. Without a size, an existing file keeps the size that it has. A
    /// file that is something else, or has another size, is left untouched.
    ///
    /// Clients cannot use a new file before [`PassiveFile::publish`].
    pub fn open(path: impl AsRef<Path>, bytes: Option<u64>) -> Result<PassiveFile, OpenError> {
        let Laid { mapped, locked, .. } = Laid::open(path.as_ref(), Mode::Passive, bytes)?;
        Ok(PassiveFile { mapped, locked })
    }

    /// Returns whether clients can use the memory: it was published.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.mapped.is_laid_out()
    }

    /// Returns the node's region. It is zero in a new file.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.mapped.region
    }

    /// Lets clients use the memory from now on.
    pub fn publish(&self) {
        self.mapped.control.set(Word::Service, service::LAID_OUT);
    }
}

/// Frees the connections to passive memory that clients have left which ended without closing them.
/// With `others_are_gone`, frees also those of processes that this one cannot see: of another host,
/// of this host before its last start, of another container or user. The caller then vouches that
/// none of them uses the memory any more. If one does, nothing can stop it from changing memory
/// that other clients rely on.
///
/// What these clients had under way stays as it is. Their transactions are recovered as those of
/// any client that has died.
///
/// Fails, and changes nothing, if the file is no passive memory of this version.
pub fn reclaim(path: impl AsRef<Path>, others_are_gone: bool) -> Result<Reclaimed, OpenError> {
    let path = path.as_ref();
    let (file, mapped) = Mapped::open(path)?;
    if mapped.control.mode() == Mode::Served {
        return Err(OpenError::NeedsServer { path: path.into() });
    }
    let realm = realm().map_err(io_error(path, "find out who asks"))?;
    // Nobody can be connecting while this process has the lock.
    lock_file(path, &file)?;
    let reclaimed = mapped.control.free_dead(realm, true, others_are_gone);
    unlock(&file, "passive memory");
    Ok(reclaimed)
}

impl Drop for PassiveFile {
    fn drop(&mut self) {
        unlock(&self.locked, "passive memory");
    }
}

/// A memory node that this process serves, in a file that others map. Dropping it stops the node,
/// and records that in the file.
#[derive(Debug)]
pub struct ShmNode {
    path: PathBuf,
    found: PriorMemory,
    mapped: Mapped,
    answering: Arc<Answering>,
    // The fields are dropped in this order: the lock is released last.
    server: Option<Server>,
    watch: Option<Arc<Watch>>,
    locked: File,
}

impl ShmNode {
    /// Serves a file or memory device with a region of `bytes` bytes. Makes the file if it does not
    /// exist. Without a size, an existing file keeps the size that it has. A file that does not
    /// belong to this program is left untouched.
    pub fn open(path: impl AsRef<Path>, bytes: Option<u64>) -> Result<ShmNode, OpenError> {
        let path = path.as_ref();
        let Laid { mapped, is_new, locked } = Laid::open(path, Mode::Served, bytes)?;
        let found = match mapped.control.get(Word::Service) {
            _ if is_new => PriorMemory::New,
            service::STOPPED => PriorMemory::Stopped,
            _ => PriorMemory::Killed,
        };
        let process = Process::current().map_err(io_error(path, "find out who serves"))?;
        let control = mapped.control.clone();
        control.set(Word::Answers, 0);
        control.set(Word::Serving, control.get(Word::Serving).next_multiple_of(2));
        control.set(Word::ServerPid, u64::from(process.pid));
        control.set(Word::ServerStart, process.start);
        // Endpoints of the last server see this, if they live.
        control.set(Word::Incarnation, control.get(Word::Incarnation) + 1);
        let sweeping = control.clone();
        let watch = Watch::spawn("memory-node-watch", SWEEP_EVERY, move || sweep(&sweeping));
        let watch = Arc::new(watch.map_err(io_error(path, "start a thread"))?);
        for (index, state) in control.channels() {
            inherit(&control, &watch, index, state);
        }
        let answering = Arc::<Answering>::default();
        let admission = Box::new(Signalled { watch: watch.clone() });
        let server = Server::spawn("memory-node", control.clone(), answering.clone(), Some(admission));
        let server = Some(server.map_err(io_error(path, "start a thread"))?);
        control.set(Word::Service, service::SERVING);
        Ok(ShmNode { path: path.into(), found, mapped, answering, server, watch: Some(watch), locked })
    }

    /// Returns what the file held when it was opened.
    #[must_use]
    pub fn found(&self) -> PriorMemory {
        self.found
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the node's region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.mapped.region
    }

    pub(super) fn identity(&self) -> (u64, u64) {
        self.mapped.identity
    }

    /// Returns the number of endpoints that are connected, or that were connected to an earlier
    /// server and whose process lives.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.mapped.control.channels().count()
    }

    /// Makes a handler serve the node's calls from now on.
    pub fn answer(&self, handler: Box<dyn Handler>) {
        self.answering.set(handler);
        self.mapped.control.set(Word::Answers, 1);
    }
}

impl Drop for ShmNode {
    fn drop(&mut self) {
        let control = &self.mapped.control;
        control.set(Word::Answers, 0);
        self.server = None;
        self.watch = None;
        for (index, state) in control.channels() {
            match state.phase() {
                Phase::Open => {
                    control.change(index, state, state.to(Phase::Stale));
                }
                // No client is served any more.
                Phase::Closing => control.free(index, state),
                _ => {}
            }
        }
        control.set(Word::Service, service::STOPPED);
        control.ring_clients();
        unlock(&self.locked, self.path.display());
    }
}

/// Takes over a channel that an earlier server left, so that a client which still has the memory
/// mapped can be revoked.
fn inherit(control: &Arc<Control>, watch: &Watch, index: usize, state: State) {
    let process = Process { pid: state.process(), start: control.channel(index).start() };
    match state.phase() {
        Phase::Claimed | Phase::Asked if exists(process.pid) => {} // the server will answer it
        _ => match process.open() {
            Ok(Some(handle)) if control.change(index, state, state.to(Phase::Stale)) => {
                close_at_end(control, watch, handle, index, state);
            }
            _ => control.close(index, state.generation()),
        },
    }
}

/// Ends a channel when its process has ended.
fn close_at_end(control: &Arc<Control>, watch: &Watch, process: OwnedFd, index: usize, state: State) {
    let control = control.clone();
    watch.watch(process, move || control.close(index, state.generation()));
}

/// Ends the channels of processes that died before the server had a handle to them.
fn sweep(control: &Control) {
    for (index, state) in control.channels() {
        if !matches!(state.phase(), Phase::Open | Phase::Stale) && !exists(state.process()) {
            control.close(index, state.generation());
        }
    }
}

/// Admits clients whose process this one may signal.
struct Signalled {
    watch: Arc<Watch>,
}

impl Admission for Signalled {
    fn admit(&mut self, control: &Arc<Control>, index: usize, state: State) -> bool {
        let process = Process { pid: state.process(), start: control.channel(index).start() };
        if process.is_current() {
            return true;
        }
        let Some(handle) = process.open_to_end() else { return false };
        close_at_end(control, &self.watch, handle, index, state);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_no_number_is_told_with_its_text() {
        assert_eq!(parse_size("134217728\n").unwrap(), 128 << 20);
        assert_eq!(parse_size("none\n").unwrap_err().to_string(), "\"none\": invalid digit found in string");
    }
}
