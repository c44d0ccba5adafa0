//! The command `remora-lab hardware`: shows how far the simulator is from the hardware that it
//! models.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use remora_fabric::sim::Profile;
use remora_lab::hardware::numbers::{Counts, Kind, Number, numbers};
use remora_lab::hardware::{Evidence, Predictions, Row, calibrate};
use serde::Serialize;

use remora_command::inputs::Inputs;
use remora_command::output::{self, ReportTo};
use remora_command::{Failure, Verdict};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora-lab hardware --profile connectx5
  remora-lab hardware --all
  remora-lab hardware --profile connectx5 --numbers

Published values belong to the profiles that come with remora. A profile under a name of its own is measured as perftest
would measure the machines, for comparing by hand: docs/profiles.md. A row is a fit if a number of the profile was computed
from its published value: it is no evidence for the model. The other rows with a published value are predictions.

Exit status: 0 done, 1 a row that must be within 10 % is not, 2 there is no such profile.")]
pub(crate) struct HardwareOptions {
    /// The hardware: a profile that comes with remora, or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "connectx4")]
    profile: OsString,
    /// All profiles that come with remora.
    #[arg(long, conflicts_with = "profile")]
    all: bool,
    /// Lists the profile's numbers, each with its kind and source, and measures nothing.
    #[arg(long)]
    numbers: bool,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where the rows go as JSON: a file, or - for standard output.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// What `--report` writes.
#[derive(Serialize)]
struct Calibration<'a> {
    profiles: Vec<Provenance<'a>>,
    rows: &'a [Row],
    predictions: Predictions,
}

/// Where the numbers of a profile come from.
#[derive(Serialize)]
struct Provenance<'a> {
    name: &'a str,
    numbers: Counts,
}

/// A profile, and its numbers as its text has them.
struct Described {
    profile: Profile,
    numbers: Vec<Number>,
}

impl Described {
    fn shipped(name: &str) -> Option<Described> {
        Some(Described { profile: Profile::named(name)?, numbers: numbers(Profile::text(name)?) })
    }

    fn of(name: &OsStr) -> Result<Described, Failure> {
        if let Some(described) = name.to_str().and_then(Described::shipped) {
            return Ok(described);
        }
        let profile = remora_command::profile(name)?;
        let text =
            fs::read_to_string(name).map_err(|error| Failure::new(format!("--profile {}", name.display()), error));
        Ok(Described { profile, numbers: numbers(&text?) })
    }
}

pub(crate) fn hardware(options: &HardwareOptions) -> Result<Verdict, Failure> {
    let profiles: Vec<Described> = if options.all {
        Profile::NAMES.iter().filter_map(|name| Described::shipped(name)).collect()
    } else {
        vec![Described::of(&options.profile)?]
    };
    let inputs = Inputs::default().with_profile("--profile", Some(&options.profile));
    inputs.check(&[("--report", ReportTo::file(options.report.as_deref()))])?;
    let report = ReportTo::open(options.report.as_deref())?;
    if options.numbers {
        let by_profile: BTreeMap<&str, &[Number]> =
            profiles.iter().map(|described| (&*described.profile.name, &*described.numbers)).collect();
        return Verdict::Sound.told(report.write(&by_profile, || profiles.iter().map(listed).collect()));
    }
    let (mut rows, mut done) = (Vec::new(), Ok(()));
    for Described { profile, .. } in &profiles {
        match calibrate(profile, options.seed) {
            Ok(measured) => rows.extend(measured),
            Err(error) => done = Err(Failure::new(format!("--profile {}", profile.name), error)),
        }
    }
    let provenance = |described: &'_ Described| (Counts::of(&described.numbers), described.profile.name.clone());
    let counts: Vec<_> = profiles.iter().map(provenance).collect();
    let calibration = Calibration {
        profiles: counts.iter().map(|(numbers, name)| Provenance { name, numbers: *numbers }).collect(),
        rows: &rows,
        predictions: Predictions::of(&rows),
    };
    let written = report.write(&calibration, || {
        let tables: String = profiles.iter().map(|described| table(described, &rows)).collect();
        if options.all { tables + &summary(&rows) } else { tables }
    });
    let verdict = if rows.iter().any(Row::is_off) { Verdict::Unsound } else { Verdict::Sound };
    verdict.told(output::all([done, written]))
}

/// Formats the counts of a profile's numbers as one line.
fn counted(numbers: &[Number]) -> String {
    let Counts { published, derived, fit, assumed, unmarked } = Counts::of(numbers);
    let mut text =
        format!("{} numbers: {published} published, {derived} derived, {fit} fit, {assumed} assumed", numbers.len());
    if unmarked > 0 {
        let _ = write!(text, ", {unmarked} without a kind");
    }
    text
}

/// Formats the numbers of a profile as text, one a line.
fn listed(described: &Described) -> String {
    let Described { profile, numbers } = described;
    let mut text = format!("{}: {}\n{}\n\n", profile.name, profile.about, counted(numbers));
    let widest = numbers.iter().map(|number| number.key.len()).max().unwrap_or(0);
    for Number { key, value, kind, fit_to, source } in numbers {
        let kind = kind.map_or("-", Kind::name);
        let _ = write!(text, "{key:<widest$} {value:>11}  {kind:<9}  ");
        if !fit_to.is_empty() {
            let _ = write!(text, "[{}] ", fit_to.join("; "));
        }
        let _ = writeln!(text, "{source}");
    }
    text.push('\n');
    text
}

/// Formats the rows of a profile as text.
fn table(described: &Described, rows: &[Row]) -> String {
    let Described { profile, numbers } = described;
    let rows = rows.iter().filter(|row| row.profile == profile.name);
    let widest = rows.clone().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = format!("{}: {}\n{}\n\n", profile.name, profile.about, counted(numbers));
    let heads = ["unit", "published", "simulated", "error", "", "source"];
    let [unit, published, simulated, error, evidence, source] = heads;
    let _ =
        writeln!(text, "{:<widest$} {unit:>5}{published:>11}{simulated:>11}{error:>9}  {evidence:<10}  {source}", "");
    for row in rows {
        let Row { name, unit, simulated, source, .. } = row;
        let published = row.published.map_or_else(|| "-".to_owned(), |value| format!("{value}"));
        let error = row.error.map_or_else(|| "-".to_owned(), percent);
        let evidence = match row.evidence {
            None => "",
            Some(Evidence::Fit) => "fit",
            Some(Evidence::Prediction) => "prediction",
        };
        let mark = if row.is_off() { "  <- off" } else { "" };
        let _ = writeln!(
            text,
            "{name:<widest$} {unit:>5}{published:>11}{:>11}{error:>9}  {evidence:<10}  {source}{mark}",
            digits(*simulated)
        );
    }
    text.push('\n');
    text
}

/// Formats how far the predictions are off, the worst last.
fn summary(rows: &[Row]) -> String {
    let Predictions { rows: predictions, within_10_percent, within_25_percent, fits } = Predictions::of(rows);
    let mut text = format!(
        "{fits} rows with a published value are fits: a number of the profile was computed from that value, so they are no \
         evidence.\n{predictions} rows are predictions: {within_10_percent} within 10 %, {within_25_percent} within 25 %.\n\n"
    );
    let mut errors: Vec<(f64, &Row)> = rows
        .iter()
        .filter(|row| row.evidence == Some(Evidence::Prediction))
        .filter_map(|row| Some((row.error?, row)))
        .collect();
    errors.sort_by(|(one, _), (other, _)| one.abs().total_cmp(&other.abs()));
    for (error, row) in errors {
        let _ = writeln!(text, "{:>9}  {}: {}", percent(error), row.profile, row.name);
    }
    text
}

/// Formats a measured value with its meaningful digits.
fn digits(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.1}"),
        10.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a share as a percentage, without "-0".
fn percent(share: f64) -> String {
    format!("{:+.1} %", (1000.0 * share).round() / 10.0 + 0.0)
}
