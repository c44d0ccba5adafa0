//! RDMA: memory nodes whose NICs execute the one-sided verbs, through reliable connections of
//! libibverbs.
//!
//! This is no fabric of its own: [`Tcp`](crate::tcp::Tcp) with
//! [`TcpOptions::rdma`](crate::tcp::TcpOptions::rdma), to servers with
//! [`ServerOptions::rdma`](crate::tcp::ServerOptions::rdma). The TCP connection of an endpoint is
//! where the ends prove who they are, as without RDMA; only then the server makes a queue pair for
//! it and tells it the keys of its regions. From then on
//!
//! - READ, WRITE, CAS, FETCH_ADD and flush are work requests, a list of them for each round and
//!   node: one doorbell, one completion (`rdma/present/queue.rs`);
//! - calls travel in the frames that they have over TCP, in a stream of bytes: batches of frames
//!   make one message, and answers that nobody waits for ride on later ones (passive ACK). What
//!   carries the stream is the client's choice ([`Calls`]): a ring at the other end, by WRITE with
//!   immediate (`rdma/present/mail.rs`), or unreliable datagrams over queue pairs that connections
//!   share (`rdma/conversation.rs`, `rdma/present/datagrams.rs`);
//! - the TCP connection carries nothing, and says how the other end is: a server whose process
//!   ends, or that revokes the client, is known at once.
//!
//! A flush is a READ behind the WRITEs. Queue pairs are the unit of access: revoking a client
//! destroys its queue pairs at every node. When that is confirmed, no verb of the client can take
//! effect any more, and its datagrams are dropped. Datagrams are ordered with no other verb; the
//! contract does not ask that of calls.
//!
//! A NIC without 64-bit atomics executes nothing by itself here: all verbs travel in frames, and
//! the node's CPU runs them, as over TCP. Protocols that use calls alone (`fasst`) lose nothing by
//! that.
//!
//! What a queue pair carries is neither encrypted nor signed, whatever the TCP connection is: who
//! can put packets into the network between the machines can forge it. `docs/rdma.md` says more.
//!
//! Needs the cargo feature `verbs`, and libibverbs when it runs: it is loaded when a [`Device`] is
//! opened. Without the feature everything is here, but no [`Device`] can be had.

use std::num::NonZeroU32;

use crate::error::SystemError;

#[cfg(not(feature = "verbs"))]
mod absent;
#[cfg(any(feature = "verbs", test, fuzzing))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "some of it is for devices only"))]
pub(crate) mod conversation;
#[cfg(feature = "verbs")]
mod present;

#[cfg(not(feature = "verbs"))]
use absent as backend;
#[cfg(feature = "verbs")]
use present as backend;

pub use backend::Device;
pub(crate) use backend::{Domain, Exports, Fetched, Queue};

/// Which device to use, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Name of the device, as `rdma link` or `ibv_devices` shows it; the first device that has an
    /// active port, if `None`.
    pub name: Option<String>,
    /// Port of the device, from 1; the first that is active, if `None`.
    pub port: Option<u8>,
    /// The place of the address to use in the port's table; for RoCE the first of version 2 for
    /// IPv4, otherwise the first of version 2, otherwise the first of all, if `None`.
    pub gid_index: Option<u8>,
    /// Has memory nodes' CPUs execute all verbs, as for a device without 64-bit atomics.
    pub messages_only: bool,
    /// How a client's calls travel. A memory node serves each client as that wants it.
    pub calls: Calls,
    /// For tests: one in this number of datagrams that come is taken for lost.
    pub lose_every: Option<NonZeroU32>,
}

crate::setters!(DeviceOptions {
    name: impl Into<Option<String>>,
    port: u8,
    gid_index: u8,
    messages_only: bool,
    calls: Calls,
    lose_every: NonZeroU32,
});

/// How calls travel, and with them all that memory nodes' CPUs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Calls {
    /// In the reliable connection that an endpoint has to each node anyway, by WRITE with
    /// immediate.
    #[default]
    Connection,
    /// As unreliable datagrams, by SEND and RECV: one queue pair of an endpoint reaches all nodes,
    /// and one of a node many clients. What is lost is sent again.
    Datagrams,
}

/// No device can be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The program cannot do RDMA at all.
    #[error("this program was built without RDMA: build it with --features verbs")]
    NotBuilt,
    /// libibverbs is not there.
    #[error("libibverbs is not installed: install rdma-core (Debian and Ubuntu: libibverbs1 and ibverbs-providers)")]
    NoLibrary,
    /// The kernel has no RDMA.
    #[error("this kernel has no RDMA: load ib_uverbs and the driver of the device (modprobe ib_uverbs; rdma link)")]
    NoKernel,
    /// There is no device.
    #[error("there is no RDMA device: see rdma link; docs/rdma.md says how to try without one")]
    NoDevice,
    /// There is none of this name.
    #[error("there is no RDMA device {name}; there are: {there}")]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// Devices that are there.
        there: String,
    },
    /// No port can be used.
    #[error("{device} has no active port{}: see rdma link", .port.map(|port| format!(" {port}")).unwrap_or_default())]
    NoPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: Option<u8>,
    },
    /// The port has no such address.
    #[error("{device} port {port} has no address{}", .index.map(|index| format!(" at {index} of its table (GID)")).unwrap_or_default())]
    NoAddress {
        /// The device.
        device: String,
        /// Port of the device.
        port: u8,
        /// The place asked for.
        index: Option<u8>,
    },
    /// The system refused memory.
    #[error(
        "the system does not let {bytes} bytes be registered with the device: {cause}; raise the limit of locked memory \
         (ulimit -l)"
    )]
    Memory {
        /// Bytes to be registered.
        bytes: u64,
        /// What the system said.
        cause: SystemError,
    },
    /// The system refused something else.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        cause: SystemError,
    },
}

impl VerbsError {
    /// What the system said, if it said something.
    pub(crate) fn cause(&self) -> Option<SystemError> {
        match self {
            VerbsError::Memory { cause, .. } | VerbsError::System { cause, .. } => Some(*cause),
            _ => None,
        }
    }
}
