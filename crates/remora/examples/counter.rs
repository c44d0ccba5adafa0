//! Two threads with eight coroutines increment one counter. The library tries again the
//! transactions that have collided, and no increment is lost.
//!
//! `cargo run --release -p remora --example counter`

use std::cell::Cell;
use std::rc::Rc;
use std::thread;

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::{Cluster, Error, Table, TableOptions, WorkerOptions};

const THREADS: u64 = 2;
const COROUTINES: u64 = 4;
const INCREMENTS: u64 = 2_000;

/// Counts the attempts that aborted because another transaction was in the way.
struct Collisions(Rc<Cell<u64>>);

impl Observer for Collisions {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.0.set(self.0.get() + u64::from(matches!(event.outcome, Outcome::Aborted(_))));
    }
}

/// Increments the counter, and returns the number of attempts that collided.
fn increment(cluster: &Cluster, counters: &Table<u64, u64>) -> Result<u64, Error> {
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(COROUTINES as usize))?;
    let collisions = Rc::new(Cell::new(0));
    for session in worker.sessions() {
        session.observe(Some(Box::new(Collisions(collisions.clone()))));
    }
    let ended = worker.run(async |_, session| {
        for _ in 0..INCREMENTS {
            // The closure may run several times, so it changes nothing outside of the transaction.
            session
                .transact(async |tx| {
                    *counters.get_mut(tx, 1).await? += 1;
                    Ok(())
                })
                .await?;
        }
        Ok(())
    });
    ended.into_iter().collect::<Result<(), Error>>()?;
    Ok(collisions.get())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let counters = cluster.create_table("counters", TableOptions::for_rows(10))?;
    cluster.load(&counters, [(1, 0)])?;
    let collisions: Result<u64, Error> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| increment(&cluster, &counters))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that does not panic")).sum()
    });
    let mut worker = cluster.worker(WorkerOptions::default())?;
    let count = worker.block_on(async |session| session.transact(async |tx| counters.require(tx, 1).await).await)?;
    println!("{count} increments, {} collisions on the way", collisions?);
    assert_eq!(count, THREADS * COROUTINES * INCREMENTS);
    Ok(())
}
