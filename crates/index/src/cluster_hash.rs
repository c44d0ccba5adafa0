//! DrTM's cluster-chaining hash table (Chen et al., TOCS 2017, section 6.2), as it lies in a shard.
//!
//! ```text
//! shard
//! +0     header, 128 bytes: floor u64, slots used u64, indirect buckets used u64
//! +128   main buckets, then indirect buckets, 128 bytes each
//! then   slots of records (`remora_sync`: decoupled from the index, so a location can be cached)
//!
//! bucket: eight of
//! +0  | type : 2 | incarnation : 14 | offset : 48 |     bit 63 .. bit 0
//! +8  key u64: the key itself up to 8 bytes, else its hash
//!
//! type 0 = empty, 1 = entry (offset of a record's slot), 2 = link (offset of an indirect bucket; only in the last slot)
//! ```
//!
//! The text gives Entry and Header their codes both ways round; these are ours. Its fourth type, a link into the client's
//! cache, is not needed: our cache is addressed by bucket.
//!
//! A lookup reads the main bucket of its key, then as many indirect buckets as the chain has: about one READ, since a
//! bucket has eight slots. Nothing is ever moved between buckets except when a full main bucket gets its first link, so a
//! location stays good as long as its key lives.
//!
//! Made with concurrent inserts in mind: an inserter claims the first empty slot of a chain by CAS on its first word, so
//! two inserters of one key meet at the same word, and the loser looks again. The header's *floor* is raised to a
//! tombstone's version before its slot is freed, and an insert installs a version above it, so versions never restart.

use remora_memory::Pointer;
use remora_memory::ShardId;

/// Bytes of a bucket.
pub const BUCKET_BYTES: usize = 128;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = BUCKET_BYTES / 8;
/// Slots of a bucket.
pub const BUCKET_SLOTS: usize = 8;
/// Bytes of a shard's header.
pub const HEADER_BYTES: u64 = 128;
/// Where the header counts the slots that are used.
pub const HEADER_SLOTS_WORD: usize = 1;
/// Where the header counts the indirect buckets that are used.
pub const HEADER_INDIRECT_WORD: usize = 2;

const TYPE_SHIFT: u32 = 62;
const INCARNATION_SHIFT: u32 = 48;
const OFFSET_MASK: u64 = (1 << INCARNATION_SHIFT) - 1;
const ENTRY: u64 = 1;
const LINK: u64 = 2;

/// Share of main slots that are full when a table holds what it was created for.
const OCCUPANCY: f64 = 0.75;

/// Sizes and places within a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Main buckets.
    pub buckets: u64,
    /// Indirect buckets, shared by all main buckets.
    pub indirect: u64,
    /// Record slots.
    pub slots: u64,
    /// Bytes of a record slot.
    pub slot_bytes: u64,
}

impl Geometry {
    /// For a shard of so many rows.
    #[must_use]
    pub fn for_rows(rows: u64, slot_bytes: u32) -> Geometry {
        let buckets = ((rows as f64 / (BUCKET_SLOTS as f64 * OCCUPANCY)).ceil() as u64).max(1);
        // At this occupancy 15 % of the main buckets overflow (Poisson with mean 6); a quarter is more than chance gives.
        let indirect = buckets / 4 + 16;
        Geometry { buckets, indirect, slots: rows, slot_bytes: slot_bytes.into() }
    }

    /// Offset of a bucket; the indirect ones are numbered after the main ones.
    #[inline]
    #[must_use]
    pub fn bucket_at(&self, number: u64) -> u64 {
        HEADER_BYTES + number * BUCKET_BYTES as u64
    }

    /// Number of the bucket at an offset, if there is one.
    #[inline]
    #[must_use]
    pub fn bucket_number(&self, offset: u64) -> Option<u64> {
        let number = offset.checked_sub(HEADER_BYTES)? / BUCKET_BYTES as u64;
        (number < self.buckets + self.indirect && self.bucket_at(number) == offset).then_some(number)
    }

    /// Offset of a record slot.
    #[must_use]
    pub fn slot_at(&self, number: u64) -> u64 {
        self.bucket_at(self.buckets + self.indirect) + number * self.slot_bytes
    }

    /// Bytes of the shard.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// The main bucket of a key: by multiplication, so that other bits of the hash are free to choose the shard.
    #[inline]
    #[must_use]
    pub fn main_bucket(&self, scatter: u64) -> u64 {
        ((u128::from(scatter << 16) * u128::from(self.buckets)) >> 64) as u64
    }
}

/// Where a record is, as an index said. It may have gone: the record itself tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The record's slot.
    pub pointer: Pointer,
    /// Lossy incarnation of the key's life.
    pub incarnation: u16,
}

/// What a bucket says of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// A record that may be its own, from this slot of the bucket.
    Entry {
        /// Where.
        location: Location,
        /// The slot of the bucket: if the record is another key's, search on after it.
        slot: usize,
    },
    /// Nothing here: look into the indirect bucket at this offset.
    Link(u64),
    /// The key is not in the table.
    Absent,
}

/// Searches a bucket for a key's word, from a slot on. `load` gives the bucket's words, as they are needed.
#[inline]
#[must_use]
pub fn search(shard: ShardId, load: impl Fn(usize) -> u64, word: u64, from_slot: usize) -> Probe {
    for slot in from_slot..BUCKET_SLOTS {
        if load(slot * 2 + 1) == word {
            let entry = load(slot * 2);
            if entry >> TYPE_SHIFT == ENTRY {
                return Probe::Entry { location: location(shard, entry), slot };
            }
        }
    }
    let last = load(BUCKET_WORDS - 2);
    if last >> TYPE_SHIFT == LINK { Probe::Link(last & OFFSET_MASK) } else { Probe::Absent }
}

#[inline]
fn location(shard: ShardId, word: u64) -> Location {
    let incarnation = (word >> INCARNATION_SHIFT) as u16 & remora_sync::INCARNATION_MASK;
    Location { pointer: Pointer::new(shard, word & OFFSET_MASK), incarnation }
}

/// The first word of a slot that names a record.
#[inline]
#[must_use]
pub fn entry_word(location: Location) -> u64 {
    let incarnation = u64::from(location.incarnation & remora_sync::INCARNATION_MASK);
    ENTRY << TYPE_SHIFT | incarnation << INCARNATION_SHIFT | location.pointer.offset()
}

/// The first word of a slot that links to an indirect bucket.
#[inline]
#[must_use]
pub fn link_word(offset: u64) -> u64 {
    LINK << TYPE_SHIFT | offset & OFFSET_MASK
}

/// Whether a slot's first word is empty.
#[inline]
#[must_use]
pub fn is_empty(word: u64) -> bool {
    word >> TYPE_SHIFT == 0
}
