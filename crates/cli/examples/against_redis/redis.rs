//! A Redis server, and two clients of it: `redis-benchmark`, and a client for transactions, which
//! `redis-benchmark` cannot measure.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use remora_workload::Prng;

use crate::processes::{Process, ended_cpu_seconds, own_cpu_seconds};
use crate::{IN_FLIGHT, KEYS, Sample, VALUE_BYTES};

/// A Redis server without persistence, on its own port.
pub(crate) struct Redis {
    process: Process,
    port: u16,
}

/// Number of requests of the first measurement, when their rate is not known yet.
const FIRST_REQUESTS: f64 = 300_000.0;

const START_TIME_MAX: Duration = Duration::from_secs(10);

impl Redis {
    pub(crate) fn start() -> Redis {
        // The port is free now, and most likely still free when the server binds it.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.current_dir(std::env::temp_dir()).stdout(Stdio::null());
        let process = Process(command.spawn().expect("redis-server: apt-get install redis-server redis-tools"));
        let redis = Redis { process, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < START_TIME_MAX, "redis-server does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        redis
    }

    /// Writes every key.
    pub(crate) fn load(&self) {
        let mut connection = self.connect();
        let keys: Vec<u64> = (0..KEYS).collect();
        for keys in keys.chunks(1000) {
            let mut requests = Vec::new();
            keys.iter().for_each(|key| put(&mut requests, &[b"SET", &name(*key), &[b'v'; VALUE_BYTES]]));
            connection.write_all(&requests).expect("redis-server takes requests");
            let mut replies = vec![0; keys.len() * OK.len()];
            connection.read_exact(&mut replies).expect("replies of redis-server");
            assert!(replies.chunks(OK.len()).all(|reply| reply == OK), "redis-server refuses to be loaded");
        }
    }

    fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(("127.0.0.1", self.port)).expect("redis-server listens");
        connection.set_nodelay(true).expect("an option of every socket");
        // A reply that is shorter than expected must not block this program without end.
        connection.set_read_timeout(Some(START_TIME_MAX)).expect("an option of every socket");
        connection
    }

    /// Measures gets by `redis-benchmark`, with [`IN_FLIGHT`] of them on each connection.
    pub(crate) fn gets(&self, connections: usize) -> impl FnMut(Duration) -> Sample + '_ {
        let arguments = ["-P", &IN_FLIGHT.to_string(), "-d", &VALUE_BYTES.to_string(), "-r", &KEYS.to_string()];
        self.benchmark("get", connections, arguments.map(str::to_owned).to_vec())
    }

    /// Measures increments of one key by `redis-benchmark`, with one of them on each connection.
    pub(crate) fn counts(&self, connections: usize) -> impl FnMut(Duration) -> Sample + '_ {
        self.benchmark("incr", connections, Vec::new())
    }

    /// Measures requests by `redis-benchmark`. It wants their number, which is the number that it
    /// did in the given time before.
    fn benchmark(
        &self,
        test: &'static str,
        connections: usize,
        arguments: Vec<String>,
    ) -> impl FnMut(Duration) -> Sample + '_ {
        let rate = Cell::new(None);
        move |time| {
            let seconds = time.as_secs_f64();
            let requests = rate.get().map_or(FIRST_REQUESTS, |rate: f64| rate * seconds).ceil();
            let mut command = Command::new("redis-benchmark");
            command.args(["-t", test, "--csv", "-p", &self.port.to_string(), "-c", &connections.to_string()]);
            command.args(["-n", &requests.to_string()]).args(&arguments);
            let before = (ended_cpu_seconds(), self.process.cpu_seconds());
            let output = command.output().expect("redis-benchmark: apt-get install redis-tools");
            let csv = String::from_utf8_lossy(&output.stdout);
            // "GET","543478.25",... behind the line of titles.
            let title = format!("\"{}\"", test.to_uppercase());
            let line = csv.lines().find(|line| line.starts_with(&title)).expect("a line of redis-benchmark");
            let per_second: f64 =
                line.split(',').nth(1).and_then(|field| field.trim_matches('"').parse().ok()).expect("a rate");
            rate.set(Some(per_second));
            Sample {
                operations: requests,
                seconds: requests / per_second,
                round_trips: None,
                client_cpu: ended_cpu_seconds() - before.0,
                server_cpu: self.process.cpu_seconds() - before.1,
            }
        }
    }

    /// Runs transactions on one connection, which are sent and answered `IN_FLIGHT` at a time, as
    /// by `redis-benchmark`. The values that they write do not depend on what they read. Redis
    /// would need a script for that, or another round trip and WATCH.
    pub(crate) fn transactions(&self, time: Duration) -> Sample {
        let mut connection = self.connect();
        let mut random = Prng::new(1);
        let reply_head = [OK, &QUEUED.repeat(4), b"*4\r\n$64\r\n"].concat();
        let reply_bytes = reply_head.len() + VALUE_BYTES + b"\r\n$64\r\n".len() + VALUE_BYTES + 2 + 2 * OK.len();
        let (mut requests, mut replies) = (Vec::new(), vec![0; IN_FLIGHT * reply_bytes]);
        let before = (own_cpu_seconds(), self.process.cpu_seconds());
        let (started, mut transactions) = (Instant::now(), 0);
        while started.elapsed() < time {
            requests.clear();
            for _ in 0..IN_FLIGHT {
                let (one, other) = (name(random.below(KEYS)), name(random.below(KEYS)));
                let value = [b'w'; VALUE_BYTES];
                put(&mut requests, &[b"MULTI"]);
                put(&mut requests, &[b"GET", &one]);
                put(&mut requests, &[b"GET", &other]);
                put(&mut requests, &[b"SET", &one, &value]);
                put(&mut requests, &[b"SET", &other, &value]);
                put(&mut requests, &[b"EXEC"]);
            }
            connection.write_all(&requests).expect("redis-server takes requests");
            connection.read_exact(&mut replies).expect("replies of redis-server");
            let right = replies.chunks(reply_bytes).all(|reply| reply.starts_with(&reply_head) && reply.ends_with(OK));
            assert!(right, "unexpected replies of redis-server");
            transactions += IN_FLIGHT;
        }
        Sample {
            operations: transactions as f64,
            seconds: started.elapsed().as_secs_f64(),
            round_trips: None,
            client_cpu: own_cpu_seconds() - before.0,
            server_cpu: self.process.cpu_seconds() - before.1,
        }
    }
}

const OK: &[u8] = b"+OK\r\n";
const QUEUED: &[u8] = b"+QUEUED\r\n";

/// The key of a number, as `redis-benchmark -r` has it.
fn name(key: u64) -> [u8; 16] {
    let mut name = *b"key:000000000000";
    let mut rest = key;
    for digit in name[4..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    name
}

/// Appends a request in Redis's protocol.
fn put(requests: &mut Vec<u8>, words: &[&[u8]]) {
    let length = |requests: &mut Vec<u8>, kind: u8, length: usize| {
        requests.push(kind);
        if length > 9 {
            requests.push(b'0' + (length / 10) as u8);
        }
        requests.extend([b'0' + (length % 10) as u8, b'\r', b'\n']);
    };
    length(requests, b'*', words.len());
    for word in words {
        length(requests, b'$', word.len());
        requests.extend_from_slice(word);
        requests.extend(b"\r\n");
    }
}
