//! A queue on an ordered table: one thread appends jobs at its end, two take jobs from its front,
//! and each job is taken once.
//!
//! `cargo run --release -p remora --example queue`

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use remora::{Cluster, Error, Ordered, OrderedOptions, Session};

const JOBS: u64 = 1_000;

/// Jobs by their number, in the order in which they came.
type Queue = Ordered<u64, u64>;

/// Appends a job. A scan and an insert of one transaction: no other job gets the same number.
async fn append(session: &mut Session, queue: &Queue, job: u64) -> Result<(), Error> {
    session
        .transact(async |tx| {
            let last = queue.last(tx, ..).await?;
            queue.insert(tx, last.map_or(0, |(number, _)| number + 1), job).await
        })
        .await
}

/// Takes the oldest job, if there is one.
async fn take(session: &mut Session, queue: &Queue) -> Result<Option<u64>, Error> {
    session
        .transact(async |tx| match queue.first(tx, ..).await? {
            Some((number, _)) => queue.remove(tx, number).await,
            None => Ok(None),
        })
        .await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let queue: Queue = cluster.create_ordered("jobs", OrderedOptions::for_rows(100))?;
    let (taken, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut worker = cluster.worker(Default::default())?;
            worker.block_on(async |session| {
                for job in 1..=JOBS {
                    append(session, &queue, job).await?;
                }
                Ok::<_, Error>(())
            })
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut worker = cluster.worker(Default::default())?;
                worker.block_on(async |session| {
                    while taken.load(Ordering::Relaxed) < JOBS {
                        match take(session, &queue).await? {
                            Some(job) => {
                                taken.fetch_add(1, Ordering::Relaxed);
                                sum.fetch_add(job, Ordering::Relaxed);
                            }
                            // The queue is empty: let others work for 50 microseconds.
                            None => session.lane().sleep(50_000).await,
                        }
                    }
                    Ok::<_, Error>(())
                })
            });
        }
    });
    println!("{} jobs were taken", taken.load(Ordering::Relaxed));
    assert_eq!((taken.into_inner(), sum.into_inner()), (JOBS, JOBS * (JOBS + 1) / 2));
    Ok(())
}
