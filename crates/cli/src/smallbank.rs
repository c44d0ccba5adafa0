//! `remora bench smallbank`: its options, and the tables that it loads.

use clap::Args;
use remora_workload::smallbank::{Customers, SmallBank};
use serde::Serialize;

use crate::bench::Bench;
use crate::connected::agrees;
use crate::options::RunArgs;
use crate::{Failure, Verdict, value};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // so that the error names the option
#[command(after_help = "Examples:
  remora bench smallbank
  remora bench smallbank --threads 2 --replicas 1 --seconds 5 --report -
  remora bench smallbank --connect 127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002
  remora bench smallbank --connect 127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002 --check
  remora bench smallbank --transactions 100000 --history run.jsonl && remora check run.jsonl

Exit status: 0 done, 1 an invariant does not hold, 2 bad input.")]
pub(crate) struct SmallBankOptions {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunArgs,
    /// Customers, each with a savings and a checking account [default: 100,000 for each thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(Customers::ACCOUNTS_MIN..))]
    accounts: Option<u64>,
    /// Share of the customers that is hot [default: 0.04].
    #[arg(long, value_name = "SHARE", value_parser = value::share)]
    hot_fraction: Option<f64>,
    /// Probability that a transaction is about a hot customer [default: 0.9].
    #[arg(long, value_name = "P", value_parser = value::share)]
    hot_probability: Option<f64>,
    /// Make every transaction that changes the sum of all balances note this in a table, so that
    /// money can be checked even if clients were killed. The client that loads the tables decides
    /// for all.
    #[arg(long)]
    ledger: bool,
    /// Read snapshots in Balance: half of them fresh, and half at most 10 ms old. The protocol must
    /// have them, as remora has.
    #[arg(long)]
    snapshots: bool,
}

pub(crate) fn smallbank(options: &SmallBankOptions) -> Result<Verdict, Failure> {
    let run = options.run.settled()?;
    run.has_snapshots(options.snapshots)?;
    let accounts = options.accounts.unwrap_or(run.threads() * Customers::ACCOUNTS_PER_THREAD);
    let needed = if options.ledger { SmallBank::node_bytes_with_ledger } else { SmallBank::node_bytes };
    let needed = needed(accounts, &run.setting());
    let mut bench = Bench::sized(run, needed, format!("--accounts {accounts}"));
    let hot = |(fraction, probability): (f64, f64)| {
        (options.hot_fraction.unwrap_or(fraction), options.hot_probability.unwrap_or(probability))
    };
    let (fraction, probability) = hot(Customers::HOT);
    let opened = bench.open(|cluster| {
        let bank = SmallBank::load(cluster, Customers::new(accounts, fraction, probability))?;
        if options.ledger { bank.with_ledger(cluster) } else { Ok(bank) }
    })?;
    // The tables have the size with which they were loaded. Each client chooses by itself which
    // customers are hot.
    let found = *opened.workload.customers();
    agrees("--accounts", options.accounts, found.accounts())?;
    let ledger = opened.workload.has_ledger();
    if options.ledger && !ledger {
        let why = "these memory nodes were loaded without one: leave the option out, or use other nodes";
        return Err(Failure::new("--ledger", why));
    }
    let (fraction, probability) = hot((found.hot_fraction(), found.hot_probability()));
    let customers = Customers::new(found.accounts(), fraction, probability);
    let opened = opened.map(|bank| bank.with_customers(customers).with_snapshots(options.snapshots));
    let config = SmallBankOptions {
        accounts: Some(found.accounts()),
        hot_fraction: Some(fraction),
        hot_probability: Some(probability),
        ledger,
        snapshots: options.snapshots,
        run: bench.run.clone(),
    };
    bench.run(&opened, &config)
}
