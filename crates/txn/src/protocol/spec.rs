//! What a protocol says of itself: its name, its tables, and by what means it reads, locks and
//! validates.

use remora_node::{Discipline, IndexKind};

/// What the rest of Remora must know of a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtocolSpec {
    /// The protocol's name on the command line.
    pub name: &'static str,
    /// The discipline of the tables that it creates. It decides how records are locked, logged and
    /// recovered.
    pub discipline: Discipline,
    /// Other disciplines on whose tables it may run.
    pub accepts: &'static [Discipline],
    /// The index of the tables that it creates.
    pub index: IndexKind,
    /// How a record that was named is looked for first.
    pub execute: FirstRead,
    /// What validates records that a transaction only reads.
    pub validation: Validation,
    /// Whether it needs
    /// [`Capabilities::atomic_writes`](remora_fabric::Capabilities::atomic_writes).
    pub needs_atomic_writes: bool,
    /// Whether its transactions are strictly serializable.
    pub is_serializable: bool,
    /// Whether it takes what it reads as it comes, torn or locked.
    pub reads_unchecked: bool,
    /// Whether it reads records only under locks of its own.
    pub locks_reads: bool,
}

impl ProtocolSpec {
    /// A protocol that only says its name and its discipline: one-sided reads with cached
    /// locations, an index of buckets that memory nodes maintain, and nothing special.
    pub const fn new(name: &'static str, discipline: Discipline) -> ProtocolSpec {
        ProtocolSpec {
            name,
            discipline,
            accepts: &[],
            index: IndexKind::ClusterHash,
            execute: FirstRead::OneSided { cached: true },
            validation: Validation::Remote,
            needs_atomic_writes: false,
            is_serializable: true,
            reads_unchecked: false,
            locks_reads: false,
        }
    }
}

/// How a record is read the first time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FirstRead {
    /// READs of index buckets and of the record; of the record alone if its location is cached.
    OneSided {
        /// Whether locations are.
        cached: bool,
    },
    /// A call.
    Call,
    /// A READ if its location is cached, else a call.
    Hybrid,
}

/// What does the work of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Primitive {
    /// The client, by verbs that the memory node's CPU does not notice.
    OneSided,
    /// The memory node's CPU, at the client's call.
    Call,
}

impl From<Discipline> for Primitive {
    /// Locks and unlocks are tied together and to the table: a word that NICs CAS, no CPU may.
    fn from(discipline: Discipline) -> Primitive {
        if discipline.atomics == Discipline::OCC_CALLS.atomics { Primitive::Call } else { Primitive::OneSided }
    }
}

/// How what is only read is validated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Validation {
    /// By a look at its primary.
    Remote,
    /// By the version cache of this process, which all writers of the table share.
    Local,
    /// By the version cache of the cluster. The CPU of one memory node has the cache, and answers
    /// calls for it.
    Global,
}
