//! The tables: how they are created, loaded and opened, and how much memory they take.

use std::fmt;

use remora::{Cluster, OpenError, Ordered, OrderedOptions, Table, TableOptions};

use crate::sizing::TableSize;
use crate::tpce::population::{Population, TRADES_AT_FIRST};
use crate::tpce::rows::{
    ACCOUNTS_MAX, Account, Customer, HistoryEntry, HistoryKey, Holding, HoldingKey, LastTrade, SECURITIES_MAX, STATES,
    Trade, TradeKey,
};
use crate::tpce::{Room, Scale};

const CUSTOMER: &str = "customer";
const ACCOUNT: &str = "customer_account";
const LAST_TRADE: &str = "last_trade";
const HOLDING_SUMMARY: &str = "holding_summary";
const TRADE: &str = "trade";
const TRADE_HISTORY: &str = "trade_history";

/// The leading bytes of the keys of trades, which name the account. New trades come last among the
/// trades of their account.
const ACCOUNT_BYTES: usize = 4;

/// The tables.
#[derive(Clone)]
pub struct Tables {
    /// Customers.
    pub customer: Table<u32, Customer>,
    /// Accounts of customers.
    pub account: Table<u32, Account>,
    /// The last trade of each security.
    pub last_trade: Table<u32, LastTrade>,
    /// What accounts hold.
    pub holding_summary: Ordered<HoldingKey, Holding>,
    /// Trades.
    pub trade: Ordered<TradeKey, Trade>,
    /// The states that trades have had.
    pub trade_history: Ordered<HistoryKey, HistoryEntry>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Tables {
    /// Creates and loads the tables.
    pub(super) fn load(cluster: &Cluster, capacity: &Capacity, of: Population) -> Result<Tables, OpenError> {
        let fixed = |rows| TableOptions::for_rows(rows).grows(false);
        let customer = cluster.create_table(CUSTOMER, fixed(capacity.customers))?;
        cluster.load(&customer, of.customers().map(|c_id| (c_id, of.customer(c_id))))?;
        let account = cluster.create_table(ACCOUNT, fixed(capacity.accounts))?;
        cluster.load(&account, of.accounts().map(|ca_id| (ca_id, of.account(ca_id))))?;
        let last_trade = cluster.create_table(LAST_TRADE, fixed(capacity.securities))?;
        cluster.load(&last_trade, (1..=of.scale.securities).map(|symbol| (symbol, of.last_trade(symbol))))?;
        let [holdings, trades, history] = capacity.ordered();
        let rows = of.accounts().flat_map(|ca_id| of.holdings(ca_id));
        let holding_summary = cluster.load_ordered(HOLDING_SUMMARY, holdings, rows)?;
        let trade = cluster.load_ordered(TRADE, trades, of.accounts().flat_map(|ca_id| of.trades(ca_id)))?;
        let rows = of.accounts().flat_map(|ca_id| of.history(ca_id));
        let trade_history = cluster.load_ordered(TRADE_HISTORY, history, rows)?;
        Ok(Tables { customer, account, last_trade, holding_summary, trade, trade_history })
    }

    /// Opens the tables.
    pub fn open(cluster: &Cluster) -> Result<Tables, OpenError> {
        Ok(Tables {
            customer: cluster.open_table(CUSTOMER)?,
            account: cluster.open_table(ACCOUNT)?,
            last_trade: cluster.open_table(LAST_TRADE)?,
            holding_summary: cluster.open_ordered(HOLDING_SUMMARY)?,
            trade: cluster.open_ordered(TRADE)?,
            trade_history: cluster.open_ordered(TRADE_HISTORY)?,
        })
    }
}

/// The numbers of rows that the tables are created for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capacity {
    customers: u64,
    accounts: u64,
    securities: u64,
    holdings: u64,
    trades: u64,
    history: u64,
}

impl Capacity {
    /// Returns the rows for what is loaded and for what is added.
    pub(super) fn of(scale: &Scale, room: Room) -> Capacity {
        /// Rows for transactions in flight.
        const IN_FLIGHT: u64 = 256;
        /// Rows for the leaf that each account begins: half of the rows of a leaf of trades, and of
        /// histories.
        const BEGUN: [u64; 2] = [12, 30];
        let customers = u64::from(scale.customers);
        // Half of the largest number on average. This adds six standard deviations, which are below
        // three for each customer's accounts, and below five for an account's securities.
        let least = |count: u64, most: u64| (count * most / 2 + 6 * 3 * count.isqrt() + most).min(count * most);
        let accounts = least(customers, ACCOUNTS_MAX.into());
        let half = SECURITIES_MAX as u64 / 2;
        let holdings = ((half + 1) * accounts + 6 * 5 * accounts.isqrt()).min(SECURITIES_MAX as u64 * accounts);
        let trades = u64::from(TRADES_AT_FIRST) * accounts + room.trades.saturating_add(IN_FLIGHT);
        Capacity {
            customers,
            accounts,
            securities: scale.securities.into(),
            holdings: holdings + IN_FLIGHT,
            trades: trades.saturating_add(BEGUN[0] * accounts),
            history: trades.saturating_mul(STATES.len() as u64).saturating_add(BEGUN[1] * accounts),
        }
    }

    /// Returns the options of holding summaries, trades and histories.
    fn ordered(&self) -> [OrderedOptions; 3] {
        let [holdings, trades, history] =
            [self.holdings, self.trades, self.history].map(|rows| OrderedOptions::for_rows(rows).grows(false));
        [holdings, trades.apart(ACCOUNT_BYTES), history.apart(ACCOUNT_BYTES)]
    }

    pub(super) fn tables(&self) -> Vec<TableSize> {
        let [holdings, trades, history] = self.ordered();
        let mut tables = vec![
            TableSize::of::<u32, Customer>(self.customers),
            TableSize::of::<u32, Account>(self.accounts),
            TableSize::of::<u32, LastTrade>(self.securities),
        ];
        tables.extend(TableSize::of_ordered::<HoldingKey, Holding>(holdings));
        tables.extend(TableSize::of_ordered::<TradeKey, Trade>(trades));
        tables.extend(TableSize::of_ordered::<HistoryKey, HistoryEntry>(history));
        tables
    }
}
