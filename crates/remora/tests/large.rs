//! Values of any length: they come and go whole, take no more room than they need, and chunks that
//! dead clients have left are found.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::{ClientId, Fabric};
use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Intent, LARGE_BYTES_MAX, Large, LargeOptions, Limit, OpenError, Reason, Session, Stored, Table,
    TableOptions, Verdict, WorkerOptions,
};

use support::{Words, cut_off, embedded, look, on_every_fabric, options, seeds, table, worker};

macro_rules! presets {
    ($($test:ident),* $(,)?) => { $(
        mod $test {
            #[test]
            fn drtm_r() { super::$test(remora::protocol::Protocol::DRTM_R); }
            #[test]
            fn fasst() { super::$test(remora::protocol::Protocol::FASST); }
            #[test]
            fn ford() { super::$test(remora::protocol::Protocol::FORD); }
        }
    )* };
}

presets! {
    values_of_any_length_come_and_go,
    round_trips_are_exact,
    a_value_is_put_together_with_other_records,
    readers_see_one_whole_value,
    readers_on_other_threads_see_one_whole_value,
    what_is_given_up_leaves_nothing,
    what_clients_leave_is_collected,
    a_writer_dies_at_every_step,
    collecting_takes_nothing_that_is_needed,
    who_comes_while_it_is_collected_is_alive,
    a_head_that_stays_locked_stops_the_collection,
    the_longest_value_comes_back,
}

/// Bytes of a chunk.
const CHUNK: usize = 7704;

fn seeded(protocol: Protocol, seed: u64) -> (Cluster, Seeded, Large<u64>) {
    let options = options(protocol, 3).node_bytes(16 << 20);
    let (cluster, fabric) = options.open_seeded(seed).unwrap();
    let large = cluster.create_large("large", LargeOptions::for_values(16, 40 * CHUNK as u64)).unwrap();
    (cluster, fabric, large)
}

/// Returns the number of heads and of chunks. Asserts that everything else is in order.
fn counts(cluster: &Cluster, large: &Large<u64>) -> [u64; 2] {
    cluster.inspect_large(large).unwrap().map(|found| {
        assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{found:?}");
        // FORD's recovery leaves vacant slots in this state.
        assert!(found.prepared == 0 || matches!(cluster.protocol(), Protocol::Ford(_)), "{found:?}");
        found.records
    })
}

fn chunks(length: usize) -> u64 {
    length.div_ceil(CHUNK) as u64
}

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at / CHUNK) as u8 ^ seed).collect()
}

/// The byte of a value all of whose bytes are the same, and its length.
fn whole(value: &[u8]) -> (u64, u64) {
    assert!(value.iter().all(|byte| *byte == value[0]), "parts of two values");
    (value.first().copied().unwrap_or(0).into(), value.len() as u64)
}

fn values_of_any_length_come_and_go(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let options = LargeOptions::for_values(2, 600_000).shards(1);
        let large = cluster.create_large::<u64>("large", options).unwrap();
        let opened = cluster.open_large::<u64>("large").unwrap();
        let mut worker = worker(&cluster, 1, 1);
        let lengths = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 4 * CHUNK, 4 * CHUNK + 1, 300_000, 1, 0];
        for (turn, length) in lengths.into_iter().enumerate() {
            let value = pattern(length, turn as u8);
            worker.block_on(async |session| {
                large.write(session, 7, &value).await.unwrap();
                large.write(session, 8, &value).await.unwrap();
                assert_eq!(opened.read(session, 7).await.unwrap().as_ref(), Some(&value), "{length}");
                let found = session.transact(async |tx| opened.find(tx, 7).await).await.unwrap();
                assert_eq!(found.map(|found| found.length()), Some(length as u64));
            });
            assert!(worker.drain().unwrap());
            assert_eq!(counts(&cluster, &large), [2, 2 * chunks(length)], "{length}");
        }
        worker.block_on(async |session| {
            large.write(session, 7, &pattern(50_000, 1)).await.unwrap();
            assert!(large.delete(session, 7).await.unwrap());
            assert!(!large.delete(session, 7).await.unwrap());
            assert_eq!(large.read(session, 7).await.unwrap(), None);
            assert_eq!(large.read(session, 8).await.unwrap(), Some(Vec::new()));
        });
        assert!(worker.drain().unwrap());
        assert_eq!(counts(&cluster, &large), [1, 0]);
    }
}

/// Round trips of the last transaction that has committed.
#[derive(Clone, Default)]
struct RoundTrips(Rc<Cell<u64>>);

impl Observer for RoundTrips {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            self.0.set(event.cost.round_trips);
        }
    }
}

fn round_trips_are_exact(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(3, 600_000)).unwrap();
    let mut worker = worker(&cluster, 1, 1);
    let seen = RoundTrips::default();
    worker.sessions()[0].observe(Some(Box::new(seen.clone())));
    // A round trip brings 8 chunks. One comes before, for the head, and one after, for the
    // validation.
    for (count, expected) in [(0, 1), (1, 3), (8, 3), (9, 4), (24, 5)] {
        worker.block_on(async |session| large.write(session, 1, &pattern(count * CHUNK, 1)).await.unwrap());
        // Otherwise the upload waits for room in the log.
        assert!(worker.drain().unwrap());
        for _ in 0..2 {
            worker.block_on(async |session| large.read(session, 1).await.unwrap());
        }
        assert_eq!(seen.0.get(), expected, "{count} chunks");
    }
    for key in [2, 2] {
        let stored = worker.block_on(async |session| large.upload(session, &pattern(4 * CHUNK, 1)).await.unwrap());
        assert_eq!(seen.0.get(), 3, "all four chunks in one transaction");
        assert!(worker.drain().unwrap());
        let put = async |session: &mut Session| session.transact(async |tx| large.put(tx, key, &stored).await).await;
        let replaced = worker.block_on(put).unwrap();
        // Under a protocol that uses no CPU, a value that is there costs what a change costs.
        let is_change = replaced.is_some() && matches!(protocol, Protocol::Ford(_));
        assert_eq!(seen.0.get(), if is_change { 2 } else { 3 });
        assert!(worker.drain().unwrap());
        if let Some(replaced) = replaced {
            worker.block_on(async |session| large.discard(session, &replaced).await.unwrap());
            assert_eq!(seen.0.get(), if matches!(protocol, Protocol::Ford(_)) { 2 } else { 3 });
        }
    }
}

/// The error for which a transaction gives up.
#[derive(Debug, thiserror::Error)]
#[error("given up")]
struct GivenUp;

fn a_value_is_put_together_with_other_records(protocol: Protocol) {
    let (cluster, _, large) = seeded(protocol, 1);
    let rows: Table<u64, Words<1>> = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        let link = async |session: &mut Session, stored: &[Stored; 2], give_up: bool| {
            let linked = session.transact(async |tx| {
                rows.get_mut(tx, 1).await?.0[0] += 1;
                let replaced = [large.put(tx, 1, &stored[0]).await?, large.put(tx, 2, &stored[1]).await?];
                // It sees what it has put.
                assert_eq!(large.get(tx, 2).await?.map(|value| whole(&value)), Some((9, 60_000)));
                if give_up { Err(Error::user(GivenUp)) } else { Ok(replaced) }
            });
            linked.await
        };
        let seen = async |session: &mut Session| {
            let seen = session.transact(async |tx| {
                let row = rows.get(tx, 1).await?.map_or(0, |row| row.0[0]);
                Ok((row, large.get(tx, 1).await?.map(|value| whole(&value))))
            });
            seen.await.unwrap()
        };
        let stored = [[5; 10_000].as_slice(), &[9; 60_000]].map(|value| (value.len(), value.to_vec()));
        let stored =
            [large.upload(session, &stored[0].1).await.unwrap(), large.upload(session, &stored[1].1).await.unwrap()];
        let given_up = link(session, &stored, true).await;
        assert!(given_up.is_err_and(|error| error.downcast_user::<GivenUp>().is_some()));
        assert_eq!(seen(session).await, (0, None));
        assert_eq!(link(session, &stored, false).await.unwrap(), [None, None]);
        assert_eq!(seen(session).await, (1, Some((5, 10_000))));
        // Moved to another key, and gone with its row.
        let moved = session.transact(async |tx| {
            let stored = large.remove(tx, 1).await?.ok_or_else(|| rows.missing(1))?;
            rows.remove(tx, 1).await?;
            large.put(tx, 3, &stored).await
        });
        assert_eq!(moved.await.unwrap(), None);
        assert_eq!(seen(session).await, (0, None));
        assert_eq!(large.read(session, 3).await.unwrap().map(|value| whole(&value)), Some((5, 10_000)));
    });
    assert!(worker.drain().unwrap());
    assert_eq!(counts(&cluster, &large), [2, chunks(10_000) + chunks(60_000)]);
}

const LENGTHS: [usize; 5] = [0, 100, CHUNK, 2 * CHUNK + 5, 5 * CHUNK];

/// Replaces a value, together with the row that describes it.
async fn replace(session: &mut Session, (large, rows): (&Large<u64>, &Table<u64, Words<2>>), key: u64, byte: u8) {
    let value = vec![byte; LENGTHS[usize::from(byte) % LENGTHS.len()]];
    let stored = large.upload(session, &value).await.unwrap();
    let linked = session.transact(async |tx| {
        let row = tx.want_for(rows, key, Intent::Update);
        let replaced = large.put(tx, key, &stored).await?;
        row.get_mut(tx)?.0 = if value.is_empty() { [0, 0] } else { [byte.into(), value.len() as u64] };
        Ok(replaced)
    });
    if let Some(replaced) = linked.await.unwrap() {
        large.discard(session, &replaced).await.unwrap();
    }
}

/// Reads the value and the row, and asserts that they agree.
async fn check(session: &mut Session, (large, rows): (&Large<u64>, &Table<u64, Words<2>>), key: u64) {
    let read = session.transact(async |tx| {
        let value = large.get(tx, key).await?;
        Ok((value, rows.get(tx, key).await?))
    });
    let (value, row) = read.await.unwrap();
    let (byte, length) = whole(&value.unwrap_or_default());
    assert_eq!(row, Some(Words([byte, length])));
}

fn readers_see_one_whole_value(protocol: Protocol) {
    for seed in seeds(0..4) {
        let (cluster, fabric, large) = seeded(protocol, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(2), Words([0, 0]));
        let mut worker = worker(&cluster, 5, seed);
        let writing = Cell::new(2);
        let read = worker.run(async |client, session| {
            if client < 2 {
                for turn in 0..12 {
                    replace(session, (&large, &rows), turn % 2, (10 * turn) as u8 + client as u8).await;
                }
                writing.set(writing.get() - 1);
                return 0;
            }
            let mut read = 0;
            while writing.get() > 0 {
                check(session, (&large, &rows), read % 2).await;
                read += 1;
            }
            read
        });
        assert!(read[2..].iter().sum::<u64>() > 10, "seed {seed}: {read:?}");
        let last = worker.block_on(async |session| {
            let mut chunks_left = 0;
            for key in 0..2 {
                check(session, (&large, &rows), key).await;
                chunks_left += chunks(large.read(session, key).await.unwrap().unwrap().len());
            }
            chunks_left
        });
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        assert_eq!(counts(&cluster, &large), [2, last], "seed {seed}");
    }
}

fn readers_on_other_threads_see_one_whole_value(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(2, 40 * CHUNK as u64)).unwrap();
    let rows = table(&cluster, "rows", TableOptions::for_rows(2), Words([0, 0]));
    let part = |thread: usize| {
        let (cluster, large, rows) = (cluster.clone(), large.clone(), rows.clone());
        move || {
            let mut worker = cluster.worker(WorkerOptions::default().coroutines(2)).unwrap();
            worker.run(async |number, session| {
                for turn in 0..100 {
                    if number == 0 {
                        replace(session, (&large, &rows), turn % 2, (2 * turn) as u8 + thread as u8).await;
                    } else {
                        check(session, (&large, &rows), turn % 2).await;
                    }
                }
            });
        }
    };
    let threads: Vec<_> = (0..2).map(|thread| std::thread::spawn(part(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut worker = worker(&cluster, 1, 1);
    let left = worker.block_on(async |session| {
        let (first, second) = (large.read(session, 0).await.unwrap(), large.read(session, 1).await.unwrap());
        [first, second].into_iter().map(|value| chunks(value.unwrap().len())).sum::<u64>()
    });
    assert!(worker.drain().unwrap());
    assert_eq!(counts(&cluster, &large), [2, left]);
}

fn what_is_given_up_leaves_nothing(protocol: Protocol) {
    let (cluster, _, large) = seeded(protocol, 1);
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        large.write(session, 1, &[1; 20_000]).await.unwrap();
        let stored = large.upload(session, &[2; 100_000]).await.unwrap();
        let given_up: Result<(), _> = session
            .transact(async |tx| {
                large.put(tx, 1, &stored).await?;
                Err(Error::user(GivenUp))
            })
            .await;
        given_up.unwrap_err();
        // Discarding again does nothing.
        for _ in 0..2 {
            large.discard(session, &stored).await.unwrap();
        }
        // There is no room for this value. The chunks that were stored are deleted.
        let full = large.write(session, 1, &vec![3; 3 << 20]).await;
        assert!(matches!(full, Err(Error::Limit(Reason { cause: Limit::TableFull { .. }, .. }))), "{full:?}");
        let too_long = large.write(session, 1, &vec![3; LARGE_BYTES_MAX + 1]).await;
        let limit = Limit::Value { found: LARGE_BYTES_MAX + 1, max: LARGE_BYTES_MAX };
        assert!(matches!(too_long, Err(Error::Limit(ref found)) if found.cause == limit), "{too_long:?}");
        assert_eq!(large.read(session, 1).await.unwrap().map(|value| whole(&value)), Some((1, 20_000)));
    });
    assert!(worker.drain().unwrap());
    assert_eq!(counts(&cluster, &large), [1, chunks(20_000)]);
}

fn what_clients_leave_is_collected(protocol: Protocol) {
    let (cluster, fabric, large) = seeded(protocol, 1);
    let mut alive = worker(&cluster, 1, 1);
    let collect = async |session: &mut Session| large.collect(session).await.unwrap();

    // One client ends, one dies, and one goes on. Each has a value that it has linked, and one that
    // it has not.
    let leave = async |session: &mut Session, key: u64| {
        large.write(session, key, &[key as u8; 30_000]).await.unwrap();
        large.upload(session, &[0; 20_000]).await.unwrap()
    };
    let _unlinked = worker(&cluster, 1, 2).block_on(async |session| leave(session, 1).await);
    let mut dies = worker(&cluster, 1, 3);
    let dead = dies.incarnations().next().unwrap();
    let of_the_dead = dies.block_on(async |session| {
        let stored = leave(session, 2).await;
        // The client dies in the middle of another upload.
        let mut upload = std::pin::pin!(large.upload(session, &[0; 100_000]));
        let records = || cluster.inspect_large(&large).unwrap()[1].records;
        let before = records();
        while records() < before + 4 {
            assert!(cut_off(&mut upload, 20).await.is_none());
        }
        fabric.revoke(ClientId(dead)).unwrap();
        stored
    });
    dies.abandon();
    let stored = alive.block_on(async |session| {
        let stored = leave(session, 3).await;
        assert_eq!(collect(session).await, 1, "of the one that has ended");
        stored
    });
    fabric.settle_services();
    let before = cluster.inspect_large(&large).unwrap()[1].records;
    alive.recover(dead).unwrap();
    let me = alive.incarnations().next().unwrap();
    alive.block_on(async |session| {
        assert_eq!(collect(session).await, 2, "of the one that has died");
        assert_eq!(collect(session).await, 0);
        // Only the client that has uploaded a value may link it.
        let foreign = session.transact(async |tx| large.put(tx, 4, &of_the_dead).await).await;
        let names = matches!(&foreign, Err(Error::Foreign { table, by, client }) if table == "large" && (*by, *client) == (dead, me));
        assert!(names, "{foreign:?}");
        session.transact(async |tx| large.put(tx, 4, &stored).await).await.unwrap();
        for key in 1..4 {
            let found = large.read(session, key).await.unwrap();
            assert_eq!(found.map(|value| whole(&value)), Some((key, 30_000)));
        }
        assert_eq!(large.read(session, 4).await.unwrap().map(|value| whole(&value)), Some((0, 20_000)));
    });
    assert!(alive.drain().unwrap());
    fabric.settle_services();
    let [heads, left] = counts(&cluster, &large);
    assert_eq!((heads, left), (4, 3 * chunks(30_000) + chunks(20_000)));
    assert!(before > left + chunks(20_000), "something of what it was in the middle of was there: {before}");
}

/// Deaths of writers.
const TURNS: u64 = 24;

/// A writer dies at each of its steps. Then the key has one of the two values, and nothing else
/// stays.
fn a_writer_dies_at_every_step(protocol: Protocol) {
    let (mut collected, mut unknown) = (0, 0);
    let options = options(protocol, 2).node_bytes(8 << 20);
    let (cluster, fabric) = options.open_seeded(1).unwrap();
    let large = cluster.create_large("large", LargeOptions::for_values(1, 12 * CHUNK as u64)).unwrap();
    let write = async |session: &mut Session, byte: u8| {
        let value = vec![byte; if byte.is_multiple_of(2) { CHUNK } else { 5 * CHUNK }];
        large.write(session, 1, &value).await
    };
    let mut survivor = worker(&cluster, 1, 1);
    let mut steps = 0;
    for byte in [2, 3] {
        worker(&cluster, 1, 1).block_on(async |session| {
            let before = fabric.steps();
            write(session, byte).await.unwrap();
            steps = fabric.steps() - before;
        });
    }
    // Whether it had the new value then.
    let mut dies_at = |step: u64| {
        let what = format!("step {step} of {steps}");
        worker(&cluster, 1, step).block_on(async |session| write(session, 2).await).unwrap();
        let mut dies = worker(&cluster, 1, step);
        let dead = dies.incarnations().next().unwrap();
        fabric.revoke_after(ClientId(dead), step);
        let written = dies.block_on(async |session| write(session, 3).await);
        dies.abandon();
        survivor.recover(dead).unwrap();
        let (freed, found) = survivor.block_on(async |session| {
            let freed = large.collect(session).await.unwrap();
            (freed, large.read(session, 1).await.unwrap().unwrap())
        });
        assert!(survivor.drain().unwrap());
        fabric.settle_services();
        let is_new = whole(&found) == (3, 5 * CHUNK as u64);
        assert!(is_new || whole(&found) == (2, CHUNK as u64), "{what}");
        assert!(freed <= 1 && (is_new || written.is_err()), "{what}: {freed} {written:?}");
        assert_eq!(counts(&cluster, &large), [1, chunks(found.len())], "{what}");
        collected += freed;
        if let Err(Error::Unknown(id)) = written {
            // The id is the one of the transaction that links the value.
            let verdict = survivor.block_on(async |session| session.resolve(id, Duration::ZERO).await.unwrap());
            assert_eq!(verdict, if is_new { Verdict::Committed } else { Verdict::Aborted }, "{what}");
            unknown += 1;
        }
        is_new
    };
    // The writer dies from its first step to after its last one, and then at more steps around the
    // link.
    let all: Vec<_> = (0..TURNS).map(|turn| steps * turn / (TURNS - 4)).map(|step| (step, dies_at(step))).collect();
    let last_old = all.iter().filter(|(_, is_new)| !is_new).map(|(step, _)| *step).max().unwrap();
    let first_new = all.iter().filter(|(_, is_new)| *is_new).map(|(step, _)| *step).min().unwrap();
    let (from, to) = (first_new.min(last_old), first_new.max(last_old));
    for turn in 0..TURNS {
        dies_at(from + (to - from) * turn / TURNS);
    }
    // With other protocols few steps lie between commit and answer.
    assert!(collected > 10 && (unknown > 0 || protocol != Protocol::FASST), "{collected} {unknown}");
}

/// Other clients replace, read and delete values of clients that have left, while a client
/// collects.
fn collecting_takes_nothing_that_is_needed(protocol: Protocol) {
    let mut collected = 0;
    for seed in seeds(0..4) {
        let (cluster, fabric, large) = seeded(protocol, seed);
        worker(&cluster, 1, seed).block_on(async |session| {
            for key in 0..6 {
                large.write(session, key, &[key as u8; CHUNK + 1]).await.unwrap();
                let _unlinked = large.upload(session, &[9; CHUNK + 1]).await.unwrap();
            }
        });
        let mut worker = worker(&cluster, 3, seed);
        let freed = worker.run(async |client, session| {
            if client == 0 {
                let mut freed = 0;
                for _ in 0..3 {
                    freed += large.collect(session).await.unwrap();
                }
                return freed;
            }
            for key in (0..6).filter(|key| key % 2 + 1 == client as u64) {
                match key / 2 {
                    0 => large.write(session, key, &[key as u8; 3 * CHUNK]).await.unwrap(),
                    1 => assert!(large.delete(session, key).await.unwrap()),
                    _ => {}
                }
                let found = large.read(session, key).await.unwrap();
                let length = [3 * CHUNK as u64, 0, CHUNK as u64 + 1][key as usize / 2];
                assert_eq!(found.map(|value| whole(&value)), (length > 0).then_some((key, length)), "seed {seed}");
            }
            0
        });
        assert!(freed[0] >= 6, "seed {seed}: {freed:?}");
        collected += freed[0];
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        assert_eq!(counts(&cluster, &large), [4, 2 * 3 + 2 * 2], "seed {seed}");
    }
    assert!(collected > 0);
}

/// A client that comes during a collection, at any point of it, can link what it uploads.
fn who_comes_while_it_is_collected_is_alive(protocol: Protocol) {
    let (cluster, _, large) = seeded(protocol, 1);
    let mut worker_that_collects = worker(&cluster, 1, 1);
    let mut came = 0;
    for polls in (0..).map(|turn| 5 * turn) {
        let collected = worker_that_collects.block_on(async |session| {
            let mut collect = std::pin::pin!(large.collect(session));
            let over = cut_off(&mut collect, polls).await;
            let mut newcomer = worker(&cluster, 1, polls as u64);
            let stored = newcomer.block_on(async |session| large.upload(session, &[1; 2 * CHUNK]).await.unwrap());
            came += 1;
            let collected = if over.is_none() { Some(collect.await.unwrap()) } else { None };
            newcomer.block_on(async |session| {
                let replaced = session.transact(async |tx| large.put(tx, 1, &stored).await).await.unwrap();
                if let Some(replaced) = replaced {
                    large.discard(session, &replaced).await.unwrap();
                }
                let found = large.read(session, 1).await.unwrap();
                assert_eq!(found.map(|value| whole(&value)), Some((1, 2 * CHUNK as u64)), "{polls} polls");
            });
            collected
        });
        match collected {
            Some(collected) => assert_eq!(collected, 0, "{polls} polls"),
            None => break,
        }
    }
    assert!(came > 10, "{came}");
}

/// The longest value is read in one transaction.
fn the_longest_value_comes_back(protocol: Protocol) {
    let options = Cluster::embedded().nodes(1).replicas(1).node_bytes(160 << 20).protocol(protocol);
    let cluster = options.open().unwrap();
    // It does not grow: no row moves while all of them are read.
    let options = LargeOptions::for_values(1, LARGE_BYTES_MAX as u64).grows(false);
    let large = cluster.create_large::<u64>("large", options).unwrap();
    let mut worker = worker(&cluster, 1, 1);
    let value = pattern(LARGE_BYTES_MAX, 3);
    worker.block_on(async |session| {
        large.write(session, 1, &value).await.unwrap();
        assert!(large.read(session, 1).await.unwrap().is_some_and(|found| found == value));
        assert!(large.delete(session, 1).await.unwrap());
    });
    assert!(worker.drain().unwrap());
    assert_eq!(counts(&cluster, &large), [0, 0]);
}

fn a_head_that_stays_locked_stops_the_collection(protocol: Protocol) {
    let (cluster, fabric, large) = seeded(protocol, 1);
    worker(&cluster, 1, 1).block_on(async |session| {
        large.write(session, 1, &[1; 100]).await.unwrap();
        let _unlinked = large.upload(session, &[2; 100]).await.unwrap();
    });
    let mut dies = worker(&cluster, 1, 2);
    let dead = dies.incarnations().next().unwrap();
    dies.block_on(async |session| {
        let mut delete = std::pin::pin!(large.delete(session, 1));
        while cluster.inspect_large(&large).unwrap()[0].locked == 0 {
            assert!(cut_off(&mut delete, 1).await.is_none());
        }
        fabric.revoke(ClientId(dead)).unwrap();
    });
    dies.abandon();
    let mut survivor = worker(&cluster, 1, 3);
    survivor.block_on(async |session| {
        let stopped = large.collect(session).await;
        assert!(matches!(stopped, Err(Error::Aborted(_))), "{stopped:?}");
    });
    survivor.recover(dead).unwrap();
    survivor.block_on(async |session| {
        assert_eq!(large.collect(session).await.unwrap(), 1);
        assert_eq!(large.read(session, 1).await.unwrap().map(|value| whole(&value)), Some((1, 100)));
    });
    assert!(survivor.drain().unwrap());
    fabric.settle_services();
    assert_eq!(counts(&cluster, &large), [1, 1]);
}

/// A pool writes and reads large values, too. Work that takes several transactions runs on one of
/// its workers.
#[test]
fn a_pool_writes_and_reads_them() {
    let cluster = embedded(Protocol::DRTM_R, 3);
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(3, 600_000)).unwrap();
    let db = cluster.db(2, WorkerOptions::default()).unwrap();
    let writer = large.clone();
    db.run_blocking(async move |session: &mut Session| writer.write(session, 1, &[7; 50_000]).await).unwrap();
    let found = db.transact_blocking(async move |tx| large.get(tx, 1).await).unwrap();
    assert_eq!(found.map(|value| whole(&value)), Some((7, 50_000)));
}

#[test]
fn tables_that_cannot_be_are_refused_by_name() {
    let cluster = embedded(Protocol::DRTM_R, 3);
    let refused = |name: &str, rows, bytes| {
        cluster.create_large::<u64>(name, LargeOptions::for_values(rows, bytes)).map(drop).unwrap_err().to_string()
    };
    assert!(refused("large", 0, 1).contains("rows of a table"));
    assert!(refused(&"n".repeat(60), 1, 1).contains("table's name"), "its chunks have a longer one");
    let full = refused("large", 1, 1 << 40);
    assert!(full.contains("bytes"), "{full}");
    let unknown: Result<Large<u64>, OpenError> = cluster.open_large("large");
    assert!(unknown.is_err_and(|error| error.to_string().contains("large")));
    let other = cluster.create_table::<u64, Words<2>>("words", TableOptions::for_rows(1)).unwrap();
    assert_eq!(look(&cluster, &other).0.len(), 0);
    cluster.open_large::<u64>("words").map(drop).unwrap_err();
}
