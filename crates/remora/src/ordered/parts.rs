//! The tables that an ordered table consists of.

use remora_index::btree::{
    LEAF_BYTES_MAX, LEAF_ENTRIES_MIN, NODE_BYTES, SLOTTED_KEY_BYTES_MAX, SLOTTED_NODE_BYTES_MAX, Shape,
};
use remora_index::host::LINKS_MAX;
use remora_node::limits::{FRAME_BYTES_MAX, KEY_BYTES_MAX, SLOT_BYTES_MAX};
use remora_node::ring::FRAME_OVERHEAD_WORDS;
use remora_node::{Fingerprint, MemoryError};
use remora_record::Key;
use remora_txn::log;

use super::keys::padded_bytes;
use crate::dynamic::{DYN_KEY_BYTES_MAX, DYN_VALUE_BYTES_MAX, DynSchema, Lengths};
use crate::table::Schema;

// Every key that a table of bytes can have fits a node.
const _: () = assert!(SLOTTED_KEY_BYTES_MAX == DYN_KEY_BYTES_MAX);

// A split of the root and of three levels below it fits a log entry, whatever the index needs.
const _: () = {
    let structural = 3 * (log::RECORD_WORDS + 3);
    let patches = (1 + LINKS_MAX) * log::PATCH_WORDS;
    let slot = SLOTTED_NODE_BYTES_MAX.next_multiple_of(64) / size_of::<u64>();
    let (node, index) = (log::RECORD_WORDS + slot, if patches > structural { patches } else { structural });
    assert!(FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + 9 * node + 5 * index <= FRAME_BYTES_MAX / size_of::<u64>());
    // So does one of two leaves whose keys come first, in which each value has a check.
    assert!(4 * LEAF_BYTES_MAX + 7 * NODE_BYTES <= 9 * SLOTTED_NODE_BYTES_MAX);
};

/// What the catalog says of a node.
const NODE: &str = "node of an ordered table";

pub(super) const INNER: &str = "inner";
pub(super) const LEAVES: &str = "leaves";
pub(super) const VALUES: &str = "values";

pub(super) fn part(name: &str, what: &str) -> String {
    format!("{name}/{what}")
}

/// The key of a node in its table.
pub(super) fn node_key(id: u64) -> Key {
    Key::new(&id.to_be_bytes()).expect("eight bytes are a key")
}

/// How the tables of an ordered table are laid out.
pub(super) struct Form {
    pub(super) shape: Shape,
    /// The schema of inner nodes.
    pub(super) inner: Schema,
    /// The schema of leaves.
    pub(super) leaves: Schema,
    /// The schema of values, if leaves have no room for them.
    pub(super) values: Option<DynSchema>,
}

impl Form {
    /// The form of an ordered table of this schema. Keys of different lengths are padded if a
    /// record can have them as its key; otherwise nodes are slotted.
    pub(super) fn of(schema: &DynSchema, leaf_entries: Option<u16>) -> Result<Form, MemoryError> {
        let (keys, values) = (schema.keys(), schema.values());
        let key_bytes = padded_bytes(keys);
        if let Some(entries) = leaf_entries.filter(|_| padded_bytes(values) > 0) {
            return Form::keys_first(schema, entries.into());
        }
        let inline = Shape::new(key_bytes.min(KEY_BYTES_MAX), padded_bytes(values));
        let apart = DynSchema::new(schema.description(), Lengths::Exactly(key_bytes), values);
        // What is behind a key: its length, and the number of a part of its value.
        let of_part = usize::from(inline.is_none() && apart.has_parts());
        if !keys.is_one() && key_bytes > KEY_BYTES_MAX - of_part {
            return Form::slotted(schema);
        }
        let what = "bytes of a key of an ordered table";
        let values_max = if values.is_one() { SLOT_BYTES_MAX } else { DYN_VALUE_BYTES_MAX };
        schema.check_lengths((what, KEY_BYTES_MAX - of_part), values_max)?;
        let refused = || MemoryError::limit(what, key_bytes as u64, KEY_BYTES_MAX as u64);
        let shape = inline.or_else(|| Shape::new(key_bytes, 0)).ok_or_else(refused)?;
        Ok(Form::with(schema, shape, inline.is_none().then_some(apart)))
    }

    /// The form of an ordered table whose leaves have this many entries, and their keys first.
    fn keys_first(schema: &DynSchema, entries: usize) -> Result<Form, MemoryError> {
        let (key_bytes, value_bytes) = (padded_bytes(schema.keys()), padded_bytes(schema.values()));
        let what = "bytes of a key of an ordered table whose leaves have their keys first";
        let keys_max = KEY_BYTES_MAX - usize::from(!schema.keys().is_one());
        schema.check_lengths((what, keys_max), DYN_VALUE_BYTES_MAX)?;
        let entries = entries.max(LEAF_ENTRIES_MIN);
        let shape = Shape::keys_first(key_bytes, value_bytes, entries).ok_or_else(|| {
            let of_entry = key_bytes.saturating_add(value_bytes.next_multiple_of(8));
            let wanted = entries.saturating_mul(of_entry).saturating_add(16 + 2 * key_bytes);
            MemoryError::limit("bytes of a leaf whose keys come first", wanted as u64, LEAF_BYTES_MAX as u64)
        })?;
        Ok(Form::with(schema, shape, None))
    }

    fn with(schema: &DynSchema, shape: Shape, values: Option<DynSchema>) -> Form {
        let [inner, leaves] = [1, 0].map(|level| of_nodes(schema, &shape, level));
        Form { shape, inner, leaves, values }
    }

    fn slotted(schema: &DynSchema) -> Result<Form, MemoryError> {
        let (keys, values) = (schema.keys(), schema.values());
        let what = "bytes of a key of an ordered table";
        schema.check_lengths((what, DYN_KEY_BYTES_MAX), DYN_VALUE_BYTES_MAX)?;
        let inline = Shape::up_to(keys.max(), padded_bytes(values));
        let refused = || MemoryError::limit(what, keys.max() as u64, DYN_KEY_BYTES_MAX as u64);
        let shape = inline.or_else(|| Shape::up_to(keys.max(), 0)).ok_or_else(refused)?;
        let apart = || DynSchema::new(schema.description(), keys, values);
        Ok(Form::with(schema, shape, inline.is_none().then(apart)))
    }
}

/// The schema of the table of inner nodes (`level` 1), or of leaves (0).
fn of_nodes(schema: &DynSchema, shape: &Shape, level: u16) -> Schema {
    let (keys, values) = (schema.keys(), schema.values());
    let of = format!("{NODE}, of {}", schema.description());
    Schema {
        text: format!("{of}; keys of {keys}, values of {values}"),
        fingerprint: Fingerprint::of(&of, shape.key_bytes(), padded_bytes(values)),
        key_bytes: size_of::<u64>(),
        value_bytes: shape.bytes_of(level),
    }
}
