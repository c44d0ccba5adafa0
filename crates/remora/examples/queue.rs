//! A queue on an ordered table. One thread appends jobs at its end, two threads take jobs from its
//! front, and each job is taken once.
//!
//! `cargo run --release -p remora --example queue`

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use remora::{Cluster, Error, Ordered, OrderedOptions, Session};

const JOBS: u64 = 1_000;

/// The jobs by their numbers, in the order in which they were appended.
type Queue = Ordered<u64, u64>;

/// Appends a job. The scan and the insert are one transaction: no two jobs of the queue have one
/// number. (An empty queue begins again with number 0.)
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

/// Appends all jobs.
fn produce(cluster: &Cluster, queue: &Queue) -> Result<(), Error> {
    let mut worker = cluster.worker(Default::default())?;
    worker.block_on(async |session| {
        for job in 1..=JOBS {
            append(session, queue, job).await?;
        }
        Ok(())
    })
}

/// Takes jobs until no more come and the queue is empty. Returns their number and their sum.
fn consume(cluster: &Cluster, queue: &Queue, is_last: &AtomicBool) -> Result<(u64, u64), Error> {
    let mut worker = cluster.worker(Default::default())?;
    worker.block_on(async |session| {
        let (mut jobs, mut sum) = (0, 0);
        loop {
            let no_more = is_last.load(Ordering::Acquire);
            match take(session, queue).await? {
                Some(job) => (jobs, sum) = (jobs + 1, sum + job),
                None if no_more => return Ok((jobs, sum)),
                // Not `thread::sleep`: that would stop the worker's other coroutines.
                None => session.sleep(Duration::from_micros(50)).await,
            }
        }
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let queue: Queue = cluster.create_ordered("jobs", OrderedOptions::for_rows(100))?;
    let is_last = AtomicBool::new(false);
    // Threads share the cluster and its tables; each of them has a worker of its own.
    let (produced, consumed) = thread::scope(|scope| {
        let consumers = [0, 1].map(|_| scope.spawn(|| consume(&cluster, &queue, &is_last)));
        let produced = produce(&cluster, &queue);
        is_last.store(true, Ordering::Release); // also if it has failed
        (produced, consumers.map(|consumer| consumer.join().expect("a thread that does not panic")))
    });
    produced?;
    let [(one, one_sum), (two, two_sum)] = consumed.map(|consumed| consumed.expect("a consumer that does not fail"));
    println!("{one} and {two} jobs were taken");
    assert_eq!((one + two, one_sum + two_sum), (JOBS, JOBS * (JOBS + 1) / 2));
    Ok(())
}
