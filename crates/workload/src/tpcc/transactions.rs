//! The five transactions (clauses 2.4 to 2.8).

use std::io::Write;

use remora::{Error, Intent, Session, Slot, Transaction};

use crate::tpcc::draw::{DeliveryInput, NewOrderInput, OrderStatusInput, PaymentInput, StockLevelInput, Who};
use crate::tpcc::schema::{Customer, History, LINES_MAX, NAMESAKES, NewOrder, Order, OrderLine};
use crate::tpcc::{Kind, Tpcc, UnusedItem};

/// Orders whose lines a Stock-Level looks at.
const RECENT: usize = 20;
/// Most districts of a warehouse.
const DISTRICTS_MAX: usize = 10;

/// What came of a New-Order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// The order.
    pub o_id: u32,
    /// What it costs, with taxes and discount, in cents.
    pub total: i64,
}

/// What came of a Payment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paid {
    /// Who paid.
    pub c_id: u16,
    /// What the customer owes now.
    pub balance: i64,
}

/// What came of an Order-Status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The customer.
    pub c_id: u16,
    /// The latest order.
    pub o_id: u32,
    /// How many lines it has.
    pub lines: u8,
    /// The sum of their amounts, in cents.
    pub amount: i64,
}

impl Tpcc {
    /// A customer orders: [`UnusedItem`] if one of the items is nobody's.
    pub async fn new_order(&self, session: &mut Session, input: &NewOrderInput) -> Result<Ordered, Error> {
        session.transact_with(self.options(Kind::NewOrder), async |tx| self.order(tx, input).await).await
    }

    async fn order(&self, tx: &mut Transaction<'_, '_>, input: &NewOrderInput) -> Result<Ordered, Error> {
        let tables = &self.tables;
        let &NewOrderInput { w_id, d_id, c_id, entry_d, ol_cnt, .. } = input;
        let warehouse = tx.want(&tables.warehouse, w_id);
        let district = tx.want_for(&tables.district, (w_id, d_id), Intent::Update);
        let customer = tx.want(&tables.customer, (w_id, d_id, c_id));
        let latest = tx.want_for(&tables.latest, (w_id, d_id, c_id), Intent::Update);
        let mut goods = [None; LINES_MAX];
        for (slots, line) in goods.iter_mut().zip(input.lines()) {
            let stock = tx.want_for(&tables.stock, (line.supply_w_id, line.i_id), Intent::Update);
            *slots = Some((tx.want(&tables.item, line.i_id), stock));
        }
        tx.fetch().await?;
        let goods = goods.iter().flatten();
        if goods.clone().any(|(item, _)| tx.find(*item).is_none()) {
            return Err(Error::user(UnusedItem));
        }
        let o_id = tx.get(district)?.next_o_id;
        let order = tx.want_for(&tables.order, (w_id, d_id, o_id), Intent::Insert);
        let new_order = tx.want_for(&tables.new_order, (w_id, d_id, o_id), Intent::Insert);
        let mut lines = [None; LINES_MAX];
        for (slot, number) in lines.iter_mut().zip(1..=ol_cnt) {
            *slot = Some(tx.want_for(&tables.order_line, (w_id, d_id, o_id, number), Intent::Insert));
        }
        tx.fetch().await?;
        let mut sum = 0;
        for ((((item, stock), slot), line), number) in goods.zip(lines.iter().flatten()).zip(input.lines()).zip(1..) {
            let price = tx.get(*item)?.price;
            let stock = tx.get_mut(*stock)?;
            let quantity = i16::from(line.quantity);
            let refill = if stock.quantity >= quantity + 10 { 0 } else { 91 };
            stock.quantity += refill - quantity;
            stock.ytd += u32::from(line.quantity);
            stock.order_cnt += 1;
            stock.remote_cnt += u32::from(line.supply_w_id != w_id);
            let dist_info = stock.dist[usize::from(d_id - 1) % DISTRICTS_MAX];
            let amount = price * u32::from(line.quantity);
            sum += i64::from(amount);
            let row = OrderLine {
                delivery_d: 0,
                o_id,
                i_id: line.i_id,
                amount,
                w_id,
                supply_w_id: line.supply_w_id,
                d_id,
                number,
                quantity: line.quantity,
                dist_info,
                spare: [0; 5],
            };
            tx.put(*slot, row)?;
        }
        let all_local = input.lines().iter().all(|line| line.supply_w_id == w_id).into();
        tx.put(order, Order { entry_d, o_id, w_id, c_id, d_id, carrier_id: 0, ol_cnt, all_local, spare: [0; 4] })?;
        tx.put(new_order, NewOrder { o_id, w_id, d_id, spare: 0 })?;
        tx.get_mut(district)?.next_o_id = o_id + 1;
        let latest = tx.get_mut(latest)?;
        (latest.o_id, latest.ol_cnt) = (o_id, ol_cnt);
        let taxed = 10_000 + i64::from(tx.get(warehouse)?.tax) + i64::from(tx.get(district)?.tax);
        let total = sum * (10_000 - i64::from(tx.get(customer)?.discount)) * taxed / 100_000_000;
        Ok(Ordered { o_id, total })
    }

    /// A customer pays.
    pub async fn payment(&self, session: &mut Session, input: &PaymentInput) -> Result<Paid, Error> {
        let mut key = None;
        let transaction = session.transact_with(self.options(Kind::Payment), async |tx| {
            // Nobody else's, ever; and the same for all attempts.
            let key = *key.get_or_insert(tx.id().to_bits());
            self.pay(tx, input, key).await
        });
        transaction.await
    }

    async fn pay(&self, tx: &mut Transaction<'_, '_>, input: &PaymentInput, key: u64) -> Result<Paid, Error> {
        let tables = &self.tables;
        let &PaymentInput { w_id, d_id, c_w_id, c_d_id, who, amount, date } = input;
        let history = tx.want_for(&tables.history, key, Intent::Insert);
        let c_id = self.customer(tx, c_w_id, c_d_id, who).await?;
        // What everybody wants comes last: protocols that lock early have it locked for a shorter time.
        let warehouse = tx.want_for(&tables.warehouse, w_id, Intent::Update);
        let district = tx.want_for(&tables.district, (w_id, d_id), Intent::Update);
        let customer = tx.want_for(&tables.customer, (c_w_id, c_d_id, c_id), Intent::Update);
        tx.fetch().await?;
        let mut data = [0; 24];
        let warehouse = tx.get_mut(warehouse)?;
        warehouse.ytd += amount;
        data[..10].copy_from_slice(&warehouse.name);
        let district = tx.get_mut(district)?;
        district.ytd += amount;
        data[14..].copy_from_slice(&district.name);
        let customer = tx.get_mut(customer)?;
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payment_cnt += 1;
        if customer.credit == *b"BC" {
            note(customer, input);
        }
        let balance = customer.balance;
        tx.put(history, History { date, amount, c_w_id, c_id, w_id, c_d_id, d_id, data })?;
        Ok(Paid { c_id, balance })
    }

    /// A customer's number.
    async fn customer(&self, tx: &mut Transaction<'_, '_>, w_id: u16, d_id: u8, who: Who) -> Result<u16, Error> {
        let name = match who {
            Who::Id(c_id) => return Ok(c_id),
            Who::Name(name) => name,
        };
        let table = &self.tables.namesakes;
        let mut row = tx.read(table, (w_id, d_id, name, 0)).await?.ok_or(Error::NotFound)?;
        // Of an even number, the first of the two in the middle.
        let middle = usize::from(row.count.saturating_sub(1)) / 2;
        let part = middle / NAMESAKES;
        if part > 0 {
            row = tx.read(table, (w_id, d_id, name, part as u8)).await?.ok_or(Error::NotFound)?;
        }
        Ok(row.c_ids[middle % NAMESAKES])
    }

    /// How a customer's latest order stands.
    pub async fn order_status(&self, session: &mut Session, input: &OrderStatusInput) -> Result<Status, Error> {
        session.transact_with(self.options(Kind::OrderStatus), async |tx| self.look_at(tx, input).await).await
    }

    async fn look_at(&self, tx: &mut Transaction<'_, '_>, input: &OrderStatusInput) -> Result<Status, Error> {
        let tables = &self.tables;
        let &OrderStatusInput { w_id, d_id, who } = input;
        let c_id = self.customer(tx, w_id, d_id, who).await?;
        let customer = tx.want(&tables.customer, (w_id, d_id, c_id));
        let latest = tx.want(&tables.latest, (w_id, d_id, c_id));
        tx.fetch().await?;
        let latest = *tx.get(latest)?;
        let order = tx.want(&tables.order, (w_id, d_id, latest.o_id));
        let lines = self.lines(tx, w_id, d_id, latest.o_id, latest.ol_cnt, Intent::Read);
        tx.fetch().await?;
        std::hint::black_box((tx.get(customer)?.balance, tx.get(order)?.carrier_id));
        let mut amount = 0;
        for line in lines.iter().flatten() {
            amount += i64::from(tx.get(*line)?.amount);
        }
        Ok(Status { c_id, o_id: latest.o_id, lines: latest.ol_cnt, amount })
    }

    /// Names the lines of an order.
    fn lines(
        &self,
        tx: &mut Transaction<'_, '_>,
        w_id: u16,
        d_id: u8,
        o_id: u32,
        ol_cnt: u8,
        intent: Intent,
    ) -> [Option<Slot<OrderLine>>; LINES_MAX] {
        let mut lines = [None; LINES_MAX];
        for (slot, number) in lines.iter_mut().zip(1..=ol_cnt) {
            *slot = Some(tx.want_for(&self.tables.order_line, (w_id, d_id, o_id, number), intent));
        }
        lines
    }

    /// The oldest orders of all districts of a warehouse are delivered; how many these are, since a district may have none.
    pub async fn delivery(&self, session: &mut Session, input: &DeliveryInput) -> Result<u32, Error> {
        session.transact_with(self.options(Kind::Delivery), async |tx| self.deliver(tx, input).await).await
    }

    async fn deliver(&self, tx: &mut Transaction<'_, '_>, input: &DeliveryInput) -> Result<u32, Error> {
        let tables = &self.tables;
        let &DeliveryInput { w_id, carrier_id, date } = input;
        let mut next = [None; DISTRICTS_MAX];
        for (slot, d_id) in next.iter_mut().zip(1..=self.scale.districts) {
            *slot = Some(tx.want_for(&tables.undelivered, (w_id, d_id), Intent::Update));
        }
        tx.fetch().await?;
        let mut oldest = [None; DISTRICTS_MAX];
        for ((found, next), d_id) in oldest.iter_mut().zip(next.iter().flatten()).zip(1..) {
            let key = (w_id, d_id, tx.get(*next)?.o_id);
            let new_order = tx.want_for(&tables.new_order, key, Intent::Delete);
            *found = Some((*next, new_order, tx.want_for(&tables.order, key, Intent::Update)));
        }
        tx.fetch().await?;
        let mut delivered = 0;
        let mut orders = [None; DISTRICTS_MAX];
        for (place, (next, new_order, order)) in orders.iter_mut().zip(oldest.iter().flatten()) {
            if tx.find(*new_order).is_none() {
                // Everything of this district has been delivered.
                continue;
            }
            tx.remove(*new_order)?;
            tx.get_mut(*next)?.o_id += 1;
            let order = tx.get_mut(*order)?;
            order.carrier_id = carrier_id;
            let Order { o_id, d_id, c_id, ol_cnt, .. } = *order;
            let customer = tx.want_for(&tables.customer, (w_id, d_id, c_id), Intent::Update);
            *place = Some((customer, self.lines(tx, w_id, d_id, o_id, ol_cnt, Intent::Update)));
            delivered += 1;
        }
        tx.fetch().await?;
        for (customer, lines) in orders.iter().flatten() {
            let mut amount = 0;
            for line in lines.iter().flatten() {
                let line = tx.get_mut(*line)?;
                line.delivery_d = date;
                amount += i64::from(line.amount);
            }
            let customer = tx.get_mut(*customer)?;
            customer.balance += amount;
            customer.delivery_cnt += 1;
        }
        Ok(delivered)
    }

    /// How many different items of a district's latest orders its warehouse has few of.
    pub async fn stock_level(&self, session: &mut Session, input: &StockLevelInput) -> Result<u32, Error> {
        session.transact_with(self.options(Kind::StockLevel), async |tx| self.count_low(tx, input).await).await
    }

    async fn count_low(&self, tx: &mut Transaction<'_, '_>, input: &StockLevelInput) -> Result<u32, Error> {
        let tables = &self.tables;
        let &StockLevelInput { w_id, d_id, threshold } = input;
        let next = tx.read(&tables.district, (w_id, d_id)).await?.ok_or(Error::NotFound)?.next_o_id;
        let first = next.saturating_sub(RECENT as u32).max(1);
        let mut orders = [None; RECENT];
        for (slot, o_id) in orders.iter_mut().zip(first..next) {
            *slot = Some(tx.want(&tables.order, (w_id, d_id, o_id)));
        }
        tx.fetch().await?;
        let mut lines = [[None; LINES_MAX]; RECENT];
        for (lines, order) in lines.iter_mut().zip(orders.iter().flatten()) {
            let &Order { o_id, ol_cnt, .. } = tx.get(*order)?;
            *lines = self.lines(tx, w_id, d_id, o_id, ol_cnt, Intent::Read);
        }
        tx.fetch().await?;
        let mut items = [0; RECENT * LINES_MAX];
        let mut count = 0;
        for (item, line) in items.iter_mut().zip(lines.iter().flatten().flatten()) {
            *item = tx.get(*line)?.i_id;
            count += 1;
        }
        let items = &mut items[..count];
        items.sort_unstable();
        let mut stocks = [None; RECENT * LINES_MAX];
        for (slot, same) in stocks.iter_mut().zip(items.chunk_by(|one, other| one == other)) {
            *slot = Some(tx.want(&tables.stock, (w_id, same[0])));
        }
        tx.fetch().await?;
        let mut low = 0;
        for stock in stocks.iter().flatten() {
            low += u32::from(tx.get(*stock)?.quantity < threshold);
        }
        Ok(low)
    }
}

/// Notes a payment of a customer with bad credit, before all that was noted until then.
fn note(customer: &mut Customer, input: &PaymentInput) {
    let PaymentInput { w_id, d_id, c_w_id, c_d_id, amount, .. } = *input;
    let mut text = [0_u8; 64];
    let room = text.len();
    let mut rest = &mut text[..];
    // All of it fits.
    let _ = write!(rest, "{} {c_d_id} {c_w_id} {d_id} {w_id} {amount}|", customer.c_id);
    let length = room - rest.len();
    customer.data.rotate_right(length);
    customer.data[..length].copy_from_slice(&text[..length]);
}
