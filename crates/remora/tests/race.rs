//! RACE hash tables through the library: every operation, growth from nothing, several clients at
//! once, and clients that die in the middle of a split.

#[path = "race/beside.rs"]
mod beside;
#[path = "race/late.rs"]
mod late;
#[path = "race/native.rs"]
mod native;
#[path = "race/processes.rs"]
mod processes;
#[path = "race/reclaiming.rs"]
mod reclaiming;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::admin::Reclaimed;
use remora::connect::{ConnectOptions, Nodes, Place};
use remora::floors::fabric::splitmix;
use remora::node::PassiveMemory;
use remora::protocol::Protocol;
use remora::{Cluster, Error, Limit, OpenErrorKind, Race, RaceOptions, Session, Table, TableOptions, WorkerOptions};
use remora_check::{KeyEvent, KeyVerb, is_linearizable};

use support::cut_off;

fn cluster(nodes: u16, bytes: usize) -> Cluster {
    Cluster::embedded().protocol(Protocol::RTX).nodes(nodes).node_bytes(bytes).open().unwrap()
}

/// The value of a key after its n-th change. Its length says both.
fn value(key: u64, change: u64) -> Vec<u8> {
    let length = 8 + (splitmix(key ^ change << 32) % 400) as usize;
    let mut value = vec![change as u8; length];
    value[..8].copy_from_slice(&(key << 16 | change).to_le_bytes());
    value
}

/// Keys of different lengths.
fn name(key: u64) -> Vec<u8> {
    format!("{key:x}/{}", "k".repeat((key % 50) as usize)).into_bytes()
}

#[test]
fn a_table_does_what_a_map_does() {
    for marks in [true, false] {
        let cluster = cluster(1, 64 << 20);
        let race = cluster.create_race("table", RaceOptions::default().rows(1).marks(marks)).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        worker.block_on(async |session| {
            let mut map = BTreeMap::new();
            for step in 0..60_000u64 {
                let random = splitmix(step);
                let key = random % 7_000;
                let (name, value) = (name(key), value(key, step & 0xff));
                let was = map.get(&key).cloned();
                match random >> 32 & 7 {
                    0 | 1 => assert_eq!(race.insert(session, &name, &value).await.unwrap(), was.is_none()),
                    2 => assert_eq!(race.update(session, &name, &value).await.unwrap(), was.is_some()),
                    3 => assert_eq!(race.upsert(session, &name, &value).await.unwrap(), was.is_some()),
                    4 => assert_eq!(race.delete(session, &name).await.unwrap(), was.is_some()),
                    _ => {
                        assert_eq!(race.get(session, &name).await.unwrap(), was, "key {key} at step {step}");
                        continue;
                    }
                }
                match (random >> 32 & 7, was.is_some()) {
                    (0 | 1, false) | (2, true) | (3, _) => _ = map.insert(key, value),
                    (4, _) => _ = map.remove(&key),
                    _ => {}
                }
            }
            for key in 0..7_000 {
                assert_eq!(race.get(session, &name(key)).await.unwrap().as_ref(), map.get(&key), "key {key}");
            }
        });
    }
}

async fn fill(race: &Race, session: &mut Session, keys: std::ops::Range<u64>) {
    for key in keys {
        assert!(race.insert(session, &key.to_le_bytes(), &value(key, 0)).await.unwrap(), "key {key}");
    }
}

#[test]
fn a_table_grows_by_extents_and_is_found_by_a_handle_that_knows_one() {
    let cluster = cluster(3, 96 << 20);
    let race = cluster.create_race("table", RaceOptions::default().rows(10)).unwrap();
    let other = cluster.open_race("table").unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| fill(&race, session, 0..120_000).await);
    let mut second = cluster.worker(WorkerOptions::default()).unwrap();
    second.block_on(async |session| {
        for key in 0..120_000u64 {
            let found = other.get_with(session, &key.to_le_bytes(), |found| found == value(key, 0)).await.unwrap();
            assert_eq!(found, Some(true), "key {key}");
        }
        assert_eq!(other.get(session, &120_000u64.to_le_bytes()).await.unwrap(), None);
    });
    let names: Vec<String> = cluster.list_tables().unwrap().into_iter().map(|table| table.name).collect();
    assert!(names.len() >= 3 && names[0] == "table/0" && names[1] == "table/1", "{names:?}");
    drop((worker, second));
    _ = cluster.drop_race("table").unwrap();
    assert!(cluster.list_tables().unwrap().is_empty());
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let cluster = cluster(1, 16 << 20);
    let options = RaceOptions::default();
    let kind = |created: Result<Race, remora::OpenError>| created.unwrap_err().kind();
    let refused = cluster.create_race("table", options.replicas(2)).unwrap_err();
    assert!(refused.kind() == OpenErrorKind::Argument && refused.to_string().contains("one copy"), "{refused}");
    assert_eq!(kind(cluster.create_race("table", options.rows(0))), OpenErrorKind::Argument);
    assert_eq!(kind(cluster.open_race("table")), OpenErrorKind::NoTable);
    let race = cluster.create_race("table", options).unwrap();
    assert_eq!(kind(cluster.create_race("table", options)), OpenErrorKind::TableExists);
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        let long = race.insert(session, b"key", &vec![0; 17 << 10]).await.unwrap_err();
        assert!(matches!(&long, Error::Limit(reason) if matches!(reason.cause, Limit::Value { .. })), "{long}");
        assert!(race.insert(session, b"key", &vec![7; 16_000]).await.unwrap());
        assert_eq!(race.get(session, b"key").await.unwrap(), Some(vec![7; 16_000]));
        // The memory node is full.
        let mut key = 0u64;
        let full = loop {
            key += 1;
            match race.insert(session, &key.to_le_bytes(), &[1; 12_000]).await {
                Ok(inserted) => assert!(inserted),
                Err(full) => break full,
            }
        };
        assert!(matches!(&full, Error::Limit(reason) if matches!(reason.cause, Limit::NodesFull { .. })), "{full}");
        // What is there can be read and deleted, and makes room for other values of the size.
        for key in 1..key {
            assert!(race.delete(session, &key.to_le_bytes()).await.unwrap(), "key {key}");
        }
        for key in 1..key - 20 {
            assert!(race.insert(session, &key.to_le_bytes(), &[1; 12_000]).await.unwrap(), "key {key}");
        }
    });
    drop(worker);
    let other = Cluster::embedded().open().unwrap();
    assert_eq!(kind(other.create_race("table", options)), OpenErrorKind::OtherProtocol);
}

/// What looks at all tables passes RACE hash tables by.
#[test]
fn other_tables_are_looked_after_beside_a_race_table() {
    let cluster = cluster(2, 32 << 20);
    let race = cluster.create_race("table", RaceOptions::default()).unwrap();
    let rows: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(1_000)).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        fill(&race, session, 0..1_000).await;
        for key in 0..500 {
            session.transact(async |tx| rows.insert(tx, key, key).await).await.unwrap();
        }
    });
    drop(worker);
    assert_eq!(cluster.grow_table("table/0", 10_000).unwrap_err().kind(), OpenErrorKind::NoTable);
    assert_eq!(cluster.reclaim().unwrap(), Reclaimed::default());
    assert_eq!(cluster.inspect(&rows, |_| {}).unwrap().records, 500);
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in 0..1_000u64 {
            assert_eq!(race.get(session, &key.to_le_bytes()).await.unwrap(), Some(value(key, 0)));
        }
    });
}

#[test]
fn a_table_that_was_dropped_is_refused() {
    let cluster = cluster(1, 16 << 20);
    let race = cluster.create_race("table", RaceOptions::default()).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| fill(&race, session, 0..100).await);
    _ = cluster.drop_race("table").unwrap();
    let again = cluster.create_race("table", RaceOptions::default()).unwrap();
    worker.block_on(async |session| {
        let dropped = race.get(session, &0u64.to_le_bytes()).await.unwrap_err();
        assert!(matches!(dropped, Error::Misuse(_)), "{dropped}");
        assert_eq!(again.get(session, &0u64.to_le_bytes()).await.unwrap(), None);
        fill(&again, session, 0..100).await;
    });
}

/// Runs one random operation on a key, and notes it.
async fn step(race: &Race, session: &mut Session, key: &[u8], random: u64, now: &dyn Fn() -> u64) -> KeyEvent {
    let began = now();
    let new = random >> 16;
    let verb = match random & 7 {
        0 | 1 => KeyVerb::Insert(new),
        2 => KeyVerb::Update(new),
        3 => KeyVerb::Upsert(new),
        4 => KeyVerb::Delete,
        _ => KeyVerb::Get,
    };
    let mut value = 0;
    // Values of different lengths have blocks of different sizes.
    let encoded = new.to_le_bytes().repeat(1 + (random >> 8) as usize % 9);
    let was_there = match verb {
        KeyVerb::Get => {
            let found = race.get_with(session, key, |found| value = u64::from_le_bytes(found[..8].try_into().unwrap()));
            found.await.map(|found| found.is_some())
        }
        KeyVerb::Insert(_) => race.insert(session, key, &encoded).await.map(|inserted| !inserted),
        KeyVerb::Update(_) => race.update(session, key, &encoded).await,
        KeyVerb::Upsert(_) => race.upsert(session, key, &encoded).await,
        KeyVerb::Delete => race.delete(session, key).await,
    };
    KeyEvent { verb, was_there: Some(was_there.unwrap()), value, began, ended: now() }
}

/// Runs four clients under the hostile scheduler: each changes and reads a few hot keys, and
/// inserts keys of its own. Fails with what no order of the operations explains.
fn play(seed: u64) -> Result<(), String> {
    let (cluster, _fabric) = support::seeded(Protocol::RTX, 1, seed);
    // Subtables of 48 slots, which are split again and again.
    let options = RaceOptions::default().rows(1).shards(1).groups(2);
    let race = cluster.create_race("table", options).unwrap();
    let mut worker = support::worker(&cluster, 4, seed);
    let clock = std::cell::Cell::new(0u64);
    let now = || {
        clock.set(clock.get() + 1);
        clock.get()
    };
    let of_clients: Vec<Vec<(u64, KeyEvent)>> = worker.run(async |client, session| {
        let mut events = Vec::new();
        for number in 0..60u64 {
            let random = splitmix(seed << 32 | (client as u64) << 16 | number);
            let hot = splitmix(random) % 3;
            events.push((hot, step(&race, session, &hot.to_le_bytes(), random, &now).await));
            let own = (1 + client as u64) << 32 | number;
            if !race.insert(session, &own.to_le_bytes(), &value(own, 0)).await.unwrap() {
                events
                    .push((own, KeyEvent { verb: KeyVerb::Get, was_there: Some(true), value: 0, began: 0, ended: 0 }));
            }
        }
        events
    });
    let keys: std::collections::BTreeSet<u64> = of_clients.iter().flatten().map(|(key, _)| *key).collect();
    for key in keys {
        let of_key = of_clients.iter().flatten().filter(|(of, _)| *of == key).map(|(_, event)| *event);
        let history: Vec<KeyEvent> = of_key.collect();
        if is_linearizable(&history) != Some(true) {
            return Err(format!("seed {seed}, key {key:x}: {history:#?}"));
        }
    }
    worker.block_on(async |session| {
        for own in (0..4u64).flat_map(|client| (0..60).map(move |number| (1 + client) << 32 | number)) {
            let found = race.get(session, &own.to_le_bytes()).await.unwrap();
            if found != Some(value(own, 0)) {
                return Err(format!("seed {seed}, key {own:x}: {found:?}"));
            }
        }
        Ok(())
    })
}

#[test]
fn operations_on_a_key_are_linearizable_under_a_hostile_scheduler() {
    for seed in support::seeds(0..if support::is_long() { 400 } else { 30 }) {
        play(seed).unwrap();
    }
}

/// A folder for passive memory, which is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, bytes: u64) -> Folder {
        let path = std::env::temp_dir().join(format!("remora-race-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        PassiveMemory::format(&path.join("memory"), Some(bytes)).unwrap();
        Folder(path)
    }

    fn open(&self) -> Cluster {
        open(&self.0)
    }
}

/// Connects to the passive memory of a folder.
fn open(folder: &Path) -> Cluster {
    let options = ConnectOptions::default().configuration(Some(Place::File(folder.join("configuration"))));
    let memory = Nodes::Shm(vec![folder.join("memory")]);
    options.nodes(memory).protocol(Protocol::RTX).open().unwrap()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Four clients of passive memory, each with a handle of its own. Two of them insert keys, from
/// 1,000 to 200,000, and two of them read what is there. All of them change and read a few hot
/// keys, and the history of each of these must be linearizable.
#[test]
fn several_clients_read_and_write_a_table_that_grows() {
    const KEYS: u64 = 200_000;
    const HOT: u64 = 8;
    let folder = Folder::new("grows", 256 << 20);
    let creator = folder.open();
    let race = creator.create_race("table", RaceOptions::default().rows(1000)).unwrap();
    creator.worker(WorkerOptions::default()).unwrap().block_on(async |session| fill(&race, session, HOT..1000).await);
    let inserted = [1000, 1001].map(AtomicU64::new);
    let histories: Mutex<Vec<Vec<(u64, KeyEvent)>>> = Mutex::default();
    let began = Instant::now();
    thread::scope(|scope| {
        for client in 0..4u64 {
            let (folder, inserted, histories) = (&folder, &inserted, &histories);
            scope.spawn(move || {
                let cluster = folder.open();
                let race = cluster.open_race("table").unwrap();
                let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
                let now = || began.elapsed().as_nanos() as u64;
                let events = worker.block_on(async |session| {
                    let mut events = Vec::new();
                    let own = &inserted[(client % 2) as usize];
                    let mut turn = 0;
                    loop {
                        turn += 1;
                        let random = splitmix(client << 40 | turn);
                        let next = own.load(Ordering::Acquire);
                        if next >= KEYS {
                            return events;
                        }
                        if turn % 64 == 0 {
                            let hot = splitmix(random) % HOT;
                            events.push((hot, step(&race, session, &hot.to_le_bytes(), random, &now).await));
                        }
                        if client < 2 {
                            fill(&race, session, next..next + 1).await;
                            own.store(next + 2, Ordering::Release);
                        } else {
                            // A key of the same writer, which has inserted it.
                            let key = if next < 1002 {
                                HOT + random % (1000 - HOT)
                            } else {
                                next - 2 - random % (next - 1000) / 2 * 2
                            };
                            let found =
                                race.get_with(session, &key.to_le_bytes(), |found| found == value(key, 0)).await;
                            assert_eq!(found.unwrap(), Some(true), "key {key} of {next}");
                        }
                    }
                });
                histories.lock().unwrap().push(events);
            });
        }
    });
    let of_clients = histories.into_inner().unwrap();
    assert!(of_clients.iter().all(|events| events.len() > 10), "each client has used the hot keys");
    for hot in 0..HOT {
        let of_key = of_clients.iter().flatten().filter(|(key, _)| *key == hot).map(|(_, event)| *event);
        let history: Vec<KeyEvent> = of_key.collect();
        assert_eq!(is_linearizable(&history), Some(true), "key {hot} of {} events", history.len());
    }
    let mut worker = creator.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in HOT..KEYS {
            let found = race.get_with(session, &key.to_le_bytes(), |found| found == value(key, 0)).await.unwrap();
            assert_eq!(found, Some(true), "key {key}");
        }
    });
}

/// A client dies after each of the steps of a split in turn. The next client that needs the
/// subtable goes on, and nothing is lost.
#[test]
fn a_client_dies_in_the_middle_of_a_split() {
    let folder = Folder::new("dies", 64 << 20);
    let cluster = folder.open();
    let race = cluster.create_race("table", RaceOptions::default()).unwrap();
    let mut survivor = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let mut expected = 300;
    survivor.block_on(async |session| fill(&race, session, 0..expected).await);
    let (mut undone, mut done) = (0, 0);
    for steps in 1.. {
        let other = folder.open();
        let race_of_dead = other.open_race("table").unwrap();
        let options = WorkerOptions::default().coroutines(1).yield_after_rounds(true);
        let mut dying = other.worker(options).unwrap();
        let is_split = dying.block_on(async |session| {
            let key = 7u64.to_le_bytes();
            race_of_dead.get(session, &key).await.unwrap();
            cut_off(race_of_dead.split(session, &key), steps).await
        });
        dying.abandon();
        let began = Instant::now();
        survivor.block_on(async |session| {
            for key in 0..expected {
                let found = race.get_with(session, &key.to_le_bytes(), |found| found == value(key, 0)).await.unwrap();
                assert_eq!(found, Some(true), "key {key} after {steps} steps");
            }
            fill(&race, session, expected..expected + 10).await;
            assert!(race.delete(session, &expected.to_le_bytes()).await.unwrap());
            fill(&race, session, expected..expected + 1).await;
        });
        expected += 10;
        assert!(began.elapsed() < Duration::from_secs(5), "{steps} steps: it took {:?}", began.elapsed());
        match is_split {
            Some(split) => {
                assert!(split.unwrap());
                done += 1;
            }
            None => undone += 1,
        }
        if done == 2 {
            break;
        }
    }
    assert!(undone > 5, "{undone} steps");
}
