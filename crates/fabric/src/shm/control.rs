//! The control area of a node: what its server and its clients tell each other beside the region
//! itself. Within one process it is anonymous memory. Across processes it is the front of the
//! node's file. All of it is accessed by atomic words.
//!
//! A node is *served* or *passive* ([`Mode`]). A passive node has no server. The words of the
//! server then stay zero, but for `service`, and a channel is only its first 256 bytes.
//!
//! ```text
//! byte     0  magic 8 | version 8 | features 8 | region bytes 8 | zero 32         once, magic last
//!         64  service 8 | incarnation 8 | server pid 8 | its start 8 | zero 32    the server
//!        128  doorbell of the server: rings 8 (any client) | parked 8 (the server) | zero 48
//!        192  answers 8 | serving 8 | zero 48                                     the server
//!        256  channels ever claimed 8 | zero 56                                   clients, growing
//!       320.. zero
//!       4096  512 channel states of 8 bytes: generation 32 | process 24 | phase 8 see below
//!       8192  revoked clients, a bit for each of 2^24, by the revoking process      never cleared
//!   8192+2Mi  512 channels of 260 KiB each, or of 256 bytes                       see `channel`
//!   134 MiB   the region of a served node
//!     4 MiB   the region of a passive node
//! ```
//!
//! Bit 0 of `features` says that the node is passive.
//!
//! # Channels and their states
//!
//! A channel is one endpoint's pair of mailboxes at this node. Its state is one word, changed by
//! CAS only:
//!
//! ```text
//! Free -> Claimed       a client that found it free, which thereby owns the channel's page, with a
//!                       new generation
//! Claimed -> Asked      the same client, when it has written its number; the server answers next
//! Asked -> Open         the server, when it can revoke the client's access (it may signal its
//!                       process)
//! Asked -> Refused      the server, when it cannot, or the client is revoked
//! Claimed -> Open       a client in the server's own process, or any client of a passive node
//! any -> Stale          a new server, if the client of an old one still lives: it can be revoked,
//!                       but is not served
//! any -> Closing        the process that ends it: its client, a client that revokes this one, or
//!                       the server when the client's process has ended; at a passive node, a
//!                       client that finds all channels taken, and this one's process dead, or
//!                       an operator who says that the process is gone (`reclaim`)
//! Closing -> Free       the process that has seen the server outside of the channel since, or the
//!                       server itself, which is outside
//! ```
//!
//! The generation makes every step fail that belongs to an earlier life of the channel. So ending a
//! channel twice, or late, does not end its next life.
//!
//! When [`Control::close`] has returned, no call of the channel is served any more. The argument is
//! that of [`gate`](crate::gate):
//!
//! 1. The server makes `serving` odd, then looks at the state, serves, and makes `serving` even.
//! 2. The closing process changes the state, then looks at `serving`, and waits while it is odd and
//!    unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use crate::gate::wait_outside;
use crate::ids::ClientId;
use crate::limits::{CHANNELS_MAX, CLIENT_BITS};
use crate::region::{HUGE_PAGE_BYTES, Region, RegionError, futex_wake};

use super::channel::{BARE_CHANNEL_BYTES, CHANNEL_BYTES, Channel};
use super::doorbell::{BellWord, Doorbell};
use super::process::Process;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"RemoraSM");
/// The version of the control area. 1 is the first.
pub(super) const VERSION: u64 = 1;
/// The feature bit of a passive node.
const FEATURE_PASSIVE: u64 = 1;
/// Bits of features that this program knows. A reader must know all features of a file to use it.
pub(super) const FEATURES: u64 = FEATURE_PASSIVE;

const STATES_AT: usize = 4096;
const REVOKED_AT: usize = STATES_AT + CHANNELS_MAX * 8;
const REVOKED_BYTES: usize = (1 << CLIENT_BITS) / 8;
const CHANNELS_AT: usize = REVOKED_AT + REVOKED_BYTES;

const _: () = assert!(REVOKED_AT == 8192);
const _: () = assert!(Mode::Served.control_bytes() == 134 << 20 && Mode::Passive.control_bytes() == 4 << 20);

/// Whether a process serves a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// A server admits clients, serves their calls, and frees the channels of dead processes.
    Served,
    /// No process serves the node, and no call is ever answered. A client admits itself, and frees
    /// channels of dead processes when it needs one.
    Passive,
}

impl Mode {
    /// Returns the mode that the features of a control area name.
    pub(super) fn of_features(features: u64) -> Mode {
        if features & FEATURE_PASSIVE == 0 { Mode::Served } else { Mode::Passive }
    }

    /// Returns the features of a control area of this mode.
    pub(super) fn features(self) -> u64 {
        match self {
            Mode::Served => 0,
            Mode::Passive => FEATURE_PASSIVE,
        }
    }

    const fn channel_bytes(self) -> usize {
        match self {
            Mode::Served => CHANNEL_BYTES,
            Mode::Passive => BARE_CHANNEL_BYTES,
        }
    }

    /// Returns the bytes of a control area of this mode.
    pub(super) const fn control_bytes(self) -> usize {
        (CHANNELS_AT + CHANNELS_MAX * self.channel_bytes()).next_multiple_of(HUGE_PAGE_BYTES)
    }
}

/// What became of the connections of clients to a passive node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// The number that were freed.
    pub freed: usize,
    /// The number that stay, because their process lives or is just connecting.
    pub alive: usize,
    /// The number that stay, because their process cannot be seen from here: it ran on another
    /// host, on this host before its last start, in another container or as another user.
    pub elsewhere: usize,
}

/// The single words of the area, by their index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Magic = 0,
    Version = 1,
    Features = 2,
    RegionBytes = 3,
    Service = 8,
    Incarnation = 9,
    ServerPid = 10,
    ServerStart = 11,
    Rings = 16,
    Parked = 17,
    /// 1 when a handler serves calls.
    Answers = 24,
    /// Odd while the server looks at a channel's state and serves the channel's calls.
    Serving = 25,
    /// Channels from this index on have never been claimed.
    Channels = 32,
}

/// Values of [`Word::Service`].
pub(super) mod service {
    pub(in super::super) const STOPPED: u64 = 1;
    pub(in super::super) const SERVING: u64 = 2;
    /// The node is passive, and its memory is laid out for clients.
    pub(in super::super) const LAID_OUT: u64 = 3;
}

/// The phase of a channel's life. The table is in the [module](self)'s page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    Free = 0,
    Claimed = 1,
    Asked = 2,
    Open = 3,
    Refused = 4,
    Stale = 5,
    Closing = 6,
}

/// A channel's state word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(u64);

impl State {
    pub(super) fn phase(self) -> Phase {
        match self.0 & 0xff {
            0 => Phase::Free,
            1 => Phase::Claimed,
            2 => Phase::Asked,
            3 => Phase::Open,
            4 => Phase::Refused,
            5 => Phase::Stale,
            _ => Phase::Closing,
        }
    }

    pub(super) fn process(self) -> u32 {
        (self.0 >> 8) as u32 & 0xff_ffff
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn to(self, phase: Phase) -> State {
        State(self.0 & !0xff | phase as u64)
    }

    fn claimed_by(self, process: u32) -> State {
        let generation = u64::from(self.generation().wrapping_add(1));
        State(generation << 32 | u64::from(process & 0xff_ffff) << 8 | Phase::Claimed as u64)
    }
}

impl BellWord for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Release);
    }

    fn increment(&self) {
        self.fetch_add(1, Ordering::SeqCst);
    }

    #[inline(always)]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

fn is_zero(words: &[AtomicU64]) -> bool {
    words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

/// A node's control area.
#[derive(Debug)]
pub(super) struct Control {
    region: Region,
    mode: Mode,
}

impl Control {
    /// Makes the control area of a node whose clients are all in this process.
    pub(super) fn anonymous() -> Result<Arc<Control>, RegionError> {
        let mode = Mode::Served;
        Region::sparse(mode.control_bytes()).map(|region| Arc::new(Control { region, mode }))
    }

    pub(super) fn of(region: Region, mode: Mode) -> Arc<Control> {
        debug_assert_eq!(region.words().len(), mode.control_bytes() / 8);
        Arc::new(Control { region, mode })
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    #[inline]
    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        &self.region.words()[word as usize]
    }

    #[inline]
    pub(super) fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    pub(super) fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    /// Whether the first page has never been written to.
    pub(super) fn header_is_zero(&self) -> bool {
        is_zero(&self.region.words()[..STATES_AT / 8])
    }

    /// Whether nothing in the area has ever been written to.
    pub(super) fn is_zero(&self) -> bool {
        is_zero(self.region.words())
    }

    pub(super) fn server_bell(&self) -> Doorbell<'_, AtomicU64> {
        Doorbell { rings: self.word(Word::Rings), parked: self.word(Word::Parked) }
    }

    /// Rings the server's bell: there is something for it to see.
    #[inline]
    pub(super) fn ring_server(&self) {
        self.server_bell().ring(futex_wake);
    }

    pub(super) fn channel(&self, index: usize) -> Channel<'_> {
        let bytes = self.mode.channel_bytes();
        let start = (CHANNELS_AT + index * bytes) / 8;
        Channel::of(&self.region.words()[start..start + bytes / 8])
    }

    #[inline]
    fn state_word(&self, index: usize) -> &AtomicU64 {
        &self.region.words()[STATES_AT / 8 + index]
    }

    #[inline]
    pub(super) fn state(&self, index: usize) -> State {
        State(self.state_word(index).load(Ordering::SeqCst))
    }

    /// Takes one step of a channel's life. Returns false if the channel is no longer in the state
    /// `from`.
    pub(super) fn change(&self, index: usize, from: State, to: State) -> bool {
        self.state_word(index).compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns the number of channels that have ever been claimed. No other channel is open.
    #[inline]
    pub(super) fn channels_claimed(&self) -> usize {
        self.get(Word::Channels).min(CHANNELS_MAX as u64) as usize
    }

    /// Returns all channels that are not free.
    pub(super) fn channels(&self) -> impl Iterator<Item = (usize, State)> {
        (0..CHANNELS_MAX).map(|index| (index, self.state(index))).filter(|(_, state)| state.phase() != Phase::Free)
    }

    /// Returns the channels of a client. A closing channel is among them: its client may be closing
    /// it, and a second `close` waits as long as the first. A channel that is only claimed does not
    /// say yet which client it belongs to.
    pub(super) fn channels_of(&self, client: ClientId) -> impl Iterator<Item = (usize, State)> {
        self.channels()
            .filter(move |&(index, state)| state.phase() != Phase::Claimed && self.channel(index).client() == client.0)
    }

    /// Claims a free channel. Returns `None` if all are in use.
    pub(super) fn claim(&self, process: u32) -> Option<(usize, State)> {
        (0..CHANNELS_MAX).find_map(|index| {
            let free = self.state(index);
            let claimed = free.claimed_by(process);
            if free.phase() != Phase::Free || !self.change(index, free, claimed) {
                return None;
            }
            // This comes before the channel is open, because the server looks for open channels
            // only up to this count.
            self.word(Word::Channels).fetch_max(index as u64 + 1, Ordering::SeqCst);
            Some((index, claimed))
        })
    }

    /// Ends the life of a channel that has this generation. After the return, none of its calls is
    /// served.
    pub(super) fn close(&self, index: usize, generation: u32) {
        self.close_within(index, generation, || true);
    }

    /// Closes a channel as [`Control::close`] does, but waits for a call that is being served only
    /// while `patient` returns true. If it gives up, the channel stays closing and cannot be
    /// claimed. The server frees it when it has served that call.
    pub(super) fn close_within(&self, index: usize, generation: u32, mut patient: impl FnMut() -> bool) {
        let closing = loop {
            let state = self.state(index);
            if state.generation() != generation || state.phase() == Phase::Free {
                return; // another process has ended the channel, and waited
            }
            if state.phase() == Phase::Closing || self.change(index, state, state.to(Phase::Closing)) {
                break state.to(Phase::Closing);
            }
        };
        let mut given_up = false;
        wait_outside(self.word(Word::Serving), || {
            thread::sleep(Duration::from_micros(20));
            // A server that died while it served serves nothing any more.
            let lives = self.server_lives();
            given_up = lives && !patient();
            lives && !given_up
        });
        if given_up {
            self.ring_server();
        } else {
            self.free(index, closing);
        }
    }

    /// Frees the channels of dead processes at a passive node. The caller is a process of the realm
    /// `realm`, and says what it knows: that it alone has the file's lock (`alone`), so that every
    /// process is dead which has claimed a channel and not opened it; that no process of another
    /// realm uses the memory any more (`others_are_gone`).
    pub(super) fn free_dead(&self, realm: u64, alone: bool, others_are_gone: bool) -> Reclaimed {
        let mut found = Reclaimed::default();
        for (index, state) in self.channels() {
            let channel = self.channel(index);
            let process = Process { pid: state.process(), start: channel.start() };
            let (is_dead, otherwise) = match state.phase() {
                Phase::Claimed => (alone, &mut found.alive),
                _ if channel.realm() != realm => (others_are_gone, &mut found.elsewhere),
                _ => (!process.lives(), &mut found.alive),
            };
            // The channel may have passed to another process since its state was read.
            if is_dead && self.state(index) == state {
                self.close(index, state.generation());
                found.freed += 1;
            } else {
                *otherwise += 1;
            }
        }
        found
    }

    /// Frees a channel that is closing, unless it is free already. The caller has seen the server
    /// outside of the channel since it was closing.
    pub(super) fn free(&self, index: usize, closing: State) {
        debug_assert_eq!(closing.phase(), Phase::Closing);
        self.change(index, closing, closing.to(Phase::Free));
    }

    /// Returns the process that serves the node. Its number is 0 if all clients are in this
    /// process.
    pub(super) fn server(&self) -> Process {
        Process { pid: self.get(Word::ServerPid) as u32, start: self.get(Word::ServerStart) }
    }

    fn server_lives(&self) -> bool {
        let server = self.server();
        server.pid == 0 || server.lives()
    }

    fn revoked_bit(&self, client: ClientId) -> (&AtomicU64, u64) {
        let id = client.0 as usize & ((1 << CLIENT_BITS) - 1);
        (&self.region.words()[REVOKED_AT / 8 + id / 64], 1 << (id % 64))
    }

    /// Makes the server refuse a client from now on.
    pub(super) fn mark_revoked(&self, client: ClientId) {
        let (word, bit) = self.revoked_bit(client);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    pub(super) fn is_revoked(&self, client: ClientId) -> bool {
        let (word, bit) = self.revoked_bit(client);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// Wakes every client that waits for a reply.
    pub(super) fn ring_clients(&self) {
        for (index, _) in self.channels() {
            self.channel(index).bell().ring(futex_wake);
        }
    }
}
