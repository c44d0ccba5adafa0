//! What can go wrong when memory is laid out, found or opened.

use std::fmt;

use remora_fabric::tcp::LoopbackError;
use remora_fabric::{FabricError, NodeId, RegionError, SystemError};

use crate::id::ShardId;
use crate::limits;

/// The table that an error is about. Nothing is written where it is about none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OfTable(Option<String>);

impl OfTable {
    /// The name of the table, if the error is about one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Display for OfTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |name| write!(f, "table {name:?}: "))
    }
}

/// Why memory could not be laid out, found or opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// A round failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system gives no thread for a worker.
    #[error("the system gives no thread: {0}")]
    Thread(SystemError),
    /// The system gives no memory for a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The memory does not begin with our magic number.
    #[error("{0} does not hold Remora's memory (another program's, or never formatted)")]
    Foreign(NodeId),
    /// It was written by another version of the format.
    #[error("{node} has memory format {found}; this program knows format {known}: use a program of that version")]
    Format {
        /// The memory node.
        node: NodeId,
        /// The version found.
        found: u32,
        /// The version known here.
        known: u32,
    },
    /// It uses features that this program does not know.
    #[error("{node} uses memory features {unknown:#x} that this program does not know")]
    Features {
        /// The memory node.
        node: NodeId,
        /// The unknown feature bits.
        unknown: u64,
    },
    /// The next epoch is about to begin: what is done in this one comes too late.
    #[error("memory nodes have been lost or taken in, and the epoch is changing: try again")]
    EpochChanging,
    /// The configuration, which says who is alive, cannot be used.
    #[error("{0}")]
    Configuration(String),
    /// Neither copy of the metadata is whole.
    #[error("{0}: both copies of the catalog are damaged")]
    Damaged(NodeId),
    /// There is not enough space left.
    #[error(
        "{of}{node} is out of memory: {wanted} bytes wanted, {free} free; start it with more, or make tables smaller"
    )]
    OutOfMemory {
        /// The memory node.
        node: NodeId,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// The table that the space was for.
        of: OfTable,
    },
    /// A region is too small to be laid out at all.
    #[error("{bytes} bytes are too few for a memory node: at least {wanted}")]
    TooSmall {
        /// Bytes needed at least.
        wanted: u64,
        /// Bytes there are.
        bytes: u64,
    },
    /// More copies than memory nodes, or than the format holds.
    #[error(
        "{of}{replicas} replicas need as many memory nodes, there are {nodes} (and at most {} replicas)",
        limits::REPLICAS_MAX
    )]
    TooManyReplicas {
        /// Copies asked for.
        replicas: usize,
        /// Memory nodes there are.
        nodes: usize,
        /// The table.
        of: OfTable,
    },
    /// Memory nodes have been lost, and with them every copy of something.
    #[error("every replica of a part of table {0:?} is lost")]
    NoReplica(String),
    /// A replica that was copied is not what it is a copy of.
    #[error("the new copy of shard {} at {node} differs from the others: it is made again", shard.0)]
    Differs {
        /// The shard that was copied.
        shard: ShardId,
        /// Node that has the new copy.
        node: NodeId,
    },
    /// No table has this name.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// The table was dropped. Its rows are gone, and handles of it are of no use any more.
    #[error(
        "table {table:?} was dropped, and its rows are gone: create it again, or open the table that has its name now"
    )]
    Dropped {
        /// The table.
        table: String,
    },
    /// A client has begun to create a table and not finished it.
    #[error(
        "table {table:?} is not ready: client {client} is creating it, or died while it did (then the next creation takes its \
         place)"
    )]
    Unfinished {
        /// The table.
        table: String,
        /// The client that creates the table.
        client: u32,
    },
    /// Another client has discarded the tables that this one was creating.
    #[error("the tables that were being created are gone: another client took this one for dead, and discarded them")]
    Discarded,
    /// The program has asked to end what it was creating.
    #[error("interrupted: what had been begun has been given up")]
    Interrupted,
    /// The memory nodes have no room for a larger table beside one that is to grow.
    #[error("the memory nodes have no room for a larger table \"{table}\"; drop tables, or add memory nodes")]
    NodesFull {
        /// The table.
        table: String,
    },
    /// A table has begun to grow, and its rows cannot move for now. Try again: it goes on from
    /// there.
    #[error("table \"{table}\" grows, and its rows cannot move now: {why}; try again")]
    NotMoved {
        /// The table.
        table: String,
        /// What a transaction that moves rows has failed with.
        why: String,
    },
    /// A table cannot grow, because these clients will never say that they have heard of it.
    #[error(
        "table {table:?} cannot grow: clients {clients:?} are connected and have no lease in this program's configuration, so \
         that they cannot say whether they have heard of it"
    )]
    Unheard {
        /// The table.
        table: String,
        /// The clients' incarnations.
        clients: Vec<u32>,
    },
    /// A table of this name exists already.
    #[error("there is a table {0:?} already")]
    TableExists(String),
    /// A table's name would break lines, or act on terminals.
    #[error("a table cannot have the name {0:?}: it has control characters")]
    Name(String),
    /// The table was made for protocols of another discipline.
    #[error("table {table:?} has the discipline {found:?}; protocol {protocol} needs {wanted:?}")]
    Discipline {
        /// The table.
        table: String,
        /// What the catalog says.
        found: String,
        /// The client's protocol.
        protocol: &'static str,
        /// What it needs.
        wanted: String,
    },
    /// The table was made with another schema.
    #[error(
        "table {table:?} was made for other types: its schema is {found}, and this program's is {wanted}: open it with the \
         types, and the schema, that it was created with"
    )]
    Fingerprint {
        /// The table.
        table: String,
        /// The table's schema.
        found: Box<SchemaShown>,
        /// The program's schema.
        wanted: Box<SchemaShown>,
    },
    /// A limit of the format.
    #[error("{of}{what}: {value} is more than the {max} that fit")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The value asked for.
        value: u64,
        /// The limit.
        max: u64,
        /// The table.
        of: OfTable,
    },
    /// Something that must not be empty or zero is.
    #[error("{of}{what} must not be empty or zero")]
    Empty {
        /// What it is.
        what: &'static str,
        /// The table.
        of: OfTable,
    },
    /// Another client is changing the catalog, or died while it did.
    #[error("the catalog is locked by client {0}")]
    CatalogLocked(u64),
    /// Some of the memory nodes that the cluster was founded with were not named, or others than
    /// its own were.
    #[error(
        "{given} memory nodes were named, their cluster was founded with {nodes}: name all of these, and no others but those \
         that were added since"
    )]
    NodeCount {
        /// Nodes named, but for such that were added.
        given: u16,
        /// Nodes that it was founded with.
        nodes: u16,
    },
    /// A memory node was added to the cluster, and nothing says where it is.
    #[error("{0} was added to the cluster, and nothing says where it is: name it too, or the configuration that knows")]
    NotNamed(NodeId),
    /// A memory node is of another cluster than the ones before it, or was named twice.
    #[error("{0} (counted from 0 as they were named) is of another cluster, or was named twice")]
    OtherCluster(NodeId),
    /// A memory node is another one of its cluster than it was taken for.
    #[error("{node} is {number} of the cluster now: name the memory nodes in the order in which the others name them")]
    OtherNumber {
        /// Number by which it was named.
        node: NodeId,
        /// Number that it has in its cluster.
        number: NodeId,
    },
    /// No memory node answers.
    #[error("no memory node answers")]
    NoNode,
    /// A memory node is empty, while others of its cluster hold tables.
    #[error("{0} is empty, while the others hold tables: it was started anew, and the cluster has not taken it in yet")]
    LostMemory(NodeId),
    /// A memory node does not apply what clients have logged, though it answers.
    #[error("{0} answers, and does not apply what is in its redo rings: start it again, empty")]
    NotApplied(NodeId),
    /// Several clients set up the cluster at the same time.
    #[error("other clients are setting up these memory nodes: try again")]
    Founding,
    /// The backend cannot read lines atomically, which this read scheme needs.
    #[error("this fabric does not read lines atomically: use the checksum read scheme")]
    NeedsAtomicLines,
    /// Memory nodes could not be started in this process.
    #[error(transparent)]
    Loopback(#[from] LoopbackError),
    /// The protocol WRITEs words that it also CASes, and the fabric does not promise that these are
    /// atomic to each other.
    #[error("protocol {0} needs a fabric whose WRITEs are atomic against CASes of the same word: use ford")]
    NeedsAtomicWrites(&'static str),
    /// The protocol's clients share what only one process has, and nobody says whether there are
    /// others.
    #[error("protocol {0} needs a configuration, which says whether clients of other processes write the same tables")]
    NeedsConfiguration(&'static str),
    /// A table that is validated locally has one version cache.
    #[error(
        "a table that is validated locally has one version cache: client {0} uses another, and has neither left nor been \
         recovered"
    )]
    OtherVersionCache(u32),
    /// A client is connected that the configuration does not know.
    #[error(
        "client {0} is connected, and goes by another configuration or by none: name the same one, or tables that are \
         validated locally could have two version caches"
    )]
    UnknownClient(u32),
}

impl MemoryError {
    /// A limit that is exceeded.
    #[must_use]
    pub fn limit(what: &'static str, value: u64, max: u64) -> MemoryError {
        MemoryError::Limit { what, value, max, of: OfTable::default() }
    }

    /// Something is empty or zero that must not be.
    #[must_use]
    pub fn empty(what: &'static str) -> MemoryError {
        MemoryError::Empty { what, of: OfTable::default() }
    }

    /// More copies than there can be.
    #[must_use]
    pub fn too_many_replicas(replicas: usize, nodes: usize) -> MemoryError {
        MemoryError::TooManyReplicas { replicas, nodes, of: OfTable::default() }
    }

    /// The error of making this table: names the table, unless the error names one already.
    #[must_use]
    pub fn of_table(mut self, name: &str) -> MemoryError {
        if let MemoryError::OutOfMemory { of, .. }
        | MemoryError::TooManyReplicas { of, .. }
        | MemoryError::Limit { of, .. }
        | MemoryError::Empty { of, .. } = &mut self
        {
            of.0.get_or_insert_with(|| name.to_owned());
        }
        self
    }
}

/// A schema, as an error names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemaShown {
    /// What keys and values mean. The catalog cuts long texts.
    pub text: String,
    /// Bytes of a record's key.
    pub key_bytes: usize,
    /// Most bytes of a record's value.
    pub value_bytes: usize,
    /// Fingerprint of the whole text and of the sizes.
    pub fingerprint: u64,
}

impl fmt::Display for SchemaShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SchemaShown { text, key_bytes, value_bytes, fingerprint } = self;
        write!(f, "{text:?} (keys of {key_bytes} bytes, values of {value_bytes} bytes, fingerprint {fingerprint:#x})")
    }
}
