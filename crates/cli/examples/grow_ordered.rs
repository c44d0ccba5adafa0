//! Scans run on an ordered table made for 1,000 rows, while rows are inserted until there are
//! 1,000,000. Measures the longest time in which no scan ends, while the table grows.
//!
//! `cargo run --release -p remora-cli --example grow_ordered [ROWS] [PROTOCOL]`

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::protocol::Protocol;
use remora::{Cluster, Error, Ordered, OrderedOptions, WorkerOptions};
use remora_workload::Prng;

const FIRST: u64 = 1_000;
/// Coroutines of the thread that inserts rows.
const INSERTERS: usize = 4;
/// Number of rows that a scan asks for.
const SCANNED: usize = 20;

/// Returns the key of the row with this number. It is far from the keys of the neighbouring
/// numbers.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rows = arguments.next().map_or(Ok(1_000_000), |rows| rows.parse::<u64>())?;
    let protocol = match arguments.next() {
        Some(name) => Protocol::ALL.into_iter().find(|one| one.name() == name).ok_or("no such protocol")?,
        None => Protocol::default(),
    };
    let cluster = Cluster::embedded().node_bytes(2 << 30).protocol(protocol).open()?;
    let mut first: Vec<_> = (0..FIRST).map(|number| (key(number), number)).collect();
    first.sort_unstable();
    let table = cluster.load_ordered::<u64, u64>("rows", OrderedOptions::for_rows(FIRST), first)?;

    let inserted = AtomicU64::new(FIRST);
    let (alone, _) = scan(&cluster, &table, &|began| began.elapsed() > Duration::from_secs(2))?;
    let began = Instant::now();
    let (outcome, seen) = thread::scope(|scope| {
        let inserter = scope.spawn(|| insert(&cluster, &table, rows, &inserted));
        let seen = scan(&cluster, &table, &|_| inserter.is_finished());
        (inserter.join().expect("a thread that does not panic"), seen)
    });
    outcome?;
    let (during, longest) = seen?;
    let seconds = began.elapsed().as_secs_f64();
    let (after, _) = scan(&cluster, &table, &|began| began.elapsed() > Duration::from_secs(2))?;
    let (_, tree) = cluster.inspect_ordered(&table, |_, _| ())?;
    println!("{tree:?}");
    assert_eq!((tree.rows, tree.fault), (rows, None));
    for part in cluster.list_tables()? {
        println!("{}: grown {} times", part.name, cluster.catalog().table(&part.name)?.1.growths);
    }
    println!("{protocol:?}: {rows} rows inserted in {seconds:.1} s, {:.0}/s", rows as f64 / seconds);
    println!(
        "scans of {SCANNED} rows a second: {:.0} alone, {:.0} meanwhile, {:.0} after it; longest stop {longest:?}",
        alone as f64 / 2.0,
        during as f64 / seconds,
        after as f64 / 2.0
    );
    Ok(())
}

/// Scans from keys drawn at random until it is over. Returns the number of scans, and the longest
/// time in which none ended.
fn scan(
    cluster: &Cluster,
    table: &Ordered<u64, u64>,
    is_over: &dyn Fn(Instant) -> bool,
) -> Result<(u64, Duration), Error> {
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1).seed(7))?;
    worker.block_on(async |session| {
        let (mut random, mut scans, mut longest, began) = (Prng::derive(1, 0), 0, Duration::ZERO, Instant::now());
        let mut last = began;
        while !is_over(began) {
            let from = random.below(u64::MAX / 2);
            let found = session.transact(async |tx| table.scan(tx, from.., SCANNED).await).await?;
            assert_eq!(found.len(), SCANNED);
            longest = longest.max(last.elapsed());
            (last, scans) = (Instant::now(), scans + 1);
        }
        Ok((scans, longest))
    })
}

/// Inserts rows until there are `rows` of them.
fn insert(cluster: &Cluster, table: &Ordered<u64, u64>, rows: u64, inserted: &AtomicU64) -> Result<(), Error> {
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(INSERTERS))?;
    let ended = worker.run(async |_, session| {
        loop {
            let number = inserted.fetch_add(1, Ordering::Relaxed);
            if number >= rows {
                return Ok(());
            }
            session.transact(async |tx| table.insert(tx, key(number), number).await).await?;
        }
    });
    ended.into_iter().collect()
}
