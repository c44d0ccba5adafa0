//! The `remora-lab` command: experiments on simulated clusters.
//!
//! It has the exit statuses of the `remora` command.
#![forbid(unsafe_code)]

mod campaign;
mod hardware;
mod hot;
mod litmus;
mod protocol;
mod reproduce;
mod spread;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use remora_command::{Failure, Verdict, output, value};
use tracing_subscriber::filter::LevelFilter;

/// Experiments on simulated clusters: calibration, published tables, faults from a seed, every
/// order of small programs.
#[derive(Debug, Parser)]
#[command(
    name = "remora-lab",
    version,
    after_help = "Example: remora-lab campaign --seeds 0..100 --faults pause,delay,partition"
)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Measures a profile's hardware in the simulator, and shows the published values beside the
    /// results.
    Hardware(hardware::HardwareOptions),
    /// Runs a text's experiments, and prints the published figures beside the results.
    Reproduce(reproduce::ReproduceOptions),
    /// Explores every order of small programs, with and without a published error.
    Litmus(litmus::LitmusOptions),
    /// Runs a workload under faults, from many seeds, and checks every history.
    Campaign(campaign::CampaignOptions),
    /// Runs one seed of a campaign again.
    Replay(campaign::ReplayOptions),
    /// Has more and more clients change one record, and shows how long and how evenly they wait.
    Hot(hot::HotOptions),
    /// Reads the records of one shard with more and more copies, and shows how far reads spread.
    Spread(spread::SpreadOptions),
    /// Runs one transaction, and draws its rounds as a sequence diagram.
    Trace(trace::TraceOptions),
    /// Lists the protocols that promise transactions, one name a line.
    Protocols,
}

fn main() -> ExitCode {
    let cli: Cli = match remora_command::begin("remora-lab") {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    remora_command::log(LevelFilter::ERROR);
    remora_command::conclude(match cli.experiment {
        Experiment::Hardware(options) => hardware::hardware(&options),
        Experiment::Reproduce(options) => reproduce::reproduce(&options),
        Experiment::Litmus(options) => litmus::litmus(&options),
        Experiment::Campaign(options) => campaign::campaign(&options),
        Experiment::Replay(options) => campaign::replay(&options),
        Experiment::Hot(options) => hot::hot(&options),
        Experiment::Spread(options) => spread::spread(&options),
        Experiment::Trace(options) => trace::trace(&options),
        Experiment::Protocols => protocols(),
    })
}

fn protocols() -> Result<Verdict, Failure> {
    let lines: String = value::serializable().map(|name| format!("{name}\n")).collect();
    Verdict::Sound.told(output::show(&lines))
}
