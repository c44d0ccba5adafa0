//! The metadata of a cluster: the catalog, which lists the tables, and the configuration, which
//! says where the replicas of each shard lie.
//!
//! Both are one value. Every node has it in two copies, of which the newer whole one counts. Every
//! client reads it when it connects. Only two clients may change it: the holder of the leader's
//! catalog lock, or a client that has revoked the access of all clients. The leader is the live
//! node with the lowest number.
//!
//! This module has four parts: the value itself (`tables`), its bytes (`format`), the places of
//! replicas (`placement`), and the changes of tables (`catalog`).
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
//! table, 320 bytes
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
//! +115  index        u8    1 = cluster hash, 2 = FStore, 3 = objects, 4 = extent of RACE
//! +116  read_scheme  u8
//! +117  indirect_slots u8  of an indirect bucket, if these have fewer than main ones; else 0
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
//! +167  grows        u8    1 = when a program says so, 2 = by itself, before it is full
//! +168  head_bytes   u32   of a value that has cells, else 0
//! +172  cell_bytes   u16   of a value in a cell; 0 = there are no cells
//! +174  timed        u8    1 = a slot also has the time of the last commit; else 0
//! +192  schema       128 bytes, zero-padded UTF-8: what keys and values mean, for people
//! ```
//!
//! # Tables that are not ready
//!
//! A table that is created in several steps must not be seen half-made, and must not be in the way
//! when its client dies. So a table may be *unfinished*: its entry names the client that creates it
//! ([`begin_table`]), and no other client opens it.
//!
//! 1. The client removes the marks from all tables that it creates together in one change
//!    ([`finish_tables`]). So other clients see all of them or none.
//! 2. If the client fails, it discards the tables ([`discard_tables`]). If it dies, another client
//!    discards them, when no verb of the dead client can take effect any more.
//! 3. Ids are indices in the lists. So the entry of a discarded table stays if others are behind
//!    it. It is then *vacant*: it has no name, and its shards have no replicas. The next table with
//!    the same number of shards gets its ids.
//!
//! # Tables that are dropped
//!
//! Clients use a table that is ready. So a drop has two steps, and each is one change:
//!
//! 1. [`drop_tables`]: the entry says that the table is dropped. Its name is free, and no client
//!    opens the table. Its shards keep their replicas, because clients that do not know of the drop
//!    yet may still read and write them.
//! 2. [`free_dropped`]: the shards lose their replicas, which frees the space. The caller knows
//!    that no client uses the table any more (the module `dropping` of `remora` has the rule and
//!    the argument).
//!
//! After that the entry stays as a *tombstone*. It still has the table's name, for errors. Redo
//! rings and undo entries name shards by their ids. So the ids are given to another table only when
//! no ring can name the dropped one: when every client up to `last_client` has given its rings
//! back. Handles tell tables with the same id apart by the generation at which their table was
//! `born`.
//!
//! # Tables that grow
//!
//! A table becomes larger in three changes. After each change, the client that grows it waits until
//! every client knows of that change (the module `growth` of `remora` has the rule and the
//! argument):
//!
//! 1. [`begin_growth`]: a larger table of the same name is entered. Its entry names the table that
//!    grows into it. It is not found by its name.
//! 2. [`fill_larger`]: from now on, clients insert keys into the larger table, and rows move there.
//! 3. [`finish_growth`]: the smaller table is empty. It is dropped, and the larger one has the
//!    name.
//!
//! Any client can make each of these changes, also again. So if the client that grows the table
//! dies, another one continues.
//!
//! # Space
//!
//! Space is free if neither a shard of the catalog nor a client's slot names it, whatever it was
//! before. The holder of the catalog lock can tell what is free. Only it changes the catalog, and a
//! client that takes space for its rings shows that at the leader (`client`). The holder uses free
//! space before the untouched space of a node, because clients take their rings from untouched
//! space. So a client that dies between taking space and naming it in the catalog leaks nothing.

mod catalog;
mod format;
mod growth;
mod placement;
mod tables;

pub use catalog::{
    Places, begin_table, create_table, discard_tables, drop_tables, end_change_of, finish_tables, free_dropped,
    rename_tables, touch, unlock_catalog, while_there, who_changes,
};
pub use format::{generation_local, growth_words, is_filling, newest, publish, read, read_local};
pub use growth::{begin_growth, fill_larger, finish_growth};
pub use placement::{Wanted, arranged, arrangement, rearrange, room, without};
pub use tables::{
    Cells, Discipline, Fingerprint, Grows, Growth, IndexKind, Layout, Metadata, Pointer, ReadScheme, Replica,
    ShardPlacement, Stage, TableEntry, TableSpec, Tombstone,
};

pub use crate::bytes::{read_bytes, write_bytes, zero};
