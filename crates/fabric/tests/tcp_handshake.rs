//! Tests of which clients may connect, and of what happens to those which may not.

mod tcp_support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::shm::Memory;
use remora_fabric::tcp::{
    Key, KeyError, KeyStep, Keys, Server, ServerError, ServerHandle, ServerOptions, Tcp, TcpOptions,
};
use remora_fabric::{ClientId, Fabric, FabricError, Fault, NodeId, Refusal, block_on};
use rustix::io::Errno;
use tcp_support::*;

fn with_key(key: Option<&Key>) -> TcpOptions {
    TcpOptions { keys: key.map(|key| Keys::from(*key)), ..TcpOptions::default() }
}

fn locked_by(key: impl Into<Keys>) -> ServerOptions {
    ServerOptions::default().keys(key.into())
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
    let (_, locked) = serve(locked_by(key));
    let (_, open) = serve(ServerOptions::default());
    assert_eq!(refusal(&locked, Some(&key)), None);
    assert_eq!(refusal(&open, None), None);
    assert_eq!(refusal(&locked, Some(&other)), Some(Fault::Refused(Refusal::WrongKey)));
    assert_eq!(refusal(&locked, None), Some(Fault::Refused(Refusal::KeyNeeded)));
    assert_eq!(refusal(&open, Some(&key)), Some(Fault::Refused(Refusal::NoKey)));
    // A client that does not check which server it talks to is refused as well.
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

/// An attacker records a client's proof on the way, and sends it again.
#[test]
fn a_replayed_proof_is_refused() {
    let key = Key::generate().unwrap();
    let (_, address) = serve(locked_by(key));
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
    assert!(matches!(refusal("no such name:1", None), Some(Fault::Refused(Refusal::Name(_)))));
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

    // The server is slow, and its client gives up.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let fault = refusal(&listener.local_addr().unwrap().to_string(), None);
    assert_eq!(fault, Some(Fault::Refused(Refusal::Unreachable(std::io::ErrorKind::TimedOut.into()))));
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_full_server_says_so_and_still_takes_orders() {
    let (server, address) = serve(ServerOptions::default().connections_max(3).threads(2));
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
    assert_eq!(everywhere(ServerOptions::default().insecure(true)), Ok(()));
    assert_eq!(everywhere(locked_by(Key::generate().unwrap())), Ok(()));
    for threads in [0, 65] {
        let server = ServerOptions::default().insecure(true).threads(threads);
        assert_eq!(everywhere(server), Err(ServerError::Threads(threads)));
    }
}

#[test]
fn a_key_file_is_its_owners() {
    let path = std::env::temp_dir().join(format!("remora-key-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let key = Key::generate().unwrap();
    key.write_new(&path).unwrap();
    let read = || Keys::read(&path).map(drop);
    assert_eq!(read(), Ok(()));
    assert_eq!(key.write_new(&path), Err(KeyError::File(Errno::EXIST.into())));
    assert_eq!(format!("{key:?}"), "Key(..)");
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o640);
    assert_eq!(read(), Err(KeyError::Exposed { mode: 0o640 }));
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
        assert_eq!(read(), Err(KeyError::Format), "{bad}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read(), Err(KeyError::File(Errno::NOENT.into())));
}

/// The files of a change of keys: `old` and `new` by turns, and the files that a server and its
/// clients read.
struct Change {
    folder: PathBuf,
}

/// The contents of the files after each step of the change.
const STEPS: [&str; 4] = ["old", "old, new", "new, old", "new"];

impl Change {
    fn new(test: &str) -> Change {
        let folder = std::env::temp_dir().join(format!("remora-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let change = Change { folder };
        let made = change.folder.join("made");
        Key::generate().unwrap().write_new(&made).unwrap();
        for (step, name) in STEPS.iter().enumerate() {
            if let Some(step) = step.checked_sub(1) {
                Keys::step(&made, [KeyStep::Add, KeyStep::Swap, KeyStep::Drop][step]).unwrap();
            }
            std::fs::copy(&made, change.folder.join(name)).unwrap();
        }
        change.put("server", 0);
        change.put("client", 0);
        change
    }

    fn path(&self, end: &str) -> PathBuf {
        self.folder.join(end)
    }

    /// Gives an end the file of a step.
    fn put(&self, end: &str, step: usize) {
        let beside = self.folder.join("beside");
        std::fs::copy(self.folder.join(STEPS[step]), &beside).unwrap();
        std::fs::rename(beside, self.path(end)).unwrap();
    }

    /// Makes a client that reads this end's file.
    fn client(&self, end: &str, address: &str) -> Tcp {
        let keys = Some(Keys::read(&self.path(end)).unwrap());
        tcp(&[address], TcpOptions { keys, ..TcpOptions::default() })
    }

    fn server(&self) -> (ServerHandle, String) {
        serve(locked_by(Keys::read(&self.path("server")).unwrap()))
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn fault(tcp: &Tcp) -> Option<Fault> {
    tcp.connect(ClientId(1)).err().map(|error| error.fault)
}

/// One server and one client process are never restarted: only their files change.
#[test]
fn ends_that_are_a_step_apart_on_the_way_to_another_key_talk() {
    let change = Change::new("key-change");
    let (_, address) = change.server();
    let client = change.client("client", &address);
    for (server_step, server) in STEPS.iter().enumerate() {
        for (client_step, name) in STEPS.iter().enumerate() {
            change.put("server", server_step);
            change.put("client", client_step);
            // Ends that are further apart can talk if the client has the key that the server has
            // first.
            let first = server.split(',').next().unwrap();
            let welcome = server_step.abs_diff(client_step) <= 1 || name.contains(first);
            let expected = (!welcome).then_some(Fault::Refused(Refusal::WrongKey));
            assert_eq!(fault(&client), expected, "server {server}; client {name}");
            // Orders and questions work as well.
            assert_eq!(client.status(NodeId(0)).is_ok(), welcome, "server {server}; client {name}");
        }
    }
    change.put("client", 0);
    assert_eq!(fault(&client), Some(Fault::Refused(Refusal::WrongKey)), "the old key opens nothing any more");
}

#[test]
fn an_open_connection_outlives_its_key() {
    let change = Change::new("key-open");
    let (server, address) = change.server();
    let client = change.client("client", &address);
    let added = block_on(&client, ClientId(5), async |lane| {
        touch(lane, &[0]).await.unwrap();
        for step in 1..STEPS.len() {
            change.put("server", step);
            change.put("client", step);
            // The server learns of its new file from any client that connects.
            assert!(is_healthy(&client));
            touch(lane, &[0]).await.unwrap();
        }
        assert_eq!(fault(&change.client("old", &address)), Some(Fault::Refused(Refusal::WrongKey)));
        // The connection stays until a client with the new key revokes the access.
        client.revoke(ClientId(5)).unwrap();
        touch(lane, &[0]).await
    });
    assert_eq!(added.unwrap().unwrap_err(), FabricError { node: NodeId(0), fault: Fault::Revoked });
    assert_eq!(server.status().revoked, 1);
}

#[test]
fn a_file_that_cannot_be_used_leaves_both_ends_their_keys() {
    let change = Change::new("key-broken");
    let (_, address) = change.server();
    let client = change.client("client", &address);
    type Break = fn(&Path);
    let breaks: [(&str, Break); 4] = [
        ("gone", |path| std::fs::remove_file(path).unwrap()),
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("rubbish", |path| std::fs::write(path, "x".repeat(200)).unwrap()),
        ("exposed", |path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap()),
    ];
    for (how, break_it) in breaks {
        for end in ["server", "client"] {
            change.put(end, 3); // it would be another key, if it could be used
            break_it(&change.path(end));
            assert_eq!(fault(&client), None, "{end}: {how}");
        }
        assert!(is_healthy(&client), "{how}");
    }
    // Both files are repaired, one after the other.
    change.put("server", 3);
    assert_eq!(fault(&client), Some(Fault::Refused(Refusal::WrongKey)));
    change.put("client", 3);
    assert_eq!(fault(&client), None);
}

/// A server asks for the key that it has proved, even if it has other keys when the answer comes.
#[test]
fn keys_that_change_during_a_handshake_refuse_nobody() {
    let change = Change::new("key-during");
    let (_, address) = change.server();
    change.put("client", 1);
    let (heard_proof, proof_is_here) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = change.client("client", &listener.local_addr().unwrap().to_string());
    let behind = address.clone();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(behind).unwrap();
        let relay = |from: &mut TcpStream, to: &mut TcpStream, count: usize| {
            let mut bytes = vec![0; count];
            from.read_exact(&mut bytes).unwrap();
            to.write_all(&bytes).unwrap();
        };
        relay(&mut client, &mut server, 56);
        relay(&mut server, &mut client, 152);
        let mut proof = [0; 32];
        client.read_exact(&mut proof).unwrap();
        heard_proof.send(()).unwrap();
        may_go_on.recv().unwrap();
        server.write_all(&proof).unwrap();
        relay(&mut server, &mut client, 8);
    });
    let connecting = thread::spawn(move || fault(&slow));
    proof_is_here.recv().unwrap();
    change.put("server", 3);
    assert_eq!(fault(&change.client("server", &address)), None, "the server has the new key");
    go_on.send(()).unwrap();
    assert_eq!(connecting.join().unwrap(), None);
}
