//! TLS to clients, on an embedded cluster.

#[path = "../../fabric/tests/tcp_support/certificates.rs"]
mod certificates;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use certificates::{Issued, write_private};
use remora::Cluster;
use remora_gateway::net::{Gateway, ServeOptions, Tls, TlsFiles, serve};
use remora_gateway::{Front, Server, ServerOptions, Store, StoreOptions};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

type Client = StreamOwned<ClientConnection, TcpStream>;

const PATIENCE: Duration = Duration::from_secs(30);

fn gateway(files: TlsFiles, options: ServeOptions) -> (Gateway, SocketAddr) {
    let cluster = Cluster::embedded().open().unwrap();
    let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
    let server = Arc::new(Server::new(store, ServerOptions::default()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let options = options.threads(1).tls(Tls::read(files).unwrap());
    let front = move |number: usize, _: &_| Front::new(server.clone(), number as u64);
    (serve(&cluster, vec![listener], options, front).unwrap(), address)
}

fn files(issued: &Issued, clients: Option<&Issued>) -> TlsFiles {
    let (certificates, private_key) = (issued.certificate(), issued.key());
    TlsFiles { certificates, private_key, clients: clients.map(Issued::trusted) }
}

/// Connects. The client trusts the authority of `issued`, and shows the certificate of `own`.
fn connect(address: SocketAddr, issued: &Issued, own: Option<&Issued>) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(issued.trusted()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let chain = vec![CertificateDer::from_pem_file(own.certificate()).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(own.key()).unwrap()).unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), open(address))
}

fn open(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

fn ask(client: &mut Client, command: &str, answer: &str) {
    client.write_all(command.as_bytes()).unwrap();
    let mut got = vec![0; answer.len()];
    client.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), answer);
}

/// Returns whether a client is refused.
fn is_refused(mut client: Client) -> bool {
    let sent = client.write_all(b"PING\r\n");
    let read = client.read(&mut [0; 64]);
    assert!(!matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock), "no answer");
    sent.is_err() || !matches!(read, Ok(1..))
}

#[test]
fn clients_send_and_read_a_lot() {
    let issued = Issued::signed("127.0.0.1");
    let (_gateway, address) = gateway(files(&issued, None), ServeOptions::default());
    let mut client = connect(address, &issued, None);
    ask(&mut client, "SET greeting hello\r\nGET greeting\r\n", "+OK\r\n$5\r\nhello\r\n");
    // A pipeline of 2 MB. Its answers have 12 MB, more than the gateway keeps unsent.
    let value: String = ('a'..='z').cycle().take(20_000).collect();
    let (mut commands, mut answers) = (String::new(), String::new());
    for number in 0..100 {
        commands += &format!("*3\r\n$3\r\nSET\r\n$3\r\nk{number:02}\r\n$20000\r\n{value}\r\n");
        commands += &format!("GET k{number:02}\r\n").repeat(number % 4 * 4);
        answers += "+OK\r\n";
        answers += &format!("$20000\r\n{value}\r\n").repeat(number % 4 * 4);
    }
    let mut slow = connect(address, &issued, None);
    slow.conn.complete_io(&mut slow.sock).unwrap();
    slow.sock.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The client reads only when it can send no more.
            let (began, mut sent, mut got, mut piece) = (Instant::now(), 0, Vec::new(), [0; 5_000]);
            while got.len() < answers.len() {
                if !slow.conn.wants_write() && sent < commands.len() {
                    let end = commands.len().min(sent + 10_000);
                    sent += slow.conn.writer().write(&commands.as_bytes()[sent..end]).unwrap();
                }
                if slow.conn.wants_write() && slow.conn.write_tls(&mut slow.sock).is_ok() {
                    continue;
                }
                match slow.read(&mut piece) {
                    Ok(count) => got.extend_from_slice(&piece[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
                assert!(began.elapsed() < PATIENCE, "{sent} sent, {} read", got.len());
            }
            assert!(got == answers.as_bytes());
        });
        // Others are served meanwhile.
        for _ in 0..50 {
            ask(&mut client, "PING\r\n", "+PONG\r\n");
        }
    });
    // The gateway ends the session as TLS wants it: no error is read.
    ask(&mut client, "QUIT\r\n", "+OK\r\n");
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    // A client without TLS is not served.
    let mut plain = open(address);
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut all = Vec::new();
    let _ = plain.read_to_end(&mut all);
    assert!(!all.starts_with(b"+"), "{all:?}");
}

#[test]
fn clients_have_to_show_a_certificate_if_it_is_wanted() {
    let (issued, clients, others) = (Issued::signed("127.0.0.1"), Issued::signed("client"), Issued::signed("client"));
    let (_gateway, address) = gateway(files(&issued, Some(&clients)), ServeOptions::default());
    ask(&mut connect(address, &issued, Some(&clients)), "PING\r\n", "+PONG\r\n");
    assert!(is_refused(connect(address, &issued, None)), "no certificate");
    assert!(is_refused(connect(address, &issued, Some(&others))), "a certificate of another authority");
    ask(&mut connect(address, &issued, Some(&clients)), "PING\r\n", "+PONG\r\n");
}

#[test]
fn a_handshake_that_does_not_go_on_hinders_no_one_and_ends() {
    let issued = Issued::signed("127.0.0.1");
    let options = ServeOptions::default().lanes(1).handshake_max(Duration::from_secs(1));
    let (gateway, address) = gateway(files(&issued, None), options);
    let mut idle = connect(address, &issued, None);
    ask(&mut idle, "PING\r\n", "+PONG\r\n");
    let began = Instant::now();
    // Nothing, a part of a hello, and a hello without what comes behind it.
    let mut silent = [open(address), open(address), open(address)];
    let mut hello = Vec::new();
    connect(address, &issued, None).conn.write_tls(&mut hello).unwrap();
    silent[1].write_all(&hello[..hello.len() / 2]).unwrap();
    silent[2].write_all(&hello).unwrap();
    for _ in 0..20 {
        ask(&mut connect(address, &issued, None), "PING\r\n", "+PONG\r\n");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "others have to wait: {:?}", began.elapsed());
    for socket in &mut silent {
        // A reset is an end, too.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    assert!((1..5).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    // A client that has ended its handshake may be silent.
    ask(&mut idle, "PING\r\n", "+PONG\r\n");
    while gateway.control().counts().connections > 1 {
        assert!(began.elapsed() < PATIENCE, "{:?}", gateway.control().counts());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_certificate_that_changes_is_read_again() {
    let (first, second) = (Issued::signed("127.0.0.1"), Issued::signed("127.0.0.1"));
    let (_gateway, address) = gateway(files(&first, None), ServeOptions::default());
    let mut old = connect(address, &first, None);
    ask(&mut old, "PING\r\n", "+PONG\r\n");
    let replace = |from: std::path::PathBuf, to: &std::path::Path| {
        write_private(to, &std::fs::read_to_string(from).unwrap());
    };
    let until_shown = |issued: &Issued| {
        let began = Instant::now();
        while is_refused(connect(address, issued, None)) {
            assert!(began.elapsed() < PATIENCE, "the new certificate is not shown");
            thread::sleep(Duration::from_millis(100));
        }
    };
    // A certificate without its key changes nothing.
    replace(second.certificate(), &first.certificate());
    thread::sleep(Duration::from_millis(1100));
    ask(&mut connect(address, &first, None), "PING\r\n", "+PONG\r\n");
    replace(second.key(), &first.key());
    until_shown(&second);
    ask(&mut old, "PING\r\n", "+PONG\r\n");
}
