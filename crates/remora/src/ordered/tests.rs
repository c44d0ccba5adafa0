//! What no test outside of the crate can damage.

use remora_txn::Intent;

use super::*;
use crate::cluster::Cluster;
use crate::dynamic::{DynSchema, Lengths};
use crate::error::Error;
use crate::worker::{Session, TransactionOptions};

/// Changes the bytes of the only leaf. Returns what they were.
async fn change(session: &mut Session, things: &DynOrdered, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let changed = session.transact(async |tx| {
        let leaf = tx.name_raw(things.tree().leaves.handle(), &parts::node_key(1), Intent::Update);
        tx.fetch().await?;
        let bytes = tx.raw_mut(leaf)?;
        let before = bytes.to_vec();
        change(bytes);
        Ok(before)
    });
    changed.await.unwrap()
}

/// A leaf of long keys that makes no sense is an error of verbs, or an abort: never a panic.
#[test]
fn damaged_leaves_of_long_keys_are_told() {
    let cluster = Cluster::embedded().open().unwrap();
    let schema = DynSchema::new("things", Lengths::UpTo(500), Lengths::UpTo(20));
    let things = cluster.create_dyn_ordered("things", &schema, OrderedOptions::for_rows(10)).unwrap();
    let key = |number: u8| [&[b'k'; 300][..], &[number]].concat();
    let few = TransactionOptions::default().attempts(3);
    cluster.worker(Default::default()).unwrap().block_on(async |session| {
        for number in 0..4 {
            session.transact(async |tx| things.insert(tx, &key(2 * number), b"value").await).await.unwrap();
        }
        let end = things.tree().shape.bytes_of(0);
        let mut told = 0;
        for at in (0..40).chain(end - 10..end) {
            for byte in [1, 255] {
                let whole = change(session, &things, |bytes| bytes[at] ^= byte).await;
                for verb in 0..7 {
                    let ran = session.transact_with(few, async |tx| match verb {
                        0 => things.get(tx, &key(2)).await.map(drop),
                        1 => things.put(tx, &key(2), b"value").await.map(drop),
                        2 => things.update(tx, &key(2), b"value").await,
                        3 => things.insert(tx, &key(3), b"value").await,
                        4 => things.remove(tx, &key(4)).await.map(drop),
                        5 => things.scan(tx, .., 10).await.map(drop),
                        _ => things.scan_back(tx, .., 10).await.map(drop),
                    });
                    match ran.await {
                        Ok(()) | Err(Error::NotFound(_) | Error::Exists(_)) => {}
                        Err(Error::Damaged { .. } | Error::Aborted(_)) => told += 1,
                        Err(error) => panic!("{at} {byte} {verb}: {error}"),
                    }
                }
                change(session, &things, |bytes| bytes.copy_from_slice(&whole)).await;
            }
        }
        assert!(told > 300, "{told}");
        let found = session.transact(async |tx| things.scan(tx, .., 10).await).await.unwrap();
        assert!(found.into_iter().eq((0..4).map(|number| (key(2 * number), b"value".to_vec()))));
    });
}
