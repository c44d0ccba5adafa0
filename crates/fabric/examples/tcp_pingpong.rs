//! Measures what the fabric costs beyond bare TCP, and what TLS adds to that.
//!
//! It READs 64 bytes at depths 1 and 64, and 4 KiB. Beside each it measures an echo of the same
//! bytes in the same batches over a bare connection. TLS is measured if the feature `tls` is built
//! in.
//!
//! `cargo run --release -p remora-fabric --example tcp_pingpong [--features tls] [repetitions]`

#[cfg(feature = "tls")]
#[path = "../tests/tcp_support/certificates.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use remora_fabric::tcp::{Loopback, ServerOptions, TcpOptions};
use remora_fabric::{Address, ClientId, Lane, NodeId, RegionId, Worker};

/// Bytes of a READ's request: four words. Its response has two words and the words that are read.
const REQUEST_BYTES: usize = 32;
const RESPONSE_HEAD_BYTES: usize = 16;
const DEPTH: usize = 64;
const SPAN: Duration = Duration::from_millis(300);

/// Answers every request with `answer_bytes` bytes, in one write for each read.
fn echo_server(answer_bytes: usize) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound port");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let (mut buffer, answer, mut left) =
                (vec![0; 2 * REQUEST_BYTES * DEPTH], vec![7; answer_bytes * 2 * DEPTH], 0);
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                left += count;
                if stream.write_all(&answer[..left / REQUEST_BYTES * answer_bytes]).is_err() {
                    break;
                }
                left %= REQUEST_BYTES;
            }
        }
    });
    address
}

/// Returns requests per second over a bare connection: `depth` requests in one write, then all
/// their answers.
fn bare(stream: &mut TcpStream, depth: usize, answer_bytes: usize) -> f64 {
    let (requests, mut answers) = (vec![1; REQUEST_BYTES * depth], vec![0; answer_bytes * depth]);
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SPAN {
        stream.write_all(&requests).expect("an echo");
        stream.read_exact(&mut answers).expect("an echo");
        count += depth;
    }
    count as f64 / began.elapsed().as_secs_f64()
}

/// A fabric, and the lanes of a worker that uses it.
struct Rounds {
    name: &'static str,
    worker: Worker,
    lanes: Vec<Lane>,
    _fabric: Loopback,
}

impl Rounds {
    fn new(name: &'static str, servers: &ServerOptions, options: TcpOptions) -> Rounds {
        let fabric = Loopback::with_servers(&[vec![1 << 20]], servers, options).expect("a server");
        let worker = Worker::new();
        let endpoint = worker.connect(&fabric, ClientId(1)).expect("a connection");
        let lanes = (0..DEPTH as u64).map(|seed| worker.lane(&endpoint, seed).expect("a lane")).collect();
        Rounds { name, worker, lanes, _fabric: fabric }
    }

    /// Returns the READs per second that `depth` lanes make.
    fn rate(&self, depth: usize, bytes: usize) -> f64 {
        let began = Instant::now();
        let counts = self.worker.run(self.lanes[..depth].iter().map(|lane| {
            (lane.id(), async {
                let mut count = 0u64;
                while began.elapsed() < SPAN {
                    let mut round = lane.round();
                    let offset = lane.random() % ((1 << 20) / bytes as u64) * bytes as u64;
                    let read = round.read(Address { node: NodeId(0), region: RegionId(0), offset }, bytes);
                    let done = lane.execute(round).await.expect("a healthy node");
                    std::hint::black_box(done.words(read));
                    count += 1;
                }
                count
            })
        }));
        counts.iter().sum::<u64>() as f64 / began.elapsed().as_secs_f64()
    }
}

/// Connects with TLS. `None` if TLS is not built in.
fn secret() -> Option<Rounds> {
    #[cfg(feature = "tls")]
    {
        let issued = certificates::Issued::signed("127.0.0.1");
        let servers = ServerOptions::default().tls(issued.server());
        let options = TcpOptions { tls: Some(issued.client()), ..TcpOptions::default() };
        Some(Rounds::new("tls", &servers, options))
    }
    #[cfg(not(feature = "tls"))]
    None
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let repetitions = std::env::args().nth(1).map_or(7, |count| count.parse().expect("a number of repetitions"));
    let mut fabrics = vec![Rounds::new("tcp", &ServerOptions::default(), TcpOptions::default())];
    fabrics.extend(secret());
    println!("bytes  depth  over   a second    us        of bare  of tcp  (medians of {repetitions})");
    for (bytes, depth) in [(64, 1), (64, DEPTH), (4096, 1), (4096, 16)] {
        let answer_bytes = RESPONSE_HEAD_BYTES + bytes;
        let mut stream = TcpStream::connect(echo_server(answer_bytes)).expect("an echo server");
        stream.set_nodelay(true).expect("an option");
        // Take turns, again and again: other load on the machine then slows all of them alike.
        let turns: Vec<Vec<f64>> = (0..repetitions)
            .map(|_| {
                let bare = bare(&mut stream, depth, answer_bytes);
                [bare].into_iter().chain(fabrics.iter().map(|fabric| fabric.rate(depth, bytes))).collect()
            })
            .collect();
        for (place, name) in ["bare"].into_iter().chain(fabrics.iter().map(|fabric| fabric.name)).enumerate() {
            let of = |other: usize| median(turns.iter().map(|rates| rates[place] / rates[other]).collect());
            let rate = median(turns.iter().map(|rates| rates[place]).collect());
            let us = depth as f64 / rate * 1e6;
            println!("{bytes:<6} {depth:<6} {name:<6} {rate:<11.0} {us:<9.2} {:<8.2} {:.2}", of(0), of(1));
        }
    }
}
