//! Counts words. Inserts the words that are new, and increments the counters of the others.
//!
//! `cargo run --release -p remora --example upsert`

use remora::{Cluster, TableOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    let counts = cluster.create_table::<[u8; 8], u64>("counts", TableOptions::for_rows(100))?;
    cluster.worker(Default::default())?.block_on(async |session| {
        for word in [b"remote  ", b"memory  ", b"remote  "] {
            let count = session.transact(async |tx| {
                let before = counts.get(tx, *word).await?.unwrap_or(0);
                counts.put(tx, *word, before + 1).await
            });
            println!("{}: seen {:?} before", word.escape_ascii(), count.await?);
        }
        Ok::<(), remora::Error>(())
    })?;
    Ok(())
}
