//! Calls by datagrams: one unreliable queue pair carries all connections of an endpoint, or those
//! of many clients of a server.
//!
//! [`conversation`](crate::rdma::conversation) decides what must be repeated, dropped or put in
//! order. This file has the queue pair, which several conversations share, and the memory of each
//! conversation: receive buffers, and *slots* from which its datagrams are sent. A slot keeps its
//! datagram until two things have happened: the other end has acknowledged it, and the NIC has sent
//! it as often as it was told to.
//!
//! Large messages also go this way, in as many datagrams as they need. If some went over the
//! connection, frames would have to be put in order across both. That would cost more code than
//! cutting them, and they are rare.
//!
//! Datagrams to any number of other ends are posted as one list, with one doorbell. So writing only
//! collects them, and [`Datagrams::ring`] posts what has been collected. Code that writes or polls
//! rings before it does anything else.
//!
//! A datagram that arrives is copied out of its buffer. The buffer is then posted again, in a list
//! with the others of the same look, for whichever conversation.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Domain;
use super::queue::{
    Access, Completion, Kind, LIST_MAX, Operation, POLL_MAX, Place, QueuePair, Receive, Registered, WorkRequest,
};
use crate::address::WORD_BYTES;
use crate::entropy::random;
use crate::ids::Nanos;
use crate::rdma::VerbsError;
use crate::rdma::conversation::{Doors, HEAD_WORDS, RECEIVES, WINDOW};
use crate::region::Region;
use crate::shm::monotonic_ns;

/// Conversations that share a queue pair.
const DOORS: usize = 32;
/// Work requests that may be under way. One in [`SIGNAL_EVERY`] reports its completion, and with it
/// the completion of all before it.
const SENDS: u32 = 512;
const SIGNAL_EVERY: u64 = 8;
/// Words of the route (GRH) that the NIC puts in front of a datagram.
const ROUTE_WORDS: usize = 40 / WORD_BYTES;
/// Words of a packet's longest content.
const PACKET_WORDS: usize = 4096 / WORD_BYTES;
const BUFFER_WORDS: usize = ROUTE_WORDS + PACKET_WORDS;
/// Slots of a conversation for datagrams of the stream. A datagram's sequence gives its slot.
/// Datagrams that only acknowledge have slots of their own.
const SLOTS: u64 = 2 * WINDOW;
const TELL_SLOTS: u64 = SIGNAL_EVERY;
const SLOTS_AT: usize = RECEIVES * BUFFER_WORDS;
const TELLS_AT: usize = SLOTS_AT + SLOTS as usize * PACKET_WORDS;
const ALL_WORDS: usize = TELLS_AT + TELL_SLOTS as usize * HEAD_WORDS;

// Slots are used in turn, and the next conversation at a place continues the turn. So when a slot
// is needed again, it is known to be complete: all other slots were posted behind it, and one in
// SIGNAL_EVERY work requests reports. What it held has been acknowledged.
const _: () = assert!(SLOTS >= WINDOW && SLOTS >= SIGNAL_EVERY && TELL_SLOTS >= SIGNAL_EVERY);
const _: () = assert!(BUFFER_WORDS * WORD_BYTES < u32::MAX as usize && SENDS as u64 > 2 * SIGNAL_EVERY);

/// The destination of datagrams for a conversation: the queue pair's number and key, and the
/// conversation's token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub(super) number: u32,
    pub(super) key: u32,
    pub(super) token: u64,
}

/// A queue pair for datagrams, with the conversations that it carries.
struct Office {
    pair: QueuePair,
    /// The key that senders must know. A key whose first bit is one would be the system's own.
    key: u32,
    doors: Doors,
    /// The desk of each conversation, at the place of its door.
    desks: Vec<Desk>,
    /// Work requests posted and completed since the beginning, and the ones under way that report.
    posted: u64,
    completed: u64,
    signaled: VecDeque<u64>,
    /// Work requests that count as posted, and go to the NIC as one list.
    collected: Vec<WorkRequest>,
    /// Buffers whose datagrams have been copied out. They are also given back as one list.
    emptied: Vec<Receive>,
    /// The other ends of conversations that are over. Each is forgotten when the given work request
    /// has completed.
    retired: Vec<(u64, u32)>,
    /// Conversations that have something to read, or room to write for which they have waited.
    ready: Vec<usize>,
    /// When this end must next send something of its own accord.
    due: Nanos,
    /// The words of a datagram, on the way from its buffer.
    words: Vec<u64>,
    received: u64,
    /// The number of conversations that receives were made for.
    doors_max: usize,
    watched: bool,
    broken: bool,
}

/// The desk of a conversation: its memory, and the state of sending.
struct Desk {
    /// The index of its memory in the queue pair.
    memory: u32,
    /// The index of the other end in the queue pair, and the token that the other end has given.
    peer: Option<u32>,
    token: u64,
    /// Words that a datagram may carry.
    carries: usize,
    /// For each slot: the words in it, and the last work request that sends it.
    slots: [(usize, u64); SLOTS as usize],
    /// The slot of the sequence 0.
    first_slot: u64,
    tells: [u64; TELL_SLOTS as usize],
    told: u64,
    last_posted: u64,
    /// The owner that is told of news, and whether it has been told.
    owner: Option<usize>,
    listed: bool,
    /// A message waits for room to be written.
    blocked: bool,
}

impl Desk {
    fn slot(&self, sequence: u64) -> usize {
        ((self.first_slot + sequence) % SLOTS) as usize
    }
}

impl Office {
    fn new(domain: &Arc<Domain>) -> Result<Office, VerbsError> {
        let drawn = draw()?;
        let key = u32::from_le_bytes([drawn[0], drawn[1], drawn[2], drawn[3] & 0x7f]);
        let receives = ((DOORS * RECEIVES) as u32).min(domain.context.work_requests_max);
        let pair = QueuePair::new(domain, Kind::Datagrams { key }, SENDS, receives, super::INLINE_BYTES, 0)?;
        Ok(Office {
            pair,
            key,
            doors: Doors::default(),
            desks: Vec::new(),
            posted: 0,
            completed: 0,
            signaled: VecDeque::new(),
            collected: Vec::with_capacity(LIST_MAX),
            emptied: Vec::with_capacity(POLL_MAX),
            retired: Vec::new(),
            ready: Vec::new(),
            due: Nanos::MAX,
            words: Vec::new(),
            received: 0,
            doors_max: (receives as usize / RECEIVES).max(1),
            watched: false,
            broken: false,
        })
    }

    fn has_room(&self) -> bool {
        !self.broken && self.doors.count() < self.doors_max
    }

    /// Opens a conversation. Nothing can be sent in it yet.
    fn open(&mut self, domain: &Arc<Domain>, random: u64) -> Result<(usize, Address), VerbsError> {
        let (place, token) = self.doors.open(random);
        if place == self.desks.len() {
            match self.desk(domain) {
                Ok(desk) => self.desks.push(desk),
                Err(error) => {
                    self.doors.close(place);
                    return Err(error);
                }
            }
        }
        Ok((place, Address { number: self.pair.place().number, key: self.key, token }))
    }

    /// Makes the desk of one more conversation, and posts its share of receives.
    fn desk(&mut self, domain: &Arc<Domain>) -> Result<Desk, VerbsError> {
        let bytes = (ALL_WORDS * WORD_BYTES).next_multiple_of(4096);
        let refused = |_| VerbsError::Memory { bytes: bytes as u64, cause: io::ErrorKind::OutOfMemory.into() };
        let region = Arc::new(Region::sparse(bytes).map_err(refused)?);
        let memory = self.pair.add_memory(Registered::new(domain, region, Access::Local)?);
        let buffer = |number| Receive { memory, at: number * BUFFER_WORDS, words: BUFFER_WORDS };
        self.pair.receive((0..RECEIVES).map(buffer))?;
        Ok(Desk {
            memory,
            peer: None,
            token: 0,
            carries: 0,
            slots: [(0, 0); SLOTS as usize],
            first_slot: 0,
            tells: [0; TELL_SLOTS as usize],
            told: 0,
            last_posted: 0,
            owner: None,
            listed: false,
            blocked: false,
        })
    }

    fn connect(&mut self, place: usize, path: &Place, to: Address) -> Result<(), VerbsError> {
        let peer = self.pair.add_peer(path, to.number, to.key)?;
        let packet = (path.mtu.min(self.pair.place().mtu)).clamp(1, 5);
        self.doors.expect(place, to.number);
        let desk = &mut self.desks[place];
        (desk.peer, desk.token) = (Some(peer), to.token);
        desk.carries = (128 << packet) / WORD_BYTES - HEAD_WORDS;
        Ok(())
    }

    fn close(&mut self, place: usize) {
        let sent = self.doors.get(place).map_or(0, |conversation| conversation.sent());
        self.doors.close(place);
        let desk = &mut self.desks[place];
        desk.first_slot += sent;
        (desk.owner, desk.listed, desk.blocked) = (None, false, false);
        // Work requests under way still name the other end.
        self.retired.extend(desk.peer.take().map(|peer| (desk.last_posted, peer)));
        self.forget();
    }

    fn forget(&mut self) {
        let (completed, pair) = (self.completed, &mut self.pair);
        self.retired.retain(|(last, peer)| {
            let over = *last <= completed;
            if over {
                pair.remove_peer(*peer);
            }
            !over
        });
    }

    /// Looks at what has arrived, and collects what is due to be sent. `idle` says that this end
    /// will not look again for a while.
    fn poll(&mut self, idle: bool) -> io::Result<()> {
        let outcome = if self.broken { Err(io::ErrorKind::ConnectionReset.into()) } else { self.poll_all(idle) };
        self.note(outcome)
    }

    /// Posts what has been collected, as one list.
    fn ring(&mut self) -> io::Result<()> {
        if self.collected.is_empty() {
            return Ok(());
        }
        let outcome = self.pair.post(self.collected.drain(..));
        self.note(outcome)
    }

    /// Takes note of an error, which ends all conversations.
    fn note(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        if outcome.is_err() && !std::mem::replace(&mut self.broken, true) {
            (0..self.desks.len()).for_each(|place| self.list(place));
        }
        outcome
    }

    fn poll_all(&mut self, idle: bool) -> io::Result<()> {
        while let Some(completion) = self.pair.poll()? {
            match completion {
                Completion::Sent => {
                    self.completed = self.signaled.pop_front().ok_or(io::ErrorKind::InvalidData)?;
                    self.forget();
                    for place in 0..self.desks.len() {
                        if self.desks[place].blocked {
                            self.list(place);
                        }
                    }
                }
                Completion::Datagram { memory, at, bytes, from } => {
                    self.received += 1;
                    if !self.pair.loses(self.received) {
                        self.take(memory, at, bytes as usize, from);
                    }
                    self.emptied.push(Receive { memory, at, words: BUFFER_WORDS });
                    // Senders may still have a window under way, so not many are kept back.
                    if self.emptied.len() == POLL_MAX {
                        self.give_back()?;
                    }
                }
                Completion::Message(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        self.give_back()?;
        self.tick(idle)
    }

    /// Posts the buffers again whose datagrams have been copied out.
    fn give_back(&mut self) -> io::Result<()> {
        self.pair.receive(self.emptied.drain(..)).map_err(io::Error::other)
    }

    fn take(&mut self, memory: u32, at: usize, bytes: usize, from: u32) {
        let words = (bytes / WORD_BYTES).min(BUFFER_WORDS);
        let there = self.pair.memory(memory).and_then(|memory| memory.region().words().get(at..at + words));
        let carried = there.and_then(|words| words.get(ROUTE_WORDS..)).unwrap_or(&[]);
        self.words.clear();
        self.words.extend(carried.iter().map(|word| word.load(Ordering::Relaxed)));
        let Some(place) = self.doors.arrived(monotonic_ns(), from, &self.words) else { return };
        self.due = 0; // so that the next tick computes it
        if self.desks[place].blocked || self.doors.get(place).is_some_and(|conversation| conversation.has_more()) {
            self.list(place);
        }
    }

    fn list(&mut self, place: usize) {
        let desk = &mut self.desks[place];
        if let Some(owner) = desk.owner
            && !std::mem::replace(&mut desk.listed, true)
        {
            self.ready.push(owner);
        }
    }

    /// Collects what must be sent again, and acknowledgements.
    fn tick(&mut self, idle: bool) -> io::Result<()> {
        if self.due == Nanos::MAX {
            return Ok(());
        }
        let now = monotonic_ns();
        if self.due > now && !idle {
            return Ok(());
        }
        self.due = Nanos::MAX;
        for place in 0..self.doors.places() {
            while self.may_post()
                && let Some(sequence) = self.doors.get(place).and_then(|conversation| conversation.again(now))
            {
                let slot = self.desks[place].slot(sequence);
                self.desks[place].slots[slot].1 = self.posted + 1;
                self.post(place, SLOTS_AT + slot * PACKET_WORDS, self.desks[place].slots[slot].0)?;
            }
            if self.doors.get(place).is_some_and(|conversation| conversation.tells(now, idle)) {
                self.tell(place)?;
            }
            let due = self.doors.get(place).and_then(|conversation| conversation.due());
            self.due = due.map_or(self.due, |due| self.due.min(due));
        }
        Ok(())
    }

    /// Collects a datagram that carries nothing. If there is no room yet, it stays due.
    fn tell(&mut self, place: usize) -> io::Result<()> {
        let may_post = self.may_post();
        let desk = &mut self.desks[place];
        let slot = (desk.told % TELL_SLOTS) as usize;
        if desk.tells[slot] > self.completed || !may_post || desk.peer.is_none() {
            return Ok(());
        }
        desk.told += 1;
        desk.tells[slot] = self.posted + 1;
        let (token, at) = (desk.token, TELLS_AT + slot * HEAD_WORDS);
        let Some(conversation) = self.doors.get(place) else { return Ok(()) };
        let head = conversation.head(token, 0);
        self.fill(place, at, head);
        self.post(place, at, HEAD_WORDS)
    }

    fn fill(&self, place: usize, at: usize, words: impl IntoIterator<Item = u64>) {
        let memory = self.pair.memory(self.desks[place].memory);
        let into: &[AtomicU64] = memory.map_or(&[], |memory| &memory.region().words()[at..]);
        for (into, word) in into.iter().zip(words) {
            into.store(word, Ordering::Relaxed);
        }
    }

    fn may_post(&self) -> bool {
        self.posted - self.completed < self.pair.send_max() as u64
    }

    /// Collects a datagram: the words at a place of a conversation's memory.
    fn post(&mut self, place: usize, at: usize, words: usize) -> io::Result<()> {
        self.posted += 1;
        let signaled = self.posted.is_multiple_of(SIGNAL_EVERY);
        if signaled {
            self.signaled.push_back(self.posted);
        }
        let desk = &mut self.desks[place];
        desk.last_posted = self.posted;
        let operation = Operation::Datagram(desk.peer.ok_or(io::ErrorKind::NotConnected)?);
        let (address, key, memory) = (0, 0, desk.memory);
        self.collected.push(WorkRequest { operation, address, key, memory, at, words, signaled });
        if self.collected.len() < LIST_MAX { Ok(()) } else { self.ring() }
    }

    /// Collects as much of the stream as there is room for. Returns the number of bytes.
    fn write(&mut self, place: usize, from: &[u8]) -> io::Result<usize> {
        let now = monotonic_ns();
        let mut written = 0;
        while written < from.len() && self.may_post() {
            let (completed, posted) = (self.completed, self.posted);
            let Some(conversation) = self.doors.get(place) else { break };
            let Some(sequence) = conversation.next() else { break };
            let desk = &mut self.desks[place];
            let slot = desk.slot(sequence);
            if desk.slots[slot].1 > completed {
                break;
            }
            let bytes = (desk.carries * WORD_BYTES).min(from.len() - written);
            let words = HEAD_WORDS + bytes / WORD_BYTES;
            desk.slots[slot] = (words, posted + 1);
            let (head, at) = (conversation.head(desk.token, sequence), SLOTS_AT + slot * PACKET_WORDS);
            conversation.sends(now);
            let carried = from[written..written + bytes].chunks_exact(WORD_BYTES);
            let carried = carried.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            self.fill(place, at, head.into_iter().chain(carried));
            self.post(place, at, words)?;
            written += bytes;
        }
        self.desks[place].blocked = written == 0;
        let due = self.doors.get(place).and_then(|conversation| conversation.due());
        self.due = due.map_or(self.due, |due| self.due.min(due));
        Ok(written)
    }
}

fn draw() -> Result<[u8; 32], VerbsError> {
    random().map_err(|cause| VerbsError::System { what: "draw random numbers", cause })
}

type Shared = Arc<Mutex<Office>>;

fn lock(office: &Shared) -> MutexGuard<'_, Office> {
    // One thread uses it. After a panic in here, that thread does nothing more with it.
    office.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue pairs for datagrams of an endpoint or a server. They are made when they are needed.
pub(super) struct Offices {
    domain: Arc<Domain>,
    offices: Vec<Shared>,
    /// Whether they belong to a server, which looks for news of all conversations at once.
    serves: bool,
}

impl Offices {
    pub(super) fn new(domain: &Arc<Domain>, serves: bool) -> Offices {
        Offices { domain: domain.clone(), offices: Vec::new(), serves }
    }

    /// Opens a conversation with an end that is not known yet.
    pub(super) fn open(&mut self) -> Result<Datagrams, VerbsError> {
        let drawn = draw()?;
        let drawn = u64::from_le_bytes(std::array::from_fn(|at| drawn[at]));
        self.offices.retain(|office| Arc::strong_count(office) > 1 || lock(office).has_room());
        let office = match self.offices.iter().find(|office| lock(office).has_room()) {
            Some(office) => office.clone(),
            None => {
                self.offices.push(Arc::new(Mutex::new(Office::new(&self.domain)?)));
                self.offices[self.offices.len() - 1].clone()
            }
        };
        let (place, address) = lock(&office).open(&self.domain, drawn)?;
        Ok(Datagrams { office, place, address, serves: self.serves })
    }

    /// Calls `add` with each channel for which the caller does not wait yet.
    pub(super) fn watch(&self, mut add: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        for office in &self.offices {
            let mut office = lock(office);
            if !office.watched {
                add(office.pair.channel())?;
                office.watched = true;
            }
        }
        Ok(())
    }

    /// Looks at what has arrived. If something is wrong, all conversations of that queue pair
    /// become ready, and see the error.
    pub(super) fn poll(&self, arm: bool) {
        for office in &self.offices {
            let mut office = lock(office);
            let armed = if arm { office.pair.arm() } else { Ok(()) };
            let _ = armed.and_then(|()| office.poll(false)).and_then(|()| office.ring());
        }
    }

    /// Returns when there will be something to send of this end's own accord.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.offices.iter().map(|office| lock(office).due).filter(|due| *due != Nanos::MAX).min()
    }

    /// Whether [`Offices::ready`] has something to report.
    pub(super) fn has_ready(&self) -> bool {
        self.offices.iter().any(|office| !lock(office).ready.is_empty())
    }

    /// Appends the owners of conversations that have something to read, or room to write.
    pub(super) fn ready(&self, into: &mut Vec<usize>) {
        for office in &self.offices {
            let mut office = lock(office);
            office.desks.iter_mut().for_each(|desk| desk.listed = false);
            into.append(&mut office.ready);
        }
    }
}

/// A conversation: a stream of bytes each way. Dropping it ends it, and datagrams that come for it
/// later are dropped.
pub(super) struct Datagrams {
    office: Shared,
    place: usize,
    address: Address,
    serves: bool,
}

impl Datagrams {
    /// Returns the address to which the other end sends its datagrams.
    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn connect(&self, path: &Place, to: Address) -> Result<(), VerbsError> {
        lock(&self.office).connect(self.place, path, to)
    }

    /// Sets the owner that is told of news.
    pub(super) fn own(&self, owner: usize) {
        lock(&self.office).desks[self.place].owner = Some(owner);
    }

    /// Looks at what has arrived. What must be sent now waits for [`Datagrams::ring`].
    pub(super) fn poll(&self) -> io::Result<()> {
        lock(&self.office).poll(false)
    }

    /// Posts what has been written and what must be sent, in all conversations of the queue pair.
    pub(super) fn ring(&self) -> io::Result<()> {
        lock(&self.office).ring()
    }

    /// Arms the channel, unless that is done for all conversations at once. Acknowledges everything
    /// that has arrived.
    pub(super) fn arm(&self) -> io::Result<()> {
        if self.serves {
            return Ok(());
        }
        let mut office = lock(&self.office);
        office.pair.arm()?;
        office.poll(true)?;
        office.ring()
    }

    pub(super) fn has_more(&self) -> bool {
        lock(&self.office).doors.get(self.place).is_some_and(|conversation| conversation.has_more())
    }

    pub(super) fn read(&self, into: &mut [u8]) -> usize {
        lock(&self.office).doors.get(self.place).map_or(0, |conversation| conversation.read(into))
    }

    /// Writes as much as there is room for. Returns the number of bytes. They leave with
    /// [`Datagrams::ring`].
    pub(super) fn write(&self, from: &[u8]) -> io::Result<usize> {
        let mut office = lock(&self.office);
        let written = office.write(self.place, from);
        office.broken |= written.is_err();
        written
    }

    /// Returns the number of datagrams that the other end has room for. The owner is told when
    /// there is more room.
    pub(super) fn room(&self) -> u64 {
        let mut office = lock(&self.office);
        office.desks[self.place].blocked = true;
        office.doors.get(self.place).map_or(0, |conversation| conversation.room())
    }

    /// Returns when something must be sent again, unless it is acknowledged first.
    pub(super) fn resend_due(&self) -> Option<Nanos> {
        lock(&self.office).doors.get(self.place)?.resend_due()
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        lock(&self.office).close(self.place);
    }
}
