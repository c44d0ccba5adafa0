//! Strictly serializable, replicated transactions over remote memory.
//!
//! Remora keeps tables in the memory of several machines, the *memory nodes*. A program that uses
//! this library is a *client*. It reads and changes records at the memory nodes in transactions:
//! over the network (TCP, or remote direct memory access), or in memory that it shares with them.
//!
//! - A transaction changes several records, of several tables, together or not at all. This holds
//!   even if the program dies in the middle.
//! - Transactions are *strictly serializable*: each seems to happen at one instant between its
//!   beginning and its end.
//! - Tables are *replicated*: every record has copies at several memory nodes, and the cluster goes
//!   on without a memory node that dies.
//!
//! The first program moves money between two accounts:
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
//! A program takes these steps:
//!
//! 1. It makes a cluster in its own process ([`Cluster::embedded`]), or connects to one
//!    ([`Cluster::connect`]).
//! 2. It creates or opens tables.
//! 3. It makes a [`Worker`] for its thread, or a [`Db`] for any thread and any executor.
//! 4. It runs closures as transactions. The library runs a closure again if another transaction was
//!    in the way.
//!
//! # Clusters
//!
//! [`Cluster::embedded`] makes memory nodes in this process. They are for tests and first steps:
//! the tables end with the program.
//!
//! Memory nodes can also be processes of their own, on this host or on others.
//! [`MemoryNode`](node::MemoryNode) is one, and `remora memnode` runs it. [`Cluster::connect`]
//! connects to them. Such a cluster goes on after the death of a memory node only if a
//! [`Controller`](admin::Controller) runs (`remora controller`).
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
//! A key is an integer, a byte array, or a tuple of keys. A record can also be a float, a `bool`,
//! or an array. For your own structs, derive [`Key`] and [`Record`].
//!
//! # What a transaction does
//!
//! In each call the table comes first, then the transaction, then the key: `accounts.get(tx,
//! 7).await?`. A verb means the same on every kind of table that has it, except on [`Large`]:
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
//! | `scan`, `scan_back` | reads a range, ascending or descending | returns keys and values | returns an empty list |
//! | `first`, `last` | reads one end of a range | returns its key and value | returns `None` |
//!
//! On a [`Table`], a verb takes one round trip if the client knows where the record is. It takes
//! none if the transaction has the record already. A commit takes two or three more. Several
//! records can come in one round trip:
//!
//! - [`Transaction::get_many`] and [`Transaction::prefetch`] take keys of several tables of any
//!   kind.
//! - [`Transaction::get_many_mut`] takes keys of several [`Table`]s, whose values are then changed
//!   in place.
//! - [`Slot`]s cost the processor least: [`Transaction::want`] names a record,
//!   [`Transaction::fetch`] brings all records that were named, and [`Slot::get_mut`] changes a
//!   record in place, without a copy.
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
//! # What a closure must know
//!
//! 1. A closure may run several times. So its effects outside of the transaction, if it has any,
//!    must be harmless when they are repeated.
//! 2. A closure may see values and combinations of records that no committed state has: another
//!    transaction may have committed in between, or another coroutine's transaction, with which
//!    this one would have committed together, may abort. So it must neither panic nor loop on a
//!    state that should be impossible. The transaction does not commit then.
//! 3. What a closure returns counts only once its reads have been validated. That holds for its own
//!    errors too: [`Error::User`] means that the state which made the closure give up was real.
//! 4. A closure must not block its thread: the worker's other coroutines would stand still, and
//!    other clients could wait for locks that the worker frees in the background.
//!    [`Session::sleep`] waits without that.
//!
//! [`Session::transact`] tries a transaction again if it has certainly not committed and the cause
//! may pass: an abort, a change of epoch, a full table that grows. Between attempts it makes
//! growing random pauses. It gives up after twice the longest lease of any client, unless
//! [`TransactionOptions`] says otherwise. A client that has died keeps its locks for about one
//! lease, so this is long enough.
//!
//! Handles are checked in every build. It is an [`Error::Misuse`] to use a table of another cluster
//! or protocol, or a [`Slot`] of another run or of a record that has not been fetched.
//!
//! # When a transaction fails
//!
//! | error | has it committed? | what it means |
//! | --- | --- | --- |
//! | [`Error::Aborted`] | no | other transactions were in the way until its attempts or its time were over |
//! | [`Error::Unknown`] | perhaps | the answer was lost: [`Session::resolve`] finds out |
//! | [`Error::Unavailable`] | no | a memory node is unreachable |
//! | [`Error::Fenced`] | no | the cluster has taken this client for dead: make a new [`Worker`], or ask for [`WorkerOptions::reconnects`] |
//! | [`Error::Limit`] | no | the transaction exceeds a limit, or its deadline has passed |
//! | [`Error::Misuse`] | no | the program has made a mistake |
//! | [`Error::NotFound`], [`Error::Exists`], [`Error::User`] | no | the closure gave up, for a reason that was validated |
//!
//! The library never tries a transaction again after [`Error::Unknown`]: it may have committed, and
//! a second attempt would apply it twice.
//!
//! # Worker or pool
//!
//! - A [`Worker`] belongs to one thread and runs several coroutines. Its closures and futures need
//!   not be `Send`, and it allocates nothing in steady state. It is for programs that are built
//!   around it.
//! - A [`Db`] is `Clone + Send + Sync`. It sends a closure to a pool of workers, and returns a
//!   future that any executor can run. There is also a form that blocks the thread. It is for
//!   programs that have an executor of their own.
//!
//! Threads share a [`Cluster`] and its tables, by reference or by clones. Each thread makes a
//! worker of its own, with [options](WorkerOptions):
//!
//! ```
//! # use remora::{Cluster, Error, TableOptions, WorkerOptions};
//! # let cluster = Cluster::embedded().open()?;
//! # let counters = cluster.create_table::<u64, u64>("counters", TableOptions::for_rows(10))?;
//! # cluster.load(&counters, [(1, 0)])?;
//! std::thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(|| {
//!             let mut worker = cluster.worker(WorkerOptions::default().coroutines(4))?;
//!             // The closure runs once in each of the four coroutines.
//!             let ended = worker.run(async |_, session| {
//!                 session
//!                     .transact(async |tx| {
//!                         *counters.get_mut(tx, 1).await? += 1;
//!                         Ok(())
//!                     })
//!                     .await
//!             });
//!             ended.into_iter().collect::<Result<(), Error>>()
//!         });
//!     }
//! });
//! # let mut worker = cluster.worker(Default::default())?;
//! # let count = worker.block_on(async |session| {
//! #     session.transact(async |tx| counters.get(tx, 1).await).await
//! # })?;
//! # assert_eq!(count, Some(8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Programs to begin with
//!
//! They are in the repository's folder `crates/remora/examples`, each of them about one idea, and
//! run by `cargo run --release -p remora --example NAME`.
//!
//! | task | `NAME` |
//! | --- | --- |
//! | move money between two accounts | `transfer` |
//! | insert or replace | `upsert` |
//! | read a range of keys | `scan` |
//! | a counter that many threads increment | `counter` |
//! | a secondary index | `secondary_index` |
//! | a queue of jobs | `queue` |
//! | values of megabytes | `large_values` |
//! | a table whose shape is known at run time only | `run_time` |
//! | a server on tokio | `service` |
//! | memory nodes as processes, and one that dies | `fail_over` |
//! | print slow transactions | `slow` |
//!
//! # Values of any length
//!
//! A record has a fixed size, and one transaction writes at most about 32 KiB, or more with larger
//! logs ([`WorkerOptions::log_bytes`]). A longer value is kept out of line. [`Large::upload`]
//! stores it in chunks that no other transaction sees. Then a transaction links the value to a
//! key, together with any other records that it writes. [`Large::write`] does both.
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
//! `open_or_create_...` opens a table, or creates it if there is none of this name. Sizes in
//! options are first sizes: tables grow while transactions go on, either [by
//! themselves](TableOptions::grows) or by [`Cluster::grow_table`]. [`Cluster::list_tables`] lists
//! the tables, and how much room each has. [`Cluster::count_rows`] counts the rows of one.
//! [`Cluster::create_together`] creates several tables, all or none.
#![forbid(unsafe_code)]

// Derived code names this crate `remora`, also within this crate.
extern crate self as remora;

/// Tells whether this published error has been put back into the code. It is always false without
/// the feature `mutants`.
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
mod conflicts;
mod controller;
mod dynamic;
mod error;
mod hot;
mod keeper;
mod key;
mod large;
mod mutex;
mod open_error;
mod operations;
mod ordered;
mod pool;
mod race;
mod reading;
mod record;
mod rows;
mod server;
mod snapshot;
mod table;
mod transaction;
mod usage;
mod worker;

pub use cluster::{Cluster, ClusterOptions, LEASE, TableOptions};
pub use dynamic::{DYN_KEY_BYTES_MAX, DYN_VALUE_BYTES_MAX, DynOptions, DynSchema, DynSlot, DynTable, Lengths, Walked};
pub use error::{Error, Misuse, Named, OpenError, OpenErrorKind, Reason};
pub use key::Key;
pub use large::{LARGE_BYTES_MAX, Large, LargeOptions, Stored};
pub use ordered::{Design, DynOrdered, Ordered, OrderedOptions};
pub use pool::Db;
pub use race::{Race, RaceOptions};
pub use record::{Plain, Record};
pub use remora_record::TransactionId;
pub use remora_txn::recovery::Verdict;
pub use remora_txn::{Abort, Intent, Limit};
pub use rows::{Row, Rows, RowsMut};
pub use snapshot::{Freshness, Snapshot};
pub use table::Table;
pub use transaction::{Begun, Slot, Transaction, ValueMut};
pub use worker::{Session, TransactionOptions, Worker, WorkerOptions};
/// The crate zerocopy, whose traits a record needs so that transactions can read and change it in
/// place: see [`Plain`].
pub use zerocopy;

/// Types for connecting to memory nodes that are processes of their own: their addresses, the keys
/// and certificates that they ask for, and the configuration that the clients of a cluster share.
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

/// Types for looking after a cluster: controllers, the configuration, dropping tables, and
/// inspecting them.
pub mod admin {
    pub use crate::cluster::{Freed, TableInfo};
    pub use crate::controller::Controller;
    pub use crate::ordered::TreeInspection;
    pub use remora_fabric::NodeId;
    pub use remora_membership::{Configuration, ConfigurationError, Standing};
    pub use remora_txn::{Inspection, RaceInspection, RaceUnits, Reclaimed};
}

/// Types for observing transactions, their costs, and what recovery does.
pub mod observe {
    pub use crate::hot::{HotRecord, HotRecords};
    pub use remora_fabric::tcp::NodeStatus;
    pub use remora_fabric::{Cost, Nanos};
    pub use remora_txn::recovery::Rollback;
    pub use remora_txn::{Access, Observer, Order, Outcome, Phases, Snapshot, TransactionEvent, WriteKind};

    /// The `tracing` target under which the library logs that it waits, once for each wait, at
    /// level `WARN`. A program can show these lines and hide other warnings.
    pub const WAITS: &str = "remora::wait";
}

/// The protocols by which transactions can run, and their parameters.
pub mod protocol {
    pub use remora_node::ReadScheme;
    pub use remora_txn::{Ford, Protocol, Rtx, Validation, VersionCache};
}

/// Memory nodes: they serve memory to clients, and do nothing else.
pub mod node {
    pub use crate::server::{MemoryNode, NodeError, PassiveMemory};
    pub use remora_fabric::shm::Reclaimed;
    pub use remora_fabric::shm::file::{PriorMemory, reclaim};
    pub use remora_fabric::tcp::ServerOptions;
    pub use remora_fabric::tcp::tls::ServerTls;
    pub use remora_fabric::{Pages, SystemError};
}

/// Types for clusters under a simulator or a hostile scheduler, for tests and experiments.
pub mod simulate {
    pub use crate::error::SimulatedError;
}

/// The crates below this one, for tools and tests that need them.
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
