//! Clients that all update the same few records. Measures how many updates they commit together,
//! how long an update takes, and how evenly clients get their turns, as clients are added.
//!
//! ```sh
//! cargo run --release -p remora-cli --example hot_records -- 4 ford,drtm-r 1,2,4,8,16 1,2,8 8
//! ```
//!
//! The arguments are seconds, protocols, numbers of clients, numbers of records, the number of
//! coroutines of a client, what the transactions do ([`Mix`], `counter` by default), and where
//! (`tcp,threads` by default). With `tcp`, clients and memory nodes are processes, and a client has
//! one thread. With `threads`, clients are threads of one process, on memory of their own. There
//! are three memory nodes and three copies.
#![forbid(unsafe_code)]

mod mixes;
#[path = "../support/processes.rs"]
mod processes;

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use mixes::{Mix, PATIENCE, Tables};
use processes::{AS_MEMORY_NODE, MemoryNodeProcess, Process};
use remora::connect::Nodes;
use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{Cluster, Error, WorkerOptions};
use remora_workload::Prng;

/// The hidden argument that makes this program a client.
const AS_CLIENT: &str = "--client";
const MEMORY_NODES: usize = 3;

/// What one client has done.
#[derive(Clone, Default)]
struct Done {
    aborted: u64,
    given_up: u64,
    /// How long each update took, in microseconds.
    took: Vec<u64>,
}

impl Done {
    fn add(&mut self, other: Done) {
        self.aborted += other.aborted;
        self.given_up += other.given_up;
        self.took.extend(other.took);
    }

    /// As a line that [`Done::parse`] understands.
    fn line(&self) -> String {
        let took: Vec<String> = self.took.iter().map(u64::to_string).collect();
        format!("{} {} {}", self.aborted, self.given_up, took.join(" "))
    }

    fn parse(line: &str) -> Done {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("what a client has done");
        let (aborted, given_up) = (next(), next());
        Done { aborted, given_up, took: numbers.collect() }
    }
}

/// Counts attempts that abort.
struct Aborts(Rc<RefCell<Done>>);

impl Observer for Aborts {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if matches!(event.outcome, Outcome::Aborted(_)) {
            self.0.borrow_mut().aborted += 1;
        }
    }
}

/// Updates records until the time is over. `ready` is called when everything is connected and
/// known, and returns when it is time to begin.
fn run(cluster: &Cluster, number: u64, load: Load, ready: impl FnOnce()) -> Done {
    let tables = Tables::open(cluster);
    let options = WorkerOptions::default().coroutines(load.coroutines).seed(number);
    let mut worker = cluster.worker(options).expect("a worker");
    let done = Rc::new(RefCell::new(Done::default()));
    for session in worker.sessions() {
        session.observe(Some(Box::new(Aborts(done.clone()))));
    }
    worker.block_on(async |session| tables.look_up(session, load.mix, load.records).await);
    ready();
    let began = Instant::now();
    worker.run(async |coroutine, session| {
        let mut random = Prng::derive(number, coroutine as u64);
        while began.elapsed() < load.time {
            let started = Instant::now();
            let updated = tables.run(session, load.mix, load.records, &mut random).await;
            let mut done = done.borrow_mut();
            match updated {
                Ok(()) => done.took.push(started.elapsed().as_micros() as u64),
                Err(Error::Aborted(_)) => done.given_up += 1,
                Err(error) => panic!("{error}"),
            }
        }
    });
    drop(worker);
    done.take()
}

/// What each client does.
#[derive(Clone, Copy)]
struct Load {
    time: Duration,
    records: u64,
    coroutines: usize,
    mix: Mix,
}

/// Asserts that no update was lost.
fn check(cluster: &Cluster, load: Load, done: &[Done]) {
    let committed: usize = done.iter().map(|one| one.took.len()).sum();
    Tables::open(cluster).check(cluster, load.mix, committed as u64);
}

fn connect(addresses: &str, protocol: Protocol) -> Cluster {
    let nodes = Nodes::Tcp(addresses.split(',').map(str::to_owned).collect());
    let options = Cluster::connect(nodes).replicas(MEMORY_NODES as u8).protocol(protocol);
    options.patience(PATIENCE).open().expect("memory nodes that were just started")
}

fn over_tcp(protocol: Protocol, clients: u64, load: Load) -> Vec<Done> {
    let nodes: Vec<_> = (0..MEMORY_NODES).map(|_| MemoryNodeProcess::start()).collect();
    let addresses = nodes.iter().map(|node| node.address.as_str()).collect::<Vec<_>>().join(",");
    let cluster = connect(&addresses, protocol);
    Tables::create(&cluster, load.mix, load.records);
    let program = std::env::current_exe().expect("the path of this program");
    let mut started: Vec<_> = (0..clients)
        .map(|number| {
            let mut command = Command::new(&program);
            command.args([AS_CLIENT, &addresses, protocol.name(), load.mix.name()]);
            command.args(
                [number, load.time.as_millis() as u64, load.records, load.coroutines as u64].map(|n| n.to_string()),
            );
            let mut process = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a client"));
            let output = BufReader::new(process.0.stdout.take().expect("its output is piped"));
            (process, output)
        })
        .collect();
    let read = |output: &mut dyn BufRead| {
        let mut line = String::new();
        output.read_line(&mut line).expect("a client's line");
        line
    };
    for (_, output) in &mut started {
        assert_eq!(read(output).trim(), "ready");
    }
    for (process, _) in &mut started {
        process.0.stdin.as_mut().expect("its input is piped").write_all(b"go\n").expect("a client that waits");
    }
    let done: Vec<_> = started.iter_mut().map(|(_, output)| Done::parse(&read(output))).collect();
    drop(started);
    check(&cluster, load, &done);
    done
}

fn be_client(arguments: &[String]) {
    let [addresses, protocol, mix, numbers @ ..] = arguments else { panic!("a client's arguments") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().expect("a number")).collect();
    let &[number, time, records, coroutines] = &numbers[..] else { panic!("a client's numbers") };
    let cluster = connect(addresses, Protocol::named(protocol).expect("a protocol"));
    let load = Load {
        time: Duration::from_millis(time),
        records,
        coroutines: coroutines as usize,
        mix: Mix::named(mix).expect("a mix"),
    };
    let done = run(&cluster, number + 1, load, || {
        println!("ready");
        std::io::stdin().lock().read_line(&mut String::new()).expect("the word to begin");
    });
    println!("{}", done.line());
}

fn in_threads(protocol: Protocol, clients: u64, load: Load) -> Vec<Done> {
    let options = Cluster::embedded().nodes(MEMORY_NODES as u16).replicas(MEMORY_NODES as u8).protocol(protocol);
    let cluster = options.node_bytes(256 << 20).open().expect("memory");
    Tables::create(&cluster, load.mix, load.records);
    let barrier = Barrier::new(clients as usize);
    let done: Vec<_> = thread::scope(|scope| {
        let run = |number| {
            let (cluster, barrier) = (&cluster, &barrier);
            let ready = || {
                barrier.wait();
            };
            scope.spawn(move || run(cluster, number + 1, load, ready))
        };
        let threads: Vec<_> = (0..clients).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
    });
    check(&cluster, load, &done);
    done
}

fn print(name: &str, (clients, load): (u64, Load), done: &[Done]) -> f64 {
    let seconds = load.time.as_secs_f64();
    let each: Vec<_> = done.iter().map(|one| one.took.len() as f64).collect();
    let committed: f64 = each.iter().sum();
    let (least, most) = each.iter().fold((f64::MAX, 0.0_f64), |(least, most), one| (least.min(*one), most.max(*one)));
    let fair = committed / clients as f64;
    let mut all = Done::default();
    done.iter().for_each(|one| all.add(one.clone()));
    all.took.sort_unstable();
    let at = |share: f64| all.took.get((all.took.len() as f64 * share) as usize).map_or(0.0, |us| *us as f64 / 1000.0);
    let longest = all.took.last().map_or(0.0, |us| *us as f64 / 1000.0);
    let aborted = all.aborted as f64 / (all.aborted as f64 + committed).max(1.0) * 100.0;
    println!(
        "{name:<24} {:>7} {clients:>7} {:>10.0} {:>8.2} {:>9.2} {longest:>9.1} {aborted:>8.1} {:>8} {:>7.2} {:>7.2}",
        load.records,
        committed / seconds,
        at(0.5),
        at(0.99),
        all.given_up,
        least / fair.max(1.0),
        most / fair.max(1.0),
    );
    committed / seconds
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(AS_MEMORY_NODE) => return processes::be_memory_node(),
        Some(AS_CLIENT) => return be_client(&arguments[1..]),
        _ => {}
    }
    let argument = |index: usize, default: &str| arguments.get(index).map_or(default.to_owned(), String::clone);
    let numbers = |list: &str| -> Vec<u64> { list.split(',').map(|one| one.parse().expect("a number")).collect() };
    let time = Duration::from_secs_f64(argument(0, "4").parse().expect("seconds"));
    let protocols = argument(1, "ford,drtm-r,fasst,farm");
    let (clients, records) = (numbers(&argument(2, "1,2,4,8,16")), numbers(&argument(3, "1,2,8")));
    let coroutines = argument(4, "8").parse().expect("the number of coroutines");
    let mixes: Vec<_> = argument(5, "counter").split(',').map(|name| Mix::named(name).expect("a mix")).collect();
    let places = argument(6, "tcp,threads");
    println!(
        "{:<24} {:>7} {:>7} {:>10} {:>8} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7}",
        "", "records", "clients", "a second", "p50 ms", "p99 ms", "max ms", "abort %", "given up", "slowest", "fastest"
    );
    type Measure = fn(Protocol, u64, Load) -> Vec<Done>;
    let measures = [("tcp", over_tcp as Measure), ("threads", in_threads as Measure)];
    for (how, measure) in measures.into_iter().filter(|(how, _)| places.split(',').any(|place| place == *how)) {
        for (protocol, mix) in protocols.split(',').flat_map(|protocol| mixes.iter().map(move |mix| (protocol, *mix))) {
            let protocol = Protocol::named(protocol).expect("a protocol");
            for records in &records {
                let load = Load { time, records: *records, coroutines, mix };
                let rates: Vec<_> = clients
                    .iter()
                    .map(|clients| {
                        let name = format!("{} {} ({how})", protocol.name(), mix.name());
                        print(&name, (*clients, load), &measure(protocol, *clients, load))
                    })
                    .collect();
                let best = rates.iter().copied().fold(0.0, f64::max);
                let worst = rates.iter().copied().fold(f64::MAX, f64::min);
                println!("{:<24} worst over best: {:.2}", "", worst / best);
            }
        }
    }
}
