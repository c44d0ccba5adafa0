//! A workload made to meet itself: few keys, records of one line and of many, rows that come and go.
//!
//! Every word of a value is the same number, so that a torn record shows; every number is written once.

use std::cell::Cell;

use remora::floors::txn::Intent;
use remora::{Cluster, Error, OpenError, Record, Session, Table, TableOptions, TransactionOptions};
use remora_workload::Prng;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const LARGE: usize = 40;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
struct Words<const N: usize>([u64; N]);

impl<const N: usize> Record for Words<N> {
    const SCHEMA: &'static str = "words";
}

impl<const N: usize> Words<N> {
    fn is_whole(&self) -> bool {
        self.0.iter().all(|word| *word == self.0[0])
    }
}

/// The two tables.
#[derive(Debug)]
pub(crate) struct Registers {
    small: Table<u64, Words<1>>,
    large: Table<u64, Words<LARGE>>,
    keys: u64,
    next: Cell<u64>,
    torn: Cell<u64>,
}

/// What is done to a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Read,
    Write,
    Insert,
    Delete,
}

impl Registers {
    /// Half of the keys are there at first.
    pub(crate) fn load(cluster: &Cluster, keys: u64) -> Result<Registers, OpenError> {
        let keys = (keys / 2).max(2);
        let small = cluster.create_table("small", TableOptions::for_rows(keys))?;
        let large = cluster.create_table("large", TableOptions::for_rows(keys))?;
        let present = || (0..keys).filter(|key| key % 2 == 0);
        cluster.load(&small, present().map(|key| (key, Words([0]))))?;
        cluster.load(&large, present().map(|key| (key, Words([0; LARGE]))))?;
        Ok(Registers { small, large, keys, next: Cell::new(1), torn: Cell::new(0) })
    }

    /// Records that an application has seen torn.
    pub(crate) fn torn(&self) -> u64 {
        self.torn.get()
    }

    pub(crate) fn inspect(&self, cluster: &Cluster) -> Result<Vec<remora::Inspection>, Error> {
        Ok(vec![cluster.inspect(&self.small, |_| {})?, cluster.inspect(&self.large, |_| {})?])
    }

    /// One transaction of one to four records.
    pub(crate) async fn transact(&self, session: &mut Session, random: &mut Prng) -> Result<(), Error> {
        let mut plan = Vec::new();
        for _ in 0..=random.below(4) {
            let action = match random.below(100) {
                0..45 => Action::Read,
                45..85 => Action::Write,
                85..93 => Action::Insert,
                _ => Action::Delete,
            };
            let one = (random.below(2) == 0, random.below(self.keys), action);
            if !plan.iter().any(|(large, key, _)| (*large, *key) == (one.0, one.1)) {
                plan.push(one);
            }
        }
        // Who meets what a dead client holds goes elsewhere soon.
        let options = TransactionOptions { attempts: 8, ..TransactionOptions::default() };
        session
            .transact_with(options, async |tx| {
                let number = self.next.replace(self.next.get() + 1);
                let mut small = Vec::new();
                let mut large = Vec::new();
                for (is_large, key, action) in &plan {
                    let intent = match action {
                        Action::Insert => Intent::Insert,
                        Action::Delete => Intent::Delete,
                        Action::Read | Action::Write => Intent::Read,
                    };
                    if *is_large {
                        large.push((tx.want_for(&self.large, *key, intent), *action));
                    } else {
                        small.push((tx.want_for(&self.small, *key, intent), *action));
                    }
                }
                tx.fetch().await?;
                for (slot, action) in small {
                    let found = tx.find(slot).map(Words::is_whole);
                    self.note(found);
                    match action {
                        Action::Write if found.is_some() => *tx.get_mut(slot)? = Words([number]),
                        Action::Insert if found.is_none() => tx.put(slot, Words([number]))?,
                        Action::Delete if found.is_some() => tx.remove(slot)?,
                        _ => {}
                    }
                }
                for (slot, action) in large {
                    let found = tx.find(slot).map(Words::is_whole);
                    self.note(found);
                    match action {
                        Action::Write if found.is_some() => *tx.get_mut(slot)? = Words([number; LARGE]),
                        Action::Insert if found.is_none() => tx.put(slot, Words([number; LARGE]))?,
                        Action::Delete if found.is_some() => tx.remove(slot)?,
                        _ => {}
                    }
                }
                Ok(())
            })
            .await
    }

    fn note(&self, whole: Option<bool>) {
        if whole == Some(false) {
            self.torn.set(self.torn.get() + 1);
        }
    }
}
