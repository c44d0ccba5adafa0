//! The parameters of transactions (clauses 2.4.1 to 2.8.1). They are drawn before the first
//! attempt, and all further attempts keep them.

use crate::Prng;
use crate::tpcc::Scale;
use crate::tpcc::rows::{LINES_MAX, LINES_MIN};

/// The specification's constant C for last names, when they are loaded.
pub(super) const C_LAST_LOAD: u64 = 157;
/// The specification's constant C for last names, when they are looked up.
const C_LAST_RUN: u64 = 223;
/// The specification's constant C for customers.
const C_ID: u64 = 259;
/// The specification's constant C for items.
const I_ID: u64 = 7_911;

// Clause 2.1.6.1 says how far the two constants must be apart.
const _: () = {
    let apart = C_LAST_RUN - C_LAST_LOAD;
    assert!(apart >= 65 && apart <= 119 && apart != 96 && apart != 112);
};

/// Draws a number from `least` to `most`, both included.
pub(super) fn between(random: &mut Prng, least: u64, most: u64) -> u64 {
    least + random.below(most - least + 1)
}

/// Draws from the specification's non-uniform distribution. The OR of two numbers sets more bits
/// than either has.
pub(super) fn nurand(random: &mut Prng, a: u64, c: u64, least: u64, most: u64) -> u64 {
    ((random.below(a + 1) | between(random, least, most)) + c) % (most - least + 1) + least
}

fn customer(scale: &Scale, random: &mut Prng) -> u16 {
    nurand(random, 1_023, C_ID, 1, scale.customers.into()) as u16
}

fn warehouse(scale: &Scale, random: &mut Prng) -> u16 {
    between(random, 1, scale.warehouses.into()) as u16
}

fn district(scale: &Scale, random: &mut Prng) -> u8 {
    between(random, 1, scale.districts.into()) as u8
}

/// Draws any warehouse but this one, if there is another.
fn other_warehouse(scale: &Scale, random: &mut Prng, w_id: u16) -> u16 {
    if scale.warehouses == 1 {
        return w_id;
    }
    let other = between(random, 1, u64::from(scale.warehouses) - 1) as u16;
    other + u16::from(other >= w_id)
}

/// The way in which a transaction names a customer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// By the customer's number.
    Id(u16),
    /// By the number of the last name: the middle one of all customers who have it.
    Name(u16),
}

impl Who {
    /// Draws a customer, in 60 % of the cases by name.
    fn draw(scale: &Scale, random: &mut Prng) -> Who {
        if random.below(100) < 60 {
            Who::Name(nurand(random, 255, C_LAST_RUN, 0, u64::from(scale.names()) - 1) as u16)
        } else {
            Who::Id(customer(scale, random))
        }
    }
}

/// A line of an order that is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The item. A number beyond the last item does not exist, and makes the transaction give up.
    pub i_id: u32,
    /// The warehouse that supplies the item.
    pub supply_w_id: u16,
    /// The number of pieces.
    pub quantity: u8,
}

/// The parameters of a New-Order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewOrderInput {
    /// The warehouse.
    pub w_id: u16,
    /// The district.
    pub d_id: u8,
    /// The customer.
    pub c_id: u16,
    /// The time of the order.
    pub entry_d: u64,
    /// The number of lines.
    pub ol_cnt: u8,
    /// The lines, of which the first `ol_cnt` count.
    pub lines: [Wanted; LINES_MAX],
}

impl NewOrderInput {
    /// Draws a New-Order of 5 to 15 lines. Another warehouse supplies 1 % of the lines, and 1 % of
    /// the orders have an item that does not exist. With `always_distributed`, another warehouse
    /// supplies at least one line.
    pub(super) fn draw(scale: &Scale, always_distributed: bool, entry_d: u64, random: &mut Prng) -> NewOrderInput {
        let (w_id, d_id, c_id) = (warehouse(scale, random), district(scale, random), customer(scale, random));
        let ol_cnt = between(random, LINES_MIN as u64, LINES_MAX as u64) as u8;
        let mut lines = [Wanted::default(); LINES_MAX];
        for line in &mut lines[..usize::from(ol_cnt)] {
            let remote = random.below(100) == 0;
            *line = Wanted {
                i_id: nurand(random, 8_191, I_ID, 1, scale.items.into()) as u32,
                supply_w_id: if remote { other_warehouse(scale, random, w_id) } else { w_id },
                quantity: between(random, 1, 10) as u8,
            };
        }
        if random.below(100) == 0 {
            lines[usize::from(ol_cnt) - 1].i_id = scale.items + 1;
        }
        if always_distributed {
            let one = random.below(ol_cnt.into()) as usize;
            lines[one].supply_w_id = other_warehouse(scale, random, w_id);
        }
        NewOrderInput { w_id, d_id, c_id, entry_d, ol_cnt, lines }
    }

    /// Returns the lines of the order.
    #[must_use]
    pub fn lines(&self) -> &[Wanted] {
        &self.lines[..usize::from(self.ol_cnt)]
    }
}

/// The parameters of a Payment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaymentInput {
    /// The warehouse where it is paid.
    pub w_id: u16,
    /// The district where it is paid.
    pub d_id: u8,
    /// The customer's warehouse.
    pub c_w_id: u16,
    /// The customer's district.
    pub c_d_id: u8,
    /// The customer.
    pub who: Who,
    /// The amount in cents.
    pub amount: i64,
    /// The time of the payment.
    pub date: u64,
}

impl PaymentInput {
    /// Draws a Payment, in 15 % of the cases by a customer of another warehouse.
    pub(super) fn draw(scale: &Scale, date: u64, random: &mut Prng) -> PaymentInput {
        let (w_id, d_id) = (warehouse(scale, random), district(scale, random));
        let remote = scale.warehouses > 1 && random.below(100) < 15;
        let (c_w_id, c_d_id) =
            if remote { (other_warehouse(scale, random, w_id), district(scale, random)) } else { (w_id, d_id) };
        let amount = between(random, 100, 500_000) as i64;
        PaymentInput { w_id, d_id, c_w_id, c_d_id, who: Who::draw(scale, random), amount, date }
    }
}

/// The parameters of an Order-Status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderStatusInput {
    /// The customer's warehouse.
    pub w_id: u16,
    /// The customer's district.
    pub d_id: u8,
    /// The customer.
    pub who: Who,
}

impl OrderStatusInput {
    pub(super) fn draw(scale: &Scale, random: &mut Prng) -> OrderStatusInput {
        let (w_id, d_id) = (warehouse(scale, random), district(scale, random));
        OrderStatusInput { w_id, d_id, who: Who::draw(scale, random) }
    }
}

/// The parameters of a Delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeliveryInput {
    /// The warehouse.
    pub w_id: u16,
    /// The carrier, who delivers.
    pub carrier_id: u8,
    /// The time of the delivery.
    pub date: u64,
}

impl DeliveryInput {
    pub(super) fn draw(scale: &Scale, date: u64, random: &mut Prng) -> DeliveryInput {
        DeliveryInput { w_id: warehouse(scale, random), carrier_id: between(random, 1, 10) as u8, date }
    }
}

/// The parameters of a Stock-Level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StockLevelInput {
    /// The warehouse.
    pub w_id: u16,
    /// The district.
    pub d_id: u8,
    /// The threshold: an item with fewer pieces is low in stock.
    pub threshold: i16,
}

impl StockLevelInput {
    pub(super) fn draw(scale: &Scale, random: &mut Prng) -> StockLevelInput {
        let (w_id, d_id) = (warehouse(scale, random), district(scale, random));
        StockLevelInput { w_id, d_id, threshold: between(random, 10, 20) as i16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 100_000;

    fn is_near(count: u64, of: u64, share: f64) -> bool {
        (count as f64 / of as f64 - share).abs() < 0.01
    }

    #[test]
    fn orders_are_the_specifications() {
        let (scale, random) = (Scale::full(3), &mut Prng::new(1));
        let (mut lines, mut remote, mut unused, mut distributed) = (0, 0, 0, 0);
        for _ in 0..DRAWS {
            let input = NewOrderInput::draw(&scale, false, 0, random);
            assert!((1..=3).contains(&input.w_id) && (1..=10).contains(&input.d_id));
            assert!((1..=3_000).contains(&input.c_id) && (5..=15).contains(&input.ol_cnt));
            let is_remote = |line: &&Wanted| line.supply_w_id != input.w_id;
            lines += u64::from(input.ol_cnt);
            remote += input.lines().iter().filter(is_remote).count() as u64;
            unused += u64::from(input.lines().iter().any(|line| line.i_id > 100_000));
            let always = NewOrderInput::draw(&scale, true, 0, random);
            distributed += u64::from(always.lines().iter().any(|line| line.supply_w_id != always.w_id));
        }
        assert!(is_near(lines, DRAWS * 10, 1.0) && is_near(remote, lines, 0.01) && is_near(unused, DRAWS, 0.01));
        assert_eq!(distributed, DRAWS);
        let alone = NewOrderInput::draw(&Scale::full(1), true, 0, random);
        assert!(alone.lines().iter().all(|line| line.supply_w_id == 1), "there is no other");
    }

    #[test]
    fn payments_are_the_specifications() {
        let (scale, random) = (Scale::full(2), &mut Prng::new(2));
        let (mut remote, mut by_name) = (0, 0);
        for _ in 0..DRAWS {
            let input = PaymentInput::draw(&scale, 0, random);
            remote += u64::from(input.c_w_id != input.w_id);
            by_name += u64::from(matches!(input.who, Who::Name(name) if name < 1_000));
            assert!((100..=500_000).contains(&input.amount));
        }
        assert!(is_near(remote, DRAWS, 0.15) && is_near(by_name, DRAWS, 0.6), "{remote} {by_name}");
    }

    #[test]
    fn the_distribution_is_uneven_and_within_its_bounds() {
        let random = &mut Prng::new(3);
        let mut drawn = vec![0_u64; 3_001];
        (0..DRAWS).for_each(|_| drawn[nurand(random, 1_023, C_ID, 1, 3_000) as usize] += 1);
        assert_eq!(drawn[0], 0);
        drawn.sort_unstable_by(|a, b| b.cmp(a));
        let most: u64 = drawn[..150].iter().sum();
        assert!(most * 5 > DRAWS, "a twentieth of the customers has {most} of {DRAWS} draws");
    }
}
