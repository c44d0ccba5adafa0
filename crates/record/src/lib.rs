//! The words by which clients coordinate (lock, version, latch), and records that a client can
//! check after one READ.
//!
//! The crate consists of pure decisions on plain values. No function here talks to a memory node,
//! so all tests run without one.
#![forbid(unsafe_code)]

mod former;
mod key;
pub mod latch;
mod lock;
mod object;
mod record;
mod version;

pub use former::Former;
pub use key::{Key, KeyHash};
pub use lock::{LockWord, LogPlace, RepairableLock, SharedLock, Swap, TransactionId};
pub use object::Place;
pub use record::{
    FetchedRecord, INCARNATION_MASK, Life, RecordHeader, RecordShape, StableRecord, Unstable, layout, layout_of_block,
    layout_with_cells, layout_with_extra, layout_with_time, structural, value_words,
};
pub use version::Version;
