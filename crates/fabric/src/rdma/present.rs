//! RDMA in a program that was built with it: the queue pairs of endpoints and servers, and how
//! calls and verbs use them.

mod arena;
mod datagrams;
mod device;
mod mail;
mod queue;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::iter::repeat_n;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::address::{Address, NodeId, RegionId, WORD_BYTES};
use crate::entropy::random;
use crate::error::Fault;
use crate::ids::Nanos;
use crate::limits::REGIONS_PER_NODE_MAX;
use crate::rdma::sends::Sends;
use crate::rdma::{Calls, VerbsError};
use crate::round::buffer::Verb;
use crate::round::part::Part;
use crate::shm::{Memory, monotonic_ns};

use arena::{Arena, Block};
use datagrams::{Datagrams, Offices};
pub use device::Device;
use mail::{Mail, Mailbox};
use queue::{Access, Completion, Kind, Operation, Place, QueuePair, Receive, Registered, WorkRequest};

/// Work requests of a client's queue pair that may be under way.
const CLIENT_SENDS: u32 = 1024;
/// Work requests of a server's queue pair that may be under way. They are messages only.
const SERVER_SENDS: u32 = 128;
/// Work requests that are kept free for messages.
const SPARE_SENDS: usize = 8;
/// Bytes that should travel in the work request itself, on a device that can do that.
const INLINE_BYTES: u32 = 188;

// Otherwise a round might wait for room for ever. It needs room for its verbs, beside the verbs
// that do not report and have nothing behind them that does.
const _: () = assert!(CLIENT_SENDS as usize * 3 / 4 > 2 * crate::limits::ROUND_VERBS_MAX);

/// The part that the queue pairs of an endpoint have in common.
pub(crate) struct Domain {
    domain: Arc<device::Domain>,
    offices: Offices,
}

impl Domain {
    pub(crate) fn of(device: &Device) -> Result<Domain, VerbsError> {
        let domain = device::Domain::new(device)?;
        Ok(Domain { offices: Offices::new(&domain, false), domain })
    }

    /// Makes a queue pair for a client. It is not connected yet.
    pub(crate) fn queue(&mut self) -> Result<Queue, VerbsError> {
        let datagrams = self.domain.context.calls == Calls::Datagrams;
        Queue::new(&self.domain, CLIENT_SENDS, datagrams.then_some(&mut self.offices))
    }

    /// Calls `add` with each channel that connections share, so that the caller waits for it.
    pub(crate) fn watch(&self, add: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        self.offices.watch(add)
    }
}

impl Device {
    /// Returns the bytes that a WRITE may carry in its work request, on a queue pair of this
    /// device.
    pub fn inline_bytes(&self) -> Result<u32, VerbsError> {
        Ok(Domain::of(self)?.queue()?.pair.inline_max() as u32)
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}

/// A memory node's regions, to which its NIC gives clients access.
pub(crate) struct Exports {
    domain: Arc<device::Domain>,
    regions: Vec<Registered>,
    offices: Offices,
}

impl Exports {
    pub(crate) fn new(device: &Device, memory: &Memory) -> Result<Exports, VerbsError> {
        let domain = device::Domain::new(device)?;
        let regions = (0..REGIONS_PER_NODE_MAX as u16)
            .map_while(|region| memory.region(NodeId(0), RegionId(region)))
            .map(|region| Registered::new(&domain, region.clone(), Access::Remote))
            .collect::<Result<_, _>>()?;
        Ok(Exports { offices: Offices::new(&domain, true), domain, regions })
    }

    /// Whether the NIC executes clients' verbs.
    pub(crate) fn one_sided(&self) -> bool {
        self.domain.context.atomics
    }

    /// Connects to a client that has introduced itself. Appends to `reply` what the client must be
    /// told.
    pub(crate) fn accept(&mut self, introduction: &[u64], reply: &mut Vec<u64>) -> Result<Queue, VerbsError> {
        // The client chooses how calls travel.
        let datagrams = introduction.get(DATAGRAMS_AT).is_some_and(|word| *word != 0);
        let mut queue = Queue::new(&self.domain, SERVER_SENDS, datagrams.then_some(&mut self.offices))?;
        reply.extend(queue.introduction());
        reply.extend(self.regions.iter().flat_map(|region| {
            let bytes = region.region().bytes();
            [region.address(), bytes, u64::from(region.rkey())]
        }));
        queue.connect(introduction)?;
        Ok(queue)
    }

    /// Calls `add` with each channel that connections share, so that the caller waits for it.
    pub(crate) fn watch(&self, add: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        self.offices.watch(add)
    }

    /// Looks at what has arrived over the queue pairs that connections share. With `arm`, their
    /// channels also wake for what arrives later.
    pub(crate) fn poll(&self, arm: bool) {
        self.offices.poll(arm);
    }

    /// Returns when to poll even if nothing arrives.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.offices.due()
    }

    /// Whether polling has found something for any connection.
    pub(crate) fn has_ready(&self) -> bool {
        self.offices.has_ready()
    }

    /// Appends the owners of the connections that polling has found something for.
    pub(crate) fn ready(&self, into: &mut Vec<usize>) {
        self.offices.ready(into);
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exports").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}

/// A region at the other end.
#[derive(Clone, Copy, Debug)]
struct RemoteRegion {
    address: u64,
    bytes: u64,
    key: u32,
}

/// A queue pair with what travels on it: one-sided verbs in lists, and a stream of bytes each way.
pub(crate) struct Queue {
    pair: QueuePair,
    carrier: Carrier,
    /// Whether the NICs execute verbs. If not, they travel in frames, as calls do.
    one_sided: bool,
    regions: Vec<RemoteRegion>,
    arena: Arena,
    /// Work requests that are not posted yet, because there was no room.
    backlog: VecDeque<WorkRequest>,
    /// Lists whose last work request is in the backlog. It reports.
    waiting: VecDeque<Fetched>,
    sends: Sends<Fetched>,
    done: VecDeque<Fetched>,
    /// No completion will come any more.
    broken: bool,
}

/// The carrier of the stream of bytes.
enum Carrier {
    /// A ring at the other end, through the queue pair itself.
    Connection(Mail),
    Datagrams(Datagrams),
}

/// One list of verbs of a round, which has completed or is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    pub(crate) part: Part,
    block: Block,
}

// An introduction:
//   0  version : 32 | queue pair : 32      4  mailbox's address
//   1  first packet : 32 | lid : 16 | mtu : 8 | global : 8
//   2  address (GID) : 128                 5  mailbox's key : 32 | words of a ring : 32
//   6  READs served at a time : 32 | atomics : 32
//   7  for datagrams: queue pair : 32 | its key : 32; 0: calls go by the connection
//   8  for datagrams: token
// and, of a server, address, bytes and key of each region.
const VERSION: u64 = 2;
const INTRODUCTION_WORDS: usize = 9;
const DATAGRAMS_AT: usize = 7;
const REGION_WORDS: usize = 3;

impl Queue {
    fn new(domain: &Arc<device::Domain>, sends: u32, offices: Option<&mut Offices>) -> Result<Queue, VerbsError> {
        let sequence = random().map_or(0, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]));
        let receives = if offices.is_some() { 1 } else { mail::RECEIVES };
        let mut pair = QueuePair::new(domain, Kind::Connection, sends, receives, INLINE_BYTES, sequence)?;
        let carrier = match offices {
            Some(offices) => Carrier::Datagrams(offices.open()?),
            None => Carrier::Connection(Mail::new(domain, &mut pair)?),
        };
        let sends = Sends::new(pair.send_max());
        Ok(Queue {
            pair,
            carrier,
            one_sided: false,
            regions: Vec::new(),
            arena: Arena::new(domain.clone()),
            backlog: VecDeque::new(),
            waiting: VecDeque::new(),
            sends,
            done: VecDeque::new(),
            broken: false,
        })
    }

    /// Returns the introduction of this end, which the other end needs to connect.
    pub(crate) fn introduction(&self) -> Vec<u64> {
        let Place { number, sequence, lid, mtu, gid, global, reads_in, atomics } = self.pair.place();
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(gid[at..at + 8].try_into().expect("eight bytes")));
        let (Mailbox { address, key }, [datagrams, token]) = match &self.carrier {
            Carrier::Connection(mail) => (mail.place(&self.pair), [0; 2]),
            Carrier::Datagrams(ours) => {
                let datagrams::Address { number, key, token } = ours.address();
                (Mailbox { address: 0, key: 0 }, [u64::from(number) | u64::from(key) << 32, token])
            }
        };
        vec![
            VERSION | u64::from(number) << 32,
            u64::from(sequence) | u64::from(lid) << 32 | u64::from(mtu) << 48 | u64::from(global) << 56,
            low,
            high,
            address,
            u64::from(key) | (mail::RING_WORDS as u64) << 32,
            u64::from(reads_in) | u64::from(atomics) << 32,
            datagrams,
            token,
        ]
    }

    /// Connects to the other end, which has introduced itself.
    pub(crate) fn connect(&mut self, introduction: &[u64]) -> Result<(), VerbsError> {
        let strange =
            || VerbsError::System { what: "understand the other end", cause: io::ErrorKind::InvalidData.into() };
        let (introduction, regions) = introduction.split_at_checked(INTRODUCTION_WORDS).ok_or_else(strange)?;
        let &[head, path, low, high, address, mail, reads, datagrams, token] = introduction else {
            return Err(strange());
        };
        let ring = mail >> 32;
        let mtu = (path >> 48 & 0xff) as u32;
        if head as u32 != VERSION as u32 || ring != mail::RING_WORDS as u64 || !(1..=5).contains(&mtu) {
            return Err(strange());
        }
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&low.to_le_bytes());
        gid[8..].copy_from_slice(&high.to_le_bytes());
        let place = Place {
            number: (head >> 32) as u32,
            sequence: path as u32 & 0xff_ffff,
            lid: (path >> 32) as u16,
            mtu,
            gid,
            global: path >> 56 != 0,
            reads_in: (reads as u32).clamp(1, 255) as u8,
            atomics: reads >> 32 != 0,
        };
        self.pair.connect(&place)?;
        self.one_sided = reads >> 32 != 0 && self.pair.place().atomics;
        match &mut self.carrier {
            Carrier::Connection(ours) if datagrams == 0 => ours.connect(Mailbox { address, key: mail as u32 }),
            Carrier::Datagrams(ours) if datagrams != 0 => {
                let to = datagrams::Address { number: datagrams as u32, key: (datagrams >> 32) as u32, token };
                ours.connect(&place, to)?;
            }
            _ => return Err(strange()),
        }
        let region = |words: &[u64]| match *words {
            [address, bytes, key] => Some(RemoteRegion { address, bytes, key: key as u32 }),
            _ => None,
        };
        self.regions = regions.chunks_exact(REGION_WORDS).filter_map(region).collect();
        Ok(())
    }

    /// Whether [`Queue::post`] posts this verb.
    #[inline]
    pub(crate) fn takes(&self, verb: &Verb) -> bool {
        self.one_sided && is_one_sided(verb)
    }

    /// Returns why a verb that it [takes](Queue::takes) cannot be posted, or `None` if it can.
    pub(crate) fn refusal(&self, verb: &Verb) -> Option<Fault> {
        let (at, words) = match *verb {
            Verb::Read { at, words, .. } | Verb::Write { at, words, .. } => (at, words),
            Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => (at, 1),
            Verb::Flush { .. } | Verb::Call { .. } | Verb::AfterCompletion => return None,
        };
        let bytes = u64::from(words) * WORD_BYTES as u64;
        match self.regions.get(usize::from(at.region.0)) {
            None => Some(Fault::NoSuchRegion(at)),
            Some(region) if at.offset.checked_add(bytes).is_none_or(|end| end > region.bytes) => {
                Some(Fault::OutOfBounds { at, bytes })
            }
            Some(_) => None,
        }
    }

    /// Posts those verbs of a part that this queue takes. Returns false if there are none. If
    /// posting fails, the queue is broken, which the next poll shows. The completion of a `lazy`
    /// part may be known later than it could be.
    pub(crate) fn post(&mut self, part: Part, lazy: bool, verbs: &[Verb], node: NodeId, words: &[u64]) -> bool {
        let verbs = posted(verbs, node, self.one_sided);
        let (count, needed) = verbs.clone().fold((0, 0), |(count, all), verb| (count + 1, all + carried(verb)));
        if count == 0 {
            return false;
        }
        let block = self.arena.take(&mut self.pair, needed).unwrap_or_else(|error| {
            tracing::warn!(%error, "no memory for verbs");
            self.broken = true;
            Block::NONE
        });
        let fetched = Fetched { part, block };
        if self.broken {
            self.waiting.push_back(fetched);
            return true;
        }
        let fits = self.backlog.is_empty() && count <= self.sends.room().saturating_sub(SPARE_SENDS);
        let quiet = lazy && fits && self.sends.may_be_quiet(count);
        let mut at = block.at;
        for (index, verb) in verbs.enumerate() {
            let request = self.request(verb, block.memory, at, !quiet && index + 1 == count);
            if let Verb::Write { words: many, from, .. } = *verb {
                self.arena.fill(&self.pair, block.memory, at, &words[from as usize..][..many as usize]);
            }
            at += request.words;
            self.backlog.push_back(request);
        }
        if !quiet {
            self.waiting.push_back(fetched);
        }
        let posted = self.post_backlog();
        if quiet {
            self.sends.end_quietly(fetched, part.since);
        }
        if let Err(error) = posted {
            tracing::warn!(%error, "verbs cannot be posted");
            self.broken = true;
        }
        true
    }

    fn request(&self, verb: &Verb, memory: u32, at: usize, signaled: bool) -> WorkRequest {
        let nowhere = RemoteRegion { address: 0, bytes: 0, key: 0 };
        let region = |at: Address| self.regions.get(usize::from(at.region.0)).copied().unwrap_or(nowhere);
        let (operation, to, offset) = match *verb {
            Verb::Read { at, .. } => (Operation::Read, region(at), at.offset),
            Verb::Write { at, .. } => (Operation::Write, region(at), at.offset),
            Verb::CompareSwap { at, expected, new, .. } => {
                (Operation::CompareSwap { expected, new }, region(at), at.offset)
            }
            Verb::FetchAdd { at, delta, .. } => (Operation::FetchAdd(delta), region(at), at.offset),
            // This READ is behind the WRITEs. It is answered when they are where readers see them.
            _ => (Operation::Read, self.regions.first().copied().unwrap_or(nowhere), 0),
        };
        let (address, key) = (to.address.wrapping_add(offset), to.key);
        WorkRequest { operation, address, key, memory, at, words: carried(verb), signaled }
    }

    /// Posts work requests of the backlog, as far as there is room.
    fn post_backlog(&mut self) -> io::Result<()> {
        let count = self.backlog.len().min(self.sends.room().saturating_sub(SPARE_SENDS));
        for request in self.backlog.range(..count) {
            self.sends.post(1);
            if request.signaled {
                let list = self.waiting.pop_front();
                self.sends.report(list, list.map_or(0, |list| list.part.since));
            }
        }
        self.pair.post(self.backlog.drain(..count))
    }

    /// Returns when to ask for lists that do not report, unless something reports behind them
    /// first.
    pub(crate) fn ask_at(&self) -> Option<Nanos> {
        // The last work request of the backlog reports.
        if self.broken || !self.backlog.is_empty() { None } else { self.sends.ask_at() }
    }

    /// Asks for lists that do not report, if it is time to do so: posts a WRITE of no words, which
    /// reports. If posting fails, the next poll shows it.
    pub(crate) fn ask(&mut self, now: Nanos) {
        if self.ask_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(Block { memory, at, .. }) = self.sends.lists().last().map(|list| list.block) else { return };
        let (address, key) = self.regions.first().map_or((0, 0), |region| (region.address, region.key));
        let (operation, words, signaled) = (Operation::Write, 0, true);
        let asked = self.send(WorkRequest { operation, address, key, memory, at, words, signaled });
        if let Err(error) = asked {
            tracing::warn!(%error, "verbs cannot be posted");
            self.broken = true;
        }
    }

    /// Looks at what has completed, and sends what is due.
    fn poll(&mut self) -> io::Result<()> {
        self.look()?;
        match &mut self.carrier {
            Carrier::Connection(_) => Ok(()),
            Carrier::Datagrams(datagrams) => datagrams.ring(),
        }
    }

    /// Looks at what has completed. Datagrams that are due leave with the next [`Queue::ring`].
    fn look(&mut self) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let outcome = self.poll_all();
        self.broken = outcome.is_err();
        outcome
    }

    fn poll_all(&mut self) -> io::Result<()> {
        let mut messages = 0;
        while self.is_busy()
            && let Some(completion) = self.pair.poll()?
        {
            match completion {
                Completion::Sent => self.done.extend(self.sends.reported().ok_or(io::ErrorKind::InvalidData)?),
                Completion::Message(words) => {
                    let Carrier::Connection(mail) = &mut self.carrier else {
                        return Err(io::ErrorKind::InvalidData.into());
                    };
                    messages += 1;
                    mail.arrived(&self.pair, words)?;
                }
                Completion::Datagram { .. } => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        // The other end is told of room for messages only below.
        self.pair.receive(repeat_n(Receive::NO_WORDS, messages)).map_err(io::Error::other)?;
        if !self.backlog.is_empty() {
            self.post_backlog()?;
        }
        match &mut self.carrier {
            Carrier::Datagrams(datagrams) => datagrams.poll(),
            // Making the credit counts as telling it. So it is made only if there is room to send
            // it.
            Carrier::Connection(_) if self.sends.room() == 0 => Ok(()),
            Carrier::Connection(mail) => mail.credit(&self.pair).map_or(Ok(()), |credit| self.send(credit)),
        }
    }

    /// Whether a completion is there, or is still to come.
    fn is_busy(&self) -> bool {
        matches!(self.carrier, Carrier::Connection(_)) || !self.sends.is_empty() || !self.backlog.is_empty()
    }

    /// Posts a work request of its own, which reports.
    fn send(&mut self, request: WorkRequest) -> io::Result<()> {
        self.sends.post(1);
        // When a report is awaited matters only if lists are behind it.
        let now = if self.sends.is_quiet() { monotonic_ns() } else { 0 };
        self.sends.report(None, now);
        self.pair.post(std::iter::once(request))
    }

    /// Returns a list that has completed.
    pub(crate) fn fetched(&mut self) -> Option<Fetched> {
        if self.done.is_empty() {
            // An error shows when the stream is read.
            let _ = self.poll();
        }
        self.done.pop_front()
    }

    /// Copies what a list has read to where its verbs want it.
    pub(crate) fn deliver(&mut self, fetched: Fetched, verbs: &[Verb], node: NodeId, words: &mut [u64]) {
        let mut at = fetched.block.at;
        for verb in posted(verbs, node, self.one_sided) {
            let into = match *verb {
                Verb::Read { into, words, .. } => Some((into, words as usize)),
                Verb::CompareSwap { into, .. } | Verb::FetchAdd { into, .. } => Some((into, 1)),
                _ => None,
            };
            if let Some((into, count)) = into {
                self.arena.read(&self.pair, fetched.block.memory, at, &mut words[into as usize..][..count]);
            }
            at += carried(verb);
        }
        self.arena.give_back(fetched.block);
    }

    /// Returns since when the other end has had to answer a list. It does not have to answer those
    /// that nothing reports.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        self.sends.oldest().or(self.waiting.front().map(|fetched| fetched.part.since))
    }

    /// Whether there are lists that have not been fetched.
    pub(crate) fn is_awaited(&self) -> bool {
        self.fetchable().next().is_some()
    }

    /// Returns the parts that are not known to have completed, and never will be.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.fetchable().map(|fetched| fetched.part)
    }

    fn fetchable(&self) -> impl Iterator<Item = &Fetched> {
        self.done.iter().chain(self.sends.lists()).chain(&self.waiting)
    }

    /// Reads messages of the other end. Fails with "would block" if there are none.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.has_more() {
            self.poll()?;
        }
        let count = match &mut self.carrier {
            Carrier::Connection(mail) => mail.read(&self.pair, into),
            Carrier::Datagrams(datagrams) => datagrams.read(into),
        };
        match count {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    /// Writes a message. Fails with "would block" if the other end has no room for one. What goes
    /// by datagrams leaves with [`Queue::ring`], in one list with what other connections write.
    pub(crate) fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.look()?;
        let mail = match &mut self.carrier {
            Carrier::Connection(mail) => mail,
            Carrier::Datagrams(datagrams) => match datagrams.write(from)? {
                0 => return Err(io::ErrorKind::WouldBlock.into()),
                bytes => return Ok(bytes),
            },
        };
        let message = if self.sends.room() > 0 { mail.message(&self.pair, from) } else { None };
        let message = message.ok_or(io::ErrorKind::WouldBlock)?;
        let bytes = message.words * WORD_BYTES;
        self.send(message)?;
        Ok(bytes)
    }

    /// Posts what was written to this and other connections that share a queue pair. Call it after
    /// [`Queue::write`], whatever that returned. If posting fails, the next poll shows it.
    pub(crate) fn ring(&mut self) {
        if let Carrier::Datagrams(datagrams) = &self.carrier
            && let Err(error) = datagrams.ring()
        {
            tracing::warn!(%error, "datagrams cannot be posted");
        }
    }

    /// Returns the channel that becomes readable when something has completed, after
    /// [`Queue::arm`].
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.pair.channel()
    }

    /// Arms the channel to wake when there is room. Returns true if the other end has made room
    /// already.
    pub(crate) fn arm_for_room(&mut self) -> bool {
        let before = self.mail_room();
        self.arm_all().is_err() || self.mail_room() > before
    }

    /// Arms the channel to wake for anything new. Returns true if there is something already.
    pub(crate) fn arm(&mut self) -> bool {
        self.arm_all().is_err() || self.has_news()
    }

    fn arm_all(&mut self) -> io::Result<()> {
        if self.is_busy() {
            self.pair.arm()?;
        }
        if let Carrier::Datagrams(datagrams) = &self.carrier {
            datagrams.arm()?;
        }
        self.poll()
    }

    /// Whether polls have found something, also for other connections that share a queue pair with
    /// this one.
    pub(crate) fn has_news(&self) -> bool {
        !self.done.is_empty() || self.has_more()
    }

    fn has_more(&self) -> bool {
        match &self.carrier {
            Carrier::Connection(mail) => mail.has_more(),
            Carrier::Datagrams(datagrams) => datagrams.has_more(),
        }
    }

    fn mail_room(&self) -> u64 {
        match &self.carrier {
            Carrier::Connection(mail) => mail.room(),
            Carrier::Datagrams(datagrams) => datagrams.room(),
        }
    }

    /// Sets the owner that [`Exports::ready`] reports when there is news.
    pub(crate) fn own(&self, owner: usize) {
        if let Carrier::Datagrams(datagrams) = &self.carrier {
            datagrams.own(owner);
        }
    }

    /// Returns when to poll even if nothing arrives, because something must be sent again.
    pub(crate) fn resend_due(&self) -> Option<Nanos> {
        match &self.carrier {
            Carrier::Connection(_) => None,
            Carrier::Datagrams(datagrams) => datagrams.resend_due(),
        }
    }
}

fn is_one_sided(verb: &Verb) -> bool {
    !matches!(verb, Verb::Call { .. } | Verb::AfterCompletion)
}

/// Returns the verbs for a node that are posted to its queue pair, in order.
fn posted(verbs: &[Verb], node: NodeId, one_sided: bool) -> impl Iterator<Item = &Verb> + Clone {
    verbs.iter().filter(move |verb| one_sided && verb.node() == Some(node) && is_one_sided(verb))
}

/// Returns the words of registered memory that a verb reads into or writes from.
fn carried(verb: &Verb) -> usize {
    match *verb {
        Verb::Read { words, .. } | Verb::Write { words, .. } => words as usize,
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } | Verb::Flush { .. } => 1,
        Verb::Call { .. } | Verb::AfterCompletion => 0,
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("sends", &self.sends.reports()).finish_non_exhaustive()
    }
}
