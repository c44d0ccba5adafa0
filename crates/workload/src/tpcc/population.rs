//! The first contents of TPC-C's tables (clause 4.3.3.1). Every part follows from the seed alone.
//! So parts can be made in any order, and some are made twice: an order's head and its lines are in
//! different tables.

use crate::Prng;
use crate::tpcc::Scale;
use crate::tpcc::draw::{C_LAST_LOAD, between, nurand};
use crate::tpcc::rows::{
    Address, ByCustomerKey, ByNameKey, Customer, CustomerKey, District, DistrictKey, History, Item, LINES_MAX,
    LINES_MIN, Order, OrderKey, OrderLine, OrderLineKey, Stock, StockKey, Takings, Warehouse, last_name,
};

/// The amount that each customer has paid at the beginning: 10.00.
pub(super) const PAID_AT_FIRST: i64 = 1_000;
/// The time of loading, in nanoseconds of no clock. It is not 0, which is the null of a delivery
/// time.
const LOADED_AT: u64 = 1;
/// The number of items in a part of the items or stocks.
const ITEMS_IN_PART: u32 = 10_000;

/// The use of a stream of random numbers.
#[derive(Clone, Copy)]
enum Stream {
    Warehouse,
    District,
    Customer,
    History,
    Orders,
    Lines,
    Item,
    Stock,
}

/// Makes rows. Each method makes the rows of one part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Population {
    pub(super) scale: Scale,
    pub(super) seed: u64,
}

impl Population {
    fn random(&self, stream: Stream, w_id: u16, d_id: u8, number: u32) -> Prng {
        // The streams of the driver have lower numbers.
        let place = u64::from(w_id) << 40 | u64::from(d_id) << 32 | u64::from(number);
        Prng::derive(self.seed, 1 << 63 | (stream as u64) << 56 | place)
    }

    /// Returns the district that a part of most tables stands for.
    fn place(&self, part: u64) -> DistrictKey {
        let districts = u64::from(self.scale.districts);
        ((part / districts) as u16 + 1, (part % districts) as u8 + 1)
    }

    pub(super) fn warehouses(&self) -> u64 {
        self.scale.warehouses.into()
    }

    pub(super) fn districts(&self) -> u64 {
        self.scale.districts().into()
    }

    pub(super) fn stock_parts(&self) -> u64 {
        self.warehouses() * self.item_parts()
    }

    /// Returns the number of parts of the items, and of the stocks of each warehouse.
    pub(super) fn item_parts(&self) -> u64 {
        self.scale.items.div_ceil(ITEMS_IN_PART).into()
    }

    fn items_of(&self, part: u64) -> impl Iterator<Item = u32> + use<> {
        let first = part as u32 * ITEMS_IN_PART + 1;
        first..=self.scale.items.min(first + ITEMS_IN_PART - 1)
    }

    pub(super) fn items(&self, part: u64) -> Vec<(u32, Item)> {
        let row = |i_id| {
            let random = &mut self.random(Stream::Item, 0, 0, i_id);
            let im_id = between(random, 1, 10_000) as u32;
            let price = between(random, 100, 10_000) as u32;
            Item { i_id, im_id, price, name: text(random, 14), data: original(random), spare: [0; 2] }
        };
        self.items_of(part).map(|i_id| (i_id, row(i_id))).collect()
    }

    pub(super) fn stocks(&self, part: u64) -> Vec<(StockKey, Stock)> {
        let (w_id, part) = ((part / self.item_parts()) as u16 + 1, part % self.item_parts());
        let row = |i_id| {
            let random = &mut self.random(Stream::Stock, w_id, 0, i_id);
            Stock {
                i_id,
                ytd: 0,
                order_cnt: 0,
                remote_cnt: 0,
                w_id,
                quantity: between(random, 10, 100) as i16,
                dist: std::array::from_fn(|_| text(random, 24)),
                data: original(random),
                spare: [0; 2],
            }
        };
        self.items_of(part).map(|i_id| ((w_id, i_id), row(i_id))).collect()
    }

    pub(super) fn warehouse(&self, part: u64) -> Vec<(u16, Warehouse)> {
        let w_id = part as u16 + 1;
        let random = &mut self.random(Stream::Warehouse, w_id, 0, 0);
        let districts = i64::from(self.scale.districts);
        let warehouse = Warehouse {
            ytd: PAID_AT_FIRST * i64::from(self.scale.customers) * districts,
            w_id,
            tax: random.below(2_001) as u16,
            name: text(random, 6),
            address: address(random),
            spare: [0; 3],
        };
        vec![(w_id, warehouse)]
    }

    /// Returns the takings of a warehouse and of its districts. Their rows count what was paid at
    /// first.
    pub(super) fn takings(&self, part: u64) -> Vec<(DistrictKey, Takings)> {
        let w_id = part as u16 + 1;
        let takings = |d_id| ((w_id, d_id), Takings { ytd: 0, w_id, d_id, spare: [0; 5] });
        (0..=self.scale.districts).map(takings).collect()
    }

    pub(super) fn district(&self, part: u64) -> Vec<(DistrictKey, District)> {
        let (w_id, d_id) = self.place(part);
        let random = &mut self.random(Stream::District, w_id, d_id, 0);
        let district = District {
            ytd: PAID_AT_FIRST * i64::from(self.scale.customers),
            next_o_id: u32::from(self.scale.customers) + 1,
            w_id,
            tax: random.below(2_001) as u16,
            d_id,
            name: text(random, 6),
            address: address(random),
            spare: [0; 6],
        };
        vec![((w_id, d_id), district)]
    }

    /// Draws the number of the last name, and the first name. A customer's stream begins with
    /// these.
    fn names(&self, random: &mut Prng, c_id: u16) -> (u16, [u8; 16]) {
        let names = self.scale.names();
        let name =
            if c_id <= names { c_id - 1 } else { nurand(random, 255, C_LAST_LOAD, 0, u64::from(names) - 1) as u16 };
        (name, text(random, 8))
    }

    pub(super) fn customers(&self, part: u64) -> Vec<(CustomerKey, Customer)> {
        let (w_id, d_id) = self.place(part);
        let row = |c_id: u16| {
            let random = &mut self.random(Stream::Customer, w_id, d_id, c_id.into());
            let (name, first) = self.names(random, c_id);
            Customer {
                balance: -PAID_AT_FIRST,
                ytd_payment: PAID_AT_FIRST,
                credit_lim: 5_000_000,
                since: LOADED_AT,
                payment_cnt: 1,
                delivery_cnt: 0,
                w_id,
                c_id,
                discount: random.below(5_001) as u16,
                d_id,
                first,
                middle: *b"OE",
                last: last_name(name),
                address: address(random),
                phone: digits(random),
                credit: if random.below(10) == 0 { *b"BC" } else { *b"GC" },
                data: text(random, 300),
                spare: [0; 2],
            }
        };
        (1..=self.scale.customers).map(|c_id| ((w_id, d_id, c_id), row(c_id))).collect()
    }

    pub(super) fn by_name(&self, part: u64) -> Vec<(ByNameKey, ())> {
        let (w_id, d_id) = self.place(part);
        let key = |c_id: u16| {
            let (name, first) = self.names(&mut self.random(Stream::Customer, w_id, d_id, c_id.into()), c_id);
            (((w_id, d_id), name, first, c_id), ())
        };
        let mut keys: Vec<_> = (1..=self.scale.customers).map(key).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn history(&self, part: u64) -> Vec<(u64, History)> {
        let ((w_id, d_id), customers) = (self.place(part), u64::from(self.scale.customers));
        let row = |c_id: u16| {
            let random = &mut self.random(Stream::History, w_id, d_id, c_id.into());
            let (date, amount, data) = (LOADED_AT, PAID_AT_FIRST, text(random, 12));
            History { date, amount, c_w_id: w_id, c_id, w_id, c_d_id: d_id, d_id, data }
        };
        // No transaction has an id this small.
        (1..=self.scale.customers).map(|c_id| (part * customers + u64::from(c_id), row(c_id))).collect()
    }

    /// Makes the orders of a district. Each customer has one, in random order.
    pub(super) fn orders(&self, part: u64) -> Vec<(OrderKey, Order)> {
        let (w_id, d_id) = self.place(part);
        let random = &mut self.random(Stream::Orders, w_id, d_id, 0);
        let mut c_ids: Vec<u16> = (1..=self.scale.customers).collect();
        for last in (1..c_ids.len()).rev() {
            c_ids.swap(last, random.below(last as u64 + 1) as usize);
        }
        let delivered = u32::from(self.scale.customers - self.scale.undelivered);
        let row = |(o_id, c_id)| {
            let ol_cnt = between(random, LINES_MIN as u64, LINES_MAX as u64) as u8;
            let carrier_id = if o_id <= delivered { between(random, 1, 10) as u8 } else { 0 };
            let order = Order { entry_d: LOADED_AT, c_id, carrier_id, ol_cnt, all_local: 1, spare: [0; 3] };
            ((w_id, d_id, o_id), order)
        };
        (1..).zip(c_ids).map(row).collect()
    }

    pub(super) fn by_customer(&self, part: u64) -> Vec<(ByCustomerKey, ())> {
        let key = |((w_id, d_id, o_id), order): (OrderKey, Order)| ((w_id, d_id, order.c_id, o_id), ());
        let mut keys: Vec<_> = self.orders(part).into_iter().map(key).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn new_orders(&self, part: u64) -> Vec<(OrderKey, ())> {
        let ((w_id, d_id), last) = (self.place(part), u32::from(self.scale.customers));
        (last - u32::from(self.scale.undelivered) + 1..=last).map(|o_id| ((w_id, d_id, o_id), ())).collect()
    }

    pub(super) fn order_lines(&self, part: u64) -> Vec<(OrderLineKey, OrderLine)> {
        let mut rows = Vec::new();
        for ((w_id, d_id, o_id), Order { carrier_id, ol_cnt, entry_d, .. }) in self.orders(part) {
            let random = &mut self.random(Stream::Lines, w_id, d_id, o_id);
            let delivered = carrier_id > 0;
            for number in 1..=ol_cnt {
                let row = OrderLine {
                    delivery_d: if delivered { entry_d } else { 0 },
                    i_id: between(random, 1, self.scale.items.into()) as u32,
                    amount: if delivered { 0 } else { between(random, 1, 999_999) as u32 },
                    supply_w_id: w_id,
                    quantity: 5,
                    dist_info: text(random, 24),
                    spare: [0; 5],
                };
                rows.push(((w_id, d_id, o_id, number), row));
            }
        }
        rows
    }
}

/// Draws letters and digits, at least `least` of them, followed by zeros.
fn text<const N: usize>(random: &mut Prng, least: usize) -> [u8; N] {
    const SYMBOLS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZab";
    /// The number of characters from one draw, at six bits each.
    const FROM_ONE: usize = 10;
    let length = between(random, least as u64, N as u64) as usize;
    let mut text = [0; N];
    for some in text[..length].chunks_mut(FROM_ONE) {
        let mut bits = random.next_u64();
        for symbol in some {
            *symbol = SYMBOLS[(bits & 63) as usize];
            bits >>= 6;
        }
    }
    text
}

fn digits<const N: usize>(random: &mut Prng) -> [u8; N] {
    std::array::from_fn(|_| b'0' + random.below(10) as u8)
}

fn address(random: &mut Prng) -> Address {
    let [a, b, c, d] = digits(random);
    Address {
        street: std::array::from_fn(|_| text(random, 10)),
        city: text(random, 10),
        state: std::array::from_fn(|_| b'A' + random.below(26) as u8),
        zip: [a, b, c, d, b'1', b'1', b'1', b'1', b'1'],
    }
}

/// Draws 26 to 50 letters and digits. A tenth of these texts have `ORIGINAL` somewhere.
fn original(random: &mut Prng) -> [u8; 50] {
    const ORIGINAL: &[u8] = b"ORIGINAL";
    let mut data: [u8; 50] = text(random, 26);
    if random.below(10) == 0 {
        let length = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
        let at = random.below((length - ORIGINAL.len() + 1) as u64) as usize;
        data[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcc::Scale;

    fn population(seed: u64) -> Population {
        Population { scale: Scale::full(1), seed }
    }

    #[test]
    fn a_district_is_the_specifications() {
        let population = population(1);
        let part = 3;
        let customers = population.customers(part);
        assert_eq!(customers.len(), 3_000);
        let bad = customers.iter().filter(|(_, row)| row.credit == *b"BC").count();
        assert!((200..400).contains(&bad), "{bad} of 3,000 have bad credit");
        assert!(customers[..1_000].iter().enumerate().all(|(number, (_, row))| row.last == last_name(number as u16)));

        let orders = population.orders(part);
        let mut c_ids: Vec<u16> = orders.iter().map(|(_, row)| row.c_id).collect();
        assert!(!c_ids.is_sorted(), "in random order");
        c_ids.sort_unstable();
        assert!(c_ids.into_iter().eq(1..=3_000), "each customer has one");
        assert!(orders.iter().all(|((.., o_id), row)| (row.carrier_id == 0) == (*o_id > 2_100)));
        let lines = population.order_lines(part);
        let wanted: usize = orders.iter().map(|(_, row)| usize::from(row.ol_cnt)).sum();
        assert_eq!(lines.len(), wanted);
        assert!((29_000..31_000).contains(&lines.len()), "ten on average: {}", lines.len());
        assert!(lines.iter().all(|((_, _, o_id, _), row)| (row.delivery_d == 0) == (*o_id > 2_100)));
        assert!(lines.iter().all(|((_, _, o_id, _), row)| (row.amount == 0) == (*o_id <= 2_100)));
        assert_eq!(population.new_orders(part).len(), 900);

        let original = |data: &[u8]| data.windows(8).any(|some| some == b"ORIGINAL");
        let items = population.items(9);
        assert_eq!(items.last().map(|(i_id, _)| *i_id), Some(100_000));
        let share = items.iter().filter(|(_, row)| original(&row.data)).count();
        assert!((850..1_150).contains(&share), "ORIGINAL is in {share} of 10,000 items");
    }

    /// Every customer is found by name, and the most frequent names have the expected numbers.
    #[test]
    fn names_are_complete() {
        let population = population(2);
        let mut largest = Vec::new();
        for part in 0..10 {
            let (customers, keys) = (population.customers(part), population.by_name(part));
            assert_eq!(keys.len(), customers.len());
            for ((_, name, first, c_id), ()) in &keys {
                let customer = &customers[usize::from(*c_id) - 1].1;
                assert_eq!((customer.last, customer.first), (last_name(*name), *first));
            }
            largest.extend(keys.chunk_by(|one, other| one.0.1 == other.0.1).map(<[_]>::len).max());
        }
        let mean = largest.iter().sum::<usize>() as f64 / largest.len() as f64;
        assert!((50.0..75.0).contains(&mean), "the largest of each district: {largest:?}");
    }

    #[test]
    fn a_seed_is_a_population() {
        let rows = |seed| {
            let population = population(seed);
            format!("{:?}", population.order_lines(0).last())
        };
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
    }
}
