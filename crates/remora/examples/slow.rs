//! An observer that prints slow transactions: how long they took, how often they were tried, and
//! which records they used.
//!
//! `cargo run --release -p remora --example slow`

use remora::observe::{Nanos, Observer, Outcome, TransactionEvent};
use remora::{Cluster, Error, Session, Table, TableOptions, WorkerOptions};

/// Prints transactions that took longer than this.
struct Slow {
    threshold: Nanos,
}

impl Observer for Slow {
    /// The session calls this for each attempt, on the worker's thread. So it must be quick.
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let took = event.ended - event.began;
        if event.outcome != Outcome::Committed || took < self.threshold {
            return;
        }
        println!(
            "transaction {:?} took {} us: attempt {}, {} round trips",
            event.id,
            took / 1000,
            event.attempt,
            event.cost.round_trips,
        );
        for access in event.accesses() {
            let kind = if access.written.is_some() { "wrote" } else { "read" };
            println!("  {kind} {} {:02x?}", access.table.name(), access.key);
        }
    }
}

async fn transfer(session: &mut Session, accounts: &Table<u64, i64>, pause: Nanos) -> Result<(), Error> {
    session
        .transact(async |tx| {
            let [mut from, mut to] = accounts.get_many_mut(tx, [1, 2]).await?;
            (*from, *to) = (*from - 1, *to + 1);
            drop((from, to));
            if pause > 0 {
                tx.lane().sleep(pause).await; // something slow, in the middle of a transaction
            }
            Ok(())
        })
        .await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let accounts = cluster.create_table::<u64, i64>("accounts", TableOptions::for_rows(100))?;
    cluster.load(&accounts, (0..100).map(|id| (id, 100)))?;
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1))?;
    worker.block_on(async |session| {
        session.observe(Some(Box::new(Slow { threshold: 1_000_000 })));
        for turn in 0..1000 {
            transfer(session, &accounts, if turn == 500 { 3_000_000 } else { 0 }).await?;
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
