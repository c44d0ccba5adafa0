//! Tables whose keys and values are bytes: every operation against a model, lengths that change,
//! the cost of a small value in a table of large ones, and bad input.

#[macro_use]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use remora::observe::{Cost, Observer, TransactionEvent};
use remora::protocol::{Protocol, Validation};
use remora::{
    Cluster, DYN_KEY_BYTES_MAX, DYN_VALUE_BYTES_MAX, DynOptions, DynSchema, DynTable, Error, Intent, Lengths, Limit,
    Misuse, OpenErrorKind, OrderedOptions, Record, Session, Table, TableOptions, Transaction, TransactionOptions,
    Worker,
};

use support::{cut_off, embedded, on_every_fabric, options, rest, seeds, table, worker};

every_protocol! {
    what_a_model_says_is_there,
    values_of_any_length_move_between_keys,
    a_small_value_does_not_pay_for_large_ones,
    many_keys_take_one_round_trip,
}

most_protocols! {
    a_dropped_operation_has_done_all_of_it_or_nothing,
    a_walk_reads_every_row,
}

/// Keys and values of any length.
fn any() -> DynSchema {
    DynSchema::new("anything", Lengths::UpTo(DYN_KEY_BYTES_MAX), Lengths::UpTo(DYN_VALUE_BYTES_MAX))
}

fn create(cluster: &Cluster, schema: &DynSchema) -> DynTable {
    cluster.create_dyn_table("things", schema, DynOptions::for_rows(60).bytes(300_000)).unwrap()
}

/// Returns a random length. Some lengths are longer than a head, some are longer than a part, and
/// some are 0.
fn length(random: u64) -> usize {
    match random % 8 {
        0 => 0,
        1..=3 => random as usize / 8 % 140,
        4 | 5 => random as usize / 8 % 1200,
        6 => random as usize / 8 % 5_000,
        _ => DYN_VALUE_BYTES_MAX,
    }
}

fn bytes(length: usize, random: u64) -> Vec<u8> {
    (0..length).map(|at| (random as usize + at) as u8).collect()
}

/// One of 24 keys, of 1 to 512 bytes.
fn key(random: u64) -> Vec<u8> {
    let number = random % 24;
    let length = [1, 8, 15, 16, 17, 100, 511, 512][number as usize % 8];
    let mut key = vec![b'k'; length];
    key[length - 1] = number as u8;
    key
}

async fn act(
    tx: &mut Transaction<'_, '_>,
    things: &DynTable,
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    random: u64,
) -> Result<(), Error> {
    let (key, value) = (key(random), bytes(length(random >> 16), random));
    match random >> 8 & 7 {
        0 | 1 => assert_eq!(things.get(tx, &key).await?.as_ref(), model.get(&key)),
        2 => match things.insert(tx, &key, &value).await {
            Ok(()) => assert!(model.insert(key, value).is_none()),
            Err(Error::Exists(name)) => assert!(model.contains_key(&key) && name.key() == Some(&key)),
            Err(error) => return Err(error),
        },
        3 => assert_eq!(things.put(tx, &key, &value).await?, model.insert(key, value)),
        4 => {
            let intent = [Intent::Read, Intent::Update, Intent::Insert, Intent::Delete][random as usize >> 11 & 3];
            let slot = things.fetch_for(tx, [(&*key, intent)]).await?.remove(0);
            assert_eq!(things.value_of(tx, &key, &slot)?.as_deref(), model.get(&key).map(Vec::as_slice));
            things.put_at(tx, &key, slot, &value).await?;
            model.insert(key, value);
        }
        5 => match things.update(tx, &key, &value).await {
            Ok(()) => assert!(model.insert(key, value).is_some()),
            Err(Error::NotFound(name)) => assert!(!model.contains_key(&key) && name.key() == Some(&key)),
            Err(error) => return Err(error),
        },
        6 => assert_eq!(things.remove(tx, &key).await?, model.remove(&key)),
        _ => match things.require(tx, &key).await {
            Ok(found) => assert_eq!(Some(&found), model.get(&key)),
            Err(Error::NotFound(_)) => assert!(!model.contains_key(&key)),
            Err(error) => return Err(error),
        },
    }
    Ok(())
}

fn what_a_model_says_is_there(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 2) {
        let things = create(&cluster, &any());
        let again = cluster.open_dyn_table("things", &any()).unwrap();
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            let mut model = BTreeMap::new();
            for turn in 0..150 {
                let random = session.lane().random();
                let things = if turn % 2 == 0 { &things } else { &again };
                // One operation or several in one transaction, which may be given up.
                let after = session.transact(async |tx| {
                    let mut after = model.clone();
                    for at in 0..=turn % 3 {
                        act(tx, things, &mut after, random.rotate_left(7 * at)).await?;
                    }
                    if random >> 60 == 0 { Err(things.missing(&[1])) } else { Ok(after) }
                });
                match after.await {
                    Ok(after) => model = after,
                    Err(Error::NotFound(_)) if random >> 60 == 0 => {}
                    // Several of the longest values are too much for one log entry.
                    Err(Error::Limit(reason)) if matches!(reason.cause, Limit::LogEntry { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for number in 0..24 {
                let key = key(number);
                let found = session.transact(async |tx| things.get(tx, &key).await).await.unwrap();
                assert_eq!(found.as_ref(), model.get(&key));
            }
        });
        settled(&cluster, &things, &mut worker);
    }
}

/// Asserts that nothing is locked, torn, prepared or different at a backup.
/// The table grows during the walk, and its rows are rewritten.
fn a_walk_reads_every_row(protocol: Protocol) {
    const KEPT: u64 = 40;
    const ADDED: u64 = 300;
    let cluster = embedded(protocol, 1);
    let things = cluster.create_dyn_table("things", &any(), DynOptions::for_rows(60).bytes(60_000)).unwrap();
    let name = |number: u64| {
        bytes([1, 14, 15, 16, 140, 510][number as usize % 6], number)
            .iter()
            .chain(&number.to_be_bytes()[6..])
            .copied()
            .collect::<Vec<u8>>()
    };
    let mut worker = worker(&cluster, 2, 1);
    worker.block_on(async |session| {
        for number in 0..KEPT {
            session
                .transact(async |tx| things.put(tx, &name(number), &bytes(number as usize * 7, number)).await)
                .await
                .unwrap();
        }
    });
    let is_over = Cell::new(false);
    let walks = worker.run(async |coroutine, session| {
        if coroutine == 0 {
            for number in 0..ADDED {
                let value = bytes(number as usize % 200, number);
                session.transact(async |tx| things.put(tx, &name(KEPT + number), &value).await).await.unwrap();
                let kept = number % KEPT;
                session
                    .transact(async |tx| things.put(tx, &name(kept), &bytes(kept as usize * 7, kept)).await)
                    .await
                    .unwrap();
            }
            is_over.set(true);
            return 0;
        }
        let mut walks = 0;
        while !is_over.get() {
            let (mut cursor, mut found) = (0, BTreeMap::new());
            loop {
                let walked = things.walk(session, cursor, 8).await.unwrap();
                found.extend(walked.rows);
                cursor = walked.cursor;
                if cursor == 0 {
                    break;
                }
            }
            for number in 0..KEPT {
                assert_eq!(found.get(&name(number)), Some(&bytes(number as usize * 7, number)), "row {number}");
            }
            walks += 1;
        }
        walks
    });
    assert!(walks[1] > 1, "{walks:?}");
}

fn settled(cluster: &Cluster, things: &DynTable, worker: &mut Worker) {
    assert!(worker.drain().unwrap());
    for found in cluster.inspect_dyn_table(things).unwrap() {
        assert_eq!((found.locked, found.torn, found.differing_lines, found.prepared), (0, 0, 0, 0));
    }
}

/// Clients move values between keys, and change their lengths. Every transaction that commits has
/// read all of one value.
fn values_of_any_length_move_between_keys(protocol: Protocol) {
    for seed in seeds(0..6) {
        let (cluster, _) = options(protocol, 2).node_bytes(8 << 20).open_seeded(seed).unwrap();
        let things = create(&cluster, &any());
        let mut worker = worker(&cluster, 3, seed);
        let whole = |value: &[u8]| value.iter().all(|byte| *byte == value.len() as u8);
        worker.run(async |client, session| {
            for _ in 0..12 {
                let random = session.lane().random();
                let (from, to) = (key(random % 4), key((random >> 8) % 4));
                let run = session.transact(async |tx| {
                    let moved = things.remove(tx, &from).await?;
                    let length = length(random >> 16) % 3000;
                    let before = things.put(tx, &to, &vec![length as u8; length]).await?;
                    // An attempt that does not commit may have read parts of different moments.
                    Ok(moved.as_deref().is_none_or(whole) && before.as_deref().is_none_or(whole))
                });
                assert!(run.await.unwrap(), "client {client}");
            }
        });
        settled(&cluster, &things, &mut worker);
    }
}

/// A closure drops an operation at one of its polls, and goes on and commits.
fn a_dropped_operation_has_done_all_of_it_or_nothing(protocol: Protocol) {
    let (cluster, _) = options(protocol, 2).node_bytes(8 << 20).open_seeded(3).unwrap();
    let things = create(&cluster, &any());
    let mut worker = worker(&cluster, 1, 3);
    worker.block_on(async |session| {
        let put = async |session: &mut Session, length: usize| {
            let put = session.transact(async |tx| things.put(tx, b"one", &bytes(length, 1)).await);
            put.await.unwrap();
        };
        for (before, after) in [(50, 2500), (2500, 50), (1500, 3000)] {
            put(session, before).await;
            for polls in 0.. {
                let mut begun = session.begin().unwrap();
                let mut tx = begun.transaction();
                let done = cut_off(things.put(&mut tx, b"one", &bytes(after, 2)), polls).await;
                let is_done = done.map(Result::unwrap).is_some();
                begun.commit().await.unwrap();
                let found = session.transact(async |tx| things.require(tx, b"one").await).await.unwrap();
                let expected = if is_done { bytes(after, 2) } else { bytes(before, 1) };
                assert_eq!(found, expected, "{polls} polls");
                if is_done {
                    break;
                }
            }
        }
        let removed = session.transact(async |tx| things.remove(tx, b"one").await).await.unwrap();
        assert_eq!(removed.map(|value| value.len()), Some(3000));
    });
    settled(&cluster, &things, &mut worker);
}

#[derive(Clone, Default)]
struct Costs(Rc<RefCell<Vec<Cost>>>);

impl Observer for Costs {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.0.borrow_mut().push(event.cost);
    }
}

/// A value of 100 bytes in a table whose values have up to 4 KiB costs no more round trips than in
/// a typed table of 100 bytes, and at most 1.3 times its bytes.
fn a_small_value_does_not_pay_for_large_ones(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let schema = DynSchema::new("values", Lengths::Exactly(8), Lengths::UpTo(4096));
    let things = cluster.create_dyn_table("things", &schema, DynOptions::for_rows(20)).unwrap();
    let typed: Table<u64, [u8; 100]> = table(&cluster, "typed", TableOptions::for_rows(20), [7; 100]);
    worker(&cluster, 1, 1).block_on(async |session| {
        let key = 7u64.to_be_bytes();
        session.transact(async |tx| things.insert(tx, &key, &[7; 100]).await).await.unwrap();
        // After this, the client knows where the records are.
        session.transact(async |tx| Ok((things.get(tx, &key).await?, typed.get(tx, 7).await?))).await.unwrap();
        rest(session).await;
        let costs = Costs::default();
        session.observe(Some(Box::new(costs.clone())));
        let cost = async |session: &mut Session| {
            rest(session).await;
            costs.0.take().pop().unwrap()
        };
        assert_eq!(session.transact(async |tx| typed.get(tx, 7).await).await.unwrap(), Some([7; 100]));
        let read_typed = cost(session).await;
        assert_eq!(session.transact(async |tx| things.require(tx, &key).await).await.unwrap(), [7; 100]);
        let read = cost(session).await;
        session.transact(async |tx| typed.update(tx, 7, [8; 100]).await).await.unwrap();
        let written_typed = cost(session).await;
        session.transact(async |tx| things.update(tx, &key, &[8; 100]).await).await.unwrap();
        let written = cost(session).await;
        for (one, other) in [(read, read_typed), (written, written_typed)] {
            assert_eq!(one.round_trips, other.round_trips, "{protocol:?}");
            let bytes = |cost: Cost| (cost.bytes_in + cost.bytes_out) as f64;
            assert!(bytes(one) <= 1.3 * bytes(other), "{protocol:?}: {} and {}", bytes(one), bytes(other));
        }
        // A long value takes one round trip more.
        session.transact(async |tx| things.update(tx, &key, &[9; 4096]).await).await.unwrap();
        session.transact(async |tx| things.require(tx, &key).await).await.unwrap();
        rest(session).await;
        costs.0.take();
        assert_eq!(session.transact(async |tx| things.require(tx, &key).await).await.unwrap(), [9; 4096]);
        let validates = u64::from(protocol.validation() != Validation::Local);
        let long = cost(session).await.round_trips;
        assert!(long <= 2 * read_typed.round_trips + validates, "{protocol:?}: {long}");
    });
}

/// A table whose keys have one length, and whose values have one, has the layout of a typed table.
#[test]
fn a_typed_handle_opens_the_same_table() {
    #[derive(Clone, Copy, PartialEq, Debug, Record)]
    struct Account {
        balance: i64,
        owner: [u8; 4],
    }

    let cluster = embedded(Protocol::default(), 2);
    let schema = DynSchema::new("Account { balance: i64, owner: [u8; 4] }", Lengths::Exactly(8), Lengths::Exactly(12));
    assert_eq!(schema, DynSchema::of::<u64, Account>());
    let dynamic = cluster.create_dyn_table("accounts", &schema, DynOptions::for_rows(10)).unwrap();
    let typed: Table<u64, Account> = cluster.open_table("accounts").unwrap();
    worker(&cluster, 1, 1).block_on(async |session| {
        let both = session.transact(async |tx| {
            dynamic.insert(tx, &1u64.to_be_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0, b'a', b'n', b'n', b'a']).await?;
            typed.get_mut(tx, 1).await?.balance = 256;
            dynamic.require(tx, &1u64.to_be_bytes()).await
        });
        assert_eq!(both.await.unwrap(), [0, 1, 0, 0, 0, 0, 0, 0, b'a', b'n', b'n', b'a']);
    });
    let other = cluster.open_dyn_table("accounts", &DynSchema::new("other", Lengths::Exactly(8), Lengths::Exactly(12)));
    assert_eq!(other.unwrap_err().kind(), OpenErrorKind::OtherTypes);
    assert_eq!(cluster.drop_dyn_table("accounts").unwrap(), remora::admin::Freed::Now);
    assert_eq!(cluster.open_dyn_table("accounts", &schema).unwrap_err().kind(), OpenErrorKind::Dropped);
    let again = cluster.open_or_create_dyn_table("accounts", &schema, DynOptions::for_rows(10));
    assert!(again.is_ok(), "{again:?}");
}

#[test]
fn bad_input_is_refused() {
    let cluster = embedded(Protocol::default(), 2);
    let refused = |keys, values| {
        let schema = DynSchema::new("refused", keys, values);
        let refused = cluster.create_dyn_table("refused", &schema, DynOptions::for_rows(10)).unwrap_err();
        assert_eq!(refused.kind(), OpenErrorKind::Argument, "{refused}");
        assert!(refused.to_string().contains("\"refused\""), "{refused}");
    };
    refused(Lengths::Exactly(0), Lengths::Exactly(1));
    refused(Lengths::UpTo(0), Lengths::Exactly(1));
    refused(Lengths::Exactly(65), Lengths::Exactly(1));
    refused(Lengths::Exactly(64), Lengths::UpTo(4096));
    refused(Lengths::UpTo(DYN_KEY_BYTES_MAX + 1), Lengths::UpTo(10));
    refused(Lengths::UpTo(10), Lengths::UpTo(0));
    refused(Lengths::UpTo(10), Lengths::UpTo(DYN_VALUE_BYTES_MAX + 1));
    refused(Lengths::Exactly(8), Lengths::Exactly(1 << 20));
    for huge in [usize::MAX, 1 << 32 | 4] {
        refused(Lengths::Exactly(huge), Lengths::Exactly(1));
        refused(Lengths::Exactly(huge), Lengths::UpTo(1));
        refused(Lengths::UpTo(huge), Lengths::Exactly(1));
        refused(Lengths::Exactly(8), Lengths::Exactly(huge));
        refused(Lengths::Exactly(8), Lengths::UpTo(huge));
        refused(Lengths::UpTo(20), Lengths::Exactly(huge));
        refused(Lengths::UpTo(huge), Lengths::UpTo(huge));
    }
    let short = DynSchema::new("short", Lengths::UpTo(20), Lengths::UpTo(200));
    let none = cluster.create_dyn_table("none", &short, DynOptions::for_rows(0)).unwrap_err();
    assert_eq!(none.kind(), OpenErrorKind::Argument, "{none}");

    let things = cluster.create_dyn_table("things", &short, DynOptions::for_rows(10)).unwrap();
    let twice = cluster.create_dyn_table("things", &short, DynOptions::for_rows(10)).unwrap_err();
    assert_eq!(twice.kind(), OpenErrorKind::TableExists);
    let exact = DynSchema::new("exact", Lengths::Exactly(3), Lengths::Exactly(4));
    let exact = cluster.create_dyn_table("exact", &exact, DynOptions::for_rows(10)).unwrap();
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for (table, key, value, limit) in [
            (&things, &b""[..], &b"v"[..], Limit::KeyLength { found: 0, max: 20 }),
            (&things, &[1; 21], b"v", Limit::KeyLength { found: 21, max: 20 }),
            (&things, b"key", &[1; 201], Limit::Value { found: 201, max: 200 }),
            (&exact, b"four", b"four", Limit::Key { found: 4, expected: 3 }),
            (&exact, b"key", b"12345", Limit::ValueLength { found: 5, expected: 4 }),
            (&exact, b"key", b"123", Limit::ValueLength { found: 3, expected: 4 }),
        ] {
            let refused = session.transact(async |tx| table.put(tx, key, value).await).await.unwrap_err();
            assert_eq!(refused.limit(), Some(limit), "{refused}");
            assert!(refused.to_string().contains(table.name()), "{refused}");
        }
        // Nothing stays locked, and correct calls go on.
        let put = session.transact(async |tx| {
            exact.prefetch(tx, b"key", Intent::Insert)?;
            things.put(tx, &[1; 20], &[1; 200]).await?;
            exact.put(tx, b"key", b"1234").await
        });
        assert_eq!(put.await.unwrap(), None);
        let refused = session.transact(async |tx| things.get_mut(tx, &[1; 20]).await.map(drop)).await.unwrap_err();
        assert!(matches!(refused, Error::Misuse(Misuse::NotInPlace { .. })), "{refused}");
    });
}

/// Keys of several tables come in one round trip, with short values; parts of long ones come in
/// another one, whatever their number.
fn many_keys_take_one_round_trip(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let things = create(&cluster, &any());
    let options = OrderedOptions::for_rows(100);
    let short = DynSchema::new("short", Lengths::UpTo(20), Lengths::UpTo(10));
    let long = DynSchema::new("long", Lengths::UpTo(20), Lengths::UpTo(4_000));
    let ordered = cluster.create_dyn_ordered("ordered", &short, options.clone()).unwrap();
    let apart = cluster.create_dyn_ordered("apart", &long, options).unwrap();
    let numbers = cluster.create_table::<u64, u64>("numbers", TableOptions::for_rows(10)).unwrap();
    worker(&cluster, 1, 1).block_on(async |session| {
        let costs = Costs::default();
        session.observe(Some(Box::new(costs.clone())));
        let fill = session.transact(async |tx| {
            numbers.put(tx, 7, 7).await?;
            numbers.put(tx, 8, 8).await?;
            for key in [b"a", b"b"] {
                things.put(tx, key, &[1; 100]).await?;
                ordered.put(tx, key, b"value").await?;
                apart.put(tx, key, &[2; 100]).await?;
            }
            things.put(tx, b"long", &[3; 5_000]).await?;
            apart.put(tx, b"long", &[4; 3_000]).await.map(drop)
        });
        fill.await.unwrap();
        let few = async |tx: &mut Transaction<'_, '_>| {
            let found = tx.get_many(((&numbers, 7), (&things, b"a"), (&ordered, b"b"), (&apart, "a"))).await?;
            assert_eq!(found, (Some(7), Some(vec![1; 100]), Some(b"value".to_vec()), Some(vec![2; 100])));
            Ok(())
        };
        let all = async |tx: &mut Transaction<'_, '_>| {
            let found = things.get_many(tx, &["long", "b", "a"]).await?;
            assert_eq!(found, [Some(vec![3; 5_000]), Some(vec![1; 100]), Some(vec![1; 100])]);
            Ok(())
        };
        let both = async |tx: &mut Transaction<'_, '_>| {
            let found = tx.get_many(((&things, "long"), (&apart, "long"))).await?;
            assert_eq!(found, (Some(vec![3; 5_000]), Some(vec![4; 3_000])));
            Ok(())
        };
        let one = async |tx: &mut Transaction<'_, '_>| things.get(tx, b"a").await.map(drop);
        let slots = async |tx: &mut Transaction<'_, '_>| {
            let (one, two) = (tx.want(&numbers, 7), tx.want(&numbers, 7 + 1));
            tx.fetch().await?;
            assert_eq!((one.value(tx)?, two.value(tx)?), (Some(7), Some(8)));
            Ok(())
        };
        let mut trips = [0; 5];
        for _warm in 0..2 {
            session.transact(one).await.unwrap();
            session.transact(slots).await.unwrap();
            session.transact(few).await.unwrap();
            session.transact(all).await.unwrap();
            session.transact(both).await.unwrap();
            trips = std::array::from_fn(|step| costs.0.borrow()[step].round_trips);
            costs.0.take();
        }
        let [one, slots, few, all, both] = trips;
        // Under `rtx`, a read of one record needs no validation, and neither do several that come
        // together. Where the second part of a value is looked for later, one round trip validates.
        let apart = u64::from(protocol == Protocol::RTX);
        assert_eq!([few, all - one - apart, both - one - apart], [slots; 3], "{protocol:?}: {trips:?}");
        let absent = session.transact(async |tx| {
            let rows = tx.get_many([(&things, "long"), (&things, "c")]).await?;
            assert_eq!(rows, [Some(vec![3; 5_000]), None]);
            things.get_many(tx, &["c", "long"]).await
        });
        assert_eq!(absent.await.unwrap(), [None, Some(vec![3; 5_000])]);
        let refused = session.transact(async |tx| tx.get_many([(&things, "")]).await).await.unwrap_err();
        assert!(matches!(refused.limit(), Some(Limit::KeyLength { found: 0, .. })), "{refused}");
    });
}

/// Values of one length are changed in place, whatever the length of their keys.
#[test]
fn values_of_one_length_are_changed_in_place() {
    let cluster = embedded(Protocol::default(), 2);
    for (name, keys) in [("one", Lengths::Exactly(3)), ("many", Lengths::UpTo(60))] {
        let schema = DynSchema::new("counters", keys, Lengths::Exactly(4));
        let counters = cluster.create_dyn_table(name, &schema, DynOptions::for_rows(10)).unwrap();
        worker(&cluster, 1, 1).block_on(async |session| {
            let keys = [&b"one"[..], &b"two"[..], &[3; 60]];
            for key in keys.into_iter().take(if name == "one" { 2 } else { 3 }) {
                let missing = session.transact(async |tx| counters.get_mut(tx, key).await.map(drop)).await;
                assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
                let changed = session.transact(async |tx| {
                    counters.insert(tx, key, b"abcd").await?;
                    counters.get_mut(tx, key).await?[1] = b'B';
                    counters.get(tx, key).await
                });
                assert_eq!(changed.await.unwrap().as_deref(), Some(&b"aBcd"[..]));
                session
                    .transact(async |tx| counters.get_mut(tx, key).await.map(|value| value[3] = b'!'))
                    .await
                    .unwrap();
                let found = session.transact(async |tx| counters.require(tx, key).await).await.unwrap();
                assert_eq!(found, b"aBc!", "{name}");
            }
        });
    }
}

/// A head that makes no sense is an error: never a panic, nor another key's value.
#[test]
fn damaged_records_are_told() {
    #[derive(Clone, Copy, Record)]
    #[record(schema = "anything; keys of up to 512 bytes, values of up to 16384 bytes")]
    struct Head([u8; 136]);

    let cluster = embedded(Protocol::default(), 2);
    let things = create(&cluster, &any());
    let heads: Table<[u8; 16], Head> = cluster.open_table("things").unwrap();
    let long = [b'k'; 40];
    worker(&cluster, 1, 1).block_on(async |session| {
        // A value whose head is full, and what it says is changed.
        session.transact(async |tx| things.put(tx, &long, &[7; 500]).await).await.unwrap();
        let mut stored = None;
        cluster.inspect(&heads, |head| stored = Some(*head)).unwrap();
        let Head(stored) = stored.expect("a head of full length");
        assert_eq!(stored[..6], [0x1e, 2, 0, 0, 40, 0], "500 bytes, the key and its length; and that length");
        let mut at = [0; 16];
        for (index, change) in [(0, 0xff), (2, 1), (3, 1), (4, 41), (6, b'x')] {
            at[..15].copy_from_slice(&digest(&long)[..15]);
            at[15] = u8::MAX;
            let mut wrong = stored;
            wrong[index] ^= change;
            session.transact(async |tx| heads.update(tx, at, Head(wrong)).await).await.unwrap();
            let few = TransactionOptions::default().attempts(3);
            let error = session.transact_with(few, async |tx| things.get(tx, &long).await).await.unwrap_err();
            let is_told = matches!(error, Error::Damaged { .. } | Error::Aborted(_));
            assert!(is_told, "byte {index}: {error}");
        }
    });
}

fn digest(key: &[u8]) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    Sha256::digest(key).into()
}
