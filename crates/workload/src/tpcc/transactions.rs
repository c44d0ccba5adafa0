//! The five transactions of TPC-C (clauses 2.4 to 2.8).

use std::io::Write;
use std::sync::atomic::Ordering;

use remora::{Error, Intent, Session, Transaction};
use remora_fabric::{Outlined, outline};

use crate::tpcc::draw::{DeliveryInput, NewOrderInput, OrderStatusInput, PaymentInput, StockLevelInput, Who};
use crate::tpcc::rows::{Customer, History, LINES_MAX, Order, OrderKey, OrderLine, OrderLineKey};
use crate::tpcc::{Kind, Tpcc, UnusedItem};

/// The number of orders whose lines a Stock-Level looks at.
const RECENT: u32 = 20;
/// The largest number of districts of a warehouse.
const DISTRICTS_MAX: usize = 10;

/// The result of a New-Order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// The number of the order.
    pub o_id: u32,
    /// The price of the order, with taxes and discount, in cents.
    pub total: i64,
}

/// The result of a Payment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paid {
    /// The customer who paid.
    pub c_id: u16,
    /// What the customer owes now, in cents.
    pub balance: i64,
}

/// The result of an Order-Status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The customer.
    pub c_id: u16,
    /// The number of the latest order.
    pub o_id: u32,
    /// The number of lines of the order.
    pub lines: u8,
    /// The sum of the lines' amounts, in cents.
    pub amount: i64,
}

impl Tpcc {
    /// Runs a New-Order: a customer orders. It gives up with [`UnusedItem`] if one of the items
    /// does not exist.
    #[inline(never)]
    pub fn new_order(
        &self,
        session: &mut Session,
        input: &NewOrderInput,
    ) -> Outlined<impl Future<Output = Result<Ordered, Error>>> {
        outline(async move {
            session.transact_with(self.options(Kind::NewOrder), async |tx| self.order(tx, input).await).await
        })
    }

    async fn order(&self, tx: &mut Transaction<'_, '_>, input: &NewOrderInput) -> Result<Ordered, Error> {
        let tables = &self.tables;
        let &NewOrderInput { w_id, d_id, c_id, entry_d, ol_cnt, .. } = input;
        let warehouse = tx.want(&tables.warehouse, w_id);
        let district = tx.want_for(&tables.district, (w_id, d_id), Intent::Update);
        let customer = tx.want(&tables.customer, (w_id, d_id, c_id));
        // The order's number will be the district's highest.
        tables.order.prefetch(tx, (w_id, d_id, u32::MAX), Intent::Insert);
        tables.new_order.prefetch(tx, (w_id, d_id, u32::MAX), Intent::Insert);
        tables.order_line.prefetch(tx, (w_id, d_id, u32::MAX, 0), Intent::Insert);
        tables.by_customer.prefetch(tx, (w_id, d_id, c_id, u32::MAX), Intent::Insert);
        let mut goods = [None; LINES_MAX];
        for (slots, line) in goods.iter_mut().zip(input.lines()) {
            let stock = tx.want_for(&tables.stock, (line.supply_w_id, line.i_id), Intent::Update);
            *slots = Some((tx.want(&tables.item, line.i_id), stock));
        }
        tx.fetch().await?;
        let goods = goods.iter().flatten();
        for (item, _) in goods.clone() {
            if item.get(tx)?.is_none() {
                return Err(Error::user(UnusedItem));
            }
        }
        let taxed = 10_000 + i64::from(warehouse.require(tx)?.tax) + i64::from(district.require(tx)?.tax);
        let district = district.get_mut(tx)?;
        let o_id = district.next_o_id;
        district.next_o_id += 1;
        let all_local = input.lines().iter().all(|line| line.supply_w_id == w_id).into();
        let order = Order { entry_d, c_id, carrier_id: 0, ol_cnt, all_local, spare: [0; 3] };
        tables.order.insert(tx, (w_id, d_id, o_id), order).await?;
        tables.new_order.insert(tx, (w_id, d_id, o_id), ()).await?;
        tables.by_customer.insert(tx, (w_id, d_id, c_id, o_id), ()).await?;
        let mut sum = 0;
        for (((item, stock), line), number) in goods.zip(input.lines()).zip(1..) {
            let price = item.require(tx)?.price;
            let stock = stock.get_mut(tx)?;
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
                i_id: line.i_id,
                amount,
                supply_w_id: line.supply_w_id,
                quantity: line.quantity,
                dist_info,
                spare: [0; 5],
            };
            tables.order_line.insert(tx, (w_id, d_id, o_id, number), row).await?;
        }
        let total = sum * (10_000 - i64::from(customer.require(tx)?.discount)) * taxed / 100_000_000;
        Ok(Ordered { o_id, total })
    }

    /// Runs a Payment: a customer pays.
    #[inline(never)]
    pub fn payment(
        &self,
        session: &mut Session,
        input: &PaymentInput,
    ) -> Outlined<impl Future<Output = Result<Paid, Error>>> {
        outline(async move {
            let mut key = None;
            let transaction = session.transact_with(self.options(Kind::Payment), async |tx| {
                // The id belongs to this transaction alone. All attempts use this first one.
                let key = *key.get_or_insert(tx.id().to_bits());
                self.pay(tx, input, key).await
            });
            transaction.await
        })
    }

    async fn pay(&self, tx: &mut Transaction<'_, '_>, input: &PaymentInput, key: u64) -> Result<Paid, Error> {
        let tables = &self.tables;
        let &PaymentInput { w_id, d_id, c_w_id, c_d_id, who, amount, date } = input;
        let history = tx.want_for(&tables.history, key, Intent::Insert);
        let c_id = self.customer(tx, c_w_id, c_d_id, who).await?;
        // The rows that every Payment wants come last. So protocols that lock early hold their
        // locks for a shorter time.
        let intent = if self.split_totals { Intent::Read } else { Intent::Update };
        let warehouse = tx.want_for(&tables.warehouse, w_id, intent);
        let district = tx.want_for(&tables.district, (w_id, d_id), intent);
        let takings =
            self.split_totals.then(|| [0, d_id].map(|d_id| tx.want_for(&tables.takings, (w_id, d_id), Intent::Update)));
        let customer = tx.want_for(&tables.customer, (c_w_id, c_d_id, c_id), Intent::Update);
        tx.fetch().await?;
        let mut data = [0; 24];
        data[..10].copy_from_slice(&warehouse.require(tx)?.name);
        data[14..].copy_from_slice(&district.require(tx)?.name);
        if let Some(takings) = takings {
            for takings in takings {
                takings.get_mut(tx)?.ytd += amount;
            }
        } else {
            warehouse.get_mut(tx)?.ytd += amount;
            district.get_mut(tx)?.ytd += amount;
        }
        let customer = customer.get_mut(tx)?;
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payment_cnt += 1;
        if customer.credit == *b"BC" {
            note(customer, input);
        }
        let balance = customer.balance;
        history.insert(tx, History { date, amount, c_w_id, c_id, w_id, c_d_id, d_id, data })?;
        Ok(Paid { c_id, balance })
    }

    /// Returns a customer's number.
    async fn customer(&self, tx: &mut Transaction<'_, '_>, w_id: u16, d_id: u8, who: Who) -> Result<u16, Error> {
        let name = match who {
            Who::Id(c_id) => return Ok(c_id),
            Who::Name(name) => name,
        };
        let district = (w_id, d_id);
        let range = (district, name, [0; 16], 0)..=(district, name, [u8::MAX; 16], u16::MAX);
        let first = *range.start();
        let found = self.tables.by_name.scan(tx, range, usize::MAX).await?;
        // For an even number of customers, this is the first of the two in the middle.
        let middle = found.get(found.len().saturating_sub(1) / 2).ok_or_else(|| self.tables.by_name.missing(first))?;
        Ok(middle.0.3)
    }

    /// Runs an Order-Status: returns the state of a customer's latest order.
    #[inline(never)]
    pub fn order_status(
        &self,
        session: &mut Session,
        input: &OrderStatusInput,
    ) -> Outlined<impl Future<Output = Result<Status, Error>>> {
        outline(async move {
            session.transact_with(self.options(Kind::OrderStatus), async |tx| self.look_at(tx, input).await).await
        })
    }

    async fn look_at(&self, tx: &mut Transaction<'_, '_>, input: &OrderStatusInput) -> Result<Status, Error> {
        let tables = &self.tables;
        let &OrderStatusInput { w_id, d_id, who } = input;
        let c_id = self.customer(tx, w_id, d_id, who).await?;
        let customer = tx.want(&tables.customer, (w_id, d_id, c_id));
        let orders = (w_id, d_id, c_id, 0)..=(w_id, d_id, c_id, u32::MAX);
        let first_order = || tables.by_customer.missing((w_id, d_id, c_id, 0));
        let ((.., o_id), ()) = tables.by_customer.last(tx, orders).await?.ok_or_else(first_order)?;
        let key = (w_id, d_id, o_id);
        tables.order.prefetch(tx, key, Intent::Read);
        let lines = self.lines(tx, key, Intent::Read).await?;
        let order = tables.order.get(tx, key).await?.ok_or_else(|| tables.order.missing(key))?;
        std::hint::black_box((customer.require(tx)?.balance, order.carrier_id));
        let amount = lines.iter().map(|(_, line)| i64::from(line.amount)).sum();
        Ok(Status { c_id, o_id, lines: lines.len() as u8, amount })
    }

    /// Reads the lines of an order.
    async fn lines(
        &self,
        tx: &mut Transaction<'_, '_>,
        (w_id, d_id, o_id): OrderKey,
        intent: Intent,
    ) -> Result<Vec<(OrderLineKey, OrderLine)>, Error> {
        let (first, last) = ((w_id, d_id, o_id, 1), (w_id, d_id, o_id, LINES_MAX as u8));
        self.tables.order_line.prefetch(tx, first, intent);
        self.tables.order_line.prefetch(tx, last, intent);
        self.tables.order_line.scan(tx, first..=last, LINES_MAX).await
    }

    /// Delivers the oldest order of a district. Returns whether there was one. A Delivery consists
    /// of one such transaction for each district of its warehouse.
    #[inline(never)]
    pub fn delivery(
        &self,
        session: &mut Session,
        input: &DeliveryInput,
        d_id: u8,
    ) -> Outlined<impl Future<Output = Result<bool, Error>>> {
        outline(async move {
            let transaction =
                session.transact_with(self.options(Kind::Delivery), async |tx| self.deliver(tx, input, d_id).await);
            let delivered = transaction.await?;
            if let Some(o_id) = delivered {
                self.oldest(input.w_id, d_id).fetch_max(o_id + 1, Ordering::Relaxed);
            }
            Ok(delivered.is_some())
        })
    }

    async fn deliver(
        &self,
        tx: &mut Transaction<'_, '_>,
        input: &DeliveryInput,
        d_id: u8,
    ) -> Result<Option<u32>, Error> {
        let tables = &self.tables;
        let &DeliveryInput { w_id, carrier_id, date } = input;
        let from = (w_id, d_id, self.oldest(w_id, d_id).load(Ordering::Relaxed));
        tables.new_order.prefetch(tx, from, Intent::Delete);
        let oldest = tables.new_order.first(tx, from..=(w_id, d_id, u32::MAX)).await?;
        let Some((key, ())) = oldest else { return Ok(None) };
        tables.order.prefetch(tx, key, Intent::Update);
        let lines = self.lines(tx, key, Intent::Update).await?;
        let order = tables.order.get(tx, key).await?.ok_or_else(|| tables.order.missing(key))?;
        let customer = tx.want_for(&tables.customer, (w_id, d_id, order.c_id), Intent::Update);
        tx.fetch().await?;
        tables.new_order.remove(tx, key).await?;
        tables.order.update(tx, key, Order { carrier_id, ..order }).await?;
        let mut amount = 0;
        for (key, line) in lines {
            amount += i64::from(line.amount);
            tables.order_line.update(tx, key, OrderLine { delivery_d: date, ..line }).await?;
        }
        let customer = customer.get_mut(tx)?;
        customer.balance += amount;
        customer.delivery_cnt += 1;
        Ok(Some(key.2))
    }

    /// Runs a Stock-Level: counts the different items of a district's latest orders that are low in
    /// stock at its warehouse.
    #[inline(never)]
    pub fn stock_level(
        &self,
        session: &mut Session,
        input: &StockLevelInput,
    ) -> Outlined<impl Future<Output = Result<u32, Error>>> {
        outline(async move {
            session.transact_with(self.options(Kind::StockLevel), async |tx| self.count_low(tx, input).await).await
        })
    }

    async fn count_low(&self, tx: &mut Transaction<'_, '_>, input: &StockLevelInput) -> Result<u32, Error> {
        let tables = &self.tables;
        let &StockLevelInput { w_id, d_id, threshold } = input;
        let district = tables.district.get(tx, (w_id, d_id)).await?;
        let next = district.ok_or_else(|| tables.district.missing((w_id, d_id)))?.next_o_id;
        let recent = (w_id, d_id, next.saturating_sub(RECENT), 0)..(w_id, d_id, next, 0);
        let lines = tables.order_line.scan(tx, recent, usize::MAX).await?;
        let mut items: Vec<u32> = lines.iter().map(|(_, line)| line.i_id).collect();
        items.sort_unstable();
        items.dedup();
        let stocks: Vec<_> = items.into_iter().map(|i_id| tx.want(&tables.stock, (w_id, i_id))).collect();
        tx.fetch().await?;
        let mut low = 0;
        for stock in stocks {
            low += u32::from(stock.require(tx)?.quantity < threshold);
        }
        Ok(low)
    }
}

/// Notes a payment of a customer with bad credit, in front of everything noted before.
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
