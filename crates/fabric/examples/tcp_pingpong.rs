//! What the fabric adds to bare TCP: 64-byte READs at depth 1 and 64, each beside an echo of the same bytes in the same
//! batches. `cargo run --release -p remora-fabric --example tcp_pingpong [repetitions]`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use remora_fabric::tcp::{Loopback, TcpOptions};
use remora_fabric::{Address, ClientId, Lane, NodeId, RegionId, Worker};

/// A READ of 64 bytes is a request of four words and a response of ten.
const REQUEST_BYTES: usize = 32;
const RESPONSE_BYTES: usize = 80;
const DEPTH: usize = 64;
const SPAN: Duration = Duration::from_millis(300);

/// Answers every request of the right size, in one write for each read.
fn echo_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound port");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let (mut buffer, answer, mut left) = (vec![0; 128 << 10], vec![7; RESPONSE_BYTES * 4096], 0);
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                left += count;
                if stream.write_all(&answer[..left / REQUEST_BYTES * RESPONSE_BYTES]).is_err() {
                    break;
                }
                left %= REQUEST_BYTES;
            }
        }
    });
    address
}

/// Requests a second, `depth` of them in one write, then all their answers.
fn bare(stream: &mut TcpStream, depth: usize) -> f64 {
    let (requests, mut answers) = (vec![1; REQUEST_BYTES * depth], vec![0; RESPONSE_BYTES * depth]);
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < SPAN {
        stream.write_all(&requests).expect("an echo");
        stream.read_exact(&mut answers).expect("an echo");
        count += depth;
    }
    count as f64 / began.elapsed().as_secs_f64()
}

/// The same by lanes of a worker.
fn rounds(worker: &Worker, lanes: &[Lane]) -> f64 {
    let began = Instant::now();
    let counts = worker.run(lanes.iter().map(|lane| {
        (lane.id(), async {
            let mut count = 0u64;
            while began.elapsed() < SPAN {
                let mut round = lane.round();
                let offset = lane.random() % (1 << 14) * 64;
                let read = round.read(Address { node: NodeId(0), region: RegionId(0), offset }, 64);
                let done = lane.execute(round).await.expect("a healthy node");
                std::hint::black_box(done.words(read));
                count += 1;
            }
            count
        })
    }));
    counts.iter().sum::<u64>() as f64 / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let repetitions = std::env::args().nth(1).map_or(7, |count| count.parse().expect("a number of repetitions"));
    let fabric = Loopback::new(&[vec![1 << 20]], TcpOptions::default()).expect("a server");
    let mut stream = TcpStream::connect(echo_server()).expect("an echo server");
    stream.set_nodelay(true).expect("an option");
    let worker = Worker::new();
    let endpoint = worker.connect(&fabric, ClientId(1)).expect("a connection");
    let lanes: Vec<Lane> = (0..DEPTH as u64).map(|seed| worker.lane(&endpoint, seed).expect("a lane")).collect();
    println!("depth  bare/s     rounds/s   bare us  round us  rate ratio  (medians of {repetitions})");
    for depth in [1, DEPTH] {
        let (mut bare_rates, mut round_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repetitions {
            let (bare, rounds) = (bare(&mut stream, depth), rounds(&worker, &lanes[..depth]));
            bare_rates.push(bare);
            round_rates.push(rounds);
            ratios.push(rounds / bare);
        }
        let (bare, rounds) = (median(bare_rates), median(round_rates));
        let us = |rate: f64| depth as f64 / rate * 1e6;
        let (bare_us, round_us, ratio) = (us(bare), us(rounds), median(ratios));
        println!("{depth:<6} {bare:<10.0} {rounds:<10.0} {bare_us:<8.2} {round_us:<9.2} {ratio:.2}");
    }
}
