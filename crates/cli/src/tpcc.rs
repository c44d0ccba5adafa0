//! `remora bench tpcc` and `remora bench tpcc-no`: their options, and the tables that they load.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use remora::floors::fabric::Headroom;
use remora::{Cluster, OpenError};
use remora_workload::Workload;
use remora_workload::tpcc::{Kind, NewOrders, Room, Scale, Tpcc};
use serde::Serialize;

use crate::bench::Bench;
use crate::connected::agrees;
use crate::options::RunArgs;
use crate::{Failure, Verdict};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // so that the error names the option
#[command(after_help = "Examples:
  remora bench tpcc
  remora bench tpcc --threads 2 --warehouses 8 --protocol ford --report -
  remora bench tpcc-no --replicas 1 --seconds 5
  remora bench tpcc --warehouses 1 --transactions 20000 --history run.jsonl && remora check run.jsonl

Orders stay, so tables have room for those that a run of its length makes; one that makes more ends early, and says so.
An order of an item that nobody has is the workload's own abort: TPC-C expects one in a hundred.

Exit status: 0 done, 1 an invariant does not hold, 2 bad input.")]
pub(crate) struct TpccOptions {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunArgs,
    /// Warehouses, each with 30,000 customers, as many orders, and 100,000 stocks [default: one for
    /// each thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    warehouses: Option<u16>,
    /// Run only one of the transactions, instead of the mix: new_order, payment, order_status,
    /// delivery or stock_level.
    #[arg(long, value_name = "TYPE", value_parser = kind)]
    only: Option<String>,
    /// Number of orders for which there is room beside the loaded ones [default: what a run of this
    /// length makes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    orders: Option<u64>,
    /// Read snapshots in Order-Status and Stock-Level. The protocol must have them, as remora has.
    #[arg(long)]
    snapshots: bool,
    /// Split totals of payments from the rows of warehouses and districts, which New-Orders read.
    #[arg(long)]
    split_totals: bool,
}

/// The mix of transactions that runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mix {
    Standard,
    NewOrdersOnly,
}

pub(crate) fn tpcc(options: &TpccOptions) -> Result<Verdict, Failure> {
    let (mut bench, size) = prepare(options, Mix::Standard)?;
    bench.run.has_snapshots(options.snapshots)?;
    let mut opened = bench.open(|cluster| size.load(cluster))?;
    let only = options.only.as_deref().and_then(Kind::named);
    opened.workload =
        opened.workload.with_only(only).with_snapshots(options.snapshots).with_split_totals(options.split_totals);
    let config = settled(options, &bench, &opened.workload)?;
    bench.run(&opened, &config)
}

pub(crate) fn tpcc_no(options: &TpccOptions) -> Result<Verdict, Failure> {
    if let Some(only) = options.only.as_deref().filter(|only| *only != "new_order") {
        return Err(Failure::new(format!("--only {only}"), "tpcc-no has New-Orders only; bench tpcc has the others"));
    }
    let (mut bench, size) = prepare(options, Mix::NewOrdersOnly)?;
    let opened = bench.open(|cluster| Ok(NewOrders::of(size.load(cluster)?)))?;
    let config = settled(options, &bench, opened.workload.tpcc())?;
    bench.run(&opened, &config)
}

/// The size of the tables that are to be loaded.
struct Size {
    scale: Scale,
    room: Room,
    seed: u64,
}

impl Size {
    fn load(&self, cluster: &Cluster) -> Result<Tpcc, OpenError> {
        let bar = ProgressBar::new(self.scale.rows());
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {pos} rows loaded");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let loaded = Tpcc::load(cluster, self.scale, self.room, self.seed, |rows| bar.inc(rows));
        bar.finish_and_clear();
        loaded
    }
}

/// Parses the name of a transaction.
fn kind(text: &str) -> Result<String, String> {
    match Kind::named(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("TPC-C has {}", <Tpcc as Workload>::TYPES.join(", "))),
    }
}

fn prepare(options: &TpccOptions, mix: Mix) -> Result<(Bench, Size), Failure> {
    let run = options.run.settled()?;
    // If all orders are to be distributed, there must be another warehouse.
    let least = if mix == Mix::NewOrdersOnly { 2 } else { 1 };
    let warehouses = options.warehouses.unwrap_or(run.threads().max(least) as u16);
    let scale = Scale::full(warehouses);
    let needed = |room| Tpcc::node_bytes(&scale, room, &run.setting(), run.protocol());
    let room = match options.orders {
        Some(orders) => Room::for_orders(orders),
        None => default_room(&run, mix, needed),
    };
    let (needed, because_of) = (needed(room), format!("--warehouses {warehouses} --orders {}", room.orders));
    let bench = Bench::sized(run, needed, because_of);
    let seed = bench.run.seed;
    Ok((bench, Size { scale, room, seed }))
}

/// More orders a second than a thread makes, beside the other transactions, on memory nodes of its
/// own process.
const ORDERS_PER_SECOND: f64 = 30_000.0;
/// More orders a second than a thread makes on memory nodes of other processes.
const ORDERS_PER_SECOND_CONNECTED: f64 = 10_000.0;
/// More orders a virtual second than a thread makes in a simulation.
const ORDERS_PER_VIRTUAL_SECOND: f64 = 500_000.0;

/// Returns room for the orders that a run makes. Memory nodes of this process take at most half of
/// the machine's memory, unless the smallest room needs more.
fn default_room(run: &RunArgs, mix: Mix, needed: impl Fn(Room) -> u64) -> Room {
    const ORDERS_MIN: u64 = 100_000;
    if let Some(transactions) = run.transactions() {
        return match mix {
            Mix::Standard => Room::for_transactions(transactions),
            Mix::NewOrdersOnly => Room::for_orders(transactions),
        };
    }
    let rate = match (&run.connect, run.is_simulated()) {
        (Some(_), _) => ORDERS_PER_SECOND_CONNECTED,
        (None, true) => ORDERS_PER_VIRTUAL_SECOND,
        (None, false) => ORDERS_PER_SECOND,
    };
    // Without the other transactions, a thread makes twice as many orders.
    let share = if mix == Mix::NewOrdersOnly { 2.0 } else { 1.0 };
    let mut orders = (run.seconds_at_most() * rate * share * run.threads() as f64) as u64;
    if run.connect.is_none() && !run.is_simulated() {
        let available = Headroom::now().bytes;
        let takes_too_much =
            |orders| needed(Room::for_orders(orders)).saturating_mul(run.memory_nodes().into()) > available / 2;
        while orders > ORDERS_MIN && takes_too_much(orders) {
            orders = (orders / 4 * 3).max(ORDERS_MIN);
        }
    }
    Room::for_orders(orders)
}

/// Returns the options with their settled values. The tables have the size with which they were
/// loaded.
fn settled(options: &TpccOptions, bench: &Bench, found: &Tpcc) -> Result<TpccOptions, Failure> {
    let (warehouses, orders) = (found.scale().warehouses, found.room().orders);
    agrees("--warehouses", options.warehouses, warehouses)?;
    agrees("--orders", options.orders, orders)?;
    let only = options.only.clone();
    Ok(TpccOptions {
        warehouses: Some(warehouses),
        orders: Some(orders),
        only,
        snapshots: options.snapshots,
        split_totals: options.split_totals,
        run: bench.run.clone(),
    })
}
