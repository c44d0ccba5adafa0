//! `remora-lab spread`: transactions that only read the records of one shard, in virtual time, with
//! more and more copies.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use remora::protocol::Protocol;
use remora_command::output::{self, ReportTo, grouped};
use remora_command::{Failure, Verdict, value};
use remora_lab::spread::{MEMORY_NODES, Spread, Spreaded, measure};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  remora-lab spread
  remora-lab spread --protocols remora --machines 12 --writes-one-in 0

A transaction reads 16 records of one shard. One in --writes-one-in changes a record instead. of one:
the rate as a multiple of the protocol's rate with one copy.

Exit status: 0 done, 2 bad input.")]
pub(crate) struct SpreadOptions {
    /// Protocols, separated by commas.
    #[arg(long, value_name = "NAMES", default_value = "drtm-r,ford,remora", value_delimiter = ',', value_parser = value::protocol)]
    protocols: Vec<String>,
    /// Client machines.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u8).range(1..=64))]
    machines: u8,
    /// Threads of each machine.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=24))]
    threads: u8,
    /// Of this many transactions, one changes a record. With 0, all only read.
    #[arg(long, value_name = "N", default_value_t = 100)]
    writes_one_in: u64,
    /// Virtual time that is counted, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    ms: u64,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
}

pub(crate) fn spread(options: &SpreadOptions) -> Result<Verdict, Failure> {
    let report_to = ReportTo::open(options.report.as_deref())?;
    let mut found = Vec::new();
    for name in &options.protocols {
        for copies in 1..=MEMORY_NODES as u8 {
            let spread = Spread {
                protocol: Protocol::named(name).unwrap_or_default(),
                copies,
                machines: options.machines.into(),
                threads: options.threads.into(),
                writes_one_in: options.writes_one_in,
                measure: Duration::from_millis(options.ms),
                seed: options.seed,
            };
            let one = measure(&spread).map_err(|error| Failure::new(format!("{copies} copies, {name}"), error))?;
            found.push(one);
        }
    }
    Verdict::Sound.told(report_to.write(&found, || table(&found)))
}

fn table(found: &[Spreaded]) -> String {
    output::text(|text| write_table(text, found))
}

fn write_table(text: &mut String, found: &[Spreaded]) -> std::fmt::Result {
    writeln!(
        text,
        "{:<12}{:>7}{:>14}{:>8}{:>12}{:>9}{:>7}",
        "protocol", "copies", "reads/s", "of one", "median us", "aborted", "verbs"
    )?;
    for one in found {
        let first = found.iter().find(|other| other.protocol == one.protocol).map_or(one.rate, |first| first.rate);
        writeln!(
            text,
            "{:<12}{:>7}{:>14}{:>8.2}{:>12.1}{:>8.1}%{:>7.1}",
            one.protocol,
            one.copies,
            grouped(one.rate as u64),
            one.rate / first,
            one.median_us,
            100.0 * one.aborted,
            one.verbs
        )?;
    }
    Ok(())
}
