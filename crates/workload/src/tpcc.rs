//! The TPC-C benchmark: the five transactions of a wholesale supplier with warehouses, districts
//! and customers. They run in the standard mix (TPC Benchmark C, revision 5.11), without keying and
//! think times. The results are not audited, and must not be compared with audited ones.
//!
//! | transaction  | share | reads and writes                                                  | round trips (`drtm-r`) |
//! | ------------ | ----: | ----------------------------------------------------------------- | ---------------------: |
//! | new_order    |  45 % | warehouse, customer, n item R, district, n stock U, order, new_order, by_customer, n order_line I | 4, and 1 for a split |
//! | payment      |  43 % | warehouse, district U, history I, (by_name R;) customer U         | 3, by name 5           |
//! | order_status |   4 % | (by_name R;) customer, by_customer R; order, n order_line R       | 3, by name 4           |
//! | delivery     |   4 % | new_order D; order, n order_line U; customer U; ten times         | 5 each                 |
//! | stock_level  |   4 % | district R; 20 n order_line R; as many stock R                    | 5                      |
//!
//! n is 5 to 15. R only reads, U updates, I inserts, D deletes. What is behind a semicolon needs
//! the result of what is before it. Everything else of a transaction is fetched in one round, or in
//! as many rounds as its size needs. 60 % of the customers are looked up by name. Three of four
//! New-Orders split a leaf.
//!
//! ORDER, ORDER-LINE and NEW-ORDER are ordered tables by warehouse, district and order. Two indexes
//! are ordered tables as well: orders by customer, and customers by last and first name. All other
//! tables are hash tables.
//!
//! A leaf has up to 17 order lines, so the lines of an order are in one or two leaves. The leaves
//! are read, locked and logged in place of the lines. New orders are inserted at the end of their
//! district. The leaf there is known beforehand, so an order is named before its number is known.
//! When the tables are loaded, districts share no leaf, and are full up to that end.
//!
//! # Differences from the specification
//!
//! - Terminals are not bound to a warehouse: each transaction draws its own warehouse.
//! - A Delivery is ten transactions, one for each district, as clause 2.7.2 allows. Each of them is
//!   counted, because a log entry has no room for the leaves of all. A Delivery is not queued. A
//!   client looks for a district's oldest order from the last one on that it has delivered itself.
//! - All transactions are strictly serializable, including the Stock-Level, of which clause 3.4
//!   asks less.
//! - By option, totals of payments are split from the rows of warehouses and districts, which
//!   New-Orders read. Clause 1.4 allows tables that are split by columns. See
//!   [`Tpcc::with_split_totals`].
//! - Orders are never removed. So a run needs room for the orders that it makes ([`Room`]), and
//!   ends when there is none.

mod audit;
mod draw;
mod population;
mod rows;
pub mod schema;
mod transactions;

use std::error::Error as StdError;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use remora::protocol::Protocol;
use remora::{Cluster, Error, OpenError, Session, TransactionOptions};
use remora_fabric::{Outlined, outline};

pub use draw::{DeliveryInput, NewOrderInput, OrderStatusInput, PaymentInput, StockLevelInput, Wanted, Who};
pub use transactions::{Ordered, Paid, Status};

use crate::guestbook::{LEDGER_WORDS, Ledger, PARAMETERS, Parameters};
use crate::report::Invariant;
use crate::sizing::{self, Setting};
use crate::{After, Prng, Workload, draw_from, glance_range, touch};
use population::Population;
use schema::{Capacity, Tables};

/// The workload's own abort: there is no item of this number. It has no size, so giving up
/// allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnusedItem;

impl fmt::Display for UnusedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody has this item, as TPC-C expects of a hundredth of the orders")
    }
}

impl StdError for UnusedItem {}

/// The workload's own abort for a protocol without transactions: for example, two orders have been
/// given the same number. For a serializable protocol this is an error that ends the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inconsistent;

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row is not there, or is there already, as it comes without transactions")
    }
}

impl StdError for Inconsistent {}

/// The five transactions of TPC-C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A customer orders items.
    NewOrder,
    /// A customer pays.
    Payment,
    /// A customer asks for the state of the latest order.
    OrderStatus,
    /// The oldest orders of all districts of a warehouse are delivered.
    Delivery,
    /// A district asks how many of the recently ordered items are low in stock.
    StockLevel,
}

impl Kind {
    /// All kinds, with their share of the mix in percent.
    pub const MIX: [(Kind, u64); 5] =
        [(Kind::NewOrder, 45), (Kind::Payment, 43), (Kind::OrderStatus, 4), (Kind::Delivery, 4), (Kind::StockLevel, 4)];

    /// Draws the next kind of the mix.
    #[must_use]
    pub fn draw(random: &mut Prng) -> Kind {
        draw_from(&Kind::MIX, random)
    }

    /// Returns the kind with this name in reports.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        let place = Tpcc::TYPES.iter().position(|known| *known == name)?;
        Some(Kind::MIX[place].0)
    }
}

/// The size of the database: how many rows of each kind there are at the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// The number of warehouses.
    pub warehouses: u16,
    /// The number of districts of each warehouse: 10, or fewer in tests.
    pub districts: u8,
    /// The number of customers of each district, each with one order: 3,000, or fewer in tests.
    pub customers: u16,
    /// The number of these orders that are not delivered, which are the last ones: 900, or fewer in
    /// tests.
    pub undelivered: u16,
    /// The number of items: 100,000, or fewer in tests.
    pub items: u32,
}

impl Scale {
    /// Returns the specification's scale, with `warehouses` warehouses.
    #[must_use]
    pub fn full(warehouses: u16) -> Scale {
        Scale { warehouses, districts: 10, customers: 3_000, undelivered: 900, items: 100_000 }
    }

    /// Returns a small scale, for tests.
    #[must_use]
    pub fn small(warehouses: u16, districts: u8, customers: u16, items: u32) -> Scale {
        Scale { warehouses, districts: districts.min(10), customers, undelivered: customers * 3 / 10, items }
    }

    /// Returns about how many rows are loaded.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let (warehouses, districts) = (u64::from(self.warehouses), u64::from(self.districts()));
        let customers = districts * u64::from(self.customers);
        let of_customers = customers * (10 + 5) + districts * (u64::from(self.undelivered) + 1);
        of_customers + warehouses * (u64::from(self.items) + 1) + u64::from(self.items)
    }

    /// Returns the number of districts of all warehouses.
    fn districts(&self) -> u32 {
        u32::from(self.warehouses) * u32::from(self.districts)
    }

    /// Returns the number of last names.
    fn names(&self) -> u16 {
        self.customers.min(1_000)
    }

    /// Whether the scale follows the specification's rules, and the tables' keys have room for it.
    fn is_allowed(&self) -> bool {
        let counts = [self.warehouses, self.districts.into(), self.customers];
        let some = counts.iter().all(|count| *count > 0) && self.items > 0;
        some && self.districts <= 10 && self.undelivered <= self.customers
    }
}

/// The room for rows that are added to the loaded ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The number of orders.
    pub orders: u64,
    /// The number of payments.
    pub payments: u64,
}

impl Room {
    /// Returns room for `orders` orders, and for the payments that come with them.
    #[must_use]
    pub fn for_orders(orders: u64) -> Room {
        Room { orders, payments: orders.saturating_add(6 * orders.isqrt()) }
    }

    /// Returns room for `transactions` transactions of the mix, with six standard deviations.
    #[must_use]
    pub fn for_transactions(transactions: u64) -> Room {
        let part = |percent: u64| transactions / 100 * percent + 4 * transactions.isqrt() + percent;
        Room { orders: part(45), payments: part(43) }
    }
}

/// What committed transactions have done, in sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// The number of orders made.
    pub orders: u64,
    /// The number of payments.
    pub payments: u64,
    /// The money paid, in cents.
    pub paid: i64,
    /// The number of orders delivered.
    pub delivered: u64,
}

impl Ledger for Done {
    fn to_words(&self) -> [i64; LEDGER_WORDS] {
        [self.orders as i64, self.payments as i64, self.paid, self.delivered as i64]
    }

    fn from_words([orders, payments, paid, delivered]: [i64; LEDGER_WORDS]) -> Done {
        Done { orders: orders as u64, payments: payments as u64, paid, delivered: delivered as u64 }
    }
}

/// The supplier's database: see the [module](self).
#[derive(Clone, Debug)]
pub struct Tpcc {
    tables: Tables,
    scale: Scale,
    room: Room,
    attempts: u32,
    /// Whether Order-Status and Stock-Level read snapshots.
    snapshots: bool,
    /// Whether Payments leave the rows of warehouses and districts alone, and add to their takings.
    split_totals: bool,
    always_distributed: bool,
    only: Option<Kind>,
    serializable: bool,
    /// For each district, the oldest order that may not be delivered, as far as is known. The
    /// search begins there. Orders come and are delivered in the order of their numbers, so no
    /// older undelivered order appears later.
    oldest: Arc<[AtomicU32]>,
}

impl Tpcc {
    /// Creates the tables and loads the population of a seed. `loaded` is called from time to time
    /// with the number of rows loaded since its last call.
    pub fn load(
        cluster: &Cluster,
        scale: Scale,
        room: Room,
        seed: u64,
        mut loaded: impl FnMut(u64),
    ) -> Result<Tpcc, OpenError> {
        assert!(scale.is_allowed(), "{scale:?}");
        let tables = Tables::load(cluster, &Capacity::of(&scale, room), &Population { scale, seed }, &mut loaded)?;
        Ok(Tpcc::of(cluster, tables, scale, room))
    }

    fn of(cluster: &Cluster, tables: Tables, scale: Scale, room: Room) -> Tpcc {
        let attempts = TransactionOptions::default().attempts;
        let serializable = cluster.protocol().is_serializable();
        let oldest = u32::from(scale.customers - scale.undelivered) + 1;
        let oldest = (0..scale.districts()).map(|_| AtomicU32::new(oldest)).collect();
        Tpcc {
            tables,
            scale,
            room,
            attempts,
            snapshots: false,
            split_totals: false,
            always_distributed: false,
            only: None,
            serializable,
            oldest,
        }
    }

    /// Returns the size of the database at the beginning.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Returns the room that the tables had for further rows.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Returns this workload with snapshots, or without, for Order-Status and Stock-Level.
    #[must_use]
    pub fn with_snapshots(self, snapshots: bool) -> Tpcc {
        Tpcc { snapshots, ..self }
    }

    /// Returns this workload with totals of payments that are split from the rows of warehouses and
    /// districts, or not. Processes that differ in it may run beside each other.
    #[must_use]
    pub fn with_split_totals(self, split_totals: bool) -> Tpcc {
        Tpcc { split_totals, ..self }
    }

    /// Returns this workload with transactions that are given up after `attempts` attempts.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> Tpcc {
        Tpcc { attempts, ..self }
    }

    /// Returns this workload with transactions of one kind only. `None` means the mix.
    #[must_use]
    pub fn with_only(self, only: Option<Kind>) -> Tpcc {
        Tpcc { only, ..self }
    }

    /// Returns the bytes that each memory node needs.
    #[must_use]
    pub fn node_bytes(scale: &Scale, room: Room, setting: &Setting, protocol: Protocol) -> u64 {
        sizing::node_bytes_of(&Capacity::of(scale, room).tables(), setting, &[protocol.index()])
    }

    /// Runs one transaction of a kind, and updates the ledger.
    #[inline(never)]
    pub fn run(
        &self,
        session: &mut Session,
        kind: Kind,
        random: &mut Prng,
        ledger: &mut Done,
    ) -> Outlined<impl Future<Output = Result<(), Error>>> {
        outline(async move {
            match self.run_one(session, kind, random, ledger).await {
                Err(Error::NotFound(_) | Error::Exists(_) | Error::Damaged { .. }) if !self.serializable => {
                    Err(Error::user(Inconsistent))
                }
                ran => ran,
            }
        })
    }

    async fn run_one(
        &self,
        session: &mut Session,
        kind: Kind,
        random: &mut Prng,
        ledger: &mut Done,
    ) -> Result<(), Error> {
        let (scale, now) = (&self.scale, session.lane().now());
        match kind {
            Kind::NewOrder => {
                let input = NewOrderInput::draw(scale, self.always_distributed, now, random);
                self.new_order(session, &input).await?;
                ledger.orders += 1;
            }
            Kind::Payment => {
                let input = PaymentInput::draw(scale, now, random);
                self.payment(session, &input).await?;
                ledger.payments += 1;
                ledger.paid += input.amount;
            }
            Kind::OrderStatus => {
                self.order_status(session, &OrderStatusInput::draw(scale, random)).await?;
            }
            Kind::Delivery => {
                let input = DeliveryInput::draw(scale, now, random);
                for d_id in 1..=scale.districts {
                    ledger.delivered += u64::from(self.delivery(session, &input, d_id).await?);
                }
            }
            Kind::StockLevel => {
                self.stock_level(session, &StockLevelInput::draw(scale, random)).await?;
            }
        }
        Ok(())
    }

    fn options(&self, kind: Kind) -> TransactionOptions {
        let only_reads = matches!(kind, Kind::OrderStatus | Kind::StockLevel);
        let options = TransactionOptions::default().label(kind as u16).attempts(self.attempts);
        options.snapshot(self.snapshots && only_reads)
    }

    /// Returns the order from which the search for a district's undelivered orders begins.
    fn oldest(&self, w_id: u16, d_id: u8) -> &AtomicU32 {
        &self.oldest[usize::from(w_id - 1) * usize::from(self.scale.districts) + usize::from(d_id - 1)]
    }

    /// Reads the rows of a district: see [`Workload::warm`].
    async fn warm_district(&self, session: &mut Session, w_id: u16, d_id: u8) -> Result<(), Error> {
        let (customers, tables) = (self.scale.customers, &self.tables);
        const PAGE: usize = 1_000;
        let oldest = self.oldest(w_id, d_id).load(Ordering::Relaxed);
        touch(session, &tables.district, [(w_id, d_id)].into_iter()).await?;
        touch(session, &tables.customer, (1..=customers).map(|c_id| (w_id, d_id, c_id))).await?;
        let names = ((w_id, d_id), 0, [0; 16], 0)..=((w_id, d_id), u16::MAX, [255; 16], u16::MAX);
        glance_range(session, &tables.by_name, names, PAGE).await?;
        let by_customer = (w_id, d_id, 0, 0)..=(w_id, d_id, u16::MAX, u32::MAX);
        glance_range(session, &tables.by_customer, by_customer, PAGE).await?;
        glance_range(session, &tables.order, (w_id, d_id, 0)..=(w_id, d_id, u32::MAX), PAGE).await?;
        glance_range(session, &tables.new_order, (w_id, d_id, oldest)..=(w_id, d_id, u32::MAX), PAGE).await?;
        let lines = (w_id, d_id, oldest, 0)..=(w_id, d_id, u32::MAX, u8::MAX);
        glance_range(session, &tables.order_line, lines, PAGE).await
    }
}

impl Workload for Tpcc {
    type Ledger = Done;

    const NAME: &'static str = "tpcc";

    const TYPES: &'static [&'static str] = &["new_order", "payment", "order_status", "delivery", "stock_level"];

    const INVARIANTS: &'static [&'static str] = audit::NAMES;

    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<Tpcc, OpenError> {
        let [warehouses, districts, customers, undelivered, items, orders, payments, ..] = *parameters;
        let scale = Scale {
            warehouses: warehouses as u16,
            districts: districts as u8,
            customers: customers as u16,
            undelivered: undelivered as u16,
            items: items as u32,
        };
        let (tables, room) = (Tables::open(cluster)?, Room { orders, payments });
        Ok(Tpcc::of(cluster, tables, scale, room))
    }

    fn parameters(&self) -> Parameters {
        let Scale { warehouses, districts, customers, undelivered, items } = self.scale;
        let Room { orders, payments } = self.room;
        let counts = [warehouses.into(), districts.into(), customers.into(), undelivered.into(), items.into()];
        let mut parameters = [0; PARAMETERS];
        parameters[..5].copy_from_slice(&counts);
        parameters[5..7].copy_from_slice(&[orders, payments]);
        parameters
    }

    /// Reads everything except two kinds of rows: payments, which no transaction reads, and the
    /// lines of delivered orders.
    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        let bound = |all: u32, part: u64| (u128::from(all) * u128::from(part) / u128::from(parts)) as u32;
        let share = |all| bound(all, part)..bound(all, part + 1);
        let &Scale { warehouses, districts, items, .. } = &self.scale;
        for district in share(self.scale.districts()) {
            let (w_id, d_id) = (district / u32::from(districts), district % u32::from(districts));
            self.warm_district(session, w_id as u16 + 1, d_id as u8 + 1).await?;
        }
        let items = share(items);
        touch(session, &self.tables.item, items.clone().map(|item| item + 1)).await?;
        for w_id in 1..=warehouses {
            touch(session, &self.tables.stock, items.clone().map(|item| (w_id, item + 1))).await?;
        }
        touch(session, &self.tables.warehouse, 1..=warehouses).await?;
        let takings = (1..=warehouses).flat_map(|w_id| (0..=self.scale.districts).map(move |d_id| (w_id, d_id)));
        touch(session, &self.tables.takings, takings).await
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut Done) -> Result<(), Error> {
        let kind = self.only.unwrap_or_else(|| Kind::draw(random));
        pin!(self.run(session, kind, random, ledger)).await
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, Done>) -> Result<Vec<Invariant>, Error> {
        audit::audit(self, cluster, &after)
    }
}

/// TPC-C/no: only New-Orders, each with lines that another warehouse supplies, as in several
/// papers.
#[derive(Clone, Debug)]
pub struct NewOrders(Tpcc);

impl NewOrders {
    /// Makes the workload from tables that were loaded for it.
    #[must_use]
    pub fn of(tpcc: Tpcc) -> NewOrders {
        NewOrders(Tpcc { always_distributed: true, ..tpcc })
    }

    /// Returns the supplier's database.
    #[must_use]
    pub fn tpcc(&self) -> &Tpcc {
        &self.0
    }
}

impl Workload for NewOrders {
    type Ledger = Done;

    const NAME: &'static str = "tpcc-no";

    const TYPES: &'static [&'static str] = &[Tpcc::TYPES[Kind::NewOrder as usize]];

    const INVARIANTS: &'static [&'static str] = Tpcc::INVARIANTS;

    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<NewOrders, OpenError> {
        Ok(NewOrders::of(Tpcc::open(cluster, parameters)?))
    }

    fn parameters(&self) -> Parameters {
        self.0.parameters()
    }

    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        self.0.warm(session, part, parts).await
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut Done) -> Result<(), Error> {
        pin!(self.0.run(session, Kind::NewOrder, random, ledger)).await
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, Done>) -> Result<Vec<Invariant>, Error> {
        self.0.invariants(cluster, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_has_its_shares() {
        const DRAWS: u64 = 200_000;
        let mut random = Prng::new(1);
        let mut counts = [0_u64; Kind::MIX.len()];
        (0..DRAWS).for_each(|_| counts[Kind::draw(&mut random) as usize] += 1);
        for (kind, percent) in Kind::MIX {
            let share = counts[kind as usize] as f64 / DRAWS as f64;
            assert!((share - percent as f64 / 100.0).abs() < 0.005, "{kind:?}: {counts:?}");
        }
        assert_eq!(Kind::MIX.iter().map(|(_, percent)| percent).sum::<u64>(), 100);
    }

    #[test]
    fn labels_are_the_places_of_names() {
        let places = Kind::MIX.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place);
        assert!(places && Tpcc::TYPES.len() == Kind::MIX.len() && NewOrders::TYPES == ["new_order"]);
    }

    #[test]
    fn parameters_are_found_again() {
        let (scale, room) = (Scale::small(3, 2, 30, 100), Room::for_transactions(1_000));
        let options = Cluster::embedded().nodes(1).replicas(1);
        let cluster = options.open().expect("memory");
        let tpcc = Tpcc::load(&cluster, scale, room, 1, |_| ()).expect("room");
        let found = Tpcc::open(&cluster, &tpcc.parameters()).expect("tables");
        assert_eq!((found.scale, found.room), (scale, room));
    }
}
