//! A table whose shape is known only at run time: keys and values are bytes of different lengths.
//!
//! `cargo run --release -p remora --example run_time -- key value`

use remora::{Cluster, DynOptions, DynSchema, Lengths};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (key, value) = (arguments.next().unwrap_or("k".into()), arguments.next().unwrap_or("v".into()));
    let cluster = Cluster::embedded().open()?;
    let schema = DynSchema::new("text", Lengths::UpTo(100), Lengths::UpTo(4096));
    let texts = cluster.create_dyn_table("texts", &schema, DynOptions::for_rows(1000))?;
    let found = cluster.worker(Default::default())?.block_on(async |session| {
        let run = session.transact(async |tx| {
            texts.put(tx, key.as_bytes(), value.as_bytes()).await?;
            texts.get(tx, key.as_bytes()).await
        });
        run.await
    })?;
    println!("{key} has {:?}", found.map(|value| String::from_utf8_lossy(&value).into_owned()));
    Ok(())
}
