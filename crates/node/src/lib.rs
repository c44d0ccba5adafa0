//! What a memory node holds, and how it is found again.
//!
//! A memory node is passive: clients lay out its memory by verbs. This crate knows that layout: the
//! [`node`] superblock with its allocation, the [`metadata`] (the catalog of tables and the
//! configuration that says where each shard's replicas are), the slots of live clients, and the
//! [`ring`]s into which clients write their redo logs.
//!
//! Every structure carries a magic number and a format version; a newer or foreign one is refused,
//! untouched.
#![forbid(unsafe_code)]

mod bytes;
mod client;
mod error;
mod id;
pub mod identity;
pub mod limits;
pub mod metadata;
pub mod node;
pub mod ring;

pub use client::{
    ClientSlot, Registration, Remains, changes, clients, come, connected, follow_leader, next_incarnation, registered,
};
pub use error::{MemoryError, OfTable, SchemaShown};
pub use id::{ShardId, TableId};
pub use identity::{GivenUp, Identity};
pub use metadata::{
    Discipline, Fingerprint, Grows, Growth, IndexKind, Layout, Metadata, Pointer, ReadScheme, Replica, ShardPlacement,
    Stage, TableEntry, TableSpec, Tombstone,
};
