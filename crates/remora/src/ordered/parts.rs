//! The tables that an ordered table consists of.

use remora_index::btree::{Image, Shape};
use remora_node::limits::{KEY_BYTES_MAX, SLOT_BYTES_MAX};
use remora_node::{Fingerprint, MemoryError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::keys::padded_bytes;
use crate::dynamic::{DYN_VALUE_BYTES_MAX, DynSchema, Lengths};
use crate::record::Record;
use crate::table::{Schema, Table};

/// A node as a record has it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Record)]
#[record(schema = "node of an ordered table")]
#[repr(transparent)]
pub(super) struct NodeRecord(pub(super) Image);

pub(super) const INNER: &str = "inner";
pub(super) const LEAVES: &str = "leaves";
pub(super) const VALUES: &str = "values";

pub(super) fn part(name: &str, what: &str) -> String {
    format!("{name}/{what}")
}

/// How the tables of an ordered table are laid out.
pub(super) struct Form {
    pub(super) shape: Shape,
    /// The schema of leaves, and of inner nodes.
    pub(super) nodes: Schema,
    /// The schema of values, if leaves have no room for them.
    pub(super) values: Option<DynSchema>,
}

impl Form {
    /// The form of an ordered table of this schema.
    pub(super) fn of(schema: &DynSchema) -> Result<Form, MemoryError> {
        let (keys, values) = (schema.keys(), schema.values());
        let key_bytes = padded_bytes(keys);
        let inline = Shape::new(key_bytes.min(KEY_BYTES_MAX), padded_bytes(values));
        let apart = DynSchema::new(schema.description(), Lengths::Exactly(key_bytes), values);
        // What is behind a key: its length, and the number of a part of its value.
        let behind = usize::from(!keys.is_one()) + usize::from(inline.is_none() && apart.has_parts());
        let what = "bytes of a key of an ordered table";
        let values_max = if values.is_one() { SLOT_BYTES_MAX } else { DYN_VALUE_BYTES_MAX };
        schema.check_lengths((what, KEY_BYTES_MAX - behind), values_max)?;
        let refused = || MemoryError::limit(what, key_bytes as u64, KEY_BYTES_MAX as u64);
        let shape = inline.or_else(|| Shape::new(key_bytes, 0)).ok_or_else(refused)?;
        let of = format!("{}, of {}", NodeRecord::schema(), schema.description());
        let nodes = Schema {
            text: format!("{of}; keys of {keys}, values of {values}"),
            fingerprint: Fingerprint::of(&of, key_bytes, padded_bytes(values)),
            ..Table::<u64, NodeRecord>::schema()
        };
        Ok(Form { shape, nodes, values: inline.is_none().then_some(apart) })
    }
}
