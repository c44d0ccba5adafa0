//! What a transaction did to its records: each record that it read or wrote, and each range of keys
//! that it looked at.

use remora_index::Table;
use remora_record::Version;

/// One record of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The record's table.
    pub table: &'a Table,
    /// The record's key.
    pub key: &'a [u8],
    /// The version that was read; `None` if the key was not there.
    pub read: Option<Version>,
    /// What was done to it, and the version that was installed, or would have been.
    pub written: Option<(WriteKind, Version)>,
}

/// A range of keys that a transaction has looked at. The records of the range that it has read are
/// all that were there.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The table.
    pub table: &'a Table,
    /// The first key of the range, as bytes.
    pub from: &'a [u8],
    /// The end of the range, which is not in it any more.
    pub to: &'a [u8],
}

/// What a transaction does to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    /// The key was not there, and is inserted.
    Insert,
    /// The record's value is replaced.
    Update,
    /// The record is deleted.
    Delete,
}
