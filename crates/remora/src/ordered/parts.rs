//! The tables that an ordered table consists of.

use remora_index::btree::{Image, Shape};
use remora_node::{Fingerprint, MemoryError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::table::{OrderedKey, Record, Schema, Table};

/// A node as a record has it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(super) struct NodeRecord(pub(super) Image);

impl Record for NodeRecord {
    const SCHEMA: &'static str = "node of an ordered table";
}

pub(super) const INNER: &str = "inner";
pub(super) const LEAVES: &str = "leaves";
pub(super) const VALUES: &str = "values";

pub(super) fn part(name: &str, what: &str) -> String {
    format!("{name}/{what}")
}

pub(super) fn schema<K: OrderedKey, V: Record>() -> Schema {
    let of = format!("{}, of {}", NodeRecord::SCHEMA, V::SCHEMA);
    Schema { fingerprint: Fingerprint::of(&of, K::BYTES, size_of::<V>()), ..Table::<u64, NodeRecord>::schema() }
}

/// Whether leaves have the values.
pub(super) fn is_inline<K: OrderedKey, V: Record>() -> bool {
    Shape::new(K::BYTES, size_of::<V>()).is_some()
}

pub(super) fn shape<K: OrderedKey, V: Record>() -> Result<Shape, MemoryError> {
    let () = Table::<K, V>::FITS;
    let refused = || MemoryError::limit("bytes of a key of an ordered table", K::BYTES as u64, 64);
    Shape::new(K::BYTES, size_of::<V>()).or_else(|| Shape::new(K::BYTES, 0)).ok_or_else(refused)
}
