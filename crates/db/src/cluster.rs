//! A cluster: its memory nodes, its catalog, and what is opened of it.

mod catalog;
mod clients;
mod connect;
mod creation;
mod draft;
mod dropping;
mod epoch;
mod freeing;
mod handle;
mod inspection;
mod loading;
mod nodes;
mod opened;
mod options;
mod reach;
mod tables;
mod version_cache;

pub(crate) use clients::Announced;
pub use connect::{ConnectError, ConnectOptions};
pub(crate) use epoch::in_one_epoch;
pub use freeing::Freed;
pub use handle::{Cluster, LEASE};
pub(crate) use nodes::is_silence;
pub use nodes::{Nodes, NotNodes};
pub use options::ClusterOptions;
pub use tables::TableOptions;
