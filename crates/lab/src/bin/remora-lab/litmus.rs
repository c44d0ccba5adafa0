//! The command `remora-lab litmus`: explores every order of the steps of small programs, with each
//! published error put back, and without it.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use remora_lab::litmus::{ALL, Bound, Comparison, Entry, Litmus, run};

use remora_command::output::{self, ReportTo, grouped};
use remora_command::{Failure, Verdict};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  remora-lab litmus
  remora-lab litmus --only write-skew --report -

Exit status: 0 ours is correct and every error is caught, 1 something is not as it should be, 2 bad input.")]
pub(crate) struct LitmusOptions {
    /// One test by its name [default: all].
    #[arg(long, value_name = "NAME", value_parser = litmus_named)]
    only: Option<&'static Litmus>,
    /// Runs after which a test gives up, and says that it is bounded.
    #[arg(long, value_name = "N", default_value_t = Bound::default().runs, value_parser = clap::value_parser!(u64).range(1..))]
    bound: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
}

fn litmus_named(name: &str) -> Result<&'static Litmus, String> {
    let names = || ALL.iter().map(|litmus| litmus.name).collect::<Vec<_>>().join(", ");
    ALL.iter().find(|litmus| litmus.name == name).ok_or_else(|| format!("no such test; there are {}", names()))
}

pub(crate) fn litmus(options: &LitmusOptions) -> Result<Verdict, Failure> {
    let report_to = ReportTo::open(options.report.as_deref())?;
    let bound = Bound { runs: options.bound };
    let chosen = ALL.iter().filter(|litmus| options.only.is_none_or(|only| only.name == litmus.name));
    let found: Vec<Comparison> = chosen.map(|litmus| run(litmus, bound)).collect();
    let entries: Vec<Entry> = found.iter().map(Comparison::entry).collect();
    let written = report_to.write(&entries, || table(&found));
    let sound = found.iter().all(Comparison::is_as_it_should_be);
    if sound { Verdict::Sound } else { Verdict::Unsound }.told(written)
}

fn table(found: &[Comparison]) -> String {
    output::text(|text| write_table(text, found))
}

fn write_table(text: &mut String, found: &[Comparison]) -> std::fmt::Result {
    writeln!(
        text,
        "  {:<32}{:>14}{:>9}{:>10}{:>10}{:>10}{:>9}  {:<16}{:<24}source",
        "litmus test", "interleavings", "states", "steps", "verbs", "lines", "crashes", "ours", "mutant"
    )?;
    for one in found {
        let entry = one.entry();
        let mark = if one.is_as_it_should_be() { '✓' } else { '✗' };
        let ours = match (entry.correct, entry.bounded) {
            (false, _) => "wrong",
            (true, true) => "correct, bounded",
            (true, false) => "correct",
        };
        let after = entry.mutant_interleavings;
        let mutant = match (entry.mutant_caught, one.mutated.bounded) {
            (true, _) => format!("caught after {}", grouped(after)),
            (false, true) => format!("missed, bounded at {}", grouped(after)),
            (false, false) => "missed".to_owned(),
        };
        let numbers = [entry.states, entry.steps, entry.verbs, entry.lines, entry.crashes].map(grouped);
        let [states, steps, verbs, lines, crashes] = numbers;
        writeln!(
            text,
            "{mark} {:<32}{:>14}{states:>9}{steps:>10}{verbs:>10}{lines:>10}{crashes:>9}  {ours:<16} {mutant:<23}{}",
            entry.name,
            grouped(entry.interleavings),
            entry.source
        )?;
        for line in entry.violation.iter().flatten() {
            writeln!(text, "    {line}")?;
        }
    }
    Ok(())
}
