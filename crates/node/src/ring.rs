//! Redo rings: the memory in which a client's log entries lie until they have been applied.
//!
//! Every lane of a client has one ring at every memory node. So a ring has one writer, whose
//! transactions follow one another. The client writes frames by one-sided WRITEs. The node's own
//! CPU reads them, and says how far it has got.
//!
//! ```text
//! ring                                       frame, whole words
//! +0   applied   u64   position up to which  +0    id       u64   transaction id, grows in a ring
//!                      frames were applied   +8    kind     u32   1 = entry, 2 = skip the rest of
//! +8   last      u64   id of the last frame                       the ring, 3 = undo entry
//! +16  reach     u64   undo entries end      +12   words    u32   of the frame, all included
//!                      before it, or in      +16   entry    see `remora_txn::log`
//!                      their window          end-8 checksum u32   crc32c of everything before
//! +32  attempts  u64   log of attempts       end-4 words    u32   again
//! +64  data      RING_BYTES
//! ```
//!
//! A *position* counts bytes since the ring was made, and never wraps. The position modulo the
//! ring's size is the place in the data. The node writes `applied` and `last`. The client writes
//! everything else.
//!
//! # Undo entries
//!
//! Where clients install on every replica in place, a lane's transactions need no queue. The log of
//! a transaction is needed from its commit round until its release. The release is sent before the
//! next commit round, on the same connections.
//!
//! So undo entries, which no applier touches, lie one behind the other in a window at the start of
//! the ring, and then again from its start. Each entry begins at a multiple of [`UNDO_STRIDE`]. A
//! WRITE over its id, with the highest bit set, frees it. So the window tells which of the lane's
//! last transactions have ended. Recovery writes kind 4 before it frees an entry that it has
//! undone.
//!
//! Some entries are still needed when the next transaction comes, because their outcome is unknown
//! or their release has not been sent. The next entries then go on beyond the window. A node has
//! the undo entries of only those transactions in which it took part. So a recoverer cannot tell a
//! gap from the end. Therefore the client writes `reach` ahead of an entry that ends beyond the
//! window. `reach` never shrinks.
//!
//! # Logs of attempts
//!
//! Where any client finishes or undoes the transactions of another one, a lane has a log in which
//! its attempts follow one another: a word in the ring's header, which is CASed, and the ring's
//! data for the entries. `remora_txn`, `attempts.rs` has the layout.
//!
//! # Why a frame checks itself
//!
//! A WRITE becomes visible in ascending order, so a frame whose last word is right is complete. The
//! checksum shows that also for a WRITE that was cut short. Bytes of an earlier lap are not taken
//! for a frame, because their id is not above the last one. If a new client has taken over the
//! ring, their owner is another one.
//!
//! # Why a ring never overwrites what is needed
//!
//! A frame is needed until the node has applied it *and* its transaction is installed at every
//! primary, because until then recovery may need it. [`RingWriter::reserve`] counts both. A client
//! calls it before it takes any lock. So no client waits for room while other clients wait for its
//! locks.
//!
//! If a transaction's log or install has failed, the client does not know whether it is installed.
//! From then on, the client never says that its rings are settled ([`RingWriter::settle`]), uses up
//! the remaining room, and keeps its slot when it leaves.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::{Address, Lane, NodeId, Round, WORD_BYTES};
use zerocopy::IntoBytes;

use crate::bytes::read_bytes;
use crate::error::MemoryError;
use crate::limits::{FRAME_BYTES_MAX, RING_BYTES};
use crate::node;

/// The bytes of the ring's header.
pub const HEADER_BYTES: u64 = 64;
/// The bytes of a ring with its header.
pub const RING_EXTENT_BYTES: u64 = HEADER_BYTES + RING_BYTES;
/// The words of a frame around its entry: id, kind and length in front; checksum and length behind.
pub const FRAME_OVERHEAD_WORDS: usize = 3;

/// The index of the word `reach` in the header.
const REACH_WORD: usize = 2;
/// The index of the word of the log of attempts in the header.
pub(crate) const ATTEMPTS_WORD: usize = 4;
const _: () = assert!((ATTEMPTS_WORD + 1) * WORD_BYTES <= HEADER_BYTES as usize);
/// The bytes of the entries of a log of attempts.
pub const ATTEMPT_ENTRIES_BYTES: usize = FRAME_BYTES_MAX;
const KIND_ENTRY: u32 = 1;
const KIND_SKIP: u32 = 2;
const KIND_UNDO: u32 = 3;
const KIND_UNDONE: u32 = 4;
/// The bit in the id of an undo entry that says that the entry is free.
const FREED: u64 = 1 << 63;
/// Undo entries begin at multiples of this number of bytes.
pub const UNDO_STRIDE: u64 = 256;
const STRIDE_WORDS: usize = UNDO_STRIDE as usize / WORD_BYTES;
/// The bytes of a lane's undo entries that lie one behind the other before the first is
/// overwritten.
pub const UNDO_WINDOW: u64 = 16 * UNDO_STRIDE;
const _: () = assert!(FRAME_BYTES_MAX as u64 * 2 <= RING_BYTES);

/// Fills in everything of a frame except its entry, which lies in `frame[2..len - 1]`.
#[inline]
pub fn seal(frame: &mut [u64], id: u64) {
    seal_kind(frame, id, KIND_ENTRY);
}

#[inline]
fn seal_kind(frame: &mut [u64], id: u64, kind: u32) {
    let words = frame.len() as u64;
    frame[0] = id;
    frame[1] = u64::from(kind) | words << 32;
    if let Some((last, body)) = frame.split_last_mut() {
        *last = u64::from(crc32c::crc32c(body.as_bytes())) | words << 32;
    }
}

/// Returns the entry of a frame of a redo entry, if the frame is whole.
#[must_use]
pub fn entry_of(frame: &[u64]) -> Option<&[u64]> {
    let (last, body) = frame.split_last()?;
    let words = frame.len() as u64;
    let is_whole = *body.get(1)? == u64::from(KIND_ENTRY) | words << 32
        && *last == u64::from(crc32c::crc32c(body.as_bytes())) | words << 32;
    body.get(2..).filter(|_| is_whole)
}

/// Fills in everything of an undo entry's frame except the entry, which lies in `frame[2..len -
/// 1]`.
#[inline]
pub fn seal_undo(frame: &mut [u64], id: u64) {
    seal_kind(frame, id, KIND_UNDO);
}

/// Returns the word that, written over its id, frees the undo entry of a committed transaction.
#[inline]
#[must_use]
pub fn freed(id: u64) -> u64 {
    id | FREED
}

/// Returns the word that marks an undo entry as undone. The entry has `words` words, all included.
/// Recovery writes the mark over the word behind the entry's id, and then frees the id.
#[must_use]
pub fn undone(words: usize) -> u64 {
    u64::from(KIND_UNDONE) | (words as u64) << 32
}

/// Returns the address of the word `reach` of the ring at `base`: see [`RingWriter::reach_at`].
#[must_use]
pub fn reach_at(node: NodeId, base: u64) -> Address {
    node::at(node, base + (REACH_WORD * WORD_BYTES) as u64)
}

/// Returns the addresses of the log of attempts in the ring at `base`: of its word in the header,
/// and of its entries.
#[must_use]
pub fn attempt_log_at(node: NodeId, base: u64) -> (Address, Address) {
    (node::at(node, base + (ATTEMPTS_WORD * WORD_BYTES) as u64), node::at(node, base + HEADER_BYTES))
}

/// An undo entry that was found in a ring, with its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UndoEntry<E> {
    /// The offset of the entry in the ring's data, in bytes.
    pub place: u64,
    /// The id of the transaction.
    pub id: u64,
    /// Whether the transaction has committed. `None` as long as the entry is needed.
    pub ended: Option<bool>,
    /// The contents of the entry: see `remora_txn::log`.
    pub entry: E,
}

impl<E> UndoEntry<E> {
    fn map<F>(self, of: impl FnOnce(E) -> F) -> UndoEntry<F> {
        UndoEntry { place: self.place, id: self.id, ended: self.ended, entry: of(self.entry) }
    }
}

/// Finds a client's undo entries in the data of one of its rings. It finds entries that are whole
/// and not overwritten.
fn undo_entries(data: &[u64], owner: u32) -> impl Iterator<Item = UndoEntry<&[u64]>> {
    (0..data.len()).step_by(STRIDE_WORDS).filter_map(move |at| {
        let &[word, head, ..] = data.get(at..)? else { return None };
        let (id, kind, words) = (word & !FREED, head as u32, (head >> 32) as usize);
        let frame = data[at..].get(..words).filter(|_| words >= FRAME_OVERHEAD_WORDS)?;
        let (last, body) = frame.split_last()?;
        let sealed = [id, u64::from(KIND_UNDO) | head >> 32 << 32];
        let checksum = crc32c::crc32c_append(crc32c::crc32c(sealed.as_bytes()), body[2..].as_bytes());
        let whole = last >> 32 == head >> 32 && checksum == *last as u32;
        let ours = (id >> OWNER_SHIFT) as u32 == owner && matches!(kind, KIND_UNDO | KIND_UNDONE);
        let ended = (word & FREED != 0).then_some(kind == KIND_UNDO);
        (whole && ours).then(|| UndoEntry { place: (at * WORD_BYTES) as u64, id, ended, entry: &body[2..] })
    })
}

/// Room that is reserved for the next frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The position from which the rest of the ring is skipped first, if it is.
    skip: Option<u64>,
    start: u64,
    end: u64,
}

/// The place of a frame that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// The address of the frame itself.
    pub at: Address,
    /// A frame to write before it, which says that the rest of the ring is skipped.
    pub skip: Option<(Address, [u64; FRAME_OVERHEAD_WORDS])>,
}

/// The client's side of a ring.
#[derive(Clone, Debug)]
pub struct RingWriter {
    node: NodeId,
    base: u64,
    tail: u64,
    /// The position up to which the node has applied the ring, as far as this client knows.
    applied: u64,
    /// The position up to which all transactions are installed everywhere.
    settled: u64,
}

impl RingWriter {
    /// Makes the writer of the ring that begins at `base` of the node's region 0 and is empty.
    #[must_use]
    pub fn new(node: NodeId, base: u64) -> RingWriter {
        RingWriter { node, base, tail: 0, applied: 0, settled: 0 }
    }

    /// Makes the writer of a ring that a dead client has written up to `tail`. Recovery uses it to
    /// write on: it restores what that client had reserved the room for.
    #[must_use]
    pub fn resume(node: NodeId, base: u64, tail: u64) -> RingWriter {
        RingWriter { node, base, tail, applied: tail, settled: tail }
    }

    /// Returns the memory node that has the ring.
    #[inline]
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Reserves room for a frame of `words` words. Returns `None` if this client knows of no room.
    #[inline]
    #[must_use]
    pub fn reserve(&self, words: usize) -> Option<Reservation> {
        let bytes = (words * WORD_BYTES) as u64;
        let place = self.tail % RING_BYTES;
        let (skip, start) = if place + bytes <= RING_BYTES {
            (None, self.tail)
        } else {
            (Some(self.tail), self.tail - place + RING_BYTES)
        };
        let end = start + bytes;
        (end - self.applied.min(self.settled) <= RING_BYTES).then_some(Reservation { skip, start, end })
    }

    /// Takes the reserved room. Returns where to write the frame, and what to write before it if
    /// the rest of the ring is skipped.
    #[inline]
    pub fn take(&mut self, reservation: Reservation, id: u64) -> Placement {
        debug_assert_eq!(
            reservation.skip.unwrap_or(reservation.start),
            self.tail,
            "occ 3: a frame goes where its client has reserved room"
        );
        self.tail = reservation.end;
        Placement { at: self.data(reservation.start), skip: reservation.skip.and_then(|from| self.skip_rest(from, id)) }
    }

    /// Takes the reserved room, and adds to `round` the WRITE of a staged frame.
    #[inline]
    pub fn append(&mut self, round: &mut Round<'_>, frame: remora_fabric::Staged, reservation: Reservation, id: u64) {
        let Placement { at, skip } = self.take(reservation, id);
        if let Some((from, frame)) = skip {
            round.write_words(from, &frame);
        }
        round.write_staged(at, frame);
    }

    /// Gives back room that was taken last and has not been written to.
    pub fn give_back(&mut self, reservation: Reservation) {
        debug_assert_eq!(self.tail, reservation.end, "what was taken last is given back");
        self.tail = reservation.skip.unwrap_or(reservation.start);
    }

    #[cold]
    fn skip_rest(&self, from: u64, id: u64) -> Option<(Address, [u64; FRAME_OVERHEAD_WORDS])> {
        // If less than a frame's overhead is left, the reader skips it by itself.
        (RING_BYTES - from % RING_BYTES >= (FRAME_OVERHEAD_WORDS * WORD_BYTES) as u64).then(|| {
            let mut frame = [0; FRAME_OVERHEAD_WORDS];
            seal_kind(&mut frame, id, KIND_SKIP);
            (self.data(from), frame)
        })
    }

    /// Returns the position up to which the node has applied the ring, as far as this client knows.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the position up to which this client has written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.tail
    }

    fn data(&self, position: u64) -> Address {
        node::at(self.node, self.base + HEADER_BYTES + position % RING_BYTES)
    }

    /// Returns the address of a lane's undo entry that lies `from` bytes into the ring: see the
    /// [module](self).
    #[inline]
    #[must_use]
    pub fn undo_at(&self, from: u64) -> Address {
        debug_assert!(from < RING_BYTES);
        self.data(from)
    }

    /// Returns the address of the word in which the client says how far its undo entries reach, in
    /// bytes. The client writes this word ahead of an entry that ends beyond [`UNDO_WINDOW`].
    #[must_use]
    pub fn reach_at(&self) -> Address {
        reach_at(self.node, self.base)
    }

    /// Returns the addresses of the log of attempts: see [`attempt_log_at`].
    #[must_use]
    pub fn attempt_log_at(&self) -> (Address, Address) {
        attempt_log_at(self.node, self.base)
    }

    /// Returns the address of the word in which the node says how far it has applied the ring, for
    /// [`RingWriter::learn`].
    #[inline]
    #[must_use]
    pub fn applied_at(&self) -> Address {
        node::at(self.node, self.base)
    }

    /// Records how far the node has applied the ring.
    #[inline]
    pub fn learn(&mut self, applied: u64) {
        // A node that claims more than was written is wrong. If the client believed it, it would
        // overwrite frames that the node has not applied.
        if applied <= self.tail {
            self.applied = self.applied.max(applied);
        }
    }

    /// Records that every transaction logged so far is installed at all primaries.
    #[inline]
    pub fn settle(&mut self) {
        self.settled = self.tail;
    }

    /// Whether the ring is so full that the client should ask how far the node has got.
    #[inline]
    #[must_use]
    pub fn half_full(&self) -> bool {
        self.tail - self.applied > RING_BYTES / 2
    }

    /// Whether the node has applied everything, as far as this client knows.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.tail == self.applied
    }
}

/// The node's side of a ring.
#[derive(Clone, Debug)]
pub struct RingReader {
    owner: u32,
    header: usize,
    position: u64,
    last: u64,
}

impl RingReader {
    /// Makes a reader that continues where the ring's header says. `base` is the ring's offset, and
    /// `owner` the incarnation that the ring belongs to.
    #[must_use]
    pub fn resume(region: &[AtomicU64], base: u64, owner: u32) -> Option<RingReader> {
        let header = base as usize / WORD_BYTES;
        if !base.is_multiple_of(WORD_BYTES as u64) || header + RING_EXTENT_BYTES as usize / WORD_BYTES > region.len() {
            return None;
        }
        let position = region[header].load(Ordering::Acquire);
        Some(RingReader { owner, header, position, last: region[header + 1].load(Ordering::Acquire) })
    }

    /// Returns the id of the last entry returned; 0 if the ring has had none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the next entry and its id, copied to `scratch`. `None` if the entry has not arrived
    /// whole.
    ///
    /// Where the rest of the ring is skipped, the reader only looks past it. Its position stays
    /// behind the last entry until the next one has arrived at the start of the ring. Otherwise a
    /// client could learn of a position that it has not written up to. And if a client dies between
    /// a skip and the entry behind it, the ring would never count as applied.
    pub fn next<'s>(&mut self, region: &[AtomicU64], scratch: &'s mut Vec<u64>) -> Option<(u64, &'s [u64])> {
        let mut position = self.position;
        loop {
            let mut left = ((RING_BYTES - position % RING_BYTES) / WORD_BYTES as u64) as usize;
            if left < FRAME_OVERHEAD_WORDS {
                position += (left * WORD_BYTES) as u64;
                left = RING_BYTES as usize / WORD_BYTES;
            }
            let data = self.header + (HEADER_BYTES as usize + (position % RING_BYTES) as usize) / WORD_BYTES;
            let load = |word: usize| region[data + word].load(Ordering::Acquire);
            let id = load(0);
            if id <= self.last || (id >> OWNER_SHIFT) as u32 != self.owner {
                return None;
            }
            let head = load(1);
            let words = (head >> 32) as usize;
            if head as u32 == KIND_UNDO
                || !(FRAME_OVERHEAD_WORDS..=left.min(FRAME_BYTES_MAX / WORD_BYTES)).contains(&words)
                || load(words - 1) >> 32 != words as u64
            {
                return None;
            }
            scratch.clear();
            scratch.extend((0..words).map(load));
            if crc32c::crc32c(scratch[..words - 1].as_bytes()) != scratch[words - 1] as u32 {
                return None;
            }
            match head as u32 {
                // The client never skips a whole lap.
                KIND_SKIP if !position.is_multiple_of(RING_BYTES) => {
                    position += (left * WORD_BYTES) as u64;
                }
                KIND_ENTRY => {
                    self.position = position + (words * WORD_BYTES) as u64;
                    self.last = id;
                    return Some((id, &scratch[2..words - 1]));
                }
                _ => return None,
            }
        }
    }

    /// Returns the position behind the last entry returned.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Tells the client that everything returned so far has been applied.
    pub fn publish(&self, region: &[AtomicU64]) {
        // `applied` comes first. After a crash between the two stores, the next frame's id is still
        // above the older `last`.
        region[self.header].store(self.position, Ordering::Release);
        region[self.header + 1].store(self.last, Ordering::Release);
    }

    /// Visits every entry that is still whole in the ring, in no particular order. Checks and
    /// recovery use it. They compare versions, and need no order.
    pub fn scan(&self, region: &[AtomicU64], mut visit: impl FnMut(u64, &[u64])) {
        self.scan_kind(region, KIND_ENTRY, &mut visit);
    }

    /// Visits every undo entry that is still whole in the ring, in no particular order.
    pub fn scan_undo(&self, region: &[AtomicU64], mut visit: impl FnMut(u64, &[u64])) {
        self.scan_kind(region, KIND_UNDO, &mut visit);
    }

    fn scan_kind(&self, region: &[AtomicU64], kind: u32, visit: &mut dyn FnMut(u64, &[u64])) {
        let data = self.header + HEADER_BYTES as usize / WORD_BYTES;
        let ring = &region[data..data + RING_BYTES as usize / WORD_BYTES];
        let mut frame = Vec::new();
        let mut at = 0;
        while at + FRAME_OVERHEAD_WORDS <= ring.len() {
            let is_whole = self.copy_frame(&ring[at..], &mut frame);
            if is_whole && frame[1] as u32 == kind {
                visit(frame[0], &frame[2..frame.len() - 1]);
            }
            at += if is_whole { frame.len() } else { 1 };
        }
    }

    /// Copies the frame that begins with these words. Returns false if they do not begin a whole
    /// frame.
    fn copy_frame(&self, from: &[AtomicU64], frame: &mut Vec<u64>) -> bool {
        let load = |word: &AtomicU64| word.load(Ordering::Acquire);
        if (load(&from[0]) >> OWNER_SHIFT) as u32 != self.owner {
            return false;
        }
        let words = (load(&from[1]) >> 32) as usize;
        if words < FRAME_OVERHEAD_WORDS || words > from.len() {
            return false;
        }
        frame.clear();
        frame.extend(from[..words].iter().map(load));
        let (end, head) = (frame[words - 1], &frame[..words - 1]);
        (frame[0] >> OWNER_SHIFT) as u32 == self.owner
            && [frame[1] >> 32, end >> 32] == [words as u64; 2]
            && crc32c::crc32c(head.as_bytes()) == end as u32
    }
}

/// A copy of the ring of a client that writes no more, read from another machine. Recovery uses it.
/// Only the needed parts of the ring are read.
#[derive(Debug)]
pub struct RingCopy {
    node: NodeId,
    base: u64,
    owner: u32,
    words: Vec<AtomicU64>,
    /// The blocks of the data that have been read, one bit each.
    read: u64,
    /// The position up to which the node has applied the ring.
    applied: u64,
    /// The position behind the last whole entry.
    tail: u64,
    /// The id of the last whole entry.
    last: u64,
}

/// The bytes that are read at a time.
const BLOCK_BYTES: u64 = RING_BYTES / u64::BITS as u64;

/// How far a node has applied a ring. Both positions only grow as long as one client has the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The position before which everything has been applied.
    pub applied: u64,
    /// The position behind the last entry that has arrived.
    pub tail: u64,
}

impl RingCopy {
    /// Reads the ring that begins at `base` of the node's region 0. It belongs to a client whose
    /// access has been revoked.
    pub async fn read(lane: &Lane, node: NodeId, base: u64, owner: u32) -> Result<RingCopy, MemoryError> {
        let mut copy = RingCopy::read_unapplied(lane, node, base, owner).await?;
        // On the ring's first lap, the data behind the tail belong to no client, or to an earlier
        // one.
        copy.fetch(lane, 0, copy.tail.min(RING_BYTES)).await?;
        Ok(copy)
    }

    fn empty(node: NodeId, base: u64, owner: u32) -> RingCopy {
        let words = (0..RING_EXTENT_BYTES as usize / WORD_BYTES).map(|_| AtomicU64::new(0)).collect();
        RingCopy { node, base, owner, words, read: 0, applied: 0, tail: 0, last: 0 }
    }

    /// Reads the part of a ring that has not been applied yet.
    async fn read_unapplied(lane: &Lane, node: NodeId, base: u64, owner: u32) -> Result<RingCopy, MemoryError> {
        let mut copy = RingCopy::empty(node, base, owner);
        let mut round = lane.round();
        let header = round.read(node::at(node, base), HEADER_BYTES as usize);
        let done = lane.execute(round).await?;
        for (to, from) in copy.words.iter().zip(done.words(header)) {
            to.store(*from, Ordering::Relaxed);
        }
        drop(done);
        let Some(mut reader) = RingReader::resume(&copy.words, 0, owner) else { return Ok(copy) };
        copy.applied = reader.position();
        let mut scratch = Vec::new();
        loop {
            let place = reader.position() % RING_BYTES;
            let has_frame = RING_BYTES - place >= (FRAME_OVERHEAD_WORDS * WORD_BYTES) as u64;
            // The next entry is at the start of the ring if the rest is skipped.
            if !has_frame || copy.fetch_frame(lane, place).await? == KIND_SKIP {
                copy.fetch_frame(lane, 0).await?;
            }
            if reader.next(&copy.words, &mut scratch).is_none() {
                break;
            }
        }
        (copy.tail, copy.last) = (reader.position(), reader.last());
        Ok(copy)
    }

    /// Reads the frame that may be at a place of the data, and returns its kind.
    async fn fetch_frame(&mut self, lane: &Lane, place: u64) -> Result<u32, MemoryError> {
        self.fetch(lane, place, place + 2 * WORD_BYTES as u64).await?;
        let head = self.words[(HEADER_BYTES + place) as usize / WORD_BYTES + 1].load(Ordering::Relaxed);
        let bytes = (head >> 32) * WORD_BYTES as u64;
        self.fetch(lane, place, place + bytes.min(FRAME_BYTES_MAX as u64)).await?;
        Ok(head as u32)
    }

    /// Reads what has not been read yet of a piece of the data.
    async fn fetch(&mut self, lane: &Lane, from: u64, to: u64) -> Result<(), MemoryError> {
        let blocks = from / BLOCK_BYTES..to.min(RING_BYTES).div_ceil(BLOCK_BYTES);
        let missing = |block: &u64, read: u64| read >> block & 1 == 0;
        let mut next = blocks.start;
        while let Some(first) = (next..blocks.end).find(|block| missing(block, self.read)) {
            next = (first..blocks.end).find(|block| !missing(block, self.read)).unwrap_or(blocks.end);
            let at = HEADER_BYTES + first * BLOCK_BYTES;
            let bytes = ((next - first) * BLOCK_BYTES) as usize;
            let bytes = read_bytes(lane, node::at(self.node, self.base + at), bytes).await?;
            for (to, from) in self.words[at as usize / WORD_BYTES..].iter().zip(bytes.chunks_exact(WORD_BYTES)) {
                to.store(from.try_into().map_or(0, u64::from_ne_bytes), Ordering::Relaxed);
            }
            self.read |= (first..next).fold(0, |bits, block| bits | 1 << block);
        }
        Ok(())
    }

    /// Returns how far a node has applied a ring, and where the ring ends.
    pub async fn progress(lane: &Lane, node: NodeId, base: u64, owner: u32) -> Result<Progress, MemoryError> {
        let copy = RingCopy::read_unapplied(lane, node, base, owner).await?;
        Ok(Progress { applied: copy.applied, tail: copy.tail })
    }

    /// Whether the node has applied a ring to its end.
    pub async fn is_applied(lane: &Lane, node: NodeId, base: u64, owner: u32) -> Result<bool, MemoryError> {
        let copy = RingCopy::read_unapplied(lane, node, base, owner).await?;
        Ok(copy.applied == copy.tail)
    }

    /// Reads the client's undo entries. Only entries that are whole and not overwritten are
    /// returned.
    pub async fn undo_entries(&mut self, lane: &Lane) -> Result<Vec<UndoEntry<Vec<u64>>>, MemoryError> {
        let end = self.reach().clamp(UNDO_WINDOW, RING_BYTES);
        self.fetch(lane, 0, end).await?;
        let data = self.words[HEADER_BYTES as usize / WORD_BYTES..].iter().take(end as usize / WORD_BYTES);
        let data: Vec<u64> = data.map(|word| word.load(Ordering::Relaxed)).collect();
        Ok(undo_entries(&data, self.owner).map(|one| one.map(<[u64]>::to_vec)).collect())
    }

    /// Returns how far the undo entries reach, if beyond the window.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.words[REACH_WORD].load(Ordering::Relaxed)
    }

    /// Visits every entry that is still whole, in any order.
    pub fn entries(&self, visit: impl FnMut(u64, &[u64])) {
        if self.tail == 0 {
            return;
        }
        if let Some(reader) = RingReader::resume(&self.words, 0, self.owner) {
            reader.scan(&self.words, visit);
        }
    }

    /// Returns the id of the newest entry that has arrived. Entries arrive in the order of their
    /// ids. So an entry with a smaller id that is missing has been overwritten, and one with a
    /// larger id never arrived.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether nothing in the ring has ever been overwritten, not even by a frame that has not
    /// arrived whole.
    #[must_use]
    pub fn is_first_lap(&self) -> bool {
        self.tail + FRAME_BYTES_MAX as u64 <= RING_BYTES
    }

    /// Appends an entry that has not arrived to the entries that have, as the client would have
    /// done.
    pub async fn append(&mut self, lane: &Lane, id: u64, entry: &[u64]) -> Result<(), MemoryError> {
        let words = entry.len() + FRAME_OVERHEAD_WORDS;
        let mut writer = RingWriter::resume(self.node, self.base, self.tail);
        let Some(room) = writer.reserve(words) else { return Err(MemoryError::Damaged(self.node)) };
        let mut round = lane.round();
        let staged = round.stage_words(words);
        let frame = round.staged_mut(staged);
        frame[2..words - 1].copy_from_slice(entry);
        seal(frame, id);
        writer.append(&mut round, staged, room, id);
        lane.execute(round).await?;
        (self.tail, self.last) = (writer.written(), id);
        Ok(())
    }
}

/// The shift of a transaction id's owner, which is the upper 24 of its 63 bits. The lock word of
/// `remora_record` is packed in this way too.
pub const OWNER_SHIFT: u32 = 39;

#[cfg(test)]
mod tests {
    use super::*;
    use remora_fabric::shm::Shm;
    use remora_fabric::{ClientId, Fabric};

    /// A frame leaves less room than another one needs. The node then looks for the next frame at
    /// the start of the ring. It must not say that it has applied what is in between.
    #[test]
    fn a_ring_is_drained_also_when_its_end_is_skipped() {
        const OWNER: u32 = 7;
        let fabric = Shm::new(&[vec![2 * RING_BYTES as usize]]).expect("a test's memory");
        let region = fabric.region(NodeId(0), node::REGION).expect("the only region");
        let mut reader = RingReader::resume(region.words(), 0, OWNER).expect("a ring at the start");
        let mut writer = RingWriter::new(NodeId(0), 0);
        let frame_max = FRAME_BYTES_MAX / WORD_BYTES;
        remora_fabric::block_on(&fabric, ClientId(1), async |lane| {
            for (sequence, words) in [(1, frame_max), (2, frame_max - 1), (3, 8)] {
                let id = u64::from(OWNER) << OWNER_SHIFT | sequence;
                writer.settle();
                let room = writer.reserve(words).expect("everything before has been applied");
                let mut round = lane.round();
                let staged = round.stage_words(words);
                round.staged_mut(staged).fill(sequence);
                seal(round.staged_mut(staged), id);
                writer.append(&mut round, staged, room, id);
                lane.execute(round).await.expect("a healthy node");
                let mut scratch = Vec::new();
                assert_eq!(reader.next(region.words(), &mut scratch).map(|(id, _)| id), Some(id));
                assert!(reader.next(region.words(), &mut scratch).is_none());
                reader.publish(region.words());
                writer.learn(region.words()[0].load(Ordering::Acquire));
                assert!(writer.drained(), "after frame {sequence}");
            }
        })
        .expect("a connection");
    }
}
