//! Remora over TCP and Redis, side by side on one machine: gets by key, and small transactions.
//! Both have the same keys, values, connections and requests in flight. The measurements are
//! interleaved in one run, because the speed of machines drifts, and are reported as medians and
//! ratios.
//!
//! ```sh
//! apt-get install redis-server redis-tools
//! cargo run --release -p remora-cli --example against_redis -- [repetitions] [seconds] [rows]
//! ```
//!
//! `rows` is a part of the names of the rows to measure, for profiles. Memory nodes are processes
//! of their own (this program again), and so are `redis-server` and `redis-benchmark`.
#![forbid(unsafe_code)]

#[path = "../support/processes.rs"]
mod processes;
mod redis;
mod remora_client;

use std::time::Duration;

use processes::MemoryNodeProcess;
use redis::Redis;
use remora_client::{Kind, Load, Store};

/// Number of keys in each store.
const KEYS: u64 = 100_000;
/// Bytes of a value.
const VALUE_BYTES: usize = 64;
/// Number of requests in flight on a connection.
const IN_FLIGHT: usize = 16;
/// Number of connections in the rows with many connections.
const MANY: usize = 50;

/// The result of one repetition.
#[derive(Clone, Copy)]
struct Sample {
    operations: f64,
    seconds: f64,
    /// Awaited round trips of all operations. They are not counted for Redis.
    round_trips: Option<f64>,
    /// CPU seconds of the measuring side and of the servers.
    client_cpu: f64,
    server_cpu: f64,
}

/// A row of the comparison: its name, the row with which it is compared, and how it is measured.
struct Case<'a> {
    name: &'static str,
    rival: Option<usize>,
    measure: Box<dyn FnMut(Duration) -> Sample + 'a>,
    samples: Vec<Sample>,
}

impl Case<'_> {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rate(sample: &Sample) -> f64 {
    sample.operations / sample.seconds
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some(processes::AS_MEMORY_NODE) {
        return processes::be_memory_node();
    }
    let number = |word: Option<String>, default: f64| word.and_then(|word| word.parse().ok()).unwrap_or(default);
    let (repetitions, seconds) = (number(first, 7.0) as usize, number(arguments.next(), 3.0));
    let wanted = arguments.next().unwrap_or_default();

    let redis = Redis::start();
    redis.load();
    let nodes: Vec<MemoryNodeProcess> = (0..4).map(|_| MemoryNodeProcess::start()).collect();
    // Each table has its own memory nodes: one node for one copy, three nodes for three copies.
    let (one, three) = (Store::load(&nodes[..1]), Store::load(&nodes[1..]));
    let get = |threads| Load { threads, coroutines: IN_FLIGHT, kind: Kind::Get };
    let write = Load { threads: 1, coroutines: IN_FLIGHT, kind: Kind::Change };
    let count = Load { threads: 1, coroutines: MANY, kind: Kind::Count };

    let case = |name, rival, measure| Case { name, rival, measure, samples: Vec::new() };
    let mut cases: Vec<Case<'_>> = vec![
        case("get, 1 connection: redis", None, Box::new(redis.gets(1))),
        case("get, 1 connection: remora", Some(0), Box::new(|time| one.measure(get(1), time))),
        case("get, 50 connections: redis", None, Box::new(redis.gets(MANY))),
        case("get, 50 connections: remora, 50 threads", Some(2), Box::new(|time| one.measure(get(MANY), time))),
        case("transaction, 1 connection: redis", None, Box::new(|time| redis.transactions(time))),
        case("transaction, 1 connection: remora", Some(4), Box::new(|time| one.measure(write, time))),
        case("transaction, 1 connection: remora, 3 copies", Some(4), Box::new(|time| three.measure(write, time))),
        case("one counter, 50 clients: redis", None, Box::new(redis.counts(MANY))),
        case("one counter, 50 clients: remora", Some(7), Box::new(|time| one.measure(count, time))),
        case("one counter, 50 clients: remora, 3 copies", Some(7), Box::new(|time| three.measure(count, time))),
    ];
    for _ in 0..repetitions.max(1) {
        for case in cases.iter_mut().filter(|case| case.name.contains(&wanted)) {
            let sample = (case.measure)(Duration::from_secs_f64(seconds));
            case.samples.push(sample);
        }
    }

    println!("{KEYS} keys, values of {VALUE_BYTES} bytes, {IN_FLIGHT} in flight on each connection");
    println!("transaction: reads and writes two records; of Redis MULTI, GET, GET, SET, SET, EXEC");
    println!("one counter: 50 clients with one request each; of Redis INCR, of remora 50 coroutines of one thread");
    println!("medians of {repetitions} repetitions of {seconds} s; CPU time in microseconds of an operation\n");
    println!("{:<46}{:>12}{:>13}{:>11}{:>11}", "", "per second", "round trips", "client us", "server us");
    for case in cases.iter().filter(|case| !case.samples.is_empty()) {
        print!("{:<46}{:>12.0}", case.name, case.median(rate));
        match case.samples[0].round_trips {
            Some(_) => {
                let round_trips = case.median(|sample| sample.round_trips.unwrap_or(0.0) / sample.operations);
                print!("{round_trips:>13.2}");
            }
            None => print!("{:>13}", "-"),
        }
        let client = case.median(|sample| sample.client_cpu / sample.operations * 1e6);
        let server = case.median(|sample| sample.server_cpu / sample.operations * 1e6);
        println!("{client:>11.2}{server:>11.2}");
    }
    println!(
        "\n{:<46}{:>12}{:>13}{:>11}{:>11}",
        "ratio to redis, repetition by repetition", "median", "", "least", "most"
    );
    for case in &cases {
        let Some(rival) = case.rival else { continue };
        let pairs = case.samples.iter().zip(&cases[rival].samples);
        let mut ratios: Vec<f64> = pairs.map(|(ours, theirs)| rate(ours) / rate(theirs)).collect();
        if ratios.is_empty() {
            continue;
        }
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        println!("{:<46}{:>12.2}{:>13}{least:>11.2}{most:>11.2}", case.name, median(ratios), "");
    }
}
