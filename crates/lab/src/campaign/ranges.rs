//! A workload for ordered tables: few keys that come and go, so that leaves are split and merged
//! all the time, and scans of ranges.
//!
//! Two tables have the same keys and numbers. One has its values in leaves, and the other has them
//! out of line. A transaction that changes one table changes the other as well. So a transaction
//! that has read a range of both must have seen equal contents. For the table with values out of
//! line, histories record what each scan has found, and [`check`](remora_check::check) decides
//! whether a scan can have missed nothing.
//!
//! A third table is for transactions that look up, put or remove one key and do nothing else,
//! mostly by calls. Each put has a number of its own. A put or a remove returns the number that it
//! has found. So no two of them may return the same number of a key, and every value names its key.
//!
//! Clients remember different things about the places of keys, because each transaction uses one of
//! several handles. Some tables have leaves whose keys come first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;

use remora::admin::Inspection;
use remora::{Cluster, Design, Error, OpenError, Ordered, OrderedOptions, Session, Transaction, TransactionOptions};
use remora_workload::Prng;

use super::cancel::perhaps_twice;
use super::past::Past;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A key of 64 bytes, so that few fit into a node.
type Wide = ([u8; 56], u64);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "words")]
#[repr(transparent)]
struct Words<const N: usize>([u64; N]);

/// A value in leaves. Seven rows fit into a leaf; of the other table, thirteen keys do.
type Short = Words<8>;
type Long = Words<24>;

fn key(number: u64) -> Wide {
    ([0; 56], number)
}

/// Returns a value of a key in the third table.
fn swapped(at: u64, number: u64) -> Short {
    Words([number, at, number, at, number, at, number, at])
}

/// Handles of the three tables that remember equally much.
#[derive(Debug)]
struct Handle {
    short: Ordered<Wide, Short>,
    long: Ordered<Wide, Long>,
    swapped: Ordered<Wide, Short>,
}

/// The three tables.
#[derive(Debug)]
pub(crate) struct Ranges {
    handles: [Handle; 4],
    keys: u64,
    next: Cell<u64>,
    /// Numbers that a put or a remove has found, each with its key and the number of the one that
    /// has found it.
    swaps: RefCell<BTreeMap<(u64, u64), u64>>,
    wrong: Cell<u64>,
    /// Whether operations are dropped from time to time, and repeated.
    cancels: bool,
    /// Whether transactions can read snapshots.
    snapshots: bool,
    past: Past,
}

/// An operation on a key, or on a range.
#[derive(Clone, Copy)]
enum Action {
    Get(u64),
    Put(u64),
    Remove(u64),
    Scan { from: Bound<u64>, to: Bound<u64>, limit: usize, back: bool },
}

impl Action {
    fn draw(keys: u64, grows: bool, random: &mut Prng) -> Action {
        let number = random.below(keys);
        match random.below(10) {
            0 | 1 => Action::Get(number),
            2..5 if grows => Action::Put(number),
            2..5 => Action::Remove(number),
            5 => Action::Put(number),
            6 => Action::Remove(number),
            _ => {
                let other = random.below(keys);
                let bound = |number, random: &mut Prng| match random.below(4) {
                    0 => Bound::Excluded(number),
                    1 => Bound::Unbounded,
                    _ => Bound::Included(number),
                };
                let (from, to) = (bound(number.min(other), random), bound(number.max(other) + 1, random));
                let limit = if random.below(2) == 0 { usize::MAX } else { 1 + random.below(20) as usize };
                Action::Scan { from, to, limit, back: random.below(3) == 0 }
            }
        }
    }
}

impl Ranges {
    /// Creates the tables and loads every third key. The designs are drawn.
    pub(crate) fn load(cluster: &Cluster, keys: u64, cancels: bool, random: &mut Prng) -> Result<Ranges, OpenError> {
        let keys = keys.max(8);
        let mut options = || {
            let design = match random.below(3) {
                0 => Design::Fine,
                1 => Design::Hybrid(random.below(3) as u16),
                _ => Design::Coarse(random.below(3) as u16),
            };
            let mut options = OrderedOptions::for_rows(2 * keys + 64).design(design);
            if design != Design::Fine && random.below(2) == 0 {
                options = options.split_at([keys / 4, keys / 2, 2 * keys].map(key));
            }
            if random.below(2) == 0 { options.keys_first(7) } else { options }
        };
        let numbers = || (0..keys).step_by(3);
        let short = cluster.load_ordered("short", options(), numbers().map(|number| (key(number), Words([0; 8]))))?;
        let mut of_long = options();
        of_long.keys_first = None; // its values are out of line
        let long = cluster.load_ordered("long", of_long, numbers().map(|number| (key(number), Words([0; 24]))))?;
        let rows = numbers().map(|number| (key(number), swapped(number, 0)));
        let of_swaps = cluster.load_ordered("swapped", options(), rows)?;
        let other = Handle {
            short: cluster.open_ordered("short")?,
            long: cluster.open_ordered("long")?,
            swapped: cluster.open_ordered("swapped")?,
        };
        let by_call = Handle { short: other.short.by_call(), long: long.clone(), swapped: other.swapped.by_call() };
        let forgetful = Handle {
            short: short.without_memory(),
            long: long.without_memory(),
            swapped: of_swaps.without_memory().by_call(),
        };
        let handles = [Handle { short, long, swapped: of_swaps }, other, by_call, forgetful];
        let (next, wrong, swaps) = (Cell::new(1), Cell::new(0), RefCell::default());
        let (snapshots, past) = (cluster.protocol().has_snapshots(), Past::default());
        Ok(Ranges { handles, keys, next, swaps, wrong, cancels, snapshots, past })
    }

    /// Counts the transactions that have committed and have seen an impossible state.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.get()
    }

    /// Inspects the tables from outside. Also returns the errors in their trees.
    pub(crate) fn inspect(&self, cluster: &Cluster) -> Result<(Vec<Inspection>, Vec<String>), Error> {
        let Handle { short, long, swapped } = &self.handles[0];
        let (mut tables, one) = cluster.inspect_ordered(short, |_, _| ())?;
        let (others, other) = cluster.inspect_ordered(long, |_, _| ())?;
        let (of_swaps, swapped) = cluster.inspect_ordered(swapped, |_, _| ())?;
        tables.extend(others.into_iter().chain(of_swaps));
        let differing = (one.rows != other.rows).then(|| format!("{} keys and {}", one.rows, other.rows));
        Ok((tables, [one.fault, other.fault, swapped.fault, differing].into_iter().flatten().collect()))
    }

    /// Runs one transaction on one to four keys and ranges.
    pub(crate) async fn transact(&self, session: &mut Session, random: &mut Prng) -> Result<(), Error> {
        let handle = &self.handles[random.below(self.handles.len() as u64) as usize];
        if random.below(4) == 0 {
            return self.swap(session, handle, random).await;
        }
        // For some time the number of keys grows, and then it shrinks.
        let grows = (session.lane().now() / 300_000).is_multiple_of(2);
        let plan: Vec<Action> = (0..=random.below(4)).map(|_| Action::draw(self.keys, grows, random)).collect();
        let only_reads = plan.iter().all(|action| matches!(action, Action::Get(_) | Action::Scan { .. }));
        match if only_reads && self.snapshots { random.below(3) } else { 0 } {
            0 => self.execute(session, handle, &plan).await,
            1 => self.look(session, handle, &plan).await,
            _ => {
                // A transaction for each: what the two tables have must agree at each time.
                for action in &plan {
                    let mut agrees = true;
                    let look = async |tx: &mut Transaction<'_, '_>| {
                        agrees = act(handle, tx, *action, 0, false).await?;
                        Ok(())
                    };
                    let options = TransactionOptions::default().attempts(super::case::ATTEMPTS);
                    self.past.read(session, random, options, look).await?;
                    self.wrong.set(self.wrong.get() + u64::from(!agrees));
                }
                Ok(())
            }
        }
    }

    /// Reads in a fresh snapshot.
    async fn look(&self, session: &mut Session, handle: &Handle, plan: &[Action]) -> Result<(), Error> {
        let options = TransactionOptions::default().attempts(super::case::ATTEMPTS).snapshot(true);
        let run = session.transact_with(options, async |tx| {
            let mut agrees = true;
            for action in plan {
                agrees &= act(handle, tx, *action, 0, self.cancels).await?;
            }
            Ok(agrees)
        });
        self.wrong.set(self.wrong.get() + u64::from(!run.await?));
        Ok(())
    }

    /// Reads everything, through handles that remember much and handles that remember little.
    pub(crate) async fn read_all(&self, session: &mut Session) -> Result<(), Error> {
        let all = Action::Scan { from: Bound::Unbounded, to: Bound::Unbounded, limit: usize::MAX, back: false };
        for handle in &self.handles {
            self.execute(session, handle, &[all]).await?;
        }
        for number in 0..self.keys {
            self.execute(session, &self.handles[0], &[Action::Get(number)]).await?;
        }
        Ok(())
    }

    /// Looks up, puts or removes one key, and does nothing else.
    async fn swap(&self, session: &mut Session, handle: &Handle, random: &mut Prng) -> Result<(), Error> {
        let (at, number) = (random.below(self.keys), self.next.replace(self.next.get() + 1));
        let options = TransactionOptions::default().attempts(super::case::ATTEMPTS);
        let table = &handle.swapped;
        let is_lookup = random.below(2) == 0;
        let found = if is_lookup {
            session.transact_with(options, async |tx| table.get(tx, key(at)).await).await?
        } else if random.below(3) == 0 {
            let remove = async |tx: &mut Transaction<'_, '_>| table.remove(tx, key(at)).await;
            session.transact_with(options, async |tx| perhaps_twice(self.cancels, tx, remove).await).await?
        } else {
            let put = async |tx: &mut Transaction<'_, '_>| table.put(tx, key(at), swapped(at, number)).await;
            session.transact_with(options, async |tx| perhaps_twice(self.cancels, tx, put).await).await?
        };
        let Some(found) = found else { return Ok(()) };
        let before = found.0[0];
        let is_its_own = found.0 == swapped(at, before).0;
        // An operation that was repeated may have seen itself.
        let is_first = is_lookup || before == number || self.swaps.borrow_mut().insert((at, before), number).is_none();
        self.wrong.set(self.wrong.get() + u64::from(!is_its_own || !is_first));
        Ok(())
    }

    async fn execute(&self, session: &mut Session, handle: &Handle, plan: &[Action]) -> Result<(), Error> {
        let options = TransactionOptions::default().attempts(super::case::ATTEMPTS);
        let run = session.transact_with(options, async |tx| {
            let number = self.next.replace(self.next.get() + 1);
            let mut agrees = true;
            for action in plan {
                agrees &= act(handle, tx, *action, number, self.cancels).await?;
            }
            Ok(agrees)
        });
        // An attempt that aborts may have seen a mixture.
        if !run.await? {
            self.wrong.set(self.wrong.get() + 1);
        }
        Ok(())
    }
}

/// Does the operation on both tables. Returns whether they agree.
async fn act(
    Handle { short, long, .. }: &Handle,
    tx: &mut Transaction<'_, '_>,
    action: Action,
    number: u64,
    cancels: bool,
) -> Result<bool, Error> {
    /// Returns the number of a value, if the value is whole.
    fn of<const N: usize>(value: &Words<N>) -> Option<u64> {
        value.0.iter().all(|word| *word == value.0[0]).then_some(value.0[0])
    }
    let same = |one: Option<Short>, other: Option<Long>| {
        let [one, other] = [one.map(|value| of(&value)), other.map(|value| of(&value))];
        one == other && one != Some(None)
    };
    Ok(match action {
        Action::Get(at) => {
            let one = perhaps_twice(cancels, tx, async |tx| short.get(tx, key(at)).await).await?;
            same(one, long.get(tx, key(at)).await?)
        }
        Action::Put(at) => {
            let put = async |tx: &mut Transaction<'_, '_>| short.put(tx, key(at), Words([number; 8])).await;
            let before = perhaps_twice(cancels, tx, put).await?;
            let put = async |tx: &mut Transaction<'_, '_>| long.put(tx, key(at), Words([number; 24])).await;
            same(before, perhaps_twice(cancels, tx, put).await?)
        }
        Action::Remove(at) => {
            let before = perhaps_twice(cancels, tx, async |tx| short.remove(tx, key(at)).await).await?;
            same(before, perhaps_twice(cancels, tx, async |tx| long.remove(tx, key(at)).await).await?)
        }
        Action::Scan { from, to, limit, back } => {
            let range = (from.map(key), to.map(key));
            let (one, other) = if back {
                (short.scan_back(tx, range, limit).await?, long.scan_back(tx, range, limit).await?)
            } else {
                (short.scan(tx, range, limit).await?, long.scan(tx, range, limit).await?)
            };
            let pairs = one.iter().zip(&other);
            one.len() == other.len()
                && pairs.into_iter().all(|(one, other)| one.0 == other.0 && same(Some(one.1), Some(other.1)))
        }
    })
}
