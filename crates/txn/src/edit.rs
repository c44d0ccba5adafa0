//! Changes of one entry of a leaf by memory nodes' CPUs. The client sends the key and the new
//! value, and not the leaf: XStore's server-side updates, inserts and deletes (Wei thesis, section
//! 3.4.3), as parts of replicated transactions. This file has the memory node's end. The client's
//! end is `tree.rs` (TAKE) and `protocol/redo.rs` (EDIT, INSTALL).
//!
//! ```text
//! request, words                                reply, words               effect
//! TAKE     leaf shard, inner shard or NONE,     leaf's id, outcome, entry, locks the leaf, if the
//!          leaf's id or NONE, me, shape, key    lock found, version, and   change is possible
//!                                               the key's value
//! UNTAKE   as TAKE                                                         takes a TAKE back
//! EDIT     ring offset, transaction, epoch,     1                          a log entry, in the
//!          participants, pointer, version,                                 ring at this offset
//!          shape, key, value
//! INSTALL  ring offset, pointer, me                                        installs what the entry
//!                                                                          says, and unlocks
//! ```
//!
//! The upper half of a request's first word has the kind of the change, and the length of the key.
//! The shape is that of the tree's nodes (`Shape::to_word`).
//!
//! # Why an entry in a ring is as good as one that a client has written
//!
//! EDIT makes the very frame that the client would have written: the image of the leaf's version
//! that the client has locked, changed as the request says. Every replica makes the same bytes,
//! since a change of a node is a function of its bytes. So appliers, recovery and installation know
//! nothing of edits.
//!
//! A backup may not have applied that version yet. Its log entry is in a ring of this node, because
//! the version was installed at the primary, where the client has read it, only after every
//! participant had acknowledged the entry. So the CPU takes the image from there.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::{WORD_BYTES, copy};
use remora_index::btree::{Node, Shape};
use remora_node::clients;
use remora_node::ring::{self, FRAME_OVERHEAD_WORDS, RingReader};
use remora_node::{Pointer, ShardId};
use remora_record::{FetchedRecord, Life, RecordShape};
use zerocopy::IntoBytes;

use crate::descent::{NONE, parse_start};
use crate::limits::READ_ATTEMPTS;
use crate::log::{self, HEADER_WORDS, LoggedRecord, RECORD_WORDS};
use crate::words::push_bytes;

/// Words of a TAKE before the key.
pub(crate) const TAKE_WORDS: usize = 6;
/// Words of a reply to TAKE before the key's value.
pub(crate) const TAKEN_WORDS: usize = 5;
/// Words of an EDIT before the key.
pub(crate) const EDIT_WORDS: usize = 8;

/// What a client wants of one entry of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EditKind {
    /// Another value for a key that is there.
    Update = 1,
    /// A key that is not there.
    Insert = 2,
    /// A key with this value, whether it is there or not.
    Put = 3,
    /// A key that is there goes.
    Remove = 4,
}

impl EditKind {
    const SHIFT: u32 = 16;
    const ALL: [EditKind; 4] = [EditKind::Update, EditKind::Insert, EditKind::Put, EditKind::Remove];

    /// Returns the upper half of a request's first word.
    pub(crate) fn count(self, key_bytes: usize) -> usize {
        (self as usize) << EditKind::SHIFT | key_bytes
    }

    fn parse(count: usize) -> Option<(EditKind, usize)> {
        let kind = EditKind::ALL.into_iter().find(|kind| *kind as usize == count >> EditKind::SHIFT)?;
        Some((kind, count & ((1 << EditKind::SHIFT) - 1)))
    }

    /// Returns whether the change has a value.
    fn has_value(self) -> bool {
        self != EditKind::Remove
    }
}

/// What a leaf makes possible of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum EditOutcome {
    /// The change is possible. The key is there.
    Present = 1,
    /// The change is possible. The key is not there.
    Absent = 2,
    /// Nothing is to be changed, because the key is there.
    Exists = 3,
    /// Nothing is to be changed, because the key is not there.
    Missing = 4,
    /// The change concerns more than this leaf: it is full, or would become empty.
    Structural = 5,
    /// Another transaction has the leaf locked.
    Busy = 6,
    /// The record is not the leaf of the key.
    Another = 7,
}

impl EditOutcome {
    const ALL: [EditOutcome; 7] = [
        EditOutcome::Present,
        EditOutcome::Absent,
        EditOutcome::Exists,
        EditOutcome::Missing,
        EditOutcome::Structural,
        EditOutcome::Busy,
        EditOutcome::Another,
    ];

    pub(crate) fn of_word(word: u64) -> Option<EditOutcome> {
        EditOutcome::ALL.into_iter().find(|outcome| *outcome as u64 == word)
    }

    /// Returns whether the leaf is locked for the change.
    pub(crate) fn is_taken(self) -> bool {
        matches!(self, EditOutcome::Present | EditOutcome::Absent)
    }
}

/// A change of one entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit<'e> {
    pub(crate) kind: EditKind,
    pub(crate) shape: Shape,
    pub(crate) key: &'e [u8],
    /// Empty if the change has none.
    pub(crate) value: &'e [u8],
}

impl Edit<'_> {
    /// Returns what a leaf makes possible of the change.
    fn outcome(&self, leaf: &Node<&[u8]>) -> EditOutcome {
        if leaf.level() != 0 || !leaf.contains(self.key) {
            return EditOutcome::Another;
        }
        match (leaf.find(self.key), self.kind) {
            (Ok(_), EditKind::Insert) => EditOutcome::Exists,
            (Ok(_), EditKind::Remove) if leaf.count() == 1 => EditOutcome::Structural,
            (Ok(_), _) => EditOutcome::Present,
            (Err(_), EditKind::Update | EditKind::Remove) => EditOutcome::Missing,
            (Err(_), _) if !leaf.has_room(self.key) => EditOutcome::Structural,
            (Err(_), _) => EditOutcome::Absent,
        }
    }

    /// Makes the change in the bytes of a leaf. Returns `None`, and changes nothing, if it is not
    /// possible there.
    pub(crate) fn apply(&self, leaf: &mut [u8]) -> Option<()> {
        let node = Node::new(self.shape, &*leaf).ok()?;
        node.check().ok()?;
        if !self.outcome(&node).is_taken() || self.kind.has_value() && self.value.len() != self.shape.value_bytes() {
            return None;
        }
        let place = node.find(self.key);
        let mut node = Node::new(self.shape, leaf).ok()?;
        match (place, self.kind) {
            (Ok(at), EditKind::Remove) => node.remove(at),
            (Ok(at), _) => node.into_value(at).copy_from_slice(self.value),
            (Err(at), _) => node.insert(at, self.key, self.value),
        }
        Some(())
    }
}

/// A request to lock a leaf for a change, or to take that back.
pub(crate) struct Take<'a> {
    pub(crate) leaves: ShardId,
    /// Shard of the inner nodes, if they are all here, and the root.
    pub(crate) start: Option<(ShardId, u64)>,
    /// The leaf's id, if the client remembers one.
    pub(crate) leaf: Option<u64>,
    pub(crate) me: u64,
    pub(crate) edit: Edit<'a>,
}

impl Take<'_> {
    pub(crate) fn parse(count: usize, arguments: &[u64]) -> Option<Take<'_>> {
        let (kind, key_bytes) = EditKind::parse(count)?;
        let (&[leaves, start, leaf, me, shape], key) = arguments.split_first_chunk()?;
        let leaves = u16::try_from(leaves).ok().map(ShardId)?;
        let shape = Shape::from_word(shape)?;
        let key = key.as_bytes().get(..key_bytes).filter(|key| shape.has_key_of(key.len()))?;
        let leaf = (leaf != NONE).then_some(leaf);
        let edit = Edit { kind, shape, key, value: &[] };
        Some(Take { leaves, start: parse_start(start), leaf, me, edit })
    }

    /// Returns what a leaf, whose bytes these are, makes possible of the change, and the words of
    /// the key's value.
    pub(crate) fn look(&self, leaf: &[u64], value: &mut Vec<u64>) -> EditOutcome {
        let Ok(leaf) = Node::new(self.edit.shape, leaf.as_bytes()) else { return EditOutcome::Another };
        let outcome = self.edit.outcome(&leaf);
        if let (EditOutcome::Present | EditOutcome::Exists, Ok(at)) = (outcome, leaf.find(self.edit.key)) {
            push_bytes(value, leaf.value(at));
        }
        outcome
    }
}

/// A replica of a shard in a node's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) shape: RecordShape,
}

/// A request for a log entry.
pub(crate) struct LogEdit<'a> {
    /// Where the frame goes.
    pub(crate) offset: u64,
    id: u64,
    epoch: u64,
    participants: u64,
    pub(crate) pointer: Pointer,
    old_version: u64,
    edit: Edit<'a>,
}

impl LogEdit<'_> {
    pub(crate) fn parse(count: usize, arguments: &[u64]) -> Option<LogEdit<'_>> {
        let (kind, key_bytes) = EditKind::parse(count)?;
        let (&[offset, id, epoch, participants, pointer, old_version, shape], rest) = arguments.split_first_chunk()?;
        let shape = Shape::from_word(shape)?;
        let (key, value) = rest.split_at_checked(key_bytes.div_ceil(WORD_BYTES))?;
        let key = key.as_bytes().get(..key_bytes).filter(|key| shape.has_key_of(key.len()))?;
        let value_bytes = if kind.has_value() { shape.value_bytes() } else { 0 };
        let edit = Edit { kind, shape, key, value: value.as_bytes().get(..value_bytes)? };
        let pointer = Pointer::from_bits(pointer);
        Some(LogEdit { offset, id, epoch, participants, pointer, old_version, edit })
    }

    /// Returns the frame that the client would write: the leaf as it is in this replica, or in a
    /// ring of this node, with the change.
    pub(crate) fn frame(&self, words: &[AtomicU64], copy: &Copied) -> Option<Vec<u64>> {
        let shape = &copy.shape;
        let before = self.before(words, copy)?;
        let record = FetchedRecord::new(&before, shape).check_in_place().ok()?;
        if !record.is_present() {
            return None;
        }
        let mut leaf = Vec::with_capacity(shape.value_max().div_ceil(WORD_BYTES));
        record.copy_value(&mut leaf);
        self.edit.apply(leaf.as_mut_bytes().get_mut(..record.value_bytes())?)?;
        let key: Vec<u64> = record.key().collect();
        let (version, life) = (record.version().committed_over(), Life::Present { incarnation: record.incarnation() });
        let mut image = Vec::with_capacity(shape.image_words());
        shape.encode(version, life, &key, &leaf.as_bytes()[..record.value_bytes()], &mut image);
        let mut frame = vec![0; FRAME_OVERHEAD_WORDS + HEADER_WORDS + RECORD_WORDS + image.len()];
        let end = frame.len() - 1;
        let logged = LoggedRecord { pointer: self.pointer, old_version: self.old_version, image: &image, patches: &[] };
        log::encode(&mut frame[2..end], self.epoch, self.participants, std::iter::once(logged));
        ring::seal(&mut frame, self.id);
        Some(frame)
    }

    /// Returns the words of the slot in the version that the client has locked.
    fn before(&self, words: &[AtomicU64], copy: &Copied) -> Option<Vec<u64>> {
        let (offset, bytes) = (self.pointer.offset(), copy.shape.record_bytes());
        let is_inside = offset.is_multiple_of(WORD_BYTES as u64) && offset.checked_add(bytes as u64)? <= copy.bytes;
        let at = (copy.base.checked_add(offset)? / WORD_BYTES as u64) as usize;
        if !is_inside || at + bytes / WORD_BYTES > words.len() {
            return None;
        }
        let is_it = |slot: &[u64]| {
            let version = slot.get(copy.shape.image_at() as usize / WORD_BYTES);
            version == Some(&self.old_version) && FetchedRecord::new(slot, &copy.shape).check_in_place().is_ok()
        };
        let mut slot = vec![0; bytes / WORD_BYTES];
        for _ in 0..READ_ATTEMPTS {
            copy::read(words, at, &mut slot);
            if is_it(&slot) {
                return Some(slot);
            }
            // An applier may bring it to the record at any time, and then frees the entry's place.
            if let Some(image) = self.image_in_rings(words) {
                slot.truncate(copy.shape.image_at() as usize / WORD_BYTES);
                slot.extend_from_slice(&image);
                if is_it(&slot) {
                    return Some(slot);
                }
                slot.resize(bytes / WORD_BYTES, 0);
            }
        }
        None
    }

    /// Returns the image of the version that the client has locked, from an entry that has not been
    /// applied.
    fn image_in_rings(&self, words: &[AtomicU64]) -> Option<Vec<u64>> {
        let (mut found, mut scratch) = (None, Vec::new());
        for client in clients(words) {
            for lane in 0..client.lanes {
                let Some(mut ring) = RingReader::resume(words, client.ring(lane), client.incarnation) else { continue };
                while let Some((_, entry)) = ring.next(words, &mut scratch) {
                    let is_it = |record: &LoggedRecord<'_>| {
                        record.pointer == self.pointer && record.image.first() == Some(&self.old_version)
                    };
                    found = log::records(entry).find(is_it).map(|record| record.image.to_vec()).or(found);
                }
            }
        }
        found
    }
}

/// Returns the image of a record from the log entry in the frame at an offset of the region.
pub(crate) fn logged_image(words: &[AtomicU64], offset: u64, pointer: Pointer) -> Option<Vec<u64>> {
    let at = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(WORD_BYTES))? / WORD_BYTES;
    let length = (words.get(at + 1)?.load(Ordering::Acquire) >> 32) as usize;
    let frame = words.get(at..at.checked_add(length)?)?;
    let frame: Vec<u64> = frame.iter().map(|word| word.load(Ordering::Acquire)).collect();
    let entry = ring::entry_of(&frame)?;
    log::records(entry).find(|record| record.pointer == pointer).map(|record| record.image.to_vec())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn shapes() -> [Shape; 3] {
        let shapes = [Shape::new(2, 100), Shape::keys_first(2, 100, 9), Shape::up_to(2, 100)];
        shapes.map(|shape| shape.expect("a shape"))
    }

    proptest! {
        /// A leaf beside a map. What the CPU says before is what it does.
        #[test]
        fn a_leaf_is_changed_as_a_map_is(
            changes in prop::collection::vec((0usize..4, 0u16..12, any::<u8>()), 0..60), of in 0usize..3,
        ) {
            let shape = shapes()[of];
            let mut model = BTreeMap::new();
            let mut leaf = Vec::new();
            let _ = Node::create(shape, &mut leaf, 0, &shape.least());
            for (kind, number, byte) in changes {
                let (kind, key, value) = (EditKind::ALL[kind], number.to_be_bytes(), [byte; 100]);
                let value = if kind.has_value() { &value[..] } else { &[] };
                let edit = Edit { kind, shape, key: &key, value };
                let said = edit.outcome(&Node::new(shape, &leaf[..]).unwrap());
                let (is_there, before) = (model.contains_key(&key), leaf.clone());
                match edit.apply(&mut leaf) {
                    Some(()) => {
                        prop_assert_eq!(said, if is_there { EditOutcome::Present } else { EditOutcome::Absent });
                        if kind == EditKind::Remove { model.remove(&key) } else { model.insert(key, value.to_vec()) };
                    }
                    None => {
                        prop_assert!(!said.is_taken() && leaf == before);
                        prop_assert_eq!(said == EditOutcome::Exists, kind == EditKind::Insert && is_there);
                        let misses = matches!(kind, EditKind::Update | EditKind::Remove) && !is_there;
                        prop_assert_eq!(said == EditOutcome::Missing, misses);
                    }
                }
                let node = Node::new(shape, &leaf[..]).unwrap();
                prop_assert_eq!(node.check(), Ok(()));
                let found = (0..node.count()).map(|at| (node.key(at).to_vec(), node.value(at).to_vec()));
                prop_assert!(found.eq(model.iter().map(|(key, value)| (key.to_vec(), value.clone()))));
            }
        }

        /// Whatever a client asks for, nothing panics.
        #[test]
        fn any_words_are_a_request_or_refused(
            arguments in prop::collection::vec(any::<u64>(), 0..40), kind in 0usize..6, length in 0usize..600,
            of in 0usize..3, leaf in prop::collection::vec(any::<u64>(), 0..200),
        ) {
            let count = kind << EditKind::SHIFT | length;
            let mut region: Vec<AtomicU64> = leaf.iter().map(|word| AtomicU64::new(*word)).collect();
            region.resize_with(remora_node::node::BYTES_MIN as usize / WORD_BYTES, AtomicU64::default);
            let shape = RecordShape::of(&remora_record::layout(8, 64, remora_node::ReadScheme::Checksum).unwrap());
            let copy = Copied { base: 0, bytes: 8 * leaf.len() as u64, shape };
            for is_shape in [false, true] {
                let mut arguments = arguments.clone();
                for at in [4, 6] {
                    if let Some(word) = arguments.get_mut(at).filter(|_| is_shape) {
                        *word = shapes()[of].to_word();
                    }
                }
                if let Some(take) = Take::parse(count, &arguments) {
                    take.look(&leaf, &mut Vec::new());
                }
                if let Some(edit) = LogEdit::parse(count, &arguments) {
                    prop_assert_eq!(edit.frame(&region, &copy), None);
                }
                for offset in arguments {
                    logged_image(&region, offset, Pointer::from_bits(0));
                    logged_image(&region, offset % 2048, Pointer::from_bits(0));
                }
            }
        }
    }
}
