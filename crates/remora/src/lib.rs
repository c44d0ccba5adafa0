//! Strictly serializable, replicated transactions over remote memory.
//!
//! ```
//! use remora::{Cluster, TableOptions};
//!
//! #[derive(Clone, Copy, remora::Record)]
//! struct Account {
//!     balance: i64,
//! }
//!
//! // Three memory nodes in this process, every record on all three.
//! let cluster = Cluster::embedded().open()?;
//! let accounts = cluster.create_table::<u64, Account>("accounts", TableOptions::for_rows(1000))?;
//! cluster.load(&accounts, (0..1000).map(|id| (id, Account { balance: 100 })))?;
//!
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     session
//!         .transact(async |tx| {
//!             // One round trip for both.
//!             let [mut from, mut to] = accounts.get_many_mut(tx, [1, 2]).await?;
//!             from.balance -= 10;
//!             to.balance += 10;
//!             Ok(())
//!         })
//!         .await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Tables
//!
//! | table | made by | for |
//! | --- | --- | --- |
//! | [`Table`] | [`Cluster::create_table`] | records by key, in a hash index |
//! | [`Ordered`] | [`Cluster::create_ordered`] | records by key, and ranges of keys |
//! | [`DynTable`] | [`Cluster::create_dyn_table`] | bytes by key, of lengths that are known at run time only |
//! | [`DynOrdered`] | [`Cluster::create_dyn_ordered`] | bytes by key, as above, and ranges of keys |
//! | [`Large`] | [`Cluster::create_large`] | long values, up to 30 MB, with [verbs of its own](Large) |
//!
//! A key is an integer, a byte array, or a tuple of keys; a record also a float, a `bool`, or an
//! array. For your own structs, derive [`Key`] and [`Record`].
//!
//! # What a transaction does
//!
//! The table comes first, then the transaction, then the key: `accounts.get(tx, 7).await?`. A verb
//! means the same on every kind of table that has it, but for [`Large`]:
//!
//! | verb | effect | if the key is there | if it is not there |
//! | --- | --- | --- | --- |
//! | `get` | reads | returns the value | returns `None` |
//! | `require` | reads | returns the value | fails: [`Error::NotFound`] |
//! | `get_mut` | changes in place | returns the value, to be changed | fails: [`Error::NotFound`] |
//! | `insert` | inserts | fails: [`Error::Exists`] | inserts |
//! | `put` | inserts or replaces | returns the value that it had | returns `None` |
//! | `update` | replaces | replaces | fails: [`Error::NotFound`] |
//! | `remove` | deletes | returns the value that it had | returns `None` |
//! | `scan`, `scan_back` | reads a range, ascending or descending | | |
//! | `first`, `last` | reads one end of a range | | |
//!
//! On a [`Table`] whose client knows where the record is, a verb takes one round trip, or none if
//! the transaction has the record already. A commit takes two or three more. To bring several
//! records in one round trip, use [`Transaction::get_many`] and [`Transaction::prefetch`], for keys
//! of several tables of any kind, and [`Transaction::get_many_mut`], for keys of several
//! [`Table`]s. [`Slot`]s do that with the least work for the processor: [`Transaction::want`] names
//! a record, [`Transaction::fetch`] brings all that were named, and [`Slot::get_mut`] changes one
//! in place, without a copy.
//!
//! ```
//! # use remora::{Cluster, Error, OrderedOptions, TableOptions};
//! # let cluster = Cluster::embedded().open()?;
//! let visits = cluster.create_table::<u64, u64>("visits", TableOptions::for_rows(100))?;
//! // A set of keys in order: row and seat.
//! let seats = cluster.create_ordered::<(u16, u16), ()>("seats", OrderedOptions::for_rows(100))?;
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     session
//!         .transact(async |tx| {
//!             let before = visits.get(tx, 7).await?.unwrap_or(0);
//!             visits.put(tx, 7, before + 1).await?;
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
//! # Looking after tables
//!
//! | | [`Table`] | [`Ordered`] | [`DynTable`] | [`DynOrdered`] | [`Large`] |
//! | --- | --- | --- | --- | --- | --- |
//! | create | [`create_table`](Cluster::create_table) | [`create_ordered`](Cluster::create_ordered) | [`create_dyn_table`](Cluster::create_dyn_table) | [`create_dyn_ordered`](Cluster::create_dyn_ordered) | [`create_large`](Cluster::create_large) |
//! | create it with rows | [`load`](Cluster::load), [`load_parts`](Cluster::load_parts) fill it | [`load_ordered`](Cluster::load_ordered) | - | - | - |
//! | open | [`open_table`](Cluster::open_table) | [`open_ordered`](Cluster::open_ordered) | [`open_dyn_table`](Cluster::open_dyn_table) | [`open_dyn_ordered`](Cluster::open_dyn_ordered) | [`open_large`](Cluster::open_large) |
//! | drop | [`drop_table`](Cluster::drop_table) | [`drop_ordered`](Cluster::drop_ordered) | [`drop_dyn_table`](Cluster::drop_dyn_table) | [`drop_ordered`](Cluster::drop_ordered) | [`drop_large`](Cluster::drop_large) |
//! | rename | [`rename_table`](Cluster::rename_table) | [`rename_ordered`](Cluster::rename_ordered) | [`rename_dyn_table`](Cluster::rename_dyn_table) | [`rename_ordered`](Cluster::rename_ordered) | [`rename_large`](Cluster::rename_large) |
//! | grows | yes | yes | yes | yes | yes |
//!
//! `open_or_create_...` does what its name says. Sizes in options are first sizes of tables that
//! grow: they grow [by themselves](TableOptions::grows), or by [`Cluster::grow_table`], while
//! transactions go on. [`Cluster::list_tables`] says what there is, and how much room each table
//! has; [`Cluster::count_rows`] counts. [`Cluster::create_together`] creates several tables, all or
//! none.
//!
//! # Worker or pool
//!
//! - A [`Worker`] belongs to one thread and runs several coroutines. Its closures and futures need
//!   not be `Send`, and it allocates nothing in steady state. It is for programs that are built
//!   around it.
//! - A [`Db`] is `Clone + Send + Sync`. It sends a closure to a pool of workers. The future that it
//!   returns wakes under any executor, and there is a form that blocks. It is for programs that
//!   have an executor of their own.
//!
//! # Clusters
//!
//! [`Cluster::embedded`] makes memory nodes in this process. Memory nodes can also be processes of
//! their own, on this host or anywhere: [`MemoryNode`](node::MemoryNode) is one (`remora memnode`
//! runs it), and [`Cluster::connect`] finds them.
//!
//! # What a closure must know
//!
//! 1. It may run several times. So it has no effect outside of the transaction that must not be
//!    repeated.
//! 2. It may see a combination of records that will not commit. So it neither panics nor loops on a
//!    combination that should be impossible.
//! 3. What it returns counts only once its reads have been validated. That holds for its own errors
//!    too: [`Error::User`] means that the state which made the closure give up was real.
//!
//! [`Session::transact`] tries again whatever has certainly not committed and may pass: an abort, a
//! change of epoch, a full table that grows. It makes growing random pauses, and gives up after
//! twice the longest lease of any client, unless [`TransactionOptions`] says otherwise. So it
//! outlasts the locks of a client that has died. It never retries [`Error::Unknown`]: the
//! transaction may have committed, and a second attempt would apply it twice.
//!
//! Handles are checked in every build. A table of another cluster or protocol, and a [`Slot`] that
//! was kept from another run or has not been fetched, are an [`Error::Misuse`].
//!
//! # Values of any length
//!
//! A record has a fixed size, and one transaction writes about 32 KiB. A longer value is kept out
//! of line. [`Large::upload`] stores it in chunks that no other transaction sees; then a
//! transaction links it, together with whatever other records it writes. [`Large::write`] does
//! both.
//!
//! ```
//! # use remora::{Cluster, Error, LargeOptions};
//! # let cluster = Cluster::embedded().open()?;
//! let pictures = cluster.create_large::<u64>("pictures", LargeOptions::for_values(100, 1 << 20))?;
//! let mut worker = cluster.worker(Default::default())?;
//! worker.block_on(async |session| {
//!     pictures.write(session, 7, &[1; 100_000]).await?;
//!     assert_eq!(pictures.read(session, 7).await?, Some(vec![1; 100_000]));
//!     Ok::<(), Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

// What is derived names this crate, also within it.
extern crate self as remora;

/// Whether this published error has been put back. Always false without the feature `mutants`.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        remora_txn::mutant::is_on(remora_txn::mutant::Mutant::$name)
    };
}
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

mod client;
mod cluster;
mod controller;
mod dynamic;
mod error;
mod keeper;
mod key;
mod large;
mod mutex;
mod open_error;
mod operations;
mod ordered;
mod pool;
mod record;
mod rows;
mod server;
mod table;
mod transaction;
mod usage;
mod worker;

pub use cluster::{Cluster, ClusterOptions, LEASE, TableOptions};
pub use dynamic::{DYN_KEY_BYTES_MAX, DYN_VALUE_BYTES_MAX, DynOptions, DynSchema, DynTable, Lengths};
pub use error::{Error, Misuse, Named, OpenError, OpenErrorKind, Reason};
pub use key::Key;
pub use large::{LARGE_BYTES_MAX, Large, LargeOptions, Stored};
pub use ordered::{Design, DynOrdered, Ordered, OrderedOptions};
pub use pool::Db;
pub use record::{Plain, Record};
pub use remora_record::TransactionId;
pub use remora_txn::recovery::Verdict;
pub use remora_txn::{Abort, Intent, Limit};
pub use rows::{Row, Rows, RowsMut};
pub use table::Table;
pub use transaction::{Begun, Slot, Transaction, ValueMut};
pub use worker::{Session, TransactionOptions, Worker, WorkerOptions};
/// For records that are looked at and changed in place: see [`Plain`].
pub use zerocopy;

/// Connecting to memory nodes that are processes of their own: where they are, which keys and
/// certificates they ask for, and the configuration that the clients of a cluster share.
pub mod connect {
    pub use crate::cluster::{ConnectOptions, Nodes, NotNodes};
    pub use crate::error::ConnectError;
    pub use remora_fabric::NameError;
    pub use remora_fabric::rdma::{Device, DeviceOptions, VerbsError};
    pub use remora_fabric::tcp::tls::{ClientTls, TlsError};
    pub use remora_fabric::tcp::{Key as NodeKey, KeyError, KeyStep, Keys as NodeKeys, Names as NodeNames};
    pub use remora_membership::etcd::{EtcdFault, EtcdOptions, EtcdTls, EtcdUser};
    pub use remora_membership::{NotPlace, Place};
}

/// Looking after a cluster: controllers, its configuration, dropping tables, and inspecting them.
pub mod admin {
    pub use crate::cluster::{Freed, TableInfo};
    pub use crate::controller::Controller;
    pub use crate::ordered::TreeInspection;
    pub use remora_fabric::NodeId;
    pub use remora_membership::{Configuration, ConfigurationError, Standing};
    pub use remora_txn::Inspection;
}

/// Observing transactions, what they cost, and what recovery does.
pub mod observe {
    pub use remora_fabric::tcp::NodeStatus;
    pub use remora_fabric::{Cost, Nanos};
    pub use remora_txn::recovery::Rollback;
    pub use remora_txn::{Access, Observer, Outcome, Phases, TransactionEvent, WriteKind};

    /// The target (`tracing`) of what the library says of its waits: once for each, at level
    /// `WARN`. For programs that show these lines, and no other warnings.
    pub const WAITS: &str = "remora::wait";
}

/// The protocols that transactions can run by, and what they can be varied in.
pub mod protocol {
    pub use remora_node::ReadScheme;
    pub use remora_txn::{Ford, Protocol, Validation, VersionCache};
}

/// Memory nodes: processes that serve memory, and do nothing else.
pub mod node {
    pub use crate::server::{MemoryNode, NodeError};
    pub use remora_fabric::shm::file::PriorMemory;
    pub use remora_fabric::tcp::ServerOptions;
    pub use remora_fabric::tcp::tls::ServerTls;
    pub use remora_fabric::{Pages, SystemError};
}

/// Clusters under a simulator or a hostile scheduler, for tests and experiments.
pub mod simulate {
    pub use crate::error::SimulatedError;
}

/// The floors below, for tools and tests that need them.
#[doc(hidden)]
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
