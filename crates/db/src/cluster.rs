//! A cluster: its memory nodes, its catalog, and what is opened of it.

mod connect;
mod creation;
mod dropping;
mod handle;
mod nodes;

pub use connect::{ConnectError, ConnectOptions};
pub use dropping::Freed;
pub(crate) use handle::{Announced, ClusterNumber, in_one_epoch};
pub use handle::{Cluster, ClusterOptions, LEASE, TableOptions};
pub(crate) use nodes::is_silence;
pub use nodes::{Nodes, NotNodes};
