//! All limits of this crate.

/// The largest number of tables of a cluster.
pub const TABLES_MAX: usize = 128;
/// The largest number of shards of a cluster, over all tables.
pub const SHARDS_MAX: usize = 1024;
/// The largest number of replicas of a shard: a primary and up to six backups.
pub const REPLICAS_MAX: usize = 7;
/// The largest number of bytes of a table's name.
pub const NAME_BYTES_MAX: usize = 64;
/// The largest number of bytes of a schema's text in the catalog.
pub const SCHEMA_BYTES_MAX: usize = 128;
/// The largest number of bytes of a key.
pub const KEY_BYTES_MAX: usize = 64;
/// The largest number of bytes of a value. A record's header has 16 bits for the length.
pub const VALUE_BYTES_MAX: usize = (1 << 16) - 8;
/// The largest number of client incarnations connected to a cluster at one time.
pub const CLIENTS_MAX: usize = 1024;
/// The largest number of incarnations that a cluster ever gives. Lock words have 24 bits for it.
pub const INCARNATIONS_MAX: u64 = (1 << 24) - 1;
/// The bytes of a redo ring, unless its client has asked for more. There is one ring for each lane
/// of a client and each memory node.
pub const RING_BYTES: u64 = 64 << 10;
/// The bytes of the largest redo ring that a client can ask for.
pub const RING_BYTES_MAX: u64 = 1 << 20;
/// The largest number of records of a client's list of hot records.
pub const HOT_RECORDS_MAX: usize = 8;
/// The bytes of the largest list of hot records. Each client has this room behind its rings.
pub const HOT_LIST_BYTES: u64 = 40 + HOT_RECORDS_MAX as u64 * 112;
/// The largest number of bytes of a client's archive at a memory node. A record has 22 bits for a
/// place in it, in words.
pub const ARCHIVE_BYTES_MAX: u64 = 32 << 20;
/// The number of redo rings for which a memory node keeps room when shards move there, in addition
/// to the rings that clients have at other nodes. Clients connect again in the next epoch before
/// their former rings are free. A small node keeps an eighth of its memory instead.
pub const RINGS_SPARE: u64 = 64;
/// The bytes of the largest frame for which every ring has room. A larger ring takes frames of half
/// its own size. Two frames must fit, or a client could wait for ever for room.
pub const FRAME_BYTES_MAX: usize = RING_BYTES as usize / 2;
/// The largest number of bytes of a record's slot. A record could never be written if no frame had
/// room for it.
pub const SLOT_BYTES_MAX: usize = FRAME_BYTES_MAX - 64;
