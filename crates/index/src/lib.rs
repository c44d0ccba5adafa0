//! Where a key lives.
//!
//! An index is read by one-sided READs and never talks to a memory node itself: it says which bucket to read next and
//! what the words that came back mean, and the transaction puts those READs into its own rounds. So a lookup costs the
//! round trips that its protocol shows, and a cached one costs none.
#![forbid(unsafe_code)]

mod cache;
pub mod cluster_hash;
mod error;
mod load;
mod table;

pub use cluster_hash::{Location, Probe};
pub use error::IndexError;
pub use load::bulk_load;
pub use table::{BucketRef, Table};
