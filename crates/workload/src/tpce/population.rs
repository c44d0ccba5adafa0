//! The first contents of the tables. Every row follows from the seed alone. So each client knows
//! which accounts a customer has and what they trade, as TPC-E's driver does.

use crate::Prng;
use crate::tpce::Scale;
use crate::tpce::rows::{
    ACCOUNTS_MAX, Account, Customer, HistoryEntry, HistoryKey, Holding, HoldingKey, LastTrade, SECURITIES_MAX, STATES,
    Trade, TradeKey, account_id, customer_of,
};

/// The balance of an account at the beginning: 100,000.00.
pub(super) const BALANCE_AT_FIRST: i64 = 10_000_000;
/// The number of trades of an account at the beginning. Their effects are in the first balances and
/// holdings.
pub(super) const TRADES_AT_FIRST: u32 = 10;
/// The time of loading, in nanoseconds of no clock.
const LOADED_AT: u64 = 1;
/// The lowest and the highest price of a share, in cents.
const PRICES: (i64, i64) = (2_000, 3_000);
/// The smallest number of securities that an account trades.
const SECURITIES_MIN: u64 = 2;
/// Numbers of shares of a trade.
const QUANTITIES: [i32; 4] = [100, 200, 400, 800];
/// Largest number of shares of a loaded holding.
const HELD_MAX: u64 = 800;

/// The use of a stream of random numbers.
#[derive(Clone, Copy)]
enum Stream {
    Customer,
    Securities,
    Holdings,
    Trades,
    Prices,
}

/// Draws a price.
pub(super) fn price(random: &mut Prng) -> i64 {
    PRICES.0 + random.below((PRICES.1 - PRICES.0 + 1) as u64) as i64
}

/// Draws the number of shares of a trade.
pub(super) fn quantity(random: &mut Prng) -> i32 {
    QUANTITIES[random.below(QUANTITIES.len() as u64) as usize]
}

/// Returns the commission of a trade, by the tier of the customer. TPC-E's also depends on the
/// exchange and on the kind and size of the trade.
pub(super) fn commission(tier: u8) -> i64 {
    match tier {
        1 => 1_500,
        2 => 1_000,
        _ => 500,
    }
}

/// Returns what a trade adds to the balance of its account.
pub(super) fn settlement(price: i64, quantity: i32, tier: u8) -> i64 {
    -price * i64::from(quantity) - commission(tier)
}

/// The securities that an account trades, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Securities {
    symbols: [u32; SECURITIES_MAX],
    count: usize,
}

impl Securities {
    pub(super) fn symbols(&self) -> &[u32] {
        &self.symbols[..self.count]
    }
}

/// Makes rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Population {
    pub(super) scale: Scale,
    pub(super) seed: u64,
}

impl Population {
    fn random(&self, stream: Stream, number: u32) -> Prng {
        // The streams of the driver have lower numbers.
        Prng::derive(self.seed, 1 << 63 | (stream as u64) << 56 | u64::from(number))
    }

    /// Returns the tier of a customer, and the number of the customer's accounts: five on average.
    pub(super) fn tier(&self, c_id: u32) -> (u8, u8) {
        let random = &mut self.random(Stream::Customer, c_id);
        let (tier, least, most) = match random.below(10) {
            0..2 => (1, 1, 4),
            2..8 => (2, 2, 8),
            _ => (3, 5, 10),
        };
        (tier, least + random.below(u64::from(most - least) + 1) as u8)
    }

    /// Returns the securities that an account trades: ten on average.
    pub(super) fn securities(&self, ca_id: u32) -> Securities {
        let all = u64::from(self.scale.securities);
        let random = &mut self.random(Stream::Securities, ca_id);
        let drawn = SECURITIES_MIN + random.below(SECURITIES_MAX as u64 - SECURITIES_MIN + 1);
        let wanted = drawn.min(all) as usize;
        let mut securities = Securities { symbols: [0; SECURITIES_MAX], count: 0 };
        while securities.count < wanted {
            let symbol = 1 + random.below(all) as u32;
            if !securities.symbols().contains(&symbol) {
                securities.symbols[securities.count] = symbol;
                securities.count += 1;
            }
        }
        securities.symbols[..wanted].sort_unstable();
        securities
    }

    pub(super) fn customers(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.scale.customers
    }

    /// Returns the accounts of all customers, in ascending order.
    pub(super) fn accounts(self) -> impl Iterator<Item = u32> {
        self.customers().flat_map(move |c_id| (0..self.tier(c_id).1).map(move |number| account_id(c_id, number)))
    }

    /// Whether there is an account of this id.
    pub(super) fn has_account(&self, ca_id: u32) -> bool {
        let c_id = customer_of(ca_id);
        let number = (ca_id % u32::from(ACCOUNTS_MAX)) as u8;
        (1..=self.scale.customers).contains(&c_id) && number < self.tier(c_id).1
    }

    pub(super) fn customer(&self, c_id: u32) -> Customer {
        let (tier, accounts) = self.tier(c_id);
        Customer { c_id, tier, accounts, details: [b'c'; 242] }
    }

    pub(super) fn account(&self, ca_id: u32) -> Account {
        let shares = self.holdings(ca_id).map(|(_, holding)| holding.quantity).sum();
        Account { balance: BALANCE_AT_FIRST, shares, ca_id, trades: TRADES_AT_FIRST, details: [b'a'; 56] }
    }

    pub(super) fn holdings(&self, ca_id: u32) -> impl Iterator<Item = (HoldingKey, Holding)> + use<> {
        let mut random = self.random(Stream::Holdings, ca_id);
        let securities = self.securities(ca_id);
        (0..securities.count).map(move |place| {
            let quantity = 1 + random.below(HELD_MAX) as i64;
            ((ca_id, securities.symbols[place]), Holding { quantity })
        })
    }

    pub(super) fn trades(&self, ca_id: u32) -> impl Iterator<Item = (TradeKey, Trade)> + use<> {
        let mut random = self.random(Stream::Trades, ca_id);
        let (securities, tier) = (self.securities(ca_id), self.tier(customer_of(ca_id)).0);
        (1..=TRADES_AT_FIRST).map(move |number| {
            let symbol = securities.symbols[random.below(securities.count as u64) as usize];
            let (price, quantity) = (price(&mut random), quantity(&mut random));
            let quantity = if random.below(2) == 0 { quantity } else { -quantity };
            let settlement = settlement(price, quantity, tier);
            ((ca_id, number), Trade { date: LOADED_AT, settlement, price, symbol, quantity })
        })
    }

    pub(super) fn history(&self, ca_id: u32) -> impl Iterator<Item = (HistoryKey, HistoryEntry)> + use<> {
        let entry = move |number| STATES.map(|state| ((ca_id, number, state), HistoryEntry { date: LOADED_AT }));
        (1..=TRADES_AT_FIRST).flat_map(entry)
    }

    pub(super) fn last_trade(&self, symbol: u32) -> LastTrade {
        let price = price(&mut self.random(Stream::Prices, symbol));
        LastTrade { date: LOADED_AT, price, open_price: price, volume: 0, symbol, changes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population(customers: u32) -> Population {
        Population { scale: Scale::of_customers(customers), seed: 1 }
    }

    /// Customers have one to ten accounts, five on average, and accounts two to eighteen
    /// securities, ten on average.
    #[test]
    fn numbers_are_tpc_es() {
        let population = population(2_000);
        assert_eq!(population.scale.securities, 1_370);
        let mut of_each = [0_u32; ACCOUNTS_MAX as usize + 1];
        population.customers().for_each(|c_id| of_each[usize::from(population.tier(c_id).1)] += 1);
        assert!(of_each[0] == 0 && of_each[1..].iter().all(|count| *count > 0), "{of_each:?}");
        let accounts = population.accounts().count();
        assert!((9_700..10_300).contains(&accounts), "{accounts}");
        let mut held = [0_u32; SECURITIES_MAX + 1];
        population.accounts().for_each(|ca_id| held[population.securities(ca_id).count] += 1);
        assert!(held[..2] == [0, 0] && held[2..].iter().all(|count| *count > 0), "{held:?}");
        let rows: u32 = held.iter().zip(0..).map(|(count, number)| count * number).sum();
        let mean = f64::from(rows) / accounts as f64;
        assert!((9.8..10.2).contains(&mean), "{mean}");
    }

    /// A client that draws an account must draw one that exists, and rows must be in the order of
    /// their keys.
    #[test]
    fn accounts_are_known_and_in_order() {
        let population = population(300);
        let accounts: Vec<u32> = population.accounts().collect();
        assert!(accounts.is_sorted_by(|one, other| one < other));
        assert!(accounts.iter().all(|ca_id| population.has_account(*ca_id)));
        let all = (0..=account_id(301, 9)).filter(|ca_id| population.has_account(*ca_id));
        assert!(all.eq(accounts.iter().copied()));
        let holdings: Vec<HoldingKey> =
            accounts.iter().flat_map(|ca_id| population.holdings(*ca_id)).map(|(key, _)| key).collect();
        assert!(holdings.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn few_securities_are_all_there_is() {
        let population = Population { scale: Scale { customers: 3, securities: 2 }, seed: 1 };
        assert!(population.accounts().all(|ca_id| population.securities(ca_id).symbols() == [1, 2]));
    }
}
