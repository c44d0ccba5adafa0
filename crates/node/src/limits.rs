//! Everything has a limit, and all of this crate's are here.

/// Tables of a cluster.
pub const TABLES_MAX: usize = 128;
/// Shards of a cluster, over all tables.
pub const SHARDS_MAX: usize = 1024;
/// Replicas of a shard: its primary and up to six backups.
pub const REPLICAS_MAX: usize = 7;
/// Bytes of a table's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of the text of a schema that the catalog keeps.
pub const SCHEMA_BYTES_MAX: usize = 128;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 64;
/// Bytes of a value: its length has 16 bits in a record's header.
pub const VALUE_BYTES_MAX: usize = (1 << 16) - 8;
/// Client incarnations connected to a cluster at one time.
pub const CLIENTS_MAX: usize = 1024;
/// Incarnations a cluster ever gives: 24 bits of a lock word.
pub const INCARNATIONS_MAX: u64 = (1 << 24) - 1;
/// Bytes of a redo ring, one for each lane of a client and each memory node.
pub const RING_BYTES: u64 = 64 << 10;
/// Redo rings that a memory node keeps room for when shards go there, beside the rings that clients
/// have at other nodes. Clients come back in the next epoch before their former rings are free. A
/// small node keeps an eighth of its memory instead.
pub const RINGS_SPARE: u64 = 64;
/// Largest frame of a ring: two must fit, or a client could wait for ever for room.
pub const FRAME_BYTES_MAX: usize = RING_BYTES as usize / 2;
/// Bytes of a record's slot: a record that no frame has room for could never be written.
pub const SLOT_BYTES_MAX: usize = FRAME_BYTES_MAX - 64;
