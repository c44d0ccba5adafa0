//! The indexes of tables: how a client finds the record of a key.
//!
//! An index is read by one-sided READs. The code here sends nothing to a memory node by itself. It
//! says which bucket to read next, and what the words mean that were read, and the transaction puts
//! these READs into its own rounds. So a lookup costs the round trips that its protocol shows, and
//! a cached lookup costs none.
//!
//! There are three hash indexes, behind one trait ([`Index`]). The buckets of [`cluster_hash`] name
//! the locations of records, and the CPU of the primary's node prepares inserts ([`host`]). The
//! buckets of [`fstore`] hold the records themselves, and clients change everything by themselves.
//! So they do with the buckets of [`objects`], which hold locks and the places of values.
//!
//! The extents of a [`race`] hash table have an index of their own, which no transaction uses.
//!
//! An ordered table is a tree whose nodes are records of such tables. [`btree`] has the layout of a
//! node, and [`learned`] remembers where leaves are.
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
pub mod objects;
mod patch;
pub mod race;
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
