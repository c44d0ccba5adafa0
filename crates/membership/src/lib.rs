//! Which clients are alive: leases, suspicion, and who recovers what the dead have left.
//!
//! The [`Configuration`] is one value, the [`Membership`], whose changes everybody sees in the same
//! order. It says of every client incarnation how it stands:
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
//! own clock*. No two clocks are compared: they may show anything, but must run about as fast. Only
//! promptness depends even on that. A client that is suspected wrongly loses its access to every
//! memory node before anything of it is touched, and is told so.
//!
//! A judge may look at a stale membership ([`Configuration::inspect`]), but suspects in the newest
//! one ([`Membership::suspect_silent`]). So a client that has renewed its lease meanwhile is not
//! suspected. A judge that cannot renew its own lease judges no client: the other clients may be
//! kept from renewing by the same cause.
//!
//! A process that has ended needs no such judgement. Where the configuration can tell
//! ([`Configuration::orphans`]), its clients are suspected at once. So are clients at rest, whose
//! leases do not run.
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
