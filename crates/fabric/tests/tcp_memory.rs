//! Tests what a server keeps for a client that does not listen. The test runs in a process of its
//! own, whose memory it measures.

mod tcp_support;

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use remora_fabric::tcp::{ServerOptions, TcpOptions};
use remora_fabric::{ClientId, block_on};
use tcp_support::*;

/// If one client asks for much and fetches nothing, no other client has to wait, and the server's
/// memory does not grow.
#[test]
fn a_client_that_does_not_listen_stalls_only_itself() {
    const READS: usize = 2_000; // of 60 KiB: far more than sockets buffer
    const WORDS: u64 = 7_680;
    let (_, address) = serve(ServerOptions::default());
    let mut deaf = raw_client(&address, 7);
    let mut asks = deaf.try_clone().unwrap();
    let asking = thread::spawn(move || {
        for ticket in 0..READS as u64 {
            asks.write_all(&bytes(&[1 << 32 | 4, ticket, WORDS << 32 | 1, 0])).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(200));
    let fabric = tcp(&[&address], TcpOptions::default());
    block_on(&fabric, ClientId(1), async |lane| {
        for _ in 0..1_000 {
            touch(lane, &[0]).await.expect("a healthy node");
        }
    })
    .unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<usize>().unwrap() < 64 << 10, "{peak} KiB: what he does not take is kept for him");
    // When the client listens again, everything arrives in order.
    for ticket in 0..READS as u64 {
        let mut head = [0; 16];
        deaf.read_exact(&mut head).unwrap();
        assert_eq!(head[..], bytes(&[2 + WORDS, ticket]));
        std::io::copy(&mut (&deaf).take(8 * WORDS), &mut std::io::sink()).unwrap();
    }
    asking.join().unwrap();
}
