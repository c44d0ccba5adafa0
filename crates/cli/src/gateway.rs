//! `remora gateway`: serves Redis' protocol until it is told to stop. The keys are in the memory of
//! the cluster, so any number of gateways serve the same keys.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use remora::{Cluster, OpenError, OpenErrorKind};
use remora_check::HistoryFile;
use remora_fabric::tcp::tls::TlsError;
use remora_gateway::net::{Gateway, ServeError, ServeOptions, Tls, TlsFiles, serve};
use remora_gateway::{Front, Monitor, PasswordSource, Recorder, Server, ServerOptions, Store, StoreOptions, Sweeper};

use crate::history::HistoryTo;
use crate::meet::MeetArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output, value};

/// The tables of the keys.
const TABLES: &str = "redis";
/// How often a command looks whether it is to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// How long a gateway that starts waits for what passes by itself. That is longer than a cluster
/// takes to go on without a lost memory node.
const PATIENCE: Duration = Duration::from_secs(30);
/// Copies of each key by default.
const COPIES: usize = 3;
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
    /// The file with the password that clients give (AUTH). Only its owner may read it.
    #[arg(long, value_name = "FILE")]
    pub(crate) requirepass_file: Option<PathBuf>,
    /// Serve clients of other machines without a password, too.
    #[arg(long, conflicts_with = "requirepass_file")]
    pub(crate) no_protected_mode: bool,
    /// The certificate that clients are shown, in PEM, with the certificates that lead to one that
    /// they trust. Clients have to speak TLS then. It is read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM. Only its owner may read it.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates in PEM. Clients have to show one that leads to one of these.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Answer /metrics, as Prometheus reads them, and /readyz at this address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Hide keys and values in SLOWLOG.
    #[arg(long)]
    pub(crate) redact_keys: bool,
    /// Record all commands with their answers, for `remora check`. Every gateway of the cluster has
    /// to, each in a file of its own.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// A gateway that serves, and what it needs beside.
pub(crate) struct Serving {
    gateway: Gateway,
    sweeper: Sweeper,
    _monitor: Option<Monitor>,
    history: Option<Arc<HistoryTo>>,
}

impl ServeArgs {
    /// Returns these options as arguments of `remora gateway`.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let threads = self.threads.map(|threads| ["--threads".to_owned(), threads.to_string()]);
        let others = [("--max-clients", u64::from(self.max_clients)), ("--client-memory", self.client_memory)];
        let others = others.map(|(option, number)| [option.to_owned(), number.to_string()]);
        let mut arguments: Vec<OsString> = threads.into_iter().chain(others).flatten().map(OsString::from).collect();
        let files = [
            ("--requirepass-file", &self.requirepass_file),
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
            ("--tls-client-ca", &self.tls_client_ca),
        ];
        for (option, path) in files.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?))) {
            arguments.extend([option.into(), path.into()]);
        }
        let flags = [(self.no_protected_mode, "--no-protected-mode"), (self.redact_keys, "--redact-keys")];
        arguments.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into()));
        arguments
    }

    /// Reads the certificate that clients are shown, if there is one.
    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let Some((certificates, private_key)) = self.tls_cert.clone().zip(self.tls_key.clone()) else {
            return Ok(None);
        };
        let files = TlsFiles { certificates, private_key, clients: self.tls_client_ca.clone() };
        let option = |error: &TlsError| match error {
            TlsError::PrivateKey(_) | TlsError::NoPrivateKey | TlsError::Exposed { .. } => "--tls-key",
            TlsError::Authorities => "--tls-client-ca",
            _ => "--tls-cert",
        };
        Tls::read(files).map(Some).map_err(|error| Failure::new(option(&error), error))
    }

    /// Serves clients of a cluster, whose keys have this number of copies.
    pub(crate) fn serve(&self, cluster: &Cluster, listener: TcpListener, copies: u8) -> Result<Serving, Failure> {
        let listen =
            |address| TcpListener::bind(address).map_err(|error| Failure::new(format!("--metrics {address}"), error));
        let metrics = self.metrics.map(listen).transpose()?;
        let history = self.record.as_deref().map(|path| HistoryTo::open("--record", path, true)).transpose()?;
        let cluster = &HistoryTo::told_of_all(history.as_ref(), cluster.clone());
        let recorder = history.as_ref().map(|history| history.begin().map(recorder_of)).transpose()?;
        let tables = |error| Failure::new("the tables of the keys", error);
        let options = StoreOptions { copies: Some(copies), ..StoreOptions::default() };
        let store = open(cluster, options).map_err(tables)?;
        let sweeper = Sweeper::start(cluster, &store, recorder.clone()).map_err(tables)?;
        let options = ServerOptions {
            password: self.requirepass_file.clone().map_or(PasswordSource::None, PasswordSource::File),
            protected_mode: !self.no_protected_mode,
            redact_keys: self.redact_keys,
            copies,
            port: listener.local_addr().map_or(0, |address| address.port()),
            cluster: Some(cluster.clone()),
            recorder,
            ..ServerOptions::default()
        };
        let server = Server::new(store, options).map_err(|error| Failure::new("--requirepass-file", error))?;
        let server = Arc::new(server);
        let mut options = ServeOptions::default()
            .connections_max(self.max_clients as usize)
            .memory_max(usize::try_from(self.client_memory).unwrap_or(usize::MAX))
            .tls(self.tls()?);
        if let Some(threads) = self.threads {
            options = options.threads(threads.into());
        }
        let of_threads = server.clone();
        let front = move |number: usize, _: &_| Front::new(of_threads.clone(), number as u64);
        let start = || {
            let listener =
                listener.try_clone().map_err(|cause| ServeError::System { what: "listen", cause: cause.into() })?;
            serve(cluster, vec![listener], options.clone(), front.clone())
        };
        let passes = |error: &ServeError| matches!(error, ServeError::Open(error) if passes(cluster, error));
        let gateway = patiently(cluster, passes, start).map_err(|error| match &error {
            ServeError::Memory(_) => Failure::new("--client-memory", error),
            _ => Failure::new("serving clients", error),
        })?;
        server.set_control(gateway.control().clone());
        let monitor = metrics.map(|listener| Monitor::start(listener, server, gateway.control().clone()));
        let monitor = monitor.transpose().map_err(|error| Failure::new("--metrics", error))?;
        Ok(Serving { gateway, sweeper, _monitor: monitor, history })
    }
}

/// Returns what records in a history: the commands, and the transactions that run them.
fn recorder_of(file: &Arc<HistoryFile>) -> Recorder {
    let (lines, transactions) = (file.clone(), file.clone());
    Recorder::new(move |line| lines.note(line)).observed_by(move || Box::new(transactions.recorder()))
}

/// Opens the tables of the keys, or creates them. Waits while another gateway creates them.
fn open(cluster: &Cluster, options: StoreOptions) -> Result<Store, OpenError> {
    patiently(cluster, |error| passes(cluster, error), || Store::open_or_create(cluster, TABLES, options))
}

/// Does something again while it fails for a reason that `passes`, but not for longer than
/// [`PATIENCE`], and not once the command is to stop.
fn patiently<T, E>(
    cluster: &Cluster,
    passes: impl Fn(&E) -> bool,
    mut what: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let began = Instant::now();
    loop {
        match what() {
            Err(error) if passes(&error) && began.elapsed() < PATIENCE && !cluster.is_interrupted() => {
                thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// Returns whether an error passes without an operator: another gateway creates the tables, the
/// catalog is changing, the epoch has ended, or a memory node was just lost that the cluster is
/// about to go on without.
fn passes(cluster: &Cluster, error: &OpenError) -> bool {
    match error.kind() {
        OpenErrorKind::Unfinished { .. } | OpenErrorKind::Changing => true,
        OpenErrorKind::Unavailable => cluster.configuration().is_some(),
        _ => false,
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
    // A node that is lost when the tables are created gets its copies later.
    let copies = options.copies.unwrap_or_else(|| usize::from(cluster.memory_nodes()).clamp(1, COPIES) as u8);
    let gateway = options.serve.serve(&cluster, listener, copies)?;
    output::show(&format!("remora gateway ready: {address}\n"))?;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
    }
    gateway.end()?;
    Ok(Verdict::Sound)
}

impl Serving {
    /// Stops in order. Fails if not everything was recorded that was to be.
    pub(crate) fn end(self) -> Result<(), Failure> {
        self.gateway.control().stop();
        self.gateway.wait();
        drop(self.sweeper);
        self.history.map_or(Ok(()), |history| history.finish())
    }
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    use clap::Parser;
    use remora::connect::{ConnectOptions, Nodes, Place};
    use remora::node::{MemoryNode, ServerOptions as NodeOptions};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// Serves one client, who sets a key. Returns the answer.
    fn set_a_key(cluster: &Cluster) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let args = Command::parse_from(["gateway", "--threads", "1"]).serve;
        let serving = args.serve(cluster, listener, 3).map_err(|failure| failure.0)?;
        let ask = || {
            let mut client = TcpStream::connect(address)?;
            client.set_read_timeout(Some(PATIENCE))?;
            client.write_all(b"SET greeting hello\r\n")?;
            let mut answer = [0; 5];
            client.read_exact(&mut answer)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
        };
        let answer = ask().map_err(|error| error.to_string());
        serving.end().map_err(|failure| failure.0)?;
        answer
    }

    /// A memory node is lost just before a gateway opens its tables, and no controller has noticed
    /// that yet.
    #[test]
    fn a_gateway_that_starts_waits_until_the_cluster_goes_on_without_a_lost_node() {
        let configuration = std::env::temp_dir().join(format!("remora-gateway-{}", std::process::id()));
        let nodes = [(); 3].map(|()| MemoryNode::listen("127.0.0.1:0", 64 << 20, NodeOptions::default()).unwrap());
        let names = nodes.each_ref().map(|node| node.address().unwrap().to_string());
        let options = ConnectOptions::default()
            .configuration(Some(Place::File(configuration.clone())))
            .patience(Duration::from_millis(300))
            .nodes(Nodes::Tcp(names.to_vec()));
        let cluster = options.open().unwrap();
        let controls = options.clone().controls(true).open().unwrap().with_lease(Some(Duration::from_millis(300)));
        let (over, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
        let answer = thread::scope(|scope| {
            scope.spawn(|| {
                let mut controller = controls.controller().unwrap();
                tell.send(()).unwrap();
                thread::sleep(Duration::from_millis(150));
                controller.run(|| over.load(Ordering::Relaxed));
            });
            told.recv().unwrap();
            let [leader, _second, _third] = nodes;
            drop(leader);
            let answer = set_a_key(&cluster);
            over.store(true, Ordering::Relaxed);
            answer
        });
        std::fs::remove_file(configuration).unwrap();
        assert_eq!(answer, Ok("+OK\r\n".to_owned()));
    }
}
