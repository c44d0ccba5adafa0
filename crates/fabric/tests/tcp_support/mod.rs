//! The TCP protocol by hand, for tests that break its rules.
#![allow(dead_code, unreachable_pub, reason = "each test file uses what it needs of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use remora_fabric::tcp::{Server, ServerHandle, ServerOptions, Tcp, TcpOptions};
use remora_fabric::{Address, ClientId, Fabric, FabricError, Lane, NodeId, RegionId, block_on};

pub const REGION: usize = 1 << 20;
pub const WELCOME: u64 = 1;
pub const WRONG_KEY: u64 = 2;

pub fn word(node: u16, index: u64) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index }
}

/// Starts a server on a thread of its own. Its handle stops it.
pub fn serve(options: ServerOptions) -> (ServerHandle, String) {
    let memory = remora_fabric::shm::Memory::map(&[vec![REGION]]).expect("a test's memory");
    let server = Server::bind("127.0.0.1:0", options, memory.into()).expect("a free port");
    let (handle, address) = (server.handle(), server.local_addr().expect("a bound port").to_string());
    thread::spawn(move || server.run());
    (handle, address)
}

pub fn tcp(addresses: &[&str], options: TcpOptions) -> Tcp {
    Tcp::new(addresses.iter().map(|address| (*address).to_owned()).collect(), options)
}

/// Executes one round that adds to a word of each named node.
pub async fn touch(lane: &Lane, nodes: &[u16]) -> Result<Vec<u64>, FabricError> {
    let mut round = lane.round();
    let adds: Vec<_> = nodes.iter().map(|node| round.fetch_add(word(*node, 0), 1)).collect();
    let done = lane.execute(round).await?;
    Ok(adds.into_iter().map(|add| done.added(add)).collect())
}

/// Whether a client that connects now is served.
pub fn is_healthy(fabric: &dyn Fabric) -> bool {
    block_on(fabric, ClientId(99), async |lane| touch(lane, &[0]).await.is_ok()).unwrap_or(false)
}

pub fn client_hello(client: u32) -> Vec<u8> {
    let mut hello = b"REMORA\x00T\x01\0\0\0\0\0\0\0".to_vec();
    hello.extend(client.to_le_bytes());
    hello.extend([0; 4]);
    hello.extend([0x5a; 32]);
    hello
}

pub fn server_hello() -> Vec<u8> {
    let mut hello = b"REMORA\x00T\x01\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0".to_vec();
    hello.extend((REGION as u64).to_le_bytes());
    hello.extend([0; 56]);
    hello.extend([0x5a; 32]);
    hello.extend([0; 32]); // the proof of a client that has no key
    hello
}

/// Opens a connection that has shaken hands without a key, and on which a test may send anything.
pub fn raw_client(address: &str, client: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(&client_hello(client)).unwrap();
    stream.read_exact(&mut [0; 152]).expect("the server's hello and proof");
    stream.write_all(&[0; 32]).unwrap();
    let mut verdict = [0; 8];
    stream.read_exact(&mut verdict).expect("a verdict");
    assert_eq!(u64::from_le_bytes(verdict), WELCOME);
    stream
}

/// Starts a server that shakes hands without a key, and then behaves as told.
pub fn fake_server(behave: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            stream.read_exact(&mut [0; 56]).expect("a hello");
            stream.write_all(&server_hello()).unwrap();
            stream.read_exact(&mut [0; 32]).expect("a proof");
            stream.write_all(&WELCOME.to_le_bytes()).unwrap();
            behave(stream);
        }
    });
    address
}

pub fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads until the other end has closed. Returns the number of bytes.
pub fn drain(mut stream: &TcpStream) -> usize {
    let mut count = 0;
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return count,
            Ok(more) => count += more,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return count,
            Err(error) => panic!("the other end does not close: {error}"),
        }
    }
}
