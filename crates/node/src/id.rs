//! The ids of tables and of shards. They lie below the catalog, because errors name them too.

/// The id of a table: its index in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u16);

/// The id of a shard, which is the unit of placement. Every shard belongs to one table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);
