//! Compares a RACE hash table on passive shared memory with hash maps of this process: `dashmap`
//! and `papaya`. Run it with `cargo run --release -p remora --example race_compare`.
//!
//! First two threads work on 100,000 keys of 8 bytes, whose values have 64 bytes. Each comparison
//! is repeated, and the median of the ratios counts: all maps run one behind the other, so that a
//! busy machine slows all of them. Then one thread inserts keys into a table that was made for
//! 1,000, and the longest time of an insert is shown. The number of these keys is the first
//! argument, 1,000,000 if there is none, and the number of repetitions is the second one.

use std::hash::{BuildHasherDefault, Hasher};
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use remora::connect::{ConnectOptions, Nodes, Place};
use remora::floors::fabric::splitmix;
use remora::node::PassiveMemory;
use remora::protocol::Protocol;
use remora::{Cluster, Race, RaceOptions, Session};
use zerocopy::IntoBytes;

const KEYS: u64 = 100_000;
const OPERATIONS: u64 = 400_000;
const THREADS: u64 = 2;
type Value = [u64; 8];
type Hashes = BuildHasherDefault<Scatter>;

/// A quick hash of integers: the one that the RACE hash table uses, too.
#[derive(Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = splitmix(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = splitmix(number);
    }
}

/// A share of updates, in percent. The other operations are gets.
const MIXES: [u64; 3] = [0, 10, 50];

/// Passive memory in a file of its own, which is removed in the end.
struct Memory(PathBuf);

impl Memory {
    fn new(bytes: u64) -> Result<Memory, Box<dyn std::error::Error>> {
        let shared = PathBuf::from("/dev/shm");
        let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
        let folder = folder.join(format!("remora-race-compare-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        PassiveMemory::format(&folder.join("memory"), Some(bytes))?;
        Ok(Memory(folder))
    }

    fn open(&self) -> Cluster {
        let options = ConnectOptions::default().configuration(Some(Place::File(self.0.join("configuration"))));
        let memory = Nodes::Shm(vec![self.0.join("memory")]);
        options.nodes(memory).protocol(Protocol::RTX).open().expect("passive memory that was just formatted")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a body on each thread, and returns the operations per second. The body waits at the barrier
/// before its operations, and behind them.
fn timed(body: impl Fn(u64, &Barrier) + Sync) -> f64 {
    let barrier = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (body, barrier) = (&body, &barrier);
            scope.spawn(move || body(thread, barrier));
        }
        barrier.wait();
        let began = Instant::now();
        barrier.wait();
        (THREADS * OPERATIONS) as f64 / began.elapsed().as_secs_f64()
    })
}

/// Returns the key of an operation, and whether it is an update.
fn operation(thread: u64, number: u64, updates: u64) -> (u64, bool) {
    let random = splitmix(thread << 40 | number);
    (random % KEYS, (random >> 32) % 100 < updates)
}

fn of_race(memory: &Memory, name: &str, updates: u64) -> f64 {
    timed(|thread, barrier| {
        let cluster = memory.open();
        let race = cluster.open_race(name).expect("a table that is there");
        let mut worker = cluster.worker(Default::default()).expect("room for a client");
        worker.block_on(async |session| {
            for key in 0..KEYS {
                race.get_with(session, &key.to_le_bytes(), |_| ()).await.expect("a get");
            }
            barrier.wait();
            let mut sum = 0;
            for number in 0..OPERATIONS {
                let (key, is_update) = operation(thread, number, updates);
                if is_update {
                    let value = [number; 8];
                    assert!(race.update(session, &key.to_le_bytes(), value.as_bytes()).await.expect("an update"));
                } else {
                    let found = race.get_with(session, &key.to_le_bytes(), |value| u64::from(value[0])).await;
                    sum += found.expect("a get").expect("a key that is there");
                }
            }
            barrier.wait();
            std::hint::black_box(sum);
        });
    })
}

/// Measures a map of one process. `get` returns the first word of a key's value.
fn of_map(updates: u64, get: impl Fn(u64) -> u64 + Sync, insert: impl Fn(u64, Value) + Sync) -> f64 {
    timed(|thread, barrier| {
        barrier.wait();
        let mut sum = 0;
        for number in 0..OPERATIONS {
            let (key, is_update) = operation(thread, number, updates);
            if is_update {
                insert(key, [number; 8]);
            } else {
                sum += get(key);
            }
        }
        barrier.wait();
        std::hint::black_box(sum);
    })
}

fn of_dashmap(map: &dashmap::DashMap<u64, Value, Hashes>, updates: u64) -> f64 {
    of_map(
        updates,
        |key| map.get(&key).expect("a key that is there")[0],
        |key, value| {
            map.insert(key, value);
        },
    )
}

fn of_papaya(map: &papaya::HashMap<u64, Value, Hashes>, updates: u64) -> f64 {
    of_map(
        updates,
        |key| map.pin().get(&key).expect("a key that is there")[0],
        |key, value| {
            map.pin().insert(key, value);
        },
    )
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

async fn fill(race: &Race, session: &mut Session, keys: u64) -> Vec<Duration> {
    let mut times = Vec::with_capacity(keys as usize);
    for key in 0..keys {
        let began = Instant::now();
        let value = [key; 8];
        assert!(race.insert(session, &key.to_le_bytes(), value.as_bytes()).await.expect("an insert"));
        times.push(began.elapsed());
    }
    times
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(1_000_000), |keys| keys.parse())?;
    let repetitions: usize = arguments.next().map_or(Ok(9), |repetitions| repetitions.parse())?;
    let memory = Memory::new((keys * 512).max(256 << 20))?;
    let cluster = memory.open();
    let (dashmap, papaya) = (dashmap::DashMap::default(), papaya::HashMap::default());
    for key in 0..KEYS {
        dashmap.insert(key, [key; 8]);
        papaya.pin().insert(key, [key; 8]);
    }
    for (name, marks) in [("marks", true), ("unknown", false)] {
        let race = cluster.create_race(name, RaceOptions::default().rows(KEYS).marks(marks))?;
        cluster.worker(Default::default())?.block_on(async |session| fill(&race, session, KEYS).await);
    }
    println!("million operations per second, {THREADS} threads, medians of {repetitions}");
    println!("updates   race, marks   race, unknown   dashmap   papaya   marks/dashmap   marks/papaya   marks/unknown");
    for updates in MIXES {
        let mut rates = vec![Vec::new(); 4];
        for _ in 0..repetitions {
            let race = ["marks", "unknown"].map(|name| of_race(&memory, name, updates));
            let others = [of_dashmap(&dashmap, updates), of_papaya(&papaya, updates)];
            for (all, rate) in rates.iter_mut().zip(race.into_iter().chain(others)) {
                all.push(rate / 1e6);
            }
        }
        let ratio = |over: usize| median(rates[0].iter().zip(&rates[over]).map(|(own, other)| own / other).collect());
        let [marks, unknown, dashmap, papaya] = [0, 1, 2, 3].map(|one| median(rates[one].clone()));
        println!(
            "{updates:>5} % {marks:>13.2} {unknown:>15.2} {dashmap:>9.2} {papaya:>8.2} {:>15.2} {:>14.2} {:>15.2}",
            ratio(2),
            ratio(3),
            ratio(1),
        );
    }
    let race = cluster.create_race("grows", RaceOptions::default().rows(1000))?;
    let began = Instant::now();
    let mut times = cluster.worker(Default::default())?.block_on(async |session| fill(&race, session, keys).await);
    let took = began.elapsed();
    times.sort();
    let part = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "inserted {keys} keys into a table made for 1,000 in {took:.2?}: median {:.2?}, 99.9 % {:.2?}, longest {:.2?}",
        part(0.5),
        part(0.999),
        part(1.0),
    );
    Ok(())
}
