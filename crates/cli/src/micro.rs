//! `remora bench micro`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use remora_workload::micro::{self, Kind, MicroError, MicroReport, Unfit};
use serde::Serialize;

use crate::output::ReportTo;
use crate::rdma::RdmaArgs;
use crate::{Failure, Verdict, value};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // to be refused with the option's name
#[command(after_help = "Examples:
  remora bench micro
  remora bench micro --kind read --size 256 --batch 4 --report -
  remora bench micro --fabric verbs --device rxe0

Exit status: 0 done, 2 bad input.")]
pub(crate) struct MicroOptions {
    /// Backend: shm, everything in this process; verbs, the same through an RDMA device.
    #[arg(long, value_name = "NAME", default_value = "shm", value_parser = ["shm", "verbs"])]
    #[serde(skip)]
    fabric: String,
    #[command(flatten)]
    #[serde(flatten)]
    rdma: RdmaArgs,
    /// Kind of round: read, write, cas or cas-read; may be repeated [default: all].
    #[arg(long = "kind", value_name = "KIND", value_parser = kind)]
    kinds: Vec<Kind>,
    /// Bytes of a record.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = value::bytes)]
    size: u64,
    /// Accesses of a round.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// How long to measure.
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = value::seconds)]
    seconds: f64,
    /// Of the addresses.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::named(text).ok_or_else(|| format!("no such kind; there are {}", Kind::ALL.map(Kind::name).join(", ")))
}

pub(crate) fn micro(options: &MicroOptions) -> Result<Verdict, Failure> {
    let mut options = options.clone();
    if options.kinds.is_empty() {
        options.kinds = Kind::ALL.into();
    }
    let config = serde_json::to_value(&options).map_err(|error| Failure::new("the report", error))?;
    let to_measure = micro::MicroOptions {
        kinds: options.kinds.clone(),
        size: usize::try_from(options.size).unwrap_or(usize::MAX),
        batch: usize::try_from(options.batch).unwrap_or(usize::MAX),
        time: Duration::from_secs_f64(options.seconds),
        seed: options.seed,
    };
    to_measure.check().map_err(|unfit| refuse(&options, &unfit.into()))?;
    let report_to = ReportTo::open(options.report.as_deref())?;
    let device = options.rdma.open(options.fabric == "verbs")?;
    let bar = ProgressBar::new(to_measure.time.as_millis() as u64);
    let report = micro::run(&to_measure, device, config, |elapsed| bar.set_position(elapsed.as_millis() as u64));
    bar.finish_and_clear();
    let report = report.map_err(|error| refuse(&options, &error))?;
    report_to.write(&report, || table(&report))?;
    Ok(Verdict::Sound)
}

fn refuse(options: &MicroOptions, error: &MicroError) -> Failure {
    match error {
        MicroError::Unfit(Unfit::Size) => Failure::new(format!("--size {}", options.size), error),
        MicroError::Unfit(Unfit::Round { .. }) => {
            Failure::new(format!("--size {} --batch {}", options.size, options.batch), error)
        }
        MicroError::Region(_) | MicroError::Loopback(_) | MicroError::Fabric(_) => Failure(error.to_string()),
    }
}

fn table(report: &MicroReport) -> String {
    let mut text = String::new();
    let _ = write_table(&mut text, report);
    text
}

fn write_table(text: &mut String, report: &MicroReport) -> std::fmt::Result {
    let machine = &report.machine;
    let missing = value::show_bytes(report.missing_bytes);
    writeln!(text, "rounds of one coroutine over {}: medians of {} blocks", report.fabric, report.repetitions)?;
    writeln!(text, "{}, {} cores, {}; missing: of {missing}\n", machine.cpu, machine.cores, machine.pages)?;
    writeln!(
        text,
        "{:<10}{:<9}{:>6}{:>7}{:>12}{:>9}{:>9}{:>11}{:>10}  plain work",
        "round", "memory", "bytes", "batch", "ns a round", "p10", "p90", "plain ns", "over ns"
    )?;
    for one in &report.rounds {
        writeln!(
            text,
            "{:<10}{:<9}{:>6}{:>7}{:>12.1}{:>9.1}{:>9.1}{:>11.1}{:>10.1}  {}",
            one.kind.name(),
            one.memory.to_string(),
            one.size,
            one.batch,
            one.round_ns,
            one.round_p10_ns,
            one.round_p90_ns,
            one.plain_ns,
            one.over_ns,
            one.plain
        )?;
    }
    Ok(())
}
