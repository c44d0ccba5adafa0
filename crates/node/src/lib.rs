//! The layout of a memory node's memory: what it holds, and how clients find it again.
//!
//! A memory node is passive: clients lay out its memory by verbs. This crate knows that layout. It
//! consists of the [`node`] superblock with its allocation, the [`metadata`], the slots of live
//! clients, the [`ring`]s into which clients write their redo logs, their lists of [`hot`] records,
//! and the [`Archive`]s of what they have overwritten. The metadata are the catalog of tables, and
//! the configuration that says where the replicas of each shard are.
//!
//! Every structure has a magic number and a format version. A structure that is newer or foreign is
//! refused, and stays untouched.
#![forbid(unsafe_code)]

mod archive;
mod bytes;
mod client;
mod error;
pub mod hot;
mod id;
pub mod identity;
pub mod limits;
pub mod metadata;
pub mod node;
pub mod ring;

pub use archive::Archive;
pub use client::{
    ClientSlot, Registration, Remains, Room, changes, clients, come, connected, follow_leader, next_incarnation,
    registered,
};
pub use error::{MemoryError, OfTable, SchemaShown};
pub use id::{ShardId, TableId};
pub use identity::{GivenUp, Identity};
pub use metadata::{
    Cells, Discipline, Fingerprint, Grows, Growth, IndexKind, Layout, Metadata, Pointer, ReadScheme, Replica,
    ShardPlacement, Stage, TableEntry, TableSpec, Tombstone,
};
