//! Strictly serializable, replicated transactions over remote memory.
//!
//! ```
//! use remora::{Cluster, ClusterOptions, Error, TableOptions};
//! use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
//!
//! #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
//! #[repr(C)]
//! struct Account {
//!     balance: i64,
//! }
//! impl remora::Record for Account {
//!     const SCHEMA: &'static str = "account: balance i64";
//! }
//!
//! // Three memory nodes in this process, every record on all three.
//! let cluster = Cluster::embedded(ClusterOptions::default())?;
//! let accounts = cluster.create_table::<u64, Account>("accounts", TableOptions::for_rows(1000))?;
//! cluster.load(&accounts, (0..1000).map(|id| (id, Account { balance: 100 })))?;
//!
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     session
//!         .transact(async |tx| {
//!             let (from, to) = (tx.want(&accounts, 1), tx.want(&accounts, 2));
//!             tx.fetch().await?; // one round trip for both
//!             tx.get_mut(from)?.balance -= 10;
//!             tx.get_mut(to)?.balance += 10;
//!             Ok(())
//!         })
//!         .await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Two doors lead to transactions:
//!
//! - [`Worker`]: this thread, several coroutines; closures and futures need not be `Send`, nothing
//!   is allocated in steady state. For programs that are built around it.
//! - [`Db`]: `Clone + Send + Sync`. A closure travels to a pool of workers; the future that comes
//!   back wakes under any executor, and there is a blocking form. For programs that have an
//!   executor of their own.
//!
//! Memory nodes can also be processes of their own, on this host or anywhere: [`MemoryNode`] is one
//! (`remora memnode` runs it), and [`Cluster::connect`] finds them.
//!
//! # Inserts and deletes
//!
//! ```
//! # use remora::{Cluster, Error, Intent, TableOptions};
//! # #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes)]
//! # #[derive(zerocopy::Immutable, zerocopy::KnownLayout)]
//! # #[repr(C)]
//! # struct Ticket { seat: u64 }
//! # impl remora::Record for Ticket { const SCHEMA: &'static str = "ticket: seat u64"; }
//! # let cluster = Cluster::embedded(Default::default())?;
//! let tickets = cluster.create_table::<u64, Ticket>("tickets", TableOptions::for_rows(100))?;
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     session.transact(async |tx| tx.insert(&tickets, 7, Ticket { seat: 1 }).await).await?;
//!     // One round trip for both keys, instead of one for each.
//!     session
//!         .transact(async |tx| {
//!             let old = tx.want_for(&tickets, 7, Intent::Delete);
//!             let new = tx.want_for(&tickets, 8, Intent::Insert);
//!             tx.fetch().await?;
//!             let ticket = *tx.get(old)?;
//!             tx.remove(old)?;
//!             tx.put(new, ticket)
//!         })
//!         .await?;
//!     let again =
//!         session.transact(async |tx| tx.insert(&tickets, 8, Ticket { seat: 2 }).await).await;
//!     assert!(matches!(again, Err(Error::Exists(_))));
//!     Ok::<(), Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Values of any length
//!
//! A record has a fixed size, and one transaction writes about 32 KiB. Longer values, up to
//! [`LARGE_BYTES_MAX`], are kept out of line ([`Large`]): stored first, where nobody sees them, and
//! then linked by a transaction, together with whatever other records it writes.
//!
//! ```
//! # use remora::{Cluster, Error, LargeOptions};
//! # let cluster = Cluster::embedded(Default::default())?;
//! let pictures = cluster.create_large::<u64>("pictures", LargeOptions::for_values(100, 1 << 20))?;
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     pictures.write(session, &7, &[1; 100_000]).await?;
//!     assert_eq!(pictures.read(session, &7).await?, Some(vec![1; 100_000]));
//!     Ok::<(), Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Keys in order
//!
//! An [`Ordered`] table has ranges: a scan, the first or the last key of one, inside any
//! transaction. Nobody inserts into what it has seen, or deletes from it, before it commits.
//!
//! ```
//! # use remora::{Cluster, Error, OrderedOptions};
//! # let cluster = Cluster::embedded(Default::default())?;
//! // A set of keys: row and seat.
//! let seats = cluster.create_ordered::<(u16, u16), ()>("seats", OrderedOptions::for_rows(100))?;
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     session
//!         .transact(async |tx| {
//!             for (row, seat) in [(2, 1), (1, 7), (1, 5)] {
//!                 seats.insert(tx, (row, seat), ()).await?;
//!             }
//!             let of_the_first_row = seats.scan(tx, (1, 0)..(2, 0), 10).await?;
//!             assert_eq!(of_the_first_row, [((1, 5), ()), ((1, 7), ())]);
//!             Ok(())
//!         })
//!         .await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Dropping tables
//!
//! [`Cluster::drop_table`] drops a table: its name and its memory can be used again. Transactions
//! that use a handle of it fail with [`Misuse::Dropped`], also in other processes.
//!
//! # What a closure must know
//!
//! It is an optimistic transaction's: it **may run several times**, and **may see a combination of
//! records that will not commit**. So it has no effect outside of the transaction that must not be
//! repeated, and neither panics nor loops on a combination that should be impossible. What it
//! returns counts only once its reads have been validated, and that goes for its own errors too:
//! [`Error::User`] means that the state which made it give up was real.
//!
//! Only [`Error::Aborted`] is retried, with growing random pauses: for twice the longest lease of
//! any client, unless [`TransactionOptions`] says otherwise, so that the locks of a client that has
//! died are waited for. [`Error::Unknown`] never is: the transaction may have committed, and doing
//! it again would apply it twice.
//!
//! Handles are checked in every build: a table of another cluster or protocol, and a [`Slot`] that
//! was kept from another run or has not been fetched, are an [`Error::Misuse`].
#![forbid(unsafe_code)]

mod client;
mod cluster;
mod controller;
mod error;
mod keeper;
mod large;
mod mutex;
mod node;
mod ordered;
mod pool;
mod table;
mod transaction;
mod usage;
mod worker;

pub use cluster::{Cluster, ClusterOptions, ConnectOptions, Freed, LEASE, Nodes, NotNodes, TableOptions};
pub use controller::Controller;
pub use error::{ConnectError, Error, Misuse, Named, OpenError, Reason, SimulatedError};
pub use large::{LARGE_BYTES_MAX, Large, LargeOptions, Stored};
pub use node::{MemoryNode, NodeError};
pub use ordered::{Design, Ordered, OrderedOptions, TreeInspection};
pub use pool::Db;
pub use table::{Key, OrderedKey, Record, Table};
pub use transaction::{Begun, Slot, Transaction};
pub use worker::{Session, TransactionOptions, Worker, WorkerOptions};

pub use remora_fabric::rdma::{Device, DeviceOptions, VerbsError};
pub use remora_fabric::shm::file::PriorMemory;
pub use remora_fabric::tcp::tls::{ClientTls, ServerTls, TlsError};
pub use remora_fabric::tcp::{
    Key as NodeKey, KeyError, KeyStep, Keys as NodeKeys, Names as NodeNames, NodeStatus, ServerOptions,
};
pub use remora_fabric::{Cost, NameError, Nanos, NodeId, Pages, SystemError};
pub use remora_membership::etcd::{EtcdFault, EtcdOptions, EtcdTls, EtcdUser};
pub use remora_membership::{Configuration, ConfigurationError, NotPlace, Place, Standing};
pub use remora_node::ReadScheme;
pub use remora_record::TransactionId;
pub use remora_txn::recovery::{Rollback, Verdict};
pub use remora_txn::{
    Abort, Access, Ford, Inspection, Intent, Limit, Observer, Outcome, Phases, Protocol, TransactionEvent, Validation,
    VersionCache, WriteKind,
};

/// The target (`tracing`) of what the library says of its waits: once for each, at level `WARN`.
/// For programs that show these lines, and no other warnings.
pub const WAITS: &str = "remora::wait";

/// The floors below, for tools and tests that need them.
pub mod floors {
    pub use {
        remora_fabric as fabric, remora_index as index, remora_membership as membership, remora_node as node,
        remora_record as record, remora_txn as txn,
    };
}

/// The README's first program is compiled and run as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
