//! The layout of nodes whose keys have different lengths.
//!
//! ```text
//! +0   level u16, entries u16, endless u8, 0 u24, next u64    as in every node
//! +16  of the low fence: shared u16, bytes of the rest u16; of the high fence likewise
//! +24  of the keys: shared u16
//! +26  rest of the low fence, rest of the high fence
//!      entries, ascending: bytes of what is stored of the key u16, that,
//!                          value (leaf) or id of the child u64 (inner)
//!      zeros
//! end  where each entry begins, u16: the first entry's is the last word, and so on
//! ```
//!
//! All keys of a node begin with the same `shared` bytes. The first key is stored whole, and the
//! others without them; a fence is stored without what it shares with the first key. An inner node
//! stores nothing of its first child's key, which is its low fence: the next one is the first that
//! is stored. So keys that have a long beginning in common take little room, in leaves and in inner
//! nodes.
//!
//! The fence that a split of a leaf makes is the shortest string that tells the two halves apart.
//!
//! # Size
//!
//! A node has as many lines as two of the longest entries and three of the longest keys take, and
//! at least those of a node whose keys have one length. So every split leaves both halves with room
//! for what they are to have: see [`Content::split_point`]. Keys of up to 512 bytes take 2,656
//! bytes beside short values: 42 lines.
//!
//! # Changes
//!
//! A change decodes the node to a [`Content`] and writes that again. Equal contents have equal
//! bytes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::{Deref, Range};

use super::{CHILD_BYTES, Damaged, ENDLESS, FENCES, NEXT, NODE_BYTES, Node, Shape, Split, shared};

/// Bytes of the longest key of a slotted node.
pub const SLOTTED_KEY_BYTES_MAX: usize = 512;
/// Bytes of the longest value of a slotted leaf.
pub const SLOTTED_VALUE_BYTES_MAX: usize = 220;

/// Bytes of a number within a node.
const NUMBER: usize = size_of::<u16>();
/// What is said of the low fence, and of the high one.
const LOW: usize = FENCES;
const HIGH: usize = LOW + 2 * NUMBER;
const SHARED: usize = HIGH + 2 * NUMBER;
const HEADER: usize = SHARED + NUMBER;
/// Bytes of an entry beside its key and its value: where it begins, and the length of its key.
const BESIDE: usize = 2 * NUMBER;
/// Bytes of a record beside the node that it holds: its header, and its key.
const OF_RECORD: usize = 16 * 64 - NODE_BYTES;
const LINE: usize = 64;
/// Bytes of a fence that tables have room for at first: most are short.
const FENCE_PLANNED: usize = 64;

/// Bytes of the largest slotted node.
pub const SLOTTED_NODE_BYTES_MAX: usize = node_bytes(SLOTTED_KEY_BYTES_MAX, SLOTTED_VALUE_BYTES_MAX);
const _: () = assert!(SLOTTED_NODE_BYTES_MAX <= u16::MAX as usize, "places have 16 bits");

/// Bytes of a node.
pub(super) const fn node_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    let payload = if value_bytes > CHILD_BYTES { value_bytes } else { CHILD_BYTES };
    let bytes = HEADER + 3 * key_bytes + 2 * (BESIDE + key_bytes + payload);
    let bytes = (bytes + OF_RECORD).next_multiple_of(LINE) - OF_RECORD;
    if bytes > NODE_BYTES { bytes } else { NODE_BYTES }
}

/// Entries of a leaf of the longest keys, or children of an inner node whose fences are not very
/// long.
pub(super) fn capacity(shape: &Shape, level: u16) -> usize {
    let key_bytes = if level == 0 { shape.key_bytes } else { shape.key_bytes.min(FENCE_PLANNED) };
    (shape.node_bytes - HEADER - 2 * shape.key_bytes) / (BESIDE + key_bytes + shape.payload_bytes(level))
}

/// Entries of a leaf of the shortest keys.
pub(super) fn entries_max(shape: &Shape) -> usize {
    (shape.node_bytes - HEADER) / (BESIDE + 1 + shape.value_bytes)
}

fn number(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
}

fn set(bytes: &mut [u8], at: usize, number: usize) {
    bytes[at..][..NUMBER].copy_from_slice(&(number as u16).to_le_bytes());
}

/// The first entry whose key is stored: an inner node's first key is its low fence.
fn first_stored(level: u16) -> usize {
    usize::from(level > 0)
}

/// Where an entry begins.
fn place(bytes: &[u8], at: usize) -> usize {
    number(bytes, bytes.len() - NUMBER * (at + 1))
}

/// What is stored of a key.
fn stored(bytes: &[u8], at: usize) -> &[u8] {
    let place = place(bytes, at);
    &bytes[place + NUMBER..][..number(bytes, place)]
}

/// Whether every length of a node is possible: what the functions here rely on not to panic.
pub(super) fn check(shape: &Shape, bytes: &[u8]) -> Result<(), Damaged> {
    if lengths_are_possible(shape, bytes) == Some(true) { Ok(()) } else { Err(Damaged("the lengths in it")) }
}

fn lengths_are_possible(shape: &Shape, bytes: &[u8]) -> Option<bool> {
    if bytes.len() < HEADER {
        return None;
    }
    let (level, count, common) = (number(bytes, 0) as u16, number(bytes, NUMBER), number(bytes, SHARED));
    let fences = [LOW, HIGH].map(|at| [number(bytes, at), number(bytes, at + NUMBER)]);
    let end = bytes.len().checked_sub(NUMBER * count)?;
    let mut at = HEADER + fences[0][1] + fences[1][1];
    let (first, mut of_first) = (first_stored(level), 0);
    for entry in 0..count {
        if place(bytes, entry) != at || at + NUMBER > end {
            return None;
        }
        let length = number(bytes, at);
        at += NUMBER + length + shape.payload_bytes(level);
        let whole = match entry.cmp(&first) {
            Ordering::Less if length > 0 => return None,
            Ordering::Less => 0,
            Ordering::Equal => {
                of_first = length;
                length
            }
            Ordering::Greater => common + length,
        };
        if whole > shape.key_bytes || at > end {
            return None;
        }
    }
    let is_possible = |[common, rest]: [usize; 2]| common <= of_first && common + rest <= shape.key_bytes;
    let is_endless = bytes[ENDLESS] != 0;
    Some(at <= end && common <= of_first && fences.into_iter().all(is_possible) && !(is_endless && fences[1] != [0, 0]))
}

/// Bytes in two parts, which follow one upon the other.
type Parts<'b> = [&'b [u8]; 2];

/// The first key that is stored, if there is one.
fn first_key(bytes: &[u8], level: u16) -> &[u8] {
    let first = first_stored(level);
    if number(bytes, NUMBER) > first { stored(bytes, first) } else { &[] }
}

pub(super) fn low(bytes: &[u8], level: u16) -> Parts<'_> {
    let [common, rest] = [LOW, LOW + NUMBER].map(|at| number(bytes, at));
    [&first_key(bytes, level)[..common], &bytes[HEADER..][..rest]]
}

/// The high fence; `None` if the node is endless.
pub(super) fn high(bytes: &[u8], level: u16) -> Option<Parts<'_>> {
    let [before, common, rest] = [LOW + NUMBER, HIGH, HIGH + NUMBER].map(|at| number(bytes, at));
    (bytes[ENDLESS] == 0).then(|| [&first_key(bytes, level)[..common], &bytes[HEADER + before..][..rest]])
}

pub(super) fn key(bytes: &[u8], level: u16, at: usize) -> Parts<'_> {
    match at.cmp(&first_stored(level)) {
        Ordering::Less => low(bytes, level),
        Ordering::Equal => [&[], stored(bytes, at)],
        Ordering::Greater => [&first_key(bytes, level)[..number(bytes, SHARED)], stored(bytes, at)],
    }
}

pub(super) fn whole(parts: Parts<'_>) -> Cow<'_, [u8]> {
    match parts {
        [[], one] | [one, []] => Cow::Borrowed(one),
        parts => Cow::Owned(parts.concat()),
    }
}

fn compare_parts([begin, end]: Parts<'_>, key: &[u8]) -> Ordering {
    match key.split_at_checked(begin.len()) {
        Some((of_begin, of_end)) => begin.cmp(of_begin).then_with(|| end.cmp(of_end)),
        None => begin.cmp(key),
    }
}

/// Compares the key of an entry with another.
pub(super) fn compare(bytes: &[u8], level: u16, at: usize, key: &[u8]) -> Ordering {
    compare_parts(self::key(bytes, level, at), key)
}

/// Whether a key belongs to a node, or lies to its left or right.
pub(super) fn side_of(bytes: &[u8], level: u16, key: &[u8]) -> Ordering {
    if compare_parts(low(bytes, level), key).is_gt() {
        Ordering::Less
    } else if high(bytes, level).is_some_and(|high| compare_parts(high, key).is_le()) {
        Ordering::Greater
    } else {
        Ordering::Equal
    }
}

/// Where the value or the child of an entry is.
pub(super) fn payload(bytes: &[u8], at: usize, payload_bytes: usize) -> Range<usize> {
    let place = place(bytes, at);
    let begin = place + NUMBER + number(bytes, place);
    begin..begin + payload_bytes
}

/// What a node has, apart from its bytes.
pub(super) struct Content {
    level: u16,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    next: u64,
    /// Keys and payloads, in any order.
    bytes: Vec<u8>,
    /// Ascending.
    entries: Vec<Entry>,
}

/// Where a key and its payload begin and end among the bytes of a [`Content`].
#[derive(Clone, Copy)]
struct Entry {
    key: usize,
    payload: usize,
    end: usize,
}

impl Content {
    pub(super) fn new(level: u16, low: &[u8]) -> Content {
        Content { level, low: low.to_vec(), high: None, next: 0, bytes: Vec::new(), entries: Vec::new() }
    }

    pub(super) fn of<B: Deref<Target = [u8]>>(node: &Node<B>) -> Content {
        let mut content = Content::new(node.level(), &node.low());
        content.bytes.reserve(2 * node.bytes.len());
        content.entries.reserve(node.count() + 1);
        content.with(node, 0)
    }

    /// Takes the range and the entries, from one of them on, of the node to its right.
    pub(super) fn with<B: Deref<Target = [u8]>>(mut self, right: &Node<B>, from: usize) -> Content {
        for at in from..right.count() {
            self.add(self.entries.len(), key(&right.bytes, right.level(), at), right.value(at));
        }
        self.ending(right.high().as_deref(), right.next())
    }

    pub(super) fn ending(mut self, high: Option<&[u8]>, next: u64) -> Content {
        (self.high, self.next) = (high.map(<[u8]>::to_vec), next);
        self
    }

    pub(super) fn insert(&mut self, at: usize, key: &[u8], payload: &[u8]) {
        self.add(at, [&[], key], payload);
    }

    fn add(&mut self, at: usize, key: Parts<'_>, payload: &[u8]) {
        let begin = self.bytes.len();
        key.into_iter().for_each(|part| self.bytes.extend_from_slice(part));
        let behind = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.entries.insert(at, Entry { key: begin, payload: behind, end: self.bytes.len() });
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.entries.remove(at);
    }

    pub(super) fn truncate(&mut self, count: usize) {
        self.entries.truncate(count);
    }

    fn key(&self, at: usize) -> &[u8] {
        let Entry { key, payload, .. } = self.entries[at];
        &self.bytes[key..payload]
    }

    fn payload(&self, at: usize) -> &[u8] {
        let Entry { payload, end, .. } = self.entries[at];
        &self.bytes[payload..end]
    }

    /// Bytes that the stored keys begin with, also if they do not ascend; 0 if there are not two.
    fn common(&self) -> usize {
        let mut keys = (first_stored(self.level)..self.entries.len()).map(|at| self.key(at));
        let first = keys.next().unwrap_or_default();
        keys.map(|key| shared(first, key)).min().unwrap_or(0)
    }

    /// The first key that is stored, of those of some entries.
    fn first_key(&self, entries: &Range<usize>) -> &[u8] {
        let first = entries.start + first_stored(self.level);
        if first < entries.end { self.key(first) } else { &[] }
    }

    /// Bytes of a node of all of it.
    fn node_bytes(&self) -> usize {
        let all: usize = self.entries.iter().map(|entry| BESIDE + entry.end - entry.key).sum();
        self.sized(0..self.entries.len(), all, self.common(), [&self.low, self.high.as_deref().unwrap_or_default()])
    }

    /// Bytes of a node of some entries, which take `all` bytes if their keys are stored whole.
    fn sized(&self, entries: Range<usize>, all: usize, common: usize, fences: [&[u8]; 2]) -> usize {
        let first = first_stored(self.level);
        let not_stored = if first > 0 && !entries.is_empty() { self.key(entries.start).len() } else { 0 };
        let shortened = entries.len().saturating_sub(first + 1);
        let first_key = self.first_key(&entries);
        let fences: usize = fences.into_iter().map(|fence| fence.len() - shared(fence, first_key)).sum();
        HEADER + fences + all - not_stored - shortened * common
    }

    pub(super) fn fits(&self, shape: &Shape) -> bool {
        self.node_bytes() <= shape.node_bytes
    }

    /// Whether an entry of this key fits.
    pub(super) fn has_room<B: Deref<Target = [u8]>>(mut self, node: &Node<B>, key: &[u8]) -> bool {
        self.insert_blank(node, key);
        self.fits(&node.shape)
    }

    /// Adds an entry whose payload does not matter; its place.
    fn insert_blank<B: Deref<Target = [u8]>>(&mut self, node: &Node<B>, key: &[u8]) -> usize {
        let at = node.find(key).unwrap_or_else(|at| at);
        let blank = [0; SLOTTED_VALUE_BYTES_MAX];
        self.insert(at, key, &blank[..node.shape.payload_bytes(self.level)]);
        at
    }

    /// Where to split a node that has no room for a key. Of all places that leave both halves with
    /// room for what they are to have, it is the last one for an appended key; otherwise one where
    /// the halves are about as large, and the fence is short.
    ///
    /// There is such a place.
    ///
    /// - If the new key begins as the others do, both halves together have what the node has, an
    ///   entry, a key that is stored whole, and the new fence twice. At the best place the halves
    ///   of a leaf differ by at most an entry: see the node's size above.
    /// - If it does not, it comes before or behind all others. It can be alone then: the others
    ///   share what they have shared, and so does their new fence.
    /// - An inner node cannot be split before the new child, since a half begins with a child that
    ///   it has. A place beside that is good, since a child that begins a half has its key in the
    ///   fence.
    pub(super) fn split_point<B: Deref<Target = [u8]>>(
        mut self,
        node: &Node<B>,
        key: &[u8],
        at_the_end: bool,
    ) -> Result<Split, Damaged> {
        node.check()?;
        if !node.contains(key) {
            return Err(Damaged("a key outside of its fences"));
        }
        let new = self.insert_blank(node, key);
        let count = self.entries.len();
        let first = first_stored(self.level);
        let whole: usize = self.entries.iter().map(|entry| BESIDE + entry.end - entry.key).sum();
        let high = self.high.as_deref().unwrap_or_default();
        // Keys ascend: what the first and the last one share, all share.
        let common = |entries: Range<usize>| match entries.start + first {
            begin if begin + 1 < entries.end => shared(self.key(begin), self.key(entries.end - 1)),
            _ => 0,
        };
        let (mut left_whole, mut best) = (0, None);
        for at in 1..count {
            let before = self.entries[at - 1];
            left_whole += BESIDE + before.end - before.key;
            if first > 0 && at == new {
                continue;
            }
            let fence = self.fence(at);
            let left = self.sized(0..at, left_whole, common(0..at), [&self.low, fence]);
            let right = self.sized(at..count, whole - left_whole, common(at..count), [fence, high]);
            if left.max(right) > node.shape.node_bytes {
                continue;
            }
            let cost = if at_the_end { count - at } else { left.abs_diff(right) + 2 * fence.len() };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, at));
            }
        }
        let (_, at) = best.ok_or(Damaged("it can not be split"))?;
        Ok(Split { at: at - usize::from(at > new), fence: self.fence(at).to_vec() })
    }

    /// The fence before an entry: the shortest one in a leaf.
    fn fence(&self, at: usize) -> &[u8] {
        let key = self.key(at);
        if self.level > 0 { key } else { &key[..key.len().min(shared(self.key(at - 1), key) + 1)] }
    }

    /// Writes it to a node, which it must fit.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        assert!(self.node_bytes() <= bytes.len(), "room has been made");
        bytes.fill(0);
        let high = self.high.as_deref().unwrap_or_default();
        let (first, common, count) = (first_stored(self.level), self.common(), self.entries.len());
        set(bytes, 0, self.level.into());
        set(bytes, NUMBER, count);
        bytes[ENDLESS] = u8::from(self.high.is_none());
        bytes[NEXT..][..size_of::<u64>()].copy_from_slice(&self.next.to_le_bytes());
        set(bytes, SHARED, common);
        let first_key = self.first_key(&(0..count));
        let fences = [(LOW, &self.low[..]), (HIGH, high)].map(|(at, fence)| {
            let (begin, rest) = fence.split_at(shared(fence, first_key));
            set(bytes, at, begin.len());
            set(bytes, at + NUMBER, rest.len());
            rest
        });
        let mut end = HEADER;
        let mut append = |bytes: &mut [u8], part: &[u8]| {
            bytes[end..][..part.len()].copy_from_slice(part);
            end += part.len();
            end
        };
        let [_, mut begin] = fences.map(|rest| append(bytes, rest));
        let places = bytes.len();
        for at in 0..count {
            let key = self.key(at);
            let kept = match at.cmp(&first) {
                Ordering::Less => &[],
                Ordering::Equal => key,
                Ordering::Greater => &key[common..],
            };
            set(bytes, places - NUMBER * (at + 1), begin);
            append(bytes, &(kept.len() as u16).to_le_bytes());
            append(bytes, kept);
            begin = append(bytes, self.payload(at));
        }
    }
}

#[cfg(test)]
mod tests;
