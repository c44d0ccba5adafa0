//! YCSB's reads and updates beside an analytic query: scans of the whole table, each in one
//! transaction.
//!
//! | operation | what it does                                                          |
//! | --------- | --------------------------------------------------------------------- |
//! | read      | reads a record                                                        |
//! | transfer  | moves an amount from a record to another one, and counts both changes |
//! | scan      | sums up all records, beside the others, on a worker of its own        |
//!
//! Records are chosen by YCSB's distributions. An update of YCSB is a transfer here, so that the
//! sum of all records stays what it was. So a scan whose sum is another one has seen a state that
//! never was.
//!
//! A scan asks for a few thousand records at a time, goes on behind the last one, and keeps only
//! the sum. If the protocol has snapshots, the scan opens one, and each page is a transaction that
//! reads it. Otherwise the scan is one transaction, which validates what it has read. It keeps
//! every leaf, and reads at most [`SET_MAX`] of them, which bounds the table: see
//! [`Analytic::rows_max`].

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use remora::floors::txn::limits::SET_MAX;
use remora::protocol::Protocol;
use remora::{
    Abort, Cluster, Error, Intent, Limit, OpenError, Ordered, OrderedOptions, Session, Transaction, TransactionOptions,
};
use remora_fabric::{Outlined, outline};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::guestbook::{LEDGER_WORDS, Ledger, PARAMETERS, Parameters};
use crate::report::Invariant;
use crate::scans::{Scanner, Scans};
use crate::sizing::{self, Setting, TableSize};
use crate::statistics::USER;
use crate::ycsb::draw::{Distribution, Draw, Keys};
use crate::{After, Prng, Workload, glance_range, invariants};

const TABLE: &str = "accounts";
/// The first balance of every record.
const BALANCE_AT_FIRST: i64 = 1_000;
/// The largest amount of a transfer.
const AMOUNT_MAX: u64 = 100;
/// Records that a scan asks for at a time: those of about the leaves that one round has room for.
const PAGE: usize = 2_000;
/// The number of attempts after which a scan is given up. Under a protocol without older versions,
/// it may restart for ever.
const SCAN_ATTEMPTS: u32 = 16;
/// How long a scan is tried.
const SCAN_PATIENCE: Duration = Duration::from_secs(60);

/// A record. Its key is its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Entry {
    /// The balance, which may be negative.
    pub balance: i64,
    /// The number of changes since it was loaded.
    pub changes: u64,
}

/// The workload's own abort: the time for a scan is over. It has no size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOff;

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time for the scan is over")
    }
}

impl StdError for CutOff {}

/// What committed transactions have done, in sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The number of transfers.
    pub transfers: u64,
    /// The number of complete scans.
    pub scans: u64,
    /// The number of complete scans whose sum or number of records was wrong.
    pub torn: u64,
}

impl Ledger for Moved {
    fn to_words(&self) -> [i64; LEDGER_WORDS] {
        [self.transfers as i64, self.scans as i64, self.torn as i64, 0]
    }

    fn from_words([transfers, scans, torn, _]: [i64; LEDGER_WORDS]) -> Moved {
        Moved { transfers: transfers as u64, scans: scans as u64, torn: torn as u64 }
    }
}

/// The kinds of transactions of the mix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Transfer,
}

/// The size of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnalyticSize {
    /// The number of records, at least two.
    pub records: u64,
    /// Entries of a leaf whose keys come first ([`OrderedOptions::keys_first`]).
    pub keys_first: Option<u16>,
}

impl AnalyticSize {
    fn options(self) -> OrderedOptions {
        let mut options = OrderedOptions::for_rows(self.records).grows(false);
        options.keys_first = self.keys_first;
        options
    }
}

/// The table, with the transactions on it: see the [module](self).
#[derive(Clone, Debug)]
pub struct Analytic {
    table: Ordered<u64, Entry>,
    size: AnalyticSize,
    keys: Arc<Keys>,
    draw: Draw,
    read_share: f64,
    scanner: Scanner,
    protocol: Protocol,
}

impl Analytic {
    /// Default number of records, if the protocol has snapshots.
    pub const RECORDS: u64 = 1_000_000;
    /// Default number of records, if it has none. A scan of them is below the limit of one
    /// transaction.
    pub const RECORDS_AT_ONCE: u64 = 100_000;
    /// Default share of the transactions that read.
    pub const READ_SHARE: f64 = 0.5;
    /// The smallest number of records. A transfer needs two.
    pub const RECORDS_MIN: u64 = 2;

    /// Returns about how many records a table can have whose leaves one transaction can read, as
    /// long as they are as full as loading leaves them: to seven tenths.
    #[must_use]
    pub fn rows_max(size: AnalyticSize) -> u64 {
        // A table is created with room for leaves that are half full.
        let rows = 1_000_000;
        let options = AnalyticSize { records: rows, ..size }.options();
        let leaves = options.tables::<u64, Entry>().get(1).map_or(rows, |(leaves, ..)| *leaves);
        SET_MAX as u64 * 2 * rows * 7 / (10 * leaves.max(1))
    }

    /// Creates the table and loads it. Its transactions choose all records alike, and no scanner
    /// runs, until [`Analytic::with_mix`] and [`Analytic::with_scanner`].
    pub fn load(cluster: &Cluster, size: AnalyticSize) -> Result<Analytic, OpenError> {
        assert!(size.records >= Analytic::RECORDS_MIN, "a transfer needs two records");
        let entry = |key| (key, Entry { balance: BALANCE_AT_FIRST, changes: 0 });
        let table = cluster.load_ordered(TABLE, size.options(), (0..size.records).map(entry))?;
        Ok(Analytic::of(cluster, table, size))
    }

    fn of(cluster: &Cluster, table: Ordered<u64, Entry>, size: AnalyticSize) -> Analytic {
        let (keys, draw) = (Arc::new(Keys::new(size.records)), Draw::Uniform);
        let (scanner, protocol) = (Scanner::Never, cluster.protocol());
        Analytic { table, size, keys, draw, read_share: Analytic::READ_SHARE, scanner, protocol }
    }

    /// Returns this workload with another mix: which share of the transactions read, and how
    /// records are chosen.
    #[must_use]
    pub fn with_mix(self, read_share: f64, distribution: Distribution) -> Analytic {
        Analytic { read_share, draw: Draw::new(distribution, self.size.records), ..self }
    }

    /// Returns this workload with a scanner, or without.
    #[must_use]
    pub fn with_scanner(self, scanner: Scanner) -> Analytic {
        Analytic { scanner, ..self }
    }

    /// Returns the size of the table.
    #[must_use]
    pub fn size(&self) -> &AnalyticSize {
        &self.size
    }

    /// Returns the bytes that each memory node needs for a table of this size.
    #[must_use]
    pub fn node_bytes(size: AnalyticSize, setting: &Setting) -> u64 {
        // The scanner of each process is a worker, too.
        let setting = Setting { workers: setting.workers + 1, ..*setting };
        sizing::node_bytes(&TableSize::of_ordered::<u64, Entry>(size.options()), &setting)
    }

    /// Returns the sum of all records.
    fn total(&self) -> i64 {
        (self.size.records as i64).wrapping_mul(BALANCE_AT_FIRST)
    }

    /// Draws a record that is not this one.
    fn draw_other(&self, one: u64, random: &mut Prng) -> u64 {
        // The loop is bounded: among few records, only one might ever be drawn.
        const DRAWS: usize = 64;
        let other = (0..DRAWS).map(|_| self.draw.draw(&self.keys, random)).find(|other| *other != one);
        other.unwrap_or((one + 1) % self.size.records)
    }

    async fn read(&self, tx: &mut Transaction<'_, '_>, key: u64) -> Result<(), Error> {
        std::hint::black_box(self.table.require(tx, key).await?);
        Ok(())
    }

    async fn transfer(&self, tx: &mut Transaction<'_, '_>, keys: [u64; 2], amount: i64) -> Result<(), Error> {
        keys.into_iter().for_each(|key| self.table.prefetch(tx, key, Intent::Update));
        tx.fetch().await?;
        for (key, amount) in keys.into_iter().zip([-amount, amount]) {
            let mut entry = self.table.get_mut(tx, key).await?;
            let Entry { balance, changes } = *entry;
            *entry = Entry { balance: balance.wrapping_add(amount), changes: changes.wrapping_add(1) };
        }
        Ok(())
    }

    /// Scans the table in an open snapshot, a page in each transaction. Returns the number of
    /// records, and their sum. Fails with [`CutOff`] if the scan is not to go on.
    async fn scan_snapshot(
        &self,
        session: &mut Session,
        scans: &mut Scans,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(u64, i64), Error> {
        let options = TransactionOptions::default().patience(SCAN_PATIENCE);
        let snapshot = session.open_snapshot().await?;
        let (mut from, mut rows, mut sum) = (Bound::Unbounded, 0, 0_i64);
        loop {
            if !goes_on() {
                return Err(Error::user(CutOff));
            }
            let range = (from, Bound::Unbounded);
            let read = async |tx: &mut Transaction<'_, '_>| self.table.scan(tx, range, PAGE).await;
            let page = session.transact_with(options.at(snapshot), read).await?;
            sum = page.iter().fold(sum, |sum, (_, entry)| sum.wrapping_add(entry.balance));
            rows += page.len() as u64;
            scans.rows_read += page.len() as u64;
            scans.furthest = rows.max(scans.furthest);
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = Bound::Excluded(*last),
                _ => return Ok((rows, sum)),
            }
        }
    }

    /// Scans as [`Analytic::scan_snapshot`] does. If the snapshot is over or too old, opens another
    /// one, and begins again.
    async fn scan_snapshots(
        &self,
        session: &mut Session,
        scans: &mut Scans,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(u64, i64), Error> {
        let began = session.lane().now();
        for _ in 0..SCAN_ATTEMPTS {
            match self.scan_snapshot(session, scans, goes_on).await {
                Ok(found) => {
                    scans.completed(session.lane().now() - began);
                    return Ok(found);
                }
                Err(error) => match error.limit() {
                    Some(Limit::SnapshotTooOld) => scans.restarted("snapshot_too_old"),
                    Some(Limit::SnapshotOver) => scans.restarted("snapshot_over"),
                    _ => {
                        if matches!(error, Error::User(_)) {
                            scans.restarted(USER);
                        }
                        return Err(error);
                    }
                },
            }
        }
        Err(Abort::Later.into())
    }

    #[inline(never)]
    fn run(
        &self,
        session: &mut Session,
        random: &mut Prng,
        ledger: &mut Moved,
    ) -> Outlined<impl Future<Output = Result<(), Error>>> {
        outline(async move {
            let kind = if random.chance(self.read_share) { Kind::Read } else { Kind::Transfer };
            let one = self.draw.draw(&self.keys, random);
            let (other, amount) = (self.draw_other(one, random), 1 + random.below(AMOUNT_MAX) as i64);
            let options = TransactionOptions::default().label(kind as u16);
            let transaction = session.transact_with(options, async |tx| match kind {
                Kind::Read => self.read(tx, one).await,
                Kind::Transfer => self.transfer(tx, [one, other], amount).await,
            });
            match transaction.await {
                Err(Error::NotFound(_) | Error::Damaged { .. }) if !self.protocol.is_serializable() => {
                    return Err(Error::user(super::Gap));
                }
                ran => ran?,
            }
            ledger.transfers += u64::from(kind == Kind::Transfer);
            Ok(())
        })
    }
}

impl Workload for Analytic {
    type Ledger = Moved;

    const NAME: &'static str = "ycsb-analytic";

    const TYPES: &'static [&'static str] = &["read", "transfer"];

    const INVARIANTS: &'static [&'static str] =
        &[SUM, CHANGES, ENTRIES, SCANS, invariants::REPLICAS, invariants::LOCKS, invariants::LOG];

    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<Analytic, OpenError> {
        let [records, keys_first, ..] = *parameters;
        let keys_first = Some(keys_first as u16).filter(|entries| *entries > 0);
        Ok(Analytic::of(cluster, cluster.open_ordered(TABLE)?, AnalyticSize { records, keys_first }))
    }

    fn parameters(&self) -> Parameters {
        let mut parameters = [0; PARAMETERS];
        parameters[..2].copy_from_slice(&[self.size.records, self.size.keys_first.unwrap_or(0).into()]);
        parameters
    }

    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        let records = u128::from(self.size.records);
        let bound = |part: u64| (records * u128::from(part) / u128::from(parts)) as u64;
        let (first, end) = (bound(part), bound(part + 1));
        if first == end {
            return Ok(());
        }
        glance_range(session, &self.table, first..=end - 1, PAGE).await
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut Moved) -> Result<(), Error> {
        pin!(self.run(session, random, ledger)).await
    }

    fn scanner(&self) -> Scanner {
        self.scanner
    }

    fn scanned_rows(&self) -> u64 {
        self.size.records
    }

    async fn scan(
        &self,
        session: &mut Session,
        scans: &mut Scans,
        ledger: &mut Moved,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, Error> {
        if self.protocol.has_open_snapshots() {
            let found = pin!(self.scan_snapshots(session, scans, goes_on)).await?;
            let is_whole = found == (self.size.records, self.total());
            ledger.scans += 1;
            ledger.torn += u64::from(!is_whole);
            return Ok(is_whole);
        }
        let options = TransactionOptions::default().attempts(SCAN_ATTEMPTS).patience(SCAN_PATIENCE);
        let (read, furthest) = (Cell::new(0), Cell::new(scans.furthest));
        let transaction = session.transact_with(options, async |tx| {
            let (mut from, mut rows, mut sum) = (Bound::Unbounded, 0, 0_i64);
            loop {
                if !goes_on() {
                    return Err(Error::user(CutOff));
                }
                let page = self.table.scan(tx, (from, Bound::Unbounded), PAGE).await?;
                sum = page.iter().fold(sum, |sum, (_, entry)| sum.wrapping_add(entry.balance));
                rows += page.len() as u64;
                read.set(read.get() + page.len() as u64);
                furthest.set(rows.max(furthest.get()));
                match page.last() {
                    Some((last, _)) if page.len() == PAGE => from = Bound::Excluded(*last),
                    _ => return Ok((rows, sum)),
                }
            }
        });
        let scanned = transaction.await;
        scans.rows_read += read.get();
        scans.furthest = furthest.get();
        let is_whole = scanned? == (self.size.records, self.total());
        ledger.scans += 1;
        ledger.torn += u64::from(!is_whole);
        Ok(is_whole)
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, Moved>) -> Result<Vec<Invariant>, Error> {
        let (mut rows, mut sum, mut changes, mut strangers) = (0_u64, 0_i64, 0_u64, 0_u64);
        let (tables, tree) = cluster.inspect_ordered(&self.table, |key, entry| {
            rows += 1;
            sum = sum.wrapping_add(entry.balance);
            changes = changes.wrapping_add(entry.changes);
            strangers += u64::from(*key >= self.size.records);
        })?;
        let of = |part: fn(&Moved) -> u64| after.ledgers.iter().map(part).sum::<u64>();
        let (records, total) = (self.size.records, self.total());
        let fault = tree.fault.as_ref().map(|fault| format!("; the tree is none: {fault}")).unwrap_or_default();
        let transfers = of(|done| done.transfers);
        let counted = Invariant {
            name: CHANGES,
            holds: Some(changes == 2 * transfers),
            detail: format!("{changes} changes are in the records, two by each of {transfers} transfers"),
        };
        let (scans, torn) = (of(|done| done.scans), of(|done| done.torn));
        let mut all = vec![
            Invariant { name: SUM, holds: Some(sum == total), detail: format!("it is {sum}, and {total} at first") },
            if after.unknown > 0 { invariants::unknown(CHANGES, after.unknown) } else { counted },
            Invariant {
                name: ENTRIES,
                holds: Some(rows == records && strangers == 0 && tree.fault.is_none()),
                detail: format!("{rows} of {records} records, {strangers} should not be there{fault}"),
            },
            Invariant {
                name: SCANS,
                holds: Some(torn == 0),
                detail: format!("{torn} of {scans} complete scans have another sum, or another number of records"),
            },
        ];
        all.extend(invariants::of_tables(&tables, after.settled));
        Ok(invariants::claimed_by(cluster.protocol(), all))
    }
}

const SUM: &str = "the sum of all records stays";
const CHANGES: &str = "changes add up";
const ENTRIES: &str = "every record is there once";
const SCANS: &str = "every scan has seen one state";
