//! RDMA: memory nodes whose NICs execute the one-sided verbs, over reliable connections of
//! libibverbs.
//!
//! RDMA is not a fabric of its own. A client uses [`Tcp`](crate::tcp::Tcp) with
//! [`TcpOptions::rdma`](crate::tcp::TcpOptions::rdma), with servers that have
//! [`ServerOptions::rdma`](crate::tcp::ServerOptions::rdma). The two ends prove who they are on the
//! endpoint's TCP connection, as without RDMA. Only then does the server make a queue pair for the
//! endpoint, and tell it the keys of the server's regions. From then on:
//!
//! - READ, WRITE, CAS, FETCH_ADD and flush are work requests. A round posts one list of them to
//!   each node, which takes one doorbell and at most one completion (`rdma/present/queue.rs`).
//!   Lists of rounds that no coroutine awaits mostly take none (`rdma/sends.rs`).
//! - Calls travel in the same frames as over TCP, in a stream of bytes. A batch of frames makes one
//!   message, and answers that no coroutine waits for ride on later messages (passive ACK). The
//!   client chooses what carries the stream ([`Calls`]): a ring at the other end, by WRITE with
//!   immediate (`rdma/present/mail.rs`), or unreliable datagrams over queue pairs that connections
//!   share (`rdma/conversation.rs`, `rdma/present/datagrams.rs`).
//! - The TCP connection carries no data, but shows the state of the other end. If a server's
//!   process ends, or if the server revokes the client, the client knows at once.
//!
//! A flush is a READ behind the WRITEs. Queue pairs are the unit of access: to revoke a client,
//! every node destroys the client's queue pairs. When that is confirmed, no verb of the client can
//! take effect any more, and its datagrams are dropped. Datagrams are not ordered with other verbs;
//! the contract does not ask that of calls.
//!
//! A NIC without 64-bit atomics executes no verbs here. All verbs travel in frames, and the node's
//! CPU runs them, as over TCP. Protocols that use calls alone (`fasst`) lose nothing by that.
//!
//! What a queue pair carries is neither encrypted nor signed, even if the TCP connection is. An
//! attacker who can put packets into the network between the machines can forge it. `docs/rdma.md`
//! says more.
//!
//! RDMA needs the cargo feature `verbs`, and libibverbs at run time: opening a [`Device`] loads the
//! library. Without the feature this module has all its types, but no [`Device`] can be opened.

use std::num::NonZeroU32;

use crate::error::SystemError;
use crate::transport::Assumed;

#[cfg(not(feature = "verbs"))]
mod absent;
#[cfg(any(feature = "verbs", test, fuzzing))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "some of it is for devices only"))]
pub(crate) mod conversation;
#[cfg(feature = "verbs")]
mod present;
#[cfg(any(feature = "verbs", test))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "some of it is for devices only"))]
mod sends;

#[cfg(not(feature = "verbs"))]
use absent as backend;
#[cfg(feature = "verbs")]
use present as backend;

pub use backend::Device;
pub(crate) use backend::{Domain, Exports, Fetched, Queue};

/// Options of an RDMA device: which device to use, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Name of the device, as `rdma link` or `ibv_devices` shows it. `None` chooses the first
    /// device that has an active port.
    pub name: Option<String>,
    /// Port of the device, counted from 1. `None` chooses the first port that is active.
    pub port: Option<u8>,
    /// Index of the address to use in the port's table. `None` chooses: for RoCE the first address
    /// of version 2 for IPv4, otherwise the first of version 2, otherwise the first of all.
    pub gid_index: Option<u8>,
    /// Whether the CPUs of memory nodes execute all verbs, as they do for a device without 64-bit
    /// atomics.
    pub messages_only: bool,
    /// How a client's calls travel. A memory node serves each client in the way that the client
    /// chose.
    pub calls: Calls,
    /// What to take for granted of the device and of the memory nodes' machines. By default,
    /// nothing. All clients that use tables made with an assumption must make it, too.
    pub assume: Assumed,
    /// For tests: one in this number of received datagrams is treated as lost.
    pub lose_every: Option<NonZeroU32>,
}

crate::setters!(DeviceOptions {
    name: impl Into<Option<String>>,
    port: u8,
    gid_index: u8,
    messages_only: bool,
    calls: Calls,
    assume: Assumed,
    lose_every: NonZeroU32,
});

/// The way in which calls travel, and with them all verbs that the CPUs of memory nodes execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Calls {
    /// Through the reliable connection that an endpoint has to each node anyway, by WRITE with
    /// immediate.
    #[default]
    Connection,
    /// As unreliable datagrams, by SEND and RECV. One queue pair of an endpoint reaches all nodes,
    /// and one queue pair of a node reaches many clients. A datagram that is lost is sent again.
    Datagrams,
}

/// What the open endpoints and the servers of a device have posted to it: see [`Device::counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceCounts {
    /// Lists of work requests. Each takes one doorbell.
    pub send_lists: u64,
    /// Work requests.
    pub sends: u64,
    /// Work requests whose completion the device reports.
    pub signaled: u64,
    /// Lists of receives. Each takes one doorbell.
    pub receive_lists: u64,
    /// Receives.
    pub receives: u64,
}

/// The reason why no RDMA device can be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The program was built without RDMA.
    #[error("this program was built without RDMA: build it with --features verbs")]
    NotBuilt,
    /// libibverbs is not installed.
    #[error("libibverbs is not installed: install rdma-core (Debian and Ubuntu: libibverbs1 and ibverbs-providers)")]
    NoLibrary,
    /// The kernel has no RDMA.
    #[error("this kernel has no RDMA: load ib_uverbs and the driver of the device (modprobe ib_uverbs; rdma link)")]
    NoKernel,
    /// The machine has no RDMA device.
    #[error("there is no RDMA device: see rdma link; docs/rdma.md says how to try without one")]
    NoDevice,
    /// The machine has no RDMA device of this name.
    #[error("there is no RDMA device {name}; there are: {there}")]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
        /// The names of the devices that the machine has.
        there: String,
    },
    /// The device has no port that can be used.
    #[error("{device} has no active port{}: see rdma link", .port.map(|port| format!(" {port}")).unwrap_or_default())]
    NoPort {
        /// The name of the device.
        device: String,
        /// The port that was asked for.
        port: Option<u8>,
    },
    /// The port has no address at this index, or none at all.
    #[error("{device} port {port} has no address{}", .index.map(|index| format!(" at {index} of its table (GID)")).unwrap_or_default())]
    NoAddress {
        /// The name of the device.
        device: String,
        /// The port of the device.
        port: u8,
        /// The index that was asked for.
        index: Option<u8>,
    },
    /// The system refused to register memory with the device.
    #[error(
        "the system does not let {bytes} bytes be registered with the device: {cause}; raise the limit of locked memory \
         (ulimit -l)"
    )]
    Memory {
        /// The number of bytes to register.
        bytes: u64,
        /// The system's error.
        cause: SystemError,
    },
    /// The system refused another operation.
    #[error("cannot {what}: {cause}")]
    System {
        /// The operation that was refused.
        what: &'static str,
        /// The system's error.
        cause: SystemError,
    },
}

impl VerbsError {
    /// Returns the system's error, if there was one.
    pub(crate) fn cause(&self) -> Option<SystemError> {
        match self {
            VerbsError::Memory { cause, .. } | VerbsError::System { cause, .. } => Some(*cause),
            _ => None,
        }
    }
}
