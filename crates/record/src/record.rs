//! The layout of a record in its slot, and the check that the bytes of one READ are one state of
//! it.
//!
//! ```text
//! slot: whole 64-byte lines, 64-byte aligned
//! +0   lock      u64   see `lock`                     CASed only
//! +8   version   u64   see `version`                  written by the lock's holder,
//!                                                     with all that follows
//! +16  meta      u64   | checksum : 32 | length : 16 | incarnation : 14 |
//!                      | deleted : 1 | present : 1 |
//! +24  extra words       as many as the layout asks for, all of them in the first line
//! then key, then value, each in whole words; with line versions every further line is
//!      version u64, 56 bytes of key and value; with cells the value is
//!      its head, and then each cell with its check u64: | crc32c : 32 | version, low bits : 32 |
//! ```
//!
//! The *header* of a slot is what comes before the key. Every layout begins with lock, version and
//! meta, so the address of a record is the address of its lock. A [`RecordShape`] says where
//! everything else lies, what a WRITE installs, and what validation reads. No other code counts the
//! words of a slot.
//!
//! Extra words belong to the protocol of the table. They are a part of the record's state, as the
//! value is: an image has both, and the read scheme covers both. A rollback writes back the extra
//! words that were there before. So they describe the value, not the version.
//!
//! `length` is the length of the value in bytes. `incarnation` is the lossy incarnation of the
//! key's life in this slot. The index and its caches hold the same 14 bits, so the record itself
//! shows that a location is stale. The incarnation wraps, so readers always compare the key in the
//! record as well.
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
//! # Times
//!
//! A timed layout has an extra word for the time of the commit that has installed the value. The
//! time is known only when the images of the commit are on all replicas, and invisible there. So
//! the commit *settles* each image later, by two WRITEs: the words behind the version, up to the
//! time, and then the version, visible. The read scheme covers the time as it covers the value.
//!
//! Another extra word says where the image lies that the commit has replaced ([`Former`]).
//!
//! # Images
//!
//! An *image* is what a WRITE installs: everything from the version to the end of the largest
//! value. A replica may miss a version. It is still byte-identical after the next WRITE, because an
//! image always has that length.
//!
//! # When a value may be read
//!
//! Bytes from another machine are a [`FetchedRecord`] until [`FetchedRecord::check`] has found that
//! they are one state of the record. Only the [`StableRecord`] that the check returns has
//! accessors.
//!
//! # Parts of a value
//!
//! With cells, a reader can take the head of a record alone ([`RecordShape::head`]), and then a
//! cell alone ([`RecordShape::cell_of`]). The head shows its version. The check of a cell covers
//! the version and the bytes of the cell. So a cell that shows the version of a head belongs to
//! the same state as that head, whenever the two were read, and in whatever order. A reader of
//! both has read one state of the record, which was there when it read the head.
//!
//! # When a locked record may be read
//!
//! With single lines and with line versions, a record whose lock is held may be half written, so it
//! is never stable. The other half of this argument is in `remora_fabric::copy`. With a checksum, a
//! locked record is stable if the checksum shows that it is whole: its holder has not begun to
//! write.
//!
//! In tables whose records are installed in place, [`FetchedRecord::check_in_place`] decides
//! instead. There a record is stable if it is visible and its lines belong together, locked or not.
//!
//! Stable does not mean current. A transaction may have committed while the WRITE that installs its
//! value is still in flight; until that arrives, the transaction holds the lock. So a reader that
//! does not validate later must also see the lock free.

use remora_fabric::copy::{self, Word};
use remora_fabric::{LINE_BYTES, LINE_WORDS, WORD_BYTES};
use remora_node::{Cells, Layout, MemoryError, ReadScheme};
use zerocopy::IntoBytes;

use crate::former::Former;
use crate::lock::LockWord;
use crate::version::Version;

const VERSION: usize = 1;
const META: usize = 2;
/// The number of words that validation looks at: lock and version.
const VALIDATED_WORDS: usize = VERSION + 1;
/// The number of words that every slot begins with: lock, version and meta.
const FIXED_WORDS: usize = 3;
/// The extra words of a timed layout.
const TIME: usize = FIXED_WORDS;
const FORMER: usize = TIME + 1;
const TIMED_EXTRA_WORDS: usize = 2;
/// The number of words of an image that settling it changes: version, meta and time.
const SETTLED_WORDS: usize = TIME + 1 - VERSION;
/// The largest number of extra words of a layout. The first line must have room for them.
const EXTRA_WORDS_MAX: usize = LINE_WORDS - FIXED_WORDS;

const PRESENT: u64 = 1;
const DELETED: u64 = 2;
const INCARNATION_SHIFT: u32 = 2;
/// The mask of a lossy incarnation: the low 14 bits of an incarnation.
pub const INCARNATION_MASK: u16 = (1 << 14) - 1;
const LENGTH_SHIFT: u32 = 16;
const CHECKSUM_SHIFT: u32 = 32;

/// Returns the number of words that a value of `bytes` bytes occupies.
#[inline]
#[must_use]
pub fn value_words(bytes: usize) -> usize {
    bytes.div_ceil(WORD_BYTES)
}

/// Returns the layout of records with keys of `key_bytes` bytes and values of at most `value_max`
/// bytes. Fails if the scheme is a single line and the record does not fit into it.
pub fn layout(key_bytes: usize, value_max: usize, scheme: ReadScheme) -> Result<Layout, MemoryError> {
    layout_with_extra(0, key_bytes, value_max, scheme)
}

/// Returns the layout of records that, if they are `timed`, have the times of their commits;
/// otherwise as [`layout`].
pub fn layout_with_time(
    timed: bool,
    key_bytes: usize,
    value_max: usize,
    scheme: ReadScheme,
) -> Result<Layout, MemoryError> {
    let extra = if timed { TIMED_EXTRA_WORDS } else { 0 };
    Ok(Layout { timed, ..layout_with_extra(extra, key_bytes, value_max, scheme)? })
}

/// Returns the layout of records that have `extra_words` words of their protocol before the key;
/// otherwise as [`layout`]. Fails if the first line has no room for the extra words, or if the
/// scheme is a single line and the record does not fit into it.
pub fn layout_with_extra(
    extra_words: usize,
    key_bytes: usize,
    value_max: usize,
    scheme: ReadScheme,
) -> Result<Layout, MemoryError> {
    if extra_words > EXTRA_WORDS_MAX {
        let (what, max) = ("extra words of a record", EXTRA_WORDS_MAX as u64);
        return Err(MemoryError::limit(what, extra_words as u64, max));
    }
    let header = FIXED_WORDS + extra_words;
    let data = key_bytes.div_ceil(WORD_BYTES) + value_words(value_max);
    let in_first_line = LINE_WORDS - header;
    let line_header = if scheme == ReadScheme::LineVersions { WORD_BYTES } else { 0 };
    let further = data.saturating_sub(in_first_line).div_ceil(LINE_WORDS - line_header / WORD_BYTES);
    if scheme == ReadScheme::SingleLine && further > 0 {
        let (what, max) = ("bytes of key and value in a single-line record", (in_first_line * WORD_BYTES) as u64);
        return Err(MemoryError::limit(what, (data * WORD_BYTES) as u64, max));
    }
    Ok(Layout {
        key_bytes: key_bytes as u16,
        value_at: ((header + key_bytes.div_ceil(WORD_BYTES)) * WORD_BYTES) as u16,
        line_header: line_header as u16,
        value_max: value_max as u32,
        slot_bytes: ((1 + further) * LINE_BYTES) as u32,
        scheme,
        cells: None,
        timed: false,
    })
}

/// Returns the layout of blocks (`object`): of records that have one extra word, and a checksum
/// that covers it. The value has at most `value_max` bytes; or if it has `parts`, a head and cells
/// as in [`layout_with_cells`]. The parts of a block are not read alone.
pub fn layout_of_block(
    key_bytes: usize,
    value_max: usize,
    parts: Option<(usize, usize, usize)>,
) -> Result<Layout, MemoryError> {
    let Some((head_bytes, cell_bytes, count)) = parts else {
        return layout_with_extra(1, key_bytes, value_max, ReadScheme::Checksum);
    };
    let Layout { cells, value_max, .. } = layout_with_cells(false, key_bytes, head_bytes, cell_bytes, count)?;
    let block = layout_with_extra(1, key_bytes, value_max as usize, ReadScheme::Checksum)?;
    Ok(Layout { cells, ..block })
}

/// Returns the layout of records with keys of `key_bytes` bytes whose values are a head of
/// `head_bytes` bytes and `count` cells of `cell_bytes` bytes. If they are `timed`, they have the
/// times of their commits. Both sizes are rounded up to whole
/// words. Fails if there is no cell, or if a cell or the value is too long.
pub fn layout_with_cells(
    timed: bool,
    key_bytes: usize,
    head_bytes: usize,
    cell_bytes: usize,
    count: usize,
) -> Result<Layout, MemoryError> {
    let [head_words, cell_words] = [head_bytes, cell_bytes].map(value_words);
    let max = u16::MAX as usize;
    if cell_words == 0 || cell_words * WORD_BYTES > max || count == 0 {
        return Err(MemoryError::limit("bytes of a cell of a value", cell_bytes as u64, max as u64));
    }
    let value_max = (head_words + count * cell_words) * WORD_BYTES;
    if value_max > max {
        return Err(MemoryError::limit("bytes of a value with cells", value_max as u64, max as u64));
    }
    let whole = layout_with_time(timed, key_bytes, value_max, ReadScheme::Checksum)?;
    let cells = Cells { head_bytes: (head_words * WORD_BYTES) as u32, cell_bytes: (cell_words * WORD_BYTES) as u16 };
    let used = usize::from(whole.value_at) + value_max + count * WORD_BYTES;
    Ok(Layout { slot_bytes: used.next_multiple_of(LINE_BYTES) as u32, cells: Some(cells), ..whole })
}

/// Returns the shape of a *structural record*: a word of an index that clients change as they
/// change records. It has no key, no extra words, and one line.
#[must_use]
pub fn structural(scheme: ReadScheme) -> RecordShape {
    let scheme = if scheme == ReadScheme::LineVersions { ReadScheme::SingleLine } else { scheme };
    let value_max = WORD_BYTES;
    RecordShape {
        scheme,
        header_words: FIXED_WORDS,
        key_words: 0,
        value_max,
        length_max: value_max,
        head_words: 0,
        cell_words: 0,
        part_words: (0, 0),
        timed: false,
        words: FIXED_WORDS + 1,
    }
}

/// The place of everything in the slots of a table, computed once from the table's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordShape {
    scheme: ReadScheme,
    /// The number of words of a slot before the key.
    header_words: usize,
    key_words: usize,
    /// The largest value, in bytes, as far as this shape has it.
    value_max: usize,
    /// The largest length that a record can state: more than `value_max` in the shape of a head.
    length_max: usize,
    /// The number of words of a value's head, if the scheme has cells.
    head_words: usize,
    /// The number of words of the value in a cell. 0 if the scheme has no cells.
    cell_words: usize,
    /// The number of words of the parts of a value, its head and a cell, if it has parts. In a
    /// block, the parts have no checks of their own.
    part_words: (usize, usize),
    /// Whether the slot has the time of the last commit, and the place of the former image.
    timed: bool,
    /// The number of words of a slot that hold something.
    words: usize,
}

impl RecordShape {
    /// Computes the shape of records with this layout.
    #[must_use]
    pub fn of(layout: &Layout) -> RecordShape {
        let key_words = usize::from(layout.key_bytes).div_ceil(WORD_BYTES);
        let data = key_words + value_words(layout.value_max as usize);
        // A catalog may hold any sizes, also impossible ones.
        let header_words = (usize::from(layout.value_at) / WORD_BYTES).saturating_sub(key_words);
        let header_words = header_words.clamp(FIXED_WORDS, LINE_WORDS);
        let mut shape = RecordShape {
            scheme: layout.scheme,
            header_words,
            key_words,
            value_max: layout.value_max as usize,
            length_max: layout.value_max as usize,
            head_words: 0,
            cell_words: 0,
            part_words: (0, 0),
            timed: layout.timed && header_words >= FIXED_WORDS + TIMED_EXTRA_WORDS,
            words: header_words,
        };
        if let Some(cells) = layout.cells {
            shape.part_words = (value_words(cells.head_bytes as usize), value_words(cells.cell_bytes.into()));
        }
        let is_block = !layout.timed && header_words == FIXED_WORDS + 1;
        if layout.cells.is_some() && layout.scheme == ReadScheme::Checksum && !is_block {
            (shape.head_words, shape.cell_words) = shape.part_words;
            let cells = data.saturating_sub(key_words + shape.head_words) / shape.cell_words.max(1);
            shape.words = shape.cells_at() + cells * (shape.cell_words + 1);
            return shape;
        }
        if data > 0 {
            shape.words = shape.data_at(data - 1) + 1;
        }
        shape
    }

    /// Returns the shape of what a READ of a record's head brings, if the records have cells.
    /// Otherwise returns `None`. The head is the beginning of a slot.
    #[inline]
    #[must_use]
    pub fn head(&self) -> Option<RecordShape> {
        let value_max = self.value_max.min(self.head_words * WORD_BYTES);
        (self.cell_words > 0).then(|| RecordShape { value_max, words: self.cells_at(), ..*self })
    }

    /// Returns where a cell lies in its slot, and the length of a READ of it, both in bytes.
    /// Returns `None` if there is no such cell.
    #[inline]
    #[must_use]
    pub fn cell_place(&self, cell: usize) -> Option<(u64, usize)> {
        let words = self.cell_words + 1;
        let end = cell.checked_add(1)?.checked_mul(words)?.checked_add(self.cells_at())?;
        let is_there = self.cell_words > 0 && end <= self.words;
        is_there.then(|| (((end - words) * WORD_BYTES) as u64, words * WORD_BYTES))
    }

    /// Returns where a cell lies in the value, and its length, both in words. Returns `None` if
    /// there is no such cell.
    #[inline]
    #[must_use]
    pub fn cell_in_value(&self, cell: usize) -> Option<(usize, usize)> {
        let (head, words) = self.part_words;
        let at = cell.checked_mul(words)?.checked_add(head)?;
        (words > 0 && at.checked_add(words)? <= value_words(self.length_max)).then_some((at, words))
    }

    /// Returns the words of the value in a cell, from the words that a READ of the cell has
    /// returned. Returns `None` if they are not the cell's in the state of the record that has this
    /// version: they are torn, or of another state.
    #[inline]
    #[must_use]
    pub fn cell_of<'w>(&self, words: &'w [u64], version: Version) -> Option<&'w [u64]> {
        let (check, cell) = words.split_last()?;
        (cell.len() == self.cell_words && *check == cell_check(version.to_bits(), cell)).then_some(cell)
    }

    /// Returns the index in the slot of the first word of the first cell.
    #[inline]
    fn cells_at(&self) -> usize {
        self.header_words + self.key_words + self.head_words
    }

    /// Writes the checks of all cells, of an image whose version is in its first word.
    fn check_cells(&self, image: &mut [u64]) {
        let version = image[0];
        for cell in image[self.cells_at() - VERSION..].chunks_exact_mut(self.cell_words + 1) {
            if let Some((check, cell)) = cell.split_last_mut() {
                *check = cell_check(version, cell);
            }
        }
    }

    /// Returns the number of words of an image that its checksum covers.
    #[inline]
    fn checked_words(&self) -> usize {
        if self.cell_words > 0 { self.cells_at() - VERSION } else { self.image_words() }
    }

    /// Returns the number of bytes of a slot before the key.
    #[inline]
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_words * WORD_BYTES
    }

    /// Returns the number of bytes that validation READs from the beginning of a slot.
    #[inline]
    #[must_use]
    pub fn validated_bytes(&self) -> usize {
        VALIDATED_WORDS * WORD_BYTES
    }

    /// Parses what validation READs, the first words of a slot. Returns `None` if there are too few
    /// words.
    #[inline]
    #[must_use]
    pub fn validated(&self, words: &[u64]) -> Option<RecordHeader> {
        RecordHeader::parse(words)
    }

    /// Returns the number of bytes to READ from the beginning of a slot to learn its lock, its
    /// version and the life of its key.
    #[inline]
    #[must_use]
    pub fn life_bytes(&self) -> usize {
        FIXED_WORDS * WORD_BYTES
    }

    /// Returns the life of the key, from the first words of a slot. Returns `None` if the slot was
    /// never used, or if there are too few words.
    #[inline]
    #[must_use]
    pub fn life(&self, words: &[u64]) -> Option<Life> {
        self.life_of_image(words.get(VERSION..)?)
    }

    /// Returns the life of the key, from an image. Returns `None` if the slot was never used, or if
    /// there are too few words.
    #[inline]
    #[must_use]
    pub fn life_of_image(&self, image: &[u64]) -> Option<Life> {
        let &[version, meta, ..] = image else { return None };
        Life::of(version, meta)
    }

    /// Returns where an image begins in its slot, in bytes.
    #[inline]
    #[must_use]
    pub fn image_at(&self) -> u64 {
        (VERSION * WORD_BYTES) as u64
    }

    /// Returns the part of a slot's words that is its image.
    #[inline]
    #[must_use]
    pub fn image_of<'w>(&self, words: &'w [u64]) -> &'w [u64] {
        &words[VERSION..]
    }

    /// Returns the number of bytes to READ from the beginning of a slot for the whole record.
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

    /// Returns the indices of the key's words in the slot. The node's own CPU may read the key in
    /// any record that is linked, because the key does not change while the record is linked.
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

    /// Whether a slot has the time of the commit that installed its value.
    #[inline]
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Returns the time of the commit that has installed an image, or 0 if the layout is not timed.
    #[inline]
    #[must_use]
    pub fn time_of_image(&self, image: &[u64]) -> u64 {
        image.get(TIME - VERSION).copied().filter(|_| self.timed).unwrap_or(0)
    }

    /// Returns where the time of the commit lies in a slot of a timed layout, in bytes.
    #[inline]
    #[must_use]
    pub fn time_at(&self) -> u64 {
        (TIME * WORD_BYTES) as u64
    }

    /// Returns where the image lies that this one has replaced. Returns [`Former::UNKNOWN`] if the
    /// layout is not timed.
    #[inline]
    #[must_use]
    pub fn former_of_image(&self, image: &[u64]) -> Former {
        Former::from_bits(image.get(FORMER - VERSION).copied().filter(|_| self.timed).unwrap_or(0))
    }

    /// Says in an image where the image lies that it replaces.
    pub fn set_former(&self, image: &mut [u64], former: Former) {
        debug_assert!(self.timed && image.len() == self.image_words());
        image[FORMER - VERSION] = former.to_bits();
        self.seal(image);
    }

    /// Gives an image the time of its commit. Then the WRITEs of [`RecordShape::settled`], in this
    /// order, turn a replica that has the image, invisible, into a visible one.
    pub fn settle(&self, image: &mut [u64], time: u64) {
        debug_assert!(self.timed && image.len() == self.image_words());
        image[TIME - VERSION] = time;
        self.seal(image);
    }

    /// Returns the parts of a settled image that are to be written: first the words behind the
    /// version, and then the version, each with its place in the slot, in bytes. If a client dies
    /// between the two, the record is still invisible.
    #[inline]
    #[must_use]
    pub fn settled<'i>(&self, image: &'i [u64]) -> [(u64, &'i [u64]); 2] {
        let (version, rest) = image.split_at(1);
        [((META * WORD_BYTES) as u64, &rest[..SETTLED_WORDS - 1]), (self.image_at(), version)]
    }

    /// Returns the number of bytes that [`RecordShape::settled`] writes.
    #[must_use]
    pub fn settled_bytes(&self) -> usize {
        SETTLED_WORDS * WORD_BYTES
    }

    /// Returns the checksum of what an image installs, as undo entries have it. It covers neither
    /// the time nor the image's own checksum, which change when the image is settled.
    #[must_use]
    pub fn content_checksum(&self, image: &[u64]) -> u32 {
        if !self.timed {
            return crc32c::crc32c(image.as_bytes());
        }
        let head = [image[0], image[META - VERSION] & u64::from(u32::MAX)];
        let rest = image.get(SETTLED_WORDS..).unwrap_or(&[]);
        // Most images are short, and one call for all words is quicker than two.
        let mut all = [0; LINE_WORDS];
        if let Some(all) = all.get_mut(..head.len() + rest.len()) {
            all[..head.len()].copy_from_slice(&head);
            all[head.len()..].copy_from_slice(rest);
            return crc32c::crc32c(all.as_bytes());
        }
        crc32c::crc32c_append(crc32c::crc32c(head.as_bytes()), rest.as_bytes())
    }

    /// Returns the number of bytes of the largest value.
    #[must_use]
    pub fn value_max(&self) -> usize {
        self.value_max
    }

    /// Returns the index in the slot of word `index` of the data: the key and, after it, the value.
    #[inline]
    fn data_at(&self, index: usize) -> usize {
        let in_first_line = LINE_WORDS - self.header_words;
        let in_cells = index.saturating_sub(self.key_words + self.head_words);
        if let Some(checks) = in_cells.checked_div(self.cell_words) {
            return self.header_words + index + checks;
        }
        if self.scheme != ReadScheme::LineVersions || index < in_first_line {
            return self.header_words + index;
        }
        let further = index - in_first_line;
        (1 + further / (LINE_WORDS - 1)) * LINE_WORDS + 1 + further % (LINE_WORDS - 1)
    }

    /// Installs an image by the CPU of the memory node that holds the record. The CPU must hold the
    /// record's lock. `slot` begins with the lock word.
    ///
    /// A NIC may READ a line between two stores to it, and the lines of a record in any order. So
    /// the CPU marks each further line as invisible before it changes the line's data. It writes
    /// the line's version when the data is whole, as in FaRM (Dragojević et al., NSDI 2014, section
    /// 4). The lock marks the first line. A checksum needs no order.
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

    /// Gives an image another version, which makes it the image of a rollback. The extra words and
    /// the value stay as they are.
    pub fn stamp(&self, image: &mut [u64], version: Version) {
        debug_assert_eq!(image.len(), self.image_words());
        let Some(first) = image.first_mut() else { return };
        *first = version.to_bits();
        if self.scheme == ReadScheme::LineVersions {
            for line in (LINE_WORDS..self.words).step_by(LINE_WORDS) {
                image[line - VERSION] = version.to_bits();
            }
        }
        self.seal(image);
        if self.cell_words > 0 {
            self.check_cells(image);
        }
    }

    /// Writes the checksum of an image, if the scheme has one.
    #[inline]
    fn seal(&self, image: &mut [u64]) {
        if self.scheme == ReadScheme::Checksum {
            image[META - VERSION] &= u64::from(u32::MAX);
            let crc = crc32c::crc32c(image[..self.checked_words()].as_bytes());
            image[META - VERSION] |= u64::from(crc) << CHECKSUM_SHIFT;
        }
    }

    /// Appends the image of a record to `out`, with extra words of 0. The caller has checked that
    /// the value is not longer than the table's maximum.
    #[inline]
    pub fn encode(&self, version: Version, life: Life, key: &[u64], value: &[u8], out: &mut Vec<u64>) {
        self.encode_with_extra(version, life, &[], key, value, out);
    }

    /// Appends the image of a record to `out`, with these extra words; otherwise as
    /// [`RecordShape::encode`].
    #[inline]
    pub fn encode_with_extra(
        &self,
        version: Version,
        life: Life,
        extra: &[u64],
        key: &[u64],
        value: &[u8],
        out: &mut Vec<u64>,
    ) {
        debug_assert!(key.len() == self.key_words && value.len() <= self.value_max);
        debug_assert!(extra.len() <= self.header_words - FIXED_WORDS);
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
        image[FIXED_WORDS - VERSION..][..extra.len()].copy_from_slice(extra);
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
            let data = &mut image[self.header_words - VERSION..];
            data[..key.len()].copy_from_slice(key);
            let data = &mut data[key.len()..];
            let in_head = if self.cell_words > 0 { value.len().min(self.head_words * WORD_BYTES) } else { value.len() };
            let (head, cells) = value.split_at(in_head);
            data.as_mut_bytes()[..in_head].copy_from_slice(head);
            if self.cell_words > 0 {
                let places = data[self.head_words..].chunks_exact_mut(self.cell_words + 1);
                for (place, cell) in places.zip(cells.chunks(self.cell_words * WORD_BYTES)) {
                    place.as_mut_bytes()[..cell.len()].copy_from_slice(cell);
                }
                self.check_cells(image);
            }
        }
        self.seal(image);
    }
}

/// Returns the check of a cell of a record of this version.
#[inline]
fn cell_check(version: u64, cell: &[u64]) -> u64 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(version.as_bytes()), cell.as_bytes());
    u64::from(crc) << CHECKSUM_SHIFT | version & u64::from(u32::MAX)
}

/// The life of the key in a slot: whether the key exists, and in which incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The key exists.
    Present {
        /// The lossy incarnation of this life.
        incarnation: u16,
    },
    /// An inserter has linked the slot and has not committed.
    Prepared {
        /// The lossy incarnation of this life.
        incarnation: u16,
    },
    /// The key was deleted. The slot is a tombstone: unlinked, but its version still counts.
    Deleted {
        /// The lossy incarnation of this life.
        incarnation: u16,
    },
}

impl Life {
    /// Returns the life that the version word and the meta word of a slot describe. `None` if the
    /// slot was never used.
    #[inline]
    fn of(version: u64, meta: u64) -> Option<Life> {
        let incarnation = (meta >> INCARNATION_SHIFT) as u16 & INCARNATION_MASK;
        if meta & DELETED != 0 {
            Some(Life::Deleted { incarnation })
        } else if meta & PRESENT != 0 {
            Some(Life::Present { incarnation })
        } else {
            (version != 0).then_some(Life::Prepared { incarnation })
        }
    }

    /// Returns the lossy incarnation of the key's life. The index entry that links the slot, or
    /// that linked it before, has the same incarnation.
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

/// The lock and the version of a record: what validation looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// The lock word, which names the holder of the record's lock.
    pub lock: LockWord,
    /// The version of the record.
    pub version: Version,
    /// Whether the record is being installed in place.
    pub invisible: bool,
}

impl RecordHeader {
    /// Parses the header from the first two words of a slot. Returns `None` if there are fewer than
    /// two.
    #[inline]
    fn parse(words: &[u64]) -> Option<RecordHeader> {
        let [lock, version, ..] = words else { return None };
        let (version, invisible) = Version::from_bits(*version);
        Some(RecordHeader { lock: LockWord::from_bits(*lock), version, invisible })
    }

    /// Whether the record is visible and still has `version`, the version that a transaction saw.
    #[inline]
    #[must_use]
    pub fn still_shows(&self, version: Version) -> bool {
        self.version == version && !self.invisible
    }
}

/// The reason why fetched bytes are not one state of a record. The reader has to READ the record
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unstable {
    /// The record is locked, and the read scheme cannot tell whether the holder has begun to write.
    Locked(LockWord),
    /// A writer is installing the record in place.
    Invisible(LockWord),
    /// The bytes are parts of several states.
    Torn,
}

/// The words of a slot that a READ has fetched. They are not checked yet, so they may be of
/// different states.
#[derive(Clone, Copy, Debug)]
pub struct FetchedRecord<'b> {
    words: &'b [u64],
    shape: &'b RecordShape,
}

impl<'b> FetchedRecord<'b> {
    /// Wraps the words that a READ of [`RecordShape::record_bytes`] has returned.
    #[inline]
    #[must_use]
    pub fn new(words: &'b [u64], shape: &'b RecordShape) -> FetchedRecord<'b> {
        FetchedRecord { words, shape }
    }

    /// Checks that the words are one state of the record, in a table whose records are not
    /// installed in place.
    #[inline]
    pub fn check(self) -> Result<StableRecord<'b>, Unstable> {
        let record = self.parse()?;
        if self.shape.scheme != ReadScheme::Checksum && record.header.lock.is_exclusive() {
            return Err(Unstable::Locked(record.header.lock));
        }
        record.whole()
    }

    /// Checks that the words are one state of the record, in a table whose records are installed in
    /// place.
    ///
    /// A writer marks a record as invisible in the same WRITE that begins to change it. The writer
    /// makes the record visible again when the record is whole on every replica. So a record may be
    /// stable although it is locked.
    #[inline]
    pub fn check_in_place(self) -> Result<StableRecord<'b>, Unstable> {
        self.parse()?.whole()
    }

    #[inline]
    fn parse(self) -> Result<StableRecord<'b>, Unstable> {
        let Some(header) = self.shape.validated(self.words).filter(|_| self.words.len() == self.shape.words) else {
            return Err(Unstable::Torn);
        };
        if header.invisible {
            return Err(Unstable::Invisible(header.lock));
        }
        let record = StableRecord { words: self.words, shape: self.shape, header };
        // Memory that is no record of this table at all must not send an accessor out of bounds.
        if record.length() > self.shape.length_max { Err(Unstable::Torn) } else { Ok(record) }
    }

    /// Returns the record without any check, as a protocol without the read scheme would hand it to
    /// the application. Only mutants, and runs that are labelled as unsynchronized, call it. A torn
    /// record has a wrong value but reads no memory out of bounds: `None` is returned if the
    /// value's length is impossible.
    #[inline]
    #[must_use]
    pub fn unchecked(self) -> Option<StableRecord<'b>> {
        let header = self.shape.validated(self.words).filter(|_| self.words.len() == self.shape.words)?;
        let record = StableRecord { words: self.words, shape: self.shape, header };
        (record.length() <= self.shape.length_max).then_some(record)
    }
}

/// One state of a record, as a READ found it and a check has confirmed it.
#[derive(Clone, Copy, Debug)]
pub struct StableRecord<'b> {
    words: &'b [u64],
    shape: &'b RecordShape,
    header: RecordHeader,
}

impl StableRecord<'_> {
    /// Returns the lock word. With a checksum, a stable record may be locked.
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
        self.shape.life(self.words)
    }

    /// Returns the lossy incarnation of the key's life.
    #[inline]
    #[must_use]
    pub fn incarnation(&self) -> u16 {
        (self.words[META] >> INCARNATION_SHIFT) as u16 & INCARNATION_MASK
    }

    /// Returns the extra words of the record.
    #[inline]
    #[must_use]
    pub fn extra(&self) -> &[u64] {
        &self.words[FIXED_WORDS..self.shape.header_words]
    }

    /// Returns the time of the commit that has installed the value, or 0 if the layout is not
    /// timed.
    #[inline]
    #[must_use]
    pub fn time(&self) -> u64 {
        self.shape.time_of_image(self.image())
    }

    /// Returns where the image lies that the last commit has replaced.
    #[inline]
    #[must_use]
    pub fn former(&self) -> Former {
        self.shape.former_of_image(self.image())
    }

    /// Whether this is the record of `key`.
    #[inline]
    #[must_use]
    pub fn has_key(&self, key: &[u64]) -> bool {
        key.len() == self.shape.key_words
            && self.shape.key_places().zip(key).all(|(place, word)| self.words[place] == *word)
    }

    /// Returns the words of the record's key, in order.
    pub fn key(&self) -> impl Iterator<Item = u64> {
        self.shape.key_places().map(|place| self.words[place])
    }

    /// Returns the number of bytes of the value, as far as its shape has them.
    #[inline]
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.length().min(self.shape.value_max)
    }

    /// Returns the number of bytes of the whole value.
    #[inline]
    fn length(&self) -> usize {
        (self.words[META] >> LENGTH_SHIFT) as usize & 0xffff
    }

    /// Returns the image of this state: what a WRITE would install to restore it.
    #[inline]
    #[must_use]
    pub fn image(&self) -> &[u64] {
        self.shape.image_of(self.words)
    }

    /// Copies the first words of the value to `out`. Fills `out` with zeros where the value is
    /// shorter.
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
            ReadScheme::Checksum => self.checksum_holds() && self.cells_hold(),
        };
        if whole { Ok(self) } else { Err(Unstable::Torn) }
    }

    /// Appends the value to `out`, in whole words.
    #[inline]
    pub fn copy_value(&self, out: &mut Vec<u64>) {
        let mut left = value_words(self.value_bytes());
        if self.shape.cell_words > 0 {
            let value = &self.words[self.shape.header_words + self.shape.key_words..];
            let (head, cells) = value.split_at(self.shape.head_words.min(value.len()));
            let head = &head[..left.min(head.len())];
            out.extend_from_slice(head);
            left -= head.len();
            for cell in cells.chunks_exact(self.shape.cell_words + 1) {
                let cell = &cell[..left.min(self.shape.cell_words)];
                out.extend_from_slice(cell);
                left -= cell.len();
            }
            return;
        }
        if self.shape.scheme != ReadScheme::LineVersions {
            out.extend_from_slice(&self.words[self.shape.header_words + self.shape.key_words..][..left]);
            return;
        }
        let mut of_key = self.shape.key_words;
        for (line, words) in self.words.chunks(LINE_WORDS).enumerate() {
            let data = &words[if line == 0 { self.shape.header_words } else { 1 }..];
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
        crc = crc32c::crc32c_append(crc, self.words[META + 1..VERSION + self.shape.checked_words()].as_bytes());
        // A slot that was never used has no checksum. It is whole if all its words are zero.
        u64::from(crc) == meta >> CHECKSUM_SHIFT || self.words[VERSION..].iter().all(|word| *word == 0)
    }

    /// Whether every cell that was read is of the record's version.
    fn cells_hold(&self) -> bool {
        if self.shape.cell_words == 0 {
            return true;
        }
        let (version, cells) = (self.words[VERSION], &self.words[self.shape.cells_at()..]);
        let holds = |(check, cell): (&u64, &[u64])| *check == cell_check(version, cell);
        let mut all = cells.chunks_exact(self.shape.cell_words + 1).filter_map(<[u64]>::split_last);
        all.all(holds) || version == 0 && cells.iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use proptest::prelude::*;

    const SCHEMES: [ReadScheme; 3] = [ReadScheme::SingleLine, ReadScheme::Checksum, ReadScheme::LineVersions];

    fn slot(shape: &RecordShape, lock: u64, version: u64, key: &[u64], value: &[u8]) -> Vec<u64> {
        slot_with(shape, lock, version, &[], key, value)
    }

    fn slot_with(shape: &RecordShape, lock: u64, version: u64, extra: &[u64], key: &[u64], value: &[u8]) -> Vec<u64> {
        let mut words = vec![lock];
        let (version, _) = Version::from_bits(version);
        shape.encode_with_extra(version, Life::Present { incarnation: 5 }, extra, key, value, &mut words);
        words
    }

    /// The contents of a record of some shape.
    #[derive(Clone, Debug)]
    struct Sample {
        layout: Layout,
        extra: Vec<u64>,
        key: Vec<u64>,
        value: Vec<u8>,
    }

    impl Sample {
        fn shape(&self) -> RecordShape {
            RecordShape::of(&self.layout)
        }

        fn slot(&self, version: u64) -> Vec<u64> {
            slot_with(&self.shape(), 0, version, &self.extra, &self.key, &self.value)
        }

        /// Returns the record with other extra words and another value.
        fn changed(&self, by: u8) -> Sample {
            let extra = self.extra.iter().map(|word| word.wrapping_add(by.into())).collect();
            let value = self.value.iter().map(|byte| byte.wrapping_add(by)).collect();
            Sample { extra, value, ..self.clone() }
        }
    }

    /// Records of every scheme, with 0 to 4 extra words if the scheme has no cells.
    fn samples() -> impl Strategy<Value = Sample> {
        let words = |most: usize| proptest::collection::vec(any::<u64>(), 0..=most);
        let value = proptest::collection::vec(any::<u8>(), 0..700);
        (0usize..4, words(4), words(7), value, 0usize..50).prop_map(|(scheme, extra, mut key, mut value, mut spare)| {
            if scheme == SCHEMES.len() {
                let (head, cell) = (8 * spare, 1 + value.len() / 5);
                let count = value.len().saturating_sub(head).div_ceil(cell.next_multiple_of(8)).max(1);
                let layout = layout_with_cells(false, key.len() * WORD_BYTES, head, cell, count);
                return Sample { layout: layout.unwrap(), extra: vec![], key, value };
            }
            let scheme = SCHEMES[scheme];
            if scheme == ReadScheme::SingleLine {
                let room = LINE_WORDS - FIXED_WORDS - extra.len();
                key.truncate(room);
                value.truncate((room - key.len()) * WORD_BYTES);
                spare = 0;
            }
            let layout = layout_with_extra(extra.len(), key.len() * WORD_BYTES, value.len() + spare, scheme);
            Sample { layout: layout.unwrap(), extra, key, value }
        })
    }

    /// A word of memory that records the state of its line after every store, in order.
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

    /// A reader with an old location may find a record of whose memory some lines were given back
    /// to the system meanwhile, and are zero. It finds no key there.
    #[test]
    fn a_record_that_was_given_back_in_part_is_torn_or_absent() {
        for scheme in [ReadScheme::Checksum, ReadScheme::LineVersions] {
            let shape = RecordShape::of(&layout(16, 136, scheme).unwrap());
            let whole = slot(&shape, 0, 6, &[1, 2], &[7; 136]);
            let lines = whole.len().div_ceil(LINE_WORDS);
            for zeroed in 1..(1 << lines) {
                let mut words = whole.clone();
                for (line, words) in words.chunks_mut(LINE_WORDS).enumerate() {
                    words.iter_mut().for_each(|word| *word *= u64::from(zeroed >> line & 1 == 0));
                }
                let fetched = || FetchedRecord::new(&words, &shape);
                for found in [fetched().check(), fetched().check_in_place()] {
                    assert!(found.is_err() || found.is_ok_and(|record| !record.is_present()), "{scheme:?} {zeroed:b}");
                }
            }
        }
    }

    /// The lines of one READ may be of different times, and each time may lie between any two
    /// stores.
    #[test]
    fn what_a_cpu_is_installing_is_refused() {
        let schemes = [ReadScheme::Checksum, ReadScheme::LineVersions];
        for (scheme, extra) in schemes.into_iter().flat_map(|scheme| (0..5).map(move |extra| (scheme, extra))) {
            let bytes = 130 - extra * WORD_BYTES;
            let shape = RecordShape::of(&layout_with_extra(extra, 8, bytes, scheme).unwrap());
            let [old, new] = [(2, 1), (4, 2)].map(|(version, byte)| {
                slot_with(&shape, 0, version, &vec![byte.into(); extra], &[9], &vec![byte; bytes])
            });
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
        fn what_is_encoded_is_read_back(sample in samples(), version in 1u64..1 << 62) {
            let (shape, words) = (sample.shape(), sample.slot(version));
            prop_assert_eq!(shape.header_bytes(), (FIXED_WORDS + sample.extra.len()) * WORD_BYTES);
            prop_assert!(shape.record_bytes() <= sample.layout.slot_bytes as usize);
            let record = FetchedRecord::new(&words, &shape).check().unwrap();
            prop_assert!(record.has_key(&sample.key) && record.is_present());
            prop_assert!(record.key().eq(sample.key.iter().copied()));
            prop_assert_eq!((record.incarnation(), record.version().to_bits()), (5, version));
            prop_assert_eq!(record.extra(), &sample.extra[..]);
            let (mut read, mut first) = (Vec::new(), [0; 3]);
            record.copy_value(&mut read);
            prop_assert_eq!(&read.as_bytes()[..record.value_bytes()], &sample.value[..]);
            record.first_words(&mut first);
            read.resize(read.len().max(first.len()), 0);
            prop_assert_eq!(&first[..], &read[..first.len()]);
        }

        /// An install by a CPU leaves what a WRITE would leave.
        #[test]
        fn what_is_installed_is_the_image(old in samples(), by in any::<u8>()) {
            let (shape, new) = (old.shape(), old.changed(by).slot(4));
            let memory: Vec<_> = old.slot(2).into_iter().map(std::sync::atomic::AtomicU64::new).collect();
            shape.install(&memory, shape.image_of(&new));
            let found: Vec<_> = memory.iter().map(Word::load).collect();
            prop_assert_eq!(found, new);
        }

        #[test]
        fn a_rollback_differs_in_its_version_only(sample in samples()) {
            let shape = sample.shape();
            let mut words = sample.slot(2);
            shape.stamp(&mut words[1..], Version::from_bits(5).0);
            prop_assert_eq!(&words, &sample.slot(5));
            // A rollback of a slot that was never used is read back too.
            let mut unused = vec![0; shape.record_bytes() / 8];
            shape.stamp(&mut unused[1..], Version::from_bits(5).0);
            let record = FetchedRecord::new(&unused, &shape).check_in_place().unwrap();
            prop_assert!(!record.is_present() && record.version().to_bits() == 5);
            prop_assert!(record.extra().iter().all(|word| *word == 0));
        }

        /// A mixture of two states, lines or words, is never stable unless it is one of them.
        #[test]
        fn a_mixture_of_two_states_is_refused(sample in samples(), mask in any::<u64>(), by in 1u8..255) {
            let shape = sample.shape();
            let (before, after) = (sample.slot(2), sample.changed(by).slot(4));
            // Only a checksum promises anything about the words within a line. For the other
            // schemes, the fabric promises that a line is whole.
            let unit = if shape.scheme == ReadScheme::Checksum { 1 } else { LINE_WORDS };
            let mixed: Vec<u64> = (0..before.len())
                .map(|word| if mask >> (word / unit % 64) & 1 == 0 { before[word] } else { after[word] })
                .collect();
            if mixed != before && mixed != after {
                prop_assert_eq!(FetchedRecord::new(&mixed, &shape).check().err(), Some(Unstable::Torn));
            }
        }

        #[test]
        fn arbitrary_words_never_panic(
            words in proptest::collection::vec(any::<u64>(), 0..24), scheme in 0usize..3, value_at in any::<u16>(),
        ) {
            let layout = layout(8, 24, SCHEMES[scheme]).unwrap();
            let shape = RecordShape::of(&Layout { value_at, ..layout });
            let _ = (shape.life(&words), shape.validated(&words));
            if let Ok(record) = FetchedRecord::new(&words, &shape).check() {
                record.copy_value(&mut Vec::new());
                let _ = record.has_key(&[1]);
            }
            if let Some(record) = FetchedRecord::new(&words, &shape).unchecked() {
                record.copy_value(&mut Vec::new());
            }
        }
    }

    proptest! {
        /// What settles an image changes its time and makes it visible, and nothing else.
        #[test]
        fn a_settled_image_has_its_time(
            scheme in 0usize..3, value in proptest::collection::vec(any::<u8>(), 0..200), time in any::<u64>(),
            mask in any::<u64>(),
        ) {
            let scheme = SCHEMES[scheme];
            let value = if scheme == ReadScheme::SingleLine { &value[..value.len().min(16)] } else { &value[..] };
            let shape = RecordShape::of(&layout_with_time(true, 8, value.len(), scheme).unwrap());
            let written = slot(&shape, 0, 4, &[9], value);
            let mut memory = written.clone();
            memory[VERSION] |= Version::INVISIBLE;
            let mut image = written[VERSION..].to_vec();
            shape.settle(&mut image, time);
            for (at, words) in shape.settled(&image) {
                prop_assert!(FetchedRecord::new(&memory, &shape).check_in_place().is_err(), "it is not visible yet");
                memory[at as usize / 8..][..words.len()].copy_from_slice(words);
            }
            let record = FetchedRecord::new(&memory, &shape).check_in_place().unwrap();
            prop_assert_eq!((record.time(), record.image()), (time, &image[..]));
            let mut read = Vec::new();
            record.copy_value(&mut read);
            prop_assert_eq!(&read.as_bytes()[..record.value_bytes()], value);
            let contents = [&written[VERSION..], &image].map(|image| shape.content_checksum(image));
            prop_assert_eq!(contents[0], contents[1]);
            // A mixture with the next state is refused.
            let mut next = slot(&shape, 0, 6, &[9], value);
            shape.settle(&mut next[VERSION..], time.wrapping_add(1));
            let unit = if scheme == ReadScheme::Checksum { 1 } else { LINE_WORDS };
            let mixed: Vec<u64> = (0..memory.len())
                .map(|word| if mask >> (word / unit % 64) & 1 == 0 { memory[word] } else { next[word] })
                .collect();
            let found = FetchedRecord::new(&mixed, &shape).check_in_place();
            prop_assert!(mixed == memory || mixed == next || found.is_err());
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

    #[test]
    fn the_first_line_has_room_for_five_extra_words() {
        assert!(layout_with_extra(5, 8, 8, ReadScheme::Checksum).is_ok());
        assert!(layout_with_extra(6, 8, 8, ReadScheme::Checksum).is_err());
        assert!(layout_with_extra(3, 8, 8, ReadScheme::SingleLine).is_ok());
        assert!(layout_with_extra(4, 8, 8, ReadScheme::SingleLine).is_err());
    }

    /// Pins the format byte for byte, because data in memory nodes outlives programs.
    #[test]
    fn parts_of_one_state_belong_together() {
        let shape = RecordShape::of(&layout_with_cells(false, 8, 16, 20, 3).unwrap());
        assert_eq!(shape.record_bytes(), 24 + 8 + 16 + 3 * (24 + 8));
        let value = |by: u8| (0..16 + 3 * 24).map(|byte: u8| byte.wrapping_mul(3).wrapping_add(by)).collect::<Vec<_>>();
        let head = shape.head().unwrap();
        assert_eq!(head.record_bytes(), 24 + 8 + 16);
        let cell = |slot: &[u64], cell| {
            let (at, bytes) = shape.cell_place(cell).unwrap();
            slot[at as usize / 8..][..bytes / 8].to_vec()
        };
        let [one, other] = [(4, 0), (5, 7)].map(|(version, by)| slot(&shape, 0, version << 1, &[9], &value(by)));
        let of_head =
            |slot: &[u64]| FetchedRecord::new(&slot[..head.record_bytes() / 8], &head).check().unwrap().version();
        let stable = FetchedRecord::new(&one[..head.record_bytes() / 8], &head).check().unwrap();
        let mut words = Vec::new();
        stable.copy_value(&mut words);
        assert_eq!((words.as_bytes(), stable.value_bytes()), (&value(0)[..16], 16));
        for at in 0..3 {
            let found = cell(&one, at);
            let bytes = shape.cell_of(&found, of_head(&one)).unwrap().as_bytes();
            assert_eq!(bytes, &value(0)[16 + 24 * at..][..24]);
            assert_eq!(shape.cell_of(&found, of_head(&other)), None, "it is of another state");
            // A cell that is half written.
            for torn in 1..found.len() {
                let mixed = [&found[..torn], &cell(&other, at)[torn..]].concat();
                assert_eq!([&one, &other].map(|slot| shape.cell_of(&mixed, of_head(slot))), [None; 2]);
            }
        }
        assert_eq!((shape.cell_place(3), shape.cell_place(usize::MAX)), (None, None));
        let none = RecordShape::of(&layout(8, 100, ReadScheme::Checksum).unwrap());
        assert_eq!((none.head(), none.cell_place(0)), (None, None));
        assert!(
            [(8, 0, 3), (8, 8, 0), (0, 1 << 16, 1), (1 << 15, 1 << 12, 8)]
                .into_iter()
                .all(|(head, cell, count)| layout_with_cells(false, 8, head, cell, count).is_err())
        );
    }

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
        let layout = layout_with_extra(2, 8, 40, ReadScheme::LineVersions).unwrap();
        let words = slot_with(&RecordShape::of(&layout), 0, 6, &[7, 8], &[1], &[9; 40]);
        let nines = 0x0909_0909_0909_0909;
        assert_eq!(words, [0, 6, 40 << 16 | 5 << 2 | 1, 7, 8, 1, nines, nines, 6, nines, nines, nines]);
        assert_eq!(layout.value_at, 48);
    }

    const GOLDEN_CHECKSUM: u64 = 1_499_560_886;
}
