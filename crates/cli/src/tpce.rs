//! `remora bench tpce`: its options, and the tables that it loads.

use clap::Args;
use remora::floors::fabric::Headroom;
use remora_workload::Workload;
use remora_workload::tpce::{Kind, Room, Scale, Tpce};
use serde::Serialize;

use crate::bench::Bench;
use crate::connected::agrees;
use crate::options::RunArgs;
use crate::{Failure, Verdict};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // so that the error names the option
#[command(after_help = "Examples:
  remora bench tpce
  remora bench tpce --protocol remora --snapshots --threads 2 --report -
  remora bench tpce --only customer_position --customers 5000 --seconds 5
  remora bench tpce --customers 10 --transactions 20000 --history run.jsonl && remora check run.jsonl

It is a part of TPC-E and not TPC-E: docs/benchmarks.md says what is left out.

Trades stay, so tables have room for those that a run of its length makes; one that makes more ends early, and says so.

Exit status: 0 done, 1 an invariant does not hold, 2 bad input.")]
pub(crate) struct TpceOptions {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunArgs,
    /// Customers, each with five accounts on average [default: 1,000 for each thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=Scale::CUSTOMERS_MAX as i64))]
    customers: Option<u32>,
    /// Securities [default: 685 for each 1,000 customers].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    securities: Option<u32>,
    /// Run only one of the transactions, instead of the mix: customer_position, market_feed or
    /// trade.
    #[arg(long, value_name = "TYPE", value_parser = kind)]
    only: Option<String>,
    /// Number of trades for which there is room beside the loaded ones [default: what a run of this
    /// length makes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 38))]
    trades: Option<u64>,
    /// Read snapshots in Customer-Positions. The protocol must have them, as remora has.
    #[arg(long)]
    snapshots: bool,
}

/// Parses the name of a transaction.
fn kind(text: &str) -> Result<String, String> {
    match Kind::named(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("there are {}", Tpce::TYPES.join(", "))),
    }
}

pub(crate) fn tpce(options: &TpceOptions) -> Result<Verdict, Failure> {
    let run = options.run.settled()?;
    let only = options.only.as_deref().and_then(Kind::named);
    let customers = options.customers.unwrap_or(run.threads() as u32 * Tpce::CUSTOMERS_PER_THREAD);
    let standard = Scale::of_customers(customers);
    let scale = Scale { securities: options.securities.unwrap_or(standard.securities), ..standard };
    let needed = |room| Tpce::node_bytes(&scale, room, &run.setting(), run.protocol());
    let room = options.trades.map_or_else(|| default_room(&run, only, needed), |trades| Room { trades });
    let because_of = format!("--customers {customers} --securities {} --trades {}", scale.securities, room.trades);
    let needed = needed(room);
    let mut bench = Bench::sized(run, needed, because_of);
    let seed = bench.run.seed;
    let opened = bench.open(|cluster| Tpce::load(cluster, scale, room, seed))?;
    // The tables have the size with which they were loaded.
    let (found, room) = (*opened.workload.scale(), *opened.workload.room());
    agrees("--customers", options.customers, found.customers)?;
    agrees("--securities", options.securities, found.securities)?;
    agrees("--trades", options.trades, room.trades)?;
    let opened = opened.map(|tpce| tpce.with_only(only).with_snapshots(options.snapshots));
    let config = TpceOptions {
        run: bench.run.clone(),
        customers: Some(found.customers),
        securities: Some(found.securities),
        only: options.only.clone(),
        trades: Some(room.trades),
        snapshots: options.snapshots,
    };
    bench.run(&opened, &config)
}

/// More trades a second than a thread makes, beside the other transactions, on memory nodes of its
/// own process.
const TRADES_PER_SECOND: f64 = 15_000.0;
/// More trades a second than a thread makes on memory nodes of other processes.
const TRADES_PER_SECOND_CONNECTED: f64 = 5_000.0;
/// More trades a virtual second than a thread makes in a simulation.
const TRADES_PER_VIRTUAL_SECOND: f64 = 200_000.0;

/// Returns room for the trades that a run makes. Memory nodes of this process take at most half of
/// the machine's memory, unless the smallest room needs more.
fn default_room(run: &RunArgs, only: Option<Kind>, needed: impl Fn(Room) -> u64) -> Room {
    const TRADES_MIN: u64 = 20_000;
    if let Some(transactions) = run.transactions() {
        return match only {
            None => Room::for_transactions(transactions),
            Some(Kind::Trade) => Room { trades: transactions },
            Some(_) => Room { trades: 1 },
        };
    }
    let rate = match (&run.connect, run.is_simulated()) {
        (Some(_), _) => TRADES_PER_SECOND_CONNECTED,
        (None, true) => TRADES_PER_VIRTUAL_SECOND,
        (None, false) => TRADES_PER_SECOND,
    };
    // Without the other transactions, a thread makes several times as many trades.
    let share = if only == Some(Kind::Trade) { 8.0 } else { 1.0 };
    let mut trades = ((run.seconds_at_most() * rate * share * run.threads() as f64) as u64).max(TRADES_MIN);
    if run.connect.is_none() {
        let available = Headroom::now().bytes;
        let takes_too_much = |trades| needed(Room { trades }).saturating_mul(run.memory_nodes().into()) > available / 2;
        while trades > TRADES_MIN && takes_too_much(trades) {
            trades = (trades / 4 * 3).max(TRADES_MIN);
        }
    }
    Room { trades }
}
