//! The SmallBank benchmark: six short transactions over the savings and checking accounts of
//! customers (Alomari et al., ICDE 2008). The mix is from the FORD text, table 2, and the hot set
//! from Wei's thesis, section 4.4.
//!
//! | transaction      | share | savings | checking | round trips (`drtm-r`) |
//! | ---------------- | ----: | ------- | -------- | ---------------------: |
//! | amalgamate       |  15 % | 1 U     | 2 U      | 3                      |
//! | balance          |  15 % | 1 R     | 1 R      | 2                      |
//! | deposit_checking |  15 % |         | 1 U      | 3                      |
//! | send_payment     |  25 % |         | 2 U      | 3                      |
//! | transact_savings |  15 % | 1 U     |          | 3                      |
//! | write_check      |  15 % | 1 R     | 1 U      | 4                      |
//!
//! U updates, R only reads. 90 % of the transactions concern the hot customers, which are the first
//! 4 % of all. Amounts are fixed, and in cents, so money is conserved to the cent. Only a payment
//! can fail for lack of funds. It often does, because amalgamating leaves empty accounts behind.

use std::error::Error as StdError;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use remora::{
    Cluster, Error, Freshness, Intent, OpenError, Session, Slot, Table, TableOptions, Transaction, TransactionOptions,
};
use remora_fabric::{LaneId, Outlined, outline};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::guestbook::{PARAMETERS, Parameters};
use crate::report::Invariant;
use crate::sizing::{self, Setting, TableSize};
use crate::{After, Prng, Workload, draw_from, glance, invariants};

const SAVINGS: &str = "savings";
const CHECKING: &str = "checking";
const LEDGER: &str = "ledger";
const MONEY: &str = "money is conserved";

/// How old the snapshots may be in which Balance reads, if they are not fresh.
pub const STALE: Duration = Duration::from_millis(10);
/// The first balance of every account, in cents.
pub const BALANCE_AT_FIRST: i64 = 1_000_000;
const DEPOSIT: i64 = 130;
const PAYMENT: i64 = 500;
const SAVING: i64 = 2_020;
const CHECK: i64 = 500;
/// The extra cost of a check that is not covered, in cents.
const OVERDRAFT_PENALTY: i64 = 100;

/// A savings or a checking account. Its key is the customer's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Account {
    /// The balance in cents. A check may overdraw a checking account.
    pub balance: i64,
}

/// The workload's own abort: a customer lacks funds. It has no size, so giving up allocates
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InsufficientFunds;

impl fmt::Display for InsufficientFunds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("insufficient funds")
    }
}

impl StdError for InsufficientFunds {}

/// The sum of what a coroutine of some clients has paid in, less what it has paid out. Its
/// transactions themselves update it, so it is known even if the client is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct LedgerEntry {
    /// The sum in cents.
    pub delta: i64,
}

/// The number of clients with entries of their own. If there are more, they share entries and
/// conflict with each other.
const LEDGER_CLIENTS: u64 = 256;
const LEDGER_LANES: u64 = 64;
const LEDGER_ENTRIES: u64 = LEDGER_CLIENTS * LEDGER_LANES;
const _: () = assert!(LEDGER_LANES >= remora_fabric::limits::LANES_MAX as u64);

/// The six transactions of SmallBank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Moves all the money of a customer to another customer's checking account.
    Amalgamate,
    /// Reads a customer's balance.
    Balance,
    /// Pays cash into a checking account.
    DepositChecking,
    /// Moves money from one checking account to another.
    SendPayment,
    /// Pays cash into a savings account.
    TransactSavings,
    /// Pays a check from a checking account. If the customer has less money, the account is
    /// overdrawn, at a penalty.
    WriteCheck,
}

impl Kind {
    /// All kinds, with their share of the mix in percent.
    pub const MIX: [(Kind, u64); 6] = [
        (Kind::Amalgamate, 15),
        (Kind::Balance, 15),
        (Kind::DepositChecking, 15),
        (Kind::SendPayment, 25),
        (Kind::TransactSavings, 15),
        (Kind::WriteCheck, 15),
    ];

    /// Draws the next kind of the mix.
    #[must_use]
    pub fn draw(random: &mut Prng) -> Kind {
        draw_from(&Kind::MIX, random)
    }

    fn has_two_customers(self) -> bool {
        matches!(self, Kind::Amalgamate | Kind::SendPayment)
    }
}

/// The customers: how many there are, and which are hot.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Customers {
    accounts: u64,
    /// The number of hot customers, which are the first ones.
    hot: u64,
    hot_probability: f64,
}

impl Customers {
    /// Default number of accounts for each thread.
    pub const ACCOUNTS_PER_THREAD: u64 = 100_000;
    /// The standard hot set: the share of the customers that is hot, and the probability that a
    /// transaction concerns a hot customer.
    pub const HOT: (f64, f64) = (0.04, 0.9);
    /// The smallest number of accounts. A payment needs two, also among the hot ones.
    pub const ACCOUNTS_MIN: u64 = 2;

    /// Makes `accounts` customers, at least [`Customers::ACCOUNTS_MIN`], of which a share is hot. A
    /// transaction concerns a hot customer with the given probability.
    #[must_use]
    pub fn new(accounts: u64, hot_fraction: f64, hot_probability: f64) -> Customers {
        assert!(accounts >= Customers::ACCOUNTS_MIN, "a payment needs two customers");
        let hot = (accounts as f64 * hot_fraction).round() as u64;
        Customers { accounts, hot: hot.clamp(Customers::ACCOUNTS_MIN, accounts), hot_probability }
    }

    /// Makes `accounts` customers with the standard hot set.
    #[must_use]
    pub fn standard(accounts: u64) -> Customers {
        let (fraction, probability) = Customers::HOT;
        Customers::new(accounts, fraction, probability)
    }

    /// Returns the number of customers.
    #[must_use]
    pub fn accounts(&self) -> u64 {
        self.accounts
    }

    /// Returns the share of the customers that is hot.
    #[must_use]
    pub fn hot_fraction(&self) -> f64 {
        self.hot as f64 / self.accounts as f64
    }

    /// Returns the probability that a transaction concerns a hot customer.
    #[must_use]
    pub fn hot_probability(&self) -> f64 {
        self.hot_probability
    }

    /// Draws the customer of a transaction.
    #[must_use]
    pub fn draw(&self, random: &mut Prng) -> u64 {
        if self.hot == self.accounts || random.chance(self.hot_probability) {
            random.below(self.hot)
        } else {
            self.hot + random.below(self.accounts - self.hot)
        }
    }

    /// Draws the other customer of a transaction with two.
    #[must_use]
    pub fn draw_other(&self, random: &mut Prng, first: u64) -> u64 {
        // The loop is bounded, because it might never draw another customer: there may be a single
        // cold customer, and no hot ones.
        const DRAWS: usize = 64;
        let other = (0..DRAWS).map(|_| self.draw(random)).find(|other| *other != first);
        other.unwrap_or((first + 1) % self.accounts)
    }
}

/// The bank: see the [module](self).
#[derive(Clone, Debug)]
pub struct SmallBank {
    savings: Table<u64, Account>,
    checking: Table<u64, Account>,
    ledger: Option<Table<u64, LedgerEntry>>,
    customers: Customers,
    attempts: u32,
    /// Whether Balance reads snapshots.
    snapshots: bool,
}

impl SmallBank {
    /// Creates the two tables and gives every account its first balance.
    pub fn load(cluster: &Cluster, customers: Customers) -> Result<SmallBank, OpenError> {
        let open = |name| {
            let table = cluster.create_table::<u64, Account>(name, TableOptions::for_rows(customers.accounts))?;
            cluster.load(&table, (0..customers.accounts).map(|id| (id, Account { balance: BALANCE_AT_FIRST })))?;
            Ok::<_, OpenError>(table)
        };
        let (savings, checking) = (open(SAVINGS)?, open(CHECKING)?);
        let attempts = TransactionOptions::default().attempts;
        Ok(SmallBank { savings, checking, ledger: None, customers, attempts, snapshots: false })
    }

    /// Adds a ledger: a table to which every transaction adds by how much it changes the sum of all
    /// balances.
    pub fn with_ledger(self, cluster: &Cluster) -> Result<SmallBank, OpenError> {
        let ledger = cluster.create_table(LEDGER, TableOptions::for_rows(LEDGER_ENTRIES))?;
        cluster.load(&ledger, (0..LEDGER_ENTRIES).map(|entry| (entry, LedgerEntry { delta: 0 })))?;
        Ok(SmallBank { ledger: Some(ledger), ..self })
    }

    /// Whether the bank has a ledger table.
    #[must_use]
    pub fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    /// Returns the customers.
    #[must_use]
    pub fn customers(&self) -> &Customers {
        &self.customers
    }

    /// Returns this workload with another set of the same number of customers.
    #[must_use]
    pub fn with_customers(self, customers: Customers) -> SmallBank {
        assert_eq!(customers.accounts, self.customers.accounts, "the tables have their size");
        SmallBank { customers, ..self }
    }

    /// Returns this workload with transactions that are given up after `attempts` attempts.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> SmallBank {
        SmallBank { attempts, ..self }
    }

    /// Returns this workload with snapshots, or without, for Balance. Half of them are fresh. The
    /// others read a snapshot that the session has opened at most [`STALE`] ago.
    #[must_use]
    pub fn with_snapshots(self, snapshots: bool) -> SmallBank {
        SmallBank { snapshots, ..self }
    }

    /// Returns the bytes that each memory node needs for `accounts` accounts.
    #[must_use]
    pub fn node_bytes(accounts: u64, setting: &Setting) -> u64 {
        sizing::node_bytes(&[TableSize::of::<u64, Account>(accounts); 2], setting)
    }

    /// Returns the bytes that each memory node needs for `accounts` accounts and a ledger.
    #[must_use]
    pub fn node_bytes_with_ledger(accounts: u64, setting: &Setting) -> u64 {
        let accounts = TableSize::of::<u64, Account>(accounts);
        sizing::node_bytes(&[accounts, accounts, TableSize::of::<u64, LedgerEntry>(LEDGER_ENTRIES)], setting)
    }

    /// Names a coroutine's ledger entry in its transaction. `None` where there is no ledger.
    fn entry(&self, tx: &mut Transaction<'_, '_>, lane: LaneId) -> Option<Slot<LedgerEntry>> {
        let ledger = self.ledger.as_ref()?;
        let client = u64::from(tx.client()) % LEDGER_CLIENTS;
        Some(tx.want_for(ledger, client * LEDGER_LANES + u64::from(lane.0), Intent::Update))
    }

    /// Moves all the money of `from` to the checking account of `to`.
    async fn amalgamate(&self, tx: &mut Transaction<'_, '_>, from: u64, to: u64) -> Result<i64, Error> {
        let savings = tx.want_for(&self.savings, from, Intent::Update);
        let [checking, receiver] = [from, to].map(|customer| tx.want_for(&self.checking, customer, Intent::Update));
        tx.fetch().await?;
        let saved = std::mem::take(&mut savings.get_mut(tx)?.balance);
        let checked = std::mem::take(&mut checking.get_mut(tx)?.balance);
        receiver.get_mut(tx)?.balance += saved + checked;
        Ok(0)
    }

    /// Reads a customer's balance.
    async fn balance(&self, tx: &mut Transaction<'_, '_>, customer: u64) -> Result<i64, Error> {
        let (savings, checking) = (tx.want(&self.savings, customer), tx.want(&self.checking, customer));
        tx.fetch().await?;
        std::hint::black_box(savings.require(tx)?.balance + checking.require(tx)?.balance);
        Ok(0)
    }

    /// Pays cash into a checking account.
    async fn deposit_checking(&self, tx: &mut Transaction<'_, '_>, customer: u64, lane: LaneId) -> Result<i64, Error> {
        let checking = tx.want_for(&self.checking, customer, Intent::Update);
        let entry = self.entry(tx, lane);
        tx.fetch().await?;
        checking.get_mut(tx)?.balance += DEPOSIT;
        note(tx, entry, DEPOSIT)
    }

    /// Moves money from one checking account to another.
    async fn send_payment(&self, tx: &mut Transaction<'_, '_>, from: u64, to: u64) -> Result<i64, Error> {
        let [sender, receiver] = [from, to].map(|customer| tx.want_for(&self.checking, customer, Intent::Update));
        tx.fetch().await?;
        if sender.require(tx)?.balance < PAYMENT {
            return Err(Error::user(InsufficientFunds));
        }
        sender.get_mut(tx)?.balance -= PAYMENT;
        receiver.get_mut(tx)?.balance += PAYMENT;
        Ok(0)
    }

    /// Pays cash into a savings account.
    async fn transact_savings(&self, tx: &mut Transaction<'_, '_>, customer: u64, lane: LaneId) -> Result<i64, Error> {
        let savings = tx.want_for(&self.savings, customer, Intent::Update);
        let entry = self.entry(tx, lane);
        tx.fetch().await?;
        savings.get_mut(tx)?.balance += SAVING;
        note(tx, entry, SAVING)
    }

    /// Pays a check from a checking account.
    async fn write_check(&self, tx: &mut Transaction<'_, '_>, customer: u64, lane: LaneId) -> Result<i64, Error> {
        let savings = tx.want(&self.savings, customer);
        let checking = tx.want_for(&self.checking, customer, Intent::Update);
        let entry = self.entry(tx, lane);
        tx.fetch().await?;
        let covered = savings.require(tx)?.balance + checking.require(tx)?.balance >= CHECK;
        let paid = if covered { CHECK } else { CHECK + OVERDRAFT_PENALTY };
        checking.get_mut(tx)?.balance -= paid;
        note(tx, entry, -paid)
    }

    /// Runs one transaction of a kind. Returns by how much it changed the sum of all balances.
    #[inline(never)]
    pub fn run(
        &self,
        session: &mut Session,
        kind: Kind,
        random: &mut Prng,
    ) -> Outlined<impl Future<Output = Result<i64, Error>>> {
        outline(async move {
            let one = self.customers.draw(random);
            let other = if kind.has_two_customers() { self.customers.draw_other(random, one) } else { one };
            let options = TransactionOptions::default().label(kind as u16).attempts(self.attempts);
            let lane = session.lane().id();
            if self.snapshots && kind == Kind::Balance {
                let freshness = if !session.has_open_snapshots() || random.chance(0.5) {
                    Freshness::Fresh
                } else {
                    Freshness::Stale(STALE)
                };
                return session.read_with(freshness, options, async |tx| self.balance(tx, one).await).await;
            }
            let transaction = session.transact_with(options, async |tx| match kind {
                Kind::Amalgamate => self.amalgamate(tx, one, other).await,
                Kind::Balance => self.balance(tx, one).await,
                Kind::DepositChecking => self.deposit_checking(tx, one, lane).await,
                Kind::SendPayment => self.send_payment(tx, one, other).await,
                Kind::TransactSavings => self.transact_savings(tx, one, lane).await,
                Kind::WriteCheck => self.write_check(tx, one, lane).await,
            });
            transaction.await
        })
    }
}

/// Adds to the ledger, if there is one, by how much a transaction changes the sum of all balances.
fn note(tx: &mut Transaction<'_, '_>, entry: Option<Slot<LedgerEntry>>, delta: i64) -> Result<i64, Error> {
    if let Some(entry) = entry {
        entry.get_mut(tx)?.delta += delta;
    }
    Ok(delta)
}

impl Workload for SmallBank {
    /// Deposits less withdrawals of committed transactions, in cents.
    type Ledger = i64;

    const NAME: &'static str = "smallbank";

    const TYPES: &'static [&'static str] =
        &["amalgamate", "balance", "deposit_checking", "send_payment", "transact_savings", "write_check"];

    const INVARIANTS: &'static [&'static str] = &[MONEY, invariants::REPLICAS, invariants::LOCKS, invariants::LOG];

    fn open(cluster: &Cluster, parameters: &Parameters) -> Result<SmallBank, OpenError> {
        let [accounts, hot, hot_probability, has_ledger, ..] = *parameters;
        let customers = Customers { accounts, hot, hot_probability: f64::from_bits(hot_probability) };
        let (savings, checking) = (cluster.open_table(SAVINGS)?, cluster.open_table(CHECKING)?);
        let ledger = if has_ledger == 0 { None } else { Some(cluster.open_table(LEDGER)?) };
        let attempts = TransactionOptions::default().attempts;
        Ok(SmallBank { savings, checking, ledger, customers, attempts, snapshots: false })
    }

    fn parameters(&self) -> Parameters {
        let Customers { accounts, hot, hot_probability } = self.customers;
        let mut parameters = [0; PARAMETERS];
        let has_ledger = self.has_ledger().into();
        parameters[..4].copy_from_slice(&[accounts, hot, hot_probability.to_bits(), has_ledger]);
        parameters
    }

    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        const BATCH: u64 = 64;
        let accounts = u128::from(self.customers.accounts);
        let bound = |part: u64| (accounts * u128::from(part) / u128::from(parts)) as u64;
        let (first, end) = (bound(part), bound(part + 1));
        for start in (first..end).step_by(BATCH as usize) {
            let read = glance(session, async |tx| {
                for customer in start..end.min(start + BATCH) {
                    tx.want(&self.savings, customer);
                    tx.want(&self.checking, customer);
                }
                tx.fetch().await
            });
            read.await?;
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut i64) -> Result<(), Error> {
        *ledger += pin!(self.run(session, Kind::draw(random), random)).await?;
        Ok(())
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        let mut sum = 0;
        let mut add = |account: &Account| sum += i128::from(account.balance);
        let mut tables = vec![cluster.inspect(&self.savings, &mut add)?, cluster.inspect(&self.checking, &mut add)?];
        let accounts = tables.iter().map(|table| table.records).sum();
        let mut delta = 0;
        if let Some(ledger) = &self.ledger {
            tables.push(cluster.inspect(ledger, |entry| delta += i128::from(entry.delta))?);
        }
        let mut all = vec![self.money(sum, accounts, delta, &after)];
        all.extend(invariants::of_tables(&tables, after.settled));
        Ok(invariants::claimed_by(cluster.protocol(), all))
    }
}

impl SmallBank {
    /// Checks the sum of all money, by the ledger if there is one. The ledger also knows
    /// transactions whose outcome no client was told.
    fn money(&self, sum: i128, accounts: u64, in_ledger: i128, after: &After<'_, i64>) -> Invariant {
        let (delta, known_by) = if self.has_ledger() {
            (in_ledger, "the ledger's")
        } else if after.unknown > 0 {
            return invariants::unknown(MONEY, after.unknown);
        } else {
            (after.ledgers.iter().copied().map(i128::from).sum(), "committed")
        };
        let first = i128::from(BALANCE_AT_FIRST) * 2 * i128::from(self.customers.accounts);
        let holds = sum == first + delta && accounts == 2 * self.customers.accounts;
        let detail = format!(
            "{accounts} accounts hold {}; {} at first, and {} by {known_by} deposits and withdrawals",
            money(sum),
            money(first),
            money(delta)
        );
        Invariant { name: MONEY, holds: Some(holds), detail }
    }
}

/// Formats cents as a person writes them.
fn money(cents: i128) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn near(count: u64, expected: f64) -> bool {
        (count as f64 / DRAWS as f64 - expected).abs() < 0.005
    }

    #[test]
    fn the_mix_has_its_shares() {
        let mut random = Prng::new(1);
        let mut counts = [0; 6];
        for _ in 0..DRAWS {
            counts[Kind::draw(&mut random) as usize] += 1;
        }
        for (kind, percent) in Kind::MIX {
            assert!(near(counts[kind as usize], percent as f64 / 100.0), "{kind:?}: {counts:?}");
        }
    }

    #[test]
    fn labels_are_the_places_of_names() {
        let places = Kind::MIX.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place);
        assert!(places && SmallBank::TYPES.len() == Kind::MIX.len());
    }

    #[test]
    fn the_hot_customers_get_their_share() {
        let mut random = Prng::new(2);
        let customers = Customers::standard(1_000);
        assert_eq!(customers.hot, 40);
        let drawn: Vec<u64> = (0..DRAWS).map(|_| customers.draw(&mut random)).collect();
        assert!(near(drawn.iter().filter(|id| **id < 40).count() as u64, 0.9));
        // All customers are drawn, and none beyond them.
        assert_eq!(drawn.iter().max(), Some(&999));
        assert_eq!(drawn.iter().min(), Some(&0));
    }

    #[test]
    fn two_customers_are_different_ones() {
        let mut random = Prng::new(3);
        for accounts in [2, 3, 50] {
            for hot_fraction in [0.0, 0.04, 1.0] {
                for hot_probability in [0.0, 1.0] {
                    let customers = Customers::new(accounts, hot_fraction, hot_probability);
                    for _ in 0..1_000 {
                        let one = customers.draw(&mut random);
                        let other = customers.draw_other(&mut random, one);
                        assert!(one != other && one < accounts && other < accounts, "{customers:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn money_is_written_in_units_and_cents() {
        assert_eq!([0, 5, -5, 12_345, -12_345].map(money), ["0.00", "0.05", "-0.05", "123.45", "-123.45"]);
    }
}
