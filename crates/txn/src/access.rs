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
    /// What the transaction did to the record, and the version that it installed. If it has not
    /// committed: the version that it would have installed.
    pub written: Option<(WriteKind, Version)>,
}

/// A range of keys that a transaction has looked at. The transaction has read every record that the
/// table had in this range.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The table that has the range.
    pub table: &'a Table,
    /// The first key of the range, as bytes.
    pub from: &'a [u8],
    /// The end of the range, as bytes. The range does not include it.
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
