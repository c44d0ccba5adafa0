//! Layouts of a RACE hash table: a hash index whose size is not known in advance, with keys and
//! values of any length. Clients read and change it by READ, WRITE and compare-and-swap alone.
//!
//! ```text
//! extent, a shard of a table of the catalog; extent 0 also has the lists and the roots
//! +0    given     u64   units given out                                     FETCH_ADDed
//! +64   returned  16 times u64   first block of each class that was returned, as a slot word
//! +192  reclaimed u64   | count : 32 | unit : 32 |   first range of units that were reclaimed
//! +200  reclaims  u64   how often arrays were reclaimed beside other clients      FETCH_ADDed
//! +256  roots     objects, 16 bytes each
//! ...   units, 64 bytes each
//!
//! object, 16 bytes
//! +0    lock      u64   see `remora_record::lock`, repairable                     CASed only
//! +8    node      u64   | 1 : 1 | mark : 31 | unit : 32 |   leaf: its array       CASed only
//!                       | 0 : 1 | 1 : 1 | 0 : 30 | unit : 32 |   fork: its pair
//!                       | 0 : 2 | mark : 30 | 0 : 32 |   bare: it has no array yet
//!
//! pair, one unit: the objects of the two halves of a fork
//! +32   dead      u64   | count : 32 | unit : 32 |   array that was split, until it is reclaimed
//!                                                                                 CASed to 0 only
//!
//! array, groups of 24 slots
//! group: main bucket, shared overflow bucket, main bucket; 8 slots each
//!
//! slot, 8 bytes, CASed only
//! | 3 : 2 | fingerprint : 8 | class : 4 | use : 18 | unit : 32 |   live
//! | 2 : 2 | fingerprint : 8 | class : 4 | use : 18 | unit : 32 |   pending
//! | 1 : 2 | fingerprint : 8 | class : 4 | use : 18 | unit : 32 |   tombstone
//! | 0 : 2 | 1 : 1 | 0 : 2 | attempt : 59 |                         empty
//! | 0 : 2 | 0 : 8 | class : 4 | use : 18 | unit : 32 |             withdrawn
//!
//! | 2 : 2 | moving : 1 | 0 : 24 | depth : 5 | suffix : 32 |        header of a group, native tables only
//!
//! block, whole units
//! +0    mark      u64   the slot word of the block's use, or the same marked     CASed only
//! +8    slot      u64   the slot word of the block's use, as a live slot
//! +16   hash      u64   of the key
//! +24   lengths   u64   | check : 32 | key bytes : 16 | value bytes : 16 |
//! +32   key, then value, each in whole words
//! ```
//!
//! The directory of extendible hashing is a tree here. A root, and each leaf of the tree, has an
//! array of slots, a *subtable*. The lowest bits of a key's hash choose the root, and each fork
//! consumes one more bit. When a subtable is full, a client makes two arrays and a pair of objects
//! for them, and swaps the node of the subtable's object from a leaf to a fork. So one
//! compare-and-swap installs a rehash, and the directory never doubles.
//!
//! # Rules
//!
//! 1. **No word recurs in a slot.** A live, pending or withdrawn slot and a tombstone name a use of
//!    a block, and a block's uses are counted. An empty slot names the attempt that made its array.
//! 2. **An array, and a pair, are made of units that no connected client has seen in use.** So a
//!    compare-and-swap that comes late meets the words that it was meant for, or none. Units are
//!    used again only after a moment without clients, when they are reclaimed. Only an array that
//!    was split may be used again earlier: when no operation is under way that began before its
//!    split.
//! 3. **A block belongs to the client that wrote it until a slot has it**, and to the client that
//!    displaces it from a live array.
//! 4. **At most one live slot of an array has a key.** An insert first takes a slot as *pending*.
//!    Then it reads all slots that the key could have. If it meets another pending slot of the key,
//!    it withdraws that one. If it meets a live one, it withdraws its own. Only then it makes its
//!    own slot live, which fails if another insert has withdrawn it.
//!
//! *Why rule 4 holds.* Two inserts of a key take slots A and B. Each reads the other's slot after
//! it has taken its own. So at least one of them, say that of A, sees B taken. If B is pending
//! then, A withdraws it, and B never becomes live. If B is live, A gives up. The other one sees
//! either A pending, and withdraws it, or A withdrawn. So A and B never become live together.

use std::ops::Range;

use remora_fabric::splitmix;
use remora_node::TableSpec;
use zerocopy::IntoBytes;

use crate::buckets::{Buckets, Index};

mod directory;
mod header;
#[cfg(test)]
mod tests;

pub use directory::{DEPTH_MAX, Directory};
pub use header::{Header, Keys};

/// The bytes of a unit, in which the space of an extent is given out.
pub const UNIT_BYTES: u64 = 64;
/// The bytes of an object.
pub const OBJECT_BYTES: u64 = 16;
/// The offset in an extent of the number of units that were given out.
pub const AT_GIVEN: u64 = 0;
/// The number of sizes that a block can have.
pub const CLASSES: usize = 16;
/// The number of slots of a bucket.
pub const BUCKET_SLOTS: usize = 8;
/// The number of slots of a group: two main buckets, and the overflow bucket that they share.
pub const GROUP_SLOTS: usize = 3 * BUCKET_SLOTS;
/// The number of slots that a key can have in one of its two groups.
pub const WINDOW_SLOTS: usize = 2 * BUCKET_SLOTS;
/// The bytes of a window.
pub const WINDOW_BYTES: usize = WINDOW_SLOTS * 8;
/// The offset in a block of what its writer writes: all but the mark.
pub const AT_IMAGE: u64 = 8;
/// The bytes of a block before its key.
pub const BLOCK_HEADER_BYTES: usize = 32;
/// The largest number of groups of a subtable. One round reads a subtable, and one writes two.
pub const GROUPS_MAX: u64 = 128;
/// The largest number of roots.
pub const ROOTS_MAX: u64 = 1 << 20;

/// The offset in extent 0 of the list of ranges that were reclaimed. It follows the lists of blocks
/// that were returned.
pub const AT_RECLAIMED: u64 = AT_RETURNED + CLASSES as u64 * 8;

/// The offset in extent 0 of the number of times that arrays were reclaimed beside other clients.
pub const AT_RECLAIMS: u64 = AT_RECLAIMED + 8;
/// The offset in a pair of the word that names the array which was split.
pub const AT_DEAD: u64 = 2 * OBJECT_BYTES;

const AT_RETURNED: u64 = 64;
const AT_ROOTS: u64 = 256;
/// The units of a block of each class.
const CLASS_UNITS: [u32; CLASSES] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// The largest number of bytes of a key and its value together, each rounded up to whole words.
pub const CONTENT_BYTES_MAX: usize = CLASS_UNITS[CLASSES - 1] as usize * UNIT_BYTES as usize - BLOCK_HEADER_BYTES;

/// A class of blocks: their size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Class(u8);

impl Class {
    /// The class of the smallest blocks. A tombstone has such a block.
    pub const SMALLEST: Class = Class(0);

    /// Returns the class of the smallest block that has room for a key and a value. `None` if no
    /// block has.
    #[must_use]
    pub fn for_content(key_bytes: usize, value_bytes: usize) -> Option<Class> {
        let bytes = BLOCK_HEADER_BYTES + key_bytes.next_multiple_of(8) + value_bytes.next_multiple_of(8);
        let fits = |units: &u32| u64::from(*units) * UNIT_BYTES >= bytes as u64;
        CLASS_UNITS.iter().position(fits).map(|class| Class(class as u8))
    }

    /// Returns the class with this number.
    #[must_use]
    pub fn new(number: usize) -> Option<Class> {
        (number < CLASSES).then_some(Class(number as u8))
    }

    /// Returns the number of the class, below [`CLASSES`].
    #[must_use]
    pub fn number(self) -> usize {
        self.0.into()
    }

    /// Returns the class of the largest blocks that have at most this number of units. `None` if
    /// there is none.
    #[must_use]
    pub fn largest_within(units: u64) -> Option<Class> {
        (0..CLASSES).rev().filter_map(Class::new).find(|class| class.units() <= units)
    }

    /// Returns the units of a block.
    #[must_use]
    pub fn units(self) -> u64 {
        CLASS_UNITS[self.number()].into()
    }

    /// Returns the bytes of a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        (self.units() * UNIT_BYTES) as usize
    }
}

/// What a slot has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The slot is free, and nothing has had it since its array was made.
    Empty,
    /// The slot is free: an insert had it, and was not completed.
    Withdrawn,
    /// The slot is free: its key was deleted.
    Tombstone,
    /// An insert is about to make it live.
    Pending,
    /// The slot has a key and a value.
    Live,
}

/// The word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Slot(u64);

impl Slot {
    const KIND_SHIFT: u32 = 62;
    const LIVE: u64 = 3 << Slot::KIND_SHIFT;
    const PENDING: u64 = 2 << Slot::KIND_SHIFT;
    const TOMBSTONE: u64 = 1 << Slot::KIND_SHIFT;
    const KINDS: u64 = Slot::LIVE;
    const EMPTY: u64 = 1 << 61;
    const FINGERPRINT_SHIFT: u32 = 54;
    const CLASS_SHIFT: u32 = 50;
    const USE_SHIFT: u32 = 32;
    const USE_MAX: u64 = (1 << 18) - 1;

    /// Unpacks a word of memory. Every word is some slot.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Slot {
        Slot(bits)
    }

    /// Packs the slot into the word that lies in memory.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the empty slots of the array that an attempt makes. `attempt` is the attempt's
    /// number, of at most 59 bits, which no other attempt has.
    #[must_use]
    pub fn empty(attempt: u64) -> Slot {
        Slot(Slot::EMPTY | attempt & ((1 << 59) - 1))
    }

    /// Returns the slot of a block that was never used, and that begins at a unit. No array has it.
    /// Only its next use may be installed.
    #[must_use]
    pub fn unused(unit: u32, class: Class) -> Slot {
        Slot(Slot::LIVE | u64::from(class.0) << Slot::CLASS_SHIFT | u64::from(unit))
    }

    /// Returns the live slot of the next use of a slot's block, which the caller owns. `None` if
    /// the block has no use left: it is retired.
    #[must_use]
    pub fn next_use(self, hash: Hash) -> Option<Slot> {
        let number = self.0 >> Slot::USE_SHIFT & Slot::USE_MAX;
        let next = Slot((self.0 | Slot::LIVE) + (1 << Slot::USE_SHIFT));
        (number < Slot::USE_MAX).then(|| next.of(hash))
    }

    /// Returns the same use of a block that the caller has cut to this class.
    #[must_use]
    pub fn cut_to(self, class: Class) -> Slot {
        debug_assert!(class <= self.class());
        Slot(self.0 & !(15 << Slot::CLASS_SHIFT) | u64::from(class.0) << Slot::CLASS_SHIFT)
    }

    fn of(self, hash: Hash) -> Slot {
        let fingerprint = u64::from(hash.fingerprint()) << Slot::FINGERPRINT_SHIFT;
        Slot(self.0 & !(0xff << Slot::FINGERPRINT_SHIFT) | fingerprint)
    }

    /// Returns what the slot has.
    #[inline]
    #[must_use]
    pub fn kind(self) -> Kind {
        match self.0 >> Slot::KIND_SHIFT {
            3 => Kind::Live,
            2 => Kind::Pending,
            1 => Kind::Tombstone,
            _ if self.0 & Slot::EMPTY != 0 => Kind::Empty,
            _ => Kind::Withdrawn,
        }
    }

    /// Whether an insert may take the slot.
    #[inline]
    #[must_use]
    pub fn is_free(self) -> bool {
        self.0 < Slot::PENDING
    }

    /// Whether the slot may be live, and of a key with this hash.
    #[inline]
    #[must_use]
    pub fn may_have(self, hash: Hash) -> bool {
        self.0 >> Slot::FINGERPRINT_SHIFT == 0x300 | u64::from(hash.fingerprint())
    }

    /// Whether an insert of a key with this hash may be about to make the slot live.
    #[inline]
    #[must_use]
    pub fn may_get(self, hash: Hash) -> bool {
        self.0 >> Slot::FINGERPRINT_SHIFT == 0x200 | u64::from(hash.fingerprint())
    }

    fn as_kind(self, kind: u64) -> Slot {
        Slot(self.0 & !Slot::KINDS | kind)
    }

    /// Returns the live slot of the same use.
    #[must_use]
    pub fn live(self) -> Slot {
        self.as_kind(Slot::LIVE)
    }

    /// Returns the pending slot of the same use.
    #[must_use]
    pub fn pending(self) -> Slot {
        self.as_kind(Slot::PENDING)
    }

    /// Returns the tombstone of the same use.
    #[must_use]
    pub fn tombstone(self) -> Slot {
        self.as_kind(Slot::TOMBSTONE)
    }

    /// Returns the slot of the same use that an insert had in vain.
    #[must_use]
    pub fn withdrawn(self) -> Slot {
        Slot(self.0 & !(Slot::KINDS | 0xff << Slot::FINGERPRINT_SHIFT))
    }

    /// Returns the mark of a use that a client has seen in a live array, and was about to displace.
    /// The mark of a use that no client has seen so is the slot itself.
    #[must_use]
    pub fn marked(self) -> u64 {
        self.0 ^ 1 << 63
    }

    /// Returns the first unit of the slot's block. The slot must have a block.
    #[inline]
    #[must_use]
    pub fn unit(self) -> u32 {
        self.0 as u32
    }

    /// Returns the class of the slot's block.
    #[inline]
    #[must_use]
    pub fn class(self) -> Class {
        Class((self.0 >> Slot::CLASS_SHIFT) as u8 & 15)
    }
}

/// A range of units that were reclaimed, as the list of such ranges names it. The word of its last
/// unit at [`AT_IMAGE`] names the next range of the list. The first word of each of its units is 0.
///
/// Clients take units from the front of the first range, so the head of the list only moves on. A
/// client puts a range into the list only when it reclaims. Then no operation is under way that has
/// seen these units in the list before. So a head does not recur while an operation goes by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitRange(u64);

impl UnitRange {
    /// Unpacks a word of memory. `None` if the word names no range.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<UnitRange> {
        (bits >> 32 != 0).then_some(UnitRange(bits))
    }

    /// Packs the range into the word that lies in memory.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns a range of units. `None` if it is empty, or reaches beyond what a word can name.
    #[must_use]
    pub fn new(units: &Range<u64>) -> Option<UnitRange> {
        let count = units.end.checked_sub(units.start)?;
        (units.start >> 32 == 0 && count >> 32 == 0).then(|| UnitRange::from_bits(count << 32 | units.start))?
    }

    /// Returns the units of the range.
    #[must_use]
    pub fn units(self) -> Range<u64> {
        let first = self.0 & 0xffff_ffff;
        first..first + (self.0 >> 32)
    }
}

/// The hash of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hash(u64);

/// Bits of a hash that choose a leaf of the tree.
const LEAF_BITS: u32 = 40;

impl Hash {
    /// Hashes a key.
    #[inline]
    #[must_use]
    pub fn of(key: &[u8]) -> Hash {
        let (words, rest) = key.as_chunks::<8>();
        let hash = words.iter().fold(key.len() as u64, |hash, word| splitmix(hash ^ u64::from_le_bytes(*word)));
        if rest.is_empty() {
            return Hash(hash);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        Hash(splitmix(hash ^ u64::from_le_bytes(last)))
    }

    /// Unpacks the hash that a block has.
    #[must_use]
    pub fn from_bits(bits: u64) -> Hash {
        Hash(bits)
    }

    /// Packs the hash into the word that a block has.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the bits that choose a leaf of the tree, the first one lowest.
    #[inline]
    #[must_use]
    pub fn leaf_bits(self) -> u64 {
        self.0 & ((1 << LEAF_BITS) - 1)
    }

    /// Returns the number of the key's shard, of a table with this number of shards.
    #[inline]
    #[must_use]
    pub fn shard(self, shards: usize) -> usize {
        if shards == 1 { 0 } else { (((splitmix(self.0) >> 32) * shards as u64) >> 32) as usize }
    }

    fn fingerprint(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Returns the two windows of the key in an array of this number of groups, of which there are
    /// at least two. They have no slot in common.
    #[inline]
    #[must_use]
    pub fn windows(self, groups: u64) -> [Window; 2] {
        let other = splitmix(self.0);
        let choose = |bits: u64, from: u64| ((bits & 0xffff) * from) >> 16;
        let first = choose(self.0 >> LEAF_BITS, groups);
        let step = 1 + choose(other, groups - 1);
        let second = if first + step < groups { first + step } else { first + step - groups };
        let side = |bit: u32| (other >> bit & 1) as usize;
        [Window { group: first as usize, side: side(16) }, Window { group: second as usize, side: side(17) }]
    }
}

impl Hash {
    /// Returns the slot that an insert of the key takes, as the number of the window and of the
    /// slot in it: one of the window that has more free slots. `None` if no slot is free. Keys
    /// begin at different slots of a bucket, so that few clients want the same one.
    #[must_use]
    pub fn free_slot(self, windows: [Window; 2], words: [&[u64]; 2]) -> Option<(usize, usize)> {
        let is_free = |word: u64| Slot::from_bits(word).is_free();
        let free = words.map(|words| words.iter().filter(|word| is_free(**word)).count());
        let window = usize::from(free[1] > free[0]);
        let mut slots = windows[window].preferred((self.0 >> 3) as usize % BUCKET_SLOTS);
        slots.find(|slot| words[window].get(*slot).is_some_and(|word| is_free(*word))).map(|slot| (window, slot))
    }
}

/// The slots that a key can have in a group: a main bucket, and the group's overflow bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    group: usize,
    /// 0 if the main bucket comes before the overflow bucket, and otherwise 1.
    side: usize,
}

impl Window {
    /// Returns the number in the array of the window's first slot.
    #[inline]
    #[must_use]
    pub fn first_slot(self) -> usize {
        self.group * GROUP_SLOTS + self.side * BUCKET_SLOTS
    }

    /// Returns the slots of the window, by their numbers in the window, in the order in which an
    /// insert prefers them. The main bucket comes first. `start` spreads clients over a bucket.
    pub fn preferred(self, start: usize) -> impl Iterator<Item = usize> {
        let (main, overflow) = if self.side == 0 { (0, BUCKET_SLOTS) } else { (BUCKET_SLOTS, 0) };
        let of_bucket = move |bucket: usize| (0..BUCKET_SLOTS).map(move |at| bucket + (at + start) % BUCKET_SLOTS);
        of_bucket(main).chain(of_bucket(overflow))
    }
}

/// The node of the tree at an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// There is no array yet: all keys are absent.
    Bare,
    /// A subtable, whose array begins at this unit.
    Leaf(u32),
    /// A subtable that was split. The objects of its halves are at this unit.
    Fork(u32),
}

/// The word of an object that says which node it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct NodeWord(u64);

impl NodeWord {
    const LEAF: u64 = 1 << 63;
    const FORK: u64 = 1 << 62;
    const MARK: u64 = 1 << 32;

    /// The node of an object that was never changed.
    pub const BARE: NodeWord = NodeWord(0);

    /// Unpacks a word of memory. Every word is some node.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> NodeWord {
        NodeWord(bits)
    }

    /// Packs the node into the word that lies in memory.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns a leaf that was not marked yet.
    #[must_use]
    pub fn leaf(unit: u32) -> NodeWord {
        NodeWord(NodeWord::LEAF | u64::from(unit))
    }

    /// Returns a fork.
    #[must_use]
    pub fn fork(unit: u32) -> NodeWord {
        NodeWord(NodeWord::FORK | u64::from(unit))
    }

    /// Returns the node.
    #[inline]
    #[must_use]
    pub fn node(self) -> Node {
        match self.0 >> 62 {
            0 => Node::Bare,
            1 => Node::Fork(self.0 as u32),
            _ => Node::Leaf(self.0 as u32),
        }
    }

    /// Returns the same node with the next mark, in another word. `None` for a fork, which never
    /// changes again, and if all marks are used up.
    #[must_use]
    pub fn marked(self) -> Option<NodeWord> {
        let next = NodeWord(self.0.wrapping_add(NodeWord::MARK));
        (!matches!(self.node(), Node::Fork(_)) && next.0 >> 62 == self.0 >> 62).then_some(next)
    }
}

/// What a block has: a key and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content<'b> {
    /// The key.
    pub key: &'b [u8],
    /// The value.
    pub value: &'b [u8],
}

/// Encodes what a client writes to the block of a live slot, from [`AT_IMAGE`] on.
pub fn encode(slot: Slot, hash: Hash, content: Content<'_>, image: &mut Vec<u64>) {
    let Content { key, value } = content;
    let lengths = (key.len() as u64) << 16 | value.len() as u64;
    image.clear();
    image.extend([slot.to_bits(), hash.to_bits(), lengths]);
    for part in [key, value] {
        let (words, rest) = part.as_chunks::<8>();
        image.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            image.push(u64::from_le_bytes(last));
        }
    }
    image[2] |= u64::from(crc32c::crc32c(image.as_bytes())) << 32;
}

/// Decodes a block that was READ from [`AT_IMAGE`] on. `None` if the block is not the one of this
/// live slot, or is torn.
#[must_use]
pub fn decode(slot: Slot, image: &[u64]) -> Option<(Hash, Content<'_>)> {
    let [word, hash, lengths, content @ ..] = image else { return None };
    let (key_bytes, value_bytes) = ((lengths >> 16) as usize & 0xffff, *lengths as usize & 0xffff);
    let words = key_bytes.div_ceil(8) + value_bytes.div_ceil(8);
    if *word != slot.to_bits() || words > content.len() {
        return None;
    }
    let check = crc32c::crc32c([*word, *hash, lengths & 0xffff_ffff].as_bytes());
    if crc32c::crc32c_append(check, content[..words].as_bytes()) != (lengths >> 32) as u32 {
        return None;
    }
    let (key, value) = content[..words].as_bytes().split_at(key_bytes.next_multiple_of(8));
    Some((Hash::from_bits(*hash), Content { key: &key[..key_bytes], value: &value[..value_bytes] }))
}

/// The sizes of an extent, as the catalog has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The number of groups of an array.
    pub groups: u64,
    /// The number of roots, which is a power of two. Only extent 0 has any.
    pub roots: u64,
    /// Whether blocks have marks.
    pub marks: bool,
    /// The number of units.
    pub units: u64,
}

impl Geometry {
    /// Returns the geometry of an extent that is in the catalog.
    #[must_use]
    pub fn of(spec: &TableSpec) -> Geometry {
        Geometry { groups: spec.buckets, roots: spec.indirect / 2, marks: spec.indirect % 2 == 1, units: spec.slots }
    }

    /// Returns the number by which the catalog knows roots and marks.
    #[must_use]
    pub fn indirect(&self) -> u64 {
        self.roots * 2 + u64::from(self.marks)
    }

    /// Returns the offset of a root's object.
    #[inline]
    #[must_use]
    pub fn root_at(&self, root: u64) -> u64 {
        AT_ROOTS + root * OBJECT_BYTES
    }

    /// Returns the offset of the first unit.
    #[inline]
    #[must_use]
    pub fn units_at(&self) -> u64 {
        self.root_at(self.roots).next_multiple_of(UNIT_BYTES)
    }

    /// Returns the number of slots of an array.
    #[must_use]
    pub fn array_slots(&self) -> usize {
        self.groups as usize * GROUP_SLOTS
    }

    /// Returns the units of an array.
    #[must_use]
    pub fn array_units(&self) -> u64 {
        (self.array_slots() as u64 * 8).div_ceil(UNIT_BYTES)
    }

    /// Returns the largest number of units that a client ever needs one behind the other.
    #[must_use]
    pub fn units_together_max(&self) -> u64 {
        self.array_units().max(CLASS_UNITS[CLASSES - 1].into())
    }

    /// Returns the offset of the first block of a class that was returned.
    #[must_use]
    pub fn returned_at(class: Class) -> u64 {
        AT_RETURNED + class.number() as u64 * 8
    }
}

impl Index for Geometry {
    fn buckets(&self) -> Buckets {
        Buckets { main: 0, overflow: 0, bytes: UNIT_BYTES, overflow_bytes: UNIT_BYTES, first: self.units_at() }
    }

    fn bytes(&self) -> u64 {
        self.units_at().saturating_add(self.units.saturating_mul(UNIT_BYTES))
    }

    fn slots_in_all(&self) -> u64 {
        self.units
    }

    fn lines_of_records(&self) -> Range<u64> {
        0..0
    }

    fn slot_behind(&self, _at: u64) -> Option<u64> {
        None
    }
}
