//! The specification of a protocol: its name, the tables that it creates, and how it reads, locks
//! and validates. The rest of Remora knows a protocol only by this.

use remora_node::{Discipline, IndexKind};

/// The facts that the rest of Remora must know of a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtocolSpec {
    /// The protocol's name on the command line.
    pub name: &'static str,
    /// The discipline of the tables that the protocol creates. It decides how records are locked,
    /// logged and recovered.
    pub discipline: Discipline,
    /// Other disciplines on whose tables the protocol may run.
    pub accepts: &'static [Discipline],
    /// The kind of index of the tables that the protocol creates.
    pub index: IndexKind,
    /// How the protocol first looks for a record that was named.
    pub execute: FirstRead,
    /// What validates records that a transaction only reads.
    pub validation: Validation,
    /// Whether the protocol needs
    /// [`Capabilities::atomic_writes`](remora_fabric::Capabilities::atomic_writes).
    pub needs_atomic_writes: bool,
    /// Whether the protocol's transactions are strictly serializable.
    pub is_serializable: bool,
    /// Whether the protocol's snapshots may miss commits that were reported before they began.
    pub stale_snapshots: bool,
    /// Whether the protocol accepts records as they come, even torn or locked.
    pub reads_unchecked: bool,
    /// Whether a transaction of the protocol reads records only under its own locks.
    pub locks_reads: bool,
}

impl ProtocolSpec {
    /// Returns the specification of a protocol with this name and this discipline. Everything else
    /// has a default: one-sided reads with cached locations, an index of buckets that memory nodes
    /// maintain, and validation at the primaries.
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
            stale_snapshots: false,
            reads_unchecked: false,
            locks_reads: false,
        }
    }
}

impl ProtocolSpec {
    /// Returns whether the protocol needs CPUs of memory nodes, which passive memory does not have
    /// ([`Capabilities::node_cpu`]). They take its locks, apply its redo logs, maintain its index
    /// or its version cache, or serve its calls.
    ///
    /// [`Capabilities::node_cpu`]: remora_fabric::Capabilities::node_cpu
    #[must_use]
    pub fn needs_node_cpu(&self) -> bool {
        let asks = !matches!(self.execute, FirstRead::OneSided { .. }) || self.validation == Validation::Global;
        asks || self.discipline.needs_node_cpu() || self.index.needs_node_cpu()
    }
}

/// How a record is read the first time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FirstRead {
    /// By READs of index buckets and of the record. If the location is cached, by a READ of the
    /// record alone.
    OneSided {
        /// Whether locations are cached.
        cached: bool,
    },
    /// By a call of the primary's CPU.
    Call,
    /// By a READ if the record's location is cached, and otherwise by a call.
    Hybrid,
}

/// The side that does the work of a phase: the client or the memory node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Primitive {
    /// The client, by verbs that the memory node's CPU does not notice.
    OneSided,
    /// The memory node's CPU, at the client's call.
    Call,
}

impl From<Discipline> for Primitive {
    /// Returns the side that locks and unlocks the records of a table with this discipline. All
    /// clients must agree on it, because no CPU may change a word that NICs change by CAS.
    fn from(discipline: Discipline) -> Primitive {
        if discipline.locks_by_cpu() { Primitive::Call } else { Primitive::OneSided }
    }
}

/// How records that are only read are validated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Validation {
    /// By a look at the record's primary.
    Remote,
    /// By the version cache of this process. All writers of the table share this cache.
    Local,
    /// By the version cache of the cluster. The CPU of one memory node has the cache, and answers
    /// calls for it.
    Global,
}
