//! Reclaiming what dead clients of a RACE hash table had in hand: after it, nothing is lost, the
//! keys are the same, and the same memory can be used again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use remora::admin::{RaceInspection, Reclaimed};
use remora::floors::fabric::{NodeId, splitmix};
use remora::floors::index;
use remora::floors::index::race::UNIT_BYTES;
use remora::floors::node::metadata;
use remora::floors::txn::mutant::{self, Mutant};
use remora::floors::txn::{self, Abort, Stop};
use remora::{Cluster, Error, Limit, Race, RaceOptions, Session, Worker, WorkerOptions};

use crate::support::{self, cut_off};
use crate::{Folder, name, value};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads a whole table. Returns what the walk has found, and all keys with their values.
pub(crate) fn look(cluster: &Cluster, race: &Race) -> (RaceInspection, Map) {
    try_to_look(cluster, race).unwrap()
}

fn try_to_look(cluster: &Cluster, race: &Race) -> Result<(RaceInspection, Map), String> {
    let mut map = Map::new();
    let found = cluster.inspect_race(race, |key, value| _ = map.insert(key.to_vec(), value.to_vec()));
    Ok((found.map_err(|error| error.to_string())?, map))
}

/// Says what is wrong with a table that was just reclaimed.
pub(crate) fn check_reclaimed(found: &RaceInspection) -> Result<(), String> {
    let RaceInspection { locked, pending, tombstones, wrong, duplicates, units, .. } = *found;
    let is_sound = [locked, pending, tombstones, wrong, duplicates, units.lost, units.misused] == [0; 7];
    let is_exact = units.given == units.used + units.listed;
    if is_sound && is_exact { Ok(()) } else { Err(format!("{found:?}")) }
}

/// Makes a worker whose futures can be cut off after each round.
fn victim(cluster: &Cluster) -> Worker {
    cluster.worker(WorkerOptions::default().coroutines(1).yield_after_rounds(true)).unwrap()
}

/// Lets a client die. No other client stays.
fn bury(cluster: &Cluster, victim: Worker) {
    let dead: Vec<u32> = victim.incarnations().collect();
    victim.abandon();
    let mut survivor = cluster.worker(WorkerOptions::default()).unwrap();
    dead.into_iter().for_each(|client| survivor.recover(client).unwrap());
}

/// What a client is about to do when it dies.
#[derive(Clone, Copy, Debug)]
enum Last {
    Insert,
    InsertIntoNewTable,
    InsertOverTombstone,
    Update,
    Delete,
    Split,
}

const LAST: [Last; 6] =
    [Last::Insert, Last::InsertIntoNewTable, Last::InsertOverTombstone, Last::Update, Last::Delete, Last::Split];

/// A client dies after some steps of its last operation. Returns whether it had completed, or what
/// is wrong after the table was reclaimed.
fn die(last: Last, marks: bool, steps: usize) -> Result<bool, String> {
    let cluster = super::cluster(1, 32 << 20);
    let race = cluster.create_race("table", RaceOptions::default().rows(1).groups(2).marks(marks)).unwrap();
    let mut map = Map::new();
    // Subtables of 48 slots, some of which were split.
    let keys = if matches!(last, Last::InsertIntoNewTable) { 0 } else { 200 };
    let key = match last {
        Last::Update | Last::Delete | Last::Split => name(7),
        _ => name(1000),
    };
    let new = value(1000, 9);
    let mut victim = victim(&cluster);
    let done = victim.block_on(async |session| {
        for key in 0..keys {
            assert!(race.insert(session, &name(key), &value(key, 0)).await.unwrap());
            _ = map.insert(name(key), value(key, 0));
        }
        for key in (0..keys).step_by(3) {
            race.update(session, &name(key), &value(key, 1)).await.unwrap();
            _ = map.insert(name(key), value(key, 1));
        }
        if matches!(last, Last::InsertOverTombstone) {
            // The next insert of the key takes the first slot that is free.
            for key in 0..keys {
                race.delete(session, &name(key)).await.unwrap();
            }
            map.clear();
        }
        let operation = async {
            match last {
                Last::Insert | Last::InsertIntoNewTable | Last::InsertOverTombstone => {
                    race.insert(session, &key, &new).await
                }
                Last::Update => race.update(session, &key, &new).await,
                Last::Delete => race.delete(session, &key).await,
                Last::Split => race.split(session, &key).await,
            }
        };
        cut_off(operation, steps).await
    });
    bury(&cluster, victim);

    let lost = look(&cluster, &race).0.units.lost;
    let other = cluster.worker(WorkerOptions::default()).unwrap();
    let refused = cluster.reclaim().unwrap_err().to_string();
    assert!(refused.contains("are connected"), "{refused}");
    drop(other);
    let reclaimed = cluster.reclaim().unwrap();
    if reclaimed.race_bytes < lost * UNIT_BYTES {
        return Err(format!("{reclaimed:?} of {lost} units"));
    }
    let (found, after) = look(&cluster, &race);
    check_reclaimed(&found)?;
    assert_eq!(cluster.reclaim().unwrap(), Reclaimed::default(), "{last:?}, {steps} steps");

    // The operation has taken effect, or has not.
    let before = map.clone();
    match last {
        Last::Delete => _ = map.remove(&key),
        Last::Split => {}
        _ => _ = map.insert(key, new),
    }
    let is_done = done.map(|done| assert!(done.unwrap())).is_some();
    if after != map && (is_done || after != before) {
        return Err(format!("{last:?}, {steps} steps: {} keys", after.len()));
    }

    // The next client works with what was reclaimed, and what it leaves is as exact.
    let mut next = cluster.worker(WorkerOptions::default()).unwrap();
    let mut map = after;
    next.block_on(async |session| {
        for key in 0..400 {
            let (name, value) = (name(key), value(key, 2));
            race.upsert(session, &name, &value).await.unwrap();
            _ = map.insert(name, value);
        }
        for (key, value) in &map {
            assert_eq!(race.get(session, key).await.unwrap().as_ref(), Some(value));
        }
    });
    drop(next);
    let (found, after) = look(&cluster, &race);
    if found.wrong + found.duplicates + found.units.misused > 0 || after != map {
        return Err(format!("later: {found:?}"));
    }
    Ok(is_done)
}

#[test]
fn what_a_client_had_in_hand_that_dies_at_any_step_is_reclaimed() {
    for (last, marks) in LAST.into_iter().flat_map(|last| [(last, true), (last, false)]) {
        let mut steps = 1;
        while !die(last, marks, steps).unwrap() {
            steps += 1;
        }
        assert!(steps > 3, "{last:?}: {steps} steps");
    }
}

/// Changes a table at random until the client is cut off, as `random` says.
async fn change(race: &Race, session: &mut Session, random: u64) -> Result<(), Error> {
    for step in 0.. {
        let random = splitmix(random ^ step << 40);
        let key = random % 1500;
        let value = vec![random as u8; (random >> 20) as usize % 1200];
        _ = match random >> 8 & 3 {
            0 => race.delete(session, &name(key)).await?,
            _ => race.upsert(session, &name(key), &value).await?,
        };
    }
    Ok(())
}

/// Clients die one after another, and each leaves what it had in hand. Returns how many have died
/// until the memory was full, if it was. Fails with what is wrong after the table was reclaimed.
fn deaths_until_full(deaths: u64, reclaims: bool) -> Result<Option<u64>, String> {
    let cluster = super::cluster(1, 4 << 20);
    let race = cluster.create_race("table", RaceOptions::default().rows(1).groups(4)).unwrap();
    for death in 0..deaths {
        let mut victim = victim(&cluster);
        let steps = 2000 + (splitmix(death) % 1000) as usize;
        let ended = victim.block_on(async |session| cut_off(change(&race, session, death << 20), steps).await);
        bury(&cluster, victim);
        match ended {
            Some(Err(Error::Limit(reason))) if matches!(reason.cause, Limit::NodesFull { .. }) => {
                return Ok(Some(death));
            }
            Some(ended) => panic!("{ended:?}"),
            None => {}
        }
        if reclaims {
            let before = look(&cluster, &race).1;
            _ = cluster.reclaim().unwrap();
            let (found, after) = look(&cluster, &race);
            check_reclaimed(&found)?;
            assert!(before == after, "after {death} deaths");
        }
    }
    Ok(None)
}

#[test]
fn clients_die_again_and_again_in_a_small_memory() {
    let until_full = deaths_until_full(100, false).unwrap();
    assert!(until_full.is_some_and(|deaths| deaths < 60), "{until_full:?} deaths without reclaiming");
    assert_eq!(deaths_until_full(150, true), Ok(None));
}

#[test]
fn mistakes_of_reclaiming_are_noticed() {
    mutant::set(Some(Mutant::RaceReclaimFilled));
    let caught = (1..12).find_map(|steps| die(Last::Insert, true, steps).err());
    mutant::set(Some(Mutant::RaceReclaimDirty));
    let caught = [caught, deaths_until_full(150, true).err()];
    mutant::set(None);
    assert!(caught.iter().all(Option::is_some), "{caught:?}");
    for which in [Mutant::RaceReclaimBeside, Mutant::RaceReclaimDeadArray] {
        mutant::set(Some(which));
        let caught = (0..200).find_map(|steps| meet(steps, which == Mutant::RaceReclaimBeside, true).err());
        mutant::set(None);
        assert!(caught.is_some(), "{which:?}");
    }
}

/// A table has small values, then large ones, and then small ones again, in memory that has no room
/// for both.
#[test]
fn blocks_of_one_size_become_blocks_of_another_one() {
    let cluster = super::cluster(2, 5 << 20);
    let race = cluster.create_race("table", RaceOptions::default().rows(1).shards(2)).unwrap();
    let fill = |bytes: usize| {
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for key in 0u64.. {
                match race.insert(session, &key.to_le_bytes(), &vec![key as u8; bytes]).await {
                    Ok(inserted) => assert!(inserted),
                    Err(Error::Limit(reason)) if matches!(reason.cause, Limit::NodesFull { .. }) => return key,
                    Err(error) => panic!("{error}"),
                }
            }
            0
        })
    };
    let clear = |keys: u64| {
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for key in 0..keys {
                assert!(race.delete(session, &key.to_le_bytes()).await.unwrap(), "key {key}");
            }
        });
    };
    let mut counts = Vec::new();
    for round in 0..2 {
        for (bytes, least) in [(20, 20_000), (3_000, 500), (14_000, 100)] {
            let keys = fill(bytes);
            assert!(keys > least, "round {round}: {keys} keys of {bytes} bytes, after {counts:?}");
            // Each round finds about as much room as the one before.
            let before = counts.len().checked_sub(3).map_or(0, |former| counts[former]);
            assert!(10 * keys > 9 * before, "{keys} keys of {bytes} bytes, after {counts:?}");
            counts.push(keys);
            clear(keys);
            let reclaimed = cluster.reclaim().unwrap();
            assert!(reclaimed.race_bytes > 0, "tombstones have blocks");
            let (found, map) = look(&cluster, &race);
            check_reclaimed(&found).unwrap();
            assert!(map.is_empty());
        }
    }
}

/// Another client comes after some steps of reclaiming, and changes the table, or only splits its
/// subtables. It leaves before reclaiming goes on, or stays. Returns whether reclaiming had ended
/// when it came, or what is wrong.
fn meet(steps: usize, stays: bool, only_splits: bool) -> Result<bool, String> {
    let cluster = super::cluster(1, 16 << 20);
    let race = cluster.create_race("table", RaceOptions::default().rows(1).groups(2)).unwrap();
    let mut map = Map::new();
    let mut victim = victim(&cluster);
    victim.block_on(async |session| {
        for key in 0..60 {
            assert!(race.insert(session, &name(key), &value(key, 0)).await.unwrap());
            _ = map.insert(name(key), value(key, 0));
        }
        for key in (0..60).step_by(3) {
            assert!(race.delete(session, &name(key)).await.unwrap());
            _ = map.remove(&name(key));
        }
    });
    bury(&cluster, victim);

    let mut reclaiming = cluster.worker(WorkerOptions::default().coroutines(1).yield_after_rounds(true)).unwrap();
    let own = reclaiming.incarnations().next().unwrap();
    let (has_changed, changed) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (race, cluster) = (&race, &cluster);
    let mut ended = false;
    let after = thread::scope(|scope| {
        let mut map = map;
        let other = move || {
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            let change = async |session: &mut Session, map: &mut Map, number: u64| {
                if only_splits && number == 1 {
                    for key in 0..60 {
                        _ = race.split(session, &name(key)).await.unwrap();
                    }
                    return;
                }
                for key in (0..90).filter(|key| (key + number).is_multiple_of(4)) {
                    race.upsert(session, &name(key), &value(key, number)).await.unwrap();
                    _ = map.insert(name(key), value(key, number));
                }
                _ = race.split(session, &name(number)).await.unwrap();
                for key in (0..90).filter(|key| (key + number).is_multiple_of(7)) {
                    race.delete(session, &name(key)).await.unwrap();
                    _ = map.remove(&name(key));
                }
            };
            worker.block_on(async |session| change(session, &mut map, 1).await);
            if !stays {
                drop(worker);
                has_changed.send(()).unwrap();
                _ = goes_on.recv();
                worker = cluster.worker(WorkerOptions::default()).unwrap();
            } else {
                has_changed.send(()).unwrap();
                _ = goes_on.recv();
            }
            worker.block_on(async |session| change(session, &mut map, 2).await);
            map
        };
        let after = reclaiming.block_on(async |session| {
            let lane = session.lane();
            let metadata = metadata::read(lane, NodeId(0)).await.unwrap();
            let table = index::Table::open_entry(&metadata, metadata.table("table/0").unwrap());
            let race = txn::Race::open(&metadata, "table", Arc::new(table)).unwrap();
            let mut reclaim = std::pin::pin!(txn::reclaim_race(lane, NodeId(0), own, &race));
            ended = cut_off(reclaim.as_mut(), steps).await.is_some();
            let other = scope.spawn(other);
            changed.recv().unwrap();
            if !ended {
                match reclaim.await {
                    Ok(_) | Err(Stop::Abort(Abort::Changed)) => {}
                    Err(stop) => panic!("{stop}"),
                }
            }
            go_on.send(()).unwrap();
            other.join().map_err(|_| "the other client has failed".to_owned())
        });
        drop(reclaiming);
        after
    })?;
    let sound = |found: RaceInspection, map: &Map| {
        let is_sound = (found.wrong, found.duplicates, found.units.misused) == (0, 0, 0);
        if is_sound && *map == after { Ok(()) } else { Err(format!("{steps} steps, it stays: {stays}: {found:?}")) }
    };
    let (found, map) = try_to_look(cluster, race)?;
    sound(found, &map)?;
    _ = cluster.reclaim().map_err(|error| error.to_string())?;
    let (found, map) = try_to_look(cluster, race)?;
    check_reclaimed(&found)?;
    sound(found, &map)?;
    Ok(ended)
}

#[test]
fn another_client_comes_at_any_step_of_reclaiming() {
    for (stays, only_splits) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut steps = 0;
        while !meet(steps, stays, only_splits).unwrap() {
            steps += 1;
        }
        assert!(steps > 20, "{steps} steps");
    }
}

/// One client comes and goes, and dies at times, while another one reclaims again and again. Each
/// attempt succeeds or is refused, and the table has its keys at any time.
#[test]
fn clients_come_and_go_while_another_one_reclaims() {
    let folder = Folder::new("reclaims", 32 << 20);
    let cluster = folder.open();
    let race = cluster.create_race("table", RaceOptions::default().rows(1).groups(2)).unwrap();
    let is_over = AtomicBool::new(false);
    let (mut map, mut reclaimed, mut refused) = (Map::new(), 0u64, 0u64);
    thread::scope(|scope| {
        let reclaiming = scope.spawn(|| {
            let other = folder.open();
            let (mut reclaimed, mut refused) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                match other.reclaim() {
                    Ok(found) => reclaimed += u64::from(found.race_bytes > 0),
                    Err(error) => {
                        assert!(error.to_string().contains("connected"), "{error}");
                        refused += 1;
                    }
                }
            }
            (reclaimed, refused)
        });
        let began = Instant::now();
        let mut dead: Vec<u32> = Vec::new();
        for round in 0u64.. {
            if began.elapsed() > Duration::from_secs(if support::is_long() { 30 } else { 2 }) {
                break;
            }
            let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
            dead.drain(..).for_each(|client| worker.recover(client).unwrap());
            worker.block_on(async |session| {
                for step in 0..splitmix(round) % 40 {
                    let random = splitmix(round << 20 | step);
                    let (key, value) = (name(random % 300), value(random % 300, step));
                    let was = map.get(&key).cloned();
                    match random >> 32 & 3 {
                        0 => {
                            assert_eq!(race.delete(session, &key).await.unwrap(), was.is_some());
                            _ = map.remove(&key);
                        }
                        1 => assert_eq!(race.get(session, &key).await.unwrap(), was, "round {round}, step {step}"),
                        _ => {
                            assert_eq!(race.upsert(session, &key, &value).await.unwrap(), was.is_some());
                            _ = map.insert(key, value);
                        }
                    }
                }
            });
            if round % 4 == 0 {
                dead = worker.incarnations().collect();
                worker.abandon();
            } else {
                drop(worker);
                // Now and then there is time to reclaim.
                thread::sleep(Duration::from_micros(splitmix(round) % 1500));
            }
        }
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        dead.drain(..).for_each(|client| worker.recover(client).unwrap());
        drop(worker);
        is_over.store(true, Ordering::Relaxed);
        (reclaimed, refused) = reclaiming.join().unwrap();
    });
    assert!(reclaimed > 10 && refused > 10, "{reclaimed} times reclaimed, and {refused} times refused");
    let (found, after) = look(&cluster, &race);
    assert_eq!((found.wrong, found.duplicates, found.units.misused), (0, 0, 0), "{found:?}");
    assert!(after == map);
    _ = cluster.reclaim().unwrap();
    let (found, after) = look(&cluster, &race);
    check_reclaimed(&found).unwrap();
    assert!(after == map);
}
