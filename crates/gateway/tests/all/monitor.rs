//! A gateway over sockets, and what its monitor says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use remora::Cluster;
use remora_gateway::net::{ServeOptions, serve};
use remora_gateway::{Front, Monitor, Server, ServerOptions, Store, StoreOptions};

/// Sends bytes, and returns everything that comes until the other side closes.
fn ask(address: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn a_monitor_counts_what_clients_have_done() {
    let cluster = Cluster::embedded().nodes(1).replicas(1).open().unwrap();
    let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
    let server = Arc::new(Server::new(store, ServerOptions::default()).unwrap());
    let ((clients, at), (monitors, metrics)) = (listener(), listener());
    let of_threads = server.clone();
    let options = ServeOptions::default().threads(2);
    let gateway =
        serve(&cluster, vec![clients], options, move |number, _| Front::new(of_threads.clone(), number as u64));
    let gateway = gateway.unwrap();
    server.set_control(gateway.control().clone());
    let monitor = Monitor::start(monitors, server, gateway.control().clone()).unwrap();
    let answers = ask(at, "SET greeting hello\r\nGET greeting\r\nLPUSH greeting x\r\nQUIT\r\n");
    assert_eq!(
        answers,
        "+OK\r\n$5\r\nhello\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n+OK\r\n"
    );
    let page = ask(metrics, "GET /metrics HTTP/1.1\r\nHost: it\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for line in ["remora_gateway_commands_total{command=\"get\"} 1", "remora_gateway_commands_total{command=\"set\"} 1"]
    {
        assert!(page.lines().any(|other| other == line), "no line {line:?}:\n{page}");
    }
    assert!(ask(metrics, "GET /readyz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nready\n"));
    assert!(ask(metrics, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(metrics, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert_eq!(ask(metrics, &"x".repeat(9 << 10)), "");
    gateway.control().stop();
    assert!(ask(metrics, "GET /readyz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
    gateway.wait();
    drop(monitor);
    assert!(TcpStream::connect(metrics).is_err(), "the monitor has ended");
}
