//! YCSB, the Yahoo! Cloud Serving Benchmark (Cooper et al., SoCC 2010): reads, updates, inserts and
//! read-modify-writes of single records, and scans. Most operations concern a few hot records. The
//! table is a hash table or an ordered table.
//!
//! | workload | operations                         | records                |
//! | -------- | ---------------------------------- | ---------------------- |
//! | a        | 50 % read, 50 % update             | Zipf                   |
//! | b        | 95 % read, 5 % update              | Zipf                   |
//! | c        | read                               | Zipf                   |
//! | d        | 95 % read, 5 % insert              | latest                 |
//! | e        | 95 % scan, 5 % insert              | Zipf                   |
//! | f        | 50 % read, 50 % read-modify-write  | Zipf                   |
//!
//! | operation         | round trips (`drtm-r`, `ford`) |
//! | ----------------- | -----------------------------: |
//! | read              | 1, 1                           |
//! | update            | 3, 2                           |
//! | read-modify-write | 3, 2                           |
//! | insert            | 3, 3 or 4                      |
//! | scan              | 2 or 3                         |
//!
//! In an ordered table, values of 1000 bytes are out of line. An insert then concerns two records,
//! the value and the leaf of its key. A scan of 1 to 100 keys takes a round trip for their values.
//! The other operations are as in a hash table, except for splits, and for keys whose leaf the
//! client does not remember. Records are ordered by their keys or by a hash of their keys
//! ([`InsertOrder`]). A scan takes the records that come next in that order.
//!
//! A transaction has one operation, or several on different records. Its type is the type of its
//! operations, or *mixed*. YCSB updates one of ten fields of 100 bytes. Here an update replaces the
//! value as a whole. An update fetches the record nevertheless, because it needs the lock and the
//! version. So it costs what a read-modify-write costs, and can count itself in the value.

pub mod analytic;
mod audit;
mod draw;
mod order;
mod row;

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use remora::admin::Inspection;
use remora::{
    Cluster, Design, Error, Intent, OpenError, Ordered, OrderedOptions, Session, Slot, Table, TableOptions,
    Transaction, TransactionOptions,
};
use remora_fabric::{Outlined, outline, splitmix};

use crate::guestbook::{self, LEDGER_WORDS, Ledger, PARAMETERS};
use crate::report::Invariant;
use crate::sizing::{self, Setting, TableSize};
use crate::{After, Prng, Workload, glance, glance_range};
pub use draw::{Distribution, Kind, Mix, Zipf};
use draw::{Draw, INSERTED, Keys};
pub use order::InsertOrder;
pub use row::Row;

/// The workload's own abort: an insert that was given up has left a gap in the keys. It has no
/// size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap;

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record is not there, because its insert was given up; or is there already, as it comes without transactions")
    }
}

impl StdError for Gap {}

/// What committed transactions have done, in sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// The number of values replaced.
    pub changed: u64,
    /// The number of records inserted.
    pub inserted: u64,
    /// The number of values that a transaction read, committed or not, and that were a mixture of
    /// several values, or belonged to another key.
    pub mixed: u64,
    /// The number of loaded records that a scan should have found and did not find.
    pub missed: u64,
}

impl Ledger for Done {
    fn to_words(&self) -> [i64; LEDGER_WORDS] {
        [self.changed, self.inserted, self.mixed, self.missed].map(|count| count as i64)
    }

    fn from_words(words: [i64; LEDGER_WORDS]) -> Done {
        let [changed, inserted, mixed, missed] = words.map(|count| count as u64);
        Done { changed, inserted, mixed, missed }
    }
}

/// The size of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// The number of records that are loaded, at least one.
    pub records: u64,
    /// The number of inserted records that there is room for.
    pub inserts: u64,
    /// The bytes of a value, one of [`VALUE_BYTES`].
    pub value_bytes: usize,
    /// What there is to say of an ordered table. `None` for a hash table.
    pub ordered: Option<OrderedSize>,
}

/// How the records of an ordered table lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedSize {
    /// Where its nodes lie.
    pub design: Design,
    /// The order of its records.
    pub order: InsertOrder,
    /// Entries of a leaf whose keys come first ([`OrderedOptions::keys_first`]).
    pub keys_first: Option<u16>,
}

impl OrderedSize {
    fn options(self, rows: u64) -> OrderedOptions {
        let mut options = OrderedOptions::for_rows(rows).design(self.design);
        options.keys_first = self.keys_first;
        options
    }
}

/// The sizes of values: of one line with the header, of a few lines, and YCSB's ten fields of 100
/// bytes.
pub const VALUE_BYTES: [usize; 3] = [32, 128, 1000];

/// A table of each size of values.
#[derive(Clone, Debug)]
enum Sized {
    Small(Rows<4>),
    Medium(Rows<16>),
    Large(Rows<125>),
}

/// A table of either kind.
#[derive(Clone, Debug)]
enum Rows<const WORDS: usize> {
    Hash(Table<u64, Row<WORDS>>),
    Ordered(Tree<WORDS>),
}

/// An ordered table. Its keys are the [places](InsertOrder::place) of records.
#[derive(Clone, Debug)]
struct Tree<const WORDS: usize> {
    table: Ordered<u64, Row<WORDS>>,
    order: InsertOrder,
}

/// Evaluates `$what` with the table of any value size as `$name`.
macro_rules! each_size {
    ($table:expr, $name:ident => $what:expr) => {
        match $table {
            $crate::ycsb::Sized::Small($name) => $what,
            $crate::ycsb::Sized::Medium($name) => $what,
            $crate::ycsb::Sized::Large($name) => $what,
        }
    };
}
use each_size;

impl Sized {
    /// Returns the table of values of `value_bytes` bytes, which `opening` makes or finds.
    fn of(value_bytes: usize, cluster: &Cluster, opening: impl Opening) -> Result<Sized, OpenError> {
        Ok(match value_bytes {
            32 => Sized::Small(opening.open(cluster)?),
            128 => Sized::Medium(opening.open(cluster)?),
            _ => Sized::Large(opening.open(cluster)?),
        })
    }
}

/// The way in which a table is made or found.
trait Opening {
    fn open<const WORDS: usize>(self, cluster: &Cluster) -> Result<Rows<WORDS>, OpenError>;
}

/// The table that another client has loaded.
struct Loaded<'s>(&'s Size);

impl Opening for Loaded<'_> {
    fn open<const WORDS: usize>(self, cluster: &Cluster) -> Result<Rows<WORDS>, OpenError> {
        Ok(match self.0.ordered {
            Some(OrderedSize { order, .. }) => Rows::Ordered(Tree { table: cluster.open_ordered(TABLE)?, order }),
            None => Rows::Hash(cluster.open_table(TABLE)?),
        })
    }
}

impl Opening for &Size {
    fn open<const WORDS: usize>(self, cluster: &Cluster) -> Result<Rows<WORDS>, OpenError> {
        let row = |key| Row::new(key, 0, 0);
        if let Some(ordered) = self.ordered {
            let (options, order) = (ordered.options(self.rows()).grows(false), ordered.order);
            let mut places: Vec<(u64, u64)> = (0..self.records).map(|key| (order.place(key), key)).collect();
            places.sort_unstable();
            let rows = places.into_iter().map(|(place, key)| (place, row(key)));
            return Ok(Rows::Ordered(Tree { table: cluster.load_ordered(TABLE, options, rows)?, order }));
        }
        let table = cluster.create_table(TABLE, TableOptions::for_rows(self.rows()).grows(false))?;
        cluster.load(&table, (0..self.records).map(|key| (key, row(key))))?;
        Ok(Rows::Hash(table))
    }
}

impl<const WORDS: usize> Rows<WORDS> {
    /// Returns the state of the whole table from outside. If it should be a tree, also returns what
    /// is wrong with the tree.
    fn inspect(
        &self,
        cluster: &Cluster,
        mut look: impl FnMut(&Row<WORDS>),
    ) -> Result<(Vec<Inspection>, Option<String>), Error> {
        Ok(match self {
            Rows::Hash(table) => (vec![cluster.inspect(table, look)?], None),
            Rows::Ordered(Tree { table, .. }) => {
                let (tables, tree) = cluster.inspect_ordered(table, |_, row| look(row))?;
                (tables, tree.fault)
            }
        })
    }
}

impl Size {
    fn rows(&self) -> u64 {
        self.records.saturating_add(self.inserts)
    }
}

const TABLE: &str = "usertable";
/// A bit of the parameter that describes the table. The parameter has its kind in 8 bits and its
/// node in 16. This bit is set if records are hashed.
const HASHED: u64 = 1 << 24;
/// Where the parameters of a run have the entries of a leaf whose keys come first.
const KEYS_FIRST_SHIFT: u32 = 32;

/// The largest number of records that a scan asks for. Their number is drawn evenly from 1 on.
pub const SCAN_MAX: u64 = 100;
/// The largest number of operations of a transaction. Its log entry has room for that many of the
/// largest values.
pub const OPERATIONS_MAX: usize = 16;

/// An operation that has been drawn.
#[derive(Clone, Copy)]
struct Operation {
    kind: Kind,
    /// The key. For an insert it is the insert's number, from which its client makes the key.
    key: u64,
    stamp: u64,
}

impl Operation {
    fn intent(&self) -> Intent {
        match self.kind {
            Kind::Read | Kind::Scan => Intent::Read,
            Kind::Update | Kind::ReadModifyWrite => Intent::Update,
            Kind::Insert => Intent::Insert,
        }
    }
}

/// The impossible results that the attempts of a transaction have seen: see [`Done`].
#[derive(Default)]
struct Impossible {
    mixed: Cell<u64>,
    missed: Cell<u64>,
}

impl Impossible {
    #[inline]
    fn look<const WORDS: usize>(&self, row: &Row<WORDS>, is_of_its_key: bool) {
        self.mixed.set(self.mixed.get() + u64::from(!row.is_whole() || !is_of_its_key));
    }
}

/// A transaction that has been drawn. All its attempts have the same operations.
struct Plan {
    operations: [Operation; OPERATIONS_MAX],
    count: usize,
}

impl Plan {
    fn operations(&self) -> &[Operation] {
        &self.operations[..self.count]
    }

    fn of(&self, kinds: &[Kind]) -> u64 {
        self.operations().iter().filter(|one| kinds.contains(&one.kind)).count() as u64
    }

    /// Returns the index of its type's name.
    fn label(&self) -> u16 {
        let first = self.operations[0].kind;
        let label = if self.of(&[first]) == self.count as u64 { first as usize } else { Kind::ALL.len() };
        label as u16
    }
}

/// The table, with the operations on it: see the [module](self).
#[derive(Clone, Debug)]
pub struct Ycsb {
    table: Sized,
    size: Size,
    keys: Arc<Keys>,
    mix: Mix,
    draw: Draw,
    attempts: u32,
    /// Whether transactions that only read read snapshots.
    snapshots: bool,
    /// Whether all operations of a transaction are of one kind.
    one_kind: bool,
    /// Whether the protocol is serializable. Without transactions, a record may seem present or
    /// absent.
    serializable: bool,
}

impl Ycsb {
    /// Default number of records.
    pub const RECORDS: u64 = 100_000;

    /// Returns this workload for clients that remember nothing about where keys of an ordered table
    /// are.
    #[must_use]
    pub fn without_memory(mut self) -> Ycsb {
        each_size!(&mut self.table, rows => {
            if let Rows::Ordered(ordered) = rows {
                ordered.table = ordered.table.without_memory();
            }
        });
        self
    }

    /// Returns this workload for clients that keep the places of keys of an ordered table in a
    /// learned cache.
    #[must_use]
    pub fn learned(mut self) -> Ycsb {
        each_size!(&mut self.table, rows => {
            if let Rows::Ordered(ordered) = rows {
                ordered.table = ordered.table.learned();
            }
        });
        self
    }

    /// Creates the table and loads it. The workload only reads, and all records alike, until
    /// [`Ycsb::with_mix`].
    pub fn load(cluster: &Cluster, size: Size) -> Result<Ycsb, OpenError> {
        assert!(size.records > 0 && VALUE_BYTES.contains(&size.value_bytes), "{size:?}");
        Ok(Ycsb::of(cluster, Sized::of(size.value_bytes, cluster, &size)?, size))
    }

    fn of(cluster: &Cluster, table: Sized, size: Size) -> Ycsb {
        let (keys, draw) = (Arc::new(Keys::new(size.records)), Draw::Uniform);
        let (read, other, distribution) = (Kind::Read, Kind::Update, Distribution::Uniform);
        let mix = Mix { read, read_share: 1.0, other, distribution, operations: 1 };
        let (attempts, serializable) = (TransactionOptions::default().attempts, cluster.protocol().is_serializable());
        Ycsb { table, size, keys, mix, draw, attempts, snapshots: false, one_kind: false, serializable }
    }

    /// Returns this workload with another mix of transactions.
    #[must_use]
    pub fn with_mix(self, mix: Mix) -> Ycsb {
        let most = OPERATIONS_MAX.min(usize::try_from(self.size.records).unwrap_or(usize::MAX));
        assert!((1..=most).contains(&mix.operations), "a transaction's records are different ones");
        assert!(mix.read != Kind::Scan || self.size.ordered.is_some(), "a hash table has no ranges");
        Ycsb { mix, draw: Draw::new(mix.distribution, self.size.records), ..self }
    }

    /// Returns this workload with snapshots, or without, for transactions that only read.
    #[must_use]
    pub fn with_snapshots(self, snapshots: bool) -> Ycsb {
        Ycsb { snapshots, ..self }
    }

    /// Returns this workload with transactions whose operations are all of one kind, or not.
    #[must_use]
    pub fn with_one_kind(self, one_kind: bool) -> Ycsb {
        Ycsb { one_kind, ..self }
    }

    /// Returns this workload with transactions that are given up after `attempts` attempts.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> Ycsb {
        Ycsb { attempts, ..self }
    }

    /// Returns the size of the table.
    #[must_use]
    pub fn size(&self) -> &Size {
        &self.size
    }

    /// Returns the number of records that were loaded.
    fn records(&self) -> u64 {
        self.keys.records()
    }

    /// Returns the bytes that each memory node needs for a table of this size.
    #[must_use]
    pub fn node_bytes(size: &Size, setting: &Setting) -> u64 {
        fn tables<const WORDS: usize>(size: &Size) -> Vec<TableSize> {
            match size.ordered {
                Some(ordered) => TableSize::of_ordered::<u64, Row<WORDS>>(ordered.options(size.rows())),
                None => vec![TableSize::of::<u64, Row<WORDS>>(size.rows())],
            }
        }
        let tables = match size.value_bytes {
            32 => tables::<4>(size),
            128 => tables::<16>(size),
            _ => tables::<125>(size),
        };
        let memory_nodes = match size.ordered {
            // One node may have all of the table.
            Some(OrderedSize { design: Design::Hybrid(_) | Design::Coarse(_), .. }) => 1,
            _ => setting.memory_nodes,
        };
        sizing::node_bytes(&tables, &Setting { memory_nodes, ..*setting })
    }

    /// Draws a transaction, whose operations have kinds that `kind` draws.
    fn plan(&self, random: &mut Prng, mut kind: impl FnMut(&mut Prng) -> Kind) -> Plan {
        let mut plan =
            Plan { operations: [Operation { kind: Kind::Read, key: 0, stamp: 0 }; OPERATIONS_MAX], count: 0 };
        for _ in 0..self.mix.operations {
            let kind = kind(random);
            let key = if kind == Kind::Insert { self.keys.begin() } else { self.draw_other(&plan, random) };
            plan.operations[plan.count] = Operation { kind, key, stamp: random.next_u64() };
            plan.count += 1;
        }
        plan
    }

    /// Draws the key of a record that the transaction does not have yet.
    fn draw_other(&self, plan: &Plan, random: &mut Prng) -> u64 {
        // The loop is bounded: among few records, only one might ever be drawn.
        const DRAWS: usize = 64;
        let is_new = |key: &u64| plan.operations().iter().all(|one| one.key != *key);
        let drawn = (0..DRAWS).map(|_| self.draw.draw(&self.keys, random)).find(is_new);
        drawn.or_else(|| (0..self.records()).find(is_new)).unwrap_or(0)
    }

    /// Runs one transaction, all of whose operations are of one kind, and updates the ledger.
    pub async fn run(
        &self,
        session: &mut Session,
        kind: Kind,
        random: &mut Prng,
        ledger: &mut Done,
    ) -> Result<(), Error> {
        let plan = self.plan(random, |_| kind);
        pin!(self.execute(session, &plan, ledger)).await
    }

    #[inline(never)]
    fn execute(
        &self,
        session: &mut Session,
        plan: &Plan,
        ledger: &mut Done,
    ) -> Outlined<impl Future<Output = Result<(), Error>>> {
        outline(async move {
            let only_reads = plan.operations().iter().all(|one| matches!(one.kind, Kind::Read | Kind::Scan));
            let options = TransactionOptions::default().label(plan.label()).attempts(self.attempts);
            let options = options.snapshot(self.snapshots && only_reads);
            // What an attempt reads must be whole, even if the attempt does not commit.
            let seen = Impossible::default();
            let operations = plan.operations();
            let result = each_size!(&self.table, rows => match rows {
                Rows::Hash(table) => {
                    session.transact_with(options, async |tx| self.apply(table, tx, operations, &seen).await).await
                }
                Rows::Ordered(ordered) => {
                    session.transact_with(options, async |tx| self.apply_in_order(ordered, tx, operations, &seen).await).await
                }
            });
            let inserts = plan.operations().iter().filter(|one| one.kind == Kind::Insert);
            inserts.for_each(|one| self.keys.ended(one.key));
            ledger.mixed += seen.mixed.get();
            ledger.missed += seen.missed.get();
            result?;
            ledger.changed += plan.of(&[Kind::Update, Kind::ReadModifyWrite]);
            ledger.inserted += plan.of(&[Kind::Insert]);
            Ok(())
        })
    }

    async fn apply<const WORDS: usize>(
        &self,
        table: &Table<u64, Row<WORDS>>,
        tx: &mut Transaction<'_, '_>,
        operations: &[Operation],
        seen: &Impossible,
    ) -> Result<(), Error> {
        let mut slots: [Option<Slot<Row<WORDS>>>; OPERATIONS_MAX] = [None; OPERATIONS_MAX];
        for (slot, one) in slots.iter_mut().zip(operations) {
            *slot = Some(tx.want_for(table, self.key(one, tx.client()), one.intent()));
        }
        tx.fetch().await?;
        for (slot, one) in slots.iter().flatten().zip(operations) {
            let (key, stamp) = (self.key(one, tx.client()), one.stamp);
            let expected = |error| self.expected(error, key);
            match one.kind {
                Kind::Read => {
                    let row = slot.require(tx).map_err(expected)?;
                    seen.look(row, row.key() == key);
                }
                Kind::Scan => {} // hash tables have no scans
                Kind::Update => {
                    let row = slot.get_mut(tx).map_err(expected)?;
                    *row = Row::new(key, row.count().wrapping_add(1), stamp);
                }
                Kind::ReadModifyWrite => {
                    let row = slot.get_mut(tx).map_err(expected)?;
                    seen.look(row, row.key() == key);
                    *row = Row::new(key, row.count().wrapping_add(1), splitmix(row.stamp() ^ stamp));
                }
                Kind::Insert => slot.insert(tx, Row::new(key, 0, stamp)).map_err(expected)?,
            }
        }
        Ok(())
    }

    async fn apply_in_order<const WORDS: usize>(
        &self,
        Tree { table, order }: &Tree<WORDS>,
        tx: &mut Transaction<'_, '_>,
        operations: &[Operation],
        seen: &Impossible,
    ) -> Result<(), Error> {
        let owner = tx.client();
        for one in operations.iter().filter(|one| one.kind != Kind::Scan) {
            table.prefetch(tx, order.place(self.key(one, owner)), one.intent());
        }
        tx.fetch().await?;
        for one in operations {
            let (key, stamp) = (self.key(one, owner), one.stamp);
            let place = order.place(key);
            let expected = |error| self.expected(error, key);
            match one.kind {
                Kind::Insert => table.insert(tx, place, Row::new(key, 0, stamp)).await.map_err(expected)?,
                Kind::Scan => {
                    let length = 1 + stamp % SCAN_MAX;
                    let found = table.scan(tx, place.., length as usize).await.map_err(expected)?;
                    found.iter().for_each(|(place, row)| seen.look(row, order.place(row.key()) == *place));
                    // Loaded records are never deleted. Which of them come next is known if they
                    // are not hashed.
                    let known = if *order == InsertOrder::Hashed { 1 } else { length };
                    let loaded = key..self.records().min(key.saturating_add(known)).max(key);
                    let is_there = |((place, _), key): &(&(u64, _), u64)| *place == order.place(*key);
                    let there = found.iter().zip(loaded.clone()).filter(is_there).count();
                    let unsorted = found.windows(2).filter(|two| two[0].0 >= two[1].0).count();
                    seen.missed.set(seen.missed.get() + (loaded.end - loaded.start) - there as u64 + unsorted as u64);
                }
                Kind::Read | Kind::Update | Kind::ReadModifyWrite => {
                    let row = table.get(tx, place).await.map_err(expected)?;
                    let row = row.ok_or_else(|| expected(table.missing(place)))?;
                    if one.kind != Kind::Update {
                        seen.look(&row, row.key() == key);
                    }
                    let count = row.count().wrapping_add(1);
                    let row = match one.kind {
                        Kind::Read => continue,
                        Kind::Update => Row::new(key, count, stamp),
                        _ => Row::new(key, count, splitmix(row.stamp() ^ stamp)),
                    };
                    table.update(tx, place, row).await.map_err(expected)?;
                }
            }
        }
        Ok(())
    }

    fn key(&self, one: &Operation, client: u32) -> u64 {
        if one.kind == Kind::Insert { self.keys.inserted(one.key, client) } else { one.key }
    }

    /// Converts an error that may happen into the workload's own abort. Any other error ends the
    /// run.
    fn expected(&self, error: Error, key: u64) -> Error {
        match error {
            Error::NotFound(_) if key & INSERTED != 0 => Error::user(Gap),
            Error::NotFound(_) | Error::Exists(_) | Error::Damaged { .. } if !self.serializable => Error::user(Gap),
            error => error,
        }
    }
}

impl Workload for Ycsb {
    type Ledger = Done;

    const NAME: &'static str = "ycsb";

    const TYPES: &'static [&'static str] = &["read", "update", "insert", "read_modify_write", "scan", "mixed"];

    const INVARIANTS: &'static [&'static str] = audit::NAMES;

    fn open(cluster: &Cluster, parameters: &guestbook::Parameters) -> Result<Ycsb, OpenError> {
        let [records, inserts, value_bytes, kind, ..] = *parameters;
        let node = (kind >> 8) as u16;
        let design = match kind & 0xff {
            0 => None,
            1 => Some(Design::Fine),
            2 => Some(Design::Hybrid(node)),
            _ => Some(Design::Coarse(node)),
        };
        let order = if kind & HASHED == 0 { InsertOrder::Ordered } else { InsertOrder::Hashed };
        let keys_first = Some((kind >> KEYS_FIRST_SHIFT) as u16).filter(|entries| *entries > 0);
        let ordered = design.map(|design| OrderedSize { design, order, keys_first });
        let size = Size { records, inserts, value_bytes: value_bytes as usize, ordered };
        Ok(Ycsb::of(cluster, Sized::of(size.value_bytes, cluster, Loaded(&size))?, size))
    }

    fn parameters(&self) -> guestbook::Parameters {
        let mut parameters = [0; PARAMETERS];
        let Size { records, inserts, value_bytes, ordered } = self.size;
        let kind = ordered.map_or(0, |OrderedSize { design, order, keys_first }| {
            let design = match design {
                Design::Fine => 1,
                Design::Hybrid(node) => 2 | u64::from(node) << 8,
                Design::Coarse(node) => 3 | u64::from(node) << 8,
            };
            let order = if order == InsertOrder::Hashed { HASHED } else { 0 };
            design | order | u64::from(keys_first.unwrap_or(0)) << KEYS_FIRST_SHIFT
        });
        parameters[..4].copy_from_slice(&[records, inserts, value_bytes as u64, kind]);
        parameters
    }

    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        const BATCH: u64 = 32;
        const PAGE: usize = 128;
        let records = u128::from(self.records());
        let bound = |part: u64| (records * u128::from(part) / u128::from(parts)) as u64;
        let (first, end) = (bound(part), bound(part + 1));
        for start in (first..end).step_by(BATCH as usize) {
            let batch = start..end.min(start + BATCH);
            each_size!(&self.table, rows => match rows {
                Rows::Hash(table) => {
                    let read = glance(session, async |tx| {
                        batch.clone().for_each(|key| {
                            tx.want(table, key);
                        });
                        tx.fetch().await
                    });
                    read.await?;
                }
                // There may be other records between the loaded ones.
                Rows::Ordered(Tree { table, order }) => {
                    glance_range(session, table, order.places(batch, self.records()), PAGE).await?;
                }
            });
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut Done) -> Result<(), Error> {
        let one = self.one_kind.then(|| self.mix.draw(random));
        let plan = self.plan(random, |random| one.unwrap_or_else(|| self.mix.draw(random)));
        pin!(self.execute(session, &plan, ledger)).await
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, Done>) -> Result<Vec<Invariant>, Error> {
        audit::audit(self, cluster, &after)
    }
}
