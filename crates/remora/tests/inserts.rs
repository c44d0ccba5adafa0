//! Inserts and deletes at run time, under every protocol: what a program sees of them, keys that
//! stay unique, absence that is validated, slots that are reused, and replicas that stay
//! byte-identical.

#[macro_use]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use remora::floors::fabric::Worker;
use remora::floors::fabric::shm::Shm;
use remora::floors::index::cluster_hash::Geometry;
use remora::floors::index::objects;
use remora::floors::txn::mutant::{self, Mutant};
use remora::floors::txn::{self, Stop, TransactOptions};
use remora::observe::{Cost, Observer, Outcome, TransactionEvent, WriteKind};
use remora::protocol::{Protocol, ReadScheme, Validation};
use remora::{Cluster, Error, Intent, Reason, Session, Table, TableOptions, TransactionOptions};

use support::rig::{self, Rig};
use support::{
    Words, at_one_node, cut_off, embedded, look, on_every_fabric, others_run, rest, seeded, seeds, table, worker,
};

type Rows = Table<u64, Words<1>>;

every_protocol! {
    what_is_inserted_is_there_until_it_is_deleted,
    own_inserts_and_deletes_are_seen,
    round_trips_are_exact,
    one_inserter_of_a_key_wins,
    absence_is_validated,
    slots_are_reused_and_versions_never_restart,
    a_full_table_says_so,
    what_was_locked_keeps_no_place,
}

most_protocols! {
    rows_that_move_are_never_seen_twice_or_not_at_all,
    an_insert_given_up_anywhere_leaves_no_trace,
    one_transaction_fills_a_long_chain,
}

/// Makes a table with the rows 0, 1, ... and with room for `room` rows.
fn rows(cluster: &Cluster, loaded: u64, room: u64) -> Rows {
    let rows = cluster.create_table("rows", TableOptions::for_rows(room)).unwrap();
    cluster.load(&rows, (0..loaded).map(|key| (key, Words([key])))).unwrap();
    rows
}

async fn present(session: &mut Session, rows: &Rows, key: u64) -> Option<u64> {
    let read = session.transact(async |tx| Ok(rows.get(tx, key).await?.map(|row| row.0[0])));
    read.await.unwrap()
}

/// Returns the rows' values after everything has come to rest. Asserts that nothing is locked,
/// torn, or different at a backup.
fn settled(cluster: &Cluster, worker: &mut remora::Worker, rows: &Rows) -> Vec<u64> {
    assert!(worker.drain().unwrap());
    let (rows, found) = look(cluster, rows);
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0));
    let mut values: Vec<u64> = rows.iter().map(|row| row.0[0]).collect();
    values.sort_unstable();
    values
}

/// One transaction deletes a key. Another one asks for the key meanwhile, and learns its place and
/// that it is locked. It asks again, learns that the key is absent, and inserts it. By then, the
/// first place may belong to another key.
fn what_was_locked_keeps_no_place(protocol: Protocol) {
    for seed in seeds(0..20) {
        let (cluster, _) = seeded(protocol, 2, seed);
        let rows = rows(&cluster, 2, 40);
        let mut worker = worker(&cluster, 2, seed);
        worker.run(async |client, session| {
            for turn in 0..6 {
                let turn = session.transact(async |tx| {
                    let removed = rows.remove(tx, 0).await?;
                    if client == 0 {
                        return rows.put(tx, 2 + turn, Words([turn])).await.map(|_| ()); // takes the free slot
                    }
                    rows.insert(tx, 0, removed.unwrap_or(Words([turn]))).await
                });
                turn.await.unwrap();
            }
        });
        let own: Vec<_> = worker.block_on(async |session| {
            let read = session.transact(async |tx| rows.get_many(tx, [1, 2, 3, 4, 5, 6, 7]).await);
            read.await.unwrap().into_iter().map(|row| row.map(|row| row.0[0])).collect()
        });
        assert_eq!(own, [1, 0, 1, 2, 3, 4, 5].map(Some), "seed {seed}");
        settled(&cluster, &mut worker, &rows);
    }
}

fn what_is_inserted_is_there_until_it_is_deleted(protocol: Protocol) {
    for cluster in [1, 3].into_iter().flat_map(|replicas| on_every_fabric(protocol, replicas)) {
        let rows = rows(&cluster, 4, 40);
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            for life in 0..3 {
                let value = 100 + life;
                assert_eq!(present(session, &rows, 9).await, None);
                assert_eq!(session.transact(async |tx| rows.remove(tx, 9).await).await.unwrap(), None);
                session.transact(async |tx| rows.insert(tx, 9, Words([value])).await).await.unwrap();
                assert_eq!(present(session, &rows, 9).await, Some(value));
                let again = session.transact(async |tx| rows.insert(tx, 9, Words([1])).await).await;
                assert!(matches!(again, Err(Error::Exists(_))), "{again:?}");
                session.transact(async |tx| rows.update(tx, 9, Words([value + 50])).await).await.unwrap();
                assert_eq!(present(session, &rows, 9).await, Some(value + 50));
                let loaded = session.transact(async |tx| rows.insert(tx, 2, Words([1])).await).await;
                assert!(matches!(loaded, Err(Error::Exists(_))), "{loaded:?}");
                session.transact(async |tx| rows.remove(tx, 9).await).await.unwrap();
            }
            session.transact(async |tx| rows.remove(tx, 0).await).await.unwrap();
            assert_eq!(present(session, &rows, 0).await, None);
        });
        assert_eq!(settled(&cluster, &mut worker, &rows), [1, 2, 3]);
        // Another client, without a location cached, sees the same.
        let mut other = support::worker(&cluster, 1, 2);
        let seen = other.block_on(async |session| {
            [present(session, &rows, 0).await, present(session, &rows, 1).await, present(session, &rows, 9).await]
        });
        assert_eq!(seen, [None, Some(1), None]);
    }
}

/// Many keys of one bucket: the transaction that inserts all of them adds one bucket after the
/// other.
fn one_transaction_fills_a_long_chain(protocol: Protocol) {
    let (cluster, fabric) = seeded(protocol, 2, 1);
    let rows = rows(&cluster, 0, 400);
    let home = |key: u64| rows.untyped().home(rig::key(key).hash());
    let first = home(0);
    let keys: Vec<u64> = (0..).filter(|key| home(*key) == first).take(40).collect();
    let mut worker = worker(&cluster, 1, 1);
    let insert = async |session: &mut Session| {
        session
            .transact(async |tx| {
                for key in &keys {
                    rows.insert(tx, *key, Words([*key])).await?;
                }
                Ok(())
            })
            .await
    };
    worker.block_on(insert).unwrap();
    assert_eq!(settled(&cluster, &mut worker, &rows), keys);
    let mut other = support::worker(&cluster, 1, 2);
    for key in &keys {
        assert_eq!(other.block_on(async |session| present(session, &rows, *key).await), Some(*key));
    }
    fabric.settle_services();
}

fn own_inserts_and_deletes_are_seen(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows = rows(&cluster, 4, 40);
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            let mixed = session.transact(async |tx| {
                assert_eq!(rows.get(tx, 7).await?, None);
                rows.insert(tx, 7, Words([70])).await?;
                assert_eq!(rows.get(tx, 7).await?, Some(Words([70])));
                rows.update(tx, 7, Words([71])).await?;
                assert!(matches!(rows.insert(tx, 7, Words([0])).await, Err(Error::Exists(_))));
                // The key is deleted and inserted again, which is an update.
                assert_eq!(rows.remove(tx, 1).await?, Some(Words([1])));
                assert_eq!(rows.get(tx, 1).await?, None);
                assert_eq!(rows.remove(tx, 1).await?, None);
                assert!(matches!(rows.update(tx, 1, Words([0])).await, Err(Error::NotFound(_))));
                rows.insert(tx, 1, Words([11])).await?;
                // The key is inserted and deleted again, which changes nothing.
                rows.insert(tx, 8, Words([80])).await?;
                rows.remove(tx, 8).await?;
                assert_eq!(rows.get(tx, 8).await?, None);
                // The key is changed, and then deleted.
                rows.update(tx, 2, Words([22])).await?;
                rows.remove(tx, 2).await
            });
            mixed.await.unwrap();
            let mut seen = Vec::new();
            for key in [1, 2, 3, 7, 8] {
                seen.push(present(session, &rows, key).await);
            }
            assert_eq!(seen, [Some(11), None, Some(3), Some(71), None]);
            let gave_up = session.transact(async |tx| {
                rows.insert(tx, 20, Words([1])).await?;
                rows.remove(tx, 3).await?;
                Err::<(), _>(rows.missing(0))
            });
            assert!(matches!(gave_up.await, Err(Error::NotFound(_))));
            rest(session).await;
            assert_eq!([present(session, &rows, 20).await, present(session, &rows, 3).await], [None, Some(3)]);
        });
        assert_eq!(settled(&cluster, &mut worker, &rows), [0, 3, 11, 71]);
    }
}

/// Keeps the cost and the versions of every attempt that commits.
#[derive(Clone, Default)]
struct Observed(Rc<RefCell<Vec<Committed>>>);

/// What an attempt cost, and the versions it installed.
type Committed = (Cost, Vec<(WriteKind, u64)>);

impl Observer for Observed {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if matches!(event.outcome, Outcome::Committed | Outcome::UserAbort) {
            let written = event.accesses().filter_map(|access| access.written);
            let written = written.map(|(kind, version)| (kind, version.to_bits())).collect();
            self.0.borrow_mut().push((event.cost, written));
        }
    }
}

fn round_trips_are_exact(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows = rows(&cluster, 4, 40);
        worker(&cluster, 1, 1).block_on(async |session| {
            let seen = Observed::default();
            session.observe(Some(Box::new(seen.clone())));
            let round_trips = || seen.0.take().last().map(|(cost, _)| cost.round_trips);
            let insert = session.transact(async |tx| {
                let slots = [10, 11, 12].map(|key| tx.want_for(&rows, key, Intent::Insert));
                tx.fetch().await?;
                slots.into_iter().try_for_each(|slot| slot.insert(tx, Words([1])))
            });
            insert.await.unwrap();
            // An insert asks the primary's CPU, locks the slot, and writes the log, and so does a
            // delete. With protocols that use no CPU, clients lock and read the chain, lock the
            // slot, and commit; for a delete, the location is known. If the version cache is at
            // another node, the transaction publishes there first.
            // An oracle is asked for the time of the commit. Under `dst-2pl` the CPU also locks the
            // slot, in the same call.
            let told = u64::from(protocol.validation() == Validation::Global || protocol == Protocol::GTS);
            let locked = u64::from(protocol == Protocol::DST_2PL);
            // Under `rtx`, the log comes before the locks at other nodes, and a delete READs the
            // block.
            let (logged, read) = if protocol == Protocol::RTX { (1, 1) } else { (0, 0) };
            assert_eq!(round_trips(), Some(3 + told - locked + logged));
            rest(session).await;
            // A client that changes records itself first looks where the keys were, and so finds
            // them as if they were named to be changed.
            if let Protocol::Ford(_) = protocol {
                let put = session.transact(async |tx| {
                    let slots = [10, 11, 12].map(|key| tx.want_for(&rows, key, Intent::Insert));
                    tx.fetch().await?;
                    slots.into_iter().try_for_each(|slot| slot.put(tx, Words([2])).map(|_| ()))
                });
                put.await.unwrap();
                assert_eq!(round_trips(), Some(2 + told));
                rest(session).await;
            }
            let delete = session.transact(async |tx| {
                let slots = [10, 11, 12].map(|key| tx.want_for(&rows, key, Intent::Delete));
                tx.fetch().await?;
                slots.into_iter().try_for_each(|slot| slot.remove(tx).map(|_| ()))
            });
            delete.await.unwrap();
            let locked = u64::from(locked > 0 || matches!(protocol, Protocol::Ford(_)));
            assert_eq!(round_trips(), Some(3 + told - locked + logged + read));
            rest(session).await;
            // For one absent key, the index is asked once, and nothing is validated, unless one
            // READ of a bucket does not prove the absence. Several absent keys are looked for
            // again, unless a version cache shows that no insert of them was published. Under
            // `drtm-r-clocks`, one more READ says since when they are absent.
            let (one, several) = match protocol {
                _ if protocol.discipline().unlinks_by_cpu() => (2, 3),
                Protocol::Ford(ford) if ford.validation == Validation::Local => (1, 1),
                Protocol::Ford(_) | Protocol::RTX => (2, 2),
                _ => (1, 2),
            };
            for (keys, expected) in [(10..11, one), (10..12, several)] {
                let miss = session.transact(async |tx| {
                    let slots: Vec<_> = keys.clone().map(|key| tx.want(&rows, key)).collect();
                    tx.fetch().await?;
                    assert!(slots.into_iter().all(|slot| slot.get(tx).unwrap().is_none()));
                    Ok(())
                });
                miss.await.unwrap();
                assert_eq!(round_trips(), Some(expected));
            }
        });
    }
}

fn one_inserter_of_a_key_wins(protocol: Protocol) {
    const CLIENTS: usize = 4;
    for seed in seeds(0..15) {
        let (cluster, fabric) = seeded(protocol, 3, seed);
        let rows = rows(&cluster, 0, 40);
        let mut worker = worker(&cluster, CLIENTS, seed);
        for key in 0..6 {
            let won = worker.run(async |client, session| {
                let insert = session.transact(async |tx| rows.insert(tx, key, Words([client as u64])).await);
                match insert.await {
                    Ok(()) => true,
                    Err(Error::Exists(_)) => false,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            });
            assert_eq!(won.iter().filter(|won| **won).count(), 1, "seed {seed}, key {key}: {won:?}");
            let winner = won.iter().position(|won| *won).unwrap() as u64;
            let seen = worker.block_on(async |session| present(session, &rows, key).await);
            assert_eq!(seen, Some(winner), "seed {seed}, key {key}");
        }
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        assert_eq!(settled(&cluster, &mut worker, &rows).len(), 6, "seed {seed}");
    }
}

/// Each of two clients inserts its key if the other client's key is absent. Returns whether both
/// have, which may happen only with a mutant.
fn both_inserted(protocol: Protocol, seed: u64) -> bool {
    let (cluster, _) = seeded(protocol, 1, seed);
    let rows = rows(&cluster, 0, 40);
    let mut both = false;
    for turn in 0..4 {
        let keys = [2 * turn, 2 * turn + 1];
        let inserted = worker(&cluster, 2, seed).run(async |client, session| {
            let options = TransactionOptions::default().attempts(1);
            let insert = session.transact_with(options, async |tx| {
                let (own, other) = (keys[client], keys[1 - client]);
                let own = tx.want_for(&rows, own, Intent::Insert);
                let other = tx.want(&rows, other);
                tx.fetch().await?;
                others_run().await;
                if other.get(tx)?.is_some() {
                    return Ok(false);
                }
                own.insert(tx, Words([1]))?;
                Ok(true)
            });
            matches!(insert.await, Ok(true))
        });
        both |= inserted == [true, true];
    }
    both
}

fn absence_is_validated(protocol: Protocol) {
    const SEEDS: std::ops::Range<u64> = 0..60;
    for seed in seeds(SEEDS) {
        assert!(!both_inserted(protocol, seed), "seed {seed}: both were absent for each other, and both were inserted");
    }
    if protocol.discipline().is_timed() {
        return; // the locks of the chains' headers keep these two apart
    }
    let caught = seeds(SEEDS).any(|seed| {
        mutant::set(Some(Mutant::AbsentWithoutValidation));
        let both = both_inserted(protocol, seed);
        mutant::set(None);
        both
    });
    assert!(caught, "without validation no seed shows the error: this test proves nothing");
}

/// Rows move between keys, by a delete and an insert each. A transaction that reads all keys sees
/// every row once.
fn rows_that_move_are_never_seen_twice_or_not_at_all(protocol: Protocol) {
    const KEYS: u64 = 7;
    const ROWS: u64 = 3;
    for seed in seeds(0..15) {
        let (cluster, fabric) = seeded(protocol, 3, seed);
        let rows = rows(&cluster, ROWS, 24);
        let mut worker = worker(&cluster, 4, seed);
        let moves = Cell::new(0);
        worker.run(async |client, session| {
            for _ in 0..12 {
                if client == 0 {
                    let read = session.transact(async |tx| {
                        let slots: Vec<_> = (0..KEYS).map(|key| tx.want(&rows, key)).collect();
                        tx.fetch().await?;
                        Ok(slots
                            .into_iter()
                            .filter_map(|slot| slot.get(tx).unwrap())
                            .map(|row| row.0[0])
                            .collect::<Vec<_>>())
                    });
                    let mut seen = read.await.unwrap();
                    seen.sort_unstable();
                    assert_eq!(seen, (0..ROWS).collect::<Vec<_>>(), "seed {seed}");
                    continue;
                }
                let random = session.lane().random();
                let (from, to) = (random % KEYS, (random >> 32) % KEYS);
                let step = session.transact(async |tx| {
                    let Some(row) = rows.get(tx, from).await? else { return Ok(false) };
                    if from == to || rows.get(tx, to).await?.is_some() {
                        return Ok(false);
                    }
                    rows.remove(tx, from).await?;
                    rows.insert(tx, to, row).await?;
                    Ok(true)
                });
                match step.await {
                    Ok(moved) => moves.set(moves.get() + u64::from(moved)),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        });
        assert!(moves.get() > 0, "seed {seed}");
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        assert_eq!(settled(&cluster, &mut worker, &rows), (0..ROWS).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// Many more keys come and go than the table holds at a time; the versions of each only grow.
fn slots_are_reused_and_versions_never_restart(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows: Rows = cluster.create_table("rows", at_one_node(12)).unwrap();
        let mut worker = worker(&cluster, 1, 1);
        let live = worker.block_on(async |session| {
            let seen = Observed::default();
            session.observe(Some(Box::new(seen.clone())));
            let (mut live, mut last) = (BTreeMap::new(), BTreeMap::new());
            for turn in 0..300 {
                let random = session.lane().random();
                let key = random % 40;
                if live.contains_key(&key) {
                    session.transact(async |tx| rows.remove(tx, key).await).await.unwrap();
                    live.remove(&key);
                } else if live.len() < 9 {
                    session.transact(async |tx| rows.insert(tx, key, Words([turn])).await).await.unwrap();
                    live.insert(key, turn);
                }
                // A deleted record's slot is given back in the background.
                rest(session).await;
                for (_, written) in seen.0.take() {
                    let version = written[0].1;
                    let before = last.insert(key, version).unwrap_or(0);
                    assert!(version > before, "key {key}: version {version} after {before}");
                }
            }
            live
        });
        let mut expected: Vec<u64> = live.into_values().collect();
        expected.sort_unstable();
        assert_eq!(settled(&cluster, &mut worker, &rows), expected);
    }
}

/// An insert and a delete are dropped at every await. Then all of the transaction has happened, or
/// nothing.
fn an_insert_given_up_anywhere_leaves_no_trace(protocol: Protocol) {
    for seed in seeds(0..6) {
        let (cluster, fabric) = seeded(protocol, 3, seed);
        let rows = rows(&cluster, 4, 40);
        let mut worker = worker(&cluster, 2, seed);
        let (over, cut) = (Cell::new(false), Cell::new(0));
        worker.run(async |client, session| {
            let mut polls = 0;
            while !over.get() {
                let swap = async |session: &mut Session| {
                    let random = session.lane().random();
                    let (from, to) = (random % 8, (random >> 32) % 8);
                    let run = session.transact(async |tx| {
                        let Some(row) = rows.get(tx, from).await? else { return Ok(()) };
                        let slot = tx.want_for(&rows, to, Intent::Insert);
                        tx.fetch().await?;
                        if slot.get(tx)?.is_some() {
                            return Ok(()); // the prepared slot is not needed, and is taken back
                        }
                        slot.insert(tx, row)?;
                        rows.remove(tx, from).await.map(|_| ())
                    });
                    run.await
                };
                if client == 1 {
                    swap(session).await.unwrap();
                    continue;
                }
                let run = cut_off(swap(session), polls).await;
                cut.set(cut.get() + u64::from(run.is_none()));
                polls = if run.is_none() { polls + 1 } else { 0 };
                over.set(cut.get() > 150);
            }
        });
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        assert_eq!(settled(&cluster, &mut worker, &rows), [0, 1, 2, 3], "seed {seed}");
    }
}

fn a_full_table_says_so(protocol: Protocol) {
    if matches!(protocol, Protocol::Ford(_) | Protocol::RTX) {
        return chains_grow_until_the_reserved_space_is_used(protocol);
    }
    let cluster = embedded(protocol, 1);
    let rows: Rows = cluster.create_table("rows", at_one_node(5)).unwrap();
    let mut worker = worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        for key in 0..5 {
            session.transact(async |tx| rows.insert(tx, key, Words([key])).await).await.unwrap();
        }
        let full = session.transact(async |tx| rows.insert(tx, 5, Words([5])).await).await;
        assert!(matches!(full, Err(Error::Limit(Reason { cause: remora::Limit::TableFull { .. }, .. }))), "{full:?}");
        session.transact(async |tx| rows.remove(tx, 3).await).await.unwrap();
        rest(session).await;
        session.transact(async |tx| rows.insert(tx, 5, Words([5])).await).await.unwrap();
    });
    assert_eq!(settled(&cluster, &mut worker, &rows), [0, 1, 2, 4, 5]);
}

/// FStore's chains grow by buckets that clients take from the reserved space, several in one
/// transaction too.
fn chains_grow_until_the_reserved_space_is_used(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows: Rows = cluster.create_table("rows", at_one_node(5)).unwrap();
        let mut workers = worker(&cluster, 2, 1);
        let index = rows.untyped().index();
        let objects = index.buckets().count() * objects::BUCKET_OBJECTS as u64;
        let room = if protocol == Protocol::RTX { objects } else { index.slots_in_all() };
        let inserted = workers.block_on(async |session| {
            let mut inserted = 0;
            loop {
                let keys = [0, 1, 2].map(|index| inserted + index);
                let insert = session.transact(async |tx| {
                    let slots = keys.map(|key| tx.want_for(&rows, key, Intent::Insert));
                    tx.fetch().await?;
                    slots.into_iter().zip(keys).try_for_each(|(slot, key)| slot.insert(tx, Words([key])))
                });
                match insert.await {
                    Ok(()) => inserted += 3,
                    Err(Error::Limit(Reason { cause: remora::Limit::TableFull { .. }, .. })) => return inserted,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert!(inserted > room * 3 / 4 && inserted <= room, "{inserted} of {room}");
        // The refused insert has left no lock, and a deleted record makes room again.
        workers.block_on(async |session| {
            session.transact(async |tx| rows.remove(tx, 1).await).await.unwrap();
            rest(session).await;
            session.transact(async |tx| rows.insert(tx, 1, Words([1])).await).await.unwrap();
            rest(session).await;
        });
        // A client that has nothing cached finds all of them.
        let found = worker(&cluster, 1, 2).block_on(async |session| {
            session
                .transact(async |tx| {
                    let slots: Vec<_> = (0..inserted).map(|key| tx.want(&rows, key)).collect();
                    tx.fetch().await?;
                    slots.into_iter().map(|slot| Ok(slot.require(tx)?.0[0])).collect::<Result<Vec<_>, Error>>()
                })
                .await
        });
        assert_eq!(found.unwrap(), (0..inserted).collect::<Vec<_>>());
        assert_eq!(settled(&cluster, &mut workers, &rows).len() as u64, inserted);
    }
}

/// Fills a table of `rtx` with rows of `N` words, after some clients have come, have taken blocks
/// and buckets in vain, and have left. Returns the number of rows.
fn room_after<const N: usize>(clients: u64, wanted: u64) -> u64 {
    let cluster = embedded(Protocol::RTX, 1);
    let rows: Table<u64, Words<N>> = cluster.create_table("rows", at_one_node(wanted)).unwrap();
    for client in 0..clients {
        let mut worker = worker(&cluster, 1, client);
        worker.block_on(async |session| {
            session.transact(async |tx| rows.insert(tx, 0, Words::all(1)).await).await.unwrap();
            session.transact(async |tx| rows.remove(tx, 0).await).await.unwrap();
            let mut begun = session.begin().unwrap();
            let mut tx = begun.transaction();
            let slots: Vec<_> = (100..120).map(|key| tx.want_for(&rows, key, Intent::Insert)).collect();
            tx.fetch().await.unwrap();
            slots.into_iter().for_each(|slot| slot.insert(&mut tx, Words::all(2)).unwrap());
            begun.abort().await;
        });
        assert!(worker.drain().unwrap());
    }
    worker(&cluster, 1, clients).block_on(async |session| {
        let mut inserted = 0;
        loop {
            match session.transact(async |tx| rows.insert(tx, inserted, Words::all(3)).await).await {
                Ok(()) => inserted += 1,
                Err(error) if matches!(error.limit(), Some(remora::Limit::TableFull { .. })) => return inserted,
                Err(error) => panic!("{error}"),
            }
            rest(session).await;
        }
    })
}

/// What a client of `rtx` has in hand is there for others when it has left: overflow buckets, which
/// the first of these tables runs out of, and blocks, which the second one does. Each client needs
/// two buckets at once.
#[test]
fn what_is_in_hand_is_returned() {
    let [buckets, blocks] = [room_after::<1>(0, 5), room_after::<900>(0, 100)];
    assert_eq!([room_after::<1>(20, 5), room_after::<900>(20, 100)], [buckets, blocks]);
}

/// A bulk load makes chains of any length. Keys in a long chain are found, and no key is added to
/// it.
#[test]
fn a_chain_that_is_too_long_is_a_full_table() {
    const ROWS: u64 = 200;
    let rig = Rig::new(Shm::new(&[vec![4 << 20]]).unwrap());
    let values: Vec<Vec<u8>> = (0..ROWS).map(|row| row.to_le_bytes().to_vec()).collect();
    let one_chain = |geometry: &mut Geometry| {
        (geometry.buckets, geometry.indirect, geometry.slots) = (1, 60, 2 * ROWS);
    };
    let table = rig.table_with("rows", ReadScheme::SingleLine, 1, 8, &values, one_chain);
    let change = async |session: &mut txn::Session, number, intent| {
        let changed = session.transact(TransactOptions::default(), async |tx| {
            tx.register(&table);
            let slot = tx.want_for(table.id(), &rig::key(number), intent)?;
            tx.fetch().await?;
            match intent {
                Intent::Insert => tx.insert(slot, &number.to_le_bytes())?,
                _ => tx.delete(slot)?,
            }
            Ok(Ok::<_, ()>(()))
        });
        changed.await.map(|done| done.unwrap())
    };
    let worker = Worker::new();
    rig::run(&worker, &mut rig.sessions(&worker, Protocol::DRTM_R, 1), async |_, session| {
        let full = Err(Stop::Limit(remora::Limit::TableFull { slots: table.index().slots_in_all() }));
        assert_eq!(change(session, ROWS, Intent::Insert).await, full);
        assert_eq!(change(session, ROWS - 1, Intent::Insert).await, Err(Stop::Exists), "at the end of the chain");
        change(session, ROWS - 1, Intent::Delete).await.unwrap();
        assert_eq!(change(session, ROWS - 1, Intent::Insert).await, full, "where it was, it cannot come back");
        change(session, 0, Intent::Delete).await.unwrap();
        change(session, ROWS - 1, Intent::Insert).await.unwrap();
    });
}

/// Presets of one discipline run on the same rows at the same time. A preset of another discipline
/// is refused, and the error names it.
#[test]
fn presets_of_one_discipline_run_together() {
    for [one, other] in [
        [Protocol::FARM, Protocol::FASST],
        [Protocol::DRTM_R, Protocol::DRTM_H],
        [Protocol::FARM, Protocol::DRTM_H],
        [Protocol::FASST, Protocol::DRTM_H],
    ] {
        for seed in seeds(0..6) {
            let (cluster, fabric) = seeded(one, 3, seed);
            let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([100]));
            let others = cluster.with_protocol(other);
            let of_other: Rows = others.open_table("rows").unwrap();
            // Workers of one thread take turns: transactions of both are under way at once on the
            // seeded fabric.
            let mut mine = worker(&cluster, 2, seed);
            let mut theirs = worker(&others, 2, seed + 1);
            let transfer = async |session: &mut Session, rows: &Rows| {
                let random = session.lane().random();
                let (from, to) = (random % 8, (random >> 32) % 8);
                let run = session.transact(async |tx| {
                    rows.get_mut(tx, from).await?.0[0] -= 1;
                    rows.get_mut(tx, to).await?.0[0] += 1;
                    Ok(())
                });
                run.await.unwrap();
            };
            for _ in 0..4 {
                mine.run(async |_, session| transfer(session, &rows).await);
                theirs.run(async |_, session| transfer(session, &of_other).await);
            }
            assert!(mine.drain().unwrap() && theirs.drain().unwrap());
            fabric.settle_services();
            let (values, found) = look(&cluster, &rows);
            assert_eq!(values.iter().map(|row| row.0[0]).sum::<u64>(), 800);
            assert_eq!((found.locked, found.differing_lines), (0, 0));
        }
    }
    for (one, other) in [(Protocol::DRTM_R, Protocol::FARM), (Protocol::FASST, Protocol::DRTM_R)] {
        let cluster = embedded(one, 1);
        table(&cluster, "rows", TableOptions::for_rows(8), Words([100]));
        let error = cluster.with_protocol(other).open_table::<u64, Words<1>>("rows").unwrap_err().to_string();
        assert!(error.contains(other.name()) && error.contains("NIC atomics") && error.contains("CPU"), "{error}");
    }
}

/// Presets of one discipline on threads, at the same time.
#[test]
fn presets_of_one_discipline_run_at_the_same_time() {
    for [one, other] in [[Protocol::FARM, Protocol::FASST], [Protocol::DRTM_R, Protocol::DRTM_H]] {
        let cluster = embedded(one, 3);
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([1000]));
        std::thread::scope(|scope| {
            for (seed, protocol) in [one, other, one, other].into_iter().enumerate() {
                let cluster = cluster.with_protocol(protocol);
                scope.spawn(move || {
                    let rows: Rows = cluster.open_table("rows").unwrap();
                    let mut worker = worker(&cluster, 2, seed as u64);
                    worker.run(async |_, session| {
                        for _ in 0..200 {
                            let random = session.lane().random();
                            let (from, to) = (random % 8, (random >> 32) % 8);
                            // A holder may have to wait for its turn on a busy machine for long.
                            let options = TransactionOptions::default().attempts(u32::MAX);
                            let run = session.transact_with(options, async |tx| {
                                rows.get_mut(tx, from).await?.0[0] -= 1;
                                rows.get_mut(tx, to).await?.0[0] += 1;
                                Ok(())
                            });
                            run.await.unwrap();
                        }
                    });
                    assert!(worker.drain().unwrap());
                });
            }
        });
        let (values, found) = look(&cluster, &rows);
        assert_eq!(values.iter().map(|row| row.0[0]).sum::<u64>(), 8000);
        assert_eq!((found.locked, found.differing_lines), (0, 0));
    }
}
