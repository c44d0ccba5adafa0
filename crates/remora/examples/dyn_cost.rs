//! SmallBank's transactions on typed tables and on tables of bytes, in turn. Shows the cost of
//! sizes that are known only at run time.
//!
//! `cargo run --release -p remora --example dyn_cost`

use std::time::Instant;

use remora::{
    Cluster, DynOptions, DynSchema, DynTable, Error, Intent, Record, Session, Table, TableOptions, Transaction,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const ACCOUNTS: u64 = 100_000;
const TRANSACTIONS: u64 = 300_000;
const ROUNDS: usize = 9;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Record)]
#[repr(C)]
struct Account {
    balance: i64,
}

/// The tables that have the balances.
trait Bank {
    /// Names an account's balance, for the next round trip.
    fn name(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64, intent: Intent) -> Result<(), Error>;

    async fn balance(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64) -> Result<i64, Error>;

    async fn add(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64, sum: i64) -> Result<(), Error>;
}

impl Bank for [Table<u64, Account>; 2] {
    fn name(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64, intent: Intent) -> Result<(), Error> {
        self[table].prefetch(tx, account, intent);
        Ok(())
    }

    async fn balance(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64) -> Result<i64, Error> {
        Ok(self[table].require(tx, account).await?.balance)
    }

    async fn add(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64, sum: i64) -> Result<(), Error> {
        self[table].get_mut(tx, account).await?.balance += sum;
        Ok(())
    }
}

impl Bank for [DynTable; 2] {
    fn name(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64, intent: Intent) -> Result<(), Error> {
        self[table].prefetch(tx, &account.to_be_bytes(), intent)
    }

    async fn balance(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64) -> Result<i64, Error> {
        let value = self[table].require(tx, &account.to_be_bytes()).await?;
        Ok(i64::from_le_bytes(value.try_into().unwrap_or_default()))
    }

    async fn add(&self, tx: &mut Transaction<'_, '_>, table: usize, account: u64, sum: i64) -> Result<(), Error> {
        let value = self[table].get_mut(tx, &account.to_be_bytes()).await?;
        let balance = value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
        value.copy_from_slice(&(balance + sum).to_le_bytes());
        Ok(())
    }
}

/// Runs one of SmallBank's six transactions, drawn by their shares: 25 % for SendPayment, and 15 %
/// for each of the others.
async fn transact(session: &mut Session, bank: &impl Bank) -> Result<(), Error> {
    let random = session.lane().random();
    let (one, other) = ((random >> 8) % ACCOUNTS, (random >> 32) % ACCOUNTS);
    let kind = random % 100;
    let run = session.transact(async |tx| {
        const SAVINGS: usize = 0;
        const CHECKING: usize = 1;
        match kind {
            // Amalgamate: moves all of one account's money to another.
            0..15 => {
                bank.name(tx, SAVINGS, one, Intent::Update)?;
                bank.name(tx, CHECKING, one, Intent::Update)?;
                bank.name(tx, CHECKING, other, Intent::Update)?;
                let sum = bank.balance(tx, SAVINGS, one).await?;
                bank.add(tx, SAVINGS, one, -sum).await?;
                bank.add(tx, CHECKING, other, sum).await
            }
            // Balance.
            15..30 => {
                bank.name(tx, SAVINGS, one, Intent::Read)?;
                bank.name(tx, CHECKING, one, Intent::Read)?;
                let sum = bank.balance(tx, SAVINGS, one).await? + bank.balance(tx, CHECKING, one).await?;
                std::hint::black_box(sum);
                Ok(())
            }
            // DepositChecking, TransactSavings.
            30..45 => bank.add(tx, CHECKING, one, 130).await,
            45..60 => bank.add(tx, SAVINGS, one, 2020).await,
            // WriteCheck.
            60..75 => {
                bank.name(tx, SAVINGS, one, Intent::Read)?;
                bank.name(tx, CHECKING, one, Intent::Update)?;
                let sum = bank.balance(tx, SAVINGS, one).await? + bank.balance(tx, CHECKING, one).await?;
                bank.add(tx, CHECKING, one, if sum < 500 { -501 } else { -500 }).await
            }
            // SendPayment.
            _ => {
                bank.name(tx, CHECKING, one, Intent::Update)?;
                bank.name(tx, CHECKING, other, Intent::Update)?;
                if bank.balance(tx, CHECKING, one).await? >= 500 {
                    bank.add(tx, CHECKING, one, -500).await?;
                    bank.add(tx, CHECKING, other, 500).await?;
                }
                Ok(())
            }
        }
    });
    run.await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().node_bytes(256 << 20).open()?;
    let names = ["savings", "checking"];
    let rows = || (0..ACCOUNTS).map(|account| (account, Account { balance: 100_000 }));
    let mut typed = Vec::new();
    let mut bytes = Vec::new();
    for name in names {
        let table = cluster.create_table::<u64, Account>(name, TableOptions::for_rows(ACCOUNTS))?;
        cluster.load(&table, rows())?;
        typed.push(table);
        // The table is created by its schema, and loaded by its types.
        let (name, schema) = (format!("dynamic {name}"), DynSchema::of::<u64, Account>());
        bytes.push(cluster.create_dyn_table(&name, &schema, DynOptions::for_rows(ACCOUNTS))?);
        cluster.load(&cluster.open_table::<u64, Account>(&name)?, rows())?;
    }
    let typed: [Table<u64, Account>; 2] = typed.try_into().map_err(|_| "two tables")?;
    let bytes: [DynTable; 2] = bytes.try_into().map_err(|_| "two tables")?;

    let mut worker = cluster.worker(Default::default())?;
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (of, rates) in rates.iter_mut().enumerate() {
            let began = Instant::now();
            let run = worker.run(async |_, session| {
                for _ in 0..TRANSACTIONS / 8 {
                    if of == 0 { transact(session, &typed).await? } else { transact(session, &bytes).await? }
                }
                Ok::<(), Error>(())
            });
            run.into_iter().collect::<Result<(), _>>()?;
            // In the first round, the client learns the locations of records.
            if round > 0 {
                rates.push(TRANSACTIONS as f64 / began.elapsed().as_secs_f64());
            }
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let [typed, bytes] = rates.each_mut().map(median);
    println!("typed tables {typed:9.0} transactions a second");
    println!("tables of bytes {bytes:6.0} transactions a second: {:.2} of it", bytes / typed);
    Ok(())
}
