//! The command `remora-lab hardware`: shows how far the simulator is from the hardware that it
//! models.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use remora_fabric::sim::Profile;
use remora_lab::hardware::{Row, calibrate};

use remora_command::inputs::Inputs;
use remora_command::output::{self, ReportTo};
use remora_command::{Failure, Verdict};

#[derive(Debug, Args)]
#[command(after_help = "Example: remora-lab hardware --profile connectx5

Published values belong to the profiles that come with remora. A profile under a name of its own is measured as perftest
would measure the machines, for comparing by hand: docs/profiles.md.

Exit status: 0 done, 1 a row that must be within 10 % is not, 2 there is no such profile.")]
pub(crate) struct HardwareOptions {
    /// The hardware: a profile that comes with remora, or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "connectx4")]
    profile: OsString,
    /// All profiles that come with remora.
    #[arg(long, conflicts_with = "profile")]
    all: bool,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where the rows go as JSON: a file, or - for standard output.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

pub(crate) fn hardware(options: &HardwareOptions) -> Result<Verdict, Failure> {
    let profiles = if options.all {
        Profile::NAMES.iter().filter_map(|name| Profile::named(name)).collect()
    } else {
        vec![remora_command::profile(&options.profile)?]
    };
    let inputs = Inputs::default().with_profile("--profile", Some(&options.profile));
    inputs.check(&[("--report", ReportTo::file(options.report.as_deref()))])?;
    let report = ReportTo::open(options.report.as_deref())?;
    let (mut rows, mut done) = (Vec::new(), Ok(()));
    for profile in &profiles {
        match calibrate(profile, options.seed) {
            Ok(measured) => rows.extend(measured),
            Err(error) => done = Err(Failure::new(format!("--profile {}", profile.name), error)),
        }
    }
    let written = report.write(&rows, || table(&profiles, &rows));
    let verdict = if rows.iter().any(Row::is_off) { Verdict::Unsound } else { Verdict::Sound };
    verdict.told(output::all([done, written]))
}

/// Formats the rows as text, a table for each profile.
fn table(profiles: &[Profile], rows: &[Row]) -> String {
    let mut text = String::new();
    for profile in profiles {
        let rows = rows.iter().filter(|row| row.profile == profile.name);
        let widest = rows.clone().map(|row| row.name.len()).max().unwrap_or(0);
        let _ = writeln!(text, "{}: {}\n", profile.name, profile.about);
        let heads = ["unit", "published", "simulated", "error", "source"];
        let [unit, published, simulated, error, source] = heads;
        let _ = writeln!(text, "{:<widest$} {unit:>5}{published:>11}{simulated:>11}{error:>9}  {source}", "");
        for row in rows {
            let Row { name, unit, simulated, source, .. } = row;
            let published = row.published.map_or_else(|| "-".to_owned(), |value| format!("{value}"));
            let error = row.error.map_or_else(|| "-".to_owned(), percent);
            let mark = if row.is_off() { "  <- off" } else { "" };
            let _ = writeln!(
                text,
                "{name:<widest$} {unit:>5}{published:>11}{:>11}{error:>9}  {source}{mark}",
                digits(*simulated)
            );
        }
        text.push('\n');
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
