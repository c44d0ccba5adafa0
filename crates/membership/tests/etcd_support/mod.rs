//! Support for tests of etcd: servers, certificates, and a network that can be cut.
#![allow(unreachable_pub, reason = "they are for the tests beside it")]

mod issued;
mod server;
mod wire;

use std::time::Duration;

use etcd_client::Client;
pub use issued::{Issued, write};
use remora_membership::etcd::EtcdOptions;
pub use server::Server;
pub use wire::Wire;

/// Returns options for reaching a server: a short time until a silent process is taken for ended,
/// and much patience, because the machine may be busy.
pub fn options(server: &Server) -> EtcdOptions {
    let (patience, ttl) = (Duration::from_secs(20), Duration::from_secs(2));
    EtcdOptions::of(vec![server.address()]).patience(patience).ttl(ttl)
}

/// Runs `act` with a client of etcd itself.
pub fn with_client<T>(server: &Server, act: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { act(Client::connect([server.address()], None).await.unwrap()).await })
}
