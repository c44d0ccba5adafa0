//! A node's server: one thread that takes requests from the mailboxes of all channels and has the
//! handler serve them one after the other. It parks on its doorbell when nothing has come for a
//! while.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::ids::ClientId;
use crate::limits::{CHANNELS_MAX, SPIN_NS};
use crate::region::{futex_wait, futex_wake};

use super::channel::{Outcome, Received, Receiver};
use super::control::{Control, Phase, State, Word};
use super::memory::{Answering, monotonic_ns};

/// Requests of one channel that are served before the other channels have their turn.
const TURN_CALLS: usize = 16;

/// Decides which clients are admitted. Within one process all are.
pub(super) trait Admission: Send {
    /// Whether the server can revoke the access of the client that has claimed this channel. If it
    /// returns true, it has also arranged for what must follow the end of that client's process.
    fn admit(&mut self, control: &Arc<Control>, index: usize, state: State) -> bool;
}

/// A running server. Dropping it stops the thread.
pub(super) struct Server {
    control: Arc<Control>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the node's thread.
    pub(super) fn spawn(
        name: &str,
        control: Arc<Control>,
        answering: Arc<Answering>,
        admission: Option<Box<dyn Admission>>,
    ) -> std::io::Result<Server> {
        let stop = Arc::new(AtomicBool::new(false));
        let serving = Serving {
            entry: control.get(Word::Serving).next_multiple_of(2),
            control: control.clone(),
            answering,
            admission,
            channels: vec![Attended::default(); CHANNELS_MAX],
            request: Vec::new(),
            reply: Vec::new(),
        };
        let theirs = stop.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || serving.run(&theirs))?;
        Ok(Server { control, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.control.ring_server();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("a memory node's server panicked");
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// A channel as the server knows it. The client may write anything to its own part.
#[derive(Clone, Default)]
struct Attended {
    generation: u32,
    client: u32,
    receiver: Receiver,
}

struct Serving {
    control: Arc<Control>,
    answering: Arc<Answering>,
    admission: Option<Box<dyn Admission>>,
    channels: Vec<Attended>,
    /// The last value of [`Word::Serving`], which only this thread changes.
    entry: u64,
    request: Vec<u64>,
    reply: Vec<u64>,
}

impl Serving {
    fn run(mut self, stop: &AtomicBool) {
        let mut idle_since = None;
        let mut looks = 0u32;
        while !stop.load(Ordering::Acquire) {
            if self.step() {
                idle_since = None;
                continue;
            }
            // A look costs less than asking for the time, and a core may have other threads to run.
            looks = looks.wrapping_add(1);
            std::hint::spin_loop();
            if !looks.is_multiple_of(16) {
                continue;
            }
            thread::yield_now();
            let now = monotonic_ns();
            if now - *idle_since.get_or_insert(now) > SPIN_NS {
                self.park(stop);
                idle_since = None;
            }
        }
    }

    fn park(&mut self, stop: &AtomicBool) {
        let control = self.control.clone();
        let bell = control.server_bell();
        let seen = bell.park();
        if !self.step() && !stop.load(Ordering::Acquire) {
            futex_wait(&[(bell.rings, seen)], None);
        }
        bell.unpark();
    }

    /// Looks at every channel. Returns whether there was anything to do.
    fn step(&mut self) -> bool {
        let mut worked = false;
        for index in 0..self.control.channels_claimed() {
            let state = self.control.state(index);
            worked |= match state.phase() {
                Phase::Free => false,
                Phase::Open => self.attend(index, state),
                Phase::Asked => self.admit(index, state),
                // The closing process may have given up waiting for a call that has been served
                // now.
                Phase::Closing => {
                    self.control.free(index, state);
                    false
                }
                _ => false,
            };
        }
        worked
    }

    fn admit(&mut self, index: usize, state: State) -> bool {
        let Some(admission) = &mut self.admission else { return false };
        let client = ClientId(self.control.channel(index).client());
        // A revoking process marks first, and looks at the channels then. Here the server has seen
        // the channel first, and looks at the mark then. Either the server sees the mark, or the
        // revoking process sees the channel and kills the client.
        let admitted = !self.control.is_revoked(client) && admission.admit(&self.control, index, state);
        self.control.change(index, state, state.to(if admitted { Phase::Open } else { Phase::Refused }));
        true
    }

    /// Serves the requests of a channel. Returns whether there were any.
    fn attend(&mut self, index: usize, state: State) -> bool {
        let control = &self.control;
        let channel = control.channel(index);
        let attended = &mut self.channels[index];
        if attended.generation == state.generation() && !attended.receiver.has_request(channel) {
            return false;
        }
        let serving = control.word(Word::Serving);
        serving.swap(self.entry + 1, Ordering::SeqCst);
        let mut worked = false;
        let mut sound = true;
        for _ in 0..TURN_CALLS {
            // Only from here on, inside, is it certain that a channel which is open is not taken
            // away.
            if control.state(index) != state {
                break;
            }
            if attended.generation != state.generation() {
                *attended = Attended {
                    generation: state.generation(),
                    client: channel.client(),
                    receiver: Receiver::default(),
                };
            }
            let capacity = match attended.receiver.receive(channel, &mut self.request) {
                Received::Request { capacity } => capacity,
                Received::Nothing => break,
                Received::Nonsense => {
                    sound = false;
                    break;
                }
            };
            self.reply.clear();
            let served = self.answering.serve(ClientId(attended.client), &self.request, &mut self.reply);
            let outcome = match served {
                Ok(()) if self.reply.len() <= capacity as usize => Outcome::Served,
                Ok(()) => Outcome::TooLong,
                Err(_) => Outcome::NoHandler,
            };
            attended.receiver.reply(channel, outcome, &self.reply);
            channel.bell().ring(futex_wake);
            worked = true;
        }
        self.entry += 2;
        serving.store(self.entry, Ordering::Release);
        if !sound {
            tracing::warn!(client = attended.client, "a client's mailbox makes no sense; its channel is closed");
            control.close(index, state.generation());
            return true;
        }
        worked
    }
}
