//! The tables that an ordered table consists of.

use remora_index::btree::{Image, Shape};
use remora_node::{Fingerprint, MemoryError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::key::Key;
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

pub(super) fn schema<K: Key, V: Record>() -> Schema {
    let of = format!("{}, of {}", NodeRecord::schema(), V::schema());
    Schema { fingerprint: Fingerprint::of(&of, K::BYTES, V::BYTES), ..Table::<u64, NodeRecord>::schema() }
}

/// Whether leaves have the values.
pub(super) fn is_inline<K: Key, V: Record>() -> bool {
    Shape::new(K::BYTES, V::BYTES).is_some()
}

pub(super) fn shape<K: Key, V: Record>() -> Result<Shape, MemoryError> {
    let () = Table::<K, V>::FITS;
    let refused = || MemoryError::limit("bytes of a key of an ordered table", K::BYTES as u64, 64);
    Shape::new(K::BYTES, V::BYTES).or_else(|| Shape::new(K::BYTES, 0)).ok_or_else(refused)
}
