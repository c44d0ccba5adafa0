//! Which clients are alive: leases, suspicion, and who recovers what the dead have left.
//!
//! The [`Configuration`] is one value, the [`Membership`], whose changes everybody sees in the same
//! order. It says of every client incarnation how it stands:
//!
//! ```text
//!            join            suspect            recovered            forget
//! (unknown) ------> alive ------------> suspected --------> recovered --------> forgotten
//!                     |    its lease has   its access is      no lock of it       nothing of it
//!                     |    run out         revoked, its       says anything,      is left; its slot
//!                     | leave              transactions are   whoever meets one   is given back
//!                     v                    decided            frees it
//!                 (unknown)
//! ```
//!
//! # Leases
//!
//! A client that runs renews its lease, which is a count that grows. A judge ([`LeaseWatch`])
//! suspects a client whose count has not grown for the lease's length and a margin *of the judge's
//! own clock*: no two clocks are compared, so that they may show anything as long as they run about
//! as fast. And nothing depends even on that but promptness: a client that is suspected wrongly
//! loses its access to every memory node before anything of it is touched, and is told so.
//!
//! A judge may look at a membership that is a moment old ([`Configuration::inspect`]), but suspects
//! in the newest one ([`Membership::suspect_silent`]): whoever has renewed its lease meanwhile is
//! not suspected. And a judge that cannot renew its own lease judges nobody, because the others may
//! be kept from it by the same cause.
//!
//! A process that has ended needs no such judgement: where the configuration can tell
//! ([`Configuration::orphans`]), its clients are suspected at once, also those at rest, whose
//! leases do not run.
//!
//! # One recoverer
//!
//! Who suspects a client is its recoverer until it is forgotten. When the recoverer itself is
//! suspected, everything it was to recover passes, in the same change, to who suspects it
//! ([`Membership::suspect`]), who revokes all of them before it reads anything: so the repairs of a
//! recoverer that was only slow cannot land on those of its successor.
#![forbid(unsafe_code)]

mod configuration;
pub mod etcd;
mod file;
mod helper;
mod membership;
mod place;
mod stored;
mod watch;

pub use configuration::{Configuration, ConfigurationError, InMemory, RecoveredClients};
pub use file::LockedFile;
pub use helper::{Helper, Job};
pub use membership::{Conducting, EpochChanging, Fenced, Membership, OtherCache, Standing};
pub use place::{NotPlace, Place};
pub use watch::LeaseWatch;
