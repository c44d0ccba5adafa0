//! Native RACE hash tables, the bound of measurements: they do what a map does as long as all
//! clients live, cost what native RACE costs, and stay locked if a client dies.

use std::cell::Cell;
use std::collections::BTreeMap;

use remora::floors::fabric::{Cost, splitmix};
use remora::protocol::Protocol;
use remora::{Cluster, OpenErrorKind, Race, RaceOptions, Session, WorkerOptions};
use remora_check::{KeyEvent, KeyVerb, is_linearizable};

use crate::reclaiming::look;
use crate::support::{self, cut_off};
use crate::{name, value};

fn cluster(protocol: Protocol) -> Cluster {
    Cluster::embedded().protocol(protocol).replicas(1).nodes(1).node_bytes(64 << 20).open().unwrap()
}

/// Subtables of 48 slots, which are split again and again.
fn small() -> RaceOptions {
    RaceOptions::default().rows(1).shards(1).groups(2)
}

#[test]
fn a_native_table_does_what_a_map_does() {
    for options in [RaceOptions::default().rows(1), small()] {
        let cluster = cluster(Protocol::NATIVE);
        let race = cluster.create_race("table", options).unwrap();
        let mut map = BTreeMap::new();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for step in 0..30_000u64 {
                let random = splitmix(step);
                let (name, value) = (name(random % 5_000), value(random % 5_000, step & 0xff));
                let was = map.get(&name).cloned();
                let was_there = was.is_some();
                let puts = match random >> 32 & 7 {
                    0 | 1 => {
                        assert_eq!(race.insert(session, &name, &value).await.unwrap(), !was_there);
                        !was_there
                    }
                    2 => {
                        assert_eq!(race.update(session, &name, &value).await.unwrap(), was_there);
                        was_there
                    }
                    3 => {
                        assert_eq!(race.upsert(session, &name, &value).await.unwrap(), was_there);
                        true
                    }
                    4 => {
                        assert_eq!(race.delete(session, &name).await.unwrap(), was_there);
                        map.remove(&name);
                        false
                    }
                    _ => {
                        assert_eq!(race.get(session, &name).await.unwrap(), was, "step {step}");
                        false
                    }
                };
                if puts {
                    map.insert(name, value);
                }
            }
        });
        drop(worker);
        let (found, keys) = look(&cluster, &race);
        assert_eq!(keys, map);
        assert!(found.subtables >= 4, "{found:?}");
        assert_eq!([found.locked, found.pending, found.wrong, found.duplicates, found.units.misused], [0; 5]);
    }
}

/// Returns round trips, READs, WRITEs and atomics of what a session does.
async fn cost(session: &mut Session, what: impl AsyncFnOnce(&mut Session)) -> [u64; 4] {
    let before = session.lane().cost();
    what(session).await;
    let Cost { round_trips, reads, writes, atomics, .. } = session.lane().cost().since(&before);
    [round_trips, reads, writes, atomics]
}

#[test]
fn native_operations_take_one_compare_and_swap_and_look_at_no_lock() {
    // Get, get of an absent key, update, delete, insert.
    let native = [[2, 3, 0, 0], [1, 2, 0, 0], [3, 3, 1, 1], [3, 3, 0, 1], [2, 4, 1, 1]];
    let rtx = [[2, 4, 0, 0], [2, 3, 0, 0], [3, 5, 1, 3], [3, 5, 0, 3], [4, 6, 1, 3]];
    for (protocol, expected) in [(Protocol::NATIVE, native), (Protocol::RTX, rtx)] {
        let cluster = cluster(protocol);
        let race = cluster.create_race("table", RaceOptions::default()).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            for key in [b"one", b"two"] {
                assert!(race.insert(session, key, b"value").await.unwrap());
            }
            // The session has blocks in hand, and knows the leaf.
            assert!(race.update(session, b"one", b"other").await.unwrap());
            assert!(race.delete(session, b"two").await.unwrap());
            let get = cost(session, async |session| _ = race.get(session, b"one").await.unwrap());
            let get = get.await;
            let absent = cost(session, async |session| _ = race.get(session, b"six").await.unwrap()).await;
            let update = cost(session, async |session| _ = race.update(session, b"one", b"new").await.unwrap()).await;
            let delete = cost(session, async |session| _ = race.delete(session, b"one").await.unwrap()).await;
            let insert = cost(session, async |session| _ = race.insert(session, b"ten", b"new").await.unwrap()).await;
            assert_eq!([get, absent, update, delete, insert], expected, "{}", protocol.name());
        });
    }
}

#[test]
fn native_tables_and_others_are_not_taken_for_each_other() {
    let native = cluster(Protocol::NATIVE);
    native.create_race("table", RaceOptions::default()).unwrap();
    for protocol in [Protocol::RTX, Protocol::FORD] {
        let other = native.clone().with_protocol(protocol);
        assert_eq!(other.open_race("table").unwrap_err().kind(), OpenErrorKind::OtherProtocol, "{protocol:?}");
    }
    let rtx = cluster(Protocol::RTX);
    rtx.create_race("table", RaceOptions::default()).unwrap();
    let other = rtx.clone().with_protocol(Protocol::NATIVE);
    assert_eq!(other.open_race("table").unwrap_err().kind(), OpenErrorKind::OtherProtocol);
}

/// Four clients insert, change and delete keys of their own, and change and read three hot keys,
/// while subtables are split all the time.
fn play(seed: u64) -> Result<(), String> {
    const HOT: u64 = 3;
    let (cluster, _fabric) = support::seeded(Protocol::NATIVE, 1, seed);
    let race = cluster.create_race("table", small()).unwrap();
    let mut worker = support::worker(&cluster, 4, seed);
    worker.block_on(async |session| {
        for hot in 0..HOT {
            assert!(race.insert(session, &hot.to_le_bytes(), &0u64.to_le_bytes()).await.unwrap());
        }
    });
    let clock = Cell::new(0u64);
    let now = || {
        clock.set(clock.get() + 1);
        clock.get()
    };
    let of_clients = worker.run(async |client, session| {
        let (mut events, mut own) = (Vec::new(), BTreeMap::new());
        for number in 0..80u64 {
            let random = splitmix(seed << 32 | (client as u64) << 16 | number);
            let hot = splitmix(random) % HOT;
            events.push((hot, change_or_read(&race, session, hot, random, &now).await));
            let key = (1 + client as u64) << 32 | random >> 8 & 63;
            let was = own.get(&key).copied();
            let name = key.to_le_bytes();
            let done = match random >> 40 & 3 {
                0 if was.is_some() => {
                    own.remove(&key);
                    race.delete(session, &name).await.unwrap()
                }
                1 => race.get(session, &name).await.unwrap() == was.map(|number: u64| value(key, number)),
                _ => {
                    own.insert(key, number);
                    race.upsert(session, &name, &value(key, number)).await.unwrap() == was.is_some()
                }
            };
            if !done {
                return Err(format!("seed {seed}, client {client}, step {number}, key {key:x}, which was {was:?}"));
            }
        }
        Ok((events, own))
    });
    let of_clients = of_clients.into_iter().collect::<Result<Vec<_>, String>>()?;
    for key in 0..HOT {
        let of_key = of_clients.iter().flat_map(|(events, _)| events).filter(|(of, _)| *of == key);
        let mut history: Vec<KeyEvent> = of_key.map(|(_, event)| *event).collect();
        let verb = KeyVerb::Insert(0);
        history.push(KeyEvent { verb, was_there: Some(false), value: 0, began: 0, ended: 0 });
        if is_linearizable(&history) != Some(true) {
            return Err(format!("seed {seed}, key {key}: {history:#?}"));
        }
    }
    drop(worker);
    let (found, keys) = look(&cluster, &race);
    let own = of_clients.iter().flat_map(|(_, own)| own);
    let expected: BTreeMap<_, _> =
        own.map(|(key, number)| (key.to_le_bytes().to_vec(), value(*key, *number))).collect();
    let keys: BTreeMap<_, _> = keys.into_iter().filter(|(key, _)| key[4] != 0).collect();
    let is_sound = [found.locked, found.wrong, found.duplicates, found.units.misused] == [0; 4];
    if keys == expected && is_sound && found.subtables > 2 { Ok(()) } else { Err(format!("seed {seed}: {found:?}")) }
}

/// Changes a hot key, or reads it, and notes that.
async fn change_or_read(race: &Race, session: &mut Session, hot: u64, random: u64, now: &dyn Fn() -> u64) -> KeyEvent {
    let (key, new) = (hot.to_le_bytes(), random >> 16);
    let (began, mut value) = (now(), 0);
    let (verb, was_there) = if random & 1 == 0 {
        let encoded = new.to_le_bytes().repeat(1 + (random >> 8) as usize % 9);
        (KeyVerb::Update(new), race.update(session, &key, &encoded).await.unwrap())
    } else {
        let shown = race.get_with(session, &key, |found| value = u64::from_le_bytes(found[..8].try_into().unwrap()));
        (KeyVerb::Get, shown.await.unwrap().is_some())
    };
    KeyEvent { verb, was_there: Some(was_there), value, began, ended: now() }
}

#[test]
fn no_change_is_lost_while_native_subtables_are_split() {
    for seed in support::seeds(0..if support::is_long() { 400 } else { 8 }) {
        play(seed).unwrap();
    }
}

/// Of several inserts of a key at once, one is told that it has inserted the key, or none.
#[test]
fn a_key_is_inserted_once_into_a_native_table() {
    for seed in support::seeds(0..15) {
        let (cluster, _fabric) = support::seeded(Protocol::NATIVE, 1, seed);
        let race = cluster.create_race("table", small()).unwrap();
        let mut worker = support::worker(&cluster, 4, seed);
        let inserted = worker.run(async |client, session| {
            let mut inserted = Vec::new();
            for key in 0..30u64 {
                inserted.push(race.insert(session, &key.to_le_bytes(), &value(key, client as u64)).await.unwrap());
            }
            inserted
        });
        drop(worker);
        for key in 0..30 {
            assert_eq!(inserted.iter().filter(|of_client| of_client[key]).count(), 1, "seed {seed}, key {key}");
        }
        let (found, keys) = look(&cluster, &race);
        assert_eq!((keys.len(), found.keys, found.duplicates), (30, 30, 0), "seed {seed}");
    }
}

/// What makes these tables a bound and no more: nobody repairs the lock of a dead client.
#[test]
fn a_native_subtable_stays_locked_if_its_client_dies() {
    let cluster = cluster(Protocol::NATIVE);
    let race = cluster.create_race("table", RaceOptions::default()).unwrap();
    let mut dying = cluster.worker(WorkerOptions::default().coroutines(1).yield_after_rounds(true)).unwrap();
    dying.block_on(async |session| {
        assert!(race.insert(session, b"key", b"value").await.unwrap());
        assert!(cut_off(race.split(session, b"key"), 4).await.is_none());
    });
    dying.abandon();
    let mut survivor = cluster.worker(WorkerOptions::default().coroutines(1).yield_after_rounds(true)).unwrap();
    survivor.block_on(async |session| {
        assert!(cut_off(race.get(session, b"key"), 2_000).await.is_none());
    });
    survivor.abandon();
    assert_eq!(look(&cluster, &race).0.locked, 1);
}
