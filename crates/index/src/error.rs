//! The error of opening or loading a table.

use remora_fabric::FabricError;
use remora_node::MemoryError;

/// Why a table could not be opened or loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexError {
    /// An error of the memory nodes.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A table has no room for more rows.
    #[error("table {table:?} is full: {rows} rows do not fit ({what}); create it with a larger capacity")]
    Full {
        /// The table's name.
        table: String,
        /// The part of a shard that has no room left.
        what: &'static str,
        /// The number of rows that the table was to have.
        rows: u64,
    },
    /// A table was opened by another cluster than the one that it is used with.
    #[error("table {0:?} is of another cluster: open it by the cluster that it is used with")]
    OtherCluster(String),
    /// A key occurs twice in a bulk load.
    #[error("table {table:?}: the key {key} occurs twice in the rows to load")]
    Duplicate {
        /// The table's name.
        table: String,
        /// The key in hex.
        key: String,
    },
    /// The table has rows. Bulk load is for empty tables.
    #[error("table {0:?} has rows already: bulk load is for empty tables")]
    NotEmpty(String),
    /// A client is loading rows into the table, or died while it was.
    #[error(
        "client {client} loads rows into table {table:?}, or died while it did (then the next load begins anew): it is not to \
         be used before they are there"
    )]
    Loading {
        /// The table's name.
        table: String,
        /// The client that loads the rows.
        client: u32,
    },
    /// The rows that are to be loaded into an ordered table, or the keys at which it is to be
    /// split, do not ascend.
    #[error("ordered table {table:?}: the key {key} is not behind the one before it")]
    Unsorted {
        /// The table's name.
        table: String,
        /// The key in hex.
        key: String,
    },
    /// A table is to be split at keys of another type than its own.
    #[error("table {table:?} is split at keys of type {found}, and has keys of type {expected}")]
    SplitType {
        /// The table's name.
        table: String,
        /// The type of the keys at which it is to be split.
        found: &'static str,
        /// The type of its keys.
        expected: &'static str,
    },
    /// A value or key has the wrong size.
    #[error("table {table:?}: {what} of {bytes} bytes, the table has {expected}")]
    Size {
        /// The table's name.
        table: String,
        /// "key" or "value".
        what: &'static str,
        /// Bytes of the value or key.
        bytes: usize,
        /// The table's key width, or its largest value.
        expected: usize,
    },
}

impl From<FabricError> for IndexError {
    fn from(error: FabricError) -> IndexError {
        IndexError::Memory(error.into())
    }
}

impl IndexError {
    /// Adds the name of the table that was to be made, unless the error names a table already.
    #[must_use]
    pub fn of_table(self, name: &str) -> IndexError {
        match self {
            IndexError::Memory(error) => error.of_table(name).into(),
            error => error,
        }
    }
}
