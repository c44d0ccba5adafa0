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
//! | `spread` | how elements of large collections lie in records of their own |
//! | `options` | the first sizes of the tables |
//! | `store` | how keys and their values lie in tables |
//! | `walk` | the commands of all keys |
//! | `sweep` | deletes keys and tokens that have expired |
//! | `monitor` | metrics, over HTTP |
//! | `server` | what all connections share, and the commands about that |
//! | `record` | the recorder: what was answered, and which versions of keys that was |
#![cfg_attr(
    not(feature = "mutants"),
    allow(
        clippy::overly_complex_bool_expr,
        clippy::nonminimal_bool,
        reason = "a mutant that cannot be put back is `false`"
    )
)]
#![forbid(unsafe_code)]

/// Tells whether this error has been put back. It is always false without the feature `mutants`.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        crate::mutant::is_on(crate::mutant::Mutant::$name)
    };
}
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

mod clock;
mod connection;
mod damaged;
mod execute;
pub mod front;
mod monitor;
#[cfg(feature = "mutants")]
pub mod mutant;
pub mod net;
mod once;
mod options;
mod plan;
mod record;
mod server;
mod spread;
mod store;
mod sweep;
mod walk;

pub use clock::Clock;
pub use connection::Connection;
pub use front::Front;
pub use monitor::Monitor;
pub use options::StoreOptions;
pub use record::Recorder;
pub use server::{Local, PasswordError, PasswordSource, Server, ServerOptions};
pub use store::Store;
pub use sweep::Sweeper;
