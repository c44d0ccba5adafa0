//! The protocols: one file each, its rounds in order.

mod bare;
mod occ;

use crate::error::Stop;
use crate::tx::Tx;

/// How transactions are made serializable and durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Protocol {
    /// Optimistic concurrency control with primary-backup replication, every phase by one-sided verbs: DrTM+R as Wei's
    /// thesis, chapter 4, has it among its family, with its errors corrected. See `protocol/occ.rs`.
    #[default]
    DrtmR,
    /// The workload's reads and writes as bare rounds, without locks, validation or logs: **no transactions**. The bound
    /// that the protocols are measured against.
    Unsynchronized,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 2] = [Protocol::DrtmR, Protocol::Unsynchronized];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::DrtmR => "drtm-r",
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

    pub(crate) async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        match self {
            Protocol::DrtmR => occ::commit(tx).await,
            Protocol::Unsynchronized => bare::commit(tx).await,
        }
    }

    pub(crate) async fn validate_only(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        match self {
            Protocol::DrtmR => occ::validate_read_only(tx).await,
            Protocol::Unsynchronized => Ok(()),
        }
    }
}
