//! Who may come in, and what becomes of those who may not.

mod tcp_support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::shm::Memory;
use remora_fabric::tcp::{Key, KeyError, Server, ServerError, ServerOptions, TcpOptions};
use remora_fabric::{ClientId, Fabric, FabricError, Fault, NodeId, Refusal, block_on};
use tcp_support::*;

fn with_key(key: Option<&Key>) -> TcpOptions {
    TcpOptions { key: key.cloned(), ..TcpOptions::default() }
}

fn refusal(address: &str, key: Option<&Key>) -> Option<Fault> {
    tcp(&[address], with_key(key)).connect(ClientId(1)).err().map(|error| {
        assert_eq!(error.node, NodeId(0));
        error.fault
    })
}

#[test]
fn ends_talk_if_both_have_the_same_key_or_none() {
    let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
    let (_, locked) = serve(ServerOptions { key: Some(key.clone()), ..ServerOptions::default() });
    let (_, open) = serve(ServerOptions::default());
    assert_eq!(refusal(&locked, Some(&key)), None);
    assert_eq!(refusal(&open, None), None);
    assert_eq!(refusal(&locked, Some(&other)), Some(Fault::Refused(Refusal::WrongKey)));
    assert_eq!(refusal(&locked, None), Some(Fault::Refused(Refusal::KeyNeeded)));
    assert_eq!(refusal(&open, Some(&key)), Some(Fault::Refused(Refusal::NoKey)));
    // A client that does not check whom it talks to gets nowhere either.
    let mut stream = TcpStream::connect(&locked).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(&client_hello(1)).unwrap();
    stream.read_exact(&mut [0; 152]).unwrap();
    stream.write_all(&[0; 32]).unwrap();
    stream.write_all(&bytes(&[1 << 32 | 2, 0])).unwrap();
    let mut verdict = [0; 8];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!((u64::from_le_bytes(verdict), drain(&stream)), (WRONG_KEY, 0));
    assert!(is_healthy(&tcp(&[&locked], with_key(Some(&key)))));
}

/// A client's own words, heard on the way and said again.
#[test]
fn a_replayed_proof_is_refused() {
    let key = Key::generate().unwrap();
    let (_, address) = serve(ServerOptions { key: Some(key.clone()), ..ServerOptions::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (hears, behind) = (heard.clone(), address.clone());
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(behind).unwrap();
        let mut relayed = |from_client: bool, count: usize| {
            let mut bytes = vec![0; count];
            let (from, to) = if from_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
            from.read_exact(&mut bytes).unwrap();
            to.write_all(&bytes).unwrap();
            if from_client {
                hears.lock().unwrap().extend(bytes);
            }
        };
        relayed(true, 56);
        relayed(false, 152);
        relayed(true, 32);
        relayed(false, 8);
    });
    assert_eq!(refusal(&relay, Some(&key)), None, "the relay changes nothing");
    let heard = heard.lock().unwrap().clone();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(&heard).unwrap();
    stream.read_exact(&mut [0; 152]).unwrap();
    let mut verdict = [0; 8];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!((u64::from_le_bytes(verdict), drain(&stream)), (WRONG_KEY, 0));
}

#[test]
fn strangers_are_told_apart() {
    let (_, address) = serve(ServerOptions::default());
    let (began, says) = (Instant::now(), |what: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(what).unwrap();
        stream
    });
    assert_eq!(drain(&says(b"GET / HTTP/1.1\r\n\r\n")), 0);
    drop(says(&client_hello(1)[..20]));
    let mut newer = client_hello(1);
    newer[8] = 2;
    assert_eq!(drain(&says(&newer)), 16, "an end of another version is told ours");
    assert!(began.elapsed() < Duration::from_millis(1_500), "strangers wait until their time is up");
    assert!(is_healthy(&tcp(&[&address], TcpOptions::default())));

    let answering = |answer: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || listener.accept().unwrap().0.write_all(answer));
        address
    };
    let found = |answer| refusal(&answering(answer), None);
    assert_eq!(found(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Some(Fault::Refused(Refusal::Foreign)));
    let version = Refusal::Version { found: 7, known: 1 };
    assert_eq!(found(b"REMORA\x00T\x07\0\0\0\0\0\0\0"), Some(Fault::Refused(version)));
    assert!(matches!(found(b"REMORA\x00T\x01\0\0\0\0\0\0\0"), Some(Fault::Refused(Refusal::Unreachable(_)))));
    assert!(matches!(refusal("127.0.0.1:1", None), Some(Fault::Refused(Refusal::Unreachable(_)))));
    assert!(matches!(refusal("no such name:1", None), Some(Fault::Refused(Refusal::Unreachable(_)))));
}

#[test]
fn the_slow_are_cut_off_and_hold_up_nobody() {
    let (_, address) = serve(ServerOptions::default());
    let began = Instant::now();
    let slow: Vec<TcpStream> = (0..50)
        .map(|number| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream.write_all(&client_hello(1)[..number]).unwrap();
            stream
        })
        .collect();
    assert!(is_healthy(&tcp(&[&address], TcpOptions::default())));
    assert!(began.elapsed() < Duration::from_secs(1), "they hold up others");
    assert!(slow.iter().all(|stream| drain(stream) == 0));
    let took = began.elapsed();
    assert!((Duration::from_millis(1_900)..Duration::from_secs(3)).contains(&took), "cut off after {took:?}");

    // A server that is slow: its client gives up too.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let fault = refusal(&listener.local_addr().unwrap().to_string(), None);
    assert_eq!(fault, Some(Fault::Refused(Refusal::Unreachable(std::io::ErrorKind::TimedOut))));
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_full_server_says_so_and_still_takes_orders() {
    let (server, address) = serve(ServerOptions { connections_max: 3, ..ServerOptions::default() });
    let tcp = tcp(&[&address], TcpOptions::default());
    let mut open: Vec<_> = (1..=3).map(|client| tcp.connect(ClientId(client)).expect("there is room")).collect();
    let full = FabricError { node: NodeId(0), fault: Fault::Refused(Refusal::Full) };
    assert_eq!(tcp.connect(ClientId(4)).err(), Some(full));
    assert_eq!(tcp.status(NodeId(0)).expect("administration has room").connections, 3);
    open.pop();
    while server.status().connections > 2 {
        thread::yield_now();
    }
    assert!(tcp.connect(ClientId(4)).is_ok());
    tcp.revoke(ClientId(1)).expect("a full server takes orders");
    assert_eq!(server.status().revoked, 1);
    assert_eq!(tcp.region_bytes(NodeId(0)).unwrap(), [REGION as u64]);
    let error = block_on(&tcp, ClientId(1), async |lane| touch(lane, &[0]).await).unwrap().unwrap_err();
    assert_eq!(error, FabricError { node: NodeId(0), fault: Fault::Revoked });
}

#[test]
fn nobody_is_served_by_accident() {
    let memory = Arc::new(Memory::map(&[vec![REGION]]).unwrap());
    let everywhere = |options| Server::bind("0.0.0.0:0", options, memory.clone()).map(drop);
    assert!(matches!(everywhere(ServerOptions::default()), Err(ServerError::NoKey(_))));
    assert_eq!(everywhere(ServerOptions { insecure: true, ..ServerOptions::default() }), Ok(()));
    let key = Some(Key::generate().unwrap());
    assert_eq!(everywhere(ServerOptions { key, ..ServerOptions::default() }), Ok(()));
}

#[test]
fn a_key_file_is_its_owners() {
    let path = std::env::temp_dir().join(format!("remora-key-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let key = Key::generate().unwrap();
    key.write_new(&path).unwrap();
    assert_eq!(Key::read(&path), Ok(key.clone()));
    assert_eq!(key.write_new(&path), Err(KeyError::File(std::io::ErrorKind::AlreadyExists)));
    assert_eq!(format!("{key:?}"), "Key(..)");
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o640);
    assert_eq!(Key::read(&path), Err(KeyError::Exposed { mode: 0o640 }));
    mode(0o600);
    let good = std::fs::read_to_string(&path).unwrap();
    assert!(good.len() == 78 && good.starts_with("remora-key-1 "), "{good}");
    for bad in [
        "",
        "remora-key-2 00",
        &good[..70],
        &good.replace('\n', "0\n"),
        &good.replacen(|c: char| c.is_ascii_digit(), "x", 9),
    ] {
        std::fs::write(&path, bad).unwrap();
        assert_eq!(Key::read(&path), Err(KeyError::Format), "{bad}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Key::read(&path), Err(KeyError::File(std::io::ErrorKind::NotFound)));
}
