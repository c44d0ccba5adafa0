//! Measures how fast the simulator is: SmallBank on clusters of 2 to 64 machines, in verbs and
//! events per second of real time.
//!
//! `cargo run --release -p remora-lab --example speed [NODES...]`

use std::time::Duration;

use remora_fabric::sim::{Profile, SimOptions};
use remora_lab::Bench;
use remora_workload::smallbank::{Customers, SmallBank};

fn main() {
    let nodes: Vec<u16> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let nodes = if nodes.is_empty() { vec![2, 4, 16, 64] } else { nodes };
    println!(
        "{:>6} {:>8} {:>12} {:>12} {:>10} {:>12} {:>12}",
        "nodes", "workers", "verbs/s", "events/s", "ns/event", "tx/s (sim)", "load s"
    );
    for nodes in nodes {
        let profile = Profile::named("connectx4").expect("it comes with the simulator");
        let threads = std::env::var("THREADS")
            .map_or((128 / usize::from(nodes)).clamp(1, 24), |value| value.parse().expect("a number"));
        let bench = Bench {
            threads,
            replicas: nodes.min(3) as u8,
            warmup: Duration::from_millis(1),
            measure: Duration::from_millis(if nodes > 8 { 5 } else { 20 }),
            ..Bench::symmetric(SimOptions::new(profile, 1), nodes)
        };
        let accounts = 10_000 * nodes as u64;
        let (sim, cluster, bank, loading) =
            bench.load(|cluster| SmallBank::load(cluster, Customers::new(accounts, 0.04, 0.9))).expect("a cluster");
        let done = bench.run(&sim, &cluster, &bank, &|| None).expect("a run");
        let seconds = done.simulated_in.as_secs_f64();
        let statistics = done.statistics;
        let committed = done.measured.statistics.types.iter().map(|one| one.committed).sum::<u64>();
        println!(
            "{:>6} {:>8} {:>12.0} {:>12.0} {:>10.0} {:>12.0} {:>12.2}   {:?} {:?} {:?} {:?}",
            nodes,
            threads * usize::from(nodes),
            statistics.verbs as f64 / seconds,
            statistics.events as f64 / seconds,
            seconds * 1e9 / statistics.events as f64,
            committed as f64 / done.measured.elapsed.as_secs_f64(),
            loading.as_secs_f64(),
            done.ended,
            (committed, statistics),
            &done.measured.statistics.aborted,
            done.measured.invariants.iter().map(|invariant| invariant.holds).collect::<Vec<_>>(),
        );
    }
}
