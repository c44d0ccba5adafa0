//! The output of a command: results go to standard output and to files, errors and notes to
//! standard error.
//!
//! Everything that cannot be written is an error, which [`show`] and [`OutputFile`] report. No
//! result is lost because one of several places cannot take it. Names that came from memory nodes
//! or files may contain anything. They are escaped before they reach a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use remora::observe::WAITS;
use remora_workload::{LatencyUs, Report, ScanReport};
use serde::Serialize;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::{Failure, Verdict};

/// Writes lines for people to standard output.
pub fn show(text: &str) -> Result<(), Failure> {
    put(&escaped(text, &['\n']))
}

/// Writes to standard output.
fn put(text: &str) -> Result<(), Failure> {
    shown(io::stdout().lock().write_all(text.as_bytes()))
}

/// Converts the result of writing to standard output. If the reader has closed its pipe, the
/// command ends quietly.
pub fn shown(written: io::Result<()>) -> Result<(), Failure> {
    written.and_then(|()| io::stdout().flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::unheard(),
        _ => Failure::new("standard output", error),
    })
}

/// Prints an error on standard error, mostly one line.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {}", escaped(line, &['\n'])); // there is no other place to report it
}

/// Prints a note of one line on standard error. The command goes on.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {}", escaped(line, &['\n'])); // there is no other place to report it
}

/// Makes a name printable in a line: escapes what would break the line, or act on a terminal.
pub fn printable(name: &str) -> Cow<'_, str> {
    escaped(name, &[])
}

fn escaped<'t>(text: &'t str, kept: &[char]) -> Cow<'t, str> {
    // These are control characters of terminals, characters that change the direction of others,
    // and invisible ones.
    let acts = |one: char| {
        let is_hidden =
            matches!(one, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        (one.is_control() || is_hidden) && !kept.contains(&one)
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        if acts(one) { shown.extend(one.escape_debug()) } else { shown.push(one) }
    }
    Cow::Owned(shown)
}

/// Makes the library's log lines go to standard error, without colours. `usual` is the level for
/// most lines, `of_waits` the level for lines about waiting.
pub fn log(usual: LevelFilter, of_waits: LevelFilter) {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_target(false);
    let shown = Targets::new().with_default(usual).with_target(WAITS, of_waits);
    tracing_subscriber::registry().with(lines.with_filter(shown)).init();
}

/// Returns the first failure of several places that a result was written to. The other failures are
/// printed at once.
pub fn all(written: impl IntoIterator<Item = Result<(), Failure>>) -> Result<(), Failure> {
    let mut failures = written.into_iter().filter_map(Result::err);
    let first = failures.next();
    failures.for_each(|failure| failure.complain());
    first.map_or(Ok(()), Err)
}

impl Verdict {
    /// Returns the verdict of a result that was written. That something does not hold matters more
    /// than a failure to write the result.
    pub fn told(self, written: Result<(), Failure>) -> Result<Verdict, Failure> {
        match (self, written) {
            (Verdict::Unsound, Err(failure)) => {
                failure.complain();
                Ok(Verdict::Unsound)
            }
            (verdict, written) => written.map(|()| verdict),
        }
    }
}

/// A file for results that an option names. It is opened before the long run that will fill it, and
/// unchanged until then. No other process or option that writes such files can open it meanwhile,
/// under whatever name.
#[derive(Debug)]
pub struct OutputFile {
    option: &'static str,
    name: String,
    file: File,
}

impl OutputFile {
    /// Opens the file that an option names. So a result that cannot be written is refused before
    /// the work begins.
    pub fn open(option: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        let name = path.display().to_string();
        let opened = OpenOptions::new().create(true).write(true).truncate(false).open(path);
        let file = opened.map_err(|error| Failure::new(format!("{option} {name}"), error))?;
        let output = OutputFile { option, name, file };
        output.claim()?;
        Ok(output)
    }

    /// Makes sure that only this option of this process writes the file. Devices and pipes may be
    /// shared.
    fn claim(&self) -> Result<(), Failure> {
        let Some(file) = self.file.metadata().ok().filter(|file| file.is_file()) else { return Ok(()) };
        let is_same = |other: rustix::fs::Stat| (other.st_dev, other.st_ino) == (file.dev(), file.ino());
        let (output, errors) = (io::stdout(), io::stderr());
        for (stream, what) in [(output.as_fd(), "standard output"), (errors.as_fd(), "standard error")] {
            if rustix::fs::fstat(stream).is_ok_and(is_same) {
                return Err(self.failure(format!("is where {what} goes: name another file")));
            }
        }
        match self.file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(self.failure("another option, or another process, writes the same file: name one for each"))
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(_)) | Ok(()) => Ok(()),
        }
    }

    /// Empties the file, and returns it.
    pub fn begin(&self) -> Result<File, Failure> {
        let emptied = self.file.metadata().and_then(|what| if what.is_file() { self.file.set_len(0) } else { Ok(()) });
        emptied.and_then(|()| self.file.try_clone()).map_err(|error| self.failure(error))
    }

    /// Replaces the contents of the file.
    pub fn fill(&self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.begin()?.write_all(text.as_ref()).map_err(|error| self.failure(error))
    }

    /// Makes the failure of a write to the file.
    pub fn failure(&self, error: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{} {}", self.option, self.name), error)
    }
}

/// The destination of a report.
#[derive(Debug)]
pub enum ReportTo {
    /// A table for people goes to standard output.
    People,
    /// JSON goes to standard output.
    Output,
    /// JSON goes to a file, and the table to standard output.
    File(OutputFile),
}

impl ReportTo {
    /// Opens the destination that the option `--report` names.
    pub fn open(option: Option<&Path>) -> Result<ReportTo, Failure> {
        match (option, ReportTo::file(option)) {
            (None, _) => Ok(ReportTo::People),
            (Some(_), None) => Ok(ReportTo::Output),
            (_, Some(path)) => Ok(ReportTo::File(OutputFile::open("--report", path)?)),
        }
    }

    /// Returns the file that the option `--report` names. `-` is standard output and no file.
    pub fn file(option: Option<&Path>) -> Option<&Path> {
        option.filter(|path| path.as_os_str() != "-")
    }

    /// Writes the report. The table is shown even if the file cannot be written.
    pub fn write(&self, report: &impl Serialize, table: impl FnOnce() -> String) -> Result<(), Failure> {
        let json = || {
            let text = serde_json::to_string_pretty(report).map_err(|error| Failure::new("the report", error))?;
            Ok::<_, Failure>(text + "\n")
        };
        match self {
            ReportTo::People => show(&table()),
            ReportTo::Output => put(&json()?),
            ReportTo::File(output) => all([show(&table()), json().and_then(|json| output.fill(&json))]),
        }
    }
}

/// Formats a whole number with its thousands apart.
pub fn grouped(number: u64) -> String {
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

/// Returns the text that a function writes.
pub fn text(write: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
    let mut text = String::new();
    let _ = write(&mut text); // writing to a string cannot fail
    text
}

/// Formats a report for people.
pub fn table(report: &Report, setting: &str) -> String {
    text(|text| write_table(text, report, setting))
}

/// Number of hot records that the table has.
const HOT_RECORDS: usize = 3;

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
    for (number, hot) in report.hot_records.iter().take(HOT_RECORDS).enumerate() {
        let title = if number == 0 { "hottest" } else { "" };
        writeln!(
            text,
            "{title:<15}{}: {} aborts (locked {}, changed {}), {} waits in line of {:.3} ms",
            hot.name,
            grouped(hot.locked + hot.changed + hot.otherwise),
            grouped(hot.locked),
            grouped(hot.changed),
            grouped(hot.stood),
            hot.stood_ms / (hot.stood.max(1)) as f64,
        )?;
    }
    if report.given_up + report.unknown > 0 {
        writeln!(text, "without end    {} given up, {} of unknown outcome", report.given_up, report.unknown)?;
    }
    if report.table_full {
        writeln!(text, "ended early    because a table had no room for another row")?;
    }
    if let Some(why) = &report.history_failure {
        writeln!(text, "history        is cut, and good for nothing: {why}")?;
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
    if let Some(scans) = &report.scans {
        write_scans(text, scans)?;
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

/// Adds the lines of a table about the scans beside the transactions.
fn write_scans(text: &mut String, scans: &ScanReport) -> std::fmt::Result {
    let of = |number: f64| grouped(number as u64);
    let (rows, attempts) = (grouped(scans.rows), grouped(scans.attempts));
    let consistent = match scans.consistent {
        Some(true) => "all of one state",
        Some(false) => "NOT all of one state",
        None => "none was complete",
    };
    writeln!(
        text,
        "scans          {} of {rows} rows, {consistent}; {} given up, {} cut off by the end of their time",
        grouped(scans.completed),
        scans.given_up,
        scans.cut_off
    )?;
    let causes: Vec<String> =
        scans.restarted.iter().map(|(cause, count)| format!("{cause} {}", grouped(*count))).collect();
    let causes = if causes.is_empty() { String::new() } else { format!(": {}", causes.join(", ")) };
    writeln!(
        text,
        "               {} rows/s of complete scans, {} of all; {attempts} attempts, {:.2} for each scan{causes}",
        of(scans.rows_per_second),
        of(scans.rows_read_per_second),
        scans.attempts_per_scan
    )?;
    if scans.completed == 0 {
        writeln!(text, "               the furthest attempt read {:.1} % of the rows", 100.0 * scans.furthest)?;
    } else {
        let LatencyUs { mean, max, .. } = scans.latency_us;
        writeln!(
            text,
            "               a complete scan took {:.1} ms on average, {:.1} at most",
            mean / 1e3,
            max / 1e3
        )?;
    }
    if scans.cpu_seconds > 0.0 {
        writeln!(text, "               {:.2} s of CPU for scans", scans.cpu_seconds)?;
    }
    if let Some(why) = &scans.stopped {
        writeln!(text, "               no more scans were run: {why}")?;
    }
    match (scans.tps_with, scans.tps_without) {
        (Some(with), Some(without)) if without > 0.0 => {
            let (ratio, with, without) = (with / without, of(with), of(without));
            writeln!(text, "beside scans   {with} transactions/s; without them {without}, a ratio of {ratio:.3}")
        }
        (Some(with), _) => writeln!(text, "beside scans   {} transactions/s", of(with)),
        _ => Ok(()),
    }
}

/// Adds a line of a table: whether an invariant holds, and what was found.
pub fn write_invariant(text: &mut String, name: &str, holds: Option<bool>, detail: &str) -> std::fmt::Result {
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
    use super::{escaped, grouped, printable};

    #[test]
    fn names_cannot_act_on_a_terminal() {
        for (name, shown) in [
            ("accounts", "accounts"),
            ("Käufer's \"C:\\x\"", "Käufer's \"C:\\x\""),
            ("two\nlines\t", "two\\nlines\\t"),
            ("\u{1b}[31mred\u{9b}", "\\u{1b}[31mred\\u{9b}"),
            ("a\u{308}u\u{308}", "a\u{308}u\u{308}"),
            ("left\u{202e}right", "left\\u{202e}right"),
        ] {
            assert_eq!(printable(name), shown);
        }
        assert_eq!(escaped("✓ one\n\u{7}two\n", &['\n']), "✓ one\n\\u{7}two\n");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(grouped), ["0", "999", "1,000", "12,345,678"]);
    }
}
