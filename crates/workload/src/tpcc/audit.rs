//! The invariants of TPC-C's tables, which must hold when no transaction runs. They are all twelve
//! consistency conditions of clause 3.3.2, and three more: secondary indexes have what their tables
//! have, all ordered tables are trees, and everything that was committed is there.
//!
//! The eleventh condition is written for a database in which nothing has been delivered since
//! loading. Here the orders that customers have had delivered are counted in.

use remora::admin::Inspection;
use remora::{Cluster, Error, Key, Ordered, Record, Table};

use crate::After;
use crate::invariants::{self, Broken};
use crate::report::Invariant;
use crate::tpcc::rows::{
    ByCustomerKey, ByNameKey, Customer, District, History, Order, OrderKey, OrderLine, OrderLineKey, Takings,
    Warehouse, last_name,
};
use crate::tpcc::{Done, Scale, Tpcc};

const CONDITIONS: usize = 12;
const PATHS: usize = CONDITIONS;

/// The names of the invariants, in the order of [`audit`].
pub(super) const NAMES: &[&str] = &[
    "1: a warehouse's ytd is its districts'",
    "2: the next order follows the last one",
    "3: new orders have no gaps",
    "4: a district has its order lines",
    "5: only new orders have no carrier",
    "6: an order has its lines",
    "7: lines are delivered with orders",
    "8: a warehouse's ytd is its payments'",
    "9: a district's ytd is its payments'",
    "10: a balance is delivered less paid",
    "11: what is delivered is no new order",
    "12: balance and paid are delivered",
    "access paths lead to their rows",
    ACCOUNTED,
    invariants::REPLICAS,
    invariants::LOCKS,
    invariants::LOG,
];

const ACCOUNTED: &str = "what was committed is there";

#[derive(Clone, Default)]
struct SeenWarehouse {
    found: bool,
    ytd: i64,
    paid: i64,
}

#[derive(Clone, Default)]
struct SeenDistrict {
    found: bool,
    ytd: i64,
    paid: i64,
    next_o_id: u32,
    /// The orders, by their number less 1.
    orders: Vec<SeenOrder>,
    counts: Counts,
}

/// The numbers of a district's rows.
#[derive(Clone, Copy, Default)]
struct Counts {
    orders: u64,
    lines: u64,
    new_orders: u64,
    delivered: u64,
}

#[derive(Clone, Copy, Default)]
struct SeenOrder {
    found: bool,
    is_new: bool,
    c_id: u16,
    /// The customer who ordered, by the index; 0 if the index lacks the order.
    indexed: u16,
    carrier_id: u8,
    ol_cnt: u8,
    lines: u8,
    delivered_lines: u8,
    /// The sum over the lines that have been delivered.
    amount: u32,
}

#[derive(Clone, Copy, Default)]
struct SeenCustomer {
    found: bool,
    balance: i64,
    ytd_payment: i64,
    paid: i64,
    /// The sum over all lines that have been delivered.
    amount: i64,
    name: [[u8; 16]; 2],
    /// The names, by the index.
    indexed: [[u8; 16]; 2],
}

/// What the audit remembers while it walks the tables.
struct Tally {
    scale: Scale,
    orders_max: u64,
    warehouses: Vec<SeenWarehouse>,
    districts: Vec<SeenDistrict>,
    customers: Vec<SeenCustomer>,
    /// The number of rows whose keys should not exist.
    strangers: u64,
    delivery_cnt: u64,
    history: u64,
    paid: i64,
    tables: Vec<Inspection>,
    /// The first error found in a tree.
    fault: Option<String>,
}

impl Tally {
    fn new(tpcc: &Tpcc) -> Tally {
        let scale = tpcc.scale;
        let districts = scale.districts() as usize;
        Tally {
            scale,
            // A number beyond all possible ones belongs to a damaged row, for which no room is
            // made.
            orders_max: 2 * (u64::from(scale.customers) + tpcc.room.orders) + 1_024,
            warehouses: vec![SeenWarehouse::default(); scale.warehouses.into()],
            districts: vec![SeenDistrict::default(); districts],
            customers: vec![SeenCustomer::default(); districts * usize::from(scale.customers)],
            strangers: 0,
            delivery_cnt: 0,
            history: 0,
            paid: 0,
            tables: Vec::new(),
            fault: None,
        }
    }

    fn place(&self, w_id: u16, d_id: u8) -> Option<usize> {
        let inside = (1..=self.scale.warehouses).contains(&w_id) && (1..=self.scale.districts).contains(&d_id);
        inside.then(|| usize::from(w_id - 1) * usize::from(self.scale.districts) + usize::from(d_id - 1))
    }

    fn warehouse(&mut self, w_id: u16) -> Option<&mut SeenWarehouse> {
        self.warehouses.get_mut(usize::from(w_id).wrapping_sub(1))
    }

    fn district(&mut self, w_id: u16, d_id: u8) -> Option<&mut SeenDistrict> {
        let place = self.place(w_id, d_id)?;
        self.districts.get_mut(place)
    }

    fn customer(&mut self, w_id: u16, d_id: u8, c_id: u16) -> Option<&mut SeenCustomer> {
        let place = self.place(w_id, d_id)?;
        let inside = (1..=self.scale.customers).contains(&c_id);
        let at = place * usize::from(self.scale.customers) + usize::from(c_id.wrapping_sub(1));
        if inside { self.customers.get_mut(at) } else { None }
    }

    fn order(&mut self, w_id: u16, d_id: u8, o_id: u32) -> Option<&mut SeenOrder> {
        let inside = (1..=self.orders_max).contains(&o_id.into());
        let district = self.district(w_id, d_id).filter(|_| inside)?;
        if district.orders.len() < o_id as usize {
            district.orders.resize(o_id as usize, SeenOrder::default());
        }
        district.orders.get_mut(o_id as usize - 1)
    }

    fn see_warehouse(&mut self, row: &Warehouse) -> Option<()> {
        let seen = self.warehouse(row.w_id)?;
        seen.found = true;
        seen.ytd += row.ytd;
        Some(())
    }

    fn see_takings(&mut self, row: &Takings) -> Option<()> {
        let ytd = match row.d_id {
            0 => &mut self.warehouse(row.w_id)?.ytd,
            d_id => &mut self.district(row.w_id, d_id)?.ytd,
        };
        *ytd += row.ytd;
        Some(())
    }

    fn see_district(&mut self, row: &District) -> Option<()> {
        let seen = self.district(row.w_id, row.d_id)?;
        (seen.found, seen.next_o_id) = (true, row.next_o_id);
        seen.ytd += row.ytd;
        Some(())
    }

    fn see_customer(&mut self, row: &Customer) -> Option<()> {
        self.delivery_cnt += u64::from(row.delivery_cnt);
        self.district(row.w_id, row.d_id)?.counts.delivered += u64::from(row.delivery_cnt);
        let seen = self.customer(row.w_id, row.d_id, row.c_id)?;
        (seen.found, seen.balance, seen.ytd_payment) = (true, row.balance, row.ytd_payment);
        seen.name = [row.last, row.first];
        Some(())
    }

    fn see_payment(&mut self, row: &History) -> Option<()> {
        self.history += 1;
        self.paid += row.amount;
        self.warehouse(row.w_id)?.paid += row.amount;
        self.district(row.w_id, row.d_id)?.paid += row.amount;
        self.customer(row.c_w_id, row.c_d_id, row.c_id)?.paid += row.amount;
        Some(())
    }

    fn see_name(&mut self, &((w_id, d_id), name, first, c_id): &ByNameKey, (): &()) -> Option<()> {
        self.customer(w_id, d_id, c_id)?.indexed = [last_name(name), first];
        Some(())
    }

    fn see_order(&mut self, &(w_id, d_id, o_id): &OrderKey, row: &Order) -> Option<()> {
        self.district(w_id, d_id)?.counts.orders += 1;
        let seen = self.order(w_id, d_id, o_id)?;
        (seen.found, seen.c_id, seen.carrier_id, seen.ol_cnt) = (true, row.c_id, row.carrier_id, row.ol_cnt);
        Some(())
    }

    fn see_new_order(&mut self, &(w_id, d_id, o_id): &OrderKey, (): &()) -> Option<()> {
        self.district(w_id, d_id)?.counts.new_orders += 1;
        self.order(w_id, d_id, o_id)?.is_new = true;
        Some(())
    }

    fn see_indexed(&mut self, &(w_id, d_id, c_id, o_id): &ByCustomerKey, (): &()) -> Option<()> {
        let seen = self.order(w_id, d_id, o_id)?;
        // An order is in the index once.
        let before = std::mem::replace(&mut seen.indexed, c_id);
        (before == 0).then_some(())
    }

    fn see_line(&mut self, &(w_id, d_id, o_id, _): &OrderLineKey, row: &OrderLine) -> Option<()> {
        self.district(w_id, d_id)?.counts.lines += 1;
        let seen = self.order(w_id, d_id, o_id)?;
        seen.lines = seen.lines.saturating_add(1);
        if row.delivery_d != 0 {
            seen.delivered_lines = seen.delivered_lines.saturating_add(1);
            seen.amount = seen.amount.saturating_add(row.amount);
        }
        Some(())
    }

    /// Walks all tables.
    fn walk(tpcc: &Tpcc, cluster: &Cluster) -> Result<Tally, Error> {
        let (mut seen, tables) = (Tally::new(tpcc), &tpcc.tables);
        seen.look(cluster, &tables.warehouse, Tally::see_warehouse)?;
        seen.look(cluster, &tables.district, Tally::see_district)?;
        seen.look(cluster, &tables.takings, Tally::see_takings)?;
        seen.look(cluster, &tables.customer, Tally::see_customer)?;
        seen.look(cluster, &tables.history, Tally::see_payment)?;
        seen.look(cluster, &tables.item, |_, _| Some(()))?;
        seen.look(cluster, &tables.stock, |_, _| Some(()))?;
        seen.look_in_order(cluster, &tables.order, Tally::see_order)?;
        seen.look_in_order(cluster, &tables.order_line, Tally::see_line)?;
        seen.look_in_order(cluster, &tables.new_order, Tally::see_new_order)?;
        seen.look_in_order(cluster, &tables.by_customer, Tally::see_indexed)?;
        seen.look_in_order(cluster, &tables.by_name, Tally::see_name)?;
        seen.sum_up();
        Ok(seen)
    }

    fn look<V: Record>(
        &mut self,
        cluster: &Cluster,
        table: &Table<impl Key, V>,
        see: impl Fn(&mut Tally, &V) -> Option<()>,
    ) -> Result<(), Error> {
        let found = cluster.inspect(table, |row| self.strangers += u64::from(see(self, row).is_none()))?;
        self.tables.push(found);
        Ok(())
    }

    fn look_in_order<K: Key, V: Record>(
        &mut self,
        cluster: &Cluster,
        table: &Ordered<K, V>,
        see: impl Fn(&mut Tally, &K, &V) -> Option<()>,
    ) -> Result<(), Error> {
        let visit = |key: &K, row: &V| self.strangers += u64::from(see(self, key, row).is_none());
        let (tables, tree) = cluster.inspect_ordered(table, visit)?;
        self.tables.extend(tables);
        if let Some(fault) = tree.fault {
            self.fault.get_or_insert(format!("{}: {fault}", table.name()));
        }
        Ok(())
    }

    /// Sums up what customers have had delivered.
    fn sum_up(&mut self) {
        for (district, customers) in self.districts.iter().zip(self.customers.chunks_mut(self.scale.customers.into())) {
            for order in &district.orders {
                if let Some(customer) = customers.get_mut(usize::from(order.c_id).wrapping_sub(1)) {
                    customer.amount += i64::from(order.amount);
                }
            }
        }
    }
}

/// Walks all tables and checks the invariants. No transaction may run meanwhile.
pub(super) fn audit(tpcc: &Tpcc, cluster: &Cluster, after: &After<'_, Done>) -> Result<Vec<Invariant>, Error> {
    let seen = Tally::walk(tpcc, cluster)?;
    let mut broken: [Broken; PATHS + 1] = Default::default();
    warehouses(&seen, &mut broken);
    districts(&seen, &mut broken);
    customers(&seen, &mut broken);
    broken[PATHS].check(seen.strangers == 0, || format!("{} rows should not be there", seen.strangers));
    broken[PATHS].check(seen.fault.is_none(), || seen.fault.clone().unwrap_or_default());
    let orders: u64 = seen.districts.iter().map(|district| district.counts.orders).sum();
    let of = |number: usize| match number {
        0 | 7 => format!("{} warehouses", seen.warehouses.len()),
        4..=6 => format!("{orders} orders"),
        9 | 11 => format!("{} customers", seen.customers.len()),
        PATHS => format!("{orders} orders and {} customers", seen.customers.len()),
        _ => format!("{} districts", seen.districts.len()),
    };
    let numbered = broken.into_iter().enumerate();
    let mut all: Vec<_> = numbered.map(|(number, one)| one.invariant(NAMES[number], &of(number))).collect();
    all.push(accounted(tpcc, &seen, after));
    all.extend(invariants::of_tables(&seen.tables, after.settled));
    Ok(invariants::claimed_by(cluster.protocol(), all))
}

fn warehouses(seen: &Tally, broken: &mut [Broken]) {
    let of_each = usize::from(seen.scale.districts);
    for ((warehouse, districts), w_id) in seen.warehouses.iter().zip(seen.districts.chunks(of_each)).zip(1..) {
        let whose = || format!("warehouse {w_id}");
        let of_districts = districts.iter().map(|district| district.ytd).sum();
        broken[0].check(warehouse.found, || format!("{} is missing", whose()));
        broken[0].equal(warehouse.ytd, of_districts, whose());
        broken[7].equal(warehouse.ytd, warehouse.paid, whose());
    }
}

fn districts(seen: &Tally, broken: &mut [Broken]) {
    let delivered_at_first = u64::from(seen.scale.customers - seen.scale.undelivered);
    for (place, district) in seen.districts.iter().enumerate() {
        let of_each = usize::from(seen.scale.districts);
        let whose = format!("warehouse {}, district {}", place / of_each + 1, place % of_each + 1);
        let SeenDistrict { orders, counts, next_o_id, .. } = district;
        let all = || (1_u32..).zip(orders);
        let last = all().filter(|(_, order)| order.found).map(|(o_id, _)| o_id).max().unwrap_or(0);
        let new = || all().filter(|(_, order)| order.is_new).map(|(o_id, _)| o_id);
        let (oldest_new, last_new) = (new().min(), new().max());
        broken[1].check(district.found, || format!("{whose} is missing"));
        broken[1].equal(next_o_id.wrapping_sub(1), last, &whose);
        if let Some(last_new) = last_new {
            broken[1].equal(last_new, last, format!("{whose}, new orders"));
        }
        let span = oldest_new.zip(last_new).map_or(0, |(oldest, last)| u64::from(last - oldest) + 1);
        broken[2].equal(counts.new_orders, span, &whose);
        let lines: u64 = orders.iter().map(|order| u64::from(order.ol_cnt)).sum();
        broken[3].equal(counts.lines, lines, &whose);
        for (o_id, order) in all() {
            let whose = || format!("{whose}, order {o_id}");
            broken[4].check((order.carrier_id == 0) == order.is_new || !order.found && !order.is_new, whose);
            broken[5].check(order.lines == order.ol_cnt, whose);
            let delivered = if order.carrier_id == 0 { 0 } else { order.lines };
            broken[6].check(order.delivered_lines == delivered, whose);
            broken[PATHS].check(order.indexed == order.c_id, whose);
        }
        broken[8].equal(district.ytd, district.paid, &whose);
        let delivered = counts.orders.wrapping_sub(counts.new_orders);
        broken[10].equal(delivered, delivered_at_first + counts.delivered, &whose);
    }
}

fn customers(seen: &Tally, broken: &mut [Broken]) {
    let (of_each, customers) = (usize::from(seen.scale.districts), usize::from(seen.scale.customers));
    for (place, customer) in seen.customers.iter().enumerate() {
        let whose = || {
            let (district, c_id) = (place / customers, place % customers + 1);
            format!("warehouse {}, district {}, customer {c_id}", district / of_each + 1, district % of_each + 1)
        };
        let SeenCustomer { balance, amount, paid, ytd_payment, .. } = *customer;
        let differs = |found: i64, wanted: i64| format!("{}: {found}, not {wanted}", whose());
        broken[9].check(balance == amount - paid, || differs(balance, amount - paid));
        broken[11].check(balance + ytd_payment == amount, || differs(balance + ytd_payment, amount));
        broken[PATHS].check(customer.found && customer.indexed == customer.name, whose);
    }
}

/// Checks the tables' contents against the ledgers.
fn accounted(tpcc: &Tpcc, seen: &Tally, after: &After<'_, Done>) -> Invariant {
    if after.unknown > 0 {
        return invariants::unknown(ACCOUNTED, after.unknown);
    }
    let mut done = Done::default();
    for ledger in after.ledgers {
        done.orders += ledger.orders;
        done.payments += ledger.payments;
        done.paid += ledger.paid;
        done.delivered += ledger.delivered;
    }
    let at_first = u64::from(tpcc.scale.districts()) * u64::from(tpcc.scale.customers);
    let orders: u64 = seen.districts.iter().map(|district| district.counts.orders).sum();
    let paid = done.paid + at_first as i64 * super::population::PAID_AT_FIRST;
    let found = (orders, seen.history, seen.paid, seen.delivery_cnt);
    let holds = found == (at_first + done.orders, at_first + done.payments, paid, done.delivered);
    let detail = format!(
        "{orders} orders, {} payments, {} delivered since; {at_first} of each at first, and {} orders, {} payments, {} \
         delivered by committed transactions",
        seen.history, seen.delivery_cnt, done.orders, done.payments, done.delivered
    );
    Invariant { name: ACCOUNTED, holds: Some(holds), detail }
}
