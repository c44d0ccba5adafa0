//! RACE hash tables through the library: every operation, growth from nothing, several clients at
//! once, and clients that die in the middle of a split.

use std::collections::BTreeMap;

use remora::floors::fabric::splitmix;
use remora::protocol::Protocol;
use remora::{Cluster, Error, Limit, OpenErrorKind, Race, RaceOptions, Session, WorkerOptions};

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
