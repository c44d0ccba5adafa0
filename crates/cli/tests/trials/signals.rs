//! Signals: the first one ends a command in order, and a hangup does not take the memory with it.

use rustix::process::Signal;

use crate::support::{Node, Process, listen, new_file, remora, words};

#[test]
fn a_hangup_ends_a_client_in_order() {
    let (_nodes, connect) = listen("signals-client", 1);
    let history = new_file("signals-client.jsonl");
    let run = format!("bench smallbank --connect {connect} --accounts 100 --seconds 60 --threads 1 --history");
    let mut client = Process::start("signals-client", &[&words(&run)[..], &[history.to_str().unwrap()]].concat());
    client.wait_until("it runs", |_| std::fs::metadata(&history).is_ok_and(|file| file.len() > 0));
    client.signal(Signal::HUP);
    let ended = client.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.output.contains("✓ money is conserved"), "it has left, and so it can be checked: {ended:?}");
}

#[test]
fn a_hangup_stops_a_memory_node_only_if_that_is_asked_for() {
    let mut node = Node::listen("signals-node", "");
    node.process.signal(Signal::HUP);
    let status = remora("signals-status", &["status", "--connect", node.address()]);
    assert_eq!(status.code, Some(0), "{status:?}");
    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait().code, Some(0));
    let mut asked = Node::listen("signals-asked", "--stop-on-hangup");
    asked.process.signal(Signal::HUP);
    assert_eq!(asked.process.wait().code, Some(0));
}
