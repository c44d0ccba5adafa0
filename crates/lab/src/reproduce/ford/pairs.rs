//! FORD's key-value store (section 6.1): transactions that read or update one of a million pairs,
//! with keys of 8 bytes and values of 40.

use remora::{Cluster, Error, Intent, OpenError, Session, Table, TableOptions, TransactionOptions};
use remora_workload::guestbook::{PARAMETERS, Parameters};
use remora_workload::ycsb::{Mix, Row, Size, Ycsb, Zipf};
use remora_workload::{After, Invariant, Prng, Setting, Workload};

/// A value of 40 bytes, which counts its updates.
type Value = Row<5>;

/// How often each key is accessed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Pattern {
    Uniform,
    /// Zipf's law with the exponent 0.99. The hottest keys are the first ones. The hash table
    /// spreads them.
    Skewed,
}

impl Pattern {
    pub(super) const ALL: [Pattern; 2] = [Pattern::Uniform, Pattern::Skewed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Skewed => "skewed",
        }
    }
}

/// What clients do with the store.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Clients {
    /// The number of keys that are accessed, which are the first ones.
    pub(super) accessible: u64,
    pub(super) pattern: Pattern,
    /// The percentage of transactions that update. The others read.
    pub(super) writes: u64,
    /// Whether clients know all locations from the beginning.
    pub(super) warm: bool,
}

/// The store, and its clients.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    table: Table<u64, Value>,
    pairs: u64,
    clients: Clients,
    zipf: Zipf,
}

impl Pairs {
    /// The label of an update.
    pub(super) const UPDATE: u16 = 1;

    /// Loads `pairs` pairs.
    pub(super) fn load(cluster: &Cluster, pairs: u64, clients: Clients) -> Result<Pairs, OpenError> {
        let table = cluster.create_table("pairs", TableOptions::for_rows(pairs).grows(false))?;
        cluster.load(&table, (0..pairs).map(|key| (key, Value::new(key, 0, 0))))?;
        let zipf = Zipf::new(clients.accessible, Mix::THETA);
        Ok(Pairs { table, pairs, clients, zipf })
    }

    pub(super) fn table(&self) -> &Table<u64, Value> {
        &self.table
    }

    /// Returns the bytes that each memory node needs.
    pub(super) fn node_bytes(pairs: u64, setting: &Setting) -> u64 {
        // Values of the next larger size have enough room.
        let size = Size { records: pairs, inserts: 0, value_bytes: 128, ordered: None };
        Ycsb::node_bytes(&size, setting)
    }
}

impl Workload for Pairs {
    /// Counts the updates.
    type Ledger = i64;

    const NAME: &'static str = "pairs";
    const TYPES: &'static [&'static str] = &["read", "update"];
    const INVARIANTS: &'static [&'static str] = &["no update is lost", "every pair is there, and whole"];

    fn open(_: &Cluster, _: &Parameters) -> Result<Pairs, OpenError> {
        unreachable!("of simulations there is one client process")
    }

    fn parameters(&self) -> Parameters {
        [0; PARAMETERS]
    }

    async fn warm(&self, session: &mut Session, _: u64, _: u64) -> Result<(), Error> {
        const AT_ONCE: u64 = 32;
        let end = if self.clients.warm { self.clients.accessible } else { 0 };
        for first in (0..end).step_by(AT_ONCE as usize) {
            let read = session.transact(async |tx| {
                (first..end.min(first + AT_ONCE)).for_each(|key| _ = tx.want(&self.table, key));
                tx.fetch().await
            });
            read.await?;
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, updates: &mut i64) -> Result<(), Error> {
        let key = match self.clients.pattern {
            Pattern::Uniform => random.below(self.clients.accessible),
            Pattern::Skewed => self.zipf.draw(random),
        };
        let (is_update, stamp) = (random.below(100) < self.clients.writes, random.next_u64());
        let options = TransactionOptions::default().label(if is_update { Pairs::UPDATE } else { 0 });
        let done = session.transact_with(options, async |tx| {
            let pair = tx.want_for(&self.table, key, if is_update { Intent::Update } else { Intent::Read });
            tx.fetch().await?;
            let before = *pair.require(tx)?;
            if is_update {
                *pair.get_mut(tx)? = Value::new(key, before.count() + 1, stamp);
            }
            Ok(())
        });
        done.await?;
        *updates += i64::from(is_update);
        Ok(())
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        let (mut found, mut pairs, mut whole) = (0, 0_u64, 0_u64);
        cluster.inspect(&self.table, |value| {
            found += value.count() as i64;
            pairs += 1;
            whole += u64::from(value.is_whole());
        })?;
        let expected: i64 = after.ledgers.iter().sum();
        let [updates, every] = Self::INVARIANTS else { unreachable!("there are two") };
        Ok(vec![
            Invariant {
                name: updates,
                holds: Some((expected..=expected + after.unknown as i64).contains(&found)),
                detail: format!("{found} of {expected}"),
            },
            Invariant {
                name: every,
                holds: Some(pairs == self.pairs && whole == pairs),
                detail: format!("{pairs}, {whole} of them whole"),
            },
        ])
    }
}
