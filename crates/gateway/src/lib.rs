//! A gateway that speaks Redis' protocol: clients of Redis use a cluster of remote memory.

mod connection;
mod execute;
mod plan;
mod server;
mod store;

pub use connection::{Connection, Next};
pub use server::Server;
pub use store::{Store, StoreOptions};
