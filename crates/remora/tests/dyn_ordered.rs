//! Ordered tables whose keys and values are bytes: every operation against a model, keys that are
//! prefixes of other keys, splits and merges, costs compared with a typed table, and bad input.

#[macro_use]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use remora::admin::{Freed, TreeInspection};
use remora::observe::{Cost, Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{
    Cluster, DYN_VALUE_BYTES_MAX, Design, DynOrdered, DynSchema, Error, Intent, Key, Lengths, Limit, Misuse,
    OpenErrorKind, Ordered, OrderedOptions, Record, Session, Table, TableOptions, Transaction, TransactionOptions,
    Worker,
};

use Lengths::{Exactly, UpTo};
use support::{Words, cut_off, embedded, is_long, on_every_fabric, options, rest, seeds, table, worker};

most_protocols! {
    what_a_model_says_is_there,
    a_dropped_operation_has_done_all_of_it_or_nothing,
    the_longest_rows_fit,
    a_scan_sees_every_key_once,
}

every_protocol! {
    it_costs_what_a_typed_table_costs,
}

/// Keys and values of every combination of lengths: in leaves, in records of their own, and in
/// several records.
const SHAPES: [(Lengths, Lengths); 13] = [
    (Exactly(5), Exactly(20)),
    (Exactly(5), UpTo(20)),
    (UpTo(5), Exactly(20)),
    (UpTo(5), UpTo(20)),
    (Exactly(40), Exactly(300)),
    (Exactly(40), UpTo(3000)),
    (UpTo(40), Exactly(300)),
    (UpTo(40), UpTo(3000)),
    (UpTo(512), UpTo(20)),
    (UpTo(512), Exactly(20)),
    (UpTo(512), UpTo(3000)),
    (UpTo(64), Exactly(300)),
    (UpTo(300), UpTo(200)),
];

fn schema((keys, values): (Lengths, Lengths)) -> DynSchema {
    DynSchema::new("things", keys, values)
}

fn create(cluster: &Cluster, shape: (Lengths, Lengths), options: OrderedOptions) -> DynOrdered {
    cluster.create_dyn_ordered("things", &schema(shape), options).unwrap()
}

/// Returns bytes that the lengths allow. They are of a few kinds, so that some are prefixes of
/// others, and have zeros inside and at the end.
fn key(lengths: Lengths, random: u64) -> Vec<u8> {
    let max = match lengths {
        Exactly(bytes) | UpTo(bytes) => bytes,
    };
    let digits = (0..).map(|at| [0, 1, b'a', 255][(random >> (2 * at)) as usize % 4]);
    match lengths {
        Exactly(_) => vec![b'k'; max - 3].into_iter().chain(digits.take(3)).collect(),
        UpTo(_) if random >> 40 & 7 == 0 => vec![0; max - random as usize % 4],
        UpTo(_) if max > 63 && random >> 43 & 3 == 1 => {
            // They differ at once, and are long.
            digits.take(1 + random as usize / 64 % 3).flat_map(|digit| vec![digit; max / 3]).collect()
        }
        UpTo(_) if max > 63 && random >> 43 & 3 == 2 => {
            // They differ at their end.
            vec![b'k'; max - 4].into_iter().chain(digits.take(1 + random as usize / 64 % 4)).collect()
        }
        UpTo(_) => digits.take(1 + random as usize / 64 % 4).collect(),
    }
}

fn value(lengths: Lengths, random: u64) -> Vec<u8> {
    let length = match lengths {
        Exactly(bytes) => bytes,
        UpTo(max) if random & 3 == 0 => max,
        UpTo(max) => random as usize / 4 % (max + 1),
    };
    (0..length).map(|at| (random as usize + at) as u8).collect()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The rows of a range, in order.
fn of_range<'m>(model: &'m Model, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Vec<(&'m Vec<u8>, &'m Vec<u8>)> {
    let is_behind = |key: &[u8]| match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let is_before = |key: &[u8]| match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    model.iter().filter(|(key, _)| is_behind(key) && is_before(key)).collect()
}

/// Does one random operation on both, and checks that they agree.
async fn act(
    tx: &mut Transaction<'_, '_>,
    things: &DynOrdered,
    model: &mut Model,
    (keys, values): (Lengths, Lengths),
    random: u64,
) -> Result<(), Error> {
    let (one, value) = (key(keys, random), value(values, random >> 20));
    match random >> 56 & 15 {
        0 | 1 => assert_eq!(things.get(tx, &one).await?.as_ref(), model.get(&one)),
        2..=5 => match things.insert(tx, &one, &value).await {
            Ok(()) => assert!(model.insert(one, value).is_none()),
            Err(Error::Exists(name)) => assert!(model.contains_key(&one) && name.key() == Some(&one)),
            Err(error) => return Err(error),
        },
        6 | 7 => assert_eq!(things.put(tx, &one, &value).await?, model.insert(one, value)),
        8 => match things.update(tx, &one, &value).await {
            Ok(()) => assert!(model.insert(one, value).is_some()),
            Err(Error::NotFound(name)) => assert!(!model.contains_key(&one) && name.key() == Some(&one)),
            Err(error) => return Err(error),
        },
        9..=11 => assert_eq!(things.remove(tx, &one).await?, model.remove(&one)),
        12 => match things.require(tx, &one).await {
            Ok(found) => assert_eq!(Some(&found), model.get(&one)),
            Err(Error::NotFound(name)) => assert!(!model.contains_key(&one) && name.key() == Some(&one)),
            Err(error) => return Err(error),
        },
        _ => {
            // Also ends that are shorter or longer than keys can be.
            let end = |random: u64| match random % 8 {
                0 => Vec::new(),
                1 => [key(keys, random >> 3), vec![b'a'; 3]].concat(),
                2 => [&key(keys, random >> 3)[..], &[0; 70]].concat(),
                3 => key(keys, random >> 3).into_iter().take(3).collect(),
                _ => key(keys, random >> 3),
            };
            let bound = |bytes, random: u64| match random % 5 {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Excluded(bytes),
                _ => Bound::Included(bytes),
            };
            let (from, to) = (end(random), end(random >> 10));
            let range @ (from, to) = (bound(&from[..], random >> 20), bound(&to[..], random >> 30));
            let limit = if random >> 33 & 1 == 0 { usize::MAX } else { random as usize / 8 % 6 };
            let expected = of_range(model, from, to);
            let rows = |rows: &[(Vec<u8>, Vec<u8>)]| rows.to_vec();
            let found = rows(&things.scan(tx, range, limit).await?);
            let found = found.iter().map(|(key, value)| (key, value));
            assert!(found.eq(expected.iter().copied().take(limit)), "{range:?}");
            let found = rows(&things.scan_back(tx, range, limit).await?);
            let found = found.iter().map(|(key, value)| (key, value));
            assert!(found.eq(expected.iter().copied().rev().take(limit)), "{range:?}");
            let ends = (things.first(tx, range).await?, things.last(tx, range).await?);
            let cloned =
                |row: Option<&(&Vec<u8>, &Vec<u8>)>| row.map(|(key, value)| ((*key).clone(), (*value).clone()));
            assert_eq!(ends, (cloned(expected.first()), cloned(expected.last())), "{range:?}");
        }
    }
    Ok(())
}

/// Asserts that nothing is locked, torn, prepared or different at a backup, and that the tree is
/// whole.
fn settled(cluster: &Cluster, things: &DynOrdered, worker: &mut Worker) -> TreeInspection {
    assert!(worker.drain().unwrap());
    let (records, tree) = cluster.inspect_dyn_ordered(things).unwrap();
    for found in &records {
        assert_eq!((found.locked, found.torn, found.differing_lines, found.prepared), (0, 0, 0, 0), "{found:?}");
    }
    assert_eq!(tree.fault, None);
    assert!(records.len() < 3 || records[2].records == tree.rows);
    tree
}

fn what_a_model_says_is_there(protocol: Protocol) {
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let cluster = on_every_fabric(protocol, 2).swap_remove(if number < 4 { number } else { 0 });
        let design = [Design::Fine, Design::Coarse(1), Design::Hybrid(0)][number % 3];
        let mut options = OrderedOptions::for_rows(200).design(design);
        // Keys of one length, or padded, can come first if their values fit.
        let (Exactly(keys) | UpTo(keys), Exactly(values) | UpTo(values)) = shape;
        options.keys_first = (keys < 60 && values < 400 && protocol.name().len().is_multiple_of(2)).then_some(5);
        let things = create(&cluster, shape, options);
        let by_call = things.by_call();
        let again = cluster.open_dyn_ordered("things", &schema(shape)).unwrap();
        let mut worker = worker(&cluster, 1, number as u64);
        let rows = worker.block_on(async |session| {
            let mut model = Model::new();
            for turn in 0..200 {
                let random = session.lane().random();
                let things = [&things, &again, &by_call][turn as usize % 3];
                // One operation or several in one transaction, which may be given up.
                let after = session.transact(async |tx| {
                    let mut after = model.clone();
                    for at in 0..=turn % 3 {
                        act(tx, things, &mut after, shape, random.rotate_left(7 * at)).await?;
                    }
                    if random & 15 == 0 { Err(things.missing(&[1])) } else { Ok(after) }
                });
                match after.await {
                    Ok(after) => model = after,
                    Err(Error::NotFound(_)) if random & 15 == 0 => {}
                    Err(error) => panic!("{shape:?}: {error}"),
                }
            }
            let found = session.transact(async |tx| things.scan(tx, .., usize::MAX).await).await.unwrap();
            assert!(found.into_iter().eq(model.iter().map(|(key, value)| (key.clone(), value.clone()))), "{shape:?}");
            model.len() as u64
        });
        assert_eq!(settled(&cluster, &things, &mut worker).rows, rows);
    }
}

/// A key comes before its extensions, and zeros count.
#[test]
fn keys_are_in_the_order_of_their_bytes() {
    let cluster = embedded(Protocol::default(), 2);
    let keys = [
        &b"\0"[..],
        b"\0\0",
        b"\0\0\0",
        b"\0\x01",
        b"\x01",
        b"a",
        b"a\0",
        b"a\0\0",
        b"a\0b",
        b"a\x01",
        b"aa",
        b"ab",
        b"b",
        b"\xff",
        b"\xff\0",
        b"\xff\xff",
        b"\xff\xff\xff",
    ];
    assert!(keys.is_sorted());
    let things = create(&cluster, (UpTo(3), UpTo(3)), OrderedOptions::for_rows(20));
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for key in keys.iter().rev() {
            session.transact(async |tx| things.insert(tx, key, key).await).await.unwrap();
        }
        let scan = async |session: &mut Session, from: &[u8], to: &[u8]| {
            let found = session.transact(async |tx| things.scan(tx, from..to, 100).await).await.unwrap();
            assert!(found.iter().all(|(key, value)| key == value));
            found.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(scan(session, b"", b"\xff\xff\xff\xff").await, keys);
        assert_eq!(scan(session, b"a", b"b").await, keys[5..12]);
        assert_eq!(scan(session, b"a\0", b"a\x01").await, keys[6..9]);
        assert_eq!(scan(session, b"a\0\0\0", b"a\0b\0").await, keys[8..9]);
        assert_eq!(scan(session, b"b", b"a").await, keys[..0]);
        for prefix in [&b""[..], b"a", b"a\0", b"a\0b", b"\xff", b"\xff\xff", b"b\xff", b"nothing", &[b'a'; 80]] {
            let found = session.transact(async |tx| things.scan_prefix(tx, prefix, 100).await).await.unwrap();
            let found: Vec<_> = found.into_iter().map(|(key, _)| key).collect();
            let expected: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
            assert!(found.iter().map(|key| &key[..]).eq(expected.into_iter().map(|key| &key[..])), "{prefix:?}");
        }
        assert_eq!(scan(session, b"", b"").await, keys[..0]);
    });
    assert_eq!(settled(&cluster, &things, &mut worker).rows, keys.len() as u64);
}

/// Thousands of keys are inserted in three orders, and removed again, so that leaves and inner
/// nodes are split and merged.
#[test]
fn a_tree_grows_and_shrinks() {
    const ROWS: u64 = 3000;
    for (turn, protocol) in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD].into_iter().enumerate() {
        let shapes = [(UpTo(40), UpTo(60)), (Exactly(12), UpTo(30)), (UpTo(62), UpTo(500)), (UpTo(512), UpTo(60))];
        // In the gate, every second shape under each protocol.
        let runs = |number: &usize| is_long() || (number + turn).is_multiple_of(2);
        for (number, shape) in shapes.into_iter().enumerate().filter(|(number, _)| runs(number)) {
            let cluster = embedded(protocol, 2);
            let rows = if shape.0 == UpTo(512) { ROWS / 3 } else { ROWS };
            let things = create(&cluster, shape, OrderedOptions::for_rows(rows).bytes(1 << 20));
            let key = |number: u64| match shape.0 {
                Exactly(_) => format!("{number:012}").into_bytes(),
                // Short and long ones, which differ early, late, or in between.
                UpTo(512) if !number.is_multiple_of(4) => {
                    let (group, begin) = (number / 100, [1, 5, 400][number as usize % 4 - 1]);
                    format!("{group:x<begin$}/{number:y<90}").into_bytes()
                }
                UpTo(_) => format!("{number}/of a row").into_bytes(),
            };
            let value = |number: u64| vec![number as u8; number as usize % 30];
            // Ascending, descending, and in no order.
            let order = |at: u64| [at, ROWS - 1 - at, at * 1999 % ROWS][number % 3];
            let mut model: Model = (0..ROWS).map(|number| (key(number), value(number))).collect();
            let mut worker = worker(&cluster, 1, 1);
            let insert = async |session: &mut Session, at: u64| {
                let insert = session.transact(async |tx| {
                    for at in at..at + 3 {
                        things.insert(tx, &key(order(at)), &value(order(at))).await?;
                    }
                    Ok(())
                });
                insert.await.unwrap();
            };
            worker.block_on(async |session| {
                for at in (0..ROWS).step_by(3) {
                    insert(session, at).await;
                }
            });
            let tree = settled(&cluster, &things, &mut worker);
            assert!(tree.rows == ROWS && tree.levels >= 3, "{tree:?}");
            let check = async |session: &mut Session, model: &Model| {
                let mut from = Bound::Unbounded;
                let mut expected = model.iter();
                loop {
                    let begin = from.as_ref().map(Vec::as_slice);
                    let scan =
                        async |tx: &mut Transaction<'_, '_>| things.scan(tx, (begin, Bound::Unbounded), 100).await;
                    let found = session.transact(scan).await.unwrap();
                    assert!(found.iter().all(|(key, value)| expected.next() == Some((key, value))));
                    match found.into_iter().next_back() {
                        Some((last, _)) => from = Bound::Excluded(last),
                        None => break,
                    }
                }
                assert!(expected.next().is_none());
            };
            worker.block_on(async |session| {
                check(session, &model).await;
                for at in 0..ROWS - 20 {
                    let gone = key(order(at));
                    let removed = session.transact(async |tx| things.remove(tx, &gone).await).await.unwrap();
                    assert_eq!(removed, model.remove(&gone));
                }
                check(session, &model).await;
                let back = session.transact(async |tx| things.scan_back(tx, .., 1000).await).await.unwrap();
                assert!(back.iter().map(|(key, value)| (key, value)).eq(model.iter().rev()));
            });
            let tree = settled(&cluster, &things, &mut worker);
            assert!(tree.rows == 20 && tree.empty_leaves == 0, "{tree:?}");
        }
    }
}

/// A closure drops an operation at one of its polls, and goes on and commits.
fn a_dropped_operation_has_done_all_of_it_or_nothing(protocol: Protocol) {
    // Few keys fit a node, and values have parts.
    if is_long() || [Protocol::DRTM_R, Protocol::FORD, Protocol::RTX].contains(&protocol) {
        drop_operations(protocol, UpTo(60), |number| [vec![b'k'; 50], vec![number]].concat());
    }
    drop_operations(protocol, UpTo(512), |number| vec![number; 500]);
}

fn drop_operations(protocol: Protocol, keys: Lengths, key: impl Fn(u8) -> Vec<u8>) {
    let (cluster, _) = options(protocol, 2).node_bytes(8 << 20).open_seeded(3).unwrap();
    let things = create(&cluster, (keys, UpTo(4000)), OrderedOptions::for_rows(100).bytes(200_000));
    let mut worker = worker(&cluster, 1, 3);
    worker.block_on(async |session| {
        // The next insert splits a leaf.
        for number in 0..14 {
            session.transact(async |tx| things.insert(tx, &key(2 * number), &[number; 10]).await).await.unwrap();
        }
        let all = async |session: &mut Session| {
            let found = session.transact(async |tx| things.scan(tx, .., 1000).await).await.unwrap();
            found.into_iter().map(|(key, value)| (key[50], value)).collect::<Vec<_>>()
        };
        for turn in 0..3 {
            for polls in 0.. {
                let before = all(session).await;
                let mut begun = session.begin().unwrap();
                let mut tx = begun.transaction();
                let (own, long) = (key(27), [7; 3000]);
                let done = match turn {
                    0 => cut_off(things.insert(&mut tx, &own, &long), polls).await.map(Result::unwrap),
                    1 => cut_off(things.put(&mut tx, &own, b"short"), polls).await.map(|put| put.map(drop).unwrap()),
                    _ => cut_off(things.remove(&mut tx, &own), polls).await.map(|gone| gone.map(drop).unwrap()),
                };
                begun.commit().await.unwrap();
                let after = all(session).await;
                assert_eq!(after != before, done.is_some(), "turn {turn}, {polls} polls");
                if done.is_some() {
                    let value = after.iter().find(|(number, _)| *number == 27).map(|(_, value)| &value[..]);
                    assert_eq!(value, [Some(&long[..]), Some(b"short"), None][turn]);
                    break;
                }
            }
        }
    });
    settled(&cluster, &things, &mut worker);
}

/// Clients move keys and change the lengths of values; scans see as many keys at any instant, and
/// every value whole.
fn a_scan_sees_every_key_once(protocol: Protocol) {
    const KEYS: u64 = 24;
    let mut scans = 0;
    for seed in seeds(0..4) {
        let (cluster, fabric) = options(protocol, 2).node_bytes(8 << 20).open_seeded(seed).unwrap();
        let values = UpTo(if seed % 2 == 0 { 150 } else { 900 });
        let (keys, longer) = if seed % 4 < 2 { (62, 1) } else { (500, 9) };
        let things = create(&cluster, (UpTo(keys), values), OrderedOptions::for_rows(200).bytes(100_000));
        let key = |number: u64| [vec![b'k'; number as usize % 50 * longer], vec![number as u8 + 1]].concat();
        let mut worker = worker(&cluster, 4, seed);
        worker.block_on(async |session| {
            for number in 0..KEYS {
                session.transact(async |tx| things.insert(tx, &key(2 * number), &[]).await).await.unwrap();
            }
        });
        let writing = Cell::new(2);
        let scanned = worker.run(async |client, session| {
            let mut scans = 0;
            for _ in 0..if client < 2 { 15 } else { 0 } {
                let random = session.lane().random();
                let (from, to) = (key(random % (2 * KEYS)), key((random >> 8) % (2 * KEYS)));
                let length = random as usize / 65_536 % if seed % 2 == 0 { 151 } else { 901 };
                let moved = session.transact(async |tx| {
                    let Some((moved, _)) = things.first(tx, &from[..]..).await? else { return Ok(()) };
                    if things.get(tx, &to).await?.is_none() {
                        things.remove(tx, &moved).await?;
                        things.insert(tx, &to, &vec![length as u8; length]).await?;
                    }
                    Ok(())
                });
                moved.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            if client < 2 {
                writing.set(writing.get() - 1);
                return 0;
            }
            while writing.get() > 0 {
                let found = session.transact(async |tx| match client {
                    2 => things.scan(tx, .., usize::MAX).await,
                    _ => things.scan_back(tx, .., usize::MAX).await,
                });
                match found.await {
                    Ok(found) => {
                        let is_whole = |value: &[u8]| value.iter().all(|byte| *byte == value.len() as u8);
                        assert!(found.len() as u64 == KEYS && found.iter().all(|(_, value)| is_whole(value)), "{seed}");
                        assert!(found.is_sorted_by(|one, other| (one.0 < other.0) == (client == 2)), "{seed}");
                        scans += 1;
                    }
                    Err(Error::Aborted(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                // Two scans that directly follow one another would keep writers out without end.
                session.lane().sleep(500_000).await;
            }
            scans
        });
        scans += scanned.iter().sum::<u64>();
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        assert_eq!(settled(&cluster, &things, &mut worker).rows, KEYS);
    }
    assert!(scans >= 4, "{scans}");
}

/// Keys and values of the greatest lengths are inserted, found and replaced, also where a leaf is
/// split.
fn the_longest_rows_fit(protocol: Protocol) {
    let shapes = [
        (Exactly(64), Exactly(20)),
        (UpTo(63), UpTo(20)),
        (Exactly(64), Exactly(20_000)),
        (UpTo(63), Exactly(300)),
        (UpTo(63), Exactly(28_000)),
        (Exactly(63), UpTo(DYN_VALUE_BYTES_MAX)),
        (UpTo(62), UpTo(DYN_VALUE_BYTES_MAX)),
        (UpTo(64), UpTo(20)),
        (UpTo(512), UpTo(219)),
        (UpTo(512), Exactly(220)),
        (UpTo(512), Exactly(DYN_VALUE_BYTES_MAX)),
        (UpTo(512), UpTo(DYN_VALUE_BYTES_MAX)),
    ];
    for shape in shapes {
        let cluster = embedded(protocol, 2);
        let things = create(&cluster, shape, OrderedOptions::for_rows(40));
        let (Exactly(key_bytes) | UpTo(key_bytes), Exactly(bytes) | UpTo(bytes)) = shape;
        // Half of the longest ones differ early: few of them fit a leaf.
        let begin = |number: u8| if key_bytes == 512 && number % 2 == 1 { number } else { 255 };
        let key = |number: u8| [vec![begin(number); key_bytes - 1], vec![number]].concat();
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            for number in 0..25 {
                let value = vec![number; bytes];
                session.transact(async |tx| things.insert(tx, &key(number), &value).await).await.unwrap();
                let again = session.transact(async |tx| things.put(tx, &key(number), &value).await);
                assert_eq!(again.await.unwrap().as_ref(), Some(&value), "{shape:?}");
            }
            for number in 0..25 {
                let found = session.transact(async |tx| things.last(tx, ..=&key(number)[..]).await).await.unwrap();
                assert_eq!(found, Some((key(number), vec![number; bytes])), "{shape:?}");
            }
            for number in 0..25 {
                let removed = session.transact(async |tx| things.remove(tx, &key(number)).await).await.unwrap();
                assert_eq!(removed, Some(vec![number; bytes]), "{shape:?}");
            }
        });
        assert_eq!(settled(&cluster, &things, &mut worker).rows, 0);
    }
}

/// The costs of transactions that have committed.
#[derive(Clone, Default)]
struct Costs(Rc<RefCell<Vec<Cost>>>);

impl Observer for Costs {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            self.0.borrow_mut().push(event.cost);
        }
    }
}

/// Every operation takes as many round trips as on a typed table of the same size. If both have the
/// same layout, it also moves as many bytes. A long value takes one round trip more.
fn it_costs_what_a_typed_table_costs(protocol: Protocol) {
    costs::<[u8; 20]>(protocol, (Exactly(8), Exactly(20)), 20);
    costs::<[u8; 20]>(protocol, (UpTo(7), UpTo(19)), 12);
    costs::<[u8; 20]>(protocol, (UpTo(512), UpTo(19)), 12);
    costs::<[u8; 400]>(protocol, (Exactly(8), Exactly(400)), 400);
    costs::<[u8; 400]>(protocol, (UpTo(7), Exactly(400)), 400);
    costs::<[u8; 400]>(protocol, (UpTo(7), UpTo(400)), 100);
    costs::<[u8; 400]>(protocol, (UpTo(7), UpTo(400)), 400);
}

fn costs<V: Record>(protocol: Protocol, shape: (Lengths, Lengths), bytes: usize) {
    let key = |number: u64| number.to_be_bytes()[if matches!(shape.0, Exactly(_)) { 0 } else { 1 }..].to_vec();
    let (value, of_type) = (vec![7; bytes], V::decode(&vec![7; V::BYTES]));
    // Each table is in its own cluster, so that both lie at the same places and rounds end in one
    // order.
    let of_turn = |is_typed: bool| {
        let (cluster, _) = options(protocol, 3).node_bytes(16 << 20).open_seeded(1).unwrap();
        let of_rows = OrderedOptions::for_rows(1000);
        let (typed, dynamic): (Option<Ordered<u64, V>>, _) = match is_typed {
            true => (Some(cluster.create_ordered("things", of_rows).unwrap()), None),
            false => (None, Some(create(&cluster, shape, of_rows))),
        };
        worker(&cluster, 1, 1).block_on(async |session| {
            let costs = Costs::default();
            session.observe(Some(Box::new(costs.clone())));
            let mut of_steps = Vec::new();
            for step in 0..260_u64 {
                let (number, from) = (3 * step % 200 + 100, step % 2 * 50 + 100);
                let (one, begin, end) = (&key(number)[..], &key(from)[..], &key(from + 50)[..]);
                let run = session.transact(async |tx| match (&typed, &dynamic) {
                    (Some(typed), _) => match step {
                        ..200 => typed.insert(tx, number, of_type).await,
                        200..210 => typed.require(tx, number).await.map(drop),
                        210..220 => typed.put(tx, number, of_type).await.map(drop),
                        220..230 => typed.update(tx, number, of_type).await,
                        230..240 => typed.scan(tx, from..from + 50, 40).await.map(drop),
                        240..250 => typed.scan_back(tx, from..from + 50, 40).await.map(drop),
                        _ => typed.remove(tx, number).await.map(drop),
                    },
                    (None, Some(things)) => match step {
                        ..200 => things.insert(tx, one, &value).await,
                        200..210 => things.require(tx, one).await.map(drop),
                        210..220 => things.put(tx, one, &value).await.map(drop),
                        220..230 => things.update(tx, one, &value).await,
                        230..240 => things.scan(tx, begin..end, 40).await.map(drop),
                        240..250 => things.scan_back(tx, begin..end, 40).await.map(drop),
                        _ => things.remove(tx, one).await.map(drop),
                    },
                    (None, None) => Ok(()),
                });
                run.await.unwrap();
                rest(session).await;
                of_steps.push(costs.0.take().pop().unwrap());
            }
            of_steps
        })
    };
    let (typed, dynamic) = (of_turn(true), of_turn(false));
    if shape == (Exactly(8), Exactly(V::BYTES)) {
        assert_eq!(typed, dynamic);
    }
    // The fewest of each kind, because other keys scatter otherwise in a hash table.
    let kinds = [0..200, 200..210, 210..220, 220..230, 230..240, 240..250, 250..260];
    let fewest = |costs: &[Cost]| {
        kinds.clone().map(|steps| costs[steps].iter().map(|cost| cost.round_trips).min().unwrap_or_default())
    };
    let (typed, dynamic) = (fewest(&typed), fewest(&dynamic));
    println!("{protocol:?} {shape:?} of {bytes}: {dynamic:?}; typed {typed:?}");
    if protocol == Protocol::DRTM_R {
        // One round trip brings what an insert needs, one takes the locks, and one writes the log.
        assert_eq!((dynamic[0], typed[0]), (3, 3), "{shape:?}");
    }
    // The rest of a long value takes one more, unless it is inserted, and validation of several
    // records another. FaRM's preset looks for where records are each time.
    let is_long = matches!(shape.1, UpTo(_)) && bytes > 132;
    let more = if is_long { 2 + u64::from(protocol == Protocol::FARM) } else { 0 };
    for (kind, (one, other)) in typed.into_iter().zip(dynamic).enumerate() {
        // Under `rtx`, the rest of a value is validated apart, and what is removed by its content
        // is named a second time, which brings its chain.
        let apart = u64::from(protocol == Protocol::RTX && (is_long || kind == 6));
        let more = if kind == 0 { 0 } else { more + apart };
        // More of short keys lie in one slotted leaf than in a typed one.
        let least = if shape.0 == UpTo(512) { 1 } else { one };
        assert!((least..=one + more).contains(&other), "kind {kind} of {shape:?}: {one}, {other}");
    }
}

/// Long keys that are hard to pack: alike up to their ends, alike in groups, and of a few long
/// runs. A tree of them stays low, so that no split has too many levels for a log entry.
#[test]
fn trees_of_long_keys_are_low() {
    const ROWS: u64 = 3000;
    for kind in 0..5 {
        let cluster = embedded([Protocol::DRTM_R, Protocol::FORD][kind % 2], 2);
        let things = create(&cluster, (UpTo(512), UpTo(20)), OrderedOptions::for_rows(ROWS));
        let of_group = |random: u64| vec![b'a' + (random >> 10) as u8 % 3; random as usize % 500];
        let key = |random: u64| -> Vec<u8> {
            let begin = match kind {
                0 => vec![b'k'; 504],
                1 => [&(random % 20).to_be_bytes()[..], &[b'k'; 490]].concat(),
                2 => return (0..16).flat_map(|at| [b'0' + (random >> at & 1) as u8; 32]).collect(),
                3 => vec![b'k'; random as usize % 500],
                _ => of_group(random),
            };
            [&begin[..], &random.to_be_bytes()].concat()
        };
        let mut worker = worker(&cluster, 1, 1);
        let mut model = Model::new();
        worker.block_on(async |session| {
            for _ in 0..ROWS {
                let one = key(session.lane().random());
                session.transact(async |tx| things.put(tx, &one, b"value").await).await.unwrap();
                model.insert(one, b"value".to_vec());
            }
            let found = session.transact(async |tx| things.scan(tx, .., usize::MAX).await).await.unwrap();
            assert!(found.into_iter().eq(model.clone()), "kind {kind}");
        });
        let tree = settled(&cluster, &things, &mut worker);
        assert!(tree.rows == model.len() as u64 && tree.levels <= 4, "kind {kind}: {tree:?}");
    }
}

/// Where a leaf is known, a lookup of a key of any length reads that leaf and nothing else.
#[test]
fn a_lookup_of_a_long_key_reads_one_leaf() {
    for (longest, node_bytes) in [(100, 992), (512, 2656)] {
        let cluster = embedded(Protocol::default(), 2);
        let things = create(&cluster, (UpTo(longest), UpTo(7)), OrderedOptions::for_rows(2000));
        let key = |number: u64| [&number.to_be_bytes()[..], &vec![b'.'; number as usize % (longest - 7)]].concat();
        worker(&cluster, 1, 1).block_on(async |session| {
            let costs = Costs::default();
            session.observe(Some(Box::new(costs.clone())));
            for number in 0..200 {
                session.transact(async |tx| things.insert(tx, &key(number), b"value").await).await.unwrap();
            }
            for _ in 0..2 {
                costs.0.take();
                for number in 0..200 {
                    session.transact(async |tx| things.require(tx, &key(number)).await).await.unwrap();
                }
            }
            rest(session).await;
            for cost in costs.0.take() {
                // A record's header and its key stand before the node.
                assert_eq!((cost.round_trips, cost.reads, cost.bytes_in), (1, 1, node_bytes + 24 + 8), "{cost:?}");
            }
        });
    }
}

/// A typed table and a table of bytes open each other, in leaves and out of them, if keys have one
/// length, values have one, and the schemas agree.
#[test]
fn typed_tables_and_tables_of_bytes_open_each_other() {
    #[derive(Clone, Copy, PartialEq, Debug, remora::Record)]
    struct Account {
        balance: i64,
        owner: [u8; 4],
    }

    let cluster = embedded(Protocol::default(), 2);
    let as_text = DynSchema::new("Account { balance: i64, owner: [u8; 4] }", Exactly(8), Exactly(12));
    assert_eq!(as_text, DynSchema::of::<u64, Account>());
    let options = OrderedOptions::for_rows(100);
    each_other::<u64, Account>(&cluster, "account", (7, Account { balance: 256, owner: *b"anna" }));
    each_other::<(u16, [u8; 3]), Words<50>>(&cluster, "words", ((1, *b"key"), Words::all(3)));
    let stored = cluster.open_dyn_ordered("account-typed", &as_text).unwrap();
    let bytes = worker(&cluster, 1, 1).block_on(async |session| {
        let typed: Ordered<u64, Account> = cluster.open_ordered("account-typed").unwrap();
        let both = session.transact(async |tx| {
            typed.insert(tx, 7, Account { balance: 256, owner: *b"anna" }).await?;
            stored.require(tx, &7_u64.to_be_bytes()).await
        });
        both.await.unwrap()
    });
    assert_eq!(bytes, [&[0, 1, 0, 0, 0, 0, 0, 0][..], b"anna"].concat());

    // A table with another schema is refused, even if its sizes are equal.
    let kind = |opened: Result<DynOrdered, remora::OpenError>| opened.unwrap_err().kind();
    let others = [
        DynSchema::new("other", Exactly(8), Exactly(12)),
        DynSchema::new("Account { balance: i64, owner: [u8; 4] }", Exactly(8), UpTo(12)),
        DynSchema::new("Account { balance: i64, owner: [u8; 4] }", Exactly(8), UpTo(11)),
        DynSchema::new("Account { balance: i64, owner: [u8; 4] }", UpTo(8), Exactly(12)),
        DynSchema::new("Account { balance: i64, owner: [u8; 4] }", UpTo(7), Exactly(12)),
        DynSchema::new("Account { balance: i64, owner: [u8; 4] }", UpTo(7), UpTo(11)),
    ];
    for (number, schema) in others.into_iter().enumerate() {
        assert_eq!(kind(cluster.open_dyn_ordered("account-typed", &schema)), OpenErrorKind::OtherTypes, "{schema:?}");
        let name = format!("other-{number}");
        cluster.create_dyn_ordered(&name, &schema, options.clone()).unwrap();
        let typed = cluster.open_ordered::<u64, Account>(&name).unwrap_err();
        assert_eq!(typed.kind(), OpenErrorKind::OtherTypes, "{schema:?}");
    }
}

fn each_other<K: Key + std::fmt::Debug, V: Record + PartialEq + std::fmt::Debug>(
    cluster: &Cluster,
    name: &str,
    (key, value): (K, V),
) {
    let schema = DynSchema::of::<K, V>();
    let options = OrderedOptions::for_rows(100);
    let (mut key_bytes, mut value_bytes) = (vec![0; K::BYTES], vec![0; V::BYTES]);
    key.encode(&mut key_bytes);
    value.encode(&mut value_bytes);
    let mut worker = worker(cluster, 1, 1);
    let from_typed = format!("{name}-typed");
    let typed = cluster.load_ordered(&from_typed, options.clone(), [(key, value)]).unwrap();
    let dynamic = cluster.open_dyn_ordered(&from_typed, &schema).unwrap();
    let row = (key_bytes.clone(), value_bytes.clone());
    worker.block_on(async |session| {
        let found = session.transact(async |tx| dynamic.scan(tx, .., 10).await).await.unwrap();
        assert_eq!(found, std::slice::from_ref(&row));
        let changed = session.transact(async |tx| {
            dynamic.get_mut(tx, &key_bytes).await?[0] ^= 1;
            dynamic.get_mut(tx, &key_bytes).await?[0] ^= 1;
            typed.remove(tx, key).await
        });
        assert_eq!(changed.await.unwrap(), Some(value));
        assert_eq!(session.transact(async |tx| dynamic.get(tx, &key_bytes).await).await.unwrap(), None);
    });
    let from_bytes = format!("{name}-bytes");
    let dynamic = cluster.create_dyn_ordered(&from_bytes, &schema, options).unwrap();
    let typed: Ordered<K, V> = cluster.open_ordered(&from_bytes).unwrap();
    worker.block_on(async |session| {
        session.transact(async |tx| dynamic.insert(tx, &key_bytes, &value_bytes).await).await.unwrap();
        let found = session.transact(async |tx| typed.scan(tx, .., 10).await).await.unwrap();
        assert_eq!(found, [(key, value)]);
        session.transact(async |tx| typed.update(tx, key, value).await).await.unwrap();
        let removed = session.transact(async |tx| dynamic.remove(tx, &key_bytes).await).await.unwrap();
        assert_eq!(removed, Some(value_bytes));
    });
    settled(cluster, &dynamic, &mut worker);
}

#[test]
fn bad_shapes_are_refused() {
    let cluster = embedded(Protocol::default(), 2);
    let refused = |keys, values, limit: &[&str]| {
        let schema = schema((keys, values));
        for refused in [
            cluster.create_dyn_ordered("refused", &schema, OrderedOptions::for_rows(10)).unwrap_err(),
            cluster.open_dyn_ordered("refused", &schema).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), OpenErrorKind::Argument, "{refused}");
            let text = refused.to_string();
            assert!(text.contains("\"refused") && limit.iter().all(|limit| text.contains(limit)), "{limit:?}: {text}");
        }
    };
    refused(Exactly(0), Exactly(1), &["length of keys"]);
    refused(UpTo(0), Exactly(1), &["length of keys"]);
    refused(UpTo(1), UpTo(0), &["length of values"]);
    refused(Exactly(65), Exactly(1), &["65", "64"]);
    refused(Exactly(64), UpTo(1000), &["64", "63"]);
    refused(UpTo(513), Exactly(1), &["513", "512"]);
    refused(UpTo(513), UpTo(1000), &["513", "512"]);
    refused(UpTo(64), Exactly(DYN_VALUE_BYTES_MAX + 1), &["16385", "16384"]);
    refused(UpTo(10), UpTo(DYN_VALUE_BYTES_MAX + 1), &["16385", "16384"]);
    refused(Exactly(10), UpTo(DYN_VALUE_BYTES_MAX + 1), &["16385", "16384"]);
    refused(Exactly(8), Exactly(1 << 20), &["1048576", "32704"]);
    for huge in [usize::MAX, usize::MAX - 1, 1 << 32 | 4] {
        refused(Exactly(huge), Exactly(1), &["64"]);
        refused(UpTo(huge), Exactly(1), &["512"]);
        refused(Exactly(8), Exactly(huge), &["32704"]);
        refused(Exactly(8), UpTo(huge), &["16384"]);
        refused(UpTo(8), Exactly(huge), &["32704"]);
        refused(UpTo(huge), UpTo(huge), &["512"]);
    }
    // The catalog refuses records of this size, with the limit.
    let large = schema((Exactly(8), Exactly(32_700)));
    let large = cluster.create_dyn_ordered("large", &large, OrderedOptions::for_rows(10)).unwrap_err();
    assert!(large.kind() == OpenErrorKind::Argument && large.to_string().contains("32704"), "{large}");
    let short = schema((UpTo(20), UpTo(200)));
    let none = cluster.create_dyn_ordered("none", &short, OrderedOptions::for_rows(0)).unwrap_err();
    assert_eq!(none.kind(), OpenErrorKind::Argument, "{none}");
    assert_eq!(cluster.open_dyn_ordered("none", &short).unwrap_err().kind(), OpenErrorKind::NoTable);
}

/// Keys and values of wrong lengths are refused by every verb, and leave nothing behind.
#[test]
fn bad_rows_are_refused() {
    let cluster = embedded(Protocol::default(), 2);
    let short =
        cluster.create_dyn_ordered("short", &schema((UpTo(20), UpTo(100))), OrderedOptions::for_rows(10)).unwrap();
    let long =
        cluster.create_dyn_ordered("long", &schema((UpTo(20), UpTo(400))), OrderedOptions::for_rows(10)).unwrap();
    let exact =
        cluster.create_dyn_ordered("exact", &schema((Exactly(3), Exactly(4))), OrderedOptions::for_rows(10)).unwrap();
    let wide =
        cluster.create_dyn_ordered("wide", &schema((UpTo(512), UpTo(100))), OrderedOptions::for_rows(10)).unwrap();
    let twice = cluster.create_dyn_ordered("short", short.schema(), OrderedOptions::for_rows(10)).unwrap_err();
    assert_eq!(twice.kind(), OpenErrorKind::TableExists);
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for (table, key, value, limit) in [
            (&short, &b""[..], &b"v"[..], Limit::KeyLength { found: 0, max: 20 }),
            (&short, &[1; 21], b"v", Limit::KeyLength { found: 21, max: 20 }),
            (&short, b"key", &[1; 101], Limit::Value { found: 101, max: 100 }),
            (&long, &[1; 21], b"v", Limit::KeyLength { found: 21, max: 20 }),
            (&wide, b"", b"v", Limit::KeyLength { found: 0, max: 512 }),
            (&wide, &[1; 513], b"v", Limit::KeyLength { found: 513, max: 512 }),
            (&wide, &[1; 512], &[1; 101], Limit::Value { found: 101, max: 100 }),
            (&long, b"key", &[1; 401], Limit::Value { found: 401, max: 400 }),
            (&exact, b"four", b"four", Limit::Key { found: 4, expected: 3 }),
            (&exact, b"", b"four", Limit::Key { found: 0, expected: 3 }),
            (&exact, b"key", b"12345", Limit::ValueLength { found: 5, expected: 4 }),
            (&exact, b"key", b"123", Limit::ValueLength { found: 3, expected: 4 }),
        ] {
            let is_of_key = matches!(limit, Limit::Key { .. } | Limit::KeyLength { .. });
            for verb in 0..if is_of_key { 6 } else { 3 } {
                let refused = session.transact(async |tx| match verb {
                    0 => table.put(tx, key, value).await.map(drop),
                    1 => table.insert(tx, key, value).await,
                    2 => table.update(tx, key, value).await,
                    3 => table.get(tx, key).await.map(drop),
                    4 => table.require(tx, key).await.map(drop),
                    _ => table.remove(tx, key).await.map(drop),
                });
                let refused = refused.await.unwrap_err();
                assert_eq!(refused.limit(), Some(limit), "{refused}");
                assert!(refused.to_string().contains(&format!("{:?}", table.name())), "{refused}");
            }
        }
        let refused = session.transact(async |tx| short.get_mut(tx, b"key").await.map(drop)).await.unwrap_err();
        assert!(matches!(refused, Error::Misuse(Misuse::NotInPlace { .. })), "{refused}");
        for table in [&short, &long, &exact, &wide] {
            let done = session.transact(async |tx| {
                assert_eq!(table.put(tx, b"key", b"1234").await?, None);
                table.scan(tx, &b"k"[..].., 10).await
            });
            assert_eq!(done.await.unwrap(), [(b"key".to_vec(), b"1234".to_vec())]);
        }
    });
    for table in [&short, &long, &exact, &wide] {
        assert_eq!(settled(&cluster, table, &mut worker).rows, 1);
    }
}

/// A table is opened or created, dropped with all of its parts, and used by a pool.
#[test]
fn a_table_comes_and_goes() {
    let cluster = embedded(Protocol::default(), 2);
    for shape in [(UpTo(20), UpTo(30)), (UpTo(20), UpTo(3000)), (Exactly(8), Exactly(500)), (UpTo(100), UpTo(3000))] {
        let (schema, options) = (schema(shape), OrderedOptions::for_rows(10));
        let open = || cluster.open_or_create_dyn_ordered("things", &schema, options.clone());
        let (created, opened) = (open().unwrap(), open().unwrap());
        assert_eq!((created.name(), opened.schema()), ("things", &schema));
        let db = cluster.db(1, Default::default()).unwrap();
        let (key, value) = (b"of eight".to_vec(), vec![1; if shape.1 == Exactly(500) { 500 } else { 5 }]);
        let row = (key.clone(), value.clone());
        db.transact_blocking(async move |tx| created.insert(tx, &key, &value).await).unwrap();
        assert_eq!(db.transact_blocking(async move |tx| opened.first(tx, ..).await).unwrap(), Some(row));
        drop(db);
        assert_eq!(cluster.drop_ordered("things").unwrap(), Freed::Now);
        assert_eq!(cluster.open_dyn_ordered("things", &schema).unwrap_err().kind(), OpenErrorKind::Dropped);
        // All of its names are free.
        cluster.create_dyn_ordered("things", &schema, options).unwrap();
        assert_eq!(cluster.drop_ordered("things").unwrap(), Freed::Now);
    }
}

/// Values of one length are changed in place, in a leaf or out of it.
#[test]
fn values_of_one_length_are_changed_in_place() {
    let cluster = embedded(Protocol::default(), 2);
    let shapes = [(Exactly(3), 4), (UpTo(60), 4), (UpTo(512), 4), (Exactly(3), 300), (UpTo(60), 300)];
    for (number, (keys, bytes)) in shapes.into_iter().enumerate() {
        let schema = schema((keys, Exactly(bytes)));
        let counters = cluster.create_dyn_ordered(&number.to_string(), &schema, OrderedOptions::for_rows(10)).unwrap();
        worker(&cluster, 1, 1).block_on(async |session| {
            let missing = session.transact(async |tx| counters.get_mut(tx, b"one").await.map(drop)).await;
            assert!(matches!(&missing, Err(Error::NotFound(name)) if name.key() == Some(b"one")), "{missing:?}");
            let changed = session.transact(async |tx| {
                counters.insert(tx, b"one", &vec![b'a'; bytes]).await?;
                counters.get_mut(tx, b"one").await?[1] = b'B';
                counters.get(tx, b"one").await
            });
            assert_eq!(changed.await.unwrap().unwrap()[..4], *b"aBaa");
            session.transact(async |tx| counters.get_mut(tx, b"one").await.map(|value| value[3] = b'!')).await.unwrap();
            let found = session.transact(async |tx| counters.require(tx, b"one").await).await.unwrap();
            assert_eq!((&found[..4], found.len()), (&b"aBa!"[..], bytes));
        });
    }
}

/// Lengths that make no sense are an error: never a panic.
#[test]
fn damaged_lengths_are_told() {
    #[derive(Clone, Copy, remora::Record)]
    #[record(schema = "things; keys of up to 7 bytes, values of up to 9 bytes")]
    struct Padded([u8; 10]);

    let cluster = embedded(Protocol::default(), 2);
    let things = create(&cluster, (UpTo(7), UpTo(9)), OrderedOptions::for_rows(10));
    let padded: Ordered<[u8; 8], Padded> = cluster.open_ordered("things").unwrap();
    worker(&cluster, 1, 1).block_on(async |session| {
        session.transact(async |tx| things.put(tx, b"one", b"value").await).await.unwrap();
        let stored = session.transact(async |tx| padded.require(tx, *b"one\0\0\0\0\x03").await).await.unwrap();
        assert_eq!(stored.0, *b"value\0\0\0\0\x05");
        let few = TransactionOptions::default().attempts(3);
        let damaged =
            |error: Error| assert!(matches!(&error, Error::Damaged { table, .. } if table == "things"), "{error}");
        for length in [10, 255] {
            let mut wrong = stored;
            wrong.0[9] = length;
            session.transact(async |tx| padded.update(tx, *b"one\0\0\0\0\x03", wrong).await).await.unwrap();
            damaged(session.transact_with(few, async |tx| things.get(tx, b"one").await).await.unwrap_err());
            damaged(session.transact_with(few, async |tx| things.put(tx, b"one", b"").await).await.unwrap_err());
            damaged(session.transact_with(few, async |tx| things.remove(tx, b"one").await).await.unwrap_err());
            damaged(session.transact_with(few, async |tx| things.scan(tx, .., 9).await).await.unwrap_err());
        }
        session.transact(async |tx| padded.remove(tx, *b"one\0\0\0\0\x03").await).await.unwrap();
        session.transact(async |tx| padded.insert(tx, *b"two\0\0\0\0\x08", stored).await).await.unwrap();
        damaged(session.transact_with(few, async |tx| things.scan(tx, .., 9).await).await.unwrap_err());
        damaged(session.transact_with(few, async |tx| things.last(tx, ..).await).await.unwrap_err());
    });
}

/// Handles of several kinds take part in one transaction.
#[test]
fn it_is_used_together_with_other_tables() {
    let cluster = embedded(Protocol::default(), 2);
    let records: Table<u64, Words<1>> = table(&cluster, "records", TableOptions::for_rows(4), Words([0]));
    let things = create(&cluster, (UpTo(20), UpTo(1000)), OrderedOptions::for_rows(10));
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        let both = async |session: &mut Session, gives_up: bool| {
            let both = session.transact(async |tx| {
                tx.prefetch(Intent::Update, [(&records, 1)]).await?;
                records.get_mut(tx, 1).await?.0[0] += 1;
                things.put(tx, b"key", &[1; 700]).await?;
                if gives_up { Err(things.missing(b"key")) } else { Ok(()) }
            });
            both.await.is_ok()
        };
        let look = async |session: &mut Session| {
            let look =
                session.transact(async |tx| Ok((records.require(tx, 1).await?.0[0], things.get(tx, b"key").await?)));
            look.await.unwrap()
        };
        assert!(!both(session, true).await);
        assert_eq!(look(session).await, (0, None));
        assert!(both(session, false).await);
        assert_eq!(look(session).await, (1, Some(vec![1; 700])));
    });
    settled(&cluster, &things, &mut worker);
}
