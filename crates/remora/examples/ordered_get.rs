//! Measures a lookup in an ordered table on shared memory, compared with a skip list and a B-tree
//! of this process.
//!
//! `cargo run --release -p remora --example ordered_get -- 10000000`
//!
//! There is one thread. Keys and values have 8 bytes, and keys are drawn evenly. The table's memory
//! nodes are in this process, and the client remembers where leaves are. The measurements take
//! turns, and medians are printed.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::RwLock;
use std::time::Instant;

use crossbeam_skiplist::SkipMap;
use remora::{Cluster, Error, Intent, OrderedOptions, WorkerOptions};
use remora_fabric::Prng;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "number")]
#[repr(transparent)]
struct Number(u64);

const ROUNDS: usize = 7;
const GETS: u64 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |argument| argument.parse())?;
    // Half of the keys that are drawn are present.
    let numbers = || (0..keys).map(|number| (2 * number, number));
    let node_bytes = 64 * keys as usize + (64 << 20);
    let cluster = Cluster::embedded().nodes(1).replicas(1).node_bytes(node_bytes).open()?;
    let rows = numbers().map(|(key, number)| (key, Number(number)));
    let ordered = cluster.load_ordered("ordered", OrderedOptions::for_rows(keys), rows)?;
    let skip_list: SkipMap<u64, u64> = numbers().collect();
    let tree: RwLock<BTreeMap<u64, u64>> = RwLock::new(numbers().collect());
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1))?;
    worker.block_on(async |session| {
        let mut from = 0;
        while from < 2 * keys {
            let to = from + 100_000;
            session.transact(async |tx| ordered.scan(tx, from..to, usize::MAX).await).await?;
            from = to;
        }
        Ok::<_, Error>(())
    })?;

    let mut random = Prng::new(1);
    let mut measured: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let drawn: Vec<u64> = (0..GETS).map(|_| random.below(2 * keys)).collect();
        let mut time = |row: usize, began: Instant| measured[row].push(began.elapsed().as_nanos() as f64 / GETS as f64);
        let began = Instant::now();
        for key in &drawn {
            black_box(skip_list.get(key).map(|entry| *entry.value()));
        }
        time(0, began);
        let began = Instant::now();
        for key in &drawn {
            black_box(tree.read().map_or(None, |tree| tree.get(key).copied()));
        }
        time(1, began);
        let began = Instant::now();
        worker.block_on(async |session| {
            for key in &drawn {
                black_box(session.transact(async |tx| ordered.get(tx, *key).await).await?);
            }
            Ok::<_, Error>(())
        })?;
        time(2, began);
        let began = Instant::now();
        worker.block_on(async |session| {
            for some in drawn.chunks(16) {
                let read = session.transact(async |tx| {
                    some.iter().for_each(|key| ordered.prefetch(tx, *key, Intent::Read));
                    tx.fetch().await?;
                    for key in some {
                        black_box(ordered.get(tx, *key).await?);
                    }
                    Ok(())
                });
                read.await?;
            }
            Ok::<_, Error>(())
        })?;
        time(3, began);
    }
    let medians = measured.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("{keys} keys, {GETS} lookups a round, {ROUNDS} rounds, medians:");
    let names = [
        "crossbeam-skiplist",
        "BTreeMap in an RwLock",
        "Ordered::get, a transaction each",
        "Ordered::get, 16 to a transaction",
    ];
    for (name, median) in names.into_iter().zip(medians) {
        println!("{name:<36} {median:>8.0} ns  {:>5.2} of the skip list's", median / medians[0]);
    }
    Ok(())
}
