//! The lowest floor: remote memory as *rounds* of one-sided verbs.
//!
//! A **round** is one network round trip: a set of READ, WRITE, compare-and-swap and fetch-and-add
//! verbs to any number of memory nodes, posted together and awaited together. Everything above this
//! crate is written as a short list of rounds, so what a protocol costs can be read off its page,
//! counted, and asserted in tests.
//!
//! Three layers:
//!
//! - [`Transport`] is all that a backend writes: small, synchronous, object-safe; it owns a posted
//!   buffer until it has completed.
//! - [`Endpoint`] exists once for all backends: buffers, background rounds, timers, failures.
//! - [`Lane`] is one coroutine's view of its endpoint; everything it awaits is counted there.
//!
//! A [`Worker`] is one thread that runs several coroutines over its endpoints, so that a round trip
//! of one is work time for the others. Backends: [`shm`], memory nodes as mappings of this process
//! or, in [`shm::file`], of several; [`tcp`], memory nodes anywhere, also with RDMA ([`rdma`]);
//! and [`seeded`], the same memory under a scheduler that does everything the contract allows, from
//! a seed.
//!
//! # The contract of a round
//!
//! Every backend keeps it and `conformance` has a test for each row; no code above may assume more
//! unless it names the [`Capabilities`] that promise it.
//!
//! 1. **Order.** Verbs to one node take effect in the order added only for these pairs: WRITE then
//!    anything; CAS or FETCH_ADD then READ; atomic then atomic. READ then READ, READ then WRITE,
//!    READ then atomic and atomic then WRITE are not ordered: await the first, or call
//!    [`Round::after_completion`] between them, which costs and counts one round trip. Verbs to
//!    different nodes are unordered. Rounds of one endpoint to one node, awaited or not, are
//!    ordered by the same pairs, as if they were one round.
//! 2. **Atomicity.** Addresses and lengths are multiples of 8 bytes. The aligned 8-byte word is the
//!    only unit that is atomic on every backend. A READ is not address-ordered; a WRITE becomes
//!    visible in ascending order of words. A *line of a record* (64 bytes whose first 16 are lock
//!    and version, or begin with a line version; its writer holds the lock, writes ascending,
//!    unlocks last) is in addition read whole or seen as changed, where
//!    [`Capabilities::atomic_line`] says so.
//! 3. **Atomics** act on aligned words and are atomic against other atomics through the same NIC. A
//!    word that is ever FETCH_ADDed is never WRITTEN; a word that is CASed by several is WRITTEN by
//!    nobody.
//! 4. **Durability.** Completion of a WRITE does not mean durable; [`Round::flush`] covers the
//!    earlier writes of the round to that node, as far as [`Capabilities::flush`] says, and costs
//!    no round trip of its own.
//! 5. **Buffers** move to the transport when a round is posted and come back when it has completed:
//!    a dropped future cannot free what the NIC still uses.
//! 6. **Failure.** A round to a node that is down, or that revoked this client, fails with an error
//!    that names the node; it never hangs. Its verbs may or may not have run: callers treat an
//!    error like a dropped future. An endpoint that has lost a node has lost it for good, also if
//!    that can be reached again by others: what it posts later never passes what was lost.
//! 7. **Revocation.** [`Fabric::revoke`] returns only when no verb of that client can take effect
//!    any more.
//! 8. **Calls** ([`Round::call`]) are served by the memory node's CPU, each at most once, one
//!    endpoint's calls to one node in the order posted. They are ordered with no verb: await what
//!    must precede. A handler that serves a call runs alone at its node, but verbs of others run
//!    beside it, and meet its stores word by word. It CASes only words that no verb CASes, unless
//!    [`Capabilities::coherent_atomics`].

#![allow(clippy::vec_box, reason = "a round's buffer moves from hand to hand, and waits in lists, by its box")]

mod address;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod copy;
mod endpoint;
mod entropy;
mod error;
mod executor;
mod gate;
mod headroom;
mod ids;
mod lane;
pub mod limits;
mod outline;
mod prefetch;
mod prng;
pub mod probes;
pub mod rdma;
mod ready;
mod region;
mod round;
pub mod seeded;
mod service;
mod setters;
pub mod shm;
pub mod sim;
pub mod tcp;
mod transport;

pub use address::{Address, LINE_BYTES, LINE_WORDS, NodeId, NodeSet, RegionId, WORD_BYTES};
pub use endpoint::{BackgroundFailure, Endpoint};
pub use error::{FabricError, Fault, NameError, Refusal, SystemError, TlsReason};
pub use executor::{Run, Turn, Turned, Worker, block_on, catch_panic};
pub use headroom::{Headroom, MemoryLimit};
pub use ids::{ClientId, LaneId, Nanos, Ticket};
pub use lane::{Execute, Lane};
pub use outline::{Outlined, outline};
pub use prng::{Prng, splitmix};
pub use region::{Pages, Region, RegionError};
pub use round::buffer::{RoundBuffer, Verb};
pub use round::cost::Cost;
pub use round::{AddHandle, CallHandle, Completed, ReadHandle, Round, Staged, SwapHandle};
pub use service::{Progress, Service, ServiceHandle, thread_cpu_ns};
pub use transport::{Capabilities, Fabric, Flush, Handler, Host, Posted, Transport};
