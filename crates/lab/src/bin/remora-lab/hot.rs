//! `remora-lab hot`: clients that all change one record, in virtual time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use remora::protocol::Protocol;
use remora_lab::hot::{Crowd, Crowded, measure};

use remora_command::output::{self, ReportTo, grouped};
use remora_command::{Failure, Verdict, value};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  remora-lab hot
  remora-lab hot --protocols ford --clients 1,4,16 --ms 200

slowest: the client with the fewest changes, as a part of its fair share. waits: no change has taken
longer than this many times the holding times of the commits that ended meanwhile. of best: the rate
as a part of the protocol's best rate in this table.

Exit status: 0 done, 2 bad input.")]
pub(crate) struct HotOptions {
    /// Protocols, separated by commas.
    #[arg(long, value_name = "NAMES", default_value = "drtm-r,fasst,farm,ford", value_delimiter = ',', value_parser = value::protocol)]
    protocols: Vec<String>,
    /// Numbers of clients, separated by commas.
    #[arg(long, value_name = "N,...", default_value = "1,2,4,8,16", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Vec<u8>,
    /// Coroutines of each client.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=32))]
    coroutines: u8,
    /// Virtual time that is counted, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    ms: u64,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
}

pub(crate) fn hot(options: &HotOptions) -> Result<Verdict, Failure> {
    let report_to = ReportTo::open(options.report.as_deref())?;
    let mut found = Vec::new();
    for name in &options.protocols {
        for clients in &options.clients {
            let crowd = Crowd {
                protocol: Protocol::named(name).unwrap_or_default(),
                clients: usize::from(*clients),
                coroutines: usize::from(options.coroutines),
                measure: Duration::from_millis(options.ms),
                seed: options.seed,
            };
            let crowded =
                measure(&crowd).map_err(|error| Failure::new(format!("{clients} clients of {name}"), error))?;
            found.push(crowded);
        }
    }
    Verdict::Sound.told(report_to.write(&found, || table(&found)))
}

fn table(found: &[Crowded]) -> String {
    output::text(|text| write_table(text, found))
}

fn write_table(text: &mut String, found: &[Crowded]) -> std::fmt::Result {
    writeln!(
        text,
        "{:<12}{:>8}{:>12}{:>9}{:>10}{:>9}{:>9}{:>12}{:>7}",
        "protocol", "clients", "changes/s", "of best", "together", "aborted", "slowest", "longest ms", "waits"
    )?;
    for one in found {
        let of_protocol = found.iter().filter(|other| other.protocol == one.protocol);
        let best = of_protocol.map(|other| other.rate).fold(0.0, f64::max);
        writeln!(
            text,
            "{:<12}{:>8}{:>12}{:>9.2}{:>10.1}{:>8.0}%{:>9.2}{:>12.2}{:>7.1}",
            one.protocol,
            one.clients,
            grouped(one.rate as u64),
            one.rate / best,
            one.together,
            100.0 * one.aborted,
            one.slowest,
            one.longest_ms,
            one.waits
        )?;
    }
    Ok(())
}
