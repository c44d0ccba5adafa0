//! A Redis front door for a cluster: a stateless process in which any number of clients'
//! connections run transactions.
//!
//! | module | what |
//! | --- | --- |
//! | [`net`] | threads, sockets, back-pressure and limits; it knows no command |
//! | [`front`] | connections of Redis' protocol: what a [`net::Handler`] does for them |
//! | `clock` | the time |
//! | `connection` | a connection: what it has sent becomes plans |
//! | `damaged` | the error for a record that no gateway has written |
//! | `plan` | commands that run as one transaction |
//! | `execute` | runs plans |
//! | `once` | commands that are applied at most once |
//! | `store` | how keys and their values lie in tables |
//! | `walk` | the commands of all keys |
//! | `sweep` | deletes keys and tokens that have expired |
//! | `monitor` | metrics, over HTTP |
//! | `server` | what all connections share, and the commands about that |
#![forbid(unsafe_code)]

mod clock;
mod connection;
mod damaged;
mod execute;
pub mod front;
mod monitor;
pub mod net;
mod once;
mod plan;
mod server;
mod store;
mod sweep;
mod walk;

pub use connection::Connection;
pub use front::Front;
pub use monitor::Monitor;
pub use server::{Local, PasswordError, PasswordSource, Server, ServerOptions};
pub use store::{Store, StoreOptions};
pub use sweep::Sweeper;
