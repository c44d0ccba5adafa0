//! A picture of two megabytes, and its entry in an album: the bytes are stored first, and one
//! transaction then makes them and the entry visible together.
//!
//! `cargo run --release -p remora --example large_values`

use remora::{Cluster, LargeOptions, TableOptions};

#[derive(Clone, Copy, remora::Record)]
struct Album {
    pictures: u64,
    bytes: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().node_bytes(64 << 20).open()?;
    let albums = cluster.create_table::<u64, Album>("albums", TableOptions::for_rows(10))?;
    let pictures = cluster.create_large::<(u64, u64)>("pictures", LargeOptions::for_values(10, 4 << 20))?;
    cluster.load(&albums, [(7, Album { pictures: 0, bytes: 0 })])?;

    let picture: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut worker = cluster.worker(Default::default())?;
    let (album, found) = worker.block_on(async |session| {
        // No transaction sees the stored value yet, and no lock is held.
        let stored = pictures.upload(session, &picture).await?;
        let link = session.transact(async |tx| {
            let mut album = albums.get_mut(tx, 7).await?;
            let number = album.pictures;
            (album.pictures, album.bytes) = (number + 1, album.bytes + stored.length());
            drop(album); // now the transaction has the new value
            pictures.put(tx, (7, number), &stored).await
        });
        link.await?;
        let look = session.transact(async |tx| Ok((albums.require(tx, 7).await?, pictures.get(tx, (7, 0)).await?)));
        look.await
    })?;
    println!("the album has {} picture of {} bytes", album.pictures, album.bytes);
    assert!(found == Some(picture));
    Ok(())
}
