//! The protocols: one file each, its rounds in order.

pub(crate) mod ford;
pub(crate) mod lookup;
mod occ;
mod unsynchronized;

use std::fmt;

use remora_fabric::NodeId;
use remora_memory::{Discipline, IndexKind};

pub use ford::{Ford, Validation};
pub(crate) use occ::Check;

use crate::error::Stop;
use crate::event::Outcome;
use crate::tx::Tx;

/// How transactions are made serializable and durable.
///
/// The first ones are one family: optimistic concurrency control with primary-backup replication, `protocol/occ.rs`. They
/// differ in which phase is done by one-sided verbs and which by calls: see [`Primitives`]. Four are what Wei's thesis
/// compares (section 4.4.3); its errors are corrected in all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Protocol {
    /// FaRM, as the thesis emulates it: one-sided reads without location cache, locks and commit by calls.
    Farm,
    /// FaSST's OCC: every phase by calls.
    Fasst,
    /// DrTM+R: every phase by one-sided verbs, locations cached.
    #[default]
    DrtmR,
    /// DrTM+H: the better primitive for each phase. Reads are one-sided where the location is cached, else a call brings
    /// record and location at once; logs are one-sided; locks as the table's discipline says.
    DrtmH,
    /// FORD: one-sided, every replica updated in place, commit in two round trips; `protocol/ford.rs`. Tables are FStore.
    Ford(Ford),
    /// Any choice of primitives: for measurements that change one phase at a time.
    Study(Primitives),
    /// The workload's reads and writes as bare rounds, without locks, validation or logs: **no transactions**. The bound
    /// that the protocols are measured against.
    Unsynchronized,
}

/// Which primitive does each phase of optimistic concurrency control. The presets are constants of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Primitives {
    /// How a record is read the first time.
    pub execute: Execute,
    /// Who takes and frees the locks of the records to be written. Of the tables that the protocol creates: on others,
    /// their discipline says it.
    pub locks: Locks,
    /// How what was only read is looked at again.
    pub validate: Primitive,
    /// How log entries get to the rings of the backups.
    pub log: Primitive,
    /// Passive ACK: nobody waits for the acknowledgement of a commit, which is then off the critical path.
    pub passive: bool,
    /// Whether what is written is validated in the round trip that locks it, behind each lock. Else in the next one, with
    /// what is only read.
    pub merged: bool,
    /// Whether one-sided log entries are flushed, so that they are durable where what NICs have acknowledged is not.
    pub flush: bool,
}

/// How a record is read the first time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Execute {
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

/// Who does the work of a phase: this client, by verbs that the memory node's CPU does not notice; or that CPU, at this
/// client's call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Primitive {
    /// This client.
    OneSided,
    /// The memory node's CPU.
    Call,
}

/// Who changes lock words. Where NICs do, no CPU may, so that locking decides how a commit is installed; a lock that the
/// CPU takes can be freed in two ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Locks {
    /// NICs: by CAS. The record is written and its lock freed by verbs.
    Nic,
    /// The CPU of the record's primary, at calls.
    Cpu {
        /// How records are installed and their locks freed. [`Primitive::OneSided`]: by WRITEs of the record and then of
        /// the lock word, which only its holder does, and only when it knows that it is the holder. A CPU's CAS is atomic
        /// against a store that comes over PCIe, as a NIC's CAS is not against a CPU's. The contract of a round does not
        /// promise that much (rule 3), so no preset does it; what inserts or deletes is installed by calls.
        install: Primitive,
    },
}

impl Primitives {
    /// [`Protocol::Farm`].
    pub const FARM: Primitives = Primitives {
        execute: Execute::OneSided { cached: false },
        locks: Locks::Cpu { install: Primitive::Call },
        validate: Primitive::OneSided,
        log: Primitive::OneSided,
        passive: true,
        merged: true,
        flush: false,
    };
    /// [`Protocol::Fasst`].
    pub const FASST: Primitives = Primitives {
        execute: Execute::Call,
        locks: Locks::Cpu { install: Primitive::Call },
        validate: Primitive::Call,
        log: Primitive::Call,
        passive: true,
        merged: true,
        flush: false,
    };
    /// [`Protocol::DrtmR`].
    pub const DRTM_R: Primitives = Primitives {
        execute: Execute::OneSided { cached: true },
        locks: Locks::Nic,
        validate: Primitive::OneSided,
        log: Primitive::OneSided,
        passive: true,
        merged: true,
        flush: false,
    };
    /// [`Protocol::DrtmH`].
    pub const DRTM_H: Primitives = Primitives { execute: Execute::Hybrid, ..Primitives::DRTM_R };
    /// DrTM+H by one-sided verbs alone, as FORD is compared with it (FORD, section 6): four round trips, each awaited.
    pub const DRTM_H_ONE_SIDED: Primitives = Primitives { passive: false, flush: true, ..Primitives::DRTM_R };
    /// FaRM by one-sided verbs alone, as FORD is compared with it (FORD, section 6): five round trips, each awaited.
    pub const FARM_ONE_SIDED: Primitives = Primitives { merged: false, ..Primitives::DRTM_H_ONE_SIDED };

    /// Returns these primitives without a cache of locations.
    #[must_use]
    pub const fn uncached(self) -> Primitives {
        Primitives { execute: Execute::OneSided { cached: false }, ..self }
    }
}

impl fmt::Display for Primitives {
    /// As in `e=read,v=cas,l=write,c=write,pa`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let execute = match self.execute {
            Execute::OneSided { cached: true } => "read",
            Execute::OneSided { cached: false } => "uncached",
            Execute::Call => "call",
            Execute::Hybrid => "hybrid",
        };
        let (lock, install) = match self.locks {
            Locks::Nic => ("cas", "write"),
            Locks::Cpu { install: Primitive::OneSided } => ("call", "write"),
            Locks::Cpu { install: Primitive::Call } => ("call", "call"),
        };
        let validate = if self.validate == Primitive::OneSided { "read" } else { "call" };
        let log = if self.log == Primitive::OneSided { "write" } else { "call" };
        let then = if self.merged { "+" } else { "," };
        let flush = if self.flush { "+flush" } else { "" };
        let passive = if self.passive { ",pa" } else { "" };
        write!(f, "e={execute},v={lock}{then}{validate},l={log}{flush},c={install}{passive}")
    }
}

impl From<Discipline> for Primitive {
    /// Locks and unlocks are tied together and to the table: a word that NICs CAS, no CPU may.
    fn from(discipline: Discipline) -> Primitive {
        if discipline.atomics == Discipline::OCC_CALLS.atomics { Primitive::Call } else { Primitive::OneSided }
    }
}

impl Protocol {
    /// All that have a name of their own: all but studies.
    pub const ALL: [Protocol; 9] = [
        Protocol::Farm,
        Protocol::Fasst,
        Protocol::DrtmR,
        Protocol::DrtmH,
        Protocol::FORD,
        Protocol::FORD_LEAN,
        Protocol::FORD_LOCAL,
        Protocol::FORD_GLOBAL,
        Protocol::Unsynchronized,
    ];

    /// Studies that have a name: baselines of published comparisons, as they were there, and without the cache.
    pub const STUDIES: [(&'static str, Primitives); 4] = [
        ("farm-one-sided", Primitives::FARM_ONE_SIDED),
        ("farm-one-sided-uncached", Primitives::FARM_ONE_SIDED.uncached()),
        ("drtm-h-one-sided", Primitives::DRTM_H_ONE_SIDED),
        ("drtm-h-one-sided-uncached", Primitives::DRTM_H_ONE_SIDED.uncached()),
    ];

    /// FORD with all it has.
    pub const FORD: Protocol = Protocol::Ford(Ford::WHOLE);
    /// FORD with its lean release.
    pub const FORD_LEAN: Protocol = Protocol::Ford(Ford { lean: true, ..Ford::WHOLE });
    /// FORD with localized validation, by a cache of each compute node for tables that only that one writes.
    pub const FORD_LOCAL: Protocol = Protocol::Ford(Ford { validation: Validation::Local, ..Ford::WHOLE });
    /// FORD with localized validation, by one cache that all compute nodes ask.
    pub const FORD_GLOBAL: Protocol = Protocol::Ford(Ford { validation: Validation::Global, ..Ford::WHOLE });

    /// Returns the protocol's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Farm => "farm",
            Protocol::Fasst => "fasst",
            Protocol::DrtmR => "drtm-r",
            Protocol::DrtmH => "drtm-h",
            Protocol::Ford(Ford { validation: Validation::Local, .. }) => "ford-local",
            Protocol::Ford(Ford { validation: Validation::Global, .. }) => "ford-global",
            Protocol::Ford(Ford { lean: true, .. }) => "ford-lean",
            Protocol::Ford(_) => "ford",
            Protocol::Study(primitives) => {
                Protocol::STUDIES.iter().find(|(_, study)| *study == primitives).map_or("study", |(name, _)| name)
            }
            Protocol::Unsynchronized => "unsynchronized",
        }
    }

    /// The protocol of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Protocol> {
        let studies = Protocol::STUDIES.into_iter().map(|(_, primitives)| Protocol::Study(primitives));
        Protocol::ALL.into_iter().chain(studies).find(|protocol| protocol.name() == name)
    }

    /// Whether it needs [`Capabilities::atomic_writes`](remora_fabric::Capabilities::atomic_writes).
    #[must_use]
    pub fn needs_atomic_writes(self) -> bool {
        matches!(self, Protocol::Ford(Ford { lean: true, .. }))
    }

    /// How what is only read is validated.
    #[must_use]
    pub fn validation(self) -> Validation {
        if let Protocol::Ford(ford) = self { ford.validation } else { Validation::Remote }
    }

    /// Whether its transactions are transactions.
    #[must_use]
    pub fn is_serializable(self) -> bool {
        !matches!(self, Protocol::Unsynchronized | Protocol::Ford(Ford { corrections: false, .. }))
    }

    /// What does its phases. [`Protocol::Unsynchronized`] executes as `drtm-r` does, and has no other phase;
    /// [`Protocol::Ford`] uses one-sided verbs alone, but has other phases.
    #[must_use]
    pub fn primitives(self) -> Primitives {
        match self {
            Protocol::Farm => Primitives::FARM,
            Protocol::Fasst => Primitives::FASST,
            Protocol::DrtmR | Protocol::Ford(_) | Protocol::Unsynchronized => Primitives::DRTM_R,
            Protocol::DrtmH => Primitives::DRTM_H,
            Protocol::Study(primitives) => primitives,
        }
    }

    /// The discipline of the tables that it creates.
    #[must_use]
    pub fn discipline(self) -> Discipline {
        match (self, self.primitives().locks) {
            (Protocol::Ford(ford), _) => match ford.validation {
                Validation::Remote => Discipline::IN_PLACE,
                Validation::Local => Discipline::IN_PLACE_LOCAL,
                Validation::Global => Discipline::IN_PLACE_GLOBAL,
            },
            (_, Locks::Nic) => Discipline::OCC_ONE_SIDED,
            (_, Locks::Cpu { .. }) => Discipline::OCC_CALLS,
        }
    }

    /// The index of the tables that it creates: one that clients change by themselves, if nothing else does.
    #[must_use]
    pub fn index(self) -> IndexKind {
        if let Protocol::Ford(_) = self { IndexKind::FStore } else { IndexKind::ClusterHash }
    }

    /// Whether it may run on tables of a discipline.
    #[must_use]
    pub fn accepts(self, discipline: Discipline) -> bool {
        discipline == self.discipline()
            || self == Protocol::DrtmH && discipline == Discipline::OCC_CALLS
            || self.validation() != Validation::Remote && discipline == Discipline::IN_PLACE
    }

    pub(crate) fn execute(self) -> Execute {
        match self {
            Protocol::Ford(ford) => Execute::OneSided { cached: ford.address_cache },
            _ => self.primitives().execute,
        }
    }

    /// What FORD does, if it is FORD.
    pub(crate) fn ford(self) -> Ford {
        if let Protocol::Ford(ford) = self { ford } else { Ford::WHOLE }
    }

    pub(crate) async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        match self {
            Protocol::Ford(ford) => ford::commit(tx, ford).await,
            Protocol::Unsynchronized => unsynchronized::commit(tx).await,
            _ => occ::commit(tx).await,
        }
    }

    pub(crate) async fn validate_only(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        match self {
            Protocol::Ford(_) => ford::validate_read_only(tx).await,
            Protocol::Unsynchronized => Ok(()),
            _ => occ::validate_read_only(tx).await,
        }
    }
}

/// The nodes of a set of bits.
fn nodes(mut set: u64) -> impl Iterator<Item = NodeId> {
    std::iter::from_fn(move || {
        let node = (set != 0).then(|| NodeId(set.trailing_zeros() as u16));
        set &= set.wrapping_sub(1);
        node
    })
}

/// A transaction that has committed and waits for the acknowledgement of what comes after. Dropped while it does, it is
/// told as committed.
struct Acknowledged<'t, 's> {
    tx: &'t mut Tx<'s>,
    awaited: bool,
}

impl<'t, 's> Acknowledged<'t, 's> {
    fn of(tx: &'t mut Tx<'s>) -> Acknowledged<'t, 's> {
        Acknowledged { tx, awaited: false }
    }

    fn tx(&mut self) -> &mut Tx<'s> {
        self.tx
    }

    fn done(mut self) {
        self.awaited = true;
    }
}

impl Drop for Acknowledged<'_, '_> {
    fn drop(&mut self) {
        if !self.awaited {
            self.tx.end(Outcome::Committed);
        }
    }
}
