//! The lowest floor of Remora: access to remote memory in *rounds* of one-sided verbs.
//!
//! A **round** is one network round trip: a set of READ, WRITE, compare-and-swap and fetch-and-add
//! verbs to any number of memory nodes. All verbs of a round are posted together and awaited
//! together. Everything above this crate is written as a short list of rounds. So the cost of a
//! protocol can be read off its source, counted, and asserted in tests.
//!
//! The crate has three layers:
//!
//! - [`Transport`] is all that a backend implements. It is small, synchronous and object-safe. It
//!   owns a posted buffer until the round has completed.
//! - [`Endpoint`] is common to all backends. It has the buffers, background rounds, timers and
//!   failures.
//! - [`Lane`] is one coroutine's view of its endpoint. It counts everything that the coroutine
//!   awaits.
//!
//! A [`Worker`] is one thread that runs several coroutines over its endpoints. While one of them
//! waits for a round trip, the others work. These are the backends:
//!
//! - [`shm`]: memory nodes are mappings of this process or, in [`shm::file`], of several processes.
//! - [`tcp`]: memory nodes are on any machine. With [`rdma`], their NICs execute the verbs.
//! - [`seeded`]: shared memory under a scheduler that does everything the contract allows, in an
//!   order drawn from a seed.
//!
//! # The contract of a round
//!
//! Every backend keeps this contract, and `conformance` has a test for each row. Code above this
//! crate may assume more only where it names the [`Capabilities`] that promise it.
//!
//! 1. **Order.** Verbs to one node take effect in the order in which they were added only for these
//!    pairs: WRITE then anything; CAS or FETCH_ADD then READ; atomic then atomic. The other pairs
//!    are not ordered: READ then READ, READ then WRITE, READ then atomic, atomic then WRITE. To
//!    order such a pair, await the first verb, or call [`Round::after_completion`] between them,
//!    which costs and counts one round trip. Verbs to different nodes are not ordered. Rounds of
//!    one endpoint to one node, awaited or not, are ordered by the same pairs, as if they were one
//!    round.
//! 2. **Atomicity.** Addresses and lengths are multiples of 8 bytes. The aligned 8-byte word is the
//!    only unit that is atomic on every backend. A READ may read its words in any order. A WRITE
//!    becomes visible in ascending order of words. A *line of a record* is 64 bytes. The first line
//!    begins with lock and version, each further line with a line version. The record's writer
//!    holds the lock, writes ascending, and unlocks last. Such a line is read whole or seen as
//!    changed, where [`Capabilities::atomic_line`] says so.
//! 3. **Atomics** act on aligned words. They are atomic against other atomics through the same NIC.
//!    A word that is ever changed by FETCH_ADD is never changed by WRITE. A word that several
//!    clients change by CAS is never changed by WRITE.
//! 4. **Durability.** A WRITE that has completed need not be durable. [`Round::flush`] covers the
//!    earlier writes of the round to that node, as far as [`Capabilities::flush`] says. It costs no
//!    round trip of its own.
//! 5. **Buffers** move to the transport when a round is posted, and come back when it has
//!    completed. So a dropped future cannot free memory that the NIC still uses.
//! 6. **Failure.** A round to a node that is down, or that has revoked this client, fails with an
//!    error that names the node. It never hangs. Its verbs may or may not have run, so callers
//!    treat an error like a dropped future. An endpoint that has lost a node has lost it for good,
//!    even if others can reach the node again. So nothing that the endpoint posts later can
//!    overtake what was lost.
//! 7. **Revocation.** [`Fabric::revoke`] returns only when no verb of that client can take effect
//!    any more.
//! 8. **Calls** ([`Round::call`]) are served by the memory node's CPU, each at most once. A node
//!    serves the calls of one endpoint in the order posted. Calls are ordered with no verb: await
//!    what must precede a call. A node with several threads serves calls of different endpoints at
//!    the same time, and the [`Handler`] orders calls that share state. Verbs of other clients run
//!    beside it, and meet its stores word by word. The handler CASes only words that no verb CASes,
//!    unless [`Capabilities::coherent_atomics`] is set.

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
mod listener;
mod outline;
#[doc(hidden)]
pub mod poller;
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
#[doc(hidden)]
pub mod waiting;

pub use address::{Address, LINE_BYTES, LINE_WORDS, NodeId, NodeSet, RegionId, WORD_BYTES};
pub use endpoint::{BackgroundFailure, Endpoint};
pub use error::{FabricError, Fault, NameError, Refusal, SystemError, TlsReason};
pub use executor::{Run, Turn, Turned, Worker, block_on, catch_panic};
pub use headroom::{Headroom, MemoryLimit};
pub use ids::{ClientId, LaneId, Nanos, Ticket};
pub use lane::{Execute, Lane};
pub use listener::{Heard, Listener};
pub use outline::{Outlined, outline};
pub use prefetch::prefetch_lines;
pub use prng::{Prng, splitmix};
pub use region::{HUGE_PAGE_BYTES, Pages, Region, RegionError};
pub use round::buffer::{RoundBuffer, Verb};
pub use round::cost::Cost;
pub use round::{AddHandle, Answers, CallHandle, Completed, Filling, ReadHandle, Round, Staged, SwapHandle};
pub use service::{Progress, Service, ServiceHandle, thread_cpu_ns};
pub use transport::{Assumed, BeforeWait, Capabilities, Fabric, Flush, Handler, Host, Posted, Transport};
