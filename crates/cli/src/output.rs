//! What the command says, and to whom: results to standard output, complaints to standard error.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use remora_workload::{LatencyUs, Report};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use crate::Failure;

/// Writes to standard output. Whoever has closed it does not want to know more.
pub(crate) fn show(text: &str) {
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// One line on standard error.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {line}");
}

/// One line on standard error of who goes on.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {line}");
}

/// Lets what the library logs go to standard error, in plain lines.
pub(crate) fn log(least: LevelFilter) {
    tracing_subscriber::fmt().with_max_level(least).with_writer(io::stderr).with_ansi(false).with_target(false).init();
}

/// A file that an option names, opened before the long run that will fill it, and left as it is until then.
#[derive(Debug)]
pub(crate) struct OutputFile {
    option: &'static str,
    name: String,
    file: File,
}

impl OutputFile {
    pub(crate) fn open(option: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        let name = path.display().to_string();
        let opened = OpenOptions::new().create(true).write(true).truncate(false).open(path);
        let file = opened.map_err(|error| Failure::new(format!("{option} {name}"), error))?;
        Ok(OutputFile { option, name, file })
    }

    /// The file, empty now.
    pub(crate) fn begin(&self) -> Result<File, Failure> {
        let emptied = self.file.metadata().and_then(|what| if what.is_file() { self.file.set_len(0) } else { Ok(()) });
        emptied.and_then(|()| self.file.try_clone()).map_err(|error| self.failure(&error))
    }

    pub(crate) fn failure(&self, error: &io::Error) -> Failure {
        Failure::new(format!("{} {}", self.option, self.name), error)
    }
}

/// Where a report goes.
#[derive(Debug)]
pub(crate) enum ReportTo {
    /// A table for people, to standard output.
    People,
    /// JSON, to standard output.
    Output,
    /// JSON, to a file; and the table.
    File(OutputFile),
}

impl ReportTo {
    pub(crate) fn open(option: Option<&Path>) -> Result<ReportTo, Failure> {
        match option {
            None => Ok(ReportTo::People),
            Some(path) if path.as_os_str() == "-" => Ok(ReportTo::Output),
            Some(path) => Ok(ReportTo::File(OutputFile::open("--report", path)?)),
        }
    }

    pub(crate) fn write(&self, report: &impl Serialize, table: impl FnOnce() -> String) -> Result<(), Failure> {
        let json = || {
            let text = serde_json::to_string_pretty(report).map_err(|error| Failure::new("the report", error))?;
            Ok::<_, Failure>(text + "\n")
        };
        match self {
            ReportTo::People => show(&table()),
            ReportTo::Output => show(&json()?),
            ReportTo::File(output) => {
                let json = json()?;
                output.begin()?.write_all(json.as_bytes()).map_err(|error| output.failure(&error))?;
                show(&table());
            }
        }
        Ok(())
    }
}

/// A whole number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A report for people.
pub(crate) fn table(report: &Report, setting: &str) -> String {
    let mut text = String::new();
    let _ = write_table(&mut text, report, setting);
    text
}

fn write_table(text: &mut String, report: &Report, setting: &str) -> std::fmt::Result {
    let machine = &report.machine;
    writeln!(text, "{} by {} over {}: {setting}", report.workload, report.protocol, report.fabric)?;
    writeln!(text, "{}, {} cores, {}\n", machine.cpu, machine.cores, machine.pages)?;
    let (committed, seconds) = (grouped(report.committed), report.seconds);
    let throughput = grouped(report.throughput_tps as u64);
    writeln!(text, "throughput     {throughput} transactions/s ({committed} committed in {seconds:.2} s)")?;
    let causes: Vec<String> = report
        .aborted
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(cause, count)| format!("{cause} {}", grouped(*count)))
        .collect();
    let causes = if causes.is_empty() { String::new() } else { format!(": {}", causes.join(", ")) };
    writeln!(text, "progress       at least one transaction ended every {:.1} ms", report.max_gap_ms)?;
    writeln!(text, "aborted        {:.3} % of all attempts{causes}", 100.0 * report.abort_rate)?;
    if report.given_up + report.unknown > 0 {
        writeln!(text, "without end    {} given up, {} of unknown outcome", report.given_up, report.unknown)?;
    }
    if report.table_full {
        writeln!(text, "ended early    because a table had no room for another row")?;
    }
    if report.fenced > 0 {
        writeln!(text, "reconnected    {} times, because others took a worker for dead", report.fenced)?;
    }
    let cpu = &report.cpu_seconds;
    let for_cpu = grouped(report.per_cpu_second_tps as u64);
    let (workers, appliers) = (cpu.workers, cpu.appliers);
    writeln!(
        text,
        "CPU            {workers:.2} s workers, {appliers:.2} s memory nodes: {for_cpu} transactions/CPU s"
    )?;
    if let Some(simulated) = &report.simulated {
        let (events, rate) = (grouped(simulated.events), grouped(simulated.verbs_per_second as u64));
        let memory = simulated.peak_bytes as f64 / f64::from(1 << 30);
        writeln!(
            text,
            "simulated      in {:.1} s ({events} events, {rate} verbs/s; loaded in {:.1} s, peak memory {memory:.1} GiB)",
            simulated.seconds,
            simulated.load_seconds + simulated.prepare_seconds
        )?;
    }
    let each = &report.per_transaction;
    writeln!(
        text,
        "each           {:.3} round trips, {:.2} READ, {:.2} WRITE, {:.2} atomics, {:.0} B out, {:.0} B in\n",
        each.round_trips, each.reads, each.writes, each.atomics, each.bytes_out, each.bytes_in
    )?;
    let heads = [
        "committed",
        "per second",
        "aborted",
        "by user",
        "round trips",
        "mean us",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ];
    write!(text, "{:<24}", "transaction")?;
    write!(text, "{:>13}{:>12}{:>10}{:>10}{:>13}", heads[0], heads[1], heads[2], heads[3], heads[4])?;
    heads[5..].iter().try_for_each(|head| write!(text, "{head:>9}"))?;
    text.push('\n');
    for (name, one) in &report.by_type {
        let (committed, aborted, user) = (grouped(one.committed), grouped(one.aborted), grouped(one.user));
        let rate = grouped(one.throughput_tps as u64);
        write!(text, "{name:<24}{committed:>13}{rate:>12}{aborted:>10}{user:>10}{:>13.3}", one.round_trips)?;
        write_latency(text, &one.latency_us)?;
    }
    let aborted: u64 = report.aborted.values().sum();
    let user: u64 = report.by_type.values().map(|one| one.user).sum();
    let (committed, aborted, user) = (grouped(report.committed), grouped(aborted), grouped(user));
    write!(text, "{:<24}{committed:>13}{throughput:>12}{aborted:>10}{user:>10}{:>13.3}", "all", each.round_trips)?;
    write_latency(text, &report.latency_us)?;
    text.push('\n');
    let phases = &report.phases_us;
    let phases =
        [("execute", phases.execute), ("validate", phases.validate), ("log", phases.log), ("commit", phases.commit)];
    for (name, latency) in phases.iter().filter(|(_, latency)| latency.max > 0.0) {
        write!(text, "{:<82}", format!("phase {name}"))?;
        write_latency(text, latency)?;
    }
    text.push('\n');
    report.invariants.iter().try_for_each(|one| write_invariant(text, one.name, one.holds, &one.detail))
}

/// A line of a table: whether an invariant holds, and what was found.
pub(crate) fn write_invariant(text: &mut String, name: &str, holds: Option<bool>, detail: &str) -> std::fmt::Result {
    let mark = match holds {
        Some(true) => '✓',
        Some(false) => '✗',
        None => '?',
    };
    writeln!(text, "{mark} {name:<38} {detail}")
}

fn write_latency(text: &mut String, latency: &LatencyUs) -> std::fmt::Result {
    let LatencyUs { mean, p50, p90, p99, p999, max } = *latency;
    [mean, p50, p90, p99, p999, max].iter().try_for_each(|value| write!(text, "{value:>9.2}"))?;
    text.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(grouped), ["0", "999", "1,000", "12,345,678"]);
    }
}
