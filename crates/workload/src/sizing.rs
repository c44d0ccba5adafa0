//! The sizes of memory nodes: how much memory a workload's tables need.

use remora::WorkerOptions;
use remora::floors::index::Sizes;
use remora::floors::node::{IndexKind, Room};
use remora::floors::record::layout_with_time;
use remora::protocol::ReadScheme;
use remora::{Key, OrderedOptions, Record};

/// What the memory of a node depends on, beside the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The number of memory nodes. A table has one shard for each.
    pub memory_nodes: u16,
    /// The number of copies of each record.
    pub replicas: u8,
    /// The number of workers that run transactions.
    pub workers: u64,
    /// The number of transactions that each worker has in flight.
    pub coroutines: u64,
    /// The bytes of each worker's archive ([`WorkerOptions::archive`]), if they are not the
    /// default.
    pub archive: Option<u64>,
}

/// The size of a table for which room is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableSize {
    rows: u64,
    slot_bytes: u32,
}

impl TableSize {
    /// Returns the size of a table of `rows` rows, whichever read scheme it will have.
    pub(crate) fn of<K: Key, V: Record>(rows: u64) -> TableSize {
        TableSize::new(rows, K::BYTES, size_of::<V>())
    }

    /// Returns the sizes of the tables that an ordered table of `rows` rows consists of.
    pub(crate) fn of_ordered<K: Key, V: Record>(options: OrderedOptions) -> Vec<TableSize> {
        let tables = options.tables::<K, V>();
        tables.into_iter().map(|(rows, key_bytes, value_bytes)| TableSize::new(rows, key_bytes, value_bytes)).collect()
    }

    fn new(rows: u64, key_bytes: usize, value_bytes: usize) -> TableSize {
        let schemes = [ReadScheme::SingleLine, ReadScheme::LineVersions, ReadScheme::Checksum];
        let with_time = schemes.iter().flat_map(|scheme| [(true, *scheme), (false, *scheme)]);
        let layouts =
            with_time.filter_map(|(timed, scheme)| layout_with_time(timed, key_bytes, value_bytes, scheme).ok());
        TableSize { rows, slot_bytes: layouts.map(|layout| layout.slot_bytes).max().unwrap_or(0) }
    }
}

/// Returns the bytes that each memory node needs for these tables, whichever the protocol.
pub(crate) fn node_bytes(tables: &[TableSize], setting: &Setting) -> u64 {
    node_bytes_of(tables, setting, &[IndexKind::ClusterHash, IndexKind::FStore])
}

/// Returns the bytes that each memory node needs for these tables, with any of these indexes.
pub(crate) fn node_bytes_of(tables: &[TableSize], setting: &Setting, kinds: &[IndexKind]) -> u64 {
    /// Bytes for superblock, catalog, and rounding to pages.
    const FIXED: u64 = 4 << 20;
    let shards = tables.iter().map(|table| {
        // Keys scatter at random, so a shard can get more than its share.
        let share = table.rows.div_ceil(setting.memory_nodes.max(1).into());
        // If a shard has more records than addresses, it needs more memory than any machine has.
        // The sum must not overflow.
        let rows = share.saturating_add(6 * share.isqrt()).saturating_add(64).min(1 << 48);
        kinds.iter().map(|kind| Sizes::for_rows(*kind, rows, table.slot_bytes).shard_bytes).max().unwrap_or(0)
    });
    let tables = shards.fold(0, u64::saturating_add).saturating_mul(setting.replicas.into());
    let archive = setting.archive.unwrap_or(WorkerOptions::default().archive);
    let room = Room { archive, ..Room::without_archive(setting.coroutines as usize) };
    let rings = setting.workers.saturating_mul(room.bytes() + 4096);
    FIXED.saturating_add(tables).saturating_add(rings)
}
