//! A round: its verbs, and the bytes that they read and write, in one leased buffer.
//!
//! The buffer moves on with the round:
//!
//! 1. It comes from the endpoint's pool, and belongs to the [`Round`] being built.
//! 2. When the round is posted, it belongs to the transport.
//! 3. When the round has come back, it belongs to [`Completed`], and then returns to the pool.
//!
//! Because the box itself moves, the future of a round may be dropped at any time (contract, rule
//! 5). The transport still owns the memory that the NIC uses.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::address::{Address, NodeId, WORD_BYTES};
use crate::endpoint::Endpoint;
use crate::error::Fault;
use crate::limits::ROUND_WORDS_MAX;

pub(crate) mod buffer;
pub(crate) mod cost;
pub(crate) mod part;

use buffer::{Mark, RoundBuffer, Verb};
use cost::Tally;

/// A round being built. Dropping it gives its buffer back, and nothing is sent.
#[must_use = "a round does nothing until it is executed or posted"]
#[derive(Debug)]
pub struct Round<'l> {
    endpoint: &'l Endpoint,
    // It is `Some` until the round is executed, posted or dropped.
    buffer: Option<Box<RoundBuffer>>,
}

/// A piece of a round's buffer: its place in the low half of the first word, its length in words in
/// the high half.
///
/// Handles are made and redeemed for every verb. A handle of two scalars travels in registers. A
/// handle of three would travel through memory, and the copy would wait until its parts are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Piece(u64);

impl Piece {
    #[inline(always)]
    fn new(at: u32, words: usize) -> Piece {
        Piece(u64::from(at) | (words as u64) << 32)
    }

    #[inline(always)]
    fn at(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    fn words(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    fn range(self) -> Range<usize> {
        self.at() as usize..self.at() as usize + self.words() as usize
    }
}

/// An answer of one word: its place in the low half, the mark of its round in the high half; see
/// [`Piece`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Marked(u64);

impl Marked {
    #[inline(always)]
    fn new(at: u32, mark: Mark) -> Marked {
        Marked(u64::from(at) | u64::from(mark.0) << 32)
    }

    #[inline(always)]
    fn at(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    fn mark(self) -> Mark {
        Mark((self.0 >> 32) as u32)
    }
}

/// The handle of a READ. Redeem it at [`Completed::words`] or [`Completed::bytes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadHandle {
    piece: Piece,
    mark: Mark,
}

/// The handle of a compare-and-swap. Redeem it at [`Completed::swapped`] or
/// [`Completed::previous`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SwapHandle {
    expected: u64,
    answer: Marked,
}

/// The handle of a FETCH_ADD. Redeem it at [`Completed::added`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AddHandle {
    at: u32,
    mark: Mark,
}

/// The handle of a call. Redeem it at [`Completed::reply`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CallHandle {
    at: u32,
    mark: Mark,
}

/// Bytes that were copied into a round once, to be written to several places.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    piece: Piece,
    mark: Mark,
}

impl<'l> Round<'l> {
    /// Begins a round with a buffer of this endpoint.
    pub(crate) fn new(endpoint: &'l Endpoint, buffer: Box<RoundBuffer>) -> Round<'l> {
        Round { endpoint, buffer: Some(buffer) }
    }

    pub(crate) fn into_buffer(mut self) -> (&'l Endpoint, Option<Box<RoundBuffer>>) {
        (self.endpoint, self.buffer.take())
    }

    #[inline(always)]
    fn buffer(&mut self) -> &mut RoundBuffer {
        self.buffer.as_mut().expect("a round keeps its buffer until it is consumed")
    }

    #[inline(always)]
    fn buffer_ref(&self) -> &RoundBuffer {
        self.buffer.as_ref().expect("a round keeps its buffer until it is consumed")
    }

    /// Adds a READ of `bytes` bytes from `at`. Executing the round reports a wrong address or
    /// length, or a full round.
    #[inline]
    pub fn read(&mut self, at: Address, bytes: usize) -> ReadHandle {
        let buffer = self.buffer();
        let words = aligned_words(buffer, at, bytes);
        let into = buffer.lease(words, at.node);
        // A longer READ has been refused above. Here only the sum must not overflow.
        let words = words.min(ROUND_WORDS_MAX);
        buffer.push(Verb::Read { at, words: words as u32, into });
        buffer.tally.add(Tally::READ, 0, words * WORD_BYTES);
        ReadHandle { piece: Piece::new(into, words), mark: buffer.mark() }
    }

    /// Copies bytes into the round, which any number of [`Round::write_staged`] may write.
    #[inline]
    pub fn stage(&mut self, bytes: &[u8]) -> Staged {
        let words = bytes.len() / WORD_BYTES;
        if !bytes.len().is_multiple_of(WORD_BYTES) {
            let at = Address { node: NodeId(0), region: Default::default(), offset: 0 };
            self.buffer().refuse(None, Fault::Unaligned { at, bytes: bytes.len() as u64 });
            return self.stage_words(0);
        }
        let staged = self.stage_words(words);
        // If the round is refused already, nothing was staged: it will not be sent.
        if staged.piece.words() as usize == words {
            self.staged_mut(staged).as_mut_bytes().copy_from_slice(bytes);
        }
        staged
    }

    /// Takes `words` words of the round's buffer, to be filled through [`Round::staged_mut`]. At
    /// first they contain what an earlier round left there.
    #[inline]
    pub fn stage_words(&mut self, words: usize) -> Staged {
        let buffer = self.buffer();
        let at = buffer.lease(words, NodeId(0));
        let words = if buffer.outcome.is_ok() { words } else { 0 };
        Staged { piece: Piece::new(at, words), mark: buffer.mark() }
    }

    /// Returns the words of a staged piece. They are empty if the round was full.
    #[inline]
    pub fn staged_mut(&mut self, staged: Staged) -> &mut [u64] {
        let buffer = self.buffer();
        buffer.check(staged.mark);
        &mut buffer.words[staged.piece.range()]
    }

    /// Has `fill` called when the round before this one has completed without error, to fill in
    /// words that are staged here. It is for a round that follows another one
    /// ([`Execute::then_post_all`](crate::Execute::then_post_all),
    /// [`Lane::post_all`](crate::Lane::post_all)), and whose words follow from its answers.
    pub fn fill_later(&mut self, fill: impl FnOnce(&Answers<'_>, &mut Filling<'_>) + 'static) {
        let round = self.buffer_ref().ticket();
        let fill = move |before: &RoundBuffer, next: &mut RoundBuffer| fill(&Answers(before), &mut Filling(next));
        self.endpoint.fill_later(round, Box::new(fill));
    }

    /// Adds a WRITE of these bytes to `at`. The bytes are copied now.
    #[inline]
    pub fn write(&mut self, at: Address, bytes: &[u8]) {
        let staged = self.stage(bytes);
        self.write_staged(at, staged);
    }

    /// Adds a WRITE of these words to `at`. The words are copied now.
    #[inline]
    pub fn write_words(&mut self, at: Address, words: &[u64]) {
        self.write(at, words.as_bytes());
    }

    /// Adds a WRITE of a staged piece to `at`.
    #[inline]
    pub fn write_staged(&mut self, at: Address, staged: Staged) {
        let buffer = self.buffer();
        buffer.check(staged.mark);
        let bytes = staged.piece.words() as usize * WORD_BYTES;
        let words = aligned_words(buffer, at, bytes);
        buffer.push(Verb::Write { at, words: words as u32, from: staged.piece.at() });
        buffer.tally.add(Tally::WRITE, bytes, 0);
    }

    /// Adds a compare-and-swap, which replaces the word at `at` by `new` if the word is `expected`.
    #[inline]
    pub fn compare_swap(&mut self, at: Address, expected: u64, new: u64) -> SwapHandle {
        let buffer = self.buffer();
        aligned_words(buffer, at, WORD_BYTES);
        let into = buffer.lease(1, at.node);
        buffer.push(Verb::CompareSwap { at, expected, new, into });
        buffer.tally.add(Tally::ATOMIC, 2 * WORD_BYTES, WORD_BYTES);
        SwapHandle { expected, answer: Marked::new(into, buffer.mark()) }
    }

    /// Adds a FETCH_ADD, which adds `delta` to the word at `at`, wrapping.
    #[inline]
    pub fn fetch_add(&mut self, at: Address, delta: u64) -> AddHandle {
        let buffer = self.buffer();
        aligned_words(buffer, at, WORD_BYTES);
        let into = buffer.lease(1, at.node);
        buffer.push(Verb::FetchAdd { at, delta, into });
        buffer.tally.add(Tally::ATOMIC, WORD_BYTES, WORD_BYTES);
        AddHandle { at: into, mark: buffer.mark() }
    }

    /// Adds a flush of the earlier writes of this round to a node, as far as the backend's flush
    /// reaches.
    pub fn flush(&mut self, node: NodeId) {
        let buffer = self.buffer();
        buffer.push(Verb::Flush { node });
        buffer.tally.add(Tally::FLUSH, 0, 0);
    }

    /// Adds a call: the node's CPU serves a request, which is `head` followed by `body`. The reply
    /// may have at most `reply_words` words.
    pub fn call(&mut self, node: NodeId, head: &[u64], body: Option<Staged>, reply_words: usize) -> CallHandle {
        let head = {
            let staged = self.stage_words(head.len());
            if staged.piece.words() as usize == head.len() {
                self.staged_mut(staged).copy_from_slice(head);
            }
            staged
        };
        let buffer = self.buffer();
        let body = body.unwrap_or(Staged { piece: Piece::new(head.piece.at(), 0), ..head });
        buffer.check(body.mark);
        let into = buffer.lease(1 + reply_words, node);
        if buffer.outcome.is_ok() {
            buffer.words[into as usize] = 0;
        }
        let (head, body) = (head.piece, body.piece);
        let (out, back) =
            ((head.words() + body.words()) as usize * WORD_BYTES, reply_words.min(ROUND_WORDS_MAX) * WORD_BYTES);
        buffer.push(Verb::Call {
            node,
            head: head.at(),
            head_words: head.words(),
            body: body.at(),
            body_words: body.words(),
            into,
            capacity: reply_words.min(ROUND_WORDS_MAX) as u32,
        });
        buffer.tally.add(Tally::CALL, out, back);
        CallHandle { at: into, mark: buffer.mark() }
    }

    /// Adds a fence. Verbs that are added after it start when all verbs before it have completed.
    /// They do not start if a verb before it has failed. This is as if the first part of the round
    /// had been awaited. A fence costs and counts one round trip.
    pub fn after_completion(&mut self) {
        let buffer = self.buffer();
        buffer.push(Verb::AfterCompletion);
        buffer.tally.fences += 1;
    }

    /// Whether nothing has been added.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer_ref().verbs().is_empty()
    }

    /// Whether `verbs` more verbs and `bytes` more bytes fit into this round. A caller splits a
    /// larger set into several rounds.
    #[inline]
    #[must_use]
    pub fn has_room(&self, verbs: usize, bytes: usize) -> bool {
        self.buffer_ref().has_room(verbs, bytes)
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.endpoint.forget_fill(buffer.ticket());
            self.endpoint.recycle(buffer);
        }
    }
}

/// Returns the words of an access. If it is not aligned, returns 0 and sets the round's outcome.
#[inline(always)]
fn aligned_words(buffer: &mut RoundBuffer, at: Address, bytes: usize) -> usize {
    if (at.offset | bytes as u64) & (WORD_BYTES as u64 - 1) != 0 {
        buffer.refuse(Some(at.node), Fault::Unaligned { at, bytes: bytes as u64 });
        return 0;
    }
    bytes / WORD_BYTES
}

/// The answers of a round that has completed in the background.
#[derive(Debug)]
pub struct Answers<'b>(&'b RoundBuffer);

impl Answers<'_> {
    /// Returns the word that a FETCH_ADD found, before it added. Returns `None` if the handle is
    /// another round's.
    #[must_use]
    pub fn added(&self, handle: AddHandle) -> Option<u64> {
        (handle.mark == self.0.mark()).then(|| self.0.words[handle.at as usize])
    }

    /// Returns whether a compare-and-swap found the expected word. Returns `None` if the handle is
    /// another round's.
    #[must_use]
    pub fn swapped(&self, handle: SwapHandle) -> Option<bool> {
        (handle.answer.mark() == self.0.mark()).then(|| self.0.words[handle.answer.at()] == handle.expected)
    }
}

/// A round that is filled in, and then posted.
#[derive(Debug)]
pub struct Filling<'b>(&'b mut RoundBuffer);

impl Filling<'_> {
    /// Returns the words of a staged piece of the round.
    #[must_use]
    pub fn staged_mut(&mut self, staged: Staged) -> &mut [u64] {
        self.0.check(staged.mark);
        &mut self.0.words[staged.piece.range()]
    }

    /// Takes all verbs out of the round, so that nothing is posted.
    pub fn clear(&mut self) {
        self.0.clear_verbs();
    }

    /// Sets what a FETCH_ADD of the round adds.
    pub fn set_added(&mut self, handle: AddHandle, delta: u64) {
        self.0.check(handle.mark);
        self.0.set_added(handle.at, delta);
    }
}

/// Returns the words of the reply to a call of a round that has completed.
#[inline]
pub(crate) fn reply_of(round: &RoundBuffer, call: CallHandle) -> &[u64] {
    round.check(call.mark);
    let (length, reply) = round.words[call.at as usize..].split_first().unwrap_or((&0, &[]));
    &reply[..*length as usize]
}

/// A round that has completed. It holds the answers, by handle. Dropping it gives the buffer back.
#[derive(Debug)]
pub struct Completed<'l> {
    endpoint: &'l Endpoint,
    buffer: Option<Box<RoundBuffer>>,
}

impl<'l> Completed<'l> {
    pub(crate) fn new(endpoint: &'l Endpoint, buffer: Box<RoundBuffer>) -> Completed<'l> {
        Completed { endpoint, buffer: Some(buffer) }
    }

    #[inline(always)]
    fn buffer(&self, handle: Mark) -> &RoundBuffer {
        let buffer = self.buffer.as_ref().expect("a completed round keeps its buffer until it is dropped");
        buffer.check(handle);
        buffer
    }

    /// Returns the words that a READ has read.
    #[inline]
    #[must_use]
    pub fn words(&self, handle: ReadHandle) -> &[u64] {
        &self.buffer(handle.mark).words[handle.piece.range()]
    }

    /// Returns the bytes that a READ has read. They are 8-byte aligned.
    #[inline]
    #[must_use]
    pub fn bytes(&self, handle: ReadHandle) -> &[u8] {
        self.words(handle).as_bytes()
    }

    /// Whether a compare-and-swap found the expected word, and so replaced it.
    #[inline]
    #[must_use]
    pub fn swapped(&self, handle: SwapHandle) -> bool {
        self.previous(handle) == handle.expected
    }

    /// Returns the word that a compare-and-swap found.
    #[inline]
    #[must_use]
    pub fn previous(&self, handle: SwapHandle) -> u64 {
        self.buffer(handle.answer.mark()).words[handle.answer.at()]
    }

    /// Returns the words of the reply to a call.
    #[inline]
    #[must_use]
    pub fn reply(&self, handle: CallHandle) -> &[u64] {
        reply_of(self.buffer(handle.mark), handle)
    }

    /// Returns the word that a FETCH_ADD found, before it added.
    #[inline]
    #[must_use]
    pub fn added(&self, handle: AddHandle) -> u64 {
        self.buffer(handle.mark).words[handle.at as usize]
    }
}

impl Drop for Completed<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.endpoint.recycle(buffer);
        }
    }
}
