//! What needs a process of its own: the limit of descriptors, and the CPU time and memory of a
//! gateway at rest.

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use remora::Cluster;
use remora_gateway::net::{ServeOptions, serve};
use remora_gateway::{Front, Server, ServerOptions, Store, StoreOptions};
use rustix::process::{Resource, getrlimit, setrlimit};

use support::{Rig, Talk, descriptors, embedded, over_tcp};

/// Returns the CPU time of the gateway's threads so far, in nanoseconds.
fn cpu_of_the_gateway() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let ours =
        threads.filter(|path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("gateway-")));
    let time = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    ours.filter_map(time).sum()
}

#[test]
fn a_process_has_limits() {
    idle_connections_take_little_memory();
    a_gateway_at_rest_uses_no_cpu();
    a_gateway_survives_the_end_of_descriptors();
}

/// Bytes of the process's memory that no file and no other process has.
fn memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

fn idle_connections_take_little_memory() {
    let count = 5_000.min((descriptors(2 * 5_000 + 300) - 300) / 2);
    let cluster = Cluster::embedded().open().unwrap();
    let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
    let server = Arc::new(Server::new(store, ServerOptions::default()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let front = move |number: usize, _: &_| Front::new(server.clone(), number as u64);
    let gateway = serve(&cluster, vec![listener], ServeOptions::default().threads(2), front).unwrap();
    let connect = || {
        let mut talk = Talk(TcpStream::connect(address).unwrap());
        talk.ask("SET k some-value\r\nGET k\r\n", "+OK\r\n$10\r\nsome-value\r\n");
        talk
    };
    // What the first connections take is for all.
    let first: Vec<Talk> = (0..100).map(|_| connect()).collect();
    let mut idle = Vec::with_capacity(count);
    let before = memory();
    idle.extend((0..count - first.len()).map(|_| connect()));
    let each = (memory() - before) / idle.len();
    println!("{} idle connections take {each} bytes each", gateway.control().counts().connections);
    assert!(each <= 1 << 10, "{each} bytes for each idle connection");
}

fn a_gateway_at_rest_uses_no_cpu() {
    for cluster in [embedded(), over_tcp()] {
        let rig = Rig::new(&cluster, ServeOptions::default().threads(1));
        let mut idle: Vec<Talk> = (0..100).map(|_| rig.connect()).collect();
        for (count, talk) in (1..).zip(&mut idle) {
            talk.ask("INCR 1\r\n", format!(":{count}\r\n"));
        }
        thread::sleep(Duration::from_millis(500));
        let before = cpu_of_the_gateway();
        thread::sleep(Duration::from_millis(1500));
        let used = Duration::from_nanos(cpu_of_the_gateway() - before);
        assert!(used < Duration::from_millis(15), "more than 1 % of a core: {used:?} in 1.5 s");
    }
}

fn a_gateway_survives_the_end_of_descriptors() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, ServeOptions::default().threads(2).connections_max(1000));
    let mut first = rig.connect();
    first.ask("PING\r\n", "+PONG\r\n");
    // The gateway may have fewer descriptors than connections are made.
    let limit = getrlimit(Resource::Nofile);
    let mut few = limit;
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    few.current = Some(open + 100);
    setrlimit(Resource::Nofile, few).unwrap();
    let mut talks: Vec<Talk> = Vec::new();
    while let Ok(socket) = TcpStream::connect(rig.address) {
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        talks.push(Talk(socket));
    }
    assert!(talks.len() < 500, "the process had enough descriptors");
    // The first connection is served meanwhile.
    for _ in 0..10 {
        first.ask("PING\r\n", "+PONG\r\n");
        thread::sleep(Duration::from_millis(20));
    }
    // When there are descriptors again, all are.
    setrlimit(Resource::Nofile, limit).unwrap();
    for talk in &mut talks {
        talk.ask("PING\r\n", "+PONG\r\n");
    }
}
