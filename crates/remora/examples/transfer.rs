//! Moves money between two accounts.
//!
//! `cargo run --release -p remora --example transfer`

use remora::{Cluster, Error, TableOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let accounts = cluster.create_table::<u64, i64>("accounts", TableOptions::for_rows(100))?;
    cluster.load(&accounts, (0..100).map(|id| (id, 100)))?;
    let left = cluster.worker(Default::default())?.block_on(async |session| {
        let transfer = session.transact(async |tx| {
            let [mut from, mut to] = accounts.get_many_mut(tx, [1, 2]).await?;
            *from -= 10;
            *to += 10;
            Ok::<i64, Error>(*from)
        });
        transfer.await
    })?;
    println!("account 1 has {left}");
    Ok(())
}
