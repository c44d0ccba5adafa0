//! The random choices of YCSB: which operations, on which records.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Prng;

/// The kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads a value.
    Read,
    /// Replaces a value by a new one.
    Update,
    /// Inserts a record.
    Insert,
    /// Reads a value, and replaces it by one that follows from it.
    ReadModifyWrite,
    /// Reads the values of a key and of the keys that follow, up to 100.
    Scan,
}

impl Kind {
    /// The kinds that a hash table has, too.
    pub const OF_ONE_RECORD: [Kind; 4] = [Kind::Read, Kind::Update, Kind::Insert, Kind::ReadModifyWrite];
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Read, Kind::Update, Kind::Insert, Kind::ReadModifyWrite, Kind::Scan];
}

/// How often each record is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// All records are chosen alike.
    Uniform,
    /// Zipf's law with this exponent. Hot records are spread over the table.
    Zipf(f64),
    /// Zipf's law with this exponent, by age: the record that was inserted last is the hottest.
    Latest(f64),
}

/// A mix: the operations of transactions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix {
    /// How the mix reads: [`Kind::Read`] or [`Kind::Scan`].
    pub read: Kind,
    /// The share of the operations that read.
    pub read_share: f64,
    /// The kind of all other operations.
    pub other: Kind,
    /// How records are chosen. An insert adds the next record.
    pub distribution: Distribution,
    /// The number of operations of a transaction, on as many different records.
    pub operations: usize,
}

impl Mix {
    /// YCSB's exponent.
    pub const THETA: f64 = 0.99;

    /// Returns one of YCSB's core workloads, a to f. Workload e consists of scans and inserts, and
    /// needs an ordered table.
    #[must_use]
    pub fn named(name: &str) -> Option<Mix> {
        let zipf = Distribution::Zipf(Mix::THETA);
        let (read_share, other, distribution) = match name {
            "a" => (0.5, Kind::Update, zipf),
            "b" => (0.95, Kind::Update, zipf),
            "c" => (1.0, Kind::Update, zipf),
            "d" => (0.95, Kind::Insert, Distribution::Latest(Mix::THETA)),
            "e" => (0.95, Kind::Insert, zipf),
            "f" => (0.5, Kind::ReadModifyWrite, zipf),
            _ => return None,
        };
        let read = if name == "e" { Kind::Scan } else { Kind::Read };
        Some(Mix { read, read_share, other, distribution, operations: 1 })
    }

    /// Draws the next operation.
    pub fn draw(&self, random: &mut Prng) -> Kind {
        if random.chance(self.read_share) { self.read } else { self.other }
    }
}

/// Draws ranks by Zipf's law: rank r, counted from 0, is drawn in proportion to 1 / (r + 1)^theta.
/// It uses the closed form of Gray et al., Quickly Generating Billion-Record Synthetic Databases,
/// SIGMOD 1994, section 3, as YCSB does (Cooper et al., SoCC 2010). This form is exact for the
/// first two ranks, and close for the others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Zipf {
    ranks: u64,
    /// The sum of the weights of all ranks.
    zeta: f64,
    /// The sum of the weights of the first two ranks.
    zeta2: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Makes a distribution over the ranks below `ranks`, which must not be 0. `theta` is from 0,
    /// where all ranks are alike, up to but not including 1.
    #[must_use]
    pub fn new(ranks: u64, theta: f64) -> Zipf {
        assert!(ranks > 0 && (0.0..1.0).contains(&theta), "the formula is for these");
        let (zeta, zeta2) = (zeta(ranks, theta), zeta(2, theta));
        let eta = (1.0 - (2.0 / ranks as f64).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
        Zipf { ranks, zeta, zeta2, alpha: 1.0 / (1.0 - theta), eta }
    }

    /// Draws the next rank.
    #[inline]
    pub fn draw(&self, random: &mut Prng) -> u64 {
        let unit = random.unit();
        let weight = unit * self.zeta;
        if weight < 1.0 {
            return 0;
        }
        if weight < self.zeta2 {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * (unit - 1.0) + 1.0).powf(self.alpha);
        (rank as u64).min(self.ranks - 1)
    }
}

/// Returns the sum of 1 / i^theta, for i from 1 to n. The far part is computed as an integral,
/// which is as exact as adding up would be.
fn zeta(n: u64, theta: f64) -> f64 {
    const ADDED: u64 = 1 << 16;
    let added: f64 = (1..=n.min(ADDED)).map(|i| (i as f64).powf(-theta)).sum();
    let integral = |n: u64| (n as f64 + 0.5).powf(1.0 - theta) / (1.0 - theta);
    added + if n > ADDED { integral(n) - integral(ADDED) } else { 0.0 }
}

/// YCSB's hash (FNV-1a of eight bytes), which scatters ranks over a table. It is not a permutation:
/// some records have several ranks, and about a third of them have none.
fn scatter(rank: u64) -> u64 {
    rank.to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The number of inserts that may be under way at one time: more than there are coroutines. It is a
/// power of two.
const WINDOW: u64 = 1 << 16;

/// The records that clients of this process have inserted. Numbers are given in order. A number is
/// *known* when its insert and all inserts before it have ended, and only known numbers are read.
/// So the hottest records of "latest" are present, except for those whose insert was given up.
#[derive(Debug)]
struct Inserted {
    /// The number of inserts that have begun.
    begun: AtomicU64,
    /// Numbers below this are known.
    known: AtomicU64,
    /// For each number modulo the window: one more than the latest such number whose insert has
    /// ended.
    ended: Box<[AtomicU64]>,
    /// The client number that makes this process's keys its own.
    owner: OnceLock<u32>,
}

/// The keys of a table.
#[derive(Debug)]
pub(super) struct Keys {
    /// The number of loaded keys, which are 0 up to but not including this.
    records: u64,
    inserted: Inserted,
}

/// The bit that is set in keys that were inserted.
pub(super) const INSERTED: u64 = 1 << 63;
/// The bits of an insert's number in its key. Above them are 24 bits of the client that owns the
/// key.
const NUMBER_BITS: u32 = 39;
const _: () = assert!(remora_fabric::limits::CLIENT_BITS + NUMBER_BITS == 63);

impl Keys {
    pub(super) fn new(records: u64) -> Keys {
        let ended = (0..WINDOW).map(|_| AtomicU64::new(0)).collect();
        let (begun, known) = (AtomicU64::new(0), AtomicU64::new(0));
        Keys { records, inserted: Inserted { begun, known, ended, owner: OnceLock::new() } }
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of the next record to insert. The caller must call [`Keys::ended`] for
    /// it.
    pub(super) fn begin(&self) -> u64 {
        self.inserted.begun.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the key of an inserted record, for one of this process's clients.
    pub(super) fn inserted(&self, number: u64, client: u32) -> u64 {
        // No client number is given twice, so no other process has this process's first one.
        of_number(*self.inserted.owner.get_or_init(|| client), number)
    }

    /// Records that an insert has ended, in whatever way.
    pub(super) fn ended(&self, number: u64) {
        let Inserted { known, ended, .. } = &self.inserted;
        let at = |number: u64| &ended[(number % WINDOW) as usize];
        // If an insert ends so late that a later number has its place, the later one stays.
        at(number).fetch_max(number + 1, Ordering::SeqCst);
        let mut next = known.load(Ordering::SeqCst);
        // A later number in the place means that no client waits for this one any more.
        while at(next).load(Ordering::SeqCst) > next {
            let advanced = known.compare_exchange(next, next + 1, Ordering::SeqCst, Ordering::SeqCst);
            next = advanced.map_or_else(|found| found, |found| found + 1);
        }
    }

    /// Returns the key that is `rank` ranks before the latest.
    fn latest(&self, rank: u64) -> u64 {
        let known = self.inserted.known.load(Ordering::SeqCst);
        match self.inserted.owner.get() {
            Some(owner) if rank < known => of_number(*owner, known - 1 - rank),
            _ => self.records - 1 - rank.saturating_sub(known),
        }
    }
}

fn of_number(owner: u32, number: u64) -> u64 {
    INSERTED | u64::from(owner) << NUMBER_BITS | number
}

/// A way of drawing keys by a distribution.
#[derive(Clone, Copy, Debug)]
pub(super) enum Draw {
    Uniform,
    Zipf(Zipf),
    Latest(Zipf),
}

impl Draw {
    /// Makes the way of drawing for a distribution. There are as many ranks as loaded records, even
    /// when more have been inserted.
    pub(super) fn new(distribution: Distribution, records: u64) -> Draw {
        match distribution {
            Distribution::Uniform => Draw::Uniform,
            Distribution::Zipf(theta) => Draw::Zipf(Zipf::new(records, theta)),
            Distribution::Latest(theta) => Draw::Latest(Zipf::new(records, theta)),
        }
    }

    /// Draws the next key.
    #[inline]
    pub(super) fn draw(&self, keys: &Keys, random: &mut Prng) -> u64 {
        match self {
            Draw::Uniform => random.below(keys.records),
            Draw::Zipf(zipf) => scatter(zipf.draw(random)) % keys.records,
            Draw::Latest(zipf) => keys.latest(zipf.draw(random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 2_000_000;
    const RECORDS: u64 = 100_000;

    /// Returns the weight by its definition, by adding up.
    fn weight(ranks: std::ops::Range<u64>, theta: f64) -> f64 {
        ranks.map(|rank| ((rank + 1) as f64).powf(-theta)).sum()
    }

    fn near(found: f64, expected: f64, by: f64) -> bool {
        (found - expected).abs() <= by
    }

    /// The ranks of each part of the table have the share of the draws that Zipf's law gives them.
    #[test]
    fn ranks_follow_zipfs_law() {
        for theta in [0.0, 0.5, 0.8, 0.99] {
            let (zipf, mut random) = (Zipf::new(RECORDS, theta), Prng::new(1));
            let mut drawn = vec![0_u64; RECORDS as usize];
            (0..DRAWS).for_each(|_| drawn[zipf.draw(&mut random) as usize] += 1);
            let all = weight(0..RECORDS, theta);
            for (from, to) in [(0, 10), (0, 1_000), (0, 10_000), (1_000, 10_000), (50_000, RECORDS)] {
                let found = drawn[from as usize..to as usize].iter().sum::<u64>() as f64 / DRAWS as f64;
                let expected = weight(from..to, theta) / all;
                // The closed form draws ranks 2 to 10 a little too often.
                assert!(near(found, expected, 0.013), "theta {theta}, ranks {from} to {to}: {found}, not {expected}");
            }
            for rank in [0, 1] {
                let (found, expected) =
                    (drawn[rank] as f64 / DRAWS as f64, weight(rank as u64..rank as u64 + 1, theta) / all);
                assert!(near(found, expected, 0.001), "theta {theta}, rank {rank}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn a_few_ranks_are_ranks_too() {
        let mut random = Prng::new(2);
        for ranks in 1..5 {
            let zipf = Zipf::new(ranks, 0.99);
            let mut drawn = vec![0; ranks as usize];
            (0..10_000).for_each(|_| drawn[zipf.draw(&mut random) as usize] += 1);
            assert!(drawn.iter().all(|count| *count > 0) && drawn.is_sorted_by(|a, b| a > b), "{drawn:?}");
        }
    }

    #[test]
    fn sums_of_many_weights_are_exact() {
        for theta in [0.3, 0.99] {
            let (found, expected) = (zeta(1_000_000, theta), weight(0..1_000_000, theta));
            assert!(near(found / expected, 1.0, 1e-9), "{found}, not {expected}");
        }
    }

    /// Hot records are hot wherever they lie. Sorted by how often they are drawn, they have the
    /// shares of their ranks, and more, because some have several ranks.
    #[test]
    fn hot_records_are_all_over_the_table() {
        let (keys, draw) = (Keys::new(RECORDS), Draw::new(Distribution::Zipf(0.99), RECORDS));
        let mut random = Prng::new(3);
        let mut drawn = vec![0_u64; RECORDS as usize];
        (0..DRAWS).for_each(|_| drawn[draw.draw(&keys, &mut random) as usize] += 1);
        let share = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / DRAWS as f64;
        assert!(drawn.chunks(10_000).all(|tenth| (0.04..0.2).contains(&share(tenth))), "each tenth has its share");
        drawn.sort_unstable_by(|a, b| b.cmp(a));
        let hottest = weight(0..1_000, 0.99) / weight(0..RECORDS, 0.99);
        let found = share(&drawn[..1_000]);
        assert!((hottest - 0.005..hottest + 0.03).contains(&found), "the hottest 1 %: {found}, by law {hottest}");
    }

    #[test]
    fn uniform_is_uniform() {
        let (keys, mut random) = (Keys::new(10), Prng::new(4));
        let mut drawn = [0_u64; 10];
        (0..100_000).for_each(|_| drawn[Draw::Uniform.draw(&keys, &mut random) as usize] += 1);
        assert!(drawn.iter().all(|count| (9_500..10_500).contains(count)), "{drawn:?}");
    }

    /// Records that are not known to be present are not read, and the latest record is the hottest.
    #[test]
    fn the_latest_are_the_hottest() {
        let keys = Keys::new(100);
        assert_eq!([0, 1, 99].map(|rank| keys.latest(rank)), [99, 98, 0]);
        let numbers: Vec<u64> = (0..4).map(|_| keys.begin()).collect();
        let inserts: Vec<u64> = numbers.iter().map(|number| keys.inserted(*number, 7)).collect();
        assert_eq!(keys.latest(0), 99, "none has ended");
        keys.ended(numbers[1]);
        assert_eq!(keys.latest(0), 99, "the first has not");
        keys.ended(numbers[0]);
        assert_eq!([0, 1, 2].map(|rank| keys.latest(rank)), [inserts[1], inserts[0], 99]);
        keys.ended(numbers[3]);
        keys.ended(numbers[2]);
        assert_eq!([0, 3, 4, 99].map(|rank| keys.latest(rank)), [inserts[3], inserts[0], 99, 4]);
        assert_ne!(Keys::new(100).inserted(0, 8), inserts[0], "another process has other keys");
        assert_eq!(keys.inserted(0, 9), inserts[0], "also when its client is another one");
    }

    #[test]
    fn inserts_of_many_threads_are_all_known_in_the_end() {
        const EACH: u64 = 3 * WINDOW / 2;
        let keys = Keys::new(1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..EACH).for_each(|_| keys.ended(keys.begin())));
            }
        });
        assert_eq!(keys.inserted.known.load(Ordering::SeqCst), 3 * EACH);
    }

    #[test]
    fn mixes_have_their_shares() {
        let mut random = Prng::new(5);
        for (name, reads, other) in [
            ("a", 0.5, Kind::Update),
            ("b", 0.95, Kind::Update),
            ("c", 1.0, Kind::Update),
            ("d", 0.95, Kind::Insert),
            ("e", 0.95, Kind::Insert),
            ("f", 0.5, Kind::ReadModifyWrite),
        ] {
            let mix = Mix::named(name).unwrap();
            let drawn: Vec<Kind> = (0..100_000).map(|_| mix.draw(&mut random)).collect();
            let share = |kind| drawn.iter().filter(|one| **one == kind).count() as f64 / 1e5;
            assert!(near(share(mix.read), reads, 0.006), "{name}: {}", share(mix.read));
            assert!(near(share(other), 1.0 - reads, 0.006), "{name}: {}", share(other));
        }
        assert_eq!(["g", ""].map(Mix::named), [None; 2]);
    }
}
