//! DrTM's cluster-chaining hash table (Chen et al., TOCS 2017, section 6.2), as it lies in a shard.
//!
//! ```text
//! shard
//! +0     header, 128 bytes: floor u64, record slots used u64, indirect buckets used u64, gone u64
//! +128   main buckets, then indirect buckets, 128 bytes each
//! then   slots of records (`remora_record`: decoupled from the index, so a location can be cached)
//!
//! bucket: seven pairs
//! +0     | type : 2 | incarnation : 14 | offset : 48 |     bit 63 .. bit 0
//! +8     key u64: the key itself up to 8 bytes, else its hash
//! then
//! +112   link: 0, or type 2 and the offset of the next indirect bucket
//! +120   reserved, 0
//!
//! type 0 = empty, 1 = entry (the offset is that of a record's slot), 2 = link
//! ```
//!
//! The text gives the types Entry and Header different codes in two places; the codes here are our
//! own. The text's fourth type, a link into the client's cache, is not needed, because our cache is
//! addressed by bucket. In the text, the last slot of a bucket becomes a link when the bucket
//! overflows, and its entry moves. Here the link has its own place, so **nothing is ever moved**: a
//! location stays valid as long as its key lives, and a chain grows only at its end.
//!
//! A lookup reads the main bucket of its key, and then the indirect buckets of the chain. Since a
//! bucket has seven pairs, this takes about one READ.
//!
//! # Inserts and deletes
//!
//! Clients read everything by one-sided READs. An insert is *prepared* by the CPU of the primary's
//! node ([`crate::Host`]): one thread, the *host*, chooses the pair and the record's slot. So there
//! is never more than one entry for a key, and two inserts of one key meet at the same record. The
//! host links a record that is *prepared*: the key is absent, but the record has a version and a
//! lock word. From there on, an insert is an ordinary update, and the absence of the key can be
//! validated like a value. A delete is an ordinary update, too. The holder of the record's lock
//! installs a tombstone, then unlinks the entry, then unlocks.
//!
//! # The writers of each word
//!
//! | word | writer, at the primary | when |
//! | --- | --- | --- |
//! | header, links | the host | always; a link once, from 0 |
//! | pair | the host | while it is empty: links it, key word first, then the entry |
//! | pair: entry | the holder of the lock of the record that it links, or, with landing clocks, the host | to unlink it, after the tombstone |
//! | record from its version on | the host | while no pair links it |
//! | record from its version on | the holder of its lock | while a pair links it |
//! | lock word | the client that the table's discipline names | always; preparing and undoing never do |
//!
//! To *undo* a prepared insert, the host acts for the holder of the record's lock, which keeps the
//! lock until it has the answer. At a backup, only the applier writes.
//!
//! With landing clocks (`Discipline::unlinks_by_cpu`) a delete installs its tombstone, unlocks, and
//! asks the host to free the slot. The host unlinks it then. Before that, it raises the header's
//! word *gone* to the time of the delete, which the tombstone has. So if a client has not found a
//! key, and then reads *gone*, no delete of the key is later than that. A client that finds an
//! unlocked tombstone linked asks the host to free it, because the client that has made it may have
//! died. A prepared record has *gone* as its time.
//!
//! So every word has one writer at a time. The hand-over is itself a word that the next writer has
//! seen: "empty" in the entry, or a lock. So a transaction that deletes learns which pair links the
//! record from a READ under the lock (after the CAS, in the same round). A cached location could be
//! the one of an earlier life in the same slot.
//!
//! 1. *An entry names a whole record.* The host writes the image, then the key word, then the
//!    entry; all stores are Release. A client that finds the entry finds the record of that life,
//!    or of a later one.
//! 2. *An empty pair's record is a whole tombstone, or was never committed.* The WRITEs of a delete
//!    are ordered: tombstone, entry, lock. So if the host finds a pair empty, it also sees the
//!    version with which the pair's last life ended.
//! 3. *The key of a linked record never changes,* so the host compares keys without any lock or
//!    check.
//! 4. *A pair that is read torn does no harm.* A READ can bring the entry of one life and the key
//!    word of another. The record says to which key it belongs. If a key was missed this way, it
//!    has been linked after the READ began, so [`still_absent`] finds it.
//! 5. *A record that is read while it is prepared or undone may look torn,* as the host holds no
//!    lock on it. But it changes from a life that has ended (or from none) to one that has not
//!    begun, and no mixture of both says "present". A tombstone does not show that a key is absent:
//!    the client looks into the bucket again.
//!
//! The host asserts rule 1. Rules 2 to 5 are about what clients write at the same time:
//! `crates/index/tests/host` checks them.
//!
//! # Versions never restart
//!
//! Versions never restart, neither of a key nor of a slot, through all its lives. The read schemes,
//! the appliers and validation by version need this. The version u that a prepare gives is above
//! three others: the header's *floor*, the version of the slot that it takes, and the versions of
//! the records which the empty pairs of the chain retain for this key. Then u becomes the floor.
//! For this, an empty pair keeps the offset and the key word of its last life. When the host takes
//! the pair for another key, it first raises the floor above the version that the pair retained. So
//! the floor covers what a pair forgets. u is odd, because nothing was committed. The commit
//! installs u + 1.
//!
//! # Backups, in any order
//!
//! A log entry has the image of the record, and [patches](crate::Patch) of the index: the pair, and
//! all links on the way to it. Rings are applied in any order, so a pair must say which of two
//! states is the later one. Its *incarnation* grows by one with every link and every unlink, also
//! across keys. Incarnations are compared as serial numbers: half of the range is ahead of a
//! number, and half is behind. The incarnation is odd as long as the pair is linked, and the record
//! has the same one. A link needs no order, because it has only one value. A prepare that is undone
//! has restored pair and record to the byte, so backups lack nothing of it. There is one exception:
//! an indirect bucket that the prepare has linked stays, empty, until an insert that uses it brings
//! the link to the backups.

use std::ops::Range;

use remora_node::{Pointer, ShardId, TableSpec};
use remora_record::INCARNATION_MASK;

use crate::buckets::{Buckets, Index, SHARD_HEADER_BYTES};

/// Bytes of a bucket.
pub const BUCKET_BYTES: usize = 128;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = BUCKET_BYTES / 8;
/// Pairs of a bucket that can hold an entry.
pub const BUCKET_SLOTS: usize = 7;
/// The word of a bucket that links to the next one.
pub const LINK_WORD: usize = 2 * BUCKET_SLOTS;
/// Bytes of a shard's header.
pub const HEADER_BYTES: u64 = SHARD_HEADER_BYTES;
/// Word of the header that has the floor of versions.
pub const HEADER_FLOOR_WORD: usize = 0;
/// Word of the header that counts the record slots in use.
pub const HEADER_SLOTS_WORD: usize = 1;
/// Word of the header that counts the indirect buckets in use.
pub const HEADER_INDIRECT_WORD: usize = 2;
/// Word of the header that bounds the times of the deletes whose keys the index does not have any
/// more.
pub const HEADER_GONE_WORD: usize = 3;

const _: () = assert!(LINK_WORD + 2 == BUCKET_WORDS);

const PAIR_BYTES: u64 = 16;
const LINK_AT: u64 = LINK_WORD as u64 * 8;
const TYPE_SHIFT: u32 = 62;
const INCARNATION_SHIFT: u32 = 48;
const OFFSET_MASK: u64 = (1 << INCARNATION_SHIFT) - 1;
const EMPTY: u64 = 0;
const ENTRY: u64 = 1;
const LINK: u64 = 2;

/// Share of the main buckets' pairs that are linked when a table has the number of rows for which
/// it was created.
const OCCUPANCY: f64 = 0.75;

/// The sizes and places of an index and its records within a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of main buckets.
    pub buckets: u64,
    /// Number of indirect buckets, which all main buckets share.
    pub indirect: u64,
    /// Number of record slots.
    pub slots: u64,
    /// Bytes of a record slot.
    pub slot_bytes: u64,
}

impl Geometry {
    /// Returns the geometry of a shard for `rows` rows.
    #[must_use]
    pub fn for_rows(rows: u64, slot_bytes: u32) -> Geometry {
        let buckets = ((rows as f64 / (BUCKET_SLOTS as f64 * OCCUPANCY)).ceil() as u64).max(1);
        // At this occupancy 16 % of the main buckets overflow (Poisson with mean 5.25). A quarter
        // is more than chance gives.
        let indirect = buckets / 4 + 16;
        Geometry { buckets, indirect, slots: rows, slot_bytes: slot_bytes.into() }
    }

    /// Returns the geometry of a table's shards.
    #[must_use]
    pub fn of(spec: &TableSpec) -> Geometry {
        Geometry {
            buckets: spec.buckets,
            indirect: spec.indirect,
            slots: spec.slots,
            slot_bytes: spec.layout.slot_bytes.into(),
        }
    }

    /// Returns the offset of a bucket. The indirect buckets are numbered after the main ones.
    #[inline]
    #[must_use]
    pub fn bucket_at(&self, number: u64) -> u64 {
        Index::buckets(self).at(number)
    }

    /// Returns the number of the bucket that begins at an offset, if there is one.
    #[inline]
    #[must_use]
    pub fn bucket_number(&self, offset: u64) -> Option<u64> {
        Index::buckets(self).number(offset)
    }

    /// Returns the offset of a pair of a bucket.
    #[inline]
    #[must_use]
    pub fn pair_at(&self, bucket: u64, slot: usize) -> u64 {
        self.bucket_at(bucket) + slot as u64 * PAIR_BYTES
    }

    /// Returns the offset of a bucket's link.
    #[inline]
    #[must_use]
    pub fn link_at(&self, bucket: u64) -> u64 {
        self.bucket_at(bucket) + LINK_AT
    }

    /// Returns whether a pair that can hold an entry is at an offset. The offset may be any number.
    #[must_use]
    pub fn is_pair(&self, offset: u64) -> bool {
        self.within_bucket(offset).is_some_and(|at| at < LINK_AT && at.is_multiple_of(PAIR_BYTES))
    }

    /// Returns whether a bucket's link is at an offset. The offset may be any number.
    #[must_use]
    pub fn is_link(&self, offset: u64) -> bool {
        self.within_bucket(offset) == Some(LINK_AT)
    }

    fn within_bucket(&self, offset: u64) -> Option<u64> {
        let within = offset.checked_sub(HEADER_BYTES)? % BUCKET_BYTES as u64;
        self.bucket_number(offset - within).map(|_| within)
    }

    /// Returns the offset of a record slot.
    #[must_use]
    pub fn slot_at(&self, number: u64) -> u64 {
        self.bucket_at(self.buckets + self.indirect) + number * self.slot_bytes
    }

    /// Returns whether a record slot is at an offset. The offset may be any number.
    #[must_use]
    pub fn is_slot(&self, offset: u64) -> bool {
        let within = offset.checked_sub(self.slot_at(0));
        within.is_some_and(|at| at.is_multiple_of(self.slot_bytes) && at < self.slots.saturating_mul(self.slot_bytes))
    }

    /// Returns the bytes of the shard.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// Returns the bytes of the shard, for sizes that are not trusted. Returns `None` if they
    /// overflow.
    #[must_use]
    pub fn checked_bytes(&self) -> Option<u64> {
        let buckets = self.buckets.checked_add(self.indirect)?.checked_mul(BUCKET_BYTES as u64)?;
        self.slots.checked_mul(self.slot_bytes)?.checked_add(buckets)?.checked_add(HEADER_BYTES)
    }

    /// Returns the main bucket of a key, from the hash `scatter`. It uses a multiplication, so that
    /// other bits of the hash are free to choose the shard.
    #[inline]
    #[must_use]
    pub fn main_bucket(&self, scatter: u64) -> u64 {
        Index::buckets(self).home(scatter)
    }
}

impl Index for Geometry {
    #[inline]
    fn buckets(&self) -> Buckets {
        let (main, overflow, bytes) = (self.buckets, self.indirect, BUCKET_BYTES as u64);
        Buckets { main, overflow, bytes, overflow_bytes: bytes, first: HEADER_BYTES }
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn slots_in_all(&self) -> u64 {
        self.slots
    }

    fn lines_of_records(&self) -> Range<u64> {
        self.slot_at(0)..self.bytes()
    }

    fn slot_behind(&self, at: u64) -> Option<u64> {
        let number = at.saturating_sub(self.slot_at(0)).div_ceil(self.slot_bytes);
        (number < self.slots).then(|| self.slot_at(number))
    }
}

/// The location of a record, as an index has named it. The record may have been deleted since,
/// which the record itself shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Location {
    /// The record's slot.
    pub pointer: Pointer,
    /// The lower bits of the incarnation of the key's life.
    pub incarnation: u16,
}

/// The result of a search for a key in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// The bucket names a record that may be the key's.
    Entry {
        /// The location of the record.
        location: Location,
        /// The number of the pair that names the record. If the record is another key's, search on
        /// after this pair.
        slot: usize,
    },
    /// The bucket does not name the key. Search on in the indirect bucket at this offset.
    Link(u64),
    /// The key is not in the table.
    Absent,
}

/// Searches a bucket for a key's word, from the pair `from_slot` on. `load` returns the bucket's
/// words, one by one, as they are needed.
#[inline]
#[must_use]
pub fn search(shard: ShardId, load: impl Fn(usize) -> u64, word: u64, from_slot: usize) -> Probe {
    for slot in from_slot..BUCKET_SLOTS {
        if load(slot * 2 + 1) == word {
            let entry = load(slot * 2);
            if is_entry(entry) {
                return Probe::Entry { location: location(shard, entry), slot };
            }
        }
    }
    linked_bucket(load(LINK_WORD)).map_or(Probe::Absent, Probe::Link)
}

/// Returns whether a key that was not in a bucket is still not there. `before` and `now` are two
/// READs of the bucket. The pairs with the key's word, and the link, must be the same in both. Such
/// a pair may belong to another key, or to a record that was only prepared.
///
/// This validates the bucket, and not the records that its entries name. Those are validated by
/// their versions.
#[must_use]
pub fn still_absent(before: &[u64], now: &[u64], word: u64) -> bool {
    let (Some(before), Some(now)) = (before.first_chunk::<BUCKET_WORDS>(), now.first_chunk::<BUCKET_WORDS>()) else {
        return false;
    };
    let entry = |words: &[u64; BUCKET_WORDS], slot: usize| {
        let [entry, key] = [words[slot * 2], words[slot * 2 + 1]];
        (key == word && is_entry(entry)).then_some(entry)
    };
    before[LINK_WORD] == now[LINK_WORD] && (0..BUCKET_SLOTS).all(|slot| entry(before, slot) == entry(now, slot))
}

/// Returns the location that an entry of a shard names.
#[inline]
#[must_use]
pub fn location(shard: ShardId, entry: u64) -> Location {
    Location { pointer: Pointer::new(shard, offset(entry)), incarnation: incarnation(entry) }
}

/// Returns the entry that names a location.
#[inline]
#[must_use]
pub fn entry_word(location: Location) -> u64 {
    pack(ENTRY, location.incarnation, location.pointer.offset())
}

/// Returns the entry by which an insert replaces an empty word. It has the next incarnation and the
/// offset of the record's slot.
#[inline]
#[must_use]
pub fn linked_over(empty: u64, offset: u64) -> u64 {
    pack(ENTRY, incarnation(empty) + 1, offset)
}

/// Returns the word by which a delete replaces an entry. It is empty, and has the next incarnation
/// and the same offset.
#[inline]
#[must_use]
pub fn unlinked(entry: u64) -> u64 {
    pack(EMPTY, incarnation(entry) + 1, offset(entry))
}

/// Returns the word that links to the indirect bucket at an offset.
#[inline]
#[must_use]
pub fn link_word(offset: u64) -> u64 {
    pack(LINK, 0, offset)
}

/// Returns the offset of the bucket that a link word names, if it names one.
#[inline]
#[must_use]
pub fn linked_bucket(word: u64) -> Option<u64> {
    (word >> TYPE_SHIFT == LINK).then_some(offset(word))
}

/// Returns whether a pair's first word is an entry.
#[inline]
#[must_use]
pub fn is_entry(word: u64) -> bool {
    word >> TYPE_SHIFT == ENTRY
}

/// Returns whether a pair's first word is empty.
#[inline]
#[must_use]
pub fn is_empty(word: u64) -> bool {
    word >> TYPE_SHIFT == EMPTY
}

/// Returns the offset in a pair's first word. An empty word has the last offset that the pair had.
#[inline]
#[must_use]
pub fn offset(word: u64) -> u64 {
    word & OFFSET_MASK
}

/// Returns the incarnation in a pair's first word.
#[inline]
#[must_use]
pub fn incarnation(word: u64) -> u16 {
    (word >> INCARNATION_SHIFT) as u16 & INCARNATION_MASK
}

/// Returns whether a pair had the first word `word` before the word `than`. Their incarnations are
/// compared as serial numbers: half of the range is ahead of each. The word 0, of a pair that was
/// never used, comes before all others. A replica that has just begun to join has such pairs.
#[inline]
#[must_use]
pub fn is_earlier(word: u64, than: u64) -> bool {
    let ahead = incarnation(word).wrapping_sub(incarnation(than)) & INCARNATION_MASK;
    than != 0 && (word == 0 || ahead >= 1 << (INCARNATION_MASK.count_ones() - 1))
}

#[inline]
fn pack(code: u64, incarnation: u16, offset: u64) -> u64 {
    code << TYPE_SHIFT | u64::from(incarnation & INCARNATION_MASK) << INCARNATION_SHIFT | offset & OFFSET_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GEOMETRY: Geometry = Geometry { buckets: 3, indirect: 2, slots: 4, slot_bytes: 64 };

    #[test]
    fn golden_words() {
        let location = Location { pointer: Pointer::new(ShardId(9), 0x1240), incarnation: 3 };
        assert_eq!(entry_word(location), 0x4003_0000_0000_1240);
        assert_eq!(unlinked(entry_word(location)), 0x0004_0000_0000_1240);
        assert_eq!(linked_over(0x0004_0000_0000_1240, 0x80), 0x4005_0000_0000_0080);
        assert_eq!(unlinked(0x7fff_0000_0000_0080), 0x80, "incarnations wrap");
        assert_eq!(link_word(0x180), 0x8000_0000_0000_0180);
        assert_eq!(super::location(ShardId(9), entry_word(location)), location);
    }

    #[test]
    fn every_word_of_a_shard_is_one_thing() {
        let count =
            |is: fn(&Geometry, u64) -> bool| (0..GEOMETRY.bytes() + 500).filter(|at| is(&GEOMETRY, *at)).count();
        assert_eq!(count(Geometry::is_pair), 5 * BUCKET_SLOTS);
        assert_eq!(count(Geometry::is_link), 5);
        assert_eq!(count(Geometry::is_slot), 4);
        assert!(GEOMETRY.is_pair(GEOMETRY.pair_at(4, 6)) && !GEOMETRY.is_pair(GEOMETRY.pair_at(4, 7)));
        assert!(GEOMETRY.is_link(GEOMETRY.link_at(4)) && GEOMETRY.is_slot(GEOMETRY.slot_at(3)));
    }

    #[test]
    fn a_retained_key_is_not_found() {
        let mut words = [0; BUCKET_WORDS];
        let entry = linked_over(0, 0x1000);
        words[12..14].copy_from_slice(&[entry, 7]);
        let probe = |words: [u64; BUCKET_WORDS]| search(ShardId(0), |index| words[index], 7, 0);
        assert_eq!(probe(words), Probe::Entry { location: location(ShardId(0), entry), slot: 6 });
        words[12] = unlinked(entry);
        assert_eq!(probe(words), Probe::Absent);
        words[LINK_WORD] = link_word(256);
        assert_eq!(probe(words), Probe::Link(256));
    }

    #[test]
    fn absence_ends_with_an_entry_or_a_link() {
        let mut before = [0; BUCKET_WORDS];
        before[..4].copy_from_slice(&[linked_over(0, 0x1000), 7, linked_over(0, 0x2000), 8]);
        let now = |index: usize, word: u64| {
            let mut now = before;
            now[index] = word;
            still_absent(&before, &now, 7)
        };
        assert!(now(0, before[0]), "nothing has changed");
        assert!(now(2, unlinked(before[2])) && now(4, linked_over(0, 0x3000)), "other keys come and go");
        assert!(now(5, 7), "a key word without an entry");
        assert!(!now(0, unlinked(before[0])) && !now(0, linked_over(unlinked(before[0]), 0x1000)), "another life");
        assert!(!now(3, 7), "the key's word has an entry");
        assert!(!now(LINK_WORD, link_word(512)), "the chain has grown");
        assert!(!still_absent(&before, &before[..8], 7), "half a bucket says nothing");
    }

    proptest! {
        #[test]
        fn any_offset_may_be_asked_for(at in any::<u64>(), slot_bytes in 1u64..9) {
            let geometry = Geometry { slot_bytes: slot_bytes * 64, ..GEOMETRY };
            let is = [geometry.is_pair(at), geometry.is_link(at), geometry.is_slot(at)];
            prop_assert!(is.iter().filter(|is| **is).count() <= 1);
        }
    }
}
