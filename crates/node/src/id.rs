//! The ids of tables and of shards. Errors name them too, so they lie below the catalog.

/// A table, by its place in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u16);

/// A shard: the unit of placement. Every shard belongs to one table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);
