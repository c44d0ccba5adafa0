//! Reclaiming arrays that were split, while other clients use the table: no array is given away
//! that an operation may still change, and what an operation finds there by an old address is no
//! answer.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use remora::admin::Reclaimed;
use remora::floors::fabric::splitmix;
use remora::floors::txn::mutant::{self, Mutant};
use remora::{Race, RaceOptions, Session, WorkerOptions};
use remora_check::{KeyEvent, is_linearizable};

use crate::reclaiming::look;
use crate::support::others_run;
use crate::{Folder, cluster, step, value};

/// Bytes of an array of 48 slots.
const ARRAY_BYTES: u64 = 48 * 8;

fn small() -> RaceOptions {
    RaceOptions::default().rows(1).shards(1).groups(2)
}

async fn put(race: &Race, session: &mut Session, key: u64, change: u64) {
    race.upsert(session, &key.to_le_bytes(), &value(key, change)).await.unwrap();
}

/// A client stops after some steps of an update, while another one splits the subtable, and has the
/// dead array reclaimed. Returns whether the update had ended before that.
fn stop_in_update(steps: usize) -> Result<bool, String> {
    let cluster = cluster(1, 32 << 20);
    let race = cluster.create_race("table", small()).unwrap();
    let mut other = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    other.block_on(async |session| put(&race, session, 7, 0).await);
    // 0: the client is about to stop; 1: it has stopped; 2: it goes on.
    let stage = AtomicU64::new(0);
    let until = |wanted| {
        while stage.load(Ordering::Acquire) < wanted {
            thread::sleep(Duration::from_micros(50));
        }
    };
    thread::scope(|scope| {
        let stopped = scope.spawn(|| {
            let options = WorkerOptions::default().coroutines(1).yield_after_rounds(true);
            let mut worker = cluster.worker(options).unwrap();
            let has_ended = worker.block_on(async |session| {
                race.get(session, &7u64.to_le_bytes()).await.unwrap();
                let (key, new) = (7u64.to_le_bytes(), value(7, 1));
                let mut update = pin!(race.update(session, &key, &new));
                let mut left = steps;
                let early = poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(None);
                    }
                    left -= 1;
                    context.waker().wake_by_ref();
                    update.as_mut().poll(context).map(Some)
                });
                let early = early.await;
                stage.store(1, Ordering::Release);
                while stage.load(Ordering::Acquire) < 2 {
                    others_run().await;
                }
                let has_ended = early.is_some();
                let was_there = match early {
                    Some(done) => done,
                    None => update.await,
                };
                assert!(was_there.unwrap());
                has_ended
            });
            stage.store(3, Ordering::Release);
            has_ended
        });
        until(1);
        let is_split = other.block_on(async |session| race.split(session, &7u64.to_le_bytes()).await.unwrap());
        let early = cluster.reclaim_arrays().map_err(|error| error.to_string());
        stage.store(2, Ordering::Release);
        let has_ended = stopped.join().unwrap();
        if !is_split {
            return Err("the subtable could not be split".to_owned());
        }
        match early {
            Err(refused) if !has_ended && refused.contains("are connected") => {
                let reclaimed = cluster.reclaim_arrays().map_err(|error| error.to_string())?;
                assert_eq!(reclaimed.race_bytes, ARRAY_BYTES);
            }
            Ok(reclaimed) if has_ended => assert_eq!(reclaimed.race_bytes, ARRAY_BYTES),
            early => return Err(format!("{steps} steps, the update had ended: {has_ended}, reclaiming: {early:?}")),
        }
        assert_eq!(cluster.reclaim_arrays().unwrap(), Reclaimed::default());
        let found = other.block_on(async |session| race.get(session, &7u64.to_le_bytes()).await.unwrap());
        assert_eq!(found, Some(value(7, 1)));
        Ok(has_ended)
    })
}

#[test]
fn no_array_is_given_away_that_an_operation_may_still_change() {
    let mut ended = 0;
    for steps in [2, 3, 8] {
        ended += u64::from(stop_in_update(steps).unwrap());
    }
    assert_eq!(ended, 1);
}

#[test]
fn an_array_that_is_given_away_too_early_is_noticed() {
    mutant::set(Some(Mutant::RaceReclaimUnheard));
    let noticed = stop_in_update(3);
    mutant::set(None);
    assert!(noticed.is_err());
}

/// A client remembers arrays that were split long ago, and whose memory has other uses since. It
/// has all right answers, and the table does not grow where that memory is enough.
#[test]
fn a_client_with_old_addresses_reads_what_is_there() {
    const KEYS: u64 = 3_000;
    let cluster = cluster(1, 32 << 20);
    let race = cluster.create_race("table", small()).unwrap();
    let mut idle = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let mut busy = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let mut bytes = 0;
    for from in (0..KEYS).step_by(200) {
        busy.block_on(async |session| {
            for key in from..from + 200 {
                put(&race, session, key, 0).await;
            }
        });
        if from % 600 == 0 {
            // It learns of the leaves, all of which are split later.
            idle.block_on(async |session| {
                for key in 0..from + 200 {
                    let found = race.get(session, &key.to_le_bytes()).await.unwrap();
                    assert_eq!(found, Some(value(key, 0)), "key {key} of {from}");
                }
            });
        }
        bytes += cluster.reclaim_arrays().unwrap().race_bytes;
    }
    let (before, _) = look(&cluster, &race);
    // Values of all sizes, in blocks of units that were arrays.
    busy.block_on(async |session| {
        for key in KEYS..2 * KEYS {
            put(&race, session, key, 0).await;
        }
    });
    idle.block_on(async |session| {
        for key in 0..2 * KEYS {
            put(&race, session, key, 1).await;
            assert_eq!(race.get(session, &key.to_le_bytes()).await.unwrap(), Some(value(key, 1)), "key {key}");
        }
    });
    assert!(bytes > 50 * ARRAY_BYTES, "{bytes} bytes");
    drop((idle, busy));
    let (found, keys) = look(&cluster, &race);
    assert_eq!(keys.len() as u64, 2 * KEYS);
    assert_eq!([found.locked, found.pending, found.wrong, found.duplicates, found.units.misused], [0; 5], "{found:?}");
    assert!(before.units.listed > 0, "{before:?}");
    // Without clients, all that is lost is found, and the arrays that are in use stay.
    cluster.reclaim().unwrap();
    let (found, again) = look(&cluster, &race);
    crate::reclaiming::check_reclaimed(&found).unwrap();
    assert_eq!(again, keys);
    assert_eq!(cluster.reclaim_arrays().unwrap(), Reclaimed::default());
}

/// Three clients insert, change and read keys, so that subtables are split all the time. Another
/// one reclaims dead arrays meanwhile, again and again.
#[test]
fn arrays_are_reclaimed_beside_clients_that_use_the_table() {
    const HOT: u64 = 4;
    let time = if crate::support::is_long() { Duration::from_secs(60) } else { Duration::from_millis(1_200) };
    let folder = Folder::new("beside", 256 << 20);
    let creator = folder.open();
    creator.create_race("table", small()).unwrap();
    let histories: Mutex<Vec<Vec<(u64, KeyEvent)>>> = Mutex::default();
    let inserted: Mutex<Vec<u64>> = Mutex::default();
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let (mut bytes, mut times) = (0, 0);
    thread::scope(|scope| {
        for client in 0..3u64 {
            let (folder, histories, inserted, is_over) = (&folder, &histories, &inserted, &is_over);
            scope.spawn(move || {
                let cluster = folder.open();
                let race = cluster.open_race("table").unwrap();
                let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
                let now = || began.elapsed().as_nanos() as u64;
                worker.block_on(async |session| {
                    let (mut events, mut own) = (Vec::new(), Vec::new());
                    while !is_over.load(Ordering::Acquire) {
                        let number = own.len() as u64;
                        let random = splitmix(client << 40 | number);
                        if number.is_multiple_of(16) {
                            let hot = splitmix(random) % HOT;
                            events.push((hot, step(&race, session, &hot.to_le_bytes(), random, &now).await));
                        }
                        let key = (1 + client) << 32 | number;
                        put(&race, session, key, 0).await;
                        own.push(key);
                        let old = own[random as usize % own.len()];
                        let found = race.get(session, &old.to_le_bytes()).await.unwrap();
                        assert_eq!(found, Some(value(old, 0)), "key {old:x}");
                    }
                    histories.lock().unwrap().push(events);
                    inserted.lock().unwrap().append(&mut own);
                });
            });
        }
        let reclaimer = folder.open();
        while began.elapsed() < time {
            bytes += reclaimer.reclaim_arrays().unwrap().race_bytes;
            times += 1;
        }
        is_over.store(true, Ordering::Release);
    });
    assert!(times > 2 && bytes > 20 * ARRAY_BYTES, "{bytes} bytes in {times} times");
    let of_clients = histories.into_inner().unwrap();
    for hot in 0..HOT {
        let of_key = of_clients.iter().flatten().filter(|(key, _)| *key == hot).map(|(_, event)| *event);
        let history: Vec<KeyEvent> = of_key.collect();
        assert_eq!(is_linearizable(&history), Some(true), "key {hot} of {} events", history.len());
    }
    let race = creator.open_race("table").unwrap();
    let (found, keys) = look(&creator, &race);
    for key in inserted.into_inner().unwrap() {
        assert_eq!(keys.get(&key.to_le_bytes()[..]), Some(&value(key, 0)), "key {key:x}");
    }
    assert_eq!([found.locked, found.pending, found.wrong, found.duplicates, found.units.misused], [0; 5], "{found:?}");
}
