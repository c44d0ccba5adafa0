//! `remora gateway`: serves Redis' protocol until it is told to stop. The keys are in the memory of
//! the cluster, so any number of gateways serve the same keys.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use remora::{Cluster, OpenError, OpenErrorKind};
use remora_gateway::net::{Gateway, ServeError, ServeOptions, serve};
use remora_gateway::{Front, Server, Store, StoreOptions};

use crate::meet::MeetArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output, value};

/// The tables of the keys.
const TABLES: &str = "redis";
/// How often a command looks whether it is to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// The port of Redis.
pub(crate) const PORT: u16 = 6379;

/// How a gateway serves.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Threads that serve clients [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
    /// Largest number of connections at a time.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_clients: u32,
    /// Bytes of commands that have not arrived whole, of all clients together.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = value::bytes)]
    pub(crate) client_memory: u64,
}

impl ServeArgs {
    /// Returns these options as arguments of `remora gateway`.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let threads = self.threads.map(|threads| ["--threads".to_owned(), threads.to_string()]);
        let others = [("--max-clients", u64::from(self.max_clients)), ("--client-memory", self.client_memory)];
        let others = others.map(|(option, number)| [option.to_owned(), number.to_string()]);
        threads.into_iter().chain(others).flatten().map(OsString::from).collect()
    }

    /// Serves clients of a cluster.
    pub(crate) fn serve(
        &self,
        cluster: &Cluster,
        listener: TcpListener,
        store: StoreOptions,
    ) -> Result<Gateway, Failure> {
        let store = open(cluster, store).map_err(|error| Failure::new("the keys' tables", error))?;
        let server = Arc::new(Server::new(store, None));
        let mut options = ServeOptions::default()
            .connections_max(self.max_clients as usize)
            .memory_max(usize::try_from(self.client_memory).unwrap_or(usize::MAX));
        if let Some(threads) = self.threads {
            options = options.threads(threads.into());
        }
        let front = move |number: usize, _: &_| Front::new(server.clone(), number as u64);
        serve(cluster, vec![listener], options, front).map_err(|error| match &error {
            ServeError::Memory(_) => Failure::new("--client-memory", error),
            _ => Failure::new("serving clients", error),
        })
    }
}

/// Opens the tables of the keys, or creates them. Waits while another gateway creates them.
fn open(cluster: &Cluster, options: StoreOptions) -> Result<Store, OpenError> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let began = Instant::now();
    let passes = |error: &OpenError| matches!(error.kind(), OpenErrorKind::Unfinished { .. } | OpenErrorKind::Changing);
    loop {
        match Store::open_or_create(cluster, TABLES, options) {
            Err(error) if passes(&error) && began.elapsed() < PATIENCE => thread::sleep(LOOK),
            opened => return opened,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  remora gateway --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/keys --listen 10.0.0.7:6379

Clients of Redis connect to it, by RESP2 or RESP3. It holds nothing: start as many as there is work for, and stop any of them at
any time. Every command, every MULTI and every pipeline that fits is one strictly serializable transaction.

Prints one line when it is ready; SIGTERM, SIGINT and SIGHUP stop it. Exit status: 0 stopped, 2 it cannot serve.")]
pub(crate) struct GatewayOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// Where clients of Redis connect. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
    listen: String,
    #[command(flatten)]
    serve: ServeArgs,
    /// Copies of each key, if this gateway creates the tables [default: 3, or as many as there are
    /// memory nodes].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u8).range(1..=7))]
    copies: Option<u8>,
}

pub(crate) fn gateway(options: &GatewayOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    let failed = |error| Failure::new(format!("--listen {}", options.listen), error);
    let listener = TcpListener::bind(&options.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let cluster = options.meet.connect(&stop)?;
    let store = StoreOptions { copies: options.copies, ..StoreOptions::default() };
    let gateway = options.serve.serve(&cluster, listener, store)?;
    output::show(&format!("remora gateway ready: {address}\n"))?;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
    }
    end(gateway);
    Ok(Verdict::Sound)
}

/// Stops a gateway in order.
pub(crate) fn end(gateway: Gateway) {
    gateway.control().stop();
    gateway.wait();
}

/// Listens at this address or, if its port is taken and `may_be_next`, at one of the next ports.
pub(crate) fn listen(address: SocketAddr, may_be_next: bool) -> std::io::Result<TcpListener> {
    const PORTS: u16 = 100;
    let mut listened = TcpListener::bind(address);
    for next in 1..PORTS {
        let is_taken = matches!(&listened, Err(error) if error.kind() == std::io::ErrorKind::AddrInUse);
        let Some(port) = address.port().checked_add(next).filter(|_| is_taken && may_be_next) else { break };
        listened = TcpListener::bind(SocketAddr::new(address.ip(), port));
    }
    listened
}
