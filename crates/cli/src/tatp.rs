//! `remora bench tatp`: its options, and the tables that it loads.

use clap::Args;
use remora_workload::tatp::{Subscribers, Tatp};
use serde::Serialize;

use crate::bench::Bench;
use crate::connected::agrees;
use crate::options::RunArgs;
use crate::{Failure, Verdict};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // so that the error names the option
#[command(after_help = "Examples:
  remora bench tatp
  remora bench tatp --threads 2 --subscribers 1000000 --protocol fasst --report -
  remora bench tatp --subscribers 100 --transactions 100000 --history run.jsonl && remora check run.jsonl

A transaction that finds no row, or one where it inserts, is the workload's own abort: TATP expects it.

Exit status: 0 done, 1 an invariant does not hold, 2 bad input.")]
pub(crate) struct TatpOptions {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunArgs,
    /// Subscribers, each with about ten rows [default: 100,000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    subscribers: Option<u32>,
}

pub(crate) fn tatp(options: &TatpOptions) -> Result<Verdict, Failure> {
    let run = options.run.settled()?;
    let subscribers = options.subscribers.unwrap_or(Subscribers::STANDARD);
    let needed = Tatp::node_bytes(subscribers, &run.setting());
    let mut bench = Bench::sized(run, needed, format!("--subscribers {subscribers}"));
    let seed = bench.run.seed;
    let opened = bench.open(|cluster| Tatp::load(cluster, Subscribers::new(subscribers), seed))?;
    let found = opened.workload.subscribers().count();
    agrees("--subscribers", options.subscribers, found)?;
    let config = TatpOptions { subscribers: Some(found), run: bench.run.clone() };
    bench.run(&opened, &config)
}
