//! FORD's smaller experiments: WRITEs beside READs at persistent memory (figure 3), how long locks
//! are held (figure 14), and the size and the misses of the address cache (figure 21).
//!
//! - **WRITEs beside READs** are bare verbs. Each of 32 threads has one round under way: ten WRITEs
//!   and some READs between them, at random addresses.
//! - **Locks** are seen where they lie. The simulator records each CAS that changes a word of a
//!   memory node. A lock is held from the CAS that takes it to the CAS that frees it, or hands it
//!   on. What a client waits before is measured apart. The text has one figure for both.
//! - **The address cache** is empty at first. One client updates one pair after the other. Where
//!   the cache has the location of a pair, that takes one READ; otherwise it takes a READ of a
//!   bucket more. So a transaction with more than one READ has missed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use remora::floors::record::LockWord;
use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::{Ford, Protocol};
use remora_fabric::sim::{Ended, Swapped};
use remora_fabric::{LINE_BYTES, Nanos};
use remora_workload::simulated::{Simulated, simulate};
use remora_workload::{Invariant, Setting};

use super::cluster::{COPIES, DRTM_H, FARM, MEMORY_NODES, PROFILE, hardware};
use super::pairs::{Clients, Pairs, Pattern};
use crate::hardware::rig::{Client, Rig};
use crate::reproduce::{ReproduceError, Row, measured, run_all};
use crate::{Bench, LabError};

/// The size of the smaller experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The number of key-value pairs. The text has a million.
    pub pairs: u64,
    /// The number of pairs that are accessed in the experiment on the address cache. The text has
    /// up to 512k.
    pub accessible: u64,
    /// The number of transactions in the experiment on the address cache. The text says that each
    /// of its benchmarks has a million.
    pub transactions: u64,
    /// The number of threads in the experiment on locks. Each has eight transactions in flight.
    pub threads: usize,
    /// The number of threads that post verbs to persistent memory. The text has 32.
    pub posting: usize,
    /// Virtual time that is counted in the experiment on locks.
    pub measure: Duration,
}

impl Scale {
    /// Returns the text's sizes.
    #[must_use]
    pub fn full() -> Scale {
        Scale {
            pairs: 1_000_000,
            accessible: 512 << 10,
            transactions: 1_000_000,
            threads: 8,
            posting: 32,
            measure: Duration::from_millis(4),
        }
    }

    /// Returns a small store.
    #[must_use]
    pub fn quick() -> Scale {
        Scale {
            pairs: 20_000,
            accessible: 10 << 10,
            transactions: 20_000,
            threads: 2,
            posting: 8,
            measure: Duration::from_micros(500),
        }
    }

    /// Returns how many pairs are accessed, as the text writes it.
    fn accessed(&self) -> String {
        format!("{}k keys", self.accessible >> 10)
    }
}

/// Transactions in flight of each thread in the experiment on locks.
const IN_FLIGHT: usize = 8;
/// Virtual time before locks are counted.
const WARMUP: Duration = Duration::from_micros(200);

/// The bytes of a WRITE or READ of persistent memory. The text does not say its own.
const BYTES: usize = 64;
/// WRITEs of a round.
const WRITES: usize = 10;
/// READs beside ten WRITEs.
const READS: [usize; 6] = [0, 5, 10, 20, 40, 80];
/// READs beside ten WRITEs for which the text's figure is compared.
const COMPARED: usize = 10;

/// The shares of transactions that update, in percent.
const SHARES: [u64; 3] = [100, 50, 25];
const LOCKING: [Protocol; 3] = [Protocol::FORD, FARM, DRTM_H];
/// Every transaction reads at the primary, where the text's address cache is measured as well.
const CACHING: Protocol = Protocol::Ford(Ford { backup_reads: false, ..Ford::WHOLE });

/// A simulation of transactions that take locks.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Locking {
    protocol: Protocol,
    /// Whether there is one transaction at a time, instead of the text's 64.
    alone: bool,
    pattern: Pattern,
    /// The percentage of transactions that update.
    writes: u64,
}

/// How long locks were held, and how long transactions waited for them.
#[derive(Clone, Debug)]
struct Locks {
    held_us: f64,
    waited_us: f64,
    broken: Vec<Invariant>,
}

/// What an address cache has come to.
#[derive(Clone, Debug)]
struct Addresses {
    /// The share of the lookups that have missed.
    missed: f64,
    /// The number of locations that the cache has.
    locations: f64,
    /// The bytes that the cache takes.
    bytes: f64,
    broken: Vec<Invariant>,
}

/// The results of all smaller experiments.
pub(super) struct Micro {
    /// Millions of WRITEs a second, by the number of READs beside ten of them.
    writes: Vec<(usize, f64)>,
    locks: Vec<(Locking, Locks)>,
    addresses: Vec<(Pattern, Addresses)>,
    accessed: String,
}

/// The number of simulations.
pub(super) const SIMULATIONS: usize = READS.len() + LOCKING.len() * (1 + 2 * SHARES.len()) + 2;

/// Lists the simulations of transactions that take locks.
fn locking() -> impl Iterator<Item = Locking> {
    let alone = LOCKING.map(|protocol| Locking { protocol, alone: true, pattern: Pattern::Uniform, writes: 100 });
    let together = Pattern::ALL.into_iter().flat_map(|pattern| {
        let at = move |protocol| SHARES.map(|writes| Locking { protocol, alone: false, pattern, writes });
        LOCKING.into_iter().flat_map(at)
    });
    alone.into_iter().chain(together)
}

/// Runs all smaller experiments. Calls `look` with the number of finished simulations.
pub(super) fn run(
    scale: &Scale,
    seed: u64,
    parallel: usize,
    look: &(dyn Fn(usize) + Sync),
) -> Result<Micro, ReproduceError> {
    let locking: Vec<Locking> = locking().collect();
    let addresses = run_all(&Pattern::ALL, parallel, &|done, _| look(done), |pattern| cache(scale, seed, pattern))?;
    let before = addresses.len();
    let locks = run_all(&locking, parallel, &|done, _| look(before + done), |point| lock(scale, seed, point))?;
    let before = before + locks.len();
    let writes = run_all(&READS, parallel, &|done, _| look(before + done), |reads| write(scale, seed, reads))?;
    Ok(Micro { writes, locks, addresses, accessed: scale.accessed() })
}

/// Returns the millions of WRITEs a second of threads that also READ.
fn write(scale: &Scale, seed: u64, reads: usize) -> Result<f64, ReproduceError> {
    let rig = Rig::server(&hardware(PROFILE, seed)?, 1, scale.posting, 1).for_us(50, 400);
    let rate = rig.rate(async |client: &Client<'_>| {
        let mut round = client.lane.round();
        let staged = round.stage_words(BYTES / 8);
        for write in 0..WRITES {
            round.write_staged(client.anywhere(BYTES), staged);
            // The READs are spread evenly over the round.
            for _ in reads * write / WRITES..reads * (write + 1) / WRITES {
                round.read(client.anywhere(BYTES), BYTES);
            }
        }
        client.lane.execute(round).await.map(|_| WRITES as f64)
    });
    Ok(rate?)
}

/// Returns a cluster with the key-value store.
fn bench(scale: &Scale, seed: u64, protocol: Protocol, load: (usize, usize)) -> Result<Bench, ReproduceError> {
    let (threads, coroutines) = load;
    let workers = threads as u64;
    let setting =
        Setting { memory_nodes: MEMORY_NODES, replicas: COPIES, workers, coroutines: coroutines as u64, archive: None };
    Ok(Bench {
        sim: hardware(PROFILE, seed)?,
        memory_nodes: MEMORY_NODES,
        node_bytes: Pairs::node_bytes(scale.pairs, &setting) as usize,
        replicas: COPIES,
        protocol,
        machines: 1,
        threads,
        coroutines,
        warmup: WARMUP,
        measure: scale.measure,
    })
}

/// Returns the invariants that do not hold after a run.
fn broken(done: Simulated, what: impl FnOnce() -> String) -> Result<Vec<Invariant>, ReproduceError> {
    if done.ended != Ended::Finished {
        return Err(ReproduceError::Unfinished { what: what(), how: done.ended });
    }
    let is_broken = |invariant: &Invariant| invariant.holds == Some(false);
    Ok(done.measured.invariants.into_iter().filter(is_broken).collect())
}

/// Adds up how long updates have waited before the attempt that committed.
struct Waiting {
    from: Nanos,
    sum: Rc<RefCell<Mean>>,
}

/// A mean of nanoseconds.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, ns: Nanos) {
        self.sum += ns as f64;
        self.count += 1.0;
    }

    fn us(&self) -> f64 {
        self.sum / self.count / 1e3
    }
}

impl Observer for Waiting {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let is_update = event.label == Pairs::UPDATE;
        if is_update && event.outcome == Outcome::Committed && event.attempt_began >= self.from {
            self.sum.borrow_mut().add(event.attempt_began - event.began);
        }
    }
}

/// Measures how long locks are held.
fn lock(scale: &Scale, seed: u64, point: Locking) -> Result<Locks, ReproduceError> {
    let Locking { protocol, alone, pattern, writes } = point;
    let bench = bench(scale, seed, protocol, if alone { (1, 1) } else { (scale.threads, IN_FLIGHT) })?;
    let clients = Clients { accessible: scale.pairs, pattern, writes, warm: true };
    let (sim, cluster, pairs, _) = bench.load(|cluster| Pairs::load(cluster, scale.pairs, clients))?;
    let (from, sum) = (sim.now() + WARMUP.as_nanos() as Nanos, Rc::new(RefCell::default()));
    sim.record();
    let done = bench.run(&sim, &cluster, &pairs, &|| Some(Box::new(Waiting { from, sum: sum.clone() })))?;
    let held = held(&sim.recorded().swapped, from);
    let waited_us = sum.borrow().us();
    Ok(Locks { held_us: held.us(), waited_us, broken: broken(done, || point.name("locks"))? })
}

/// Returns how long locks were held that were taken at this time or later, and freed.
fn held(swapped: &[Swapped], from: Nanos) -> Mean {
    let (mut taken, mut held) = (BTreeMap::new(), Mean::default());
    // A record begins with its lock word, at the beginning of a line.
    for Swapped { at, when, new } in swapped.iter().filter(|one| one.at.offset.is_multiple_of(LINE_BYTES as u64)) {
        let lock = (at.node.0, at.region.0, at.offset);
        if let Some(since) = taken.remove(&lock).filter(|since| *since >= from) {
            held.add(when - since);
        }
        if *new != LockWord::FREE.to_bits() {
            taken.insert(lock, *when);
        }
    }
    held
}

/// Counts the transactions, and those of them that had to READ a bucket to find their pair.
struct Missing(Rc<Cell<(u64, u64)>>);

impl Observer for Missing {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let (all, missed) = self.0.get();
        self.0.set((all + 1, missed + u64::from(event.cost.reads > 1)));
    }
}

/// Fills an address cache by use.
fn cache(scale: &Scale, seed: u64, pattern: Pattern) -> Result<Addresses, ReproduceError> {
    let bench = bench(scale, seed, CACHING, (1, 1))?;
    let clients = Clients { accessible: scale.accessible, pattern, writes: 100, warm: false };
    let (sim, cluster, pairs, _) = bench.load(|cluster| Pairs::load(cluster, scale.pairs, clients))?;
    let counted = Rc::new(Cell::new((0, 0)));
    let observers = || Some(Box::new(Missing(counted.clone())) as Box<dyn Observer>);
    let is_over = || counted.get().0 >= scale.transactions;
    // The run ends with the number of its transactions.
    let simulation = remora_workload::simulated::Simulation { measure: Nanos::MAX / 4, ..bench.simulation() };
    let done = simulate(&cluster, &sim, &pairs, &simulation, &observers, &is_over).map_err(LabError::from)?;
    let broken = broken(done, || format!("address cache, {}", pattern.name()))?;
    let ((all, missed), table) = (counted.get(), pairs.table().untyped());
    Ok(Addresses {
        missed: missed as f64 / all as f64,
        locations: table.cached_locations() as f64,
        bytes: table.cache_bytes() as f64,
        broken,
    })
}

impl Locking {
    fn name(self, what: &str) -> String {
        let Locking { protocol, alone, pattern, writes } = self;
        let which = if alone { "alone" } else { pattern.name() };
        format!("key-value, {which}, {writes} % updates: {what}, {}", protocol.name())
    }
}

impl Micro {
    /// Lists the invariants that did not hold, each with the name of its experiment.
    pub(super) fn violated(&self) -> Vec<String> {
        let locks = self.locks.iter().map(|(point, locks)| (point.name("locks"), &locks.broken));
        let caches = self.addresses.iter().map(|(pattern, found)| (pattern.name().to_owned(), &found.broken));
        let named = |(name, broken): (String, &Vec<Invariant>)| {
            broken.iter().map(|one| format!("{name}: {}: {}", one.name, one.detail)).collect::<Vec<_>>()
        };
        locks.chain(caches).flat_map(named).collect()
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        [self.interference(), self.locks(), self.addresses()].into_iter().flatten().collect()
    }

    fn interference(&self) -> Vec<Row> {
        const SOURCE: &str = "FORD, section 3.2, figure 3";
        let alone = measured(&self.writes, &0);
        let row = |reads: &usize| {
            let lost = 100.0 * (1.0 - measured(&self.writes, reads) / alone);
            let row = Row::ours(format!("WRITEs lost to {reads} READs beside {WRITES} WRITEs"), "%", lost);
            if *reads == COMPARED { row.published(87.5, SOURCE).holds(lost > 0.0).note(TURNS) } else { row }
        };
        READS[1..].iter().map(row).collect()
    }

    fn locks(&self) -> Vec<Row> {
        const SOURCE: &str = "FORD, section 6.2.1, figure 14";
        let at =
            |protocol, alone, pattern, writes| measured(&self.locks, &Locking { protocol, alone, pattern, writes });
        let mut rows = Vec::new();
        for (alone, pattern) in [(true, Pattern::Uniform), (false, Pattern::Uniform), (false, Pattern::Skewed)] {
            let held = |protocol| at(protocol, alone, pattern, 100).held_us;
            rows.extend(LOCKING.map(|protocol| {
                let name = Locking { protocol, alone, pattern, writes: 100 }.name("lock held");
                Row::ours(name, "us", held(protocol))
            }));
            let over = |one: Protocol, other: Protocol| {
                let which = if alone { "alone" } else { pattern.name() };
                let name = format!("key-value, {which}: lock held, {} over {}", one.name(), other.name());
                Row::ours(name, "x", held(one) / held(other)).note(RELEASE)
            };
            rows.extend([
                over(FARM, DRTM_H).said(SOURCE).holds(held(FARM) > held(DRTM_H)),
                over(FARM, Protocol::FORD).said(SOURCE).holds(held(FARM) > held(Protocol::FORD)),
                over(Protocol::FORD, DRTM_H).said(SOURCE).holds(held(Protocol::FORD) <= held(DRTM_H)),
            ]);
        }
        let all = |pattern, writes| {
            let Locks { held_us, waited_us, .. } = at(Protocol::FORD, false, pattern, writes);
            held_us + waited_us
        };
        let [uniform, skewed] = Pattern::ALL.map(|pattern| 1.0 - all(pattern, 25) / all(pattern, 100));
        let less = |pattern: Pattern, share: f64| {
            let what = "lock held and awaited, less with 25 % updates than with 100 %, ford";
            Row::ours(format!("key-value, {}: {what}", pattern.name()), "%", 100.0 * share)
        };
        rows.push(less(Pattern::Uniform, uniform).said(SOURCE).holds(uniform > skewed).note(AWAITED));
        rows.push(less(Pattern::Skewed, skewed));
        rows
    }

    fn addresses(&self) -> Vec<Row> {
        const SOURCE: &str = "FORD, section 6.2.5, figure 21";
        /// The bytes of a location and of what tells its key, in the cache.
        const ENTRY_BYTES: f64 = 16.0;
        let name =
            |pattern: Pattern, what: &str| format!("address cache, {}, {}: {what}", pattern.name(), self.accessed);
        let missed = |pattern| 100.0 * measured(&self.addresses, &pattern).missed;
        let Addresses { locations, bytes, .. } = measured(&self.addresses, &Pattern::Uniform);
        let row = |pattern: Pattern, published: f64| {
            Row::ours(name(pattern, "misses"), "%", missed(pattern)).published(published, SOURCE).note(FEWER)
        };
        vec![
            Row::ours(name(Pattern::Uniform, "addresses in it"), "MB", locations * ENTRY_BYTES / 1e6)
                .published(6.8, SOURCE)
                .note(FEWER),
            Row::ours(name(Pattern::Uniform, "memory that it takes"), "MB", bytes / 1e6),
            row(Pattern::Uniform, 44.6),
            row(Pattern::Skewed, 18.2),
        ]
    }
}

const TURNS: &str = "the text prints neither the most READs beside a WRITE nor their sizes; here NIC and memory take READs and WRITEs \
                     in turn, so that it takes eight READs beside a WRITE to lose as much; a persistent memory that slows down \
                     where reads and writes mix is not modelled";
const RELEASE: &str = "FORD locks when it first reads, and waits until all replicas are visible before it unlocks, where the text's \
                       FORD unlocks at once; the baselines lock when they commit; while it has the lock, a transaction also waits \
                       for its thread, which others use";
const AWAITED: &str = "among a million pairs that are accessed alike, 64 transactions hardly ever wait for a lock, so there is no wait \
                       to save; the text's figure contains waits, and it does not say how they are counted";
const FEWER: &str = "the size follows the number of keys, and the share of a skewed load's misses does too; the small cluster has fewer";

#[cfg(test)]
mod tests {
    use super::*;
    use remora_fabric::sim::Sim;
    use remora_fabric::{Address, ClientId, NodeId, RegionId, block_on};

    /// Takes a lock, fails to take it again, hands it on, and frees it.
    #[test]
    fn a_lock_is_held_from_cas_to_cas() {
        let hardware = hardware(PROFILE, 1).expect("a profile");
        let sim = Sim::new(&[vec![4096]], &hardware).expect("a test's memory");
        let at = Address { node: NodeId(0), region: RegionId(0), offset: 64 };
        sim.record();
        block_on(&sim, ClientId(1), async |lane| {
            for (expected, new) in [(0, 5), (0, 6), (5, 7), (7, 0)] {
                let mut round = lane.round();
                round.compare_swap(at, expected, new);
                lane.execute(round).await.expect("a healthy node");
            }
        })
        .expect("a client");
        let swapped = sim.recorded().swapped;
        assert_eq!(swapped.iter().map(|one| one.new).collect::<Vec<_>>(), [5, 7, 0], "what fails changes nothing");
        let [first, handed, freed] = [0, 1, 2].map(|index| swapped[index].when);
        let all = held(&swapped, 0);
        assert_eq!((all.count, all.sum), (2.0, (freed - first) as f64));
        assert!((handed - first) as f64 / (freed - handed) as f64 > 1.5, "one CAS in between has failed");
        let later = held(&swapped, handed);
        assert_eq!((later.count, later.sum), (1.0, (freed - handed) as f64), "from a time on");
    }
}
