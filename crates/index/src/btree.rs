//! A node of a B-link tree, as bytes of a fixed size: pure functions, which know of no fabric and
//! of no transaction. There are two layouts. This file has the one for keys of one length, and what
//! both have in common; `btree/slotted.rs` has the one for keys of different lengths.
//!
//! ```text
//! +0   level u16 (0: a leaf), entries u16, endless u8 (1: it has no high fence), 0 u24
//! +8   next      u64   id of the node to the right on its level; 0 if it is endless
//! +16  low fence, high fence: a key each; the node is of the keys in low..high
//!      keys of the entries, ascending, room for as many as fit
//!      their values (leaf) or the ids of children, u64 (inner)
//! ```
//!
//! Keys are byte strings of one length, and compare as such: the least one, all zeros, is the low
//! fence of a level's first node. Child `i` of an inner node is of the keys from its entry's to the
//! next entry's, or to the high fence; the first entry's key is the low fence.
//!
//! # Keys first
//!
//! A leaf can have a number of entries that its table says ([`Shape::keys_first`]), and then its
//! record has cells (`remora_record::record`): its keys are the head of the record, and each value
//! is a cell. So a lookup can READ the keys, and then one value, as in XStore (Wei thesis, section
//! 3.4.1). That is worth it where values are large, or where the bytes of a whole leaf are what
//! limits a memory node. A *head* of a leaf is a node, too, but its values must not be looked at.
//!
//! # Size
//!
//! A node is the value of a record whose slot is 16 lines: 24 bytes are the record's header and 8
//! its key, which leaves 992, 16 of them the node's own header. With keys and values of 8 bytes
//! that is 60 entries; with keys of 64 bytes and values of 8, 11. Its read scheme is a checksum, on
//! every fabric: line versions would take 120 bytes more.
//!
//! Bytes that come from a memory node may be anything, if it is damaged. [`Node::new`] checks what
//! the functions here rely on not to panic, [`Node::check`] everything that can be said of a node
//! alone. What changes a slotted node relies on [`Node::check`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::{Deref, DerefMut, Range};

mod slotted;

use slotted::Content;
pub use slotted::{SLOTTED_KEY_BYTES_MAX, SLOTTED_NODE_BYTES_MAX, SLOTTED_VALUE_BYTES_MAX};

/// Id of the root, for ever.
pub const ROOT: u64 = 0;
/// Bytes of a node whose keys have one length, and of the smallest slotted one.
pub const NODE_BYTES: usize = 16 * 64 - 24 - 8;
/// Entries that a leaf has room for at least: larger values are refused.
pub const LEAF_ENTRIES_MIN: usize = 4;
/// Levels of a tree: more than any has, since inner nodes have at least five children when they are
/// made.
pub const LEVELS_MAX: u16 = 24;
/// Level of the node that has the roots of a table's partitions as its children. It is above every
/// root.
pub const MAP_LEVEL: u16 = LEVELS_MAX + 1;
/// Bytes of the largest leaf whose keys come first. A split of such leaves, and of all that is
/// above them, fits a log entry.
pub const LEAF_BYTES_MAX: usize = SLOTTED_NODE_BYTES_MAX;

const NEXT: usize = 8;
const FENCES: usize = 16;
const ENDLESS: usize = 4;
const CHILD_BYTES: usize = size_of::<u64>();
const WORD_BYTES: usize = size_of::<u64>();

/// A node's bytes: as many as its [`Shape`] says.
pub type Image = Vec<u8>;

/// Bytes that are no node: the memory that they come from is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a node of a tree makes no sense: {0}")]
pub struct Damaged(pub &'static str);

/// The sizes of the keys, values and nodes of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes of each key; of the longest one, in slotted nodes.
    key_bytes: usize,
    value_bytes: usize,
    /// Bytes of a node, but for leaves whose keys come first.
    node_bytes: usize,
    /// Entries of a leaf whose keys come first; 0 if leaves are as large as other nodes.
    leaf_entries: u16,
    is_slotted: bool,
}

/// Where a node is split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// The first entry that goes to the right.
    pub at: usize,
    /// The fence between the halves.
    pub fence: Vec<u8>,
}

impl Shape {
    /// The shape for keys of `key_bytes` bytes and values of `value_bytes` bytes. `None` if a leaf
    /// has no room for [`LEAF_ENTRIES_MIN`] entries.
    #[must_use]
    pub fn new(key_bytes: usize, value_bytes: usize) -> Option<Shape> {
        let shape = Shape { key_bytes, value_bytes, node_bytes: NODE_BYTES, leaf_entries: 0, is_slotted: false };
        (value_bytes <= Shape::value_bytes_max(key_bytes)?).then_some(shape)
    }

    /// The shape for keys of `key_bytes` bytes and values of `value_bytes` bytes, whose leaves have
    /// `entries` entries, and their keys first. `None` if that are fewer than [`LEAF_ENTRIES_MIN`]
    /// entries, if a leaf is larger than [`LEAF_BYTES_MAX`], or if there are no values.
    #[must_use]
    pub fn keys_first(key_bytes: usize, value_bytes: usize, entries: usize) -> Option<Shape> {
        let leaf_entries = u16::try_from(entries).ok().filter(|entries| usize::from(*entries) >= LEAF_ENTRIES_MIN)?;
        let shape = Shape { value_bytes, leaf_entries, ..Shape::new(key_bytes, 0)? };
        let fits = value_bytes > 0 && value_bytes <= LEAF_BYTES_MAX && shape.bytes_of(0) <= LEAF_BYTES_MAX;
        fits.then_some(shape)
    }

    /// The shape as a word, for a memory node's CPU.
    ///
    /// ```text
    /// | slotted : 1 | entries of a leaf whose keys come first : 15 | key_bytes : 16 | value_bytes : 32 |
    /// ```
    #[must_use]
    pub fn to_word(&self) -> u64 {
        let [entries, keys, values] = [self.leaf_entries.into(), self.key_bytes, self.value_bytes].map(|of| of as u64);
        u64::from(self.is_slotted) << 63 | entries << 48 | keys << 32 | values
    }

    /// The shape that a word says. `None` if no table has it.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Shape> {
        let (entries, keys, values) = ((word >> 48) as usize & 0x7fff, (word >> 32) as usize & 0xffff, word as u32);
        match (word >> 63 == 1, entries) {
            (true, 0) => Shape::up_to(keys, values as usize),
            (true, _) => None,
            (false, 0) => Shape::new(keys, values as usize),
            (false, entries) => Shape::keys_first(keys, values as usize, entries),
        }
    }

    /// The shape for keys of up to `key_bytes` bytes and values of `value_bytes` bytes: slotted
    /// nodes. `None` beyond [`SLOTTED_KEY_BYTES_MAX`] or [`SLOTTED_VALUE_BYTES_MAX`].
    #[must_use]
    pub fn up_to(key_bytes: usize, value_bytes: usize) -> Option<Shape> {
        let fits = (1..=SLOTTED_KEY_BYTES_MAX).contains(&key_bytes) && value_bytes <= SLOTTED_VALUE_BYTES_MAX;
        let node_bytes = || slotted::node_bytes(key_bytes, value_bytes);
        fits.then(|| Shape { key_bytes, value_bytes, node_bytes: node_bytes(), leaf_entries: 0, is_slotted: true })
    }

    /// Bytes of the largest value beside such keys; `None` if they are too long for any.
    #[must_use]
    pub fn value_bytes_max(key_bytes: usize) -> Option<usize> {
        let room = NODE_BYTES.checked_sub(FENCES + 2 * key_bytes)?;
        (room / LEAF_ENTRIES_MIN).checked_sub(key_bytes).filter(|_| key_bytes > 0)
    }

    /// Bytes of a key; of the longest one, in slotted nodes.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Bytes of a value.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Whether a key can have this many bytes.
    #[must_use]
    pub fn has_key_of(&self, bytes: usize) -> bool {
        if self.is_slotted { bytes <= self.key_bytes } else { bytes == self.key_bytes }
    }

    /// Bytes of a node of a level.
    #[must_use]
    pub fn bytes_of(&self, level: u16) -> usize {
        match (level, self.leaf_entries) {
            (1.., _) | (_, 0) => self.node_bytes,
            (0, entries) => self.payloads_at(0) + usize::from(entries) * self.stride(0),
        }
    }

    /// Bytes of a node of a level as a record's value, with the checks of its cells.
    #[must_use]
    pub fn record_bytes(&self, level: u16) -> usize {
        let checks = if level == 0 { usize::from(self.leaf_entries) * WORD_BYTES } else { 0 };
        self.bytes_of(level) + checks
    }

    /// The parts of a leaf whose keys come first: bytes of its head, bytes of a cell, and the
    /// number of cells. `None` if leaves have no parts.
    #[must_use]
    pub fn leaf_parts(&self) -> Option<(usize, usize, usize)> {
        (self.leaf_entries > 0).then(|| (self.payloads_at(0), self.stride(0), self.leaf_entries.into()))
    }

    /// Whether nodes are slotted: their keys have different lengths.
    #[must_use]
    pub fn is_slotted(&self) -> bool {
        self.is_slotted
    }

    /// The least key: the low fence of a level's first node.
    #[must_use]
    pub fn least(&self) -> Vec<u8> {
        vec![0; if self.is_slotted { 0 } else { self.key_bytes }]
    }

    /// Entries of a full node; of the longest keys, in slotted nodes.
    #[must_use]
    pub fn capacity(&self, level: u16) -> usize {
        if self.is_slotted {
            return slotted::capacity(self, level);
        }
        if level == 0 && self.leaf_entries > 0 {
            return self.leaf_entries.into();
        }
        (NODE_BYTES - self.keys_at()) / (self.key_bytes + self.payload_bytes(level))
    }

    /// Entries of a leaf that is full of the shortest keys.
    #[must_use]
    pub fn leaf_entries_max(&self) -> usize {
        if self.is_slotted { slotted::entries_max(self) } else { self.capacity(0) }
    }

    /// Number of leaves and number of inner nodes of a tree of `rows` rows, if at most the last
    /// node of each level is less than half full.
    #[must_use]
    pub fn nodes_for(&self, rows: u64) -> (u64, u64) {
        let half = |level: u16| (self.capacity(level) / 2).max(usize::from(level > 0) + 1) as u64;
        let leaves = rows.max(1).div_ceil(half(0));
        let (mut below, mut inner) = (leaves, 0);
        for level in 1.. {
            below = below.div_ceil(half(level));
            inner += below;
            if below == 1 {
                break;
            }
        }
        (leaves, inner)
    }

    fn keys_at(&self) -> usize {
        FENCES + 2 * self.key_bytes
    }

    fn payload_bytes(&self, level: u16) -> usize {
        if level == 0 { self.value_bytes } else { CHILD_BYTES }
    }

    /// Where values or children begin, in nodes whose keys have one length.
    #[inline]
    fn payloads_at(&self, level: u16) -> usize {
        let at = self.keys_at() + self.capacity(level) * self.key_bytes;
        if level == 0 && self.leaf_entries > 0 { at.next_multiple_of(WORD_BYTES) } else { at }
    }

    /// Bytes from a value or child to the next one, in nodes whose keys have one length.
    #[inline]
    fn stride(&self, level: u16) -> usize {
        let bytes = self.payload_bytes(level);
        if level == 0 && self.leaf_entries > 0 { bytes.next_multiple_of(WORD_BYTES) } else { bytes }
    }
}

/// How many bytes two keys have in common from the first on.
fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A node, as a view of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Node<B> {
    shape: Shape,
    bytes: B,
}

impl<B: Deref<Target = [u8]>> Node<B> {
    /// Bytes that may be a node: of the right length, with a level and a number of entries that are
    /// possible.
    pub fn new(shape: Shape, bytes: B) -> Result<Node<B>, Damaged> {
        if bytes.len() < FENCES {
            return Err(Damaged("its length"));
        }
        let node = Node { shape, bytes };
        let (length, level) = (node.bytes.len(), node.level());
        let is_head = || level == 0 && shape.leaf_parts().is_some_and(|(head, ..)| length == head);
        if length != shape.bytes_of(level) && !is_head() {
            return Err(Damaged("its length"));
        }
        if node.level() > MAP_LEVEL {
            return Err(Damaged("its level"));
        }
        let is_too_full = !shape.is_slotted && node.count() > node.capacity();
        if is_too_full || node.level() > 0 && node.count() == 0 {
            return Err(Damaged("its number of entries"));
        }
        if shape.is_slotted {
            slotted::check(&shape, &node.bytes)?;
        }
        Ok(node)
    }

    /// Everything that can be said of a node alone: its keys ascend, within its fences.
    pub fn check(&self) -> Result<(), Damaged> {
        let keys = (0..self.count()).map(|at| self.key(at));
        if self.high().is_some_and(|high| self.low() >= high) {
            return Err(Damaged("its fences"));
        }
        if !keys.clone().all(|key| self.contains(&key)) {
            return Err(Damaged("a key outside of its fences"));
        }
        if !keys.is_sorted_by(|one, other| one < other) {
            return Err(Damaged("the order of its keys"));
        }
        if self.level() > 0 && self.key(0) != self.low() {
            return Err(Damaged("its first child"));
        }
        if self.high().is_none() && self.next() != 0 && self.level() < MAP_LEVEL {
            return Err(Damaged("its link"));
        }
        Ok(())
    }

    /// 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u16 {
        u16::from_le_bytes([self.bytes[0], self.bytes[1]])
    }

    /// Number of entries.
    #[must_use]
    pub fn count(&self) -> usize {
        u16::from_le_bytes([self.bytes[2], self.bytes[3]]).into()
    }

    /// The node to its right, if it has a high fence.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.word(NEXT)
    }

    /// The least key that it can have.
    #[must_use]
    pub fn low(&self) -> Cow<'_, [u8]> {
        if self.shape.is_slotted {
            return slotted::whole(slotted::low(&self.bytes, self.level()));
        }
        Cow::Borrowed(&self.bytes[FENCES..][..self.shape.key_bytes])
    }

    /// The least key beyond it; `None` if it has all that are not less than its low fence.
    #[must_use]
    pub fn high(&self) -> Option<Cow<'_, [u8]>> {
        if self.shape.is_slotted {
            return slotted::high(&self.bytes, self.level()).map(slotted::whole);
        }
        let fence = || &self.bytes[FENCES + self.shape.key_bytes..][..self.shape.key_bytes];
        (self.bytes[ENDLESS] == 0).then(|| Cow::Borrowed(fence()))
    }

    /// Whether a key belongs to it, or lies to its left (`Less`) or right (`Greater`).
    #[must_use]
    pub fn side_of(&self, key: &[u8]) -> Ordering {
        if self.shape.is_slotted {
            return slotted::side_of(&self.bytes, self.level(), key);
        }
        if key < &self.low()[..] {
            Ordering::Less
        } else if self.high().is_some_and(|high| key >= &high[..]) {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }

    /// Whether a key belongs to it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.side_of(key).is_eq()
    }

    /// Whether an entry of this key fits.
    #[must_use]
    pub fn has_room(&self, key: &[u8]) -> bool {
        if self.shape.is_slotted { Content::of(self).has_room(self, key) } else { self.count() < self.capacity() }
    }

    /// Whether it has room for the range and the entries, from one of them on, of the node to its
    /// right, once it has only its first `kept` entries. Where keys have one length, whatever a
    /// merge takes over fits.
    #[must_use]
    pub fn can_absorb<C: Deref<Target = [u8]>>(&self, kept: usize, right: &Node<C>, from: usize) -> bool {
        if !self.shape.is_slotted {
            return true;
        }
        let mut content = Content::of(self);
        content.truncate(kept);
        content.with(right, from).fits(&self.shape)
    }

    /// Key of an entry.
    #[must_use]
    pub fn key(&self, at: usize) -> Cow<'_, [u8]> {
        if self.shape.is_slotted {
            return slotted::whole(slotted::key(&self.bytes, self.level(), at));
        }
        Cow::Borrowed(&self.bytes[self.keys(at..at + 1)])
    }

    /// Value of an entry of a leaf.
    #[must_use]
    pub fn value(&self, at: usize) -> &[u8] {
        &self.bytes[self.payload(at)]
    }

    /// Child of an entry of an inner node.
    #[must_use]
    pub fn child(&self, at: usize) -> u64 {
        self.word(self.payload(at).start)
    }

    /// The place of a key's entry, or where it would be.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut from, mut to) = (0, self.count());
        while from < to {
            let middle = from.midpoint(to);
            match self.compare(middle, key) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    /// The place of the child of an inner node that a key of this node belongs to.
    #[must_use]
    pub fn child_of(&self, key: &[u8]) -> usize {
        self.find(key).unwrap_or_else(|at| at.saturating_sub(1))
    }

    /// Where to split a node that has no room for a key, before that is inserted: in the middle, or
    /// close to the end. It is close to the end for a key behind all other keys of the tree, or
    /// behind all keys that begin like it, because the next keys will come there. The half that the
    /// key belongs to then has room for it.
    pub fn split_point(&self, key: &[u8]) -> Result<Split, Damaged> {
        let ends = self.high().is_none_or(|high| shared(key, &self.low()) > shared(key, &high));
        let appends = ends && self.find(key) == Err(self.count());
        // An inner node's last child is where an appended key goes.
        let at_the_end = appends || self.high().is_none() && self.level() > 0 && self.child_of(key) + 1 == self.count();
        if self.shape.is_slotted {
            return Content::of(self).split_point(self, key, at_the_end);
        }
        let at = if at_the_end { self.count() - 1 } else { self.count() / 2 };
        Ok(Split { at, fence: self.key(at).into_owned() })
    }

    /// A copy of the node's bytes.
    #[must_use]
    pub fn image(&self) -> Image {
        self.bytes.to_vec()
    }

    /// Compares the key of an entry with another.
    #[inline]
    fn compare(&self, at: usize, key: &[u8]) -> Ordering {
        if self.shape.is_slotted {
            return slotted::compare(&self.bytes, self.level(), at, key);
        }
        self.bytes[self.keys(at..at + 1)].cmp(key)
    }

    /// Where the value or the child of an entry is.
    #[inline]
    fn payload(&self, at: usize) -> Range<usize> {
        if self.shape.is_slotted {
            return slotted::payload(&self.bytes, at, self.shape.payload_bytes(self.level()));
        }
        let begin = self.payloads(at..at).start;
        begin..begin + self.shape.payload_bytes(self.level())
    }

    fn capacity(&self) -> usize {
        self.shape.capacity(self.level())
    }

    fn word(&self, at: usize) -> u64 {
        self.bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Where the keys of entries are.
    fn keys(&self, entries: Range<usize>) -> Range<usize> {
        let (at, bytes) = (self.shape.keys_at(), self.shape.key_bytes);
        at + entries.start * bytes..at + entries.end * bytes
    }

    /// Where the values or children of entries are.
    fn payloads(&self, entries: Range<usize>) -> Range<usize> {
        let (at, bytes) = (self.shape.payloads_at(self.level()), self.shape.stride(self.level()));
        at + entries.start * bytes..at + entries.end * bytes
    }
}

impl<'b> Node<&'b [u8]> {
    /// Returns the value of an entry of a leaf.
    #[must_use]
    pub fn into_value(self, at: usize) -> &'b [u8] {
        &self.bytes[self.payload(at)]
    }
}

impl<'b> Node<&'b mut [u8]> {
    /// Makes bytes a node without entries. Its high fence is none.
    #[must_use]
    pub fn create(shape: Shape, image: &'b mut Image, level: u16, low: &[u8]) -> Node<&'b mut [u8]> {
        image.clear();
        image.resize(shape.bytes_of(level), 0);
        let mut node = Node { shape, bytes: &mut image[..] };
        node.bytes[..2].copy_from_slice(&level.to_le_bytes());
        if shape.is_slotted {
            Content::new(level, low).write(node.bytes);
            return node;
        }
        node.bytes[FENCES..][..shape.key_bytes].copy_from_slice(low);
        node.end(None, 0);
        node
    }

    /// Returns the value of an entry of a leaf, to be changed.
    #[must_use]
    pub fn into_value(self, at: usize) -> &'b mut [u8] {
        let place = self.payload(at);
        &mut self.bytes[place]
    }
}

impl<B: DerefMut<Target = [u8]>> Node<B> {
    /// Adds an entry where [`Node::find`] says. The node must have room for it.
    pub fn insert(&mut self, at: usize, key: &[u8], payload: &[u8]) {
        let count = self.count();
        if self.shape.is_slotted {
            let mut content = Content::of(self);
            content.insert(at, key, payload);
            return content.write(&mut self.bytes);
        }
        assert!(at <= count && count < self.capacity(), "room has been made");
        let (keys, payloads) = (self.keys(at..count), self.payloads(at..count));
        self.bytes.copy_within(keys.clone(), keys.start + self.shape.key_bytes);
        let stride = self.shape.stride(self.level());
        self.bytes.copy_within(payloads.clone(), payloads.start + stride);
        self.bytes[keys.start..][..key.len()].copy_from_slice(key);
        self.bytes[payloads.start..][..payload.len()].copy_from_slice(payload);
        self.set_count(count + 1);
    }

    /// Adds a child.
    pub fn insert_child(&mut self, key: &[u8], child: u64) {
        let at = self.find(key).unwrap_or_else(|at| at);
        self.insert(at, key, &child.to_le_bytes());
    }

    /// Removes an entry.
    pub fn remove(&mut self, at: usize) {
        let count = self.count();
        if self.shape.is_slotted {
            let mut content = Content::of(self);
            content.remove(at);
            return content.write(&mut self.bytes);
        }
        let (keys, payloads) = (self.keys(at..count), self.payloads(at..count));
        let stride = self.shape.stride(self.level());
        self.bytes.copy_within(keys.start + self.shape.key_bytes..keys.end, keys.start);
        self.bytes.copy_within(payloads.start + stride..payloads.end, payloads.start);
        self.truncate(count - 1);
    }

    /// Gives everything behind a fence to a new node to its right, which it links.
    pub fn split(&mut self, split: &Split, right_id: u64) -> Image {
        let mut image = Image::new();
        let (at, count) = (split.at, self.count());
        let mut right = Node::create(self.shape, &mut image, self.level(), &split.fence);
        right.end(self.high().as_deref(), self.next());
        right.append(self, at);
        self.truncate(at);
        self.end(Some(&right.low()), right_id);
        debug_assert_eq!(self.count() + right.count(), count);
        image
    }

    /// Takes the range and the entries, from one of them on, of the node to its right, which is to
    /// go. It must have room for them.
    pub fn absorb<C: Deref<Target = [u8]>>(&mut self, right: &Node<C>, from: usize) {
        if self.shape.is_slotted {
            return Content::of(self).with(right, from).write(&mut self.bytes);
        }
        self.append(right, from);
        self.end(right.high().as_deref(), right.next());
    }

    /// Where it ends, and what is behind. It must have room for the fence.
    pub fn end(&mut self, high: Option<&[u8]>, next: u64) {
        if self.shape.is_slotted {
            return Content::of(self).ending(high, next).write(&mut self.bytes);
        }
        self.bytes[ENDLESS] = u8::from(high.is_none());
        let place = FENCES + self.shape.key_bytes..FENCES + 2 * self.shape.key_bytes;
        match high {
            Some(high) => self.bytes[place].copy_from_slice(high),
            None => self.bytes[place].fill(0),
        }
        self.bytes[NEXT..][..size_of::<u64>()].copy_from_slice(&next.to_le_bytes());
    }

    fn append<C: Deref<Target = [u8]>>(&mut self, other: &Node<C>, from: usize) {
        let (count, more) = (self.count(), other.count() - from);
        if self.shape.is_slotted {
            let (high, next) = (self.high().map(Cow::into_owned), self.next());
            return Content::of(self).with(other, from).ending(high.as_deref(), next).write(&mut self.bytes);
        }
        assert!(count + more <= self.capacity(), "there is room");
        let (keys, payloads) = (self.keys(count..count + more), self.payloads(count..count + more));
        self.bytes[keys].copy_from_slice(&other.bytes[other.keys(from..from + more)]);
        self.bytes[payloads].copy_from_slice(&other.bytes[other.payloads(from..from + more)]);
        self.set_count(count + more);
    }

    /// Forgets entries from one on; their bytes too, so that equal nodes have equal bytes.
    fn truncate(&mut self, count: usize) {
        if self.shape.is_slotted {
            let mut content = Content::of(self);
            content.truncate(count);
            return content.write(&mut self.bytes);
        }
        let (keys, payloads) = (self.keys(count..self.count()), self.payloads(count..self.count()));
        self.bytes[keys].fill(0);
        self.bytes[payloads].fill(0);
        self.set_count(count);
    }

    fn set_count(&mut self, count: usize) {
        self.bytes[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn shape() -> Shape {
        Shape::new(2, 100).unwrap()
    }

    /// Leaves of as many entries, whose values do not fill words.
    fn keys_first() -> Shape {
        Shape::keys_first(2, 100, 9).unwrap()
    }

    fn entries<B: Deref<Target = [u8]>>(node: &Node<B>) -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..node.count()).map(|at| (node.key(at).into_owned(), node.value(at).to_vec())).collect()
    }

    #[test]
    fn nodes_have_the_room_that_is_said() {
        assert_eq!(Shape::new(8, 8).unwrap().capacity(0), 60);
        assert_eq!(Shape::new(8, 8).unwrap().capacity(1), 60);
        assert_eq!(Shape::new(64, 8).unwrap().capacity(0), 11);
        assert_eq!(Shape::new(64, 8).unwrap().capacity(1), 11);
        assert_eq!(Shape::new(8, 0).unwrap().capacity(0), 120);
        for key_bytes in [1, 8, 64] {
            let max = Shape::value_bytes_max(key_bytes).unwrap();
            assert_eq!(Shape::new(key_bytes, max).unwrap().capacity(0), LEAF_ENTRIES_MIN);
            assert_eq!(Shape::new(key_bytes, max + 1), None);
        }
        let shape = Shape::keys_first(8, 8, 16).unwrap();
        assert_eq!((shape.capacity(0), shape.capacity(1), shape.bytes_of(1)), (16, 60, NODE_BYTES));
        assert_eq!((shape.leaf_parts(), shape.bytes_of(0)), (Some((160, 8, 16)), 160 + 16 * 8));
        assert_eq!(keys_first().leaf_parts(), Some((40, 104, 9)), "keys and values are padded to words");
        let refused = [(8, 8, 3), (8, 0, 16), (8, 200, 16), (0, 8, 16), (8, usize::MAX, 16), (8, 8, 1 << 15)];
        assert!(refused.into_iter().all(|(key, value, entries)| Shape::keys_first(key, value, entries).is_none()));
        for shape in [shape, keys_first(), Shape::new(64, 8).unwrap(), Shape::up_to(300, 20).unwrap()] {
            assert_eq!(Shape::from_word(shape.to_word()), Some(shape));
        }
        assert!([0, 1 << 63, u64::MAX, 3 << 48 | 8 << 32 | 8].into_iter().all(|word| Shape::from_word(word).is_none()));
        assert_eq!(Shape::new(8, 8).unwrap().nodes_for(1), (1, 1));
        assert_eq!(Shape::new(8, 8).unwrap().nodes_for(31), (2, 1));
        assert_eq!(Shape::new(8, 8).unwrap().nodes_for(27_000), (900, 30 + 1));
    }

    proptest! {
        /// A row of nodes beside a map: what is full is split, what is empty is absorbed.
        #[test]
        fn nodes_are_a_map(changes in prop::collection::vec((0u16..64, any::<bool>()), 0..400), first: bool) {
            let shape = || if first { keys_first() } else { shape() };
            let mut model = BTreeMap::new();
            let mut first = Image::new();
            let _ = Node::create(shape(), &mut first, 0, &[0; 2]);
            let mut nodes = vec![first];
            for (turn, (number, inserts)) in changes.into_iter().enumerate() {
                let (key, value) = (number.to_be_bytes(), [turn as u8; 100]);
                let of = |image: &Image| Node::new(shape(), &image[..]).unwrap().side_of(&key);
                let index = nodes.binary_search_by(|image| of(image).reverse()).unwrap();
                let mut node = Node::new(shape(), &mut nodes[index][..]).unwrap();
                match (node.find(&key), inserts) {
                    (Ok(at), true) => node.into_value(at).copy_from_slice(&value),
                    (Ok(at), false) => node.remove(at),
                    (Err(at), true) if node.has_room(&key) => node.insert(at, &key, &value),
                    (Err(_), true) => {
                        let right = node.split(&node.split_point(&key).unwrap(), 7);
                        nodes.insert(index + 1, right);
                        continue;
                    }
                    (Err(_), false) => {}
                }
                if inserts { model.insert(key.to_vec(), value.to_vec()) } else { model.remove(&key[..]) };
                if index > 0 && Node::new(shape(), &nodes[index][..]).unwrap().count() == 0 {
                    let gone = nodes.remove(index);
                    let mut left = Node::new(shape(), &mut nodes[index - 1][..]).unwrap();
                    left.absorb(&Node::new(shape(), &gone[..]).unwrap(), 0);
                }
            }
            let nodes: Vec<_> = nodes.iter().map(|image| Node::new(shape(), &image[..]).unwrap()).collect();
            prop_assert_eq!(nodes.iter().flat_map(entries).collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
            for (node, next) in nodes.iter().zip(nodes.iter().skip(1)) {
                prop_assert_eq!(node.high(), Some(next.low()));
                prop_assert_eq!(node.next(), 7);
            }
            prop_assert!(nodes.last().unwrap().high().is_none());
            for node in &nodes {
                prop_assert_eq!(node.check(), Ok(()));
            }
        }

        /// Whatever a memory node says, nothing panics.
        #[test]
        fn any_bytes_are_a_node_or_refused(
            bytes in prop::collection::vec(any::<u8>(), NODE_BYTES), level in 0u16..3, count in 0u16..20, key in any::<[u8; 2]>(),
        ) {
            let mut bytes = bytes;
            if level < 2 {
                bytes[..2].copy_from_slice(&level.to_le_bytes());
                bytes[2..4].copy_from_slice(&count.to_le_bytes());
            }
            if let Ok(node) = Node::new(shape(), &bytes[..]) {
                let _ = (node.check(), node.side_of(&key), node.find(&key).map(|at| node.key(at).into_owned()));
                if node.level() > 0 {
                    let _ = node.child(node.child_of(&key));
                }
                let mut image = node.image();
                let mut node = Node::new(shape(), &mut image[..]).unwrap();
                if node.count() > 1 {
                    let right = node.split(&node.split_point(&key).unwrap(), 1);
                    let right = Node::new(shape(), &right[..]).unwrap();
                    prop_assert!(node.count() > 0 && right.count() > 0);
                }
            }
        }
    }

    #[test]
    fn keys_that_are_appended_leave_full_nodes() {
        let mut image = Image::new();
        let mut node = Node::create(shape(), &mut image, 0, &[1, 0]);
        (0..9).for_each(|at| node.insert(at, &[1, 2 * at as u8], &[0; 100]));
        assert!(!node.has_room(&[1, 17]));
        for (high, appended) in [(None, 8), (Some([2, 0]), 8), (Some([1, 100]), 4)] {
            node.end(high.as_ref().map(|high| &high[..]), 7);
            assert_eq!([[1, 17], [1, 7]].map(|key| node.split_point(&key).unwrap().at), [appended, 4], "{high:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let mut image = Image::new();
        let mut node = Node::create(shape(), &mut image, 0, &[0, 5]);
        node.end(Some(&[0, 9]), 1);
        for (at, key) in [5, 7, 8].into_iter().enumerate() {
            node.insert(at, &[0, key], &[0; 100]);
        }
        assert_eq!(node.check(), Ok(()));
        let broken = |change: &dyn Fn(&mut Image)| {
            let mut broken = image.clone();
            change(&mut broken);
            Node::new(shape(), &broken[..]).and_then(|node| node.check()).unwrap_err()
        };
        assert_eq!(broken(&|image| image[0] = 200), Damaged("its level"));
        assert_eq!(broken(&|image| image[2] = 200), Damaged("its number of entries"));
        assert_eq!(broken(&|image| image[FENCES + 1] = 9), Damaged("its fences"));
        assert_eq!(broken(&|image| image[FENCES + 1] = 6), Damaged("a key outside of its fences"));
        assert_eq!(broken(&|image| image[FENCES + 3] = 8), Damaged("a key outside of its fences"));
        assert_eq!(broken(&|image| image[FENCES + 5] = 7), Damaged("the order of its keys"));
        assert_eq!(broken(&|image| image[ENDLESS] = 1), Damaged("its link"));
        assert_eq!(Node::new(shape(), &image[1..]).unwrap_err(), Damaged("its length"));
        assert_eq!(Node::new(shape(), &image[..3]).unwrap_err(), Damaged("its length"));
    }

    #[test]
    fn a_head_has_the_keys() {
        let mut image = Image::new();
        let mut node = Node::create(keys_first(), &mut image, 0, &[0, 5]);
        node.end(Some(&[0, 9]), 1);
        node.insert(0, &[0, 7], &[3; 100]);
        let head = Node::new(keys_first(), &image[..40]).unwrap();
        assert_eq!((head.check(), head.find(&[0, 7]), head.find(&[0, 8])), (Ok(()), Ok(0), Err(1)));
        assert_eq!(Node::new(keys_first(), &image[..48]).unwrap_err(), Damaged("its length"));
        assert_eq!(Node::new(shape(), &image[..40]).unwrap_err(), Damaged("its length"));
    }
}
