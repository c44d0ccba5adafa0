//! Measures how long a lock is held after its transaction has committed, over TCP, and how fast a
//! single client updates one record.
//!
//! ```sh
//! cargo run --release -p remora --example hold_time
//! ```
//!
//! There are three memory nodes with three copies, each with a server in this process. For each
//! protocol it measures:
//!
//! - *busy*: client A updates a record, and its thread then computes until client B has updated the
//!   record, too. B waits for nothing else. So B's wait, with its own round trips, is how long
//!   other clients wait for A's locks.
//! - *idle*: the same while A's coroutine sleeps, so that its worker runs.
//! - *one record, nine*: updates a second of one coroutine, on one record again and again, and on
//!   nine records in turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remora::protocol::Protocol;
use remora::{Cluster, Error, Intent, Session, Table, TableOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "counter")]
#[repr(C)]
struct Counter(u64);

const TURNS: u64 = 400;
const UPDATES: u64 = 2_000;

async fn update(session: &mut Session, rows: &Table<u64, Counter>, key: u64) -> Result<(), Error> {
    session
        .transact(async |tx| {
            let slot = tx.want_for(rows, key, Intent::Update);
            tx.fetch().await?;
            slot.get_mut(tx)?.0 += 1;
            Ok(())
        })
        .await
}

/// Returns how long B waits, in each turn.
fn waits(cluster: &Cluster, rows: &Table<u64, Counter>, is_busy: bool) -> Result<Vec<Duration>, Error> {
    // The number of turns that A has begun, and of turns that B has ended.
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (begun, ended) = (&begun, &ended);
        let a = scope.spawn(move || {
            let mut worker = cluster.worker(Default::default()).expect("a worker");
            worker.block_on(async |session| {
                for turn in 1..=TURNS {
                    update(session, rows, 0).await?;
                    begun.store(turn, Ordering::Release);
                    while ended.load(Ordering::Acquire) < turn {
                        if is_busy { std::thread::yield_now() } else { session.lane().sleep(20_000).await }
                    }
                }
                Ok::<_, Error>(())
            })
        });
        let mut worker = cluster.worker(Default::default()).expect("a worker");
        let waits = worker.block_on(async |session| {
            let mut waits = Vec::new();
            // After this, the client knows where the record is.
            session.transact(async |tx| rows.get(tx, 0).await).await?;
            for turn in 1..=TURNS {
                while begun.load(Ordering::Acquire) < turn {
                    std::thread::yield_now();
                }
                let began = Instant::now();
                update(session, rows, 0).await?;
                waits.push(began.elapsed());
                ended.store(turn, Ordering::Release);
            }
            Ok::<_, Error>(waits)
        });
        a.join().expect("A has not panicked")?;
        waits
    })
}

/// Returns the updates a second, of `records` records in turn.
fn rate(cluster: &Cluster, rows: &Table<u64, Counter>, records: u64) -> Result<f64, Error> {
    let mut worker = cluster.worker(Default::default()).expect("a worker");
    worker.block_on(async |session| {
        for key in 0..records {
            update(session, rows, key).await?;
        }
        let began = Instant::now();
        for turn in 0..UPDATES {
            update(session, rows, turn % records).await?;
        }
        Ok(UPDATES as f64 / began.elapsed().as_secs_f64())
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:<12} {:>21} {:>21} {:>26}", "", "busy: p50, p99 (us)", "idle: p50, p99 (us)", "one record, nine (/s)");
    let protocols = Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable());
    for protocol in protocols {
        let options = Cluster::embedded().node_bytes(32 << 20).protocol(protocol);
        // The leases are so long that a client which computes is not taken for dead.
        let cluster = options.open_servers(None)?.with_lease(Some(Duration::from_secs(100)));
        let rows = cluster.create_table::<u64, Counter>("rows", TableOptions::for_rows(9))?;
        cluster.load(&rows, (0..9).map(|key| (key, Counter(0))))?;
        let percentiles = |is_busy| {
            let mut waits = waits(&cluster, &rows, is_busy)?;
            waits.sort();
            let at = |share: usize| waits[(waits.len() - 1) * share / 100].as_micros();
            Ok::<_, Error>(format!("{:>8} {:>8}", at(50), at(99)))
        };
        let (busy, idle) = (percentiles(true)?, percentiles(false)?);
        // The measurements are interleaved, and the medians are printed.
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            rates[0].push(rate(&cluster, &rows, 1)?);
            rates[1].push(rate(&cluster, &rows, 9)?);
        }
        let [one, nine] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let name = protocol.name();
        println!("{name:<12} {busy:>21} {idle:>21} {one:>9.0} {nine:>8.0} ({:.2})", one / nine);
    }
    Ok(())
}
