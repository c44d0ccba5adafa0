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
//! +16  reach     u64   frames end before     +12   words    u32   of the frame, all included
//!                      it, or in their       +16   entry    see `remora_txn::log`
//!                      window                end-8 checksum u32   crc32c of everything before
//! +32  attempts  u64   log of attempts       end-4 words    u32   again
//! +64  data            a power of two of bytes, as the client's slot says
//! ```
//!
//! A *position* counts bytes since the ring was made, and never wraps. The position modulo the
//! ring's size is the place in the data. The node writes `applied` and `last`. The client writes
//! everything else.
//!
//! # Rings of several sizes
//!
//! A client chooses the size of its rings when it registers: [`RING_BYTES`], or up to
//! [`RING_BYTES_MAX`] for frames of up to half of that.
//!
//! 1. A large ring must not cost more than a small one as long as its frames are small. So the
//!    client keeps to the first [`RING_BYTES`] of the data, the ring's *window*, if it can: where a
//!    frame would end beyond the window, and there is room at the start of the ring, the client
//!    skips the rest.
//! 2. Before a frame ends beyond the window, the client writes into the header how far its frames
//!    `reach`. `reach` never shrinks. So a recoverer reads only the part that was written to.
//! 3. A frame of more than one piece ([`PIECE_BYTES_MAX`]) is written in ascending order, in
//!    several rounds. The client awaits each of them. So the frame is whole only when the last
//!    piece has arrived, and a client that gives up before has overwritten what is next in turn,
//!    and nothing behind it.
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
//! gap from the end. Therefore the client writes `reach` ahead of an entry that ends beyond this
//! window, which is smaller than that of redo entries.
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

use remora_fabric::limits::ROUND_BYTES_MAX;
use remora_fabric::{Address, Lane, NodeId, Round, WORD_BYTES};
use zerocopy::IntoBytes;

use crate::bytes::read_bytes;
use crate::error::MemoryError;
use crate::limits::{FRAME_BYTES_MAX, RING_BYTES, RING_BYTES_MAX};
use crate::node;

/// The bytes of the ring's header.
pub const HEADER_BYTES: u64 = 64;
/// The bytes of a ring of the usual size, with its header.
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
/// The bytes of a frame that go into one round, at most. A round has room for them, and for as much
/// again.
pub const PIECE_BYTES_MAX: usize = FRAME_BYTES_MAX;
const _: () = assert!(2 * PIECE_BYTES_MAX <= ROUND_BYTES_MAX);
const _: () = assert!(RING_BYTES.is_power_of_two() && RING_BYTES_MAX.is_power_of_two());

/// Where a ring lies in region 0 of its node: the offset of its header, and the bytes of its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSpan {
    /// The offset of the ring's header.
    pub base: u64,
    /// The bytes of the ring's data.
    pub bytes: u64,
}

impl RingSpan {
    /// Returns the ring with this number, of rings of `bytes` bytes of data that follow one another
    /// from `first` on.
    #[must_use]
    pub fn nth(first: u64, number: usize, bytes: u64) -> RingSpan {
        let before = (number as u64).saturating_mul(extent_bytes(bytes));
        RingSpan { base: first.saturating_add(before), bytes }
    }

    /// Whether a ring can have this place and size. What was read from memory may be anything.
    #[must_use]
    pub fn is_sound(self) -> bool {
        is_ring_size(self.bytes) && self.base.is_multiple_of(WORD_BYTES as u64)
    }

    /// Returns the address of the ring's header.
    #[must_use]
    pub fn header_at(self, node: NodeId) -> Address {
        node::at(node, self.base)
    }

    /// Returns the address of the ring's data.
    #[must_use]
    pub fn data_at(self, node: NodeId) -> Address {
        node::at(node, self.base + HEADER_BYTES)
    }

    /// Returns the place in the data that a position has.
    #[inline]
    fn place(self, position: u64) -> u64 {
        position & (self.bytes - 1)
    }

    /// Returns the bytes of the largest frame of the ring.
    #[inline]
    #[must_use]
    pub fn frame_bytes_max(self) -> usize {
        self.bytes as usize / 2
    }

    /// Returns how many bytes of the data may have been written to, if the header has this `reach`.
    fn used(self, reach: u64) -> u64 {
        reach.clamp(RING_BYTES, self.bytes)
    }
}

impl From<u64> for RingSpan {
    /// Returns the ring of the usual size that begins at an offset.
    fn from(base: u64) -> RingSpan {
        RingSpan { base, bytes: RING_BYTES }
    }
}

/// Returns the bytes that a ring with `data` bytes of data takes, with its header.
#[must_use]
pub const fn extent_bytes(data: u64) -> u64 {
    HEADER_BYTES.saturating_add(data)
}

/// Returns whether a ring can have this number of bytes of data.
#[must_use]
pub const fn is_ring_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= RING_BYTES && bytes <= RING_BYTES_MAX
}

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

/// Returns the address of the word `reach` of a ring: see [`RingWriter::reach_at`].
#[must_use]
pub fn reach_at(node: NodeId, ring: RingSpan) -> Address {
    ring.header_at(node).plus((REACH_WORD * WORD_BYTES) as u64)
}

/// Returns the addresses of the log of attempts in a ring: of its word in the header, and of its
/// entries.
#[must_use]
pub fn attempt_log_at(node: NodeId, ring: RingSpan) -> (Address, Address) {
    (ring.header_at(node).plus((ATTEMPTS_WORD * WORD_BYTES) as u64), ring.data_at(node))
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
    /// A word to write before the frame, which says how far the ring's frames reach, if this frame
    /// reaches further.
    pub reach: Option<(Address, u64)>,
    /// A frame to write before it, which says that the rest of the ring is skipped.
    pub skip: Option<(Address, [u64; FRAME_OVERHEAD_WORDS])>,
}

/// The client's side of a ring.
#[derive(Clone, Debug)]
pub struct RingWriter {
    node: NodeId,
    span: RingSpan,
    tail: u64,
    /// How far the header says that frames reach, or the end of the window.
    reach: u64,
    /// What `reach` was before the last frame, whose room may be given back.
    reach_before: u64,
    /// The position up to which the node has applied the ring, as far as this client knows.
    applied: u64,
    /// The position up to which all transactions are installed everywhere.
    settled: u64,
}

impl RingWriter {
    /// Makes the writer of an empty ring. An offset stands for the ring of the usual size there.
    #[must_use]
    pub fn new(node: NodeId, ring: impl Into<RingSpan>) -> RingWriter {
        let span = ring.into();
        debug_assert!(span.is_sound(), "a client registers rings of a size that rings can have");
        RingWriter { node, span, tail: 0, reach: RING_BYTES, reach_before: RING_BYTES, applied: 0, settled: 0 }
    }

    /// Makes the writer of a ring that a dead client has written up to `tail`, and whose header
    /// says how far its frames `reach`. Recovery uses it to write on: it restores what that client
    /// had reserved the room for.
    #[must_use]
    pub fn resume(node: NodeId, span: RingSpan, tail: u64, reach: u64) -> RingWriter {
        let reach = span.used(reach);
        RingWriter { node, span, tail, reach, reach_before: reach, applied: tail, settled: tail }
    }

    /// Returns the memory node that has the ring.
    #[inline]
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the bytes of the ring's data.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.span.bytes
    }

    /// Returns the bytes of the largest frame of the ring.
    #[inline]
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        self.span.frame_bytes_max()
    }

    /// Reserves room for a frame of `words` words. Returns `None` if this client knows of no room.
    #[inline]
    #[must_use]
    pub fn reserve(&self, words: usize) -> Option<Reservation> {
        let bytes = (words * WORD_BYTES) as u64;
        let place = self.span.place(self.tail);
        let here = Reservation { skip: None, start: self.tail, end: self.tail + bytes };
        if place + bytes <= RING_BYTES || place == 0 {
            return self.room(here);
        }
        // The rest of the ring is skipped: the frame does not fit there, or keeps to the window.
        let start = self.tail - place + self.span.bytes;
        let wrapped = self.room(Reservation { skip: Some(self.tail), start, end: start + bytes });
        if wrapped.is_none() && place + bytes <= self.span.bytes { self.room(here) } else { wrapped }
    }

    /// Returns these places if the ring has room there: nothing that is needed is overwritten.
    #[inline]
    fn room(&self, reservation: Reservation) -> Option<Reservation> {
        (reservation.end - self.applied.min(self.settled) <= self.span.bytes).then_some(reservation)
    }

    /// Returns where a frame will go whose room is reserved. A frame of several pieces is written
    /// there, up to its last piece, before the room is taken.
    #[must_use]
    pub fn reserved_at(&self, reservation: &Reservation) -> Address {
        self.data(reservation.start)
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
        self.reach_before = self.reach;
        let mut end = self.span.place(reservation.start) + (reservation.end - reservation.start);
        if let Some(from) = reservation.skip {
            // The skip itself may end beyond the window.
            let skip_end = self.span.place(from) + (FRAME_OVERHEAD_WORDS * WORD_BYTES) as u64;
            end = end.max(skip_end.min(self.span.bytes));
        }
        let reach = if end > self.reach { self.grow_reach(end) } else { None };
        let skip = reservation.skip.and_then(|from| self.skip_rest(from, id));
        Placement { at: self.data(reservation.start), reach, skip }
    }

    #[cold]
    fn grow_reach(&mut self, end: u64) -> Option<(Address, u64)> {
        self.reach = end;
        Some((self.reach_at(), end))
    }

    /// Takes the reserved room, and adds to `round` the WRITE of a staged frame.
    #[inline]
    pub fn append(&mut self, round: &mut Round<'_>, frame: remora_fabric::Staged, reservation: Reservation, id: u64) {
        self.append_from(round, frame, 0, reservation, id);
    }

    /// Takes the reserved room, and adds to `round` the WRITE of the last piece of a frame. The
    /// piece begins `from` words behind the frame's start, and what is before it has been written.
    #[inline]
    pub fn append_from(
        &mut self,
        round: &mut Round<'_>,
        piece: remora_fabric::Staged,
        from: usize,
        reservation: Reservation,
        id: u64,
    ) {
        let Placement { at, reach, skip } = self.take(reservation, id);
        if let Some((at, reach)) = reach {
            round.write_words(at, &[reach]);
        }
        if let Some((from, frame)) = skip {
            round.write_words(from, &frame);
        }
        round.write_staged(at.plus((from * WORD_BYTES) as u64), piece);
    }

    /// Gives back room that was taken last and has not been written to.
    pub fn give_back(&mut self, reservation: Reservation) {
        debug_assert_eq!(self.tail, reservation.end, "what was taken last is given back");
        self.tail = reservation.skip.unwrap_or(reservation.start);
        self.reach = self.reach_before;
    }

    #[cold]
    fn skip_rest(&self, from: u64, id: u64) -> Option<(Address, [u64; FRAME_OVERHEAD_WORDS])> {
        // If less than a frame's overhead is left, the reader skips it by itself.
        (self.span.bytes - self.span.place(from) >= (FRAME_OVERHEAD_WORDS * WORD_BYTES) as u64).then(|| {
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
        self.span.data_at(self.node).plus(self.span.place(position))
    }

    /// Returns the address of a lane's undo entry that lies `from` bytes into the ring: see the
    /// [module](self).
    #[inline]
    #[must_use]
    pub fn undo_at(&self, from: u64) -> Address {
        debug_assert!(from < self.span.bytes);
        self.data(from)
    }

    /// Returns the address of the word in which the client says how far its undo entries reach, in
    /// bytes. The client writes this word ahead of an entry that ends beyond [`UNDO_WINDOW`].
    #[must_use]
    pub fn reach_at(&self) -> Address {
        reach_at(self.node, self.span)
    }

    /// Returns the addresses of the log of attempts: see [`attempt_log_at`].
    #[must_use]
    pub fn attempt_log_at(&self) -> (Address, Address) {
        attempt_log_at(self.node, self.span)
    }

    /// Returns the address of the word in which the node says how far it has applied the ring, for
    /// [`RingWriter::learn`].
    #[inline]
    #[must_use]
    pub fn applied_at(&self) -> Address {
        self.span.header_at(self.node)
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

    /// Whether the ring's window is so full that the client should ask how far the node has got.
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
    span: RingSpan,
    header: usize,
    position: u64,
    last: u64,
}

impl RingReader {
    /// Makes a reader that continues where the ring's header says. An offset stands for the ring of
    /// the usual size there. `owner` is the incarnation that the ring belongs to. Returns `None` if
    /// the region has no room for such a ring.
    #[must_use]
    pub fn resume(region: &[AtomicU64], ring: impl Into<RingSpan>, owner: u32) -> Option<RingReader> {
        let span = ring.into();
        let end = span.base.checked_add(extent_bytes(span.bytes))?;
        if !span.is_sound() || end > size_of_val(region) as u64 {
            return None;
        }
        RingReader::of_part(region, span, owner)
    }

    /// Makes a reader as [`RingReader::resume`] does, for memory that may end before the ring does.
    fn of_part(region: &[AtomicU64], span: RingSpan, owner: u32) -> Option<RingReader> {
        let header = span.base as usize / WORD_BYTES;
        let load = |word: usize| Some(region.get(header + word)?.load(Ordering::Acquire));
        Some(RingReader { owner, span, header, position: load(0)?, last: load(1)? })
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
            let mut left = ((self.span.bytes - self.span.place(position)) / WORD_BYTES as u64) as usize;
            if left < FRAME_OVERHEAD_WORDS {
                position += (left * WORD_BYTES) as u64;
                left = self.span.bytes as usize / WORD_BYTES;
            }
            let data = self.header + (HEADER_BYTES + self.span.place(position)) as usize / WORD_BYTES;
            let there = region.get(data..).filter(|there| there.len() >= FRAME_OVERHEAD_WORDS)?;
            let load = |word: usize| there[word].load(Ordering::Acquire);
            let id = load(0);
            if id <= self.last || (id >> OWNER_SHIFT) as u32 != self.owner {
                return None;
            }
            let head = load(1);
            let words = (head >> 32) as usize;
            if head as u32 == KIND_UNDO
                || !(FRAME_OVERHEAD_WORDS..=left.min(self.span.frame_bytes_max() / WORD_BYTES)).contains(&words)
                || words > there.len()
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
                KIND_SKIP if self.span.place(position) > 0 => {
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
        self.frames(region, &mut |_, frame| {
            if frame[1] as u32 == kind {
                visit(frame[0], &frame[2..frame.len() - 1]);
            }
        });
    }

    /// Visits every frame that is still whole, with its place in the data, in ascending order of
    /// places.
    fn frames(&self, region: &[AtomicU64], visit: &mut dyn FnMut(u64, &[u64])) {
        let data = self.header + HEADER_BYTES as usize / WORD_BYTES;
        let reach = region.get(self.header + REACH_WORD).map_or(0, |reach| reach.load(Ordering::Acquire));
        let end = data + self.span.used(reach) as usize / WORD_BYTES;
        let Some(ring) = region.get(data..end.min(region.len())) else { return };
        let mut frame = Vec::new();
        let mut at = 0;
        while at + FRAME_OVERHEAD_WORDS <= ring.len() {
            let is_whole = self.copy_frame(&ring[at..], &mut frame);
            if is_whole {
                visit((at * WORD_BYTES) as u64, &frame);
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
    span: RingSpan,
    owner: u32,
    /// The header, and the data as far as they may have been written to.
    words: Vec<AtomicU64>,
    /// Which blocks of the data have been read.
    read: Vec<bool>,
    /// The position up to which the node has applied the ring.
    applied: u64,
    /// The position behind the last whole entry.
    tail: u64,
    /// The id of the last whole entry.
    last: u64,
}

/// The bytes that are read at a time.
const BLOCK_BYTES: u64 = 1 << 10;
const _: () = assert!(RING_BYTES.is_multiple_of(BLOCK_BYTES));

/// How far a node has applied a ring. Both positions only grow as long as one client has the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The position before which everything has been applied.
    pub applied: u64,
    /// The position behind the last entry that has arrived.
    pub tail: u64,
}

impl RingCopy {
    /// Reads a ring of a client whose access has been revoked. An offset stands for the ring of the
    /// usual size there. Fails if no ring can have this size.
    pub async fn read(
        lane: &Lane,
        node: NodeId,
        ring: impl Into<RingSpan>,
        owner: u32,
    ) -> Result<RingCopy, MemoryError> {
        let mut copy = RingCopy::read_unapplied(lane, node, ring.into(), owner).await?;
        // On the ring's first lap, the data behind the tail belong to no client, or to an earlier
        // one.
        copy.fetch(lane, 0, copy.tail.min(copy.span.bytes)).await?;
        Ok(copy)
    }

    /// Reads the part of a ring that has not been applied yet.
    async fn read_unapplied(lane: &Lane, node: NodeId, span: RingSpan, owner: u32) -> Result<RingCopy, MemoryError> {
        if !span.is_sound() {
            return Err(MemoryError::Damaged(node));
        }
        let mut round = lane.round();
        let header = round.read(span.header_at(node), HEADER_BYTES as usize);
        let done = lane.execute(round).await?;
        let header = done.words(header);
        let used = span.used(header[REACH_WORD]).next_multiple_of(BLOCK_BYTES);
        let data = std::iter::repeat_n(0, used as usize / WORD_BYTES);
        let words = header.iter().copied().chain(data).map(AtomicU64::new).collect();
        let read = vec![false; (used / BLOCK_BYTES) as usize];
        drop(done);
        let mut copy = RingCopy { node, span, owner, words, read, applied: 0, tail: 0, last: 0 };
        let Some(mut reader) = copy.reader() else { return Ok(copy) };
        copy.applied = reader.position();
        let mut scratch = Vec::new();
        loop {
            let place = span.place(reader.position());
            let has_frame = span.bytes - place >= (FRAME_OVERHEAD_WORDS * WORD_BYTES) as u64;
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

    /// Returns a reader of the copy.
    fn reader(&self) -> Option<RingReader> {
        RingReader::of_part(&self.words, RingSpan { base: 0, ..self.span }, self.owner)
    }

    /// Reads the frame that may be at a place of the data, and returns its kind.
    async fn fetch_frame(&mut self, lane: &Lane, place: u64) -> Result<u32, MemoryError> {
        self.fetch(lane, place, place + 2 * WORD_BYTES as u64).await?;
        // Nothing was written behind the last block.
        let head = self.words.get((HEADER_BYTES + place) as usize / WORD_BYTES + 1);
        let head = head.map_or(0, |head| head.load(Ordering::Relaxed));
        let bytes = (head >> 32) * WORD_BYTES as u64;
        self.fetch(lane, place, place + bytes.min(self.span.frame_bytes_max() as u64)).await?;
        Ok(head as u32)
    }

    /// Reads what has not been read yet of a piece of the data.
    async fn fetch(&mut self, lane: &Lane, from: u64, to: u64) -> Result<(), MemoryError> {
        let blocks = (from / BLOCK_BYTES) as usize..self.read.len().min(to.div_ceil(BLOCK_BYTES) as usize);
        let mut next = blocks.start;
        while let Some(first) = (next..blocks.end).find(|block| !self.read[*block]) {
            next = (first..blocks.end).find(|block| self.read[*block]).unwrap_or(blocks.end);
            let at = HEADER_BYTES + first as u64 * BLOCK_BYTES;
            let bytes = (next - first) * BLOCK_BYTES as usize;
            let bytes = read_bytes(lane, self.span.header_at(self.node).plus(at), bytes).await?;
            for (to, from) in self.words[at as usize / WORD_BYTES..].iter().zip(bytes.chunks_exact(WORD_BYTES)) {
                to.store(from.try_into().map_or(0, u64::from_ne_bytes), Ordering::Relaxed);
            }
            self.read[first..next].fill(true);
        }
        Ok(())
    }

    /// Returns how far a node has applied a ring, and where the ring ends.
    pub async fn progress(
        lane: &Lane,
        node: NodeId,
        ring: impl Into<RingSpan>,
        owner: u32,
    ) -> Result<Progress, MemoryError> {
        let copy = RingCopy::read_unapplied(lane, node, ring.into(), owner).await?;
        Ok(Progress { applied: copy.applied, tail: copy.tail })
    }

    /// Whether the node has applied a ring to its end.
    pub async fn is_applied(
        lane: &Lane,
        node: NodeId,
        ring: impl Into<RingSpan>,
        owner: u32,
    ) -> Result<bool, MemoryError> {
        let Progress { applied, tail } = RingCopy::progress(lane, node, ring, owner).await?;
        Ok(applied == tail)
    }

    /// Reads the client's undo entries. Only entries that are whole and not overwritten are
    /// returned.
    pub async fn undo_entries(&mut self, lane: &Lane) -> Result<Vec<UndoEntry<Vec<u64>>>, MemoryError> {
        let end = self.reach().clamp(UNDO_WINDOW, self.span.bytes);
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
        if let Some(reader) = self.reader() {
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

    /// Returns the id from which on the ring still has every entry that was written.
    ///
    /// Entries of three laps may lie in the ring: those of the current lap, behind them what the
    /// lap before has left, and where that one has skipped the rest, what earlier laps have left.
    /// The skip has the id of the first entry of the current lap. So it tells where the lap before
    /// has ended. If it was overwritten, only the entries of the current lap count.
    #[must_use]
    pub fn whole_from(&self) -> u64 {
        if self.is_first_lap() {
            return 0;
        }
        let (mut current, mut before) = (None, None);
        // A lap may end at the very end of the ring.
        let tail = match self.span.place(self.tail) {
            0 => self.span.bytes,
            place => place,
        };
        let Some(reader) = self.reader() else { return u64::MAX };
        let mut oldest = None;
        reader.frames(&self.words, &mut |place, frame| match frame[1] as u32 {
            KIND_ENTRY if place < tail => _ = current.get_or_insert(frame[0]),
            KIND_ENTRY => _ = before.get_or_insert(frame[0]),
            KIND_SKIP if place >= tail && current.is_some_and(|first| frame[0] == first) => oldest = before,
            _ => {}
        });
        oldest.or(current).unwrap_or(self.last.saturating_add(1))
    }

    /// Whether nothing in the ring has ever been overwritten, not even by a frame that has not
    /// arrived whole. A frame goes to the start of the ring again only if it would end beyond the
    /// window, and if as many bytes have been applied as it has.
    fn is_first_lap(&self) -> bool {
        self.tail + FRAME_BYTES_MAX as u64 <= RING_BYTES
    }

    /// Appends an entry that has not arrived to the entries that have, as the client would have
    /// done.
    pub async fn append(&mut self, lane: &Lane, id: u64, entry: &[u64]) -> Result<(), MemoryError> {
        let mut writer = RingWriter::resume(self.node, self.span, self.tail, self.reach());
        let Some(room) = writer.reserve(entry.len() + FRAME_OVERHEAD_WORDS) else {
            return Err(MemoryError::Damaged(self.node));
        };
        let mut frame = vec![0; entry.len() + FRAME_OVERHEAD_WORDS];
        frame[2..entry.len() + 2].copy_from_slice(entry);
        seal(&mut frame, id);
        let sent = write_front(lane, &frame, writer.reserved_at(&room)).await?;
        let mut round = lane.round();
        let staged = round.stage_words(frame.len() - sent);
        round.staged_mut(staged).copy_from_slice(&frame[sent..]);
        writer.append_from(&mut round, staged, sent, room, id);
        lane.execute(round).await?;
        (self.tail, self.last) = (writer.written(), id);
        self.words[REACH_WORD].store(writer.reach, Ordering::Relaxed);
        Ok(())
    }
}

/// Writes a frame at an address, except its last piece. Returns the number of words that it has
/// written. Returns 0 for a frame of one piece.
pub async fn write_front(lane: &Lane, frame: &[u64], at: Address) -> Result<usize, MemoryError> {
    let front = front_words(frame.len());
    for (number, piece) in frame[..front].chunks(PIECE_BYTES_MAX / WORD_BYTES).enumerate() {
        let mut round = lane.round();
        round.write_words(at.plus((number * PIECE_BYTES_MAX) as u64), piece);
        lane.execute(round).await?;
    }
    Ok(front)
}

/// Returns the number of words of a frame of `words` words that come before its last piece.
#[must_use]
pub fn front_words(words: usize) -> usize {
    words.saturating_sub(1) / (PIECE_BYTES_MAX / WORD_BYTES) * (PIECE_BYTES_MAX / WORD_BYTES)
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
