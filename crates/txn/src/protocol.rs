//! The protocols: one file each, its rounds in order.

mod bare;
mod occ;

use remora_memory::Discipline;

pub(crate) use occ::Check;

use crate::error::Stop;
use crate::tx::Tx;

/// How transactions are made serializable and durable.
///
/// The first four are one family: optimistic concurrency control with primary-backup replication, `protocol/occ.rs`. They
/// differ in which phase is done by one-sided verbs and which by calls, as Wei's thesis compares them (section 4.4.3, and
/// table in its notes, section 6); its errors are corrected in all of them.
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
    /// The workload's reads and writes as bare rounds, without locks, validation or logs: **no transactions**. The bound
    /// that the protocols are measured against.
    Unsynchronized,
}

/// How a record is read the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Execute {
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Primitive {
    OneSided,
    Call,
}

impl From<Discipline> for Primitive {
    /// Locks and unlocks are tied together and to the table: a word that NICs CAS, no CPU may.
    fn from(discipline: Discipline) -> Primitive {
        if discipline.atomics == Discipline::OCC_CALLS.atomics { Primitive::Call } else { Primitive::OneSided }
    }
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 5] =
        [Protocol::Farm, Protocol::Fasst, Protocol::DrtmR, Protocol::DrtmH, Protocol::Unsynchronized];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Farm => "farm",
            Protocol::Fasst => "fasst",
            Protocol::DrtmR => "drtm-r",
            Protocol::DrtmH => "drtm-h",
            Protocol::Unsynchronized => "unsynchronized",
        }
    }

    /// The protocol of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Whether its transactions are transactions.
    #[must_use]
    pub fn is_serializable(self) -> bool {
        self != Protocol::Unsynchronized
    }

    /// The discipline of the tables that it creates.
    #[must_use]
    pub fn discipline(self) -> Discipline {
        match self {
            Protocol::Farm | Protocol::Fasst => Discipline::OCC_CALLS,
            Protocol::DrtmR | Protocol::DrtmH | Protocol::Unsynchronized => Discipline::OCC_ONE_SIDED,
        }
    }

    /// Whether it may run on tables of a discipline.
    #[must_use]
    pub fn accepts(self, discipline: Discipline) -> bool {
        discipline == self.discipline() || self == Protocol::DrtmH && discipline == Discipline::OCC_CALLS
    }

    pub(crate) fn execute(self) -> Execute {
        match self {
            Protocol::Farm => Execute::OneSided { cached: false },
            Protocol::Fasst => Execute::Call,
            Protocol::DrtmR | Protocol::Unsynchronized => Execute::OneSided { cached: true },
            Protocol::DrtmH => Execute::Hybrid,
        }
    }

    pub(crate) fn validate(self) -> Primitive {
        if self == Protocol::Fasst { Primitive::Call } else { Primitive::OneSided }
    }

    pub(crate) fn log(self) -> Primitive {
        if self == Protocol::Fasst { Primitive::Call } else { Primitive::OneSided }
    }

    pub(crate) async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        match self {
            Protocol::Unsynchronized => bare::commit(tx).await,
            _ => occ::commit(tx).await,
        }
    }

    pub(crate) async fn validate_only(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        match self {
            Protocol::Unsynchronized => Ok(()),
            _ => occ::validate_read_only(tx).await,
        }
    }
}
