//! `remora memnode`: serves memory until it is told to stop, or makes memory that needs no server.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use remora::connect::{ClientTls, NodeKeys, TlsError};
use remora::floors::fabric::limits::SERVER_THREADS_MAX;
use remora::floors::fabric::shm::file::OpenError;
use remora::floors::fabric::tcp::ServerError;
use remora::floors::fabric::{Headroom, LINE_BYTES, RegionError};
use remora::floors::node::MemoryError;
use remora::node::{MemoryNode, NodeError, PassiveMemory, PriorMemory, ServerOptions, ServerTls};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::rdma::RdmaArgs;
use crate::{Failure, Verdict, output, value};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora memnode --listen 127.0.0.1:7000 --size 1GiB
  remora memnode --listen 10.0.0.7:7000 --size 16GiB --key-file cluster.key
  remora memnode --listen 10.0.0.7:7000 --size 16GiB --key-file cluster.key --fabric verbs
  remora memnode --shm /dev/shm/n0 --size 1GiB
  remora memnode --passive /dev/shm/p0 --size 1GiB

Prints one line when it is ready; SIGTERM and SIGINT stop it; SIGHUP does with --stop-on-hangup. After the handshake, which proves the key, plain TCP is
neither encrypted nor signed; with --tls-cert it is both.

--passive prints one line and ends: clients of this host use the file without a server (--connect shm:PATH). Their protocol must
be one that needs no CPU of memory nodes, such as ford or remora.

Exit status: 0 stopped, or formatted; 2 it cannot serve, or cannot be formatted.")]
pub(crate) struct MemnodeOptions {
    /// Serve new memory over TCP, which is lost when the node stops. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", required_unless_present_any = ["shm", "passive"], conflicts_with_all = ["shm", "passive"])]
    listen: Option<String>,
    /// Serve a file of this host, or a memory device, with its content, to processes of this host.
    #[arg(long, value_name = "PATH")]
    shm: Option<PathBuf>,
    /// Format a file of this host, or a memory device, for clients that use it without a server, or
    /// check that it is formatted already. What it holds stays.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["shm", "stop_on_hangup"])]
    passive: Option<PathBuf>,
    /// Bytes of memory, such as 1GiB [default with --shm and --passive: the size of the file].
    #[arg(long, value_name = "SIZE", value_parser = value::bytes, required_unless_present_any = ["shm", "passive"])]
    size: Option<u64>,
    /// The file with the key that clients must have: see remora keygen.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shm", "passive"])]
    key_file: Option<PathBuf>,
    /// Use only TLS, and show this certificate: PEM, followed by the certificates that lead to one
    /// that clients trust.
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with_all = ["shm", "passive"])]
    tls_cert: Option<PathBuf>,
    /// The private key to that certificate: PEM, which only its owner may read.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve every client that reaches the address, without a key.
    #[arg(long, conflicts_with_all = ["shm", "passive", "key_file"])]
    insecure: bool,
    /// Backend: tcp; or verbs, an RDMA device that clients reach the memory through [default: tcp].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shm", "passive"], value_parser = ["tcp", "verbs"])]
    fabric: Option<String>,
    #[command(flatten)]
    rdma: RdmaArgs,
    /// Largest number of connections, of which each worker of a client has one [default: 1024].
    #[arg(long, value_name = "N", conflicts_with_all = ["shm", "passive"], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_connections: Option<u32>,
    /// Threads that serve clients. A node with an RDMA device has one [default: 1].
    #[arg(long, value_name = "N", conflicts_with_all = ["shm", "passive"], value_parser = clap::value_parser!(u32).range(1..=SERVER_THREADS_MAX as i64))]
    threads: Option<u32>,
    /// Take memory when it is first used, so that the node is ready at once. If the system has none
    /// left then, it kills the node.
    #[arg(long, conflicts_with_all = ["shm", "passive"])]
    on_demand: bool,
    /// Stop also on SIGHUP, when the terminal that started the node is closed.
    #[arg(long)]
    stop_on_hangup: bool,
}

/// Size in bytes from which on a node takes seconds to get all of its memory. The node reports
/// this.
const LONG_TO_TAKE: u64 = 4 << 30;

pub(crate) fn memnode(options: &MemnodeOptions) -> Result<Verdict, Failure> {
    if let Some(path) = &options.passive {
        return format(path, options.size);
    }
    // This comes before anything is served. From the ready line on, no signal may end the node in
    // another way.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| Failure::new("signals", error))?;
    let (node, place) = match (&options.listen, &options.shm) {
        (Some(address), _) => listen(address, options)?,
        (None, Some(path)) => {
            // The ready line must be one line, whatever characters the path has.
            let name = path.display().to_string();
            (map(path, options.size)?, format!("serving {}", output::printable(&name)))
        }
        (None, None) => unreachable!("the command line has one of them"),
    };
    let found = match node.found() {
        PriorMemory::New => "new",
        PriorMemory::Stopped => "reopened: the last server was stopped cleanly",
        PriorMemory::Killed => "reopened: the last server was killed",
    };
    let size = value::show_bytes(node.region().bytes());
    output::show(&format!("remora memory node ready: {place}, {size}, {found}\n"))?;
    // The end of the terminal must not end the node, which would lose the memory.
    signals.forever().find(|signal| *signal != SIGHUP || options.stop_on_hangup);
    drop(node);
    Ok(Verdict::Sound)
}

fn listen(address: &str, options: &MemnodeOptions) -> Result<(MemoryNode, String), Failure> {
    let bytes = options.size.unwrap_or_default();
    let size = || format!("--size {bytes}");
    let defaults = ServerOptions::default();
    let server = ServerOptions::default()
        .keys(options.key_file.as_deref().map(read_keys).transpose()?)
        .tls(options.tls_cert.as_deref().zip(options.tls_key.as_deref()).map(read_server_tls).transpose()?)
        .insecure(options.insecure)
        .rdma(options.rdma.open(options.fabric.as_deref() == Some("verbs"))?)
        .connections_max(options.max_connections.map_or(defaults.connections_max, |connections| connections as usize))
        .threads(options.threads.map_or(defaults.threads, |threads| threads as usize));
    if !options.on_demand && bytes >= LONG_TO_TAKE && Headroom::now().bytes >= bytes {
        output::note(&format!("takes {} of memory, which lasts a while", value::show_bytes(bytes)));
    }
    let listen = if options.on_demand { MemoryNode::listen_on_demand } else { MemoryNode::listen };
    let node = listen(address, bytes, server).map_err(|error| match error {
        NodeError::Region(_) | NodeError::Memory(MemoryError::TooSmall { .. }) => Failure::new(size(), error),
        // This error names the address itself.
        NodeError::Server(ServerError::NoKey(_)) => Failure::new("--listen", error),
        NodeError::Server(ServerError::Threads(_) | ServerError::RdmaThreads(_)) => Failure::new("--threads", error),
        error => Failure::new(format!("--listen {address}"), error),
    })?;
    let place = node.address().map_or_else(|| address.to_owned(), |address| address.to_string());
    Ok((node, format!("listening on {place}")))
}

fn map(path: &Path, bytes: Option<u64>) -> Result<MemoryNode, Failure> {
    in_file("--shm", path, bytes, MemoryNode::map)
}

/// Formats passive memory, or checks that it is formatted.
fn format(path: &Path, bytes: Option<u64>) -> Result<Verdict, Failure> {
    let PassiveMemory { bytes, is_new, .. } = in_file("--passive", path, bytes, PassiveMemory::format)?;
    // The line must be one line, whatever characters the path has.
    let (name, size) = (path.display().to_string(), value::show_bytes(bytes));
    let found = if is_new { "new" } else { "formatted already" };
    output::show(&format!("remora passive memory ready: {}, {size}, {found}\n", output::printable(&name)))?;
    Ok(Verdict::Sound)
}

/// Opens or makes a memory node in the file that `option` names.
fn in_file<T>(
    option: &str,
    path: &Path,
    bytes: Option<u64>,
    open: impl FnOnce(&Path, Option<u64>) -> Result<T, NodeError>,
) -> Result<T, Failure> {
    if path.as_os_str().as_bytes().contains(&b',') {
        let why = "clients name memory nodes in a list with commas: take a path without one";
        return Err(Failure::new(format!("{option} {}", path.display()), why));
    }
    let size = bytes.map_or_else(|| "--size".to_owned(), |bytes| format!("--size {bytes}"));
    let there = fs::metadata(path);
    let new = there.as_ref().map_or(true, |there| there.is_file() && there.len() == 0);
    if new && bytes.is_none() {
        return Err(Failure::new("--size", format!("is needed, because {} is new", path.display())));
    }
    let bytes = bytes.map(|bytes| bytes.checked_next_multiple_of(LINE_BYTES as u64).unwrap_or(u64::MAX));
    open(path, bytes).map_err(|error| match error {
        NodeError::Memory(MemoryError::TooSmall { .. })
        | NodeError::Region(_)
        | NodeError::File(
            OpenError::Size { .. } | OpenError::NoRoom { .. } | OpenError::Region { cause: RegionError::Size(_), .. },
        ) => Failure::new(size, error),
        // These errors name the path themselves.
        NodeError::File(_) => Failure::new(option, error),
        error => Failure::new(format!("{option} {}", path.display()), error),
    })
}

/// Reads the keys in the file that `--key-file` names.
pub(crate) fn read_keys(path: &Path) -> Result<NodeKeys, Failure> {
    NodeKeys::read(path).map_err(|error| Failure::new(format!("--key-file {}", path.display()), error))
}

/// Reads the files that `--tls-cert` and `--tls-key` name.
fn read_server_tls((certificates, key): (&Path, &Path)) -> Result<ServerTls, Failure> {
    ServerTls::read(certificates, key).map_err(|error| match error {
        TlsError::PrivateKey(_) | TlsError::NoPrivateKey | TlsError::Exposed { .. } => {
            Failure::new(format!("--tls-key {}", key.display()), error)
        }
        error => Failure::new(format!("--tls-cert {}", certificates.display()), error),
    })
}

/// Reads the file that `--tls-ca` names.
pub(crate) fn read_client_tls(trusted: &Path) -> Result<ClientTls, Failure> {
    ClientTls::read(trusted).map_err(|error| Failure::new(format!("--tls-ca {}", trusted.display()), error))
}
