//! The errors of laying out, finding and opening memory.

use std::fmt;

use remora_fabric::tcp::LoopbackError;
use remora_fabric::{FabricError, NodeId, RegionError, SystemError};

use crate::id::ShardId;
use crate::limits;

/// The table that an error is about, if there is one. Without one it displays as nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OfTable(Option<String>);

impl OfTable {
    /// Returns the name of the table, if the error is about one.
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

/// The reason why memory could not be laid out, found or opened.
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
    /// The memory does not begin with Remora's magic number.
    #[error("{0} does not hold Remora's memory (another program's, or never formatted)")]
    Foreign(NodeId),
    /// Another version of the format was used to write the memory.
    #[error("{node} has memory format {found}; this program knows format {known}: use a program of that version")]
    Format {
        /// The memory node.
        node: NodeId,
        /// The version that was found.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// The memory uses features that this program does not know.
    #[error("{node} uses memory features {unknown:#x} that this program does not know")]
    Features {
        /// The memory node.
        node: NodeId,
        /// The unknown feature bits.
        unknown: u64,
    },
    /// The next epoch is about to begin, so a change of this epoch comes too late.
    #[error("memory nodes have been lost or taken in, and the epoch is changing: try again")]
    EpochChanging,
    /// The configuration, which says which clients are alive, cannot be used.
    #[error("{0}")]
    Configuration(String),
    /// Neither copy of the metadata is whole.
    #[error("{0}: both copies of the catalog are damaged")]
    Damaged(NodeId),
    /// A memory node has not enough space left.
    #[error(
        "{of}{node} is out of memory: {wanted} bytes wanted, {free} free; start it with more, or make tables smaller"
    )]
    OutOfMemory {
        /// The memory node.
        node: NodeId,
        /// The number of bytes wanted.
        wanted: u64,
        /// The number of free bytes.
        free: u64,
        /// The table that the space was for.
        of: OfTable,
    },
    /// A region is too small to be laid out at all.
    #[error("{bytes} bytes are too few for a memory node: at least {wanted}")]
    TooSmall {
        /// The smallest number of bytes.
        wanted: u64,
        /// The number of bytes that the region has.
        bytes: u64,
    },
    /// A table has more replicas than there are memory nodes, or than the format holds.
    #[error(
        "{of}{replicas} replicas need as many memory nodes, there are {nodes} (and at most {} replicas)",
        limits::REPLICAS_MAX
    )]
    TooManyReplicas {
        /// The number of replicas asked for.
        replicas: usize,
        /// The number of memory nodes.
        nodes: usize,
        /// The table.
        of: OfTable,
    },
    /// Memory nodes have been lost, and with them every copy of some table's shard.
    #[error("every replica of a part of table {0:?} is lost")]
    NoReplica(String),
    /// A replica that was copied differs from its original.
    #[error("the new copy of shard {} at {node} differs from the others: it is made again", shard.0)]
    Differs {
        /// The shard that was copied.
        shard: ShardId,
        /// The node that has the new copy.
        node: NodeId,
    },
    /// No table has this name.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// The table was dropped. Its rows are gone, and handles of it cannot be used any more.
    #[error(
        "table {table:?} was dropped, and its rows are gone: create it again, or open the table that has its name now"
    )]
    Dropped {
        /// The name of the table.
        table: String,
    },
    /// A client has begun to create a table and has not finished it.
    #[error(
        "table {table:?} is not ready: client {client} is creating it, or died while it did (then the next creation takes its \
         place)"
    )]
    Unfinished {
        /// The name of the table.
        table: String,
        /// The client that creates the table.
        client: u32,
    },
    /// Another client has discarded the tables that this one was creating.
    #[error("the tables that were being created are gone: another client took this one for dead, and discarded them")]
    Discarded,
    /// The program has asked to stop what it was creating.
    #[error("interrupted: what had been begun has been given up")]
    Interrupted,
    /// The memory nodes have no room for a larger table beside the one that should grow.
    #[error("the memory nodes have no room for a larger table \"{table}\"; drop tables, or add memory nodes")]
    NodesFull {
        /// The name of the table.
        table: String,
    },
    /// A table has begun to grow, and its rows cannot be moved at present. The caller can try
    /// again: growth continues from there.
    #[error("table \"{table}\" grows, and its rows cannot move now: {why}; try again")]
    NotMoved {
        /// The name of the table.
        table: String,
        /// The error of the transaction that moves rows.
        why: String,
    },
    /// A table cannot grow, because these clients will never say that they know of its growth.
    #[error(
        "table {table:?} cannot grow: clients {clients:?} are connected and have no lease in this program's configuration, so \
         that they cannot say whether they have heard of it"
    )]
    Unheard {
        /// The name of the table.
        table: String,
        /// The incarnations of the clients.
        clients: Vec<u32>,
    },
    /// What dead clients had in hand cannot be reclaimed, because other clients are connected, or
    /// were so meanwhile.
    #[error(
        "clients {clients:?} are connected or have just left: memory that dead clients had in hand is reclaimed while no \
         client is connected"
    )]
    InUse {
        /// The incarnations of the clients that are connected now.
        clients: Vec<u32>,
    },
    /// A table of this name exists already.
    #[error("there is a table {0:?} already")]
    TableExists(String),
    /// A table's name has characters that would break lines, or act on terminals.
    #[error("a table cannot have the name {0:?}: it has control characters")]
    Name(String),
    /// The table was made for protocols of another discipline.
    #[error("table {table:?} has the discipline {found:?}; protocol {protocol} needs {wanted:?}")]
    Discipline {
        /// The name of the table.
        table: String,
        /// The discipline of the table, as the catalog has it.
        found: String,
        /// The name of the client's protocol.
        protocol: &'static str,
        /// The discipline that the protocol needs.
        wanted: String,
    },
    /// The table was made with another schema.
    #[error(
        "table {table:?} was made for other types: its schema is {found}, and this program's is {wanted}: open it with the \
         types, and the schema, that it was created with"
    )]
    Fingerprint {
        /// The name of the table.
        table: String,
        /// The table's schema.
        found: Box<SchemaShown>,
        /// The program's schema.
        wanted: Box<SchemaShown>,
    },
    /// Records were to be read in another way than by checksums.
    #[error("protocol {0} reads records by checksums: leave the read scheme to it")]
    NeedsChecksums(&'static str),
    /// More copies were asked for than the protocol can keep.
    #[error(
        "protocol {protocol} keeps one copy of each record, and {copies} were asked for: ask for one, or take a protocol \
         with copies, such as ford"
    )]
    OneCopy {
        /// The name of the protocol.
        protocol: &'static str,
        /// The number of copies that was asked for.
        copies: usize,
    },
    /// A value exceeds a limit of the format.
    #[error("{of}{what}: {value} is more than the {max} that fit")]
    Limit {
        /// The name of what is limited.
        what: &'static str,
        /// The value that was asked for.
        value: u64,
        /// The largest value.
        max: u64,
        /// The table, if the error is about one.
        of: OfTable,
    },
    /// Something is empty or zero and must not be.
    #[error("{of}{what} must not be empty or zero")]
    Empty {
        /// The name of what is empty or zero.
        what: &'static str,
        /// The table, if the error is about one.
        of: OfTable,
    },
    /// Another client is changing the catalog, or died while it changed it.
    #[error("the catalog is locked by client {0}")]
    CatalogLocked(u64),
    /// The program named too few of the memory nodes that the cluster was founded with, or nodes
    /// that are not the cluster's.
    #[error(
        "{given} memory nodes were named, their cluster was founded with {nodes}: name all of these, and no others but those \
         that were added since"
    )]
    NodeCount {
        /// The number of nodes named, without nodes that were added later.
        given: u16,
        /// The number of nodes that the cluster was founded with.
        nodes: u16,
    },
    /// A memory node was added to the cluster, and its address is not known here.
    #[error("{0} was added to the cluster, and nothing says where it is: name it too, or the configuration that knows")]
    NotNamed(NodeId),
    /// A memory node belongs to another cluster than the nodes before it, or was named twice.
    #[error("{0} (counted from 0 as they were named) is of another cluster, or was named twice")]
    OtherCluster(NodeId),
    /// A memory node has another number in its cluster than this client gave it.
    #[error("{node} is {number} of the cluster now: name the memory nodes in the order in which the others name them")]
    OtherNumber {
        /// The number by which it was named.
        node: NodeId,
        /// The number that it has in its cluster.
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
    /// The protocol needs CPUs of memory nodes, and the memory nodes are passive.
    #[error(
        "protocol {protocol} needs memory nodes that serve calls and apply logs, and passive memory does neither: use one of {}, \
         or memory nodes with a server (memnode --shm)",
        instead.join(", ")
    )]
    NeedsNodeCpu {
        /// The name of the protocol.
        protocol: &'static str,
        /// The names of protocols that need no such CPU.
        instead: Vec<&'static str>,
    },
    /// The protocol's clients share state that only one process has, and no configuration says
    /// whether clients of other processes write the same tables.
    #[error("protocol {0} needs a configuration, which says whether clients of other processes write the same tables")]
    NeedsConfiguration(&'static str),
    /// A table that is validated locally has one version cache. This client uses another one for
    /// it.
    #[error(
        "a table that is validated locally has one version cache: client {0} uses another, and has neither left nor been \
         recovered"
    )]
    OtherVersionCache(u32),
    /// The configuration does not know a connected client.
    #[error(
        "client {0} is connected, and goes by another configuration or by none: name the same one, or tables that are \
         validated locally could have two version caches"
    )]
    UnknownClient(u32),
}

impl MemoryError {
    /// Makes the error of a value that exceeds a limit.
    #[must_use]
    pub fn limit(what: &'static str, value: u64, max: u64) -> MemoryError {
        MemoryError::Limit { what, value, max, of: OfTable::default() }
    }

    /// Makes the error of something that is empty or zero and must not be.
    #[must_use]
    pub fn empty(what: &'static str) -> MemoryError {
        MemoryError::Empty { what, of: OfTable::default() }
    }

    /// Makes the error of too many replicas.
    #[must_use]
    pub fn too_many_replicas(replicas: usize, nodes: usize) -> MemoryError {
        MemoryError::TooManyReplicas { replicas, nodes, of: OfTable::default() }
    }

    /// Adds the table's name to an error of creating this table, unless the error names one
    /// already.
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
