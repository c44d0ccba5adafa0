//! The invariants of the tables, which must hold when no transaction runs. What was loaded follows
//! from the seed. So balances and holdings are checked, each by itself, against all trades that
//! came later.

use remora::admin::{Inspection, TreeInspection};
use remora::{Cluster, Error};

use crate::After;
use crate::invariants::{self, Broken};
use crate::report::Invariant;
use crate::tpce::population::{BALANCE_AT_FIRST, Population, Securities, TRADES_AT_FIRST, settlement};
use crate::tpce::rows::{
    ACCOUNTS_MAX, Account, HistoryKey, Holding, HoldingKey, SECURITIES_MAX, STATES, Trade, TradeKey, customer_of,
};
use crate::tpce::{Done, Tpce};

const BALANCES: &str = "a balance is its trades'";
const HOLDINGS: &str = "holdings are bought less sold";
const TRADES: &str = "trades and histories have no gaps";
const PRICES: &str = "last trades are the feed's";
const PLACES: &str = "every row is in its place";
const READERS: &str = "readers have seen one state";
const ACCOUNTED: &str = "what was committed is there";

/// The names of the invariants, in the order of [`audit`].
pub(super) const NAMES: &[&str] = &[
    BALANCES,
    HOLDINGS,
    TRADES,
    PRICES,
    PLACES,
    READERS,
    ACCOUNTED,
    invariants::REPLICAS,
    invariants::LOCKS,
    invariants::LOG,
];

/// What the audit remembers of an account while it walks the tables.
#[derive(Clone)]
struct Seen {
    row: Option<Account>,
    /// The securities that the account may hold.
    securities: Securities,
    /// What it should hold of each, by what was loaded and all later trades.
    wanted: [i64; SECURITIES_MAX],
    /// What it holds of each.
    held: [i64; SECURITIES_MAX],
    /// The sum of what later trades have added to the balance.
    settled: i64,
    trades: u64,
    /// The highest number of a trade.
    last: u32,
    history: u64,
}

impl Seen {
    fn new(population: &Population, ca_id: u32) -> Seen {
        let mut wanted = [0; SECURITIES_MAX];
        wanted.iter_mut().zip(population.holdings(ca_id)).for_each(|(wanted, (_, holding))| *wanted = holding.quantity);
        Seen {
            row: None,
            securities: population.securities(ca_id),
            wanted,
            held: [0; SECURITIES_MAX],
            settled: 0,
            trades: 0,
            last: 0,
            history: 0,
        }
    }

    fn place(&self, symbol: u32) -> Option<usize> {
        self.securities.symbols().binary_search(&symbol).ok()
    }
}

/// What the audit remembers of all tables.
struct Tally {
    population: Population,
    /// The accounts that there should be, each at its id less the first one.
    accounts: Vec<Option<Box<Seen>>>,
    customers: u64,
    securities: u64,
    volume: u64,
    changes: u64,
    /// The number of rows that should not exist, or that contradict themselves.
    strangers: u64,
    tables: Vec<Inspection>,
    /// The first error found in a tree.
    fault: Option<String>,
}

impl Tally {
    fn account(&mut self, ca_id: u32) -> Option<&mut Seen> {
        let place = ca_id.checked_sub(u32::from(ACCOUNTS_MAX))? as usize;
        self.accounts.get_mut(place)?.as_deref_mut()
    }

    fn see_account(&mut self, row: &Account) -> Option<()> {
        let first = self.account(row.ca_id)?.row.replace(*row);
        first.is_none().then_some(())
    }

    fn see_holding(&mut self, &(ca_id, symbol): &HoldingKey, row: &Holding) -> Option<()> {
        let seen = self.account(ca_id)?;
        let place = seen.place(symbol)?;
        seen.held[place] += row.quantity;
        (row.quantity != 0).then_some(())
    }

    fn see_trade(&mut self, &(ca_id, number): &TradeKey, row: &Trade) -> Option<()> {
        let tier = self.population.tier(customer_of(ca_id)).0;
        let seen = self.account(ca_id)?;
        seen.trades += 1;
        seen.last = seen.last.max(number);
        let (place, is_later) = (seen.place(row.symbol), number > TRADES_AT_FIRST);
        if is_later {
            seen.settled = seen.settled.wrapping_add(row.settlement);
        }
        let wanted = &mut seen.wanted[place?];
        *wanted += if is_later { row.quantity.into() } else { 0 };
        (row.settlement == settlement(row.price, row.quantity, tier)).then_some(())
    }

    fn see_history(&mut self, &(ca_id, _, state): &HistoryKey) -> Option<()> {
        self.account(ca_id)?.history += 1;
        STATES.contains(&state).then_some(())
    }

    /// Walks all tables.
    fn walk(tpce: &Tpce, cluster: &Cluster) -> Result<Tally, Error> {
        let (tables, population) = (&tpce.tables, tpce.population);
        let ids = u32::from(ACCOUNTS_MAX)..(population.scale.customers + 1) * u32::from(ACCOUNTS_MAX);
        let seen = |ca_id| population.has_account(ca_id).then(|| Box::new(Seen::new(&population, ca_id)));
        let mut seen = Tally {
            population,
            accounts: ids.map(seen).collect(),
            customers: 0,
            securities: 0,
            volume: 0,
            changes: 0,
            strangers: 0,
            tables: Vec::new(),
            fault: None,
        };
        let found = cluster.inspect(&tables.customer, |row| {
            let fits = (1..=population.scale.customers).contains(&row.c_id) && *row == population.customer(row.c_id);
            seen.customers += u64::from(fits);
            seen.strangers += u64::from(!fits);
        })?;
        seen.tables.push(found);
        let found = cluster.inspect(&tables.account, |row| {
            let is_stranger = seen.see_account(row).is_none();
            seen.strangers += u64::from(is_stranger);
        })?;
        seen.tables.push(found);
        let found = cluster.inspect(&tables.last_trade, |row| {
            let fits = (1..=population.scale.securities).contains(&row.symbol);
            seen.securities += u64::from(fits);
            seen.strangers += u64::from(!fits);
            seen.volume = seen.volume.wrapping_add(row.volume);
            seen.changes += u64::from(row.changes);
        })?;
        seen.tables.push(found);
        let found = cluster.inspect_ordered(&tables.holding_summary, |key, row| {
            let is_stranger = seen.see_holding(key, row).is_none();
            seen.strangers += u64::from(is_stranger);
        })?;
        seen.add(found);
        let found = cluster.inspect_ordered(&tables.trade, |key, row| {
            let is_stranger = seen.see_trade(key, row).is_none();
            seen.strangers += u64::from(is_stranger);
        })?;
        seen.add(found);
        let found = cluster.inspect_ordered(&tables.trade_history, |key, _| {
            let is_stranger = seen.see_history(key).is_none();
            seen.strangers += u64::from(is_stranger);
        })?;
        seen.add(found);
        Ok(seen)
    }

    fn add(&mut self, (tables, tree): (Vec<Inspection>, TreeInspection)) {
        self.tables.extend(tables);
        self.fault = self.fault.take().or(tree.fault);
    }
}

/// Walks all tables and checks the invariants. No transaction may run meanwhile.
pub(super) fn audit(tpce: &Tpce, cluster: &Cluster, after: &After<'_, Done>) -> Result<Vec<Invariant>, Error> {
    let seen = Tally::walk(tpce, cluster)?;
    let scale = tpce.scale();
    let [mut balances, mut holdings, mut trades, mut places]: [Broken; 4] = Default::default();
    let ids = u32::from(ACCOUNTS_MAX)..;
    let mut made = 0;
    let there = ids.zip(&seen.accounts).filter_map(|(ca_id, account)| Some((ca_id, account.as_deref()?)));
    let mut accounts = 0_u64;
    for (ca_id, account) in there {
        accounts += 1;
        made += account.trades.saturating_sub(TRADES_AT_FIRST.into());
        let Some(row) = account.row else {
            places.check(false, || format!("account {ca_id} is missing"));
            continue;
        };
        balances.equal(row.balance, BALANCE_AT_FIRST.wrapping_add(account.settled), format_args!("account {ca_id}"));
        let differing = account.held.iter().zip(&account.wanted).position(|(held, wanted)| held != wanted);
        holdings.check(differing.is_none(), || {
            let place = differing.unwrap_or(0);
            let symbol = account.securities.symbols().get(place).copied().unwrap_or(0);
            let (held, wanted) = (account.held[place], account.wanted[place]);
            format!("account {ca_id}, security {symbol}: {held}, not {wanted}")
        });
        holdings.equal(row.shares, account.held.iter().sum(), format_args!("the shares of account {ca_id}"));
        trades.equal(account.trades, row.trades.into(), format_args!("account {ca_id}"));
        trades.equal(account.last, row.trades, format_args!("the last trade of account {ca_id}"));
        trades.equal(
            account.history,
            account.trades * STATES.len() as u64,
            format_args!("the history of account {ca_id}"),
        );
    }
    places.equal(seen.customers, scale.customers.into(), "customers");
    places.equal(seen.securities, scale.securities.into(), "securities");
    places.check(seen.strangers == 0, || format!("{} rows should not be there", seen.strangers));
    places.check(seen.fault.is_none(), || seen.fault.clone().unwrap_or_default());

    let sum = |part: fn(&Done) -> u64| after.ledgers.iter().map(part).fold(0, u64::wrapping_add);
    let of = format!("{accounts} accounts");
    let mut all = vec![
        balances.invariant(BALANCES, &of),
        holdings.invariant(HOLDINGS, &of),
        trades.invariant(TRADES, &of),
        prices(&seen, (sum(|done| done.tickers), sum(|done| done.volume)), after),
        places.invariant(PLACES, &format!("{of} of {} customers", seen.customers)),
        readers(sum(|done| done.torn)),
        accounted(made, sum(|done| done.trades), after),
    ];
    all.extend(invariants::of_tables(&seen.tables, after.settled));
    Ok(invariants::claimed_by(cluster.protocol(), all))
}

/// Checks the last trades against the ledgers.
fn prices(seen: &Tally, committed: (u64, u64), after: &After<'_, Done>) -> Invariant {
    if after.unknown > 0 {
        return invariants::unknown(PRICES, after.unknown);
    }
    let holds = (seen.changes, seen.volume) == committed;
    let detail = format!(
        "{} changes and {} shares; {} and {} by committed transactions",
        seen.changes, seen.volume, committed.0, committed.1
    );
    Invariant { name: PRICES, holds: Some(holds), detail }
}

fn readers(torn: u64) -> Invariant {
    let detail = format!("{torn} committed customer_position have read rows that contradict each other");
    Invariant { name: READERS, holds: Some(torn == 0), detail }
}

/// Checks the number of trades against the ledgers.
fn accounted(made: u64, committed: u64, after: &After<'_, Done>) -> Invariant {
    if after.unknown > 0 {
        return invariants::unknown(ACCOUNTED, after.unknown);
    }
    let detail = format!("{made} trades since loading, {committed} by committed transactions");
    Invariant { name: ACCOUNTED, holds: Some(made == committed), detail }
}
