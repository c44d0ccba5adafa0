//! The membership of a cluster: which clients are alive, by leases and suspicion, and which client
//! recovers what a dead client has left.
//!
//! The [`Configuration`] holds one value, the [`Membership`]. All clients see its changes in the
//! same order. It says how each client incarnation stands:
//!
//! ```text
//!            join            suspect            recovered            forget
//! (unknown) ------> alive ------------> suspected --------> recovered --------> forgotten
//!                     |    its lease has   its access is      its locks are      nothing of it
//!                     |    expired         revoked, its       stale: a client    is left; its slot
//!                     | leave              transactions are   that meets one     is given back
//!                     v                    decided            frees it
//!                 (unknown)
//! ```
//!
//! # Leases
//!
//! A running client renews its lease, which is a count that grows. A judge ([`LeaseWatch`])
//! suspects a client whose count has not grown for the lease's length and a margin, *by the judge's
//! own clock*. No two clocks are compared. They may show different times, but must run at about the
//! same rate. Even that is needed only for promptness, not for safety. If a client is suspected
//! wrongly, it loses its access to every memory node before its locks and transactions are touched,
//! and it learns of that.
//!
//! A judge may look at a stale membership ([`Configuration::inspect`]), but suspects a client only
//! in the newest one ([`Membership::suspect_silent`]). So a client that has renewed its lease
//! meanwhile is not suspected. A judge that cannot renew its own lease judges no client, because
//! the same cause may keep the other clients from renewing.
//!
//! A process that has ended needs no such judgement. If the configuration can tell
//! ([`Configuration::orphans`]), its clients are suspected at once. This includes clients at rest,
//! whose leases do not run.
//!
//! # One recoverer
//!
//! The client that suspects another client is its recoverer until that client is forgotten. When
//! the recoverer itself is suspected, all clients that it was to recover pass to the client that
//! suspects it, in the same change ([`Membership::suspect`]). The successor revokes all of them,
//! and the former recoverer, before it reads anything. So the repairs of a recoverer that was only
//! slow cannot land on the repairs of its successor.
#![forbid(unsafe_code)]

mod configuration;
pub mod etcd;
mod file;
mod membership;
mod place;
mod stored;
mod watch;

pub use configuration::{Configuration, ConfigurationError, Helper, InMemory, Job, RecoveredClients};
pub use file::LockedFile;
pub use membership::{Conducting, EpochChanging, Fenced, Membership, OtherCache, Standing};
pub use place::{NotPlace, Place};
pub use watch::LeaseWatch;
