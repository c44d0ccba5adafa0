//! SmallBank under each protocol and number of copies, as medians and ratios. The speed of machines
//! drifts, so the measurements are interleaved in one run, and only these are compared.
//!
//! ```sh
//! cargo run --release -p remora-cli --example compare -- [rounds] [seconds] [threads]
//! ```

use std::fs::File;
use std::time::Duration;

use remora::Cluster;
use remora::observe::Observer;
use remora::protocol::Protocol;
use remora_check::HistoryFile;
use remora_workload::Setting;
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::smallbank::{Customers, SmallBank};

/// The cases that are compared: a name, the protocol, the number of copies of each record, and
/// whether the history is recorded.
const CASES: [(&str, Protocol, u8, bool); 9] = [
    ("unsynchronized, 1 copy", Protocol::UNSYNCHRONIZED, 1, false),
    ("unsynchronized, 3 copies", Protocol::UNSYNCHRONIZED, 3, false),
    ("drtm-r, 1 copy", Protocol::DRTM_R, 1, false),
    ("drtm-r, 3 copies", Protocol::DRTM_R, 3, false),
    ("drtm-r, 3 copies, --history", Protocol::DRTM_R, 3, true),
    ("ford, 1 copy", Protocol::FORD, 1, false),
    ("ford, 3 copies", Protocol::FORD, 3, false),
    ("no-wait-2pl, 1 copy", Protocol::NO_WAIT, 1, false),
    ("no-wait-2pl, 3 copies", Protocol::NO_WAIT, 3, false),
];

/// Committed transactions per second, and per CPU second with the appliers counted.
#[derive(Clone, Copy)]
struct Rates {
    wall: f64,
    cpu: f64,
}

fn run(protocol: Protocol, replicas: u8, recorded: bool, seconds: f64, threads: usize) -> Rates {
    let accounts = Customers::ACCOUNTS_PER_THREAD * threads as u64;
    let setting = Setting { memory_nodes: 3, replicas, workers: threads as u64, coroutines: 8, archive: None };
    let node_bytes = SmallBank::node_bytes(accounts, &setting) as usize;
    let options = Cluster::embedded().replicas(replicas).protocol(protocol).node_bytes(node_bytes);
    let cluster = options.open().expect("memory for three nodes");
    let bank = SmallBank::load(&cluster, Customers::standard(accounts)).expect("room for the accounts");
    let length = Length::Time(Duration::from_secs_f64(seconds));
    let options =
        RunOptions { threads, coroutines: 8, length, seed: 1, yield_after_rounds: false, rate: None, archive: None };
    let path = std::env::temp_dir().join(format!("remora-compare-{}.jsonl", std::process::id()));
    let history = recorded.then(|| HistoryFile::new(File::create(&path).expect("a file for the history")));
    let observer = || history.as_ref().map(|file| Box::new(file.recorder()) as Box<dyn Observer>);
    let measured = driver::run(&cluster, &bank, &options, &observer, |_| ()).expect("a run without failures");
    if let Some(history) = history {
        history.finish().expect("a whole history");
        std::fs::remove_file(&path).expect("the history that was just written");
    }
    let committed = measured.statistics.committed() as f64;
    Rates {
        wall: committed / measured.elapsed.as_secs_f64(),
        cpu: committed / (measured.cpu.workers + measured.cpu.appliers),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: f64| arguments.next().and_then(|word| word.parse().ok()).unwrap_or(default);
    let (rounds, seconds, threads) = (number(7.0) as usize, number(2.0), number(1.0) as usize);
    let mut rates: Vec<Vec<Rates>> = vec![Vec::new(); CASES.len()];
    for _ in 0..rounds.max(1) {
        for (case, rates) in CASES.iter().zip(&mut rates) {
            rates.push(run(case.1, case.2, case.3, seconds, threads));
        }
    }
    println!("SmallBank, 3 memory nodes, {threads} threads x 8 coroutines: medians of {rounds} rounds of {seconds} s");
    println!("{:<30} {:>12} {:>16}", "", "per second", "per CPU second");
    for (case, rates) in CASES.iter().zip(&rates) {
        let wall = median(rates.iter().map(|rates| rates.wall).collect());
        let cpu = median(rates.iter().map(|rates| rates.cpu).collect());
        println!("{:<30} {wall:>12.0} {cpu:>16.0}", case.0);
    }
    println!("\n{:<56} {:>12} {:>16}", "ratio, pair by pair", "per second", "per CPU second");
    for (numerator, denominator) in [(2, 0), (3, 2), (3, 1), (4, 3), (5, 2), (6, 3), (7, 2), (8, 3)] {
        let pairs = || rates[numerator].iter().zip(&rates[denominator]);
        let wall = median(pairs().map(|(a, b)| a.wall / b.wall).collect());
        let cpu = median(pairs().map(|(a, b)| a.cpu / b.cpu).collect());
        println!("{:<27}/ {:<27} {wall:>12.2} {cpu:>16.2}", CASES[numerator].0, CASES[denominator].0);
    }
}
