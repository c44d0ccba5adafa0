//! Reads a range of keys, in order.
//!
//! `cargo run --release -p remora --example scan`

use remora::{Cluster, OrderedOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    // The orders by customer, and then by number.
    let orders = cluster.create_ordered::<(u32, u32), u64>("orders", OrderedOptions::for_rows(1000))?;
    let of_seven = cluster.worker(Default::default())?.block_on(async |session| {
        let run = session.transact(async |tx| {
            for (customer, number, price) in [(7, 1, 30), (8, 1, 5), (7, 2, 12)] {
                orders.insert(tx, (customer, number), price).await?;
            }
            orders.scan(tx, (7, 0)..(8, 0), 100).await
        });
        run.await
    })?;
    println!("customer 7 has ordered {of_seven:?}");
    Ok(())
}
