//! Names that do not resolve, or not in time, and errors in the words of the system.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::{Node, remora, words};

/// A name that no resolver knows (RFC 2606).
const NOWHERE: &str = "nowhere.invalid:7001";

#[test]
fn status_asks_all_nodes_side_by_side_and_says_which_name_does_not_resolve() {
    let node = Node::listen("names-status", "");
    // A node that hangs: it accepts connections, and never answers.
    let silent: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let silent: Vec<String> = silent.iter().map(|node| node.local_addr().unwrap().to_string()).collect();
    let connect = [&[NOWHERE.to_owned(), node.address().to_owned()], &silent[..]].concat().join(",");
    let began = Instant::now();
    let ended = remora("names-status", &["status", "--connect", &connect]);
    // Each of them takes two seconds.
    assert!(began.elapsed() < Duration::from_secs(7), "one node is asked after the other");
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    let row = |name: &str| ended.output.lines().find(|row| row.starts_with(name)).unwrap_or_default().to_owned();
    assert!(row(NOWHERE).contains("has a name that does not resolve: "), "{}", ended.output);
    assert!(row(node.address()).contains("64.0 MiB"), "{}", ended.output);
    assert!(silent.iter().all(|one| row(one).contains("does not answer: timed out")), "{}", ended.output);
    assert!(!ended.output.contains("uncategorized"), "{}", ended.output);
}

#[test]
fn a_client_says_which_name_does_not_resolve() {
    let ended = remora("names-bench", &["bench", "smallbank", "--accounts", "100", "--connect", NOWHERE]);
    assert_eq!(ended.code, Some(2));
    let said = format!("memory node {NOWHERE} has a name that does not resolve: ");
    assert!(ended.errors.contains(&said), "{}", ended.errors);
}

#[test]
fn errors_of_addresses_are_the_systems() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (listen, said) in [
        (":9180", "write HOST:PORT"),
        ("9180", "write HOST:PORT"),
        ("localhost", "write HOST:PORT"),
        ("127.0.0.1:99999", "write HOST:PORT"),
        (NOWHERE, "the name does not resolve: "),
        (&*taken, "Address already in use (os error 98)"),
        // Reserved for documentation (RFC 5737): no machine has it.
        ("192.0.2.1:9180", "Cannot assign requested address (os error 99)"),
    ] {
        let line = format!("memnode --size 64MiB --insecure --listen {listen}");
        let ended = remora("names-listen", &words(&line));
        assert_eq!(ended.code, Some(2), "{line}: {}", ended.errors);
        let last = ended.errors.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("error: --listen {listen}: ")), "{}", ended.errors);
        assert!(last.contains(said), "{}", ended.errors);
    }
}

#[test]
fn a_node_that_is_not_there_is_told_by_the_systems_words() {
    // A port that was free a moment ago.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = remora("names-gone", &["status", "--connect", &gone]);
    assert!(ended.output.contains("does not answer: Connection refused (os error 111)"), "{}", ended.output);
    let ended = remora("names-key", &["status", "--connect", &gone, "--key-file", "/proc/self/mem"]);
    assert!(!ended.errors.contains("uncategorized"), "{}", ended.errors);
    let ended = remora("names-key", &["status", "--connect", &gone, "--key-file", "/nowhere/at/all"]);
    assert!(ended.errors.contains("No such file or directory (os error 2)"), "{}", ended.errors);
}
