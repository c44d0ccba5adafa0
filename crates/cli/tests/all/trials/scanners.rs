//! Port scanners and other strangers that connect to memory nodes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Node, scratch};

/// A port scanner does not fill the log.
#[test]
fn five_hundred_strangers_are_a_few_lines() {
    let node = Node::listen("scanned", "");
    let mut lines_by_now = 0;
    for number in 0..500 {
        let mut stranger = TcpStream::connect(node.address()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: remora\r\n\r\n").unwrap();
        // When the connection is closed, the node has seen the stranger.
        let _ = stranger.read(&mut [0; 16]);
        if number == 0 {
            lines_by_now = lines().len();
        }
    }
    assert_eq!(lines_by_now, 1, "the first one is told at once: {:?}", lines());
    // The other strangers are reported within a second.
    let told = || lines().iter().any(|line| line.contains("count="));
    (0..200).take_while(|_| !told()).for_each(|_| std::thread::sleep(Duration::from_millis(20)));
    let lines = lines();
    assert!((2..20).contains(&lines.len()), "{} lines", lines.len());
    assert!(lines[0].contains("a connection is turned away: 127.0.0.1:"), "{}", lines[0]);
    assert!(lines.iter().all(|line| !line.contains("Some(") && !line.contains("None")), "{}", lines[0]);
    let counted = |line: &String| line.split("count=").nth(1).map(|count| count.trim().parse::<u32>());
    let counted = lines.iter().filter_map(counted).map(|count| count.expect("a number")).sum::<u32>();
    assert!(counted <= 499, "{counted}");
}

fn lines() -> Vec<String> {
    let log = std::fs::read_to_string(scratch("scanned.err")).unwrap();
    log.lines().map(str::to_owned).collect()
}
