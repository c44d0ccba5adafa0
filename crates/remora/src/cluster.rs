//! The handle [`Cluster`]: its memory nodes, its epochs, its catalog, and its tables. Each file of
//! the folder has one subject:
//!
//! | file | what it is for |
//! | --- | --- |
//! | `options` | how to found a cluster in this process |
//! | `nodes` | names of memory nodes that are other processes, and the fabric that reaches them |
//! | `draft` | tables that a client creates together |
//! | `opened` | tables that this process has open, and the catalog that they follow |
//! | `handle` | [`Cluster`]: how it is made, and what its clones share |
//! | `reach` | which memory nodes this process goes near |
//! | `version_cache` | the version cache of workers that validate locally |
//! | `clients` | how a client becomes known, and when it is known to be dead |
//! | `epoch` | how this process enters the next epoch |
//! | `connect` | connecting to memory nodes that are other processes, and adding one |
//! | `catalog` | reading and changing the catalog |
//! | `loading`, `inspection` | whole tables, without transactions |
//! | `freeing`, `dropping` | dropping tables, and freeing their memory |
//! | `creation` | creating several tables, all or nothing |
//! | `tables` | creating and opening one table |
//!
//! All files except the first four add methods to [`Cluster`]. The files that run transactions
//! (`client`, `worker` and others) are above this folder. They add the methods of [`Cluster`] that
//! make their types.

mod draft;
mod nodes;
mod opened;
mod options;

mod handle;

mod catalog;
mod clients;
mod connect;
mod creation;
mod dropping;
mod epoch;
mod freeing;
mod growth;
mod growths;
mod inspection;
mod interrupt;
mod listing;
mod loading;
mod reach;
mod reclaiming;
mod renaming;
mod tables;
mod version_cache;

pub(crate) use clients::Announced;
pub use connect::ConnectOptions;
pub(crate) use epoch::in_one_epoch;
pub use freeing::Freed;
pub(crate) use growths::Growing;
pub use handle::{Cluster, LEASE};
pub use listing::TableInfo;
pub(crate) use nodes::is_silence;
pub use nodes::{Nodes, NotNodes};
pub use options::ClusterOptions;
pub use tables::TableOptions;
