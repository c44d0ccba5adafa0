//! The error of making or opening a cluster, a table or a worker.

use std::fmt;

use remora_fabric::FabricError;
use remora_index::IndexError;
use remora_node::MemoryError;

/// Why a cluster, a table or a worker could not be made or opened.
///
/// The error's text says what is wrong, where, and what to do. A program decides by the error's
/// [`kind`](OpenError::kind).
#[derive(Clone, PartialEq, Eq)]
pub struct OpenError {
    cause: IndexError,
}

/// The kind of an [`OpenError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// No table has this name.
    NoTable,
    /// A table has this name already.
    TableExists,
    /// The table was dropped.
    Dropped,
    /// A client has begun to create the table and has not finished.
    Unfinished {
        /// The client that creates the table.
        client: u32,
    },
    /// A client is loading rows into the table.
    Loading {
        /// The client that loads the rows.
        client: u32,
    },
    /// The table was made with keys or records of other types.
    OtherTypes,
    /// The table was made for protocols with which this protocol cannot run together.
    OtherProtocol,
    /// The table belongs to another cluster.
    OtherCluster,
    /// The rows cannot be loaded: a key occurs twice, keys do not ascend, a row has the wrong size,
    /// or the table has rows already.
    Rows,
    /// The table, the memory nodes or the system have no room for what was asked.
    Full,
    /// An argument is zero, too large, or not allowed.
    Argument,
    /// The fabric cannot do what the protocol or the table needs.
    Unsupported,
    /// Memory nodes do not answer, or every copy of a part of a table is lost.
    Unavailable,
    /// The cluster or its catalog is changing. Try again.
    Changing,
    /// The program has interrupted the call
    /// ([`Cluster::with_interrupt`](crate::Cluster::with_interrupt)).
    Interrupted,
    /// The content of the memory nodes cannot be used: it is damaged, belongs to another program,
    /// or has another version.
    Unusable,
    /// The configuration, or another client of the cluster, prevents it.
    Configuration,
}

impl OpenError {
    /// Returns the kind of the error, by which a program can decide.
    #[must_use]
    pub fn kind(&self) -> OpenErrorKind {
        match &self.cause {
            IndexError::Memory(error) => kind_of(error),
            IndexError::Full { .. } => OpenErrorKind::Full,
            IndexError::OtherCluster(_) => OpenErrorKind::OtherCluster,
            IndexError::Loading { client, .. } => OpenErrorKind::Loading { client: *client },
            IndexError::Duplicate { .. }
            | IndexError::NotEmpty(_)
            | IndexError::Unsorted { .. }
            | IndexError::SplitType { .. }
            | IndexError::Size { .. } => OpenErrorKind::Rows,
        }
    }

    /// Returns the error of the crates below, for tools and tests.
    #[doc(hidden)]
    #[must_use]
    pub fn cause(&self) -> &IndexError {
        &self.cause
    }

    /// Returns the error of the crate for memory nodes, if it is one.
    #[doc(hidden)]
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryError> {
        if let IndexError::Memory(error) = &self.cause { Some(error) } else { None }
    }

    /// Adds the name of the table that was to be made, unless the error names a table already.
    pub(crate) fn of_table(self, name: &str) -> OpenError {
        self.cause.of_table(name).into()
    }
}

fn kind_of(error: &MemoryError) -> OpenErrorKind {
    match error {
        MemoryError::UnknownTable(_) => OpenErrorKind::NoTable,
        MemoryError::TableExists(_) => OpenErrorKind::TableExists,
        MemoryError::Dropped { .. } => OpenErrorKind::Dropped,
        MemoryError::Unfinished { client, .. } => OpenErrorKind::Unfinished { client: *client },
        MemoryError::Fingerprint { .. } => OpenErrorKind::OtherTypes,
        MemoryError::Discipline { .. } => OpenErrorKind::OtherProtocol,
        MemoryError::OutOfMemory { .. }
        | MemoryError::NodesFull { .. }
        | MemoryError::Region(_)
        | MemoryError::Thread(_) => OpenErrorKind::Full,
        MemoryError::TooSmall { .. }
        | MemoryError::TooManyReplicas { .. }
        | MemoryError::OneCopy { .. }
        | MemoryError::NeedsChecksums(_)
        | MemoryError::Limit { .. }
        | MemoryError::Empty { .. }
        | MemoryError::Name(_)
        | MemoryError::NodeCount { .. } => OpenErrorKind::Argument,
        MemoryError::NeedsAtomicLines | MemoryError::NeedsAtomicWrites(_) | MemoryError::NeedsNodeCpu { .. } => {
            OpenErrorKind::Unsupported
        }
        MemoryError::Fabric(_) | MemoryError::NoReplica(_) | MemoryError::Loopback(_) => OpenErrorKind::Unavailable,
        MemoryError::EpochChanging
        | MemoryError::CatalogLocked(_)
        | MemoryError::Discarded
        | MemoryError::Founding
        | MemoryError::Differs { .. } => OpenErrorKind::Changing,
        MemoryError::Interrupted => OpenErrorKind::Interrupted,
        MemoryError::NotMoved { .. } => OpenErrorKind::Changing,
        MemoryError::Configuration(_)
        | MemoryError::Unheard { .. }
        | MemoryError::NeedsConfiguration(_)
        | MemoryError::OtherVersionCache(_)
        | MemoryError::UnknownClient(_) => OpenErrorKind::Configuration,
        _ => OpenErrorKind::Unusable,
    }
}

impl From<IndexError> for OpenError {
    fn from(cause: IndexError) -> OpenError {
        OpenError { cause }
    }
}

impl From<MemoryError> for OpenError {
    fn from(error: MemoryError) -> OpenError {
        IndexError::from(error).into()
    }
}

impl From<FabricError> for OpenError {
    fn from(error: FabricError) -> OpenError {
        IndexError::from(error).into()
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for OpenError {}
