//! What a transaction does with keys: the verbs mean the same on every kind of table, and several
//! keys take as many round trips as one.

#[macro_use]
mod support;

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;

use remora::observe::{Cost, Observer, TransactionEvent};
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Intent, Misuse, OpenErrorKind, Ordered, OrderedOptions, Record, Table, TableOptions, Transaction,
};

use support::{embedded, on_every_fabric, rest, worker};

every_protocol! {
    verbs_mean_the_same_on_every_table,
    many_keys_take_one_round_trip,
}

/// A record that has padding in memory, and none where it is kept.
#[derive(Clone, Copy, PartialEq, Debug, Record)]
struct Item {
    is_new: bool,
    price: f64,
    name: [u8; 5],
    sold: (u32, u8),
}

fn item(number: u32) -> Item {
    Item { is_new: number.is_multiple_of(2), price: f64::from(number) / 2.0, name: *b"apple", sold: (number, 1) }
}

/// Checks each verb on a key that is absent, and on one that is present.
macro_rules! verbs {
    ($tx:ident, $table:expr, $key:expr) => {{
        let (table, key) = ($table, $key);
        assert_eq!(table.get($tx, key).await?, None);
        assert_eq!(table.remove($tx, key).await?, None);
        assert!(matches!(table.require($tx, key).await, Err(Error::NotFound(_))));
        assert!(matches!(table.get_mut($tx, key).await.map(drop), Err(Error::NotFound(_))));
        assert!(matches!(table.update($tx, key, item(0)).await, Err(Error::NotFound(_))));
        table.insert($tx, key, item(1)).await?;
        assert!(matches!(table.insert($tx, key, item(2)).await, Err(Error::Exists(_))));
        assert_eq!(table.require($tx, key).await?, item(1));
        table.get_mut($tx, key).await?.sold.0 += 41;
        assert_eq!(table.get($tx, key).await?, Some(Item { sold: (42, 1), ..item(1) }));
        table.update($tx, key, item(3)).await?;
        assert_eq!(table.put($tx, key, item(4)).await?, Some(item(3)));
        assert_eq!(table.remove($tx, key).await?, Some(item(4)));
        assert_eq!(table.put($tx, key, item(5)).await?, None);
    }};
}

fn verbs_mean_the_same_on_every_table(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 2) {
        let (hashed, ordered) = tables(&cluster);
        worker(&cluster, 1, 1).block_on(async |session| {
            for key in [3, 4] {
                // In one transaction, and in the next that finds what it has left.
                let all = session.transact(async |tx| {
                    verbs!(tx, &hashed, key);
                    verbs!(tx, &ordered, key);
                    Ok(())
                });
                all.await.unwrap();
                let both = session.transact(async |tx| tx.get_many(((&hashed, key), (&ordered, key))).await);
                assert_eq!(both.await.unwrap(), (Some(item(5)), Some(item(5))), "{protocol:?}");
            }
            let range = session.transact(async |tx| ordered.scan(tx, .., 10).await).await.unwrap();
            assert_eq!(range, [(3, item(5)), (4, item(5))]);
            // Another transaction changes and deletes them.
            let end = session.transact(async |tx| {
                hashed.get_mut(tx, 3).await?.price = 1.5;
                ordered.get_mut(tx, 3).await?.price = 1.5;
                Ok((hashed.remove(tx, 4).await?, ordered.remove(tx, 4).await?))
            });
            assert_eq!(end.await.unwrap(), (Some(item(5)), Some(item(5))));
            let both = session.transact(async |tx| Ok((hashed.require(tx, 3).await?, ordered.require(tx, 3).await?)));
            let changed = Item { price: 1.5, ..item(5) };
            assert_eq!(both.await.unwrap(), (changed, changed));
        });
    }
}

fn tables(cluster: &Cluster) -> (Table<u64, Item>, Ordered<u64, Item>) {
    let hashed = cluster.create_table("hashed", TableOptions::for_rows(40)).unwrap();
    (hashed, cluster.create_ordered("ordered", OrderedOptions::for_rows(40)).unwrap())
}

#[derive(Clone, Default)]
struct Costs(Rc<RefCell<Vec<Cost>>>);

impl Observer for Costs {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.0.borrow_mut().push(event.cost);
    }
}

/// The ways to name several keys cost what slots do, verb for verb and byte for byte.
fn many_keys_take_one_round_trip(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let accounts = cluster.create_table::<u64, i64>("accounts", TableOptions::for_rows(10)).unwrap();
    let names = cluster.create_table::<(u8, u16), [u8; 4]>("names", TableOptions::for_rows(10)).unwrap();
    cluster.load(&accounts, (0..8).map(|key| (key, 100))).unwrap();
    cluster.load(&names, [((1, 2), *b"anna")]).unwrap();
    worker(&cluster, 1, 1).block_on(async |session| {
        let costs = Costs::default();
        session.observe(Some(Box::new(costs.clone())));
        // Locations become known, and the session gets what it needs for its first writes.
        for way in [0, 3] {
            session.transact(async |tx| play(tx, &accounts, &names, way).await).await.unwrap();
            rest(session).await;
        }
        costs.0.take();
        for ways in [[0, 1, 2], [3, 4, 5]] {
            let mut of_each = Vec::new();
            for way in ways {
                session.transact(async |tx| play(tx, &accounts, &names, way).await).await.unwrap();
                rest(session).await;
                of_each.extend(costs.0.take());
            }
            assert_eq!(of_each, [of_each[0]; 3], "{protocol:?}");
        }
        let sum = session.transact(async |tx| accounts.get_many(tx, [1, 2, 3, 9]).await).await.unwrap();
        assert_eq!(sum, [Some(96), Some(104), Some(100), None]);
        // One record cannot be changed in two places at once.
        let twice = session.transact(async |tx| accounts.get_many_mut(tx, [1, 2, 1]).await.map(drop)).await;
        assert!(matches!(twice, Err(Error::Misuse(Misuse::Twice))), "{twice:?}");
        let absent = session.transact(async |tx| accounts.get_many_mut(tx, [1, 9]).await.map(drop)).await;
        assert!(matches!(&absent, Err(Error::NotFound(record)) if record.table() == Some("accounts")), "{absent:?}");
    });
}

/// Reads three records, or moves 1 from account 1 to account 2: by slots, all at once, or one by
/// one after they were fetched together.
async fn play(
    tx: &mut Transaction<'_, '_>,
    accounts: &Table<u64, i64>,
    names: &Table<(u8, u16), [u8; 4]>,
    way: u8,
) -> Result<(), Error> {
    match way {
        0 => {
            let (one, two, name) = (tx.want(accounts, 1), tx.want(accounts, 2), tx.want(names, (1, 2)));
            tx.fetch().await?;
            assert_eq!((one.get(tx)?.is_some(), *two.require(tx)? > 0, name.value(tx)?), (true, true, Some(*b"anna")));
        }
        1 => {
            let (one, two, name) = tx.get_many(((accounts, 1), (accounts, 2), (names, (1, 2)))).await?;
            assert!(one.is_some() && two.is_some() && name.is_some());
        }
        2 => {
            tx.prefetch(Intent::Read, ((accounts, 1), (accounts, 2), (names, (1, 2)))).await?;
            let sum = accounts.require(tx, 1).await? + accounts.require(tx, 2).await?;
            assert_eq!((sum, names.get(tx, (1, 2)).await?), (200, Some(*b"anna")));
        }
        3 => {
            let [one, two] = [1, 2].map(|key| tx.want_for(accounts, key, Intent::Update));
            tx.fetch().await?;
            *one.get_mut(tx)? -= 1;
            *two.value_mut(tx)? += 1;
        }
        4 => {
            let [mut one, mut two] = accounts.get_many_mut(tx, [1, 2]).await?;
            *one -= 1;
            *two += 1;
        }
        _ => {
            accounts.prefetch(tx, 1, Intent::Update);
            accounts.prefetch(tx, 2, Intent::Update);
            *accounts.get_mut(tx, 1).await? -= 1;
            *accounts.get_mut(tx, 2).await? += 1;
        }
    }
    Ok(())
}

/// Several threads ask for a table at the same time. One creates it, and the others open it.
#[test]
fn the_first_program_creates_a_table() {
    let cluster = embedded(Protocol::default(), 2);
    let open = || cluster.open_or_create_table::<u64, u64>("counters", TableOptions::for_rows(10));
    let opened: Vec<Table<u64, u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    worker(&cluster, 1, 1).block_on(async |session| {
        for (turn, table) in (0..).zip(&opened) {
            let put = session.transact(async |tx| table.put(tx, 1, turn + 1).await).await.unwrap();
            assert_eq!(put.unwrap_or(0), turn, "all of them are one table");
        }
    });
    let other = cluster.open_or_create_table::<u64, i32>("counters", TableOptions::for_rows(10)).unwrap_err();
    assert_eq!(other.kind(), OpenErrorKind::OtherTypes, "{other}");
    let ordered = || cluster.open_or_create_ordered::<u64, ()>("set", OrderedOptions::for_rows(10));
    assert!(ordered().is_ok() && ordered().is_ok());
    let large = || cluster.open_or_create_large::<u64>("large", remora::LargeOptions::for_values(1, 1));
    assert!(large().is_ok() && large().is_ok());
}
