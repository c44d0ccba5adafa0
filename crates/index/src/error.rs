//! What can go wrong when a table is opened or loaded.

use remora_fabric::FabricError;
use remora_node::MemoryError;

/// Why a table could not be opened or loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexError {
    /// From the floor below.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A table cannot hold more.
    #[error("table {table:?} is full: {rows} rows do not fit ({what}); create it with a larger capacity")]
    Full {
        /// The table.
        table: String,
        /// Which part ran out.
        what: &'static str,
        /// Rows that were to be in it.
        rows: u64,
    },
    /// A table was opened by another cluster than the one that it is used with.
    #[error("table {0:?} is of another cluster: open it by the cluster that it is used with")]
    OtherCluster(String),
    /// A key occurs twice in a bulk load.
    #[error("table {table:?}: the key {key} occurs twice in the rows to load")]
    Duplicate {
        /// The table.
        table: String,
        /// The key in hex.
        key: String,
    },
    /// Bulk load is for empty tables.
    #[error("table {0:?} has rows already: bulk load is for empty tables")]
    NotEmpty(String),
    /// A client loads rows into the table, or died while it did.
    #[error(
        "client {client} loads rows into table {table:?}, or died while it did (then the next load begins anew): it is not to \
         be used before they are there"
    )]
    Loading {
        /// The table.
        table: String,
        /// The client.
        client: u32,
    },
    /// The rows to load into an ordered table do not ascend.
    #[error("ordered table {table:?}: the key {key} to load is not behind the one before it")]
    Unsorted {
        /// The table.
        table: String,
        /// The key in hex.
        key: String,
    },
    /// A value or key has the wrong size.
    #[error("table {table:?}: {what} of {bytes} bytes, the table has {expected}")]
    Size {
        /// The table.
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
    /// The error of making this table: names the table, unless the error names one already.
    #[must_use]
    pub fn of_table(self, name: &str) -> IndexError {
        match self {
            IndexError::Memory(error) => error.of_table(name).into(),
            error => error,
        }
    }
}
