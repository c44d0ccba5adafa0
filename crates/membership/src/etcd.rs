//! The configuration of client processes on any number of hosts, kept under keys in etcd.
//!
//! ```text
//! PREFIX/CLUSTER/configuration   the membership as JSON, as a file has it
//! PREFIX/CLUSTER/process/NAME    a process that lives; goes with its lease; says nothing else
//! ```
//!
//! **A change** replaces the value by an etcd transaction that compares the revision which the
//! process has read. If another process was faster, the process makes the change again, on the new
//! value. It begins with the value that it saw last, so a change costs one round trip if no other
//! process interferes. A client that runs transactions lets another thread, the
//! [helper](Configuration::helper), make the change.
//!
//! **A look** returns the value that was seen last, by a change or by the watch, and waits for
//! nothing. [`Configuration::refresh`] asks etcd for a newer value, on which etcd's servers agree.
//!
//! **An answer that is lost** leaves open whether a change was made. Not every change is
//! idempotent: a client that leaves twice is told that it is dead. So the process finds out:
//!
//! 1. The process sends the same transaction again. Etcd carries it out at most once, because the
//!    first time changes the revision.
//! 2. If the comparison fails, the process reads the value that followed the compared one in etcd's
//!    history. Every value names the change that made it. If it names this change, the change was
//!    made. If it names another change, this one was not made.
//!
//! **A watch** of all keys, in a thread of its own, shows changes in the order of their revisions.
//! A process puts its key before any of its clients join. So a process has ended if the membership
//! names it and the watch shows no key of it. The process has one second to put its key again: when
//! etcd itself has stood still, all keys may be gone with their leases. When a watch breaks, the
//! process reads everything and begins a new watch. Only the last state counts, so nothing is lost.
//! The watch does not ask for history that etcd has compacted.
//!
//! **While etcd is unreachable**, or this process is partitioned with a minority of etcd's servers:
//!
//! 1. Changes fail, the first after [`EtcdOptions::patience`], later ones at once.
//! 2. A look returns the value that was seen last. So no client renews its lease, and no client
//!    suspects another: see [`LeaseWatch`](crate::LeaseWatch).
//! 3. If etcd has not heard of a process for [`EtcdOptions::ttl`], other processes take it for
//!    ended, and recover its clients. The process puts its key again as soon as it can.
//!
//! Every renewal of a lease writes the whole value. Etcd keeps all old values until it is told to
//! compact its history. So run it with `--auto-compaction-mode=periodic
//! --auto-compaction-retention=5m`, or with similar options.
//!
//! This module needs the cargo feature `etcd`, and the packages `protobuf-compiler libprotobuf-dev`
//! to build. Without the feature all its types exist, but [`Etcd::open`] fails, and the error names
//! the feature.

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
