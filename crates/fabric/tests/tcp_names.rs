//! Tests of memory nodes' names while the resolver is slow, silent or wrong.

mod tcp_support;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::tcp::{Names, ServerOptions, Tcp, TcpOptions};
use remora_fabric::{ClientId, Fabric, Fault, NameError, NodeId, Refusal};
use tcp_support::*;

/// The addresses of names, and a resolver that never answers again once it has been silenced.
#[derive(Clone, Default)]
struct Directory {
    silent: Arc<AtomicBool>,
    lookups: Arc<AtomicU32>,
    /// The address of `node:1`.
    node: Arc<Mutex<String>>,
}

impl Directory {
    fn options(&self) -> TcpOptions {
        let directory = self.clone();
        let names = Names::asking(move |name| directory.resolve(name));
        TcpOptions { names, ..TcpOptions::default() }
    }

    fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        while self.silent.load(Ordering::Relaxed) {
            thread::park();
        }
        match name {
            "node:1" => Ok(vec![self.node.lock().unwrap().parse().unwrap()]),
            _ => Err(io::Error::other("failed to lookup address information: Name or service not known")),
        }
    }
}

#[test]
fn a_silent_resolver_does_not_matter_for_nodes_that_were_reached_before() {
    let (server, address) = serve(ServerOptions::default());
    let directory = Directory::default();
    *directory.node.lock().unwrap() = address;
    let tcp = tcp(&["node:1"], directory.options());
    tcp.connect(ClientId(1)).map(drop).expect("its name resolves");

    directory.silent.store(true, Ordering::Relaxed);
    // An answer counts for one second.
    thread::sleep(Duration::from_millis(1_050));
    let (began, looked_up) = (Instant::now(), directory.lookups.load(Ordering::Relaxed));
    for client in 2..12 {
        tcp.connect(ClientId(client)).map(drop).expect("it has been reached before");
    }
    assert!(is_healthy(&tcp));
    tcp.revoke(ClientId(2)).expect("orders reach it too");
    while !tcp.answers(NodeId(0)) {
        assert!(began.elapsed() < Duration::from_secs(5), "it answers");
        thread::yield_now();
    }
    assert!(began.elapsed() < Duration::from_secs(4), "every connection waits for the resolver");
    assert_eq!(directory.lookups.load(Ordering::Relaxed) - looked_up, 1, "a lookup is under way already");
    // A fabric that is made with its options shares its memory of names.
    tcp.beside("node:1".to_owned()).status(NodeId(0)).expect("its name is known");

    // A node that is gone is reported as gone, whatever happens to its name.
    server.stop();
    let fault = loop {
        match tcp.connect(ClientId(20)) {
            Ok(_) => thread::yield_now(),
            Err(error) => break error.fault,
        }
    };
    assert!(matches!(fault, Fault::Refused(Refusal::Unreachable(_))), "{fault}");
}

#[test]
fn a_node_that_has_moved_is_found_where_it_is_now() {
    let directory = Directory::default();
    let tcp = tcp(&["node:1"], directory.options());
    for _ in 0..2 {
        let (server, address) = serve(ServerOptions::default());
        *directory.node.lock().unwrap() = address;
        let began = Instant::now();
        while tcp.connect(ClientId(1)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(5), "it is looked for where it was");
            thread::sleep(Duration::from_millis(20));
        }
        server.stop();
    }
}

#[test]
fn the_error_says_that_it_was_the_name_and_names_are_looked_up_side_by_side() {
    let (_, address) = serve(ServerOptions::default());
    let unknown = Fault::Refused(Refusal::Name(NameError::Failed("Name or service not known")));
    let fault = |fabric: &Tcp| fabric.connect(ClientId(1)).err().map(|error| (error.node, error.fault));
    let alone = tcp(&[&address, "nowhere:1"], Directory::default().options());
    assert_eq!(fault(&alone), Some((NodeId(1), unknown)));
    assert!(unknown.to_string().contains("name that does not resolve"), "{unknown}");
    // This fabric goes on without the node.
    alone.fail(NodeId(1));
    assert_eq!(fault(&alone), None);

    // No lookup ends before all have begun.
    let all = Arc::new(Barrier::new(4));
    let names = Names::asking(move |_| {
        all.wait();
        Err(io::Error::other("nowhere"))
    });
    let beside = tcp(&["a:1", "b:1", "c:1", "d:1"], TcpOptions { names, ..TcpOptions::default() });
    let began = Instant::now();
    let nowhere = Fault::Refused(Refusal::Name(NameError::Failed("nowhere")));
    for node in 0..4 {
        assert_eq!(fault(&beside), Some((NodeId(node), nowhere)));
        beside.fail(NodeId(node));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "one lookup waits for another");
}

/// Two nodes accept connections and say nothing. A client's access is revoked at both, and both are
/// asked about a client. Neither question waits for the other node.
#[test]
fn silent_nodes_are_asked_side_by_side() {
    let nodes = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let addresses = nodes.each_ref().map(|node| node.local_addr().unwrap().to_string());
    let silent = tcp(&addresses.each_ref().map(String::as_str), TcpOptions::default());
    let questions: [&dyn Fn(); 2] =
        [&|| assert!(silent.revoke(ClientId(1)).is_err(), "a node that says nothing has confirmed nothing"), &|| {
            assert_eq!(silent.is_connected(ClientId(1)), None, "a node that says nothing may have the client")
        }];
    for question in questions {
        thread::scope(|scope| {
            // The nodes close the connections when both have been asked.
            let asked = scope.spawn(|| {
                let began = Instant::now();
                let connections = nodes.each_ref().map(|node| node.accept().expect("a question"));
                drop(connections);
                began.elapsed()
            });
            question();
            let took = asked.join().unwrap();
            assert!(
                took < Duration::from_millis(1_500),
                "the second node was asked when the first had failed: {took:?}"
            );
        });
    }
}
