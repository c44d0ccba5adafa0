//! The catalog and the configuration: what tables there are, and where the replicas of each shard
//! lie.
//!
//! Both are one value. Every node has it in two copies, of which the newer whole one counts. Every
//! client reads it at connect. Only the holder of the leader's catalog lock may change it, or a
//! client that has revoked the access of all clients. The leader is the live node with the lowest
//! number.
//!
//! Four parts: the value itself (`tables`), its bytes (`format`), where replicas are to lie
//! (`placement`), and the changes of tables (`catalog`).
//!
//! ```text
//! header, 64 bytes                                  shard, 128 bytes
//! +0   magic       u64                              +0   table      u16
//! +8   format      u32                              +2   replicas   u16
//! +12  checksum    u32   of all else, crc32c        +8   bytes      u64
//! +16  features    u64                              +16  replica    7 times: node u16, region u16,
//! +24  generation  u64   grows with every change                    joining u32, base u64
//! +32  epoch       u64   of the configuration
//! +40  tables      u32   count
//! +44  shards      u32   count
//! then tables, then shards
//!
//! table, 192 bytes
//! +0    name         64 bytes, zero-padded UTF-8
//! +64   fingerprint  u64   of the schema
//! +72   buckets      u64   of a shard's index
//! +80   indirect     u64
//! +88   slots        u64
//! +96   value_max    u32   bytes
//! +100  slot_bytes   u32
//! +104  shard_first  u16
//! +106  shard_count  u16
//! +108  key_bytes    u16
//! +110  value_at     u16   bytes of a slot before the value, headers of further lines not counted
//! +112  line_header  u16   bytes of each further line before data
//! +114  replicas     u8
//! +115  index        u8    1 = cluster hash, 2 = FStore
//! +116  read_scheme  u8
//! +120  discipline   4 times u8
//! +124  creator      u32   0 = ready, see below
//! +128  born         u64   generation of the change that entered the table
//! +136  dropped      u64   generation of the change that dropped it; 0 = not dropped
//! +144  last_client  u32   once the space of a dropped table is free; 0 = not yet
//! +148  growths      u32   how many tables it has grown from
//! +152  origin       u64   generation of the change that entered the first of them
//! +160  grower       u32   client that moves rows here from a table that grows, see below
//! +164  grows_from   u16   that table
//! +166  stage        u8    1 = announced, 2 = filling; 0 = no table grows into it
//! +167  grows        u8    1 = clients make it larger before it is full
//! ```
//!
//! # Tables that are not ready
//!
//! A table that is created in several steps must not be seen half-made, nor be in the way when its
//! client dies. So a table may be *unfinished*: its entry names the client that creates it
//! ([`begin_table`]), and no other client opens it.
//!
//! 1. The client takes the marks from all tables that it creates together in one change
//!    ([`finish_tables`]): other clients see all of them or none.
//! 2. If it fails, it discards them ([`discard_tables`]). If it dies, another client does, once no
//!    verb of the dead one can take effect any more.
//! 3. Ids are places in the lists. So the entry of a discarded table with others behind it stays,
//!    *vacant*: without a name, and its shards without replicas. The next table of as many shards
//!    gets its ids.
//!
//! # Tables that are dropped
//!
//! Clients use a table that is ready. So a drop has two steps, each of which is one change:
//!
//! 1. [`drop_tables`]: the entry says that the table is dropped. Its name is free, and no client
//!    opens the table. Its shards keep their replicas, because clients that have not heard of the
//!    drop may still read and write them.
//! 2. [`free_dropped`]: the shards lose their replicas, which frees the space. The caller knows
//!    that no client uses the table any more (the module `dropping` of `remora` has the rule and
//!    the argument).
//!
//! The entry stays after that, as a *tombstone*. It still has the table's name, for errors. Redo
//! rings and undo entries name shards by their ids, so the ids are given to another table only when
//! no ring can name the dropped one: when every client up to `last_client` has given its rings
//! back. Handles are told apart by the generation at which their table was `born`.
//!
//! # Tables that grow
//!
//! A table becomes larger in three changes. Between them its grower waits until every client has
//! heard of the last one (the module `growth` of `remora` has the rule and the argument):
//!
//! 1. [`begin_growth`]: another table of the same name is entered, which is larger. It names the
//!    table that grows into it, and is not found by its name.
//! 2. [`fill_larger`]: from now on, clients insert keys into the larger one, and rows move there.
//! 3. [`finish_growth`]: the smaller one is empty. It is dropped, and the larger one has the name.
//!
//! Each of them can be made by any client, and again: if the grower dies, another one goes on.
//!
//! # Space
//!
//! Space that neither a shard of the catalog nor a client's slot names is free, whatever it once
//! was. The holder of the catalog lock can tell what is free: only it changes the catalog, and a
//! client that takes space for its rings shows that at the leader (`client`). It uses free space
//! before the untouched space of a node, since clients take their rings from untouched space. So a
//! client that dies between taking space and naming it in the catalog leaks nothing.

mod catalog;
mod format;
mod growth;
mod placement;
mod tables;

pub use catalog::{
    begin_table, create_table, discard_tables, drop_tables, end_change_of, finish_tables, free_dropped, rename_tables,
    unlock_catalog, while_there,
};
pub use format::{generation_local, newest, publish, read, read_local};
pub use growth::{begin_growth, fill_larger, finish_growth};
pub use placement::{Wanted, arranged, arrangement, rearrange, room, without};
pub use tables::{
    Discipline, Fingerprint, Grows, Growth, IndexKind, Layout, Metadata, Pointer, ReadScheme, Replica, ShardPlacement,
    Stage, TableEntry, TableSpec, Tombstone,
};

pub use crate::bytes::{read_bytes, write_bytes, zero};
