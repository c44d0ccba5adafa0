//! The configuration of client processes on any number of hosts: a key in etcd.
//!
//! ```text
//! PREFIX/CLUSTER/configuration   the membership as JSON, as a file has it
//! PREFIX/CLUSTER/process/NAME    a process that lives; goes with its lease; says nothing else
//! ```
//!
//! A change replaces the value by a transaction of etcd's that compares the revision which was
//! read. If another process was faster, the change is made anew. It begins with the value that was
//! seen last, so that it costs one round trip if no other process interferes. A client that runs
//! transactions has another thread, the [helper](Configuration::helper), make the change.
//!
//! A look returns the value that was seen last, by a change or by the watch, and waits for nothing.
//! [`Configuration::refresh`] asks etcd, with the agreement of its servers, for a newer value.
//!
//! **An answer that is lost** leaves open whether a change was made. Not every change is
//! idempotent: a client that leaves twice is told that it is dead.
//!
//! 1. The process sends the same transaction again. Etcd carries it out at most once, because the
//!    first time changes the revision.
//! 2. If the comparison fails, the process looks up the value that followed the compared one in
//!    etcd's history. Every value names the change that made it: either this change, or another
//!    one, and then this change was not made.
//!
//! **A watch** of all keys, in a thread of its own, shows changes in the order of their revisions.
//! A process puts its key before any of its clients join. So a process has ended if the watch has
//! it in the membership but has no key of it. The process has a second to put its key again: when
//! etcd itself has stood still, all keys may be gone with their leases. A watch that breaks is
//! begun again with a look at everything. Only the last state counts, so nothing is lost by that.
//! The watch does not ask for history that etcd has compacted.
//!
//! **While etcd is unreachable**, or this process is partitioned with a minority of its servers,
//! changes fail: the first after [`EtcdOptions::patience`], later ones at once. A look returns what
//! was seen last. So no client renews its lease, and no client suspects another: see
//! [`LeaseWatch`](crate::LeaseWatch). If etcd has not heard of a process for [`EtcdOptions::ttl`],
//! the process is taken for ended, and its clients are recovered. It puts its key again as soon as
//! it can.
//!
//! Every renewal of a lease writes the whole value, and etcd keeps all of them until it is told to
//! compact its history: run it with
//! `--auto-compaction-mode=periodic --auto-compaction-retention=5m`, or the like.
//!
//! Needs the cargo feature `etcd`, and the packages `protobuf-compiler libprotobuf-dev` to build.
//! Without it everything is here, but [`Etcd::open`] says what is missing.

#[cfg(doc)]
use crate::Configuration;

#[cfg(not(feature = "etcd"))]
mod absent;
pub(crate) mod fault;
mod options;
#[cfg(feature = "etcd")]
mod present;

#[cfg(not(feature = "etcd"))]
use absent as backend;
#[cfg(feature = "etcd")]
use present as backend;

pub(crate) use backend::BUILT;
pub use backend::Etcd;
pub use fault::EtcdFault;
pub use options::{EtcdOptions, EtcdTls, EtcdUser};
