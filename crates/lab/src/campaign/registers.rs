//! A workload whose transactions conflict on purpose: few keys, records of one line and of several,
//! and rows that come and go.
//!
//! All words of a value are one number, so a torn record shows. Every number is written once.
//!
//! One in four transactions only reads records that were reported as written a moment ago, one
//! alone or several. A write-back may still be under way then, and the transaction must not miss
//! it. Values are large, so that log rings fill when they are not applied.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use remora::floors::node::ReadScheme;
use remora::floors::txn::Intent;
use remora::{Cluster, Error, OpenError, Session, Table, TableOptions, Transaction, TransactionOptions};
use remora_workload::Prng;

use super::cancel::perhaps_twice;
use super::past::Past;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const LARGE: usize = 200;
/// How many of the last reported records are read again. They are from the last microseconds, in
/// which a late write-back may still be under way.
const RECENT: usize = 8;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "words")]
#[repr(transparent)]
struct Words<const N: usize>([u64; N]);

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
    /// Whether fetches are dropped from time to time, and repeated.
    cancels: bool,
    /// Whether transactions can read snapshots.
    snapshots: bool,
    past: Past,
    recent: RefCell<VecDeque<At>>,
}

/// The place of a record: whether it is in the table of large records, and its key.
type At = (bool, u64);

/// An operation on a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Read,
    Write,
    Insert,
    Delete,
}

fn options() -> TransactionOptions {
    TransactionOptions::default().attempts(super::case::ATTEMPTS)
}

impl Registers {
    /// Creates the tables and loads half of the keys. Two things are drawn for each table: whether
    /// it is dense, and the read scheme. That is a checksum, with which a locked record may be
    /// stable, or what the fabric allows, with which it is not.
    pub(crate) fn load(cluster: &Cluster, keys: u64, cancels: bool, random: &mut Prng) -> Result<Registers, OpenError> {
        let keys = (keys / 2).max(2);
        // A table has room for inserts that have prepared a slot, however few its keys are.
        let room = keys.max(16);
        let mut layout = || {
            let read_scheme = (random.below(2) == 0).then_some(ReadScheme::Checksum);
            let dense = random.below(2) == 0;
            TableOptions::for_rows(room).read_scheme(read_scheme).dense(dense)
        };
        let small = cluster.create_table("small", layout())?;
        let large = cluster.create_table("large", layout())?;
        let present = || (0..keys).filter(|key| key % 2 == 0);
        cluster.load(&small, present().map(|key| (key, Words([0]))))?;
        cluster.load(&large, present().map(|key| (key, Words([0; LARGE]))))?;
        Ok(Registers {
            small,
            large,
            keys,
            next: Cell::new(1),
            torn: Cell::new(0),
            cancels,
            snapshots: cluster.protocol().has_snapshots(),
            past: Past::default(),
            recent: RefCell::default(),
        })
    }

    /// Returns the number of records that an application has seen torn.
    pub(crate) fn torn(&self) -> u64 {
        self.torn.get()
    }

    pub(crate) fn inspect(&self, cluster: &Cluster) -> Result<Vec<remora::admin::Inspection>, Error> {
        Ok(vec![cluster.inspect(&self.small, |_| {})?, cluster.inspect(&self.large, |_| {})?])
    }

    /// Runs one transaction: on one to four records, or a read of recent ones.
    pub(crate) async fn transact(&self, session: &mut Session, random: &mut Prng) -> Result<(), Error> {
        if !self.recent.borrow().is_empty() && random.below(4) == 0 {
            return self.look(session, random).await;
        }
        let mut plan: Vec<(At, Action)> = Vec::new();
        for _ in 0..=random.below(4) {
            let action = match random.below(100) {
                0..45 => Action::Read,
                45..85 => Action::Write,
                85..93 => Action::Insert,
                _ => Action::Delete,
            };
            let at = (random.below(2) == 0, random.below(self.keys));
            if !plan.iter().any(|(other, _)| *other == at) {
                plan.push((at, action));
            }
        }
        // Whether records are named for an update, so that they may be locked early.
        let named = random.below(2) == 0;
        let done = session
            .transact_with(options(), async |tx| {
                let number = self.next.replace(self.next.get() + 1);
                let mut small = Vec::new();
                let mut large = Vec::new();
                for ((is_large, key), action) in &plan {
                    let intent = match action {
                        Action::Insert => Intent::Insert,
                        Action::Delete => Intent::Delete,
                        Action::Write if named => Intent::Update,
                        Action::Read | Action::Write => Intent::Read,
                    };
                    if *is_large {
                        large.push((tx.want_for(&self.large, *key, intent), *action));
                    } else {
                        small.push((tx.want_for(&self.small, *key, intent), *action));
                    }
                }
                perhaps_twice(self.cancels, tx, async |tx| tx.fetch().await).await?;
                for (slot, action) in small {
                    let found = slot.get(tx)?.map(Words::is_whole);
                    self.note(found);
                    match action {
                        Action::Write if found.is_some() => *slot.get_mut(tx)? = Words([number]),
                        Action::Insert if found.is_none() => slot.insert(tx, Words([number]))?,
                        Action::Delete if found.is_some() => _ = slot.remove(tx)?,
                        _ => {}
                    }
                }
                for (slot, action) in large {
                    let found = slot.get(tx)?.map(Words::is_whole);
                    self.note(found);
                    match action {
                        Action::Write if found.is_some() => *slot.get_mut(tx)? = Words([number; LARGE]),
                        Action::Insert if found.is_none() => slot.insert(tx, Words([number; LARGE]))?,
                        Action::Delete if found.is_some() => _ = slot.remove(tx)?,
                        _ => {}
                    }
                }
                Ok(())
            })
            .await;
        if done.is_ok() {
            let written = plan.into_iter().filter(|(_, action)| *action != Action::Read).map(|(at, _)| at);
            let mut recent = self.recent.borrow_mut();
            recent.extend(written);
            let old = recent.len().saturating_sub(RECENT);
            recent.drain(..old);
        }
        done
    }

    /// Reads one recent record, or several one after the other, so that other transactions commit
    /// in between.
    async fn look(&self, session: &mut Session, random: &mut Prng) -> Result<(), Error> {
        let records = if random.below(2) == 0 { 1 } else { 2 + random.below(7) };
        match if self.snapshots { random.below(3) } else { 0 } {
            0 => {}
            1 => return self.look_at_snapshot(session, random, records).await,
            _ => {
                let (mut other, records) = (Prng::new(random.next_u64()), records);
                let body = async |tx: &mut Transaction<'_, '_>| self.read_recent(tx, &mut other, records).await;
                return self.past.read(session, random, options(), body).await;
            }
        }
        session.transact_with(options(), async |tx| self.read_recent(tx, random, records).await).await
    }

    /// Reads recent records in a snapshot, together or one after the other.
    async fn look_at_snapshot(&self, session: &mut Session, random: &mut Prng, records: u64) -> Result<(), Error> {
        let together = random.below(2) == 0;
        session
            .transact_with(options().snapshot(true), async |tx| {
                if !together {
                    return self.read_recent(tx, random, records).await;
                }
                let (mut small, mut large) = (Vec::new(), Vec::new());
                for _ in 0..records {
                    match self.any_recent(random) {
                        (false, key) => small.push(tx.want(&self.small, key)),
                        (true, key) => large.push(tx.want(&self.large, key)),
                    }
                }
                perhaps_twice(self.cancels, tx, async |tx| tx.fetch().await).await?;
                for slot in small {
                    self.note(slot.get(tx)?.map(Words::is_whole));
                }
                for slot in large {
                    self.note(slot.get(tx)?.map(Words::is_whole));
                }
                Ok(())
            })
            .await
    }

    async fn read_recent(&self, tx: &mut Transaction<'_, '_>, random: &mut Prng, records: u64) -> Result<(), Error> {
        for _ in 0..records {
            self.note(match self.any_recent(random) {
                (true, key) => self.large.get(tx, key).await?.map(|value| value.is_whole()),
                (false, key) => self.small.get(tx, key).await?.map(|value| value.is_whole()),
            });
        }
        Ok(())
    }

    fn any_recent(&self, random: &mut Prng) -> At {
        let recent = self.recent.borrow();
        recent[random.below(recent.len() as u64) as usize]
    }

    /// Reads every record, a few at a time.
    pub(crate) async fn read_all(&self, session: &mut Session) -> Result<(), Error> {
        for key in 0..self.keys {
            session
                .transact_with(options(), async |tx| {
                    let small = self.small.get(tx, key).await?.map(|value| value.is_whole());
                    let large = self.large.get(tx, key).await?.map(|value| value.is_whole());
                    self.note(small);
                    self.note(large);
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }

    fn note(&self, whole: Option<bool>) {
        if whole == Some(false) {
            self.torn.set(self.torn.get() + 1);
        }
    }
}
