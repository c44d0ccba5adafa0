//! A poller: a thread waits in it for sockets, and other threads can wake it.
//!
//! A poller may watch another poller, and then shows it when that one has something to show.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Wake;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

pub use rustix::event::epoll::EventFlags as Interest;

/// The token of the [`Bell`].
pub const BELL: u64 = u64::MAX;

/// The largest number of events that one wait returns. The next wait returns the others.
const EVENTS: usize = 256;

/// Waits of at least this time are counted in whole milliseconds, in nanoseconds.
const COARSE_NS: i64 = 10_000_000;

/// The object that a thread waits in.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// Token and flags of the events of the last wait. The system's own type is bound to its
    /// thread.
    events: Vec<(u64, Interest)>,
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Poller {
    /// Makes a poller. The bell ends its waits.
    pub fn new(bell: &Bell) -> io::Result<Poller> {
        let poller = Poller { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(EVENTS) };
        poller.add(&bell.eventfd, BELL, Interest::IN)?;
        Ok(poller)
    }

    /// Makes the poller show this interest in the socket, with the token. The socket leaves the
    /// poller when its last descriptor is closed.
    pub fn add(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), interest)?)
    }

    /// Changes the interest in a socket that the poller has.
    pub fn modify(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token), interest)?)
    }

    /// Waits for an event, for no longer than `limit` if there is one.
    pub fn wait(&mut self, limit: Option<Duration>) {
        self.events.clear();
        let mut limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An epoll counts whole milliseconds, and rounds up. Where that would wait far too long,
        // the wait is that of `ppoll`, which counts nanoseconds.
        if let Some(short) = limit.filter(|limit| limit.tv_sec == 0 && (1..COARSE_NS).contains(&limit.tv_nsec)) {
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&short));
            limit = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let mut found = [const { MaybeUninit::uninit() }; EVENTS];
        // The call fails when it is interrupted. Then there is no event yet, and the caller comes
        // back.
        if let Ok((found, _)) = epoll::wait(&self.epoll, &mut found, limit.as_ref()) {
            self.events.extend(found.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }

    /// Returns the event of this number of the last wait: its token and flags.
    pub fn event(&self, number: usize) -> Option<(u64, Interest)> {
        self.events.get(number).copied()
    }
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const RUNG: u8 = 2;

/// A bell, which wakes a thread that waits in a [`Poller`]. A ring costs a system call only if the
/// thread does wait.
///
/// One word is enough to miss no ring. A ringing thread stores `RUNG`, and writes to the descriptor
/// if that replaced `ASLEEP`. The waiting thread falls asleep by replacing `AWAKE`, which fails if
/// another thread has rung meanwhile.
#[derive(Debug)]
pub struct Bell {
    state: AtomicU8,
    eventfd: OwnedFd,
}

impl Bell {
    /// Makes a bell. Its thread is awake.
    pub fn new() -> io::Result<Bell> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { state: AtomicU8::new(AWAKE), eventfd })
    }

    /// Ends the thread's wait, or keeps the thread from its next one.
    pub fn ring(&self) {
        if self.state.swap(RUNG, Ordering::SeqCst) == ASLEEP {
            // The write fails only when the counter is full, and then the thread is woken anyway.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Says that the thread is about to wait. Returns false if another thread has rung: the thread
    /// must look again first.
    pub fn sleep(&self) -> bool {
        let asleep = self.state.compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !asleep {
            self.state.store(AWAKE, Ordering::SeqCst);
        }
        asleep
    }

    /// Whether the thread waits, and has not been rung for.
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ASLEEP
    }

    /// Says that the thread has waited.
    pub fn wake_up(&self) {
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Resets the descriptor after the poller has shown [`BELL`], so that it does not show this
    /// ring again.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
