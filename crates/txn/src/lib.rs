//! Strictly serializable, replicated transactions over remote memory: read and write sets, the
//! protocols (one folder each), logs and recovery.
//!
//! A [`Session`] is one coroutine's place to run transactions. It has a lane, a redo ring at every
//! memory node, and sets that one transaction after the other reuses, so that a transaction
//! allocates nothing in steady state. [`Session::transact`] runs a closure as a transaction, and
//! tries it again while it aborts. The closure works on a [`Tx`].
//!
//! Every protocol here guarantees the following, except [`Protocol::UNSYNCHRONIZED`] and
//! [`Protocol::RC`]:
//!
//! - **Strict serializability.**
//! - A transaction is atomic across a crash of its client.
//! - There is no deadlock, since no transaction waits for a lock without bound.
//! - Application code never sees a torn record.
//!
//! A closure may run several times, and may see values and combinations of records that no
//! committed state has. So it must have no effect outside of the transaction, and must not panic or
//! loop on such a state. What the closure returned counts only once its reads have been validated,
//! even if it is an error of its own.

#![cfg_attr(
    not(feature = "mutants"),
    allow(
        clippy::needless_bool,
        clippy::if_same_then_else,
        clippy::overly_complex_bool_expr,
        clippy::nonminimal_bool,
        reason = "a mutant that cannot be put back is `false`"
    )
)]
#![forbid(unsafe_code)]

/// Tells whether a published error has been put back into the code: the named one, or any. It is
/// always false without the feature `mutants`.
///
/// Assertions of rules also ask this macro. If an error that breaks the rule has been put back, the
/// assertion must not panic, because a litmus test or a campaign has to find the error by its
/// effects.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    () => {
        crate::mutant::is_any_on()
    };
    ($name:ident) => {
        crate::mutant::is_on(crate::mutant::Mutant::$name)
    };
}
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    () => {
        false
    };
    ($name:ident) => {
        false
    };
}

mod access;
mod applier;
mod archives;
mod attempts;
mod combine;
mod descent;
mod edit;
mod error;
mod event;
mod inspect;
mod landing;
pub mod limits;
pub mod log;
#[cfg(feature = "mutants")]
pub mod mutant;
mod oracle;
mod protocol;
mod race;
pub mod recovery;
mod rpc;
mod session;
mod sets;
mod shared;
mod stamps;
mod state;
mod swap;
mod time;
mod tree;
mod turns;
mod tx;
mod vcache;
mod vector;
mod words;

pub use access::{Access, Scan, WriteKind};
pub use applier::Applier;
pub use descent::Start;
pub use edit::EditKind;
pub use error::{Abort, Limit, Misuse, Stop};
pub use event::{ConflictCounter, Observer, Order, Outcome, Phases, TransactionEvent};
pub use inspect::{FoundKeys, Inspection, KeyScan, count_rows, inspect, scan};
pub use landing::{PastTime, Snapshot, enter_epoch};
pub use protocol::{
    Dst, FirstRead, Ford, Locks, Native, NoWait, Outcomes, Primitive, Primitives, Protocol, ProtocolSpec, Reclaimed,
    Rtx, Unsynchronized, Validation, reclaim,
};
pub use race::{
    DeadArrays, Put, Race, RaceInspection, RaceShape, RaceUnits, find_dead_arrays, free_dead_arrays, inspect_race,
    inspect_race_at_once, reclaim_race,
};
pub use rpc::{RpcHandler, request_name};
pub use session::{Session, Settled, TransactOptions, Trial};
pub use sets::{Intent, Part, Slot};
pub use shared::SharedLocks;
pub use state::{Lease, SessionConfig, Tried};
pub use time::ClientTime;
pub use tree::{Located, Question, Taken};
pub use turns::Turns;
pub use tx::{Decision, FetchedCell, Tx};
pub use vcache::VersionCache;
