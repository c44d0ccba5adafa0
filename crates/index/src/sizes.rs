//! How large a table is to be for a number of rows, whatever its index.

use remora_node::IndexKind;

use crate::buckets::{Buckets, Index};
use crate::{cluster_hash, fstore};

/// What a table is created with, computed from its number of rows per shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Main buckets of a shard.
    pub buckets: u64,
    /// Buckets that chains grow by.
    pub indirect: u64,
    /// Slots of records.
    pub slots: u64,
    /// Bytes of a shard.
    pub shard_bytes: u64,
}

impl Sizes {
    /// Sizes of a shard for a number of rows. If there is no such shard, because it would have more
    /// bytes than offsets can name, its size says so.
    #[must_use]
    pub fn for_rows(kind: IndexKind, rows: u64, slot_bytes: u32) -> Sizes {
        // No sum or product overflows for as many, and no memory node has room for them.
        const ROWS_MAX: u64 = 1 << 46;
        let rows = rows.min(ROWS_MAX);
        match kind {
            IndexKind::ClusterHash => Sizes::of(&cluster_hash::Geometry::for_rows(rows, slot_bytes)),
            IndexKind::FStore => Sizes::of(&fstore::Geometry::for_rows(rows, slot_bytes)),
        }
    }

    /// The sizes of a shard that has this index.
    #[must_use]
    pub fn of(index: &dyn Index) -> Sizes {
        let Buckets { main, overflow, .. } = index.buckets();
        Sizes { buckets: main, indirect: overflow, slots: index.slots_in_all(), shard_bytes: index.bytes() }
    }
}
