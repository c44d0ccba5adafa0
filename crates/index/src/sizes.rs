//! The sizes of a table for a number of rows, for each kind of index.

use remora_node::IndexKind;

use crate::buckets::{Buckets, Index};
use crate::{cluster_hash, fstore, objects};

/// Largest number of rows for which sizes are computed. With it, nothing overflows, and
/// no memory node has room for the rows.
const ROWS_MAX: u64 = 1 << 46;

/// The sizes with which a table is created, computed from its number of rows per shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Number of main buckets of a shard.
    pub buckets: u64,
    /// Number of buckets by which chains grow.
    pub indirect: u64,
    /// Number of record slots.
    pub slots: u64,
    /// Number of record slots of an indirect bucket, if it has fewer than a main one. Otherwise 0.
    pub indirect_slots: u8,
    /// Bytes of a shard.
    pub shard_bytes: u64,
}

impl Sizes {
    /// Returns the sizes of a shard for a number of rows. If the shard would have more bytes than
    /// offsets can name, `shard_bytes` is larger than any offset.
    #[must_use]
    pub fn for_rows(kind: IndexKind, rows: u64, slot_bytes: u32) -> Sizes {
        let rows = rows.min(ROWS_MAX);
        match kind {
            IndexKind::ClusterHash => Sizes::of(&cluster_hash::Geometry::for_rows(rows, slot_bytes)),
            IndexKind::FStore => Sizes::of(&fstore::Geometry::for_rows(rows, slot_bytes)),
            IndexKind::Objects => Sizes::of(&objects::Geometry::for_rows(rows, slot_bytes)),
            // The sizes of an extent follow from its place among the extents, and not from rows.
            IndexKind::Race => Sizes { buckets: 0, indirect: 0, slots: 0, indirect_slots: 0, shard_bytes: u64::MAX },
        }
    }

    /// Returns the sizes of a shard for a number of rows, with as few bytes for each row as its
    /// index can have. Only FStore has a choice.
    #[must_use]
    pub fn dense_for_rows(kind: IndexKind, rows: u64, slot_bytes: u32) -> Sizes {
        match kind {
            IndexKind::FStore => Sizes::of(&fstore::Geometry::dense_for_rows(rows.min(ROWS_MAX), slot_bytes)),
            _ => Sizes::for_rows(kind, rows, slot_bytes),
        }
    }

    /// Returns the sizes of a shard with this index.
    #[must_use]
    pub fn of(index: &dyn Index) -> Sizes {
        let Buckets { main, overflow, .. } = index.buckets();
        let (slots, indirect_slots) = (index.slots_in_all(), index.indirect_slots());
        Sizes { buckets: main, indirect: overflow, slots, indirect_slots, shard_bytes: index.bytes() }
    }
}
