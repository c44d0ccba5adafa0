//! Ordered tables: each is an ordered map whose ranges have no phantoms, whatever nodes are split
//! or merged, whichever clients die, and whatever wrong places clients remember.

#[macro_use]
mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use remora::admin::TreeInspection;
use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::{ClientId, Cost, Lane, Prng};
use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::{Protocol, Validation};
use remora::{
    Cluster, Design, Error, Intent, Limit, OpenError, Ordered, OrderedOptions, Reason, Session, Table, TableOptions,
    Transaction, Verdict, Worker, WorkerOptions,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use support::{Words, embedded, on_every_fabric, options, seeds, table, worker};

most_protocols! {
    a_map_of_long_values,
    an_empty_range_is_filled_once,
    a_client_dies_at_every_step_of_a_split,
    a_client_dies_at_every_step_of_a_merge,
    a_client_dies_at_every_step_of_a_change_by_call,
    a_scan_sees_every_key_once,
    roots_are_split_side_by_side,
    threads_count_the_same,
    a_queue_leaves_nothing_behind,
}

every_protocol! {
    it_is_a_map,
    a_leaf_that_changes_between_its_parts_is_refused,
    who_remembers_something_wrong_finds_it,
    what_does_not_fit_changes_nothing,
}

/// A key of 48 bytes, so that few fit a node.
type Wide = ([u8; 40], u64);
/// A value of which a leaf has room for five.
type Value = Words<15>;
const LEAF: u64 = 5;
/// Where tables are split into partitions.
const CUTS: [u64; 3] = [20, 90, 91];

fn key(number: u64) -> Wide {
    ([0; 40], number)
}

fn seeded<const WORDS: usize>(
    protocol: Protocol,
    seed: u64,
    rows: u64,
) -> (Cluster, Seeded, Ordered<Wide, Words<WORDS>>) {
    seeded_in_parts(protocol, seed, rows, &[])
}

/// Like `seeded`, but some tables are split into partitions at these keys.
fn seeded_in_parts<const WORDS: usize>(
    protocol: Protocol,
    seed: u64,
    rows: u64,
    cuts: &[u64],
) -> (Cluster, Seeded, Ordered<Wide, Words<WORDS>>) {
    let options = options(protocol, 2).node_bytes(8 << 20);
    let (cluster, fabric) = options.open_seeded(seed).unwrap();
    // Of every design in turn.
    let design = [Design::Fine, Design::Coarse(1), Design::Hybrid(0)][seed as usize % 3];
    let mut options = OrderedOptions::for_rows(rows).design(design);
    // Half of these in partitions, some of which stay empty.
    let number = Protocol::ALL.iter().position(|one| *one == protocol).unwrap();
    if design != Design::Fine && (seed as usize + seed as usize / 3 + number).is_multiple_of(2) {
        options = options.split_at(cuts.iter().map(|number| key(*number)));
    }
    // Every design and every way to remember also with keys first, under some of the protocols.
    options.keys_first = (seed as usize + protocol.name().len()).is_multiple_of(2).then_some(LEAF as u16);
    let ordered = cluster.create_ordered("ordered", options).unwrap();
    (cluster, fabric, as_of(seed, ordered))
}

/// Returns a handle that remembers leaves in one of the two ways.
fn as_of<const WORDS: usize>(seed: u64, ordered: Ordered<Wide, Words<WORDS>>) -> Ordered<Wide, Words<WORDS>> {
    if seed.is_multiple_of(2) { ordered } else { ordered.learned() }
}

/// Inspects a table's tree. The tree and its records must be as they should be.
fn look<const WORDS: usize>(cluster: &Cluster, ordered: &Ordered<Wide, Words<WORDS>>) -> TreeInspection {
    let mut values = 0;
    let (records, tree) = cluster.inspect_ordered(ordered, |_, _| values += 1).unwrap();
    assert_eq!((&tree.fault, values), (&None, tree.rows));
    for records in &records {
        assert_eq!((records.locked, records.torn, records.differing_lines), (0, 0, 0), "{records:?}");
        // FORD's recovery leaves vacant slots so.
        assert!(records.prepared == 0 || matches!(cluster.protocol(), Protocol::Ford(_)), "{records:?}");
    }
    let there = [tree.inner_nodes, tree.leaves, tree.rows];
    assert!(records.iter().map(|table| table.records).eq(there.into_iter().take(records.len())));
    tree
}

/// All keys, in order, with the first words of their values.
async fn all(tx: &mut Transaction<'_, '_>, ordered: &Ordered<Wide, Value>) -> Result<Vec<(u64, u64)>, Error> {
    let found = ordered.scan(tx, .., usize::MAX).await?;
    Ok(found.into_iter().map(|((_, number), value)| (number, value.0[0])).collect())
}

async fn fill(session: &mut Session, ordered: &Ordered<Wide, Value>, keys: impl IntoIterator<Item = u64>) {
    for number in keys {
        session.transact(async |tx| ordered.insert(tx, key(number), Value::all(number)).await).await.unwrap();
    }
}

/// What a transaction gave up for.
#[derive(Debug, thiserror::Error)]
#[error("given up")]
struct GivenUp;

type Model = BTreeMap<u64, u64>;

/// Does one random operation on both, and checks that they agree.
async fn step<const WORDS: usize>(
    tx: &mut Transaction<'_, '_>,
    ordered: &Ordered<Wide, Words<WORDS>>,
    model: &mut Model,
    (random, keys, grows): (&mut Prng, u64, bool),
) -> Result<(), Error> {
    let (number, other, word) = (random.below(keys), random.below(keys), random.next_u64());
    let value = Words::<WORDS>::all(word);
    let (forgetful, by_call) = (ordered.without_memory(), ordered.by_call());
    let forgetful_by_call = forgetful.by_call();
    let ordered = match random.below(8) {
        0 => &forgetful,
        1 => &forgetful_by_call,
        2..4 => &by_call,
        _ => ordered,
    };
    match random.below(8) {
        0 => ordered.prefetch(tx, key(other), Intent::Read),
        1 => ordered.prefetch(tx, key(number), Intent::Insert),
        2 => ordered.prefetch(tx, key(other), Intent::Delete),
        _ => {}
    }
    let pairs = |found: Vec<(Wide, Words<WORDS>)>| found.into_iter().map(|((_, number), value)| (number, value.0[0]));
    match random.below(16) {
        0..6 if grows => match ordered.insert(tx, key(number), value).await {
            Ok(()) => assert_eq!(model.insert(number, word), None),
            Err(Error::Exists(_)) => assert!(model.contains_key(&number)),
            Err(error) => return Err(error),
        },
        0..=6 => {
            let removed = ordered.remove(tx, key(number)).await?;
            assert_eq!(removed.map(|value| value.0[0]), model.remove(&number));
        }
        7 | 8 => {
            let put = ordered.put(tx, key(number), value).await?;
            assert_eq!(put.map(|value| value.0[0]), model.insert(number, word));
        }
        9 => match ordered.update(tx, key(number), value).await {
            Ok(()) => assert!(model.insert(number, word).is_some()),
            Err(Error::NotFound(_)) => assert!(!model.contains_key(&number)),
            Err(error) => return Err(error),
        },
        10 | 11 => {
            let found = ordered.get(tx, key(number)).await?;
            assert_eq!(found.map(|value| value.0[0]), model.get(&number).copied());
        }
        kind => {
            let (from, to) = (number.min(other), number.max(other));
            let bound = |number, exclusive| if exclusive { Bound::Excluded(number) } else { Bound::Included(number) };
            let (from, to) = (bound(from, kind == 12 && from < to), bound(to, kind == 13));
            let limit = random.below(40) as usize;
            let range = (from.map(key), to.map(key));
            let expected: Vec<_> = model.range((from, to)).map(|(number, word)| (*number, *word)).collect();
            let scanned = pairs(ordered.scan(tx, range, limit).await?);
            assert!(scanned.eq(expected.iter().copied().take(limit)), "{from:?} {to:?} {limit}");
            let back = pairs(ordered.scan_back(tx, range, limit).await?);
            assert!(back.eq(expected.iter().copied().rev().take(limit)), "{from:?} {to:?} {limit}");
            let ends = (ordered.first(tx, range).await?, ordered.last(tx, range).await?);
            let ends = (ends.0.map(|(key, _)| key.1), ends.1.map(|(key, _)| key.1));
            assert_eq!(ends, (expected.first().map(|pair| pair.0), expected.last().map(|pair| pair.0)));
        }
    }
    Ok(())
}

fn it_is_a_map(protocol: Protocol) {
    map_of::<15>(protocol);
}

fn a_map_of_long_values(protocol: Protocol) {
    map_of::<40>(protocol);
}

fn map_of<const WORDS: usize>(protocol: Protocol) {
    for seed in seeds(0..3) {
        let (cluster, fabric, ordered) = seeded_in_parts::<WORDS>(protocol, seed, 400, &CUTS);
        let mut worker = worker(&cluster, 1, seed);
        let (mut random, mut model) = (Prng::new(seed), Model::new());
        let (mut levels, mut given_up) = (0, 0);
        for phase in 0..6 {
            let (grows, keys) = (phase % 2 == 0, if phase < 4 { 300 } else { 30 });
            for _ in 0..90 {
                let (count, gives_up) = (1 + random.below(5), random.below(8) == 0);
                let start = random;
                let ran = worker.block_on(async |session| {
                    session
                        .transact(async |tx| {
                            // It may run again.
                            let (mut random, mut model) = (start, model.clone());
                            for _ in 0..count {
                                step(tx, &ordered, &mut model, (&mut random, keys, grows)).await?;
                            }
                            if gives_up { Err(Error::user(GivenUp)) } else { Ok((random, model)) }
                        })
                        .await
                });
                match ran {
                    Ok(after) => (random, model) = after,
                    Err(Error::User(_)) if gives_up => {
                        random.next_u64();
                        given_up += 1;
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            assert!(worker.drain().unwrap());
            fabric.settle_services();
            let tree = look(&cluster, &ordered);
            assert_eq!(tree.rows, model.len() as u64, "seed {seed}");
            assert!(tree.empty_leaves < tree.partitions || tree.leaves == tree.partitions, "{tree:?}");
            levels = levels.max(tree.levels);
        }
        assert!((levels >= 3 || WORDS > 15) && given_up > 10, "seed {seed}: {levels} {given_up}");
    }
}

/// Writers move keys, by a delete and an insert in one transaction, so that leaves are split and
/// merged all the time: at any instant there are as many.
fn a_scan_sees_every_key_once(protocol: Protocol) {
    const KEYS: u64 = 200;
    let (mut levels, mut scans) = (0, 0);
    for seed in seeds(0..4) {
        let (cluster, fabric, ordered) = seeded_in_parts::<15>(protocol, seed, 4 * KEYS, &CUTS);
        let mut worker = worker(&cluster, 5, seed);
        let there = KEYS / 3;
        worker.block_on(async |session| fill(session, &ordered, (0..there).map(|number| 3 * number)).await);
        let writing = Cell::new(3);
        let scanned = worker.run(async |client, session| {
            let mut random = Prng::new(seed * 100 + client as u64);
            let mut scans = 0;
            if client < 3 {
                for turn in 0..30 {
                    let (from, to) = (random.below(KEYS), random.below(KEYS));
                    session
                        .transact(async |tx| {
                            // The next key at or after `from`, so that there is mostly one.
                            let Some((moved, value)) = ordered.first(tx, key(from)..).await? else { return Ok(()) };
                            if ordered.get(tx, key(to)).await?.is_none() {
                                ordered.remove(tx, moved).await?;
                                ordered.insert(tx, key(to), value).await?;
                            }
                            Ok(())
                        })
                        .await
                        .unwrap_or_else(|error| panic!("seed {seed}, turn {turn}: {error}"));
                }
                writing.set(writing.get() - 1);
                return 0;
            }
            while writing.get() > 0 {
                let found = session.transact(async |tx| {
                    if client == 3 {
                        return all(tx, &ordered).await;
                    }
                    let found = ordered.scan_back(tx, key(0)..key(KEYS), usize::MAX).await?;
                    Ok(found.into_iter().rev().map(|((_, number), value)| (number, value.0[0])).collect())
                });
                match found.await {
                    Ok(found) => {
                        assert!(found.is_sorted_by(|one, other| one.0 < other.0), "seed {seed}: {found:?}");
                        // Each was given a value of its own, which it keeps.
                        let mut values: Vec<_> = found.iter().map(|(_, word)| *word).collect();
                        values.sort_unstable();
                        let expected: Vec<_> = (0..there).map(|number| 3 * number).collect();
                        assert_eq!(values, expected, "seed {seed}");
                        scans += 1;
                    }
                    Err(Error::Aborted(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                if protocol.spec().locks_reads {
                    // A scan keeps writers out while it lasts. Two scans that directly follow one
                    // another would do so without end.
                    session.lane().sleep(random.below(2_000_000)).await;
                }
            }
            scans
        });
        scans += scanned.iter().sum::<u64>();
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        let tree = look(&cluster, &ordered);
        assert_eq!(tree.rows, there, "seed {seed}");
        levels = levels.max(tree.levels);
    }
    assert!(levels >= 3 && scans >= 8, "{levels} {scans}");
}

/// Write skew by phantoms: each inserts its own key if the range has none.
fn an_empty_range_is_filled_once(protocol: Protocol) {
    for seed in seeds(0..25) {
        let (cluster, fabric, ordered) = seeded::<15>(protocol, seed, 100);
        let mut worker = worker(&cluster, 3, seed);
        // Leaves begin at 0, 40, 80 and so on; the range is the end of one and the beginning of the
        // next.
        worker.block_on(async |session| {
            fill(session, &ordered, (0..30).map(|number| 10 * number)).await;
            for number in 5..=10 {
                session.transact(async |tx| ordered.remove(tx, key(10 * number)).await).await.unwrap();
            }
        });
        let inserted = worker.run(async |client, session| {
            session
                .transact(async |tx| {
                    if !ordered.scan(tx, key(50)..key(110), 10).await?.is_empty() {
                        return Ok(0);
                    }
                    ordered.insert(tx, key([55, 85, 95][client]), Value::all(1)).await?;
                    Ok(1)
                })
                .await
                .unwrap()
        });
        assert_eq!(inserted.iter().sum::<u64>(), 1, "seed {seed}: {inserted:?}");
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        let tree = look(&cluster, &ordered);
        assert_eq!((tree.rows, tree.leaves), (25, 8));
    }
}

/// A transaction looks a key up, which reads a part of its leaf. Another one changes the leaf, or
/// removes it. When the first one then reads the whole leaf, both reads must be of one state.
fn a_leaf_that_changes_between_its_parts_is_refused(protocol: Protocol) {
    for (seed, removes) in [(1, false), (2, true)] {
        let (cluster, _) = options(protocol, 2).node_bytes(8 << 20).open_seeded(seed).unwrap();
        let of_rows = OrderedOptions::for_rows(100).keys_first(LEAF as u16);
        let ordered: Ordered<Wide, Value> = cluster.create_ordered("ordered", of_rows).unwrap();
        let mut worker = worker(&cluster, 2, seed);
        worker.block_on(async |session| fill(session, &ordered, 0..30).await);
        let (has_read, has_changed, attempts) = (Cell::new(false), Cell::new(false), Cell::new(0));
        // Under two-phase locking, the writer waits for the reader.
        let wait = async |lane: &Lane, until: &Cell<bool>| {
            for _ in 0..100 {
                if !until.get() {
                    lane.sleep(10_000).await;
                }
            }
        };
        worker.run(async |client, session| {
            if client == 1 {
                wait(session.lane(), &has_read).await;
                let change = session.transact(async |tx| {
                    for number in 8..12 {
                        match removes {
                            true => drop(ordered.remove(tx, key(number)).await?),
                            false => ordered.update(tx, key(number), Value::all(100 + number)).await?,
                        }
                    }
                    Ok(())
                });
                change.await.unwrap();
                has_changed.set(true);
                return 0;
            }
            let seen = session.transact(async |tx| {
                attempts.set(attempts.get() + 1);
                let one = ordered.get(tx, key(9)).await?.map(|value| value.0[0]);
                has_read.set(true);
                wait(tx.lane(), &has_changed).await;
                let all = all(tx, &ordered).await?;
                Ok((one, all.into_iter().find(|(number, _)| *number == 9).map(|(_, value)| value)))
            });
            let (one, other) = seen.await.unwrap();
            assert_eq!(one, other, "{protocol:?}");
            0
        });
        assert!(attempts.get() > 1 || protocol.spec().locks_reads, "{protocol:?}: the leaf has changed");
    }
}

/// From an empty root on, by several at once, and again after everything has been removed.
fn roots_are_split_side_by_side(protocol: Protocol) {
    for seed in seeds(0..4) {
        let (cluster, fabric, ordered) = seeded::<15>(protocol, seed, 200);
        let mut worker = worker(&cluster, 4, seed);
        for _ in 0..2 {
            worker.run(async |client, session| {
                let mine = as_of(seed, cluster.open_ordered::<Wide, Value>("ordered").unwrap());
                fill(session, &mine, (0..10).map(|number| 4 * number + client as u64)).await;
                for number in 0..10 {
                    let number = 4 * number + client as u64;
                    let found = session.transact(async |tx| mine.get(tx, key(number)).await).await.unwrap();
                    assert_eq!(found, Some(Value::all(number)), "seed {seed}");
                }
            });
            assert!(worker.drain().unwrap());
            fabric.settle_services();
            let tree = look(&cluster, &ordered);
            assert!(tree.rows == 40 && tree.levels >= 2, "seed {seed}: {tree:?}");
            worker.run(async |client, session| {
                for number in 0..10 {
                    let number = 4 * number + client as u64;
                    let gone = session.transact(async |tx| ordered.remove(tx, key(number)).await).await.unwrap();
                    assert_eq!(gone, Some(Value::all(number)), "seed {seed}");
                }
            });
            assert!(worker.drain().unwrap());
            fabric.settle_services();
            let tree = look(&cluster, &ordered);
            assert_eq!((tree.rows, tree.leaves, tree.empty_leaves), (0, 1, 1), "seed {seed}: {tree:?}");
        }
    }
}

/// On real threads.
fn threads_count_the_same(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let ordered = cluster.create_ordered::<u64, Value>("ordered", OrderedOptions::for_rows(300)).unwrap();
    let mut filler = worker(&cluster, 1, 1);
    filler.block_on(async |session| {
        for number in 0..50 {
            let value = Value::all(number);
            session.transact(async |tx| ordered.insert(tx, 2 * number, value).await).await.unwrap();
        }
    });
    let part = |thread: u64| {
        let (cluster, ordered) = (cluster.clone(), ordered.clone());
        move || {
            let mut worker = cluster.worker(WorkerOptions::default().coroutines(2)).unwrap();
            worker.run(async |number, session| {
                let mut random = Prng::new(thread * 2 + number as u64);
                for _ in 0..support::turns(200) {
                    let (from, to) = (random.below(100), random.below(100));
                    let count = session.transact(async |tx| {
                        if number == 0 {
                            return Ok(ordered.scan(tx, .., usize::MAX).await?.len());
                        }
                        let value = ordered.remove(tx, from).await?;
                        let there = ordered.get(tx, to).await?;
                        match (value, there) {
                            (Some(value), None) => ordered.insert(tx, to, value).await?,
                            (Some(value), Some(_)) => ordered.insert(tx, from, value).await?,
                            (None, _) => {}
                        }
                        Ok(50)
                    });
                    match count.await {
                        Ok(count) => assert_eq!(count, 50),
                        Err(Error::Aborted(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    };
    let threads: Vec<_> = (0..2).map(|thread| std::thread::spawn(part(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(filler.drain().unwrap());
    let (records, tree) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
    assert_eq!((tree.fault, tree.rows), (None, 50));
    assert!(records.iter().all(|table| table.locked == 0));
}

/// Deaths of writers.
const TURNS: u64 = 40;

/// A client dies at each step of a transaction that changes many nodes. Then all of it has happened
/// or nothing, and the tree is whole.
fn dies_at_every_step(
    protocol: Protocol,
    keys: u64,
    (before, after): (u16, u16),
    change: impl AsyncFn(&mut Transaction<'_, '_>, &Ordered<Wide, Value>) -> Result<(), Error>,
) {
    let mut outcomes = [0; 2];
    let mut steps = None;
    let mut unknown = 0;
    for turn in 0..=TURNS {
        let (cluster, fabric, ordered) = seeded::<15>(protocol, 1, 300);
        let mut survivor = worker(&cluster, 1, 1);
        survivor.block_on(async |session| fill(session, &ordered, 0..keys).await);
        assert!(survivor.drain().unwrap());
        fabric.settle_services();
        assert_eq!(look(&cluster, &ordered).levels, before);
        let row: Table<u64, Words<1>> = table(&cluster, "row", TableOptions::for_rows(1), Words([0]));
        let old =
            survivor.block_on(async |session| session.transact(async |tx| all(tx, &ordered).await).await.unwrap());
        let change = async |session: &mut Session| {
            session
                .transact(async |tx| {
                    row.get_mut(tx, 0).await?.0[0] = 1;
                    change(tx, &ordered).await
                })
                .await
        };
        let mut dies = worker(&cluster, 1, 1);
        let dead = dies.incarnations().next().unwrap();
        let Some(steps) = steps else {
            // The first one tells how long it takes.
            dies.block_on(async |session| {
                let began = fabric.steps();
                change(session).await.unwrap();
                steps = Some(fabric.steps() - began);
            });
            assert!(dies.drain().unwrap());
            fabric.settle_services();
            assert_eq!(look(&cluster, &ordered).levels, after);
            continue;
        };
        let step = steps * turn / (TURNS - 4);
        fabric.revoke_after(ClientId(dead), step);
        let ended = dies.block_on(change);
        dies.abandon();
        survivor.recover(dead).unwrap();
        let (row, found) = survivor.block_on(async |session| {
            let found = session.transact(async |tx| Ok((row.get(tx, 0).await?, all(tx, &ordered).await?)));
            found.await.unwrap()
        });
        let is_new = row == Some(Words([1]));
        let what = format!("step {step} of {steps}, {ended:?}");
        assert_eq!(found == old, !is_new, "{what}");
        assert!(is_new || ended.is_err(), "{what}");
        if let Err(Error::Unknown(id)) = ended {
            let verdict = survivor.block_on(async |session| session.resolve(id, Duration::ZERO).await.unwrap());
            assert_eq!(verdict, if is_new { Verdict::Committed } else { Verdict::Aborted }, "{what}");
            unknown += 1;
        }
        assert!(survivor.drain().unwrap());
        fabric.settle_services();
        assert_eq!(look(&cluster, &ordered).levels, if is_new { after } else { before }, "{what}");
        // Its locks are gone, and the tree can be changed.
        survivor.block_on(async |session| {
            session.transact(async |tx| ordered.put(tx, key(1000), Value::all(1)).await).await.unwrap();
        });
        assert!(survivor.drain().unwrap());
        fabric.settle_services();
        let tree = look(&cluster, &ordered);
        assert_eq!(tree.rows, found.len() as u64 + 1, "{what}");
        outcomes[usize::from(is_new)] += 1;
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 2, "{outcomes:?} {unknown}");
}

fn a_client_dies_at_every_step_of_a_split(protocol: Protocol) {
    // The root's fifteenth child is full: leaf and root are split.
    let keys = LEAF + 14 * (LEAF - 1);
    dies_at_every_step(protocol, keys, (2, 3), async |tx, ordered| ordered.insert(tx, key(keys), Value::all(9)).await);
}

fn a_client_dies_at_every_step_of_a_merge(protocol: Protocol) {
    dies_at_every_step(protocol, 2 * LEAF, (2, 2), async |tx, ordered| {
        for number in 0..LEAF {
            ordered.remove(tx, key(number)).await?;
        }
        Ok(())
    });
}

/// A client dies at each step of a transaction that changes one key by a call. Under protocols
/// whose locks NICs change, the client makes the change itself.
fn a_client_dies_at_every_step_of_a_change_by_call(protocol: Protocol) {
    const STEPS: u64 = 16;
    let mut outcomes = [0; 2];
    let mut steps = None;
    for turn in 0..=STEPS {
        let (cluster, fabric, ordered) = seeded::<15>(protocol, 1, 300);
        let mut survivor = worker(&cluster, 1, 1);
        survivor.block_on(async |session| fill(session, &ordered, 0..2 * LEAF).await);
        assert!(survivor.drain().unwrap());
        fabric.settle_services();
        let by_call = ordered.by_call();
        let mut dies = worker(&cluster, 1, 1);
        let dead = dies.incarnations().next().unwrap();
        let put = async |session: &mut Session| {
            session.transact(async |tx| by_call.put(tx, key(3), Value::all(77)).await).await
        };
        let Some(steps) = steps else {
            dies.block_on(async |session| {
                let began = fabric.steps();
                assert_eq!(put(session).await.unwrap(), Some(Value::all(3)));
                steps = Some(fabric.steps() - began);
            });
            continue;
        };
        let step = steps * turn / (STEPS - 2);
        fabric.revoke_after(ClientId(dead), step);
        let ended = dies.block_on(put);
        dies.abandon();
        survivor.recover(dead).unwrap();
        let (found, after) = survivor.block_on(async |session| {
            let found = session.transact(async |tx| ordered.get(tx, key(3)).await).await.unwrap();
            // The leaf's lock is gone.
            session.transact(async |tx| ordered.put(tx, key(3), Value::all(5)).await).await.unwrap();
            let after = session.transact(async |tx| all(tx, &ordered).await).await.unwrap();
            (found, after)
        });
        let is_new = found == Some(Value::all(77));
        let what = format!("step {step} of {steps}, {ended:?}, {found:?}");
        assert!(is_new || found == Some(Value::all(3)) && ended.is_err(), "{what}");
        if let Err(Error::Unknown(id)) = ended {
            let verdict = survivor.block_on(async |session| session.resolve(id, Duration::ZERO).await.unwrap());
            let wanted = match protocol {
                // A change of one record has no log.
                Protocol::RTX => Verdict::Forgotten,
                _ if is_new => Verdict::Committed,
                _ => Verdict::Aborted,
            };
            assert_eq!(verdict, wanted, "{what}");
        }
        let expected = (0..2 * LEAF).map(|number| (number, if number == 3 { 5 } else { number }));
        assert!(after.into_iter().eq(expected), "{what}");
        assert!(survivor.drain().unwrap());
        fabric.settle_services();
        look(&cluster, &ordered);
        outcomes[usize::from(is_new)] += 1;
    }
    assert!(outcomes[0] > 2 && outcomes[1] > 1, "{outcomes:?}");
}

/// A handle that has seen the tree at another time, or never.
fn who_remembers_something_wrong_finds_it(protocol: Protocol) {
    seeds(0..2).for_each(|seed| who_remembers_something_wrong(protocol, seed));
}

fn who_remembers_something_wrong(protocol: Protocol, seed: u64) {
    let (cluster, fabric, ordered) = seeded::<15>(protocol, seed, 500);
    let mut worker = worker(&cluster, 1, seed);
    let check = async |session: &mut Session, handle: &Ordered<Wide, Value>, there: &dyn Fn(u64) -> bool| {
        for number in 0..200 {
            let found = session.transact(async |tx| handle.get(tx, key(number)).await).await.unwrap();
            assert_eq!(found.is_some(), there(number), "{number}");
        }
        let found = session.transact(async |tx| all(tx, handle).await).await.unwrap();
        assert!(found.into_iter().map(|(number, _)| number).eq((0..200).filter(|number| there(*number))));
    };
    let open = || as_of(seed, cluster.open_ordered::<Wide, Value>("ordered").unwrap());
    worker.block_on(async |session| {
        let (of_the_root, of_half, scans, changes) = (open(), open(), open(), open());
        check(session, &of_the_root, &|_| false).await;
        // In an order that splits leaves everywhere.
        fill(session, &ordered, (0..100).map(|number| number * 37 % 100 * 2)).await;
        check(session, &of_the_root, &|number| number % 2 == 0).await;
        check(session, &of_half, &|number| number % 2 == 0).await;
        fill(session, &ordered, (0..100).map(|number| number * 37 % 100 * 2 + 1)).await;
        check(session, &of_half, &|_| true).await;
        check(session, &scans, &|_| true).await;
        for number in (0..200).filter(|number| number / 20 % 2 == 0) {
            session.transact(async |tx| ordered.remove(tx, key(number)).await).await.unwrap();
        }
        for handle in [&of_half, &scans, &open(), &ordered] {
            check(session, handle, &|number| number / 20 % 2 == 1).await;
        }
        // Writes by what is remembered.
        check(session, &changes, &|number| number / 20 % 2 == 1).await;
        for number in (0..200).filter(|number| number / 20 % 2 == 1) {
            session.transact(async |tx| ordered.remove(tx, key(number)).await).await.unwrap();
        }
        fill(session, &changes, 0..200).await;
        check(session, &of_half, &|_| true).await;
        for number in 0..200 {
            let removed = session.transact(async |tx| scans.remove(tx, key(number)).await).await.unwrap();
            assert_eq!(removed, Some(Value::all(number)));
        }
        check(session, &of_the_root, &|_| false).await;
    });
    assert!(worker.drain().unwrap());
    fabric.settle_services();
    assert_eq!(look(&cluster, &ordered).leaves, 1);
}

fn what_does_not_fit_changes_nothing(protocol: Protocol) {
    let (cluster, fabric, ordered) = seeded::<15>(protocol, 1, 20);
    let mut worker = worker(&cluster, 1, 1);
    let there = worker.block_on(async |session| {
        // Under `rtx`, a shard has some spare blocks for each client.
        let too_many = if protocol == Protocol::RTX { 4_000 } else { 400 };
        let many = session.transact(async |tx| {
            for number in 0..too_many {
                ordered.insert(tx, key(number), Value::all(1)).await?;
            }
            Ok(())
        });
        let limit = many.await;
        assert!(
            matches!(limit, Err(Error::Limit(Reason { cause: Limit::LogEntry { .. } | Limit::TableFull { .. }, .. }))),
            "{limit:?}"
        );
        assert_eq!(session.transact(async |tx| all(tx, &ordered).await).await.unwrap(), []);
        let mut there = 0;
        loop {
            let insert = async |tx: &mut Transaction<'_, '_>| ordered.insert(tx, key(there), Value::all(there)).await;
            match session.transact(insert).await {
                Ok(()) => there += 1,
                Err(Error::Limit(Reason { cause: Limit::TableFull { .. }, .. })) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let found = session.transact(async |tx| all(tx, &ordered).await).await.unwrap();
        assert!(found.into_iter().eq((0..there).map(|number| (number, number))));
        there
    });
    assert!(there >= 20, "{there}");
    assert!(worker.drain().unwrap());
    fabric.settle_services();
    assert_eq!(look(&cluster, &ordered).rows, there);
}

/// Keys are inserted at one end and removed at the other. There are more of them than the table has
/// room for.
fn a_queue_leaves_nothing_behind(protocol: Protocol) {
    let (cluster, fabric, ordered) = seeded::<15>(protocol, 1, 150);
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for number in 0..900 {
            let turn = session.transact(async |tx| {
                ordered.insert(tx, key(number), Value::all(number)).await?;
                let Some((oldest, _)) = ordered.first(tx, ..).await? else {
                    return Err(ordered.missing(([0; 40], 0)));
                };
                if number < 100 {
                    return Ok(());
                }
                assert_eq!(oldest, key(number - 100));
                ordered.remove(tx, oldest).await.map(drop)
            });
            turn.await.unwrap();
        }
    });
    assert!(worker.drain().unwrap());
    fabric.settle_services();
    let tree = look(&cluster, &ordered);
    assert!(tree.rows == 100 && tree.leaves <= 26 && tree.inner_nodes <= 5 && tree.levels == 3, "{tree:?}");
}

/// Cost of the last transaction that has committed.
#[derive(Clone, Default)]
struct RoundTrips(Rc<Cell<u64>>);

impl Observer for RoundTrips {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            self.0.set(event.cost.round_trips);
        }
    }
}

/// A value of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "number")]
#[repr(C)]
struct Number(u64);

/// A cluster with a loaded table: 42 keys a leaf, which are even; and its handle.
fn loaded(protocol: Protocol, rows: u64) -> (Cluster, Ordered<u64, Number>) {
    let cluster = embedded(protocol, 3);
    let rows = (0..rows).map(|number| (2 * number, Number(number)));
    let ordered = cluster.load_ordered("ordered", OrderedOptions::for_rows(10_000), rows).unwrap();
    (cluster, ordered)
}

#[test]
fn round_trips_are_exact() {
    for protocol in
        [Protocol::DRTM_R, Protocol::DRTM_H, Protocol::FASST, Protocol::FORD, Protocol::FORD_LEAN, Protocol::FORD_LOCAL]
    {
        // Another round trip, for what it takes more than one record to know.
        let validation = u64::from(protocol.validation() != Validation::Local);
        // 120 leaves below 5 nodes below the root.
        let (cluster, ordered) = loaded(protocol, 42 * 120);
        let records: Table<u64, Words<1>> = table(&cluster, "records", TableOptions::for_rows(4), Words([0]));
        let mut worker = worker(&cluster, 1, 1);
        let seen = RoundTrips::default();
        worker.sessions()[0].observe(Some(Box::new(seen.clone())));
        let take = |worker: &mut Worker| {
            assert!(worker.drain().unwrap());
            seen.0.get()
        };
        let get = |worker: &mut Worker, ordered: &Ordered<u64, Number>, number: u64| {
            let found =
                worker.block_on(async |session| session.transact(async |tx| ordered.get(tx, number).await).await);
            assert_eq!(found.unwrap(), number.is_multiple_of(2).then_some(Number(number / 2)));
            take(worker)
        };
        let scan = |worker: &mut Worker, from: u64, to: u64| {
            let found = worker.block_on(async |session| {
                session.transact(async |tx| ordered.scan(tx, 2 * from..2 * to, usize::MAX).await).await.unwrap()
            });
            assert_eq!(found.len() as u64, to - from);
            take(worker)
        };
        // So that locations of records are cached: what is counted is the tree's own.
        scan(&mut worker, 0, 42 * 120);
        // Nothing is remembered: root, inner node, leaf, and then all three are validated.
        let cold = cluster.open_ordered("ordered").unwrap();
        assert_eq!(get(&mut worker, &cold, 100), 3 + validation, "{protocol:?}");
        for number in [100, 101, 84 * 20, 84 * 42 - 1] {
            assert_eq!(get(&mut worker, &ordered, number), 1, "{protocol:?}");
        }
        // What was read on the way says where the leaves below the same node are.
        assert_eq!(get(&mut worker, &cold, 84 * 20), 1, "{protocol:?}");
        assert_eq!(scan(&mut worker, 0, 42), 1, "one leaf, {protocol:?}");
        for leaves in [2, 10, 60] {
            assert_eq!(scan(&mut worker, 0, 42 * leaves), 1 + validation, "{leaves} leaves, {protocol:?}");
        }
        assert_eq!(scan(&mut worker, 0, 42 * 120), 2 + validation, "two rounds of 60, {protocol:?}");
        // A change of one record.
        worker.block_on(async |session| {
            for _ in 0..2 {
                session.transact(async |tx| records.update(tx, 0, Words([1])).await).await.unwrap();
            }
        });
        let of_an_update = take(&mut worker);
        let insert =
            async |session: &mut Session| session.transact(async |tx| ordered.insert(tx, 1, Number(0)).await).await;
        worker.block_on(insert).unwrap();
        assert_eq!(take(&mut worker), of_an_update, "{protocol:?}");
        let remove = async |session: &mut Session| session.transact(async |tx| ordered.remove(tx, 1).await).await;
        assert!(worker.block_on(remove).unwrap().is_some());
        assert_eq!(take(&mut worker), of_an_update, "{protocol:?}");
        // 18 more fit, and the next one splits the leaf.
        let other = cluster.open_ordered::<u64, Number>("ordered").unwrap();
        for number in 0..19 {
            let insert = async |session: &mut Session| {
                session.transact(async |tx| other.insert(tx, 2 * number + 1, Number(number)).await).await
            };
            worker.block_on(insert).unwrap();
        }
        take(&mut worker);
        // Its upper half is found by its link, and then remembered.
        let upper = get(&mut worker, &ordered, 82);
        assert_eq!(get(&mut worker, &ordered, 82), 1, "{protocol:?}");
        assert!(
            (2 + validation..=4 + validation).contains(&upper),
            "two leaves, the second perhaps by the index, and validation: {upper}, {protocol:?}"
        );
        let (_, tree) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
        assert_eq!((tree.fault, tree.leaves, tree.levels), (None, 121, 3));
    }
}

/// Keys that are named together are read together; values that are out of line are read without
/// leaves.
#[test]
fn what_is_named_together_comes_together() {
    for protocol in [Protocol::DRTM_R, Protocol::DRTM_H, Protocol::FORD] {
        let cluster = embedded(protocol, 3);
        let rows = || (0..1000).map(|number| (number, number));
        let of_rows = OrderedOptions::for_rows(1000);
        let short = cluster.load_ordered("short", of_rows.clone(), rows().map(|(key, n)| (key, Number(n)))).unwrap();
        let long = cluster.load_ordered("long", of_rows, rows().map(|(key, n)| (key, Words::<30>::all(n)))).unwrap();
        let mut worker = worker(&cluster, 1, 1);
        let seen = RoundTrips::default();
        worker.sessions()[0].observe(Some(Box::new(seen.clone())));
        worker.block_on(async |session| {
            for _ in 0..2 {
                session.transact(async |tx| short.scan(tx, .., usize::MAX).await).await.unwrap();
                session.transact(async |tx| long.scan(tx, 100..200, usize::MAX).await).await.unwrap();
            }
            assert_eq!(seen.0.get(), 3, "leaves, values, validation, {protocol:?}");
            let keys = [101, 150, 199];
            let read = session.transact(async |tx| {
                for &key in &keys {
                    short.prefetch(tx, key, Intent::Read);
                    long.prefetch(tx, key, Intent::Read);
                }
                tx.fetch().await?;
                for key in keys {
                    assert_eq!(short.get(tx, key).await?, Some(Number(key)));
                    assert_eq!(long.get(tx, key).await?, Some(Words::all(key)));
                }
                Ok(())
            });
            read.await.unwrap();
            assert_eq!(seen.0.get(), 2, "all of them, and validation, {protocol:?}");
            session.transact(async |tx| long.get(tx, 150).await).await.unwrap();
            assert_eq!(seen.0.get(), 1, "{protocol:?}");
        });
    }
}

/// The cost of a lookup that remembers nothing, by each design. Fine: as many round trips as the
/// tree has levels, and validation of what was read on the way. Hybrid: one round trip to ask, and
/// one for the leaf. Coarse: one that brings the leaf.
#[test]
fn designs_cost_their_round_trips() {
    for protocol in [Protocol::DRTM_R, Protocol::DRTM_H, Protocol::FARM, Protocol::FASST, Protocol::FORD] {
        // FaRM's preset remembers no locations, and FORD's memory nodes have no CPU to ask.
        let of_node = if protocol == Protocol::FARM { 2 } else { 1 };
        let walked = 3 * of_node + 1;
        let asked = |round_trips| if matches!(protocol, Protocol::Ford(_)) { walked } else { round_trips };
        for (design, round_trips) in
            [(Design::Fine, walked), (Design::Hybrid(1), asked(1 + of_node)), (Design::Coarse(2), asked(1))]
        {
            let cluster = embedded(protocol, 3);
            let rows = (0..42 * 120).map(|number| (2 * number, Number(number)));
            let options = OrderedOptions::for_rows(10_000).design(design);
            let ordered = cluster.load_ordered("ordered", options, rows).unwrap();
            let forgetful = ordered.without_memory();
            let mut worker = worker(&cluster, 1, 1);
            let seen = RoundTrips::default();
            worker.sessions()[0].observe(Some(Box::new(seen.clone())));
            let get = async |session: &mut Session, ordered: &Ordered<u64, Number>, number: u64| {
                let found = session.transact(async |tx| ordered.get(tx, number).await).await.unwrap();
                assert_eq!(found, number.is_multiple_of(2).then_some(Number(number / 2)));
            };
            worker.block_on(async |session| {
                // So that locations are cached.
                session.transact(async |tx| ordered.scan(tx, .., usize::MAX).await).await.unwrap();
                for number in [1000, 1001, 0, 84 * 120 - 1] {
                    get(session, &forgetful, number).await;
                    assert_eq!(seen.0.get(), round_trips, "{design:?}, {protocol:?}");
                }
                // Leaf 5 to 24, and the parent that they all have says where they are.
                let scan = session.transact(async |tx| forgetful.scan(tx, 84 * 5..84 * 25, usize::MAX).await);
                assert_eq!(scan.await.unwrap().len(), 42 * 20);
                let first = if round_trips == walked { 3 * of_node } else { round_trips };
                assert_eq!(seen.0.get(), first + of_node + 1, "{design:?}, {protocol:?}");
                get(session, &ordered, 1000).await;
                assert_eq!(seen.0.get(), of_node, "remembered, {design:?}, {protocol:?}");
            });
        }
    }
}

#[test]
fn what_is_loaded_is_there() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let (cluster, ordered) = loaded(protocol, 10_000);
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            let mut from = Bound::Unbounded;
            let mut found = 0;
            loop {
                let part = session.transact(async |tx| ordered.scan(tx, (from, Bound::Unbounded), 1000).await);
                let part = part.await.unwrap();
                let Some((last, _)) = part.last() else { break };
                from = Bound::Excluded(*last);
                for (number, value) in part {
                    assert_eq!((number, value), (2 * found, Number(found)));
                    found += 1;
                }
            }
            assert_eq!(found, 10_000);
            for number in [1, 9_999, 19_999] {
                session.transact(async |tx| ordered.insert(tx, number, Number(0)).await).await.unwrap();
            }
        });
        assert!(worker.drain().unwrap());
        let (_, tree) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
        assert_eq!((tree.fault, tree.rows), (None, 10_003));
    }
}

/// Nothing but keys, on every backend.
#[test]
fn a_set_of_keys_has_no_values() {
    let protocols = [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD];
    for cluster in protocols.into_iter().flat_map(|protocol| on_every_fabric(protocol, 3)) {
        let set = cluster.create_ordered::<(i32, u16), ()>("set", OrderedOptions::for_rows(500)).unwrap();
        let keys: Table<u64, ()> = cluster.create_table("keys", TableOptions::for_rows(4)).unwrap();
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            for number in 0..300 {
                session.transact(async |tx| set.insert(tx, (number % 7 - 3, number as u16), ()).await).await.unwrap();
            }
            let found = session.transact(async |tx| set.scan(tx, (-1, 0)..(1, 0), 1000).await).await.unwrap();
            assert!(found.is_sorted() && found.len() == 86, "{}", found.len());
            assert_eq!(found[0].0, (-1, 2));
            // An ordinary table of keys is one as well.
            session.transact(async |tx| keys.insert(tx, 1, ()).await).await.unwrap();
            let there = session.transact(async |tx| Ok((keys.get(tx, 1).await?, keys.get(tx, 2).await?))).await;
            assert_eq!(there.unwrap(), (Some(()), None));
        });
        assert!(worker.drain().unwrap());
        let (_, tree) = cluster.inspect_ordered(&set, |_, ()| ()).unwrap();
        assert_eq!((tree.fault, tree.rows), (None, 300));
    }
}

/// Through a pool as well.
#[test]
fn a_pool_reads_and_writes_it() {
    let (cluster, ordered) = loaded(Protocol::DRTM_R, 100);
    let db = cluster.db(2, WorkerOptions::default()).unwrap();
    let writer = ordered.clone();
    db.transact_blocking(async move |tx| writer.insert(tx, 1, Number(7)).await).unwrap();
    let found = db.transact_blocking(async move |tx| ordered.first(tx, 1..).await).unwrap();
    assert_eq!(found, Some((1, Number(7))));
}

#[test]
fn tables_that_cannot_be_are_refused_by_name() {
    let cluster = embedded(Protocol::DRTM_R, 3);
    let refused = |created: Result<(), OpenError>| created.unwrap_err().to_string();
    let of_rows = OrderedOptions::for_rows;
    assert!(refused(cluster.create_ordered::<u64, Value>("t", of_rows(0)).map(drop)).contains("rows of a table"));
    let too_long = refused(cluster.create_ordered::<u64, Words<5000>>("t", of_rows(1)).map(drop));
    assert!(too_long.contains("32704"), "{too_long}");
    cluster.create_ordered::<u64, Words<29>>("t", of_rows(1)).unwrap();
    let other = refused(cluster.open_ordered::<u64, Number>("t").map(drop));
    assert!(other.contains("t/inner"), "{other}");
    refused(cluster.open_ordered::<u32, Words<29>>("t").map(drop));
    refused(cluster.open_ordered::<u64, Value>("unknown").map(drop));
    let unsorted = [(1, Number(1)), (3, Number(1)), (2, Number(1))];
    let unsorted = refused(cluster.load_ordered("unsorted", of_rows(3), unsorted).map(drop::<Ordered<u64, _>>));
    assert!(unsorted.contains("unsorted") && unsorted.contains("0000000000000002"), "{unsorted}");
    let full = refused(
        cluster
            .load_ordered("full", of_rows(1).grows(false), (0..9999).map(|key| (key, Number(0))))
            .map(drop::<Ordered<u64, _>>),
    );
    assert!(full.contains("full"), "{full}");
    let large = refused(cluster.create_ordered::<u64, Words<29>>("large", of_rows(1).keys_first(16)).map(drop));
    assert!(large.contains("large") && large.contains("3872") && large.contains("3040"), "{large}");
    // Fewer entries than four are four, and a leaf without values has no cells.
    cluster.create_ordered::<u64, Words<29>>("four", of_rows(9).keys_first(1)).unwrap();
    cluster.create_ordered::<u64, ()>("set", of_rows(9).keys_first(16)).unwrap();
    cluster.open_ordered::<u64, Words<29>>("four").unwrap();
    cluster.open_ordered::<u64, ()>("set").unwrap();
    // Keys at which a table is split ascend, and its nodes are not spread anyway.
    let split = |keys: &[u64], design| {
        let options = of_rows(9).design(design).split_at(keys.iter().copied());
        refused(cluster.create_ordered::<u64, Number>("split", options).map(drop))
    };
    let spread = split(&[5], Design::Fine);
    assert!(spread.contains("split") && spread.contains("partitions") && spread.contains("spread"), "{spread}");
    let unsorted = split(&[5, 7, 7], Design::Coarse(0));
    assert!(unsorted.contains("split") && unsorted.contains("0000000000000007"), "{unsorted}");
    assert!(split(&[0], Design::Hybrid(0)).contains("0000000000000000"), "it has the least key before it");
    let many = split(&(1..200).collect::<Vec<_>>(), Design::Coarse(0));
    assert!(many.contains("200") && many.contains("60"), "{many}");
    let wrong = of_rows(9).design(Design::Coarse(0)).split_at([7_u32]);
    let wrong = refused(cluster.create_ordered::<u64, Number>("split", wrong).map(drop));
    assert!(["split", "u32", "u64"].iter().all(|part| wrong.contains(part)), "{wrong}");
    let wrong = of_rows(9).design(Design::Coarse(0)).split_at_bytes([vec![1; 4]]);
    let wrong = refused(cluster.create_ordered::<u64, Number>("split", wrong).map(drop));
    assert!(wrong.contains("split") && wrong.contains("4 bytes") && wrong.contains('8'), "{wrong}");
    // Nothing is left of a table that could not be loaded: its name is free again.
    let gone = refused(cluster.open_ordered::<u64, Number>("unsorted").map(drop));
    assert!(gone.contains("unsorted"), "{gone}");
    let sorted = cluster.load_ordered("unsorted", of_rows(3), (1..=3).map(|key| (key, Number(key)))).unwrap();
    let mut worker = worker(&cluster, 1, 1);
    let found = worker.block_on(async |session| session.transact(async |tx| sorted.get(tx, 2).await).await);
    assert_eq!(found.unwrap(), Some(Number(2)));
}

/// Cost of the last transaction that has committed.
#[derive(Clone, Default)]
struct Costs(Rc<Cell<Cost>>);

impl Observer for Costs {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            self.0.set(event.cost);
        }
    }
}

/// Where keys come first, a lookup READs the keys of a leaf and one value. Where it is a call, only
/// the value comes.
#[test]
fn a_lookup_brings_a_value_and_not_a_leaf() {
    const ROWS: u64 = 11 * 100;
    for protocol in [Protocol::DRTM_R, Protocol::DRTM_H, Protocol::FASST, Protocol::FORD, Protocol::NO_WAIT] {
        let cluster = embedded(protocol, 3);
        let rows = || (0..ROWS).map(|number| (2 * number, Number(number)));
        let options = OrderedOptions::for_rows(ROWS);
        let fine = cluster.load_ordered("fine", options.clone().keys_first(16), rows()).unwrap();
        let coarse = cluster.load_ordered("coarse", options.design(Design::Coarse(1)), rows()).unwrap();
        let mut worker = worker(&cluster, 1, 1);
        let seen = Costs::default();
        worker.sessions()[0].observe(Some(Box::new(seen.clone())));
        let get = |worker: &mut Worker, ordered: &Ordered<u64, Number>, number: u64| {
            let found =
                worker.block_on(async |session| session.transact(async |tx| ordered.get(tx, number).await).await);
            assert_eq!(found.unwrap(), number.is_multiple_of(2).then_some(Number(number / 2)));
            assert!(worker.drain().unwrap());
            seen.0.get()
        };
        let scan = async |session: &mut Session| {
            session.transact(async |tx| fine.scan(tx, .., usize::MAX).await).await.unwrap();
            session.transact(async |tx| coarse.scan(tx, .., usize::MAX).await).await.unwrap();
        };
        worker.block_on(scan);
        // Header, key, node header, fences and 16 keys; a value with its check.
        let head = 24 + 8 + 16 + 16 + 16 * 8;
        let cost = get(&mut worker, &fine, 200);
        // The locks that two-phase locking tries, takes and gives back.
        let swaps = if protocol == Protocol::NO_WAIT { 3 } else { 0 };
        let expected = (2, 2, head + 16 + 8 * swaps);
        // Where the location is asked for by a call, the whole record comes.
        let is_call = protocol == Protocol::FASST;
        assert!(is_call || (cost.round_trips, cost.reads, cost.bytes_in) == expected, "{protocol:?}: {cost:?}");
        let cost = get(&mut worker, &fine, 201);
        assert!(is_call || (cost.round_trips, cost.reads) == (1, 1), "{protocol:?}: {cost:?}");
        // FORD's memory nodes have no CPU to ask; two-phase locking reads under its own lock.
        if !matches!(protocol, Protocol::Ford(_) | Protocol::NoWait(_)) {
            for number in [200, 201] {
                let cost = get(&mut worker, &coarse.without_memory(), number);
                assert_eq!((cost.round_trips, cost.rpcs, cost.reads), (1, 1, 0), "{protocol:?}");
                assert_eq!(cost.bytes_in, 8 * (1 + 3 + 3 + 1), "{protocol:?}: {cost:?}");
            }
        }
    }
}

/// A change of one key by a call takes two round trips, and 200 bytes at most for each copy.
#[test]
fn a_change_by_call_sends_keys_and_values() {
    for (protocol, copies) in [(Protocol::FASST, 1), (Protocol::FASST, 3), (Protocol::FARM, 1)] {
        let cluster = embedded(protocol, copies);
        let rows = (0..11 * 100).map(|number| (2 * number, Number(number)));
        for (name, design, keys_first) in
            [("fine", Design::Fine, true), ("coarse", Design::Coarse(0), true), ("whole", Design::Coarse(1), false)]
        {
            let options = OrderedOptions::for_rows(2000).design(design);
            let options = if keys_first { options.keys_first(16) } else { options };
            let ordered = cluster.load_ordered(name, options, rows.clone()).unwrap();
            let mut worker = worker(&cluster, 1, 1);
            let seen = Costs::default();
            worker.sessions()[0].observe(Some(Box::new(seen.clone())));
            let scan = async |session: &mut Session| {
                session.transact(async |tx| ordered.scan(tx, .., usize::MAX).await).await.unwrap()
            };
            worker.block_on(scan);
            let handles = [ordered.by_call(), ordered.without_memory().by_call()];
            // Without memory, the CPU can go down only if it has all inner nodes.
            let handles = &handles[..if design == Design::Fine { 1 } else { 2 }];
            for (handle, number) in handles.iter().zip([100, 300]) {
                let new = Number(7);
                let mut did = Vec::new();
                worker.block_on(async |session| {
                    session.transact(async |tx| handle.update(tx, number, new).await).await.unwrap();
                    did.push(seen.0.get());
                    session.transact(async |tx| handle.insert(tx, number + 1, new).await).await.unwrap();
                    did.push(seen.0.get());
                    let before = session.transact(async |tx| handle.remove(tx, number + 1).await).await.unwrap();
                    did.push(seen.0.get());
                    assert_eq!(before, Some(new));
                    let before = session.transact(async |tx| handle.put(tx, number, Number(8)).await).await.unwrap();
                    did.push(seen.0.get());
                    assert_eq!(before, Some(new));
                    // Nothing is changed: one round trip, which is a lookup.
                    let missing = session.transact(async |tx| handle.update(tx, number + 1, new).await).await;
                    assert!(matches!(missing, Err(Error::NotFound(_))));
                    let exists = session.transact(async |tx| handle.insert(tx, number, new).await).await;
                    assert!(matches!(exists, Err(Error::Exists(_))));
                });
                for cost in did {
                    let most = 200 + 96 * (u64::from(copies) - 1);
                    let what = format!("{name}, {protocol:?}, {copies} copies: {cost:?}");
                    assert_eq!((cost.round_trips, cost.rpcs), (2, 2 + u64::from(copies)), "{what}");
                    assert!(cost.bytes_out <= most, "{what}");
                }
            }
            // One leaf again and again: backups have not applied the version before, and take it
            // from their rings.
            worker.block_on(async |session| {
                for turn in 0..200 {
                    session.transact(async |tx| handles[0].update(tx, 100, Number(turn)).await).await.unwrap();
                }
                session.transact(async |tx| handles[0].update(tx, 100, Number(8)).await).await.unwrap();
            });
            assert!(worker.drain().unwrap());
            let found = worker.block_on(scan);
            let changed = |key| [100, 300][..handles.len()].contains(&key);
            let expected = rows.clone().map(|(key, value)| (key, if changed(key) { Number(8) } else { value }));
            assert!(found.into_iter().eq(expected), "{name}, {protocol:?}");
            let (records, tree) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
            assert_eq!(tree.fault, None);
            assert!(records.iter().all(|table| (table.locked, table.torn, table.differing_lines) == (0, 0, 0)));
        }
    }
}

/// Partitions are trees at memory nodes of their own, each of which finds its leaves. Calls cost
/// what they cost without partitions, also behind splits and growth.
#[test]
fn a_partition_is_a_tree_at_one_memory_node() {
    const ROWS: u64 = 3 * 11 * 100;
    for (protocol, design) in [
        (Protocol::FASST, Design::Coarse(1)),
        (Protocol::FARM, Design::Hybrid(2)),
        (Protocol::DRTM_H, Design::Coarse(0)),
        (Protocol::FORD, Design::Coarse(2)),
    ] {
        let cluster = embedded(protocol, 3);
        let rows = (0..ROWS).map(|number| (2 * number, Number(number)));
        // The last partition has no rows yet.
        let cuts = [2 * 1100, 2 * 2200, 2 * ROWS];
        let options = OrderedOptions::for_rows(4 * ROWS).design(design).split_at(cuts);
        cluster.load_ordered("rows", options, rows.clone()).unwrap();
        // A client that finds the table knows nothing of it.
        let ordered: Ordered<u64, Number> = cluster.open_ordered("rows").unwrap();
        let mut worker = worker(&cluster, 1, 1);
        let seen = Costs::default();
        worker.sessions()[0].observe(Some(Box::new(seen.clone())));
        let forgetful = ordered.without_memory();
        let look = |worker: &mut Worker, numbers: &[u64]| {
            for number in numbers {
                let found = worker
                    .block_on(async |session| session.transact(async |tx| forgetful.get(tx, *number).await).await);
                assert_eq!(found.unwrap(), number.is_multiple_of(2).then_some(Number(number / 2)), "{protocol:?}");
                let cost = seen.0.get();
                match (protocol, design) {
                    (Protocol::Ford(_), _) => assert_eq!(cost.rpcs, 0),
                    // The leaf is READ, and its location if that is not remembered.
                    (_, Design::Hybrid(_)) => {
                        assert!(cost.rpcs == 1 && cost.round_trips == 1 + cost.reads, "{number}: {cost:?}")
                    }
                    _ => assert_eq!((cost.rpcs, cost.round_trips, cost.reads), (1, 1, 0), "{number}: {cost:?}"),
                }
            }
        };
        let scan = async |session: &mut Session| {
            session.transact(async |tx| ordered.scan(tx, .., usize::MAX).await).await.unwrap()
        };
        assert!(worker.block_on(scan).into_iter().eq(rows.clone()), "{protocol:?}");
        let (_, loaded) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
        assert_eq!((loaded.fault, loaded.rows, loaded.empty_leaves), (None, ROWS, 1), "{protocol:?}");
        // The ends of all partitions.
        look(&mut worker, &[0, 1, 2198, 2199, 2200, 2201, 4399, 4400, 6598, 6599, 6601, u64::MAX]);

        // One partition gets many more rows: its root is split, and the table grows.
        let more = || (ROWS..4 * ROWS).map(|number| (2 * number, Number(number)));
        worker.block_on(async |session| {
            for (number, value) in more() {
                session.transact(async |tx| ordered.insert(tx, number, value).await).await.unwrap();
            }
            assert!(scan(session).await.into_iter().eq(rows.clone().chain(more())), "{protocol:?}");
            let back = session.transact(async |tx| ordered.scan_back(tx, 2190..2210, usize::MAX).await).await;
            assert_eq!(back.unwrap().len(), 10);
        });
        assert!(worker.drain().unwrap());
        // A growth that is still under way has its own costs.
        for part in ["rows/inner", "rows/leaves"] {
            cluster.grow_table(part, 1).unwrap();
        }
        worker.block_on(scan);
        look(&mut worker, &[0, 2199, 2200, 6600, 6601, 8 * ROWS - 2, 8 * ROWS - 1]);
        let (_, grown) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
        assert_eq!((&grown.fault, grown.rows), (&None, 4 * ROWS));
        assert!(grown.levels > loaded.levels, "{protocol:?}: {grown:?}");

        // And loses nearly all: nothing is left of them but a leaf.
        worker.block_on(async |session| {
            for (number, _) in more() {
                session.transact(async |tx| ordered.remove(tx, number).await).await.unwrap();
            }
        });
        assert!(worker.drain().unwrap());
        let (_, emptied) = cluster.inspect_ordered(&ordered, |_, _| ()).unwrap();
        assert_eq!((emptied.fault, emptied.rows, emptied.empty_leaves), (None, ROWS, 1), "{protocol:?}");
    }
}

/// A change by call in a table with partitions costs what it costs in one without.
#[test]
fn a_change_by_call_finds_its_partition() {
    for protocol in [Protocol::FASST, Protocol::FARM] {
        let cluster = embedded(protocol, 1);
        let rows = (0..1000).map(|number| (2 * number, Number(number)));
        let options = OrderedOptions::for_rows(2000).design(Design::Coarse(1)).split_at([500_u64, 501, 1500]);
        let ordered = cluster.load_ordered("rows", options, rows).unwrap();
        let mut worker = worker(&cluster, 1, 1);
        let seen = Costs::default();
        worker.sessions()[0].observe(Some(Box::new(seen.clone())));
        let forgetful = ordered.without_memory().by_call();
        worker.block_on(async |session| {
            session.transact(async |tx| ordered.get(tx, 0).await).await.unwrap();
            for number in [0, 498, 500, 502, 1498, 1500, 1998] {
                let before = session.transact(async |tx| forgetful.put(tx, number, Number(7)).await).await.unwrap();
                assert_eq!(before, Some(Number(number / 2)));
                let cost = seen.0.get();
                assert_eq!((cost.round_trips, cost.rpcs), (2, 3), "{number}, {protocol:?}: {cost:?}");
                assert!(cost.bytes_out <= 200, "{cost:?}");
                let found = session.transact(async |tx| forgetful.get(tx, number).await).await.unwrap();
                assert_eq!(found, Some(Number(7)));
            }
        });
        assert!(worker.drain().unwrap());
        assert_eq!(cluster.inspect_ordered(&ordered, |_, _| ()).unwrap().1.fault, None);
    }
}

/// A trained handle reads the leaf alone. A split costs it a link, once.
#[test]
fn a_learned_handle_reads_leaves_alone() {
    let (cluster, ordered) = loaded(Protocol::DRTM_R, 42 * 120);
    let learned = ordered.learned();
    let mut worker = worker(&cluster, 1, 1);
    let seen = RoundTrips::default();
    worker.sessions()[0].observe(Some(Box::new(seen.clone())));
    worker.block_on(async |session| {
        // Where records are is known.
        session.transact(async |tx| ordered.scan(tx, .., usize::MAX).await).await.unwrap();
        assert_eq!((ordered.learned_size(), learned.learned_size().unwrap().entries), (None, 1));
        learned.train(session).await.unwrap();
        assert_eq!(learned.learned_size().unwrap().entries, 120);
        // How many it takes for lookups of keys.
        let look = async |session: &mut Session, keys: &mut dyn Iterator<Item = u64>, are_there: bool| {
            let mut count = 0;
            for key in keys {
                let found = session.transact(async |tx| learned.get(tx, key).await).await.unwrap();
                assert_eq!(found.is_some(), are_there || key % 2 == 0, "{key}");
                count += seen.0.get();
            }
            count
        };
        assert_eq!(look(session, &mut (0..84 * 120).step_by(7), false).await, 12 * 120);
        // Another handle splits a leaf.
        let new = || (0..30).map(|key| 84 * 20 + 1 + 2 * key);
        for key in new() {
            session.transact(async |tx| ordered.insert(tx, key, Number(key)).await).await.unwrap();
        }
        assert_eq!(look(session, &mut new(), true).await, 30 + 2, "a link, and both leaves are validated");
        assert_eq!(look(session, &mut new(), true).await, 30);
        assert_eq!(learned.learned_size().unwrap().entries, 121);
    });
}
