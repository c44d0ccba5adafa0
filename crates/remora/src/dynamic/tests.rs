//! What no test outside of the crate can damage.

use super::*;

/// Records of wrong lengths are an error of every verb: never a panic.
#[test]
fn damaged_lengths_are_told() {
    let cluster = Cluster::embedded().open().unwrap();
    let of_keys = [Lengths::Exactly(3), Lengths::UpTo(8), Lengths::UpTo(30)];
    for (number, keys) in of_keys.into_iter().enumerate() {
        let schema = DynSchema::new("counters", keys, Lengths::Exactly(8));
        let counters = cluster.create_dyn_table(&number.to_string(), &schema, DynOptions::for_rows(4)).unwrap();
        let key: &[u8] = if number == 2 { &[b'k'; 20] } else { b"key" };
        cluster.worker(Default::default()).unwrap().block_on(async |session| {
            let total = |bytes: u32| [&bytes.to_le_bytes()[..], &[0; 8][..bytes.min(8) as usize]].concat();
            let lengths = if number == 0 { 2 } else { 5 };
            for stored in [vec![], vec![1; 3], total(0), total(3), total(7)].into_iter().take(lengths) {
                session.transact(async |tx| counters.put(tx, key, &[7; 8]).await).await.unwrap();
                let damage = session.transact(async |tx| {
                    let found = counters.fetch(tx, key, Access::Update(8)).await?;
                    tx.put_raw(found.head, &stored, true)
                });
                damage.await.unwrap();
                let few = crate::TransactionOptions::default().attempts(3);
                for verb in 0..4 {
                    let refused = session.transact_with(few, async |tx| match verb {
                        0 => counters.get_mut(tx, key).await.map(drop),
                        1 => counters.get(tx, key).await.map(drop),
                        2 => counters.update(tx, key, &[8; 8]).await,
                        _ => counters.remove(tx, key).await.map(drop),
                    });
                    let refused = refused.await.unwrap_err();
                    assert!(matches!(refused, Error::Damaged { .. }), "{keys:?} {stored:?} {verb}: {refused}");
                }
                let mend = session.transact(async |tx| {
                    let found =
                        tx.name_raw(counters.heads.handle(), &counters.record_key(key)?.record(), Intent::Delete);
                    tx.fetch().await?;
                    tx.delete_raw(found)
                });
                mend.await.unwrap();
            }
        });
    }
}
