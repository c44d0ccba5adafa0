//! The transactions, and the parameters that are drawn for them. All attempts of a transaction keep
//! its parameters.

use remora::{Error, Intent, Session, Transaction};
use remora_fabric::{Nanos, Outlined, outline};

use crate::Prng;
use crate::tpce::population::{Population, price, quantity, settlement};
use crate::tpce::rows::{ACCOUNTS_MAX, HistoryEntry, Holding, STATES, Trade, account_id, customer_of};
use crate::tpce::{Kind, Tpce};

/// The number of trades of which a Customer-Position returns the history.
pub const LATEST: usize = 10;
/// The number of securities whose last trades a Market-Feed updates.
pub const TICKERS: usize = 20;

/// The parameters of a Customer-Position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PositionInput {
    /// The customer.
    pub c_id: u32,
    /// If there is a second frame: a number that names one of the customer's accounts, modulo the
    /// number of accounts.
    pub history_of: Option<u8>,
}

impl PositionInput {
    pub(super) fn draw(population: &Population, random: &mut Prng) -> PositionInput {
        let c_id = 1 + random.below(population.scale.customers.into()) as u32;
        let number = random.below(2 * 2_520);
        // 2,520 is a multiple of every possible number of accounts.
        let history_of = number.checked_sub(2_520).map(|number| (number % u64::from(population.tier(c_id).1)) as u8);
        PositionInput { c_id, history_of }
    }
}

/// The parameters of a trade.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TradeInput {
    /// The account.
    pub ca_id: u32,
    /// The security, which is one of the account's.
    pub symbol: u32,
    /// The number of shares that are bought, negative if they are sold.
    pub quantity: i32,
    /// The time.
    pub date: Nanos,
}

impl TradeInput {
    pub(super) fn draw(population: &Population, date: Nanos, random: &mut Prng) -> TradeInput {
        let c_id = 1 + random.below(population.scale.customers.into()) as u32;
        let ca_id = account_id(c_id, random.below(population.tier(c_id).1.into()) as u8);
        let securities = population.securities(ca_id);
        let symbols = securities.symbols();
        let symbol = symbols[random.below(symbols.len() as u64) as usize];
        let quantity = quantity(random);
        TradeInput { ca_id, symbol, quantity: if random.below(2) == 0 { quantity } else { -quantity }, date }
    }
}

/// What a Market-Feed says of one security.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticker {
    /// The security.
    pub symbol: u32,
    /// The price of a share.
    pub price: i64,
    /// The number of shares that were traded.
    pub quantity: u64,
}

/// The parameters of a Market-Feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedInput {
    /// The securities, of which the first `count` are used. They are different ones, in ascending
    /// order.
    pub tickers: [Ticker; TICKERS],
    /// The number of securities: [`TICKERS`], or all, if there are fewer.
    pub count: usize,
    /// The time.
    pub date: Nanos,
}

impl FeedInput {
    pub(super) fn draw(population: &Population, date: Nanos, random: &mut Prng) -> FeedInput {
        let all = population.scale.securities;
        let count = TICKERS.min(all as usize);
        let mut symbols = [0; TICKERS];
        for place in 0..count {
            symbols[place] = loop {
                let symbol = 1 + random.below(all.into()) as u32;
                if !symbols[..place].contains(&symbol) {
                    break symbol;
                }
            };
        }
        symbols[..count].sort_unstable();
        let tickers = symbols.map(|symbol| Ticker {
            symbol,
            price: price(random),
            quantity: quantity(random).unsigned_abs().into(),
        });
        FeedInput { tickers, count, date }
    }

    /// Returns the securities and what happened to them.
    #[must_use]
    pub fn tickers(&self) -> &[Ticker] {
        &self.tickers[..self.count]
    }
}

/// The result of a Customer-Position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The number of the customer's accounts.
    pub accounts: u8,
    /// The number of holdings of all accounts.
    pub holdings: u32,
    /// The cash of all accounts.
    pub cash: i64,
    /// The value of all holdings, by the prices of the last trades.
    pub assets: i64,
    /// The number of trades in the second frame.
    pub trades: u8,
    /// Whether the rows that were read contradict each other.
    pub is_torn: bool,
}

/// The result of a trade.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traded {
    /// The number of the trade within its account.
    pub number: u32,
    /// What was added to the balance.
    pub settlement: i64,
}

impl Tpce {
    /// Runs a Customer-Position: returns what a customer's accounts hold, by the prices of the last
    /// trades. If the parameters ask for the second frame, also looks at the latest trades of one
    /// account.
    #[inline(never)]
    pub fn customer_position(
        &self,
        session: &mut Session,
        input: &PositionInput,
    ) -> Outlined<impl Future<Output = Result<Position, Error>>> {
        outline(async move {
            session.transact_with(self.options(Kind::CustomerPosition), async |tx| self.look_at(tx, input).await).await
        })
    }

    async fn look_at(&self, tx: &mut Transaction<'_, '_>, input: &PositionInput) -> Result<Position, Error> {
        let tables = &self.tables;
        let c_id = input.c_id;
        let customer = tables.customer.get(tx, c_id).await?.ok_or_else(|| tables.customer.missing(c_id))?;
        let count = customer.accounts.clamp(1, ACCOUNTS_MAX);
        let mut accounts = [None; ACCOUNTS_MAX as usize];
        for (slot, number) in accounts.iter_mut().zip(0..count) {
            *slot = Some(tx.want(&tables.account, account_id(c_id, number)));
        }
        let history_of = input.history_of.map(|number| account_id(c_id, number % count));
        if let Some(ca_id) = history_of {
            tables.trade.prefetch(tx, (ca_id, u32::MAX), Intent::Read);
            tables.trade_history.prefetch(tx, (ca_id, u32::MAX, u8::MAX), Intent::Read);
        }
        let range = (account_id(c_id, 0), 0)..=(account_id(c_id, ACCOUNTS_MAX - 1), u32::MAX);
        let holdings = tables.holding_summary.scan(tx, range, usize::MAX).await?;
        let mut symbols: Vec<u32> = holdings.iter().map(|((_, symbol), _)| *symbol).collect();
        symbols.sort_unstable();
        symbols.dedup();
        let prices: Vec<_> = symbols.iter().map(|symbol| tx.want(&tables.last_trade, *symbol)).collect();
        tx.fetch().await?;
        let mut position = Position { accounts: count, holdings: holdings.len() as u32, ..Position::default() };
        for ((_, symbol), holding) in &holdings {
            let place = symbols.binary_search(symbol).unwrap_or_else(|_| unreachable!("it was taken from there"));
            position.assets =
                position.assets.wrapping_add(prices[place].require(tx)?.price.wrapping_mul(holding.quantity));
        }
        let mut trades = 0;
        for slot in accounts.iter().flatten() {
            let account = slot.require(tx)?;
            position.cash = position.cash.wrapping_add(account.balance);
            let of_account = holdings.iter().filter(|((ca_id, _), _)| *ca_id == account.ca_id);
            let shares = of_account.fold(0_i64, |sum, (_, holding)| sum.wrapping_add(holding.quantity));
            position.is_torn |= shares != account.shares;
            if history_of == Some(account.ca_id) {
                trades = account.trades;
            }
        }
        if let Some(ca_id) = history_of {
            self.look_at_trades(tx, ca_id, trades, &mut position).await?;
        }
        Ok(position)
    }

    /// Reads the latest trades of an account, which should have `trades` trades, and their history.
    async fn look_at_trades(
        &self,
        tx: &mut Transaction<'_, '_>,
        ca_id: u32,
        trades: u32,
        position: &mut Position,
    ) -> Result<(), Error> {
        let tables = &self.tables;
        let latest = tables.trade.scan_back(tx, (ca_id, 0)..=(ca_id, u32::MAX), LATEST).await?;
        position.trades = latest.len() as u8;
        let Some(((_, oldest), _)) = latest.last() else {
            position.is_torn |= trades != 0;
            return Ok(());
        };
        // A smaller key could be in the leaf of another account.
        let range = (ca_id, *oldest, STATES[0])..=(ca_id, u32::MAX, u8::MAX);
        let history = tables.trade_history.scan(tx, range, LATEST * STATES.len() + 1).await?;
        let numbers = latest.iter().map(|((_, number), _)| *number);
        position.is_torn |= !numbers.eq((1..=trades).rev().take(LATEST));
        let numbers = latest.iter().rev().map(|((_, number), _)| *number);
        let states = numbers.flat_map(|number| STATES.map(|state| (ca_id, number, state)));
        position.is_torn |= !states.eq(history.iter().map(|(key, _)| *key));
        Ok(())
    }

    /// Runs a Market-Feed: updates the last trades of securities.
    #[inline(never)]
    pub fn market_feed(
        &self,
        session: &mut Session,
        input: &FeedInput,
    ) -> Outlined<impl Future<Output = Result<(), Error>>> {
        outline(async move {
            session.transact_with(self.options(Kind::MarketFeed), async |tx| self.feed(tx, input).await).await
        })
    }

    async fn feed(&self, tx: &mut Transaction<'_, '_>, input: &FeedInput) -> Result<(), Error> {
        let mut slots = [None; TICKERS];
        for (slot, ticker) in slots.iter_mut().zip(input.tickers()) {
            *slot = Some(tx.want_for(&self.tables.last_trade, ticker.symbol, Intent::Update));
        }
        tx.fetch().await?;
        for (slot, ticker) in slots.iter().flatten().zip(input.tickers()) {
            let last = slot.get_mut(tx)?;
            last.price = ticker.price;
            last.volume = last.volume.wrapping_add(ticker.quantity);
            last.changes = last.changes.wrapping_add(1);
            last.date = input.date;
        }
        Ok(())
    }

    /// Runs a trade: a Trade-Order and the Trade-Result that completes it, as one transaction.
    #[inline(never)]
    pub fn trade(
        &self,
        session: &mut Session,
        input: &TradeInput,
    ) -> Outlined<impl Future<Output = Result<Traded, Error>>> {
        outline(async move {
            session.transact_with(self.options(Kind::Trade), async |tx| self.order(tx, input).await).await
        })
    }

    async fn order(&self, tx: &mut Transaction<'_, '_>, input: &TradeInput) -> Result<Traded, Error> {
        let tables = &self.tables;
        let &TradeInput { ca_id, symbol, quantity, date } = input;
        let customer = tx.want(&tables.customer, customer_of(ca_id));
        let account = tx.want_for(&tables.account, ca_id, Intent::Update);
        let last = tx.want(&tables.last_trade, symbol);
        tables.holding_summary.prefetch(tx, (ca_id, symbol), Intent::Update);
        // The trade's number will be the account's highest.
        tables.trade.prefetch(tx, (ca_id, u32::MAX), Intent::Insert);
        tables.trade_history.prefetch(tx, (ca_id, u32::MAX, 0), Intent::Insert);
        tx.fetch().await?;
        let price = last.require(tx)?.price;
        let settlement = settlement(price, quantity, customer.require(tx)?.tier);
        let account = account.get_mut(tx)?;
        account.balance = account.balance.wrapping_add(settlement);
        account.shares = account.shares.wrapping_add(quantity.into());
        account.trades = account.trades.wrapping_add(1);
        let number = account.trades;
        let held = tables.holding_summary.get(tx, (ca_id, symbol)).await?;
        let holding = Holding { quantity: held.map_or(0, |held| held.quantity).wrapping_add(quantity.into()) };
        match held {
            Some(_) if holding.quantity == 0 => _ = tables.holding_summary.remove(tx, (ca_id, symbol)).await?,
            Some(_) => tables.holding_summary.update(tx, (ca_id, symbol), holding).await?,
            None => tables.holding_summary.insert(tx, (ca_id, symbol), holding).await?,
        }
        let row = Trade { date, settlement, price, symbol, quantity };
        tables.trade.insert(tx, (ca_id, number), row).await?;
        for state in STATES {
            tables.trade_history.insert(tx, (ca_id, number, state), HistoryEntry { date }).await?;
        }
        Ok(Traded { number, settlement })
    }
}
