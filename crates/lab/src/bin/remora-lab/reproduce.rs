//! The command `remora-lab reproduce`: runs published experiments on simulated clusters, and prints
//! the published figures beside the results.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use remora_lab::reproduce::{
    ReproduceError, Reproduction, Row, Run, drtm_h, dst, ford, kv, latches, multi_object, rtx, trees, xstore,
};

use remora_command::output::{self, OutputFile, ReportTo, complain};
use remora_command::{Failure, Verdict};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora-lab reproduce drtm-h --plot throughput-nodes.svg
  remora-lab reproduce ford --quick

Figures that do not come out as published are shown, and explained. Exit status: 0 done, 1 an invariant of the workload
does not hold, 2 there is nothing to simulate with.")]
pub(crate) struct ReproduceOptions {
    /// The text whose experiments to run.
    #[arg(value_enum)]
    text: Text,
    /// Use a small cluster, which shows directions only.
    #[arg(long)]
    quick: bool,
    /// Machines of drtm-h [default: the text's 16].
    #[arg(long, value_name = "N", conflicts_with = "quick", value_parser = clap::value_parser!(u16).range(3..=16))]
    nodes: Option<u16>,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where the rows go as JSON: a file, or - for standard output.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Draws throughput against machines into an SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The texts whose experiments can be reproduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Text {
    /// Wei thesis, chapter 4: which primitive for which phase of a transaction, and the systems
    /// that the thesis compares.
    DrtmH,
    /// DrTM (TOCS 2017), section 6.4: its hash table, with a location cache and without one,
    /// compared with the tables of Pilaf and FaRM.
    DrtmKv,
    /// Wei thesis, chapter 5: times of commits that transactions derive, or that an oracle gives,
    /// on TPC-C.
    Dst,
    /// FORD (TOS 2023), section 6: comparison with one-sided baselines, and the gain of its
    /// mechanisms.
    Ford,
    /// Ziegler thesis, chapter 10: trees that are coarse-grained and two-sided, fine-grained and
    /// one-sided, or hybrid.
    TreeDesigns,
    /// Ziegler thesis, chapters 5 and 11: latches, and reads without them.
    Latches,
    /// Wei thesis, section 2.2.4: requests of several objects by bare verbs and calls, with one
    /// optimization after the other.
    MultiObject,
    /// rTX, section 6: what it costs that any client can finish or undo the operation of another
    /// one, and clients that are killed.
    Rtx,
    /// Wei thesis, chapter 3: a learned cache of the places of leaves, compared with whole indexes,
    /// with none, and with servers' CPUs.
    Xstore,
}

impl Text {
    fn name(self) -> &'static str {
        match self {
            Text::DrtmH => "drtm-h",
            Text::DrtmKv => "drtm-kv",
            Text::Dst => "dst",
            Text::Ford => "ford",
            Text::Latches => "latches",
            Text::MultiObject => "multi-object",
            Text::Rtx => "rtx",
            Text::TreeDesigns => "tree-designs",
            Text::Xstore => "xstore",
        }
    }
}

pub(crate) fn reproduce(options: &ReproduceOptions) -> Result<Verdict, Failure> {
    let report = ReportTo::open(options.report.as_deref())?;
    let plot = options.plot.as_deref().map(|path| OutputFile::open("--plot", path)).transpose()?;
    let bar = progress_bar();
    let done = run(options, &|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let done = done?;
    let rows: Vec<Row> = done.rows.iter().cloned().chain(done.run_rows()).collect();
    let written = report.write(&rows, || table(&done));
    let plotted = plot.map_or(Ok(()), |plot| {
        let svg = done.plot().map_err(|error| Failure::new("the plot", error))?;
        plot.fill(&svg)
    });
    done.violated.iter().for_each(|violated| complain(violated));
    let verdict = if done.violated.is_empty() { Verdict::Sound } else { Verdict::Unsound };
    verdict.told(output::all([written, plotted]))
}

fn run(options: &ReproduceOptions, look: &(dyn Fn(usize, usize) + Sync)) -> Result<Reproduction, Failure> {
    let ReproduceOptions { text, quick, nodes, seed, .. } = *options;
    let done = match (text, nodes) {
        (
            Text::DrtmKv
            | Text::Dst
            | Text::Ford
            | Text::Latches
            | Text::MultiObject
            | Text::Rtx
            | Text::TreeDesigns
            | Text::Xstore,
            Some(nodes),
        ) => {
            return Err(Failure::new(format!("--nodes {nodes}"), "machines can be chosen for drtm-h only"));
        }
        (Text::DrtmKv, None) => {
            kv::reproduce(&if quick { kv::Scale::quick(seed) } else { kv::Scale::full(seed) }, look)
        }
        (Text::TreeDesigns, None) => {
            trees::reproduce(&if quick { trees::Scale::quick(seed) } else { trees::Scale::full(seed) }, look)
        }
        (Text::Rtx, None) => {
            rtx::reproduce(&if quick { rtx::Scale::quick(seed) } else { rtx::Scale::full(seed) }, look)
        }
        (Text::Xstore, None) => {
            xstore::reproduce(&if quick { xstore::Scale::quick(seed) } else { xstore::Scale::full(seed) }, look)
        }
        (Text::Latches, None) => {
            latches::reproduce(&if quick { latches::Scale::quick(seed) } else { latches::Scale::full(seed) }, look)
        }
        (Text::MultiObject, None) => {
            let scale = if quick { multi_object::Scale::quick(seed) } else { multi_object::Scale::full(seed) };
            multi_object::reproduce(&scale, look)
        }
        (Text::Dst, None) => {
            dst::reproduce(&if quick { dst::Scale::quick(seed) } else { dst::Scale::full(seed) }, look)
        }
        (Text::Ford, None) => {
            ford::reproduce(&if quick { ford::Scale::quick(seed) } else { ford::Scale::full(seed) }, look)
        }
        (Text::DrtmH, nodes) => {
            let scale = if quick { drtm_h::Scale::quick(seed) } else { drtm_h::Scale::full(seed) };
            drtm_h::reproduce(&drtm_h::Scale { nodes: nodes.unwrap_or(scale.nodes), ..scale }, look)
        }
    };
    done.map_err(|error: ReproduceError| Failure::new(text.name(), error))
}

fn progress_bar() -> ProgressBar {
    // The bar is drawn on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} simulations");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Formats the results as text.
fn table(done: &Reproduction) -> String {
    output::text(|text| write_table(text, done))
}

fn write_table(text: &mut String, done: &Reproduction) -> std::fmt::Result {
    done.about.iter().try_for_each(|line| writeln!(text, "{line}"))?;
    text.push('\n');
    if !done.is_comparable {
        writeln!(text, "The cluster is smaller than the text's: only directions can be compared.\n")?;
    }
    let widest = done.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let [paper, ours, ratio, as_said] = ["paper", "simulation", "ratio", "as said"];
    writeln!(text, "{:<widest$} {paper:>9} {ours:>11} {:>4}{ratio:>8}  {as_said:<7}  source", "", "")?;
    let said = |row: &Row| if done.is_comparable { row.as_said } else { row.direction_holds };
    done.rows.iter().try_for_each(|row| write_row(text, row, said(row), widest))?;
    if done.is_comparable {
        write_counts(text, &done.rows)?;
    }
    let is_off = |row: &&Row| if done.is_comparable { row.is_off() } else { said(row) == Some(false) };
    let off: Vec<&Row> = done.rows.iter().filter(is_off).collect();
    if !off.is_empty() {
        writeln!(text, "\nNot as published:")?;
        let mut notes: Vec<&str> = Vec::new();
        for row in &off {
            let note = row.note.unwrap_or("not explained");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        for note in notes {
            let rows = off.iter().filter(|row| row.note.unwrap_or("not explained") == note);
            rows.map(|row| &row.name).try_for_each(|name| writeln!(text, "- {name}"))?;
            writeln!(text, "  {note}")?;
        }
    }
    writeln!(text, "\nLeft out:")?;
    done.left_out.iter().try_for_each(|left_out| writeln!(text, "- {left_out}"))?;
    let heads = ["load", "M/s", "p50 us", "p90", "p99", "aborted", "trips", "verbs"];
    let widest = done.runs.iter().map(|run| run.name.len()).max().unwrap_or(0);
    write!(text, "\n{:<widest$}", "")?;
    heads.iter().try_for_each(|head| write!(text, "{head:>14}"))?;
    text.push('\n');
    for Run { name, load, throughput, latency, abort_rate, round_trips, verbs } in &done.runs {
        write!(text, "{name:<widest$}{load:>14}{:>14.2}{:>14.1}", throughput / 1e6, latency.p50)?;
        write!(text, "{:>14.1}{:>14.1}{:>12.1} %", latency.p90, latency.p99, 100.0 * abort_rate)?;
        writeln!(text, "{round_trips:>14.2}{verbs:>14.1}")?;
    }
    Ok(())
}

/// Counts how many figures are as published.
fn write_counts(text: &mut String, rows: &[Row]) -> std::fmt::Result {
    let count = |is_meant: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is_meant(row)).count();
    let within = |share: f64| count(&|row| row.error.is_some_and(|error| error.abs() <= share));
    let far = count(&|row| row.ratio().is_some_and(|ratio| !(0.5..=2.0).contains(&ratio)));
    let said = |yes: bool| count(&|row| row.as_said == Some(yes));
    writeln!(
        text,
        "\n{} figures have a published value: {} within 10 %, {} within 25 %, {far} off by more than 2x. \
         As said: {} yes, {} no.",
        count(&|row| row.published.is_some()),
        within(0.10),
        within(0.25),
        said(true),
        said(false),
    )
}

fn write_row(text: &mut String, row: &Row, said: Option<bool>, widest: usize) -> std::fmt::Result {
    let or_empty = |number: Option<f64>| number.map_or(String::new(), |number| format!("{number:.2}"));
    let (paper, ratio) = (or_empty(row.published.or(row.fit)), or_empty(row.ratio()));
    let as_said = match said {
        Some(true) => "yes",
        Some(false) => "no",
        None if row.fit.is_some() => "fit",
        None => "",
    };
    let Row { name, ours, unit, source, .. } = row;
    writeln!(text, "{name:<widest$} {paper:>9} {ours:>11.2} {unit:<4}{ratio:>8}  {as_said:<7}  {source}")
}
