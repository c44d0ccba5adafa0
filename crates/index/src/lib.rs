//! Where a key lives.
//!
//! An index is read by one-sided READs and never talks to a memory node itself: it says which
//! bucket to read next and what the words that came back mean, and the transaction puts those READs
//! into its own rounds. So a lookup costs the round trips that its protocol shows, and a cached one
//! costs none.
//!
//! Two indexes, behind one trait ([`Index`]): [`cluster_hash`], whose buckets say where records
//! are, and [`fstore`], whose buckets hold them. In the former, inserts are prepared the CPU of the
//! primary's node ([`host`]); in the latter clients change everything themselves.
//!
//! Ordered tables are made of records of such tables, one for each node of a tree: [`btree`] says
//! what is in a node, and [`learned`] remembers where leaves are.
#![forbid(unsafe_code)]

pub mod btree;
mod buckets;
mod cache;
pub mod cluster_hash;
mod error;
pub mod fstore;
pub mod host;
pub mod learned;
mod load;
#[cfg(feature = "mutants")]
pub mod mutant;
mod patch;
mod sizes;
mod table;

pub use buckets::{Buckets, Index};
pub use cluster_hash::{Location, Probe};
pub use error::IndexError;
pub use host::{Host, HostShard, Prepared, Presence, Refused};
pub use load::{
    Loader, MakePart, Parts, TakeRow, begin, bulk_load, bulk_load_parts, check_empty, clear, give_up, loader, take_over,
};
pub use patch::{Patch, apply_deletion, apply_patch};
pub use sizes::Sizes;
pub use table::{BucketRef, Larger, Table};
