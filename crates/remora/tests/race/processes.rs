//! Processes that work on one RACE hash table in passive memory, and are killed one after another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use remora::floors::fabric::splitmix;
use remora::floors::index::race::UNIT_BYTES;
use remora::{Race, RaceOptions, Session, WorkerOptions};

use crate::reclaiming::{check_reclaimed, look};
use crate::{Folder, open, support};

/// How many processes there are at a time. Each has keys of its own, which the process after it
/// takes over, and all share the hot keys.
const PROCESSES: u64 = 4;
const HOT: u64 = 8;
const OWN_KEYS: u64 = 20_000;
const EVERY: Duration = Duration::from_millis(50);
/// Tells a process that it is a client: its folder, and its number.
const CLIENT: [&str; 2] = ["REMORA_RACE_FOLDER", "REMORA_RACE_NUMBER"];

/// A value, by the number of the operation that has written it. 0 stands for none.
fn encode(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(1 + splitmix(value) as usize % 40)
}

fn decode(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == encode(value), "{value:x}: {} bytes", bytes.len());
    value
}

/// An operation, as a process has noted it before it began.
#[derive(Clone, Copy, Debug)]
struct Noted {
    key: u64,
    verb: u64,
    value: u64,
    /// What the key had, as far as the answer says: 0 nothing, 1 something, and to a get the value.
    /// `None` if there was no answer.
    answer: Option<u64>,
}

/// Runs one operation.
async fn run(race: &Race, session: &mut Session, Noted { key, verb, value, .. }: Noted) -> u64 {
    let name = key.to_le_bytes();
    let was_there = match verb {
        0 | 1 => !race.insert(session, &name, &encode(value)).await.unwrap(),
        2 => race.update(session, &name, &encode(value)).await.unwrap(),
        3 => race.upsert(session, &name, &encode(value)).await.unwrap(),
        4 => race.delete(session, &name).await.unwrap(),
        _ => return race.get(session, &name).await.unwrap().map_or(0, |found| decode(&found)),
    };
    was_there.into()
}

/// What the key may have after an operation, by what it may have had before it.
fn after(Noted { verb, value, answer, .. }: Noted, before: &BTreeSet<u64>) -> BTreeSet<u64> {
    let next = |had: u64| match verb {
        0 | 1 if had == 0 => value,
        2 if had != 0 => value,
        3 => value,
        4 => 0,
        _ => had,
    };
    let can_be = |had: &&u64| match answer {
        Some(found) if verb > 4 => **had == found,
        Some(was_there) => (**had != 0) == (was_there != 0),
        None => true,
    };
    let mut all: BTreeSet<u64> = before.iter().filter(can_be).map(|had| next(*had)).collect();
    if answer.is_none() {
        all.extend(before);
    }
    all
}

fn notes(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("notes-{number}"))
}

/// Works until it is killed. Notes each operation before it begins, and its answer.
fn be_client(folder: &Path, number: u64) {
    let cluster = open(folder);
    let race = cluster.open_race("table").unwrap();
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let mut file = OpenOptions::new().create_new(true).append(true).open(notes(folder, number)).unwrap();
    let mut write = |line: [u64; 3]| file.write_all(&line.map(u64::to_le_bytes).concat()).unwrap();
    worker.block_on(async |session| {
        for step in 1u64.. {
            let random = splitmix(number << 40 | step);
            let is_hot = random.is_multiple_of(16);
            let key = if is_hot {
                random >> 8 & (HOT - 1)
            } else {
                HOT + (random >> 8) % OWN_KEYS * PROCESSES + number % PROCESSES
            };
            let noted = Noted { key, verb: random >> 60 & 7, value: number << 32 | step, answer: None };
            write([noted.key, noted.verb, noted.value]);
            let answer = run(&race, session, noted).await;
            write([u64::MAX, answer, 0]);
            // So that many of the processes are killed in the middle of a split.
            if random >> 32 & 0xff == 0 {
                _ = race.split(session, &key.to_le_bytes()).await.unwrap();
            }
        }
    });
}

/// Reads what a process has noted. What it was writing when it was killed may be cut off.
fn read_notes(folder: &Path, number: u64) -> Vec<Noted> {
    let Ok(bytes) = std::fs::read(notes(folder, number)) else { return Vec::new() };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut noted: Vec<Noted> = Vec::new();
    for line in bytes.chunks_exact(24) {
        let [first, second, third] = [0, 8, 16].map(|at| word(&line[at..at + 8]));
        match noted.last_mut() {
            Some(last) if first == u64::MAX => last.answer = Some(second),
            _ => noted.push(Noted { key: first, verb: second, value: third, answer: None }),
        }
    }
    noted
}

/// A process that is killed in the end.
struct Client(Child);

impl Client {
    fn start(folder: &Path, number: u64) -> Client {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "processes::killed_processes_lose_nothing_that_they_have_acknowledged",
            "--nocapture",
        ]);
        command.env(CLIENT[0], folder).env(CLIENT[1], number.to_string());
        command.stdout(Stdio::null());
        Client(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the process has ended by itself");
        self.0.kill().unwrap();
        _ = self.0.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Four processes change one table, which grows from nothing. Every 50 ms one of them is killed,
/// and another one begins. After half of the time all are killed, and the table is reclaimed. In
/// the end it has what was acknowledged, and nothing of it is lost.
#[test]
fn killed_processes_lose_nothing_that_they_have_acknowledged() {
    if let [Ok(folder), Ok(number)] = CLIENT.map(std::env::var) {
        return be_client(Path::new(&folder), number.parse().unwrap());
    }
    let folder = Folder::new("killed", if support::is_long() { 2 << 30 } else { 256 << 20 });
    let cluster = folder.open();
    let race = cluster.create_race("table", RaceOptions::default().rows(10)).unwrap();
    let lives = Duration::from_secs(if support::is_long() { 40 } else { 4 });
    let mut started = 0;
    for phase in 0..2 {
        let mut clients = BTreeMap::new();
        let began = Instant::now();
        while began.elapsed() < lives / 2 {
            let slot = started % PROCESSES;
            if let Some(former) = clients.get_mut(&slot) {
                Client::kill(former);
            }
            _ = clients.insert(slot, Client::start(&folder.0, started));
            started += 1;
            if clients.len() as u64 == PROCESSES {
                std::thread::sleep(EVERY);
            }
        }
        clients.values_mut().for_each(Client::kill);
        if phase == 0 {
            // The next processes use what was reclaimed.
            _ = cluster.reclaim().unwrap();
            check_reclaimed(&look(&cluster, &race).0).unwrap();
        }
    }

    // What each key may have, by the notes of all processes.
    let (mut may_have, mut begun) = (BTreeMap::<u64, BTreeSet<u64>>::new(), BTreeSet::from([0]));
    let (mut done, mut worked) = (0u64, 0u64);
    let mut of_hot = Vec::new();
    for number in 0..started {
        let noted = read_notes(&folder.0, number);
        worked += u64::from(noted.len() > 1);
        for one in noted {
            done += u64::from(one.answer.is_some());
            if one.key < HOT {
                begun.extend((one.verb < 4).then_some(one.value));
                of_hot.extend(one.answer.filter(|_| one.verb > 4));
                continue;
            }
            let before = may_have.entry(one.key).or_insert_with(|| BTreeSet::from([0]));
            let now = after(one, before);
            assert!(!now.is_empty(), "{one:x?} of process {number}, after {before:x?}");
            *before = now;
        }
    }
    assert!(of_hot.iter().all(|found| begun.contains(found)), "what was read was written");
    assert!(worked > started / 2 && done > 1000, "{done} operations of {worked} processes of {started}");

    let check = |map: &BTreeMap<Vec<u8>, Vec<u8>>| {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let found: BTreeMap<u64, u64> = map.iter().map(|(key, value)| (word(key), decode(value))).collect();
        for (key, value) in &found {
            let of_key = if *key < HOT { Some(&begun) } else { may_have.get(key) };
            assert!(of_key.is_some_and(|values| values.contains(value)), "key {key}: {value:x} of {of_key:x?}");
        }
        for (key, values) in may_have.iter().filter(|(key, _)| !found.contains_key(key)) {
            assert!(values.contains(&0), "key {key} is lost: {values:x?}");
        }
    };
    let (found, before) = look(&cluster, &race);
    assert_eq!((found.wrong, found.duplicates, found.units.misused), (0, 0, 0), "{found:?}");
    check(&before);
    let reclaimed = cluster.reclaim().unwrap();
    assert!(
        reclaimed.race_bytes >= found.units.lost * UNIT_BYTES && found.units.lost > 0,
        "{reclaimed:?} of {found:?}"
    );
    let (found, after) = look(&cluster, &race);
    check_reclaimed(&found).unwrap();
    assert!(before == after, "reclaiming changes no key");

    // The next client repairs nothing, and works with what was reclaimed.
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in 0..20_000u64 {
            race.upsert(session, &key.to_le_bytes(), &encode(key)).await.unwrap();
        }
        for key in 0..20_000u64 {
            assert_eq!(race.get(session, &key.to_le_bytes()).await.unwrap(), Some(encode(key)), "key {key}");
        }
    });
    drop(worker);
    let (found, _) = look(&cluster, &race);
    assert_eq!((found.wrong, found.duplicates, found.units.misused), (0, 0, 0), "{found:?}");
}
