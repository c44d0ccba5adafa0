//! A gateway of an embedded cluster, until its standard input ends.
//!
//! `cargo run --release -p remora-gateway --example front -- [PORT] [PASSWORD FILE, or -] [SPREAD
//! BYTES]`
//!
//! Packed collections of more than SPREAD BYTES are spread over pages.

use std::error::Error;
use std::io::{Read, stdin};
use std::net::TcpListener;
use std::sync::Arc;

use remora::Cluster;
use remora_gateway::net::{ServeOptions, serve};
use remora_gateway::{Front, PasswordSource, Server, ServerOptions, Store, StoreOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).map_or(Ok(6390), |port| port.parse())?;
    let cluster = Cluster::embedded().nodes(1).replicas(1).node_bytes(1 << 30).open()?;
    let mut options = StoreOptions::default();
    if let Some(bytes) = std::env::args().nth(3) {
        options.spread_bytes = bytes.parse()?;
    }
    let store = Store::open_or_create(&cluster, "redis", options)?;
    let password = std::env::args()
        .nth(2)
        .filter(|path| path != "-")
        .map_or(PasswordSource::None, |path| PasswordSource::File(path.into()));
    let cluster_of = Some(cluster.clone());
    let server = Server::new(store, ServerOptions { password, port, cluster: cluster_of, ..ServerOptions::default() })?;
    let server = Arc::new(server);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let options = ServeOptions::default().threads(1);
    let of_thread = server.clone();
    let gateway =
        serve(&cluster, vec![listener], options, move |number, _| Front::new(of_thread.clone(), number as u64 + 1))?;
    server.set_control(gateway.control().clone());
    println!("serves 127.0.0.1:{port}");
    stdin().read_to_end(&mut Vec::new())?;
    gateway.control().stop();
    gateway.wait();
    Ok(())
}
