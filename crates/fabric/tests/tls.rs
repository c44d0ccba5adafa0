//! Tests of TLS: which certificates are trusted, and what happens to ends that do not agree.

#[path = "tcp_support/certificates.rs"]
mod certificates;
mod tcp_support;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use certificates::{Issued, write_private};
use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::tcp::tls::{ClientTls, ServerTls, TlsError};
use remora_fabric::tcp::{Key, Keys, Loopback, Server, ServerOptions, TcpOptions};
use remora_fabric::{ClientId, Fabric, Fault, Lane, NodeId, Refusal, TlsReason, Worker, block_on};
use rustix::io::Errno;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tcp_support::*;

const HOST: &str = "127.0.0.1";

fn served_by(issued: &Issued) -> ServerOptions {
    ServerOptions::default().tls(issued.server())
}

fn trusting(issued: &Issued) -> TcpOptions {
    TcpOptions { tls: Some(issued.client()), ..TcpOptions::default() }
}

fn refusal(address: &str, options: TcpOptions) -> Option<Fault> {
    tcp(&[address], options).connect(ClientId(1)).err().map(|error| error.fault)
}

fn tls(reason: TlsReason) -> Option<Fault> {
    Some(Fault::Refused(Refusal::Tls(reason)))
}

#[test]
fn a_server_is_believed_by_its_certificate_and_its_name() {
    let other = Issued::signed(HOST);
    let good = [Issued::signed(HOST), Issued::self_signed(HOST), Issued::self_signed_authority(HOST)];
    for issued in &good {
        let (_, address) = serve(served_by(issued));
        assert!(is_healthy(&tcp(&[&address], trusting(issued))));
        assert_eq!(refusal(&address, trusting(&other)), tls(TlsReason::Untrusted));
        assert!(is_healthy(&tcp(&[&address], trusting(issued))));
    }
    for elsewhere in [Issued::signed("10.9.8.7"), Issued::self_signed_authority("10.9.8.7")] {
        let (_, address) = serve(served_by(&elsewhere));
        assert_eq!(refusal(&address, trusting(&elsewhere)), tls(TlsReason::Name));
    }
    let named = Issued::signed("localhost");
    let (_, address) = serve(served_by(&named));
    let by_name = address.replace(HOST, "localhost");
    assert_eq!(
        (refusal(&by_name, trusting(&named)), refusal(&address, trusting(&named))),
        (None, tls(TlsReason::Name))
    );
    // This also holds if the client trusts exactly that certificate.
    let expired = Issued::expired(HOST);
    let (_, address) = serve(served_by(&expired));
    assert_eq!(refusal(&address, trusting(&expired)), tls(TlsReason::Expired));
}

#[test]
fn an_address_in_brackets_is_a_name_too() {
    let Ok(_) = TcpListener::bind("[::1]:0") else { return eprintln!("skipped: no IPv6 here") };
    let issued = Issued::signed("::1");
    let memory = remora_fabric::shm::Memory::map(&[vec![REGION]]).unwrap();
    let server = Server::bind("[::1]:0", served_by(&issued), memory.into()).unwrap();
    let address = server.local_addr().unwrap().to_string();
    thread::spawn(move || server.run());
    assert_eq!(refusal(&address, trusting(&issued)), None);
}

#[test]
fn with_tls_and_without_refuse_each_other_at_once() {
    let issued = Issued::signed(HOST);
    let (secret, secret_address) = serve(served_by(&issued));
    let (plain, plain_address) = serve(ServerOptions::default());
    let began = Instant::now();
    assert_eq!(refusal(&secret_address, TcpOptions::default()), tls(TlsReason::Needed));
    assert_eq!(refusal(&plain_address, trusting(&issued)), tls(TlsReason::NotOffered));
    // It does not matter whether the two ends have a key.
    let keys = Some(Keys::from(Key::generate().unwrap()));
    assert_eq!(
        refusal(&secret_address, TcpOptions { keys: keys.clone(), ..TcpOptions::default() }),
        tls(TlsReason::Needed)
    );
    assert_eq!(refusal(&plain_address, TcpOptions { keys, ..trusting(&issued) }), tls(TlsReason::NotOffered));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // A client that ignores the answer is refused as well.
    let mut stream = TcpStream::connect(&secret_address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = stream.write_all(&[&client_hello(1)[..], &[0; 32], &bytes(&[1 << 32 | 4, 0, 1 << 32 | 1, 0])].concat());
    assert!(drain(&stream) <= 16);
    assert_eq!((secret.status().frames, plain.status().frames), (0, 0));
    assert!(is_healthy(&tcp(&[&secret_address], trusting(&issued))));
    assert!(is_healthy(&tcp(&[&plain_address], TcpOptions::default())));
}

#[test]
fn the_key_is_proved_inside() {
    let issued = Issued::signed(HOST);
    let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
    let (_, address) = serve(served_by(&issued).keys(Keys::from(key)));
    let found = |key: Option<Key>| refusal(&address, TcpOptions { keys: key.map(Keys::from), ..trusting(&issued) });
    assert_eq!(found(Some(key)), None);
    assert_eq!(found(Some(other)), Some(Fault::Refused(Refusal::WrongKey)));
    assert_eq!(found(None), Some(Fault::Refused(Refusal::KeyNeeded)));
    // TLS proves nothing about clients, so TLS alone does not allow a public address.
    let memory: Arc<_> = remora_fabric::shm::Memory::map(&[vec![REGION]]).unwrap().into();
    assert!(Server::bind("0.0.0.0:0", served_by(&issued), memory).is_err());
}

/// Starts a relay, which records both directions of a connection. It may change one byte that the
/// client sends.
fn relay(server: String, bend: Option<usize>) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let (back_hears, forth_hears) = (hears.clone(), hears.clone());
            let copy = |from: &mut TcpStream, to: &mut TcpStream, heard: &Mutex<Vec<u8>>, bend: Option<usize>| {
                let (mut buffer, mut count) = ([0; 4096], 0);
                while let Ok(more @ 1..) = from.read(&mut buffer) {
                    heard.lock().unwrap().extend(&buffer[..more]);
                    if let Some(at) = bend.filter(|at| (count..count + more).contains(at)) {
                        buffer[at - count] ^= 1;
                    }
                    count += more;
                    if to.write_all(&buffer[..more]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            };
            thread::spawn(move || copy(&mut back_from, &mut back_to, &back_hears, None));
            thread::spawn(move || copy(&mut client, &mut server, &forth_hears, bend));
        }
    });
    (address, heard)
}

#[test]
fn between_the_ends_nothing_can_be_read() {
    const SECRET: u64 = u64::from_le_bytes(*b"mellon!!");
    let issued = Issued::signed(HOST);
    for (servers, options, seen) in
        [(served_by(&issued), trusting(&issued), false), (ServerOptions::default(), TcpOptions::default(), true)]
    {
        let (_, address) = serve(servers);
        let (address, heard) = relay(address, None);
        block_on(&tcp(&[&address], options), ClientId(1), async |lane: &Lane| {
            let mut round = lane.round();
            round.write_words(word(0, 0), &[SECRET; 4]);
            lane.execute(round).await.expect("the relay changes nothing");
        })
        .unwrap();
        let heard = heard.lock().unwrap();
        assert_eq!(heard.windows(8).any(|window| window == SECRET.to_le_bytes()), seen);
    }
}

/// Whichever byte is changed: nothing happens that the client did not ask for, and the client gets
/// an error.
#[test]
fn between_the_ends_nothing_can_be_changed() {
    let issued = Issued::signed(HOST);
    let (server, direct) = serve(served_by(&issued));
    let (mut refused, mut failed) = (0, 0);
    for at in (0..900).step_by(17) {
        let (address, _) = relay(direct.clone(), Some(at));
        let options = TcpOptions { patience: Duration::from_millis(300), ..trusting(&issued) };
        let outcome = block_on(&tcp(&[&address], options), ClientId(1), async |lane: &Lane| {
            let mut round = lane.round();
            round.write_words(word(0, 8), &[7; 64]);
            lane.execute(round).await.map(drop)
        });
        match outcome {
            Err(error) => refused += u32::from(matches!(error.fault, Fault::Refused(_))),
            Ok(outcome) => failed += u32::from(outcome.is_err()),
        }
    }
    assert!(refused > 10 && failed > 5, "{refused} handshakes and {failed} rounds were bent");
    while server.status().connections > 0 {
        thread::yield_now();
    }
    block_on(&tcp(&[&direct], trusting(&issued)), ClientId(1), async |lane: &Lane| {
        let mut round = lane.round();
        let (all, around) = (round.read(word(0, 8), 512), round.read(word(0, 72), 8192));
        let done = lane.execute(round).await.unwrap();
        assert!(done.words(all).iter().all(|word| [0, 7].contains(word)));
        assert!(done.words(around).iter().all(|word| *word == 0));
    })
    .unwrap();
}

#[test]
fn garbage_and_slow_handshakes_disturb_nobody() {
    let issued = Issued::signed(HOST);
    let (server, address) = serve(served_by(&issued));
    let says = |what: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(what).unwrap();
        stream
    };
    // The inputs are a TLS record without meaning, one that is too long, half a record, and bytes
    // that are not TLS.
    let garbage: [&[u8]; 5] = [
        &[22, 3, 1, 0, 4, 9, 9, 9, 9],
        &[22, 3, 1, 0xff, 0xff, 1],
        &[23, 3, 3, 0, 2, 0, 0],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
    ];
    let began = Instant::now();
    for what in garbage {
        assert!(drain(&says(what)) < 16, "an alert at most");
    }
    assert!(began.elapsed() < Duration::from_millis(1_500));

    let began = Instant::now();
    let slow: Vec<TcpStream> = (0..50).map(|number| says(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3][..number % 11])).collect();
    let dripping = {
        let mut stream = says(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
        thread::spawn(move || {
            while stream.write_all(&[0]).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        })
    };
    for _ in 0..5 {
        assert!(is_healthy(&tcp(&[&address], trusting(&issued))));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "they hold up others");
    assert!(slow.iter().all(|stream| drain(stream) == 0));
    dripping.join().unwrap();
    let took = began.elapsed();
    assert!((Duration::from_millis(1_900)..Duration::from_secs(3)).contains(&took), "cut off after {took:?}");
    assert_eq!(server.status().connections, 0);
}

#[test]
fn a_server_that_is_slow_with_tls_is_given_up() {
    let issued = Issued::signed(HOST);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It sends one byte at a time, of a record that would never become whole.
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(&[22, 3, 3, 0x20, 0]);
        while stream.write_all(&[2]).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let began = Instant::now();
    let fault = refusal(&address, trusting(&issued));
    assert_eq!(fault, Some(Fault::Refused(Refusal::Unreachable(ErrorKind::TimedOut.into()))));
    assert!(began.elapsed() < Duration::from_secs(3));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || drop(listener.accept()));
    assert!(matches!(refusal(&address, trusting(&issued)), Some(Fault::Refused(Refusal::Unreachable(_)))));
}

#[test]
fn a_revocation_is_the_last_word() {
    let issued = Issued::signed(HOST);
    let fabric = Loopback::with_servers(&[vec![REGION]], &served_by(&issued), trusting(&issued)).unwrap();
    let revoked = remora_fabric::FabricError { node: NodeId(0), fault: Fault::Revoked };
    block_on(&fabric, ClientId(1), async |lane: &Lane| {
        touch(lane, &[0]).await.expect("a healthy node");
        fabric.revoke(ClientId(1)).expect("the node confirms");
        assert_eq!(touch(lane, &[0]).await, Err(revoked));
    })
    .unwrap();
    assert_eq!(block_on(&fabric, ClientId(1), async |lane: &Lane| touch(lane, &[0]).await), Ok(Err(revoked)));
    assert_eq!(fabric.tcp().status(NodeId(0)).unwrap().revoked, 1);
    assert!(is_healthy(&fabric));
}

/// The largest rounds go in both directions at once: more than sockets buffer, and more than a
/// record holds.
#[test]
fn the_largest_rounds_of_many_lanes_arrive_whole() {
    const WORDS: usize = 1000;
    let issued = Issued::signed(HOST);
    let sizes = [vec![ROUND_VERBS_MAX * ROUND_BYTES_MAX]];
    let fabric = Loopback::with_servers(&sizes, &served_by(&issued), trusting(&issued)).unwrap();
    let worker = Worker::new();
    let endpoint = worker.connect(&fabric, ClientId(1)).unwrap();
    let lanes: Vec<Lane> = (0..32).map(|seed| worker.lane(&endpoint, seed).unwrap()).collect();
    worker.run(lanes.iter().zip(0u64..).map(|(lane, number)| {
        (lane.id(), async move {
            for turn in 1..20u64 {
                let at = |place: u64| word(0, (number * 8 + place) * WORDS as u64);
                let mut round = lane.round();
                let staged = round.stage_words(WORDS);
                let value = |index: usize| turn << 32 | number << 16 | index as u64;
                round.staged_mut(staged).iter_mut().enumerate().for_each(|(index, word)| *word = value(index));
                (0..8).for_each(|place| round.write_staged(at(place), staged));
                lane.execute(round).await.expect("a healthy node");
                let mut round = lane.round();
                let reads: Vec<_> = (0..8).map(|place| round.read(at(place), 8 * WORDS)).collect();
                let done = lane.execute(round).await.expect("a healthy node");
                for read in reads {
                    assert!(done.words(read).iter().enumerate().all(|(index, word)| *word == value(index)));
                }
            }
        })
    }));
}

/// Answers that the client does not fetch stop in the middle of a record, and continue from there.
#[test]
fn a_client_that_does_not_listen_stalls_only_itself() {
    const READS: usize = 1_000; // of 60 KiB: far more than sockets buffer
    const WORDS: u64 = 7_680;
    let issued = Issued::signed(HOST);
    let (_, address) = serve(served_by(&issued));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(issued.trusted()).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let session = rustls::ClientConnection::new(Arc::new(config), HOST.try_into().unwrap()).unwrap();
    let socket = TcpStream::connect(&address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut deaf = rustls::StreamOwned::new(session, socket);
    deaf.write_all(&client_hello(7)).unwrap();
    deaf.read_exact(&mut [0; 152]).unwrap();
    deaf.write_all(&[0; 32]).unwrap();
    let mut verdict = [0; 8];
    deaf.read_exact(&mut verdict).unwrap();
    assert_eq!(u64::from_le_bytes(verdict), WELCOME);
    for ticket in 0..READS as u64 {
        deaf.write_all(&bytes(&[1 << 32 | 4, ticket, WORDS << 32 | 1, 0])).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    let fabric = tcp(&[&address], trusting(&issued));
    block_on(&fabric, ClientId(1), async |lane: &Lane| {
        for _ in 0..1_000 {
            touch(lane, &[0]).await.expect("a healthy node");
        }
    })
    .unwrap();
    for ticket in 0..READS as u64 {
        let mut answer = vec![0; 16 + 8 * WORDS as usize];
        deaf.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..16], bytes(&[2 + WORDS, ticket]));
        assert!(answer[24..].iter().all(|byte| *byte == 0), "one word has been touched");
    }
}

#[test]
fn files_that_are_no_good_are_told_apart() {
    let (one, other) = (Issued::signed(HOST), Issued::signed(HOST));
    let server = |certificate: &_, key: &_| ServerTls::read(certificate, key).err();
    let missing = std::path::PathBuf::from("/no/such/file");
    assert_eq!(server(&one.certificate(), &one.key()), None);
    assert_eq!(server(&missing, &one.key()), Some(TlsError::Certificates(Errno::NOENT.into())));
    assert_eq!(server(&one.certificate(), &missing), Some(TlsError::PrivateKey(Errno::NOENT.into())));
    assert_eq!(server(&one.certificate(), &other.key()), Some(TlsError::Unusable));
    assert_eq!(server(&one.key(), &one.key()), Some(TlsError::NoCertificate));
    assert_eq!(server(&one.certificate(), &one.certificate()), Some(TlsError::NoPrivateKey));
    assert_eq!(format!("{:?} {:?}", one.server(), one.client()), "ServerTls(..) ClientTls(..)");
    std::fs::set_permissions(one.key(), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(server(&one.certificate(), &one.key()), Some(TlsError::Exposed { mode: 0o644 }));
    assert_eq!(ClientTls::read(&missing).err(), Some(TlsError::Certificates(Errno::NOENT.into())));
    write_private(&one.trusted(), "");
    assert_eq!(ClientTls::read(&one.trusted()).err(), Some(TlsError::NoCertificate));
    write_private(&one.trusted(), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert_eq!(ClientTls::read(&one.trusted()).err(), Some(TlsError::Unusable));
}

/// The command of the manual makes files that work.
#[test]
fn certificates_of_openssl_do() {
    let issued = Issued::signed(HOST);
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"])
        .args(["-subj", "/CN=memory", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout"])
        .arg(issued.key())
        .arg("-out")
        .arg(issued.certificate())
        .output();
    let Ok(made) = made else { return eprintln!("skipped: no openssl here") };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (_, address) = serve(ServerOptions::default().tls(issued.server()));
    let trusted = ClientTls::read(&issued.certificate()).unwrap();
    assert_eq!(refusal(&address, TcpOptions { tls: Some(trusted), ..TcpOptions::default() }), None);
}
