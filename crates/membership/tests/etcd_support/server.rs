//! An etcd server for one test.
#![allow(dead_code, unreachable_pub, reason = "each test file uses what it needs of it")]

use std::fs;
use std::io::ErrorKind;
use std::iter;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a server needs to start on a loaded machine.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// An etcd server with its own data. Both are removed with it.
pub struct Server {
    folder: PathBuf,
    name: String,
    port: u16,
    peers: u16,
    /// All members of its cluster.
    cluster: String,
    scheme: &'static str,
    arguments: Vec<String>,
    process: Child,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// Starts a server with more arguments. It uses TLS if they name a certificate.
    pub fn start_with(arguments: &[String]) -> Server {
        Server::start_cluster(1, arguments).pop().unwrap()
    }

    /// Starts several servers that form a cluster.
    pub fn start_cluster(members: usize, arguments: &[String]) -> Vec<Server> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let scheme = if arguments.iter().any(|argument| argument.contains("--cert-file")) { "https" } else { "http" };
        // Another process may take a port that was free.
        for _ in 0..5 {
            let peers: Vec<u16> = (0..members).map(|_| free_port()).collect();
            let names = peers.iter().map(|peers| format!("on-{peers}=http://127.0.0.1:{peers}"));
            let cluster = names.collect::<Vec<_>>().join(",");
            let servers = peers.into_iter().map(|peers| {
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let folder = std::env::temp_dir().join(format!("remora-etcd-{}-{number}", std::process::id()));
                fs::create_dir(&folder).unwrap();
                let (name, port, cluster) = (format!("on-{peers}"), free_port(), cluster.clone());
                let process = run(&folder, &name, port, peers, &cluster, scheme, arguments);
                let arguments = arguments.to_vec();
                Server { folder, name, port, peers, cluster, scheme, arguments, process }
            });
            let mut servers: Vec<Server> = servers.collect();
            if servers.iter_mut().all(Server::is_ready) {
                return servers;
            }
            servers.iter().for_each(|server| eprintln!("{}", server.log()));
        }
        panic!("etcd does not start");
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the server again, with the data that it had.
    pub fn start_again(&mut self) {
        let Server { folder, name, port, peers, cluster, scheme, arguments, .. } = self;
        self.process = run(folder, name, *port, *peers, cluster, scheme, arguments);
        assert!(self.is_ready(), "etcd does not start again");
    }

    /// Replaces the server's data by the data of another server, as when a backup was put back.
    pub fn take_the_data_of(&mut self, mut other: Server) {
        other.kill();
        fs::remove_dir_all(self.folder.join("data")).unwrap();
        fs::rename(other.folder.join("data"), self.folder.join("data")).unwrap();
    }

    /// Sends a signal: the server stands still, or goes on.
    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap().success());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn is_ready(&mut self) -> bool {
        let began = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            // Another process may listen on the port: the server's own log says that it serves.
            if self.log().contains("ready to serve client requests") {
                return true;
            }
            assert!(began.elapsed() < STARTS_WITHIN, "etcd does not start");
            thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Finds a port that no other server of these tests has had, below the ports that kernels choose.
/// So nothing answers in place of a server that has been killed.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that run at the same time begin with different ports.
    let first = std::process::id() as u16;
    let ports = || 10_000 + first.wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
    iter::repeat_with(ports).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

fn run(folder: &Path, name: &str, client: u16, peers: u16, cluster: &str, scheme: &str, arguments: &[String]) -> Child {
    let (client, peers) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peers}"));
    let log = fs::File::create(folder.join("log")).unwrap();
    let process = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.join("data"))
        .args(["--name", name, "--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", cluster])
        .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    process.unwrap_or_else(|error| match error.kind() {
        ErrorKind::NotFound => panic!("these tests need the program `etcd` (Debian: etcd-server)"),
        _ => panic!("etcd: {error}"),
    })
}
