//! Processes of this host: how one is named, whether it lives, and how it is killed.
//!
//! A process is named by its number and the time at which it began, because numbers are used again.
//! A pidfd stays with its process, once that has been found to be the right one.

use std::fs;
use std::io;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

use super::lock;

/// A process of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The time at which it began, in clock ticks since the machine started.
    pub(super) start: u64,
}

impl Process {
    /// Returns the CPU time that the process has used so far. `None` if it has ended.
    pub(super) fn cpu_ns(self) -> Option<u64> {
        let [user, system] = [14, 15].map(|number| field_of(self.pid, number).ok());
        let ticks = user?.checked_add(system?).filter(|_| self.lives())?;
        ticks.checked_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
    }

    /// Returns the calling process.
    pub(super) fn current() -> io::Result<Process> {
        let pid = std::process::id();
        start_of(pid).map(|start| Process { pid, start })
    }

    pub(super) fn is_current(self) -> bool {
        self.pid == std::process::id()
    }

    /// Opens a handle to the process. Returns `None` if it has ended.
    pub(super) fn open(self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            handle => handle?,
        };
        // This is checked after the handle was opened. If the process is the right one now, so is
        // the process of the handle.
        Ok(start_of(self.pid).is_ok_and(|start| start == self.start).then_some(handle))
    }

    /// Opens a handle if the process lives and this process may kill it.
    pub(super) fn open_to_end(self) -> Option<OwnedFd> {
        let handle = self.open().ok()??;
        let may_end = test_kill_process(Pid::from_raw(self.pid as i32)?).is_ok();
        (may_end && !has_ended(&handle)).then_some(handle)
    }

    /// Whether the process lives.
    pub(super) fn lives(self) -> bool {
        self.open().ok().flatten().is_some_and(|handle| !has_ended(&handle))
    }

    /// Kills the process. Returns when no instruction of it will run any more.
    pub(super) fn end(self) -> io::Result<()> {
        let Some(handle) = self.open()? else { return Ok(()) };
        match pidfd_send_signal(&handle, Signal::KILL) {
            Ok(()) => {}
            Err(Errno::SRCH) => return Ok(()),
            Err(cause) => return Err(cause.into()),
        }
        // A pidfd becomes readable when the last thread has given up its memory.
        loop {
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
    }
}

/// Whether any process has this number.
pub(super) fn exists(pid: u32) -> bool {
    Pid::from_raw(pid as i32).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns a number for the processes that see one another by their numbers, and may signal one
/// another: those of one user, in one PID namespace, on one running kernel.
pub(super) fn realm() -> io::Result<u64> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = |kind| match fs::metadata(format!("/proc/self/ns/{kind}")) {
        // A kernel that does not know such namespaces has one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        space => space.map(|space| space.ino()),
    };
    let numbers: [u64; 3] = [namespace("pid")?, namespace("user")?, rustix::process::geteuid().as_raw().into()];
    // FNV-1a, as the same program must find the same number on every host.
    let bytes = boot.trim().bytes().chain(numbers.into_iter().flat_map(u64::to_le_bytes));
    Ok(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
}

fn has_ended(handle: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&now)) != Ok(0)
}

/// Returns the time at which a process began: the 22nd field of its `stat`.
fn start_of(pid: u32) -> io::Result<u64> {
    field_of(pid, 22)
}

/// Returns a number of a process's `stat`. Fields are counted from 1. They are counted behind the
/// name, the second field, which may contain anything.
fn field_of(pid: u32, number: usize) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let field = fields.and_then(|fields| fields.split_ascii_whitespace().nth(number - 3));
    field.and_then(|field| field.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reports when processes have ended. It has one thread, which sleeps meanwhile.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    wake: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

type Ended = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stop: bool,
    new: Vec<(OwnedFd, Ended)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Watch {
    /// Starts the watching thread. It also calls `tick` at least once in every period `every`.
    pub(super) fn spawn(name: &str, every: Duration, mut tick: impl FnMut() + Send + 'static) -> io::Result<Watch> {
        let (woken, wake) = io::pipe()?;
        let shared = Arc::<Shared>::default();
        let theirs = shared.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut watched: Vec<(OwnedFd, Option<Ended>)> = Vec::new();
            let timeout = Timespec { tv_sec: every.as_secs() as _, tv_nsec: every.subsec_nanos() as _ };
            loop {
                let mut fds = vec![PollFd::new(&woken, PollFlags::IN)];
                fds.extend(watched.iter().map(|(handle, _)| PollFd::new(handle, PollFlags::IN)));
                if let Err(error) = poll(&mut fds, Some(&timeout))
                    && error != Errno::INTR
                {
                    tracing::error!(%error, "processes cannot be watched");
                    thread::sleep(every);
                }
                let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
                drop(fds);
                if ready[0] {
                    let _ = rustix::io::read(woken.as_fd(), &mut [0; 64]);
                }
                for ((_, ended), _) in watched.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                    if let Some(ended) = ended.take() {
                        ended();
                    }
                }
                watched.retain(|(_, ended)| ended.is_some());
                let mut state = lock(&theirs.state);
                if state.stop {
                    return;
                }
                watched.extend(state.new.drain(..).map(|(handle, ended)| (handle, Some(ended))));
                drop(state);
                tick();
            }
        })?;
        Ok(Watch { shared, wake, thread: Some(thread) })
    }

    /// Calls `ended` on the watching thread when the process has ended.
    pub(super) fn watch(&self, process: OwnedFd, ended: impl FnOnce() + Send + 'static) {
        lock(&self.shared.state).new.push((process, Box::new(ended)));
        self.wake();
    }

    fn wake(&self) {
        // A full pipe wakes the thread as well.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the watch over processes panicked");
        }
    }
}
