//! The slot of a record, and how one READ of it is checked.
//!
//! ```text
//! slot: whole 64-byte lines, 64-byte aligned
//! +0   lock      u64   see `lock`                     CASed only
//! +8   version   u64   see `version`                  written by the lock's holder,
//!                                                     with all that follows
//! +16  meta      u64   | checksum : 32 | length : 16 | incarnation : 14 |
//!                      | deleted : 1 | present : 1 |
//! +24  key, then value, each in whole words; with line versions every further line is
//!      version u64, 56 bytes of key and value
//! ```
//!
//! `length` is the length of the value in bytes. `incarnation` is the lossy incarnation of the
//! key's life in this slot. The index and its caches hold the same 14 bits, so the record itself
//! shows that a location is stale. The incarnation wraps, so the key in the record is always
//! compared as well.
//!
//! ```text
//! deleted present
//!    0       0     never used (version 0, all zero), or prepared: linked by an inserter that has
//!                  not committed
//!    0       1     present
//!    1       -     a tombstone: unlinked. No transaction locks its version. It proves nothing
//!                  about its key, which may have been inserted again elsewhere
//! ```
//!
//! An *image* is what a WRITE installs: everything from the version on, always to the end of the
//! largest value. So replicas that skip a version are still byte-identical.
//!
//! # When a value may be read
//!
//! Bytes from another machine are a [`FetchedRecord`] until [`FetchedRecord::check`] has found that
//! they are one state of the record. Only the [`StableRecord`] that it returns has accessors. With
//! single lines and line versions a record whose lock is held may be half written, so it is never
//! stable (see `remora_fabric::copy` for the other half of the argument). A checksum also shows
//! that a record is whole while it is locked and not written yet.
//!
//! Where records are installed in place ([`FetchedRecord::check_in_place`]) a record is stable if
//! it is visible and its lines belong together, locked or not.
//!
//! Stable does not mean current. A transaction can have committed while its write-back is still in
//! flight, and then it holds the lock. A reader that does not validate later must therefore also
//! see the lock free.

use remora_fabric::copy::{self, Word};
use remora_fabric::{LINE_BYTES, LINE_WORDS, WORD_BYTES};
use remora_memory::{Layout, MemoryError, ReadScheme};
use zerocopy::IntoBytes;

use crate::lock::LockWord;
use crate::version::Version;

const VERSION: usize = 1;
const META: usize = 2;
/// Words of a slot before key and value.
const HEADER_WORDS: usize = 3;
const FIRST_LINE_DATA: usize = LINE_WORDS - HEADER_WORDS;

/// Bytes of lock and version: what validation reads.
pub const VALIDATED_BYTES: usize = 2 * WORD_BYTES;
/// Where an image begins in its slot.
pub const IMAGE_AT: u64 = (VERSION * WORD_BYTES) as u64;

const PRESENT: u64 = 1;
const DELETED: u64 = 2;
const INCARNATION_SHIFT: u32 = 2;
/// The bits of a lossy incarnation.
pub const INCARNATION_MASK: u16 = (1 << 14) - 1;
const LENGTH_SHIFT: u32 = 16;
const CHECKSUM_SHIFT: u32 = 32;

/// Returns how many words a value of `bytes` bytes takes.
#[inline]
#[must_use]
pub fn value_words(bytes: usize) -> usize {
    bytes.div_ceil(WORD_BYTES)
}

/// Returns the layout of records with keys of `key_bytes` and values of at most `value_max` bytes.
/// Fails if a single-line record would be too long.
pub fn layout(key_bytes: usize, value_max: usize, scheme: ReadScheme) -> Result<Layout, MemoryError> {
    let data = key_bytes.div_ceil(WORD_BYTES) + value_words(value_max);
    let line_header = if scheme == ReadScheme::LineVersions { WORD_BYTES } else { 0 };
    let further = data.saturating_sub(FIRST_LINE_DATA).div_ceil(LINE_WORDS - line_header / WORD_BYTES);
    if scheme == ReadScheme::SingleLine && further > 0 {
        let (what, max) = ("bytes of key and value in a single-line record", (FIRST_LINE_DATA * WORD_BYTES) as u64);
        return Err(MemoryError::Limit { what, value: (data * WORD_BYTES) as u64, max });
    }
    Ok(Layout {
        key_bytes: key_bytes as u16,
        value_at: ((HEADER_WORDS + key_bytes.div_ceil(WORD_BYTES)) * WORD_BYTES) as u16,
        line_header: line_header as u16,
        value_max: value_max as u32,
        slot_bytes: ((1 + further) * LINE_BYTES) as u32,
        scheme,
    })
}

/// Returns the shape of a *structural record*: a word of an index that is changed like a record. It
/// has no key and one line.
#[must_use]
pub fn structural(scheme: ReadScheme) -> RecordShape {
    let scheme = if scheme == ReadScheme::LineVersions { ReadScheme::SingleLine } else { scheme };
    RecordShape { scheme, key_words: 0, value_max: WORD_BYTES, words: HEADER_WORDS + 1 }
}

/// What follows from a layout, computed once for each table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordShape {
    scheme: ReadScheme,
    key_words: usize,
    value_max: usize,
    /// Words of a slot that hold something.
    words: usize,
}

impl RecordShape {
    /// Computes the shape of records with this layout.
    #[must_use]
    pub fn of(layout: &Layout) -> RecordShape {
        let key_words = usize::from(layout.key_bytes).div_ceil(WORD_BYTES);
        let data = key_words + value_words(layout.value_max as usize);
        let mut shape =
            RecordShape { scheme: layout.scheme, key_words, value_max: layout.value_max as usize, words: HEADER_WORDS };
        if data > 0 {
            shape.words = shape.data_at(data - 1) + 1;
        }
        shape
    }

    /// Returns the number of bytes to READ for a whole record.
    #[inline]
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.words * WORD_BYTES
    }

    /// Returns the number of words of a key.
    #[inline]
    #[must_use]
    pub fn key_words(&self) -> usize {
        self.key_words
    }

    /// Returns the places of the key's words in the slot. The node's own CPU may read them in any
    /// record that is linked, because they do not change as long as it is linked.
    #[inline]
    pub fn key_places(&self) -> impl Iterator<Item = usize> {
        (0..self.key_words).map(|index| self.data_at(index))
    }

    /// Returns the number of words of an image.
    #[inline]
    #[must_use]
    pub fn image_words(&self) -> usize {
        self.words - VERSION
    }

    /// Returns the number of bytes of the largest value.
    #[must_use]
    pub fn value_max(&self) -> usize {
        self.value_max
    }

    /// Returns the place in the slot of a word of key and value.
    #[inline]
    fn data_at(&self, index: usize) -> usize {
        if self.scheme != ReadScheme::LineVersions || index < FIRST_LINE_DATA {
            return HEADER_WORDS + index;
        }
        let further = index - FIRST_LINE_DATA;
        (1 + further / (LINE_WORDS - 1)) * LINE_WORDS + 1 + further % (LINE_WORDS - 1)
    }

    /// Installs an image by the CPU of the record's node, which holds its lock. `slot` begins with
    /// the lock word.
    ///
    /// A NIC may READ a line between two stores to it, and the lines of a record in any order. So
    /// each further line is marked as invisible before its data changes. It gets its version when
    /// the data is whole, as in FaRM (Dragojević et al., NSDI 2014, section 4). The lock marks the
    /// first line, and a checksum needs no order.
    pub fn install<W: Word>(&self, slot: &[W], image: &[u64]) {
        debug_assert_eq!(image.len(), self.image_words());
        if self.scheme != ReadScheme::LineVersions {
            return copy::write(slot, VERSION, image);
        }
        let (first, further) = image.split_at(image.len().min(LINE_WORDS - VERSION));
        let further = || (LINE_WORDS..).step_by(LINE_WORDS).zip(further.chunks(LINE_WORDS));
        for (at, line) in further() {
            copy::write(slot, at, &[line[0] | Version::INVISIBLE]);
        }
        copy::write(slot, VERSION, first);
        for (at, line) in further() {
            copy::write(slot, at + 1, &line[1..]);
            copy::write(slot, at, &line[..1]);
        }
    }

    /// Gives an image another version: what a rollback installs.
    pub fn stamp(&self, image: &mut [u64], version: Version) {
        debug_assert_eq!(image.len(), self.image_words());
        let Some(first) = image.first_mut() else { return };
        *first = version.to_bits();
        if self.scheme == ReadScheme::LineVersions {
            for line in (LINE_WORDS..self.words).step_by(LINE_WORDS) {
                image[line - VERSION] = version.to_bits();
            }
        }
        if self.scheme == ReadScheme::Checksum {
            image[META - VERSION] &= u64::from(u32::MAX);
            image[META - VERSION] |= u64::from(crc32c::crc32c(image.as_bytes())) << CHECKSUM_SHIFT;
        }
    }

    /// Appends the image of a record to `out`. The value has been checked against the table's
    /// maximum.
    #[inline]
    pub fn encode(&self, version: Version, life: Life, key: &[u64], value: &[u8], out: &mut Vec<u64>) {
        debug_assert!(key.len() == self.key_words && value.len() <= self.value_max);
        let start = out.len();
        out.resize(start + self.image_words(), 0);
        let image = &mut out[start..];
        let flags = match life {
            Life::Present { .. } => PRESENT,
            Life::Prepared { .. } => 0,
            Life::Deleted { .. } => DELETED,
        };
        let incarnation = life.incarnation();
        image[0] = version.to_bits();
        image[META - VERSION] = flags
            | u64::from(incarnation & INCARNATION_MASK) << INCARNATION_SHIFT
            | (value.len() as u64) << LENGTH_SHIFT;
        if self.scheme == ReadScheme::LineVersions {
            for line in (LINE_WORDS..self.words).step_by(LINE_WORDS) {
                image[line - VERSION] = version.to_bits();
            }
            for (index, word) in key.iter().enumerate() {
                image[self.data_at(index) - VERSION] = *word;
            }
            for (index, bytes) in value.chunks(WORD_BYTES).enumerate() {
                image[self.data_at(self.key_words + index) - VERSION].as_mut_bytes()[..bytes.len()]
                    .copy_from_slice(bytes);
            }
        } else {
            let data = &mut image[HEADER_WORDS - VERSION..];
            data[..key.len()].copy_from_slice(key);
            data[key.len()..].as_mut_bytes()[..value.len()].copy_from_slice(value);
        }
        if self.scheme == ReadScheme::Checksum {
            image[META - VERSION] |= u64::from(crc32c::crc32c(image.as_bytes())) << CHECKSUM_SHIFT;
        }
    }
}

/// Whether a slot's key exists, and in which life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The key exists.
    Present {
        /// Lossy incarnation.
        incarnation: u16,
    },
    /// An inserter has linked the slot and has not committed.
    Prepared {
        /// Lossy incarnation.
        incarnation: u16,
    },
    /// The key was deleted. The slot is a tombstone: unlinked, but its version still counts.
    Deleted {
        /// Lossy incarnation.
        incarnation: u16,
    },
}

impl Life {
    /// Reads the life from the first three words of a slot. `None` if the slot was never used.
    #[inline]
    #[must_use]
    pub fn of(words: &[u64; HEADER_WORDS]) -> Option<Life> {
        let [_, version, meta] = *words;
        let incarnation = (meta >> INCARNATION_SHIFT) as u16 & INCARNATION_MASK;
        if meta & DELETED != 0 {
            Some(Life::Deleted { incarnation })
        } else if meta & PRESENT != 0 {
            Some(Life::Present { incarnation })
        } else {
            (version != 0).then_some(Life::Prepared { incarnation })
        }
    }

    /// Returns the lossy incarnation of the key's life. The index entry that links the slot, or did
    /// so before, has the same one.
    #[inline]
    #[must_use]
    pub fn incarnation(self) -> u16 {
        match self {
            Life::Present { incarnation } | Life::Prepared { incarnation } | Life::Deleted { incarnation } => {
                incarnation
            }
        }
    }
}

/// The first two words of a record, read for validation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// The lock word, which names the transaction that has the record locked.
    pub lock: LockWord,
    /// The version of the record.
    pub version: Version,
    /// Whether the record is being installed in place.
    pub invisible: bool,
}

impl RecordHeader {
    /// Reads the header from the first two words. `None` if there are fewer than two.
    #[inline]
    #[must_use]
    pub fn parse(words: &[u64]) -> Option<RecordHeader> {
        let [lock, version, ..] = words else { return None };
        let (version, invisible) = Version::from_bits(*version);
        Some(RecordHeader { lock: LockWord::from_bits(*lock), version, invisible })
    }
}

/// Why fetched bytes are not one state of a record. Read them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unstable {
    /// The record is locked, and the read scheme cannot tell whether the holder has begun to write.
    Locked(LockWord),
    /// The record is being installed in place.
    Invisible(LockWord),
    /// The bytes are parts of several states.
    Torn,
}

/// Words of a slot that have arrived. They are not checked yet: they may not belong together.
#[derive(Clone, Copy, Debug)]
pub struct FetchedRecord<'b> {
    words: &'b [u64],
    shape: &'b RecordShape,
}

impl<'b> FetchedRecord<'b> {
    /// Wraps what a READ of [`RecordShape::record_bytes`] has returned.
    #[inline]
    #[must_use]
    pub fn new(words: &'b [u64], shape: &'b RecordShape) -> FetchedRecord<'b> {
        FetchedRecord { words, shape }
    }

    /// Checks that the words are one state of the record.
    #[inline]
    pub fn check(self) -> Result<StableRecord<'b>, Unstable> {
        let record = self.parse()?;
        if self.shape.scheme != ReadScheme::Checksum && record.header.lock.is_exclusive() {
            return Err(Unstable::Locked(record.header.lock));
        }
        record.whole()
    }

    /// Checks a record of a table whose records are installed in place. A writer marks a record as
    /// invisible in the same WRITE that begins to change it. It makes the record visible when that
    /// is whole on every replica. So a record may be stable although it is locked.
    #[inline]
    pub fn check_in_place(self) -> Result<StableRecord<'b>, Unstable> {
        self.parse()?.whole()
    }

    #[inline]
    fn parse(self) -> Result<StableRecord<'b>, Unstable> {
        let Some(header) = RecordHeader::parse(self.words).filter(|_| self.words.len() == self.shape.words) else {
            return Err(Unstable::Torn);
        };
        if header.invisible {
            return Err(Unstable::Invisible(header.lock));
        }
        let record = StableRecord { words: self.words, shape: self.shape, header };
        // Memory that is no record of this table at all must not send accessors out of bounds.
        if record.value_bytes() > self.shape.value_max { Err(Unstable::Torn) } else { Ok(record) }
    }

    /// Returns the record without any check, as a protocol without the read scheme would hand it to
    /// the application. This is for mutants, and for runs that are labelled as unsynchronized. A
    /// torn record is wrong but not unsound, since a value of an impossible length is refused.
    #[inline]
    #[must_use]
    pub fn unchecked(self) -> Option<StableRecord<'b>> {
        let header = RecordHeader::parse(self.words).filter(|_| self.words.len() == self.shape.words)?;
        let record = StableRecord { words: self.words, shape: self.shape, header };
        (record.value_bytes() <= self.shape.value_max).then_some(record)
    }
}

/// One state of a record.
#[derive(Clone, Copy, Debug)]
pub struct StableRecord<'b> {
    words: &'b [u64],
    shape: &'b RecordShape,
    header: RecordHeader,
}

impl StableRecord<'_> {
    /// Returns the lock word. With a checksum a stable record may be locked.
    #[inline]
    #[must_use]
    pub fn lock(&self) -> LockWord {
        self.header.lock
    }

    /// Returns the version of the record.
    #[inline]
    #[must_use]
    pub fn version(&self) -> Version {
        self.header.version
    }

    /// Whether the key of the record exists.
    #[inline]
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.words[META] & (PRESENT | DELETED) == PRESENT
    }

    /// Whether the key was deleted, so that the record is a tombstone.
    #[inline]
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.words[META] & DELETED != 0
    }

    /// Returns the life of the record's key. `None` if the slot was never used.
    #[inline]
    #[must_use]
    pub fn life(&self) -> Option<Life> {
        Life::of(self.words.first_chunk()?)
    }

    /// Returns the lossy incarnation of the key's life.
    #[inline]
    #[must_use]
    pub fn incarnation(&self) -> u16 {
        (self.words[META] >> INCARNATION_SHIFT) as u16 & INCARNATION_MASK
    }

    /// Whether this is the record of `key`.
    #[inline]
    #[must_use]
    pub fn has_key(&self, key: &[u64]) -> bool {
        key.len() == self.shape.key_words
            && self.shape.key_places().zip(key).all(|(place, word)| self.words[place] == *word)
    }

    /// Returns the words of the record's key.
    pub fn key(&self) -> impl Iterator<Item = u64> {
        self.shape.key_places().map(|place| self.words[place])
    }

    /// Returns the number of bytes of the value.
    #[inline]
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        (self.words[META] >> LENGTH_SHIFT) as usize & 0xffff
    }

    /// Returns what a WRITE would install to restore this state.
    #[inline]
    #[must_use]
    pub fn image(&self) -> &[u64] {
        &self.words[VERSION..]
    }

    /// Copies the first words of the value to `out`, and zeros where the value is shorter.
    #[inline]
    pub fn first_words(&self, out: &mut [u64]) {
        let count = value_words(self.value_bytes());
        for (index, word) in out.iter_mut().enumerate() {
            *word = if index < count { self.words[self.shape.data_at(self.shape.key_words + index)] } else { 0 };
        }
    }

    /// Applies the read scheme to a record that is neither locked nor invisible.
    #[inline]
    fn whole(self) -> Result<Self, Unstable> {
        let whole = match self.shape.scheme {
            ReadScheme::SingleLine => true,
            ReadScheme::LineVersions => {
                self.words.iter().step_by(LINE_WORDS).skip(1).all(|line| *line == self.header.version.to_bits())
            }
            ReadScheme::Checksum => self.checksum_holds(),
        };
        if whole { Ok(self) } else { Err(Unstable::Torn) }
    }

    /// Appends the value to `out`, in whole words.
    #[inline]
    pub fn copy_value(&self, out: &mut Vec<u64>) {
        let mut left = value_words(self.value_bytes());
        if self.shape.scheme != ReadScheme::LineVersions {
            out.extend_from_slice(&self.words[HEADER_WORDS + self.shape.key_words..][..left]);
            return;
        }
        let mut of_key = self.shape.key_words;
        for (line, words) in self.words.chunks(LINE_WORDS).enumerate() {
            let data = &words[if line == 0 { HEADER_WORDS } else { 1 }..];
            let (_, value) = data.split_at(of_key.min(data.len()));
            let value = &value[..left.min(value.len())];
            out.extend_from_slice(value);
            of_key -= of_key.min(data.len());
            left -= value.len();
        }
    }

    fn checksum_holds(&self) -> bool {
        let meta = self.words[META];
        let bare = meta & (u64::from(u32::MAX));
        let mut crc = crc32c::crc32c(self.words[VERSION..META].as_bytes());
        crc = crc32c::crc32c_append(crc, bare.as_bytes());
        crc = crc32c::crc32c_append(crc, self.words[HEADER_WORDS..].as_bytes());
        // A slot that was never used has no checksum; all zero, it is whole.
        u64::from(crc) == meta >> CHECKSUM_SHIFT || self.words[VERSION..].iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use proptest::prelude::*;

    const SCHEMES: [ReadScheme; 3] = [ReadScheme::SingleLine, ReadScheme::Checksum, ReadScheme::LineVersions];

    fn slot(shape: &RecordShape, lock: u64, version: u64, key: &[u64], value: &[u8]) -> Vec<u64> {
        let mut words = vec![lock];
        let (version, _) = Version::from_bits(version);
        shape.encode(version, Life::Present { incarnation: 5 }, key, value, &mut words);
        words
    }

    /// Memory that records the state of each line after every store, in order.
    struct Watched<'m> {
        value: Cell<u64>,
        line: usize,
        at: usize,
        states: &'m RefCell<Vec<Vec<[u64; LINE_WORDS]>>>,
    }

    impl Word for Watched<'_> {
        fn load(&self) -> u64 {
            self.value.get()
        }

        fn store(&self, value: u64) {
            self.value.set(value);
            let states = &mut self.states.borrow_mut()[self.line];
            let mut line = *states.last().unwrap();
            line[self.at] = value;
            states.push(line);
        }
    }

    /// Lines of one READ may be of any times, each of them between any two stores.
    #[test]
    fn what_a_cpu_is_installing_is_refused() {
        for scheme in [ReadScheme::Checksum, ReadScheme::LineVersions] {
            let shape = RecordShape::of(&layout(8, 130, scheme).unwrap());
            let [old, new] =
                [(2, [1; 130]), (4, [2; 130])].map(|(version, value)| slot(&shape, 0, version, &[9], &value));
            let lines = |words: &[u64]| {
                let mut all = vec![[0; LINE_WORDS]; words.len().div_ceil(LINE_WORDS)];
                all.iter_mut().zip(words.chunks(LINE_WORDS)).for_each(|(line, words)| {
                    line[..words.len()].copy_from_slice(words);
                });
                all
            };
            let states = RefCell::new(lines(&old).into_iter().map(|line| vec![line]).collect::<Vec<_>>());
            let word = |(at, value): (usize, &u64)| Watched {
                value: Cell::new(*value),
                line: at / LINE_WORDS,
                at: at % LINE_WORDS,
                states: &states,
            };
            let memory: Vec<_> = old.iter().enumerate().map(word).collect();
            memory[0].store(77);
            shape.install(&memory, &new[VERSION..]);
            memory[0].store(0);
            let states = states.take();
            let [first, second, third] = &states[..] else { panic!("three lines") };
            let (mut stable, mut refused) = (0, 0);
            for first in first {
                for second in second {
                    for third in third {
                        let read = [*first, *second, *third].concat();
                        let read = &read[..old.len()];
                        if FetchedRecord::new(read, &shape).check().is_err() {
                            refused += 1;
                            continue;
                        }
                        assert!(read[VERSION..] == old[VERSION..] || read[VERSION..] == new[VERSION..], "{read:?}");
                        stable += 1;
                    }
                }
            }
            assert!(stable >= 2 && refused > 100, "{scheme:?}: {stable}, {refused}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back(
            scheme in 1usize..3, key in proptest::collection::vec(any::<u64>(), 0..8),
            value in proptest::collection::vec(any::<u8>(), 0..700), spare in 0usize..50, version in 1u64..1 << 62,
        ) {
            let layout = layout(key.len() * 8, value.len() + spare, SCHEMES[scheme]).unwrap();
            let shape = RecordShape::of(&layout);
            prop_assert!(shape.record_bytes() <= layout.slot_bytes as usize);
            let words = slot(&shape, 0, version, &key, &value);
            let record = FetchedRecord::new(&words, &shape).check().unwrap();
            prop_assert!(record.has_key(&key) && record.is_present());
            prop_assert_eq!((record.incarnation(), record.version().to_bits()), (5, version));
            let mut read = Vec::new();
            record.copy_value(&mut read);
            prop_assert_eq!(&read.as_bytes()[..record.value_bytes()], &value[..]);
        }

        #[test]
        fn a_rollback_differs_in_its_version_only(
            scheme in 1usize..3, key in any::<u64>(), value in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let shape = RecordShape::of(&layout(8, value.len(), SCHEMES[scheme]).unwrap());
            let mut words = slot(&shape, 0, 2, &[key], &value);
            shape.stamp(&mut words[1..], Version::from_bits(5).0);
            prop_assert_eq!(&words, &slot(&shape, 0, 5, &[key], &value));
            // Also of a slot that was never used.
            let mut unused = vec![0; shape.record_bytes() / 8];
            shape.stamp(&mut unused[1..], Version::from_bits(5).0);
            let record = FetchedRecord::new(&unused, &shape).check_in_place().unwrap();
            prop_assert!(!record.is_present() && record.version().to_bits() == 5);
        }

        /// A mixture of two states, lines or words, is never stable unless it is one of them.
        #[test]
        fn a_mixture_of_two_states_is_refused(
            scheme in 1usize..3, length in 41usize..300, mask in any::<u64>(), old in any::<u8>(), change in 1u8..255,
        ) {
            let layout = layout(8, length, SCHEMES[scheme]).unwrap();
            let shape = RecordShape::of(&layout);
            let (before, after) = (vec![old; length], vec![old.wrapping_add(change); length]);
            let (before, after) = (slot(&shape, 0, 2, &[1], &before), slot(&shape, 0, 4, &[1], &after));
            // Line versions promise nothing about words within a line: the fabric does.
            let unit = if SCHEMES[scheme] == ReadScheme::LineVersions { 8 } else { 1 };
            let mixed: Vec<u64> = (0..before.len())
                .map(|word| if mask >> (word / unit % 64) & 1 == 0 { before[word] } else { after[word] })
                .collect();
            if mixed != before && mixed != after {
                prop_assert_eq!(FetchedRecord::new(&mixed, &shape).check().err(), Some(Unstable::Torn));
            }
        }

        #[test]
        fn arbitrary_words_never_panic(words in proptest::collection::vec(any::<u64>(), 0..24), scheme in 0usize..3) {
            let shape = RecordShape::of(&layout(8, 24, SCHEMES[scheme]).unwrap());
            if let Ok(record) = FetchedRecord::new(&words, &shape).check() {
                record.copy_value(&mut Vec::new());
                let _ = record.has_key(&[1]);
            }
            if let Some(record) = FetchedRecord::new(&words, &shape).unchecked() {
                record.copy_value(&mut Vec::new());
            }
        }
    }

    #[test]
    fn a_locked_record_is_stable_only_with_a_checksum() {
        for scheme in SCHEMES {
            let shape = RecordShape::of(&layout(8, 8, scheme).unwrap());
            let words = slot(&shape, 7, 2, &[1], &[0; 8]);
            let checked = FetchedRecord::new(&words, &shape).check();
            match scheme {
                ReadScheme::Checksum => assert_eq!(checked.unwrap().lock(), LockWord::from_bits(7)),
                _ => assert_eq!(checked.err(), Some(Unstable::Locked(LockWord::from_bits(7)))),
            }
        }
    }

    #[test]
    fn an_invisible_record_is_never_stable() {
        for scheme in SCHEMES {
            let shape = RecordShape::of(&layout(8, 8, scheme).unwrap());
            let mut words = slot(&shape, 0, 2, &[1], &[0; 8]);
            words[VERSION] |= 1 << 63;
            assert!(matches!(FetchedRecord::new(&words, &shape).check(), Err(Unstable::Invisible(_))));
        }
    }

    #[test]
    fn an_unused_slot_is_stable_and_absent() {
        for scheme in SCHEMES {
            let shape = RecordShape::of(&layout(8, 8, scheme).unwrap());
            let words = vec![0; shape.record_bytes() / 8];
            let record = FetchedRecord::new(&words, &shape).check().unwrap();
            assert_eq!((record.is_present(), record.is_deleted(), record.life()), (false, false, None));
        }
    }

    #[test]
    fn every_life_is_read_back() {
        let lives = [5, 0].map(|incarnation| {
            [Life::Present { incarnation }, Life::Prepared { incarnation }, Life::Deleted { incarnation }]
        });
        for (scheme, life) in
            SCHEMES.into_iter().flat_map(|scheme| lives.as_flattened().iter().map(move |l| (scheme, l)))
        {
            let shape = RecordShape::of(&layout(8, 8, scheme).unwrap());
            let mut words = vec![0];
            shape.encode(Version::LOADED, *life, &[1], &[], &mut words);
            let record = FetchedRecord::new(&words, &shape).check().unwrap();
            assert_eq!(record.life(), Some(*life));
            assert_eq!(record.is_present(), matches!(life, Life::Present { .. }));
            assert_eq!(record.is_deleted(), matches!(life, Life::Deleted { .. }));
        }
    }

    /// The format, byte for byte: data in memory nodes outlives programs.
    #[test]
    fn golden_bytes() {
        let shape = RecordShape::of(&layout(8, 16, ReadScheme::SingleLine).unwrap());
        let words = slot(&shape, 0, 6, &[0x11], b"sixteen bytes...");
        assert_eq!(words, [0, 6, 16 << 16 | 5 << 2 | 1, 0x11, 0x206e_6565_7478_6973, 0x2e2e_2e73_6574_7962]);
        let shape = RecordShape::of(&layout(8, 16, ReadScheme::Checksum).unwrap());
        assert_eq!(slot(&shape, 0, 6, &[0x11], b"sixteen bytes...")[2] >> 32, GOLDEN_CHECKSUM);
        let shape = RecordShape::of(&layout(8, 40, ReadScheme::LineVersions).unwrap());
        let words = slot(&shape, 0, 6, &[1], &[9; 40]);
        assert_eq!((words[8], words[9], words.len()), (6, 0x0909_0909_0909_0909, 10));
    }

    const GOLDEN_CHECKSUM: u64 = 1_499_560_886;
}
