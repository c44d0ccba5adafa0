//! XStore's workloads (Wei thesis, table 3-1) on an ordered table with keys and values of 8 bytes.
//! Keys are drawn evenly, and each operation is a transaction.

use std::sync::atomic::{AtomicU64, Ordering};

use remora::{Cluster, Error, OpenError, Ordered, OrderedOptions, Session, Transaction, TransactionOptions};
use remora_fabric::splitmix;
use remora_workload::guestbook::{PARAMETERS, Parameters};
use remora_workload::{After, Invariant, Prng, Workload};

use crate::reproduce::numbers;

/// The operations of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mix {
    /// Half lookups, half updates.
    A,
    /// 9 lookups to an update.
    B,
    /// Lookups.
    C,
    /// 19 lookups to an insert.
    D,
    /// 19 scans to an insert. A scan has from 1 to 100 keys.
    E,
}

/// The largest number of keys of a scan.
const SCANNED_MAX: u64 = 100;
/// The bits of a value that count its changes. The others are the key's.
const COUNT_BITS: u32 = 24;

/// A table, and what clients do to it.
pub(super) struct Store {
    table: Ordered<u64, u64>,
    records: u64,
    mix: Mix,
    /// How many keys have been inserted, or are being inserted.
    inserted: AtomicU64,
}

/// Returns a key; each number has another one.
fn key(number: u64) -> u64 {
    splitmix(number)
}

/// Returns the value of a key that was changed so often.
fn value(key: u64, count: u64) -> u64 {
    key >> COUNT_BITS << COUNT_BITS | count & ((1 << COUNT_BITS) - 1)
}

impl Store {
    /// Loads `records` keys into a table with these options. `handle` says what clients remember.
    pub(super) fn load(
        cluster: &Cluster,
        (records, mix): (u64, Mix),
        options: OrderedOptions,
        handle: impl Fn(Ordered<u64, u64>) -> Ordered<u64, u64>,
    ) -> Result<Store, OpenError> {
        let mut keys: Vec<u64> = (0..records).map(key).collect();
        keys.sort_unstable();
        let table = cluster.load_ordered("store", options, keys.into_iter().map(|key| (key, value(key, 0))))?;
        Ok(Store { table: handle(table), records, mix, inserted: AtomicU64::new(0) })
    }

    fn draw(&self, random: &mut Prng) -> u64 {
        key(random.below(self.records))
    }

    async fn update(&self, session: &mut Session, random: &mut Prng, label: u16) -> Result<(), Error> {
        let key = self.draw(random);
        // A blind update, whose value does not depend on what was there: its count is lost.
        let change = async |tx: &mut Transaction<'_, '_>| self.table.update(tx, key, value(key, 1)).await;
        session.transact_with(TransactionOptions::default().label(label), change).await
    }

    async fn insert(&self, session: &mut Session) -> Result<(), Error> {
        let key = key(self.records + self.inserted.fetch_add(1, Ordering::Relaxed));
        let insert = async |tx: &mut Transaction<'_, '_>| self.table.insert(tx, key, value(key, 0)).await;
        session.transact_with(TransactionOptions::default().label(2), insert).await
    }
}

impl Workload for Store {
    /// Counts the inserted keys.
    type Ledger = i64;

    const NAME: &'static str = "store";
    const TYPES: &'static [&'static str] = &["read", "update", "insert", "scan"];
    const INVARIANTS: &'static [&'static str] =
        &["the tree is a tree", "every key is there", "every value is its key's"];

    fn open(_: &Cluster, _: &Parameters) -> Result<Store, OpenError> {
        unreachable!("of simulations there is one client process")
    }

    fn parameters(&self) -> Parameters {
        [0; PARAMETERS]
    }

    async fn warm(&self, session: &mut Session, _: u64, _: u64) -> Result<(), Error> {
        numbers::read_all(&self.table, session).await
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, inserted: &mut i64) -> Result<(), Error> {
        let other = match self.mix {
            Mix::A => 50,
            Mix::B => 10,
            Mix::C => 0,
            Mix::D | Mix::E => 5,
        };
        let is_other = random.below(100) < other;
        let label = |label| TransactionOptions::default().label(label);
        match self.mix {
            Mix::A | Mix::B if is_other => {
                self.update(session, random, 1).await?;
            }
            Mix::D | Mix::E if is_other => {
                self.insert(session).await?;
                *inserted += 1;
            }
            Mix::E => {
                let (from, count) = (self.draw(random), 1 + random.below(SCANNED_MAX) as usize);
                session.transact_with(label(3), async |tx| self.table.scan(tx, from.., count).await).await?;
            }
            _ => {
                let key = self.draw(random);
                session.transact_with(label(0), async |tx| self.table.get(tx, key).await).await?;
            }
        }
        Ok(())
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        let mut others = 0_u64;
        let is_of = |key: &u64, found: &u64| value(*key, *found) == *found;
        let (_, found) = cluster.inspect_ordered(&self.table, |key, found| others += u64::from(!is_of(key, found)))?;
        let inserts = after.ledgers.iter().sum::<i64>().unsigned_abs();
        let [tree, keys, values] = Self::INVARIANTS else { unreachable!("there are three") };
        let is_there = |rows: u64| (self.records + inserts..=self.records + inserts + after.unknown).contains(&rows);
        Ok(vec![
            Invariant {
                name: tree,
                holds: Some(found.fault.is_none()),
                detail: found.fault.clone().unwrap_or_default(),
            },
            Invariant {
                name: keys,
                holds: Some(is_there(found.rows)),
                detail: format!("{} of {}, {} unknown", found.rows, self.records + inserts, after.unknown),
            },
            Invariant { name: values, holds: Some(others == 0), detail: format!("{others} are another key's") },
        ])
    }
}
