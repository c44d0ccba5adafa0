//! A bank that moves money between accounts: first on a worker of this thread, and then through a
//! pool. The transactions use slots. The example `transfer` is the one to begin with.
//!
//! `cargo run --release -p remora --example bank`

use remora::{Cluster, Error, Table, TableOptions, Transaction, WorkerOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A record is plain bytes of a fixed size, without pointers. The derives let the compiler check
/// that.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "account: balance i64")]
#[repr(C)]
struct Account {
    balance: i64,
}

const ACCOUNTS: u64 = 1_000;
const TRANSFERS: u64 = 10_000;

#[derive(Debug, thiserror::Error)]
#[error("account {0} has not enough money")]
struct NotEnough(u64);

/// A transaction is a function of a handle. It may run several times, so it must have no other
/// effects.
async fn transfer(
    tx: &mut Transaction<'_, '_>,
    accounts: &Table<u64, Account>,
    (from, to, amount): (u64, u64, i64),
) -> Result<(), Error> {
    // Name what you need, then fetch it: one round trip for everything.
    let (source, target) = (tx.want(accounts, from), tx.want(accounts, to));
    tx.fetch().await?;
    if source.require(tx)?.balance < amount {
        return Err(Error::user(NotEnough(from))); // nothing is written
    }
    source.get_mut(tx)?.balance -= amount;
    target.get_mut(tx)?.balance += amount;
    Ok(())
}

/// Returns a random transfer: the two accounts, and the amount.
fn order(random: u64) -> (u64, u64, i64) {
    (random % ACCOUNTS, (random >> 20) % ACCOUNTS, (random >> 40) as i64 % 200)
}

fn total(cluster: &Cluster, accounts: &Table<u64, Account>) -> Result<i64, Error> {
    let mut sum = 0;
    cluster.inspect(accounts, |account| sum += account.balance)?;
    Ok(sum)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The cluster has three memory nodes in this process, and every record is on all of them.
    let cluster = Cluster::embedded().open()?;
    let accounts = cluster.create_table::<u64, Account>("accounts", TableOptions::for_rows(ACCOUNTS))?;
    cluster.load(&accounts, (0..ACCOUNTS).map(|id| (id, Account { balance: 100 })))?;

    // The first way is a worker of this thread. Its coroutines take turns: while one waits for
    // memory, the others work.
    let mut worker = cluster.worker(WorkerOptions::default())?;
    let refused = worker.run(async |_, session| {
        let mut refused = 0;
        for _ in 0..TRANSFERS / 8 {
            let order = order(session.lane().random());
            match session.transact(async |tx| transfer(tx, &accounts, order).await).await {
                Ok(()) => {}
                Err(error) if error.downcast_user::<NotEnough>().is_some() => refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    });
    let refused = refused.into_iter().sum::<Result<u64, Error>>()?;
    drop(worker); // waits until the backups have everything
    println!("worker: {TRANSFERS} transfers, {refused} refused, {} in the bank", total(&cluster, &accounts)?);

    // The second way is a pool of workers, which any thread and any executor can use.
    let db = cluster.db(2, WorkerOptions::default())?;
    let tasks: Vec<_> = (0..TRANSFERS / 100)
        .map(|task| {
            let (db, accounts) = (db.clone(), accounts.clone());
            tokio::spawn(async move {
                for number in 0..100 {
                    let accounts = accounts.clone();
                    let order = order((task * 100 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    match db.transact(async move |tx| transfer(tx, &accounts, order).await).await {
                        Err(Error::User(_)) => {} // not enough money
                        other => other?,
                    }
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    drop(db);
    println!("pool: {TRANSFERS} transfers, {} in the bank", total(&cluster, &accounts)?);
    assert_eq!(total(&cluster, &accounts)?, 100 * ACCOUNTS as i64);
    Ok(())
}
