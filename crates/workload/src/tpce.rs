//! A part of TPC-E: its Customer-Position, and the transactions that change what it reads. The
//! published measurements of distributed read-only transactions use this part. It is **not** the
//! TPC-E benchmark, and its results must not be compared with results of TPC-E.
//!
//! | transaction       | share | reads and writes                                                    | round trips (`drtm-r`) |
//! | ----------------- | ----: | ------------------------------------------------------------------- | ---------------------: |
//! | customer_position |  79 % | customer R; n account R, holding_summary R; m last_trade R          | 4                      |
//! | ... second frame  |       | ... with those accounts: trade R, trade_history R                   | 4                      |
//! | market_feed       |   1 % | 20 last_trade U                                                     | 3                      |
//! | trade             |  20 % | customer, last_trade R, account U, holding_summary U, trade I, trade_history 2 I | 4, and 1 for a split |
//!
//! n is 1 to 10, 5 on average. m is the number of different securities that the accounts hold,
//! about 50 on average. R only reads, U updates, I inserts. What is behind a semicolon needs the
//! result of what is before it. Everything else of a transaction is fetched in one round. Half of
//! the Customer-Positions have the second frame: the latest ten trades of one account, with their
//! history.
//!
//! Holding summaries, trades and histories of trades are ordered tables by account. The holdings of
//! all accounts of a customer are one range, because the customer's accounts have consecutive
//! numbers. The trades of different accounts are in different leaves when they are loaded. The
//! other tables are hash tables.
//!
//! # Differences from TPC-E
//!
//! - Four of its twelve transactions run, two of them as one, and six of its 33 tables are there.
//!   The shares are chosen so that 79 % of the transactions only read, as the texts say of TPC-E's
//!   own mix. Writers have TPC-E's proportion of one Market-Feed to ten Trade-Orders and ten
//!   Trade-Results.
//! - A *trade* is a Trade-Order and the Trade-Result that completes it, as one transaction, so its
//!   share is that of both. All orders are market orders. There are no lots (HOLDING), taxes and
//!   brokers. The history of a trade has two entries.
//! - A Market-Feed draws its 20 securities, prices and volumes. It triggers no limit orders.
//! - Customers, accounts and securities are drawn evenly. TPC-E draws customers by their tier. All
//!   customers are named by their ids, where TPC-E names half of them by their tax ids.
//! - An account trades 2 to 18 securities, with the same probability for each number. In TPC-E the
//!   number depends on the tier and on the number of accounts; the mean, ten, is about TPC-E's.
//! - 10 trades of each account are loaded, instead of about 3,500. Trades are never removed. So a
//!   run needs room for the trades that it makes ([`Room`]), and ends when there is none.
//! - Two columns of an account and one of a last trade are added. They let a reader check that all
//!   that it has read is of one state.

mod audit;
mod population;
pub mod rows;
mod tables;
mod transactions;

use std::pin::pin;

use remora::protocol::Protocol;
use remora::{Cluster, Error, OpenError, Session, TransactionOptions};
use remora_fabric::{Outlined, outline};

pub use tables::Tables;
pub use transactions::{FeedInput, LATEST, Position, PositionInput, TICKERS, Ticker, TradeInput, Traded};

use crate::guestbook::{LEDGER_WORDS, Ledger, PARAMETERS, Parameters};
use crate::report::Invariant;
use crate::sizing::{self, Setting};
use crate::tpcc::Inconsistent;
use crate::{After, Prng, Workload, draw_from, glance_range, touch};
use population::Population;
use rows::account_id;
use tables::Capacity;

/// The transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A customer asks what all accounts hold and are worth.
    CustomerPosition,
    /// The market reports the last trades of securities.
    MarketFeed,
    /// A customer buys or sells.
    Trade,
}

impl Kind {
    /// All kinds, with their share of the mix in percent.
    pub const MIX: [(Kind, u64); 3] = [(Kind::CustomerPosition, 79), (Kind::MarketFeed, 1), (Kind::Trade, 20)];

    /// Draws the next kind of the mix.
    #[must_use]
    pub fn draw(random: &mut Prng) -> Kind {
        draw_from(&Kind::MIX, random)
    }

    /// Returns the kind with this name in reports.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        let place = Tpce::TYPES.iter().position(|known| *known == name)?;
        Some(Kind::MIX[place].0)
    }
}

/// The size of the database: how many customers and securities there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// The number of customers, at least one.
    pub customers: u32,
    /// The number of securities, at least one.
    pub securities: u32,
}

impl Scale {
    /// The largest number of customers. Account ids have room for no more.
    pub const CUSTOMERS_MAX: u32 = 400_000_000;
    /// The number of securities for each 1,000 customers.
    pub const SECURITIES: u32 = 685;

    /// Returns TPC-E's scale: 685 securities for each 1,000 customers.
    #[must_use]
    pub fn of_customers(customers: u32) -> Scale {
        let securities = u64::from(customers) * u64::from(Scale::SECURITIES) / 1_000;
        Scale { customers, securities: securities.max(1) as u32 }
    }

    fn is_allowed(&self) -> bool {
        (1..=Scale::CUSTOMERS_MAX).contains(&self.customers) && self.securities > 0
    }
}

/// The room for rows that are added to the loaded ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The number of trades.
    pub trades: u64,
}

impl Room {
    /// Returns room for `transactions` transactions of the mix, with six standard deviations.
    #[must_use]
    pub fn for_transactions(transactions: u64) -> Room {
        Room { trades: transactions / 5 + 3 * transactions.isqrt() + 20 }
    }
}

/// What committed transactions have done, in sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// The number of trades.
    pub trades: u64,
    /// The number of last trades that Market-Feeds have updated.
    pub tickers: u64,
    /// The number of shares that Market-Feeds have reported.
    pub volume: u64,
    /// The number of Customer-Positions that have read rows which contradict each other.
    pub torn: u64,
}

impl Ledger for Done {
    fn to_words(&self) -> [i64; LEDGER_WORDS] {
        [self.trades, self.tickers, self.volume, self.torn].map(|count| count as i64)
    }

    fn from_words(words: [i64; LEDGER_WORDS]) -> Done {
        let [trades, tickers, volume, torn] = words.map(|count| count as u64);
        Done { trades, tickers, volume, torn }
    }
}

/// The database: see the [module](self).
#[derive(Clone, Debug)]
pub struct Tpce {
    tables: Tables,
    population: Population,
    room: Room,
    attempts: u32,
    /// Whether Customer-Positions read snapshots.
    snapshots: bool,
    only: Option<Kind>,
    serializable: bool,
}

impl Tpce {
    /// Default number of customers for each thread.
    pub const CUSTOMERS_PER_THREAD: u32 = 1_000;

    /// Creates the tables and loads the population of a seed.
    pub fn load(cluster: &Cluster, scale: Scale, room: Room, seed: u64) -> Result<Tpce, OpenError> {
        assert!(scale.is_allowed(), "{scale:?}");
        let population = Population { scale, seed };
        let tables = Tables::load(cluster, &Capacity::of(&scale, room), population)?;
        Ok(Tpce::of(cluster, tables, population, room))
    }

    fn of(cluster: &Cluster, tables: Tables, population: Population, room: Room) -> Tpce {
        let (attempts, serializable) = (TransactionOptions::default().attempts, cluster.protocol().is_serializable());
        Tpce { tables, population, room, attempts, snapshots: false, only: None, serializable }
    }

    /// Returns the size of the database.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.population.scale
    }

    /// Returns the room that the tables had for further rows.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Returns this workload with snapshots, or without, for Customer-Positions.
    #[must_use]
    pub fn with_snapshots(self, snapshots: bool) -> Tpce {
        Tpce { snapshots, ..self }
    }

    /// Returns this workload with transactions that are given up after `attempts` attempts.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> Tpce {
        Tpce { attempts, ..self }
    }

    /// Returns this workload with transactions of one kind only. `None` means the mix.
    #[must_use]
    pub fn with_only(self, only: Option<Kind>) -> Tpce {
        Tpce { only, ..self }
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
        let (population, now) = (&self.population, session.lane().now());
        match kind {
            Kind::CustomerPosition => {
                let input = PositionInput::draw(population, random);
                let position = self.customer_position(session, &input).await?;
                ledger.torn += u64::from(position.is_torn);
            }
            Kind::MarketFeed => {
                let input = FeedInput::draw(population, now, random);
                self.market_feed(session, &input).await?;
                ledger.tickers += input.count as u64;
                ledger.volume += input.tickers().iter().map(|ticker| ticker.quantity).sum::<u64>();
            }
            Kind::Trade => {
                let input = TradeInput::draw(population, now, random);
                self.trade(session, &input).await?;
                ledger.trades += 1;
            }
        }
        Ok(())
    }

    fn options(&self, kind: Kind) -> TransactionOptions {
        let options = TransactionOptions::default().label(kind as u16).attempts(self.attempts);
        options.snapshot(self.snapshots && kind == Kind::CustomerPosition)
    }
}

impl Workload for Tpce {
    type Ledger = Done;

    const NAME: &'static str = "tpce";

    const TYPES: &'static [&'static str] = &["customer_position", "market_feed", "trade"];

    const INVARIANTS: &'static [&'static str] = audit::NAMES;

    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<Tpce, OpenError> {
        let [customers, securities, trades, seed, ..] = *parameters;
        let scale = Scale { customers: customers as u32, securities: securities as u32 };
        Ok(Tpce::of(cluster, Tables::open(cluster)?, Population { scale, seed }, Room { trades }))
    }

    fn parameters(&self) -> Parameters {
        let Population { scale: Scale { customers, securities }, seed } = self.population;
        let mut parameters = [0; PARAMETERS];
        parameters[..4].copy_from_slice(&[customers.into(), securities.into(), self.room.trades, seed]);
        parameters
    }

    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        const PAGE: usize = 1_000;
        /// The number of customers whose rows are read before the next ones.
        const CUSTOMERS: u32 = 100;
        let bound = |all: u32, part: u64| (u128::from(all) * u128::from(part) / u128::from(parts)) as u32 + 1;
        let share = |all| bound(all, part)..bound(all, part + 1);
        let (tables, population) = (&self.tables, self.population);
        touch(session, &tables.last_trade, share(population.scale.securities)).await?;
        let customers = share(population.scale.customers);
        for first in customers.clone().step_by(CUSTOMERS as usize) {
            let end = customers.end.min(first + CUSTOMERS);
            touch(session, &tables.customer, first..end).await?;
            let accounts =
                (first..end).flat_map(|c_id| (0..population.tier(c_id).1).map(move |number| account_id(c_id, number)));
            touch(session, &tables.account, accounts).await?;
            let (from, to) = (account_id(first, 0), account_id(end, 0) - 1);
            glance_range(session, &tables.holding_summary, (from, 0)..=(to, u32::MAX), PAGE).await?;
            glance_range(session, &tables.trade, (from, 0)..=(to, u32::MAX), PAGE).await?;
            glance_range(session, &tables.trade_history, (from, 0, 0)..=(to, u32::MAX, u8::MAX), PAGE).await?;
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut Done) -> Result<(), Error> {
        let kind = self.only.unwrap_or_else(|| Kind::draw(random));
        pin!(self.run(session, kind, random, ledger)).await
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, Done>) -> Result<Vec<Invariant>, Error> {
        audit::audit(self, cluster, &after)
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
        assert!(places && Tpce::TYPES.len() == Kind::MIX.len());
        assert_eq!(["trade", "trade_order"].map(Kind::named), [Some(Kind::Trade), None]);
    }

    #[test]
    fn parameters_are_found_again() {
        let (scale, room) = (Scale { customers: 20, securities: 30 }, Room::for_transactions(1_000));
        let cluster = Cluster::embedded().nodes(1).replicas(1).open().expect("memory");
        let tpce = Tpce::load(&cluster, scale, room, 7).expect("room");
        let found = Tpce::open(&cluster, &tpce.parameters()).expect("tables");
        assert_eq!((found.population, found.room), (tpce.population, room));
    }

    /// Half of the Customer-Positions have the second frame, and it is of any account.
    #[test]
    fn inputs_concern_what_is_there() {
        let population = Population { scale: Scale { customers: 50, securities: 25 }, seed: 3 };
        let (mut random, mut second, mut sold) = (Prng::new(4), 0, 0);
        for _ in 0..10_000 {
            let position = PositionInput::draw(&population, &mut random);
            assert!((1..=50).contains(&position.c_id));
            second += u32::from(position.history_of.is_some());
            let accounts = population.tier(position.c_id).1;
            assert!(position.history_of.is_none_or(|number| number < accounts));
            let trade = TradeInput::draw(&population, 0, &mut random);
            assert!(population.has_account(trade.ca_id));
            assert!(population.securities(trade.ca_id).symbols().contains(&trade.symbol));
            sold += u32::from(trade.quantity < 0);
            let feed = FeedInput::draw(&population, 0, &mut random);
            let symbols: Vec<u32> = feed.tickers().iter().map(|ticker| ticker.symbol).collect();
            assert!(symbols.len() == TICKERS && symbols.is_sorted_by(|one, other| one < other), "{symbols:?}");
            assert!(symbols.iter().all(|symbol| (1..=25).contains(symbol)));
        }
        assert!((4_700..5_300).contains(&second) && (4_700..5_300).contains(&sold), "{second}, {sold}");
    }
}
